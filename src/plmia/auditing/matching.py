"""Rows of files beside the data, in the order of the data's records.

Rows are matched by their order, or by a column of ids that both have. A column of row names, as R and pandas write one,
is not taken for numbers; row numbers in another order are refused, since the rows would be too.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from plmia.data.arrays import BoolArray, IntArray
from plmia.data.tables import Column, is_frame, require_names
from plmia.errors import DataError, did_you_mean, some

# Names of a column of row names: none (R's write.csv), or what readers make of that.
_ROW_NAMES = ("", "unnamed: 0", "rownames", "row.names", "index", "__index_level_0__")


@dataclass(frozen=True)
class RecordIds:
    """Ids of the data's records, by which rows of other files are matched."""

    column: str  # its name, in the data and in the files
    ids: tuple[str, ...]  # one per record

    @classmethod
    def of(cls, name: str, values: Any) -> RecordIds:
        """Read a column of the data; every record needs an id of its own."""
        column = Column.read(f"column {name!r} of the data", name, values)
        ids = _texts(column)
        _require_distinct(ids, f"column {name!r} of the data")
        return cls(name, ids)

    def order(self, theirs: Column, source: str) -> IntArray:
        """Row of each of the data's records in another file, which may have more rows."""
        ids = _texts(theirs)
        _require_distinct(ids, f"column {self.column!r} of {source}")
        row_of = {own: row for row, own in enumerate(ids)}
        missing = [record for record, own in enumerate(self.ids) if own not in row_of]
        if missing:
            raise DataError(
                f"{source} has no row for {len(missing):,} of the {len(self.ids):,} records (first for "
                f"{self.column} {self.ids[missing[0]]!r}): add them, or leave these records out of the data"
            )
        return np.array([row_of[own] for own in self.ids])

    def among(self, listed: Sequence[str], source: str) -> BoolArray:
        """Records [records] whose ids are listed in a file, whose first line may be the column's name."""
        known = set(self.ids)
        heading = listed[0] not in known and listed[0].strip().casefold() == self.column.strip().casefold()
        unknown = [own for own in listed[heading:] if own not in known]
        if unknown:
            raise DataError(
                f"{source} lists {unknown[0]!r}, which column {self.column!r} of the data lacks: correct or remove it"
            )
        wanted = set(listed)
        return np.array([own in wanted for own in self.ids])


def _texts(column: Column) -> tuple[str, ...]:
    """Values of a column as text; whole numbers without a fraction, however they are stored."""
    if column.levels:
        return tuple(np.array([*column.levels, ""], object)[column.keys[0]].tolist())
    values = column.values if column.integers is None else column.integers
    return tuple(str(int(value)) if value == np.rint(value) else repr(float(value)) for value in values.tolist())


def _require_distinct(ids: Sequence[str], what: str) -> None:
    if len(set(ids)) < len(ids):
        double = next(own for own, count in Counter(ids).items() if count > 1)
        rows = [row for row, own in enumerate(ids) if own == double]
        raise DataError(f"{what} has {double!r} in rows {some(rows)}: to match records, each needs an id of its own")


def take_columns(X: Any, names: Sequence[Any], others: Sequence[Any] = ()) -> tuple[Any, dict[str, Any]]:
    """Take those columns out of a data frame that are named; X without them, and the columns by name.

    A column that is also among the ``others``, labels and groups, is refused.
    """
    if not is_frame(X):
        return X, {}
    import narwhals as nw

    require_names(nw.to_native(X, pass_through=True))
    frame = nw.from_native(X, eager_only=True)
    taken = [name for name in names if isinstance(name, str) and name in frame.columns]
    for name in taken:
        if any(isinstance(other, str) and other == name for other in others):
            raise DataError(
                f"column {name!r} is named as the labels or groups and as the members or ids: give a column for each"
            )
    return (frame.drop(taken).to_native() if taken else X), {name: frame[name] for name in taken}


def columns_in_order(
    frame: Any, source: str, ids: RecordIds | None, known: Mapping[str, Any] = MappingProxyType({})
) -> list[Column]:
    """Columns of a table beside the data, with rows in the order of the data's records and without ids or row names.

    Without ids, a table whose rows are in another order by a column of the data (``known``) is refused.
    """
    import narwhals as nw

    names = [str(name) for name in getattr(frame, "column_names", frame.columns)]
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{source} has two columns named {double!r}: rename or drop one of them")
    table = nw.from_native(frame, eager_only=True)
    if ids is not None:
        if ids.column not in table.columns:
            hint = did_you_mean(ids.column, table.columns)
            raise DataError(f"{source} has no column {ids.column!r} to match its rows with the records: {hint}")
        theirs = Column.read(f"column {ids.column!r} of {source}", ids.column, table[ids.column])
        table = table[ids.order(theirs, source)].drop(ids.column)
    named = zip(map(str, table.columns), table.iter_columns(), strict=True)
    columns = [Column.read(f"column {name!r} of {source}", name, values) for name, values in named]
    if ids is not None or len(columns) < 2:
        return columns
    _require_same_order(columns, source, known)
    return _without_row_names(columns, source)


def _require_same_order(columns: Sequence[Column], source: str, known: Mapping[str, Any]) -> None:
    """Refuse rows in another order than the data's by a column that both have and that has no value twice."""
    for column in columns:
        if column.name not in known or column.name.strip().casefold() in _ROW_NAMES:
            continue
        data = Column.read(f"column {column.name!r} of the data", column.name, known[column.name])
        own, theirs = _texts(data), _texts(column)
        if own != theirs and len(set(own)) == len(own) and len(set(theirs)) == len(theirs) and {*own} <= {*theirs}:
            raise DataError(
                f"the rows of {source} are in another order than the data, by column {column.name!r} of both: match "
                f"them with --id {shlex.quote(column.name)} (id_column in Python)"
            )


def _without_row_names(columns: list[Column], source: str) -> list[Column]:
    """Drop the first column if it has row names or the numbers of the rows."""
    first, numbers = columns[0], columns[0].integers
    n = len(first.values)
    if numbers is not None and n > 1 and int(numbers.min()) in (0, 1):
        if np.array_equal(numbers - numbers.min(), np.arange(n)):
            return columns[1:]
        if np.array_equal(np.sort(numbers) - numbers.min(), np.arange(n)):
            raise DataError(
                f"the rows of {source} are not in the order of their numbers (first column): sort the rows by these "
                "numbers, or match them by a column that the data have, too, with --id (id_column in Python)"
            )
    return columns[1:] if first.name.strip().casefold() in _ROW_NAMES else columns
