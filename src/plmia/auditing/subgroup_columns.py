"""Columns by which subgroups are formed: from a data frame, a table, an npz file, or values by name."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plmia.data.npz import load_npz
from plmia.errors import DataError, did_you_mean, shown
from plmia.results.further import Column, columns_from

By = str | Sequence[str] | Mapping[str, Any] | None
"""Columns by which subgroups are formed: names, or values by name."""


def subgroup_columns(by: By, source: Any, n_records: int) -> tuple[Column, ...]:
    """Read the columns by which subgroups are formed, from a data frame or an npz file unless values are given."""
    if by is None or isinstance(by, Mapping):
        return columns_from(by or {}, n_records)
    names = column_names(by)
    if repeated := [name for i, name in enumerate(names) if name in names[:i]]:
        raise DataError(f"column {shown(repeated[0])!r} is given twice to form subgroups: name each column once")
    return columns_from({name: _column(name, source) for name in names}, n_records)


def column_names(by: By) -> list[str]:
    """Return the columns that are given by name only."""
    if by is None or isinstance(by, Mapping):
        return []
    names = [by] if isinstance(by, str) else list(by) if isinstance(by, Sequence) else [by]
    for name in names:
        if not isinstance(name, str):
            raise DataError(f"{name!r} is not the name of a column to form subgroups by: give text, or values by name")
    return names


def _column(name: str, source: Any) -> Any:
    """Return the values of a column of a data frame or a table, or of an array of an npz file."""
    from plmia.data.table_files import is_table_file, read_frame
    from plmia.data.tables import is_frame

    if isinstance(source, str | Path) and is_table_file(Path(source)):
        source = read_frame(Path(source))[0]
    if is_frame(source):
        import narwhals as nw

        frame = nw.from_native(source, eager_only=True)
        if name not in frame.columns:
            hint = did_you_mean(name, frame.columns, "check its name")
            raise DataError(f"the data have no column {shown(name)!r} to form subgroups by: {hint}")
        return frame[name]
    if isinstance(source, str | Path) and zipfile.is_zipfile(source):
        found = load_npz(Path(source), [name], f"`{name}`", DataError)
        if name not in found:
            raise DataError(f"{source} has no array {shown(name)!r} to form subgroups by: add it, one value per record")
        return found[name]
    raise DataError(
        f"there is no table with a column {shown(name)!r} to form subgroups by: give a file with one row per record "
        "(--data, data=), or in Python values by name (by={...})"
    )
