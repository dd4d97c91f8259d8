"""What can go wrong, by name: every message says what was wrong, where, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class PlmiaError(ValueError):
    """Input that plmia cannot work with; the command prints it as one sentence and exits with 2."""


class SignalsError(PlmiaError):
    """A signals file, or the arrays in it, that cannot be read or do not fit together."""


class ReferencesError(PlmiaError):
    """Too few reference models, or points without the IN or OUT references an estimator needs."""


class PopulationError(PlmiaError):
    """A population that is too small, degenerate, or overlaps what it must not overlap."""


class AttackError(PlmiaError):
    """An attack that does not exist, cannot be loaded, or does not fit the data."""


class DataError(PlmiaError):
    """A data set that cannot be read or does not fit together."""


class RecipeError(PlmiaError):
    """A recipe that does not exist, or does not fit the data."""


class TrainingError(PlmiaError):
    """Training that could not go on; what was finished is kept.

    Parameters
    ----------
    sentence : str
        What happened and what to do.
    trace : str
        The traceback of the user's own code, where that raised.
    """

    def __init__(self, sentence: str, trace: str = "") -> None:
        super().__init__(sentence)
        self.trace = trace


class StoreError(PlmiaError):
    """A store that is damaged, foreign, or belongs to another audit."""


class OutputError(PlmiaError):
    """A result that cannot be written."""


def some(indices: Sequence[int] | npt.NDArray[np.intp], most: int = 5) -> str:
    """Name up to ``most`` indices and count the rest: ``"3, 17, 20 and 4 more"``."""
    shown = ", ".join(str(int(i)) for i in indices[:most])
    rest = len(indices) - most
    return f"{shown} and {rest:,} more" if rest > 0 else shown


def shown(name: str) -> str:
    """Name of a file as text that can be written anywhere: bytes that are not UTF-8 become replacement characters."""
    # Python stands lone surrogates in for such bytes.
    return re.sub("[\ud800-\udfff]", "\ufffd", name)
