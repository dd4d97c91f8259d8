"""What a shell sees: Tab finds commands, options and choices, and Ctrl-C ends any command with 130 and one line."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click.testing
import pytest

Run = Callable[..., click.testing.Result]

COMMAND = [sys.executable, "-c", "from plmia.cli.main import main; main(prog_name='plmia')"]
SLICE = "examples/cifar10_cnn_slice.npz"
SLOW_ATTACK = """
import time
from pathlib import Path

from plmia import Attack, NoCalibration


def wait(view):
    Path("started").touch()
    time.sleep(120)


SLOW = Attack("slow", wait, NoCalibration())
"""


def complete(line: str) -> list[str]:
    """Ask as bash does: what may the last word of the line become?"""
    words = line.split(" ")
    asked = {"_PLMIA_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(COMMAND, capture_output=True, text=True, env=os.environ | asked, check=False, timeout=60)
    assert done.stderr == ""
    return [entry.partition(",")[2] for entry in done.stdout.splitlines()]


def test_commands_options_and_choices_are_completed() -> None:
    assert complete("plmia sco") == ["score"]
    assert complete("plmia sc") == ["score", "screen"]
    assert complete("plmia comp") == ["compare", "completion"]
    assert complete("plmia score --mo") == ["--mode"]
    assert complete("plmia score --mode o") == ["online", "offline"]
    assert complete("plmia completion z") == ["zsh"]
    assert complete("plmia import p") == ["privacy-meter"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_takes(shell: str, command: Run) -> None:
    result = command("completion", shell)
    assert result.exit_code == 0
    assert f"_PLMIA_COMPLETE={shell}_complete" in result.stdout
    assert "plmia" in result.stdout
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=result.stdout, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_by_the_script(command: Run, tmp_path: Path) -> None:
    program = tmp_path / "plmia"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{COMMAND[2]}" "$@"\n')
    program.chmod(0o755)
    script = command("completion", "bash").stdout
    ask = 'COMP_WORDS=(plmia sco); COMP_CWORD=1; _plmia_completion plmia; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}"],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("score\n", "")


def test_another_shell_is_refused(command: Run) -> None:
    result = command("completion", "tcsh")
    assert result.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in result.stderr


# Ctrl-C --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["score", "plan", "gate", "compare"])
def test_ctrl_c_ends_every_command_with_130_and_one_line(
    name: str, command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    reader = {
        "score": "score.open_signals",
        "plan": "pilots.open_signals",
        "gate": "gate.SavedRun",
        "compare": "verbs.SavedRun",
    }
    monkeypatch.setattr(f"plmia.auditing.{reader[name]}", interrupted)
    options = {"score": ["-o", tmp_path / "out"], "gate": ["--max-tpr", 0.1, "--at-fpr", 0.01]}.get(name, [])
    result = command(name, tmp_path / "input", *options)
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "plmia: stopped; run the same command again to continue\n"


def test_ctrl_c_while_a_compiled_module_starts(command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Such modules raise an ImportError instead; one without Ctrl-C stays an error."""

    def failing(cause: BaseException | None) -> Callable[..., None]:
        def fail(*_arguments: object, **_options: object) -> None:
            raise ImportError("initialization failed") from cause

        return fail

    monkeypatch.setattr("plmia.auditing.score.open_signals", failing(KeyboardInterrupt()))
    result = command("score", tmp_path / "input", "-o", tmp_path / "out")
    assert result.exit_code == 130
    assert result.stderr == "plmia: stopped; run the same command again to continue\n"
    monkeypatch.setattr("plmia.auditing.score.open_signals", failing(None))
    result = command("score", tmp_path / "input", "-o", tmp_path / "out")
    assert isinstance(result.exception, ImportError)


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_a_real_interrupt_ends_with_130(repository: Path, tmp_path: Path) -> None:
    """An attack of one's own holds the command in the middle of its work, and says when it does."""
    (tmp_path / "slow.py").write_text(SLOW_ATTACK)
    arguments = ["score", str(repository / SLICE), "--attack", "slow.py:SLOW", "-o", "out", "--quiet"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, *arguments], **pipes, text=True, cwd=tmp_path) as process:
        try:
            until = time.monotonic() + 60
            while not (tmp_path / "started").exists() and process.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, stdout) == (130, "")
    assert stderr == "plmia: stopped; run the same command again to continue\n"
