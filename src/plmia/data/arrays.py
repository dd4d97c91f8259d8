"""Types of arrays and of what they hold, under one name each in the whole package."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
FloatArray: TypeAlias = npt.NDArray[np.float64]
FloatArray32: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.intp]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
# Floats of any width, as signals are stored.
Floats: TypeAlias = npt.NDArray[np.floating]
# Integers of any width, as users give them: classes, groups, numbers of models.
Labels: TypeAlias = npt.NDArray[np.integer]
Counts: TypeAlias = npt.NDArray[np.integer]
# What a model tells of a record: the logit-scaled confidence of its true label, or any number larger for members.
SignalKind: TypeAlias = Literal["confidence", "signal"]
# What the numbers are that a model predicted; "auto" recognises them where that is possible.
PredictionKind: TypeAlias = Literal["auto", "values", "probabilities", "logits", "confidence", "signal"]


def read_only(array: Array) -> Array:
    """Return the same values in an array that cannot be written to; nothing is copied."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def made_read_only(holder: Any) -> dict[str, Any]:
    """Return the arrays of a dataclass that can be written to, by field, as `read_only` ones."""
    given = {field.name: getattr(holder, field.name) for field in fields(holder)}
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    return {name: read_only(value) for name, value in arrays.items() if value.flags.writeable}
