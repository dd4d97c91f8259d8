"""plmia audits machine-learning models for membership leakage, with error rates that hold.

The names below are the public interface; each is imported on first use, so that ``import plmia`` costs nothing.

>>> import plmia
>>> plmia.PL_MIA.name
'pl-mia'
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "attacks.attack": (
        "ATTACKS ATTACK_P ATTACK_R Attack LIRA LIRA_FIXED PL_MIA PL_MIA_EB PL_MIA_PLUS PL_MIA_POOLED RMIA find_attack"
    ),
    "attacks.calibration": "BinaryVote CauchyCombination MeanOfViews MedianOfViews NoCalibration VotesOfViews",
    "attacks.empirical_bayes": "EmpiricalBayesLR",
    "attacks.gaussian": "FixedVariance MeanCentre MedianCentre PerPointVariance PooledVariance PublishedFixedVariance",
    "attacks.moments": "References",
    "attacks.population": "FreshPopulation SharedPopulation WithinClass",
    "attacks.scoring": "Scores score score_all",
    "attacks.statistics": "BayesLR GaussianLR Loss OneSided ReferenceRank ShiftedOut",
    "attacks.view": "AttackView Truth",
    "auditing.given_target": "GivenTarget",
    "auditing.planning": "Plan make_plan",
    "auditing.run": "Audit AuditPlan audit run_audit",
    "data.archives": "read_archive",
    "data.dataset": "LabelledData read_data",
    "data.designs": (
        "MembershipDesign ReferencePlan audit_design complementary_pairs exact_k_per_point independent_halves"
    ),
    "errors": (
        "AttackError DataError Note OutputError PlmiaError PopulationError RecipeError ReferencesError "
        "SignalsError StoreError TrainingError"
    ),
    "evaluation.decisions": (
        "Analytic ClassConformal Conformal Decision HeldOut Known ModelledTail Tolerance decide judge"
    ),
    "evaluation.diagnostics": (
        "enough_references nominal_against_realised pairwise_p_values population_size unlike_references"
    ),
    "evaluation.diagnostics.gaussianity": "Gaussianity gaussianity",
    "evaluation.epsilon": "EpsilonBound epsilon_bound",
    "evaluation.intervals": "Interval RocBand auc_interval over_targets roc_band tpr_interval",
    "evaluation.metrics": "AttackMetrics Operating Roc TargetMetrics clopper_pearson evaluate roc_curve summarise",
    "evaluation.records": "RecordTable discoveries q_values record_table",
    "evaluation.tables": "FrameError",
    "evaluation.targets": "AttackResult Setup attack_targets",
    "numerics": "log_sigmoid logit_from_logits logit_from_probabilities",
    "results.assessment": "Assessment assess",
    "results.comparison": "Run SideBySide compare compare_attacks compare_auc compare_over_targets compare_runs",
    "results.saved": "SavedResults",
    "results.verdict": "Verdict",
    "signals.importers": "Imported import_signals",
    "signals.signals": "Signals read_signals",
    "signals.store": "SignalStore write_stack",
    "training.engines": "Inline LocalProcesses Ray",
    "training.recipes.function": "Function",
    "training.recipes.named": "parse_recipe",
    "training.recipes.scikit": "Sklearn",
    "training.views": "View parse_views",
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names.split()}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'plmia' has no attribute {name!r}")
    value = getattr(import_module(f"plmia.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names."""
    return [*__all__, "__version__"]
