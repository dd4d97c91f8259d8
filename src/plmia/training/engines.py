"""Where training runs: in this process, in processes of this machine, or on a Ray cluster.

An engine runs a function on jobs and hands back results as they come. A worker that dies costs its own job only: the
job is run again, a few times, before the engine gives up on it.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from plmia.data.user_code import lacks_memory
from plmia.errors import PlmiaError, RecipeError, TrainingError

Job = TypeVar("Job")
Result = TypeVar("Result")

MOST_TRIES = 3

_ANSWER_SECONDS = 20.0


@dataclass(frozen=True)
class Failed:
    """What a job ended with instead of a result: a sentence, the user's traceback, and whether the recipe failed."""

    sentence: str
    trace: str = ""
    by_recipe: bool = False


Results = Generator[tuple[Any, Any | Failed], None, None]


class Engine(Protocol):
    """A place to run jobs."""

    @property
    def at_once(self) -> int:
        """Into how many jobs work is cut where it can be cut."""

    def run(self, work: Callable[[Any], Any], jobs: Iterable[Any]) -> Results:
        """Run ``work`` on each job; yield jobs with their results, as they come.

        ``work`` and the jobs must be picklable unless the engine runs them in this process. A result is handed over
        before another job is taken, so results never pile up. Closing the generator ends all that still runs.
        """


def attempt(work: Callable[[Job], Result], job: Job) -> Result | Failed:
    """Run one job; what it raises becomes a `Failed`."""
    try:
        return work(job)
    except PlmiaError as error:
        return Failed(str(error), by_recipe=isinstance(error, RecipeError))
    except (Exception, SystemExit) as error:
        if lacks_memory(error):
            return Failed(f"out of memory ({error}): use fewer workers, or a smaller stack")
        return Failed(f"{type(error).__name__}: {error}", traceback.format_exc(), by_recipe=True)


@dataclass(frozen=True)
class Inline:
    """One job after another in this process; needed for functions that no other process can import."""

    at_once: ClassVar[int] = 1

    def run(self, work: Callable[[Any], Any], jobs: Iterable[Any]) -> Results:
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

    @property
    def at_once(self) -> int:
        """One job a worker."""
        return self.workers

    def run(self, work: Callable[[Any], Any], jobs: Iterable[Any]) -> Results:
        """Run the jobs, ``workers`` at a time."""
        pickled = _pickled(work)
        queue = deque((job, 1) for job in jobs)
        busy: dict[Any, _Worker[Any]] = {}
        idle: list[_Worker[Any]] = []
        try:
            while queue or busy:
                while queue and len(busy) < self.workers:
                    worker = idle.pop() if idle else _Worker(pickled)
                    busy[worker.pipe] = worker
                    worker.give(*queue.popleft())
                for pipe in wait(list(busy)):
                    result = busy[pipe].take()
                    worker = busy.pop(pipe)
                    if not isinstance(result, _Died):
                        idle.append(worker)
                        yield worker.job, result
                    elif worker.tries < MOST_TRIES:
                        queue.appendleft((worker.job, worker.tries + 1))
                    else:
                        yield worker.job, result.failed(worker.tries)
        finally:
            for worker in [*idle, *busy.values()]:
                worker.stop()


def _pickled(work: Callable[[Any], Any]) -> bytes:
    try:
        return bytes(ForkingPickler.dumps(work))
    except Exception as error:  # whatever it raises, the work stays here
        raise TrainingError(
            f"this recipe cannot be sent to other processes ({type(error).__name__}: {error}): use engine=Inline()"
        ) from error


@dataclass(frozen=True)
class _Died:
    exit_code: int | None

    def failed(self, tries: int) -> Failed:
        how = f"exit code {self.exit_code}"
        if self.exit_code is not None and self.exit_code < 0:
            with contextlib.suppress(ValueError):  # not every signal has a name
                how = signal.Signals(-self.exit_code).name
        if self.exit_code == -9:
            how += ", often for lack of memory"
        return Failed(f"a worker process died {tries} times over it ({how}): use fewer workers, or a smaller stack")


class _Worker(Generic[Job]):
    """A process and the pipe to it."""

    def __init__(self, work: bytes) -> None:
        # Not fork: threads of numerical libraries do not survive it.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        try:
            with _interrupts_held(), contextlib.nullcontext() if b"__main__" in work else _script_hidden():
                self._process.start()
        except OSError as error:
            raise TrainingError(f"no worker process could be started ({error}): use fewer workers") from error
        finally:
            theirs.close()
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(work)

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
        """End the process, whatever its code does with milder signals."""
        self.pipe.close()
        self._process.kill()
        self._process.join()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait: a process that starts inside ignores it from its first moment, not only once it serves."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # The first process starts this one, too, which lets interrupts through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _script_hidden() -> Iterator[None]:
    """Keep spawned processes from running the user's script again, which would start its audit again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _serve(pipe: Connection) -> None:
    """Receive the work, then answer jobs until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Training may start processes of its own, which daemons may not.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    # Standard output is the command's; what training prints must not get between its lines.
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    warnings.simplefilter("once", UserWarning)
    _show_warnings_once()
    one_thread()
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        work: Callable[[Any], Any] | Failed = attempt(lambda p: p.recv(), pipe)
        while True:
            job = pipe.recv()
            _answer(pipe, work if isinstance(work, Failed) else attempt(work, job))


def _show_warnings_once() -> None:
    """Show a warning once a process: hundreds of models would say the same hundreds of times.

    The filter "once" forgets what it showed whenever a library changes filters for a while, as most do in every fit.
    """
    shown: set[tuple[str, type[Warning]]] = set()
    show = warnings.showwarning

    def show_new(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
        if (str(message), category) not in shown:
            shown.add((str(message), category))
            show(message, category, *where, **options)

    warnings.showwarning = show_new


def _answer(pipe: Connection, result: Any) -> None:
    try:
        pipe.send(result)
    except OSError:
        raise
    except Exception as error:  # what it raises when a result cannot be pickled depends on the result
        pipe.send(Failed(f"the result cannot be sent back ({type(error).__name__}: {error})", traceback.format_exc()))


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
        Address of a running cluster; by default the one that RAY_ADDRESS names or that was started on this machine
        ("auto" insists on that), else Ray is started here ("local" does so in any case).
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

    @property
    def at_once(self) -> int:
        """As many jobs as are handed to the cluster; where each has a GPU, stacks are better large than many."""
        return 1 if self.gpus else self.in_flight

    def run(self, work: Callable[[Any], Any], jobs: Iterable[Any]) -> Results:
        """Run the jobs on the cluster."""
        ray = _import_ray()
        started = self._start(ray)
        running: dict[Any, Any] = {}
        try:
            remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=MOST_TRIES - 1)(_on_cluster)
            shared, waiting = ray.put(work), deque(jobs)
            while waiting or running:
                while waiting and len(running) < self.in_flight:
                    job = waiting.popleft()
                    running[remote.remote(shared, job)] = job
                for done in ray.wait(list(running), num_returns=1)[0]:
                    result = _fetch(ray, done)
                    yield running.pop(done), result
        finally:
            for reference in running:
                ray.cancel(reference, force=True)
            if started:
                ray.shutdown()

    def _start(self, ray: Any) -> bool:
        """Connect to the cluster, or start one, unless that is done already."""
        if ray.is_initialized():
            return False
        own = {"include_dashboard": False} if self.address is None else {}
        try:
            _require_answer(self.address or "")
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (OSError, RuntimeError, ValueError) as error:
            raise TrainingError(
                f"no Ray cluster answers at {self.address!r} ({error}): check --ray-address, or leave it out"
            ) from error
        return True


def _require_answer(address: str) -> None:
    """Raise OSError if nobody listens at HOST:PORT; Ray itself would go on asking for many minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()


def _fetch(ray: Any, done: Any) -> Any | Failed:
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        return Failed(f"a Ray worker could not take it: {error.cause!r}", str(error))
    except ray.exceptions.RayError as error:
        return Failed(
            f"a Ray worker died {MOST_TRIES} times over it, often for lack of memory "
            f"({str(error).splitlines()[0]}): use machines with more memory, or a smaller stack"
        )


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
