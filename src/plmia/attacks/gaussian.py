"""Gaussian laws of a point's IN and OUT signals: centres and variance estimators."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from plmia.attacks.moments import References, SideMoments
from plmia.data.arrays import BoolArray, FloatArray, IntArray
from plmia.errors import ReferencesError


@dataclass(frozen=True)
class Gaussian:
    """``mean`` [points, views] and positive ``variance``, broadcasts to it, of the signals of one side (IN or OUT)."""

    mean: FloatArray
    variance: FloatArray

    def log_density(self, x: FloatArray) -> FloatArray:
        """Return the log density of ``x`` [points, views], without the constant log(2 pi) / 2."""
        density = x - self.mean
        np.square(density, out=density)
        density /= self.variance
        density += np.log(self.variance)
        density *= -0.5
        return density


class Variance(Protocol):
    """Estimator of the variance of each side."""

    shared: ClassVar[bool] = False
    """Whether all points share one value, estimated from all of them."""
    label: ClassVar[str] = "this variance"
    """Name of the estimator in messages."""

    def least(self, n_views: int) -> int:
        """Return how many references every point needs on each side."""
        del n_views
        return 1

    @abstractmethod
    def __call__(self, moments: SideMoments) -> FloatArray:
        """Return the variance, broadcasts to [points, views], positive everywhere."""


@dataclass(frozen=True)
class PerPointVariance(Variance):
    """The variance of the point's own references, view by view; needs two references.

    Two references may agree to the last stored digit. Then only the rounding of stored signals is known of their
    spread, so its variance is added. It is far below any other spread otherwise.
    """

    label: ClassVar[str] = "a variance per point"

    def least(self, n_views: int) -> int:
        """Return 2."""
        del n_views
        return 2

    def __call__(self, moments: SideMoments) -> FloatArray:
        """Return the variance [points, views]."""
        return moments.variance + moments.rounding


@dataclass(frozen=True)
class FixedVariance(Variance):
    """One value for all points and views: the variance around each point's own mean, averaged over all references."""

    shared: ClassVar[bool] = True
    label: ClassVar[str] = "one fixed variance"

    def __call__(self, moments: SideMoments) -> FloatArray:
        """Return the variance [1, 1]; some point must have two references."""
        if moments.n.max() < 2:
            raise ReferencesError(
                f"one fixed variance needs a point with 2 {moments.side} references, all points have 1: "
                "train more references"
            )
        pooled = np.average(moments.variance.mean(axis=1), weights=moments.n)
        return np.array([[pooled + moments.rounding.mean()]])


@dataclass(frozen=True)
class PublishedFixedVariance(Variance):
    """One value for all points and views, as in LiRA's code: the spread of all signals around one common mean."""

    shared: ClassVar[bool] = True
    label: ClassVar[str] = "one fixed variance"

    def __call__(self, moments: SideMoments) -> FloatArray:
        """Return the variance [1, 1]."""
        weights = np.broadcast_to(moments.n[:, None], moments.mean.shape)
        centre = np.average(moments.mean, weights=weights)
        spread = np.average(moments.variance + (moments.mean - centre) ** 2, weights=weights)
        return np.array([[spread + moments.rounding.mean()]])


@dataclass(frozen=True)
class PooledVariance(Variance):
    """One value per point: the variance of its references' signals in all views (`tab:num_ref_pooledaugment`)."""

    label: ClassVar[str] = "a variance pooled over views"

    def least(self, n_views: int) -> int:
        """Return 2, or 1 if there are several views."""
        return 2 if n_views == 1 else 1

    def __call__(self, moments: SideMoments) -> FloatArray:
        """Return the variance [points, 1]."""
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
        """Return the centre [points, views]."""


@dataclass(frozen=True)
class MeanCentre(Centre):
    """The mean (the paper's choice)."""

    def __call__(self, references: References, moments: SideMoments) -> FloatArray:
        """Return the centre [points, views]."""
        del references
        return moments.mean


@dataclass(frozen=True)
class MedianCentre(Centre):
    """The median (the choice of LiRA's code); it sorts, so it is slower than the mean."""

    def __call__(self, references: References, moments: SideMoments) -> FloatArray:
        """Return the centre [points, views]."""
        return masked_median(references, inside=moments.side == "IN")


def masked_median(references: References, inside: bool) -> FloatArray:
    """Return the median [points, views] over the IN (or OUT) references; each point must have one."""
    median = np.empty((references.n_points, references.n_views))
    for points, conf, in_mask in references.blocks():
        ordered, n = sort_masked(conf, in_mask if inside else ~in_mask)
        low, high = (np.maximum(n - 1, 0) // 2)[None, :, None], (n // 2)[None, :, None]
        pair = np.take_along_axis(ordered, low, axis=0)[0], np.take_along_axis(ordered, high, axis=0)[0]
        median[points] = (pair[0] + pair[1]) / 2
    return median


def sort_masked(conf: FloatArray, mask: BoolArray) -> tuple[FloatArray, IntArray]:
    """Sort [models, n, views] over models, those outside ``mask`` [models, n] last, and count those inside [n]."""
    ordered = np.sort(np.where(mask[:, :, None], conf, np.inf), axis=0)
    return ordered, mask.sum(axis=0)
