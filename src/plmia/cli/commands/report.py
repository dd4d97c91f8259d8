"""`plmia report`: the page of results that exist already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from plmia.cli.commands.options import show_records_option, store_at
from plmia.cli.terminal import show_metrics, stderr
from plmia.reporting import Extras, read_extras, write_report
from plmia.results.saved import SavedResults
from plmia.signals.signals import read_signals


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--data",
    "data_path",
    type=click.Path(path_type=Path),
    help="The data that were audited, to show records: npz with X and y and optionally texts, class_names and "
    "feature_names, or a published archive.",
)
@click.option(
    "--signals",
    "signals_path",
    type=click.Path(path_type=Path),
    help="The signals that were scored, to show those of single records; an audit has them in its folder.",
)
@show_records_option
@click.option("--attack", metavar="NAME", help="Attack of the figures and the table; by default the verdict's.")
@click.option("--target", type=int, metavar="I", help="Target of the figures and the table; by default the first.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def report(
    folder: Path,
    data_path: Path | None,
    signals_path: Path | None,
    show_records: bool,
    attack: str | None,
    target: int | None,
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
    extras = Extras() if data_path is None else read_extras(data_path)
    saved = SavedResults(folder)
    if signals_path is not None:
        store = store_at(signals_path)
        signals = read_signals(signals_path) if store is None else store.signals()
        extras = replace(extras, signals=signals)
    write_report(saved, extras, show_records=show_records, attack=attack, target=target)
    if not saved.verified:
        stderr().print(f"plmia: {saved.unverified}", markup=False, soft_wrap=True)
    if not quiet:
        for note in extras.notes:
            stderr().print(f"plmia: {note.text}", markup=False, soft_wrap=True)
        show_metrics(saved.metrics, folder)
