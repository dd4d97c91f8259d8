"""`plmia compare`: audits side by side, or attacks of one audit, with tests of their differences."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from plmia.cli.terminal import stderr, stdout
from plmia.errors import OutputError, PlmiaError, doubts
from plmia.results.comparison import Measured, Method, Pair, Row, Run, SideBySide, compare_attacks, compare_runs
from plmia.results.saved import SavedResults

METHODS: dict[Method, str] = {
    "paired records": "paired: the same records",
    "paired targets": "paired: the same targets",
    "unpaired records": "unpaired: not the same records, so both intervals' errors add up",
    "unpaired targets": "unpaired: not the same targets or records, Welch's test over targets",
}


@click.command()
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--attack", "attacks", multiple=True, metavar="NAME", help="Attack to compare; all in common by default.")
@click.option(
    "--at-fpr",
    "fprs",
    multiple=True,
    type=float,
    metavar="RATE",
    help="Compare TPRs at this false-positive rate; by default 0.01 and 0.001 where there are records enough.",
)
@click.option("--names", metavar="A,B,...", help="What to call the runs; their folders' names by default.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Coverage of each interval.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the resamples.")
@click.option("-o", "--output", "file", type=click.Path(path_type=Path), metavar="FILE", help="Write the JSON there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def compare(
    folders: tuple[Path, ...],
    attacks: tuple[str, ...],
    fprs: tuple[float, ...],
    names: str | None,
    confidence: float,
    seed: int,
    file: Path | None,
    as_json: bool,
) -> None:
    """Put audits side by side, before and after a defence, say; or attacks of one audit.

    RUN is the output folder of plmia audit or plmia score. Each run is compared with the first. Runs on the same
    records (same data and seed) are tested in pairs, which finds much smaller differences; others as independent. With
    one RUN and several --attack, each attack is compared with the first. All p-values are adjusted together (Holm).

    \b
    Examples:
      plmia compare baseline early-stopping
      plmia compare run-1 run-2 run-3 --names baseline,dropout,dp --at-fpr 0.001 -o change.json
      plmia compare run --attack pl-mia --attack rmia
    """  # noqa: D301 - click wants the control character itself
    runs = [Run(name, SavedResults(path)) for name, path in zip(_names(folders, names), folders, strict=True)]
    for run in runs:
        if not run.results.verified:
            stderr().print(f"plmia: {run.results.unverified}", markup=False, soft_wrap=True)
    rng = np.random.default_rng(seed)
    if len(runs) == 1:
        found = compare_attacks(runs[0], attacks, rng, fprs or None, confidence)
    else:
        found = compare_runs(runs, rng, attacks or None, fprs or None, confidence)
    text = json.dumps(found.to_json(), indent=1, allow_nan=False)
    if file is not None:
        _write(file, text)
    if as_json:
        click.echo(text)
    else:
        _show(found, stdout())
        _show_doubts(runs, stdout())


def _names(folders: tuple[Path, ...], names: str | None) -> list[str]:
    """What to call the runs: as told, else by their folders, with the whole path where that is not enough."""
    if names is not None:
        given = [name.strip() for name in names.split(",")]
        if len(given) != len(folders) or not all(given):
            raise PlmiaError(f"--names {names!r} names {len(given)} runs, {len(folders)} were given: give one a run")
        return given
    short = [path.resolve().name for path in folders]
    return short if len(set(short)) == len(short) else [str(path) for path in folders]


def _write(file: Path, text: str) -> None:
    try:
        with open(file, "w", encoding="utf-8", opener=_private) as stream:
            stream.write(text + "\n")
    except OSError as error:
        raise OutputError(f"cannot write {file} ({error.strerror}): choose another file with -o") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _show(found: SideBySide, console: Console) -> None:
    """Print one table for each run or attack after the first, then what came out in words."""
    for pair in found.pairs:
        heading = f"{pair.other} against {pair.first} ({METHODS[pair.method]})"
        console.print(heading, markup=False, soft_wrap=True)
        console.print(_table(pair))
    tests = sum(len(pair.rows) for pair in found.pairs)
    level = f"{100 * found.confidence:g}"
    console.print(
        f"In percent; {level} % intervals, each for itself; p for all {tests} tests at once (Holm).",
        markup=False,
        soft_wrap=True,
    )
    for pair in found.pairs:
        console.print(pair.text, style="bold", markup=False, soft_wrap=True)


def _show_doubts(runs: Sequence[Run], console: Console) -> None:
    """Say which runs are in doubt: a comparison with them says as little as they do."""
    for run in runs:
        for note in doubts(run.results.notes):
            console.print(f"- {run.name}: {note.severity} ({note.code}): {note.text}", markup=False, soft_wrap=True)


def _table(pair: Pair) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("attack" if pair.what == "runs" else "run", no_wrap=True)
    table.add_column("metric", no_wrap=True)
    for name in (pair.first, pair.other, "difference", "p"):
        table.add_column(_plain(name), justify="right")
    for row in pair.rows:
        table.add_row(_plain(row.label), _metric(row), _measured(row.first), _measured(row.other), *_change(row))
    return table


def _plain(text: str) -> str:
    """Text that is shown as it is, whatever brackets are in it."""
    return text.replace("[", r"\[")


def _metric(row: Row) -> str:
    return "AUC" if row.fpr is None else f"TPR@{100 * row.fpr:g}%"


def _measured(value: Measured) -> str:
    return f"{100 * value.value:.1f} ({100 * value.interval.low:.1f} to {100 * value.interval.high:.1f})"


def _change(row: Row) -> tuple[str, str]:
    difference, low, high = (100 * value for value in (row.change.difference, row.change.low, row.change.high))
    p = "<0.001" if row.p_adjusted < 0.001 else f"{row.p_adjusted:.2g}"
    return f"{difference:+.1f} ({low:+.1f} to {high:+.1f})", p
