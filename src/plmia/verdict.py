"""The verdict in words: what the best attack finds, how surely, and how many records it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from plmia.assessment import CONFIDENCE, Assessment
from plmia.intervals import Interval, mean_rate
from plmia.records import Naming

T = TypeVar("T")

# The false-positive rate of the verdict: the first of these at which so many non-members may lie above the cut, or the
# last if one may.
VERDICT_FPRS = (0.001, 0.01)
LEAST_ABOVE = 5
# From so many targets on, the interval is that of their mean.
MANY_TARGETS = 5
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
        Of that share, for all attacks at once: picking the best of them is paid for. Of few targets it speaks of these,
        of many of their mean over further ones.
    exposed : float
        Records that it names as members at a false discovery rate of `VERDICT_FDR`, mean over targets.
    least : int
        Fewer records than this could not have been named, the population being as small as it is; see `Exposure`.
    targets : int
        How many models were attacked.
    auc : float
        Lower end, for all attacks and targets at once, of the largest area under a ROC curve.
    unnamed : Naming or None
        Why nobody could be named, where the split is the reason.
    attacks : int
        How many attacks the interval holds for.
    """

    attack: str
    fpr: float | None
    tpr: float | None
    interval: Interval | None
    exposed: float
    least: int
    targets: int
    auc: float = 0.0
    unnamed: Naming | None = None
    attacks: int = 1

    @property
    def leaks(self) -> bool:
        """Whether some attack is shown to do better than guessing: in area, or in what the best of them finds.

        Each of the two is wrong without a leak in at most 2.5 % of runs.
        """
        finds_more = self.interval is not None and self.fpr is not None and self.interval.low > self.fpr
        return finds_more or self.auc > 0.5

    def __str__(self) -> str:
        records = _named(self.exposed)
        if self.unnamed is not None:
            records = "single records cannot be named with this split, which does not mean that nobody is exposed"
        mean = f" on average over {self.targets} targets" if self.targets > 1 else ""
        ranked = f"members score above non-members (AUC at least {100 * self.auc:.1f} %, guessing is 50 %)"
        if self.fpr is None or self.tpr is None or self.interval is None:
            shown = f"A leak was shown: {ranked}" if self.leaks else "No leak was shown"
            return (
                f"{shown}; too few non-members were evaluated to say what share of the training records is found; "
                f"{records}."
            )
        joint = ", for all attacks at once" if self.attacks > 1 else ""
        found = (
            f"With at most 1 false accusation in {round(1 / self.fpr):,} non-members, the best attack ({self.attack}) "
            f"identifies {_percent(self.tpr)} % ({_percent(self.interval.low)} to {_percent(self.interval.high)} %"
            f"{joint}) of the training records{mean}; {records}."
        )
        if self.interval.low > self.fpr:
            return found
        if self.leaks:
            return f"A leak was shown: {ranked}. {found}"
        return f"No leak was shown: guessing would find {100 * self.fpr:g} %. {found}"

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        return {
            "text": str(self),
            "leak_shown": self.leaks,
            "auc_low": self.auc,
            "attack": self.attack,
            "fpr": self.fpr,
            "tpr": self.tpr,
            "interval": self.interval.to_json() if self.interval else None,
            "exposed": self.exposed,
            "least_exposed": self.least,
            "unnamed": self.unnamed.to_json() if self.unnamed else None,
            "fdr": VERDICT_FDR,
            "exposed_by": "conformal",
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
    fewest = min(a.metrics.n_non_members for a in everything)
    fpr = next((f for f in VERDICT_FPRS if f * fewest >= LEAST_ABOVE), None)
    if fpr is None and fewest >= 1 / VERDICT_FPRS[-1]:
        fpr = VERDICT_FPRS[-1]  # a wide interval says more than none
    auc = max(a.joint_auc.low for a in everything)

    def found(name: str) -> tuple[float, float]:
        group = assessments[name]
        area = sum(a.metrics.auc for a in group)
        return (sum(a.metrics.tpr_at(fpr).tpr for a in group) if fpr is not None else 0.0, area)

    best = strongest(assessments, found)
    group = assessments[best]
    exposures = [next(e for e in a.exposures if e.fdr == VERDICT_FDR) for a in group]
    exposed, least = sum(e.n_discoveries for e in exposures) / len(group), max(e.least for e in exposures)
    unnamed = _unnamed(group) if exposed == 0 and least > 1 else None
    if fpr is None:
        return Verdict(best, None, None, None, exposed, least, len(group), auc, unnamed, len(assessments))
    rates = [a.metrics.tpr_at(fpr).tpr for a in group]
    if len(group) < MANY_TARGETS:
        # All joint intervals hold at once, so their mean ends bound the mean over these targets.
        low, high = (sum(getattr(a.joint[fpr], end) for a in group) / len(group) for end in ("low", "high"))
    else:
        mean = mean_rate([a.metrics.tpr_at(fpr) for a in group], 1 - (1 - CONFIDENCE) / len(assessments))
        low, high = mean.low, mean.high
    interval, tpr = Interval(low, high, CONFIDENCE), sum(rates) / len(rates)
    return Verdict(best, fpr, tpr, interval, exposed, least, len(group), auc, unnamed, len(assessments))


def strongest(candidates: Iterable[T], found: Callable[[T], tuple[float, ...]]) -> T:
    """Pick the candidate that finds most; whoever names one attack of several picks it here.

    Parameters
    ----------
    candidates : iterable
        In the order of their attacks.
    found : callable
        What each finds, and what decides between equals: the larger area, say. Those that are equal in all go to the
        last, since the refined attacks stand behind the plain ones.
    """
    return max(reversed(list(candidates)), key=found)


def _unnamed(group: Sequence[Assessment]) -> Naming:
    """Why an attack names nobody: of the target where most members stand out."""

    def naming(a: Assessment) -> Naming:
        m, population = a.metrics, a.decisions[0].population
        assert population is not None  # noqa: S101 - every decision names it
        return Naming(VERDICT_FDR, m.n_members, m.n_non_members, population, round(m.tpr_at(0.0).tpr * m.n_members))

    return max(map(naming, group), key=lambda found: found.standing)


def _named(exposed: float) -> str:
    """How many records are named as members, and how many of these may be wrong."""
    number, rate = (
        f"{exposed:,.0f}" if exposed == round(exposed) or exposed >= 10 else f"{exposed:.1f}",
        100 * VERDICT_FDR,
    )
    if exposed <= 1:
        who = "no record" if exposed == 0 else f"{number} record"
        return f"{who} is named as a member at a false discovery rate of {rate:g} %"
    return f"{number} records are named as members, of which at most {rate:g} % are expected to be wrong"


def _percent(rate: float) -> str:
    """Two significant digits or one decimal, whichever is finer: 9.1, 0.052, 0."""
    value = 100 * rate
    return f"{value:.1f}" if value >= 1 or value == 0 else f"{value:.2g}"
