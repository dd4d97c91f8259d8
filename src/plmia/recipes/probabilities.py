"""From what a classifier answers to logit-scaled true-label confidences."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plmia.errors import RecipeError
from plmia.numerics import logit_from_logits

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.integer]


def conf_from_probabilities(probabilities: npt.ArrayLike, labels: IntArray) -> tuple[FloatArray, int]:
    """Confidences [points] from class probabilities [points, classes], and how many had to be clipped.

    The probability of "not the true label" is summed over the other classes, not taken from one, so it keeps its
    digits where the true label is all but certain. What is exactly 0 still has no logit. Voting ensembles answer in
    steps of one over the number of voters, so the step that this model showed is the resolution to respect: 0 becomes
    half of the smallest positive probability seen.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2 or len(p) != len(labels) or labels.max(initial=0) >= p.shape[1]:
        raise RecipeError(
            f"class probabilities have shape {p.shape}, [{len(labels)}, classes] is needed with a column for each "
            f"of the labels 0 to {labels.max(initial=0)}: return one row a point"
        )
    if not ((p >= 0) & (p <= 1)).all():
        raise RecipeError(f"class probabilities run from {p.min()} to {p.max()}: they must lie in [0, 1]")
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


def conf_from_answers(answers: npt.ArrayLike, labels: IntArray) -> tuple[FloatArray, int]:
    """Confidences [points] from logits, or from probabilities (rows in [0, 1] that add up to 1) [points, classes]."""
    a = np.asarray(answers, dtype=np.float64)
    if a.ndim == 2 and a.size and a.min() >= 0 and a.max() <= 1 and np.allclose(a.sum(axis=1), 1, atol=1e-4):
        return conf_from_probabilities(a, labels)
    if a.ndim != 2 or len(a) != len(labels):
        raise RecipeError(
            f"query returned shape {a.shape}, [{len(labels)}, classes] is needed: logits or probabilities a point"
        )
    return logit_from_logits(a, labels), 0
