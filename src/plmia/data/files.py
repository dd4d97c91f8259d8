"""Files that plmia writes: private, complete or absent, and published together.

Every file that plmia keeps is written through this module, in one of three ways:

- `replacing` and `write_atomically` prepare one file under a temporary name and rename it at the end. A reader sees the
  earlier file or the new one, never a part of it.
- `Staging` prepares all files of a run in a private folder inside the results folder. One rename of that folder to
  `PENDING` publishes the run; then each file moves to its final name. A writer that is killed before the rename leaves
  the earlier run, one that is killed after it leaves the new run: readers look into `PENDING` first, and the next
  writer moves the remaining files.
- A store of signals writes in place and has its own protocol, see `plmia.signals.store`.

Only the owner may read these files, whatever the umask. Temporary names have one form (`temporary_beside`), so that the
files of killed writers are recognised and removed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

import numpy as np

from plmia.data.arrays import Array
from plmia.errors import PlmiaError, shown

# Temporary files are removed after an hour without a write: a living writer takes moments.
LEFTOVER_SECONDS = 3600.0
# A staging folder of another machine is removed after a day without a write: its lock may not be visible here.
ABANDONED_SECONDS = 86_400.0
_MOST_FILES = 5  # that a message names
_MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]

# Files of a run in the order in which they move: metrics.json holds the digests of the others.
PARTS = ("scores.npz", "people.csv", "records.csv", "trainings.csv", "metrics.json")
# Those that a run or an earlier version may lack.
OPTIONAL_PARTS = ("people.csv", "records.csv", "trainings.csv")
PAGE, FIGURES = "report.html", "figures"
PENDING = ".published"
# Files that a report writes into `FIGURES`, and that the next report or run removes.
FIGURE_FILES = ("*.svg", "*.json", "*.png", "attacks.csv")


# One file ------------------------------------------------------------------------------------------------------------


def temporary_beside(path: Path) -> Path:
    """Return a new temporary name in the folder of ``path``: ``.NAME.PROCESS-MACHINE-RANDOM.tmp``."""
    if not path.name:  # "/" or "."
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return path.with_name(f".{path.name}.{os.getpid()}-{_MACHINE}-{secrets.token_hex(4)}.tmp")


def create_private(path: Path) -> BinaryIO:
    """Create a file that only its owner may read, whatever the umask; nothing may exist there, not even a link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o600)
    if os.name == "posix":
        os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "w+b")


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """Open a private temporary file that replaces ``path`` when the block ends without an error.

    If ``durable``, the file survives a power cut from then on.
    """
    temporary = temporary_beside(path)
    try:
        with create_private(temporary) as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def write_atomically(path: Path, *parts: Array | bytes) -> None:
    """Write a file so that it is complete or absent, even after a power cut."""
    with replacing(path, durable=True) as file:
        for part in parts:
            write_all(file.fileno(), part)


def as_bytes(data: Array | bytes | memoryview) -> memoryview:
    """View of the bytes of an array (C-contiguous) or buffer; no copy."""
    return (data.data if isinstance(data, np.ndarray) else memoryview(data)).cast("B")


def write_all(descriptor: int, data: Array | bytes) -> None:
    """Write the bytes of an array or buffer, in as many system calls as needed."""
    rest = as_bytes(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable, where the system can."""
    if os.name == "posix":
        _sync(path, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_temporary(name: str, of: str = r".+") -> bool:
    """Whether a name is one of `temporary_beside`, of a file whose final name matches ``of``."""
    # Earlier versions wrote no machine into the name.
    return re.fullmatch(rf"\.{of}\.\d+-(?:[0-9a-f]{{8}}-)?[0-9a-f]{{8}}\.tmp", name) is not None


def remove_leftovers(folder: Path, of: str = r".+") -> None:
    """Remove temporary files and folders of killed writers whose final name matches ``of``.

    Age decides, since the process number of a writer on another machine means nothing here.
    """
    with suppress(OSError):
        for entry in folder.iterdir():
            if is_temporary(entry.name, of) and time.time() - entry.stat().st_mtime > LEFTOVER_SECONDS:
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink()


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; OSError for a pipe, a device or a folder, which could wait or never end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is a pipe or a device, a regular file is needed", str(path))
    return os.fdopen(descriptor, "rb")


def exists(path: Path) -> bool:
    """Whether there is something at a path; Path's own check raises on a name that is too long, as do the next two."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path) -> bool:
    """Whether there is a regular file at a path."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Whether there is a folder at a path."""
    return os.path.isdir(path)  # noqa: PTH112


def require_no_pipe(path: Path, error: type[PlmiaError]) -> None:
    """Raise for a pipe or a device, which could wait or never end, and which is read only once."""
    if exists(path) and not (is_file(path) or is_folder(path)):
        raise error(f"{path} is a pipe or a device: write its contents to a file first, and give that file")


def files_in(folder: Path, suffixes: tuple[str, ...]) -> str:
    """Say which files with these suffixes are in a folder, as advice to give one of them."""
    try:
        names = sorted(file.name for file in folder.iterdir() if file.name.lower().endswith(suffixes) and is_file(file))
    except OSError:
        names = []
    if not names:
        return f"it has no file that ends in {', '.join(suffixes)}, so check the path"
    rest = len(names) - _MOST_FILES
    more = f" and {rest:,} more" if rest > 0 else ""
    return f"give one of its files ({', '.join(shown(name) for name in names[:_MOST_FILES])}{more})"


def read_regular(path: Path) -> bytes:
    """Contents of a regular file; see `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def require_regular(path: Path) -> None:
    """Raise OSError unless a library that opens ``path`` itself finds a regular file, or a folder of these."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if not file.is_dir():
            open_regular(file).close()


# Locks and folders ---------------------------------------------------------------------------------------------------


@contextmanager
def file_lock(descriptor: int, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Lock an open file or folder; yield whether no other process is known to hold it.

    The lock ends with the process, however that ends. Where the system has no locks nothing is excluded, and the
    digests in the files reveal what does not belong together.
    """
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    free = True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB * (not wait))
    except OSError as error:
        free = error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    try:
        yield free
    finally:
        # Closing the file is not enough: a child process that was forked meanwhile may hold it open, too.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def folder_lock(folder: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Exclude other writers and all readers of a folder or, if ``shared``, writers only; see `file_lock`."""
    if sys.platform == "win32":
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW * (not wait))
    try:
        with file_lock(descriptor, shared=shared, wait=wait) as free:
            yield free
    finally:
        os.close(descriptor)


def make_private(folder: Path) -> list[Path]:
    """Make a folder that only its owner may open, and its parents likewise; return the new ones."""
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
    """Remove those folders that are empty."""
    for path in folders:
        with suppress(OSError):
            path.rmdir()


# A results folder ----------------------------------------------------------------------------------------------------


class Staging:
    """Private folder inside a results folder, in which files are prepared; removed at the end in any case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # made if it does not exist, and removed again if nothing is published

    def __enter__(self) -> Staging:
        self._made, self._alive = make_private(self.folder), ExitStack()
        try:
            # Under the lock, so that no other process removes the new folder before it is locked.
            with folder_lock(self.folder):
                _remove_abandoned(self.folder)
                self.path = temporary_beside(self.folder / "plmia")
                self.path.mkdir()
                self.path.chmod(0o700)
                self._alive.enter_context(folder_lock(self.path, wait=False))
        except BaseException:
            remove_empty(self._made)
            raise
        return self

    def create(self, name: str) -> BinaryIO:
        """Create one of the files."""
        return create_private(self.path / name)

    def publish(self) -> None:
        """Replace the earlier run by the prepared one; of several writers, the last replaces all files."""
        for path in self.path.iterdir():
            _sync(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
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

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._alive.close()
        remove_empty(self._made)


def _remove_abandoned(folder: Path) -> None:
    """Remove staging folders of killed writers: a living writer holds the lock of its folder, on this machine."""
    for path in folder.glob(".plmia[.-]*.tmp"):  # earlier versions began the name with ".plmia-MACHINE-"
        if path.is_symlink() or not path.is_dir():
            continue
        with suppress(OSError):
            last_write = max(entry.stat().st_mtime for entry in (path, *path.iterdir()))
            abandoned = f"-{_MACHINE}-" in path.name or time.time() - last_write > ABANDONED_SECONDS
            with folder_lock(path, wait=False) as free:
                if free and abandoned:
                    shutil.rmtree(path, ignore_errors=True)


def finish_publication(folder: Path) -> None:
    """Move the files of a published run to their names, if its writer did not; requires the folder's lock."""
    pending = folder / PENDING
    if pending.is_symlink() or pending.is_file():
        pending.unlink()  # plmia makes neither
    if not pending.is_dir():
        return
    if (pending / "metrics.json").exists():
        # The page and the figures of the earlier run would contradict the new one.
        (folder / PAGE).unlink(missing_ok=True)
        remove_figures(folder)
        remove_empty([folder / FIGURES])
    if (pending / PARTS[0]).exists():
        # No file has moved yet: what the new run does not have is of the earlier one.
        for name in OPTIONAL_PARTS:
            if not (pending / name).exists():
                (folder / name).unlink(missing_ok=True)
    for name in PARTS:
        with suppress(FileNotFoundError):
            (pending / name).replace(folder / name)
    shutil.rmtree(pending)


def remove_figures(folder: Path) -> None:
    """Remove the figures of an earlier report; other files in their folder stay."""
    figures = folder / FIGURES
    if figures.is_symlink():
        figures.unlink()
    if not figures.is_dir():
        return
    for pattern in FIGURE_FILES:
        for path in figures.glob(pattern):
            path.unlink()


def open_parts(folder: Path) -> dict[str, BinaryIO]:
    """Open the files of the run in a folder, all of the same run; tables of records or people may be missing."""
    with folder_lock(folder, shared=True), ExitStack() as opened:
        pending = folder / PENDING
        places = [folder] if pending.is_symlink() or not pending.is_dir() else [pending, folder]
        found: dict[str, BinaryIO] = {}
        for name in PARTS:
            path = next((place / name for place in places if os.path.lexists(place / name)), folder / name)
            if name not in OPTIONAL_PARTS or os.path.lexists(path):
                found[name] = opened.enter_context(open_regular(path))
        opened.pop_all()
    return found
