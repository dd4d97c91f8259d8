"""`plmia gate` as a release pipeline meets it: exit codes, the interval's end on the safe side, bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click.testing
import numpy as np
import pytest

from plmia.auditing import gate
from plmia.evaluation.intervals import tpr_interval
from plmia.evaluation.metrics import roc_curve

Run = Callable[..., click.testing.Result]
Write = Callable[..., Path]


@pytest.fixture
def run(signals_file: Write, command: Run, tmp_path: Path) -> Callable[..., Path]:
    """Score simulated signals and return the folder."""

    def score(*options: Any, **shape: Any) -> Path:
        folder = tmp_path / "run"
        result = command("score", signals_file(**shape), "-o", folder, "--quiet", *options)
        assert result.exit_code == 0, result.output
        return folder

    return score


def test_a_model_that_leaks_fails_with_3_and_one_that_does_not_passes_with_0(
    run: Callable[..., Path], command: Run
) -> None:
    leaking = run(points=2_000, shift=4.0)
    failed = command("gate", leaking, "--max-tpr", 0.1, "--at-fpr", 0.01)
    assert failed.exit_code == 3
    assert failed.stdout.startswith("FAIL: ")
    tight = run(points=2_000, shift=0.0)
    passed = command("gate", tight, "--max-tpr", 0.1, "--at-fpr", 0.01)
    assert passed.exit_code == 0, passed.output
    assert passed.stdout.startswith("PASS: ")


def test_the_interval_s_upper_end_decides_for_all_attacks_and_targets_at_once(
    run: Callable[..., Path], command: Run
) -> None:
    folder = run("--attack", "lira", "--attack", "rmia", "--target", 0, "--target", 3, points=1_500, shift=1.0)
    worst = 0.0
    with np.load(folder / "scores.npz") as scores:
        for target in (0, 3):
            queries, members = scores[f"queries/{target}"], scores[f"members/{target}"]
            for name in ("lira", "rmia"):
                roc = roc_curve(scores[f"{name}/{target}/score"][queries], members[queries])
                worst = max(worst, tpr_interval(roc, 0.01, 1 - 0.05 / 4).high)
    just_below, just_above = worst - 1e-9, worst + 1e-9
    assert command("gate", folder, "--max-tpr", just_below, "--at-fpr", 0.01).exit_code == 3
    assert command("gate", folder, "--max-tpr", just_above, "--at-fpr", 0.01).exit_code == 0
    shown = json.loads(command("gate", folder, "--max-tpr", just_above, "--at-fpr", 0.01, "--json").stdout)
    assert shown["passed"] is True
    assert shown["worst"]["high"] == worst


UNLIKE = ("--max-tpr", 0.5, "--at-fpr", 0.01)


def unlike(path: Path, tmp_path: Path) -> Path:
    """Signals whose target is far more confident everywhere than its references."""
    with np.load(path) as arrays:
        signals = arrays["signals"].copy()
        signals[0] += 3.0
        np.savez(tmp_path / "unlike.npz", **(dict(arrays) | {"signals": signals}))
    return tmp_path / "unlike.npz"


def test_an_audit_that_doubts_itself_does_not_pass(signals_file: Write, command: Run, tmp_path: Path) -> None:
    path = unlike(signals_file(points=2_000, shift=0.0), tmp_path)
    assert command("score", path, "-o", tmp_path / "out", "--align", "never", "--quiet").exit_code == 0
    verdict = json.loads((tmp_path / "out" / "metrics.json").read_text())["verdict"]
    assert verdict["status"] == "inconclusive"
    assert verdict["doubts"] == ["unlike-references"]
    stopped = command("gate", tmp_path / "out", *UNLIKE)
    assert stopped.exit_code == 2
    assert stopped.stdout.startswith("UNDECIDED: ")
    assert "--accept): unlike-references" in stopped.stdout
    assert len(stopped.stdout) < 300
    shown = json.loads(command("gate", tmp_path / "out", *UNLIKE, "--json").stdout)
    assert (shown["passed"], shown["outcome"], shown["status"]) == (False, "undecided", "inconclusive")
    accepted = command("gate", tmp_path / "out", *UNLIKE, "--accept", "unlike-references", "--json")
    assert accepted.exit_code == 0
    shown = json.loads(accepted.stdout)
    assert (shown["status"], shown["doubts"], shown["accepted"]) == ("inconclusive", [], ["unlike-references"])
    assert "(accepted: unlike-references)" in shown["text"]
    assert command("gate", tmp_path / "out", *UNLIKE, "--accept", "few-references").exit_code == 2


def test_a_leak_shown_with_unlike_references_stays_shown(signals_file: Write, command: Run, tmp_path: Path) -> None:
    path = unlike(signals_file(points=2_000, shift=4.0), tmp_path)
    assert command("score", path, "-o", tmp_path / "out", "--align", "never", "--quiet").exit_code == 0
    verdict = json.loads((tmp_path / "out" / "metrics.json").read_text())["verdict"]
    assert (verdict["status"], verdict["doubts"]) == ("leak", ["unlike-references"])
    assert command("gate", tmp_path / "out", "--max-tpr", 0.1, "--at-fpr", 0.01).exit_code == 3
    allowed = ("--max-tpr", 0.9999, "--at-fpr", 0.01)
    assert command("gate", tmp_path / "out", *allowed).exit_code == 2, "what stays below the limit proves nothing"
    assert command("gate", tmp_path / "out", *allowed, "--accept", "unlike-references").exit_code == 0


def test_an_invalid_audit_neither_passes_nor_fails(signals_file: Write, command: Run, tmp_path: Path) -> None:
    with np.load(signals_file(points=2_000, shift=4.0)) as arrays:
        members = arrays["membership"].copy()
        members[:2] = ~members[:2]
        np.savez(tmp_path / "swapped.npz", **(dict(arrays) | {"membership": members}))
    assert command("score", tmp_path / "swapped.npz", "-o", tmp_path / "out", "--quiet").exit_code == 0
    for limit in (0.1, 0.99):
        result = command("gate", tmp_path / "out", "--max-tpr", limit, "--at-fpr", 0.01)
        assert result.exit_code == 2
        assert "members-swapped" in result.stdout
        assert "--accept" not in result.stdout


def test_an_audit_with_few_references_is_inconclusive(run: Callable[..., Path], command: Run) -> None:
    folder = run(points=2_000, shift=0.0, models=4)
    verdict = json.loads((folder / "metrics.json").read_text())["verdict"]
    assert verdict["status"] == "inconclusive"
    assert "few-references" in verdict["doubts"]
    assert command("gate", folder, *UNLIKE).exit_code == 2


def test_a_small_audit_is_inconclusive_but_the_limit_decides(run: Callable[..., Path], command: Run) -> None:
    """What the audit alone cannot exclude may be far below the limit that was agreed on."""
    folder = run(points=440, shift=0.0)
    verdict = json.loads((folder / "metrics.json").read_text())["verdict"]
    assert (verdict["status"], verdict["doubts"]) == ("inconclusive", ["wide-interval"])
    assert command("gate", folder, "--max-tpr", 0.3, "--at-fpr", 0.01).exit_code == 0
    assert command("gate", folder, "--max-tpr", 0.02, "--at-fpr", 0.01).exit_code == 3


def test_an_attack_without_references_alone_excludes_nothing(run: Callable[..., Path], command: Run) -> None:
    folder = run("--attack", "attack-p", points=2_000, shift=0.0)
    assert command("gate", folder, *UNLIKE).exit_code == 2
    assert command("gate", folder, *UNLIKE, "--accept", "weak-attacks").exit_code == 0
    several = run(points=2_000, shift=0.0)
    assert command("gate", several, *UNLIKE).exit_code == 0
    assert command("gate", several, *UNLIKE, "--attack", "attack-p").exit_code == 2


def test_offline_attacks_with_fixed_constants_alone_exclude_nothing(run: Callable[..., Path], command: Run) -> None:
    offline = ("--mode", "offline", "--attack", "pl-mia")
    folder = run(*offline, points=2_000, shift=0.0)
    verdict = json.loads((folder / "metrics.json").read_text())["verdict"]
    assert (verdict["status"], verdict["doubts"]) == ("inconclusive", ["fixed-member-law"])
    assert command("gate", folder, *UNLIKE).exit_code == 2
    assert command("gate", folder, *UNLIKE, "--accept", "fixed-member-law").exit_code == 0
    leaking = json.loads((run(*offline, points=2_000, shift=1.0) / "metrics.json").read_text())["verdict"]
    assert (leaking["status"], leaking["doubts"]) == ("leak", ["fixed-member-law"])
    several = run(*offline, "--attack", "rmia", points=2_000, shift=0.0)
    assert command("gate", several, *UNLIKE).exit_code == 0
    assert command("gate", several, *UNLIKE, "--attack", "pl-mia").exit_code == 2


def test_a_run_without_the_strongest_attack_does_not_pass(
    signals_file: Write, simulate: Callable[..., dict[str, Any]], command: Run, tmp_path: Path
) -> None:
    """At one record no reference is OUT, so that most attacks are left out."""
    membership = simulate(0, points=2_000, shift=0.0)["membership"].copy()
    membership[1:, 17] = True
    file = signals_file(points=2_000, shift=0.0, replace={"membership": membership})
    assert command("score", file, "-o", tmp_path / "out", "--quiet").exit_code == 0
    verdict = json.loads((tmp_path / "out" / "metrics.json").read_text())["verdict"]
    assert "attacks-left-out" in verdict["doubts"]
    assert command("gate", tmp_path / "out", *UNLIKE).exit_code == 2


def test_of_attacks_that_tie_gate_and_compare_name_the_one_of_the_verdict(
    run: Callable[..., Path], command: Run
) -> None:
    """lira and pl-mia rank points alike, so their rates are the same."""
    folder = run("--attack", "lira", "--attack", "pl-mia", points=2_000, shift=2.0)
    verdict = json.loads((folder / "metrics.json").read_text())["verdict"]["attack"]
    gate = command("gate", folder, "--max-tpr", 0.9, "--at-fpr", 0.01, "--json")
    assert json.loads(gate.stdout)["worst"]["attack"] == verdict == "pl-mia"
    compared = command("compare", folder, folder, "--names", "a,b", "--json")
    assert compared.exit_code == 0, compared.output
    assert " in b pl-mia finds " in json.loads(compared.stdout)["pairs"][0]["text"]


def test_one_attack_may_be_named_and_quiet_prints_nothing(run: Callable[..., Path], command: Run) -> None:
    folder = run(points=1_000)
    result = command("gate", folder, "--max-tpr", 0.9999, "--at-fpr", 0.01, "--attack", "rmia", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--max-tpr", 2, "--at-fpr", 0.01), "--max-tpr is 2.0, but must lie between 0 and 1"),
        (("--max-tpr", 0.01, "--at-fpr", 0.01), "must be above --at-fpr, 0.01"),
        (("--max-tpr", 0.5, "--at-fpr", 0.01, "--attack", "lirra"), "'lirra' is not among the results"),
        (("--max-tpr", 0.5, "--at-fpr", 0.01, "--accept", "unlike-reference"), "did you mean 'unlike-references'?"),
    ],
)
def test_what_cannot_be_decided_is_an_error_and_not_a_pass(
    run: Callable[..., Path], command: Run, options: tuple[Any, ...], sentence: str
) -> None:
    result = command("gate", run(points=1_000), *options)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_with_too_few_non_members_the_gate_is_undecided_and_repeats_the_verdict(
    run: Callable[..., Path], command: Run, tmp_path: Path
) -> None:
    folder, path = run(points=200, shift=4.0), tmp_path / "gate.xml"
    options = ("--max-tpr", 0.02, "--at-fpr", 0.001, "--junit", path)
    result = command("gate", folder, *options)
    assert result.exit_code == 2
    assert result.stdout.startswith("UNDECIDED: ")
    assert "needs 1,000 evaluated non-members" in result.stdout
    headline = json.loads((folder / "metrics.json").read_text())["verdict"]["headline"]
    assert headline == "A leak was shown (severe)"
    assert headline[1:] in result.stdout
    _, entry = junit(path)
    assert (entry.tag, entry.get("message")) == ("error", result.stdout.strip())
    shown = json.loads(command("gate", folder, *options, "--json", "--accept", "few-non-members").stdout)
    assert (shown["outcome"], shown["worst"], shown["doubts"]) == ("undecided", None, ["few-non-members"])


@pytest.mark.parametrize("path", ["/", "."])
def test_a_report_cannot_replace_a_folder(run: Callable[..., Path], command: Run, path: str) -> None:
    result = command("gate", run(points=200), "--max-tpr", 0.9, "--at-fpr", 0.1, "--junit", path)
    assert result.exit_code == 2
    assert result.stderr == f"plmia: {path} cannot be written (Is a directory): check its folder\n"


def test_an_invalid_audit_is_said_before_too_few_non_members(signals_file: Write, command: Run, tmp_path: Path) -> None:
    with np.load(signals_file(points=400, shift=4.0)) as arrays:
        members = arrays["membership"].copy()
        members[:2] = ~members[:2]
        np.savez(tmp_path / "swapped.npz", **(dict(arrays) | {"membership": members}))
    assert command("score", tmp_path / "swapped.npz", "-o", tmp_path / "out", "--quiet").exit_code == 0
    options = ("--max-tpr", 0.1, "--at-fpr", 0.001, "--junit", tmp_path / "gate.xml")
    result = command("gate", tmp_path / "out", *options)
    assert result.exit_code == 2
    assert "members-swapped" in result.stdout
    assert "members-swapped" in str(junit(tmp_path / "gate.xml")[1].get("message"))


def test_the_folder_of_the_test_report_is_created(run: Callable[..., Path], command: Run, tmp_path: Path) -> None:
    path = tmp_path / "reports" / "ci" / "gate.xml"
    result = command("gate", run(points=1_000), "--max-tpr", 0.9999, "--at-fpr", 0.01, "--junit", path)
    assert result.exit_code == 0, result.output
    assert junit(path)[1].tag == "system-out"


def test_a_folder_without_results_or_with_damaged_ones_is_named(
    run: Callable[..., Path], command: Run, tmp_path: Path
) -> None:
    limits = ("--max-tpr", 0.5, "--at-fpr", 0.01)
    missing = command("gate", tmp_path / "nowhere", *limits)
    assert missing.exit_code == 2
    assert "has no results" in missing.stderr
    (tmp_path / "audit" / "signals").mkdir(parents=True)
    (tmp_path / "audit" / "signals" / "store.json").write_text("{}")
    unfinished = command("gate", tmp_path / "audit", *limits)
    assert (unfinished.exit_code, "run the same command again" in unfinished.stderr) == (2, True)
    folder = run(points=500)
    (folder / "metrics.json").write_text("{", encoding="utf-8")
    damaged = command("gate", folder, *limits)
    assert damaged.exit_code == 2
    assert "damaged" in damaged.stderr
    folder = run(points=500)
    (folder / "scores.npz").write_bytes((folder / "scores.npz").read_bytes()[:-300])
    cut = command("gate", folder, *limits)
    assert cut.exit_code == 2
    assert "damaged" in cut.stderr


def junit(path: Path) -> tuple[ElementTree.Element, ElementTree.Element]:
    """Counts of a test report, and what its only test says."""
    (suite,) = root = ElementTree.parse(path).getroot()
    assert root.attrib.items() <= suite.attrib.items()
    (test,) = suite
    (entry,) = test
    return suite, entry


def test_the_outcome_is_a_test_report_too(run: Callable[..., Path], command: Run, tmp_path: Path) -> None:
    folder, path = run(points=2_000, shift=1.0), tmp_path / "gate.xml"
    limits = {"system-out": 0.9, "failure": 0.011, "error": 0.001}
    for kind, limit in limits.items():
        done = command("gate", folder, "--max-tpr", limit, "--at-fpr", 0.01, "--junit", path)
        suite, entry = junit(path)
        assert done.exit_code == {"system-out": 0, "failure": 3, "error": 2}[kind]
        assert entry.tag == kind
        assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == (
            "1",
            str(int(kind == "failure")),
            str(int(kind == "error")),
        )
        assert str(entry.text).splitlines()[0] in done.output
        assert entry.get("message") == (None if kind == "system-out" else str(entry.text).splitlines()[0])


def test_a_missing_run_replaces_the_report_of_the_last_one(command: Run, tmp_path: Path) -> None:
    path = tmp_path / "gate.xml"
    path.write_text("passed last time")
    options = ("--max-tpr", 0.1, "--at-fpr", 0.01, "--junit", path)
    assert command("gate", tmp_path / "none", *options).exit_code == 2
    assert junit(path)[1].tag == "error"
    (tmp_path / "file").write_text("no folder")
    nowhere = command("gate", tmp_path / "none", *options[:-1], tmp_path / "file" / "gate.xml")
    assert nowhere.exit_code == 2
    assert "gate.xml" in nowhere.output


def test_characters_that_xml_cannot_hold_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "gate.xml").write_bytes(gate.junit("fail", "a\x00b <&> \ud800 é", ["second\x1b line"]))
    assert junit(tmp_path / "gate.xml")[1].text == "a\ufffdb <&> \ufffd é\nsecond\ufffd line"


def test_people_with_one_record_each_are_records(simulate: Callable[..., Any], command: Run, tmp_path: Path) -> None:
    arrays = simulate(0, points=2_000, shift=0.0)
    for name, groups, code in (("single", np.arange(2_000), 0), ("several", np.arange(2_000) // 2, 2)):
        arrays["membership"] = arrays["membership"][:, groups - groups % 2]
        np.savez(tmp_path / f"{name}.npz", **arrays, groups=groups)
        scored = command("score", tmp_path / f"{name}.npz", "-o", tmp_path / name, "--unit", "record", "--quiet")
        assert scored.exit_code == 0, scored.output
        options = ("--max-tpr", 0.2, "--at-fpr", 0.01, "--unit", "group", "--accept", "split-groups")
        decided = command("gate", tmp_path / name, *options)
        assert decided.exit_code == code, decided.output
