"""The verdict: what the best attack finds, how sure and how large that is, and whether the audit can be trusted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from plmia.errors import Note, doubts
from plmia.evaluation.intervals import Interval, mean_rate
from plmia.evaluation.metrics import VERDICT_FPRS, TargetMetrics
from plmia.evaluation.records import Naming
from plmia.results import wording
from plmia.results.result import TargetSummary, Unnamed, Verdict
from plmia.results.wording import Grade, Status

T = TypeVar("T")

CONFIDENCE = 0.95
# The false-positive rate of the verdict: the first of VERDICT_FPRS that lets so many non-members through, or the last
# one if it lets one through.
LEAST_ABOVE = 5
# From so many targets on, the interval is that of their mean.
MANY_TARGETS = 5
VERDICT_FDR = 0.05
# A leak of this multiple of chance matters; an audit that cannot exclude it is inconclusive.
WORRYING = 6.0
# With fewer references attacks have little power, so "no leak shown" means little.
LEAST_REFERENCES = 4
# Least multiple of chance, number of members found beyond chance, and area of each grade; a leak has the last grade of
# which it is shown to reach one.
GRADES: tuple[tuple[Grade, float, float, float], ...] = (
    ("moderate", 2.0, 100.0, 0.6),
    ("severe", 10.0, 1000.0, 0.8),
)


@dataclass(frozen=True)
class Assessment:
    """One attack on one target: its entry in the result, and what the verdict needs beside that."""

    summary: TargetSummary
    metrics: TargetMetrics  # with thresholds
    joint_auc: Interval  # for all attacks and targets of the run at once
    below_chance: bool  # members score below non-members, nearly certainly, for all attacks and targets at once
    n_finest: int | None = None  # known non-members behind the finest p-value; all of the population by default

    def naming(self, fdr: float) -> Naming:
        """Explain why nobody was named at a false discovery rate."""
        m = self.metrics
        standing = round(m.tpr_at(0.0).tpr * m.n_members)
        population = self.summary.conformal.population or 0
        share = 1.0 if self.n_finest is None else self.n_finest / max(1, population)
        return Naming(fdr, m.n_members, m.n_non_members, population, standing, share)


@dataclass(frozen=True)
class Evidence:
    """Numbers behind the verdict, as `Verdict` explains them; `gather_evidence` makes one."""

    attack: str
    fpr: float | None
    tpr: float | None
    interval: Interval | None  # of the mean over these targets if they are few, over further targets if they are many
    exposed: float
    least: int  # the fewest records that this population can name; see `Exposure`
    targets: int
    auc: float = 0.0  # the verdict's ``auc_low``
    unnamed: Naming | None = None
    attacks: int = 1  # how many the interval holds for
    members: int = 0  # evaluated records, or groups where records form groups
    non_members: int = 0  # the fewest evaluated ones of a target, and its population
    population: int = 0
    swapped: tuple[int, ...] = ()  # targets that some attack ranks the wrong way round beyond chance, none the right
    chance: float = 0.0  # mean true-positive rate of guessing at ``fpr``
    auc_attack: str = ""
    people: bool = False  # whether people were judged by all of their records, not single records
    one_each: bool = False  # whether one record of each person was evaluated

    @property
    def beats_chance(self) -> bool:
        """Whether some attack is shown to do better than guessing: in area, or in what the best of them finds.

        Without a leak, each of the two is wrong in at most 2.5 % of runs.
        """
        return self.finds_more or self.auc > 0.5

    @property
    def finds_more(self) -> bool:
        """Whether the best attack is shown to find more members than guessing at `fpr`."""
        return self.interval is not None and self.fpr is not None and self.interval.low > max(self.fpr, self.chance)

    @property
    def unbounded(self) -> int | None:
        """How many non-members would bound the threshold from above, if a lower end of 0 is due to their number.

        With fewer, none of them may lie above the true threshold (see `tpr_interval`), nor any member.
        """
        if self.interval is None or self.fpr is None or self.tpr is None or self.targets >= MANY_TARGETS:
            return None
        tail = (1 - CONFIDENCE) / (2 * self.attacks * self.targets)
        needed = math.ceil(math.log(tail) / math.log1p(-self.fpr))
        short = self.interval.low == 0 and self.tpr > 2 * self.chance and self.non_members < needed
        return needed if short else None

    def _grade(self) -> Grade:
        """How much a leak means, by the lower ends of its intervals: the least that it is shown to be."""
        grade: Grade = "barely measurable"
        low, chance = (self.interval.low, self.fpr) if self.interval and self.fpr else (0.0, 1.0)
        for name, times, people, area in GRADES:
            if low >= times * chance or (low - chance) * self.members >= people or self.auc >= area:
                grade = name
        return grade

    def notes(self) -> Iterator[Note]:
        """Yield notes that follow from these numbers."""
        if self.swapped:
            yield Note("members-swapped", "invalid", wording.members_swapped(self.swapped, self.targets))
        if self.fpr is None:
            sizes = self.non_members, self.population, self.members
            few = wording.few_non_members(
                VERDICT_FPRS[-1], *sizes, "people" if self.people or self.one_each else "records"
            )
            yield Note("few-non-members", "caution", few)
        elif self.interval is not None and self.interval.high >= WORRYING * self.fpr and not self.beats_chance:
            yield Note("wide-interval", "caution", wording.wide_interval(self.interval.high, self.fpr, WORRYING))
        if (needed := self.unbounded) is not None:
            text = wording.threshold_unbounded(self.non_members, needed)
            yield Note("threshold-unbounded", "info", text)
        if self.unnamed is not None:
            yield Note("records-unnamed", "info", str(self.unnamed))

    def verdict(self, notes: Iterable[Note] = ()) -> Verdict:
        """Conclude, considering all notes of the run."""
        against = doubts(notes)
        status = status_of(self.beats_chance, against)
        grade = self._grade() if status == "leak" else None
        why = self.unnamed
        return Verdict(
            status=status,
            grade=grade,
            headline=wording.headline(status, grade),
            text=wording.verdict_text(self, status, grade, against, VERDICT_FDR),
            beats_chance=self.beats_chance,
            leak_shown=status == "leak",
            doubts=tuple(note.code for note in against),
            auc_low=self.auc,
            auc_attack=self.auc_attack,
            attack=self.attack,
            fpr=self.fpr,
            tpr=self.tpr,
            interval=self.interval,
            members=self.members,
            exposed=self.exposed,
            least_exposed=self.least,
            unnamed=Unnamed(
                why.least,
                why.standing,
                why.larger,
                str(why),
                why.reason,
                why.remedy,
            )
            if why
            else None,
            fdr=VERDICT_FDR,
            exposed_by="conformal",
            targets=self.targets,
        )


def status_of(beats_chance: bool, notes: Iterable[Note]) -> Status:
    """Conclude from what was measured and from all notes of a run.

    A caution weakens what an audit can exclude, not what it shows: a shown leak stays shown.
    """
    severities = {note.severity for note in notes}
    if "invalid" in severities:
        return "invalid"
    if beats_chance:
        return "leak"
    return "inconclusive" if "caution" in severities else "no_leak_shown"


def gather_evidence(assessments: Mapping[str, Sequence[Assessment]]) -> Evidence:
    """Pick the attack that finds most members and collect what it finds; all attacks have the same targets."""
    everything = [assessment for group in assessments.values() for assessment in group]
    smallest = min(everything, key=lambda a: a.metrics.n_non_members)
    fpr = _verdict_fpr(smallest.metrics.n_non_members)

    def found(name: str) -> tuple[float, float]:
        group = assessments[name]
        area = sum(a.metrics.auc for a in group)
        return (sum(a.metrics.tpr_at(fpr).tpr for a in group) if fpr is not None else 0.0, area)

    best = strongest(assessments, found)
    group = assessments[best]
    exposures = [a.summary.fdr[VERDICT_FDR] for a in group]
    exposed, least = sum(e.n_discoveries for e in exposures) / len(group), max(e.least for e in exposures)
    # Why the attack names nobody, on the target where most members stand out.
    unnamed = max((a.naming(VERDICT_FDR) for a in group), key=lambda naming: naming.standing)
    lows = {name: max(a.joint_auc.low for a in each) for name, each in assessments.items()}
    evidence = Evidence(
        attack=best,
        fpr=None,
        tpr=None,
        interval=None,
        exposed=exposed,
        least=least,
        targets=len(group),
        auc=max(lows.values()),
        auc_attack=strongest(lows, lambda name: (lows[name], name == best)),
        unnamed=unnamed if exposed == 0 and least > 1 else None,
        attacks=len(assessments),
        members=round(sum(a.metrics.n_members for a in group) / len(group)),
        non_members=smallest.metrics.n_non_members,
        population=smallest.summary.conformal.population or 0,
        swapped=tuple(_swapped(everything)),
    )
    return evidence if fpr is None else _at_rate(evidence, group, fpr)


def _verdict_fpr(fewest: int) -> float | None:
    """The false-positive rate of the verdict, given the fewest non-members of a target."""
    fpr = next((f for f in VERDICT_FPRS if f * fewest >= LEAST_ABOVE), None)
    if fpr is None and fewest >= 1 / VERDICT_FPRS[-1]:
        return VERDICT_FPRS[-1]  # a wide interval says more than none
    return fpr


def _at_rate(evidence: Evidence, group: Sequence[Assessment], fpr: float) -> Evidence:
    """Add what the best attack finds at the verdict's false-positive rate."""
    points = [a.metrics.tpr_at(fpr) for a in group]
    if len(group) < MANY_TARGETS:
        # All joint intervals hold at once, so the means of their ends bound the mean over these targets.
        joint = [point for a in group if (point := a.summary.tpr[fpr].joint) is not None]
        low, high = (sum(ends) / len(group) for ends in zip(*((i.low, i.high) for i in joint), strict=True))
    else:
        mean = mean_rate(points, 1 - (1 - CONFIDENCE) / evidence.attacks)
        low, high = mean.low, mean.high
    chance = sum(_chance(fpr, a.metrics.n_non_members) for a in group) / len(group)
    tpr = sum(point.tpr for point in points) / len(points)
    return replace(evidence, fpr=fpr, tpr=tpr, interval=Interval(low, high, CONFIDENCE), chance=chance)


def _chance(fpr: float, n: int) -> float:
    """Mean true-positive rate of an attack that guesses, at an empirical false-positive rate of at most ``fpr``.

    The threshold lies below the (k + 1)-th of n non-members, where k / n is at most the rate, and (k + 1) / (n + 1) of
    further records lie above it.
    """
    return (math.floor(round(fpr * n, 9)) + 1) / (n + 1)


def _swapped(everything: Iterable[Assessment]) -> list[int]:
    """Targets that some attack ranks the wrong way round beyond chance, and none the right way."""
    wrong = {a.metrics.target for a in everything if a.below_chance}
    return sorted(wrong - {a.metrics.target for a in everything if a.joint_auc.low > 0.5})


def strongest(candidates: Iterable[T], found: Callable[[T], tuple[float, ...]]) -> T:
    """Pick the candidate that finds most; every choice of one attack among several is made here.

    If all that ``found`` returns is equal, the last candidate is picked, since refined attacks come after plain ones.
    """
    return max(reversed(list(candidates)), key=found)
