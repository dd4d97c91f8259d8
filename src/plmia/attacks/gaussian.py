"""Gaussian laws of a point's IN and OUT signals: centres and the variance estimators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from plmia.attacks.moments import FloatArray, IntArray, References
from plmia.attacks.view import AttackView
from plmia.errors import ReferencesError, some

# Where a squared mean exceeds the variance so many times, their difference has lost too many of float32's digits.
CANCELLATION = 100.0


@dataclass(frozen=True)
class Gaussian:
    """Mean and variance of the signals of one side (IN or OUT).

    Parameters
    ----------
    mean : float64 array [points, views]
        Centre of the law.
    variance : float64 array, broadcasts to [points, views]
        Its variance, positive everywhere.
    """

    mean: FloatArray
    variance: FloatArray

    def log_density(self, x: FloatArray) -> FloatArray:
        """Log density of ``x`` [points, views], without the constant log(2 pi) / 2."""
        density = x - self.mean
        np.square(density, out=density)
        density /= self.variance
        # The logarithm in two parts: with all of it at once an attack would need more memory here than anywhere else.
        half = len(density) // 2
        for part in (slice(half), slice(half, None)):
            density[part] += np.log(self.variance[part] if len(self.variance) > 1 else self.variance)
        density *= -0.5
        return density


@dataclass(frozen=True)
class SideMoments:
    """Counts, means and population variances (divided by n) of one side (IN or OUT).

    Parameters
    ----------
    side : str
        "IN" or "OUT", for messages.
    n : int array [points]
        How many references.
    mean, variance : float64 arrays [points, views]
        0 where there is no reference; estimators check ``n`` before they use them.
    stored : dtype
        Type in which the signals are stored.
    """

    side: str
    n: npt.NDArray[np.integer]
    mean: FloatArray
    variance: FloatArray
    stored: np.dtype[np.floating]

    @property
    def rounding(self) -> FloatArray:
        """Variance [points, views] that storing the signals adds: spacing^2 / 12 at the mean's size.

        Or at 1 where the mean is smaller (there the probability, close to 1/2, is what was rounded).
        """
        # `numpy.spacing` overflows at the largest number there is; one step below it the spacing is the same.
        most = np.nextafter(np.finfo(self.stored).max, self.stored.type(0))
        size = self.mean.astype(self.stored)
        np.clip(np.abs(size, out=size), self.stored.type(1), most, out=size)
        rounding: FloatArray = np.square(np.spacing(size, out=size), dtype=np.float64)
        rounding /= 12
        return rounding

    def require(self, least: int, estimator: str) -> None:
        """Raise unless every point has at least ``least`` references on this side."""
        short = np.flatnonzero(self.n < least)
        if len(short):
            who = f"points {some(short)} have as few as" if len(short) > 1 else f"point {some(short)} has"
            raise ReferencesError(
                f"{estimator} needs {least} {self.side} reference{'s' * (least > 1)} a point, "
                f"{who} {self.n[short].min()}: train more references, or leave these points out"
            )


def side_moments(view: AttackView, inside: bool) -> SideMoments:
    """Moments of the IN (or OUT) references' signals at every point."""
    sums = view.confidence_sums
    n = sums.n_in if inside else sums.n_out
    s, s2 = sums.inside if inside else sums.outside
    at_least_one = np.maximum(n, 1)[:, None]
    mean, variance = s / at_least_one, s2 / at_least_one
    del at_least_one
    square = np.square(mean)
    variance -= square
    np.maximum(variance, 0.0, out=variance)
    square /= CANCELLATION
    lost = np.flatnonzero((variance < square).any(axis=1))
    del square
    mean += view.centre
    mean[n == 0] = 0.0
    for points, conf, in_mask in view.references.at(lost):
        mask = (in_mask == inside)[:, :, None]
        mean[points], variance[points] = conf.mean(axis=0, where=mask), conf.var(axis=0, where=mask)
    return SideMoments("IN" if inside else "OUT", n, mean, variance, view.references.signals.dtype)


class Variance(Protocol):
    """How the variance of each side is estimated."""

    def least(self, n_views: int) -> int:
        """How many references of each side every point must have."""

    def __call__(self, moments: SideMoments) -> FloatArray:
        """Variance, broadcasts to [points, views], positive everywhere."""


@dataclass(frozen=True)
class PerPointVariance:
    """The variance of the point's own references, view by view; needs two of them.

    Two references may agree to the last stored digit. What storing the signals rounds away is then all that is
    known of their spread, so its variance is added (it is far below any other spread otherwise).
    """

    def least(self, n_views: int) -> int:
        """Two: one alone has no spread."""
        del n_views
        return 2

    def __call__(self, moments: SideMoments) -> FloatArray:
        """Variance [points, views]."""
        moments.require(self.least(1), "a variance per point")
        return moments.variance + moments.rounding


@dataclass(frozen=True)
class FixedVariance:
    """One value for all points and views: the variance around each point's own mean, averaged over all references."""

    def least(self, n_views: int) -> int:
        """One, if some point has two."""
        del n_views
        return 1

    def __call__(self, moments: SideMoments) -> FloatArray:
        """Variance [1, 1]."""
        moments.require(self.least(1), "one fixed variance")
        if moments.n.max() < 2:
            raise ReferencesError(
                f"one fixed variance needs a point with 2 {moments.side} references, all points have 1: "
                "train more references"
            )
        pooled = np.average(moments.variance.mean(axis=1), weights=moments.n)
        return np.array([[pooled + moments.rounding.mean()]])


@dataclass(frozen=True)
class PublishedFixedVariance:
    """One value for all points and views, as LiRA's code has it: the spread of all signals around one common mean."""

    def least(self, n_views: int) -> int:
        """One, if some point has two."""
        del n_views
        return 1

    def __call__(self, moments: SideMoments) -> FloatArray:
        """Variance [1, 1]."""
        moments.require(self.least(1), "one fixed variance")
        weights = np.broadcast_to(moments.n[:, None], moments.mean.shape)
        centre = np.average(moments.mean, weights=weights)
        spread = np.average(moments.variance + (moments.mean - centre) ** 2, weights=weights)
        return np.array([[spread + moments.rounding.mean()]])


@dataclass(frozen=True)
class PooledVariance:
    """One value a point: the variance of all its references' signals in all views (`tab:num_ref_pooledaugment`)."""

    def least(self, n_views: int) -> int:
        """Two signals: of two references, or of two views."""
        return 2 if n_views == 1 else 1

    def __call__(self, moments: SideMoments) -> FloatArray:
        """Variance [points, 1]."""
        views = moments.mean.shape[1]
        moments.require(self.least(views), f"a variance pooled over {views} view{'s' * (views > 1)}")
        within = moments.variance + moments.rounding
        if views == 1:
            return within
        pooled: FloatArray = within.mean(axis=1, keepdims=True)
        pooled += moments.mean.var(axis=1, keepdims=True)
        return pooled


class Centre(Protocol):
    """What stands for the middle of a point's signals."""

    def __call__(self, view: AttackView, moments: SideMoments) -> FloatArray:
        """Centre [points, views]."""


@dataclass(frozen=True)
class MeanCentre:
    """The mean (the paper's choice)."""

    def __call__(self, view: AttackView, moments: SideMoments) -> FloatArray:
        """Centre [points, views]."""
        del view
        return moments.mean


@dataclass(frozen=True)
class MedianCentre:
    """The median (the choice of LiRA's code); sorts, so it is slower than the mean."""

    def __call__(self, view: AttackView, moments: SideMoments) -> FloatArray:
        """Centre [points, views]."""
        return masked_median(view.references, inside=moments.side == "IN")


def masked_median(references: References, inside: bool) -> FloatArray:
    """Median [points, views] over the IN (or OUT) references of each point; each point must have one."""
    median = np.empty((references.n_points, references.n_views))
    for points, conf, in_mask in references.blocks():
        ordered, n = sort_masked(conf, in_mask if inside else ~in_mask)
        low, high = (np.maximum(n - 1, 0) // 2)[None, :, None], (n // 2)[None, :, None]
        pair = np.take_along_axis(ordered, low, axis=0)[0], np.take_along_axis(ordered, high, axis=0)[0]
        median[points] = (pair[0] + pair[1]) / 2
    return median


def sort_masked(conf: FloatArray, mask: npt.NDArray[np.bool_]) -> tuple[FloatArray, IntArray]:
    """Sort [models, n, views] over models, those outside ``mask`` [models, n] last, and count those inside [n]."""
    ordered = np.sort(np.where(mask[:, :, None], conf, np.inf), axis=0)
    return ordered, mask.sum(axis=0)
