"""From what the user gives as data (arrays, data frames, files, columns by name) to the data of an audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from plmia.auditing.matching import take_columns
from plmia.auditing.subgroup_columns import By, column_names, subgroup_columns
from plmia.data.arrays import BoolArray, Labels
from plmia.data.dataset import LabelledData, labelled_table, read_data, require_rows
from plmia.data.designs import count_split_groups
from plmia.data.files import exists, files_in, is_folder, require_no_pipe
from plmia.data.npz import DATA_ARRAYS, unused_arrays
from plmia.data.table_files import TABLE_SUFFIXES, is_table_file, read_frame
from plmia.data.tables import is_frame, names_persons, require_same_order
from plmia.errors import DataError, Note, shown
from plmia.results.further import Column


@dataclass(frozen=True)
class Columns:
    """Columns of a data frame, or of a CSV or Parquet file, that are not features."""

    label: str | None = None
    group: str | None = None
    drop: Sequence[str] = ()
    decimal_comma: bool = False  # whether numbers in a CSV have decimal commas


@dataclass(frozen=True)
class AuditedData:
    """The data of an audit, columns that were taken out of them or dropped, and notes on their file."""

    data: LabelledData
    taken: Mapping[str, Any]
    notes: tuple[Note, ...]
    by: tuple[Column, ...] = ()  # columns by which subgroups are formed


_ALL_ARE_FEATURES = Columns()


def audited_data(
    X: Any,
    y: Any = None,
    groups: Any = None,
    columns: Columns = _ALL_ARE_FEATURES,
    *,
    values: bool = False,
    beside: Sequence[Any] = (),
    names: Mapping[str, Sequence[str] | None] = MappingProxyType({}),
    by: By = None,
) -> AuditedData:
    """Make data of what the user gave.

    Parameters
    ----------
    X, y, groups
        As in `plmia.audit`; y and groups may be names of columns.
    columns : Columns
        Columns by name.
    values : bool
        Whether numbers in y are values to predict; see `LabelledData`.
    beside : sequence
        Further columns to take out of a table: the names among them that it has.
    names : mapping
        Names and texts for the report, as in `LabelledData`; None for none.
    by : str, sequence of str, or mapping
        Columns by which subgroups are formed: names of columns of a table or of arrays of an npz, or values by name.
    """
    labels, same = _one_of("y", y, "label", columns.label), _one_of("groups", groups, "group", columns.group)
    if isinstance(same, str) and same in column_names(by):
        raise DataError(
            f"column {shown(same)!r} is the group, so every subgroup would be one person: name a property of people, "
            "such as their sex"
        )
    require_rows(X)
    source, taken = X, dict[str, Any]()
    notes: tuple[Note, ...] = ()
    if isinstance(X, str | Path) and is_table_file(Path(X)):
        frame, read = read_frame(Path(X), columns.decimal_comma, columns.drop)
        source = frame
        frame, taken = take_columns(frame, beside, (labels, same))
        drop = _others(columns.drop, taken)
        data = labelled_table(Path(X), frame, read, labels, same, drop, values=values)
        taken |= take_columns(frame, drop)[1]
    elif isinstance(X, LabelledData | str | Path):
        if labels is not None or same is not None or columns.drop:
            _refuse_columns(X)
        data = X if isinstance(X, LabelledData) else read_data(Path(X), values=values)
        if isinstance(X, LabelledData):
            source = data.X.native if data.is_table else None
        else:
            notes = tuple(unused_arrays(Path(X), (*DATA_ARRAYS, *column_names(by)), DataError))
    elif is_frame(X):
        for what, own in (("y", labels), ("groups", same), *(("members", other) for other in beside)):
            require_same_order(X, own, what)
        X, taken = take_columns(X, beside, (labels, same))
        drop = _others(columns.drop, taken)
        data = LabelledData.of_table(X, labels, same, drop, values=values)
        taken |= take_columns(X, drop)[1]
    elif isinstance(labels, str) or isinstance(same, str) or columns.drop:
        raise DataError("X is not a table, so it has no named columns: give y and groups as values, or a data frame")
    else:
        data = LabelledData(X, labels, same, values=values)
    given: dict[str, Any] = {name: texts for name, texts in names.items() if texts is not None}
    return AuditedData(
        replace(data, **given) if given else data, taken, notes, subgroup_columns(by, source, data.n_points)
    )


def _refuse_columns(X: LabelledData | str | Path) -> None:
    """Raise, because columns are named of data that are not a table."""
    own = "a data set with its own labels: leave out y, label, groups, group and drop"
    if isinstance(X, LabelledData):
        raise DataError(f"X is {own}")
    if not exists(Path(X)):
        raise DataError(f"there is no {X}: check the path")
    require_no_pipe(Path(X), DataError)
    if is_folder(Path(X)):
        raise DataError(f"{X} is a folder, but named columns need a table: {files_in(Path(X), TABLE_SUFFIXES)}")
    if Path(X).suffix in (".npz", ".npy"):
        raise DataError(f"{X} is not a CSV or Parquet file, but {own}")
    raise DataError(
        f"{X} is not a table by its name: give a CSV or Parquet file (.csv, .tsv, .parquet), or an npz without label, "
        "group and drop"
    )


def _others(drop: Sequence[str], taken: Mapping[str, Any]) -> list[str]:
    """Columns to drop that were not taken out already."""
    return [name for name in ((drop,) if isinstance(drop, str) else drop) if name not in taken]


def _one_of(name: str, value: Any, column: str, chosen: str | None) -> Any:
    """Labels or groups: values or a name (``name``), or a column by its name (``column``)."""
    if value is not None and chosen is not None:
        raise DataError(f"both {name} and {column} are given: give one of them")
    return chosen if value is None else value


def group_column(data: LabelledData, groups: Labels | None, members: BoolArray | None = None) -> Note | None:
    """Note a column of a table that equals the groups [records], or looks like them if there are none.

    ``members`` are those of a given target. If they were drawn record by record, they split some values of such a
    column. If they split none, they were drawn by groups, and records of a group are not independent evidence.
    """
    if not data.is_table:
        return None
    if groups is not None:
        return _groups_as_feature(data, groups)
    found = data.X.person_columns()
    if members is not None:
        found = [column for column in found if not count_split_groups(members, column.keys[0])[0]]
    else:
        found = [column for column in found if names_persons(column)]
    if not found:
        return None
    name, n = shown(found[0].name), len(np.unique(found[0].keys[0]))
    seen = f"Column {name!r} has {n:,} values in {data.n_points:,} records, as an identifier of persons"
    if members is None:
        text = f"{seen}. Give --group {name} (groups=) if records of one person belong together, or --drop {name}"
        return Note("group-column", "info", text)
    text = (
        f"{seen}, and no value has both members and non-members, so the target was split by it. Give --group {name} "
        "(groups=): without it, records count as independent and intervals are too narrow"
    )
    return Note("group-column", "caution", text)


def _groups_as_feature(data: LabelledData, groups: Labels) -> Note | None:
    for column in data.X.columns:
        if column.is_name and column.splits_like(groups):
            name = shown(column.name)
            text = f"Column {name!r} of X equals the groups, so models can memorise them. Leave it out (--drop, drop=)"
            return Note("group-column", "caution", text)
    return None
