"""Read what a report may show beside the results: the data, and the texts and names that stand beside them."""

from __future__ import annotations

import zipfile
from pathlib import Path

from plmia.data.array_names import TEXT_ARRAYS
from plmia.data.dataset import Array, LabelledData, load_npz, read_data
from plmia.errors import DataError, Note
from plmia.reporting.content import Extras, writable

# What the points of an npz may be called (see `read_data`).
_POINTS = ("X", "features")


def read_extras(path: Path, data: LabelledData | None = None) -> Extras:
    """Read the data, and from an npz the texts and names beside them.

    Parameters
    ----------
    path : Path
        Whatever `read_data` reads; an npz may hold `texts` [points], `class_names` [classes] and `feature_names`
        [features] too, or `texts` alone. Characters that cannot be written become U+FFFD, which a note says.
    data : LabelledData, optional
        What `read_data` read from the same path, to spare reading it again.
    """
    arrays = load_npz(path, TEXT_ARRAYS, "`X` or `texts`", DataError) if path.suffix == ".npz" else {}
    for name, array in arrays.items():
        _require_texts(path, name, array)
    if data is None and ("texts" not in arrays or _has_points(path)):
        data = read_data(path)
    shown = {name: [writable(text) for text in array.tolist()] for name, array in arrays.items()}
    notes = (_replaced(name, arrays[name].tolist(), lines) for name, lines in shown.items())
    texts, classes, features = (shown.get(name) for name in TEXT_ARRAYS)
    try:
        return Extras(data, texts, classes, features, notes=tuple(note for note in notes if note is not None))
    except DataError as error:
        raise DataError(f"in {path} {error}") from error


def _require_texts(path: Path, name: str, array: Array) -> None:
    if array.ndim != 1 or array.dtype.kind != "U":
        raise DataError(
            f"{path} has {name} of shape {array.shape} and type {array.dtype}: "
            "a list of texts is needed, as numpy.array(names) makes it"
        )


def _replaced(name: str, given: list[str], shown: list[str]) -> Note | None:
    """Say how many texts hold characters that were replaced, if any do."""
    changed = sum(a != b for a, b in zip(given, shown, strict=True))
    if not changed:
        return None
    return Note(
        "texts-replaced",
        "info",
        f"{changed:,} of {len(given):,} {name} hold lone surrogates or control characters, which cannot be written: "
        "the report shows U+FFFD in their place; correct the file to see the texts as they are",
    )


def _has_points(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        held = {name.removesuffix(".npy") for name in archive.namelist()}
    return not held.isdisjoint(_POINTS)
