"""Pilots of a plan: open them, check that they can be compared, name their references, and find what these cost."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plmia.auditing.planning import Cost
from plmia.auditing.score import Opened, open_signals
from plmia.errors import PlmiaError
from plmia.results.saved import Overview, results_folder
from plmia.signals.signals import Scale, Signals
from plmia.training.records import TrainingRecord

MOST = 1e30
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_OPERATIONS = {"flop": 1.0, "gflop": 1e9, "tflop": 1e12, "pflop": 1e15}
_BUDGET = re.compile(r"(\d+(?:\.\d+)?(?:e\+?\d+)?)\s*([smh]|(?i:[gtp]?flop)|)")


@dataclass(frozen=True)
class Budget:
    """An amount to spend, in "models", "seconds" or "operations"; no amount means twice the first pilot."""

    amount: float | None
    unit: str

    @classmethod
    def parse(cls, text: str | float | None) -> Budget:
        """Read a number of models, a time (90s, 30m, 2h) or a number of operations (1e15flop, 20TFLOP, 1PFLOP)."""
        if text is None:
            return cls(None, "models")
        match = _BUDGET.fullmatch(str(text).strip())
        if match is None or float(match[1]) == 0:
            raise PlmiaError(
                f"a budget of {text!r} is neither a number of models nor a time nor a number of operations: give 64, "
                "90s, 30m, 2h, 20TFLOP or 1e15flop"
            )
        amount, unit = float(match[1]), match[2].lower()
        if amount > MOST:
            raise PlmiaError(f"a budget of {text} is too large: give at most {MOST:g}")
        if unit in _SECONDS:
            return cls(amount * _SECONDS[unit], "seconds")
        return cls(amount * _OPERATIONS[unit], "operations") if unit else cls(amount, "models")


@dataclass(frozen=True)
class Source:
    """An opened pilot with its training records."""

    place: str  # name of its folder or file, for messages
    opened: Opened
    records: Mapping[int, TrainingRecord]

    @classmethod
    def open(cls, pilot: str | Path | Signals | Overview, scale: Scale, number: int) -> Source:
        """Open signals, or the folder of a run; ``number`` names signals that are in memory."""
        opened = open_signals(pilot, scale)
        place = f"pilot {number}" if isinstance(pilot, Signals) else str(results_folder(pilot))
        return cls(place, opened, {k: TrainingRecord.from_json(made) for k, made in opened.records.items()})

    @property
    def references(self) -> list[TrainingRecord]:
        """Records of the references: of all models but 0, the target, which may have another recipe."""
        return [record for model, record in sorted(self.records.items()) if model != 0]

    @property
    def recipe(self) -> Mapping[str, Any] | None:
        """JSON of the recipe of the references; None if unknown."""
        return next((record.recipe for record in self.references if record.recipe is not None), None)

    def about(self, key: str) -> object:
        """Return what the store says its signals were made of; None if it does not say."""
        return (self.opened.store_about or {}).get(key)

    @property
    def seconds(self) -> float | None:
        """Median time of training and querying one reference; None if unknown."""
        return _median([record.seconds for record in self.references])

    @property
    def operations(self) -> float | None:
        """Median number of floating-point operations of training one reference; None if unknown."""
        return _median([record.operations for record in self.references])

    def cost(self, budget: Budget, view_cost: float) -> float:
        """Cost of one reference with one view, in seconds or operations; raises if it is unknown."""
        if budget.unit == "operations":
            if self.operations is None:
                raise PlmiaError(
                    "the budget is a number of operations, but those of training a model are unknown for "
                    f"{_recipe_text(self) or self.place}: give a time, such as 2h"
                )
            return self.operations
        if self.seconds is None:
            raise PlmiaError(
                f"{self.place} does not say how long a reference took to train, so its cost is unknown: give the "
                "folders of audits"
            )
        # The time on record includes the queries of all the pilot's views.
        return self.seconds / (1 + view_cost * (self.opened.signals.n_views - 1))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value]
    return statistics.median(known) if known else None


def costs(sources: Sequence[Source], budget: Budget, view_cost: float) -> list[Cost]:
    """Cost of a reference of each pilot in the unit of the budget; models are those of the first pilot."""
    if budget.unit == "models" and len(sources) == 1:
        return [Cost(view=view_cost)]
    if budget.unit == "seconds" and len(sources) == 1 and sources[0].seconds is None:
        raise PlmiaError(
            "the budget is a time, and these signals do not tell how long a model takes: give the folder of an audit, "
            "or a number of models"
        )
    found = [source.cost(budget, view_cost) for source in sources]
    unit = found[0] if budget.unit == "models" else 1.0
    return [Cost(cost / unit, view_cost, budget.unit) for cost in found]


def require_comparable(sources: Sequence[Source], target: int) -> None:
    """Raise unless all pilots are of the same data and attack a model of the same recipe, or the same given model."""
    first, *others = sources
    for other in others:
        if not _same_data(first, other):
            raise PlmiaError(
                f"{first.place} and {other.place} are audits of different data: plan with pilots of the same data"
            )
        mine, its = (_target_of(source, target) for source in (first, other))
        if None not in (mine, its) and mine != its:
            raise PlmiaError(
                f"{first.place} and {other.place} attack different models (target {target} was trained by another "
                "recipe, or is another given model): plan with pilots of the same target"
            )


def _same_data(a: Source, b: Source) -> bool:
    """Compare digests of the data; where one is unknown, the numbers of records and the labels."""
    digests = a.about("data"), b.about("data")
    if None not in digests:
        return digests[0] == digests[1]
    mine, its = a.opened.signals, b.opened.signals
    if mine.n_points != its.n_points:
        return False
    return mine.labels is None or its.labels is None or np.array_equal(mine.labels, its.labels)


def _target_of(source: Source, target: int) -> object:
    """Recipe of the target, or the digest of a given one; None if unknown."""
    record = source.records.get(target, TrainingRecord())
    return source.about("target") if record.given else record.recipe


def kind_names(sources: Sequence[Source]) -> list[str]:
    """Names of the references of each pilot: their recipes, with the place where this does not tell two apart."""
    if len(sources) == 1:
        return ["references"]
    texts = [_recipe_text(source) or source.place for source in sources]
    named = [
        text if texts.count(text) == 1 else f"{text} ({source.place})"
        for text, source in zip(texts, sources, strict=True)
    ]
    if len(set(named)) < len(named):
        raise PlmiaError(f"the pilot {sources[0].place} was given twice: give each pilot once")
    return named


def _recipe_text(source: Source) -> str | None:
    """Text of the recipe of the references, as ``--recipe`` takes it if the recipe is built in; None if unknown."""
    from plmia.training.recipes.named import recipe_from_json

    if source.recipe is None:
        return None
    try:
        return recipe_from_json(dict(source.recipe)).description
    except PlmiaError:  # code of the user, or a library that is not installed here
        name, kind = source.recipe.get("recipe"), source.recipe.get("class")
        return f"{name}:{str(kind).rpartition('.')[2]}" if kind else str(name)
