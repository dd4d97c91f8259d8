"""Tables: data frames of pandas, polars or pyarrow, read through narwhals and handed on in their own library.

A `Table` keeps the user's frame. Models get rows of it with its types, names, categories and missing values. What plmia
itself needs (digests, copies, features, unusual values) it takes from `Column`, which is the same for all libraries.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from plmia.data.arrays import Array, BoolArray, FloatArray, IntArray, Labels
from plmia.errors import DataError, Note, did_you_mean, shown

if TYPE_CHECKING:
    import narwhals as nw

Kind = Literal["number", "boolean", "category", "date"]

# Values of one family can be compared with each other; a column of several families has no order and no meaning.
_FAMILIES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("text", (str,)),
    ("booleans", (bool, np.bool_)),
    ("numbers", (int, float, np.integer, np.floating, decimal.Decimal)),
    ("dates", (datetime.date, np.datetime64)),
    ("times", (datetime.time,)),
    ("durations", (datetime.timedelta, np.timedelta64)),
)
# Fewer distinct values do not tell an identifier from a feature.
MIN_IDENTIFIERS = 20
# An identifier of persons has at most this many rows per value, on average.
MAX_ROWS_PER_PERSON = 5
# Words in the name of a column of integers that identify persons; other integers may be measurements.
_PERSON_WORDS = re.compile(
    r"(?:^|[^a-z])(id|pid|uid|mrn|patient|person|subject|participant|user|customer|client|account|household|case)"
    r"(?:s|id|nr|no|key|number)?(?:$|[^a-z])"
)
# A column whose texts have more words than this on average is free text.
_MAX_WORDS = 3
# Two columns are compared on this many rows first.
_FIRST_ROWS = 1000
# Number of columns that a message names.
_LISTED = 30
_EPOCH = datetime.datetime(1970, 1, 1)
_SECOND = datetime.timedelta(seconds=1)


def is_frame(values: Any) -> bool:
    """Whether values are a data frame that narwhals reads; no library is imported for arrays, lists and tuples."""
    if isinstance(values, np.ndarray | list | tuple):
        return False
    import narwhals as nw

    return isinstance(values, nw.DataFrame) or nw.dependencies.is_into_dataframe(values)


def is_series(values: Any) -> bool:
    """Whether values are one column of a data-frame library."""
    if isinstance(values, np.ndarray | list | tuple):
        return False
    import narwhals as nw

    return isinstance(values, nw.Series) or nw.dependencies.is_into_series(values)


# Columns -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Column:
    """One column in a form that does not depend on the library.

    Parameters
    ----------
    name : str
        Its name.
    kind : {"number", "boolean", "category", "date"}
        What its values are. Text is a category; a column without any value is a number.
    values : array [rows]
        Of a category, the position in ``levels``, -1 where missing. Otherwise float64, NaN where missing: numbers,
        0 and 1, or seconds (since 1970 in UTC for dates).
    levels : tuple of str
        Distinct values of a category, in order (numbers by size).
    keys : tuple of arrays [rows]
        Equal exactly where two rows hold the same value; unlike ``values``, they keep all digits of integers.
    """

    name: str
    kind: Kind
    values: Array
    levels: tuple[str, ...]
    keys: tuple[Array, ...]
    integers: Array | None = None  # exact values, if the column consists of integers of 64 bits and lacks none

    @classmethod
    def read(cls, what: str, name: str, values: Any) -> Column:
        """Read a series of any library, an array or a list; errors say ``what`` it is ("y", "column 'age'")."""
        if is_series(values):
            import narwhals as nw

            return _from_series(what, name, nw.from_native(values, series_only=True))
        array: Array = np.asarray(values)
        if array.dtype.kind in "buif":
            missing = np.isnan(array) if array.dtype.kind == "f" else np.zeros(len(array), np.bool_)
            return _numeric(name, array, missing)
        if array.dtype.kind == "M":
            return _dates(name, array)
        # NumPy makes text of a list that mixes text and numbers.
        objects = values.tolist() if hasattr(values, "tolist") else list(values)
        return _from_objects(what, name, objects, np.array([_is_missing(v) for v in objects], np.bool_))

    @property
    def missing(self) -> BoolArray:
        """Rows [rows] without a value."""
        return self.values < 0 if self.kind == "category" else np.isnan(self.values)

    @property
    def is_name(self) -> bool:
        """Whether values can name something: text (not free text) or integers, in all rows."""
        if self.missing.any() or self.kind not in ("category", "number"):
            return False
        words = sum(len(level.split()) for level in self.levels)
        return bool(self.levels or self.integers is not None) and words <= _MAX_WORDS * max(1, len(self.levels))

    def splits_like(self, codes: Labels) -> bool:
        """Whether two rows have the same value exactly if they have the same code [rows]."""
        if self.missing.any():
            return False
        keys = self.keys[0]
        return _is_one_to_one(keys[:_FIRST_ROWS], codes[:_FIRST_ROWS]) and _is_one_to_one(keys, codes)


def _is_one_to_one(a: Array, b: Array) -> bool:
    (n_a, a), (n_b, b) = ((len(found), codes) for found, codes in (np.unique(v, return_inverse=True) for v in (a, b)))
    return n_a == n_b == len(np.unique(a * n_b + b))


def _from_series(what: str, name: str, series: nw.Series[Any]) -> Column:
    kind = series.dtype
    missing = np.asarray(series.is_null().to_list(), np.bool_)
    if kind.is_integer() or kind.is_float():
        return _numeric(name, series.fill_null(0).to_numpy() if missing.any() else series.to_numpy(), missing)
    if kind.is_temporal():
        array = series.to_numpy()
        if array.dtype.kind == "M":
            return _dates(name, array)
    declared = str(kind).startswith(("Categorical", "Enum"))
    return _from_objects(what, name, series.to_list(), missing, declared)


def _numeric(name: str, array: Array, missing: BoolArray) -> Column:
    """Column of booleans, integers or floats; masked values may be anything."""
    kind: Kind = "boolean" if array.dtype == np.bool_ else "number"
    with np.errstate(over="ignore"):
        values = array.astype(np.float64)
    if missing.any():
        values[missing] = np.nan
    if array.dtype.kind == "f":
        return Column(name, kind, values, (), (_bits(values),))
    exact = np.where(missing, 0, array).astype(np.uint64 if array.dtype == np.uint64 else np.int64)
    if missing.any():
        return Column(name, kind, values, (), (exact, missing))
    return Column(name, kind, values, (), (exact,), exact if kind == "number" else None)


def _bits(values: FloatArray) -> IntArray:
    """Bits of floats, with one kind of NaN."""
    return np.where(np.isnan(values), np.nan, values).view(np.int64)


def _dates(name: str, array: Array) -> Column:
    exact = array.astype("datetime64[us]").view(np.int64)
    missing = np.isnat(array)
    return Column(name, "date", np.where(missing, np.nan, exact / 1e6), (), (np.where(missing, 0, exact), missing))


def _from_objects(what: str, name: str, values: list[Any], missing: BoolArray, declared: bool = False) -> Column:
    """Column of Python values, which must be of one family; ``declared`` as a category by its library."""
    present = [value for value, absent in zip(values, missing.tolist(), strict=True) if not absent]
    family = _family(what, present)
    if family is None:
        return _numeric(name, np.full(len(values), np.nan), missing)
    if family in ("text", "times") or declared:
        return _category(name, present, missing)
    if family == "numbers" and all(isinstance(v, int | np.integer) and -(2**63) <= v < 2**63 for v in present):
        exact = np.zeros(len(values), np.int64)
        exact[~missing] = present
        return _numeric(name, exact, missing)
    numbers = np.full(len(values), np.nan)
    numbers[~missing] = [_number(value) for value in present]
    if family == "booleans":
        return _numeric(name, numbers == 1, missing)
    if family == "numbers" and all(isinstance(v, float | np.floating) for v in present):
        return _numeric(name, numbers, missing)
    # Decimals and integers of more than 64 bits, whose digits a float would lose; dates and durations.
    text = _category(name, present, missing)
    kind: Kind = "number" if family in ("numbers", "durations") else "date"
    return Column(name, kind, numbers, text.levels, text.keys)


def _category(name: str, present: list[Any], missing: BoolArray) -> Column:
    levels = sorted_levels(set(present))
    place = {level: i for i, level in enumerate(levels)}
    codes = np.full(len(missing), -1, np.int64)
    codes[~missing] = [place[value] for value in present]
    return Column(name, "category", codes, tuple(map(str, levels)), (codes,))


def sorted_levels(levels: set[Any]) -> list[Any]:
    """Distinct values in order; texts that are all numbers by their size, so that "10" follows "9"."""
    try:
        return sorted(levels, key=lambda level: (float(level), str(level)))
    except (ValueError, TypeError):
        return sorted(levels)


def _family(what: str, present: list[Any]) -> str | None:
    """The one family of all values; None without values. Raises `DataError` for several families, and for others."""
    firsts: dict[str, Any] = {}
    for kind in dict.fromkeys(map(type, present)):
        family = next((name for name, types in _FAMILIES if issubclass(kind, types)), "")
        # Booleans are integers to Python only.
        family = "booleans" if issubclass(kind, bool) else family
        example = next(value for value in present if type(value) is kind)
        if not family:
            raise DataError(
                f"{what} holds {kind.__name__} values ({shown(repr(example)[:40])}): make columns of numbers, text, "
                "booleans or dates of them, or drop it"
            )
        firsts.setdefault(family, example)
    if len(firsts) > 1:
        (one, a), (two, b) = list(firsts.items())[:2]
        raise DataError(
            f"{what} mixes {one} ({shown(repr(a)[:40])}) and {two} ({shown(repr(b)[:40])}): convert it to one type, "
            "for example to text with astype(str)"
        )
    return next(iter(firsts), None)


def _number(value: Any) -> float:
    if isinstance(value, np.datetime64 | np.timedelta64):
        value = value.astype("datetime64[us]" if isinstance(value, np.datetime64) else "timedelta64[us]").item()
    if isinstance(value, datetime.timedelta):
        return value / _SECOND
    if isinstance(value, datetime.datetime):
        start = _EPOCH if value.tzinfo is None else _EPOCH.replace(tzinfo=datetime.UTC)
        return (value - start) / _SECOND
    if isinstance(value, datetime.date):
        return (value - _EPOCH.date()) / _SECOND
    return float(value)


def _is_missing(value: Any) -> bool:
    """Whether a Python value stands for a missing one: None, NaN, NaT or the NA of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating | decimal.Decimal | np.datetime64) and bool(value != value)


# Tables --------------------------------------------------------------------------------------------------------------


def require_same_order(frame: Any, values: Any, what: str) -> None:
    """Raise `DataError` if pandas values have the frame's index in another order: rows are matched by position."""
    own, theirs = getattr(frame, "index", None), getattr(values, "index", None)
    if own is None or theirs is None or callable(own) or callable(theirs) or len(own) != len(theirs):
        return
    if not own.equals(theirs) and own.is_unique and set(own) == set(theirs):
        raise DataError(
            f"{what} has the index of X in another order, but rows are matched by position: give {what}.loc[X.index]"
        )


@dataclass(frozen=True, eq=False)
class Table:
    """A data frame of pandas, polars or pyarrow, checked.

    Column names are distinct texts or whole numbers. Columns hold numbers, text, categories, booleans or dates, with or
    without missing values; nested values, bytes and mixed types are refused.

    Parameters
    ----------
    native : data frame
        The user's frame; narwhals frames are unwrapped.
    """

    native: Any

    def __post_init__(self) -> None:
        import narwhals as nw

        native = nw.to_native(self.native, pass_through=True)
        object.__setattr__(self, "native", native)
        require_names(native)
        if 0 in self.shape:
            raise DataError(
                f"X has {self.shape[0]} records and {self.shape[1]} columns: at least one of each is needed"
            )
        for column in self.columns:
            wild = np.isinf(column.values)
            if wild.any():
                raise DataError(
                    f"column {column.name!r} of X holds {column.values[wild][0]} at record {int(wild.argmax())}: every "
                    "value must be finite or missing"
                )

    def __getstate__(self) -> dict[str, Any]:
        # Not what can be computed again.
        return {"native": self.native}

    @cached_property
    def _frame(self) -> nw.DataFrame[Any]:
        import narwhals as nw

        frame: nw.DataFrame[Any] = nw.from_native(self.native, eager_only=True)
        return frame

    def __len__(self) -> int:
        return self.shape[0]

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return self._frame.shape

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns as text."""
        return tuple(str(name) for name in self._frame.columns)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """All columns, in the order of the frame."""
        names = zip(self.names, self._frame.iter_columns(), strict=True)
        return tuple(_from_series(f"column {name!r} of X", name, series) for name, series in names)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What the values of each column are."""
        return tuple(column.kind for column in self.columns)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of names, types and values; the same for the same content, whatever its chunks and its index.

        Integers with missing values count as floats, which pandas makes of them.
        """
        sha = hashlib.sha256(f"table {self.shape}\n".encode())
        for column, series in zip(self.columns, self._frame.iter_columns(), strict=True):
            floats = series.dtype.is_integer() and column.missing.any() and not (abs(column.values) >= 2**53).any()
            kind, keys = ("Float64", (_bits(column.values),)) if floats else (_type_text(series), column.keys)
            sha.update(repr((column.name, column.kind, kind, column.levels)).encode(errors="replace"))
            for key in keys:
                sha.update(np.ascontiguousarray(key, key.dtype.newbyteorder("<")).data)
        return sha.hexdigest()

    def row_keys(self) -> IntArray:
        """Whole numbers [rows, …] that are equal for two rows exactly if all their values are."""
        keys = [key.astype(np.int64) for column in self.columns for key in column.keys]
        return np.stack(keys, axis=1)

    def rows(self, chosen: Array | None = None) -> Any:
        """Rows of the frame as a new frame of the same library: by a bool mask [rows] or by number; all by default."""
        if chosen is None:
            return self._frame[np.arange(len(self))].to_native()
        chosen = np.asarray(chosen)
        return self._frame[np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen].to_native()

    def identifiers(self) -> list[Note]:
        """Note columns whose values all are distinct, as those of an identifier."""
        found = [column.name for column in self.columns if _is_identifier(column)]
        if not found:
            return []
        it, noun = ("them", "columns ") if len(found) > 1 else ("it", "column ")
        text = (
            f"every value of {_listed(found, noun)} occurs once, as in an identifier: models can memorise {it}. Leave "
            f"{it} out with --drop (drop=) if {'they are not features' if len(found) > 1 else 'it is not a feature'}"
        )
        if unnamed := [name for name in found if name in ("", "Unnamed: 0", "column_0")]:
            text += f"; {unnamed[0]!r} is an index, which pandas leaves out of a CSV with index=False"
        return [Note("identifier-columns", "info", text)]

    def person_columns(self) -> list[Column]:
        """Columns whose values repeat as those of an identifier of persons: many values, few rows each."""
        return [column for column in self.columns if column.is_name and _repeats(column)]


class Selection:
    """A data frame without the columns that are named: labels, groups, and columns to leave out."""

    def __init__(self, frame: Any, chosen: Sequence[str], dropped: Sequence[str]) -> None:
        import narwhals as nw

        require_names(nw.to_native(frame, pass_through=True))
        self._frame: nw.DataFrame[Any] = nw.from_native(frame, eager_only=True, pass_through=False)
        if self.n_records == 0:
            raise DataError("the table has no rows: at least one per record is needed")
        self._names = [str(name) for name in self._frame.columns]
        for name in (*chosen, *dropped):
            if name not in self._names:
                listed = f"the columns are {_listed(self._names, '')}"
                raise DataError(f"there is no column {shown(name)!r}: {did_you_mean(name, self._names, listed)}")
        if both := [name for name in chosen if name in dropped or chosen.count(name) > 1]:
            raise DataError(f"column {shown(both[0])!r} is named twice, as label, group or to drop: name it once")
        self._taken = {*chosen, *dropped}
        if len(self._taken) == len(self._names):
            raise DataError("no column is left as a feature: name fewer columns as label, group or to drop")

    @property
    def n_records(self) -> int:
        """Number of rows."""
        return self._frame.shape[0]

    def __getitem__(self, name: str) -> nw.Series[Any]:
        # By position: narwhals takes a whole number for a row, even where columns have such names.
        return self._frame[:, self._names.index(name)]

    @property
    def rest(self) -> Any:
        """The frame of all other columns, in the user's library."""
        return self._frame[:, [k for k, name in enumerate(self._names) if name not in self._taken]].to_native()


def _listed(names: list[str], noun: str = "column ") -> str:
    """Name up to `_LISTED` columns."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return noun + ", ".join(shown(name) if not noun else repr(shown(name)) for name in names[:_LISTED]) + more


def _is_identifier(column: Column) -> bool:
    """Whether all values of a column of text or integers are distinct."""
    n = len(column.values)
    return n >= MIN_IDENTIFIERS and column.is_name and len(np.unique(column.keys[0])) == n


def _repeats(column: Column) -> bool:
    """Whether there are many values, with few rows each, but more than one row of some."""
    n, distinct = len(column.values), len(np.unique(column.keys[0]))
    return MIN_IDENTIFIERS <= distinct < n <= MAX_ROWS_PER_PERSON * distinct


def names_persons(column: Column) -> bool:
    """Whether a column that repeats as an identifier of persons is text, or has a name that says so."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column.name).lower()
    return bool(column.levels) or _PERSON_WORDS.search(words) is not None


def _type_text(series: nw.Series[Any]) -> str:
    """Logical type of a column; of pandas' categories also their order, which encoders use."""
    categories = getattr(getattr(series.to_native(), "dtype", None), "categories", None)
    if categories is None or str(series.dtype).startswith("Enum"):
        return str(series.dtype)
    return (
        f"{series.dtype} {list(categories)}" if type(categories).__module__.startswith("pandas") else str(series.dtype)
    )


def require_names(native: Any) -> None:
    """Raise `DataError` unless each column has its own name, text or whole number."""
    names = list(native.column_names if hasattr(native, "column_names") else native.columns)
    for name in names:
        if not isinstance(name, str | int | np.integer):
            raise DataError(f"a column of X is named {name!r}: give each column a text as its name")
        if any("\ud800" <= letter <= "\udfff" for letter in str(name)):
            raise DataError(f"a column of X is named {name!r}, with a lone surrogate that cannot be written: rename it")
    texts = [str(name) for name in names]
    doubled = sorted({text for text in texts if texts.count(text) > 1})
    if doubled:
        raise DataError(
            f"{texts.count(doubled[0])} columns of X are named {doubled[0]!r}: rename them, or drop all but one"
        )
