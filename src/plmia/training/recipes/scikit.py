"""Any scikit-learn classifier with `predict_proba`, by name or as an object; it gets X unchanged."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from plmia.data.arrays import BoolArray
from plmia.data.dataset import LabelledData
from plmia.data.user_code import failure, lacks_memory
from plmia.errors import Note, RecipeError, did_you_mean
from plmia.training.recipes.confidences import conf_from_probabilities, trained_from_answers
from plmia.training.recipes.identity import Identity, NoIdentityError, is_own, text_of, used_once
from plmia.training.recipes.recipe import (
    DeclaredFile,
    Recipe,
    Trained,
    declare_files,
    files_json,
    noting_reads,
    undeclared,
)
from plmia.training.views import Views

_REMEDY = 'Give a key of your own to reuse them: plmia.Sklearn(estimator, key="version 1").'


@dataclass(frozen=True, eq=False)
class Sklearn(Recipe):
    """Train clones of a classifier, each on its own points with its own random state.

    The classifier gets X with the type, shape and values that the user gave. Images are flattened only for classifiers
    that consist of scikit-learn's own parts, which take tables; see `takes_images`.

    Parameters
    ----------
    template : object
        A scikit-learn classifier (or pipeline, or anything with the same methods) with `predict_proba`.
    files : sequence of path, optional
        Files and folders that the classifier reads, identified by their contents; relative to the working folder.
    key : str, optional
        Identifies the classifier when plmia looks for finished models; by default its parameters and code do.
    """

    template: Any
    files: Sequence[str | Path] = ()
    key: str | None = None
    _about: tuple[dict[str, Any], str] | None = field(default=None, init=False, repr=False)  # see `_read`
    _declared: tuple[DeclaredFile, ...] = field(init=False, repr=False)
    name: ClassVar[str] = "sklearn"

    def __post_init__(self) -> None:
        needed = ("fit", "predict_proba", "get_params")
        missing = [method for method in needed if not hasattr(self.template, method)]
        if missing:
            raise RecipeError(
                f"{type(self.template).__name__} lacks {' and '.join(missing)}: "
                "give a classifier that returns probabilities (SVC: probability=True), or use the recipe `function`"
            )
        # Once: a worker, where the files may differ, gets the digests with the recipe.
        object.__setattr__(self, "_declared", declare_files(self.files, Path(), "files"))

    @classmethod
    def named(cls, name: str, params: dict[str, Any]) -> Sklearn:
        """Build the scikit-learn classifier called ``name``."""
        from sklearn.utils import all_estimators

        known = dict(all_estimators(type_filter="classifier"))
        if name not in known:
            hint = did_you_mean(name, known, "see scikit-learn's list of classifiers")
            raise RecipeError(f"scikit-learn has no classifier {name!r}: {hint}")
        kind = known[name]
        options = list(kind._get_param_names())
        for key in params:
            if key not in options:
                hint = did_you_mean(key, options, f"it has {', '.join(options)}")
                raise RecipeError(f"{name} has no option {key!r}: {hint}")
        try:
            return cls(kind(**params))
        except TypeError as error:
            raise RecipeError(f"{name} cannot be made with {params}: {error}") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sklearn) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(str(self.to_json()))

    @property
    def declared_files(self) -> tuple[DeclaredFile, ...]:
        """Files that the classifier reads."""
        return self._declared

    @property
    def description(self) -> str:
        """The classifier as scikit-learn prints it, or its class where that names an address in memory."""
        text = " ".join(repr(self.template).split())
        return f"{self.name}:{type(self.template).__name__ if ' at 0x' in text else text}"

    def to_json(self) -> dict[str, Any]:
        """Class, parameters and the code of the user in them; or the class and a key."""
        about, _ = self._about or self._read()
        return about | files_json(self._declared)

    def identified(self) -> Sklearn:
        """Keep parameters and code as they are now for `to_json`."""
        fixed = copy.copy(self)
        object.__setattr__(fixed, "_about", self._read())
        return fixed

    def _read(self) -> tuple[dict[str, Any], str]:
        """Read what identifies the classifier; or, with a key for one audit, why it cannot be recognised."""
        about = {"recipe": self.name, "class": _name(type(self.template))}
        if self.key is not None:
            return about | {"key": self.key}, ""
        params = self.template.get_params(deep=True)
        estimators = [value for value in [self.template, *params.values()] if hasattr(value, "get_params")]
        kinds, listed = {type(value) for value in estimators}, {id(value) for value in estimators}
        try:
            # Each model gets its own random state.
            texts = {key: _text(key, value, listed) for key, value in sorted(params.items()) if not _is_state(key)}
            sources = {_name(kind): text_of(kind.__name__, kind) for kind in kinds if is_own(kind.__module__)}
        except NoIdentityError as error:
            return about | {"key": used_once()}, str(error)
        return about | {"params": texts} | ({"sources": sources} if sources else {}), ""

    def notes(self, data: LabelledData) -> list[Note]:
        """Note that images are flattened, or that finished models will not be reused, if that is so."""
        _, unread = self._about or self._read()
        unknown = Identity("", unread).notes(_REMEDY)
        if not data.is_images or takes_images(self.template):
            return unknown
        text = (
            f"images {list(data.X.shape[1:])} are flattened to {data.X[0].size} features for "
            f"{type(self.template).__name__}, values unchanged: scikit-learn's classifiers take tables"
        )
        return [Note("recipe-preprocessing", "info", text), *unknown]

    def train(
        self, data: LabelledData, members: BoolArray, seeds: Sequence[int], views: Views, keep_weights: bool = False
    ) -> list[Trained]:
        """Train and query one classifier after another; see `Recipe.train`."""
        if keep_weights:
            raise RecipeError("scikit-learn models cannot be saved as safetensors: leave out --keep-models")
        results = []
        for row, seed in zip(members, seeds, strict=True):
            with noting_reads() as reads:
                X = _accepted(self.template, data, data.rows(row))
                with _named("fit", self.template, X):
                    fitted = self._with_seed(seed).fit(X, data.y[row])
                trained = self.query(fitted, data, row, views)
            results.append(replace(trained, undeclared=undeclared(reads, self._declared, Path())))
        return results

    def _with_seed(self, seed: int) -> Any:
        from sklearn.base import clone

        fresh = clone(self.template)
        states = [key for key in fresh.get_params(deep=True) if _is_state(key)]
        return fresh.set_params(**dict.fromkeys(states, seed % 2**32))

    def query_given(self, model: Any, data: LabelledData, members: BoolArray, views: Views) -> Trained:
        """Query a fitted classifier; see `Recipe.query_given`."""
        return self.query(model, data, members, views)

    @staticmethod
    def query(fitted: Any, data: LabelledData, members: BoolArray, views: Views) -> Trained:
        """Query a fitted classifier on all points and views."""
        if not (hasattr(fitted, "predict_proba") and hasattr(fitted, "classes_")):
            raise RecipeError(
                f"{type(fitted).__name__} returns no probabilities, or was not fitted: give a fitted classifier with "
                "predict_proba, or its signals"
            )
        classes = np.asarray(fitted.classes_)
        missing = np.setdiff1d(np.arange(data.n_classes), classes)
        if len(missing):
            raise RecipeError(
                f"the model was trained without class {missing[0]}, so it has no probability for it: give more points "
                "of that class, or leave it out"
            )
        if not np.array_equal(classes, np.arange(len(classes))):
            raise RecipeError(
                f"the model has classes {classes[0]} to {classes[-1]}, the data 0 to {data.n_classes - 1}: number both "
                "in the same way"
            )
        answers = []
        for view in views:
            # A copy: a model that changes its argument must not change it for the next one.
            X = _accepted(fitted, data, view.shown(data))
            with _named("predict_proba", fitted, X):
                answers.append(np.asarray(fitted.predict_proba(X)))
        confidences = [conf_from_probabilities(answer, data.y) for answer in answers]
        return trained_from_answers("predict_proba", answers, confidences, data.y, members)


def takes_images(model: Any) -> bool:
    """Whether a classifier gets X of more than two dimensions unchanged.

    Classifiers that consist of scikit-learn's own parts take tables, except for the two parts below. All others may
    take images, so they get them.
    """
    from sklearn.feature_extraction.image import PatchExtractor
    from sklearn.preprocessing import FunctionTransformer

    params = [model, *model.get_params(deep=True).values()] if hasattr(model, "get_params") else [model]
    parts = [part for part in params if hasattr(part, "get_params") and not isinstance(part, type)]
    return not parts or any(
        not type(part).__module__.startswith("sklearn.") or isinstance(part, FunctionTransformer | PatchExtractor)
        for part in parts
    )


def _accepted(model: Any, data: LabelledData, X: Any) -> Any:
    """Points as the user gave them, or images flattened for a model that takes tables."""
    return X if not data.is_images or takes_images(model) else X.reshape(len(X), -1)


@contextlib.contextmanager
def _named(method: str, model: Any, X: Any) -> Iterator[None]:
    """Turn an exception of a model's method into a `RecipeError` that names the line of the user's file."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if lacks_memory(error):
            raise
        kind = type(model)
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) if is_own(kind.__module__) else None
        what = f"{method} of {kind.__name__} raised, {failure(error, file)}"
        flat = f" (it got X of shape {np.shape(X)}: if it takes tables only, give X.reshape(len(X), -1))"
        raise RecipeError(what + (flat if np.ndim(X) > 2 else "")) from error


def _is_state(key: str) -> bool:
    return key == "random_state" or key.endswith("__random_state")


def _text(name: str, value: Any, listed: set[int]) -> str:
    """Text of a parameter; for an estimator its class if it is ``listed``, so that its own parameters are, too."""
    if id(value) in listed and not isinstance(value, type):
        return _name(type(value))
    if isinstance(value, list | tuple):
        inside = ", ".join(_text(name, entry, listed) for entry in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    return text_of(name, value)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
