"""What the training of the CIFAR-100 networks does: augmentation, 200 epochs, and images stored as JPEG.

    python -m experiments.protocols

The trainings have the same design, so that each target and its references have the same members in all of them. Kept
models (`kept.py`) are attacked, and `protocols.json` is written; `write_docs.py` puts the table into the page.
Models before ``first_target`` of `BASE` influenced the design of `pl-mia-eb`. Where a training has later ones, these
are the targets. Where it has none, `BASE` is not attacked by `pl-mia-eb`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from plmia.data.designs import MembershipDesign
from plmia.evaluation.targets import Setup, attack_targets
from plmia.signals.signals import Signals

from .kept import read_kept
from .measure import AUC, Measured, attacks_called, difference, in_words, of_result
from .script import end, say
from .setting import HERE, SIGNALS
from .whole import WHOLE

RESULT = HERE / "protocols.json"
BASE = "cifar100_wrn"
OURS = "pl-mia-eb"
ATTACKS = ("rmia", "lira-fixed", "pl-mia", OURS)
METRICS = (AUC, "TPR@1%", "TPR@0.1%")


def targets_of(signals: Signals, most: int) -> tuple[list[int], int]:
    """One target per split, and the number of references in pairs that each of them has, at most ``most``."""
    pairs = _pairs(signals)
    alone = sorted(set(range(1, signals.n_models)) - {model for pair in pairs for model in pair})
    n = min(2 * (len(pairs) - 1), most)
    # With a single pair, only models outside of it can be targets. Model 0 influenced the design of `pl-mia-eb`.
    return ([pair[0] for pair in pairs] + alone, n) if n else (alone, 2)


def _pairs(signals: Signals) -> list[tuple[int, int]]:
    return [(int(min(split)), int(max(split))) for split in signals.design.splits() if len(split) == 2]


def with_references(signals: Signals, target: int, n: int) -> Signals:
    """Signals of a target, model 0, and of the first n references in pairs."""
    pairs = [pair for pair in _pairs(signals) if target not in pair]
    return some_of(signals, [target, *(model for pair in pairs for model in pair)][: n + 1])


def some_of(signals: Signals, models: list[int]) -> Signals:
    """Signals of some models, in this order."""
    return Signals(signals.values[models], MembershipDesign(signals.design.matrix[models]), signals.labels)


def measure(signals: Signals, targets: list[int], n: int, names: tuple[str, ...] = ATTACKS) -> dict[str, Measured]:
    """Metrics of each attack over targets."""
    found = {name: Measured() for name in names}
    for target in targets:
        some, setup = with_references(signals, target, n), Setup(references=n, align="never")
        for result in attack_targets(some, attacks_called(*names), [0], setup, refused=lambda _name, _error: None):
            found[result.scores.attack].add(of_result(result))
    return {name: each for name, each in found.items() if each.values}


def compared(name: str, most: int = 64) -> dict[str, Any]:
    """Attack models of a training and those of `BASE` that have the same members."""
    signals, about = read_kept(SIGNALS / name)
    every, base_about = read_kept(SIGNALS / BASE)
    same = some_of(every, list(range(signals.n_models)))
    if not np.array_equal(same.design.matrix, signals.design.matrix):
        raise ValueError(f"the models of {name} do not have the members of {BASE}")
    targets, n = targets_of(signals, most)
    late = [target for target in targets if target >= WHOLE[BASE].first_target]
    targets = late or targets
    found = measure(signals, targets, n)
    before = measure(same, targets, n, ATTACKS if late else tuple(name for name in ATTACKS if name != OURS))
    say(f"{name}: {n} references, targets {targets}")
    return {
        "training": WHOLE[name].data.partition(", ")[2],
        "models": len(about["models"]),
        "held_out": [_accuracy(about), _accuracy(base_about, len(about["models"]))],
        "references": n,
        "targets": targets,
        "means": {
            attack: [_means(each[attack]) if attack in each else None for each in (found, before)] for attack in found
        },
        "difference": {
            attack: in_words(AUC, difference(found[attack], base, AUC)).partition(": ")[2]
            for attack, base in before.items()
        },
    }


def _means(measured: Measured) -> list[float]:
    return [round(measured.mean(metric) or 0, 2) for metric in METRICS]


def _accuracy(about: dict[str, Any], models: int | None = None) -> float:
    made = list(about["models"].values())[:models]
    return round(100 * float(np.mean([each["test_accuracy"] for each in made])), 2)


def table() -> str:
    """Table of the page: accuracy on held-out images and power of the attacks, by training."""
    lines = [
        f"| training | models | held out | references, targets | {' | '.join(f'`{name}`' for name in ATTACKS)} |",
        f"| --- | ---: | ---: | ---: |{' ---: |' * len(ATTACKS)}",
    ]
    for row in measured().values():
        for i, training in enumerate((row["training"], "the same members, 100 epochs with augmentation")):
            cells = [_cell(row["means"], attack, i) for attack in ATTACKS]
            head = f"| {training} | {row['models']} | {row['held_out'][i]:.1f} %"
            lines.append(f"{head} | {row['references']}, {len(row['targets'])} | {' | '.join(cells)} |")
    return "\n".join(f"  {line}" for line in lines)


def measured() -> dict[str, dict[str, Any]]:
    """Committed results by training."""
    return {row["training"]: row for row in json.loads(RESULT.read_text(encoding="utf-8"))}


def _cell(means: dict[str, Any], attack: str, i: int) -> str:
    values = means.get(attack, (None, None))[i]
    return "–" if values is None else " / ".join(f"{value:.1f}" for value in values)


def main() -> None:
    """Measure all trainings that are kept."""
    names = [name for name in WHOLE if name.startswith(f"{BASE}_") and (SIGNALS / name / "about.json").exists()]
    rows = [compared(name) for name in names]
    RESULT.write_text(f"{json.dumps(rows, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    end(main)
