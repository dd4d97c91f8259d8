"""The metrics against naive loops over pairs and thresholds, with ties everywhere."""

from __future__ import annotations

import math
import pickle
import statistics
import subprocess
import sys
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from plmia.errors import PlmiaError
from plmia.evaluation.metrics import (
    AttackMetrics,
    Roc,
    TargetMetrics,
    clopper_pearson,
    evaluate,
    fpr_key,
    roc_curve,
    summarise,
)

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def tied_queries(seed: int, n: int = 60, levels: int = 6) -> tuple[Floats, Bools]:
    rng = np.random.default_rng(seed)
    members = rng.random(n) < rng.uniform(0.2, 0.8)
    members[:2] = [True, False]
    scores = rng.integers(0, levels, n) + members * rng.integers(0, 2, n)
    order = rng.permutation(n)
    return scores[order].astype(float), members[order]


def naive_auc(scores: Floats, members: Bools) -> Fraction:
    total, pairs = Fraction(0), 0
    for member in scores[members]:
        for other in scores[~members]:
            total += Fraction(1) if member > other else Fraction(1, 2) if member == other else Fraction(0)
            pairs += 1
    return total / pairs


def naive_points(scores: Floats, members: Bools) -> list[tuple[float, int, int]]:
    points = [(math.inf, 0, 0)]
    for threshold in sorted({float(s) for s in scores}, reverse=True):
        true = sum(1 for s, m in zip(scores, members, strict=True) if m and s >= threshold)
        false = sum(1 for s, m in zip(scores, members, strict=True) if not m and s >= threshold)
        points.append((threshold, true, false))
    return points


def naive_tpr_at(scores: Floats, members: Bools, fpr: Fraction) -> tuple[float, int, int]:
    n = int((~members).sum())
    within = [point for point in naive_points(scores, members) if Fraction(point[2], n) <= fpr]
    return max(within, key=lambda point: (point[1], point[2]))


def row_by_row_auc(scores: Floats, members: Bools) -> float:
    """AUC as software without tie groups computes it: one ROC point a row, in the order of the sort."""
    truth = members[np.argsort(-scores, kind="stable")]
    tpr = np.concatenate([[0], np.cumsum(truth)]) / truth.sum()
    fpr = np.concatenate([[0], np.cumsum(~truth)]) / (~truth).sum()
    return float(np.sum(np.diff(fpr) * (tpr[1:] + tpr[:-1]) / 2))


# --- ROC curve, AUC, balanced accuracy


@pytest.mark.parametrize("levels", [1, 2, 6, 1000])
@pytest.mark.parametrize("seed", range(10))
def test_roc_matches_a_loop_over_thresholds(seed: int, levels: int) -> None:
    scores, members = tied_queries(seed, levels=levels)
    roc = roc_curve(scores, members)
    points = list(zip(roc.thresholds.tolist(), roc.true_positives.tolist(), roc.false_positives.tolist(), strict=True))
    assert points == naive_points(scores, members)
    assert (roc.n_members, roc.n_non_members) == (members.sum(), (~members).sum())
    np.testing.assert_array_equal(roc.tpr, roc.true_positives / members.sum())
    np.testing.assert_array_equal(roc.fpr, roc.false_positives / (~members).sum())


@pytest.mark.parametrize("levels", [1, 2, 6, 1000])
@pytest.mark.parametrize("seed", range(10))
def test_auc_is_the_exact_share_of_pairs(seed: int, levels: int) -> None:
    scores, members = tied_queries(seed, levels=levels)
    assert roc_curve(scores, members).auc == float(naive_auc(scores, members))


@pytest.mark.parametrize("seed", range(10))
def test_balanced_accuracy_is_the_best_over_thresholds(seed: int) -> None:
    scores, members = tied_queries(seed)
    n_in, n_out = int(members.sum()), int((~members).sum())
    best = max((Fraction(t, n_in) + 1 - Fraction(f, n_out)) / 2 for _, t, f in naive_points(scores, members))
    assert roc_curve(scores, members).balanced_accuracy == float(best)


def test_binary_votes_have_the_auc_of_their_pairs() -> None:
    # 50 % of the members and 34 % of the non-members are voted in; listed first, the tied non-members
    # win every tie in a curve without tie groups, and lose every tie when listed last.
    votes = np.repeat([1.0, 0.0, 1.0, 0.0], [17, 33, 25, 25])
    members = np.repeat([False, True], 50)
    assert row_by_row_auc(votes, members) == pytest.approx(0.33)
    assert row_by_row_auc(votes[::-1], members[::-1]) == pytest.approx(0.83)
    assert naive_auc(votes, members) == Fraction(58, 100)
    assert roc_curve(votes, members).auc == 0.58
    assert roc_curve(votes[::-1], members[::-1]).auc == 0.58
    assert roc_curve(votes, members).balanced_accuracy == 0.58


@pytest.mark.parametrize(
    ("scores", "auc", "balanced"),
    [
        ([1, 1, 1, 1], 0.5, 0.5),
        ([0, 0, 1, 1], 1.0, 1.0),
        ([1, 1, 0, 0], 0.0, 0.5),
        ([0, 2, 1, 3], 0.75, 0.75),
    ],
)
def test_small_cases_by_hand(scores: list[float], auc: float, balanced: float) -> None:
    roc = roc_curve(scores, [False, False, True, True])
    assert roc.auc == auc
    assert roc.balanced_accuracy == balanced


def test_zero_ties_with_negative_zero() -> None:
    assert roc_curve([0.0, -0.0], [True, False]).auc == 0.5


def test_counts_do_not_overflow_at_scale() -> None:
    n = 200_000  # n * n is far beyond 32 bits
    members = np.arange(2 * n) < n
    roc = roc_curve(members.astype(np.float32), members)
    assert roc.auc == 1.0
    assert roc.balanced_accuracy == 1.0
    assert roc.tpr_at(0).tpr == 1.0
    assert roc.thresholds.size == 3


def test_auc_matches_mann_whitney_on_many_queries() -> None:
    rng = np.random.default_rng(3)
    members = rng.random(50_000) < 0.4
    scores = np.round(rng.normal(size=50_000) + 0.3 * members, 2)
    u = stats.mannwhitneyu(scores[members], scores[~members], method="asymptotic").statistic
    roc = roc_curve(scores, members)
    assert roc.auc == pytest.approx(u / (roc.n_members * roc.n_non_members), abs=1e-14)


def test_a_curve_cannot_be_changed() -> None:
    scores, members = tied_queries(0)
    roc = roc_curve(scores, members)
    with pytest.raises(ValueError, match="read-only"):
        roc.true_positives[0] = 5
    with pytest.raises(AttributeError):
        roc.n_members = 3  # type: ignore[misc]


def test_inputs_are_left_alone() -> None:
    scores, members = tied_queries(1)
    before = scores.copy(), members.copy()
    roc_curve(scores, members)
    np.testing.assert_array_equal(scores, before[0])
    np.testing.assert_array_equal(members, before[1])
    assert scores.flags.writeable
    assert members.flags.writeable


# --- TPR at a low FPR


@pytest.mark.parametrize("percent", [0, 1, 3, 10, 25, 50, 99, 100])
@pytest.mark.parametrize("seed", range(8))
def test_tpr_at_matches_a_loop_over_thresholds(seed: int, percent: int) -> None:
    scores, members = tied_queries(seed, n=80, levels=[3, 40][seed % 2])
    point = roc_curve(scores, members).tpr_at(percent / 100)
    threshold, true, false = naive_tpr_at(scores, members, Fraction(percent, 100))
    assert (point.threshold, point.n_true) == (threshold, true)
    assert point.tpr == true / members.sum()
    assert point.fpr_realised == false / (~members).sum()
    assert point.n_true == np.sum(scores[members] >= point.threshold)


@pytest.mark.parametrize("seed", range(8))
def test_tpr_at_zero_is_the_share_above_the_top_non_member(seed: int) -> None:
    scores, members = tied_queries(seed, levels=[3, 40][seed % 2])
    point = roc_curve(scores, members).tpr_at(0)
    assert point.tpr == np.mean(scores[members] > scores[~members].max())
    assert point.fpr_realised == 0
    assert point.resolved
    assert point.needed == 1


def test_a_tie_with_the_top_non_member_does_not_count_at_zero() -> None:
    point = roc_curve([2.0, 2.0, 1.0], [True, False, True]).tpr_at(0)
    assert (point.tpr, point.n_true, point.threshold) == (0.0, 0, math.inf)


def test_no_interpolation_between_tie_groups() -> None:
    # Both non-members tie with a member: at FPR 0.5 none of the group may pass.
    roc = roc_curve([3.0, 2.0, 2.0, 2.0], [True, True, False, False])
    point = roc.tpr_at(0.5)
    assert (point.tpr, point.fpr_realised, point.threshold) == (0.5, 0.0, 3.0)
    assert roc.tpr_at(1).tpr == 1.0


def spaced(n_non_members: int) -> Roc:
    """One member below each non-member: n_true is the number of non-members let through."""
    scores = -np.arange(2 * n_non_members, dtype=float)
    return roc_curve(scores, np.arange(2 * n_non_members) % 2 == 1)


@pytest.mark.parametrize("n", [7, 49, 100, 1000, 10_000])
def test_every_decimal_and_every_quotient_lets_its_own_count_through(n: int) -> None:
    # 0.29 * 100 = 28.999999999999996 and 0.07 * 100 = 7.000000000000001: products cannot decide.
    roc = spaced(n)
    counts = range(n + 1) if n <= 1000 else range(0, n + 1, 37)
    for k in counts:
        assert roc.tpr_at(k / n).fpr_realised == k / n
        if n in (100, 1000, 10_000):
            assert roc.tpr_at(float(f"{k}e-{len(str(n)) - 1}")).fpr_realised == k / n
        if k:
            below = roc.tpr_at(float(np.nextafter(k / n, 0)))
            assert below.fpr_realised == (k - 1) / n


def test_one_in_a_thousand_of_a_thousand_is_one() -> None:
    assert spaced(1000).tpr_at(0.001).fpr_realised == 0.001
    assert spaced(999).tpr_at(0.001).fpr_realised == 0.0
    assert spaced(1999).tpr_at(0.001).fpr_realised == 1 / 1999


@pytest.mark.parametrize(
    ("fpr", "n", "resolved", "needed"),
    [
        (0.0001, 900, False, 10_000),
        (0.0001, 9_999, False, 10_000),
        (0.0001, 10_000, True, 10_000),
        (0.001, 999, False, 1000),
        (0.001, 1000, True, 1000),
        (0.01, 100, True, 100),
        (0.003, 333, False, 334),
        (0.003, 334, True, 334),
        (1 / 3, 3, True, 3),
        (1 / 49, 49, True, 49),  # 49 * (1 / 49) < 1 in floats
        (1.0, 1, True, 1),
        (0.0, 1, True, 1),
    ],
)
def test_rates_the_non_members_cannot_resolve_are_marked(fpr: float, n: int, resolved: bool, needed: int) -> None:
    roc = spaced(n)
    point = roc.tpr_at(fpr)
    assert (point.resolved, point.needed) == (resolved, needed)
    if not resolved:
        at_zero = roc.tpr_at(0)
        assert (point.tpr, point.fpr_realised) == (at_zero.tpr, 0.0)


def test_needed_is_the_first_size_that_lets_one_through() -> None:
    roc = spaced(1)
    assert [roc.tpr_at(1 / n).needed for n in range(1, 2000)] == list(range(1, 2000))


def test_a_vanishing_rate_is_never_resolved() -> None:
    point = spaced(10).tpr_at(5e-324)
    assert not point.resolved
    assert point.needed > 10**300


def test_operating_interval_is_that_of_its_counts() -> None:
    scores, members = tied_queries(5)
    point = roc_curve(scores, members).tpr_at(0.3, confidence=0.8)
    low, high = clopper_pearson(point.n_true, int(members.sum()), 0.8)
    assert (point.low, point.high) == (float(low), float(high))
    assert (point.confidence, point.n_members) == (0.8, members.sum())
    assert point.low < point.tpr < point.high


# --- Clopper-Pearson


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("n", [1, 2, 10, 137, 25_000])
def test_clopper_pearson_solves_the_binomial_tail_equations(n: int, confidence: float) -> None:
    k = np.unique(np.linspace(0, n, 12).astype(int))
    low, high = clopper_pearson(k, n, confidence)
    tail = (1 - confidence) / 2
    # At the lower end k or more successes have probability tail; at the upper end k or fewer do.
    np.testing.assert_allclose(stats.binom.sf(k[k > 0] - 1, n, low[k > 0]), tail, rtol=1e-9)
    np.testing.assert_allclose(stats.binom.cdf(k[k < n], n, high[k < n]), tail, rtol=1e-9)
    assert (low[k == 0] == 0).all()
    assert (high[k == n] == 1).all()
    assert (low <= k / n).all()
    assert (k / n <= high).all()


def test_clopper_pearson_edges_have_closed_forms() -> None:
    low, high = clopper_pearson(0, 20)
    assert low == 0.0
    assert high == pytest.approx(1 - 0.025 ** (1 / 20), rel=1e-13)
    low, high = clopper_pearson(20, 20)
    assert low == pytest.approx(0.025 ** (1 / 20), rel=1e-13)
    assert high == 1.0
    low, high = clopper_pearson(0, 0)
    assert low == 0.0
    assert high == 1.0


def test_clopper_pearson_broadcasts_and_mirrors() -> None:
    k, n = np.arange(5)[:, None], np.array([4, 50])
    low, high = clopper_pearson(k, n)
    assert low.shape == high.shape == (5, 2)
    for i in range(5):
        for j in range(2):
            assert (low[i, j], high[i, j]) == clopper_pearson(i, int(n[j]))
    mirrored_low, mirrored_high = clopper_pearson(n - k, n)
    np.testing.assert_allclose(mirrored_low, 1 - high, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(mirrored_high, 1 - low, rtol=1e-12, atol=1e-15)


def test_clopper_pearson_takes_unsigned_counts() -> None:
    # 255 + 1 wraps around to 0 in eight bits.
    assert clopper_pearson(np.uint8(255), np.uint16(300)) == clopper_pearson(255, 300)
    with pytest.raises(PlmiaError, match="5 successes in 4 trials"):
        clopper_pearson(np.uint8(5), np.uint8(4))


@pytest.mark.parametrize(
    ("k", "n", "confidence", "message"),
    [
        (-1, 5, 0.95, "-1 successes in 5 trials"),
        (6, 5, 0.95, "6 successes in 5 trials"),
        (0.5, 5, 0.95, "pass integers, not float64"),
        (1, 5, 1.0, "confidence is 1.0"),
        (1, 5, 0.0, "confidence is 0.0"),
        (1, 5, math.nan, "confidence is nan"),
        (1, 5, 95, "confidence is 95"),
    ],
)
def test_clopper_pearson_refuses(k: float, n: int, confidence: float, message: str) -> None:
    with pytest.raises(PlmiaError, match=message):
        clopper_pearson(k, n, confidence)


# --- one target, many targets, JSON


def test_evaluate_gathers_the_curve() -> None:
    scores, members = tied_queries(7)
    metrics = evaluate(scores, members, fprs=(0.2, 0.0, 0.2), target=4)
    roc = roc_curve(scores, members)
    assert metrics.target == 4
    assert (metrics.auc, metrics.balanced_accuracy) == (roc.auc, roc.balanced_accuracy)
    assert metrics.fprs == (0.0, 0.2)
    assert metrics.tpr_at(0.2) == roc.tpr_at(0.2)
    assert (metrics.n_members, metrics.n_non_members) == (members.sum(), (~members).sum())
    assert evaluate(scores, members, target=0).fprs == (0.0, 1e-4, 1e-3, 1e-2)
    with pytest.raises(PlmiaError, match=r"FPR 0\.5 was not evaluated, only \(0\.0, 0\.2\)"):
        metrics.tpr_at(0.5)


def summary(n_targets: int) -> AttackMetrics:
    return summarise([evaluate(*tied_queries(i, n=300, levels=90), target=i) for i in range(n_targets)])


def test_summary_is_mean_and_sample_deviation() -> None:
    attack = summary(5)
    aucs = [metrics.auc for metrics in attack.per_target]
    assert attack.auc.mean == pytest.approx(np.mean(aucs))
    assert attack.auc.std == pytest.approx(np.std(aucs, ddof=1))
    assert attack.auc.std > 0
    assert attack.balanced_accuracy.std == pytest.approx(
        statistics.stdev(metrics.balanced_accuracy for metrics in attack.per_target)
    )
    rates = [metrics.tpr_at(0.01) for metrics in attack.per_target]
    assert attack.tpr_at(0.01).tpr.mean == pytest.approx(np.mean([point.tpr for point in rates]))
    assert attack.tpr_at(0.01).tpr.std == pytest.approx(np.std([point.tpr for point in rates], ddof=1))
    assert attack.tpr_at(0.01).fpr_realised == pytest.approx(np.mean([p.fpr_realised for p in rates]))


def test_one_target_has_no_spread() -> None:
    attack = summary(1)
    assert attack.auc.mean == attack.per_target[0].auc
    assert attack.auc.std == attack.balanced_accuracy.std == attack.tpr_at(0.01).tpr.std == 0.0


def test_a_mean_is_resolved_only_when_every_target_is() -> None:
    def constant(n_non_members: int, target: int) -> TargetMetrics:
        members = np.arange(n_non_members + 5) < 5
        return evaluate(np.zeros(n_non_members + 5), members, target=target)

    mixed = summarise([constant(100, 0), constant(99, 1)])
    assert [point.resolved for point in mixed.operating] == [True, False, False, False]
    assert [point.needed for point in mixed.operating] == [1, 10_000, 1000, 100]
    enough = summarise([constant(100, 0), constant(1000, 1)])
    assert [point.resolved for point in enough.operating] == [True, False, False, True]


def plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(plain(item) for item in value)
    return type(value) in (float, int, bool)


def test_metrics_are_plain_values_even_of_numpy_arguments() -> None:
    scores, members = tied_queries(2)
    metrics = evaluate(
        scores.astype(np.float32),
        members,
        np.array([0, 0.01]),
        target=np.int64(3),  # type: ignore[arg-type]
        confidence=np.float64(0.9),
    )
    assert plain(asdict(summarise([metrics])))


@pytest.mark.parametrize(
    ("fpr", "key"),
    [
        (0, "0"),
        (0.0001, "0.0001"),
        (1e-3, "0.001"),
        (0.01, "0.01"),
        (1.0, "1"),
        (1e-5, "0.00001"),
        (0.3, "0.3"),
    ],
)
def test_keys_are_plain_decimals(fpr: float, key: str) -> None:
    assert fpr_key(fpr) == key


def test_nearby_rates_have_keys_of_their_own() -> None:
    assert fpr_key(0.0012345678) != fpr_key(0.0012345679)  # "%g" prints both as 0.00123457
    (point,) = evaluate([1, 0], [True, False], fprs=[-0.0], target=0).operating
    assert fpr_key(point.fpr) == "0"


def test_results_travel_between_processes() -> None:
    attack = summary(2)
    assert pickle.loads(pickle.dumps(attack)) == attack


# --- refusals


@pytest.mark.parametrize(
    ("scores", "members", "message"),
    [
        ([0.5, math.nan, math.inf], [True, False, True], r"score 1 is nan \(not finite: 1, 2\)"),
        ([0.5, -math.inf], [True, False], "score 1 is -inf"),
        ([0.5, 0.7], [False, False], "no member among 2 queries"),
        ([0.5, 0.7], [True, True], "no non-member among 2 queries"),
        ([], np.zeros(0, bool), "no member among 0 queries"),
        ([0.5, 0.7, 0.1], [True, False], r"scores have shape \(3,\), members \(2,\)"),
        ([[0.5, 0.7]], [[True, False]], r"shape \(1, 2\)"),
        (["a", "b"], [True, False], "number"),
        ([1j, 2j], [True, False], "number"),
        ([0.5, 0.7], [1, 0], "members are int[0-9]+"),
    ],
)
def test_queries_that_have_no_roc_are_refused(scores: npt.ArrayLike, members: npt.ArrayLike, message: str) -> None:
    with pytest.raises(PlmiaError, match=message):
        roc_curve(scores, members)
    with pytest.raises(PlmiaError, match=message):
        evaluate(scores, members, target=0)


@pytest.mark.parametrize("fpr", [-0.01, 1.01, 5, math.nan, math.inf])
def test_rates_outside_the_unit_interval_are_refused(fpr: float) -> None:
    with pytest.raises(PlmiaError, match=f"FPR is {fpr}"):
        spaced(10).tpr_at(fpr)
    with pytest.raises(PlmiaError, match=f"FPR is {fpr}"):
        evaluate([1, 0], [True, False], fprs=[0.1, fpr], target=0)


def test_summaries_that_would_mislead_are_refused() -> None:
    scores, members = tied_queries(0)
    one = evaluate(scores, members, target=1)
    with pytest.raises(PlmiaError, match="no target"):
        summarise([])
    with pytest.raises(PlmiaError, match="target 1 occurs twice"):
        summarise([one, one])
    with pytest.raises(PlmiaError, match=r"target 2 has FPRs \(0\.5,\), target 1 "):
        summarise([one, evaluate(scores, members, fprs=[0.5], target=2)])


def test_importing_metrics_spares_the_user_scipy_stats() -> None:
    check = "import sys, plmia.evaluation.metrics; sys.exit('scipy.stats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
