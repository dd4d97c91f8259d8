"""The typed result and metrics.json hold the same: nothing is lost on the way there and back."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plmia.attacks.attack import ATTACKS
from plmia.evaluation.targets import Setup
from plmia.results.folder import run_attacks
from plmia.results.result import RunResult
from plmia.results.saved import SavedRun
from plmia.signals.signals import Signals

N_MODELS, N_POINTS = 10, 420


@pytest.fixture(scope="module", params=[[0], [1, 4]], ids=["one target", "two targets"])
def folder(
    request: pytest.FixtureRequest, simulate_signals: Callable[..., Signals], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Results of all attacks that can run."""
    signals = simulate_signals(5, models=N_MODELS, points=N_POINTS)
    path = tmp_path_factory.mktemp("run")
    returned = run_attacks(signals, list(ATTACKS.values()), request.param, Setup(seed=3), path)
    assert returned == SavedRun(path).result
    return path


def metrics_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_bytes())
    return found


def test_to_json_is_the_file(folder: Path) -> None:
    assert SavedRun(folder).result.to_json() == metrics_of(folder)


def test_from_json_is_the_inverse(folder: Path) -> None:
    result = SavedRun(folder).result
    assert RunResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_an_audit_without_recorded_accuracies_has_null(folder: Path) -> None:
    result = SavedRun(folder).result
    assert not {"train_accuracy", "test_accuracy"} & result.to_json()["about"].keys()
    audited = replace(result, about=replace(result.about, audit={"data": "a"}))
    about = audited.to_json()["about"]
    assert about["train_accuracy"] is about["test_accuracy"] is None
    assert RunResult.from_json(audited.to_json()) == audited


def test_parts_have_their_types(folder: Path) -> None:
    metrics, result = metrics_of(folder), SavedRun(folder).result
    for name, attack in result.attacks.items():
        assert attack.tpr[0.01].mean == metrics["attacks"][name]["tpr"]["0.01"]["mean"]
        entry = attack.on(result.about.targets[-1])
        assert entry.decisions["conformal"][0.1].tpr == entry.conformal.tpr[0.1]
        assert entry.tpr[0.01].interval.high == (entry.tpr[0.01].at_nominal or entry.tpr[0.01]).high
        assert (attack.auc.interval is None) == (len(attack.per_target) == 1)
    trends = [e.trends for e in result.attacks["pl-mia-eb"].per_target]
    assert [found is not None for found in trends] == [True] + [False] * (len(trends) - 1)
    assert result.diagnostics.targets.keys() == set(result.about.targets)


def test_a_wrong_value_is_named_by_its_place(folder: Path) -> None:
    metrics = copy.deepcopy(metrics_of(folder))
    metrics["attacks"]["rmia"]["per_target"][0]["tpr"]["0.01"]["high"] = 1.5
    with pytest.raises(ValueError, match=r"attacks\.rmia\.per_target\[0\]\.tpr\.0\.01\.high is 1\.5") as caught:
        RunResult.from_json(metrics)
    assert "from 0 to 1" in str(caught.value)


@pytest.mark.parametrize("key", ["1e-2", "0.010", "1.5", "2", "-0.01", "nan", "a"])
def test_a_rate_has_one_spelling(folder: Path, key: str) -> None:
    metrics = copy.deepcopy(metrics_of(folder))
    tpr = metrics["attacks"]["rmia"]["tpr"]
    tpr[key] = tpr["0.01"]
    with pytest.raises(ValueError, match="key"):
        RunResult.from_json(metrics)
