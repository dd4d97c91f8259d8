"""Labelled data: checked once, identified by their content, read from npz files, folders and published archives."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from plmia.data.arrays import Array, FloatArray32, IntArray
from plmia.data.files import exists, open_regular, require_no_pipe
from plmia.data.labels import encode_groups, encode_labels
from plmia.data.npz import (
    DATA_ARRAYS,
    NPY_MAGIC,
    TEXT_ARRAYS,
    load_npy,
    load_npz,
    save_npy,
    text_array,
    unpack_bits,
    whole_number,
)
from plmia.data.records import Records, is_records
from plmia.data.table_files import is_table_file, read_frame
from plmia.data.tables import Selection, Table, is_frame
from plmia.errors import DataError, Note, shown, writable

if TYPE_CHECKING:
    from plmia.data.archives import Part

# Long arrays are hashed and checked in pieces of about this many bytes, so that memory-mapped ones stay on disk.
_BLOCK_BYTES = 1 << 24
# Number of columns that a message lists.
MAX_LISTED = 40
_NAMES = ("class_names", "feature_names", "texts", "group_names")


@dataclass(frozen=True, eq=False)
class LabelledData:
    """Records with their labels, checked.

    Parameters
    ----------
    X : array [records, features], [records, height, width] or [records, height, width, channels], data frame or dataset
        Numbers: bool, integers, or floats of up to 64 bits, NaN where missing; or a frame of pandas, polars or pyarrow;
        or an object with `len` and records by number, such as a map-style dataset of PyTorch (kept as `Records`), or a
        tensor of images with channels first, whose records modules get unchanged.
    y : array, series or list [records], optional
        Classes (integers, text, booleans, categories, or floats that are few whole numbers), each of at least two
        records; or float values to predict. A dataset of (input, label) pairs has its own. Kept as int64 classes 0 to
        C - 1 in sorted order, or float64 values.
    groups : array, series or list [records], optional
        Records of one group (the rows of one patient, for example) are all members or all non-members.
    name : str
        Name of the data for readers.
    class_names : sequence of str, optional
        Names of the classes for readers; by default the labels as given, or None if these were 0 to C - 1.
    feature_names : sequence of str, optional
        Names of the features of an array [records, features]; those of a frame by default.
    texts : sequence of str, optional
        The records as text, for reports that show records.
    notes : tuple of Note
        Remarks on how the data were read.
    values : bool
        Whether all numbers in y are values to predict; integers then stay as they are, and there are no classes.
    """

    X: Any  # Array, Table or Records
    y: Any = None  # IntArray, FloatArray or None
    groups: Any = None  # IntArray or None
    name: str = "data"
    class_names: Sequence[str] | None = None
    feature_names: Sequence[str] | None = None
    texts: Sequence[str] | None = None
    group_names: Sequence[str] | None = None
    notes: tuple[Note, ...] = ()
    values: bool = False

    def __post_init__(self) -> None:
        keep = functools.partial(object.__setattr__, self)
        keep("name", shown(self.name))
        require_rows(self.X)
        if is_records(self.X):
            records, labels = Records.read(self.X, self.y)
            keep("X", records)
            keep("y", labels)
            keep("notes", (*self.notes, *records.notes()))
        keep("X", _checked_records(self.X))
        if self.y is not None:
            y, names = encode_labels(self.y, self.n_points, self.values and self.class_names is None)
            keep("y", y)
            keep("class_names", names if self.class_names is None else self.class_names)
        if self.groups is not None:
            groups, names, notes = encode_groups(self.groups, self.n_points)
            keep("groups", groups)
            keep("group_names", names if self.group_names is None else tuple(self.group_names))
            keep("notes", tuple(dict.fromkeys((*self.notes, *notes))))
        if self.is_table and self.feature_names is None:
            keep("feature_names", self.X.names)
        for name, n, things in (
            ("class_names", self.n_classes, "classes"),
            ("feature_names", self.X.shape[1] if self.has_features else None, "features"),
            ("texts", self.n_points, "records"),
        ):
            texts, note = _checked_texts(name, getattr(self, name), n, things)
            keep(name, texts)
            keep("notes", tuple(dict.fromkeys((*self.notes, *note))))

    @classmethod
    def of_table(
        cls, frame: Any, y: Any = None, groups: Any = None, drop: Sequence[str] = (), *, name: str = "data", **more: Any
    ) -> LabelledData:
        """Take labels and groups from columns of a data frame, which are then not features.

        Parameters
        ----------
        frame : data frame
            Of pandas, polars or pyarrow.
        y, groups : str, or array, series or list [records], optional
            Names of columns, or labels and groups themselves.
        drop : sequence of str
            Columns to leave out.
        name, **more
            As in `LabelledData`.
        """
        drop = (drop,) if isinstance(drop, str) else tuple(drop)
        for what, given in (("y", y), ("groups", groups)):
            if isinstance(given, list | tuple) and len(given) == 1 and isinstance(given[0], str):
                raise DataError(f"{what} is a list of one name: name the column by {what}={given[0]!r}")
        chosen = Selection(frame, [name for name in (y, groups) if isinstance(name, str)], drop)
        named = isinstance(y, str)
        notes: tuple[Note, ...] = more.pop("notes", ())
        if isinstance(y, str):
            y, names = encode_labels(
                chosen[y], chosen.n_records, more.get("values", False), what=f"column {shown(y)!r}"
            )
            more["class_names"] = names if more.get("class_names") is None else more["class_names"]
        if isinstance(groups, str):
            groups, names, missing = encode_groups(chosen[groups], chosen.n_records, what=f"column {shown(groups)!r}")
            more["group_names"], notes = names, (*notes, *missing)
        table = Table(chosen.rest)
        data = cls(table, y, groups, name, notes=(*notes, *table.identifiers()), **more)
        if not named:
            data._require_hidden_labels()
        return data

    def _require_hidden_labels(self) -> None:
        """Raise `DataError` if a column of the table is y itself, or has one value per class."""
        for column in self.X.columns:
            if self.labels is not None:
                found, how = column.splits_like(self.labels), "has one value per class of y"
            else:
                found, how = self.y is not None and np.array_equal(column.values, self.y), "equals y"
            if found:
                name = repr(shown(column.name))
                raise DataError(
                    f"column {name} of X {how}, so models would read the answer: leave it out (drop={name}), or give "
                    f"y={name}"
                )

    @property
    def has_features(self) -> bool:
        """Whether a record is a row of features, in an array or a table."""
        return self.is_table or (isinstance(self.X, np.ndarray) and self.X.ndim == 2)

    @property
    def n_points(self) -> int:
        """Number of records."""
        return len(self.X)

    @property
    def labels(self) -> IntArray | None:
        """Classes [records], 0 to C - 1; None where y are values, or absent."""
        numbers = self.values and self.class_names is None
        return None if self.y is None or self.y.dtype.kind != "i" or numbers else self.y

    @cached_property
    def n_classes(self) -> int:
        """Number of classes; 0 where there are none."""
        return 0 if self.labels is None else int(self.labels.max()) + 1

    @property
    def is_images(self) -> bool:
        """Whether records are images, not rows of a table."""
        return isinstance(self.X, np.ndarray) and self.X.ndim > 2

    @property
    def is_table(self) -> bool:
        """Whether records are rows of a data frame."""
        return isinstance(self.X, Table)

    @property
    def is_array(self) -> bool:
        """Whether X is an array, which workers can map and views can change."""
        return isinstance(self.X, np.ndarray)

    @property
    def form(self) -> str:
        """What X is, for messages."""
        return (
            "images" if self.is_images else "a table" if self.is_table else "an array" if self.is_array else "a dataset"
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 of types, shapes and values of X, y and groups; the same on every machine, whatever the names."""
        sha = hashlib.sha256()
        if not self.is_array:
            sha.update(f"X {self.X.digest}\n".encode())
        for name, array in (("X", self.X if self.is_array else None), ("y", self.y), ("groups", self.groups)):
            if array is not None:
                little = array.dtype.newbyteorder("<")
                sha.update(f"{name} {little.str} {array.shape}\n".encode())
                for _, block in _blocks(array):
                    sha.update(np.ascontiguousarray(block, dtype=little).data)
        return sha.hexdigest()

    @cached_property
    def first_copies(self) -> IntArray:
        """Index of the first record with the same X, for each record, int array [records].

        As groups, they keep copies of a row on one side of every split.
        """
        firsts: dict[bytes, int] = {}
        found = np.empty(self.n_points, dtype=np.intp)
        for start, block in _blocks(self.X if self.is_array else self.X.row_keys()):
            for point, row in enumerate(np.ascontiguousarray(block), start):
                found[point] = firsts.setdefault(hashlib.blake2b(row.data, digest_size=16).digest(), point)
        return found

    def duplicates(self) -> int:
        """Count the records whose X equals that of another record, byte for byte."""
        counts = np.bincount(self.first_copies)
        return int(counts[counts > 1].sum())

    def rows(self, chosen: Array | None = None) -> Any:
        """Records for the user's code, by a bool mask [records] or by number; all by default.

        An array, or a frame of the user's library, that shares no memory with the data; or a map-style dataset.
        """
        if self.is_array:
            return np.array(self.X) if chosen is None else self.X[chosen]
        return self.X.rows(chosen)

    def features(self) -> FloatArray32:
        """Float32 array [records, features]: images flattened, and scaled to [0, 1] if their type is uint8.

        Text, categories, dates and missing values are encoded, see `features_encoding`. For recipes with their own
        preprocessing. All others use `rows`.
        """
        flat = self._numbers()
        with np.errstate(over="ignore"):
            features = flat.astype(np.float32)
        if self.is_images and self.X.dtype == np.uint8:
            features /= np.float32(255)
        if flat.dtype == np.float64 and np.isinf(features).any():
            record = int(np.argmax(np.isinf(features).any(axis=1)))
            raise DataError(f"X at record {record} is too large for a 32-bit float: scale the features")
        return features

    def _numbers(self) -> Array:
        """X as an array of numbers [records, features]; text, categories, dates and missing values are encoded."""
        from plmia.data.encoding import columns_of, features_encoding

        if isinstance(self.X, Records):
            raise DataError("X is a dataset that is read by record, but an array or a table is needed: use plmia.Torch")
        encoding = features_encoding(self)
        if encoding is None and self.is_array:
            flat: Array = self.X.reshape(self.n_points, -1)
            return flat
        columns = columns_of(self)
        return columns.numbers if encoding is None else encoding.fit(columns)(columns)

    @cached_property
    def merged_by_float32(self) -> list[tuple[int, int, int]]:
        """Columns in which 32-bit floats merge distinct values: their index, distinct values before, and after.

        In a column of whole numbers (identifiers, for example) any merged pair counts. Other 64-bit floats round a
        little wherever there are many, so such a column counts if more than half of its values merge.
        """
        if self.is_table:
            columns = [column.values for column in self.X.columns]
        elif np.can_cast(self.X.dtype, np.float32):
            return []
        else:
            columns = list(self.X.reshape(self.n_points, -1).T)
        found = ((k, *_distinct_before_and_after(values[values == values])) for k, values in enumerate(columns))
        return [(k, before, after) for k, before, after in found if after < before]

    def save(self, folder: Path, write: Callable[[Path, Array], object] = save_npy) -> None:
        """Write X.npy and, where present, y.npy, groups.npy and names into ``folder``; X must be an array."""
        texts = {name: getattr(self, name) for name in _NAMES}
        arrays = {"X": self.X, "y": self.y, "groups": self.groups, "values": np.array(True) if self.values else None}
        arrays |= {name: None if value is None else np.array(value, dtype=np.str_) for name, value in texts.items()}
        for name, array in arrays.items():
            if array is None:
                (folder / f"{name}.npy").unlink(missing_ok=True)
            else:
                write(folder / f"{name}.npy", array)

    @classmethod
    def load(cls, folder: Path) -> LabelledData:
        """Read what `save` wrote, mapped into memory, so that processes that load the same folder share its pages."""
        paths = {name: folder / f"{name}.npy" for name in ("X", "y", "groups", *_NAMES)}
        arrays = {name: load_npy(path) for name, path in paths.items() if name == "X" or path.exists()}
        names = {name: arrays[name].tolist() for name in _NAMES if name in arrays}
        values = (folder / "values.npy").exists()
        return cls(arrays["X"], arrays.get("y"), arrays.get("groups"), folder.name, **names, values=values)


# Checks --------------------------------------------------------------------------------------------------------------


def _blocks(array: Array) -> Iterator[tuple[int, Array]]:
    """Pieces of an array along its first axis, with the index of their first row."""
    rows = max(1, _BLOCK_BYTES // max(1, array.nbytes // len(array)))
    for start in range(0, len(array), rows):
        yield start, array[start : start + rows]


def _as_array(name: str, values: Any) -> Array:
    try:
        array: Array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name} is not an array ({error}): give rows of equal length") from error
    # Foreign byte order and extended floats are read, but not kept: neither is the same on every machine.
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        doubles = array.astype(np.float64)
        if not ((doubles == array) | np.isnan(array)).all():
            raise DataError(f"{name} has type {array.dtype}, whose digits 64-bit floats lose: round it to float64")
        return doubles
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _distinct_before_and_after(values: Array) -> tuple[int, int]:
    """Distinct values of a column before and after rounding to 32 bits; equal if rounding is harmless."""
    integers = values.dtype.kind in "iu"
    if not len(values) or (integers and values.min() >= -(2**24) and values.max() <= 2**24):
        return 0, 0
    with np.errstate(over="ignore"):
        if not integers and (values.astype(np.float32) == values).all():
            return 0, 0
        ordered = np.sort(values)
        rounded = ordered.astype(np.float32)
    before, after = (1 + int((array[1:] != array[:-1]).sum()) for array in (ordered, rounded))
    whole = integers or bool((values == np.rint(values)).all())
    return (before, after) if whole or 2 * after < before else (0, 0)


def _checked_texts(name: str, texts: Any, n: int | None, things: str) -> tuple[tuple[str, ...] | None, list[Note]]:
    """Names that can be written, one for each of ``n`` things; None for none, or where the data have no such things."""
    if texts is None or n is None:
        return None, []
    if isinstance(texts, str) or len(texts) != n:
        held = f"is {texts!r}" if isinstance(texts, str) else f"has {len(texts)} entries"
        raise DataError(f"{name} {held}, but the data have {n} {things}: give one entry for each")
    return writable_texts(name, [str(text) for text in texts])


def writable_texts(name: str, texts: Sequence[str]) -> tuple[tuple[str, ...], list[Note]]:
    """Texts with U+FFFD for characters that cannot be written, and a note if there are any."""
    found = tuple(map(writable, texts))
    changed = sum(a != b for a, b in zip(texts, found, strict=True))
    text = (
        f"{changed:,} of {len(texts):,} {name} hold lone surrogates or control characters, which cannot be written. "
        "The report shows U+FFFD instead; correct them to see the original texts."
    )
    return found, [Note("texts-replaced", "info", text)] if changed else []


def require_rows(X: Any) -> None:
    """Raise `DataError` for a sparse matrix of SciPy and for a lazy frame, which cannot be read by record."""
    if type(X).__module__.startswith("scipy.sparse"):
        raise DataError("X is a sparse matrix, but a dense array is needed: give X.toarray()")
    if type(X).__name__ == "LazyFrame":
        raise DataError("X is a lazy frame, which holds no rows yet: give X.collect()")


def _checked_records(values: Any) -> Any:
    """X as an array, a table or records."""
    if isinstance(values, Table | Records):
        return values
    return Table(values) if is_frame(values) else _checked_points(values)


def _checked_points(values: Any) -> Array:
    X = _as_array("X", values)
    if X.ndim == 0:
        raise DataError(
            f"X is a {type(values).__name__}, which cannot be read by record: give an array, a data frame, or a "
            "dataset with `len` and an index"
        )
    if X.dtype.kind not in "buif":
        raise DataError(
            f"X is an array of type {X.dtype}, but numbers are needed: give text and categories as a data frame of "
            "pandas, polars or pyarrow"
        )
    if X.ndim not in (2, 3, 4) or 0 in X.shape:
        raise DataError(
            f"X has shape {X.shape}: [records, features], or [records, height, width] or "
            "[records, height, width, channels] for images, is needed, with no empty axis"
        )
    if X.ndim == 4 and X.shape[1] in (1, 3) and X.shape[3] > 4:
        raise DataError(
            f"X has shape {X.shape} with channels first, but [records, height, width, channels] is needed: "
            "numpy.moveaxis(X, 1, -1) puts them last, or, for plmia.Torch, torch.from_numpy(X) keeps them first"
        )
    if X.dtype.kind == "f":
        _require_finite(X)
    return X


def _require_finite(X: Array) -> None:
    for start, block in _blocks(X):
        wild = np.isinf(block)
        if wild.any():
            where = np.argwhere(wild)[0]
            raise DataError(
                f"X holds {block[tuple(where)]} at record {start + where[0]}, position {where[1:].tolist()}: every "
                "value must be finite, or NaN where it is missing"
            )


def checked_groups(values: Any, n_points: int) -> IntArray:
    """Groups as int64 [records]; raises `DataError` unless records have one whole number each, in 2 groups or more."""
    return encode_groups(values, n_points)[0]


# Reading -------------------------------------------------------------------------------------------------------------


def read_data(
    path: Path,
    part: Part = "train",
    verify: bool = True,
    *,
    label: str | None = None,
    group: str | None = None,
    drop: Sequence[str] = (),
    decimal_comma: bool = False,
    values: bool = False,
) -> LabelledData:
    """Read a data set; its form is recognised from what is found at the path.

    Parameters
    ----------
    path : Path
        A CSV or Parquet file (see `plmia.data.table_files`); an npz with `X` [records, ...], `y` [records] and
        optionally `groups` [records], where `X` may be bits packed along features together with `n_features`; an npz
        with `features` and `labels` (integers, or one-hot [records, classes]); a folder written by `LabelledData.save`;
        or a published archive or its folder, see `plmia.data.archives.read_archive`.
    part : {"train", "valid", "test"}
        Which part of a published archive.
    verify : bool
        Whether to compare a published archive with its checksum and number of records.
    label, group, drop : str, str, sequence of str
        Of a CSV or Parquet file: the column of the labels, that of the groups, and columns to leave out.
    decimal_comma : bool
        Whether numbers in a CSV have decimal commas.
    values : bool
        Whether numbers in y are values to predict; see `LabelledData`. Then a file may also lack labels.
    """
    if not exists(path):
        raise DataError(
            f"there is no {path}: give an npz with `X` and `y`, a CSV or Parquet file, or a published archive"
        )
    require_no_pipe(path, DataError)
    if path.is_file() and is_table_file(path):
        return labelled_table(path, *read_frame(path, decimal_comma, drop), label, group, drop, values=values)
    if label or group or drop or decimal_comma:
        raise DataError(f"{path} is not a CSV or Parquet file: leave out label, group, drop and decimal_comma")
    if (path / "X.npy").exists():
        return LabelledData.load(path)
    if path.is_file() and (path.suffix in (".npz", ".npy") or _starts_like_numpy(path)):
        return _from_npz(path, values)
    from plmia.data.archives import read_archive

    found = read_archive(path, part, verify)
    return _located(path, found.X, found.y, None, found.name)


def labelled_table(
    path: Path,
    frame: Any,
    notes: Sequence[Note],
    label: str | None,
    group: str | None,
    drop: Sequence[str],
    *,
    values: bool = False,
) -> LabelledData:
    """Take labels and groups from columns of a data frame that `read_frame` read from ``path``, with its notes."""
    if label is None and not values:
        columns = [shown(str(name)) for name in frame.columns]
        more = f" and {len(columns) - MAX_LISTED} more" if len(columns) > MAX_LISTED else ""
        raise DataError(
            f"{path} is a table: name the column of the labels (--label, or label=), one of "
            f"{', '.join(columns[:MAX_LISTED])}{more}"
        )
    try:
        name = path.name.partition(".")[0]
        return LabelledData.of_table(frame, label, group, drop, name=name, notes=tuple(notes), values=values)
    except DataError as error:
        raise DataError(f"in {path} {error}") from error


def _located(
    path: Path,
    X: Array,
    y: Array | None,
    groups: Array | None,
    name: str,
    values: bool = False,
    texts: Mapping[str, Any] = MappingProxyType({}),
) -> LabelledData:
    try:
        return LabelledData(X, y, groups, name, values=values, **texts)
    except DataError as error:
        raise DataError(f"in {path} {error}") from error


def _starts_like_numpy(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            start = file.read(6)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}): check its permissions") from error
    return start.startswith(b"PK\x03\x04") or start == NPY_MAGIC


def _from_npz(path: Path, values: bool) -> LabelledData:
    arrays = load_npz(path, DATA_ARRAYS, "`X` and `y`", DataError)
    texts = {name: text_array(path, name, arrays[name]) for name in TEXT_ARRAYS if name in arrays}
    if "X" not in arrays and {"features", "labels"} <= arrays.keys():
        return _located(path, arrays["features"], _from_one_hot(path, arrays["labels"]), None, path.stem, texts=texts)
    for name in ("X",) if values else ("X", "y"):
        if name not in arrays:
            raise DataError(f"{path} holds no array {name!r}: save `X` and `y` with numpy.savez")
    X = arrays["X"]
    if "n_features" in arrays:
        X = _unpacked(path, X, arrays["n_features"])
    return _located(path, X, arrays.get("y"), arrays.get("groups"), path.stem, values, texts)


def _unpacked(path: Path, X: Array, n_features: Array) -> Array:
    """Bool array [points, features] of bits packed along features; `X` itself if it has all its columns."""
    n = whole_number(n_features)
    if n is not None and X.ndim == 2 and X.shape[1] == n:
        return X
    if n is None or n < 1 or X.ndim != 2 or X.dtype != np.uint8 or X.shape[1] != (n + 7) // 8:
        raise DataError(
            f"{path} has X of shape {X.shape} and type {X.dtype}, which are not the packed bits of "
            f"n_features = {n_features.tolist()}: pack with numpy.packbits(X, axis=1), or leave n_features out"
        )
    return unpack_bits(X, n)


def _from_one_hot(path: Path, labels: Array) -> Array:
    if labels.ndim != 2:
        return labels
    if labels.dtype.kind not in "buif" or not ((labels == 0) | (labels == 1)).all() or (labels.sum(axis=1) != 1).any():
        raise DataError(
            f"{path} has labels of shape {labels.shape} that are not one-hot: give one 1 per row and 0 elsewhere"
        )
    return cast("Array", labels.argmax(axis=1))
