"""Files of a results folder: private, prepared out of sight, and published together by one rename.

A run is prepared in a folder of its own inside the results folder. One rename of that folder to `PENDING` publishes the
run; then each file moves from there to its name. A writer that is killed before the rename leaves the earlier run, one
that is killed after it leaves the new run: readers look into `PENDING` first, and the next writer moves the rest. A
lock on the results folder keeps readers from looking while files move.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from plmia.private_files import create_private
from plmia.store_files import sync_folder

# In the order in which they move: metrics.json holds the digests of the others.
PARTS = ("scores.npz", "records.csv", "metrics.json")
PAGE, FIGURES = "report.html", "figures"
PENDING = ".published"
# What a report writes into `FIGURES`, and the next report or run removes.
FIGURE_FILES = ("*.svg", "*.json", "*.png", "attacks.csv")

# Whether a writer of another machine lives is not known: what it prepares is removed when it was idle for this long.
LEFTOVER_SECONDS = 86_400.0
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
                if free and (ours or time.time() - touched > LEFTOVER_SECONDS):
                    shutil.rmtree(path, ignore_errors=True)
