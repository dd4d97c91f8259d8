"""Which records a given target trained on, from arrays, files and columns of any form.

One rule tells flags from row numbers: as many values as there are records are flags, one per record; fewer are the
numbers of its training records, counted from 0. A list of all row numbers would leave no non-members to audit. Where
records are matched by ids, a text file with one column lists the ids of the members instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from plmia.auditing.matching import RecordIds, columns_in_order
from plmia.data.arrays import BoolArray
from plmia.data.files import exists, read_regular
from plmia.data.npz import load_array
from plmia.data.table_files import read_frame
from plmia.data.tables import Column
from plmia.errors import DataError, Note

MEMBER_WORDS = frozenset({"1", "true", "t", "yes", "y", "in", "train", "training", "member"})
OTHER_WORDS = frozenset({"0", "false", "f", "no", "n", "out", "test", "testing", "holdout", "non-member", "nonmember"})
_NAMES = ("members", "member", "membership", "train", "split")
_FLAGS = "0 and 1, true and false, yes and no, or train and test"


def read_members(
    members: Any, n_records: int, ids: RecordIds | None, known: Mapping[str, Any] = MappingProxyType({})
) -> tuple[BoolArray, list[Note]]:
    """Members [records] from an array, a series, a list or the path of a file, and notes.

    For ``known`` see `columns_in_order`.
    """
    if not isinstance(members, str | Path):
        return members_of(Column.read("members", "members", members), n_records, "members")
    path, source = Path(members), str(members)
    if not exists(path):
        raise DataError(f"there is no column and no file {source!r} with the target's members: check the name")
    if path.suffix.lower() in (".npz", ".npy"):
        values = load_array(path, _NAMES, "the target's members", DataError)[1]
        return members_of(Column.read(source, source, values), n_records, source)
    lines = _lines(path) if path.suffix.lower() in (".txt", ".csv") else None
    if lines is not None and ids is not None:
        return ids.among(lines, source), []
    if lines is not None:
        return members_of(Column.read(source, source, _without_heading(lines, n_records)), n_records, source)
    columns = columns_in_order(read_frame(path)[0], source, ids, known)
    named = [column for column in columns if column.name.strip().casefold() in _NAMES]
    chosen = named if len(named) == 1 else columns
    if len(chosen) != 1:
        names = ", ".join(repr(column.name) for column in columns[:5])
        raise DataError(f"{path} has the columns {names}: name the one with the target's members 'members'")
    return members_of(chosen[0], n_records, source)


def _lines(path: Path) -> list[str] | None:
    """Values of a text file with one per line; None if lines have several values."""
    try:
        text = read_regular(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}): give text in UTF-8") from error
    lines = [line.strip().strip('"') for line in text.splitlines() if line.strip()]
    return None if not lines or any(separator in line for line in lines for separator in ",;\t") else lines


def _without_heading(lines: list[str], n_records: int) -> list[Any]:
    # A damaged number is not a heading: leaving it out would lose its record without a message.
    is_word = lines[0][0].isalpha() and sum(map(str.isalpha, lines[0])) > 1
    has_heading = is_word and lines[0].casefold() not in MEMBER_WORDS | OTHER_WORDS
    values = lines[1:] if has_heading or len(lines) == n_records + 1 else lines
    return [int(value) for value in values] if all(value.isdecimal() for value in values) else values


def members_of(column: Column, n_records: int, source: str) -> tuple[BoolArray, list[Note]]:
    """Members [records] from one flag per record or from row numbers, and notes; errors name the ``source``."""
    if column.missing.any():
        raise DataError(
            f"{source} has no value in row {int(column.missing.argmax())}: say for every record whether the target "
            "trained on it"
        )
    if len(column.values) == n_records:
        return _from_flags(column, source), []
    return _from_row_numbers(column, n_records, source)


def _from_flags(column: Column, source: str) -> BoolArray:
    if column.kind == "category":
        words = [level.strip().casefold() for level in column.levels]
    else:
        found, codes = np.unique(column.values, return_inverse=True)
        words = [f"{value:g}" for value in found]
        column = Column(column.name, "category", codes, tuple(words), ())
    unknown = [
        level for level, word in zip(column.levels, words, strict=True) if word not in MEMBER_WORDS | OTHER_WORDS
    ]
    if unknown:
        row = int(np.argmax(column.values == column.levels.index(unknown[0])))
        raise DataError(
            f"{source} has one value per record, which must be flags ({_FLAGS}), but row {row} holds {unknown[0]!r}: "
            "correct it, or leave out the records that are neither"
        )
    if len({word in ("0", "1") for word in words}) > 1:
        raise DataError(
            f"{source} has both numbers and words as flags ({', '.join(map(repr, column.levels))}): use one kind "
            f"({_FLAGS}). Perhaps a record is missing and the heading was taken for a flag"
        )
    return np.array([word in MEMBER_WORDS for word in words], np.bool_)[column.values]


def _from_row_numbers(column: Column, n_records: int, source: str) -> tuple[BoolArray, list[Note]]:
    n, rows = len(column.values), column.integers
    if rows is None and column.kind == "number" and (column.values == np.rint(column.values)).all():
        rows = column.values.astype(np.int64)
    if rows is None or not n or n > n_records or len(np.unique(rows)) < n:
        raise DataError(
            f"{source} has {n:,} values, but the data have {n_records:,} records: give one flag per record ({_FLAGS}), "
            "or the row numbers of the members, counted from 0, each once"
        )
    if rows.min() < 0 or rows.max() >= n_records:
        from_one = rows.min() >= 1 and rows.max() == n_records
        raise DataError(
            f"{source} holds the row number {rows.max() if rows.max() >= n_records else rows.min()}, but rows are "
            f"counted from 0 to {n_records - 1}: {'subtract 1 from all of them' if from_one else 'correct it'}"
        )
    members = np.zeros(n_records, np.bool_)
    members[rows] = True
    text = (
        f"Row numbers in {source} are counted from 0, and 0 is not among them. Subtract 1 if they were counted from 1"
    )
    return members, [] if members[0] else [Note("members-counted", "info", text)]
