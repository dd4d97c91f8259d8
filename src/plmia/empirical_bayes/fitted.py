"""The fitted model: predictive laws of a point from its references and the priors; see `plmia.empirical_bayes`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy.special import gammaln, log_ndtr

from plmia.empirical_bayes.collecting import Coordinates
from plmia.errors import AttackError
from plmia.moments import FloatArray
from plmia.priors import IN, OUT, Evidence, ShiftPrior, Spread, SpreadPrior
from plmia.trends import Knots
from plmia.view import Mode


@dataclass(frozen=True)
class Laws:
    """Predictive laws of the target's signal if it is IN and if it is OUT: multivariate t, coordinates uncorrelated.

    Parameters
    ----------
    mean, variance : float64 arrays [2, points, coordinates]
        Centre and squared scale.
    freedom : float64 array [2, points]
        Degrees of freedom.
    """

    mean: FloatArray
    variance: FloatArray
    freedom: FloatArray

    def distance(self, x: FloatArray) -> FloatArray:
        """Squared distances [2, points] of ``x`` [points, coordinates] from the centres, in scales."""
        distance = x - self.mean
        np.square(distance, out=distance)
        distance /= self.variance
        # Several times as fast as a sum over so short an axis.
        total: FloatArray = distance @ np.ones(x.shape[1])
        return total

    @property
    def log_volume(self) -> FloatArray:
        """Sum [2, points] of the coordinates' log scales."""
        volume: FloatArray = np.log(self.variance) @ np.full(self.variance.shape[2], 0.5)
        return volume

    def upper_tail(self, x: FloatArray) -> FloatArray:
        """Minus the log probability [points] that an OUT model exceeds ``x`` in the first coordinate.

        By Wallace's normal approximation of t, which stays finite and increases with ``x`` however far it lies.
        """
        d = self.freedom[OUT]
        z = (x - self.mean[OUT])[:, 0] / np.sqrt(self.variance[OUT][:, 0])
        normal = np.sign(z) * (8 * d + 1) / (8 * d + 3) * np.sqrt(d * np.log1p(z * z / d))
        tail: FloatArray = -log_ndtr(-normal)
        return tail


def log_t(distance: FloatArray, freedom: FloatArray, n_coordinates: int) -> FloatArray:
    """Log density of a multivariate t, less its log volume and without constants, at a squared ``distance``."""
    half = (freedom + n_coordinates) / 2
    log_density: FloatArray = gammaln(half) - gammaln(freedom / 2)
    log_density -= half * np.log1p(distance / freedom)
    log_density -= n_coordinates / 2 * np.log(freedom)
    return log_density


@dataclass(frozen=True)
class Fit:
    """What was learned from the points: all that scoring needs besides a point's own references.

    Parameters
    ----------
    mode : {"online", "offline"}
        Whether queries have IN references.
    coordinates : Coordinates
        In which signals are modelled; the first has the largest variance.
    pair_correlation : float64 array [coordinates]
        Correlation of the two models of a complementary pair around the means of their sides; 0 without pairs.
    n_pairs : int
        How many complementary pairs there are among the references.
    overall : float64 array [2]
        Mean variance of the first coordinate, which weighs both sides in the centre of a point.
    knots : Knots
        Places of the trends on the centre.
    spread : SpreadPrior
        Prior of the spread.
    shift : ShiftPrior or None
        Prior of the shift; its features are 1 and, if there are two knots, the centre and `Spread.excess`.
        None offline if no population point has IN references: the statistic is then one-sided.
    tails : float64 array [2]
        Most degrees of freedom of each side.
    n_points : int
        How many points it was learned from.
    """

    mode: Mode
    coordinates: Coordinates
    pair_correlation: FloatArray
    n_pairs: int
    overall: FloatArray
    knots: Knots = field(default_factory=lambda: Knots(np.zeros(1), 0.0, 0.0))
    spread: SpreadPrior = field(default_factory=lambda: SpreadPrior(np.ones((2, 1, 1)), np.eye(2)))
    shift: ShiftPrior | None = None
    tails: FloatArray = field(default_factory=lambda: np.full(2, np.inf))
    n_points: int = 0

    def centre(self, evidence: Evidence) -> FloatArray:
        """Covariate [points] of the trends: online a mean that shares no noise with the shift, offline the OUT mean."""
        inside: FloatArray = evidence.mean[IN, :, 0]
        outside: FloatArray = evidence.mean[OUT, :, 0]
        if self.mode == "offline":
            return outside
        _, weight, _ = weigh(self.overall[:, None], evidence.n, self.pair_correlation[0] * evidence.n_pairs)
        centre: FloatArray = weight * inside + (1 - weight) * outside
        return centre

    def laws(self, evidence: Evidence) -> Laws:
        """Predictive laws of points with this evidence."""
        centre = self.centre(evidence)
        hats = self.knots.hats(centre)
        spread = self.spread.posterior(evidence.out_alone() if self.mode == "offline" else evidence, hats)
        shift = None
        if self.shift is not None:
            shift = self.shift.at(self.features(centre, spread), spread.scale, hats)
        if self.mode == "offline":
            return self._transferred(evidence, spread, shift)
        if shift is None:
            raise AttackError("online there is no ratio without a prior of the shift: fit it to points with both sides")
        return self._shrunken(evidence, spread, *shift)

    def features(self, centre: FloatArray, spread: Spread) -> FloatArray:
        """What the prior mean of the shift is linear in [points, features]."""
        ones = np.ones(len(centre))
        if len(self.knots) == 1:
            return ones[:, None]
        at = self.knots.at
        line = (self.knots.within(centre) - at.mean()) / (at[-1] - at[0])
        wide = spread.excess if self.mode == "online" else spread.excess[OUT:]
        return np.stack([ones, line, *wide], axis=1)

    def _shrunken(self, evidence: Evidence, spread: Spread, expected: FloatArray, prior: FloatArray) -> Laws:
        correlation = self.pair_correlation * evidence.n_pairs
        total, weight, of_centre = weigh(spread.variance, evidence.n[:, :, None], correlation)
        seen = evidence.mean[IN] - evidence.mean[OUT]
        kept = prior / (prior + total)
        of_shift = kept * total
        mean = np.stack([evidence.mean[OUT]] * 2)
        mean += weight * seen  # the centre
        shift = expected + kept * (seen - expected)
        mean[IN] += (1 - weight) * shift
        mean[OUT] -= weight * shift
        variance = spread.variance + of_centre
        variance[IN] += (1 - weight) ** 2 * of_shift
        variance[OUT] += weight**2 * of_shift
        return Laws(mean, variance, self._capped(spread.freedom))

    def _transferred(self, evidence: Evidence, spread: Spread, shift: tuple[FloatArray, FloatArray] | None) -> Laws:
        mean, variance = np.stack([evidence.mean[OUT]] * 2), spread.variance.copy()
        variance[OUT] *= 1 + 1 / evidence.n[OUT][:, None]
        if shift is not None:
            mean[IN] += shift[0]
            variance[IN] += shift[1]
        return Laws(mean, variance, self._capped(spread.freedom))

    def _capped(self, freedom: FloatArray) -> FloatArray:
        capped: FloatArray = np.minimum(freedom, self.tails[:, None])
        return capped

    def statistic(self, x: FloatArray, evidence: Evidence) -> FloatArray:
        """Log likelihood ratio [points] of the signals ``x`` [points, coordinates]; one-sided without a shift."""
        laws = self.laws(evidence)
        if self.shift is None:
            return laws.upper_tail(x)
        log_density = log_t(laws.distance(x), laws.freedom, x.shape[1])
        log_density -= laws.log_volume
        ratio: FloatArray = log_density[IN] - log_density[OUT]
        return ratio

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain values; infinite is null."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return None if value == np.inf else value


def weigh(
    variance: FloatArray, n: FloatArray, correlation: FloatArray | float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Variance of the shift, weight of the IN mean in the centre, and variance of the centre.

    From the ``variance`` of signals, how many there are of each side, and the sum of the correlations over pairs.
    """
    inside, outside = variance / n
    shared = correlation * np.sqrt(variance[IN] * variance[OUT]) / (n[IN] * n[OUT])
    total = inside + outside - 2 * shared
    return total, (outside - shared) / total, (inside * outside - shared**2) / total
