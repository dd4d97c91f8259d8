"""Are there enough references? Measure power with fewer of them, and extrapolate to more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from plmia.attacks.attack import Attack
from plmia.attacks.empirical_bayes.evidence import evenly
from plmia.attacks.scoring import Tick, score_all
from plmia.attacks.view import AttackView, References
from plmia.data import memory
from plmia.data.arrays import BoolArray, FloatArray, IntArray
from plmia.data.designs import MembershipDesign, ReferencePlan
from plmia.errors import ReferencesError, percent, round_percent
from plmia.evaluation.diagnostics.signals import MOST_EXAMINED, require_plausible
from plmia.evaluation.metrics import COMPARED_FPRS, fpr_key, roc_curve
from plmia.evaluation.targets import AttackResult, Setup, Unit, aligned, attack_targets, group_scores
from plmia.signals.signals import Signals

MIN_REFERENCES = 4
TO_EXTRAPOLATE = 16  # references, in complementary pairs, that an extrapolation needs
# Number of draws of half of the references, whose spread is a standard error, and of smaller parts.
HALF_DRAWS, SMALL_DRAWS = 8, 4
# Number of budgets in a fit, the largest ones: small budgets follow another law (two IN and two OUT references hardly
# give a variance). The fit has three parameters.
MIN_FITTED, MAX_FITTED = 3, 4
# An estimate from n references has an error of order 1 / sqrt(n); the loss in power is seldom worse.
RATES = np.linspace(0.5, 2.0, 31)
# With fewer false positives a TPR depends on a handful of non-members, and its trend is noise.
MIN_FALSE_POSITIVES = 5
FACTORS = (2, 4, 8)
# Errors of the extrapolation to twice the references (root mean squares, see `extrapolate`): of the AUC, and of the TPR
# at 1 % FPR as a share of it. That of the TPR doubles with each further decade of the FPR. The errors grow with the
# logarithm of the factor to the power 2/3, as they do from twice to four times the references.
AUC_ERROR, TPR_ERROR, ERROR_POWER = 0.002, 0.09, 2 / 3
# Smallest gain from doubling that is worth a warning: in AUC, and as a share of the TPR.
AUC_GAIN, TPR_GAIN = 0.01, 0.1


def needed_outsiders(fpr: float) -> int:
    """Return how many non-members a trend of the TPR at ``fpr`` needs among the queries."""
    return math.ceil(round(MIN_FALSE_POSITIVES / fpr, 9))


@dataclass(frozen=True)
class Pilot:
    """One attack on one target, to be repeated with fewer references, views or population points."""

    signals: Signals
    attack: Attack
    setup: Setup
    full: AttackResult  # with all references; the same queries, records or groups, are evaluated in every repetition
    fprs: tuple[float, ...]  # those that allow at least `MIN_FALSE_POSITIVES` non-members

    @classmethod
    def run(
        cls, signals: Signals, attack: Attack, target: int, setup: Setup, fprs: Iterable[float] = COMPARED_FPRS
    ) -> Pilot:
        """Attack ``target`` with all references that ``setup`` allows; implausible signals raise `SignalsError`."""
        require_plausible(signals)
        (full,) = attack_targets(signals, [attack], [target], setup)
        outsiders = int(np.sum(~full.truth.members[full.truth.queries]))
        return cls(signals, attack, setup, full, tuple(fpr for fpr in fprs if outsiders >= needed_outsiders(fpr)))

    @property
    def n_references(self) -> int:
        """Number of references."""
        return len(self.full.references)

    @property
    def unit(self) -> Unit:
        """What is judged: records, or groups by all of their records."""
        return "record" if self.full.groups is None else "group"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Keys of the values that `measure` returns: "auc", and the false-positive rates of the TPRs."""
        return "auc", *(fpr_key(fpr) for fpr in self.fprs)

    @cached_property
    def _models(self) -> tuple[IntArray, MembershipDesign]:
        """Numbers of the target and of its references, and their membership."""
        models = np.concatenate([[self.full.target], self.full.references])
        return models, MembershipDesign(self.signals.design.matrix[self.signals.rows(models)])

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        """Draw ``n`` of the references [n], in whole complementary pairs."""
        models, design = self._models
        plan = ReferencePlan.draw(design, n, rng)
        chosen: IntArray = models[np.sort(np.concatenate([plan.order[i] for i in plan.references_of(0)]))]
        return chosen

    def score(
        self,
        references: IntArray,
        views: int | None = None,
        population: IntArray | None = None,
        tick: Tick = lambda _: None,
    ) -> FloatArray:
        """Scores of the queries [Q] with some of the references, the first views, part of the population."""
        full = self.full
        given = full.unaligned or full.view
        seen = given.references  # not those of the signals: at some points some may have been dropped
        some = np.flatnonzero(np.isin(full.references, references))
        kept = References(seen.signals[:, :, :views], seen.rows[some], seen.in_mask[some])
        rivals = full.population if population is None else population
        known = rivals if full.groups is None else full.groups.records(rivals)
        view = AttackView(given.target[:, :views], kept, known, self.signals.labels, self.setup.mode)
        if full.alignment is not None:  # fewer references teach less about the target's scale
            truth = full.truth if full.one_record is None else full.one_record.truth
            view, _ = aligned(view, truth, replace(self.setup, align="always"), full.target, full.groups)
        if full.groups is None:
            (scores,) = score_all([self.attack], view, self.setup.seed, tick)
        else:
            (both,) = group_scores(full.target, rivals, full.groups, [self.attack], view, self.setup, tick)
            if not (both.learned or full.by_one_record):
                raise ReferencesError(
                    f"{len(references)} references are too few to judge people by all of their records: train more, or "
                    "judge records"
                )
            scores = both.groups
        return scores.score[full.truth.queries]

    @property
    def members(self) -> BoolArray:
        """Whether each query is a member [Q]."""
        return self.full.truth.members[self.full.truth.queries]

    def measure(
        self,
        references: IntArray,
        views: int | None = None,
        population: IntArray | None = None,
        tick: Tick = lambda _: None,
    ) -> tuple[float, ...]:
        """AUC and TPRs on the same queries, with what `score` takes."""
        roc = roc_curve(self.score(references, views, population, tick), self.members)
        return roc.auc, *(roc.tpr_at(fpr).tpr for fpr in self.fprs)

    def budgets(self) -> tuple[int, ...]:
        """All references, half of them, a quarter, ... down to four, as far as whole pairs allow; decreasing."""
        found: list[int] = []
        wanted = self.n_references
        while wanted >= MIN_REFERENCES:
            n = next((n for n in range(wanted, MIN_REFERENCES - 1, -1) if self._possible(n)), 0)
            if n and n not in found:
                found.append(n)
            wanted //= 2
        return tuple(found)

    def _possible(self, n: int) -> bool:
        try:
            self.draw(n, np.random.default_rng(0))
        except ReferencesError:
            return False
        return True

    def curves(
        self, rng: np.random.Generator, views: int | None = None, tick: Tick = lambda _: None
    ) -> tuple[Curve, ...]:
        """Power against the number of references: one curve for each of `metrics`."""
        measured: dict[int, FloatArray] = {}  # for each number of references [draws, metrics]
        for n in self.budgets():
            try:
                drawn = (self.draw(n, rng) for _ in range(self.draws(n)))
                measured[n] = np.array([self.measure(references, views, tick=tick) for references in drawn])
            except ReferencesError:
                if not measured:
                    raise
                break  # some point lacks references that the statistic needs, so smaller budgets would fail as well
        if not measured:
            raise ReferencesError(
                f"target {self.full.target} has {self.n_references} references, but {MIN_REFERENCES} are needed to "
                "extrapolate to more: train more"
            )
        budgets = tuple(sorted(measured))
        return tuple(
            Curve.of(key, budgets, [measured[n][:, k] for n in budgets], self.n_references)
            for k, key in enumerate(self.metrics)
        )

    def draws(self, n: int) -> int:
        """Number of draws of ``n`` references; all of them can be drawn only once."""
        if n == self.n_references:
            return 1
        return HALF_DRAWS if n > self.n_references // 4 else SMALL_DRAWS


@dataclass(frozen=True)
class Extrapolation:
    """Fitted power with n references: limit - slope / n^rate, with a rate in [0.5, 2]."""

    limit: float
    slope: float
    rate: float

    def at(self, n: float) -> float:
        """Power in [0, 1] with ``n`` references."""
        return min(max(self.limit - self.slope * math.pow(n, -self.rate), 0.0), 1.0)


def extrapolate(budgets: Sequence[int], values: Sequence[float]) -> Extrapolation | None:
    """Fit mean power (``values``) against increasing numbers of references (``budgets``); None for fewer than three.

    The largest budgets are fitted, each weighted by its size. On real signals (66 convolutional networks, 128
    perceptrons; four attacks) the error with twice as many references is 0.2 points of AUC, 9 % of the TPR at 1 % and,
    for the networks, 18 % of the TPR at 0.1 % (root mean squares); with four times as many 0.3 points, 14 % and 29 %.
    Those signals also served to choose the number of budgets and the range of rates.
    """
    if len(budgets) < MIN_FITTED:
        return None
    n, y = (np.array(part[-MAX_FITTED:], np.float64) for part in (budgets, values))
    best, least = Extrapolation(float(np.average(y, weights=n)), 0.0, 1.0), math.inf
    for rate in RATES:
        x = n**-rate
        centred = x - np.average(x, weights=n)
        # Power does not fall with more references: a slope of the wrong sign is noise.
        slope = max(0.0, -float(np.sum(n * centred * y) / np.sum(n * centred**2)))
        limit = float(np.average(y + slope * x, weights=n))
        error = float(np.sum(n * (y - limit + slope * x) ** 2))
        if error < least:
            best, least = Extrapolation(limit, slope, float(rate)), error
    return best


@dataclass(frozen=True)
class Curve:
    """Power against the number of references."""

    metric: str  # "auc", or the false-positive rate of the TPR
    budgets: tuple[int, ...]  # numbers of references, increasing
    mean: tuple[float, ...]  # power with each, averaged over draws
    deviation: tuple[float | None, ...]  # over draws; None for a single draw
    standard_error: float | None  # of the power with all references, due to their choice
    fit: Extrapolation | None  # None if fewer than three budgets were measured

    @classmethod
    def of(cls, metric: str, budgets: tuple[int, ...], draws: Sequence[FloatArray], full: int) -> Curve:
        """Summarise the draws [draws] of each budget; ``full`` is the number of all references."""
        mean = tuple(float(values.mean()) for values in draws)
        deviation = tuple(float(values.std(ddof=1)) if len(values) > 1 else None for values in draws)
        # A half drawn without replacement has half the variance of an independent half, which has twice the variance of
        # the whole: so halves spread as the whole.
        half = deviation[-2] if len(budgets) > 1 and budgets[-1] == full and budgets[-2] > full // 4 else None
        return cls(metric, budgets, mean, deviation, half, extrapolate(budgets, mean))

    @property
    def name(self) -> str:
        """The metric in words."""
        return "AUC" if self.metric == "auc" else f"TPR at {round_percent(float(self.metric))} FPR"

    def at(self, n: float) -> float | None:
        """Power with ``n`` references: interpolated, or extrapolated by the fit; None if neither is possible."""
        if n < self.budgets[0]:
            return None
        if n <= self.budgets[-1]:
            return float(np.interp(math.log(n), np.log(self.budgets), self.mean))
        if self.fit is None:
            return None
        return min(self.mean[-1] + self.fit.at(n) - self.fit.at(self.budgets[-1]), 1.0)

    def reference_error(self, n: float) -> float | None:
        """Standard error of the power with ``n`` references due to their choice; None if it was not measured.

        More references than the pilot's inherit the pilot's error, from which their power is extrapolated.
        """
        if self.standard_error is None:
            return None
        return self.standard_error * math.sqrt(max(1.0, self.budgets[-1] / n))

    def extrapolation_error(self, n: float) -> float:
        """Standard error of the power with ``n`` references due to the fit; 0 if the pilot has as many.

        A rule, not a measurement on these signals: see `AUC_ERROR`, `TPR_ERROR` and `ERROR_POWER`.
        """
        if n <= self.budgets[-1]:
            return 0.0
        further = math.pow(math.log2(n / self.budgets[-1]), ERROR_POWER)
        if self.metric == "auc":
            return AUC_ERROR * further
        decades = max(0.0, -2 - math.log10(float(self.metric)))
        return TPR_ERROR * math.pow(2, decades) * further * (self.at(n) or 0.0)

    def times(self, factor: float) -> float | None:
        """Power with ``factor`` times the references, extrapolated."""
        return self.at(factor * self.budgets[-1])

    def to_json(self) -> dict[str, Any]:
        """Plain values, and the extrapolations."""
        return asdict(self) | {f"at_{factor}x": self.times(factor) for factor in FACTORS}


@dataclass(frozen=True)
class EnoughReferences:
    """Whether more references would increase the power."""

    attack: str
    target: int
    n_references: int
    curves: tuple[Curve, ...]
    warning: str | None  # set if twice as many would gain enough (`AUC_GAIN`, `TPR_GAIN`), or if there are too few


def enough_references(
    signals: Signals, attack: Attack, target: int, setup: Setup, rng: np.random.Generator, tick: Tick = lambda _: None
) -> EnoughReferences:
    """Measure power with all, half, a quarter ... of the references, on the same queries, and extrapolate.

    Of more than `MOST_EXAMINED` records, so many are used, evenly spaced.
    """
    signals, setup = _sampled(signals, setup)
    # Power is measured on single records: one of each group where records form groups.
    pilot = Pilot.run(signals, attack, target, replace(setup, unit="record"))
    curves = pilot.curves(rng, tick=tick)
    return EnoughReferences(attack.name, target, pilot.n_references, curves, _warning(curves, pilot.n_references))


def _sampled(signals: Signals, setup: Setup, most: int = MOST_EXAMINED) -> tuple[Signals, Setup]:
    """Return at most ``most`` records, evenly spaced, and the setup with as large a share of them as the population."""
    if signals.n_points <= most:
        return signals, setup
    points = evenly(np.arange(signals.n_points), most)
    labels, groups = (None if array is None else array[points] for array in (signals.labels, signals.groups))
    values, members = (memory.gathered(matrix, points) for matrix in (signals.values, signals.design.matrix))
    size = setup.population and max(2, setup.population * most // signals.n_points)
    some = replace(signals, values=values, design=MembershipDesign(members), labels=labels, groups=groups)
    return some, replace(setup, population=size)


def _warning(curves: Sequence[Curve], n: int) -> str | None:
    if curves[0].fit is None and n >= TO_EXTRAPOLATE:
        return (
            f"what more than {n} references would find cannot be extrapolated: with a quarter of them, some records "
            "lack IN or OUT references"
        )
    if curves[0].fit is None:
        pairs = f"train at least {TO_EXTRAPOLATE}, in complementary pairs"
        return f"from {n} references, plmia cannot tell whether more would find more: {pairs}"
    found = []
    for curve in curves:
        doubled, now = curve.times(2), curve.mean[-1]
        needed = AUC_GAIN if curve.metric == "auc" else TPR_GAIN * now
        if doubled is not None and doubled - now > max(needed, 2 * (curve.standard_error or 0.0)):
            found.append(f"the {curve.name} from {percent(now)} to about {percent(doubled)}")
    if not found:
        return None
    return f"More references would find more: {2 * n} instead of {n} would raise {' and '.join(found)}"
