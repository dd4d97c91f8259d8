"""`plmia import`: what other tools left on disk, made into signals."""

from __future__ import annotations

import inspect
import shlex
import textwrap
from pathlib import Path

import click

from plmia.auditing import verbs
from plmia.cli.commands.options import PATH, quiet_option
from plmia.cli.terminal import print_line
from plmia.signals.importers import IMPORTERS, Imported


@click.command("import")
@click.argument("kind", metavar="FORMAT", type=click.Choice(list(IMPORTERS)))
@click.argument("folder", metavar="DIR", type=PATH)
@click.option(
    "-o",
    "--output",
    "path",
    required=True,
    metavar="SIGNALS",
    type=PATH,
    help="The signals file to write, an npz.",
)
@quiet_option
def import_(kind: str, folder: Path, path: Path, quiet: bool) -> None:
    """Make a signals file of what another tool left in DIR; no training.

    \b
    FORMAT says how DIR is laid out:
    FORMATS

    Of several epochs the last is taken. Nothing is unpickled. A file that is missing, damaged, not finite or does not
    fit the others stops the import with its name; no model is left out silently. One model is in memory at a time.

    \b
    Examples:
      plmia import lira exp/cifar10 -o signals.npz
      plmia import privacy-meter demo_cifar10 -o signals.npz
      plmia import arrays my-arrays -o signals.npz
    """  # noqa: D301 - click wants the control character itself
    imported = verbs.import_signals(kind, folder, path, progress=not quiet)
    if not quiet:
        _show(imported, path)


def _formats() -> str:
    """Return the names of all importers and the files that each needs, for the help."""
    width = max(map(len, IMPORTERS)) + 4
    return "\n".join(
        textwrap.fill(f"  {name}".ljust(width) + i.files, 90, subsequent_indent=" " * width, break_on_hyphens=False)
        for name, i in IMPORTERS.items()
    )


import_.help = inspect.cleandoc(str(import_.help)).replace("FORMATS", _formats())


def _show(imported: Imported, path: Path) -> None:
    sizes = [_count(imported.n_models, "model"), _count(imported.n_points, "record"), _count(imported.n_views, "view")]
    sizes.append("no labels" if imported.n_classes is None else f"{imported.n_classes:,} classes")
    sizes.append(_count(imported.n_pairs, "complementary pair") if imported.n_pairs else "no complementary pairs")
    print_line(", ".join(sizes))
    for note in imported.notes:
        print_line(f"- {note}")
    print_line(f"Next: plmia score {shlex.quote(str(path))} -o out")


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' * (number != 1)}"
