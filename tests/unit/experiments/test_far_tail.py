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
    assert list(found) == [f"{name} {n}" for name, n, _ in far_tail.SETTINGS]
    for (name, n, draws), each in zip(far_tail.SETTINGS, found.values(), strict=True):
        assert (each["references"], each["draws"]) == (n, draws)
        targets = rivals.planned(name)[1]
        assert sorted(each["models"]) == list(range(len(each["models"])))
        assert max(each["models"]) < min(targets)
