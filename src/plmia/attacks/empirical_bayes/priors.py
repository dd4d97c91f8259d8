"""Priors over points: the likely spread and shift of a point's signals before its own references are seen.

A point has two laws, of its IN and of its OUT signals (index 0 and 1 of every array), in coordinates that are nearly
uncorrelated over models. Its variance in coordinate j on side s is level_s,j(c) exp(lambda_s): a trend in the point's
centre c, times one factor per side that all coordinates share. The two log factors are jointly Gaussian over points.
Their likelihood is that of a sample variance (a scaled chi-square). The posterior mode is found by Newton steps in two
dimensions. The curvature there is that of a scaled inverse chi-square with 2 / variance degrees of freedom; without a
prior these are exactly the degrees of freedom of the sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from plmia.attacks.empirical_bayes.evidence import IN, OUT, Evidence
from plmia.attacks.empirical_bayes.trends import Hats
from plmia.data.arrays import FloatArray

# Newton steps square their error: after such a short step nothing is left to gain.
NEWTON_STEPS, LAST_STEP = 6, 1e-5
# A log factor with less variance between points (2,000 prior degrees of freedom) is practically constant.
MIN_SPREAD = 1e-3
# Assumed if no side has two references anywhere: eight prior degrees of freedom.
ASSUMED_SPREAD = 0.25
# A variance further above the usual one is an outlier and must not dominate means and squares.
MAX_FACTOR = 20.0
# Two sides that correlate more than this count as one.
MAX_CORRELATION = 0.99


@dataclass(frozen=True)
class Spread:
    """Posterior of the spread of some points.

    ``log_factor`` [2, points] is the mode of lambda minus its prior mean. ``freedom`` [2, points] are the degrees of
    freedom of the scaled inverse chi-square that approximates it. ``variance`` [2, points, coordinates] is at the mode.
    """

    log_factor: FloatArray
    freedom: FloatArray
    variance: FloatArray

    @property
    def scale(self) -> FloatArray:
        """Geometric mean [points] of the factors of both sides."""
        scale: FloatArray = np.exp(self.log_factor.mean(axis=0))
        return scale

    @property
    def excess(self) -> FloatArray:
        """Share [points] by which the deviation of the point exceeds that of the trend, both sides together."""
        excess: FloatArray = np.sqrt(self.scale) - 1
        return excess


@dataclass(frozen=True)
class SpreadPrior:
    """Prior of the spread.

    ``level`` [2, knots, coordinates] is the mean variance of points around each knot, with outliers capped.
    ``covariance`` [2, 2] is that of the log factors of the two sides over points.
    """

    level: FloatArray
    covariance: FloatArray

    @classmethod
    def fit(cls, evidence: Evidence, hats: Hats, pair_correlation: FloatArray) -> SpreadPrior:
        """Estimate by moments from points with this evidence, at these places of the trend.

        ``pair_correlation`` [coordinates] is that of complementary pairs; 0 if references are independent.
        """
        freedom = evidence.freedom
        known = freedom.sum(axis=1) > 0
        if not known.any():
            level = np.repeat(_level_without_variances(evidence, hats)[None], 2, axis=0)
            return cls(level, ASSUMED_SPREAD * _one_factor())
        weight = np.where(known[:, None], freedom, 1.0)
        capped = np.stack([_cap_outliers(v, d, hats) for v, d in zip(evidence.variance, weight, strict=True)])
        level = np.stack([hats.means(v, d) for v, d in zip(capped, weight, strict=True)])
        factor = np.stack([(v / hats.blend(at)).mean(axis=1) for v, at in zip(capped, level, strict=True)])
        if not known.all():
            # A side with one reference at every point shows no spread: it takes that of the other side.
            level[~known] = level[known]
            spread = _log_spread(factor[known][0], freedom[known][0] * level.shape[2])
            return cls(level, spread * _one_factor())
        return cls(level, _log_covariance(factor, freedom * level.shape[2], float(np.mean(pair_correlation**2))))

    def posterior(self, evidence: Evidence, hats: Hats) -> Spread:
        """Return the posterior of points with this evidence: exact likelihood, Gaussian prior, Newton steps."""
        variance = np.stack([hats.blend(level) for level in self.level])
        freedom = evidence.freedom * variance.shape[2]
        factor = (evidence.variance / variance) @ np.full(variance.shape[2], 1 / variance.shape[2])
        # Relative to the prior mean, where the mean of the factor is 1.
        prior_mean = -np.diag(self.covariance)[:, None] / 2
        factor *= np.exp(-prior_mean)
        if freedom[IN].any():
            at, error, learned = _mode(factor, freedom / 2, self.covariance)
        else:
            at, error, learned = self._from_out(*_mode(factor[OUT:], freedom[OUT:] / 2, self.covariance[OUT:, OUT:]))
        # An inverse chi-square is skewed like the likelihood; the Gaussian prior is not. In proportion to the prior's
        # share, the mean of the log must agree instead of the mode.
        log_factor = at + prior_mean - (1 - learned) * error / 2
        variance *= np.exp(log_factor)[:, :, None]
        return Spread(at, 2 / error, variance)

    def _from_out(self, at: FloatArray, error: FloatArray, learned: FloatArray) -> tuple[FloatArray, ...]:
        """Return both sides of points without IN references: the prior predicts the IN side from the OUT side."""
        (own, across), (_, other) = self.covariance
        slope = across / other
        return (
            np.concatenate([slope * at, at]),
            np.concatenate([own - slope * across + slope**2 * error, error]),
            np.concatenate([np.zeros_like(learned), learned]),
        )


@dataclass(frozen=True)
class ShiftPrior:
    """Prior of the shift mu_in - mu_out: lines in known features of the point, and the variance around them.

    ``lines`` [knots, coordinates, features] holds the coefficients around each knot; see `Fit` for the features.
    ``spread`` [knots, coordinates] is the variance around the line for a point whose spread is that of the trend.
    """

    lines: FloatArray
    spread: FloatArray

    @classmethod
    def fit(
        cls, shift: FloatArray, noise: FloatArray, features: FloatArray, scale: FloatArray, hats: Hats
    ) -> ShiftPrior:
        """Estimate by moments: the variance around the line minus the sampling variance.

        ``shift`` and ``noise`` [points, coordinates] are observed shifts and their expected sampling variance; the
        variance of shifts grows with ``scale`` [points].
        """
        # Variance and noise of shifts grow with the scale: with these weights, wide points do not dominate.
        weight = np.minimum(1 / scale, 1.0)[:, None]
        root = np.sqrt(weight)
        lines = hats.lines(features * root, shift * root)
        off = ((shift - _on_lines(lines, features, hats)) ** 2 - noise) * weight
        spread = np.maximum(hats.sums(off), 0.0) / hats.sums(weight * scale[:, None])
        return cls(lines, spread)

    def at(self, features: FloatArray, scale: FloatArray, hats: Hats) -> tuple[FloatArray, FloatArray]:
        """Return the prior mean and variance [points, coordinates] of the shift."""
        return _on_lines(self.lines, features, hats), hats.blend(self.spread) * scale[:, None]


def _on_lines(lines: FloatArray, features: FloatArray, hats: Hats) -> FloatArray:
    # Feature by feature: several times as fast as a sum over so short an axis.
    coefficients = hats.blend(lines)
    return sum(
        (coefficients[:, :, k] * features[:, k : k + 1] for k in range(1, lines.shape[2])),
        coefficients[:, :, 0] * features[:, :1],
    )


def _moment(freedom: FloatArray, power: float) -> FloatArray:
    """Return the mean of a ``power`` of chi-square / freedom."""
    half = np.maximum(freedom, 1.0) / 2
    moment: FloatArray = np.exp(gammaln(half + power) - gammaln(half) - power * np.log(half))
    return moment


def _cap_outliers(variance: FloatArray, freedom: FloatArray, hats: Hats) -> FloatArray:
    """Cap sample variances [points, coordinates] at a multiple of the squared mean deviation around the knots."""
    deviation = hats.means(np.sqrt(variance) / _moment(freedom, 0.5)[:, None], freedom)
    capped: FloatArray = np.minimum(variance, MAX_FACTOR * hats.blend(deviation) ** 2)
    return capped


def _level_without_variances(evidence: Evidence, hats: Hats) -> FloatArray:
    """Return the variance [knots, coordinates] if each side has one reference per point: half that of the shift.

    Assumes that all points around a knot have the same shift, and that both sides have the same spread.
    """
    shift = evidence.mean[IN] - evidence.mean[OUT]
    ones = np.ones(len(shift))
    off = (shift - hats.blend(hats.means(shift, ones))) ** 2 / 2
    return hats.means(_cap_outliers(off + evidence.variance.mean(axis=0), ones, hats), ones)


def _one_factor() -> FloatArray:
    return np.array([[1.0, MAX_CORRELATION], [MAX_CORRELATION, 1.0]])


def _log_spread(factor: FloatArray, freedom: FloatArray) -> float:
    """Return the variance over points of the log factor, assumed Gaussian, from two moments of sample variances.

    With d degrees of freedom the mean square of a sample variance is 1 + 2 / d times that of the variance itself.
    """
    some = freedom > 0
    factor, freedom = factor[some], freedom[some]
    second = float(np.mean(factor**2 * (freedom / (freedom + 2))))
    return max(float(np.log(second / np.mean(factor) ** 2)), MIN_SPREAD)


def _log_covariance(factor: FloatArray, freedom: FloatArray, pair_square: float) -> FloatArray:
    """Return the covariance [2, 2] over points of the log factors of both sides.

    Complementary pairs correlate the sample variances of both sides, by the square of the pairs' correlation. This
    assumes that all references come in pairs; if not, the covariance is a little too small.
    """
    spread = [_log_spread(f, d) for f, d in zip(factor, freedom, strict=True)]
    both = (freedom > 0).all(axis=0)
    across = 0.0
    if both.any():
        inside, outside = factor[:, both]
        alike = 1 + 2 * pair_square / freedom[:, both].mean(axis=0)
        across = float(np.log(np.mean(inside * outside / alike) / (np.mean(inside) * np.mean(outside))))
    most = MAX_CORRELATION * float(np.sqrt(spread[IN] * spread[OUT]))
    across = min(max(across, -most), most)
    return np.array([[spread[IN], across], [across, spread[OUT]]])


def _mode(factor: FloatArray, half: FloatArray, covariance: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the posterior mode of log factors [sides, points], its variance, and the share learned from the sample.

    From sample variances ``factor`` with twice ``half`` degrees of freedom, and the prior ``covariance`` of the sides.
    """
    precision = np.linalg.inv(covariance).astype(np.float64)
    at = np.zeros_like(factor)
    for _ in range(NEWTON_STEPS):
        ratio = factor * np.exp(-at)
        slope = half * (ratio - 1) - precision @ at
        # Far above the sample variance the likelihood is nearly flat: no step may be longer than 2.
        step = _solve(half * np.maximum(ratio, 0.5), precision, slope)
        at += np.clip(step, -2.0, 2.0)
        if np.abs(step).max(initial=0.0) < LAST_STEP:
            break
    curvature = half * factor * np.exp(-at)
    error = _inverse_diagonal(curvature, precision)
    return at, error, curvature * error


def _solve(curvature: FloatArray, precision: FloatArray, slope: FloatArray) -> FloatArray:
    """Solve (diag(curvature) + precision) x = slope [sides, points] at every point."""
    if len(precision) == 1:
        return slope / (curvature + precision)
    a, d, b = curvature[0] + precision[0, 0], curvature[1] + precision[1, 1], precision[0, 1]
    solution: FloatArray = np.stack([d * slope[0] - b * slope[1], a * slope[1] - b * slope[0]])
    solution /= a * d - b * b
    return solution


def _inverse_diagonal(curvature: FloatArray, precision: FloatArray) -> FloatArray:
    """Return the diagonal [sides, points] of the inverse of diag(curvature) + precision."""
    if len(precision) == 1:
        return 1 / (curvature + precision)
    a, d, b = curvature[0] + precision[0, 0], curvature[1] + precision[1, 1], precision[0, 1]
    inverse: FloatArray = np.stack([d, a]) / (a * d - b * b)
    return inverse
