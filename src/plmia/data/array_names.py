"""Arrays of an npz that nothing reads: they are named, since a misspelt name would change an audit silently."""

from __future__ import annotations

import difflib
import zipfile
from collections.abc import Collection
from pathlib import Path

from plmia.errors import Note, PlmiaError, shown

# What a report may show beside the points.
TEXT_ARRAYS = ("texts", "class_names", "feature_names")
DATA_ARRAYS = ("X", "y", "groups", "n_features", "features", "labels", *TEXT_ARRAYS)
SIGNALS_ARRAYS = ("signals", "membership", "labels", "n_points", "groups")
# As alike as `grp` and `groups`; `rows` and `groups` are not.
_ALIKE = 0.65


def unused_arrays(path: Path, known: Collection[str], kind: type[PlmiaError]) -> list[Note]:
    """Say which arrays of an npz are not used, one note per array.

    Parameters
    ----------
    path : Path
        A file that was read already; there is nothing to say of what is not an npz.
    known : collection of str
        Names of the arrays that are used.
    kind : type of PlmiaError
        What to raise where a name is all but `groups`: without its groups, rows of one patient land on both sides of
        a split, and nothing in the results would tell.
    """
    if not (path.is_file() and zipfile.is_zipfile(path)):
        return []
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    unused = [name for name in names if name not in known]
    for name in unused:
        if "groups" not in names and _means_groups(name):
            raise kind(
                f"{path} holds {name!r}, which is not known, but no 'groups': call it 'groups' if it says which points "
                "belong together, else give it another name or leave it out"
            )
    return [Note("unused-arrays", "info", _sentence(path, name, known)) for name in unused]


def _means_groups(name: str) -> bool:
    return "group" in name.lower() or bool(difflib.get_close_matches(name.lower(), ["groups"], 1, _ALIKE))


def _sentence(path: Path, name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, 1, _ALIKE)
    hint = f"perhaps {near[0]!r} was meant" if near else "if it says which records belong together, call it 'groups'"
    return f"Array {name!r} of {shown(path.name)} is not used; known are {', '.join(known)}; {hint}."
