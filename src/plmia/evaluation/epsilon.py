"""How much a model leaks at least, as the epsilon of differential privacy: two bounds, each with what it assumes.

An attack on an (epsilon, delta)-private model satisfies ``TPR <= exp(epsilon) FPR + delta``, and the same holds of the
true and false negatives. Measured rates show the least epsilon for which this can be true. Both bounds here pay for
the choice of the cut, so where nothing leaks each is above 0 in at most a share ``1 - confidence`` of audits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, expit, gammaln, logit, xlog1py, xlogy

from plmia.errors import PlmiaError
from plmia.evaluation.intervals import rank_grid
from plmia.evaluation.metrics import FloatArray, Roc, roc_curve

Calls = Literal["members", "non-members", "both"]

# Cuts that are tried: ranks each a quarter larger than the one before, numbers of guesses each twice as large.
_CUT_RATIO = 1.25
_FEWEST_GUESSES = 8
# Enough for an epsilon to three decimals; what is returned is never above the solution.
_BISECTIONS = 12


@dataclass(frozen=True)
class OneRun:
    """Guesses about one model, and the epsilon that they show.

    Attributes
    ----------
    low : float
        Lower bound on epsilon; 0 shows nothing.
    calls : {"members", "non-members", "both"}
        What was guessed: the top scores to be members, the bottom ones to be non-members, or both.
    guesses, correct : int
        Number of guesses behind the bound, and how many were right.
    """

    low: float
    calls: Calls
    guesses: int
    correct: int


@dataclass(frozen=True)
class EpsilonBound:
    """Lower bounds on epsilon; `epsilon_bound` makes one.

    Attributes
    ----------
    delta, confidence : float
        The delta at which epsilon is bounded, and the probability with which each bound holds.
    low : float
        The per-record bound: 0 shows nothing, and it is always finite.
    threshold : float
        The score behind `low`: called members is what lies above it (for non-members: below it). It is finite, and
        means something only where `low` is above 0.
    calls : {"members", "non-members"}
        Whether it is the members called right (``TPR / FPR``) or the non-members (``TNR / FNR``) that show `low`.
    right_low, wrong_high : float
        The bounds on those two rates.
    one_run : OneRun
        The bound that needs no independence between records.
    """

    delta: float
    confidence: float
    low: float
    threshold: float
    calls: Calls
    right_low: float
    wrong_high: float
    one_run: OneRun

    @property
    def one_run_low(self) -> float:
        """The one-run bound."""
        return self.one_run.low

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        return asdict(self)


def epsilon_bound(
    scores: npt.ArrayLike, members: npt.ArrayLike, delta: float = 1e-5, confidence: float = 0.95
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

    Returns
    -------
    EpsilonBound
        Its `low` assumes that queries are drawn and respond independently of each other, although they share one
        model. Its `one_run` does not; it assumes that a coin of its own decided the membership of each query, with
        the share of members among the queries as its odds, and that the attack did not know the outcomes (Steinke,
        Nasr and Jagielski, 2023, who toss fair coins). Where exactly a half was drawn, as in complementary pairs,
        the coins are not quite independent: the last of all is known from the others. Its delta term grows with the
        number of queries, so it shows much only where delta is well below one over that number.
    """
    if not 0 <= delta < 1:
        raise PlmiaError(f"delta is {delta}: it must be at least 0 and below 1, such as 1e-5")
    if not 0 < confidence < 1:
        raise PlmiaError(f"confidence is {confidence}: it must lie strictly between 0 and 1")
    roc = roc_curve(scores, members)
    truth, values = np.asarray(members), np.asarray(scores, dtype=np.float64)
    cuts = [_best_cut(values[truth], values[~truth], delta, (1 - confidence) / 2)]
    # The mirrored attack: low scores mean non-member.
    cuts.append(_best_cut(-values[~truth], -values[truth], delta, (1 - confidence) / 2))
    mirrored = cuts[1].low > cuts[0].low
    best = cuts[mirrored]
    return EpsilonBound(
        delta=float(delta),
        confidence=float(confidence),
        low=best.low,
        threshold=-best.threshold if mirrored else best.threshold,
        calls="non-members" if mirrored else "members",
        right_low=best.right_low,
        wrong_high=best.wrong_high,
        one_run=_one_run(roc, delta, 1 - confidence),
    )


@dataclass(frozen=True)
class _Cut:
    low: float
    threshold: float
    right_low: float
    wrong_high: float


def _best_cut(right: FloatArray, wrong: FloatArray, delta: float, error: float) -> _Cut:
    """Largest log((right_low - delta) / wrong_high) over cuts at fixed ranks of `wrong`, all bounds holding at once.

    The share of `wrong` above its j-th largest is at most a Beta(j, n - j + 1) variable, ties or not. Given these cuts,
    the number of `right` above each is binomial. The error is shared among all these bounds.
    """
    n, m = wrong.size, right.size
    ranks = rank_grid(n, _CUT_RATIO)
    ranks = ranks[2 * ranks <= n + 1]
    tail = error / (2 * ranks.size)
    cuts = np.sort(wrong)[::-1][ranks - 1]
    above = m - np.searchsorted(np.sort(right), cuts, side="right")
    wrong_high = 1 - betaincinv(n - ranks + 1, ranks, tail)
    right_low = np.where(above == 0, 0.0, betaincinv(np.maximum(above, 1), m - above + 1, tail))
    shown = np.maximum(right_low - delta, 0.0) / wrong_high
    best = int(np.argmax(shown))
    return _Cut(
        low=math.log(max(float(shown[best]), 1.0)),
        threshold=float(cuts[best]),
        right_low=float(right_low[best]),
        wrong_high=float(wrong_high[best]),
    )


def _one_run(roc: Roc, delta: float, error: float) -> OneRun:
    """Best of the guesses with all numbers of guesses and both kinds; each of them pays its share of the error."""
    tried = list(_guesses(roc))
    level = error / len(tried)
    best = OneRun(0.0, "both", 0, 0)
    # Ties make some of them the same; all have been paid for, since their number must not depend on the scores.
    for guesses in dict.fromkeys(tried):
        # Only what shows more than the best so far is worth solving for.
        if guesses.p_value(best.low, delta) < level:
            best = OneRun(guesses.bound(best.low, delta, level), *guesses.summary())
    return best


@dataclass(frozen=True)
class _Guesses:
    """`tops` queries guessed to be members and `bottoms` to be non-members, `correct` of them rightly.

    `share` of the `queries` are members.
    """

    tops: int
    bottoms: int
    correct: int
    queries: int
    share: float

    def summary(self) -> tuple[Calls, int, int]:
        calls: Calls = "both" if self.tops and self.bottoms else "members" if self.tops else "non-members"
        return calls, self.tops + self.bottoms, self.correct

    def p_value(self, epsilon: float, delta: float) -> float:
        """Probability, at most, of so many correct guesses if the model is (epsilon, delta)-private.

        Given the model and the other coins, the odds of each guess are at most ``exp(epsilon)`` times those of the
        coin, so the number of correct ones is at most (in law) a sum of two binomial variables W, plus a number of
        expectation ``2 queries delta`` that is free to arrive where it helps most (Theorem 5.2 of the paper).
        """
        law = self._law(epsilon)
        beyond = float(law[self.correct :].sum())
        if delta == 0:
            return beyond
        # P(v > W >= v - i) / i for i = 1 .. v, the best place for what delta adds.
        below = np.cumsum(law[: self.correct][::-1])
        gain = float(np.max(below / np.arange(1, below.size + 1), initial=0.0))
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

    def _law(self, epsilon: float) -> FloatArray:
        prior = float(logit(self.share))
        if self.share == 0.5 or min(self.tops, self.bottoms) == 0:
            return _binomial(self.tops + self.bottoms, float(expit(epsilon + (prior if self.tops else -prior))))
        tops = _binomial(self.tops, float(expit(epsilon + prior)))
        bottoms = _binomial(self.bottoms, float(expit(epsilon - prior)))
        size = 1 << (self.tops + self.bottoms).bit_length()
        law = np.fft.irfft(np.fft.rfft(tops, size) * np.fft.rfft(bottoms, size), size)
        return np.maximum(law[: self.tops + self.bottoms + 1], 0.0)


def _guesses(roc: Roc) -> Iterator[_Guesses]:
    """Top and bottom scores in numbers that double, apart and together; a tie group is guessed whole or not at all."""
    called, queries = roc.true_positives + roc.false_positives, roc.n_members + roc.n_non_members
    share = roc.n_members / queries
    sizes = [_FEWEST_GUESSES << i for i in range(queries.bit_length()) if _FEWEST_GUESSES << i <= queries // 2]
    # All guesses are fixed by the scores alone, never by who is a member.
    for most in [*sizes, queries // 2]:
        top = int(np.searchsorted(called, most, side="right")) - 1
        bottom = int(np.searchsorted(called, queries - most, side="left"))
        tops, right_in = int(called[top]), int(roc.true_positives[top])
        bottoms = queries - int(called[bottom])
        right_out = roc.n_non_members - int(roc.false_positives[bottom])
        yield _Guesses(tops, 0, right_in, queries, share)
        yield _Guesses(0, bottoms, right_out, queries, share)
        yield _Guesses(tops, bottoms, right_in + right_out, queries, share)


def _binomial(n: int, share: float) -> FloatArray:
    """Binomial probabilities of 0 .. n."""
    k = np.arange(n + 1)
    return np.asarray(np.exp(_log_ways(n) + xlogy(k, share) + xlog1py(n - k, -share)), dtype=np.float64)


@functools.lru_cache(maxsize=32)
def _log_ways(n: int) -> FloatArray:
    """Logarithms of the binomial coefficients; many epsilons are tried for the same n."""
    logs = gammaln(np.arange(1.0, n + 2))
    return np.asarray(logs[-1] - logs - logs[::-1], dtype=np.float64)
