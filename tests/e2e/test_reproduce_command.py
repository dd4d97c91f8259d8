"""`plmia reproduce`, as a user meets it; and the committed results of the small signals, run again."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

from plmia.auditing import reproduce as module

Run = Callable[..., click.testing.Result]

# Those that read each of the small signals, online and offline; `make reproduce-quick` runs all of them.
QUICK = ("table-1", "table-4", "table-5", "figure-3", "table-6", "table-s4", "figure-s2")


@pytest.fixture(scope="module")
def paper(repository: Path) -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads((repository / "experiments" / "paper.json").read_text(encoding="utf-8"))
    return numbers


def test_list_names_all_of_them(command: Run, paper: dict[str, Any]) -> None:
    result = command("reproduce", "--list")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(paper)
    assert len(lines) == 18


@pytest.mark.parametrize("item", QUICK)
def test_the_small_signals_give_the_committed_results(
    item: str, command: Run, tmp_path: Path, repository: Path
) -> None:
    assert command("reproduce", item, "--quick", "--quiet", "-o", tmp_path).exit_code == 0
    compare = import_module("experiments.compare")
    committed = repository / "experiments" / "results" / "quick" / f"{item}.json"
    found, expected = (json.loads(p.read_text(encoding="utf-8")) for p in (tmp_path / f"{item}.json", committed))
    assert not list(compare.differences(found, expected))


def test_files_and_output(command: Run, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        result = command("reproduce", "table-s5", "--targets", 2, "--references", 16, "-o", tmp_path / "new" / "folder")
    finally:
        os.umask(before)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "new" / "folder"
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in (folder, folder.parent)} == {"0o700"}
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.iterdir()} == {"0o600"}
    page = (folder / "table-s5.md").read_text(encoding="utf-8")
    figure = "![Multi-layer perceptron](table-s5.svg)\n\n"
    assert figure in page
    assert page.replace(figure, "").strip() in result.stdout, "a terminal shows no figures"
    assert (folder / "table-s5.svg").read_text(encoding="utf-8").startswith("<svg")
    contents = json.loads((folder / "table-s5.json").read_text(encoding="utf-8"))
    assert [run["data"] for run in contents["run"]] == ["Location-30", "Adult", "Covertype", "Fashion-MNIST"]
    for run in contents["run"]:
        assert (run["references"], len(run["targets"]), run["seed"]) == (16, 2, 0)
    assert contents["command"] == "plmia reproduce table-s5 --references 16 --targets 2"
    assert "not run here" in result.stdout, "Purchase-100 is not at hand"
    assert "16 references, 2 targets, seed 0" in result.stdout


def test_json_and_repetition(command: Run, tmp_path: Path) -> None:
    options = ("figure-s2", "--quick", "--json", "-o", tmp_path)
    first, second = (command("reproduce", *options).stdout for _ in range(2))
    assert first == second
    assert json.loads(first)["item"] == "figure-s2"
    other = command("reproduce", *options, "--seed", 1).stdout
    assert json.loads(other)["rows"] != json.loads(first)["rows"]


def test_signals_of_ones_own(command: Run, signals_file: Callable[..., Path], tmp_path: Path) -> None:
    path = signals_file(models=20, points=400, views=2)
    for item in ("table-2", "figure-1", "figure-4", "table-s3", "figure-s1", "table-s1"):
        result = command("reproduce", item, "--signals", path, "--targets", 2, "--quick", "-o", tmp_path / "out")
        assert result.exit_code == 0, result.output
        assert "data of your own" in result.stdout or item.startswith(("figure", "table-s3"))
        contents = json.loads((tmp_path / "out" / f"{item}.json").read_text(encoding="utf-8"))
        short = f"{path.parent.name}/{path.stem}"
        assert contents["command"] == f"plmia reproduce {item} --targets 2 --signals {short} --quick"


def test_models_trained_for_one_experiment_serve_the_next(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightgbm")
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    np.savez(tmp_path / "small.npz", X=rng.normal(y[:, None], 1.5, (240, 4)).astype(np.float32), y=y)
    monkeypatch.setattr("experiments.setting.RUNS", tmp_path / "runs")
    recipes = {f"location_gbdt_{depth}": f"gbdt?rounds=4&depth={depth}" for depth in (3, 5, 7)}
    monkeypatch.setattr("experiments.setting.RECIPES", recipes)
    options = ("--data", tmp_path / "small.npz", "--references", 4, "--targets", 2)
    first = command("reproduce", "table-6", *options, "--quiet", "-o", tmp_path / "out")
    assert first.exit_code == 0, first.output
    records = sorted((tmp_path / "runs").rglob("records/*.json"))
    assert len(records) == 3 * 7, "a target, and two pairs beside that of a further target, at three depths"
    times = [record.stat().st_mtime_ns for record in records]
    second = command("reproduce", "figure-5", *options, "--quiet", "-o", tmp_path / "out")
    assert second.exit_code == 0, second.output
    one = ("--recipe", recipes["location_gbdt_5"], "--json")
    third = command("reproduce", "table-6", *options, *one, "--quiet", "-o", tmp_path / "out")
    assert third.exit_code == 0, third.output
    rows = json.loads(third.stdout)["rows"]
    assert {row["keys"][1] for row in rows if row["ours"] is not None} == {"5"}, "a recipe is of one depth"
    assert sorted((tmp_path / "runs").rglob("records/*.json")) == records
    assert [record.stat().st_mtime_ns for record in records] == times


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "name a table or figure"),
        (("table-9",), "the paper has no 'table-9'"),
        (("table-2", "--recipe", "mlp"), "--data"),
        (("table-2", "--references", "3"), "use 4"),
        (("table-2", "--data", "a.npz", "--signals", "b.npz"), "give one of the two"),
        (("table-2", "--signals", "nowhere"), "nowhere does not exist"),
        (("table-2", "--signals", "."), "there are no signals 'cifar10_wrn'"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], sentence: str, command: Run, tmp_path: Path) -> None:
    result = command("reproduce", *arguments, "-o", tmp_path)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", ["compare", "cut_signals", "pilot", "whole"])
def test_a_script_without_arguments_says_what_it_needs(script: str, repository: Path) -> None:
    command = [sys.executable, "-m", f"experiments.{script}"]
    result = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f": python -m experiments.{script} " in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_away_from_a_checkout_one_sentence_says_so(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NEEDED", ("no_such_file",))
    result = command("reproduce", "--list")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "checkout" in result.stderr
