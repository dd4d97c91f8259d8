"""`--memory`: the same bytes with and without a limit, refusals, and the peak memory of a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import plmia
from plmia.data import memory
from plmia.errors import MemoryLimitError

COMMAND = [sys.executable, "-c", "from plmia.cli.main import main; main(prog_name='plmia')"]
FILES = ("metrics.json", "scores.npz", "records.csv")
Floats = npt.NDArray[np.float16]


def write_signals(path: Path, n_models: int, n_points: int, n_views: int = 2) -> Path:
    rng = np.random.default_rng(0)
    members = rng.random((n_models, n_points)) < 0.5
    members[1::2] = ~members[0::2]
    level = rng.normal(2, 2, n_points)[:, None]
    signals: Floats = np.stack(
        [(level + row[:, None] + rng.standard_normal((n_points, n_views))).astype(np.float16) for row in members]
    )
    packed = np.packbits(members, axis=1)
    np.savez(path, signals=signals, membership=packed, n_points=n_points, labels=np.arange(n_points) % 3)
    return path


@pytest.mark.parametrize("targets", [(0,), (0, 3)])
def test_results_do_not_depend_on_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, targets: tuple[int, ...]
) -> None:
    signals = write_signals(tmp_path / "s.npz", 8, 3000)
    monkeypatch.setattr(memory, "_SHARE", 10**6)  # nearly every array is kept in a file
    monkeypatch.setattr("plmia.data.npz._MAPPED_SHARE", 0.0)
    for name, limit in (("free", None), ("small", "300MB"), ("large", "8GB")):
        plmia.score(signals, tmp_path / name, target=targets, memory=limit, progress=False)
    for file in FILES:
        free = (tmp_path / "free" / file).read_bytes()
        assert (tmp_path / "small" / file).read_bytes() == free
        assert (tmp_path / "large" / file).read_bytes() == free
    assert {path.name for path in (tmp_path / "small").iterdir()} == set(FILES)


def test_report_and_compare_do_not_depend_on_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals = write_signals(tmp_path / "s.npz", 8, 1000)
    plmia.score(signals, tmp_path / "a", attacks=["pl-mia", "rmia"], progress=False)
    free = plmia.report(tmp_path / "a").report.read_bytes()
    compared = plmia.compare(tmp_path / "a", attacks=["pl-mia", "rmia"]).to_json()
    monkeypatch.setattr(memory, "_SHARE", 10**6)
    assert plmia.report(tmp_path / "a", memory="300MB").report.read_bytes() == free
    assert plmia.compare(tmp_path / "a", attacks=["pl-mia", "rmia"], memory="300MB").to_json() == compared


@pytest.mark.parametrize("command", [["score", "s.npz", "-o", "out"], ["report", "out"], ["compare", "out"]])
def test_a_limit_that_is_not_a_size_is_refused(command: list[str]) -> None:
    done = subprocess.run([*COMMAND, *command, "--memory", "much"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "'much'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_needs_more_is_refused_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals = write_signals(tmp_path / "s.npz", 8, 500)
    monkeypatch.setattr("plmia.results.folder.BYTES_PER_RECORD", 10**6)
    with pytest.raises(MemoryLimitError, match=r"500 records .* limit is 300 MB"):
        plmia.score(signals, tmp_path / "out", memory="300MB", progress=False)
    assert not (tmp_path / "out" / "metrics.json").exists()


# Not `resource.getrusage`, which includes the memory of the parent before the program starts.
PEAK = """
import sys, plmia
plmia.score(sys.argv[1], sys.argv[2], attacks=["pl-mia-eb"], memory=sys.argv[3], progress=False)
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_the_peak_stays_within_the_limit(tmp_path: Path) -> None:
    # 106 MB of signals, 26 MB of membership: without a limit, the peak is about 600 MB.
    signals = write_signals(tmp_path / "s.npz", 66, 400_000)
    command = [sys.executable, "-c", PEAK, str(signals), str(tmp_path / "out"), "320MB"]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, check=True)
    assert int(done.stdout) * 1024 < 320 * 10**6
