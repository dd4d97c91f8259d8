"""Run-level summary: assesses each attack on each target and makes the `RunResult` of all assessments."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from plmia.attacks.alignment import Alignment, Match, match_of
from plmia.attacks.attack import Attack
from plmia.attacks.view import Mode
from plmia.data import memory
from plmia.errors import Note, PlmiaError, Severity
from plmia.evaluation.decisions import (
    CHECK_FAILS_BELOW,
    RULES,
    Analytic,
    Conformal,
    Decision,
    Known,
    SelfCheck,
    judge_all,
    self_check,
)
from plmia.evaluation.diagnostics.gaussianity import Gaussianity, gaussianity, metrics_by_group
from plmia.evaluation.diagnostics.p_values import nominal_against_realised, pairwise_p_values, population_size
from plmia.evaluation.diagnostics.power import EnoughReferences
from plmia.evaluation.diagnostics.signals import (
    MOST_EXAMINED,
    UnlikeAnswers,
    unlike_aligned_answers,
    unlike_references,
)
from plmia.evaluation.epsilon import epsilon_bound
from plmia.evaluation.intervals import auc_interval, mean_rate, over_targets, tpr_interval
from plmia.evaluation.metrics import DECISION_LEVELS, Roc, TargetMetrics, evaluate, roc_curve, summarise
from plmia.evaluation.metrics import measured as measured_on
from plmia.evaluation.records import exposures
from plmia.evaluation.targets import AttackResult
from plmia.results import result as typed
from plmia.results import wording
from plmia.results.json_types import decode, encode
from plmia.results.result import About, AttackSummary, Measured, RunResult, TargetSummary, TprAtFpr
from plmia.results.verdict import CONFIDENCE, LEAST_REFERENCES, Assessment, Evidence, gather_evidence

T = TypeVar("T")

FDRS = (0.01, 0.05, 0.1)
# Confidence of the check that members and non-members are swapped, which makes an audit invalid.
NEARLY_CERTAIN = 0.999
# Votes and ranks tie a few points at a time by design; ties of at least this share of all points hide who is who.
LARGE_TIE = 0.1
# References whose correlation with the target is a smaller share of that among themselves tell too little about it.
POOR_MATCH = 0.9
# From this share of tied scores on, an attack hardly tells records apart.
MANY_TIED = 0.9
# Level at which the table shows how many known non-members the attacks' own p-values flag.
CHECK_LEVEL = 0.01
# With more targets, only the first ones keep all decisions and diagnostics.
MOST_DETAILED = 100


# One attack on one target --------------------------------------------------------------------------------------------


def assess(result: AttackResult, n_compared: int = 1, confidence: float = CONFIDENCE) -> Assessment:
    """Assess one attack on one target; joint intervals hold for all ``n_compared`` results of the run at once."""
    queries, members = result.truth.queries, result.truth.members
    score, truth = memory.copied(result.scores.score[queries]), members[queries]
    roc = roc_curve(score, truth)
    metrics = measured_on(roc, target=result.target, confidence=confidence)
    shared = 1 - (1 - confidence) / n_compared
    measured = measure(metrics)
    tpr = dict(measured.tpr)
    for fpr, point in measured.tpr.items():
        if fpr > 0 and point.resolved:
            at_nominal, joint = tpr_interval(roc, fpr, confidence), tpr_interval(roc, fpr, shared)
            tpr[fpr] = replace(point, at_nominal=at_nominal, joint=joint)
    memory.release()
    decisions = _decide(result, confidence)
    memory.release()
    size = len(result.population)
    summary = TargetSummary(
        **vars(replace(measured, tpr=tpr)),
        auc_interval=auc_interval(roc, confidence),
        tied=_tied(roc),
        decisions=decisions,
        conformal=replace(_conformal(decisions), population=size, resolution=1 / (result.n_compared + 1)),
        fdr=exposures(result.scores, queries, members, FDRS, result.n_finest),
        epsilon=epsilon_bound(score, truth, confidence=confidence, roc=roc),
        diagnostics=_diagnose(result, decisions),
    )
    memory.release()
    below_chance = auc_interval(roc, 1 - (1 - NEARLY_CERTAIN) / n_compared).high < 0.5
    return Assessment(summary, metrics, auc_interval(roc, shared), below_chance, result.n_finest)


def measure(metrics: TargetMetrics) -> Measured:
    """Return metrics as the result holds them: without thresholds, which may be infinite."""
    tpr = {
        p.fpr: TprAtFpr(p.tpr, p.fpr_realised, p.low, p.high, p.confidence, p.n_true, p.resolved, p.needed)
        for p in metrics.operating
    }
    sizes = metrics.n_members, metrics.n_non_members
    return Measured(metrics.target, metrics.auc, metrics.balanced_accuracy, *sizes, tpr)


def _decide(result: AttackResult, confidence: float) -> dict[str, dict[float, Decision]]:
    """Judge all rules at all levels."""
    labels, truth = result.labels, result.truth
    known = Known(result.scores, result.population, labels, result.n_compared)
    rules = (rule(level) for rule in RULES for level in DECISION_LEVELS)
    usable = (rule for rule in rules if labels is not None or not rule.needs_labels)
    found: dict[str, dict[float, Decision]] = {}
    for decision in judge_all(usable, known, truth.members, truth.queries, confidence):
        infinite = decision.threshold is not None and not math.isfinite(decision.threshold)  # JSON has no infinity
        finite = replace(decision, threshold=None) if infinite else decision
        found.setdefault(decision.rule, {})[decision.level] = finite
    return found


def _conformal(decisions: Mapping[str, Mapping[float, Decision | typed.MeanDecision]]) -> typed.ConformalRates:
    calls = decisions[Conformal.name].items()
    return typed.ConformalRates({level: c.fpr_realised for level, c in calls}, {level: c.tpr for level, c in calls})


def _diagnose(result: AttackResult, decisions: Mapping[str, Mapping[float, Decision]]) -> typed.TargetDiagnostics:
    """Check p-values and rules; a refuted rule is replaced by conformal calls, or by none where these are refused."""
    failed = []
    for decision in (decision for levels in decisions.values() for decision in levels.values()):
        if decision.check is not None and not decision.check.passed:
            why = decisions[Conformal.name][decision.level].refused
            failed.append(typed.FailedCheck(decision.rule, decision.level, None if why else Conformal.name, why))
    # The sample of the figure depends only on the attack's name and the target.
    rng = np.random.default_rng([result.target, *result.scores.attack.encode()])
    pairs = pairwise_p_values(result.scores.statistic, result.population, result.truth, rng, 400, 500)
    return typed.TargetDiagnostics(
        failed_checks=tuple(failed),
        pairwise_p=pairs,
        realised_fpr=nominal_against_realised(result.scores, result.truth, len(result.population)),
    )


def _tied(roc: Roc) -> float:
    """Share of the points that share their score with at least `LARGE_TIE` of all."""
    counts, n = np.diff(roc.true_positives + roc.false_positives), roc.n_members + roc.n_non_members
    return float(counts[(counts > 1) & (counts >= LARGE_TIE * n)].sum() / n)


# All attacks on all targets ------------------------------------------------------------------------------------------


class Summary:
    """Assessments of all attacks on all targets, collected one result at a time."""

    def __init__(
        self,
        attacks: Sequence[str],
        n_targets: int = 1,
        detailed: Collection[int] | None = None,
        *,
        may_align: bool = True,
    ) -> None:
        self._assessments: dict[str, list[Assessment]] = {name: [] for name in attacks}
        self._compared = len(attacks) * n_targets
        self._may_align = may_align
        self._detailed = detailed  # targets whose decisions and diagnostics are kept in full; None for all
        self._judged: dict[str, _Judged] = {name: {} for name in attacks}
        self._references: set[int] = set()
        self._excluded: dict[int, list[int]] = {}
        self._checks: dict[int, typed.TargetChecks] = {}
        self._matches: dict[int, Match] = {}  # of targets whose references were not aligned
        self._answers: dict[int, UnlikeAnswers | None] = {}  # of targets whose references match after alignment
        self._gaussianity: Gaussianity | None = None
        self._grouped: int | None = None  # target by whose references the records are grouped
        self._by_group: dict[str, tuple[Measured | None, ...]] = {}
        self._power: EnoughReferences | None = None
        self._fits: dict[tuple[str, int], Mapping[str, object]] = {}
        self._skipped: dict[str, str] = {}
        self._one_record: dict[str, list[TargetMetrics]] = {}
        self._people = False
        self._one_each = False  # whether one record of each group was evaluated
        self._by_one_record: dict[str, int] = {}  # attacks that judge people by one record, and their references
        self._told: list[Note] = []

    @property
    def attacks(self) -> list[str]:
        """Names of the attacks that were not left out."""
        return list(self._assessments)

    def leave_out(self, attack: str, reason: str) -> None:
        """Leave an attack out of the result, except for the reason; the others' intervals stay as wide."""
        self._assessments.pop(attack, None)
        self._judged.pop(attack, None)
        self._one_record.pop(attack, None)
        self._skipped.setdefault(attack, reason)

    def add(self, result: AttackResult) -> None:
        """Assess one result and keep the assessment."""
        assessment = assess(result, self._compared)
        judged = self._judged[result.scores.attack]
        for rule, levels in assessment.summary.decisions.items():
            for level, decision in levels.items():
                judged.setdefault((rule, level), {})[result.target] = _Rates.of(decision)
        if self._detailed is not None and result.target not in self._detailed:
            assessment = replace(assessment, summary=_without_details(assessment.summary))
        self._assessments[result.scores.attack].append(assessment)
        memory.release()
        self._one_each |= len(result.truth.queries) + len(result.population) < len(result.truth.members)
        if (single := result.one_record) is not None:
            self._people = True
            if result.by_one_record:
                self._by_one_record[result.scores.attack] = len(result.references)
            score, truth = single.scores.score[single.truth.queries], single.truth.members[single.truth.queries]
            self._one_record.setdefault(result.scores.attack, []).append(evaluate(score, truth, target=result.target))
        if result.target not in self._checks:
            self._references.add(len(result.references))
            self._excluded[result.target] = [int(model) for model in result.left_out]
            unlike = if_possible(lambda: unlike_references(result.view))
            size = population_size(len(result.population))
            self._checks[result.target] = typed.TargetChecks(unlike, size, result.alignment)
            if result.alignment is not None:
                self._check_aligned_answers(result, result.alignment)
            elif (match := match_of(result.view)) is not None:
                self._matches[result.target] = match
            self.add_notes(result.notes)
        self._measure_groups(result)

    def _check_aligned_answers(self, result: AttackResult, alignment: Alignment) -> None:
        """Compare answers on the target's scale, if references are shown to match it: any others can be moved there."""
        if alignment.match is not None and alignment.match >= POOR_MATCH:
            members, groups = result.truth.members, result.groups
            of_records = members if groups is None else members[groups.of_record]
            self._answers[result.target] = if_possible(lambda: unlike_aligned_answers(result.view, of_records))

    def _measure_groups(self, result: AttackResult) -> None:
        """Measure the attack by Gaussianity of the records; only on the first target, since that sorts all signals."""
        if not len(result.references):
            return
        if self._gaussianity is None:
            self._gaussianity = gaussianity(result.view.references, most=MOST_EXAMINED)
            self._grouped = result.target
        if result.target == self._grouped:
            single = result.one_record or result
            groups = metrics_by_group(self._gaussianity, single.scores, single.truth, result.target)
            self._by_group[result.scores.attack] = tuple(measure(group) if group else None for group in groups)

    def add_fit(self, attack: str, target: int, fit: Mapping[str, object] | None) -> None:
        """Keep what an attack's statistic estimated over all records, if it did."""
        if fit is not None:
            self._fits[attack, target] = fit

    def add_notes(self, notes: Iterable[Note]) -> None:
        """Keep notes that do not follow from the results, each once."""
        self._told += [note for note in notes if note not in self._told]

    @property
    def evidence(self) -> Evidence:
        """Numbers behind the verdict, as far as results were added."""
        found = gather_evidence({name: group for name, group in self._assessments.items() if group})
        if not self._people:
            return replace(found, one_each=self._one_each)
        unnamed = None if found.unnamed is None else replace(found.unnamed, noun=("person", "people"))
        return replace(found, people=True, unnamed=unnamed)

    def result(self, about: About, power: EnoughReferences | None = None) -> RunResult:
        """Make the result of the run; ``power`` says how much more references would find, if that was measured."""
        self._power = power
        for group in self._assessments.values():
            group.sort(key=lambda a: a.metrics.target)
        sizes = {checks.population.n for checks in self._checks.values()}
        about = replace(about, references=tuple(sorted(self._references)), population=tuple(sorted(sizes)))
        self.add_notes(_about_notes(about))
        notes = self.notes()
        return RunResult(
            schema=typed.SCHEMA,
            verdict=self.evidence.verdict(notes),
            about=about,
            attacks={name: self._attack(name) for name in self._assessments},
            skipped=dict(self._skipped),
            diagnostics=self._diagnostics(),
            notes=tuple(notes),
            one_record={name: typed.OneRecordSummary(*_means(found)) for name, found in self._one_record.items()}
            or None,
        )

    def _diagnostics(self) -> typed.Diagnostics:
        tested = None
        if self._gaussianity is not None:
            tested = decode(typed.GaussianitySummary, {"target": self._grouped} | self._gaussianity.to_json())
        return typed.Diagnostics(self._power, tested, dict(sorted(self._checks.items())))

    def _attack(self, name: str) -> AttackSummary:
        group = self._assessments[name]
        entries = tuple(self._entry(name, a) for a in group)
        metrics = [a.metrics for a in group]
        auc, tpr = _means(metrics)
        balanced = summarise(metrics).balanced_accuracy
        decisions, bounds = _mean_decisions(self._judged[name]), [entry.epsilon for entry in entries]
        low, one_run = _mean([bound.low for bound in bounds]), _mean([bound.one_run.low for bound in bounds])
        return AttackSummary(
            auc=auc,
            balanced_accuracy=typed.Mean(balanced.mean, balanced.std),
            tpr=tpr,
            per_target=entries,
            decisions=decisions,
            conformal=_conformal(decisions),
            fdr={fdr: _mean_exposure(entries, fdr) for fdr in entries[0].fdr},
            epsilon=typed.MeanEpsilon(low, one_run, bounds[0].delta),
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
        rates = self._judged[attack][Analytic.name, level].values()
        made = [each.checked for each in rates if each.checked is not None]
        return self_check(sum(n for n, _ in made), sum(n for _, n in made), level) if made else None

    def _refuted(self, attack: str) -> tuple[float, float] | None:
        """Level at which the known non-members refute the paper's threshold, and the share of them that it flags.

        The level is `CHECK_LEVEL` if it is refuted there. The test accounts for trying several levels.
        """
        for level in sorted(DECISION_LEVELS, key=lambda level: level != CHECK_LEVEL):
            check = self._flagged(attack, level)
            if check is not None and check.p_value * len(DECISION_LEVELS) < CHECK_FAILS_BELOW:
                return level, check.flagged / check.population
        return None

    def _own_p_value(self, name: str) -> typed.OwnPValue:
        check, refuted = self._flagged(name, CHECK_LEVEL), self._refuted(name)
        level, share = refuted or (CHECK_LEVEL, check.flagged / check.population if check else None)
        return typed.OwnPValue(level, share, refuted is not None)

    # Notes ------------------------------------------------------------------------------------------------------------

    def notes(self) -> list[Note]:
        """What a reader must know beside the numbers."""
        found = self._reference_notes(), self._attack_notes(), self._size_notes()
        return [*self.evidence.notes(), *self._told_after_alignment(), *(note for group in found for note in group)]

    def _told_after_alignment(self) -> Iterator[Note]:
        """Notes from before the attacks; answers that differ only in their scale are withdrawn after alignment."""
        for note in self._told:
            if note.code != "answers-unlike-references" or not self._answers:
                yield note
            elif warnings := [found.warning for found in self._answers.values() if found and found.warning]:
                yield replace(note, text=warnings[0])

    def _reference_notes(self) -> Iterator[Note]:
        """Whether the references are enough and like the target, and which models were excluded."""
        if 0 < (fewest := min(self._references)) < LEAST_REFERENCES:
            yield Note("few-references", "caution", wording.few_references(fewest, LEAST_REFERENCES))
        likeness = {target: checks.unlike_references for target, checks in sorted(self._checks.items())}
        if unlike := {target: like.warning for target, like in likeness.items() if like and like.warning}:
            yield Note(
                "unlike-references",
                "caution",
                wording.unlike_references(unlike, len(likeness), may_align=self._may_align),
            )
        moved = {target: checks.alignment for target, checks in sorted(self._checks.items()) if checks.alignment}
        if moved:
            yield Note("references-aligned", "info", wording.references_aligned(moved, len(likeness)))
        poor: dict[int, Alignment | Match] = {
            target: found for target, found in self._matches.items() if found.clearly_below(POOR_MATCH)
        }
        poor |= {k: found for k, found in moved.items() if found.match is not None and found.match < POOR_MATCH}
        if poor:
            yield Note(
                "references-match-poorly", "caution", wording.references_match_poorly(poor, len(likeness), POOR_MATCH)
            )
        if self._power and self._power.warning:
            yield Note("more-references", "info", self._power.warning)
        if excluded := {target: models for target, models in self._excluded.items() if models}:
            yield Note("excluded-references", "info", wording.excluded_references(excluded))

    def _attack_notes(self) -> Iterator[Note]:
        """Which attacks could not run, have tied scores, or have p-values that do not hold."""
        if self._skipped:
            # Without the strongest attack, an audit may have missed a leak.
            strongest_missing = typed.DEFAULT_ATTACK in self._skipped
            text = wording.attacks_left_out(self._skipped)
            yield Note("attacks-left-out", "caution" if strongest_missing else "info", text)
        shares = {name: min(a.summary.tied for a in group) for name, group in self._assessments.items()}
        if tied := {name: share for name, share in shares.items() if share > MANY_TIED}:
            # Where another attack tells records apart, the tied ones cost nothing.
            yield Note(
                "tied-scores", "caution" if len(tied) == len(shares) else "info", wording.tied_scores(tied, LARGE_TIE)
            )
        if alone := {name: n for name, n in self._by_one_record.items() if name in self._assessments}:
            severity: Severity = "caution" if len(alone) == len(self._assessments) else "info"
            yield Note("people-by-one-record", severity, wording.people_by_one_record(alone, len(self._assessments)))
        if refuted := {name: found for name in self._assessments if (found := self._refuted(name)) is not None}:
            yield Note("combined-p-value", "info", wording.combined_p_value(refuted))

    def _size_notes(self) -> Iterator[Note]:
        """Which rates the evaluated non-members and the population cannot resolve."""
        everyone = [a.metrics for group in self._assessments.values() for a in group]
        fewest = min(everyone, key=lambda m: m.n_non_members)
        if unresolved := [point for point in reversed(fewest.operating) if not point.resolved]:
            yield Note("rates-unresolved", "info", wording.rates_unresolved(fewest.n_non_members, unresolved))
        if (warning := self._checks[min(self._checks)].population.warning) is not None:
            yield Note("population-size", "info", warning)


def _about_notes(about: About) -> Iterator[Note]:
    """Notes that follow from what was run."""
    if about.groups is not None and about.groups == about.signals.points:
        yield Note("groups", "info", wording.SINGLE_RECORDS)
    elif about.groups is not None and not about.people:
        yield Note("groups", "info", wording.groups(about.groups))
    if about.signals.clipped:
        yield Note("clipped-probabilities", "info", wording.clipped_probabilities(about.signals.clipped))


def weak_attacks(attacks: Sequence[Attack], mode: Mode) -> Iterator[Note]:
    """Note if the attacks together may miss a leak that others would find."""
    strong = [attack for attack in attacks if attack.uses_references]
    if not strong:
        yield wording.NO_REFERENCES_USED
    elif all(attack.statistic.assumes_member_law(mode) for attack in strong):
        text = wording.fixed_member_law(attack.name for attack in strong)
        yield Note("fixed-member-law", "caution", text)


def if_possible(check: Callable[[], T]) -> T | None:
    """Make a check; return None if it needs more data than there are, since that must not end the run."""
    try:
        return check()
    except PlmiaError:
        return None


# Means over targets --------------------------------------------------------------------------------------------------


def _means(targets: Sequence[TargetMetrics]) -> tuple[typed.Mean, dict[float, typed.MeanTpr]]:
    """Mean area and true-positive rates, with intervals over several targets."""
    means, many = summarise(targets), len(targets) > 1
    area = over_targets([one.auc for one in targets], in_turn=True) if many else None
    tpr = {}
    for point in means.operating:
        rates = mean_rate([one.tpr_at(point.fpr) for one in targets]) if many and point.resolved else None
        spread = point.tpr.mean, point.tpr.std
        tpr[point.fpr] = typed.MeanTpr(*spread, point.fpr_realised, point.resolved, point.needed, rates)
    return typed.Mean(means.auc.mean, means.auc.std, area), tpr


class _Rates(NamedTuple):
    """What the means over targets need of one decision."""

    fpr_realised: float | None
    tpr: float | None
    refused: str | None
    checked: tuple[int, int] | None  # known non-members that the rule's own check flags, and their number

    @classmethod
    def of(cls, decision: Decision) -> _Rates:
        check, why = decision.check, decision.refused
        checked = None if check is None else (check.flagged, check.population)
        # Many targets have the same reason: one text is kept.
        return cls(decision.fpr_realised, decision.tpr, None if why is None else sys.intern(why), checked)


_Judged = dict[tuple[str, float], dict[int, _Rates]]  # by rule and level, then by target


def _without_details(found: TargetSummary) -> TargetSummary:
    """Keep the rates of one target and its conformal decisions: with many targets, the rest would fill the memory."""
    kept = {Conformal.name: found.decisions[Conformal.name]}
    return replace(found, decisions=kept, diagnostics=typed.TargetDiagnostics())


def _mean_decisions(judged: _Judged) -> dict[str, dict[float, typed.MeanDecision]]:
    found: dict[str, dict[float, typed.MeanDecision]] = {}
    for (rule, level), by_target in judged.items():
        each = [by_target[target] for target in sorted(by_target)]
        refused = [one.refused for one in each if one.refused]
        rates = _known_mean([one.fpr_realised for one in each]), _known_mean([one.tpr for one in each])
        first = refused[0] if refused else None
        found.setdefault(rule, {})[level] = typed.MeanDecision(level, *rates, len(refused), first)
    return found


def _mean_exposure(entries: Sequence[TargetSummary], fdr: float) -> typed.MeanExposure:
    each: list[dict[str, float]] = [encode(entry.fdr[fdr]) for entry in entries]
    return typed.MeanExposure(**{key: _mean([one[key] for one in each]) for key in each[0]})


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _known_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _mean(known) if known else None
