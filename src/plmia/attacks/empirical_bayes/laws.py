"""Predictive laws of the target's signal, and held-out references that choose their shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, log_ndtr

from plmia.attacks.empirical_bayes.evidence import IN, OUT, evenly
from plmia.data.arrays import Array, BoolArray, FloatArray, IntArray

# Degrees of freedom to choose from; with a thousand, t is Gaussian.
TAILS = (4.0, 6.0, 9.0, 14.0, 25.0, 60.0, 1000.0)
# A heavier tail must raise the log likelihood of a signal by this much, or it is due to chance.
MIN_TAIL_GAIN = 0.002
# Used if no reference can be held out.
DEFAULT_TAIL = 14.0
# Number of cases that choose the tails.
CASES_FOR_TAILS = 1 << 12
# Bound of a ratio beyond its turning point: odds of e to 1. A larger bound would decide who is flagged at low rates.
HOLD = 1.0
# Standard errors by which a loss must be larger to be more than chance.
CLEARLY_LARGER = 1.0


@dataclass(frozen=True)
class Laws:
    """Predictive laws of the target's signal if it is IN and if it is OUT: multivariate t, coordinates uncorrelated.

    ``mean`` and ``variance`` (squared scale) are [2, points, coordinates], the degrees of ``freedom`` [2, points].
    """

    mean: FloatArray
    variance: FloatArray
    freedom: FloatArray

    def distance(self, x: FloatArray) -> FloatArray:
        """Return squared distances [2, points] of ``x`` [points, coordinates] from the centres, in scales."""
        distance = x - self.mean
        np.square(distance, out=distance)
        distance /= self.variance
        # Several times as fast as a sum over so short an axis.
        total: FloatArray = distance @ np.ones(x.shape[1])
        return total

    def clipped_at_turn(self, x: FloatArray) -> FloatArray:
        """Return ``x`` [points, coordinates] with its first coordinate moved back to the turning point of the ratio.

        With a narrower IN law the ratio falls again above some signal; with a wider one it rises again below some.
        Signals on the near side of the turning point are unchanged.
        """
        (inside, outside), (v_in, v_out) = self.mean[:, :, 0], self.variance[:, :, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            turn = inside + (inside - outside) * v_in / (v_out - v_in)
        clipped, first = x.copy(), x[:, 0]
        upper = np.minimum(first, np.fmax(turn, np.maximum(inside, outside)))
        lower = np.maximum(first, np.fmin(turn, np.minimum(inside, outside)))
        clipped[:, 0] = np.where(v_in < v_out, upper, np.where(v_in > v_out, lower, first))
        return clipped

    @property
    def log_volume(self) -> FloatArray:
        """Sum [2, points] of the coordinates' log scales."""
        volume: FloatArray = np.log(self.variance) @ np.full(self.variance.shape[2], 0.5)
        return volume

    def log_ratio(self, x: FloatArray) -> FloatArray:
        """Return the log density [points] of ``x`` if IN minus that if OUT."""
        log_density = t_kernel(self.distance(x), self.freedom, x.shape[1])
        log_density += log_height(self.freedom, x.shape[1])
        log_density -= self.log_volume
        ratio: FloatArray = log_density[IN] - log_density[OUT]
        return ratio

    def first_density(self, x: FloatArray, side: IntArray) -> FloatArray:
        """Return the log density [points] of the first coordinate in the law of its ``side``, up to a constant."""
        points = np.arange(len(x))
        variance, freedom = self.variance[side, points, 0], self.freedom[side, points]
        log_density = t_kernel((x[:, 0] - self.mean[side, points, 0]) ** 2 / variance, freedom, 1)
        log_density += log_height(freedom, 1) - np.log(variance) / 2
        return log_density

    def at(self, points: BoolArray) -> Laws:
        """Return the laws of some of the points."""
        return Laws(self.mean[:, points], self.variance[:, points], self.freedom[:, points])

    def upper_tail(self, x: FloatArray) -> FloatArray:
        """Return minus the log probability [points] that an OUT model exceeds ``x`` in the first coordinate.

        Uses Wallace's normal approximation of t, which is finite and increasing in ``x`` everywhere.
        """
        d = self.freedom[OUT]
        z = (x - self.mean[OUT])[:, 0] / np.sqrt(self.variance[OUT][:, 0])
        normal = np.sign(z) * (8 * d + 1) / (8 * d + 3) * np.sqrt(d * np.log1p(z * z / d))
        tail: FloatArray = -log_ndtr(-normal)
        return tail


def t_kernel(distance: FloatArray, freedom: FloatArray, n_coordinates: int) -> FloatArray:
    """Return the log density of a multivariate t at a squared ``distance``, minus that at its centre."""
    kernel: FloatArray = np.log1p(distance / freedom)
    kernel *= (freedom + n_coordinates) / -2
    return kernel


def hold_beyond_turn(ratio: FloatArray, at_turn: FloatArray, above: BoolArray, most: float) -> FloatArray:
    """Return log ratios beyond their turning point, held at the value there but within ``most`` of 0.

    ``above`` says on which side: above it the ratio falls again, below it the ratio rises again.
    """
    return np.where(above, np.maximum(ratio, np.minimum(at_turn, most)), np.minimum(ratio, np.maximum(at_turn, -most)))


def log_height(freedom: FloatArray, n_coordinates: int) -> FloatArray:
    """Return the log density [..., points] of a t of unit volume at its centre, up to a constant.

    Computed once for all points that have the most degrees of freedom of their side: tails are capped, so many do.
    """
    most = freedom.max(axis=-1, keepdims=True, initial=1.0)
    at = np.concatenate([most[..., 0].ravel(), freedom[freedom < most]])
    # gammaln(at / 2 + n_coordinates / 2) - gammaln(at / 2), where every whole step of the gamma function is a log.
    whole, odd = divmod(n_coordinates, 2)
    height = gammaln(at / 2 + 0.5) - gammaln(at / 2) if odd else np.zeros_like(at)
    for step in range(whole):
        height += np.log(at / 2 + odd / 2 + step)
    height -= n_coordinates / 2 * np.log(at)
    heights = np.repeat(height[: most.size].reshape(most.shape), freedom.shape[-1], axis=-1)
    heights[freedom < most] = height[most.size :]
    return heights


@dataclass(frozen=True)
class HeldOut:
    """Held-out references in the role of the target, in cases where their membership is known.

    ``distance``, ``freedom`` and ``log_volume`` [2, cases] relate their signals to the laws of both sides, tails not
    capped; ``clipped_distance`` [2, cases] is that of signals moved back to the turning point, and ``above`` [cases]
    says which lay above it. ``log_likelihood`` [cases] is the log density of the signal in the first coordinate, on the
    original scale, in the law of its own side.
    """

    distance: FloatArray
    freedom: FloatArray
    log_volume: FloatArray
    clipped_distance: FloatArray
    above: BoolArray
    member: BoolArray
    log_likelihood: FloatArray
    n_coordinates: int

    @classmethod
    def of(cls, laws: Laws, x: FloatArray, member: BoolArray, log_slope: FloatArray) -> HeldOut:
        """Return one reference with signals ``x`` [cases, coordinates], bent with this slope [cases]."""
        clipped = laws.clipped_at_turn(x)
        return cls(
            laws.distance(x),
            laws.freedom,
            laws.log_volume,
            laws.distance(clipped),
            x[:, 0] > clipped[:, 0],
            member,
            laws.first_density(x, np.where(member, IN, OUT)) + log_slope,
            x.shape[1],
        )

    @classmethod
    def joined(cls, parts: Sequence[HeldOut]) -> HeldOut:
        """Return all cases of the ``parts``."""

        def join(column: str) -> Array:
            return np.concatenate([vars(part)[column] for part in parts], axis=-1)

        return cls(
            join("distance"),
            join("freedom"),
            join("log_volume"),
            join("clipped_distance"),
            join("above"),
            join("member"),
            join("log_likelihood"),
            parts[0].n_coordinates,
        )

    @property
    def likelihood(self) -> float:
        """Mean log likelihood of the signals."""
        return float(self.log_likelihood.mean())

    def tails(self) -> FloatArray:
        """Return the cap [2] on the degrees of freedom under which each side's own signals are most likely."""
        chosen = np.full(2, DEFAULT_TAIL)
        for side, own in ((IN, self.member), (OUT, ~self.member)):
            if own.any():
                cases = evenly(np.flatnonzero(own), CASES_FOR_TAILS)
                likelihood = self._likelihoods(self.distance[side, cases], self.freedom[side, cases])
                likelihood[-1] += MIN_TAIL_GAIN
                chosen[side] = TAILS[int(np.argmax(likelihood))]
        return chosen

    def _likelihoods(self, distance: FloatArray, freedom: FloatArray) -> list[float]:
        """Return the mean log density of cases, without their volumes, with each of `TAILS` as the cap."""
        own, most = log_height(freedom, self.n_coordinates), log_height(np.array(TAILS), self.n_coordinates)
        likelihoods = []
        for tail, height in zip(TAILS, most, strict=True):
            capped = np.minimum(freedom, tail)
            constant = np.where(freedom < tail, own, height)
            likelihoods.append(float((t_kernel(distance, capped, self.n_coordinates) + constant).mean()))
        return likelihoods

    def hold(self, tails: FloatArray) -> float:
        """Return the bound beyond the turning point; 0 (no hold) only if holding predicts membership clearly worse.

        On real signals, members beyond the turning point are still members; few references may not show it.
        """
        freedom = np.minimum(self.freedom, tails[:, None])
        constant = log_height(freedom, self.n_coordinates) - self.log_volume
        log_in, log_out = t_kernel(self.distance, freedom, self.n_coordinates) + constant
        turn_in, turn_out = t_kernel(self.clipped_distance, freedom, self.n_coordinates) + constant
        free = log_in - log_out
        held = hold_beyond_turn(free, turn_in - turn_out, self.above, HOLD)
        worse = self._loss(held) - self._loss(free)
        return HOLD if worse.mean() < CLEARLY_LARGER * worse.std() / np.sqrt(len(worse)) else 0.0

    def _loss(self, ratio: FloatArray) -> FloatArray:
        """Return the log loss [cases] of membership at even odds."""
        loss: FloatArray = np.logaddexp(0.0, np.where(self.member, -ratio, ratio))
        return loss
