"""How to spend a budget: kinds of references, views, population and queries, from the signals of pilots.

Power is measured with fewer references and views than a pilot has, and extrapolated to more. Pilots whose references
were trained by different recipes are compared at equal cost: few full references, or many smaller ones. The population
and the queries cost no training. They change how precisely power is measured rather than power itself, so a plan lists
them separately.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

from plmia.attacks.attack import Attack
from plmia.attacks.scoring import Tick
from plmia.data.arrays import FloatArray
from plmia.errors import PlmiaError, PopulationError, percent, require_rate, round_percent
from plmia.evaluation.diagnostics.p_values import population_size
from plmia.evaluation.diagnostics.power import FACTORS, TO_EXTRAPOLATE, Curve, Pilot, needed_outsiders
from plmia.evaluation.intervals import auc_interval, tpr_interval
from plmia.evaluation.metrics import roc_curve, tpr_label
from plmia.evaluation.tables import text_table
from plmia.evaluation.targets import Setup, Unit
from plmia.results.comparison import compare, compare_auc
from plmia.signals.signals import Signals

MAX_FACTOR = FACTORS[-1]  # do not extrapolate beyond this multiple of the pilot's references
VIEW_COST = 0.01  # relative to a model: one forward pass over the points against dozens of passes in training
WORTH = 0.001  # references that add less power than this are not worth their cost
# Another kind replaces fewer than FEW references of the first, if it is expected to reach their power at this share of
# the cost. More references add less and less, and those unlike the target have the lower limit, so this does not pay
# with more of the first (docs/explanation/cost.md).
FEW, CHEAPER = 8, 0.4
BUDGET_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # rows of the table that compares kinds, as multiples of the budget
MAX_WIDTH = 120  # characters of a row of the table that compares kinds
Basis = Literal["measured", "interpolated", "extrapolated"]  # between or beyond the numbers that were measured
_NORMAL_95 = -float(ndtri(0.025))


@dataclass(frozen=True)
class Cost:
    """Cost of references, in models, seconds or floating-point operations."""

    model: float = 1.0  # of a reference with one view: its training, as a multiple of a model of the first pilot if so
    view: float = VIEW_COST  # of each further view, as a share of `model`
    unit: str = "models"  # "models", "seconds" or "operations"

    def __post_init__(self) -> None:
        if not (0 < self.model < math.inf and 0 <= self.view < math.inf):
            raise PlmiaError(
                f"a model costs {self.model:g} and a further view {self.view:g} of that, but the first must be above "
                "0, the second at least 0, and both finite: give a smaller cost, such as --view-cost 0.01"
            )

    def of(self, references: int, views: int) -> float:
        """Cost of references that are each queried with ``views`` views."""
        return references * self.model * (1 + self.view * (views - 1))

    def affordable(self, budget: float, views: int, step: int) -> int:
        """Largest number of references, a multiple of ``step``, that ``budget`` pays for with ``views`` views."""
        # Rounded, so that a budget of exactly 64 models gives 64 models.
        return step * int(round(budget / self.of(step, views), 9))


@dataclass(frozen=True)
class Uncertainty:
    """Interval of the power of a split at 95 %, and the errors that it adds in squares.

    It is about the attacked target and further records like its queries; another target may leak more or less.
    """

    low: float
    high: float
    references: float | None  # standard error due to the choice of references; None if it was not measured
    queries: tuple[float, float]  # distances to the ends of the 95 % interval over queries
    extrapolation: float  # standard error of the extrapolation, by the rule of `Curve.extrapolation_error`

    @classmethod
    def of(cls, curve: Curve, n: int, queries: tuple[float, float]) -> Uncertainty:
        """Uncertainty of the power with ``n`` references; ``queries`` is that of the pilot's interval over queries."""
        references, extrapolation = curve.reference_error(n), curve.extrapolation_error(n)
        errors = _NORMAL_95 * (references or 0.0), _NORMAL_95 * extrapolation
        below, above = (math.hypot(distance, *errors) for distance in queries)
        power = curve.at(n) or 0.0
        return cls(max(power - below, 0.0), min(power + above, 1.0), references, queries, extrapolation)


@dataclass(frozen=True)
class Split:
    """One way to spend a budget."""

    references: int
    views: int
    cost: float
    auc: float  # expected
    tpr: float | None  # expected at the plan's rate; None if the pilot has too few non-members
    basis: Basis  # of the power
    affordable: int  # exceeds `references` if more would add nothing, or too little is known about more
    kind: str  # of references: the name of one of the plan's kinds
    uncertainty: Uncertainty  # of `power`

    @property
    def extrapolated(self) -> bool:
        """Whether the pilot had fewer references."""
        return self.basis == "extrapolated"

    @property
    def power(self) -> float:
        """The metric that a plan maximises: the TPR, or the AUC if there is no TPR."""
        return self.auc if self.tpr is None else self.tpr


@dataclass(frozen=True)
class Kind:
    """References of one pilot: what they cost, and their power against their number."""

    name: str  # the recipe of the references
    n_references: int  # of the pilot
    n_views: int
    step: int  # 2 if references come in complementary pairs, else 1
    cost: Cost
    curves: dict[int, tuple[Curve, ...]]  # for each number of views, AUC and (if resolved) TPR
    like_target: bool | None = None  # trained by the recipe of the target; None if unknown
    # Codes of the cautions that they are unlike the target; None if no results say.
    cautions: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        curves = {str(views): [curve.to_json() for curve in some] for views, some in self.curves.items()}
        return asdict(self) | {"curves": curves}


@dataclass(frozen=True)
class Contrast:
    """Best split of the recommended kind against that of another kind, at the same budget."""

    kind: str  # the other one
    difference: float  # power of the recommended minus that of the other
    half_width: float  # of the 95 % interval of the difference
    # Fewest references of the recommended kind that are expected to reach the other's power, and their cost, if any do.
    same_power: int | None
    same_power_cost: float | None
    # Fewest references of the other kind that are expected to reach the power of the recommended one, likewise.
    other_same_power: int | None = None
    other_same_power_cost: float | None = None

    @property
    def level(self) -> bool:
        """Whether the difference is within its uncertainty; this does not show that the two are equal."""
        return abs(self.difference) <= self.half_width


@dataclass(frozen=True)
class PopulationRow:
    """Power with a population of ``size`` on the same queries, and the realised rate at the plan's nominal one."""

    size: int
    auc: float
    tpr: float | None
    resolution: float  # smallest conformal p-value
    expected: float | None  # mean over draws; None if the rate is not resolved
    spread: float | None  # its standard deviation


@dataclass(frozen=True)
class QueriesRow:
    """Precision with a number of evaluated members and non-members."""

    members: int
    non_members: int
    half_width: float | None  # of the 95 % interval of the TPR; None if the rate is not resolved


@dataclass(frozen=True)
class Plan:
    """How power depends on what is spent, and the best way to spend a budget.

    Parameters
    ----------
    attack, target, fpr : str, int, float
        What was run, on which model, and the false-positive rate of interest.
    kinds : tuple of Kind
        Kinds of references, one per pilot, in the given order (`plmia.plan` puts those that were trained like the
        target first); ``n_references``, ``n_views``, ``curves`` and ``cost`` are those of the first.
    population, queries : tuples of PopulationRow, of QueriesRow
        Measured with smaller populations, and expected with fewer and more queries, both with the first pilot.
    budget : float
        The budget in the unit of the costs.
    splits : tuple of Split
        The best split for each kind and number of views, the recommended one first.
    contrasts : tuple of Contrast
        The recommended kind against each other kind that the budget pays for.
    paired : bool
        Whether all pilots attack the same records with the same known non-members.
    words : tuple of str
        The plan in sentences.
    unit : {"record", "group"}
        What is found: records, or people, each judged by all of their records.
    """

    attack: str
    target: int
    fpr: float
    kinds: tuple[Kind, ...]
    population: tuple[PopulationRow, ...]
    queries: tuple[QueriesRow, ...]
    budget: float
    splits: tuple[Split, ...]
    contrasts: tuple[Contrast, ...]
    paired: bool
    words: tuple[str, ...]
    unit: Unit = "record"

    @property
    def n_references(self) -> int:
        """References of the first pilot."""
        return self.kinds[0].n_references

    @property
    def n_views(self) -> int:
        """Views of the first pilot."""
        return self.kinds[0].n_views

    @property
    def curves(self) -> dict[int, tuple[Curve, ...]]:
        """Power against the number of references of the first pilot, for each number of views."""
        return self.kinds[0].curves

    @property
    def cost(self) -> Cost:
        """Cost of references of the first pilot."""
        return self.kinds[0].cost

    @property
    def best(self) -> Split:
        """The recommended split; with one pilot the one of largest power, of two equal ones that with fewer views."""
        return self.splits[0]

    @property
    def best_kind(self) -> Kind:
        """The recommended kind of references."""
        return self.kind_of(self.best)

    def kind_of(self, split: Split) -> Kind:
        """Return the kind of references of a split."""
        return next(kind for kind in self.kinds if kind.name == split.kind)

    @property
    def text(self) -> str:
        """The plan in words, one sentence or two per line."""
        return "\n".join(self.words)

    @property
    def metric(self) -> int:
        """Position of the metric that is maximised among the curves: 1 for the TPR, 0 for the AUC."""
        return 0 if self.best.tpr is None else 1

    @property
    def heading(self) -> str:
        """What the table of power shows, and the names of the kinds that it shows as letters."""
        metric = tpr_label(self.fpr) if self.metric else "AUC"
        by = "references and views" if len(self.kinds) == 1 else "budget, with the number of references"
        whose = " of people" if self.unit == "group" else ""
        heading = f"{self.attack} on target {self.target}: {metric}{whose} in % by {by} (~ extrapolated)"
        letters = table_names(self)
        return "\n".join([heading, *(f"{letter}: {name}" for name, letter in letters.items() if letter != name)])

    @property
    def table(self) -> list[tuple[str, ...]]:
        """Power in percent, the head first: by references and views, or with several pilots by budget and kind."""
        return reference_table(self.kinds[0], self.metric) if len(self.kinds) == 1 else budget_table(self)

    def __repr__(self) -> str:
        return "\n".join(
            [*self.words[: 2 if self.best_kind.cautions else 1], self.heading, text_table(self.table, left=0)]
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; those of the first kind also beside the kinds."""
        first, *others = (kind.to_json() for kind in self.kinds)
        own = {name: first[name] for name in ("n_references", "n_views", "curves", "cost")}
        contrasts = [asdict(contrast) | {"level": contrast.level} for contrast in self.contrasts]
        more = {"kinds": [first, *others], "contrasts": contrasts, "best": asdict(self.best)}
        return asdict(replace(self, kinds=())) | own | more


def view_counts(n_views: int) -> tuple[int, ...]:
    """1, 2, 4, ... and all views."""
    return tuple(sorted({min(2**k, n_views) for k in range(n_views.bit_length() + 1)}))


def steps(*pilots: Pilot) -> int:
    """Number of records that `make_plan` or `plan_kinds` scores on these pilots, for a progress bar."""
    total = len(_population_sizes(len(pilots[0].full.population))) * pilots[0].signals.n_points
    for pilot in pilots:
        counts = view_counts(pilot.signals.n_views)
        total += (sum(pilot.draws(n) for n in pilot.budgets()) + 1) * len(counts) * pilot.signals.n_points
    return total


def start(signals: Signals, attack: Attack, target: int, setup: Setup, fpr: float) -> Pilot:
    """Run the attack once with all references of the pilot; ``fpr`` is the false-positive rate of interest."""
    require_rate("the false-positive rate", fpr)
    return Pilot.run(signals, attack, target, setup, (fpr,))


@dataclass(frozen=True)
class Choice:
    """A pilot to choose from: the name of its kind of references, and what one of them costs; the rest as in `Kind`."""

    name: str
    pilot: Pilot
    cost: Cost
    like_target: bool | None = None
    cautions: tuple[str, ...] | None = None


def make_plan(
    pilot: Pilot, fpr: float, cost: Cost, budget: float | None, seed: int, tick: Tick = lambda _: None
) -> Plan:
    """Measure power over a grid of references and views, and find the best split of a budget.

    ``pilot`` comes from `start` with the same ``fpr``; the default budget is twice its references with one view.
    """
    return plan_kinds([Choice("references", pilot, cost)], fpr, budget, seed, tick)


def plan_kinds(
    choices: Sequence[Choice], fpr: float, budget: float | None, seed: int, tick: Tick = lambda _: None
) -> Plan:
    """Find the best split of a budget among kinds of references, each with a pilot, and numbers of views.

    All costs have one unit. The budget pays for all references of one kind, those of its pilot included; the other
    pilots are not counted. Of kinds whose power cannot be told apart, the plan drops those with cautions, unless all
    have some, and takes the first pilot's, which should be like the target. If the budget pays for only a few of these
    (`FEW`), it takes another kind that is expected to reach the same power at a fraction of the cost (`CHEAPER`). If
    the first is worse, it takes the larger power.
    """
    if len({choice.pilot.unit for choice in choices}) > 1:
        people, others = (next(c.name for c in choices if c.pilot.unit == unit) for unit in ("group", "record"))
        raise PlmiaError(
            f"the pilot of {people} judges people and that of {others} judges records, so their power cannot be "
            'compared: plan with --unit record (unit="record")'
        )
    return plan_measured([MeasuredKind.of(choice, fpr, seed, tick) for choice in choices], budget, seed, tick)


def plan_measured(
    measured: Sequence[MeasuredKind], budget: float | None, seed: int, tick: Tick = lambda _: None
) -> Plan:
    """Plan with kinds whose power was measured before, so that several budgets measure it once; see `plan_kinds`."""
    first, fpr = measured[0].pilot, measured[0].fpr
    budget = measured[0].kind.cost.of(2 * first.n_references, 1) if budget is None else budget
    metric = int(all(one.pilot.fprs for one in measured))
    found = [split for one in measured for split in one.splits(budget, metric)]
    if not found:
        raise PlmiaError(_too_small(measured, budget))
    ranked = [split for _, split in sorted(found, key=lambda pair: (-pair[0], pair[1].views))]
    paired = all(_paired(first, one.pilot) for one in measured)
    contrasts = _Contrasts({one.kind.name: one for one in measured}, paired, fpr if metric else None, seed)
    best = contrasts.recommended(ranked, measured[0].kind.name)
    tables = _populations(first, fpr, np.random.default_rng([seed, 3]), tick), _queries(first, fpr)
    plan = Plan(
        first.attack.name,
        first.full.target,
        fpr,
        tuple(one.kind for one in measured),
        *tables,
        budget,
        (best, *(split for split in ranked if split is not best)),
        tuple(contrasts.of(best, other) for other in _best_of_kinds(ranked) if other.kind != best.kind),
        paired,
        (),
        first.unit,
    )
    return replace(plan, words=(*_words(plan), *_unit_words(first)))


@dataclass(frozen=True)
class MeasuredKind:
    """A kind of references with its pilot, and the scores of the queries [Q] for each number of views."""

    kind: Kind
    pilot: Pilot
    scores: dict[int, FloatArray]  # with all references
    fpr: float

    @classmethod
    def of(cls, choice: Choice, fpr: float, seed: int, tick: Tick) -> MeasuredKind:
        """Measure the power of a pilot with fewer references and views."""
        pilot = choice.pilot
        counts = view_counts(pilot.signals.n_views)
        # The same draws of references for each number of views: differences are then due to the views.
        curves = {views: pilot.curves(np.random.default_rng([seed, 2]), views, tick) for views in counts}
        scores = {views: pilot.score(pilot.full.references, views, tick=tick) for views in counts}
        step = 2 if pilot.full.view.references.paired else 1
        size, likeness = (pilot.n_references, pilot.signals.n_views, step), (choice.like_target, choice.cautions)
        kind = Kind(choice.name, *size, choice.cost, curves, *likeness)
        return cls(kind, pilot, scores, fpr)

    def over_queries(self, views: int, metric: int) -> tuple[float, float]:
        """Distances from the power of the pilot to the ends of its 95 % interval over queries."""
        roc = roc_curve(self.scores[views], self.pilot.members)
        interval = tpr_interval(roc, self.fpr) if metric else auc_interval(roc)
        power = roc.tpr_at(self.fpr).tpr if metric else roc.auc
        return power - interval.low, interval.high - power

    def splits(self, budget: float, metric: int) -> list[tuple[float, Split]]:
        """Return the best split for each number of views, after its power with all affordable references."""
        cost, found = self.kind.cost, []
        for views, curves in self.kind.curves.items():
            curve, affordable = curves[metric], cost.affordable(budget, views, self.kind.step)
            most = _usable(curve, affordable)
            power = curve.at(most)
            if power is None:
                continue
            n = _fewest(curve, most)
            auc, *tprs = (float(some.at(n) or 0.0) for some in curves[: metric + 1])
            more = _basis(curve, n), affordable, self.kind.name
            uncertainty = Uncertainty.of(curve, n, self.over_queries(views, metric))
            split = Split(n, views, cost.of(n, views), auc, tprs[0] if tprs else None, *more, uncertainty)
            found.append((power, split))
        return found


def _basis(curve: Curve, n: int) -> Basis:
    if n > curve.budgets[-1]:
        return "extrapolated"
    return "measured" if n in curve.budgets else "interpolated"


def _usable(curve: Curve, affordable: int) -> int:
    """Number of references for which the curve predicts power, at most ``affordable``."""
    return min(affordable, curve.budgets[-1] * (MAX_FACTOR if curve.fit else 1))


def _too_small(measured: Sequence[MeasuredKind], budget: float) -> str:
    kind = min((one.kind for one in measured), key=lambda kind: kind.cost.of(_fewest_measured(kind), 1))
    return (
        f"a budget of {amount_text(budget, kind.cost.unit)} pays for fewer references than the "
        f"{_fewest_measured(kind)} that were measured: give at least {_needed(kind)}"
    )


def _fewest_measured(kind: Kind) -> int:
    return min(some[0].budgets[0] for some in kind.curves.values())


def _needed(kind: Kind) -> str:
    """Smallest budget that pays for references of a kind, in words."""
    # More than what rounding takes away.
    needed = kind.cost.of(_fewest_measured(kind), 1) * (1.0 if kind.cost.unit == "models" else 1.01)
    return amount_text(needed, kind.cost.unit)


def _paired(a: Pilot, b: Pilot) -> bool:
    """Whether two pilots attack the same records with the same known non-members."""
    pairs = (
        (a.full.truth.queries, b.full.truth.queries),
        (a.full.truth.members, b.full.truth.members),
        (a.full.population, b.full.population),
    )
    return all(np.array_equal(mine, other) for mine, other in pairs)


def _best_of_kinds(ranked: Sequence[Split]) -> list[Split]:
    """Return the first split of each kind."""
    return list({split.kind: split for split in reversed(ranked)}.values())[::-1]


@dataclass(frozen=True)
class _Contrasts:
    """Differences between splits of different kinds, and their uncertainty."""

    measured: dict[str, MeasuredKind]
    paired: bool
    fpr: float | None  # None if the AUC is compared
    seed: int

    def of(self, a: Split, b: Split) -> Contrast:
        """Compare two splits: the errors of both references and extrapolations, and that of the queries, in squares.

        Over the same queries the difference of the pilots is resampled in pairs; else their intervals are independent.
        The errors of two extrapolations count as independent, so where they are alike the interval is too wide.
        """
        both = a.uncertainty, b.uncertainty
        errors = [error or 0.0 for one in both for error in (one.references, one.extrapolation)]
        half_width = math.hypot(self._over_queries(a, b), *(_NORMAL_95 * error for error in errors))
        same = [self._same_power(*pair) for pair in ((a, b), (b, a))]
        return Contrast(b.kind, a.power - b.power, half_width, *same[0], *same[1])

    def _same_power(self, split: Split, other: Split) -> tuple[int | None, float | None]:
        """Fewest references of a split's kind that are expected to reach the power of the other, and their cost."""
        kind = self.measured[split.kind].kind
        n = _fewest_for(kind, split, other.power)
        return n, None if n is None else kind.cost.of(n, split.views)

    def _over_queries(self, a: Split, b: Split) -> float:
        """Half width of the 95 % interval of the difference over queries."""
        if not self.paired:
            return math.hypot(*(sum(one.uncertainty.queries) / 2 for one in (a, b)))
        mine, other = (self.measured[one.kind].scores[one.views] for one in (a, b))
        members = self.measured[a.kind].pilot.members
        if self.fpr is None:
            found = compare_auc(mine, other, members)
        else:
            found = compare(mine, other, members, self.fpr, np.random.default_rng([self.seed, 6]))
        return (found.high - found.low) / 2

    def recommended(self, ranked: Sequence[Split], first: str) -> Split:
        """Choose among the best splits of each kind; see `plan_kinds`."""
        top, *others = _best_of_kinds(ranked)
        level = [top, *(other for other in others if self.of(top, other).level)]
        level = [split for split in level if not self.measured[split.kind].kind.cautions] or level
        usual = next((split for split in level if split.kind == first), level[0])
        costs = [(self.of(split, usual).same_power_cost, split) for split in level if split is not usual]
        cheaper = [(cost, split) for cost, split in costs if cost is not None and _replaces(cost, usual)]
        return min(cheaper, key=lambda pair: pair[0])[1] if cheaper else usual


def _replaces(cost: float, usual: Split) -> bool:
    """Whether another kind that reaches the power of ``usual`` at this cost is taken instead."""
    return usual.references < FEW and cost <= CHEAPER * usual.cost


def _fewest_for(kind: Kind, split: Split, power: float) -> int | None:
    """Fewest references, at most those of the split, whose expected power is within `WORTH` of ``power``."""
    curve = kind.curves[split.views][0 if split.tpr is None else 1]
    tried = range(curve.budgets[0], split.references + 1, kind.step)
    return next((n for n in tried if (curve.at(n) or 0.0) >= power - WORTH), None)


def _population_sizes(n: int) -> list[int]:
    """Population sizes to measure: ``n`` and smaller and smaller parts of it."""
    return sorted({size for size in (n // 64, n // 16, n // 4, n) if size >= 2})


def _populations(pilot: Pilot, fpr: float, rng: np.random.Generator, tick: Tick) -> tuple[PopulationRow, ...]:
    """Measure power with smaller and smaller parts of the population."""
    everyone, rows = pilot.full.population, []
    order = rng.permutation(everyone)
    for size in _population_sizes(len(everyone)):
        some = np.sort(order[:size])
        try:
            auc, *tprs = pilot.measure(pilot.full.references, population=some, tick=tick)
        except PopulationError:
            continue  # too few for this attack, which may compare within classes
        # People are compared with those who have similar numbers of records.
        about = population_size(replace(pilot.full, population=some).n_compared, (fpr,))
        tpr = tprs[0] if tprs else None
        rows.append(PopulationRow(size, auc, tpr, about.resolution, about.expected[0], about.spread[0]))
    return tuple(rows)


def _queries(pilot: Pilot, fpr: float) -> tuple[QueriesRow, ...]:
    """Width of the interval of the TPR with a quarter of the queries, with all, and with four times as many."""
    points = pilot.full.truth.queries
    members = pilot.full.truth.members[points]
    roc, rows = roc_curve(pilot.full.scores.score[points], members), []
    for factor in (0.25, 1.0, 4.0):
        inside, outside = (int(factor * np.sum(members == which)) for which in (True, False))
        width = None
        if pilot.fprs and inside and round(outside * fpr, 9) >= 1:
            # The pilot's width, including the error of the threshold, shrinks with the root of the number.
            now = tpr_interval(roc, fpr)
            width = (now.high - now.low) / 2 / math.sqrt(factor)
        rows.append(QueriesRow(inside, outside, width))
    return tuple(rows)


def _fewest(curve: Curve, most: int) -> int:
    """Smallest number of references, at least the pilot's, whose power is within `WORTH` of that of ``most``."""
    there = curve.budgets[-1]
    tried = [n for n in (there, *(factor * there for factor in FACTORS)) if n < most]
    best = curve.at(most) or 0.0
    return next((n for n in tried if best - (curve.at(n) or 0.0) < WORTH), most)


# Sentences ------------------------------------------------------------------------------------------------------------


def _words(plan: Plan) -> tuple[str, ...]:
    return (
        _best_words(plan),
        *_caution_words(plan),
        *_kind_words(plan),
        *_view_words(plan),
        *_reference_words(plan),
        _uncertainty_words(plan),
        *_size_words(plan),
    )


def amount_text(amount: float, unit: str) -> str:
    """Write a cost or a budget in words: 64 models, 2 h, 1.5 PFLOP."""
    if unit == "seconds":
        size, name = next((pair for pair in ((3600.0, "h"), (60.0, "min")) if amount >= 2 * pair[0]), (1.0, "s"))
        return f"{amount / size:.3g} {name}"
    if unit == "operations":
        sizes = ((1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"))
        size, name = next((pair for pair in sizes if amount >= pair[0]), (1.0, "FLOP"))
        return f"{amount / size:.3g} {name}"
    number = f"{amount:,.0f}" if amount >= 10 else f"{amount:g}"
    return f"{number} {unit.removesuffix('s') if number == '1' else unit}"


def _budget_text(plan: Plan) -> str:
    """The budget; with several pilots, a number of models means those of the first."""
    if plan.cost.unit == "models" and len(plan.kinds) > 1:
        return f"the cost of {amount_text(plan.budget, 'references')} of {plan.kinds[0].name}"
    return amount_text(plan.budget, plan.cost.unit)


def _named(plan: Plan) -> str:
    """The metric that is maximised, with its article."""
    return f"a TPR at {round_percent(plan.fpr)} FPR" if plan.metric else "an AUC"


def _references(plan: Plan, split: Split) -> str:
    """Number of references, and their kind if there are several."""
    return f"{split.references:,} references" + (f" of {split.kind}" if len(plan.kinds) > 1 else "")


def _counted(plan: Plan, split: Split) -> str:
    """Number of references, how many of them the pilot has, and their views."""
    there = plan.kind_of(split).n_references
    more = split.references - there
    those = f"the pilot's {there:,} and {more:,} more" if more > 0 else "all in the pilot"
    return f"{_references(plan, split)} ({those}) and {_views(split.views)}"


def _interval(split: Split) -> str:
    low, high = (percent(end) for end in (split.uncertainty.low, split.uncertainty.high))
    return f"95 %: {low.removesuffix(' %')} to {high}"


def _how(plan: Plan, split: Split) -> str:
    """Whether power was measured, interpolated or extrapolated, and from how many references."""
    there = plan.kind_of(split).n_references
    if split.basis == "interpolated":
        budgets = plan.kind_of(split).curves[split.views][plan.metric].budgets
        after = next(k for k, n in enumerate(budgets) if n > split.references)
        return f"interpolated between {budgets[after - 1]} and {budgets[after]}"
    # Beyond twice the pilot's references the error of the fit is a tenth or more.
    roughly = "roughly " * (split.references > 2 * there)
    return f"{roughly}extrapolated from {there}" if split.extrapolated else "measured"


def _best_words(plan: Plan) -> str:
    best, there = plan.best, plan.best_kind.n_references
    spent = _counted(plan, best)
    found = f"{_named(plan)} of about {percent(best.power)} ({_interval(best)}, {_how(plan, best)})"
    first, most, rest = _first_more(plan), min(best.affordable, MAX_FACTOR * there), ""
    if first is not None:
        kind = f" of {best.kind}" if len(plan.kinds) > 1 else ""
        return (
            f"With {_budget_text(plan)}: train {first - there} more references{kind} first, {first} in all, and plan "
            f"again. {spent} reach {found}; they do not tell whether more would find more."
        )
    if best.references == MAX_FACTOR * there:
        rest = f"; the plan does not extrapolate beyond {MAX_FACTOR} times the pilot's references"
    elif best.references < most:
        rest = f"; the budget pays for {best.affordable:,}, which would add less than {100 * WORTH:g} points"
    return f"With {_budget_text(plan)}: {spent}, for {found}{rest}."


def _first_more(plan: Plan) -> int | None:
    """Number of references to train first if the pilot has too few to extrapolate, as far as the budget allows."""
    best, kind = plan.best, plan.best_kind
    if kind.curves[best.views][0].fit is not None or best.affordable <= kind.n_references:
        return None
    return min(max(TO_EXTRAPOLATE, 2 * kind.n_references), best.affordable)


def _caution_words(plan: Plan) -> list[str]:
    """Say what an audit with the recommended references cannot show, and which kinds do not have this limit."""
    if not plan.best_kind.cautions:
        return []
    whose = "The references have" if len(plan.kinds) == 1 else f"The references of {plan.best.kind} have"
    text = f"{whose} {_caution_codes(plan.best_kind)}: an audit with them can show a leak, but never its absence."
    if others := [kind.name for kind in plan.kinds if kind.cautions == ()]:
        text += f" References of {' and of '.join(others)} have no such caution."
    return [text]


def _caution_codes(kind: Kind) -> str:
    """Cautions of a kind by their codes, in words."""
    *others, last = kind.cautions or ()
    return f"the cautions {', '.join(others)} and {last}" if others else f"the caution {last}"


def _kind_words(plan: Plan) -> list[str]:
    """What the other kinds of references would give for the same budget."""
    words = []
    for contrast in plan.contrasts:
        other = next(split for split in plan.splits if split.kind == contrast.kind)
        less, about = 100 * contrast.difference, f"{_interval(other)}, {_how(plan, other)}"
        text = f"{_counted(plan, other)} instead: about {percent(other.power)} ({about})"
        if contrast.level:
            text += (
                f". The difference ({-less:+.2f} ± {100 * contrast.half_width:.2f} points) is within its uncertainty: "
                f"the pilots do not show which is better. {_reason(plan, contrast, other)}."
            )
            if contrast.other_same_power is not None and contrast.other_same_power_cost is not None:
                needed = amount_text(contrast.other_same_power_cost, plan.cost.unit)
                text += (
                    f" {contrast.other_same_power:,} references of {other.kind} ({needed}) are expected to reach the "
                    f"{percent(plan.best.power)} of the recommended ones."
                )
        else:
            text += f", {less:.2f} ± {100 * contrast.half_width:.2f} points less."
        words.append(text)
    for kind in plan.kinds:
        if kind.name not in {split.kind for split in plan.splits}:
            words.append(
                f"The budget does not pay for {_fewest_measured(kind)} references of {kind.name}, the fewest that were "
                f"measured: give at least {_needed(kind)} for these."
            )
    if not plan.paired:
        words.append(
            "The pilots attack different records or non-members, as with other seeds. Part of the difference is then "
            "due to these, not to the references: use one seed for all pilots."
        )
    return words


def _reason(plan: Plan, contrast: Contrast, other: Split) -> str:
    """Say why the recommended split is taken instead of another that cannot be told apart from it."""
    cost, kinds = contrast.same_power_cost, (plan.best_kind, plan.kind_of(other))
    if kinds[1].cautions and not kinds[0].cautions:
        return (
            f"The plan avoids references of {other.kind} because of {_caution_codes(kinds[1])}: an audit with them can "
            "show a leak, but never its absence"
        )
    if cost is not None and _replaces(cost, other):
        needed = f"{contrast.same_power} references, {amount_text(cost, plan.cost.unit)}"
        share = round_percent(CHEAPER)
        return (
            f"The plan takes the kind that is expected to reach {percent(other.power)} at {share} of the cost or less "
            f"({needed})"
        )
    if plan.best.kind == plan.kinds[0].name:
        if kinds[0].like_target and not kinds[1].like_target:
            return "The plan takes the references that were trained like the target"
        why = "both kinds were" if kinds[0].like_target else "neither kind is known to be"
        return (
            f"The order of the pilots decides, since {why} trained like the target: the plan takes the references of "
            "the first"
        )
    return "The plan takes the larger estimate"


def _view_words(plan: Plan) -> list[str]:
    """Expected power of the other numbers of views of the recommended kind for the same budget."""
    words = []
    others = [split for split in plan.splits[1:] if split.kind == plan.best.kind]
    for split in sorted(others, key=lambda split: split.views):
        less = plan.best.power - split.power
        worse = "about as much" if less < 0.00005 else f"{100 * less:.2f} points less"
        words.append(
            f"{_views(split.views).capitalize()} instead would leave {split.references} references and "
            f"{_named(plan)} of about {percent(split.power)}, {worse}."
        )
    return words


def _reference_words(plan: Plan) -> list[str]:
    """Gain from doubling the references at the best number of views, and the pilot's standard error."""
    kind, curve = plan.best_kind, plan.best_kind.curves[plan.best.views][plan.metric]
    there = _references(plan, replace(plan.best, references=kind.n_references))
    doubled = curve.times(2)
    if doubled is None:
        few = (
            f"From {there}, plmia cannot tell whether more would find more: train at least {TO_EXTRAPOLATE} in all, in "
            "complementary pairs."
        )
        return [few] if _first_more(plan) is None else []
    noise = f" (± {100 * curve.standard_error:.2f} by the choice of references)" if curve.standard_error else ""
    now = f"With {_views(plan.best.views)}, {there} reach {_named(plan)} of"
    return [f"{now} {percent(curve.mean[-1])}{noise}, twice as many about {percent(doubled)}."]


def _uncertainty_words(plan: Plan) -> str:
    """What the interval of the recommended split includes."""
    errors = plan.best.uncertainty
    below, above = (100 * distance for distance in errors.queries)
    parts = [f"the sample of evaluated {_noun(plan)} (-{below:.2f}, +{above:.2f} points)"]
    if errors.references is not None:
        parts.append(f"the choice of references (± {100 * _NORMAL_95 * errors.references:.2f})")
    if errors.extrapolation:
        error = 100 * _NORMAL_95 * errors.extrapolation
        parts.append(f"the extrapolation (± {error:.2f}, by a rule from other signals)")
    included = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    missing = "" if errors.references is not None else " The choice of references is left out: the pilot has too few."
    return f"The 95 % interval includes {included}.{missing} Another target may leak more or less than this one."


def _size_words(plan: Plan) -> list[str]:
    """How large the population and the queries should be."""
    about, rate = population_size(plan.population[-1].size, (plan.fpr,)), round_percent(plan.fpr)
    people = plan.unit == "group"
    known = "people in the population with similar numbers of records" if people else "population records"
    aim = (
        "The population and the queries cost no training. They change the precision of the result rather than the "
        f"power: {about.needed[0]:,} {known} resolve a false-positive rate of {rate}, and "
        f"{about.needed_stable[0]:,} keep the realised rate within a tenth of it. The estimate of that rate is most "
        "precise if as many non-members are queries."
    )
    if plan.metric:
        return [aim]
    lack = (
        f"To plan for a TPR at {rate} FPR, {needed_outsiders(plan.fpr):,} non-members are needed among the queries, "
        f"and there are {plan.queries[1].non_members:,}: this split is the best for the AUC."
    )
    return [aim, lack]


def _noun(plan: Plan) -> str:
    return "people" if plan.unit == "group" else "records"


def _unit_words(pilot: Pilot) -> list[str]:
    """Say whether people or single records are judged where records form groups, and how to plan for the other."""
    if pilot.signals.groups is None or len(np.unique(pilot.signals.groups)) == pilot.signals.n_points:
        return []
    if pilot.unit == "record":
        text = "Power is that on one record of each person. Plan with --unit group for people judged by all of theirs."
    elif pilot.full.by_one_record:
        text = (
            "The pilot has too few references to judge people by all of their records, so each is judged by one: train "
            "more and plan again."
        )
    else:
        text = "Power is that on people, each judged by all of their records. Plan with --unit record for records."
    return [text]


def _views(n: int) -> str:
    return f"{n} view{'s' * (n > 1)}"


# Tables ---------------------------------------------------------------------------------------------------------------


def reference_table(kind: Kind, metric: int) -> list[tuple[str, ...]]:
    """Power in percent of one kind by references and views, the head first."""
    some = next(iter(kind.curves.values()))[0]
    rows = [("references", *(_views(views) for views in kind.curves))]
    for n in (*some.budgets, *(factor * some.budgets[-1] for factor in FACTORS)):
        rows.append((f"{n:,}", *(_cell(curves[metric], n) for curves in kind.curves.values())))
    return rows


def rows_of(plan: Plan) -> list[tuple[str, ...]]:
    """Rows of the table of the first kind: the number of references, then power in percent for each number of views."""
    return reference_table(plan.kinds[0], plan.metric)[1:]


def budget_table(plan: Plan) -> list[tuple[str, ...]]:
    """Power in percent by budget, for each kind with the views of its best split, the head first."""
    return _budget_table(plan, table_names(plan))


def table_names(plan: Plan) -> dict[str, str]:
    """Names of the kinds in the table by their own names: letters, if a row would be too long with these."""
    own = {kind.name: kind.name for kind in plan.kinds}
    if len(own) == 1:
        return own
    widths = [max(map(len, column)) for column in zip(*_budget_table(plan, own), strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) <= MAX_WIDTH:
        return own
    return dict(zip(own, string.ascii_uppercase, strict=False)) if len(own) <= len(string.ascii_uppercase) else own


def _budget_table(plan: Plan, names: Mapping[str, str]) -> list[tuple[str, ...]]:
    columns = [(plan.kind_of(split), split) for split in _best_of_kinds(plan.splits)]
    columns.sort(key=lambda pair: plan.kinds.index(pair[0]))
    head = f"budget in models of {names[plan.kinds[0].name]}" if plan.cost.unit == "models" else "budget"
    rows = [(head, *(f"{names[kind.name]}, {_views(split.views)}" for kind, split in columns))]
    for factor in BUDGET_FACTORS:
        cells = []
        for kind, split in columns:
            curve = kind.curves[split.views][plan.metric]
            n = _usable(curve, kind.cost.affordable(factor * plan.budget, split.views, kind.step))
            cells.append(f"{_cell(curve, n)} ({n:,})")
        rows.append((amount_text(factor * plan.budget, plan.cost.unit), *cells))
    return rows


def _cell(curve: Curve, n: int) -> str:
    power = curve.at(n)
    return "–" if power is None else f"{'~' * (n > curve.budgets[-1])}{100 * power:.2f}"
