"""Every verb of the command is a function of the same name: both write the same files and find the same numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

import plmia
from plmia.cli.main import COMMANDS
from plmia.errors import OutputError, ReferencesError
from plmia.signals.store import SignalStore

Run = Callable[..., click.testing.Result]
FILES = ("metrics.json", "scores.npz", "records.csv")


def same_files(one: Path, other: Path, *names: str) -> None:
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.fixture
def scored(signals_file: Callable[..., Path], command: Run, tmp_path: Path) -> Path:
    result = command("score", signals_file(points=400), "-o", tmp_path / "scored", "--quiet")
    assert result.exit_code == 0, result.output
    return tmp_path / "scored"


def test_every_verb_has_a_function() -> None:
    # `plmia.ATTACKS` is the list that `plmia attacks` prints; a shell alone needs `plmia completion`.
    verbs = {{"import": "import_signals"}.get(name, name) for name in COMMANDS} - {"attacks", "completion"}
    assert verbs <= set(plmia.__all__)
    assert all(callable(getattr(plmia, verb)) for verb in verbs)


def test_score(signals_file: Callable[..., Path], command: Run, tmp_path: Path) -> None:
    path = signals_file(points=400)
    options = ("--target", 0, "--target", 3, "--attack", "rmia", "--attack", "pl-mia", "--references", 8, "--seed", 2)
    assert command("score", path, "-o", tmp_path / "command", *options, "--quiet").exit_code == 0
    found = plmia.score(
        path, tmp_path / "python", target=[0, 3], attacks=["rmia", plmia.PL_MIA], references=8, seed=2, progress=False
    )
    same_files(tmp_path / "command", tmp_path / "python", *FILES)
    assert found.folder == tmp_path / "python"
    assert found.result.verdict.text in repr(found)
    assert len(found.records("rmia", 3)) > 0
    assert "roc" in found.figures()
    assert found.report == tmp_path / "python" / "report.html"
    assert found.report.exists()


def test_score_takes_signals_and_finds_a_folder_of_its_own(
    signals_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = plmia.score(plmia.read_signals(signals_file()), attacks=["attack-p", "rmia"], target="all", progress=False)
    assert found.folder.parent == tmp_path
    assert len(found.result.about.targets) == 16


def test_results_of_other_signals_are_replaced_with_a_warning(
    scored: Path, signals_file: Callable[..., Path], command: Run
) -> None:
    other = signals_file(1, "other.npz")
    with pytest.warns(plmia.PlmiaWarning, match="other signals"):
        plmia.score(other, scored, attacks=["rmia"], progress=False)
    again = command("score", signals_file(), "-o", scored, "--attack", "rmia")
    assert again.stderr == f"plmia: replaced the results of other signals in {scored}\n"


def test_audit_and_report(command: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(160) % 2
    data = tmp_path / "data.npz"
    np.savez(data, X=rng.normal(y[:, None], 1.5, (160, 4)).astype(np.float32), y=y)
    recipe, attacks = "sklearn:DecisionTreeClassifier?max_depth=4", ("rmia", "lira-fixed")
    options = ("--references", 4, "--workers", 1, "--seed", 1, *(f"--attack={name}" for name in attacks), "--quiet")
    result = command("audit", "--data", data, "--recipe", recipe, "-o", tmp_path / "command", *options)
    assert result.exit_code == 0, result.output
    arguments: dict[str, Any] = {"references": 4, "seed": 1, "attacks": attacks, "engine": plmia.Inline()}
    found = plmia.audit(recipe, data, folder=tmp_path / "python", progress=False, **arguments)
    same_files(tmp_path / "command", tmp_path / "python", "scores.npz", "records.csv")
    assert found.report.read_text(encoding="utf-8").startswith("<!")
    # Labelled data in place of the file, and again with arrays, which trains nothing new.
    values = plmia.read_data(data)
    for X, more in ((values, {}), (values.X, {"y": values.y})):
        again = plmia.audit(recipe, X, folder=tmp_path / "arrays", progress=False, **arguments, **more)
        same_files(again.folder, tmp_path / "python", "scores.npz")
    page = found.report.read_bytes()
    found.report.unlink()
    assert plmia.report(found.folder, data=data).report.read_bytes() == page
    found.report.unlink()
    assert command("report", found.folder, "--data", data, "--quiet").exit_code == 0
    assert found.report.read_bytes() == page


def test_demo(command: Run, tmp_path: Path) -> None:
    options = ("--references", 4, "--seed", 1, "--quiet")
    assert command("demo", "-o", tmp_path / "command", *options).exit_code == 0
    plmia.demo(tmp_path / "python", references=4, seed=1, progress=False)
    same_files(tmp_path / "command", tmp_path / "python", "scores.npz", "records.csv")


def test_gate(scored: Path, command: Run) -> None:
    result = command("gate", scored, "--max-tpr", 0.05, "--at-fpr", 0.01, "--json")
    decision = plmia.gate(scored, max_tpr=0.05, at_fpr=0.01)
    assert decision.to_json() == json.loads(result.stdout)
    assert (result.exit_code, decision.outcome, decision.passed) == (3, "fail", False)
    assert str(decision) == decision.text


def test_compare(scored: Path, command: Run, signals_file: Callable[..., Path], tmp_path: Path) -> None:
    plmia.score(signals_file(points=400, shift=0.5), tmp_path / "after", progress=False)
    result = command("compare", scored, tmp_path / "after", "--attack", "rmia", "--seed", 3, "--json")
    found = plmia.compare(scored, tmp_path / "after", attacks=["rmia"], seed=3)
    assert found.to_json() == json.loads(result.stdout)
    lines = repr(found).splitlines()
    assert lines[0] == found.text == found.pairs[0].text
    assert [line.split()[:2] for line in lines[3:]] == [["rmia", "AUC"], ["rmia", "TPR@1%"]]


def test_results_are_taken_instead_of_their_folder(signals_file: Callable[..., Path], tmp_path: Path) -> None:
    path = signals_file(points=400)
    found = plmia.score(path, tmp_path / "run", attacks=["rmia", "lira"], progress=False)
    limits = {"max_tpr": 0.05, "at_fpr": 0.01}
    assert plmia.gate(found, **limits) == plmia.gate(found.folder, **limits)
    compared = plmia.compare(found, attacks=["rmia", "lira"]).to_json()
    assert compared == plmia.compare(found.folder, attacks=["rmia", "lira"]).to_json()
    assert plmia.report(found).report == found.folder / "report.html"
    with pytest.raises(plmia.PlmiaError, match="run holds results but no signals"):
        plmia.plan(found, progress=False)
    for verb in (plmia.compare, plmia.report, plmia.plan, lambda run: plmia.gate(run, **limits)):
        with pytest.raises(plmia.PlmiaError, match="a list was given"):
            verb([found])


def test_plan(signals_file: Callable[..., Path], command: Run) -> None:
    path = signals_file(points=400)
    result = command("plan", path, "--fpr", 0.05, "--budget", 20, "--attack", "rmia", "--json", "--quiet")
    made = plmia.plan(path, fpr=0.05, budget=20, attack="rmia", progress=False)
    assert json.loads(json.dumps(made.to_json())) == json.loads(result.stdout)
    assert made.text.splitlines() == list(made.words)
    first, heading, head, *rows = repr(made).splitlines()
    assert (first, heading, head.split()[0]) == (made.words[0], made.heading, "references")
    assert len(rows) == len(made.table) - 1


def test_design(command: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "groups.npy", np.arange(50) // 2)
    options = ("--records", 50, "--references", 6, "--design", "halves", "--seed", 4)
    assert command("design", *options, "--groups", tmp_path / "groups.npy", "-o", tmp_path / "command").exit_code == 0
    groups = np.arange(50) // 2
    run = plmia.design(50, references=6, design="halves", seed=4, groups=groups, folder=tmp_path / "python")
    same_files(tmp_path / "command", tmp_path / "python", "design.npz")
    assert repr(run) == f"Run({str(tmp_path / 'python')!r}): 7 models, 50 records, 0 recorded"


def test_import_signals(command: Run, simulate: Callable[..., Any], tmp_path: Path) -> None:
    arrays = simulate(0, models=6, points=40)
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays/probabilities.npy", 1 / (1 + np.exp(-arrays["signals"])))
    for name in ("membership", "labels"):
        np.save(tmp_path / f"arrays/{name}.npy", arrays[name])
    assert command("import", "arrays", tmp_path / "arrays", "-o", tmp_path / "one.npz", "--quiet").exit_code == 0
    imported = plmia.import_signals("arrays", tmp_path / "arrays", tmp_path / "two.npz", progress=False)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    assert imported.n_models == 6


def test_reproduce(command: Run, tmp_path: Path) -> None:
    assert command("reproduce", "table-1", "--quick", "-o", tmp_path / "command", "--quiet").exit_code == 0
    found = plmia.reproduce("table-1", tmp_path / "python", quick=True, progress=False)
    same_files(tmp_path / "command", tmp_path / "python", "table-1.json", "table-1.md")
    assert found == {"table-1": json.loads((tmp_path / "python" / "table-1.json").read_text(encoding="utf-8"))}


def test_an_audit_and_results_of_another_kind_are_not_replaced(
    signals_file: Callable[..., Path], command: Run, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(160) % 2
    data = plmia.LabelledData(rng.normal(y[:, None], 1.5, (160, 4)), y)
    run, scored, screened = (tmp_path / name for name in ("run", "scored", "screened"))
    recipe = "sklearn:DecisionTreeClassifier?max_depth=4"
    options: dict[str, Any] = {"references": 4, "attacks": ["rmia"], "engine": plmia.Inline(), "progress": False}
    plmia.audit(recipe, data, folder=run, **options)
    path = signals_file(points=400)
    plmia.score(path, scored, attacks=["rmia"], progress=False)
    plmia.screen(path, folder=screened, progress=False)

    def contents(folder: Path) -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    before = [contents(folder) for folder in (run, scored, screened)]
    for verb, folder in (("score", run), ("screen", run), ("screen", scored), ("score", screened)):
        refused = command(verb, path, "-o", folder)
        assert refused.exit_code == 2, refused.output
        assert str(folder) in refused.stderr
        with pytest.raises(OutputError, match="another folder"):
            getattr(plmia, verb)(path, folder=folder, progress=False)
    for folder in (scored, screened):
        with pytest.raises(OutputError, match="another folder"):
            plmia.audit(recipe, data, folder=folder, **options)
    assert [contents(folder) for folder in (run, scored, screened)] == before
    # The audit's own signals, in whatever form they are given, and the audit itself after its signals were removed.
    for own in (run, run / "signals"):
        assert plmia.score(own, run, attacks=["rmia"], progress=False).folder == run
    assert plmia.score(SignalStore.open(run / "signals").signals(), run, attacks=["rmia"], progress=False).folder == run
    plmia.score(run, attacks=["rmia"], progress=False)
    shutil.rmtree(run / "signals")
    assert plmia.audit(recipe, data, folder=run, **options).result.about.audit is not None


@pytest.mark.parametrize("references", ["8", 3.5, 8.0])
def test_a_number_of_references_is_whole(references: Any, signals_file: Callable[..., Path], tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).normal(size=(80, 2)), np.arange(80) % 2
    calls: list[Callable[[], object]] = [
        lambda: plmia.audit("sklearn:DecisionTreeClassifier", X, y, references=references, folder=tmp_path / "a"),
        lambda: plmia.design(80, references=references, folder=tmp_path / "d"),
        lambda: plmia.score(signals_file(), tmp_path / "s", references=references, progress=False),
    ]
    for call in calls:
        with pytest.raises(ReferencesError, match="whole number"):
            call()
    assert not list(tmp_path.glob("[ads]"))


def test_one_attack_may_be_given_by_its_name(scored: Path, signals_file: Callable[..., Path], tmp_path: Path) -> None:
    path = signals_file(points=400)
    for attack in ("rmia", plmia.RMIA):
        found = plmia.score(path, tmp_path / "one", attacks=attack, progress=False)
        assert list(found.result.attacks) == ["rmia"]
    limits = {"max_tpr": 0.9, "at_fpr": 0.01}
    assert plmia.gate(scored, **limits, attacks="rmia") == plmia.gate(scored, **limits, attacks=["rmia"])
    assert {row.label for row in plmia.compare(scored, found, attacks="rmia").pairs[0].rows} == {"rmia"}


def test_a_folder_is_not_compared_with_itself(scored: Path, command: Run) -> None:
    result = command("compare", scored, scored / ".")
    assert result.exit_code == 2
    assert "given twice" in result.stderr
