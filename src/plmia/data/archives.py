"""Published data sets, read from their authors' archives or from the unpacked folders.

Nothing is unpacked to disk: members of a tar are read by name, in one pass through the archive.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import itertools
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Literal, NamedTuple

import numpy as np

from plmia.data.arrays import Array, Labels
from plmia.data.files import files_in, is_folder, require_regular
from plmia.data.table_files import TABLE_SUFFIXES
from plmia.errors import DataError, install_hint

Part = Literal["train", "valid", "test"]

# The largest file of the published archives is less than half as long.
_MAX_BYTES = 1 << 30
_MAX_DEPTH = 4
_CHUNK_BYTES = 1 << 20
_ROWS_AT_ONCE = 10_000

CINIC_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PURCHASE_FEATURES = 600


class PublishedData(NamedTuple):
    """Records X [records, ...] in the archive's order (CINIC-10: by class and file name), labels y from 0, and name."""

    X: Array
    y: Labels
    name: str


@dataclass(frozen=True)
class Member:
    """One file of an archive or a folder; in an archive it can only be opened until the next member is read."""

    path: Path  # of the archive or folder
    name: str  # path inside
    size: int
    source: Callable[[], IO[bytes] | None]

    def open(self) -> IO[bytes]:
        """Open the file."""
        if self.size > _MAX_BYTES:
            raise _refused(self.path, f"holds {self.name} with {self.size} bytes, at most {_MAX_BYTES} were published")
        file = self.source()
        assert file is not None  # noqa: S101 - in a tar, only links and folders have none
        return file

    def read(self) -> bytes:
        """Return all bytes."""
        with self.open() as file:
            return file.read()


@dataclass(frozen=True)
class Published:
    """A published data set: how its files are recognised and read."""

    name: str
    member: str  # regular expression that only the paths of its own files match
    n_points: Mapping[Part, int]
    md5: str | None  # of the archive, if one was published
    read: Callable[[Path, Part], tuple[Array, Array]]  # X and y


def read_archive(path: Path, part: Part = "train", verify: bool = True) -> PublishedData:
    """Read CIFAR-10, CIFAR-100 (fine labels), CINIC-10 or Purchase-100, whichever is found at ``path``.

    That is ``cifar-10-binary.tar.gz``, ``cifar-100-binary.tar.gz``, ``CINIC-10.tar.gz``, ``dataset_purchase.tgz``, a
    folder with the unpacked files of one of them, or the text file ``dataset_purchase``. Only the names of the files
    inside matter. CIFAR has no part "valid", Purchase-100 is all "train".
    """
    with _damage_named(path):
        if not path.is_dir():
            require_regular(path)
        published = _recognise(path)
        if part not in published.n_points:
            raise DataError(f"{published.name} has no part {part!r}: choose from {', '.join(published.n_points)}")
        if verify and path.is_file() and tarfile.is_tarfile(path):
            if published.md5:
                _compare_md5(path, published)
            else:
                _compare_checksums(path)
        X, y = published.read(path, part)
    if verify and len(y) != published.n_points[part]:
        raise DataError(
            f"{path} holds {len(y)} records of {published.name}'s part {part!r}, {published.n_points[part]} were "
            "published: download it again, or read it with verify=False"
        )
    return PublishedData(X, y, f"{published.name} {part}")


def _refused(path: Path, problem: str) -> DataError:
    return DataError(f"{path} {problem}: download it again")


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise _refused(path, f"is damaged or truncated ({error})") from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror or error}): check its permissions, or download it again"
        ) from error


def _recognise(path: Path) -> Published:
    """Recognise the data set at ``path`` by its files."""
    found: list[Published] = []
    pickled = False
    for member in _members(path):
        pickled = pickled or _is_pickled(member)
        found += [p for p in PUBLISHED if p not in found and re.search(p.member, member.name)]
        # A folder may hold several sets. An archive holds one and takes long to read.
        if found and not path.is_dir():
            break
    if len(found) == 1:
        return found[0]
    if found:
        names = " and ".join(p.name for p in found)
        raise DataError(f"{path} holds {names}: give the folder or the archive of one of them")
    if pickled:
        raise DataError(
            f"{path} is CIFAR's Python version with pickled objects, which could run code and are never loaded: "
            "download the binary version (cifar-10-binary.tar.gz, cifar-100-binary.tar.gz) from the same page"
        )
    if is_folder(path):
        raise DataError(
            f"{path} is a folder, but not a data set that plmia reads ({', '.join(p.name for p in PUBLISHED)}): "
            f"{files_in(path, ('.npz', *TABLE_SUFFIXES))}"
        )
    raise DataError(
        f"{path} is not a data set that plmia reads: give an npz with `X` and `y`, or the published archive or folder "
        f"of {', '.join(p.name for p in PUBLISHED)}"
    )


def _is_pickled(member: Member) -> bool:
    """Whether it is a file of CIFAR's Python version."""
    if member.size > _MAX_BYTES or not re.search(r"(?:^|/)(?:data_batch_[1-5]|test_batch|train|test)$", member.name):
        return False
    with member.open() as file:
        return file.read(1) == b"\x80"  # of every pickle of protocol 2 and later


def _compare_md5(path: Path, published: Published) -> None:
    with path.open("rb") as file:
        md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if md5 != published.md5:
        raise DataError(
            f"{path} has MD5 {md5}, the published archive of {published.name} has {published.md5}: download it again, "
            "or read it with verify=False if it was changed on purpose"
        )


def _compare_checksums(path: Path) -> None:
    """Read a compressed archive to its end, where the checksum is; records are read only as far as they go."""
    with tarfile.open(path, "r:*") as tar:
        assert tar.fileobj is not None  # noqa: S101 - it is open
        while tar.fileobj.read(_CHUNK_BYTES):
            pass


def _members(path: Path) -> Iterator[Member]:
    """Files in a folder or an archive, or the one file that ``path`` is if it looks like Purchase-100."""
    if path.is_dir():
        yield from _files_under(path)
    elif tarfile.is_tarfile(path):
        with tarfile.open(path, "r:*") as tar:
            for info in tar:
                if info.isfile():
                    yield Member(path, info.name, info.size, partial(tar.extractfile, info))
    else:
        with path.open("rb") as file:
            if re.match(rb"[0-9]{1,3}(,[01]){20}", file.read(64)):
                yield Member(path, "dataset_purchase", path.stat().st_size, partial(_opened, path))


def _opened(path: Path) -> IO[bytes]:
    return path.open("rb")


def _files_under(folder: Path) -> Iterator[Member]:
    """Files in ``folder`` and below, sorted, as deep as published archives go."""
    for parent, folders, files in os.walk(folder):
        inside = Path(parent).relative_to(folder)
        folders[:] = sorted(folders) if len(inside.parts) < _MAX_DEPTH else []
        for file in (Path(parent) / name for name in sorted(files)):
            if file.is_file():
                yield Member(folder, (inside / file.name).as_posix(), file.stat().st_size, partial(_opened, file))


# CIFAR: a record is one or two label bytes, then 3,072 bytes of 32 x 32 pixels, one plane per colour.


def _read_cifar(
    names: Mapping[Part, list[str]], label_bytes: int, n_classes: int, path: Path, part: Part
) -> tuple[Array, Array]:
    found: dict[str, Array] = {}
    for member in _members(path):
        name = PurePosixPath(member.name).name
        if name in names[part]:
            found[name] = _cifar_records(member, label_bytes, n_classes)
        if len(found) == len(names[part]):
            break
    for name in names[part]:
        if name not in found:
            raise _refused(path, f"lacks {name}")
    records = np.concatenate([found[name] for name in names[part]])
    planes = records[:, label_bytes:].reshape(-1, 3, 32, 32)
    # Of CIFAR-100's two labels (coarse, fine) the last is the fine one.
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, label_bytes - 1].astype(np.int64)


def _cifar_records(member: Member, label_bytes: int, n_classes: int) -> Array:
    raw, length = member.read(), label_bytes + 3 * 32 * 32
    if not raw or len(raw) % length:
        problem = f"is damaged ({member.name} has {len(raw)} bytes, not a multiple of {length})"
        raise _refused(member.path, problem)
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, length)
    labels = records[:, label_bytes - 1]
    if labels.max() >= n_classes:
        wrong = int(labels.argmax())
        place = f"{member.name} has label {labels[wrong]} at record {wrong}"
        raise _refused(member.path, f"is damaged ({place}, labels are 0 to {n_classes - 1})")
    return records


# CINIC-10: one PNG per image, in folders part/class.

_CINIC_MEMBER = r"(?:^|/)(train|valid|test)/([^/]+)/([^/]+\.png)$"


def _read_cinic(path: Path, part: Part) -> tuple[Array, Array]:
    images: dict[tuple[int, str], Array] = {}
    for member in _members(path):
        match = re.search(_CINIC_MEMBER, member.name)
        if match is None or match[1] != part:
            continue
        if match[2] not in CINIC_CLASSES:
            raise _refused(path, f"holds {member.name}, but CINIC-10 has no class {match[2]!r}")
        images[CINIC_CLASSES.index(match[2]), match[3]] = _decoded(member)
    if not images:
        raise _refused(path, f"holds no image of CINIC-10's part {part!r}")
    order = sorted(images)
    return np.stack([images[key] for key in order]), np.array([label for label, _ in order], dtype=np.int64)


def _decoded(member: Member) -> Array:
    """Pixels [32, 32, 3] of a PNG, which may be grey."""
    try:
        pillow = import_module("PIL.Image")
    except ImportError as error:
        raise DataError(
            f"CINIC-10 is made of PNG images, which Pillow reads ({error}): {install_hint('images')}"
        ) from error
    raw = member.read()
    try:
        with pillow.open(BytesIO(raw), formats=["PNG"]) as image:
            size = image.size
            pixels: Array = np.asarray(image.convert("RGB")) if size == (32, 32) else np.empty(0)
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise _refused(member.path, f"is damaged ({member.name} is not a PNG image: {error})") from error
    if size != (32, 32):
        problem = f"holds {member.name} of {size[0]} x {size[1]} pixels, CINIC-10 has 32 x 32"
        raise _refused(member.path, problem)
    return pixels


# Purchase-100: one line per point, its label (1 to 100) and 600 zeros and ones, separated by commas.

_PURCHASE_MEMBER = r"(?:^|/)dataset_purchase$"
_PURCHASE_LINE = re.compile(rb"([0-9]{1,3})((?:,[01]){%d})\r?\n?" % PURCHASE_FEATURES)


def _read_purchase(path: Path, _part: Part) -> tuple[Array, Array]:
    parts: list[tuple[Array, Array]] = []
    n_lines = 0
    for member in _members(path):
        if re.search(_PURCHASE_MEMBER, member.name):
            with member.open() as file:
                while lines := list(itertools.islice(file, _ROWS_AT_ONCE)):
                    parts.append(_parse_lines(path, lines, n_lines))
                    n_lines += len(lines)
            break
    if not parts:
        raise _refused(path, "lacks dataset_purchase, or it is empty")
    return np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts])


def _parse_lines(path: Path, lines: list[bytes], before: int) -> tuple[Array, Array]:
    """Bool array [lines, features] and int array [lines]; ``before`` lines came earlier."""
    matches = [_PURCHASE_LINE.fullmatch(line) for line in lines]
    y = np.array([int(match[1]) if match else 0 for match in matches], dtype=np.int64)
    wrong = np.flatnonzero((y < 1) | (y > 100))
    if len(wrong):
        form = f"a label of 1 to 100 and {PURCHASE_FEATURES} zeros and ones with commas"
        raise _refused(path, f"is damaged (line {before + wrong[0] + 1} is not {form})")
    text = np.frombuffer(b"".join(match[2] for match in matches if match), dtype=np.uint8)
    return text.reshape(len(lines), PURCHASE_FEATURES, 2)[:, :, 1] == ord("1"), y - 1


_CIFAR_POINTS: Mapping[Part, int] = {"train": 50_000, "test": 10_000}
_CIFAR10_FILES: Mapping[Part, list[str]] = {
    "train": [f"data_batch_{i}.bin" for i in range(1, 6)],
    "test": ["test_batch.bin"],
}
_CIFAR100_FILES: Mapping[Part, list[str]] = {"train": ["train.bin"], "test": ["test.bin"]}
_CINIC_POINTS: Mapping[Part, int] = {"train": 90_000, "valid": 90_000, "test": 90_000}

# MD5 as on https://www.cs.toronto.edu/~kriz/cifar.html and https://datashare.ed.ac.uk/handle/10283/3192
# fmt: off
PUBLISHED = (
    Published("CIFAR-10", r"(?:^|/)(?:data_batch_[1-5]|test_batch)\.bin$", _CIFAR_POINTS,
              "c32a1d4ab5d03f1284b67883e8d87530", partial(_read_cifar, _CIFAR10_FILES, 1, 10)),
    Published("CIFAR-100", r"(?:^|/)(?:train|test)\.bin$", _CIFAR_POINTS,
              "03b5dce01913d631647c71ecec9e9cb8", partial(_read_cifar, _CIFAR100_FILES, 2, 100)),
    Published("CINIC-10", _CINIC_MEMBER, _CINIC_POINTS, "6ee4d0c996905fe93221de577967a372", _read_cinic),
    Published("Purchase-100", _PURCHASE_MEMBER, {"train": 197_324}, None, _read_purchase),
)
# fmt: on
