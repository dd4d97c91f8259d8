"""Gradient-boosted trees with LightGBM, or with XGBoost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal

import numpy as np

from plmia.data.arrays import Array, BoolArray, FloatArray, Floats
from plmia.data.dataset import LabelledData
from plmia.data.encoding import Encoding, columns_of
from plmia.errors import Note, RecipeError, install_hint
from plmia.training.recipes.confidences import Confidences, conf_from_logits, trained_from_answers
from plmia.training.recipes.recipe import (
    LARGEST_COUNT,
    LARGEST_RATE,
    BuiltInRecipe,
    Trained,
    float32_notes,
    is_count,
    require_columns,
)
from plmia.training.views import Views

# LightGBM allows no more.
_MAX_LEAVES = 131072
# Deeper trees than any data need; LightGBM takes minutes to begin with 2^31.
_MAX_DEPTH = 1000
# Per column; LightGBM's histograms have 255 bins.
_MAX_CATEGORIES = 254


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
        if not (is_count(self.rounds) and is_count(self.depth) and self.depth <= _MAX_DEPTH):
            raise RecipeError(
                f"gbdt needs rounds from 1 to {LARGEST_COUNT:,} and depth from 1 to {_MAX_DEPTH:,}, not {self}"
            )
        if not (0 < self.subsample <= 1 and 0 < self.learning_rate <= LARGEST_RATE):
            raise RecipeError(
                f"gbdt needs subsample in (0, 1] and a learning rate above 0, at most {LARGEST_RATE:g}, not {self}"
            )

    def check(self, data: LabelledData) -> None:
        """Take arrays and tables, if the library is installed."""
        require_columns(self.name, data)
        self._library()

    def preprocessing(self, data: LabelledData) -> str:
        """Encoding of text and categories, if there are any."""
        return self._encoding.identity if data.is_table and columns_of(data).categories.shape[1] else ""

    @property
    def _encoding(self) -> Encoding:
        """Both libraries take missing numbers; LightGBM also takes categories."""
        if self.library == "lightgbm":
            return Encoding(impute=False, scale=False, categories="native", max_categories=_MAX_CATEGORIES)
        return Encoding(impute=False, scale=False)

    def notes(self, data: LabelledData) -> list[Note]:
        """Note that images are flattened and columns are encoded; XGBoost also reads X as 32-bit floats."""
        steps = ["flattens images"] * data.is_images
        if data.is_table and (done := self._encoding.steps(columns_of(data))):
            steps.append(f"prepares the columns, which each model learns from its training records ({'; '.join(done)})")
        if self.library == "xgboost":
            return float32_notes(self.name, ["converts X to 32-bit floats", *steps], data)
        return [Note("recipe-preprocessing", "info", f"the recipe {self.name} {step}") for step in steps]

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
            raise RecipeError("boosted trees cannot be saved as safetensors: leave out keep_models (--keep-models)")
        margins_of = self._lightgbm_margins if self.library == "lightgbm" else self._xgboost_margins
        trained = []
        for row, seed in zip(members, seeds, strict=True):
            shown = self._shown(data, row, views)
            margins = margins_of(shown, row, data, seed % 2**31)
            if data.n_classes == 2:
                # One margin, for class 1: the logit itself, up to its sign.
                margins = [np.stack([np.zeros(len(m)), m.reshape(len(m))], axis=1) for m in margins]
            confidences = [Confidences(conf_from_logits(m, data.y)) for m in margins]
            trained.append(trained_from_answers(self.library, margins, confidences, data.y, row))
        return trained

    def _shown(self, data: LabelledData, row: BoolArray, views: Views) -> _Shown:
        if data.is_array:
            return _Shown(_table(data.X)[row], [_table(view.apply(data.X)) for view in views])
        columns = columns_of(data)
        encode = self._encoding.fit(columns.rows(row))
        table = encode(columns)
        return _Shown(table[row], [table] * len(views), encode.n_native)

    def _lightgbm_margins(self, shown: _Shown, row: BoolArray, data: LabelledData, seed: int) -> list[FloatArray]:
        library = self._library()
        several = {"objective": "multiclass", "num_class": data.n_classes}
        params = {
            **({"objective": "binary"} if data.n_classes == 2 else several),
            "learning_rate": self.learning_rate,
            "bagging_fraction": self.subsample,
            "bagging_freq": 1,
            "max_depth": self.depth,
            "num_leaves": min(2 ** min(self.depth, _MAX_LEAVES.bit_length()), _MAX_LEAVES),
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
        width = shown.members.shape[1]
        native = {"categorical_feature": list(range(width - shown.n_native, width))} if shown.n_native else {}
        settings = {"feature_pre_filter": False, "verbosity": -1}
        if int(self.subsample * len(shown.members)) < 1:
            raise RecipeError(
                f"gbdt with subsample={self.subsample:g} draws none of {len(shown.members)} training records per "
                "round: give a larger share, such as 0.2"
            )
        train_set = library.Dataset(shown.members, data.y[row], params=settings, **native)
        booster = library.train(params, train_set, num_boost_round=self.rounds)
        return [np.asarray(booster.predict(x, raw_score=True, num_threads=1)) for x in shown.queries]

    def _xgboost_margins(self, shown: _Shown, row: BoolArray, data: LabelledData, seed: int) -> list[FloatArray]:
        library = self._library()
        several = {"objective": "multi:softprob", "num_class": data.n_classes}
        params = {
            **({"objective": "binary:logistic"} if data.n_classes == 2 else several),
            "eta": self.learning_rate,
            "subsample": self.subsample,
            "max_depth": self.depth,
            "seed": seed,
            "nthread": 1,
            "tree_method": "hist",
        }
        booster = library.train(params, library.DMatrix(shown.members, data.y[row]), num_boost_round=self.rounds)
        return [np.asarray(booster.predict(library.DMatrix(x), output_margin=True), np.float64) for x in shown.queries]


@dataclass(frozen=True)
class _Shown:
    """Features as one model sees them."""

    members: Floats  # of its training points
    queries: Sequence[Floats]  # of all points, in each view
    n_native: int = 0  # number of columns, the last ones, that hold categories


def _table(X: Array) -> Floats:
    """Points [points, features] as floats that hold their values: LightGBM itself would round integers to float32."""
    flat = X.reshape(len(X), -1)
    return flat if flat.dtype in (np.float32, np.float64) else flat.astype(np.result_type(flat.dtype, np.float32))
