"""`plmia score` and `plmia attacks`: attacks on signals that exist already."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click
from rich.table import Table

from plmia import __version__
from plmia.attacks.attack import ATTACKS
from plmia.attacks.view import Mode
from plmia.cli.commands.options import (
    attack_option,
    chosen_attacks,
    common_options,
    is_store,
    mode_option,
    population_option,
    require_folder,
    scale_option,
    store_at,
    store_notes,
)
from plmia.cli.progress import Meter
from plmia.cli.terminal import show_metrics, stderr, stdout
from plmia.data.designs import count_split_groups
from plmia.data.npz import SIGNALS_ARRAYS, unused_arrays
from plmia.errors import Note, PlmiaError, SignalsError
from plmia.evaluation.targets import Setup
from plmia.results.folder import run_attacks
from plmia.results.result import About
from plmia.results.saved import SavedResults
from plmia.signals.signals import Scale, Signals, read_signals


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def attacks(as_json: bool) -> None:
    """List the attacks.

    \b
    Example:
      plmia attacks --json
    """  # noqa: D301 - click wants the control character itself
    if as_json:
        listing = {
            name: {"statistic": str(attack.statistic), "calibration": str(attack.calibration), "note": attack.note}
            for name, attack in ATTACKS.items()
        }
        click.echo(json.dumps(listing, indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("attack", "statistic", "calibration", ""):
        table.add_column(column)
    for name, attack in ATTACKS.items():
        table.add_row(name, type(attack.statistic).__name__, type(attack.calibration).__name__, attack.note)
    stdout().print(table)


@click.command()
@click.argument("signals_path", metavar="SIGNALS", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", "folder", required=True, type=click.Path(path_type=Path), help="Folder for the results."
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=("0",),
    show_default=True,
    metavar="I|all",
    help="Model to attack, by number, or all in turn; may be given several times.",
)
@attack_option
@mode_option
@click.option("--references", type=click.IntRange(min=1), metavar="N", help="References a target; all by default.")
@population_option
@scale_option
@common_options
def score(
    signals_path: Path,
    folder: Path,
    targets: tuple[str, ...],
    names: tuple[str, ...],
    mode: str,
    references: int | None,
    population: int | None,
    scale: str,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run attacks on signals that exist already; no training.

    SIGNALS is the signals/ folder of an audit, or an npz with `signals` (floats [models, points] or [models, points,
    views], logit-scaled true-label confidences), `membership` (bool [models, points], or bits packed along points
    together with `n_points`) and optionally `labels` [points]. Writes metrics.json,
    scores.npz and records.csv; plmia report adds a page.

    \b
    Examples:
      plmia score signals.npz -o out
      plmia score signals.npz -o out --target all --references 64
      plmia score signals.npz -o out --mode offline --attack pl-mia --attack rmia
      plmia score signals.npz -o out --attack my_attack.py:MINE
    """  # noqa: D301 - click wants the control character itself
    require_folder(folder)
    setup = Setup(cast("Mode", mode), references, population, seed)
    chosen = chosen_attacks(names)
    signals, records, notes = _read(signals_path, cast("Scale", scale))
    others = _holds_others(folder, signals.digest)
    numbers = _target_numbers(targets, signals)
    notes += _split_groups(signals, numbers)
    total = len(numbers) * len(chosen) * signals.n_points
    with Meter("scoring", total, None if quiet else stderr()) as meter:
        about = replace(About.of(signals, numbers, setup, records), plmia=__version__)
        result = run_attacks(
            signals, chosen, numbers, setup, folder, about, meter.tick, may_skip=not names, notes=notes
        )
    if others and not quiet:
        stderr().print(f"plmia: replaced the results of other signals in {folder}", markup=False, soft_wrap=True)
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=1))
    elif not quiet:
        show_metrics(result.to_json(), folder)


def _read(path: Path, scale: Scale) -> tuple[Signals, Mapping[int, Mapping[str, Any]], list[Note]]:
    """Signals of a store or a file, provenance of the models, and notes."""
    if (store := store_at(path)) is not None:
        signals = store.signals()
        return signals, store.finished(), store_notes(store, signals)
    if is_store(path / "signals"):
        raise SignalsError(f"{path} is an audit: its signals are in {path / 'signals'}, give that folder")
    signals = read_signals(path, scale)
    return signals, {}, unused_arrays(path, SIGNALS_ARRAYS, SignalsError)


def _holds_others(folder: Path, digest: str) -> bool:
    """Whether a folder has results of other signals."""
    try:
        return SavedResults(folder).result.about.signals.sha256 != digest
    except PlmiaError:
        return False


def _target_numbers(targets: tuple[str, ...], signals: Signals) -> list[int]:
    if "all" in targets:
        return sorted(signals.models)
    numbers = set()
    for target in targets:
        try:
            numbers.add(int(target))
        except ValueError as error:
            least, most = min(signals.models), max(signals.models)
            raise PlmiaError(
                f"--target {target!r} is neither a number nor 'all': give a number from {least} to {most}"
            ) from error
    signals.rows(sorted(numbers), "target")
    return sorted(numbers)


def _split_groups(signals: Signals, targets: list[int]) -> Iterator[Note]:
    """Say of the first target whose members share groups with non-members how many such groups there are."""
    if signals.groups is None:
        return
    for target, row in zip(targets, signals.rows(targets), strict=True):
        cut, n_groups = count_split_groups(signals.design.matrix[row], signals.groups)
        if cut:
            yield Note(
                "split-groups",
                "caution",
                f"{cut:,} of {n_groups:,} groups hold members and non-members of target {target}, so a non-member may "
                "look like the members of its group. Keep groups together when models are trained.",
            )
            return
