"""Is the target like its references? If not, scores that compare it with them are not valid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtr

from plmia.attacks.view import AttackView
from plmia.data.arrays import BoolArray, FloatArray, IntArray
from plmia.errors import PopulationError, ReferencesError, percent
from plmia.signals.signals import Signals

# Probability of a false alarm.
ALARM = 0.001


@dataclass(frozen=True)
class UnlikeReferences:
    """Whether the target's confidence on known non-members is like that of its references."""

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

    At a population point, the target and the OUT references have the same law if they were trained alike. Each model in
    turn is compared with all of them, so that the target's values have peers. Signals are averaged over views.
    """
    count, mean, variance = _moments_of_residuals(view)
    peers = np.flatnonzero(count[1:] >= 2) + 1
    if len(peers) < 3 or count[0] < 2:
        raise ReferencesError(
            f"{len(peers)} references can be compared with the target on {int(count[0])} population points, but 3 and "
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
        how = f"{'more' if z_shift > 0 else 'less'} confident ({z_shift:+.1f} standard deviations)"
    else:
        how = f"{'more' if z_spread > 0 else 'less'} scattered ({z_spread:+.1f} standard deviations)"
    return (
        f"The target is unlike its references (p = {p:.1g}): its signals on known non-members are {how}. Train the "
        "references as the target was trained."
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
    found = {model: _known_accuracy((records or {}).get(model, {})) for model in signals.models}
    measure = "accuracy"
    if any(pair is None for pair in found.values()):
        measure = "true label above one half"
        for model, values, row in zip(signals.models, signals.values, signals.design.matrix, strict=True):
            right = values[:, 0] > 0
            found[model] = tuple(float(right[side].mean()) if side.any() else math.nan for side in (row, ~row))
    attacked = [model for model in targets if model in found]
    others = [model for model in found if model not in attacked] or attacked
    return {"measure": measure, "target": _mean_pair(found, attacked), "references": _mean_pair(found, others)}


def _known_accuracy(record: Mapping[str, Any]) -> tuple[float, ...] | None:
    own, others = record.get("train_accuracy"), record.get("test_accuracy")
    return None if own is None or others is None else (own, others)


def _mean_pair(found: Mapping[int, Any], models: Sequence[int]) -> dict[str, float | None]:
    pairs = np.array([found[model] for model in models], dtype=np.float64).reshape(-1, 2)
    means = [float(column[np.isfinite(column)].mean()) if np.isfinite(column).any() else None for column in pairs.T]
    return dict(zip(("members", "non_members"), means, strict=True))


def unlike_answers(signals: Signals) -> UnlikeAnswers:
    """Compare model 0, a target whose members are known, with all other models, its references.

    A target of another kind may be as confident as its references on average; it seldom fits its members and predicts
    other points as well as they do. The first view is used.
    """
    members = signals.design.matrix
    sizes = np.stack([members.sum(axis=1), (~members).sum(axis=1)])
    if len(members) < 4 or not sizes.all():
        raise ReferencesError(
            f"{len(members) - 1} references can be compared with the target, but 3 are needed, each with members and "
            "non-members: train more references"
        )
    # Model by model, to save memory.
    each = ((signals.values[model, :, 0] > 0, row) for model, row in enumerate(members))
    sure = np.array([[np.sum(right & row), np.sum(right & ~row)] for right, row in each]).T
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
