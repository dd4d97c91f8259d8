"""A training script of your own: a run holds the design, and the script records the answers of each model.

In the script, on any machine that shares the folder, for each model k in any order and in parallel:

    run = plmia.Run("RUN")
    rows = run.members(k)  # train model k on these rows of the data
    run.record(k, logits=logits, labels=labels)  # its answers for all records

Format. A run is one folder:

    design.npz  membership [models, records] as packed bits with `n_points`; labels, groups and names of the classes if
                they are known; `about`, the JSON text of everything that determines the design, and `notes`
    signals/    the store of `plmia.signals.store`, which the first record makes

The store gives the guarantees: a model is recorded completely or not at all, several processes may record at once, and
damage is found. What the first record fixes is part of the store's key: number of views, labels, kind of signal.
This module needs NumPy only, `Run.record` also SciPy.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from plmia.data.arrays import Array, BoolArray, IntArray, Labels, SignalKind
from plmia.data.designs import MembershipDesign
from plmia.data.files import exists, is_file, is_folder, is_temporary, make_private
from plmia.data.npz import load_npz, save_npz, unpack_bits, whole_number
from plmia.errors import Note, SignalsError, StoreError
from plmia.signals.store import SignalStore, groups_about, signal_about, write_groups, writing
from plmia.training.records import TrainingRecord, versions

if TYPE_CHECKING:
    from plmia.training.recipes.recipe import Trained

DESIGN_FILE, STORE = "design.npz", "signals"
_ARRAYS = ("membership", "n_points", "labels", "groups", "class_names", "about", "notes")
# Errors of the sum of probabilities that were stored as float16.
_SUM_TOLERANCE = 5e-3
_INSPECTED_ROWS = 4096

Kind = Literal["logits", "probabilities", "confidence", "signal"]


class Run:
    """A run that `plmia design` made: which rows each model trains on, and the signals that scripts recorded.

    Model 0 is the target, the others are its references.

    Parameters
    ----------
    folder : path
        The folder of the run, or a copy of it on a machine that does not share it (see `merge`).
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._plan = RunPlan.read(self.folder)

    def __repr__(self) -> str:
        n_models, n_records = self.design.matrix.shape
        recorded = f"{len(self.recorded())} recorded"
        return f"Run({str(self.folder)!r}): {n_models} models, {n_records:,} records, {recorded}"

    @property
    def design(self) -> MembershipDesign:
        """Which model trains on which record."""
        return self._plan.design

    @property
    def labels(self) -> Labels | None:
        """Class of each record, if it is known from the data or from a recorded model."""
        store = self._store()
        return self._plan.labels if self._plan.labels is not None or store is None else store.labels

    @property
    def groups(self) -> Labels | None:
        """Which records belong together, if the design knows."""
        return self._plan.groups

    @property
    def models(self) -> range:
        """Numbers of all models; 0 is the target."""
        return range(self.design.n_models)

    @property
    def n_records(self) -> int:
        """Number of records."""
        return self.design.n_points

    def members(self, model: int) -> IntArray:
        """Row numbers of the records that a model trains on, in increasing order.

        They select rows of an array (``X[rows]``), a data frame (``frame.iloc[rows]``) or a torch data set
        (``Subset(dataset, rows)``).
        """
        return np.flatnonzero(self.design.matrix[self._number(model)])

    def recorded(self) -> list[int]:
        """Models that are recorded, in increasing order."""
        store = self._store()
        return [] if store is None else [model for model in store.finished() if model in self.models]

    def missing(self) -> list[int]:
        """Models that are still to be recorded, in increasing order."""
        recorded = set(self.recorded())
        return [model for model in self.models if model not in recorded]

    def record(
        self,
        model: int,
        *,
        logits: npt.ArrayLike | None = None,
        probabilities: npt.ArrayLike | None = None,
        confidence: npt.ArrayLike | None = None,
        signal: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
        replace: bool = False,
    ) -> None:
        """Record the answers of one trained model for all records, members and others; afterwards it is complete.

        Call it in any order and from several processes at once. The same answers again change nothing.

        Parameters
        ----------
        model : int
            Number of the model, as in `members`.
        logits, probabilities : float array [records, classes] or [records, views, classes]
            Class logits before the softmax, or class probabilities. Give exactly one of the four kinds of answers.
        confidence : float array [records] or [records, views]
            ``log p - log(1 - p)`` of the true label's probability p.
        signal : float array [records] or [records, views]
            Any number that is larger for members, such as minus the loss.
        labels : int array [records], optional
            Class of each record, 0 to C - 1, the same for all models; needed with logits and probabilities unless the
            run knows the labels from its data.
        replace : bool
            Whether to replace a model that is recorded with other answers; otherwise that is an error.
        """
        number = self._number(model)
        answers: dict[Kind, npt.ArrayLike | None]
        answers = {"logits": logits, "probabilities": probabilities, "confidence": confidence, "signal": signal}
        given = {kind: value for kind, value in answers.items() if value is not None}
        if len(given) != 1:
            raise SignalsError(
                f"{len(given)} kinds of answers were given for model {number}"
                f"{' (' + ', '.join(given) + ')' if given else ''}: give one of {', '.join(answers)}"
            )
        kind, values = next(iter(given.items()))
        classes = self._checked_labels(labels, number)
        trained = _trained(kind, _as_floats(kind, values), classes, self.design.matrix[number], number)
        store = self._open(trained.conf.shape[1], classes, "signal" if kind == "signal" else "confidence", number)
        store.append([number], trained.conf[None], [_provenance(trained)], replace=replace)

    def merge(self, other: str | Path | Run) -> list[int]:
        """Take in the models of a copy of this run, which another machine recorded; return those that were new here."""
        there = other if isinstance(other, Run) else Run(other)
        if there._plan.about != self._plan.about or not _continues(there.design, self.design):
            raise StoreError(f"{there.folder} is not a copy of {self.folder} (its design differs): give a copy")
        source = there._store()
        if source is None:
            raise StoreError(f"{there.folder} has no recorded model: give a copy in which models were recorded")
        missing, made = set(self.missing()), source.finished()
        found = [model for model in made if model in self.models]
        for model in found:
            store = self._open(len(source.layout.views), source.labels, source.kind, model)
            store.append([model], source.read([model]), [made[model]])
        return [model for model in found if model in missing]

    def _number(self, model: int) -> int:
        try:
            number = operator.index(model)
        except TypeError:
            number = -1
        if number not in self.models:
            raise StoreError(
                f"there is no model {model!r} in {self.folder}: give a whole number from 0 to {self.models[-1]}"
            )
        return number

    def _store(self) -> SignalStore | None:
        """The store, if a model was recorded; one that a killed process left empty fixes nothing."""
        path = self.folder / STORE
        store = SignalStore.open(path) if (path / "store.json").exists() else None
        return store if store is not None and store.finished() else None

    def _open(self, n_views: int, labels: Labels | None, signal: SignalKind, model: int) -> SignalStore:
        """Open the store for one more model, or make it; what the first model fixed must be the same."""
        existing = self._store()
        if existing is not None:
            problems = list(_misfits(existing, n_views, labels, signal))
            if problems:
                raise SignalsError(f"model {model} does not fit the models in {self.folder}: {'; '.join(problems)}")
        views = [f"view {view}" for view in range(n_views)]
        about = {**self._plan.about, **signal_about(signal)}
        store = SignalStore.create(self.folder / STORE, about, self.design, views, labels)
        if self.groups is not None:
            write_groups(self.folder / STORE, self.groups)
        return store

    def _checked_labels(self, given: npt.ArrayLike | None, model: int) -> Labels | None:
        """Labels as int64 [records]: those given, else those that the run knows."""
        known = self.labels
        if given is None:
            return known
        labels = _as_array(given)
        whole = labels.dtype.kind in "iub" or (labels.dtype.kind == "f" and np.array_equal(labels, np.floor(labels)))
        if labels.shape != (self.n_records,) or not whole or labels.min() < 0:
            remedy = "" if whole else "; np.unique(labels, return_inverse=True)[1] gives them"
            raise SignalsError(
                f"labels of model {model} have shape {labels.shape} and type {labels.dtype}: whole numbers from 0 "
                f"[{self.n_records}] are needed, the class of each record"
                f"{remedy if known is None else '; leave labels out, since the run knows them'}"
            )
        labels = labels.astype(np.int64)
        if known is not None and not np.array_equal(known, labels):
            record = int(np.flatnonzero(known != labels)[0])
            raise SignalsError(
                f"labels of model {model} differ from those of {self.folder} (record {record}: {labels[record]} "
                f"instead of {known[record]}): give all records in the order of the design, or leave labels out"
            )
        return labels


# Answers of one model ------------------------------------------------------------------------------------------------


def _as_array(values: Any) -> Array:
    """Array of any array-like, tensors of torch on any device included."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values  # NumPy has no such type
    return np.asarray(values)


def _as_floats(kind: Kind, values: npt.ArrayLike) -> Array:
    found = _as_array(values)
    if found.dtype.kind not in "fiu":
        raise SignalsError(f"{kind} have type {found.dtype}: give real numbers")
    return found


def _trained(kind: Kind, values: Array, labels: Labels | None, members: BoolArray, model: int) -> Trained:
    """Signals [records, views] of one model and, from class answers, its accuracies."""
    from plmia.signals.signals import look_like_probabilities
    from plmia.training.recipes.recipe import Trained

    by_class = kind in ("logits", "probabilities")
    axes = "[records, classes] or [records, views, classes]" if by_class else "[records] or [records, views]"
    given = values.shape
    if values.ndim == 1 + by_class:
        values = values[:, None]
    if values.ndim != 2 + by_class or len(values) != len(members) or 0 in values.shape:
        alone = len(values) == members.sum() < len(members)
        raise SignalsError(
            f"{kind} of model {model} have shape {given}: {axes} with {len(members)} records are needed, "
            + ("not only those that the model trained on" if alone else "one row per record of the design")
        )
    if by_class:
        return _from_classes(kind, values, labels, members, model)
    if kind == "confidence" and len(values) > 1 and look_like_probabilities(values):
        raise SignalsError(
            f"confidence of model {model} lies in [0, 1] like probabilities: give log p - log(1 - p), which "
            "plmia.logit_from_probabilities(p)[0] computes, or give it as signal"
        )
    with np.errstate(over="ignore"):  # the store refuses what is not finite
        return Trained(values.astype(np.float32), np.nan, np.nan)


def _from_classes(kind: Kind, values: Array, labels: Labels | None, members: BoolArray, model: int) -> Trained:
    from plmia.training.recipes.confidences import (
        Confidences,
        conf_from_logits,
        conf_from_probabilities,
        trained_from_answers,
    )

    if labels is None:
        raise SignalsError(f"{kind} of model {model} need labels: give labels=, the class of each record")
    n_classes = values.shape[2]
    if n_classes < 2 or labels.max() >= n_classes:
        raise SignalsError(
            f"{kind} of model {model} have {n_classes} columns, labels go up to {labels.max()}: give one column per "
            "class, at least 2"
        )
    if kind == "logits" and _are_probabilities(values):
        raise SignalsError(f"logits of model {model} are probabilities, their rows add up to 1: give probabilities=")
    views: list[Array] = [values[:, view] for view in range(values.shape[1])]
    if kind == "logits":
        found = [Confidences(conf_from_logits(view, labels)) for view in views]
    else:
        found = [conf_from_probabilities(view, labels) for view in views]
    return trained_from_answers(kind, views, found, labels, members)


def _are_probabilities(values: Array) -> bool:
    block = np.asarray(values[:_INSPECTED_ROWS], dtype=np.float64)
    inside = ((block >= 0) & (block <= 1)).all()
    return bool(inside and (np.abs(block.sum(axis=-1) - 1) < _SUM_TOLERANCE).all())


def _provenance(trained: Trained) -> dict[str, Any]:
    made = TrainingRecord.of_given(trained)
    return replace(made, given=None, versions=versions()).to_json()


def _misfits(store: SignalStore, n_views: int, labels: Labels | None, signal: SignalKind) -> Iterator[str]:
    """Describe how the answers of a model differ in form from those of the models of a store."""
    known = len(store.layout.views)
    if known != n_views:
        yield f"it has {n_views} views instead of {known}; query all models with the same views"
    if store.kind != signal:
        yield f"it gives a {signal} per record instead of a {store.kind}; record the same kind for all models"
    if (labels is None) != (store.labels is None):
        yield "labels must be given with all models or with none"


# The design ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunPlan:
    """The contents of design.npz."""

    design: MembershipDesign
    about: Mapping[str, Any]  # everything that determines the design but the number of models, which may grow
    labels: Labels | None = None
    groups: Labels | None = None
    class_names: tuple[str, ...] | None = None
    notes: tuple[Note, ...] = ()  # on the data, for the results

    def __post_init__(self) -> None:
        object.__setattr__(self, "about", {**self.about, **groups_about(self.groups)})

    @classmethod
    def read(cls, folder: Path) -> RunPlan:
        """Read and check the design of a run."""
        path = folder / DESIGN_FILE
        if not is_file(path):
            what = "is an audit of plmia" if exists(folder / STORE) else "has no design.npz"
            raise StoreError(f"{folder} is not a run ({what}): make one with plmia design (folder, -o)")
        arrays = load_npz(path, _ARRAYS, "a design", StoreError)
        try:
            packed, n_points = arrays["membership"], whole_number(arrays["n_points"])
            about, notes = (json.loads(str(arrays[name])) for name in ("about", "notes"))
            if n_points is None or packed.dtype != np.uint8 or packed.shape[1] != -(-n_points // 8):
                raise ValueError("membership and n_points do not fit together")
            design = MembershipDesign(unpack_bits(packed, n_points))
            labels, groups = (arrays.get(name) for name in ("labels", "groups"))
            for array in (labels, groups):
                if array is not None and (array.dtype != np.int64 or array.shape != (n_points,)):
                    raise ValueError("labels or groups do not fit the records")
            names = tuple(map(str, arrays["class_names"])) if "class_names" in arrays else None
            plan = cls(design, about, labels, groups, names, tuple(Note(**note) for note in notes))
            if plan.about != about:
                raise ValueError("the digest of the groups differs")
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise StoreError(f"{path} is damaged ({error}): copy it again, or make the run again") from error
        return plan

    def write(self, folder: Path) -> Run:
        """Write the design into a folder, which becomes a run; an existing run of the same plan may get more models."""
        if is_file(folder / DESIGN_FILE):
            existing = RunPlan.read(folder)
            self._require_continuation(existing, folder)
            if existing.design.n_models >= self.design.n_models:
                return Run(folder)
        elif is_folder(folder) and not all(is_temporary(entry.name) for entry in folder.iterdir()):
            raise StoreError(f"{folder} exists and is not a run: choose a folder that is empty or does not exist yet")
        arrays = {
            "membership": np.packbits(self.design.matrix, axis=1),
            "n_points": np.array(self.design.n_points),
            "labels": self.labels,
            "groups": self.groups,
            "class_names": None if self.class_names is None else np.array(self.class_names),
            "about": np.array(json.dumps(self.about, sort_keys=True)),
            "notes": np.array(json.dumps([note.to_json() for note in self.notes])),
        }
        with writing(str(folder)):
            make_private(folder)
            save_npz(folder / DESIGN_FILE, {name: array for name, array in arrays.items() if array is not None})
        if (folder / STORE / "store.json").exists():
            SignalStore.open(folder / STORE).extend(self.design)
        return Run(folder)

    def _require_continuation(self, existing: RunPlan, folder: Path) -> None:
        changed = [
            name for name in sorted({*existing.about, *self.about}) if existing.about.get(name) != self.about.get(name)
        ]
        if not changed and not _continues(existing.design, self.design):
            changed = ["design"]
        if changed:
            others = ", ".join(f"other {name}" for name in changed)
            raise StoreError(
                f"{folder} holds another run ({others}) and was not changed: choose another folder, or the settings it "
                "was made with"
            )


def _continues(one: MembershipDesign, other: MembershipDesign) -> bool:
    """Whether two designs agree in the models that both have."""
    common = min(one.n_models, other.n_models)
    return np.array_equal(one.matrix[:common], other.matrix[:common])
