"""Words and numbers of the page: verdict, tiles, facts about the audit, notes, table of attacks, glossaries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from plmia.attacks.attack import ATTACKS
from plmia.errors import Note, doubts, percent, round_percent, sentence
from plmia.evaluation.metrics import fpr_key
from plmia.reporting.content import Content, accuracies
from plmia.reporting.plots.figure import duration
from plmia.reporting.plots.leakage import RATES

# Notes shown per code; of many targets each may have its own.
MAX_PER_CODE = 2
# A smaller gap between the accuracies on training records and on others counts as none.
SMALL_GAP = 0.01
# Shown beside the checks, since it requires no action.
BESIDE_CHECKS = "combined-p-value"
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
    "records.",
    "leak": "{change}, audit again, and compare both audits with plmia compare. plmia gate tests a release against a "
    "limit that you set.",
    "invalid": "Correct what the check names and audit again. Until then, no number on this page is reliable.",
    "inconclusive": "Correct what the checks below name and audit again. Until then, this audit neither shows a leak "
    "nor excludes one.",
    "no_leak_shown": "Ask how much may have been missed. That these attacks found nothing with so many references and "
    "records is not proof of safety. plmia gate tests whether a leak that they may have missed stays below a limit "
    "that you set. plmia plan estimates what a larger audit would find.",
}
TERMS = {
    "Member": "A record in the training set of the audited model, the target.",
    "False-positive rate (FPR)": "Share of the non-members that an attack flags as members.",
    "True-positive rate (TPR)": "Share of the members that an attack flags as members.",
    "False discovery rate (FDR)": "Expected share of non-members among the records named as members.",
    "Area (AUC)": "Probability that a member scores above a non-member. Guessing has 50 %.",
    "ε, δ": "Parameters of differential privacy: the smaller, the less a model reveals about a record. Attacks can "
    "refute a claimed ε.",
    "References": "Models trained in the same way on other parts of the data. They show which signals are usual.",
    "Population": "Known non-members, from which the attacks learn how non-members score.",
}
MODES = {
    "online": "The attacker has references that trained on a record and references that did not.",
    "offline": "The attacker has only references that did not train on a record.",
}


# First screen -------------------------------------------------------------------------------------------------------


def status(verdict: Mapping[str, Any]) -> tuple[str, str]:
    """CSS class and headline of the verdict."""
    return STYLES[verdict["grade"] or verdict["status"]], str(verdict["headline"])


def verdict_text(verdict: Mapping[str, Any]) -> str:
    """Text of the verdict below its heading, which it does not repeat."""
    rest = str(verdict["text"]).removeprefix(f"{verdict['headline']}: ")
    return rest[:1].upper() + rest[1:]


def next_step(content: Content) -> str:
    """What to do about the verdict."""
    found = content.verdict["grade"] if content.verdict["grade"] in NEXT_STEPS else content.verdict["status"]
    pair = accuracies(content.training.get(content.target, {})) or accuracies(content.about)
    change = "Reduce overfitting (stop earlier, regularise, use differential privacy)"
    if pair is not None and pair[0] - pair[1] < SMALL_GAP:
        change = "Change the training (differential privacy limits what a model reveals about a record)"
    return NEXT_STEPS[str(found)].format(change=change)


def terms(content: Content) -> list[tuple[str, str]]:
    """Terms of the first screen and their meanings."""
    mode = content.about["mode"]
    return [*TERMS.items(), (f"{mode.capitalize()} attack", MODES.get(mode, ""))]


@dataclass(frozen=True)
class Scale:
    """A rate with its interval on a logarithmic scale from a third of chance to 1, as percentages of its width."""

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
    if content.verdict["status"] == "invalid":
        return []
    return [*_tpr_tile(content), _named_tile(content), _auc_tile(content), *_epsilon_tile(content)]


def _tpr_tile(content: Content) -> Iterator[Tile]:
    verdict = content.verdict
    fpr, tpr, ends = verdict["fpr"], verdict["tpr"], verdict["interval"]
    if fpr is None:
        return
    joint = ", for all attacks at once," if len(content.saved.attacks) > 1 else ""
    times = f", so this is {tpr / fpr:.0f} times chance" if verdict["leak_shown"] and ends["low"] > fpr else ""
    rate = round_percent(fpr)
    note = f"95 % interval{joint} {_ends(ends)}; guessing finds {rate}{times}"
    yield Tile(f"Members found at {rate} false-positive rate", percent(tpr), note, _scale(tpr, ends, fpr))


def _named_tile(content: Content) -> Tile:
    verdict, evaluated = content.verdict, f"of {len(content.queries):,} evaluated records"
    head, unnamed = "Records named as members", verdict.get("unnamed")
    if unnamed:
        note = f"{evaluated}: {unnamed['reason']}. This is not evidence of safety. {unnamed['remedy']}"
        return Tile(head, "none possible", note)
    mean = f"; mean over {verdict['targets']} targets" if verdict["targets"] > 1 else ""
    share = round_percent(verdict["fdr"])
    wrong = f": at most {share} of them are expected to be wrong" if verdict["exposed"] else ""
    return Tile(head, _count(verdict["exposed"]), f"{evaluated}, at a false discovery rate of {share}{wrong}{mean}")


def _auc_tile(content: Content) -> Tile:
    name = content.verdict["auc_attack"]
    attack = content.metrics["attacks"][name]
    interval = attack["auc"].get("interval")
    if interval is None and len(attack["per_target"]) == 1:
        interval = attack["per_target"][0].get("auc_interval")
    alone = f"; 95 % interval, for this attack alone, {_ends(interval)}" if interval else ""
    note = f"50 % is guessing, 100 % is certainty{alone}"
    return Tile(f"Area under the curve of {name}", percent(attack["auc"]["mean"]), note)


def _epsilon_tile(content: Content) -> Iterator[Tile]:
    attack = content.metrics["attacks"][content.verdict["attack"]]
    if not (epsilon := attack.get("epsilon")):
        return
    confidence = round_percent(attack["per_target"][0]["epsilon"]["confidence"])
    delta = f"{epsilon['delta']:.10f}".rstrip("0")
    note = (
        f"any claim of a smaller ε at δ\u00a0=\u00a0{delta} is wrong, with {confidence} confidence; 0 refutes nothing"
    )
    yield Tile("Differential privacy refuted below", f"ε = {epsilon['low']:.2f}", note)


def _ends(interval: Mapping[str, float]) -> str:
    return f"{percent(interval['low'])} to {percent(interval['high'])}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or value >= 10 else f"{value:.1f}"


def _scale(tpr: float, ends: Mapping[str, float], chance: float) -> Scale:
    bottom = math.log10(chance / 3)

    def place(value: float) -> float:
        return 0.0 if value <= 0 else round(100 * min(1.0, max(0.0, 1 - math.log10(value) / bottom)), 2)

    decades = [10.0**power for power in range(math.ceil(bottom), 1)]
    ticks = [(place(value), round_percent(value)) for value in decades]
    return Scale(place(tpr), place(ends["low"]), place(ends["high"]), place(chance), ticks)


# Facts about the audit ----------------------------------------------------------------------------------------------


def audited(content: Content) -> list[tuple[str, str]]:
    """Facts about the audit: names and values."""
    about, audit, signals = content.about, content.about.get("audit", {}), content.about["signals"]
    views = f", {signals['views']} views of each record" if signals["views"] > 1 else ""
    written = (content.saved.folder / "scores.npz").stat().st_mtime
    rows = [
        ("Data", _data(content)),
        ("Recipe", str(about.get("recipe", ""))),
        ("Model", _model(content)),
        ("References", f"{_extent(about['references'])} models trained in the same way{views}, {about['mode']} attack"),
        ("Target", _target(content)),
        *_accuracy_rows(content),
        ("Attacks", ", ".join(content.saved.attacks)),
        ("Date", datetime.fromtimestamp(written, UTC).strftime("%Y-%m-%d")),
        ("Seed", str(about["seed"])),
        ("Versions", _versions(content)),
        ("Data, SHA-256", audit.get("data") or ""),
        ("Signals, SHA-256", signals.get("sha256") or ""),
    ]
    return [(name, value) for name, value in rows if value]


def _extent(sizes: list[int]) -> str:
    return " to ".join(f"{n:,}" for n in sorted({sizes[0], sizes[-1]}))


def _target(content: Content) -> str:
    about = content.about
    which = f"model {about['targets'][0]}" if len(about["targets"]) == 1 else f"{len(about['targets'])} models in turn"
    if about.get("audit", {}).get("target", "trained") != "trained":
        which = "an existing model that this audit did not train"
    members = int(content.members.sum())
    return (
        f"{which}; {members:,} members and {len(content.members) - members:,} non-members evaluated, "
        f"{_extent(about['population'])} known non-members as the population"
    )


def _data(content: Content) -> str:
    data, labels = content.extras.data, content.saved.labels
    name = f"{data.name}: " if data is not None else ""
    classes = f" of {len(np.unique(labels))} classes" if labels is not None else ""
    return f"{name}{content.about['signals']['points']:,} records{classes}"


def _model(content: Content) -> str:
    recipe = content.about.get("audit", {}).get("recipe")
    parts = []
    if isinstance(recipe, dict):
        parts.append(str(recipe.get("class", recipe.get("recipe", ""))).rpartition(".")[2])
    times = [record["seconds"] for record in content.training.values() if record.get("seconds")]
    if times:
        parts.append(f"{len(times)} models trained in {duration(sum(times))} of computing time")
    return "; ".join(parts) or "not recorded: its signals were given"


def _accuracy_rows(content: Content) -> Iterator[tuple[str, str]]:
    """Accuracy of the target and of its references, each on its own members and non-members."""
    found = content.about.get("accuracy")
    if not found:
        return
    measure = "" if found["measure"] == "accuracy" else f" ({found['measure']})"
    for name, who in (("target", "Target's accuracy"), ("references", "References' accuracy")):
        members, others = found[name]["members"], found[name]["non_members"]
        if members is not None and others is not None:
            yield who, f"{percent(members)} on members, {percent(others)} on non-members{measure}"


def _versions(content: Content) -> str:
    record = next(iter(content.training.values()), {})
    versions = dict(record.get("versions", {}))
    if content.about.get("plmia"):
        versions["plmia"] = content.about["plmia"]
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


# Notes --------------------------------------------------------------------------------------------------------------


def warnings(content: Content) -> list[tuple[str, Note]]:
    """Notes to keep in mind: ``("warning" or "note", note)``, the doubts of the verdict first."""
    notes = [note for note in content.saved.notes if note.code != BESIDE_CHECKS]
    serious = doubts(notes)
    data = content.extras.data
    if data is not None and (copies := data.duplicates()) and not any(note.code == "split-copies" for note in notes):
        text = f"{copies:,} records are exact copies of others. Keep copies together when you split the data."
        notes.append(Note("split-copies", "info", text))
    return [*_first_of_each("warning", serious), *_first_of_each("note", [n for n in notes if n not in serious])]


def _first_of_each(kind: str, notes: list[Note]) -> Iterator[tuple[str, Note]]:
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
    return [note.text for note in content.saved.notes if note.code == BESIDE_CHECKS]


# Attacks and signals ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttackRow:
    """One row of the table of attacks; pairs are a value and what stands below it in small print."""

    name: str
    chosen: bool
    auc: tuple[str, str]
    tpr: list[tuple[str, str]]
    named: str
    epsilon: str
    check: tuple[str, str]


def attack_rows(content: Content) -> list[AttackRow]:
    """One row per attack: AUC, TPR at fixed false-positive rates, named records, epsilon, check of its p-value."""
    verdict = content.verdict
    return [
        AttackRow(
            name,
            name == verdict["attack"],
            (percent(attack["auc"]["mean"]), _auc_interval(attack)),
            [_tpr_cell(attack, rate) for rate in RATES],
            _named_cell(attack.get("fdr", {}).get(fpr_key(verdict["fdr"]))),
            f"{attack['epsilon']['low']:.2f}" if attack.get("epsilon") else "–",
            _check_cell(attack.get("own_p_value_on_population", {})),
        )
        for name, attack in content.metrics["attacks"].items()
    ]


def _auc_interval(attack: Mapping[str, Any]) -> str:
    ends = attack["auc"].get("interval") or attack["per_target"][0].get("auc_interval")
    return _ends(ends) if ends else ""


def _tpr_cell(attack: Mapping[str, Any], rate: float) -> tuple[str, str]:
    """A TPR and its interval, or the number of non-members needed to resolve it."""
    mean, first = attack["tpr"][fpr_key(rate)], attack["per_target"][0]["tpr"][fpr_key(rate)]
    if not mean["resolved"]:
        return "–", f"needs {mean['needed_non_members']:,.0f}"
    return percent(mean["mean"]), _ends(mean.get("interval") or first.get("at_nominal") or first)


def _named_cell(found: Mapping[str, Any] | None) -> str:
    possible = found and (found["n_discoveries"] or found["least"] <= 1)
    return _count(found["n_discoveries"]) if found and possible else "–"


def _check_cell(own: Mapping[str, Any]) -> tuple[str, str]:
    if own.get("flagged") is None:
        return "none", ""
    word = "refuted" if own["check_failed"] else "not refuted"
    return word, f"flags {percent(own['flagged'])} at {round_percent(own['level'])}"


def glossary(content: Content) -> list[tuple[str, str]]:
    """Names of the attacks and what they are, except for attacks of the user."""
    return [(name, sentence(ATTACKS[name].note)) for name in content.saved.attacks if name in ATTACKS]


def gaussianity(content: Content) -> str:
    """How many records fail the Shapiro-Wilk test, in words; empty if it was not measured."""
    found = content.metrics.get("diagnostics", {}).get("gaussianity")
    if not found or not found["in"] or not found["out"]:
        return ""
    return (
        f"At a level of {round_percent(found['level'])} it rejects {percent(found['in']['rejected'])} of all records "
        f"IN and {percent(found['out']['rejected'])} OUT."
    )
