"""Decision rules: which records are called members, at a stated false-positive rate (the *level*).

A rule sees only what an auditor knows (`Known`): scores, and the population Z of known non-members. It returns a
`Call`. A rule whose validity needs more than counting checks itself on Z (`SelfCheck`); where the check fails, `decide`
returns the conformal call instead. `judge` compares a call with the truth.

The conformal, held-out and tolerance rules all cut at the k-th largest statistic of Z and differ only in k. A new
non-member exceeds that value with a probability that follows Beta(k, |Z| + 1 - k) over draws of Z, whatever the law of
the statistic. They compare statistics rather than scores: the score of a z excludes z itself, so its scale differs from
that of a query.

Binomial tails and beta quantiles come from scipy.special, which scipy.stats wraps: importing that takes as long as
scoring a small run.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc, betainc

from plmia.attacks.scoring import Scores
from plmia.data import memory
from plmia.data.arrays import BoolArray, FloatArray, IntArray, Labels
from plmia.errors import AttackError, PlmiaError, PopulationError, require_rate
from plmia.evaluation.metrics import clopper_pearson, largest_count
from plmia.evaluation.pareto_tail import MAX_EXTRAPOLATION, MIN_TO_EXTRAPOLATE, fit_tail
from plmia.numerics import count_below

# A check fails if a valid rule would flag this many known non-members in at most one audit in a thousand.
CHECK_FAILS_BELOW = 0.001
# Records that are compared at a time.
_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False)
class Known:
    """What a rule may see of one attack on one target.

    Parameters
    ----------
    scores : Scores
        Scores and p-values of every record.
    population : int array [population]
        The population Z: records known not to be members.
    labels : int array [records], optional
        Class of each record; only `ClassConformal` needs it.
    n_compared : int, optional
        Known non-members behind the coarsest conformal p-value; by default all. Fewer where people are compared with
        those who have about as many records.
    """

    scores: Scores
    population: IntArray
    labels: Labels | None = None
    n_compared: int | None = None

    def __post_init__(self) -> None:
        if self.n < 2:
            raise PopulationError(f"a decision needs 2 known non-members, the population has {self.n}: give more")

    @property
    def n(self) -> int:
        """Size of the population."""
        return len(self.population)

    @cached_property
    def inside(self) -> BoolArray:
        """Which records [records] belong to the population."""
        mask = np.zeros(len(self.scores.score), bool)
        mask[self.population] = True
        return mask

    @cached_property
    def ordered(self) -> FloatArray:
        """The statistic of the population, ascending."""
        return np.sort(self.scores.statistic[self.population])

    @cached_property
    def ranks(self) -> npt.NDArray[np.int32]:
        """1 + the number of other z in Z whose statistic is at least as large [records].

        So the statistic of z is at least that of a query exactly where its rank is smaller, also with ties.
        """
        phi = self.scores.statistic
        ranks = count_below(phi[self.population], phi)
        np.subtract(self.n + 1, ranks, out=ranks)
        ranks -= self.inside
        return memory.copied(ranks)

    def smallest_called(self, flagged: BoolArray) -> float | None:
        """Smallest score called a member outside Z: inf if none is called, None if calls do not follow the score."""
        smallest = math.inf
        for outside, called, score in self._compared(flagged):
            smallest = min(smallest, float(score[called & outside].min(initial=math.inf)))
        if math.isinf(smallest):
            return smallest
        crossed = (outside & ~called & (score >= smallest) for outside, called, score in self._compared(flagged))
        return None if any(each.any() for each in crossed) else smallest

    def _compared(self, flagged: BoolArray) -> Iterator[tuple[BoolArray, BoolArray, FloatArray]]:
        """Yield whether records lie outside Z, whether they are flagged, and their scores; some at a time."""
        for start in range(0, len(flagged), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            yield ~self.inside[part], flagged[part], self.scores.score[part]


@dataclass(frozen=True)
class SelfCheck:
    """How many known non-members a rule flags if each is treated like a query; `self_check` makes one."""

    flagged: int  # known non-members that are called members
    population: int
    level: float  # share that may be flagged
    p_value: float  # probability that a binomial count with this share is at least `flagged`

    @property
    def most(self) -> float:
        """Upper 95 % confidence bound of the share that the rule flags."""
        return float(clopper_pearson(self.flagged, self.population, 0.9)[1])

    @property
    def passed(self) -> bool:
        """Whether chance can explain the count."""
        return self.p_value >= CHECK_FAILS_BELOW

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        return vars(self) | {"passed": self.passed, "most": self.most}


def self_check(flagged: int, population: int, level: float) -> SelfCheck:
    """Test by the binomial upper tail whether ``flagged`` of ``population`` is more than ``level`` allows."""
    p_value = float(bdtrc(flagged - 1, population, level)) if flagged else 1.0
    return SelfCheck(flagged, population, level, p_value)


@dataclass(frozen=True, eq=False)
class Call:
    """The decision of a rule."""

    rule: str
    level: float
    flagged: BoolArray  # [points]; held-out and tolerance count a point of Z in its own cut, other rules leave it out
    threshold: float | None  # smallest score called a member; inf if none is, None if calls do not follow the score
    population: int  # number of known non-members behind the calls
    check: SelfCheck | None = None  # of a rule whose assumptions can fail
    silent_classes: tuple[int, ...] = ()  # without calls: too few known non-members belong to them
    instead_of: str | None = None  # rule whose check failed and which this call replaces


class DecisionRule(Protocol):
    """Which records are called members; inherit from it to get the defaults.

    A rule is a frozen value. It must give the same call for the same `Known`, must not depend on the order of records,
    and must flag every query whose statistic exceeds that of a flagged query (of the same class, if it needs labels).
    """

    name: ClassVar[str]
    """Key of the rule in ``metrics.json``."""
    needs_labels: ClassVar[bool] = False
    """Whether the rule raises `PopulationError` for a `Known` without labels."""
    level: float
    """False-positive rate that the rule may have, strictly between 0 and 1."""

    def __call__(self, known: Known) -> Call:
        """Return the call, or raise a `PlmiaError` that says what the rule needs."""

    def __post_init__(self) -> None:
        require_rate("level", self.level)

    @property
    def min_population(self) -> int:
        """Smallest population for which the rule makes calls; by default the one whose p-values reach the level."""
        return needed_population(self.level)

    def require(self, n: int, where: str = "population") -> None:
        """Raise `PopulationError` unless ``n`` known non-members are enough."""
        if n < self.min_population:
            raise PopulationError(
                f"the {self.name} rule at level {self.level:g} needs {self.min_population:,} known non-members, the "
                f"{where} has {n:,}: give more, or use a larger level"
            )


@dataclass(frozen=True)
class Analytic(DecisionRule):
    """The paper's threshold tau_alpha = tan(pi (1/2 - level)) on the combined score (`eq:cauchy_cali`).

    It assumes a Cauchy law that pairwise p-values with a common query do not have: even normal statistics exceed it 1.6
    to 1.9 times too often, skewed ones almost always. So each call carries a check: the share of the population whose
    leave-one-out combined p-value is at most the level.
    """

    level: float
    name: ClassVar[str] = "analytic"

    @property
    def min_population(self) -> int:
        """The combined p-value has no resolution; its check needs two records."""
        return 2

    def __call__(self, known: Known) -> Call:
        """Flag where the combined p-value is at most the level."""
        if not known.scores.has_combined_p:
            raise AttackError(
                f"{known.scores.attack} has no combined p-value, which the analytic rule needs: use an attack with "
                "Cauchy combination, or the conformal rule"
            )
        flagged = known.scores.log10_p <= np.log10(self.level)
        check = self_check(int(np.count_nonzero(flagged[known.population])), known.n, self.level)
        threshold = math.asinh(1 / math.tan(math.pi * self.level))
        return Call(self.name, self.level, flagged, threshold, known.n, check)


@dataclass(frozen=True)
class Conformal(DecisionRule):
    """Flag where the conformal p-value is at most the level.

    The false-positive rate, on average over draws of Z, is at most the level: without ties exactly
    floor(level (|Z| + 1)) / (|Z| + 1). Records of Z are compared with the rest of Z.
    """

    level: float
    name: ClassVar[str] = "conformal"

    def __call__(self, known: Known) -> Call:
        """Flag by the conformal p-value."""
        self.require(known.n)
        if known.n_compared is not None:
            self.require(known.n_compared, "smallest range of numbers of records")
        # One step up: the level and a p-value that is the same fraction may differ by the rounding of a logarithm.
        flagged = known.scores.log10_p_conformal <= np.nextafter(np.log10(self.level), 1)
        return Call(self.name, self.level, flagged, known.smallest_called(flagged), known.n)


@dataclass(frozen=True)
class ClassConformal(DecisionRule):
    """Conformal within each class (Mondrian): the false-positive rate holds in every class, not only overall.

    A class with fewer than `min_population` records of Z is silent: none of its records is called a member.
    """

    level: float
    name: ClassVar[str] = "class-conformal"
    needs_labels: ClassVar[bool] = True

    def __call__(self, known: Known) -> Call:
        """Flag within the classes that have enough known non-members."""
        if known.labels is None:
            raise PopulationError("the class-conformal rule needs labels: store `labels` [records] with the signals")
        classes = np.unique(known.labels)
        of_z = np.searchsorted(classes, known.labels[known.population])
        size = np.bincount(of_z, minlength=len(classes))
        self.require(int(size.max()), "largest class")
        # One sorted array for all classes: each has its own range of keys.
        rivals = np.sort(of_z * (known.n + 2) + known.ranks[known.population])
        enough = size >= self.min_population
        flagged = np.empty(len(known.labels), bool)
        for start in range(0, len(flagged), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            of_point, inside = np.searchsorted(classes, known.labels[part]), known.inside[part]
            base = of_point * (known.n + 2)
            key = base + known.ranks[part]
            # A query's rivals have smaller ranks; those of a z smaller or equal ones, and one of them is z itself.
            behind = np.searchsorted(rivals, key + inside, side="left") - np.searchsorted(rivals, base, side="left")
            own = size[of_point] - inside
            rank = 1 + behind - inside
            flagged[part] = (rank / (own + 1) <= self.level) & enough[of_point]
            memory.release()
        silent = tuple(int(label) for label in classes[~enough])
        return Call(self.name, self.level, flagged, None, known.n, silent_classes=silent)


def _call_at_rank(rule: DecisionRule, known: Known, k: int) -> Call:
    """Flag what exceeds the k-th largest statistic of Z."""
    flagged = known.scores.statistic > known.ordered[-k]
    return Call(rule.name, rule.level, flagged, known.smallest_called(flagged), known.n)


@dataclass(frozen=True)
class HeldOut(DecisionRule):
    """The empirical quantile of Z, as most software computes it: at most a share ``level`` of Z is flagged.

    A new non-member exceeds the cut with probability (floor(level |Z|) + 1) / (|Z| + 1) on average, above the level by
    up to 1 / (|Z| + 1). A level below that is refused: the cut would be the top of Z however small the level.
    """

    level: float
    name: ClassVar[str] = "held-out"

    def __call__(self, known: Known) -> Call:
        """Flag above the smallest cut that at most a share ``level`` of Z exceeds."""
        self.require(known.n)
        return _call_at_rank(self, known, largest_count(self.level, known.n) + 1)


@dataclass(frozen=True)
class Tolerance(DecisionRule):
    """A cut whose own false-positive rate is at most the level, with a confidence over the draw of Z.

    The conformal rule bounds the rate on average over draws of Z; for one draw it may be larger. This rule uses the
    largest k with P(Beta(k, |Z| + 1 - k) <= level) >= confidence (Wilks, 1941).

    Parameters
    ----------
    level : float
        False-positive rate.
    confidence : float
        Smallest share of draws of Z for which the rate holds.
    """

    level: float
    confidence: float = 0.95
    name: ClassVar[str] = "tolerance"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_rate("confidence", self.confidence)

    @property
    def min_population(self) -> int:
        """Smallest n with (1 - level)^n at most 1 - confidence: then k = 1 is confident enough."""
        return max(2, math.ceil(math.log1p(-self.confidence) / math.log1p(-self.level)))

    def __call__(self, known: Known) -> Call:
        """Flag above the k-th largest statistic of Z."""
        self.require(known.n)
        ranks = range(1, known.n + 1)
        k = bisect_left(ranks, True, key=lambda k: bool(betainc(k, known.n + 1 - k, self.level) < self.confidence))
        return _call_at_rank(self, known, max(1, k))


@dataclass(frozen=True)
class ModelledTail(DecisionRule):
    """Conformal where Z resolves the level; at finer levels a cautious model of the tail of Z.

    Where the model decides, it is checked: it is fitted to each half of Z and applied to the other half, as far beyond
    the half as the level is beyond Z. A statistic with many ties at the top has no tail to model and is refused.
    """

    level: float
    name: ClassVar[str] = "modelled-tail"

    @property
    def min_population(self) -> int:
        """Smallest population that resolves the level, or with which the model may extrapolate to it."""
        resolved = needed_population(self.level)
        return min(resolved, max(MIN_TO_EXTRAPOLATE, needed_population(min(1.0, MAX_EXTRAPOLATION * self.level))))

    def __call__(self, known: Known) -> Call:
        """Flag by the conformal p-value, or above the cut of the tail model."""
        self.require(known.n)
        if known.n >= needed_population(self.level):
            return replace(Conformal(self.level)(known), rule=self.name)
        phi = known.scores.statistic
        flagged = phi > fit_tail(phi[known.population]).cut(self.level)
        check = tail_check(phi[known.population], self.level)
        return Call(self.name, self.level, flagged, known.smallest_called(flagged), known.n, check)


def tail_check(values: FloatArray, level: float) -> SelfCheck:
    """Fit the tail of each half of the population [population] and count how many of the other half exceed its cut."""
    halves = values[0::2], values[1::2]
    # Finer than the resolution of a half by the same factor as the level is for the whole.
    tested = min(1.0, level * (len(values) + 1) / (len(halves[1]) + 1))
    cuts = [fit_tail(half).cut(tested) for half in halves]
    flagged = sum(int(np.count_nonzero(half > cut)) for half, cut in zip(halves, reversed(cuts), strict=True))
    return self_check(flagged, len(values), tested)


# All rules; each takes its level as the first argument.
RULES: tuple[Callable[[float], DecisionRule], ...]
RULES = (Analytic, Conformal, ClassConformal, HeldOut, Tolerance, ModelledTail)


def decide(rule: DecisionRule, known: Known) -> Call:
    """Return the call to act on: the rule's own, or the conformal one if the rule's check fails."""
    call = rule(known)
    if call.check is None or call.check.passed:
        return call
    return replace(Conformal(rule.level)(known), instead_of=call.rule)


@dataclass(frozen=True)
class Decision:
    """A call compared with the truth on the evaluated records; bounds are Clopper-Pearson's, given the call."""

    rule: str
    level: float
    threshold: float | None = None
    population: int | None = None
    flagged: int | None = None  # evaluated points called members
    fpr_realised: float | None = None  # share of non-members called members
    fpr_low: float | None = None
    fpr_high: float | None = None
    tpr: float | None = None  # share of members called members
    tpr_low: float | None = None
    tpr_high: float | None = None
    check: SelfCheck | None = None
    silent_classes: tuple[int, ...] = ()
    refused: str | None = None  # why the rule made no call; the numbers are then None


def judge(call: Call, members: BoolArray, queries: IntArray, confidence: float = 0.95) -> Decision:
    """Compare a call with the truth: ``members`` [records], on distinct evaluated records ``queries``."""
    return _judged(call, _sides(members, queries), confidence)


def judge_all(
    rules: Iterable[DecisionRule], known: Known, members: BoolArray, queries: IntArray, confidence: float = 0.95
) -> list[Decision]:
    """Judge the call of each rule; a rule that cannot be used here gives a decision with the reason (``refused``)."""
    decisions, sides = [], _sides(members, queries)
    for rule in rules:
        try:
            decisions.append(_judged(rule(known), sides, confidence))
            memory.release()
        except PlmiaError as error:
            decisions.append(Decision(rule.name, rule.level, population=known.n, refused=str(error)))
    return decisions


def _sides(members: BoolArray, queries: IntArray) -> tuple[BoolArray, BoolArray]:
    """Mark the evaluated non-members [records] and members [records]: counting in them is faster than selecting."""
    evaluated = np.zeros(len(members), bool)
    evaluated[queries] = True
    return evaluated & ~members, evaluated & members


def _judged(call: Call, sides: tuple[BoolArray, BoolArray], confidence: float) -> Decision:
    counts = [int(np.count_nonzero(call.flagged & side)) for side in sides]
    rates = [_rate(count, int(np.count_nonzero(side)), confidence) for count, side in zip(counts, sides, strict=True)]
    basis = call.rule, call.level, call.threshold, call.population, sum(counts)
    return Decision(*basis, *rates[0], *rates[1], call.check, call.silent_classes)


def _rate(count: int, n: int, confidence: float) -> tuple[float | None, float | None, float | None]:
    if not n:
        return None, None, None
    low, high = clopper_pearson(count, n, confidence)
    return count / n, float(low), float(high)


def needed_population(level: float) -> int:
    """Return the smallest n with 1 / (n + 1) <= level: how many known non-members a conformal rule needs."""
    n = math.ceil(1 / level) - 1
    # The quotient is rounded: one to either side may be the answer.
    if n > 1 and 1 / n <= level:
        return n - 1
    return max(1, n if 1 / (n + 1) <= level else n + 1)
