"""The `plmia` command; configuration stops here."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from pathlib import Path
from typing import Any, cast

import click
from rich.console import Console
from rich.table import Table

from plmia import __version__
from plmia.attacks import ATTACKS, find_attack
from plmia.errors import AttackError, PlmiaError
from plmia.evaluation import Setup, attack_targets
from plmia.progress import Meter
from plmia.results import ResultFolder, Summary
from plmia.signals import Scale, Signals, read_signals
from plmia.view import Mode

SHOWN_FPRS = ("0.01", "0.001", "0.0001", "0")


class OneSentence(click.Group):
    """Commands whose bad input ends with one sentence and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except PlmiaError as error:
            # One line, whatever a user's own file or path puts into the message.
            sentence = " ".join(str(error).split())
            Console(stderr=True, highlight=False, soft_wrap=True, emoji=False).print(f"plmia: {sentence}", markup=False)
            ctx.exit(2)


@click.group(cls=OneSentence, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="plmia")
def main() -> None:
    """Audit machine-learning models for membership leakage, with error rates that hold.

    \b
    Examples:
      plmia attacks                       what can be run
      plmia score signals.npz -o out      every attack on signals that exist already
    """  # noqa: D301 - click wants the control character itself


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def attacks(as_json: bool) -> None:
    """List the attacks.

    \b
    Example:
      plmia attacks --json
    """  # noqa: D301 - click wants the control character itself
    if as_json:
        click.echo(
            json.dumps(
                {
                    name: {"statistic": str(a.statistic), "calibration": str(a.calibration), "note": a.note}
                    for name, a in ATTACKS.items()
                },
                indent=1,
            )
        )
        return
    table = Table(box=None, pad_edge=False)
    for column in ("attack", "statistic", "calibration", ""):
        table.add_column(column)
    for name, attack in ATTACKS.items():
        table.add_row(name, type(attack.statistic).__name__, type(attack.calibration).__name__, attack.note)
    _stdout().print(table)


@main.command()
@click.argument("signals_file", metavar="SIGNALS", type=click.Path(path_type=Path))
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
@click.option(
    "--attack", "names", multiple=True, metavar="NAME", help="Attack to run, or FILE.py:NAME; all by default."
)
@click.option(
    "--mode",
    type=click.Choice(["online", "offline"]),
    default="online",
    show_default=True,
    help="Offline uses OUT references only.",
)
@click.option("--references", type=click.IntRange(min=1), metavar="N", help="References a target; all by default.")
@click.option(
    "--population",
    type=click.IntRange(min=2),
    metavar="N",
    help="Non-members to calibrate with; a quarter by default (at least 100, at most half).",
)
@click.option(
    "--scale",
    type=click.Choice(["auto", "logit", "probability"]),
    default="auto",
    show_default=True,
    help="What the signals are; auto refuses what looks like probabilities.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of everything random.")
@click.option("--json", "as_json", is_flag=True, help="Print metrics.json instead of a table.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def score(
    signals_file: Path,
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

    SIGNALS is an npz with `signals` (floats [models, points] or [models, points, views], logit-scaled true-label
    confidences), `membership` (bool [models, points], or bits packed along points together with `n_points`) and
    optionally `labels` [points]. Writes metrics.json and scores.npz.

    \b
    Examples:
      plmia score signals.npz -o out
      plmia score signals.npz -o out --target all --references 64
      plmia score signals.npz -o out --mode offline --attack pl-mia --attack rmia
      plmia score signals.npz -o out --attack my_attack.py:MINE
    """  # noqa: D301 - click wants the control character itself
    setup = Setup(cast("Mode", mode), references, population, seed)
    chosen = [find_attack(name) for name in names or ATTACKS]
    repeated = [attack.name for i, attack in enumerate(chosen) if attack.name in {a.name for a in chosen[:i]}]
    if repeated:
        raise AttackError(
            f"two attacks are called {repeated[0]!r}, so their results would overwrite each other: rename one of them, "
            "or name it once"
        )
    signals = read_signals(signals_file, cast("Scale", scale))
    numbers = _target_numbers(targets, signals)
    summary = Summary([attack.name for attack in chosen])
    errors = Console(stderr=True, highlight=False)
    total = len(numbers) * len(chosen) * signals.n_points
    with ResultFolder(folder) as results, Meter("scoring", total, None if quiet else errors) as meter:
        for result in attack_targets(signals, chosen, numbers, setup, meter.tick):
            results.add(result)
            summary.add(result)
        metrics = summary.to_json(_about(signals_file, signals, numbers, setup))
        results.finish(metrics)
    if as_json:
        click.echo(json.dumps(metrics, indent=1))
    elif not quiet:
        _show(metrics, folder)


def _target_numbers(targets: tuple[str, ...], signals: Signals) -> list[int]:
    if "all" in targets:
        return list(range(signals.n_models))
    numbers = set()
    for target in targets:
        try:
            numbers.add(int(target))
        except ValueError as error:
            raise PlmiaError(
                f"--target {target!r} is neither a number nor 'all': give 0 to {signals.n_models - 1}"
            ) from error
    return sorted(numbers)


def _about(file: Path, signals: Signals, targets: list[int], setup: Setup) -> dict[str, Any]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {
        "plmia": __version__,
        "signals": {
            "sha256": digest,
            "models": signals.n_models,
            "points": signals.n_points,
            "views": signals.n_views,
            "clipped": signals.n_clipped,
        },
        "mode": setup.mode,
        "targets": targets,
        "seed": setup.seed,
    }


def _stdout() -> Console:
    """Return standard output; what its encoding cannot write appears as a question mark."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # A file or a pipe has no width at which rows of a table should break.
    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 200)


def _show(metrics: dict[str, Any], folder: Path) -> None:
    """Print the table of results and the notes."""
    console, about = _stdout(), metrics["about"]
    size = about["signals"]
    console.print(
        f"{len(about['targets'])} target(s), {size['points']} points, {size['views']} view(s), {about['mode']}, "
        f"{'-'.join(map(str, about['references']))} references, population {'-'.join(map(str, about['population']))}"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("attack")
    table.add_column("AUC", justify="right")
    for fpr in SHOWN_FPRS:
        table.add_column(f"TPR@{100 * float(fpr):g}%", justify="right")
    for name, attack in metrics["attacks"].items():
        cells = [_spread(attack["auc"])]
        cells += [_spread(attack["tpr"][f]) if attack["tpr"][f]["resolved"] else "–" for f in SHOWN_FPRS]
        table.add_row(name, *cells)
    console.print(table)
    for note in metrics["notes"]:
        console.print(f"- {note}", markup=False, soft_wrap=True)
    console.print(f"{folder / 'metrics.json'}  {folder / 'scores.npz'}", markup=False, soft_wrap=True)


def _spread(value: dict[str, float]) -> str:
    mean, std = 100 * value["mean"], 100 * value["std"]
    return f"{mean:.2f} ± {std:.2f}" if std else f"{mean:.2f}"
