"""The user's own training code: two functions, identified by their code and all that it refers to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from plmia.data.arrays import BoolArray
from plmia.data.dataset import LabelledData
from plmia.data.user_code import failure, lacks_memory, read_user_file, run_user_text
from plmia.errors import Note, RecipeError, shown
from plmia.training.recipes.confidences import conf_from_answers, trained_from_answers
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
    """Train with ``train(X, y, seed) -> model``, query with ``query(model, X, y) -> logits or probabilities``.

    Parameters
    ----------
    fit, ask : callable
        ``train(X [n, ...], y [n], seed)``, which gets the training points only, unchanged; and ``query(model,
        X [n, ...], y [n])``, which returns logits or class probabilities [n, classes].
    key : str
        Identifies this pair of functions when plmia looks for finished models.
    unread : str
        Why the functions cannot be recognised, if ``key`` is for one audit only.
    """

    fit: Callable[..., Any]
    ask: Callable[..., Any]
    key: str
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
        query: Callable[..., Any],
        key: str | None = None,
        files: Sequence[str | Path] = (),
    ) -> Function:
        """Take two functions, identified by their code and all that it refers to unless ``key`` is given.

        ``files`` and folders that the functions read are identified by their contents.
        """
        made = cls(train, query, key or "", files=declare_files(files, Path(), "files"), keyed=key is not None)
        return made.identified()

    @classmethod
    def from_file(cls, path: Path) -> Function:
        """Take `train` and `query` from a Python file, identified by its text and the files it declares.

        A list ``files`` in it names the files and folders that it reads, relative to its own folder.
        """
        return cls._from_text(read_user_file(path, RecipeError), path.resolve())

    @classmethod
    def _from_text(cls, text: bytes, path: Path, files: tuple[DeclaredFile, ...] | None = None) -> Function:
        """Run the text of a file; ``files``, if given, were hashed by the process that sent the recipe."""
        with noting_reads() as reads:
            module = run_user_text(text, path, RecipeError)
        for name in ("train", "query"):
            if not callable(getattr(module, name, None)):
                raise RecipeError(
                    f"{path} does not define a function {name!r}: it needs train(X, y, seed) and query(model, X, y)"
                )
        if files is None:
            files = declare_files(getattr(module, "files", ()), path.parent, f"`files` in {path.name}")
        key = hashlib.sha256(text).hexdigest()
        return cls(module.train, module.query, key, str(path), text, files, frozenset(reads | imported_files(module)))

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process cannot import a user's file by name, and the file may change meanwhile.
        if self.file is not None and self.text is not None:
            return (Function._from_text, (self.text, Path(self.file), self.files))
        return (Function, (self.fit, self.ask, self.key, None, None, self.files, self.reads, self.unread, self.keyed))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Function) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.key)

    def identified(self) -> Function:
        """Identify the functions as they are now, unless the user's key or their file identifies them."""
        if self.keyed or self.file is not None:
            return self
        identity = identify("train or query", (self.fit, self.ask))
        return replace(self, key=identity.key, unread=identity.unread)

    def notes(self, data: LabelledData) -> list[Note]:
        """Note that finished models will not be reused, if that is so."""
        del data
        return Identity(self.key, self.unread).notes(_REMEDY)

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
        """Key, and digests of the declared files."""
        return {"recipe": self.name, "key": self.key} | files_json(self.files)

    def train(
        self, data: LabelledData, members: BoolArray, seeds: Sequence[int], views: Views, keep_weights: bool = False
    ) -> list[Trained]:
        """Train and query one model after another; see `Recipe.train`."""
        if keep_weights:
            raise RecipeError("models of your own functions cannot be saved as safetensors: leave out --keep-models")
        results = []
        for row, seed in zip(members, seeds, strict=True):
            with noting_reads() as reads:
                model = self._call("train", self.fit, data.rows(row), data.y[row], seed)
                # Copies: functions that change their arguments must not change them for the next model.
                answers = [
                    np.asarray(self._call("query", self.ask, model, view.shown(data), data.y.copy())) for view in views
                ]
            confidences = [conf_from_answers(answer, data.y) for answer in answers]
            trained = trained_from_answers("query", answers, confidences, data.y, row)
            base = Path() if self.file is None else Path(self.file).parent
            results.append(replace(trained, undeclared=undeclared(self.reads | reads, self.files, base)))
        return results

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the user's function; an exception becomes a `RecipeError` that names the line of the user's file."""
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:
            if lacks_memory(error):
                raise
            code = getattr(function, "__code__", None)
            file = self.file or (code.co_filename if code is not None else None)
            raise RecipeError(f"{name} raised, {failure(error, file)}") from error
