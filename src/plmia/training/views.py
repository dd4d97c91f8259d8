"""Views: how a record is shown to a trained model, unchanged or slightly changed.

A view is written as a short text:

``identity``
    Unchanged.
``mirror``, ``shift:DY,DX``, ``mirror+shift:DY,DX``
    Images: mirrored left to right; then moved DY pixels down and DX to the right (negative: up, left). New pixels are
    reflections at the border.
``noise:SCALE``, ``noise:SCALE,SEED``
    Tables: a small Gaussian displacement, of standard deviation SCALE in each feature's unit.

Spaces, semicolons or commas separate several views: ``identity;mirror;shift:0,1``. The name of a set (`VIEW_SETS`)
stands for its views.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from plmia.data.arrays import Array, FloatArray32, IntArray
from plmia.data.dataset import LabelledData
from plmia.errors import RecipeError, did_you_mean

_FORMS = ("identity", "mirror", "shift:DY,DX", "mirror+shift:DY,DX", "noise:SCALE,SEED")


@dataclass(frozen=True)
class View:
    """One way to show a record to a model.

    Parameters
    ----------
    mirror : bool
        Whether an image is mirrored left to right.
    dy, dx : int
        Pixels by which an image moves down and to the right, after mirroring.
    scale, seed : float, int
        Standard deviation of the displacement of a table's rows, and its seed.
    """

    mirror: bool = False
    dy: int = 0
    dx: int = 0
    scale: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale >= 0 and self.seed >= 0):
            raise RecipeError(f"noise of scale {self.scale} and seed {self.seed}: both must be finite and at least 0")
        if self.seed and not self.scale:
            raise RecipeError(f"noise of scale 0 with seed {self.seed} changes nothing: give a scale above 0")
        if self.scale and self.changes_pixels:
            raise RecipeError("a view cannot both add noise and move pixels: give two views")

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
        if data.is_array:
            self._require_fit(data.X.shape)
        elif self != View():
            raise RecipeError(f"view {self} is for arrays, but the data are {data.form}: use 'identity'")

    def shown(self, data: LabelledData) -> Any:
        """All records of ``data`` through the view, for the user's code; it shares no memory with the data."""
        return data.rows() if self == View() else np.array(self.apply(data.X))

    def indices(self, height: int, width: int) -> tuple[IntArray, IntArray]:
        """Rows [height] and columns [width] of the image that the view shows.

        For images [records, height, width, ...], in NumPy and in torch, ``X[:, rows][:, :, columns]`` is the view.
        """
        if self.scale:
            raise RecipeError(f"view {self} is for tables: leave it out for images")
        rows = _reflected(np.arange(height) - self.dy, height, self)
        columns = _reflected(np.arange(width) - self.dx, width, self)
        return rows, width - 1 - columns if self.mirror else columns

    def offset(self, n_features: int) -> FloatArray32:
        """Displacement [features] that the view adds to every row of a table; zeros without noise.

        It is the same for all records, so that the view of a record does not depend on the other records.
        """
        if not self.scale:
            return np.zeros(n_features, dtype=np.float32)
        normal = np.random.default_rng(self.seed).standard_normal(n_features)
        return (self.scale * normal).astype(np.float32)

    def apply(self, X: Array) -> Array:
        """Show records [records, ...] through the view; the identity returns them without a copy.

        The type stays the same, except that noise turns whole numbers into floats that hold them.
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
                f"view {self} is for images, but the data are a table {list(shape)}: use 'identity' or 'noise:SCALE'"
            )
        if self.scale and len(shape) > 2:
            raise RecipeError(
                f"view {self} is for tables, but the data are images {list(shape)}: use 'mirror' or 'shift:DY,DX'"
            )
        if self.changes_pixels:
            self.indices(shape[1], shape[2])


Views: TypeAlias = Sequence[View]


def _reflected(positions: IntArray, length: int, view: View) -> IntArray:
    """Reflect positions outside 0 .. length - 1 at the border pixel, without repeating it."""
    outside = max(-int(positions[0]), int(positions[-1]) - (length - 1), 0)
    if outside > length - 1:
        raise RecipeError(
            f"view {view} moves images by {outside} pixels, but they have {length}: shift by at most {length - 1}"
        )
    positions = np.abs(positions)
    return np.where(positions < length, positions, 2 * (length - 1) - positions)


def _shifts(views: Iterable[View], steps: Iterable[tuple[int, int]]) -> tuple[View, ...]:
    offsets = list(steps)
    return tuple(View(view.mirror, dy, dx) for view in views for dy, dx in offsets)


_MIRRORS = (View(), View(mirror=True))
# The unmoved image first, so that the identity leads.
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
    """Read a list of views and sets; a comma before a number belongs to its view."""
    views: list[View] = []
    for word in filter(None, re.split(r"[;\s]+|,\s*(?=[A-Za-z])", text)):
        views += VIEW_SETS.get(word) or (View.parse(word),)
    if not views:
        raise RecipeError(f"no view in {text!r}: give {', '.join(_FORMS)}, or a set ({', '.join(VIEW_SETS)})")
    for i, view in enumerate(views):
        if view in views[:i]:
            raise RecipeError(f"view {view} appears twice in {text!r}: give each view once")
    return tuple(views)


def check_views(views: Iterable[View], data: LabelledData) -> None:
    """Raise `RecipeError` if one of the views does not fit ``data``."""
    for view in views:
        view.check(data)


def default_views(data: LabelledData) -> tuple[View, ...]:
    """Views for models that were trained on augmented images.

    Tables are shown unchanged, colour images in the 18 views of the paper. Grey images are shifted only: a mirrored
    digit or letter is not a valid one.
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
    hint = "" if name in known else did_you_mean(name.lower(), known, "")
    near = f" ({hint})" if hint else ""
    return RecipeError(
        f"there is no view {text!r}{near}: views are {', '.join(_FORMS)}, or a set ({', '.join(VIEW_SETS)})"
    )
