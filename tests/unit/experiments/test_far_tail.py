"""Parts of pl-mia-eb changed one at a time: what is measured, and the page's table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import far_tail, rivals

from plmia.attacks import empirical_bayes
from plmia.attacks.attack import ATTACKS
from plmia.evaluation.metrics import evaluate
from plmia.evaluation.targets import attack_targets


def test_every_change_is_measured_against_the_attack_as_it_is(
    tmp_path: Path, simulate_signals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = simulate_signals(0, models=14, points=300, views=3, dtype="float16")
    np.savez(tmp_path / "mine.npz", signals=signals.values, membership=signals.design.matrix, labels=signals.labels)
    (tmp_path / "mine.json").write_text(json.dumps({"data": "Mine", "model": "any", "first_target": 4}))
    monkeypatch.setattr(far_tail, "SIGNALS", tmp_path)
    monkeypatch.setattr(far_tail, "planned", lambda name: (name, [4, 6, 8], [4]))
    before = empirical_bayes.MIN_DIVERGENCE
    made = far_tail.measure("mine", "online", 4)
    assert before == empirical_bayes.MIN_DIVERGENCE
    rows = {row["attack"]: row for row in made["rows"]}
    assert set(rows) == {far_tail.OURS, *far_tail.CHANGES, *far_tail.RIVALS, far_tail.ONE_COORDINATE}
    source = far_tail.read_set("mine", tmp_path, 3)
    (free,) = (attack for attack in far_tail.variants() if attack.name == "ratio not held beyond its turn")
    apart = []
    for target in source.targets:
        ours, theirs = (
            evaluate(r.scores.score[r.truth.queries], r.truth.members[r.truth.queries], (0.0,), target=0).auc
            for attack in (ATTACKS[far_tail.OURS], free)
            for r in attack_targets(source.signals, [attack], [target], source.setup("online", 4))
        )
        apart.append(100 * (ours - theirs))
    assert rows[free.name]["ahead"][0][0] == pytest.approx(np.mean(apart), abs=2e-3)


def test_the_page_has_the_committed_results() -> None:
    found = json.loads(far_tail.RESULT.read_text(encoding="utf-8"))
    text = far_tail.PAGE.read_text(encoding="utf-8")
    assert far_tail.with_tables(text, {"parts": far_tail.table(found)}, "far tail") == text


def test_the_settings_are_some_in_which_it_is_behind() -> None:
    found = json.loads(far_tail.RESULT.read_text(encoding="utf-8"))
    assert list(found) == [" ".join(map(str, setting)) for setting in far_tail.SETTINGS]
    compared = json.loads(rivals.RESULT.read_text(encoding="utf-8"))
    for (name, mode, n), each in zip(far_tail.SETTINGS, found.values(), strict=True):
        key, targets, _ = far_tail.planned(name)
        assert each["targets"] == targets
        settings = {(s["data"], m) for s, m, *_ in rivals.exceptions(compared, mode)}
        assert (compared[key]["data"], n) in settings


def test_no_single_choice_explains_what_a_rival_gains() -> None:
    """The page says so of tails, hold, bend and trends; a gain is minus how far the attack as it is lies ahead."""
    for each in json.loads(far_tail.RESULT.read_text(encoding="utf-8")).values():
        rows = {row["attack"]: row["ahead"] for row in each["rows"] if "ahead" in row}
        for metric in range(len(rivals.METRICS)):
            lost = [rows[name][metric] for name in far_tail.RIVALS if name in rows and rows[name][metric]]
            least = min((ahead[0] for ahead in lost if rivals.outcome(ahead) == "behind"), default=None)
            if least is not None:
                assert min(rows[name][metric][0] for name in far_tail.CHANGES) > least
