"""Where two audits differ, in the words of who ran them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plmia.store_layout import differences


def audit_differences(there: dict[str, Any], here: dict[str, Any], file: str | None = None) -> Iterator[str]:
    """Say where the identities of two stores of audits differ; see `plmia.training.audit_about`.

    Parameters
    ----------
    there, here : dict
        What the store was made of, and what it would be made of now.
    file : str, optional
        The file of the recipe that is asked for now, if it has one.
    """
    before, after = there["about"], here["about"]
    if before.get("data") != after.get("data"):
        n_before, n_after = there["n_points"], here["n_points"]
        sizes = "" if n_before == n_after else f": {n_before:,} points there, {n_after:,} here"
        yield f"the data changed (X, y or groups){sizes}"
    yield from _recipes(before.get("recipe", {}), after.get("recipe", {}), file)
    for name in ("views", "seed", "design", "target"):
        if before.get(name) != after.get(name):
            was, now = _word(before.get(name)), _word(after.get(name))
            yield f"{name} {was} there, {'another' if was == now else now} here"
    # What else a store may know; labels, points and groups are those of the data.
    told = {"data", "recipe", "views", "seed", "design", "target", "groups"}
    yield from differences(_without(before, told), _without(after, told))


def _recipes(there: dict[str, Any], here: dict[str, Any], file: str | None) -> Iterator[str]:
    names = _name(there), _name(here)
    if names[0] != names[1]:
        yield f"recipe {names[0]} there, {names[1]} here"
        return
    if there.get("key") != here.get("key"):
        yield f"the code of {Path(file).name if file else 'train or query'} changed"
    if there.get("sources") != here.get("sources"):
        yield f"the code of {names[1]} changed"
    yield from _files(there.get("files", {}), here.get("files", {}))
    told = {"key", "sources", "files"}
    for line in differences(_without(there, told), _without(here, told)):
        yield f"recipe option {line.removeprefix('params.')}"


def _files(there: dict[str, str], here: dict[str, str]) -> Iterator[str]:
    """Say which of the files that a recipe declares changed."""
    for name in sorted(there.keys() & here.keys()):
        if there[name] != here[name]:
            yield f"the contents of {name} changed"
    for name in sorted(there.keys() ^ here.keys()):
        yield f"{name} is declared as a file of the recipe {'there' if name in there else 'here'} only"


def _without(value: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: entry for key, entry in value.items() if key not in keys}


def _name(recipe: dict[str, Any]) -> str:
    name, kind = str(recipe.get("recipe")), recipe.get("class")
    return f"{name}:{str(kind).rpartition('.')[2]}" if kind else name


def _word(value: Any) -> str:
    """Text of a setting; of what is known by its digest only that it was given."""
    if isinstance(value, list):
        return ";".join(map(str, value))
    return "of your own" if isinstance(value, str) and len(value) == 64 else str(value)
