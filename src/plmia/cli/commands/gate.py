"""`plmia gate`: pass or fail an audit in a release pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import click

from plmia.auditing import gate as verb
from plmia.cli.commands.options import PATH, json_option
from plmia.cli.terminal import print_line
from plmia.data.files import make_private, replacing
from plmia.errors import OutputError, PlmiaError
from plmia.evaluation.targets import Unit

EXIT_CODES: dict[verb.Outcome, int] = {"pass": 0, "undecided": 2, "fail": 3}


@click.command()
@click.argument("run", metavar="RUN", type=PATH)
@click.option("--max-tpr", required=True, type=float, metavar="RATE", help="Largest share of members found: 0.02.")
@click.option("--at-fpr", required=True, type=float, metavar="RATE", help="At this false-positive rate: 0.001.")
@click.option("--attack", "attacks", multiple=True, metavar="NAME", help="Attack that must stay below; all by default.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Confidence level of the upper bound.")
@click.option(
    "--accept", multiple=True, metavar="CODE", help="Pass although this check failed; may be given several times."
)
@click.option(
    "--unit",
    type=click.Choice(get_args(Unit)),
    help="What the limit is about: refuse results that judge the other, records or people (group).",
)
@click.option(
    "--by",
    multiple=True,
    metavar="COLUMN",
    help="Every subgroup of this column must stay below, too; may be given several times.",
)
@click.option("--junit", type=PATH, metavar="FILE", help="Write the outcome as a test report in JUnit's XML, too.")
@json_option("a sentence")
@click.option("--verbose", is_flag=True, help="Print every check that failed, too.")
@click.option("--quiet", is_flag=True, help="Print nothing: the exit code tells.")
@click.pass_context
def gate(
    ctx: click.Context,
    /,
    run: Path,
    max_tpr: float,
    at_fpr: float,
    confidence: float,
    junit: Path | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Fail with exit code 3 if an audited model may leak more than allowed.

    RUN is the output folder of plmia audit or plmia score. The gate passes (exit code 0) only if every attack on every
    target is shown to find at most --max-tpr of the members at a false-positive rate of --at-fpr: the upper end of its
    interval counts, and all intervals hold at once. An audit that is inconclusive or invalid, or a pass that a failed
    check puts in doubt, cannot be decided (exit code 2), unless --accept names the checks. Whether there are records
    enough is decided by the limit itself; with fewer non-members than the rate needs, it cannot be decided, either.

    \b
    Examples:
      plmia gate run --max-tpr 0.02 --at-fpr 0.001
      plmia gate run --max-tpr 0.05 --at-fpr 0.01 --junit gate.xml
      plmia gate run --max-tpr 0.05 --at-fpr 0.01 --unit group --by sex
      plmia gate run --max-tpr 0.05 --at-fpr 0.01 --attack pl-mia --json
      plmia gate run --max-tpr 0.05 --at-fpr 0.01 --accept unlike-references
    """  # noqa: D301 - click wants the control character itself
    try:
        verb.require_limits(**{"--max-tpr": max_tpr, "--at-fpr": at_fpr, "--confidence": confidence})
        decision = verb.gate(run, max_tpr=max_tpr, at_fpr=at_fpr, confidence=confidence, **options)
    except PlmiaError as error:
        # Otherwise a report of an earlier release would remain.
        _write(junit, verb.junit("undecided", str(error)))
        raise
    _write(junit, decision.to_junit())
    if as_json:
        click.echo(json.dumps(decision.to_json()))
    elif not quiet:
        print_line(decision.text)
        for note in decision.doubts if verbose else ():
            print_line(f"- {note.severity} ({note.code}): {note.text}")
    ctx.exit(EXIT_CODES[decision.outcome])


def _write(path: Path | None, report: bytes) -> None:
    if path is None:
        return
    try:
        make_private(path.parent)
        with replacing(path) as file:
            file.write(report)
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror or error}): check its folder") from error
