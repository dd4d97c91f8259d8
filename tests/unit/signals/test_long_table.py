"""Long tables: any order, names and file give what a loop over the rows gives; what does not fit is one sentence."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from plmia import import_signals, read_signals
from plmia.errors import SignalsError
from plmia.signals.importers import LongTable, find_models
from plmia.signals.long_table import Columns, read_long_table

pa = pytest.importorskip("pyarrow")

Array = npt.NDArray[Any]
Row = tuple[Any, ...]
MODELS, RECORDS, VIEWS = 5, 7, 3


def draw(seed: int = 0) -> list[Row]:
    """Rows (model, record, view, member, signal) of a whole table, in order."""
    rng = np.random.default_rng(seed)
    members = rng.random((MODELS, RECORDS)) < 0.5
    return [
        (m, r, v, bool(members[m, r]), float(rng.normal()))
        for m in range(MODELS)
        for r in range(RECORDS)
        for v in range(VIEWS)
    ]


HEAD = ("model", "record", "view", "member", "signal")


def write(path: Path, rows: list[Row], head: tuple[str, ...] = HEAD, delimiter: str = ",") -> Path:
    lines = [delimiter.join(map(str, row)) for row in (head, *rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def naive(rows: list[Row], order: Callable[[list[Any]], list[Any]]) -> tuple[Array, Array]:
    """Signals and membership, row by row."""
    models, records, views = (order(list(dict.fromkeys(row[i] for row in rows))) for i in range(3))
    signals = np.full((len(models), len(records), len(views)), np.nan, np.float32)
    members = np.zeros(signals.shape[:2], bool)
    for model, record, view, member, signal in rows:
        at = models.index(model), records.index(record)
        signals[*at, views.index(view)] = signal
        members[at] = member
    return signals, members


@pytest.mark.parametrize("kind", ["csv", "semicolons", "tabs", "bom", "gz", "parquet", "row groups"])
def test_every_file_equals_a_loop(kind: str, tmp_path: Path) -> None:
    rows = draw()
    np.random.default_rng(1).shuffle(rows)
    path = tmp_path / "table.csv"
    if kind in ("parquet", "row groups"):
        from pyarrow import parquet

        columns = {name: pa.array(column) for name, column in zip(HEAD, zip(*rows, strict=True), strict=True)}
        parquet.write_table(pa.table(columns), path, row_group_size=7 if kind == "row groups" else None)
    else:
        write(path, rows, delimiter={"semicolons": ";", "tabs": "\t"}.get(kind, ","))
    if kind == "bom":
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    if kind == "gz":
        import gzip

        path = tmp_path / "table.csv.gz"
        path.write_bytes(gzip.compress((tmp_path / "table.csv").read_bytes()))
    found = read_long_table(path, Columns())
    signals, members = naive(rows, sorted)
    np.testing.assert_array_equal(found.signals, signals)
    np.testing.assert_array_equal(found.members, members)
    assert found.models == tuple(map(str, range(MODELS)))


def test_pieces_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later pieces may hold other types than the first, which the reader must not guess from."""
    rows = [(f"m{m}" if m == 4 else m, r, v, int(i), s) for m, r, v, i, s in draw()]
    path = write(tmp_path / "t.csv", rows)
    monkeypatch.setattr("plmia.signals.long_table._BLOCK_BYTES", 200)
    found = read_long_table(path, Columns())
    signals, members = naive(rows, list)
    np.testing.assert_array_equal(found.signals, signals)
    np.testing.assert_array_equal(found.members, members)
    assert found.models == ("0", "1", "2", "3", "m4")


def test_text_names_stay_in_order_of_appearance_and_numbers_are_sorted(tmp_path: Path) -> None:
    named = [("target" if m == 0 else f"ref {m}", 10 * r, f"v{v}", i, s) for m, r, v, i, s in draw()]
    backwards = named[::-1]
    found = read_long_table(write(tmp_path / "t.csv", backwards), Columns())
    assert found.models == ("ref 4", "ref 3", "ref 2", "ref 1", "target")
    assert found.records == ("0", "10", "20", "30", "40", "50", "60")  # by value, not as text
    imported = import_signals("table", tmp_path / "t.csv", tmp_path / "s", progress=False)
    assert imported.path == tmp_path / "s.npz"
    assert "'ref 4'" in imported.notes[0]
    with np.load(tmp_path / "s.npz") as arrays:
        assert arrays["model_names"].tolist() == list(found.models)
        assert arrays["texts"].tolist() == list(found.records)
        assert arrays["view_names"].tolist() == ["v2", "v1", "v0"]
    read = read_signals(tmp_path / "s.npz", "logit")
    np.testing.assert_array_equal(read.values, found.signals)


def test_names_that_are_row_numbers_are_not_kept(tmp_path: Path) -> None:
    found = find_models("table", write(tmp_path / "t.csv", draw()))
    assert (found.names, found.notes) == ({}, ())
    with_names = [(m, r + 1, v, i, s) for m, r, v, i, s in draw()]
    assert set(find_models("table", write(tmp_path / "t.csv", with_names)).names) == {"texts"}


def test_views_are_optional_and_columns_may_have_other_names(tmp_path: Path) -> None:
    rows = [(s, r, i, m) for m, r, v, i, s in draw() if v == 0]
    path = write(tmp_path / "t.csv", rows, ("conf", "patient", "trained", "run"))
    columns = Columns(model="run", record="patient", member="trained", signal="conf")
    (output, *_) = find_models(LongTable(columns), path).outputs
    assert output.values.shape == (RECORDS, 1)
    with pytest.raises(SignalsError, match="'model'"):
        find_models("table", path)


@pytest.mark.parametrize(
    "words", [("TRUE", "FALSE"), ("1", "0"), ("true", "false"), ("1.0", "0.0"), (" True", "False")]
)
def test_words_for_membership(words: tuple[str, str], tmp_path: Path) -> None:
    rows = draw()
    path = write(tmp_path / "t.csv", [(m, r, v, words[not i], s) for m, r, v, i, s in rows])
    np.testing.assert_array_equal(read_long_table(path, Columns()).members, naive(rows, sorted)[1])


def changed(row: int, column: int, value: object) -> Callable[[list[Row]], list[Row]]:
    def change(rows: list[Row]) -> list[Row]:
        new = list(rows[row])
        new[column] = value
        return [*rows[:row], tuple(new), *rows[row + 1 :]]

    return change


# Row 40 is model 1, record 6, view 1.
BAD: dict[str, tuple[Callable[[list[Row]], list[Row]], str]] = {
    "a row is missing": (lambda rows: rows[:40] + rows[41:], "no row for model '1', record '6', view '1':"),
    "two rows are missing": (lambda rows: rows[:40] + rows[42:], "'6', view '1' and 1 other"),
    "a row is repeated": (lambda rows: [*rows, rows[40]], "2 rows for model '1', record '6', view '1'"),
    "one for another": (lambda rows: [*rows[:41], rows[40], *rows[42:]], "2 rows for model '1', record '6', view '1'"),
    "another membership": (lambda rows: changed(40, 3, not rows[40][3])(rows), "model '1', record '6'"),
    "a new record": (changed(40, 1, "x9"), "'x9'|'6'"),
    "no rows": (lambda _: [], "no rows"),
    "an empty name": (changed(40, 1, ""), "'record' in row 41 below the header"),
    "a blank name": (changed(40, 0, "  "), "'model' in row 41 below the header"),
    "an empty signal": (changed(40, 4, ""), "nan for model '1', record '6', view '1'"),
    "NaN": (changed(40, 4, "nan"), "nan for model '1', record '6', view '1'"),
    "infinity": (changed(40, 4, "inf"), "inf for model '1', record '6', view '1'"),
    "too large": (changed(40, 4, 1e300), "finite"),
    "text for a signal": (changed(40, 4, "high"), "high"),
    "a decimal comma": (changed(40, 4, '"0,5"'), "0,5"),
    "another word": (changed(40, 3, "maybe"), "'maybe' in column 'member'"),
    "no word": (changed(40, 3, ""), "in column 'member'"),
    "too many fields": (changed(40, 4, "1,2"), "columns|Expected"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_one_sentence(case: str, tmp_path: Path) -> None:
    change, fact = BAD[case]
    path = write(tmp_path / "bad.csv", change(draw()))
    with pytest.raises(SignalsError, match=fact) as raised:
        find_models("table", path)
    assert "bad.csv" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"", "no column 'model'"),
        (b"\n", "no column 'model'"),
        (b"PAR1 is not Parquet", "cannot be read"),
        (b"PK\x03\x04\x00\x00", "neither a CSV nor a Parquet file"),
        (b"model,record,member,signal\n0,\xff\xfe,1,0.5\n", "cannot be read"),
        (b"model,record,member,signal,model\n0,1,1,0.5,1\n", "2 columns 'model'"),
        (b"modle,record,member,signal\n0,1,1,0.5\n", "did you mean 'modle'"),
    ],
)
def test_files_that_are_no_table(content: bytes, fact: str, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_bytes(content)
    with pytest.raises(SignalsError, match=fact) as raised:
        find_models("table", tmp_path / "bad.csv")
    assert "\n" not in str(raised.value)


def test_a_parquet_column_of_another_type_is_named(tmp_path: Path) -> None:
    from pyarrow import parquet

    columns: dict[str, Any] = {"model": [0], "record": [0], "member": [True], "signal": ["high"]}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(SignalsError, match="'signal' of type string"):
        find_models("table", tmp_path / "t.parquet")
    parquet.write_table(pa.table(columns | {"record": [[0]]}), tmp_path / "t.parquet")
    with pytest.raises(SignalsError, match="cannot be read"):
        find_models("table", tmp_path / "t.parquet")


def test_a_column_of_unique_numbers_for_views_takes_no_memory(tmp_path: Path) -> None:
    """Models, records and views that are all different would make an array of their product."""
    n = 3000
    path = write(tmp_path / "t.csv", [(i % 10, i, i, i % 2, 0.5) for i in range(n)])
    tracemalloc.start()
    try:
        with pytest.raises(SignalsError, match="3,000 rows for 10 models, 3,000 records and 3,000 views"):
            find_models("table", path)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_memory_is_a_few_bytes_per_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python and NumPy hold; the reader of pyarrow holds a few pieces."""
    monkeypatch.setattr("plmia.signals.long_table._BLOCK_BYTES", 1 << 16)
    n_models, n_records = 40, 5000
    lines = ["model,record,member,signal"]
    lines += [f"{m},{r},{(m + r) % 2},{m - r / 100}" for m in range(n_models) for r in range(n_records)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    tracemalloc.start()
    try:
        found = read_long_table(tmp_path / "t.csv", Columns())
        assert tracemalloc.get_traced_memory()[1] < 12 * n_models * n_records + 5_000_000
    finally:
        tracemalloc.stop()
    assert found.signals.shape == (n_models, n_records, 1)
