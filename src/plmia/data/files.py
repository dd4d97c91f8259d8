"""Files that only their owner may read, and that are there whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from plmia.errors import StoreError


def create_private(path: Path) -> BinaryIO:
    """Create a file that only its owner may read, whatever the umask; nothing may be there, not even a link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o600)
    if os.name == "posix":
        os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "w+b")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a private file under a name of its own, which takes the place of ``path`` when the block ends well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with create_private(temporary) as file:
            yield file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


# The files under a store: a folder here or behind a URL, atomic writes, npy headers that are compared, not parsed.

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


# Files of a results folder: private, prepared out of sight, and published together by one rename.
#
# A run is prepared in a folder of its own inside the results folder. One rename of that folder to `PENDING` publishes
# the run; then each file moves from there to its name. A writer that is killed before the rename leaves the earlier
# run, one that is killed after it leaves the new run: readers look into `PENDING` first, and the next writer moves
# the rest. A lock on the results folder keeps readers from looking while files move.

# In the order in which they move: metrics.json holds the digests of the others.
PARTS = ("scores.npz", "records.csv", "metrics.json")
PAGE, FIGURES = "report.html", "figures"
PENDING = ".published"
# What a report writes into `FIGURES`, and the next report or run removes.
FIGURE_FILES = ("*.svg", "*.json", "*.png", "attacks.csv")

# Whether a writer of another machine lives is not known: what it prepares is removed when it was idle for this long.
ABANDONED_SECONDS = 86_400.0
_OWNER = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
_PREFIX, _SUFFIX = ".plmia-", ".tmp"


def make_private(folder: Path) -> list[Path]:
    """Make a folder that only its owner may open, and its parents likewise; return those that were made."""
    made: list[Path] = []
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        for path in reversed(missing):
            with suppress(FileExistsError):  # another run was faster
                path.mkdir(mode=0o700)
                made.insert(0, path)
                path.chmod(0o700)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    except OSError:
        remove_empty(made)
        raise
    return made


def remove_empty(folders: list[Path]) -> None:
    """Remove folders, as far as they are empty."""
    for path in folders:
        with suppress(OSError):
            path.rmdir()


@contextmanager
def folder_lock(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Exclude other writers and all readers; or, ``shared``, writers alone.

    The lock ends with the process, however that ends. Where the file system has no locks there is none, and digests
    tell what belongs together.
    """
    with _locked(folder, shared=shared, wait=True):
        yield


@contextmanager
def _locked(folder: Path, *, shared: bool, wait: bool) -> Iterator[bool]:
    """Lock a folder; yield whether it is known that no other process holds it."""
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW * (not wait))
    free = True
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB * (not wait))
        except OSError as error:
            free = error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
        yield free
    finally:
        # Closing would not do if a child that was forked meanwhile holds the folder open, too.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


class Staging:
    """A private folder inside a results folder, where files are prepared; gone at the end, however that comes.

    Parameters
    ----------
    folder : Path
        The results folder; made if it does not exist, and removed again if nothing is published.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Staging:
        self._made = make_private(self.folder)
        try:
            # Under the lock, so that nobody sweeps a folder away that its writer has not locked yet.
            with folder_lock(self.folder):
                _sweep(self.folder)
                name = tempfile.mkdtemp(_SUFFIX, f"{_PREFIX}{_OWNER}-", self.folder)
                self.path = Path(name)
                self.path.chmod(0o700)
                self._alive = _locked(self.path, shared=False, wait=False)
                self._alive.__enter__()
        except BaseException:
            remove_empty(self._made)
            raise
        return self

    def create(self, name: str) -> BinaryIO:
        """Create one of the files."""
        return create_private(self.path / name)

    def publish(self) -> None:
        """Put the prepared run in the place of the earlier one; whoever publishes last wins whole."""
        for path in self.path.iterdir():
            _sync(path)
        with folder_lock(self.folder):
            finish_publication(self.folder)
            for name in (*PARTS, PAGE):
                if (self.folder / name).is_dir() and not (self.folder / name).is_symlink():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self.folder / name))
            self.path.rename(self.folder / PENDING)  # this publishes the run
            sync_folder(self.folder)
            finish_publication(self.folder)
            sync_folder(self.folder)
        self._made = []

    def place(self, prepared: str, name: str) -> None:
        """Move one file to its name in the results folder; a link of that name is replaced, not followed."""
        (self.path / prepared).replace(self.folder / name)
        self._made = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._alive.__exit__(None, None, None)
        remove_empty(self._made)


def finish_publication(folder: Path) -> None:
    """Give the files of a published run their names, where its writer did not; to be called under the lock."""
    pending = folder / PENDING
    if pending.is_symlink() or pending.is_file():
        pending.unlink()  # nothing that plmia made
    if not pending.is_dir():
        return
    if (pending / "metrics.json").exists():
        # Of an earlier run: they must not stay beside this one and say something else.
        (folder / PAGE).unlink(missing_ok=True)
        remove_figures(folder)
        remove_empty([folder / FIGURES])
    for name in PARTS:
        with suppress(FileNotFoundError):
            (pending / name).replace(folder / name)
    shutil.rmtree(pending)


def remove_figures(folder: Path) -> None:
    """Remove the figures of an earlier report; what else is in their folder stays."""
    figures = folder / FIGURES
    if figures.is_symlink():
        figures.unlink()
    if not figures.is_dir():
        return
    for pattern in FIGURE_FILES:
        for path in figures.glob(pattern):
            path.unlink()


def open_parts(folder: Path) -> dict[str, BinaryIO]:
    """Open the files of the run that a folder holds, all of the same run; records.csv may be missing."""
    with folder_lock(folder, shared=True):
        pending = folder / PENDING
        places = [folder] if pending.is_symlink() or not pending.is_dir() else [pending, folder]
        found: dict[str, BinaryIO] = {}
        try:
            for name in PARTS:
                path = next((place / name for place in places if os.path.lexists(place / name)), folder / name)
                if name != "records.csv" or os.path.lexists(path):
                    found[name] = _opened(path)
        except BaseException:
            for file in found.values():
                file.close()
            raise
    return found


def _opened(path: Path) -> BinaryIO:
    """Open a plain file; a pipe in its place does not make anybody wait."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return os.fdopen(descriptor, "rb")


def _sync(path: Path) -> None:
    """Make the contents of a file durable."""
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove what killed writers prepared: a living one holds the lock of its folder, on this machine at least."""
    for path in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        if path.is_symlink() or not path.is_dir():
            continue
        with suppress(OSError):
            ours = path.name.startswith(f"{_PREFIX}{_OWNER}-")
            touched = max(entry.stat().st_mtime for entry in (path, *path.iterdir()))
            with _locked(path, shared=False, wait=False) as free:
                if free and (ours or time.time() - touched > ABANDONED_SECONDS):
                    shutil.rmtree(path, ignore_errors=True)
