"""The contract of a recipe, checked on every recipe of the package and on one that a user wrote."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import pytest

from plmia.data.arrays import BoolArray, SignalKind
from plmia.data.dataset import LabelledData
from plmia.errors import Note, RecipeError, require_members
from plmia.training.recipes.named import RECIPES, as_recipe, parse_recipe
from plmia.training.recipes.recipe import Recipe, Trained, views_for
from plmia.training.views import View, check_views

N = 60
RNG = np.random.default_rng(0)
Y = np.arange(N) % 3
TABLE = LabelledData(RNG.normal(Y[:, None], 1.0, (N, 4)), Y)
VALUES = LabelledData(TABLE.X, TABLE.X @ [1.0, 2.0, 0.0, 0.5] + RNG.normal(0, 0.1, N))
IMAGES = LabelledData(RNG.integers(0, 255, (N, 8, 8, 3), dtype=np.uint8), Y)
MEMBERS = np.stack([np.arange(N) % 4 < 2, np.arange(N) % 4 > 0])
SEEDS = (3, 2**31 - 1)


@dataclass(frozen=True)
class Prior(Recipe):
    """A user's recipe with the least that a recipe needs: members know their class."""

    name: ClassVar[str] = "prior"

    def to_json(self) -> dict[str, Any]:
        return {"recipe": self.name}

    def train(
        self,
        data: LabelledData,
        members: BoolArray,
        seeds: Sequence[int],
        views: Sequence[View],
        keep_weights: bool = False,
    ) -> list[Trained]:
        noise = [np.random.default_rng(seed).normal(size=(data.n_points, len(views))) for seed in seeds]
        return [
            Trained((row[:, None] + rest).astype(np.float32), 1.0, 0.5)
            for row, rest in zip(members, noise, strict=True)
        ]


TEXTS = {
    "mlp": "mlp?widths=8&epochs=2&batch=16&device=cpu",
    "wide-resnet": "wide-resnet?depth=10&width=1&epochs=1&batch=16&device=cpu&augment=True",
    "gbdt": "gbdt?rounds=3",
    "sklearn:ESTIMATOR": "sklearn:DecisionTreeClassifier?max_depth=3",
    "function:FILE.py": f"function:{Path(__file__).parent / 'own_recipe.py'}",
}
NEEDS = {"mlp": "torch", "wide-resnet": "torch", "gbdt": "lightgbm"}


def perceptron() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture(params=[*RECIPES, "prior", "regressor", "torch"])
def recipe(request: pytest.FixtureRequest) -> Recipe:
    if request.param == "prior":
        return Prior()
    if request.param == "torch":
        pytest.importorskip("torch")
        from plmia import Torch

        return Torch(perceptron, epochs=2, batch=16, device="cpu")
    if request.param == "regressor":
        return parse_recipe("sklearn:DecisionTreeRegressor?max_depth=3")
    needed = NEEDS.get(request.param)
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    return parse_recipe(TEXTS[request.param])


@pytest.fixture
def data(recipe: Recipe) -> LabelledData:
    if recipe.signal == "signal":
        return VALUES
    return IMAGES if recipe.name == "wide-resnet" else TABLE


@pytest.fixture
def views(recipe: Recipe) -> tuple[View, ...]:
    return (View(), View(mirror=True)) if recipe.name == "wide-resnet" else (View(), View(scale=0.1))


def test_every_named_recipe_is_tested() -> None:
    assert TEXTS.keys() == RECIPES.keys()


def test_every_member_has_its_type(recipe: Recipe, data: LabelledData) -> None:
    require_members(recipe, Recipe, RecipeError)
    assert as_recipe(recipe) == recipe
    assert recipe.identified() == recipe
    for text in (recipe.name, recipe.source, recipe.description):
        assert text
        assert "\n" not in text
    assert recipe.description.startswith(recipe.name)
    assert recipe.stack >= 1
    assert isinstance(recipe.keeps_weights, bool)
    assert isinstance(recipe.augments, bool)
    assert recipe.signal in get_args(SignalKind)
    assert recipe.preprocessing(data) == ""
    assert isinstance(recipe.declared_files, tuple)
    operations = [recipe.operations(data, n) for n in (10, 40)]
    assert operations == [None, None] or 0 < operations[0] < operations[1]
    recipe.check(data)
    assert all(isinstance(note, Note) and note.code == "recipe-preprocessing" for note in recipe.notes(data))
    check_views(views_for(recipe, data), data)
    assert (len(views_for(recipe, data)) > 1) == recipe.augments


def test_json_identifies_the_recipe(recipe: Recipe) -> None:
    """In every process: a recipe that was sent is the same recipe, and its JSON is plain."""
    described = recipe.to_json()
    assert described["recipe"] == recipe.name
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    arrived = ForkingPickler.loads(ForkingPickler.dumps(recipe))
    assert arrived == recipe
    assert hash(arrived) == hash(recipe)
    assert arrived.to_json() == described


def test_one_result_per_model(recipe: Recipe, data: LabelledData, views: tuple[View, ...]) -> None:
    before = data.X.copy(), data.y.copy()
    trained = recipe.train(data, MEMBERS, SEEDS, views)
    assert len(trained) == len(MEMBERS)
    for outcome in trained:
        assert outcome.conf.shape == (N, len(views))
        assert outcome.conf.dtype == np.float32
        assert np.isfinite(outcome.conf).all()
        assert not outcome.diverged
        known = recipe.signal == "confidence"
        assert all((0 <= a <= 1) if known else np.isnan(a) for a in (outcome.train_accuracy, outcome.test_accuracy))
        assert outcome.weights is None
    np.testing.assert_array_equal(data.X, before[0])
    np.testing.assert_array_equal(data.y, before[1])


def test_a_model_depends_on_its_members_and_its_seed_alone(
    recipe: Recipe, data: LabelledData, views: tuple[View, ...]
) -> None:
    together = recipe.train(data, MEMBERS, SEEDS, views)
    for row, seed, expected in zip(MEMBERS, SEEDS, together, strict=True):
        (alone,) = recipe.train(data, row[None], [seed], views)
        np.testing.assert_allclose(alone.conf, expected.conf, rtol=1e-5, atol=1e-5)
        np.testing.assert_equal(alone.train_accuracy, expected.train_accuracy)


def test_weights_are_returned_if_it_keeps_them(recipe: Recipe, data: LabelledData, views: tuple[View, ...]) -> None:
    if not recipe.keeps_weights:
        return  # `audit` refuses --keep-models
    for outcome in recipe.train(data, MEMBERS, SEEDS, views, keep_weights=True):
        assert outcome.weights
        assert all(isinstance(array, np.ndarray) for array in outcome.weights.values())


def test_a_foreign_model_is_answered_or_refused_in_one_sentence(
    recipe: Recipe, data: LabelledData, views: tuple[View, ...]
) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe.query_given(object(), data, MEMBERS[0], views)
    assert "object" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_member_is_named() -> None:
    class Partial:
        name = "partial"
        stack = 1

        def train(self) -> None: ...

        def check(self) -> None: ...

    with pytest.raises(RecipeError, match=r"Partial lacks .*notes.*to_json.*Recipe"):
        as_recipe(Partial())

    class Unfinished(Recipe):
        name = "unfinished"

    with pytest.raises(TypeError, match=r"to_json.*train"):
        Unfinished()  # type: ignore[abstract]
