"""A slice of every campaign; `make hostile` runs them at length."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.hostile import campaign, faults, inputs
from tests.hostile.campaign import GOOD, judged, tried

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, signals and device files")
SLICE = 40


@pytest.mark.parametrize("name", inputs.CAMPAIGNS)
def test_input(name: str, tmp_path: Path) -> None:
    found = list(inputs.CAMPAIGNS[name][0](tmp_path, SLICE, np.random.default_rng(0)))
    assert len(found) > SLICE / 2
    assert [finding for finding in found if finding.outcome not in GOOD] == []


@pytest.mark.parametrize("name", faults.CAMPAIGNS)
def test_faults(name: str, repository: Path) -> None:
    """In a process of its own, since it forks."""
    words = [sys.executable, "-m", "tests.hostile", "--only", name, "--scale", "0.1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=repository, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_goes_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried("", lambda: 1, lambda value: value == 2).outcome == "wrong"
    assert tried("", lambda: 1 / 0, bool).outcome == "traceback"
    assert judged("", ["attacks"], lambda _: False).outcome == "wrong"
    assert judged("", ["score", tmp_path / "none"], lambda _: True).outcome == "refused"
    monkeypatch.setattr(campaign, "command", lambda *_: SimpleNamespace(exit_code=1, stderr="Traceback", exc_info=None))
    assert judged("", ["attacks"], lambda _: True).outcome == "traceback"


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
