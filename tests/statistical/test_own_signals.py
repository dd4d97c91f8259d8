"""Audits of a regressor and of a signal without labels: without a leak the rates hold, a leak is found.

Every model is trained by its recipe. A model without a leak ignores its training records and depends on its seed alone.
Bounds are four standard errors wide; seeds are fixed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import Ridge

from plmia import ATTACKS, Setup, attack_targets
from plmia.data.dataset import LabelledData
from plmia.data.designs import audit_design
from plmia.results.summary import assess
from plmia.results.verdict import Assessment
from plmia.signals.signals import Signals
from plmia.training.recipes.function import Function
from plmia.training.recipes.recipe import Recipe
from plmia.training.recipes.scikit import Sklearn
from plmia.training.views import View

AUDITS, POINTS, REFERENCES, POPULATION = 40, 400, 8, 100
NAMES = ("attack-p", "rmia", "lira-fixed", "pl-mia-eb")
FEATURES = 60


class Oblivious(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Random coefficients, whatever the training records."""

    def __init__(self, random_state: int = 0) -> None:
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Oblivious:
        del X, y
        self.coef_ = np.random.default_rng(self.random_state).normal(size=FEATURES)
        return self

    def predict(self, X: Any) -> Any:
        return X @ self.coef_


def remember(X: Any, y: Any, seed: int) -> Any:
    """Keep the training records, blurred."""
    assert y is None
    return X + np.random.default_rng(seed).normal(0, 0.7, X.shape)


def forget(X: Any, y: Any, seed: int) -> Any:
    """Keep records that have nothing to do with the training records."""
    assert y is None
    return np.random.default_rng(seed).normal(size=X.shape)


def closeness(model: Any, X: Any, y: Any) -> Any:
    """Log density of the kept records around each record, up to a constant and on a scale of its own."""
    assert y is None
    squares = (X**2).sum(axis=1)[:, None] + (model**2).sum(axis=1) - 2 * X @ model.T
    return 1e4 * np.log(np.exp(-squares / 20).mean(axis=1))


RECIPES: dict[str, tuple[Recipe, Recipe]] = {
    "regressor": (Sklearn(Oblivious()), Sklearn(Ridge(alpha=1.0))),
    "density": (Function.of(forget, signal=closeness, key="a"), Function.of(remember, signal=closeness, key="b")),
}


@cache
def audits(kind: str, leak: bool) -> tuple[dict[str, Assessment], ...]:
    recipe = RECIPES[kind][leak]
    assert recipe.signal == "signal"
    found = []
    for seed in range(AUDITS):
        rng = np.random.default_rng([seed, leak])
        X = rng.normal(size=(POINTS, FEATURES))
        y = X[:, :5].sum(axis=1) + rng.standard_t(3, POINTS) if kind == "regressor" else None
        data, design = LabelledData(X, y), audit_design(POINTS, REFERENCES, rng)
        seeds = [1000 * seed + model for model in range(REFERENCES + 1)]
        trained = recipe.train(data, design.matrix, seeds, [View()])
        signals = Signals(np.stack([model.conf for model in trained]), design, kind="signal")
        setup = Setup(population=POPULATION, seed=seed)
        results = attack_targets(signals, [ATTACKS[name] for name in NAMES], [0], setup)
        found.append({result.scores.attack: assess(result) for result in results})
    return tuple(found)


@pytest.mark.parametrize("attack", NAMES)
@pytest.mark.parametrize("kind", RECIPES)
def test_without_a_leak_the_rates_hold(kind: str, attack: str) -> None:
    runs = [run[attack].summary for run in audits(kind, leak=False)]
    for level in (0.1, 0.01):
        rates = [run.decisions["conformal"][level].fpr_realised for run in runs]
        expected = np.floor(level * (POPULATION + 1)) / (POPULATION + 1)
        # One audit: a threshold from the population, applied to 100 other non-members.
        error = np.sqrt(expected * (1 - expected) * (1 / POPULATION + 1 / 100) / AUDITS)
        assert abs(np.mean(np.array(rates, float)) - expected) < 4 * error
    areas = [run.auc for run in runs]
    assert abs(np.mean(areas) - 0.5) < 4 * np.std(areas) / np.sqrt(AUDITS)
    assert sum(run.auc_interval.low > 0.5 for run in runs if run.auc_interval) <= 5  # 2.5 % of 40 is one


@pytest.mark.parametrize("attack", NAMES)
@pytest.mark.parametrize("kind", RECIPES)
def test_with_a_leak_it_is_found_and_the_rates_hold(kind: str, attack: str) -> None:
    runs = [run[attack].summary for run in audits(kind, leak=True)]
    rates = [run.decisions["conformal"][0.1].fpr_realised for run in runs]
    assert np.mean(np.array(rates, float)) < 10 / 101 + 4 * np.sqrt(0.09 * 0.02 / AUDITS)
    uses_references = attack != "attack-p"
    assert np.mean([run.auc for run in runs]) > (0.6 if uses_references else 0.5)
    if uses_references:
        assert np.mean([run.auc_interval.low > 0.5 for run in runs if run.auc_interval]) > 0.8
