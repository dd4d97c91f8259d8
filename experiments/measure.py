"""Measurements of all experiments: metrics of each attack on each target, and comparisons over targets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from plmia.attacks.attack import ATTACKS, Attack
from plmia.attacks.view import Mode
from plmia.data.arrays import BoolArray, FloatArray, IntArray
from plmia.evaluation.metrics import evaluate, roc_curve
from plmia.evaluation.targets import AttackResult, attack_targets
from plmia.results.comparison import Difference, compare_over_targets
from plmia.signals.signals import Signals

from .outcome import FAILS, HOLDS, PARTLY, SO_FAR, UNDECIDED, Cell, Value
from .setting import Source

AUC = "AUC"
RATES = {"TPR@1%": 0.01, "TPR@0.1%": 0.001, "TPR@0.01%": 0.0001, "TPR@0%": 0.0}
CONFORMAL = "FPR, conformal 1%"
# The paper's columns, and our additional ones.
MAIN = (AUC, "TPR@0.01%", "TPR@0%")
BEYOND = ("TPR@0.1%", CONFORMAL)


# Two targets may agree by chance: fewer than this decide nothing.
FEWEST_TARGETS = 3


def attacks_called(*names: str) -> list[Attack]:
    """Attacks by name; names that this version does not have are ignored."""
    return [ATTACKS[name] for name in names if name in ATTACKS]


@dataclass
class Measured:
    """Metrics of one attack in percent, target by target."""

    values: dict[str, list[float | None]] = field(default_factory=dict)

    def add(self, metrics: dict[str, float | None]) -> None:
        """Add one target."""
        for name, value in metrics.items():
            self.values.setdefault(name, []).append(value)

    def cells(self) -> dict[str, Cell]:
        """Mean and deviation of every metric."""
        return {name: Value.over(values) for name, values in self.values.items()}

    def mean(self, metric: str) -> float | None:
        """Mean of one metric; None if some target does not have it."""
        values = self.known(metric)
        return sum(values) / len(values) if values else None

    def known(self, metric: str) -> list[float]:
        """Values of one metric, if every target has it."""
        values = [value for value in self.values.get(metric, []) if value is not None]
        return values if len(values) == len(self.values.get(metric, [])) else []


def metrics_of(
    scores: FloatArray, members: BoolArray, log10_p: FloatArray | None = None, population: int | None = None
) -> dict[str, float | None]:
    """Metrics in percent of the queries' scores; a rate that the non-members do not resolve is None.

    Parameters
    ----------
    scores, log10_p : float arrays [queries]
        Scores, and log10 conformal p-values, whose realised FPR at 1 % is also measured.
    members : bool array [queries]
        True for members.
    population : int, optional
        Number of known non-members behind the p-values: with fewer than 99, no p-value is as small as 1 %.
    """
    measured = evaluate(scores, members, RATES.values(), target=0)
    found: dict[str, float | None] = {AUC: 100 * measured.auc}
    for name, rate in RATES.items():
        point = measured.tpr_at(rate)
        found[name] = 100 * point.tpr if point.resolved else None
    if log10_p is not None:
        known = population is None or population >= 99
        found[CONFORMAL] = 100 * float(np.mean(log10_p[~members] <= -2 + 1e-12)) if known else None
    return found


def of_result(result: AttackResult) -> dict[str, float | None]:
    """Metrics of one attack on one target."""
    queries = result.truth.queries
    return metrics_of(
        result.scores.score[queries],
        result.truth.members[queries],
        result.scores.log10_p_conformal[queries],
        len(result.population),
    )


def results(
    source: Source, attacks: Sequence[Attack], mode: Mode = "online", references: int | None = None, **more: int
) -> Iterator[AttackResult]:
    """Attack every target of the source; ``population`` sets the size of Z."""
    setup = source.setup(mode, references, more.get("population"))
    return attack_targets(source.signals, attacks, source.targets, setup)


def measure(
    source: Source, attacks: Sequence[Attack], mode: Mode = "online", references: int | None = None, **more: int
) -> dict[str, Measured]:
    """Metrics of each attack over the targets of the source."""
    found = {attack.name: Measured() for attack in attacks}
    for result in results(source, attacks, mode, references, **more):
        found[result.scores.attack].add(of_result(result))
    return found


def with_views(source: Source, views: IntArray) -> Source:
    """Return the same source with some of its views."""
    old = source.signals
    return replace(source, signals=Signals(np.ascontiguousarray(old.values[:, :, views]), old.design, old.labels))


def difference(a: Measured, b: Measured, metric: str) -> Difference | None:
    """Paired difference over targets, in percentage points; None if a rate is not resolved."""
    first, second = a.known(metric), b.known(metric)
    return over_targets(first, second) if first and len(second) == len(first) else None


def over_targets(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Paired difference; with fewer than `FEWEST_TARGETS` its interval is the whole line, which decides nothing."""
    if len(first) >= FEWEST_TARGETS:
        return compare_over_targets(first, second)
    a, b = float(np.mean(first)), float(np.mean(second))
    return Difference(a, b, a - b, -math.inf, math.inf, 1.0, 0.95)


def in_words(name: str, found: Difference | None) -> str:
    """Describe a paired difference in words."""
    if found is None:
        return f"{name}: not resolved"
    interval = "too few targets" if math.isinf(found.high) else f"{found.low:+.2f} to {found.high:+.2f}"
    return f"{name}: {found.a:.2f} against {found.b:.2f} ({found.difference:+.2f}, {interval})"


def sign(found: Difference | None, margin: float = 0.0) -> int:
    """Return 1 if the interval shows that A is above B minus the margin, -1 if it shows the opposite, else 0."""
    if found is None:
        return 0
    return 1 if found.low > -margin else -1 if found.high <= -margin else 0


def judged(signs: Sequence[int], equal: bool = False) -> str:
    """Verdict on a claim with several parts: each is shown to be true (1), shown to be false (-1), or open (0).

    ``equal`` adds a part that is false because two attacks are the same; if all other parts are open, so is the claim.
    """
    signs = [*signs, *[-1] * (equal and any(signs))]
    if signs and min(signs) > 0:
        return HOLDS
    if signs and max(signs) > 0:
        return PARTLY if min(signs) < 0 else SO_FAR
    return FAILS if signs and min(signs) < 0 else UNDECIDED


def verdict_above(differences: Sequence[Difference | None]) -> str:
    """Whether A is above B on every resolved metric."""
    return judged([sign(found) for found in differences if found is not None])


def roc_at(score: FloatArray, members: BoolArray, rates: Sequence[float]) -> list[float]:
    """TPR at each of some false-positive rates, not interpolated."""
    roc = roc_curve(score, members)
    return [roc.tpr_at(rate).tpr for rate in rates]
