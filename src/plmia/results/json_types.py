"""Frozen dataclasses to and from JSON: what is read is checked against the fields' types and ranges.

A dataclass is a JSON object with one key for each field; `Mapping` is an object, `tuple` a list, an array a list of
lists. A trailing underscore of a field's name is left out of its key. A field with a default may be missing from the
JSON; one with the metadata `ABSENT` is left out of it while it is None. Keys that no field has are ignored.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from plmia.data.arrays import FloatArray
from plmia.evaluation.accusations import Accusation
from plmia.evaluation.decisions import Decision, SelfCheck
from plmia.evaluation.diagnostics.p_values import FprCurve, PairwiseP, Rates
from plmia.evaluation.diagnostics.power import Curve
from plmia.evaluation.epsilon import EpsilonBound
from plmia.evaluation.intervals import Interval
from plmia.evaluation.metrics import fpr_key
from plmia.evaluation.records import Exposure
from plmia.evaluation.subgroups import Subgroup, SubgroupTable
from plmia.evaluation.trainings import CurvePoint, MeanRate, TrainingsSummary

T = TypeVar("T")
Decoder = Callable[[Any], Any]
# Metadata of a field that is left out of the JSON while it is None.
ABSENT = {"absent": True}


@dataclass(frozen=True)
class Range:
    """Ends of the numbers that a field may hold, both included."""

    low: float = -sys.float_info.max
    high: float = sys.float_info.max


@dataclass(frozen=True)
class AtLeast:
    """Fewest entries that a list or mapping may have."""

    n: int


Rate = Annotated[float, Range(0, 1)]
Level = Annotated[float, Range(1e-12, 1)]
Amount = Annotated[float, Range(0, 2**53)]
Positive = Annotated[int, Range(1, 2**53)]
# Ranges of fields of the types that other packages define: where no range is given, a number must be finite, and a
# whole number a count.
_REFINED: dict[type, dict[str, Any]] = {
    Interval: {"low": Rate, "high": Rate, "confidence": Rate},
    EpsilonBound: {"low": Amount, "delta": Rate, "confidence": Rate},
    Decision: {"level": Level}
    | dict.fromkeys(("fpr_realised", "fpr_low", "fpr_high", "tpr", "tpr_low", "tpr_high"), Rate | None),
    FprCurve: {"levels": Annotated[tuple[Level, ...], AtLeast(1)], "n_non_members": Positive},
    PairwiseP: dict.fromkeys(("members", "non_members"), Annotated[tuple[int, ...], AtLeast(1)]),
    Rates: dict.fromkeys(("realised", "low", "high"), tuple[Rate, ...]),
    Curve: {"mean": tuple[Rate, ...], "deviation": tuple[Amount | None, ...], "budgets": tuple[Positive, ...]},
    Accusation: dict.fromkeys(("prior", "precision", "precision_low", "precision_high"), Rate)
    | dict.fromkeys(("candidates", "right", "right_low", "right_high", "wrong", "wrong_low", "wrong_high"), Amount),
    Subgroup: dict.fromkeys(("tpr", "auc", "accuracy_members", "accuracy_non_members"), Rate | None)
    | {"p_value": Rate},
    SubgroupTable: {"fpr": Level, "confidence": Rate},
    MeanRate: {"mean": Rate},
    CurvePoint: {"percent": Annotated[int, Range(0, 100)], "expected": Amount, "at_most": Amount},
    TrainingsSummary: {"fpr": Level, "trainings": Positive, "curve": Annotated[tuple[CurvePoint, ...], AtLeast(1)]}
    | dict.fromkeys(("confidence", "identified", "accused"), Rate),
}
# Their JSON holds derived values beside the fields.
_WITH_DERIVED = (Exposure, SelfCheck, Curve)


class JsonError(ValueError):
    """A value that does not have the type or range of its field."""

    def __init__(self, value: object, needed: str) -> None:
        shown = repr(value) if isinstance(value, int | float | str | None) else type(value).__name__
        super().__init__()
        self.path, self.problem = "", f"is {shown[:40]}, {needed} is needed"

    def __str__(self) -> str:
        return f"{self.path.lstrip('.') or 'metrics.json'} {self.problem}"


def encode(value: object) -> Any:
    """Return the value as JSON: dicts, lists, text, numbers, booleans and None."""
    if isinstance(value, _WITH_DERIVED):
        return encode(value.to_json())
    if is_dataclass(value):
        found = ((part, vars(value)[part.name]) for part in fields(value))
        return {_key(part): encode(held) for part, held in found if held is not None or not part.metadata}
    if isinstance(value, Mapping):
        return {fpr_key(key) if isinstance(key, float) else str(key): encode(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [encode(part) for part in value]
    return value


def decode(cls: type[T], value: object) -> T:
    """Build a dataclass from JSON; ValueError, naming the place, if a value does not fit."""
    return cast("T", _decoder(cast("Hashable", cls))(value))


@cache
def _decoder(hint: Any) -> Decoder:
    """Return the function that checks and converts values of a type."""
    origin, args = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return _object(cast("type", hint))
    if origin is Annotated:
        limit = args[1]
        return _at_least(_decoder(args[0]), limit.n) if isinstance(limit, AtLeast) else _number(args[0], limit)
    if origin in (Union, types.UnionType):
        inner = _decoder(next(arg for arg in args if arg is not types.NoneType))
        return lambda value: None if value is None else inner(value)
    if origin is Literal:
        return _require(lambda value: isinstance(value, str) and value in args, f"one of {', '.join(args)}")
    if origin is np.ndarray:
        return _array
    if origin is tuple:
        return _list(_decoder(args[0]))
    if origin is Mapping:
        return _mapping(args[0], _decoder(args[1]))
    plain: dict[Any, Decoder] = {
        float: _number(float, Range()),
        int: _number(int, Range(0, 2**53)),
        bool: _require(lambda value: isinstance(value, bool), "true or false"),
        str: _require(_is_text, "text"),
        object: _any,
    }
    return plain[hint]


def _require(valid: Callable[[Any], bool], needed: str) -> Decoder:
    def check(value: Any) -> Any:
        if not valid(value):
            raise JsonError(value, needed)
        return value

    return check


_is_object = _require(lambda value: isinstance(value, dict), "an object")


def _number(kind: type, limit: Range) -> Decoder:
    kinds, low, high = ((int,) if kind is int else (int, float)), limit.low, limit.high
    name = f"a{' whole' * (kind is int)} number from {low:g} to {high:g}"
    # Comparing a whole number of any length is exact, and NaN fails both comparisons.
    return _require(lambda value: type(value) in kinds and low <= value <= high, name)


def _is_text(value: Any) -> bool:
    """Whether a value is text that can be written: a lone surrogate raises a ValueError."""
    return isinstance(value, str) and value.encode("utf-8") is not None


def _any(value: Any) -> Any:
    """Any JSON whose texts can be written."""
    if isinstance(value, str):
        _is_text(value)
    for part in value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else ():
        _any(part)
    return value


def _key(part: Field[Any]) -> str:
    return part.name.rstrip("_")


def _inside(place: str, decoder: Decoder, value: object) -> Any:
    try:
        return decoder(value)
    except JsonError as error:
        error.path = f"{place}{error.path}"
        raise


def _object(cls: type) -> Decoder:
    hints = get_type_hints(cls, include_extras=True) | _REFINED.get(cls, {})
    parts = [
        (f.name, _key(f), _decoder(hints[f.name]), f.default is MISSING and f.default_factory is MISSING)
        for f in fields(cls)
    ]

    def check(value: Any) -> Any:
        _is_object(value)
        for _, key, _, needed in parts:
            if needed and key not in value:
                raise JsonError(value, f"one with the key {key!r}")
        found = {name: _inside(f".{key}", decoder, value[key]) for name, key, decoder, _ in parts if key in value}
        return cls(**found)

    return check


def _list(inner: Decoder) -> Decoder:
    checked = _require(lambda value: isinstance(value, list), "a list")
    return lambda value: tuple(_inside(f"[{i}]", inner, part) for i, part in enumerate(checked(value)))


def _array(value: Any) -> FloatArray:
    """Lists of finite numbers, all of the same length and none empty, as an array."""
    if not isinstance(value, list) or not value:
        raise JsonError(value, "a list of numbers")
    inner = _array if isinstance(value[0], list) else _decoder(float)
    return np.array([inner(part) for part in value], np.float64)


def _at_least(inner: Decoder, n: int) -> Decoder:
    def check(value: Any) -> Any:
        found = inner(value)
        if len(found) < n:
            raise JsonError(value, f"one with {n} or more entries")
        return found

    return check


def _mapping(kind: type, inner: Decoder) -> Decoder:
    return lambda value: {
        _map_key(kind, name): _inside(f".{name}", inner, part) for name, part in _is_object(value).items()
    }


def _map_key(kind: type, name: str) -> Any:
    """Read the key of a mapping: text, a model's number, or a rate as `fpr_key` writes it."""
    if kind is str:
        return _decoder(str)(name)
    try:
        key = kind(name)
        written = str(key) if kind is int else fpr_key(key) if 0 <= key <= 1 else None
    except ValueError:
        key, written = -1, None
    if written != name or key < 0:
        raise JsonError(name, "a rate or number as a key")
    return key
