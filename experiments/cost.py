"""What does an audit cost? Power against the compute of the references: full, smaller, shorter, or of another kind.

    python -m experiments.cost train DATA [SET...]      train the models that are missing in runs/cost
    python -m experiments.cost measure DATA [SET...]    attack, and write cost.json
    python -m experiments.cost plan DATA [SET...]       let `plmia plan` choose references, and add what they find
    python -m experiments.cost fit DATA [SET...]        train half-width references longer, and add what they find
    python -m experiments.cost write                    tables and figures of docs/explanation/cost.md, from cost.json

DATA is a folder with the files of the data sets. All kinds of models of a set share one membership design, in
complementary pairs: the first models are references, the last are targets. Training takes about an hour on one core and
can be interrupted; the networks of CIFAR-10 need a GPU (`cost_networks.py`), and a part of their signals is kept.

The cost of a reference is its share of the operations of training a model like the target; where these are unknown
(trees, logistic regression), its share of the seconds.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from plmia.attacks.attack import ATTACKS
from plmia.attacks.scoring import score
from plmia.attacks.view import References
from plmia.auditing.planning import Choice, MeasuredKind, plan_measured, start
from plmia.auditing.planning import Cost as PlannedCost
from plmia.data.arrays import BoolArray, FloatArray, FloatArray32
from plmia.data.dataset import LabelledData
from plmia.data.designs import MembershipDesign, complementary_pairs, exact_k_per_point
from plmia.errors import DataError
from plmia.evaluation.metrics import evaluate
from plmia.evaluation.targets import Align, AttackResult, Setup, attack_targets
from plmia.reporting.drawing import Figure
from plmia.signals.signals import Signals
from plmia.training.recipes.named import parse_recipe
from plmia.training.recipes.recipe import Recipe
from plmia.training.train import seed_of
from plmia.training.views import default_views

from .charts import Chart, figure, steps_axis, value_axis
from .images import read_whole
from .script import end, say
from .setting import HERE, RUNS

POINTS, SEED = 10_000, 0
REFERENCES, TARGETS = range(32), range(32, 44)
FEW = range(16)
FULL, HALF, LESS = "full", "half width", "half the data"
# Half the width, for more epochs than the target.
MORE, LONGER = "half width, 1.5 times the epochs", "half width, twice the epochs"
OURS, CIFAR, RESULT = "pl-mia-eb", "cifar10", HERE / "cost.json"
BUDGETS, FPRS, LEVEL = (4, 8, 16, 32), (0.01, 0.001), 0.05
# Plans: the largest false-positive rate of the tables, the targets that pilots attack, and the budgets in full models.
PLAN_FPR, PILOTS, PLANNED = FPRS[0], 4, (4, 8, 16)
# By attack and alignment.
WAYS: dict[tuple[str, Align], str] = {
    (OURS, "auto"): "aligned",
    (OURS, "never"): "plain",
    ("rmia", "auto"): "rmia aligned",
    ("rmia", "never"): "rmia",
    ("lira", "never"): "lira",
}
PAGE = HERE.parent / "docs" / "explanation" / "cost.md"
# Lines of the figure: kind of the references, way to attack, label.
LINES = (
    (FULL, "rmia", "RMIA, full"),
    (FULL, "lira", "LiRA, full"),
    (FULL, "plain", "pl-mia-eb, full"),
    (HALF, "aligned", "pl-mia-eb, half width"),
    ("quarter width", "aligned", "pl-mia-eb, quarter width"),
    ("half width, 16 layers", "aligned", "pl-mia-eb, half width, 16 layers"),
)
KINDS_TO_PLAN = (FULL, HALF, MORE, LONGER, "quarter width", "half width, 16 layers")
AS_TARGETS_ONLY = ("sgd", "no augmentation")
# Kinds of networks under the names of the other sets.
NETWORKS = {
    "wrn-28-2": FULL,
    "wrn-28-1": HALF,
    "wrn-28-1-long": LONGER,
    "wrn-16-1": "half width, 16 layers",
    "wrn-28-2-short": "half the epochs",
    "wrn-28-2-plain": "no augmentation",
    "cnn": "small CNN",
}
LOGISTIC = "sklearn:LogisticRegression?max_iter=300"


@dataclass(frozen=True)
class Cost:
    """A data set, and the kinds of models that are trained on it.

    Parameters
    ----------
    data, file : str
        Name of the data set and its file.
    kinds : dict
        Recipe and models of each kind. `FULL` is the recipe of the target; `LESS` is the same recipe on half of the
        members.
    """

    data: str
    file: str
    kinds: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


def _perceptrons(base: str, long: int, other: str = "&") -> dict[str, tuple[str, tuple[int, ...]]]:
    both = (*FEW, *TARGETS)
    return {
        FULL: (base.format(long), both),
        HALF: (base.format(long) + f"{other}widths=256,128,64,32", tuple(REFERENCES)),
        MORE: (base.format(3 * long // 2) + f"{other}widths=256,128,64,32", tuple(FEW)),
        LONGER: (base.format(2 * long) + f"{other}widths=256,128,64,32", tuple(FEW)),
        "quarter width": (base.format(long) + f"{other}widths=128,64,32,16", tuple(REFERENCES)),
        "half the epochs": (base.format(long // 2), both),
        LESS: (base.format(long), both),
        "sgd": (base.format(long) + f"{other}optimizer=sgd&lr=0.05", tuple(TARGETS)),
    }


_LONG = "mlp?epochs={}&schedule=cosine"
_TREES = {"trees": ("gbdt?depth=3", (*REFERENCES, *TARGETS)), "logistic": (LOGISTIC, tuple(REFERENCES))}
SETS = {
    "location": Cost(
        "Location-30",
        "location30.npz",
        _perceptrons("mlp?standardise=false&epochs={}", 50)
        | {"64-32": ("mlp?standardise=false&epochs=50&widths=64,32", tuple(REFERENCES))}
        | _TREES,
    ),
    "adult": Cost("Adult", "adult.npz", _perceptrons(_LONG, 100) | _TREES),
    "covertype": Cost("Covertype", "covertype20k.npz", _perceptrons(_LONG, 100) | _TREES),
    "fashion": Cost(
        "Fashion-MNIST",
        "fashion_mnist.npz",
        {kind: _perceptrons(_LONG, 100)[kind] for kind in (FULL, HALF, MORE, LONGER, "quarter width")}
        | {"half the epochs": (_LONG.format(50), tuple(FEW))},
    ),
}


def read_set(cost: Cost, folder: Path) -> LabelledData:
    """Draw at most `POINTS` records of a data set."""
    if not (folder / cost.file).is_file():
        raise DataError(f"there is no {cost.file} in {folder}: name the folder of the data sets")
    data = read_whole(folder / cost.file)
    n = min(POINTS, data.n_points)
    rows = np.sort(np.random.default_rng([SEED, 2]).choice(data.n_points, n, replace=False))
    return LabelledData(data.X[rows], data.y[rows], None, cost.data)


def members_of(n_points: int, kind: str) -> BoolArray:
    """Membership [models, records] of one kind; models of `LESS` train on half as many records.

    Every record is in a quarter of its references, and a target of it trains on half of the members of the others.
    """
    n_models = len(REFERENCES) + len(TARGETS)
    matrix = complementary_pairs(n_points, n_models // 2, np.random.default_rng(SEED)).matrix
    if kind != LESS:
        return matrix
    rng = np.random.default_rng([SEED, 3])
    fewer = matrix & (rng.random(matrix.shape) < 0.5)
    fewer[FEW.start : FEW.stop] = exact_k_per_point(n_points, len(FEW), len(FEW) // 4, rng).matrix
    return fewer


def train(name: str, folder: Path, kinds: Collection[str] = (), runs: Path = RUNS / "cost") -> None:
    """Train the models of a set that are missing, pair by pair; by default, of all kinds."""
    cost = SETS[name]
    data = read_set(cost, folder)
    (runs / name).mkdir(parents=True, exist_ok=True)
    np.save(runs / name / "labels.npy", data.y)
    for kind, (recipe, models) in cost.kinds.items():
        if kinds and kind not in kinds:
            continue
        say(f"{name}: {kind}")
        for first in models[::2]:
            path = _pair_file(runs / name, kind, first)
            if not path.exists():
                _train_pair(path, parse_recipe(recipe), data, members_of(data.n_points, kind), first)


def _pair_file(folder: Path, kind: str, first: int) -> Path:
    return folder / f"{kind.replace(' ', '-').replace(',', '')}-{first}.npz"


def _train_pair(path: Path, recipe: Recipe, data: LabelledData, members: BoolArray, first: int) -> None:
    pair = slice(first, first + 2)
    seeds = [seed_of(SEED, model, 0) for model in range(pair.start, pair.stop)]
    found = recipe.train(data, members[pair], seeds, default_views(data))
    conf: FloatArray32 = np.stack([each.conf for each in found])
    accuracy = np.array([[each.train_accuracy, each.test_accuracy] for each in found])
    partial = path.with_suffix(".part.npz")
    np.savez(partial, conf=conf, accuracy=accuracy)
    partial.rename(path)


# Measuring ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Signals of all kinds of models of a set."""

    data: str
    signals: dict[str, tuple[list[int], FloatArray32]]  # by kind: numbers of the models, and their signals
    members: dict[str, BoolArray]  # by kind: [models, records]
    cost: dict[str, float]  # of one reference, in full models
    references: tuple[int, ...]  # in the order in which they are used
    targets: tuple[int, ...]

    def budgets(self, kind: str) -> list[int]:
        """Numbers of references that there are of a kind."""
        have = len(set(self.signals[kind][0]) & set(self.references))
        return [n for n in BUDGETS if n == have or (n < have and kind != LESS)]

    def with_target(self, kind: str, n: int, target: int, target_kind: str = FULL) -> Signals:
        """Signals of a target, model 0, and of n references."""
        models, values = self.signals[kind]
        chosen = [model for model in self.references if model in models][:n]
        own, theirs = self.signals[target_kind]
        rows = [theirs[own.index(target)], *(values[models.index(model)] for model in chosen)]
        matrix = [self.members[target_kind][target], *(self.members[kind][model] for model in chosen)]
        return Signals(np.stack(rows), MembershipDesign(np.stack(matrix)))


def trained_source(name: str, folder: Path, kinds: Collection[str] = (), runs: Path = RUNS / "cost") -> Source:
    """Read the models of a set that was trained here; by default, all kinds."""
    cost = SETS[name]
    cost = replace(cost, kinds={kind: each for kind, each in cost.kinds.items() if not kinds or kind in kinds})
    data = read_set(cost, folder)
    signals, members = {}, {}
    for kind, (_, models) in cost.kinds.items():
        parts = [np.load(_pair_file(runs / name, kind, first))["conf"] for first in models[::2]]
        signals[kind] = list(models), np.concatenate(parts)
        members[kind] = members_of(data.n_points, kind)
    return Source(cost.data, signals, members, _costs(cost, data), tuple(REFERENCES), tuple(TARGETS))


def _costs(cost: Cost, data: LabelledData) -> dict[str, float]:
    """Cost of each kind in full models, by operations, or by seconds where these are unknown."""
    members = members_of(data.n_points, FULL)
    n, full = int(members[0].sum()), parse_recipe(cost.kinds[FULL][0])
    whole, seconds, found = full.operations(data, n), 0.0, {}
    for kind, (text, _) in cost.kinds.items():
        recipe = parse_recipe(text)
        known = recipe.operations(data, n // 2 if kind == LESS else n)
        if known is not None and whole is not None:
            found[kind] = known / whole
            continue
        seconds = seconds or _seconds(full, data, members)
        found[kind] = _seconds(recipe, data, members) / seconds
    return found


def _seconds(recipe: Recipe, data: LabelledData, members: BoolArray) -> float:
    """Seconds of training one model, after one that warms up."""
    for _ in range(2):
        started = time.monotonic()
        recipe.train(data, members[:1], [0], default_views(data))
    return time.monotonic() - started


def networks_source() -> Source:
    """Read the kept part of the CIFAR-10 networks.

    The last references are targets, too: plmia excludes the target and its complement, so that 30 of 32 are used.
    """
    from . import cost_networks

    found, members = cost_networks.read_kept()
    renamed = {NETWORKS.get(kind, kind): value for kind, value in found.items()}
    full = cost_networks.operations("wrn-28-2", members.shape[1])
    cost = {NETWORKS.get(kind, kind): cost_networks.operations(kind, members.shape[1]) / full for kind in found}
    return Source("CIFAR-10", renamed, dict.fromkeys(renamed, members), cost, tuple(range(1, 33)), tuple(range(17, 29)))


@dataclass
class Measured:
    """Metrics of every target: area and true-positive rates, in percent, and the rate of conformal p-values."""

    each: dict[tuple[str, ...], list[tuple[float, ...]]] = field(default_factory=dict)

    def add(self, key: tuple[str, ...], result: AttackResult) -> None:
        """Add one target."""
        queries = result.truth.queries
        members, score = result.truth.members[queries], result.scores.score[queries]
        p = result.scores.log10_p_conformal[queries][~members]
        self.rate(key, score, members, float(np.mean(p <= np.log10(LEVEL))))

    def rate(self, key: tuple[str, ...], score: FloatArray, members: BoolArray, *further: float) -> None:
        """Add the metrics of scores [queries], and further rates."""
        found = evaluate(score, members, FPRS, target=0)
        rates = [found.auc, *(found.tpr_at(fpr).tpr for fpr in FPRS), *further]
        self.each.setdefault(key, []).append(tuple(100 * rate for rate in rates))

    def mean(self, key: tuple[str, ...]) -> list[float]:
        """Means over targets."""
        return np.round(np.mean(self.each[key], axis=0), 3).tolist()

    def difference(self, key: tuple[str, ...], other: tuple[str, ...]) -> list[list[float]]:
        """Mean paired difference and half the width of its 95 % interval, for each metric.

        Targets have the same references, so that the interval holds for these references.
        """
        apart = np.array(self.each[key]) - np.array(self.each[other])
        half = stats.t.ppf(0.975, len(apart) - 1) * apart.std(axis=0, ddof=1) / np.sqrt(len(apart))
        return [[round(float(d), 3), round(float(h), 3)] for d, h in zip(apart.mean(axis=0), half, strict=True)]


def measure(source: Source) -> dict[str, Any]:
    """Attack all targets with all kinds and numbers of references."""
    found = Measured()
    rows = []
    for kind in source.signals:
        if kind not in source.cost or kind in AS_TARGETS_ONLY:
            continue
        for n in source.budgets(kind):
            _attack(found, source, kind, n)
            rows.append(
                {"kind": kind, "references": n, "cost": round(n * source.cost[kind], 4)}
                | {how: found.mean((kind, str(n), how)) for how in WAYS.values()}
            )
            say(f"{source.data}: {kind}, {n} references: {rows[-1]['aligned']}")
    return {
        "data": source.data,
        "targets": len(source.targets),
        "rows": rows,
        "like": _like(found, source),
        "half": {n: found.difference((HALF, str(n), "aligned"), (FULL, str(n), "plain")) for n in (8, 16)},
        "crude": found.mean((HALF, "16", "crude")),
        "supervised": _supervised(source),
        "equal": _equal(found, source, rows),
        "unlike": _unlike(source),
    }


def _attack(found: Measured, source: Source, kind: str, n: int) -> None:
    for target in source.targets:
        signals = source.with_target(kind, n, target)
        for align, names in (("auto", (OURS, "rmia")), ("never", (OURS, "rmia", "lira"))):
            for result in attack_targets(
                signals, [ATTACKS[name] for name in names], [0], Setup(seed=SEED, align=align)
            ):
                found.add((kind, str(n), WAYS[result.scores.attack, align]), result)
                if (kind, n, result.scores.attack, align) == (HALF, 16, OURS, "never"):
                    found.add((kind, str(n), "crude"), crude(result))


def crude(result: AttackResult) -> AttackResult:
    """Repeat an attack with references moved by quantiles alone, one map per view: the simplest alignment.

    OUT signals get the quantiles of the target on known non-members. IN signals get those of its members, whose
    distribution is what remains of that of all queries after the known share of non-members is subtracted.
    """
    view, queries = result.view, result.truth.queries
    share = float(result.truth.members[queries].mean())
    references = view.references
    signals = references.signals[references.rows].astype(np.float64)
    for k in range(view.n_views):
        own, known = np.sort(view.target[queries, k]), np.sort(view.target[view.population, k])
        below = np.arange(1, len(own) + 1) / len(own)
        inside = (below - (1 - share) * np.searchsorted(known, own, side="right") / len(known)) / share
        inside = np.clip(np.maximum.accumulate(inside), 0, 1)
        members = own[np.minimum(np.searchsorted(inside, (np.arange(2000) + 0.5) / 2000), len(own) - 1)]
        column, mask = signals[:, :, k], references.in_mask
        others = column[:, view.population][~mask[:, view.population]]
        signals[:, :, k] = np.where(
            mask, _by_quantiles(column[mask], members, column), _by_quantiles(others, known, column)
        )
    moved = References(signals.astype(np.float32), np.arange(len(signals)), references.in_mask)
    scores = score(ATTACKS[OURS], replace(view, references=moved, known=None), np.random.default_rng(SEED))
    return replace(result, scores=scores)


def _by_quantiles(source: FloatArray, target: FloatArray, values: FloatArray) -> FloatArray:
    """Map values by 40 quantiles of two samples; beyond the outer ones, along straight lines."""
    p = (np.arange(40) + 0.5) / 40
    x, y = np.maximum.accumulate(np.quantile(source, p) + 1e-9 * np.arange(40)), np.quantile(target, p)
    ends = [max((y[j] - y[i]) / (x[j] - x[i]), 1e-3) for i, j in ((0, 8), (31, 39))]
    moved = np.interp(values, x, y)
    moved = np.where(values < x[0], y[0] + (values - x[0]) * ends[0], moved)
    return np.where(values > x[-1], y[-1] + (values - x[-1]) * ends[1], moved)


def _supervised(source: Source) -> list[float]:
    """Metrics of boosted trees that learn from the labels of other targets: what half-width references tell at best.

    No audit has such labels. The trees see the target's signal, the means and deviations of both sides, and the scores
    of the attack with aligned references and with references as they are.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    seen = [_features_and_members(source, target) for target in source.targets]
    found = Measured()
    for fold in range(4):
        learned = [each for i, each in enumerate(seen) if i % 4 != fold]
        trees = HistGradientBoostingClassifier(learning_rate=0.05, max_iter=150, max_leaf_nodes=15, random_state=SEED)
        trees.fit(np.concatenate([x for x, _ in learned]), np.concatenate([members for _, members in learned]))
        for x, members in seen[fold::4]:
            found.rate(("supervised",), trees.decision_function(x), members)
    return found.mean(("supervised",))


def _features_and_members(source: Source, target: int) -> tuple[FloatArray, BoolArray]:
    """Features [queries, features] of the queries of one target, with half-width references, and who is a member."""
    signals, columns = source.with_target(HALF, 16, target), []
    for align in ("auto", "never"):
        (result,) = attack_targets(signals, [ATTACKS[OURS]], [0], Setup(seed=SEED, align=align))
        columns.append(result.scores.score)
    references, queries = result.view.references, result.truth.queries
    values, own = references.signals[references.rows].mean(axis=2, dtype=np.float64), result.view.target.mean(axis=1)
    for side in (references.in_mask, ~references.in_mask):
        mean = values.mean(axis=0, where=side)
        columns += [mean, values.std(axis=0, where=side), own - mean]
    return np.column_stack([own, *columns])[queries], result.truth.members[queries]


def _like(found: Measured, source: Source) -> dict[str, Any]:
    """What it costs to align references that are like the target, always and by the default."""
    rows = {}
    for n in source.budgets(FULL):
        for align in ("always", "auto"):
            for target in source.targets:
                setup = Setup(seed=SEED, align=align)
                for result in attack_targets(source.with_target(FULL, n, target), [ATTACKS[OURS]], [0], setup):
                    found.add((FULL, str(n), align), result)
            rows[f"{n} {align}"] = found.difference((FULL, str(n), align), (FULL, str(n), "plain"))
    return rows


def _equal(found: Measured, source: Source, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare smaller references with full ones at about the same cost."""
    compared = []
    for n in source.budgets(FULL):
        cheaper = [row for row in rows if row["kind"] != FULL and n / 2 < row["cost"] <= n * 1.03]
        for row in cheaper:
            key = row["kind"], str(row["references"]), "aligned"
            compared.append(
                {"full": n, "kind": row["kind"], "references": row["references"], "cost": row["cost"]}
                | {"difference": found.difference(key, (FULL, str(n), "plain"))}
            )
    return compared


def planned(source: Source) -> list[dict[str, Any]]:
    """What the references find that a plan chooses, against full ones of the same budget.

    Each of the first targets has a pilot of full references and of every kind of smaller ones. Its plan is carried out
    against the other targets, which no pilot attacks; where it asks for more references than were trained, with all of
    these. A difference is a mean over plans for each target.
    """
    kinds = [kind for kind in KINDS_TO_PLAN if kind in source.signals]
    pilots, others = source.targets[:PILOTS], source.targets[PILOTS:]
    chosen: dict[int, list[tuple[str, int]]] = {budget: [] for budget in PLANNED}
    for target in pilots:
        measured = [_pilot(source, kind, target) for kind in kinds]
        for budget in PLANNED:
            cost, views = measured[0].kind.cost, measured[0].pilot.signals.n_views
            best = plan_measured(measured, cost.of(budget, views), SEED).best
            chosen[budget].append((best.kind, min(best.references, source.budgets(best.kind)[-1])))
    found = Measured()
    for kind, n in {*((FULL, budget) for budget in PLANNED), *(choice for some in chosen.values() for choice in some)}:
        for target in others:
            (result,) = attack_targets(source.with_target(kind, n, target), [ATTACKS[OURS]], [0], Setup(seed=SEED))
            found.add((kind, str(n)), result)
    return [_planned_row(found, budget, choices) for budget, choices in chosen.items()]


def _pilot(source: Source, kind: str, target: int) -> MeasuredKind:
    """Measure the power of all references of a kind against one target."""
    signals = source.with_target(kind, source.budgets(kind)[-1], target)
    pilot = start(signals, ATTACKS[OURS], 0, Setup(seed=SEED), PLAN_FPR)
    return MeasuredKind.of(Choice(kind, pilot, PlannedCost(source.cost[kind])), PLAN_FPR, SEED, lambda _: None)


def _planned_row(found: Measured, budget: int, choices: list[tuple[str, int]]) -> dict[str, Any]:
    each = np.mean([found.each[kind, str(n)] for kind, n in choices], axis=0)
    found.each["planned", str(budget)] = [tuple(row) for row in each.tolist()]
    plans = sorted(choices, key=lambda choice: (-choices.count(choice), choice))
    return {
        "full": budget,
        "plans": [f"{choices.count(plan)} x {plan[1]} of {plan[0]}" for plan in dict.fromkeys(plans)],
        "difference": found.difference(("planned", str(budget)), (FULL, str(budget))),
    }


def fitted(name: str, folder: Path, runs: Path = RUNS / "cost") -> list[dict[str, Any]]:
    """What 16 references of half the width find that trained as long as the target, 1.5 times and twice as long.

    Full models are trained again, so that all differences are those of models of one machine; the networks of CIFAR-10
    are those that are kept.
    """
    kinds, n = (FULL, HALF, MORE, LONGER), FEW.stop
    if name == CIFAR:
        from . import cost_networks

        source = networks_source()
        kept = cost_networks.accuracies(source.references[:n])
        accuracies = {NETWORKS.get(kind, kind): accuracy for kind, accuracy in kept.items()}
    else:
        train(name, folder, kinds, runs)
        source = trained_source(name, folder, kinds, runs)
        accuracies = {
            kind: np.mean([np.load(_pair_file(runs / name, kind, first))["accuracy"][:, 0] for first in FEW[::2]])
            for kind in kinds
        }
    found, rows = Measured(), []
    for kind in (kind for kind in kinds if kind in source.signals):
        _attack(found, source, kind, n)
        key = (kind, str(n), "plain" if kind == FULL else "aligned")
        rows.append(
            {
                "kind": kind,
                "cost": round(n * source.cost[kind], 4),
                "accuracy": round(100 * float(accuracies[kind]), 2),
            }
            | {"found": found.mean(key), "difference": found.difference(key, (FULL, str(n), "plain"))}
        )
        say(f"{source.data}: {kind}: {rows[-1]}")
    return rows


def _unlike(source: Source) -> dict[str, Any]:
    """Attack targets that were trained in another way than their references, aligned and not."""
    rows = {}
    for kind in source.signals:
        targets = [target for target in source.targets if target in source.signals[kind][0]]
        if kind == FULL or not targets:
            continue
        found = Measured()
        for target in targets:
            for align in ("auto", "never"):
                signals = source.with_target(FULL, 16, target, kind)
                for result in attack_targets(signals, [ATTACKS[OURS]], [0], Setup(seed=SEED, align=align)):
                    found.add((align,), result)
        rows[kind] = {align: found.mean((align,)) for align in ("auto", "never")}
        rows[kind]["difference"] = found.difference(("auto",), ("never",))
    return rows


# The page -------------------------------------------------------------------------------------------------------------


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Markdown of the tables of the page by name."""
    return {
        "references": markdown_table(
            ("references", "number", "cost", "aligned", "as they are", "`rmia`", "`rmia`, aligned", "`lira`"),
            [
                (name["data"], row["kind"], row["references"], f"{row['cost']:.3g}", *map(_rates, _ways(row)))
                for name in found.values()
                for row in name["rows"]
                if row["references"] == 16
            ],
        ),
        "equal": markdown_table(
            ("full references", "instead", "cost", "AUC", "TPR at 1 %", "TPR at 0.1 %"),
            [
                (name["data"], row["full"], f"{row['references']} of {row['kind']}", f"{row['cost']:.3g}", *_signs(row))
                for name in found.values()
                for row in name["equal"]
            ],
        ),
        "planned": markdown_table(
            ("full references", "plans of four pilots", "AUC", "TPR at 1 %", "TPR at 0.1 %"),
            [
                (name["data"], row["full"], ", ".join(row["plans"]).replace(" x ", " × "), *_signs(row))
                for name in found.values()
                for row in name["planned"]
            ],
        ),
        "like": markdown_table(
            ("references", "AUC", "TPR at 1 %", "TPR at 0.1 %"),
            [
                (name["data"], key.split()[0], *map(_signed, values[:3]))
                for name in found.values()
                for key, values in name["like"].items()
                if key.endswith("always")
            ],
        ),
        "half": markdown_table(
            (
                "full",
                "half width, aligned",
                "crude maps",
                "supervised",
                "difference in AUC",
                "in TPR at 1 %",
                "in TPR at 0.1 %",
            ),
            [
                (name["data"], *map(_rates, _halves(name)), *map(_signed, name["half"]["16"][:3]))
                for name in found.values()
            ],
        ),
        "fit": markdown_table(
            ("references", "cost", "accuracy", "found", "AUC", "TPR at 1 %", "TPR at 0.1 %"),
            [
                (name["data"], row["kind"], f"{row['cost']:.3g}", f"{row['accuracy']:.1f} %", _rates(row["found"]))
                + (("",) * 3 if row["kind"] == FULL else tuple(_signs(row)))
                for name in found.values()
                for row in name.get("fit", ())
            ],
        ),
        "unlike": markdown_table(
            ("target", "aligned", "as they are", "difference in AUC", "in TPR at 1 %", "in TPR at 0.1 %", "p ≤ 5 %"),
            [
                (name["data"], kind, _rates(row["auto"]), _rates(row["never"]), *_signs(row), f"{row['auto'][3]:.1f} %")
                for name in found.values()
                for kind, row in name["unlike"].items()
            ],
        ),
    }


def _row(name: dict[str, Any], kind: str, n: int) -> dict[str, Any]:
    return next(row for row in name["rows"] if (row["kind"], row["references"]) == (kind, n))


def _halves(name: dict[str, Any]) -> list[list[float]]:
    return [_row(name, FULL, 16)["plain"], _row(name, HALF, 16)["aligned"], name["crude"], name["supervised"]]


def _signs(row: dict[str, Any]) -> list[str]:
    return [_signed(pair) for pair in row["difference"][:3]]


def _ways(row: dict[str, Any]) -> list[list[float]]:
    return [row[how] for how in ("aligned", "plain", "rmia", "rmia aligned", "lira")]


def _rates(values: list[float]) -> str:
    """AUC / TPR at 1 % / TPR at 0.1 %."""
    return " / ".join(f"{value:.1f}" for value in values[:3])


def _signed(pair: list[float]) -> str:
    """Difference with half the width of its interval, in bold if that excludes 0."""
    text = f"{pair[0]:+.2f} ± {pair[1]:.2f}"
    return f"**{text}**" if abs(pair[0]) > pair[1] else text


def markdown_table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """Table whose first column is the data."""
    lines = [("data", *head), ("---",) * (len(head) + 1), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def figures(found: dict[str, Any]) -> dict[str, Figure]:
    """TPR at 0.1 % FPR against the compute of all references, in two rows of panels."""
    charts = [_chart(name) for name in found.values()]
    alt = "TPR at 0.1 % FPR against the training compute of the references, in models like the target."
    title = "Power against compute"
    return {
        f"cost-{i + 1}": figure(f"cost-{i + 1}", part, alt, 320, title)
        for i, part in enumerate((charts[:3], charts[3:]))
    }


def _chart(name: dict[str, Any]) -> Chart:
    lines: dict[str, tuple[list[float], list[Any]]] = {}
    for kind, how, label in LINES:
        rows = [row for row in name["rows"] if row["kind"] == kind]
        if rows:
            lines[label] = [row["cost"] for row in rows], [row[how][2] for row in rows]
    costs = sorted({x for xs, _ in lines.values() for x in xs})
    x = steps_axis(
        f"compute, {name['data']}", [2.0**k for k in range(-2, 6) if costs[0] / 1.5 <= 2.0**k <= costs[-1] * 1.5]
    )
    return Chart(replace(x, low=costs[0] / 1.3, high=costs[-1] * 1.3), value_axis("TPR at 0.1 % FPR (%)", lines), lines)


def write(page: Path = PAGE) -> None:
    """Replace the tables of the page, and write its figures beside it."""
    found = json.loads(RESULT.read_text(encoding="utf-8"))
    page.write_text(with_tables(page.read_text(encoding="utf-8"), tables(found)), encoding="utf-8")
    for name, drawn in figures(found).items():
        (page.parent / f"{name}.svg").write_text(f"{drawn.svg}\n", encoding="utf-8")


def with_tables(text: str, made: dict[str, str], page: str = "cost") -> str:
    """Return the text of the page with these tables between their marks."""
    for name, table in made.items():
        start, stop = f"<!-- {page}: {name} -->\n", "<!-- end -->"
        before, found, rest = text.partition(start)
        _, end_mark, after = rest.partition(stop)
        if not (found and end_mark):
            raise DataError(f"the page has no place for the table {name!r}: add its marks")
        text = f"{before}{start}\n{table}\n\n{stop}{after}"
    return text


def json_text(found: dict[str, Any]) -> str:
    """JSON with one line per row of numbers."""
    return re.sub(r"\[[-\d.,\senul]*\]", lambda numbers: re.sub(r"\s+", " ", numbers[0]), json.dumps(found, indent=1))


def main(task: str, folder: str = "", *names: str) -> None:
    """Run one task."""
    if task == "write":
        write()
        return
    for name in names or (SETS if task == "train" else (*SETS, CIFAR)):
        if task == "train":
            train(name, Path(folder))
            continue
        if task == "fit":
            made = {"fit": fitted(name, Path(folder))}
        else:
            source = networks_source() if name == CIFAR else trained_source(name, Path(folder))
            made = {"planned": planned(source)} if task == "plan" else measure(source)
        found = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
        found[name] = found.get(name, {}) | made
        RESULT.write_text(f"{json_text(found)}\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["write"] and (len(sys.argv) < 3 or sys.argv[1] not in ("train", "measure", "plan", "fit")):
        sys.exit(
            "python -m experiments.cost train|measure|plan|fit DATA [SET...]; or: python -m experiments.cost write"
        )
    end(main, *sys.argv[1:])
