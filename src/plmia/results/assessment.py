"""What is said of one attack on one target: metrics, decisions by rule, exposed records, epsilon and checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.evaluation.decisions import RULES, Conformal, Decision, DecisionRule, Known, judge_all
from plmia.evaluation.diagnostics import FprCurve, PairwiseP, nominal_against_realised, pairwise_p_values
from plmia.evaluation.epsilon import EpsilonBound, epsilon_bound
from plmia.evaluation.intervals import Interval, auc_interval, tpr_interval
from plmia.evaluation.metrics import Roc, TargetMetrics, evaluate, fpr_key, roc_curve
from plmia.evaluation.records import Exposure, exposure
from plmia.evaluation.targets import AttackResult

LEVELS = (0.1, 0.01, 0.001, 0.0001)
FDRS = (0.01, 0.05, 0.1)
CONFIDENCE = 0.95
# Of a check that says that an audit is invalid.
NEARLY_CERTAIN = 0.999
# Votes and ranks tie by design, a few points at a time; from this share of all points on, ties hide who is who.
LARGE_TIE = 0.1


@dataclass(frozen=True)
class Assessment:
    """All that is said of one attack on one target.

    Parameters
    ----------
    metrics : TargetMetrics
        ROC numbers; the interval of a TPR is given the cut.
    auc, joint_auc : Interval
        Of the area under the curve; and for all attacks and targets of the run at once.
    at_nominal : dict of float to Interval
        Of the TPR at exactly a nominal FPR, the uncertainty of the cut included; only where the data resolve it.
    joint : dict of float to Interval
        The same for all attacks and targets of the run at once, which pays for picking the best of them afterwards.
    decisions : tuple of Decision
        Each rule at each level.
    exposures : tuple of Exposure
        Records exposed at each false discovery rate.
    epsilon : EpsilonBound
        What of differential privacy the attack refutes.
    pairwise, realised : PairwiseP, FprCurve
        Pairwise p-values (`fig:p_value_distribution`) and realised against nominal FPR (`fig:fpr`).
    below_chance : bool
        Whether members score below non-members, with `NEARLY_CERTAIN` confidence for all attacks and targets at once.
    tied : float
        Share of the evaluated points that share their score with at least `LARGE_TIE` of all.
    """

    metrics: TargetMetrics
    auc: Interval
    joint_auc: Interval
    at_nominal: dict[float, Interval]
    joint: dict[float, Interval]
    decisions: tuple[Decision, ...]
    exposures: tuple[Exposure, ...]
    epsilon: EpsilonBound
    pairwise: PairwiseP
    realised: FprCurve
    below_chance: bool
    tied: float

    def decision(self, rule: str, level: float) -> Decision:
        """One rule's decision at one of `LEVELS`."""
        return next(d for d in self.decisions if d.rule == rule and d.level == level)

    @property
    def failed_checks(self) -> list[Decision]:
        """Decisions of rules that the known non-members refute."""
        return [d for d in self.decisions if d.check is not None and not d.check.passed]

    def to_json(self) -> dict[str, Any]:
        """Return this target's entry of ``per_target`` in ``metrics.json``."""
        entry = self.metrics.to_json()
        entry["auc_interval"] = self.auc.to_json()
        entry["tied"] = self.tied
        for fpr in self.at_nominal:
            point = entry["tpr"][fpr_key(fpr)]
            point["at_nominal"] = self.at_nominal[fpr].to_json()
            point["joint"] = self.joint[fpr].to_json()
        return entry | {
            "decisions": self._decisions(),
            "conformal": self._conformal(),
            "fdr": {fpr_key(e.fdr): e.to_json() for e in self.exposures},
            "epsilon": self.epsilon.to_json(),
            "diagnostics": {
                "failed_checks": [self._failed(decision) for decision in self.failed_checks],
                "pairwise_p": self.pairwise.to_json(),
                "realised_fpr": self.realised.to_json(),
            },
        }

    def _failed(self, decision: Decision) -> dict[str, Any]:
        """Name a refuted decision and what stands in its place: conformal calls, or none where these are refused."""
        safe = self.decision(Conformal.name, decision.level)
        fallback = None if safe.refused else Conformal.name
        return {"rule": decision.rule, "level": decision.level, "fallback": fallback, "why_none": safe.refused}

    def _decisions(self) -> dict[str, Any]:
        by_rule: dict[str, Any] = {}
        for decision in self.decisions:
            by_rule.setdefault(decision.rule, {})[fpr_key(decision.level)] = decision.to_json()
        return by_rule

    def _conformal(self) -> dict[str, Any]:
        """The rule that always holds, in short."""
        calls = [d for d in self.decisions if d.rule == Conformal.name]
        population = calls[0].population
        assert population is not None  # noqa: S101 - every decision names it
        return {
            "population": population,
            "resolution": 1 / (population + 1),
            "fpr_realised": {fpr_key(d.level): d.to_json()["fpr_realised"] for d in calls},
            "tpr": {fpr_key(d.level): d.to_json()["tpr"] for d in calls},
        }


def assess(result: AttackResult, n_compared: int = 1, confidence: float = CONFIDENCE) -> Assessment:
    """Judge one attack on one target.

    Parameters
    ----------
    result : AttackResult
        The attack's scores and the truth.
    n_compared : int
        How many such results the run has: `Assessment.joint` holds for all of them at once.
    confidence : float
        Of all intervals and bounds.
    """
    queries, members = result.truth.queries, result.truth.members
    score, truth = result.scores.score[queries], members[queries]
    roc = roc_curve(score, truth)
    metrics = evaluate(score, truth, target=result.target, confidence=confidence)
    shared = 1 - (1 - confidence) / n_compared
    known = Known(result.scores, result.population, result.view.labels)
    # What is drawn, a sample for a figure, depends on nothing but the attack's name and the target.
    rng = np.random.default_rng([result.target, *result.scores.attack.encode()])
    return Assessment(
        metrics=metrics,
        auc=auc_interval(roc, confidence),
        joint_auc=auc_interval(roc, shared),
        at_nominal=dict(_tpr_intervals(roc, metrics, confidence)),
        joint=dict(_tpr_intervals(roc, metrics, shared)),
        decisions=tuple(judge_all(_rules(result.view.labels), known, members, queries, confidence)),
        exposures=tuple(exposure(result.scores, queries, members, fdr, len(result.population)) for fdr in FDRS),
        epsilon=epsilon_bound(score, truth, confidence=confidence),
        pairwise=pairwise_p_values(result.scores.statistic, result.population, result.truth, rng, 400, 500),
        realised=nominal_against_realised(result.scores, result.truth, len(result.population)),
        below_chance=auc_interval(roc, 1 - (1 - NEARLY_CERTAIN) / n_compared).high < 0.5,
        tied=_tied(score),
    )


def _tied(score: npt.NDArray[np.floating]) -> float:
    _, counts = np.unique(score, return_counts=True)
    return float(counts[(counts > 1) & (counts >= LARGE_TIE * len(score))].sum() / len(score))


def _rules(labels: npt.NDArray[np.integer] | None) -> Iterator[DecisionRule]:
    rules = (rule(level) for rule in RULES for level in LEVELS)
    return (rule for rule in rules if labels is not None or not rule.needs_labels)


def _tpr_intervals(roc: Roc, metrics: TargetMetrics, confidence: float) -> Iterator[tuple[float, Interval]]:
    for point in metrics.operating:
        if point.fpr > 0 and point.resolved:
            yield point.fpr, tpr_interval(roc, point.fpr, confidence)
