"""From what a classifier answers to logit-scaled true-label confidences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.errors import RecipeError
from plmia.numerics import logit_from_logits
from plmia.training.recipes.recipe import BoolArray, Trained, accuracies, not_finite

# Rounding may carry a probability beyond [0, 1], and its row from a sum of 1, by this much without a word.
_ROUNDING = 1e-5
# Probabilities in half precision miss a sum of 1 by this much.
_SUM_ROUNDING = 1e-2
# Of so many rows of logits, sums differ.
_MANY_ROWS = 10
# Classifiers that normalise large log-likelihoods in 32 bits (GaussianNB) lose all digits at a few records, where tied
# classes get 1 each. So this share of the rows may miss 1 by more; a larger share is no rounding.
_MOST_ROUNDED = 0.05
# No rounding of two or more tied classes leaves less than this.
_LEAST_SUM = 0.25

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Confidences:
    """Confidences of one model in one view, and what had to be done to get them.

    Parameters
    ----------
    conf : float array [points]
        Logit-scaled true-label confidences.
    n_clipped : int
        Number of probabilities that were 0 or 1 to the last digit.
    n_renormalised : int
        Number of rows that did not add up to 1, by rounding, and were divided by their sum.
    sum_error : float
        Largest distance of those sums from 1.
    """

    conf: FloatArray
    n_clipped: int = 0
    n_renormalised: int = 0
    sum_error: float = 0.0


def conf_from_probabilities(probabilities: npt.ArrayLike, labels: IntArray) -> Confidences:
    """Confidences from class probabilities [points, classes]; rows that miss a sum of 1 by rounding are renormalised.

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
        return Confidences(np.full(len(p), np.nan))
    if p.min() < -_ROUNDING or p.max() > 1 + _ROUNDING:
        raise RecipeError(f"class probabilities run from {p.min()} to {p.max()}: they must lie in [0, 1]")
    p = p.clip(0, 1)
    sums = p.sum(axis=1)
    wrong = _beyond_rounding(sums)
    if wrong is not None:
        raise RecipeError(f"class probabilities of point {wrong} add up to {sums[wrong]:.4g}: they must add up to 1")
    off = np.abs(sums - 1)
    rounded = off > _ROUNDING
    p[rounded] /= sums[rounded, None]
    conf, n_clipped = _logits(p, labels)
    return Confidences(conf, n_clipped, int(rounded.sum()), float(off[rounded].max(initial=0.0)))


def _beyond_rounding(sums: FloatArray) -> int | None:
    """Row whose sum is farthest from 1, if sums [points] of probabilities miss 1 by more than rounding explains."""
    off = np.abs(sums - 1)
    explained = (off > _SUM_ROUNDING).mean() <= _MOST_ROUNDED and sums.min() >= _LEAST_SUM
    return None if explained else int(off.argmax())


def _logits(p: FloatArray, labels: IntArray) -> tuple[FloatArray, int]:
    """Confidences from probabilities that add up to 1, and how many had to be clipped."""
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


def conf_from_answers(answers: npt.ArrayLike, labels: IntArray) -> Confidences:
    """Confidences from logits, or from probabilities (rows in [0, 1] that add up to 1) [points, classes].

    Rows in [0, 1] that do not add up to 1 are refused: they may be either, badly rounded or not normalised.
    """
    a = np.asarray(answers, dtype=np.float64)
    if a.ndim != 2 or len(a) != len(labels) or labels.max(initial=0) >= a.shape[1]:
        raise RecipeError(
            f"query returned shape {a.shape}, [{len(labels)}, {labels.max(initial=0) + 1}] is needed: a row a point, "
            "with the logits or the probabilities of the classes"
        )
    if np.isfinite(a).all() and a.min() >= -_ROUNDING and a.max() <= 1 + _ROUNDING:
        sums = a.sum(axis=1)
        wrong = _beyond_rounding(sums)
        if wrong is None:
            return conf_from_probabilities(a, labels)
        if np.ptp(a) > 0:  # where all logits are the same, the model knows nothing, and they say so
            raise RecipeError(
                f"query returned numbers in [0, 1] that add up to {sums[wrong]:.4g} at point {wrong}: "
                "return probabilities that add up to 1, or logits as they are before softmax or sigmoid"
            )
    sums = a.sum(axis=1)
    alike = len(a) >= _MANY_ROWS and np.isfinite(sums).all() and np.ptp(sums) <= _ROUNDING * sums[0]
    if alike and a.min() >= 0 and np.ptp(a) > 0:
        raise RecipeError(
            f"query returned rows that all add up to {sums[0]:.4g}: return probabilities that add up to 1, or logits "
            "as they are before softmax or sigmoid"
        )
    return Confidences(conf_from_logits(a, labels))


def trained_by_answers(
    what: str,
    answers: Sequence[npt.NDArray[Any]],
    confidences: Sequence[Confidences],
    labels: npt.NDArray[np.integer],
    members: BoolArray,
) -> Trained:
    """Sum up what a model answered.

    Parameters
    ----------
    what : str
        The function that answered.
    answers : sequence of arrays [points, classes]
        Logits or probabilities, one array per view.
    confidences : sequence of Confidences
        What they mean, one per view.
    labels : int array [points]
        True labels.
    members : bool array [points]
        Records that the model trained on.
    """
    right = answers[0].argmax(axis=1) == labels
    return Trained(
        np.stack([view.conf for view in confidences], axis=1).astype(np.float32),
        *accuracies(right, members),
        n_clipped=sum(view.n_clipped for view in confidences),
        n_renormalised=sum(view.n_renormalised for view in confidences),
        sum_error=max(view.sum_error for view in confidences),
        trouble=not_finite(what, answers),
    )
