"""Views: how a point is shown to a trained model, as it is or slightly changed.

A view is written as a short text:

``identity``
    As it is.
``mirror``, ``shift:DY,DX``, ``mirror+shift:DY,DX``
    Images: mirrored left to right; then moved DY pixels down and DX to the right (negative: up, left). What leaves the
    image is lost, what enters it is reflected at the border.
``noise:SCALE``, ``noise:SCALE,SEED``
    Tables: a small Gaussian displacement, of standard deviation SCALE in each feature's unit.

Several of them stand in one text with spaces, semicolons or commas between: ``identity;mirror;shift:0,1``. Names of
whole sets (`VIEW_SETS`) may stand for their views.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.data.dataset import LabelledData
from plmia.errors import RecipeError

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.intp]

_FORMS = ("identity", "mirror", "shift:DY,DX", "mirror+shift:DY,DX", "noise:SCALE,SEED")


@dataclass(frozen=True)
class View:
    """One way to show a point to a model.

    Parameters
    ----------
    mirror : bool
        Whether an image is mirrored left to right.
    dy, dx : int
        How many pixels an image moves down and to the right, after mirroring.
    scale : float
        Standard deviation of the displacement of a table's rows.
    seed : int
        Which displacement: the same seed is the same displacement.
    """

    mirror: bool = False
    dy: int = 0
    dx: int = 0
    scale: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale >= 0 and self.seed >= 0):
            raise RecipeError(f"noise of scale {self.scale} and seed {self.seed}: both must be finite and not negative")
        if self.seed and not self.scale:
            raise RecipeError(f"noise of scale 0 with seed {self.seed} changes nothing: give a scale above 0")
        if self.scale and self.changes_pixels:
            raise RecipeError("a view has noise or moves pixels, not both: give two views")

    @classmethod
    def parse(cls, text: str) -> View:
        """Read one view; the inverse of ``str``."""
        if text == "identity":
            return cls()
        if match := re.fullmatch(r"noise:([0-9.eE+-]+)(?:,([0-9]{1,18}))?", text):
            return cls(scale=_scale(text, match[1]), seed=int(match[2] or 0))
        if match := re.fullmatch(r"mirror|(?:mirror\+)?shift:(-?[0-9]{1,6}),(-?[0-9]{1,6})", text):
            return cls(text.startswith("mirror"), int(match[1] or 0), int(match[2] or 0))
        raise _unknown(text)

    def __str__(self) -> str:
        if self.scale:
            return f"noise:{self.scale!r},{self.seed}"
        moved = f"shift:{self.dy},{self.dx}" if self.dy or self.dx else ""
        return "+".join(filter(None, ["mirror" if self.mirror else "", moved])) or "identity"

    @property
    def changes_pixels(self) -> bool:
        """Whether the view mirrors or shifts images."""
        return self.mirror or self.dy != 0 or self.dx != 0

    def check(self, data: LabelledData) -> None:
        """Raise `RecipeError` if this view does not fit ``data``."""
        self._require_fit(data.X.shape)

    def indices(self, height: int, width: int) -> tuple[IntArray, IntArray]:
        """Rows [height] and columns [width] of the image that the view shows.

        For images [points, height, width, ...], NumPy arrays and torch tensors alike, ``X[:, rows][:, :, columns]`` is
        the view; rows and columns never leave the image.
        """
        if self.scale:
            raise RecipeError(f"view {self} is for tables, it has no pixels to pick: leave it out for images")
        rows = _reflected(np.arange(height) - self.dy, height, self)
        columns = _reflected(np.arange(width) - self.dx, width, self)
        return rows, width - 1 - columns if self.mirror else columns

    def offset(self, n_features: int) -> npt.NDArray[np.float32]:
        """Displacement [features] that the view adds to every row of a table; zeros without noise.

        It is one for all points, as a shift is, so that how a point is shown does not depend on which others are shown
        along with it.
        """
        if not self.scale:
            return np.zeros(n_features, dtype=np.float32)
        normal = np.random.default_rng(self.seed).standard_normal(n_features)
        return (self.scale * normal).astype(np.float32)

    def apply(self, X: Array) -> Array:
        """Show points through the view.

        Parameters
        ----------
        X : array [points, features], [points, height, width] or [points, height, width, channels]
            Points; returned as they are, not copied, by the identity.

        Returns
        -------
        array, same shape
            Of the same type; with noise, whole numbers become floats that hold them.
        """
        self._require_fit(X.shape)
        if self.scale:
            floats = X if X.dtype.kind == "f" else X.astype(np.result_type(X.dtype, np.float32))
            moved: Array = floats + self.offset(X.shape[1]).astype(floats.dtype)
            return moved
        if not self.changes_pixels:
            return X
        rows, columns = self.indices(X.shape[1], X.shape[2])
        return X[:, rows[:, None], columns]

    def _require_fit(self, shape: tuple[int, ...]) -> None:
        if self.changes_pixels and len(shape) < 3:
            raise RecipeError(
                f"view {self} is for images, the data are a table {list(shape)}: use 'identity' or 'noise:SCALE'"
            )
        if self.scale and len(shape) > 2:
            raise RecipeError(
                f"view {self} is for tables, the data are images {list(shape)}: use 'mirror' or 'shift:DY,DX'"
            )
        if self.changes_pixels:
            self.indices(shape[1], shape[2])


def _reflected(positions: IntArray, length: int, view: View) -> IntArray:
    """Reflect positions outside 0 .. length - 1 at the border pixel, which is not repeated."""
    outside = max(-int(positions[0]), int(positions[-1]) - (length - 1), 0)
    if outside > length - 1:
        raise RecipeError(
            f"view {view} moves images by {outside} pixels where they have {length}: shift by at most {length - 1}"
        )
    positions = np.abs(positions)
    return np.where(positions < length, positions, 2 * (length - 1) - positions)


def _shifts(views: Iterable[View], steps: Iterable[tuple[int, int]]) -> tuple[View, ...]:
    offsets = list(steps)
    return tuple(View(view.mirror, dy, dx) for view in views for dy, dx in offsets)


_MIRRORS = (View(), View(mirror=True))
# Not moved first, so that the identity leads.
_ONE_PIXEL = [(dy, dx) for dy in (0, -1, 1) for dx in (0, -1, 1)]

VIEW_SETS: dict[str, tuple[View, ...]] = {
    "one": (View(),),
    "mirror2": _MIRRORS,
    "cifar4": (*_MIRRORS, View(dy=2), View(dy=-2)),
    "shift9": _shifts([View()], _ONE_PIXEL),
    "rmia18": _shifts(_MIRRORS, _ONE_PIXEL),
}
"""Named sets; ``rmia18`` is the protocol of RMIA and of the paper, ``shift9`` its half without mirrors."""


def parse_views(text: str) -> tuple[View, ...]:
    """Read a list of views and sets, such as ``rmia18`` or ``identity; mirror; shift:0,1``.

    Parameters
    ----------
    text : str
        Views with spaces, semicolons or commas between; a comma before a number belongs to its view.
    """
    views: list[View] = []
    for word in filter(None, re.split(r"[;\s]+|,\s*(?=[A-Za-z])", text)):
        views += VIEW_SETS.get(word) or (View.parse(word),)
    if not views:
        raise RecipeError(f"no view in {text!r}: give {', '.join(_FORMS)}, or a set ({', '.join(VIEW_SETS)})")
    for i, view in enumerate(views):
        if view in views[:i]:
            raise RecipeError(f"view {view} stands twice in {text!r}: give each view once")
    return tuple(views)


def check_views(views: Iterable[View], data: LabelledData) -> None:
    """Raise `RecipeError` if one of the views does not fit ``data``."""
    for view in views:
        view.check(data)


def default_views(data: LabelledData) -> tuple[View, ...]:
    """Views for data about which nothing else is known.

    Tables are shown as they are, colour images in the 18 views of the paper. Grey ones are only shifted: a mirrored
    digit or letter is none.
    """
    if not data.is_images or min(data.X.shape[1:3]) < 2:
        return VIEW_SETS["one"]
    return VIEW_SETS["rmia18" if data.X.ndim == 4 and data.X.shape[3] == 3 else "shift9"]


def _scale(text: str, number: str) -> float:
    try:
        scale = float(number)
    except ValueError:
        raise _unknown(text) from None
    if not (math.isfinite(scale) and scale > 0):
        raise RecipeError(f"view {text!r} has scale {number}: a number above 0 is needed")
    return scale


def _unknown(text: str) -> RecipeError:
    known = [*VIEW_SETS, "identity", "mirror", "shift", "mirror+shift", "noise"]
    name = text.partition(":")[0]
    near = difflib.get_close_matches(name.lower(), known, n=1)
    forms = f"{', '.join(_FORMS)}, or a set ({', '.join(VIEW_SETS)})"
    if near and near[0] != name:
        return RecipeError(f"there is no view {text!r}: did you mean {near[0]!r}? Views are {forms}")
    return RecipeError(f"there is no view {text!r}: views are {forms}")
