"""From what a classifier answers to logit-scaled true-label confidences."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plmia.errors import RecipeError
from plmia.numerics import logit_from_logits

# How far beyond [0, 1] rounding may carry a probability, and its row from a sum of 1 (in half precision, too).
_ROUNDING = 1e-5
_SUM_ROUNDING = 1e-2

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.integer]


def conf_from_probabilities(probabilities: npt.ArrayLike, labels: IntArray) -> tuple[FloatArray, int]:
    """Confidences [points] from class probabilities [points, classes], and how many had to be clipped.

    The probability of "not the true label" is summed over the other classes, not taken from one, so it keeps its
    digits where the true label is all but certain. What is exactly 0 still has no logit. Voting ensembles answer in
    steps of one over the number of voters, so the step that this model showed is the resolution to respect: 0 becomes
    half of the smallest positive probability seen. Of a model that diverged nothing is finite: it has no confidence.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2 or len(p) != len(labels) or labels.max(initial=0) >= p.shape[1]:
        raise RecipeError(
            f"class probabilities have shape {p.shape}, [{len(labels)}, classes] is needed with a column for each "
            f"of the labels 0 to {labels.max(initial=0)}: return one row a point"
        )
    if not np.isfinite(p).all():
        return np.full(len(p), np.nan), 0
    if p.min() < -_ROUNDING or p.max() > 1 + _ROUNDING:
        raise RecipeError(f"class probabilities run from {p.min()} to {p.max()}: they must lie in [0, 1]")
    p = p.clip(0, 1)
    off = np.abs(p.sum(axis=1) - 1)
    if off.max() > _SUM_ROUNDING:
        raise RecipeError(
            f"class probabilities of point {off.argmax()} add up to {p[off.argmax()].sum():.4g}: they must add up to 1"
        )
    points = np.arange(len(p))
    own = p[points, labels]
    others = p.copy()
    others[points, labels] = 0.0
    rest = others.sum(axis=1)
    positive = np.concatenate([own[own > 0], rest[rest > 0]])
    clipped = (own <= 0) | (rest <= 0)
    if clipped.any():
        floor = float(positive.min()) / 2
        own, rest = np.maximum(own, floor), np.maximum(rest, floor)
    return np.log(own) - np.log(rest), int(clipped.sum())


def conf_from_logits(logits: npt.ArrayLike, labels: IntArray) -> FloatArray:
    """Confidences [points] from logits [points, classes]; not finite for a model that diverged."""
    z = np.asarray(logits, dtype=np.float64)
    if not np.isfinite(z).all():
        return np.full(len(z), np.nan)
    return logit_from_logits(z, labels)


def conf_from_answers(answers: npt.ArrayLike, labels: IntArray) -> tuple[FloatArray, int]:
    """Confidences [points] from logits, or from probabilities (rows in [0, 1] that add up to 1) [points, classes].

    Rows in [0, 1] that do not add up to 1 are refused: they may be either, badly rounded or not normalised.
    """
    a = np.asarray(answers, dtype=np.float64)
    if a.ndim != 2 or len(a) != len(labels) or labels.max(initial=0) >= a.shape[1]:
        raise RecipeError(
            f"query returned shape {a.shape}, [{len(labels)}, {labels.max(initial=0) + 1}] is needed: a row a point, "
            "with the logits or the probabilities of the classes"
        )
    if np.isfinite(a).all() and a.min() >= -_ROUNDING and a.max() <= 1 + _ROUNDING:
        off = np.abs(a.sum(axis=1) - 1)
        if off.max() <= _SUM_ROUNDING:
            return conf_from_probabilities(a, labels)
        if np.ptp(a) > 0:  # where all logits are the same, the model knows nothing, and they say so
            raise RecipeError(
                f"query returned numbers in [0, 1] that add up to {a[off.argmax()].sum():.4g} at point {off.argmax()}: "
                "return probabilities that add up to 1, or logits as they are before softmax or sigmoid"
            )
    return conf_from_logits(a, labels), 0
