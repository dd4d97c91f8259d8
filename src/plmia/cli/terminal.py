"""What the command prints: consoles, the table of results and the notes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from plmia.errors import Note, doubts
from plmia.evaluation.tables import SHOWN_FPRS


def stdout() -> Console:
    """Return standard output; what its encoding cannot write appears as a question mark."""
    # A file or a pipe has no width at which rows of a table should break.
    return _console(sys.stdout, None if _is_terminal(sys.stdout) else 200)


def stderr() -> Console:
    """Return standard error."""
    return _console(sys.stderr, None)


def _console(stream: TextIO, width: int | None) -> Console:
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    terminal = _is_terminal(stream)
    # Without a colour system neither colours nor bold letters are written (https://no-color.org).
    plain = not terminal or bool(os.environ.get("NO_COLOR"))
    return Console(
        file=stream,
        highlight=False,
        emoji=False,
        width=width,
        force_terminal=terminal,
        color_system=None if plain else "auto",
    )


def _is_terminal(stream: TextIO) -> bool:
    return bool(stream.isatty())


def show_metrics(metrics: dict[str, Any], folder: Path) -> None:
    """Print the table of results, the verdict and the notes.

    Parameters
    ----------
    metrics : dict
        The contents of metrics.json.
    folder : Path
        Where the results are.
    """
    console, about = stdout(), metrics["about"]
    console.print(_headline(about), soft_wrap=True, markup=False)
    console.print(fitting_table(metrics, console))
    console.print(metrics["verdict"]["text"], style="bold", soft_wrap=True, markup=False)
    notes = [Note.from_json(note) for note in metrics["notes"]]
    serious = doubts(notes)
    # The verdict of such an audit quotes its first doubt.
    quoted = metrics["verdict"]["status"] in ("invalid", "inconclusive")
    for note in serious[quoted:]:
        console.print(f"- {note.severity} ({note.code}): {note.text}", markup=False, soft_wrap=True)
    for note in notes:
        if note not in serious:
            console.print(f"- {note.text}", markup=False, soft_wrap=True)
    console.print("These files name members of the training data: keep them as safe as the data.", soft_wrap=True)
    names = ("report.html", "metrics.json", "scores.npz", "records.csv")
    files = "  ".join(str(folder / name) for name in names if (folder / name).exists())
    console.print(files, markup=False, soft_wrap=True)


def fitting_table(metrics: dict[str, Any], console: Console) -> Table:
    """Return the fullest table of results that fits the console: spreads go first, then columns without any number.

    Parameters
    ----------
    metrics : dict
        The contents of metrics.json.
    console : Console
        Where it will be printed.
    """
    # Measured where there is any room: a console cuts what it measures to its own width.
    wide = console.options.update(max_width=10_000)
    tables = list(_tables(metrics))
    return next(
        (table for table in tables if console.measure(table, options=wide).maximum <= console.width), tables[-1]
    )


def _tables(metrics: dict[str, Any]) -> Iterator[Table]:
    """Tables of the same results, each narrower than the one before."""
    attacks = metrics["attacks"]
    known = tuple(f for f in SHOWN_FPRS if any(attack["tpr"][f]["resolved"] for attack in attacks.values()))
    for fprs, spread in ((SHOWN_FPRS, True), (SHOWN_FPRS, False), (known, False)):
        table = Table(box=None, pad_edge=False)
        table.add_column("attack")
        for name in ("AUC", *(f"TPR@{100 * float(fpr):g}%" for fpr in fprs), "ε ≥", "check@1%"):
            table.add_column(name, justify="right")
        for name, attack in attacks.items():
            rates = (attack["tpr"][fpr] for fpr in fprs)
            cells = (_spread(rate, spread) if rate["resolved"] else "–" for rate in rates)
            last = f"{attack['epsilon']['low']:.2f}", _check(attack["own_p_value_on_population"])
            table.add_row(name.replace("[", r"\["), _spread(attack["auc"], spread), *cells, *last)
        yield table


def _headline(about: dict[str, Any]) -> str:
    size, targets = about["signals"], len(about["targets"])
    words = [
        f"{targets} target{'s' * (targets > 1)}",
        f"{size['points']:,} points",
        f"{size['views']} view{'s' * (size['views'] > 1)}",
        about["mode"],
        f"{_range(about['references'])} reference{'s' * (about['references'] != [1])}",
        f"population {_range(about['population'])}",
    ]
    return "\n".join([", ".join(words), *_accuracies(about.get("accuracy"))])


def _accuracies(found: dict[str, Any] | None) -> Iterator[str]:
    """Accuracy of the target beside that of its references."""
    if found and found["measure"] == "accuracy":
        target, others = (_accuracy(found[name]) for name in ("target", "references"))
        yield f"accuracy on members and non-members: target {target}, references {others}"


def _accuracy(pair: dict[str, float | None]) -> str:
    return " and ".join("–" if value is None else f"{100 * value:.1f} %" for value in pair.values())


def _range(values: list[int]) -> str:
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"


def _spread(value: dict[str, float], with_std: bool) -> str:
    mean, std = 100 * value["mean"], 100 * value["std"]
    return f"{mean:.2f} ± {std:.2f}" if std and with_std else f"{mean:.2f}"


def _check(own: dict[str, Any]) -> str:
    """Share of the known non-members that an attack's own p-value flags, and whether its threshold stands."""
    if own["flagged"] is None:
        return "–"
    at = "" if own["level"] == 0.01 else f" at {100 * own['level']:g}%"
    return f"{'fails' if own['check_failed'] else 'not refuted'} ({100 * own['flagged']:.1f}{at})"
