"""Faults from outside: kills and full disks at every operation on files, several writers, signals, users' code.

A fault is injected into a fork of this process, at the k-th operation on a file (`OPERATIONS`). Afterwards the folder
must hold the state before or the state after, finished models must be there, and the same command must succeed.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.hostile.campaign import (
    HUNG,
    Ended,
    Finding,
    Outcome,
    _write,
    command,
    fresh,
    results_of,
    simulated,
    start_child,
    wait_for,
)

import plmia
from plmia.data.designs import audit_design
from plmia.signals.store import SignalStore, store_key, write_stack

Rng = np.random.Generator

# Functions of `os` through which plmia changes files; "write" includes writes through buffers.
OPERATIONS = ("replace", "rename", "fsync", "write", "unlink", "mkdir", "rmdir", "symlink", "chmod", "fchmod")
# What fails on a full disk.
_NEED_SPACE = ("write", "mkdir", "symlink", "fsync")
MODES = ("kill", "torn", "full", "error")


class Injection:
    """Counts operations, and lets the one with number ``at`` fail in one of `MODES`."""

    def __init__(self, at: int = 0, mode: str = "") -> None:
        self.at, self.mode, self.names = at, mode, list[str]()

    def install(self) -> None:
        """Replace the functions of `os` in this process, which ends soon."""
        for name in OPERATIONS:
            setattr(os, name, functools.partial(self._call, name, getattr(os, name)))
        opened = os.fdopen

        def fdopen(descriptor: int, mode: str = "r", *rest: Any, **more: Any) -> Any:
            if mode != "w+b":
                return opened(descriptor, mode, *rest, **more)
            return io.BufferedRandom(_Counted(descriptor, self))

        os.fdopen = fdopen  # type: ignore[assignment]

    def _call(self, name: str, operation: Callable[..., Any], *words: Any, **more: Any) -> Any:
        self.names.append(name)
        due = len(self.names) == self.at
        if due and self.mode == "kill":
            os._exit(137)
        half = words[1][: len(words[1]) // 2] if name == "write" else b""
        if due and self.mode == "torn" and name == "write":
            operation(words[0], half)
            os._exit(137)
        if due and self.mode == "error":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.mode == "full" and len(self.names) >= self.at and name in _NEED_SPACE:
            if half:
                return operation(words[0], half) if due else self._full()
            return self._full()
        return operation(*words, **more)

    def _full(self) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Counted(io.FileIO):
    """File whose writes are operations."""

    def __init__(self, descriptor: int, injection: Injection) -> None:
        super().__init__(descriptor, "r+b")
        self._injection = injection

    def write(self, data: Any) -> int:  # type: ignore[override]
        written = self._injection._call("write", lambda _, part: io.FileIO.write(self, part), None, data)
        return int(written)


@dataclass(frozen=True)
class Scenario:
    """A command that writes, and what it must leave."""

    prepare: Callable[[Path], None]  # state before
    act: Callable[[Path], int]  # returns the exit code
    state: Callable[[Path], Any]  # what counts in a folder
    grows: bool = False  # the state is a dict of finished models, of which some may be there


def _command(*words: object) -> int:
    result = command(*words)
    _write(2, result.stderr.encode(errors="replace"))
    if result.exit_code == 1 and result.exception is not None:
        raise result.exception
    return result.exit_code


def _signals(folder: Path) -> None:
    np.savez(folder / "signals.npz", **simulated(0))


def _score(folder: Path, seed: int = 0, attack: str = "attack-r") -> int:
    words = ("score", folder / "signals.npz", "-o", folder / "out", "--attack", attack, "--seed", seed, "--quiet")
    return _command(*words)


def _with_results(folder: Path) -> None:
    _signals(folder)
    assert _score(folder, 1, "attack-p") == 0
    assert _command("report", folder / "out", "--quiet") == 0


def _scored(folder: Path) -> None:
    _signals(folder)
    assert _score(folder) == 0


def _results(folder: Path) -> Any:
    return results_of(folder / "out")


def _page(folder: Path) -> Any:
    page = folder / "out" / "report.html"
    return results_of(folder / "out"), page.read_bytes() if page.exists() else None


def _design(folder: Path, references: int = 4) -> int:
    return _command("design", "--records", 48, "--references", references, "-o", folder / "run", "--quiet")


def _plan(folder: Path) -> Any:
    return (folder / "run" / "design.npz").read_bytes() if (folder / "run" / "design.npz").exists() else None


def _answers(run: plmia.Run, model: int) -> Any:
    return np.random.default_rng(model).normal(size=48) + 1.5 * run.design.matrix[model]


def _record(folder: Path, models: tuple[int, ...], run: str = "run") -> int:
    opened = plmia.Run(folder / run)
    for model in models:
        opened.record(model, confidence=_answers(opened, model), labels=np.arange(48) % 3)
    return 0


def _recorded(folder: Path) -> Any:
    """Signals of each finished model of a run."""
    store = folder / "run" / "signals"
    return _finished(store) if (store / "store.json").exists() else {}


def _finished(store: Path) -> dict[int, bytes]:
    opened = SignalStore.open(store)
    return {model: opened.read([model]).tobytes() for model in opened.finished()}


def _half_recorded(folder: Path) -> None:
    assert _design(folder) == 0
    _record(folder, (0, 1))


def _copies(folder: Path) -> None:
    _half_recorded(folder)
    shutil.copytree(folder / "run", folder / "copy")
    _record(folder, (2, 3, 4), "copy")


def _merge(folder: Path) -> int:
    plmia.Run(folder / "run").merge(folder / "copy")
    return 0


_DESIGN = audit_design(30, 4, np.random.default_rng(0))
_VALUES = np.random.default_rng(0).normal(size=(5, 30, 1)).astype(np.float32)


def _stacks(folder: Path) -> int:
    key = store_key({"seed": 0}, _DESIGN, ["a"])
    for models in ([0, 1], [2], [3, 4]):
        write_stack(folder / "stacks", models, _VALUES[models], [{"seed": k} for k in models], key=key)
    store = SignalStore.create(folder / "run" / "signals", {"seed": 0}, _DESIGN, ["a"])
    store.import_npy(folder / "stacks")
    return 0


def _data(folder: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", X=rng.normal(size=(60, 2)), y=np.arange(60) % 2)


def _audit(folder: Path) -> int:
    with np.load(folder / "data.npz") as data:
        X, y = data["X"], data["y"]
    words = {"references": 4, "folder": folder / "run", "engine": plmia.Inline(), "progress": False}
    plmia.audit("sklearn:GaussianNB", X, y, attacks=["attack-r"], **words)  # type: ignore[arg-type]
    return 0


def _half_audited(folder: Path) -> None:
    """Two of five models are trained."""
    _data(folder)
    _audit(folder)
    for record in sorted((folder / "run" / "signals" / "records").iterdir())[2:]:
        record.unlink()


def _table(folder: Path) -> None:
    signals, membership = simulated(0)["signals"], simulated(0)["membership"]
    rows = [f"{m},{p},{int(membership[m, p])},{signals[m, p]}" for m, p in np.ndindex(*signals.shape)]
    (folder / "table.csv").write_text("\n".join(["model,record,member,signal", *rows]) + "\n")
    (folder / "imported.npz").write_bytes(b"of before")


def _import(folder: Path) -> int:
    return _command("import", "table", folder / "table.csv", "-o", folder / "imported.npz", "--quiet")


def _gate(folder: Path) -> int:
    words = ("--max-tpr", "0.99", "--at-fpr", "0.1", "--junit", folder / "gate.xml", "--accept", "tied-scores")
    return 0 if (code := _command("gate", folder / "out", *words)) == 3 else code


def _file(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).read_bytes() if (folder / name).exists() else None


SCENARIOS = {
    "score": Scenario(_signals, _score, _results),
    "score again": Scenario(_with_results, _score, _results),
    "report": Scenario(_with_results, lambda f: _command("report", f / "out", "--title", "New", "--quiet"), _page),
    "design": Scenario(lambda _: None, _design, _plan),
    "more models": Scenario(_half_recorded, lambda f: _design(f, 8), _recorded, grows=True),
    "first model": Scenario(lambda f: _design(f) and None, lambda f: _record(f, (0,)), _recorded, grows=True),
    "other models": Scenario(_half_recorded, lambda f: _record(f, (2, 3)), _recorded, grows=True),
    "merge": Scenario(_copies, _merge, _recorded, grows=True),
    "stacks": Scenario(lambda _: None, _stacks, _recorded, grows=True),
    "audit": Scenario(_data, _audit, _recorded, grows=True),
    "audit resumed": Scenario(_half_audited, _audit, _recorded, grows=True),
    "import": Scenario(_table, _import, _file("imported.npz")),
    "gate": Scenario(_scored, _gate, _file("gate.xml")),
}
# These take a second each, the others a tenth.
_SLOW = ("audit", "audit resumed")


def _prepared(name: str, folder: Path) -> tuple[Path, Any, Any, list[str]]:
    """Template of a scenario, its states before and after, and the names of the operations between."""
    scenario, template = SCENARIOS[name], folder / "template"
    fresh(template).mkdir()
    scenario.prepare(template)
    before = scenario.state(template)
    whole = folder / "whole"
    shutil.copytree(template, fresh(whole), symlinks=True)

    def counted() -> int:
        injection = Injection()
        injection.install()
        code = scenario.act(whole)
        (folder / "names").write_text(" ".join(injection.names))
        return code

    ended = wait_for(start_child(counted, folder / "log"), folder / "log")
    assert ended.code == 0, ended.stderr
    return template, before, scenario.state(whole), (folder / "names").read_text().split()


def _after_fault(scenario: Scenario, ended: Ended, found: Callable[[], Any], before: Any, after: Any) -> Outcome:
    if ended.code == HUNG:
        return "hang"
    if ended.broke:
        return "traceback"
    try:
        state = found()
    except Exception:
        return "wrong"
    if scenario.grows:
        if not before.items() <= state.items():
            return "lost"
        return "stopped" if state.items() <= after.items() else "wrong"
    if isinstance(after, tuple):  # results and their page, which may be absent
        whole = state[0] == after[0] == before[0] and state[1] in (None, before[1], after[1])
        return "stopped" if whole else "wrong"
    return "stopped" if state in (before, after) else "wrong"


def _with_fault(name: str, case: Path, at: int, mode: str, before: Any, after: Any) -> Finding:
    """Act with a fault, look, and act again without it."""
    scenario, log = SCENARIOS[name], case.parent / "log"

    def work() -> int:
        Injection(at, mode).install()
        return scenario.act(case)

    label = f"{name}: {mode} at operation {at}"
    ended = wait_for(start_child(work, log), log)
    outcome = _after_fault(scenario, ended, lambda: scenario.state(case), before, after)
    if outcome != "stopped":
        return Finding(label, outcome, ended.stderr[-900:])
    again = wait_for(start_child(lambda: scenario.act(case), log), log)
    if again.code == HUNG:
        return Finding(label, "hang")
    if again.broke or again.code != 0:
        return Finding(label, "traceback" if again.broke else "lost", f"then {again.code}: {again.stderr[-900:]}")
    return Finding(label, "right" if scenario.state(case) == after else "wrong", "the next run")


def _matters(mode: str, operation: str) -> bool:
    """Whether a mode differs from no fault at an operation: only a write can be torn, only some need space."""
    return mode in ("kill", "error") or operation == "write" or (mode == "full" and operation in _NEED_SPACE)


def at_every_operation(folder: Path, count: int, rng: Rng, names: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Kill, tear, fill the disk or fail at operations on files, in every scenario."""
    chosen = names or tuple(SCENARIOS)
    for name in chosen:
        template, before, after, operations = _prepared(name, folder)
        cases = [(k, mode) for k, op in enumerate(operations, 1) for mode in MODES if _matters(mode, op)]
        share = max(count // len(chosen) // (4 if name in _SLOW else 1), 1)
        picked = cases if share >= len(cases) else [cases[i] for i in rng.choice(len(cases), share, replace=False)]
        for at, mode in picked:
            case = fresh(folder / "case")
            shutil.copytree(template, case, symlinks=True)
            yield _with_fault(name, case, at, mode, before, after)


# Several writers -----------------------------------------------------------------------------------------------------


def several_writers(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Two or three processes write to one folder at once; sometimes one of them is killed."""
    whole = fresh(folder / "whole")
    whole.mkdir()
    _signals(whole)
    possible = []
    for seed in range(3):
        assert _score(whole, seed) == 0
        possible.append(_results(whole))
    every = fresh(folder / "every")
    every.mkdir()
    assert _design(every) == 0
    _record(every, (0, 1, 2, 3, 4))
    complete = _recorded(every)
    for number in range(count):
        case = fresh(folder / "case")
        case.mkdir()
        kills = number % 3 == 0
        if number % 2:
            _signals(case)
            works = [functools.partial(_score, case, seed) for seed in range(int(rng.integers(2, 4)))]
        else:
            assert _design(case) == 0
            sets = [tuple(int(m) for m in rng.permutation(5)[:3]) for _ in range(2)]
            sets.append(tuple(range(5)))
            works = [functools.partial(_record, case, models) for models in sets]
        pids = [start_child(work, case / f"log{k}") for k, work in enumerate(works)]
        if kills:
            time.sleep(float(rng.uniform(0, 0.1)))
            os.kill(pids[0], signal.SIGKILL)
        ends = [wait_for(pid, case / f"log{k}") for k, pid in enumerate(pids)]
        label = f"writers {number}"
        if any(end.code == HUNG for end in ends):
            yield Finding(label, "hang")
        elif any(end.broke for end in ends):
            yield Finding(label, "traceback", " ".join(end.stderr[-500:] for end in ends))
        elif number % 2:
            yield Finding(label, "right" if _results(case) in possible else "wrong")
        else:
            state = _recorded(case)
            problems = SignalStore.open(case / "run" / "signals").verify()
            yield Finding(label, "right" if state == complete and not problems else "lost", str(problems)[:300])


# Signals -------------------------------------------------------------------------------------------------------------

COMMAND = [sys.executable, "-m", "plmia"]


def signals_at_any_time(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Ctrl-C and SIGTERM at random times of the command, its imports included: results of before or of after."""
    _with_results(folder)
    before = _results(folder)
    words = [*COMMAND, "score", str(folder / "signals.npz"), "-o", str(folder / "out"), "--attack", "attack-r"]
    words.append("--quiet")
    started = time.monotonic()
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    seconds, after = time.monotonic() - started, _results(folder)
    for number in range(count):
        which = signal.SIGINT if number % 2 else signal.SIGTERM
        delay = float(rng.uniform(0, 1.1 * seconds))
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(delay)
        process.send_signal(which)
        label = f"{which.name} after {delay:.3f} s"
        try:
            _, stderr = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            yield Finding(label, "hang")
            continue
        # Before Python has read the first line of plmia, Python itself answers.
        broke = "Traceback" in stderr and "plmia" in stderr
        expected = (0, 130, -signal.SIGINT) if which == signal.SIGINT else (0, -signal.SIGTERM)
        if broke or process.returncode not in expected:
            yield Finding(label, "traceback", f"{process.returncode}: {stderr[-700:]}")
        else:
            whole = _results(folder) in (before, after)
            yield Finding(label, ("stopped" if process.returncode else "right") if whole else "wrong")


# Users' code ---------------------------------------------------------------------------------------------------------

_RECIPE = """
import ctypes, os, sys, time
import numpy as np
def train(X, y, seed):
    if seed == FAULTY: act()
    return X.mean(axis=0), seed
def query(model, X, y):
    p = 1 / (1 + np.exp(-(X @ model[0]) - model[1] % 7))
    return np.stack([p, 1 - p], axis=1)
def act():
"""
BEHAVIOURS = {
    "raises": "raise ValueError('no')",
    "raises in many lines": "raise RuntimeError('a\\nb\\n' + 'c' * 5000)",
    "exits": "sys.exit(0)",
    "exits at once": "os._exit(0)",
    "aborts": "os.abort()",
    "reads from nowhere": "ctypes.string_at(0)",
    "kills itself": "os.kill(os.getpid(), 9)",
    "recurses": "act()",
    "forks": "os.fork() or os._exit(0)",
    "forks and stays": "os.fork() or (time.sleep(2), os._exit(0))",
    "prints bytes": "os.write(1, b'\\xff\\x00\\x1b[31m' * 1000); os.write(2, b'\\xff\\x1b[2J\\n')",
    "closes its files": "os.closerange(0, 3)",
    "needs memory": "raise MemoryError('Unable to allocate 9 TiB')",
    "interrupts itself": "raise KeyboardInterrupt",
    "a generator that ends": "next(iter(()))",
    "an error that cannot be sent": "raise type('Odd', (Exception,), {'__reduce__': lambda s: 1 / 0})()",
    "an error without text": "raise type('Odd', (Exception,), {'__str__': lambda s: 1 / 0})()",
}
_HANGS = {"hangs": "time.sleep(600)", "holds the GIL": "ctypes.PyDLL(None).sleep(600)"}


def code_of_users(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Training code that fails in one model: a sentence, finished models stay, and corrected code resumes."""
    _data(folder)
    recipe = folder / "mine.py"
    words = [*COMMAND, "audit", "--data", str(folder / "data.npz"), "--recipe", f"function:{recipe}"]
    words += ["--references", "4", "--attack", "attack-r", "--workers", "2", "--quiet"]
    from plmia.training.train import seed_of

    behaviours = BEHAVIOURS | _HANGS
    names = list(behaviours)[:count] if count < len(behaviours) else list(behaviours)
    for name in names:
        model = int(rng.integers(5))
        text = _RECIPE.replace("FAULTY", str(seed_of(0, model, 0))) + f"    {behaviours[name]}\n"
        recipe.write_text(text)
        run = fresh(folder / "run")
        process = subprocess.Popen(
            [*words, "-o", str(run)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        hangs = name in _HANGS
        try:
            if hangs:
                _wait_for_models(run, 2)
                process.send_signal(signal.SIGINT if name == "hangs" else signal.SIGKILL)
            _, raw = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            yield Finding(name, "hang")
            continue
        stderr = raw.decode(errors="replace")
        expected = (130, -signal.SIGKILL) if hangs else (0, 2)
        # The user's own traceback stands before the sentence, which comes last.
        said = hangs or process.returncode == 0 or "plmia: " in stderr.splitlines()[-1]
        store = run / "signals"
        whole = not (store / "store.json").exists() or not SignalStore.open(store).verify()
        if process.returncode not in expected or not said:
            yield Finding(name, "traceback", f"{process.returncode}: {stderr[-900:]}")
        else:
            yield Finding(name, "stopped" if whole else "lost", stderr[-300:])


def _wait_for_models(run: Path, n: int) -> None:
    """Wait until some models are finished, or for ten seconds."""
    for _ in range(200):
        records = run / "signals" / "records"
        if records.is_dir() and len(list(records.glob("[0-9]*.json"))) >= n:
            return
        time.sleep(0.05)


CAMPAIGNS = {
    "kills, errors and full disks": (at_every_operation, 300),
    "several writers": (several_writers, 40),
    "signals at any time": (signals_at_any_time, 40),
    "code of users": (code_of_users, len(BEHAVIOURS) + len(_HANGS)),
}
