"""How far the statistic of non-members may reach: a cautious model of its upper tail, and checks on the population.

The rule that uses the model calls members at levels below 1 / (n + 1), which no count of n non-members can settle.

The argument. Let u be the statistic of rank k + 1 in the population. A fresh non-member exceeds u with probability
(k + 1) / (n + 1) on average, whatever the law, and at most that with ties. Given u, the k values beyond it are
independent draws of the law beyond u, which the theorem of Pickands, Balkema and de Haan brings close to a generalised
Pareto law with scale s and shape x: P(Y > y) = (1 + x y / s)^(-1/x). P(value > u) and P(value > cut | value > u) are
independent given u, so the mean false-positive rate stays within the level if the mean of the second factor stays
within level (n + 1) / (k + 1). To be on the safe side of that,

- no tail is modelled as bounded: x >= 0. Where the true law is lighter than exponential (its hazard increases: normal,
  uniform, reversed exponential), its survival function crosses the exponential one of the same mean once and stays
  below from there on (Barlow and Proschan, 1965), so the model errs on the safe side, the more the further out;
- the cut is not the fitted quantile but the largest quantile of all laws (s, x) within the likelihood region: the upper
  end of a one-sided profile-likelihood interval of the quantile;
- k is small, about sqrt(n): the region is wide, and a few outliers are a large part of it;
- the cut never lies below the top of the population, so the mean rate is at most 1 / (n + 1) whatever the law; and a
  level is at most `FURTHEST` = 4 times finer than that. A wrong model can cost a factor of 4, never more.

What no data can exclude is a law that changes its nature beyond all n values; `cross_check` tries the model of one half
of the population on the other, equally far beyond it.

Simulated with n from 500 to 2,500 and levels 2 and 4 times finer than 1 / (n + 1), the mean rate is below 0.1 of the
level for normal, exponential and bounded laws, about 0.3 for Student's t with 3 degrees of freedom, and at most 0.8 for
a normal law with one outlier in a hundred, 3 to 10 times as far out (1.04 with n = 500, 10 times, 4 times finer).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, lambertw

from plmia.errors import PopulationError
from plmia.evaluation.self_check import SelfCheck, self_check
from plmia.numerics import FloatArray

# Fewer values leave fewer than 10 beyond u, and the likelihood region then says nothing useful.
LEAST_POPULATION = 100
# With fewer, or at levels more times finer than 1 / (n + 1), laws with rare outliers break the model in simulations.
LEAST_TO_MODEL = 500
FURTHEST = 4
# How many rates x / s are tried beside 0, an exponential tail.
_RATES = 240


@dataclass(frozen=True, eq=False)
class TailModel:
    """Generalised Pareto laws that fit the values beyond ``start``: the edge of their likelihood region.

    Parameters
    ----------
    start : float
        The value u from which on the tail is modelled.
    share : float
        Probability that a fresh non-member exceeds it: (k + 1) / (n + 1).
    top : float
        Largest value of the population.
    rate, scale : float arrays [laws]
        Of each law, x / s (0: exponential) and the largest s in the region.
    """

    start: float
    share: float
    top: float
    rate: FloatArray
    scale: FloatArray

    def cut(self, level: float) -> float:
        """Return the value that a non-member exceeds with a probability of at most ``level`` < `share`."""
        times = np.log(self.share / level)
        exponential = self.rate == 0
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # beyond all numbers is a fine answer
            reach = np.expm1(self.rate * self.scale * times) / self.rate
        reach[exponential] = self.scale[exponential] * times
        return max(self.top, self.start + float(reach.max()))


def fit_tail(values: npt.NDArray[np.floating], confidence: float = 0.95) -> TailModel:
    """Fit the upper tail of the population.

    For a given rate t = x / s the log-likelihood of k excesses is -k (log s + L + L / (t s)) with
    L = mean log(1 + t y), so its maximum over s and the largest s within the region have closed forms.

    Parameters
    ----------
    values : float array [population]
        Statistic of the population, at least `LEAST_POPULATION` points.
    confidence : float
        Of the one-sided bound on a quantile.
    """
    n = len(values)
    if n < LEAST_POPULATION:
        raise PopulationError(
            f"the population has {n} points, a model of its tail needs {LEAST_POPULATION}: give more non-members"
        )
    rank = math.isqrt(n) + 1
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    start, beyond = ordered[-rank], ordered[-rank + 1 :]
    excess = beyond[beyond > start] - start
    if len(np.unique(excess)) < rank // 2:
        raise PopulationError(
            f"the top {rank} values of the population take only {len(np.unique(excess)) + 1} values, so there is no "
            "tail to model: take a conformal rule"
        )
    rate, scale = _likelihood_region(excess, confidence)
    return TailModel(float(start), rank / (n + 1), float(ordered[-1]), rate, scale)


def _likelihood_region(excess: FloatArray, confidence: float) -> tuple[FloatArray, FloatArray]:
    """Rates within the region and, of each, the largest scale."""
    # The median bounds the rates of heavy tails, whose mean may be that of a single value.
    rate = np.concatenate([[0.0], np.geomspace(1e-3 / excess.mean(), 1e3 / np.median(excess), _RATES)])
    logs = np.log1p(rate[:, None] * excess).mean(axis=1)
    best_scale = np.concatenate([[excess.mean()], logs[1:] / rate[1:]])
    cost = np.log(best_scale) + logs + 1  # minus the log-likelihood an excess, at the best scale
    allowed = cost.min() + chdtri(1, 2 * (1 - confidence)) / (2 * len(excess))
    inside = cost <= allowed
    # r = best / s solves r - log r = slack for the two ends; the branch below 1 is the largest s.
    slack = 1 + allowed - cost[inside]
    ratio = -lambertw(-np.exp(-slack)).real
    return rate[inside], best_scale[inside] / ratio


def cross_check(values: FloatArray, level: float) -> SelfCheck:
    """Fit the tail of each half of the population [population] and count who of the other half exceeds its cut.

    The level tried is as many times finer than what a half resolves as ``level`` is finer than what all resolve.
    """
    halves = values[0::2], values[1::2]
    tried = min(1.0, level * (len(values) + 1) / (len(halves[1]) + 1))
    cuts = [fit_tail(half).cut(tried) for half in halves]
    flagged = sum(int(np.count_nonzero(half > cut)) for half, cut in zip(halves, reversed(cuts), strict=True))
    return self_check(flagged, len(values), tried)
