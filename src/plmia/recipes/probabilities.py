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

    A probability of exactly 0 or 1 has no logit. Voting ensembles answer in steps of one over the number of voters, so
    the step that this model showed is the resolution to respect: 0 becomes half of the smallest positive probability
    seen, and 1 lies as far below one.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2 or len(p) != len(labels) or labels.max(initial=0) >= p.shape[1]:
        raise RecipeError(
            f"class probabilities have shape {p.shape}, [{len(labels)}, classes] is needed with a column for each "
            f"of the labels 0 to {labels.max(initial=0)}: return one row a point"
        )
    own = p[np.arange(len(p)), labels]
    rest = 1.0 - own
    if not ((own >= 0) & (own <= 1)).all():
        raise RecipeError(f"class probabilities run from {own.min()} to {own.max()}: they must lie in [0, 1]")
    positive = np.concatenate([own[own > 0], rest[rest > 0]])
    floor = max(float(positive.min()) / 2 if len(positive) else 0.25, np.finfo(np.float64).eps / 2)
    clipped = (own <= 0) | (rest <= 0)
    conf = np.log(np.clip(own, floor, None)) - np.log(np.clip(rest, floor, None))
    return conf, int(clipped.sum())


def conf_from_answers(answers: npt.ArrayLike, labels: IntArray) -> tuple[FloatArray, int]:
    """Confidences [points] from logits or probabilities [points, classes]: rows in [0, 1] that add up to 1 are the latter."""
    a = np.asarray(answers, dtype=np.float64)
    if a.ndim == 2 and a.size and a.min() >= 0 and a.max() <= 1 and np.allclose(a.sum(axis=1), 1, atol=1e-4):
        return conf_from_probabilities(a, labels)
    if a.ndim != 2 or len(a) != len(labels):
        raise RecipeError(
            f"query returned shape {a.shape}, [{len(labels)}, classes] is needed: one row of logits or probabilities a point"
        )
    return logit_from_logits(a, labels), 0
