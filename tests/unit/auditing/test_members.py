"""Members of a given target from arrays, files and columns; rows of files that are matched by order or by id."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from plmia.auditing.matching import RecordIds, columns_in_order, take_columns
from plmia.auditing.members import read_members
from plmia.errors import DataError

N = 20
MEMBERS = np.random.default_rng(0).permutation(N) < 8
MEMBERS[0] = True
ROWS = np.flatnonzero(MEMBERS)


def read(members: Any, ids: RecordIds | None = None) -> Any:
    return read_members(members, N, ids)


@pytest.mark.parametrize(
    "values",
    [
        MEMBERS,
        MEMBERS.tolist(),
        MEMBERS.astype(int),
        MEMBERS.astype(float),
        np.where(MEMBERS, "train", "test"),
        np.where(MEMBERS, "Yes", "No "),
        np.where(MEMBERS, "TRUE", "FALSE"),
        pd.Series(np.where(MEMBERS, "train", "test")).astype("category"),
        pl.Series(MEMBERS),
        ROWS,
        ROWS[::-1].tolist(),
        ROWS.astype(float),
    ],
)
def test_flags_and_row_numbers_give_the_same_members(values: Any) -> None:
    found, notes = read(values)
    np.testing.assert_array_equal(found, MEMBERS)
    assert found.dtype == np.bool_
    assert notes == []


@pytest.mark.parametrize("form", ["npy", "npz", "npz of one", "rows npy"])
def test_members_are_read_from_arrays_in_files(form: str, tmp_path: Path) -> None:
    path = tmp_path / ("m.npz" if "npz" in form else "m.npy")
    if form == "npz":
        np.savez(path, members=MEMBERS, other=np.arange(3))
    elif form == "npz of one":
        np.savez(path, anything=MEMBERS.astype(np.uint8))
    else:
        np.save(path, ROWS if "rows" in form else MEMBERS)
    np.testing.assert_array_equal(read(str(path))[0], MEMBERS)


FLAGS = "\n".join(map(str, MEMBERS.astype(int)))
TEXTS = {
    "flags": FLAGS,
    "flags under a heading": f"member\n{FLAGS}\n",
    "a heading that is a flag": f"train\n{FLAGS}\n",
    "words": "\n".join(np.where(MEMBERS, "train", "test")),
    "quoted words": 'split\n"' + '"\n"'.join(np.where(MEMBERS, "train", "test")) + '"\n',
    "rows": "\n".join(map(str, ROWS)),
    "rows under a heading, byte order mark": "\ufeffrow\n" + "\n".join(map(str, ROWS)),
    "R": '"","members"\n' + "\n".join(f'"{i + 1}",{str(flag).upper()}' for i, flag in enumerate(MEMBERS)),
    "two columns": "note,members\n" + "\n".join(f"{i % 3},{int(flag)}" for i, flag in enumerate(MEMBERS)),
    "semicolons": "row;train\n" + "\n".join(f"{i};{int(flag)}" for i, flag in enumerate(MEMBERS)),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_members_are_read_from_text_with_and_without_a_heading(text: str, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text(text, encoding="utf-8")
    np.testing.assert_array_equal(read(tmp_path / "m.csv")[0], MEMBERS)


def test_members_are_read_from_parquet_and_matched_by_id(tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(N)
    names = [f"p{i}" for i in range(N)]
    frame = pd.DataFrame({"patient": np.array(names)[order], "members": MEMBERS[order]})
    frame.to_parquet(tmp_path / "m.parquet")
    frame.to_csv(tmp_path / "m.csv", index=False)
    for path in (tmp_path / "m.parquet", tmp_path / "m.csv"):
        np.testing.assert_array_equal(read(path, RecordIds.of("patient", names))[0], MEMBERS)
    listed = np.array(names)[MEMBERS]
    for heading in ("", "patient\n"):
        (tmp_path / "ids.txt").write_text(heading + "\n".join(listed))
        np.testing.assert_array_equal(read(tmp_path / "ids.txt", RecordIds.of("patient", names))[0], MEMBERS)
    for text in ("p1\np99", "p99\np1"):
        (tmp_path / "ids.txt").write_text(text)
        with pytest.raises(DataError, match="'p99'"):
            read(tmp_path / "ids.txt", RecordIds.of("patient", names))


def test_row_numbers_that_may_begin_with_one_are_said() -> None:
    found, notes = read(ROWS[1:])
    assert found.sum() == len(ROWS) - 1
    assert [note.code for note in notes] == ["members-counted"]


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        (MEMBERS[:-1], ["19 values", "20 records"]),
        (np.concatenate([MEMBERS, MEMBERS]), ["40 values", "20 records"]),
        (np.where(MEMBERS, "train", "test")[:-1], ["19 values", "20 records"]),
        (np.where(np.arange(N) == 3, "validation", np.where(MEMBERS, "train", "test")), ["row 3", "'validation'"]),
        (np.where(np.arange(N) == 3, 2, MEMBERS.astype(int)), ["row 3", "'2'"]),
        (np.arange(N), ["flags", "row 2"]),  # as many row numbers as records
        (np.where(np.arange(N) == 4, np.nan, MEMBERS.astype(float)), ["row 4"]),
        ([0, 3, N], ["row number 20", "0 to 19"]),
        ([1, 7, N], ["subtract 1"]),
        ([-1, 3], ["row number -1"]),
        ([0, 3, 3], ["3 values", "each once"]),
        ([0.5, 2], ["2 values"]),
        ("nothing.csv", ["no column and no file 'nothing.csv'"]),
    ],
)
def test_members_that_cannot_be_understood_are_refused(values: Any, facts: list[str]) -> None:
    with pytest.raises(DataError) as error:
        read(values)
    for fact in facts:
        assert fact in str(error.value)


def test_files_of_members_that_cannot_be_understood_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.array([object()]), allow_pickle=True)
    np.savez(tmp_path / "m.npz", a=MEMBERS, b=MEMBERS)
    (tmp_path / "m.csv").write_text("a,b\n" + "1,0\n" * N)
    (tmp_path / "m.txt").write_bytes(b"\xff\xfe\x00")
    for name, fact in {"m.npy": "pickled", "m.npz": "'a', 'b'", "m.csv": "'a', 'b'", "m.txt": "UTF-8"}.items():
        with pytest.raises(DataError, match=fact):
            read(tmp_path / name)


# Rows of files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        (["a", "b", "c"], ["c", "a", "x", "b"]),
        ([10, 20, 30], [30, 10, 5, 20]),
        ([10, 20, 30], ["30", "10", "5", "20"]),
        ([10.0, 20.0, 30.0], [30, 10, 5, 20]),
        ([2**60, 2**60 + 1, 3], [3, 2**60, 0, 2**60 + 1]),
    ],
)
def test_rows_are_matched_by_ids_of_any_type(own: Any, theirs: Any) -> None:
    frame = pd.DataFrame({"id": theirs, "p": [3.0, 1.0, 0.0, 2.0]})
    (column,) = columns_in_order(frame, "p.csv", RecordIds.of("id", own))
    assert column.name == "p"
    assert column.values.tolist() == [1.0, 2.0, 3.0]


def test_ids_that_do_not_match_are_refused() -> None:
    frame = pd.DataFrame({"id": ["a", "b", "b"], "p": [1, 2, 3]})
    for ids, facts in (
        (RecordIds.of("id", ["a", "b"]), ["'b' in rows 1, 2"]),
        (RecordIds.of("ID", ["a"]), ["no column 'ID'", "id, p"]),
    ):
        with pytest.raises(DataError) as error:
            columns_in_order(frame, "p.csv", ids)
        assert all(fact in str(error.value) for fact in facts)
    with pytest.raises(DataError, match=r"no row for 2 of the 3 records \(first for id 'x'\)"):
        columns_in_order(frame[:2], "p.csv", RecordIds.of("id", ["a", "x", "y"]))
    with pytest.raises(DataError, match="of the data has 'a' in rows 0, 1"):
        RecordIds.of("id", ["a", "a"])


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (["Unnamed: 0", "p"], [1, 2, 3]),
        (["Unnamed: 0", "p"], ["x", "y", "z"]),
        (["Unnamed: 0", "p"], [17, 4, 90]),
        (["V1", "V2"], [1, 2, 3]),
        (["row", "p"], [0, 1, 2]),
        (["index", "p"], [5, 6, 7]),
    ],
)
def test_row_names_are_not_taken_for_numbers(names: list[str], first: Any) -> None:
    columns = columns_in_order(pd.DataFrame(dict(zip(names, (first, [0.1, 0.2, 0.3]), strict=True))), "p.csv", None)
    assert [column.name for column in columns] == names[1:]


def test_row_numbers_in_another_order_are_refused() -> None:
    frame = pd.DataFrame({"Unnamed: 0": [2, 1, 3], "p": [0.1, 0.2, 0.3]})
    with pytest.raises(DataError, match=r"not in the order.*--id"):
        columns_in_order(frame, "p.csv", None)
    known = {"visit": pd.Series([7, 8, 9]), "index": pd.Series([7, 8, 9])}
    for visits, is_refused in (([7, 9, 8], True), ([7, 8, 9], False), ([7, 9, 9], False), ([7, 9, 4], False)):
        frame = pd.DataFrame({"p": [0.1, 0.2, 0.3], "visit": visits})
        with pytest.raises(DataError, match="--id visit") if is_refused else contextlib.nullcontext():
            columns_in_order(frame, "p.csv", None, known)
        columns_in_order(frame.rename(columns={"visit": "index"}), "p.csv", None, known)
    kept = columns_in_order(pd.DataFrame({"a": [0, 2, 1, 0], "p": [0.1, 0.2, 0.3, 0.4]}), "p.csv", None)
    assert [column.name for column in kept] == ["a", "p"]
    with pytest.raises(DataError, match="two columns named 'a'"):
        columns_in_order(pd.DataFrame([[1, 2]], columns=["a", "a"]), "p.csv", None)


@pytest.mark.parametrize("library", [pd, pl])
def test_columns_of_the_data_are_taken_out(library: Any) -> None:
    frame = library.DataFrame({"a": [1, 2], "split": ["train", "test"], "id": [7, 8]})
    rest, taken = take_columns(frame, ("split", None, "id", "m.csv"))
    assert list(rest.columns) == ["a"]
    assert taken["split"].to_list() == ["train", "test"]
    assert take_columns(np.zeros((2, 2)), ("split",))[1] == {}
    with pytest.raises(DataError, match="'split' is named as"):
        take_columns(frame, ("split",), ("split", None))


@pytest.mark.parametrize("text", ["members\n", "\0\0\n", "[[[\n"])
def test_a_file_with_nothing_but_a_heading_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "members.txt").write_text(text)
    with pytest.raises(DataError, match=r"[01] values, but the data have 8 records"):
        read_members(tmp_path / "members.txt", 8, None)


def test_a_heading_is_no_flag_and_a_damaged_number_no_heading(tmp_path: Path) -> None:
    path = tmp_path / "members.csv"
    path.write_text("member\n0\n1\n0\n")
    assert read_members(path, 3, None)[0].tolist() == [False, True, False]
    with pytest.raises(DataError, match="'member'"):  # 4 lines for 4 records: one is missing
        read_members(path, 4, None)
    for first in ("1\0", "1x", "-", "e"):
        path.write_text(f"{first}\n4\n5\n")
        with pytest.raises(DataError, match="3 values"):
            read_members(path, 8, None)
    path.write_text("row\n4\n5\n")
    assert np.flatnonzero(read_members(path, 8, None)[0]).tolist() == [4, 5]
