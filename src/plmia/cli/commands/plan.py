"""`plmia plan`: how to spend a budget of models or seconds, from the signals of a pilot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import click
from rich.console import Console
from rich.table import Table

from plmia.attacks.view import Mode
from plmia.auditing import verbs
from plmia.auditing.planning import VIEW_COST, Plan, PopulationRow, rows_of
from plmia.cli.commands.options import mode_option, scale_option, seed_option
from plmia.cli.terminal import stdout
from plmia.signals.signals import Scale


@click.command()
@click.argument("signals", metavar="SIGNALS", type=click.Path(path_type=Path))
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
@click.option("--attack", default="pl-mia-eb", show_default=True, metavar="NAME", help="Attack, or FILE.py:NAME.")
@click.option("--target", type=int, default=0, show_default=True, metavar="I", help="Model to attack, by number.")
@mode_option
@scale_option
@seed_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--verbose", is_flag=True, help="Print the tables of populations and queries, too.")
@click.option("--quiet", is_flag=True, help="Print no progress, and without --json only the plan in words.")
def plan(
    signals: Path,
    fpr: float,
    budget: str | None,
    view_cost: float,
    attack: str,
    target: int,
    mode: str,
    scale: str,
    seed: int,
    as_json: bool,
    verbose: bool,
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
    made = verbs.plan(
        signals,
        fpr=fpr,
        budget=budget,
        view_cost=view_cost,
        attack=attack,
        target=target,
        mode=cast("Mode", mode),
        scale=cast("Scale", scale),
        seed=seed,
        progress=not quiet,
    )
    if as_json:
        click.echo(json.dumps(made.to_json(), indent=1))
        return
    console = stdout()
    best, *more = made.words
    console.print(best, style="bold", markup=False, soft_wrap=True)
    if not quiet:
        _show(made, console, verbose)
    for sentence in more:
        console.print(f"- {sentence}", markup=False, soft_wrap=True)


def _show(made: Plan, console: Console, verbose: bool) -> None:
    """Print the table of power; if ``verbose``, those of population and queries, too."""
    metric = "AUC" if made.best.tpr is None else f"TPR@{100 * made.fpr:g}%"
    console.print(
        f"{made.attack} on target {made.target}: {metric} in % by references and views (~ extrapolated)",
        markup=False,
        soft_wrap=True,
    )
    _table(console, ["references", *(f"{views} view{'s' * (views > 1)}" for views in made.curves)], rows_of(made))
    if not verbose:
        return
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
