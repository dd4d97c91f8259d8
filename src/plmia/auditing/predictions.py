"""Predictions of a model that exists already, as files and arrays of any tool hold them.

Columns are matched with the classes of the data, the kind of the numbers is recognised or stated, and the result is
one signal per record and view. Nothing is guessed where a wrong guess would look right: a single value per record can
be the probability of the true label or of one class, so its kind must be stated, or its column be named after a class.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, get_args

import numpy as np

from plmia.auditing.matching import RecordIds, columns_in_order
from plmia.data.arrays import Array, BoolArray, FloatArray, IntArray, PredictionKind
from plmia.data.dataset import LabelledData
from plmia.data.table_files import MOSTLY_NUMBERS
from plmia.data.tables import Column
from plmia.errors import DataError, Note, RecipeError, SignalsError, percent, shown
from plmia.signals.signals import look_like_probabilities
from plmia.training.recipes.confidences import (
    Confidences,
    conf_from_answers,
    conf_from_logits,
    conf_from_probabilities,
    trained_from_answers,
    trained_from_signals,
)
from plmia.training.recipes.recipe import Recipe, Trained, accuracies
from plmia.training.views import Views

# Kinds with one value per record and view.
_SINGLE = ("values", "confidence", "signal")

_MAX_NAMES = 5  # in a message
# An error rate so many standard errors above one half is not due to chance.
_MAX_STANDARD_ERRORS = 4.0
# From this share of values in [0, 1] on, the others are mistakes among probabilities.
_MOST_PROBABILITIES = 0.9
_DECIMAL_COMMA = re.compile(r"\s*-?\d+,\d+\s*")


@dataclass(frozen=True)
class Answers:
    """Answers of a given target, and notes on how they were read."""

    trained: Trained
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, eq=False)
class Predictions:
    """Numbers that a model returned for the records of a data set.

    Parameters
    ----------
    values : array [records], [records, columns] or [records, views, columns]
        Class probabilities, logits, or one value per record, [records, views] if there are several views.
    kind : {"auto", "values", "probabilities", "logits", "confidence", "signal"}
        What the numbers are. "auto" recognises class probabilities (rows in [0, 1] that add up to 1) and logits. With
        a recipe that has its own signal, it takes the numbers for "values", which a regressor predicted; the recipe
        computes the signal from them. All other kinds of one value per record must be stated: "probabilities" for the
        probability of the true label, "confidence" for its logit, "signal" for the signal itself.
    names : sequence of str, optional
        Names of the columns. Those of classes are matched with the data, in any order; a single column that is named
        after one of two classes is its probability or log-odds.
    source : str
        Where they come from, for messages.
    notes : tuple of Note
        Notes on how they were read.
    """

    values: Array
    kind: PredictionKind = "auto"
    names: Sequence[str] | None = None
    source: str = "the predictions"
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(PredictionKind):
            raise DataError(
                f"there is no kind {self.kind!r} of predictions: choose from {', '.join(get_args(PredictionKind))}"
            )

    @classmethod
    def of_frame(
        cls,
        frame: Any,
        kind: PredictionKind,
        source: str,
        ids: RecordIds | None,
        known: Mapping[str, Any] = MappingProxyType({}),
    ) -> Predictions:
        """Take the columns of numbers of a data frame; the others are not used, with a note.

        For ``known`` see `columns_in_order`.
        """
        columns = columns_in_order(frame, source, ids, known)
        numbers = [column for column in columns if column.kind in ("number", "boolean")]
        others = [column for column in columns if column not in numbers]
        for column in others:
            if any(_DECIMAL_COMMA.fullmatch(level) for level in column.levels[:1]):
                raise DataError(
                    f"column {column.name!r} of {source} holds text such as {column.levels[0]!r}: write numbers with a "
                    "decimal point"
                )
            if damaged := _damaged_number(column):
                raise DataError(
                    f"column {column.name!r} of {source} holds numbers, but also {shown(damaged[:20])!r}: correct this "
                    "value, or leave the column out"
                )
        if not columns:
            raise DataError(f"{source} has no columns: give the target's probabilities, one column per class")
        if not numbers:
            names = _listed([column.name for column in columns])
            raise DataError(
                f"{source} has no column of numbers, but {names} with values such as {columns[0].levels[0]!r}, as "
                "predicted classes are: give their probabilities, one column per class"
            )
        text = f"Columns of {source} that hold no numbers were not used: {_listed([c.name for c in others])}"
        notes = (Note("target-columns", "info", text),) if others else ()
        values = np.stack([column.values for column in numbers], axis=1)
        return cls(values, kind, [column.name for column in numbers], source, notes)

    def ask(self, data: LabelledData, members: BoolArray, views: Views, recipe: Recipe) -> Answers:
        """Return signals [records, views] of the recipe's kind, and accuracies where the classes tell them."""
        own = recipe.signal == "signal"
        if own and self.kind == "auto":
            return replace(self, kind="values").ask(data, members, views, recipe)
        if own != (self.kind in ("values", "signal")):
            what = "a signal of its own" if own else "true-label confidences"
            remedy = (
                "give values that the target predicted (--target-kind values, target_kind in Python) or its signal "
                "(--target-kind signal)"
                if own
                else "give the same of the target"
            )
            raise DataError(
                f"{self.source} is read as {self.kind!r}, but the recipe {recipe.name!r} returns {what}: {remedy}"
            )
        try:
            found = self._answers(self._by_view(data.n_points, len(views)), data, members, recipe)
        except (RecipeError, SignalsError) as error:
            raise DataError(f"{self.source} cannot be used: {error}") from error
        if found.trained.n_clipped < found.trained.conf.size:
            return found
        text = (
            f"All probabilities in {self.source} are 0 or 1, so they may be labels. Give the probabilities that the "
            "model returned: with labels alone, attacks find far less"
        )
        return replace(found, notes=(*found.notes, Note("hard-labels", "caution", text)))

    def _answers(self, values: FloatArray, data: LabelledData, members: BoolArray, recipe: Recipe) -> Answers:
        """Answers from values [records, views, columns]."""
        if self.kind == "values":
            return self._of_values(values, data, recipe)
        if self.kind in _SINGLE:
            return self._of_signals(values, data, members)
        if values.shape[2] == 1:
            return self._of_one_column(self._finite(values), data, members)
        order, notes = self._class_columns(values.shape[2], data)
        used = self._finite(values[:, :, order], order)
        return Answers(_of_classes(used, self.kind, self.source, data, members), notes)

    def _by_view(self, n_records: int, n_views: int) -> FloatArray:
        """Numbers [records, views, columns]."""
        values = np.asarray(self.values)
        if values.dtype.kind not in "buif":
            raise DataError(f"{self.source} holds values of type {values.dtype}: numbers are needed")
        if values.ndim not in (1, 2, 3) or len(values) != n_records:
            raise DataError(
                f"{self.source} has shape {values.shape}, but the data have {n_records:,} records: give one row per "
                "record, in the order of the data"
            )
        if self.kind == "values" and self.names is not None and len(self.names) > 1:
            raise DataError(
                f"{self.source} has the columns {_listed(self.names)}: give one column, with the predicted values"
            )
        if values.ndim == 1 or (values.ndim == 2 and self.kind in _SINGLE):
            values = values.reshape(n_records, -1, 1)
        elif values.ndim == 2:
            values = values[:, None, :]
        if values.shape[1] != n_views or 0 in values.shape:
            wanted = "[records, views]" if self.kind in _SINGLE else "[records, views, classes]"
            raise DataError(
                f"{self.source} has shape {np.shape(self.values)}, but the references answer {n_views} "
                f"view{'s' * (n_views > 1)} of each record: give {wanted} with the same views"
            )
        return values.astype(np.float64)

    def _finite(self, values: FloatArray, columns: Sequence[int] | IntArray = (0,)) -> FloatArray:
        """Values [records, views, columns] of these columns, if they are finite."""
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            where = f", column {self.names[columns[bad[0][2]]]!r}" if self.names is not None else ""
            raise DataError(
                f"{self.source} holds {values[tuple(bad[0])]} at record {bad[0][0]}{where}: every record needs finite "
                "numbers"
            )
        return values

    def _one_per_view(self, values: FloatArray) -> FloatArray:
        """Values [records, views], if there is one per record and view."""
        if values.shape[2] != 1:
            raise DataError(f"{self.source} has {values.shape[2]} values per record and view, but one is needed")
        return self._finite(values)[:, :, 0]

    def _of_values(self, values: FloatArray, data: LabelledData, recipe: Recipe) -> Answers:
        """Answers from values that a regressor predicted, one per record and view."""
        if data.y is None or data.labels is not None:
            raise RecipeError(
                f"it is read as predicted values, but y {'is missing' if data.y is None else 'holds classes'}: give y "
                "as numbers, or the target's signal with --target-kind signal (target_kind in Python)"
            )
        predicted = self._one_per_view(values)
        signals = [recipe.signal_of_given(view, data) for view in predicted.T]
        return Answers(trained_from_signals(self.source, signals), self.notes)

    def _of_signals(self, values: FloatArray, data: LabelledData, members: BoolArray) -> Answers:
        """Answers from logit-scaled confidences or signals, one per record and view."""
        signals = self._one_per_view(values)
        if self.kind == "signal":
            return Answers(Trained(signals.astype(np.float32)), self.notes)
        if look_like_probabilities(signals):
            raise DataError(
                f"{self.source} has values in [0, 1], like probabilities: give the kind `probabilities` "
                "(target_kind, --target-kind), or the logits log p - log(1 - p) of the true label's probabilities p"
            )
        return Answers(_of_confidences(map(Confidences, signals.T), data, members), self.notes)

    def _of_one_column(self, values: FloatArray, data: LabelledData, members: BoolArray) -> Answers:
        """Answers from one value per record: of the true label, or of the class that the column is named after."""
        classes = _class_names(data)
        own = None if self.names is None else _plain(self.names[0])
        named = [k for k, name in enumerate(classes) if _plain(name) == own]
        if named and len(classes) == 2:
            within = (values >= 0) & (values <= 1)
            inside = bool(within.all())
            if self.kind == "auto" and not inside and within.mean() >= _MOST_PROBABILITIES:
                record = int(np.argwhere(~within)[0][0])
                raise DataError(
                    f"{self.source} has values in [0, 1], like probabilities, but {values[record].flat[0]:.4g} at "
                    f"record {record}: correct it, or state --target-kind (target_kind in Python) as `logits`"
                )
            kind: PredictionKind = self.kind if self.kind != "auto" else "probabilities" if inside else "logits"
            others = 1 - values if kind == "probabilities" else np.zeros_like(values)
            both = np.concatenate([values, others] if named == [0] else [others, values], axis=2)
            return Answers(_of_classes(both, kind, self.source, data, members), self.notes)
        if self.kind != "probabilities":
            raise DataError(
                f"{self.source} has one value per record, whose meaning cannot be recognised safely: state "
                "--target-kind (target_kind in Python) as `probabilities` for the probability of the true label, "
                "`confidence` for its logit or `values` for what a regressor predicted, or name one column after each "
                "class"
            )
        pairs, first = np.concatenate([values, 1 - values], axis=2), np.zeros(len(values), np.intp)
        found = [conf_from_probabilities(pair, first) for pair in pairs.swapaxes(0, 1)]
        return Answers(_of_confidences(found, data, members), self.notes)

    def _class_columns(self, n_columns: int, data: LabelledData) -> tuple[IntArray, tuple[Note, ...]]:
        """Column of each class: by name in any order, otherwise in the order of the classes, with a note."""
        classes = _class_names(data)
        numbers = tuple(map(str, range(data.n_classes)))
        found = None if self.names is None else match_names(self.names, classes)
        if found is None and self.names is not None:
            found = match_names(self.names, numbers)
        if found is not None:
            unused = [name for k, name in enumerate(self.names or ()) if k not in found]
            text = f"Columns of {self.source} that are not classes of the data were not used: {_listed(unused)}"
            return found, (*self.notes, *([Note("target-columns", "info", text)] if unused else ()))
        known = {_plain(name) for name in self.names or ()} & {_plain(name) for name in classes}
        if n_columns != len(classes) or known:
            missing = [name for name in classes if _plain(name) not in known]
            columns = f"the columns {_listed(self.names)}" if self.names is not None else f"{n_columns} columns"
            raise DataError(
                f"{self.source} has {columns}, but none for class {missing[0]!r} of the data's {len(classes)} classes: "
                "give one column per class, named after it"
            )
        if self.names is None and data.class_names is None:
            return np.arange(n_columns), self.notes
        text = (
            f"The columns of {self.source} are not named after the classes of the data, so they were taken in the "
            f"order {_listed(classes)}. Check this order, or name the columns after the classes"
        )
        return np.arange(n_columns), (*self.notes, Note("target-columns", "info", text))


def _damaged_number(column: Column) -> str | None:
    """First value of a column of text that is no number, if most of them are numbers; identifiers all are."""
    numbers = [_is_number(level) for level in column.levels]
    if column.kind != "category" or all(numbers) or sum(numbers) < MOSTLY_NUMBERS * len(numbers):
        return None
    return column.levels[numbers.index(False)]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _of_classes(
    values: FloatArray, kind: PredictionKind, source: str, data: LabelledData, members: BoolArray
) -> Trained:
    """Answers from class probabilities or logits [records, views, classes]."""
    convert: dict[str, Callable[[FloatArray, IntArray], Confidences]] = {
        "auto": lambda answers, labels: conf_from_answers(answers, labels, "it holds"),
        "probabilities": conf_from_probabilities,
        "logits": lambda answers, labels: Confidences(conf_from_logits(answers, labels)),
    }
    _require_order(values[:, 0], source, data)
    answers, labels = list(values.swapaxes(0, 1)), data.y
    return trained_from_answers(source, answers, [convert[kind](view, labels) for view in answers], labels, members)


def _require_order(values: FloatArray, source: str, data: LabelledData) -> None:
    """Refuse answers [records, classes] of two classes that are wrong more often than guessing, beyond chance."""
    if data.labels is None or data.n_classes != 2:
        return
    lower = (1 - np.sign((values[:, 1] - values[:, 0]) * (2 * data.labels - 1))) / 2
    sizes = np.bincount(data.labels, minlength=2)
    wrong = float(np.mean(np.bincount(data.labels, lower, minlength=2) / sizes))
    if wrong > 0.5 + _MAX_STANDARD_ERRORS * math.sqrt(float(np.sum(1 / sizes))) / 4:
        raise DataError(
            f"the true class has the lower value in {source} at {percent(wrong)} of the records, on average over the "
            f"two classes, so these may be in the wrong order: give columns in the order {_listed(_class_names(data))} "
            "or named after the classes, and check the labels"
        )


def _of_confidences(found: Iterable[Confidences], data: LabelledData, members: BoolArray) -> Trained:
    """Answers from one signal per record and view; with two classes, they tell which records are right."""
    views = list(found)
    conf = np.stack([view.conf for view in views], axis=1).astype(np.float32)
    right = accuracies(conf[:, 0] > 0, members) if data.n_classes == 2 else (math.nan, math.nan)
    return Trained(conf, *right, n_clipped=sum(view.n_clipped for view in views))


# Names of classes -----------------------------------------------------------------------------------------------------


def _class_names(data: LabelledData) -> tuple[str, ...]:
    return tuple(data.class_names or map(str, range(data.n_classes)))


def match_names(names: Sequence[str], classes: Sequence[str]) -> IntArray | None:
    """Find the column of each class by its name, or None if not every class has exactly one.

    Names are compared as they are, then without case, then as R changes them (``<=50K`` becomes ``X..50K``), then with
    one prefix and one suffix around all of them (``.pred_yes``, ``prob.yes``, ``p0``).
    """
    plain = [_plain(name) for name in names]
    forms = [(list(names), list(classes)), (plain, list(map(_plain, classes))), (plain, list(map(_r_name, classes)))]
    forms = [(found, wanted) for found, wanted in forms if len(set(wanted)) == len(wanted)]
    for found, wanted in forms:
        if all(found.count(name) == 1 for name in wanted):
            return np.array([found.index(name) for name in wanted])
    for found, wanted in forms:
        around = {name.partition(wanted[0])[::2] for name in found if wanted[0] and wanted[0] in name}
        fitting = [(a, b) for a, b in around if all(found.count(f"{a}{name}{b}") == 1 for name in wanted)]
        if len(fitting) == 1:
            before, after = fitting[0]
            return np.array([found.index(f"{before}{name}{after}") for name in wanted])
    return None


def _plain(name: str) -> str:
    return name.strip().casefold()


def _r_name(name: str) -> str:
    """Name as R's make.names writes it, without case."""
    valid = re.match(r"[^\W\d_]|\.(?!\d)", name)
    return _plain(("" if valid else "X") + re.sub(r"[^\w.]", ".", name))


def _listed(names: Sequence[str] | None) -> str:
    shown = [repr(name) for name in names or ()]
    more = f" and {len(shown) - _MAX_NAMES} more" * (len(shown) > _MAX_NAMES)
    return ", ".join(shown[:_MAX_NAMES]) + more
