"""Default preprocessing of tables: against loops, and the same in every library."""

from __future__ import annotations

import numpy as np
import pytest

from plmia.data.dataset import LabelledData
from plmia.data.encoding import Columns, Encoding, array_columns, columns_of, is_plain

pandas = pytest.importorskip("pandas")
N = 90
LABELS = np.arange(N) % 2
TRAINING = np.arange(N) % 3 > 0
# Among the training records, the frequent codes have different counts, so that it is clear which are rare.
CODES = np.array(["unknown"] * N)
CODES[TRAINING] = np.repeat([f"c{k}" for k in range(9)], [15, 12, 9, 7, 5, 3, 3, 3, 3])


def table():
    rng = np.random.default_rng(3)
    town = rng.choice(["Ulm", "Bonn", "Köln", None], N, p=[0.5, 0.3, 0.15, 0.05])
    return pandas.DataFrame(
        {
            "age": np.where(rng.random(N) < 0.1, np.nan, rng.normal(50, 9, N)),
            "town": town,
            "smoker": rng.random(N) < 0.3,
            "seen": pandas.Timestamp("2021-03-01") + pandas.to_timedelta(rng.integers(0, 400, N), unit="D"),
            "code": CODES,
        }
    )


def frames():
    frame = table()
    polars, pyarrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    return [frame, polars.from_pandas(frame), pyarrow.Table.from_pandas(frame)]


def test_columns_are_the_same_in_every_library():
    first, *others = (columns_of(LabelledData(frame, LABELS)) for frame in frames())
    assert first.numbers.shape == (N, 3)
    assert first.categories.shape == (N, 2)
    for other in others:
        np.testing.assert_array_equal(first.numbers, other.numbers)
        np.testing.assert_array_equal(first.categories, other.categories)


def test_dates_count_in_days_and_booleans_as_numbers():
    frame = table()
    numbers = columns_of(LabelledData(frame, LABELS)).numbers
    np.testing.assert_array_equal(numbers[:, 1], frame["smoker"].astype(float))
    days = (frame["seen"] - pandas.Timestamp("1970-01-01")).dt.days
    np.testing.assert_array_equal(numbers[:, 2], days)


def test_numbers_equal_a_loop():
    columns = columns_of(LabelledData(table(), LABELS))
    encoded = Encoding().fit(columns.rows(TRAINING))(columns)
    expected = []
    for values in columns.numbers.T:
        median = np.nanmedian(values[TRAINING])
        filled = np.where(np.isnan(values), median, values)
        own = filled[TRAINING]
        expected.append((filled - own.mean()) / own.std())
    np.testing.assert_allclose(encoded[:, :3], np.stack(expected, axis=1))
    # One column marks where the age is missing, scaled like the others.
    marks = np.isnan(columns.numbers[:, 0]).astype(float)
    np.testing.assert_allclose(encoded[:, 3], (marks - marks[TRAINING].mean()) / marks[TRAINING].std())


def test_one_hot_columns_equal_a_loop():
    columns = columns_of(LabelledData(table(), LABELS))
    most = 6
    encoded = Encoding(max_categories=most).fit(columns.rows(TRAINING))(columns)[:, 4:]
    at = 0
    for codes in columns.categories.T:
        seen, counts = np.unique(codes[TRAINING], return_counts=True)
        kept = seen if len(seen) <= most else np.sort(seen[np.argsort(-counts, kind="stable")[: most - 1]])
        for code in kept:
            np.testing.assert_array_equal(encoded[:, at], codes == code)
            at += 1
        if len(seen) > most:
            np.testing.assert_array_equal(encoded[:, at], ~np.isin(codes, kept))
            at += 1
    assert at == encoded.shape[1]


def test_native_categories_keep_missing_ones_missing():
    columns = Columns(np.empty((5, 0)), np.array([[0], [2], [-1], [2], [1]]))
    fitted = Encoding(impute=False, scale=False, categories="native").fit(columns.rows(np.array([1, 1, 1, 1, 0], bool)))
    np.testing.assert_array_equal(fitted(columns).ravel(), [0, 1, np.nan, 1, np.nan])  # the last one is unknown
    assert fitted.n_native == 1


def test_nothing_is_learned_from_other_records():
    columns = columns_of(LabelledData(table(), LABELS))
    changed = Columns(columns.numbers.copy(), columns.categories.copy())
    changed.numbers[~TRAINING] = 1e6
    changed.categories[~TRAINING] = 0
    one, two = (Encoding().fit(found.rows(TRAINING)) for found in (columns, changed))
    np.testing.assert_array_equal(one(columns), two(columns))


def test_an_empty_column_and_a_value_that_is_missing_only_later():
    X = np.array([[np.nan, 1.0], [np.nan, 2.0], [np.nan, np.nan]])
    columns = array_columns(X)
    encoded = Encoding(scale=False).fit(columns.rows(np.array([True, True, False])))(columns)
    assert np.isfinite(encoded).all()
    np.testing.assert_array_equal(encoded[:, 1], [1.0, 2.0, 1.5])


@pytest.mark.parametrize(
    ("X", "plain"),
    [
        (np.ones((4, 2), np.int8), True),
        (np.array([[1.0], [np.nan], [2.0], [3.0]]), False),
        (pandas.DataFrame({"a": [1, 2, 3, 4], "b": [True, False, True, True]}), True),
        (pandas.DataFrame({"a": [1, None, 3, 4]}), False),
        (pandas.DataFrame({"a": list("abba")}), False),
        (pandas.DataFrame({"a": pandas.to_datetime(["2020-01-01"] * 4)}), False),
    ],
)
def test_plain_numbers_are_recognised(X, plain):
    assert is_plain(LabelledData(X, [0, 1, 0, 1])) == plain


def test_steps_name_dates_and_missing_numbers_where_there_are_any():
    days = np.array(["2020-01-01", "2021-01-01"], "M8[us]")
    data = LabelledData(pandas.DataFrame({"seen": days, "age": [1.0, np.nan]}))
    for encoding in (Encoding(impute=False, scale=False), Encoding()):
        steps = " ".join(encoding.steps(columns_of(data)))
        assert "dates" in steps
        assert "missing numbers" in steps
    assert Encoding(scale=False).steps(columns_of(LabelledData(pandas.DataFrame({"age": [1.0, 2.0]})))) == []
