"""What a recipe is: a value that trains models, one or a whole stack at once, and queries them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from plmia.data.dataset import LabelledData
from plmia.errors import Note, RecipeError, some
from plmia.training.recipes.declared_files import DeclaredFile
from plmia.training.views import VIEW_SETS, View, default_views

FloatArray32 = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Trained:
    """One trained model, as far as an audit cares.

    Parameters
    ----------
    conf : float32 array [points, views]
        Logit-scaled true-label confidence at every point; not finite if the model diverged.
    train_accuracy, test_accuracy : float
        Share of right predictions on the points it trained on, and on the others (first view).
    n_clipped : int
        How many probabilities were 0 or 1 to the last digit.
    losses : tuple of float
        Mean training loss of each epoch (or round), where there are such.
    weights : dict, optional
        Arrays by name, if they were asked for.
    trouble : str
        What to say of a model without a loss whose answers are not finite.
    n_renormalised : int
        Number of rows of probabilities that missed a sum of 1 by rounding and were renormalised.
    sum_error : float
        Largest distance of those sums from 1.
    undeclared : tuple of str
        Names of files that training read without their being declared, as far as that was seen.
    """

    conf: FloatArray32
    train_accuracy: float
    test_accuracy: float
    n_clipped: int = 0
    losses: tuple[float, ...] = ()
    weights: dict[str, npt.NDArray[Any]] | None = field(default=None, repr=False)
    trouble: str = ""
    n_renormalised: int = 0
    sum_error: float = 0.0
    undeclared: tuple[str, ...] = ()

    @property
    def diverged(self) -> bool:
        """Whether training ended in numbers that are not finite."""
        return not bool(np.isfinite(self.conf).all())


class Recipe(Protocol):
    """A way to train: a frozen dataclass that can be compared, saved as JSON and run elsewhere."""

    name: ClassVar[str]

    @property
    def stack(self) -> int:
        """At most how many models `train` takes at once."""

    @property
    def declared(self) -> tuple[DeclaredFile, ...]:
        """Files that training reads by itself; none by default."""
        return ()

    def to_json(self) -> dict[str, Any]:
        """Everything that decides what is trained; equal recipes give equal JSON."""

    def check(self, data: LabelledData) -> None:
        """Raise `RecipeError` if this recipe does not fit ``data``."""

    def notes(self, data: LabelledData) -> list[Note]:
        """Say what the recipe does to ``data`` before models see them; nothing if they see them as they are."""
        del data
        return []

    def train(
        self,
        data: LabelledData,
        members: BoolArray,
        seeds: Sequence[int],
        views: Sequence[View],
        keep_weights: bool = False,
    ) -> list[Trained]:
        """Train one model a row of ``members`` and query each on all points.

        The result for a row depends on its members and its seed alone (up to float rounding), not on what else is in
        the stack.

        Parameters
        ----------
        data : LabelledData
            All points.
        members : bool array [models, points]
            Which points each model trains on.
        seeds : sequence of int
            One a model: decides initialisation, order of batches and everything else random.
        views : sequence of View
            How points are shown to the trained model.
        keep_weights : bool
            Whether to return the weights; a recipe whose models have none says so by ``keeps_weights = False``.
        """


def stable_text(name: str, value: Any, remedy: str) -> str:
    """Text that tells a value from others in every process; raises `RecipeError` where there is none.

    Parameters
    ----------
    name : str
        What to call the value.
    value : object
        A number, text, array or whatever else has a telling ``repr``.
    remedy : str
        What to do about a value without one.
    """
    if isinstance(value, np.ndarray) and value.dtype != object:  # its text leaves out the middle
        digest = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()
        return f"array {value.dtype.str} {value.shape} {digest}"
    text = repr(value)
    if " at 0x" in text:
        raise RecipeError(
            f"{name!r} has no stable text ({' '.join(text.split())[:60]}), so finished models could not be told from "
            f"others: {remedy}"
        )
    return text


def float32_notes(recipe: str, steps: Sequence[str], data: LabelledData) -> list[Note]:
    """Say how a recipe converts X to 32-bit floats; a caution if that merges distinct values.

    Parameters
    ----------
    recipe : str
        Name of the recipe.
    steps : sequence of str
        What it does to X, step by step.
    data : LabelledData
        The data.
    """
    how = " and ".join([", ".join(steps[:-1]), steps[-1]] if len(steps) > 1 else steps)
    merged = data.merged_by_float32
    if not merged:
        return [Note("recipe-preprocessing", "info", f"the recipe {recipe} {how}")]
    column, before, after = merged[0]
    more = f" (and values of {len(merged) - 1} more columns)" if len(merged) > 1 else ""
    text = (
        f"the recipe {recipe} {how}: {before:,} distinct values of column {column} become {after:,}{more}, so models "
        "cannot tell these records apart. Subtract a constant, or encode identifiers as categories"
    )
    return [Note("recipe-preprocessing", "caution", text)]


def not_finite(what: str, answers: Sequence[npt.ArrayLike]) -> str:
    """Say at which points answers [points, classes], one array a view, are not finite; nothing if all are."""
    bad = np.any([~np.isfinite(np.asarray(a, dtype=np.float64)).all(axis=1) for a in answers], axis=0)
    nan = any(np.isnan(np.asarray(a, dtype=np.float64)).any() for a in answers)
    return f"{what} returned {'NaN' if nan else 'infinity'} for point {some(np.flatnonzero(bad))}" if bad.any() else ""


def accuracies(right: BoolArray, members: BoolArray) -> tuple[float, float]:
    """Accuracy on members and on non-members, from right predictions [points] and membership [points]."""
    inside = float(right[members].mean()) if members.any() else float("nan")
    outside = float(right[~members].mean()) if not members.all() else float("nan")
    return inside, outside


def views_for(recipe: Recipe, data: LabelledData) -> tuple[View, ...]:
    """Views to query with, if none are asked for.

    A model that never saw shifted or mirrored images knows its members only as they are: on CIFAR-10, further views
    then cost every attack power. So there is one view, unless the recipe augments its images.
    """
    return default_views(data) if getattr(recipe, "augment", False) else VIEW_SETS["one"]
