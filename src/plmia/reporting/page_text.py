"""Words and numbers of the page that depend on the results; fixed text stands in the template."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from plmia.attacks.attack import KNOWN
from plmia.errors import Note, doubts, percent, round_percent, sentence
from plmia.evaluation.diagnostics.signals import ALARM
from plmia.evaluation.intervals import Interval, tpr_interval
from plmia.evaluation.subgroups import MIN_UNITS, Subgroup, SubgroupTable
from plmia.evaluation.trainings import TrainingsSummary
from plmia.reporting.content import Content
from plmia.reporting.drawing import shortened
from plmia.reporting.plots import rate_at
from plmia.results.result import AttackSummary, OneRecordSummary, Verdict
from plmia.results.saved import main_attacks
from plmia.results.wording import correlations, recipes
from plmia.training.records import TrainingRecord

# Notes shown per code; of many targets each may have its own.
MAX_PER_CODE = 2
# A smaller gap between the accuracies on training records and on others counts as none.
SMALL_GAP = 0.01
# Shown beside the checks, since it requires no action.
BESIDE_CHECKS = "combined-p-value"
# CSS classes by grade or status of the verdict.
STYLES = {
    "leak": "leak",
    "no_leak_shown": "none",
    "inconclusive": "doubtful",
    "invalid": "invalid",
    "barely measurable": "leak barely",
    "moderate": "leak moderate",
    "severe": "leak severe",
}
NEXT_STEPS = {
    "barely measurable": "Set a limit and test it with plmia gate. If the interval is too wide, audit with more "
    "{units}.",
    "leak": "{change}, audit again, and compare both audits with plmia compare. plmia gate tests a release against a "
    "limit that you set.",
    "invalid": "Correct what the check names and audit again. Until then, no number on this page is reliable.",
    "inconclusive": "Correct what the checks below name and audit again. Until then, this audit neither shows a leak "
    "nor excludes one.",
    "screening": "Audit with references: plmia audit trains them and takes the same model as its target, plmia design "
    "prepares your own training script. Until then, a leak is neither shown nor excluded.",
    "no_leak_shown": "Ask how much may have been missed. That these attacks found nothing with so many references and "
    "{units} is not proof of safety. plmia gate tests whether a leak that they may have missed stays below a limit "
    "that you set. plmia plan estimates what a larger audit would find.",
}


def style_class(verdict: Verdict) -> str:
    """CSS class of the verdict."""
    return STYLES[verdict.grade or verdict.status]


def verdict_text(verdict: Verdict) -> str:
    """Text of the verdict below its heading, which it does not repeat."""
    rest = verdict.text.removeprefix(f"{verdict.headline}: ")
    return rest[:1].upper() + rest[1:]


def next_step(content: Content) -> str:
    """What to do about the verdict."""
    grade, about, record = content.verdict.grade, content.about, content.training.get(content.target)
    own, others = (record and record.accuracies) or (about.train_accuracy, about.test_accuracy)
    change = "Reduce overfitting (stop earlier, regularise, use differential privacy)"
    if own is not None and others is not None and own - others < SMALL_GAP:
        change = "Change the training (differential privacy limits what a model reveals about a record)"
    status = content.verdict.status
    situation = "screening" if about.screening and status == "inconclusive" else status
    return NEXT_STEPS[grade if grade in NEXT_STEPS else situation].format(change=change, units=content.units)


@dataclass(frozen=True)
class Scale:
    """A rate with its interval on a logarithmic scale from a third of chance to 1, in percent of its width."""

    at: float
    low: float
    high: float
    chance: float
    ticks: list[tuple[float, str]]


@dataclass(frozen=True)
class Tile:
    """One number at a glance: heading, value, what to compare it with, and a scale for a rate."""

    head: str
    value: str
    note: str
    scale: Scale | None = None


def tiles(content: Content) -> list[Tile]:
    """Numbers at a glance; none for an invalid audit, where they would be taken at face value."""
    if not content.reliable:
        return []
    return [*_tpr_tile(content), _named_tile(content), _auc_tile(content), _epsilon_tile(content)]


def _tpr_tile(content: Content) -> Iterator[Tile]:
    fpr, tpr, interval = content.verdict.fpr, content.verdict.tpr, content.verdict.interval
    if fpr is None or tpr is None or interval is None:
        return
    joint = ", for all attacks at once," if len(content.result.attacks) > 1 else ""
    times = f"; this is {tpr / fpr:.0f} times chance" if content.verdict.leak_shown and interval.low > fpr else ""
    rate = round_percent(fpr)
    note = f"95 % interval{joint} {_ends(interval)}; guessing finds {rate}{times}"
    yield Tile(f"Members found at {rate} false-positive rate", percent(tpr), note, _scale(tpr, interval, fpr))


def _named_tile(content: Content) -> Tile:
    verdict, evaluated = content.verdict, f"of {len(content.queries):,} evaluated {content.units}"
    head, unnamed = f"{content.units.capitalize()} named as members", verdict.unnamed
    share = round_percent(verdict.fdr)
    if unnamed is not None:
        note = f"{evaluated}: {unnamed.reason}. This is not evidence of safety. {unnamed.remedy}"
        return Tile(head, "none possible", note)
    mean = f"; mean over {verdict.targets} targets" if verdict.targets > 1 else ""
    wrong = f": at most {share} of them are expected to be wrong" if verdict.exposed else ""
    return Tile(head, _count(verdict.exposed), f"{evaluated}, at a false discovery rate of {share}{wrong}{mean}")


def _auc_tile(content: Content) -> Tile:
    name = content.verdict.auc_attack
    attack = content.result.attacks[name]
    interval = auc_interval(attack) if attack.auc.interval or len(attack.per_target) == 1 else ""
    alone = f"; 95 % interval, for this attack alone, {interval}" if interval else ""
    note = f"50 % is guessing, 100 % is certainty{alone}"
    return Tile(f"Area under the curve of {name}", percent(attack.auc.mean), note)


def _epsilon_tile(content: Content) -> Tile:
    attack = content.result.attacks[content.verdict.attack]
    confidence = round_percent(attack.per_target[0].epsilon.confidence)
    delta = f"δ\u00a0=\u00a0{attack.epsilon.delta:.10f}".rstrip("0")
    note = f"any claim of a smaller ε at {delta} is wrong, with {confidence} confidence; 0 refutes nothing"
    return Tile("Differential privacy refuted below", f"ε = {attack.epsilon.low:.2f}", note)


def _ends(interval: Interval) -> str:
    return f"{percent(interval.low)} to {percent(interval.high)}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or value >= 10 else f"{value:.1f}"


def _scale(tpr: float, interval: Interval, chance: float) -> Scale:
    bottom = math.log10(chance / 3)

    def place(value: float) -> float:
        return 0.0 if value <= 0 else round(100 * min(1.0, max(0.0, 1 - math.log10(value) / bottom)), 2)

    ticks = [(place(10.0**power), round_percent(10.0**power)) for power in range(math.ceil(bottom), 1)]
    return Scale(place(tpr), place(interval.low), place(interval.high), place(chance), ticks)


def audited(content: Content) -> list[tuple[str, str]]:
    """Facts about the audit: names and values."""
    about, signals = content.about, content.about.signals
    written = (content.saved.folder / "scores.npz").stat().st_mtime
    rows = [
        ("Data", _data(content)),
        ("Recipe", recipes(about)),
        ("Model", _model(content)),
        ("References", _references(content)),
        ("Target", _target(content)),
        ("Unit", about.group_statistic and f"people; {_combined(about.group_statistic)}"),
        *_accuracy_rows(content),
        ("Likeness", _likeness(content)),
        ("Signal", about.signal and "a number of the recipe's own per record, larger for members"),
        ("Attacks", ", ".join(content.result.attacks)),
        ("Date", datetime.fromtimestamp(written, UTC).strftime("%Y-%m-%d")),
        ("Seed", str(about.seed)),
        ("Versions", _versions(content)),
        ("Data, SHA-256", about.data_digest),
        ("Signals, SHA-256", signals.sha256),
    ]
    return [(name, value) for name, value in rows if value]


def _combined(statistic: str) -> str:
    """How the records of a person are combined, from the text of the group statistic."""
    ways = {
        "LearnedOverGroup": "each by the sum over their records with weights from the references where these help",
        "SumOverGroup": "each by the sum over their records",
        "MaxOverGroup": "each by the largest value of their records",
        "OneRow": "each by one of their records, drawn at random",
    }
    return ways.get(statistic.partition("(")[0], f"their records are combined by {statistic}")


def _references(content: Content) -> str:
    about, n_views = content.about, content.about.signals.views
    views = f", {n_views} views of each record" if n_views > 1 else ""
    if about.screening:
        return f"none: this is a screening{views}"
    way = "by another recipe than the target" if about.two_recipes else "in the same way"
    if about.given_target and not about.two_recipes:
        way = "by the recipe above"
    return f"{_extent(about.references)} models trained {way}{views}, {about.mode} attack"


def _extent(sizes: Sequence[int]) -> str:
    return " to ".join(f"{n:,}" for n in sorted({sizes[0], sizes[-1]}))


def _target(content: Content) -> str:
    targets, members = content.about.targets, int(content.members.sum())
    which = f"model {targets[0]}" if len(targets) == 1 else f"{len(targets)} models in turn"
    if content.about.given_target:
        which = "an existing model that this audit did not train"
    people = "people: " if content.about.people else ""
    return (
        f"{which}; {people}{members:,} members and {len(content.members) - members:,} non-members evaluated, "
        f"{_extent(content.about.population)} known non-members as the population"
    )


def _data(content: Content) -> str:
    data, labels = content.extras.data, content.saved.labels
    name = f"{data.name}: " if data is not None else ""
    classes = f" of {len(np.unique(labels))} classes" if labels is not None else ""
    people = f", {content.about.units:,} people" if content.about.people else ""
    return f"{name}{content.about.signals.points:,} records{classes}{people}"


def _model(content: Content) -> str:
    audit = content.about.audit or {}
    found = [recipe for name in ("recipe", "reference_recipe") if isinstance(recipe := audit.get(name), Mapping)]
    kinds = dict.fromkeys(str(r.get("class", r.get("recipe", ""))).rpartition(".")[2] for r in found)
    parts = [" and ".join(kinds)] if kinds else []
    # Without the time that they took, which differs between equal runs.
    if trained := [record for record in content.training.values() if record.seconds]:
        target = content.about.targets[0]
        others = sum(number != target for number in content.training) if content.about.two_recipes else 0
        by = f", {others} of them by the references' recipe" if others else ""
        parts.append(f"{len(trained)} models trained{by}")
    unknown = "not recorded: its signals were given" if content.about.audit is None else "trained by a separate script"
    return "; ".join(parts) or unknown


def _accuracy_rows(content: Content) -> Iterator[tuple[str, str]]:
    """Accuracy of the target and of its references, each on its own members and non-members."""
    found = content.about.accuracy
    if found is None:
        return
    measure = "" if found.measure == "accuracy" else f" ({found.measure})"
    target, references = found.target, found.references
    if target.members is not None and target.non_members is not None:
        text = f"{percent(target.members)} on members, {percent(target.non_members)} on non-members{measure}"
        yield "Target's accuracy", text
    if references.members is not None and references.non_members is not None:
        members, others = (found.of_references(side, ranged=True) for side in ("members", "non_members"))
        yield "References' accuracy", f"{members} on members, {others} on non-members{measure}"


def _likeness(content: Content) -> str:
    """How well the references match the target, if they have another recipe or were moved to its scale."""
    checks = content.result.diagnostics.targets.get(content.target)
    if checks is not None and checks.alignment is not None:
        return f"the references' signals were moved to the target's scale; {correlations(checks.alignment)}"
    if not content.about.two_recipes:
        return ""
    found = None if checks is None else checks.unlike_references
    if found is None:
        return "whether the references match the target could not be checked; more references may allow it"
    differ = "differ" if found.warning else "do not clearly differ"
    return (
        f"the target's signals on known non-members {differ} from those of its references (p = {found.p:.2g}, a "
        f"caution below {ALARM:g})"
    )


def _versions(content: Content) -> str:
    first = next(iter(content.training.values()), TrainingRecord())
    versions = dict(first.versions or {})
    if content.about.plmia:
        versions["plmia"] = content.about.plmia
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def warnings(content: Content) -> list[tuple[str, Note]]:
    """Notes to keep in mind: ``("warning" or "note", note)``, the doubts of the verdict first."""
    notes = [note for note in content.result.notes if note.code != BESIDE_CHECKS]
    serious = doubts(notes)
    data = content.extras.data
    if data is not None and (copies := data.duplicates()) and not any(note.code == "split-copies" for note in notes):
        text = f"{copies:,} records are exact copies of others. Keep copies together when you split the data."
        notes.append(Note("split-copies", "info", text))
    return [*_first_of_each("warning", serious), *_first_of_each("note", [n for n in notes if n not in serious])]


def _first_of_each(kind: str, notes: Sequence[Note]) -> Iterator[tuple[str, Note]]:
    """Yield the first few notes of each code, and then the numbers of the others."""
    seen: dict[str, int] = {}
    for note in notes:
        seen[note.code] = seen.get(note.code, 0) + 1
        if seen[note.code] <= MAX_PER_CODE:
            yield kind, note
    for code, count in seen.items():
        if count > MAX_PER_CODE:
            yield kind, Note(code, "info", f"metrics.json has {count - MAX_PER_CODE} more notes like these.")


def check_notes(content: Content) -> list[str]:
    """Notes shown beside the checks."""
    return [note.text for note in content.result.notes if note.code == BESIDE_CHECKS]


def auc_interval(attack: AttackSummary) -> str:
    """Interval of an attack's AUC, if there is one: over targets, else of the first target."""
    interval = attack.auc.interval or attack.per_target[0].auc_interval
    return _ends(interval) if interval else ""


def tpr_cell(attack: AttackSummary, fpr: float) -> tuple[str, str]:
    """A TPR and its interval, or the number of non-members needed to resolve it."""
    if (rate := rate_at(attack, fpr)) is None:
        return "–", f"needs {attack.tpr[fpr].needed_non_members:,.0f}"
    return percent(rate.tpr), rate.ends


def named_cell(attack: AttackSummary, fdr: float) -> str:
    """Number of records or people named at a false discovery rate; a dash if no single one can be named."""
    found = attack.fdr.get(fdr)
    return "–" if found is None or (not found.n_discoveries and found.least > 1) else _count(found.n_discoveries)


def check_cell(attack: AttackSummary) -> tuple[str, str]:
    """Whether the known non-members refute the attack's own p-value, and the share of them that it flags."""
    own = attack.own_p_value_on_population
    if own.flagged is None:
        return "none", ""
    word = "refuted" if own.check_failed else "not refuted"
    return word, f"flags {percent(own.flagged)} at {round_percent(own.level)}"


# Further questions ----------------------------------------------------------------------------------------------------

# Rates at which all records of a person are compared with one of them.
COMPARED = (0.01, 0.001)
LONGEST_NAME = 40


@dataclass(frozen=True)
class Cell:
    """A value in a table, with what stands below it in small letters."""

    value: str
    below: str = ""


@dataclass(frozen=True)
class Row:
    """A row of a table; the one that matters most is marked."""

    name: str
    cells: list[Cell]
    marked: bool = False


def one_record_rows(content: Content) -> list[Row]:
    """AUC and TPRs of the main attacks with all records of a person, then with one; empty unless people were judged."""
    attacks, single, fprs = content.result.attacks, content.one_record, one_record_rates(content)
    names = [name for name in main_attacks(attacks, content.verdict.attack) if name in single]
    return [
        Row(name, [*_means(attacks[name], fprs), *_means(single[name], fprs)], name == content.verdict.attack)
        for name in names
    ]


def one_record_rates(content: Content) -> list[float]:
    """False-positive rates at which people are compared with one record each: those that some attack resolves."""
    found = content.result.attacks.values()
    return [fpr for fpr in COMPARED if any(attack.tpr[fpr].resolved for attack in found)]


def _means(found: AttackSummary | OneRecordSummary, fprs: Sequence[float]) -> list[Cell]:
    rates = [found.tpr[fpr] for fpr in fprs]
    return [Cell(percent(found.auc.mean)), *(Cell(percent(rate.mean) if rate.resolved else "–") for rate in rates)]


def accusation_rows(content: Content) -> list[Row]:
    """For each prior: candidates, precision, and people or records accused rightly and falsely."""
    return [
        Row(
            round_percent(found.prior),
            [
                Cell(_count(found.candidates)),
                Cell(percent(found.precision), f"{percent(found.precision_low)} to {percent(found.precision_high)}"),
                Cell(_count(found.right), f"{_count(found.right_low)} to {_count(found.right_high)}"),
                Cell(_count(found.wrong), f"{_count(found.wrong_low)} to {_count(found.wrong_high)}"),
            ],
        )
        for found in content.accusations
    ]


def subgroup_rows(table: SubgroupTable) -> list[Row]:
    """One row per subgroup; those that are more exposed than the others are marked."""
    return [_subgroup_row(group, group.name in table.more_exposed) for group in table.subgroups]


def _subgroup_row(group: Subgroup, more_exposed: bool) -> Row:
    share = "" if group.small else percent(group.identified / group.n_members)
    p = "<0.001" if group.p_value < 0.001 else f"{group.p_value:.2g}"
    cells = [
        Cell(f"{group.n_members:,}"),
        Cell(f"{group.n_non_members:,}"),
        Cell(percent(group.tpr), "" if group.interval is None else _ends(group.interval)),
        Cell(f"{group.identified:,}", share),
        Cell(f"{group.falsely:,}"),
        Cell(percent(group.accuracy_members)),
        Cell(percent(group.accuracy_non_members)),
        Cell("–" if group.small else p, "more exposed" * more_exposed),
    ]
    return Row(shortened(group.name, LONGEST_NAME) + " (small)" * group.small, cells, more_exposed)


def subgroup_summary(table: SubgroupTable) -> str:
    """Which subgroups are more exposed than the others, and which values are merged or small."""
    names = ", ".join(shortened(name, LONGEST_NAME) for name in table.more_exposed)
    said = [f"More exposed than the others: {names}." if names else "No subgroup is shown to be more exposed."]
    for group in table.subgroups:
        name = shortened(group.name, LONGEST_NAME)
        if group.merged:
            values = ", ".join(shortened(value, LONGEST_NAME) for value in group.merged)
            said.append(f"These values are small and form “{name}”: {values}.")
        if group.small:
            said.append(f"“{name}” has fewer than {MIN_UNITS} members or non-members, so it has no rates.")
    return " ".join(said)


def training_rows(content: Content, found: TrainingsSummary) -> list[Row]:
    """AUC and TPR of the verdict's attack: on the first target, and the mean over trainings."""
    attack, target = content.verdict.attack, min(content.saved.targets)
    entry, roc = content.result.attacks[attack].on(target), content.saved.roc(attack, target)
    point = roc.tpr_at(found.fpr)
    tpr = _measured(point.tpr, tpr_interval(roc, found.fpr, found.confidence)) if point.resolved else Cell("–")
    mean = Cell("–") if found.tpr is None else _measured(found.tpr.mean, found.tpr.interval)
    return [
        Row(f"Model {target}, the target", [_measured(entry.auc, entry.auc_interval), tpr]),
        Row(f"Mean over {found.trainings} trainings", [_measured(found.auc.mean, found.auc.interval), mean]),
    ]


def _measured(value: float, interval: Interval | None) -> Cell:
    return Cell(percent(value), "" if interval is None else _ends(interval))


def always_identified(content: Content, found: TrainingsSummary) -> str:
    """How many units are identified in all their trainings, and how many could be by chance."""
    last, are = found.curve[-1], "is" if found.always == 1 else "are"
    return (
        f"{found.always:,} of {found.units:,} {content.units} {are} identified in all trainings that used them. If "
        f"nothing leaks, at most {_count(last.at_most)} are expected."
    )


def glossary(content: Content) -> list[tuple[str, str]]:
    """Names of the attacks and what they are, except for attacks of the user."""
    return [(name, sentence(KNOWN[name].note)) for name in content.result.attacks if name in KNOWN]


def gaussianity(content: Content) -> str:
    """How many records fail the Shapiro-Wilk test, in words; empty if it was not measured."""
    found = content.result.diagnostics.gaussianity
    if found is None or found.in_ is None or found.out is None:
        return ""
    return (
        f"At a level of {round_percent(found.level)} it rejects {percent(found.in_.rejected)} of all records IN and "
        f"{percent(found.out.rejected)} OUT."
    )
