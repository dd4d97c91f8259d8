"""What the command prints: consoles, the table of results and the notes."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

SHOWN_FPRS = ("0.01", "0.001", "0.0001", "0")


def stdout() -> Console:
    """Return standard output; what its encoding cannot write appears as a question mark."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # A file or a pipe has no width at which rows of a table should break.
    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 200)


def stderr() -> Console:
    """Return standard error."""
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="replace")
    return Console(stderr=True, highlight=False, emoji=False)


def show_metrics(metrics: dict[str, Any], folder: Path) -> None:
    """Print the table of results and the notes.

    Parameters
    ----------
    metrics : dict
        The contents of metrics.json.
    folder : Path
        Where the results are.
    """
    console, about = stdout(), metrics["about"]
    console.print(_headline(about), soft_wrap=True, markup=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("attack")
    table.add_column("AUC", justify="right")
    for fpr in SHOWN_FPRS:
        table.add_column(f"TPR@{100 * float(fpr):g}%", justify="right")
    table.add_column("check@1%", justify="right")
    for name, attack in metrics["attacks"].items():
        cells = [_spread(attack["auc"])]
        cells += [_spread(attack["tpr"][f]) if attack["tpr"][f]["resolved"] else "–" for f in SHOWN_FPRS]
        table.add_row(name, *cells, _check(attack["own_p_value_on_population"]))
    console.print(table)
    console.print(metrics["verdict"]["text"], soft_wrap=True, markup=False)
    for note in metrics["notes"]:
        console.print(f"- {note}", markup=False, soft_wrap=True)
    files = "  ".join(str(folder / name) for name in ("metrics.json", "scores.npz", "records.csv"))
    console.print(files, markup=False, soft_wrap=True)


def _headline(about: dict[str, Any]) -> str:
    size, targets = about["signals"], len(about["targets"])
    words = [
        f"{targets} target{'s' * (targets > 1)}",
        f"{size['points']:,} points",
        f"{size['views']} view{'s' * (size['views'] > 1)}",
        about["mode"],
        f"{_range(about['references'])} references",
        f"population {_range(about['population'])}",
    ]
    if about.get("train_accuracy") is not None:
        words.append(
            f"accuracy {100 * about['train_accuracy']:.1f} % train, {100 * about['test_accuracy']:.1f} % held out"
        )
    return ", ".join(words)


def _range(values: list[int]) -> str:
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"


def _spread(value: dict[str, float]) -> str:
    mean, std = 100 * value["mean"], 100 * value["std"]
    return f"{mean:.2f} ± {std:.2f}" if std else f"{mean:.2f}"


def _check(own: dict[str, Any]) -> str:
    """Share of the known non-members that an attack's own p-value flags, and whether its threshold stands."""
    if own["flagged"] is None:
        return "–"
    return f"{'fails' if own['check_failed'] else 'holds'} ({100 * own['flagged']:.1f})"
