"""Lower bounds on the epsilon of differential privacy: two bounds, each with its assumptions.

An attack on an (epsilon, delta)-private model satisfies ``TPR <= exp(epsilon) FPR + delta``, and the same holds for
true and false negatives. Measured rates give the smallest epsilon that is consistent with this. Both bounds account for
the choice of the threshold: if nothing leaks, each is above 0 in at most a share ``1 - confidence`` of audits.

Binomial probabilities are our own: a bound needs those of many counts for dozens of epsilons, and importing scipy.stats
takes as long as scoring a small run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, expit, gammaln, logit, xlog1py, xlogy

from plmia.data.arrays import FloatArray
from plmia.errors import PlmiaError, require_rate
from plmia.evaluation.intervals import rank_grid
from plmia.evaluation.metrics import Roc, roc_curve

Calls = Literal["members", "non-members", "both"]

_RANK_RATIO = 1.25  # of successive ranks at which thresholds are tested
_MIN_GUESSES = 8  # doubles
_LOG_FAR = 200.0  # counts outside of a window have a probability of at most 2 exp(-_LOG_FAR)
_BISECTIONS = 12  # enough for three decimals of epsilon; the result is never above the solution


@dataclass(frozen=True)
class OneRun:
    """The bound from guesses about one model; it needs no independence between records."""

    low: float
    calls: Calls  # guessed: the top scores are members, the bottom ones non-members, or both
    guesses: int
    correct: int


@dataclass(frozen=True)
class EpsilonBound:
    """Lower bounds on epsilon; `epsilon_bound` makes one. A bound of 0 shows nothing."""

    delta: float
    confidence: float  # probability with which each of the two bounds holds
    low: float  # the per-record bound, always finite
    threshold: float  # score behind `low`, finite: queries above it (non-members: below it) are called
    calls: Calls  # whether `low` comes from TPR / FPR (members) or from TNR / FNR (non-members)
    right_low: float  # lower bound on TPR or TNR
    wrong_high: float  # upper bound on FPR or FNR
    one_run: OneRun

    @property
    def one_run_low(self) -> float:
        """The one-run bound."""
        return self.one_run.low


def epsilon_bound(
    scores: npt.ArrayLike,
    members: npt.ArrayLike,
    delta: float = 1e-5,
    confidence: float = 0.95,
    roc: Roc | None = None,
) -> EpsilonBound:
    """Bound epsilon from below by the scores of one attack on one target.

    Parameters
    ----------
    scores, members : arrays of float and bool, shape [Q]
        As for `roc_curve`.
    delta : float
        In [0, 1); 0 is pure differential privacy.
    confidence : float
        Probability with which each of the two bounds holds.
    roc : Roc, optional
        The ROC curve of these scores, where it is known already.

    Returns
    -------
    EpsilonBound
        Its `low` assumes that queries are drawn and respond independently of each other, although they share one model.
        Its `one_run` assumes instead that an independent coin decided the membership of each query, with the share of
        members among the queries as its probability, and that the attack did not know the outcomes (Steinke, Nasr and
        Jagielski, 2023, for fair coins). If exactly a half was drawn, as in complementary pairs, the coins are not
        quite independent: the last follows from the others. Its delta term grows with the number of queries, so it
        shows much only if delta is well below one over that number.
    """
    if not 0 <= delta < 1:
        raise PlmiaError(f"delta is {delta}, but must be at least 0 and below 1: give a value such as 1e-5")
    require_rate("confidence", confidence)
    roc = roc_curve(scores, members) if roc is None else roc
    direct, mirrored = (_best_cut(roc, calls, delta, (1 - confidence) / 2) for calls in ("members", "non-members"))
    calls: Calls = "members" if direct[0] >= mirrored[0] else "non-members"
    low, cut, right_low, wrong_high = direct if calls == "members" else mirrored
    one_run = _one_run(roc, delta, 1 - confidence)
    return EpsilonBound(float(delta), float(confidence), low, cut, calls, right_low, wrong_high, one_run)


def _best_cut(roc: Roc, calls: Calls, delta: float, error: float) -> tuple[float, float, float, float]:
    """Largest log((right_low - delta) / wrong_high) over thresholds at ranks of the wrong side; threshold and rates.

    The wrong side are the non-members if ``members`` are called, and the members if non-members are: then everything is
    mirrored, and "above" means below. The share of the wrong side above its j-th largest is at most a
    Beta(j, n - j + 1) variable, with or without ties; the number of the right side above each is binomial. All these
    bounds hold at once: they share the error.
    """
    n, m = roc.n_non_members, roc.n_members
    if calls == "non-members":
        n, m = m, n
    ranks = rank_grid(n, _RANK_RATIO)
    ranks = ranks[2 * ranks <= n + 1]
    tail = error / (2 * ranks.size)
    # The curve has the scores in order, with the numbers at or above each: nothing needs to be sorted.
    if calls == "members":
        at = np.searchsorted(roc.false_positives, ranks, side="left")
        above = roc.true_positives[at - 1]
    else:
        at = np.searchsorted(roc.true_positives, n - ranks, side="right")
        above = m - roc.false_positives[at]
    cuts = roc.thresholds[at]
    wrong_high = 1 - betaincinv(n - ranks + 1, ranks, tail)
    right_low = np.where(above == 0, 0.0, betaincinv(np.maximum(above, 1), m - above + 1, tail))
    shown = np.maximum(right_low - delta, 0.0) / wrong_high
    best = int(np.argmax(shown))
    low = math.log(max(float(shown[best]), 1.0))
    return low, float(cuts[best]), float(right_low[best]), float(wrong_high[best])


def _one_run(roc: Roc, delta: float, error: float) -> OneRun:
    """Best bound over all numbers and kinds of guesses, which share the error equally."""
    tried = list(_guesses(roc))
    level = error / len(tried)
    best = OneRun(0.0, "both", 0, 0)
    # Ties make some of them equal; all share the error, since their number must not depend on the scores.
    for guesses in dict.fromkeys(tried):
        # Solve only for guesses that improve the bound.
        if guesses.p_value(best.low, delta) < level:
            best = OneRun(guesses.bound(best.low, delta, level), *guesses.summary())
    return best


@dataclass(frozen=True)
class _Guesses:
    """`tops` of the `queries` guessed to be members and `bottoms` non-members; `share` of all queries are members."""

    tops: int
    bottoms: int
    correct: int
    queries: int
    share: float

    def summary(self) -> tuple[Calls, int, int]:
        calls: Calls = "both" if self.tops and self.bottoms else "members" if self.tops else "non-members"
        return calls, self.tops + self.bottoms, self.correct

    def p_value(self, epsilon: float, delta: float) -> float:
        """Upper bound on the probability of `correct` or more correct guesses of an (epsilon, delta)-private model.

        Given the model and the other coins, the odds of each guess are at most ``exp(epsilon)`` times those of the
        coin. So the number of correct ones is stochastically at most a sum W of two binomial variables, plus a number
        of expectation ``2 queries delta`` that may depend on W in the worst way (Theorem 5.2 of Steinke et al.).
        """
        first, law = self._law(epsilon)
        at = self.correct - first
        beyond = float(law[max(at, 0) :].sum())
        if delta == 0:
            return beyond
        # P(v > W >= v - i) / i for i = 1 .. v: the worst dependence of what delta adds.
        below = np.cumsum(law[: max(at, 0)][::-1])
        below /= np.arange(1, below.size + 1) + max(at - law.size, 0)
        gain = float(np.max(below, initial=0.0))
        return min(beyond + 2 * self.queries * delta * gain, 1.0)

    def bound(self, low: float, delta: float, level: float) -> float:
        """Largest epsilon whose p-value is below `level`, approached from below; `low` is one such."""
        high = max(2 * low, 1.0)
        while self.p_value(high, delta) < level:
            low, high = high, 2 * high
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.p_value(middle, delta) < level else (low, middle)
        return low

    def _law(self, epsilon: float) -> tuple[int, FloatArray]:
        """Smallest likely value of W, and the probabilities of the values from there."""
        prior = float(logit(self.share))
        if self.share == 0.5 or min(self.tops, self.bottoms) == 0:
            return _binomial(self.tops + self.bottoms, float(expit(epsilon + (prior if self.tops else -prior))))
        least, tops = _binomial(self.tops, float(expit(epsilon + prior)))
        further, bottoms = _binomial(self.bottoms, float(expit(epsilon - prior)))
        n = tops.size + bottoms.size - 1
        size = 1 << n.bit_length()
        law = np.fft.irfft(np.fft.rfft(tops, size) * np.fft.rfft(bottoms, size), size)[:n]
        return least + further, np.maximum(law, 0.0, out=law)


def _guesses(roc: Roc) -> Iterator[_Guesses]:
    """Top scores, bottom scores and both, in numbers that double; a tie group is guessed as a whole or not at all."""
    called, queries = roc.true_positives + roc.false_positives, roc.n_members + roc.n_non_members
    share = roc.n_members / queries
    sizes = [_MIN_GUESSES << i for i in range(queries.bit_length()) if _MIN_GUESSES << i <= queries // 2]
    # The scores alone determine the guesses, never the membership.
    for most in [*sizes, queries // 2]:
        top = int(np.searchsorted(called, most, side="right")) - 1
        bottom = int(np.searchsorted(called, queries - most, side="left"))
        tops, right_in = int(called[top]), int(roc.true_positives[top])
        bottoms = queries - int(called[bottom])
        right_out = roc.n_non_members - int(roc.false_positives[bottom])
        yield _Guesses(tops, 0, right_in, queries, share)
        yield _Guesses(0, bottoms, right_out, queries, share)
        yield _Guesses(tops, bottoms, right_in + right_out, queries, share)


def _binomial(n: int, share: float) -> tuple[int, FloatArray]:
    """Smallest likely count of n trials, and the probabilities of the counts from there to the largest likely one.

    By Bernstein's inequality, the others have a probability of at most ``2 exp(-_LOG_FAR)``.
    """
    away = _LOG_FAR / 3 + math.sqrt((_LOG_FAR / 3) ** 2 + 2 * _LOG_FAR * n * share * (1 - share))
    first, last = max(math.floor(n * share - away), 0), min(math.ceil(n * share + away), n)
    k = np.arange(first, last + 1)
    ways = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
    return first, np.exp(ways + xlogy(k, share) + xlog1py(n - k, -share))
