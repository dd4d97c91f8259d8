"""Long tables of signals: a CSV or Parquet file with one row per model, record and view, read in pieces.

The file is read twice: first to learn the names of models, records and views, then to fill the arrays. So the memory
is 4 bytes per row and the names, whatever the order of the rows. Every combination of model, record and view must occur
exactly once. Names that are all numbers are sorted by value; otherwise the order is that of the first appearance.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmia.data.arrays import BoolArray, FloatArray, FloatArray32, IntArray
from plmia.data.files import require_regular
from plmia.errors import SignalsError, did_you_mean, install_hint, shown

if TYPE_CHECKING:
    import pyarrow as pa

# Bytes of a CSV, and rows of a Parquet file, that are read at a time.
_BLOCK_BYTES, _BATCH_ROWS = 1 << 25, 1 << 20
_PARQUET_MAGIC = b"PAR1"
_DELIMITERS = ",;\t|"
_HEADER_BYTES = 1 << 16
# Up to so many combinations of records and views, one that is missing is named in any case.
_MAX_NAMED = 1 << 22
_MAX_SHOWN = 8
# Words for membership, in lower case.
_WORDS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a long table; ``view`` may be absent from the table."""

    model: str = "model"
    record: str = "record"
    view: str = "view"
    member: str = "member"
    signal: str = "signal"


@dataclass(frozen=True, eq=False)
class TableContents:
    """Contents of a long table."""

    signals: FloatArray32  # [models, records, views]
    members: BoolArray  # [models, records]
    models: tuple[str, ...]  # names, in the order of the rows of ``signals``
    records: tuple[str, ...]
    views: tuple[str, ...]


def read_long_table(path: Path, columns: Columns) -> TableContents:
    """Read a long table from a CSV or Parquet file; raises `SignalsError` if a combination is missing or repeated."""
    with _named_errors(path):
        require_regular(path)
        source = _Source.open(path, columns)
        n_rows, names = _names(source)
        if not n_rows:
            raise SignalsError(f"{path} has no rows: write one per model, record and view")
        if n_rows != names.size:
            raise SignalsError(_miscounted(source, names, n_rows))
        return _fill(source, names)


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Turn the errors of pyarrow into one sentence with the name of the file."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise SignalsError(f"{path} cannot be read without pyarrow: {install_hint('tables')}") from error
    try:
        yield
    except FileNotFoundError as error:
        raise SignalsError(f"there is no file {path}: give a CSV or Parquet file") from error
    except OSError as error:
        reason = " ".join(str(error.strerror or error).split())
        raise SignalsError(f"{path} cannot be read ({shown(reason)}): check its name, or write it again") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = shown(" ".join(str(error).split()))
        raise SignalsError(f"{path} cannot be read ({reason}): correct it, or write it again") from error


# Reading in pieces ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """A file that can be read several times."""

    path: Path
    columns: Columns
    delimiter: str | None  # of a CSV; None for Parquet
    has_views: bool

    @classmethod
    def open(cls, path: Path, columns: Columns) -> _Source:
        """Look at the header; the columns must be there."""
        with path.open("rb") as file:
            parquet = file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
        delimiter, found = None, []
        if parquet:
            import pyarrow.parquet as pq

            found = list(pq.read_schema(path).names)
        else:
            delimiter, found = _csv_header(path, columns)
        for role in fields(columns):
            name = getattr(columns, role.name)
            if name not in found and role.name != "view":
                hint = did_you_mean(name, found, "it has " + ", ".join(map(repr, found[:_MAX_SHOWN])))
                raise SignalsError(
                    f"{path} has no column {shown(name)!r} ({shown(hint)}): rename the column of the {role.name}s, or "
                    f"give its name (Columns({role.name}=NAME), --column {role.name}=NAME)"
                )
            if found.count(name) > 1:
                raise SignalsError(f"{path} has {found.count(name)} columns {name!r}: rename all but one")
        return cls(path, columns, delimiter, columns.view in found)

    @property
    def ids(self) -> list[str]:
        """Columns that name the combination of a row."""
        views = [self.columns.view] if self.has_views else []
        return [self.columns.model, self.columns.record, *views]

    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Read some columns, piece by piece."""
        if self.delimiter is None:
            import pyarrow.parquet as pq

            with pq.ParquetFile(self.path) as file:
                yield from file.iter_batches(_BATCH_ROWS, columns=names)
            return
        import pyarrow as pa
        from pyarrow import csv

        # Types are stated, since the reader would guess them from the first piece.
        text = pa.dictionary(pa.int32(), pa.string())
        types = {name: pa.float64() if name == self.columns.signal else text for name in names}
        convert = csv.ConvertOptions(column_types=types, include_columns=names)
        parse = csv.ParseOptions(delimiter=self.delimiter)
        with csv.open_csv(self.path, csv.ReadOptions(block_size=_BLOCK_BYTES), parse, convert) as reader:
            yield from reader


def _csv_header(path: Path, columns: Columns) -> tuple[str, list[str]]:
    """Delimiter and column names of a CSV: the delimiter that finds most of the columns."""
    import pyarrow as pa

    with pa.input_stream(str(path)) as file:
        start = file.read(_HEADER_BYTES)
    if b"\0" in start:
        raise SignalsError(
            f"{path} is neither a CSV nor a Parquet file: give one with a row per model, record and view"
        )
    line = start.decode("utf-8-sig", errors="replace").splitlines()[:1] or [""]
    wanted = {getattr(columns, role.name) for role in fields(columns)}
    headers = {delimiter: [name.strip('"') for name in line[0].split(delimiter)] for delimiter in _DELIMITERS}
    best = max(headers, key=lambda delimiter: (len(wanted & set(headers[delimiter])), len(headers[delimiter])))
    return best, headers[best]


def _encoded(column: Any) -> tuple[IntArray, pa.StringArray]:
    """Code of each row, -1 where it is empty, and the name of each code."""
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    names = coded.dictionary.cast(pa.string())
    empty = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(names), ""), True).to_numpy(zero_copy_only=False)
    if empty.any():
        codes = np.where(np.append(empty, False)[codes], -1, codes)
    return codes, names


# Names ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Names:
    """Names of models, records and views, in order; one view without a name if the table has no views."""

    models: pa.StringArray
    records: pa.StringArray
    views: pa.StringArray

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.models), len(self.records), len(self.views)

    @property
    def size(self) -> int:
        """Number of combinations."""
        n_models, n_records, n_views = self.shape
        return n_models * n_records * n_views

    def places(self, source: _Source, batch: pa.RecordBatch) -> tuple[IntArray, IntArray]:
        """Model of each row of a batch, and its place among the records and views of the model."""
        codes = [
            _codes(batch.column(name), known)
            for name, known in zip(source.ids, (self.models, self.records, self.views), strict=False)
        ]
        return codes[0], codes[1] if len(codes) == 2 else codes[1] * len(self.views) + codes[2]

    def describe(self, model: int, place: int) -> str:
        """Name one combination."""
        record, view = divmod(place, len(self.views))
        views = f", view {self.views[view].as_py()!r}" if len(self.views) > 1 else ""
        return f"model {self.models[model].as_py()!r}, record {self.records[record].as_py()!r}{views}"


def _codes(column: Any, known: pa.StringArray) -> IntArray:
    import pyarrow.compute as pc

    codes, names = _encoded(column)
    places: IntArray = pc.index_in(names, value_set=known).fill_null(-1).to_numpy(zero_copy_only=False)
    return places.astype(np.int64)[codes]


def _names(source: _Source) -> tuple[int, _Names]:
    """Count the rows and collect the names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = {name: pa.array([], pa.string()) for name in source.ids}
    n_rows = 0
    for batch in source.batches(source.ids):
        for name in known:
            codes, names = _encoded(batch.column(name))
            if (codes < 0).any():
                raise SignalsError(
                    f"{source.path} has no {name!r} in row {n_rows + int(np.argmin(codes)) + 1} below the header: "
                    "every row needs one"
                )
            known[name] = pc.unique(pa.concat_arrays([known[name], names]))
        n_rows += batch.num_rows
    ordered = [_in_order(names) for names in known.values()]
    views = ordered[2] if source.has_views else pa.array([""], pa.string())
    return n_rows, _Names(ordered[0], ordered[1], views)


def _in_order(names: pa.StringArray) -> pa.StringArray:
    """Sort names that are all numbers by value; others stay in the order of their first appearance."""
    import pyarrow as pa

    for kind in (pa.int64(), pa.float64()):
        try:
            numbers = names.cast(kind)
        except pa.ArrowInvalid:
            continue
        return names.take(pa.array(np.argsort(numbers.to_numpy(), kind="stable")))
    return names


# Values --------------------------------------------------------------------------------------------------------------


def _fill(source: _Source, names: _Names) -> TableContents:
    """Fill the arrays; the number of rows is right."""
    n_models, n_records, n_views = names.shape
    signals = np.empty((n_models, n_records * n_views), np.float32)
    seen = np.zeros(signals.shape, np.bool_)
    inside, outside = (np.zeros((n_models, n_records), np.bool_) for _ in range(2))
    for batch in source.batches([*source.ids, source.columns.member, source.columns.signal]):
        models, places = names.places(source, batch)
        values, members = _signals(source, batch), _members(source, batch)
        _require_finite(source, names, models, places, values)
        signals[models, places] = values
        seen[models, places] = True
        records = places // n_views
        inside[models[members], records[members]] = True
        outside[models[~members], records[~members]] = True
    if not seen.all():  # another one is repeated
        raise SignalsError(_misfit(source, names, int(np.argmin(seen.all(axis=1)))))
    if (inside & outside).any():
        model, record = np.argwhere(inside & outside)[0]
        raise SignalsError(
            f"{source.path} calls {names.describe(model, record * n_views)} a member in some rows and not in others: "
            f"correct {source.columns.member!r}, which must be the same for all views"
        )
    texts = (tuple(part.to_pylist()) for part in (names.models, names.records, names.views))
    return TableContents(signals.reshape(names.shape), inside, *texts)


def _signals(source: _Source, batch: pa.RecordBatch) -> FloatArray:
    import pyarrow as pa

    column = batch.column(source.columns.signal)
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise SignalsError(f"{source.path} has {source.columns.signal!r} of type {column.type}: numbers are needed")
    found: FloatArray = column.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
    return found


def _members(source: _Source, batch: pa.RecordBatch) -> BoolArray:
    codes, names = _encoded(batch.column(source.columns.member))
    words = [str(name).strip().lower() for name in names.to_pylist()]
    if (codes < 0).any() or not set(words) <= set(_WORDS):
        bad = next((word for word in words if word not in _WORDS), "")
        raise SignalsError(
            f"{source.path} has {bad!r} in column {source.columns.member!r}: write true or false, or 1 or 0, in every "
            "row"
        )
    return np.array([_WORDS[word] for word in words], np.bool_)[codes]


def _require_finite(source: _Source, names: _Names, models: IntArray, places: IntArray, values: FloatArray) -> None:
    good = np.isfinite(values) & (np.abs(values) <= np.finfo(np.float32).max)
    if not good.all():
        row = int(np.argmin(good))
        raise SignalsError(
            f"{source.path} has the signal {values[row]} for {names.describe(models[row], places[row])}: every signal "
            "must be a finite number; query that model again, or leave it out"
        )


def _miscounted(source: _Source, names: _Names, n_rows: int) -> str:
    """Name a combination that is repeated or missing, of the model whose number of rows is most wrong."""
    n_models, n_records, n_views = names.shape
    sizes = f"{n_models:,} models, {n_records:,} records and {n_views:,} views"
    if n_records * n_views > max(n_rows, _MAX_NAMED):
        return f"{source.path} has {n_rows:,} rows for {sizes}: one row is needed for each combination"
    counts = np.zeros(n_models, np.int64)
    for batch in source.batches(source.ids):
        counts += np.bincount(names.places(source, batch)[0], minlength=n_models)
    return _misfit(source, names, int(np.argmax(np.abs(counts - n_records * n_views))))


def _misfit(source: _Source, names: _Names, model: int) -> str:
    """Name a combination of this model that is repeated or missing."""
    rows = np.zeros(names.shape[1] * names.shape[2], np.int64)
    for batch in source.batches(source.ids):
        models, places = names.places(source, batch)
        rows += np.bincount(places[models == model], minlength=len(rows))
    if rows.max() > 1:
        which = names.describe(model, int(np.argmax(rows)))
        return f"{source.path} has {rows.max()} rows for {which}: leave one row per model, record and view"
    missing = int((rows == 0).sum())
    more = f" and {missing - 1:,} other combinations of this model" if missing > 1 else ""
    which = names.describe(model, int(np.argmin(rows)))
    return f"{source.path} has no row for {which}{more}: add it, or leave the model or the record out"
