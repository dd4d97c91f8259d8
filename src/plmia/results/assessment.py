"""Assessment of one attack on one target: metrics, decisions by rule, exposed records, epsilon and checks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from plmia.data.arrays import FloatArray
from plmia.evaluation.decisions import RULES, Conformal, Decision, Known, judge_all
from plmia.evaluation.diagnostics.p_values import nominal_against_realised, pairwise_p_values
from plmia.evaluation.epsilon import epsilon_bound
from plmia.evaluation.intervals import Interval, auc_interval, tpr_interval
from plmia.evaluation.metrics import DECISION_LEVELS, Roc, TargetMetrics, evaluate, roc_curve
from plmia.evaluation.records import Naming, exposure
from plmia.evaluation.targets import AttackResult
from plmia.results.result import (
    ConformalRates,
    FailedCheck,
    Measured,
    PairwiseCounts,
    TargetDiagnostics,
    TargetSummary,
    TprAtFpr,
)

FDRS = (0.01, 0.05, 0.1)
CONFIDENCE = 0.95
# Confidence of the check that members and non-members are swapped, which makes an audit invalid.
NEARLY_CERTAIN = 0.999
# Votes and ranks tie a few points at a time by design; ties of at least this share of all points hide who is who.
LARGE_TIE = 0.1


@dataclass(frozen=True)
class Assessment:
    """One attack on one target: its entry in the result, and what the verdict needs beside that.

    Parameters
    ----------
    summary : TargetSummary
        The entry of ``per_target``.
    metrics : TargetMetrics
        ROC numbers with thresholds, from which means over targets are made.
    joint_auc : Interval
        Interval of the area under the curve, for all attacks and targets of the run at once.
    below_chance : bool
        Whether members score below non-members, with `NEARLY_CERTAIN` confidence for all attacks and targets at once.
    """

    summary: TargetSummary
    metrics: TargetMetrics
    joint_auc: Interval
    below_chance: bool

    def naming(self, fdr: float) -> Naming:
        """Explain why nobody was named at a false discovery rate."""
        m = self.metrics
        standing = round(m.tpr_at(0.0).tpr * m.n_members)
        return Naming(fdr, m.n_members, m.n_non_members, self.summary.conformal.population or 0, standing)


def assess(result: AttackResult, n_compared: int = 1, confidence: float = CONFIDENCE) -> Assessment:
    """Assess one attack on one target.

    Parameters
    ----------
    result : AttackResult
        The attack's scores and the truth.
    n_compared : int
        How many such results the run has; joint intervals hold for all of them at once.
    confidence : float
        Confidence of all intervals and bounds.
    """
    queries, members = result.truth.queries, result.truth.members
    score, truth = result.scores.score[queries], members[queries]
    roc = roc_curve(score, truth)
    metrics = evaluate(score, truth, target=result.target, confidence=confidence)
    shared = 1 - (1 - confidence) / n_compared
    at_nominal, joint = (dict(_tpr_intervals(roc, metrics, c)) for c in (confidence, shared))
    measured = measure(metrics)
    tpr = {
        fpr: replace(point, at_nominal=at_nominal.get(fpr), joint=joint.get(fpr)) for fpr, point in measured.tpr.items()
    }
    decisions = _decide(result, confidence)
    size, calls = len(result.population), decisions[Conformal.name].values()
    fpr_realised, true = {call.level: call.fpr_realised for call in calls}, {call.level: call.tpr for call in calls}
    summary = TargetSummary(
        **vars(replace(measured, tpr=tpr)),
        auc_interval=auc_interval(roc, confidence),
        tied=_tied(score),
        decisions=decisions,
        conformal=ConformalRates(fpr_realised, true, size, 1 / (size + 1)),
        fdr={fdr: exposure(result.scores, queries, members, fdr, size) for fdr in FDRS},
        epsilon=epsilon_bound(score, truth, confidence=confidence),
        diagnostics=_diagnose(result, decisions),
    )
    below_chance = auc_interval(roc, 1 - (1 - NEARLY_CERTAIN) / n_compared).high < 0.5
    return Assessment(summary, metrics, auc_interval(roc, shared), below_chance)


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
    labels, truth = result.view.labels, result.truth
    known = Known(result.scores, result.population, labels)
    rules = (rule(level) for rule in RULES for level in DECISION_LEVELS)
    usable = (rule for rule in rules if labels is not None or not rule.needs_labels)
    found: dict[str, dict[float, Decision]] = {}
    for decision in judge_all(usable, known, truth.members, truth.queries, confidence):
        infinite = decision.threshold is not None and not math.isfinite(decision.threshold)  # JSON has no infinity
        found.setdefault(decision.rule, {})[decision.level] = replace(
            decision, threshold=None if infinite else decision.threshold
        )
    return found


def _diagnose(result: AttackResult, decisions: dict[str, dict[float, Decision]]) -> TargetDiagnostics:
    """Check p-values and rules; a refuted rule is replaced by conformal calls, or by none where these are refused."""
    failed = []
    for decision in (decision for levels in decisions.values() for decision in levels.values()):
        if decision.check is not None and not decision.check.passed:
            why = decisions[Conformal.name][decision.level].refused
            failed.append(FailedCheck(decision.rule, decision.level, None if why else Conformal.name, why))
    # The sample of the figure depends only on the attack's name and the target.
    rng = np.random.default_rng([result.target, *result.scores.attack.encode()])
    pairs = pairwise_p_values(result.scores.statistic, result.population, result.truth, rng, 400, 500)
    counts = tuple(pairs.members.tolist()), tuple(pairs.non_members.tolist())
    return TargetDiagnostics(
        failed_checks=tuple(failed),
        pairwise_p=PairwiseCounts(*counts, pairs.distance, pairs.distance_by_query, pairs.warning),
        realised_fpr=nominal_against_realised(result.scores, result.truth, len(result.population)),
    )


def _tied(score: FloatArray) -> float:
    """Share of the points that share their score with at least `LARGE_TIE` of all."""
    _, counts = np.unique(score, return_counts=True)
    return float(counts[(counts > 1) & (counts >= LARGE_TIE * len(score))].sum() / len(score))


def _tpr_intervals(roc: Roc, metrics: TargetMetrics, confidence: float) -> Iterator[tuple[float, Interval]]:
    for point in metrics.operating:
        if point.fpr > 0 and point.resolved:
            yield point.fpr, tpr_interval(roc, point.fpr, confidence)
