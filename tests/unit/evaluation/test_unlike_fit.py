"""Whether a target fits its members as its references fit theirs: rates of alarms, and what is seen."""

from __future__ import annotations

import numpy as np
import pytest

from plmia.auditing.given_target import likeness_notes
from plmia.data.designs import MembershipDesign, audit_design
from plmia.errors import ReferencesError
from plmia.evaluation.diagnostics.signals import lower_accuracy, unlike_fit
from plmia.signals.signals import Signals


def signals(own: float, others: float, seed: int = 0, references: int = 8, n: int = 800, records: int = 1) -> Signals:
    """Signals of a target whose members gain ``own``, and of references whose members gain ``others``."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n // records), records) if records > 1 else None
    matrix = audit_design(n, references, rng, groups).matrix
    gain = np.where(np.arange(len(matrix)) == 0, own, others)[:, None]
    values = rng.normal(0, 1, n) + rng.normal(0, 0.5, matrix.shape) + gain * matrix
    return Signals(values[:, :, None].astype(np.float32), MembershipDesign(matrix), groups=groups)


def test_the_aucs_are_those_of_a_naive_count():
    data = signals(1.0, 0.3, n=60)
    aucs = []
    for values, members in zip(data.values[:, :, 0], data.design.matrix, strict=True):
        inside, outside = values[members], values[~members]
        aucs.append(np.mean([(a > b) + (a == b) / 2 for a in inside for b in outside]))
    found = unlike_fit(data)
    assert (found.target, found.references) == pytest.approx((aucs[0], np.mean(aucs[1:])))


@pytest.mark.parametrize(("own", "others", "word"), [(0.0, 1.0, "less"), (2.0, 0.4, "more")])
def test_a_target_that_fits_otherwise_is_seen(own: float, others: float, word: str):
    found = unlike_fit(signals(own, others))
    assert found.warning is not None
    assert f"clearly {word} than" in found.warning


@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_another_scale_is_not_another_fit(scale: float):
    data = signals(1.0, 1.0)
    values = data.values.copy()
    values[0] = scale * values[0] + 5
    assert unlike_fit(Signals(values, data.design)) == unlike_fit(data)


@pytest.mark.parametrize("gain", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("records", [1, 4])
def test_a_target_like_its_references_raises_no_alarm(gain: float, records: int):
    alarms = [unlike_fit(signals(gain, gain, seed, n=400, records=records)).warning for seed in range(200)]
    assert sum(alarm is not None for alarm in alarms) <= 1


def test_a_small_difference_is_no_reason_for_doubt():
    """A quarter of the excess is missing, and with so many records nobody would call that chance."""
    found = unlike_fit(signals(0.9, 1.2, n=40_000, references=16))
    assert found.references - found.target > 0.03
    assert found.warning is None


def test_too_few_references_are_an_error():
    with pytest.raises(ReferencesError, match="2 references"):
        unlike_fit(signals(1, 1, references=2))


# Accuracy on members --------------------------------------------------------------------------------------------------


def answers(own: float, others: float, seed: int = 0, scatter: float = 0.0, n: int = 800) -> Signals:
    """Signals of a target that is right at a share ``own`` of its members, and of 16 references: ``others``.

    The ``scatter`` is the standard deviation of the references' shares.
    """
    rng = np.random.default_rng(seed)
    matrix = audit_design(n, 16, rng, None).matrix
    shares = np.clip(np.concatenate([[own], others + rng.normal(0, scatter, 16)]), 0, 1)
    values = np.where(rng.random(matrix.shape) < shares[:, None], 1.0, -1.0) * rng.random(matrix.shape)
    return Signals(values[:, :, None].astype(np.float32), MembershipDesign(matrix))


def test_the_accuracies_are_those_of_members_alone():
    data = answers(0.9, 0.7, n=60)
    right = [float((v[m] > 0).mean()) for v, m in zip(data.values[:, :, 0], data.design.matrix, strict=True)]
    found = lower_accuracy(data)
    assert (found.target, found.references) == pytest.approx((right[0], np.mean(right[1:])))
    known = {model: {"train_accuracy": 0.5 + 0.4 * (model == 0), "test_accuracy": 0.5} for model in data.models}
    assert (lower_accuracy(data, known).target, lower_accuracy(data, known).references) == (0.9, 0.5)
    # Accuracies are compared with accuracies: that of one model alone is not used.
    assert lower_accuracy(data, {0: known[0]}) == found


@pytest.mark.parametrize(("own", "others", "scatter"), [(0.9, 0.66, 0.0), (0.91, 0.78, 0.1), (1.0, 0.95, 0.0)])
def test_references_that_fit_less_are_seen_even_if_their_quality_is_mixed(own: float, others: float, scatter: float):
    for seed in range(20):
        found = lower_accuracy(answers(own, others, seed, scatter, n=3000))
        assert found.warning is not None
        assert f"{100 * found.references:.1f} %" in found.warning


@pytest.mark.parametrize("scatter", [0.0, 0.01, 0.02])
@pytest.mark.parametrize("accuracy", [0.6, 0.9, 1.0])
def test_references_that_fit_as_well_raise_no_alarm(accuracy: float, scatter: float):
    own = np.clip(accuracy + np.random.default_rng(5).normal(0, scatter, 300), 0, 1)
    alarms = [lower_accuracy(answers(share, accuracy, seed, scatter)).warning for seed, share in enumerate(own)]
    assert sum(alarm is not None for alarm in alarms) <= 1


def test_references_that_fit_better_raise_no_alarm():
    assert lower_accuracy(answers(0.8, 1.0)).warning is None


def test_weaker_references_are_noted_though_their_order_of_records_is_the_same():
    """The AUC of a model's own signals does not change if all of them are lower; its accuracy does."""
    data = signals(1.0, 1.0, references=16)
    data.values[0] += 1.5
    assert unlike_fit(data).warning is None
    assert "fit-unlike-references" in {note.code for note in likeness_notes(data)}
