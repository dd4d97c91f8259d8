"""Measure the memory of score, report and compare: ``make bench-memory`` (ARGS=--quick for small sizes).

The script makes the signals itself: float16 in an npz, members about one standard deviation above non-members. Each
command runs in a child process; its peak is the largest resident memory that Linux reports for it. The time is
compared with that of a plain sequential read of the same file; before each, the system is asked to drop the file from
its cache. Exponents are slopes of a line through logarithms: of the processor time and the peak memory above those of a
tiny run, which is mostly the start of Python and its libraries. The script prints Markdown and writes each part into
``docs/explanation/memory.md``; with --quick it only prints.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

LIMIT = "1GB"
PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "memory.md"
PARTS = ("commands", "targets", "exponents")
TABLE = ["| command | records × models × views | peak, MB | processor seconds | seconds |", "|---|---|---|---|---|"]
TWO_ATTACKS = ("pl-mia-eb", "rmia")
# The peak is that of the program itself: what the system reports of a child includes its parent before the start.
PROGRAM = """
import sys
from plmia.cli.main import main
code = 0
try:
    main(sys.argv[2:], prog_name="plmia")
except SystemExit as end:
    code = end.code
with open("/proc/self/status") as status, open(sys.argv[1], "w") as peak:
    peak.write(next(line.split()[1] for line in status if line.startswith("VmHWM")))
sys.exit(code)
"""
ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Size:
    """Size of a problem."""

    records: int
    models: int = 34
    views: int = 2
    targets: int = 1

    def __str__(self) -> str:
        targets = f", {self.targets:,} targets" if self.targets > 1 else ""
        return f"{self.records:,} × {self.models:,} × {self.views}{targets}"


@dataclass(frozen=True)
class Run:
    """What one command took."""

    seconds: float
    processor: (
        float  # seconds of all threads and processes; it depends less than `seconds` on what else the machine does
    )
    peak: int  # bytes


def write_signals(path: Path, size: Size, seed: int = 0) -> None:
    """Write signals and packed membership, one model at a time."""
    rng = np.random.default_rng(seed)
    level = rng.normal(2, 2, size.records).astype(np.float32)
    plain = path.with_suffix(".npy")
    signals = np.lib.format.open_memmap(plain, "w+", np.float16, (size.models, size.records, size.views))
    packed = np.empty((size.models, -(-size.records // 8)), np.uint8)
    members = np.zeros(size.records, bool)
    for model in range(size.models):
        members = ~members if model % 2 else rng.random(size.records, np.float32) < 0.5
        packed[model] = np.packbits(members)
        for start in range(0, size.records, ROWS_AT_ONCE):
            part = slice(start, min(start + ROWS_AT_ONCE, size.records))
            noise = rng.standard_normal((part.stop - part.start, size.views), np.float32)
            signals[model, part] = (level[part] + members[part])[:, None] + noise
    signals.flush()
    np.savez(path, signals=signals, membership=packed, n_points=np.int64(size.records))
    plain.unlink()


def forget(path: Path) -> None:
    """Ask the system to drop the file from its cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_seconds(path: Path, *, cached: bool = False) -> float:
    """Time of a plain sequential read, the median of three."""
    times = []
    for _ in range(3):
        if not cached:
            forget(path)
        start = time.perf_counter()
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 22):
                pass
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def run(*words: object) -> Run:
    """Run plmia in a child process and measure it; end the benchmark if it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.NamedTemporaryFile("r") as peak:
        command = [sys.executable, "-c", PROGRAM, peak.name, *map(str, words)]
        start, before = time.perf_counter(), processor_seconds()
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
        seconds, processor = time.perf_counter() - start, processor_seconds() - before
        if done.returncode:
            sys.exit(f"plmia {words[0]} ended with exit code {done.returncode}")
        return Run(seconds, processor, int(peak.read()) * 1024)


def processor_seconds() -> float:
    """Processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def names(attacks: Sequence[str]) -> list[str]:
    """Options that choose these attacks."""
    return [word for attack in attacks for word in ("--attack", attack)]


def score(folder: Path, size: Size, attacks: Sequence[str] = ()) -> Run:
    """Make signals of this size and score them within the limit; by default with all attacks."""
    path, out = folder / "signals.npz", folder / "out"
    write_signals(path, size)
    forget(path)
    shutil.rmtree(out, ignore_errors=True)
    if size.targets == size.models:
        targets = ["--target", "all"]
    else:
        targets = [word for target in range(size.targets) for word in ("--target", str(target))]
    return run("score", path, "-o", out, "--memory", LIMIT, "--quiet", *targets, *names(attacks))


def row(command: str, size: Size, found: Run) -> str:
    """One row of the table."""
    return f"| {command} | {size} | {found.peak / 1e6:,.0f} | {found.processor:,.0f} | {found.seconds:,.0f} |"


def measure_commands(folder: Path, small: bool) -> list[str]:
    """Measure score, report and compare on many records, and a plain read of their file."""
    size, out = Size(10**5 if small else 10**7), folder / "out"
    scored = score(folder, size, TWO_ATTACKS)
    lines = [*TABLE, row("`score`, 2 attacks", size, scored)]
    lines.append(row("`report`", size, run("report", out, "--memory", LIMIT, "--quiet")))
    compared = run("compare", out, *names(TWO_ATTACKS), "--memory", LIMIT)
    lines.append(row("`compare`, 2 attacks", size, compared))
    path = folder / "signals.npz"
    n_bytes, seconds, cached = path.stat().st_size, read_seconds(path), read_seconds(path, cached=True)
    lines.append(row("`score`, all default attacks", size, score(folder, size)))
    read = f"the file ({n_bytes / 1e9:.2f} GB) takes {seconds:.2f} s from the disk and {cached:.2f} s from the cache"
    ratio = (
        f"`score` with 2 attacks takes {scored.seconds / seconds:,.0f} and {scored.seconds / cached:,.0f} times as long"
    )
    cores = len(os.sched_getaffinity(0))
    return [*lines, "", f"A plain sequential read of {read}. {ratio} on {cores} processors."]


def measure_targets(folder: Path, small: bool) -> list[str]:
    """Measure score with every model as the target."""
    models = 100 if small else 2000
    size = Size(2000, models, 1, models)
    found = score(folder, size)
    per_target = (folder / "out" / "metrics.json").stat().st_size / models
    tiny = score(folder, Size(2000, 10, 1))
    added = f"{(found.peak - tiny.peak) / models / 1e3:,.0f} kB to the peak"
    text = f"Each target, with its model, adds {added} and {per_target / 1e3:,.0f} kB to metrics.json."
    return [*TABLE, row("`score --target all`, all default attacks", size, found), "", text]


def measure_exponents(folder: Path, small: bool) -> list[str]:
    """Fit the growth of time and memory of one attack along each axis."""
    unit = 10**4 if small else 10**5
    models = 64 if small else 256
    grids = {
        "records": [Size(n * unit) for n in (12, 25, 50, 100)],
        "models": [Size(4 * unit, n) for n in (18, 34, 66, 130)],
        "views": [Size(4 * unit, 34, n) for n in (1, 2, 4, 8)],
        "targets": [Size(2000, models, 1, models // n) for n in (8, 4, 2, 1)],
    }
    tiny = score(folder, Size(1000, 10, 1), ("pl-mia-eb",))
    headings = f"processor time above {tiny.processor:.1f} s | peak memory above {tiny.peak / 1e6:.0f} MB"
    lines = [f"| axis | others | from, to | {headings} |", "|---|---|---|---|---|"]
    for axis, sizes in grids.items():
        scale = [float(vars(size)[axis]) for size in sizes]
        found = [score(folder, size, ("pl-mia-eb",)) for size in sizes]
        cells = []
        for key, per, unit_name in (("processor", 1, "s"), ("peak", 1e6, "MB")):
            values = np.array([vars(each)[key] for each in found], float)
            above = np.maximum(values - vars(tiny)[key], 1e-3 * per)
            power = float(np.polyfit(np.log(scale), np.log(above), 1)[0])
            first, last = values[[0, -1]] / per
            cells.append(f"{power:.2f} ({first:,.1f} to {last:,.1f} {unit_name})")
        others = ", ".join(f"{n:,} {name}" for name, n in vars(sizes[0]).items() if name != axis)
        lines.append(f"| {axis} | {others} | {scale[0]:,.0f} to {scale[-1]:,.0f} | {' | '.join(cells)} |")
    return lines


def write_part(part: str, lines: Sequence[str], page: Path = PAGE) -> None:
    """Replace a part of a page between its two comments."""
    begin, end = f"<!-- {part} -->\n", f"<!-- end of {part} -->\n"
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        sys.exit(f"{page} has no comments around the part {part}")
    page.write_text("\n".join([before + begin, *lines, "", end + after]))


def main() -> None:
    """Measure, print Markdown, and write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes; the page is not changed")
    parser.add_argument("--part", choices=PARTS, action="append", help="measure only this part; repeatable")
    given = parser.parse_args()
    measures = dict(zip(PARTS, (measure_commands, measure_targets, measure_exponents), strict=True))
    for part in given.part or PARTS:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-memory-") as name:
            lines = measures[part](Path(name), given.quick)
        print("\n".join(lines), flush=True)
        if not given.quick:
            write_part(part, lines)


if __name__ == "__main__":
    main()
