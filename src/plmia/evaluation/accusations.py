"""From rates to people: precision of an accusation, and how many people are accused rightly and falsely.

An attacker has a list of *candidates*. The *prior* is the share of the candidates that are members of the training set.
True-positive and false-positive rates do not depend on it, but the precision of an accusation does. At a
false-positive rate of 1 % and a prior of 0.1 %, an attack that finds every member accuses ten non-members per member.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scipy.special import bdtrik

from plmia.errors import PlmiaError, require_rate
from plmia.evaluation.intervals import Interval, tail_of

PRIORS = (0.5, 0.1, 0.01, 0.001)
"""Shares of members among the candidates for which accusations are reported."""


@dataclass(frozen=True)
class Accusation:
    """Accusations at one prior: every candidate above the threshold of a false-positive rate is accused.

    The ends of `precision` and `right` are those of a confidence interval. The expected number `wrong` is known, since
    the false-positive rate is given; its ends limit the number of falsely accused people in one list of candidates.
    """

    prior: float  # share of the candidates that are members
    precision: float  # share of members among the accused
    precision_low: float
    precision_high: float
    members: int  # candidates that are members: the whole training set
    candidates: float  # members / prior
    right: float  # expected number of members that are accused
    right_low: float
    right_high: float
    wrong: float  # expected number of non-members that are accused
    wrong_low: float
    wrong_high: float
    confidence: float  # of all three pairs of ends, each by itself


def accusations(
    fpr: float, tpr: float, interval: Interval, members: int, priors: Iterable[float] = PRIORS
) -> tuple[Accusation, ...]:
    """Return the accusations for each prior, in the order of the priors.

    Candidates are assumed to be like the evaluated records: members like evaluated members, non-members like evaluated
    non-members. At a fixed false-positive rate the precision and the number of correct accusations increase with the
    true-positive rate. So the ends of its interval give the ends of theirs, with exactly the same coverage. This needs
    an interval at exactly this false-positive rate (`plmia.evaluation.intervals.tpr_interval`). The number of false
    accusations is taken as binomial: it assumes that the non-members among the candidates are independent.

    Parameters
    ----------
    fpr : float
        False-positive rate of the accusations, strictly between 0 and 1.
    tpr : float
        Measured true-positive rate at ``fpr``.
    interval : Interval
        Interval of the true-positive rate at exactly ``fpr``.
    members : int
        Number of members of the training set, all of which are candidates.
    priors : iterable of float
        Shares of members among the candidates, each strictly between 0 and 1.
    """
    require_rate("FPR", fpr)
    if not 0 <= interval.low <= tpr <= interval.high <= 1:
        raise PlmiaError(
            f"the TPR is {tpr} and its interval {interval.low} to {interval.high}: the interval must contain the TPR "
            "and lie in [0, 1]"
        )
    if members < 1:
        raise PlmiaError(f"there are {members} members: give the size of the training set, at least 1")
    return tuple(_accusation(float(fpr), float(tpr), interval, int(members), float(prior)) for prior in priors)


def _accusation(fpr: float, tpr: float, interval: Interval, members: int, prior: float) -> Accusation:
    require_rate("prior", prior)
    candidates = members / prior
    wrong = fpr * (candidates - members)
    low, high = _binomial_range(round(candidates) - members, fpr, interval.confidence)
    return Accusation(
        prior=prior,
        precision=_precision(prior, fpr, tpr),
        precision_low=_precision(prior, fpr, interval.low),
        precision_high=_precision(prior, fpr, interval.high),
        members=members,
        candidates=candidates,
        right=tpr * members,
        right_low=interval.low * members,
        right_high=interval.high * members,
        wrong=wrong,
        # With few candidates the expected number may lie outside, as rounding makes the number of non-members whole.
        wrong_low=min(low, wrong),
        wrong_high=max(high, wrong),
        confidence=interval.confidence,
    )


def _precision(prior: float, fpr: float, tpr: float) -> float:
    right, wrong = prior * tpr, (1 - prior) * fpr
    return right / (right + wrong)


def _binomial_range(trials: int, rate: float, confidence: float) -> tuple[float, float]:
    """Quantiles of a binomial count that leave out the same probability at both ends."""
    tail = tail_of(confidence)
    if trials == 0:
        return 0.0, 0.0
    # The ceiling of the continuous inverse is the quantile.
    few, many = (math.ceil(max(float(bdtrik(level, trials, rate)), 0.0)) for level in (tail, 1 - tail))
    return float(few), float(min(many, trials))
