"""`plmia plan`: how to spend a budget of models or seconds, from the signals of a pilot."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import cast

import click
from rich.console import Console
from rich.table import Table

from plmia.attacks.attack import find_attack
from plmia.attacks.view import Mode
from plmia.auditing.planning import VIEW_COST, Cost, Plan, PopulationRow, make_plan, rows_of, start, steps
from plmia.cli.commands.options import mode_option, scale_option, store_at, store_notes
from plmia.cli.progress import Meter
from plmia.cli.terminal import stderr, stdout
from plmia.errors import Note, PlmiaError
from plmia.evaluation.targets import Setup
from plmia.signals.signals import Scale, Signals, read_signals

SECONDS = {"s": 1, "m": 60, "h": 3600}


@click.command()
@click.argument("path", metavar="SIGNALS", type=click.Path(path_type=Path))
@click.option(
    "--fpr", type=float, default=0.001, show_default=True, metavar="RATE", help="False-positive rate of interest."
)
@click.option(
    "--budget",
    metavar="N|TIME",
    help="References in all, the pilot's included, or the time to train them all (90s, 30m, 2h); default: twice the "
    "pilot's.",
)
@click.option(
    "--view-cost",
    type=click.FloatRange(min=0),
    default=VIEW_COST,
    show_default=True,
    metavar="SHARE",
    help="Cost of each view after the first, as a share of a model's.",
)
@click.option(
    "--attack", "name", default="pl-mia-eb", show_default=True, metavar="NAME", help="Attack, or FILE.py:NAME."
)
@click.option("--target", type=int, default=0, show_default=True, metavar="I", help="Model to attack, by number.")
@mode_option
@scale_option
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of everything random.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--quiet", is_flag=True, help="Print no progress, and without --json only the plan in words.")
def plan(
    path: Path,
    fpr: float,
    budget: str | None,
    view_cost: float,
    name: str,
    target: int,
    mode: str,
    scale: str,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Say how a budget is best split among references and views, from a pilot.

    SIGNALS is an audit's folder, its signals/ folder, or an npz as for `plmia score`. Power is measured with parts of
    the pilot's references and views, and extrapolated to more; nothing is trained.

    \b
    Examples:
      plmia plan run --budget 2h
      plmia plan signals.npz --budget 128 --fpr 0.01 --view-cost 0.05
      plmia plan signals.npz --attack rmia --json
    """  # noqa: D301 - click wants the control character itself
    attack = find_attack(name)
    signals, seconds, notes = _pilot_signals(path, cast("Scale", scale))
    amount, cost = _budget(budget, seconds, view_cost, signals.n_views)
    pilot = start(signals, attack, target, Setup(cast("Mode", mode), seed=seed), fpr)
    with Meter("planning", steps(pilot), None if quiet else stderr()) as meter:
        made = make_plan(pilot, fpr, cost, amount, seed, meter.tick)
    made = replace(made, words=(*made.words, *(note.text for note in notes)))
    if as_json:
        click.echo(json.dumps(made.to_json(), indent=1))
        return
    console = stdout()
    if not quiet:
        _show(made, console)
    for sentence in made.words:
        console.print(f"- {sentence}", markup=False, soft_wrap=True)


def _pilot_signals(path: Path, scale: Scale) -> tuple[Signals, float | None, list[Note]]:
    """Signals of an audit, a store or a file, the seconds a model took where a store tells, and notes on the store."""
    for folder in (path, path / "signals"):
        if (store := store_at(folder)) is not None:
            known = [took for record in store.finished().values() if (took := float(record.get("seconds") or 0)) > 0]
            signals = store.signals()
            return signals, statistics.median(known) if known else None, store_notes(store, signals)
    return read_signals(path, scale), None, []


def _budget(text: str | None, seconds: float | None, view: float, n_views: int) -> tuple[float | None, Cost]:
    """Read the budget, and what a model costs in its unit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip()) if text is not None else None
    if text is not None and (match is None or float(match[1]) == 0):
        raise PlmiaError(f"--budget {text!r} is neither a number of models nor a time: give 64, 90s, 30m or 2h")
    if match is None or not match[2]:
        return (float(match[1]) if match else None), Cost(view=view)
    if seconds is None:
        raise PlmiaError(
            f"--budget {text} is a time, and these signals do not tell how long a model takes: give an audit's folder, "
            "or a number of models"
        )
    # The time on record includes the queries of all the pilot's views.
    return float(match[1]) * SECONDS[match[2]], Cost(seconds / (1 + view * (n_views - 1)), view, "seconds")


def _show(made: Plan, console: Console) -> None:
    """Print the tables: power, population, queries."""
    metric = "AUC" if made.best.tpr is None else f"TPR@{100 * made.fpr:g}%"
    console.print(
        f"{made.attack} on target {made.target}: {metric} in % by references and views (~ extrapolated)",
        markup=False,
        soft_wrap=True,
    )
    _table(console, ["references", *(f"{views} view{'s' * (views > 1)}" for views in made.curves)], rows_of(made))
    rate, tpr = f"{100 * made.fpr:g} %", f"TPR@{100 * made.fpr:g}%"
    _table(
        console,
        ["population", "AUC", tpr, "smallest p", f"realised FPR at {rate}"],
        [
            (
                f"{row.size:,}",
                _percent(row.auc),
                _percent(row.tpr),
                f"{row.resolution:.2g}",
                _realised(row),
            )
            for row in made.population
        ],
    )
    _table(
        console,
        ["member queries", "non-members", f"{tpr} known to"],
        [
            (
                f"{row.members:,}",
                f"{row.non_members:,}",
                "–" if row.half_width is None else f"± {100 * row.half_width:.2g} %",
            )
            for row in made.queries
        ],
    )


def _table(console: Console, columns: list[str], rows: list[tuple[str, ...]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.2f}"


def _realised(row: PopulationRow) -> str:
    if row.expected is None or row.spread is None:
        return "–"
    return f"{100 * row.expected:.3g} ± {100 * row.spread:.2g} %"
