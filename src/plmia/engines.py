"""Where training runs: in this process, in processes of this machine, or on a Ray cluster.

An engine runs a function on jobs and hands back results as they come. A worker that dies costs its own job only: the
job is run again, a few times, before the engine gives up on it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Protocol, TypeVar

from plmia.errors import PlmiaError, TrainingError

Job = TypeVar("Job")
Result = TypeVar("Result")

MOST_TRIES = 3


@dataclass(frozen=True)
class Failed:
    """What a job ended with instead of a result: a sentence, and the user's own traceback where there is one."""

    sentence: str
    trace: str = ""


class Engine(Protocol):
    """A place to run jobs."""

    def run(self, work: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any | Failed]]:
        """Run ``work`` on each job; yield jobs with their results, as they come.

        ``work`` and the jobs must be picklable unless the engine runs them in this process. A result is handed over
        before another job is taken, so results never pile up.
        """


def attempt(work: Callable[[Job], Result], job: Job) -> Result | Failed:
    """Run one job; what it raises becomes a `Failed`."""
    try:
        return work(job)
    except PlmiaError as error:
        return Failed(str(error))
    except MemoryError as error:
        return Failed(f"out of memory ({error}): use fewer workers, or a smaller stack")
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}", traceback.format_exc())


@dataclass(frozen=True)
class Inline:
    """One job after another in this process; needed for functions that no other process can import."""

    def run(self, work: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any | Failed]]:
        """Run the jobs in order."""
        for job in jobs:
            yield job, attempt(work, job)


@dataclass(frozen=True)
class LocalProcesses:
    """Processes of this machine.

    Parameters
    ----------
    workers : int
        How many; each uses one core.
    """

    workers: int

    def run(self, work: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any | Failed]]:
        """Run the jobs, ``workers`` at a time."""
        queue = deque((job, 1) for job in jobs)
        busy: dict[Any, _Worker[Any]] = {}
        idle: list[_Worker[Any]] = []
        try:
            while queue or busy:
                while queue and len(busy) < self.workers:
                    worker = idle.pop() if idle else _Worker(work)
                    worker.give(*queue.popleft())
                    busy[worker.pipe] = worker
                for pipe in wait(list(busy)):
                    worker = busy.pop(pipe)
                    result = worker.take()
                    if isinstance(result, _Died) and worker.tries < MOST_TRIES:
                        queue.appendleft((worker.job, worker.tries + 1))
                        continue
                    if isinstance(result, _Died):
                        yield worker.job, result.failed(worker.tries)
                        continue
                    idle.append(worker)
                    yield worker.job, result
        finally:
            for worker in [*idle, *busy.values()]:
                worker.stop()


@dataclass(frozen=True)
class _Died:
    exit_code: int | None

    def failed(self, tries: int) -> Failed:
        how = f"exit code {self.exit_code}"
        if self.exit_code is not None and self.exit_code < 0:
            how = signal.Signals(-self.exit_code).name + (", often for lack of memory" if self.exit_code == -9 else "")
        return Failed(f"a worker process died {tries} times over it ({how}): use fewer workers, or a smaller stack")


class _Worker(Generic[Job]):
    """A process and the pipe to it."""

    def __init__(self, work: Callable[[Job], Any]) -> None:
        # Not fork: threads of numerical libraries do not survive it.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs, work), daemon=True)
        self._process.start()
        theirs.close()

    def give(self, job: Job, tries: int) -> None:
        """Send a job."""
        self.job, self.tries = job, tries
        # A worker that is dead already is found out when its answer is taken.
        with contextlib.suppress(OSError):
            self.pipe.send(job)

    def take(self) -> Any | _Died:
        """Receive the result, or learn that the process died."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            return _Died(self._process.exitcode)

    def stop(self) -> None:
        """End the process."""
        self.pipe.close()
        self._process.terminate()
        self._process.join()


def _serve(pipe: Connection, work: Callable[[Any], Any]) -> None:
    """Answer jobs until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    one_thread()
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send(attempt(work, pipe.recv()))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def one_thread() -> None:
    """Give numerical libraries one thread: jobs run side by side, and sums come out the same everywhere."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    # Torch reads the variable when it is imported, which takes a second: not here, if nobody did.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    with contextlib.suppress(ImportError):
        from threadpoolctl import threadpool_limits

        threadpool_limits(1)


@dataclass(frozen=True)
class Ray:
    """A Ray cluster: an existing one by its address, or one started on this machine.

    Parameters
    ----------
    address : str, optional
        Address of a running cluster ("auto" finds the local one); None starts Ray here.
    gpus : float
        GPUs a job; 0.25 packs four jobs on one.
    cpus : float
        Cores a job.
    in_flight : int
        How many jobs are handed to the cluster at a time, so that results do not pile up.
    """

    address: str | None = None
    gpus: float = 0.0
    cpus: float = 1.0
    in_flight: int = 16

    def run(self, work: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any | Failed]]:
        """Run the jobs on the cluster."""
        ray = _import_ray()
        started = not ray.is_initialized()
        if started:
            try:
                ray.init(
                    address=self.address, log_to_driver=False, include_dashboard=False if self.address is None else None
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise TrainingError(f"no Ray cluster answers at {self.address!r}: {error}") from error
        remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=MOST_TRIES - 1)(_on_cluster)
        shared, waiting = ray.put(work), deque(jobs)
        running: dict[Any, Any] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.in_flight:
                    job = waiting.popleft()
                    running[remote.remote(shared, job)] = job
                for done in ray.wait(list(running), num_returns=1)[0]:
                    job = running.pop(done)
                    try:
                        result = ray.get(done)
                    except ray.exceptions.RayError as error:
                        result = Failed(f"a Ray worker died {MOST_TRIES} times over it: {str(error).splitlines()[0]}")
                    yield job, result
        finally:
            for reference in running:
                ray.cancel(reference, force=True)
            if started:
                ray.shutdown()


def _on_cluster(work: Callable[[Job], Result], job: Job) -> Result | Failed:
    one_thread()
    return attempt(work, job)


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise TrainingError("Ray is not installed: pip install 'plmia[ray]', or leave out --engine ray") from error
    return ray
