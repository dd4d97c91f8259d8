"""Smooth trends over points: piecewise linear between knots at quantiles of a covariate, fitted by weighted sums.

Every point lies between two knots and counts for both, the more the nearer it is (the hat functions of linear
interpolation). What is fitted at a knot is a weighted mean, or a weighted least-squares line, of the points around it;
in between, values are interpolated. All of it comes from sums over points, so points may arrive in any order and in
blocks. A single knot is a constant: what a few hundred points can support.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

# More knots changed nothing on images or tables; fewer points to a knot make the trend follow noise.
MOST_KNOTS = 8
POINTS_PER_KNOT = 300


@dataclass(frozen=True)
class Hats:
    """Where some points stand between the knots.

    Parameters
    ----------
    n_knots : int
        How many knots there are.
    left : int array [points]
        The knot to the left of each point (the last but one beyond the last).
    share : float64 array [points]
        Weight of the knot to the right, from 0 to 1; the left one has the rest.
    """

    n_knots: int
    left: IntArray
    share: FloatArray

    @cached_property
    def weights(self) -> FloatArray:
        """Weight [points, knots] of every knot; most are 0, but there are few, and a product of matrices is fast."""
        weights, points = np.zeros((len(self.left), self.n_knots)), np.arange(len(self.left))
        weights[points, self.left] = 1 - self.share
        if self.n_knots > 1:
            weights[points, self.left + 1] = self.share
        return weights

    def sums(self, values: FloatArray) -> FloatArray:
        """Weighted sums [knots, columns] of ``values`` [points, columns] around each knot."""
        total: FloatArray = self.weights.T @ values
        return total

    def means(self, values: FloatArray, weights: FloatArray) -> FloatArray:
        """Means [knots, columns] around each knot, ``weights`` [points] on top; where no weight is, of all points."""
        total, weight = self.sums(values * weights[:, None]), self.sums(weights[:, None])
        overall = total.sum(axis=0) / weight.sum()
        return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), overall)

    def lines(self, features: FloatArray, values: FloatArray) -> FloatArray:
        """Least-squares coefficients [knots, columns, features] of ``values`` [points, columns] around each knot."""
        n_features = features.shape[1]
        pairs = features[:, :, None] * features[:, None, :]
        gram = self.sums(pairs.reshape(len(features), -1)).reshape(-1, n_features, n_features)
        moment = np.stack([self.sums(features * column[:, None]) for column in values.T], axis=1)
        # The pseudo-inverse leaves out a feature that does not vary, such as a spread that all points share.
        inverse = np.linalg.pinv(gram, rcond=1e-9, hermitian=True)
        coefficients: FloatArray = np.einsum("jab,jkb->jka", inverse, moment)
        return coefficients

    def blend(self, at_knots: FloatArray) -> FloatArray:
        """Values [points, ...] between the knots from those at the knots [knots, ...]."""
        if self.n_knots == 1:
            return np.broadcast_to(at_knots[0], (len(self.left), *at_knots.shape[1:]))
        blended: FloatArray = self.weights @ at_knots.reshape(self.n_knots, -1)
        return blended.reshape(-1, *at_knots.shape[1:])


@dataclass(frozen=True)
class Knots:
    """Knots of a trend.

    Parameters
    ----------
    at : float64 array [knots]
        Their places, increasing.
    low, high : float
        Least and largest value of the covariate when they were placed; beyond these trends stay level.
    """

    at: FloatArray
    low: float
    high: float

    @classmethod
    def place(cls, covariate: FloatArray, most: int = MOST_KNOTS) -> Knots:
        """Knots at evenly spaced quantiles of ``covariate`` [points], one for every 300 points, at most ``most``."""
        n = int(np.clip(len(covariate) // POINTS_PER_KNOT, 1, most))
        at = np.unique(np.quantile(covariate, (np.arange(n) + 0.5) / n))
        return cls(at, float(covariate.min()), float(covariate.max()))

    def __len__(self) -> int:
        return len(self.at)

    def hats(self, covariate: FloatArray) -> Hats:
        """Where points with this ``covariate`` [points] stand; beyond the outer knots they count for these alone."""
        if len(self) == 1:
            return Hats(1, np.zeros(len(covariate), np.intp), np.zeros(len(covariate)))
        left = np.clip(np.searchsorted(self.at, covariate) - 1, 0, len(self) - 2)
        width = np.diff(self.at)
        return Hats(len(self), left, np.clip((covariate - self.at[left]) / width[left], 0.0, 1.0))

    def within(self, covariate: FloatArray) -> FloatArray:
        """``covariate``, no further out than any point that the trend was fitted to."""
        return np.clip(covariate, self.low, self.high)
