"""What campaigns share: outcomes, the command in this process, and the content of results.

A campaign is a function ``(folder, count, rng)`` that tries about ``count`` cases below ``folder`` and yields one
`Finding` for each. A case is *right* (the result of the undamaged input), *refused* (exit code 2 and one sentence) or
*stopped* (killed or interrupted as intended, with everything that was finished kept). A case is *early* if Ctrl-C came
before Python had read the first line of plmia; these are counted apart. Anything else is a fault. A *note* is no case:
its text is printed with the table.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click.testing
import numpy as np
from tests.hostile.expected import WrongNumberError, arrays_in, check_results, check_scored

from plmia.cli.main import main
from plmia.data.files import open_parts
from plmia.errors import PlmiaError
from plmia.results.saved import SavedRun

Outcome = Literal["right", "refused", "stopped", "early", "wrong", "traceback", "hang", "lost", "note"]
GOOD = ("right", "refused", "stopped", "early", "note")
Arrays = dict[str, Any]

# A case takes a fraction of a second; beyond this time it hangs.
MAX_SECONDS = 60


@dataclass(frozen=True)
class Finding:
    """One case: how to find it again, its outcome, and what was printed or differs."""

    case: str
    outcome: Outcome
    detail: str = ""


Campaign = Callable[[Path, int, np.random.Generator], Iterator[Finding]]


def reporting(campaign: Campaign) -> Campaign:
    """Report a wrong number of an undamaged run, after which there is nothing to compare with, as a finding."""

    @functools.wraps(campaign)
    def run(*given: Any) -> Iterator[Finding]:
        try:
            yield from campaign(*given)
        except WrongNumberError as error:
            yield Finding("results", "wrong", str(error))

    return run


class _Hang(BaseException):
    pass


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raise `_Hang` after `MAX_SECONDS`."""

    hung = False

    def stop(*_: object) -> None:
        nonlocal hung
        hung = True
        raise _Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MAX_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        if hung:  # also where it was taken for an error of code of users
            raise _Hang


def command(*words: object) -> click.testing.Result:
    """Run the command in this process."""
    with warnings.catch_warnings():
        # Numerical warnings print each time, as they do in a process of their own.
        warnings.simplefilter("always", RuntimeWarning)
        return click.testing.CliRunner().invoke(main, [str(word) for word in words])


def judged(case: str, words: list[object], is_right: Callable[[click.testing.Result], bool]) -> Finding:
    """Run the command, which may end with 0 or 3 if ``is_right``, or with 2 and a sentence."""
    try:
        with limited(), warnings.catch_warnings():
            result = command(*words)
            if result.exit_code in (0, 3):
                warnings.simplefilter("ignore")  # of the reader that results are compared with
                return _decided(case, result, is_right, result.output[-400:])
    except _Hang:
        return Finding(case, "hang")
    last = result.stderr.splitlines()[-1] if result.stderr else ""
    # A gate that cannot decide says so on standard output.
    said = last.startswith("plmia: ") or "Error: " in result.stderr or (words[0] == "gate" and bool(result.stdout))
    if result.exit_code == 2 and said and not re.search(r"Traceback|\w+Warning: ", result.stderr):
        return Finding(case, "refused", last)
    trace = "" if result.exc_info is None else "".join(traceback.format_exception(*result.exc_info)[-4:])
    return Finding(case, "traceback", f"exit code {result.exit_code}: {result.stderr[-400:]}{trace}")


def _decided(case: str, value: Any, is_right: Callable[[Any], bool], detail: str) -> Finding:
    """Judge an accepted case; results that the second calculation cannot use are wrong, too."""
    try:
        return Finding(case, "right" if is_right(value) else "wrong", detail)
    except WrongNumberError as error:
        return Finding(case, "wrong", str(error))
    except Exception:
        return Finding(case, "wrong", traceback.format_exc()[-900:])


def tried(case: str, act: Callable[[], Any], is_right: Callable[[Any], bool]) -> Finding:
    """Call a function of plmia, which may return what ``is_right``, or raise a named error."""
    try:
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = act()
            return _decided(case, value, is_right, repr(value)[:200])
    except _Hang:
        return Finding(case, "hang")
    except PlmiaError as error:
        return Finding(case, "refused", str(error))
    except Exception:
        return Finding(case, "traceback", traceback.format_exc()[-900:])


# Children ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a child process ended: its exit code (137 if it was killed), and what it wrote to standard error."""

    code: int
    stderr: str

    @property
    def broke(self) -> bool:
        """Whether it ended with a traceback or in a way that nobody intended."""
        return "Traceback (most recent call last)" in self.stderr or self.code not in (0, 2, 3, 130, 137)


HUNG = -1


def start_child(work: Callable[[], int], log: Path) -> int:
    """Start ``work`` in a fork of this process, which has imported everything; return the process number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = work()
    except PlmiaError as error:
        _say(f"plmia: {error}\n")
        code = 2
    except BaseException:
        _say(traceback.format_exc())
    finally:
        os._exit(code)


def _say(text: str) -> None:
    # The process is about to end without closing files.
    _write(2, text.encode(errors="replace"))


_write = os.write  # campaigns replace the one of `os`


def wait_for(pid: int, log: Path) -> Ended:
    """Wait until a child has ended; kill one that hangs."""
    end = time.monotonic() + MAX_SECONDS
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return Ended(137 if code == -9 else code, log.read_text(errors="replace") if log.exists() else "")
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return Ended(HUNG, "")


# Content -------------------------------------------------------------------------------------------------------------


def fresh(path: Path) -> Path:
    """Remove whatever is at a path, and return it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


def results_of(folder: Path) -> dict[str, Any] | None:
    """Content of a results folder without the digests of its input; None if there are no results.

    Raises `WrongNumberError` unless its files agree with each other.
    """
    if not any((folder / place / "metrics.json").exists() for place in ("", ".published")):
        return None
    SavedRun(folder).require_verified()
    files = open_parts(folder)
    found: dict[str, Any] = {name: file.read() for name, file in files.items()}
    for file in files.values():
        file.close()
    check_results(found)
    metrics = json.loads(found["metrics.json"])
    metrics["digests"] = metrics["about"]["signals"].pop("sha256", None) and None
    return found | {"metrics.json": metrics}


def scored(file: Path, out: Path, *options: object, arrays: Arrays | None = None) -> dict[str, Any]:
    """Content of the results of undamaged signals, compared with the arrays of the file, or those of a store."""
    result = command("score", file, "-o", fresh(out), "--quiet", *options)
    assert result.exit_code == 0, result.output
    found = results_of(out)
    assert found is not None
    check_scored(found, arrays_in(file) if arrays is None else arrays)
    return found


def simulated(seed: int, models: int = 8, points: int = 48) -> Arrays:
    """Arrays of a signals file in complementary pairs, whose members have larger signals."""
    return _drawn(seed, models, np.arange(points))


def of_people(seed: int, models: int = 8, people: int = 24) -> Arrays:
    """As `simulated`, of people who have one, two or three records, with a column by which they form subgroups."""
    person = np.repeat(np.arange(people), np.resize([1, 2, 3], people))
    return _drawn(seed, models, person) | {"groups": person, "ward": person % 2}


def _drawn(seed: int, models: int, person: Any) -> Arrays:
    rng = np.random.default_rng(seed)
    half = rng.random((models // 2, person[-1] + 1)) < 0.5
    membership = np.stack([half, ~half], axis=1).reshape(models, -1)[:, person]
    signals = rng.normal(size=membership.shape) + 1.5 * membership
    return {"signals": signals.astype(np.float32), "membership": membership, "labels": rng.integers(0, 3, len(person))}
