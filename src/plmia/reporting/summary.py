"""The words and numbers of the first screen: risk at a glance, what was audited, what to keep in mind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from plmia.attacks.attack import ATTACKS
from plmia.errors import Note, doubts
from plmia.evaluation.metrics import fpr_key
from plmia.reporting.content import Content, accuracies, nice_percent, percent, seconds, sentence

RATES = (0.01, 0.001, 0.0001, 0.0)
MOST_SAID = 2
# Accuracies on own and on other records that are no further apart than this are called level.
LEVEL_WITHIN = 0.01


STYLES = {
    "leak": "leak",
    "no_leak_shown": "none",
    "inconclusive": "doubtful",
    "invalid": "invalid",
    "barely measurable": "leak barely",
    "moderate": "leak moderate",
    "severe": "leak severe",
}
# Shown beside the checks, since it is of interest to those who read these and asks nothing of others.
BESIDE_CHECKS = "combined-p-value"


def status(verdict: Mapping[str, Any]) -> tuple[str, str]:
    """Class of the style, and the headline."""
    return STYLES[verdict["grade"] or verdict["status"]], str(verdict["headline"])


def verdict_words(verdict: Mapping[str, Any]) -> str:
    """The verdict's text below its heading: what that says already is left out, and no line breaks before a %."""
    rest = str(verdict["text"]).removeprefix(f"{verdict['headline']}: ")
    return (rest[:1].upper() + rest[1:]).replace(" %", "\u00a0%")


def next_step(content: Content) -> str:
    """What to do with the verdict, in one line."""
    found = content.verdict["status"]
    if content.verdict["grade"] == "barely measurable":
        return "hold it to a limit that you set, with plmia gate; audit with more records if the interval is too wide."
    if found == "leak":
        change = "train with less fit to single records (stop earlier, regularise, differential privacy)"
        if _level(content):
            change = "change the training (differential privacy bounds what a record gives away)"
        return (
            f"{change}, audit again, and put both audits side by side with plmia compare; plmia gate holds a release "
            "to a limit that you set."
        )
    if found == "invalid":
        return "correct what the check names and audit again; no number on this page can be relied on before that."
    if found == "inconclusive":
        return (
            "correct what the checks below name and audit again; until then this audit neither shows a leak nor "
            "excludes one."
        )
    return (
        "ask how much may have been missed: that these attacks, with so many references and records, found nothing is "
        "no proof of safety. plmia gate tests whether what they may have missed stays below a limit that you set, and "
        "plmia plan says what a larger audit would show."
    )


def _level(content: Content) -> bool:
    """Whether the target, or all models on average, are about as accurate on other records as on their own."""
    pair = accuracies(content.training.get(content.target, {})) or accuracies(content.about)
    return pair is not None and pair[0] - pair[1] < LEVEL_WITHIN


def words(content: Content) -> list[tuple[str, str]]:
    """The terms of the first screen and what they mean."""
    modes = {
        "online": "The attacker has references that trained on a record and references that did not.",
        "offline": "The attacker has only references that did not train on a record.",
    }
    mode = content.about["mode"]
    return [
        ("Member", "A record that the audited model, the target, was trained on."),
        ("False accusation", "A non-member that is called a member; their share is the false-positive rate (FPR)."),
        ("False discovery", "A non-member among the records that are named as members."),
        (
            "Area (AUC)",
            "How often a member scores above a non-member, over all thresholds. Guessing has 50\u00a0%.",
        ),
        (
            "ε, δ",
            "What differential privacy promises: the smaller, the less one learns of a record. Attacks can refute it.",
        ),
        ("References", "Models trained in the same way on other parts of the data, as a measure of what is usual."),
        ("Population", "Records known not to be members, from which the attacks learn how non-members look."),
        (f"{mode.capitalize()} attack", modes.get(mode, "")),
    ]


def tiles(content: Content) -> list[dict[str, Any]]:
    """Numbers at a glance: each with a heading, a value, what it is compared with, and a scale if it has one."""
    verdict, entry = content.verdict, content.metrics["attacks"][content.verdict["attack"]]
    found: list[dict[str, Any]] = []
    if verdict["status"] == "invalid":
        return found  # numbers at a glance would be taken at their word
    if verdict["fpr"] is not None:
        ends, fpr = verdict["interval"], verdict["fpr"]
        times = verdict["tpr"] / fpr
        found.append(
            {
                "head": f"Members found at {nice_percent(fpr)} false accusations",
                "value": percent(verdict["tpr"]),
                "note": f"{_interval_words(content)} {_ends(ends)}; guessing finds {nice_percent(fpr)}"
                + (f", so {times:.0f} times chance" if verdict["leak_shown"] and ends["low"] > fpr else ""),
                "scale": _scale(verdict["tpr"], ends["low"], ends["high"], fpr),
            }
        )
    evaluated, unnamed = len(content.queries), verdict.get("unnamed")
    found.append(
        {
            "head": "Records named as members",
            "value": "none can be" if unnamed else _count(verdict["exposed"]),
            "note": f"of {evaluated:,} evaluated records: {unnamed['reason']}, which is not evidence of safety. "
            f"{unnamed['remedy']}"
            if unnamed
            else f"of {evaluated:,} evaluated records, at a false discovery rate of {nice_percent(verdict['fdr'])}"
            + (": at most so many of them are expected to be wrong" if verdict["exposed"] else "")
            + (f"; mean over {verdict['targets']} targets" if verdict["targets"] > 1 else ""),
        }
    )
    widest = verdict["auc_attack"]
    area = content.metrics["attacks"][widest]
    auc, interval = area["auc"], area["per_target"][0].get("auc_interval")
    interval = auc.get("interval") or (interval if len(area["per_target"]) == 1 else None)
    found.append(
        {
            "head": f"Area under the curve of {widest}",
            "value": percent(auc["mean"]),
            "note": f"{nice_percent(0.5)} is guessing, {nice_percent(1)} is certainty"
            + (f"; {nice_percent(0.95)} interval, for this attack alone, {_ends(interval)}" if interval else ""),
        }
    )
    epsilon = entry.get("epsilon")
    if epsilon:
        confidence = nice_percent(entry["per_target"][0]["epsilon"]["confidence"])
        found.append(
            {
                "head": "Differential privacy refuted below",
                "value": f"ε = {epsilon['low']:.2f}",
                "note": f"with {confidence} confidence, any claim of a smaller ε at δ\u00a0=\u00a0"
                + f"{epsilon['delta']:.10f}".rstrip("0")
                + " is wrong; 0 refutes nothing",
            }
        )
    return found


def _interval_words(content: Content) -> str:
    """What the verdict's interval is called: it holds for all attacks at once, where there are several."""
    joint = ", for all attacks at once," if len(content.saved.attacks) > 1 else ""
    return f"{nice_percent(0.95)} interval{joint}"


def _ends(interval: Mapping[str, float]) -> str:
    return f"{percent(interval['low'])} to {percent(interval['high'])}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or value >= 10 else f"{value:.1f}"


def _scale(tpr: float, low: float, high: float, chance: float) -> dict[str, Any]:
    """Places on a logarithmic scale from a third of chance to 1, in per cent of its width."""
    bottom = math.log10(chance / 3)

    def place(value: float) -> float:
        return 0.0 if value <= 0 else round(100 * min(1.0, max(0.0, 1 - math.log10(value) / bottom)), 2)

    decades = [10.0**power for power in range(math.ceil(bottom), 1)]
    ticks = [(place(value), nice_percent(value)) for value in decades]
    return {"at": place(tpr), "low": place(low), "high": place(high), "chance": place(chance), "ticks": ticks}


def audited(content: Content) -> list[tuple[str, str]]:
    """What was audited: names and values."""
    about, audit = content.about, content.about.get("audit", {})
    signals = about["signals"]
    rows = [("Data", _data(content)), ("Recipe", str(about.get("recipe", ""))), ("Model", _model(content))]
    references = " to ".join(f"{n:,}" for n in sorted({about["references"][0], about["references"][-1]}))
    views = f", {signals['views']} views of each record" if signals["views"] > 1 else ""
    rows.append(("References", f"{references} models trained alike{views}, {about['mode']} attack"))
    targets = about["targets"]
    which = f"model {targets[0]}" if len(targets) == 1 else f"{len(targets)} models in turn"
    if audit.get("target", "trained") != "trained":
        which = "a model that was given, not trained by this audit"
    sizes = " to ".join(f"{n:,}" for n in sorted({about["population"][0], about["population"][-1]}))
    evaluated = f"{int(content.members.sum()):,} members and {int((~content.members).sum()):,} non-members"
    rows.append(("Target", f"{which}; {evaluated} evaluated, {sizes} known non-members as the population"))
    rows += _accuracy_rows(content)
    rows.append(("Attacks", ", ".join(content.saved.attacks)))
    written = (content.saved.folder / "scores.npz").stat().st_mtime
    rows.append(("Date", datetime.fromtimestamp(written, UTC).strftime("%Y-%m-%d")))
    rows.append(("Seed", str(about["seed"])))
    rows.append(("Versions", _versions(content)))
    for name, digest in (("Data, SHA-256", audit.get("data")), ("Signals, SHA-256", signals.get("sha256"))):
        if digest:
            rows.append((name, str(digest)))
    return [(name, value) for name, value in rows if value]


def _data(content: Content) -> str:
    data, labels = content.extras.data, content.saved.labels
    name = f"{data.name}: " if data is not None else ""
    classes = f" of {len(np.unique(labels))} classes" if labels is not None else ""
    return f"{name}{content.about['signals']['points']:,} records{classes}"


def _model(content: Content) -> str:
    recipe = content.about.get("audit", {}).get("recipe")
    parts = []
    if isinstance(recipe, dict):
        kind = str(recipe.get("class", recipe.get("recipe", ""))).rpartition(".")[2]
        parts.append(kind)
    times = [record["seconds"] for record in content.training.values() if record.get("seconds")]
    if times:
        parts.append(f"{len(times)} models trained in {seconds(sum(times))} of computing")
    return "; ".join(parts) or "not recorded: its signals were given"


def _accuracy_rows(content: Content) -> Iterator[tuple[str, str]]:
    """Accuracy of the target and of its references, each at its own members and non-members."""
    found = content.about.get("accuracy")
    if not found:
        return
    what = "" if found["measure"] == "accuracy" else f" ({found['measure']})"
    for name, who in (("target", "Target's accuracy"), ("references", "References' accuracy")):
        members, others = found[name]["members"], found[name]["non_members"]
        if members is not None and others is not None:
            yield who, f"{percent(members)} on members, {percent(others)} on non-members{what}"


def _versions(content: Content) -> str:
    record = next(iter(content.training.values()), {})
    versions = dict(record.get("versions", {}))
    if content.about.get("plmia"):
        versions["plmia"] = content.about["plmia"]
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def warnings(content: Content) -> list[tuple[str, Note]]:
    """What to keep in mind: ``("warning" or "note", note)``, the doubts of the verdict first."""
    notes = [note for note in _notes(content) if note.code != BESIDE_CHECKS]
    serious = doubts(notes)
    data = content.extras.data
    if data is not None and (copies := data.duplicates()) and not any(note.code == "split-copies" for note in notes):
        notes.append(
            Note("split-copies", "info", f"{copies:,} records are exact copies of others: keep them together.")
        )
    return [*_few("warning", serious), *_few("note", [note for note in notes if note not in serious])]


def _notes(content: Content) -> list[Note]:
    return [Note.from_json(note) for note in content.metrics["notes"]]


def _few(kind: str, notes: list[Note]) -> Iterator[tuple[str, Note]]:
    """Yield the first few of each code; of many targets each may have its own."""
    seen: dict[str, int] = {}
    for note in notes:
        seen[note.code] = seen.get(note.code, 0) + 1
        if seen[note.code] <= MOST_SAID:
            yield kind, note
    for code, count in seen.items():
        if count > MOST_SAID:
            yield kind, Note(code, "info", f"{count - MOST_SAID} more like these are in metrics.json.")


def check_notes(content: Content) -> list[str]:
    """What stands beside the checks."""
    return [note.text for note in _notes(content) if note.code == BESIDE_CHECKS]


def attack_rows(content: Content) -> list[dict[str, Any]]:
    """One row an attack: AUC, TPR at fixed false-positive rates, named records, epsilon."""
    rows = []
    for name in content.saved.attacks:
        attack = content.metrics["attacks"][name]
        exposed = attack.get("fdr", {}).get(fpr_key(content.verdict["fdr"]), {})
        rows.append(
            {
                "name": name,
                "chosen": name == content.verdict["attack"],
                "auc": percent(attack["auc"]["mean"]),
                "auc_interval": _auc_interval(attack),
                "tpr": [_cell(attack, rate) for rate in RATES],
                "exposed": _count(exposed["n_discoveries"])
                if exposed and (exposed["n_discoveries"] or exposed["least"] <= 1)
                else "–",
                "epsilon": f"{attack['epsilon']['low']:.2f}" if attack.get("epsilon") else "–",
                "check": _check(attack),
            }
        )
    return rows


def _auc_interval(attack: Mapping[str, Any]) -> str:
    ends = attack["auc"].get("interval") or attack["per_target"][0].get("auc_interval")
    return _ends(ends) if ends else ""


def _cell(attack: Mapping[str, Any], rate: float) -> tuple[str, str]:
    """A TPR and its interval; what is missing where the data do not resolve it."""
    mean, first = attack["tpr"][fpr_key(rate)], attack["per_target"][0]["tpr"][fpr_key(rate)]
    if not mean["resolved"]:
        return "–", f"needs {mean['needed_non_members']:,.0f}"
    ends = mean.get("interval") or first.get("at_nominal") or first
    return percent(mean["mean"]), _ends(ends)


def _check(attack: Mapping[str, Any]) -> tuple[str, str]:
    own = attack.get("own_p_value_on_population", {})
    if own.get("flagged") is None:
        return "none", ""
    word = "refuted" if own["check_failed"] else "not refuted"
    return word, f"flags {percent(own['flagged'])} at {nice_percent(own['level'])}"


def glossary(content: Content) -> list[tuple[str, str]]:
    """Names of the attacks and what they are; of those that the user wrote nothing is known."""
    return [(name, sentence(ATTACKS[name].note)) for name in content.saved.attacks if name in ATTACKS]


def gaussianity(content: Content) -> str:
    """How many records fail the Shapiro-Wilk test, in words; nothing where that was not measured."""
    found = content.metrics.get("diagnostics", {}).get("gaussianity")
    if not found or not found["in"] or not found["out"]:
        return ""
    return (
        f"At {nice_percent(found['level'])} it rejects {percent(found['in']['rejected'])} of all records IN and "
        f"{percent(found['out']['rejected'])} OUT."
    )
