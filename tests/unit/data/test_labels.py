"""Labels and groups of any type: what they become, which names stay, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plmia.data.dataset import LabelledData
from plmia.data.labels import encode_groups, encode_labels
from plmia.errors import DataError

X = np.zeros((6, 1))


def series(library: str, values: list[Any], **options: Any) -> Any:
    module = pytest.importorskip(library)
    return module.array(values, **options) if library == "pyarrow" else module.Series(values, **options)


@pytest.mark.parametrize(
    ("values", "codes", "names"),
    [
        (np.array([0, 1, 2, 0, 1, 2]), [0, 1, 2, 0, 1, 2], None),
        ([1, 2, 1, 2, 1, 2], [0, 1, 0, 1, 0, 1], ("1", "2")),
        ([-1, 1, -1, 1, 1, 1], [0, 1, 0, 1, 1, 1], ("-1", "1")),
        ([10, 9, 10, 9, 10, 9], [1, 0, 1, 0, 1, 0], ("9", "10")),
        (["10", "9", "10", "9", "10", "9"], [1, 0, 1, 0, 1, 0], ("9", "10")),
        (["no", "yes", "no", "yes", "no", "yes"], [0, 1, 0, 1, 0, 1], ("no", "yes")),
        (np.array(["é", "日", "é", "日", "é", "日"]), [0, 1, 0, 1, 0, 1], ("é", "日")),
        ([True, False] * 3, [1, 0] * 3, ("False", "True")),
        ([0.0, 1.0] * 3, [0, 1] * 3, None),
        ([3.0, 5.0] * 3, [0, 1] * 3, ("3", "5")),
        (np.array([2**63, 2**63 + 1] * 3, dtype=np.uint64), [0, 1] * 3, (str(2**63), str(2**63 + 1))),
    ],
)
def test_classes_are_numbered_in_order_and_keep_their_names(values: Any, codes: list[int], names: Any) -> None:
    labels, found = encode_labels(values, 6)
    assert labels.tolist() == codes
    assert labels.dtype == np.int64
    assert found == names


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
@pytest.mark.parametrize("values", [["b", "a"] * 3, [7, 5] * 3, [True, False] * 3])
def test_series_of_every_library_give_the_same(library: str, values: list[Any]) -> None:
    expected = encode_labels(values, 6)
    labels, names = encode_labels(series(library, values), 6)
    assert labels.tolist() == expected[0].tolist() == [1, 0] * 3
    assert names == expected[1]
    assert encode_groups(series(library, values), 6)[0].tolist() == encode_groups(values, 6)[0].tolist()


def test_categories_keep_only_what_occurs() -> None:
    pandas = pytest.importorskip("pandas")
    labels, names = encode_labels(pandas.Series(pandas.Categorical(["b", "a"] * 3, categories=["c", "b", "a"])), 6)
    assert (labels.tolist(), names) == ([1, 0] * 3, ("a", "b"))


@pytest.mark.parametrize("values", [[0.5, 1, 2, 3, 4, 5], np.linspace(0, 1, 6), np.arange(0.0, 60, 10) / 7])
def test_other_floats_are_values_to_predict(values: Any) -> None:
    y, names = encode_labels(values, 6)
    np.testing.assert_array_equal(y, np.asarray(values, np.float64))
    assert names is None
    data = LabelledData(X, values)
    assert (data.labels, data.n_classes, data.class_names) == (None, 0, None)


def test_many_whole_floats_are_values() -> None:
    values = np.repeat(np.arange(21.0), 2)
    assert encode_labels(values, 42)[0].dtype == np.float64
    assert encode_labels(values % 20, 42)[0].dtype == np.int64


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["a", None, "b", None, "a", "b"], ["2 of 6 records", "record 1", "remove"]),
        ([0.0, np.nan, 1, 0, 1, 1], ["1 of 6 records", "record 1"]),
        (["a"] * 6, ["only 'a'", "2 classes"]),
        ([4] * 6, ["only '4'", "2 classes"]),
        (["a", "a", "a", "b", "b", "c"], ["class 'c'", "1 record"]),
        (list("abcdef"), ["every value of y occurs once", "not a label"]),
        (["a", 1, "a", 1, "a", 1], ["mixes", "'a'", "1"]),
        ([0.5, np.inf, 1, 2, 3, 4], ["inf", "record 1"]),
        ([0.5] * 6, ["0.5", "2 different values"]),
        ([[1]] * 6, ["(6, 1)", "numpy.ravel"]),
        (np.array(["2020-01-01", "2021-01-01"] * 3, dtype="M8[D]"), ["dates"]),
        ([{"a": 1}] * 6, ["dict"]),
    ],
)
def test_labels_that_cannot_be_used_are_refused(values: Any, words: list[str]) -> None:
    with pytest.raises(DataError) as error:
        encode_labels(values, 6)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    ("values", "codes", "names"),
    [
        ([5, 5, 7, 7, 9, 9], [5, 5, 7, 7, 9, 9], None),
        ([2**62, 5, 7, 7, 9, 9], [2**62, 5, 7, 7, 9, 9], None),
        ([2**80, 2**80, 7, 7, 9, 9], [2, 2, 0, 0, 1, 1], ("7", "9", str(2**80))),
        ([2**80, 2**80 + 1, 7, 7, 9, 9], [2, 3, 0, 0, 1, 1], ("7", "9", str(2**80), str(2**80 + 1))),
        (list("ppqqrr"), [0, 0, 1, 1, 2, 2], ("p", "q", "r")),
        ([5.0, 5.0, 7.0, 7.0, 9.0, 9.0], [0, 0, 1, 1, 2, 2], ("5", "7", "9")),
    ],
)
def test_groups_are_integers_or_keep_their_names(values: Any, codes: list[int], names: Any) -> None:
    groups, found, notes = encode_groups(values, 6)
    assert groups.tolist() == codes
    assert (found, notes) == (names, [])


@pytest.mark.parametrize("values", [["p", "p", None, None, "q", "q"], [5.0, 5.0, np.nan, np.nan, 7.0, 7.0]])
def test_a_record_without_a_group_is_its_own(values: Any) -> None:
    groups, names, (note,) = encode_groups(values, 6)
    assert groups.tolist() == [0, 0, 2, 3, 1, 1]
    assert names is not None
    assert len(names) == 4
    assert (note.code, note.severity) == ("missing-groups", "caution")
    assert "2 of 6" in note.text
    assert LabelledData(X, [0, 1] * 3, values).notes == (note,)
    many = [*values, *([values[0]] * 94)]
    assert encode_groups(many, 100)[2][0].severity == "info"


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_groups_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(DataError, match=f"{value} at record 3"):
        encode_groups(np.array([0.0, 1.0, 2.0, value]), 4)
