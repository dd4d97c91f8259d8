"""Each record over trainings: every model is the target in turn.

One audit tells which records are identified in one training. With every model as the target in turn, it also tells how
often each record is identified, and how the recipe does on average. A *unit* is a record, or a person with several.

The models are references for each other, so trainings are not independent:

- The mean true-positive rate and the mean AUC hold for further trainings with this recipe, on the same data, with as
  many references. They do not hold for other data. `mean_over_trainings` says how often their intervals cover.
- The interval of one unit's share holds for further sets of models, on average over units. It does not hold for units
  that were selected because they are identified often: without a leak most of their intervals lie too high.
- If nothing leaks and a record's signals are larger by chance in the models that trained on it, these models confirm
  each other: the record is identified in many of them. So more units are identified often than independent trainings
  would give. Only the limit `CurvePoint.at_most` holds for every kind of dependence.

Memory is proportional to the number of units: counts are kept, not results.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import numpy as np
from scipy.special import bdtrc, betainccinv, betaincinv, stdtrit

from plmia.data.arrays import Array, BoolArray, FloatArray, IntArray, Labels
from plmia.errors import PlmiaError, require_rate, some
from plmia.evaluation.decisions import Conformal
from plmia.evaluation.intervals import SHARED_REFERENCES, Interval, checked_values, tail_of
from plmia.evaluation.metrics import Operating, clopper_pearson, roc_curve
from plmia.evaluation.tables import Tabular

PERCENTS = tuple(range(0, 101, 5))
"""Shares of trainings, in per cent, at which identified units are counted."""
_ROWS = 1 << 16  # converted to text at a time


@dataclass(frozen=True)
class MeanRate:
    """A mean over trainings; `interval` is None with fewer than two distinct training sets."""

    mean: float
    interval: Interval | None


@dataclass(frozen=True)
class CurvePoint:
    """Units that are identified in at least a share of their trainings.

    If nothing leaks, units are identified in at most a share ``fpr`` of their trainings on average. By Markov's
    inequality at most ``units * fpr / share`` units are then expected to reach a share (`at_most`). Only a count well
    above this limit is evidence of a leak. The binomial number `expected` is too small for that: in simulated audits
    without a leak, an online attack identifies many more units in half of their trainings.
    """

    percent: int  # share of the trainings
    identified: int  # units identified in at least this share of the trainings that used them
    expected: float  # such units if nothing leaks and trainings are independent (binomial): too few, see `at_most`
    at_most: float  # limit of the expected number of such units if nothing leaks, for every kind of dependence
    accused: int  # units accused in at least this share of the trainings that did not use them


@dataclass(frozen=True)
class TrainingsSummary:
    """Run-level summary over trainings, for metrics.json.

    `tpr` is measured on the ROC curve of each training. `identified` is the share that the conformal rule finds without
    knowing any member, so it is a little smaller if the population is small.
    """

    fpr: float
    confidence: float  # of all intervals, each by itself
    trainings: int
    training_sets: int  # distinct ones
    units: int  # evaluated at least once as a member
    units_not_trained: int  # evaluated at least once as a non-member
    tpr: MeanRate | None  # at `fpr`; None if some training has too few evaluated non-members for this rate
    auc: MeanRate
    identified: float  # share of members that are identified, over all trainings
    accused: float  # share of non-members that are accused, over all trainings: near `fpr` if the calibration holds
    curve: tuple[CurvePoint, ...]  # at `PERCENTS`

    @property
    def always(self) -> int:
        """Number of units identified in all their trainings."""
        return self.curve[-1].identified


@dataclass(frozen=True, eq=False)
class UnitExposure(Tabular):
    """How often each unit is identified: one row per evaluated unit, the most exposed first.

    Rows are in order of the lower bound, so units that are identified in all of many trainings come first. Among equal
    ones, those that are accused less often as non-members come first.

    `low` and `high` are approximate bounds for one unit: those of Clopper and Pearson with half of the counts, because
    trainings share references; with all counts they would cover too rarely. They do not hold for all units at once.
    """

    index: IntArray  # of the record or the person
    trained: IntArray  # trainings in which the unit was a member and was evaluated
    identified: IntArray  # those of them in which it was called a member
    share: FloatArray  # identified / trained, NaN for a unit that never was a member
    low: FloatArray
    high: FloatArray
    not_trained: IntArray  # trainings in which the unit was not a member and was evaluated
    accused: IntArray  # those of them in which it was called a member
    first_record: IntArray | None = None  # of a person
    group: Labels | None = None  # as it was given, where it may be shown

    def __len__(self) -> int:
        return len(self.index)

    def _arrays(self) -> dict[str, Array]:
        return {name: array for name, array in vars(self).items() if array is not None}

    def __getitem__(self, rows: slice) -> UnitExposure:
        """Return some rows, as in ``exposure[:3]``."""
        if not isinstance(rows, slice):
            raise TypeError(f"exposure[{rows!r}] is not a slice: take rows with exposure[:3], or use to_frame()")
        return replace(self, **{name: array[rows] for name, array in self._arrays().items()})

    @property
    def always(self) -> BoolArray:
        """Which rows are units that are identified in all their trainings."""
        complete: BoolArray = (self.trained > 0) & (self.identified == self.trained)
        return complete

    def columns(self) -> dict[str, list[Any]]:
        """Return all rows as columns; a share that does not exist is None."""
        columns = {name: array.tolist() for name, array in self._arrays().items()}
        return columns | {"share": [None if math.isnan(share) else share for share in columns["share"]]}

    def write_lines(self, file: BinaryIO) -> None:
        """Write all rows as CSV; a share that does not exist is empty."""
        file.write(f"{','.join(self._arrays())}\n".encode())
        for start in range(0, len(self), _ROWS):
            columns = self[start : start + _ROWS].columns()
            texts = (map(_TEXT.get(name, str), column) for name, column in columns.items())
            file.writelines(f"{','.join(row)}\n".encode() for row in zip(*texts, strict=True))


def _share_text(share: float | None) -> str:
    return "" if share is None else f"{share:.6g}"


# How values are written, where not as str does.
_TEXT: dict[str, Callable[[Any], str]] = dict.fromkeys(("share", "low", "high"), _share_text)


@dataclass(frozen=True)
class TrainingsResult:
    """Every model as the target in turn: the summary, and one row per unit."""

    summary: TrainingsSummary
    exposure: UnitExposure


def mean_over_trainings(
    values: Sequence[float] | FloatArray, training_sets: Sequence[Hashable], confidence: float = 0.95
) -> Interval:
    """Interval of the mean of a metric in [0, 1] over trainings that are references for each other.

    Student's interval with twice the variance. The models of an audit are references for each other, so their results
    depend on each other. If nothing leaks, target and reference enter the statistic of an online attack alike: model j
    as a reference for k contributes the same as k for j. The variance of the mean is then twice that of independent
    targets. With a leak the factor is mostly between 1 and 2.

    Trainings with equal training sets count as one. Complementary pairs count as two: a record that is easy to identify
    is a member in only one of them, so their results are uncorrelated or negatively correlated. Pairs as units would
    leave fewer degrees of freedom and cover less often.

    ``tests/statistical/test_trainings_validity.py`` checks by simulation, for pairs and independent halves, with and
    without a leak, that the interval covers and that Student's own interval does not. If all targets share a few
    references, the interval holds for these references only.

    Parameters
    ----------
    values : sequence of float, shape [trainings]
        The metric of each training.
    training_sets : sequence, shape [trainings]
        Any key of the training set of each training; at least two must be distinct.
    confidence : float
        Nominal coverage.
    """
    sample, tail = checked_values(values, (0.0, 1.0)), tail_of(confidence)
    if len(training_sets) != sample.size:
        raise PlmiaError(
            f"there are {sample.size} values and {len(training_sets)} training sets: give one per training"
        )
    position = {key: i for i, key in enumerate(dict.fromkeys(training_sets))}
    distinct = len(position)
    if distinct < 2:
        raise PlmiaError("all trainings have the same training set: an interval needs at least two distinct ones")
    mean = statistics.fmean(sample.tolist())
    # Sums of deviations per training set: also right if these have unequal numbers of trainings.
    sums = np.bincount([position[key] for key in training_sets], weights=sample - mean, minlength=distinct)
    variance = distinct / (distinct - 1) * float(sums @ sums) / sample.size**2
    half = float(stdtrit(distinct - 1, 1 - tail)) * math.sqrt(SHARED_REFERENCES * variance)
    return Interval(max(mean - half, 0.0), min(mean + half, 1.0), float(confidence))


@dataclass(frozen=True)
class _Training:
    target: int
    training_set: bytes  # digest
    point: Operating
    auc: float


@dataclass
class OverTrainings:
    """Collects the results of one attack on each target in turn; `finish` summarises them.

    Parameters
    ----------
    n_units : int
        Number of units: records, or persons.
    fpr : float
        False-positive rate at which units are identified, strictly between 0 and 1.
    confidence : float
        Coverage of the intervals.
    """

    n_units: int
    fpr: float
    confidence: float = 0.95
    _trainings: dict[int, _Training] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.n_units < 2:
            raise PlmiaError(
                f"n_units is {self.n_units}, but must be at least 2: an audit needs a member and a non-member"
            )
        require_rate("FPR", self.fpr)
        require_rate("confidence", self.confidence)
        self._trained, self._identified, self._not_trained, self._accused = np.zeros((4, self.n_units), dtype=np.intp)

    def add(
        self,
        target: int,
        log10_p_conformal: FloatArray,
        score: FloatArray,
        members: BoolArray,
        queries: IntArray,
        population: int,
    ) -> None:
        """Add the result on one target; the order of the targets does not matter.

        Parameters
        ----------
        target : int
            Number of the target model, each once.
        log10_p_conformal, score : float arrays [units]
            Conformal p-values, as log10, and scores. Only those of ``queries`` are read.
        members : bool array [units]
            Which units the target trained on.
        queries : int array
            Evaluated units, each once: all that do not belong to the population.
        population : int
            Size of the population behind the p-values. If it is too small for p-values down to the false-positive
            rate, nobody could be identified: that raises `PopulationError`.
        """
        if target in self._trainings:
            raise PlmiaError(f"target {target} was added twice: add each target once")
        rule = Conformal(self.fpr)
        rule.require(population)
        for name, array in (("p-values", log10_p_conformal), ("scores", score), ("members", members)):
            if np.shape(array) != (self.n_units,):
                raise PlmiaError(
                    f"{name} have shape {np.shape(array)}, there are {self.n_units} units: give one per unit"
                )
        self._require_queries(queries)
        log10_p = log10_p_conformal[queries]
        # Written so that NaN is bad.
        bad = queries[~(log10_p <= 0)]
        if bad.size:
            raise PlmiaError(
                f"log10 of the p-value is {log10_p_conformal[bad[0]]} at unit {some(bad)}: it must be <= 0"
            )
        roc = roc_curve(score[queries], members[queries])
        # One step up, as in `Conformal`: the logarithms of equal fractions may differ by rounding.
        called = log10_p <= np.nextafter(np.log10(self.fpr), 1)
        inside = members[queries]
        # Queries are distinct, so that every unit is counted once.
        self._trained[queries[inside]] += 1
        self._identified[queries[inside & called]] += 1
        self._not_trained[queries[~inside]] += 1
        self._accused[queries[~inside & called]] += 1
        digest = hashlib.sha256(np.packbits(members).tobytes()).digest()
        self._trainings[target] = _Training(target, digest, roc.tpr_at(self.fpr, self.confidence), roc.auc)

    def finish(self) -> TrainingsResult:
        """Return the summary and the exposure of each unit; more targets may be added afterwards."""
        if not self._trainings:
            raise PlmiaError("no target was added: a summary over trainings needs at least one")
        trainings = sorted(self._trainings.values(), key=lambda training: training.target)
        sets = [training.training_set for training in trainings]
        resolved = all(training.point.resolved for training in trainings)
        summary = TrainingsSummary(
            fpr=float(self.fpr),
            confidence=float(self.confidence),
            trainings=len(trainings),
            training_sets=len(set(sets)),
            units=int(np.count_nonzero(self._trained)),
            units_not_trained=int(np.count_nonzero(self._not_trained)),
            tpr=self._mean_tpr([training.point for training in trainings], sets) if resolved else None,
            auc=self._mean([training.auc for training in trainings], sets),
            identified=int(self._identified.sum()) / int(self._trained.sum()),
            accused=int(self._accused.sum()) / int(self._not_trained.sum()),
            curve=self._curve(),
        )
        return TrainingsResult(summary, self._exposure())

    def _require_queries(self, queries: IntArray) -> None:
        if queries.ndim != 1 or queries.dtype.kind not in "iu":
            raise PlmiaError(f"queries are {queries.dtype} of shape {queries.shape}: give the numbers of the units")
        outside = queries[(queries < 0) | (queries >= self.n_units)]
        if outside.size:
            raise PlmiaError(f"query {some(outside)} is not among the {self.n_units} units: count them from 0")
        times = np.bincount(queries, minlength=self.n_units)
        if times.max() > 1:
            raise PlmiaError(f"unit {some(np.flatnonzero(times > 1))} is evaluated twice: give each query once")

    def _mean(self, values: list[float], sets: list[bytes]) -> MeanRate:
        interval = mean_over_trainings(values, sets, self.confidence) if len(set(sets)) > 1 else None
        return MeanRate(statistics.fmean(values), interval)

    def _mean_tpr(self, points: list[Operating], sets: list[bytes]) -> MeanRate:
        """Mean true-positive rate; as in `mean_rate`, the interval is at least as wide as that of all members."""
        mean = self._mean([point.tpr for point in points], sets)
        if mean.interval is None:
            return mean
        n_true, n_members = sum(point.n_true for point in points), sum(point.n_members for point in points)
        low, high = clopper_pearson(n_true, n_members, self.confidence)
        between = mean.interval
        return replace(
            mean, interval=replace(between, low=min(between.low, float(low)), high=max(between.high, float(high)))
        )

    def _curve(self) -> tuple[CurvePoint, ...]:
        sizes, units = np.unique(self._trained[self._trained > 0], return_counts=True)
        points = []
        for percent in PERCENTS:
            # Integers, so that 3 of 5 trainings are 60 %; the ceiling is the smallest sufficient count.
            least = -(-percent * sizes // 100)
            chance = np.where(least > 0, bdtrc(np.maximum(least - 1, 0), sizes, self.fpr), 1.0)
            points.append(
                CurvePoint(
                    percent,
                    _at_least(percent, self._identified, self._trained),
                    float(units @ chance),
                    float(units.sum() * min(1.0, 100 * self.fpr / percent)) if percent else float(units.sum()),
                    _at_least(percent, self._accused, self._not_trained),
                )
            )
        return tuple(points)

    def _exposure(self) -> UnitExposure:
        unit = np.flatnonzero(self._trained + self._not_trained)
        trained, identified = self._trained[unit], self._identified[unit]
        not_trained, accused = self._not_trained[unit], self._accused[unit]
        low, high = _unit_bounds(identified, trained, self.confidence)
        share = np.divide(identified, trained, out=np.full(len(unit), np.nan), where=trained > 0)
        accused_share = accused / np.maximum(not_trained, 1)
        order = np.lexsort((unit, accused_share, -share, -low, trained == 0))
        return UnitExposure(
            index=unit[order],
            trained=trained[order],
            identified=identified[order],
            share=share[order],
            low=low[order],
            high=high[order],
            not_trained=not_trained[order],
            accused=accused[order],
        )


def _at_least(percent: int, counts: IntArray, trainings: IntArray) -> int:
    """Count the units with at least this share of their trainings; units without trainings do not count."""
    return int(np.count_nonzero((100 * counts >= percent * trainings) & (trainings > 0)))


def _unit_bounds(counts: IntArray, trainings: IntArray, confidence: float) -> tuple[FloatArray, FloatArray]:
    """Clopper-Pearson bounds [units] with reduced counts; each pair of counts is computed once, as many are equal."""
    base, tail = int(trainings.max()) + 1, tail_of(confidence)
    pairs, of_unit = np.unique(counts * base + trainings, return_inverse=True)
    whole_k, whole_n = pairs // base, pairs % base
    # `clopper_pearson` takes whole counts; its beta quantiles exist for fractions too. 1 replaces the 0 at an edge.
    k, rest = whole_k / SHARED_REFERENCES, (whole_n - whole_k) / SHARED_REFERENCES
    low = np.where(whole_k == 0, 0.0, betaincinv(np.where(whole_k == 0, 1.0, k), rest + 1, tail))
    high = np.where(whole_k == whole_n, 1.0, betainccinv(k + 1, np.where(whole_k == whole_n, 1.0, rest), tail))
    return low[of_unit], high[of_unit]
