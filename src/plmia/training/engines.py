"""Where training runs: in this process, in processes of this machine, or on a Ray cluster.

An engine runs a function on jobs and yields results in the order in which they finish. If a worker dies, only its own
job is run again; after `MOST_TRIES` attempts the job counts as failed.

`LocalProcesses` has its own process pool. With loky (joblib 1.6), killing one of two busy workers failed all running
and waiting jobs without saying which one was the cause. Workers outlived a killed parent, and Ctrl-C killed workers
that were still starting.
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
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from plmia.data.user_code import PASSED_ON, described, lacks_memory, message_of
from plmia.errors import PlmiaError, PlmiaWarning, RecipeError, TrainingError, install_hint

Job = TypeVar("Job")
Result = TypeVar("Result")

MOST_TRIES = 3

_ANSWER_SECONDS = 20.0
# Seconds between two looks at the head of a Ray cluster, and how many it may miss: after a minute without its head, Ray
# ends this process before plmia can print a message.
_LOOK_SECONDS, _MOST_MISSED = 5.0, 3
# Of a job; no machine has more GPUs or cores.
_MOST_DEVICES = 10_000
# Option of Linux's prctl: the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Failed:
    """Outcome of a job without a result: a sentence, the user's traceback, and whether the recipe is the cause."""

    sentence: str
    trace: str = ""
    by_recipe: bool = False


Results = Generator[tuple[Any, Any | Failed], None, None]


class Engine(Protocol):
    """A place to run jobs.

    A class that inherits from `Engine` defines `run` and inherits the other members. A class that does not inherit must
    define all of them.
    """

    @property
    def at_once(self) -> int:
        """Number of jobs into which divisible work is cut."""
        return 1

    @property
    def maps_files(self) -> bool:
        """Whether workers are processes of this machine, which share the data by mapping files."""
        return False

    @abstractmethod
    def run(self, work: Callable[[Any], Any], jobs: Iterable[Any]) -> Results:
        """Run ``work`` on each job; yield each job with its result or a `Failed`, in the order in which they finish.

        ``work`` and the jobs must be picklable unless the engine runs them in this process. A finished worker waits
        until its result is taken, so results do not pile up. Closing the generator stops all workers.
        """


def attempt(work: Callable[[Job], Result], job: Job) -> Result | Failed:
    """Run one job; an exception becomes a `Failed`."""
    try:
        return work(job)
    except PlmiaError as error:
        return Failed(str(error), by_recipe=isinstance(error, RecipeError))
    except PASSED_ON:
        raise
    except BaseException as error:
        if lacks_memory(error):
            return Failed(f"out of memory ({message_of(error)}): use fewer workers, or a smaller stack")
        return Failed(described(error), traceback.format_exc(), by_recipe=True)


@dataclass(frozen=True)
class Inline(Engine):
    """One job after another in this process; needed for functions that other processes cannot import."""

    def run(self, work: Callable[[Any], Any], jobs: Iterable[Any]) -> Results:
        """Run the jobs in order."""
        for job in jobs:
            yield job, attempt(work, job)


@dataclass(frozen=True)
class LocalProcesses(Engine):
    """Processes of this machine.

    Parameters
    ----------
    workers : int
        Number of processes; each uses one core.
    """

    workers: int
    maps_files: ClassVar[bool] = True

    @property
    def at_once(self) -> int:
        """One job per worker."""
        return self.workers

    def run(self, work: Callable[[Any], Any], jobs: Iterable[Any]) -> Results:
        """Run the jobs, ``workers`` at a time."""
        sent = pickled(work)
        queue = deque((job, 1) for job in jobs)
        busy: dict[Any, _Worker[Any]] = {}
        idle: list[_Worker[Any]] = []
        try:
            while queue or busy:
                while queue and len(busy) < self.workers:
                    worker = idle.pop() if idle else _Worker(sent)
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


class _ByValue(ForkingPickler):
    """Pickles tensors by their contents; torch would send handles that only one of the workers can open."""

    _extra_reducers: ClassVar[dict[type, Callable[[Any], Any]]] = {}


def pickled(work: Any) -> bytes:
    """Bytes to send to another process; objects of the user's script or notebook travel with their code.

    Raises `TrainingError` for what cannot be sent, such as an open file.
    """
    with contextlib.suppress(Exception):  # objects may raise anything when they are pickled
        plain = bytes(_ByValue.dumps(work))
        if b"__main__" not in plain:
            return plain
    # By value, with cloudpickle: other processes would have to run the script to import from it.
    from joblib import wrap_non_picklable_objects

    try:
        return bytes(_ByValue.dumps(wrap_non_picklable_objects(work, keep_wrapper=False)))
    except Exception as error:
        raise TrainingError(
            f"this recipe cannot be sent to other processes ({described(error)}): use engine=Inline()"
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
            how += ", often due to lack of memory"
        return Failed(f"its worker process died {tries} times ({how}): use fewer workers, or a smaller stack")


class _Worker(Generic[Job]):
    """A process and the pipe to it."""

    def __init__(self, work: bytes) -> None:
        # Not fork: threads of numerical libraries do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_serve, args=(theirs, logging.root.manager.disable), daemon=True
        )
        try:
            with _interrupts_held(), _script_hidden():
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
        # If the worker is dead already, `take` notices.
        with contextlib.suppress(OSError):
            self.pipe.send(job)

    def take(self) -> Any | _Died:
        """Receive the result, or how the process died."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            return _Died(self._process.exitcode)

    def stop(self) -> None:
        """Kill the process, since its code may ignore milder signals."""
        self.pipe.close()
        self._process.kill()
        self._process.join()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Delay Ctrl-C, so that a process that starts inside ignores it from its first moment on."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Start the tracker now: started with the first worker, it would let interrupts through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _script_hidden() -> Iterator[None]:
    """Keep spawned processes from running the user's script, and thereby its audit, again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _serve(pipe: Connection, silenced: int) -> None:
    """Receive the work, then run jobs until the parent closes the pipe; log nothing up to the level ``silenced``."""
    logging.disable(silenced)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Daemons may not start processes, but training may need to.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    # Standard output belongs to the command; prints of the training code go to standard error.
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    _show_warnings_once()
    one_thread()
    _die_with_parent()
    with contextlib.suppress(EOFError, OSError):
        work: Callable[[Any], Any] | Failed = attempt(lambda p: p.recv(), pipe)
        while True:
            job = pipe.recv()
            _answer(pipe, work if isinstance(work, Failed) else attempt(work, job))


def _show_warnings_once() -> None:
    """Show a warning once per process instead of once per model; never if the parent ignores all (--quiet).

    The filter "once" forgets what it showed whenever a library changes filters for a while, as most do in every fit.
    """
    if "ignore" in sys.warnoptions:
        warnings.showwarning = lambda *_where, **_options: None
        return
    warnings.simplefilter("once", UserWarning)
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
    except Exception as error:  # results may raise anything when they are pickled
        pipe.send(Failed(f"the result cannot be sent back ({described(error)})", traceback.format_exc()))


def _die_with_parent() -> None:
    """End this process as soon as its parent has ended, even while training code holds the GIL (on Linux)."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if sys.platform == "linux":
        # A system without the call, or a Python without ctypes, has the thread below.
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent.pid:  # the parent ended before the call
            os._exit(1)

    def wait_for_end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()


def one_thread() -> None:
    """Limit numerical libraries to one thread: jobs run in parallel, and sums do not depend on the number of cores."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    # Torch reads the variable when it is imported; importing it here would cost a second.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    with contextlib.suppress(ImportError):
        from threadpoolctl import threadpool_limits

        threadpool_limits(1)


@dataclass(frozen=True)
class Ray(Engine):
    """A Ray cluster: an existing one by its address, or one started on this machine.

    If a worker or a whole node dies, its jobs run again on the other nodes; each job has `MOST_TRIES` attempts.

    Parameters
    ----------
    address : str, optional
        Address of a running cluster, "auto" for the one that RAY_ADDRESS names or that runs on this machine, or "local"
        to start one here. By default as "auto" if there is such a cluster, else as "local".
    gpus : float
        GPUs per job; 0.25 packs four jobs on one.
    cpus : float
        Cores per job.
    in_flight : int
        Number of jobs that the cluster holds at a time, so that results do not pile up.
    """

    address: str | None = None
    gpus: float = 0.0
    cpus: float = 1.0
    in_flight: int = 16

    def __post_init__(self) -> None:
        for what, number in {"GPUs": self.gpus, "cores": self.cpus}.items():
            if not 0 <= number <= _MOST_DEVICES:
                raise TrainingError(
                    f"each job was given {number:g} {what}, from 0 to {_MOST_DEVICES:,} are possible: give fewer, "
                    "such as 1"
                )

    @property
    def at_once(self) -> int:
        """Number of jobs that the cluster holds; 1 with GPUs, which train few large stacks faster than many small."""
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
                for done in self._next(ray, list(running)):
                    result = _fetch(ray, done)
                    yield running.pop(done), result
        finally:
            for reference in running:
                ray.cancel(reference, force=True)
            if started:
                ray.shutdown()

    def _next(self, ray: Any, running: Sequence[Any]) -> list[Any]:
        """Wait for the next result; raise if the head is gone, warn if no node could run the jobs: Ray waits on."""
        warned, waited, missed = False, 0.0, 0
        # A client (ray://) raises by itself, and does not know the head.
        head = "" if ray.util.client.ray.is_connected() else ray.get_runtime_context().gcs_address
        while not (done := ray.wait(running, num_returns=1, timeout=_LOOK_SECONDS)[0]):
            try:
                _require_answer(head, _LOOK_SECONDS)
                missed = 0
            except OSError as error:
                missed += 1
                if missed < _MOST_MISSED:
                    continue
                raise TrainingError(
                    f"the head of the Ray cluster, {head}, does not answer any more ({error.strerror or error}): start "
                    "a cluster and run the same command again, or use another engine (--engine); finished models are "
                    "kept"
                ) from error
            waited += _LOOK_SECONDS
            if not warned and waited >= _ANSWER_SECONDS and not any(self._fits(node) for node in ray.nodes()):
                warned = True
                text = (
                    f"Training waits: no node of the Ray cluster has {self.cpus:g} cores and {self.gpus:g} GPUs, as "
                    "each job needs. Add such a node, or stop and give fewer (--gpus)."
                )
                warnings.warn(text, PlmiaWarning, stacklevel=3)
        return list(done)

    def _fits(self, node: Any) -> bool:
        """Whether a node is alive and large enough for a job."""
        there = node["Resources"]
        return bool(node["Alive"]) and there.get("CPU", 0) >= self.cpus and there.get("GPU", 0) >= self.gpus

    def _start(self, ray: Any) -> bool:
        """Connect to the cluster, or start one; False if Ray is initialised already."""
        if ray.is_initialized():
            return False
        own = {"include_dashboard": False} if self.address is None else {}
        try:
            _require_answer(self.address or "")
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (OSError, RuntimeError, ValueError) as error:
            raise TrainingError(
                f"no Ray cluster answers at {self.address!r} ({error}): check the address (--ray-address), or leave "
                "it out"
            ) from error
        return True


def _require_answer(address: str, seconds: float = _ANSWER_SECONDS) -> None:
    """Raise OSError if nothing listens at HOST:PORT; Ray itself would retry for many minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), seconds).close()


def _fetch(ray: Any, done: Any) -> Any | Failed:
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        return Failed(f"a Ray worker could not run it: {error.cause!r}", str(error))
    except ray.exceptions.RayError as error:
        return Failed(
            f"its Ray worker died {MOST_TRIES} times, often due to lack of memory ({str(error).splitlines()[0]}): use "
            "machines with more memory, or a smaller stack"
        )


def _on_cluster(work: Callable[[Job], Result], job: Job) -> Result | Failed:
    one_thread()
    return attempt(work, job)


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise TrainingError(f"Ray is not installed: {install_hint('ray')}, or use another engine (--engine)") from error
    return ray
