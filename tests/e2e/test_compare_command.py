"""`plmia compare` as a user meets it: runs before and after a defence, attacks of one run, bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

from plmia.results.comparison import compare_auc

Run = Callable[..., click.testing.Result]
Write = Callable[..., Path]
Score = Callable[..., Path]


@pytest.fixture
def score(signals_file: Write, command: Run, tmp_path: Path) -> Score:
    """Score simulated signals and return the folder: of one seed, targets have the same members."""

    def make(name: str, *options: Any, seed: int = 0, **shape: Any) -> Path:
        file = signals_file(seed, name=f"{name}.npz", **({"points": 1_000} | shape))
        attacks = () if "--attack" in options else ("--attack", "lira", "--attack", "pl-mia")
        result = command("score", file, "-o", tmp_path / name, "--quiet", *attacks, *options)
        assert result.exit_code == 0, result.output
        return tmp_path / name

    return make


def _ok(result: click.testing.Result) -> str:
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def test_a_defence_on_the_same_records_is_seen_in_pairs(score: Score, command: Run) -> None:
    before, after = score("before", shift=3.0), score("after", shift=1.0)
    text = _ok(command("compare", before, after))
    lines = text.splitlines()
    assert lines[1] == "after against before (paired: the same records)"
    assert lines[2].split() == ["attack", "metric", "before", "after", "difference", "p"]
    rows = [line.split()[:2] for line in lines[3:7]]
    assert rows == [["lira", "AUC"], ["lira", "TPR@1%"], ["pl-mia", "AUC"], ["pl-mia", "TPR@1%"]]
    assert all(line.endswith("<0.001") for line in lines[3:7])
    assert lines[7] == "In percent; 95 % intervals, each for itself; p for all 4 tests at once (Holm)."
    assert lines[0].startswith("In after ")
    assert " points fewer (" in lines[0]
    assert ") of the members at 1 % FPR than in before, p < 0.001." in lines[0]
    assert "Attacks shown to find fewer: 2 of 2; more: 0. Shown to have a lower AUC: 2 of 2" in lines[0]
    assert max(map(len, lines[1:7])) <= 100


def test_the_table_and_the_json_show_the_numbers_of_the_two_runs(score: Score, command: Run) -> None:
    before, after = score("before", shift=2.0), score("after", shift=1.5)
    contents = json.loads(_ok(command("compare", before, after, "--json", "--attack", "lira")))
    (pair,) = contents["pairs"]
    auc = pair["rows"][0]
    metrics = [json.loads((folder / "metrics.json").read_text()) for folder in (before, after)]
    means = [m["attacks"]["lira"]["auc"]["mean"] for m in metrics]
    assert [auc["first"]["value"], auc["other"]["value"]] == means
    ends = [m["attacks"]["lira"]["per_target"][0]["auc_interval"] for m in metrics]
    assert [auc["first"]["low"], auc["other"]["high"]] == [ends[0]["low"], ends[1]["high"]]
    with np.load(before / "scores.npz") as a, np.load(after / "scores.npz") as b:
        queries, members = a["queries/0"], a["members/0"]
        twin = compare_auc(b["lira/0/score"][queries], a["lira/0/score"][queries], members[queries])
    assert auc["change"]["p_value"] == twin.p_value
    assert (auc["change"]["low"], auc["change"]["high"]) == (twin.low, twin.high)
    table = _ok(command("compare", before, after, "--attack", "lira")).splitlines()
    change = auc["change"]
    shown = f"{100 * change['difference']:+.1f} ({100 * change['low']:+.1f} to {100 * change['high']:+.1f})"
    assert shown in table[3]
    assert table[0] == pair["text"]


def test_other_records_are_said_to_be_unpaired(score: Score, command: Run) -> None:
    text = _ok(command("compare", score("a", shift=3.0), score("b", seed=1, shift=3.0)))
    assert text.splitlines()[1].startswith("b against a (unpaired: not the same records")
    assert "No difference was shown by the best attack: in b " in text


def test_several_targets_are_paired_by_target(score: Score, command: Run) -> None:
    targets = [part for target in (0, 2, 4, 6) for part in ("--target", target)]
    before, after = score("before", *targets, shift=3.0), score("after", *targets, shift=1.0)
    contents = json.loads(_ok(command("compare", before, after, "--json")))
    assert contents["pairs"][0]["method"] == "paired targets"
    assert contents["runs"][0]["targets"] == [0, 2, 4, 6]


def test_attacks_of_one_run(score: Score, command: Run) -> None:
    folder = score("run", "--attack", "lira", "--attack", "attack-p", "--attack", "pl-mia", shift=4.0, difficulty=4.0)
    lines = _ok(command("compare", folder, "--attack", "lira", "--attack", "attack-p")).splitlines()
    assert lines[1] == "attack-p against lira (paired: the same records)"
    assert lines[2].split() == ["run", "metric", "lira", "attack-p", "difference", "p"]
    assert lines[0].startswith("attack-p finds ")
    assert "points fewer" in lines[0]
    assert lines[0].endswith("of the members at 1 % FPR than lira, p < 0.001.")
    options = [f"--attack={attack}" for attack in ("lira", "attack-p", "pl-mia")]
    three = json.loads(_ok(command("compare", folder, *options, "--json")))
    assert [(pair["first"], pair["other"]) for pair in three["pairs"]] == [("lira", "attack-p"), ("lira", "pl-mia")]


def test_names_and_rates_and_a_file(score: Score, command: Run, tmp_path: Path) -> None:
    runs = [score(name, shift=shift) for name, shift in (("a", 3.0), ("b", 2.0), ("c", 1.0))]
    options = ("--names", "baseline, dropout,dp [x]", "--at-fpr", 0.05, "--at-fpr", 0.02, "-o", tmp_path / "out.json")
    text = _ok(command("compare", *runs, *options))
    assert "dropout against baseline" in text
    assert "dp [x] against baseline" in text
    assert text.splitlines()[3].split()[2:4] == ["baseline", "dropout"]
    assert "TPR@5%" in text
    assert "than in baseline" in text
    contents = json.loads((tmp_path / "out.json").read_text())
    assert contents["fprs"] == [0.05, 0.02]
    assert [run["name"] for run in contents["runs"]] == ["baseline", "dropout", "dp [x]"]
    assert json.loads(_ok(command("compare", *runs, *options, "--json"))) == contents


def test_the_same_input_and_seed_give_the_same_numbers(score: Score, command: Run) -> None:
    runs = (score("a", shift=2.0), score("b", shift=1.7))
    first = _ok(command("compare", *runs, "--json"))
    assert _ok(command("compare", *runs, "--json")) == first
    assert _ok(command("compare", *runs, "--json", "--seed", 1)) != first


def test_five_attacks_are_shown_and_the_others_counted(score: Score, command: Run) -> None:
    names = ("lira", "attack-p", "attack-r", "rmia", "lira-fixed", "pl-mia", "pl-mia-eb")
    options = [word for name in names for word in ("--attack", name)]
    runs = (score("a", *options), score("b", *options, shift=1.0))

    def shown(*options: str) -> list[str]:
        lines = _ok(command("compare", *runs, *options)).splitlines()
        assert ("- 2 more attacks: --verbose shows all." in lines) == (options == ())
        return [line.split()[0] for line in lines if " AUC " in line and line.startswith(names)]

    assert shown() == ["attack-p", "rmia", "lira-fixed", "pl-mia", "pl-mia-eb"]
    assert shown("--verbose") == list(names)


def test_folders_of_one_name_are_told_apart_by_their_paths(score: Score, command: Run, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    runs = (score("a"), score("b"))
    moved = [folder.rename(tmp_path / place / "run") for folder, place in zip(runs, ("x", "y"), strict=True)]
    contents = json.loads(_ok(command("compare", *moved, "--json")))
    assert [run["name"] for run in contents["runs"]] == [str(folder) for folder in moved]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("a",), "one run and 0 attacks were given: give a second run, or two attacks of lira, pl-mia"),
        (("a", "--attack", "lira"), "give a second run, or two attacks of lira, pl-mia"),
        (("a", "a"), "was given twice"),
        (("a", "c"), "the runs have no attack in common (a has lira, pl-mia; c has rmia)"),
        (("a", "c", "--attack", "rmia"), "'rmia' is not among the results in"),
        (("a", "b", "--at-fpr", 0.0001), "an FPR of 0.0001 needs 10,000 evaluated non-members, target 0 of a has"),
        (("a", "b", "--at-fpr", 2), "rate is 2"),
        (("a", "b", "--names", "x"), "1 names were given for 2 runs"),
        (("a", "b", "--names", "x,x"), "two runs have the same name"),
        (("a", "nowhere"), "nowhere has no results"),
        (("a", "b", "--confidence", 95), "confidence is 95.0"),
        (("a", "b", "-o", "no/such/folder.json"), "cannot write no/such/folder.json"),
    ],
)
def test_what_cannot_be_compared_ends_with_a_sentence(
    arguments: tuple[Any, ...], sentence: str, score: Score, command: Run, tmp_path: Path
) -> None:
    made = {"a": score("a"), "b": score("b"), "c": score("c", "--attack", "rmia"), "nowhere": tmp_path / "nowhere"}
    result = command("compare", *(made.get(argument, argument) for argument in arguments))
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_no_run_at_all_is_a_wrong_call(command: Run) -> None:
    result = command("compare")
    assert result.exit_code == 2
    assert "RUN" in result.stderr


def test_a_run_in_doubt_is_named(score: Score, command: Run) -> None:
    before = score("before", "--attack", "rmia", shift=2.0)
    few = score("few", "--attack", "rmia", shift=0.0, models=4)
    lines = command("compare", before, few).stdout.splitlines()
    assert "caution (few-references)" in next(line for line in lines if line.startswith("- few"))
    assert not any(line.startswith("- before") for line in lines)
    runs = {run["name"]: run for run in json.loads(command("compare", before, few, "--json").stdout)["runs"]}
    assert "few-references" in {note["code"] for note in runs["few"]["doubts"]}
    assert runs["before"]["doubts"] == []
