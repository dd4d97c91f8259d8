"""Users' own Python files: attacks and recipes named on the command line."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from plmia.data.files import read_regular
from plmia.errors import PlmiaError

PASSED_ON = (KeyboardInterrupt, GeneratorExit)
"""What code of users may not stop: Ctrl-C, and the end of a generator. All else that it raises is its own error."""
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "bad_alloc", "unable to allocate")


def load_user_file(path: Path, kind: type[PlmiaError]) -> ModuleType:
    """Run a user's Python file and return its module; raises ``kind`` if it is missing or does not run."""
    return run_user_text(read_user_file(path, kind), path, kind)


def read_user_file(path: Path, kind: type[PlmiaError]) -> bytes:
    """Text of a user's Python file; raises ``kind`` if there is none."""
    try:
        if path.suffix == ".py":
            return read_regular(path)
    except (FileNotFoundError, ValueError):  # ValueError for names that no file can have
        pass
    except OSError as error:
        raise kind(f"there is no Python file {path} to read ({error.strerror or error}): check the path") from error
    raise kind(f"there is no Python file {path}: check the path")


def run_user_text(text: bytes, path: Path, kind: type[PlmiaError]) -> ModuleType:
    """Run the text of a user's file, even on a machine without the file, and return its module."""
    loader = _Text(f"plmia_user_{path.stem}", str(path), text)
    spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
    assert spec is not None  # noqa: S101 - it is given its loader; this tells the type checker
    module = importlib.util.module_from_spec(spec)
    # Modules beside the file can be imported, as if Python ran it; they come last, so that they hide no others.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    # Dataclasses look up their module by its name if annotations are strings.
    sys.modules[loader.name] = module
    try:
        loader.exec_module(module)
    except PASSED_ON:
        raise
    except BaseException as error:
        raise kind(f"{path} does not run: {described(error)}") from error
    return module


def failure(error: BaseException, file: str | None) -> str:
    """Describe the error that the user's code raised, with the last line of the user's file in its traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if file and frame.filename == file]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}{where}: {message_of(error)}"


def described(error: BaseException) -> str:
    """Class and text of an error."""
    return f"{type(error).__name__}: {message_of(error)}"


def message_of(error: BaseException) -> str:
    """Text of an error of any class; that class is the user's, so that its own code may fail."""
    try:
        return str(error)
    except PASSED_ON:
        raise
    except BaseException as another:
        return f"(its text cannot be read: {type(another).__name__})"


def lacks_memory(error: BaseException) -> bool:
    """Whether memory was exhausted; libraries raise errors of many classes then."""
    return isinstance(error, MemoryError) or any(words in message_of(error).lower() for words in _OUT_OF_MEMORY)


class _Text(SourceFileLoader):
    """Loader of exactly this text, never of a compiled file beside it with the same age and length."""

    def __init__(self, name: str, path: str, text: bytes) -> None:
        super().__init__(name, path)
        self._text = text

    def get_data(self, path: str) -> bytes:
        """Return the text, whatever is in the file by now."""
        del path
        return self._text

    def get_code(self, fullname: str) -> CodeType:
        """Compile the text."""
        return self.source_to_code(self._text, self.get_filename(fullname))
