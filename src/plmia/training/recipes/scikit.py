"""Any scikit-learn classifier with `predict_proba` or regressor, by name or as an object; it gets X unchanged.

The signal of a regressor is minus the absolute residual; `benchmarks/regression_signals.py` compares it with others.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from plmia.data.arrays import Array, BoolArray, IntArray, SignalKind
from plmia.data.dataset import LabelledData
from plmia.data.encoding import array_columns, columns_of
from plmia.data.user_code import PASSED_ON, failure, lacks_memory
from plmia.errors import Note, RecipeError, did_you_mean
from plmia.training.recipes.confidences import (
    conf_from_probabilities,
    signal_from_values,
    trained_from_answers,
    trained_from_signals,
)
from plmia.training.recipes.estimators import (
    default_encoding,
    encoding_note,
    is_regressor,
    takes_images,
    with_native_categories,
)
from plmia.training.recipes.identity import Identity, NoIdentityError, is_own, text_of, used_once
from plmia.training.recipes.recipe import (
    DeclaredFile,
    Recipe,
    Trained,
    declare_files,
    files_json,
    noting_reads,
    require_columns,
    undeclared,
)
from plmia.training.views import Views

_REMEDY = 'Give a key of your own to reuse them: plmia.Sklearn(estimator, key="version 1").'


@dataclass(frozen=True, eq=False)
class Sklearn(Recipe):
    """Train clones of a classifier or regressor, each on its own records with its own random state.

    The estimator gets X with the type, shape and values that the user gave. Two exceptions are for estimators that
    consist of scikit-learn's own parts: images are flattened (see `takes_images`), and tables with text or missing
    values are encoded if no part is preprocessing (see `default_encoding`).

    Parameters
    ----------
    template : object
        A scikit-learn classifier (or pipeline, or anything with the same methods) with `predict_proba`, or a regressor.
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
        needed = ("fit", "predict" if is_regressor(self.template) else "predict_proba", "get_params")
        missing = [method for method in needed if not hasattr(self.template, method)]
        if missing:
            raise RecipeError(
                f"{type(self.template).__name__} lacks {' and '.join(missing)}: "
                "give a regressor or a classifier that returns probabilities (SVC: probability=True), or use the "
                "recipe `function`"
            )
        # Once: a worker, where the files may differ, gets the digests with the recipe.
        object.__setattr__(self, "_declared", declare_files(self.files, Path(), "files"))

    @classmethod
    def named(cls, name: str, params: dict[str, Any]) -> Sklearn:
        """Build the scikit-learn classifier or regressor called ``name``."""
        known = scikit_estimators()
        if name not in known:
            hint = did_you_mean(name, known, "see scikit-learn's list of estimators")
            raise RecipeError(f"scikit-learn has no classifier or regressor {name!r}: {hint}")
        kind = known[name]
        options = list(kind._get_param_names())
        for key in params:
            if key not in options:
                hint = did_you_mean(key, options, f"it has {', '.join(options)}")
                raise RecipeError(f"{name} has no option {key!r}: {hint}")
        try:
            template = kind(**params)
        except TypeError as error:
            raise RecipeError(f"{name} cannot be made with {params}: {error}") from error
        return cls(template)

    def require_options(self) -> Sklearn:
        """Return this recipe; raise `RecipeError` if scikit-learn's own limits exclude the value of an option."""
        try:
            # An estimator without such limits is checked by its fit only.
            getattr(self.template, "_validate_params", lambda: None)()
        except ValueError as error:
            raise RecipeError(f"{type(self.template).__name__} does not take these options: {error}") from error
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sklearn) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(str(self.to_json()))

    @property
    def signal(self) -> SignalKind:
        """Confidences of a classifier; of a regressor, minus the absolute residual."""
        return "signal" if is_regressor(self.template) else "confidence"

    @property
    def kind(self) -> str:
        """Class of the estimator; of a pipeline, that of its last step."""
        last = self.template.steps[-1][1] if hasattr(self.template, "steps") else self.template
        return f"{self.name}:{type(last).__name__}"

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

    def preprocessing(self, data: LabelledData) -> str:
        """Default preprocessing, if there is any."""
        encoding = default_encoding(self.template, data)
        return "" if encoding is None else encoding.identity

    def check(self, data: LabelledData) -> None:
        """Take arrays and tables; a regressor needs values to predict."""
        kind = type(self.template).__name__
        require_columns(self.name, data)
        if self.signal == "signal" and (data.y is None or data.labels is not None):
            if data.y is None:
                raise RecipeError(f"{kind} predicts numbers, but y is missing: give one number per record")
            classes = ", ".join(map(repr, (data.class_names or ())[:2]))
            raise RecipeError(
                f"{kind} predicts numbers, but the labels are classes{f' such as {classes}' if classes else ''}: use a "
                "classifier, or give labels that are numbers (in a LabelledData, with values=True)"
            )

    def notes(self, data: LabelledData) -> list[Note]:
        """Note that images are flattened, columns are encoded, or finished models will not be reused, if that is so."""
        texts = [encoding_note(self.template, data)]
        if data.is_images and not takes_images(self.template):
            texts.append(
                f"images {list(data.X.shape[1:])} are flattened to {data.X[0].size} features for "
                f"{type(self.template).__name__}, values unchanged: scikit-learn's estimators take tables"
            )
        _, unread = self._about or self._read()
        prepared = [Note("recipe-preprocessing", "info", text) for text in texts if text]
        return [*prepared, *Identity("", unread).notes(_REMEDY)]

    def train(
        self, data: LabelledData, members: BoolArray, seeds: Sequence[int], views: Views, keep_weights: bool = False
    ) -> list[Trained]:
        """Train and query one estimator after another; see `Recipe.train`."""
        if keep_weights:
            raise RecipeError(
                "scikit-learn models cannot be saved as safetensors: leave out keep_models (--keep-models)"
            )
        results = []
        for row, seed in zip(members, seeds, strict=True):
            with noting_reads() as reads:
                trained = self._train_one(data, row, seed, views)
            results.append(replace(trained, undeclared=undeclared(reads, self._declared, Path())))
        return results

    def _train_one(self, data: LabelledData, row: BoolArray, seed: int, views: Views) -> Trained:
        model, encoding = self._with_seed(seed), default_encoding(self.template, data)
        if encoding is None:
            X = _accepted(model, data, data.rows(row))
            with _named("fit", model, X):
                fitted = model.fit(X, data.y[row])
            return self.query(fitted, data, row, views)
        # Columns are encoded as the training records alone tell.
        columns = columns_of(data)
        encode = encoding.fit(columns.rows(row))
        X = encode(columns.rows(row))
        model = with_native_categories(model, X.shape[1], encode.n_native)
        with _named("fit", model, X):
            fitted = model.fit(X, data.y[row])
        shown = [encode(columns if data.is_table else array_columns(view.apply(data.X))) for view in views]
        return _ask(fitted, data, row, shown)

    def _with_seed(self, seed: int) -> Any:
        from sklearn.base import clone

        fresh = clone(self.template)
        states = [key for key in fresh.get_params(deep=True) if _is_state(key)]
        return fresh.set_params(**dict.fromkeys(states, seed % 2**32))

    def query_given(self, model: Any, data: LabelledData, members: BoolArray, views: Views) -> Trained:
        """Query a fitted classifier; see `Recipe.query_given`."""
        return self.query(model, data, members, views)

    def signal_of_given(self, predicted: Array, data: LabelledData) -> Array:
        """Signal of a regressor; see `Recipe.signal_of_given`."""
        return (
            signal_from_values(predicted, data.y)
            if self.signal == "signal"
            else super().signal_of_given(predicted, data)
        )

    @staticmethod
    def query(fitted: Any, data: LabelledData, members: BoolArray, views: Views) -> Trained:
        """Query a fitted estimator on all records and views."""
        # Copies: a model that changes its argument must not change it for the next one.
        return _ask(fitted, data, members, [_accepted(fitted, data, view.shown(data)) for view in views])


def scikit_estimators() -> dict[str, Any]:
    """Classifiers and regressors of scikit-learn by name."""
    from sklearn.utils import all_estimators

    return dict(all_estimators(type_filter=["classifier", "regressor"]))


def _ask(fitted: Any, data: LabelledData, members: BoolArray, shown: Sequence[Any]) -> Trained:
    """Query a fitted estimator on all points, as each view shows them."""
    if is_regressor(fitted) and data.labels is None and data.y is not None:
        predictions = [_answer(fitted, "predict", X) for X in shown]
        signals = [signal_from_values(_flat(p, data.n_points), data.y) for p in predictions]
        return trained_from_signals("predict", signals)
    if not (hasattr(fitted, "predict_proba") and hasattr(fitted, "classes_")):
        raise RecipeError(
            f"{type(fitted).__name__} returns no probabilities, or was not fitted: give a fitted classifier with "
            "predict_proba, or its signals"
        )
    order = _order(fitted.classes_, data)
    answers = [_answer(fitted, "predict_proba", X) for X in shown]
    # Answers of another shape are refused below.
    answers = [a[:, order] if a.ndim == 2 and a.shape[1] == len(fitted.classes_) else a for a in answers]
    confidences = [conf_from_probabilities(answer, data.y) for answer in answers]
    return trained_from_answers("predict_proba", answers, confidences, data.y, members)


def _answer(fitted: Any, method: str, X: Any) -> Array:
    with _named(method, fitted, X):
        return np.asarray(getattr(fitted, method)(X))


def _flat(predictions: Array, n: int) -> Array:
    if predictions.size != n:
        raise RecipeError(f"predict returned shape {predictions.shape}, but [{n}] is needed: one number per record")
    return predictions.reshape(n)


def _order(classes: Any, data: LabelledData) -> IntArray:
    """Column of each class in a model's probabilities; classes are known by their numbers or original names."""
    found: Array = np.asarray(classes)
    names = [str(c) for c in found]
    if data.class_names is not None and set(names) >= set(data.class_names):
        return np.array([names.index(name) for name in data.class_names])
    missing = np.setdiff1d(np.arange(data.n_classes), found) if found.dtype.kind in "iu" else found[:0]
    if len(missing):
        raise RecipeError(
            f"the model was trained without class {missing[0]}, so it has no probability for it: give more records "
            "of that class, or leave it out"
        )
    if not np.array_equal(found, np.arange(len(found))):
        own = f"{data.class_names[0]} to {data.class_names[-1]}" if data.class_names else f"0 to {data.n_classes - 1}"
        raise RecipeError(
            f"the model has classes {found[0]} to {found[-1]}, the data {own}: number or name both in the same way"
        )
    return np.arange(len(found))


def _accepted(model: Any, data: LabelledData, X: Any) -> Any:
    """Points as the user gave them, or images flattened for a model that takes tables."""
    return X if not data.is_images or takes_images(model) else X.reshape(len(X), -1)


@contextlib.contextmanager
def _named(method: str, model: Any, X: Any) -> Iterator[None]:
    """Turn an exception of a model's method into a `RecipeError` that names the line of the user's file."""
    try:
        yield
    except PASSED_ON:
        raise
    except BaseException as error:
        if lacks_memory(error):
            raise
        kind = type(model)
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) if is_own(kind.__module__) else None
        what = " ".join(f"{method} of {kind.__name__} raised {failure(error, file)}".split())
        hint = ""
        if not isinstance(X, np.ndarray):
            other = "give the last step alone" if hasattr(model, "steps") else "give columns of types that it takes"
            hint = f" (it got the table as it is: prepare all columns in a pipeline, or {other})"
        elif X.ndim > 2:
            hint = f" (it got X of shape {X.shape}: if it takes tables only, give X.reshape(len(X), -1))"
        raise RecipeError(what + hint) from error


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
    # Without the function that defines it, which is lost when the class is sent to another process.
    return f"{kind.__module__}.{kind.__qualname__.rpartition('<locals>.')[2]}"
