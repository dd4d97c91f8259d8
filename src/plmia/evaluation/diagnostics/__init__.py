"""Do the assumptions of an audit hold, and is it large enough? Each check returns numbers, and a warning if not."""

from __future__ import annotations

from plmia.evaluation.diagnostics.likeness import (
    UnlikeAnswers,
    UnlikeReferences,
    accuracy_of,
    unlike_answers,
    unlike_references,
)
from plmia.evaluation.diagnostics.p_values import (
    FprCurve,
    PairwiseP,
    PopulationSize,
    Rates,
    nominal_against_realised,
    pairwise_p_values,
    population_size,
)
from plmia.evaluation.diagnostics.plausible import require_plausible
from plmia.evaluation.diagnostics.power import (
    Curve,
    EnoughReferences,
    Extrapolation,
    Pilot,
    enough_references,
    extrapolate,
    needed_outsiders,
)

__all__ = [
    "Curve",
    "EnoughReferences",
    "Extrapolation",
    "FprCurve",
    "PairwiseP",
    "Pilot",
    "PopulationSize",
    "Rates",
    "UnlikeAnswers",
    "UnlikeReferences",
    "accuracy_of",
    "enough_references",
    "extrapolate",
    "needed_outsiders",
    "nominal_against_realised",
    "pairwise_p_values",
    "population_size",
    "require_plausible",
    "unlike_answers",
    "unlike_references",
]
