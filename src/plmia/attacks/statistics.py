"""Pointwise statistics: one number a point and view, larger for members.

A statistic is a value with ``__call__(view) -> phi``; see `Statistic`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, logsumexp

from plmia.attacks.gaussian import (
    Centre,
    Gaussian,
    MeanCentre,
    PerPointVariance,
    SideMoments,
    Variance,
    side_moments,
    sort_masked,
)
from plmia.attacks.moments import FloatArray, count
from plmia.attacks.view import AttackView, Mode
from plmia.errors import AttackError, ReferencesError, some
from plmia.numerics import log_sigmoid

# A mean probability below this may lack terms: in float32 whatever is below 3e-39 is summed as 0.
UNDERFLOW = 1e-30
# Points whose sums are in memory at once.
POINTS_PER_BLOCK = 1 << 12


class Statistic(Hashable, Protocol):
    """A pointwise statistic: a frozen dataclass, so that equal ones are computed once.

    A class attribute ``uses`` may name the sums of `AttackView` it reads ("confidence", "probability"); with many
    targets these are then updated from one target to the next rather than computed anew.
    """

    def __call__(self, view: AttackView) -> FloatArray:
        """Statistic phi [points, views], finite, larger for members."""


@dataclass(frozen=True)
class Loss:
    """log p_y of the target: Attack-P's statistic (minus the usual loss)."""

    def __call__(self, view: AttackView) -> FloatArray:
        """Statistic [points, views]."""
        return _log_probability(view.target)


@dataclass(frozen=True)
class ReferenceRank:
    """Share of the point's OUT references that are less confident than the target, ties counted half: Attack-R."""

    def __call__(self, view: AttackView) -> FloatArray:
        """Statistic [points, views]."""
        twice, n_out = np.zeros(view.target.shape), np.zeros(view.n_points)
        # Compared as they are stored, if that loses nothing of the target: twice as fast as after a conversion.
        stored = view.target.astype(view.references.signals.dtype)
        target = stored if np.array_equal(stored, view.target) else view.target
        for few, points in view.references.pieces():
            conf, out = view.references.conf(few, points), ~view.references.in_mask[few, points]
            counted = np.repeat(out[:, :, None], view.n_views, axis=2) if view.n_views > 1 else out[:, :, None]
            twice[points] += count((conf < target[points]) & counted)
            twice[points] += count((conf <= target[points]) & counted)
            n_out[points] += count(out)
        _require_out(n_out)
        return twice / (2 * n_out[:, None])


@dataclass(frozen=True)
class ShiftedOut:
    """Offline IN law, made from the OUT law: mean mu_out + eta sigma_out, deviation rho sigma_out (`sec:exp_offline`).

    Parameters
    ----------
    eta : float
        Normalised mean shift, positive.
    rho : float
        Contraction ratio, positive. Below 1 the statistic is capped: from some point on, more confident scores lower.
    """

    eta: float = 0.3
    rho: float = 0.9

    def __post_init__(self) -> None:
        if not (0 < self.eta < np.inf and 0 < self.rho < np.inf):
            raise AttackError(f"eta = {self.eta} and rho = {self.rho} must both be positive: the paper has 0.3 and 0.9")

    def __call__(self, x: FloatArray, out: Gaussian) -> FloatArray:
        """Log likelihood ratio [points, views] of ``x``."""
        inside = Gaussian(out.mean + self.eta * np.sqrt(out.variance), self.rho**2 * out.variance)
        return inside.log_density(x) - out.log_density(x)


@dataclass(frozen=True)
class OneSided:
    """Offline LiRA: minus the log probability that an OUT model is more confident than the target."""

    def __call__(self, x: FloatArray, out: Gaussian) -> FloatArray:
        """Statistic [points, views] of ``x``; strictly increasing in ``x``."""
        return -log_ndtr((out.mean - x) / np.sqrt(out.variance))


@dataclass(frozen=True)
class GaussianLR:
    """Gaussian log likelihood ratio (`lem:logbf`): LiRA's, PL-MIA+'s and PL-MIA's statistic.

    Parameters
    ----------
    variance : Variance
        Estimator of the IN and OUT variances.
    centre : Centre
        Estimator of the IN and OUT centres.
    offline : ShiftedOut or OneSided
        What replaces the IN law when there are no IN references.
    """

    variance: Variance = field(default_factory=PerPointVariance)
    centre: Centre = field(default_factory=MeanCentre)
    offline: ShiftedOut | OneSided = field(default_factory=ShiftedOut)

    uses: ClassVar[frozenset[str]] = frozenset({"confidence"})

    def __call__(self, view: AttackView) -> FloatArray:
        """Statistic [points, views]."""
        out = self._law(view, side_moments(view, inside=False))
        if view.mode == "offline":
            return self.offline(view.target, out)
        ratio = -out.log_density(view.target)
        del out
        ratio += self._law(view, side_moments(view, inside=True)).log_density(view.target)
        return ratio

    def in_mode(self, mode: Mode) -> GaussianLR:
        """The same statistic without what this mode does not read, so that equal results come from equal values."""
        return self if mode == "offline" else replace(self, offline=ShiftedOut())

    def _law(self, view: AttackView, moments: SideMoments) -> Gaussian:
        variance = self.variance(moments)
        return Gaussian(self.centre(view, moments), variance)


@dataclass(frozen=True)
class BayesLR:
    """log p_t - log pbar (`lem:rmia`): RMIA's statistic.

    Online, pbar is the mean true-label probability of all references. Offline it is
    (1 + a) / 2 times the mean of the OUT references plus (1 - a) / 2.

    Parameters
    ----------
    a : float
        RMIA's offline parameter, in [0, 1].
    trim : float
        Share of the references left out of the mean on each side, in [0, 0.5); 0.2 is RMIA's option.
    """

    a: float = 0.3
    trim: float = 0.0
    uses: ClassVar[frozenset[str]] = frozenset({"probability"})

    def __post_init__(self) -> None:
        if not 0 <= self.a <= 1:
            raise AttackError(f"RMIA's a = {self.a} lies outside [0, 1]: its authors use 0.3 on CIFAR-10")
        if not 0 <= self.trim < 0.5:
            raise AttackError(
                f"the trimmed share {self.trim} lies outside [0, 0.5): 0.2 leaves out a fifth on each side"
            )

    def __call__(self, view: AttackView) -> FloatArray:
        """Statistic [points, views]."""
        offline = view.mode == "offline"
        log_mean = _trimmed_log_mean(view, self.trim, offline) if self.trim else _log_mean_probability(view, offline)
        if offline and self.a < 1:
            log_mean = np.logaddexp(np.log((1 + self.a) / 2) + log_mean, np.log((1 - self.a) / 2))
        return _log_probability(view.target) - log_mean


def _log_probability(conf: FloatArray) -> FloatArray:
    return log_sigmoid(conf).astype(np.float64, copy=False)


def _require_out(n_out: npt.NDArray[np.number]) -> None:
    if not n_out.all():
        without = np.flatnonzero(n_out == 0)
        raise ReferencesError(
            f"point{'s' * (len(without) > 1)} {some(without)} {'have' if len(without) > 1 else 'has'} no OUT "
            "reference, 1 is needed: train more references, or leave these points out"
        )


def _log_mean_probability(view: AttackView, offline: bool) -> FloatArray:
    """Log of the references' mean probability [points, views], from the tail that keeps its digits."""
    log_mean, n = np.empty(view.target.shape), np.empty(view.n_points, np.int32)
    lost = np.empty(view.n_points, bool)
    for start in range(0, view.n_points, POINTS_PER_BLOCK):
        points = slice(start, start + POINTS_PER_BLOCK)
        sums = view.probability_sums_at(points)
        n[points] = sums.n_out if offline else sums.n_in + sums.n_out
        p, rest = (sums.outside if offline else sums.inside + sums.outside) / np.maximum(n[points], 1)[:, None]
        with np.errstate(divide="ignore"):
            log_mean[points] = np.where(p < 0.5, np.log(p), np.log1p(-np.minimum(rest, 0.5)))
        lost[points] = (np.minimum(p, rest) < UNDERFLOW).any(axis=1)
    _require_out(n)
    for few, conf, in_mask in view.references.at(np.flatnonzero(lost)):
        log_mean[few] = _log_mean(conf, ~in_mask if offline else np.ones_like(in_mask))
    return log_mean


def _log_mean(conf: FloatArray, used: npt.NDArray[np.bool_]) -> FloatArray:
    """Log of the mean probability [n, views] of the ``used`` [models, n] signals [models, n, views], all in logs."""
    log_n, mask = np.log(used.sum(axis=0))[:, None], used[:, :, None]
    log_p, log_rest = (logsumexp(np.where(mask, log_sigmoid(side), -np.inf), axis=0) - log_n for side in (conf, -conf))
    high: FloatArray = np.log1p(-np.exp(np.minimum(log_rest, np.log(0.5))))
    return np.where(log_p < log_rest, log_p, high)


def _trimmed_log_mean(view: AttackView, trim: float, offline: bool) -> FloatArray:
    """Log of the mean probability [points, views] without the lowest and highest ``trim`` of the references."""
    log_mean, in_mask = np.empty(view.target.shape), view.references.in_mask
    _require_out(len(in_mask) - in_mask.sum(axis=0) * offline)
    for points, conf, member in view.references.blocks():
        ordered, n = sort_masked(conf, ~member if offline else np.ones_like(member))
        cut = np.floor(trim * n).astype(np.intp)
        rank = np.arange(len(ordered))[:, None]
        kept = (rank >= cut) & (rank < n - cut)
        log_mean[points] = _log_mean(np.where(kept[:, :, None], ordered, 0.0), kept)
    return log_mean
