"""The paper's Table 1 (`tab:improvement_sources`) as values: an attack is a statistic x a calibration."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plmia.attacks.calibration import (
    BinaryVote,
    Calibration,
    CauchyCombination,
    MeanOfViews,
    NoCalibration,
    Views,
    VotesOfViews,
)
from plmia.attacks.empirical_bayes import EmpiricalBayesLR
from plmia.attacks.gaussian import FixedVariance, PooledVariance
from plmia.attacks.population import Policy, SharedPopulation
from plmia.attacks.statistics import BayesLR, GaussianLR, Loss, OneSided, ReferenceRank, Statistic
from plmia.attacks.view import AttackView
from plmia.data.user_code import load_user_file
from plmia.errors import AttackError

LONGEST_NAME = 80


@dataclass(frozen=True)
class Attack:
    """A membership inference attack.

    Parameters
    ----------
    name : str
        What results call it: printable, at most 80 characters, no slash or colon, and no ``=``, ``+``, ``-``, ``@`` or
        ``.`` at its start.
    statistic : Statistic
        Pointwise statistic.
    calibration : Calibration
        Population calibration.
    views : Views
        How the views of a point are aggregated.
    population : Policy
        Whom a query is compared with.
    note : str
        One line for listings.
    """

    name: str
    statistic: Statistic
    calibration: Calibration
    views: Views = field(default_factory=MeanOfViews)
    population: Policy = field(default_factory=SharedPopulation)
    note: str = ""

    def __post_init__(self) -> None:
        self._require_name()
        self._require_parts()
        gamma = self.calibration.gamma if isinstance(self.calibration, BinaryVote) else 0.0
        if isinstance(self.views, VotesOfViews) and gamma >= 0.5:
            raise AttackError(
                f"attack {self.name} compares shares of views, at most 0.5 from even, with gamma = {gamma}: "
                "nothing would ever win; take a gamma below 0.5"
            )
        if isinstance(self.calibration, NoCalibration) and isinstance(self.views, VotesOfViews):
            raise AttackError(f"attack {self.name} takes votes over views, which need a population: add a calibration")
        try:
            hash(self.statistic)
        except TypeError as error:
            raise AttackError(
                f"the statistic of {self.name} cannot be told from others ({error}): "
                "make it a frozen dataclass of plain values"
            ) from error

    def fit_summary(self, view: AttackView) -> dict[str, Any] | None:
        """What the statistic estimates over all points of ``view`` (priors, trends), as plain values, if it does."""
        fit = getattr(self.statistic, "fit", None)
        return None if fit is None else dict(fit(view).to_json())

    def _require_name(self) -> None:
        """Raise unless the name can stand in every file: key of scores.npz, cell of a table, text of the report."""
        name = self.name
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
            size = f"{len(name)} characters" if isinstance(name, str) else f"type {type(name).__name__}"
            raise AttackError(f"the name of an attack has {size}: a text of 1 to {LONGEST_NAME} characters is needed")
        if not name.isprintable() or any(c in name for c in "/\\:"):
            raise AttackError(
                f"the attack name {name!a} holds a slash, a colon, or a character that is not printable: take letters, "
                "digits and hyphens"
            )
        # A spreadsheet would take such a cell for a formula, and an archive such a key for a folder above.
        if name[0] in "=+-@. " or name[-1] == " ":
            raise AttackError(
                f"the attack name {name!a} starts with one of = + - @ . or has a space at an end: start with a letter"
            )

    def _require_parts(self) -> None:
        """Raise if a part is a class, or lacks a method: easy slips in a file of one's own."""
        parts = {
            "statistic": ("__call__",),
            "calibration": ("shared", "pairwise"),
            "views": ("points", "pairs"),
            "population": ("comparisons",),
        }
        for part, methods in parts.items():
            value = getattr(self, part)
            if isinstance(value, type):
                raise AttackError(f"the {part} of {self.name} is the class {value.__name__}: give {value.__name__}()")
            missing = [method for method in methods if not callable(getattr(value, method, None))]
            if missing:
                raise AttackError(
                    f"the {part} of {self.name}, {value!r}, has no method {missing[0]}: see `plmia.Attack`"
                )


ATTACK_P = Attack("attack-p", Loss(), BinaryVote(), note="loss, ranked in the population")
ATTACK_R = Attack("attack-r", ReferenceRank(), NoCalibration(), note="rank of the loss among OUT references")
LIRA = Attack("lira", GaussianLR(offline=OneSided()), NoCalibration(), note="Gaussian LR, variance per point")
LIRA_FIXED = Attack(
    "lira-fixed",
    GaussianLR(FixedVariance(), offline=OneSided()),
    NoCalibration(),
    note="Gaussian LR, one variance for all points (as published experiments ran it)",
)
RMIA = Attack("rmia", BayesLR(), BinaryVote(gamma=math.log(2)), note="Bayes LR, binary votes of the population")
PL_MIA_PLUS = Attack("pl-mia-plus", GaussianLR(), BinaryVote(), note="Gaussian LR, binary votes")
PL_MIA = Attack("pl-mia", GaussianLR(), CauchyCombination(), note="Gaussian LR, Cauchy-combined p-values")
PL_MIA_POOLED = Attack(
    "pl-mia-pooled",
    GaussianLR(PooledVariance()),
    CauchyCombination(),
    note="PL-MIA, variance pooled over the views of a point",
)
PL_MIA_EB = Attack(
    "pl-mia-eb",
    EmpiricalBayesLR(),
    CauchyCombination(),
    note="empirical Bayes: priors learned over points, joint over views",
)

_ALL = (ATTACK_P, ATTACK_R, LIRA, LIRA_FIXED, RMIA, PL_MIA_PLUS, PL_MIA, PL_MIA_POOLED, PL_MIA_EB)
ATTACKS: dict[str, Attack] = {attack.name: attack for attack in _ALL}


def find_attack(name: str) -> Attack:
    """Return the attack called ``name``, or the one that ``FILE.py:NAME`` defines."""
    if ".py:" in name:
        path, _, variable = name.rpartition(":")
        return _load(Path(path), variable)
    if name in ATTACKS:
        return ATTACKS[name]
    near = difflib.get_close_matches(name.lower().replace("_", "-"), ATTACKS, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(ATTACKS)}"
    raise AttackError(f"there is no attack {name!r}: {hint} (your own: --attack FILE.py:NAME)")


def _load(path: Path, variable: str) -> Attack:
    """Run the user's own file and take one variable from it."""
    module = load_user_file(path, AttackError)
    attack = getattr(module, variable, None)
    if not isinstance(attack, Attack):
        found = [key for key, value in vars(module).items() if isinstance(value, Attack)]
        raise AttackError(f"{path} has no Attack called {variable!r}: it has {', '.join(found) if found else 'none'}")
    return attack
