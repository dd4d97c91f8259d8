"""Importers: signals from folders and files that other tools wrote.

To add one, write a class with the members of `Importer` and add it to the table `IMPORTERS`; `plmia import` and
`import_signals` then know it. An importer looks at a folder or file and returns `FoundModels`: which models there are,
where the outputs of each lie, and what they are (logits, scores or probabilities). The conversion into a signals
file is the same for all importers; it holds one model in memory at a time and always writes the same bytes.

Files are untrusted. They are mapped, not read, and nothing is unpickled.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, cast

import numpy as np

from plmia.data.arrays import Array, BoolArray, FloatArray32, Labels
from plmia.data.designs import MembershipDesign
from plmia.data.files import make_private, remove_empty, replacing
from plmia.data.npz import NAME_ARRAYS, load_npy, npz_entry, true_as_one
from plmia.errors import OutputError, SignalsError, shown
from plmia.numerics import logit_from_logits, logit_from_probabilities
from plmia.signals.long_table import Columns, read_long_table

Kind = Literal["logits", "scores", "probabilities"]
Tick: TypeAlias = Callable[[int, str], None]

# Values that are converted at a time: 32 MB as float64.
_BLOCK = 1 << 22
# Rows that are inspected to tell logits from probabilities.
_INSPECTED_ROWS = 4096
# Error of the sum of a softmax that was stored as float16.
_SUM_TOLERANCE = 5e-3
# LiRA's code names a file by its epoch, RMIA's by the epoch and the number of augmentations.
_EPOCH = re.compile(r"(\d+)(?:_(\d+))?\.npy")


class Importer(Protocol):
    """One kind of folder or file that plmia can import.

    `find` may rely on the existence of the folder or file. It must map npy files (`load_npy` with mode "r"), not read
    them, raise `SignalsError` with the file and the remedy if something is missing or does not fit, and never leave out
    a model silently. A format that cannot be mapped is read in pieces; only values of the true labels are kept.
    `FoundModels` and `ModelOutput` check shapes and types. An OSError may pass through.
    """

    @property
    def name(self) -> str:
        """Name in the command: ``plmia import NAME``."""

    @property
    def files(self) -> str:
        """Files that the folder must hold, or contents of the file, for the command's help."""

    @property
    def takes_file(self) -> bool:
        """Whether one file is imported instead of a folder."""
        return False

    def find(self, folder: Path) -> FoundModels:
        """Find the models in a folder or file; only headers, membership and labels of npy files are read."""


@dataclass(frozen=True, eq=False)
class ModelOutput:
    """Outputs of one model, and the records on which it was trained."""

    name: str
    path: Path  # the file, for error messages
    kind: Kind  # class logits, logit-scaled true-label confidences (scores), or true-label probabilities
    values: Array  # mapped from the file; floats [points, views, classes] of logits, otherwise [points, views]
    members: BoolArray  # [points], True where the model trained on the point

    def __post_init__(self) -> None:
        shape = self.values.shape
        if self.values.dtype.kind != "f" or 0 in shape or len(shape) != 2 + (self.kind == "logits"):
            axes = "[records, views, classes]" if self.kind == "logits" else "[records, views]"
            raise SignalsError(
                f"{self.path} has shape {shape} and type {self.values.dtype} for {self.name}: save {self.kind} as "
                f"floats {axes}, with no empty axis"
            )
        if self.kind == "logits" and shape[2] < 2:
            raise SignalsError(f"{self.path} has logits of 1 class for {self.name}: 2 are needed on the last axis")
        if len(self.members) != len(self.values):
            raise SignalsError(
                f"{self.path} has {len(self.values)} records for {self.name}, its membership {len(self.members)}: "
                "both need the same records in the same order"
            )

    @property
    def n_classes(self) -> int | None:
        """Number of classes of the logits; None without logits."""
        return int(self.values.shape[2]) if self.kind == "logits" else None


@dataclass(frozen=True, eq=False)
class FoundModels:
    """The models in a folder, checked to fit together."""

    outputs: tuple[ModelOutput, ...]  # in the order in which they are written
    labels: Labels | None = None  # class of each point; required with logits
    notes: tuple[str, ...] = ()  # remarks for the user
    # Names of what plmia numbers, by the name of the array that keeps them; see `plmia.data.npz.NAME_ARRAYS`.
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first = self.outputs[0]
        for output in self.outputs:
            if output.values.shape[:2] != first.values.shape[:2] or output.n_classes not in (None, self.n_classes):
                raise SignalsError(
                    f"{output.path} has shape {output.values.shape}, {first.path} {first.values.shape}: all models "
                    f"need the same records, views and classes; query {output.name} again, or leave it out"
                )
        points, classes = len(first.values), self.n_classes
        if classes is not None and self.labels is None:
            raise SignalsError(f"{first.path} has logits, but there are no labels: add the true class of each record")
        if self.labels is not None and len(self.labels) != points:
            raise SignalsError(f"there are {len(self.labels)} labels and {points} records: give one label per record")
        if classes is not None and self.labels is not None and self.labels.max() >= classes:
            point = int(np.argmax(self.labels >= classes))
            raise SignalsError(
                f"record {point} has label {self.labels[point]}, but {first.path} has {classes} classes, 0 to "
                f"{classes - 1}: check that the labels belong to these records"
            )

    @property
    def n_classes(self) -> int | None:
        """Number of classes of the logits; None without logits."""
        return next((c for c in (output.n_classes for output in self.outputs) if c is not None), None)


# The importers -------------------------------------------------------------------------------------------------------


class Lira(Importer):
    """Folders of the published code of LiRA, and of the first version of RMIA's."""

    name = "lira"
    files = "experiment-*/keep.npy, experiment-*/logits/ or scores/, and y_train.npy"

    def find(self, folder: Path) -> FoundModels:
        """Find the folders experiment-*; of several epochs the last is taken."""
        runs = sorted((p for p in folder.iterdir() if p.name.startswith("experiment") and p.is_dir()), key=_in_order)
        if not runs:
            raise SignalsError(
                f"{folder} holds no folders experiment-*: give the folder that holds them (LiRA's own --logdir); for "
                "folders 0, 1, 2 of its version for PyTorch, import lira-pytorch"
            )
        labels = _labels_near(folder)
        files = [(run, *_last_epoch(run, labels is not None)) for run in runs]
        found = _experiments(files, labels)
        epochs = [int(re.split(r"\D", file.name)[0]) for _, _, file in files]
        if len(set(epochs)) == 1:
            return found
        uneven = (
            f"The last epochs of the models are {min(epochs)} to {max(epochs)}, but all models must be trained alike: "
            "leave out those that stopped early."
        )
        return replace(found, notes=(*found.notes, uneven))


class LiraPytorch(Importer):
    """Folders of LiRA's version for PyTorch, one per model."""

    name = "lira-pytorch"
    files = "0/keep.npy, 0/logits.npy or 0/scores.npy, 1/keep.npy, ..., and labels.npy"

    def find(self, folder: Path) -> FoundModels:
        """Find the folders of single models, which may have any name; of logits and scores, logits are taken."""
        runs = sorted((p for p in folder.iterdir() if _is_experiment(p)), key=_in_order)
        if not runs:
            raise SignalsError(
                f"{folder} holds no folders with keep.npy and logits.npy or scores.npy: give the folder that holds "
                "them (its own --savedir)"
            )
        labels = _labels_near(folder)
        return _experiments([(run, *_logits_or_scores(run, labels is not None)) for run in runs], labels)


class PrivacyMeter(Importer):
    """Folders of Privacy Meter with the algorithm RMIA."""

    name = "privacy-meter"
    files = "signals/rmia_signals.npy and models/memberships.npy"

    def find(self, folder: Path) -> FoundModels:
        """Find the models in the two arrays, [records, models] and [models, records]."""
        file = folder / "signals" / "rmia_signals.npy"
        if not file.exists() and (folder / "signals" / "loss_signals.npy").exists():
            raise SignalsError(
                f"{folder} has only signals/loss_signals.npy, which holds losses or probabilities, depending on the "
                "version of Privacy Meter: run it with the algorithm RMIA, or save exp(-loss) as probabilities.npy and "
                "import arrays"
            )
        signals, members = _mapped(file, "this run"), _membership(folder / "models" / "memberships.npy", "this run", 2)
        if signals.ndim != 2 or signals.shape[0] != members.shape[1] or signals.shape[1] > len(members):
            raise SignalsError(
                f"{file} has shape {signals.shape}, memberships.npy {members.shape}: [records, models] and [models, "
                "records] must agree. After an audit of fewer records (data_size) they cannot be matched, so audit all"
            )
        notes, n_signals = [], signals.shape[1]
        if n_signals < len(members):
            notes.append(f"{n_signals} of {len(members)} models have signals: the first ones, as they were queried.")
        models = enumerate(signals.T)
        outputs = tuple(ModelOutput(f"model {m}", file, "probabilities", s[:, None], members[m]) for m, s in models)
        labels = folder / "labels.npy"
        return FoundModels(outputs, _labels(labels) if labels.exists() else None, tuple(notes))


class Rmia(Importer):
    """Folders of the code of RMIA's authors: Privacy Meter, or the first version, which writes files as LiRA does."""

    name = "rmia"
    files = "the same as lira, from RMIA's published code, or the same as privacy-meter"

    def find(self, folder: Path) -> FoundModels:
        """Find the models as `PrivacyMeter` or `Lira` does, by the files in the folder."""
        later = (folder / "models" / "memberships.npy").exists()
        return PrivacyMeter().find(folder) if later else Lira().find(folder)


class Arrays(Importer):
    """Plain arrays, one file each for all models."""

    name = "arrays"
    files = (
        "logits.npy [models, records, (views,) classes] or, of the true labels, probabilities.npy "
        "[models, records(, views)]; membership.npy; labels.npy"
    )

    def find(self, folder: Path) -> FoundModels:
        """Find the models in logits.npy or probabilities.npy, membership.npy and labels.npy."""
        kind: Kind = "logits" if (folder / "logits.npy").exists() else "probabilities"
        file, labels = folder / f"{kind}.npy", folder / "labels.npy"
        if not file.exists():
            raise SignalsError(f"{folder} holds neither logits.npy nor probabilities.npy: save one of them there")
        if kind == "logits" and not labels.exists():
            raise SignalsError(f"{folder} holds logits.npy, but no labels.npy: save the true classes as [records]")
        values, members = _mapped(file, "all models"), _membership(folder / "membership.npy", "all models", 2)
        n_axes = 2 + (kind == "logits")
        if values.ndim not in (n_axes, n_axes + 1) or values.shape[:2] != members.shape:
            axes = "[models, records, (views,) classes]" if kind == "logits" else "[models, records(, views)]"
            raise SignalsError(
                f"{file} has shape {values.shape}, membership.npy {members.shape}: save {axes} and [models, records] "
                "of the same models and records"
            )
        if kind == "probabilities" and values.ndim == 3 and _is_softmax(values[0]):
            raise SignalsError(
                f"{file} holds probabilities of all classes: save those of the true labels [models, records], or their "
                "numpy.log as logits.npy"
            )
        if values.ndim == n_axes:
            values = values[:, :, None]
        outputs = tuple(ModelOutput(f"model {m}", file, kind, v, members[m]) for m, v in enumerate(values))
        return FoundModels(outputs, _labels(labels) if labels.exists() else None)


@dataclass(frozen=True)
class LongTable(Importer):
    """One CSV or Parquet file with a row per model, record and view; see `plmia.signals.long_table`."""

    columns: Columns = field(default_factory=Columns)

    name = "table"
    files = (
        "one CSV or Parquet file with the columns model, record, view (optional), member and signal (logit-scaled "
        "confidence of the true label), and one row per model, record and view"
    )
    takes_file = True

    def find(self, folder: Path) -> FoundModels:
        """Read the table; records and models that are not called 0, 1, 2, ... keep their names."""
        table = read_long_table(folder, self.columns)
        models = zip(table.models, table.signals, table.members, strict=True)
        outputs = tuple(ModelOutput(f"model {m!r}", folder, "scores", s, inside) for m, s, inside in models)
        all_names = zip(NAME_ARRAYS, (table.models, table.records, table.views), strict=True)
        names = {array: own for array, own in all_names if own != tuple(map(str, range(len(own)))) and own != ("",)}
        notes = (
            [f"Model 0, the target of plmia score, is {shown(table.models[0])!r}."] if "model_names" in names else []
        )
        if "texts" in names:
            notes.append(
                "Names of records are kept: plmia report shows them if it gets this file as data and "
                "show_records (--show-records)."
            )
        return FoundModels(outputs, None, tuple(notes), names)


IMPORTERS: Mapping[str, Importer] = {
    i.name: i for i in (Lira(), LiraPytorch(), Rmia(), PrivacyMeter(), Arrays(), LongTable())
}


# Reading -------------------------------------------------------------------------------------------------------------


def find_models(kind: str | Importer, folder: Path) -> FoundModels:
    """Find the models in a folder or file with an importer, or the one called ``kind``."""
    if isinstance(kind, str) and kind not in IMPORTERS:
        raise SignalsError(f"there is no importer {kind!r}: choose from {', '.join(IMPORTERS)}")
    importer = IMPORTERS[kind] if isinstance(kind, str) else kind
    # Path's own checks would raise on a name that is too long.
    exists = os.path.isfile(folder) if importer.takes_file else os.path.isdir(folder)  # noqa: PTH112, PTH113
    if not exists:
        what = "file" if importer.takes_file else "folder"
        raise SignalsError(f"there is no {what} {folder}: give the one that the other tool wrote")
    try:
        return importer.find(folder)
    except OSError as error:
        raise SignalsError(
            f"{folder} cannot be read ({error.strerror or error}): check that you may read it and all files in it"
        ) from error


def _in_order(path: Path) -> tuple[list[int], str]:
    """Sort experiment-10_16 behind experiment-2_16."""
    return [int(number) for number in re.findall(r"\d+", path.name)], path.name


def _labels_near(folder: Path) -> Labels | None:
    """Labels in a folder or the one above, if there are any."""
    places = [place / name for place in (folder, folder.resolve().parent) for name in ("labels.npy", "y_train.npy")]
    return next((_labels(place) for place in places if place.exists()), None)


def _experiments(files: Sequence[tuple[Path, Kind, Path]], labels: Labels | None) -> FoundModels:
    """Models with a folder each, from these folders and the kind and file of their outputs."""
    outputs, longest = [], 0
    for run, kind, file in files:
        values, members = _mapped(file, run.name), _membership(run / "keep.npy", run.name, 1)
        if kind == "logits" and values.ndim == 4 and values.shape[1] == 1:
            values = values[:, 0]
        elif values.ndim == (2 if kind == "logits" else 1):
            values = values[:, None]
        # As in LiRA's own code, queries may cover only the first points of the training pool.
        queried = values.shape[0] if values.ndim else 0
        outputs.append(ModelOutput(run.name, file, kind, values, members[:queried]))
        longest = max(longest, len(members))
    points = len(outputs[0].values)
    notes = [f"keep.npy covers {longest:,} records, {points:,} were queried: the first {points:,} are used."]
    return FoundModels(
        tuple(outputs), None if labels is None else labels[:points], tuple(notes if longest > points else ())
    )


def _is_experiment(path: Path) -> bool:
    """Whether a folder holds a model of LiRA's version for PyTorch, complete or not."""
    return any((path / name).exists() for name in ("keep.npy", "logits.npy", "scores.npy", "model.pt"))


def _logits_or_scores(run: Path, have_labels: bool) -> tuple[Kind, Path]:
    """Outputs of one model of LiRA's version for PyTorch: logits if there are labels, otherwise scores."""
    logits, scores = run / "logits.npy", run / "scores.npy"
    if have_labels and logits.exists():
        return "logits", logits
    if not scores.exists() and logits.exists():
        raise SignalsError(
            f"{run} has logits.npy, but there is no labels.npy in {run.parent} or above: save the true classes of all "
            "records there, or run its score.py"
        )
    return "scores", scores


def _last_epoch(run: Path, have_labels: bool) -> tuple[Kind, Path]:
    """Newest file of a LiRA experiment: of logits if there are labels, otherwise of scores."""
    kinds: tuple[Kind, ...] = ("logits", "scores") if have_labels else ("scores",)
    for kind in kinds:
        found = [(m, file) for file in (run / kind).glob("*.npy") if (m := _EPOCH.fullmatch(file.name))]
        if found:
            return kind, max(found, key=lambda item: (int(item[0][1]), int(item[0][2] or 0)))[1]
    if not have_labels and any((run / "logits").glob("*.npy")):
        raise SignalsError(
            f"{run.name} has logits, but there is no labels.npy or y_train.npy in {run.parent} or above: copy it there"
        )
    raise SignalsError(
        f"{run.name} has no file such as logits/0000000100.npy or scores/0000000100.npy in {run}: query that model "
        "again, or move its folder away"
    )


def _mapped(path: Path, of: str) -> Array:
    return load_npy(path, SignalsError, of, "r")


def _membership(path: Path, of: str, ndim: int) -> BoolArray:
    """Membership as booleans, from booleans or zeros and ones."""
    array = _mapped(path, of)
    axes = "[records]" if ndim == 1 else "[models, records]"
    if array.ndim != ndim or 0 in array.shape or array.dtype.kind not in "bui":
        raise SignalsError(
            f"{path} of {of} has shape {array.shape} and type {array.dtype}: save booleans {axes}, True where the "
            "model trained on the record"
        )
    if array.dtype != np.bool_ and not ((array == 0) | (array == 1)).all():
        raise SignalsError(f"{path} of {of} holds other values than 0 and 1: save booleans {axes}")
    return np.ascontiguousarray(true_as_one(array), dtype=np.bool_)


def _labels(path: Path) -> Labels:
    array = _mapped(path, "the labels")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or not array.size or array.dtype.kind not in "ui":
        raise SignalsError(
            f"{path} has shape {array.shape} and type {array.dtype}: save the class of each record as "
            "integers [records]"
        )
    labels = array.astype(np.int64)
    if labels.min() < 0:
        raise SignalsError(f"{path} holds {labels.min()} at record {labels.argmin()}: labels must be 0 or more")
    return labels


def _is_softmax(values: Array) -> bool:
    """Whether the inspected rows along the last axis are probabilities that sum to 1."""
    block = np.asarray(values[:_INSPECTED_ROWS], dtype=np.float64)
    if block.shape[-1] < 2 or not ((block >= 0) & (block <= 1)).all():
        return False
    return bool((np.abs(block.sum(axis=-1) - 1) < _SUM_TOLERANCE).all())


# Converting and writing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Imported:
    """Contents of a signals file that was written: sizes, number of complementary pairs, and remarks for the user."""

    path: Path
    n_models: int
    n_points: int
    n_views: int
    n_classes: int | None
    n_pairs: int
    notes: tuple[str, ...]


def write_signals(found: FoundModels, path: Path, tick: Tick = lambda _steps, _name: None) -> Imported:
    """Convert the models that were found into a signals file, which is complete or absent; it gets the suffix .npz.

    ``tick`` is called with 1 and the name of each model that is done.
    """
    if not path.name:  # "/" or "."
        raise OutputError(f"{path} is a folder: give the name of a file that ends in .npz")
    path = path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")
    made: list[Path] = []
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder: give the name of a file that ends in .npz")
        made = make_private(path.parent)
        with replacing(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
            return _write_arrays(archive, path, found, tick)
    except BaseException as error:
        remove_empty(made)
        if not isinstance(error, OSError):
            raise
        raise OutputError(
            f"{path} cannot be written ({error.strerror or error}): make room, or choose another file"
        ) from error


def _write_arrays(archive: zipfile.ZipFile, path: Path, found: FoundModels, tick: Tick) -> Imported:
    outputs, labels = found.outputs, found.labels
    n_points, n_views = outputs[0].values.shape[:2]
    shape = (len(outputs), n_points, n_views)
    n_clipped = 0
    with npz_entry(archive, "signals") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for output in outputs:
            rows, clipped = _confidences(output, labels)
            file.write(rows.astype("<f4", copy=False).data.cast("B"))
            n_clipped += clipped
            tick(1, output.name)
    design = MembershipDesign(np.stack([output.members for output in outputs]))
    names = ((name, np.array(texts)) for name, texts in found.names.items())
    for name, array in (("membership", design.matrix), ("labels", labels), *names):
        if array is not None:
            with npz_entry(archive, name) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    clipping = (
        f"{n_clipped:,} of {math.prod(shape):,} probabilities are 0 or 1 to the last digit of "
        f"{outputs[0].values.dtype}, so they are tied. Logits would distinguish them."
    )
    notes = (*found.notes, clipping) if n_clipped else found.notes
    n_classes = found.n_classes if labels is None or found.n_classes else len(np.unique(labels))
    return Imported(path, *shape, n_classes, _count_pairs(design), notes)


def _count_pairs(design: MembershipDesign) -> int:
    """Count complementary pairs: among equal or complementary rows, the first point tells which is which."""
    firsts = [design.matrix[models, 0] for models in design.splits()]
    return sum(int(min(first.sum(), (~first).sum())) for first in firsts)


def _confidences(output: ModelOutput, labels: Labels | None) -> tuple[FloatArray32, int]:
    """Logit-scaled confidences of one model, float32 [points, views], and how many of them were clipped."""
    values, n_clipped = output.values, 0
    out = np.empty(values.shape[:2], dtype=np.float32)
    step = max(1, _BLOCK // math.prod(values.shape[1:]))
    for start in range(0, len(values), step):
        part = slice(start, start + step)
        block = np.asarray(values[part], dtype=np.float64)
        good = (block >= 0) & (block <= 1) if output.kind == "probabilities" else np.isfinite(block)
        _require(output, block, good, start)
        if output.kind == "logits":
            if start == 0 and _is_softmax(block):
                raise SignalsError(
                    f"{output.path} holds probabilities, not logits, for {output.name}: save their numpy.log, whose "
                    "softmax they are"
                )
            confidence = logit_from_logits(block, cast("Labels", labels)[part, None])
        elif output.kind == "probabilities":
            confidence, clipped = logit_from_probabilities(block, values.dtype)
            n_clipped += clipped
        else:
            confidence = block
        with np.errstate(over="ignore"):
            out[part] = confidence
        _require(output, confidence, np.isfinite(out[part]), start)
        del block
        _release_pages(values)
    return out, n_clipped


def _release_pages(values: Array) -> None:
    """Free the memory of a mapped file, which would add up over all models; it is read again if needed."""
    base: object = values
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):  # not on every system
        base.madvise(mmap.MADV_DONTNEED)


def _require(output: ModelOutput, block: Array, good: BoolArray, start: int) -> None:
    """Require that all values are good; ``start`` is the first point of the block."""
    if good.all():
        return
    where = np.argwhere(~good)[0]
    place = [int(where[0]) + start, *where[1:]]
    names = ", ".join(f"{axis} {i}" for axis, i in zip(("record", "view", "class"), place, strict=False))
    limit = "lie in [0, 1]" if output.kind == "probabilities" else "be a finite number of at most 3e38"
    raise SignalsError(
        f"{output.path} of {output.name} holds {block[tuple(where)]} at {names}, but {output.kind} must {limit}: query "
        "that model again, or leave it out"
    )
