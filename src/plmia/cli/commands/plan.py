"""`plmia plan`: how to spend a budget of models, seconds or operations, from the signals of pilots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from plmia.auditing import verbs
from plmia.auditing.planning import VIEW_COST, Plan, PopulationRow, reference_table
from plmia.cli.commands.options import (
    PATH,
    align_option,
    json_option,
    mode_option,
    scale_option,
    seed_option,
    unit_option,
)
from plmia.cli.terminal import make_table, print_line, prints_to_stderr, stdout
from plmia.errors import round_percent
from plmia.evaluation.metrics import tpr_label


@click.command()
@click.argument("signals", metavar="SIGNALS [SIGNALS ...]", type=PATH, nargs=-1, required=True)
@click.option(
    "--fpr", type=float, default=0.001, show_default=True, metavar="RATE", help="False-positive rate of interest."
)
@click.option(
    "--budget",
    metavar="N|TIME|FLOP",
    help="References in all, the pilot's included, or the time to train them all (90s, 30m, 2h), or its floating-point "
    "operations (1e15flop, 1PFLOPS); default: twice the pilot's. With several pilots, a number counts the standard's.",
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
@unit_option
@align_option
@scale_option
@seed_option
@json_option("tables")
@click.option("--verbose", is_flag=True, help="Print the tables of references, populations and queries, too.")
@click.option("--quiet", is_flag=True, help="Print no progress, and without --json only the plan in words.")
def plan(signals: tuple[Path, ...], as_json: bool, verbose: bool, quiet: bool, **options: Any) -> None:
    """Say how a budget is best split among references and views, from a pilot.

    SIGNALS is an audit's folder, its signals/ folder, or an npz as for `plmia score`. Power is measured with parts of
    the pilot's references and views, and extrapolated to more; nothing is trained. Several pilots are audits of the
    same data and target whose references were trained by different recipes: the plan says which to train. The standard
    is the pilot whose references were trained like the target. If none or several are, it is the first of them.

    Where the pilot has groups (--group of plmia audit), the plan is for people, each judged by all of their records.

    \b
    Examples:
      plmia plan run --budget 2h
      plmia plan run run-small --budget 2h
      plmia plan signals.npz --budget 128 --fpr 0.01 --view-cost 0.05
      plmia plan signals.npz --attack rmia --json
    """  # noqa: D301 - click wants the control character itself
    with prints_to_stderr():
        made = verbs.plan(*signals, progress=not quiet, **options)
    if as_json:
        click.echo(json.dumps(made.to_json(), indent=1))
        return
    best, *more = made.words
    print_line(best, style="bold")
    if not quiet:
        _show(made, verbose)
    for sentence in more:
        print_line(f"- {sentence}")


def _show(made: Plan, verbose: bool) -> None:
    """Print the table of power; if ``verbose``, those of each kind of references, population and queries, too."""
    print_line(made.heading)
    head, *rows = made.table
    _print_table(list(head), rows)
    if not verbose:
        return
    for kind in made.kinds if len(made.kinds) > 1 else ():
        print_line(f"References of {kind.name}:")
        head, *rows = reference_table(kind, made.metric)
        _print_table(list(head), rows)
    _print_table(
        ["population", "AUC", tpr_label(made.fpr), "smallest p", f"realised FPR at {round_percent(made.fpr)}"],
        [
            (f"{row.size:,}", _percent(row.auc), _percent(row.tpr), f"{row.resolution:.2g}", _realised(row))
            for row in made.population
        ],
    )
    widths = ["–" if row.half_width is None else f"± {100 * row.half_width:.2g} %" for row in made.queries]
    _print_table(
        ["member queries", "non-members", f"{tpr_label(made.fpr)} known to"],
        [(f"{row.members:,}", f"{row.non_members:,}", w) for row, w in zip(made.queries, widths, strict=True)],
    )


def _print_table(columns: list[str], rows: list[tuple[str, ...]]) -> None:
    # A recipe's text may hold brackets, which are not markup.
    stdout().print(make_table([column.replace("[", r"\[") for column in columns], rows), "")


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.2f}"


def _realised(row: PopulationRow) -> str:
    if row.expected is None or row.spread is None:
        return "–"
    return f"{100 * row.expected:.3g} ± {100 * row.spread:.2g} %"
