"""Tables in scikit-learn recipes: the default preprocessing, pipelines of the user's, and classes by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    BaggingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from plmia.data.dataset import LabelledData
from plmia.errors import RecipeError
from plmia.training.recipes.estimators import default_encoding
from plmia.training.recipes.scikit import Sklearn
from plmia.training.train import audit_about
from plmia.training.views import View

pandas = pytest.importorskip("pandas")
N = 120
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, N)
FRAME = pandas.DataFrame(
    {
        "age": np.where(RNG.random(N) < 0.1, np.nan, RNG.normal(50 + 5 * Y, 9, N)),
        "town": RNG.choice(["Ulm", "Bonn", "Köln"], N),
        "visits": RNG.integers(0, 9, N),
    }
)
ROW = (np.arange(N) % 2 == 0)[None]


def signals(model: Any, X: Any, y: Any = Y) -> Any:
    data = LabelledData(X, y)
    recipe = Sklearn(model)
    recipe.check(data)
    return recipe.train(data, ROW, [7], [View()])[0].conf


def libraries(frame: Any) -> list[Any]:
    polars, pyarrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    return [frame, polars.from_pandas(frame), pyarrow.Table.from_pandas(frame)]


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        KNeighborsClassifier(),
        DecisionTreeClassifier(max_depth=3),
        RandomForestClassifier(5),
        HistGradientBoostingClassifier(max_iter=5),
        BaggingClassifier(LogisticRegression(), 3),
    ],
)
def test_mixed_tables_run_and_are_equal_in_every_library(model: Any) -> None:
    first, *others = (signals(model, frame) for frame in libraries(FRAME))
    assert np.ptp(first) > 0
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("model", [LogisticRegression(), HistGradientBoostingClassifier(max_iter=5)])
def test_a_table_of_plain_numbers_gives_the_signals_of_the_array(model: Any) -> None:
    array = RNG.normal(Y[:, None], 1, (N, 3))
    frame = pandas.DataFrame(array, columns=list("abc"))
    for table in libraries(frame):
        assert default_encoding(model, LabelledData(table, Y)) is None
        np.testing.assert_array_equal(signals(model, table), signals(model, array))


def test_a_pipeline_that_selects_columns_by_name_gives_the_signals_of_the_encoded_array() -> None:
    by_name = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["age", "visits"]), (OneHotEncoder(), ["town"])
    )
    towns = sorted(FRAME["town"].unique())
    encoded = np.column_stack([FRAME["age"], FRAME["visits"], *(FRAME["town"] == town for town in towns)]).astype(float)
    by_number = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), [0, 1]), remainder="passthrough"
    )
    named = make_pipeline(by_name, LogisticRegression())
    for table in libraries(FRAME)[:2]:  # scikit-learn selects columns of pandas and polars by name
        found = signals(named, table)
        np.testing.assert_allclose(found, signals(make_pipeline(by_number, LogisticRegression()), encoded), atol=1e-6)


def test_the_default_equals_a_pipeline_by_hand() -> None:
    by_hand = make_column_transformer(
        (
            make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler()),
            ["age", "visits"],
        ),
        (OneHotEncoder(), ["town"]),
    )
    expected = signals(make_pipeline(by_hand, LogisticRegression()), FRAME)
    np.testing.assert_allclose(signals(LogisticRegression(), FRAME), expected, atol=1e-6)


def test_a_pipeline_of_the_users_gets_the_frame_as_it_is() -> None:
    seen = []

    def look(X: Any) -> Any:
        seen.append(X)
        return X[["visits"]].to_numpy()

    signals(make_pipeline(FunctionTransformer(look), LogisticRegression()), FRAME)
    for frame, expected in zip(seen, (FRAME[ROW[0]], FRAME), strict=True):
        pandas.testing.assert_frame_equal(frame.reset_index(drop=True), expected.reset_index(drop=True))


def test_missing_numbers_of_an_array() -> None:
    array = np.where(RNG.random((N, 3)) < 0.1, np.nan, RNG.normal(Y[:, None], 1, (N, 3)))
    imputer = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    expected = signals(make_pipeline(imputer, LogisticRegression()), array)
    np.testing.assert_allclose(signals(LogisticRegression(), array), expected, atol=1e-6)
    # Trees that take missing values get them.
    fitted = RandomForestClassifier(5, random_state=7).fit(array[ROW[0]], Y[ROW[0]])
    direct = Sklearn.query(fitted, LabelledData(array, Y), ROW[0], [View()])
    np.testing.assert_array_equal(signals(RandomForestClassifier(5), array), direct.conf)


def test_histogram_trees_get_native_categories() -> None:
    model = HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=2, random_state=7)
    codes = np.column_stack([FRAME["age"], FRAME["visits"], pandas.Categorical(FRAME["town"]).codes]).astype(float)
    by_hand = clone(model).set_params(categorical_features=[2]).fit(codes[ROW[0]], Y[ROW[0]])
    expected = Sklearn.query(by_hand, LabelledData(codes, Y), ROW[0], [View()]).conf
    np.testing.assert_array_equal(signals(model, FRAME), expected)


def test_columns_without_any_value_do_no_harm() -> None:
    """Neither where the whole table lacks them, nor where the training records do."""
    late = FRAME.assign(
        empty=np.nan, late=np.where(ROW[0], np.nan, 1.0), word=pandas.Series(np.where(ROW[0], None, "a"))
    )
    for model in (HistGradientBoostingClassifier(max_iter=5), LogisticRegression(), RandomForestClassifier(5)):
        assert np.ptp(signals(model, late)) > 0


def test_the_default_is_noted_and_part_of_the_identity() -> None:
    data, plain = LabelledData(FRAME, Y), LabelledData(FRAME[["visits"]], Y)
    linear, forest = Sklearn(LogisticRegression()), Sklearn(RandomForestClassifier())
    (note,) = linear.notes(data)
    assert note.code == "recipe-preprocessing"
    assert all(word in note.text for word in ("median", "scaled", "one-hot", "32"))
    assert "scaled" not in forest.notes(data)[0].text
    assert not linear.notes(plain)
    abouts = [audit_about(data, recipe, [View()], 0).get("preprocessing") for recipe in (linear, forest)]
    assert None not in abouts
    assert abouts[0] != abouts[1]
    assert "preprocessing" not in audit_about(plain, linear, [View()], 0)


def test_a_pipeline_that_cannot_take_the_table_is_named_with_a_remedy() -> None:
    with pytest.raises(RecipeError, match=r"LogisticRegression|Pipeline") as caught:
        signals(make_pipeline(StandardScaler(), LogisticRegression()), FRAME)
    assert "alone" in str(caught.value)
    assert "\n" not in str(caught.value)
    lightgbm = pytest.importorskip("lightgbm")
    with pytest.raises(RecipeError, match=r"LGBMClassifier.*pipeline") as caught:
        signals(lightgbm.LGBMClassifier(n_estimators=2), FRAME)
    assert "\n" not in str(caught.value)


def test_a_model_with_original_class_names_is_matched() -> None:
    names = np.array(["yes", "no"])[Y]  # sorted, "no" comes first
    array = RNG.normal(Y[:, None], 1, (N, 3))
    data = LabelledData(array, names)
    fitted = LogisticRegression().fit(array[ROW[0]], names[ROW[0]])
    by_number = LogisticRegression().fit(array[ROW[0]], data.y[ROW[0]])
    expected = Sklearn.query(by_number, data, ROW[0], [View()])
    found = Sklearn.query(fitted, data, ROW[0], [View()])
    np.testing.assert_array_equal(found.conf, expected.conf)
    assert found.train_accuracy == expected.train_accuracy > 0.5
    with pytest.raises(RecipeError, match="no to yes"):
        Sklearn.query(LogisticRegression().fit(array, np.where(Y, "a", "b")), data, ROW[0], [View()])


@pytest.mark.parametrize("model", [Ridge(), RandomForestRegressor(5), make_pipeline(StandardScaler(), Ridge())])
def test_the_signal_of_a_regressor_is_minus_the_residual(model: Any) -> None:
    array, recipe = RNG.normal(size=(N, 3)), Sklearn(model)
    values = array @ [1.0, 2.0, 3.0] + RNG.normal(0, 5, N)
    assert recipe.signal == "signal"
    (trained,) = recipe.train(LabelledData(array, values), ROW, [7], [View(), View(scale=0.1)])
    fitted = clone(model)
    states = [key for key in fitted.get_params() if key.endswith("random_state")]
    fitted.set_params(**dict.fromkeys(states, 7)).fit(array[ROW[0]], values[ROW[0]])
    expected = [-abs(prediction - value) for prediction, value in zip(fitted.predict(array), values, strict=True)]
    np.testing.assert_allclose(trained.conf[:, 0], expected, rtol=1e-5)
    assert trained.conf.shape == (N, 2)
    assert np.isnan(trained.train_accuracy)


def test_a_regressor_takes_a_mixed_table() -> None:
    values = RNG.normal(size=N)
    first, *others = (signals(Ridge(), frame, values) for frame in libraries(FRAME))
    assert all(np.array_equal(first, other) for other in others)
