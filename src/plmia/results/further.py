"""Further questions about a run: subgroups, trainings and accusations, answered with the verdict's attack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from plmia.attacks.attack import Attack
from plmia.attacks.groups import Groups
from plmia.attacks.scoring import Tick
from plmia.data.arrays import FloatArray, IntArray
from plmia.data.designs import count_split_groups
from plmia.errors import Note, PlmiaError, PopulationError, ReferencesError, require_rate, sentence, shown
from plmia.evaluation.accusations import PRIORS, Accusation, accusations
from plmia.evaluation.decisions import needed_population
from plmia.evaluation.metrics import VERDICT_FPRS
from plmia.evaluation.subgroups import VARIES, SubgroupTable, codes_of, constant_within, subgroup_table
from plmia.evaluation.targets import AttackResult, Setup, Unit, attack_targets
from plmia.evaluation.trainings import OverTrainings, TrainingsResult
from plmia.results import wording
from plmia.results.verdict import CONFIDENCE, Evidence
from plmia.signals.signals import Signals

# Trainings are compared at the verdict's false-positive rate, or at the first of these that the population resolves.
FALLBACK_FPRS = (0.01, 0.1)
# With fewer models there is no distribution over trainings.
LEAST_TRAININGS = 4


@dataclass(frozen=True, eq=False)
class Column:
    """A column by which people or records form subgroups."""

    name: str
    codes: IntArray  # [records]: position in ``names``, or `MISSING`
    names: tuple[str, ...]

    @classmethod
    def of(cls, name: str, values: Any, n_records: int) -> Column:
        """Encode the values [records] of a column."""
        codes, names = codes_of(values, n_records, f"column {shown(name)!r} (by)")
        if len(np.unique(codes)) < 2:
            value = f"one value, {shown(names[0])!r}" if names else "no value"
            raise PlmiaError(f"column {shown(name)!r} (by) has {value}, at least 2 are needed: choose another column")
        return cls(name, codes, names)


@dataclass(frozen=True, eq=False)
class Further:
    """What a run answers beside the attacks' rates."""

    by: tuple[Column, ...] = ()  # columns whose values are compared
    trainings: int = 0  # at most so many models are targets in turn; 0 for none
    priors: tuple[float, ...] = field(default=PRIORS)  # shares of members among the candidates of an accusation

    def __post_init__(self) -> None:
        for prior in self.priors:
            require_rate("the prior", prior)

    def n_trainings(self, signals: Signals) -> int:
        """Number of models that are attacked in turn; 0 if there are too few."""
        n = min(self.trainings, signals.n_models)
        return n if n >= LEAST_TRAININGS else 0

    def columns_of(self, result: AttackResult) -> list[Column]:
        """Return each column with one code per judged record or person."""
        groups = result.groups
        if groups is None:
            return list(self.by)
        return [replace(column, codes=constant_within(column.codes, groups.of_record)[0]) for column in self.by]


def subgroup_tables(
    columns: Sequence[Column], result: AttackResult, fpr: float, *, classes: bool
) -> tuple[list[SubgroupTable], list[Note]]:
    """Compare the subgroups of each column; all intervals hold at once. Notes say which could not be compared.

    ``classes`` says whether signals are confidences of the true class, so that answers are right or wrong.
    """
    if not columns:
        return [], []
    queries = result.truth.queries
    score, members = result.scores.score[queries], result.truth.members[queries]
    right = _correct(result)[queries] if classes else None
    tables, notes = [], []
    for c in columns:
        given = c.name, c.codes[queries], c.names, score, members, fpr, right, CONFIDENCE, len(columns)
        try:
            tables.append(subgroup_table(*given))
        except PlmiaError as error:  # nothing that was trained may be lost for it
            notes.append(Note("subgroups-not-compared", "info", sentence(str(error))))
    return tables, notes


def subgroup_notes(columns: Sequence[Column], tables: Sequence[SubgroupTable]) -> Iterator[Note]:
    """Say which subgroups are more exposed, and how many people have several values of a column."""
    for table in tables:
        if table.more_exposed:
            yield Note("subgroup-exposed", "info", wording.more_exposed(table.by, table.more_exposed))
    for column in columns:
        if varying := int(np.count_nonzero(column.codes == VARIES)):
            yield Note("subgroup-varies", "info", wording.subgroup_varies(column.name, varying))


def _correct(result: AttackResult) -> FloatArray:
    """Share of each judged unit's records whose true label the target finds more likely than all others together."""
    right = (result.view.target.mean(axis=1) > 0).astype(np.float64)
    return right if result.groups is None else result.groups.sum(right) / result.groups.size


def over_trainings(
    signals: Signals, attack: Attack, setup: Setup, most: int, first: AttackResult, fpr: float, tick: Tick
) -> TrainingsResult:
    """Attack ``most`` models in turn, each with all other models but its own pair, or with fewer where so asked.

    ``first`` is the result on one of them. Raises a `PlmiaError` if some model cannot be attacked like the first
    target, or if the population is too small for every false-positive rate.
    """
    unit: Unit = "record" if first.groups is None else "group"
    models = [int(model) for model in signals.models if first.groups is None or _whole(signals, model, first.groups)]
    if len(models) < LEAST_TRAININGS:
        raise ReferencesError(f"{len(models)} models trained on whole groups, {LEAST_TRAININGS} are needed: train more")
    if len(models) > most:
        others = [model for model in models if model != first.target]
        rng = np.random.default_rng([setup.seed, 6])
        models = sorted([first.target, *rng.choice(others, most - 1, replace=False).tolist()])
    # Each model lacks itself and its complement as references; the first target of an audit has no complement.
    enough = setup.references is not None and setup.references <= signals.n_models - 2
    alike = replace(setup, references=setup.references if enough else None, unit=unit)
    rates = (fpr, *(rate for rate in FALLBACK_FPRS if rate > fpr))
    collected = {rate: OverTrainings(len(first.truth.members), rate, CONFIDENCE) for rate in rates}
    for result in attack_targets(signals, [attack], models, alike, tick):
        if result.by_one_record != first.by_one_record:
            one, other = (first, result) if first.by_one_record else (result, first)
            raise ReferencesError(
                f"{attack.name} judges people by one record each on model {one.target} and by all of them on model "
                f"{other.target}: train more references"
            )
        collected = {rate: kept for rate, kept in collected.items() if needed_population(rate) <= result.n_compared}
        if not collected:
            raise PopulationError(
                f"{result.n_compared:,} known non-members of model {result.target} are too few for a p-value of "
                f"{rates[-1]:g}: give more"
            )
        found = result.scores.log10_p_conformal, result.scores.score, result.truth.members, result.truth.queries
        for kept in collected.values():
            kept.add(result.target, *found, result.n_compared)
    return collected[min(collected)].finish()


def _whole(signals: Signals, model: int, groups: Groups) -> bool:
    """Whether a model trained on whole groups."""
    return not count_split_groups(signals.design.matrix[signals.rows([model])[0]], groups.of_record)[0]


def accusations_of(evidence: Evidence, priors: Sequence[float]) -> tuple[Accusation, ...]:
    """What accusations by the verdict's attack are worth; nothing where it has no rate."""
    if evidence.fpr is None or evidence.tpr is None or evidence.interval is None:
        return ()
    low, high = min(evidence.interval.low, evidence.tpr), max(evidence.interval.high, evidence.tpr)
    around = replace(evidence.interval, low=low, high=high)
    return accusations(evidence.fpr, evidence.tpr, around, evidence.members, priors)


def subgroup_fpr(evidence: Evidence) -> float:
    """The false-positive rate at which subgroups and trainings are compared: the verdict's, or its largest."""
    return evidence.fpr or VERDICT_FPRS[-1]


def columns_from(by: Mapping[str, Any], n_records: int) -> tuple[Column, ...]:
    """Encode the columns by which subgroups are formed, given as values [records] by name."""
    return tuple(Column.of(str(name), values, n_records) for name, values in by.items())
