"""What population and queries are good for in a plan: they cost no training, and change how finely power is seen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from plmia.diagnostics import Pilot, population_size
from plmia.errors import PopulationError
from plmia.intervals import tpr_interval
from plmia.metrics import roc_curve
from plmia.scoring import Tick


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
