"""Screen one model without references: the verb `screen`."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from plmia import __version__
from plmia.attacks.attack import ATTACK_P, SCREENING, Attack
from plmia.attacks.view import Features
from plmia.auditing.audited_data import AuditedData, Columns, audited_data, group_column
from plmia.auditing.given_target import GivenTarget
from plmia.auditing.progress import Meter
from plmia.auditing.run import copies_note, given_target
from plmia.auditing.score import (
    Audit,
    choose_attacks,
    open_signals,
    output_folder,
    require_replaceable,
    split_groups,
)
from plmia.data.arrays import Array, BoolArray, PredictionKind, SignalKind
from plmia.data.dataset import LabelledData
from plmia.data.designs import MembershipDesign
from plmia.errors import AttackError, DataError, Note, PlmiaWarning, RecipeError
from plmia.evaluation.diagnostics.record_shift import record_shift
from plmia.evaluation.targets import Setup
from plmia.results.folder import run_attacks
from plmia.results.result import About, Accuracy, AccuracyPair
from plmia.results.saved import SavedRun
from plmia.signals.signals import Scale, Signals
from plmia.training.recipes.confidences import signal_from_values
from plmia.training.recipes.named import as_recipe
from plmia.training.recipes.recipe import BuiltInRecipe, Trained
from plmia.training.records import TrainingRecord, training_notes
from plmia.training.views import View, Views

# Trees are not fitted to larger data, since that would take hours.
MOST_VALUES = 50_000_000


def screen(
    source: Any,
    y: Any = None,
    *,
    target: Any = 0,
    members: Any = None,
    target_kind: PredictionKind = "auto",
    id_column: str | None = None,
    X: Any = None,
    groups: Any = None,
    label: str | None = None,
    group: str | None = None,
    drop: Sequence[str] = (),
    decimal_comma: bool = False,
    attacks: Sequence[str | Attack] | None = None,
    population: int | None = None,
    scale: Scale = "auto",
    seed: int = 0,
    folder: str | Path | None = None,
    show_records: bool = False,
    progress: bool = True,
) -> Audit:
    """Screen one model without references: this can show a leak, but cannot show its absence.

    Members and non-members must come from one source at random. Without references, any other difference between them
    looks like a leak.

    Parameters
    ----------
    source : array, data frame, LabelledData, path or Signals
        With a model as the target, the data, as ``X`` of `audit`. Otherwise signals, as in `score`; those of other
        models are not used.
    y : array [records], optional
        Labels of the data.
    target : GivenTarget, path, array, data frame, fitted model or int
        The model that exists already, as in `audit`, or its number in the signals.
    members, target_kind, id_column
        Of a target that is no `GivenTarget`; as in `audit`.
    X : array, data frame, LabelledData or path, optional
        The records of the signals. With them, `attack-p-conditional` runs too.
    groups, label, group, drop, decimal_comma : optional
        As in `audit`.
    attacks : sequence of Attack or str, optional
        Attacks without references; by default `attack-p` and, if there are data, `attack-p-conditional`.
    population : int, optional
        Known non-members to calibrate with and to learn from; half of them by default.
    scale : str
        Scale of the signals in a file; see `read_signals`.
    seed, folder, show_records, progress
        As in `audit`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> import numpy as np
    >>> import plmia
    >>> X, y = load_digits(return_X_y=True)
    >>> members = np.arange(len(y)) % 2 == 0
    >>> model = DecisionTreeClassifier(random_state=0).fit(X[members], y[members])
    >>> plmia.screen(X, y, target=model, members=members, progress=False).result.verdict.status
    'leak'
    """
    where, columns = output_folder(folder), Columns(label, group, drop, decimal_comma)
    require_replaceable(where, screening=True)
    if isinstance(target, int | np.integer):
        if members is not None:
            raise DataError(f"members were given, but target = {target} is a number of a model: leave one of them out")
        subject = _from_signals(source, int(target), scale, X, y, groups, columns)
    elif X is not None:
        raise DataError("X was given, but the target is a model: give the data as the first argument")
    else:
        beside = members, id_column
        found = audited_data(source, y, groups, columns, values=_predicts(target, target_kind), beside=beside)
        subject = _existing(found, target, members, target_kind, id_column)
    chosen, setup = _choose(attacks, subject.features), Setup(references=0, population=population, seed=seed)
    notes = [*subject.notes, *subject.shift(seed)]
    for note in notes:
        warnings.warn(note.text, PlmiaWarning, stacklevel=2)
    with Meter("screening", len(chosen) * subject.signals.n_points, progress) as meter:
        result = run_attacks(
            subject.signals,
            chosen,
            subject.signals.models,
            setup,
            where,
            subject.about(setup),
            meter.tick,
            may_skip=attacks is None,
            notes=notes,
            show_records=show_records,
            features=subject.features,
        )
    subject.write_report(SavedRun(where, result), show_records=show_records)
    return Audit(where, result)


@dataclass(frozen=True)
class _Subject:
    """The model that is screened: its signals alone, the data if they are known, and notes on both."""

    signals: Signals
    data: LabelledData | None
    notes: tuple[Note, ...]
    records: Mapping[int, Mapping[str, Any]]  # training record of the model, if there is one

    @cached_property
    def features(self) -> Features | None:
        """The records as numbers, if they are known and can be written so."""
        return None if self.data is None or unreadable(self.data) else features_of(self.data)

    def shift(self, seed: int) -> list[Note]:
        """Say that members differ from non-members in their records, if they do."""
        if self.features is None:
            return []
        members, signal, groups = (
            self.signals.design.matrix[0],
            self.signals.values[0].mean(axis=1),
            self.signals.groups,
        )
        alone = np.arange(len(members)) if groups is None else np.unique(groups, return_index=True)[1]
        note = record_shift(self.features, members, signal, alone, seed)
        return [] if note is None else [note]

    def about(self, setup: Setup) -> About:
        """What is run, for metrics.json."""
        about = About.of(self.signals, self.signals.models, setup, self.records)
        unknown = AccuracyPair(None, None)
        accuracy = about.accuracy and Accuracy(about.accuracy.measure, about.accuracy.target, unknown)
        audit = None if self.data is None else {"data": self.data.digest, "target": "given"}
        names = None if self.data is None or self.data.class_names is None else tuple(self.data.class_names)
        return replace(about, accuracy=accuracy, audit=audit, class_names=names, plmia=__version__)

    def write_report(self, written: SavedRun, *, show_records: bool) -> None:
        """Write the page, which may show the data."""
        from plmia.reporting import Extras, write_report

        write_report(written, Extras(self.data), show_records=show_records)


@dataclass(frozen=True)
class Unknown(BuiltInRecipe):
    """The recipe of a model that exists already and whose training is not known: it is queried, never trained."""

    signal: SignalKind = "confidence"
    name: ClassVar[str] = "unknown"

    def train(
        self, data: LabelledData, members: BoolArray, seeds: Sequence[int], views: Views, keep_weights: bool = False
    ) -> list[Trained]:
        """Refuse."""
        del data, members, seeds, views, keep_weights
        raise RecipeError("it is not known how this model was trained: audit with a recipe to train references")

    def query_given(self, model: Any, data: LabelledData, members: BoolArray, views: Views) -> Trained:
        """Query a model as the recipe that would train such a model; see `Recipe.query_given`."""
        torch = sys.modules.get("torch")  # whoever has a module has imported it
        if torch is not None and isinstance(model, torch.nn.Module):
            raise RecipeError(
                f"{type(model).__name__} is a PyTorch module, and a screening does not know how its inputs are "
                "prepared: give its predictions as the target, one row per record (logits or probabilities of the "
                "classes, or predicted values)"
            )
        return as_recipe(model).query_given(model, data, members, views)

    def signal_of_given(self, predicted: Array, data: LabelledData) -> Array:
        """Signal of a regressor; see `Recipe.signal_of_given`."""
        return signal_from_values(predicted, data.y)


def _predicts(target: Any, kind: PredictionKind) -> bool:
    """Whether the model predicts values, not classes."""
    return kind in ("values", "signal") or returns_values(target)


def _existing(found: AuditedData, target: Any, members: Any, kind: PredictionKind, id_column: str | None) -> _Subject:
    """A model that exists already, on its data."""
    data, values = found.data, _predicts(target, kind)
    given = given_target(target, members, kind, id_column, found.taken, data)
    if given is None:
        raise DataError("there is no model to screen: give its predictions or the model (target), and its members")
    given.check(data, whole_groups=False)
    signal: SignalKind = "signal" if values or data.labels is None else "confidence"
    answers = given.ask(data, [View()], Unknown(signal))
    record = TrainingRecord.of_given(answers.trained)
    signals = Signals(
        answers.trained.conf[None],
        MembershipDesign(given.members[None]),
        data.labels,
        answers.trained.n_clipped,
        data.groups,
        kind=signal,
    )
    notes = *found.notes, *given.notes, *answers.notes, *training_notes([record])
    return _Subject(signals, data, (*notes, *_notes(signals, data)), {0: record.to_json()})


def returns_values(target: Any) -> bool:
    """Whether a target is a model that predicts values: it has `predict`, but no `predict_proba`."""
    model = target.model if isinstance(target, GivenTarget) else target
    return hasattr(model, "predict") and not hasattr(model, "predict_proba")


def _from_signals(source: Any, target: int, scale: Scale, X: Any, y: Any, groups: Any, columns: Columns) -> _Subject:
    """One model of signals, with its data if they are given."""
    opened = open_signals(source, scale)
    every = opened.signals
    row = every.rows([target], "target")
    signals = replace(
        every, values=every.values[row], design=MembershipDesign(every.design.matrix[row]), models=(target,)
    )
    data, notes = None, (*opened.notes, *opened.other_recipe([target]))
    if X is not None:
        if not isinstance(X, LabelledData | str | Path) and columns.label is None:
            y, groups = every.labels if y is None else y, every.groups if groups is None else groups
        given = audited_data(X, y, groups, columns, values=every.kind == "signal" and every.labels is None)
        data, notes = given.data, (*notes, *given.notes)
        signals = _joined(signals, data)
    found = (*notes, *_notes(signals, data))
    record = {model: record for model, record in opened.records.items() if model == target}
    return _Subject(signals, data, found, record)


def _joined(signals: Signals, data: LabelledData) -> Signals:
    """Add the labels and groups of the data to signals that have none; refuse data of other records."""
    if data.n_points != signals.n_points:
        raise DataError(
            f"the data have {data.n_points:,} records, the signals {signals.n_points:,}: give the same records"
        )
    own, theirs = signals.labels, data.labels
    if own is not None and theirs is not None and not np.array_equal(own, theirs):
        k = int(np.argmax(own != theirs))
        raise DataError(
            f"record {k} has the label {theirs[k]} in the data, but {own[k]} in the signals: give the records of the "
            "signals in their order"
        )
    return replace(
        signals, labels=theirs if own is None else own, groups=data.groups if signals.groups is None else signals.groups
    )


def _notes(signals: Signals, data: LabelledData | None) -> Iterator[Note]:
    yield from split_groups(signals, list(signals.models))
    if data is None:
        return
    yield from data.notes
    if (note := copies_note(signals.design, data)) is not None:
        yield note
    if (column := group_column(data, signals.groups, signals.design.matrix[0])) is not None:
        yield column
    if why := unreadable(data):
        yield Note("attacks-left-out", "info", f"attack-p-conditional was left out: {why}.")
    elif data.is_images:
        text = "Images are read as rows of pixels by attack-p-conditional, which explains little of their signals."
        yield Note("images-flattened", "info", text)


def _choose(attacks: Sequence[str | Attack] | None, features: Features | None) -> list[Attack]:
    """Return the attacks that were given, or those that the data allow; refuse those that need references."""
    default = [ATTACK_P] if features is None else list(SCREENING.values())
    chosen = choose_attacks(attacks or default, with_records=True)
    if needy := [attack.name for attack in chosen if attack.uses_references]:
        raise AttackError(
            f"the attack {needy[0]} needs references, which a screening does not have: take {', '.join(SCREENING)}, or "
            "use plmia score"
        )
    return chosen


def unreadable(data: LabelledData) -> str:
    """Why trees cannot learn from the records; empty if they can."""
    if not (data.is_array or data.is_table):
        return "it reads arrays and tables, and the records are neither"
    values = math.prod(data.X.shape)
    return f"X holds {values:,} values, more than {MOST_VALUES:,}" if values > MOST_VALUES else ""


def features_of(data: LabelledData) -> Features:
    """Return what attacks may know of each record: its features, and what the model was to predict."""
    if data.is_table:
        columns = [np.where(c.values < 0, np.nan, c.values) if c.levels else c.values for c in data.X.columns]
        categories = [k for k, column in enumerate(data.X.columns) if column.levels]
        numbers = np.column_stack(columns)
    else:
        numbers, categories = np.asarray(data.X).reshape(data.n_points, -1), []
    if data.y is not None:
        categories += [numbers.shape[1]] if data.labels is not None else []
        numbers = np.column_stack([numbers, data.y])
    return Features(numbers.astype(np.float64), tuple(categories))
