"""Data, texts and names that a report can show beside the results."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plmia.data.arrays import Array
from plmia.data.dataset import LabelledData, read_data
from plmia.data.npz import TEXT_ARRAYS, load_npz
from plmia.errors import DataError, Note
from plmia.reporting.plots.figure import writable
from plmia.signals.signals import Signals

# Names of the array of records in an npz (see `read_data`).
_POINTS = ("X", "features")


@dataclass(frozen=True, eq=False)
class Extras:
    """What a report can show beside the results; the lengths of texts and names must fit the data.

    Parameters
    ----------
    data : LabelledData, optional
        The records: images or features.
    texts : sequence of str, optional
        The records as text [points], shown instead of their features.
    class_names : sequence of str, optional
        Name of each class [classes].
    feature_names : sequence of str, optional
        Name of each feature of a table [features].
    signals : Signals, optional
        Signals of target and references; those of an audit are found in its folder.
    notes : tuple of Note
        Notes about these texts and names.
    """

    data: LabelledData | None = None
    texts: Sequence[str] | None = None
    class_names: Sequence[str] | None = None
    feature_names: Sequence[str] | None = None
    signals: Signals | None = None
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        if self.data is None:
            return
        _require_length("texts", self.texts, self.data.n_points, "records")
        _require_length("class_names", self.class_names, self.data.n_classes, "classes")
        if not self.data.is_images:
            _require_length("feature_names", self.feature_names, self.data.X.shape[1], "features")


def _require_length(name: str, texts: Sequence[str] | None, n: int, things: str) -> None:
    if texts is not None and len(texts) != n:
        raise DataError(f"{name} has {len(texts)} entries, but the data have {n} {things}: give one entry for each")


def read_extras(path: Path, data: LabelledData | None = None) -> Extras:
    """Read data, and from an npz also texts and names.

    Parameters
    ----------
    path : Path
        Anything that `read_data` reads. An npz can also hold `texts` [points], `class_names` [classes] and
        `feature_names` [features], or `texts` alone. U+FFFD replaces characters that cannot be written, with a note.
    data : LabelledData, optional
        The data of the same path, if they were read already.
    """
    arrays = load_npz(path, TEXT_ARRAYS, "`X` or `texts`", DataError) if path.suffix == ".npz" else {}
    for name, array in arrays.items():
        _require_texts(path, name, array)
    if data is None and ("texts" not in arrays or _has_points(path)):
        data = read_data(path)
    shown = {name: [writable(text) for text in array.tolist()] for name, array in arrays.items()}
    notes = (_replacement_note(name, arrays[name].tolist(), texts) for name, texts in shown.items())
    texts, classes, features = (shown.get(name) for name in TEXT_ARRAYS)
    try:
        return Extras(data, texts, classes, features, notes=tuple(note for note in notes if note is not None))
    except DataError as error:
        raise DataError(f"in {path} {error}") from error


def _require_texts(path: Path, name: str, array: Array) -> None:
    if array.ndim != 1 or array.dtype.kind != "U":
        raise DataError(
            f"{path} has {name} of shape {array.shape} and type {array.dtype}, but it must be a list of texts: "
            "make it with numpy.array(names)"
        )


def _replacement_note(name: str, given: list[str], shown: list[str]) -> Note | None:
    changed = sum(a != b for a, b in zip(given, shown, strict=True))
    if not changed:
        return None
    return Note(
        "texts-replaced",
        "info",
        f"{changed:,} of {len(given):,} {name} hold lone surrogates or control characters, which cannot be written. "
        "The report shows U+FFFD instead; correct the file to see the original texts.",
    )


def _has_points(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        held = {name.removesuffix(".npy") for name in archive.namelist()}
    return not held.isdisjoint(_POINTS)
