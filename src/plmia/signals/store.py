"""What lies where in a store: its layout (the contents of store.json) and the files that are there from the start.

JSON and plain arrays only, and all of it is checked: a file that came from elsewhere may claim anything.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import re
import shutil
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from plmia.data.designs import BoolArray, IntArray, MembershipDesign
from plmia.data.files import (
    NPY_HEADER_BYTES,
    Folder,
    LocalFolder,
    RemoteFolder,
    as_bytes,
    check_npy,
    create_private,
    folder_at,
    locked,
    npy_header,
    parse_npy,
    reading,
    sweep,
    sync_folder,
    temporary_beside,
    write_at,
    write_atomically,
    writing,
)
from plmia.errors import StoreError, some
from plmia.signals.provenance import problem_of

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


# The records of a store: what makes a model count, and how the models that do not count are found and named.

_RECORD_NAME = re.compile(r"([0-9]{6,18})(?:-([0-9]{6,18}))?\.json")
Tell = Callable[[dict[str, Any], dict[str, Any]], Iterable[str]]
# Of how many differences a message tells.
MOST_TOLD = 3
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ModelRecord:
    """What makes a model count as finished.

    Parameters
    ----------
    model : int
        Number of the model.
    chunks : tuple of str
        SHA-256 of its signals, for each chunk of points.
    provenance : dict
        How it was made, as the caller described it.
    file : str
        File of the record, relative to the store.
    together : tuple of int
        The models that this file covers: they were finished at once.
    verified : bool
        Whether the file has a digest that covers the provenance; those of earlier versions have none.
    """

    model: int
    chunks: tuple[str, ...]
    provenance: dict[str, Any]
    file: str
    together: tuple[int, ...]
    verified: bool = True


@dataclass(frozen=True)
class BadRecord:
    """A record that does not count: which models its name claims (first and last), and what is wrong."""

    first: int
    last: int
    problem: str

    def hides(self, there: Container[int]) -> bool:
        """Whether it claims a model that is not ``there`` otherwise."""
        return any(model not in there for model in range(self.first, self.last + 1))


def record_name(models: Sequence[int]) -> str:
    """File of the record of models in increasing order: `000012.json`, `000012-000027.json` for several."""
    ends = [models[0]] if len(models) == 1 else [models[0], models[-1]]
    return "-".join(f"{model:06d}" for model in ends) + ".json"


def record_json(layout: Layout, records: Sequence[ModelRecord]) -> bytes:
    """Contents of one file that commits these models at once."""
    models = [{"model": r.model, "chunks": r.chunks, "provenance": r.provenance} for r in records]
    return sealed({"key": layout.key, "models": models})


def scan(
    folder: Folder, layout: Layout, among: Collection[int] | None = None
) -> tuple[dict[int, ModelRecord], list[BadRecord]]:
    """Read the records of a store.

    Parameters
    ----------
    folder : Folder
        The store.
    layout : Layout
        Its layout.
    among : collection of int, optional
        Only files whose name claims one of these models, so that an append need not read all.

    Returns
    -------
    dict, list
        The record of each finished model in increasing order, and the files that do not count.
    """
    names, bad = [], []
    with reading(f"{folder}/records"):
        for name in folder.names("records"):
            claim = _claim(name)
            if claim is None:
                if name.endswith(".json") and not name.startswith("."):
                    bad.append(BadRecord(0, -1, f"{folder}/records/{name} is not the name of a record: remove it"))
            elif among is None or any(claim[0] <= model <= claim[1] for model in among):
                names.append(name)
        contents = folder.read([f"records/{name}" for name in names])
    good: dict[int, ModelRecord] = {}
    for name, data in zip(names, contents, strict=True):
        try:
            records = _parse_record(f"{folder}/records/{name}", layout, name, data)
            _require_agreement(folder, good, records)
        except StoreError as error:
            bad.append(BadRecord(*(_claim(name) or (0, -1)), str(error)))
        else:
            good.update((record.model, record) for record in records)
    return dict(sorted(good.items())), bad


def read_layout(folder: Folder) -> Layout:
    """Read store.json; what has none is no store."""
    try:
        with reading(f"{folder}/store.json"):
            return Layout.from_json(f"{folder}/store.json", folder.read(["store.json"])[0])
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise StoreError(f"{folder} is not a store (it has no store.json): give the folder of one") from error
        raise


def require_same(path: Path, there: Layout, here: Layout, tell: Tell) -> None:
    """Require that two layouts are of the same audit; ``tell`` says in words where they differ."""
    found = list(dict.fromkeys(line.removeprefix("about.") for line in tell(there.identity, here.identity)))
    if found:
        rest = f"; and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
        raise StoreError(
            f"{path} belongs to another audit ({'; '.join(found[:MOST_TOLD])}{rest}): choose another folder, or go "
            "back to the settings it was made with; nothing in it was changed"
        )


def require_key(folder: Folder, layout: Layout) -> None:
    """Require that the store is still the one that was opened."""
    if read_layout(folder).key != layout.key:
        raise StoreError(f"{folder} was started anew for another audit meanwhile: choose another folder, and run again")


def set_aside(path: Path) -> bool:
    """Remove the store in a local folder if no model finished in it; whether that was so.

    Under its lock, and by renaming: whoever appends meanwhile either comes first, and then the store stays, or finds
    that the store is another.
    """
    with locked(path / "signals.npy"):
        if any(not name.startswith(".") for name in LocalFolder(path).names("records")):
            return False
        aside = temporary_beside(path)
        path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
    return True


def damage(
    folder: Folder, layout: Layout, record: ModelRecord, data: bytes | memoryview, start: int, stop: int
) -> Iterator[str]:
    """Say which chunks of points ``start`` to ``stop`` of a model are not what its record says."""
    point = layout.model_bytes // layout.n_points
    for chunk, first, end in layout.chunks(start, stop):
        if digest(memoryview(data)[(first - start) * point : (end - start) * point]) != record.chunks[chunk]:
            yield (
                f"{folder}/signals.npy is damaged at model {record.model}, points {first} to {end - 1} "
                f"(the checksum differs): {_remedy(folder, record)}"
            )


def cut_off(folder: Folder, layout: Layout, records: Iterable[ModelRecord], stop: int) -> Iterator[str]:
    """Say for which models signals.npy ends before point ``stop``."""
    size = folder.size("signals.npy")
    for record in records:
        begin, end = layout.span(record.model, 0, stop)
        if end > size:
            point = max(size - begin, 0) // (layout.model_bytes // layout.n_points)
            yield f"{folder}/signals.npy is cut off at model {record.model}, point {point}: {_remedy(folder, record)}"


def raise_first(problems: Iterable[str]) -> None:
    """Raise the first problem, if there is any."""
    for problem in problems:
        raise StoreError(problem)


def is_there(folder: Folder, there: ModelRecord | None, digests: tuple[str, ...]) -> bool:
    """Whether a model is finished with the signals of these digests; raises if it is with others."""
    if there is not None and there.chunks != digests:
        raise StoreError(
            f"model {there.model} of {folder} is finished with other signals: to replace it, remove "
            f"{folder}/{there.file} first (it covers model {some(there.together)})"
        )
    return there is not None


def _remedy(folder: Folder, record: ModelRecord) -> str:
    return f"remove {folder}/{record.file} and run again, only model {some(record.together)} is trained anew"


def _claim(name: str) -> tuple[int, int] | None:
    match = _RECORD_NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2] or match[1]))


def _parse_record(what: str, layout: Layout, name: str, data: bytes) -> list[ModelRecord]:
    remedy = "it does not count, and the audit, when it is run in this folder, trains its models anew"
    found = unsealed(what, data, remedy)
    if found.get("key") != layout.key:
        raise StoreError(
            f"{what} belongs to another audit (key {str(found.get('key'))[:12]}, this store has {layout.key[:12]}): "
            + remedy
        )
    try:
        entries = typed(found, "models", list)
        models = tuple(typed(entry, "model", int) for entry in entries)
        chunks = [tuple(typed(entry, "chunks", list)) for entry in entries]
        provenance = [typed(entry, "provenance", dict) for entry in entries]
    except (KeyError, TypeError) as error:
        raise StoreError(f"{what} is damaged ({error}): {remedy}") from error
    outside = [model for model in models if not 0 <= model < layout.n_models]
    if outside:
        raise StoreError(
            f"{what} claims model {some(outside)}, the store has {layout.n_models} models: open it again if it was "
            "extended meanwhile, else remove that file"
        )
    if not models or sorted(set(models)) != list(models) or record_name(models) != name:
        raise StoreError(f"{what} claims model {some(models)}, which does not fit its name: {remedy}")
    n_chunks = -(-layout.n_points // layout.chunk)
    if any(len(c) != n_chunks or not all(isinstance(d, str) and _DIGEST.fullmatch(d) for d in c) for c in chunks):
        raise StoreError(f"{what} is damaged (not {n_chunks} checksums for each model): {remedy}")
    for model, entry in zip(models, provenance, strict=True):
        problem = problem_of(entry, layout.n_points * len(layout.views))
        if problem is not None:
            raise StoreError(f"{what} cannot be right (model {model}: {problem}): {remedy}")
    verified = found["schema"] == SEALED_SCHEMA
    return [
        ModelRecord(m, c, p, f"records/{name}", models, verified)
        for m, c, p in zip(models, chunks, provenance, strict=True)
    ]


def _require_agreement(folder: Folder, good: Mapping[int, ModelRecord], records: Sequence[ModelRecord]) -> None:
    for record in records:
        other = good.get(record.model)
        if other is not None and other.chunks != record.chunks:
            raise StoreError(
                f"{folder}/{record.file} and {folder}/{other.file} have different checksums for model {record.model}: "
                "remove the wrong one, verify() tells which"
            )


# Signals on their way to a store: plain npy files that a machine with NumPy alone can write.
#
# A stack is two files, `stack-000012-000027.npy` (float32 [models, points, views]) and a JSON beside it, which is
# written last: a stack without it is unfinished and does not count. `SignalStore.import_npy` merges a folder of them.

Numbers = Sequence[int] | npt.NDArray[np.integer]
# No JSON of a stack is larger, whatever a file from another machine holds.
MOST_JSON_BYTES = 1 << 28
_COPY_STACK = "copy it again, or train its models again where it comes from"


@dataclass(frozen=True)
class Stack:
    """Models that were trained together, in increasing order, and their signals.

    Parameters
    ----------
    models : tuple of int
        Numbers of the models.
    signals : float32 array [models, points, views]
        Logit-scaled true-label confidence, finite.
    provenance : tuple of dict
        How each model was made.
    """

    models: tuple[int, ...]
    signals: FloatArray32
    provenance: tuple[dict[str, Any], ...]

    @classmethod
    def checked(cls, models: Numbers, signals: FloatArray32, provenance: Sequence[Mapping[str, Any]]) -> Stack:
        """Check that the parts fit together and put them in order of the models."""
        try:
            numbers = [operator.index(model) for model in models]
        except TypeError as error:
            raise StoreError(f"models {models!r} cannot be stored: give whole numbers") from error
        if not numbers or len(set(numbers)) < len(numbers) or min(numbers) < 0:
            raise StoreError(f"models {some(numbers)} cannot be stored: give at least one, each once, numbered from 0")
        if signals.ndim != 3 or signals.dtype != np.float32 or len(signals) != len(numbers) or 0 in signals.shape:
            raise StoreError(
                f"signals of {len(numbers)} models have shape {signals.shape} and type {signals.dtype}: "
                "float32 [models, points, views] is needed, none of them empty"
            )
        if len(provenance) != len(numbers):
            raise StoreError(f"{len(numbers)} models have {len(provenance)} provenances: give one a model")
        for model, row in zip(numbers, signals, strict=True):
            _require_finite(model, row)
        made = [plain(entry, f"provenance of model {model}") for model, entry in zip(numbers, provenance, strict=True)]
        for model, entry in zip(numbers, made, strict=True):
            problem = problem_of(entry, signals[0].size)
            if problem is not None:
                raise StoreError(f"model {model} cannot be stored ({problem}): correct its provenance")
        order = np.argsort(numbers)
        ordered = signals if (np.diff(order) > 0).all() else signals[order]
        return cls(tuple(sorted(numbers)), np.ascontiguousarray(ordered, DTYPE), tuple(made[i] for i in order))


def _require_finite(model: int, row: FloatArray32) -> None:
    finite = np.isfinite(row)
    if not finite.all():
        point, view = np.argwhere(~finite)[0]
        raise StoreError(
            f"model {model} has the signal {row[point, view]} at point {point}, view {view}: a model that diverged "
            "cannot be stored; train it again with another seed"
        )


def write_stack(
    folder: str | Path,
    models: Numbers,
    signals: FloatArray32,
    provenance: Sequence[Mapping[str, Any]],
    *,
    key: str,
) -> Path:
    """Write the signals of some models as plain npy, for a store to import.

    Parameters
    ----------
    folder : path
        Where; made if need be.
    models : sequence of int
        Numbers of the models in the design.
    signals : float32 array [models, points, views]
        Logit-scaled true-label confidence, finite.
    provenance : sequence of dict
        How each model was made: recipe, seed, versions, accuracies, seconds, ...
    key : str
        Key of the store they belong to (`SignalStore.key`, `store_key`): no other takes them.

    Returns
    -------
    Path
        The npy file. It counts once its JSON is there, too.
    """
    stack = Stack.checked(models, signals, provenance)
    path = Path(folder) / f"stack-{record_name(stack.models)}"
    header = npy_header(DTYPE, stack.signals.shape)
    content = hashlib.sha256(header)
    content.update(as_bytes(stack.signals))
    about = {
        "key": key,
        "models": stack.models,
        "shape": stack.signals.shape,
        "sha256": content.hexdigest(),
        "provenance": stack.provenance,
    }
    with writing(f"{path.with_suffix('.npy')}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path.with_suffix(".npy"), header, stack.signals)
        write_atomically(path, sealed(about))
    return path.with_suffix(".npy")


def read_stacks(folder: str | Path, *, key: str) -> Iterator[Stack]:
    """Read and verify the finished stacks of a folder, one at a time; their signals are memory-mapped.

    The JSON of all of them is checked before the first is returned.

    Parameters
    ----------
    folder : path
        Where `write_stack` wrote.
    key : str
        Key of the store they must belong to.
    """
    paths = sorted(Path(folder).glob("stack-*.json"))
    if not paths:
        raise StoreError(f"{folder} holds no finished stack (stack-*.json beside stack-*.npy): give another folder")
    abouts = [_read_about(path, key) for path in paths]
    for path, about in zip(paths, abouts, strict=True):
        yield _read_stack(path, about)


def _read_about(path: Path, key: str) -> dict[str, Any]:
    """Read and check the JSON of a stack, which may come from anywhere."""
    with reading(str(path)):
        size = path.stat().st_size
        if size > MOST_JSON_BYTES:
            raise StoreError(f"{path} has {size:,} bytes, {MOST_JSON_BYTES:,} are the most: {_COPY_STACK}")
        about = unsealed(str(path), path.read_bytes(), _COPY_STACK)
    if about.get("key") != key:
        raise StoreError(
            f"{path} belongs to another audit (key {str(about.get('key'))[:12]}, the store has {key[:12]}): "
            "move it away, or import it into the store it was made for"
        )
    models, shape, provenance = (about.get(name) for name in ("models", "shape", "provenance"))
    if not (_whole_numbers(models) and _whole_numbers(shape) and len(shape) == 3 and isinstance(provenance, list)):
        raise StoreError(f"{path} is damaged (models, shape or provenance are not what they must be): {_COPY_STACK}")
    if not shape[0] == len(models) == len(provenance):
        raise StoreError(
            f"{path} is damaged ({len(models)} models, {shape[0]} rows of signals, {len(provenance)} provenances): "
            + _COPY_STACK
        )
    for model, entry in zip(models, provenance, strict=True):
        problem = problem_of(entry, shape[1] * shape[2])
        if problem is not None:
            raise StoreError(f"{path} cannot be right (model {model}: {problem}): {_COPY_STACK}")
    return about


def _read_stack(path: Path, about: dict[str, Any]) -> Stack:
    shape, data = about["shape"], path.with_suffix(".npy")
    with reading(str(data)), data.open("rb") as file:
        check_npy(str(data), file.read(NPY_HEADER_BYTES), data.stat().st_size, DTYPE, tuple(shape))
        file.seek(0)
        if hashlib.file_digest(file, "sha256").hexdigest() != about.get("sha256"):
            raise StoreError(f"{data} is damaged (its SHA-256 is not the one in {path.name}): {_COPY_STACK}")
    signals = np.memmap(data, DTYPE, "r", NPY_HEADER_BYTES, tuple(shape))
    return Stack.checked(about["models"], signals, about["provenance"])


def _whole_numbers(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(entry) is int and entry >= 0 for entry in value) and value != []


# Signals on disk, model by model: what is there is whole, belongs to this audit, and is checked when it is read.
#
# A store is one folder:
#
#     store.json           what the signals were made of, and the layout; its key is a digest of what they were made of
#     membership.npy       the design, bit-packed [models, ceil(points / 8)]
#     labels.npy           labels [points], if there are any; groups.npy likewise
#     signals.npy          float32 [models, points, views]; each model has its region, a hole until it is written
#     records/000012.json  makes a model (or those trained together) count: checksums and provenance, with a digest of
#                          itself, written last
#
# A model without a record is not there, whatever its region holds. So a writer may be killed at any moment, several may
# write at once, and a stack of models is there as a whole or not at all. Any tool that knows npy can read the signals.

if TYPE_CHECKING:
    from plmia.signals.signals import Signals

__all__ = ["SignalStore", "store_key", "write_stack"]


@dataclass(frozen=True, eq=False)
class SignalStore:
    """Signals of models at points, on disk. Make one with `create` or `open`.

    Parameters
    ----------
    folder : LocalFolder or RemoteFolder
        Where it lies.
    layout : Layout
        What is in it, and what it was made of.
    design : MembershipDesign
        Which model trains on which point [models, points].
    labels : int array [points], optional
        Class of each point.
    """

    folder: LocalFolder | RemoteFolder
    layout: Layout = field(repr=False)
    design: MembershipDesign = field(repr=False)
    labels: Labels | None = field(default=None, repr=False)

    @classmethod
    def create(
        cls,
        path: str | Path,
        about: Mapping[str, Any],
        design: MembershipDesign,
        views: Sequence[str],
        labels: Labels | None = None,
        tell: Tell = differences,
        anew: bool = True,
    ) -> SignalStore:
        """Make a store, or go on with the one that is there if it was made of the same.

        Parameters
        ----------
        path : path
            Folder of the store; its parents are made if need be.
        about : dict
            Everything that decides what the signals are (digest of the data, recipe, seed, ...), as JSON. Not the
            number of models: a store that is there is extended if ``design`` goes on beyond it; if it goes on beyond
            ``design``, its other models are passed over.
        design : MembershipDesign
            Which model trains on which point [models, points].
        views : sequence of str
            Name of each view.
        labels : int array [points], optional
            Class of each point.
        tell : callable
            Says in words where what two stores were made of differs.
        anew : bool
            Whether a store of something else, in which no model finished, may be replaced.
        """
        folder = SignalStore._local(folder_at(path))
        layout = layout_of(about, design, views, labels)
        if not (folder / "store.json").exists():
            require_free(folder)
            with writing(str(folder)):
                sweep(folder.parent, re.escape(folder.name))
                make_store(folder, layout, design, labels)
        store = cls.open(folder)
        try:
            require_same(folder, store.layout, layout, tell)
            require_continuation(folder, store.design.matrix, design.matrix)
        except StoreError:
            with writing(str(folder)):
                if not (anew and set_aside(folder)):
                    raise
                make_store(folder, layout, design, labels)
            store = cls.open(folder)
            require_same(folder, store.layout, layout, tell)
        return store.extend(design)

    @classmethod
    def open(cls, place: str | Path) -> SignalStore:
        """Open a store.

        Parameters
        ----------
        place : path or str
            Its folder; or, for reading alone, an address that fsspec knows, such as ``s3://bucket/run/signals``.
        """
        folder = folder_at(place)
        layout = read_layout(folder)
        return cls(folder, layout, MembershipDesign(read_membership(folder, layout)), read_labels(folder, layout))

    @property
    def key(self) -> str:
        """Digest of what the signals were made of."""
        return self.layout.key

    @property
    def about(self) -> dict[str, Any]:
        """What the signals were made of."""
        return self.layout.about

    @property
    def views(self) -> tuple[str, ...]:
        """Name of each view."""
        return self.layout.views

    @property
    def shape(self) -> tuple[int, int, int]:
        """Models (finished or not), points, views."""
        return len(self.design.matrix), self.layout.n_points, len(self.views)

    def finished(self) -> dict[int, dict[str, Any]]:
        """Provenance of each finished model, in increasing order."""
        return {model: record.provenance for model, record in self._scan()[0].items()}

    def missing(self) -> list[int]:
        """Models without a record, or with one that is damaged or foreign: they are to be trained."""
        there = self._scan()[0]
        return [model for model in range(self.shape[0]) if model not in there]

    def record(self, model: int) -> dict[str, Any]:
        """Provenance of a finished model."""
        return self._records([model])[0].provenance

    def append(self, models: Numbers, signals: FloatArray32, provenance: Sequence[Mapping[str, Any]]) -> None:
        """Add models that were trained together; all of them are there afterwards, or none.

        Several processes may append at once. A model that is there already with the same signals is passed over.

        Parameters
        ----------
        models : sequence of int
            Their numbers in the design.
        signals : float32 array [models, points, views]
            Logit-scaled true-label confidence, finite.
        provenance : sequence of dict
            How each was made: seed, attempt, versions, accuracies, seconds, ``n_clipped``, losses, ... as JSON.
        """
        path, layout = self._local(self.folder), self.layout
        stack = Stack.checked(models, signals, provenance)
        if stack.signals.shape[1:] != self.shape[1:] or stack.models[-1] >= self.shape[0]:
            raise StoreError(
                f"signals of models up to {stack.models[-1]} have shape {list(stack.signals.shape)}, {path} is made "
                f"for {list(self.shape)} models, points and views: extend it, or use another"
            )
        digests = [layout.digests(row) for row in stack.signals]
        with writing(f"model {some(stack.models)} of {path}"), locked(path / "signals.npy") as file:
            require_key(self.folder, layout)
            there, _ = scan(self.folder, layout, stack.models)
            rows = [
                i for i, model in enumerate(stack.models) if not is_there(self.folder, there.get(model), digests[i])
            ]
            if not rows:
                return
            for i in rows:
                write_at(file, layout.span(stack.models[i], 0, 0)[0], stack.signals[i])
            os.fsync(file.fileno())
            together = tuple(stack.models[i] for i in rows)
            name = record_name(together)
            records = [ModelRecord(stack.models[i], digests[i], stack.provenance[i], name, together) for i in rows]
            (path / "records").mkdir(exist_ok=True)
            write_atomically(path / "records" / name, record_json(layout, records))
            sweep(path / "records")

    def read(self, models: Numbers | None = None, points: slice | Numbers | None = None) -> FloatArray32:
        """Read signals into memory; the checksums of what is touched are verified.

        Parameters
        ----------
        models : sequence of int, optional
            Which models, in this order; default: the finished ones.
        points : slice or sequence of int, optional
            Which points, in this order; default: all.

        Returns
        -------
        float32 array [models, points, views]
        """
        records, wanted = self._records(models), numbers_of(points, self.layout.n_points, "point")
        runs = list(self.layout.runs(wanted))
        jobs = [(i, run) for i in range(len(records)) for run in runs]
        spans = [self.layout.span(records[i].model, run.start, run.stop) for i, run in jobs]
        with reading(f"{self.folder}/signals.npy"):
            raise_first(cut_off(self.folder, self.layout, records, runs[-1].stop if runs else 0))
            out = np.empty((len(records), len(wanted), len(self.views)), np.float32)
            for (i, run), data in zip(jobs, self.folder.ranges("signals.npy", spans), strict=True):
                raise_first(damage(self.folder, self.layout, records[i], data, run.start, run.stop))
                out[i, run.where] = np.frombuffer(data, DTYPE).reshape(-1, len(self.views))[run.take]
        return out

    def signals(self, models: Numbers | None = None) -> Signals:
        """Signals to score, verified once; memory-mapped where the models stand side by side in a local store.

        Parameters
        ----------
        models : sequence of int, optional
            Which models, in this order; default: the finished ones. Then it is an error if the record of another is
            damaged or foreign, so that no model goes missing unnoticed.

        Returns
        -------
        Signals
            Each model keeps its number (`Signals.models`), whichever others are missing.
        """
        from plmia.signals.signals import Signals

        records = self._records(models)
        chosen = [record.model for record in records]
        values = self._mapped(records) if isinstance(self.folder, LocalFolder) else self.read(chosen)
        n_clipped = sum(record.provenance.get("n_clipped", 0) for record in records)
        design, groups = MembershipDesign(self.design.matrix[chosen]), read_groups(self.folder, self.layout)
        return Signals(values, design, self.labels, n_clipped, groups, tuple(chosen), self.fingerprint(chosen))

    def fingerprint(self, models: Numbers | None = None) -> str:
        """Digest that tells signals of some models from all others: which models, their signals, their membership.

        Parameters
        ----------
        models : sequence of int, optional
            Which models, in this order; default: the finished ones.

        Returns
        -------
        str
            SHA-256 of the models' numbers, the checksums of their signals, their membership, and the store's key, which
            covers labels, groups and what the signals were made of.
        """
        records = self._records(models)
        chosen = [record.model for record in records]
        contents = {
            "key": self.key,
            "membership": digest(np.packbits(self.design.matrix[chosen], axis=1)),
            "models": [[record.model, *record.chunks] for record in records],
        }
        return digest(canonical(contents))

    def unverified(self) -> list[int]:
        """Finished models whose provenance has no digest, since an earlier version of plmia wrote it."""
        return [model for model, record in self._scan()[0].items() if not record.verified]

    def problems(self) -> list[str]:
        """Records that do not count, and why; their models are missing unless they were trained anew."""
        return [bad.problem for bad in self._scan()[1]]

    def verify(self) -> list[str]:
        """Read everything and name all that is damaged or foreign; an empty list if nothing is."""
        records, bad = scan(self.folder, self.layout)
        found = [record.problem for record in bad]
        n_points = self.layout.n_points
        with reading(f"{self.folder}/signals.npy"):
            found.extend(header_problems(self.folder, self.layout))
            found.extend(cut_off(self.folder, self.layout, records.values(), n_points))
            size = self.folder.size("signals.npy")
            whole = [record for record in records.values() if self.layout.span(record.model, 0, n_points)[1] <= size]
            spans = [self.layout.span(record.model, 0, n_points) for record in whole]
            for record, data in zip(whole, self.folder.ranges("signals.npy", spans), strict=True):
                found.extend(damage(self.folder, self.layout, record, data, 0, n_points))
        return found

    def extend(self, design: MembershipDesign) -> SignalStore:
        """Make room for more models; what is finished stays. For the one process that hands out the work.

        Parameters
        ----------
        design : MembershipDesign
            Design [models, points] whose first rows are those of the store. If it has fewer, nothing changes on disk.

        Returns
        -------
        SignalStore
            The store with this design.
        """
        path = self._local(self.folder)
        with writing(str(path)), locked(path / "signals.npy") as file:
            current = SignalStore.open(path)  # another may have extended it meanwhile
            require_continuation(path, current.design.matrix, design.matrix)
            longer = max(current.design.matrix, design.matrix, key=len)
            layout = replace(current.layout, n_models=len(longer), membership=digest(np.packbits(longer, axis=1)))
            # In this order each moment is a whole store: more rows than store.json says are passed over.
            allocate(file, layout)
            if layout != current.layout:
                write_membership(path, longer)
                write_atomically(path / "store.json", layout.to_json())
            sweep(path)
        return replace(current, layout=layout, design=design)

    def import_npy(self, folder: str | Path) -> list[int]:
        """Merge the stacks that another machine wrote with `write_stack`; each is verified before it is added.

        Returns
        -------
        list of int
            The models that are in the folder, in increasing order; all of them are finished now.
        """
        models: list[int] = []
        for stack in read_stacks(folder, key=self.key):
            self.append(stack.models, stack.signals, stack.provenance)
            models.extend(stack.models)
        return sorted(models)

    @staticmethod
    def _local(folder: LocalFolder | RemoteFolder) -> Path:
        if isinstance(folder, LocalFolder):
            return folder.path
        raise StoreError(f"{folder} can only be read: give a local folder, or copy it to one, to write")

    def _scan(self, among: Sequence[int] | None = None) -> tuple[dict[int, ModelRecord], list[BadRecord]]:
        """Records of this design's models; the store may have more."""
        there, bad = scan(self.folder, self.layout, among)
        other = range(self.shape[0], self.layout.n_models)
        return {m: record for m, record in there.items() if m not in other}, [b for b in bad if b.first not in other]

    def _records(self, models: Numbers | None) -> list[ModelRecord]:
        if models is None:
            there, bad = self._scan()
            hidden = [record.problem for record in bad if record.hides(there)]
            if hidden:
                raise StoreError(hidden[0] + (f" (and {len(hidden) - 1} more like it)" if hidden[1:] else ""))
            if not there:
                raise StoreError(f"{self.folder} has no finished model yet: run the audit first")
            return list(there.values())
        wanted = numbers_of(models, self.shape[0], "model").tolist()
        there, bad = self._scan(wanted)
        for model in wanted:
            if model not in there:
                why = [record.problem for record in bad if record.first <= model <= record.last]
                raise StoreError(
                    why[0] if why else f"model {model} of {self.folder} is not finished: run the audit again"
                )
        return [there[model] for model in wanted]

    def _mapped(self, records: Sequence[ModelRecord]) -> FloatArray32:
        path, models = self._local(self.folder) / "signals.npy", [record.model for record in records]
        rows, n_points = max(models) + 1, self.layout.n_points
        with reading(str(path)):
            raise_first(cut_off(self.folder, self.layout, records, n_points))
            mapped = np.asarray(np.memmap(path, DTYPE, "r", NPY_HEADER_BYTES, (rows, *self.shape[1:])))
        for record in records:
            data = as_bytes(mapped[record.model])
            raise_first(damage(self.folder, self.layout, record, data, 0, n_points))
        side_by_side = models == list(range(models[0], rows))
        return mapped[models[0] :] if side_by_side else mapped[models]


def store_key(
    about: Mapping[str, Any], design: MembershipDesign, views: Sequence[str], labels: Labels | None = None
) -> str:
    """Key that a store of these would have, for a machine that trains without one; see `SignalStore.create`."""
    return layout_of(about, design, views, labels).key
