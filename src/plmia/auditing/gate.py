"""Release gate: decide whether an audited model may leak more than allowed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np

from plmia.attacks.attack import KNOWN
from plmia.data.arrays import BoolArray
from plmia.errors import (
    CODES,
    SIZE,
    Note,
    PlmiaError,
    after_colon,
    did_you_mean,
    doubts,
    require_rate,
    round_percent,
)
from plmia.evaluation.intervals import Interval, tpr_interval
from plmia.evaluation.metrics import Roc, needed_non_members, roc_curve
from plmia.evaluation.subgroups import subgroup_codes
from plmia.evaluation.targets import Unit
from plmia.results.saved import Overview, SavedRun
from plmia.results.summary import weak_attacks
from plmia.results.verdict import status_of, strongest

# Characters that XML cannot hold, even escaped.
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Outcome = Literal["pass", "fail", "undecided"]


@dataclass(frozen=True)
class Largest:
    """The largest true-positive rate that a gate found: of which attack on which target, and its interval."""

    attack: str
    target: int
    tpr: float
    interval: Interval
    subgroup: str | None = None  # "column = value", if it is that of a subgroup

    def to_json(self) -> dict[str, Any]:
        """Return plain Python values."""
        ends = {"low": self.interval.low, "high": self.interval.high}
        return {"attack": self.attack, "target": self.target, "subgroup": self.subgroup, "tpr": self.tpr, **ends}


@dataclass(frozen=True)
class GateDecision:
    """Decision of a release gate, for the limits that `plmia.gate` was called with."""

    outcome: Outcome  # undecided where the audit is inconclusive or invalid, or a failed check puts a pass in doubt
    # The attack and target whose upper bound is largest; None where the non-members do not resolve ``at_fpr``.
    worst: Largest | None
    max_tpr: float
    at_fpr: float
    confidence: float
    status: str  # the audit's own
    headline: str  # of the audit's verdict
    doubts: tuple[Note, ...]  # checks that failed and were not accepted
    accepted: tuple[str, ...]  # codes
    people: bool = False  # whether people were judged, not single records

    @property
    def passed(self) -> bool:
        """Whether the model may be released."""
        return self.outcome == "pass"

    @property
    def text(self) -> str:
        """The decision in one or two sentences."""
        outcome, worst = self.outcome.upper(), self.worst
        if worst is None and self.doubts[0].severity != "invalid":
            return f"{outcome}: {self.doubts[-1].text} Verdict of the audit: {after_colon(self.headline)}."
        if worst is None or self.outcome == "undecided":
            return f"{outcome}: {_why_undecided(self.doubts)}"
        despite = f" (accepted: {', '.join(self.accepted)})" if self.accepted else ""
        within = self.outcome == "fail" and worst.tpr <= self.max_tpr
        noun, several = ("people in the training set", "people") if self.people else ("training records", "records")
        more = f" The estimate is within the limit: more {several} may show it." if within else ""
        where = f" with {worst.subgroup}" if worst.subgroup else ""
        return (
            f"{outcome}{despite}: at a false-positive rate of {round_percent(self.at_fpr)}, {worst.attack} identifies "
            f"{100 * worst.tpr:.2f} % of the {noun} of target {worst.target}{where}, at most "
            f"{100 * worst.interval.high:.2f} % with {round_percent(self.confidence)} confidence; "
            f"{round_percent(self.max_tpr)} are allowed.{more}"
        )

    def __str__(self) -> str:
        return self.text

    def to_junit(self) -> bytes:
        """Return a test report with one test, as ``plmia gate --junit`` writes it."""
        doubts = [f"{note.severity} ({note.code}): {note.text}" for note in self.doubts]
        return junit(self.outcome, self.text, doubts)

    def to_json(self) -> dict[str, Any]:
        """Return what ``plmia gate --json`` prints."""
        return {
            "passed": self.passed,
            "outcome": self.outcome,
            "status": self.status,
            "doubts": [note.code for note in self.doubts],
            "accepted": list(self.accepted),
            "max_tpr": self.max_tpr,
            "at_fpr": self.at_fpr,
            "worst": None if self.worst is None else self.worst.to_json(),
            "text": self.text,
        }


def gate(
    run: str | Path | Overview,
    *,
    max_tpr: float,
    at_fpr: float,
    attacks: Sequence[str] = (),
    confidence: float = 0.95,
    accept: Collection[str] = (),
    unit: Unit | None = None,
    by: Sequence[str] = (),
) -> GateDecision:
    """Decide whether an audited model may leak more than allowed.

    The gate passes only if every attack on every target is shown to find at most ``max_tpr`` of the members at a
    false-positive rate of ``at_fpr``: the upper end of its interval counts, and all intervals hold at once. A failed
    check costs power. So a rate above the limit fails all the same; a rate below it proves nothing.

    Parameters
    ----------
    run : path or Audit
        Folder of the results, or what `audit` or `score` returned.
    max_tpr, at_fpr : float
        Largest share of members that may be found, and the false-positive rate.
    attacks : sequence of str
        Attacks that must stay below the limit; all by default.
    confidence : float
        Confidence level of the upper bound.
    accept : collection of str
        Codes of checks (keys of `plmia.errors.CODES`) that may fail.
    unit : {"record", "group"}, optional
        What the limit is about; results of another unit are refused.
    by : sequence of str
        Columns of the run (``by`` of `plmia.audit`) of which every subgroup must stay below the limit, too.
    """
    require_limits(max_tpr=max_tpr, at_fpr=at_fpr, confidence=confidence)
    saved = SavedRun(run)
    saved.require_verified()
    _require_codes(accept, saved)
    _require_unit(unit, saved)
    parts = list(_parts(saved, [by] if isinstance(by, str) else by))
    attacks = [attacks] if isinstance(attacks, str) else attacks
    names = list(dict.fromkeys(attacks)) or saved.attacks
    weak = _weak(attacks, saved)
    # Whether there are records enough is what the limit itself decides, at the rate that was asked for.
    remaining = [note for note in doubts([*saved.notes, *weak]) if note.code not in (*accept, *SIZE)]
    verdict = saved.result.verdict
    few = _few_non_members(saved, names[0], at_fpr, parts)
    # All intervals share the error, whether or not there are enough non-members for them.
    each = 1 - (1 - confidence) / (len(names) * len(saved.targets) * len(parts))
    enough = [part for part in parts if _few_non_members(saved, names[0], at_fpr, [part]) is None]
    worst = _largest(saved, names, at_fpr, each, enough) if enough else None
    if few and worst is not None and worst.interval.high <= max_tpr:
        worst = None  # what cannot be told of the others decides
    elif worst is not None:
        few = None  # a rate above the limit fails, whatever cannot be told of the others
    remaining += [few] if few else []
    outcome = _outcome(worst is None or worst.interval.high <= max_tpr, verdict.beats_chance, remaining)
    return GateDecision(
        outcome=outcome,
        worst=worst,
        max_tpr=max_tpr,
        at_fpr=at_fpr,
        confidence=confidence,
        status=verdict.status,
        headline=verdict.headline,
        doubts=tuple(remaining),
        accepted=tuple(sorted(set(accept))),
        people=saved.result.about.people,
    )


def junit(outcome: Outcome, text: str, lines: Sequence[str] = ()) -> bytes:
    """Test report in JUnit's XML: one test that passes, fails, or, if undecided, ends in an error."""
    entry = {"fail": "failure", "undecided": "error"}.get(outcome)
    counts = {"tests": "1", "failures": str(int(outcome == "fail")), "errors": str(int(outcome == "undecided"))}
    suite = ElementTree.Element("testsuite", {"name": "plmia gate", **counts})
    test = ElementTree.SubElement(suite, "testcase", {"classname": "plmia", "name": "membership leakage"})
    details = _NOT_IN_XML.sub("\ufffd", "\n".join([text, *lines]))
    ElementTree.SubElement(
        test, entry or "system-out", {"message": details.split("\n")[0]} if entry else {}
    ).text = details
    root = ElementTree.Element("testsuites", counts)
    root.append(suite)
    report: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return report


def require_limits(**limits: float) -> None:
    """Raise for limits that no audit can decide; names are those that the caller typed, the largest TPR first."""
    for name, rate in limits.items():
        require_rate(name, rate)
    (name, max_tpr), (other, at_fpr), *_ = limits.items()
    if max_tpr <= at_fpr:
        raise PlmiaError(
            f"{name} is {max_tpr:g}, but must be above {other}, {at_fpr:g}, which guessing finds: allow more"
        )


def _outcome(within: bool, beats_chance: bool, remaining: Sequence[Note]) -> Outcome:
    inconclusive = status_of(beats_chance, remaining) in ("invalid", "inconclusive")
    if inconclusive or (within and remaining):
        return "undecided"
    return "pass" if within else "fail"


def _weak(attacks: Sequence[str], saved: SavedRun) -> list[Note]:
    """Notes on the attacks that were asked for, if all of them are known and the run itself has no such note."""
    if not attacks or not all(name in KNOWN for name in attacks):
        return []
    found = weak_attacks([KNOWN[name] for name in dict.fromkeys(attacks)], saved.result.about.mode)
    return [note for note in found if note.code not in {known.code for known in saved.notes}]


def _why_undecided(notes: Sequence[Note]) -> str:
    """Why a release cannot be decided, and what to do."""
    if notes[0].severity == "invalid":
        return f"{notes[0].text} Correct that and audit again (check {notes[0].code})."
    codes = ", ".join(dict.fromkeys(note.code for note in notes))
    if "screening" in codes.split(", "):
        return f"{notes[0].text} Audit with references."
    remedy = "Correct that and audit again; if you can defend it, accept the check"
    return f"{notes[0].text} {remedy} (accept, --accept): {codes}."


def _require_codes(codes: Collection[str], saved: SavedRun) -> None:
    """Refuse codes that no check has, and say which checks failed here."""
    if "screening" in codes:
        raise PlmiaError(
            "the check 'screening' cannot be accepted, since a screening cannot show that a model leaks little: audit "
            "with references"
        )
    for code in codes:
        if code not in CODES:
            here = ", ".join(note.code for note in doubts(saved.notes)) or "none"
            hint = did_you_mean(code, CODES, "leave it out")
            raise PlmiaError(f"there is no check {code!r}: {hint} (checks that failed here: {here})")


def _require_unit(unit: Unit | None, saved: SavedRun) -> None:
    """Refuse results in which something else was judged."""
    found, about = saved.result.about.unit, saved.result.about
    if unit == "group" and about.groups == about.signals.points:
        return  # every group is a single record
    if unit is not None and unit != found:
        raise PlmiaError(f"the results in {saved.folder} judge {found}s, not {unit}s: score again with --unit {unit}")


@dataclass(frozen=True, eq=False)
class _Part:
    """Records or people that must stay below the limit: all, or those of a subgroup."""

    name: str | None
    units: BoolArray  # [records or people]

    def roc(self, saved: SavedRun, attack: str, target: int) -> Roc | None:
        """ROC curve on the evaluated ones; None without members or without non-members."""
        _, queries, members = saved.split(target)
        own = queries[self.units[queries]]
        if members[own].all() or not members[own].any():
            return None
        return roc_curve(saved.scores(attack, target).score[own], members[own])


def _parts(saved: SavedRun, by: Sequence[str]) -> Iterator[_Part]:
    """Yield all, and each subgroup of the named columns."""
    about = saved.result.about
    yield _Part(None, np.ones(about.units, bool))
    names = about.by or {}
    for column in by:
        if column not in names:
            known = ", ".join(names) or "none"
            raise PlmiaError(
                f"the results in {saved.folder} have no subgroups by {column!r} (known: {known}): audit or score again "
                f"with --by {column}"
            )
        codes = saved.columns_by[column]
        _, queries, members = saved.split(saved.targets[0])
        for value, own in subgroup_codes(column, codes[queries], names[column], members[queries]):
            yield _Part(f"{column} = {value}", np.isin(codes, own))


def _few_non_members(saved: SavedRun, attack: str, fpr: float, parts: Sequence[_Part]) -> Note | None:
    """A caution if some part of some target has fewer evaluated non-members than the rate needs."""
    # All attacks have the same.
    needed = needed_non_members(fpr)
    for part in parts:
        curves = [part.roc(saved, attack, target) for target in saved.targets]
        fewest = min(0 if roc is None else roc.n_non_members for roc in curves)
        if fewest < needed:
            where = f" with {part.name}" if part.name else ""
            return Note(
                "few-non-members",
                "caution",
                f"A false-positive rate of {round_percent(fpr)} needs {needed:,} evaluated non-members{where}, there "
                f"are {fewest:,}. Audit with more {'people' if saved.result.about.people else 'records'}, or use a "
                "larger rate.",
            )
    return None


def _largest(saved: SavedRun, attacks: Sequence[str], fpr: float, each: float, parts: Sequence[_Part]) -> Largest:
    """The largest upper bound of the attacks' TPRs on all targets; ``each`` bound holds with this confidence."""
    found: dict[tuple[str, int, str | None], tuple[Largest, float]] = {}
    for attack in attacks:
        for target in saved.targets:
            for part in parts:
                if (roc := part.roc(saved, attack, target)) is not None:
                    bound = Largest(attack, target, roc.tpr_at(fpr).tpr, tpr_interval(roc, fpr, each), part.name)
                    found[attack, target, part.name] = bound, roc.auc
    best = strongest(found, lambda key: (found[key][0].interval.high, found[key][0].tpr, found[key][1]))
    return found[best][0]
