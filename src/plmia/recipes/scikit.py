"""Any scikit-learn classifier with `predict_proba`, by name or as an object."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plmia.data import LabelledData
from plmia.errors import RecipeError
from plmia.recipes.probabilities import conf_from_probabilities
from plmia.recipes.recipe import BoolArray, Trained, accuracies, shown
from plmia.recipes.views import View


@dataclass(frozen=True, eq=False)
class Sklearn:
    """Train clones of a classifier, each on its own points with its own random state.

    Parameters
    ----------
    template : object
        A scikit-learn classifier (or pipeline, or anything with the same methods) with `predict_proba`.
    """

    template: Any
    name: ClassVar[str] = "sklearn"
    stack: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not all(hasattr(self.template, method) for method in ("fit", "predict_proba", "get_params")):
            raise RecipeError(
                f"{type(self.template).__name__} lacks fit, predict_proba or get_params: "
                "give a classifier that answers probabilities (SVC: probability=True), or use the recipe `function`"
            )

    @classmethod
    def named(cls, name: str, params: dict[str, Any]) -> Sklearn:
        """Build the scikit-learn classifier called ``name``."""
        from sklearn.utils import all_estimators

        known = dict(all_estimators(type_filter="classifier"))
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see scikit-learn's list of classifiers"
            raise RecipeError(f"scikit-learn has no classifier {name!r}: {hint}")
        try:
            return cls(known[name](**params))
        except TypeError as error:
            raise RecipeError(f"{name} cannot be made with {params}: {error}") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sklearn) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(str(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """Class and parameters."""
        kind = type(self.template)
        params = {key: repr(value) for key, value in sorted(self.template.get_params(deep=True).items())}
        vague = [key for key, text in params.items() if " at 0x" in text]
        if vague:
            raise RecipeError(
                f"parameter {vague[0]!r} of {kind.__name__} has no stable text, so finished models could not be told "
                "from others: use the recipe `function`, which is known by its source"
            )
        return {"recipe": self.name, "class": f"{kind.__module__}.{kind.__qualname__}", "params": params}

    def check(self, data: LabelledData) -> None:
        """Any numeric data will do."""
        del data

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
        features = data.features()
        results = []
        for row, seed in zip(members, seeds, strict=True):
            fitted = self._with_seed(seed).fit(features[row], data.y[row])
            results.append(self.query(fitted, data, row, views))
        return results

    def _with_seed(self, seed: int) -> Any:
        from sklearn.base import clone

        fresh = clone(self.template)
        states = [key for key in fresh.get_params(deep=True) if key == "random_state" or key.endswith("__random_state")]
        return fresh.set_params(**dict.fromkeys(states, seed % 2**32))

    @staticmethod
    def query(fitted: Any, data: LabelledData, members: BoolArray, views: Sequence[View]) -> Trained:
        """Confidences of a fitted classifier on all points and views."""
        missing = np.setdiff1d(np.arange(data.n_classes), fitted.classes_)
        if len(missing):
            raise RecipeError(
                f"the model never saw class {missing[0]}, so it has no probability for it: "
                "give more points of that class, or leave it out"
            )
        conf, n_clipped, right = [], 0, np.zeros(data.n_points, np.bool_)
        for i, view in enumerate(views):
            answers = fitted.predict_proba(shown(data, view))
            if i == 0:
                right = answers.argmax(axis=1) == data.y
            column, clipped = conf_from_probabilities(answers, data.y)
            conf.append(column)
            n_clipped += clipped
        return Trained(np.stack(conf, axis=1).astype(np.float32), *accuracies(right, members), n_clipped)
