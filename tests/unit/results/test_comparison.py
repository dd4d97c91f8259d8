"""Comparisons of attacks against slow twins that resample query by query, and at their edges."""

from __future__ import annotations

import math
import time

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from plmia.errors import PlmiaError
from plmia.evaluation.metrics import roc_curve
from plmia.results.comparison import compare, compare_auc, compare_over_targets

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def two_attacks(
    n_in: int,
    n_out: int,
    *,
    shift: float = 1.5,
    noise: tuple[float, float] = (0.5, 0.5),
    levels: int = 0,
    seed: int = 0,
) -> tuple[Floats, Floats, Bools]:
    rng = np.random.default_rng(seed)
    members = rng.permutation(n_in + n_out) < n_in
    common = rng.normal(size=members.size) + shift * members
    a, b = (common + size * rng.normal(size=members.size) for size in noise)
    return (np.round(a * levels) / levels, np.round(b * levels) / levels, members) if levels else (a, b, members)


def slow_spread(a: Floats, b: Floats, members: Bools, fpr: float, resamples: int) -> float:
    rng = np.random.default_rng(1)
    inside, outside = np.flatnonzero(members), np.flatnonzero(~members)
    found = []
    for _ in range(resamples):
        drawn = np.concatenate([rng.choice(inside, inside.size), rng.choice(outside, outside.size)])
        rates = [roc_curve(scores[drawn], members[drawn]).tpr_at(fpr).tpr for scores in (a, b)]
        found.append(rates[0] - rates[1])
    return float(np.std(found, ddof=1))


@pytest.mark.parametrize("levels", [0, 2])
@pytest.mark.parametrize(("n_in", "n_out", "fpr"), [(200, 300, 0.05), (150, 2000, 0.01), (60, 40, 0.3)])
def test_the_spread_is_that_of_resampled_queries(n_in: int, n_out: int, fpr: float, levels: int) -> None:
    a, b, members = two_attacks(n_in, n_out, levels=levels)
    found = compare(a, b, members, fpr, np.random.default_rng(0), resamples=4_000)
    spread = (found.high - found.low) / (2 * stats.norm.ppf(0.975))
    # Each spread has an error of about 1 / sqrt(2 * resamples): 1.1 % and 2.2 %; four joint errors are 10 %.
    assert spread == pytest.approx(slow_spread(a, b, members, fpr, 1_000), rel=0.1)


@pytest.mark.parametrize("levels", [0, 2])
@pytest.mark.parametrize("fpr", [0.01, 0.1, 1.0])
def test_the_rates_are_those_of_the_curves(fpr: float, levels: int) -> None:
    a, b, members = two_attacks(300, 400, noise=(0.2, 1.0), levels=levels)
    found = compare(a, b, members, fpr, np.random.default_rng(0), resamples=100)
    assert found.a == roc_curve(a, members).tpr_at(fpr).tpr
    assert found.b == roc_curve(b, members).tpr_at(fpr).tpr
    assert found.difference == found.a - found.b
    assert found.low <= found.difference <= found.high


@pytest.mark.parametrize("transform", [lambda x: x, np.exp, lambda x: 3 * x - 7])
def test_the_same_order_is_no_difference(transform: object) -> None:
    a, _, members = two_attacks(500, 500)
    found = compare(a, transform(a), members, 0.01, np.random.default_rng(0))  # type: ignore[operator]
    assert (found.difference, found.low, found.high, found.p_value) == (0.0, 0.0, 0.0, 1.0)
    area = compare_auc(a, transform(a), members)  # type: ignore[operator]
    assert (area.difference, area.low, area.high, area.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_a_better_attack_is_found_and_the_sign_is_that_of_a() -> None:
    a, b, members = two_attacks(4000, 4000, noise=(0.1, 1.0))
    found = compare(a, b, members, 0.01, np.random.default_rng(0))
    swapped = compare(b, a, members, 0.01, np.random.default_rng(0))
    assert found.low > 0
    assert found.p_value < 1e-3
    assert swapped.high < 0
    assert swapped.difference == -found.difference


def test_a_generator_makes_it_repeatable() -> None:
    a, b, members = two_attacks(300, 300)
    first, second = (compare(a, b, members, 0.1, np.random.default_rng(5)) for _ in range(2))
    assert first == second


def test_two_members_prove_nothing() -> None:
    members = np.arange(1002) < 2
    good, bad = np.arange(1002.0)[::-1], np.arange(1002.0)
    found = compare(good, bad, members, 0.1, np.random.default_rng(0))
    assert found.difference == 1.0
    assert found.p_value == 0.5
    assert 0 < compare_auc(good[:4], bad[:4], members[:4]).p_value <= 0.125


def test_equal_scores_on_one_side_are_compared_too() -> None:
    a, _, members = two_attacks(500, 500)
    found = compare(a, np.zeros(1000), members, 0.1, np.random.default_rng(0))
    assert found.b == 0.0
    assert found.low > 0


def test_large_audits_take_about_a_second() -> None:
    a, b, members = two_attacks(20_000, 20_000)
    started = time.perf_counter()
    compare(a, b, members, 0.01, np.random.default_rng(0))
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    ("fpr", "message"), [(0.0001, "needs 10,000 non-members, there are 50"), (0.0, "FPR is 0"), (1.5, "FPR is 1.5")]
)
def test_a_rate_that_cannot_be_compared_is_refused(fpr: float, message: str) -> None:
    a, b, members = two_attacks(50, 50)
    with pytest.raises(PlmiaError, match=message):
        compare(a, b, members, fpr, np.random.default_rng(0))


def test_other_arguments_are_checked() -> None:
    a, b, members = two_attacks(50, 50)
    with pytest.raises(PlmiaError, match="at least 100"):
        compare(a, b, members, 0.1, np.random.default_rng(0), resamples=10)
    with pytest.raises(PlmiaError, match="confidence"):
        compare(a, b, members, 0.1, np.random.default_rng(0), confidence=95)
    with pytest.raises(PlmiaError, match="shape"):
        compare(a, b[:-1], members, 0.1, np.random.default_rng(0))
    with pytest.raises(PlmiaError, match="at least two of each"):
        compare_auc(a, b, np.arange(100) < 1)


# --- area


@pytest.mark.parametrize("levels", [0, 1])
def test_the_areas_differ_by_delongs_test(levels: int) -> None:
    a, b, members = two_attacks(50, 80, levels=levels)
    found = compare_auc(a, b, members, 0.9)
    kernels = []
    for scores in (a, b):
        inside, outside = scores[members], scores[~members]
        kernels.append((inside[:, None] > outside) + 0.5 * (inside[:, None] == outside))
    by_member, by_other = ((kernels[0].mean(axis) - kernels[1].mean(axis)) for axis in (1, 0))
    spread = math.sqrt(by_member.var(ddof=1) / 50 + by_other.var(ddof=1) / 80)
    difference = kernels[0].mean() - kernels[1].mean()
    assert found.difference == pytest.approx(difference)
    assert found.high - found.low == pytest.approx(2 * stats.norm.ppf(0.95) * spread)
    assert found.p_value == pytest.approx(2 * stats.norm.sf(abs(difference) / spread))


# --- targets


def test_targets_are_compared_by_the_paired_t_test() -> None:
    a, b = [0.71, 0.75, 0.69, 0.74, 0.70], [0.70, 0.73, 0.69, 0.71, 0.69]
    found = compare_over_targets(a, b, 0.9)
    twin = stats.ttest_rel(a, b)
    assert found.p_value == pytest.approx(twin.pvalue)
    interval = twin.confidence_interval(0.9)
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert found.difference == pytest.approx(np.mean(a) - np.mean(b))


def test_equal_differences_are_no_certainty() -> None:
    assert compare_over_targets([0.5, 0.6], [0.5, 0.6]).p_value == 1.0
    assert compare_over_targets([0.5, 0.75, 1.0], [0.25, 0.5, 0.75]).p_value == 0.25


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([0.5], [0.4], r"\(1,\)"),
        ([0.5, 0.6], [0.4, 0.5, 0.6], "2 targets, attack B 3"),
        ([0.5, math.nan], [0, 1], "nan"),
    ],
)
def test_targets_that_do_not_pair_are_refused(a: list[float], b: list[float], message: str) -> None:
    with pytest.raises(PlmiaError, match=message):
        compare_over_targets(a, b)
