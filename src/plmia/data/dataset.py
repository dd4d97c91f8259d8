"""Labelled data: checked once, identified by their content, read from npz files, folders and published archives."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from plmia.data.arrays import Array, FloatArray32, IntArray
from plmia.data.npz import NPY_MAGIC, load_npy, load_npz, save_npy, unpack_bits, whole_number
from plmia.errors import DataError, shown

if TYPE_CHECKING:
    from plmia.data.archives import Part

# Long arrays are hashed and checked in pieces of about this many bytes, so that memory-mapped ones stay on disk.
_BLOCK_BYTES = 1 << 24
_RENUMBER = "renumber them with numpy.unique(y, return_inverse=True)[1]"


@dataclass(frozen=True, eq=False)
class LabelledData:
    """Points with their labels, checked.

    Parameters
    ----------
    X : array [points, features], [points, height, width] or [points, height, width, channels]
        Finite numbers: bool, integers, or floats of up to 64 bits; or a pandas data frame of such columns.
    y : int array [points]
        Labels 0 to C - 1, each of at least two points, C at least 2.
    groups : int array [points], optional
        Points of one group (the rows of one patient, for example) are all members or all non-members.
    name : str
        Name of the data for readers.
    columns : tuple of (str or int, str), optional
        Names and types of the columns, if X was a pandas data frame; `as_given` makes a frame of them again.
    """

    X: Array
    y: IntArray
    groups: IntArray | None = None
    name: str = "data"
    columns: tuple[tuple[str | int, str], ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", shown(self.name))
        if _is_frame(self.X):
            object.__setattr__(self, "columns", _columns(self.X))
        object.__setattr__(self, "X", _checked_points(self.X))
        object.__setattr__(self, "y", _checked_labels(self.y, len(self.X)))
        if self.groups is not None:
            object.__setattr__(self, "groups", checked_groups(self.groups, len(self.X)))

    @property
    def n_points(self) -> int:
        """Number of points."""
        return len(self.X)

    @cached_property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.y.max()) + 1

    @property
    def is_images(self) -> bool:
        """Whether points are images, not rows of a table."""
        return self.X.ndim > 2

    @cached_property
    def digest(self) -> str:
        """SHA-256 of types, shapes and bytes of X, y and groups; the same on every machine, whatever the name."""
        sha = hashlib.sha256()
        for name, array in (("X", self.X), ("y", self.y), ("groups", self.groups)):
            if array is not None:
                little = array.dtype.newbyteorder("<")
                sha.update(f"{name} {little.str} {array.shape}\n".encode())
                for _, block in _blocks(array):
                    sha.update(np.ascontiguousarray(block, dtype=little).data)
        if self.columns is not None:
            sha.update(f"columns {self.columns}\n".encode())
        return sha.hexdigest()

    @cached_property
    def first_copies(self) -> IntArray:
        """Index of the first point with the same X, for each point, int array [points].

        As groups, they keep copies of a row on one side of every split.
        """
        firsts: dict[bytes, int] = {}
        found = np.empty(self.n_points, dtype=np.intp)
        for start, block in _blocks(self.X):
            for point, row in enumerate(np.ascontiguousarray(block), start):
                found[point] = firsts.setdefault(hashlib.blake2b(row.data, digest_size=16).digest(), point)
        return found

    def duplicates(self) -> int:
        """Count the points whose X equals that of another point, byte for byte."""
        counts = np.bincount(self.first_copies)
        return int(counts[counts > 1].sum())

    def as_given(self, points: Array) -> Any:
        """Return points [points, ...] in the form of the original X: an array, or a data frame with the same columns.

        A column that a view changed keeps its values if its original type cannot hold them.
        """
        if self.columns is None:
            return points
        pandas = import_module("pandas")
        values = {}
        for (name, kind), column in zip(self.columns, map(pandas.Series, points.T), strict=True):
            typed = column.astype(kind)
            values[name] = typed if (typed == column).all() else column
        return pandas.DataFrame(values)

    def features(self) -> FloatArray32:
        """Float32 array [points, features]: images flattened, and scaled to [0, 1] if their type is uint8.

        For recipes with their own preprocessing. All others use `X` as it is.
        """
        flat = self.X.reshape(self.n_points, -1)
        with np.errstate(over="ignore"):
            features = flat.astype(np.float32)
        if self.is_images and self.X.dtype == np.uint8:
            features /= np.float32(255)
        if flat.dtype == np.float64 and not np.isfinite(features).all():
            point = int(np.argmin(np.isfinite(features).all(axis=1)))
            raise DataError(f"X at point {point} is too large for a 32-bit float: scale the features")
        return features

    @cached_property
    def merged_by_float32(self) -> list[tuple[int, int, int]]:
        """Columns in which 32-bit floats merge distinct values: their index, distinct values before, and after.

        In a column of whole numbers (identifiers, for example) any merged pair counts. Other 64-bit floats round a
        little wherever there are many, so such a column counts if more than half of its values merge.
        """
        if np.can_cast(self.X.dtype, np.float32):
            return []
        found = []
        for column, values in enumerate(self.X.reshape(self.n_points, -1).T):
            integers = values.dtype.kind in "iu"
            if integers and values.min() >= -(2**24) and values.max() <= 2**24:
                continue
            with np.errstate(over="ignore"):
                if not integers and (values.astype(np.float32) == values).all():
                    continue
                ordered = np.sort(values)
                rounded = ordered.astype(np.float32)
            before, after = (1 + int((array[1:] != array[:-1]).sum()) for array in (ordered, rounded))
            whole = integers or bool((values == np.rint(values)).all())
            if after < before if whole else 2 * after < before:
                found.append((column, before, after))
        return found

    def save(self, folder: Path) -> None:
        """Write X.npy, y.npy and, where present, groups.npy and columns.npy into ``folder``."""
        named = self.columns or ()
        columns = np.array([[json.dumps(name), kind] for name, kind in named]) if named else None
        for name, array in (("X", self.X), ("y", self.y), ("groups", self.groups), ("columns", columns)):
            if array is None:
                (folder / f"{name}.npy").unlink(missing_ok=True)
            else:
                save_npy(folder / f"{name}.npy", array)

    @classmethod
    def load(cls, folder: Path) -> LabelledData:
        """Read what `save` wrote, mapped into memory, so that processes that load the same folder share its pages."""
        X, y = load_npy(folder / "X.npy"), load_npy(folder / "y.npy")
        groups = load_npy(folder / "groups.npy") if (folder / "groups.npy").exists() else None
        return cls(X, y, groups, folder.name, _load_columns(folder / "columns.npy", X.shape))


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


def _is_frame(values: Any) -> bool:
    """Whether values are a pandas data frame; pandas need not be installed."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(values, pandas.DataFrame)


def _columns(frame: Any) -> tuple[tuple[str | int, str], ...]:
    """Names and types of a frame's columns; one array must hold the values of all of them."""
    names = [name.item() if isinstance(name, np.integer) else name for name in frame.columns]
    if not all(isinstance(name, str | int) for name in names) or len(set(names)) < len(names):
        raise DataError(f"the columns of X are named {names[:5]}: give each its own text or whole number as name")
    for name, kind, values in zip(names, frame.dtypes, _checked_points(frame).T, strict=True):
        if not (frame[name].astype(values.dtype).astype(kind) == frame[name]).all():
            raise DataError(
                f"column {name!r} of X has type {kind} and loses digits in an array of all columns ({values.dtype}): "
                "give columns of one type"
            )
    return tuple((name, str(kind)) for name, kind in zip(names, frame.dtypes, strict=True))


def _load_columns(path: Path, shape: tuple[int, ...]) -> tuple[tuple[str | int, str], ...] | None:
    """Read the columns of a frame that `LabelledData.save` wrote; None if X was no frame."""
    if not path.exists():
        return None
    try:
        columns = tuple((json.loads(name), str(kind)) for name, kind in load_npy(path))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error}): write it again") from error
    names = [name for name, _ in columns if isinstance(name, str | int)]
    if shape[1:] != (len(columns),) or len(set(names)) < len(columns):
        raise DataError(f"{path} names {len(set(names))} columns, X has shape {shape}: write it again")
    return columns


def _checked_points(values: Any) -> Array:
    X = _as_array("X", values)
    if X.dtype.kind not in "buif":
        raise DataError(f"X has type {X.dtype}: numbers are needed; encode text and categories as numbers first")
    if X.ndim not in (2, 3, 4) or 0 in X.shape:
        raise DataError(
            f"X has shape {X.shape}: [points, features], or [points, height, width] or "
            "[points, height, width, channels] for images, is needed, with no empty axis"
        )
    if X.ndim == 4 and X.shape[1] in (1, 3) and X.shape[3] > 4:
        raise DataError(
            f"X has shape {X.shape} with channels first, but [points, height, width, channels] is needed: "
            "numpy.moveaxis(X, 1, -1) puts them last"
        )
    if X.dtype.kind == "f":
        _require_finite(X)
    return X


def _require_finite(X: Array) -> None:
    for start, block in _blocks(X):
        finite = np.isfinite(block)
        if not finite.all():
            where = np.argwhere(~finite)[0]
            raise DataError(
                f"X holds {block[tuple(where)]} at point {start + where[0]}, position {where[1:].tolist()}, but every "
                "value must be finite: fill in or remove missing values"
            )


def _checked_labels(values: Any, n_points: int) -> IntArray:
    y = _as_array("y", values)
    if y.ndim != 1:
        raise DataError(f"y has shape {y.shape}: one label per point, [points], is needed (numpy.ravel flattens it)")
    if len(y) != n_points:
        raise DataError(f"X has {n_points} points, y has {len(y)}: both need the same points in the same order")
    if y.dtype.kind not in "ui":
        raise DataError(
            f"y has type {y.dtype} (it starts with {y[:1].tolist()[0]!r}), integers 0 to C - 1 are needed: {_RENUMBER}"
        )
    labels, counts = np.unique(y, return_counts=True)
    if labels[0] < 0:
        raise DataError(f"y holds {labels[0]}, labels must be 0 to C - 1: {_RENUMBER}")
    misplaced = np.flatnonzero(labels != np.arange(len(labels)))
    if len(misplaced):
        raise DataError(
            f"y holds {labels[misplaced[0]]} but no {misplaced[0]}, "
            f"its {len(labels)} labels must be 0 to {len(labels) - 1}: {_RENUMBER}"
        )
    if len(labels) < 2:
        raise DataError("y holds only label 0, at least 2 classes are needed: add points of another class")
    if counts.min() < 2:
        raise DataError(
            f"class {counts.argmin()} has 1 point, at least 2 are needed to train with and without it: "
            "add points, or leave the class out"
        )
    return y.astype(np.int64, copy=False)


def checked_groups(values: Any, n_points: int) -> IntArray:
    """Groups as int64 [points]; raises `DataError` unless there is one whole number per point, and 2 groups or more."""
    groups = _as_array("groups", values)
    if groups.shape != (n_points,) or groups.dtype.kind not in "ui":
        raise DataError(
            f"groups have shape {groups.shape} and type {groups.dtype}, integers [{n_points}] are needed, one per "
            "point: numpy.unique(groups, return_inverse=True)[1] numbers names"
        )
    if (groups == groups[0]).all():
        raise DataError(f"all points belong to group {groups[0]}, at least 2 are needed: give more groups, or none")
    return groups.astype(np.int64, copy=False)


# Reading -------------------------------------------------------------------------------------------------------------


def read_data(path: Path, part: Part = "train", verify: bool = True) -> LabelledData:
    """Read a data set; its form is recognised from what is found at the path.

    Parameters
    ----------
    path : Path
        An npz with `X` [points, ...], `y` [points] and optionally `groups` [points], where `X` may be bits packed
        along features together with `n_features`; an npz with `features` and `labels` (integers, or one-hot
        [points, classes]); a folder written by `LabelledData.save`; or a published archive or its folder, see
        `plmia.data.archives.read_archive`.
    part : {"train", "valid", "test"}
        Which part of a published archive.
    verify : bool
        Whether to compare a published archive with its checksum and number of points.
    """
    if not path.exists():
        raise DataError(f"there is no {path}: give an npz with `X` and `y`, or a published archive")
    if (path / "X.npy").exists():
        return LabelledData.load(path)
    if path.is_file() and (path.suffix in (".npz", ".npy") or _starts_like_numpy(path)):
        return _from_npz(path)
    from plmia.data.archives import read_archive

    found = read_archive(path, part, verify)
    return _located(path, found.X, found.y, None, found.name)


def _located(path: Path, X: Array, y: Array, groups: Array | None, name: str) -> LabelledData:
    try:
        return LabelledData(X, y, groups, name)
    except DataError as error:
        raise DataError(f"in {path} {error}") from error


def _starts_like_numpy(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(6)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}): check its permissions") from error
    return start.startswith(b"PK\x03\x04") or start == NPY_MAGIC


def _from_npz(path: Path) -> LabelledData:
    names = {"X", "y", "groups", "n_features", "features", "labels"}
    arrays = load_npz(path, names, "`X` and `y`", DataError)
    if "X" not in arrays and {"features", "labels"} <= arrays.keys():
        return _located(path, arrays["features"], _from_one_hot(path, arrays["labels"]), None, path.stem)
    for name in ("X", "y"):
        if name not in arrays:
            raise DataError(f"{path} holds no array {name!r}: save `X` and `y` with numpy.savez")
    X = arrays["X"]
    if "n_features" in arrays:
        X = _unpacked(path, X, arrays["n_features"])
    return _located(path, X, arrays["y"], arrays.get("groups"), path.stem)


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
