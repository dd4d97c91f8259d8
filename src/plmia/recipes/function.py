"""The user's own training: two functions, known by their source."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from plmia.data import LabelledData
from plmia.errors import RecipeError
from plmia.recipes.probabilities import conf_from_answers
from plmia.recipes.recipe import BoolArray, Trained, accuracies
from plmia.recipes.views import View
from plmia.user_code import load_user_file


@dataclass(frozen=True, eq=False)
class Function:
    """Train with ``train(X, y, seed) -> model``, query with ``query(model, X, y) -> logits or probabilities``.

    Parameters
    ----------
    fit : callable
        ``train(X [n, ...], y [n], seed)``; gets the training points only, as they are in the data.
    ask : callable
        ``query(model, X [n, ...], y [n])``: logits or class probabilities [n, classes].
    key : str
        What tells this pair from others when finished models are looked up.
    file : str, optional
        The file both come from.
    """

    fit: Callable[..., Any]
    ask: Callable[..., Any]
    key: str
    file: str | None = None
    name: ClassVar[str] = "function"
    stack: ClassVar[int] = 1

    @classmethod
    def of(cls, train: Callable[..., Any], query: Callable[..., Any], key: str | None = None) -> Function:
        """Take two functions, known by their source unless ``key`` is given."""
        if key is None:
            try:
                source = inspect.getsource(train) + inspect.getsource(query)
            except (OSError, TypeError) as error:
                raise RecipeError(
                    "the source of train or query cannot be read, so finished models could not be told from others: "
                    "give a key of your own"
                ) from error
            key = hashlib.sha256(source.encode()).hexdigest()
        return cls(train, query, key)

    @classmethod
    def from_file(cls, path: Path) -> Function:
        """Take `train` and `query` from a Python file, known by the whole file's text."""
        module = load_user_file(path, RecipeError)
        for name in ("train", "query"):
            if not callable(getattr(module, name, None)):
                raise RecipeError(
                    f"{path} defines no function {name!r}: it needs train(X, y, seed) and query(model, X, y)"
                )
        key = hashlib.sha256(path.read_bytes()).hexdigest()
        return cls(module.train, module.query, key, str(path.resolve()))

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process cannot import a user's file by name; it runs the file again.
        if self.file is not None:
            return (Function.from_file, (Path(self.file),))
        return (Function, (self.fit, self.ask, self.key))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Function) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def to_json(self) -> dict[str, Any]:
        """Return the key."""
        return {"recipe": self.name, "key": self.key}

    def check(self, data: LabelledData) -> None:
        """Any data will do."""
        del data

    def train(
        self,
        data: LabelledData,
        members: BoolArray,
        seeds: Sequence[int],
        views: Sequence[View],
        keep_weights: bool = False,
    ) -> list[Trained]:
        """Train and query one model after another; see `Recipe.train`."""
        if keep_weights:
            raise RecipeError("models of your own functions cannot be kept as safetensors: leave out --keep-models")
        results = []
        for row, seed in zip(members, seeds, strict=True):
            model = self.fit(data.X[row], data.y[row], seed)
            answers = [np.asarray(self.ask(model, view.apply(data.X), data.y)) for view in views]
            columns = [conf_from_answers(answer, data.y) for answer in answers]
            conf = np.stack([column for column, _ in columns], axis=1).astype(np.float32)
            right = answers[0].argmax(axis=1) == data.y
            results.append(Trained(conf, *accuracies(right, row), sum(clipped for _, clipped in columns)))
        return results
