"""Sentences about a run: its verdict and its notes. Nothing depends on their wording."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from plmia.errors import Note, after_colon, percent, round_percent, sentence, some

if TYPE_CHECKING:
    from plmia.attacks.alignment import Alignment, Match
    from plmia.evaluation.accusations import Accusation
    from plmia.evaluation.metrics import Operating
    from plmia.evaluation.subgroups import Subgroup, SubgroupTable
    from plmia.evaluation.trainings import TrainingsSummary
    from plmia.results.result import About, RunResult
    from plmia.results.verdict import Evidence

Status = Literal["leak", "no_leak_shown", "inconclusive", "invalid"]
Grade = Literal["barely measurable", "moderate", "severe"]

# Smallest population that is recommended: its p-values reach 5 %.
LEAST_POPULATION = 19
# Subgroups of a column whose rates stand in one line.
MAX_SUBGROUPS = 6
HEADLINES: dict[Status, str] = {
    "leak": "A leak was shown",
    "no_leak_shown": "No leak was shown",
    "inconclusive": "Inconclusive",
    "invalid": "Invalid audit",
}
SINGLE_RECORDS = "Every group holds one record, so judging groups and judging records is the same."
NO_REFERENCES_USED = Note(
    "weak-attacks",
    "caution",
    "Only attacks that use no references were run. They can show a leak, but cannot exclude one.",
)
SCREENED = Note(
    "screening",
    "caution",
    "This is a screening of one model without references: it can show a leak, but cannot show its absence.",
)
UNVERIFIED = Note(
    "unverified-results",
    "caution",
    "An earlier version of plmia wrote these results without digests, so they cannot be verified. Score again with "
    "this version.",
)


def recipes(about: About) -> str | None:
    """How the models were trained; None if that is not known."""
    if about.reference_recipe is None:
        return about.recipe
    stated = " (as stated)" if about.given_target else ""
    return f"target: {about.recipe}{stated}; references: {about.reference_recipe}"


# The verdict ---------------------------------------------------------------------------------------------------------


def headline(status: Status, grade: Grade | None) -> str:
    """Name the status, with the grade of a leak."""
    return f"{HEADLINES[status]} ({grade})" if grade else HEADLINES[status]


def verdict_text(evidence: Evidence, status: Status, grade: Grade | None, doubts: Sequence[Note], fdr: float) -> str:
    """State the verdict: the conclusion, then the numbers or the first doubt about them."""
    start = headline(status, grade)
    if status in ("invalid", "inconclusive"):
        more = len(doubts) - 1
        rest = f" ({more} more {'reason' if more == 1 else 'reasons'} below.)" if more else ""
        begin = "no leak was shown, but " if status == "inconclusive" else ""
        return f"{start}: {begin}{after_colon(doubts[0].text)}{rest}"
    sentences = []
    if evidence.beats_chance and not evidence.finds_more:
        sentences.append(
            f"By {evidence.auc_attack or evidence.attack}, members score above non-members (AUC at least "
            f"{100 * evidence.auc:.1f} %, guessing is 50 %)."
        )
    if evidence.interval is not None:
        sentences.append(_identified(evidence))
    if evidence.unnamed is None:
        sentences.append(_named(evidence.exposed, fdr, people=evidence.people))
    if SCREENED in doubts:
        sentences.append(SCREENED.text)
    first, *others = sentences or ["No attack does better than guessing."]
    return " ".join([f"{start}: {after_colon(first)}", *others])


def _identified(evidence: Evidence) -> str:
    """Share of the training records that the best attack identifies."""
    interval, fpr, targets = evidence.interval, evidence.fpr or 0.0, evidence.targets
    ends = (interval.low, interval.high) if interval else (0.0, 1.0)
    low, high = (round(evidence.members * end) for end in ends)
    joint = ", for all attacks at once" if evidence.attacks > 1 else ""
    mean = f", on average over {targets} targets" if targets > 1 else ""
    guessing = "" if evidence.finds_more else f" Guessing finds {round_percent(fpr)}."
    if evidence.people:
        found = round(evidence.members * (evidence.tpr or 0.0))
        return (
            f"Of {evidence.members:,} people in the training set, {evidence.attack} identifies {found:,} (95 % CI "
            f"{low:,} to {high:,}{joint}) at a false-positive rate of {round_percent(fpr)}: {percent(evidence.tpr)}"
            f"{mean}.{guessing}"
        )
    records = f", {low:,} to {high:,} of {evidence.members:,}" if evidence.members else ""
    return (
        f"At a false-positive rate of {round_percent(fpr)}, {evidence.attack} identifies {percent(evidence.tpr)} of "
        f"the training records{mean} (95 % CI {percent(ends[0]).removesuffix(' %')} to {percent(ends[1])}{records}"
        f"{joint}).{guessing}"
    )


def _named(exposed: float, fdr: float, *, people: bool) -> str:
    """How many individual records or people can be named as members."""
    rate = round_percent(fdr)
    one, many = ("person", "people") if people else ("record", "records")
    if exposed == 0:
        return f"No individual {one} can be named as a member at a false discovery rate of {rate}."
    number = f"{exposed:.1f}" if exposed != round(exposed) and exposed < 10 else f"{exposed:,.0f}"
    records = f"{one} can be named as a member" if exposed == 1 else f"{many} can be named as members"
    wrong = f"at most {rate} of the names are expected to be wrong (false discovery rate)"
    return f"{number} individual {records}; {wrong}."


# Notes about the evidence --------------------------------------------------------------------------------------------


def members_swapped(swapped: Sequence[int], targets: int) -> str:
    """Members of some targets score below non-members."""
    which = f" of target {some(swapped)}" if targets > 1 else ""
    return (
        f"Non-members{which} score above members, beyond chance: they may be swapped. Check the membership (True where "
        "the model trained on the record)."
    )


def few_non_members(fpr: float, non_members: int, population: int, members: int, noun: str) -> str:
    """There is no true-positive rate for the verdict; numbers are of evaluated records and of the population."""
    needed, outsiders = round(1 / fpr), non_members + population
    remedies = []
    if outsiders - needed >= LEAST_POPULATION:
        remedies.append(f"use a population of at most {outsiders - needed:,} (now {population:,})")
    if outsiders < 2 * needed:  # the default population is at most half of the non-members
        records = math.ceil((members + outsiders) * 2 * needed / max(outsiders, 1) / 10) * 10
        remedies.append(f"audit about {records:,} {noun}")
    return (
        f"Only {non_members:,} non-members were evaluated; a true-positive rate at a false-positive rate of "
        f"{round_percent(fpr)} needs {needed:,}. {sentence(', or '.join(remedies))}"
    )


def threshold_unbounded(non_members: int, needed: int) -> str:
    """The interval starts at 0 for lack of non-members."""
    return (
        f"The lower end of the interval is 0 because {non_members:,} non-members are too few to bound the threshold; "
        f"{needed:,} would do."
    )


def wide_interval(high: float, fpr: float, times: float) -> str:
    """The interval does not exclude a large leak."""
    return (
        f"The audit cannot exclude a leak of {percent(high)} at a false-positive rate of {round_percent(fpr)}, "
        f"{round(high / fpr, 1):g} times chance (the limit is {times:g}). Audit with more records."
    )


# Notes about references, attacks and records -------------------------------------------------------------------------


def targets_summarised(most: int, n: int) -> str:
    """Say which targets have all details."""
    return f"metrics.json has the decisions by all rules and the diagnostics of the first {most} of {n:,} targets."


def few_references(references: int, needed: int) -> str:
    """The attacks have little power."""
    are = "references are" if references != 1 else "reference is"
    return f"{references} {are} too few to exclude a leak. Train at least {needed}; 16 or more find clearly more."


def fixed_member_law(attacks: Iterable[str]) -> str:
    """The attacks that use references assume how members differ, and may miss a clear leak."""
    return (
        f"Offline, {', '.join(attacks)} can miss a clear leak: fixed constants say how members differ from "
        "non-members. Run pl-mia-eb or rmia, too."
    )


def unlike_references(warnings: Mapping[int, str], targets: int, *, may_align: bool = True) -> str:
    """Some targets are unlike their references; ``may_align`` is whether references could have been aligned."""
    first, *others = warnings
    more = f" and {len(others)} more" if others else ""
    text = f"Target {first}{more}: {warnings[first]}" if targets > 1 else warnings[first]
    return text if may_align else f"{text.removesuffix('.')}, or omit --align never."


def references_aligned(found: Mapping[int, Alignment], targets: int) -> str:
    """References were moved to the scale of a target."""
    target, first = min(found.items())
    text = "The references' signals were moved to the target's scale"
    if targets > 1:
        text += f" for {len(found)} of {targets} targets; for target {target}"
    scale = "" if first.bend is None else f" on the scale asinh(signal / {first.bend:g})"
    text += f": their spread was multiplied by {first.spread[1]:.2g}{scale}."
    return f"{text} {sentence(correlations(first))}"


def references_match_poorly(found: Mapping[int, Alignment | Match], targets: int, least: float) -> str:
    """References predict the target poorly, even on its scale; ``least`` is the limit of `Match.value`."""
    target, worst = min(found.items(), key=lambda pair: pair[1].correlation)
    who = f"target {target}" if targets > 1 else "the target"
    expected = f"; at least {round_percent(least)} of the latter is expected" if worst.peers else ""
    return (
        f"The references predict poorly which records are hard for {who}, so a leak may be missed: "
        f"{correlations(worst)}{expected}. Train references that are more like the target."
    )


def correlations(found: Alignment | Match) -> str:
    """How well references predict which records are hard for the target."""
    among = "" if found.peers is None else f", with each other {found.peers:.2f}"
    return f"their rank correlation with the target is {found.correlation:.2f}{among}"


def excluded_references(excluded: Mapping[int, Sequence[int]]) -> str:
    """Models that would reveal membership were excluded."""
    target, models = min(excluded.items())
    more = len(excluded) - 1
    others = f" ({more} other target{'s' * (more > 1)} likewise)" if more else ""
    if len(models) > 1:
        who, their = f"Models {', '.join(map(str, models))} are excluded as references", "their training sets are"
    else:
        who, their = f"Model {models[0]} is excluded as a reference", "its training set is"
    return f"{who} for target {target}: {their} the target's or its complement and would reveal membership{others}."


def attacks_left_out(skipped: Mapping[str, str]) -> str:
    """Attacks that could not run, and the first reason."""
    first, *others = dict.fromkeys(skipped.values())
    more = " The other reasons are under `skipped` in metrics.json." if others else ""
    return f"Attacks left out: {', '.join(skipped)}. {sentence(first)}{more}"


def tied_scores(shares: Mapping[str, float], tie: float) -> str:
    """Attacks with few different scores, and the share of records whose score at least the share ``tie`` has."""
    return (
        f"The scores of {', '.join(shares)} take only a few values: "
        f"{100 * min(shares.values()):.0f} % of the records have one that at least {round_percent(tie)} share. Such an "
        "attack hardly tells records apart."
    )


def combined_p_value(refuted: Mapping[str, tuple[float, float]]) -> str:
    """Attacks whose combined p-value is refuted, each at a level and with the share of non-members it flags."""
    flagged = "; ".join(_flagged_share(level, refuted) for level in dict.fromkeys(at for at, _ in refuted.values()))
    return (
        f"The combined p-value of {', '.join(refuted)} is miscalibrated here ({flagged}). Decisions use the conformal "
        "p-value."
    )


def _flagged_share(level: float, refuted: Mapping[str, tuple[float, float]]) -> str:
    shares = sorted({f"{100 * share:.1f}" for at, share in refuted.values() if at == level}, key=float)
    most = f" to {shares[-1]}" if len(shares) > 1 else ""
    return f"it flags {shares[0]}{most} % of the known non-members at a nominal {round_percent(level)}"


def rates_unresolved(n_non_members: int, points: Iterable[Operating]) -> str:
    """False-positive rates for which there are too few non-members."""
    rates = ", ".join(f"{round_percent(point.fpr)} (needs {point.needed:,})" for point in points)
    return f"{n_non_members:,} evaluated non-members are too few for a TPR at an FPR of {rates}."


def groups(n: int) -> str:
    """One record per group was evaluated."""
    return (
        f"The records form {n:,} groups. One record of each group, drawn at random, was evaluated, since records of "
        "one group are not independent evidence."
    )


def people_by_one_record(attacks: Mapping[str, int], of: int) -> str:
    """Attacks, among ``of`` attacks, that judge people by one record each, with their numbers of references."""
    who = "All attacks" if len(attacks) == of else f"{len(attacks)} of {of} attacks"
    return (
        f"{who} ({', '.join(attacks)}) judged people by one record each: {min(attacks.values())} references are too "
        "few to learn what all records of a person say together. With all records an attacker finds more: train more "
        "references."
    )


def subgroup_varies(by: str, n: int) -> str:
    """Some people have several values of a column."""
    return (
        f"{n:,} people have records with different values of {by!r}; they form a subgroup of their own, 'varies'. All "
        "of them have several records, which expose a person more than one."
    )


def trainings_not_compared(reason: str) -> str:
    """The models were not attacked in turn."""
    return f"Trainings were not compared: {reason}"


def more_exposed(by: str, names: Sequence[str]) -> str:
    """Subgroups that are shown to be more exposed than the others."""
    return f"More exposed than the others: {', '.join(f'{by} {name}' for name in names)}."


# Who is exposed, below the table of a run -----------------------------------------------------------------------------


def exposure_lines(result: RunResult, *, verbose: bool) -> Iterator[str]:
    """Say what one record gives away, how subgroups and trainings compare, and, if ``verbose``, who is accused."""
    best = result.verdict.attack
    fpr = result.verdict.fpr
    single = (result.one_record or {}).get(best)
    if single and fpr and single.tpr[fpr].resolved and single.tpr[fpr].mean != result.verdict.tpr:
        yield (
            f"With one record per person, {best} identifies {percent(single.tpr[fpr].mean)} instead of "
            f"{percent(result.verdict.tpr)}."
        )
    for table in result.subgroups:
        yield subgroup_line(table)
    if result.trainings is not None:
        yield trainings_line(result.trainings, people=result.about.people)
    for accusation in result.accusations if verbose else ():
        yield accusation_line(accusation, result.verdict.fpr or 0.0)


def subgroup_line(table: SubgroupTable) -> str:
    """Rates of the subgroups of one column, and which are more exposed."""
    shown = table.subgroups[:MAX_SUBGROUPS]
    rates = "; ".join(f"{table.by} {group.name}: {_subgroup_rate(group)}" for group in shown)
    more = "; …" if len(table.subgroups) > len(shown) else ""
    counted = " Counts are at the common threshold." if any(not _has_rate(group) for group in shown) else ""
    found = "No subgroup is shown to be more exposed."
    if table.more_exposed:
        found = f"More exposed than the others: {', '.join(f'{table.by} {name}' for name in table.more_exposed)}."
    return f"Identified at {round_percent(table.fpr)} FPR: {rates}{more}.{counted} {found}"


def _has_rate(group: Subgroup) -> bool:
    """Whether a subgroup has non-members enough for a threshold of its own."""
    return group.tpr is not None and group.interval is not None


def _subgroup_rate(group: Subgroup) -> str:
    """Rate of one subgroup with its interval for all subgroups at once."""
    if group.tpr is None or group.interval is None:
        return f"{group.identified} of {group.n_members}"
    return f"{percent(group.tpr)} ({percent(group.interval.low)} to {percent(group.interval.high)})"


def trainings_line(found: TrainingsSummary, *, people: bool) -> str:
    """Mean over trainings, and how many are always identified."""
    noun = "people" if people else "records"
    last = found.curve[-1]
    mean = ""
    if found.tpr is not None:
        ends = found.tpr.interval
        around = f" (95 % CI {percent(ends.low).removesuffix(' %')} to {percent(ends.high)})" if ends else ""
        mean = f"{percent(found.tpr.mean)} of the members are identified on average{around}; "
    are = "is" if last.identified == 1 else "are"
    return (
        f"Over {found.trainings} trainings at {round_percent(found.fpr)} FPR: {mean}{last.identified:,} of "
        f"{found.units:,} {noun} {are} identified in every training that used them (without a leak, at "
        f"most {last.at_most:,.0f} {'is' if round(last.at_most) == 1 else 'are'} expected)."
    )


def accusation_line(found: Accusation, fpr: float) -> str:
    """What accusations are worth at one prior."""
    return (
        f"If {round_percent(found.prior)} of the candidates are members, {percent(found.precision)} of the accused are "
        f"members ({percent(found.precision_low)} to {percent(found.precision_high)}): {found.right:,.0f} right and "
        f"{found.wrong:,.0f} wrong accusations among {found.candidates:,.0f} candidates, at {round_percent(fpr)} FPR."
    )


def clipped_probabilities(n: int) -> str:
    """Probabilities of exactly 0 or 1 were clipped."""
    return f"{n:,} signals were probabilities of exactly 0 or 1 and were clipped. Store logits where you can."
