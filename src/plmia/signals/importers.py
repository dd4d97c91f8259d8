"""How other tools lay out on disk what models answered; files are untrusted, and mapped rather than read.

A format is a function that looks at a folder and returns a `Finding`: which models there are, where each one's answers
lie, and what they are. A new one is such a function and a line in `FORMATS`.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from plmia.data.designs import MembershipDesign
from plmia.data.files import replacing
from plmia.errors import OutputError, SignalsError
from plmia.numerics import logit_from_logits, logit_from_probabilities

Array = npt.NDArray[Any]
Kind = Literal["logits", "scores", "probabilities"]

# Rows that are looked at to tell logits from probabilities.
_LOOKED_AT = 4096
# Rows that sum to 1 within what float16 leaves of a softmax are one.
_SUM_TOLERANCE = 5e-3
# LiRA's code names a file by its epoch, RMIA's by the epoch and the number of augmentations.
_EPOCH = re.compile(r"(\d+)(?:_(\d+))?\.npy")


@dataclass(frozen=True, eq=False)
class ModelOutput:
    """What one model answered, and on which points it was trained.

    Parameters
    ----------
    name : str
        What to call the model.
    path : Path
        The file, which errors name.
    kind : {"logits", "scores", "probabilities"}
        Class logits, logit-scaled true-label confidences, or true-label probabilities.
    values : float array [points, views, classes] of logits, else [points, views]
        The answers, mapped from the file.
    members : bool array [points]
        True where the model trained on the point.
    """

    name: str
    path: Path
    kind: Kind
    values: Array
    members: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        shape = self.values.shape
        if self.values.dtype.kind != "f" or 0 in shape or len(shape) != 2 + (self.kind == "logits"):
            axes = "[points, views, classes]" if self.kind == "logits" else "[points, views]"
            raise SignalsError(
                f"{self.path} has shape {shape} and type {self.values.dtype} for {self.name}: {self.kind} are floats "
                f"{axes}, none of them empty; save them so"
            )
        if self.kind == "logits" and shape[2] < 2:
            raise SignalsError(f"{self.path} has logits of 1 class for {self.name}: 2 are needed on the last axis")
        if len(self.members) != len(self.values):
            raise SignalsError(
                f"{self.path} has {len(self.values)} points for {self.name}, its membership {len(self.members)}: "
                "both need the same points in the same order"
            )


@dataclass(frozen=True, eq=False)
class Finding:
    """What a folder holds, checked to fit together.

    Parameters
    ----------
    outputs : tuple of ModelOutput
        The models, in the order in which they are written.
    labels : int array [points], optional
        Class of each point; logits need them.
    notes : tuple of str
        What the user should know.
    """

    outputs: tuple[ModelOutput, ...]
    labels: npt.NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        first = self.outputs[0]
        for output in self.outputs:
            if output.values.shape[:2] != first.values.shape[:2] or _classes(output) not in (None, self.n_classes):
                raise SignalsError(
                    f"{output.path} has shape {output.values.shape}, {first.path} {first.values.shape}: all models "
                    f"need the same points, views and classes; query {output.name} again, or leave it out"
                )
        points, classes = len(first.values), self.n_classes
        if classes is not None and self.labels is None:
            raise SignalsError(f"{first.path} has logits, but there are no labels: add the true class of each point")
        if self.labels is not None and len(self.labels) != points:
            raise SignalsError(f"there are {len(self.labels)} labels and {points} points: one label a point is needed")
        if classes is not None and self.labels is not None and self.labels.max() >= classes:
            point = int(np.argmax(self.labels >= classes))
            raise SignalsError(
                f"point {point} has label {self.labels[point]}, but {first.path} has {classes} classes: labels must be "
                f"0 to {classes - 1}; check that they belong to these points"
            )

    @property
    def n_classes(self) -> int | None:
        """How many classes the logits have; None without logits."""
        return next((c for c in map(_classes, self.outputs) if c is not None), None)


Reader = Callable[[Path], Finding]


def look_into(kind: str, folder: Path) -> Finding:
    """Find the models in a folder and check that their files fit together; reads no more than headers and labels."""
    if kind not in FORMATS:
        raise SignalsError(f"there is no format {kind!r}: take {', '.join(FORMATS)}")
    # Path's own check would raise on a name that is too long.
    if not os.path.isdir(folder):  # noqa: PTH112
        raise SignalsError(f"there is no folder {folder}: give the one that the other tool wrote to")
    try:
        return FORMATS[kind](folder)
    except OSError as error:
        raise SignalsError(
            f"{folder} cannot be read ({error.strerror or error}): see that you may read it and all that is in it"
        ) from error


# Formats -------------------------------------------------------------------------------------------------------------


def read_lira(folder: Path) -> Finding:
    """Folders experiment-* with keep.npy and logits/ or scores/, as LiRA's and RMIA's published code leaves them."""
    runs = sorted((p for p in folder.iterdir() if p.name.startswith("experiment") and p.is_dir()), key=_in_order)
    if not runs:
        raise SignalsError(f"{folder} holds no folders experiment-*: give the one that holds them, LiRA's --logdir")
    names = [place / name for place in (folder, folder.resolve().parent) for name in ("labels.npy", "y_train.npy")]
    labels = next((_labels(name) for name in names if name.exists()), None)
    outputs, epochs, longest = [], set(), 0
    for run in runs:
        kind, file = _last_epoch(run, labels is not None)
        values, members = _mapped(file, run.name), _bools(run / "keep.npy", run.name, 1)
        if kind == "logits" and values.ndim == 4 and values.shape[1] == 1:
            values = values[:, 0]
        elif values.ndim == (2 if kind == "logits" else 1):
            values = values[:, None]
        # Like LiRA's own code: queries may stop at the first so many points of those that could be trained on.
        queried = values.shape[0] if values.ndim else 0
        outputs.append(ModelOutput(run.name, file, kind, values, members[:queried]))
        epochs.add(int(re.split(r"\D", file.name)[0]))
        longest = max(longest, len(members))
    points, notes = len(outputs[0].values), []
    if longest > points:
        notes.append(f"keep.npy tells of {longest:,} points, {points:,} were queried: the first {points:,} are taken.")
    if len(epochs) > 1:
        notes.append(
            f"The last epochs of the models are {min(epochs)} to {max(epochs)}: models must be trained alike, so leave "
            "out those that stopped early."
        )
    return Finding(tuple(outputs), None if labels is None else labels[:points], tuple(notes))


def read_privacy_meter(folder: Path) -> Finding:
    """Files signals/rmia_signals.npy [points, models] and models/memberships.npy, as Privacy Meter leaves them."""
    file = folder / "signals" / "rmia_signals.npy"
    if not file.exists() and (folder / "signals" / "loss_signals.npy").exists():
        raise SignalsError(
            f"{folder} has signals/loss_signals.npy only, which holds losses or probabilities, by the version of "
            "Privacy Meter: run it with the algorithm RMIA, or save exp(-loss) as probabilities.npy and import arrays"
        )
    signals, members = _mapped(file, "this run"), _bools(folder / "models" / "memberships.npy", "this run", 2)
    if signals.ndim != 2 or signals.shape[0] != members.shape[1] or signals.shape[1] > len(members):
        raise SignalsError(
            f"{file} has shape {signals.shape}, memberships.npy {members.shape}: [points, models] and [models, points] "
            "of the same are needed; after an audit of fewer points (data_size) nothing tells which they were, so "
            "audit all"
        )
    notes = []
    if signals.shape[1] < len(members):
        notes.append(f"{signals.shape[1]} of {len(members)} models have signals: the first ones, as they were queried.")
    models = enumerate(signals.T)
    outputs = tuple(ModelOutput(f"model {m}", file, "probabilities", s[:, None], members[m]) for m, s in models)
    labels = folder / "labels.npy"
    return Finding(outputs, _labels(labels) if labels.exists() else None, tuple(notes))


def read_rmia(folder: Path) -> Finding:
    """Read what RMIA's authors' code leaves: its first version as LiRA's does, Privacy Meter in files of its own."""
    return (read_privacy_meter if (folder / "models" / "memberships.npy").exists() else read_lira)(folder)


def read_arrays(folder: Path) -> Finding:
    """Files logits.npy or probabilities.npy, membership.npy and labels.npy, one array each for all models."""
    kind: Kind = "logits" if (folder / "logits.npy").exists() else "probabilities"
    file, labels = folder / f"{kind}.npy", folder / "labels.npy"
    if not file.exists():
        raise SignalsError(f"{folder} holds neither logits.npy nor probabilities.npy: save one of them there")
    if kind == "logits" and not labels.exists():
        raise SignalsError(f"{folder} holds logits.npy, but no labels.npy: save the true classes, integers [points]")
    values, members = _mapped(file, "all models"), _bools(folder / "membership.npy", "all models", 2)
    least = 2 + (kind == "logits")
    if values.ndim not in (least, least + 1) or values.shape[:2] != members.shape:
        axes = "[models, points, (views,) classes]" if kind == "logits" else "[models, points] or [.., views]"
        raise SignalsError(
            f"{file} has shape {values.shape}, membership.npy {members.shape}: {axes} and [models, points] of the same "
            "models and points are needed"
        )
    if kind == "probabilities" and values.ndim == 3 and is_softmax(values[0]):
        raise SignalsError(
            f"{file} holds probabilities of all classes: save those of the true labels [models, points], or their "
            "numpy.log as logits.npy"
        )
    if values.ndim == least:
        values = values[:, :, None]
    outputs = tuple(ModelOutput(f"model {m}", file, kind, v, members[m]) for m, v in enumerate(values))
    return Finding(outputs, _labels(labels) if labels.exists() else None)


FORMATS: Mapping[str, Reader] = {
    "lira": read_lira,
    "rmia": read_rmia,
    "privacy-meter": read_privacy_meter,
    "arrays": read_arrays,
}


def _in_order(path: Path) -> tuple[list[int], str]:
    """Sort experiment-10_16 behind experiment-2_16."""
    return [int(number) for number in re.findall(r"\d+", path.name)], path.name


def _last_epoch(run: Path, have_labels: bool) -> tuple[Kind, Path]:
    """Return the newest file of a LiRA experiment: of logits if they can be used, else of scores."""
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


# Files ---------------------------------------------------------------------------------------------------------------


def _mapped(path: Path, what: str) -> Array:
    """Map an npy file; nothing in it can run, and its length must be what its header says."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote
            array = np.lib.format.open_memmap(path, mode="r")
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise SignalsError(
            f"there is no {path}, which {what} needs: write it again, or check that folder and format are right"
        ) from error
    except OSError as error:
        raise SignalsError(
            f"{path} of {what} cannot be read ({error.strerror or error}): check that it is a file that you may read"
        ) from error
    # Of a damaged header NumPy's reader raises whatever it stumbles over.
    except Exception as error:
        if "Python objects" in str(error):
            raise SignalsError(
                f"{path} of {what} holds pickled objects, which could run code and are never loaded: save plain "
                "numeric arrays"
            ) from error
        raise SignalsError(
            f"{path} of {what} is truncated, damaged or not an npy file ({error}): write or copy it again"
        ) from error
    if size != array.offset + array.nbytes:
        raise SignalsError(f"{path} of {what} is damaged (it is longer than its header says): write or copy it again")
    return np.asarray(array)


def forget(values: Array) -> None:
    """Give back what was read of a mapped file, or all models would add up in memory; it is read again if needed."""
    base: object = values
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):  # not everywhere
        base.madvise(mmap.MADV_DONTNEED)


def _bools(path: Path, what: str, ndim: int) -> npt.NDArray[np.bool_]:
    """Membership: booleans, or zeros and ones."""
    array = _mapped(path, what)
    axes = "[points]" if ndim == 1 else "[models, points]"
    if array.ndim != ndim or 0 in array.shape or array.dtype.kind not in "bui":
        raise SignalsError(
            f"{path} of {what} has shape {array.shape} and type {array.dtype}: booleans {axes} are needed, True where "
            "the model trained on the point"
        )
    # In a file a True may be any byte but 0; sums count on it being 1.
    numbers = array.view(np.uint8) != 0 if array.dtype == np.bool_ else array
    if array.dtype != np.bool_ and not ((numbers == 0) | (numbers == 1)).all():
        raise SignalsError(f"{path} of {what} holds other values than 0 and 1: booleans {axes} are needed")
    return np.ascontiguousarray(numbers, dtype=np.bool_)


def _labels(path: Path) -> npt.NDArray[np.int64]:
    array = _mapped(path, "the labels")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or not array.size or array.dtype.kind not in "ui":
        raise SignalsError(
            f"{path} has shape {array.shape} and type {array.dtype}: integers [points] are needed, the class of each"
        )
    labels = array.astype(np.int64)
    if labels.min() < 0:
        raise SignalsError(f"{path} holds {labels.min()} at point {labels.argmin()}: labels must be 0 or more")
    return labels


def _classes(output: ModelOutput) -> int | None:
    return int(output.values.shape[2]) if output.kind == "logits" else None


def is_softmax(values: Array) -> bool:
    """Whether the rows along the last axis, as far as they are looked at, are probabilities that sum to 1."""
    block = np.asarray(values[:_LOOKED_AT], dtype=np.float64)
    if block.shape[-1] < 2 or not ((block >= 0) & (block <= 1)).all():
        return False
    return bool((np.abs(block.sum(axis=-1) - 1) < _SUM_TOLERANCE).all())


# What other tools left on disk, made into a signals file: one model in memory at a time, the same bytes each time.

Tick = Callable[[int, str], None]

# Numbers that are converted at a time: 32 MB as float64.
_BLOCK = 1 << 22


@dataclass(frozen=True)
class Imported:
    """What was written: sizes, complementary pairs among the models, and what the user should know."""

    n_models: int
    n_points: int
    n_views: int
    n_classes: int | None
    n_pairs: int
    notes: tuple[str, ...]


def import_signals(kind: str, folder: str | Path, path: str | Path, tick: Tick | None = None) -> Imported:
    """Make a signals file of what another tool left in a folder.

    Parameters
    ----------
    kind : str
        A name of `FORMATS`: "lira", "rmia", "privacy-meter" or "arrays".
    folder : Path
        What the other tool wrote.
    path : Path
        The npz to write: `signals` (float32 [models, points, views], logit-scaled), `membership` and, where they are
        known, `labels`. It is there whole or not at all; the same input gives the same bytes.
    tick : callable, optional
        Called with 1 and the name of each model that is done.
    """
    return write_signals(look_into(kind, Path(folder)), Path(path), tick)


# Writing -------------------------------------------------------------------------------------------------------------


def write_signals(found: Finding, path: Path, tick: Tick | None = None) -> Imported:
    """Convert and write what was found; see `import_signals`."""
    if path.suffix != ".npz":
        raise OutputError(f"{path} does not end in .npz: give the signals file such a name")
    made: list[Path] = []
    try:
        if path.is_dir():
            raise OutputError(f"{path} is a folder: give the name of a file that ends in .npz")
        made = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
            imported = _write_arrays(archive, found, tick or (lambda _steps, _name: None))
    except BaseException as error:
        with contextlib.suppress(OSError):
            for folder in made:
                folder.rmdir()
        if not isinstance(error, OSError):
            raise
        raise OutputError(
            f"{path} cannot be written ({error.strerror or error}): make room, or choose another name with -o"
        ) from error
    return imported


def _write_arrays(archive: zipfile.ZipFile, found: Finding, tick: Tick) -> Imported:
    outputs, labels = found.outputs, found.labels
    n_points, n_views = outputs[0].values.shape[:2]
    shape = (len(outputs), n_points, n_views)
    n_clipped = 0
    with _entry(archive, "signals") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for output in outputs:
            rows, clipped = _confidences(output, labels)
            file.write(rows.astype("<f4", copy=False).data.cast("B"))
            n_clipped += clipped
            tick(1, output.name)
    design = MembershipDesign(np.stack([output.members for output in outputs]))
    for name, array in (("membership", design.matrix), ("labels", labels)):
        if array is not None:
            with _entry(archive, name) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    notes = found.notes
    if n_clipped:
        clipping = (
            f"{n_clipped:,} of {math.prod(shape):,} probabilities are 0 or 1 to the last digit of "
            f"{outputs[0].values.dtype}, so they are tied; logits would tell them apart."
        )
        notes = (*notes, clipping)
    n_classes = found.n_classes if labels is None or found.n_classes else len(np.unique(labels))
    return Imported(*shape, n_classes, _count_pairs(design), notes)


def _entry(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    # A fixed date in place of now keeps the bytes the same from run to run.
    return archive.open(zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0)), "w", force_zip64=True)


def _count_pairs(design: MembershipDesign) -> int:
    """Count complementary pairs: among rows that are equal or complementary, one point tells which is which."""
    firsts = [design.matrix[models, 0] for models in design.splits()]
    return sum(int(min(first.sum(), (~first).sum())) for first in firsts)


# Conversion ----------------------------------------------------------------------------------------------------------


def _confidences(output: ModelOutput, labels: npt.NDArray[np.int64] | None) -> tuple[npt.NDArray[np.float32], int]:
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
            if start == 0 and is_softmax(block):
                raise SignalsError(
                    f"{output.path} holds probabilities, not logits, for {output.name}: save their numpy.log, whose "
                    "softmax they are"
                )
            confidence = logit_from_logits(block, cast("Array", labels)[part, None])
        elif output.kind == "probabilities":
            confidence, clipped = logit_from_probabilities(block, values.dtype)
            n_clipped += clipped
        else:
            confidence = block
        with np.errstate(over="ignore"):
            out[part] = confidence
        _require(output, confidence, np.isfinite(out[part]), start)
        del block
        forget(values)
    return out, n_clipped


def _require(output: ModelOutput, block: Array, good: npt.NDArray[np.bool_], start: int) -> None:
    if good.all():
        return
    where = np.argwhere(~good)[0]
    place = [int(where[0]) + start, *where[1:]]
    names = ", ".join(f"{axis} {i}" for axis, i in zip(("point", "view", "class"), place, strict=False))
    limit = "lie in [0, 1]" if output.kind == "probabilities" else "be a finite number of at most 3e38"
    raise SignalsError(
        f"{output.path} of {output.name} holds {block[tuple(where)]} at {names}: each of its {output.kind} must "
        f"{limit}; query that model again, or leave it out"
    )
