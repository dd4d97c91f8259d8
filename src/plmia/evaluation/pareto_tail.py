"""A cautious model of the upper tail of the non-members' statistic, for levels below 1 / (n + 1).

No count of n non-members can settle such levels. Let u be the statistic of rank k + 1 in the population. A new
non-member exceeds u with probability (k + 1) / (n + 1) on average, whatever the law, and at most that with ties. Given
u, the k values beyond it are independent draws of the law beyond u. By the theorem of Pickands, Balkema and de Haan
that law is close to a generalised Pareto law with scale s and shape x: P(Y > y) = (1 + x y / s)^(-1/x). P(value > u)
and P(value > cut | value > u) are independent given u. So the mean false-positive rate is at most the level if the mean
of the second factor is at most level (n + 1) / (k + 1). The model errs on the safe side of that:

- No tail is modelled as bounded: x >= 0. If the true law is lighter than exponential (its hazard increases: normal,
  uniform, reversed exponential), its survival function crosses the exponential one of the same mean once and stays
  below it (Barlow and Proschan, 1965). The model is then conservative, and more so further out.
- The cut is not the fitted quantile but the largest quantile of all laws (s, x) within the likelihood region: the upper
  end of a one-sided profile-likelihood interval of the quantile.
- k is small, about sqrt(n): the region is wide, and a few outliers are a large part of it.
- The cut never lies below the top of the population, so the mean rate is at most 1 / (n + 1) whatever the law; and a
  level is at most `MAX_EXTRAPOLATION` = 4 times finer than that. A wrong model can cost a factor of 4, never more.

No data can exclude a law that changes beyond all n values. `plmia.evaluation.decisions.tail_check` applies the model of
one half of the population to the other half, equally far beyond it.

In simulations with n from 500 to 2,500 and levels 2 and 4 times finer than 1 / (n + 1), the mean rate is below 0.1 of
the level for normal, exponential and bounded laws, about 0.3 for Student's t with 3 degrees of freedom, and at most 0.8
for a normal law with one outlier in a hundred, 3 to 10 times as far out (1.04 with n = 500, 10 times, 4 times finer).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, lambertw

from plmia.data.arrays import FloatArray, Floats
from plmia.errors import PopulationError

MIN_POPULATION = 100  # fewer leave fewer than 10 beyond u, and the likelihood region is too wide to be useful
# Smaller populations, or levels finer than 1 / (n + 1) by a larger factor, break the model in simulations of laws with
# rare outliers.
MIN_TO_EXTRAPOLATE, MAX_EXTRAPOLATION = 500, 4
_RATES = 240  # number of rates x / s on the grid, beside 0 (an exponential tail)


@dataclass(frozen=True, eq=False)
class TailModel:
    """Generalised Pareto laws at the edge of the likelihood region of the values beyond ``start``."""

    start: float  # the value u above which the tail is modelled
    share: float  # probability that a new non-member exceeds it: (k + 1) / (n + 1)
    top: float  # largest value of the population
    rate: FloatArray  # [laws], x / s (0: exponential)
    scale: FloatArray  # [laws], the largest s in the region

    def cut(self, level: float) -> float:
        """Return the value that a non-member exceeds with a probability of at most ``level`` < `share`."""
        times = np.log(self.share / level)
        exponential = self.rate == 0
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # an infinite cut is a valid answer
            reach = np.expm1(self.rate * self.scale * times) / self.rate
        reach[exponential] = self.scale[exponential] * times
        return max(self.top, self.start + float(reach.max()))


def fit_tail(values: Floats, confidence: float = 0.95) -> TailModel:
    """Fit the upper tail of the statistic of a population, of at least `MIN_POPULATION` points.

    For a given rate t = x / s the log-likelihood of k excesses is -k (log s + L + L / (t s)) with
    L = mean log(1 + t y), so its maximum over s and the largest s within the region have closed forms.
    """
    n = len(values)
    if n < MIN_POPULATION:
        raise PopulationError(
            f"a model of the tail needs {MIN_POPULATION} known non-members, the population has {n}: give more"
        )
    rank = math.isqrt(n) + 1
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    start, beyond = ordered[-rank], ordered[-rank + 1 :]
    excess = beyond[beyond > start] - start
    if len(np.unique(excess)) < rank // 2:
        raise PopulationError(
            f"the top {rank} statistics of the population take only {len(np.unique(excess)) + 1} distinct values, so "
            "there is no tail to model: use a conformal rule"
        )
    rate, scale = _likelihood_region(excess, confidence)
    return TailModel(float(start), rank / (n + 1), float(ordered[-1]), rate, scale)


def _likelihood_region(excess: FloatArray, confidence: float) -> tuple[FloatArray, FloatArray]:
    """Rates within the region, and the largest scale of each."""
    # The median bounds the rates of heavy tails, whose mean may be that of a single value.
    rate = np.concatenate([[0.0], np.geomspace(1e-3 / excess.mean(), 1e3 / np.median(excess), _RATES)])
    logs = np.log1p(rate[:, None] * excess).mean(axis=1)
    best_scale = np.concatenate([[excess.mean()], logs[1:] / rate[1:]])
    cost = np.log(best_scale) + logs + 1  # minus the log-likelihood per excess, at the best scale
    allowed = cost.min() + chdtri(1, 2 * (1 - confidence)) / (2 * len(excess))
    inside = cost <= allowed
    # r = best / s solves r - log r = slack for the two ends; the branch below 1 is the largest s.
    slack = 1 + allowed - cost[inside]
    ratio = -lambertw(-np.exp(-slack)).real
    return rate[inside], best_scale[inside] / ratio
