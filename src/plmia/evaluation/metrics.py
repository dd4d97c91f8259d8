"""How well scores separate members from non-members: ROC curve, AUC, TPR at a low FPR, and their intervals.

Larger scores mean member. Every quantity is decided in integer counts, so tied scores and false-positive rates such as
0.001 are exact; scikit-learn's ROC curve has rounded rates. The Clopper-Pearson interval is vectorised over counts;
`scipy.stats.binomtest` takes one count at a time, and importing scipy.stats takes as long as scoring a small run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betainccinv, betaincinv

from plmia.data import memory
from plmia.data.arrays import BoolArray, FloatArray, IntArray
from plmia.errors import PlmiaError, require_rate, some
from plmia.evaluation.tables import Tabular, html_table

FPRS = (0.0, 1e-4, 1e-3, 1e-2)
"""Nominal false-positive rates at which true-positive rates are reported."""
COMPARED_FPRS = (1e-2, 1e-3)
"""Those of them at which differences and trends are tested, if there are enough non-members."""
VERDICT_FPRS = (1e-3, 1e-2)
"""Those of them for the headline; the first with enough non-members is used."""
DECISION_LEVELS = (0.1, 0.01, 0.001, 0.0001)
"""Levels at which all decision rules are judged."""


# Points of a curve that are summed at a time.
_POINTS_AT_ONCE = 1 << 20


def clopper_pearson(
    successes: npt.ArrayLike, trials: npt.ArrayLike, confidence: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """Exact two-sided confidence interval of a binomial proportion (Clopper and Pearson, 1934), vectorised.

    It covers every proportion; each tail has an error of at most (1 - confidence) / 2. No trials give (0, 1).
    """
    k, n = np.broadcast_arrays(successes, trials)
    if k.dtype.kind not in "iu" or n.dtype.kind not in "iu":
        raise PlmiaError(f"successes and trials are counts: pass integers, not {k.dtype} and {n.dtype}")
    require_rate("confidence", confidence)
    # Signed, so that the comparisons and n - k below cannot wrap around.
    k, n = k.astype(np.int64), n.astype(np.int64)
    bad = (k < 0) | (k > n)
    if bad.any():
        raise PlmiaError(f"{k[bad][0]} successes in {n[bad][0]} trials: successes must be 0 to trials")
    tail = (1 - confidence) / 2
    # The beta quantile does not exist at the edge, where the bound is known; 1 stands in for the 0.
    low = np.where(k == 0, 0.0, betaincinv(np.maximum(k, 1), n - k + 1, tail))
    # The complement keeps full precision in the upper tail, which 1 - tail would round away.
    high = np.where(k == n, 1.0, betainccinv(k + 1, np.maximum(n - k, 1), tail))
    return low[()], high[()]


@dataclass(frozen=True)
class Operating:
    """The most powerful threshold whose false-positive rate is at most a nominal one.

    Given the non-members, which alone set the threshold, `n_true` is binomial and the Clopper-Pearson interval exact.
    It does not include how the rate of this threshold varies on other non-members; see `plmia.evaluation.intervals`.
    With fewer than `needed` non-members the point equals that at a rate of 0 and is no evidence about `fpr`.
    """

    fpr: float  # nominal
    threshold: float  # smallest score called a member; +inf if none is
    tpr: float
    fpr_realised: float  # never above the nominal one
    low: float
    high: float
    confidence: float
    n_true: int
    n_members: int
    resolved: bool  # whether there are that many
    needed: int  # non-members with which one may lie above the threshold


@dataclass(frozen=True, eq=False)
class Roc:
    """A ROC curve in counts; `roc_curve` makes one.

    Point i of P calls every query with ``score >= thresholds[i]`` a member. The first calls none (threshold +inf), the
    last all; each distinct score is one point.
    """

    thresholds: FloatArray  # [P], strictly decreasing
    true_positives: IntArray  # [P], from 0 to `n_members`
    false_positives: IntArray  # [P], from 0 to `n_non_members`
    n_members: int
    n_non_members: int

    @property
    def tpr(self) -> FloatArray:
        """True-positive rates, shape [P]."""
        return self.true_positives / self.n_members

    @property
    def fpr(self) -> FloatArray:
        """False-positive rates, shape [P]."""
        return self.false_positives / self.n_non_members

    @cached_property
    def auc(self) -> float:
        """Probability that a member outscores a non-member, a tie counting one half (Mann-Whitney)."""
        # Twice the pairs won: a non-member loses to all members above its tie group, and half to its own. Integers are
        # divided once, so the result is the float nearest to the exact ratio.
        won_twice = 0
        for start in range(0, len(self.thresholds) - 1, _POINTS_AT_ONCE):
            part = slice(start, start + _POINTS_AT_ONCE + 1)
            tp, fp = self.true_positives[part], self.false_positives[part]
            won_twice += int(np.sum(np.diff(fp) * (tp[:-1] + tp[1:])))
        return won_twice / (2 * self.n_members * self.n_non_members)

    @cached_property
    def auc_variance(self) -> float:
        """Variance of the AUC (DeLong et al., 1988), from the counts, exact with ties; 0 if it does not exist."""
        if min(self.n_members, self.n_non_members) < 2:
            return 0.0
        # For each tie group, the share of the other kind that it outscores; a tie counts one half.
        beaten = _between(self.fpr)
        np.subtract(1, beaten, out=beaten)
        of_members = _weighted_variance(beaten, self.true_positives)
        del beaten
        of_non_members = _weighted_variance(_between(self.tpr), self.false_positives)
        return of_members / self.n_members + of_non_members / self.n_non_members

    @property
    def balanced_accuracy(self) -> float:
        """Mean of the true-positive and true-negative rate at the best threshold, at least 1/2."""
        gain = self.true_positives * self.n_non_members
        gain -= self.false_positives * self.n_members
        pairs = self.n_members * self.n_non_members
        return (pairs + int(gain.max())) / (2 * pairs)

    def resolved_at(self, fpr: float, confidence: float = 0.95) -> Operating:
        """Return the point at `fpr`, or raise if the non-members do not resolve that rate."""
        point = self.tpr_at(fpr, confidence)
        if not point.resolved:
            raise PlmiaError(
                f"an FPR of {fpr} needs {point.needed:,} non-members, there are {self.n_non_members:,}: "
                "give more non-members or a larger FPR"
            )
        return point

    def tpr_at(self, fpr: float, confidence: float = 0.95) -> Operating:
        """Return the most powerful point with a false-positive rate of at most `fpr`, not interpolated."""
        fpr = _checked_fpr(fpr)
        allowed = largest_count(fpr, self.n_non_members)
        point = int(np.searchsorted(self.false_positives, allowed, side="right")) - 1
        n_true = int(self.true_positives[point])
        low, high = clopper_pearson(n_true, self.n_members, confidence)
        needed = needed_non_members(fpr)
        return Operating(
            fpr=fpr,
            threshold=float(self.thresholds[point]),
            tpr=n_true / self.n_members,
            fpr_realised=int(self.false_positives[point]) / self.n_non_members,
            low=float(low),
            high=float(high),
            confidence=float(confidence),
            n_true=n_true,
            n_members=self.n_members,
            resolved=self.n_non_members >= needed,
            needed=needed,
        )


def _between(rates: FloatArray) -> FloatArray:
    """Means [P - 1] of neighbouring rates [P]."""
    middle: FloatArray = rates[1:] + rates[:-1]
    middle /= 2
    return middle


def _weighted_variance(values: FloatArray, total: IntArray) -> float:
    """Variance of values [n], each as often as ``total`` [n + 1] grows there; overwrites the values."""
    counts = np.diff(total).astype(np.float64)
    n = int(total[-1] - total[0])
    mean = float(values @ counts) / n
    values -= mean
    np.square(values, out=values)
    return float(values @ counts) / (n - 1)


def roc_curve(scores: npt.ArrayLike, members: npt.ArrayLike) -> Roc:
    """Compute the ROC curve of finite scores [Q]; tied scores share a point.

    ``members`` [Q] is boolean, with at least one member and one non-member.
    """
    values, truth = _checked_queries(scores, members)
    # Sorting scores and members' scores takes half the time of finding their order. Large arrays are freed as soon as
    # possible: with many queries, they decide how much memory a run takes.
    ordered = np.sort(values)[::-1]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))  # of each tie group
    thresholds: FloatArray = memory.empty(len(last) + 1)
    thresholds[0] = np.inf
    thresholds[1:] = ordered[last]
    n = values.size
    del ordered
    inside = values[truth]
    del values
    inside.sort()
    true_positives: IntArray = memory.zeros(len(last) + 1, np.int64)
    for start in range(1, len(thresholds), _POINTS_AT_ONCE):
        some = slice(start, start + _POINTS_AT_ONCE)
        true_positives[some] = len(inside) - np.searchsorted(inside, thresholds[some])
    del inside
    false_positives: IntArray = memory.zeros(len(last) + 1, np.int64)
    last += 1
    false_positives[1:] = last
    del last
    false_positives -= true_positives
    memory.release()
    curve = (thresholds, true_positives, false_positives)
    for part in curve:
        part.flags.writeable = False
    return Roc(*curve, int(true_positives[-1]), n - int(true_positives[-1]))


@dataclass(frozen=True)
class TargetMetrics(Tabular):
    """How well an attack did on one target; `operating` is in increasing order of nominal rate."""

    target: int
    auc: float
    balanced_accuracy: float
    operating: tuple[Operating, ...]
    n_members: int
    n_non_members: int

    @property
    def fprs(self) -> tuple[float, ...]:
        """The nominal false-positive rates, increasing."""
        return tuple(point.fpr for point in self.operating)

    def tpr_at(self, fpr: float) -> Operating:
        """Return the operating point of a nominal rate that was evaluated."""
        return self.operating[_position(fpr, self.fprs)]

    def columns(self) -> dict[str, list[Any]]:
        """One row per nominal false-positive rate; ``tpr`` is empty where there are too few non-members to tell."""
        points = self.operating
        columns: dict[str, list[Any]] = {"fpr": list(self.fprs), "fpr_realised": [p.fpr_realised for p in points]}
        shown = [(p.tpr, p.low, p.high) if p.resolved else (None, None, None) for p in points]
        return columns | {name: [row[i] for row in shown] for i, name in enumerate(("tpr", "low", "high"))}

    def _repr_html_(self) -> str:
        counts = f"{self.n_members:,} members and {self.n_non_members:,} non-members"
        return html_table(f"Target {self.target}: AUC {self.auc:.3f}, {counts}", self.columns())


def evaluate(
    scores: npt.ArrayLike,
    members: npt.ArrayLike,
    fprs: Iterable[float] = FPRS,
    *,
    target: int,
    confidence: float = 0.95,
) -> TargetMetrics:
    """Measure the scores of one attack on one target.

    Parameters
    ----------
    scores, members : arrays of float and bool, shape [Q]
        As for `roc_curve`.
    fprs : iterable of float
        Nominal false-positive rates in [0, 1]; duplicates are ignored.
    target, confidence : int, float
        Number of the target model, stored in the result, and coverage of the intervals.
    """
    return measured(roc_curve(scores, members), fprs, target=target, confidence=confidence)


def measured(roc: Roc, fprs: Iterable[float] = FPRS, *, target: int, confidence: float = 0.95) -> TargetMetrics:
    """Measure a ROC curve that is known already, as `evaluate` does."""
    rates = sorted({_checked_fpr(fpr) for fpr in fprs})
    operating = tuple(roc.tpr_at(fpr, confidence) for fpr in rates)
    return TargetMetrics(int(target), roc.auc, roc.balanced_accuracy, operating, roc.n_members, roc.n_non_members)


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over targets."""

    mean: float
    std: float


@dataclass(frozen=True)
class MeanOperating:
    """Mean of an `Operating` point over targets; `resolved` if it is resolved for every target."""

    fpr: float
    tpr: Spread
    fpr_realised: float
    resolved: bool
    needed: int


@dataclass(frozen=True)
class AttackMetrics:
    """How well an attack did over its targets; `summarise` makes one."""

    auc: Spread
    balanced_accuracy: Spread
    operating: tuple[MeanOperating, ...]
    per_target: tuple[TargetMetrics, ...]

    def tpr_at(self, fpr: float) -> MeanOperating:
        """Return the operating point of a nominal rate that was evaluated."""
        return self.operating[_position(fpr, self.per_target[0].fprs)]


def summarise(targets: Sequence[TargetMetrics]) -> AttackMetrics:
    """Summarise an attack over targets: at least one, each once, all at the same false-positive rates.

    Standard deviations are those of a sample (ddof = 1); that of a single target is given as 0.0.
    """
    if not targets:
        raise PlmiaError("no target was evaluated: a summary needs at least one")
    first, indices = targets[0], [metrics.target for metrics in targets]
    for position, metrics in enumerate(targets):
        if metrics.target in indices[:position]:
            raise PlmiaError(f"target {metrics.target} occurs twice: evaluate each target once")
        if metrics.fprs != first.fprs:
            which = f"target {metrics.target} has FPRs {metrics.fprs}, target {first.target} has {first.fprs}"
            raise PlmiaError(f"{which}: evaluate all targets at the same rates")
    auc, balanced_accuracy = _spread([t.auc for t in targets]), _spread([t.balanced_accuracy for t in targets])
    operating = tuple(map(_over_targets, zip(*(t.operating for t in targets), strict=True)))
    return AttackMetrics(auc, balanced_accuracy, operating, tuple(targets))


def fpr_key(fpr: float) -> str:
    """Write a rate as its key in ``metrics.json``: "0", "0.0001", "0.001", "0.01"."""
    # The shortest decimal that reads back as the same float, so two rates never share a key.
    return np.format_float_positional(fpr, trim="-")


def tpr_label(fpr: float) -> str:
    """Name the true-positive rate at a false-positive rate in tables: "TPR@0.1%"."""
    return f"TPR@{100 * fpr:g}%"


def _over_targets(points: Sequence[Operating]) -> MeanOperating:
    realised = statistics.fmean(point.fpr_realised for point in points)
    tpr, resolved = _spread([point.tpr for point in points]), all(point.resolved for point in points)
    return MeanOperating(points[0].fpr, tpr, realised, resolved, points[0].needed)


def _spread(values: Sequence[float]) -> Spread:
    # Exact sums: equal values have a spread of exactly 0, and a mean of fractions is a fraction.
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


def _position(fpr: float, fprs: tuple[float, ...]) -> int:
    if fpr not in fprs:
        raise PlmiaError(f"FPR {fpr} was not evaluated, only {fprs}: add it to fprs")
    return fprs.index(fpr)


def _checked_fpr(fpr: float) -> float:
    """Check an FPR in [0, 1]: unlike other rates (`require_rate`) it may be 0 or 1."""
    if not 0 <= fpr <= 1:
        raise PlmiaError(f"FPR is {fpr}, but must lie between 0 and 1: 0.01 stands for 1 %")
    return float(fpr) + 0.0  # -0.0 becomes 0.0


def largest_count(fpr: float, n: int) -> int:
    """Return the largest k with k / n <= fpr: how many false positives a rate allows.

    The rounded product is only a guess: 0.29 * 100 is below 29. The quotient decides: it is the float nearest to k / n.
    """
    k = int(fpr * n)
    if (k + 1) / n <= fpr:
        return k + 1
    return k - 1 if k / n > fpr else k


def needed_non_members(fpr: float) -> int:
    """Return the smallest n that allows one false positive, 1 / n <= fpr; 1 for a rate of 0."""
    n = math.ceil(1 / Fraction(fpr)) if fpr > 0 else 1
    # 1/3 as a float lies below one third, so the exact ceiling is one too many.
    return n - 1 if n > 1 and 1 / (n - 1) <= fpr else n


def _checked_queries(scores: npt.ArrayLike, members: npt.ArrayLike) -> tuple[FloatArray, BoolArray]:
    values, truth = np.asarray(scores), np.asarray(members)
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise PlmiaError(f"scores are {values.dtype} of shape {values.shape}: pass one number per query")
    if truth.dtype != np.bool_:
        # Indices of members would pass for a mask if they were cast.
        raise PlmiaError(f"members are {truth.dtype}: pass one boolean per query, True for a member")
    if truth.shape != values.shape:
        raise PlmiaError(f"scores have shape {values.shape}, members {truth.shape}: give one of each per query")
    if not np.isfinite(values).all():
        bad = np.flatnonzero(~np.isfinite(values))
        raise PlmiaError(f"score {bad[0]} is {values[bad[0]]} (not finite: {some(bad)}): repair the scores")
    n_members = int(np.count_nonzero(truth))
    if n_members in (0, truth.size):
        missing = "member" if n_members == 0 else "non-member"
        raise PlmiaError(f"no {missing} among {truth.size} queries: a ROC curve needs at least one of each")
    return values.astype(np.float64, copy=False), truth
