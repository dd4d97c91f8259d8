"""Subgroups: exposure for each value of a column, and a test of whether one subgroup is more exposed than the others.

A unit is what is evaluated: a person or a record. Two thresholds answer two questions. At the *common* threshold, the
one for all units together, `Subgroup.identified` counts the members that one attack finds. At its *own* threshold,
`Subgroup.tpr` compares members and non-members of the subgroup alone.

The test compares a subgroup with the weighted mean of the other subgroups in two quantities: the advantage TPR - FPR at
the common threshold, and the AUC within the subgroup. Each uses only comparisons of members with non-members of the
same subgroup. If nothing leaks, the advantage is 0 and the AUC is 1/2 in every subgroup, whatever its law of scores and
its share of members. If every subgroup has the same laws, both are equal. Each gets half of the error, because neither
is enough: the AUC finds a small shift of all members of a subgroup, the advantage finds a few members that stand out.

Limits of both quantities combine as in `plmia.evaluation.intervals.tpr_interval` (MOVER, Zou and Donner, 2008), from
Clopper-Pearson limits of rates. These are safe for small counts, and for a threshold that the same non-members set. The
p-value is the error probability at which the lower limit of the difference is 0. Normal approximations, such as the
variance of Agresti and Caffo, called a subgroup more exposed too often in simulations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from plmia.data.arrays import Array, BoolArray, FloatArray, IntArray, Labels
from plmia.errors import PlmiaError, require_rate
from plmia.evaluation.intervals import Interval, auc_limits, tpr_interval
from plmia.evaluation.metrics import Roc, clopper_pearson, roc_curve
from plmia.evaluation.tables import Tabular, html_table
from plmia.numerics import holm

if TYPE_CHECKING:
    from plmia.data.tables import Column

MISSING = -1
"""Code of a unit without a value."""
VARIES = -2
"""Code of a group whose records have different values."""
MIN_UNITS = 20
"""A subgroup with fewer members, or fewer non-members, is small: it is merged with others or has no rates."""
MAX_VALUES = 50
"""Largest number of values of a column."""

_SHOWN_CODES = {MISSING: "missing", VARIES: "varies"}
# Error probabilities at which limits are computed, decreasing from 0.49 to 1e-12. They are evenly spaced as normal
# quantiles, of which the limits are nearly linear; p-values in between are interpolated.
_QUANTILES = np.linspace(0.025, 7.034, 40)
_TAILS: FloatArray = ndtr(-_QUANTILES)


@dataclass(frozen=True)
class Subgroup:
    """Exposure of the units with one value of a column; `subgroup_table` makes them."""

    name: str  # value as shown
    n_members: int  # evaluated ones
    n_non_members: int
    identified: int  # members at or above the common threshold
    falsely: int  # non-members there
    tpr: float | None  # at the table's FPR within the subgroup; None if small, or with too few non-members for the FPR
    interval: Interval | None  # of `tpr`, for all subgroups of all tables at once
    auc: float | None  # within the subgroup; None if small
    accuracy_members: float | None  # mean share of right answers; None if small or not known
    accuracy_non_members: float | None
    p_value: float  # of "not more exposed than the others", adjusted for all subgroups of all tables; 1 if not tested
    merged: tuple[str, ...] = ()  # values that are merged here because each is small
    small: bool = False  # fewer than `MIN_UNITS` members or non-members, so that there are no rates


@dataclass(frozen=True)
class SubgroupTable(Tabular):
    """Exposure for each value of a column; `subgroup_table` makes one."""

    by: str  # name of the column
    fpr: float
    confidence: float  # of all intervals at once; a subgroup is called more exposed at the level 1 - confidence
    subgroups: tuple[Subgroup, ...]

    @property
    def more_exposed(self) -> tuple[str, ...]:
        """Names of the subgroups that are more exposed than the others; any is wrong with at most 1 - confidence."""
        return tuple(group.name for group in self.subgroups if group.p_value <= 1 - self.confidence)

    def columns(self) -> dict[str, list[Any]]:
        """One row per subgroup."""
        groups = self.subgroups
        return {
            self.by: [g.name for g in groups],
            "members": [g.n_members for g in groups],
            "non_members": [g.n_non_members for g in groups],
            "identified": [g.identified for g in groups],
            "falsely": [g.falsely for g in groups],
            "tpr": [g.tpr for g in groups],
            "low": [None if g.interval is None else g.interval.low for g in groups],
            "high": [None if g.interval is None else g.interval.high for g in groups],
            "auc": [g.auc for g in groups],
            "accuracy_members": [g.accuracy_members for g in groups],
            "accuracy_non_members": [g.accuracy_non_members for g in groups],
            "p_value": [g.p_value for g in groups],
        }

    def _repr_html_(self) -> str:
        return html_table(f"Subgroups by {self.by}", self.columns())


def subgroup_table(
    by: str,
    codes: Labels,
    names: Sequence[str],
    score: npt.ArrayLike,
    members: npt.ArrayLike,
    fpr: float,
    correct: npt.ArrayLike | None = None,
    confidence: float = 0.95,
    n_tables: int = 1,
) -> SubgroupTable:
    """Measure the exposure of each subgroup, and test whether it is more exposed than the others.

    Units are independent of each other. Two or more small subgroups (`MIN_UNITS`) are merged into one; a subgroup that
    is still small is kept without rates. Within a merged subgroup the share of members should not depend on the value.

    Parameters
    ----------
    by : str
        Name of the column.
    codes : int array [units]
        Position of each unit's value in ``names``, `MISSING` or `VARIES`.
    names : sequence of str
        Values as shown.
    score, members : arrays of float and bool, shape [units]
        As for `roc_curve`.
    fpr : float
        False-positive rate of the common threshold and of each subgroup's own threshold, in (0, 1).
    correct : array of bool or float, shape [units], optional
        Share of a unit's records that the target answers rightly.
    confidence : float
        Coverage of all intervals at once; 1 - confidence is the level of the test.
    n_tables : int
        Number of tables that share the error, one per column.

    Raises
    ------
    PlmiaError
        For arrays that do not fit together, and for a column with one value or with more than `MAX_VALUES`.
    """
    require_rate("the FPR", fpr)
    require_rate("confidence", confidence)
    if n_tables < 1:
        raise PlmiaError(f"n_tables is {n_tables}, at least 1 is needed: give the number of columns")
    everybody = roc_curve(score, members)
    scores, truth = np.asarray(score, dtype=np.float64), np.asarray(members)
    codes = _checked_codes(by, codes, names, len(scores))
    right = _checked_correct(correct, len(scores))
    called = scores >= everybody.tpr_at(fpr).threshold
    parts = _parts(by, codes, names, truth)
    large = [k for k, part in enumerate(parts) if not part.small]
    curves = {k: roc_curve(scores[parts[k].units], truth[parts[k].units]) for k in large}
    tested = [k for k in large if parts[k].tested]
    found = _p_values([parts[k] for k in tested], [curves[k] for k in tested], called, truth)
    p_values = dict.fromkeys(large, 1.0) | dict(zip(tested, found.tolist(), strict=True))
    resolved = sum(roc.tpr_at(fpr).resolved for roc in curves.values())
    each = 1 - (1 - confidence) / (max(1, resolved) * n_tables)
    subgroups = []
    for k, part in enumerate(parts):
        inside, outside = part.units & truth, part.units & ~truth
        row = Subgroup(
            name=part.name,
            n_members=int(inside.sum()),
            n_non_members=int(outside.sum()),
            identified=int((called & inside).sum()),
            falsely=int((called & outside).sum()),
            tpr=None,
            interval=None,
            auc=None,
            accuracy_members=None,
            accuracy_non_members=None,
            p_value=1.0,
            merged=part.merged,
            small=part.small,
        )
        if k in curves:
            row = replace(row, auc=curves[k].auc, p_value=min(1.0, n_tables * float(p_values[k])))
            if right is not None:
                rates = float(right[inside].mean()), float(right[outside].mean())
                row = replace(row, accuracy_members=rates[0], accuracy_non_members=rates[1])
            if (point := curves[k].tpr_at(fpr)).resolved:
                interval = replace(tpr_interval(curves[k], fpr, each), confidence=float(confidence))
                row = replace(row, tpr=point.tpr, interval=interval)
        subgroups.append(row)
    return SubgroupTable(by, float(fpr), float(confidence), tuple(subgroups))


def codes_of(values: Any, n: int, what: str = "by") -> tuple[IntArray, tuple[str, ...]]:
    """Encode a column [n] as positions in the sorted names of its values; `MISSING` where it has none.

    Takes text, booleans, integers, categories, and floats with few values, as a list, an array, or a series of pandas,
    polars or pyarrow. Errors say ``what`` the column is ("column 'ward'").
    """
    from plmia.data.tables import Column, is_series

    shape = (len(values),) if is_series(values) else np.shape(values)
    if shape != (n,):
        raise PlmiaError(f"{what} has shape {shape}, there are {n:,} records: give one value per record")
    column = Column.read(what, what, values)
    if column.kind == "date":
        raise PlmiaError(f"{what} holds dates: cut it into ranges, such as years")
    if column.kind == "category":
        codes, names = np.asarray(column.values, np.intp), column.levels
    else:
        codes, names = _numbered(column)
    _require_few(what, len(names), column.kind == "number")
    return codes, names


def code_name(code: int, names: Sequence[str]) -> str:
    """Return the name of a code, also of a missing or varying value."""
    return names[code] if code >= 0 else _unused(_SHOWN_CODES[code], names)


def constant_within(codes: Labels, groups: Labels) -> tuple[IntArray, int]:
    """Return the code of each group, in the order of ``numpy.unique(groups)``, and how many groups vary.

    All records of a group that have a value must have the same one; otherwise the group's code is `VARIES`. A group is
    `MISSING` if none of its records has a value.
    """
    if np.shape(codes) != np.shape(groups) or np.ndim(codes) != 1:
        raise PlmiaError(f"codes have shape {np.shape(codes)}, groups {np.shape(groups)}: give one of each per record")
    found, group = np.unique(groups, return_inverse=True)
    known = np.asarray(codes) != MISSING
    low = np.full(len(found), np.iinfo(np.intp).max)
    high = np.full(len(found), np.iinfo(np.intp).min)
    np.minimum.at(low, group[known], codes[known])
    np.maximum.at(high, group[known], codes[known])
    varying = low < high
    # Without a known record the smallest stays above the largest.
    result = np.where(varying, VARIES, np.where(low > high, MISSING, low))
    return result, int(varying.sum())


# Subgroups -----------------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """One row of the table: which units [units] it has."""

    name: str
    units: BoolArray
    merged: tuple[str, ...]
    small: bool
    tested: bool = True  # whether it is compared with the others


def subgroup_codes(by: str, codes: IntArray, names: Sequence[str], members: BoolArray) -> list[tuple[str, IntArray]]:
    """Return the rows of a table and the codes of each: a value, or several small ones that are merged.

    ``codes`` and ``members`` are those of the evaluated units [units], as for `subgroup_table`.
    """
    return [(part.name, np.unique(codes[part.units])) for part in _parts(by, codes, names, members)]


def _parts(by: str, codes: IntArray, names: Sequence[str], members: BoolArray) -> list[_Part]:
    """Subgroups in the order of their values, then missing and varying values, then the merged ones."""
    present = set(codes.tolist())
    ordered = sorted(code for code in present if code >= 0) + [code for code in _SHOWN_CODES if code in present]
    _require_few(f"column {by!r}", sum(code >= 0 for code in ordered), False)
    shown = {code: code_name(code, names) for code in ordered}
    if len(ordered) < 2:
        raise PlmiaError(
            f"column {by!r} has one value among the evaluated units, {shown[ordered[0]]!r}, at least 2 are needed: "
            "choose another column"
        )
    # People whose records differ have several records, so they would be more exposed for that reason alone.
    parts = [_part(shown[code], codes == code, members)._replace(tested=code != VARIES) for code in ordered]
    small = [part for part in parts if part.small and part.tested]
    if len(small) < 2:
        return parts
    units = np.logical_or.reduce([part.units for part in small])
    name = _unused(f"other ({len(small)} values)", names)
    merged = _part(name, units, members, tuple(part.name for part in small))
    return [*(part for part in parts if not (part.small and part.tested)), merged]


def _part(name: str, units: BoolArray, members: BoolArray, merged: tuple[str, ...] = ()) -> _Part:
    n_members = int(np.count_nonzero(units & members))
    return _Part(name, units, merged, min(n_members, int(np.count_nonzero(units)) - n_members) < MIN_UNITS)


def _unused(name: str, names: Sequence[str]) -> str:
    """Return a name that no value of the column has."""
    while name in names:
        name = f"({name})"
    return name


def _require_few(what: str, n_values: int, numbers: bool) -> None:
    if n_values > MAX_VALUES:
        remedy = "cut it into ranges" if numbers else "merge values, or choose another column"
        raise PlmiaError(
            f"{what} has {n_values:,} {'different numbers' if numbers else 'values'}, at most {MAX_VALUES} subgroups "
            f"can be compared: {remedy}"
        )


def _numbered(column: Column) -> tuple[IntArray, tuple[str, ...]]:
    """Codes and names of numbers and booleans."""
    missing = column.missing
    given: Array = column.values if column.integers is None else column.integers
    found, present = np.unique(given[~missing], return_inverse=True)
    codes = np.full(len(missing), MISSING, np.intp)
    codes[~missing] = present
    if column.kind == "boolean":
        return codes, tuple(str(bool(value)) for value in found)
    return codes, tuple(_number_text(value) for value in found.tolist())


def _number_text(value: float) -> str:
    """Write a number as short as it reads back; whole ones without a point."""
    return str(int(value)) if math.isfinite(value) and value == int(value) else repr(value)


def _checked_codes(by: str, codes: Labels, names: Sequence[str], n: int) -> IntArray:
    array = np.asarray(codes)
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise PlmiaError(
            f"codes of column {by!r} are {array.dtype} of shape {array.shape}, there are {n:,} units: give one integer "
            "per unit"
        )
    checked: IntArray = array.astype(np.intp)
    bad = checked[(checked < min(_SHOWN_CODES)) | (checked >= len(names))]
    if bad.size:
        raise PlmiaError(f"column {by!r} has code {bad[0]}, there are {len(names)} names: give one name per code")
    return checked


def _checked_correct(correct: npt.ArrayLike | None, n: int) -> FloatArray | None:
    if correct is None:
        return None
    shares = np.asarray(correct, dtype=np.float64)
    if shares.shape != (n,) or not ((shares >= 0) & (shares <= 1)).all():
        raise PlmiaError(f"correct has shape {shares.shape}: give one share from 0 to 1 for each of the {n:,} units")
    return shares


# The test ------------------------------------------------------------------------------------------------------------


def _p_values(parts: Sequence[_Part], curves: Sequence[Roc], called: BoolArray, members: BoolArray) -> FloatArray:
    """Adjusted p-values [parts] of the test of the module, for one table."""
    if len(parts) < 2:
        return np.ones(len(parts))
    n_in = np.array([roc.n_members for roc in curves])
    n_out = np.array([roc.n_non_members for roc in curves])
    true = np.array([np.count_nonzero(part.units & called & members) for part in parts])
    false = np.array([np.count_nonzero(part.units & called & ~members) for part in parts])
    # Weights of Mantel and Haenszel: nearly the precision of each subgroup, and not dependent on scores.
    weights = n_in * n_out / (n_in + n_out)
    p_advantage = _excess_p_values(_advantages(true, n_in, false, n_out), weights)
    p_auc = _excess_p_values(_aucs(curves), weights)
    return holm(np.minimum(1.0, 2 * np.minimum(p_advantage, p_auc)))


class _Measured(NamedTuple):
    """A quantity of each subgroup [S], and the distances to its limits at the error probabilities `_TAILS` [S, T]."""

    value: FloatArray
    below: FloatArray
    above: FloatArray


def _advantages(true: IntArray, n_in: IntArray, false: IntArray, n_out: IntArray) -> _Measured:
    """TPR - FPR from counts of members and non-members at or above the threshold."""
    counts, trials = np.stack([true, false]), np.stack([n_in, n_out])
    limits = [clopper_pearson(counts, trials, 1 - 2 * tail) for tail in _TAILS.tolist()]
    low, high = (np.stack(ends, axis=-1) for ends in zip(*limits, strict=True))
    tpr, fpr = rates = counts / trials
    below, above = rates[..., None] - low, high - rates[..., None]
    return _Measured(tpr - fpr, np.hypot(below[0], above[1]), np.hypot(above[0], below[1]))


def _aucs(curves: Sequence[Roc]) -> _Measured:
    auc = np.array([roc.auc for roc in curves])
    low, high = (np.stack(ends) for ends in zip(*(auc_limits(roc, _TAILS) for roc in curves), strict=True))
    return _Measured(auc, auc[:, None] - low, high - auc[:, None])


def _excess_p_values(measured: _Measured, weights: FloatArray) -> FloatArray:
    """p-values [S] of "not above the weighted mean of the other subgroups", not adjusted; 1 if near or below it."""
    p_values = np.ones(len(weights))
    for s in range(len(weights)):
        others = np.arange(len(weights)) != s
        share = weights[others] / weights[others].sum()
        excess = measured.value[s] - share @ measured.value[others]
        reach = np.sqrt(measured.below[s] ** 2 + share**2 @ measured.above[others] ** 2)
        if excess > reach[0]:
            p_values[s] = ndtr(-np.interp(excess, reach, _QUANTILES))
    return p_values
