"""Tables and missing values in the built-in recipes: native categories of LightGBM, encoded features of perceptrons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plmia.data.dataset import LabelledData
from plmia.data.encoding import Encoding, columns_of
from plmia.errors import RecipeError
from plmia.training.recipes.named import parse_recipe
from plmia.training.views import View

pandas = pytest.importorskip("pandas")
N = 150
RNG = np.random.default_rng(1)
Y = RNG.integers(0, 2, N)
FRAME = pandas.DataFrame(
    {
        "age": np.where(RNG.random(N) < 0.1, np.nan, RNG.normal(50 + 5 * Y, 9, N)),
        "town": np.where(RNG.random(N) < 0.05, None, RNG.choice(["Ulm", "Bonn", "Köln", "Trier", "Jena", "Kiel"], N)),
        "visits": RNG.integers(0, 9, N),
    }
)
ROW = (np.arange(N) % 2 == 0)[None]
MLP = "mlp?widths=8&epochs=3&batch=16&device=cpu"
IMAGES = np.where(RNG.random((N, 8, 8)) < 0.01, np.nan, 1.0)


def signals(recipe: str, X: Any) -> Any:
    data, parsed = LabelledData(X, Y), parse_recipe(recipe)
    parsed.check(data)
    return parsed.train(data, ROW, [7], [View()])[0].conf


def libraries() -> list[Any]:
    polars, pyarrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    return [FRAME, polars.from_pandas(FRAME), pyarrow.Table.from_pandas(FRAME)]


@pytest.mark.parametrize(("recipe", "needs"), [("gbdt?rounds=5", "lightgbm"), (MLP, "torch")])
def test_mixed_tables_are_equal_in_every_library(recipe: str, needs: str) -> None:
    pytest.importorskip(needs)
    first, *others = (signals(recipe, frame) for frame in libraries())
    assert np.ptp(first) > 0
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize(("recipe", "needs"), [("gbdt?rounds=5", "lightgbm"), (MLP, "torch")])
def test_a_table_of_plain_numbers_gives_the_signals_of_the_array(recipe: str, needs: str) -> None:
    pytest.importorskip(needs)
    array = RNG.normal(Y[:, None], 1, (N, 3))
    np.testing.assert_array_equal(signals(recipe, pandas.DataFrame(array)), signals(recipe, array))


def test_lightgbm_gets_native_categories() -> None:
    """Against LightGBM itself, with categories by number and missing values as NaN."""
    lightgbm = pytest.importorskip("lightgbm")
    recipe, data = parse_recipe("gbdt?rounds=5"), LabelledData(FRAME, Y)
    towns = sorted(FRAME["town"][ROW[0]].dropna().unique())
    codes = FRAME["town"].map({town: k for k, town in enumerate(towns)}).to_numpy(float)
    X = np.column_stack([FRAME["age"], FRAME["visits"], codes])
    params = {
        "objective": "binary",
        "learning_rate": 0.1,
        "bagging_fraction": 0.2,
        "bagging_freq": 1,
        "max_depth": 3,
        "num_leaves": 8,
        "min_data_in_leaf": 1,
        "lambda_l2": 1.0,
        "seed": 7,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "verbosity": -1,
    }
    one = {"feature_pre_filter": False, "verbosity": -1}
    made = lightgbm.Dataset(X[ROW[0]], Y[ROW[0]], categorical_feature=[2], params=one)
    booster = lightgbm.train(params | one, made, num_boost_round=5)
    margin = booster.predict(X, raw_score=True)
    (trained,) = recipe.train(data, ROW, [7], [View()])
    np.testing.assert_allclose(trained.conf[:, 0], np.where(Y == 1, margin, -margin), rtol=1e-5)
    (note,) = recipe.notes(data)
    assert "native" in note.text
    assert recipe.preprocessing(data)
    assert not recipe.preprocessing(LabelledData(FRAME[["age"]], Y))


def test_missing_numbers_of_an_array_reach_lightgbm() -> None:
    pytest.importorskip("lightgbm")
    array = FRAME[["age", "visits"]].to_numpy(float)
    np.testing.assert_array_equal(signals("gbdt?rounds=5", array), signals("gbdt?rounds=5", FRAME[["age", "visits"]]))


def test_features_of_a_table_are_encoded_from_all_records() -> None:
    data = LabelledData(FRAME, Y)
    columns = columns_of(data)
    expected = Encoding(scale=False).fit(columns)(columns)
    np.testing.assert_array_equal(data.features(), expected.astype(np.float32))
    assert expected.shape == (N, 2 + 1 + 7)  # numbers, the mark of a missing age, six towns and the missing one
    assert np.isfinite(expected).all()


def test_a_perceptron_encodes_missing_values_and_says_so() -> None:
    pytest.importorskip("torch")
    recipe, array = parse_recipe(MLP), FRAME[["age", "visits"]].to_numpy(float)
    np.testing.assert_array_equal(signals(MLP, array), signals(MLP, FRAME[["age", "visits"]]))
    (note,) = recipe.notes(LabelledData(array, Y))
    assert all(word in note.text for word in ("median", "all records", "32-bit"))
    assert recipe.preprocessing(LabelledData(array, Y))
    assert recipe.preprocessing(LabelledData(np.nan_to_num(array), Y)) == ""


@pytest.mark.parametrize(("recipe", "X"), [("wide-resnet", FRAME), ("wide-resnet", IMAGES), ("mlp", IMAGES)])
def test_what_a_network_cannot_take_is_said_in_one_sentence(recipe: str, X: Any) -> None:
    pytest.importorskip("torch")
    with pytest.raises(RecipeError, match=recipe) as caught:
        parse_recipe(recipe).check(LabelledData(X, Y))
    assert "\n" not in str(caught.value)
