"""Parts of pl-mia-eb changed one at a time, and oracles: what is measured, and the page's table and claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import far_tail, rivals

from plmia.attacks.attack import ATTACKS
from plmia.attacks.empirical_bayes import EmpiricalBayesLR
from plmia.attacks.empirical_bayes.model import Knots
from plmia.attacks.statistics import evaluate as evaluate_statistic
from plmia.evaluation.metrics import evaluate
from plmia.evaluation.targets import Setup, attack_targets

ORACLES = {far_tail.ALL_NON_MEMBERS, far_tail.ONLINE, far_tail.LAW_OF_MEMBERS, far_tail.LAW_OF_NON_MEMBERS}
FIRST_TARGET = 4


def small_set(folder: Path, simulate_signals: Any, views: int) -> None:
    signals = simulate_signals(0, models=14, points=400, views=views, dtype="float16")
    np.savez(folder / "mine.npz", signals=signals.values, membership=signals.design.matrix, labels=signals.labels)
    (folder / "mine.json").write_text(json.dumps({"data": "Mine", "model": "any", "first_target": FIRST_TARGET}))


def test_one_change_alone_is_measured_alike(
    tmp_path: Path, simulate_signals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_set(tmp_path, simulate_signals, 1)
    monkeypatch.setattr(far_tail, "SIGNALS", tmp_path)
    every, one = far_tail.measure("mine", 4, 1), far_tail.measure("mine", 4, 1, far_tail.BEND)
    rows = {row["attack"]: row for row in every["rows"]}
    assert [row["attack"] for row in one["rows"]] == [far_tail.OURS, far_tail.BEND, far_tail.RIVAL]
    assert all(row == rows[row["attack"]] for row in one["rows"])


@pytest.mark.parametrize(("views", "n"), [(3, 2), (1, 4)])
def test_every_change_is_measured_on_earlier_models_with_draws_of_their_own(
    tmp_path: Path, simulate_signals: Any, monkeypatch: pytest.MonkeyPatch, views: int, n: int
) -> None:
    small_set(tmp_path, simulate_signals, views)
    monkeypatch.setattr(far_tail, "SIGNALS", tmp_path)
    methods = Knots.within, Knots.place
    made = far_tail.measure("mine", n, 2)
    assert (Knots.within, Knots.place) == methods
    assert sorted(made["models"]) == list(range(FIRST_TARGET))
    rows = {row["attack"]: row for row in made["rows"]}
    changes = {name for name, given in far_tail.CHANGES.items() if views > 1 or "pool" not in given}
    assert set(rows) == {far_tail.OURS, far_tail.RIVAL, *changes, *far_tail.ends(), *ORACLES}
    source = far_tail.read_set("mine", tmp_path, 1)
    means, references = [], set()
    for split in far_tail.played(source):
        aucs: list[list[float]] = [[], []]
        for model, draw in ((model, draw) for model in split for draw in range(2)):
            setup = Setup("offline", n, None, far_tail.SEED_STEP * (draw + 1) + model, align="never")
            (result,) = attack_targets(source.signals, [ATTACKS[far_tail.OURS]], [model], setup)
            references.add(tuple(result.references))
            phi = evaluate_statistic(EmpiricalBayesLR(most_knots=1), result.view)[:, 0]
            for place, score in enumerate((result.scores.score, phi)):
                queries = result.truth.queries
                found = evaluate(score[queries], result.truth.members[queries], (0.0,), target=model)
                aucs[place].append(100 * found.auc)
        means.append([np.mean(each) for each in aucs])
    assert len(references) > len(means)
    ours, changed = np.mean(means, axis=0)
    assert rows[far_tail.OURS]["mean"][0] == pytest.approx(ours, abs=1e-3)
    assert rows["constant trends"]["gain"][0][0] == pytest.approx(changed - ours, abs=2e-3)


def test_an_oracle_takes_the_law_of_one_side_from_all_references(simulate_signals: Any) -> None:
    """With the laws of both sides from the same fit, nothing changes."""
    signals = simulate_signals(1, models=14, points=400)
    (result,) = attack_targets(signals, [ATTACKS[far_tail.OURS]], [0], Setup("offline", 4, align="never"))
    fit = EmpiricalBayesLR().fit(result.view)
    for side in (far_tail.IN, far_tail.OUT):
        same = far_tail.with_own_law(fit, fit, result.view, result.view, side)
        assert same == pytest.approx(evaluate_statistic(EmpiricalBayesLR(), result.view)[:, 0])


def test_knots_at_the_ends_are_as_many_but_further_apart() -> None:
    covariate = np.random.default_rng(0).normal(size=4000)
    usual, wide = Knots.place(covariate, 8, "offline"), far_tail._knots_at_ends(covariate, 8, "offline")
    assert len(usual) == len(wide)
    assert (wide.at[0], wide.low) < (usual.at[0], usual.low + 1e-12)
    assert wide.at[-1] > usual.at[-1]


def committed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(far_tail.RESULT.read_text(encoding="utf-8"))
    return found


def test_the_page_has_the_committed_results() -> None:
    text = far_tail.PAGE.read_text(encoding="utf-8")
    assert far_tail.with_tables(text, {"parts": far_tail.table(committed())}, "far tail") == text


def test_no_reported_target_plays_the_target() -> None:
    found = committed()
    assert list(found) == [f"{name} {n}" for name, n, *_ in far_tail.SETTINGS]
    for (name, n, draws, change), each in zip(far_tail.SETTINGS, found.values(), strict=True):
        assert len(each["rows"]) == 3 if change else len(each["rows"]) > len(far_tail.CHANGES)
        assert (each["references"], each["draws"]) == (n, draws)
        targets = rivals.planned(name)[1]
        assert sorted(each["models"]) == list(range(len(each["models"])))
        assert max(each["models"]) < min(targets)


METRICS = rivals.METRICS
IMAGES, ADULT = "cifar100_wrn 2", "adult_mlp 4"


def gain(key: str, what: str, metric: str) -> tuple[float, bool]:
    """Gain over `OURS` as printed, and whether its interval excludes 0."""
    (row,) = (row for row in committed()[key]["rows"] if row["attack"] == what)
    points, low, high = row["gain"][METRICS.index(metric)]
    return round(points, 1), low > 0 or high < 0


def mean(key: str, what: str, metric: str) -> float:
    (row,) = (row for row in committed()[key]["rows"] if row["attack"] == what)
    return float(row["mean"][METRICS.index(metric)])


def test_the_average_over_views_was_the_cause_on_cifar100() -> None:
    ahead = mean(IMAGES, far_tail.RIVAL, "TPR@0.1%") - mean(IMAGES, far_tail.POOLING, "TPR@0.1%")
    assert round(ahead, 1) == 0.6
    for metric, points in (("AUC", -0.5), ("TPR@1%", -1.7), ("TPR@0.1%", -1.1)):
        assert gain(IMAGES, far_tail.POOLING, metric) == (points, True)
    assert gain(IMAGES, far_tail.RIVAL, "TPR@0.1%") == (-0.5, True)
    assert gain("cifar10_wrn 2", far_tail.POOLING, "AUC") == (-0.6, True)
    (row,) = (row for row in committed()["cifar10_wrn_plain 2"]["rows"] if row["attack"] == far_tail.POOLING)
    assert not any(points for each in row["gain"] if each for points in each)


def test_what_the_laws_of_both_sides_cost() -> None:
    assert gain(IMAGES, far_tail.LAW_OF_MEMBERS, "TPR@0.1%") == (-0.6, True)
    assert gain(IMAGES, far_tail.LAW_OF_NON_MEMBERS, "TPR@0.1%") == (18.1, True)
    assert gain(ADULT, far_tail.LAW_OF_MEMBERS, "AUC") == (1.5, True)
    assert gain(ADULT, far_tail.RIVAL, "AUC") == (0.5, True)
    assert not gain(ADULT, far_tail.ALL_NON_MEMBERS, "AUC")[1]


def test_a_stronger_bend_helps_on_some_sets_only() -> None:
    points, shown = gain(ADULT, far_tail.BEND, "AUC")
    assert (points, shown) == (0.3, True)
    assert points > gain(ADULT, far_tail.RIVAL, "AUC")[0] / 2
    for key in ("covertype_mlp 4", "location_mlp 4"):
        found, shown = gain(key, far_tail.BEND, "AUC")
        assert shown
        assert found > points
    for key, lost in (("cifar10_wrn 4", -1.0), ("location_gbdt_3 4", -1.7), ("location_gbdt_7 4", -2.1)):
        assert gain(key, far_tail.BEND, "TPR@1%") == (lost, True)


def test_tails_hold_and_ends_of_trends_are_not_the_cause() -> None:
    names = {name for name, given in far_tail.CHANGES.items() if {"tail", "hold"} & set(given)} | set(far_tail.ends())
    for key in (IMAGES, ADULT):
        for metric in ("AUC", "TPR@0.1%")[: 2 if key == IMAGES else 1]:
            assert all(gain(key, name, metric)[0] <= 0.1 for name in names)
    assert gain(ADULT, far_tail.CLIPPED, "AUC") == (-1.3, True)
