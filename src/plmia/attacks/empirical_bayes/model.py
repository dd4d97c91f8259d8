"""The model of points: trends, priors of a point's spread and shift, and the predictive laws of the target's signal.

Trends over points are piecewise linear between knots at quantiles of a covariate. Every point lies between two knots
and counts for both, with the weights of linear interpolation (hat functions). At a knot, a weighted mean or a weighted
least-squares line of the points around it is fitted. A single knot is a constant: a few hundred points support no more.

A point has two laws, of its IN and of its OUT signals (index 0 and 1 of every array), in coordinates that are nearly
uncorrelated over models. Its variance in coordinate j on side s is level_s,j(c) exp(lambda_s): a trend in the point's
centre c, times one factor per side that all coordinates share. The two log factors are jointly Gaussian over points.
Their likelihood is that of a sample variance (a scaled chi-square). The posterior mode is found by Newton steps in two
dimensions. The curvature there is that of a scaled inverse chi-square with 2 / variance degrees of freedom; without a
prior these are exactly the degrees of freedom of the sample. With many references, each coordinate has its own
variance: an inverse chi-square around what the common factor predicts, whose degrees of freedom all points share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
from scipy.special import gammaln, log_ndtr

from plmia.attacks.empirical_bayes.evidence import IN, OUT, Evidence, evenly
from plmia.attacks.view import Mode
from plmia.data.arrays import BoolArray, FloatArray, IntArray
from plmia.data.threads import computed_once
from plmia.numerics import auc_of

# More knots changed nothing on images or tables. Offline, trends are fitted to known non-members alone. Two knots of
# 50 points each are too few for a hundred: the root of the number of points over 3 gives three, and five for 250.
MAX_KNOTS = 8
POINTS_PER_KNOT = 50
ROOT_PER_KNOT = 3
# Eigenvalues below this share of the largest one are taken for 0.
MIN_EIGENVALUE = 1e-9


@dataclass(frozen=True)
class Hats:
    """Position of some points between the knots."""

    n_knots: int
    left: IntArray  # [points]: the knot to the left of each point; the last but one beyond the last knot
    share: FloatArray  # [points]: weight, from 0 to 1, of the knot to the right

    @computed_once
    def weights(self) -> FloatArray:
        """Weight [points, knots] of every knot. Most are 0, but a matrix product with few knots is fast."""
        weights, points = np.zeros((len(self.left), self.n_knots)), np.arange(len(self.left))
        weights[points, self.left] = 1 - self.share
        if self.n_knots > 1:
            weights[points, self.left + 1] = self.share
        return weights

    def sums(self, values: FloatArray) -> FloatArray:
        """Return weighted sums [knots, columns] of ``values`` [points, columns] around each knot."""
        return np.asarray(self.weights.T @ values)

    def means(self, values: FloatArray, weights: FloatArray) -> FloatArray:
        """Return weighted means [knots, columns] around each knot; where the weight is 0, of all points."""
        total, weight = self.sums(values * weights[:, None]), self.sums(weights[:, None])
        overall = total.sum(axis=0) / weight.sum()
        return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), overall)

    def lines(self, features: FloatArray, values: FloatArray) -> FloatArray:
        """Return least-squares coefficients [knots, columns, features] of ``values`` [points, columns]."""
        n, n_features = features.shape
        products = features[:, :, None] * np.concatenate([features, values], axis=1)[:, None, :]
        sums = self.sums(products.reshape(n, -1)).reshape(self.n_knots, n_features, -1)
        return solve_symmetric(sums[:, :, :n_features], sums[:, :, n_features:]).transpose(0, 2, 1)

    def blend(self, at_knots: FloatArray) -> FloatArray:
        """Interpolate values [points, ...] from those at the knots [knots, ...]."""
        if self.n_knots == 1:
            return np.broadcast_to(at_knots[0], (len(self.left), *at_knots.shape[1:]))
        blended: FloatArray = self.weights @ at_knots.reshape(self.n_knots, -1)
        return blended.reshape(-1, *at_knots.shape[1:])


def solve_symmetric(gram: FloatArray, moments: FloatArray) -> FloatArray:
    """Return the pseudo-inverse of symmetric matrices ``gram`` [..., n, n], times ``moments`` [..., n, columns].

    It drops a feature that does not vary, such as a spread that all points share.
    """
    # As numpy.linalg.pinv, which spends most of its time on sorting eigenvalues of such small matrices.
    values, vectors = np.linalg.eigh(gram)
    size = np.abs(values)
    kept = size > MIN_EIGENVALUE * size.max(axis=-1, keepdims=True)
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=kept)
    return np.asarray(vectors @ (inverse[..., None] * (np.swapaxes(vectors, -1, -2) @ moments)))


@dataclass(frozen=True)
class Knots:
    """Knots of a trend, in increasing order."""

    at: FloatArray
    low: float  # range of the covariate when the knots were placed; beyond it trends stay constant
    high: float

    @classmethod
    def place(cls, covariate: FloatArray, most: int = MAX_KNOTS, mode: Mode = "online") -> Knots:
        """Place knots at evenly spaced quantiles of ``covariate``, at most ``most``; offline more of few points."""
        wanted = len(covariate) // POINTS_PER_KNOT if mode == "online" else round(len(covariate) ** 0.5 / ROOT_PER_KNOT)
        n = int(np.clip(wanted, 1, most))
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
    """Posterior of the spread of some points, approximated by a scaled inverse chi-square."""

    log_factor: FloatArray  # [2, points]: mode of lambda minus its prior mean
    freedom: FloatArray  # [2, points]: degrees of freedom
    variance: FloatArray  # [2, points, coordinates], at the mode

    @property
    def scale(self) -> FloatArray:
        """Geometric mean [points] of the factors of both sides."""
        return np.asarray(np.exp(self.log_factor.mean(axis=0)))

    @property
    def excess(self) -> FloatArray:
        """Share [points] by which the deviation of the point exceeds that of the trend, both sides together."""
        return np.asarray(np.sqrt(self.scale) - 1)


@dataclass(frozen=True)
class SpreadPrior:
    """Prior of the spread."""

    level: FloatArray  # [2, knots, coordinates]: mean variance of points around each knot, with outliers capped
    covariance: FloatArray  # [2, 2]: of the log factors of the two sides over points
    # [2, coordinates], or 0: inverse prior degrees of freedom of a coordinate's variance around the common factor.
    inverse_freedom: FloatArray = field(default_factory=lambda: np.zeros((2, 1)))

    @classmethod
    def fit(cls, evidence: Evidence, hats: Hats, pair_correlation: FloatArray) -> SpreadPrior:
        """Estimate by moments from points with this evidence, at these places of the trend."""
        prior = cls._with_common_factors(evidence, hats, pair_correlation)
        if prior.level.shape[2] == 1:  # the factor is the coordinate's own
            return prior
        return replace(prior, inverse_freedom=prior._inverse_freedom(evidence, hats))

    def _inverse_freedom(self, evidence: Evidence, hats: Hats) -> FloatArray:
        """Return `inverse_freedom`, from two moments of sample variances relative to what common factors explain."""
        ratio = np.minimum(evidence.variance / self.posterior(evidence, hats).variance, MAX_FACTOR)
        inverse = np.zeros((2, ratio.shape[2]))
        for side, freedom in enumerate(evidence.freedom):
            some = freedom > 0
            if some.any():
                # With d degrees of freedom, an inverse chi-square has the mean square (d - 2) / (d - 4) at mean 1.
                excess = np.maximum(_mean_squares(ratio[side, some], freedom[some]) - 1, 0.0)
                inverse[side] = excess / (4 * excess + 2)
        return inverse

    @classmethod
    def _with_common_factors(cls, evidence: Evidence, hats: Hats, pair_correlation: FloatArray) -> SpreadPrior:
        """Estimate the trend and the common factors."""
        # ``pair_correlation`` [coordinates] is that of complementary pairs; 0 if references are independent.
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
        if self.inverse_freedom.any():
            weight = evidence.freedom[:, :, None] * self.inverse_freedom[:, None, :]
            weight /= 1 + weight
            variance += weight * (evidence.variance - variance)
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
    """Prior of the shift mu_in - mu_out: lines in known features of the point, and the variance around them."""

    lines: FloatArray  # [knots, coordinates, features]: coefficients around each knot; see `Fit` for the features
    spread: FloatArray  # [knots, coordinates]: variance around the line of a point whose spread is that of the trend

    @classmethod
    def fit(
        cls, shift: FloatArray, noise: FloatArray, features: FloatArray, scale: FloatArray, hats: Hats
    ) -> ShiftPrior:
        """Estimate by moments: the variance around the line minus the sampling variance."""
        # ``shift`` and ``noise`` [points, coordinates] are observed shifts and their expected sampling variance; the
        # variance of shifts grows with ``scale`` [points].
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
    return np.asarray(np.exp(gammaln(half + power) - gammaln(half) - power * np.log(half)))


def _cap_outliers(variance: FloatArray, freedom: FloatArray, hats: Hats) -> FloatArray:
    """Cap sample variances [points, coordinates] at a multiple of the squared mean deviation around the knots."""
    deviation = hats.means(np.sqrt(variance) / _moment(freedom, 0.5)[:, None], freedom)
    return np.asarray(np.minimum(variance, MAX_FACTOR * hats.blend(deviation) ** 2))


def _level_without_variances(evidence: Evidence, hats: Hats) -> FloatArray:
    """Return the variance [knots, coordinates] if each side has one reference per point: half that of the shift."""
    # Assumes that all points around a knot have the same shift, and that both sides have the same spread.
    shift = evidence.mean[IN] - evidence.mean[OUT]
    ones = np.ones(len(shift))
    off = (shift - hats.blend(hats.means(shift, ones))) ** 2 / 2
    return hats.means(_cap_outliers(off + evidence.variance.mean(axis=0), ones, hats), ones)


def _one_factor() -> FloatArray:
    return np.array([[1.0, MAX_CORRELATION], [MAX_CORRELATION, 1.0]])


def _mean_squares(variance: FloatArray, freedom: FloatArray) -> FloatArray:
    """Return the mean square [columns] over points of the variances behind sample variances [points, columns].

    It is relative to their squared mean.
    """
    # With d degrees of freedom the mean square of a sample variance is 1 + 2 / d times that of the variance itself.
    shown = (freedom / (freedom + 2))[:, None]
    return np.asarray(np.mean(variance**2 * shown, axis=0) / np.mean(variance, axis=0) ** 2)


def _log_spread(factor: FloatArray, freedom: FloatArray) -> float:
    """Return the variance over points of the log factor, assumed Gaussian, from two moments of sample variances."""
    some = freedom > 0
    return max(float(np.log(_mean_squares(factor[some, None], freedom[some]))[0]), MIN_SPREAD)


def _log_covariance(factor: FloatArray, freedom: FloatArray, pair_square: float) -> FloatArray:
    """Return the covariance [2, 2] over points of the log factors of both sides."""
    # Complementary pairs correlate the sample variances of both sides, by the square of the pairs' correlation. This
    # assumes that all references come in pairs; if not, the covariance is a little too small.
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
    """Return the posterior mode of log factors [sides, points], its variance, and the share learned from the sample."""
    # From sample variances ``factor`` with twice ``half`` degrees of freedom, and the prior ``covariance`` of the
    # sides.
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
    return np.asarray(np.stack([d, a]) / (a * d - b * b))


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


def is_clearly_larger(difference: FloatArray) -> bool:
    """Whether differences of losses are positive on average, by more than chance."""
    return not difference.mean() < CLEARLY_LARGER * difference.std() / np.sqrt(len(difference))


@dataclass(frozen=True)
class Laws:
    """Predictive laws of the target's signal if it is IN and if it is OUT: multivariate t, coordinates uncorrelated."""

    mean: FloatArray  # [2, points, coordinates]
    variance: FloatArray  # [2, points, coordinates]: squared scale
    freedom: FloatArray  # [2, points]: degrees of freedom

    def distance(self, x: FloatArray) -> FloatArray:
        """Return squared distances [2, points] of ``x`` [points, coordinates] from the centres, in scales."""
        distance = x - self.mean
        np.square(distance, out=distance)
        distance /= self.variance
        # Several times as fast as a sum over so short an axis.
        return np.asarray(distance @ np.ones(x.shape[1]))

    def clipped_at_turn(self, x: FloatArray) -> FloatArray:
        """Return ``x`` [points, coordinates] with its first coordinate moved back to the turning point of the ratio."""
        # With a narrower IN law the ratio falls again above some signal; with a wider one it rises again below some.
        # Signals on the near side of the turning point are unchanged.
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
        return np.asarray(np.log(self.variance) @ np.full(self.variance.shape[2], 0.5))

    def log_ratio(self, x: FloatArray) -> FloatArray:
        """Return the log density [points] of ``x`` if IN minus that if OUT."""
        log_density = t_kernel(self.distance(x), self.freedom, x.shape[1])
        log_density += log_height(self.freedom, x.shape[1])
        log_density -= self.log_volume
        return np.asarray(log_density[IN] - log_density[OUT])

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
        """Return minus the log probability [points] that an OUT model exceeds ``x`` in the first coordinate."""
        # Uses Wallace's normal approximation of t, which is finite and increasing in ``x`` everywhere.
        d = self.freedom[OUT]
        z = (x - self.mean[OUT])[:, 0] / np.sqrt(self.variance[OUT][:, 0])
        normal = np.sign(z) * (8 * d + 1) / (8 * d + 3) * np.sqrt(d * np.log1p(z * z / d))
        return np.asarray(-log_ndtr(-normal))


def t_kernel(distance: FloatArray, freedom: FloatArray, n_coordinates: int) -> FloatArray:
    """Return the log density of a multivariate t at a squared ``distance``, minus that at its centre."""
    kernel: FloatArray = np.log1p(distance / freedom)
    kernel *= (freedom + n_coordinates) / -2
    return kernel


def hold_beyond_turn(ratio: FloatArray, at_turn: FloatArray, above: BoolArray, most: float) -> FloatArray:
    """Return log ratios beyond their turning point, held at the value there but within ``most`` of 0."""
    # ``above`` says on which side: above it the ratio falls again, below it the ratio rises again.
    return np.where(above, np.maximum(ratio, np.minimum(at_turn, most)), np.minimum(ratio, np.maximum(at_turn, -most)))


def log_height(freedom: FloatArray, n_coordinates: int) -> FloatArray:
    """Return the log density [..., points] of a t of unit volume at its centre, up to a constant."""
    # Computed once for all points that have the most degrees of freedom of their side: tails are capped, so many do.
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
    """Held-out references in the role of the target: [2, cases] in the laws of both sides, or [cases]."""

    distance: FloatArray  # [2, cases], like the next two: with tails that are not capped
    freedom: FloatArray
    log_volume: FloatArray
    clipped_distance: FloatArray  # [2, cases]: of signals moved back to the turning point
    above: BoolArray  # [cases]: whether the signal lay above the turning point
    member: BoolArray  # [cases]: known membership
    log_likelihood: FloatArray  # [cases]: of the first coordinate on the original scale, in the law of its own side
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
        names = [each.name for each in fields(cls) if each.name != "n_coordinates"]
        columns = {name: np.concatenate([vars(part)[name] for part in parts], axis=-1) for name in names}
        return cls(**columns, n_coordinates=parts[0].n_coordinates)

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
        """Return the bound beyond the turning point; 0 (no hold) only if holding predicts membership clearly worse."""
        return self._bound(*self._ratios(tails))

    def _bound(self, free: FloatArray, held: FloatArray) -> float:
        # On real signals, members beyond the turning point are still members; few references may not show it.
        worse = self._loss(held) - self._loss(free)
        return 0.0 if is_clearly_larger(worse) else HOLD

    def loss(self) -> FloatArray:
        """Return the log loss [cases] of membership at even odds, with tails that are not capped and no hold."""
        return self._loss(self._ratios(np.full(2, np.inf))[0])

    def auc(self) -> float:
        """Return the probability that a member has a larger ratio than a non-member."""
        free, held = self._ratios(self.tails())
        return auc_of(held if self._bound(free, held) else free, self.member)

    def _ratios(self, tails: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the log ratios [cases] as they are, and held beyond their turning points."""
        freedom = np.minimum(self.freedom, tails[:, None])
        constant = log_height(freedom, self.n_coordinates) - self.log_volume
        log_in, log_out = t_kernel(self.distance, freedom, self.n_coordinates) + constant
        turn_in, turn_out = t_kernel(self.clipped_distance, freedom, self.n_coordinates) + constant
        free = log_in - log_out
        return free, hold_beyond_turn(free, turn_in - turn_out, self.above, HOLD)

    def _loss(self, ratio: FloatArray) -> FloatArray:
        """Return the log loss [cases] of membership at even odds."""
        return np.asarray(np.logaddexp(0.0, np.where(self.member, -ratio, ratio)))
