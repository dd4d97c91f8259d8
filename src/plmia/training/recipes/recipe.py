"""The contract of a recipe: a value that trains models, one or a whole stack at once, and queries them."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol

import numpy as np

from plmia.data.arrays import Array, BoolArray, FloatArray32
from plmia.data.dataset import LabelledData
from plmia.errors import Note, RecipeError
from plmia.training.recipes.declared_files import DeclaredFile
from plmia.training.views import VIEW_SETS, View, Views, default_views


@dataclass(frozen=True)
class Trained:
    """Answers of one trained model, and how well it was trained.

    Parameters
    ----------
    conf : float32 array [points, views]
        Logit-scaled true-label confidence at every point; not finite if the model diverged.
    train_accuracy, test_accuracy : float
        Share of correct predictions on the points it trained on, and on the others (first view).
    n_clipped : int
        Number of probabilities that were exactly 0 or 1.
    losses : tuple of float
        Mean training loss of each epoch (or round), if the recipe has them.
    weights : dict, optional
        Arrays by name, if they were requested.
    trouble : str
        What is wrong with the answers of a model without a loss, if they are not finite.
    n_renormalised : int
        Number of rows of probabilities that missed a sum of 1 by rounding and were renormalised.
    sum_error : float
        Largest distance of those sums from 1.
    undeclared : tuple of str
        Names of files that training read although the recipe does not declare them, as far as that was observed.
    """

    conf: FloatArray32
    train_accuracy: float
    test_accuracy: float
    n_clipped: int = 0
    losses: tuple[float, ...] = ()
    weights: dict[str, Array] | None = field(default=None, repr=False)
    trouble: str = ""
    n_renormalised: int = 0
    sum_error: float = 0.0
    undeclared: tuple[str, ...] = ()

    @property
    def diverged(self) -> bool:
        """Whether training ended in numbers that are not finite."""
        return not bool(np.isfinite(self.conf).all())


class Recipe(Protocol):
    """A way to train: a frozen dataclass that can be compared, saved as JSON and sent to another process.

    A class that inherits from `Recipe` defines ``name``, `to_json` and `train`, and inherits the other members. A class
    that does not inherit must define all of them.
    """

    name: ClassVar[str]

    @property
    def stack(self) -> int:
        """Largest number of models that `train` takes at once."""
        return 1

    @property
    def keeps_weights(self) -> bool:
        """Whether `train` can return weights."""
        return True

    @property
    def augments(self) -> bool:
        """Whether training images are mirrored or shifted, so that querying with several views pays off."""
        return False

    @property
    def declared_files(self) -> tuple[DeclaredFile, ...]:
        """Files that training reads in addition to the data."""
        return ()

    @property
    def source(self) -> str:
        """Name of the code that trains, for messages about code that changed."""
        return self.name

    @property
    def description(self) -> str:
        """Text for people; for built-in recipes, the text that `parse_recipe` reads."""
        return self.name

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return everything that decides what is trained, with ``name`` as "recipe"; equal recipes give equal JSON."""

    def check(self, data: LabelledData) -> None:
        """Raise `RecipeError` if this recipe does not fit ``data``."""
        del data

    def notes(self, data: LabelledData) -> list[Note]:
        """Return notes on how the recipe converts ``data`` before models see them."""
        del data
        return []

    @abstractmethod
    def train(
        self, data: LabelledData, members: BoolArray, seeds: Sequence[int], views: Views, keep_weights: bool = False
    ) -> list[Trained]:
        """Train one model per row of ``members`` and query each on all points.

        The result for a row depends on its members and its seed alone (up to float rounding), not on the other models
        of the stack.

        Parameters
        ----------
        data : LabelledData
            All points.
        members : bool array [models, points]
            Points that each model trains on.
        seeds : sequence of int
            One per model: decides initialisation, order of batches and everything else random.
        views : sequence of View
            How points are shown to the trained model.
        keep_weights : bool
            Whether to return the weights; only requested if `keeps_weights`.
        """


def accuracies(right: BoolArray, members: BoolArray) -> tuple[float, float]:
    """Accuracy on members and on non-members, from correct predictions [points] and membership [points]."""
    inside = float(right[members].mean()) if members.any() else float("nan")
    outside = float(right[~members].mean()) if not members.all() else float("nan")
    return inside, outside


def views_for(recipe: Recipe, data: LabelledData) -> tuple[View, ...]:
    """Views to query with, if the user chose none.

    A model that never saw shifted or mirrored images knows its members only as they are: on CIFAR-10, more views then
    cost every attack power. So there is one view, unless the recipe augments its images.
    """
    return default_views(data) if recipe.augments else VIEW_SETS["one"]


def options_text(recipe: Any) -> str:
    """Name and options of a dataclass recipe, as `parse_recipe` reads them; options at their default are left out."""
    given = {own.name: getattr(recipe, own.name) for own in fields(recipe)}
    changed = {own.name: given[own.name] for own in fields(recipe) if given[own.name] != own.default}
    options = (f"{key}={','.join(map(str, v)) if isinstance(v, tuple) else v}" for key, v in changed.items())
    return f"{recipe.name}?{'&'.join(options)}" if changed else str(recipe.name)


def stable_text(name: str, value: Any, remedy: str) -> str:
    """Text that distinguishes a value from others in every process: of an array its digest, else its ``repr``.

    If the ``repr`` does not show the value, `RecipeError` names it and the remedy.
    """
    if isinstance(value, np.ndarray) and value.dtype != object:  # its repr leaves out the middle
        digest = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()
        return f"array {value.dtype.str} {value.shape} {digest}"
    text = repr(value)
    if " at 0x" in text:
        raise RecipeError(
            f"{name!r} has no stable text ({' '.join(text.split())[:60]}), so plmia could not recognise finished "
            f"models: {remedy}"
        )
    return text


def float32_notes(recipe: str, steps: Sequence[str], data: LabelledData) -> list[Note]:
    """Note how a recipe converts X to 32-bit floats, step by step; a caution if that merges distinct values."""
    how = " and ".join([", ".join(steps[:-1]), steps[-1]] if len(steps) > 1 else steps)
    merged = data.merged_by_float32
    if not merged:
        return [Note("recipe-preprocessing", "info", f"the recipe {recipe} {how}")]
    column, before, after = merged[0]
    more = f" (and values of {len(merged) - 1} more columns)" if len(merged) > 1 else ""
    text = (
        f"the recipe {recipe} {how}: {before:,} distinct values of column {column} become {after:,}{more}, so models "
        "cannot distinguish these records. Subtract a constant, or encode identifiers as categories"
    )
    return [Note("recipe-preprocessing", "caution", text)]
