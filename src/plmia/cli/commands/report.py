"""`plmia report`: the page of results that exist already."""

from __future__ import annotations

from pathlib import Path

import click

from plmia.auditing import verbs
from plmia.cli.commands.options import quiet_option, show_records_option, verbose_option
from plmia.cli.terminal import plain_warnings, show_result


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="The data that were audited, to show records: npz with X and y and optionally texts, class_names and "
    "feature_names, or a published archive.",
)
@click.option(
    "--signals",
    type=click.Path(path_type=Path),
    help="The signals that were scored, to show those of single records; an audit has them in its folder.",
)
@show_records_option
@click.option("--attack", metavar="NAME", help="Attack of the figures and the table; by default the verdict's.")
@click.option("--target", type=int, metavar="I", help="Target of the figures and the table; by default the first.")
@verbose_option
@quiet_option
def report(
    folder: Path,
    data: Path | None,
    signals: Path | None,
    show_records: bool,
    attack: str | None,
    target: int | None,
    verbose: bool,
    quiet: bool,
) -> None:
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
        result = verbs.report(
            folder, data=data, signals=signals, show_records=show_records, attack=attack, target=target
        )
    if not quiet:
        show_result(result.result, folder, verbose=verbose)
