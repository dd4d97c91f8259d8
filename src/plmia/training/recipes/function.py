"""The user's own training code: two functions, identified by their code and all that it refers to."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from plmia.data.arrays import Array, BoolArray, SignalKind
from plmia.data.dataset import LabelledData
from plmia.data.user_code import PASSED_ON, failure, lacks_memory, read_user_file, run_user_text
from plmia.errors import Note, RecipeError, shown
from plmia.training.recipes.confidences import conf_from_answers, trained_from_answers, trained_from_signals
from plmia.training.recipes.identity import Identity, identify
from plmia.training.recipes.recipe import (
    DeclaredFile,
    Recipe,
    Trained,
    declare_files,
    files_json,
    imported_files,
    noting_reads,
    undeclared,
)
from plmia.training.views import Views

_REMEDY = 'Give a key of your own to reuse them: plmia.Function.of(train, query, key="version 1").'


@dataclass(frozen=True, eq=False)
class Function(Recipe):
    """Train with ``train(X, y, seed) -> model``, query with ``query(model, X, y)`` or ``signal(model, X, y)``.

    X is what the user gave: an array, a data frame or a list of records. y holds the classes 0 to C - 1 in the order of
    their names, numbers to predict, or is None.

    Parameters
    ----------
    fit, ask : callable
        ``train``, which gets the training records only; and ``query``, which returns logits or class probabilities
        [n, classes] of all records, or ``signal``, which returns one number [n] per record, larger for members.
    key : str
        Identifies this pair of functions when plmia looks for finished models.
    unread : str
        Why the functions cannot be recognised, if ``key`` is for one audit only.
    """

    fit: Callable[..., Any]
    ask: Callable[..., Any]
    key: str
    signal: SignalKind = "confidence"  # what ``ask`` returns
    file: str | None = None  # the file that defines both
    text: bytes | None = field(default=None, repr=False)  # contents of that file
    files: tuple[DeclaredFile, ...] = ()  # files and folders that the functions read
    reads: frozenset[str] = field(default=frozenset(), repr=False)  # files that it was seen to read or import
    unread: str = ""
    keyed: bool = False  # the user gave the key
    name: ClassVar[str] = "function"

    @classmethod
    def of(
        cls,
        train: Callable[..., Any],
        query: Callable[..., Any] | None = None,
        key: str | None = None,
        files: Sequence[str | Path] = (),
        *,
        signal: Callable[..., Any] | None = None,
    ) -> Function:
        """Take ``train`` with ``query`` or ``signal``, identified by their code and all that it refers to.

        ``key``, if given, identifies them instead. Contents identify the ``files`` and folders that they read.
        """
        kind: SignalKind = "confidence" if signal is None else "signal"
        ask = query if signal is None else signal
        if ask is None or (query is not None and signal is not None):
            raise RecipeError(
                "give either query, which returns class probabilities or logits, or signal, which returns one number "
                "per record: Function.of(train, query) or Function.of(train, signal=signal)"
            )
        _check_functions(train, ask, "query" if signal is None else "signal")
        declared = declare_files(files, Path(), "files")
        return cls(train, ask, key or "", kind, files=declared, keyed=key is not None).identified()

    @classmethod
    def from_file(cls, path: Path) -> Function:
        """Take `train` and `query` or `signal` from a Python file, identified by its text and the files it declares.

        A list ``files`` in it names the files and folders that it reads, relative to its own folder.
        """
        return cls._from_text(read_user_file(path, RecipeError), path.resolve())

    @classmethod
    def _from_text(cls, text: bytes, path: Path, files: tuple[DeclaredFile, ...] | None = None) -> Function:
        """Run the text of a file; ``files``, if given, were hashed by the process that sent the recipe."""
        with noting_reads() as reads:
            module = run_user_text(text, path, RecipeError)
        train, query, signal = (getattr(module, name, None) for name in ("train", "query", "signal"))
        kind: SignalKind = "confidence" if callable(query) else "signal"
        ask = query if callable(query) else signal
        for name, function in (("train", train), ("query", ask)):
            if not callable(function):
                raise RecipeError(
                    f"{path} does not define a function {name!r}: it needs train(X, y, seed), and query(model, X, y) "
                    "or signal(model, X, y)"
                )
        _check_functions(cast("Any", train), cast("Any", ask), "query" if kind == "confidence" else "signal")
        if files is None:
            files = declare_files(getattr(module, "files", ()), path.parent, f"`files` in {path.name}")
        key, seen = hashlib.sha256(text).hexdigest(), frozenset(reads | imported_files(module))
        return cls(cast("Any", train), cast("Any", ask), key, kind, str(path), text, files, seen)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process cannot import a user's file by name, and the file may change meanwhile.
        if self.file is not None and self.text is not None:
            return (Function._from_text, (self.text, Path(self.file), self.files))
        return (Function, tuple(getattr(self, own.name) for own in fields(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Function) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.key)

    def identified(self) -> Function:
        """Identify the functions as they are now, unless the user's key or their file identifies them."""
        if self.keyed or self.file is not None:
            return self
        identity = identify("train or query", (self.fit, self.ask, self.signal))
        return replace(self, key=identity.key, unread=identity.unread)

    def notes(self, data: LabelledData) -> list[Note]:
        """Note that finished models will not be reused, or that a loss seems to be the signal, if that is so."""
        del data
        found = Identity(self.key, self.unread).notes(_REMEDY)
        if self.signal == "signal" and getattr(self.ask, "__name__", "") == "loss":
            text = "signals must be larger for members, and the function that returns them is called loss"
            remedy = "Return minus the loss, and call the function signal."
            found.append(Note("signal-is-loss", "caution", f"{text}. {remedy}"))
        return found

    @property
    def declared_files(self) -> tuple[DeclaredFile, ...]:
        """Files that the functions read."""
        return self.files

    @property
    def source(self) -> str:
        """Name of the user's file, if there is one."""
        return "train or query, or a value that they use," if self.file is None else Path(self.file).name

    @property
    def description(self) -> str:
        """Name of the user's file without its folder, which readers of results need not know."""
        return self.name if self.file is None else f"{self.name}:{shown(Path(self.file).name)}"

    def to_json(self) -> dict[str, Any]:
        """Key, and digests of the declared files; whether it has a signal of its own stands with the store."""
        return {"recipe": self.name, "key": self.key} | files_json(self.files)

    def train(
        self, data: LabelledData, members: BoolArray, seeds: Sequence[int], views: Views, keep_weights: bool = False
    ) -> list[Trained]:
        """Train and query one model after another; see `Recipe.train`."""
        if keep_weights:
            raise RecipeError(
                "models of your own functions cannot be saved as safetensors: leave out keep_models (--keep-models)"
            )
        results = []
        for row, seed in zip(members, seeds, strict=True):
            with noting_reads() as reads:
                y = None if data.y is None else data.y[row]
                model = self._call("train", self.fit, data.rows(row), y, seed)
                trained = self.query_given(model, data, row, views)
            base = Path() if self.file is None else Path(self.file).parent
            results.append(replace(trained, undeclared=undeclared(self.reads | reads, self.files, base)))
        return results

    def query_given(self, model: Any, data: LabelledData, members: BoolArray, views: Views) -> Trained:
        """Query a model, one of those that `train` makes or one like them; see `Recipe.query_given`."""
        role = "query" if self.signal == "confidence" else "signal"
        answers = []
        for view in views:
            # Copies: functions that change their arguments must not change them for the next model.
            y = None if data.y is None else data.y.copy()
            answers.append(_numbers(role, self._call(role, self.ask, model, view.shown(data), y)))
        if self.signal == "signal":
            return trained_from_signals(role, [_one_per_record(answer, data.n_points) for answer in answers])
        if answers[0].shape in ((data.n_points,), (data.n_points, 1)):
            where = "plmia.Function.of(train, signal=…)" if self.file is None else f"the name `signal` in {self.source}"
            raise RecipeError(
                f"query returned one number per record, but probabilities or logits [{data.n_points}, "
                f"{data.n_classes}] are needed: return those, or give a function that returns a signal, larger for "
                f"members, as {where}"
            )
        confidences = [conf_from_answers(answer, data.y) for answer in answers]
        return trained_from_answers(role, answers, confidences, data.y, members)

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the user's function; an exception becomes a `RecipeError` that names the line of the user's file."""
        try:
            return function(*arguments)
        except PASSED_ON:
            raise
        except BaseException as error:
            if lacks_memory(error):
                raise
            code = getattr(function, "__code__", None)
            file = self.file or (code.co_filename if code is not None else None)
            raise RecipeError(f"{name} raised {failure(error, file)}") from error


def _check_functions(train: Callable[..., Any], ask: Callable[..., Any], role: str) -> None:
    """Raise if the functions are in the wrong order, or do not take the three arguments that they will get."""
    first, second = getattr(train, "__name__", ""), getattr(ask, "__name__", "")
    if first in ("query", "signal") or second == "train":
        raise RecipeError(f"the functions {first} and {second} are in the wrong order: give (train, {role})")
    for function, needed in ((train, "train(X, y, seed)"), (ask, f"{role}(model, X, y)")):
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # functions of some C extensions have none
            continue
        try:
            signature.bind(None, None, None)
        except TypeError as error:
            found = f"{getattr(function, '__name__', role)}({', '.join(signature.parameters)})"
            raise RecipeError(f"{found} does not take 3 arguments by position: define {needed}") from error


def _numbers(role: str, answer: Any) -> Array:
    """Answer of a user's function as an array of floats."""
    try:
        return np.asarray(answer, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError for tensors with gradients
        raise RecipeError(
            f"{role} returned a {type(answer).__name__} that is not an array of numbers ({error}): return a numpy array"
        ) from error


def _one_per_record(answer: Array, n: int) -> Array:
    if answer.shape not in ((n,), (n, 1)):
        raise RecipeError(
            f"signal returned shape {answer.shape}, but [{n}] is needed: one number per record, larger for members"
        )
    return answer.reshape(n)
