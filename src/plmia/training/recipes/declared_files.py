"""Files that the user's training reads in addition to the data: declared, and identified by their contents."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from plmia.errors import RecipeError, shown

_opened = threading.local()


@dataclass(frozen=True)
class DeclaredFile:
    """A file or folder that a recipe reads."""

    name: str  # relative path as declared, or the last part of an absolute one: the location does not matter
    path: str  # absolute path when it was hashed
    digest: str  # SHA-256 of its contents


def declare_files(files: Any, base: Path, where: str) -> tuple[DeclaredFile, ...]:
    """Hash the contents of declared files, and of all files in declared folders.

    Relative paths start from ``base``; error messages say ``where`` the files are declared.
    """
    if isinstance(files, str | bytes | Path) or not isinstance(files, Iterable):
        raise RecipeError(f"{where} is {files!r}: give a list of paths, such as ['texts.npy']")
    found: dict[str, DeclaredFile] = {}
    for file in files:
        if not isinstance(file, str | Path) or not str(file):
            raise RecipeError(f"{where} holds {file!r}: give paths, such as 'texts.npy'")
        name = shown(Path(file).name if Path(file).is_absolute() else Path(file).as_posix())
        if name in found:
            raise RecipeError(f"{where} holds two files called {name}: give each once, by relative paths")
        path = (base / file).absolute()
        found[name] = DeclaredFile(name, str(path), _digest(path, f"{name} of {where}"))
    return tuple(found[name] for name in sorted(found))


def changed_files(files: Iterable[DeclaredFile], seen: dict[str, object]) -> list[str]:
    """Names of declared files whose contents changed.

    ``seen`` holds times and sizes at the last call and is updated; a file is hashed again only if these changed.
    """
    changed = []
    for file in files:
        marks = _marks(Path(file.path))
        if seen.get(file.name) != marks:
            if _digest(Path(file.path), file.name) != file.digest:
                changed.append(file.name)
            seen[file.name] = marks
    return changed


def _marks(path: Path) -> object:
    """Times and sizes of a file or of all files in a folder: they differ after a write."""
    found = []
    for inner in [path, *(path.rglob("*") if path.is_dir() else ())]:
        with contextlib.suppress(OSError):
            status = inner.stat()
            found.append((str(inner), status.st_mtime_ns, status.st_size))
    return sorted(found)


def files_json(files: Iterable[DeclaredFile]) -> dict[str, dict[str, str]]:
    """Part of a recipe's JSON: digests by name, empty without files."""
    digests = {file.name: file.digest for file in files}
    return {"files": digests} if digests else {}


def _digest(path: Path, what: str) -> str:
    """SHA-256 of a file, or of the names and contents of all files in a folder."""
    try:
        if not path.is_dir():
            return _of_file(path)
        sha = hashlib.sha256()
        for inner in sorted(inner.relative_to(path).as_posix() for inner in path.rglob("*") if inner.is_file()):
            sha.update(f"{_of_file(path / inner)} {inner}\n".encode(errors="surrogateescape"))
        return sha.hexdigest()
    except FileNotFoundError as error:
        raise RecipeError(f"{what} does not exist at {path}: correct the path, or leave it out") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecipeError(f"{what} cannot be read ({reason}): check {path} and its permissions") from error


def _of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def noting_reads() -> Iterator[set[str]]:
    """Collect the absolute paths of data files that this thread opens for reading through Python.

    Files that libraries open in C (HDF5, Arrow) are missed. So is code, which is read on its first import only; see
    `imported_files`.
    """
    _install_hook()
    before, _opened.paths = getattr(_opened, "paths", None), set[str]()
    try:
        yield _opened.paths
    finally:
        _opened.paths = before


@functools.cache
def _install_hook() -> None:
    # Python cannot remove a hook again; this one does nothing unless `noting_reads` is active in the thread.
    sys.addaudithook(_note_read)


def _note_read(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open":
        return
    paths = getattr(_opened, "paths", None)
    if paths is not None and isinstance(arguments[0], str | bytes):
        path, flags = os.fsdecode(arguments[0]), arguments[2]
        reads = not isinstance(flags, int) or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) == 0
        if reads and not path.endswith((".py", ".pyc")):
            with contextlib.suppress(OSError):  # the working folder may be gone; the user's code must go on
                paths.add(str(Path(path).absolute()))


def imported_files(module: ModuleType) -> set[str]:
    """Absolute paths of the files of all modules that a module's names come from."""
    found = set()
    for value in vars(module).values():
        home = value if isinstance(value, ModuleType) else None
        if isinstance(value, type | FunctionType):
            home = sys.modules.get(value.__module__)
        file = getattr(home, "__file__", None)
        if isinstance(file, str) and home is not module:
            found.add(str(Path(file).absolute()))
    return found


def undeclared(paths: Iterable[str], declared: Iterable[DeclaredFile], base: Path) -> tuple[str, ...]:
    """Files among ``paths`` that a recipe read without declaring them: relative to ``base``, or by their names alone.

    Files of Python, its packages, plmia and the system are left out. So are hidden files, and temporary ones unless the
    recipe itself is temporary.
    """
    roots = [sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]), "/proc", "/sys", "/dev", "/etc", "/usr"]
    home = base.resolve()
    temporary = Path(tempfile.gettempdir()).resolve()
    if not home.is_relative_to(temporary):
        roots.append(str(temporary))
    ignored = [Path(root).resolve() for root in roots]
    known = [Path(file.path).resolve() for file in declared]
    found = set()
    for path in map(Path, paths):
        real = path.resolve()
        inside = real.relative_to(home) if real.is_relative_to(home) else real
        foreign = any(real.is_relative_to(root) for root in ignored) or "site-packages" in real.parts
        hidden = any(part.startswith(".") for part in inside.parts)
        if not (foreign or hidden or any(real.is_relative_to(entry) for entry in known)) and real.is_file():
            found.add(shown(real.name if inside.is_absolute() else inside.as_posix()))
    return tuple(sorted(found))
