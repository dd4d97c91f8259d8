"""Whether members can be told from non-members by their records alone, without the model.

Without references, an attack cannot distinguish a leak from any other difference between members and non-members: other
years, other hospitals, other classes. Trees that never see the model's answers show such a difference.
"""

from __future__ import annotations

import numpy as np

from plmia.attacks.conditional import few_categories, without_bare_columns
from plmia.attacks.view import Features
from plmia.data.arrays import BoolArray, FloatArray, IntArray
from plmia.errors import Note, percent
from plmia.evaluation.intervals import auc_interval
from plmia.evaluation.metrics import roc_curve

FOLDS, MOST_POINTS = 5, 20_000
# Fewer members or non-members than this are not compared.
LEAST_OF_EACH = 20
# A difference is reported only if it is nearly certain.
NEARLY_CERTAIN = 0.999
# A leak whose area exceeds one half by more than this multiple of the records' own excess is not explained by them.
CLEARLY_MORE = 2.0


def record_shift(
    features: Features, members: BoolArray, signal: FloatArray, points: IntArray, seed: int = 0
) -> Note | None:
    """Compare members and non-members among independent ``points`` by their features; a note if they differ.

    The note is a caution if the target's signals [records] tell members clearly better than the records do. Otherwise
    what attacks find may not be a leak, and the note is invalid.
    """
    chosen = np.random.default_rng(seed).permutation(points)[:MOST_POINTS]
    truth = members[chosen]
    if min(truth.sum(), (~truth).sum()) < LEAST_OF_EACH:
        return None
    roc = roc_curve(_membership_by_records(features, truth, chosen, seed), truth)
    low = auc_interval(roc, NEARLY_CERTAIN).low
    if low <= 0.5:
        return None
    explained = roc_curve(signal[chosen], truth).auc - 0.5 < CLEARLY_MORE * (roc.auc - 0.5)
    text = (
        f"Members can be told from non-members by their records alone (AUC {percent(roc.auc)}, at least "
        f"{percent(low)}), so {'' if explained else 'part of '}what attacks find may not be a leak. Screen with "
        "members and non-members that were drawn at random from one source."
    )
    return Note("records-tell-members", "invalid" if explained else "caution", text)


def _membership_by_records(features: Features, truth: BoolArray, points: IntArray, seed: int) -> FloatArray:
    """Log odds [points] of membership by trees that were fitted on the other folds."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import StratifiedKFold

    columns, found = features.columns[points], np.empty(len(points))
    for rest, own in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(columns, truth):
        trees = HistGradientBoostingClassifier(
            max_iter=100, early_stopping=True, categorical_features=few_categories(features), random_state=seed
        )
        found[own] = trees.fit(without_bare_columns(columns[rest]), truth[rest]).decision_function(columns[own])
    return found
