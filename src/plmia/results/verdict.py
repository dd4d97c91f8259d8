"""The verdict: what the best attack finds, how surely, how much it means, and whether the audit can be trusted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from plmia.errors import Note, doubts, some
from plmia.evaluation.intervals import Interval, mean_rate
from plmia.evaluation.records import Naming
from plmia.results.assessment import CONFIDENCE, Assessment
from plmia.results.wording import Grade, Status, headline

T = TypeVar("T")

# The false-positive rate of the verdict: the first of these at which so many non-members may lie above the cut, or the
# last if one may.
VERDICT_FPRS = (0.001, 0.01)
LEAST_ABOVE = 5
# From so many targets on, the interval is that of their mean.
MANY_TARGETS = 5
VERDICT_FDR = 0.05
# A leak worth worrying about finds so many times what guessing finds; an audit that cannot exclude it says nothing.
WORRYING = 6.0
# With fewer references attacks have little power, so "no leak shown" says little.
LEAST_REFERENCES = 4
# A leak has the last grade whose least multiple of chance, number of members found beyond chance, or area it is shown
# to reach.
GRADES: tuple[tuple[Grade, float, float, float], ...] = (
    ("moderate", 2.0, 100.0, 0.6),
    ("severe", 10.0, 1000.0, 0.8),
)


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
    members : int
        How many members were evaluated: records, or groups where records come in groups; mean over targets.
    swapped : tuple of int
        Targets whose non-members score above their members beyond chance, by some attack, while no attack shows the
        opposite.
    chance : float
        What guessing finds at `fpr`, on average: the empirical cut lies below the (k + 1)-th of n non-members, where
        k / n is at most the rate, and (k + 1) / (n + 1) of further records lie above it.
    auc_attack : str
        The attack of ``auc``.
    doubts : tuple of Note
        What speaks against taking the numbers as they are, invalid ones first; see `with_notes`.
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
    members: int = 0
    swapped: tuple[int, ...] = ()
    chance: float = 0.0
    auc_attack: str = ""
    doubts: tuple[Note, ...] = ()

    def with_notes(self, notes: Iterable[Note]) -> Verdict:
        """Return the verdict in the light of all notes of the run."""
        return replace(self, doubts=tuple(doubts(notes)))

    @property
    def beats_chance(self) -> bool:
        """Whether some attack is shown to do better than guessing: in area, or in what the best of them finds.

        Each of the two is wrong without a leak in at most 2.5 % of runs.
        """
        return self._finds_more or self.auc > 0.5

    @property
    def _finds_more(self) -> bool:
        return self.interval is not None and self.fpr is not None and self.interval.low > max(self.fpr, self.chance)

    @property
    def status(self) -> Status:
        """What may be concluded, doubts considered."""
        return status_of(self.beats_chance, self.doubts)

    @property
    def leaks(self) -> bool:
        """Whether a leak was shown, and nothing says that the numbers are invalid."""
        return self.status == "leak"

    @property
    def grade(self) -> Grade | None:
        """How much a shown leak means: by the lower ends of its intervals, the least that it is shown to be."""
        if not self.leaks:
            return None
        grade: Grade = "barely measurable"
        low, chance = (self.interval.low, self.fpr) if self.interval and self.fpr else (0.0, 1.0)
        for name, times, people, area in GRADES:
            if low >= times * chance or (low - chance) * self.members >= people or self.auc >= area:
                grade = name
        return grade

    def notes(self) -> Iterator[Note]:
        """Yield what the numbers themselves say against or about them."""
        if self.swapped:
            which = f" of target {some(self.swapped)}" if self.targets > 1 else ""
            yield Note(
                "members-swapped",
                "invalid",
                f"Non-members{which} score above members, beyond chance: they may be swapped. Check the membership "
                "(True where the model trained on the record).",
            )
        if self.fpr is None:
            yield Note(
                "few-non-members",
                "caution",
                f"Too few non-members were evaluated for a true-positive rate at a false-positive rate of "
                f"{100 * VERDICT_FPRS[-1]:g} %. Audit with more records: {round(1 / VERDICT_FPRS[-1])} evaluated "
                "non-members are the least.",
            )
        elif self.interval is not None and self.interval.high >= WORRYING * self.fpr and not self.beats_chance:
            yield Note(
                "wide-interval",
                "caution",
                f"The audit cannot exclude a leak of {_percent(self.interval.high)} % at a false-positive rate of "
                f"{100 * self.fpr:g} %, {WORRYING:g} times chance or more. Audit with more records.",
            )
        if self.unnamed is not None:
            yield Note("records-unnamed", "info", str(self.unnamed))

    @property
    def headline(self) -> str:
        """The status in a few words, with the grade of a leak."""
        return headline(self.status, self.grade)

    def __str__(self) -> str:
        if self.status == "invalid":
            return f"{self.headline}: {_lower(self._first_doubt())}"
        if self.status == "inconclusive":
            return f"{self.headline}: no leak was shown, but {_lower(self._first_doubt())}"
        sentences = []
        if self.beats_chance and not self._finds_more:
            sentences.append(
                f"By {self.auc_attack or self.attack}, members score above non-members (AUC at least "
                f"{100 * self.auc:.1f} %, guessing is 50 %)."
            )
        if self.interval is not None:
            sentences.append(self._found())
        if self.unnamed is None:
            sentences.append(self._named())
        first, *rest = sentences or ["No attack does better than guessing."]
        return " ".join([f"{self.headline}: {_lower(first)}", *rest])

    def _first_doubt(self) -> str:
        more = len(self.doubts) - 1
        return self.doubts[0].text + (f" ({more} more {'reason' if more == 1 else 'reasons'} below.)" if more else "")

    def _found(self) -> str:
        """What the best attack finds."""
        assert self.interval is not None  # noqa: S101 - the caller checked; these tell the type checker
        assert self.fpr is not None  # noqa: S101
        assert self.tpr is not None  # noqa: S101
        low, high = (round(self.members * end) for end in (self.interval.low, self.interval.high))
        people = f", {low:,} to {high:,} of {self.members:,}" if self.members else ""
        joint = ", for all attacks at once" if self.attacks > 1 else ""
        mean = f", on average over {self.targets} targets" if self.targets > 1 else ""
        guessing = "" if self._finds_more else f" Guessing finds {100 * self.fpr:g} %."
        return (
            f"At a false-positive rate of {100 * self.fpr:g} %, {self.attack} identifies {_percent(self.tpr)} % of the "
            f"training records{mean} (95 % CI {_percent(self.interval.low)} to {_percent(self.interval.high)} %"
            f"{people}{joint}).{guessing}"
        )

    def _named(self) -> str:
        """How many records are named as members, and how many of these may be wrong."""
        rate = f"{100 * VERDICT_FDR:g} %"
        if self.exposed == 0:
            return f"No individual record is named as a member at a false discovery rate of {rate}."
        short = self.exposed != round(self.exposed) and self.exposed < 10
        number = f"{self.exposed:.1f}" if short else f"{self.exposed:,.0f}"
        are = "record is" if self.exposed == 1 else "records are"
        return f"{number} individual {are} named as members at a false discovery rate of {rate}."

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        return {
            "status": self.status,
            "grade": self.grade,
            "headline": self.headline,
            "text": str(self),
            "beats_chance": self.beats_chance,
            "leak_shown": self.leaks,
            "doubts": [note.code for note in self.doubts],
            "auc_low": self.auc,
            "auc_attack": self.auc_attack,
            "attack": self.attack,
            "fpr": self.fpr,
            "tpr": self.tpr,
            "interval": self.interval.to_json() if self.interval else None,
            "members": self.members,
            "exposed": self.exposed,
            "least_exposed": self.least,
            "unnamed": self.unnamed.to_json() if self.unnamed else None,
            "fdr": VERDICT_FDR,
            "exposed_by": "conformal",
            "targets": self.targets,
        }


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


def reach_verdict(assessments: Mapping[str, Sequence[Assessment]]) -> Verdict:
    """Pick the attack that finds most members and say what it finds.

    Parameters
    ----------
    assessments : mapping of str to sequence of Assessment
        Of every attack, one per target, the same targets for all.
    """
    everything = [assessment for group in assessments.values() for assessment in group]
    fewest = min(a.metrics.n_non_members for a in everything)
    fpr = next((f for f in VERDICT_FPRS if f * fewest >= LEAST_ABOVE), None)
    if fpr is None and fewest >= 1 / VERDICT_FPRS[-1]:
        fpr = VERDICT_FPRS[-1]  # a wide interval says more than none

    def found(name: str) -> tuple[float, float]:
        group = assessments[name]
        area = sum(a.metrics.auc for a in group)
        return (sum(a.metrics.tpr_at(fpr).tpr for a in group) if fpr is not None else 0.0, area)

    best = strongest(assessments, found)
    group = assessments[best]
    exposures = [next(e for e in a.exposures if e.fdr == VERDICT_FDR) for a in group]
    exposed, least = sum(e.n_discoveries for e in exposures) / len(group), max(e.least for e in exposures)
    lows = {name: max(a.joint_auc.low for a in each) for name, each in assessments.items()}
    verdict = Verdict(
        best,
        None,
        None,
        None,
        exposed,
        least,
        len(group),
        auc=max(lows.values()),
        auc_attack=strongest(lows, lambda name: (lows[name], name == best)),
        unnamed=_unnamed(group) if exposed == 0 and least > 1 else None,
        attacks=len(assessments),
        members=round(sum(a.metrics.n_members for a in group) / len(group)),
        swapped=tuple(_swapped(everything)),
    )
    if fpr is None:
        return verdict
    rates = [a.metrics.tpr_at(fpr).tpr for a in group]
    if len(group) < MANY_TARGETS:
        # All joint intervals hold at once, so their mean ends bound the mean over these targets.
        low, high = (sum(getattr(a.joint[fpr], end) for a in group) / len(group) for end in ("low", "high"))
    else:
        mean = mean_rate([a.metrics.tpr_at(fpr) for a in group], 1 - (1 - CONFIDENCE) / len(assessments))
        low, high = mean.low, mean.high
    chance = sum(_chance(fpr, a.metrics.n_non_members) for a in group) / len(group)
    interval = Interval(low, high, CONFIDENCE)
    return replace(verdict, fpr=fpr, tpr=sum(rates) / len(rates), interval=interval, chance=chance)


def _chance(fpr: float, n: int) -> float:
    """Mean true-positive rate of an attack that guesses, at an empirical false-positive rate of at most ``fpr``."""
    return (math.floor(round(fpr * n, 9)) + 1) / (n + 1)


def _swapped(everything: Iterable[Assessment]) -> list[int]:
    """Targets that some attack ranks the wrong way round beyond chance, and none the right way."""
    wrong = {a.metrics.target for a in everything if a.below_chance}
    return sorted(wrong - {a.metrics.target for a in everything if a.joint_auc.low > 0.5})


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


def _percent(rate: float) -> str:
    """Two significant digits or one decimal, whichever is finer: 9.1, 0.052, 0."""
    value = 100 * rate
    return f"{value:.1f}" if value >= 1 or value == 0 else f"{value:.2g}"


def _lower(sentence: str) -> str:
    """The sentence behind a colon: its first letter small, unless a name begins it."""
    return sentence if sentence[:2].isupper() else f"{sentence[:1].lower()}{sentence[1:]}"
