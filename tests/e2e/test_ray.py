"""Training on a Ray cluster of two nodes, both on this machine: the same bytes, and a dead worker costs its own job."""

from __future__ import annotations

import json
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

from plmia.auditing.run import AuditPlan, run_audit
from plmia.data.dataset import LabelledData
from plmia.errors import RecipeError, TrainingError
from plmia.training.engines import MOST_TRIES, Failed, LocalProcesses, Ray
from plmia.training.recipes.named import parse_recipe
from plmia.training.views import View

# Ray's own clean-up, not ours: sockets and pipes that it leaves to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Nodes listen and connect on the loopback interface only; Ray reads it when it is imported.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
if os.environ.get("CI") != "true":
    pytest.importorskip("ray", reason="Ray is not installed")

OWN = """
import numpy as np
def train(X, y, seed):
    return X + np.random.default_rng(seed).normal(0, 0.1, X.shape), y
def query(model, X, y):
    points, labels = model
    gaps = np.linalg.norm(X[:, None] - points[None], axis=2)
    return np.stack([-gaps[:, labels == c].min(axis=1) for c in range(2)], axis=1)
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Address of a cluster that this process is connected to; its start gets a second try."""
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 100 << 20}
    for last in (False, True):
        cluster = Cluster()
        try:
            cluster.add_node(include_dashboard=False, **node)
            cluster.add_node(**node)
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            break
        except Exception:
            cluster.shutdown()
            if last:
                raise
    assert cluster.address.startswith("127.0.0.1:")
    yield cluster.address
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng, y = np.random.default_rng(0), np.arange(100) % 2
    np.savez(tmp_path / "data.npz", X=rng.normal(y[:, None], 1.0, (100, 4)).astype(np.float32), y=y)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "data.npz"


def jobs_of(count: int, log: Path, **more: object) -> list[dict[str, Any]]:
    return [{"number": number, "log": str(log), **more} for number in range(count)]


def make_work(act: Callable[[Any], Any] = lambda job: job["number"] ** 2) -> Callable[[Any], Any]:
    """Work that notes each job and its process; it is defined inside, so that it travels whole."""

    def work(job: Any) -> Any:
        with Path(job["log"]).open("a") as log:
            log.write(f"{job['number']} {os.getpid()}\n")
        return act(job)

    return work


def noted(log: Path) -> list[tuple[int, int]]:
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [(int(number), int(pid)) for number, pid in lines]


def wait_until(true: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


# The same bytes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "recipe", ["sklearn:RandomForestClassifier?n_estimators=5", "function", "mlp?widths=8&epochs=2"]
)
def test_processes_and_ray_give_the_same_bytes(recipe: str, address: str, data: Path, tmp_path: Path) -> None:
    if recipe.startswith("mlp"):
        pytest.importorskip("torch")
    way = parse_recipe(f"function:{tmp_path / 'own.py'}" if recipe == "function" else recipe)
    with np.load(data) as arrays:
        plan = AuditPlan(LabelledData(arrays["X"], arrays["y"]), way, 6, (View(), View(scale=0.1)))
    run_audit(plan, tmp_path / "local", LocalProcesses(2))
    run_audit(plan, tmp_path / "ray", Ray(address))
    for name in ("signals/signals.npy", "signals/membership.npy", "metrics.json", "scores.npz"):
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "ray" / name).read_bytes()


def test_the_command_trains_on_the_cluster_and_goes_on(
    address: str, data: Path, tmp_path: Path, without_progress: Callable[[str], str]
) -> None:
    """In a process of its own, which is not connected yet."""

    def audit(folder: str, *options: str) -> subprocess.CompletedProcess[str]:
        code = "from plmia.cli.main import main; main(prog_name='plmia')"
        given = ["--data", "data.npz", "--recipe", "function:own.py", "--attack", "rmia", "-o", folder, *options]
        return subprocess.run(
            [sys.executable, "-c", code, "audit", *given], capture_output=True, text=True, cwd=tmp_path, timeout=120
        )

    cluster = ["--engine", "ray", "--ray-address", address]
    first = audit("run", "--references", "4", "--quiet", *cluster)
    assert (first.returncode, first.stdout, first.stderr) == (0, "", "")
    before = (tmp_path / "run/signals/records/000004.json").read_bytes()
    second = audit("run", "--references", "6", "--json", *cluster)
    assert (second.returncode, without_progress(second.stderr)) == (0, "")
    assert json.loads(second.stdout)["about"]["references"] == [6]
    assert (tmp_path / "run/signals/records/000004.json").read_bytes() == before
    local = audit("local", "--references", "6", "--quiet")
    assert local.returncode == 0
    for name in ("signals/signals.npy", "metrics.json", "scores.npz"):
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


def test_large_results_come_back_whole(address: str, tmp_path: Path) -> None:
    work = make_work(lambda job: np.random.default_rng(job["number"]).random(1 << 20))
    for job, result in Ray(address, in_flight=2).run(work, jobs_of(5, tmp_path / "log")):
        np.testing.assert_array_equal(result, np.random.default_rng(job["number"]).random(1 << 20))
    assert sorted(number for number, _ in noted(tmp_path / "log")) == [0, 1, 2, 3, 4]


# Workers that die ----------------------------------------------------------------------------------------------------


def test_a_worker_killed_in_the_middle_costs_its_own_job_only(address: str, data: Path, tmp_path: Path) -> None:
    log, mark = tmp_path / "log", tmp_path / "mark"

    def act(job: Any) -> Any:
        if job["number"] == 2 and not Path(job["mark"]).exists():
            Path(job["mark"]).write_text(str(os.getpid()))
            time.sleep(60)
        return job["number"] ** 2

    def kill() -> None:
        if wait_until(lambda: mark.exists() and mark.read_text() != ""):
            os.kill(int(mark.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        pairs = list(Ray(address, in_flight=2).run(make_work(act), jobs_of(6, log, mark=str(mark))))
    finally:
        killer.join()
    assert sorted((job["number"], result) for job, result in pairs) == [(n, n * n) for n in range(6)]
    assert sorted(number for number, _ in noted(log)) == [0, 1, 2, 2, 3, 4, 5]
    first, second = (pid for number, pid in noted(log) if number == 2)
    assert first == int(mark.read_text()) != second


def test_a_job_that_always_kills_its_worker_is_given_up(address: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def act(job: Any) -> Any:
        if job["number"] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    found = {job["number"]: result for job, result in Ray(address).run(make_work(act), jobs_of(3, log))}
    assert (found[1], found[2]) == ("done", "done")
    assert isinstance(found[0], Failed)
    assert f"Ray worker died {MOST_TRIES} times" in found[0].sentence
    assert [number for number, _ in noted(log)].count(0) == MOST_TRIES


def test_what_a_job_raises_comes_back(address: str, tmp_path: Path) -> None:
    def act(job: Any) -> Any:
        raise [KeyError("eta"), RecipeError("what to do"), MemoryError("9 TiB")][job["number"]]

    found = {job["number"]: result for job, result in Ray(address).run(make_work(act), jobs_of(3, tmp_path / "log"))}
    assert found[0].sentence == "KeyError: 'eta'"
    assert 'raise [KeyError("eta")' in found[0].trace
    assert found[1] == Failed("what to do", by_recipe=True)
    assert found[2].sentence.startswith("out of memory (9 TiB)")
    assert len(noted(tmp_path / "log")) == 3


def test_work_that_cannot_be_received_is_a_failure(address: str) -> None:
    class Unreceivable:
        def __reduce__(self) -> tuple[Any, ...]:
            return (int, ("not a number",))

    ((_, result),) = Ray(address).run(Unreceivable(), [1])  # type: ignore[arg-type]
    assert isinstance(result, Failed)
    assert "not a number" in result.sentence + result.trace
    assert "died" not in result.sentence


# Order ---------------------------------------------------------------------------------------------------------------


def test_no_more_is_begun_than_may_be_in_flight(address: str, tmp_path: Path) -> None:
    """A consumer that is slow: at no time are there more results than ``in_flight`` that it has not taken."""
    log = tmp_path / "log"
    results = Ray(address, cpus=0.25, in_flight=3).run(make_work(), jobs_of(9, log))
    for taken in range(1, 10):
        next(results)
        time.sleep(0.15)
        assert len(noted(log)) <= taken - 1 + 3
        if taken == 3:
            assert wait_until(lambda: len(noted(log)) == 5, 10)
    assert next(results, None) is None


def test_closing_ends_what_still_runs(address: str, tmp_path: Path) -> None:
    import ray

    log = tmp_path / "log"
    work = make_work(lambda job: time.sleep(60 * (job["number"] > 0)))
    results = Ray(address, in_flight=2).run(work, jobs_of(6, log))
    next(results)
    assert wait_until(lambda: any(number == 1 for number, _ in noted(log)))
    pid = next(pid for number, pid in noted(log) if number == 1)
    results.close()
    assert wait_until(lambda: not is_alive(pid), 20)
    time.sleep(0.3)
    assert {number for number, _ in noted(log)} == {0, 1}
    # It was connected before, so it still is.
    assert ray.is_initialized()


# Without a cluster ---------------------------------------------------------------------------------------------------


def test_a_missing_ray_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TrainingError, match=r"Ray is not installed: pip install .*\[ray\]'"):
        next(Ray().run(print, [1]))


@pytest.mark.parametrize("port", ["1", "99999"])
def test_an_address_where_nobody_answers_is_a_sentence(port: str, tmp_path: Path) -> None:
    """In a process of its own, which is not connected; Ray alone would ask for minutes."""
    code = f"from plmia import Ray; next(Ray('127.0.0.1:{port}').run(print, [1]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert f"TrainingError: no Ray cluster answers at '127.0.0.1:{port}' (" in done.stderr
    assert "--ray-address" in done.stderr


def test_statistics_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    from plmia.training.engines import _import_ray

    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
    _import_ray()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_stacks_are_cut_for_cores_and_not_for_gpus() -> None:
    assert Ray(in_flight=5).at_once == 5
    assert Ray(gpus=0.5).at_once == 1
