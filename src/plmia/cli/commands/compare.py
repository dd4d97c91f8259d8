"""`plmia compare`: audits side by side, or attacks of one audit, with tests of their differences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from plmia.auditing import verbs
from plmia.cli.commands.options import PATH, json_option, memory_option, seed_option
from plmia.cli.terminal import make_table, plain_warnings, print_line, shown_notes, stdout
from plmia.data.files import replacing
from plmia.errors import OutputError, doubts
from plmia.results.comparison import Pair, Row, SideBySide


@click.command()
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=PATH)
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
@seed_option
@memory_option
@click.option("-o", "--output", "file", type=PATH, metavar="FILE", help="Write the JSON there.")
@json_option("a table")
@click.option("--verbose", is_flag=True, help="Print all attacks, and all notes on the runs.")
def compare(
    folders: tuple[Path, ...], names: str | None, file: Path | None, as_json: bool, verbose: bool, **options: Any
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
    given = None if names is None else [name.strip() for name in names.split(",")]
    with plain_warnings():
        found = verbs.compare(*folders, names=given, **options)
    text = json.dumps(found.to_json(), indent=1, allow_nan=False)
    if file is not None:
        _write(file, text)
    if as_json:
        click.echo(text)
    else:
        _show(found, every_attack=verbose or bool(options["attacks"]), verbose=verbose)


def _write(file: Path, text: str) -> None:
    try:
        with replacing(file) as stream:
            stream.write(f"{text}\n".encode())
    except OSError as error:
        raise OutputError(f"cannot write {file} ({error.strerror}): choose another file with -o") from error


def _show(found: SideBySide, *, every_attack: bool, verbose: bool) -> None:
    """Print the result in words, one table for each run or attack after the first, and notes that put runs in doubt."""
    for pair in found.pairs:
        print_line(pair.text, style="bold")
    shown = [pair.rows if every_attack else pair.main_rows() for pair in found.pairs]
    for pair, rows in zip(found.pairs, shown, strict=True):
        print_line(pair.heading)
        stdout().print(_table(pair, rows))
    tests = sum(len(pair.rows) for pair in found.pairs)
    level = f"{100 * found.confidence:g}"
    print_line(f"In percent; {level} % intervals, each for itself; p for all {tests} tests at once (Holm).")
    # A comparison says as little as the runs do.
    notes = [(f"{run.name}: ", note) for run in found.runs for note in doubts(run.results.notes)]
    hidden = len({row.label for row in found.pairs[0].rows} - {row.label for rows in shown for row in rows})
    for line in shown_notes(notes, verbose, hidden):
        print_line(line)


def _table(pair: Pair, rows: Sequence[Row]) -> Table:
    columns = ["attack" if pair.what == "runs" else "run", "metric", _plain(pair.first), _plain(pair.other)]
    table = make_table(
        [*columns, "difference", "p"],
        [tuple(map(_plain, row.cells())) for row in rows],
        left=2,
    )
    for column in table.columns[:2]:
        column.no_wrap = True
    return table


def _plain(text: str) -> str:
    """Text that is shown as it is, whatever brackets are in it."""
    return text.replace("[", r"\[")
