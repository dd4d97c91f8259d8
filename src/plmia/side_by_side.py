"""Whether one run leaks more than another: runs side by side, or attacks of one run, with tests of the differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from plmia.comparison import Difference
from plmia.errors import PlmiaError
from plmia.metrics import fpr_key
from plmia.sides import Measured, Method, Run, Side, change_of, different_data, holm, method_of
from plmia.verdict import strongest

# Shown where all runs have the non-members for it.
USUAL_FPRS = (0.01, 0.001)


@dataclass(frozen=True)
class Row:
    """One metric on two sides.

    Parameters
    ----------
    label : str
        The attack, or the run where attacks are compared.
    fpr : float or None
        The metric is the TPR at this false-positive rate, or the AUC.
    first, other : Measured
        Of the first side and of the other.
    change : Difference
        Other less first, with a p-value of its own.
    p_adjusted : float
        The p-value after Holm, over all rows of the comparison.
    method : Method
        How it was tested.
    """

    label: str
    fpr: float | None
    first: Measured
    other: Measured
    change: Difference
    p_adjusted: float
    method: Method

    @property
    def shown(self) -> bool:
        """Whether a difference is shown, all tests together erring with at most ``1 - confidence``."""
        return self.p_adjusted < 1 - self.change.confidence

    @property
    def metric(self) -> str:
        """``auc`` or ``tpr``."""
        return "auc" if self.fpr is None else "tpr"

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        names = ("difference", "low", "high", "p_value", "confidence")
        return {
            "label": self.label,
            "metric": self.metric,
            "fpr": self.fpr,
            "first": self.first.to_json(),
            "other": self.other.to_json(),
            "change": {name: value for name, value in asdict(self.change).items() if name in names},
            "p_adjusted": self.p_adjusted,
            "method": self.method,
        }


@dataclass(frozen=True)
class Pair:
    """All rows of one side against the first.

    Parameters
    ----------
    first, other : str
        Names of the sides.
    what : {"runs", "attacks"}
        What the sides are.
    rows : tuple of Row
        One a metric and attack.
    other_data : bool
        Whether the two are known to be of different data.
    """

    first: str
    other: str
    what: Literal["runs", "attacks"]
    rows: tuple[Row, ...]
    other_data: bool = False

    @property
    def method(self) -> Method:
        """How the rows were tested, all alike."""
        return self.rows[0].method

    @property
    def chief(self) -> Row:
        """The row that the sentence is about: that of the first rate, and of the attack that finds most.

        It is picked by the sum of both sides, which says nothing of their difference.
        """
        rate = next((row.fpr for row in self.rows if row.fpr is not None), None)
        area = {row.label: row.first.value + row.other.value for row in self.rows if row.fpr is None}

        def found(row: Row) -> tuple[float, float]:
            return row.first.value + row.other.value, area.get(row.label, 0.0)

        return strongest((row for row in self.rows if row.fpr == rate), found)

    @property
    def text(self) -> str:
        """What came out, in words."""
        row = self.chief
        size, than = _size(row)
        where = "" if row.fpr is None else f" of the members at {100 * row.fpr:g} % FPR"
        if self.what == "runs":
            sentence = f"{'In' if row.shown else 'in'} {self.other} {row.label} {size}{where} {than} in {self.first}"
        else:
            sentence = f"{self.other} {size}{where} {than} {self.first}"
        several = self.what == "runs" and any(other.label != row.label for other in self.rows)
        shown = "" if row.shown else f"No difference was shown{' by the best attack' * several}: "
        data = " The two are of different data, which may be all the difference." if self.other_data else ""
        return f"{shown}{sentence}, {p_words(row.p_adjusted)}.{self._others(row)}{data}"

    def _others(self, chief: Row) -> str:
        """How many attacks show a difference of the same metric, where there are several, and in AUC if any does."""
        rows = [row for row in self.rows if row.fpr == chief.fpr]
        less, more = _shown(rows)
        auc = _shown([row for row in self.rows if row.fpr is None])
        words = ("have a lower AUC", "a higher one") if chief.fpr is None else ("find fewer", "more")
        said = f" Attacks shown to {words[0]}: {less} of {len(rows)}; {words[1]}: {more}." if len(rows) > 1 else ""
        if chief.fpr is None or not any(auc) or (chief.shown and not said):
            return said
        return f"{said} Shown to have a lower AUC: {auc[0]} of {len(rows)}; a higher one: {auc[1]}."

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        rows = [row.to_json() for row in self.rows]
        return {"first": self.first, "other": self.other, "method": self.method, "rows": rows, "text": self.text}


def _shown(rows: Sequence[Row]) -> tuple[int, int]:
    """How many rows show a difference downwards, and upwards."""
    differences = [row.change.difference for row in rows if row.shown]
    return sum(d < 0 for d in differences), sum(d > 0 for d in differences)


@dataclass(frozen=True)
class SideBySide:
    """Everything that was compared with the first run or attack; `compare_runs` and `compare_attacks` make one.

    Parameters
    ----------
    runs : tuple of Run
        The runs.
    fprs : tuple of float
        The false-positive rates.
    pairs : tuple of Pair
        One for each side after the first.
    confidence : float
        Coverage of each interval.
    """

    runs: tuple[Run, ...]
    fprs: tuple[float, ...]
    pairs: tuple[Pair, ...]
    confidence: float

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        runs = [
            {"name": run.name, "folder": str(run.results.folder), "targets": run.results.targets} for run in self.runs
        ]
        return {
            "schema": 1,
            "compared": self.pairs[0].what,
            "runs": runs,
            "fprs": list(self.fprs),
            "confidence": self.confidence,
            "adjustment": "holm",
            "pairs": [pair.to_json() for pair in self.pairs],
        }


def compare_runs(
    runs: Sequence[Run],
    rng: np.random.Generator,
    attacks: Sequence[str] | None = None,
    fprs: Sequence[float] | None = None,
    confidence: float = 0.95,
) -> SideBySide:
    """Compare each run with the first, attack by attack.

    Runs on the same records (equal membership and queries of the same targets) are tested in pairs: of records where
    there is one target, of targets where there are several. Others count as independent.

    Parameters
    ----------
    runs : sequence of Run
        Two or more, each with a name of its own.
    rng : numpy Generator
        Draws the resamples of paired tests.
    attacks : sequence of str, optional
        Which attacks; by default all that every run has.
    fprs : sequence of float, optional
        False-positive rates; by default those of `USUAL_FPRS` that every run resolves.
    confidence : float
        Coverage of each interval.
    """
    names = [run.name for run in runs]
    if len(runs) < 2:
        raise PlmiaError(f"{len(runs)} run was given: give two, or one and two attacks")
    if len(set(names)) < len(names):
        raise PlmiaError(f"two runs have the same name ({', '.join(names)}): give each its own with --names")
    chosen = (
        _once(attacks) if attacks else [a for a in runs[0].results.attacks if all(a in r.results.attacks for r in runs)]
    )
    if not chosen:
        have = "; ".join(f"{run.name} has {', '.join(run.results.attacks)}" for run in runs)
        raise PlmiaError(f"the runs have no attack in common ({have}): score them with the same attacks")
    sides = [[Side(run.name, run, attack) for attack in chosen] for run in runs]
    return _side_by_side("runs", tuple(runs), chosen, sides, rng, fprs, confidence)


def compare_attacks(
    run: Run,
    attacks: Sequence[str],
    rng: np.random.Generator,
    fprs: Sequence[float] | None = None,
    confidence: float = 0.95,
) -> SideBySide:
    """Compare each attack with the first one, all of one run.

    Parameters
    ----------
    run : Run
        The run.
    attacks : sequence of str
        Two or more.
    rng, fprs, confidence
        As for `compare_runs`.
    """
    if len(attacks) < 2:
        raise PlmiaError(
            f"one run and {len(attacks)} attacks were given: give a second run, or two attacks of "
            f"{', '.join(run.results.attacks)}"
        )
    sides = [[Side(attack, run, attack)] for attack in _once(attacks)]
    return _side_by_side("attacks", (run,), [run.name], sides, rng, fprs, confidence)


def _size(row: Row) -> tuple[str, str]:
    """How large a difference is, in words, and the word that joins what it is compared with."""
    change = row.change
    has = "has an AUC" if row.fpr is None else "finds"
    if change.difference == 0:
        return ("has the same AUC", "as") if row.fpr is None else ("finds as many", "as")
    if change.low < 0 < change.high:
        span = f"{100 * change.low:+.1f} to {100 * change.high:+.1f}"
    else:
        near, far = sorted((abs(100 * change.low), abs(100 * change.high)))
        span = f"{near:.1f} to {far:.1f}"
    words = ("lower", "higher") if row.fpr is None else ("fewer", "more")
    return f"{has} {abs(100 * change.difference):.1f} points {words[change.difference > 0]} ({span})", "than"


def p_words(p: float) -> str:
    """A p-value in words: ``p < 0.001``, ``p = 0.034``."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def _once(attacks: Sequence[str]) -> list[str]:
    repeated = [attack for i, attack in enumerate(attacks) if attack in attacks[:i]]
    if repeated:
        raise PlmiaError(f"attack {repeated[0]!r} was given twice: name each once")
    return list(attacks)


def _side_by_side(
    what: Literal["runs", "attacks"],
    runs: tuple[Run, ...],
    labels: Sequence[str],
    sides: Sequence[Sequence[Side]],
    rng: np.random.Generator,
    fprs: Sequence[float] | None,
    confidence: float,
) -> SideBySide:
    """Compare ``sides`` [sides][labels] with the first of them, and adjust all p-values together."""
    if not 0 < confidence < 1:
        raise PlmiaError(f"confidence is {confidence}: it must lie strictly between 0 and 1")
    rates = _rates([side for group in sides for side in group], fprs)
    pairs = []
    for group in sides[1:]:
        method = method_of(sides[0][0].run.results, group[0].run.results)
        rows = [
            _row(label, fpr, first, other, method, rng, confidence)
            for label, first, other in zip(labels, sides[0], group, strict=True)
            for fpr in (None, *rates)
        ]
        apart = different_data(sides[0][0].run.results, group[0].run.results)
        pairs.append(Pair(sides[0][0].name, group[0].name, what, tuple(rows), apart))
    adjusted = iter(holm([row.change.p_value for pair in pairs for row in pair.rows]).tolist())
    pairs = [replace(pair, rows=tuple(replace(row, p_adjusted=next(adjusted)) for row in pair.rows)) for pair in pairs]
    return SideBySide(runs, rates, tuple(pairs), confidence)


def _rates(sides: Sequence[Side], fprs: Sequence[float] | None) -> tuple[float, ...]:
    """False-positive rates that every target of every side resolves; what was asked for must be among them."""
    fewest, target, name = min(
        (roc.n_non_members, target, side.run.name) for side in sides for target, roc in side.rocs.items()
    )
    roc = next(iter(sides[0].rocs.values()))
    for fpr in fprs or ():
        if not 0 < fpr < 1:
            raise PlmiaError(f"--at-fpr is {fpr:g}: give a rate between 0 and 1 (1 % is 0.01)")
        needed = roc.tpr_at(fpr).needed
        if needed > fewest:
            raise PlmiaError(
                f"an FPR of {fpr_key(fpr)} needs {needed:,} evaluated non-members, target {target} of {name} has "
                f"{fewest:,}: give a larger --at-fpr, or audit more records"
            )
    return tuple(dict.fromkeys(fprs)) if fprs else tuple(f for f in USUAL_FPRS if roc.tpr_at(f).needed <= fewest)


def _row(
    label: str, fpr: float | None, first: Side, other: Side, method: Method, rng: np.random.Generator, confidence: float
) -> Row:
    change = change_of(method, fpr, first, other, rng, confidence)
    one, two = (side.measured(fpr, confidence) for side in (first, other))
    return Row(label, fpr, one, two, change, change.p_value, method)
