"""`plmia plan`, as a user meets it: from a file, a store and an audit's folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

from plmia.data.designs import MembershipDesign, complementary_pairs
from plmia.signals.store import SignalStore

Run = Callable[..., click.testing.Result]
Write = Callable[..., Path]
SLICE = "examples/cifar10_cnn_slice.npz"


def _ok(result: click.testing.Result) -> str:
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


@pytest.fixture
def audit(tmp_path: Path, simulate: Callable[..., Any]) -> Path:
    """Folder of an audit whose store says that a model took 6 seconds (one of them, a minute)."""
    arrays = simulate(0, models=34, points=1500, views=2)
    design = MembershipDesign(arrays["membership"])
    store = SignalStore.create(tmp_path / "run" / "signals", {"data": "abc"}, design, ["identity", "mirror"])
    provenance = [{"seconds": 60.0 if model == 7 else 6.0} for model in range(34)]
    store.append(range(34), arrays["signals"], provenance)
    return tmp_path / "run"


def test_the_tables_and_the_plan_in_words(repository: Path, command: Run) -> None:
    arguments = ("plan", repository / SLICE, "--fpr", "0.01", "--budget", "64")
    lines = _ok(command(*arguments)).splitlines()
    assert re.match(
        r"With 64 models: 62 references \(.* 32 and 30 more\) and 2 views, for a TPR at 1 % FPR of about [\d.]+ %",
        lines[0],
    )
    assert lines[1] == "pl-mia-eb on target 0: TPR@1% in % by references and views (~ extrapolated)"
    assert lines[2].split() == ["references", "1", "view", "2", "views"]
    assert [line.split()[0] for line in lines[3:10]] == ["4", "8", "16", "32", "64", "128", "256"]
    assert "~" not in lines[6]
    assert lines[7].count("~") == 2
    words = [line for line in lines if line.startswith("- ")]
    assert "resolve a false-positive rate of 1 %" in words[-1]
    assert not any(line.startswith(("population", "member queries")) for line in lines)
    everything = _ok(command(*arguments, "--verbose")).splitlines()
    assert any(line.split()[:2] == ["population", "AUC"] for line in everything)
    assert any(line.startswith("member queries") for line in everything)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Signals of 1,400 people with up to four records each, all of which leak a little."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(1400), rng.integers(1, 5, 1400))
    design = complementary_pairs(len(groups), 9, rng, groups)
    values = 2 * rng.normal(size=len(groups)) + rng.normal(size=design.matrix.shape) + 1.2 * design.matrix
    np.savez(tmp_path / "people.npz", signals=values, membership=design.matrix, groups=groups)
    return tmp_path / "people.npz"


def test_people_are_planned_for_as_they_are_judged(people: Path, command: Run, tmp_path: Path) -> None:
    for unit, options in (("group", ()), ("group", ("--unit", "group")), ("record", ("--unit", "record"))):
        folder = tmp_path / "-".join(("out", *options))
        found = json.loads(_ok(command("plan", people, "--fpr", "0.01", "--json", "--quiet", *options)))
        assert found["unit"] == unit
        assert command("score", people, "-o", folder, "--attack", "pl-mia-eb", *options).exit_code == 0
        scored = json.loads((folder / "metrics.json").read_text())["attacks"]["pl-mia-eb"]
        auc, tpr = found["curves"]["1"]
        assert auc["mean"][-1] == pytest.approx(scored["auc"]["mean"])
        assert tpr["mean"][-1] == pytest.approx(scored["tpr"]["0.01"]["mean"])


def test_the_words_say_whether_people_or_records_are_planned_for(people: Path, command: Run) -> None:
    by_people = _ok(command("plan", people, "--fpr", "0.01"))
    assert "TPR@1% of people" in by_people
    assert "--unit record" in by_people.splitlines()[-1]
    by_record = _ok(command("plan", people, "--fpr", "0.01", "--unit", "record"))
    assert "of people" not in by_record
    assert "--unit group" in by_record.splitlines()[-1]


def test_people_need_groups(repository: Path, command: Run) -> None:
    result = command("plan", repository / SLICE, "--unit", "group")
    assert result.exit_code == 2
    assert "groups" in result.stderr
    assert result.stderr.count("\n") == 1


def test_json_holds_the_same(repository: Path, command: Run) -> None:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no JSON")

    arguments = ("plan", repository / SLICE, "--fpr", "0.01", "--budget", "64")
    made = json.loads(_ok(command(*arguments, "--json")), parse_constant=refuse)
    assert (made["attack"], made["target"], made["fpr"], made["budget"]) == ("pl-mia-eb", 0, 0.01, 64.0)
    assert set(made["curves"]) == {"1", "2"}
    assert [curve["metric"] for curve in made["curves"]["2"]] == ["auc", "0.01"]
    assert made["best"] == made["splits"][0]
    first, *others = made["words"]
    lines = _ok(command(*arguments)).splitlines()
    assert [lines[0], *(line for line in lines if line.startswith("- "))] == [first, *(f"- {text}" for text in others)]
    assert _ok(command(*arguments, "--quiet")).splitlines() == [first, *(f"- {text}" for text in others)]


def test_an_audit_tells_what_a_model_costs(audit: Path, command: Run) -> None:
    """Five minutes at 6 seconds a model, of which two views are a part: 50 references with both."""
    made = json.loads(_ok(command("plan", audit, "--fpr", "0.01", "--budget", "5m", "--view-cost", "0.2", "--json")))
    assert made["cost"] == {"model": pytest.approx(5.0), "view": 0.2, "unit": "seconds"}
    assert made["budget"] == 300
    assert {split["views"]: split["affordable"] for split in made["splits"]} == {1: 60, 2: 50}
    assert made["best"]["cost"] == pytest.approx(300)
    assert made["words"][0].startswith("With 5 min: ")
    same = ("--fpr", "0.01", "--json", "--view-cost", "0.2", "--budget")
    assert json.loads(_ok(command("plan", audit / "signals", *same, "300s"))) == made


FULL = {"recipe": "mlp", "widths": [512, 256, 128, 64], "epochs": 50}
SMALL = {"recipe": "mlp", "widths": [64, 32], "epochs": 50}


@pytest.fixture
def pilots(tmp_path: Path, simulate: Callable[..., Any]) -> Callable[..., list[Path]]:
    """Folders of two audits with references of two recipes: 8 s and 2 s per reference, an hour for the target."""

    def make(about: dict[str, Any] | None = None, recipe: dict[str, Any] = SMALL, **cost: float) -> list[Path]:
        kinds = (FULL, {"seconds": 8.0, "operations": 4e12}), (recipe, cost or {"seconds": 2.0, "operations": 5e11})
        folders = []
        for number, (trained, spent) in enumerate(kinds):
            arrays = simulate(0, models=34, points=1500)
            # The same target, and references that are somewhat unlike it.
            arrays["signals"][1:] += np.random.default_rng(1).normal(0, 0.2 * number, (1500, 1)).astype(np.float32)
            made_of = {"data": "abc", "recipe": FULL, "target": "trained"} | ((about or {}) if number else {})
            folder, design = tmp_path / f"run{number}", MembershipDesign(arrays["membership"])
            store = SignalStore.create(folder / "signals", made_of, design, ["identity"])
            target = {"seconds": 3600.0, "operations": 1e18, "recipe": made_of["recipe"]}
            store.append(range(34), arrays["signals"], [target, *[spent | {"recipe": trained}] * 33])
            folders.append(folder)
        return folders

    return make


def test_several_pilots_say_which_references_to_train(pilots: Callable[..., list[Path]], command: Run) -> None:
    arguments = ("plan", *pilots(), "--fpr", "0.01", "--attack", "pl-mia", "--budget")
    lines = _ok(command(*arguments, "4m")).splitlines()
    assert re.match(
        r"With 4 min: \d+ references of mlp(\?widths=64,32)? \(.*\) and 1 view, for a TPR at 1 % FPR", lines[0]
    )
    assert lines[1].endswith("by budget, with the number of references (~ extrapolated)")
    assert lines[2].split() == ["budget", "mlp,", "1", "view", "mlp?widths=64,32,", "1", "view"]
    assert [line.split()[0] for line in lines[3:8]] == ["60", "2", "4", "8", "16"]
    assert "(120)" in lines[5]
    assert lines[9].startswith("- ")
    assert " instead: about " in lines[9]
    verbose = _ok(command(*arguments, "4m", "--verbose")).splitlines()
    assert [line for line in verbose if line.startswith("References of ")] == [
        "References of mlp:",
        "References of mlp?widths=64,32:",
    ]


def test_the_order_of_pilots_does_not_matter_if_the_stores_show_the_standard(
    pilots: Callable[..., list[Path]], command: Run
) -> None:
    folders, options = pilots(), ("--fpr", "0.01", "--attack", "pl-mia", "--json", "--budget", "30")
    made, other = (json.loads(_ok(command("plan", *some, *options))) for some in (folders, folders[::-1]))
    assert made == other
    assert made["best"]["kind"] == "mlp"
    assert [(kind["name"], kind["like_target"]) for kind in made["kinds"]] == [
        ("mlp", True),
        ("mlp?widths=64,32", False),
    ]
    assert made["contrasts"][0]["level"]
    assert "The plan takes the references that were trained like the target." in made["words"][1]


def test_references_that_cannot_clear_the_target_are_named(pilots: Callable[..., list[Path]], command: Run) -> None:
    """The budget pays for trees only, which the stores show to be models of another kind than the target."""
    folders = pilots(recipe={"recipe": "gbdt"}, seconds=1.0)
    for some in (folders, folders[::-1]):
        lines = _ok(command("plan", *some, "--fpr", "0.01", "--attack", "pl-mia", "--budget", "30s", "--quiet"))
        best, caution, other, *_ = lines.splitlines()
        assert best.startswith("With 30 s: 30 references of gbdt (all in the pilot) and 1 view")
        assert caution.startswith("- The references of gbdt have the caution other-kind: ")
        assert "never its absence" in caution
        assert other.startswith("- The budget does not pay for 4 references of mlp")


def test_the_target_does_not_count_and_all_units_agree(pilots: Callable[..., list[Path]], command: Run) -> None:
    """64 references of the first pilot cost 512 s; the second's take a quarter of the time, an eighth of the FLOPs."""
    arguments = ("plan", *pilots(), "--fpr", "0.01", "--attack", "pl-mia", "--json", "--budget")
    made = {text: json.loads(_ok(command(*arguments, text))) for text in ("64", "512s", "2.56e14flop", "256 TFLOP")}
    for text, other in (("64", 256), ("512s", 256), ("2.56e14flop", 512), ("256 TFLOP", 512)):
        affordable = {split["kind"]: split["affordable"] for split in made[text]["splits"]}
        assert affordable == {"mlp": 64, "mlp?widths=64,32": other}
    assert [kind["cost"]["model"] for kind in made["64"]["kinds"]] == [1.0, 0.25]
    assert [kind["cost"]["model"] for kind in made["512s"]["kinds"]] == [8.0, 2.0]
    assert made["64"]["words"][0].startswith("With the cost of 64 references of mlp: ")
    assert made["256 TFLOP"]["words"][0].startswith("With 256 TFLOP: ")


def test_other_data_are_refused(pilots: Callable[..., list[Path]], command: Run) -> None:
    result = command("plan", *pilots(about={"data": "other"}), "--fpr", "0.01")
    assert result.exit_code == 2
    assert "different data" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_another_target_is_refused(pilots: Callable[..., list[Path]], command: Run) -> None:
    result = command("plan", *pilots(about={"recipe": SMALL}), "--fpr", "0.01")
    assert result.exit_code == 2
    assert "attack different models" in result.stderr


def test_unknown_operations_name_the_recipe(pilots: Callable[..., list[Path]], command: Run) -> None:
    folders = pilots(recipe={"recipe": "gbdt", "depth": 3}, seconds=1.0)
    for chosen in (folders, folders[1:]):
        result = command("plan", *chosen, "--fpr", "0.01", "--budget", "1e15flop")
        assert result.exit_code == 2
        assert "unknown for gbdt: give a time" in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_costs_that_are_unknown_and_pilots_given_twice_are_refused(
    pilots: Callable[..., list[Path]], signals_file: Write, command: Run
) -> None:
    first = pilots()[0]
    file = signals_file(models=34, points=1500)
    result = command("plan", first, file, "--fpr", "0.01")
    assert result.exit_code == 2
    assert "signals.npz does not say how long a reference took" in result.stderr
    assert "given twice" in command("plan", first, first, "--fpr", "0.01", "--attack", "rmia").stderr
    small = signals_file(models=34, points=300)
    assert "different data" in command("plan", first, small, "--fpr", "0.01").stderr


def test_options_reach_the_attack(signals_file: Write, command: Run) -> None:
    file = signals_file(models=18, points=1500, views=2)

    def plan(*options: str) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(_ok(command("plan", file, "--fpr", "0.01", "--json", *options)))
        return made

    plain = plan()
    assert plain["budget"] == 32
    assert plan() == plain
    for options in (("--attack", "rmia"), ("--target", "3"), ("--mode", "offline"), ("--seed", "1")):
        assert plan(*options)["curves"] != plain["curves"], options
    assert plan("--view-cost", "10")["best"]["views"] == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--budget", "2h"), "do not tell how long a model takes"),
        (("--budget", "many"), "neither a number of models nor a time"),
        (("--budget", "0"), "a budget of 0 is not above 0"),
        (("--budget", "0s"), "a budget of 0s is not above 0"),
        (("--budget", "-3"), "a budget of -3 is not above 0"),
        (("--budget", "0flop"), "a budget of 0flop is not above 0"),
        (("--budget", "1PFLOPS"), "those of training a model are unknown"),
        (("--budget", "3"), "give at least 4"),
        (("--fpr", "0"), "false-positive rate is"),
        (("--fpr", "nan"), "false-positive rate is"),
        (("--attack", "pl_mia_"), "did you mean 'pl-mia'"),
        (("--target", "99"), "target 99 does not exist"),
    ],
)
def test_bad_input_is_one_sentence(signals_file: Write, command: Run, options: tuple[str, ...], words: str) -> None:
    result = command("plan", signals_file(models=18, points=300), *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert result.stderr.startswith("plmia: ")
    assert len(result.stderr.splitlines()) == 1


def test_what_is_not_there_is_named(tmp_path: Path, command: Run) -> None:
    result = command("plan", tmp_path / "nowhere.npz")
    assert result.exit_code == 2
    assert "nowhere.npz" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_too_few_references_are_named(signals_file: Write, command: Run) -> None:
    result = command("plan", signals_file(models=4), "--attack", "attack-p")
    assert result.exit_code == 2
    assert "4 are needed" in result.stderr


def test_a_store_that_tells_no_seconds_counts_in_models(tmp_path: Path, simulate: Any, command: Run) -> None:
    arrays = simulate(0, models=18, points=300)
    store = SignalStore.create(tmp_path / "s", {"data": "abc"}, MembershipDesign(arrays["membership"]), ["identity"])
    store.append(range(18), np.asarray(arrays["signals"], np.float32), [{} for _ in range(18)])
    assert command("plan", tmp_path / "s", "--budget", "60s").exit_code == 2
    assert json.loads(_ok(command("plan", tmp_path / "s", "--json")))["cost"]["unit"] == "models"
