"""Pilots of a plan: open them, check that they can be compared, name their references, and find what these cost."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmia.auditing.planning import Cost
from plmia.auditing.score import UNCHECKED, Opened, of_signals, open_signals, results_in, run_folder
from plmia.errors import UNLIKE, PlmiaError, doubts
from plmia.results.result import RunResult
from plmia.results.saved import Overview, results_folder
from plmia.signals.signals import Scale, Signals
from plmia.training.records import TrainingRecord

if TYPE_CHECKING:
    from plmia.training.recipes.recipe import Recipe

MOST, MOST_MODELS = 1e30, 1e6
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}
_BUDGET = re.compile(r"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)\s*([smh]|(?i:[kmgtpe]?flops?)|)")


@dataclass(frozen=True)
class Budget:
    """An amount to spend, in "models", "seconds" or "operations"; no amount means twice the first pilot."""

    amount: float | None
    unit: str

    @classmethod
    def parse(cls, text: str | float | None) -> Budget:
        """Read a number of models, a time (90s, 30m, 2h) or a number of operations (1e15flop, 20TFLOP, 1PFLOPS)."""
        if text is None:
            return cls(None, "models")
        match = _BUDGET.fullmatch(str(text).strip())
        if match is None:
            raise PlmiaError(
                f"a budget of {text!r} is neither a number of models nor a time nor a number of operations: give 64, "
                "90s, 30m, 2h, 20TFLOP or 1e15flop"
            )
        amount, unit = float(match[1]), match[2].lower()
        if amount <= 0:
            raise PlmiaError(f"a budget of {text} is not above 0: give 64, 90s, 30m, 2h, 20TFLOP or 1e15flop")
        if not unit and amount > MOST_MODELS:
            operations = f"{amount:.3g}flop".replace("e+", "e")
            remedy = f"did you mean {operations}?" if amount <= MOST else "give a smaller number"
            raise PlmiaError(
                f"a budget of {text} without a unit is a number of models, at most {MOST_MODELS:,.0f}: {remedy}"
            )
        if amount > MOST:
            raise PlmiaError(f"a budget of {text} is too large: give at most {MOST:g}")
        if unit in _SECONDS:
            return cls(amount * _SECONDS[unit], "seconds")
        if not unit:
            return cls(amount, "models")
        return cls(amount * _PREFIXES[unit.removesuffix("s").removesuffix("flop")], "operations")


@dataclass(frozen=True)
class Source:
    """An opened pilot with its training records."""

    place: str  # name of its folder or file, for messages
    opened: Opened
    records: Mapping[int, TrainingRecord]
    audited: RunResult | None = None  # results of these signals in the folder of the pilot

    @classmethod
    def open(cls, pilot: str | Path | Signals | Overview, scale: Scale, number: int) -> Source:
        """Open signals, or the folder of a run; ``number`` names signals that are in memory."""
        opened = open_signals(pilot, scale)
        place = f"pilot {number}" if isinstance(pilot, Signals) else str(results_folder(pilot))
        run = run_folder(pilot)
        audited = None if run is None else of_signals(results_in(run), opened.signals)
        return cls(place, opened, {k: TrainingRecord.from_json(made) for k, made in opened.records.items()}, audited)

    @property
    def notes(self) -> list[str]:
        """What to know of the signals; results of them have checked a given target."""
        checked = (UNCHECKED,) if self.audited is not None else ()
        return [note.text for note in self.opened.notes if note.code not in checked]

    @property
    def doubts(self) -> tuple[str, ...]:
        """Codes of the doubts of the results of these signals."""
        return () if self.audited is None else tuple(dict.fromkeys(note.code for note in doubts(self.audited.notes)))

    @property
    def cautions(self) -> str | None:
        """Name the doubts of the results that do not depend on the kind of references, if there are any."""
        codes = [code for code in self.doubts if code not in UNLIKE]
        if not codes:
            return None
        return f"The results in {self.place} have cautions, which hold for this plan, too: {', '.join(codes)}."

    def unlike(self, target: int) -> tuple[str, ...] | None:
        """Codes of the cautions that the references are unlike the target; None if nothing is known about that.

        Recipes of two kinds have the caution ``other-kind`` also without results.
        """
        audited = self.audited is not None and target in self.audited.about.targets
        found = [code for code in self.doubts if code in UNLIKE] if audited else []
        kinds = [recipe.kind for recipe in map(_built, self._recipes(target)) if recipe is not None]
        if len(set(kinds)) > 1:
            found.append("other-kind")
        return tuple(code for code in UNLIKE if code in found) if found or audited else None

    def like_target(self, target: int) -> bool | None:
        """Whether the references were trained by the recipe of the target; None if that is unknown."""
        if target == 0 and self.opened.two_recipes:
            return False
        own, others = self._recipes(target)
        return None if own is None or others is None else own == others

    def _recipes(self, target: int) -> tuple[object, object]:
        """Recipes in JSON of the target, as stated for a given one, and of the references; None if unknown."""
        own = self.records.get(target, TrainingRecord()).recipe
        return own or (self.about("recipe") if target == 0 else None), self.recipe

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


def _built(recipe: object) -> Recipe | None:
    """Build a recipe from its JSON; None if this is code of the user, or needs a library that is not installed here."""
    from plmia.training.recipes.named import recipe_from_json

    try:
        return recipe_from_json(dict(recipe)) if isinstance(recipe, Mapping) else None
    except PlmiaError:
        return None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value]
    return statistics.median(known) if known else None


def standard_first(sources: Sequence[Source], target: int) -> list[Source]:
    """Put the pilots whose references were trained like the target before the others, else in the given order."""
    return sorted(sources, key=lambda source: source.like_target(target) is not True)


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
    if source.recipe is None:
        return None
    if (built := _built(source.recipe)) is not None:
        return built.description
    name, kind = source.recipe.get("recipe"), source.recipe.get("class")
    return f"{name}:{str(kind).rpartition('.')[2]}" if kind else str(name)
