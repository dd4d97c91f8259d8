"""`plmia report`, as a user meets it: from results to one page, with what is asked for and no more."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click.testing
import numpy as np
import pytest

from plmia.attacks.attack import ATTACKS, Attack
from plmia.data.designs import MembershipDesign
from plmia.evaluation.targets import Setup
from plmia.reporting import Extras, write_report
from plmia.results.folder import run_attacks
from plmia.signals.signals import Signals

Run = Callable[..., click.testing.Result]
Write = Callable[..., Path]

POINTS = 400


@pytest.fixture
def scored(command: Run, signals_file: Write, tmp_path: Path) -> tuple[Path, Path]:
    """Return the output of `plmia score` and the signals it scored."""
    signals = signals_file(0, models=16, points=POINTS)
    folder = tmp_path / "out"
    result = command(
        "score", signals, "-o", folder, "--target", 0, "--target", 1, "--attack", "rmia", "--attack", "lira"
    )
    assert result.exit_code == 0, result.output
    return folder, signals


def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def test_it_writes_the_page_and_the_figures(command: Run, scored: tuple[Path, Path]) -> None:
    folder, signals = scored
    result = command("report", folder, "--signals", signals)
    assert result.exit_code == 0, result.output
    verdict = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["verdict"]
    words = verdict["text"].removeprefix(f"{verdict['headline']}: ")[1:40].replace(" %", "\u00a0%")
    body = page(folder).partition("<body>")[2].partition("<script")[0]
    assert words in body
    assert verdict["headline"] in body
    assert f"{verdict['headline']}: " not in body
    first, *_, warning, last = result.stdout.splitlines()
    assert (first, last) == (verdict["text"], str(folder / "report.html"))
    assert "name members" in warning
    lines = command("report", folder, "--signals", signals, "--verbose").stdout.splitlines()
    assert verdict["text"] in lines
    assert {"rmia", verdict["attack"]} <= {line.split(" ")[0] for line in lines}
    assert lines[-1].startswith(str(folder / "report.html"))
    names = {path.stem for path in (folder / "figures").glob("*.svg")}
    assert {"roc", "tpr", "scores", "classes", "fpr", "p-values", "record-1"} <= names
    assert names == {path.stem for path in (folder / "figures").glob("*.json")}
    table = list(csv.DictReader((folder / "figures/attacks.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["attack"], row["target"]) for row in table] == [
        ("rmia", "0"),
        ("rmia", "1"),
        ("lira", "0"),
        ("lira", "1"),
    ]
    attacks = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["attacks"]
    assert float(table[3]["auc"]) == attacks["lira"]["per_target"][1]["auc"]
    assert table[0]["tpr_0.001"] == "", "not resolved by so few"


def test_attack_and_target_can_be_chosen(command: Run, scored: tuple[Path, Path]) -> None:
    folder, _ = scored
    result = command("report", folder, "--attack", "lira", "--target", 1, "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert "Evaluated records by lira on target 1" in page(folder)


def test_contents_are_shown_if_the_user_says_so(command: Run, scored: tuple[Path, Path], tmp_path: Path) -> None:
    folder, _ = scored
    data = tmp_path / "data.npz"
    names = np.array(["cats <script>", "dogs", "birds"])
    np.savez(data, texts=np.array([f"secret {i}" for i in range(POINTS)]), class_names=names)
    assert command("report", folder, "--data", data, "--show-records").exit_code == 0
    assert "secret" in page(folder)
    assert "cats <script>" not in page(folder)
    for options in ((), ("--no-records",), ("--show-records", "--no-records")):
        result = command("report", folder, "--data", data, "--verbose", *options)
        assert result.exit_code == 0, result.output
        assert "These files name members of the training data" in result.stdout
        assert "secret" not in page(folder)
        assert "birds" in page(folder)


def test_rows_of_a_table_are_shown_with_the_names_of_their_features(
    command: Run, scored: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, _ = scored
    data = tmp_path / "data.npz"
    X = np.random.default_rng(0).normal(size=(POINTS, 3))
    np.savez(data, X=X, y=np.arange(POINTS) % 3, feature_names=np.array(["age", "weight", "height"]))
    assert command("report", folder, "--data", data, "--show-records").exit_code == 0
    assert "weight = " in page(folder)
    assert command("report", folder, "--data", data).exit_code == 0
    assert "weight = " not in page(folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--attack", "pl-mia"], "'pl-mia' is not among the results"),
        (["--target", 9], "target 9 is not among the results"),
        (["--data", "nowhere.npz"], "there is no nowhere.npz"),
        (["--signals", "nowhere.npz"], "nowhere.npz"),
    ],
)
def test_bad_input_is_one_sentence(
    command: Run, scored: tuple[Path, Path], arguments: list[object], words: str
) -> None:
    folder, _ = scored
    result = command("report", folder, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (folder / "report.html").exists()


def test_a_folder_without_results_is_named(command: Run, tmp_path: Path) -> None:
    result = command("report", tmp_path)
    assert result.exit_code == 2
    assert f"{tmp_path} has no results" in result.stderr


def test_names_that_are_no_texts_are_refused(command: Run, scored: tuple[Path, Path], tmp_path: Path) -> None:
    folder, _ = scored
    np.savez(tmp_path / "data.npz", texts=np.arange(POINTS))
    result = command("report", folder, "--data", tmp_path / "data.npz")
    assert result.exit_code == 2
    assert "texts of shape (400,)" in result.stderr


def test_an_audit_brings_its_own_signals_and_training(command: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5)).astype(np.float32)
    np.savez(tmp_path / "data.npz", X=X, y=(X[:, 0] + rng.normal(size=300) > 0).astype(int))
    folder = tmp_path / "run"
    arguments = ["--data", tmp_path / "data.npz", "--recipe", "sklearn:DecisionTreeClassifier", "--references", 8]
    assert command("audit", *arguments, "-o", folder, "--workers", 1, "--quiet").exit_code == 0
    result = command("report", folder, "--data", tmp_path / "data.npz")
    assert result.exit_code == 0, result.output
    assert (folder / "figures" / "record-1.svg").exists()
    assert (folder / "figures" / "accuracies.svg").exists()
    assert "DecisionTreeClassifier" in page(folder)
    np.savez(tmp_path / "other.npz", X=X + 1, y=np.arange(300) % 2)
    result = command("report", folder, "--data", tmp_path / "other.npz")
    assert result.exit_code == 2
    assert "digest" in result.stderr


def test_names_that_cannot_be_encoded_cost_no_training(command: Run, tmp_path: Path) -> None:
    """Lone surrogates and control characters in names, and bytes that are no UTF-8 in file names, end in a report."""
    if sys.platform != "linux":
        pytest.skip("other systems have no such file names")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    data, recipe, folder = (tmp_path / os.fsdecode(name) for name in (b"d\xff.npz", b"mine\xff.py", b"run\xff"))
    with data.open("wb") as file:
        names = {"class_names": np.array(["well\ud800", "\x1b[31mill"]), "feature_names": np.array(["age", "weight"])}
        np.savez(file, X=X, y=(X[:, 0] > 0).astype(int), **names)
    recipe.write_text(
        "def train(X, y, seed):\n    return X[y == 1].mean(axis=0) - X[y == 0].mean(axis=0)\n"
        "def query(model, X, y):\n    import numpy as np\n    return np.stack([-X @ model, X @ model], axis=1)\n",
        encoding="utf-8",
    )
    result = command("audit", "--data", data, "--recipe", f"function:{recipe}", "--references", 8, "-o", folder)
    assert result.exit_code == 0, result.output
    assert "2 of 2 class_names" in result.stderr
    notes = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["notes"]
    assert sum("class_names" in str(note) for note in notes) == 1
    assert "well\ufffd" in (folder / "figures" / "classes.svg").read_text(encoding="utf-8")
    result = command("report", folder, "--data", data)
    assert result.exit_code == 0, result.output
    assert "2 of 2 class_names" in result.stderr
    assert "well\ufffd" in page(folder)


def test_fifty_thousand_points_and_nine_attacks_take_seconds_and_few_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    points, models = 50_000, 10
    half = rng.random((models // 2, points)) < 0.5
    membership = np.stack([half, ~half], axis=1).reshape(models, points)
    values = rng.normal(size=(models, points, 1)).astype(np.float32) + membership[:, :, None]
    signals = Signals(values, MembershipDesign(membership), rng.integers(0, 1000, points))
    attacks = list(ATTACKS.values())[:9]
    lira = ATTACKS["lira"]
    attacks += [Attack(f"lira-{k}", lira.statistic, lira.calibration) for k in range(9 - len(attacks))]
    run_attacks(signals, attacks, [0], Setup(), tmp_path)
    texts = [f"record {i} " * 50 for i in range(points)]
    start = time.perf_counter()
    path = write_report(tmp_path, Extras(texts=texts, class_names=[f"class {k}" for k in range(1000)], signals=signals))
    assert time.perf_counter() - start < 10
    assert path.stat().st_size < 6_000_000
    assert (tmp_path / "figures" / "roc.svg").stat().st_size < 200_000
