"""`plmia import`: what other tools left on disk, made into signals."""

from __future__ import annotations

import inspect
import shlex
import textwrap
from dataclasses import fields
from pathlib import Path

import click

from plmia.auditing import verbs
from plmia.cli.commands.options import PATH, quiet_option
from plmia.cli.terminal import print_line
from plmia.errors import SignalsError
from plmia.signals.importers import IMPORTERS, Imported, LongTable
from plmia.signals.long_table import Columns


@click.command("import")
@click.argument("kind", metavar="FORMAT", type=click.Choice(list(IMPORTERS)))
@click.argument("folder", metavar="PATH", type=PATH)
@click.option(
    "-o",
    "--output",
    "path",
    required=True,
    metavar="SIGNALS",
    type=PATH,
    help="The signals file to write, an npz; .npz is added if it is missing.",
)
@click.option(
    "--column",
    "renamed",
    multiple=True,
    metavar="ROLE=NAME",
    help="Column of a table: model, record, view, member or signal, if it has another name; may be repeated.",
)
@quiet_option
def import_(kind: str, folder: Path, path: Path, renamed: tuple[str, ...], quiet: bool) -> None:
    """Make a signals file of what another tool left at PATH; no training.

    \b
    FORMAT says what is at PATH, a folder with these files, or one file:
    FORMATS

    Of several epochs the last is taken. Nothing is unpickled. A file that is missing, damaged, not finite or does not
    fit the others stops the import with its name; no model is left out silently. One model is in memory at a time, of a
    table one number per row.

    \b
    Examples:
      plmia import lira exp/cifar10 -o signals.npz
      plmia import privacy-meter demo_cifar10 -o signals.npz
      plmia import arrays my-arrays -o signals.npz
      plmia import table signals.csv --column record=patient -o signals.npz
    """  # noqa: D301 - click wants the control character itself
    importer = LongTable(_columns(renamed)) if kind == LongTable.name else IMPORTERS[kind]
    if renamed and kind != LongTable.name:
        raise SignalsError(f"{kind} has no columns: leave out --column, or import a table")
    imported = verbs.import_signals(importer, folder, path, progress=not quiet)
    if not quiet:
        if imported.path != path:
            print_line(f"The suffix .npz was added: {imported.path}")
        _show(imported)


def _columns(renamed: tuple[str, ...]) -> Columns:
    """Read --column ROLE=NAME."""
    roles = [role.name for role in fields(Columns)]
    names = {role: name for role, _, name in (text.partition("=") for text in renamed)}
    for role, name in names.items():
        if role not in roles or not name:
            raise SignalsError(
                f"--column {role}={name} is not ROLE=NAME: give one of {', '.join(roles)} and the name of its column"
            )
    return Columns(**names)


def _formats() -> str:
    """Return the names of all importers and the files that each needs, for the help."""
    width = max(map(len, IMPORTERS)) + 4
    return "\n".join(
        textwrap.fill(f"  {name}".ljust(width) + i.files, 90, subsequent_indent=" " * width, break_on_hyphens=False)
        for name, i in IMPORTERS.items()
    )


import_.help = inspect.cleandoc(str(import_.help)).replace("FORMATS", _formats())


def _show(imported: Imported) -> None:
    sizes = [_count(imported.n_models, "model"), _count(imported.n_points, "record"), _count(imported.n_views, "view")]
    sizes.append("no labels" if imported.n_classes is None else f"{imported.n_classes:,} classes")
    sizes.append(_count(imported.n_pairs, "complementary pair") if imported.n_pairs else "no complementary pairs")
    print_line(", ".join(sizes))
    for note in imported.notes:
        print_line(f"- {note}")
    print_line(f"Next: plmia score {shlex.quote(str(imported.path))} -o out")


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' * (number != 1)}"
