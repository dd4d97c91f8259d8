"""Gradient-boosted trees with LightGBM, or with XGBoost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from plmia.data.arrays import Array, BoolArray, FloatArray
from plmia.data.dataset import LabelledData
from plmia.errors import Note, RecipeError, install_hint
from plmia.training.recipes.confidences import Confidences, conf_from_logits, trained_from_answers
from plmia.training.recipes.recipe import BuiltInRecipe, Trained, float32_notes
from plmia.training.views import Views

# LightGBM allows no more.
_MAX_LEAVES = 131072

Table = npt.NDArray[np.floating]


@dataclass(frozen=True)
class GBDT(BuiltInRecipe):
    """Boosted trees, queried for their raw margins, so that confidences never saturate.

    ``learning_rate`` is the shrinkage of each round, ``subsample`` the share of the rows that each round draws, and
    ``depth`` the largest depth of a tree (the paper: 3, 5, 7).
    """

    rounds: int = 250
    learning_rate: float = 0.1
    subsample: float = 0.2
    depth: int = 3
    library: Literal["lightgbm", "xgboost"] = "lightgbm"
    name: ClassVar[str] = "gbdt"

    def __post_init__(self) -> None:
        if self.library not in ("lightgbm", "xgboost"):
            raise RecipeError(f"gbdt does not know the library {self.library!r}: choose lightgbm or xgboost")
        if not (self.rounds >= 1 and self.depth >= 1 and 0 < self.subsample <= 1 and self.learning_rate > 0):
            raise RecipeError(
                f"gbdt needs rounds and depth of at least 1, subsample in (0, 1] and a positive learning rate: {self}"
            )

    def check(self, data: LabelledData) -> None:
        """Take any numeric data, if the library is installed."""
        del data
        self._library()

    def notes(self, data: LabelledData) -> list[Note]:
        """Note that images are flattened; XGBoost also reads X as 32-bit floats."""
        flattens = ["flattens images"] * data.is_images
        if self.library == "xgboost":
            return float32_notes(self.name, ["converts X to 32-bit floats", *flattens], data)
        return [Note("recipe-preprocessing", "info", f"the recipe {self.name} {step}") for step in flattens]

    def _library(self) -> Any:
        try:
            return import_module(self.library)
        except ImportError as error:
            remedy = install_hint("gbdt") if self.library == "lightgbm" else "pip install xgboost-cpu"
            raise RecipeError(f"{self.library} is not installed: {remedy}") from error

    def train(
        self, data: LabelledData, members: BoolArray, seeds: Sequence[int], views: Views, keep_weights: bool = False
    ) -> list[Trained]:
        """Train and query one ensemble after another; see `Recipe.train`."""
        if keep_weights:
            raise RecipeError("boosted trees cannot be saved as safetensors: leave out --keep-models")
        margins_of = self._lightgbm_margins if self.library == "lightgbm" else self._xgboost_margins
        table, queries = _table(data.X), [_table(view.apply(data.X)) for view in views]
        trained = []
        for row, seed in zip(members, seeds, strict=True):
            margins = margins_of(table[row], data.y[row], data.n_classes, seed % 2**31, queries)
            if data.n_classes == 2:
                # One margin, for class 1: the logit itself, up to its sign.
                margins = [np.stack([np.zeros(len(m)), m.reshape(len(m))], axis=1) for m in margins]
            confidences = [Confidences(conf_from_logits(m, data.y)) for m in margins]
            trained.append(trained_from_answers(self.library, margins, confidences, data.y, row))
        return trained

    def _lightgbm_margins(
        self, X: Table, y: Array, n_classes: int, seed: int, queries: Sequence[Table]
    ) -> list[FloatArray]:
        library = self._library()
        several = {"objective": "multiclass", "num_class": n_classes}
        params = {
            **({"objective": "binary"} if n_classes == 2 else several),
            "learning_rate": self.learning_rate,
            "bagging_fraction": self.subsample,
            "bagging_freq": 1,
            "max_depth": self.depth,
            "num_leaves": min(2**self.depth, _MAX_LEAVES),
            # Small leaves, as in the classic algorithm; without the penalty, the leaves of deep trees blow up.
            "min_data_in_leaf": 1,
            "lambda_l2": 1.0,
            "feature_pre_filter": False,
            "seed": seed,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": 1,
            "verbosity": -1,
        }
        train_set = library.Dataset(X, y, params={"feature_pre_filter": False, "verbosity": -1})
        booster = library.train(params, train_set, num_boost_round=self.rounds)
        return [np.asarray(booster.predict(x, raw_score=True, num_threads=1)) for x in queries]

    def _xgboost_margins(
        self, X: Table, y: Array, n_classes: int, seed: int, queries: Sequence[Table]
    ) -> list[FloatArray]:
        library = self._library()
        several = {"objective": "multi:softprob", "num_class": n_classes}
        params = {
            **({"objective": "binary:logistic"} if n_classes == 2 else several),
            "eta": self.learning_rate,
            "subsample": self.subsample,
            "max_depth": self.depth,
            "seed": seed,
            "nthread": 1,
            "tree_method": "hist",
        }
        booster = library.train(params, library.DMatrix(X, y), num_boost_round=self.rounds)
        return [np.asarray(booster.predict(library.DMatrix(x), output_margin=True), np.float64) for x in queries]


def _table(X: Array) -> Table:
    """Points [points, features] as floats that hold their values: LightGBM itself would round integers to float32."""
    flat = X.reshape(len(X), -1)
    return flat if flat.dtype in (np.float32, np.float64) else flat.astype(np.result_type(flat.dtype, np.float32))
