"""The folder of results as several writers, readers, kills and planted links meet it: it holds one whole run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
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
from plmia.data.designs import MembershipDesign
from plmia.data.files import PARTS as EVERY_PART
from plmia.data.files import PENDING
from plmia.errors import SignalsError
from plmia.reporting import Extras, write_report
from plmia.results.saved import SavedRun
from plmia.signals.signals import read_signals
from plmia.signals.store import SignalStore, write_stack

pytestmark = pytest.mark.skipif(os.name != "posix", reason="locks, modes and signals of POSIX")

Run = Callable[..., click.testing.Result]
Write = Callable[..., Path]

GATE = ("--max-tpr", 0.9, "--at-fpr", 0.05, "--accept", "few-non-members")

# Scores with one attack, again and again; ends with the number of runs that were published.
WRITER = """
import sys
from pathlib import Path
from plmia import ATTACKS, Setup, read_signals
from plmia.results.folder import run_attacks

file, folder, name, times = sys.argv[1:]
signals = read_signals(file)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(times)):
    run_attacks(signals, [ATTACKS[name]], [0], Setup(), Path(folder))
"""

# The command, killed at the n-th rename.
KILLED = """
import os, signal, sys
from plmia.cli.main import main

left = int(sys.argv.pop(1))

def killing(rename):
    def at(source, target, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(source, target, **options)
    return at

os.rename, os.replace = killing(os.rename), killing(os.replace)
main(prog_name="plmia")
"""

# Prepares a run and does not come to its end.
LIVING = """
import sys
from pathlib import Path
from plmia.data.files import Staging

with Staging(Path(sys.argv[1])) as staging:
    staging.create("scores.npz").close()
    print(staging.path.name, flush=True)
    sys.stdin.read()
"""


# Of a run that judges records and attacks one target.
PARTS = ("scores.npz", "records.csv", "metrics.json")


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in EVERY_PART if (folder / name).exists()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def start(*arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", WRITER, *map(str, arguments)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("attacks", [("rmia", "lira"), ("rmia", "lira", "pl-mia")])
def test_of_several_writers_the_last_wins_whole(attacks: tuple[str, ...], signals_file: Write, tmp_path: Path) -> None:
    """And whoever reads in the meantime sees one whole run each time."""
    file, folder = signals_file(points=200), tmp_path / "run"
    processes = [start(file, folder, attack, 15) for attack in attacks]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    seen = []
    while any(process.poll() is None for process in processes):
        if (folder / "metrics.json").exists():
            saved = SavedRun(folder)
            assert saved.verified
            assert len(saved.records()) > 0
            seen += saved.attacks
        time.sleep(0.002)
    for process in processes:
        assert (process.wait(), process.communicate()[1]) == (0, "")
    assert set(seen) == set(attacks)
    saved = SavedRun(folder)
    assert saved.verified
    assert names(folder) == sorted(PARTS)
    (attack,) = saved.attacks
    alone = start(file, tmp_path / "alone", attack, 1)
    alone.communicate("go\n")
    assert contents(folder) == contents(tmp_path / "alone")


@pytest.mark.parametrize("with_trainings", ["old", "new"])
def test_killed_at_any_rename_a_folder_holds_the_old_run_or_the_new_one(
    with_trainings: str, signals_file: Write, command: Run, tmp_path: Path
) -> None:
    """One of the two runs has a file that the other lacks."""
    file, old, new = signals_file(points=300), tmp_path / "old", tmp_path / "new"
    more = {"old": [], "new": []} | {with_trainings: ["--trainings", "4"]}
    assert command("score", file, "-o", old, "--attack", "lira", "--quiet", *more["old"]).exit_code == 0
    assert command("report", old, "--quiet").exit_code == 0
    options = ("--attack", "rmia", "--attack", "pl-mia", "--quiet", *more["new"])
    assert command("score", file, "-o", new, *options).exit_code == 0
    runs = {"lira": contents(old), "rmia": contents(new)}
    found = []
    for kill in range(1, 20):
        folder = tmp_path / f"killed {kill}"
        shutil.copytree(old, folder)
        words = [sys.executable, "-c", KILLED, str(kill), "score", str(file), "-o", str(folder), *options]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        saved = SavedRun(folder)
        assert saved.verified
        found.append(saved.attacks[0])
        scores = saved.scores(saved.attacks[0], 0).score
        assert np.array_equal(scores, SavedRun({"lira": old, "rmia": new}[found[-1]]).scores(found[-1], 0).score)
        assert command("gate", folder, *GATE).exit_code in (0, 3)
        # A report finishes what the killed run began, and is of that run.
        assert command("report", folder, "--quiet").exit_code == 0
        assert contents(folder) == runs[found[-1]]
        assert f"by {saved.result.verdict.attack} on target 0" in (folder / "report.html").read_text()
        assert command("score", file, "-o", folder, *options).exit_code == 0
        assert contents(folder) == runs["rmia"]
        assert names(folder) == sorted(runs["rmia"])
    assert found == ["lira"] + ["rmia"] * (len(found) - 1), "the first rename publishes"
    assert len(found) == 1 + len(EVERY_PART)
    assert ("trainings.csv" in runs["rmia"]) == (with_trainings == "new")


def test_killed_at_any_rename_of_a_report_the_results_stay(signals_file: Write, command: Run, tmp_path: Path) -> None:
    file, run = signals_file(points=300), tmp_path / "run"
    assert command("score", file, "-o", run, "--attack", "rmia", "--quiet").exit_code == 0
    before = contents(run)
    assert command("report", run, "--quiet").exit_code == 0
    whole = {path.name: path.read_bytes() for path in (run / "figures").iterdir()}
    for kill in (1, 2, len(whole), len(whole) + 1):
        words = [sys.executable, "-c", KILLED, str(kill), "report", str(run), "--quiet"]
        assert subprocess.run(words, check=False, timeout=120).returncode == -signal.SIGKILL
        assert SavedRun(run).verified
        assert not (run / "report.html").exists(), "a page beside other figures would say something else"
        assert command("report", run, "--quiet").exit_code == 0
        assert {path.name: path.read_bytes() for path in (run / "figures").iterdir()} == whole
        assert names(run) == sorted([*PARTS, "figures", "report.html"])
    assert contents(run) == before


def test_a_report_on_results_that_another_run_replaces_is_not_written(
    signals_file: Write, command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plmia.reporting import page

    file, run = signals_file(points=300), tmp_path / "run"
    assert command("score", file, "-o", run, "--attack", "rmia", "--quiet").exit_code == 0
    publish = page._publish

    def late(*arguments: Any) -> None:
        assert command("score", file, "-o", run, "--attack", "lira", "--quiet").exit_code == 0
        publish(*arguments)

    monkeypatch.setattr(page, "_publish", late)
    result = command("report", run)
    assert result.exit_code == 2
    assert "another run replaced the results" in result.stderr
    assert names(run) == sorted(PARTS)
    assert SavedRun(run).attacks == ["lira"]


def test_leftovers_of_the_dead_are_removed_and_of_the_living_are_not(
    signals_file: Write, command: Run, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    (run / ".plmia-notes.tmp").mkdir(parents=True)  # of the user, or of another machine a moment ago
    (run / ".plmia-file.tmp").write_text("mine")
    living = subprocess.Popen(
        [sys.executable, "-c", LIVING, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert living.stdout is not None
    name = living.stdout.readline().strip()
    file = signals_file()
    assert command("score", file, "-o", run, "--attack", "lira", "--quiet").exit_code == 0
    assert name in names(run)
    living.kill()
    living.communicate()
    assert name in names(run)
    assert command("score", file, "-o", run, "--attack", "lira", "--quiet").exit_code == 0
    assert names(run) == sorted([*PARTS, ".plmia-file.tmp", ".plmia-notes.tmp"])


# Links and modes -----------------------------------------------------------------------------------------------------


def test_links_are_replaced_and_never_written_through(signals_file: Write, command: Run, tmp_path: Path) -> None:
    file, run, elsewhere = signals_file(points=300), tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run.mkdir()
    planted = [*PARTS, "report.html", *(f"{name}.partial" for name in (*PARTS, "report.html"))]
    for name in planted:
        (elsewhere / name).write_text("of somebody else")
        (run / name).symlink_to(elsewhere / name)
    for name in ("figures", PENDING):
        (elsewhere / name).mkdir()
        (elsewhere / name / "roc.svg").write_text("of somebody else")
        (run / name).symlink_to(elsewhere / name)
    before = {path: path.read_text() for path in elsewhere.rglob("*") if path.is_file()}
    assert command("score", file, "-o", run, "--attack", "lira", "--quiet").exit_code == 0
    (run / "figures").symlink_to(elsewhere / "figures")
    (run / "report.html").symlink_to(elsewhere / "report.html")
    assert command("report", run, "--quiet").exit_code == 0
    assert {path: path.read_text() for path in elsewhere.rglob("*") if path.is_file()} == before
    assert not any((run / name).is_symlink() for name in (*PARTS, "report.html", "figures"))
    assert SavedRun(run).verified


def modes(folder: Path) -> dict[str, int]:
    paths = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder.parent)): stat.S_IMODE(path.stat().st_mode) for path in paths}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_only_the_owner_may_read_what_names_members(
    umask: int, signals_file: Write, command: Run, tmp_path: Path
) -> None:
    file, run = signals_file(points=300), tmp_path / "new" / "run"
    before = os.umask(umask)
    try:
        assert command("score", file, "-o", run, "--attack", "lira", "--quiet").exit_code == 0
        assert command("report", run, "--quiet").exit_code == 0
    finally:
        os.umask(before)
    found = modes(tmp_path / "new")
    assert len(found) > 20
    assert {
        name: mode for name, mode in found.items() if mode != (0o700 if (tmp_path / name).is_dir() else 0o600)
    } == {}


def test_an_audit_makes_its_folder_for_its_owner(command: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    np.savez(tmp_path / "data.npz", X=X, y=(X[:, 0] + rng.normal(size=200) > 0).astype(int))
    options = ("--recipe", "sklearn:DecisionTreeClassifier", "--references", 4, "--workers", 1, "--quiet")
    before = os.umask(0)
    try:
        result = command("audit", "--data", tmp_path / "data.npz", *options, "-o", tmp_path / "run", "--attack", "rmia")
    finally:
        os.umask(before)
    assert result.exit_code == 0, result.output
    found = modes(tmp_path / "run")
    assert {"run/signals/signals.npy", "run/signals/records", "run/report.html", "run/figures/roc.svg"} <= found.keys()
    assert {
        name: oct(mode) for name, mode in found.items() if mode != (0o700 if (tmp_path / name).is_dir() else 0o600)
    } == {}


def test_a_run_and_what_is_imported_are_for_their_owner(scored: Path, command: Run, tmp_path: Path) -> None:
    rows = [f"{m},{r},{(m + r) % 2},{m - r}.5" for m in range(2) for r in range(3)]
    (tmp_path / "table.csv").write_text("\n".join(["model,record,member,signal", *rows]) + "\n")
    out = tmp_path / "out"
    design = MembershipDesign(np.eye(2, 20, dtype=bool))
    before = os.umask(0)
    try:
        words = ("design", "--records", 20, "--references", 2, "-o", out / "new" / "run", "--quiet")
        assert command(*words).exit_code == 0
        plmia.Run(out / "new" / "run").record(0, confidence=np.arange(20.0))
        words = ("import", "table", tmp_path / "table.csv", "-o", out / "imported" / "signals.npz", "--quiet")
        assert command(*words).exit_code == 0
        words = ("gate", scored, "--max-tpr", "0.9", "--at-fpr", "0.1", "--junit", out / "gate" / "gate.xml")
        assert command(*words).exit_code in (0, 2, 3)
        write_stack(out / "stacks" / "here", [0], np.zeros((1, 20, 1), np.float32), [{}], key="0" * 64)
        SignalStore.create(out / "stores" / "signals", {"seed": 0}, design, ["a"])
    finally:
        os.umask(before)
    found = modes(out)
    files = {
        "new/run/signals/records/000000.json",
        "imported/signals.npz",
        "gate/gate.xml",
        "stores/signals/store.json",
    }
    assert {f"out/{name}" for name in files} < found.keys()
    assert {
        name: oct(mode) for name, mode in found.items() if mode != (0o700 if (tmp_path / name).is_dir() else 0o600)
    } == {}


# What gate, compare and report make of it ----------------------------------------------------------------------------


@pytest.fixture
def scored(signals_file: Write, command: Run, tmp_path: Path) -> Path:
    options = ("--attack", "lira", "--attack", "rmia", "--quiet")
    assert command("score", signals_file(points=1_000), "-o", tmp_path / "run", *options).exit_code == 0
    return tmp_path / "run"


def refused(command: Run, *arguments: object) -> str:
    result = command(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 600
    return result.stderr


def everywhere(command: Run, folder: Path, tmp_path: Path) -> list[str]:
    """What gate, compare and report say of a folder that they refuse."""
    good = tmp_path / "good"
    calls = [("gate", folder, *GATE), ("compare", folder, "--attack", "lira", "--attack", "rmia"), ("report", folder)]
    calls += [("compare", good, folder)] if good.exists() else []
    return [refused(command, *call) for call in calls]


def test_an_edited_digit_a_flipped_bit_and_a_foreign_file_are_refused(
    scored: Path, signals_file: Write, command: Run, tmp_path: Path
) -> None:
    shutil.copytree(scored, tmp_path / "good")
    text = (scored / "metrics.json").read_text(encoding="utf-8")
    auc = json.loads(text)["attacks"]["rmia"]["auc"]["mean"]
    assert str(auc) in text
    (scored / "metrics.json").write_text(text.replace(str(auc), f"0.1{str(auc)[3:]}"), encoding="utf-8")
    assert all("metrics.json was changed" in said for said in everywhere(command, scored, tmp_path))
    (scored / "metrics.json").write_text(text, encoding="utf-8")
    whole = (scored / "scores.npz").read_bytes()
    for place in (200, len(whole) // 2, len(whole) - 100):
        flipped = bytearray(whole)
        flipped[place] ^= 4
        (scored / "scores.npz").write_bytes(flipped)
        assert all("scores.npz" in said for said in everywhere(command, scored, tmp_path))
    other = tmp_path / "other"
    options = ("--attack", "lira", "--attack", "rmia", "--quiet")
    assert command("score", signals_file(1, points=1_000), "-o", other, *options).exit_code == 0
    for name in ("scores.npz", "records.csv"):
        shutil.copytree(tmp_path / "good", tmp_path / name)
        shutil.copy(other / name, tmp_path / name / name)
        assert all(name in said for said in everywhere(command, tmp_path / name, tmp_path))


def test_results_without_digests_do_not_pass_the_gate(scored: Path, command: Run) -> None:
    metrics = json.loads((scored / "metrics.json").read_text(encoding="utf-8"))
    del metrics["digests"]
    (scored / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    assert "no digests" in refused(command, "gate", scored, *GATE)
    (scored / "metrics.json").write_text(json.dumps(metrics | {"schema": 1, "notes": ["Old."]}), encoding="utf-8")
    assert "cannot be verified" in refused(command, "gate", scored, *GATE)
    for words in (("compare", scored, "--attack", "lira", "--attack", "rmia"), ("report", scored)):
        result = command(*words)
        assert result.exit_code == 0, result.output
        assert "cannot be verified" in result.stderr
        assert result.stderr.count("\n") == 1


# Signals -------------------------------------------------------------------------------------------------------------


def test_python_refuses_signals_that_were_not_scored(scored: Path, tmp_path: Path) -> None:
    """The same shape and membership, other values."""
    signals = read_signals(tmp_path / "signals.npz")
    write_report(scored, Extras(signals=signals))
    np.savez(tmp_path / "other.npz", signals=signals.values + 1, membership=signals.design.matrix)
    with pytest.raises(SignalsError, match=signals.digest[:12]):
        write_report(scored, Extras(signals=read_signals(tmp_path / "other.npz")))


def test_a_report_takes_the_scale_that_it_advises(signals_file: Write, command: Run, tmp_path: Path) -> None:
    file = signals_file(points=300)
    with np.load(file) as archive:
        arrays = {name: archive[name] for name in archive.files}
    np.savez(file, **(arrays | {"signals": 1 / (1 + np.exp(-arrays["signals"]))}))
    run, scale = tmp_path / "run", ("--scale", "probability")
    assert command("score", file, "-o", run, "--attack", "lira", "--quiet", *scale).exit_code == 0
    assert "--scale probability" in refused(command, "report", run, "--signals", file)
    assert command("report", run, "--signals", file, "--quiet", *scale).exit_code == 0
    assert (run / "figures" / "record-1.svg").exists()


def test_the_same_audit_again_gives_the_same_bytes(command: Run, tmp_path: Path) -> None:
    """The time that training took is in the store, and nowhere else."""
    found = [_snapshot(audited(command, tmp_path)) for _ in range(2) if not _remove(tmp_path / "audit0")]
    assert found[0].keys() == found[1].keys()
    assert {"report.html", "metrics.json", "scores.npz", "records.csv"} <= found[0].keys()
    assert [name for name in found[0] if found[0][name] != found[1][name]] == []


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _snapshot(run: Path) -> dict[str, bytes]:
    files = [path for path in run.rglob("*") if path.is_file() and "records" not in path.parts]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def test_signals_that_were_not_scored_are_refused(
    scored: Path, signals_file: Write, command: Run, tmp_path: Path
) -> None:
    file = tmp_path / "signals.npz"
    assert command("report", scored, "--signals", file, "--quiet").exit_code == 0
    assert (scored / "figures" / "record-1.svg").exists()
    with np.load(file) as archive:
        arrays = {name: archive[name] for name in archive.files}
    np.savez(tmp_path / "other.npz", **(arrays | {"signals": arrays["signals"] + np.float32(0.5)}))
    assert "digest" in refused(command, "report", scored, "--signals", tmp_path / "other.npz")


def audited(command: Run, tmp_path: Path, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(300, 4))
    np.savez(tmp_path / f"data{seed}.npz", X=X, y=(X[:, 0] + rng.normal(size=300) > 0).astype(int))
    options = ("--recipe", "sklearn:DecisionTreeClassifier", "--references", 8, "--workers", 1, "--quiet")
    run = tmp_path / f"audit{seed}"
    attacks = ("--attack", "rmia", "--attack", "lira")
    result = command("audit", "--data", tmp_path / f"data{seed}.npz", *options, "-o", run, *attacks)
    assert result.exit_code == 0, result.output
    return run


def test_a_store_that_is_not_of_the_results_is_left_out_with_the_reason(
    signals_file: Write, command: Run, tmp_path: Path
) -> None:
    run, other = audited(command, tmp_path), audited(command, tmp_path, 1)
    own = (run / "report.html").read_text(encoding="utf-8")
    assert (run / "figures" / "record-1.svg").exists()
    assert command("report", run, "--quiet").exit_code == 0
    assert (run / "figures" / "accuracies.svg").exists()
    assert "do not belong to these results" not in own
    # Signals of something else, with more models and points than the store has.
    file = signals_file(models=24, points=400)
    options = ("--target", 20, "--attack", "rmia", "--quiet")
    assert command("score", file, "-o", tmp_path / "else", *options).exit_code == 0
    for name in ("metrics.json", "scores.npz", "records.csv"):  # the command refuses to write them there
        shutil.copy(tmp_path / "else" / name, run / name)
    assert command("report", run, "--quiet").exit_code == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "do not belong to these results" in page
    assert not (run / "figures" / "record-1.svg").exists()
    assert not (run / "figures" / "accuracies.svg").exists(), "they are of other models"
    assert command("report", run, "--signals", file, "--quiet").exit_code == 0
    assert (run / "figures" / "record-1.svg").exists()
    # The store of another audit.
    shutil.rmtree(other / "signals")
    shutil.copytree(run / "signals", other / "signals")
    assert command("report", other, "--quiet").exit_code == 0
    assert "do not belong to these results" in (other / "report.html").read_text(encoding="utf-8")
    assert "digest" in refused(command, "report", other, "--signals", run / "signals")
    # A store scored into the folder of its audit.
    assert command("score", run / "signals", "-o", run, "--attack", "rmia", "--quiet").exit_code == 0
    assert command("report", run, "--quiet").exit_code == 0
    assert (run / "figures" / "record-1.svg").exists()
