"""`plmia design`: which rows each model trains on, for a training script of one's own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from plmia.auditing import verbs
from plmia.cli.commands.options import (
    PATH,
    output_option,
    parse_design,
    quiet_option,
    seed_option,
    table_options,
)
from plmia.cli.terminal import plain_warnings, print_line
from plmia.data.designs import MembershipDesign
from plmia.data.npz import load_npy
from plmia.errors import DataError
from plmia.training.own_script import Run


@click.command()
@click.option("--records", type=click.IntRange(min=2), metavar="N", help="Number of records.")
@click.option("--data", type=PATH, help="The data, as in plmia audit, instead of --records: gives labels and groups.")
@table_options
@click.option(
    "--groups", "groups_file", type=PATH, metavar="FILE.npy", help="Group of each record, integers [records]."
)
@click.option(
    "--references",
    type=click.IntRange(min=2),
    metavar="N",
    help="Reference models; 32 by default, or those of a design of your own.",
)
@output_option("Folder of the run.")
@click.option(
    "--design",
    "layout",
    default="pairs",
    show_default=True,
    metavar="KIND|FILE.npy",
    help="References in complementary pairs, on independent halves, exact (each record in half of them), or a bool "
    "matrix [models, records] of your own, model 0 the target.",
)
@seed_option
@quiet_option
def design(
    records: int | None, data: Path | None, groups_file: Path | None, layout: str, quiet: bool, **options: Any
) -> None:
    """Choose which rows each model trains on, for a training script of your own.

    Your script calls plmia.Run for each model, in any order, on any machines that share the folder; plmia score RUN
    attacks model 0, the target. Run again with more references, the command adds models.

    \b
    Examples:
      plmia design --records 50000 --references 16 -o run
      plmia design --data patients.csv --label readmitted --group patient --references 64 -o run
    """  # noqa: D301 - click wants the control character itself
    chosen = parse_design(layout)
    if (records is not None) + (data is not None) != 1 and not isinstance(chosen, MembershipDesign):
        raise DataError("give either --records or --data")
    groups = None if groups_file is None else load_npy(groups_file)
    with plain_warnings(quiet):
        run = verbs.design(records or data, groups=groups, design=chosen, **options)
    if not quiet:
        _show(run)


def _show(run: Run) -> None:
    name, n_references = str(run.folder), len(run.models) - 1
    print_line(
        f"{n_references + 1} models of {run.n_records:,} records: model 0 is the target, {n_references} references."
    )
    print_line("In your training script:")
    labels = "" if run.labels is not None else ", labels=y"
    for line in (
        f"run = plmia.Run({name!r})",
        "for k in run.missing():",
        "    rows = run.members(k)  # train model k on these rows only",
        f"    run.record(k, logits=logits{labels})  # class logits of all {run.n_records:,} records",
    ):
        print_line(f"    {line}")
    print_line(f"Then: plmia score {shlex.quote(name)}")
