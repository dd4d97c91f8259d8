"""How to spend a budget: references, views, population and queries, from the signals of a pilot.

Power is measured with fewer references and views than the pilot has, and extrapolated to more. The population and the
queries cost no training. They change how precisely power is measured rather than power itself, so a plan lists them
separately.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from plmia.attacks.attack import Attack
from plmia.attacks.scoring import Tick
from plmia.errors import PlmiaError, PopulationError, percent, require_rate, round_percent
from plmia.evaluation.diagnostics.p_values import population_size
from plmia.evaluation.diagnostics.power import FACTORS, TO_EXTRAPOLATE, Curve, Pilot, needed_outsiders
from plmia.evaluation.intervals import tpr_interval
from plmia.evaluation.metrics import roc_curve, tpr_label
from plmia.evaluation.tables import text_table
from plmia.evaluation.targets import Setup
from plmia.signals.signals import Signals

MAX_FACTOR = FACTORS[-1]  # do not extrapolate beyond this multiple of the pilot's references
VIEW_COST = 0.01  # relative to a model: one forward pass over the points against dozens of passes in training
WORTH = 0.001  # references that add less power than this are not worth their cost


@dataclass(frozen=True)
class Cost:
    """Cost of references, in models or in seconds."""

    model: float = 1.0  # of a reference with one view: 1, or its training time in seconds
    view: float = VIEW_COST  # of each further view, as a share of `model`
    unit: str = "models"  # "models" or "seconds"

    def __post_init__(self) -> None:
        if not (self.model > 0 and self.view >= 0):
            raise PlmiaError(
                f"a model costs {self.model:g} and a further view {self.view:g} of that, but the first must be above 0 "
                "and the second at least 0"
            )

    def of(self, references: int, views: int) -> float:
        """Cost of references that are each queried with ``views`` views."""
        return references * self.model * (1 + self.view * (views - 1))

    def affordable(self, budget: float, views: int, step: int) -> int:
        """Largest number of references, a multiple of ``step``, that ``budget`` pays for with ``views`` views."""
        # Rounded, so that a budget of exactly 64 models gives 64 models.
        return step * int(round(budget / self.of(step, views), 9))


@dataclass(frozen=True)
class Split:
    """One way to spend a budget."""

    references: int
    views: int
    cost: float
    auc: float  # expected
    tpr: float | None  # expected at the plan's rate; None if the pilot has too few non-members
    extrapolated: bool  # whether the pilot had fewer references
    affordable: int  # exceeds `references` if more would add nothing, or too little is known about more

    @property
    def power(self) -> float:
        """The metric that a plan maximises: the TPR, or the AUC if there is no TPR."""
        return self.auc if self.tpr is None else self.tpr


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
    n_references, n_views : int
        References and views of the pilot.
    curves : dict of int to tuple of Curve
        For each number of views, AUC and (if resolved) TPR against the number of references.
    population, queries : tuples of PopulationRow, of QueriesRow
        Measured with smaller populations, and expected with fewer and more queries.
    cost, budget : Cost, float
        Cost of references, and the budget in its unit.
    splits : tuple of Split
        The best split for each number of views, best first.
    words : tuple of str
        The plan in sentences.
    """

    attack: str
    target: int
    fpr: float
    n_references: int
    n_views: int
    curves: dict[int, tuple[Curve, ...]]
    population: tuple[PopulationRow, ...]
    queries: tuple[QueriesRow, ...]
    cost: Cost
    budget: float
    splits: tuple[Split, ...]
    words: tuple[str, ...]

    @property
    def best(self) -> Split:
        """The split of largest power; of two equal ones, the one with fewer views."""
        return self.splits[0]

    @property
    def text(self) -> str:
        """The plan in words, one sentence or two per line."""
        return "\n".join(self.words)

    @property
    def heading(self) -> str:
        """What the table of power shows."""
        metric = "AUC" if self.best.tpr is None else tpr_label(self.fpr)
        return f"{self.attack} on target {self.target}: {metric} in % by references and views (~ extrapolated)"

    @property
    def table(self) -> list[tuple[str, ...]]:
        """Power in percent by references and views, the head first."""
        return [("references", *(_views(views) for views in self.curves)), *rows_of(self)]

    def __repr__(self) -> str:
        return "\n".join([*self.words[:1], self.heading, text_table(self.table, left=0)])

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        curves = {str(views): [curve.to_json() for curve in some] for views, some in self.curves.items()}
        return asdict(self) | {"curves": curves, "best": asdict(self.best)}


def view_counts(n_views: int) -> tuple[int, ...]:
    """1, 2, 4, ... and all views."""
    return tuple(sorted({min(2**k, n_views) for k in range(n_views.bit_length() + 1)}))


def steps(pilot: Pilot) -> int:
    """Number of records that `make_plan` scores on this pilot, for a progress bar."""
    runs = sum(pilot.draws(n) for n in pilot.budgets()) * len(view_counts(pilot.signals.n_views))
    return (runs + len(_population_sizes(len(pilot.full.population)))) * pilot.signals.n_points


def start(signals: Signals, attack: Attack, target: int, setup: Setup, fpr: float) -> Pilot:
    """Run the attack once with all references of the pilot; ``fpr`` is the false-positive rate of interest."""
    require_rate("the false-positive rate", fpr)
    return Pilot.run(signals, attack, target, setup, (fpr,))


def make_plan(
    pilot: Pilot, fpr: float, cost: Cost, budget: float | None, seed: int, tick: Tick = lambda _: None
) -> Plan:
    """Measure power over a grid of references and views, and find the best split of a budget.

    ``pilot`` comes from `start` with the same ``fpr``; the default budget is twice its references with one view.
    """
    n, n_views = pilot.n_references, pilot.signals.n_views
    # The same draws of references for each number of views: differences are then due to the views.
    curves = {views: pilot.curves(np.random.default_rng([seed, 2]), views, tick) for views in view_counts(n_views)}
    budget = cost.of(2 * n, 1) if budget is None else budget
    splits = _splits(pilot, curves, cost, budget)
    tables = _populations(pilot, fpr, np.random.default_rng([seed, 3]), tick), _queries(pilot, fpr)
    plan = Plan(pilot.attack.name, pilot.full.target, fpr, n, n_views, curves, *tables, cost, budget, splits, ())
    words = (_best_words(plan), *_view_words(plan), *_reference_words(plan), *_size_words(plan))
    return replace(plan, words=words)


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
        about = population_size(size, (fpr,))
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


def _splits(pilot: Pilot, curves: dict[int, tuple[Curve, ...]], cost: Cost, budget: float) -> tuple[Split, ...]:
    """Return the best split for each number of views, the best of all first."""
    step = 2 if pilot.full.view.references.paired else 1
    found: list[tuple[float, Split]] = []
    for views, some in curves.items():
        auc, *tprs = some
        affordable = cost.affordable(budget, views, step)
        most = min(affordable, auc.budgets[-1] * (MAX_FACTOR if auc.fit else 1))
        power = some[-1].at(most)
        if power is None:
            continue
        n = _fewest(some[-1], most)
        expected = [float(curve.at(n) or 0.0) for curve in some]
        tpr = expected[1] if tprs else None
        split = Split(n, views, cost.of(n, views), expected[0], tpr, n > auc.budgets[-1], affordable)
        found.append((power, split))
    if not found:
        least = min(curve.budgets[0] for curve, *_ in curves.values())
        raise PlmiaError(
            f"a budget of {budget:g} {cost.unit} pays for fewer references than the {least} that were measured: give "
            f"at least {cost.of(least, 1):g}"
        )
    return tuple(split for _, split in sorted(found, key=lambda pair: (-pair[0], pair[1].views)))


def _fewest(curve: Curve, most: int) -> int:
    """Smallest number of references, at least the pilot's, whose power is within `WORTH` of that of ``most``."""
    there = curve.budgets[-1]
    tried = [n for n in (there, *(factor * there for factor in FACTORS)) if n < most]
    best = curve.at(most) or 0.0
    return next((n for n in tried if best - (curve.at(n) or 0.0) < WORTH), most)


def _named(plan: Plan) -> str:
    """The metric that is maximised, with its article."""
    return "an AUC" if plan.best.tpr is None else f"a TPR at {round_percent(plan.fpr)} FPR"


def _best_words(plan: Plan) -> str:
    best = plan.best
    # Beyond twice the pilot's references the error of the fit is a tenth or more.
    roughly = "roughly " * (best.references > 2 * plan.n_references)
    how = f"{roughly}extrapolated from {plan.n_references}" if best.extrapolated else "measured"
    budget = f"{plan.budget:,.0f} {plan.cost.unit}" if plan.budget >= 10 else f"{plan.budget:g} {plan.cost.unit}"
    first, most, rest = _first_more(plan), min(best.affordable, MAX_FACTOR * plan.n_references), ""
    if first is not None:
        return (
            f"With {budget}: train {first} references first and plan again. {best.references} references and "
            f"{_views(best.views)} reach {_named(plan)} of about {percent(best.power)} (measured), and are too few to "
            "extrapolate to more."
        )
    if best.references == MAX_FACTOR * plan.n_references:
        rest = f"; the plan does not extrapolate beyond {MAX_FACTOR} times the pilot's references"
    elif best.references < most:
        rest = f"; the budget pays for {most}, which would add less than {100 * WORTH:g} points"
    return (
        f"With {budget}: {best.references} references and {_views(best.views)}, for {_named(plan)} of about "
        f"{percent(best.power)} ({how}){rest}."
    )


def _first_more(plan: Plan) -> int | None:
    """Number of references to train first if the pilot has too few to extrapolate, as far as the budget allows."""
    best = plan.best
    if plan.curves[best.views][0].fit is not None or best.affordable <= plan.n_references:
        return None
    return min(max(TO_EXTRAPOLATE, 2 * plan.n_references), best.affordable)


def _view_words(plan: Plan) -> list[str]:
    """Expected power of the other numbers of views for the same budget."""
    words = []
    for split in sorted(plan.splits[1:], key=lambda split: split.views):
        less = plan.best.power - split.power
        worse = "about as much" if less < 0.00005 else f"{100 * less:.2f} points less"
        words.append(
            f"{_views(split.views).capitalize()} instead would leave {split.references} references and "
            f"{_named(plan)} of about {percent(split.power)}, {worse}."
        )
    return words


def _reference_words(plan: Plan) -> list[str]:
    """Gain from doubling the references at the best number of views, and the pilot's standard error."""
    curve = plan.curves[plan.best.views][0 if plan.best.tpr is None else 1]
    doubled = curve.times(2)
    if doubled is None:
        few = f"{plan.n_references} references are too few to extrapolate to more: train at least {TO_EXTRAPOLATE}, "
        return [few + "in complementary pairs."] if _first_more(plan) is None else []
    noise = f" (± {100 * curve.standard_error:.2f} by the choice of references)" if curve.standard_error else ""
    now = f"With {_views(plan.best.views)}, {plan.n_references} references reach {_named(plan)} of"
    return [f"{now} {percent(curve.mean[-1])}{noise}, twice as many about {percent(doubled)}."]


def _size_words(plan: Plan) -> list[str]:
    """How large the population and the queries should be."""
    about, rate = population_size(plan.population[-1].size, (plan.fpr,)), round_percent(plan.fpr)
    aim = (
        "The population and the queries cost no training. They change the precision of the result rather than the "
        f"power: {about.needed[0]:,} population records resolve a false-positive rate of {rate}, and "
        f"{about.needed_stable[0]:,} keep the realised rate within a tenth of it. The estimate of that rate is most "
        "precise if as many non-members are queries."
    )
    if plan.best.tpr is not None:
        return [aim]
    lack = (
        f"To plan for a TPR at {rate} FPR, {needed_outsiders(plan.fpr):,} non-members are needed among the queries, "
        f"and there are {plan.queries[1].non_members:,}: this split is the best for the AUC."
    )
    return [aim, lack]


def _views(n: int) -> str:
    return f"{n} view{'s' * (n > 1)}"


def rows_of(plan: Plan) -> list[tuple[str, ...]]:
    """Rows of the table: the number of references, then power in percent for each number of views."""
    which = 0 if plan.best.tpr is None else 1
    some = next(iter(plan.curves.values()))[0]
    numbers = [*some.budgets, *(factor * some.budgets[-1] for factor in FACTORS)]
    rows = []
    for n in numbers:
        cells = [(curves[which].at(n), n > curves[which].budgets[-1]) for curves in plan.curves.values()]
        shown = ["–" if power is None else f"{'~' * more}{100 * power:.2f}" for power, more in cells]
        rows.append((f"{n:,}", *shown))
    return rows
