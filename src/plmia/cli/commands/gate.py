"""`plmia gate`: pass or fail an audit in a release pipeline."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path

import click

from plmia.attacks.attack import ATTACKS
from plmia.cli.terminal import stdout
from plmia.errors import CODES, SIZE, Note, PlmiaError, doubts
from plmia.evaluation.intervals import Interval, tpr_interval
from plmia.results.saved import SavedResults
from plmia.results.verdict import status_of, strongest
from plmia.results.wording import NO_REFERENCES_USED

UNDECIDED, FAILED = 2, 3


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--max-tpr", required=True, type=float, metavar="RATE", help="Largest share of members found: 0.02.")
@click.option("--at-fpr", required=True, type=float, metavar="RATE", help="At this false-positive rate: 0.001.")
@click.option("--attack", "names", multiple=True, metavar="NAME", help="Attack that must stay below; all by default.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Confidence level of the upper bound.")
@click.option(
    "--accept",
    "accepted",
    multiple=True,
    metavar="CODE",
    help="Pass although this check failed; may be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a sentence.")
@click.option("--quiet", is_flag=True, help="Print nothing: the exit code tells.")
@click.pass_context
def gate(
    ctx: click.Context,
    run: Path,
    max_tpr: float,
    at_fpr: float,
    names: tuple[str, ...],
    confidence: float,
    accepted: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Fail with exit code 3 if an audited model may leak more than allowed.

    RUN is the output folder of plmia audit or plmia score. The gate passes (exit code 0) only if every attack on every
    target is shown to find at most --max-tpr of the members at a false-positive rate of --at-fpr: the upper end of its
    interval counts, and all intervals hold at once. An audit that is inconclusive or invalid, or a pass that a failed
    check puts in doubt, cannot be decided (exit code 2), unless --accept names the checks. Whether there are records
    enough is decided by the limit itself; fewer non-members than the rate needs are an error (exit code 2).

    \b
    Examples:
      plmia gate run --max-tpr 0.02 --at-fpr 0.001
      plmia gate run --max-tpr 0.05 --at-fpr 0.01 --attack pl-mia --json
      plmia gate run --max-tpr 0.05 --at-fpr 0.01 --accept unlike-references
    """  # noqa: D301 - click wants the control character itself
    for name, rate in (("--max-tpr", max_tpr), ("--at-fpr", at_fpr), ("--confidence", confidence)):
        if not 0 < rate < 1:
            raise PlmiaError(f"{name} is {rate:g}: give a rate between 0 and 1 (2 % is 0.02)")
    if max_tpr <= at_fpr:
        raise PlmiaError(
            f"--max-tpr {max_tpr:g} is not above --at-fpr {at_fpr:g}, which guessing finds, so no model would pass: "
            "allow more"
        )
    saved = SavedResults(run)
    saved.require_verified()
    _check_accepted(accepted, saved)
    found = _intervals(saved, list(dict.fromkeys(names)) or saved.attacks, at_fpr, confidence)
    attack, target = worst_of = strongest(found, lambda key: (found[key][1].high, found[key][0], found[key][2]))
    tpr, interval, _ = found[worst_of]
    within = interval.high <= max_tpr
    # Whether there are records enough is what the limit itself decides, at the rate that was asked for.
    weak = [NO_REFERENCES_USED] if names and all(_uses_no_references(name) for name in names) else []
    open_doubts = [note for note in doubts([*saved.notes, *weak]) if note.code not in (*accepted, *SIZE)]
    status = status_of(bool(saved.metrics["verdict"]["beats_chance"]), open_doubts)
    # A failed check costs power: what exceeds the limit fails all the same, what stays below it proves nothing.
    undecided = status in ("invalid", "inconclusive") or (within and bool(open_doubts))
    outcome = "UNDECIDED" if undecided else "PASS" if within else "FAIL"
    if undecided:
        text = f"{outcome}: {_undecided(open_doubts)}"
    else:
        despite = f" (accepted: {', '.join(sorted(set(accepted)))})" if accepted else ""
        more = " The estimate is within the limit: more records may show it." if not within and tpr <= max_tpr else ""
        text = (
            f"{outcome}{despite}: at a false-positive rate of {100 * at_fpr:g} %, {attack} identifies "
            f"{100 * tpr:.2f} % of the training records of target {target}, at most {100 * interval.high:.2f} % with "
            f"{100 * confidence:g} % confidence; {100 * max_tpr:g} % are allowed.{more}"
        )
    if as_json:
        worst = {"attack": attack, "target": target, "tpr": tpr, "low": interval.low, "high": interval.high}
        shown = {
            "passed": outcome == "PASS",
            "outcome": outcome.lower(),
            "status": saved.metrics["verdict"]["status"],
            "doubts": [note.code for note in open_doubts],
            "accepted": sorted(set(accepted)),
            "max_tpr": max_tpr,
            "at_fpr": at_fpr,
            "worst": worst,
            "text": text,
        }
        click.echo(json.dumps(shown))
    elif not quiet:
        stdout().print(text, markup=False, soft_wrap=True)
    if outcome != "PASS":
        ctx.exit(FAILED if outcome == "FAIL" else UNDECIDED)


def _uses_no_references(attack: str) -> bool:
    return attack in ATTACKS and not ATTACKS[attack].uses_references


def _undecided(notes: Sequence[Note]) -> str:
    """Why a release cannot be decided, and what to do."""
    if notes[0].severity == "invalid":
        return f"{notes[0].text} Correct that and audit again (check {notes[0].code})."
    codes = ", ".join(dict.fromkeys(note.code for note in notes))
    return f"{notes[0].text} Correct that and audit again; if you can defend it, give --accept ({codes})."


def _check_accepted(codes: Sequence[str], saved: SavedResults) -> None:
    """Refuse codes that no check has, and say which of them are in doubt here."""
    for code in codes:
        if code not in CODES:
            near = difflib.get_close_matches(code, CODES, 1)
            here = ", ".join(note.code for note in doubts(saved.notes)) or "none"
            raise PlmiaError(
                f"there is no check {code!r}{f', did you mean {near[0]!r}?' if near else ''}: in doubt here: {here}"
            )


def _intervals(
    saved: SavedResults, attacks: list[str], fpr: float, confidence: float
) -> dict[tuple[str, int], tuple[float, Interval, float]]:
    """TPR of each attack on each target with an interval, which hold together with ``confidence``, and the AUC."""
    each = 1 - (1 - confidence) / (len(attacks) * len(saved.targets))
    found = {}
    for attack in attacks:
        for target in saved.targets:
            roc = saved.roc(attack, target)
            found[attack, target] = roc.tpr_at(fpr).tpr, tpr_interval(roc, fpr, each), roc.auc
    return found
