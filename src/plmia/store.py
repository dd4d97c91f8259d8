"""Signals on disk, model by model: what is there is whole, belongs to this audit, and is checked when it is read.

A store is one folder:

    store.json           what the signals were made of, and the layout; its key is a digest of what they were made of
    membership.npy       the design, bit-packed [models, ceil(points / 8)]
    labels.npy           labels [points], if there are any; groups.npy likewise
    signals.npy          float32 [models, points, views]; each model has its region, a hole until it is written
    records/000012.json  makes a model (or those trained together) count: checksums and provenance, with a digest of
                         itself, written last

A model without a record is not there, whatever its region holds. So a writer may be killed at any moment, several may
write at once, and a stack of models is there as a whole or not at all. Any tool that knows npy can read the signals.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmia.design import MembershipDesign
from plmia.errors import StoreError, some
from plmia.stacks import Numbers, Stack, read_stacks, write_stack
from plmia.store_files import (
    NPY_HEADER_BYTES,
    LocalFolder,
    RemoteFolder,
    as_bytes,
    folder_at,
    locked,
    reading,
    sweep,
    write_at,
    write_atomically,
    writing,
)
from plmia.store_layout import (
    DTYPE,
    FloatArray32,
    Labels,
    Layout,
    allocate,
    canonical,
    differences,
    digest,
    header_problems,
    layout_of,
    make_store,
    numbers_of,
    read_groups,
    read_labels,
    read_membership,
    require_continuation,
    require_free,
    write_membership,
)
from plmia.store_records import (
    BadRecord,
    ModelRecord,
    Tell,
    cut_off,
    damage,
    is_there,
    raise_first,
    read_layout,
    record_json,
    record_name,
    require_key,
    require_same,
    scan,
    set_aside,
)

if TYPE_CHECKING:
    from plmia.signals import Signals

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
        from plmia.signals import Signals

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
