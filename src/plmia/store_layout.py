"""What lies where in a store: its layout (the contents of store.json) and the files that are there from the start.

JSON and plain arrays only, and all of it is checked: a file that came from elsewhere may claim anything.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.design import BoolArray, IntArray, MembershipDesign
from plmia.errors import StoreError, some
from plmia.private_files import create_private
from plmia.store_files import (
    NPY_HEADER_BYTES,
    Folder,
    as_bytes,
    npy_header,
    parse_npy,
    reading,
    sync_folder,
    temporary_beside,
    write_at,
    write_atomically,
)

SCHEMA = 1
# Of the JSON of records and stacks, which hold a digest of themselves. Earlier versions wrote 1, without it.
SEALED_SCHEMA = 2
CHUNK_POINTS = 8192
DTYPE = "<f4"
_COPY = "copy it again, or start anew in another folder"

FloatArray32 = npt.NDArray[np.float32]
Labels = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Run:
    """Chunks that are read at once: points ``start`` to ``stop``, of which ``take`` go to ``where`` in the result."""

    start: int
    stop: int
    take: slice | IntArray
    where: slice | IntArray


@dataclass(frozen=True)
class Layout:
    """What lies in a store and where: the contents of store.json.

    Parameters
    ----------
    about : dict
        What the signals were made of, as the caller described it.
    views : tuple of str
        Name of each view.
    n_points, n_models : int
        Size of the design; models may be added later.
    labels : str or None
        Digest of the labels, if there are any.
    membership : str
        Digest of the bit-packed design.
    chunk : int
        How many points share a checksum.
    """

    about: dict[str, Any]
    views: tuple[str, ...]
    n_points: int
    n_models: int
    labels: str | None
    membership: str
    chunk: int = CHUNK_POINTS

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two stores the same; not the number of models, which may grow."""
        return {"about": self.about, "views": list(self.views), "n_points": self.n_points, "labels": self.labels}

    @property
    def key(self) -> str:
        """Digest of the identity: every record carries it."""
        return digest(canonical(self.identity))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Models, points, views."""
        return self.n_models, self.n_points, len(self.views)

    @property
    def model_bytes(self) -> int:
        """Bytes that the signals of a model take."""
        return self.n_points * len(self.views) * np.dtype(DTYPE).itemsize

    def span(self, model: int, start: int, stop: int) -> tuple[int, int]:
        """First and end byte in signals.npy of points ``start`` to ``stop`` of a model."""
        begin, point = NPY_HEADER_BYTES + model * self.model_bytes, self.model_bytes // self.n_points
        return begin + start * point, begin + stop * point

    def chunks(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Number, first and end point of each chunk from point ``start`` (where one begins) to ``stop``."""
        for point in range(start, stop, self.chunk):
            yield point // self.chunk, point, min(point + self.chunk, self.n_points)

    def runs(self, points: IntArray) -> Iterator[Run]:
        """Cover ``points`` (in any order) by as few runs of chunks as they touch."""
        chunks = points // self.chunk
        needed = np.unique(chunks)
        for group in np.split(needed, np.flatnonzero(np.diff(needed) > 1) + 1) if len(needed) else []:
            start, stop = int(group[0]) * self.chunk, min((int(group[-1]) + 1) * self.chunk, self.n_points)
            if (np.diff(points) == 1).all():
                yield Run(start, stop, slice(int(points[0]) - start, int(points[-1]) + 1 - start), slice(None))
            else:
                where = np.flatnonzero((chunks >= group[0]) & (chunks <= group[-1]))
                yield Run(start, stop, points[where] - start, where)

    def digests(self, signals: FloatArray32) -> tuple[str, ...]:
        """Digest of each chunk of a model's signals [points, views]."""
        return tuple(digest(signals[start:stop]) for _, start, stop in self.chunks(0, self.n_points))

    def to_json(self) -> bytes:
        """Contents of store.json."""
        fields = {"schema": SCHEMA, "key": self.key, "dtype": DTYPE, **vars(self)}
        return json.dumps(fields, indent=1, allow_nan=False).encode()

    @classmethod
    def from_json(cls, what: str, data: bytes) -> Layout:
        """Check and take the contents of a store.json; ``what`` names it."""
        found = parse(what, data)
        if found.get("schema") != SCHEMA or found.get("dtype") != DTYPE:
            raise StoreError(
                f"{what} has schema {found.get('schema')!r} and type {found.get('dtype')!r}, this version reads schema "
                f"{SCHEMA} and type {DTYPE}: read it with the version of plmia that wrote it"
            )
        try:
            layout = cls(
                about=typed(found, "about", dict),
                views=tuple(typed(found, "views", list)),
                n_points=_positive(found, "n_points"),
                n_models=_positive(found, "n_models"),
                labels=None if found["labels"] is None else typed(found, "labels", str),
                membership=typed(found, "membership", str),
                chunk=_positive(found, "chunk"),
            )
            same = layout.key == found["key"]
        except (KeyError, TypeError, RecursionError) as error:
            raise StoreError(f"{what} is damaged ({error}): {_COPY}") from error
        if not same or not layout.views or not all(isinstance(view, str) for view in layout.views):
            raise StoreError(f"{what} was changed after it was written (its key does not fit): {_COPY}")
        return layout


def layout_of(
    about: Mapping[str, Any], design: MembershipDesign, views: Sequence[str], labels: Labels | None
) -> Layout:
    """Layout of a store of these; see `SignalStore.create`."""
    matrix, names = design.matrix, tuple(views)
    if 0 in matrix.shape:
        raise StoreError(
            f"the design has {matrix.shape[0]} models and {matrix.shape[1]} points: at least one is needed"
        )
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise StoreError(f"views are {list(names)}: give at least one, each with its own name")
    if labels is not None and (labels.shape != matrix.shape[1:] or not np.issubdtype(labels.dtype, np.integer)):
        raise StoreError(
            f"labels have shape {labels.shape} and type {labels.dtype}, integers [{matrix.shape[1]}] are needed: "
            "one a point"
        )
    return Layout(
        about=plain(about, "about"),
        views=names,
        n_points=matrix.shape[1],
        n_models=matrix.shape[0],
        labels=None if labels is None else digest(labels.astype("<i8")),
        membership=digest(np.packbits(matrix, axis=1)),
    )


def require_free(path: Path) -> None:
    """Require that a store can be made here."""
    with reading(str(path)):
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise StoreError(f"{path} is there and is not a store: choose a folder that is empty or not there yet")


def require_continuation(path: Path, there: BoolArray, given: BoolArray) -> None:
    """Require that two designs [models, points] agree in the rows that both have."""
    if there.shape[1] != given.shape[1]:
        raise StoreError(
            f"{path} is made for {there.shape[1]} points, the design has {given.shape[1]}: use another folder"
        )
    common = min(len(there), len(given))
    different = np.flatnonzero((there[:common] != given[:common]).any(axis=1))
    if len(different):
        raise StoreError(
            f"{path} has another design: model {some(different)} trains on other points there than here; choose "
            "another folder, or go back to the design it was made with; nothing in it was changed"
        )


def make_store(path: Path, layout: Layout, design: MembershipDesign, labels: Labels | None) -> None:
    """Make the folder of a store, which appears whole; one that another process made meanwhile is left alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = temporary_beside(path)
    try:
        new.mkdir(mode=0o700)
        (new / "records").mkdir(mode=0o700)
        create_private(new / "signals.npy").close()
        with (new / "signals.npy").open("r+b", buffering=0) as file:
            allocate(file, layout)
        write_membership(new, design.matrix)
        if labels is not None:
            write_atomically(new / "labels.npy", npy_header("<i8", labels.shape), labels.astype("<i8"))
        write_atomically(new / "store.json", layout.to_json())
        try:
            new.rename(path)
        except OSError:
            if not (path / "store.json").exists():
                raise
        sync_folder(path.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def allocate(file: FileIO, layout: Layout) -> None:
    """Give signals.npy its length and header; it never shrinks. What was not written is a hole and takes no space."""
    size = os.fstat(file.fileno()).st_size
    rows = max(layout.n_models, -(-(size - NPY_HEADER_BYTES) // layout.model_bytes))
    if size < layout.span(rows, 0, 0)[0]:
        file.truncate(layout.span(rows, 0, 0)[0])
    header = npy_header(DTYPE, (rows, *layout.shape[1:]))
    file.seek(0)
    if file.read(NPY_HEADER_BYTES) != header:
        write_at(file, 0, header)
    os.fsync(file.fileno())


def header_problems(folder: Folder, layout: Layout) -> Iterator[str]:
    """Say whether signals.npy is an npy file of the right shape; what is in it is not looked at."""
    header, *_ = folder.ranges("signals.npy", [(0, NPY_HEADER_BYTES)])
    room = (folder.size("signals.npy") - NPY_HEADER_BYTES) // layout.model_bytes
    match = re.search(rb"\(([0-9]{1,18}),", header)
    rows = int(match[1]) if match else 0
    # An extension that was interrupted leaves more rows than the layout has; they do no harm.
    if not layout.n_models <= rows <= room or header != npy_header(DTYPE, (rows, *layout.shape[1:])):
        yield f"{folder}/signals.npy has a damaged header or was cut off: running the same audit again mends that"


def write_membership(path: Path, matrix: BoolArray) -> None:
    """Write membership.npy of a design [models, points]."""
    packed = np.packbits(matrix, axis=1)
    write_atomically(path / "membership.npy", npy_header("|u1", packed.shape), packed)


def read_membership(folder: Folder, layout: Layout) -> BoolArray:
    """Design [models, points]; rows that an interrupted extension left beyond the layout's are passed over."""
    what, width = f"{folder}/membership.npy", -(-layout.n_points // 8)
    with reading(what):
        data = folder.read(["membership.npy"])[0]
    rows = max(layout.n_models, (len(data) - NPY_HEADER_BYTES) // width)
    packed = parse_npy(what, data, "|u1", (rows, width))[: layout.n_models]
    if digest(packed) != layout.membership:
        raise StoreError(f"{what} is damaged (the checksum differs): {_COPY}")
    return np.unpackbits(packed, axis=1, count=layout.n_points).view(np.bool_)


def read_labels(folder: Folder, layout: Layout) -> Labels | None:
    """Labels [points], if the store has any."""
    if layout.labels is None:
        return None
    what = f"{folder}/labels.npy"
    with reading(what):
        data = folder.read(["labels.npy"])[0]
    labels = parse_npy(what, data, "<i8", (layout.n_points,))
    if digest(labels) != layout.labels:
        raise StoreError(f"{what} is damaged (the checksum differs): {_COPY}")
    return labels


def write_groups(path: Path, groups: Labels) -> None:
    """Keep the groups [points] of a store whose ``about`` has their digest; see `groups_about`."""
    if not (path / "groups.npy").exists():
        write_atomically(path / "groups.npy", npy_header("<i8", groups.shape), groups.astype("<i8"))


def groups_about(groups: Labels | None) -> dict[str, str]:
    """What the ``about`` of a store says of the points' groups, if there are any."""
    return {} if groups is None else {"groups": digest(groups.astype("<i8"))}


def read_groups(folder: Folder, layout: Layout) -> Labels | None:
    """Groups [points] of points that belong together, if the store has any."""
    expected = layout.about.get("groups")
    if expected is None:
        return None
    what = f"{folder}/groups.npy"
    with reading(what):
        data = folder.read(["groups.npy"])[0]
    groups = parse_npy(what, data, "<i8", (layout.n_points,))
    if digest(groups) != expected:
        raise StoreError(f"{what} is damaged (the checksum differs): {_COPY}")
    return groups


def digest(data: bytes | memoryview | npt.NDArray[Any]) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(as_bytes(data)).hexdigest()


def canonical(value: Any) -> bytes:
    """The one JSON of equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def differences(there: Any, here: Any, name: str = "") -> Iterator[str]:
    """Say where two JSON values differ: ``"seed: 0 there, 1 here"``."""
    if isinstance(there, dict) and isinstance(here, dict):
        for entry in sorted({*there, *here}):
            below = f"{name}.{entry}" if name else entry
            if entry not in there or entry not in here:
                yield f"{below}: only {'here' if entry in here else 'there'}"
            else:
                yield from differences(there[entry], here[entry], below)
    elif canonical(there) != canonical(here):
        yield f"{name}: {_short(there)} there, {_short(here)} here"


def _short(value: Any, most: int = 40) -> str:
    text = json.dumps(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def plain(value: Any, what: str) -> Any:
    """Make a value JSON: NumPy numbers and arrays become plain ones, tuples lists, numbers that are not finite null."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: plain(entry, f"{what}.{name}") for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, f"{what}[{i}]") for i, entry in enumerate(value)]
    raise StoreError(
        f"{what} is of type {type(value).__name__}: give numbers, text, lists, and dicts with text as keys, "
        "which is what JSON can hold"
    )


def parse(what: str, data: bytes, remedy: str = _COPY) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{what} is damaged (not JSON: {error}): {remedy}") from error
    if not isinstance(found, dict):
        raise StoreError(f"{what} is damaged (not a JSON object): {remedy}")
    return found


def sealed(fields: Mapping[str, Any]) -> bytes:
    """JSON of a record or a stack with a digest of all its contents."""
    contents = {"schema": SEALED_SCHEMA, **fields}
    return json.dumps(contents | {"digest": digest(canonical(contents))}, allow_nan=False).encode()


def unsealed(what: str, data: bytes, remedy: str) -> dict[str, Any]:
    """Read and verify what `sealed` wrote; JSON of schema 1 has no digest and is returned as it is."""
    found = parse(what, data, remedy)
    schema = found.get("schema")
    if schema == SEALED_SCHEMA or "digest" in found:
        contents = {name: value for name, value in found.items() if name != "digest"}
        try:
            same = digest(canonical(contents)) == found.get("digest")
        except (ValueError, RecursionError):  # numbers that are not finite, nesting: `sealed` writes neither
            same = False
        if not same:
            raise StoreError(f"{what} was changed after it was written (its digest does not fit): {remedy}")
    elif schema != 1:
        raise StoreError(
            f"{what} has schema {str(schema)[:12]}, this version reads 1 and {SEALED_SCHEMA}: read it with the version "
            "of plmia that wrote it"
        )
    return found


def typed(found: Any, name: str, kind: type) -> Any:
    """Entry of a JSON object, which must be of this type."""
    value = found[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is a {type(value).__name__}, a {kind.__name__} is needed")
    return value


def _positive(found: Any, name: str) -> int:
    value: int = typed(found, name, int)
    if value < 1:
        raise TypeError(f"{name} is {value}, it must be positive")
    return value


def numbers_of(chosen: slice | Sequence[int] | Labels | None, n: int, what: str) -> IntArray:
    """Numbers from 0 to n that were chosen; all by default."""
    if chosen is None or isinstance(chosen, slice):
        return np.arange(n)[chosen if chosen is not None else slice(None)]
    numbers = np.asarray(chosen)
    if numbers.ndim != 1 or not len(numbers) or not np.issubdtype(numbers.dtype, np.integer):
        raise StoreError(f"{what}s must be given as a list of whole numbers with at least one in it")
    outside = numbers[(numbers < 0) | (numbers >= n)]
    if len(outside):
        raise StoreError(f"there is no {what} {some(outside)}: the store has {n} {what}s, numbered from 0")
    return numbers.astype(np.intp)
