"""Gradient-boosted trees with LightGBM, or with XGBoost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from plmia.data.dataset import LabelledData
from plmia.errors import Note, RecipeError
from plmia.training.recipes.confidences import conf_from_logits
from plmia.training.recipes.recipe import BoolArray, Trained, accuracies, float32_notes, not_finite
from plmia.training.views import View

# LightGBM takes no more.
_MOST_LEAVES = 131072

Margins = npt.NDArray[np.float64]
Table = npt.NDArray[np.floating]


@dataclass(frozen=True)
class GBDT:
    """Boosted trees, queried for their raw margins, so that confidences never saturate.

    Parameters
    ----------
    rounds : int
        Boosting rounds.
    learning_rate : float
        Shrinkage of each round.
    subsample : float
        Share of the rows that each round draws.
    depth : int
        Largest depth of a tree (the paper: 3, 5, 7).
    library : {"lightgbm", "xgboost"}
        Which library grows the trees.
    """

    rounds: int = 250
    learning_rate: float = 0.1
    subsample: float = 0.2
    depth: int = 3
    library: Literal["lightgbm", "xgboost"] = "lightgbm"
    name: ClassVar[str] = "gbdt"
    stack: ClassVar[int] = 1
    keeps_weights: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.library not in ("lightgbm", "xgboost"):
            raise RecipeError(f"there is no library {self.library!r} for gbdt: take lightgbm or xgboost")
        if not (self.rounds >= 1 and self.depth >= 1 and 0 < self.subsample <= 1 and self.learning_rate > 0):
            raise RecipeError(
                f"gbdt needs rounds and depth of at least 1, subsample in (0, 1] and a positive learning rate: {self}"
            )

    def to_json(self) -> dict[str, Any]:
        """All parameters."""
        return {"recipe": self.name, **asdict(self)}

    def check(self, data: LabelledData) -> None:
        """Any numeric data will do, if the library is there."""
        del data
        self._library()

    def notes(self, data: LabelledData) -> list[Note]:
        """Say that images are flattened; XGBoost also reads X as 32-bit floats."""
        flattens = ["flattens images"] * data.is_images
        if self.library == "xgboost":
            return float32_notes(self.name, ["converts X to 32-bit floats", *flattens], data)
        return [Note("recipe-preprocessing", "info", f"the recipe {self.name} {step}") for step in flattens]

    def _library(self) -> Any:
        try:
            if self.library == "xgboost":
                import xgboost

                return xgboost
            import lightgbm
        except ImportError as error:
            package = "plmia[gbdt]" if self.library == "lightgbm" else "xgboost-cpu"
            raise RecipeError(f"{self.library} is not installed: pip install '{package}'") from error
        return lightgbm

    def train(
        self,
        data: LabelledData,
        members: BoolArray,
        seeds: Sequence[int],
        views: Sequence[View],
        keep_weights: bool = False,
    ) -> list[Trained]:
        """Train and query one ensemble after another; see `Recipe.train`."""
        if keep_weights:
            raise RecipeError("boosted trees cannot be kept as safetensors: leave out --keep-models")
        grow = self._lightgbm if self.library == "lightgbm" else self._xgboost
        table, pictures = _table(data.X), [_table(view.apply(data.X)) for view in views]
        return [
            self._trained(data, row, grow(data, row, seed % 2**31, table, pictures))
            for row, seed in zip(members, seeds, strict=True)
        ]

    def _trained(self, data: LabelledData, members: BoolArray, margins: list[Margins]) -> Trained:
        if data.n_classes == 2:
            # One margin for class 1: the logit itself, up to its sign.
            margins = [np.stack([np.zeros(len(m)), m.reshape(len(m))], axis=1) for m in margins]
        conf = np.stack([conf_from_logits(m, data.y) for m in margins], axis=1)
        right = margins[0].argmax(axis=1) == data.y
        trouble = not_finite(self.library, margins)
        return Trained(conf.astype(np.float32), *accuracies(right, members), trouble=trouble)

    def _lightgbm(
        self, data: LabelledData, row: BoolArray, seed: int, table: Table, pictures: list[Table]
    ) -> list[Margins]:
        library = self._library()
        objective = (
            {"objective": "binary"}
            if data.n_classes == 2
            else {
                "objective": "multiclass",
                "num_class": data.n_classes,
            }
        )
        params = objective | {
            "learning_rate": self.learning_rate,
            "bagging_fraction": self.subsample,
            "bagging_freq": 1,
            "max_depth": self.depth,
            "num_leaves": min(2**self.depth, _MOST_LEAVES),
            # Small leaves, as in the classic algorithm; without the penalty deep trees blow up on them.
            "min_data_in_leaf": 1,
            "lambda_l2": 1.0,
            "feature_pre_filter": False,
            "seed": seed,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": 1,
            "verbosity": -1,
        }
        train_set = library.Dataset(table[row], data.y[row], params={"feature_pre_filter": False, "verbosity": -1})
        booster = library.train(params, train_set, num_boost_round=self.rounds)
        return [np.asarray(booster.predict(x, raw_score=True, num_threads=1)) for x in pictures]

    def _xgboost(
        self, data: LabelledData, row: BoolArray, seed: int, table: Table, pictures: list[Table]
    ) -> list[Margins]:
        library = self._library()
        objective = (
            {"objective": "binary:logistic"}
            if data.n_classes == 2
            else {
                "objective": "multi:softprob",
                "num_class": data.n_classes,
            }
        )
        params = objective | {
            "eta": self.learning_rate,
            "subsample": self.subsample,
            "max_depth": self.depth,
            "seed": seed,
            "nthread": 1,
            "tree_method": "hist",
        }
        booster = library.train(params, library.DMatrix(table[row], data.y[row]), num_boost_round=self.rounds)
        return [np.asarray(booster.predict(library.DMatrix(x), output_margin=True), np.float64) for x in pictures]


def _table(X: npt.NDArray[Any]) -> Table:
    """Points [points, features] as floats that hold their values: LightGBM itself would take integers as float32."""
    flat = X.reshape(len(X), -1)
    return flat if flat.dtype in (np.float32, np.float64) else flat.astype(np.result_type(flat.dtype, np.float32))
