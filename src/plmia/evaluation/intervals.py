"""Confidence intervals of a measured ROC curve: its points, its area, a mean over targets, and a band for all points.

The intervals cover the value for further queries, drawn like the given ones and independent of each other, with the
target and the attack held fixed. Only `over_targets` is about further targets.

Quantiles come from scipy.special, which scipy.stats wraps, since importing that takes as long as scoring a small run.
DeLong's variance, which scipy lacks, is that of `Roc`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrik, betaincinv, expit, logit, ndtri, stdtrit

from plmia.data.arrays import FloatArray, IntArray
from plmia.errors import PlmiaError, require_rate
from plmia.evaluation.metrics import Operating, Roc, clopper_pearson

_UNIFORM_SHARE = 0.25  # of a band's error, spent on the uniform bound, which is narrower away from both ends
_BAND_RATIO = 1.08  # of successive ranks of a band
SHARED_REFERENCES = 2.0
"""Factor of the variance of a mean over targets that are references for each other."""
_PER_DECADE = 100  # rates at which a band is stored
FEW_FOR_DELONG = 100  # members or non-members


@dataclass(frozen=True)
class Interval:
    """A confidence interval; both ends belong to it."""

    low: float
    high: float
    confidence: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def tpr_interval(roc: Roc, fpr: float, confidence: float = 0.95) -> Interval:
    """Interval of the true-positive rate at exactly this false-positive rate, with the uncertainty of the threshold.

    `Operating` gives the Clopper-Pearson interval for the threshold it found, whose false-positive rate is only near
    `fpr`. The number of non-members above the true threshold is binomial, so the empirical rate there lies between the
    rates at two ranks. The distances to these and to the Clopper-Pearson ends are added in squares (MOVER, Zou and
    Donner, 2008). The coverage is close to `confidence` with ten or more non-members above the threshold, else larger.
    """
    require_rate("FPR", fpr)
    point = roc.resolved_at(fpr, confidence)
    # Limits of the binomial count: the ceiling of the continuous inverse is the quantile.
    n, tail = roc.n_non_members, (1 - confidence) / 2
    few = math.ceil(max(float(bdtrik(tail, n, fpr)), 0.0))
    many = math.ceil(min(float(bdtrik(1 - tail, n, fpr)), float(n)))
    # The empirical curve is vertical between two non-members: its lower end at one limit, its upper at the other.
    least = roc.tpr[np.searchsorted(roc.false_positives, few, side="left")]
    most = roc.tpr[np.searchsorted(roc.false_positives, many, side="right") - 1]
    low = point.tpr - math.hypot(point.tpr - point.low, point.tpr - least)
    high = point.tpr + math.hypot(point.high - point.tpr, most - point.tpr)
    return Interval(max(low, 0.0), min(high, 1.0), float(confidence))


def auc_interval(roc: Roc, confidence: float = 0.95) -> Interval:
    """Interval of the AUC: the variance of DeLong et al. (1988) on the logit scale, in one pass over the curve.

    If that variance is 0 or does not exist, the largest variance of an AUC replaces it: ``AUC (1 - AUC) / min(members,
    non-members)`` (Birnbaum and Klose, 1957), solved for the AUC as in the score interval. With fewer than 100
    members or non-members, the interval contains both. With 100 to 200 and an AUC of 0.98, the lower end of a 95 %
    interval is too high in about 4 instead of 2.5 % of all samples.
    """
    tails, n = np.array([tail_of(confidence)]), min(roc.n_members, roc.n_non_members)
    (low,), (high,) = auc_limits(roc, tails)
    if n < FEW_FOR_DELONG:  # the variance is too small if it is estimated from few records
        (least,), (most,) = _widest_limits(roc.auc, n, -ndtri(tails))
        low, high = min(low, least), max(high, most)
    return Interval(float(low), float(high), float(confidence))


def auc_limits(roc: Roc, tails: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Ends [T] of DeLong's interval for several error probabilities of one side, `tails` [T]; see `auc_interval`."""
    auc, z = roc.auc, -ndtri(tails)
    variance = roc.auc_variance
    if variance > 0 and 0 < auc < 1:
        half = z * math.sqrt(variance) / (auc * (1 - auc))
        return expit(logit(auc) - half), expit(logit(auc) + half)
    return _widest_limits(auc, min(roc.n_members, roc.n_non_members), z)


def _widest_limits(auc: float, n: int, z: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Ends [T] by the largest variance of an AUC with ``n`` records on the smaller side, at normal quantiles [T]."""
    half = z * np.sqrt(auc * (1 - auc) / n + z**2 / (4 * n**2))
    low, high = np.clip((auc + z**2 / (2 * n) + np.stack([-half, half])) / (1 + z**2 / n), 0, 1)
    return low, high


def over_targets(values: Sequence[float] | FloatArray, confidence: float = 0.95, *, in_turn: bool = False) -> Interval:
    """Student's interval of the mean of a metric in [0, 1] over targets, from its values [targets] on at least two.

    Targets are treated as independent draws. With ``in_turn`` they are references for each other, which at most doubles
    the variance of the mean: `plmia.evaluation.trainings.mean_over_trainings` explains it and says how often it covers.
    """
    sample, tail = checked_values(values, (0.0, 1.0)), tail_of(confidence)
    if np.ptp(sample) == 0:
        return Interval(float(sample[0]), float(sample[0]), float(confidence))
    variance = float(sample.var(ddof=1)) * (SHARED_REFERENCES if in_turn else 1.0)
    mean, error = float(sample.mean()), math.sqrt(variance / sample.size)
    half = float(stdtrit(sample.size - 1, 1 - tail)) * error
    return Interval(max(mean - half, 0.0), min(mean + half, 1.0), float(confidence))


def mean_rate(points: Sequence[Operating], confidence: float = 0.95) -> Interval:
    """Interval of the mean true-positive rate over targets: Student's and Clopper-Pearson's, whichever reaches further.

    Targets are attacked in turn, see `over_targets`. If few targets all find no member, Student's interval has no
    width; that of all members together then applies.
    """
    between = over_targets([point.tpr for point in points], confidence=confidence, in_turn=True)
    low, high = clopper_pearson(sum(p.n_true for p in points), sum(p.n_members for p in points), confidence)
    return Interval(min(between.low, float(low)), max(between.high, float(high)), between.confidence)


@dataclass(frozen=True, eq=False)
class RocBand:
    """A band that covers the whole true ROC curve at once; `roc_band` makes one.

    The curve is the true-positive rate of the best threshold whose false-positive rate is at most ``fpr``, also with
    ties broken at random. Between two rates `low` keeps its value and `high` has that of the next.
    """

    fpr: FloatArray  # increasing from 0 to 1, shape [P]
    low: FloatArray
    high: FloatArray
    confidence: float  # smallest probability that no point of the curve lies outside

    def at(self, fpr: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return the lower and the upper end at any false-positive rates in [0, 1]."""
        rates = np.asarray(fpr, dtype=np.float64)
        if not np.all((rates >= 0) & (rates <= 1)):
            raise PlmiaError("a false-positive rate lies outside [0, 1]: 0.01 stands for 1 %")
        after = np.searchsorted(self.fpr, rates, side="left")
        return self.low[np.searchsorted(self.fpr, rates, side="right") - 1], self.high[after]


def roc_band(roc: Roc, confidence: float = 0.95) -> RocBand:
    """Return a band for the whole true ROC curve, valid for every sample size, every pair of laws, and with ties.

    All shares above thresholds are bounded at once (`share_bounds`); the curve lies in the rectangles that they span.
    """
    error = tail_of(confidence) / 2
    fpr_low, fpr_high = share_bounds(roc.false_positives, roc.n_non_members, error)
    tpr_low, tpr_high = share_bounds(roc.true_positives, roc.n_members, error)
    rates = _band_rates(roc.n_non_members)
    # Counts and bounds never decrease along the curve, so the last rectangle that a rate admits is the highest.
    reached = np.searchsorted(fpr_high, rates, side="right")
    low = np.concatenate([[0.0], tpr_low])[reached]
    # That of the next point, because ties broken at random reach every point on the line to it.
    high = np.append(tpr_high, 1.0)[np.searchsorted(fpr_low, rates, side="right")]
    low[-1] = high[-1] = 1.0  # at a rate of 1 everything may be called a member
    for part in (rates, low, high):
        part.flags.writeable = False
    return RocBand(rates, low, high, float(confidence))


def share_bounds(counts: IntArray, n: int, error: float) -> tuple[FloatArray, FloatArray]:
    """Bound the true share above each threshold, for all thresholds at once, given `counts` [P] of `n` values above.

    The true share at or above the j-th largest of `n` values is at least (with ties) a Beta(j, n - j + 1) variable, the
    share strictly above it at most one. Quantiles at a fixed set of ranks j (Bonferroni) hold in between because shares
    are monotone; the uniform bound of Dvoretzky, Kiefer and Wolfowitz (with Massart's constant) helps far from both
    ends. Each side, low or high [P], fails for any threshold with probability at most `error`.
    """
    ranks = rank_grid(n, _BAND_RATIO)
    tail = (1 - _UNIFORM_SHARE) * error / ranks.size
    lows = np.concatenate([[0.0], betaincinv(ranks, n - ranks + 1, tail)])
    # Mirrored: the upper tail of Beta(j, n - j + 1) is the lower one of Beta(n - j + 1, j), in full precision.
    highs = np.concatenate([1 - betaincinv(n - ranks + 1, ranks, tail), [1.0]])
    margin = math.sqrt(-math.log(_UNIFORM_SHARE * error) / (2 * n))
    low = np.maximum(lows[np.searchsorted(ranks, counts, side="right")], counts / n - margin)
    high = np.minimum(highs[np.searchsorted(ranks, counts, side="right")], counts / n + margin)
    return low, high


def rank_grid(n: int, ratio: float) -> IntArray:
    """Return ranks from 1 to `n` that grow by the factor `ratio`, at least by 1, from either end to the middle."""
    ranks = [1]
    while 2 * ranks[-1] < n:
        ranks.append(max(ranks[-1] + 1, int(ranks[-1] * ratio)))
    half = np.array(ranks[: 1 + sum(2 * rank <= n for rank in ranks[1:])], dtype=np.int64)
    return np.unique(np.concatenate([half, n + 1 - half]))


def checked_values(values: Sequence[float] | FloatArray, limits: tuple[float, float]) -> FloatArray:
    """Return the values of a metric, one per target, as an array; at least two, all inside `limits`."""
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or sample.size < 2:
        raise PlmiaError(f"values have shape {sample.shape}: give one value per target, for two targets or more")
    inside = (sample >= limits[0]) & (sample <= limits[1])
    if not inside.all():
        raise PlmiaError(f"a target has {sample[~inside][0]}, limits are {limits}: pass a metric that stays inside")
    return sample


def tail_of(confidence: float) -> float:
    """Return the error probability of one side of a two-sided interval."""
    require_rate("confidence", confidence)
    return (1 - confidence) / 2


def _band_rates(n: int) -> FloatArray:
    """Rates at which a band is stored: from well below one non-member in `n` to 1, evenly spaced in the logarithm."""
    decades = math.ceil(math.log10(n)) + 1
    below = 10.0 ** (np.arange(-decades * _PER_DECADE, 1) / _PER_DECADE)
    return np.unique(np.concatenate([[0.0], below, np.linspace(0, 1, 101), 1 - below[below < 0.1]]))
