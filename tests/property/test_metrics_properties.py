"""What must hold of the metrics for any scores: order is all that counts, and nothing but order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmia.evaluation.metrics import Roc, clopper_pearson, evaluate, roc_curve

Queries = tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]

steady = settings(derandomize=True, deadline=None, max_examples=150)
rates = st.one_of(st.sampled_from([0.0, 1e-4, 1e-3, 0.01, 0.07, 0.29, 0.3, 1 / 3, 0.57, 1.0]), st.floats(0, 1))


@st.composite
def queries(draw: st.DrawFn) -> Queries:
    """Scores that tie often (few levels) or seldom (any finite float), with both kinds present."""
    few = st.integers(-3, 3).map(float)
    many = st.floats(allow_nan=False, allow_infinity=False)
    score = draw(st.sampled_from([few, many]))
    rows = draw(st.lists(st.tuples(score, st.booleans()), max_size=40))
    rows += [(draw(score), True), (draw(score), False)]
    return np.array([s for s, _ in rows]), np.array([m for _, m in rows])


def counts(roc: Roc) -> tuple[list[int], list[int]]:
    return roc.true_positives.tolist(), roc.false_positives.tolist()


@steady
@given(queries(), st.data())
def test_only_the_order_of_scores_counts(sample: Queries, data: st.DataObject) -> None:
    scores, members = sample
    levels, rank = np.unique(scores, return_inverse=True)
    image = data.draw(
        st.lists(
            st.floats(allow_nan=False, allow_infinity=False),
            unique=True,
            min_size=levels.size,
            max_size=levels.size,
        )
    )
    moved = np.sort(np.array(image))[rank]  # any strictly increasing function of the scores
    assert counts(roc_curve(moved, members)) == counts(roc_curve(scores, members))


@steady
@given(queries(), st.sampled_from([np.exp, np.arctan, np.cbrt, lambda x: 5 * x - 2]), rates)
def test_increasing_formulas_leave_the_metrics_alone(
    sample: Queries, formula: Callable[..., npt.NDArray[np.float64]], fpr: float
) -> None:
    scores, members = sample
    _, rank = np.unique(scores, return_inverse=True)
    before = evaluate(rank, members, fprs=[fpr], target=0)
    after = evaluate(formula(rank / 4), members, fprs=[fpr], target=0)
    assert (before.auc, before.balanced_accuracy) == (after.auc, after.balanced_accuracy)
    (first,), (second,) = before.operating, after.operating
    assert replace(first, threshold=second.threshold) == second


@steady
@given(queries(), st.randoms(use_true_random=False))
def test_the_order_of_queries_does_not_count(sample: Queries, random: Random) -> None:
    scores, members = sample
    order = list(range(scores.size))
    random.shuffle(order)
    assert evaluate(scores[order], members[order], target=0) == evaluate(scores, members, target=0)


@steady
@given(queries())
def test_flipping_labels_and_signs_together_mirrors_the_curve(sample: Queries) -> None:
    scores, members = sample
    roc, flipped = roc_curve(scores, members), roc_curve(-scores, ~members)
    assert flipped.auc == roc.auc
    assert flipped.balanced_accuracy == roc.balanced_accuracy
    np.testing.assert_array_equal(flipped.true_positives, roc.n_non_members - roc.false_positives[::-1])
    np.testing.assert_array_equal(flipped.false_positives, roc.n_members - roc.true_positives[::-1])


@steady
@given(queries())
def test_flipping_one_of_them_reverses_the_auc(sample: Queries) -> None:
    scores, members = sample
    auc = roc_curve(scores, members).auc
    assert roc_curve(-scores, members).auc == pytest.approx(1 - auc, abs=1e-15)
    assert roc_curve(scores, ~members).auc == pytest.approx(1 - auc, abs=1e-15)


@steady
@given(queries(), rates, rates)
def test_a_larger_rate_never_finds_fewer_members(sample: Queries, one: float, other: float) -> None:
    roc = roc_curve(*sample)
    small, large = roc.tpr_at(min(one, other)), roc.tpr_at(max(one, other))
    assert small.tpr <= large.tpr
    assert small.fpr_realised <= large.fpr_realised
    assert small.threshold >= large.threshold
    assert small.needed >= large.needed or min(one, other) == 0


@steady
@given(queries(), rates)
def test_the_realised_rate_keeps_to_the_nominal_and_wastes_nothing(sample: Queries, fpr: float) -> None:
    scores, members = sample
    roc = roc_curve(scores, members)
    point = roc.tpr_at(fpr)
    assert point.fpr_realised <= fpr
    assert point.fpr_realised == np.mean(scores[~members] >= point.threshold)
    assert point.tpr == np.mean(scores[members] >= point.threshold)
    more = roc.thresholds[roc.thresholds < point.threshold]
    if more.size:  # the next tie group would break the nominal rate
        assert np.mean(scores[~members] >= more[0]) > fpr
    assert point.resolved == (fpr == 0 or 1 / roc.n_non_members <= fpr)


@steady
@given(queries())
def test_every_realised_rate_is_its_own_operating_point(sample: Queries) -> None:
    roc = roc_curve(*sample)
    for fpr in roc.fpr.tolist():
        point = roc.tpr_at(fpr)
        assert point.fpr_realised == fpr
        assert point.tpr == roc.tpr[roc.fpr == fpr].max()


@steady
@given(queries())
def test_auc_is_the_share_of_pairs_won(sample: Queries) -> None:
    scores, members = sample
    ours, theirs = scores[members][:, None], scores[~members]
    won_twice = 2 * int(np.sum(ours > theirs)) + int(np.sum(ours == theirs))
    assert roc_curve(scores, members).auc == float(Fraction(won_twice, 2 * ours.size * theirs.size))


@steady
@given(st.integers(0, 3000), st.integers(1, 3000), st.floats(0.5, 0.9999))
def test_intervals_hold_the_share_and_nest(k: int, n: int, confidence: float) -> None:
    k = min(k, n)
    low, high = clopper_pearson(k, n, confidence)
    wider_low, wider_high = clopper_pearson(k, n, (1 + confidence) / 2)
    assert 0 <= wider_low <= low <= k / n <= high <= wider_high <= 1
    assert low < high
    if k < n:  # one success more moves both ends up
        next_low, next_high = clopper_pearson(k + 1, n, confidence)
        assert next_low > low
        assert next_high > high
