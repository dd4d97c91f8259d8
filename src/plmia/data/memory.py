"""A limit on memory: large arrays are kept in files, and pages of files that were read or written are given back.

Within `memory_limit`, `empty` and its relatives return an array that is mapped to a file without a name as soon as it
takes a noticeable share of the limit. The operating system writes such pages to the disk and drops them from memory
when `release` is called, which loops over blocks of records do after each block. The values are the same with and
without a limit, so results do not depend on it. Without a limit, arrays are ordinary ones.
"""

from __future__ import annotations

import mmap
import os
import re
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.data.arrays import Array, BoolArray, IntArray
from plmia.errors import MemoryLimitError, count_text

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
# Arrays that take more than this share of the limit are kept in files.
_SHARE = 64
# Values that are copied from one array to another at a time.
_AT_ONCE = 1 << 20
# Python and the libraries that a run imports; measured, see `benchmarks/memory.py`.
LEAST_LIMIT = 256 * 10**6
MOST_LIMIT = 10**18
# Characters of a limit that a message shows.
_SHOWN = 40


@dataclass(frozen=True)
class _Limit:
    n_bytes: int
    folder: Path


_limit: ContextVar[_Limit | None] = ContextVar("plmia_memory_limit", default=None)
# Mappings whose pages can be given back at any time.
_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
# Threads add and list them.
_listing = threading.Lock()


def parse_size(size: int | float | str) -> int:
    """Return a number of bytes from a number, or from a text such as "1GB", "512 MB" or "2GiB"."""
    if isinstance(size, int) and size > MOST_LIMIT:
        raise _too_large(f"of {count_text(size)} bytes")
    text = str(size).strip()
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text, re.IGNORECASE)
    if found is None or (found[3] and not found[2]):
        raise MemoryLimitError(f"the memory limit {text[:_SHOWN]!r} is not a size: give one such as 1GB or 512MB")
    unit = UNITS[found[2].upper()]
    if found[3]:
        unit = 1 << 10 * list(UNITS.values()).index(unit)
    if float(found[1]) * unit > MOST_LIMIT:
        raise _too_large(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
    n_bytes = int(float(found[1]) * unit)
    if n_bytes < LEAST_LIMIT and not found[2]:
        raise MemoryLimitError(f"the memory limit {text} has no unit, so it is in bytes: write {found[1]}MB")
    if n_bytes < LEAST_LIMIT:
        raise MemoryLimitError(
            f"the memory limit {text} is below {size_text(LEAST_LIMIT)}, which Python and its libraries take: give more"
        )
    return n_bytes


def _too_large(limit: str) -> MemoryLimitError:
    return MemoryLimitError(
        f"the memory limit {limit} is above {MOST_LIMIT // 10**12:,} TB, more than any machine has: give one such as "
        "1GB, or leave it out"
    )


def size_text(n_bytes: float) -> str:
    """Write a number of bytes for a message, rounded up."""
    if n_bytes >= 10**9:
        return f"{-(-n_bytes // 10**8) / 10:g} GB"
    return f"{-(-n_bytes // 10**6):.0f} MB"


@contextmanager
def memory_limit(n_bytes: int | None, folder: Path) -> Iterator[None]:
    """Keep large arrays that are made within the block in files below ``folder``; None for no limit."""
    if n_bytes is None:
        yield
        return
    place = next((path for path in (folder, *folder.absolute().parents) if path.is_dir()), Path(tempfile.gettempdir()))
    token = _limit.set(_Limit(n_bytes, place))
    try:
        yield
    finally:
        _limit.reset(token)


def limit_in_bytes() -> int | None:
    """Return the limit that holds now, if there is one."""
    limit = _limit.get()
    return None if limit is None else limit.n_bytes


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Return an array whose values are arbitrary; a large one is kept in a file where a limit holds."""
    limit, kind = _limit.get(), np.dtype(dtype)
    n_bytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if limit is None or n_bytes <= limit.n_bytes // _SHARE:
        return np.empty(shape, kind)
    try:
        with tempfile.TemporaryFile(dir=limit.folder) as file:
            # Reserved at once: a disk that is full later would end the process without a message.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, n_bytes)
            else:
                for start in range(0, n_bytes, _AT_ONCE):
                    file.write(bytes(min(_AT_ONCE, n_bytes - start)))
                file.flush()
            mapping = mmap.mmap(file.fileno(), n_bytes)
    except OSError as error:
        raise MemoryLimitError(
            f"{size_text(n_bytes)} cannot be kept in a file in {limit.folder} ({error.strerror}): make room there, or "
            "raise the memory limit"
        ) from error
    with _listing:
        _mapped.add(mapping)
    return np.frombuffer(mapping, kind).reshape(shape)


def zeros(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Return an array of zeros, kept where `empty` keeps one."""
    array = empty(shape, dtype)
    if is_mapped(array):  # a new file holds zeros
        return array
    array[...] = 0
    return array


def copied(array: Array, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Return a copy, kept where `empty` keeps one; both are given back piece by piece."""
    copy = empty(array.shape, array.dtype if dtype is None else dtype)
    if not is_mapped(copy) and not is_mapped(array):
        copy[...] = array
        return copy
    width = max(1, _AT_ONCE // max(1, int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), width):
        copy[start : start + width] = array[start : start + width]
        release()
    return copy


def rows_of(matrix: npt.NDArray[Any], rows: IntArray) -> npt.NDArray[Any]:
    """Return some rows of a matrix: a view if they are consecutive, otherwise a copy kept where `empty` keeps one."""
    if len(rows) and bool(np.all(np.diff(rows) == 1)):
        return matrix[rows[0] : rows[-1] + 1]
    chosen = empty((len(rows), *matrix.shape[1:]), matrix.dtype)
    for to, row in zip(chosen, rows, strict=True):
        to[...] = matrix[row]
        release()
    return chosen


def gathered(matrix: npt.NDArray[Any], points: IntArray, rows: IntArray | None = None) -> npt.NDArray[Any]:
    """Return ``matrix[rows][:, points]`` as a copy; by default of all rows. A mapped matrix is read row by row."""
    if not is_mapped(matrix):
        return matrix[:, points] if rows is None else matrix[rows[:, None], points]
    chosen = range(len(matrix)) if rows is None else rows.tolist()
    found = empty((len(chosen), len(points), *matrix.shape[2:]), matrix.dtype)
    for to, row in zip(found, chosen, strict=True):
        to[...] = matrix[row][points]
        release()
    return found


def require(n_bytes: float, what: str, remedy: str) -> None:
    """Raise unless ``n_bytes`` are within the limit, if there is one."""
    limit = limit_in_bytes()
    if limit is not None and n_bytes > limit:
        raise MemoryLimitError(
            f"{what} needs about {size_text(n_bytes)} of memory, the limit is {size_text(limit)}: {remedy}, or raise "
            "the memory limit"
        )


def count_rows(matrix: BoolArray, rows: Iterable[int] | None = None) -> npt.NDArray[np.int32]:
    """Count [columns] how many rows are true; of ``rows`` only, if they are given. One row is read at a time."""
    total = np.zeros(matrix.shape[1], np.int32)
    for row in range(len(matrix)) if rows is None else rows:
        total += matrix[row]
        release()
    return total


def is_mapped(array: Array) -> bool:
    """Whether an array is mapped to a file."""
    return _mapping(array) is not None


def registered(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Let `release` give back the pages of an array that is mapped to a file, and return it."""
    mapping = _mapping(array)
    if mapping is not None:
        with _listing:
            _mapped.add(mapping)
    return array


def release() -> None:
    """Give back the pages of all mapped files; they are read again if needed. Does nothing without a limit."""
    if _limit.get() is None or not hasattr(mmap, "MADV_DONTNEED"):  # not on every system
        return
    with _listing:
        mappings = list(_mapped)
    for mapping in mappings:
        with suppress(ValueError):  # closed meanwhile
            mapping.madvise(mmap.MADV_DONTNEED)


def _mapping(array: Array) -> mmap.mmap | None:
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None
