"""The fitted model: predictive laws of a point from its references and the priors; see the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy.special import gammaln, log_ndtr

from plmia.attacks.empirical_bayes.collecting import BoolArray, Coordinates, collect_block
from plmia.attacks.empirical_bayes.priors import IN, OUT, Evidence, ShiftPrior, Spread, SpreadPrior
from plmia.attacks.empirical_bayes.trends import Knots
from plmia.attacks.moments import FloatArray, IntArray
from plmia.attacks.statistics import Fitted
from plmia.attacks.view import Block, Mode
from plmia.errors import AttackError


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

    def turned_back(self, x: FloatArray) -> FloatArray:
        """``x`` [points, coordinates], its first coordinate no further out than where the ratio of the laws turns.

        A narrower IN law makes the ratio fall again above some signal, a wider one makes it rise again below some.
        """
        (inside, outside), (v_in, v_out) = self.mean[:, :, 0], self.variance[:, :, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            turn = inside + (inside - outside) * v_in / (v_out - v_in)
        back, first = x.copy(), x[:, 0]
        upper = np.minimum(first, np.fmax(turn, np.maximum(inside, outside)))
        lower = np.maximum(first, np.fmin(turn, np.minimum(inside, outside)))
        back[:, 0] = np.where(v_in < v_out, upper, np.where(v_in > v_out, lower, first))
        return back

    @property
    def log_volume(self) -> FloatArray:
        """Sum [2, points] of the coordinates' log scales."""
        volume: FloatArray = np.log(self.variance) @ np.full(self.variance.shape[2], 0.5)
        return volume

    def log_ratio(self, x: FloatArray) -> FloatArray:
        """Log density [points] of ``x`` if IN, less that if OUT."""
        log_density = t_kernel(self.distance(x), self.freedom, x.shape[1])
        log_density += log_height(self.freedom, x.shape[1])
        log_density -= self.log_volume
        ratio: FloatArray = log_density[IN] - log_density[OUT]
        return ratio

    def first_density(self, x: FloatArray, side: IntArray) -> FloatArray:
        """Log density [points] of the first coordinate in the law of its ``side`` [points], but for constants."""
        points = np.arange(len(x))
        variance, freedom = self.variance[side, points, 0], self.freedom[side, points]
        log_density = t_kernel((x[:, 0] - self.mean[side, points, 0]) ** 2 / variance, freedom, 1)
        log_density += log_height(freedom, 1) - np.log(variance) / 2
        return log_density

    def at(self, points: BoolArray) -> Laws:
        """The laws of some of the points."""
        return Laws(self.mean[:, points], self.variance[:, points], self.freedom[:, points])

    def upper_tail(self, x: FloatArray) -> FloatArray:
        """Minus the log probability [points] that an OUT model exceeds ``x`` in the first coordinate.

        By Wallace's normal approximation of t, which stays finite and increases with ``x`` however far it lies.
        """
        d = self.freedom[OUT]
        z = (x - self.mean[OUT])[:, 0] / np.sqrt(self.variance[OUT][:, 0])
        normal = np.sign(z) * (8 * d + 1) / (8 * d + 3) * np.sqrt(d * np.log1p(z * z / d))
        tail: FloatArray = -log_ndtr(-normal)
        return tail


def t_kernel(distance: FloatArray, freedom: FloatArray, n_coordinates: int) -> FloatArray:
    """Log density of a multivariate t at a squared ``distance``, less that at its centre."""
    kernel: FloatArray = np.log1p(distance / freedom)
    kernel *= (freedom + n_coordinates) / -2
    return kernel


def kept_from_turning(ratio: FloatArray, at_turn: FloatArray, above: BoolArray, most: float) -> FloatArray:
    """Log ratios beyond the turn, held at what they are there as far as ``most`` either way; see `Laws.turned_back`.

    Beyond it ``above``, where the ratio falls again, or below, where it rises again.
    """
    return np.where(above, np.maximum(ratio, np.minimum(at_turn, most)), np.minimum(ratio, np.maximum(at_turn, -most)))


def log_height(freedom: FloatArray, n_coordinates: int) -> FloatArray:
    """Log density [..., points] of a t of unit volume at its centre, but for a constant.

    Computed once for all points that have the most degrees of freedom of their side: tails are capped, so many have.
    """
    most = freedom.max(axis=-1, keepdims=True, initial=1.0)
    at = np.concatenate([most[..., 0].ravel(), freedom[freedom < most]])
    # gammaln(at / 2 + n_coordinates / 2) - gammaln(at / 2), but every whole step of the gamma function is a logarithm.
    whole, odd = divmod(n_coordinates, 2)
    height = gammaln(at / 2 + 0.5) - gammaln(at / 2) if odd else np.zeros_like(at)
    for step in range(whole):
        height += np.log(at / 2 + odd / 2 + step)
    height -= n_coordinates / 2 * np.log(at)
    heights = np.repeat(height[: most.size].reshape(most.shape), freedom.shape[-1], axis=-1)
    heights[freedom < most] = height[most.size :]
    return heights


@dataclass(frozen=True)
class Fit(Fitted):
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
    hold : float
        Where the ratio turns, so that a more confident target would look less of a member, it is held at what it is
        there, but at no more than this (nor below its negative); 0 if it is not held.
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
    hold: float = 0.0
    n_points: int = 0

    def __call__(self, block: Block) -> FloatArray:
        """Return phi [n, views], the same in each view."""
        evidence = collect_block(block, self.coordinates, self.n_pairs)
        ratio = self.statistic(self.coordinates.of(block.target), evidence)
        return np.broadcast_to(ratio[:, None], block.target.shape)

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
        return np.stack([ones, line, spread.excess], axis=1)

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
        ratio = laws.log_ratio(x)
        if self.hold:
            back = laws.turned_back(x)
            beyond = back[:, 0] != x[:, 0]
            at_turn, above = laws.at(beyond).log_ratio(back[beyond]), x[beyond, 0] > back[beyond, 0]
            ratio[beyond] = kept_from_turning(ratio[beyond], at_turn, above, self.hold)
        return ratio

    def summary(self) -> Mapping[str, object]:
        """Return all of it as plain values; infinite is null."""
        plain: dict[str, object] = _plain(asdict(self))
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
