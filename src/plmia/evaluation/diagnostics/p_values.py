"""Are the p-values valid: pairwise, combined and conformal ones, and what a population can resolve.

The hypergeometric tail is our own: it is compared with 0.001 only, and importing scipy.stats for `hypergeom` takes as
long as scoring a small run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, ndtr

from plmia.attacks.calibration import MeanOfViews, null_deviation
from plmia.attacks.scoring import Scores
from plmia.attacks.view import Truth
from plmia.data.arrays import FloatArray, IntArray
from plmia.errors import PlmiaError, PopulationError, percent
from plmia.evaluation.diagnostics.signals import ALARM
from plmia.evaluation.metrics import FPRS, clopper_pearson

BINS = 20
_FINE = 50  # parts of a bin: distances are accurate to 1 / 1000
LEVELS = tuple(float(10**e) for e in np.arange(-4.0, -0.2, 0.25))


@dataclass(frozen=True)
class PairwiseP:
    """Pairwise p-values of member and of non-member queries (`fig:pvalue_distribution`).

    All p-values of a query share its statistic, so `distance_by_query` is large (0.3 for Gaussian statistics) even if
    `distance` is 0: this dependence is the reason why the combined p-value is only nominal.
    """

    members: tuple[int, ...]  # [20], how many p-values fall into each twentieth of [0, 1]
    non_members: tuple[int, ...]  # [20]
    distance: float | None  # Kolmogorov distance of all p-values of non-members from the uniform law, to 0.001
    distance_by_query: float | None = None  # the same for the p-values of one query, averaged over non-member queries
    warning: str | None = None  # set if there are no pairwise p-values; counts are then 0, distances None


def pairwise_p_values(
    phi: FloatArray,
    population: IntArray,
    truth: Truth,
    rng: np.random.Generator,
    most: int = 2000,
    most_rivals: int = 1000,
) -> PairwiseP:
    """Compare at most ``most`` queries, half of them members, with the population (`eq:p_value`).

    ``phi`` is the statistic [records] or [records, views], averaged over views. The queries, drawn with ``rng``, are
    compared with about ``most_rivals`` population records, evenly spaced in rank.
    """
    summary = MeanOfViews().points(phi.reshape(len(phi), -1))
    everyone = np.sort(summary[population])
    if len(everyone) < 2 or not everyone[-1] > everyone[0]:
        nothing = (0,) * BINS
        return PairwiseP(nothing, nothing, None, None, "the population has no two different statistics: enlarge it")
    scale = null_deviation(everyone[:, None], MeanOfViews())
    step = math.ceil(len(everyone) / most_rivals)
    rivals = everyone[step // 2 :: step]
    members, others = (
        ndtr((rivals - summary[_some_queries(truth, inside, most // 2, rng), None]) / scale) for inside in (True, False)
    )
    if not len(others):
        raise PlmiaError("no query is a non-member: pairwise p-values need some to be compared with the uniform law")
    in_bins = [tuple(_histogram(p).reshape(BINS, _FINE).sum(axis=1).tolist()) for p in (members, others)]
    return PairwiseP(in_bins[0], in_bins[1], *_uniform_distances(others))


def _uniform_distances(p: FloatArray) -> tuple[float, float]:
    """Kolmogorov distance of all p-values [queries, rivals] from the uniform law, and its mean over queries."""
    fine = _histogram(p)
    distance = float(np.max(np.abs(np.cumsum(fine) / p.size - np.arange(1, len(fine) + 1) / len(fine))))
    # Rivals are sorted, so the p-values of a query increase.
    steps = np.arange(p.shape[1] + 1) / p.shape[1]
    by_query = np.maximum((steps[1:] - p).max(axis=1), (p - steps[:-1]).max(axis=1))
    return distance, float(by_query.mean())


def _some_queries(truth: Truth, inside: bool, most: int, rng: np.random.Generator) -> IntArray:
    """Return at most ``most`` queries that are members (``inside``) or non-members."""
    queries = truth.queries[truth.members[truth.queries] == inside]
    return rng.choice(queries, most, replace=False) if len(queries) > most else queries


def _histogram(p: FloatArray) -> IntArray:
    """Count p-values in fine bins; 1 belongs to the last bin."""
    n = BINS * _FINE
    counts: IntArray = np.bincount(np.minimum((p * n).astype(np.intp), n - 1).ravel(), minlength=n)
    return counts


@dataclass(frozen=True)
class Rates:
    """Realised false-positive rates of one p-value."""

    realised: tuple[float, ...]  # at each nominal level
    low: tuple[float, ...]  # of the 95 % Clopper-Pearson interval
    high: tuple[float, ...]
    broken: tuple[bool, ...]  # more are flagged than chance explains, at an error of `ALARM` over all levels


@dataclass(frozen=True)
class FprCurve:
    """Share of non-members that p-values flag, against the nominal level (`fig:cauchy_fpr_agreement`)."""

    levels: tuple[float, ...]  # nominal, increasing
    conformal: Rates
    combined: Rates | None  # of the attack's own p-value, if it has one
    n_non_members: int
    warning: str | None  # set if a p-value flags too many at some level


def nominal_against_realised(
    scores: Scores, truth: Truth, n_population: int | None = None, levels: Sequence[float] = LEVELS
) -> FprCurve:
    """Count the non-member queries that p-values flag at a grid of increasing nominal levels in (0, 1).

    ``n_population`` is the size of the population behind the p-values, on which the spread of the realised rate
    depends; by default the number of records that are not queries.
    """
    queries = truth.queries[~truth.members[truth.queries]]
    if not len(queries):
        raise PlmiaError("no query is a non-member: a realised false-positive rate needs some")
    size = len(truth.members) - len(truth.queries) if n_population is None else n_population
    conformal = _rates(scores.log10_p_conformal[queries], size, levels)
    combined = _rates(scores.log10_p[queries], size, levels) if scores.has_combined_p else None
    warning = _too_many(f"the combined p-value of {scores.attack}", levels, combined, len(queries)) or _too_many(
        f"the conformal p-value of {scores.attack}", levels, conformal, len(queries)
    )
    return FprCurve(tuple(levels), conformal, combined, len(queries), warning)


def _rates(log10_p: FloatArray, n_population: int, levels: Sequence[float]) -> Rates:
    n = len(log10_p)
    flagged = np.searchsorted(np.sort(log10_p), np.log10(levels), side="right")
    low, high = clopper_pearson(flagged, np.full(len(flagged), n))
    chance = [_chance(int(x), n, n_population, level) for x, level in zip(flagged, levels, strict=True)]
    broken = tuple(p * len(levels) < ALARM for p in chance)
    return Rates(tuple((flagged / n).tolist()), tuple(low.tolist()), tuple(high.tolist()), broken)


def _too_many(name: str, levels: Sequence[float], rates: Rates | None, n: int) -> str | None:
    """Warn about the level nearest to 1 % at which too many are flagged."""
    if rates is None or not any(rates.broken):
        return None
    worst = min((i for i, bad in enumerate(rates.broken) if bad), key=lambda i: abs(math.log10(levels[i]) + 2))
    return (
        f"{name} is not valid: at a nominal {percent(levels[worst])} it flags {percent(rates.realised[worst])} of "
        f"{n:,} non-members. Use a threshold set on known non-members that are like the queries"
    )


def _chance(flagged: int, n: int, n_population: int, level: float) -> float:
    """Probability that ``flagged`` of ``n`` exchangeable non-members exceed the k-th largest of the population.

    k is the rank that ``level`` allows. Of the ``flagged + k - 1`` largest of all, at most k - 1 then belong to the
    population, and that number is hypergeometric.
    """
    k = math.floor(level * (n_population + 1))
    if k < 1 or flagged == 0:
        return 1.0  # the population does not resolve the level
    top = flagged + k - 1
    ours = np.arange(max(0, top - n), k)
    log = _log_choose(n_population, ours) + _log_choose(n, top - ours) - _log_choose(n + n_population, np.array(top))
    return min(1.0, float(np.exp(log).sum()))


def _log_choose(n: int, k: IntArray) -> FloatArray:
    log: FloatArray = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return log


@dataclass(frozen=True)
class PopulationSize:
    """What a population of ``n`` non-members resolves."""

    n: int
    resolution: float  # smallest conformal p-value, 1 / (n + 1)
    levels: tuple[float, ...]
    expected: tuple[float | None, ...]  # mean realised rate over draws of Z (a beta law); None below the resolution
    spread: tuple[float | None, ...]  # its standard deviation
    needed: tuple[int, ...]  # smallest population that resolves each level
    needed_stable: tuple[int, ...]  # one whose spread is a tenth of the level
    warning: str | None  # set if 0.1 % is not resolved


def population_size(n: int, levels: Sequence[float] = FPRS[:0:-1]) -> PopulationSize:
    """Return what a population of ``n`` points resolves at nominal false-positive rates in (0, 1)."""
    if n < 1:
        raise PopulationError(f"the population has {n} records, but needs at least 1")
    # The threshold is the k-th largest of Z; a new non-member exceeds it at a rate that follows Beta(k, n + 1 - k).
    allowed = [math.floor(round(level * (n + 1), 9)) for level in levels]
    expected = tuple(k / (n + 1) if k else None for k in allowed)
    spread = tuple(math.sqrt(k * (n + 1 - k) / (n + 2)) / (n + 1) if k else None for k in allowed)
    needed = tuple(math.ceil(round(1 / level, 9)) - 1 for level in levels)
    stable = tuple(math.ceil(round(100 / level, 9)) - 1 for level in levels)
    warning = None
    if n < 999:
        warning = (
            f"a population of {n:,} cannot resolve a false-positive rate below {percent(1 / (n + 1))}: give 999 known "
            "non-members for 0.1 %, or 9,999 for 0.01 %"
        )
    return PopulationSize(n, 1 / (n + 1), tuple(levels), expected, spread, needed, stable, warning)
