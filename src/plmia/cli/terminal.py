"""What the command prints: consoles, warnings, the verdict, the table of results and the notes."""

from __future__ import annotations

import json
import logging
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
from rich.console import Console
from rich.table import Table

from plmia.auditing.progress import open_console, stderr
from plmia.errors import Note, PlmiaWarning, percent
from plmia.evaluation.accusations import PRIORS
from plmia.evaluation.metrics import FPRS, tpr_label
from plmia.results.result import About, Mean, MeanTpr, OwnPValue, RunResult
from plmia.results.saved import MAIN_ATTACKS, main_attacks, unquoted_doubts
from plmia.results.wording import exposure_lines, recipes

if TYPE_CHECKING:
    from plmia.auditing.score import Audit

# Number of notes that are shown without --verbose, and codes of notes that are then left to the report.
# Those on how a table was read were printed as warnings.
MAX_NOTES, REPORT_ONLY = 3, {"combined-p-value", "table-read"}
# A longer sentence quotes a long value of a file: its middle is left out.
MAX_SENTENCE = 2_000
NAMES_MEMBERS = "These files name members of the training data: keep them as safe as the data."


def stdout() -> Console:
    """Return standard output."""
    # A file or a pipe has no width at which rows of a table should break.
    return open_console(sys.stdout, None if sys.stdout.isatty() else 200)


def print_line(text: str, style: str | None = None) -> None:
    """Print one line on standard output as it is, whatever brackets are in it and however long it is."""
    stdout().print(text, style=style, markup=False, soft_wrap=True)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 0) -> Table:
    """Return a table without lines, whose first ``left`` columns are aligned to the left, the others to the right."""
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    for row in rows:
        table.add_row(*row)
    return table


def say(sentence: str) -> None:
    """Print one line on standard error, whatever brackets and line breaks are in it; of a long one, both ends."""
    line = " ".join(sentence.split())
    if len(line) > MAX_SENTENCE:
        half = MAX_SENTENCE // 2
        line = f"{line[:half]} … {line[-half:]}"
    stderr().print(f"plmia: {line}", markup=False, soft_wrap=True)


@contextmanager
def plain_warnings(quiet: bool = False) -> Iterator[None]:
    """Print warnings of plmia as one line each, without the place in the code.

    If ``quiet``, no warning is printed and nothing below an error is logged, by any library or worker process.
    """
    options, silenced = list(sys.warnoptions), logging.root.manager.disable
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
            sys.warnoptions.append("ignore")  # processes that are started now inherit it
            logging.disable(max(silenced, logging.WARNING))  # likewise
        else:
            warnings.simplefilter("always", PlmiaWarning)
        others = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if quiet:
                return  # a library set a filter of its own
            if issubclass(category, PlmiaWarning):
                say(str(message))
            else:
                others(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        try:
            yield
        finally:
            sys.warnoptions[:] = options
            logging.disable(silenced)


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Send what other code prints to standard error: standard output has the result only.

    Code of users may print, in training and in attacks, and Ray prints when a node dies.
    """
    with redirect_stdout(sys.stderr):
        yield


def print_result(
    audit: Audit, asked: Sequence[str] | None, as_json: bool = False, verbose: bool = False, quiet: bool = False
) -> None:
    """Print the result of a run as the options say; ``asked`` are the attacks that were asked for by name."""
    if as_json:
        click.echo(json.dumps(audit.result.to_json(), indent=1))
    elif not quiet:
        show_result(audit.result, audit.folder, asked=asked or (), verbose=verbose)


def show_result(result: RunResult, folder: Path, *, asked: Sequence[str] = (), verbose: bool = False) -> None:
    """Print the verdict, the table of results, the notes and the files; if ``verbose``, all attacks and notes."""
    print_line(result.verdict.text, style="bold")
    for line in _headline(result.about, verbose):
        print_line(line)
    console = stdout()
    console.print(fitting_table(result, console, asked, verbose))
    for line in exposure_lines(result, verbose=verbose or tuple(a.prior for a in result.accusations) != PRIORS):
        print_line(line)
    hidden = 0 if verbose else len(result.attacks) - len(_shown_attacks(result, asked))
    others = [note for note in result.notes if note.severity == "info"]
    notes = [*unquoted_doubts(result.verdict, result.notes), *others]
    for line in shown_notes([("", note) for note in notes], verbose, hidden):
        print_line(line)
    print_line(NAMES_MEMBERS)
    names = ("report.html", "metrics.json", "scores.npz", "people.csv", "records.csv", "trainings.csv")
    print_line("  ".join(str(folder / name) for name in names if (folder / name).exists()))
    if not (folder / "report.html").exists():
        print_line(f"plmia report {shlex.quote(str(folder))} writes the report.")


def shown_notes(notes: Sequence[tuple[str, Note]], verbose: bool, hidden_attacks: int = 0) -> list[str]:
    """Notes as lines, each behind a prefix: all if ``verbose``, else the first ones and how many more there are.

    The last line also counts ``hidden_attacks``, those that ran and are not in the table.
    """
    brief = [(prefix, note) for prefix, note in notes if note.code not in REPORT_ONLY][:MAX_NOTES]
    shown = notes if verbose else brief
    lines = [f"- {prefix}{_severity(note, verbose)}{note.text}" for prefix, note in shown]
    counts = {"attack": hidden_attacks, "note": len(notes) - len(shown)}
    more = ", ".join(f"{n} more {name}{'s' * (n > 1)}" for name, n in counts.items() if n)
    return [*lines, f"- {more}: --verbose shows all."] if more else lines


def _severity(note: Note, verbose: bool) -> str:
    return f"{note.severity} ({note.code}): " if verbose or note.severity != "info" else ""


def fitting_table(result: RunResult, console: Console, asked: Sequence[str] = (), verbose: bool = False) -> Table:
    """Return the table of results, without spreads over targets where the console is too narrow for them."""
    # Measured where there is any room: a console cuts what it measures to its own width.
    wide = console.options.update(max_width=10_000)
    table = _table(result, asked, verbose, spread=True)
    if console.measure(table, options=wide).maximum <= console.width:
        return table
    return _table(result, asked, verbose, spread=False)


def _table(result: RunResult, asked: Sequence[str], verbose: bool, spread: bool) -> Table:
    names = list(result.attacks) if verbose else _shown_attacks(result, asked)
    attacks = [result.attacks[name] for name in names]
    columns = {"attack": [name.replace("[", r"\[") for name in names]}
    columns["AUC"] = [_spread(attack.auc, spread) for attack in attacks]
    for fpr in sorted(FPRS, reverse=True):
        rates = [attack.tpr[fpr] for attack in attacks]
        columns[tpr_label(fpr)] = [_spread(rate, spread) if rate.resolved else "–" for rate in rates]
    columns["ε ≥"] = [f"{attack.epsilon.low:.2f}" for attack in attacks]
    if verbose:
        columns["own p-value"] = [_own_p_value(attack.own_p_value_on_population) for attack in attacks]
    filled = {name: cells for name, cells in columns.items() if set(cells) != {"–"}}
    return make_table(list(filled), zip(*filled.values(), strict=True), left=1)


def _shown_attacks(result: RunResult, asked: Sequence[str]) -> list[str]:
    """At most five attacks: those that were asked for, or usual ones first; the verdict's is among them."""
    names, best = list(result.attacks), result.verdict.attack
    if not asked:
        return main_attacks(names, best)
    shown = names[: len(MAIN_ATTACKS)]
    return shown if best in shown else [*shown[:-1], best]


def _headline(about: About, verbose: bool) -> Iterator[str]:
    """What was run, and the accuracy of the target beside that of its references; if ``verbose``, with their range."""
    targets, views = len(about.targets), about.signals.views
    yield ", ".join(
        [
            f"{targets} target{'s' * (targets > 1)}",
            *([f"{about.units:,} people"] if about.people else []),
            *([f"{about.groups:,} people (one record each)"] if about.one_record_each else []),
            f"{about.signals.points:,} records",
            f"{views} view{'s' * (views > 1)}",
            *(["no references"] if about.screening else [about.mode, _references(about)]),
            f"{_range(about.population)} known non-members as the population; rates in percent",
        ]
    )
    if about.reference_recipe is not None:
        yield recipes(about) or ""
    accuracy = about.accuracy
    if accuracy is not None and (verbose or accuracy.measure == "accuracy") and accuracy.target.members is not None:
        target = f"{percent(accuracy.target.members)} and {percent(accuracy.target.non_members)}"
        members, others = (accuracy.of_references(side, ranged=verbose) for side in ("members", "non_members"))
        beside = "" if about.screening else f", references {members} and {others}"
        yield f"{accuracy.measure} on members and non-members: target {target}{beside}"


def _references(about: About) -> str:
    return f"{_range(about.references)} reference{'s' * (about.references != (1,))}"


def _range(values: Sequence[int]) -> str:
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"


def _spread(value: Mean | MeanTpr, with_std: bool) -> str:
    mean, std = 100 * value.mean, 100 * value.std
    return f"{mean:.2f} ± {std:.2f}" if std and with_std else f"{mean:.2f}"


def _own_p_value(own: OwnPValue) -> str:
    """Share of the known non-members that an attack's own p-value flags at its level, and whether that is too many."""
    if own.flagged is None:
        return "–"
    flagged = f"flags {100 * own.flagged:.1f}% at {100 * own.level:g}%"
    return f"{flagged}, miscalibrated" if own.check_failed else flagged
