"""Map-style datasets: contents decide identity, pairs give labels, random ones are never taken for the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from plmia.data.dataset import LabelledData
from plmia.data.records import Records
from plmia.errors import DataError

RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=(12, 3))


@dataclass
class Items:
    """A dataset whose records are what a function returns."""

    get: Callable[[int], Any]
    n: int = 12

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, record: int) -> Any:
        return self.get(record)


def pair(record: int) -> Any:
    return VALUES[record], record % 2


def single(record: int) -> Any:
    return VALUES[record]


def digest(get: Callable[[int], Any], y: Any = None) -> str:
    return LabelledData(Items(get), y).digest


def test_pairs_bring_their_labels() -> None:
    data = LabelledData(Items(pair))
    assert isinstance(data.X, Records)
    assert data.X.paired
    assert data.labels is not None
    np.testing.assert_array_equal(data.labels, np.arange(12) % 2)
    assert data.n_points == 12
    assert (data.is_array, data.is_table, data.is_images) == (False, False, False)
    assert not data.notes


def test_names_of_classes_and_values_to_predict_work_as_in_arrays() -> None:
    named = LabelledData(Items(lambda i: (VALUES[i], "ab"[i % 2])))
    assert named.class_names == ("a", "b")
    values = LabelledData(Items(lambda i: (VALUES[i], float(VALUES[i, 0]))))
    assert values.labels is None
    np.testing.assert_array_equal(values.y, VALUES[:, 0])


def test_records_without_labels_or_with_other_targets_have_none() -> None:
    assert LabelledData(Items(single)).y is None
    masks = LabelledData(Items(lambda i: (VALUES[i], VALUES[i] > 0)))
    assert masks.y is None
    assert masks.X.paired


def test_given_labels_leave_pairs_alone_unless_they_are_the_same() -> None:
    y = np.arange(12) % 2
    assert LabelledData(Items(pair), y).X.paired
    assert not LabelledData(Items(single), y).X.paired
    two_inputs = LabelledData(Items(lambda i: (VALUES[i], i)), y)
    assert not two_inputs.X.paired
    assert isinstance(two_inputs.X.split(3)[0], tuple)


@pytest.mark.parametrize(
    "changed",
    [
        lambda i: (VALUES[i] + (i == 7), i % 2),
        lambda i: (VALUES[i], 1 - i % 2),
        lambda i: (VALUES[i].astype(np.float32), i % 2),
        lambda i: (VALUES[i][None], i % 2),
        lambda i: (VALUES[11 - i], i % 2),
        lambda i: ((VALUES[i],), i % 2),
        lambda i: ({"x": VALUES[i]}, i % 2),
        lambda i: (VALUES[i].tolist(), i % 2),
    ],
)
def test_another_content_has_another_digest(changed: Callable[[int], Any]) -> None:
    assert digest(changed) != digest(pair)
    assert digest(changed) == digest(changed)


def test_the_object_does_not_matter() -> None:
    assert digest(pair) == digest(lambda i: [VALUES.copy()[i], int(i % 2)])


def test_the_same_parts_in_another_grouping_differ() -> None:
    y = np.arange(12) % 2
    forms = [lambda i: ("ab", "c", i), lambda i: ("a", "bc", i), lambda i: (("ab", "c"), i, None)]
    assert len({digest(form, y) for form in forms}) == 3


def test_tensors_count_like_arrays() -> None:
    torch = pytest.importorskip("torch")
    tensors = torch.from_numpy(VALUES)
    assert digest(lambda i: (tensors[i], i % 2)) == digest(pair)
    labels = LabelledData(Items(lambda i: (tensors[i].bfloat16(), torch.tensor(i % 2)))).labels
    assert labels is not None
    assert labels.tolist() == [i % 2 for i in range(12)]


def test_random_records_are_noted_and_never_the_same() -> None:
    rng = np.random.default_rng(1)
    data = [LabelledData(Items(lambda i: (VALUES[i] + rng.normal(), i % 2))) for _ in range(2)]
    assert [note.code for note in data[0].notes] == ["records-vary"]
    assert data[0].digest != data[1].digest
    assert data[0].digest == data[0].digest


def test_copies_are_found_by_their_inputs() -> None:
    data = LabelledData(Items(lambda i: (VALUES[i // 2], i % 2)))
    np.testing.assert_array_equal(data.first_copies, np.arange(12) // 2 * 2)


def test_rows_are_a_dataset_again() -> None:
    data = LabelledData(Items(pair))
    chosen = data.rows(np.arange(12) % 3 == 0)
    assert len(chosen) == 4
    np.testing.assert_array_equal(chosen[1][0], VALUES[3])
    assert len(data.rows()) == 12


def test_they_can_be_sent_to_another_process() -> None:
    data = LabelledData(Items(pair))
    arrived = pickle.loads(pickle.dumps(data))
    assert arrived.digest == data.digest
    np.testing.assert_array_equal(arrived.X.split(5)[0], VALUES[5])


def test_an_array_of_numbers_is_needed_elsewhere() -> None:
    with pytest.raises(DataError, match="Torch"):
        LabelledData(Items(pair)).features()


def broken(record: int) -> Any:
    raise KeyError("file 3.png")


@pytest.mark.parametrize(
    ("get", "n", "fact"),
    [
        (broken, 12, r"record 0 .*KeyError.*3\.png"),
        (pair, 0, "no records"),
        (lambda i: (object(), i % 2), 12, "object"),
    ],
)
def test_what_cannot_be_read_is_named(get: Callable[[int], Any], n: int, fact: str) -> None:
    with pytest.raises(DataError, match=fact):
        LabelledData(Items(get, n))


@pytest.mark.parametrize(
    ("shape", "kept"),
    [
        ((1, 8, 8), True),
        ((3, 32, 32), True),
        ((16, 8, 8), True),
        ((3, 4, 8, 8), True),
        ((32, 32, 3), False),
        ((8, 8), False),
        ((5,), False),
    ],
)
def test_tensors_with_channels_first_are_records(shape: tuple[int, ...], kept: bool) -> None:
    torch = pytest.importorskip("torch")
    X = torch.arange(6 * int(np.prod(shape)), dtype=torch.float32).reshape(6, *shape)
    data = LabelledData(X, torch.arange(6) % 2)
    assert isinstance(data.X, Records) == kept
    assert data.is_array != kept
    np.testing.assert_array_equal(np.asarray(data.X[4]), X[4].numpy())
