"""Predictions of a given target: kinds, class columns, and everything that cannot be used."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression, Ridge

from plmia.auditing.predictions import Predictions, match_names
from plmia.data.dataset import LabelledData
from plmia.errors import DataError
from plmia.training.recipes.recipe import Recipe, Trained
from plmia.training.recipes.scikit import Sklearn
from plmia.training.views import View

N = 40
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3))
Y = np.arange(N) % 3
LOGITS = RNG.normal(size=(N, 3)) * 2
P = softmax(LOGITS, axis=1)
CONF = np.log(P[np.arange(N), Y]) - np.log1p(-P[np.arange(N), Y])
MEMBERS = np.arange(N) < 20
DATA = LabelledData(X, Y)
NAMED = LabelledData(X, np.array(["cat", "dog", "eel"])[Y])
TWO = LabelledData(X, np.array(["no", "yes"])[Y % 2])
P_YES = P[:, 0]
PRICES = LabelledData(X, 100 + RNG.normal(size=N))
RIDGE = Sklearn(Ridge())
CONF_TWO = np.where(Y % 2 == 1, 1, -1) * (np.log(P_YES) - np.log1p(-P_YES))


@dataclass(frozen=True)
class Plain(Recipe):
    """A recipe that trains nothing."""

    signal: Any = "confidence"
    name: ClassVar[str] = "plain"

    def to_json(self) -> dict[str, Any]:
        return {"recipe": self.name}

    def train(self, *_: Any, **__: Any) -> list[Trained]:
        raise NotImplementedError


def ask(values: Any, kind: Any = "auto", names: Any = None, data: LabelledData = DATA, **options: Any) -> Any:
    recipe, views = options.get("recipe", Plain()), options.get("views", (View(),))
    return Predictions(np.asarray(values), kind, names, "p.csv").ask(data, MEMBERS, views, recipe)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (P, "auto"),
        (P, "probabilities"),
        (LOGITS, "auto"),
        (LOGITS, "logits"),
        (log_softmax(LOGITS, axis=1), "auto"),
        (P[np.arange(N), Y], "probabilities"),
        (P[np.arange(N), Y][:, None], "probabilities"),
        (CONF, "confidence"),
        (CONF[:, None], "confidence"),
        (P.astype(np.float32), "auto"),
    ],
)
def test_every_kind_gives_the_same_confidences(values: Any, kind: str) -> None:
    found = ask(values, kind)
    np.testing.assert_allclose(found.trained.conf[:, 0], CONF, rtol=1e-5, atol=1e-5)
    assert found.notes == ()


def test_class_predictions_tell_the_accuracy_and_single_values_of_two_classes_too() -> None:
    right = P.argmax(axis=1) == Y
    found = ask(P).trained
    assert (found.train_accuracy, found.test_accuracy) == pytest.approx((right[:20].mean(), right[20:].mean()))
    assert np.isnan(ask(CONF, "confidence").trained.train_accuracy)
    found = ask(CONF_TWO, "confidence", data=TWO).trained
    assert (found.train_accuracy, found.test_accuracy) == pytest.approx(
        ((CONF_TWO > 0)[:20].mean(), (CONF_TWO > 0)[20:].mean())
    )


@pytest.mark.parametrize(
    "names",
    [
        ["cat", "dog", "eel"],
        ["eel", "cat", "dog"],
        ["CAT", "Eel", "dog "],
        ["prob.eel", "prob.dog", "prob.cat"],
        [".pred_dog", ".pred_cat", ".pred_eel"],
        ["dog_p", "cat_p", "eel_p"],
        ["2", "0", "1"],
    ],
)
def test_columns_are_matched_with_the_classes_in_any_order(names: list[str]) -> None:
    short = [name.strip().casefold().removeprefix("prob.").removeprefix(".pred_").removesuffix("_p") for name in names]
    order = [{"cat": 0, "dog": 1, "eel": 2}.get(name, 0) if not name.isdigit() else int(name) for name in short]
    found = ask(P[:, order], names=names, data=NAMED)
    np.testing.assert_allclose(found.trained.conf[:, 0], CONF, rtol=1e-5)
    assert found.notes == ()


@pytest.mark.parametrize(
    ("names", "classes", "order"),
    [
        (["X..50K", "X.50K"], ["<=50K", ">50K"], [0, 1]),  # as R writes them
        (["X.50K", "X..50K"], ["<=50K", ">50K"], [1, 0]),
        (["X1", "X0"], ["0", "1"], [1, 0]),
        (["type.II", "type.I"], ["type I", "type II"], [1, 0]),
        (["TRUE", "FALSE"], ["False", "True"], [1, 0]),
        (["id", "b", "a"], ["a", "b"], [2, 1]),
        (["p10", "p1", "p0"], ["0", "1", "10"], [2, 1, 0]),
        (["V1", "V2", "V3"], ["0", "1", "2"], None),
        (["V1", "V2"], ["no", "yes"], None),
        (["a", "b", "b"], ["a", "b"], None),
        (["a0", "a1", "b0", "b1"], ["0", "1"], None),  # two ways to match
        (["a", "B", "b"], ["a", "b"], [0, 2]),
    ],
)
def test_names_of_columns_are_matched_as_other_tools_write_them(
    names: list[str], classes: list[str], order: list[int] | None
) -> None:
    found = match_names(names, classes)
    assert (None if found is None else found.tolist()) == order


def test_columns_without_names_of_classes_are_taken_in_order_with_a_note() -> None:
    for names in (["V1", "V2", "V3"], None):
        found = ask(P, names=names, data=NAMED)
        np.testing.assert_allclose(found.trained.conf[:, 0], CONF, rtol=1e-5)
        assert [note.code for note in found.notes] == ["target-columns"]
        assert "'cat', 'dog', 'eel'" in found.notes[0].text
    assert ask(P).notes == ()  # classes 0 to C - 1 have an order


def test_two_classes_in_the_wrong_order_are_refused() -> None:
    """However rare one class is, and never where the answers are right or at chance."""
    rng = np.random.default_rng(0)
    for share in (0.5, 0.1):
        y = (rng.random(400) < share).astype(np.int64)
        data, members = LabelledData(np.zeros((400, 1)), y), np.arange(400) % 2 == 0
        true = np.clip(0.1 + 0.8 * y + rng.normal(0, 0.2, 400), 0.01, 0.99)
        for second, is_refused in (
            (true, False),
            (1 - true, True),
            (rng.random(400), False),
            (np.full(400, 0.5), False),
        ):
            values = np.stack([1 - second, second], axis=1)
            for names in (["no", "yes"], None):
                given = Predictions(values, "auto", names, "p.csv")
                with pytest.raises(DataError, match="wrong order") if is_refused else contextlib.nullcontext():
                    given.ask(data, members, (View(),), Plain())


def test_other_columns_are_said_to_be_unused() -> None:
    values = np.column_stack([np.full(N, 7.0), P])
    found = ask(values, names=["weight", "cat", "dog", "eel"], data=NAMED)
    np.testing.assert_allclose(found.trained.conf[:, 0], CONF, rtol=1e-5)
    assert "'weight'" in found.notes[0].text


@pytest.mark.parametrize("name", ["yes", "no", "YES"])
@pytest.mark.parametrize("kind", ["auto", "probabilities", "logits"])
def test_a_single_column_named_after_one_of_two_classes_is_that_class(name: str, kind: str) -> None:
    p = P_YES if name.casefold() == "yes" else 1 - P_YES
    values = np.log(p) - np.log1p(-p) if kind == "logits" else p
    found = ask(values[:, None], kind, [name], TWO)
    np.testing.assert_allclose(found.trained.conf[:, 0], CONF_TWO, rtol=1e-4, atol=1e-5)
    log_odds = ask((np.log(p) - np.log1p(-p))[:, None], "auto", [name], TWO)
    np.testing.assert_allclose(log_odds.trained.conf[:, 0], CONF_TWO, rtol=1e-4, atol=1e-5)


def test_several_views_have_an_axis_of_their_own() -> None:
    views = (View(), View(scale=0.1))
    both = np.stack([P, P[:, [1, 2, 0]]], axis=1)
    found = ask(both, views=views).trained.conf
    assert found.shape == (N, 2)
    np.testing.assert_array_equal(found[:, 1], ask(P[:, [1, 2, 0]]).trained.conf[:, 0])
    np.testing.assert_array_equal(ask(found, "confidence", views=views).trained.conf, found)


def test_a_signal_of_ones_own_needs_a_recipe_with_one() -> None:
    signal = RNG.normal(size=N)
    found = ask(signal, "signal", data=LabelledData(X), recipe=Plain("signal")).trained
    np.testing.assert_allclose(found.conf[:, 0], signal, rtol=1e-6)
    assert np.isnan(found.train_accuracy)


@pytest.mark.parametrize("kind", ["auto", "values"])
def test_predicted_values_give_the_same_signal_as_the_regressor(kind: Any) -> None:
    fitted = Ridge().fit(X[MEMBERS], PRICES.y[MEMBERS])
    expected = RIDGE.query_given(fitted, PRICES, MEMBERS, (View(),)).conf
    for values in (fitted.predict(X), fitted.predict(X)[:, None]):
        found = ask(values, kind, names=["pred"], data=PRICES, recipe=RIDGE).trained
        np.testing.assert_array_equal(found.conf, expected)
        assert np.isnan(found.train_accuracy)
    ready = ask(expected, "signal", data=PRICES, recipe=RIDGE).trained
    np.testing.assert_array_equal(ready.conf, expected)


def test_a_signal_tells_no_accuracy_with_two_classes() -> None:
    found = ask(-np.abs(CONF), "signal", data=TWO, recipe=Plain("signal")).trained
    assert np.isnan(found.train_accuracy)


PERMUTED = np.where(np.arange(N)[:, None] == 7, np.nan, P)


@pytest.mark.parametrize(
    ("values", "options", "facts"),
    [
        (P[:-1], {}, ["p.csv", "(39, 3)", "40 records"]),
        (PERMUTED, {"names": ["cat", "dog", "eel"], "data": NAMED}, ["nan", "record 7", "'cat'"]),
        (P.astype(str), {}, ["type", "numbers"]),
        (P[:, :2], {}, ["2 columns", "3 classes"]),
        (P, {"names": ["cat", "dog", "owl"], "data": NAMED}, ["'owl'", "class 'eel'"]),
        (P, {"names": ["eel", "b", "c"], "data": NAMED}, ["class 'cat'"]),  # in order would be wrong
        (P[:, 0], {}, ["one value per record", "target-kind"]),
        (CONF, {}, ["one value per record", "target-kind"]),
        (CONF_TWO, {"data": TWO}, ["one value per record"]),
        (P_YES[:, None], {"data": TWO, "names": ["p"]}, ["one value per record"]),
        (P_YES[:, None], {"data": TWO, "names": ["p"], "kind": "logits"}, ["one value per record"]),
        (P[:, 0], {"kind": "confidence"}, ["[0, 1]", "probabilities"]),
        (CONF, {"kind": "probabilities"}, ["p.csv", "[0, 1]"]),
        (LOGITS, {"kind": "probabilities"}, ["p.csv", "[0, 1]"]),
        (100 * P, {}, ["p.csv", "100"]),
        (P * 0.9, {}, ["p.csv", "0.9"]),
        (P, {"kind": "confidence"}, ["(40, 3)", "1 view"]),
        (P, {"kind": "signal"}, ["'signal'", "'plain'"]),
        (P, {"kind": "probabilities", "recipe": Plain("signal")}, ["'probabilities'", "signal of its own"]),
        (P[:, 0], {"recipe": Plain("signal")}, ["predicted values", "classes", "--target-kind signal"]),
        (P[:, 0], {"recipe": Plain("signal"), "data": LabelledData(X)}, ["y is missing", "--target-kind signal"]),
        (P[:, 0], {"recipe": Plain("signal"), "data": PRICES}, ["plain", "--target-kind signal"]),  # no rule for them
        (P[:, 0], {"kind": "values"}, ["'values'", "'plain'"]),
        (P, {"recipe": RIDGE, "data": PRICES}, ["(40, 3)", "1 view"]),
        (P[:, :2], {"recipe": RIDGE, "data": PRICES, "names": ["y", "pred"]}, ["'y', 'pred'", "one column"]),
        (P, {"kind": "signal", "recipe": Plain("signal")}, ["(40, 3)", "1 view"]),
        (P, {"views": (View(), View(scale=0.1))}, ["(40, 3)", "2 views"]),
        (P, {"kind": "odds"}, ["'odds'", "probabilities"]),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(values: Any, options: Any, facts: list[str]) -> None:
    with pytest.raises(DataError) as error:
        ask(values, **options)
    for fact in facts:
        assert fact in str(error.value)
    assert "\n" not in str(error.value)


def test_a_frame_of_probabilities_may_have_numbered_columns() -> None:
    pandas = pytest.importorskip("pandas")
    found = Predictions.of_frame(pandas.DataFrame(P), "auto", "target", None).ask(DATA, MEMBERS, (View(),), Plain())
    np.testing.assert_allclose(found.trained.conf[:, 0], CONF)
    permuted = Predictions.of_frame(pandas.DataFrame(P)[[2, 0, 1]], "auto", "target", None)
    np.testing.assert_allclose(permuted.ask(DATA, MEMBERS, (View(),), Plain()).trained.conf[:, 0], CONF)


def test_a_table_without_columns_is_refused() -> None:
    with pytest.raises(DataError, match="no columns"):
        Predictions.of_frame(pd.DataFrame(index=range(3)), "auto", "a table", None, {})


def test_a_damaged_number_does_not_drop_the_column_of_a_class() -> None:
    frame = pd.DataFrame({"0": [f"{p:.6f}" for p in P_YES], "1": 1 - P_YES})
    frame.loc[8, "0"] = "0.2.7663"
    with pytest.raises(DataError, match=r"'0' of p.csv .*'0.2.7663'"):
        Predictions.of_frame(frame, "auto", "p.csv", None)
    codes = pd.DataFrame({"code": [f"{k:03}" for k in range(N)], "1": P_YES})
    assert Predictions.of_frame(codes, "auto", "p.csv", None).names == ["1"]


def test_one_wrong_value_does_not_turn_one_column_of_probabilities_into_logits() -> None:
    data = LabelledData(np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 2)
    values = np.random.default_rng(0).random((30, 1))
    values[7] = 8.2
    recipe = Sklearn(LogisticRegression())
    with pytest.raises(DataError, match=r"8\.2 at record 7"):
        Predictions(values, names=["1"], source="it").ask(data, np.arange(30) < 15, (View(),), recipe)


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (np.eye(3)[(Y + (np.arange(N) % 5 == 0)) % 3], {}),
        (np.eye(3)[(Y + (np.arange(N) % 5 == 0)) % 3], {"kind": "probabilities"}),
        ((Y % 2).astype(float), {"data": TWO, "names": ["yes"]}),
        ((np.arange(N) % 5 > 0).astype(int), {"kind": "probabilities"}),
    ],
)
def test_labels_in_place_of_probabilities_are_a_caution(values: Any, options: Any) -> None:
    found = ask(values, **options).notes
    assert [(note.severity, "p.csv" in note.text) for note in found if note.code == "hard-labels"] == [
        ("caution", True)
    ]
    almost = np.asarray(values, dtype=float).copy()
    almost[0] = np.where(almost[0] == 1, 0.9, 0.1 / max(1, almost[0].size - 1))
    assert "hard-labels" not in [note.code for note in ask(almost, **options).notes]
