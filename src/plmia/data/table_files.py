"""CSV and Parquet files as data frames of pandas.

A CSV is read strictly: every row has as many values as the header, and the text is UTF-8. All values are read as text
first, then each column gets the one type that fits all its values, in this order:

- integers, unless a value has leading zeros or more than 18 digits (such a column holds identifiers and stays text);
- floats; booleans ("true", "False"); dates as in ISO 8601 ("2024-05-01", "2024-05-01 12:30");
- text.

Spaces around values are ignored. Values in `MISSING` are missing. What was not obvious is reported in a note.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from plmia.data.files import files_in, is_folder, read_regular, require_no_pipe, require_regular
from plmia.errors import DataError, Note, install_hint, shown

# Texts that stand for a missing value. "None" is not one of them: many tables use it for a category.
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "NULL", "null")
SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}
CSV_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
PARQUET_SUFFIXES = (".parquet", ".pq")
TABLE_SUFFIXES = (*CSV_SUFFIXES, *PARQUET_SUFFIXES)
SPREADSHEET_SUFFIXES = (".xlsx", ".xls", ".xlsm", ".ods")
# A text column in which at least this share of the values are numbers was probably meant to be numeric.
MOSTLY_NUMBERS = 0.5
# Bytes from which the separator is recognised, and bytes that the reader takes at once; a row must fit into them.
_HEAD, _BLOCK = 1 << 16, 1 << 24

_INTEGER = r"^[+-]?(0|[1-9][0-9]{0,17})$"
_IDENTIFIER = r"^[+-]?(0[0-9]+|[0-9]{19,})$"
# With infinity, which models refuse: as text, it would turn a column of numbers into categories.
_FLOAT = r"^[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|(?i:inf|infinity))$"
_COMMA_FLOAT = r"^[+-]?[0-9]*,[0-9]+$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?$"


def is_table_file(path: Path) -> bool:
    """Whether a file is a table, by its name: a CSV or Parquet file, or a spreadsheet, which `read_frame` refuses."""
    return path.name.lower().endswith((*CSV_SUFFIXES, *PARQUET_SUFFIXES, *SPREADSHEET_SUFFIXES))


def read_frame(path: Path, decimal_comma: bool = False, drop: Sequence[str] = ()) -> tuple[Any, list[Note]]:
    """Read a CSV or Parquet file as a pandas data frame, with notes on how it was read; none on columns to ``drop``."""
    if path.name.lower().endswith(SPREADSHEET_SUFFIXES):
        raise DataError(f"{path} is a spreadsheet, which plmia does not read: save the sheet as a CSV file in UTF-8")
    require_no_pipe(path, DataError)
    if is_folder(path) and not path.name.lower().endswith(PARQUET_SUFFIXES):
        raise DataError(f"{path} is a folder: {files_in(path, TABLE_SUFFIXES)}")
    with _named_damage(path):
        if path.name.lower().endswith(PARQUET_SUFFIXES):
            return _read_parquet(path), []
        separator, columns = _read_csv(path, decimal_comma)
        frame = _library("pandas").DataFrame({title: column.values for title, column in columns.items()})
    dropped = {drop} if isinstance(drop, str) else set(drop)
    used = {title: column for title, column in columns.items() if title not in dropped}
    return frame, list(_notes(path, separator, used))


def _read_parquet(path: Path) -> Any:
    require_regular(path)
    frame = _library("pandas").read_parquet(path, engine="pyarrow")
    named = [name for name in frame.index.names if name is not None]
    return frame.reset_index(named) if named else frame


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise DataError(
            f"{name.partition('.')[0]} is not installed, but reads CSV and Parquet files: {install_hint('tables')}"
        ) from error


@contextmanager
def _named_damage(path: Path) -> Iterator[None]:
    """Turn any error of reading into a `DataError` that names the file."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}: check its name") from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise DataError(f"{path} cannot be read ({reason}): check the file, or write it again") from error
    except MemoryError as error:
        raise DataError(f"{path} does not fit into memory: drop columns, or use fewer records") from error
    # pyarrow and pandas raise errors of many classes for damaged files.
    except Exception as error:
        text = " ".join(str(error).split())
        remedy = "save it as UTF-8 text" if "UTF8" in text else "correct the file, or write it again"
        raise DataError(f"{path} cannot be read as a table ({shown(text[:200])}): {remedy}") from error


# CSV -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Read:
    """A column as it was read, and what there is to say about it."""

    values: Any  # pandas series
    marks: dict[str, int]  # how often each text that stands for a missing value occurs
    remark: str  # on its type, if that is not obvious


def _read_csv(path: Path, decimal_comma: bool) -> tuple[str, dict[str, _Read]]:
    """Read the columns of a CSV, by name, and its separator."""
    arrow_csv, pyarrow = _library("pyarrow.csv"), _library("pyarrow")
    raw = _contents(path)
    separator = _separator(raw[:_HEAD])
    options = {
        # Without threads, errors name the row.
        "read_options": arrow_csv.ReadOptions(block_size=_BLOCK, use_threads=False),
        "parse_options": arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
    }
    # Arrow's own memory: its threads may release the source while Python exits, which then must not involve Python.
    buffer = pyarrow.allocate_buffer(len(raw))
    pyarrow.FixedSizeBufferWriter(buffer).write(raw)
    with arrow_csv.open_csv(pyarrow.BufferReader(buffer), **options) as reader:
        names = reader.schema.names
    titles = _column_names(path, names)
    texts = arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False)
    table = arrow_csv.read_csv(pyarrow.BufferReader(buffer), convert_options=texts, **options)
    if not table.num_rows:
        raise DataError(f"{path} holds a header and no records: add records")
    last = table.column(table.num_columns - 1)[-1].as_py().rstrip().encode()
    if last and raw.rstrip().endswith(b'"' + last):
        raise DataError(f"{path} ends within quotes ({shown(last[:40].decode(errors='replace'))!r}): close them")
    return separator, {title: _typed(table.column(k), decimal_comma) for k, title in enumerate(titles)}


def _contents(path: Path) -> bytes:
    """Bytes of a text file, unpacked if they are gzipped."""
    raw = read_regular(path)
    raw = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path} is UTF-16 text: save it as UTF-8")
    if b"\0" in raw[:_HEAD]:
        raise DataError(f"{path} holds zero bytes and is not a text file: give a CSV file")
    if not raw.removeprefix(b"\xef\xbb\xbf").strip():
        raise DataError(f"{path} is empty: give a CSV file with a header and records")
    # Arrow does not read a single line without an end: a header, and no records.
    return raw if raw.endswith((b"\n", b"\r")) else raw + b"\n"


def _separator(head: bytes) -> str:
    """Recognise the separator: the one with which most rows have as many values as the header, and most values."""
    text = head.decode("utf-8-sig", errors="replace")
    lines = text.splitlines(keepends=True)
    sample = "".join(lines[:-1] if len(head) == _HEAD else lines)
    best, most = ",", (0.0, 0)
    for separator in SEPARATORS:
        try:
            sizes = [len(row) for row in csv.reader(io.StringIO(sample), delimiter=separator) if row]
        except csv.Error:
            continue
        if sizes and sizes[0] > 1:
            best, most = max((best, most), (separator, (sizes.count(sizes[0]) / len(sizes), sizes[0])), key=_second)
    return best


def _second(pair: tuple[str, tuple[float, int]]) -> tuple[float, int]:
    return pair[1]


def _column_names(path: Path, names: list[str]) -> list[str]:
    """Names of the columns: trimmed, those without a name numbered as pandas does; two equal ones are refused."""
    titles = [name.strip() or f"Unnamed: {k}" for k, name in enumerate(names)]
    doubled = [title for k, title in enumerate(titles) if title in titles[:k]]
    if doubled:
        raise DataError(
            f"{path} has {titles.count(doubled[0])} columns named {shown(doubled[0])!r}: give each its own name"
        )
    return titles


def _typed(column: Any, decimal_comma: bool) -> _Read:
    """Give a column of texts the one type that fits all its values."""
    pyarrow, compute = _library("pyarrow"), _library("pyarrow.compute")
    texts = compute.utf8_trim_whitespace(column.combine_chunks())
    absent = compute.is_in(texts, pyarrow.array(MISSING))
    marks = {str(count["values"]): count["counts"] for count in texts.filter(absent).value_counts().to_pylist()}
    texts = compute.if_else(absent, pyarrow.scalar(None, pyarrow.string()), texts)
    if decimal_comma and _share(texts, _COMMA_FLOAT) > 0:
        with_points = compute.replace_substring(texts, ",", ".")
        texts = with_points if _share(with_points, _FLOAT) == 1 else texts
    kind, remark = _type_of(texts)
    if kind is not None:
        try:
            texts = compute.replace_substring_regex(texts, r"^\+", "").cast(kind)
        except pyarrow.ArrowInvalid:  # the 30th of February
            remark = ""
    return _Read(_series(texts), marks, remark)


def _type_of(texts: Any) -> tuple[Any, str]:
    """Type of a column of texts, None for text, and what to say about it."""
    pyarrow = _library("pyarrow")
    if texts.null_count == len(texts):
        return pyarrow.float64(), ""
    numbers = _share(texts, _FLOAT)
    if numbers == 1:
        if _share(texts, _IDENTIFIER) > 0:
            return None, "kept as text, since numbers have leading zeros or more than 18 digits"
        return (pyarrow.int64() if _share(texts, _INTEGER) == 1 else pyarrow.float64()), ""
    if _share(texts, r"^(?i:true|false)$") == 1:
        return pyarrow.bool_(), ""
    if _share(texts, _DATE) == 1:
        return pyarrow.timestamp("us"), "read as dates"
    if _share(texts, f"{_COMMA_FLOAT}|{_FLOAT}") == 1:
        return None, "kept as text, since --decimal-comma (decimal_comma=True) was not given"
    if numbers >= MOSTLY_NUMBERS:
        return None, "kept as text, since other values are among numbers"
    return None, ""


def _share(texts: Any, pattern: str) -> float:
    """Share of the values of a column of texts, missing ones left out, that match a pattern."""
    compute = _library("pyarrow.compute")
    return float(compute.mean(compute.match_substring_regex(texts, pattern)).as_py() or 0.0)


def _series(values: Any) -> Any:
    """Column as a pandas series; integers with missing values stay exact."""
    pyarrow = _library("pyarrow")
    if pyarrow.types.is_int64(values.type) and values.null_count:
        exact = values.to_pandas(types_mapper={pyarrow.int64(): _library("pandas").Int64Dtype()}.get)
        return exact if exact.abs().max() > 2**53 else exact.astype("float64")
    return values.to_pandas()


def _notes(path: Path, separator: str, columns: dict[str, _Read]) -> Iterator[Note]:
    """Say what was not obvious when a CSV was read."""
    name = shown(path.name)
    if separator != ",":
        yield Note("table-read", "info", f"the file {name} was read with {SEPARATORS[separator]} as the separator")
    marks: Counter[str] = sum((Counter(column.marks) for column in columns.values()), Counter())
    if marks:
        found = ", ".join(f"{n:,} written as {mark!r}" if mark else f"{n:,} empty" for mark, n in marks.most_common())
        holed = sum(bool(column.marks) for column in columns.values())
        text = f"{holed} of {len(columns)} columns of {name} have missing values ({found})"
        yield Note("table-read", "info", text)
    for remark in dict.fromkeys(column.remark for column in columns.values() if column.remark):
        titles = [title for title, column in columns.items() if column.remark == remark]
        yield Note("table-read", "info", f"columns of {name} {remark}: {', '.join(repr(shown(t)) for t in titles)}")
