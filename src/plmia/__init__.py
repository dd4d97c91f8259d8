"""plmia audits machine-learning models for membership leakage, with error rates that hold.

Every verb of the command is a function of the same name: `audit`, `design`, `score`, `screen`, `report`, `compare`,
`gate`, `plan`, `import_signals`, `demo`, `reproduce`. The other names below are what these take and return. Everything
else is importable from its package, for example ``plmia.evaluation.intervals``. A name is imported when it is first
used, so ``import plmia`` takes no time; type checkers and editors see the imports under ``TYPE_CHECKING``.

>>> import plmia
>>> plmia.PL_MIA.name
'pl-mia'
"""

from importlib import import_module

TYPE_CHECKING = False  # that of `typing`, which takes time to import

if TYPE_CHECKING:
    from plmia.attacks.attack import (
        ATTACK_P,
        ATTACK_R,
        ATTACKS,
        LIRA,
        LIRA_FIXED,
        PL_MIA,
        PL_MIA_EB,
        PL_MIA_PLUS,
        PL_MIA_POOLED,
        RMIA,
        Attack,
        find_attack,
    )
    from plmia.attacks.calibration import BinaryVote, CauchyCombination, MedianOfViews, NoCalibration, WithinClass
    from plmia.attacks.statistics import FixedVariance, GaussianLR, Loss, MedianCentre, PerPointVariance, PooledVariance
    from plmia.attacks.view import AttackView
    from plmia.auditing.gate import GateDecision, gate
    from plmia.auditing.given_target import GivenTarget
    from plmia.auditing.planning import Plan
    from plmia.auditing.reproduce import reproduce
    from plmia.auditing.run import audit, demo
    from plmia.auditing.score import Audit, score
    from plmia.auditing.screen import screen
    from plmia.auditing.verbs import compare, design, import_signals, plan, report
    from plmia.data.dataset import LabelledData, read_data
    from plmia.data.designs import MembershipDesign, exact_k_per_point
    from plmia.errors import Note, PlmiaError, PlmiaWarning
    from plmia.evaluation.decisions import Analytic, Conformal, HeldOut, Known, Tolerance, decide, judge
    from plmia.evaluation.epsilon import epsilon_bound
    from plmia.evaluation.metrics import evaluate
    from plmia.evaluation.targets import Setup, attack_targets
    from plmia.numerics import logit_from_logits, logit_from_probabilities
    from plmia.results.comparison import SideBySide
    from plmia.results.saved import SavedRun
    from plmia.signals.signals import Signals, read_signals
    from plmia.signals.store import SignalStore
    from plmia.training.engines import Inline, LocalProcesses, Ray
    from plmia.training.own_script import Run
    from plmia.training.recipes.function import Function
    from plmia.training.recipes.scikit import Sklearn
    from plmia.training.recipes.torch_module import Torch
    from plmia.training.views import View

__version__ = "0.1.0"

# fmt: off
__all__ = [
    "ATTACKS", "ATTACK_P", "ATTACK_R", "LIRA", "LIRA_FIXED", "PL_MIA", "PL_MIA_EB", "PL_MIA_PLUS", "PL_MIA_POOLED",
    "RMIA", "Analytic", "Attack", "AttackView", "Audit", "BinaryVote", "CauchyCombination", "Conformal",
    "FixedVariance", "Function", "GateDecision", "GaussianLR", "GivenTarget", "HeldOut", "Inline", "Known",
    "LabelledData", "LocalProcesses", "Loss", "MedianCentre", "MedianOfViews", "MembershipDesign", "NoCalibration",
    "Note", "PerPointVariance", "Plan", "PlmiaError", "PlmiaWarning", "PooledVariance", "Ray", "Run", "SavedRun",
    "Setup", "SideBySide", "SignalStore", "Signals", "Sklearn", "Tolerance", "Torch", "View", "WithinClass",
    "attack_targets", "audit", "compare", "decide", "demo", "design", "epsilon_bound", "evaluate", "exact_k_per_point",
    "find_attack", "gate", "import_signals", "judge", "logit_from_logits", "logit_from_probabilities", "plan",
    "read_data", "read_signals", "report", "reproduce", "score", "screen",
]
# fmt: on

# The same names by module, for the import at run time; a test compares this table with the imports above.
_NAMES = {
    "attacks.attack": (
        "ATTACK_P ATTACK_R ATTACKS LIRA LIRA_FIXED PL_MIA PL_MIA_EB PL_MIA_PLUS PL_MIA_POOLED RMIA Attack find_attack"
    ),
    "attacks.calibration": "BinaryVote CauchyCombination MedianOfViews NoCalibration WithinClass",
    "attacks.statistics": "FixedVariance GaussianLR Loss MedianCentre PerPointVariance PooledVariance",
    "attacks.view": "AttackView",
    "auditing.gate": "GateDecision gate",
    "auditing.given_target": "GivenTarget",
    "auditing.planning": "Plan",
    "auditing.reproduce": "reproduce",
    "auditing.run": "audit demo",
    "auditing.score": "Audit score",
    "auditing.screen": "screen",
    "auditing.verbs": "compare design import_signals plan report",
    "data.dataset": "LabelledData read_data",
    "data.designs": "MembershipDesign exact_k_per_point",
    "errors": "Note PlmiaError PlmiaWarning",
    "evaluation.decisions": "Analytic Conformal HeldOut Known Tolerance decide judge",
    "evaluation.epsilon": "epsilon_bound",
    "evaluation.metrics": "evaluate",
    "evaluation.targets": "Setup attack_targets",
    "numerics": "logit_from_logits logit_from_probabilities",
    "results.comparison": "SideBySide",
    "results.saved": "SavedRun",
    "signals.signals": "Signals read_signals",
    "signals.store": "SignalStore",
    "training.engines": "Inline LocalProcesses Ray",
    "training.own_script": "Run",
    "training.recipes.function": "Function",
    "training.recipes.scikit": "Sklearn",
    "training.recipes.torch_module": "Torch",
    "training.views": "View",
}
_MODULE = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # otherwise a checker would take any name for a public one

    def __getattr__(name: str) -> object:
        """Import a public name from its module when it is first used."""
        if name not in _MODULE:
            raise AttributeError(f"module 'plmia' has no attribute {name!r}")
        value = getattr(import_module(f"plmia.{_MODULE[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Public names."""
    return [*__all__, "__version__"]
