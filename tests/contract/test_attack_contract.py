"""What every attack must keep to, the package's own and a user's, online and offline, with one view and with three."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmia import ATTACKS, Attack, AttackView, Setup, Signals, attack_targets, find_attack
from plmia.attacks.attack import RIVALS
from plmia.attacks.scoring import Scores, score_all
from plmia.attacks.view import Features, References

Simulate = Callable[..., Signals]

USER_FILE = Path(__file__).parent / "difficulty_attack.py"
NAMES = [*ATTACKS, *RIVALS, f"{USER_FILE}:DIFFICULTY"]

pytestmark = [
    pytest.mark.parametrize("name", NAMES, ids=lambda name: name.rpartition(":")[2]),
    pytest.mark.parametrize("mode", ["online", "offline"]),
    pytest.mark.parametrize("views", [1, 3]),
]


@pytest.fixture
def attack(name: str) -> Attack:
    return find_attack(name)


def _view(signals: Signals, mode: Any) -> AttackView:
    rows = np.arange(2, signals.n_models)
    outsiders = np.flatnonzero(~signals.design.matrix[0])
    return AttackView(
        signals.values[0].astype(np.float64),
        References(signals.values, rows, signals.design.matrix[rows]),
        outsiders[::3],
        signals.labels,
        mode,
        features=_features(signals),
    )


def _features(signals: Signals) -> Features:
    """Two columns per record, for attacks that predict signals from records."""
    return Features(np.random.default_rng(0).normal(size=(signals.n_points, 2)))


def _run(attack: Attack, view: AttackView, seed: int = 0) -> Scores:
    (result,) = score_all([attack], view, seed)
    return result


def _bytes(scores: Scores) -> bytes:
    return b"".join(array.tobytes() for array in (scores.score, scores.log10_p, scores.log10_p_conformal))


def test_one_finite_score_and_p_value_a_point(
    simulate_signals: Simulate, attack: Attack, mode: Any, views: int
) -> None:
    view = _view(simulate_signals(1, models=20, points=301, views=views), mode)
    told: list[int] = []
    (result,) = score_all([attack], view, tick=told.append)
    assert result.attack == attack.name
    for values in (result.score, result.log10_p, result.log10_p_conformal):
        assert values.shape == (301,)
        assert values.dtype == np.float64
        assert np.isfinite(values).all()
    assert (result.log10_p <= 0).all()
    assert (result.log10_p_conformal <= 0).all()
    assert result.log10_p_conformal.min() >= -np.log10(len(view.population) + 1) - 1e-12
    assert sum(told) == 301  # progress counts every point once


def test_larger_means_member_where_there_is_a_leak(
    simulate_signals: Simulate, attack: Attack, mode: Any, views: int
) -> None:
    """Members stand 1.5 deviations apart, which no attack here can miss.

    The weakest is offline PL-MIA, whose statistic is capped, with an AUC of 0.72; others reach 0.8 and more.
    """
    signals = simulate_signals(2, models=24, points=1200, views=views, shift=1.5)
    (result,) = attack_targets(signals, [attack], [0], Setup(mode, seed=1), features=_features(signals))
    assert result.metrics().auc > 0.68
    queries, members = result.truth.queries, result.truth.members
    p_values = result.scores.log10_p_conformal[queries]
    assert p_values[members[queries]].mean() < p_values[~members[queries]].mean()


def test_without_a_leak_the_auc_is_one_half(simulate_signals: Simulate, attack: Attack, mode: Any, views: int) -> None:
    """Within four standard errors of the rank-sum statistic: a false alarm in one case of 16,000."""
    signals = simulate_signals(3, models=24, points=1200, views=views, shift=0.0)
    (result,) = attack_targets(signals, [attack], [0], Setup(mode, seed=1), features=_features(signals))
    metrics = result.metrics()
    m, n = metrics.n_members, metrics.n_non_members
    assert abs(metrics.auc - 0.5) < 4 * np.sqrt((m + n + 1) / (12 * m * n))
    assert 4 * np.sqrt((m + n + 1) / (12 * m * n)) < 0.08  # so that the test can fail


def test_the_same_seed_gives_the_same_bytes(simulate_signals: Simulate, attack: Attack, mode: Any, views: int) -> None:
    view = _view(simulate_signals(4, models=12, points=150, views=views), mode)
    again = _view(simulate_signals(4, models=12, points=150, views=views), mode)
    assert _bytes(_run(attack, view, seed=7)) == _bytes(_run(attack, again, seed=7))


def test_only_the_references_are_read(simulate_signals: Simulate, attack: Attack, mode: Any, views: int) -> None:
    """The signals array holds the target and its complement as well: with NaN in their rows nothing changes."""
    view = _view(simulate_signals(5, models=12, points=150, views=views), mode)
    poisoned = view.references.signals.copy()
    poisoned[:2] = np.nan
    blind = dataclasses.replace(view, references=dataclasses.replace(view.references, signals=poisoned))
    assert _bytes(_run(attack, view)) == _bytes(_run(attack, blind))


def test_a_view_is_left_as_it_was(simulate_signals: Simulate, attack: Attack, mode: Any, views: int) -> None:
    view = _view(simulate_signals(6, models=12, points=150, views=views), mode)
    arrays = (view.target, view.references.signals, view.references.in_mask, view.population, view.references.rows)
    before = [array.tobytes() for array in arrays]
    for array in arrays:
        array.flags.writeable = False  # writing raises
    _run(attack, view)
    assert [array.tobytes() for array in arrays] == before


def test_the_storage_type_hardly_matters(simulate_signals: Simulate, attack: Attack, mode: Any, views: int) -> None:
    """The same numbers in float16, float32 and float64: statistics differ by what float32 sums round away.

    A vote may fall the other way where a difference is next to gamma, by 1 / |Z| each.
    """
    signals = simulate_signals(7, models=24, points=400, views=views, dtype="float16")
    results = []
    for dtype in (np.float16, np.float32, np.float64):
        results.append(_run(attack, _view(dataclasses.replace(signals, values=signals.values.astype(dtype)), mode)))
    votes = 2.01 / len(_view(signals, mode).population)
    for other in results[:2]:
        np.testing.assert_allclose(other.score, results[2].score, rtol=1e-4, atol=max(1e-4, votes))


def test_offline_no_in_reference_counts(simulate_signals: Simulate, attack: Attack, mode: Any, views: int) -> None:
    signals = simulate_signals(8, models=24, points=300, views=views, dtype="float64")
    view = _view(signals, mode)
    other = np.where(
        view.references.in_mask[:, :, None], view.references.signals[2:] - 3.0, view.references.signals[2:]
    )
    changed = dataclasses.replace(
        view, references=dataclasses.replace(view.references, signals=np.concatenate([signals.values[:2], other]))
    )
    same = np.allclose(_run(attack, view).score, _run(attack, changed).score, rtol=1e-9, atol=1e-9)
    assert same or mode == "online"
    if attack == ATTACKS["lira"]:
        assert same == (mode == "offline")  # the change is large enough to be seen
