"""How sure a measured ROC curve is: intervals of its points, of its area, of a mean over targets, and a band for all.

The truth that is covered is that of further queries, drawn like the given ones and independent of each other; the
target and the attack are held fixed. Only `over_targets` speaks of further targets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrik, betaincinv, expit, logit, ndtri, stdtrit

from plmia.errors import PlmiaError
from plmia.evaluation.metrics import FloatArray, IntArray, Operating, Roc, clopper_pearson

# Share of a band's error that pays for the uniform bound, which is the narrower one away from both ends.
_UNIFORM_SHARE = 0.25
# Ranks of a band: each at most this much larger than the one before, and rates a decade at which it is kept.
_BAND_RATIO = 1.08
_PER_DECADE = 100


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    Attributes
    ----------
    low, high, confidence : float
        Its ends, both part of it, and the share of repetitions in which it covers the truth.
    """

    low: float
    high: float
    confidence: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def to_json(self) -> dict[str, float]:
        """Return plain Python values."""
        return {"low": self.low, "high": self.high, "confidence": self.confidence}


def fpr_interval(false_positives: int, n_non_members: int, confidence: float = 0.95) -> Interval:
    """Exact interval of the false-positive rate of a cut that was chosen without these non-members."""
    low, high = clopper_pearson(false_positives, n_non_members, confidence)
    return Interval(float(low), float(high), float(confidence))


def tpr_interval(roc: Roc, fpr: float, confidence: float = 0.95) -> Interval:
    """Interval of the true-positive rate at exactly this false-positive rate: the cut's own error is part of it.

    `Operating` gives the Clopper-Pearson interval of the cut it found; that cut's false-positive rate is only near
    `fpr`. Of the non-members a binomial number lies above the true cut, so the empirical rate there lies between the
    rates at two ranks. Its distances to these and to the Clopper-Pearson ends are added in squares (MOVER, Zou and
    Donner, 2008).

    Parameters
    ----------
    roc : Roc
        The measured curve.
    fpr : float
        In (0, 1); the non-members must resolve it, or the error names how many are needed.
    confidence : float
        Nominal coverage: close to it where ten or more non-members lie above the cut, at least it below that.
    """
    point = roc.tpr_at(fpr, confidence)
    if not 0 < point.fpr < 1:
        raise PlmiaError(f"FPR is {fpr}: no sample shows the TPR at exactly that rate, take one between 0 and 1")
    if not point.resolved:
        raise PlmiaError(
            f"an FPR of {fpr} needs {point.needed:,} non-members, there are {roc.n_non_members:,}: "
            "give more non-members or a larger FPR"
        )
    few, many = _binomial_limits(roc.n_non_members, point.fpr, (1 - confidence) / 2)
    # The empirical curve is vertical between two non-members: its lower end at one limit, its upper at the other.
    least = roc.tpr[np.searchsorted(roc.false_positives, few, side="left")]
    most = roc.tpr[np.searchsorted(roc.false_positives, many, side="right") - 1]
    low = point.tpr - math.hypot(point.tpr - point.low, point.tpr - least)
    high = point.tpr + math.hypot(point.high - point.tpr, most - point.tpr)
    return Interval(max(low, 0.0), min(high, 1.0), float(confidence))


def auc_interval(roc: Roc, confidence: float = 0.95) -> Interval:
    """Interval of the AUC: the variance of DeLong et al. (1988) on the logit scale, in one pass over the curve.

    Where that variance is 0 (all members above all non-members, or all scores equal) or does not exist (one member or
    one non-member), the largest variance an AUC can have takes its place: ``AUC (1 - AUC) / min(members, non-members)``
    (Birnbaum and Klose, 1957), solved for the AUC as in the score interval.
    """
    auc, z = roc.auc, _z(confidence)
    variance = _auc_variance(roc)
    if variance > 0 and 0 < auc < 1:
        half = z * math.sqrt(variance) / (auc * (1 - auc))
        low, high = expit(logit(auc) - half), expit(logit(auc) + half)
    else:
        n = min(roc.n_members, roc.n_non_members)
        half = z * math.sqrt(auc * (1 - auc) / n + z**2 / (4 * n**2))
        low, high = np.clip((auc + z**2 / (2 * n) + np.array([-half, half])) / (1 + z**2 / n), 0, 1)
    return Interval(float(low), float(high), float(confidence))


def over_targets(
    values: Sequence[float] | FloatArray,
    rng: np.random.Generator | None = None,
    confidence: float = 0.95,
    *,
    limits: tuple[float, float] = (0.0, 1.0),
    resamples: int = 5_000,
) -> Interval:
    """Interval of the mean of a metric over targets, from its values on some: at least two.

    Targets count as independent draws; where they share references this is an approximation.

    Parameters
    ----------
    values : array of float, shape [targets]
        One value a target, inside `limits`.
    rng : numpy Generator, optional
        Draws a studentised bootstrap, which follows a skewed metric but says little (it reaches to the limits) of
        fewer than five targets; without it the interval is Student's, which is shorter and exact for a normal metric.
    confidence : float
        Nominal coverage.
    limits : pair of float
        What the metric cannot leave; the interval is cut there.
    resamples : int
        Of the bootstrap.
    """
    sample = checked_values(values, limits)
    n, mean = sample.size, float(sample.mean())
    error = float(sample.std(ddof=1)) / math.sqrt(n)
    tail = (1 - _checked(confidence)) / 2
    if np.ptp(sample) == 0:
        return Interval(float(sample[0]), float(sample[0]), float(confidence))
    if rng is None:
        quantiles = np.array([-1.0, 1.0]) * stdtrit(n - 1, 1 - tail)
    else:
        quantiles = _studentised(sample, rng, tail, resamples)
    low, high = mean - quantiles[1] * error, mean - quantiles[0] * error
    return Interval(float(max(low, limits[0])), float(min(high, limits[1])), float(confidence))


def mean_rate(points: Sequence[Operating], confidence: float = 0.95) -> Interval:
    """Interval of the mean true-positive rate over targets, never narrower than the members of all of them allow.

    Student's interval over few targets, of which most find none, may have no width at all; the Clopper-Pearson interval
    of all their members together then is what is known.
    """
    between = over_targets([point.tpr for point in points], confidence=confidence)
    low, high = clopper_pearson(sum(p.n_true for p in points), sum(p.n_members for p in points), confidence)
    return Interval(min(between.low, float(low)), max(between.high, float(high)), between.confidence)


@dataclass(frozen=True, eq=False)
class RocBand:
    """A band that covers the whole true ROC curve at once; `roc_band` makes one.

    The curve is the true-positive rate of the best cut whose false-positive rate is at most ``fpr``; it is covered as
    well where ties are broken at random, which draws straight lines over them.

    Attributes
    ----------
    fpr : array of float, shape [P]
        Increasing from 0 to 1.
    low, high : array of float, shape [P]
        Non-decreasing; between two rates `low` keeps its value and `high` has already that of the next.
    confidence : float
        The probability, at least, that no point of the curve lies outside.
    """

    fpr: FloatArray
    low: FloatArray
    high: FloatArray
    confidence: float

    def at(self, fpr: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return the lower and the upper end at any false-positive rates in [0, 1]."""
        rates = np.asarray(fpr, dtype=np.float64)
        if not np.all((rates >= 0) & (rates <= 1)):
            raise PlmiaError("a false-positive rate lies outside [0, 1]: pass fractions, 0.01 for 1 %")
        after = np.searchsorted(self.fpr, rates, side="left")
        return self.low[np.searchsorted(self.fpr, rates, side="right") - 1], self.high[after]

    def contains(self, fpr: npt.ArrayLike, tpr: npt.ArrayLike) -> bool:
        """Whether all these points of a curve lie inside."""
        low, high = self.at(fpr)
        truth = np.asarray(tpr, dtype=np.float64)
        return bool(np.all((low <= truth) & (truth <= high)))

    def to_json(self) -> dict[str, object]:
        """Return plain Python values."""
        arrays = {name: getattr(self, name).tolist() for name in ("fpr", "low", "high")}
        return arrays | {"confidence": self.confidence}


def roc_band(roc: Roc, confidence: float = 0.95) -> RocBand:
    """Return a band for the whole true ROC curve, valid in every sample size and with ties.

    The shares of non-members and of members above every cut are bounded from both sides at once (`share_bounds`); so
    every point of the true curve lies in one of the rectangles that they span.

    Parameters
    ----------
    roc : Roc
        The measured curve.
    confidence : float
        Coverage that holds for every pair of distributions.
    """
    error = (1 - _checked(confidence)) / 4
    fpr_low, fpr_high = share_bounds(roc.false_positives, roc.n_non_members, error)
    tpr_low, tpr_high = share_bounds(roc.true_positives, roc.n_members, error)
    rates = _band_rates(roc.n_non_members)
    # Counts only grow along the curve, so do all bounds: the last rectangle that a rate admits is the highest.
    reached = np.searchsorted(fpr_high, rates, side="right")
    low = np.concatenate([[0.0], tpr_low])[reached]
    # Of the next one, because random choices within a tie group reach every point on the line to it.
    high = np.append(tpr_high, 1.0)[np.searchsorted(fpr_low, rates, side="right")]
    low[-1] = high[-1] = 1.0  # at a rate of 1 everything may be called a member
    for part in (rates, low, high):
        part.flags.writeable = False
    return RocBand(rates, low, high, float(confidence))


def share_bounds(counts: IntArray, n: int, error: float) -> tuple[FloatArray, FloatArray]:
    """Bound the true share above every cut, for all cuts at once.

    The true share above the j-th largest of `n` values is at least (with ties) a Beta(j, n - j + 1) variable, that
    strictly above it at most one. Quantiles at a fixed set of ranks j (Bonferroni) hold in between because shares are
    monotone; the uniform bound of Dvoretzky, Kiefer and Wolfowitz (with Massart's constant) helps far from both ends.

    Parameters
    ----------
    counts : array of int, shape [P]
        How many of the `n` lie above (at or above) each cut.
    n : int
        How many there are.
    error : float
        Each side fails, for any cut at all, with at most this probability.

    Returns
    -------
    low, high : arrays of float, shape [P]
        Non-decreasing in the counts.
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
    """Return ranks from 1 to `n`: growing by `ratio` from either end to the middle, each end's first ones all there."""
    ranks = [1]
    while 2 * ranks[-1] < n:
        ranks.append(max(ranks[-1] + 1, int(ranks[-1] * ratio)))
    half = np.array(ranks[: 1 + sum(2 * rank <= n for rank in ranks[1:])], dtype=np.int64)
    return np.unique(np.concatenate([half, n + 1 - half]))


def checked_values(values: Sequence[float] | FloatArray, limits: tuple[float, float]) -> FloatArray:
    """Return the values of a metric, one a target, as an array; at least two, all inside `limits`."""
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or sample.size < 2:
        raise PlmiaError(
            f"values have shape {sample.shape}: a spread over targets needs one value of each of two or more"
        )
    inside = (sample >= limits[0]) & (sample <= limits[1])
    if not inside.all():
        raise PlmiaError(f"a target has {sample[~inside][0]}, limits are {limits}: pass a metric that stays inside")
    return sample


def _checked(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise PlmiaError(f"confidence is {confidence}: it must lie strictly between 0 and 1")
    return confidence


def _z(confidence: float) -> float:
    return -float(ndtri((1 - _checked(confidence)) / 2))


def _binomial_limits(n: int, share: float, tail: float) -> tuple[int, int]:
    """Return the counts that a binomial one stays between, each missed with probability at most `tail`."""
    # bdtrik inverts the distribution function continuously: its ceiling is the quantile.
    few = math.ceil(max(float(bdtrik(tail, n, share)), 0.0))
    many = math.ceil(min(float(bdtrik(1 - tail, n, share)), float(n)))
    return few, many


def _studentised(sample: FloatArray, rng: np.random.Generator, tail: float, resamples: int) -> FloatArray:
    """Both quantiles of the studentised mean in resamples."""
    draws = sample[rng.integers(sample.size, size=(resamples, sample.size))]
    shift = draws.mean(axis=1) - sample.mean()
    spread = draws.std(axis=1, ddof=1) / math.sqrt(sample.size)
    # A resample of one value alone has no spread and lies beyond every finite quantile.
    size = np.divide(np.abs(shift), spread, out=np.full(resamples, np.inf), where=np.ptp(draws, axis=1) > 0)
    t = np.sort(np.copysign(size, shift))
    beyond = math.floor(tail * resamples)
    return t[[beyond, -1 - beyond]]


def _auc_variance(roc: Roc) -> float:
    """DeLong's variance; 0 where it does not exist."""
    if min(roc.n_members, roc.n_non_members) < 2:
        return 0.0
    # Of a tie group: the share of the other kind that its members outscore, a tie counting one half.
    beaten = 1 - (roc.fpr[1:] + roc.fpr[:-1]) / 2
    beating = (roc.tpr[1:] + roc.tpr[:-1]) / 2
    of_members = _weighted_variance(beaten, np.diff(roc.true_positives))
    of_non_members = _weighted_variance(beating, np.diff(roc.false_positives))
    return of_members / roc.n_members + of_non_members / roc.n_non_members


def _weighted_variance(values: FloatArray, counts: IntArray) -> float:
    n = int(counts.sum())
    mean = float(values @ counts) / n
    return float((values - mean) ** 2 @ counts) / (n - 1)


def _band_rates(n: int) -> FloatArray:
    """Rates at which a band is kept: from well below one non-member in `n` to 1, evenly in the logarithm."""
    decades = math.ceil(math.log10(n)) + 1
    below = 10.0 ** (np.arange(-decades * _PER_DECADE, 1) / _PER_DECADE)
    return np.unique(np.concatenate([[0.0], below, np.linspace(0, 1, 101), 1 - below[below < 0.1]]))
