"""What other tools left on disk, made into a signals file: one model in memory at a time, the same bytes each time."""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from plmia.design import MembershipDesign
from plmia.errors import OutputError, SignalsError
from plmia.layouts import Finding, ModelOutput, forget, is_softmax, look_into
from plmia.numerics import logit_from_logits, logit_from_probabilities
from plmia.private_files import replacing

Array = npt.NDArray[Any]
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
