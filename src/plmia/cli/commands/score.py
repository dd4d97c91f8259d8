"""`plmia score` and `plmia attacks`: attacks on signals that exist already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from plmia.attacks.attack import ATTACKS, KNOWN, SCREENING
from plmia.auditing import score as verb
from plmia.cli.commands.options import (
    PATH,
    align_option,
    attack_option,
    json_option,
    memory_option,
    mode_option,
    people_options,
    population_option,
    result_options,
    scale_option,
)
from plmia.cli.terminal import plain_warnings, print_result, prints_to_stderr
from plmia.errors import OutputError
from plmia.evaluation.tables import text_table


@click.command()
@click.option("--all", "with_rivals", is_flag=True, help="List attacks that run only if named with --attack, too.")
@json_option("a table")
def attacks(with_rivals: bool, as_json: bool) -> None:
    """List the attacks.

    \b
    Examples:
      plmia attacks --json
      plmia attacks --all
    """  # noqa: D301 - click wants the control character itself
    known = KNOWN if with_rivals else ATTACKS | SCREENING
    if as_json:
        listing = {
            name: {"statistic": str(attack.statistic), "calibration": str(attack.calibration), "note": attack.note}
            for name, attack in known.items()
        }
        click.echo(json.dumps(listing, indent=1))
        return
    rows = [
        [name, type(attack.statistic).__name__, type(attack.calibration).__name__, attack.note]
        for name, attack in known.items()
    ]
    click.echo(text_table([["attack", "statistic", "calibration", "description"], *rows], left=4))


@click.command()
@click.argument("signals", metavar="SIGNALS", type=PATH)
@click.option(
    "-o",
    "--output",
    "folder",
    type=PATH,
    help="Folder for the results; by default that of the run or the audit, if SIGNALS is one.",
)
@click.option(
    "--target",
    multiple=True,
    default=("0",),
    show_default=True,
    metavar="I|all",
    help="Model to attack, by number, or all in turn; may be given several times.",
)
@attack_option
@mode_option
@align_option
@click.option("--references", type=click.IntRange(min=1), metavar="N", help="References per target; all by default.")
@population_option
@people_options
@click.option(
    "--data",
    type=PATH,
    metavar="FILE",
    help="CSV, Parquet or npz file with the columns of --by, one row per record; by default arrays of SIGNALS.",
)
@click.option(
    "--trainings",
    type=click.IntRange(min=0),
    metavar="N",
    help="Models that are attacked in turn, to count how often each record or person is identified.",
)
@scale_option
@click.option(
    "--merge",
    multiple=True,
    type=PATH,
    metavar="COPY",
    help="Take in the models of a copy of the run, from another machine; may be given several times.",
)
@memory_option
@result_options
def score(signals: Path, folder: Path | None, as_json: bool, verbose: bool, quiet: bool, **options: Any) -> None:
    """Run attacks on signals that exist already; no training.

    SIGNALS is a run of plmia design, an audit, the signals/ folder of either, or an npz with `signals` (floats
    [models, records] or [models, records, views], logit-scaled true-label confidences), `membership` (bool
    [models, records], or bits packed along records together with `n_points`) and optionally `labels` [records].
    Writes metrics.json, scores.npz and records.csv; plmia report adds a page.

    \b
    Examples:
      plmia score run
      plmia score signals.npz -o out
      plmia score signals.npz -o out --target all --references 64
      plmia score signals.npz -o out --by sex --data patients.csv --trainings 16
      plmia score signals.npz -o out --mode offline --attack pl-mia --attack rmia
      plmia score signals.npz -o out --attack my_attack.py:MINE
      plmia score signals.npz -o out --memory 1GB
    """  # noqa: D301 - click wants the control character itself
    if folder is None and verb.run_folder(signals) is None:
        raise OutputError(f"{signals} is not the folder of a run or an audit: give -o, a folder for the results")
    with plain_warnings(quiet), prints_to_stderr():
        result = verb.score(signals, folder, progress=not quiet, **options)
    print_result(result, options["attacks"], as_json, verbose, quiet)
