"""`plmia design`, jobs that record, `plmia score`: with real processes that crowd each other and are killed."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click.testing
import numpy as np
import pytest

import plmia
from plmia import SignalStore
from plmia.data.files import temporary_beside

Command = Callable[..., click.testing.Result]
RECORDS, REFERENCES = 400, 8

# One job of an array: trains model k, which remembers its members, and records it. A positive seed replaces.
JOB = """
import sys, numpy as np, plmia
run = plmia.Run(sys.argv[1])
for k in map(int, sys.argv[3:]):
    rng = np.random.default_rng([abs(int(sys.argv[2])), k])
    y = np.arange(run.n_records) % 2
    z = rng.normal(size=run.n_records)
    z[run.members(k)] += 1.5
    own = np.arange(2) == y[:, None]
    run.record(k, logits=np.where(own, z[:, None], -z[:, None]), labels=y, replace=int(sys.argv[2]) > 0)
"""


def job(run: Path, models: list[int], seed: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", JOB, str(run), str(seed), *map(str, models)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )


def finish(*jobs: subprocess.Popen[str]) -> list[str]:
    """Wait for jobs; return the last line of each that failed."""
    ends = [(j.communicate(timeout=120)[1], j.returncode) for j in jobs]
    return [error.splitlines()[-1] for error, code in ends if code]


def expected(run: plmia.Run, model: int, seed: int = 0) -> list[float]:
    z = np.random.default_rng([abs(seed), model]).normal(size=RECORDS)
    z[run.members(model)] += 1.5
    return (2 * z).astype(np.float32).tolist()  # z against -z


def designed(command: Command, folder: Path, *options: object) -> plmia.Run:
    result = command("design", "--records", RECORDS, "--references", REFERENCES, "-o", folder, *options)
    assert result.exit_code == 0, result.output
    return plmia.Run(folder)


def test_the_lines_that_design_prints_are_a_script(command: Command, tmp_path: Path) -> None:
    result = command("design", "--records", 60, "--references", 4, "-o", tmp_path / "run")
    assert result.exit_code == 0, result.output
    lines = [line[4:] for line in result.stdout.splitlines() if line.startswith("    ")]
    assert len(lines) == 4
    y = np.arange(60) % 2
    logits = np.random.default_rng(0).normal(size=(60, 2))
    for answers in (logits, -logits):  # the second run of the script finds nothing to do
        exec("\n".join(lines), {"plmia": plmia, "logits": answers, "y": y})
    assert plmia.Run(tmp_path / "run").missing() == []
    assert result.stdout.splitlines()[-1] == f"Then: plmia score {tmp_path / 'run'}"
    assert command("design", "--records", 60, "--references", 4, "-o", tmp_path / "run", "--quiet").output == ""


def test_an_array_of_jobs_and_an_unfinished_run(command: Command, tmp_path: Path) -> None:
    run = designed(command, tmp_path / "run")
    result = command("score", run.folder)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "no recorded model" in result.stderr
    assert finish(job(run.folder, [1, 2, 3])) == []
    result = command("score", run.folder)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "missing: model 0, 4, 5, 6, 7 and 1 more" in result.stderr
    assert finish(job(run.folder, [0])) == []
    result = command("score", run.folder)
    assert result.exit_code == 0, result.output
    for place in (result.stderr, result.stdout, (run.folder / "metrics.json").read_text()):
        assert "4 of 9 models finished (models 4, 5, 6, 7, 8 missing)" in place
    assert finish(job(run.folder, [8, 5]), job(run.folder, [4, 6, 7])) == []
    for model in run.models:
        values = SignalStore.open(run.folder / "signals").read([model])
        np.testing.assert_allclose(values.ravel(), expected(run, model), rtol=1e-6)
    result = command("score", run.folder)
    assert (result.exit_code, "finished" in result.stderr) == (0, False)
    about = json.loads((run.folder / "metrics.json").read_text())["about"]
    assert (about["references"], about["signals"]["models"]) == ([REFERENCES], REFERENCES + 1)
    assert about["accuracy"]["measure"] == "accuracy"
    assert about["accuracy"]["target"]["members"] > about["accuracy"]["target"]["non_members"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = plmia.design(RECORDS, references=REFERENCES, folder=tmp_path_factory.mktemp("whole") / "run")
    assert finish(job(run.folder, list(run.models))) == []
    plmia.score(run, progress=False)
    return run.folder


def test_every_command_works_on_a_run(recorded: Path, command: Command, tmp_path: Path) -> None:
    assert command("report", recorded).exit_code == 0
    assert (recorded / "report.html").exists()
    assert "The signals in this folder" not in (recorded / "report.html").read_text(encoding="utf-8")
    assert command("gate", recorded, "--max-tpr", 0.02, "--at-fpr", 0.01).exit_code in (2, 3)
    assert command("compare", recorded, "--attack", "rmia", "--attack", "lira").exit_code == 0
    assert command("plan", recorded, "--fpr", 0.05, "--attack", "rmia", "--quiet").exit_code == 0
    # The results elsewhere, from the run, from its store and in Python: the same scores.
    for name, signals in (("one", recorded), ("two", recorded / "signals")):
        assert command("score", signals, "-o", tmp_path / name, "--quiet").exit_code == 0
        assert (tmp_path / name / "scores.npz").read_bytes() == (recorded / "scores.npz").read_bytes()


def test_results_of_an_audit_are_replaced_in_its_folder(command: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(150, 4)), 2, axis=0)  # each record twice
    np.savez(tmp_path / "data.npz", X=X, y=np.arange(300) // 2 % 2)
    words = ("audit", "--data", tmp_path / "data.npz", "--recipe", "sklearn:GaussianNB", "--references", 4)
    words = (*words, "--trainings", 0)
    assert command(*words, "-o", tmp_path / "run", "--quiet").exit_code == 0
    first = (tmp_path / "run" / "scores.npz").read_bytes()
    audited = json.loads((tmp_path / "run" / "metrics.json").read_text())
    result = command("score", tmp_path / "run", "--attack", "lira-fixed")
    assert (result.exit_code, "replaced" in result.stderr) == (0, False)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert list(metrics["attacks"]) == ["lira-fixed"]
    assert metrics["about"]["audit"]["recipe"]["class"].endswith("GaussianNB")
    # What only the audit could know stays: its recipe, and the caution that copies are on both sides of a split.
    assert metrics["about"]["recipe"] == audited["about"]["recipe"]
    assert [note["severity"] for note in metrics["notes"] if note["code"] == "split-copies"] == ["caution"]
    assert command("score", tmp_path / "run", "--quiet").exit_code == 0
    assert (tmp_path / "run" / "scores.npz").read_bytes() == first
    again = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert again["verdict"] == audited["verdict"]
    assert sorted(note["code"] for note in again["notes"]) == sorted(note["code"] for note in audited["notes"])
    assert command("report", tmp_path / "run", "--quiet").exit_code == 0


def test_probabilities_that_were_renormalised_are_noted(tmp_path: Path) -> None:
    run = plmia.design(RECORDS, references=4, folder=tmp_path / "run")
    y = np.arange(RECORDS) % 2
    for k in run.models:
        z = np.random.default_rng(k).normal(size=RECORDS) + np.isin(np.arange(RECORDS), run.members(k))
        own = 1 / (1 + np.exp(-z))
        probabilities = np.where(np.arange(2) == y[:, None], own[:, None], 1 - own[:, None])
        run.record(k, probabilities=1.001 * probabilities, labels=y)
    result = plmia.score(run, attacks=["rmia"], progress=False).result
    assert [note.severity for note in result.notes if note.code == "probabilities-renormalised"] == ["info"]


def test_a_table_gives_its_notes_and_class_names_to_the_results(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    rows = [f"{i % 50},{'yes' if i % 2 else 'no'}" for i in range(RECORDS)]
    (tmp_path / "data.csv").write_text("\n".join(["age,again", *rows]))
    words = ("design", "--data", tmp_path / "data.csv", "--label", "again", "--references", 4, "-o", tmp_path / "run")
    result = command(*words)
    assert (result.exit_code, "copies" in result.stderr) == (0, True), result.output
    assert "labels=" not in result.stdout  # the run knows them
    run = plmia.Run(tmp_path / "run")
    for k in run.models:
        z = np.random.default_rng(k).normal(size=(RECORDS, 2))
        z[run.members(k), np.arange(RECORDS)[run.members(k)] % 2] += 1
        run.record(k, logits=z)
    found = plmia.score(run, attacks=["rmia"], progress=False).result
    assert [note.severity for note in found.notes if note.code == "split-copies"] == ["caution"]
    assert found.about.class_names == ("no", "yes")
    assert command("report", run.folder, "--data", tmp_path / "data.csv", "--label", "again").exit_code == 0


def test_a_given_target_stays_in_doubt_where_its_audit_left_no_results(command: Command, tmp_path: Path) -> None:
    """Only the audit can compare a given target with its references; scoring alone must not seem to have done it."""
    from sklearn.tree import DecisionTreeClassifier

    rng = np.random.default_rng(0)
    X, y, members = rng.normal(size=(300, 4)), np.arange(300) % 2, np.arange(300) < 150
    target = DecisionTreeClassifier(random_state=0).fit(X[members], y[members])
    found = plmia.audit(
        DecisionTreeClassifier(),
        X,
        y,
        target=target,
        members=members,
        references=8,
        folder=tmp_path / "run",
        engine=plmia.Inline(),
        progress=False,
    )
    assert command("score", tmp_path / "run", "--quiet").exit_code == 0
    planned = command("plan", tmp_path / "run", "--fpr", 0.01).stdout.splitlines()
    codes = [note.code for note in found.result.notes if note.severity == "caution"]
    assert codes
    assert all(sum(code in line for line in planned) == 1 for code in codes)
    assert not any("was not checked" in line for line in planned)
    # Scoring also counts clipped probabilities.
    kept = [note for note in plmia.SavedRun(tmp_path / "run").result.notes if note.code != "clipped-probabilities"]
    assert sorted(kept, key=lambda note: note.code) == sorted(found.result.notes, key=lambda note: note.code)
    for name in ("metrics.json", "scores.npz", "records.csv"):
        (tmp_path / "run" / name).unlink()
    for _ in range(2):
        assert command("score", tmp_path / "run", "--quiet").exit_code == 0
        notes = plmia.SavedRun(tmp_path / "run").result.notes
        assert ("likeness-unchecked", "caution") in [(note.code, note.severity) for note in notes]
    (tmp_path / "run" / "metrics.json").unlink()
    assert "was not checked" in command("plan", tmp_path / "run", "--fpr", 0.01).stdout


def test_other_signals_need_an_output_folder(command: Command, signals_file: Callable[..., Path]) -> None:
    result = command("score", signals_file())
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "-o" in result.stderr


def test_copies_of_other_machines_are_merged(command: Command, tmp_path: Path) -> None:
    run = designed(command, tmp_path / "run")
    for name, models in (("copy", [0, 1, 2, 3]), ("other", [4, 5, 6, 7, 8])):
        shutil.copytree(run.folder, tmp_path / name)
        assert finish(job(tmp_path / name, models)) == []
    result = command("score", run.folder, "--merge", tmp_path / "copy", "--merge", tmp_path / "other")
    assert result.exit_code == 0, result.output
    assert [int(n) for n in re.findall(r"took in (\d+) models", result.stderr)] == [4, 5]
    assert run.missing() == []
    bad = command("score", tmp_path / "copy", "--merge", tmp_path)
    assert (bad.exit_code, bad.stderr.count("\n")) == (2, 1)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_jobs_that_are_killed_leave_whole_models_or_none(command: Command, tmp_path: Path) -> None:
    """Pairs of jobs record the same models in opposite order and are killed at random moments, again and again."""
    run = designed(command, tmp_path / "run")
    rng, killed = random.Random(0), 0
    for _ in range(12):
        jobs = [job(run.folder, models) for models in (list(run.models), list(run.models)[::-1])]
        time.sleep(0.1 + 0.5 * rng.random())
        for process in jobs:
            process.kill()
        killed += sum(process.wait() == -9 for process in jobs)
        for process in jobs:
            process.communicate()
        if not (run.folder / "signals" / "store.json").exists():
            continue
        store = SignalStore.open(run.folder / "signals")
        assert store.verify() == []
        for model in run.recorded():
            np.testing.assert_allclose(store.read([model]).ravel(), expected(run, model), rtol=1e-6)
    assert killed > 4
    assert finish(job(run.folder, list(run.models))) == []
    assert run.missing() == []
    assert SignalStore.open(run.folder / "signals").verify() == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_jobs_that_are_killed_while_they_replace_leave_whole_models_or_none(command: Command, tmp_path: Path) -> None:
    run = designed(command, tmp_path / "run")
    rng = random.Random(1)
    for _ in range(8):
        jobs = [job(run.folder, [0, 1] * 200, seed) for seed in (1, 2)]
        time.sleep(0.3 + 0.4 * rng.random())
        for process in jobs:
            process.kill()
            process.communicate()
        if (run.folder / "signals" / "store.json").exists():
            store = SignalStore.open(run.folder / "signals")
            assert store.verify() == []
            for model in run.recorded():
                values = store.read([model]).ravel()
                assert any(np.allclose(values, expected(run, model, seed), rtol=1e-6) for seed in (1, 2))
    assert finish(job(run.folder, [0, 1], 1)) == []
    assert run.recorded() == [0, 1]


def test_of_two_jobs_with_other_answers_one_wins(command: Command, tmp_path: Path) -> None:
    run = designed(command, tmp_path / "run")
    failures = finish(*[job(run.folder, [2], -seed) for seed in range(4)])
    assert len(failures) == 3
    assert all("finished with other signals" in line for line in failures)
    values = SignalStore.open(run.folder / "signals").read([2]).ravel()
    assert any(np.allclose(values, expected(run, 2, -seed), rtol=1e-6) for seed in range(4))


BAD = [
    (("--references", 4), "--records or --data"),
    (("--records", 50, "--data", "x.npz"), "--records or --data"),
    (("--records", 50, "--references", 5), "4 or 6"),
    (("--records", 50, "--design", "thirds"), "'thirds'"),
    (("--records", 50, "--design", "no.npy"), "no.npy"),
    (("--records", 50, "--groups", "no.npy"), "no.npy"),
    (("--data", "no.npz"), "no.npz"),
    (("--records", 50, "--label", "y"), "columns of the data"),
]


@pytest.mark.parametrize(("options", "fact"), BAD)
def test_a_bad_design_is_one_sentence(options: tuple[object, ...], fact: str, command: Command, tmp_path: Path) -> None:
    result = command("design", *options, "-o", tmp_path / "run")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert fact in result.stderr
    assert not (tmp_path / "run").exists()


def test_the_example_runs_and_continues(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "own_training.py"
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 25
    printed = []
    for removed in ((), ("000003.json", "000005.json")):
        for name in removed:
            (tmp_path / "run" / "signals" / "records" / name).unlink()
        words = [sys.executable, str(example), str(tmp_path / "run")]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        printed.append(done.stdout)
    assert "A leak was shown" in printed[0]
    assert printed[0] == printed[1]


def test_a_design_that_was_killed_can_be_made_again(command: Command, tmp_path: Path) -> None:
    """It left an unfinished file in the folder."""
    (tmp_path / "run").mkdir()
    temporary_beside(tmp_path / "run" / "design.npz").write_bytes(b"half of it")
    designed(command, tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".notes.tmp").write_text("of the user")
    words = ("design", "--records", RECORDS, "--references", REFERENCES, "-o", tmp_path / "mine")
    assert command(*words).exit_code == 2
