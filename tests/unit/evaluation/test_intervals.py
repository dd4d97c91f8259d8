"""Intervals and bands against naive loops, at their edges, and with ties everywhere."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from plmia.errors import PlmiaError
from plmia.evaluation.intervals import (
    Interval,
    auc_interval,
    over_targets,
    rank_grid,
    roc_band,
    share_bounds,
    tpr_interval,
)
from plmia.evaluation.metrics import Roc, clopper_pearson, roc_curve

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def queries(n_in: int, n_out: int, shift: float = 1.0, levels: int = 0, seed: int = 0) -> tuple[Floats, Bools]:
    rng = np.random.default_rng(seed)
    members = rng.permutation(n_in + n_out) < n_in
    scores = rng.normal(size=members.size) + shift * members
    return (np.round(scores * levels) / levels if levels else scores), members


def curve(n_in: int, n_out: int, shift: float = 1.0, levels: int = 0, seed: int = 0) -> Roc:
    return roc_curve(*queries(n_in, n_out, shift, levels, seed))


# --- one point


def test_an_interval_contains_its_ends_and_is_plain_json() -> None:
    interval = Interval(0.1, 0.2, 0.95)
    assert 0.1 in interval
    assert 0.2 in interval
    assert 0.21 not in interval
    assert json.loads(json.dumps(asdict(interval))) == {"low": 0.1, "high": 0.2, "confidence": 0.95}


@pytest.mark.parametrize("levels", [0, 2, 10])
@pytest.mark.parametrize("fpr", [0.01, 0.1, 0.5])
def test_the_tpr_interval_is_that_of_a_loop(fpr: float, levels: int) -> None:
    scores, members = queries(150, 200, levels=levels)
    inside, outside = scores[members], scores[~members]
    law = stats.binom(200, fpr)
    few = next(k for k in range(201) if law.cdf(k) >= 0.025)
    many = next(k for k in range(201) if law.cdf(k) >= 0.975)
    thresholds = [math.inf, *sorted(set(scores.tolist()), reverse=True)]
    rates = [(int((outside >= t).sum()), float((inside >= t).mean())) for t in thresholds]
    tpr = max(rate for count, rate in rates if count <= fpr * 200 + 1e-9)
    least = min(rate for count, rate in rates if count >= few)
    most = max(rate for count, rate in rates if count <= many)
    low, high = clopper_pearson(round(tpr * 150), 150)
    found = tpr_interval(roc_curve(scores, members), fpr)
    assert found.low == pytest.approx(max(tpr - math.hypot(tpr - low, tpr - least), 0))
    assert found.high == pytest.approx(min(tpr + math.hypot(high - tpr, most - tpr), 1))


def test_the_tpr_interval_is_wider_than_that_of_the_found_cut() -> None:
    roc = curve(2000, 2000)
    for fpr in (0.001, 0.01, 0.1):
        point, found = roc.tpr_at(fpr), tpr_interval(roc, fpr)
        assert found.low < point.low < point.high < found.high


def test_an_unresolved_rate_names_how_many_non_members_it_needs() -> None:
    with pytest.raises(PlmiaError, match=r"0\.0001 needs 10,000 non-members, there are 900"):
        tpr_interval(curve(900, 900), 0.0001)


@pytest.mark.parametrize("fpr", [0.0, 1.0])
def test_the_ends_of_the_curve_have_no_interval(fpr: float) -> None:
    with pytest.raises(PlmiaError, match="between 0 and 1"):
        tpr_interval(curve(10, 10), fpr)


def test_ten_non_members_and_one_member_still_give_an_honest_interval() -> None:
    below = tpr_interval(roc_curve([5.0, *range(10)], [True] + [False] * 10), 0.1)
    above = tpr_interval(roc_curve([20.0, *range(10)], [True] + [False] * 10), 0.1)
    assert (below.low, below.high) == (0.0, pytest.approx(0.975))
    assert (above.low, above.high) == (0.0, 1.0)


def test_equal_scores_show_nothing() -> None:
    roc = roc_curve(np.zeros(400), np.arange(400) < 200)
    assert tpr_interval(roc, 0.1).low == 0.0
    assert 0.5 in auc_interval(roc)


# --- area


def naive_delong(scores: Floats, members: Bools) -> float:
    inside, outside = scores[members], scores[~members]
    kernel = (inside[:, None] > outside) + 0.5 * (inside[:, None] == outside)
    return float(kernel.mean(1).var(ddof=1) / inside.size + kernel.mean(0).var(ddof=1) / outside.size)


@pytest.mark.parametrize("levels", [0, 1, 3])
def test_the_auc_interval_has_delongs_variance(levels: int) -> None:
    scores, members = queries(140, 170, levels=levels, seed=3)
    roc = roc_curve(scores, members)
    found = auc_interval(roc, 0.9)
    half = stats.norm.ppf(0.95) * math.sqrt(naive_delong(scores, members)) / (roc.auc * (1 - roc.auc))
    centre = math.log(roc.auc / (1 - roc.auc))
    assert found.low == pytest.approx(1 / (1 + math.exp(half - centre)), rel=1e-12)
    assert found.high == pytest.approx(1 / (1 + math.exp(-half - centre)), rel=1e-12)


def test_the_auc_interval_of_few_records_contains_that_of_the_largest_variance() -> None:
    scores, members = queries(40, 70, levels=0, seed=3)
    roc, z = roc_curve(scores, members), stats.norm.ppf(0.95)
    found, auc, n = auc_interval(roc, 0.9), roc.auc, min(members.sum(), (~members).sum())
    # Both ends solve |AUC - a| = z sqrt(a (1 - a) / n) for a.
    ends = np.roots([1 + z**2 / n, -(2 * auc + z**2 / n), auc**2])
    assert found.low <= min(ends) + 1e-12
    assert found.high >= max(ends) - 1e-12


def test_perfect_separation_is_not_certainty() -> None:
    few = auc_interval(roc_curve(np.arange(20.0), np.arange(20) >= 10))
    many = auc_interval(roc_curve(np.arange(2000.0), np.arange(2000) >= 1000))
    assert few.high == pytest.approx(1.0, abs=1e-12)
    assert many.high == pytest.approx(1.0, abs=1e-12)
    assert few.low == pytest.approx(10 / (10 + 1.959964**2), rel=1e-5)
    assert 0.99 < many.low < 1.0


def test_one_member_says_little_about_the_auc() -> None:
    found = auc_interval(roc_curve([5.0, *range(10)], [True] + [False] * 10))
    assert found.low < 0.2
    assert found.high > 0.9


# --- over targets


def test_the_mean_over_targets_has_students_interval() -> None:
    values = [0.71, 0.75, 0.69, 0.74, 0.70]
    found = over_targets(values, confidence=0.9)
    low, high = stats.t.interval(0.9, 4, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_equal_targets_have_an_interval_of_no_width() -> None:
    assert over_targets([0.7] * 5) == Interval(0.7, 0.7, 0.95)


@pytest.mark.parametrize(
    ("values", "message"),
    [([0.7], r"\(1,\)"), ([], r"\(0,\)"), ([0.5, 1.2], r"1\.2"), ([0.5, math.nan], "nan")],
)
def test_values_that_show_no_spread_are_refused(values: list[float], message: str) -> None:
    with pytest.raises(PlmiaError, match=message):
        over_targets(values)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95])
def test_a_confidence_outside_the_open_interval_is_refused(confidence: float) -> None:
    roc = curve(20, 20)
    calls = [
        lambda: tpr_interval(roc, 0.1, confidence),
        lambda: auc_interval(roc, confidence),
        lambda: roc_band(roc, confidence),
        lambda: over_targets([0.1, 0.2], confidence=confidence),
    ]
    for call in calls:
        with pytest.raises(PlmiaError, match="confidence"):
            call()


# --- band


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 10, 99, 100, 25_000])
@pytest.mark.parametrize("ratio", [1.08, 1.5])
def test_ranks_reach_from_end_to_end_and_mirror(n: int, ratio: float) -> None:
    ranks = rank_grid(n, ratio)
    assert ranks[0] == 1
    assert ranks[-1] == n
    assert np.all(np.diff(ranks) > 0)
    np.testing.assert_array_equal(ranks, (n + 1 - ranks)[::-1])
    first = ranks[2 * ranks <= n]
    assert np.all(first[1:] <= np.maximum(first[:-1] + 1, first[:-1] * ratio))


@pytest.mark.parametrize("n", [1, 7, 300])
def test_bounds_of_shares_are_those_of_a_loop(n: int) -> None:
    error = 0.0125
    ranks = rank_grid(n, 1.08).tolist()
    tail = 0.75 * error / len(ranks)
    margin = math.sqrt(math.log(4 / error) / (2 * n))
    low, high = share_bounds(np.arange(n + 1), n, error)
    for count in range(n + 1):
        below = [stats.beta.ppf(tail, j, n - j + 1) for j in ranks if j <= count]
        above = [stats.beta.isf(tail, j, n - j + 1) for j in ranks if j > count]
        assert low[count] == pytest.approx(max([*below, count / n - margin, 0.0]), abs=1e-12)
        assert high[count] == pytest.approx(min([*above, count / n + margin, 1.0]), abs=1e-12)


@pytest.mark.parametrize("levels", [0, 1, 4])
def test_the_band_is_that_of_a_loop_over_rectangles(levels: int) -> None:
    roc = curve(120, 90, levels=levels)
    band = roc_band(roc)
    error = (1 - 0.95) / 4
    fpr_low, fpr_high = share_bounds(roc.false_positives, roc.n_non_members, error)
    tpr_low, tpr_high = share_bounds(roc.true_positives, roc.n_members, error)
    following = np.append(tpr_high[1:], 1.0)
    for rate, low, high in zip(band.fpr[:-1], band.low, band.high, strict=False):
        assert low == max([0.0, *tpr_low[fpr_high <= rate]])
        assert high == max(following[fpr_low <= rate])


@pytest.mark.parametrize("levels", [0, 1, 4])
@pytest.mark.parametrize(("n_in", "n_out"), [(1, 1), (1, 10), (10, 1), (50, 70), (3000, 2000)])
def test_a_band_is_ready_to_be_drawn(n_in: int, n_out: int, levels: int) -> None:
    roc = curve(n_in, n_out, levels=levels)
    band = roc_band(roc)
    assert band.fpr[0] == 0.0
    assert band.fpr[-1] == band.low[-1] == band.high[-1] == 1.0
    for part in (band.fpr, band.low, band.high):
        assert np.all(np.isfinite(part))
        assert np.all(np.diff(part) >= 0)
    assert np.all(band.low <= band.high)
    assert {0.001, 0.01, 0.1} & set(band.fpr.tolist())
    assert band.confidence == 0.95


def test_a_band_is_useful_at_the_sizes_of_audits() -> None:
    roc = curve(25_000, 25_000, shift=1.5)
    band = roc_band(roc)
    low, high = band.at([1e-4, 1e-3, 1e-2, 1e-1])
    truth = stats.norm.cdf(1.5 + stats.norm.ppf([1e-4, 1e-3, 1e-2, 1e-1]))
    assert np.all(high <= truth * [2.5, 1.75, 1.25, 1.08])
    assert np.all(low >= truth * [0.0, 0.2, 0.7, 0.9])
    assert band.fpr.size < 2_000


def test_between_two_rates_the_band_is_on_the_safe_side() -> None:
    band = roc_band(curve(500, 500))
    middle = (band.fpr[1:] + band.fpr[:-1]) / 2
    low, high = band.at(middle)
    np.testing.assert_array_equal(low, band.low[:-1])
    np.testing.assert_array_equal(high, band.high[1:])
    at_low, at_high = band.at(band.fpr)
    np.testing.assert_array_equal(at_low, band.low)
    np.testing.assert_array_equal(at_high, band.high)


def test_the_band_is_asked_at_rates() -> None:
    with pytest.raises(PlmiaError, match="outside"):
        roc_band(curve(500, 500)).at(1.5)


def test_the_band_of_equal_scores_holds_the_diagonal() -> None:
    band = roc_band(roc_curve(np.zeros(100), np.arange(100) < 50))
    rates = np.linspace(0, 1, 51)
    low, high = band.at(rates)
    assert np.all((low <= rates) & (rates <= high))
    assert band.at(0.5)[0] == 0.0
