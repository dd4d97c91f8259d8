"""Priors over points: what the spread and the shift of a point's signals are likely to be before its own are seen.

A point has two laws, of its IN and of its OUT signals (index 0 and 1 of every array here), in coordinates that are
nearly uncorrelated over models. Its variance in coordinate j on side s is level_s,j(c) exp(lambda_s): a trend in the
point's centre c, times one factor a side that all coordinates share. The two log factors are jointly Gaussian over
points. Their likelihood is that of a sample variance (a scaled chi-square), so the posterior mode is found by Newton
steps in two dimensions, and the curvature there is that of a scaled inverse chi-square with 2 / variance degrees of
freedom: without a prior exactly those of the sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from plmia.attacks.empirical_bayes.trends import FloatArray, Hats

IN, OUT = 0, 1

# Steps square their error: after one so short there is nothing left to gain.
NEWTON_STEPS, LAST_STEP = 6, 1e-5
# A factor that varies less than this between points (2,000 prior degrees of freedom) is as good as constant.
LEAST_SPREAD = 1e-3
# Assumed where no side has two references anywhere, so that nothing shows it: eight prior degrees of freedom.
ASSUMED_SPREAD = 0.25
# A variance further above the usual is an outlier, and may not rule means and squares.
MOST_FACTOR = 20.0
# Two sides that agree more than this are one.
MOST_CORRELATION = 0.99


@dataclass(frozen=True)
class Evidence:
    """What the references say of some points: counts, means and variances of both sides.

    Parameters
    ----------
    n : float64 array [2, points]
        How many IN and OUT references.
    mean : float64 array [2, points, coordinates]
        Mean signal; anything where there is no reference.
    variance : float64 array [2, points, coordinates]
        Unbiased sample variance, positive; anything positive where there is one reference or none.
    n_pairs : int
        How many complementary pairs there are among the references: each has one IN and one OUT at every point.
    """

    n: FloatArray
    mean: FloatArray
    variance: FloatArray
    n_pairs: int = 0

    @property
    def freedom(self) -> FloatArray:
        """Degrees of freedom [2, points] of a variance in one coordinate."""
        freedom: FloatArray = np.maximum(self.n - 1, 0.0)
        return freedom

    def at(self, points: npt.NDArray[np.bool_]) -> Evidence:
        """The same of some of the points."""
        return Evidence(self.n[:, points], self.mean[:, points], self.variance[:, points], self.n_pairs)

    def out_alone(self) -> Evidence:
        """The same without its IN references: what stands for their moments is not looked at."""
        n, variance = np.zeros_like(self.n), np.ones_like(self.variance)
        n[OUT], variance[OUT] = self.n[OUT], self.variance[OUT]
        return Evidence(n, self.mean, variance)


@dataclass(frozen=True)
class Spread:
    """Posterior of the spread of some points.

    Parameters
    ----------
    log_factor : float64 array [2, points]
        Mode of the log factor lambda, less its prior mean.
    freedom : float64 array [2, points]
        Degrees of freedom of the scaled inverse chi-square that stands for the posterior.
    variance : float64 array [2, points, coordinates]
        Variances at the mode.
    """

    log_factor: FloatArray
    freedom: FloatArray
    variance: FloatArray

    @property
    def scale(self) -> FloatArray:
        """Factor [points] of both sides: their geometric mean."""
        scale: FloatArray = np.exp(self.log_factor.mean(axis=0))
        return scale

    @property
    def excess(self) -> FloatArray:
        """By which share [points] the deviation of the point exceeds what the trend has, both sides together."""
        excess: FloatArray = np.sqrt(self.scale) - 1
        return excess


@dataclass(frozen=True)
class SpreadPrior:
    """Prior of the spread: trends of the variances, and how far points lie off them.

    Parameters
    ----------
    level : float64 array [2, knots, coordinates]
        Mean variance of points around each knot, of very wide ones no more than 20 times what is usual there.
    covariance : float64 array [2, 2]
        Covariance over points of the log factors of the two sides.
    """

    level: FloatArray
    covariance: FloatArray

    @classmethod
    def fit(cls, evidence: Evidence, hats: Hats, pair_correlation: FloatArray) -> SpreadPrior:
        """Estimate by moments.

        Parameters
        ----------
        evidence : Evidence
            Points to learn from.
        hats : Hats
            Where they stand on the trend.
        pair_correlation : float64 array [coordinates]
            Correlation of the two models of a complementary pair; 0 where references are independent.
        """
        freedom = evidence.freedom
        known = freedom.sum(axis=1) > 0
        if not known.any():
            level = np.repeat(_level_without_variances(evidence, hats)[None], 2, axis=0)
            return cls(level, ASSUMED_SPREAD * _one_factor())
        weight = np.where(known[:, None], freedom, 1.0)
        tamed = np.stack([_tame(v, d, hats) for v, d in zip(evidence.variance, weight, strict=True)])
        level = np.stack([hats.means(v, d) for v, d in zip(tamed, weight, strict=True)])
        factor = np.stack([(v / hats.blend(at)).mean(axis=1) for v, at in zip(tamed, level, strict=True)])
        if not known.all():
            # A side with one reference at every point shows no spread: it is taken to be that of the other side.
            level[~known] = level[known]
            spread = _log_spread(factor[known][0], freedom[known][0] * level.shape[2])
            return cls(level, spread * _one_factor())
        return cls(level, _log_covariance(factor, freedom * level.shape[2], float(np.mean(pair_correlation**2))))

    def posterior(self, evidence: Evidence, hats: Hats) -> Spread:
        """Posterior of points with this evidence; exact likelihood, Gaussian prior, found by Newton steps."""
        variance = np.stack([hats.blend(level) for level in self.level])
        freedom = evidence.freedom * variance.shape[2]
        factor = (evidence.variance / variance) @ np.full(variance.shape[2], 1 / variance.shape[2])
        # Relative to the prior mean, at which the mean of the factor is 1.
        prior_mean = -np.diag(self.covariance)[:, None] / 2
        factor *= np.exp(-prior_mean)
        if freedom[IN].any():
            at, error, learned = _mode(factor, freedom / 2, self.covariance)
        else:
            at, error, learned = self._from_out(*_mode(factor[OUT:], freedom[OUT:] / 2, self.covariance[OUT:, OUT:]))
        # An inverse chi-square is skewed as the likelihood is, the Gaussian prior is not: by its share of what is known
        # the mean of the log, not the mode, is to agree.
        log_factor = at + prior_mean - (1 - learned) * error / 2
        variance *= np.exp(log_factor)[:, :, None]
        return Spread(at, 2 / error, variance)

    def _from_out(self, at: FloatArray, error: FloatArray, learned: FloatArray) -> tuple[FloatArray, ...]:
        """Both sides of points without IN references: the IN side follows the OUT side as far as the prior has it."""
        (own, across), (_, other) = self.covariance
        slope = across / other
        return (
            np.concatenate([slope * at, at]),
            np.concatenate([own - slope * across + slope**2 * error, error]),
            np.concatenate([np.zeros_like(learned), learned]),
        )


@dataclass(frozen=True)
class ShiftPrior:
    """Prior of the shift mu_in - mu_out: lines in what is known of the point, and the variance off them.

    Parameters
    ----------
    lines : float64 array [knots, coordinates, features]
        Coefficients of the features around each knot; see `plmia.attacks.empirical_bayes.Fit`.
    spread : float64 array [knots, coordinates]
        Variance of shifts off the line, of a point whose spread is that of the trend; it grows with the spread.
    """

    lines: FloatArray
    spread: FloatArray

    @classmethod
    def fit(
        cls, shift: FloatArray, noise: FloatArray, features: FloatArray, scale: FloatArray, hats: Hats
    ) -> ShiftPrior:
        """Estimate by moments: what sampling does not explain of the shifts' distance from the line is their own.

        Parameters
        ----------
        shift, noise : float64 arrays [points, coordinates]
            Observed shifts, and what is expected of their sampling variance.
        features : float64 array [points, features]
            What the lines are in.
        scale : float64 array [points]
            Factor with which the variance of shifts grows.
        hats : Hats
            Where the points stand on the trend.
        """
        # Both the shifts' own variance and their noise grow with the scale: so weighted, wide points do not rule.
        weight = np.minimum(1 / scale, 1.0)[:, None]
        root = np.sqrt(weight)
        lines = hats.lines(features * root, shift * root)
        off = ((shift - _on_lines(lines, features, hats)) ** 2 - noise) * weight
        spread = np.maximum(hats.sums(off), 0.0) / hats.sums(weight * scale[:, None])
        return cls(lines, spread)

    def at(self, features: FloatArray, scale: FloatArray, hats: Hats) -> tuple[FloatArray, FloatArray]:
        """Prior mean and variance [points, coordinates] of the shift."""
        return _on_lines(self.lines, features, hats), hats.blend(self.spread) * scale[:, None]


def _on_lines(lines: FloatArray, features: FloatArray, hats: Hats) -> FloatArray:
    # Feature by feature: several times as fast as a sum over so short an axis.
    coefficients = hats.blend(lines)
    return sum(
        (coefficients[:, :, k] * features[:, k : k + 1] for k in range(1, lines.shape[2])),
        coefficients[:, :, 0] * features[:, :1],
    )


def _moment(freedom: FloatArray, power: float) -> FloatArray:
    """Mean of a ``power`` of chi-square / freedom."""
    half = np.maximum(freedom, 1.0) / 2
    moment: FloatArray = np.exp(gammaln(half + power) - gammaln(half) - power * np.log(half))
    return moment


def _tame(variance: FloatArray, freedom: FloatArray, hats: Hats) -> FloatArray:
    """Sample variances [points, coordinates], none further above the usual than a heavy tail reaches.

    Usual is the square of the mean deviation around the point's knots.
    """
    deviation = hats.means(np.sqrt(variance) / _moment(freedom, 0.5)[:, None], freedom)
    tamed: FloatArray = np.minimum(variance, MOST_FACTOR * hats.blend(deviation) ** 2)
    return tamed


def _level_without_variances(evidence: Evidence, hats: Hats) -> FloatArray:
    """Variance [knots, coordinates] where each side has one reference at every point: half the variance of the shift.

    That takes the shift to be the same at all points around a knot, and both sides to spread alike.
    """
    shift = evidence.mean[IN] - evidence.mean[OUT]
    ones = np.ones(len(shift))
    off = (shift - hats.blend(hats.means(shift, ones))) ** 2 / 2
    return hats.means(_tame(off + evidence.variance.mean(axis=0), ones, hats), ones)


def _one_factor() -> FloatArray:
    return np.array([[1.0, MOST_CORRELATION], [MOST_CORRELATION, 1.0]])


def _log_spread(factor: FloatArray, freedom: FloatArray) -> float:
    """Variance over points of the log factor, if it is Gaussian: from the first two moments of sample variances.

    With d degrees of freedom the mean square of a sample variance is 1 + 2 / d times that of the variance itself.
    """
    some = freedom > 0
    factor, freedom = factor[some], freedom[some]
    second = float(np.mean(factor**2 * (freedom / (freedom + 2))))
    return max(float(np.log(second / np.mean(factor) ** 2)), LEAST_SPREAD)


def _log_covariance(factor: FloatArray, freedom: FloatArray, pair_square: float) -> FloatArray:
    """Covariance [2, 2] over points of the log factors of both sides.

    Complementary pairs make the sample variances of both sides alike, by the square of the pairs' correlation (as if
    all references came in pairs; others make that less, and the covariance a little too small).
    """
    spread = [_log_spread(f, d) for f, d in zip(factor, freedom, strict=True)]
    both = (freedom > 0).all(axis=0)
    across = 0.0
    if both.any():
        inside, outside = factor[:, both]
        alike = 1 + 2 * pair_square / freedom[:, both].mean(axis=0)
        across = float(np.log(np.mean(inside * outside / alike) / (np.mean(inside) * np.mean(outside))))
    most = MOST_CORRELATION * float(np.sqrt(spread[IN] * spread[OUT]))
    across = min(max(across, -most), most)
    return np.array([[spread[IN], across], [across, spread[OUT]]])


def _mode(factor: FloatArray, half: FloatArray, covariance: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Posterior mode of log factors [sides, points], its variance, and which share of that is learned from the sample.

    From sample variances ``factor`` with twice ``half`` degrees of freedom, and the prior ``covariance`` of the sides.
    """
    precision = np.linalg.inv(covariance).astype(np.float64)
    at = np.zeros_like(factor)
    for _ in range(NEWTON_STEPS):
        ratio = factor * np.exp(-at)
        slope = half * (ratio - 1) - precision @ at
        # The likelihood is nearly flat far above the sample's variance: no step may be longer than 2.
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
    """Diagonal [sides, points] of the inverse of diag(curvature) + precision."""
    if len(precision) == 1:
        return 1 / (curvature + precision)
    a, d, b = curvature[0] + precision[0, 0], curvature[1] + precision[1, 1], precision[0, 1]
    inverse: FloatArray = np.stack([d, a]) / (a * d - b * b)
    return inverse
