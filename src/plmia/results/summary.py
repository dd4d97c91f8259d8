"""Run-level summary: collects the assessments of all attacks on all targets and makes the `RunResult` of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from plmia.errors import Note, PlmiaError
from plmia.evaluation.decisions import CHECK_FAILS_BELOW, Analytic, SelfCheck, self_check
from plmia.evaluation.diagnostics.gaussianity import Gaussianity, gaussianity, metrics_by_group
from plmia.evaluation.diagnostics.p_values import PopulationSize, population_size
from plmia.evaluation.diagnostics.power import EnoughReferences
from plmia.evaluation.diagnostics.signals import UnlikeReferences, unlike_references
from plmia.evaluation.intervals import mean_rate, over_targets
from plmia.evaluation.metrics import DECISION_LEVELS, summarise
from plmia.evaluation.records import Exposure
from plmia.evaluation.targets import AttackResult
from plmia.results import wording
from plmia.results.assessment import Assessment, assess, measure
from plmia.results.json_types import decode
from plmia.results.result import (
    DEFAULT_ATTACK,
    SCHEMA,
    About,
    AttackSummary,
    ConformalRates,
    Diagnostics,
    GaussianitySummary,
    Mean,
    MeanDecision,
    MeanEpsilon,
    MeanExposure,
    MeanTpr,
    Measured,
    OwnPValue,
    RunResult,
    TargetChecks,
    TargetSummary,
)
from plmia.results.verdict import LEAST_REFERENCES, Evidence, gather_evidence

T = TypeVar("T")

# From this share of tied scores on, an attack hardly tells records apart.
MANY_TIED = 0.9
# Level at which the table shows how many known non-members the attacks' own p-values flag.
CHECK_LEVEL = 0.01


class Summary:
    """Assessments of all attacks on all targets, collected one result at a time.

    Parameters
    ----------
    attacks : sequence of str
        Names of the attacks.
    n_targets : int
        How many targets will be attacked; joint intervals hold for all attacks on all of them.
    """

    def __init__(self, attacks: Sequence[str], n_targets: int = 1) -> None:
        self._assessments: dict[str, list[Assessment]] = {name: [] for name in attacks}
        self._compared = len(attacks) * n_targets
        self._sizes: set[int] = set()
        self._references: set[int] = set()
        self._excluded: dict[int, list[int]] = {}
        self._sizes_of: dict[int, PopulationSize] = {}
        self._likeness: dict[int, UnlikeReferences | None] = {}
        self._gaussianity: Gaussianity | None = None
        self._by_group: dict[str, tuple[Measured | None, ...]] = {}
        self._power: EnoughReferences | None = None
        self._fits: dict[tuple[str, int], Mapping[str, object]] = {}
        self._skipped: dict[str, str] = {}
        self._told: list[Note] = []

    @property
    def attacks(self) -> list[str]:
        """Names of the attacks that were not left out."""
        return list(self._assessments)

    def leave_out(self, attack: str, reason: str) -> None:
        """Leave an attack out of the result, except for the reason; the others' intervals stay as wide."""
        self._assessments.pop(attack, None)
        self._skipped.setdefault(attack, reason)

    def add(self, result: AttackResult) -> Assessment:
        """Assess one result and keep the assessment."""
        assessment = assess(result, self._compared)
        self._assessments[result.scores.attack].append(assessment)
        self._sizes.add(len(result.population))
        self._references.add(len(result.references))
        if result.target not in self._excluded:
            self._excluded[result.target] = [int(model) for model in result.left_out]
            self._sizes_of[result.target] = population_size(len(result.population))
            self._likeness[result.target] = if_possible(lambda: unlike_references(result.view))
            self.add_notes(result.notes)
        self._measure_groups(result)
        return assessment

    def _measure_groups(self, result: AttackResult) -> None:
        """Measure the attack by Gaussianity of the records; only on the first target, since that sorts all signals."""
        if self._gaussianity is None:
            self._gaussianity = gaussianity(result.view.references)
            self._grouped = result.target
        if result.target == self._grouped:
            groups = metrics_by_group(self._gaussianity, result.scores, result.truth, result.target)
            self._by_group[result.scores.attack] = tuple(measure(group) if group else None for group in groups)

    def add_fit(self, attack: str, target: int, fit: Mapping[str, object] | None) -> None:
        """Keep what an attack's statistic estimated over all records, if it did."""
        if fit is not None:
            self._fits[attack, target] = fit

    def add_power(self, power: EnoughReferences | None) -> None:
        """Keep how the power depends on the number of references, if that could be measured."""
        self._power = power

    def add_notes(self, notes: Iterable[Note]) -> None:
        """Keep notes that do not follow from the results, each once."""
        self._told += [note for note in notes if note not in self._told]

    @property
    def evidence(self) -> Evidence:
        """Numbers behind the verdict, as far as results were added."""
        return gather_evidence({name: group for name, group in self._assessments.items() if group})

    def result(self, about: About) -> RunResult:
        """Make the result of the run.

        Parameters
        ----------
        about : About
            What was run; numbers of references and known non-members are added.
        """
        for group in self._assessments.values():
            group.sort(key=lambda a: a.metrics.target)
        about = replace(about, references=tuple(sorted(self._references)), population=tuple(sorted(self._sizes)))
        self.add_notes(_about_notes(about))
        notes = self.notes()
        return RunResult(
            schema=SCHEMA,
            verdict=self.evidence.verdict(notes),
            about=about,
            attacks={name: self._attack(name) for name in self._assessments},
            skipped=dict(self._skipped),
            diagnostics=self._diagnostics(),
            notes=tuple(notes),
        )

    def _diagnostics(self) -> Diagnostics:
        tested = None
        if self._gaussianity is not None:
            tested = decode(GaussianitySummary, {"target": self._grouped} | self._gaussianity.to_json())
        checks = {target: TargetChecks(like, self._sizes_of[target]) for target, like in sorted(self._likeness.items())}
        return Diagnostics(self._power, tested, checks)

    def _attack(self, name: str) -> AttackSummary:
        group = self._assessments[name]
        entries = tuple(self._entry(name, a) for a in group)
        means, many = summarise([a.metrics for a in group]), len(group) > 1
        area = over_targets([a.metrics.auc for a in group]) if many else None
        tpr = {}
        for point in means.operating:
            rates = mean_rate([a.metrics.tpr_at(point.fpr) for a in group]) if many and point.resolved else None
            spread = point.tpr.mean, point.tpr.std
            tpr[point.fpr] = MeanTpr(*spread, point.fpr_realised, point.resolved, point.needed, rates)
        epsilons = [entry.epsilon for entry in entries]
        return AttackSummary(
            auc=Mean(means.auc.mean, means.auc.std, area),
            balanced_accuracy=Mean(means.balanced_accuracy.mean, means.balanced_accuracy.std),
            tpr=tpr,
            per_target=entries,
            decisions=_mean_decisions(entries),
            conformal=_mean_conformal(entries),
            fdr={fdr: _mean_exposure([entry.fdr[fdr] for entry in entries]) for fdr in entries[0].fdr},
            epsilon=MeanEpsilon(
                _mean([e.low for e in epsilons]), _mean([e.one_run.low for e in epsilons]), epsilons[0].delta
            ),
            own_p_value_on_population=self._own_p_value(name),
        )

    def _entry(self, name: str, assessment: Assessment) -> TargetSummary:
        """Add to an assessment what is known of one target only."""
        found, target = assessment.summary, assessment.metrics.target
        groups = self._by_group[name] if target == self._grouped else None
        fit = self._fits.get((name, target))
        return replace(found, diagnostics=replace(found.diagnostics, gaussianity_groups=groups, fit=fit))

    # The attacks' own p-values ----------------------------------------------------------------------------------------

    def _flagged(self, attack: str, level: float) -> SelfCheck | None:
        """How many known non-members of all targets the attack's combined p-value flags, if it has one."""
        checks = [a.summary.decisions[Analytic.name][level].check for a in self._assessments[attack]]
        made = [check for check in checks if check is not None]
        return self_check(sum(c.flagged for c in made), sum(c.population for c in made), level) if made else None

    def _refuted(self, attack: str) -> tuple[float, float] | None:
        """Level at which the known non-members refute the paper's threshold, and the share of them that it flags.

        The level is `CHECK_LEVEL` if it is refuted there. The test accounts for trying several levels.
        """
        for level in sorted(DECISION_LEVELS, key=lambda level: level != CHECK_LEVEL):
            check = self._flagged(attack, level)
            if check is not None and check.p_value * len(DECISION_LEVELS) < CHECK_FAILS_BELOW:
                return level, check.flagged / check.population
        return None

    def _own_p_value(self, name: str) -> OwnPValue:
        check, refuted = self._flagged(name, CHECK_LEVEL), self._refuted(name)
        level, share = refuted or (CHECK_LEVEL, check.flagged / check.population if check else None)
        return OwnPValue(level, share, refuted is not None)

    # Notes ------------------------------------------------------------------------------------------------------------

    def notes(self) -> list[Note]:
        """What a reader must know beside the numbers."""
        return [
            *self.evidence.notes(),
            *self._told,
            *self._reference_notes(),
            *self._attack_notes(),
            *self._size_notes(),
        ]

    def _reference_notes(self) -> Iterator[Note]:
        """Whether the references are enough and like the target, and which models were excluded."""
        if (fewest := min(self._references)) < LEAST_REFERENCES:
            yield Note("few-references", "caution", wording.few_references(fewest, LEAST_REFERENCES))
        unlike = {target: check.warning for target, check in sorted(self._likeness.items()) if check and check.warning}
        if unlike:
            yield Note("unlike-references", "caution", wording.unlike_references(unlike, len(self._likeness)))
        if self._power and self._power.warning:
            yield Note("more-references", "info", self._power.warning)
        if excluded := {target: models for target, models in self._excluded.items() if models}:
            yield Note("excluded-references", "info", wording.excluded_references(excluded))

    def _attack_notes(self) -> Iterator[Note]:
        """Which attacks could not run, have tied scores, or have p-values that do not hold."""
        if self._skipped:
            # Without the strongest attack, an audit may have missed a leak.
            strongest_missing = DEFAULT_ATTACK in self._skipped
            text = wording.attacks_left_out(self._skipped)
            yield Note("attacks-left-out", "caution" if strongest_missing else "info", text)
        shares = {name: min(a.summary.tied for a in group) for name, group in self._assessments.items()}
        if tied := {name: share for name, share in shares.items() if share > MANY_TIED}:
            # Where another attack tells records apart, the tied ones cost nothing.
            yield Note("tied-scores", "caution" if len(tied) == len(shares) else "info", wording.tied_scores(tied))
        if refuted := {name: found for name in self._assessments if (found := self._refuted(name)) is not None}:
            yield Note("combined-p-value", "info", wording.combined_p_value(refuted))

    def _size_notes(self) -> Iterator[Note]:
        """Which rates the evaluated non-members and the population cannot resolve."""
        everyone = [a.metrics for group in self._assessments.values() for a in group]
        fewest = min(everyone, key=lambda m: m.n_non_members)
        if unresolved := [point for point in reversed(fewest.operating) if not point.resolved]:
            yield Note("rates-unresolved", "info", wording.rates_unresolved(fewest.n_non_members, unresolved))
        if (warning := self._sizes_of[min(self._sizes_of)].warning) is not None:
            yield Note("population-size", "info", warning)


def _about_notes(about: About) -> Iterator[Note]:
    """Notes that follow from what was run."""
    if about.groups is not None:
        yield Note("groups", "info", wording.groups(about.groups))
    if about.signals.clipped:
        yield Note("clipped-probabilities", "info", wording.clipped_probabilities(about.signals.clipped))


def if_possible(check: Callable[[], T]) -> T | None:
    """Make a check; return None if it needs more data than there are, since that must not end the run."""
    try:
        return check()
    except PlmiaError:
        return None


# Means over targets --------------------------------------------------------------------------------------------------


def _mean_decisions(entries: Sequence[TargetSummary]) -> dict[str, dict[float, MeanDecision]]:
    found: dict[str, dict[float, MeanDecision]] = {}
    for rule, levels in entries[0].decisions.items():
        for level in levels:
            each = [entry.decisions[rule][level] for entry in entries]
            refused = [one.refused for one in each if one.refused]
            rates = _known_mean([one.fpr_realised for one in each]), _known_mean([one.tpr for one in each])
            first = refused[0] if refused else None
            found.setdefault(rule, {})[level] = MeanDecision(level, *rates, len(refused), first)
    return found


def _mean_conformal(entries: Sequence[TargetSummary]) -> ConformalRates:
    levels = entries[0].conformal.tpr
    return ConformalRates(
        {level: _known_mean([entry.conformal.fpr_realised[level] for entry in entries]) for level in levels},
        {level: _known_mean([entry.conformal.tpr[level] for entry in entries]) for level in levels},
    )


def _mean_exposure(each: Sequence[Exposure]) -> MeanExposure:
    return MeanExposure(
        fdr=_mean([one.fdr for one in each]),
        n_discoveries=_mean([one.n_discoveries for one in each]),
        n_true=_mean([one.n_true for one in each]),
        least=_mean([one.least for one in each]),
        realised_fdr=_mean([one.realised_fdr for one in each]),
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _known_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _mean(known) if known else None
