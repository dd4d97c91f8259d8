"""Why is another attack ahead of pl-mia-eb offline? Its parts, one at a time, and oracles.

    python -m experiments.far_tail measure    attack with each part changed, and write far_tail.json
    python -m experiments.far_tail write      table of docs/explanation/which-attack.md, from far_tail.json

All models before ``first_target`` play the target; no page reports these as targets. Each model has its own draws of
references and known non-members. The metrics of a split (a model and its complement) are averaged, and intervals are
over splits. Choices of pl-mia-eb were made by these numbers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from plmia.attacks.attack import Attack
from plmia.attacks.empirical_bayes import EmpiricalBayesLR, Fit
from plmia.attacks.empirical_bayes.evidence import IN, OUT, collect, mean_probability
from plmia.attacks.empirical_bayes.model import Knots, Laws
from plmia.attacks.statistics import evaluate
from plmia.attacks.view import AttackView, Truth
from plmia.data.arrays import FloatArray
from plmia.evaluation.targets import Setup, attack_targets
from plmia.signals.signals import Signals

from .cost import json_text, markdown_table, with_tables
from .measure import Measured, difference, metrics_of, of_result
from .rivals import ALL, METRICS, OURS, PAGE, _title, read_set
from .script import end, say
from .setting import HERE, SIGNALS, Source

RESULT = HERE / "far_tail.json"
POOLING, BEND = "views as they are, not their mean probability", "bend at 3"
# Sets, numbers of references, draws of references for each model that plays the target, and the one change that is
# measured: "" for all. The other sets show what the changes that matter in the first two do elsewhere.
SETTINGS: tuple[tuple[str, int, int, str], ...] = (
    ("cifar100_wrn", 2, 1, ""),
    ("adult_mlp", 4, 6, ""),
    ("cifar10_wrn", 2, 6, POOLING),
    ("cifar10_wrn_plain", 2, 2, POOLING),
    ("cifar10_wrn", 4, 6, BEND),
    ("location_gbdt_3", 4, 2, BEND),
    ("location_gbdt_7", 4, 2, BEND),
    ("covertype_mlp", 4, 2, BEND),
    ("location_mlp", 4, 2, BEND),
)
# Seeds of draws are multiples of this, plus the number of the model.
SEED_STEP = 1000
# Its choices, made for all targets instead of by references in the role of the target: see `EmpiricalBayesLR`.
CHANGES: dict[str, dict[str, Any]] = {
    POOLING: {"pool": False},
    "heavy tails (6 degrees of freedom)": {"tail": 6.0},
    "Gaussian tails": {"tail": 1000.0},
    "ratio not held beyond its turn": {"hold": 0.0},
    "ratio always held": {"hold": 1.0},
    "no bend": {"bend": np.inf},
    "bend at 8": {"bend": 8.0},
    BEND: {"bend": 3.0},
    "constant trends": {"most_knots": 1},
}
# What the ends of trends do: see `Knots`.
EXTRAPOLATED = "trends extrapolated beyond the records they were fitted to"
CLIPPED = "trends constant beyond the outer knots"
KNOTS_AT_ENDS = "knots closer to the ends"
# Oracles know what an auditor does not.
ALL_NON_MEMBERS = "oracle: laws fitted to all non-members of the target"
ONLINE = "oracle: online, with the same references"
LAW_OF_MEMBERS = "oracle: each record's own law of members, from all references"
LAW_OF_NON_MEMBERS = "oracle: each record's own law of non-members, from all references"
RIVAL = "info-rmia"


def variants(n_views: int) -> list[Attack]:
    """Attacks that differ from `OURS` in one choice; one view per record cannot be pooled."""
    changes = {name: given for name, given in CHANGES.items() if n_views > 1 or "pool" not in given}
    return [replace(ALL[OURS], name=name, statistic=EmpiricalBayesLR(**given)) for name, given in changes.items()]


_place = Knots.place


def _knots_at_ends(covariate: FloatArray, most: int, mode: Any = "online") -> Knots:
    """Place as many knots as `Knots.place`, at quantiles that are dense at both ends."""
    n = len(_place(covariate, most, mode))
    levels = (1 - np.cos(np.pi * (np.arange(n) + 0.5) / n)) / 2
    return Knots(np.unique(np.quantile(covariate, levels)), float(covariate.min()), float(covariate.max()))


def ends() -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """What makes trends end in another way, by name."""
    return {
        EXTRAPOLATED: lambda: mock.patch.object(Knots, "within", lambda _, covariate: covariate),
        CLIPPED: lambda: mock.patch.object(Knots, "within", lambda knots, x: np.clip(x, knots.at[0], knots.at[-1])),
        KNOTS_AT_ENDS: lambda: mock.patch.object(Knots, "place", _knots_at_ends),
    }


def one_view(source: Source) -> Source:
    """Return the source with the mean probability in place of several views: the oracles are fitted to one view."""
    signals = source.signals
    if signals.n_views == 1:
        return source
    pooled = np.stack([mean_probability(values) for values in signals.values]).astype(signals.values.dtype)
    return replace(source, signals=Signals(pooled, signals.design, signals.labels))


def oracles(few: AttackView, every: AttackView, truth: Truth) -> dict[str, FloatArray]:
    """Return the statistic [records] of each oracle, from offline views with ``few`` and with all references."""
    offline = EmpiricalBayesLR().fit(few)
    own = EmpiricalBayesLR(bend=offline.coordinates.bend).fit(replace(every, mode="online"))
    known = replace(few, population=np.flatnonzero(~truth.members))
    found = {
        ALL_NON_MEMBERS: evaluate(EmpiricalBayesLR(), known)[:, 0],
        ONLINE: evaluate(EmpiricalBayesLR(), replace(few, mode="online"))[:, 0],
    }
    for name, side in ((LAW_OF_MEMBERS, IN), (LAW_OF_NON_MEMBERS, OUT)):
        found[name] = with_own_law(offline, own, few, every, side)
    return found


def with_own_law(offline: Fit, own: Fit, few: AttackView, every: AttackView, side: int) -> FloatArray:
    """Return the statistic [records] of the ``offline`` fit with the laws of one ``side`` from the fit ``own``."""
    fit = replace(offline, cross_fitted=None)
    evidence = collect(few.references, fit.coordinates, fit.n_pairs)
    laws = [each.laws(collect(v.references, each.coordinates, each.n_pairs)) for each, v in ((fit, few), (own, every))]
    taken = [laws[1 if each == side else 0] for each in (IN, OUT)]
    mixed = Laws(*(np.stack([vars(law)[name][i] for i, law in enumerate(taken)]) for name in vars(laws[0])))
    with mock.patch.object(Fit, "laws", return_value=mixed):
        return fit.statistic(fit.coordinates.of(few.target), evidence)


def attacked(
    source: Source, pooled: Source, n: int, target: int, seed: int
) -> Iterator[tuple[str, dict[str, float | None]]]:
    """Attack one model with every change, by a rival and by the oracles; yield names and metrics."""
    setup = Setup("offline", n, None, seed, align="never")
    for result in attack_targets(
        source.signals, [ALL[OURS], *variants(source.signals.n_views), ALL[RIVAL]], [target], setup
    ):
        yield result.scores.attack, of_result(result)
    view, truth = replace(result.view, known=None), result.truth
    for name, changed in ends().items():
        with changed():
            yield name, _metrics(evaluate(EmpiricalBayesLR(), view)[:, 0], truth)
    # The seed also draws the known non-members, so these are the same.
    few, every = (
        replace(next(attack_targets(pooled.signals, [ALL["attack-p"]], [target], each)).view, known=None)
        for each in (setup, replace(setup, references=None))
    )
    for name, statistic in oracles(few, every, truth).items():
        yield name, _metrics(statistic, truth)


def _metrics(statistic: FloatArray, truth: Truth) -> dict[str, float | None]:
    return metrics_of(statistic[truth.queries], truth.members[truth.queries])


def played(source: Source) -> list[list[int]]:
    """Models that play the target, those of one split together: all before ``first_target``."""
    first = int(source.about["first_target"])
    splits = ([int(model) for model in split if model < first] for split in source.signals.design.splits())
    return [split for split in splits if split]


def with_change(source: Source, n: int, target: int, seed: int, change: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Attack one model with one change; yield names and metrics."""
    attacks = [ALL[OURS], replace(ALL[OURS], name=change, statistic=EmpiricalBayesLR(**CHANGES[change])), ALL[RIVAL]]
    setup = Setup("offline", n, None, seed, align="never")
    for result in attack_targets(source.signals, attacks, [target], setup):
        yield result.scores.attack, of_result(result)


def measure(name: str, n: int, draws: int, change: str = "") -> dict[str, Any]:
    """Measure what every change adds, or one of them, on models that are never reported as targets."""
    source = read_set(name, SIGNALS, 1)
    pooled, splits = source if change else one_view(source), played(source)
    found: dict[str, Measured] = {}
    for split in splits:
        values: dict[str, list[dict[str, float | None]]] = {}
        for model, draw in ((model, draw) for model in split for draw in range(draws)):
            seed = SEED_STEP * (draw + 1) + model
            all_changes = attacked(source, pooled, n, model, seed)
            for what, metrics in with_change(source, n, model, seed, change) if change else all_changes:
                values.setdefault(what, []).append(metrics)
        for what, each in values.items():
            found.setdefault(what, Measured()).add({metric: _mean([m[metric] for m in each]) for metric in METRICS})
    say(f"{source.data}, {n} references")
    models = [model for split in splits for model in split]
    rows = [_row(what, found[OURS], measured) for what, measured in found.items()]
    model = source.about.get("model") or source.about.get("recipe")
    about = {"data": source.data, "model": model, "references": n, "draws": draws}
    return about | {"models": models, "rows": rows}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _row(what: str, ours: Measured, theirs: Measured) -> dict[str, Any]:
    """Mean of each metric, and the paired gain over `OURS` with its 95 % interval."""
    means = [theirs.mean(metric) for metric in METRICS]
    row: dict[str, Any] = {"attack": what, "mean": [None if mean is None else round(mean, 3) for mean in means]}
    if what != OURS:
        gains = [difference(theirs, ours, metric) for metric in METRICS]
        row["gain"] = [None if g is None else [round(x, 3) for x in (g.difference, g.low, g.high)] for g in gains]
    return row


def table(found: dict[str, Any]) -> str:
    """What every change adds, in points, for each metric."""
    lines = [
        (_title(each), each["references"], _name(row["attack"]), *map(_gain, row["gain"]))
        for each in found.values()
        for row in each["rows"]
        if "gain" in row
    ]
    return markdown_table(("references", "instead", *METRICS), lines)


def _name(attack: str) -> str:
    return f"`{attack}`" if attack in ALL else attack


def _gain(interval: list[float] | None) -> str:
    """Gain over `OURS` with its interval, in bold if that excludes 0; a dash if the rate is not resolved."""
    if interval is None:
        return "–"
    gain, low, high = interval
    text = f"{gain + 0.0:+.2f} ± {(high - low) / 2:.2f}"
    return f"**{text}**" if low > 0 or high < 0 else text


def main(task: str) -> None:
    """Run one task."""
    if task == "measure":
        found = {f"{name} {n}": measure(name, n, *rest) for name, n, *rest in SETTINGS}
        RESULT.write_text(f"{json_text(found)}\n", encoding="utf-8")
        return
    text = PAGE.read_text(encoding="utf-8")
    made = {"parts": table(json.loads(RESULT.read_text(encoding="utf-8")))}
    PAGE.write_text(with_tables(text, made, "far tail"), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] not in (["measure"], ["write"]):
        sys.exit("python -m experiments.far_tail measure | write")
    end(main, sys.argv[1])
