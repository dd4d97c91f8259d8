"""People as the unit on Diabetes 130: ways to combine a patient's records, and a subgroup that is trained twice.

    python -m experiments.people DATA

DATA is a folder with diabetes130.npz. 3,500 patients with 2 to 6 encounters are drawn, and 18 models are trained in
complementary pairs of patients, so that every model is a target with 16 references. The models are kept in the folder
`runs`, so an interrupted script continues; training takes about 15 minutes on one core, the attacks about 5. The
result is written to `people.json` beside this script.

For the second experiment, each record of 5 % of the patients is in the training set twice, as if these patients were
trained for twice as many epochs. Each model is one audit with that subgroup. Models that train on every record once are
audits without it, each for several random subgroups of the same size. This is done after 5, 10, 15 and 60 epochs: the
longer everybody is trained, the less twice as many epochs expose, so that there is less and less to find.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plmia.attacks.attack import ATTACKS
from plmia.attacks.groups import GroupStatistic, LearnedOverGroup, MaxOverGroup, SumOverGroup
from plmia.attacks.scoring import Scores
from plmia.attacks.view import Truth
from plmia.data.arrays import BoolArray, IntArray
from plmia.data.dataset import LabelledData
from plmia.data.designs import MembershipDesign, complementary_pairs
from plmia.errors import DataError
from plmia.evaluation.metrics import roc_curve
from plmia.evaluation.subgroups import subgroup_table
from plmia.evaluation.targets import AttackResult, Setup, attack_targets
from plmia.signals.signals import Signals
from plmia.training.recipes.named import parse_recipe
from plmia.training.train import seed_of
from plmia.training.views import default_views

from .script import end, say
from .setting import HERE, RUNS

FILE, RESULT = "diabetes130.npz", HERE / "people.json"
RECIPE = "mlp?widths=512,256,128,64&epochs={}"
EPOCHS, SUBGROUP_EPOCHS = 60, (5, 10, 15, 60)
PEOPLE, SIZES, PAIRS, SEED = 3_500, (2, 6), 9, 0
NAMES = ("pl-mia-eb", "rmia", "lira-fixed")
BUDGETS = (4, 8, 16)
STATISTICS: dict[str, GroupStatistic] = {
    "max": MaxOverGroup(),
    "sum": SumOverGroup(),
    "learned": LearnedOverGroup(),
}
ONE_ROW = "one row"
FPRS = (0.01, 0.001)
METRICS = ("auc", *(f"tpr at {fpr:g}" for fpr in FPRS))
# The planted subgroup: its share of the patients, the false-positive rate at which subgroups are compared, and the
# random subgroups of each audit without it.
PLANTED, SUBGROUP_FPR, RANDOM = 0.05, 0.01, 50

# Conformal calls at this level are counted among the non-members of each size.
LEVEL = 0.05

Measured = dict[tuple[str, int, str], list[list[float]]]
Called = dict[tuple[str, int], IntArray]


def read_people(folder: Path) -> LabelledData:
    """Draw the patients and return their encounters, grouped by patient."""
    if not (folder / FILE).is_file():
        raise DataError(f"there is no {FILE} in {folder}: name the folder of the data sets")
    with np.load(folder / FILE) as arrays:
        _, patient, size = np.unique(arrays["patient"], return_inverse=True, return_counts=True)
        eligible = np.flatnonzero((size >= SIZES[0]) & (size <= SIZES[1]))
        drawn = np.random.default_rng(SEED).choice(eligible, PEOPLE, replace=False)
        rows = np.flatnonzero(np.isin(patient, drawn))
        flags = np.unpackbits(arrays["X_bin"][rows], axis=1, count=int(arrays["n_bin"]))
        X = np.concatenate([arrays["X_num"][rows], flags], axis=1).astype(np.float32)
        return LabelledData(X, arrays["y"][rows].astype(np.int64), patient[rows], "Diabetes 130")


def train_signals(data: LabelledData, twice: BoolArray, folder: Path, epochs: int = EPOCHS) -> Signals:
    """Train the pairs that the folder lacks; a model trains twice on its members where ``twice`` [records] is set."""
    recipe, n = parse_recipe(RECIPE.format(epochs)), data.n_points
    design = complementary_pairs(n, PAIRS, np.random.default_rng([SEED, 1]), data.groups)
    copied = np.concatenate([np.arange(n), np.flatnonzero(twice)])
    trained = LabelledData(data.X[copied], data.y[copied])
    folder.mkdir(parents=True, exist_ok=True)
    values = []
    for k in range(PAIRS):
        path = folder / f"pair-{k}.npy"
        if not path.exists():
            say(f"training pair {k + 1} of {PAIRS} for {folder.name}")
            pair = slice(2 * k, 2 * k + 2)
            seeds = [seed_of(SEED, model, 0) for model in range(pair.start, pair.stop)]
            members = design.matrix[pair][:, copied]
            found = recipe.train(trained, members, seeds, default_views(trained))
            np.save(path, np.stack([each.conf[:n] for each in found]))
        values.append(np.load(path))
    return Signals(np.concatenate(values), MembershipDesign(design.matrix), data.y, groups=data.groups)


# Ways to combine records ---------------------------------------------------------------------------------------------


def measure(
    signals: Signals, budgets: Iterable[int] = BUDGETS, targets: Sequence[int] | None = None
) -> tuple[Measured, Called]:
    """Return the metrics of each target by attack, number of references and way to combine records.

    The second result has the numbers of non-members, and of those that the learned way calls, by size [2, sizes].
    """
    found: Measured = defaultdict(list)
    called: Called = defaultdict(lambda: np.zeros((2, SIZES[1] + 1), np.intp))
    attacks = [ATTACKS[name] for name in NAMES]
    for references in budgets:
        for name, statistic in STATISTICS.items():
            setup = Setup(references=references, group_statistic=statistic, seed=SEED)
            results = attack_targets(signals, attacks, range(signals.n_models) if targets is None else targets, setup)
            for result in sorted(results, key=lambda result: result.target):
                attack = result.scores.attack
                found[attack, references, name].append(_metrics(result.scores, result.truth))
                if name == "learned" and (single := result.one_record) is not None:
                    found[attack, references, ONE_ROW].append(_metrics(single.scores, single.truth))
                    called[attack, references] += _called(result)
            say(f"{name}, {references} references: done")
    return found, called


def _called(result: AttackResult) -> IntArray:
    """Count evaluated non-members by size [2, sizes]: all, and those with a conformal p-value of at most `LEVEL`."""
    assert result.groups is not None  # noqa: S101 - people are judged; this tells the type checker
    others = result.truth.queries[~result.truth.members[result.truth.queries]]
    sizes, flagged = result.groups.size[others], result.scores.log10_p_conformal[others] <= np.log10(LEVEL) + 1e-9
    return np.stack([np.bincount(each, minlength=SIZES[1] + 1) for each in (sizes, sizes[flagged])])


def _metrics(scores: Scores, truth: Truth) -> list[float]:
    roc = roc_curve(scores.score[truth.queries], truth.members[truth.queries])
    return [roc.auc, *(roc.tpr_at(fpr).tpr for fpr in FPRS)]


def table(found: Measured) -> list[dict[str, Any]]:
    """Return one row per attack, number of references and way to combine records: percentages, mean over targets."""
    return [
        {"attack": attack, "references": references, "statistic": name}
        | _means(np.array(found[attack, references, name]))
        for attack, references in dict.fromkeys(key[:2] for key in found)
        for name in (ONE_ROW, *STATISTICS)
    ]


def differences(found: Measured) -> list[dict[str, Any]]:
    """Return what the learned combination finds beyond the sum, target by target."""
    return [
        {"attack": attack, "references": references}
        | _means(np.array(found[attack, references, "learned"]) - found[attack, references, "sum"])
        for attack, references in dict.fromkeys(key[:2] for key in found)
    ]


def false_positives(called: Called) -> list[dict[str, Any]]:
    """Return the percentage of non-members of each size that the learned way calls."""
    return [
        {"attack": attack, "references": references, "level": LEVEL}
        | {"sizes": {str(size): round(100 * int(n[1, size]) / int(n[0, size]), 2) for size in np.flatnonzero(n[0])}}
        for (attack, references), n in called.items()
    ]


def _means(values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
    """Mean of each metric over targets [targets, metrics] and its standard error, in percent."""
    mean, error = 100 * values.mean(axis=0), 100 * values.std(axis=0, ddof=1) / len(values) ** 0.5
    each = zip(METRICS, mean.tolist(), error.tolist(), strict=True)
    return {metric: {"mean": round(m, 2), "error": round(e, 2)} for metric, m, e in each}


# A planted subgroup --------------------------------------------------------------------------------------------------


def planted_people(data: LabelledData) -> IntArray:
    """Draw the patients whose records are trained twice, by the numbers of their groups."""
    drawn = np.random.default_rng([SEED, 2]).choice(PEOPLE, round(PLANTED * PEOPLE), replace=False)
    return np.sort(np.unique(data.groups)[drawn])


def judged(signals: Signals) -> Iterator[AttackResult]:
    """Attack every model with all references."""
    yield from attack_targets(signals, [ATTACKS["pl-mia-eb"]], range(signals.n_models), Setup(seed=SEED))


def calls(result: AttackResult, groups: IntArray) -> dict[str, Any]:
    """Compare a subgroup, the groups with these numbers, with all other people."""
    assert result.groups is not None  # noqa: S101 - people are judged; this tells the type checker
    codes = np.isin(result.groups.values, groups).astype(np.intp)
    queries = result.truth.queries
    score, members = result.scores.score[queries], result.truth.members[queries]
    found = subgroup_table("planted", codes[queries], ["others", "planted"], score, members, SUBGROUP_FPR)
    rates = {row.name: row for row in found.subgroups}
    return {
        "called": list(found.more_exposed),
        "p_value": rates["planted"].p_value,
        "identified": {name: row.identified / row.n_members for name, row in rates.items()},
    }


def planted(epochs: int, with_subgroup: Signals, without: Signals, groups: IntArray) -> dict[str, Any]:
    """Count the audits that call the subgroup, and the audits without one that call any."""
    found = [calls(result, groups) for result in judged(with_subgroup)]
    rng = np.random.default_rng([SEED, 3])
    numbers = np.unique(without.groups)
    false = [
        bool(calls(result, rng.choice(numbers, len(groups), replace=False))["called"])
        for result in judged(without)
        for _ in range(RANDOM)
    ]
    shares = {
        name: round(100 * float(np.mean([each["identified"][name] for each in found])), 2)
        for name in ("others", "planted")
    }
    return {
        "epochs": epochs,
        "people": len(groups),
        "fpr": SUBGROUP_FPR,
        "audits_with": len(found),
        "found": sum(each["called"] == ["planted"] for each in found),
        "largest_p_value": round(max(each["p_value"] for each in found), 6),
        "identified": shares,
        "audits_without": len(false),
        "called_without": sum(false),
    }


def main(folder: Path, runs: Path = RUNS, result: Path = RESULT) -> None:
    """Train what is missing, print the tables and write the result."""
    data = read_people(folder)
    chosen, nobody = planted_people(data), np.zeros(data.n_points, bool)
    twice = np.isin(data.groups, chosen)
    once = {n: train_signals(data, nobody, runs / f"people-{n}", n) for n in sorted({EPOCHS, *SUBGROUP_EPOCHS})}
    found, called = measure(once[EPOCHS])
    subgroups = [
        planted(n, train_signals(data, twice, runs / f"people-{n}-planted", n), once[n], chosen)
        for n in SUBGROUP_EPOCHS
    ]
    contents = {
        "about": {
            "data": data.name,
            "recipe": RECIPE.format(EPOCHS),
            "people": PEOPLE,
            "records": data.n_points,
            "models": 2 * PAIRS,
        },
        "table": table(found),
        "learned_minus_sum": differences(found),
        "false_positives": false_positives(called),
        "planted": subgroups,
    }
    result.write_text(f"{json.dumps(contents, indent=1)}\n", encoding="utf-8")
    show(contents)


def show(contents: dict[str, Any]) -> None:
    """Print the tables."""
    for row in contents["table"]:
        cells = "  ".join(f"{row[metric]['mean']:6.1f}" for metric in METRICS)
        sys.stdout.write(f"{row['attack']:<11}{row['references']:>3} references  {row['statistic']:<8}{cells}\n")
    for row in contents["learned_minus_sum"]:
        cells = "  ".join(f"{row[metric]['mean']:+6.2f} ± {row[metric]['error']:.2f}" for metric in METRICS)
        sys.stdout.write(f"learned - sum, {row['attack']:<11}{row['references']:>3} references  {cells}\n")
    for row in contents["false_positives"]:
        cells = "  ".join(f"{size}: {rate:.1f}" for size, rate in row["sizes"].items())
        sys.stdout.write(f"called at {LEVEL:.0%}, {row['attack']:<11}{row['references']:>3} references  {cells}\n")
    for row in contents["planted"]:
        sys.stdout.write(f"{json.dumps(row)}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("name the folder of the data: python -m experiments.people DATA")
    end(main, Path(sys.argv[1]))
