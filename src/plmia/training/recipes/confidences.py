"""Signals from the answers of a model: logit-scaled true-label confidences of a classifier, or signals of its own.

Not part of `recipe`, since its formulas need scipy, which a machine that only trains networks may lack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plmia.data.arrays import Array, BoolArray, FloatArray, Labels
from plmia.errors import RecipeError, some
from plmia.numerics import logit_from_logits
from plmia.training.recipes.recipe import Trained, accuracies

# Rounding may move a probability outside [0, 1], and the sum of its row away from 1, by this much without a note.
_ROUNDING = 1e-5
# Sums of probabilities in half precision miss 1 by this much.
_SUM_ROUNDING = 1e-2
# In at least this many rows of logits, sums differ.
_MANY_ROWS = 10
# From this share of rows that are probabilities on, the others are mistakes; and values of a row that are shown.
_MOST_ROWS, _LISTED = 0.5, 4
# Classifiers that normalise large log-likelihoods in 32 bits (GaussianNB) lose all digits at a few records, where tied
# classes get 1 each. So this share of the rows may miss 1 by more; rounding does not explain a larger share.
_MAX_ROUNDED_SHARE = 0.05
# Rounding of two or more tied classes leaves at least this sum.
_MIN_SUM = 0.25


@dataclass(frozen=True)
class Confidences:
    """Logit-scaled true-label confidences [records] of one model in one view, and their corrections as in `Trained`."""

    conf: FloatArray
    n_clipped: int = 0
    n_renormalised: int = 0
    sum_error: float = 0.0


def conf_from_probabilities(probabilities: npt.ArrayLike, labels: Labels) -> Confidences:
    """Confidences from class probabilities [records, classes]; rows that miss a sum of 1 by rounding are renormalised.

    The probability of the other classes is a sum, not one minus the true label's, so it keeps its digits where the true
    label is almost certain. An exact 0 has no logit. Voting ensembles answer in steps of one over the number of voters,
    so 0 becomes half of the smallest positive probability of this model. A model that diverged has no confidence.
    """
    p = _checked(probabilities, labels, "predict_proba")
    if not np.isfinite(p).all():
        return Confidences(np.full(len(p), np.nan))
    if p.min() < -_ROUNDING or p.max() > 1 + _ROUNDING:
        raise RecipeError(f"class probabilities range from {p.min()} to {p.max()}: they must lie in [0, 1]")
    p = p.clip(0, 1)
    sums = p.sum(axis=1)
    wrong = _beyond_rounding(sums)
    if wrong is not None:
        raise RecipeError(f"class probabilities of record {wrong} add up to {sums[wrong]:.4g}: they must add up to 1")
    off = np.abs(sums - 1)
    rounded = off > _ROUNDING
    p[rounded] /= sums[rounded, None]
    conf, n_clipped = _logits(p, labels)
    return Confidences(conf, n_clipped, int(rounded.sum()), float(off[rounded].max(initial=0.0)))


def _checked(answers: npt.ArrayLike, labels: Labels, function: str) -> FloatArray:
    """Answers as floats [points, classes], with a row per point and a column per class."""
    a = np.asarray(answers, dtype=np.float64)
    n_classes = int(labels.max(initial=0)) + 1
    if a.ndim != 2 or len(a) != len(labels) or n_classes > a.shape[1]:
        raise RecipeError(
            f"{function} returned shape {a.shape}, but [{len(labels)}, {n_classes}] is needed: one row per record, one "
            "column per class"
        )
    return a


def _beyond_rounding(sums: FloatArray) -> int | None:
    """Row whose sum is farthest from 1, if sums [points] of probabilities miss 1 by more than rounding explains."""
    off = np.abs(sums - 1)
    explained = (off > _SUM_ROUNDING).mean() <= _MAX_ROUNDED_SHARE and sums.min() >= _MIN_SUM
    return None if explained else int(off.argmax())


def _logits(p: FloatArray, labels: Labels) -> tuple[FloatArray, int]:
    """Confidences from probabilities that add up to 1, and the number of points that were clipped."""
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


def conf_from_logits(logits: npt.ArrayLike, labels: Labels) -> FloatArray:
    """Confidences [records] from logits [records, classes]; not finite for a model that diverged."""
    z = np.asarray(logits, dtype=np.float64)
    return logit_from_logits(z, labels) if np.isfinite(z).all() else np.full(len(z), np.nan)


def conf_from_answers(answers: npt.ArrayLike, labels: Labels, found: str = "query returned") -> Confidences:
    """Confidences from logits, or from probabilities (rows in [0, 1] that add up to 1) [records, classes].

    Rows in [0, 1] that do not add up to 1 are refused: they could be either, badly rounded or not normalised. Messages
    begin with where the answers were ``found``.
    """
    a = _checked(answers, labels, "query")
    remedy = "give probabilities that add up to 1, or logits before softmax or sigmoid"
    sums = a.sum(axis=1)
    if np.isfinite(a).all() and a.min() >= -_ROUNDING and a.max() <= 1 + _ROUNDING:
        wrong = _beyond_rounding(sums)
        if wrong is None:
            return conf_from_probabilities(a, labels)
        if np.ptp(a) > 0:  # equal logits everywhere are valid: the model knows nothing
            raise RecipeError(f"{found} numbers in [0, 1] that add up to {sums[wrong]:.4g} at record {wrong}: {remedy}")
    like_probabilities = ((a >= -_ROUNDING) & (a <= 1 + _ROUNDING)).all(axis=1) & (np.abs(sums - 1) <= _SUM_ROUNDING)
    if like_probabilities.mean() >= _MOST_ROWS:  # one wrong digit must not turn the others into logits
        wrong = int(np.argmin(like_probabilities))
        if np.isfinite(a[wrong]).all():
            listed = ", ".join(f"{value:.4g}" for value in a[wrong][:_LISTED])
            raise RecipeError(f"{found} probabilities at most records, but {listed} at record {wrong}: {remedy}")
    alike = len(a) >= _MANY_ROWS and np.isfinite(sums).all() and np.ptp(sums) <= _ROUNDING * sums[0]
    if alike and a.min() >= 0 and np.ptp(a) > 0:
        raise RecipeError(f"{found} rows that all add up to {sums[0]:.4g}: {remedy}")
    return Confidences(conf_from_logits(a, labels))


def trained_from_answers(
    function: str, answers: Sequence[Array], confidences: Sequence[Confidences], labels: Labels, members: BoolArray
) -> Trained:
    """Result of a model without losses, from the answers [records, classes] of a function, one array per view."""
    return Trained(
        np.stack([view.conf for view in confidences], axis=1).astype(np.float32),
        *accuracies(answers[0].argmax(axis=1) == labels, members),
        n_clipped=sum(view.n_clipped for view in confidences),
        n_renormalised=sum(view.n_renormalised for view in confidences),
        sum_error=max(view.sum_error for view in confidences),
        trouble=_not_finite(function, answers),
    )


def signal_from_values(predicted: Array, y: Array) -> Array:
    """Signal [points] of a regressor: minus the absolute residual of each predicted value."""
    residuals: Array = np.abs(predicted - y)
    return -residuals


def trained_from_signals(function: str, signals: Sequence[Array]) -> Trained:
    """Result of a model whose signals [records], one array per view, a function returned; see `Recipe.signal`."""
    columns = [np.asarray(view, dtype=np.float64).reshape(len(view), 1) for view in signals]
    with np.errstate(over="ignore"):  # infinite signals are refused like others
        values = np.hstack(columns).astype(np.float32)
    return Trained(values, trouble=_not_finite(function, columns))


def _not_finite(function: str, answers: Sequence[Array]) -> str:
    """Name the points whose answers [points, classes], one array per view, are not finite; empty if all are finite."""
    floats = [np.asarray(a, dtype=np.float64) for a in answers]
    bad = np.any([~np.isfinite(a).all(axis=1) for a in floats], axis=0)
    if not bad.any():
        return ""
    kind = "NaN" if any(np.isnan(a).any() for a in floats) else "infinity"
    return f"{function} returned {kind} for record {some(np.flatnonzero(bad))}"
