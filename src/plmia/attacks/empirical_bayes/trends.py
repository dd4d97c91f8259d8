"""Smooth trends over points: piecewise linear between knots at quantiles of a covariate, fitted by weighted sums.

Every point lies between two knots and counts for both, with the weights of linear interpolation (hat functions). At a
knot, a weighted mean or a weighted least-squares line of the points around it is fitted; in between, values are
interpolated. A single knot is a constant: a few hundred points support no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plmia.data.arrays import FloatArray, IntArray

# More knots changed nothing on images or tables; with fewer points per knot the trend follows noise.
MAX_KNOTS = 8
POINTS_PER_KNOT = 300


@dataclass(frozen=True)
class Hats:
    """Position of some points between the knots.

    ``left`` [points] is the knot to the left of each point (the last but one beyond the last knot), and ``share``
    [points] the weight, from 0 to 1, of the knot to the right.
    """

    n_knots: int
    left: IntArray
    share: FloatArray

    @cached_property
    def weights(self) -> FloatArray:
        """Weight [points, knots] of every knot. Most are 0, but a matrix product with few knots is fast."""
        weights, points = np.zeros((len(self.left), self.n_knots)), np.arange(len(self.left))
        weights[points, self.left] = 1 - self.share
        if self.n_knots > 1:
            weights[points, self.left + 1] = self.share
        return weights

    def sums(self, values: FloatArray) -> FloatArray:
        """Return weighted sums [knots, columns] of ``values`` [points, columns] around each knot."""
        total: FloatArray = self.weights.T @ values
        return total

    def means(self, values: FloatArray, weights: FloatArray) -> FloatArray:
        """Return weighted means [knots, columns] around each knot; where the weight is 0, of all points."""
        total, weight = self.sums(values * weights[:, None]), self.sums(weights[:, None])
        overall = total.sum(axis=0) / weight.sum()
        return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), overall)

    def lines(self, features: FloatArray, values: FloatArray) -> FloatArray:
        """Return least-squares coefficients [knots, columns, features] of ``values`` [points, columns]."""
        n_features = features.shape[1]
        pairs = features[:, :, None] * features[:, None, :]
        gram = self.sums(pairs.reshape(len(features), -1)).reshape(-1, n_features, n_features)
        moment = np.stack([self.sums(features * column[:, None]) for column in values.T], axis=1)
        # The pseudo-inverse drops a feature that does not vary, such as a spread that all points share.
        inverse = np.linalg.pinv(gram, rcond=1e-9, hermitian=True)
        coefficients: FloatArray = np.einsum("jab,jkb->jka", inverse, moment)
        return coefficients

    def blend(self, at_knots: FloatArray) -> FloatArray:
        """Interpolate values [points, ...] from those at the knots [knots, ...]."""
        if self.n_knots == 1:
            return np.broadcast_to(at_knots[0], (len(self.left), *at_knots.shape[1:]))
        blended: FloatArray = self.weights @ at_knots.reshape(self.n_knots, -1)
        return blended.reshape(-1, *at_knots.shape[1:])


@dataclass(frozen=True)
class Knots:
    """Knots of a trend: their increasing places ``at``, and the range of the covariate when they were placed.

    Beyond ``low`` and ``high`` trends stay constant.
    """

    at: FloatArray
    low: float
    high: float

    @classmethod
    def place(cls, covariate: FloatArray, most: int = MAX_KNOTS) -> Knots:
        """Place knots at evenly spaced quantiles of ``covariate``, one per 300 points, at most ``most``."""
        n = int(np.clip(len(covariate) // POINTS_PER_KNOT, 1, most))
        at = np.unique(np.quantile(covariate, (np.arange(n) + 0.5) / n))
        return cls(at, float(covariate.min()), float(covariate.max()))

    def __len__(self) -> int:
        return len(self.at)

    def hats(self, covariate: FloatArray) -> Hats:
        """Return the position of points with this ``covariate``; beyond an outer knot they count for it alone."""
        if len(self) == 1:
            return Hats(1, np.zeros(len(covariate), np.intp), np.zeros(len(covariate)))
        left = np.clip(np.searchsorted(self.at, covariate) - 1, 0, len(self) - 2)
        width = np.diff(self.at)
        return Hats(len(self), left, np.clip((covariate - self.at[left]) / width[left], 0.0, 1.0))

    def within(self, covariate: FloatArray) -> FloatArray:
        """Return ``covariate``, clipped to the range of the points that the trend was fitted to."""
        return np.clip(covariate, self.low, self.high)
