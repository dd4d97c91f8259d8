"""Whether one attack or run finds more than another: tests of a difference, and runs side by side.

Where both sides saw the same records of the same targets, most of their sampling error is common, and paired tests
remove it. Otherwise the two measurements are independent, and the test adds their uncertainties.

Tests over targets and the sign test are those of scipy.stats. The resampled difference at a fixed false-positive rate
and the paired test of DeLong are our own, since scipy has neither.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from plmia.data.arrays import BoolArray, FloatArray, IntArray, Labels
from plmia.errors import PlmiaError, doubts, require_rate, round_percent, visible
from plmia.evaluation.intervals import Interval, auc_interval, checked_values, over_targets, tail_of, tpr_interval
from plmia.evaluation.metrics import COMPARED_FPRS, Roc, fpr_key, largest_count, roc_curve, tpr_label
from plmia.evaluation.tables import text_table
from plmia.numerics import holm
from plmia.results.saved import SavedRun, main_attacks
from plmia.results.verdict import strongest

# Resampled numbers held at a time.
_BLOCK = 1 << 21
# Bytes that zlib takes even for a sequence that repeats, and least entropy in bytes of labels that tell data apart.
_ZLIB_BYTES, _LEAST_EVIDENCE = 32, 8

# Tests of one difference ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """A metric of attack A minus that of attack B, with its interval and test."""

    a: float
    b: float
    difference: float  # ``a - b``: positive if A finds more
    low: float
    high: float
    p_value: float  # two-sided; 1 if nothing differs, below ``1 - confidence`` if the interval excludes 0
    confidence: float


def compare(
    a_scores: npt.ArrayLike,
    b_scores: npt.ArrayLike,
    members: npt.ArrayLike,
    fpr: float,
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 2_000,
) -> Difference:
    """Compare the true-positive rates of two attacks on the same queries [Q] at a rate that the non-members resolve.

    Queries are resampled, members and non-members separately and both attacks together, with new thresholds each time;
    the spread gives a normal interval and test. The p-value is at least that of the exact sign test of the members that
    only one attack calls, which matters if these are few.
    """
    if resamples < 100:
        raise PlmiaError(f"resamples is {resamples}, but the spread of a difference needs at least 100")
    if fpr == 0:
        raise PlmiaError("FPR is 0, but resamples cannot show the TPR at exactly that rate: give a larger FPR")
    a, b = (roc_curve(scores, members).resolved_at(fpr) for scores in (a_scores, b_scores))
    truth, values = np.asarray(members), [np.asarray(scores, dtype=np.float64) for scores in (a_scores, b_scores)]
    spread = _resampled_spread(values, truth, a.fpr, resamples, rng)
    low, high, p_value = _normal_test(a.tpr - b.tpr, spread, confidence, len(truth))
    p_value = max(p_value, _sign_test((values[0] >= a.threshold)[truth], (values[1] >= b.threshold)[truth]))
    return Difference(a.tpr, b.tpr, a.tpr - b.tpr, low, high, p_value, float(confidence))


def compare_auc(
    a_scores: npt.ArrayLike, b_scores: npt.ArrayLike, members: npt.ArrayLike, confidence: float = 0.95
) -> Difference:
    """Compare the AUC of two attacks on the same queries [Q], at least two of each kind (DeLong et al., 1988)."""
    auc_a, auc_b = (roc_curve(scores, members).auc for scores in (a_scores, b_scores))
    truth = np.asarray(members)
    if min(np.count_nonzero(truth), np.count_nonzero(~truth)) < 2:
        raise PlmiaError("one member or one non-member has no spread: compare on at least two of each")
    (in_a, out_a), (in_b, out_b) = (_placements(np.asarray(scores), truth) for scores in (a_scores, b_scores))
    variance = float(np.var(in_a - in_b, ddof=1)) / in_a.size + float(np.var(out_a - out_b, ddof=1)) / out_a.size
    low, high, p_value = _normal_test(auc_a - auc_b, math.sqrt(variance), confidence, truth.size)
    return Difference(auc_a, auc_b, auc_a - auc_b, low, high, p_value, float(confidence))


def compare_over_targets(
    a_values: Sequence[float] | FloatArray, b_values: Sequence[float] | FloatArray, confidence: float = 0.95
) -> Difference:
    """Compare a metric of two attacks over the same two or more targets, in one order (Student's paired test)."""
    from scipy.stats import ttest_rel

    a, b = checked_values(a_values, (-math.inf, math.inf)), checked_values(b_values, (-math.inf, math.inf))
    if a.size != b.size:
        raise PlmiaError(f"attack A has {a.size} targets, attack B {b.size}: give both on the same targets")
    difference = float((a - b).mean())
    # Without spread: the smallest p-value of a test that swaps A and B on each target.
    found = difference, difference, 0.5 ** (a.size - 1) if difference else 1.0
    if np.ptp(a - b) > 0:
        found = _t_test(lambda: ttest_rel(a, b), confidence)
    return Difference(float(a.mean()), float(b.mean()), difference, *found, float(confidence))


def unpaired_over_targets(first: FloatArray, other: FloatArray, confidence: float = 0.95) -> Difference:
    """Compare a metric over two independent sets of two or more targets (Welch's test): ``other - first``."""
    from scipy.stats import ttest_ind

    difference = float(other.mean() - first.mean())
    # Without spread: the smallest p-value of a permutation test that redistributes the targets.
    least = min(1.0, 2 / math.comb(first.size + other.size, first.size))
    found = difference, difference, least if difference else 1.0
    if np.ptp(first) > 0 or np.ptp(other) > 0:
        found = _t_test(lambda: ttest_ind(other, first, equal_var=False), confidence)
    return Difference(float(other.mean()), float(first.mean()), difference, *found, float(confidence))


def unpaired(first: Measured, other: Measured) -> Difference:
    """Compare two independent measurements, from their intervals alone: ``other - first``.

    The distances to the ends that face each other are added in squares (MOVER, Zou and Donner, 2008). The p-value is
    below ``1 - confidence`` exactly if the interval excludes 0.
    """
    difference, z = other.value - first.value, -float(ndtri((1 - first.interval.confidence) / 2))
    below = math.hypot(other.value - other.interval.low, first.interval.high - first.value)
    above = math.hypot(other.interval.high - other.value, first.value - first.interval.low)
    facing = below if difference > 0 else above
    p_value = 1.0 if difference == 0 else 2 * float(ndtr(-abs(difference) * z / facing))
    low, high = difference - below, difference + above
    return Difference(other.value, first.value, difference, low, high, p_value, first.interval.confidence)


@dataclass(frozen=True, eq=False)
class _Top:
    """The non-members near and above the threshold of an attack."""

    order: IntArray  # [T], in decreasing order of score
    ends: IntArray  # [G], where each of their tie groups ends in it
    passed: IntArray  # [members], groups at or above each member: a threshold below c groups calls those with <= c


def _top(scores: FloatArray, members: BoolArray, allowed: int) -> _Top:
    others = scores[~members]
    order = np.argsort(-others, kind="stable")
    values = others[order]
    # Resampled thresholds lie within a few standard deviations of sqrt(allowed) of this one.
    most = allowed + math.ceil(8 * math.sqrt(allowed + 1)) + 30
    if most < values.size:
        order = order[: np.searchsorted(-values, -values[most], side="right")]
    whole = order.size == values.size
    values = values[: order.size]
    ends = np.append(np.flatnonzero(values[1:] != values[:-1]), values.size - 1)
    passed = np.searchsorted(-values[ends], -scores[members], side="right")
    # Members below all that is kept lie below every threshold, unless everything is kept.
    passed[scores[members] < values[-1]] += not whole
    return _Top(order, ends, passed)


def _resampled_spread(
    values: Sequence[FloatArray], members: BoolArray, fpr: float, resamples: int, rng: np.random.Generator
) -> float:
    """Standard deviation of the difference of the true-positive rates: over non-members, and over members given these.

    Members are not drawn, so that A against B and B against A have the same interval.
    """
    n = int(np.count_nonzero(~members))
    allowed = largest_count(fpr, n)
    tops = [_top(scores, members, allowed) for scores in values]
    parts = zip(*_resampled(tops, n, allowed, resamples, rng), strict=True)
    difference, variance = map(np.concatenate, parts)
    return math.sqrt(float(difference.var(ddof=1)) + float(variance.mean()))


def _resampled(
    tops: Sequence[_Top], n: int, allowed: int, resamples: int, rng: np.random.Generator
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Differences of the true-positive rates in resamples of the `n` non-members, and their variance over members."""
    kept, places = np.unique(np.concatenate([top.order for top in tops]), return_inverse=True)
    orders = np.split(places, [tops[0].order.size])
    members = tops[0].passed.size
    block = max(1, _BLOCK // max(kept.size, members))
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        # How often each kept non-member is drawn: first how many draws hit any of them, then which.
        hits = rng.binomial(n, kept.size / n, size=rows)
        cells = np.repeat(np.arange(rows) * kept.size, hits) + rng.integers(kept.size, size=int(hits.sum()))
        drawn = np.bincount(cells, minlength=rows * kept.size).reshape(rows, kept.size)
        in_a, in_b = (
            top.passed <= np.count_nonzero(np.cumsum(drawn[:, order], axis=1)[:, top.ends] <= allowed, axis=1)[:, None]
            for top, order in zip(tops, orders, strict=True)
        )
        # The difference is due to members that only one attack calls; resampled, their numbers are multinomial.
        only_a, only_b = (np.count_nonzero(x & ~y, axis=1) / members for x, y in ((in_a, in_b), (in_b, in_a)))
        difference = only_a - only_b
        yield difference, (only_a + only_b - difference**2) / members


def _placements(scores: FloatArray, members: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Share of non-members that each member outscores, and share of members above each non-member."""
    inside, outside = np.sort(scores[members]), np.sort(scores[~members])

    def below(values: FloatArray, others: FloatArray) -> FloatArray:
        ends = np.searchsorted(others, values, "left") + np.searchsorted(others, values, "right")
        return np.asarray(ends / (2 * others.size), dtype=np.float64)

    return below(scores[members], outside), 1 - below(scores[~members], inside)


def _normal_test(difference: float, spread: float, confidence: float, n: int) -> tuple[float, float, float]:
    """Interval of a difference of two rates, which lies in [-1, 1], and its p-value."""
    half = -float(ndtri(tail_of(confidence))) * spread
    p_value = 1.0
    if difference:
        # Without spread: the smallest p-value of a test that swaps A and B at each of the n queries.
        p_value = 2 * float(ndtr(-abs(difference) / spread)) if spread > 0 else 0.5 ** (n - 1)
    return max(-1.0, difference - half), min(1.0, difference + half), p_value


def _t_test(test: Callable[[], Any], confidence: float) -> tuple[float, float, float]:
    """Interval and p-value of a test of scipy.stats."""
    require_rate("confidence", confidence)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # about values that are nearly equal
        found = test()
        ends = found.confidence_interval(confidence)
    return float(ends.low), float(ends.high), float(found.pvalue)


def _sign_test(called_a: BoolArray, called_b: BoolArray) -> float:
    """Exact two-sided p-value of the members [members] that only one attack calls."""
    from scipy.stats import binomtest

    only_a, only_b = (int(np.count_nonzero(x & ~y)) for x, y in ((called_a, called_b), (called_b, called_a)))
    return float(binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0


# The two sides of a comparison ---------------------------------------------------------------------------------------

Method = Literal["paired records", "paired targets", "unpaired records", "unpaired targets"]
"""The unit of a test, and whether both sides share it."""

METHODS: dict[Method, str] = {
    "paired records": "paired: the same {units}",
    "paired targets": "paired: the same targets",
    "unpaired records": "unpaired: not the same {units}, so both intervals' errors add up",
    "unpaired targets": "unpaired: not the same targets or {units}, Welch's test over targets",
}


@dataclass(frozen=True)
class Run:
    """The saved results of a run, and its name in tables."""

    name: str
    results: SavedRun

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        noted = [note.to_json() for note in doubts(self.results.notes)]
        folder, targets = str(self.results.folder), self.results.targets
        return {"name": self.name, "folder": folder, "targets": targets, "doubts": noted}


@dataclass(frozen=True)
class Side:
    """One attack of one run; ``name`` is that of the run, or of the attack if attacks of one run are compared."""

    name: str
    run: Run
    attack: str

    @cached_property
    def rocs(self) -> dict[int, Roc]:
        """ROC curve of each target."""
        return {target: self.run.results.roc(self.attack, target) for target in self.run.results.targets}

    def values(self, fpr: float | None) -> FloatArray:
        """TPR at ``fpr``, or the AUC if it is None, on each target [targets]."""
        return np.array([roc.auc if fpr is None else roc.tpr_at(fpr).tpr for roc in self.rocs.values()])

    def measured(self, fpr: float | None, confidence: float) -> Measured:
        """Mean over targets, with an interval for further targets if there are several, else for further records."""
        values = self.values(fpr)
        if len(values) > 1:
            return Measured(float(values.mean()), over_targets(values, confidence=confidence, in_turn=True))
        return self.on_these(fpr, confidence)

    def on_these(self, fpr: float | None, confidence: float) -> Measured:
        """Mean over these targets, with the mean ends of their intervals, which is conservative."""
        ends = [
            auc_interval(roc, confidence) if fpr is None else tpr_interval(roc, fpr, confidence)
            for roc in self.rocs.values()
        ]
        low, high = np.mean([(end.low, end.high) for end in ends], axis=0)
        return Measured(float(self.values(fpr).mean()), Interval(float(low), float(high), confidence))


@dataclass(frozen=True)
class Measured:
    """A metric and its interval."""

    value: float
    interval: Interval

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} ({100 * self.interval.low:.1f} to {100 * self.interval.high:.1f})"

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        return {"value": self.value} | vars(self.interval)


def same_records(a: SavedRun, b: SavedRun) -> bool:
    """Whether two runs attacked the same targets and evaluated the same members and non-members of each."""
    # A different data set of the same size has the same design with the same seed.
    if a.targets != b.targets or (different_data(a, b) and not matched_by_position(a, b)):
        return False
    if a.labels is not None and b.labels is not None and not np.array_equal(a.labels, b.labels):
        return False
    return all(
        np.array_equal(a.members(target), b.members(target)) and np.array_equal(a.queries(target), b.queries(target))
        for target in a.targets
    )


def matched_by_position(a: SavedRun, b: SavedRun) -> bool:
    """Whether different data hold the same records in the same order, as after a column was dropped.

    Labels and groups are equal then. Labels in a regular order, such as sorted ones, are no evidence without groups:
    another data set may have the same.
    """
    groups = [(run.result.about.audit or {}).get("groups") for run in (a, b)]
    if (a.labels is None) != (b.labels is None) or groups[0] != groups[1]:
        return False
    if a.labels is not None and b.labels is not None and not np.array_equal(a.labels, b.labels):
        return False
    if not all(np.array_equal(a.population(target), b.population(target)) for target in a.targets):
        return False
    return groups[0] is not None or (a.labels is not None and _irregular(a.labels))


def _irregular(labels: Labels) -> bool:
    """Whether the order of the labels is like a random one: they can hardly be compressed below their entropy."""
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    entropy = -float((shares * np.log2(shares)).sum()) * len(labels) / 8
    compressed = len(zlib.compress(labels.astype("<i4").tobytes())) - _ZLIB_BYTES
    return entropy >= _LEAST_EVIDENCE and compressed >= entropy / 2


def different_data(a: SavedRun, b: SavedRun) -> bool:
    """Whether two runs are known to use different data; audits store a digest."""
    one, two = a.result.about.data_digest, b.result.about.data_digest
    return one is not None and two is not None and one != two


def method_of(first: SavedRun, other: SavedRun) -> Method:
    """How to compare two runs: paired if they evaluated the same records, over targets if both have several."""
    several = min(len(first.targets), len(other.targets)) > 1
    if same_records(first, other):
        return "paired targets" if several else "paired records"
    return "unpaired targets" if several else "unpaired records"


def change_of(
    method: Method, fpr: float | None, first: Side, other: Side, rng: np.random.Generator, confidence: float
) -> Difference:
    """Test the metric of ``other`` minus that of ``first``; only "paired records" draws from ``rng``."""
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
    """Clip the interval to [-1, 1], the range of a difference of two rates."""
    return replace(found, low=max(-1.0, found.low), high=min(1.0, found.high))


# Runs and attacks side by side ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One metric on two sides."""

    label: str  # the attack, or the run if attacks are compared
    fpr: float | None  # that of the TPR; None for the AUC
    first: Measured
    other: Measured
    change: Difference  # other minus first, with its own p-value
    p_adjusted: float  # after Holm's adjustment over all rows of the comparison
    method: Method

    @property
    def shown(self) -> bool:
        """Whether a difference is shown; the error over all tests together is at most ``1 - confidence``."""
        return self.p_adjusted < 1 - self.change.confidence

    def cells(self) -> list[str]:
        """The row of a table, in percent: label, metric, both sides, the difference and the adjusted p-value."""
        metric = "AUC" if self.fpr is None else tpr_label(self.fpr)
        difference, low, high = (100 * value for value in (self.change.difference, self.change.low, self.change.high))
        p = "<0.001" if self.p_adjusted < 0.001 else f"{self.p_adjusted:.2g}"
        change = f"{difference:+.1f} ({low:+.1f} to {high:+.1f})"
        return [self.label, metric, str(self.first), str(self.other), change, p]

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        sides = {"first": self.first.to_json(), "other": self.other.to_json()}
        change = {name: value for name, value in vars(self.change).items() if name not in ("a", "b")}
        test = {"change": change, "p_adjusted": self.p_adjusted, "method": self.method}
        metric = "auc" if self.fpr is None else "tpr"
        return {"label": self.label, "metric": metric, "fpr": self.fpr} | sides | test


@dataclass(frozen=True)
class Pair:
    """All rows of one side against the first."""

    first: str
    other: str
    what: Literal["runs", "attacks"]
    rows: tuple[Row, ...]
    other_data: bool = False  # whether the two are known to use different data
    people: bool = False  # whether people were judged, not records

    @property
    def method(self) -> Method:
        """How the rows were tested."""
        return self.rows[0].method

    @property
    def chief(self) -> Row:
        """The row that `text` is about: the first rate, and the attack with the largest sum of both sides.

        That sum carries no information about their difference.
        """
        rate = next((row.fpr for row in self.rows if row.fpr is not None), None)
        area = {row.label: row.first.value + row.other.value for row in self.rows if row.fpr is None}

        def found(row: Row) -> tuple[float, float]:
            return row.first.value + row.other.value, area.get(row.label, 0.0)

        return strongest((row for row in self.rows if row.fpr == rate), found)

    @property
    def text(self) -> str:
        """The result in words."""
        row = self.chief
        size, than = _size(row)
        where = "" if row.fpr is None else f" of the members at {round_percent(row.fpr)} FPR"
        if self.what == "runs":
            sentence = f"{'In' if row.shown else 'in'} {self.other} {row.label} {size}{where} {than} in {self.first}"
        else:
            sentence = f"{self.other} {size}{where} {than} {self.first}"
        several = self.what == "runs" and any(other.label != row.label for other in self.rows)
        shown = "" if row.shown else f"No difference was shown{' by the best attack' * several}: "
        data = ""
        if self.other_data and self.method.startswith("paired"):
            data = f" The data differ; {self._units} were matched by position, since members, labels and groups agree."
        elif self.other_data:
            data = " The two runs use different data, which may explain the difference."
        return f"{shown}{sentence}, {p_words(row.p_adjusted)}.{self._others(row)}{data}"

    @property
    def heading(self) -> str:
        """What is compared, and how."""
        method = METHODS[self.method]
        if self.other_data and self.method == "unpaired records":
            method = "unpaired: the data differ, so both intervals' errors add up"
        return f"{self.other} against {self.first} ({method.format(units=self._units)})"

    @property
    def _units(self) -> str:
        return "people" if self.people else "records"

    def main_rows(self) -> list[Row]:
        """Rows of at most five attacks, the usual ones and that of `chief` among them."""
        shown = main_attacks((row.label for row in self.rows), self.chief.label)
        return [row for row in self.rows if row.label in shown]

    def short_table(self) -> str:
        """Rows of the main attacks as text, in percent."""
        head = ["attack" if self.what == "runs" else "run", "metric", self.first, self.other, "difference", "p"]
        return text_table([head, *(row.cells() for row in self.main_rows())], left=2)

    def _others(self, chief: Row) -> str:
        """How many attacks show a difference of the same metric, if there are several, and of the AUC if any does."""
        rows = [row for row in self.rows if row.fpr == chief.fpr]
        less, more = _shown(rows)
        auc = _shown([row for row in self.rows if row.fpr is None])
        words = ("have a lower AUC", "a higher one") if chief.fpr is None else ("find fewer", "more")
        said = f" Attacks shown to {words[0]}: {less} of {len(rows)}; {words[1]}: {more}." if len(rows) > 1 else ""
        if chief.fpr is None or not any(auc) or (chief.shown and not said):
            return said
        return f"{said} Shown to have a lower AUC: {auc[0]} of {len(rows)}; a higher one: {auc[1]}."

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        rows = [row.to_json() for row in self.rows]
        return {"first": self.first, "other": self.other, "method": self.method, "rows": rows, "text": self.text}


def _shown(rows: Sequence[Row]) -> tuple[int, int]:
    """How many rows show a difference downwards, and upwards."""
    differences = [row.change.difference for row in rows if row.shown]
    return sum(d < 0 for d in differences), sum(d > 0 for d in differences)


@dataclass(frozen=True)
class SideBySide:
    """All comparisons with the first run or attack; `compare_runs` and `compare_attacks` make one.

    Parameters
    ----------
    runs, fprs : tuples of Run, of float
        The runs, and the false-positive rates.
    pairs : tuple of Pair
        One for each side after the first.
    confidence : float
        Coverage of each interval.
    """

    runs: tuple[Run, ...]
    fprs: tuple[float, ...]
    pairs: tuple[Pair, ...]
    confidence: float

    @property
    def text(self) -> str:
        """The result in words, one line for each side after the first."""
        return "\n".join(pair.text for pair in self.pairs)

    def __repr__(self) -> str:
        tables = (f"{pair.heading}, in percent\n{pair.short_table()}" for pair in self.pairs)
        return visible("\n".join([self.text, *tables]))

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        return {
            "schema": 1,
            "compared": self.pairs[0].what,
            "runs": [run.to_json() for run in self.runs],
            "fprs": list(self.fprs),
            "confidence": self.confidence,
            "adjustment": "holm",
            "pairs": [pair.to_json() for pair in self.pairs],
        }


def compare_runs(
    runs: Sequence[Run],
    rng: np.random.Generator,
    attacks: Sequence[str] | None = None,
    fprs: Sequence[float] | None = None,
    confidence: float = 0.95,
) -> SideBySide:
    """Compare each run with the first, attack by attack; by default all common attacks at the rates that all resolve.

    Runs on the same records (equal membership and queries of the same targets) are tested in pairs: of records if there
    is one target, of targets if there are several. Other runs are treated as independent.
    """
    names = [run.name for run in runs]
    if len(runs) < 2:
        raise PlmiaError(f"{len(runs)} run was given: give two, or one and two attacks")
    if len(set(names)) < len(names):
        raise PlmiaError(f"two runs have the same name ({', '.join(names)}): give each its own name")
    by_people = {run.results.result.about.people: run.name for run in runs}
    if len(by_people) > 1:
        raise PlmiaError(
            f"{by_people[True]} judges people and {by_people[False]} judges records, so their rates cannot be "
            "compared: score both with --unit record, or both with --unit group"
        )
    common = [name for name in runs[0].results.attacks if all(name in run.results.attacks for run in runs)]
    chosen = _once(attacks) if attacks else common
    if not chosen:
        have = "; ".join(f"{run.name} has {', '.join(run.results.attacks)}" for run in runs)
        raise PlmiaError(f"the runs have no attack in common ({have}): score them with the same attacks")
    sides = [[Side(run.name, run, attack) for attack in chosen] for run in runs]
    return _side_by_side("runs", tuple(runs), chosen, sides, rng, fprs, confidence)


def compare_attacks(
    run: Run,
    attacks: Sequence[str],
    rng: np.random.Generator,
    fprs: Sequence[float] | None = None,
    confidence: float = 0.95,
) -> SideBySide:
    """Compare each attack with the first one, all of one run; see `compare_runs`."""
    if len(attacks) < 2:
        raise PlmiaError(
            f"one run and {len(attacks)} attacks were given: give a second run, or two attacks of "
            f"{', '.join(run.results.attacks)}"
        )
    sides = [[Side(attack, run, attack)] for attack in _once(attacks)]
    return _side_by_side("attacks", (run,), [run.name], sides, rng, fprs, confidence)


def _size(row: Row) -> tuple[str, str]:
    """The size of a difference in words, and the conjunction before the side it is compared with."""
    change = row.change
    has = "has an AUC" if row.fpr is None else "finds"
    if change.difference == 0:
        return ("has the same AUC", "as") if row.fpr is None else ("finds as many", "as")
    if change.low < 0 < change.high:
        span = f"{100 * change.low:+.1f} to {100 * change.high:+.1f}"
    else:
        near, far = sorted((abs(100 * change.low), abs(100 * change.high)))
        span = f"{near:.1f} to {far:.1f}"
    words = ("lower", "higher") if row.fpr is None else ("fewer", "more")
    return f"{has} {abs(100 * change.difference):.1f} points {words[change.difference > 0]} ({span})", "than"


def p_words(p: float) -> str:
    """A p-value in words: ``p < 0.001``, ``p = 0.034``."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def _once(attacks: Sequence[str]) -> list[str]:
    repeated = [attack for i, attack in enumerate(attacks) if attack in attacks[:i]]
    if repeated:
        raise PlmiaError(f"attack {repeated[0]!r} was given twice: name each once")
    return list(attacks)


def _side_by_side(
    what: Literal["runs", "attacks"],
    runs: tuple[Run, ...],
    labels: Sequence[str],
    sides: Sequence[Sequence[Side]],
    rng: np.random.Generator,
    fprs: Sequence[float] | None,
    confidence: float,
) -> SideBySide:
    """Compare ``sides`` [sides][labels] with the first of them, and adjust all p-values together."""
    require_rate("confidence", confidence)
    rates = _rates([side for group in sides for side in group], fprs)
    pairs = []
    for group in sides[1:]:
        method = method_of(sides[0][0].run.results, group[0].run.results)
        rows = []
        for label, first, other in zip(labels, sides[0], group, strict=True):
            for fpr in (None, *rates):
                change = change_of(method, fpr, first, other, rng, confidence)
                one, two = (side.measured(fpr, confidence) for side in (first, other))
                rows.append(Row(label, fpr, one, two, change, change.p_value, method))
        apart = different_data(sides[0][0].run.results, group[0].run.results)
        people = runs[0].results.result.about.people
        pairs.append(Pair(sides[0][0].name, group[0].name, what, tuple(rows), apart, people))
    adjusted = iter(holm([row.change.p_value for pair in pairs for row in pair.rows]).tolist())
    pairs = [replace(pair, rows=tuple(replace(row, p_adjusted=next(adjusted)) for row in pair.rows)) for pair in pairs]
    return SideBySide(runs, rates, tuple(pairs), confidence)


def _rates(sides: Sequence[Side], fprs: Sequence[float] | None) -> tuple[float, ...]:
    """The false-positive rates to compare; every target of every side must resolve them."""
    fewest, target, name = min(
        (roc.n_non_members, target, side.run.name) for side in sides for target, roc in side.rocs.items()
    )
    roc = next(iter(sides[0].rocs.values()))
    for fpr in fprs or ():
        require_rate("the false-positive rate", fpr)
        needed = roc.tpr_at(fpr).needed
        if needed > fewest:
            raise PlmiaError(
                f"an FPR of {fpr_key(fpr)} needs {needed:,} evaluated non-members, target {target} of {name} has "
                f"{fewest:,}: give a larger FPR, or audit more records"
            )
    return tuple(dict.fromkeys(fprs)) if fprs else tuple(f for f in COMPARED_FPRS if roc.tpr_at(f).needed <= fewest)
