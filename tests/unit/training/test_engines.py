"""Engines: the same results from each, failures that stay with their job, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmia.errors import TrainingError
from plmia.training import engines
from plmia.training.engines import MOST_TRIES, Failed, Inline, LocalProcesses

linux = pytest.mark.skipif(sys.platform != "linux", reason="uses a call of Linux")
posix = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")

# What workers run: they cannot import a test, so it lies in a module of its own.
WORK = """
import multiprocessing, os, signal, sys, time, warnings
from pathlib import Path
import numpy as np
from plmia.errors import TrainingError

class Unsendable:
    def __reduce__(self):
        raise RuntimeError("not to be sent")

class Unreceivable:
    def __reduce__(self):
        return (refuse, ("refused over there",))
    def __call__(self, job):
        return job

def refuse(text):
    raise TrainingError(text)

def note(job):
    with open(job["log"], "a") as log:
        log.write(f"{job['number']} {os.getpid()}\\n")

def work(job):
    if "log" in job:
        note(job)
    if job["do"] == "large":
        return np.random.default_rng(job["number"]).random(1 << 20)
    if job["do"] == "square":
        return job["number"] ** 2
    if job["do"] == "print":
        print("chatter", flush=True)
        os.write(1, b"from below\\n")
        return os.environ["OMP_NUM_THREADS"]
    if job["do"] == "warn":
        warnings.warn("the library would be called otherwise", DeprecationWarning)
        for line in ("a", "b"):
            exec(compile("warnings.warn('did not converge')", line, "exec"))
        return "warned"
    if job["do"] == "threads":
        import threadpoolctl
        np.ones((2, 2)) @ np.ones((2, 2))
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
    if job["do"] == "die once" and not os.path.exists(job["mark"]):
        Path(job["mark"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if job["do"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if job["do"] == "exit":
        os._exit(7)
    if job["do"] == "hold the GIL":
        import ctypes
        ctypes.PyDLL(None).sleep(60)
    if job["do"] == "sleep":
        time.sleep(60)
    if job["do"] == "raise":
        raise job["error"]
    if job["do"] == "unsendable":
        return Unsendable()
    if job["do"] == "fork":
        context = multiprocessing.get_context("spawn")
        child = context.Process(target=note, args=({"log": job["mark"], "number": 5},))
        child.start()
        child.join()
        return child.exitcode
    return "done"
"""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Module that workers can import."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "work_of_test_engines.py").write_text(WORK)
    sys.path.insert(0, str(folder))
    try:
        yield __import__("work_of_test_engines")
    finally:
        sys.path.remove(str(folder))
        del sys.modules["work_of_test_engines"]


def jobs_of(kind: str, count: int, **more: object) -> list[dict[str, Any]]:
    return [{"do": kind, "number": number, **more} for number in range(count)]


def outcomes(engine: Any, work: Callable[[Any], Any], jobs: list[dict[str, Any]]) -> dict[int, Any]:
    """Results by the number of the job; each job must come back once."""
    pairs = list(engine.run(work, jobs))
    assert sorted(job["number"] for job, _ in pairs) == sorted(job["number"] for job in jobs)
    return {job["number"]: result for job, result in pairs}


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and was not asked for its exit code does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return not Path("/proc/self").exists()


def wait_until(true: Callable[[], bool], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def pids_in(log: Path) -> list[int]:
    return [int(line.split()[1]) for line in log.read_text().splitlines()] if log.exists() else []


# Results -------------------------------------------------------------------------------------------------------------


def test_engines_agree_on_large_results(there: Any) -> None:
    jobs = jobs_of("large", 5)
    expected = outcomes(Inline(), there.work, jobs)
    found = outcomes(LocalProcesses(2), there.work, jobs)
    for number, result in expected.items():
        np.testing.assert_array_equal(result, np.random.default_rng(number).random(1 << 20))
        np.testing.assert_array_equal(found[number], result)


def test_one_process_takes_one_job_after_another(there: Any, tmp_path: Path) -> None:
    jobs = jobs_of("square", 4, log=str(tmp_path / "log"))
    pairs = list(LocalProcesses(1).run(there.work, jobs))
    assert [(job["number"], result) for job, result in pairs] == [(0, 0), (1, 1), (2, 4), (3, 9)]
    (pid,) = set(pids_in(tmp_path / "log"))
    assert pid != os.getpid()
    assert not is_alive(pid)


def test_no_jobs_start_no_process(there: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_Worker", None)
    assert list(LocalProcesses(2).run(there.work, [])) == []


@posix
def test_a_worker_keeps_to_one_thread_and_off_standard_output(there: Any, capfd: pytest.CaptureFixture[str]) -> None:
    jobs = [{"do": "print", "number": 0}, {"do": "threads", "number": 1}]
    found = outcomes(LocalProcesses(1), there.work, jobs)
    assert found[0] == "1"
    assert found[1]
    assert set(found[1]) == {1}
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "chatter\nfrom below\n"


@posix
def test_a_warning_that_many_models_give_is_shown_once(
    there: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that Python keeps from users stays with it."""
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    outcomes(LocalProcesses(1), there.work, jobs_of("warn", 5))
    err = capfd.readouterr().err
    assert err.count("did not converge") == 1
    assert "called otherwise" not in err


# Failures ------------------------------------------------------------------------------------------------------------


ERRORS = {
    "a sentence of ours": (TrainingError("what to do"), "what to do", False),
    "an error of theirs": (KeyError("eta"), "KeyError: 'eta'", True),
    "an exit": (SystemExit(3), "SystemExit: 3", True),
    "no memory": (
        MemoryError("Unable to allocate 9 TiB"),
        "out of memory (Unable to allocate 9 TiB): use fewer",
        False,
    ),
    "no memory on the device": (RuntimeError("CUDA out of memory. Tried"), "out of memory (CUDA out of memory", False),
    "no memory in C++": (RuntimeError("std::bad_alloc"), "out of memory (std::bad_alloc)", False),
}


@pytest.mark.parametrize("engine", [Inline(), LocalProcesses(1)], ids=lambda engine: type(engine).__name__)
def test_what_a_job_raises_comes_back(engine: Any, there: Any) -> None:
    jobs = [{"do": "raise", "number": i, "error": error} for i, (error, _, _) in enumerate(ERRORS.values())]
    found = outcomes(engine, there.work, [*jobs, {"do": "square", "number": 9}])
    assert found[9] == 81
    for number, (_, sentence, traced) in enumerate(ERRORS.values()):
        assert isinstance(found[number], Failed)
        assert found[number].sentence.startswith(sentence)
        assert ('raise job["error"]' in found[number].trace) == traced


@posix
def test_a_killed_worker_costs_its_own_job_only(there: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    jobs = jobs_of("square", 6, log=str(log))
    jobs[2] |= {"do": "die once", "mark": str(tmp_path / "mark")}
    found = outcomes(LocalProcesses(2), there.work, jobs)
    assert found == {0: 0, 1: 1, 2: "done", 3: 9, 4: 16, 5: 25}
    numbers = [int(line.split()[0]) for line in log.read_text().splitlines()]
    assert sorted(numbers) == [0, 1, 2, 2, 3, 4, 5]


@posix
def test_a_job_that_always_kills_its_worker_is_given_up(there: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    jobs = [{"do": "die", "number": 0, "log": str(log)}, *jobs_of("square", 3)[1:]]
    found = outcomes(LocalProcesses(1), there.work, jobs)
    assert (found[1], found[2]) == (1, 4)
    assert isinstance(found[0], Failed)
    assert f"died {MOST_TRIES} times" in found[0].sentence
    assert "SIGKILL" in found[0].sentence
    assert "memory" in found[0].sentence
    assert "use fewer workers" in found[0].sentence
    assert len(pids_in(log)) == len(set(pids_in(log))) == MOST_TRIES


@posix
def test_an_exit_from_below_is_named_by_its_code(there: Any) -> None:
    (result,) = outcomes(LocalProcesses(1), there.work, jobs_of("exit", 1)).values()
    assert "exit code 7" in result.sentence
    assert "memory" not in result.sentence


def test_every_signal_can_be_named() -> None:
    for number in range(1, 65):
        assert "died 3 times (" in engines._Died(-number).failed(3).sentence
    assert "(SIGSEGV)" in engines._Died(-signal.SIGSEGV).failed(3).sentence


def test_a_result_that_cannot_be_sent_back_is_a_failure(there: Any) -> None:
    found = outcomes(LocalProcesses(1), there.work, [*jobs_of("unsendable", 1), {"do": "square", "number": 2}])
    assert found[2] == 4
    assert "cannot be sent back (RuntimeError: not to be sent)" in found[0].sentence


def test_work_that_cannot_be_sent_is_refused_at_once() -> None:
    lock = threading.Lock()
    with pytest.raises(TrainingError, match=r"lock.*Inline\(\)"):
        next(LocalProcesses(1).run(lambda job: (job, lock), [1]))


def test_closures_travel_with_what_they_close_over() -> None:
    by = 3

    class Times:
        def __call__(self, number: int) -> int:
            return by * number

    assert outcomes(LocalProcesses(1), lambda job: Times()(job["number"]), [{"number": 2}]) == {2: 6}


def test_objects_of_the_script_need_no_second_run_of_it(tmp_path: Path) -> None:
    """Without ``if __name__ == "__main__"``: workers must not run the script again."""
    script = tmp_path / "script.py"
    script.write_text(
        "from plmia.training.engines import LocalProcesses\n"
        "print('run')\n"
        "RATE = 5\n"
        "class Work:\n"
        "    def __call__(self, job):\n"
        "        return job * RATE\n"
        "print([result for _, result in LocalProcesses(1).run(Work(), [1, 2])])\n"
    )
    for arguments in ([str(script)], ["-"]):
        done = subprocess.run(
            [sys.executable, *arguments], input=script.read_text(), capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == ["run", "[5, 10]"]


def test_work_that_cannot_be_received_fails_with_its_sentence(there: Any) -> None:
    found = outcomes(LocalProcesses(1), there.Unreceivable(), jobs_of("", 2))
    assert found == {0: Failed("refused over there"), 1: Failed("refused over there")}


def test_a_process_that_cannot_start_is_said_so(there: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", start)
    with pytest.raises(TrainingError, match="Resource temporarily unavailable"):
        next(LocalProcesses(1).run(there.work, jobs_of("square", 1)))


@posix
def test_training_may_start_processes_of_its_own(there: Any, tmp_path: Path) -> None:
    found = outcomes(LocalProcesses(1), there.work, jobs_of("fork", 1, mark=str(tmp_path / "mark")))
    assert found == {0: 0}
    assert (tmp_path / "mark").read_text().startswith("5 ")


# The end -------------------------------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("how", ["close", "interrupt"])
def test_stopping_ends_all_workers(how: str, there: Any, tmp_path: Path) -> None:
    """One worker is in the middle of a job, one has handed over a result."""
    log = tmp_path / "log"
    jobs = [{"do": do, "number": i, "log": str(log)} for i, do in enumerate(["sleep", "square", "square"])]
    results = LocalProcesses(2).run(there.work, jobs)
    next(results)
    assert wait_until(lambda: len(set(pids_in(log))) == 2)
    started = time.monotonic()
    if how == "close":
        results.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            results.throw(KeyboardInterrupt)
    assert time.monotonic() - started < 10
    assert not any(map(is_alive, pids_in(log)))


SCRIPT = """
import os, signal, sys
from plmia.training import engines
from work_of_test_engines import work

class Interrupted(engines._Worker):
    def __init__(self, pickled):
        super().__init__(pickled)
        os.killpg(0, signal.SIGINT)  # as Ctrl-C does, at a moment when the worker has hardly begun

if sys.argv[1] == "interrupt":
    signal.signal(signal.SIGINT, lambda *_: print("heard", flush=True))
    engines._Worker = Interrupted
    jobs = [{"do": "square", "number": 7}]
else:
    doing = "hold the GIL" if sys.argv[1].endswith("held") else "sleep"
    jobs = [{"do": doing, "number": i, "log": sys.argv[1]} for i in range(2)]
for job, result in engines.LocalProcesses(2).run(work, jobs):
    print(result, flush=True)
"""


@pytest.fixture
def script(there: Any, tmp_path: Path) -> Callable[[str], subprocess.Popen[str]]:
    """Start a script of its own, without the customary guard of its main part, in a process group of its own."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    paths = [str(Path(there.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

    def start(argument: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, path, argument],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    return start


@posix
@pytest.mark.parametrize("log_name", ["log", pytest.param("held", marks=linux)])
def test_workers_end_by_themselves_when_their_parent_is_killed(log_name: str, script: Any, tmp_path: Path) -> None:
    """Even those that hold the GIL, so that no thread of theirs can run."""
    log = tmp_path / log_name
    with script(str(log)) as process:
        try:
            assert wait_until(lambda: len(pids_in(log)) == 2)
            assert all(map(is_alive, pids_in(log)))
        finally:
            process.kill()
            process.wait()
        assert wait_until(lambda: not any(map(is_alive, pids_in(log))), 10)


@posix
def test_ctrl_c_does_not_reach_workers_that_are_just_starting(script: Any) -> None:
    out, err = script("interrupt").communicate(timeout=60)
    assert out == "heard\n49\n"
    assert err == ""


def test_a_job_may_raise_anything() -> None:
    odd = type("Odd", (Exception,), {"__str__": lambda self: 1 / 0})

    def work(job: BaseException) -> None:
        raise job

    for error in (odd(), BaseException("no"), SystemExit(0)):
        ((_, failed),) = Inline().run(work, [error])
        assert isinstance(failed, Failed)
        assert type(error).__name__ in failed.sentence
    for passed_on in (KeyboardInterrupt, GeneratorExit):
        with pytest.raises(passed_on):
            list(Inline().run(work, [passed_on()]))
