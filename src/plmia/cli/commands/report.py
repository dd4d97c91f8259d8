"""`plmia report`: the page of results that exist already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from plmia.auditing import verbs
from plmia.cli.commands.options import (
    PATH,
    memory_option,
    quiet_option,
    scale_option,
    show_records_option,
    table_options,
    verbose_option,
)
from plmia.cli.terminal import NAMES_MEMBERS, plain_warnings, print_line, print_result, shown_notes
from plmia.errors import doubts


@click.command()
@click.argument("folder", metavar="DIR", type=PATH)
@click.option(
    "--data",
    type=PATH,
    help="The data that were audited, to show records: CSV or Parquet file, npz with X and y and optionally texts, "
    "class_names and feature_names, or a published archive.",
)
@table_options
@click.option("--title", metavar="TEXT", help="Title of the report.")
@click.option(
    "--signals",
    type=PATH,
    help="The signals that were scored, to show those of single records; an audit has them in its folder.",
)
@scale_option
@show_records_option
@click.option("--attack", metavar="NAME", help="Attack of the figures and the table; by default the verdict's.")
@click.option("--target", type=int, metavar="I", help="Target of the figures and the table; by default the first.")
@memory_option
@verbose_option
@quiet_option
def report(folder: Path, verbose: bool, quiet: bool, **options: Any) -> None:
    """Write DIR/report.html from the results in DIR.

    One file that opens without a network: the verdict, figures, and the most exposed records. The figures are also
    written to DIR/figures as SVG and JSON.

    \b
    Examples:
      plmia report run
      plmia report out --signals signals.npz --data data.npz --show-records
      plmia report run --attack rmia
    """  # noqa: D301 - click wants the control character itself
    with plain_warnings(quiet):
        result = verbs.report(folder, **options)
    if verbose:
        print_result(result, None, verbose=True, quiet=quiet)
    elif not quiet:
        print_line(result.result.verdict.text, style="bold")
        for line in shown_notes([("", note) for note in doubts(result.notes)], verbose=False):
            print_line(line)
        print_line(NAMES_MEMBERS)
        print_line(str(result.report))
