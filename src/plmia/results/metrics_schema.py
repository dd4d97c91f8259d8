"""What readers of metrics.json rely on, checked in one place: keys, types, ranges and lengths.

A file may be damaged, hostile or of an earlier schema. What passes here can be shown, compared and drawn without
further checks; a key that a reader uses for the first time belongs into `METRICS`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast, get_args

import numpy as np

from plmia.errors import Note
from plmia.evaluation.tables import SHOWN_FPRS
from plmia.results.summary import SCHEMA
from plmia.results.verdict import Grade, Status, headline, status_of

Check = Callable[[Any, str], None]
"""Raises ValueError if a value, found at a place in metrics.json, is not what is read there."""


def read_metrics(text: bytes) -> dict[str, Any]:
    """Parse the contents of metrics.json; ValueError or RecursionError if they are not what `METRICS` says."""
    metrics = json.loads(text.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    METRICS(metrics, "metrics.json")
    attacks, targets = metrics["attacks"], metrics["about"]["targets"]
    if metrics["verdict"]["attack"] not in attacks:
        raise ValueError("the verdict's attack is not among the attacks")
    if metrics["schema"] == 1:
        metrics = _upgraded(metrics)
    CURRENT(metrics, "metrics.json")
    if metrics["verdict"]["auc_attack"] not in attacks:
        raise ValueError("the verdict's attack of the largest area is not among the attacks")
    if len(set(targets)) < len(targets):
        raise ValueError("a target stands twice in about.targets")
    for name, attack in attacks.items():
        if sorted(entry["target"] for entry in attack["per_target"]) != sorted(targets):
            raise ValueError(f"attacks.{name}.per_target has other targets than about.targets")
    return cast("dict[str, Any]", metrics)


def _upgraded(metrics: dict[str, Any]) -> dict[str, Any]:
    """Contents of schema 1 as schema 2 has them; they have no digests, so no verdict of theirs is a clean one."""
    found = metrics["verdict"]
    doubt = Note(
        "unverified-results",
        "caution",
        "An earlier version of plmia wrote these results without digests, so they cannot be verified. Score again with "
        "this version.",
    )
    status = status_of(found["leak_shown"], [doubt])
    added = {
        "status": status,
        "grade": None,
        "headline": headline(status, None),
        "beats_chance": found["leak_shown"],
        "doubts": [doubt.code],
        "members": metrics["attacks"][found["attack"]]["per_target"][0]["n_members"],
        "auc_attack": found["attack"],
        "unnamed": {"reason": "the population is too small", "remedy": ""} if found.get("unnamed") else None,
    }
    told = [doubt, *(Note("earlier-version", "info", note) for note in metrics["notes"] if isinstance(note, str))]
    return metrics | {"verdict": found | added, "notes": [note.to_json() for note in told]}


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object of metrics.json")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"metrics.json holds {name}")


def number(low: float = -sys.float_info.max, high: float = sys.float_info.max) -> Check:
    """Require a number from ``low`` to ``high``."""

    def check(value: Any, where: str) -> None:
        # Comparing a whole number of any length is exact, and NaN fails both comparisons.
        if type(value) not in (int, float) or not low <= value <= high:
            raise _wrong(value, where, f"a number from {low:g} to {high:g}")

    return check


def whole(low: int = 0, high: float = 2**53) -> Check:
    """Require a whole number from ``low`` to ``high``."""

    def check(value: Any, where: str) -> None:
        if type(value) is not int or not low <= value <= high:
            raise _wrong(value, where, f"a whole number from {low} to {high:g}")

    return check


def one_of(*kinds: type) -> Check:
    """Require a value of one of these types; text must be such that it can be written."""

    def check(value: Any, where: str) -> None:
        if type(value) not in kinds:
            raise _wrong(value, where, " or ".join(kind.__name__ for kind in kinds))
        if isinstance(value, str):
            value.encode("utf-8")

    return check


def maybe(inner: Check) -> Check:
    """Allow null."""

    def check(value: Any, where: str) -> None:
        if value is not None:
            inner(value, where)

    return check


def items(inner: Check, least: int = 0) -> Check:
    """Require a list."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or len(value) < least:
            raise _wrong(value, where, f"a list of {least} or more")
        for i, item in enumerate(value):
            inner(item, f"{where}[{i}]")

    return check


def mapping(inner: Check, *needed: str, key: Check | None = None) -> Check:
    """Require an object whose values are all alike, with the ``needed`` keys among others."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        for name in needed:
            if name not in value:
                raise ValueError(f"{where} has no {name!r}")
        for name, item in value.items():
            (key or text)(name, f"a key of {where}")
            inner(item, f"{where}.{name}")

    return check


def entry(needed: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """Require an object with these keys; others are not read and may be there, too."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        for name, inner in {**needed, **(optional or {})}.items():
            if name in value:
                inner(value[name], f"{where}.{name}")
            elif name in needed:
                raise ValueError(f"{where} has no {name!r}")

    return check


def both(first: Check, then: Check) -> Check:
    """Require one, then the other."""

    def check(value: Any, where: str) -> None:
        first(value, where)
        then(value, where)

    return check


def alike(*names: str) -> Check:
    """Require that these lists of an object have the same length."""

    def check(value: Any, where: str) -> None:
        if len({len(value[name]) for name in names}) > 1:
            raise ValueError(f"{where} has lists of different lengths")

    return check


def _wrong(value: Any, where: str, needed: str) -> ValueError:
    shown = repr(value) if isinstance(value, int | float | str | None) else type(value).__name__
    return ValueError(f"{where} is {shown[:40]}, {needed} is needed")


def _rate_key(value: Any, where: str) -> None:
    try:
        rate(float(value), where)
    except ValueError as error:
        raise _wrong(value, where, "a rate") from error


def _note(value: Any, where: str) -> None:
    """Require a note."""
    entry({"code": text, "severity": text, "text": text})(value, where)
    Note.from_json(value)


def among(*values: str | None) -> Check:
    """Require one of these values."""

    def check(value: Any, where: str) -> None:
        if value not in values:
            raise _wrong(value, where, f"one of {', '.join(map(str, values))}")

    return check


def _fit(value: Any, where: str) -> None:
    """Require the trends of pl-mia-eb, each of as many values as there are knots, or one."""
    knots = len(value["knots"]["at"])
    level, covariance = (np.array(value["spread"][key], dtype=np.float64) for key in ("level", "covariance"))
    shapes = [level.shape[:2] in {(2, knots), (2, 1)}, level.ndim == 3, covariance.shape == (2, 2)]
    if value.get("shift"):
        lines, spread = (np.array(value["shift"][key], dtype=np.float64) for key in ("lines", "spread"))
        shapes += [lines.ndim == 3 and lines.size > 0, spread.ndim == 2 and spread.size > 0]
        shapes += [len(lines) in {1, knots}, len(spread) in {1, knots}, bool((spread >= 0).all())]
    if not all(shapes) or level.size == 0 or (level < 0).any() or (np.diag(covariance) < 0).any():
        raise ValueError(f"{where} has trends of the wrong shape")
    if any(b <= a for a, b in zip(value["knots"]["at"], value["knots"]["at"][1:], strict=False)):
        raise ValueError(f"{where} has knots that do not increase")


def _metric(value: Any, where: str) -> None:
    if value != "auc":
        text(value, where)
        _rate_key(value, where)


rate, count, real = number(0, 1), whole(), number()
amount, text, flag = number(0, 2**53), one_of(str), one_of(bool)
level = number(1e-12, 1)
interval = entry({"low": rate, "high": rate})
mean = entry({"mean": rate, "std": rate}, {"interval": maybe(interval)})
warning = entry({}, {"warning": maybe(text)})
rates = items(rate)
grid = items(items(real, 1), 1)
fit = both(
    entry(
        {
            "knots": entry({"at": items(real, 1), "low": real, "high": real}),
            "spread": entry({"level": items(grid, 1), "covariance": grid}),
        },
        {
            "shift": maybe(entry({"lines": items(grid, 1), "spread": grid})),
            "n_points": count,
            "coordinates": maybe(entry({}, {"bend": maybe(real), "rotation": maybe(items(items(real)))})),
        },
    ),
    _fit,
)
_ENDS = ("realised", "low", "high")
realised = maybe(entry(dict.fromkeys(_ENDS, rates)))


def _curves(value: Any, where: str) -> None:
    for key in ("conformal", "combined"):
        if value[key] and any(len(value[key][name]) != len(value["levels"]) for name in _ENDS):
            raise ValueError(f"{where}.{key} has lists of different lengths")


diagnostics = entry(
    {"failed_checks": items(entry({"rule": text}))},
    {
        "pairwise_p": maybe(
            both(
                entry(
                    {"members": items(count, 1), "non_members": items(count, 1), "distance": maybe(real)},
                    {"warning": maybe(text)},
                ),
                alike("members", "non_members"),
            )
        ),
        "realised_fpr": maybe(
            both(
                entry(
                    {
                        "levels": items(level, 1),
                        "n_non_members": whole(1),
                        "conformal": realised,
                        "combined": realised,
                    }
                ),
                _curves,
            )
        ),
        "fit": maybe(fit),
    },
)
decision = entry(
    {"level": level} | dict.fromkeys(("fpr_realised", "fpr_low", "fpr_high", "tpr"), maybe(rate)),
    {"threshold": maybe(real)},
)
point = entry(
    {"tpr": rate, "low": rate, "high": rate, "resolved": flag},
    {"at_nominal": maybe(interval), "joint": maybe(interval)},
)
per_target = entry(
    {
        "target": count,
        "auc": rate,
        "n_members": count,
        "n_non_members": count,
        "tpr": mapping(point, *SHOWN_FPRS, key=_rate_key),
        "decisions": mapping(mapping(decision), "conformal"),
        "epsilon": entry({"low": amount, "confidence": rate}),
    },
    {"auc_interval": maybe(interval), "diagnostics": diagnostics, "fit": maybe(fit)},
)
over_targets = entry({"mean": rate, "std": rate, "resolved": flag}, {"interval": maybe(interval)})
attack = entry(
    {
        "auc": mean,
        "tpr": mapping(both(over_targets, entry({"needed_non_members": amount})), *SHOWN_FPRS, key=_rate_key),
        "per_target": items(per_target, 1),
        "epsilon": entry({"low": amount, "delta": rate}),
        "own_p_value_on_population": entry({"level": level, "flagged": maybe(rate), "check_failed": flag}),
    },
    {"fdr": mapping(entry({"n_discoveries": amount, "least": amount})), "fit": maybe(fit)},
)
verdict = entry(
    {
        "text": text,
        "leak_shown": flag,
        "attack": text,
        "fpr": maybe(number(1e-12, 0.3)),
        "tpr": maybe(rate),
        "interval": maybe(interval),
        "exposed": amount,
        "fdr": rate,
        "targets": whole(1),
    },
    {"unnamed": maybe(entry({"remedy": text}))},
)
# What schema 2 added.
concluded = entry(
    {
        "status": among(*get_args(Status)),
        "grade": among(None, *get_args(Grade)),
        "headline": text,
        "beats_chance": flag,
        "doubts": items(text),
        "members": count,
        "auc_attack": text,
        "unnamed": maybe(entry({"reason": text, "remedy": text})),
    }
)
accuracy = entry({"members": maybe(rate), "non_members": maybe(rate)})


def _rated(value: Any, where: str) -> None:
    if len({value[key] is None for key in ("fpr", "tpr", "interval")}) > 1:
        raise ValueError(f"{where} has some of fpr, tpr and interval but not all")


curve = both(
    entry(
        {"metric": _metric, "budgets": items(number(1, 2**53)), "mean": rates, "deviation": items(maybe(amount))},
        dict.fromkeys(("at_2x", "at_4x", "at_8x"), maybe(rate)),
    ),
    alike("budgets", "mean", "deviation"),
)
tested = maybe(entry({"rejected": rate}))
about = entry(
    {
        "signals": entry(
            {"models": count, "points": whole(1), "views": whole(1)},
            {"sha256": text, "clipped": count},
        ),
        "mode": text,
        "targets": items(count, 1),
        "seed": whole(0, math.inf),
        "references": items(count, 1),
        "population": items(whole(1), 1),
    },
    {
        "plmia": text,
        "recipe": text,
        "audit": entry({}, {"data": text, "target": text}),
        "train_accuracy": maybe(rate),
        "test_accuracy": maybe(rate),
        "accuracy": entry({"measure": text, "target": accuracy, "references": accuracy}),
    },
)
METRICS = entry(
    {
        "schema": whole(1, SCHEMA),
        "verdict": both(verdict, _rated),
        "about": about,
        "attacks": mapping(attack),
        "notes": items(one_of(str, dict)),
    },
    {
        "skipped": mapping(text),
        "diagnostics": entry(
            {},
            {
                "references": maybe(entry({"attack": text, "curves": items(curve)}, {"warning": maybe(text)})),
                "gaussianity": maybe(entry({"level": rate, "in": tested, "out": tested})),
                "targets": mapping(entry({}, {"unlike_references": maybe(warning), "population": warning})),
            },
        ),
        "digests": entry(dict.fromkeys(("self", "scores.npz", "records.csv"), text)),
    },
)
CURRENT = entry({"verdict": concluded, "notes": items(_note)})
"""What readers of metrics.json rely on, of every schema and of the current one."""
