"""The verdict in words: what the best attack finds, how surely, and how many records it exposes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plmia.assessment import CONFIDENCE, Assessment
from plmia.intervals import Interval

# The false-positive rate of the verdict: the first of these that the evaluated non-members resolve.
VERDICT_FPRS = (0.001, 0.01)
VERDICT_FDR = 0.05


@dataclass(frozen=True)
class Verdict:
    """What an audit found.

    Parameters
    ----------
    attack : str
        The attack that finds most members.
    fpr : float or None
        At this false-positive rate; None where there are too few non-members for any.
    tpr : float or None
        Share of the members that it finds, mean over targets.
    interval : Interval or None
        Of that share on these targets, for all attacks at once: picking the best of them is paid for.
    exposed : float
        Records that it exposes at `VERDICT_FDR`, mean over targets.
    least : int
        Fewer records than this could not have been named, the population being as small as it is; see `Exposure`.
    targets : int
        How many models were attacked.
    """

    attack: str
    fpr: float | None
    tpr: float | None
    interval: Interval | None
    exposed: float
    least: int
    targets: int

    @property
    def leaks(self) -> bool:
        """Whether the best attack is shown to do better than guessing."""
        return self.interval is not None and self.fpr is not None and self.interval.low > self.fpr

    def __str__(self) -> str:
        records = f"{_count(self.exposed)} exposed at a false discovery rate of {100 * VERDICT_FDR:g} %"
        if self.exposed == 0 and self.least > 1:
            records += f" (the population is too small to name fewer than {self.least:,} at once)"
        mean = f" on average over {self.targets} targets" if self.targets > 1 else ""
        if self.fpr is None or self.tpr is None or self.interval is None:
            return f"Too few non-members were evaluated to say what share of the training records is found; {records}."
        found = (
            f"With at most 1 false accusation in {round(1 / self.fpr):,}, the best attack ({self.attack}) identifies "
            f"{_percent(self.tpr)} % ({_percent(self.interval.low)} to {_percent(self.interval.high)} %) of the "
            f"training records{mean}; {records}."
        )
        if self.leaks:
            return found
        return f"No leak was shown: guessing would find {100 * self.fpr:g} %. {found}"

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        return {
            "text": str(self),
            "leak_shown": self.leaks,
            "attack": self.attack,
            "fpr": self.fpr,
            "tpr": self.tpr,
            "interval": self.interval.to_json() if self.interval else None,
            "exposed": self.exposed,
            "least_exposed": self.least,
            "fdr": VERDICT_FDR,
            "rule": "conformal",
            "targets": self.targets,
        }


def reach_verdict(assessments: Mapping[str, Sequence[Assessment]]) -> Verdict:
    """Pick the attack that finds most members and say what it finds.

    Parameters
    ----------
    assessments : mapping of str to sequence of Assessment
        Of every attack, one a target, the same targets for all.
    """
    everything = [assessment for group in assessments.values() for assessment in group]
    fpr = next((f for f in VERDICT_FPRS if all(f in a.joint for a in everything)), None)

    def found(name: str) -> tuple[float, float]:
        group = assessments[name]
        auc = sum(a.metrics.auc for a in group)
        return (sum(a.metrics.tpr_at(fpr).tpr for a in group) if fpr is not None else 0.0, auc)

    # Ties go to the larger area, then to the name that comes last: the refined attacks stand behind the plain ones.
    best = max(reversed(list(assessments)), key=found)
    group = assessments[best]
    exposures = [next(e for e in a.exposures if e.fdr == VERDICT_FDR) for a in group]
    exposed, least = sum(e.n_discoveries for e in exposures) / len(group), max(e.least for e in exposures)
    if fpr is None:
        return Verdict(best, None, None, None, exposed, least, len(group))
    rates = [a.metrics.tpr_at(fpr).tpr for a in group]
    # All joint intervals hold at once, so their mean ends bound the mean over these targets.
    low, high = (sum(getattr(a.joint[fpr], end) for a in group) / len(group) for end in ("low", "high"))
    return Verdict(best, fpr, sum(rates) / len(rates), Interval(low, high, CONFIDENCE), exposed, least, len(group))


def _count(exposed: float) -> str:
    number = f"{exposed:,.0f}" if exposed == round(exposed) or exposed >= 10 else f"{exposed:.1f}"
    return f"{number} record{'s' * (number != '1')} {'are' if number != '1' else 'is'}"


def _percent(rate: float) -> str:
    """Two significant digits or one decimal, whichever is finer: 9.1, 0.052, 0."""
    value = 100 * rate
    return f"{value:.1f}" if value >= 1 or value == 0 else f"{value:.2g}"
