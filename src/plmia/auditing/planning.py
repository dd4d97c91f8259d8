"""What population and queries are good for in a plan: they cost no training, and change how finely power is seen."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from plmia.attacks.attack import Attack
from plmia.attacks.scoring import Tick
from plmia.errors import PlmiaError, PopulationError
from plmia.evaluation.diagnostics import Curve, Pilot, needed_outsiders, population_size
from plmia.evaluation.intervals import tpr_interval
from plmia.evaluation.metrics import roc_curve
from plmia.evaluation.targets import Setup
from plmia.signals.signals import Signals


@dataclass(frozen=True)
class PopulationRow:
    """What a population of some size gives.

    Parameters
    ----------
    size : int
        Size of Z.
    auc, tpr : float, float or None
        Measured with it, on the same queries.
    resolution : float
        Smallest conformal p-value.
    expected, spread : float or None
        Mean and deviation of the realised rate at the plan's nominal one; None where it is not resolved.
    """

    size: int
    auc: float
    tpr: float | None
    resolution: float
    expected: float | None
    spread: float | None


@dataclass(frozen=True)
class QueriesRow:
    """What a number of queries gives.

    Parameters
    ----------
    members, non_members : int
        How many are evaluated.
    half_width : float or None
        Half of the 95 % interval of the TPR; None where the non-members do not resolve the plan's rate.
    """

    members: int
    non_members: int
    half_width: float | None


def population_sizes(n: int) -> list[int]:
    """Sizes that are tried: all of ``n``, and smaller and smaller parts."""
    return sorted({size for size in (n // 64, n // 16, n // 4, n) if size >= 2})


def populations(pilot: Pilot, fpr: float, rng: np.random.Generator, tick: Tick) -> tuple[PopulationRow, ...]:
    """Measure with smaller and smaller parts of the population.

    Parameters
    ----------
    pilot : Pilot
        What was run.
    fpr : float
        The false-positive rate of interest.
    rng : numpy Generator
        Draws the parts.
    tick : callable
        Told how many points are done.
    """
    everyone, rows = pilot.full.population, []
    order = rng.permutation(everyone)
    for size in population_sizes(len(everyone)):
        some = np.sort(order[:size])
        try:
            auc, *tprs = pilot.measure(pilot.full.references, population=some, tick=tick)
        except PopulationError:
            continue  # too few for this attack, which may compare within classes, or draw afresh
        about = population_size(size, (fpr,))
        tpr = tprs[0] if tprs else None
        rows.append(PopulationRow(size, auc, tpr, about.resolution, about.expected[0], about.spread[0]))
    return tuple(rows)


def queries(pilot: Pilot, fpr: float) -> tuple[QueriesRow, ...]:
    """Width of the TPR's interval with a quarter of the queries, with all, and with four times as many."""
    points = pilot.full.truth.queries
    members = pilot.full.truth.members[points]
    roc, rows = roc_curve(pilot.full.scores.score[points], members), []
    for factor in (0.25, 1.0, 4.0):
        inside, outside = (int(factor * np.sum(members == which)) for which in (True, False))
        width = None
        if pilot.fprs and inside and round(outside * fpr, 9) >= 1:
            # That of the pilot, the error of the cut included; it shrinks with the root of the number.
            now = tpr_interval(roc, fpr)
            width = (now.high - now.low) / 2 / math.sqrt(factor)
        rows.append(QueriesRow(inside, outside, width))
    return tuple(rows)


# How to spend a budget: references, views, population and queries, from signals of a pilot.
#
# Power is measured with fewer references and views than the pilot has, and extrapolated to more. The population and the
# queries cost no training, and change how finely power is seen rather than power itself; that is said apart.

# Beyond so many times the pilot's references nothing is said.
FARTHEST = 8
FACTORS = (2, 4, 8)
# A pass forward over the points against dozens of passes forward and back in training.
VIEW_COST = 0.01
# References that add no more power than this are not worth their cost.
WORTH = 0.001
# So many in complementary pairs are needed to extrapolate; see `plmia.evaluation.diagnostics.extrapolate`.
TO_EXTRAPOLATE = 16


@dataclass(frozen=True)
class Cost:
    """What references cost, in models or in seconds.

    Parameters
    ----------
    model : float
        Cost of a reference with one view: 1, or the seconds it takes.
    view : float
        Cost of each further view of a reference, as a share of ``model``.
    unit : str
        "models" or "seconds".
    """

    model: float = 1.0
    view: float = VIEW_COST
    unit: str = "models"

    def __post_init__(self) -> None:
        if not (self.model > 0 and self.view >= 0):
            raise PlmiaError(
                f"a model costs {self.model:g}, a further view {self.view:g} of that: the first must be above 0, the "
                "second not below it"
            )

    def of(self, references: int, views: int) -> float:
        """Cost of so many references, each queried with so many views."""
        return references * self.model * (1 + self.view * (views - 1))

    def affordable(self, budget: float, views: int, step: int) -> int:
        """References that ``budget`` pays for with ``views`` views; a multiple of ``step``."""
        # Rounded, so that a budget of exactly 64 models is 64 models.
        return step * int(round(budget / self.of(step, views), 9))


@dataclass(frozen=True)
class Split:
    """One way to spend a budget.

    Parameters
    ----------
    references, views : int
        How many.
    cost : float
        What that costs.
    auc, tpr : float or None
        Power to expect; the TPR is at the plan's false-positive rate, None where the pilot has too few
        non-members to show its trend.
    extrapolated : bool
        Whether the pilot had fewer references.
    affordable : int
        How many references the budget pays for; fewer are advised where more would add nothing, or nothing is known.
    """

    references: int
    views: int
    cost: float
    auc: float
    tpr: float | None
    extrapolated: bool
    affordable: int

    @property
    def power(self) -> float:
        """What a plan maximises: the TPR, or else the AUC."""
        return self.auc if self.tpr is None else self.tpr


@dataclass(frozen=True)
class Plan:
    """How power depends on what is spent, and the best way to spend a budget.

    Parameters
    ----------
    attack, target, fpr : str, int, float
        What was run, on which model, and the false-positive rate of interest.
    n_references, n_views : int
        Of the pilot.
    curves : dict of int to tuple of Curve
        For each number of views, AUC and (where resolved) TPR against the number of references.
    population : tuple of PopulationRow
        Measured with smaller populations.
    queries : tuple of QueriesRow
        Expected with fewer and more queries.
    cost : Cost
        What references cost.
    budget : float
        In the unit of ``cost``.
    splits : tuple of Split
        The best for each number of views, best first.
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
        """The split of largest power; of two, the one with fewer views."""
        return self.splits[0]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        curves = {str(views): [curve.to_json() for curve in some] for views, some in self.curves.items()}
        return asdict(self) | {"curves": curves, "best": asdict(self.best)}


def view_counts(n_views: int) -> tuple[int, ...]:
    """1, 2, 4, ... and all views."""
    return tuple(sorted({min(2**k, n_views) for k in range(n_views.bit_length() + 1)}))


def steps(pilot: Pilot) -> int:
    """How many points a `make_plan` on this pilot scores, for a progress bar."""
    runs = sum(pilot.draws(n) for n in pilot.budgets()) * len(view_counts(pilot.signals.n_views))
    return (runs + len(population_sizes(len(pilot.full.population)))) * pilot.signals.n_points


def start(signals: Signals, attack: Attack, target: int, setup: Setup, fpr: float) -> Pilot:
    """Run the attack once with all that the pilot's signals hold.

    Parameters
    ----------
    signals : Signals
        Of the target and its references.
    attack, target, setup : Attack, int, Setup
        What is run, on which model, and how.
    fpr : float
        The false-positive rate of interest.
    """
    if not 0 < fpr < 1:
        raise PlmiaError(f"a false-positive rate of {fpr:g} was asked for: it must lie strictly between 0 and 1")
    return Pilot.run(signals, attack, target, setup, (fpr,))


def make_plan(
    pilot: Pilot, fpr: float, cost: Cost, budget: float | None, seed: int, tick: Tick = lambda _: None
) -> Plan:
    """Measure power over a grid of references and views, and find the best split of a budget.

    Parameters
    ----------
    pilot : Pilot
        From `start`, with the same ``fpr``.
    fpr : float
        The false-positive rate of interest.
    cost : Cost
        What references cost.
    budget : float, optional
        In the unit of ``cost``; by default twice the pilot's references with one view.
    seed : int
        Draws references and populations.
    tick : callable
        Told how many points are done, `steps` in all.
    """
    signals, n = pilot.signals, pilot.n_references
    # The same draws of references for each number of views: what differs is then due to the views.
    curves = {
        views: pilot.curves(np.random.default_rng([seed, 2]), views, tick) for views in view_counts(signals.n_views)
    }
    budget = cost.of(2 * n, 1) if budget is None else budget
    splits = _splits(pilot, curves, cost, budget)
    population = populations(pilot, fpr, np.random.default_rng([seed, 3]), tick)
    plan = Plan(
        pilot.attack.name,
        pilot.full.target,
        fpr,
        n,
        signals.n_views,
        curves,
        population,
        queries(pilot, fpr),
        cost,
        budget,
        splits,
        (),
    )
    return _with_words(plan)


def _splits(pilot: Pilot, curves: dict[int, tuple[Curve, ...]], cost: Cost, budget: float) -> tuple[Split, ...]:
    """Return the best split for each number of views, the best of all first."""
    step = 2 if pilot.full.view.references.paired else 1
    found: list[tuple[float, Split]] = []
    for views, some in curves.items():
        auc, *tprs = some
        affordable = cost.affordable(budget, views, step)
        most = min(affordable, auc.budgets[-1] * (FARTHEST if auc.fit else 1))
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
            f"a budget of {budget:g} {cost.unit} pays for fewer than the {least} references that were measured: "
            f"give at least {cost.of(least, 1):g}"
        )
    return tuple(split for _, split in sorted(found, key=lambda pair: (-pair[0], pair[1].views)))


def _fewest(curve: Curve, most: int) -> int:
    """Fewest references, those of the pilot at least, that come within `WORTH` of the power of ``most``."""
    there = curve.budgets[-1]
    tried = [n for n in (there, *(factor * there for factor in FACTORS)) if n < most]
    best = curve.at(most) or 0.0
    return next((n for n in tried if best - (curve.at(n) or 0.0) < WORTH), most)


def _with_words(plan: Plan) -> Plan:
    """Add the sentences."""
    words = [_best_words(plan), *_view_words(plan), *_reference_words(plan), *_size_words(plan)]
    return replace(plan, words=tuple(words))


def _named(plan: Plan) -> str:
    """What is maximised, with its article."""
    return "an AUC" if plan.best.tpr is None else f"a TPR at {100 * plan.fpr:g} % FPR"


def _best_words(plan: Plan) -> str:
    best = plan.best
    # Beyond twice the pilot's references the fit is known to err by a tenth and more.
    roughly = "roughly " * (best.references > 2 * plan.n_references)
    how = f"{roughly}extrapolated from {plan.n_references}" if best.extrapolated else "measured"
    budget = f"{plan.budget:,.0f} {plan.cost.unit}" if plan.budget >= 10 else f"{plan.budget:g} {plan.cost.unit}"
    first, most, rest = _first_more(plan), min(best.affordable, FARTHEST * plan.n_references), ""
    if first is not None:
        return (
            f"With {budget}: train {first} references first and plan again. {best.references} references and "
            f"{_views(best.views)} reach {_named(plan)} of about {100 * best.power:.1f} % (measured), and are too few "
            "to say what more would give."
        )
    if best.references == FARTHEST * plan.n_references:
        rest = f"; nothing is said of more than {FARTHEST} times the pilot's references, so some of it is left"
    elif best.references < most:
        rest = f"; {most}, which it pays for, would add less than {100 * WORTH:g} points"
    return (
        f"With {budget}: {best.references} references and {_views(best.views)}, for {_named(plan)} of about "
        f"{100 * best.power:.1f} % ({how}){rest}."
    )


def _first_more(plan: Plan) -> int | None:
    """References to train before anything can be said of more, as far as the budget goes; None if it can be said."""
    best = plan.best
    if plan.curves[best.views][0].fit is not None or best.affordable <= plan.n_references:
        return None
    return min(max(TO_EXTRAPOLATE, 2 * plan.n_references), best.affordable)


def _view_words(plan: Plan) -> list[str]:
    """Say what the other numbers of views would give for the same budget."""
    words = []
    for split in sorted(plan.splits[1:], key=lambda split: split.views):
        less = plan.best.power - split.power
        worse = "about as much" if less < 0.00005 else f"{100 * less:.2f} points less"
        words.append(
            f"{_views(split.views).capitalize()} instead would leave {split.references} references and "
            f"{_named(plan)} of about {100 * split.power:.1f} %, {worse}."
        )
    return words


def _reference_words(plan: Plan) -> list[str]:
    """Say what doubling the references is worth at the best number of views, and how sure the pilot is."""
    curve = plan.curves[plan.best.views][0 if plan.best.tpr is None else 1]
    doubled = curve.times(2)
    if doubled is None:
        needed = f"{TO_EXTRAPOLATE} are needed for that, in pairs"
        few = f"{plan.n_references} references are too few to say what more would give: {needed}."
        return [few] if _first_more(plan) is None else []
    noise = f" (± {100 * curve.standard_error:.2f} by the choice of references)" if curve.standard_error else ""
    now = f"With {_views(plan.best.views)}, {plan.n_references} references reach {_named(plan)} of"
    return [f"{now} {100 * curve.mean[-1]:.1f} %{noise}, twice as many about {100 * doubled:.1f} %."]


def _size_words(plan: Plan) -> list[str]:
    """Say what the population and the queries are good for."""
    about, rate = population_size(plan.population[-1].size, (plan.fpr,)), f"{100 * plan.fpr:g} %"
    aim = (
        "The population and the queries cost no training and, unless they are few, change what is seen, not the power: "
        f"{about.needed[0]:,} population points resolve a false-positive rate of {rate}, {about.needed_stable[0]:,} "
        "keep the realised one within a tenth of it, and its estimate errs least if as many non-members are queries."
    )
    if plan.best.tpr is not None:
        return [aim]
    lack = (
        f"To plan for a TPR at {rate} FPR takes {needed_outsiders(plan.fpr):,} non-members among the queries, there "
        f"are {plan.queries[1].non_members:,}: the split is the best for the AUC."
    )
    return [aim, lack]


def _views(n: int) -> str:
    return f"{n} view{'s' * (n > 1)}"


def rows_of(plan: Plan) -> list[tuple[str, ...]]:
    """Cells of the table: a row for each number of references, measured or extrapolated, a column for each view count.

    The first cell is the number of references, the others are power in percent for 1, 2, ... views.
    """
    which = 0 if plan.best.tpr is None else 1
    some = next(iter(plan.curves.values()))[0]
    numbers = [*some.budgets, *(factor * some.budgets[-1] for factor in FACTORS)]
    rows = []
    for n in numbers:
        cells = [(curves[which].at(n), n > curves[which].budgets[-1]) for curves in plan.curves.values()]
        shown = ["–" if power is None else f"{'~' * more}{100 * power:.2f}" for power, more in cells]
        rows.append((f"{n:,}", *shown))
    return rows
