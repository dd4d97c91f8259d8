"""`plmia reproduce`: the paper's tables and figures, ours beside theirs."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from plmia.auditing import reproduce as verb
from plmia.cli.commands.options import PATH, json_option, quiet_option, seed_option
from plmia.cli.terminal import print_line, say


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--list", "listing", is_flag=True, help="Name all tables and figures, one per line.")
@click.option("--references", type=click.IntRange(min=2), metavar="N", help="References per target; all by default.")
@click.option("--targets", type=click.IntRange(min=1), metavar="N", help="Targets to average over; 10 by default.")
@click.option("--data", type=PATH, help="Train on this data (npz or archive).")
@click.option("--recipe", metavar="NAME", help="How to train; by default as the paper does.")
@click.option("--signals", type=PATH, help="Signals file, store, or a folder of them, instead of training.")
@click.option("--quick", is_flag=True, help="Two targets and coarse grids, on the signals of the repository.")
@click.option(
    "-o",
    "--output",
    "folder",
    type=PATH,
    default=Path("out/reproduce"),
    show_default=True,
    help="Folder for NAME.json, NAME.md and NAME.svg.",
)
@seed_option
@json_option("tables")
@quiet_option
def reproduce(names: tuple[str, ...], listing: bool, folder: Path, as_json: bool, quiet: bool, **options: Any) -> None:
    """Run experiments of the paper and print ours beside the paper's numbers.

    NAME is one of --list, or all. Without --data or --signals they run on the small signals of the repository. Models
    that are trained are kept in experiments/runs, so that experiments share them and an interrupted one continues.

    \b
    Examples:
      plmia reproduce --list
      plmia reproduce table-2 figure-4 --quick
      plmia reproduce table-6 --data purchase100.tgz --references 254
      plmia reproduce all --signals run/signals -o results
    """  # noqa: D301 - click wants the control character itself
    items = verb.paper_items()
    if listing:
        for name, item in items.items():
            print_line(f"{name:<10} {item['title']} ({item['label']})")
        return
    chosen = verb.choose_items(names)
    written: dict[str, dict[str, Any]] = {}
    for name in chosen:
        if len(chosen) > 1 and not quiet:
            say(f"{name}: {items[name]['title']}")
        written |= verb.reproduce(name, folder, progress=not quiet, **options)
        if not (quiet or as_json):
            page = import_module("experiments.outcome").markdown(written[name], [])
            print_line(page)
    if as_json:
        click.echo(json.dumps(written[chosen[0]] if len(chosen) == 1 else written, indent=1, ensure_ascii=False))
    elif not quiet:
        print_line(f"{folder}/")
