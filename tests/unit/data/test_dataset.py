"""Labelled data: what is refused and how, content digests, duplicates, files that workers share."""

from __future__ import annotations

import hashlib
import mmap
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plmia.data.dataset
from plmia.data.dataset import LabelledData, read_data
from plmia.errors import DataError, OutputError

X = np.arange(24, dtype=np.float32).reshape(8, 3)
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1])


def sentence(error: pytest.ExceptionInfo[Exception]) -> str:
    """Return the message; it must be one sentence that says what to do after the colon."""
    text = str(error.value)
    assert "\n" not in text
    assert ":" in text or ";" in text
    return text


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "bool", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(8, 3), (8, 4, 4), (8, 4, 4, 3), (8, 4, 4, 1)])
def test_numbers_of_every_kind_are_taken_as_they_are(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    data = LabelledData(values, Y.astype(np.uint8))
    assert data.X.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(data.X, values)
    assert (data.n_points, data.n_classes) == (8, 3)
    assert data.is_images == (len(shape) > 2)
    assert data.y.dtype == np.int64


def test_lists_and_foreign_byte_order_become_plain_arrays() -> None:
    data = LabelledData(X.astype(">f4"), Y.astype(">i2"), groups=[5, 5, 6, 6, 7, 7, 8, 8])  # type: ignore[arg-type]
    assert data.X.dtype == np.dtype("float32")
    assert data.X.dtype.isnative
    assert data.groups is not None
    assert data.groups.tolist() == [5, 5, 6, 6, 7, 7, 8, 8]


def with_value(value: float) -> Any:
    changed = X.copy()
    changed[5, 2] = value
    return changed


@pytest.mark.parametrize(
    ("points", "labels", "groups", "words"),
    [
        (X, Y[:7], None, ["8 records", "y has 7", "same records"]),
        (X, Y[:, None], None, ["(8, 1)", "numpy.ravel"]),
        (X, np.zeros(8, int), None, ["at least 2 classes"]),
        (X, np.array([0, 0, 0, 0, 1, 1, 1, 2]), None, ["class '2' of y has 1 record", "leave the class out", "floats"]),
        (with_value(np.inf), Y, None, ["inf", "record 5", "[2]", "finite"]),
        (X.astype(complex), Y, None, ["complex128", "numbers are needed"]),
        (X.astype(str), Y, None, ["type <U", "numbers are needed", "data frame"]),
        (X.astype(object), Y, None, ["type object", "numbers are needed"]),
        (X[:, 0], Y, None, ["(8,)", "[records, features]"]),
        (X[:, :0], Y, None, ["(8, 0)", "empty"]),
        (np.zeros((8, 3, 9, 9)), Y, None, ["(8, 3, 9, 9)", "numpy.moveaxis(X, 1, -1)", "torch.from_numpy"]),
        ([[1, 2], [3]] * 4, Y, None, ["X is not an array", "rows of equal length"]),
        (X, Y, Y[:7], ["groups has 7", "8 records"]),
        (X, Y, Y / 2, ["0.5", "record 1, 4, 7", "whole numbers"]),
        (X, Y, np.full(8, 4), ["group 4", "at least 2 are needed"]),
    ],
)
def test_data_that_do_not_fit_are_refused(points: Any, labels: Any, groups: Any, words: list[str]) -> None:
    with pytest.raises(DataError) as error:
        LabelledData(points, labels, groups)
    for word in words:
        assert word in sentence(error)


@pytest.mark.parametrize("block", [1, 30, 1 << 24])
def test_a_hole_is_named_wherever_it_is(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plmia.data.dataset, "_BLOCK_BYTES", block)
    with pytest.raises(DataError, match=r"holds -inf at record 5, position \[2\]"):
        LabelledData(with_value(-np.inf), Y)


def test_missing_values_of_an_array_stay() -> None:
    data = LabelledData(with_value(np.nan), Y)
    np.testing.assert_array_equal(data.X, with_value(np.nan))
    assert data.digest != LabelledData(X, Y).digest
    assert np.isfinite(data.features()).all()  # imputed, with a column that marks the missing value


def naive_digest(data: LabelledData) -> str:
    text = b""
    for name, array in (("X", data.X), ("y", data.y), ("groups", data.groups)):
        if array is not None:
            text += f"{name} {array.dtype.newbyteorder('<').str} {array.shape}\n".encode()
            text += array.astype(array.dtype.newbyteorder("<")).tobytes()
    return hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("block", [1, 13, 24, 1 << 24])
def test_digest_is_that_of_the_bytes_however_they_lie(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plmia.data.dataset, "_BLOCK_BYTES", block)
    data = LabelledData(X, Y, Y)
    data.save(tmp_path)
    twins = [
        LabelledData(np.asfortranarray(X), Y.astype(np.uint8), Y, "other"),
        LabelledData(X.astype(">f4"), Y, Y),
        LabelledData(np.repeat(X, 2, axis=0)[::2], Y, Y),
        LabelledData.load(tmp_path),
    ]
    assert {naive_digest(data)} == {data.digest} | {twin.digest for twin in twins}


def test_digest_is_the_same_for_ever() -> None:
    assert LabelledData(X, Y).digest == "6d3089696044ff561e171748a8da1913a2172863b27660d8c429413036897a6c"


def test_digest_changes_with_everything_but_the_name() -> None:
    different = [
        LabelledData(X, Y),
        LabelledData(with_value(0.5), Y),
        LabelledData(X.astype(np.float64), Y),
        LabelledData(X.reshape(8, 3, 1), Y),
        LabelledData(X, Y[::-1]),
        LabelledData(X, Y, Y),
        LabelledData(X, Y, Y[::-1]),
    ]
    assert len({data.digest for data in different}) == len(different)


@pytest.mark.parametrize("block", [1, 30, 1 << 24])
@pytest.mark.parametrize("shape", [(40, 2), (40, 2, 1), (40, 1, 1, 2)])
def test_duplicates_are_those_a_loop_finds(shape: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plmia.data.dataset, "_BLOCK_BYTES", block)
    points = np.random.default_rng(1).integers(0, 6, shape).astype(np.int32)
    data = LabelledData(points, np.arange(40) % 2)
    same = [[bool((a == b).all()) for b in points] for a in points]
    assert data.first_copies.tolist() == [row.index(True) for row in same]
    assert data.duplicates() == sum(sum(row) > 1 for row in same)
    assert 0 < data.duplicates() < 40


def test_distinct_rows_are_no_duplicates() -> None:
    assert LabelledData(X, Y).duplicates() == 0


def test_features_are_flat_floats_and_bytes_of_images_are_scaled() -> None:
    images = np.random.default_rng(2).integers(0, 256, (8, 2, 3, 3)).astype(np.uint8)
    features = LabelledData(images, Y).features()
    assert features.dtype == np.float32
    assert features.shape == (8, 18)
    for i in range(8):
        assert features[i].tolist() == [np.float32(v) / np.float32(255) for v in images[i].ravel()]
    table = LabelledData(images.reshape(8, 18), Y).features()
    np.testing.assert_array_equal(table, images.reshape(8, 18).astype(np.float32))
    np.testing.assert_array_equal(LabelledData(images.astype(int), Y).features(), table)
    np.testing.assert_array_equal(LabelledData(X > 3, Y).features(), (X > 3).astype(np.float32))


def test_features_are_a_copy() -> None:
    data = LabelledData(X.copy(), Y)
    data.features()[:] = -1
    np.testing.assert_array_equal(data.X, X)


def test_features_that_no_float32_holds_are_refused() -> None:
    huge = X.astype(np.float64)
    huge[6, 1] = 1e300
    with pytest.raises(DataError) as error:
        LabelledData(huge, Y).features()
    assert "record 6" in sentence(error)


IDS = 20_000_000 + np.arange(8)


@pytest.mark.parametrize(
    ("column", "merged"),
    [
        (IDS, (8, 5)),
        (IDS.astype(np.float64), (8, 5)),
        (IDS.astype(np.uint64), (8, 5)),
        (2**60 + np.arange(8), (8, 1)),
        (1.7e9 + np.arange(8) / 7, (8, 1)),  # times in seconds
        (IDS.astype(np.int32) % 1000, None),
        (IDS.astype(np.float32), None),
        (IDS % 200, None),
        (np.random.default_rng(0).normal(size=8), None),
    ],
)
def test_columns_whose_values_32_bits_merge_are_counted(column: Any, merged: tuple[int, int] | None) -> None:
    data = LabelledData(np.stack([np.zeros(8, column.dtype), column], axis=1), Y)
    assert data.merged_by_float32 == ([] if merged is None else [(1, *merged)])


def test_many_floats_that_round_a_little_are_no_merged_column() -> None:
    values = np.random.default_rng(0).random((200_000, 1))
    assert len(np.unique(values.astype(np.float32))) < 200_000
    assert LabelledData(values, np.arange(200_000) % 2).merged_by_float32 == []


@pytest.mark.parametrize("groups", [None, Y])
@pytest.mark.parametrize("points", [X, np.asfortranarray(X), X.reshape(8, 3, 1) > 4])
def test_saved_data_load_the_same_from_a_memory_map(tmp_path: Path, points: Any, groups: Any) -> None:
    data = LabelledData(points, Y, groups, "first")
    LabelledData(points, Y, np.arange(8)).save(tmp_path / "run")  # its groups must not survive
    data.save(tmp_path / "run")
    loaded = LabelledData.load(tmp_path / "run")
    assert loaded.digest == data.digest
    assert loaded.name == "run"
    assert read_data(tmp_path / "run").digest == data.digest
    base: Any = loaded.X
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, mmap.mmap)
    assert type(loaded.X) is np.ndarray
    assert not list((tmp_path / "run").glob("*.partial"))


def test_what_a_worker_changes_stays_with_it(tmp_path: Path) -> None:
    LabelledData(X, Y).save(tmp_path)
    LabelledData.load(tmp_path).X[:] = -1  # and torch warns of arrays that cannot be written to
    np.testing.assert_array_equal(LabelledData.load(tmp_path).X, X)


def test_damaged_folders_are_named(tmp_path: Path) -> None:
    LabelledData(X, Y).save(tmp_path)
    whole = (tmp_path / "X.npy").read_bytes()
    for broken in (b"", b"no npy", whole[:60], whole[:-1]):
        (tmp_path / "X.npy").write_bytes(broken)
        with pytest.raises(DataError, match=r"X\.npy is damaged") as error:
            LabelledData.load(tmp_path)
        sentence(error)
    np.save(tmp_path / "X.npy", np.array([None] * 8), allow_pickle=True)
    with pytest.raises(DataError, match=r"X\.npy"):
        LabelledData.load(tmp_path)
    (tmp_path / "X.npy").write_bytes(whole)
    (tmp_path / "X.npy").unlink()
    with pytest.raises(DataError, match=r"no file .*X\.npy"):
        LabelledData.load(tmp_path)


def test_names_and_values_to_predict_survive_a_folder(tmp_path: Path) -> None:
    names: dict[str, Any] = {"feature_names": ["a", "b", "c"], "texts": list("stuvwxyz")}
    data = LabelledData(X, ["no", "yes"] * 4, list("ppqqrrss"), **names)
    data.save(tmp_path)
    again = LabelledData.load(tmp_path)
    assert again.class_names == ("no", "yes")
    assert again.group_names == ("p", "q", "r", "s")
    assert (again.feature_names, again.texts) == (("a", "b", "c"), tuple("stuvwxyz"))
    assert again.digest == data.digest
    values = LabelledData(X, np.linspace(0, 1, 8))
    values.save(tmp_path)
    again = LabelledData.load(tmp_path)
    np.testing.assert_array_equal(again.y, values.y)
    assert (again.class_names, again.labels, again.n_classes) == (None, None, 0)
    LabelledData(X).save(tmp_path)
    assert LabelledData.load(tmp_path).y is None


@pytest.mark.parametrize(("name", "texts"), [("class_names", ["a"]), ("feature_names", "abc"), ("texts", ["a"] * 9)])
def test_names_that_do_not_fit_are_refused(name: str, texts: Any) -> None:
    with pytest.raises(DataError, match=name) as error:
        LabelledData(X, Y, **{name: texts})
    sentence(error)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"X\.npy cannot be written") as error:
        LabelledData(X, Y).save(tmp_path / "file")
    sentence(error)


def test_npz_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, X=X, y=Y, groups=Y, names=np.array([None]))  # what nobody asks for is not touched
    data = read_data(path)
    assert data.digest == LabelledData(X, Y, Y).digest
    assert data.name == "mine"
    path.rename(tmp_path / "mine.data")
    assert read_data(tmp_path / "mine.data").digest == data.digest


def test_a_true_of_any_byte_is_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", X=np.arange(24, dtype=np.uint8).reshape(8, 3).view(np.bool_), y=Y)
    data = read_data(tmp_path / "odd.npz")
    np.testing.assert_array_equal(data.X.view(np.uint8), (np.arange(24) > 0).reshape(8, 3))
    assert set(data.features().ravel()) == {0.0, 1.0}


@pytest.mark.parametrize("n_features", [7, 8, 9, 16])
def test_packed_bits_are_unpacked(tmp_path: Path, n_features: int) -> None:
    bits = np.random.default_rng(3).integers(0, 2, (8, n_features)).astype(bool)
    np.savez(tmp_path / "bits.npz", X=np.packbits(bits, axis=1), y=Y, n_features=n_features)
    data = read_data(tmp_path / "bits.npz")
    assert data.X.dtype == np.bool_
    np.testing.assert_array_equal(data.X, bits)
    np.savez(tmp_path / "plain.npz", X=bits, y=Y, n_features=n_features)
    np.testing.assert_array_equal(read_data(tmp_path / "plain.npz").X, bits)


def test_purchase_100_as_npz_has_one_hot_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "purchase100.npz", features=X, labels=np.eye(3)[Y])
    assert read_data(tmp_path / "purchase100.npz").digest == LabelledData(X, Y).digest
    np.savez(tmp_path / "texas100.npz", features=X, labels=Y)
    assert read_data(tmp_path / "texas100.npz").digest == LabelledData(X, Y).digest
    for wrong in (np.eye(3)[Y] * 0.5, np.ones((8, 3)), np.zeros((8, 3))):
        np.savez(tmp_path / "wrong.npz", features=X, labels=wrong)
        with pytest.raises(DataError, match="one-hot"):
            read_data(tmp_path / "wrong.npz")


class Bomb:
    """Leaves a file behind when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.write_text, (self.path, "boom")


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    for name, arrays in {
        "X": {"X": np.array([Bomb(tmp_path / "boom")]), "y": Y},
        "y": {"X": X, "y": np.array([Bomb(tmp_path / "boom")])},
    }.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(DataError, match="pickled objects") as error:
            read_data(tmp_path / f"{name}.npz")
        sentence(error)
    assert not (tmp_path / "boom").exists()


def npz(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)


def encrypted(path: Path) -> None:
    np.savez(path, X=X, y=Y)
    raw = bytearray(path.read_bytes())
    for at in [i for i in range(len(raw) - 4) if raw[i : i + 4] in (b"PK\x03\x04", b"PK\x01\x02")]:
        raw[at + (6 if raw[at + 2] == 3 else 8)] |= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (npz(X=X), ["no array 'y'", "numpy.savez"]),
        (npz(y=Y), ["no array 'X'"]),
        (npz(features=X, y=Y), ["no array 'X'"]),
        (npz(X=X, y=Y[:5]), ["8 records", "y has 5"]),
        (npz(X=np.zeros((8, 3), np.uint8), y=Y, n_features=40), ["n_features = 40", "numpy.packbits"]),
        (npz(X=np.zeros((8, 3), np.uint8), y=Y, n_features=-3), ["n_features = -3"]),
        (npz(X=np.zeros((8, 3), np.uint8), y=Y, n_features=[20, 20]), ["n_features = [20, 20]"]),
        (lambda path: path.write_bytes(b""), ["not an npz file"]),
        (lambda path: path.write_text("X,y\n1,2\n"), ["not an npz file"]),
        (lambda path: path.write_bytes(b"\x80\x04N."), ["not an npz file"]),
        (lambda path: path.mkdir(), ["not a data set"]),
        (lambda path: path.with_suffix(".tmp.npy").rename(path), ["single array"]),
        (encrypted, ["damaged", "encrypted"]),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, write: Callable[[Path], Any], words: list[str]) -> None:
    path = tmp_path / "bad.npz"
    np.save(path.with_suffix(".tmp.npy"), X)
    write(path)
    with pytest.raises(DataError) as error:
        read_data(path)
    for word in [str(path), *words]:
        assert word in sentence(error)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no .*nothing\.npz") as error:
        read_data(tmp_path / "nothing.npz")
    sentence(error)


def test_no_damage_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez_compressed(path, X=X, y=Y)
    whole, digest = path.read_bytes(), read_data(path).digest
    broken = [whole[:length] for length in range(0, len(whole), 7)]
    for at in range(0, len(whole), 3):
        broken.append(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
    refused = 0
    for raw in broken:
        path.write_bytes(raw)
        try:
            assert read_data(path).digest == digest
        except DataError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either is right, as long as nothing else happens
            refused += 1
    assert refused > len(broken) / 2


def test_an_archive_in_the_archive_is_no_array(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as file:
        file.writestr("X.npy", b"text")
        file.writestr("y.npy", b"text")
    with pytest.raises(DataError, match="'X', but not as a NumPy array"):
        read_data(tmp_path / "data.npz")


def test_an_entry_longer_than_its_array_is_damaged(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y)
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as file:
        file.writestr("X.npy", (tmp_path / "X.npy").read_bytes() + b"\0")
        file.writestr("y.npy", (tmp_path / "y.npy").read_bytes())
    with pytest.raises(DataError, match="'X' is longer than its header says"):
        read_data(tmp_path / "data.npz")


def test_the_training_path_imports_with_numpy_alone() -> None:
    code = (
        "import sys\n"
        "for name in ('scipy', 'sklearn', 'torch', 'click', 'rich', 'PIL', 'zarr'): sys.modules[name] = None\n"
        "import plmia.data.dataset, plmia.data.archives, plmia.data.designs, plmia.training.views\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_extended_floats_are_never_rounded_silently() -> None:
    wide = X.astype(np.longdouble)
    if wide.dtype.itemsize == 8:
        pytest.skip("no wider floats here")
    assert LabelledData(wide, Y).X.dtype == np.float64
    wide[3, 0] += np.longdouble(2) ** -60
    with pytest.raises(DataError) as error:
        LabelledData(wide, Y)
    assert "64-bit" in sentence(error)


def test_numbers_to_predict_stay_as_they_are(tmp_path: Path) -> None:
    counts = np.array([0, 1, 2, 5, 5, 9, 1, 0])
    data = LabelledData(X, counts, values=True)
    np.testing.assert_array_equal(data.y, counts)
    assert data.y.dtype.kind == "i"
    assert data.labels is None
    assert data.n_classes == 0
    data.save(tmp_path)
    again = LabelledData.load(tmp_path)
    np.testing.assert_array_equal(again.y, counts)
    assert again.labels is None
    assert replace(data, name="other").labels is None


def test_text_labels_are_classes_even_where_numbers_are_values(tmp_path: Path) -> None:
    data = LabelledData(X, list("abababab"), values=True)
    data.save(tmp_path)
    for found in (data, LabelledData.load(tmp_path), replace(data, name="other")):
        np.testing.assert_array_equal(found.labels, [0, 1] * 4)
        assert found.class_names == ("a", "b")
