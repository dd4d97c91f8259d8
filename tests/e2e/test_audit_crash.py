"""An audit that is killed again and again: the same signals in the end, and no finished model is trained twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from plmia.signals.store import SignalStore
from plmia.training.train import seed_of

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")

N_KILLS, REFERENCES, SECONDS = 20, 12, 0.2

# Each model takes a while; who trained it in which run is written down first.
OWN = f"""
import os, time
from pathlib import Path
import numpy as np

def train(X, y, seed):
    with Path(__file__).with_suffix(".log").open("a") as log:
        log.write(f"{{os.environ['RUN']}} {{seed}}\\n")
    time.sleep({SECONDS})
    return X + np.random.default_rng(seed).normal(0, 0.01, X.shape), y

def query(model, X, y):
    points, labels = model
    gaps = np.linalg.norm(X[:, None] - points[None], axis=2)
    return np.stack([-gaps[:, labels == c].min(axis=1) for c in range(2)], axis=1)
"""


def start(tmp_path: Path, folder: str, run: str) -> subprocess.Popen[str]:
    code = "from plmia.cli.main import main; main(prog_name='plmia')"
    options = ["--data", "data.npz", "--recipe", "function:own.py", "--references", str(REFERENCES), "--workers", "1"]
    return subprocess.Popen(
        [sys.executable, "-c", code, "audit", *options, "--attack", "rmia", "-o", folder, "--quiet"],
        cwd=tmp_path,
        env=os.environ | {"RUN": run},
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    _, stderr = process.communicate(timeout=120)
    assert (process.returncode, stderr) == (0, "")


def trained_in(tmp_path: Path, run: str) -> list[int]:
    """Seeds of the models whose training one run began."""
    log = tmp_path / "own.log"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [int(seed) for name, seed in lines if name == run]


def finished_in(folder: Path) -> set[int]:
    return set(SignalStore.open(folder).finished()) if (folder / "store.json").exists() else set()


def kill_at_random(process: subprocess.Popen[str], tmp_path: Path, run: str, rng: np.random.Generator) -> bool:
    """Kill a run: one in four at any time from its start, the others at any time once it trains."""
    if rng.random() < 0.25:
        time.sleep(rng.uniform(0, 1.0))
    else:
        end = time.monotonic() + 60
        while process.poll() is None and not trained_in(tmp_path, run) and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 3 * SECONDS))
    alive = process.poll() is None
    with process:  # does not wait for its workers: the next run begins while they may still be there
        process.kill()
    return alive


def test_killed_at_twenty_random_moments(tmp_path: Path) -> None:
    rng = np.random.default_rng(20)
    y = np.arange(80) % 2
    np.savez(tmp_path / "data.npz", X=rng.normal(y[:, None], 1.0, (80, 4)), y=y)
    (tmp_path / "own.py").write_text(OWN)

    signals = tmp_path / "killed/signals"
    n_alive, progress = 0, []
    for kill in range(N_KILLS):
        before = finished_in(signals)
        run = f"run{kill}"
        n_alive += kill_at_random(start(tmp_path, "killed", run), tmp_path, run, rng)
        assert not {seed_of(0, model, 0) for model in before} & set(trained_in(tmp_path, run))
        after = finished_in(signals)
        assert before <= after
        progress.append(len(after))
        if (signals / "store.json").exists():
            assert SignalStore.open(signals).verify() == []
        assert not (tmp_path / "killed/metrics.json").exists() or len(after) == REFERENCES + 1
    # It was killed in the middle of things, not before they began or after all was done.
    assert n_alive >= N_KILLS // 2
    assert len(set(progress)) > 3

    before = finished_in(signals)
    finish(start(tmp_path, "killed", "last"))
    missing = sorted(set(range(REFERENCES + 1)) - before)
    assert trained_in(tmp_path, "last") == [seed_of(0, model, 0) for model in missing]

    finish(start(tmp_path, "whole", "whole"))
    assert trained_in(tmp_path, "whole") == [seed_of(0, model, 0) for model in range(REFERENCES + 1)]
    for name in ("signals/signals.npy", "signals/membership.npy", "metrics.json", "records.csv", "scores.npz"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    names = {path.name for path in (tmp_path / "killed").iterdir() if not path.name.endswith(".tmp")}
    assert names == {"figures", "metrics.json", "records.csv", "report.html", "scores.npz", "signals", "trainings.csv"}
