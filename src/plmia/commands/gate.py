"""`plmia gate`: pass or fail an audit in a release pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import click

from plmia.errors import PlmiaError
from plmia.intervals import Interval, tpr_interval
from plmia.saved import SavedResults
from plmia.terminal import stdout
from plmia.verdict import strongest

FAILED = 3


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--max-tpr", required=True, type=float, metavar="RATE", help="Largest share of members found: 0.02.")
@click.option("--at-fpr", required=True, type=float, metavar="RATE", help="At this false-positive rate: 0.001.")
@click.option("--attack", "names", multiple=True, metavar="NAME", help="Attack that must stay below; all by default.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="That nothing bad passes.")
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
    as_json: bool,
    quiet: bool,
) -> None:
    """Fail with exit code 3 if an audited model may leak more than allowed.

    RUN is the output folder of plmia audit or plmia score. The gate passes (exit code 0) only if every attack on every
    target is shown to find at most --max-tpr of the members at a false-positive rate of --at-fpr: the upper end of its
    interval counts, and all intervals hold at once. Fewer non-members than the rate needs are an error (exit code 2).

    \b
    Examples:
      plmia gate run --max-tpr 0.02 --at-fpr 0.001
      plmia gate run --max-tpr 0.05 --at-fpr 0.01 --attack pl-mia --json
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
    found = _intervals(saved, list(dict.fromkeys(names)) or saved.attacks, at_fpr, confidence)
    attack, target = worst_of = strongest(found, lambda key: (found[key][1].high, found[key][0], found[key][2]))
    tpr, interval, _ = found[worst_of]
    passed = interval.high <= max_tpr
    text = (
        f"{'PASS' if passed else 'FAIL'}: with at most {100 * at_fpr:g} % false accusations, {attack} identifies "
        f"{100 * tpr:.2f} % of the training records of target {target}, at most {100 * interval.high:.2f} % with "
        f"{100 * confidence:g} % confidence; {100 * max_tpr:g} % are allowed."
    )
    if as_json:
        worst = {"attack": attack, "target": target, "tpr": tpr, "low": interval.low, "high": interval.high}
        click.echo(json.dumps({"passed": passed, "max_tpr": max_tpr, "at_fpr": at_fpr, "worst": worst, "text": text}))
    elif not quiet:
        stdout().print(text, markup=False, soft_wrap=True)
    if not passed:
        ctx.exit(FAILED)


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
