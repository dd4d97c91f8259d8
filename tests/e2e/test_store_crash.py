"""Writers that are killed, crowd each other or run out of disk: every model is there whole, or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmia.signals.store import SignalStore

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and fork")

N_POINTS, STACK, N_KILLED = 9_000, 4, 200

# What every writer here starts with: models whose signals follow from their number.
COMMON = f"""
import os, sys
from pathlib import Path
import numpy as np
from plmia.data.designs import MembershipDesign
from plmia.errors import StoreError
from plmia.signals.store import SignalStore

def values_of(models):
    return np.stack([np.random.default_rng(m).standard_normal(({N_POINTS}, 1), dtype=np.float32) for m in models])

def append(store, models):
    store.append(models, values_of(models), [{{"seed": m}} for m in models])

def design_of(n):
    return MembershipDesign(np.stack([np.random.default_rng(m).random({N_POINTS}) < 0.5 for m in range(n)]))

def create(path, n):
    return SignalStore.create(path, {{"seed": 0}}, design_of(n), ["identity"])
"""
common: dict[str, Any] = {}
exec(COMMON, common)  # the same functions for the tests
append, create, values_of = common["append"], common["create"], common["values_of"]


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COMMON + code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )


@contextmanager
def running(code: str, *arguments: list[object]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are gone at the end, one for each list of arguments."""
    processes = [start(code, *given) for given in arguments]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def require_whole(store: SignalStore) -> list[int]:
    """Nothing is damaged, no stack is half there, and what is there is right; return the finished models."""
    assert store.verify() == []
    finished = list(store.finished())
    whole = [m for stack in {m // STACK for m in finished} for m in range(stack * STACK, (stack + 1) * STACK)]
    assert finished == sorted(whole)
    if finished:
        np.testing.assert_array_equal(store.read(), values_of(finished))
    return finished


# Kills pairs of writers, each pair at a random moment after a random number of stacks.
KILL = f"""
import random, signal, time
rng = random.Random(3)

def write(store, first, done):
    for stack in range(first, store.shape[0] // {STACK}, 2):
        append(store, range(stack * {STACK}, (stack + 1) * {STACK}))
        os.write(done, b".")

for round in range(20):
    store = create(Path(sys.argv[1]) / str(round), {N_KILLED})
    done, here = os.pipe()
    writers = []
    for first in (0, 1):
        writers.append(os.fork())
        if not writers[-1]:
            write(store, first, here)
            os._exit(0)
    for _ in range(rng.randrange(8)):
        os.read(done, 1)
    time.sleep(rng.random() * 0.02)
    for writer in writers:
        os.kill(writer, signal.SIGKILL)
    print(*[os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) for writer in writers], flush=True)
"""


def test_writers_killed_at_random_moments_leave_only_whole_stacks(tmp_path: Path) -> None:
    with running(KILL, [tmp_path]) as (process,):
        statuses = finish(process).splitlines()
    assert statuses.count("-9 -9") > 10  # so many were killed in the middle indeed
    for round_ in range(20):
        store = SignalStore.open(tmp_path / f"{round_}")
        finished = require_whole(store)
        in_flight = (finished[-1] + 1 if finished else 0) + 2 * STACK
        left = [m for m in store.missing() if m < in_flight]
        for first in left[::STACK]:
            append(store, range(first, first + STACK))
        assert require_whole(store) == sorted({*finished, *left})


WRITE = f"""
store = SignalStore.open(sys.argv[1])
for stack in range(int(sys.argv[2]), store.shape[0] // {STACK}, 2):
    append(store, range(stack * {STACK}, (stack + 1) * {STACK}))
"""


def test_writers_at_once(tmp_path: Path) -> None:
    store = create(tmp_path / "signals", 64)
    # The first two write the same stacks as each other, and so do the last two.
    with running(WRITE, *[[store.folder, first] for first in (0, 0, 1, 1)]) as writers:
        for writer in writers:
            finish(writer)
    assert require_whole(store) == list(range(64))
    assert store.missing() == []


CONTEND = """
store = SignalStore.open(sys.argv[1])
for model in range(store.shape[0]):
    try:
        append_other = values_of([model]) + np.float32(sys.argv[2])
        store.append([model], append_other, [{"writer": sys.argv[2]}])
    except StoreError as error:
        assert "other signals" in str(error), error
"""


def test_writers_that_disagree_about_a_model_do_not_mix(tmp_path: Path) -> None:
    store = create(tmp_path / "signals", 20)
    with running(CONTEND, [store.folder, 1], [store.folder, 2]) as writers:
        for writer in writers:
            finish(writer)
    assert store.verify() == []
    added = np.array([float(entry["writer"]) for entry in store.finished().values()], np.float32)
    assert len(added) == 20
    np.testing.assert_array_equal(store.read(), values_of(range(20)) + added[:, None, None])


# Runs an operation in a child that dies (without any cleaning up) at its 1st, 2nd, ... call to the system; the call at
# which it dies is not made, or half of it if it writes more than a sector. Ends with the first child that gets through.
EVERY_STEP = """
import shutil
folder, operation = Path(sys.argv[1]), sys.argv[2]

def die_at(step):
    calls = 0
    def mortal(real, half=None):
        def call(*arguments, **more):
            nonlocal calls
            calls += 1
            if calls == step:
                if half is not None:
                    half(*arguments)
                os._exit(9)
            return real(*arguments, **more)
        return call
    real_write = os.write
    os.write = mortal(os.write, lambda file, data: len(data) > 512 and real_write(file, data[: len(data) // 2]))
    for name in ("fsync", "lseek"):
        setattr(os, name, mortal(getattr(os, name)))
    for name in ("replace", "rename", "mkdir"):
        setattr(Path, name, mortal(getattr(Path, name)))

def prepare(path):
    if operation != "create":
        store = create(path, 8)
        append(store, [0, 1, 2, 3])

def act(path):
    if operation == "append":
        append(SignalStore.open(path), [4, 5, 6, 7])
    else:
        create(path, 12 if operation == "extend" else 8)

for step in range(1, 200):
    path = folder / str(step)
    prepare(path)
    child = os.fork()
    if not child:
        die_at(step)
        act(path)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(step, flush=True)
    if status == 0:
        break
    assert status == 9, status
"""


@pytest.mark.parametrize("operation", ["create", "append", "extend"])
def test_a_writer_that_dies_at_any_step_leaves_a_whole_store(tmp_path: Path, operation: str) -> None:
    with running(EVERY_STEP, [tmp_path, operation]) as (process,):
        steps = [int(line) for line in finish(process).split()]
    assert len(steps) > 8
    outcomes = set()
    for step in steps:
        path = tmp_path / f"{step}"
        if operation == "create" and not (path / "store.json").exists():
            assert not path.exists()  # nothing, rather than half of it
        else:
            store = SignalStore.open(path)
            outcomes.add((store.shape[0], len(require_whole(store))))
        again = create(path, 12)
        for first in again.missing()[::STACK]:
            append(again, range(first, first + STACK))
        assert require_whole(again) == list(range(12))
        shutil.rmtree(path)
    assert outcomes == {"create": {(8, 0)}, "append": {(8, 4), (8, 8)}, "extend": {(8, 4), (12, 4)}}[operation]


FILL = """
store = create(sys.argv[1] + "/signals", 64)
try:
    for model in range(64):
        append(store, [model])
except StoreError as error:
    print(error)
there = list(store.finished())
np.testing.assert_array_equal(store.read(), values_of(there))
assert store.verify() == []
os.unlink(sys.argv[1] + "/ballast")
append(store, range(len(there), len(there) + 4))
assert store.verify() == []
print(len(there), len(store.finished()))
"""


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    script = 'mount -t tmpfs -o size=2m tmpfs "$1" && head -c 1m /dev/zero > "$1/ballast" && exec "$2" -c "$3" "$1"'
    probe = 'mount -t tmpfs -o size=2m tmpfs "$1"'
    if shutil.which("unshare") is None or subprocess.run([*mount, probe, "sh", tmp_path], check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    done = subprocess.run(
        [*mount, script, "sh", tmp_path, sys.executable, COMMON + FILL], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    message, counts = done.stdout.splitlines()
    before, after = map(int, counts.split())
    assert message.startswith(f"the disk is full, model {before} of ")
    assert 10 < before < 40
    assert after == before + 4
