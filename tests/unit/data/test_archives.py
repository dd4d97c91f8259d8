"""Published archives, on small ones written in the same format: read as documented, damage named, nothing unpickled."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import pickle
import struct
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plmia.data.archives
from plmia.data.archives import CINIC_CLASSES, PUBLISHED, read_archive
from plmia.data.dataset import read_data
from plmia.errors import DataError, install_hint

Files = dict[str, bytes]


def random_bytes(seed: int, n: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, n, dtype=np.uint8).tobytes()


def cifar_file(seed: int, labels: list[tuple[int, ...]]) -> bytes:
    return b"".join(bytes(label) + random_bytes(100 * seed + i, 3072) for i, label in enumerate(labels))


def cifar10_files() -> Files:
    """Two images of each class in the test batch, ten images in every training batch."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    files = {name: cifar_file(i, [(c,) for c in range(10)]) for i, name in enumerate(names)}
    files["test_batch.bin"] = cifar_file(9, [(c % 10,) for c in range(20)])
    files["batches.meta.txt"] = "\n".join(CINIC_CLASSES).encode()
    return {f"cifar-10-batches-bin/{name}": raw for name, raw in files.items()}


def cifar100_files() -> Files:
    labels = [(fine % 20, fine) for fine in range(100)]
    files = {
        "train.bin": cifar_file(20, labels * 2),
        "test.bin": cifar_file(21, labels * 2),
        "fine_label_names.txt": b"",
    }
    return {f"cifar-100-binary/{name}": raw for name, raw in files.items()}


def png(pixels: Any) -> bytes:
    """Encode uint8 [height, width] (grey) or [height, width, 3] as PNG."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def cinic_pixels(part: int, label: int, i: int) -> Any:
    shape = (32, 32) if i else (32, 32, 3)  # CINIC-10 has some grey images
    raw = random_bytes(1000 + 100 * part + 10 * label + i, int(np.prod(shape)))
    return np.frombuffer(raw, np.uint8).reshape(shape)


def cinic_files() -> Files:
    return {
        f"{part}/{name}/img-{i}.png": png(cinic_pixels(p, c, i))
        for p, part in enumerate(("train", "valid", "test"))
        for c, name in reversed(list(enumerate(CINIC_CLASSES)))
        for i in (1, 0)
    }


def purchase_bits() -> Any:
    return np.random.default_rng(5).integers(0, 2, (200, 600)).astype(bool)


@functools.cache
def purchase_files() -> Files:
    lines = [f"{i % 100 + 1}," + ",".join(str(int(b)) for b in bits) + "\n" for i, bits in enumerate(purchase_bits())]
    return {"dataset_purchase": "".join(lines).encode()}


def write_folder(path: Path, files: Files) -> Path:
    for name, raw in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(raw)
    return path


def write_tar(path: Path, files: Files) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, raw in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return path


WAYS: dict[str, Callable[[Path, Files], Path]] = {
    "tar": lambda tmp, files: write_tar(tmp / "archive.tar.gz", files),
    "folder": lambda tmp, files: write_folder(tmp / "folder", files),
    "above": lambda tmp, files: write_folder(tmp / "above" / "inside", files).parent,
}
ways = pytest.mark.parametrize("way", WAYS)


def naive_cifar(raw: bytes, label_bytes: int) -> Iterator[tuple[Any, int]]:
    """Yield pixel by pixel, as the authors' page describes the format."""
    length = label_bytes + 3072
    for start in range(0, len(raw), length):
        record = raw[start : start + length]
        image = np.zeros((32, 32, 3), np.uint8)
        for colour in range(3):
            for row in range(32):
                for column in range(32):
                    image[row, column, colour] = record[label_bytes + 1024 * colour + 32 * row + column]
        yield image, record[label_bytes - 1]


@ways
@pytest.mark.parametrize("part", ["train", "test"])
def test_cifar_10_is_read_as_documented(tmp_path: Path, way: str, part: Any) -> None:
    files = cifar10_files()
    data = read_data(WAYS[way](tmp_path, files), part, verify=False)
    wanted = [name for name in sorted(files) if ("data_batch" if part == "train" else "test_batch") in name]
    expected = [pair for name in wanted for pair in naive_cifar(files[name], 1)]
    assert data.X.dtype == np.uint8
    np.testing.assert_array_equal(data.X, [image for image, _ in expected])
    assert data.y.tolist() == [label for _, label in expected]
    assert data.name == f"CIFAR-10 {part}"


@ways
@pytest.mark.parametrize("part", ["train", "test"])
def test_cifar_100_is_read_with_fine_labels(tmp_path: Path, way: str, part: Any) -> None:
    files = cifar100_files()
    X, y, name = read_archive(WAYS[way](tmp_path, files), part, verify=False)
    expected = list(naive_cifar(files[f"cifar-100-binary/{part}.bin"], 2))
    np.testing.assert_array_equal(X, [image for image, _ in expected])
    assert y.tolist() == [label for _, label in expected] == list(range(100)) * 2
    assert name == f"CIFAR-100 {part}"


def test_batches_come_in_their_order_not_the_archives(tmp_path: Path) -> None:
    files = cifar10_files()
    first = read_archive(write_folder(tmp_path / "a", files), verify=False)
    shuffled = {name: files[name] for name in sorted(files, reverse=True)}
    again = read_archive(write_tar(tmp_path / "b.tgz", shuffled), verify=False)
    np.testing.assert_array_equal(first.X, again.X)
    np.testing.assert_array_equal(first.y, again.y)


@ways
@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_cinic_10_is_read_by_class_and_name(tmp_path: Path, way: str, part: Any) -> None:
    pytest.importorskip("PIL")
    data = read_data(WAYS[way](tmp_path, cinic_files()), part, verify=False)
    p = ("train", "valid", "test").index(part)
    assert data.y.tolist() == [c for c in range(10) for _ in range(2)]
    for c in range(10):
        np.testing.assert_array_equal(data.X[2 * c], cinic_pixels(p, c, 0))
        for colour in range(3):
            np.testing.assert_array_equal(data.X[2 * c + 1, :, :, colour], cinic_pixels(p, c, 1))
    assert data.name == f"CINIC-10 {part}"


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("train/cat/img-0.png", b"GIF89a", ["train/cat/img-0.png is not a PNG"]),
        ("train/cat/img-0.png", png(cinic_pixels(0, 0, 0))[:1600], ["train/cat/img-0.png is not a PNG"]),
        ("train/cat/img-0.png", png(np.zeros((31, 32), np.uint8)), ["32 x 31 pixels", "32 x 32"]),
        ("train/unicorn/img-0.png", png(np.zeros((32, 32), np.uint8)), ["no class 'unicorn'"]),
    ],
    ids=["other", "cut", "small", "class"],
)
def test_damaged_images_are_named(tmp_path: Path, name: str, raw: bytes, words: list[str]) -> None:
    pytest.importorskip("PIL")
    path = write_tar(tmp_path / "cinic.tar.gz", cinic_files() | {name: raw})
    refused(path, *words)


def test_without_pillow_cinic_10_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    refused(write_folder(tmp_path, cinic_files()), install_hint("images"))


@ways
def test_purchase_100_is_read(tmp_path: Path, way: str) -> None:
    data = read_data(WAYS[way](tmp_path, purchase_files()), verify=False)
    assert data.X.dtype == np.bool_
    np.testing.assert_array_equal(data.X, purchase_bits())
    assert data.y.tolist() == [i % 100 for i in range(200)]


@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
def test_a_checksum_at_the_end_of_an_archive_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    # The published archive has no MD5, and records end before the compressed file does.
    small = tuple(dataclasses.replace(p, n_points={"train": 200}) if p.md5 is None else p for p in PUBLISHED)
    monkeypatch.setattr(plmia.data.archives, "PUBLISHED", small)
    path = tmp_path / f"p.tar.{compression}"
    with tarfile.open(path, f"w:{compression}") as tar:
        raw = purchase_files()["dataset_purchase"]
        info = tarfile.TarInfo("dataset_purchase")
        info.size = len(raw)
        tar.addfile(info, io.BytesIO(raw))
    np.testing.assert_array_equal(read_archive(path).X, purchase_bits())
    good, read = path.read_bytes(), 0
    for at in range(0, len(good), len(good) // 60):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        try:
            X = read_archive(path).X
        except DataError:
            continue
        read += 1
        np.testing.assert_array_equal(X, purchase_bits())
    assert read < 5


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("rows", [1, 3, 10_000])
def test_purchase_100_is_read_from_the_bare_text(
    tmp_path: Path, ending: bytes, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plmia.data.archives, "_ROWS_AT_ONCE", rows)
    text = purchase_files()["dataset_purchase"].replace(b"\n", ending)
    (tmp_path / "any name.csv").write_bytes(text.removesuffix(ending))
    X, y, _ = read_archive(tmp_path / "any name.csv", verify=False)
    np.testing.assert_array_equal(X, purchase_bits())
    assert y.tolist() == [i % 100 for i in range(200)]


@pytest.mark.parametrize("line", [b"101", b"0", b"-1", b"x", b""])
@pytest.mark.parametrize("rows", [7, 10_000])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plmia.data.archives, "_ROWS_AT_ONCE", rows)
    lines = purchase_files()["dataset_purchase"].splitlines(keepends=True)
    lines[18] = line + lines[18][lines[18].index(b",") :]
    refused(write_tar(tmp_path / "p.tgz", {"dataset_purchase": b"".join(lines)}), "line 19", "1 to 100")


@pytest.mark.parametrize("cut", [1, 2, 600])
def test_a_line_of_another_length_is_named(tmp_path: Path, cut: int) -> None:
    lines = purchase_files()["dataset_purchase"].splitlines(keepends=True)
    lines[3] = lines[3][: -1 - cut] + b"\n"
    refused(write_tar(tmp_path / "p.tgz", {"dataset_purchase": b"".join(lines)}), "line 4", "600 zeros and ones")


def refused(path: Path, *words: str, part: Any = "train", verify: bool = False) -> None:
    with pytest.raises(DataError) as error:
        read_data(path, part, verify)
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("name", "files"), [("CIFAR-10", cifar10_files), ("CIFAR-100", cifar100_files), ("CINIC-10", cinic_files)]
)
def test_an_archive_with_another_checksum_is_refused(tmp_path: Path, name: str, files: Callable[[], Files]) -> None:
    path = write_tar(tmp_path / "archive.tar.gz", files())
    found = hashlib.md5(path.read_bytes()).hexdigest()
    published = next(p.md5 for p in PUBLISHED if p.name == name)
    refused(path, str(path), f"MD5 {found}", f"{name} has {published}", "verify=False", verify=True)


def with_published(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    changed = tuple(dataclasses.replace(p, **changes) if p.name == name else p for p in PUBLISHED)
    monkeypatch.setattr(plmia.data.archives, "PUBLISHED", changed)


def test_the_right_checksum_and_number_of_points_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tar(tmp_path / "archive.tar.gz", cifar10_files())
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    with_published(monkeypatch, "CIFAR-10", md5=md5, n_points={"train": 50, "test": 20})
    assert read_data(path).n_points == 50
    assert read_data(path, "test").n_points == 20
    with_published(monkeypatch, "CIFAR-10", md5=md5, n_points={"train": 51})
    refused(path, "holds 50 records", "51 were published", "verify=False", verify=True)


@pytest.mark.parametrize("files", [cifar10_files, cifar100_files, purchase_files])
def test_a_folder_that_is_not_whole_is_refused(tmp_path: Path, files: Callable[[], Files]) -> None:
    refused(write_folder(tmp_path, files()), "records of", "were published", verify=True)


def test_the_published_numbers() -> None:
    assert {p.name: (p.md5, dict(p.n_points)) for p in PUBLISHED} == {
        "CIFAR-10": ("c32a1d4ab5d03f1284b67883e8d87530", {"train": 50000, "test": 10000}),
        "CIFAR-100": ("03b5dce01913d631647c71ecec9e9cb8", {"train": 50000, "test": 10000}),
        "CINIC-10": ("6ee4d0c996905fe93221de577967a372", {"train": 90000, "valid": 90000, "test": 90000}),
        "Purchase-100": (None, {"train": 197324}),
    }


class Bomb:
    """Leaves a file behind when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.write_text, (self.path, "boom")


@ways
@pytest.mark.parametrize(
    "names", [("cifar-10-batches-py/data_batch_1", "cifar-10-batches-py/test_batch"), ("cifar-100-python/train",)]
)
def test_the_python_version_is_refused_unread(tmp_path: Path, way: str, names: tuple[str, ...]) -> None:
    raw = pickle.dumps(Bomb(tmp_path / "boom"), protocol=2)
    refused(WAYS[way](tmp_path, dict.fromkeys(names, raw)), "Python version", "binary version (cifar-10-binary.tar.gz")
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_batch_3.bin": None}, ["lacks data_batch_3.bin"]),
        ({"data_batch_3.bin": b""}, ["data_batch_3.bin has 0 bytes", "3073"]),
        ({"data_batch_3.bin": bytes(3072)}, ["data_batch_3.bin has 3072 bytes", "3073"]),
        ({"data_batch_3.bin": bytes(3073) + b"\x0a" + bytes(3072)}, ["label 10 at record 1", "0 to 9"]),
    ],
    ids=["missing", "empty", "short", "label"],
)
@ways
def test_damaged_batches_are_named(tmp_path: Path, way: str, changes: dict[str, Any], words: list[str]) -> None:
    files: dict[str, Any] = cifar10_files() | {f"cifar-10-batches-bin/{name}": raw for name, raw in changes.items()}
    refused(WAYS[way](tmp_path, {name: raw for name, raw in files.items() if raw is not None}), *words)


def test_no_truncation_or_flipped_byte_ends_in_a_crash(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "cifar.tgz", {name: raw[:6146] for name, raw in cifar10_files().items()})
    whole = path.read_bytes()
    X, y, _ = read_archive(path, verify=False)
    broken = [whole[:length] for length in range(0, len(whole), 997)]
    broken += [whole[:at] + bytes([whole[at] ^ 0x2A]) + whole[at + 1 :] for at in range(0, len(whole), 499)]
    refusals = 0
    for raw in broken:
        path.write_bytes(raw)
        try:
            read_archive(path, verify=False)
        except DataError as error:
            assert "\n" not in str(error)  # noqa: PT017 - gzip's checksum comes last, after what is needed was read
            refusals += 1
    assert refusals > 10
    path.write_bytes(whole)
    np.testing.assert_array_equal(read_archive(path, verify=False).X, X)
    assert len(y) == 10


def test_parts_that_a_set_lacks_are_named(tmp_path: Path) -> None:
    refused(write_folder(tmp_path / "c", cifar10_files()), "CIFAR-10 has no part 'valid'", "train, test", part="valid")
    refused(write_folder(tmp_path / "p", purchase_files()), "Purchase-100 has no part 'test'", part="test")


def test_two_sets_in_one_folder_are_not_guessed_between(tmp_path: Path) -> None:
    refused(write_folder(tmp_path, cifar10_files() | cifar100_files()), "CIFAR-10 and CIFAR-100", "one of them")


@pytest.mark.parametrize("way", ["tar", "folder"])
def test_anything_else_is_refused(tmp_path: Path, way: str) -> None:
    path = WAYS[way](tmp_path, {"notes/readme.txt": b"hello", "notes/train": b"choo choo"})
    refused(path, "not a data set", "CIFAR-10, CIFAR-100, CINIC-10, Purchase-100")
    (tmp_path / "table.txt").write_text("a,b\n1,2\n")
    refused(tmp_path / "table.txt", "not a data set", "npz with `X` and `y`")


def test_nothing_leaves_the_archive(tmp_path: Path) -> None:
    files = cifar10_files()
    path = tmp_path / "in" / "evil.tar"
    path.parent.mkdir()
    write_tar(path, {f"../../{name}": raw for name, raw in files.items()})
    with tarfile.open(tmp_path / "in" / "link.tar", "w") as tar:
        info = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    before = sorted(tmp_path.rglob("*"))
    assert len(read_archive(path, verify=False).y) == 50
    refused(tmp_path / "in" / "link.tar", "not a data set")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_member_that_claims_to_be_huge_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plmia.data.archives, "_MAX_BYTES", 30_729)
    refused(write_tar(tmp_path / "c.tgz", cifar10_files()), "data_batch_1.bin with 30730 bytes")
    refused(write_tar(tmp_path / "p.tgz", purchase_files()), "dataset_purchase", "30729")
