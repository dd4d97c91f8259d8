"""Boosted trees: margins are the exact logits, seeds decide everything, and a missing library is named."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from plmia.data.dataset import LabelledData
from plmia.errors import RecipeError
from plmia.numerics import logit_from_logits
from plmia.training.recipes.gbdt import GBDT
from plmia.training.train import seed_of
from plmia.training.views import View

lightgbm = pytest.importorskip("lightgbm")

SMALL = GBDT(rounds=12, subsample=0.7)


def data_of(n_classes: int, n_points: int = 120) -> LabelledData:
    rng = np.random.default_rng(n_classes)
    y = np.arange(n_points) % n_classes
    return LabelledData(rng.normal(y[:, None], 1.2, (n_points, 4)).astype(np.float32), y)


def halves(data: LabelledData) -> Any:
    first = np.random.default_rng(0).permutation(data.n_points) < data.n_points // 2
    return np.stack([first, ~first])


@pytest.mark.parametrize("n_classes", [2, 4])
def test_margins_are_the_logits_of_the_probabilities(n_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with what the library itself answers when it is asked for probabilities."""
    data, boosters, train = data_of(n_classes), [], lightgbm.train
    monkeypatch.setattr(lightgbm, "train", lambda *a, **k: boosters.append(train(*a, **k)) or boosters[-1])
    views = (View(), View(scale=0.5, seed=3))
    (trained,) = SMALL.train(data, halves(data)[:1], [7], views)
    assert trained.conf.shape == (120, 2)
    assert trained.conf.dtype == np.float32
    for column, view in enumerate(views):
        p = boosters[0].predict(view.apply(data.X))
        if n_classes == 2:
            p = np.stack([1 - p, p], axis=1)
        own = p[np.arange(120), data.y]
        np.testing.assert_allclose(trained.conf[:, column], np.log(own / (1 - own)), rtol=1e-4, atol=1e-4)
        if column == 0:
            right, members = p.argmax(axis=1) == data.y, halves(data)[0]
            assert trained.train_accuracy == pytest.approx(right[members].mean())
            assert trained.test_accuracy == pytest.approx(right[~members].mean())
    assert trained.train_accuracy > trained.test_accuracy > 1 / n_classes
    assert trained.n_clipped == 0


def test_two_classes_have_the_margin_itself_as_logit(monkeypatch: pytest.MonkeyPatch) -> None:
    data, boosters, train = data_of(2), [], lightgbm.train
    monkeypatch.setattr(lightgbm, "train", lambda *a, **k: boosters.append(train(*a, **k)) or boosters[-1])
    (trained,) = SMALL.train(data, halves(data)[:1], [7], (View(),))
    margin = boosters[0].predict(data.X, raw_score=True)
    np.testing.assert_array_equal(trained.conf[:, 0], np.where(data.y == 1, margin, -margin).astype(np.float32))


def test_confidences_do_not_saturate() -> None:
    """With many rounds a probability would be rounded to 1."""
    data = data_of(2, 40)
    (trained,) = GBDT(rounds=400, learning_rate=0.5, subsample=1.0).train(data, halves(data)[:1], [0], (View(),))
    assert trained.train_accuracy == 1.0
    assert len(np.unique(trained.conf)) > 10
    assert np.isfinite(trained.conf).all()


def test_the_seed_decides_and_neighbours_do_not() -> None:
    data = data_of(3)
    seeds = [seed_of(0, 0, 0), seed_of(0, 1, 0)]
    both = SMALL.train(data, halves(data), seeds, (View(),))
    alone = SMALL.train(data, halves(data)[1:], seeds[1:], (View(),))
    np.testing.assert_array_equal(both[1].conf, alone[0].conf)
    other = SMALL.train(data, halves(data)[1:], seeds[:1], (View(),))
    assert (other[0].conf != alone[0].conf).mean() > 0.5


@pytest.mark.parametrize("depth", [1, 3, 40])
def test_depth_is_the_trees_depth(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, boosters, train = data_of(2), [], lightgbm.train
    monkeypatch.setattr(lightgbm, "train", lambda *a, **k: boosters.append(train(*a, **k)) or boosters[-1])
    GBDT(rounds=5, subsample=1.0, depth=depth).train(data, halves(data)[:1], [0], (View(),))

    def height(node: dict[str, Any]) -> int:
        return 1 + max(height(node["left_child"]), height(node["right_child"])) if "left_child" in node else 0

    heights = [height(tree["tree_structure"]) for tree in boosters[0].dump_model()["tree_info"]]
    assert max(heights) == depth if depth < 40 else 3 < max(heights) <= 40


def test_the_papers_parameters_are_the_defaults() -> None:
    assert GBDT().to_json() == {
        "recipe": "gbdt",
        "rounds": 250,
        "learning_rate": 0.1,
        "subsample": 0.2,
        "depth": 3,
        "library": "lightgbm",
    }
    assert GBDT() == GBDT(depth=3)
    assert hash(GBDT()) == hash(GBDT(depth=3))
    assert GBDT(depth=5) != GBDT()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rounds": 0}, "rounds from 1 to 2,147,483,647"),
        ({"rounds": 2**31}, "rounds from 1 to 2,147,483,647"),
        ({"depth": 0}, "depth from 1 to 1,000"),
        ({"depth": 10**11}, "depth from 1 to 1,000"),
        ({"subsample": 0}, r"subsample in \(0, 1\]"),
        ({"subsample": 1.5}, r"subsample in \(0, 1\]"),
        ({"learning_rate": 0.0}, "learning rate above 0, at most 1e\\+30"),
        ({"learning_rate": math.inf}, "learning rate above 0, at most 1e\\+30"),
    ],
)
def test_impossible_parameters_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        GBDT(**wrong)
    with pytest.raises(RecipeError, match=r"'catboost'.*lightgbm or xgboost"):
        GBDT(library="catboost")  # type: ignore[arg-type]


@pytest.mark.parametrize(("library", "package"), [("xgboost", "xgboost-cpu"), ("lightgbm", r"-e '.*\[gbdt\]'")])
def test_a_library_that_is_missing_is_named(library: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(RecipeError, match=f"{library} is not installed: pip install {package}"):
        GBDT(library=library).check(data_of(2))


def test_weights_are_not_kept() -> None:
    data = data_of(2)
    with pytest.raises(RecipeError, match="--keep-models"):
        SMALL.train(data, halves(data), [0, 1], (View(),), keep_weights=True)


class FakeXGBoost(ModuleType):
    """Answers as XGBoost does: margins [points] of two classes, [points, classes] of more, in single precision."""

    class DMatrix:
        def __init__(self, X: Any, y: Any = None) -> None:
            self.X, self.y = X, y

    def train(self, params: dict[str, Any], train_set: DMatrix, num_boost_round: int) -> FakeXGBoost:
        self.params, self.rows, self.rounds = params, len(train_set.y), num_boost_round
        return self

    def predict(self, asked: DMatrix, output_margin: bool) -> Any:
        assert output_margin
        n_classes = self.params.get("num_class", 2)
        return np.float32(asked.X[:, 0] if n_classes == 2 else asked.X[:, :n_classes])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_xgboost_is_asked_for_margins_too(n_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeXGBoost("xgboost")
    monkeypatch.setitem(sys.modules, "xgboost", fake)
    data = data_of(n_classes)
    recipe = GBDT(rounds=12, subsample=0.7, depth=5, library="xgboost")
    recipe.check(data)
    (trained,) = recipe.train(data, halves(data)[:1], [7], (View(),))
    logits = np.stack([0 * data.X[:, 0], data.X[:, 0]], axis=1) if n_classes == 2 else data.X[:, :3]
    np.testing.assert_allclose(trained.conf[:, 0], logit_from_logits(logits, data.y), rtol=1e-6)
    assert (fake.rows, fake.rounds) == (60, 12)
    assert {"eta": 0.1, "subsample": 0.7, "max_depth": 5, "seed": 7, "nthread": 1}.items() <= fake.params.items()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_xgboost_itself(n_classes: int) -> None:
    pytest.importorskip("xgboost", reason="XGBoost is an option that no extra installs")
    data = data_of(n_classes)
    recipe = GBDT(rounds=12, subsample=0.7, library="xgboost")
    first, again = (recipe.train(data, halves(data)[:1], [7], (View(),))[0] for _ in range(2))
    np.testing.assert_array_equal(first.conf, again.conf)
    assert first.train_accuracy > 0.8


def test_trees_that_diverge_have_no_confidence(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeXGBoost("xgboost")
    monkeypatch.setattr(FakeXGBoost, "predict", lambda self, asked, output_margin: np.full(len(asked.X), np.inf))
    monkeypatch.setitem(sys.modules, "xgboost", fake)
    data = data_of(2)
    (trained,) = GBDT(library="xgboost").train(data, halves(data)[:1], [7], (View(),))
    assert trained.diverged
    assert "returned" in trained.trouble


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_trees_tell_eight_digit_ids_apart(dtype: Any) -> None:
    """LightGBM itself would read integers as 32-bit floats, of which two ids share one."""
    ids = 20_000_000 + np.arange(400) % 40
    data = LabelledData(ids.astype(dtype)[:, None], ids % 2)
    recipe = GBDT(rounds=60, learning_rate=0.5, subsample=1.0, depth=12)
    (trained,) = recipe.train(data, np.ones((1, 400), bool), [0], (View(),))
    assert trained.train_accuracy == 1
    assert recipe.notes(data) == []


def test_what_is_done_to_the_data_is_said() -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 4, 5)).astype(np.uint8)
    (note,) = SMALL.notes(LabelledData(images, np.arange(40) % 2))
    assert (note.code, note.severity) == ("recipe-preprocessing", "info")
    ids = LabelledData((20_000_000 + np.arange(40))[:, None], np.arange(40) % 2)
    (note,) = GBDT(library="xgboost").notes(ids)
    assert (note.code, note.severity) == ("recipe-preprocessing", "caution")
    assert "40 distinct values of column 0 become 21" in note.text
