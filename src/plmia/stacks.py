"""Signals on their way to a store: plain npy files that a machine with NumPy alone can write.

A stack is two files, `stack-000012-000027.npy` (float32 [models, points, views]) and a JSON beside it, which is written
last: a stack without it is unfinished and does not count. `SignalStore.import_npy` merges a folder of them.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from plmia.errors import StoreError, some
from plmia.provenance import problem_of
from plmia.store_files import NPY_HEADER_BYTES, as_bytes, check_npy, npy_header, reading, write_atomically, writing
from plmia.store_layout import DTYPE, FloatArray32, plain, sealed, unsealed
from plmia.store_records import record_name

Numbers = Sequence[int] | npt.NDArray[np.integer]
# No JSON of a stack is larger, whatever a file from another machine holds.
MOST_JSON_BYTES = 1 << 28
_COPY = "copy it again, or train its models again where it comes from"


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
            raise StoreError(f"{path} has {size:,} bytes, {MOST_JSON_BYTES:,} are the most: {_COPY}")
        about = unsealed(str(path), path.read_bytes(), _COPY)
    if about.get("key") != key:
        raise StoreError(
            f"{path} belongs to another audit (key {str(about.get('key'))[:12]}, the store has {key[:12]}): "
            "move it away, or import it into the store it was made for"
        )
    models, shape, provenance = (about.get(name) for name in ("models", "shape", "provenance"))
    if not (_whole_numbers(models) and _whole_numbers(shape) and len(shape) == 3 and isinstance(provenance, list)):
        raise StoreError(f"{path} is damaged (models, shape or provenance are not what they must be): {_COPY}")
    if not shape[0] == len(models) == len(provenance):
        raise StoreError(
            f"{path} is damaged ({len(models)} models, {shape[0]} rows of signals, {len(provenance)} provenances): "
            + _COPY
        )
    for model, entry in zip(models, provenance, strict=True):
        problem = problem_of(entry, shape[1] * shape[2])
        if problem is not None:
            raise StoreError(f"{path} cannot be right (model {model}: {problem}): {_COPY}")
    return about


def _read_stack(path: Path, about: dict[str, Any]) -> Stack:
    shape, data = about["shape"], path.with_suffix(".npy")
    with reading(str(data)), data.open("rb") as file:
        check_npy(str(data), file.read(NPY_HEADER_BYTES), data.stat().st_size, DTYPE, tuple(shape))
        file.seek(0)
        if hashlib.file_digest(file, "sha256").hexdigest() != about.get("sha256"):
            raise StoreError(f"{data} is damaged (its SHA-256 is not the one in {path.name}): {_COPY}")
    signals = np.memmap(data, DTYPE, "r", NPY_HEADER_BYTES, tuple(shape))
    return Stack.checked(about["models"], signals, about["provenance"])


def _whole_numbers(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(entry) is int and entry >= 0 for entry in value) and value != []
