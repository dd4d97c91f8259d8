"""Check that signals are logit-scaled confidences of the true label, larger for members.

The membership of every model is known, so a wrong sign or a wrong axis is noticed before any attack runs.
"""

from __future__ import annotations

import math

import numpy as np

from plmia.data.arrays import BoolArray, FloatArray, IntArray, Labels
from plmia.errors import SignalsError
from plmia.signals.signals import Signals

# Number of points, evenly spaced, that are examined.
SAMPLE = 4096
# Number of standard errors that chance does not explain.
CLEARLY = 6.0
# Cohen's kappa between the largest view and the label, above which views must be classes.
AGREEMENT = 0.2
# Views of one record differ less than records do. If their variance is larger than that of records and of models by
# these factors, they must be classes.
MORE_THAN_RECORDS, MORE_THAN_MODELS = 3.0, 10.0


def require_plausible(signals: Signals) -> None:
    """Raise `SignalsError` if signals are clearly not confidences of the true label, and say what they may be."""
    points = _sample(signals)
    values = signals.values[:, points, :].astype(np.float64)
    members = signals.design.matrix[:, points]
    if signals.n_views > 1:
        _require_views(values, None if signals.labels is None else signals.labels[points])
    for view in range(signals.n_views):
        shift, error = _in_minus_out(values[:, :, view], members)
        if shift >= -CLEARLY * error:
            continue
        where = f" (view {view})" if signals.n_views > 1 else ""
        looks = "like losses" if values.min() >= 0 else "negated"
        raise SignalsError(
            f"models that trained on a record have lower signals there than models that did not (by {-shift:.3g} on "
            f"average{where}): the signals look {looks}, or `membership` is inverted. Give log p - log(1 - p) of the "
            "true label, and True if the model trained on the record"
        )


def _sample(signals: Signals) -> IntArray:
    """Points to examine, one of each group."""
    points = np.arange(signals.n_points)
    if signals.groups is not None:
        points = np.sort(np.unique(signals.groups, return_index=True)[1])
    return points[:: -(-len(points) // SAMPLE)]


def _in_minus_out(values: FloatArray, members: BoolArray) -> tuple[float, float]:
    """Mean difference between IN and OUT signals over models, with each point's mean removed, and its standard error.

    The error is that of drawing members at random, as designs do, and at least the spread between models.
    """
    residuals = values - values.mean(axis=0)
    shifts, variances = [], []
    for row, member in zip(residuals, members, strict=True):
        n_in, n_out = int(member.sum()), int((~member).sum())
        if min(n_in, n_out) >= 2:
            inside, outside = row[member], row[~member]
            shifts.append(inside.mean() - outside.mean())
            variances.append(inside.var(ddof=1) / n_in + outside.var(ddof=1) / n_out)
    if not shifts:
        return 0.0, 0.0
    # Complementary models mirror each other, so half of the models count.
    effective = max(len(shifts) / 2, 1.0)
    drawn = float(np.mean(variances)) / effective
    between = float(np.var(shifts)) / effective
    return float(np.mean(shifts)), math.sqrt(max(drawn, between))


def _require_views(values: FloatArray, labels: Labels | None) -> None:
    """Raise if the last axis holds classes instead of views."""
    n_models, _, n_views = values.shape
    mean = values.mean(axis=0)
    found = None
    known, numbers = (None, None) if labels is None else np.unique(labels, return_inverse=True)
    if numbers is not None and known is not None and len(known) <= n_views:
        agreement, error = _kappa(mean.argmax(axis=1), numbers, n_views)
        if agreement > max(AGREEMENT, CLEARLY * error):
            found = f"the largest of the {n_views} is the label {100 * agreement:.0f} % more often than by chance"
    if found is None and n_models > 1:
        records = mean.mean(axis=1)
        residuals = mean - records[:, None] - mean.mean(axis=0) + mean.mean()
        within, noise = float(residuals.var()), float(values.var(axis=0).mean()) / n_models
        if within > MORE_THAN_RECORDS * float(records.var()) and within > MORE_THAN_MODELS * noise:
            found = f"the {n_views} of one record differ more than records do"
    if found:
        raise SignalsError(
            f"signals look like class logits [models, records, classes], not like views: {found}. Give the confidence "
            "of the true label, which plmia.logit_from_logits computes from logits and labels"
        )


def _kappa(found: IntArray, labels: Labels, n: int) -> tuple[float, float]:
    """Cohen's kappa (0 if independent, 1 if equal), and its standard error under independence."""
    chance = float(np.bincount(found, minlength=n) @ np.bincount(labels, minlength=n)) / len(labels) ** 2
    if chance == 1:
        return 0.0, 0.0
    beyond = (float(np.mean(found == labels)) - chance) / (1 - chance)
    return beyond, math.sqrt(chance / (1 - chance) / len(labels))
