"""Attacks that were published after the paper: BaVarIA, BASE, InfoRMIA and quantile regression.

Their statistics and calibrations are here; the attacks themselves are `plmia.attacks.attack.RIVALS`. Default runs do
not include them. Each class names its source, and which reading was taken where a detail could not be verified.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
from scipy.special import gammaln, log_ndtr, stdtr

from plmia.attacks.calibration import Calibration
from plmia.attacks.conditional import SMALLEST_EXCESS, assign_folds, require_features, require_spread, trees_of
from plmia.attacks.statistics import (
    BayesLR,
    Fitted,
    Gaussian,
    GivenValues,
    PointwiseStatistic,
    Statistic,
    log_mean_probability,
    log_probability,
    require_references,
)
from plmia.attacks.view import AttackView, Block, Mode, SideMoments, SumName
from plmia.data.arrays import Counts, FloatArray, IntArray
from plmia.errors import AttackError, ReferencesError

# A prior that counts as more references than this cannot be told from a fixed value.
MOST_PRIOR_REFERENCES = 1e6
# Below this, a tail probability is computed from its asymptotic expansion.
SMALLEST_TAIL = 1e-290


@dataclass(frozen=True)
class NormalInverseGamma:
    """Conjugate prior of the signals of one side: sigma^2 ~ InvGamma(a, b), mu | sigma^2 ~ N(mean, sigma^2 / n_mean).

    Parameters
    ----------
    mean : float
        Prior mean.
    n_mean : float
        Number of references that the prior mean counts as.
    a, b : float
        Shape and scale of the inverse gamma law of the variance.
    """

    mean: float
    n_mean: float
    a: float
    b: float

    @classmethod
    def estimate(cls, moments: SideMoments) -> NormalInverseGamma:
        """Estimate the prior from the moments of all records and views.

        The mean and the variance of sigma^2 are those of the unbiased variances, after the sampling variance
        2 sigma^4 / (n - 1) is subtracted. The spread of mu is that of the means, after sigma^2 / n is subtracted.
        """
        several = moments.n >= 2
        if not several.any():
            raise ReferencesError(
                f"BaVarIA needs a record with 2 {moments.side} references to estimate its prior, all records have "
                f"{moments.n.max()}: train more references"
            )
        n = moments.n[several][:, None]
        variance = (moments.variance + moments.rounding)[several] * (n / (n - 1))
        expected, noise = float(variance.mean()), float((2 / (n - 1)).mean())
        spread = (float(variance.var()) - noise * expected**2) / (1 + noise)
        a = 2 + expected**2 / max(spread, expected**2 / MOST_PRIOR_REFERENCES)
        between = float(moments.mean.var()) / expected - float((1 / moments.n).mean())
        return cls(float(moments.mean.mean()), 1 / max(between, 1 / MOST_PRIOR_REFERENCES), a, expected * (a - 1))

    def given(self, moments: SideMoments) -> NormalInverseGammas:
        """Return the posterior of each record and view."""
        n = moments.n[:, None].astype(np.float64)
        total = self.n_mean + n
        squares = n * (moments.variance + moments.rounding)
        squares = squares + self.n_mean * n / total * (moments.mean - self.mean) ** 2
        mean = (self.n_mean * self.mean + n * moments.mean) / total
        return NormalInverseGammas(mean, total, self.a + n / 2, self.b + squares / 2)


@dataclass(frozen=True)
class NormalInverseGammas:
    """Normal-inverse-gamma laws of all records and views: arrays that broadcast to [records, views]."""

    mean: FloatArray
    n_mean: FloatArray
    a: FloatArray
    b: FloatArray


class Predictive(Protocol):
    """Law of the signal of one more model, given the posterior of its mean and variance."""

    @abstractmethod
    def log_density(self, x: FloatArray, law: NormalInverseGammas) -> FloatArray:
        """Return the log density of ``x`` [records, views], up to a constant that is the same for all laws."""

    @abstractmethod
    def log_tail(self, x: FloatArray, law: NormalInverseGammas) -> FloatArray:
        """Return the log probability of a signal above ``x`` [records, views]."""


@dataclass(frozen=True)
class StudentPredictive(Predictive):
    """The exact predictive law: Student-t with 2 a degrees of freedom and squared scale b / a (1 + 1 / n_mean)."""

    def log_density(self, x: FloatArray, law: NormalInverseGammas) -> FloatArray:
        """Return the log density, without the constant log(2 pi) / 2."""
        t, scale = _standardised(x, law)
        height = gammaln(law.a + 0.5) - gammaln(law.a) - 0.5 * np.log(law.a) - np.log(scale)
        return np.asarray(height - (law.a + 0.5) * np.log1p(t**2 / (2 * law.a)))

    def log_tail(self, x: FloatArray, law: NormalInverseGammas) -> FloatArray:
        """Return the log tail probability; finite however small it is."""
        t, scale = _standardised(x, law)
        freedom = np.broadcast_to(2 * law.a, t.shape)
        tail = stdtr(freedom, -t)
        far = tail < SMALLEST_TAIL
        # The first two terms of the expansion of the tail over the density.
        large = np.where(far, t, 10.0)
        ratio = (large**2 + freedom) / (freedom * large) * (1 - freedom / ((freedom + 2) * large**2))
        density = self.log_density(x, law) + np.log(scale) - 0.5 * np.log(2 * np.pi)
        return np.where(far, density + np.log(ratio), np.log(np.where(far, 1.0, tail)))


def _standardised(x: FloatArray, law: NormalInverseGammas) -> tuple[FloatArray, FloatArray]:
    scale = np.sqrt(law.b / law.a * (1 + 1 / law.n_mean))
    return (x - law.mean) / scale, scale


@dataclass(frozen=True)
class NormalPredictive(Predictive):
    """A Gaussian with the posterior means of mu and of sigma^2."""

    def log_density(self, x: FloatArray, law: NormalInverseGammas) -> FloatArray:
        """Return the log density, without the constant log(2 pi) / 2."""
        return Gaussian(law.mean, law.b / (law.a - 1)).log_density(x)

    def log_tail(self, x: FloatArray, law: NormalInverseGammas) -> FloatArray:
        """Return the log tail probability."""
        return np.asarray(log_ndtr((law.mean - x) / np.sqrt(law.b / (law.a - 1))))


@dataclass(frozen=True)
class ConjugateLR(Statistic):
    """Log likelihood ratio of two predictive laws with one conjugate prior per side: the statistic of BaVarIA.

    Source: R. Brännvall, "Exponential-family membership inference: from LiRA and RMIA to BaVarIA", arXiv:2603.11799,
    2026. It has normal-inverse-gamma priors, a Student-t predictive law (BaVarIA-t) and a Gaussian one with a
    stabilised variance (BaVarIA-n). Readings taken here: each side has one prior for all records and views, estimated
    by the method of moments; the stabilised variance is the posterior mean; offline, the statistic is one-sided as in
    LiRA: minus the log probability that an OUT model is more confident than the target.

    Parameters
    ----------
    predictive : Predictive
        Student-t or Gaussian predictive law.
    """

    predictive: Predictive = field(default_factory=StudentPredictive)
    uses: ClassVar[frozenset[SumName]] = frozenset({"confidence"})

    def fit(self, view: AttackView) -> FittedConjugateLR:
        """Require one reference per record and side, and estimate the priors."""
        n_in = view.references.n_in
        require_references(len(view.references) - n_in, 1, "OUT", "BaVarIA")
        outside = NormalInverseGamma.estimate(view.whole().out_moments)
        if view.mode == "offline":
            return FittedConjugateLR(self.predictive, outside)
        require_references(n_in, 1, "IN", "BaVarIA")
        return FittedConjugateLR(self.predictive, outside, NormalInverseGamma.estimate(view.whole().in_moments))

    def fit_uses(self) -> frozenset[SumName]:
        """Return the sums of confidences: all records shape the priors."""
        return self.uses


@dataclass(frozen=True)
class FittedConjugateLR(Fitted):
    """A conjugate likelihood ratio with its priors; offline there is no IN prior."""

    predictive: Predictive
    outside: NormalInverseGamma
    inside: NormalInverseGamma | None = None

    def __call__(self, block: Block) -> FloatArray:
        """Return phi [n, views]."""
        outside = self.outside.given(block.out_moments)
        if self.inside is None:
            return -self.predictive.log_tail(block.target, outside)
        inside = self.inside.given(block.in_moments)
        return self.predictive.log_density(block.target, inside) - self.predictive.log_density(block.target, outside)


@dataclass(frozen=True)
class ScaledBayesLR(PointwiseStatistic):
    """log p_t - log pbar online, log p_t - scale log pbar_out offline: the statistic of BASE.

    Source: M. Lassila, J. Östman, K.-H. Ngo, "Practical Bayes-optimal membership inference attacks", arXiv:2505.24089,
    2025, and the implementation of its authors, from which the offline form and the default scale are taken. That
    implementation divides logits by a temperature of 2. Readings taken here: a temperature of 1, since a signal is one
    number per record.

    Parameters
    ----------
    scale : float
        Offline factor of the log mean probability of the OUT references, in [0, 1].
    """

    scale: float = 0.33
    uses: ClassVar[frozenset[SumName]] = frozenset({"probability"})

    def __post_init__(self) -> None:
        if not 0 <= self.scale <= 1:
            raise AttackError(f"the offline scale {self.scale} of BASE lies outside [0, 1]: its authors use 0.33")

    def fit(self, view: AttackView) -> Fitted:
        """Require what the Bayes ratio requires."""
        BayesLR().fit(view)
        return self

    def __call__(self, block: Block) -> FloatArray:
        """Return phi [n, views]."""
        if block.mode == "online":
            return BayesLR()(block)
        return log_probability(block.target) - self.scale * log_mean_probability(block, offline=True)

    def in_mode(self, mode: Mode) -> Statistic:
        """Return the Bayes ratio of RMIA online: it is the same statistic."""
        return BayesLR() if mode == "online" else self


@dataclass(frozen=True)
class MeanDifference(Calibration):
    """Mean difference to the population: the calibration of InfoRMIA.

    Source: J. Tao, R. Shokri, "(Token-level) InfoRMIA: stronger membership inference and memorization assessment for
    LLMs", arXiv:2510.05582, 2025. RMIA's votes are replaced by the mean over the population of the log ratio
    phi(q) - phi(z). Reading taken here: all population records have the same weight.

    With one shared population the mean over z does not depend on q, so the score is phi(q) minus a constant. InfoRMIA
    then ranks queries exactly as the statistic without calibration does, log p_t - log pbar, whatever the weights are.
    It can differ only where queries have different populations: within classes, fresh draws, or tokens of one text.
    Saturated signals have ratios so close to 0 that the subtraction would make them equal. Such scores are therefore
    moved apart by the smallest steps that a float has.
    """

    scaled: ClassVar[bool] = False

    def shared(self, query: FloatArray, population: FloatArray, size: Counts) -> FloatArray:
        """Return the mean differences [n]; among queries with the same ``size`` they order as the values do."""
        # A query in the population adds 0 to the sum and is not counted.
        score = np.asarray((query - population.mean()) * (len(population) / size))
        for each in np.unique(size):
            own = np.flatnonzero(size == each)
            score[own] = _ordered_as(query[own], score[own])
        return score

    def pairwise(self, differences: FloatArray, size: Counts, null_std: FloatArray) -> FloatArray:
        """Return the mean differences [n]."""
        del null_std
        return np.asarray(differences.sum(axis=1) / size)


def _ordered_as(value: FloatArray, rounded: FloatArray) -> FloatArray:
    """Return ``rounded`` [n], which never falls where ``value`` rises, moved apart where it ties different values."""
    order = np.argsort(value, kind="stable")
    # Numbers of floats: the next larger float has the next larger number.
    numbers = _float_numbers(rounded[order])
    steps = np.cumsum(np.diff(value[order], prepend=value[order][:1]) > 0)
    apart = np.empty_like(rounded)
    apart[order] = _float_numbers((np.maximum.accumulate(numbers - steps) + steps).view(np.float64)).view(np.float64)
    return apart


def _float_numbers(x: FloatArray) -> IntArray:
    """Map 64-bit floats to integers in the same order; the function is its own inverse on the bits."""
    bits = np.ascontiguousarray(x, dtype=np.float64).view(np.int64)
    return bits ^ ((bits >> 63) & np.iinfo(np.int64).max)


@dataclass(frozen=True)
class QuantileExcess(Statistic):
    """Signal of the target, standardised by the quantiles predicted for a non-member with the same features.

    Source: M. Bertran et al., "Scalable membership inference attacks via quantile regression", arXiv:2307.03694, 2023.
    One model is fitted to the signals of known non-members; there are no references. Readings taken here: the model is
    gradient-boosted trees with the pinball loss, one ensemble per quantile, on the logit-scaled confidence; a record's
    features include its label; the statistic is (signal - median) / (half the distance between the quantiles of one
    deviation), so that one statistic serves all false-positive rates.

    The source predicts records that the model did not see. Here, the population is needed for p-values as well, so
    predictions are cross-fitted: each record is predicted by trees fitted on the population outside its fold.

    Parameters
    ----------
    folds : int
        Number of folds, at least 2.
    seed : int
        Seed of the folds and the trees.
    """

    folds: int = 5
    seed: int = 0
    reads_records: ClassVar[bool] = True
    levels: ClassVar[tuple[float, float, float]] = (0.1587, 0.5, 0.8413)  # of a Gaussian: one deviation around the mean

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise AttackError(f"{self.folds} folds cannot be cross-fitted: take at least 2")

    def fit(self, view: AttackView) -> GivenValues:
        """Cross-fit the quantiles on the population, and standardise every record."""
        features = require_features(view, self.folds)
        signal, population = view.target.mean(axis=1), view.population
        folds = assign_folds(view.n_points, population, self.folds, np.random.default_rng(self.seed))
        excess = np.empty(view.n_points)
        for fold in range(self.folds):
            known, own = population[folds[population] != fold], np.flatnonzero(folds == fold)
            require_spread(signal[known])
            fitted = [
                trees_of(features, known, signal[known], self.seed, loss="quantile", quantile=level)
                for level in self.levels
            ]
            # Quantiles that were fitted one by one may cross or coincide.
            low, median, high = np.sort([trees.predict(features.columns[own]) for trees in fitted], axis=0)
            smallest = SMALLEST_EXCESS * signal[known].std()
            excess[own] = (signal[own] - median) / np.maximum((high - low) / 2, smallest)
        return GivenValues(np.repeat(excess[:, None], view.n_views, axis=1), view.n_points)

    def least_references(self, n_views: int) -> int:
        """Return 0."""
        del n_views
        return 0
