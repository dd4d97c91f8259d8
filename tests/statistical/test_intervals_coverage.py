"""Intervals, bands and comparisons err as often as they say, in simulations whose truth is known.

Seeds are fixed. With 1,000 audits the standard error of a coverage of 95 % is 0.69 points; a test fails below 95 % less
four of them (92.2 %), which correct code does for one seed in 30,000. Members' confidences are N(eta, rho**2), those of
non-members N(0, 1), and scores are their Gaussian likelihood ratio, whose power is known (``lem:logbf``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import ndtr

from plmia.attacks.theory import Hypothesis, glr, glr_tpr
from plmia.evaluation.intervals import auc_interval, over_targets, roc_band, tpr_interval
from plmia.evaluation.metrics import Roc, clopper_pearson, roc_curve
from plmia.results.comparison import compare, compare_auc, compare_over_targets

AUDITS = 1_000
ERROR = 4 * math.sqrt(0.95 * 0.05 / AUDITS)
LEAST = 0.95 - ERROR
RATES = 10.0 ** np.linspace(-6, -0.001, 300)

Draw = Callable[[np.random.Generator], Roc]


def gaussian(n_in: int, n_out: int, eta: float, rho: float = 1.0) -> Draw:
    members = np.arange(n_in + n_out) < n_in

    def draw(rng: np.random.Generator) -> Roc:
        noise = rng.normal(size=members.size)
        inside, outside = glr(noise, eta, rho, Hypothesis.H1), glr(noise, eta, rho, Hypothesis.H0)
        return roc_curve(np.where(members, inside, outside) if eta else noise, members)

    return draw


def audits(draw: Draw, count: int = AUDITS) -> Iterator[Roc]:
    rng = np.random.default_rng(20_250_202)
    return (draw(rng) for _ in range(count))


# --- TPR at a nominal FPR


@pytest.mark.parametrize(
    ("n", "eta", "rho"), [(2_000, 1.0, 1.0), (2_000, 2.0, 0.8), (2_000, 1.5, 1.3), (5_000, 1.0, 0.9), (5_000, 3.0, 1.0)]
)
def test_the_tpr_interval_covers_the_known_power(n: int, eta: float, rho: float) -> None:
    rates = (0.1, 0.01, 0.001)
    truth = glr_tpr(rates, eta, rho)
    covered = np.zeros(3)
    for roc in audits(gaussian(n, n, eta, rho)):
        covered += [power in tpr_interval(roc, rate) for rate, power in zip(rates, truth, strict=True)]
    assert np.all(covered / AUDITS >= LEAST)
    # Where a hundred or more non-members lie above the cut the interval is not wider than it must be either.
    assert covered[0] / AUDITS <= 0.95 + ERROR


def test_an_interval_that_takes_the_cut_for_granted_would_be_caught() -> None:
    power = float(glr_tpr(0.01, 2.0))
    points = [roc.tpr_at(0.01) for roc in audits(gaussian(2_000, 2_000, 2.0))]
    assert np.mean([point.low <= power <= point.high for point in points]) < 0.7


# --- the whole curve


def holds(roc: Roc, truth: npt.NDArray[np.float64]) -> bool:
    """Whether the band of a curve holds the truth at all of `RATES`."""
    low, high = roc_band(roc).at(RATES)
    return bool(np.all((low <= truth) & (truth <= high)))


@pytest.mark.parametrize(("n", "eta", "rho"), [(500, 1.0, 1.0), (3_000, 2.0, 0.8), (3_000, 1.5, 1.3)])
def test_the_band_covers_the_whole_curve(n: int, eta: float, rho: float) -> None:
    truth = glr_tpr(RATES, eta, rho)
    covered = [holds(roc, truth) for roc in audits(gaussian(n, n, eta, rho))]
    assert np.mean(covered) >= LEAST


@pytest.mark.parametrize("levels", [0, 1, 5, 40])
@pytest.mark.parametrize(("n_in", "n_out"), [(30, 20), (400, 600)])
def test_the_band_covers_the_diagonal_when_nothing_leaks(n_in: int, n_out: int, levels: int) -> None:
    members = np.arange(n_in + n_out) < n_in

    def draw(rng: np.random.Generator) -> Roc:
        return roc_curve(rng.integers(levels, size=members.size) if levels else rng.random(members.size), members)

    covered = [holds(roc, RATES) for roc in audits(draw)]
    assert np.mean(covered) >= LEAST


def test_a_band_of_separate_intervals_would_be_caught() -> None:
    missed = 0
    for roc in audits(gaussian(500, 500, 0.0), 200):
        low, _ = clopper_pearson(roc.true_positives, roc.n_members)
        _, high = clopper_pearson(roc.false_positives, roc.n_non_members)
        missed += bool(np.any(low > high))
    # Even though it would take two errors at once: 7 audits in 200 is the most that 1 % allows at four errors.
    assert missed > 7


# --- area


@pytest.mark.parametrize(
    ("n_in", "n_out", "eta"), [(2_000, 2_000, 0.0), (2_000, 1_000, 1.0), (100, 300, 2.0), (15, 15, 1.0)]
)
def test_the_auc_interval_covers(n_in: int, n_out: int, eta: float) -> None:
    auc = float(ndtr(eta / math.sqrt(2)))
    assert np.mean([auc in auc_interval(roc) for roc in audits(gaussian(n_in, n_out, eta))]) >= LEAST


# --- targets


@pytest.mark.parametrize("targets", [2, 5, 20])
def test_students_interval_covers_a_normal_metric(targets: int) -> None:
    rng = np.random.default_rng(1)
    covered = [0.5 in over_targets(rng.normal(0.5, 0.03, targets)) for _ in range(AUDITS)]
    assert LEAST <= np.mean(covered) <= 0.95 + ERROR


# --- comparisons


def equal_attacks(
    rng: np.random.Generator, n: int, noise: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    members = np.arange(2 * n) < n
    common = rng.normal(size=2 * n) + 2 * members
    return common + noise * rng.normal(size=2 * n), common + noise * rng.normal(size=2 * n), members


@pytest.mark.parametrize(("n", "fpr", "audits"), [(1_000, 0.01, 1_000), (10_000, 0.001, 400)])
def test_equal_attacks_are_told_apart_as_rarely_as_promised(n: int, fpr: float, audits: int) -> None:
    rng = np.random.default_rng(3)
    p = np.array([compare(*equal_attacks(rng, n, 1.0), fpr, rng, resamples=200).p_value for _ in range(audits)])
    for level in (0.05, 0.2):
        assert abs(np.mean(p <= level) - level) <= 4 * math.sqrt(level * (1 - level) / audits)


def test_nearly_the_same_attacks_are_told_apart_more_rarely_still() -> None:
    # The resampled cuts of near copies differ by more than real ones would: the spread comes out a little too large.
    rng = np.random.default_rng(4)
    p = np.array([compare(*equal_attacks(rng, 1_000, 0.1), 0.01, rng, resamples=200).p_value for _ in range(AUDITS)])
    assert np.mean(p <= 0.05) <= 0.05 + ERROR


def test_the_interval_of_a_difference_covers_it() -> None:
    rng = np.random.default_rng(5)
    members = np.arange(4_000) < 2_000
    # At FPR 1 %, of N(0, 1) against N(2, 1) and of the same with noise of variance 1.
    truth = float(glr_tpr(0.01, 2.0) - glr_tpr(0.01, math.sqrt(2)))
    covered = 0
    for _ in range(400):
        a = rng.normal(size=4_000) + 2 * members
        found = compare(a, a + rng.normal(size=4_000), members, 0.01, rng, resamples=200)
        covered += found.low <= truth <= found.high
    assert covered / 400 >= 0.95 - 4 * math.sqrt(0.95 * 0.05 / 400)


def test_equal_areas_are_told_apart_as_rarely_as_promised() -> None:
    rng = np.random.default_rng(6)
    p = np.array([compare_auc(*equal_attacks(rng, 300, 0.5)).p_value for _ in range(AUDITS)])
    assert abs(np.mean(p <= 0.05) - 0.05) <= ERROR


def test_equal_means_over_targets_are_told_apart_as_rarely_as_promised() -> None:
    rng = np.random.default_rng(7)
    p = []
    for _ in range(AUDITS):
        common = rng.normal(0.6, 0.05, 5)
        p.append(compare_over_targets(common + rng.normal(0, 0.01, 5), common + rng.normal(0, 0.01, 5)).p_value)
    assert abs(np.mean(np.array(p) <= 0.05) - 0.05) <= ERROR
