"""Training on a Ray cluster of several nodes with GPUs, some of which die: the same bytes, no finished model lost.

All nodes are on this machine. Their GPUs are numbers that Ray counts: no GPU is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from plmia.errors import PlmiaWarning
from plmia.signals.store import SignalStore
from plmia.training import engines
from plmia.training.engines import Ray

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

REFERENCES = 12
SIZE = {"num_cpus": 2, "object_store_memory": 100 << 20}
# Ray notices within 5 seconds that a node is gone; 15 by default.
IMPATIENT = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}

# Nearest neighbours. On a cluster a model takes a while, and never ends on a node that is doomed.
OWN = """
import os
import sys
import time
from pathlib import Path

import numpy as np

folder = Path({folder!r})

def train(X, y, seed):
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        node = ray.get_runtime_context().get_node_id()
        note("begin", seed, node)
        time.sleep(0.3)
        while (folder / f"doomed-{{node}}").exists():
            time.sleep(0.05)
        note("end", seed, node)
    return X + np.random.default_rng(seed).normal(0, 0.1, X.shape), y

def query(model, X, y):
    points, labels = model
    gaps = np.linalg.norm(X[:, None] - points[None], axis=2)
    return np.stack([-gaps[:, labels == c].min(axis=1) for c in range(2)], axis=1)

def note(what, seed, node):
    with (folder / "log").open("a") as log:
        log.write(f"{{what}} {{seed}} {{node}} {{os.environ.get('CUDA_VISIBLE_DEVICES')}}\\n")
"""


class Line(NamedTuple):
    """A line of the log: a job began or ended, with its node and the GPUs that it may use."""

    what: str
    job: str
    node: str
    gpus: str


def start_cluster() -> Any:
    """Start a head without a GPU; it gets a second try."""
    from ray.cluster_utils import Cluster

    for last in (False, True):
        found = Cluster()
        try:
            found.add_node(include_dashboard=False, _system_config=IMPATIENT, **SIZE)
            assert found.address.startswith("127.0.0.1:")
            return found
        except Exception:
            found.shutdown()
            if last:
                raise
    raise AssertionError


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster that this process is connected to."""
    import ray

    found = start_cluster()
    try:
        ray.init(address=found.address, log_to_driver=False, logging_level="ERROR")
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


def require_nodes(cluster: Any, count: int) -> None:
    """Add nodes until there are so many with a GPU each."""
    for _ in range(count - len(cluster.worker_nodes)):
        cluster.add_node(num_gpus=1, **SIZE)


def kill(cluster: Any, node_id: str) -> None:
    """Kill the Ray processes of a node without a warning, as if its machine lost power; its workers end, too."""
    cluster.remove_node(next(n for n in cluster.worker_nodes if n.node_id == node_id), allow_graceful=False)


def wait_until(true: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def noted(folder: Path) -> list[Line]:
    log = folder / "log"
    return [Line(*line.split(" ")) for line in log.read_text().splitlines()] if log.exists() else []


def running_on(node: str, folder: Path) -> set[str]:
    lines = [line for line in noted(folder) if line.node == node]
    return {line.job for line in lines if line.what == "begin"} - {line.job for line in lines if line.what == "end"}


def write_input(folder: Path) -> None:
    rng, y = np.random.default_rng(0), np.arange(100) % 2
    np.savez(folder / "data.npz", X=rng.normal(y[:, None], 1.0, (100, 4)).astype(np.float32), y=y)
    (folder / "own.py").write_text(OWN.format(folder=str(folder)))


def start_audit(folder: Path, name: str, *options: str) -> subprocess.Popen[str]:
    code = "from plmia.cli.main import main; main(prog_name='plmia')"
    given = ["--data", "data.npz", "--recipe", "function:own.py", "--references", str(REFERENCES), "--json", "-o", name]
    return subprocess.Popen(
        [sys.executable, "-c", code, "audit", *given, *options],
        cwd=folder,
        text=True,
        stdout=(folder / f"{name}.out").open("w"),
        stderr=(folder / f"{name}.err").open("w"),
    )


def records(run: Path) -> dict[str, bytes]:
    """Records of finished models."""
    return {path.name: path.read_bytes() for path in (run / "signals" / "records").glob("0*.json")}


def seeds(found: dict[str, bytes]) -> set[str]:
    """Seeds of the models in these records, by which they are named in the log."""
    return {str(model["provenance"]["seed"]) for record in found.values() for model in json.loads(record)["models"]}


def test_a_node_that_dies_costs_no_finished_model_and_changes_no_byte(cluster: Any, tmp_path: Path) -> None:
    require_nodes(cluster, 3)
    write_input(tmp_path)
    audit = start_audit(tmp_path, "ray", "--engine", "ray", "--ray-address", cluster.address, "--gpus", "0.5")
    try:
        assert wait_until(lambda: len(records(tmp_path / "ray")) >= 4)
        doomed = noted(tmp_path)[-1].node
        (tmp_path / f"doomed-{doomed}").touch()
        assert wait_until(lambda: running_on(doomed, tmp_path) != set())
        before = records(tmp_path / "ray")
        kill(cluster, doomed)
        lost = running_on(doomed, tmp_path)
        assert audit.wait(120) == 0, (tmp_path / "ray.err").read_text()
    finally:
        audit.kill()
        audit.wait()
    lines = noted(tmp_path)
    begun = [line.job for line in lines if line.what == "begin"]

    # Only models of the dead node were trained again, elsewhere, and none that was finished before. One that had just
    # ended there counts as lost if its result was still on the way.
    again = {job for job in begun if begun.count(job) > 1}
    assert set() < lost <= again <= {line.job for line in lines if line.node == doomed}
    assert seeds(before) <= set(begun) - again
    assert len(begun) == REFERENCES + 1 + len(again)
    assert {line.node for line in lines if line.what == "end" and line.job in lost}.isdisjoint({doomed})
    after = records(tmp_path / "ray")
    assert 4 <= len(before) < len(after) == REFERENCES + 1
    assert {name: after[name] for name in before} == before

    # Several nodes took part, only those with GPUs, and two jobs shared a GPU.
    head = cluster.head_node.node_id
    assert len({line.node for line in lines} - {head}) >= 2
    assert {line.gpus for line in lines} == {"0"}
    assert head not in {line.node for line in lines}

    # The results are those of one machine; Ray's messages about the node are not among them.
    local = start_audit(tmp_path, "local", "--workers", "2")
    assert local.wait(120) == 0, (tmp_path / "local.err").read_text()
    for name in ("signals/signals.npy", "signals/membership.npy", "metrics.json", "scores.npz", "records.csv"):
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "ray" / name).read_bytes()
    assert json.loads((tmp_path / "ray.out").read_text()) == json.loads((tmp_path / "local.out").read_text())

    # So is what others read from object storage.
    pytest.importorskip("fsspec")
    store = SignalStore.open(tmp_path / "ray" / "signals")
    for address in (f"memory://{tmp_path.name}/signals", f"{(tmp_path / 'bucket').as_uri()}/signals"):
        store.publish(address)
        read = SignalStore.open(address)
        assert read.finished() == store.finished()
        assert read.fingerprint() == store.fingerprint()
        np.testing.assert_array_equal(read.read(), SignalStore.open(tmp_path / "local" / "signals").read())


def test_results_that_die_with_their_node_are_computed_again(cluster: Any, tmp_path: Path) -> None:
    """Large results stay on the node that computed them until they are taken."""
    require_nodes(cluster, 2)

    def work(job: Any) -> Any:
        import ray

        with (tmp_path / "log").open("a") as log:
            log.write(f"end {job} {ray.get_runtime_context().get_node_id()} -\n")
        return np.random.default_rng(job).random(1 << 17)

    results = Ray(gpus=0.5, in_flight=4).run(work, range(4))
    found = dict([next(results)])
    assert wait_until(lambda: len({line.job for line in noted(tmp_path)}) == 4)
    time.sleep(0.5)  # the results are stored
    doomed = next(line.node for line in noted(tmp_path) if int(line.job) not in found)
    kill(cluster, doomed)
    found.update(results)
    assert len(noted(tmp_path)) > 4
    for job in range(4):
        np.testing.assert_array_equal(found[job], np.random.default_rng(job).random(1 << 17))


def test_jobs_that_no_node_can_run_wait_with_a_warning(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_ANSWER_SECONDS", 0.5)
    fits, added = Ray._fits, list[Any]()

    def add_after_the_first_look(engine: Ray, node: Any) -> bool:
        if not added:
            added.append(cluster.add_node(num_gpus=3, wait=False, **SIZE))
        return fits(engine, node)

    monkeypatch.setattr(Ray, "_fits", add_after_the_first_look)
    with pytest.warns(PlmiaWarning, match="no node of the Ray cluster has 1 cores and 3 GPUs") as warned:
        assert list(Ray(gpus=3).run(abs, [-1])) == [(-1, 1)]
    assert len(warned) == 1


def test_an_audit_without_its_head_ends_with_a_sentence_and_can_be_continued(tmp_path: Path) -> None:
    write_input(tmp_path)
    own = start_cluster()
    try:
        own.add_node(num_gpus=1, **SIZE)
        audit = start_audit(tmp_path, "run", "--engine", "ray", "--ray-address", own.address, "--gpus", "0.5")
        try:
            assert wait_until(lambda: len(records(tmp_path / "run")) >= 2)
            own.remove_node(own.head_node, allow_graceful=False)
            assert audit.wait(120) == 2
            assert "the head of the Ray cluster" in (tmp_path / "run.err").read_text().splitlines()[-1]
        finally:
            audit.kill()
            audit.wait()
    finally:
        own.shutdown()
    before = records(tmp_path / "run")
    assert len(before) < REFERENCES + 1
    for name in ("run", "local"):
        assert start_audit(tmp_path, name, "--workers", "2").wait(120) == 0, (tmp_path / f"{name}.err").read_text()
    after = records(tmp_path / "run")
    assert {name: after[name] for name in before} == before
    for name in ("signals/signals.npy", "metrics.json", "scores.npz"):
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
