"""Pointwise statistics: one value per record and view, larger for members; see `Statistic`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, logsumexp

from plmia.attacks.view import AttackView, Block, Mode, References, SideMoments, SumName, count
from plmia.data.arrays import BoolArray, Counts, FloatArray, IntArray
from plmia.errors import AttackError, ReferencesError, some
from plmia.numerics import log_sigmoid

# A mean probability below this may lack terms: in float32 everything below 3e-39 is summed as 0.
UNDERFLOW = 1e-30


class Fitted(Protocol):
    """A statistic with all its global quantities (priors, shared variances) known."""

    @abstractmethod
    def __call__(self, block: Block) -> FloatArray:
        """Return phi [n, views] at the records of ``block``: finite, larger for members."""

    def summary(self) -> Mapping[str, object] | None:
        """Return what was fitted as plain values for metrics.json and the report; None if nothing was."""
        return None


@runtime_checkable
class Statistic(Protocol):
    """A pointwise statistic: a frozen dataclass, so that equal statistics are computed once.

    Subclass it to inherit the defaults. A function of the view needs no class: see `FunctionOfView`.
    """

    uses: ClassVar[frozenset[SumName]] = frozenset()
    """Sums of `Block` that the fitted statistic reads. Many targets share them."""
    reads_records: ClassVar[bool] = False
    """Whether it needs `AttackView.features`, which only ``plmia screen`` provides."""

    @abstractmethod
    def fit(self, view: AttackView) -> Fitted:
        """Check the view, estimate the global quantities from all its records, and return the fitted statistic.

        Raises `ReferencesError` if some record has too few references.
        """

    def fit_uses(self) -> frozenset[SumName]:
        """Return the sums that ``fit`` reads at all records. They are kept until all blocks are done."""
        return frozenset()

    def least_references(self, n_views: int) -> int:
        """Return how many references every record needs on each side; 0 if the statistic uses none."""
        del n_views
        return 1

    def in_mode(self, mode: Mode) -> Statistic:
        """Return the statistic without parameters that this mode ignores, so that equal results are shared."""
        del mode
        return self

    def assumes_member_law(self, mode: Mode) -> bool:
        """Whether, in this mode, fixed constants say how signals of members differ from those of non-members.

        Where they do not fit the data, the statistic misses a clear leak: see the note ``fixed-member-law``.
        """
        del mode
        return False

    @property
    def source(self) -> object:
        """The object whose code is at fault if the statistic fails."""
        return self


class PointwiseStatistic(Statistic, Fitted, Protocol):
    """A statistic without global quantities: it is its own `Fitted`, and only ``__call__(block)`` is needed."""

    def fit(self, view: AttackView) -> Fitted:
        """Require `least_references` OUT references per record, and return the statistic itself."""
        n_out, least = len(view.references) - view.references.n_in, self.least_references(view.n_views)
        require_references(n_out, least, "OUT", type(self).__name__)
        return self


@dataclass(frozen=True)
class FunctionOfView(Statistic):
    """A function of the whole view that returns phi [records, views]. `Attack` wraps plain functions in this."""

    function: Callable[[AttackView], npt.ArrayLike]

    def fit(self, view: AttackView) -> GivenValues:
        """Evaluate the function at all records."""
        return GivenValues(np.asarray(self.function(view), dtype=np.float64), view.n_points)

    @property
    def source(self) -> object:
        """The function."""
        return self.function


@dataclass(frozen=True)
class GivenValues(Fitted):
    """Values phi [records, views] of a view with ``n_points`` records; an array of another length is returned whole."""

    phi: FloatArray
    n_points: int

    def __call__(self, block: Block) -> FloatArray:
        """Return phi [n, views]."""
        return self.phi[block.points] if self.phi.shape[:1] == (self.n_points,) else self.phi


def evaluate(statistic: Statistic, view: AttackView) -> FloatArray:
    """Fit a statistic to a view and return phi [records, views]."""
    fitted, phi = statistic.fit(view), np.empty(view.target.shape)
    for block in view.blocks():
        phi[block.points] = fitted(block)
    return phi


def require_references(n: Counts, least: int, side: str, statistic: str) -> None:
    """Raise `ReferencesError` if some record has fewer than ``least`` references; ``n`` [records] are their numbers."""
    short = np.flatnonzero(n < least)
    if len(short):
        who = f"records {some(short)} have as few as" if len(short) > 1 else f"record {some(short)} has"
        raise ReferencesError(
            f"{statistic} needs {least} {side} reference{'s' * (least > 1)} per record, "
            f"{who} {n[short].min()}: train more references, or leave these records out"
        )


@dataclass(frozen=True)
class Loss(PointwiseStatistic):
    """log p_y of the target: Attack-P's statistic (minus the usual loss)."""

    def __call__(self, block: Block) -> FloatArray:
        """Return phi [n, views]."""
        return log_probability(block.target)

    def least_references(self, n_views: int) -> int:
        """Return 0."""
        del n_views
        return 0


@dataclass(frozen=True)
class ReferenceRank(PointwiseStatistic):
    """Share of the record's OUT references that are less confident than the target, ties counted half: Attack-R."""

    def fit(self, view: AttackView) -> Fitted:
        """Require one OUT reference per record."""
        require_references(len(view.references) - view.references.n_in, 1, "OUT", "the rank among references")
        return self

    def __call__(self, block: Block) -> FloatArray:
        """Return phi [n, views]."""
        references = block.references
        twice, n_out = np.zeros(block.target.shape), len(references) - references.n_in
        # Compared in the stored type if that represents the target exactly: twice as fast as after a conversion.
        stored = block.target.astype(references.signals.dtype)
        target = stored if np.array_equal(stored, block.target) else block.target
        for few, points in references.pieces():
            conf, out = references.conf(few, points), ~references.in_mask[few, points]
            counted = np.repeat(out[:, :, None], block.n_views, axis=2) if block.n_views > 1 else out[:, :, None]
            twice[points] += count((conf < target[points]) & counted)
            twice[points] += count((conf <= target[points]) & counted)
        return twice / (2 * n_out[:, None])


@dataclass(frozen=True)
class Gaussian:
    """``mean`` [records, views] and positive ``variance``, broadcasts to it, of the signals of one side (IN or OUT)."""

    mean: FloatArray
    variance: FloatArray

    def log_density(self, x: FloatArray) -> FloatArray:
        """Return the log density of ``x`` [records, views], without the constant log(2 pi) / 2."""
        density = x - self.mean
        np.square(density, out=density)
        density /= self.variance
        density += np.log(self.variance)
        density *= -0.5
        return density


class Variance(Protocol):
    """Estimator of the variance of each side."""

    shared: ClassVar[bool] = False
    """Whether all records share one value, estimated from all of them."""
    label: ClassVar[str] = "this variance"
    """Name of the estimator in messages."""

    def least(self, n_views: int) -> int:
        """Return how many references every record needs on each side."""
        del n_views
        return 1

    @abstractmethod
    def __call__(self, moments: SideMoments) -> FloatArray:
        """Return the variance, broadcasts to [records, views], positive everywhere."""


@dataclass(frozen=True)
class PerPointVariance(Variance):
    """The variance of the record's own references, view by view; needs two references.

    Two references may agree to the last stored digit. Then only the rounding of stored signals is known of their
    spread, so its variance is added. It is far below any other spread otherwise.
    """

    label: ClassVar[str] = "a variance per record"

    def least(self, n_views: int) -> int:
        """Return 2."""
        del n_views
        return 2

    def __call__(self, moments: SideMoments) -> FloatArray:
        """Return the variance."""
        return moments.variance + moments.rounding


@dataclass(frozen=True)
class FixedVariance(Variance):
    """One value for all records and views: the variance around each record's own mean, averaged over all references."""

    shared: ClassVar[bool] = True
    label: ClassVar[str] = "one fixed variance"

    def __call__(self, moments: SideMoments) -> FloatArray:
        """Return the variance."""
        if moments.n.max() < 2:
            raise ReferencesError(
                f"one fixed variance needs a record with 2 {moments.side} references, all records have 1: "
                "train more references"
            )
        pooled = np.average(moments.variance.mean(axis=1), weights=moments.n)
        return np.array([[pooled + moments.rounding.mean()]])


@dataclass(frozen=True)
class PublishedFixedVariance(Variance):
    """One value for all records and views, as in LiRA's code: the spread of all signals around one common mean."""

    shared: ClassVar[bool] = True
    label: ClassVar[str] = "one fixed variance"

    def __call__(self, moments: SideMoments) -> FloatArray:
        """Return the variance."""
        weights = np.broadcast_to(moments.n[:, None], moments.mean.shape)
        centre = np.average(moments.mean, weights=weights)
        spread = np.average(moments.variance + (moments.mean - centre) ** 2, weights=weights)
        return np.array([[spread + moments.rounding.mean()]])


@dataclass(frozen=True)
class PooledVariance(Variance):
    """One value per record: the variance of its references' signals in all views (`tab:num_ref_pooledaugment`)."""

    label: ClassVar[str] = "a variance pooled over views"

    def least(self, n_views: int) -> int:
        """Return 2, or 1 if there are several views."""
        return 2 if n_views == 1 else 1

    def __call__(self, moments: SideMoments) -> FloatArray:
        """Return the variance."""
        within = moments.variance + moments.rounding
        if moments.mean.shape[1] == 1:
            return within
        pooled: FloatArray = within.mean(axis=1, keepdims=True)
        pooled += moments.mean.var(axis=1, keepdims=True)
        return pooled


class Centre(Protocol):
    """Estimator of the centre of each side."""

    @abstractmethod
    def __call__(self, references: References, moments: SideMoments) -> FloatArray:
        """Return the centre [records, views]."""


@dataclass(frozen=True)
class MeanCentre(Centre):
    """The mean (the paper's choice)."""

    def __call__(self, references: References, moments: SideMoments) -> FloatArray:
        """Return the centre [records, views]."""
        del references
        return moments.mean


@dataclass(frozen=True)
class MedianCentre(Centre):
    """The median (the choice of LiRA's code); it sorts, so it is slower than the mean."""

    def __call__(self, references: References, moments: SideMoments) -> FloatArray:
        """Return the centre [records, views]."""
        median = np.empty((references.n_points, references.n_views))
        for points, conf, in_mask in references.blocks():
            ordered, n = sort_masked(conf, in_mask if moments.side == "IN" else ~in_mask)
            low, high = (np.maximum(n - 1, 0) // 2)[None, :, None], (n // 2)[None, :, None]
            pair = np.take_along_axis(ordered, low, axis=0)[0], np.take_along_axis(ordered, high, axis=0)[0]
            median[points] = (pair[0] + pair[1]) / 2
        return median


def sort_masked(conf: FloatArray, mask: BoolArray) -> tuple[FloatArray, IntArray]:
    """Sort [models, n, views] over models, those outside ``mask`` [models, n] last, and count those inside [n]."""
    ordered = np.sort(np.where(mask[:, :, None], conf, np.inf), axis=0)
    return ordered, mask.sum(axis=0)


@dataclass(frozen=True)
class ShiftedOut:
    """Offline IN law, derived from the OUT law: mean mu_out + eta sigma_out, deviation rho sigma_out.

    See `sec:exp_offline`. With rho below 1 the statistic has a maximum: beyond it, higher confidence scores lower.
    """

    eta: float = 0.3
    rho: float = 0.9
    assumes_law: ClassVar[bool] = True
    """Whether fixed constants give the IN law."""

    def __post_init__(self) -> None:
        if not (0 < self.eta < np.inf and 0 < self.rho < np.inf):
            raise AttackError(f"eta = {self.eta} and rho = {self.rho} must both be positive: the paper has 0.3 and 0.9")

    def __call__(self, x: FloatArray, out: Gaussian) -> FloatArray:
        """Return the log likelihood ratio [records, views] of ``x``."""
        inside = Gaussian(out.mean + self.eta * np.sqrt(out.variance), self.rho**2 * out.variance)
        return inside.log_density(x) - out.log_density(x)


@dataclass(frozen=True)
class OneSided:
    """Offline LiRA: minus the log probability that an OUT model is more confident than the target."""

    assumes_law: ClassVar[bool] = False

    def __call__(self, x: FloatArray, out: Gaussian) -> FloatArray:
        """Return the statistic [records, views] of ``x``; strictly increasing in ``x``."""
        return -log_ndtr((out.mean - x) / np.sqrt(out.variance))


@dataclass(frozen=True)
class GaussianLR(Statistic):
    """Gaussian log likelihood ratio (`lem:logbf`): the statistic of LiRA, PL-MIA+ and PL-MIA.

    Parameters
    ----------
    variance : Variance
        Estimator of the IN and OUT variances.
    centre : Centre
        Estimator of the IN and OUT centres.
    offline : ShiftedOut or OneSided
        Replaces the IN law when there are no IN references.
    """

    variance: Variance = field(default_factory=PerPointVariance)
    centre: Centre = field(default_factory=MeanCentre)
    offline: ShiftedOut | OneSided = field(default_factory=ShiftedOut)

    uses: ClassVar[frozenset[SumName]] = frozenset({"confidence"})

    def fit(self, view: AttackView) -> FittedGaussianLR:
        """Require enough references; estimate variances that all records share."""
        n_in, least = view.references.n_in, self.variance.least(view.n_views)
        require_references(len(view.references) - n_in, least, "OUT", self.variance.label)
        if view.mode == "online":
            require_references(n_in, least, "IN", self.variance.label)
        if not self.variance.shared:
            return FittedGaussianLR(self)
        # One side after the other, so that the moments of only one are in memory.
        out = self.variance(view.moments(inside=False))
        return FittedGaussianLR(self, out, None if view.mode == "offline" else self.variance(view.moments(inside=True)))

    def fit_uses(self) -> frozenset[SumName]:
        """Return the sums of confidences if all records share a variance."""
        return self.uses if self.variance.shared else frozenset()

    def least_references(self, n_views: int) -> int:
        """Return what the variance needs."""
        return self.variance.least(n_views)

    def in_mode(self, mode: Mode) -> GaussianLR:
        """Return the statistic with the default offline law if it is not needed."""
        return self if mode == "offline" else replace(self, offline=ShiftedOut())

    def assumes_member_law(self, mode: Mode) -> bool:
        """Return whether the offline law does, offline."""
        return mode == "offline" and self.offline.assumes_law


@dataclass(frozen=True)
class FittedGaussianLR(Fitted):
    """A Gaussian likelihood ratio, and the OUT and IN variances [1, 1] if all records share them."""

    statistic: GaussianLR
    out_variance: FloatArray | None = None
    in_variance: FloatArray | None = None

    def __call__(self, block: Block) -> FloatArray:
        """Return phi [n, views]."""
        out = self._law(block, block.out_moments, self.out_variance)
        if block.mode == "offline":
            return self.statistic.offline(block.target, out)
        inside = self._law(block, block.in_moments, self.in_variance)
        return inside.log_density(block.target) - out.log_density(block.target)

    def _law(self, block: Block, moments: SideMoments, shared: FloatArray | None) -> Gaussian:
        variance = self.statistic.variance(moments) if shared is None else shared
        return Gaussian(self.statistic.centre(block.references, moments), variance)


@dataclass(frozen=True)
class BayesLR(PointwiseStatistic):
    """log p_t - log pbar (`lem:rmia`): the statistic of RMIA.

    Online, pbar is the mean true-label probability of all references. Offline it is
    (1 + a) / 2 times the mean of the OUT references plus (1 - a) / 2.
    """

    a: float = 0.3  # RMIA's offline parameter, in [0, 1]
    trim: float = 0.0  # share of the references excluded from the mean on each side, in [0, 0.5); RMIA's option is 0.2
    uses: ClassVar[frozenset[SumName]] = frozenset({"probability"})

    def __post_init__(self) -> None:
        if not 0 <= self.a <= 1:
            raise AttackError(f"RMIA's a = {self.a} lies outside [0, 1]: its authors use 0.3 on CIFAR-10")
        if not 0 <= self.trim < 0.5:
            raise AttackError(f"the trimmed share {self.trim} lies outside [0, 0.5): RMIA's option is 0.2")

    def fit(self, view: AttackView) -> Fitted:
        """Require a reference per record, offline an OUT reference."""
        n = len(view.references) - view.references.n_in * (view.mode == "offline")
        require_references(n, 1, "OUT", "the Bayes ratio")
        return self

    def __call__(self, block: Block) -> FloatArray:
        """Return phi [n, views]."""
        offline = block.mode == "offline"
        log_mean = _trimmed_log_mean(block, self.trim, offline) if self.trim else log_mean_probability(block, offline)
        if offline and self.a < 1:
            # Not `logaddexp`: near 1, it would round away what distinguishes saturated signals.
            log_mean = np.log1p((1 + self.a) / 2 * np.expm1(log_mean))
        return log_probability(block.target) - log_mean


def log_probability(conf: FloatArray) -> FloatArray:
    """Return the log of the true-label probability [n, views]."""
    return log_sigmoid(conf).astype(np.float64, copy=False)


def log_mean_probability(block: Block, offline: bool) -> FloatArray:
    """Return the log of the references' mean probability [n, views], from the tail that keeps its digits."""
    sums = block.probability_sums
    n = sums.n_out if offline else sums.n_in + sums.n_out
    p, rest = (sums.outside if offline else sums.inside + sums.outside) / np.maximum(n, 1)[:, None]
    with np.errstate(divide="ignore"):
        log_mean: FloatArray = np.where(p < 0.5, np.log(p), np.log1p(-np.minimum(rest, 0.5)))
    lost = (np.minimum(p, rest) < UNDERFLOW).any(axis=1)
    for few, conf, in_mask in block.references.at(np.flatnonzero(lost)):
        log_mean[few] = _log_mean(conf, ~in_mask if offline else np.ones_like(in_mask))
    return log_mean


def _log_mean(conf: FloatArray, used: BoolArray) -> FloatArray:
    """Return the log mean probability [n, views] of the ``used`` [models, n] signals [models, n, views], in logs."""
    log_n, mask = np.log(used.sum(axis=0))[:, None], used[:, :, None]
    log_p, log_rest = (logsumexp(np.where(mask, log_sigmoid(side), -np.inf), axis=0) - log_n for side in (conf, -conf))
    high: FloatArray = np.log1p(-np.exp(np.minimum(log_rest, np.log(0.5))))
    return np.where(log_p < log_rest, log_p, high)


def _trimmed_log_mean(block: Block, trim: float, offline: bool) -> FloatArray:
    """Return the log mean probability [n, views] without the lowest and highest ``trim`` of the references."""
    log_mean = np.empty(block.target.shape)
    for points, conf, member in block.references.blocks():
        ordered, n = sort_masked(conf, ~member if offline else np.ones_like(member))
        cut = np.floor(trim * n).astype(np.intp)
        rank = np.arange(len(ordered))[:, None]
        kept = (rank >= cut) & (rank < n - cut)
        log_mean[points] = _log_mean(np.where(kept[:, :, None], ordered, 0.0), kept)
    return log_mean
