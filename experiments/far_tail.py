"""Which part of pl-mia-eb costs power in the far tail? Its parts, one at a time, in settings where it is behind.

    python -m experiments.far_tail measure    attack with each part changed, and write far_tail.json
    python -m experiments.far_tail write      table of docs/explanation/which-attack.md, from far_tail.json

Nothing is chosen by these numbers: the targets are those that are reported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from plmia.attacks import empirical_bayes
from plmia.attacks.attack import Attack
from plmia.attacks.empirical_bayes import EmpiricalBayesLR
from plmia.attacks.view import Mode
from plmia.evaluation.targets import AttackResult, attack_targets

from .cost import json_text, markdown_table, with_tables
from .rivals import ALL, METRICS, OURS, PAGE, planned, read_set, rows_of
from .script import end, say
from .setting import HERE, SIGNALS, Source

RESULT = HERE / "far_tail.json"
SETTINGS: tuple[tuple[str, Mode, int], ...] = (
    ("cifar100_wrn", "offline", 2),
    ("cifar100_wrn", "offline", 8),
    ("adult_mlp", "offline", 4),
)
# Its choices, made for all targets instead of by held-out references; the parameters of `EmpiricalBayesLR`.
CHANGES: dict[str, dict[str, Any]] = {
    "heavy tails (6 degrees of freedom)": {"tail": 6.0},
    "Gaussian tails": {"tail": 1000.0},
    "ratio not held beyond its turn": {"hold": 0.0},
    "no bend": {"bend": np.inf},
    "bend at 8": {"bend": 8.0},
    "constant trends": {"most_knots": 1},
}
ONE_COORDINATE = "first coordinate of the views only"
RIVALS = ("bavaria-t", "info-rmia")


def variants() -> list[Attack]:
    """Attacks that differ from `OURS` in one choice."""
    return [replace(ALL[OURS], name=name, statistic=EmpiricalBayesLR(**given)) for name, given in CHANGES.items()]


def attacked(source: Source, mode: Mode, n: int) -> Iterator[AttackResult]:
    """Attack all targets with every change, and by two rivals."""
    setup, attacks = source.setup(mode, n), [ALL[OURS], *variants(), *(ALL[rival] for rival in RIVALS)]
    yield from attack_targets(source.signals, attacks, source.targets, setup, refused=lambda *_: None)
    if source.signals.n_views > 1:
        # Fits then keep only the coordinate that tells members from non-members best.
        with mock.patch.object(empirical_bayes, "MIN_DIVERGENCE", 1.0):
            for result in attack_targets(source.signals, [ALL[OURS]], source.targets, setup):
                yield replace(result, scores=replace(result.scores, attack=ONE_COORDINATE))


def measure(name: str, mode: Mode, n: int) -> dict[str, Any]:
    """Measure what every change adds on the targets of a set."""
    source = read_set(name, SIGNALS, len(planned(name)[1]))
    rows = list(rows_of(attacked(source, mode, n), len(source.targets)))
    say(f"{source.data}, {mode}, {n} references")
    return {"data": source.data, "mode": mode, "references": n, "targets": list(source.targets), "rows": rows}


def table(found: dict[str, Any]) -> str:
    """What every change adds, in points, for each metric."""
    lines = [
        (f"{each['data']}, {each['mode']}", each["references"], _name(row["attack"]), *map(_gain, row["ahead"]))
        for each in found.values()
        for row in each["rows"]
        if "ahead" in row
    ]
    return markdown_table(("references", "instead", *METRICS), lines)


def _name(attack: str) -> str:
    return f"`{attack}`" if attack in ALL else attack


def _gain(ahead: list[float] | None) -> str:
    """Gain over `OURS` with its interval, in bold if that excludes 0; a dash if the rate is not resolved."""
    if ahead is None:
        return "–"
    gain, half = -ahead[0] + 0.0, (ahead[2] - ahead[1]) / 2
    text = f"{gain:+.2f} ± {half:.2f}"
    return f"**{text}**" if abs(gain) > half else text


def main(task: str) -> None:
    """Run one task."""
    if task == "measure":
        found = {" ".join(map(str, setting)): measure(*setting) for setting in SETTINGS}
        RESULT.write_text(f"{json_text(found)}\n", encoding="utf-8")
        return
    text = PAGE.read_text(encoding="utf-8")
    made = {"parts": table(json.loads(RESULT.read_text(encoding="utf-8")))}
    PAGE.write_text(with_tables(text, made, "far tail"), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] not in (["measure"], ["write"]):
        sys.exit("python -m experiments.far_tail measure | write")
    end(main, sys.argv[1])
