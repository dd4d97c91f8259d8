"""Provenance of a model: how it was made, as its record says; checked when it is written and when it is read.

A provenance may come from another machine, and the report shows it. Therefore each known entry has a type and a range,
and all other entries are plain, small and shallow.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Any

# Number of training losses, and bytes of JSON of all other entries.
MAX_LOSSES, MAX_BYTES = 1 << 20, 1 << 20
MAX_DEPTH = 32
MAX_VERSION_LENGTH = 200
# Length of a file's path below the recipe's folder.
MAX_PATH_LENGTH = 4096
# About 300 years.
MAX_SECONDS = 1e10

Check = Callable[[Any], bool]


def problem_of(provenance: Any, n_signals: int) -> str | None:
    """Describe what is wrong with a provenance, or return None.

    Parameters
    ----------
    provenance : object
        Contents of the JSON.
    n_signals : int
        Number of signals of a model, points times views: no more can be clipped.
    """
    if not isinstance(provenance, dict):
        return f"the provenance is a {type(provenance).__name__}, a JSON object is needed"
    found = _impossible(provenance)
    if found is not None:
        return f"the provenance holds {found}"
    size = len(json.dumps({name: value for name, value in provenance.items() if name != "losses"}))
    if size > MAX_BYTES:
        return f"the provenance takes {size:,} bytes without its losses, at most {MAX_BYTES:,} are allowed"
    for name, (check, needed) in _known(n_signals).items():
        if name in provenance and not check(provenance[name]):
            return f"{name} is {short_json(provenance[name])}, {needed} is needed"
    return None


def _known(n_signals: int) -> dict[str, tuple[Check, str]]:
    """Entries that plmia knows, each with its check and the words for it."""
    share = _number(1.0), "a number from 0 to 1"
    return {
        "given": (lambda value: isinstance(value, bool), "true or false"),
        "recipe": (lambda value: isinstance(value, dict), "a JSON object"),
        "seed": (_whole(1 << 64), "a whole number from 0"),
        "attempt": (_whole(1 << 32), "a whole number from 0"),
        "seconds": (_number(MAX_SECONDS), f"a number from 0 to {MAX_SECONDS:g}"),
        # None if there were no records to measure it on.
        "train_accuracy": (lambda value: value is None or share[0](value), share[1]),
        "test_accuracy": (lambda value: value is None or share[0](value), share[1]),
        "n_clipped": (_whole(n_signals), f"a whole number from 0 to {n_signals} (the model's signals)"),
        "n_renormalised": (_whole(n_signals), f"a whole number from 0 to {n_signals} (the model's signals)"),
        "sum_error": (_number(sys.float_info.max), "a number from 0"),
        "undeclared_files": (_are_names, "a list of short texts"),
        "losses": (_are_losses, f"a list of at most {MAX_LOSSES:,} finite numbers"),
        "versions": (_are_versions, "a JSON object of short texts"),
    }


def _whole(most: int) -> Check:
    return lambda value: type(value) is int and 0 <= value <= most


def _number(most: float) -> Check:
    return lambda value: type(value) in (int, float) and 0 <= value <= most


def _are_losses(value: Any) -> bool:
    """Whether these are losses per epoch; None stands for one that was not finite."""
    if not isinstance(value, list) or len(value) > MAX_LOSSES:
        return False
    return all(v is None or (type(v) in (int, float) and abs(v) <= sys.float_info.max) for v in value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(text, str) and text.isprintable() and len(text) <= MAX_PATH_LENGTH for text in value
    )


def _are_versions(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(text, str) and text.isprintable() and len(text) <= MAX_VERSION_LENGTH
        for pair in value.items()
        for text in pair
    )


def _impossible(value: Any) -> str | None:
    """Find what no provenance may hold, at any depth; without recursion, since the depth itself is checked."""
    left = [(value, 1)]
    while left:
        entry, depth = left.pop()
        if depth > MAX_DEPTH:
            return f"more than {MAX_DEPTH} levels"
        if isinstance(entry, dict):
            left += [(part, depth + 1) for pair in entry.items() for part in pair]
        elif isinstance(entry, list):
            left += [(part, depth + 1) for part in entry]
        elif isinstance(entry, float) and not math.isfinite(entry):
            return f"the number {entry}"
        elif isinstance(entry, str) and not _is_text(entry):
            return "text that is not Unicode"
    return None


def _is_text(text: str) -> bool:
    """Whether text can be written as UTF-8, which lone surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def short_json(value: Any, most: int = 40) -> str:
    """JSON of a value, cut to ``most`` characters."""
    text = json.dumps(value)
    return text if len(text) <= most else text[: most - 3] + "..."
