"""Is a rule right that can be wrong? The known non-members themselves tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scipy.special import bdtrc

from plmia.evaluation.metrics import clopper_pearson

# A check fails when a valid rule would flag so many known non-members in at most one audit in a thousand.
CHECK_FAILS_BELOW = 0.001


@dataclass(frozen=True)
class SelfCheck:
    """How many known non-members a rule flags when each is treated like a query.

    Parameters
    ----------
    flagged, population : int
        How many of how many are called members.
    level : float
        The share that may be.
    p_value : float
        Probability that a binomial count with this share is at least ``flagged``.
    """

    flagged: int
    population: int
    level: float
    p_value: float

    @property
    def most(self) -> float:
        """Upper 95 % bound of the share that the rule really flags: how much a check that passed leaves open."""
        return float(clopper_pearson(self.flagged, self.population, 0.9)[1])

    @property
    def passed(self) -> bool:
        """Whether the count is not too large to be chance."""
        return self.p_value >= CHECK_FAILS_BELOW

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        names = ("flagged", "population", "level", "p_value", "passed", "most")
        return {name: getattr(self, name) for name in names}


def self_check(flagged: int, population: int, level: float) -> SelfCheck:
    """Test by the binomial upper tail whether ``flagged`` of ``population`` is more than ``level`` allows."""
    p_value = float(bdtrc(flagged - 1, population, level)) if flagged else 1.0
    return SelfCheck(flagged, population, level, p_value)
