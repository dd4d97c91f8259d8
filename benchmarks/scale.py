"""Measure small audits and extrapolate to 10^9 records and 64 references: ``make bench-scale``, about ten minutes.

Everything is measured on this machine, in child processes with one thread each, except the rates of training on a GPU,
which are those of ``benchmarks/results/training_gpu_h200.json``. Costs are processor time (user and system), which
other programs on the machine change less than elapsed time. Memory per record is the slope between the peaks at two
sizes, without pages of mapped files.

The measurements are kept in ``benchmarks/results/scale.json``; the script writes the tables made of them into
``docs/explanation/scale.md``. With --tables, it only writes the tables; with --quick, it measures small sizes and only
prints.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from memory import forget, write_part
from plmia import Ray
from plmia.results.folder import needed_bytes

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "scale.md"
RESULTS = Path(__file__).parent / "results"
MEASURED = RESULTS / "scale.json"

# The audit that is planned, and the machines that it is planned for.
RECORDS, REFERENCES, FEATURES, VIEWS = 10**9, 64, 100, (1, 2)
GPUS, MACHINE_GB, LINK_GBIT, DISK_GB = 64, 128, 10, 1
PART = 10**7  # records of a part that is scored alone
MODELS = REFERENCES + 1
LIMIT = "1GB"
ATTACKS = ("pl-mia-eb", "rmia")
# A forward pass is about a third of a training step; a model trains on half of the records and is asked about all.
EPOCHS_PER_QUERY = 2 / 3

# A child process watches its own memory: without pages of mapped files, which the system may drop at any time.
BEGIN = """
import threading
def own_memory():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * 1024
def watch():
    while not done.wait(0.01):
        most[0] = max(most[0], own_memory())
most, done = [0], threading.Event()
threading.Thread(target=watch, daemon=True).start()
"""
# It prints what it measured, with its peaks and its processor time.
END = """
import json, resource
done.set()
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
used = resource.getrusage(resource.RUSAGE_SELF)
print("\\n" + json.dumps(dict(found, peak=peak, own=most[0], cpu=used.ru_utime + used.ru_stime)))
"""
STORE = """
import os, sys, time
import numpy as np
from plmia import SignalStore
from plmia.data.designs import MembershipDesign
folder, address, records, models, views = *sys.argv[1:3], *map(int, sys.argv[3:])
rng = np.random.default_rng(0)
matrix = np.empty((models, records), bool)
for model in range(models):
    matrix[model] = ~matrix[model - 1] if model and model % 2 == 0 else rng.random(records, np.float32) < 0.5
level = rng.normal(2, 2, records).astype(np.float32)
names = [f"view{i}" for i in range(views)]
store = SignalStore.create(folder, {"data": "made"}, MembershipDesign(matrix), names, np.arange(records) % 2)
spent = {"append": 0.0}
for model in range(models):
    noise = rng.standard_normal((records, views), np.float32)
    signals = ((level + matrix[model])[:, None] + noise)[None]
    begin = time.process_time()
    store.append([model], signals, [{"seed": model}])
    spent["append"] += time.process_time() - begin
def timed(name, act):
    begin = time.process_time()
    result = act()
    spent[name] = time.process_time() - begin
    return result
timed("open", lambda: SignalStore.open(folder).signals())
timed("publish", lambda: store.publish(address))
read = timed("read back", lambda: SignalStore.open(address).read())
assert (read == store.read()).all()
size = lambda path: sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
found = dict(spent=spent, files=size(folder), checksums=size(folder + "/records"))
"""
SCORE = """
import sys
from plmia.attacks.view import References
from plmia.cli.main import main
conf, read = References.conf, 0
def counted(self, few, points):
    global read
    found = conf(self, few, points)
    read += found.size
    return found
References.conf = counted
try:
    main(sys.argv[1:], prog_name="plmia")
except SystemExit as end:
    if end.code:
        raise
found = {"signals read": read}
"""
TRAIN = """
import resource, sys
from pathlib import Path
import numpy as np
from plmia import View
from plmia.auditing.run import AuditPlan, train_run
from plmia.data.dataset import LabelledData
from plmia.training.engines import LocalProcesses
from plmia.training.recipes.named import parse_recipe
folder, records, references = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
(folder / "own.py").write_text('''
import numpy as np
def train(X, y, seed):
    return np.random.default_rng(seed)
def query(model, X, y):
    p = 0.2 + 0.6 * model.random(len(X), np.float32)
    return np.stack([p, 1 - p], axis=1)
''')
X = np.random.default_rng(0).standard_normal((records, 4), np.float32)
data = LabelledData(X, np.arange(records) % 2)
plan = AuditPlan(data, parse_recipe(f"function:{folder / 'own.py'}"), references, (View(),))
train_run(plan, folder / "run", LocalProcesses(1))
found = {"worker peak": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024}
"""
RAY = """
import sys, time
import numpy as np
from plmia import Ray
jobs, values = map(int, sys.argv[1:])
def run(work, jobs):
    begin, ends = time.perf_counter(), []
    for _ in Ray(in_flight=4, cpus=1).run(work, range(jobs)):
        ends.append(time.perf_counter() - begin)
    return ends
def nothing(job):
    return job
def large(job):
    return np.ones(values, np.float32)
if __name__ == "__main__":
    import os
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    run(nothing, 8)
    few, many = run(nothing, jobs), run(large, 16)
    found = {"seconds per job": few[-1] / jobs, "bytes per second": 4 * values * 16 / many[-1]}
    ray.shutdown()
"""


def child(code: str, *words: object) -> dict[str, Any]:
    """Run code in a child process; return what it found, its peak and its processor time."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", BEGIN + code + END, *map(str, words)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"a measurement ended with exit code {done.returncode}: {' '.join(map(str, words))}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# Measure -------------------------------------------------------------------------------------------------------------


def score(folder: Path, *options: object) -> dict[str, Any]:
    """Score a store with two attacks; with the bytes of the result files."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    forget(folder / "store" / "signals.npy")
    named = [word for attack in ATTACKS for word in ("--attack", attack)]
    found = child(SCORE, "score", folder / "store", "-o", out, "--quiet", *named, *options)
    return found | {"files": {name: (out / name).stat().st_size for name in ("scores.npz", "records.csv")}}


def measure(unit: int) -> dict[str, Any]:
    """Measure stores, scoring, training without work, and Ray; ``unit`` is the largest number of records."""
    sizes = [(unit // 4, 1), (unit // 2, 1), (unit, 1), (unit, 2)]
    found: dict[str, Any] = {"records": unit, "stores": [], "training": [], "unlimited": []}
    for records, views in sizes:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-memory-") as name:
            folder = Path(name)
            store = child(STORE, folder / "store", (folder / "bucket").as_uri(), records, MODELS, views)
            limited = score(folder, "--memory", LIMIT)
            found["stores"].append({"records": records, "views": views, "store": store, "score": limited})
            if views == 1 and records != unit // 2:
                found["unlimited"].append({"records": records, "score": score(folder)})
    for records in (unit // 4, unit):
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-memory-") as name:
            found["training"].append({"records": records, "run": child(TRAIN, name, records, REFERENCES)})
    found["ray"] = child(RAY, 400, 1 << 24)
    return found


# Tables --------------------------------------------------------------------------------------------------------------


def text(value: float, digits: int = 2) -> str:
    """Write a number with so many significant digits."""
    if value >= 10**digits:
        return f"{float(f'{value:.{digits}g}'):,.0f}"
    return f"{value:.{digits}g}"


def size(n_bytes: float) -> str:
    """Write a number of bytes."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if n_bytes >= unit:
            return f"{text(n_bytes / unit)} {name}"
    return f"{n_bytes:,.0f} bytes"


def slope(pairs: list[tuple[float, float]]) -> float:
    """Slope of a line through points (x, y), by least squares."""
    return float(np.polyfit(*np.array(pairs).T, 1)[0])


class Rates:
    """Rates per record and model that the measurements give."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        self.largest = next(s for s in found["stores"] if s["records"] == found["records"] and s["views"] == 1)
        self.two_views = found["stores"][-1]
        records = found["records"]
        self.stored = sum(self.largest["store"][name] for name in ("files", "checksums")) / records / MODELS
        self.checksums = self.largest["store"]["checksums"] / records / MODELS
        one = [s for s in found["stores"] if s["views"] == 1]
        self.score = {1: slope([(s["records"], s["score"]["cpu"]) for s in one])}
        more = (self.two_views["score"]["cpu"] - self.largest["score"]["cpu"]) / records
        self.score[2] = self.score[1] + max(0.0, more)
        self.power = float(np.polyfit(*np.log([(s["records"], s["score"]["cpu"]) for s in one]).T, 1)[0])
        self.results = {name: n / records for name, n in self.largest["score"]["files"].items()}
        self.unlimited = slope([(s["records"], s["score"]["own"]) for s in found["unlimited"]])
        self.starter = slope([(t["records"], t["run"]["own"]) for t in found["training"]]) - 4 * 4 - 8
        per_gpu = json.loads((RESULTS / "training_gpu_h200.json").read_text())["results"]
        self.perceptron = per_gpu["mlp"][-1]["M rows/s"] * 1e6
        self.wide_resnet = per_gpu["wrn"][2]["images/s"]

    def spent(self, step: str) -> float:
        """Bytes of signals per core-second of a step with the store, over both stores of the largest size."""
        stores = (self.largest, self.two_views)
        n_bytes = sum(4 * s["records"] * MODELS * s["views"] for s in stores)
        return float(n_bytes / sum(s["store"]["spent"][step] for s in stores))

    def passes(self, views: int) -> float:
        """How often scoring reads the signals of all references."""
        at = self.largest if views == 1 else self.two_views
        return float(at["score"]["signals read"] / (at["records"] * REFERENCES * at["views"]))


def measured_lines(rates: Rates) -> Iterator[str]:
    """Table of what was measured."""
    found, records = rates.found, rates.found["records"]
    yield "| measured | at | value |"
    yield "|---|---|---|"
    at = f"{records:,} records × {MODELS} models × 1 view"
    both = f"{records:,} records × {MODELS} models × 1 and 2 views"
    yield f"| store, with labels, design and checksums | {at} | {rates.stored:.2f} bytes per signal |"
    yield f"| checksums and provenance (JSON) | {at} | {rates.checksums:.4f} bytes per record and model |"
    for step, what in (
        ("append", "writing a model into the store, with checksums"),
        ("open", "opening the store and comparing all checksums"),
        ("publish", "publishing the store to `file://`, with comparing checksums"),
        ("read back", "reading it from there into memory"),
    ):
        yield f"| {what} | {both} | {size(rates.spent(step))} per core-second |"
    for s in found["stores"]:
        where = f"{s['records']:,} records × {MODELS} models × {s['views']} view{'s' * (s['views'] > 1)}"
        run = s["score"]
        yield (
            f"| `score` with {' and '.join(f'`{a}`' for a in ATTACKS)}, limit {LIMIT} | {where} | "
            f"{run['cpu']:.1f} core-seconds, peak {run['peak'] / 1e6:,.0f} MB |"
        )
    yield f"| the same, exponent over the records | 1 view | {rates.power:.2f} |"
    yield f"| the same, slope over the records | 1 view | {rates.score[1] * 1e6:.1f} core-seconds per 10^6 records |"
    yield f"| passes over the signals of all references while scoring | {at} | {rates.passes(1):.1f} |"
    yield f"| passes over the signals of all references while scoring | 2 views | {rates.passes(2):.1f} |"
    for name, value in rates.results.items():
        yield f"| `{name}` | {at} | {value:.0f} bytes per record |"
    ray = found["ray"]
    yield f"| Ray, a job that does nothing | 400 jobs on 2 cores | {ray['seconds per job'] * 1e3:.1f} ms per job |"
    rate = size(ray["bytes per second"])
    yield f"| Ray, large results to the process that starts the audit | 67 MB each | {rate} per second |"


def scale_lines(rates: Rates, views: int) -> Iterator[str]:
    """Table of the large audit."""
    signals = 4.0 * RECORDS * MODELS * views
    row = 4 * FEATURES
    epoch, query = RECORDS / 2 * row * MODELS, RECORDS * row * MODELS * views
    link = LINK_GBIT / 8 * 1e9

    def gpu(rate: float, epochs: float) -> str:
        return text(RECORDS / 2 * MODELS * epochs / rate / 3600)

    def core(rate: float) -> str:
        return text(signals / rate / 3600)

    yield f"| step, {views} view{'s' * (views > 1)} | bytes | passes | time |"
    yield "|---|---|---|---|"
    yield f"| design of {MODELS} models | {size(RECORDS * MODELS / 8)}, in memory {size(RECORDS * MODELS)} | 1 | |"
    yield (
        f"| training, per epoch | {size(epoch)} of records read | half the records, per model | GPU-hours: perceptron "
        f"{gpu(rates.perceptron, 1)}, Wide-ResNet-28-2 {gpu(rates.wide_resnet, 1)} |"
    )
    yield (
        f"| asking all models about all records | {size(query)} of records read | {views} per model | GPU-hours: "
        f"perceptron {gpu(rates.perceptron, EPOCHS_PER_QUERY * views)}, Wide-ResNet-28-2 "
        f"{gpu(rates.wide_resnet, EPOCHS_PER_QUERY * views)} |"
    )
    hours = text(signals / link / 3600)
    yield f"| sending signals to one machine | {size(signals)} | 1 | {hours} h at {LINK_GBIT} Gbit/s |"
    json_bytes = rates.checksums * RECORDS * MODELS
    yield (
        f"| writing the store | {size(signals)}, checksums {size(json_bytes)} | 1 | {core(rates.spent('append'))} "
        "core-hours |"
    )
    yield f"| publishing it | {size(signals)} | 2 | {core(rates.spent('publish'))} core-hours |"
    passes = rates.passes(views)
    scoring = text(RECORDS * rates.score[views] / 3600)
    yield f"| opening it and comparing checksums | {size(signals)} | 1 | {core(rates.spent('open'))} core-hours |"
    yield (
        f"| scoring with {len(ATTACKS)} attacks | {size(signals * passes)} of signals read | {passes:.1f} | "
        f"{scoring} core-hours |"
    )
    outputs = ", ".join(f"`{name}` {size(value * RECORDS)}" for name, value in rates.results.items())
    yield f"| results | {outputs} | 1 | (in scoring) |"


def machine_lines(rates: Rates) -> Iterator[str]:
    """Sentences on the time that machines take."""
    for epochs, rate, name in ((50, rates.perceptron, "perceptron"), (10, rates.wide_resnet, "Wide-ResNet-28-2")):
        hours = RECORDS / 2 * MODELS * (epochs + EPOCHS_PER_QUERY) / rate / 3600
        yield (
            f"- {MODELS} models of the {name}, {epochs} epochs each, 1 view: {text(hours)} GPU-hours, "
            f"{text(hours / GPUS)} hours on {GPUS // 8} machines of 8 GPUs."
        )
    hours = RECORDS * rates.score[1] / 3600
    parts = RECORDS // PART
    yield f"- Scoring as a whole: {text(hours)} hours on one core of one machine, since one process scores."
    minutes = text(PART * rates.score[1] / 60)
    room = size(needed_bytes(PART, 1, len(ATTACKS), 1))
    yield (
        f"- Scoring {parts} parts of {PART:,} records on {parts} cores: {minutes} minutes, each with {room} of memory."
    )
    waiting = text(4 * RECORDS * MODELS * rates.passes(1) / (DISK_GB * 1e9) / 3600)
    yield f"- Waiting for the disk comes on top: at {DISK_GB} GB/s, the passes of scoring take {waiting} hours."
    ray = rates.found["ray"]
    yield (
        f"- Ray's own work, {MODELS} jobs: {text(MODELS * ray['seconds per job'])} s. Its transfer of signals at the "
        f"measured rate: {text(4 * RECORDS * MODELS / ray['bytes per second'] / 3600)} h."
    )


def limit_lines(rates: Rates) -> Iterator[str]:
    """Table of what breaks first."""
    within = needed_bytes(RECORDS, 1, len(ATTACKS), 1) - needed_bytes(0, 1, len(ATTACKS), 1)
    data = 4 * FEATURES + 8
    rows: list[tuple[str, float, str]] = [
        (
            f"process that starts an audit: data of {FEATURES} float32 features and a label, {MODELS} models' design",
            data + rates.starter,
            f"{data} computed, the rest measured, 1 view",
        ),
        ("every other node that trains: the data", data, "computed"),
        (
            f"Ray: up to {Ray().in_flight} results that are not yet taken, on all nodes together",
            Ray().in_flight * 4,
            "computed, 1 view",
        ),
        ("scoring without a limit on memory, as `plmia audit` does", rates.unlimited, "measured, 1 view"),
        ("scoring with `--memory`", within / RECORDS, "checked before the start"),
    ]
    yield f"| what is held in memory | bytes per record | source | 10^9 records need | {MACHINE_GB} GB hold |"
    yield "|---|---|---|---|---|"
    for what, per_record, source in sorted(rows, key=lambda row: -row[1]):
        fit = text(MACHINE_GB * 1e9 / per_record / 1e6)
        yield f"| {what} | {per_record:.0f} | {source} | {size(per_record * RECORDS)} | {fit} million records |"


def tables(found: dict[str, Any]) -> dict[str, list[str]]:
    """Parts of the page that the measurements give."""
    rates = Rates(found)
    return {
        "measured": [*measured_lines(rates)],
        **{f"views {views}": [*scale_lines(rates, views)] for views in VIEWS},
        "machines": [*machine_lines(rates)],
        "limits": [*limit_lines(rates)],
    }


def main() -> None:
    """Measure, print Markdown, and write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes; nothing is written")
    parser.add_argument("--tables", action="store_true", help="measure nothing, write the tables anew")
    given = parser.parse_args()
    found = json.loads(MEASURED.read_text()) if given.tables else measure(40_000 if given.quick else 2 * 10**6)
    if not given.quick and not given.tables:
        MEASURED.write_text(json.dumps(found, indent=1) + "\n")
    for part, lines in tables(found).items():
        print("\n".join(lines), end="\n\n", flush=True)
        if not given.quick:
            write_part(part, lines, PAGE)


if __name__ == "__main__":
    main()
