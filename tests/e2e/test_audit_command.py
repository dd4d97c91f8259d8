"""`plmia audit` and `plmia demo` from data to results: resuming, extending, refusing, and what is said on the way."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

import plmia
from plmia.signals.store import SignalStore
from plmia.training.recipes.named import parse_recipe
from plmia.training.train import seed_of

Run = Callable[..., click.testing.Result]
Arrays = dict[str, Any]

COMMAND = [sys.executable, "-c", "from plmia.cli.main import main; main(prog_name='plmia')"]

# The nearest neighbour of each class: members are at distance 0. It notes each model that it trains.
OWN = """
import os, sys, time
from pathlib import Path
import numpy as np

HERE = Path(__file__)

def train(X, y, seed):
    with HERE.with_suffix(".log").open("a") as log:
        log.write(f"{seed}\\n")
    action = HERE.with_suffix(".action")
    if action.exists():
        exec(action.read_text())
    return X, y

def query(model, X, y):
    points, labels = model
    gaps = np.linalg.norm(X[:, None].astype(float) - points[None], axis=2)
    return np.stack([-9 * gaps[:, labels == c].min(axis=1) for c in range(2)], axis=1)
"""
NAN_AT_3_AND_17 = """
def query(model, X, y):
    answers = answer(model, X, y)
    answers[[3, 17], 0] = np.nan
    return answers
"""
# What a whole audit leaves in its folder.
WHOLE = ["figures", "metrics.json", "records.csv", "report.html", "scores.npz", "signals", "trainings.csv"]


def arrays_of(seed: int = 0, n: int = 120) -> Arrays:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    return {"X": rng.normal(0.3 * y[:, None], 1.0, (n, 6)).astype(np.float32), "y": y}


@pytest.fixture
def audit(command: Run, tmp_path: Path) -> Callable[..., click.testing.Result]:
    """Audit ``tmp_path/data.npz`` with the user's own functions, unless options say otherwise."""
    np.savez(tmp_path / "data.npz", **arrays_of())
    (tmp_path / "own.py").write_text(OWN)

    def run(*options: object, references: int = 4, folder: str = "run", data: Arrays | None = None) -> Any:
        if data is not None:
            np.savez(tmp_path / "data.npz", **data)
        given = [str(option) for option in options]
        recipe = [] if "--recipe" in given else ["--recipe", f"function:{tmp_path / 'own.py'}"]
        attack = [] if "--attack" in given else ["--attack", "rmia"]
        where = ["--data", tmp_path / "data.npz", "-o", tmp_path / folder]
        return command("audit", *where, "--references", references, "--workers", 1, *recipe, *attack, *given)

    return run


def log_of(tmp_path: Path) -> list[int]:
    """Seeds of the models that were trained so far."""
    log = tmp_path / "own.log"
    return [int(line) for line in log.read_text().splitlines()] if log.exists() else []


def seeds_of(*models: int) -> list[int]:
    return [seed_of(0, model, 0) for model in models]


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def sentence(result: click.testing.Result) -> str:
    """The one line on standard error of a refusal."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    *progress, said = result.stderr.splitlines(keepends=True)
    # Work that takes more than ten seconds, as on a busy machine, shows its progress.
    assert all(re.search(r"^(?!plmia: ).*: \d+ %", line) for line in progress)
    assert said.startswith("plmia: ")
    return said


# Files that a recipe reads ------------------------------------------------------------------------------------------

READS = (
    OWN.replace("def train", "files = ['rows.npy']\nROWS = np.load(HERE.with_name('rows.npy'))\n\ndef train")
    .replace("return X, y", "return ROWS[X[:, 0]], y")
    .replace("points, labels = model", "points, labels = model\n    X = ROWS[X[:, 0]]")
)


def test_a_changed_file_of_a_recipe_is_another_audit(audit: Run, tmp_path: Path) -> None:
    rows, numbers = arrays_of()["X"], {"X": np.arange(120)[:, None], "y": np.arange(120) % 2}
    np.save(tmp_path / "rows.npy", rows)
    (tmp_path / "own.py").write_text(READS)
    assert audit(data=numbers).exit_code == 0
    assert len(log_of(tmp_path)) == 5
    assert "rows.npy" not in (tmp_path / "run/metrics.json").read_text().partition('"notes"')[2]
    before = contents(tmp_path / "run")
    np.save(tmp_path / "rows.npy", rows + np.eye(120, 6, dtype=np.float32))
    assert "the contents of rows.npy changed" in sentence(audit())
    assert contents(tmp_path / "run") == before
    np.save(tmp_path / "rows.npy", rows)
    assert audit().exit_code == 0
    assert len(log_of(tmp_path)) == 5
    # One that is declared from now on is another audit, too, and one that is gone is named before any model.
    (tmp_path / "own.py").write_text(READS.replace("['rows.npy']", "['rows.npy', 'own.txt']"))
    assert "own.txt" in sentence(audit(folder="other"))
    assert not (tmp_path / "other").exists()
    (tmp_path / "own.txt").write_text("")
    assert "own.txt" in sentence(audit())


def test_a_file_that_is_read_and_not_declared_is_noted(audit: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", arrays_of()["X"])
    (tmp_path / "own.py").write_text(READS.replace("files = ['rows.npy']", ""))
    result = audit(data={"X": np.arange(120)[:, None], "y": np.arange(120) % 2})
    assert result.exit_code == 0
    notes = json.loads((tmp_path / "run/metrics.json").read_text())["notes"]
    (note,) = (note for note in map(str, notes) if "declare" in note)
    assert "rows.npy" in note
    assert str(tmp_path) not in note


# Arrays that nothing reads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["group", "group_ids", "Groups", "grops", "patient_group"])
def test_groups_by_another_name_are_refused(name: str, audit: Run, tmp_path: Path) -> None:
    said = sentence(audit(data={**arrays_of(), name: np.arange(120) // 2}))
    assert f"data.npz holds {name!r}, which is not known, but no 'groups'" in said
    assert not (tmp_path / "run").exists()


def test_arrays_that_are_not_used_are_noted(audit: Run, tmp_path: Path) -> None:
    known = {"groups": np.arange(120) // 2, "class_names": np.array(["no", "yes"])}
    extra = {"patient": np.arange(120), "feature_name": np.arange(6), "age_group": np.arange(120)}
    result = audit("--verbose", data={**arrays_of(), **known, **extra})
    assert result.exit_code == 0
    found = json.loads((tmp_path / "run/metrics.json").read_text())["notes"]
    notes = [note["text"] for note in found if note["code"] == "unused-arrays"]
    assert [note.partition(" is not used; known are X, y, groups, ")[0] for note in notes] == [
        f"Array {name!r} of data.npz" for name in extra
    ]
    assert "'groups'" in notes[0]
    assert "'feature_names'" in notes[1]
    for note in notes:
        assert f"plmia: {note}" in result.stderr
        assert f"info (unused-arrays): {note}" in result.stdout


# What was audited ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (None, "function:own.py"),
        ("sklearn:GaussianNB?var_smoothing=0.5", "sklearn:GaussianNB(var_smoothing=0.5)"),
        ("gbdt?depth=2&rounds=3", "gbdt?rounds=3&depth=2"),
    ],
)
def test_results_say_which_recipe_was_audited(recipe: str | None, told: str, audit: Run, tmp_path: Path) -> None:
    assert audit("--quiet", "--attack", "attack-r", *(["--recipe", recipe] if recipe else [])).exit_code == 0
    assert json.loads((tmp_path / "run/metrics.json").read_text())["about"]["recipe"] == told
    assert told in (tmp_path / "run/report.html").read_text().replace("&amp;", "&")


# Two recipes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needs", "others", "told"),
    [
        ("sklearn", "sklearn:LogisticRegression?C=10", "sklearn:LogisticRegression(C=10)"),
        ("lightgbm", "gbdt?rounds=3", "gbdt?rounds=3"),
        ("torch", "mlp?widths=4&epochs=1&device=cpu", "mlp?widths=4&epochs=1&device=cpu"),
    ],
)
def test_references_of_a_network_by_another_recipe(
    needs: str, others: str, told: str, audit: Run, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip(needs)
    target = "mlp?widths=16&epochs=2&device=cpu"
    options = ["--recipe", target, "--references-recipe", others, "--attack", "pl-mia-eb"]
    result = audit(*options)
    assert result.exit_code == 0, result.output
    assert f"target: {target}; references: {told}" in result.stdout.splitlines()
    about = json.loads((tmp_path / "run/metrics.json").read_text())["about"]
    assert (about["recipe"], about["reference_recipe"]) == (target, told)
    assert about["accuracy"]["target"] != about["accuracy"]["references"]
    before = contents(tmp_path / "run/signals")
    assert audit("--quiet", *options).exit_code == 0
    assert contents(tmp_path / "run/signals") == before
    assert "references: recipe" in sentence(audit("--recipe", target))


def test_only_the_target_is_the_users_own_model(audit: Run, tmp_path: Path) -> None:
    assert audit("--quiet", "--references-recipe", "sklearn:GaussianNB").exit_code == 0
    assert log_of(tmp_path) == seeds_of(0)
    assert "8 trainings" in sentence(audit("--references-recipe", "sklearn:GaussianNB", "--trainings", 8))
    assert "--keep-models" in sentence(audit("--quiet", "--references-recipe", "sklearn:GaussianNB", "--keep-models"))
    assert "no recipe 'trees'" in sentence(audit("--references-recipe", "trees"))


# From data to results ------------------------------------------------------------------------------------------------


def test_texts_of_the_data_are_shown_on_request_and_names_always(audit: Run, tmp_path: Path) -> None:
    texts = np.array([f"note {i} of </script>" for i in range(120)])
    data = arrays_of() | {"texts": texts, "class_names": np.array(["well", "ill & weary"])}
    assert audit("--show-records", data=data).exit_code == 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "of </script>" not in page
    assert "note 1" in page
    assert "weary" in page
    for options in ((), ("--no-records",)):
        assert audit(*options, folder="run", data=data).exit_code == 0
        page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
        assert "note 1" not in page
        assert "weary" in page
    wrong = audit(data=data | {"class_names": np.array(["well"])}, folder="other")
    assert "class_names" in sentence(wrong)


def test_of_each_group_one_row_is_evaluated_also_when_the_signals_are_scored_again(
    audit: Run, command: Run, tmp_path: Path
) -> None:
    data = arrays_of() | {"groups": np.arange(120) // 3}
    result = audit("--unit", "record", data=data, references=8)
    assert result.exit_code == 0, result.output
    assert "40 groups" in result.stdout
    one, out = ("--unit", "record"), tmp_path / "out"
    again = command("score", tmp_path / "run" / "signals", "-o", out, "--attack", "rmia", *one)
    assert again.exit_code == 0, again.output
    for folder in ("run", "out"):
        with np.load(tmp_path / folder / "scores.npz") as scores:
            evaluated = np.concatenate([scores["queries/0"], scores["population/0"]])
            members = scores["members/0"]
        assert sorted(data["groups"][evaluated]) == list(range(40))
        header, *lines = (tmp_path / folder / "records.csv").read_text().splitlines()
        assert header == "index,label,score,p,q,rank,member"
        found = [tuple(int(line.split(",")[i]) for i in (0, -1)) for line in lines]
        assert found == [(index, members[index]) for index, _ in found]


def test_people_are_judged_by_all_of_their_records(audit: Run, command: Run, tmp_path: Path) -> None:
    """With groups, every array of the results has one value per person, in people.csv with the number of records."""
    data = arrays_of() | {"groups": np.arange(120) // 3, "ward": np.repeat(["a", "b", "c", "d"], 30)}
    result = audit("--by", "ward", data=data, references=8)
    assert result.exit_code == 0, result.output
    assert "40 people, 120 records" in result.stdout
    again = command(
        "score",
        tmp_path / "run",
        "-o",
        tmp_path / "out",
        "--by",
        "ward",
        "--data",
        tmp_path / "data.npz",
        "--attack",
        "rmia",
    )
    assert again.exit_code == 0, again.output
    for folder in ("run", "out"):
        metrics = json.loads((tmp_path / folder / "metrics.json").read_text())
        assert metrics["about"]["unit"] == "group"
        assert metrics["about"]["by"] == {"ward": ["a", "b", "c", "d"]}
        assert set(metrics["one_record"]) == set(metrics["attacks"])
        with np.load(tmp_path / folder / "scores.npz") as scores:
            assert sorted(np.concatenate([scores["queries/0"], scores["population/0"]])) == list(range(40))
            assert len(scores["members/0"]) == len(scores["rmia/0/score"]) == 40
        header, *lines = (tmp_path / folder / "people.csv").read_text().splitlines()
        assert header == "index,score,p,q,rank,member,records,first_record"
        cells = [line.split(",") for line in lines]
        assert all(int(row[-2]) == 3 and int(row[-1]) == 3 * int(row[0]) for row in cells)
        table = plmia.SavedRun(tmp_path / folder).records()
        assert table.index.tolist() == [int(row[0]) for row in cells]
    gate = command("gate", tmp_path / "run", "--max-tpr", 0.5, "--at-fpr", 0.2, "--unit", "record")
    assert "judge groups, not records" in sentence(gate)


def test_groups_are_told_on_request_only(audit: Run, command: Run, tmp_path: Path) -> None:
    """By default no file of the results says to which group a record belongs; records.csv is written once."""
    data, run = arrays_of() | {"groups": np.arange(120) // 3 + 7000}, tmp_path / "run"

    def page() -> str:
        return (run / "report.html").read_text(encoding="utf-8")

    assert audit(data=data, references=8).exit_code == 0
    hidden = (run / "records.csv").read_bytes()
    assert hidden.startswith(b"index,label,score,p,q,rank,member\n")
    with np.load(run / "scores.npz") as scores:
        assert "groups" not in scores.files
    assert '"group":null' in page()
    assert "groups of records" in page()
    assert "--show-records" in page()
    assert command("report", run, "--data", tmp_path / "data.npz", "--show-records", "--quiet").exit_code == 0
    assert '"group":[70' in page()
    assert "--show-records" not in page()
    assert (run / "records.csv").read_bytes() == hidden
    assert b"group" not in (run / "people.csv").read_bytes().split(b"\n")[0]
    assert audit("--show-records", data=data, references=8).exit_code == 0
    header, *lines = (run / "records.csv").read_text().splitlines()
    assert header == "index,label,score,p,q,rank,group,member"
    found = [tuple(int(line.split(",")[i]) for i in (0, -2)) for line in lines]
    assert found == [(index, data["groups"][index]) for index, _ in found]
    people = plmia.SavedRun(run).records().columns()
    assert people["group"] == [7000 + index for index in people["index"]]
    assert '"group":[70' in page()
    assert command("report", run, "--quiet").exit_code == 0
    assert '"group":null' in page()


def test_an_audit_writes_metrics_scores_and_signals(audit: Run, command: Run, tmp_path: Path) -> None:
    result = audit("--attack", "rmia", "--attack", "pl-mia", references=8)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    run = tmp_path / "run"
    assert sorted(path.name for path in run.iterdir()) == WHOLE
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["schema"] == 2
    assert list(metrics["attacks"]) == ["rmia", "pl-mia"]
    for attack in metrics["attacks"].values():
        assert 0.8 < attack["auc"]["mean"] <= 1
        assert attack["tpr"].keys() >= {"0", "0.0001", "0.001", "0.01"}
        assert [entry["target"] for entry in attack["per_target"]] == [0]
    for words in (
        "1 target",
        "120 records",
        "8 references",
        "accuracy on members and non-members: target",
        "rmia",
        "pl-mia",
        "metrics.json",
    ):
        assert words in result.stdout
    store = SignalStore.open(run / "signals")
    assert store.shape == (9, 120, 1)
    assert store.verify() == []
    matrix = store.design.matrix
    assert (matrix[1::2] == ~matrix[2::2]).all()
    assert (np.abs(matrix.sum(axis=1) - 60) == 0).all()
    assert log_of(tmp_path) == seeds_of(*range(9))
    # Scoring the signals says the same.
    again = command(
        "score", run / "signals", "-o", tmp_path / "out", "--attack", "rmia", "--attack", "pl-mia", "--json"
    )
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["attacks"] == metrics["attacks"]
    assert (tmp_path / "out/scores.npz").read_bytes() == (run / "scores.npz").read_bytes()


def test_all_attacks_run_by_default(command: Run, audit: Run, tmp_path: Path) -> None:
    audit("--quiet")
    where = ["--data", tmp_path / "data.npz", "-o", tmp_path / "run", "--recipe", f"function:{tmp_path / 'own.py'}"]
    result = command("audit", *where, "--references", 4, "--json")
    assert json.loads(result.stdout)["attacks"].keys() == plmia.ATTACKS.keys()


def test_json_and_quiet(audit: Run, tmp_path: Path) -> None:
    as_json = audit("--json")
    assert json.loads(as_json.stdout) == json.loads((tmp_path / "run/metrics.json").read_text())
    assert as_json.stderr == ""
    quiet = audit("--quiet")
    assert (quiet.exit_code, quiet.output) == (0, "")


def test_what_training_prints_does_not_get_into_the_json(audit: Run, tmp_path: Path) -> None:
    """In a process of its own: its standard output is the one that workers inherit."""
    (tmp_path / "own.action").write_text("print('epoch 1', flush=True)")
    arguments = ["--data", "data.npz", "-o", "run", "--recipe", "function:own.py", "--references", "2", "--json"]
    done = subprocess.run(
        [*COMMAND, "audit", *arguments, "--workers", "1", "--attack", "rmia"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert json.loads(done.stdout)["schema"] == 2
    assert done.stderr == "epoch 1\n" * 3


def test_a_named_classifier(audit: Run, tmp_path: Path) -> None:
    result = audit("--recipe", "sklearn:RandomForestClassifier?n_estimators=5", "--mode", "offline", "--population", 20)
    assert result.exit_code == 0, result.output
    about = json.loads((tmp_path / "run/metrics.json").read_text())["about"]
    assert about["mode"] == "offline"
    assert about["population"] == [20]
    assert about["audit"]["recipe"]["params"]["n_estimators"] == "5"
    assert about["train_accuracy"] > about["test_accuracy"]


def test_the_same_seed_is_the_same_everything(audit: Run, tmp_path: Path) -> None:
    for folder, options in [("a", []), ("b", ["--workers", 2]), ("c", ["--seed", 1])]:
        assert audit("--quiet", *options, folder=folder).exit_code == 0
    for name in ("metrics.json", "scores.npz", "signals/signals.npy", "signals/membership.npy"):
        first, second, other = ((tmp_path / folder / name).read_bytes() for folder in "abc")
        assert first == second
        assert first != other


def test_groups_of_the_data_go_together(audit: Run, tmp_path: Path) -> None:
    groups = np.repeat(np.arange(40), 3)
    assert audit("--quiet", data=arrays_of() | {"groups": groups}).exit_code == 0
    matrix = SignalStore.open(tmp_path / "run/signals").design.matrix.reshape(5, 40, 3)
    assert (matrix == matrix[:, :, :1]).all()


def test_designs_of_the_command(audit: Run, tmp_path: Path) -> None:
    matrix = np.random.default_rng(3).random((6, 120)) < 0.5
    matrix[1:5] = [[True], [False], [True], [False]] ^ matrix[1:2]
    np.save(tmp_path / "design.npy", matrix)
    result = audit("--design", tmp_path / "design.npy", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["about"]["references"] == [5]
    np.testing.assert_array_equal(SignalStore.open(tmp_path / "run/signals").design.matrix, matrix)
    assert audit("--design", "exact", "--quiet", references=5, folder="exact").exit_code == 0
    counts = SignalStore.open(tmp_path / "exact/signals").design.matrix[1:].sum(axis=0)
    assert set(counts) == {2}
    assert "there is no design 'pears': give pairs, halves, exact" in sentence(audit("--design", "pears", folder="no"))
    np.save(tmp_path / "design.npy", matrix[:, 1:])
    assert "the design has shape (6, 119)" in sentence(audit("--design", tmp_path / "design.npy", folder="no"))
    np.save(tmp_path / "design.npy", matrix.astype(int))
    assert "bool array [models, records]" in sentence(audit("--design", tmp_path / "design.npy", folder="no"))


def test_a_recipe_in_json(audit: Run, tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text(json.dumps(parse_recipe("sklearn:GaussianNB").to_json()))
    assert audit("--recipe", tmp_path / "recipe.json", "--quiet").exit_code == 0
    before = (tmp_path / "run/signals/records/000000.json").read_bytes()
    assert audit("--recipe", "sklearn:GaussianNB", "--quiet").exit_code == 0
    assert (tmp_path / "run/signals/records/000000.json").read_bytes() == before


def test_the_demo_runs(command: Run, tmp_path: Path) -> None:
    result = command("demo", "-o", tmp_path / "demo", "--references", 4)
    assert result.exit_code == 0, result.output
    assert "1,797 records" in result.stdout
    metrics = json.loads((tmp_path / "demo/metrics.json").read_text())
    assert metrics["attacks"]["rmia"]["auc"]["mean"] > 0.8
    trained = (tmp_path / "demo/signals/records/000000.json").stat().st_mtime_ns
    assert command("demo", "-o", tmp_path / "demo", "--references", 4, "--quiet").output == ""
    assert (tmp_path / "demo/signals/records/000000.json").stat().st_mtime_ns == trained


# Going on ------------------------------------------------------------------------------------------------------------


def test_run_again_it_trains_nothing(audit: Run, tmp_path: Path) -> None:
    audit("--quiet")
    before = contents(tmp_path / "run")
    assert audit("--quiet").exit_code == 0
    assert log_of(tmp_path) == seeds_of(*range(5))
    assert contents(tmp_path / "run") == before


def test_more_references_train_only_the_new_ones_and_fewer_none(audit: Run, tmp_path: Path) -> None:
    for references in (4, 8, 4):
        assert audit("--quiet", references=references).exit_code == 0
    assert log_of(tmp_path) == seeds_of(*range(9))
    assert audit("--quiet", references=8, folder="whole").exit_code == 0
    signals = [(tmp_path / folder / "signals/signals.npy").read_bytes() for folder in ("run", "whole")]
    assert signals[0] == signals[1]


@pytest.mark.parametrize("change", ["data", "recipe", "own text", "seed", "views"])
def test_another_audit_in_the_same_folder_is_refused(change: str, audit: Run, tmp_path: Path) -> None:
    audit("--quiet")
    before, trained = contents(tmp_path / "run"), log_of(tmp_path)
    options: list[object] = []
    if change == "data":
        np.savez(tmp_path / "data.npz", **arrays_of(seed=1))
    if change == "recipe":
        options = ["--recipe", "sklearn:GaussianNB"]
    if change == "own text":
        (tmp_path / "own.py").write_text(OWN + "\n")
    if change == "seed":
        options = ["--seed", 1]
    if change == "views":
        options = ["--views", "identity;noise:0.1"]
    words = {
        "data": "(the data changed: columns, values, labels or groups)",
        "recipe": "(recipe function there, sklearn:GaussianNB here)",
        "own text": "(the code of own.py changed)",
        "seed": "(seed 0 there, 1 here)",
        "views": "(views identity there, identity;noise:0.1,0 here)",
    }[change]
    said = sentence(audit(*options))
    assert "belongs to another audit" in said
    assert words in said
    assert "was not changed" in said
    assert contents(tmp_path / "run") == before
    assert log_of(tmp_path) == trained


def test_a_folder_of_something_else_is_left_alone(audit: Run, tmp_path: Path) -> None:
    (tmp_path / "run/signals").mkdir(parents=True)
    (tmp_path / "run/signals/mine.txt").write_text("mine")
    assert "is not a store" in sentence(audit())
    assert contents(tmp_path / "run").keys() == {"signals/mine.txt"}
    (tmp_path / "file").write_text("mine")
    for folder in ("file", "file/below"):
        said = sentence(audit(folder=folder))
        assert f"{tmp_path / 'file'} is a file, a folder is needed for the results" in said
    assert (tmp_path / "file").read_text() == "mine"


def test_a_damaged_record_is_named_and_trained_anew(audit: Run, tmp_path: Path) -> None:
    audit("--quiet")
    before = contents(tmp_path / "run")
    (tmp_path / "run/signals/records/000002.json").write_text("{")
    result = audit()
    assert result.exit_code == 0
    assert f"{tmp_path}/run/signals/records/000002.json is damaged" in result.stderr
    assert "the next run of the audit in this folder trains its models again" in result.stderr
    assert log_of(tmp_path)[5:] == seeds_of(2)
    after = contents(tmp_path / "run")
    assert {name for name in before if before[name] != after[name]} <= {
        # Its seconds, which the report shows as the cost of more references.
        "signals/records/000002.json", "report.html", *(f"figures/references.{kind}" for kind in ("json", "svg"))
    }  # fmt: skip


def test_damaged_signals_are_named(audit: Run, tmp_path: Path) -> None:
    audit("--quiet")
    path = tmp_path / "run/signals/signals.npy"
    data = bytearray(path.read_bytes())
    data[128 + 4 * 120 * 3 + 40] ^= 1
    path.write_bytes(data)
    said = sentence(audit())
    assert "is damaged at model 3" in said
    assert f"remove {tmp_path}/run/signals/records/000003.json and run again, which trains only model 3 again" in said
    (tmp_path / "run/signals/records/000003.json").unlink()
    assert audit("--quiet").exit_code == 0
    assert log_of(tmp_path)[5:] == seeds_of(3)


def test_lost_and_damaged_files_are_named_with_what_to_do(audit: Run, command: Run, tmp_path: Path) -> None:
    audit("--quiet")
    path = tmp_path / "run/signals/signals.npy"
    path.rename(tmp_path / "away.npy")
    for refused in (audit(), command("score", path.parent, "-o", tmp_path / "out")):
        assert f"{path} is missing: restore it from a copy" in sentence(refused)
    (path.parent / "store.json").write_text("{")
    said = sentence(audit())
    assert f"{path.parent}/store.json is damaged" in said
    assert "copy it again" in said


def test_after_a_failed_first_try_the_folder_can_be_used(audit: Run, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN.replace("return X, y", "return X / 0 / no"))
    assert "failed" in sentence(audit())
    (tmp_path / "own.py").write_text(OWN)
    assert audit("--quiet", references=6).exit_code == 0
    assert SignalStore.open(tmp_path / "run/signals").missing() == []


# Training that fails -------------------------------------------------------------------------------------------------


def test_a_train_function_that_raises_is_shown_and_the_audit_goes_on(audit: Run, tmp_path: Path) -> None:
    bad = seed_of(0, 2, 0)
    (tmp_path / "own.action").write_text(f"if seed == {bad}: raise KeyError('my own trouble')")
    result = audit()
    assert result.exit_code == 2
    assert result.stdout == ""
    assert sentence(result).startswith(
        "plmia: training model 2 failed: train raised KeyError (own.py, line 13, in train): 'my own trouble'; finished "
    )
    assert not (tmp_path / "run/metrics.json").exists()
    assert not list((tmp_path / "run").glob(".data-*"))
    (tmp_path / "own.action").unlink()
    assert audit("--quiet").exit_code == 0
    assert log_of(tmp_path) == seeds_of(0, 1, 2, 2, 3, 4)


def test_a_query_function_that_raises_is_named_with_its_line(audit: Run, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN.replace("points, labels = model", "points, labels, more = model"))
    said = sentence(audit())
    assert "training model 0 failed: query raised ValueError (own.py, line 17, in query): not enough values" in said


def test_an_option_of_the_wrong_kind_is_one_sentence(audit: Run) -> None:
    said = sentence(audit("--recipe", "sklearn:RandomForestClassifier?n_estimators=twenty"))
    assert "'n_estimators' parameter of RandomForestClassifier" in said
    assert "'twenty'" in said
    assert "'n_estimators' parameter of RandomForestClassifier must be an int" in said


def test_answers_that_are_nan_are_named_by_their_points(audit: Run, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN + "answer = query\n" + NAN_AT_3_AND_17)
    assert "NaN for record 3, 17 of model 0 (and of 4 other models)" in sentence(audit())


def test_a_model_that_diverges_is_trained_with_its_next_seed(audit: Run, tmp_path: Path) -> None:
    bad = seed_of(0, 3, 0)
    (tmp_path / "own.action").write_text(f"if seed == {bad}: X *= np.nan")
    assert audit("--quiet").exit_code == 0
    assert log_of(tmp_path) == [*seeds_of(*range(5)), seed_of(0, 3, 1)]
    store = SignalStore.open(tmp_path / "run/signals")
    assert {model: store.finished()[model]["attempt"] for model in range(5)} == {0: 0, 1: 0, 2: 0, 3: 1, 4: 0}


def test_a_model_that_always_diverges_ends_with_a_sentence(audit: Run, tmp_path: Path) -> None:
    bad = [seed_of(0, 3, attempt) for attempt in range(3)]
    (tmp_path / "own.action").write_text(f"if seed in {bad}: X *= np.nan")
    said = sentence(audit())
    assert "NaN for record 0, 1, 2, 3, 4 and 115 more of model 3" in said
    assert "3 seeds" in said
    assert "learning rate" not in said
    assert SignalStore.open(tmp_path / "run/signals").missing() == [3]


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_a_worker_that_is_always_killed_is_said_so(audit: Run, tmp_path: Path) -> None:
    bad = seed_of(0, 2, 0)
    (tmp_path / "own.action").write_text(f"if seed == {bad}: os.kill(os.getpid(), 9)")
    said = sentence(audit())
    assert "model 2 failed" in said
    assert "died 3 times (SIGKILL" in said
    assert log_of(tmp_path) == seeds_of(0, 1, 2, 2, 2)
    (tmp_path / "own.action").unlink()
    assert audit("--quiet").exit_code == 0
    assert log_of(tmp_path)[5:] == seeds_of(2, 3, 4)


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_ends_with_a_sentence_and_the_same_command_goes_on(workers: str, audit: Run, tmp_path: Path) -> None:
    """Sent to the whole group, as a terminal does."""
    (tmp_path / "own.action").write_text(
        "time.sleep(0.3 if len(HERE.with_suffix('.log').read_text().splitlines()) < 3 else 60)"
    )
    arguments = ["--data", "data.npz", "-o", "run", "--recipe", f"function:{tmp_path}/own.py", "--references", "8"]
    process = subprocess.Popen(
        [*COMMAND, "audit", *arguments, "--attack", "rmia", "--workers", workers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    end = time.monotonic() + 60
    while len(log_of(tmp_path)) < 2 + int(workers) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert stdout == ""
    assert stderr == "plmia: stopped after 2 more trained models, which are kept: run the same again to continue\n"
    finished = list(SignalStore.open(tmp_path / "run/signals").finished())
    # Of two workers, a slow one may begin the first model after the other has finished two.
    assert len(finished) == 2
    assert workers == "2" or finished == [0, 1]
    assert not list((tmp_path / "run").glob(".data-*"))
    (tmp_path / "own.action").unlink()
    trained = len(log_of(tmp_path))
    assert audit("--quiet", references=8).exit_code == 0
    assert log_of(tmp_path)[trained:] == seeds_of(*(model for model in range(9) if model not in finished))


def test_weights_of_recipes_that_have_none_cannot_be_kept(audit: Run, tmp_path: Path) -> None:
    assert "--keep-models" in sentence(audit("--keep-models"))
    assert audit("--quiet").exit_code == 0


def test_weights_are_kept_for_models_trained_from_now_on(audit: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    options = ["--recipe", "mlp?widths=4&epochs=1&stack=1&device=cpu"]
    assert audit("--quiet", *options, references=2).exit_code == 0
    assert not (tmp_path / "run/models").exists()
    result = audit("--keep-models", *options, references=4)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "run/models").iterdir()) == [
        "000003.safetensors",
        "000004.safetensors",
    ]
    *_, last = result.stderr.splitlines()
    assert last == "plmia: weights of model 0, 1, 2 were not kept when it was trained"


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"y": np.zeros(120, int)}, "only '0'"),
        ({"y": np.arange(120) % 2 + 0.5}, "numbers to predict, not classes"),
        ({"y": np.arange(119) % 2}, "X has 120 records, y has 119"),
        ({"X": np.full((120, 3), np.inf)}, "X holds inf at record 0"),
        ({"X": np.array([["a"]] * 120)}, "numbers are needed"),
        ({"groups": np.arange(3)}, "X has 120 records, groups has 3"),
        (
            {"y": np.where(np.arange(120) < 2, 2, np.arange(120) % 2)},
            "trains on none of the 2 records of class 2",
        ),
    ],
)
def test_bad_data_is_refused(change: Arrays, says: str, audit: Run, tmp_path: Path) -> None:
    assert says in sentence(audit(data=arrays_of() | change))
    assert not (tmp_path / "run").exists()
    assert log_of(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--recipe", "wide-resnet"], "wide-resnet needs images"),
        (["--recipe", "mpl"], "there is no recipe 'mpl': did you mean 'mlp'?"),
        (
            ["--recipe", "sklearn:RandomForst"],
            "scikit-learn has no classifier or regressor 'RandomForst': did you mean",
        ),
        (["--recipe", "function:none.py"], "there is no Python file none.py"),
        (["--recipe", "gbdt?depth=deep"], "option 'depth' of recipe 'gbdt' cannot be 'deep'"),
        (["--references", 5], "complementary pairs: request 4 or 6"),
        (["--references", 2, "--attack", "lira"], "would have 1 IN or OUT references, the attacks need 2"),
        (["--views", "mirror"], "view mirror is for images"),
        (["--views", "miror"], "'miror' (did you mean 'mirror'?)"),
        (["--attack", "rima"], "did you mean"),
        (["--population", 60], "a population of 60 was asked for, the target has 60 non-members"),
        (["--data", "none.npz"], "there is no none.npz"),
    ],
)
def test_bad_options_are_refused(options: list[object], says: str, audit: Run, tmp_path: Path) -> None:
    if "wide-resnet" in options:
        pytest.importorskip("torch")
    assert says in sentence(audit(*options))
    assert not (tmp_path / "run").exists()
    assert log_of(tmp_path) == []


def test_copies_on_both_sides_are_counted_on_standard_error(audit: Run, tmp_path: Path) -> None:
    data = arrays_of()
    data["X"][60:66] = data["X"][:6]
    result = audit(data=data)
    assert result.exit_code == 0
    matrix = SignalStore.open(tmp_path / "run/signals").design.matrix
    split = sum(2 for point in range(6) if (matrix[:, point] != matrix[:, 60 + point]).any())
    assert split > 0
    assert f"plmia: {split} of 120 records have exact copies" in result.stderr
    assert f"(split-copies): {split} of 120" in result.stdout
    assert audit("--quiet", data=data).stderr == ""


# File names that are not Unicode -------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_not_unicode_do_not_end_an_audit_that_has_trained(tmp_path: Path) -> None:
    odd = os.fsdecode(b"odd\xff")
    np.savez(tmp_path / f"{odd}.npz", **arrays_of(), unknown=np.arange(3))
    (tmp_path / f"{odd}.py").write_text(OWN)
    words = ["audit", "--data", tmp_path / f"{odd}.npz", "--recipe", f"function:{tmp_path / odd}.py", "--references", 4]
    words += ["--attack", "rmia", "--workers", 1, "-o", tmp_path / odd]
    command = [os.fsencode(str(word)) for word in (*COMMAND, *words)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert sorted(path.name for path in (tmp_path / odd).iterdir()) == WHOLE
    text = (tmp_path / odd / "metrics.json").read_text(encoding="utf-8")
    assert "odd\ufffd" in (tmp_path / odd / "report.html").read_text(encoding="utf-8")
    metrics = json.loads(text)
    assert metrics["about"]["recipe"] == "function:odd\ufffd.py"
    json.dumps(metrics, ensure_ascii=False).encode()  # no lone surrogate is left for another reader of the file
