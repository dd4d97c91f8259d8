"""Audits whose models return a signal instead of classes, from the shell and from Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

import plmia

X, VALUES = load_diabetes(return_X_y=True)
CLASS_WORDS = ("Logit-scaled", "accuracy on members", "Target's accuracy", "true label")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    # Whole numbers, many of which occur once.
    np.savez(tmp_path / "diabetes.npz", X=X, y=VALUES.astype(int))
    return tmp_path / "diabetes.npz"


def test_a_regressor_from_file_to_report(data: Path, tmp_path: Path, command: Any) -> None:
    run = tmp_path / "run"
    recipe = "sklearn:DecisionTreeRegressor?max_depth=6"
    done = command("audit", "--data", data, "--recipe", recipe, "--references", 8, "-o", run)
    assert done.exit_code == 0, done.output
    about = json.loads((run / "metrics.json").read_text())["about"]
    assert about["signal"] == "signal"
    assert "accuracy" not in about
    assert about["train_accuracy"] is None
    page = (run / "report.html").read_text()
    assert "Signal, first view" in page
    assert not [word for word in CLASS_WORDS if word in page or word in done.output]
    again = command("audit", "--data", data, "--recipe", recipe, "--references", 8, "-o", run)
    assert again.exit_code == 0

    # The store knows what its signals are, so that they are scored alike.
    scored = command("score", run / "signals", "-o", tmp_path / "scored", "--references", 8)
    assert scored.exit_code == 0, scored.output
    first, second = (json.loads((folder / "metrics.json").read_text()) for folder in (run, tmp_path / "scored"))
    assert second["about"]["signal"] == "signal"
    assert first["attacks"]["rmia"]["auc"] == second["attacks"]["rmia"]["auc"]
    for verb in (
        ("gate", run, "--max-tpr", "0.9", "--at-fpr", "0.1"),
        ("report", run),
        ("compare", run, tmp_path / "scored"),
    ):
        assert command(*verb).exit_code in (0, 3), verb


def test_a_file_of_signals_of_any_scale(signals_file: Any, tmp_path: Path, command: Any) -> None:
    rng = np.random.default_rng(0)
    members = rng.random((12, 300)) < 0.5
    path = signals_file(
        replace={
            "signals": (0.5 + 0.01 * (rng.normal(size=members.shape) + 2 * members)).astype("float32"),
            "membership": members,
            "labels": None,
        }
    )
    assert command("score", path, "-o", tmp_path / "a").exit_code == 2  # they look like probabilities
    done = command("score", path, "-o", tmp_path / "b", "--scale", "signal")
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "b" / "metrics.json").read_text())["attacks"]["rmia"]["auc"]["mean"] > 0.7


def nearest(X: Any, y: Any, seed: int) -> Any:
    """A density model: the training records themselves, blurred."""
    del y
    return X + np.random.default_rng(seed).normal(0, 0.02, X.shape)


def closeness(model: Any, X: Any, y: Any) -> Any:
    del y
    return -np.sqrt(((X[:, None] - model[None]) ** 2).sum(axis=2)).min(axis=1)


def test_a_signal_needs_no_labels(tmp_path: Path) -> None:
    recipe = plmia.Function.of(nearest, signal=closeness)
    audit = plmia.audit(recipe, X[:200], references=8, folder=tmp_path / "run", progress=False)
    assert audit.result.about.signal == "signal"
    assert audit.auc("rmia") > 0.9
    assert "no classes to compare" in audit.report.read_text()
    assert len(audit.records()) > 100


def test_without_labels_a_classifier_is_refused(tmp_path: Path) -> None:
    with pytest.raises(plmia.PlmiaError, match="class"):
        plmia.audit("sklearn:GaussianNB", X, folder=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
