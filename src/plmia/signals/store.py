"""The store: signals of models on disk, safe against crashes, damage and mixing of audits.

Format. A store is one folder:

    store.json           what the signals were made of, and the layout: sizes, views, digests; see `Layout`
    membership.npy       the design, bit-packed [models, ceil(records / 8)]
    labels.npy           labels [records], if there are any; groups.npy likewise
    signals.npy          float32 [models, records, views]; each model has its region, a hole until it is written
    records/000012.json  makes a model (or the models trained together) count as finished; see `ModelRecord`

All arrays are plain npy files with a header of 128 bytes, so any tool that knows npy can read the signals. A record
holds SHA-256 checksums of the model's signals, one per chunk of records, its provenance, and a digest of itself.

Guarantees.

- *A finished model is complete.* Signals are written and synced first, the record last and atomically. A model without
  a record does not count, whatever its region holds. Writers may be killed at any moment and several may write at once;
  models that were trained together are finished together or not at all.
- *Damage is found.* Whatever is read is compared with its checksum. A damaged record does not count, and its models are
  trained again. Lengths and headers are compared with those expected; nothing in a file is trusted or unpickled.
- *Audits do not mix.* The key, a digest of what the signals were made of, is part of every record. A store is only
  continued with the same description, and records with another key do not count.

A machine without the store writes *stacks* (`write_stack`): an npy of signals and, last, a JSON beside it with the same
key and digests. `SignalStore.import_npy` merges a folder of them.

Object storage. Places may be addresses that fsspec knows, such as ``s3://bucket/run``. Stacks are written there and
merged from there: each is two objects, and object stores show an object when it is complete. A store can be read from
an address and published to one (`SignalStore.publish`), but grows on one machine only: object stores replace whole
objects and have no locks. Without addresses this module needs NumPy only.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import operator
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from plmia.data import memory
from plmia.data.arrays import Array, BoolArray, FloatArray32, Labels, SignalKind
from plmia.data.designs import MembershipDesign
from plmia.data.files import (
    as_bytes,
    create_private,
    file_lock,
    make_private,
    open_regular,
    remove_leftovers,
    require_regular,
    sync_folder,
    temporary_beside,
    write_all,
    write_atomically,
)
from plmia.data.npz import NPY_MAGIC, packed_rows, unpack_bits
from plmia.errors import StoreError, install_hint, shown, some

if TYPE_CHECKING:
    from plmia.signals.signals import Signals

SCHEMA = 1
# Schema of records and stacks, which hold a digest of themselves. Earlier versions wrote 1, without it.
SEALED_SCHEMA = 2
CHUNK_POINTS = 8192
DTYPE = "<f4"
NPY_HEADER_BYTES = 128
# Upper limit for the JSON of a stack, which may come from another machine.
MAX_JSON_BYTES = 1 << 28
_RANGES_AT_ONCE = 16
_ARRAY_FILES = ("signals.npy", "membership.npy", "labels.npy", "groups.npy")
_MAX_DIFFERENCES = 3
_RECORD_NAME = re.compile(r"([0-9]{6,18})(?:-([0-9]{6,18}))?\.json")
_DIGEST = re.compile(r"[0-9a-f]{64}")

_RESTORE = "restore it from a copy, or start again in another folder"
_COPY_STORE = "copy it again, or start again in another folder"
_COPY_STACK = "copy it again, or train its models again on the machine that wrote it"
_TRAIN_AGAIN = "the record does not count, and the next run of the audit in this folder trains its models again"

Numbers: TypeAlias = Sequence[int] | Labels
# Yields one line of text per difference between two descriptions.
Explain: TypeAlias = Callable[[dict[str, Any], dict[str, Any]], Iterable[str]]


@dataclass(frozen=True, eq=False)
class SignalStore:
    """Signals of models at records, on disk. Make one with `create` or `open`.

    Models are named by their numbers in the design; where ``models`` is optional, it stands for the finished ones.
    """

    folder: Folder
    layout: Layout = field(repr=False)  # what the store holds, and what that was made of
    design: MembershipDesign = field(repr=False)
    labels: Labels | None = field(default=None, repr=False)  # class of each point

    @classmethod
    def create(
        cls,
        path: str | Path,
        about: Mapping[str, Any],
        design: MembershipDesign,
        views: Sequence[str],
        labels: Labels | None = None,
        explain: Explain | None = None,
        restart: bool = True,
    ) -> SignalStore:
        """Make a store, or continue an existing one that was made of the same.

        Parameters
        ----------
        path : path
            Folder of the store; its parents are made if necessary.
        about : dict
            Everything that determines the signals (digest of the data, recipe, seed, ...), as JSON.
        design : MembershipDesign
            Which model trains on which record. An existing store with fewer models is extended; if it has more, the
            others are ignored.
        views, labels : sequence of str, int array [records], optional
            Name of each view and class of each record.
        explain : callable, optional
            Describes in words how the contents of two stores differ; `differences` by default.
        restart : bool
            Whether to replace a store of another audit in which no model is finished.
        """
        folder = _require_local(folder_at(path))
        layout = layout_of(about, design, views, labels)
        if not (folder / "store.json").exists():
            _require_free(folder)
            with writing(str(folder)):
                remove_leftovers(folder.parent, re.escape(folder.name))
                _make_store(folder, layout, design, labels)
        store = cls.open(folder)
        try:
            _require_same(folder, store.layout, layout, explain or differences)
            _require_continuation(folder, store.design.matrix, design.matrix)
        except StoreError:
            with writing(str(folder)):
                if not (restart and _remove_unfinished(folder)):
                    raise
                _make_store(folder, layout, design, labels)
            store = cls.open(folder)
            _require_same(folder, store.layout, layout, explain or differences)
        return store.extend(design)

    @classmethod
    def open(cls, place: str | Path) -> SignalStore:
        """Open a store in a folder or, only for reading, at an address that fsspec knows, such as ``s3://bucket/run``."""
        folder = folder_at(place)
        layout = _read_layout(folder)
        packed_shape = (layout.n_models, -(-layout.n_points // 8))
        packed = _read_array(folder, "membership.npy", "|u1", packed_shape, layout.membership, growing=True)
        labels = _read_integers(folder, "labels.npy", layout.n_points, layout.labels)
        return cls(folder, layout, MembershipDesign(unpack_bits(packed, layout.n_points)), labels)

    @property
    def key(self) -> str:
        """Digest of what the signals were made of."""
        return self.layout.key

    @property
    def about(self) -> dict[str, Any]:
        """What the signals were made of."""
        return self.layout.about

    @property
    def kind(self) -> SignalKind:
        """Kind of the signals; see `signal_about`."""
        return "signal" if self.about.get("signal") == "signal" else "confidence"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Models (finished or not), records, views."""
        return len(self.design.matrix), self.layout.n_points, len(self.layout.views)

    def finished(self) -> dict[int, dict[str, Any]]:
        """Provenance of each finished model, in increasing order."""
        return {model: record.provenance for model, record in self._scan()[0].items()}

    def missing(self) -> list[int]:
        """Models to train: those without a record, or whose record is damaged or belongs to another audit."""
        finished = self._scan()[0]
        return [model for model in range(self.shape[0]) if model not in finished]

    def unverified(self) -> list[int]:
        """Finished models whose provenance has no digest, since an earlier version of plmia wrote it."""
        return [model for model, record in self._scan()[0].items() if not record.verified]

    def problems(self) -> list[str]:
        """Describe the records that do not count; their models are missing unless other records cover them."""
        return [bad.problem for bad in self._scan()[1]]

    def append(
        self,
        models: Numbers,
        signals: FloatArray32,
        provenance: Sequence[Mapping[str, Any]],
        *,
        replace: bool = False,
    ) -> None:
        """Add models that were trained together; afterwards all of them are finished, or none.

        Several processes may append at once. A model that is finished already with the same signals is ignored.

        Parameters
        ----------
        models : sequence of int
            Their numbers in the design.
        signals : float32 array [models, records, views]
            Signals of the store's `kind`, finite.
        provenance : sequence of dict
            How each was made: seed, attempt, versions, accuracies, seconds, ``n_clipped``, losses, ... as JSON.
        replace : bool
            Whether to write the signals of models that are finished already again; a model that is finished with other
            signals is otherwise an error.
        """
        path, layout = _require_local(self.folder), self.layout
        stack = Stack.checked(models, signals, provenance)
        if stack.signals.shape[1:] != self.shape[1:] or stack.models[-1] >= self.shape[0]:
            raise StoreError(
                f"signals of models up to {stack.models[-1]} have shape {list(stack.signals.shape)}, {path} is made "
                f"for {list(self.shape)} models, records and views: extend it, or use another"
            )
        digests = [layout.digests(row) for row in stack.signals]
        with writing(f"model {some(stack.models)} of {path}"), _locked(path / "signals.npy") as file:
            if _read_layout(self.folder).key != layout.key:
                raise StoreError(
                    f"{path} was restarted for another audit meanwhile: choose another folder, and run again"
                )
            finished, _ = _scan(self.folder, layout, stack.models)
            if replace:
                finished = _without_records(path, finished, stack.models)
            rows = [i for i, m in enumerate(stack.models) if not _is_stored(self.folder, finished.get(m), digests[i])]
            if not rows:
                return
            for i in rows:
                _write_at(file, layout.span(stack.models[i])[0], stack.signals[i])
            os.fsync(file.fileno())
            entries = [(stack.models[i], digests[i], stack.provenance[i]) for i in rows]
            records = [{"model": model, "chunks": chunks, "provenance": made} for model, chunks, made in entries]
            file_name = _record_name([model for model, _, _ in entries])
            (path / "records").mkdir(mode=0o700, exist_ok=True)
            write_atomically(path / "records" / file_name, sealed({"key": layout.key, "models": records}))
            remove_leftovers(path / "records")

    def read(self, models: Numbers | None = None) -> FloatArray32:
        """Read signals [models, records, views] into memory, and verify their checksums."""
        records = self._records(models)
        with reading(f"{self.folder}/signals.npy"):
            _raise_first(_cut_off(self.folder, self.layout, records))
            out = np.empty((len(records), *self.shape[1:]), np.float32)
            spans = [self.layout.span(record.model) for record in records]
            for row, record, data in zip(out, records, self.folder.ranges("signals.npy", spans), strict=True):
                _raise_first(_damaged_chunks(self.folder, self.layout, record, data))
                row[:] = np.frombuffer(data, DTYPE).reshape(row.shape)
        return out

    def signals(self, models: Numbers | None = None) -> Signals:
        """Return verified signals to score; memory-mapped if the models are neighbours in a local store.

        Each model keeps its number (`Signals.models`), whichever others are missing. Without ``models`` it is an error
        if the record of another model is damaged or belongs to another audit, so that no model is lost unnoticed.
        """
        from plmia.signals.signals import Signals

        records = self._records(models)
        chosen = [record.model for record in records]
        values = self.read(chosen) if self.folder.path is None else self._mapped(self.folder.path, records)
        n_clipped = sum(record.provenance.get("n_clipped", 0) for record in records)
        design = MembershipDesign(memory.rows_of(self.design.matrix, np.array(chosen, np.intp)))
        groups = _read_integers(self.folder, "groups.npy", self.layout.n_points, self.about.get("groups"))
        numbers, kind = tuple(chosen), self.kind
        return Signals(values, design, self.labels, n_clipped, groups, numbers, kind, self.fingerprint(chosen))

    def _mapped(self, folder: Path, records: Sequence[ModelRecord]) -> FloatArray32:
        path, models = folder / "signals.npy", [record.model for record in records]
        n_rows = max(models) + 1
        with reading(str(path)):
            require_regular(path)
            _raise_first(_cut_off(self.folder, self.layout, records))
            mapped = np.asarray(np.memmap(path, DTYPE, "r", NPY_HEADER_BYTES, (n_rows, *self.shape[1:])))
        memory.registered(mapped)
        for record in records:
            _raise_first(_damaged_chunks(self.folder, self.layout, record, mapped[record.model].data))
            memory.release()
        return memory.rows_of(mapped, np.array(models, np.intp))

    def fingerprint(self, models: Numbers | None = None) -> str:
        """SHA-256 of the models' numbers, the checksums of their signals, their membership, and the store's key.

        The key covers labels, groups and what the signals were made of.
        """
        records = self._records(models)
        members = memory.rows_of(self.design.matrix, np.array([record.model for record in records], np.intp))
        checksums = [[record.model, *record.chunks] for record in records]
        packed = digest(packed_rows(members))
        return digest(_canonical({"key": self.key, "membership": packed, "models": checksums}))

    def verify(self) -> list[str]:
        """Read everything and describe all damage and all records of other audits; an empty list if there is none."""
        records, bad = _scan(self.folder, self.layout)
        found = [record.problem for record in bad]
        with reading(f"{self.folder}/signals.npy"):
            found.extend(_header_problems(self.folder, self.layout))
            found.extend(_cut_off(self.folder, self.layout, records.values()))
            size = self.folder.size("signals.npy")
            complete = [record for record in records.values() if self.layout.span(record.model)[1] <= size]
            spans = [self.layout.span(record.model) for record in complete]
            for record, data in zip(complete, self.folder.ranges("signals.npy", spans), strict=True):
                found.extend(_damaged_chunks(self.folder, self.layout, record, data))
        return found

    def extend(self, design: MembershipDesign) -> SignalStore:
        """Make room for more models and return the store with this design, whose first rows must be those of the store.

        Finished models stay. Only the process that distributes the work may call this.
        """
        path = _require_local(self.folder)
        with writing(str(path)), _locked(path / "signals.npy") as file:
            current = SignalStore.open(path)  # another process may have extended it meanwhile
            _require_continuation(path, current.design.matrix, design.matrix)
            longer = max(current.design.matrix, design.matrix, key=len)
            layout = replace(current.layout, n_models=len(longer), membership=digest(np.packbits(longer, axis=1)))
            # In this order the store is valid at each moment: more rows than store.json says are ignored.
            _allocate(file, layout)
            if layout != current.layout:
                _write_membership(path, longer)
                write_atomically(path / "store.json", layout.to_json())
            remove_leftovers(path)
        return replace(current, layout=layout, design=design)

    def import_npy(self, folder: str | Path) -> list[int]:
        """Merge the stacks that another machine wrote with `write_stack`, and return their models.

        Each stack is verified before it is added.
        """
        models: list[int] = []
        for stack in read_stacks(folder, key=self.key):
            self.append(stack.models, stack.signals, stack.provenance)
            models.extend(stack.models)
        return sorted(models)

    def publish(self, address: str) -> None:
        """Copy the store to an address that fsspec knows, where `open` reads it; again, to add models finished since.

        store.json is copied last, so that an interrupted copy is not taken for a store. A store of another audit at
        the address is refused, and what is damaged is not copied.
        """
        path, place = _require_local(self.folder), folder_at(address)
        if place.path is not None:
            raise StoreError(f"{address} is a folder of this machine: give an address such as s3://bucket/run")
        with reading(str(place)):
            present = "store.json" in place.names("")
        if present and _read_layout(place).key != self.key:
            raise StoreError(f"{place} holds the store of another audit and was not changed: give another address")
        _raise_first(self.verify())
        with writing(str(place)), _locked(path / "signals.npy"):
            names = [name for name in _ARRAY_FILES if (path / name).exists()]
            names += [f"records/{name}" for name in self.folder.names("records") if _RECORD_NAME.fullmatch(name)]
            for name in (*names, "store.json"):
                place.put(path / name, name)

    def _scan(self, among: Collection[int] | None = None) -> tuple[dict[int, ModelRecord], list[BadRecord]]:
        """Scan the records of this design's models; the store may have more."""
        finished, bad = _scan(self.folder, self.layout, among)
        other = range(self.shape[0], self.layout.n_models)
        return {m: r for m, r in finished.items() if m not in other}, [b for b in bad if b.first not in other]

    def _records(self, models: Numbers | None) -> list[ModelRecord]:
        """Records of some finished models, by default of all; raises if one is missing or damaged."""
        if models is None:
            finished, bad = self._scan()
            hiding = [b.problem for b in bad if any(m not in finished for m in range(b.first, b.last + 1))]
            if hiding:
                raise StoreError(hiding[0] + (f" (and {len(hiding) - 1} more like it)" if hiding[1:] else ""))
            if not finished:
                raise StoreError(f"{self.folder} has no finished model yet: run the audit, or record a model")
            return list(finished.values())
        wanted = _model_numbers(models, self.shape[0])
        finished, bad = self._scan(wanted)
        for model in wanted:
            if model not in finished:
                reasons = [b.problem for b in bad if b.first <= model <= b.last]
                raise StoreError(
                    reasons[0] if reasons else f"model {model} of {self.folder} is not finished: run the audit again"
                )
        return [finished[model] for model in wanted]


def store_key(
    about: Mapping[str, Any], design: MembershipDesign, views: Sequence[str], labels: Labels | None = None
) -> str:
    """Key of a store with these contents, for a machine that trains without a store; see `SignalStore.create`."""
    return layout_of(about, design, views, labels).key


# store.json ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """What is in a store and where: the contents of store.json."""

    about: dict[str, Any]  # what the signals were made of, as the caller described it
    views: tuple[str, ...]  # names
    n_points: int
    n_models: int  # of the design; models may be added later
    labels: str | None  # digest, if there are labels
    membership: str  # digest of the bit-packed design
    chunk: int = CHUNK_POINTS  # number of points that share a checksum

    @property
    def identity(self) -> dict[str, Any]:
        """What two stores of the same audit share; not the number of models, which may grow."""
        return {"about": self.about, "views": list(self.views), "n_points": self.n_points, "labels": self.labels}

    @property
    def key(self) -> str:
        """Digest of the identity, part of every record."""
        return digest(_canonical(self.identity))

    @property
    def point_bytes(self) -> int:
        """Bytes of the signals of one model at one record."""
        return len(self.views) * np.dtype(DTYPE).itemsize

    @property
    def model_bytes(self) -> int:
        """Bytes of the signals of one model."""
        return self.n_points * self.point_bytes

    def span(self, model: int) -> tuple[int, int]:
        """First and end byte of a model in signals.npy."""
        begin = NPY_HEADER_BYTES + model * self.model_bytes
        return begin, begin + self.model_bytes

    def digests(self, signals: FloatArray32 | bytes | memoryview) -> tuple[str, ...]:
        """Digest of each chunk of a model's signals [records, views]."""
        data, step = as_bytes(signals), self.chunk * self.point_bytes
        return tuple(digest(data[start : start + step]) for start in range(0, len(data), step))

    def to_json(self) -> bytes:
        """Contents of store.json."""
        fields = {"schema": SCHEMA, "key": self.key, "dtype": DTYPE, **vars(self)}
        return json.dumps(fields, indent=1, allow_nan=False).encode()

    @classmethod
    def from_json(cls, what: str, data: bytes) -> Layout:
        """Check and read the contents of store.json; errors call the file ``what``."""
        found = _parse_object(what, data, _COPY_STORE)
        if found.get("schema") != SCHEMA or found.get("dtype") != DTYPE:
            raise StoreError(
                f"{what} has schema {found.get('schema')!r} and type {found.get('dtype')!r}, this version reads schema "
                f"{SCHEMA} and type {DTYPE}: read it with the version of plmia that wrote it"
            )
        try:
            layout = cls(
                about=_typed(found, "about", dict),
                views=tuple(_typed(found, "views", list)),
                n_points=_positive(found, "n_points"),
                n_models=_positive(found, "n_models"),
                labels=None if found["labels"] is None else _typed(found, "labels", str),
                membership=_typed(found, "membership", str),
                chunk=_positive(found, "chunk"),
            )
            same = layout.key == found["key"]
        except (KeyError, TypeError, RecursionError) as error:
            raise StoreError(f"{what} is damaged ({error}): {_COPY_STORE}") from error
        if not same or not layout.views or not all(isinstance(view, str) for view in layout.views):
            raise StoreError(f"{what} was changed after it was written (its key does not fit): {_COPY_STORE}")
        return layout


def layout_of(
    about: Mapping[str, Any], design: MembershipDesign, views: Sequence[str], labels: Labels | None
) -> Layout:
    """Layout of a store with these contents; see `SignalStore.create`."""
    matrix, names = design.matrix, tuple(views)
    if 0 in matrix.shape:
        raise StoreError(f"the design has {len(matrix)} models and {matrix.shape[1]} records: at least 1 is needed")
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise StoreError(f"views are {list(names)}: give at least one, each with its own name")
    if labels is not None and (labels.shape != matrix.shape[1:] or not np.issubdtype(labels.dtype, np.integer)):
        raise StoreError(
            f"labels have shape {labels.shape} and type {labels.dtype}: integers [{matrix.shape[1]}] are needed, one "
            "per record"
        )
    return Layout(
        about=_plain(about, "about"),
        views=names,
        n_points=matrix.shape[1],
        n_models=matrix.shape[0],
        labels=None if labels is None else digest(labels.astype("<i8")),
        membership=digest(np.packbits(matrix, axis=1)),
    )


def _read_layout(folder: Folder) -> Layout:
    try:
        with reading(f"{folder}/store.json"):
            return Layout.from_json(f"{folder}/store.json", folder.read(["store.json"])[0])
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise StoreError(f"{folder} is not a store (it has no store.json): give the folder of a store") from error
        raise


def _require_same(path: Path, existing: Layout, given: Layout, explain: Explain) -> None:
    """Require that two layouts belong to the same audit."""
    found = list(dict.fromkeys(line.removeprefix("about.") for line in explain(existing.identity, given.identity)))
    if found:
        rest = f"; and {len(found) - _MAX_DIFFERENCES} more" if len(found) > _MAX_DIFFERENCES else ""
        raise StoreError(
            f"{path} belongs to another audit ({'; '.join(found[:_MAX_DIFFERENCES])}{rest}) and was not changed: "
            "choose another folder, or the settings it was made with"
        )


def _require_continuation(path: Path, existing: BoolArray, given: BoolArray) -> None:
    """Require that two designs [models, points] agree in the rows that both have."""
    if existing.shape[1] != given.shape[1]:
        raise StoreError(
            f"{path} is made for {existing.shape[1]} records, the design has {given.shape[1]}: use another folder"
        )
    common = min(len(existing), len(given))
    different = np.flatnonzero((existing[:common] != given[:common]).any(axis=1))
    if len(different):
        raise StoreError(
            f"{path} has another design (model {some(different)} trains on other records) and was not changed: choose "
            "another folder, or the design it was made with"
        )


def differences(there: Any, here: Any, name: str = "") -> Iterator[str]:
    """Describe where two JSON values differ: ``"seed: 0 there, 1 here"``."""
    if isinstance(there, dict) and isinstance(here, dict):
        for entry in sorted({*there, *here}):
            below = f"{name}.{entry}" if name else entry
            if entry not in there or entry not in here:
                yield f"{below}: only {'here' if entry in here else 'there'}"
            else:
                yield from differences(there[entry], here[entry], below)
    elif _canonical(there) != _canonical(here):
        yield f"{name}: {_short_json(there)} there, {_short_json(here)} here"


# Arrays --------------------------------------------------------------------------------------------------------------


def _require_free(path: Path) -> None:
    """Require that there is nothing at a path, an empty folder, or a store that another process made meanwhile."""
    with reading(str(path)):
        try:
            names = {entry.name for entry in path.iterdir()}
        except FileNotFoundError:
            return
        except NotADirectoryError:
            names = {path.name}
    if names and "store.json" not in names:
        raise StoreError(f"{path} exists and is not a store: choose a folder that is empty or does not exist yet")


def _make_store(path: Path, layout: Layout, design: MembershipDesign, labels: Labels | None) -> None:
    """Make the folder of a store, which appears complete; a store that another process made meanwhile stays."""
    make_private(path.parent)
    new = temporary_beside(path)
    try:
        new.mkdir(mode=0o700)
        (new / "records").mkdir(mode=0o700)
        create_private(new / "signals.npy").close()
        with (new / "signals.npy").open("r+b", buffering=0) as file:
            _allocate(file, layout)
        _write_membership(new, design.matrix)
        if labels is not None:
            _write_integers(new / "labels.npy", labels)
        write_atomically(new / "store.json", layout.to_json())
        try:
            new.rename(path)
        except OSError:
            if not (path / "store.json").exists():
                raise
        sync_folder(path.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _remove_unfinished(path: Path) -> bool:
    """Remove a store in which no model is finished; return whether that was so.

    It is renamed under its lock: a process that appends meanwhile either comes first, and then the store stays, or
    finds that the store is another one.
    """
    with _locked(path / "signals.npy"):
        if any(not name.startswith(".") for name in folder_at(path).names("records")):
            return False
        removed = temporary_beside(path)
        path.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)
    return True


def _allocate(file: FileIO, layout: Layout) -> None:
    """Give signals.npy its length and header; it never shrinks. Unwritten regions are holes and take no space."""
    size = os.fstat(file.fileno()).st_size
    rows = max(layout.n_models, -(-(size - NPY_HEADER_BYTES) // layout.model_bytes))
    if size < layout.span(rows)[0]:
        file.truncate(layout.span(rows)[0])
    header = npy_header(DTYPE, (rows, layout.n_points, len(layout.views)))
    file.seek(0)
    if file.read(NPY_HEADER_BYTES) != header:
        _write_at(file, 0, header)
    os.fsync(file.fileno())


def _header_problems(folder: Folder, layout: Layout) -> Iterator[str]:
    """Report whether signals.npy has the right header and length; its contents are not read."""
    header, *_ = folder.ranges("signals.npy", [(0, NPY_HEADER_BYTES)])
    room = (folder.size("signals.npy") - NPY_HEADER_BYTES) // layout.model_bytes
    match = re.search(rb"\(([0-9]{1,18}),", header)
    rows = int(match[1]) if match else 0
    # An interrupted extension leaves more rows than the layout has; they do no harm.
    expected = npy_header(DTYPE, (rows, layout.n_points, len(layout.views)))
    if not layout.n_models <= rows <= room or header != expected:
        yield f"{folder}/signals.npy has a damaged header or was cut off: running the same audit again repairs it"


def _write_at(file: FileIO, offset: int, data: Array | bytes) -> None:
    os.lseek(file.fileno(), offset, os.SEEK_SET)
    write_all(file.fileno(), data)


def _write_membership(path: Path, matrix: BoolArray) -> None:
    packed = np.packbits(matrix, axis=1)
    write_atomically(path / "membership.npy", npy_header("|u1", packed.shape), packed)


def _write_integers(path: Path, values: Labels) -> None:
    write_atomically(path, npy_header("<i8", values.shape), values.astype("<i8"))


def _read_array(
    folder: Folder, name: str, dtype: str, shape: tuple[int, ...], expected: str, *, growing: bool = False
) -> Array:
    """Array of this shape and digest; if it is ``growing``, rows of an interrupted extension are ignored."""
    what, row_bytes = f"{folder}/{name}", math.prod(shape[1:]) * np.dtype(dtype).itemsize
    with reading(what):
        data = folder.read([name])[0]
    rows = max(shape[0], (len(data) - NPY_HEADER_BYTES) // row_bytes) if growing else shape[0]
    _check_npy(what, data, len(data), dtype, (rows, *shape[1:]))
    found = np.frombuffer(data, dtype, offset=NPY_HEADER_BYTES).reshape(rows, *shape[1:])[: shape[0]]
    if digest(found) != expected:
        raise StoreError(f"{what} is damaged (the checksum differs): {_COPY_STORE}")
    return found


def _read_integers(folder: Folder, name: str, n_points: int, expected: str | None) -> Labels | None:
    """Labels or groups [points]; None if the store has none."""
    return None if expected is None else _read_array(folder, name, "<i8", (n_points,), expected)


def groups_about(groups: Labels | None) -> dict[str, str]:
    """Entry of a store's ``about`` for the records' groups, if there are any: their digest."""
    return {} if groups is None else {"groups": digest(groups.astype("<i8"))}


def signal_about(kind: SignalKind) -> dict[str, str]:
    """Entry of a store's ``about`` for the kind of its signals; none for confidences."""
    return {} if kind == "confidence" else {"signal": kind}


def write_groups(path: Path, groups: Labels) -> None:
    """Write the groups [records] of a store whose ``about`` has their digest; see `groups_about`."""
    if not (path / "groups.npy").exists():
        with writing(str(path)):
            _write_integers(path / "groups.npy", groups)


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Header of an npy file, always 128 bytes, so that an array can grow in place."""
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape})
    length = NPY_HEADER_BYTES - 10
    if len(text) >= length:
        raise StoreError(f"an array of shape {shape} is too large to be stored")
    return NPY_MAGIC + b"\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode("ascii") + b"\n"


def _check_npy(what: str, start: bytes, size: int, dtype: str, shape: tuple[int, ...]) -> None:
    """Require that a file that begins with ``start`` is an npy of this type, shape and ``size``; nothing is parsed."""
    needed = NPY_HEADER_BYTES + math.prod(shape) * np.dtype(dtype).itemsize
    if size != needed or start[:NPY_HEADER_BYTES] != npy_header(dtype, shape):
        raise StoreError(
            f"{what} is damaged: an npy file of {dtype} {list(shape)} with {needed} bytes is expected, it has {size} "
            f"bytes or another header; {_COPY_STORE}"
        )


# Records -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelRecord:
    """What makes a model count as finished."""

    model: int
    chunks: tuple[str, ...]  # SHA-256 of its signals, for each chunk of points
    provenance: dict[str, Any]  # how it was made, as the caller described it
    file: str  # of the record, relative to the store
    together: tuple[int, ...]  # all models of this file, which were finished at once
    verified: bool = True  # whether a digest covers the provenance; earlier versions wrote none


@dataclass(frozen=True)
class BadRecord:
    """A record that does not count: the first and last model that its name claims, and the problem."""

    first: int
    last: int
    problem: str


def _record_name(models: Sequence[int]) -> str:
    """File of the record of models in increasing order: `000012.json`, `000012-000027.json` for several."""
    ends = [models[0]] if len(models) == 1 else [models[0], models[-1]]
    return "-".join(f"{model:06d}" for model in ends) + ".json"


def _scan(
    folder: Folder, layout: Layout, among: Collection[int] | None = None
) -> tuple[dict[int, ModelRecord], list[BadRecord]]:
    """Read the record of each finished model, in increasing order, and the records that do not count.

    With ``among``, only files are read whose name claims one of these models: an append need not read all.
    """
    finished: dict[int, ModelRecord] = {}
    claimed: dict[str, tuple[int, int]] = {}
    bad: list[BadRecord] = []
    with reading(f"{folder}/records"):
        for name in folder.names("records"):
            if match := _RECORD_NAME.fullmatch(name):
                first, last = int(match[1]), int(match[2] or match[1])
                if among is None or any(first <= model <= last for model in among):
                    claimed[name] = first, last
            elif name.endswith(".json") and not name.startswith("."):
                bad.append(BadRecord(0, -1, f"{folder}/records/{name} is not the name of a record: remove it"))
        contents = folder.read([f"records/{name}" for name in claimed])
    for name, data in zip(claimed, contents, strict=True):
        try:
            records = _parse_record(f"{folder}/records/{name}", layout, name, data)
            _require_agreement(folder, finished, records)
        except StoreError as error:
            bad.append(BadRecord(*claimed[name], str(error)))
        else:
            finished.update((record.model, record) for record in records)
    return dict(sorted(finished.items())), bad


def _parse_record(what: str, layout: Layout, name: str, data: bytes) -> list[ModelRecord]:
    """Check and read one file of records, which may come from anywhere."""
    found = _unsealed(what, data, _TRAIN_AGAIN)
    if found.get("key") != layout.key:
        raise StoreError(
            f"{what} belongs to another audit (key {str(found.get('key'))[:12]}, this store has {layout.key[:12]}): "
            f"{_TRAIN_AGAIN}"
        )
    try:
        entries = _typed(found, "models", list)
        models = tuple(_typed(entry, "model", int) for entry in entries)
        chunks = [tuple(_typed(entry, "chunks", list)) for entry in entries]
        provenance = [_typed(entry, "provenance", dict) for entry in entries]
    except (KeyError, TypeError) as error:
        raise StoreError(f"{what} is damaged ({error}): {_TRAIN_AGAIN}") from error
    outside = [model for model in models if not 0 <= model < layout.n_models]
    if outside:
        raise StoreError(
            f"{what} claims model {some(outside)}, the store has {layout.n_models} models: open the store again if it "
            "was extended meanwhile, otherwise remove that file"
        )
    if not models or sorted(set(models)) != list(models) or _record_name(models) != name:
        raise StoreError(f"{what} claims model {some(models)}, which does not fit its name: {_TRAIN_AGAIN}")
    n_chunks = -(-layout.n_points // layout.chunk)
    if any(len(c) != n_chunks or not all(isinstance(d, str) and _DIGEST.fullmatch(d) for d in c) for c in chunks):
        raise StoreError(f"{what} is damaged (not {n_chunks} checksums for each model): {_TRAIN_AGAIN}")
    _require_plausible(what, models, provenance, layout.n_points * len(layout.views), _TRAIN_AGAIN)
    verified = found["schema"] == SEALED_SCHEMA
    return [
        ModelRecord(m, c, p, f"records/{name}", models, verified)
        for m, c, p in zip(models, chunks, provenance, strict=True)
    ]


def _require_plausible(
    what: str, models: Sequence[int], provenance: Sequence[Any], n_signals: int, remedy: str
) -> None:
    """Require that each model's provenance holds possible values only."""
    for model, entry in zip(models, provenance, strict=True):
        problem = problem_of(entry, n_signals)
        if problem is not None:
            raise StoreError(f"{what} cannot be right (model {model}: {problem}): {remedy}")


def _require_agreement(folder: Folder, finished: Mapping[int, ModelRecord], records: Sequence[ModelRecord]) -> None:
    """Require that records of the same model have the same checksums."""
    for record in records:
        other = finished.get(record.model)
        if other is not None and other.chunks != record.chunks:
            raise StoreError(
                f"{folder}/{record.file} and {folder}/{other.file} have different checksums for model {record.model}: "
                "remove the wrong one, which verify() names"
            )


def _without_records(
    path: Path, finished: Mapping[int, ModelRecord], models: Collection[int]
) -> dict[int, ModelRecord]:
    """Remove the records of models, which are missing from then on, and return the records that stay."""
    for model in models:
        record = finished.get(model)
        if record is not None and not set(record.together) <= set(models):
            raise StoreError(
                f"model {model} of {path} was trained together with model "
                f"{some([m for m in record.together if m != model])}: replace all of them at once"
            )
    for name in {finished[model].file for model in models if model in finished}:
        (path / name).unlink()
    return {model: record for model, record in finished.items() if model not in models}


def _is_stored(folder: Folder, record: ModelRecord | None, digests: tuple[str, ...]) -> bool:
    """Whether a model is finished with the signals of these digests; raises if it is finished with others."""
    if record is not None and record.chunks != digests:
        raise StoreError(
            f"model {record.model} of {folder} is finished with other signals: skip it (run.missing() lists the rest), "
            f"replace it (replace=True), or remove {folder}/{record.file} (it covers model {some(record.together)})"
        )
    return record is not None


def _damaged_chunks(folder: Folder, layout: Layout, record: ModelRecord, data: bytes | memoryview) -> Iterator[str]:
    """Report the chunks of a model's signals that differ from its record."""
    for i, (found, expected) in enumerate(zip(layout.digests(data), record.chunks, strict=True)):
        if found != expected:
            points = f"{i * layout.chunk} to {min((i + 1) * layout.chunk, layout.n_points) - 1}"
            yield (
                f"{folder}/signals.npy is damaged at model {record.model}, records {points} (the checksum differs): "
                f"{_retrain(folder, record)}"
            )


def _cut_off(folder: Folder, layout: Layout, records: Iterable[ModelRecord]) -> Iterator[str]:
    """Report the models before whose end signals.npy ends."""
    size = folder.size("signals.npy")
    for record in records:
        begin, end = layout.span(record.model)
        if end > size:
            point = max(size - begin, 0) // layout.point_bytes
            yield f"{folder}/signals.npy is cut off at model {record.model}, record {point}: {_retrain(folder, record)}"


def _retrain(folder: Folder, record: ModelRecord) -> str:
    return f"remove {folder}/{record.file} and run again, which trains only model {some(record.together)} again"


def _raise_first(problems: Iterable[str]) -> None:
    for problem in problems:
        raise StoreError(problem)


# Stacks --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """Models that were trained together, in increasing order, with their signals and how each was made."""

    models: tuple[int, ...]
    signals: FloatArray32  # [models, points, views], logit-scaled and finite
    provenance: tuple[dict[str, Any], ...]

    @classmethod
    def checked(cls, models: Numbers, signals: FloatArray32, provenance: Sequence[Mapping[str, Any]]) -> Stack:
        """Check that the parts fit together and sort them by model."""
        numbers = _model_numbers(models)
        if len(set(numbers)) < len(numbers):
            raise StoreError(f"models {some(numbers)} cannot be stored: give each once")
        if signals.ndim != 3 or signals.dtype != np.float32 or len(signals) != len(numbers) or 0 in signals.shape:
            raise StoreError(
                f"signals of {len(numbers)} models have shape {signals.shape} and type {signals.dtype}: "
                "float32 [models, records, views] is needed, with no empty axis"
            )
        if len(provenance) != len(numbers):
            raise StoreError(f"{len(numbers)} models have {len(provenance)} provenances: give one per model")
        for model, row in zip(numbers, signals, strict=True):
            finite = np.isfinite(row)
            if not finite.all():
                point, view = np.argwhere(~finite)[0]
                raise StoreError(
                    f"model {model} has the signal {row[point, view]} at record {point}, view {view}: a model that "
                    "diverged cannot be stored; train it again with another seed"
                )
        made = [_plain(entry, f"provenance of model {model}") for model, entry in zip(numbers, provenance, strict=True)]
        _require_plausible("a stack of models", numbers, made, signals[0].size, "correct the provenance")
        order = np.argsort(numbers)
        ordered = signals if (np.diff(order) > 0).all() else signals[order]
        return cls(tuple(sorted(numbers)), np.ascontiguousarray(ordered, DTYPE), tuple(made[i] for i in order))


def write_stack(
    folder: str | Path, models: Numbers, signals: FloatArray32, provenance: Sequence[Mapping[str, Any]], *, key: str
) -> str | Path:
    """Write the signals of some models as an npy file, for the store with this key to import; see `SignalStore.append`.

    The file counts as soon as its JSON exists, too. ``folder`` may be an address that fsspec knows. Returns the file's
    path, or its address.
    """
    place, stack = folder_at(folder), Stack.checked(models, signals, provenance)
    name, shape = f"stack-{_record_name(stack.models)}", stack.signals.shape
    data = f"{name.removesuffix('.json')}.npy"
    header = npy_header(DTYPE, shape)
    sha = hashlib.sha256(header)
    sha.update(as_bytes(stack.signals))
    fields = {"key": key, "models": stack.models, "shape": shape, "sha256": sha.hexdigest()}
    with writing(f"{place}/{data}"):
        place.make()
        place.write(data, header, stack.signals)
        place.write(name, sealed({**fields, "provenance": stack.provenance}))
    return place.path / data if place.path is not None else f"{place}/{data}"


def read_stacks(folder: str | Path, *, key: str) -> Iterator[Stack]:
    """Read and verify the finished stacks of a folder, one at a time; signals on this machine are memory-mapped.

    They must belong to the store with this key. The JSON of all of them is checked before the first is returned.
    ``folder`` may be an address that fsspec knows; a stack from there is held in memory.
    """
    place = folder_at(folder)
    names = stack_names(folder)
    if not names:
        raise StoreError(f"{folder} holds no finished stack (stack-*.json beside stack-*.npy): give another folder")
    abouts = [_read_about(place, name, key) for name in names]
    for name, about in zip(names, abouts, strict=True):
        yield _read_stack(place, name, about)


def stack_names(folder: str | Path) -> list[str]:
    """Sorted names of the JSON files of the finished stacks in a folder; none if it does not exist."""
    place = folder_at(folder)
    with reading(str(place)):
        return [name for name in place.names("") if name.startswith("stack-") and name.endswith(".json")]


def _read_about(place: Folder, name: str, key: str) -> dict[str, Any]:
    """Check and read the JSON of a stack, which may come from anywhere."""
    path = f"{place}/{name}"
    with reading(path):
        size = place.size(name)
        if size > MAX_JSON_BYTES:
            raise StoreError(f"{path} has {size:,} bytes, at most {MAX_JSON_BYTES:,} are allowed: {_COPY_STACK}")
        about = _unsealed(path, place.read([name])[0], _COPY_STACK)
    if about.get("key") != key:
        raise StoreError(
            f"{path} belongs to another audit (key {str(about.get('key'))[:12]}, the store has {key[:12]}): "
            "move it away, or import it into the store it was made for"
        )
    models, shape, provenance = (about.get(name) for name in ("models", "shape", "provenance"))
    if not (_whole_numbers(models) and _whole_numbers(shape) and len(shape) == 3 and isinstance(provenance, list)):
        raise StoreError(f"{path} is damaged (models, shape or provenance have the wrong form): {_COPY_STACK}")
    if not shape[0] == len(models) == len(provenance):
        raise StoreError(
            f"{path} is damaged ({len(models)} models, {shape[0]} rows of signals, {len(provenance)} provenances): "
            f"{_COPY_STACK}"
        )
    _require_plausible(path, models, provenance, shape[1] * shape[2], _COPY_STACK)
    return about


def _read_stack(place: Folder, name: str, about: dict[str, Any]) -> Stack:
    file_name, shape = f"{name.removesuffix('.json')}.npy", tuple(about["shape"])
    what = f"{place}/{file_name}"
    with reading(what):
        size = place.size(file_name)
        start, *_ = place.ranges(file_name, [(0, NPY_HEADER_BYTES)])
        _check_npy(what, start, size, DTYPE, shape)
        if place.path is None:
            data = place.read([file_name])[0]
            found = digest(data)
        else:
            with open_regular(place.path / file_name) as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != about.get("sha256"):
        raise StoreError(f"{what} is damaged (its SHA-256 differs from the one in {name}): {_COPY_STACK}")
    signals = (
        np.frombuffer(data, DTYPE, offset=NPY_HEADER_BYTES).reshape(shape)
        if place.path is None
        else np.memmap(place.path / file_name, DTYPE, "r", NPY_HEADER_BYTES, shape)
    )
    return Stack.checked(about["models"], signals, about["provenance"])


def _whole_numbers(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(entry) is int and entry >= 0 for entry in value) and value != []


# Provenance ----------------------------------------------------------------------------------------------------------
#
# It may come from another machine, and the report shows it. Therefore each known entry has a type and a range, and all
# other entries are plain, small and shallow.

_MAX_LOSSES = 1 << 20
# Bytes of JSON of all entries but the losses.
_MAX_PROVENANCE_BYTES = 1 << 20
_MAX_DEPTH = 32
_MAX_VERSION_LENGTH = 200
# Length of a file's path below the recipe's folder.
_MAX_PATH_LENGTH = 4096
# About 300 years.
_MAX_SECONDS = 1e10

Check: TypeAlias = Callable[[Any], bool]


def problem_of(provenance: Any, n_signals: int) -> str | None:
    """Describe what is wrong with the provenance of a model with ``n_signals`` signals, or return None."""
    if not isinstance(provenance, dict):
        return f"the provenance is a {type(provenance).__name__}, a JSON object is needed"
    found = _impossible(provenance)
    if found is not None:
        return f"the provenance holds {found}"
    size = len(json.dumps({name: value for name, value in provenance.items() if name != "losses"}))
    if size > _MAX_PROVENANCE_BYTES:
        return f"the provenance takes {size:,} bytes without its losses, at most {_MAX_PROVENANCE_BYTES:,} are allowed"
    for name, (check, needed) in _known(n_signals).items():
        if name in provenance and not check(provenance[name]):
            return f"{name} is {_short_json(provenance[name])}, {needed} is needed"
    return None


def _known(n_signals: int) -> dict[str, tuple[Check, str]]:
    """Entries that plmia knows, each with its check and the words for it."""
    # None if there were no records to measure it on.
    accuracy: tuple[Check, str] = (lambda value: value is None or _number(1.0)(value), "a number from 0 to 1")
    count = _whole(n_signals), f"a whole number from 0 to {n_signals} (the model's signals)"
    return {
        "given": (lambda value: isinstance(value, bool), "true or false"),
        "recipe": (lambda value: isinstance(value, dict), "a JSON object"),
        "seed": (_whole(1 << 64), "a whole number from 0"),
        "attempt": (_whole(1 << 32), "a whole number from 0"),
        "seconds": (_number(_MAX_SECONDS), f"a number from 0 to {_MAX_SECONDS:g}"),
        "operations": (_number(sys.float_info.max), "a number from 0"),
        "train_accuracy": accuracy,
        "test_accuracy": accuracy,
        "n_clipped": count,
        "n_renormalised": count,
        "sum_error": (_number(sys.float_info.max), "a number from 0"),
        "undeclared_files": (
            lambda value: isinstance(value, list) and _are_texts(value, _MAX_PATH_LENGTH),
            "a list of short texts",
        ),
        "losses": (_are_losses, f"a list of at most {_MAX_LOSSES:,} finite numbers"),
        "versions": (
            lambda value: isinstance(value, dict) and _are_texts([*value, *value.values()], _MAX_VERSION_LENGTH),
            "a JSON object of short texts",
        ),
    }


def _whole(most: int) -> Check:
    return lambda value: type(value) is int and 0 <= value <= most


def _number(most: float) -> Check:
    return lambda value: type(value) in (int, float) and 0 <= value <= most


def _are_losses(value: Any) -> bool:
    """Whether these are losses per epoch; None stands for one that was not finite."""
    if not isinstance(value, list) or len(value) > _MAX_LOSSES:
        return False
    return all(v is None or (type(v) in (int, float) and abs(v) <= sys.float_info.max) for v in value)


def _are_texts(values: Sequence[Any], most: int) -> bool:
    return all(isinstance(text, str) and text.isprintable() and len(text) <= most for text in values)


def _impossible(value: Any) -> str | None:
    """Find what no provenance may hold, at any depth; without recursion, since the depth itself is checked."""
    left = [(value, 1)]
    while left:
        entry, depth = left.pop()
        if depth > _MAX_DEPTH:
            return f"more than {_MAX_DEPTH} levels"
        if isinstance(entry, dict):
            left += [(part, depth + 1) for pair in entry.items() for part in pair]
        elif isinstance(entry, list):
            left += [(part, depth + 1) for part in entry]
        elif isinstance(entry, float) and not math.isfinite(entry):
            return f"the number {entry}"
        elif isinstance(entry, str) and shown(entry) != entry:
            return "text that is not Unicode"
    return None


def _short_json(value: Any, most: int = 40) -> str:
    """JSON of a value, cut to ``most`` characters."""
    text = json.dumps(value)
    return text if len(text) <= most else text[: most - 3] + "..."


# Digests and JSON ----------------------------------------------------------------------------------------------------


def digest(data: bytes | memoryview | Array) -> str:
    """SHA-256 in hexadecimal of a buffer or a C-contiguous array."""
    return hashlib.sha256(as_bytes(data)).hexdigest()


def _canonical(value: Any) -> bytes:
    """JSON that is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _plain(value: Any, what: str) -> Any:
    """Make a value JSON: NumPy values become plain ones, tuples lists, numbers that are not finite null."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _plain(entry, f"{what}.{name}") for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, f"{what}[{i}]") for i, entry in enumerate(value)]
    raise StoreError(
        f"{what} has type {type(value).__name__}, which JSON cannot hold: give numbers, text, lists, and dicts with "
        "text as keys"
    )


def _parse_object(what: str, data: bytes, remedy: str) -> dict[str, Any]:
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
    return json.dumps(contents | {"digest": digest(_canonical(contents))}, allow_nan=False).encode()


def _unsealed(what: str, data: bytes, remedy: str) -> dict[str, Any]:
    """Read and verify what `sealed` wrote; JSON of schema 1 has no digest and is returned as it is."""
    found = _parse_object(what, data, remedy)
    schema = found.get("schema")
    if schema == SEALED_SCHEMA or "digest" in found:
        contents = {name: value for name, value in found.items() if name != "digest"}
        try:
            same = digest(_canonical(contents)) == found.get("digest")
        except (ValueError, RecursionError):  # `sealed` writes neither infinite numbers nor deep nesting
            same = False
        if not same:
            raise StoreError(f"{what} was changed after it was written (its digest does not fit): {remedy}")
    elif schema != 1:
        raise StoreError(
            f"{what} has schema {str(schema)[:12]}, this version reads 1 and {SEALED_SCHEMA}: read it with the version "
            "of plmia that wrote it"
        )
    return found


def _typed(found: Any, name: str, kind: type) -> Any:
    """Entry of a JSON object, which must have this type."""
    value = found[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is a {type(value).__name__}, a {kind.__name__} is needed")
    return value


def _positive(found: Any, name: str) -> int:
    value: int = _typed(found, name, int)
    if value < 1:
        raise TypeError(f"{name} is {value}, it must be positive")
    return value


def _model_numbers(models: Numbers, end: int = sys.maxsize) -> list[int]:
    """Check numbers of models, which must be below ``end``."""
    try:
        numbers = [operator.index(model) for model in models]
    except TypeError as error:
        raise StoreError(f"models are {models!r}: give a list of whole numbers") from error
    if not numbers:
        raise StoreError("no model is given: give at least one")
    outside = [number for number in numbers if not 0 <= number < end]
    if outside:
        limit = "" if end == sys.maxsize else f" to {end - 1}"
        raise StoreError(f"there is no model {some(outside)}: models are numbered from 0{limit}")
    return numbers


# Folders, here or behind a URL ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Folder:
    """Folder of a store or of stacks. Names are relative to it; all errors are OSErrors."""

    address: str
    files: Any = field(repr=False)  # file system: one of fsspec, or `_LocalFiles`
    root: str = field(repr=False)  # the folder's path in it
    path: Path | None = None  # path on this machine; None for an address, where only whole files can be written

    def __str__(self) -> str:
        return self.address

    def read(self, names: Sequence[str]) -> list[bytes]:
        """Contents of files."""
        return self._fetch(names, [(None, None)] * len(names))

    def names(self, below: str) -> list[str]:
        """Sorted names in a folder below; none if it does not exist."""
        if self.path is None:
            self.files.invalidate_cache()
        try:
            with _os_errors():
                paths = self.files.ls(f"{self.root}/{below}".rstrip("/"), detail=False)
        except FileNotFoundError:  # object stores keep no empty folders
            return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

    def size(self, name: str) -> int:
        """Length of a file in bytes."""
        with _os_errors():
            return int(self.files.size(f"{self.root}/{name}"))

    def ranges(self, name: str, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Bytes from start to stop of each span; fewer where the file ends before."""
        at_once = _RANGES_AT_ONCE if self.path is None else 1
        for i in range(0, len(spans), at_once):
            fetched = spans[i : i + at_once]
            yield from self._fetch([name] * len(fetched), fetched)

    def make(self) -> None:
        """Make the folder; an address needs none."""
        if self.path is not None:
            make_private(self.path)

    def write(self, name: str, *parts: Array | bytes) -> None:
        """Write a file, complete or absent; one of a writer that fails at an address may be incomplete."""
        if self.path is not None:
            write_atomically(self.path / name, *parts)
            return
        where = f"{self.root}/{name}"
        with _os_errors(), self._in_folder(where, lambda: self.files.open(where, "wb")) as file:
            for part in parts:
                file.write(as_bytes(part))

    def put(self, path: Path, name: str) -> None:
        """Copy a file of this machine to an address."""
        require_regular(path)
        where = f"{self.root}/{name}"
        with _os_errors():
            self._in_folder(where, lambda: self.files.put_file(str(path), where))

    def _in_folder(self, where: str, write: Callable[[], Any]) -> Any:
        """Write a file at an address; its folder is made if the file system has folders, and this one is missing."""
        if isinstance(self.files, import_module("fsspec.implementations.local").LocalFileSystem):
            # An address such as file:///data: what is there already keeps its mode while it is written.
            make_private(Path(where).parent)
            with suppress(FileExistsError):
                create_private(Path(where)).close()
        try:
            return write()
        except FileNotFoundError:
            self.files.makedirs(where.rpartition("/")[0], exist_ok=True)
            return write()

    def _fetch(self, names: Sequence[str], spans: Sequence[tuple[int | None, int | None]]) -> list[bytes]:
        starts, stops = [start for start, _ in spans], [stop for _, stop in spans]
        with _os_errors():
            found = self.files.cat_ranges([f"{self.root}/{name}" for name in names], starts, stops)
            for content in found:
                if isinstance(content, Exception):
                    raise content
        return list(found)


class _LocalFiles:
    """Files on this machine, with as much of fsspec's interface as a store needs; fsspec need not be installed."""

    def ls(self, path: str, detail: bool) -> list[str]:
        del detail
        return [entry.as_posix() for entry in Path(path).iterdir()]

    def size(self, path: str) -> int:
        return Path(path).stat().st_size

    def cat_ranges(self, paths: Sequence[str], starts: Sequence[Any], stops: Sequence[Any]) -> list[bytes]:
        found = []
        for path, start, stop in zip(paths, starts, stops, strict=True):
            with open_regular(Path(path)) as file:
                file.seek(start or 0)
                found.append(file.read() if stop is None else file.read(stop - start))
        return found


def is_address(place: object) -> bool:
    """Whether a place is a text such as ``s3://bucket/run``, not a path of this machine."""
    return isinstance(place, str) and "://" in place


def folder_at(place: str | Path) -> Folder:
    """Folder at a path or an address."""
    if not (isinstance(place, str) and is_address(place)):
        return Folder(str(Path(place)), _LocalFiles(), str(Path(place)), Path(place))
    try:
        files, root = import_module("fsspec.core").url_to_fs(place)
    except ImportError as error:
        raise StoreError(
            f"{place} cannot be read ({error}): install fsspec ({install_hint('storage')}) and its package for this "
            "kind of address"
        ) from error
    except ValueError as error:
        raise StoreError(f"{place} cannot be read ({error}): give a folder, or an address that fsspec knows") from error
    return Folder(place.rstrip("/"), files, root.rstrip("/"))


def _require_local(folder: Folder) -> Path:
    if folder.path is None:
        raise StoreError(
            f"{folder} can only be read: give a local folder, and copy the finished store to the address with "
            "SignalStore.publish"
        )
    return folder.path


@contextmanager
def _os_errors() -> Iterator[None]:
    """Turn the errors of fsspec, which differ between file systems, into OSErrors."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn an OSError into a StoreError about ``what``."""
    try:
        yield
    except FileNotFoundError as error:
        raise StoreError(f"{what} is missing: {_RESTORE}") from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise StoreError(f"{what} cannot be read ({reason}): check that it exists and that you may read it") from error


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn an OSError into a StoreError about ``what``; a full disk is named as such."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            problem, remedy = f"the disk is full, {what} could not be written", "free some space"
        else:
            problem = f"{what} could not be written ({error.strerror or error})"
            remedy = "check that you may write to the folder"
        raise StoreError(f"{problem}: {remedy}, then run again; finished models are kept") from error


@contextmanager
def _locked(path: Path) -> Iterator[FileIO]:
    """Open a file for positioned writes under its lock; without locks, checksums find two writers of one model."""
    try:
        require_regular(path)
        opened = path.open("r+b", buffering=0)
    except FileNotFoundError as error:
        raise StoreError(f"{path} is missing: {_RESTORE}") from error
    with opened as file, file_lock(file.fileno()):
        yield file
