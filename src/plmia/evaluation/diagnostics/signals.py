"""Checks of the signals: are they larger for members, are they confidences, and is the target like its references.

The membership of every model is known, so a wrong sign or a wrong axis is noticed before any attack runs. If the target
is unlike its references, scores that compare it with them are not valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from scipy.special import stdtr

from plmia.attacks.view import AttackView
from plmia.data import half_floats, memory
from plmia.data.arrays import BoolArray, FloatArray, IntArray, Labels
from plmia.errors import PopulationError, ReferencesError, SignalsError, percent
from plmia.numerics import auc_of, average_ranks
from plmia.signals.signals import Signals

ALARM = 0.001  # probability of a false alarm
# Evenly spaced records that slower checks examine: with more, their results hardly change.
MOST_EXAMINED = 1 << 18
SAMPLE = 4096  # points, evenly spaced, that are examined
CLEARLY = 6.0  # standard errors that chance does not explain
# Excess over 1/2 of the AUC of a model's own signals: up to this multiple, and beyond it this difference, are alike.
LARGER_FIT, SMALL_FIT = 2.0, 0.02
# Accuracies on members up to this difference are alike; models that were trained alike seldom differ by more than that.
LOWER_ACCURACY, USUAL_SPREAD = 0.02, 0.02
AGREEMENT = 0.2  # Cohen's kappa between the largest view and the label, above which views must be classes
# Views of one record differ less than records do. If their variance is larger than that of records and of models by
# these factors, they must be classes.
MORE_THAN_RECORDS, MORE_THAN_MODELS = 3.0, 10.0
# Signals with this many times as many models as records, whose models differ this many times as much as records.
TALL, MORE_THAN_COLUMNS = 2, 4.0


def require_plausible(signals: Signals) -> None:
    """Raise `SignalsError` if signals are clearly not what they should be, and say what they may be."""
    _require_upright(signals)
    points = _sample(signals)
    values = memory.gathered(signals.values, points).astype(np.float64)
    members = memory.gathered(signals.design.matrix, points)
    confidences = signals.kind == "confidence"
    if signals.n_views > 1 and confidences:
        _require_views(values, None if signals.labels is None else signals.labels[points])
    for view in range(signals.n_views):
        shift, error = _in_minus_out(values[:, :, view], members)
        if shift >= -CLEARLY * error:
            continue
        where = f" (view {view})" if signals.n_views > 1 else ""
        looks = "like losses" if values.min() >= 0 else "negated"
        give = (
            "log p - log(1 - p) of the true label"
            if confidences
            else "signals that are larger for members, such as minus the loss"
        )
        raise SignalsError(
            f"models that trained on a record have lower signals there than models that did not (by {-shift:.3g} on "
            f"average{where}): the signals look {looks}, or `membership` is inverted. Give {give}, and True if the "
            "model trained on the record"
        )


def _require_upright(signals: Signals) -> None:
    """Raise if signals look like [records, models]: far more rows than columns, and rows that differ as records do.

    Records differ in difficulty far more than models do in their mean confidence. Beyond what the residuals explain,
    here the rows differ at least `MORE_THAN_COLUMNS` times as much as the columns.
    """
    n_rows, n_columns = signals.n_models, signals.n_points
    # Labels or groups tell which axis is that of records.
    told = signals.labels is not None or signals.groups is not None
    if told or n_rows < TALL * n_columns or n_columns < 2:
        return
    values = signals.values.astype(np.float64).mean(axis=2)
    rows, columns = values.mean(axis=1), values.mean(axis=0)
    residuals = values - rows[:, None] - columns + values.mean()
    noise = float((residuals**2).sum()) / ((n_rows - 1) * (n_columns - 1))
    of_rows, of_columns = float(rows.var(ddof=1)), float(columns.var(ddof=1))
    # Without differences between rows, the ratio to its expectation has a relative standard error of about
    # sqrt(2 / rows), and somewhat more where columns are few.
    chance = noise / n_columns
    beyond = of_rows - chance
    error = chance * math.sqrt(2 / (n_rows - 1) + 2 / ((n_rows - 1) * (n_columns - 1)))
    if beyond > CLEARLY * error and beyond > MORE_THAN_COLUMNS * max(of_columns - noise / n_rows, 0.0):
        raise SignalsError(
            f"signals have {n_rows:,} models and {n_columns:,} records, but these models differ as records do: "
            "transpose signals and membership to [models, records], or give `labels`, one per record, if they are right"
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


@dataclass(frozen=True)
class UnlikeReferences:
    """Whether the target's signals on known non-members are like that of its references."""

    shift: float  # mean of the target's signals in units of each point's OUT references, about 0 if alike
    spread: float  # their log standard deviation, about 0 if alike
    z_shift: float  # distance from the references' values, in their standard deviations
    z_spread: float
    rank_shift: int  # number of references with a smaller value
    rank_spread: int
    n_references: int  # those that could be compared
    p: float  # two-sided, of both together (Student's t, doubled for the two statistics)
    warning: str | None  # set if p is below `ALARM`


def unlike_references(view: AttackView) -> UnlikeReferences:
    """Compare the target with its references on the population; the truth is not needed.

    At a population record, the target and the OUT references have the same law if they were trained alike. Each model
    in turn is compared with all of them, so that the target's values have peers. Signals are averaged over views.
    """
    count, mean, variance = _moments_of_residuals(view)
    peers = np.flatnonzero(count[1:] >= 2) + 1
    if len(peers) < 3 or count[0] < 2:
        raise ReferencesError(
            f"{len(peers)} references can be compared with the target on {int(count[0])} population records, but 3 and "
            "2 are needed: train more references, or give a larger population"
        )
    who = np.concatenate([[0], peers])
    mean, variance = mean[who], variance[who]
    if not np.all(variance > 0):
        raise PopulationError("the signals of a model are constant over the population: check the signals")
    z_shift, z_spread = _against_peers(mean), _against_peers(np.log(variance) / 2)
    p = min(1.0, 4 * float(stdtr(len(peers) - 1, -max(abs(z_shift), abs(z_spread)))))
    shift, spread = float(mean[0]), float(np.log(variance[0]) / 2)
    ranks = int(np.sum(mean[1:] < mean[0])), int(np.sum(variance[1:] < variance[0]))
    warning = _unlike(z_shift, z_spread, p) if p < ALARM else None
    return UnlikeReferences(shift, spread, z_shift, z_spread, *ranks, len(peers), p, warning)


def _moments_of_residuals(view: AttackView) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Number, mean and variance [models] of each model's residuals over the population; the target comes first."""
    n_models = len(view.references) + 1
    count, first, second = np.zeros(n_models), np.zeros(n_models), np.zeros(n_models)
    for points, conf, in_mask in view.references.at(np.sort(view.population)):
        target = view.target[points].mean(axis=1)
        # Measured from the target's own value: squares stay small.
        values = np.concatenate([np.zeros((1, len(points))), conf.mean(axis=2) - target])
        outside = np.concatenate([np.ones((1, len(points)), bool), ~in_mask])
        residuals, outside = _residuals(values, outside)
        count += outside.sum(axis=1)
        first += residuals.sum(axis=1)
        second += np.square(residuals).sum(axis=1)
    n = np.maximum(count, 1)
    mean = first / n
    return count, mean, second / n - mean**2


def _residuals(values: FloatArray, outside: BoolArray) -> tuple[FloatArray, BoolArray]:
    """Deviation [models, n] from the mean of all OUT models in units of their spread, 0 elsewhere; and where it exists.

    The model itself is one of them, which bounds its residual; two or three models would otherwise give extreme ones.
    """
    n = outside.sum(axis=0)
    mean = values.sum(axis=0, where=outside) / n
    deviations = np.where(outside, values - mean, 0.0)
    variance = np.square(deviations).sum(axis=0) / np.maximum(n - 1, 1)
    usable = (n >= 3) & (variance > 0)
    deviations /= np.sqrt(np.where(usable, variance, np.inf))
    return deviations, outside & usable


def _against_peers(values: FloatArray) -> float:
    """Student's t of the first value against the others, with (others - 1) degrees of freedom."""
    others = values[1:]
    if not np.ptp(others) > 0:
        raise ReferencesError("the references are equal on the population: train them with different seeds")
    return float((values[0] - others.mean()) / (others.std(ddof=1) * math.sqrt(1 + 1 / len(others))))


def _unlike(z_shift: float, z_spread: float, p: float) -> str:
    if abs(z_shift) >= abs(z_spread):
        how = f"{'higher' if z_shift > 0 else 'lower'} by {abs(z_shift):.1f} standard deviations"
    else:
        how = f"{'more' if z_spread > 0 else 'less'} scattered by {abs(z_spread):.1f} standard deviations"
    return (
        f"The target is unlike its references (p = {p:.1g}): its signals on known non-members are {how}. Train "
        "references like the target."
    )


@dataclass(frozen=True)
class UnlikeAnswers:
    """Whether the target is confident and correct about as often as its references, on members and non-members."""

    inside: float  # share of the target's members whose true label has a probability above 1/2
    outside: float  # the same of its non-members
    references_inside: float  # mean of the same over the references
    references_outside: float
    p: float  # two-sided, of both together (Student's t, doubled for the two shares)
    warning: str | None  # set if p is below `ALARM`


def accuracy_of(
    signals: Signals, targets: Sequence[int], records: Mapping[int, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Accuracy of the targets and of all other models, each on its own members and non-members, in the first view.

    It is that of the provenance ``records`` if all models have ``train_accuracy`` and ``test_accuracy`` there;
    otherwise the share of records whose true label has a probability above 1/2, which is at most the accuracy.
    """
    measure, found = _accuracies(signals, records)
    attacked = [model for model in targets if model in found]
    others = [model for model in found if model not in attacked] or attacked
    target, references = np.array([found[model] for model in attacked]), np.array([found[model] for model in others])
    return {
        "measure": measure,
        "target": _pair(np.mean, target),
        "references": _pair(np.mean, references),
        "references_lowest": _pair(np.min, references),
        "references_highest": _pair(np.max, references),
    }


def _accuracies(
    signals: Signals, records: Mapping[int, Mapping[str, Any]] | None
) -> tuple[str, dict[int, tuple[float, float]]]:
    """Measure, and by model the values on its members and non-members; see `accuracy_of`."""
    known = {model: _known_accuracy((records or {}).get(model, {})) for model in signals.models}
    found = {model: pair for model, pair in known.items() if pair is not None}
    if len(found) == len(known):
        return "accuracy", found
    for model, values, row in zip(signals.models, signals.values, signals.design.matrix, strict=True):
        right = half_floats.positive(values[:, 0])
        # Counting is several times faster than selecting.
        n_right, inside, both = (int(np.count_nonzero(each)) for each in (right, row, right & row))
        found[model] = _share(both, inside), _share(n_right - both, len(row) - inside)
        memory.release()
    return "true label above one half", found


def _share(right: int, n: int) -> float:
    """Share of ``n`` records that is right; NaN of none."""
    return right / n if n else math.nan


def _known_accuracy(record: Mapping[str, Any]) -> tuple[float, float] | None:
    own, others = record.get("train_accuracy"), record.get("test_accuracy")
    return None if own is None or others is None else (own, others)


def _pair(over_models: Callable[[FloatArray], Any], pairs: FloatArray) -> dict[str, float | None]:
    """Summary of accuracies [models, 2] on members and non-members over models; None where none is known."""
    known = (column[np.isfinite(column)] for column in pairs.astype(np.float64).reshape(-1, 2).T)
    values = [float(over_models(column)) if len(column) else None for column in known]
    return dict(zip(("members", "non_members"), values, strict=True))


def unlike_answers(signals: Signals) -> UnlikeAnswers:
    """Compare model 0, a target whose members are known, with all other models, its references.

    A target of another kind may be as confident as its references on average; it seldom fits its members and predicts
    other records as well as they do. The first view is used.
    """
    members = signals.design.matrix
    # Model by model, to save memory.
    return _unlike_answers((signals.values[model, :, 0] > 0 for model in range(len(members))), members)


def unlike_aligned_answers(view: AttackView, members: BoolArray) -> UnlikeAnswers:
    """Compare a target with these ``members`` [records] with references that were moved to its scale, likewise."""
    references = view.references
    right = (references.signals[row, :, 0] > 0 for row in references.rows)
    return _unlike_answers(chain([view.target[:, 0] > 0], right), np.vstack([members, references.in_mask]))


def _unlike_answers(each: Iterable[BoolArray], members: BoolArray) -> UnlikeAnswers:
    """Compare the target, which comes first, by whether each model is right and sure at each record."""
    sizes = np.stack([members.sum(axis=1), (~members).sum(axis=1)])
    if len(members) < 4 or not sizes.all():
        raise ReferencesError(
            f"{len(members) - 1} references can be compared with the target, but 3 are needed, each with members and "
            "non-members: train more references"
        )
    pairs = zip(each, members, strict=True)
    sure = np.array([[np.sum(right & row), np.sum(right & ~row)] for right, row in pairs]).T
    p = min(1.0, 4 * float(stdtr(len(members) - 2, -max(_apart(sure[0], sizes[0]), _apart(sure[1], sizes[1])))))
    inside, outside = sure / sizes
    shares = float(inside[0]), float(outside[0]), float(inside[1:].mean()), float(outside[1:].mean())
    return UnlikeAnswers(*shares, p, _otherwise(shares, p) if p < ALARM else None)


def _apart(sure: IntArray, sizes: IntArray) -> float:
    """Distance of the first model's share from the others', in standard deviations: the smaller of two scales.

    Shares near 1 are skewed; their logits are skewed if models differ much. A deviation is at least the binomial one.
    """
    shares = (sure + 0.5) / (sizes + 1)
    usual = float(shares[1:].mean())
    counting = math.sqrt(usual * (1 - usual) / float(sizes.mean()))
    scales = (shares, counting), (np.log(shares / (1 - shares)), counting / (usual * (1 - usual)))
    off = (abs(float(x[0] - x[1:].mean())) / max(float(x[1:].std(ddof=1)), least) for x, least in scales)
    return min(off) / math.sqrt(1 + 1 / (len(shares) - 1))


def _otherwise(shares: tuple[float, float, float, float], p: float) -> str:
    inside, outside, references_inside, references_outside = map(percent, shares)
    return (
        f"The target answers unlike its references (p = {p:.1g}): it is confident and correct on {inside} of its "
        f"members and {outside} of its non-members, the references on {references_inside} and {references_outside}. "
        "Train the references as the target was trained, and check its members."
    )


@dataclass(frozen=True)
class UnlikeFit:
    """Whether the target fits its members about as much better than other records as its references fit theirs.

    The measure is the AUC of a model's own signals. It does not depend on their scale, so alignment does not change it.
    """

    target: float
    references: float  # mean over references
    warning: str | None


def unlike_fit(signals: Signals) -> UnlikeFit:
    """Compare model 0, a target whose members are known, with all other models, its references; in the first view.

    References may agree with the target on which records are hard, and still change in another way at their members.
    """
    points = _sample(signals)
    members = signals.design.matrix[:, points]
    sizes = np.stack([members.sum(axis=1), (~members).sum(axis=1)])
    if len(members) < 4 or not sizes.all():
        raise ReferencesError(
            f"{len(members) - 1} references can be compared with the target, but 3 are needed, each with members and "
            "non-members: train more references"
        )
    pairs = zip(signals.values[:, points, 0].astype(np.float64), members, strict=True)
    own, *others = (auc_of(values, row) for values, row in pairs)
    mean, n = float(np.mean(others)), len(others)
    # At least the standard error of an AUC near 1/2, where it is largest.
    deviation = max(float(np.std(others, ddof=1)), math.sqrt(float((1 / sizes[:, 0]).sum()) / 12))
    p = 2 * float(stdtr(n - 1, -abs(own - mean) / deviation / math.sqrt(1 + 1 / n)))
    low, high = sorted(max(0.0, auc - 0.5) for auc in (own, mean))
    unlike = p < ALARM and high > LARGER_FIT * low + SMALL_FIT
    return UnlikeFit(own, mean, _otherwise_fitted(own, mean) if unlike else None)


def _otherwise_fitted(own: float, others: float) -> str:
    return (
        f"The target fits its members clearly {'less' if own < others else 'more'} than the references fit theirs, so "
        f"a leak may be missed: the AUC of its own signals is {100 * own:.1f} %, that of a reference's "
        f"{100 * others:.1f} %. Train the references as the target was trained."
    )


@dataclass(frozen=True)
class LowerAccuracy:
    """Whether references are right at their members clearly less often than the target is at its own.

    Alignment cannot mend this: references that did not learn their records do not show how a model remembers them. If
    references differ much from each other, only a part of that counts as chance: mixed references find little, too.
    """

    target: float
    references: float  # mean over references
    warning: str | None


def lower_accuracy(signals: Signals, records: Mapping[int, Mapping[str, Any]] | None = None) -> LowerAccuracy:
    """Compare model 0, a target, with all other models, its references; ``records`` are as for `accuracy_of`."""
    own, *others = (float(members) for members, _ in _accuracies(signals, records)[1].values())
    if not others:
        raise ReferencesError("0 references can be compared with the target: train some")
    mean, n = float(np.mean(others)), int(signals.design.matrix[0].sum())
    binomial = math.sqrt(own * (1 - own) / n)
    error = max(binomial, min(float(np.std(others)), USUAL_SPREAD))
    lower = own - mean > LOWER_ACCURACY + 3 * error
    return LowerAccuracy(own, mean, _less_often_right(own, mean) if lower else None)


def _less_often_right(own: float, others: float) -> str:
    return (
        f"The references are right at {percent(others)} of their members, the target at {percent(own)} of its own. "
        "They fit their data clearly less well, so a leak may be missed: train them longer, or train larger ones."
    )


@dataclass(frozen=True)
class UnlikeRecords:
    """Whether the target finds the same records easy and hard as its references do."""

    target: float  # rank correlation of the target's signals with the mean ranks of its references
    references: tuple[float, float]  # lowest and highest of the same over references, each compared with the others
    warning: str | None


def unlike_records(signals: Signals) -> UnlikeRecords:
    """Compare model 0 with all others, its references, record by record; the first view is used.

    Models that were trained alike agree on which records are easy. Predictions in another order of rows or classes, or
    of other data, do not follow the references, however confident they are.
    """
    points = _sample(signals)
    ranked = np.stack([average_ranks(row) for row in signals.values[:, points, 0]])
    total, n = ranked[1:].sum(axis=0), len(ranked) - 1
    if n < 2:
        raise ReferencesError(f"{n} reference cannot be compared with another: train 2 references or more")
    own = _correlation(ranked[0], total)
    theirs = [_correlation(row, total - row) for row in ranked[1:]]
    low, high = min(theirs), max(theirs)
    # Fisher's transformation, whose standard error depends on the number of records alone.
    apart = np.arctanh(np.clip(np.mean(theirs), -0.999, 0.999)) - np.arctanh(np.clip(own, -0.999, 0.999))
    unlike = own < np.mean(theirs) / 2 and apart > CLEARLY / math.sqrt(max(len(points) - 3, 1))
    return UnlikeRecords(own, (low, high), _other_records(signals, own, low, high) if unlike else None)


def _correlation(a: FloatArray, b: FloatArray) -> float:
    """Correlation of two arrays [n]; 0 if one of them is constant."""
    return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) > 0 and np.ptp(b) > 0 else 0.0


def _other_records(signals: Signals, own: float, low: float, high: float) -> str:
    sure = [percent(float((values > 0).mean())) for values in (signals.values[0, :, 0], signals.values[1:, :, 0])]
    right = f"; right and sure at {sure[0]} of the records, references at {sure[1]}" * (signals.kind == "confidence")
    return (
        "The target's signals do not follow those of its references from record to record (rank correlation "
        f"{own:.2f}, references {low:.2f} to {high:.2f}{right}). Check that its predictions are of these records, and "
        "the order of its rows and classes."
    )
