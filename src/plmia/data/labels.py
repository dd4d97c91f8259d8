"""Labels and groups of any type, encoded as whole numbers, with their original names."""

from __future__ import annotations

from typing import Any

import numpy as np

from plmia.data.arrays import Array, IntArray
from plmia.data.tables import Column, is_frame, is_series
from plmia.errors import DataError, Note, percent, some

# Whole numbers given as floats are classes if there are at most this many; other floats are values to predict.
MAX_FLOAT_CLASSES = 20
# From this share of records without a group on, copies of one person may be on both sides of a split.
MANY_WITHOUT_GROUP = 0.05

Names = tuple[str, ...]


def encode_labels(
    values: Any, n_records: int, predicted: bool = False, *, what: str = "y"
) -> tuple[Array, Names | None]:
    """Encode labels: int64 classes 0 to C - 1 with the names of the classes, or float64 values without names.

    Integers, text, booleans, categories, and floats that are few whole numbers are classes, in sorted order. Their
    names are None where the labels were 0 to C - 1 already. All other floats are values to predict; so are all numbers
    if ``predicted``, and integers then stay integers. Errors say ``what`` the labels are.
    """
    column = _column(what, values, n_records)
    if column.missing.any():
        raise DataError(
            f"{what} is missing in {column.missing.sum():,} of {n_records:,} records (first in record "
            f"{int(column.missing.argmax())}): remove these records, or give them a label"
        )
    if column.kind == "date":
        raise DataError(f"{what} holds dates: give classes, or numbers such as days since a date")
    labels, levels = (None, ()) if predicted and column.kind == "number" else _classes(column)
    if labels is None:
        exact = predicted and column.integers is not None and column.integers.dtype == np.int64
        return _checked_values(what, column.integers if exact and column.integers is not None else column.values), None
    _require_classes(what, labels, levels, column.kind == "number")
    plain = column.kind == "number" and list(levels) == [str(c) for c in range(len(levels))]
    return labels, None if plain else levels


def _classes(column: Column) -> tuple[IntArray | None, Names]:
    """Classes and their names; None for values to predict."""
    if column.kind == "category":
        return np.asarray(column.values, np.int64), column.levels
    if column.kind == "boolean":
        found, labels = np.unique(column.values == 1, return_inverse=True)
        return labels.astype(np.int64), tuple(str(bool(value)) for value in found)
    given: Array = column.values if column.integers is None else column.integers
    found, labels = np.unique(given, return_inverse=True)
    if column.integers is None:
        whole = np.isfinite(found).all() and (found == np.rint(found)).all()
        if not whole or len(found) > MAX_FLOAT_CLASSES:
            return None, ()
    return labels.astype(np.int64), tuple(str(int(value)) for value in found)


def _require_classes(what: str, labels: IntArray, levels: Names, numbers: bool) -> None:
    if len(levels) < 2:
        raise DataError(f"{what} holds only {levels[0]!r}, at least 2 classes are needed: add records of another class")
    counts = np.bincount(labels, minlength=len(levels))
    if counts.min() < 2:
        single = np.flatnonzero(counts < 2)
        named = f"class {levels[single[0]]!r}" + (
            f" (and {len(single) - 1:,} other classes)" if len(single) > 1 else ""
        )
        values = "; give floats if these are values to predict, not classes" if numbers else ""
        if len(single) == len(levels) > 2:
            raise DataError(f"every value of {what} occurs once, so it is not a label: choose another column{values}")
        raise DataError(
            f"{named} of {what} has 1 record, at least 2 are needed to train with and without it: add records, or "
            f"leave the class out{values}"
        )


def _checked_values(what: str, values: Array) -> Array:
    if not np.isfinite(values).all():
        record = int(np.argmin(np.isfinite(values)))
        raise DataError(f"{what} holds {values[record]} at record {record}: every value must be finite")
    if len(values) < 2 or np.ptp(values) == 0:
        raise DataError(f"{what} holds only {values[0]}, at least 2 different values are needed: check it")
    return values


def encode_groups(values: Any, n_records: int, *, what: str = "groups") -> tuple[IntArray, Names | None, list[Note]]:
    """Encode groups as int64 [records], with their names unless they are integers; each missing one is its own group.

    Integers stay as they are. Text, booleans, dates, integers of more than 64 bits, and anything with missing values
    are numbered in sorted order.
    """
    column = _column(what, values, n_records)
    groups, names = _numbered(what, column)
    notes = _missing_groups(column)
    if (groups == groups[0]).all():
        name = groups[0] if names is None else repr(names[groups[0]])
        raise DataError(f"all records belong to group {name}, at least 2 are needed: give more groups, or none")
    return groups, names, notes


def _numbered(what: str, column: Column) -> tuple[IntArray, Names | None]:
    exact = column.integers
    if exact is not None and exact.dtype == np.int64:
        return exact, None
    missing = column.missing
    if column.levels:  # exact texts of categories and of huge integers
        codes, levels = column.keys[0], list(column.levels)
    else:
        given = column.values if exact is None else exact
        if column.kind == "number" and exact is None:
            _require_whole(what, given, missing)
        found, present = np.unique(given[~missing], return_inverse=True)
        levels = [str(bool(v)) if column.kind == "boolean" else str(int(v)) for v in found]
        codes = np.zeros(len(missing), np.int64)
        codes[~missing] = present
    groups = codes.copy()
    groups[missing] = len(levels) + np.arange(missing.sum())
    return groups, (*levels, *(f"record {record} (no group)" for record in np.flatnonzero(missing)))


def _require_whole(what: str, values: Array, missing: Array) -> None:
    odd = np.flatnonzero(~missing & ~(np.isfinite(values) & (values == np.rint(values))))
    if len(odd):
        raise DataError(
            f"{what} holds {values[odd[0]]} at record {some(odd)}: whole numbers or names are needed, one per record"
        )


def _missing_groups(column: Column) -> list[Note]:
    n, share = int(column.missing.sum()), float(column.missing.mean())
    if not n:
        return []
    text = (
        f"{n:,} of {len(column.values):,} records ({percent(share)}) have no group; each of them is its own group. "
        "Records of one person without a group may be on both sides of a split."
    )
    return [Note("missing-groups", "caution" if share > MANY_WITHOUT_GROUP else "info", text)]


def _column(name: str, values: Any, n_records: int) -> Column:
    """One value per record, of any library or type."""
    if is_frame(values):
        import narwhals as nw

        frame = nw.from_native(values, eager_only=True)
        if frame.shape[1] != 1:
            raise DataError(f"{name} has {frame.shape[1]} columns, one is needed: choose one")
        values = frame[:, 0]
    shape = (len(values),) if is_series(values) else np.shape(values)
    if len(shape) != 1:
        raise DataError(
            f"{name} has shape {shape}: one value per record, [records], is needed (numpy.ravel flattens it)"
        )
    if shape[0] != n_records:
        raise DataError(
            f"X has {n_records} records, {name} has {shape[0]}: both need the same records in the same order"
        )
    return Column.read(name, name, values)
