"""The files under a store: a folder here or behind a URL, atomic writes, npy headers that are compared, not parsed."""

from __future__ import annotations

import errno
import math
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from plmia.errors import StoreError
from plmia.private_files import create_private

NPY_HEADER_BYTES = 128
RANGES_AT_ONCE = 16
LEFTOVER_SECONDS = 3600.0
# What to do about a file that is lost.
RESTORE = "restore it from a copy, or start anew in another folder"

Array = npt.NDArray[Any]


class Folder(Protocol):
    """Where a store lies; reading only. Names are relative to it, errors are OSErrors."""

    def read(self, names: Sequence[str]) -> list[bytes]:
        """Contents of files."""

    def names(self, below: str) -> list[str]:
        """Sorted names in a folder below; none if there is no such folder."""

    def size(self, name: str) -> int:
        """Length of a file in bytes."""

    def ranges(self, name: str, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Bytes from start to stop of each span; fewer where the file ends before."""


@dataclass(frozen=True)
class LocalFolder:
    """A folder of this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def read(self, names: Sequence[str]) -> list[bytes]:
        """Contents of files."""
        return [(self.path / name).read_bytes() for name in names]

    def names(self, below: str) -> list[str]:
        """Sorted names in a folder below; none if there is no such folder."""
        try:
            return sorted(entry.name for entry in (self.path / below).iterdir())
        except FileNotFoundError:
            return []

    def size(self, name: str) -> int:
        """Length of a file in bytes."""
        return (self.path / name).stat().st_size

    def ranges(self, name: str, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Bytes from start to stop of each span; fewer where the file ends before."""
        with (self.path / name).open("rb") as file:
            for start, stop in spans:
                file.seek(start)
                yield file.read(stop - start)


@dataclass(frozen=True)
class RemoteFolder:
    """A folder on a file system of fsspec, such as an object store."""

    url: str
    files: Any = field(repr=False)
    root: str = field(repr=False)

    @classmethod
    def at(cls, url: str) -> RemoteFolder:
        """Find the file system of a URL."""
        try:
            files, root = import_module("fsspec.core").url_to_fs(url)
        except ImportError as error:
            raise StoreError(
                f"{url} cannot be read ({error}): install fsspec and its package for this kind of address"
            ) from error
        except ValueError as error:
            raise StoreError(
                f"{url} cannot be read ({error}): give a folder, or an address that fsspec knows"
            ) from error
        return cls(url.rstrip("/"), files, root.rstrip("/"))

    def __str__(self) -> str:
        return self.url

    def read(self, names: Sequence[str]) -> list[bytes]:
        """Contents of files."""
        return self._fetch(names, [None] * len(names), [None] * len(names))

    def names(self, below: str) -> list[str]:
        """Sorted names in a folder below; none if there is no such folder, for object stores keep no empty ones."""
        self.files.invalidate_cache()
        try:
            with _os_errors():
                paths = self.files.ls(f"{self.root}/{below}", detail=False)
        except FileNotFoundError:
            return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

    def size(self, name: str) -> int:
        """Length of a file in bytes."""
        with _os_errors():
            return int(self.files.size(f"{self.root}/{name}"))

    def ranges(self, name: str, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Bytes from start to stop of each span, several at once; fewer where the file ends before."""
        for i in range(0, len(spans), RANGES_AT_ONCE):
            some = spans[i : i + RANGES_AT_ONCE]
            yield from self._fetch([name] * len(some), [start for start, _ in some], [stop for _, stop in some])

    def _fetch(self, names: Sequence[str], starts: Sequence[Any], stops: Sequence[Any]) -> list[bytes]:
        with _os_errors():
            found = self.files.cat_ranges([f"{self.root}/{name}" for name in names], starts, stops)
            for content in found:
                if isinstance(content, Exception):
                    raise content
        return list(found)


@contextmanager
def _os_errors() -> Iterator[None]:
    """Each file system of fsspec has errors of its own; here they are all OSErrors."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def folder_at(place: str | Path) -> LocalFolder | RemoteFolder:
    """Folder of a path or a URL."""
    return RemoteFolder.at(place) if isinstance(place, str) and "://" in place else LocalFolder(Path(place))


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn what the file system says into a StoreError about ``what``."""
    try:
        yield
    except FileNotFoundError as error:
        raise StoreError(f"{what} is missing: {RESTORE}") from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise StoreError(f"{what} cannot be read ({reason}): see that it is there and that you may read it") from error


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn what the file system says into a StoreError about ``what``; a full disk is called that."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StoreError(
                f"the disk is full, {what} could not be written: free some space and run again; "
                "what was finished before is kept"
            ) from error
        raise StoreError(
            f"{what} could not be written ({error.strerror or error}): see that the folder is there and that you may "
            "write to it, then run again; what was finished before is kept"
        ) from error


@contextmanager
def locked(path: Path) -> Iterator[FileIO]:
    """Open a file for positioned writes; only one process and thread is inside at a time.

    The lock ends with the process, however that ends. Where the file system has no locks there is none, and
    two writers of the same model are found by the checksums.
    """
    try:
        opened = path.open("r+b", buffering=0)
    except FileNotFoundError as error:
        raise StoreError(f"{path} is missing: {RESTORE}") from error
    with opened as file:
        if sys.platform == "win32":
            yield file
            return
        import fcntl

        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield file
        finally:
            # Closing would not do if a child that was forked meanwhile holds the file open, too.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)


def as_bytes(data: Array | bytes | memoryview) -> memoryview:
    """View of the bytes of an array (C-contiguous) or buffer; no copy."""
    return (data.data if isinstance(data, np.ndarray) else memoryview(data)).cast("B")


def write_at(file: FileIO, offset: int, data: Array | bytes) -> None:
    """Write all of ``data`` at ``offset``."""
    left = as_bytes(data)
    os.lseek(file.fileno(), offset, os.SEEK_SET)
    while left:
        left = left[os.write(file.fileno(), left) :]


def write_atomically(path: Path, *parts: Array | bytes) -> None:
    """Write a file so that it is there whole or not at all, even after a power cut."""
    temporary = temporary_beside(path)
    try:
        with create_private(temporary) as file:
            for part in parts:
                left = as_bytes(part)
                while left:
                    left = left[os.write(file.fileno(), left) :]
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable, where the system can."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def temporary_beside(path: Path) -> Path:
    """Name under which ``path`` is prepared; `sweep` knows it by its form."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def sweep(folder: Path, of: str = r".+") -> None:
    """Remove what killed writers left behind: temporary names of ``of`` (a pattern) not touched for an hour.

    By age, since a process number says nothing about writers on other machines. A live one takes moments.
    """
    pattern = re.compile(rf"\.{of}\.\d+-[0-9a-f]{{8}}\.tmp")
    with suppress(OSError):
        for entry in folder.iterdir():
            if pattern.fullmatch(entry.name) and time.time() - entry.stat().st_mtime > LEFTOVER_SECONDS:
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink()


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Header of an npy file, always 128 bytes: so an array can grow in place, and readers know where it begins."""
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape})
    length = NPY_HEADER_BYTES - 10
    if len(text) >= length:
        raise StoreError(f"an array of shape {shape} is too large to be stored")
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode("ascii") + b"\n"


def check_npy(what: str, start: bytes, size: int, dtype: str, shape: tuple[int, ...]) -> None:
    """Require that a file of ``size`` bytes that begins with ``start`` is an npy of this type and shape.

    Nothing in the header is believed: it must be the one expected, and the file must have the length that follows.
    """
    needed = NPY_HEADER_BYTES + math.prod(shape) * np.dtype(dtype).itemsize
    if size != needed or start[:NPY_HEADER_BYTES] != npy_header(dtype, shape):
        raise StoreError(
            f"{what} is damaged: an npy file of {dtype} {list(shape)}, {needed} bytes long, is expected and it has "
            f"{size} bytes or another header; copy it again, or start anew in another folder"
        )


def parse_npy(what: str, data: bytes, dtype: str, shape: tuple[int, ...]) -> Array:
    """Array of this type and shape from the bytes of an npy file; never unpickles."""
    check_npy(what, data, len(data), dtype, shape)
    return np.frombuffer(data, dtype, offset=NPY_HEADER_BYTES).reshape(shape)
