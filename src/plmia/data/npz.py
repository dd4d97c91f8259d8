"""NumPy files of any origin: npz and npy, read with checks, and npy written complete or not at all.

A file may be damaged, truncated or hostile. Nothing is unpickled, every array must have the length that its header
states (and, in an npz, the checksum of its entry), and each failure is one sentence that names the file. Arrays of an
npz that plmia does not use are reported, since a misspelt name would change an audit silently.
"""

from __future__ import annotations

import math
import mmap
import struct
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, Literal, cast

import numpy as np
import numpy.typing as npt

from plmia.data import memory
from plmia.data.arrays import Array, BoolArray
from plmia.data.files import (
    create_private,
    files_in,
    is_file,
    is_folder,
    make_private,
    open_regular,
    replacing,
    require_no_pipe,
    require_regular,
)
from plmia.errors import DataError, MemoryLimitError, Note, OutputError, PlmiaError, did_you_mean, shown

# Texts and names that a report may show beside the records.
TEXT_ARRAYS = ("texts", "class_names", "feature_names")
DATA_ARRAYS = ("X", "y", "groups", "n_features", "features", "labels", *TEXT_ARRAYS)
# Names of models, records and views in a signals file, where these are not called 0, 1, 2, ...
NAME_ARRAYS = ("model_names", "texts", "view_names")
SIGNALS_ARRAYS = ("signals", "membership", "labels", "n_points", "groups", *NAME_ARRAYS)

NPY_MAGIC = b"\x93NUMPY"
# `grp` is this similar to `groups`; `rows` is not.
_SIMILAR = 0.65
# Where memory is limited, arrays that take a larger share of it are mapped.
_MAPPED_SHARE = 1 / 64
# An array that is not mapped is in memory, and so is a copy of it, or of the records that an attack works on.
_COPIES = 2
_CHUNK = 1 << 20
_LOCAL_HEADER = 30  # bytes of the fixed part of an entry's header


def load_npz(path: Path, names: Collection[str] | None, needs: str, kind: type[PlmiaError]) -> dict[str, Array]:
    """Read those arrays called ``names`` that an npz file holds (None: all); errors say that it ``needs`` these."""
    with _named_damage(path, kind, "an npz file", f"give the path of an npz with {needs}"):
        require_no_pipe(path, kind)
        if is_folder(path):
            raise kind(f"{path} is a folder, but an npz file with {needs} is needed: {files_in(path, ('.npz',))}")
        with open_regular(path) as stream:
            start = stream.read(len(NPY_MAGIC))
            if start == NPY_MAGIC:
                raise kind(f"{path} is a single array: save {needs} with numpy.savez")
            if not start.startswith(b"PK"):
                begins = f"it starts with {start!r}" if start else "it is empty"
                raise kind(f"{path} is not an npz file ({begins}): save {needs} with numpy.savez")
            found: dict[str, Array] = {}
            seen: set[str] = set()
            with zipfile.ZipFile(stream) as archive:
                _require_memory(path, archive, names)
                for entry in archive.infolist():
                    name = entry.filename.removesuffix(".npy")
                    if entry.comment:  # NumPy writes none; a damaged length would make one of the next entry
                        raise kind(f"{path} is damaged ({name!r} carries a comment): write or copy it again")
                    if name in seen:
                        raise kind(f"{path} holds two arrays {name!r}, and only one can be meant: save it again")
                    seen.add(name)
                    # Opening compares the two names of an entry: a damaged name cannot hide an array.
                    with cast("zipfile.ZipExtFile", archive.open(entry)) as member:
                        if names is None or name in names:
                            found[name] = _read_or_map(path, name, stream, entry, member, kind)
            return found


def _read_or_map(
    path: Path, name: str, stream: BinaryIO, entry: zipfile.ZipInfo, member: zipfile.ZipExtFile, kind: type[PlmiaError]
) -> Array:
    """Read one array; where memory is limited, map a large one that is not compressed, and compare its checksum."""
    if not _is_large(entry) or entry.compress_type != zipfile.ZIP_STORED:
        return read_member(path, name, member, kind)
    while member.read(_CHUNK):  # compares the checksum at the end
        pass
    position = stream.tell()
    try:
        stream.seek(entry.header_offset)
        lengths: tuple[int, int] = struct.unpack("<26xHH", stream.read(_LOCAL_HEADER))
        start = stream.seek(entry.header_offset + _LOCAL_HEADER + sum(lengths))
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
        offset, n = stream.tell(), math.prod(shape)
        if dtype.hasobject or fortran or offset - start + n * dtype.itemsize != entry.file_size:
            raise kind(
                f"{path} holds {name!r} in column order, as objects, or longer than its header says: save it again "
                "with numpy.savez as a plain array in row order"
            )
        mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        array = memory.registered(np.frombuffer(mapping, dtype, n, offset).reshape(shape))
        return array if dtype != np.bool_ else _as_ones(array)
    finally:
        stream.seek(position)


def _is_large(entry: zipfile.ZipInfo) -> bool:
    """Whether memory is limited and an array takes more than a small share of it."""
    limit = memory.limit_in_bytes()
    return limit is not None and entry.file_size >= _MAPPED_SHARE * limit


def _require_memory(path: Path, archive: zipfile.ZipFile, names: Collection[str] | None) -> None:
    """Refuse large compressed arrays that do not fit the memory limit, by the sizes in the directory of the file."""
    sizes = [
        entry.file_size
        for entry in archive.infolist()
        if (names is None or entry.filename.removesuffix(".npy") in names)
        and entry.compress_type != zipfile.ZIP_STORED
        and _is_large(entry)
    ]
    if sizes:
        memory.require(
            memory.LEAST_LIMIT + _COPIES * sum(sizes),
            f"reading the compressed arrays of {path}",
            "save it with numpy.savez instead of numpy.savez_compressed",
        )


def _as_ones(mapped: Array) -> BoolArray:
    """Return what `true_as_one` returns, one part at a time."""
    ones: BoolArray = memory.empty(mapped.shape, np.bool_)
    values, parts = ones.reshape(-1), mapped.reshape(-1)
    for start in range(0, len(values), _CHUNK):
        values[start : start + _CHUNK] = true_as_one(parts[start : start + _CHUNK])
        memory.release()
    return ones


def load_array(path: Path, names: Collection[str], needs: str, kind: type[PlmiaError]) -> tuple[str, Array]:
    """Read the array of an npy file, or that array of an npz which is called by one of ``names`` or is the only one.

    The name is empty for an npy file; errors say that the file ``needs`` to hold.
    """
    if path.suffix.lower() == ".npy":
        return "", load_npy(path, kind)
    arrays = load_npz(path, None, needs, kind)
    chosen = [name for name in arrays if name in names] or list(arrays)
    if len(chosen) != 1:
        raise kind(
            f"{path} holds the arrays {', '.join(map(repr, arrays)) or 'none'}: {needs} must be the only one, or be "
            f"called {' or '.join(map(repr, names))}"
        )
    return chosen[0], arrays[chosen[0]]


def read_member(path: Path, name: str, member: zipfile.ZipExtFile, kind: type[PlmiaError]) -> Array:
    """Read one array of an npz to the end of its entry, where the checksum is compared; `numpy.load` stops before.

    Damage that NumPy or zipfile finds raises their errors.
    """
    if not member.peek(len(NPY_MAGIC)).startswith(NPY_MAGIC):
        raise kind(f"{path} holds {name!r}, but not as a NumPy array: save it with numpy.savez")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers that Python 2 wrote
        array: Array = np.lib.format.read_array(member, allow_pickle=False)
    if member.read(1):
        raise kind(f"{path} is damaged ({name!r} is longer than its header says): write or copy it again")
    return true_as_one(array)


def load_npy(path: Path, kind: type[PlmiaError] = DataError, of: str = "", mode: Literal["r", "c"] = "c") -> Array:
    """Map the array of an npy file, which belongs to ``of``, into memory, to be read on demand.

    Mode "c" allows changes, which stay in this process; "r" allows none and takes no memory for them.
    """
    named = f"{path} of {of}" if of else str(path)
    with _named_damage(named, kind, "an npy file", "write it again, or check that the folder is the right one"):
        require_regular(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote
            array = np.lib.format.open_memmap(path, mode=mode)
        if path.stat().st_size != array.offset + array.nbytes:
            raise kind(f"{named} is damaged (it is longer than its header says): write or copy it again")
        return np.asarray(array)


def save_npy(path: Path, array: Array) -> None:
    """Write one array as npy, in row order; ``path`` is complete or unchanged."""
    with _output_errors(path):
        make_private(path.parent)
        with replacing(path) as file:
            np.save(file, np.ascontiguousarray(array), allow_pickle=False)


def open_unnamed_npy(path: Path, array: Array) -> BinaryIO:
    """Write one array as npy into a private file in the folder of ``path`` that has no name, and return it open.

    The file ends when the last process that has it open ends, however that ends. Only POSIX systems have such files.
    """
    with _output_errors(path):
        file = create_private(path)
        try:
            path.unlink()  # before it has contents
            np.save(file, np.ascontiguousarray(array), allow_pickle=False)
            file.flush()
        except BaseException:
            file.close()
            raise
    return file


@contextmanager
def _output_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror or error}): free space, or choose another folder"
        ) from error


def save_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as an npz with the same bytes for the same arrays; ``path`` is complete or unchanged."""
    with replacing(path, durable=True) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with npz_entry(archive, name) as entry:
                np.lib.format.write_array(entry, np.asarray(array, order="C"), allow_pickle=False)


def npz_entry(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """Open an array of an npz for writing."""
    # A fixed date instead of the present one keeps the bytes the same from run to run.
    return archive.open(zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0)), "w", force_zip64=True)


def true_as_one(array: Array) -> Array:
    """Return booleans whose True is 1: in a file it may be any byte but 0, and sums rely on 1."""
    return array.view(np.uint8) != 0 if array.dtype == np.bool_ else array


def packed_rows(bits: BoolArray) -> npt.NDArray[np.uint8]:
    """Bits packed along the second axis, uint8 [rows, ceil(n / 8)], one row at a time."""
    packed = np.empty((len(bits), -(-bits.shape[1] // 8)), np.uint8)
    for to, row in zip(packed, bits, strict=True):
        to[:] = np.packbits(row)
        memory.release()
    return packed


def unpack_bits(packed: Array, n: int) -> BoolArray:
    """Bool array [rows, n] of bits packed along the second axis, uint8 [rows, ceil(n / 8)]."""
    bits: BoolArray = memory.empty((len(packed), n), np.bool_)
    for row, few in zip(bits, packed, strict=True):
        row[:] = np.unpackbits(few, count=n).view(np.bool_)
        memory.release()
    return bits


def text_array(path: Path, name: str, array: Array) -> list[str]:
    """Texts of an array [entries] of a file."""
    if array.ndim != 1 or array.dtype.kind != "U":
        raise DataError(
            f"{path} has {name} of shape {array.shape} and type {array.dtype}, but it must be a list of texts: "
            "make it with numpy.array(names)"
        )
    texts: list[str] = array.tolist()
    return texts


def whole_number(array: Array) -> int | None:
    """Return the one integer that an array holds, or None if it holds anything else."""
    return int(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind in "ui" else None


@contextmanager
def _named_damage(path: Path | str, kind: type[PlmiaError], form: str, missing: str) -> Iterator[None]:
    """Turn any error of reading into one of ``kind`` that names the file."""
    try:
        yield
    except (kind, MemoryLimitError):
        raise
    except FileNotFoundError as error:
        raise kind(f"there is no file {path}: {missing}") from error
    except OSError as error:
        raise kind(
            f"{path} cannot be read ({error.strerror or error}): check its name and permissions, or write it again"
        ) from error
    except MemoryError as error:
        raise kind(f"{path} does not fit into memory ({error}): use fewer models or records") from error
    # For a damaged file, zipfile, its decompressors and NumPy's header reader raise errors of many classes.
    except Exception as error:
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            raise kind(
                f"{path} holds pickled objects, which could run code and are never loaded: save plain numeric arrays"
            ) from error
        raise kind(f"{path} is damaged, truncated or not {form} ({error}): write or copy it again") from error


def unused_arrays(path: Path, known: Collection[str], kind: type[PlmiaError]) -> list[Note]:
    """Report the arrays of an npz that plmia does not use, one note per array; other files give no notes.

    Raises ``kind`` if a name resembles `groups` and there is no `groups`: without its groups, the rows of one patient
    land on both sides of a split, and nothing in the results would reveal it.
    """
    if not (is_file(path) and zipfile.is_zipfile(path)):
        return []
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    unused = [name for name in names if name not in known]
    for name in unused:
        if "groups" not in names and _resembles_groups(name):
            raise kind(
                f"{path} holds {name!r}, which is not known, but no 'groups': rename it to 'groups' if it says which "
                "records belong together, otherwise remove it or give it another name"
            )
    otherwise, listed = "if it says which records belong together, call it 'groups'", ", ".join(known)
    hints = {name: did_you_mean(name, known, otherwise, cutoff=_SIMILAR) for name in unused}
    texts = [f"Array {n!r} of {shown(path.name)} is not used; known are {listed}; {h}" for n, h in hints.items()]
    return [Note("unused-arrays", "info", text) for text in texts]


def _resembles_groups(name: str) -> bool:
    return "group" in name.lower() or bool(did_you_mean(name.lower(), ["groups"], "", cutoff=_SIMILAR))
