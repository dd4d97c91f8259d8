"""Who is called a member: decision rules as types, each at a level (the false-positive rate it may have).

A rule sees what an auditor knows (`Known`: scores and the population Z of known non-members, never the truth) and makes
calls (`Call`). A rule whose validity rests on more than counting checks itself on Z (`SelfCheck`); when the check
fails, `decide` takes the conformal calls. `judge` compares calls with the truth (`Decision`).

Conformal, held-out and tolerance rules are all cuts at the k-th largest statistic of Z and differ in k alone: a fresh
non-member exceeds it with a probability whose law over the draw of Z is Beta(k, |Z| + 1 - k), whatever the statistic's
law. The statistic is compared, not the score: a z is left out of its own score, which so has another scale than that of
a query.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import betainc

from plmia.attacks.moments import IntArray
from plmia.attacks.scoring import Scores
from plmia.errors import AttackError, PlmiaError, PopulationError
from plmia.evaluation.metrics import BoolArray, clopper_pearson, largest_count
from plmia.evaluation.pareto_tail import FURTHEST, LEAST_TO_MODEL, cross_check, fit_tail
from plmia.evaluation.self_check import SelfCheck, self_check
from plmia.numerics import count_below


@dataclass(frozen=True, eq=False)
class Known:
    """What a rule may see of one attack on one target.

    Parameters
    ----------
    scores : Scores
        Scores and p-values of every point.
    population : int array [population]
        The population Z: points known not to be members.
    labels : int array [points], optional
        Class of each point; only `ClassConformal` needs it.
    """

    scores: Scores
    population: IntArray
    labels: npt.NDArray[np.integer] | None = None

    def __post_init__(self) -> None:
        if self.n < 2:
            raise _too_small(self.n, 2, "a decision")

    @property
    def n(self) -> int:
        """Size of the population."""
        return len(self.population)

    @cached_property
    def inside(self) -> BoolArray:
        """Which points [points] are of the population."""
        mask = np.zeros(len(self.scores.score), bool)
        mask[self.population] = True
        return mask

    @cached_property
    def ranks(self) -> IntArray:
        """1 + how many z of Z have a statistic at least as large, itself not counted [points].

        So z is at least as large as a query exactly where its rank is smaller than the query's, ties included.
        """
        phi = self.scores.statistic
        return self.n + 1 - self.inside - count_below(phi[self.population], phi)

    def smallest_called(self, flagged: BoolArray) -> float | None:
        """Smallest score called a member outside Z, inf where none is; None where calls do not follow the score."""
        called = flagged[~self.inside]
        score = self.scores.score[~self.inside]
        if not called.any():
            return math.inf
        smallest = float(score[called].min())
        return smallest if called.all() or smallest > score[~called].max() else None


@dataclass(frozen=True, eq=False)
class Call:
    """What a rule decides.

    Parameters
    ----------
    rule, level : str, float
        Which rule, and the false-positive rate that it may have.
    flagged : bool array [points]
        Who is called a member. Of the population: held-out and tolerance count it in the cut, others leave a z out.
    threshold : float or None
        The smallest score called a member; inf where none is, None where no single cut in the score makes the calls.
    population : int
        How many known non-members the calls rest on.
    check : SelfCheck, optional
        Of a rule that can be wrong.
    silent_classes : tuple of int
        Classes without any call, because too few known non-members are of them.
    instead_of : str, optional
        The rule whose place this one took because its check failed.
    """

    rule: str
    level: float
    flagged: BoolArray
    threshold: float | None
    population: int
    check: SelfCheck | None = None
    silent_classes: tuple[int, ...] = ()
    instead_of: str | None = None


class Rule(Protocol):
    """A decision rule; ``level`` is the false-positive rate that it may have."""

    name: ClassVar[str]

    @property
    def level(self) -> float: ...  # noqa: D102
    def __call__(self, known: Known) -> Call:
        """Make calls, or raise a `PlmiaError` that says what the rule would need."""


@dataclass(frozen=True)
class _AtLevel:
    level: float

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise PlmiaError(f"level is {self.level}: it must lie strictly between 0 and 1 (1 % is 0.01)")


@dataclass(frozen=True)
class Analytic(_AtLevel):
    """The paper's threshold tau_alpha = tan(pi (1/2 - level)) on the combined score (`eq:cauchy_cali`).

    It rests on a Cauchy law that pairwise p-values with a common query do not have: even normal statistics exceed it
    1.6 to 1.9 times too often, skewed ones almost always. So it never comes without its check: the share of the
    population whose left-one-out combined p-value is within the level.
    """

    name: ClassVar[str] = "analytic"

    def __call__(self, known: Known) -> Call:
        """Flag where the combined p-value is at most the level."""
        if not known.scores.has_combined_p:
            raise AttackError(
                f"{known.scores.attack} has no combined p-value, which the analytic rule needs: take an attack with "
                "Cauchy combination, or the conformal rule"
            )
        flagged = known.scores.log10_p <= np.log10(self.level)
        check = self_check(int(np.count_nonzero(flagged[known.population])), known.n, self.level)
        threshold = math.asinh(1 / math.tan(math.pi * self.level))
        return Call(self.name, self.level, flagged, threshold, known.n, check)


@dataclass(frozen=True)
class Conformal(_AtLevel):
    """Flag where the conformal p-value is at most the level.

    The false-positive rate, on average over draws of Z, is at most the level: without ties exactly
    floor(level (|Z| + 1)) / (|Z| + 1). Points of Z are compared with the rest of it.
    """

    name: ClassVar[str] = "conformal"

    def __call__(self, known: Known) -> Call:
        """Flag; a level below 1 / (|Z| + 1) cannot be had."""
        needed = needed_population(self.level)
        if known.n < needed:
            raise _too_small(known.n, needed, f"the conformal rule at level {self.level:g}")
        # One step up: the level and a p-value that is the same fraction may differ by the rounding of a logarithm.
        flagged = known.scores.log10_p_conformal <= np.nextafter(np.log10(self.level), 1)
        return Call(self.name, self.level, flagged, known.smallest_called(flagged), known.n)


@dataclass(frozen=True)
class ClassConformal(_AtLevel):
    """Conformal within each class (Mondrian): the false-positive rate holds in every class, not only overall.

    A class with fewer than `needed_population` of Z is silent: nobody in it is called a member.
    """

    name: ClassVar[str] = "class-conformal"

    def __call__(self, known: Known) -> Call:
        """Flag within the classes that have enough known non-members."""
        if known.labels is None:
            raise PopulationError("the class-conformal rule needs labels: store `labels` [points] with the signals")
        classes, of_point = np.unique(known.labels, return_inverse=True)
        size = np.bincount(of_point[known.population], minlength=len(classes))
        needed = needed_population(self.level)
        if size.max() < needed:
            raise _too_small(
                int(size.max()), needed, f"the class-conformal rule at level {self.level:g}", "largest class"
            )
        # One sorted array for all classes: each has its own range of keys.
        base = of_point * (known.n + 2)
        key = base + known.ranks
        rivals = np.sort(key[known.population])
        # A query's rivals have smaller ranks; those of a z smaller or equal ones, and one of them is z itself.
        behind = np.searchsorted(rivals, key + known.inside, side="left") - np.searchsorted(rivals, base, side="left")
        own = size[of_point] - known.inside
        rank = 1 + behind - known.inside
        flagged = (rank / (own + 1) <= self.level) & (size >= needed)[of_point]
        silent = tuple(int(label) for label in classes[size < needed])
        return Call(self.name, self.level, flagged, None, known.n, silent_classes=silent)


def _call_at_rank(rule: Rule, known: Known, k: int) -> Call:
    """Flag what exceeds the k-th largest statistic of Z."""
    # A z exceeds it where fewer than k - 1 others are as large; a query where fewer than k are.
    flagged = known.ranks <= k - known.inside
    return Call(rule.name, rule.level, flagged, known.smallest_called(flagged), known.n)


@dataclass(frozen=True)
class HeldOut(_AtLevel):
    """The empirical quantile of Z, as most software takes it: at most the level of Z itself is flagged.

    It treats Z as if it were the whole world of non-members: a fresh one exceeds the cut with probability
    (floor(level |Z|) + 1) / (|Z| + 1) on average, which is more than the level by up to 1 / (|Z| + 1). So a level below
    that, at which the cut would be the top of Z however small the level, is refused.
    """

    name: ClassVar[str] = "held-out"

    def __call__(self, known: Known) -> Call:
        """Flag above the smallest cut that at most the level of Z exceeds."""
        if known.n < (needed := needed_population(self.level)):
            raise _too_small(known.n, needed, f"the held-out rule at level {self.level:g}")
        return _call_at_rank(self, known, largest_count(self.level, known.n) + 1)


@dataclass(frozen=True)
class Tolerance(_AtLevel):
    """A cut whose own false-positive rate is at most the level, with a confidence over the draw of Z.

    The conformal rule promises the rate on average over draws of Z; the one at hand may have more. Here the largest k
    is taken with P(Beta(k, |Z| + 1 - k) <= level) >= confidence (Wilks, 1941).

    Parameters
    ----------
    level : float
        False-positive rate.
    confidence : float
        Share of draws of Z for which it holds, at least.
    """

    confidence: float = 0.95
    name: ClassVar[str] = "tolerance"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.confidence < 1:
            raise PlmiaError(f"confidence is {self.confidence}: it must lie strictly between 0 and 1")

    def __call__(self, known: Known) -> Call:
        """Flag; (1 - level)^|Z| must be at most 1 - confidence."""
        # k = 1 is the best there is: P(Beta(1, n) <= level) = 1 - (1 - level)^n.
        needed = math.ceil(math.log1p(-self.confidence) / math.log1p(-self.level))
        if known.n < needed:
            raise _too_small(known.n, needed, f"level {self.level:g} with confidence {self.confidence:g}")
        ranks = range(1, known.n + 1)
        k = bisect_left(ranks, True, key=lambda k: bool(betainc(k, known.n + 1 - k, self.level) < self.confidence))
        return _call_at_rank(self, known, max(1, k))


@dataclass(frozen=True)
class ModelledTail(_AtLevel):
    """Conformal as far as Z resolves the level; beyond that a cautious model of the tail of Z.

    Where the model decides, it is checked: fitted to each half of Z and tried on the other, as far beyond the half as
    the level is beyond Z. A statistic with many ties at the top has no tail to model and is refused.
    """

    name: ClassVar[str] = "modelled-tail"

    def __call__(self, known: Known) -> Call:
        """Flag; a level below 1 / (4 (|Z| + 1)) is beyond what the model is trusted with."""
        if known.n >= needed_population(self.level):
            return replace(Conformal(self.level)(known), rule=self.name)
        needed = max(LEAST_TO_MODEL, needed_population(min(1.0, FURTHEST * self.level)))
        if known.n < needed:
            raise _too_small(known.n, needed, f"the modelled tail at level {self.level:g}")
        phi = known.scores.statistic
        flagged = phi > fit_tail(phi[known.population]).cut(self.level)
        check = cross_check(phi[known.population], self.level)
        return Call(self.name, self.level, flagged, known.smallest_called(flagged), known.n, check)


def decide(rule: Rule, known: Known) -> Call:
    """Return the calls to act on: the rule's own, or the conformal ones where its check fails."""
    call = rule(known)
    if call.check is None or call.check.passed:
        return call
    return replace(Conformal(rule.level)(known), instead_of=call.rule)


@dataclass(frozen=True)
class Decision:
    """Calls compared with the truth, on the evaluated points.

    Rule, level, threshold, population, check and silent classes are the call's. ``flagged`` counts the evaluated points
    called members; ``fpr_realised`` and ``tpr`` are the shares of non-members and of members that are, with
    Clopper-Pearson bounds given the calls. ``refused`` says why the rule made no calls; the numbers are then None.
    """

    rule: str
    level: float
    threshold: float | None = None
    population: int | None = None
    flagged: int | None = None
    fpr_realised: float | None = None
    fpr_low: float | None = None
    fpr_high: float | None = None
    tpr: float | None = None
    tpr_low: float | None = None
    tpr_high: float | None = None
    check: SelfCheck | None = None
    silent_classes: tuple[int, ...] = ()
    refused: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values; a threshold that is infinite or does not exist is None."""
        finite = self.threshold is not None and math.isfinite(self.threshold)
        check = self.check.to_json() if self.check else None
        special = {"threshold": self.threshold if finite else None, "check": check}
        return vars(self) | special | {"silent_classes": list(self.silent_classes)}


def judge(call: Call, members: BoolArray, queries: IntArray, confidence: float = 0.95) -> Decision:
    """Compare calls with the truth: ``members`` [points], on the evaluated points ``queries`` [queries]."""
    flagged, truth = call.flagged[queries], members[queries]
    fpr, fpr_low, fpr_high = _rate(flagged[~truth], confidence)
    tpr, tpr_low, tpr_high = _rate(flagged[truth], confidence)
    return Decision(
        rule=call.rule,
        level=call.level,
        threshold=call.threshold,
        population=call.population,
        flagged=int(np.count_nonzero(flagged)),
        fpr_realised=fpr,
        fpr_low=fpr_low,
        fpr_high=fpr_high,
        tpr=tpr,
        tpr_low=tpr_low,
        tpr_high=tpr_high,
        check=call.check,
        silent_classes=call.silent_classes,
    )


def judge_all(
    rules: Iterable[Rule], known: Known, members: BoolArray, queries: IntArray, confidence: float = 0.95
) -> list[Decision]:
    """Judge each rule's calls; a rule that cannot be used here leaves a decision that says why."""
    decisions = []
    for rule in rules:
        try:
            decisions.append(judge(rule(known), members, queries, confidence))
        except PlmiaError as error:
            decisions.append(Decision(rule.name, rule.level, population=known.n, refused=str(error)))
    return decisions


def _rate(flagged: BoolArray, confidence: float) -> tuple[float | None, float | None, float | None]:
    if not flagged.size:
        return None, None, None
    count = int(np.count_nonzero(flagged))
    low, high = clopper_pearson(count, flagged.size, confidence)
    return count / flagged.size, float(low), float(high)


def needed_population(level: float) -> int:
    """Return the smallest n with 1 / (n + 1) <= level: how many known non-members a conformal rule needs."""
    n = math.ceil(1 / level) - 1
    # The quotient is rounded: one to either side may be the answer.
    if n > 1 and 1 / n <= level:
        return n - 1
    return max(1, n if 1 / (n + 1) <= level else n + 1)


def _too_small(n: int, needed: int, what: str, where: str = "population") -> PopulationError:
    return PopulationError(
        f"{what} needs {needed:,} known non-members, the {where} has {n:,}: give more or take a larger level"
    )
