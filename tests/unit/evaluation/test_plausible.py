"""Signals that are something else are refused, with the likely cause; those that leak nothing are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

from plmia.data.designs import MembershipDesign
from plmia.errors import SignalsError
from plmia.evaluation.diagnostics.signals import require_plausible
from plmia.signals.signals import Signals, read_signals

Simulate = Callable[..., Signals]


def changed(signals: Signals, values: Any, labels: Any = None) -> Signals:
    return Signals(np.asarray(values, np.float32), signals.design, labels)


def class_logits(signals: Signals, classes: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Logits [models, points, classes] of models that fit their members, and labels."""
    labels = rng.integers(0, classes, signals.n_points)
    logits = rng.normal(size=(signals.n_models, signals.n_points, classes))
    logits[:, np.arange(signals.n_points), labels] += 3 + 2 * signals.design.matrix
    return logits, labels


def test_confidences_are_taken_as_they_are(simulate_signals: Simulate) -> None:
    require_plausible(simulate_signals(0))
    require_plausible(simulate_signals(0, views=4))


@pytest.mark.parametrize("models", [2, 4, 16])
def test_negated_signals_are_refused(models: int, simulate_signals: Simulate) -> None:
    signals = simulate_signals(0, models=models, points=400, shift=2.0)
    with pytest.raises(SignalsError, match="negated"):
        require_plausible(changed(signals, -signals.values))


def test_losses_are_refused(simulate_signals: Simulate) -> None:
    signals = simulate_signals(0, points=400, shift=2.0)
    with pytest.raises(SignalsError, match="losses"):
        require_plausible(changed(signals, np.log1p(np.exp(-signals.values))))


def test_inverted_membership_is_refused(simulate_signals: Simulate) -> None:
    signals = simulate_signals(0, points=400, shift=2.0)
    with pytest.raises(SignalsError, match="inverted"):
        require_plausible(Signals(signals.values, MembershipDesign(~signals.design.matrix)))


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("told", [True, False])
def test_class_logits_are_not_views(classes: int, told: bool, simulate_signals: Simulate) -> None:
    signals = simulate_signals(0, points=400)
    logits, labels = class_logits(signals, classes, np.random.default_rng(0))
    with pytest.raises(SignalsError, match="class logits"):
        require_plausible(changed(signals, logits, labels if told else None))


def test_classes_may_be_numbered_from_one(simulate_signals: Simulate) -> None:
    signals = simulate_signals(0, points=400)
    logits, labels = class_logits(signals, 3, np.random.default_rng(0))
    with pytest.raises(SignalsError, match="class logits"):
        require_plausible(changed(signals, logits, labels + 1))


def test_two_classes_are_not_two_views(simulate_signals: Simulate) -> None:
    signals = simulate_signals(0, points=400)
    logits, _ = class_logits(signals, 2, np.random.default_rng(0))
    with pytest.raises(SignalsError, match="class logits"):
        require_plausible(changed(signals, logits - logits.mean(axis=2, keepdims=True)))


def test_one_negated_view_is_enough(simulate_signals: Simulate) -> None:
    signals = simulate_signals(0, points=400, views=2, shift=2.0, difficulty=0.0)
    with pytest.raises(SignalsError, match="view 1"):
        require_plausible(changed(signals, signals.values * np.array([1, -1])))


def test_log_probabilities_are_refused_unless_called_logits(simulate_signals: Simulate, tmp_path: Path) -> None:
    signals = simulate_signals(0, points=400)
    path = tmp_path / "log.npz"
    np.savez(path, signals=-np.log1p(np.exp(-signals.values)), membership=signals.design.matrix)
    with pytest.raises(SignalsError, match="log-probabilities"):
        read_signals(path)
    assert read_signals(path, "logit").n_points == 400


def test_a_plan_is_not_made_of_losses(
    signals_file: Callable[..., Path], command: Callable[..., click.testing.Result], tmp_path: Path
) -> None:
    with np.load(signals_file(points=400, shift=2.0)) as arrays:
        loss = np.log1p(np.exp(-arrays["signals"]))
        np.savez(tmp_path / "loss.npz", **(dict(arrays) | {"signals": loss}))
    result = command("plan", tmp_path / "loss.npz", "--budget", 16)
    assert result.exit_code == 2
    assert "losses" in result.stderr


def test_two_views_of_two_classes_are_views(simulate_signals: Simulate) -> None:
    """View 0 is mostly the larger, and class 0 the more frequent: they agree by chance."""
    signals = simulate_signals(0, points=400, views=2)
    values = signals.values + np.array([3.0, 0.0], np.float32)
    require_plausible(changed(signals, values, (np.arange(400) % 5 == 0).astype(int)))


def transposed(signals: Signals) -> Signals:
    return Signals(signals.values.transpose(1, 0, 2), MembershipDesign(signals.design.matrix.T))


@pytest.mark.parametrize("shift", [0.0, 2.0])
@pytest.mark.parametrize("views", [1, 3])
def test_records_in_place_of_models_are_refused(shift: float, views: int, simulate_signals: Simulate) -> None:
    signals = simulate_signals(0, models=16, points=400, views=views, shift=shift)
    with pytest.raises(SignalsError, match=r"400 models and 16 records.*transpose"):
        require_plausible(transposed(signals))


@pytest.mark.parametrize("seed", range(20))
def test_many_models_and_few_records_are_not_refused(seed: int, simulate_signals: Simulate) -> None:
    """Records differ as usual, so the signals are upright."""
    require_plausible(simulate_signals(seed, models=200, points=20))


def test_labels_say_which_axis_is_that_of_records(simulate_signals: Simulate) -> None:
    tall = transposed(simulate_signals(0, models=16, points=400))
    require_plausible(changed(tall, tall.values, np.arange(16) % 2))


def test_without_a_leak_nothing_is_refused(simulate_signals: Simulate) -> None:
    """200 audits of noise: one alarm in a million is expected of six standard errors."""
    for seed in range(200):
        shape = {"models": (2, 4, 16)[seed % 3], "views": (1, 3, 18)[seed % 3], "difficulty": (0.0, 0.5, 3.0)[seed % 3]}
        require_plausible(simulate_signals(seed, shift=0.0, **shape))


def test_rows_of_one_group_are_one_piece_of_evidence(simulate_signals: Simulate) -> None:
    """40 groups of 50 equal rows: a difference that 2,000 records would show is none of 40."""
    few = simulate_signals(3, models=2, points=40, shift=0.0)
    values = np.repeat(few.values, 50, axis=1)
    matrix = np.repeat(few.design.matrix, 50, axis=1)
    signals = Signals(values, MembershipDesign(matrix), None, 0, np.repeat(np.arange(40), 50))
    require_plausible(signals)
    require_plausible(Signals(-values, MembershipDesign(matrix), None, 0, signals.groups))


def test_the_command_says_so_in_one_sentence(
    signals_file: Callable[..., Path], command: Callable[..., click.testing.Result], tmp_path: Path
) -> None:
    path = signals_file(points=400, shift=2.0)
    with np.load(path) as arrays:
        np.savez(tmp_path / "negated.npz", **(dict(arrays) | {"signals": -arrays["signals"]}))
    result = command("score", tmp_path / "negated.npz", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
