"""Faults from outside: kills and full disks at every operation on files, several writers, signals, users' code.

A fault is injected into a fork of this process, at the k-th operation on a file (`OPERATIONS`). Afterwards the folder
must hold the state before or the state after, finished models must be there, and the same command must succeed.
Where mounting is permitted, commands also run on a real disk that is full.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import io
import itertools
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from tests.hostile.campaign import (
    GOOD,
    HUNG,
    Campaign,
    Ended,
    Finding,
    Outcome,
    _write,
    command,
    fresh,
    of_people,
    reporting,
    results_of,
    simulated,
    start_child,
    wait_for,
)
from tests.hostile.expected import arrays_in, check_scored

import plmia
from plmia.data.designs import audit_design
from plmia.data.files import FIGURES, PAGE, PARTS
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

    operations: ClassVar[tuple[str, ...]] = OPERATIONS

    def install(self) -> None:
        """Replace the functions of `os` in this process, which ends soon."""
        for name in self.operations:
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
    np.savez(folder / "signals.npz", **of_people(0, people=48))


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
    found = results_of(folder / "out")
    if found is not None:
        check_scored(found, arrays_in(folder / "signals.npz"))
    return found


def _page(folder: Path) -> Any:
    page = folder / "out" / "report.html"
    return _results(folder), page.read_bytes() if page.exists() else None


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
    np.savez(folder / "data.npz", X=rng.normal(size=(60, 2)), y=np.arange(60) % 2, groups=np.arange(60) // 2)


def _audit_by_command(folder: Path) -> int:
    words = ("--data", folder / "data.npz", "--recipe", "sklearn:GaussianNB", "--references", 4, "--workers", 1)
    return _command("audit", *words, "--attack", "attack-r", "--quiet", "-o", folder / "run")


def _audited(folder: Path) -> Any:
    """Signals of finished models, and the results with their page, or None."""
    run, page = folder / "run", folder / "run" / "report.html"
    models, results = _recorded(folder), results_of(run)
    if results is None:
        return models, None
    signals = np.stack([np.frombuffer(models[model], np.float32).reshape(60, -1) for model in sorted(models)])
    members = np.load(run / "signals" / "membership.npy")
    members = members if members.dtype == bool else np.unpackbits(members, axis=1, count=60) != 0
    check_scored(results, {"signals": signals, "membership": members, "groups": np.arange(60) // 2})
    return models, (results, page.read_bytes() if page.exists() else None)


def _audit(folder: Path) -> int:
    with np.load(folder / "data.npz") as data:
        X, y, groups = data["X"], data["y"], data["groups"]
    words = {"references": 4, "folder": folder / "run", "engine": plmia.Inline(), "progress": False, "groups": groups}
    plmia.audit("sklearn:GaussianNB", X, y, attacks=["attack-r"], **words)  # type: ignore[arg-type]
    return 0


def _half_audited(folder: Path) -> None:
    """Two of five models are trained, and there are no results."""
    _data(folder)
    _audit(folder)
    for name in (*PARTS, PAGE):
        (folder / "run" / name).unlink(missing_ok=True)
    fresh(folder / "run" / FIGURES)
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


def _two_results(folder: Path) -> None:
    _signals(folder)
    for name, attack in (("out", "attack-r"), ("other", "attack-p")):
        attacks = ("--attack", attack, "--attack", "lira")
        assert _command("score", folder / "signals.npz", "-o", folder / name, *attacks, "--quiet") == 0
    (folder / "change.json").write_bytes(b"of before")


def _compare(folder: Path) -> int:
    return _command("compare", folder / "out", folder / "other", "-o", folder / "change.json")


def _file(name: str) -> Callable[[Path], Any]:
    """State: the bytes of a file, which may name the folder."""
    here = lambda folder: str(folder).encode()  # noqa: E731
    return lambda f: (f / name).read_bytes().replace(here(f), b"") if (f / name).exists() else None


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
    "audit": Scenario(_data, _audit, _audited),
    "audit resumed": Scenario(_half_audited, _audit, _audited),
    "compare": Scenario(_two_results, _compare, _file("change.json")),
    "import": Scenario(_table, _import, _file("imported.npz")),
    "gate": Scenario(_scored, _gate, _file("gate.xml")),
}


def _prepared(name: str, folder: Path) -> tuple[Path, Any, Any, list[str]]:
    """Template of a scenario, its states before and after, and the names of the operations between."""
    scenario, template = SCENARIOS[name], folder / name
    fresh(template).mkdir()
    scenario.prepare(template)
    before = scenario.state(template)
    whole = folder / "whole"
    shutil.copytree(template, fresh(whole), symlinks=True)
    scenario.act(whole)  # here, so that no child has to import what it needs
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
    return _impossible_state(scenario, state, before, after) or "stopped"


def _impossible_state(scenario: Scenario, state: Any, before: Any, after: Any) -> Outcome | None:
    """What is wrong with a state after a fault: it is that of before or of after, or some models more."""
    if scenario.state is _audited:  # models, and results with their page
        possible = [before[1], after[1], after[1] and (after[1][0], None)]
        fault = _impossible_models(state[0], before[0], after[0])
        return fault or (None if state[1] in possible else "wrong")
    if scenario.grows:
        return _impossible_models(state, before, after)
    if isinstance(after, tuple):  # results and their page, which may be absent
        whole = state[0] == after[0] == before[0] and state[1] in (None, before[1], after[1])
        return None if whole else "wrong"
    return None if state in (before, after) else "wrong"


def _impossible_models(state: Any, before: Any, after: Any) -> Outcome | None:
    if not before.items() <= state.items():
        return "lost"
    return None if state.items() <= after.items() else "wrong"


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


def kills(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Kill at operations on files, in every scenario: at all of them with ``--faults 2``."""
    return _at_operations(("kill",), folder, count, rng)


def errors_and_full_disks(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Tear a write, fill the disk or fail at operations on files, in every scenario."""
    return _at_operations(("torn", "full", "error"), folder, count, rng)


def _at_operations(modes: tuple[str, ...], folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    prepared = {name: _prepared(name, folder) for name in SCENARIOS}
    cases = {
        name: [(k, mode) for k, op in enumerate(operations, 1) for mode in modes if _matters(mode, op)]
        for name, (_, _, _, operations) in prepared.items()
    }
    total = sum(len(possible) for possible in cases.values())
    tried = 0
    for name, (template, before, after, _) in prepared.items():
        share = min(-(-count * len(cases[name]) // total), len(cases[name]))
        for k in sorted(rng.choice(len(cases[name]), share, replace=False)):
            case = fresh(folder / "case")
            shutil.copytree(template, case, symlinks=True)
            yield _with_fault(name, case, *cases[name][k], before, after)
            tried += 1
    yield Finding(f"{tried:,} of the {total:,} possible cases of {len(prepared)} commands", "note")


# A small disk --------------------------------------------------------------------------------------------------------

_PAGE = 4096  # tmpfs gives space in such pages
_AMPLE_BYTES, _AMPLE_FILES = 1 << 28, 1 << 16
_CLONE_NEWNS = 0x20000


# The commands that write most. Of an audit, finished models may stay without results.
ON_DISK = {
    "score": SCENARIOS["score"],
    "score again": SCENARIOS["score again"],
    "report": SCENARIOS["report"],
    "compare": SCENARIOS["compare"],
    "import": SCENARIOS["import"],
    "other models": SCENARIOS["other models"],
    "audit": Scenario(_data, _audit_by_command, _audited),
}


class SmallDisk:
    """A tmpfs, whose space and number of files can be set; it ends with this process, however that ends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> SmallDisk:
        """Mount it where no other process sees it; raises OSError where that is not permitted."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        _run_mount("mount", "--make-rprivate", "/")
        self.path.mkdir(exist_ok=True)
        options = f"size={_AMPLE_BYTES},nr_inodes={_AMPLE_FILES},mode=700"
        _run_mount("mount", "-t", "tmpfs", "-o", options, "plmia-hostile", str(self.path))
        return self

    def limit(self, n_bytes: int = _AMPLE_BYTES, files: int = _AMPLE_FILES) -> None:
        """Set how many bytes and files it can hold."""
        _run_mount("mount", "-o", f"remount,size={n_bytes},nr_inodes={files}", str(self.path))

    def used(self) -> tuple[int, int]:
        """Bytes and files that it holds."""
        found = os.statvfs(self.path)
        return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree

    def __exit__(self, *error: object) -> None:
        _run_mount("umount", "--lazy", str(self.path))


def _run_mount(*words: str) -> None:
    try:
        subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)
    except subprocess.CalledProcessError as error:
        raise OSError(errno.EPERM, error.stderr.strip() or f"{words[0]} failed") from error


def why_no_disk() -> str | None:
    """Reason why a tmpfs cannot be mounted here, found in a child process; None if it can."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"

        def work() -> int:
            try:
                with SmallDisk(Path(folder) / "disk"):
                    return 0
            except OSError as error:
                _write(2, str(error.strerror or error).encode())
                return 2

        ended = wait_for(start_child(work, log), log)
    return None if ended.code == 0 else f"a tmpfs cannot be mounted ({ended.stderr.strip()}): run as root"


def on_a_small_disk(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Run commands on a disk that is full after any number of pages or files; then free some space and run again."""
    reason = why_no_disk()
    if reason is not None:
        sys.stderr.write(f"  skipped: {reason}\n")
        return
    with SmallDisk(folder / "disk") as disk:
        for name, scenario in ON_DISK.items():
            yield from _on_disk(disk, name, scenario, max(count // len(ON_DISK), 2), rng)


def _on_disk(disk: SmallDisk, name: str, scenario: Scenario, count: int, rng: Rng) -> Iterator[Finding]:
    case, log = disk.path / "case", disk.path.parent / "log"
    disk.limit()
    fresh(case).mkdir()
    scenario.prepare(case)
    before, template = scenario.state(case), disk.path.parent / "template"
    shutil.copytree(case, fresh(template), symlinks=True)
    start = disk.used()
    ended = wait_for(start_child(lambda: scenario.act(case), log), log)
    assert ended.code == 0, ended.stderr
    after, end = scenario.state(case), disk.used()
    # Old and new results lie side by side for a moment, so that a command needs more than what it leaves.
    pages = max(end[0] - start[0], start[0] // 2) // _PAGE + 2
    files = max(end[1] - start[1], 4) + 4
    cases: list[tuple[int, int | None]] = [(extra, None) for extra in _spread(pages, -(-2 * count // 3), rng)]
    cases += [(0, extra) for extra in _spread(files, count // 3, rng)]
    for more_pages, more_files in cases:
        disk.limit()
        shutil.copytree(template, fresh(case), symlinks=True)
        n_bytes, n_files = disk.used()
        if more_files is None:
            disk.limit(n_bytes=n_bytes + _PAGE * more_pages)
            label = f"{name} with {more_pages} pages free"
        else:
            disk.limit(files=n_files + more_files)
            label = f"{name} with room for {more_files} files"
        yield _with_limit(label, disk, scenario, before, after)


def _spread(end: int, count: int, rng: Rng) -> list[int]:
    """At most ``count`` whole numbers below ``end``, from 0; most are small, where most of the writes are."""
    edges = end * np.linspace(0, 1, min(count, end) + 1) ** 3
    return sorted({0, *(int(rng.uniform(low, high)) for low, high in itertools.pairwise(edges))})[:count]


def _with_limit(label: str, disk: SmallDisk, scenario: Scenario, before: Any, after: Any) -> Finding:
    """Act on a disk with a limit, look, and act again without it."""
    case, log = disk.path / "case", disk.path.parent / "log"
    ended = wait_for(start_child(lambda: scenario.act(case), log), log)
    lines = ended.stderr.strip().splitlines()
    if ended.code == HUNG:
        return Finding(label, "hang")
    if ended.code not in (0, 2) or "Traceback" in ended.stderr:
        return Finding(label, "traceback", f"{ended.code}: {ended.stderr[-900:]}")
    if ended.code == 2 and (len(lines) != 1 or not lines[0].startswith("plmia: ")):
        return Finding(label, "traceback", f"not one sentence: {ended.stderr[-900:]}")
    disk.limit()
    try:
        state = scenario.state(case)
    except Exception as error:
        return Finding(label, "wrong", f"{type(error).__name__}: {error}; {ended.stderr[-400:]}")
    if ended.code == 0:
        return Finding(label, "right" if state == after else "wrong")
    fault = _impossible_state(scenario, state, before, after)
    if fault is not None:
        return Finding(label, fault, ended.stderr[-400:])
    again = wait_for(start_child(lambda: scenario.act(case), log), log)
    if again.code == HUNG:
        return Finding(label, "hang")
    if again.code != 0:
        return Finding(label, "lost", f"then {again.code}: {again.stderr[-900:]}")
    return Finding(label, "refused" if scenario.state(case) == after else "wrong", lines[0])


# Two processes at every operation -------------------------------------------------------------------------------------

# Functions of `os` by which plmia looks before it acts: another process may come between.
_LOOKS = ("stat", "lstat", "listdir", "scandir", "open")
# For so long the first process waits for the second, which may itself wait for a lock of the first.
_WAIT_SECONDS = 0.3


class Pause(Injection):
    """Calls ``meanwhile`` before operation ``at`` on a file below ``folder``, looks included."""

    operations = (*OPERATIONS, *_LOOKS)

    def __init__(self, folder: Path, at: int = 0, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__(at, "pause")
        self._folder, self._meanwhile = str(folder), meanwhile

    def _call(self, name: str, operation: Callable[..., Any], *words: Any, **more: Any) -> Any:
        where = words[0] if words else None
        # Descriptors, which `_Counted` leaves out, are those of the command's own files.
        if where is None or isinstance(where, int) or os.fsdecode(where).startswith(self._folder):
            self.names.append(name)
            if len(self.names) == self.at:
                self._meanwhile()
        return operation(*words, **more)


@dataclass(frozen=True)
class Pair:
    """Two commands in one folder; whichever comes first, ``state`` is one of those after running them in turn."""

    prepare: Callable[[Path], None]
    first: Callable[[Path], int]
    second: Callable[[Path], int]
    state: Callable[[Path], Any]
    grows: bool = True  # the state is a dict of finished models: nobody may be refused, and no model may be missing


def _results_and_change(folder: Path) -> Any:
    return results_of(folder / "out"), _file("change.json")(folder)


PAIRS = {
    "two scores": Pair(_signals, _score, lambda f: _score(f, 1, "attack-p"), _results, grows=False),
    "score and report": Pair(
        _with_results, _score, lambda f: _command("report", f / "out", "--title", "New", "--quiet"), _page, grows=False
    ),
    "report and score": Pair(
        _with_results, lambda f: _command("report", f / "out", "--title", "New", "--quiet"), _score, _page, grows=False
    ),
    "compare and score": Pair(_two_results, _compare, lambda f: _score(f, 2, "lira"), _results_and_change, grows=False),
    "first models": Pair(
        lambda f: _design(f) and None, lambda f: _record(f, (0, 1)), lambda f: _record(f, (2, 3)), _recorded
    ),
    "other models by two": Pair(_half_recorded, lambda f: _record(f, (2,)), lambda f: _record(f, (3, 4)), _recorded),
    "the same models": Pair(_half_recorded, lambda f: _record(f, (2, 3)), lambda f: _record(f, (3, 2)), _recorded),
    "a larger design": Pair(_half_recorded, lambda f: _design(f, 8), lambda f: _record(f, (2,)), _recorded),
    "a model and a larger design": Pair(_half_recorded, lambda f: _record(f, (2,)), lambda f: _design(f, 8), _recorded),
    "merge and a model": Pair(_copies, _merge, lambda f: _record(f, (2, 3)), _recorded),
    "stacks by two": Pair(lambda _: None, _stacks, _stacks, _recorded),
    "two audits": Pair(_data, _audit, _audit, _recorded),
}


def _in_turn(pair: Pair, template: Path, case: Path, *works: Callable[[Path], int]) -> Any:
    """State after some commands, one after another."""
    shutil.copytree(template, fresh(case), symlinks=True)
    for work in works:
        ended = wait_for(start_child(lambda work=work: work(case), case.parent / "log"), case.parent / "log")
        assert ended.code == 0, ended.stderr
    return pair.state(case)


def _operations_of(pair: Pair, template: Path, case: Path) -> int:
    """How many operations the first command takes."""
    shutil.copytree(template, fresh(case), symlinks=True)
    log, number = case.parent / "log", case.parent / "number"

    def counted() -> int:
        pause = Pause(case)
        pause.install()
        code = pair.first(case)
        number.write_text(str(len(pause.names)))
        return code

    ended = wait_for(start_child(counted, log), log)
    assert ended.code == 0, ended.stderr
    return int(number.read_text())


def _interleaved(pair: Pair, case: Path, at: int, kill: bool) -> tuple[Ended, Ended]:
    """Run the second command before operation ``at`` of the first, which then goes on or is killed."""
    go, start = os.pipe()
    done, end = os.pipe()
    logs = case.parent / "log-1", case.parent / "log-2"

    def second() -> int:
        os.close(start)
        os.read(go, 1)  # nothing, if the first has ended
        return pair.second(case)

    def meanwhile() -> None:
        _write(start, b".")
        os.close(start)
        select.select([done], [], [], _WAIT_SECONDS)
        if kill:
            os._exit(137)

    def first() -> int:
        os.close(end)
        Pause(case, at, meanwhile).install()
        return pair.first(case)

    pids = [start_child(first, logs[0]), start_child(second, logs[1])]
    for descriptor in (go, start, done, end):
        os.close(descriptor)
    one, two = (wait_for(pid, log) for pid, log in zip(pids, logs, strict=True))
    return one, two


def between_operations(folder: Path, count: int, rng: Rng, names: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Run a whole command between any two operations of another one, which goes on or is killed then."""
    chosen = names or tuple(PAIRS)
    for name in chosen:
        pair, template, case = PAIRS[name], folder / "template", folder / "case"
        fresh(template).mkdir()
        pair.prepare(template)
        states = [
            _in_turn(pair, template, case, *works)
            for works in ((pair.first,), (pair.second,), (pair.first, pair.second), (pair.second, pair.first))
        ]
        cases = list(itertools.product(range(1, _operations_of(pair, template, case) + 1), (False, True)))
        share = max(count // len(chosen) // (4 if pair.first is _audit else 1), 1)
        picked = cases if share >= len(cases) else [cases[i] for i in rng.choice(len(cases), share, replace=False)]
        for at, kill in picked:
            shutil.copytree(template, fresh(case), symlinks=True)
            yield _with_another(name, case, at, kill, states)


def _with_another(name: str, case: Path, at: int, kill: bool, states: list[Any]) -> Finding:
    """One case of `between_operations`; ``states`` are those after the first, the second, and both in either order."""
    pair, label = PAIRS[name], f"{name}: the other at operation {at}{', then killed' if kill else ''}"
    ends = _interleaved(pair, case, at, kill)
    said = " ".join(f"{end.code}: {end.stderr[-600:]}" for end in ends)
    if any(end.code == HUNG for end in ends):
        return Finding(label, "hang")
    if any(end.broke for end in ends):
        return Finding(label, "traceback", said)
    refused = [end.code == 2 for end in ends]
    try:
        state = pair.state(case)
    except Exception as error:
        return Finding(label, "wrong", f"{type(error).__name__}: {error}; {said}")
    killed = ends[0].code == 137
    if pair.grows:
        _, least, most, _ = states
        if any(refused) or not least.items() <= state.items() or not (killed or state == most):
            return Finding(label, "lost", f"{sorted(state)}; {said}")
        if not state.items() <= most.items():
            return Finding(label, "wrong", said)
        again = wait_for(start_child(lambda: pair.first(case), case.parent / "log"), case.parent / "log")
        if again.code != 0 or pair.state(case) != most:
            return Finding(label, "lost", f"then {again.code}: {again.stderr[-600:]}")
        return Finding(label, "stopped" if killed else "right")
    alone_first, alone_second, *both = states
    if state not in both + [alone_first] * refused[1] + [alone_second] * (refused[0] or killed):
        return Finding(label, "wrong", said)
    return Finding(label, "refused" if any(refused) else "stopped" if killed else "right", said)


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


# Commands that get a signal: options, and the scenario of their states.
_SIGNALLED: dict[str, tuple[list[str], Scenario]] = {
    "score": (["score", "signals.npz", "-o", "out", "--attack", "attack-r", "--quiet"], SCENARIOS["score again"]),
    "audit": (
        [
            *("audit", "--data", "data.npz", "--recipe", "sklearn:GaussianNB", "--references", "4", "--workers", "2"),
            *("--attack", "attack-r", "-o", "run", "--quiet"),
        ],
        SCENARIOS["audit"],
    ),
    "report": (["report", "out", "--title", "New", "--quiet"], SCENARIOS["report"]),
    "import": (["import", "table", "table.csv", "-o", "imported.npz", "--quiet"], SCENARIOS["import"]),
    "compare": (["compare", "out", "other", "-o", "change.json"], SCENARIOS["compare"]),
}
# Of 24 cases in turn; the others are "score". Odd ones get Ctrl-C.
_TURNS = {2: "report", 3: "compare", 6: "audit", 9: "import", 11: "report", 14: "compare", 19: "audit", 22: "import"}


def signals_at_any_time(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Ctrl-C and SIGTERM at random times of a command, its imports included: the state of before or of after.

    Every twelfth command is an audit with two workers, which must end with it; finished models stay.
    """
    prepared: dict[str, tuple[Any, Any, float]] = {}
    for number in range(count):
        kind = _TURNS.get(number % 24, "score")
        (words, scenario), case = _SIGNALLED[kind], folder / kind
        words = [*COMMAND, *words]
        if kind not in prepared:
            case.mkdir()
            scenario.prepare(case)
            before, started = scenario.state(case), time.monotonic()
            subprocess.run(words, check=True, capture_output=True, timeout=120, cwd=case)
            prepared[kind] = before, scenario.state(case), time.monotonic() - started
        before, after, seconds = prepared[kind]
        if kind == "audit" and rng.random() < 0.5:  # the others resume
            fresh(case / "run")
        which = signal.SIGINT if number % 2 else signal.SIGTERM
        delay = float(rng.uniform(0, 1.1 * seconds))
        outcome, detail = _signalled(words, which, delay, case)
        if outcome in GOOD:
            outcome = _impossible_state(scenario, scenario.state(case), before, after) or outcome
        yield Finding(f"{which.name} after {delay:.3f} s of {kind}", outcome, detail)


def _signalled(words: list[str], which: signal.Signals, delay: float, folder: Path) -> tuple[Outcome, str]:
    """Run a command in a session of its own and send it a signal; nothing that it started may stay."""
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=folder
    ) as process:
        time.sleep(delay)
        process.send_signal(which)
        try:
            _, stderr = process.communicate(timeout=120)  # workers hold the pipes open, too
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "hang", "the command or its workers"
    if not _has_ended(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
        return "hang", "workers stayed"
    expected = (0, 130, -signal.SIGINT) if which == signal.SIGINT else (0, -signal.SIGTERM)
    if which == signal.SIGINT and interrupted_early(stderr):
        return "early", stderr[-300:]
    if "Traceback" in stderr or process.returncode not in expected:
        return "traceback", f"{process.returncode}: {stderr[-700:]}"
    return ("stopped" if process.returncode else "right"), ""


def _has_ended(session: int) -> bool:
    """Whether all processes of a session end within ten seconds."""
    for _ in range(200):
        try:
            os.killpg(session, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def interrupted_early(stderr: str) -> bool:
    """Whether Ctrl-C came before Python had read the first line of plmia, so that only Python could answer.

    The traceback then ends in KeyboardInterrupt, and none of its frames is in a file of plmia.
    """
    frames = [Path(file) for file in re.findall(r'^ *File "(.+?)", line \d+', stderr, re.MULTILINE)]
    package = Path(plmia.__file__).parent
    # With a colon, if it met code of Python that cannot raise.
    interrupted = "Traceback" in stderr and stderr.rstrip().removesuffix(":").endswith("KeyboardInterrupt")
    return interrupted and not any(file.is_relative_to(package) for file in frames)


# Standard streams ----------------------------------------------------------------------------------------------------

_AUDIT_OF_TABLE = (
    "audit --data data.csv --label y --group person --recipe sklearn:GaussianNB --references 4 --workers 1"
)
# Commands, and what each leaves in its folder. The audit warns about its table before it trains, and the gate fails.
PRINTING: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "score": ("score signals.npz -o out --attack attack-r", _results),
    "score as JSON": ("score signals.npz -o out --attack attack-r --json", _results),
    "audit": (f"{_AUDIT_OF_TABLE} --workers 1 --attack attack-r -o run", _audited),
    "gate": ("gate out --max-tpr 0.11 --at-fpr 0.1 --accept tied-scores --junit gate.xml", _file("gate.xml")),
    "attacks": ("attacks", _results),
    "report": ("report out --title New", _page),
    "help": ("--help", _results),
}
# What is wrong with standard output (1) or standard error (2).
STREAMS: dict[str, dict[int, str]] = {
    "no reader": {1: "left"},
    "no reader of both": {1: "left", 2: "left"},
    "no reader of errors": {2: "left"},
    "full": {1: "full"},
    "full for errors": {2: "full"},
    "closed": {1: "closed"},
    "closed for errors": {2: "closed"},
    "both closed": {1: "closed", 2: "closed"},
}


def standard_streams(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Readers that leave at once, full devices and closed descriptors: the files and the exit code of a usual run.

    If standard output is full, the exit code is 2, the files are there all the same, and a sentence says what is wrong.
    """
    template, case = folder / "template", folder / "case"
    fresh(template).mkdir()
    _with_results(template)
    _data(template)
    with np.load(template / "data.npz") as data:
        rows = [f"{x:.4f};{z:.4f};{y};{g}" for (x, z), y, g in zip(data["X"], data["y"], data["groups"], strict=True)]
    (template / "data.csv").write_text("\n".join(["x;z;y;person", *rows]) + "\n")
    _results(template)
    usual: dict[str, tuple[subprocess.CompletedProcess[str], Any]] = {}
    names = [f"{name}: {kind}" for name, kind in itertools.product(PRINTING, STREAMS)]
    for label in _evenly(names, count, rng):
        name, _, kind = label.partition(": ")
        words, state = PRINTING[name]
        if name not in usual:
            done = _with_streams(words, template, case, {})
            assert done.returncode == (3 if name == "gate" else 0), done.stderr
            assert name != "audit" or "plmia: " in done.stderr
            usual[name] = done, state(case)
        yield _with_other_streams(label, words, template, case, STREAMS[kind], state, *usual[name])


def _with_streams(words: str, template: Path, case: Path, streams: dict[int, str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a copy of a folder; raises TimeoutExpired if it hangs."""
    shutil.copytree(template, fresh(case), symlinks=True)
    reader, writer = os.pipe()
    os.close(reader)

    def redirect() -> None:
        for number, what in streams.items():
            if what == "closed":
                os.close(number)
            else:
                os.dup2(writer if what == "left" else os.open("/dev/full", os.O_WRONLY), number)

    try:
        return subprocess.run(
            [*COMMAND, *words.split()], cwd=case, preexec_fn=redirect, capture_output=True, text=True, timeout=120
        )
    finally:
        os.close(writer)


def _with_other_streams(
    label: str,
    words: str,
    template: Path,
    case: Path,
    streams: dict[int, str],
    state: Callable[[Path], Any],
    usual: subprocess.CompletedProcess[str],
    after: Any,
) -> Finding:
    """Compare a run with other streams with a usual one, and with what that left."""
    try:
        done = _with_streams(words, template, case, streams)
    except subprocess.TimeoutExpired:
        return Finding(label, "hang")
    detail = f"{done.returncode}: {done.stderr[-900:]}"
    refused = streams.get(1) == "full"
    unsaid = refused and "\nplmia: standard output " not in f"\n{done.stderr}"
    if unsaid or re.search("Traceback|Exception ignored", done.stderr):
        return Finding(label, "traceback", detail)
    if done.returncode != (2 if refused else usual.returncode) or (1 not in streams and done.stdout != usual.stdout):
        return Finding(label, "wrong", detail)
    try:
        same = state(case) == after
    except Exception as error:
        return Finding(label, "lost", f"{type(error).__name__}: {error}; {detail}")
    return Finding(label, ("refused" if refused else "right") if same else "lost", detail)


# Code of users -------------------------------------------------------------------------------------------------------

_DISTURBANCE = """
import ctypes, os, sys, time
import numpy as np
def disturb(place, *given):
    if place == PLACE and os.path.exists(FLAG):
        open(FLAG + "-seen", "w").close()
        act(*given)
def arrays(value):
    parts = value if isinstance(value, (tuple, list)) else getattr(value, "__dict__", value)
    parts = parts.values() if isinstance(parts, dict) else parts if isinstance(parts, (tuple, list)) else ()
    return [value] if isinstance(value, np.ndarray) else [array for part in parts for array in arrays(part)]
def act(*given):
    ACT
"""
_RECIPE = """
def train(X, y, seed):
    model = X.mean(axis=0), seed
    if seed == SEED: disturb("train", X, y)
    return model
def query(model, X, y):
    p = 1 / (1 + np.exp(-(X @ model[0]) - model[1] % 7))
    if model[1] == SEED: disturb("query", X, y)
    return np.stack([p, 1 - p], axis=1)
disturb("import")
"""
_ATTACK = """
from plmia import Attack, BinaryVote
def excess(view):
    phi = view.target - np.median(view.target, axis=0)
    disturb("call", view)
    return phi
MINE = Attack("mine", excess, BinaryVote())
disturb("import")
"""
BEHAVIOURS = {
    "raises": "raise ValueError('no')",
    "raises in many lines": "raise RuntimeError('a\\nb\\n' + 'c' * 5000)",
    "raises what is no Exception": "raise BaseException('no')",
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
    "writes into its arguments": "for array in arrays(given): array[...] = 0",
    "writes wherever it can": "for array in arrays(given): array.flags.writeable and array.fill(0)",
}
_HANGS = {"hangs": "time.sleep(600)", "holds the GIL": "ctypes.PyDLL(None).sleep(600)"}
# How a process ends that runs such code itself; of a worker process, only the job fails.
_ENDS = {
    "aborts": -signal.SIGABRT,
    "reads from nowhere": -signal.SIGSEGV,
    "kills itself": -signal.SIGKILL,
    "interrupts itself": 130,
}
# What nothing can be done about there: `docs/explanation/reliability.md` names it.
_LIMITS = ("exits at once", "closes its files")


@dataclass(frozen=True)
class Place:
    """Where a command runs code of users."""

    title: str
    kind: str  # "recipe" or "attack"
    part: str  # of its file
    by_workers: bool = False

    def can(self, behaviour: str) -> bool:
        """Whether the code can behave in this way here, and plmia should notice."""
        has_arguments = self.part != "import" or not behaviour.startswith("writes")
        return has_arguments and (self.by_workers or behaviour not in _LIMITS)

    def ends(self, behaviour: str) -> tuple[int, ...]:
        """Possible exit codes."""
        if behaviour in _HANGS:
            return 130, -signal.SIGKILL
        return (_ENDS[behaviour],) if behaviour in _ENDS and not self.by_workers else (0, 2)


PLACES = (
    Place("train of a recipe", "recipe", "train", by_workers=True),
    Place("query of a recipe", "recipe", "query", by_workers=True),
    Place("import of a recipe", "recipe", "import"),
    Place("call of an attack", "attack", "call"),
    Place("import of an attack", "attack", "import"),
)
_MISUSES = [(place, name) for place in PLACES for name in BEHAVIOURS | _HANGS if place.can(name)]


def code_of_users(folder: Path, count: int, rng: Rng) -> Iterator[Finding]:
    """Recipes and attacks that fail, in several places: a sentence, and finished models stay.

    If the cause was not in the code (here a file), the same command succeeds then, with the scores of an undisturbed
    run. After a change of training code, the folder is refused and stays as it is, or has no models yet. Code that
    nothing refuses leaves all scores as they are, those of a named attack beside it included.
    """
    _data(folder)
    _signals(folder)
    undisturbed: dict[str, Any] = {}
    for place, name in _evenly(_MISUSES, count, rng):
        words, run = _run_of(place, folder), folder / "run"
        if place.kind not in undisturbed:
            _write_code(folder, place, 0, "pass")
            subprocess.run([*words, str(fresh(run))], check=True)
            undisturbed[place.kind] = _scores_of(run)
            if place.kind == "attack":
                check_scored(results_of(run) or {}, arrays_in(folder / "signals.npz"))
        yield _misused(place, name, folder, int(rng.integers(5)), undisturbed[place.kind])


def _run_of(place: Place, folder: Path) -> list[str]:
    """Return a command that runs the user's code, but for the folder of its results."""
    if place.kind == "recipe":
        words = ["audit", "--data", folder / "data.npz", "--recipe", f"function:{folder / 'mine.py'}"]
        words += ["--references", "4", "--workers", "2", "--attack", "attack-r"]
    else:
        words = ["score", folder / "signals.npz", "--attack", f"{folder / 'mine.py'}:MINE", "--attack", "attack-p"]
    return [*COMMAND, *map(str, words), "--quiet", "-o"]


def _write_code(folder: Path, place: Place, model: int, act: str) -> None:
    """Write code that behaves so at one place, in one model if there are several, as long as there is a flag."""
    from plmia.training.train import seed_of

    changed = {"SEED": str(seed_of(0, model, 0)), "FLAG": repr(str(folder / "flag")), "PLACE": repr(place.part)}
    text = _DISTURBANCE + (_RECIPE if place.kind == "recipe" else _ATTACK)
    (folder / "mine.py").write_text(
        re.sub(r"\b(SEED|FLAG|PLACE|ACT)\b", lambda m: (changed | {"ACT": act})[m[0]], text)
    )


def _misused(place: Place, name: str, folder: Path, model: int, undisturbed: Any) -> Finding:
    """One case of `code_of_users`."""
    run, flag, case = fresh(folder / "run"), folder / "flag", f"{place.title}: {name}"
    words = [*_run_of(place, folder), str(run)]
    _write_code(folder, place, model, (BEHAVIOURS | _HANGS)[name])
    flag.touch()
    code, stderr = _disturbed(words, place, name, folder)
    flag.unlink()
    if code == HUNG:
        return Finding(case, "hang")
    # The user's own traceback stands before the sentence, which comes last.
    said = name in _HANGS or code <= 0 or "plmia: " in (stderr.splitlines() or [""])[-1]
    if code not in place.ends(name) or not said or (not place.by_workers and "Traceback" in stderr):
        return Finding(case, "traceback", f"{code}: {stderr[-900:]}")
    if code == 0:
        return Finding(case, "right" if _scores_of(run) == undisturbed else "wrong", stderr[-300:])
    if place.kind == "recipe":
        correct = lambda: _write_code(folder, place, 0, "pass  # corrected")  # noqa: E731
        return _resumed(case, words, run, correct, undisturbed)
    if results_of(run) is not None:
        return Finding(case, "wrong", "results of code that was refused")
    again = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    if again.returncode:
        return Finding(case, "lost", f"the same command: {again.returncode}: {again.stderr[-900:]}")
    return Finding(case, "stopped" if _scores_of(run) == undisturbed else "wrong", "the same command")


Item = TypeVar("Item")


def _evenly(items: list[Item], count: int, rng: Rng) -> list[Item]:
    """All items, or some at equal distances from a random first one."""
    if count >= len(items):
        return items
    first = int(rng.integers(len(items)))
    return [items[(first + k * len(items) // count) % len(items)] for k in range(count)]


def _disturbed(words: list[str], place: Place, name: str, folder: Path) -> tuple[int, str]:
    """Run a command whose code fails, and interrupt it if it hangs; return its exit code and what it said."""
    seen = fresh(folder / "flag-seen")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        if name in _HANGS:
            _wait(seen.exists)
            if place.by_workers:
                _wait(lambda: len(list((folder / "run" / "signals" / "records").glob("[0-9]*.json"))) >= 2)
            process.send_signal(signal.SIGINT if name == "hangs" else signal.SIGKILL)
        _, raw = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return HUNG, ""
    if not seen.exists():
        return process.returncode or 1, f"the code did not run: {raw.decode(errors='replace')}"
    return process.returncode, raw.decode(errors="replace")


def _resumed(name: str, words: list[str], run: Path, correct: Callable[[], None], undisturbed: Any) -> Finding:
    """Run an audit that failed once more: with other code in a copy of its folder, and with the same code."""
    store, copy = run / "signals", run.with_name("copy")
    if (store / "store.json").exists() and SignalStore.open(store).verify():
        return Finding(name, "lost", "a finished model is damaged")
    finished = _finished(store) if store.exists() else {}
    recipe = Path(words[words.index("--recipe") + 1].partition(":")[2])
    text = recipe.read_text()
    fresh(copy).mkdir()
    if run.exists():  # but for data that an audit left when it was killed, which its workers may remove now
        shutil.copytree(run, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".data-*"))
    correct()
    other = subprocess.run([*words[:-1], str(copy)], capture_output=True, text=True, check=False, timeout=60)
    recipe.write_text(text)
    if finished and (other.returncode != 2 or "another audit" not in other.stderr):
        return Finding(name, "wrong", f"models of other code were used: {other.stderr[-300:]}")
    if finished and _finished(copy / "signals") != finished:
        return Finding(name, "lost", "a finished model of other code")
    if not finished and (other.returncode or _scores_of(copy) != undisturbed):
        return Finding(name, "wrong", f"corrected code: {other.stderr[-300:]}")
    again = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    if again.returncode:
        return Finding(name, "lost", f"the same command: {again.returncode}: {again.stderr[-900:]}")
    if not finished.items() <= _finished(store).items():
        return Finding(name, "lost", "the same command trained a finished model again")
    return Finding(name, "stopped" if _scores_of(run) == undisturbed else "wrong", "the same command")


def _scores_of(run: Path) -> Any:
    """Scores, which do not depend on how the code is written."""
    found = results_of(run)
    return found and {name: found[name] for name in ("scores.npz", "records.csv")}


def _wait(reached: Callable[[], bool]) -> None:
    """Wait for ten seconds at most."""
    for _ in range(200):
        if reached():
            return
        time.sleep(0.05)


CAMPAIGNS: dict[str, tuple[Campaign, int]] = {
    "kills": (reporting(kills), 420),
    "errors and full disks": (reporting(errors_and_full_disks), 660),
    "a small disk": (reporting(on_a_small_disk), 70),
    "two commands at once": (reporting(between_operations), 70),
    "several writers": (reporting(several_writers), 40),
    "signals at any time": (reporting(signals_at_any_time), 40),
    "standard streams": (reporting(standard_streams), len(PRINTING) * len(STREAMS)),
    "code of users": (reporting(code_of_users), len(_MISUSES)),
}
