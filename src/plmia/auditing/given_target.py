"""A target model that existed before the audit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast, get_args

import numpy as np

from plmia.auditing.matching import RecordIds
from plmia.auditing.members import read_members
from plmia.auditing.model_files import OnnxModel, read_skops
from plmia.auditing.predictions import Answers, Predictions
from plmia.data.arrays import BoolArray, FloatArray32, Floats, IntArray, Labels, PredictionKind, SignalKind
from plmia.data.dataset import LabelledData
from plmia.data.designs import MembershipDesign, count_split_groups
from plmia.data.files import exists
from plmia.data.npz import load_array
from plmia.data.records import array_of
from plmia.data.table_files import is_table_file, read_frame
from plmia.data.tables import is_frame
from plmia.errors import DataError, Note, RecipeError, percent
from plmia.evaluation.diagnostics.signals import lower_accuracy, unlike_answers, unlike_fit, unlike_records
from plmia.signals.signals import Signals
from plmia.training.recipes.recipe import Recipe, Trained
from plmia.training.recipes.scikit import Sklearn
from plmia.training.records import TrainingRecord
from plmia.training.views import Views

# Largest difference between the shares of members that needs no note.
MAX_SHARE_DIFFERENCE = 0.05
# A difference of more standard errors than this is not due to chance.
MAX_STANDARD_ERRORS = 4.0
# No number of references above this is recommended.
MOST_RECOMMENDED = 64
# References that are needed to compare a target with them at all, and to see more than gross differences.
MIN_REFERENCES, GOOD_REFERENCES = 4, 16


class Source(Protocol):
    """Where the answers of a given target come from: `Predictions`, an `OnnxModel`, or a fitted model."""

    def ask(self, data: LabelledData, members: BoolArray, views: Views, recipe: Recipe) -> Answers:
        """Return its signals [records, views], of the same kind as the recipe's.

        Raises `DataError` if it does not fit the data, the views or the recipe.
        """
        ...


@dataclass(frozen=True)
class FittedModel:
    """A model in this process: a classifier with `predict_proba`, or whatever the recipe can query."""

    model: Any

    def ask(self, data: LabelledData, members: BoolArray, views: Views, recipe: Recipe) -> Answers:
        """Query the model; see `Source.ask`."""
        query = Sklearn.query if hasattr(self.model, "predict_proba") else recipe.query_given
        try:
            answers = query(self.model, data, members, views)
        except RecipeError as error:
            hint = "; give a model that was fitted on the same features and classes" if error.__cause__ else ""
            raise DataError(
                f"the given target cannot be queried: {' '.join(str(error).split()).rstrip('.')}{hint}"
            ) from error
        if answers.trouble:
            raise DataError(f"{answers.trouble} of the given target: every answer must be a finite number")
        return Answers(answers)


@dataclass(frozen=True)
class GivenTarget:
    """A target model that existed before the audit, instead of one that the audit trains.

    Parameters
    ----------
    members : bool array [records]
        True for records that it trained on; whole groups only.
    conf : float array [records] or [records, views], optional
        Its logit-scaled true-label confidences (probabilities are refused), or its signals as the recipe defines them.
    model : object, optional
        A fitted model to query instead: a scikit-learn classifier, which gets X unchanged, or one that the recipe can
        query.
    source : Source, optional
        Its predictions, or a model from a file, instead; `plmia.audit` makes one of what you have.
    notes : tuple of Note
        Notes on how its members were read.
    """

    members: BoolArray
    conf: Floats | None = None
    model: Any = None
    source: Source | None = None
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", np.asarray(self.members))
        if sum(part is not None for part in (self.conf, self.model, self.source)) != 1:
            raise DataError("a given target needs either its signals (conf) or its model: give one of the two")
        if self.model is not None:
            object.__setattr__(self, "source", FittedModel(self.model))

    def check(self, data: LabelledData, *, whole_groups: bool = True) -> None:
        """Raise `DataError` if the members cannot be those of a target on ``data``, or are not ``whole_groups``."""
        if self.members.shape != (data.n_points,) or self.members.dtype != np.bool_:
            raise DataError(
                f"the target's members have shape {self.members.shape} and type {self.members.dtype}: "
                f"a bool array [{data.n_points}] is needed, True for records that it trained on"
            )
        if self.members.all() or not self.members.any():
            raise DataError(
                f"the target trained on {'all' if self.members.all() else 'none'} of the {data.n_points:,} records: "
                "add non-members (or members), since both are needed"
            )
        cut, n_groups = (0, 0) if data.groups is None else count_split_groups(self.members, data.groups)
        if cut and whole_groups:
            raise DataError(
                f"the target's members cut {cut:,} of the {n_groups:,} groups in two, but references train on whole "
                "groups: mark whole groups as members, or leave groups out if the target was split by rows"
            )

    def matching_references(self, references: int, least: int, groups: Labels | None) -> int | None:
        """Number of references that each record should be in, for these to train on the target's share of the records.

        None if the share is about one half, as in complementary pairs, or if there are too few references. At least an
        eighth of the references, and ``least``, are IN and OUT at each record.
        """
        units = self.members if groups is None else self.members[np.unique(groups, return_index=True)[1]]
        share, fewest = float(units.mean()), max(least, -(-references // 8))
        if abs(share - 0.5) <= MAX_SHARE_DIFFERENCE or references < 2 * fewest:
            return None
        return min(max(round(share * references), fewest), references - fewest)

    def ask(self, data: LabelledData, views: Views, recipe: Recipe) -> Answers:
        """Return its signals [records, views], its accuracies where they are known (else NaN), and notes."""
        source = self.source or Predictions(np.asarray(self.conf), recipe.signal, source="the array `conf`")
        answers = source.ask(data, self.members, views, recipe)
        if not np.ptp(answers.trained.conf, axis=0).any():
            raise DataError("the target's signals are the same at all records, so no attack can work: check them")
        return answers

    def doubts(
        self, answers: Trained, design: MembershipDesign, data: LabelledData, kind: SignalKind, least: int = 1
    ) -> list[Note]:
        """Reasons for doubt that are known before any reference is trained; model 0 of the design is the target.

        ``least`` is the number of IN and of OUT references that the attacks need at each record.
        """
        # One record per group: records of one group are not independent evidence.
        alone = np.arange(data.n_points) if data.groups is None else np.unique(data.groups, return_index=True)[1]
        notes = (
            self._other_share(design.matrix[:, alone], data, least),
            _inverted(answers.conf[:, 0], self.members, len(alone), kind),
            _at_chance(answers, self.members, data),
        )
        return [*self.notes, *(note for note in notes if note)]

    def _other_share(self, units: BoolArray, data: LabelledData, least: int) -> Note | None:
        """Note that the target (row 0 of membership [models, units]) trained on another share than its references."""
        own, theirs = float(units[0].mean()), float(units[1:].mean())
        if abs(own - theirs) <= MAX_SHARE_DIFFERENCE:
            return None
        what, more = "records" if data.groups is None else "groups", f"audit with more {'non-' * (own > theirs)}members"
        needed = self._matching_from(own, least, data.groups)
        remedy = f"Train {needed} or more references in the default design, or {more}" if needed else more.capitalize()
        text = (
            f"The target trained on {100 * own:.0f} % of the {what}, its references on {100 * theirs:.0f} %, so "
            f"attacks may find less than they could. {remedy}."
        )
        return Note("other-share", "caution", text)

    def _matching_from(self, share: float, least: int, groups: Labels | None) -> int | None:
        """Number of references from which on they train on about the target's share; None if there is none."""
        chosen = {n: self.matching_references(n, least, groups) for n in range(1, MOST_RECOMMENDED + 1)}
        other = [n for n, k in chosen.items() if abs((n / 2 if k is None else k) / n - share) > MAX_SHARE_DIFFERENCE]
        needed = max(other, default=0) + 1
        return needed if needed < MOST_RECOMMENDED else None

    def weighed(
        self, notes: Sequence[Note], signals: Signals, records: Mapping[int, TrainingRecord], data: LabelledData
    ) -> list[Note]:
        """Return the notes; that the target is at chance is a caution if every reference is clearly better."""
        shares = signals.design.matrix.mean(axis=1)
        found = [(shares[k], record.accuracies) for k, record in records.items() if k != 0]
        right = [share * known[0] + (1 - share) * known[1] for share, known in found if known is not None]
        if data.labels is None or not right or min(right) <= _chance(data.labels, MAX_STANDARD_ERRORS)[1]:
            return list(notes)
        more = f"; its references are right at {percent(min(right))} or more"
        return [
            replace(note, severity="caution", text=note.text.rstrip(".") + more)
            if note.code == "target-at-chance"
            else note
            for note in notes
        ]

    def compared(self, signals: Signals, records: Mapping[int, Mapping[str, Any]] | None = None) -> list[Note]:
        """Notes from a comparison with the references; model 0 of ``signals`` is the target.

        ``records`` are as for `accuracy_of`.
        """
        n = signals.n_models - 1
        if n < MIN_REFERENCES:
            text = (
                f"{n} references are too few to check whether the given target was trained in the same way: "
                f"{MIN_REFERENCES} are needed, {GOOD_REFERENCES} to see more than gross differences."
            )
            return [Note("likeness-unchecked", "caution", text)]
        if elsewhere := unlike_records(signals).warning:
            return [Note("records-unlike-references", "caution", elsewhere)]
        if unlike := likeness_notes(signals, records):
            return unlike
        text = (
            f"{n} references show only gross differences between the given target and them: train {GOOD_REFERENCES} "
            "or more to see others."
        )
        return [] if n >= GOOD_REFERENCES else [Note("likeness-unchecked", "info", text)]


def likeness_notes(signals: Signals, records: Mapping[int, Mapping[str, Any]] | None = None) -> list[Note]:
    """Note that the target, model 0, answers or fits its members unlike its references, if there are enough.

    ``records`` are as for `accuracy_of`.
    """
    if signals.n_models - 1 < MIN_REFERENCES:
        return []
    fit, answers = unlike_fit(signals).warning, None
    if signals.kind == "confidence":
        fit = lower_accuracy(signals, records).warning or fit
        answers = unlike_answers(signals).warning
    found = {"answers-unlike-references": answers, "fit-unlike-references": fit}
    return [Note(code, "caution", text) for code, text in found.items() if text is not None]


def _at_chance(answers: Trained, members: BoolArray, data: LabelledData) -> Note | None:
    """Note that the target is right no more often than the most frequent class is the true one."""
    right = float(np.where(members, answers.train_accuracy, answers.test_accuracy).mean())
    if data.labels is None or math.isnan(right):
        return None
    usual, limit = _chance(data.labels, 2)
    if right > limit:
        return None
    text = (
        f"The given target is right at {percent(right)} of the records; the most frequent class is the true one at "
        f"{percent(usual)}. Check that it is of these data, and the order of its rows and classes"
    )
    return Note("target-at-chance", "info", text)


def _chance(labels: IntArray, errors: float) -> tuple[float, float]:
    """Share of the most frequent class, and this share plus so many standard errors."""
    usual = float(np.bincount(labels).max()) / len(labels)
    return usual, usual + errors * math.sqrt(usual * (1 - usual) / len(labels))


def _inverted(conf: FloatArray32, members: BoolArray, n_units: int, kind: SignalKind) -> Note | None:
    """Note that the target has large signals (of confidences, above 0) more often at non-members, beyond chance."""
    sure = conf > (0.0 if kind == "confidence" else float(np.median(conf)))
    inside, outside, share = float(sure[members].mean()), float(sure[~members].mean()), float(members.mean())
    pooled = float(sure.mean())
    error = math.sqrt(pooled * (1 - pooled) / (n_units * share * (1 - share)))
    if outside - inside <= MAX_STANDARD_ERRORS * error:
        return None
    what = "is right and sure" if kind == "confidence" else "has signals above their median"
    text = (
        f"The given target {what} more often at records called non-members ({percent(outside)}) than at members "
        f"({percent(inside)}). Check that `members` is not inverted (True for records that it trained on)."
    )
    return Note("members-swapped", "invalid", text)


# From what users have ------------------------------------------------------------------------------------------------

_PICKLED = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".rds", ".rdata")


def as_target(
    target: Any,
    members: Any,
    data: LabelledData,
    kind: PredictionKind = "auto",
    ids: RecordIds | None = None,
    known: Mapping[str, Any] = MappingProxyType({}),
) -> GivenTarget | None:
    """Make a given target of predictions, a model or the file of either, and of its members; None for none.

    Parameters
    ----------
    target : GivenTarget, path, array, data frame, fitted model or None
        A csv, parquet, npz or npy file of predictions, an onnx or skops file, predictions, or a model to query.
    members : array, series, path or None
        The records that it trained on; see `plmia.auditing.members`.
    data : LabelledData
        The records.
    kind : str
        What predictions are; see `Predictions`.
    ids : RecordIds, optional
        Ids by which the rows of tables are matched with the records; by default they have the same order.
    known : mapping of str to series
        Columns of the data by name; tables with other orders of their values are refused, unless there are ids.
    """
    if isinstance(target, GivenTarget) or (target is None and members is None):
        if members is not None:
            raise DataError("members are given twice: leave them out, since a GivenTarget has its own")
        return target
    if target is None or members is None:
        missing = "target (--target)" if target is None else "members (--members)"
        raise DataError(f"an existing model is audited with its answers and its members: give {missing}, too")
    found, notes = read_members(members, data.n_points, ids, known)
    return GivenTarget(found, source=_source(target, kind, ids, known), notes=tuple(notes))


def _source(target: Any, kind: PredictionKind, ids: RecordIds | None, known: Mapping[str, Any]) -> Source:
    if isinstance(target, str | Path):
        return _from_file(Path(target), kind, ids, known)
    if is_frame(target):
        return Predictions.of_frame(target, kind, "the table `target`", ids, known)
    if isinstance(target, list | tuple) or hasattr(target, "__array__"):
        _require_no_ids(ids, "`target`")
        values = array_of(target)
        return Predictions(np.asarray(target) if values is None else values, kind, source="the array `target`")
    return FittedModel(target)


def _require_no_ids(ids: RecordIds | None, source: str) -> None:
    if ids is not None:
        raise DataError(f"{source} is an array without a column {ids.column!r} to match its rows by: give a table")


def _from_file(path: Path, kind: PredictionKind, ids: RecordIds | None, known: Mapping[str, Any]) -> Source:
    ending = path.suffix.lower()
    if not exists(path):
        raise DataError(f"there is no file {path} with the target's predictions or model: check the path")
    if ending in _PICKLED:
        raise DataError(
            f"{path} can run code when it is read, so it is never loaded: save the model as skops or ONNX, or its "
            "predictions as CSV"
        )
    if ending == ".onnx":
        return OnnxModel(path)
    if ending == ".skops":
        return FittedModel(read_skops(path))
    if ending in (".npz", ".npy"):
        _require_no_ids(ids, str(path))
        kinds = get_args(PredictionKind)[2:]  # arrays called "values" may hold anything
        name, values = load_array(path, kinds, "the target's predictions", DataError)
        stated = cast("PredictionKind", name) if kind == "auto" and name in kinds else kind
        return Predictions(values, stated, source=str(path))
    if not is_table_file(path):
        raise DataError(
            f"{path} has none of the endings csv, parquet, npz, npy, onnx or skops: save the target's predictions or "
            "model as one of these"
        )
    frame, notes = read_frame(path)
    found = Predictions.of_frame(frame, kind, str(path), ids, known)
    return replace(found, notes=(*notes, *found.notes))
