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
    "archives": "read_archive",
    "assessment": "Assessment assess",
    "attacks": (
        "ATTACKS ATTACK_P ATTACK_R LIRA LIRA_FIXED PL_MIA PL_MIA_EB PL_MIA_PLUS PL_MIA_POOLED RMIA Attack find_attack"
    ),
    "auditing": "Audit AuditPlan audit run_audit",
    "calibration": "BinaryVote CauchyCombination MeanOfViews MedianOfViews NoCalibration VotesOfViews",
    "comparison": "compare compare_auc compare_over_targets",
    "data": "LabelledData read_data",
    "decisions": "Analytic ClassConformal Conformal Decision HeldOut Known ModelledTail Tolerance decide judge",
    "design": "MembershipDesign ReferencePlan audit_design complementary_pairs exact_k_per_point independent_halves",
    "diagnostics": ("enough_references nominal_against_realised pairwise_p_values population_size unlike_references"),
    "empirical_bayes": "EmpiricalBayesLR",
    "engines": "Inline LocalProcesses Ray",
    "epsilon": "EpsilonBound epsilon_bound",
    "errors": (
        "AttackError DataError OutputError PlmiaError PopulationError RecipeError ReferencesError SignalsError "
        "StoreError TrainingError"
    ),
    "evaluation": "AttackResult Setup attack_targets",
    "frames": "FrameError",
    "gaussian": "FixedVariance MeanCentre MedianCentre PerPointVariance PooledVariance PublishedFixedVariance",
    "gaussianity": "Gaussianity gaussianity",
    "given_target": "GivenTarget",
    "importing": "Imported import_signals",
    "intervals": "Interval RocBand auc_interval over_targets roc_band tpr_interval",
    "metrics": "AttackMetrics Operating Roc TargetMetrics clopper_pearson evaluate roc_curve summarise",
    "moments": "References",
    "notes": "Note",
    "numerics": "log_sigmoid logit_from_logits logit_from_probabilities",
    "pointwise": "BayesLR GaussianLR Loss OneSided ReferenceRank ShiftedOut",
    "population": "FreshPopulation SharedPopulation WithinClass",
    "planning": "Plan make_plan",
    "recipes.function": "Function",
    "recipes.named": "parse_recipe",
    "recipes.scikit": "Sklearn",
    "recipes.views": "View parse_views",
    "records": "RecordTable discoveries q_values record_table",
    "saved": "SavedResults",
    "scoring": "Scores score score_all",
    "side_by_side": "SideBySide compare_attacks compare_runs",
    "sides": "Run",
    "signals": "Signals read_signals",
    "store": "SignalStore write_stack",
    "verdict": "Verdict",
    "view": "AttackView Truth",
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
