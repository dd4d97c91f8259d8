"""Forty awkward tables: each gives the right result or one clear sentence."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmia.data import table_files
from plmia.data.dataset import LabelledData, read_data
from plmia.data.table_files import read_frame
from plmia.errors import DataError

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

ROWS = 24


def table(**columns: Callable[[int], Any]) -> str:
    """CSV of a label `y` ("no", "yes") and further columns by their functions of the row number."""
    names = ["y", *columns]
    lines = [[("no", "yes")[i % 2], *(str(of(i)) for of in columns.values())] for i in range(ROWS)]
    return "\n".join(",".join(row) for row in [names, *lines]) + "\n"


PLAIN = table(a=lambda i: i % 5, b=lambda i: "xyz"[i % 3])


def parquet(frame: Any) -> bytes:
    held = io.BytesIO()
    frame.to_parquet(held)
    return held.getvalue()


@dataclass
class Good:
    """A table that is read; kinds of its columns, and words of its notes."""

    content: str | bytes
    kinds: tuple[str, ...] = ("number", "category")
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = ("no", "yes")
    name: str = "table.csv"
    options: dict[str, Any] = field(default_factory=dict)
    check: Callable[[LabelledData], Any] = lambda data: True


@dataclass
class Bad:
    """A table that is refused with one sentence that holds these words."""

    content: str | bytes
    words: tuple[str, ...]
    name: str = "table.csv"
    options: dict[str, Any] = field(default_factory=dict)


def first(column: str, value: Any) -> Callable[[LabelledData], bool]:
    def check(data: LabelledData) -> bool:
        got = data.rows()[column][0]
        return bool(got == value)

    return check


TABLES: dict[str, Good | Bad] = {
    "plain": Good(PLAIN, check=lambda data: data.n_points == ROWS and data.notes == ()),
    "duplicate columns": Bad(PLAIN.replace("a,b", "a,a"), ("2 columns", "'a'")),
    "duplicate columns but for spaces": Bad(PLAIN.replace("a,b", "a, a"), ("2 columns", "'a'")),
    "all-missing column": Good(table(a=lambda i: i % 5, b=lambda i: ""), ("number", "number"), ("24 empty",)),
    "constant column": Good(table(a=lambda i: 7, b=lambda i: "x"), check=lambda data: data.notes == ()),
    "one class": Bad(PLAIN.replace("yes", "no"), ("'y'", "only 'no'", "2 classes")),
    "a class of one record": Bad(PLAIN.replace("yes", "rare", 1), ("'rare'", "1 record")),
    "labels missing": Bad(PLAIN.replace("no,", ",", 3), ("'y'", "3 of 24", "record 0")),
    "labels as numbers from 1": Good(PLAIN.replace("no", "1").replace("yes", "2"), classes=("1", "2")),
    "labels 0 and 1": Good(PLAIN.replace("no", "0").replace("yes", "1"), classes=None),
    "labels as booleans": Good(PLAIN.replace("no", "FALSE").replace("yes", "TRUE"), classes=("False", "True")),
    "labels as whole floats": Good(PLAIN.replace("no", "0.0").replace("yes", "1.0"), classes=None),
    "values to predict": Good(
        table(v=lambda i: i / 7).replace("y,v", "u,y"),
        ("category",),
        classes=None,
        check=lambda data: data.labels is None,
    ),
    "labels as dates": Bad(PLAIN.replace("no", "2020-01-01").replace("yes", "2021-01-01"), ("'y'", "dates")),
    "mixed types": Good(
        table(a=lambda i: "x" if i == 3 else i % 5, b=lambda i: "z"),
        ("category", "category"),
        ("'a'", "among numbers"),
    ),
    "dates": Good(
        table(a=lambda i: f"2020-01-{1 + i % 9:02d}"),
        ("date",),
        ("'a'", "dates"),
        check=first("a", pandas.Timestamp("2020-01-01")),
    ),
    "dates that do not exist": Good(table(a=lambda i: f"2020-02-{25 + i % 6}"), ("category",)),
    "huge integers": Good(
        table(a=lambda i: 10**25 + i % 4), ("category",), ("18 digits",), check=first("a", str(10**25))
    ),
    "integers beyond floats": Good(
        table(a=lambda i: 2**55 + i % 4), ("number",), check=lambda data: len(set(data.rows()["a"])) == 4
    ),
    "leading zeros": Good(
        table(a=lambda i: f"{i % 4:05d}"), ("category",), ("leading zeros",), check=first("a", "00000")
    ),
    "identifiers": Good(
        table(a=lambda i: 1000 + i, b=lambda i: f"P{i:04d}"), notes=("'a', 'b'", "--drop", "identifier")
    ),
    "empty strings and question marks": Good(
        table(a=lambda i: "" if i < 2 else i % 5, b=lambda i: "?" if i < 3 else "xy"[i % 2]),
        notes=("2 empty", "3 written as '?'"),
        check=lambda data: [int(column.missing.sum()) for column in data.X.columns] == [2, 3],
    ),
    "None is a category": Good(
        table(b=lambda i: ("None", "high")[i % 2]),
        ("category",),
        check=lambda data: data.X.columns[0].levels == ("None", "high"),
    ),
    "byte-order mark": Good("\ufeff" + PLAIN),
    "semicolons": Good(PLAIN.replace(",", ";"), notes=("semicolon",)),
    "tabs": Good(PLAIN.replace(",", "\t"), notes=("tab",), name="table.tsv"),
    "commas in semicolons": Good(
        table(a=lambda i: f"{i % 5}#5").replace(",", ";").replace("#", ","), ("category",), ("--decimal-comma",)
    ),
    "decimal commas": Good(
        table(a=lambda i: f"{i % 5}#5").replace(",", ";").replace("#", ","),
        ("number",),
        options={"decimal_comma": True},
        check=first("a", 0.5),
    ),
    "one row": Bad("y,a\nno,1\n", ("'y'", "2 classes")),
    "two rows": Bad("y,a\nno,1\nyes,2\n", ("'no'", "1 record")),
    "no row": Bad("y,a\n", ("no records",)),
    "a header without a line end": Bad("y,a", ("no records",)),
    "no line end": Good(PLAIN.rstrip("\n")),
    "an Excel file": Bad(b"PK\3\4" * 9, ("table.xlsx", "spreadsheet", "CSV"), name="table.xlsx"),
    "nothing": Bad("", ("table.csv",)),
    "unicode": Good(
        table(größe=lambda i: i % 3, 城市=lambda i: ("東京", "Köln", "🙂")[i % 3]), check=first("城市", "東京")
    ),
    "quotes and line breaks": Good(
        PLAIN.replace(",x", ',"a ""b"", c\nd"'), check=lambda data: 'a "b", c\nd' in data.X.columns[1].levels
    ),
    "spaces after commas": Good(
        PLAIN.replace(",", ", "), check=lambda data: data.X.columns[1].levels == ("x", "y", "z")
    ),
    "a short row": Bad(PLAIN + "no,1\n", ("Row #26", "Expected 3 columns, got 2")),
    "a long row": Bad(PLAIN + "no,1,x,9\n", ("Row #26", "Expected 3 columns, got 4")),
    "an open quote": Bad(PLAIN + 'no,1,"x\n', ("within quotes",)),
    "blank lines": Good(PLAIN.replace("\nno", "\n\nno")),
    "line ends of Windows": Good(PLAIN.replace("\n", "\r\n")),
    "latin-1": Bad(PLAIN.replace("x", "é").encode("latin-1"), ("UTF-8",)),
    "utf-16": Bad(PLAIN.encode("utf-16"), ("UTF-16", "UTF-8")),
    "bytes": Bad(b"\0\1\2\3" * 9, ("zero bytes",)),
    "gzip": Good(gzip.compress(PLAIN.encode()), name="table.csv.gz"),
    "half a gzip": Bad(gzip.compress(PLAIN.encode())[:-9], ("table.csv.gz",), name="table.csv.gz"),
    "infinity": Bad(table(a=lambda i: "1e999" if i == 5 else i % 3), ("'a'", "inf", "record 5")),
    "infinity in words": Bad(table(a=lambda i: "-Inf" if i == 5 else i % 3), ("'a'", "inf", "record 5")),
    "index column": Good(table(a=lambda i: i % 5).replace("y,a", "y,"), ("number",), check=first("Unnamed: 1", 0)),
    "parquet": Good(parquet(pandas.read_csv(io.StringIO(PLAIN))), name="table.parquet"),
    "parquet with an index": Good(parquet(pandas.read_csv(io.StringIO(PLAIN)).set_index("a")), name="table.parquet"),
    "parquet with nested values": Bad(
        parquet(pandas.DataFrame({"y": [0, 1] * 12, "a": [[1, 2]] * 24})), ("'a'", "ndarray"), name="table.parquet"
    ),
    "parquet with categories": Good(
        parquet(pandas.read_csv(io.StringIO(PLAIN)).astype({"b": "category", "y": "category"})), name="table.parquet"
    ),
    "damaged parquet": Bad(b"PAR1" + b"x" * 40, ("table.parquet",), name="table.parquet"),
    "wrong label": Bad(PLAIN, ("'yy'", "did you mean 'y'?"), options={"label": "yy"}),
    "no label": Bad(PLAIN, ("--label", "y, a, b"), options={"label": None}),
    "wrong column to drop": Bad(PLAIN, ("'q'", "y, a, b"), options={"drop": ["q"]}),
    "nothing left": Bad(PLAIN, ("no column is left",), options={"drop": ["a"], "group": "b"}),
    "label to drop": Bad(PLAIN, ("'y'", "twice"), options={"drop": ["y"]}),
    "groups": Good(
        table(a=lambda i: i % 5, p=lambda i: f"P{i // 3}"),
        ("number",),
        options={"group": "p"},
        check=lambda data: data.group_names[:2] == ("P0", "P1") and len(np.unique(data.groups)) == 8,
    ),
    "groups with gaps": Good(
        table(a=lambda i: i % 5, p=lambda i: "" if i < 2 else i // 3),
        ("number",),
        ("2 of 24 records", "own group"),
        options={"group": "p"},
        check=lambda data: len(np.unique(data.groups)) == 10,
    ),
    "one group": Bad(table(a=lambda i: i % 5, p=lambda i: 7), ("group 7",), options={"group": "p"}),
    "drop": Good(PLAIN, ("category",), options={"drop": "a"}),
}


def read(case: Good | Bad, folder: Path) -> LabelledData:
    path = folder / case.name
    path.write_bytes(case.content.encode() if isinstance(case.content, str) else case.content)
    return read_data(path, **{"label": "y", **case.options})


@pytest.mark.parametrize("name", [name for name, case in TABLES.items() if isinstance(case, Good)])
def test_a_table_is_read(name: str, tmp_path: Path) -> None:
    case = TABLES[name]
    assert isinstance(case, Good)
    data = read(case, tmp_path)
    assert data.X.kinds == case.kinds
    assert data.class_names == case.classes
    text = " ".join(note.text for note in data.notes)
    assert all(word in text for word in case.notes), text
    assert all(note.severity == "info" or note.code == "missing-groups" for note in data.notes)
    assert case.check(data)
    assert data.n_points == ROWS
    assert read(case, tmp_path).digest == data.digest


@pytest.mark.parametrize("name", [name for name, case in TABLES.items() if isinstance(case, Bad)])
def test_a_table_is_refused_with_one_sentence(name: str, tmp_path: Path) -> None:
    case = TABLES[name]
    with pytest.raises(DataError) as error:
        read(case, tmp_path)
    text = str(error.value)
    assert "\n" not in text
    assert ":" in text
    assert case.name in text
    assert all(word in text for word in case.words), text


def test_there_are_forty_of_them() -> None:
    assert len(TABLES) >= 40


def test_a_file_reads_as_pandas_reads_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "a": rng.integers(-5, 5, 50),
            "b": np.where(rng.random(50) < 0.2, np.nan, rng.normal(size=50)),
            "c": rng.choice(["u", "v", None], 50),
            "d": rng.random(50) < 0.5,
        }
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    found, _ = read_frame(tmp_path / "t.csv")
    pandas.testing.assert_frame_equal(found, pandas.read_csv(tmp_path / "t.csv"))


def test_labels_are_optional_where_values_are_predicted(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(PLAIN)
    np.savez(tmp_path / "t.npz", X=np.zeros((4, 2)))
    for path in (tmp_path / "t.csv", tmp_path / "t.npz"):
        assert read_data(path, values=True).y is None
        with pytest.raises(DataError):
            read_data(path)


def test_other_files_have_no_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", X=np.zeros((4, 2)), y=[0, 1, 0, 1])
    with pytest.raises(DataError, match=r"data\.npz is not a CSV or Parquet file"):
        read_data(tmp_path / "data.npz", label="y")


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    (tmp_path / "t.csv").write_text(PLAIN)
    for library in ("pyarrow.csv", "pyarrow", "pandas"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(DataError, match=r"pyarrow is not installed.*pip install"):
        read_frame(tmp_path / "t.csv")


def test_arrow_reads_a_copy_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of Arrow that releases memory of Python while the interpreter exits ends the process by SIGABRT."""
    import pyarrow
    import pyarrow.csv

    read, raw, sources = table_files._contents, [], []
    monkeypatch.setattr(table_files, "_contents", lambda path: raw.append(read(path)) or raw[0])

    def spy(name: str) -> None:
        function = getattr(pyarrow.csv, name)

        def spied(source: Any, **options: Any) -> Any:
            sources.append(source.read_buffer().address)
            source.seek(0)
            return function(source, **options)

        monkeypatch.setattr(pyarrow.csv, name, spied)

    spy("open_csv")
    spy("read_csv")
    (tmp_path / "t.csv").write_text("y,a\n1,2\n")
    read_frame(tmp_path / "t.csv", False)
    assert len(sources) == 2
    assert pyarrow.py_buffer(raw[0]).address not in sources
