"""Any scikit-learn classifier with `predict_proba`, by name or as an object; it gets X as it was given."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from plmia.data.dataset import Array, LabelledData
from plmia.data.user_code import failure, lacks_memory
from plmia.errors import Note, RecipeError
from plmia.training.recipes.confidences import conf_from_probabilities, trained_by_answers
from plmia.training.recipes.declared_files import DeclaredFile, declared_files, files_json, noting_reads, undeclared
from plmia.training.recipes.recipe import BoolArray, Trained, stable_text
from plmia.training.views import View


@dataclass(frozen=True, eq=False)
class Sklearn:
    """Train clones of a classifier, each on its own points with its own random state.

    The classifier gets X with the type, shape and values that it was given. Images are flattened only for classifiers
    made of scikit-learn's own parts alone, which take tables; see `takes_images`.

    Parameters
    ----------
    template : object
        A scikit-learn classifier (or pipeline, or anything with the same methods) with `predict_proba`.
    files : sequence of path, optional
        Files and folders that the classifier reads by itself; known by their contents when finished models are looked
        up. Relative paths are taken from the working folder.
    """

    template: Any
    files: Sequence[str | Path] = ()
    declared: tuple[DeclaredFile, ...] = field(init=False, repr=False)
    name: ClassVar[str] = "sklearn"
    stack: ClassVar[int] = 1
    keeps_weights: ClassVar[bool] = False

    def __post_init__(self) -> None:
        needed = ("fit", "predict_proba", "get_params")
        missing = [method for method in needed if not hasattr(self.template, method)]
        if missing:
            raise RecipeError(
                f"{type(self.template).__name__} lacks {' and '.join(missing)}: "
                "give a classifier that answers probabilities (SVC: probability=True), or use the recipe `function`"
            )
        # Once: a worker, where the files may be others, gets the digests with the recipe.
        object.__setattr__(self, "declared", declared_files(self.files, Path(), "files"))

    @classmethod
    def named(cls, name: str, params: dict[str, Any]) -> Sklearn:
        """Build the scikit-learn classifier called ``name``."""
        from sklearn.utils import all_estimators

        known = dict(all_estimators(type_filter="classifier"))
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see scikit-learn's list of classifiers"
            raise RecipeError(f"scikit-learn has no classifier {name!r}: {hint}")
        kind = known[name]
        options = list(kind._get_param_names())
        for key in params:
            if key not in options:
                near = difflib.get_close_matches(key, options, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(options)}"
                raise RecipeError(f"{name} has no option {key!r}: {hint}")
        try:
            return cls(kind(**params))
        except TypeError as error:
            raise RecipeError(f"{name} cannot be made with {params}: {error}") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sklearn) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(str(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """Class and parameters."""
        params = self.template.get_params(deep=True)
        remedy = "use the recipe `function`, which is known by its source"
        texts = {
            key: _text(f"{type(self.template).__name__}.{key}", value, remedy)
            for key, value in sorted(params.items())
            if not _is_state(key)  # each model gets its own
        }
        kinds = {type(value) for value in [self.template, *params.values()] if hasattr(value, "get_params")}
        sources = {_name(kind): _source_digest(kind, remedy) for kind in kinds if _is_own(kind)}
        about = {"recipe": self.name, "class": _name(type(self.template)), "params": texts}
        return about | ({"sources": sources} if sources else {}) | files_json(self.declared)

    def check(self, data: LabelledData) -> None:
        """Any numeric data will do."""
        del data

    def notes(self, data: LabelledData) -> list[Note]:
        """Say that images are flattened, if they are."""
        if not data.is_images or takes_images(self.template):
            return []
        return [
            Note(
                "recipe-preprocessing",
                "info",
                f"images {list(data.X.shape[1:])} are flattened to {data.X[0].size} features for "
                f"{type(self.template).__name__}, their values unchanged: scikit-learn's classifiers take tables",
            )
        ]

    def train(
        self,
        data: LabelledData,
        members: BoolArray,
        seeds: Sequence[int],
        views: Sequence[View],
        keep_weights: bool = False,
    ) -> list[Trained]:
        """Train and query one classifier after another; see `Recipe.train`."""
        if keep_weights:
            raise RecipeError("scikit-learn models cannot be kept as safetensors: leave out --keep-models")
        results = []
        for row, seed in zip(members, seeds, strict=True):
            with noting_reads() as reads:
                fitted = self._fitted(seed, _accepted(self.template, data, data.X[row]), data.y[row])
                trained = self.query(fitted, data, row, views)
            results.append(replace(trained, undeclared=undeclared(reads, self.declared, Path())))
        return results

    def _fitted(self, seed: int, X: Any, y: Any) -> Any:
        with _named("fit", self.template, X):
            return self._with_seed(seed).fit(X, y)

    def _with_seed(self, seed: int) -> Any:
        from sklearn.base import clone

        fresh = clone(self.template)
        states = [key for key in fresh.get_params(deep=True) if _is_state(key)]
        return fresh.set_params(**dict.fromkeys(states, seed % 2**32))

    @staticmethod
    def query(fitted: Any, data: LabelledData, members: BoolArray, views: Sequence[View]) -> Trained:
        """Confidences of a fitted classifier on all points and views."""
        if not (hasattr(fitted, "predict_proba") and hasattr(fitted, "classes_")):
            raise RecipeError(
                f"{type(fitted).__name__} answers no probabilities, or was not fitted: give a fitted classifier with "
                "predict_proba, or its signals"
            )
        classes = np.asarray(fitted.classes_)
        missing = np.setdiff1d(np.arange(data.n_classes), classes)
        if len(missing):
            raise RecipeError(
                f"the model never saw class {missing[0]}, so it has no probability for it: "
                "give more points of that class, or leave it out"
            )
        if not np.array_equal(classes, np.arange(len(classes))):
            raise RecipeError(
                f"the model knows classes {classes[0]} to {classes[-1]}, the data 0 to {data.n_classes - 1}: "
                "number them alike"
            )
        answers = []
        for view in views:
            # A copy: a model that changes what it is asked must not change it for the next one.
            X = _accepted(fitted, data, np.array(view.apply(data.X)))
            with _named("predict_proba", fitted, X):
                answers.append(np.asarray(fitted.predict_proba(X)))
        confidences = [conf_from_probabilities(answer, data.y) for answer in answers]
        return trained_by_answers("predict_proba", answers, confidences, data.y, members)


def takes_images(model: Any) -> bool:
    """Whether a classifier gets X of more than two dimensions as it is.

    Classifiers made of scikit-learn's own parts alone take tables, but for the two parts below. All others may take
    images, so they get them.
    """
    from sklearn.feature_extraction.image import PatchExtractor
    from sklearn.preprocessing import FunctionTransformer

    params = [model, *model.get_params(deep=True).values()] if hasattr(model, "get_params") else [model]
    parts = [part for part in params if hasattr(part, "get_params") and not isinstance(part, type)]
    return not parts or any(
        not type(part).__module__.startswith("sklearn.") or isinstance(part, FunctionTransformer | PatchExtractor)
        for part in parts
    )


def _accepted(model: Any, data: LabelledData, X: Array) -> Any:
    """Points as they were given, or images flattened for a model that takes tables."""
    return data.as_given(X) if X.ndim == 2 or takes_images(model) else X.reshape(len(X), -1)


@contextlib.contextmanager
def _named(method: str, model: Any, X: Any) -> Iterator[None]:
    """Turn what a model's method raises into a sentence, with the line of the user's file if the class is there."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if lacks_memory(error):
            raise
        kind = type(model)
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) if _is_own(kind) else None
        what = f"{method} of {kind.__name__} raised, {failure(error, file)}"
        flat = f" (it got X of shape {X.shape}: if it takes tables only, give X.reshape(len(X), -1))"
        raise RecipeError(what + flat * (X.ndim > 2)) from error


def _is_state(key: str) -> bool:
    return key == "random_state" or key.endswith("__random_state")


def _text(name: str, value: Any, remedy: str) -> str:
    """Text of a parameter; an estimator is its class, since its own parameters are listed beside it."""
    if hasattr(value, "get_params"):
        return _name(value if isinstance(value, type) else type(value))
    if isinstance(value, list | tuple):
        inside = ", ".join(_text(name, entry, remedy) for entry in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    return stable_text(name, value, remedy)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_own(kind: type) -> bool:
    """Whether a class is the user's own, which may change from one run to the next; packages have versions."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if kind.__module__ == "__main__" or file is None:
        return True
    return {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _source_digest(kind: type, remedy: str) -> str:
    try:
        return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()
    except (OSError, TypeError) as error:
        raise RecipeError(
            f"the source of {_name(kind)} cannot be read, so finished models could not be told from others: {remedy}"
        ) from error
