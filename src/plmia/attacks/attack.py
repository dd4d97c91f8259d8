"""The paper's Table 1 (`tab:improvement_sources`) as values: an attack is a statistic x a calibration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy.typing as npt

from plmia.attacks.calibration import (
    BinaryVote,
    Calibration,
    CauchyCombination,
    MeanOfViews,
    NoCalibration,
    PopulationPolicy,
    SharedPopulation,
    ViewAggregation,
)
from plmia.attacks.conditional import ConditionalExcess
from plmia.attacks.empirical_bayes import EmpiricalBayesLR
from plmia.attacks.rivals import ConjugateLR, MeanDifference, NormalPredictive, QuantileExcess, ScaledBayesLR
from plmia.attacks.statistics import (
    BayesLR,
    FixedVariance,
    FunctionOfView,
    GaussianLR,
    Loss,
    OneSided,
    PooledVariance,
    ReferenceRank,
    Statistic,
)
from plmia.attacks.view import AttackView, Mode
from plmia.errors import AttackError, did_you_mean

LONGEST_NAME = 80


@dataclass(frozen=True)
class Attack:
    """A membership inference attack.

    Parameters
    ----------
    name : str
        Name in results: printable, at most 80 characters, no slash or colon, not starting with ``=``, ``+``, ``-``,
        ``@`` or ``.``.
    statistic : Statistic or callable
        Pointwise statistic. A function of an `AttackView` that returns phi [records, views] will do; it becomes a
        `FunctionOfView`.
    calibration : Calibration
        Population calibration.
    views : ViewAggregation
        Aggregation of the views of a record.
    population : PopulationPolicy
        Choice of the records that a query is compared with.
    note : str
        One line for listings.
    """

    name: str
    statistic: Statistic
    calibration: Calibration
    views: ViewAggregation = field(default_factory=MeanOfViews)
    population: PopulationPolicy = field(default_factory=SharedPopulation)
    note: str = ""

    if TYPE_CHECKING:  # the statistic is given more freely than it is kept

        def __init__(
            self,
            name: str,
            statistic: Statistic | Callable[[AttackView], npt.ArrayLike],
            calibration: Calibration,
            views: ViewAggregation = ...,
            population: PopulationPolicy = ...,
            note: str = "",
        ) -> None: ...

    def __post_init__(self) -> None:
        self._require_name()
        given: object = self.statistic
        if callable(given) and not isinstance(given, type | Statistic):
            object.__setattr__(self, "statistic", FunctionOfView(given))
        for part, contract in _PARTS.items():
            self._require_part(part, contract)
        if self.calibration.threshold >= self.views.largest_difference:
            raise AttackError(
                f"attack {self.name} compares differences of at most {self.views.largest_difference} with gamma = "
                f"{self.calibration.threshold}, so no vote can pass: take a gamma below {self.views.largest_difference}"
            )
        if self.views.needs_population and not self.calibration.compares:
            raise AttackError(f"attack {self.name} takes votes over views, which need a population: add a calibration")
        try:
            hash(self.statistic)
        except TypeError as error:
            raise AttackError(
                f"the statistic of {self.name} cannot be compared with others ({error}): "
                "make it a frozen dataclass of plain values"
            ) from error

    @property
    def uses_references(self) -> bool:
        """Whether the attack needs references at all."""
        return self.statistic.least_references(1) > 0

    @property
    def compares_pairs(self) -> bool:
        """Whether pairs are formed one by one, from the statistic in every view."""
        return self.calibration.compares and not (self.views.linear and self.population.shared)

    def in_mode(self, mode: Mode) -> Attack:
        """Return the attack with the statistic that this mode needs; see `Statistic.in_mode`."""
        return replace(self, statistic=self.statistic.in_mode(mode))

    def _require_name(self) -> None:
        """Raise unless the name can be used in every file: key of scores.npz, cell of a table, text of the report."""
        name = self.name
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
            size = f"{len(name)} characters" if isinstance(name, str) else f"type {type(name).__name__}"
            raise AttackError(f"the name of an attack has {size}: a text of 1 to {LONGEST_NAME} characters is needed")
        if not name.isprintable() or any(c in name for c in "/\\:"):
            raise AttackError(
                f"the attack name {name!a} has a slash, a colon, or a character that is not printable: take letters, "
                "digits and hyphens"
            )
        # A spreadsheet takes such a cell for a formula, and an archive takes such a key for a folder above.
        if name[0] in "=+-@. " or name[-1] == " ":
            raise AttackError(
                f"the attack name {name!a} starts with one of = + - @ . or has a space at an end: start with a letter"
            )

    def _require_part(self, part: str, contract: type) -> None:
        """Raise if a part is a class, or lacks a member of its contract: easy slips in a user's own file."""
        value = vars(self)[part]
        if isinstance(value, type):
            raise AttackError(f"the {part} of {self.name} is the class {value.__name__}: give {value.__name__}()")
        missing = [member for member in vars(contract) if member[0] != "_" and not hasattr(value, member)]
        if missing:
            wanted = f"{contract.__module__}.{contract.__name__}"
            raise AttackError(f"the {part} of {self.name}, {value!r}, has no {missing[0]}: subclass {wanted}")


_PARTS = {"statistic": Statistic, "calibration": Calibration, "views": ViewAggregation, "population": PopulationPolicy}

ATTACK_P = Attack("attack-p", Loss(), BinaryVote(), note="loss, ranked in the population")
ATTACK_R = Attack("attack-r", ReferenceRank(), NoCalibration(), note="rank of the loss among OUT references")
LIRA = Attack("lira", GaussianLR(offline=OneSided()), NoCalibration(), note="Gaussian LR, variance per record")
LIRA_FIXED = Attack(
    "lira-fixed",
    GaussianLR(FixedVariance(), offline=OneSided()),
    NoCalibration(),
    note="Gaussian LR, one variance for all records (as published experiments ran it)",
)
RMIA = Attack("rmia", BayesLR(), BinaryVote(gamma=math.log(2)), note="Bayes LR, binary votes of the population")
PL_MIA_PLUS = Attack("pl-mia-plus", GaussianLR(), BinaryVote(), note="Gaussian LR, binary votes")
PL_MIA = Attack("pl-mia", GaussianLR(), CauchyCombination(), note="Gaussian LR, Cauchy-combined p-values")
PL_MIA_POOLED = Attack(
    "pl-mia-pooled",
    GaussianLR(PooledVariance()),
    CauchyCombination(),
    note="PL-MIA, variance pooled over the views of a record",
)
PL_MIA_EB = Attack(
    "pl-mia-eb",
    EmpiricalBayesLR(),
    CauchyCombination(),
    note="empirical Bayes: priors learned over records, joint over views",
)
ATTACK_P_CONDITIONAL = Attack(
    "attack-p-conditional",
    ConditionalExcess(),
    BinaryVote(),
    note="signal beyond what the record explains, ranked in the population (plmia screen)",
)
BAVARIA_T = Attack(
    "bavaria-t", ConjugateLR(), NoCalibration(), note="Student-t LR, one conjugate prior per side (BaVarIA)"
)
BAVARIA_N = Attack(
    "bavaria-n",
    ConjugateLR(NormalPredictive()),
    NoCalibration(),
    note="Gaussian LR, variance shrunk by one conjugate prior per side (BaVarIA)",
)
INFO_RMIA = Attack("info-rmia", BayesLR(), MeanDifference(), note="Bayes LR, mean over the population (InfoRMIA)")
BASE = Attack("base", ScaledBayesLR(), NoCalibration(), note="Bayes LR, one threshold for all records (BASE)")
QUANTILE_REGRESSION = Attack(
    "quantile-regression",
    QuantileExcess(),
    NoCalibration(),
    note="signal standardised by quantiles predicted from the record; needs the data",
)

_ALL = (ATTACK_P, ATTACK_R, LIRA, LIRA_FIXED, RMIA, PL_MIA_PLUS, PL_MIA, PL_MIA_POOLED, PL_MIA_EB)
ATTACKS: dict[str, Attack] = {attack.name: attack for attack in _ALL}
# Attacks that need no references; the second one needs the data.
SCREENING: dict[str, Attack] = {attack.name: attack for attack in (ATTACK_P, ATTACK_P_CONDITIONAL)}
# Published since the paper, for comparisons: run only if they are named.
RIVALS: dict[str, Attack] = {
    attack.name: attack for attack in (BAVARIA_T, BAVARIA_N, INFO_RMIA, BASE, QUANTILE_REGRESSION)
}
KNOWN: dict[str, Attack] = ATTACKS | SCREENING | RIVALS


def find_attack(name: str) -> Attack:
    """Return the attack called ``name``, or the one that ``FILE.py:NAME`` defines."""
    if ".py:" in name:
        path, _, variable = name.rpartition(":")
        return _load(Path(path), variable)
    if name in KNOWN:
        return KNOWN[name]
    hint = did_you_mean(name.lower().replace("_", "-"), KNOWN, cutoff=0.4)
    raise AttackError(f"there is no attack {name!r}: {hint} (an attack of your own: FILE.py:NAME)")


def _load(path: Path, variable: str) -> Attack:
    """Run the user's own file and return one variable from it."""
    from plmia.data.user_code import load_user_file

    attacks = {
        key: value for key, value in vars(load_user_file(path, AttackError)).items() if isinstance(value, Attack)
    }
    if variable not in attacks:
        raise AttackError(f"{path} has no Attack called {variable!r}: it has {', '.join(attacks) or 'none'}")
    return attacks[variable]
