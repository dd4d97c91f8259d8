"""`plmia screen`: one model without references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from plmia.auditing import screen as verb
from plmia.cli.commands.options import (
    PATH,
    given_target_options,
    output_option,
    result_options,
    scale_option,
    separate_attacks,
    show_records_option,
    table_options,
)
from plmia.cli.terminal import plain_warnings, print_result, prints_to_stderr
from plmia.errors import SignalsError

# Of the number of a model; Python converts no more than a few thousand digits.
_MAX_DIGITS = 18


@click.command()
@click.argument("signals", metavar="[SIGNALS]", type=PATH, required=False)
@output_option("Folder for the results.")
@click.option("--data", type=PATH, help="The records: CSV or Parquet file, npz with X and y, or a published archive.")
@table_options
@click.option(
    "--target",
    metavar="FILE|I",
    help="The model: its predictions (csv, parquet, npz, npy) or the model itself (onnx, skops); or its number in "
    "SIGNALS, 0 by default.",
)
@given_target_options
@click.option(
    "--attack",
    "attacks",
    multiple=True,
    metavar="NAME",
    callback=separate_attacks,
    help="Attack to run, or FILE.py:NAME; by default attack-p and, with --data, attack-p-conditional.",
)
@click.option(
    "--population",
    type=click.IntRange(min=2),
    metavar="N",
    help="Known non-members to calibrate with and to learn from; half of them by default.",
)
@scale_option
@show_records_option
@result_options
def screen(
    signals: Path | None,
    folder: Path,
    data: Path | None,
    target: str | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Screen one model without references: can show a leak, cannot show its absence.

    The model is given by its predictions for the records of --data, or by its SIGNALS (as in plmia score; one model is
    enough). With --data, attack-p-conditional predicts the signal of a non-member from the record. Members and
    non-members must come from one source at random: any other difference between them looks like a leak.

    \b
    Examples:
      plmia screen --data data.csv --label y --target predictions.csv --members members.csv -o out
      plmia screen signals.npz -o out
      plmia screen signals.npz --data data.npz --target 3 -o out
    """  # noqa: D301 - click wants the control character itself
    if signals is None:
        if data is None:
            raise click.UsageError("give the data and a model (--data, --target, --members), or SIGNALS")
        options |= {"source": data, "target": target}
    else:
        options |= {"source": signals, "target": _number(target or "0"), "X": data}
    with plain_warnings(quiet), prints_to_stderr():
        result = verb.screen(folder=folder, progress=not quiet, **options)
    print_result(result, options["attacks"], as_json, verbose, quiet)


def _number(target: str) -> int:
    if not target.isdecimal() or len(target) > _MAX_DIGITS:
        raise SignalsError(
            f"target {target[:40]!r} is not the number of a model in SIGNALS: give --target 0, for example"
        )
    return int(target)
