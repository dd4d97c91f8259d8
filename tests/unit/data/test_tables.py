"""Tables: what a column is in every library, digests, rows, and columns that are refused."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from plmia.auditing.audited_data import audited_data
from plmia.data.dataset import LabelledData
from plmia.data.tables import Table
from plmia.errors import DataError

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")

Y = [0, 1, 0, 1]
COLUMNS: dict[str, list[Any]] = {
    "age": [31, 44, None, 31],
    "weight": [70.5, None, 61.25, 70.5],
    "city": ["Köln", "東京", None, "Köln"],
    "smoker": [True, None, False, True],
    "seen": [dt.datetime(2020, 1, 2, 3), None, dt.datetime(1969, 1, 1), dt.datetime(2020, 1, 2, 3)],
    "empty": [None, None, None, None],
    "id": [2**60, 2**60 + 1, 2**60 + 2, 2**60],
}
LIBRARIES = {
    "pandas": lambda columns: pandas.DataFrame(columns),
    "pandas nullable": lambda columns: pandas.DataFrame(columns).convert_dtypes(),
    "polars": lambda columns: polars.DataFrame(columns),
    "pyarrow": lambda columns: pyarrow.table(columns),
    "pandas of arrow": lambda columns: pyarrow.table(columns).to_pandas(types_mapper=pandas.ArrowDtype),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_column_is_the_same_in_every_library(library: str) -> None:
    table = Table(LIBRARIES[library](COLUMNS))
    assert table.shape == (4, 7)
    assert table.names == tuple(COLUMNS)
    assert table.kinds == ("number", "number", "category", "boolean", "date", "number", "number")
    values = {column.name: column.values.tolist() for column in table.columns}
    nan = np.nan
    seconds = dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC).timestamp()
    expected = {
        "age": [31, 44, nan, 31],
        "weight": [70.5, nan, 61.25, 70.5],
        "city": [0, 1, -1, 0],
        "smoker": [1, nan, 0, 1],
        "seen": [seconds, nan, -365 * 86400, seconds],
        "empty": [nan] * 4,
        "id": [2.0**60] * 4,
    }
    for name, column in expected.items():
        np.testing.assert_array_equal(values[name], column, err_msg=name)
    assert table.columns[2].levels == ("Köln", "東京")
    # A float cannot tell the identifiers apart; the keys can.
    assert LabelledData(table, Y).first_copies.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("library", LIBRARIES)
def test_rows_are_a_frame_of_the_same_library(library: str) -> None:
    frame = LIBRARIES[library](COLUMNS)
    table = Table(frame)
    whole, part = table.rows(), table.rows(np.array([True, False, False, True]))
    assert type(whole) is type(part) is type(frame)
    assert Table(whole).digest == table.digest
    assert Table(table.rows(np.array([0, 3]))).digest == Table(part).digest
    assert [column.values[0] for column in Table(part).columns][:2] == [31, 70.5]
    if library.startswith("pandas"):
        pandas.testing.assert_frame_equal(whole, frame)
        pandas.testing.assert_series_equal(part.dtypes, frame.dtypes)
    elif library == "polars":
        assert whole.equals(frame)
        assert part.schema == frame.schema


@pytest.mark.parametrize("library", LIBRARIES)
def test_workers_get_the_same_table(library: str) -> None:
    table = Table(LIBRARIES[library](COLUMNS))
    digest = table.digest
    again = pickle.loads(pickle.dumps(table))
    assert set(vars(again)) == {"native"}
    assert again.digest == digest


def test_the_digest_is_of_the_content() -> None:
    frame = pandas.DataFrame(COLUMNS)
    digest = Table(frame).digest
    assert Table(frame.set_index(np.array([4, 4, 2, 0]))).digest == digest
    assert Table(pandas.concat([frame[:1], frame[1:]])).digest == digest
    table = pyarrow.table(COLUMNS)
    assert Table(pyarrow.concat_tables([table[:3], table[3:]])).digest == Table(table).digest
    one = polars.DataFrame(COLUMNS)
    assert Table(polars.concat([one[:2], one[2:]], rechunk=False)).digest == Table(one).digest


def test_a_csv_file_has_one_digest_in_pandas_and_polars(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("age,weight,city,id\n31,70.5,Ulm,1\n,,Bonn,2\n44,61.25,,3\n")
    one, other = Table(pandas.read_csv(path)), Table(polars.read_csv(path))
    assert one.digest == other.digest
    path.write_text(path.read_text().replace("44", "45"))
    assert Table(polars.read_csv(path)).digest != other.digest
    # A float would merge these.
    huge = [Table(polars.DataFrame({"id": [2**60 + k, None]})).digest for k in range(2)]
    assert huge[0] != huge[1]
    empty = polars.DataFrame({"a": polars.Series([None, None], dtype=polars.Int64), "b": [1, 2]})
    assert Table(empty).digest == Table(pandas.DataFrame({"a": [np.nan] * 2, "b": [1, 2]})).digest


def test_the_digest_changes_with_everything_that_a_model_can_see() -> None:
    frame = pandas.DataFrame({"a": [1, 2, 3, 4], "b": ["x", "y", None, "x"]})
    different = [
        frame,
        frame.rename(columns={"a": "c"}),
        frame[["b", "a"]],
        frame.astype({"a": float}),
        frame.astype({"a": "int32"}),
        frame.astype({"b": "category"}),
        frame.assign(b=pandas.Categorical(frame["b"], categories=["y", "x"])),
        frame.assign(b=["x", "y", "", "x"]),
        frame.assign(b=["x", "y", "nan", "x"]),
        frame.assign(a=[1, 2, 3, 5]),
        frame.assign(a=[1, 2, 3, None]),
        frame.assign(a=[1, 2, 3, 0]),
        frame.iloc[::-1],
        frame.iloc[:3],
    ]
    assert len({Table(one).digest for one in different}) == len(different)
    assert LabelledData(frame, Y).digest != LabelledData(frame, Y[::-1]).digest


def test_copies_are_those_a_loop_finds() -> None:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {"a": rng.integers(0, 3, 60), "b": rng.choice(["x", "y", None], 60), "c": rng.choice([0.5, np.nan], 60)}
    )
    rows = [tuple(map(str, row)) for row in frame.itertuples(index=False)]
    found = LabelledData(frame, np.arange(60) % 2).first_copies
    assert found.tolist() == [rows.index(row) for row in rows]
    assert len(set(found)) == len(set(rows)) < 60


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pandas.DataFrame(np.zeros((4, 2)), columns=["a", "a"]), ["2 columns", "'a'"]),
        (pandas.DataFrame(np.zeros((4, 2)), columns=["1", 1]), ["2 columns", "'1'"]),
        (pyarrow.table([[1] * 4, [2] * 4], names=["a", "a"]), ["2 columns", "'a'"]),
        (
            pandas.DataFrame(np.zeros((4, 2)), columns=pandas.Index(["a\ud800", "b"], dtype=object)),
            [r"a\ud800", "surrogate"],
        ),
        (pandas.DataFrame(np.zeros((4, 2)), columns=[("a", "b"), ("a", "c")]), ["('a', 'b')"]),
        (pandas.DataFrame({"a": [1, "x", 2, "y"]}), ["'a'", "mixes", "numbers (1)", "text ('x')"]),
        (pandas.DataFrame({"a": [[1], [2], [3], [4]]}), ["'a'", "list"]),
        (polars.DataFrame({"a": [[1], [2], [3], [4]]}), ["'a'", "list"]),
        (polars.DataFrame({"a": [{"b": 1}] * 4}), ["'a'", "dict"]),
        (pandas.DataFrame({"a": [b"x"] * 4}), ["'a'", "bytes"]),
        (pandas.DataFrame({"a": [1j, 2, 3, 4]}), ["'a'", "complex"]),
        (pandas.DataFrame({"a": pandas.period_range("2020", periods=4, freq="D")}), ["'a'", "Period"]),
        (pandas.DataFrame({"a": [1.0, 2, -np.inf, 4]}), ["'a'", "-inf", "record 2"]),
        (pandas.DataFrame(index=range(4)), ["4 records and 0 columns"]),
        (pandas.DataFrame({"a": []}), ["0 records and 1 columns"]),
    ],
)
def test_tables_that_cannot_be_used_are_refused(frame: Any, words: list[str]) -> None:
    with pytest.raises(DataError) as error:
        Table(frame)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), error.value


def test_a_table_without_rows_is_refused_before_its_labels() -> None:
    with pytest.raises(DataError, match="no rows"):
        LabelledData.of_table(pandas.DataFrame({"a": [], "y": []}), "y")


def test_sparse_matrices_and_lazy_frames_are_refused_with_a_remedy() -> None:
    for sparse in (scipy.sparse.csr_matrix(np.eye(4)), scipy.sparse.csr_array(np.eye(4))):
        with pytest.raises(DataError, match=r"toarray\(\)"):
            LabelledData(sparse, Y)
    lazy = polars.LazyFrame({"a": Y, "y": Y})
    for label in (Y, "y"):
        with pytest.raises(DataError, match=r"collect\(\)"):
            audited_data(lazy, label)


@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        ([2**70, 1, None, 2], "number", [2.0**70, 1, np.nan, 2]),
        ([Decimal("1.5"), Decimal("2.25"), None, Decimal(0)], "number", [1.5, 2.25, np.nan, 0]),
        ([dt.date(1970, 1, 2), None, dt.date(1970, 1, 3), dt.date(1970, 1, 1)], "date", [86400, np.nan, 172800, 0]),
        ([dt.timedelta(seconds=3), None, dt.timedelta(0), dt.timedelta(1)], "number", [3, np.nan, 0, 86400]),
        ([dt.time(1), dt.time(2), None, dt.time(1)], "category", [0, 1, -1, 0]),
    ],
)
def test_python_values_are_read(values: list[Any], kind: str, found: list[float]) -> None:
    (column,) = Table(pandas.DataFrame({"a": pandas.Series(values, dtype=object)})).columns
    assert column.kind == kind
    np.testing.assert_array_equal(column.values, found)


@pytest.mark.parametrize(
    "values", [pandas.array([0.0, 1, 0, 1], dtype="Sparse[float]"), pandas.Categorical([1, 2, None, 1]), [np.nan] * 4]
)
def test_unusual_types_of_pandas_are_read(values: Any) -> None:
    table = Table(pandas.DataFrame({"a": values}))
    assert Table(table.rows(np.array([1, 0, 2, 3]))).columns[0].values[1] == pytest.approx(
        table.columns[0].values[0], nan_ok=True
    )


def test_time_zones_are_read() -> None:
    stamps = pandas.to_datetime(["2020-01-01 01:00", None, "2020-01-02 00:00", "2020-01-03 00:00"]).tz_localize(
        "Europe/Berlin"
    )
    (column,) = Table(pandas.DataFrame({"a": stamps})).columns
    assert column.kind == "date"
    assert column.values[0] == dt.datetime(2020, 1, 1, tzinfo=dt.UTC).timestamp()
    assert np.isnan(column.values[1])


def test_whole_numbers_may_name_columns() -> None:
    frame = pandas.DataFrame(np.arange(8).reshape(4, 2))
    table = Table(frame)
    assert table.names == ("0", "1")
    pandas.testing.assert_frame_equal(table.rows(np.array([1, 3])), frame.iloc[[1, 3]])


def test_identifiers_are_named_but_not_free_text() -> None:
    n = 30
    columns: dict[str, Any] = {
        "Unnamed: 0": range(n),
        "id": [f"V{k}" for k in range(n)],
        "x": [k % 5 for k in range(n)],
    }
    columns["note"] = [f"came on day {k} and was sent home" for k in range(n)]
    (note,) = Table(pandas.DataFrame(columns)).identifiers()
    assert "columns 'Unnamed: 0', 'id' " in note.text
    assert "index=False" in note.text
    assert "'note'" not in note.text
    (single,) = Table(pandas.DataFrame({"id": range(n), "x": [0.5] * n})).identifiers()
    assert "column 'id' " in single.text
    assert "index=False" not in single.text
