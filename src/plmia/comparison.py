"""Whether one attack is better than another: on the same queries of one target, or over several targets.

Both attacks see the same queries, so most of their luck is common and cancels in the difference; two separate
intervals would hide that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, ndtr, ndtri, stdtr, stdtrit

from plmia.errors import PlmiaError
from plmia.intervals import checked_values
from plmia.metrics import BoolArray, FloatArray, IntArray, roc_curve

# Resampled numbers held at a time.
_BLOCK = 1 << 21


@dataclass(frozen=True)
class Difference:
    """A metric of attack A less that of attack B.

    Attributes
    ----------
    a, b, difference : float
        The metric of each, and ``a - b``: above 0 where A is better.
    low, high, confidence : float
        Interval of the difference, and its coverage.
    p_value : float
        Two-sided: how often so large a difference arises where there is none; 1 where nothing differs. The interval
        leaves out 0 wherever it is below ``1 - confidence``.
    """

    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    confidence: float

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        return asdict(self)


@dataclass(frozen=True)
class Comparison(Difference):
    """The true-positive rates of two attacks at one false-positive rate, which is `fpr`; else as `Difference`."""

    fpr: float

    @property
    def tpr_a(self) -> float:
        """True-positive rate of attack A."""
        return self.a

    @property
    def tpr_b(self) -> float:
        """True-positive rate of attack B."""
        return self.b


def compare(
    a_scores: npt.ArrayLike,
    b_scores: npt.ArrayLike,
    members: npt.ArrayLike,
    fpr: float,
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 2_000,
) -> Comparison:
    """Compare two attacks on the same queries at one false-positive rate.

    Queries are resampled, members and non-members apart and both attacks together, and both cuts are found anew each
    time, so that the luck of the cuts counts. The spread of the resampled differences gives a normal interval and test;
    the p-value is never below that of the exact sign test of the members that one attack alone calls, which matters
    where these are few.

    Parameters
    ----------
    a_scores, b_scores : arrays of float, shape [Q]
        Larger means member; all finite. Each attack has a scale of its own.
    members : array of bool, shape [Q]
        Which queries are members.
    fpr : float
        The nominal false-positive rate; the non-members must resolve it.
    rng : numpy Generator
        Draws the resamples.
    confidence, resamples : float, int
        Coverage of the interval, and how often queries are resampled.
    """
    if resamples < 100:
        raise PlmiaError(f"{resamples} resamples were asked for: the spread of a difference needs at least 100")
    a, b = (roc_curve(scores, members).tpr_at(fpr) for scores in (a_scores, b_scores))
    truth = np.asarray(members)
    n = int(np.count_nonzero(~truth))
    if not a.resolved or a.fpr == 0:
        needed = f"needs {a.needed:,} non-members, there are {n:,}" if a.fpr else "is one that no resample shows"
        raise PlmiaError(f"an FPR of {fpr} {needed}: give more non-members or a larger FPR")
    # Quotients decide which count is the largest within the rate, as for the ROC curve.
    allowed = int(np.searchsorted(np.arange(n + 1) / n, a.fpr, side="right")) - 1
    values = [np.asarray(scores, dtype=np.float64) for scores in (a_scores, b_scores)]
    top_a, top_b = (_top(scores, truth, allowed) for scores in values)
    spread = _spread(list(_resampled(top_a, top_b, n, allowed, resamples, rng)))
    low, high, p_value = _normal_test(a.tpr - b.tpr, spread, confidence, len(truth))
    only_a = int(np.count_nonzero(truth & (values[0] >= a.threshold) & (values[1] < b.threshold)))
    only_b = int(np.count_nonzero(truth & (values[0] < a.threshold) & (values[1] >= b.threshold)))
    p_value = max(p_value, _sign_test(only_a, only_b))
    return Comparison(a.tpr, b.tpr, a.tpr - b.tpr, low, high, p_value, float(confidence), a.fpr)


def compare_auc(
    a_scores: npt.ArrayLike, b_scores: npt.ArrayLike, members: npt.ArrayLike, confidence: float = 0.95
) -> Difference:
    """Compare the AUC of two attacks on the same queries (DeLong et al., 1988, paired).

    Parameters
    ----------
    a_scores, b_scores, members : arrays of float, float and bool, shape [Q]
        As for `compare`; at least two members and two non-members.
    confidence : float
        Coverage of the interval.
    """
    auc_a, auc_b = (roc_curve(scores, members).auc for scores in (a_scores, b_scores))
    truth = np.asarray(members)
    if min(np.count_nonzero(truth), np.count_nonzero(~truth)) < 2:
        raise PlmiaError("one member or one non-member shows no spread: compare on at least two of each")
    (in_a, out_a), (in_b, out_b) = (_placements(np.asarray(scores), truth) for scores in (a_scores, b_scores))
    variance = float(np.var(in_a - in_b, ddof=1)) / in_a.size + float(np.var(out_a - out_b, ddof=1)) / out_a.size
    low, high, p_value = _normal_test(auc_a - auc_b, math.sqrt(variance), confidence, truth.size)
    return Difference(auc_a, auc_b, auc_a - auc_b, low, high, p_value, float(confidence))


def compare_over_targets(
    a_values: Sequence[float] | FloatArray, b_values: Sequence[float] | FloatArray, confidence: float = 0.95
) -> Difference:
    """Compare a metric of two attacks over the same targets (Student, paired): at least two targets.

    Parameters
    ----------
    a_values, b_values : arrays of float, shape [targets]
        The metric of each attack on each target, in the same order of targets.
    confidence : float
        Coverage of the interval.
    """
    a, b = checked_values(a_values, (-math.inf, math.inf)), checked_values(b_values, (-math.inf, math.inf))
    if a.size != b.size:
        raise PlmiaError(f"attack A has {a.size} targets, attack B {b.size}: give both on the same targets")
    differences = a - b
    difference, spread = float(differences.mean()), 0.0
    if np.ptp(differences) > 0:
        spread = float(differences.std(ddof=1)) / math.sqrt(a.size)
    half = float(stdtrit(a.size - 1, 1 - _tail(confidence))) * spread
    p_value = _p_value(difference, spread, lambda t: float(stdtr(a.size - 1, t)), a.size)
    return Difference(
        a=float(a.mean()),
        b=float(b.mean()),
        difference=difference,
        low=difference - half,
        high=difference + half,
        p_value=p_value,
        confidence=float(confidence),
    )


@dataclass(frozen=True, eq=False)
class _Top:
    """What of an attack can lie above its cut.

    `order` [T] holds the top non-members, from the top; `ends` [G] where each of their tie groups ends in it. A cut
    below c groups calls the members whose `passed` [members] groups, those at or above their score, are at most c.
    """

    order: IntArray
    ends: IntArray
    passed: IntArray


def _top(scores: FloatArray, members: BoolArray, allowed: int) -> _Top:
    others = scores[~members]
    order = np.argsort(-others, kind="stable")
    values = others[order]
    # Resampled cuts lie within a few standard deviations, of sqrt(allowed), of this one.
    most = allowed + math.ceil(8 * math.sqrt(allowed + 1)) + 30
    if most < values.size:
        order = order[: np.searchsorted(-values, -values[most], side="right")]
    whole = order.size == values.size
    values = values[: order.size]
    ends = np.append(np.flatnonzero(values[1:] != values[:-1]), values.size - 1)
    passed = np.searchsorted(-values[ends], -scores[members], side="right")
    # Members below all that is kept lie below every cut, unless everything is kept.
    passed[scores[members] < values[-1]] += not whole
    return _Top(order, ends, passed)


def _resampled(
    a: _Top, b: _Top, n: int, allowed: int, resamples: int, rng: np.random.Generator
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Differences of the true-positive rates in resamples of the `n` non-members, and their variance over members."""
    kept, places = np.unique(np.concatenate([a.order, b.order]), return_inverse=True)
    ends = (a.ends, b.ends)
    orders = (places[: a.order.size], places[a.order.size :])
    members = a.passed.size
    block = max(1, _BLOCK // max(kept.size, members))
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        # How often each kept non-member is drawn: first how many draws hit any of them, then which.
        hits = rng.binomial(n, kept.size / n, size=rows)
        cells = np.repeat(np.arange(rows) * kept.size, hits) + rng.integers(kept.size, size=int(hits.sum()))
        drawn = np.bincount(cells, minlength=rows * kept.size).reshape(rows, kept.size)
        cuts = [
            np.count_nonzero(np.cumsum(drawn[:, order], axis=1)[:, end] <= allowed, axis=1)
            for order, end in zip(orders, ends, strict=True)
        ]
        in_a, in_b = a.passed <= cuts[0][:, None], b.passed <= cuts[1][:, None]
        # Members that only one attack calls make the difference; resampled, their numbers are multinomial.
        only_a, only_b = (np.count_nonzero(x & ~y, axis=1) / members for x, y in ((in_a, in_b), (in_b, in_a)))
        difference = only_a - only_b
        yield difference, (only_a + only_b - difference**2) / members


def _spread(resampled: Sequence[tuple[FloatArray, FloatArray]]) -> float:
    """Deviation of the difference: over draws of the non-members, and over members given these.

    Nothing is drawn here, so that A against B and B against A have the same interval.
    """
    difference, variance = (np.concatenate(part) for part in zip(*resampled, strict=True))
    return math.sqrt(float(difference.var(ddof=1)) + float(variance.mean()))


def _placements(scores: FloatArray, members: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Of each member the share of non-members it outscores, of each non-member the share of members above it."""
    inside, outside = np.sort(scores[members]), np.sort(scores[~members])

    def below(values: FloatArray, others: FloatArray) -> FloatArray:
        ends = np.searchsorted(others, values, "left") + np.searchsorted(others, values, "right")
        return np.asarray(ends / (2 * others.size), dtype=np.float64)

    return below(scores[members], outside), 1 - below(scores[~members], inside)


def _normal_test(difference: float, spread: float, confidence: float, n: int) -> tuple[float, float, float]:
    """Interval of a difference of two rates, which lies in [-1, 1], and its p-value."""
    half = -float(ndtri(_tail(confidence))) * spread
    low, high = max(-1.0, difference - half), min(1.0, difference + half)
    return low, high, _p_value(difference, spread, lambda z: float(ndtr(z)), n)


def _p_value(difference: float, spread: float, law: Callable[[float], float], n: int) -> float:
    if difference == 0:
        return 1.0
    # Without any spread it is the least that a test which swaps A and B in each of the n could give.
    return 2 * law(-abs(difference) / spread) if spread > 0 else 0.5 ** (n - 1)


def _sign_test(only_a: int, only_b: int) -> float:
    """Exact two-sided p-value of the members that one attack alone calls, at the given cuts."""
    return min(1.0, 2 * float(bdtr(min(only_a, only_b), only_a + only_b, 0.5)))


def _tail(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise PlmiaError(f"confidence is {confidence}: it must lie strictly between 0 and 1")
    return (1 - confidence) / 2
