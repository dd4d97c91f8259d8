"""A slice of every campaign; `make hostile` runs them at length."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.hostile import campaign, faults, inputs
from tests.hostile.campaign import GOOD, judged, tried

import plmia
from plmia.attacks import scoring, statistics
from plmia.attacks.groups import Groups
from plmia.results.saved import SavedRun

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, signals and device files")
SLICE = 40
SCALES = {"kills": "0.05", "errors and full disks": "0.025", "code of users": "0.05", "standard streams": "0.06"}


@pytest.mark.parametrize("name", inputs.CAMPAIGNS)
def test_input(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = list(inputs.CAMPAIGNS[name][0](tmp_path, SLICE, np.random.default_rng(0)))
    assert len(found) > SLICE / 2
    assert [finding for finding in found if finding.outcome not in GOOD] == []


@pytest.mark.parametrize("name", faults.CAMPAIGNS)
def test_faults(name: str, repository: Path) -> None:
    """In a process of its own, since it forks and mounts."""
    words = [sys.executable, "-m", "tests.hostile", "--only", name, "--scale", SCALES.get(name, "0.1")]
    if name in ("code of users", "standard streams"):  # other cases at every commit
        count = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=repository, capture_output=True, check=False)
        words += ["--seed", count.stdout.decode().strip() or "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=repository, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if "skipped: " in done.stderr:
        pytest.skip(done.stderr.strip())


def test_what_goes_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried("", lambda: 1, lambda value: value == 2).outcome == "wrong"
    assert tried("", lambda: 1 / 0, bool).outcome == "traceback"
    assert judged("", ["attacks"], lambda _: False).outcome == "wrong"
    assert judged("", ["score", tmp_path / "none"], lambda _: True).outcome == "refused"
    monkeypatch.setattr(campaign, "command", lambda *_: SimpleNamespace(exit_code=1, stderr="Traceback", exc_info=None))
    assert judged("", ["attacks"], lambda _: True).outcome == "traceback"


# Campaigns of which accepted cases are scored, and all that begin with undamaged scores.
SCORED = [
    *("mutants of signals", "mutants inside signals", "mutants of stores", "mutants of designs"),
    *("strange arrays in signals", "strange values in JSON", "options"),
]
SCORES = [*SCORED, "mutants of results", "strange paths"]


def _permuted(function: Callable[..., Any], active: Callable[[], bool]) -> Callable[..., Any]:
    def call(*given: Any, **more: Any) -> Any:
        found = function(*given, **more)
        # The same permutation each time, so that two runs do not differ.
        wrong = isinstance(found, np.ndarray) and active()
        return np.random.default_rng(len(found)).permutation(found) if wrong else found

    return call


def _outcomes(name: str, folder: Path, count: int) -> set[str]:
    with contextlib.chdir(folder):
        return {finding.outcome for finding in inputs.CAMPAIGNS[name][0](folder, count, np.random.default_rng(0))}


@pytest.mark.parametrize("name", SCORES)
def test_shuffled_scores_are_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "_raw_scores", _permuted(scoring._raw_scores, lambda: True))
    assert "wrong" in _outcomes(name, tmp_path, 30)


@pytest.mark.parametrize("part", ["scores", "statistics", "people"])
@pytest.mark.parametrize("name", SCORED)
def test_every_accepted_case_is_compared(name: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shuffled after the undamaged runs have ended: scores, statistics, or the sums over the records of people."""
    undamaged = [True]

    def scored(*given: Any, **more: Any) -> Any:
        undamaged[:] = [True]
        try:
            return campaign.scored(*given, **more)
        finally:
            undamaged[:] = [False]

    monkeypatch.setattr(inputs, "scored", scored)
    # Two campaigns have no undamaged run.
    undamaged[:] = [name not in ("mutants inside signals", "strange arrays in signals")]
    active = lambda: not undamaged[0]  # noqa: E731
    if part == "scores":
        monkeypatch.setattr(scoring, "_raw_scores", _permuted(scoring._raw_scores, active))
    elif part == "people":
        monkeypatch.setattr(Groups, "sum", _permuted(Groups.sum, active))
    else:
        for statistic in (statistics.Loss, statistics.ReferenceRank):
            monkeypatch.setattr(statistic, "__call__", _permuted(statistic.__call__, active))
    counts = {"mutants of signals": 400, "mutants of stores": 200, "mutants of designs": 200}
    assert _outcomes(name, tmp_path, counts.get(name, 60)) >= {"wrong", "refused"}


@pytest.mark.parametrize("name", ["mutants of results", "strange values in JSON", "options"])
def test_what_gate_compare_and_report_print_is_compared(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved scores are shuffled when they are read."""
    monkeypatch.setattr(SavedRun, "_array", _permuted(SavedRun._array, lambda: True))
    assert "wrong" in _outcomes(name, tmp_path, 150)


# In every process that is started.
SHUFFLED = """
import numpy as np
import plmia.attacks.scoring as scoring
right = scoring._raw_scores
scoring._raw_scores = lambda *given: np.random.default_rng(0).permutation(right(*given))
"""


@pytest.mark.parametrize("name", faults.CAMPAIGNS)
def test_shuffled_scores_are_found_after_faults(name: str, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SHUFFLED)
    words = [sys.executable, "-m", "tests.hostile", "--only", name, "--scale", "0.03"]
    path = os.pathsep.join([str(tmp_path), str(Path(plmia.__file__).parents[1])])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(
        words, cwd=repository, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    if "skipped: " in done.stderr:
        pytest.skip(done.stderr.strip())
    assert "  wrong: " in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1


def test_hangs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setattr(campaign, "MAX_SECONDS", 1)
    assert tried("", lambda: time.sleep(30), bool).outcome == "hang"


def test_a_store_that_loses_a_model_is_found() -> None:
    scenario = faults.SCENARIOS["other models"]
    ended = campaign.Ended(137, "")
    before, after = {0: b"a", 1: b"b"}, {0: b"a", 1: b"b", 2: b"c"}
    states = {"lost": {0: b"a"}, "wrong": before | {2: b"x"}, "stopped": before}
    for outcome, state in states.items():
        assert faults._after_fault(scenario, ended, lambda s=state: s, before, after) == outcome
    assert faults._after_fault(scenario, campaign.Ended(1, ""), dict, before, after) == "traceback"


def _names(folder: Path) -> dict[str, bytes]:
    return {path.name: b"" for path in folder.iterdir()}


def _count(folder: Path) -> int:
    """Add one to a number in a file, without a lock."""
    number = int((folder / "number").read_text()) if "number" in _names(folder) else 0
    _names(folder)
    (folder / "number").write_text(str(number + 1))
    return 0


def _add(name: str, others: bool = True) -> Callable[[Path], int]:
    """Make a folder; what another command made meanwhile is removed unless ``others`` may stay."""

    def add(folder: Path) -> int:
        before = _names(folder)
        (folder / name).mkdir(exist_ok=True)
        for new in _names(folder).keys() - before.keys() - {name}:
            if not others:
                (folder / new).rmdir()
        return 0

    return add


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_what_two_commands_at_once_break_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In turn, all of them work."""
    number = lambda folder: (folder / "number").read_text() if "number" in _names(folder) else ""  # noqa: E731
    pairs = {
        "loses an update": faults.Pair(lambda _: None, _count, _count, number, grows=False),
        "loses a model": faults.Pair(lambda _: None, _add("a", others=False), _add("b"), _names),
        "loses nothing": faults.Pair(lambda _: None, _add("a"), _add("b"), _names),
    }
    monkeypatch.setattr(faults, "PAIRS", pairs)
    found = {name: set[str]() for name in pairs}
    for name in pairs:
        for finding in faults.between_operations(tmp_path, 100, np.random.default_rng(0), (name,)):
            found[name].add(finding.outcome)
    assert "wrong" in found["loses an update"]
    assert "lost" in found["loses a model"]
    assert found["loses nothing"] == {"right", "stopped"}


def test_only_interrupts_before_plmia_are_counted_apart() -> None:
    begin = "Could not import runpy module\nTraceback (most recent call last):\n"
    frame = '  File "<frozen runpy>", line 15, in <module>\n'
    own = f'  File "{Path(plmia.__file__).parent / "cli" / "start.py"}", line 6, in <module>\n    import signal\n'
    assert faults.interrupted_early(f"{begin}{frame}KeyboardInterrupt\n\n")
    assert faults.interrupted_early(f"Exception ignored in: <function cb>\n{begin}{frame}KeyboardInterrupt: \n")
    assert not faults.interrupted_early(f"{begin}{frame}{own}{frame}KeyboardInterrupt\n")
    assert not faults.interrupted_early(f"{begin}{frame}ValueError: 1\n")
    assert not faults.interrupted_early("plmia: stopped\n")


def test_states_after_a_full_disk() -> None:
    scenario = faults.ON_DISK["audit"]
    results, page = {"metrics.json": 1}, b"page"
    before, after = ({0: b"a"}, None), ({0: b"a", 1: b"b"}, (results, page))
    assert faults._impossible_state(scenario, ({}, None), before, after) == "lost"
    for state in ({"metrics.json": 2}, page), (results, b"other"):
        assert faults._impossible_state(scenario, (after[0], state), before, after) == "wrong"
    for state in (None, (results, None), (results, page)):
        assert faults._impossible_state(scenario, (after[0], state), before, after) is None
    assert faults._impossible_state(faults.ON_DISK["compare"], b"x", b"of before", b"new") == "wrong"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # a fork beside threads of pytest
def test_faults_are_injected(tmp_path: Path) -> None:
    """At the second of two operations."""

    def work() -> int:
        injection = faults.Injection(2, "full")
        injection.install()
        (tmp_path / "a").mkdir()
        try:
            (tmp_path / "b").mkdir()
        except OSError as error:
            return 2 if "No space" in str(error) and injection.names == ["mkdir", "mkdir"] else 1
        return 1

    pid = campaign.start_child(work, tmp_path / "log")
    assert campaign.wait_for(pid, tmp_path / "log").code == 2
