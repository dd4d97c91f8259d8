"""Ctrl-C and kill in the middle of scoring: an earlier result stays, and nothing half-written passes for a result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click.testing
import pytest

Run = Callable[..., click.testing.Result]
Write = Callable[..., Path]

COMMAND = [sys.executable, "-c", "from plmia.cli.main import main; main(prog_name='plmia')"]
HEADER = """
import time
from pathlib import Path
from plmia import Attack, NoCalibration

class S:
    calls = 0
    def __call__(self, view):
        S.calls += 1
        if S.calls == CALL: act()
        return view.target
"""


def _snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("call", [1, 3])
def test_ctrl_c_leaves_nothing_behind(call: int, signals_file: Write, command: Run, tmp_path: Path) -> None:
    """At the first target, and at the third, when scores of two have been written."""
    own = f"CALL = {call}\ndef act(): raise KeyboardInterrupt\n{HEADER}\nMINE = Attack('mine', S(), NoCalibration())\n"
    (tmp_path / "mine.py").write_text(own)
    file, out = signals_file(), tmp_path / "out"
    assert command("score", file, "-o", out, "--quiet", "--attack", "lira").exit_code == 0
    before = _snapshot(out)
    options = ["--attack", "lira", "--attack", f"{tmp_path / 'mine.py'}:MINE"]
    for folder in (out, tmp_path / "new" / "er"):
        result = command("score", file, "-o", folder, *options, "--target", 0, "--target", 2, "--target", 4)
        assert result.exit_code == 130
        assert "Traceback" not in result.stderr
        assert result.stdout == ""
    assert _snapshot(out) == before
    assert not (tmp_path / "new").exists()


def _start_and_wait(arguments: list[str], reached: Path) -> subprocess.Popen[str]:
    """Start the command and wait until it is in the middle of scoring."""
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if reached.exists():
            return process
        if process.poll() is not None:
            break
        time.sleep(0.1)
    process.kill()
    raise AssertionError(process.communicate()[1])


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_a_killed_run_leaves_no_result(how: str, signals_file: Write, command: Run, tmp_path: Path) -> None:
    reached, out, file = tmp_path / "reached", tmp_path / "out", signals_file()
    act = f"def act():\n    Path({str(reached)!r}).touch()\n    time.sleep(60)\n"
    (tmp_path / "mine.py").write_text(f"CALL = 2\n{HEADER}{act}MINE = Attack('mine', S(), NoCalibration())\n")
    options = ["--attack", "lira", "--attack", f"{tmp_path / 'mine.py'}:MINE", "--target", "0", "--target", "2"]
    process = _start_and_wait(["score", str(file), "-o", str(out), *options], reached)
    process.send_signal(getattr(signal, how))
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == (-signal.SIGKILL if how == "SIGKILL" else 130)
    assert stdout == ""
    assert "Traceback" not in stderr
    if how == "SIGINT":
        assert not out.exists()
    else:
        assert not (out / "metrics.json").exists()
        assert not (out / "scores.npz").exists()
    # The same again, to its end: what the killed run left is cleared away.
    assert command("score", file, "-o", out, "--quiet", "--attack", "lira").exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == ["metrics.json", "records.csv", "scores.npz"]


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_a_killed_run_leaves_an_earlier_result_alone(signals_file: Write, command: Run, tmp_path: Path) -> None:
    reached, out, file = tmp_path / "reached", tmp_path / "out", signals_file()
    assert command("score", file, "-o", out, "--quiet", "--attack", "lira").exit_code == 0
    before = _snapshot(out)
    act = f"def act():\n    Path({str(reached)!r}).touch()\n    time.sleep(60)\n"
    (tmp_path / "mine.py").write_text(f"CALL = 1\n{HEADER}{act}MINE = Attack('mine', S(), NoCalibration())\n")
    options = ["--attack", "lira", "--attack", f"{tmp_path / 'mine.py'}:MINE"]
    process = _start_and_wait(["score", str(file), "-o", str(out), *options], reached)
    process.kill()
    process.communicate(timeout=30)
    assert {name: content for name, content in _snapshot(out).items() if name in before} == before


SLOW_IMPORT = """
import sys, time
from importlib.abc import MetaPathFinder
class Slow(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "plmia.cli.main":
            print("imports", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from plmia.cli.start import run
run()
"""


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_ctrl_c_during_imports_gives_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_IMPORT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "imports\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr == "plmia: stopped\n"
