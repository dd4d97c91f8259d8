"""The two sides of a comparison, an attack in a run each, and the tests of their difference, paired or not.

Where both sides saw the same records of the same targets most of their luck is common, and paired tests take it out.
Where they did not, what is left are two independent measurements, and the test adds their uncertainties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from plmia.comparison import Difference, compare, compare_auc, compare_over_targets
from plmia.intervals import Interval, auc_interval, over_targets, tpr_interval
from plmia.metrics import FloatArray, Roc
from plmia.saved import SavedResults

Method = Literal["paired records", "paired targets", "unpaired records", "unpaired targets"]
"""What a test resamples or counts, and whether it is the same on both sides."""


@dataclass(frozen=True)
class Run:
    """A run and what it is called.

    Parameters
    ----------
    name : str
        Its label.
    results : SavedResults
        What it wrote.
    """

    name: str
    results: SavedResults


@dataclass(frozen=True)
class Side:
    """One attack in one run: a side of a comparison.

    Parameters
    ----------
    name : str
        What the table calls it: the run, or the attack where there is one run.
    run : Run
        The run.
    attack : str
        The attack.
    """

    name: str
    run: Run
    attack: str

    @cached_property
    def rocs(self) -> dict[int, Roc]:
        """ROC curve of each target."""
        saved = self.run.results
        return {target: saved.roc(self.attack, target) for target in saved.targets}

    def values(self, fpr: float | None) -> FloatArray:
        """TPR at ``fpr``, or AUC without one, of each target [targets]."""
        rocs = self.rocs.values()
        return np.array([roc.auc if fpr is None else roc.tpr_at(fpr).tpr for roc in rocs])

    def measured(self, fpr: float | None, confidence: float) -> Measured:
        """Mean over targets, with an interval: over further targets where there are several, else over records."""
        values = self.values(fpr)
        if len(values) > 1:
            return Measured(float(values.mean()), over_targets(values, confidence=confidence))
        return self.on_these(fpr, confidence)

    def on_these(self, fpr: float | None, confidence: float) -> Measured:
        """Mean over these very targets; the mean ends of their intervals are cautious if their errors differ."""
        ends = [
            auc_interval(roc, confidence) if fpr is None else tpr_interval(roc, fpr, confidence)
            for roc in self.rocs.values()
        ]
        low, high = (float(np.mean([getattr(end, side) for end in ends])) for side in ("low", "high"))
        return Measured(float(self.values(fpr).mean()), Interval(low, high, confidence))


@dataclass(frozen=True)
class Measured:
    """A metric and its interval."""

    value: float
    interval: Interval

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        return {"value": self.value} | self.interval.to_json()


def same_records(a: SavedResults, b: SavedResults) -> bool:
    """Whether two runs attacked the same targets by number and evaluated the same members and non-members of them."""
    # Another data set of the same size has the same design by the same seed.
    if a.targets != b.targets or different_data(a, b):
        return False
    if a.labels is not None and b.labels is not None and not np.array_equal(a.labels, b.labels):
        return False
    return all(
        np.array_equal(a.members(target), b.members(target)) and np.array_equal(a.queries(target), b.queries(target))
        for target in a.targets
    )


def different_data(a: SavedResults, b: SavedResults) -> bool:
    """Whether two runs are known to be of different data: audits tell by a digest."""
    data = [results.metrics["about"].get("audit", {}).get("data") for results in (a, b)]
    return None not in data and data[0] != data[1]


def method_of(first: SavedResults, other: SavedResults) -> Method:
    """How two runs can be compared: in pairs if they saw the same records, over targets if both have several."""
    several = min(len(first.targets), len(other.targets)) > 1
    if same_records(first, other):
        return "paired targets" if several else "paired records"
    return "unpaired targets" if several else "unpaired records"


def change_of(
    method: Method, fpr: float | None, first: Side, other: Side, rng: np.random.Generator, confidence: float
) -> Difference:
    """Test the metric of ``other`` less that of ``first``.

    Parameters
    ----------
    method : Method
        How; see `method_of`.
    fpr : float or None
        The metric is the TPR at this false-positive rate, or the AUC.
    first, other : Side
        What to compare.
    rng : numpy Generator
        Draws the resamples, where records are paired.
    confidence : float
        Coverage of the interval.
    """
    if method == "unpaired records":
        return _clipped(unpaired(first.on_these(fpr, confidence), other.on_these(fpr, confidence)))
    if method == "unpaired targets":
        return _clipped(unpaired_over_targets(first.values(fpr), other.values(fpr), confidence))
    if method == "paired targets":
        return _clipped(compare_over_targets(other.values(fpr), first.values(fpr), confidence))
    saved = first.run.results
    (target,) = saved.targets
    queries, members = saved.queries(target), saved.members(target)
    a, b = (side.run.results.scores(side.attack, target).score[queries] for side in (other, first))
    if fpr is None:
        return compare_auc(a, b, members[queries], confidence)
    return compare(a, b, members[queries], fpr, rng, confidence)


def _clipped(found: Difference) -> Difference:
    """The same, with an interval in [-1, 1]: no two rates are further apart."""
    return replace(found, low=max(-1.0, found.low), high=min(1.0, found.high))


def unpaired(first: Measured, other: Measured) -> Difference:
    """Difference of two independent measurements, from their intervals alone.

    The distances to the ends that face each other are added in squares (MOVER, Zou and Donner, 2008), and the p-value
    is that of a normal test with the spread on the side of 0: it is below ``1 - confidence`` exactly where the interval
    leaves out 0.
    """
    difference, z = other.value - first.value, -float(ndtri((1 - first.interval.confidence) / 2))
    below = math.hypot(other.value - other.interval.low, first.interval.high - first.value)
    above = math.hypot(other.interval.high - other.value, first.value - first.interval.low)
    facing = below if difference > 0 else above
    p_value = 1.0 if difference == 0 else 2 * float(ndtr(-abs(difference) * z / facing))
    low, high = difference - below, difference + above
    return Difference(other.value, first.value, difference, low, high, p_value, first.interval.confidence)


def unpaired_over_targets(first: FloatArray, other: FloatArray, confidence: float = 0.95) -> Difference:
    """Difference of a metric's mean over two independent sets of targets (Welch).

    Parameters
    ----------
    first, other : arrays of float, shapes [targets]
        One value a target, two or more on each side.
    confidence : float
        Coverage of the interval.
    """
    shares = [float(values.var(ddof=1)) / values.size if np.ptp(values) > 0 else 0.0 for values in (first, other)]
    difference, spread = float(other.mean() - first.mean()), math.sqrt(sum(shares))
    if spread == 0:
        # The least that a test which deals the targets to both sides anew could give.
        p_value = 1.0 if difference == 0 else min(1.0, 2 / math.comb(first.size + other.size, first.size))
        half = 0.0
    else:
        freedom = spread**4 / (shares[0] ** 2 / (first.size - 1) + shares[1] ** 2 / (other.size - 1))
        half = float(stdtrit(freedom, (1 + confidence) / 2)) * spread
        p_value = 2 * float(stdtr(freedom, -abs(difference) / spread))
    ends = (difference - half, difference + half)
    return Difference(float(other.mean()), float(first.mean()), difference, *ends, p_value, float(confidence))


def holm(p_values: Sequence[float]) -> FloatArray:
    """p-values [n] adjusted for all of them (Holm, 1979): below a level only with that chance, if none is real.

    Parameters
    ----------
    p_values : array of float, shape [n]
        Of any tests, however they depend on each other.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(p.size)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return adjusted
