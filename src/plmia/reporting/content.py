"""Content of a report: the results, the attack and target that it is about, and the extras shown beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from plmia.attacks.scoring import Scores
from plmia.data.arrays import BoolArray, IntArray
from plmia.errors import DataError, SignalsError, StoreError, sentence
from plmia.evaluation.records import RecordTable
from plmia.reporting.extras import Extras
from plmia.results.result import About, RunResult, TargetSummary, Verdict
from plmia.results.saved import SavedRun
from plmia.signals.signals import Signals
from plmia.signals.store import SignalStore


@dataclass(frozen=True)
class TrainingRecord:
    """How a model was trained, as far as the store knows it.

    ``losses`` has one value per epoch, None if it was not finite. ``accuracies`` are those on the training records and
    on the others, both finite.
    """

    losses: tuple[float | None, ...] = ()
    accuracies: tuple[float, float] | None = None
    seconds: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TrainingRecord:
        """Read a record of the store."""
        own, others = record.get("train_accuracy"), record.get("test_accuracy")
        pair = None if own is None or others is None else (float(own), float(others))
        accuracies = pair if pair is not None and math.isfinite(sum(pair)) else None
        return cls(tuple(record.get("losses") or ()), accuracies, record.get("seconds"), record.get("versions") or {})


@dataclass(frozen=True, eq=False)
class Content:
    """Content of a report; `read_content` makes one.

    Parameters
    ----------
    saved : SavedRun
        The results of all attacks.
    attack, target : str, int
        Subject of the figures and of the table of records.
    extras : Extras
        What else can be shown.
    training : mapping of int to TrainingRecord
        Training record of each model, if the audit trained it.
    store : SignalStore, optional
        The store in the folder of the results, if these were made from it.
    without_signals : str
        Why there are no signals to show, if there are none.
    """

    saved: SavedRun
    attack: str
    target: int
    extras: Extras = field(default_factory=Extras)
    training: Mapping[int, TrainingRecord] = field(default_factory=dict)
    store: SignalStore | None = None
    without_signals: str = "The signals are not in this folder. Add them with `plmia report --signals FILE`."

    @property
    def result(self) -> RunResult:
        """The content of metrics.json."""
        return self.saved.result

    @property
    def about(self) -> About:
        """What was run."""
        return self.saved.result.about

    @property
    def verdict(self) -> Verdict:
        """The verdict."""
        return self.saved.result.verdict

    @property
    def level(self) -> float:
        """The false-positive rate of the verdict; 1 % if it has none."""
        return self.verdict.fpr or 0.01

    def entry(self, attack: str | None = None) -> TargetSummary:
        """Results of an attack (the chosen one by default) on the chosen target."""
        return self.result.attacks[attack or self.attack].on(self.target)

    @cached_property
    def scores(self) -> Scores:
        """Scores of the chosen attack on the chosen target."""
        return self.saved.scores(self.attack, self.target)

    @cached_property
    def queries(self) -> IntArray:
        """The evaluated records."""
        return self.saved.queries(self.target)

    @cached_property
    def members(self) -> BoolArray:
        """Which of the evaluated records [queries] are members."""
        return self.saved.members(self.target)[self.queries]

    @cached_property
    def table(self) -> RecordTable:
        """Evaluated records, the most exposed first."""
        return self.saved.records(self.attack, self.target)

    @cached_property
    def signals(self) -> Signals | None:
        """Signals of target and references, if they are available."""
        if self.extras.signals is not None or self.store is None:
            return self.extras.signals
        signals = self.store.signals(_used_models(self.about))
        _require_same_signals(self.saved, signals)
        return signals

    @property
    def groups(self) -> IntArray | None:
        """Group of each record [points], from the results or else from the data."""
        data = self.extras.data
        return self.saved.groups if self.saved.groups is not None or data is None else data.groups

    @property
    def unchecked(self) -> str | None:
        """Extras (``"texts"``, ``"data"``) that could not be compared with the audited data, if any."""
        if self.extras.data is not None and self.about.data_digest is not None:
            return None
        return "texts" if self.extras.texts is not None else "data" if self.extras.data is not None else None

    @property
    def mean_model_seconds(self) -> float | None:
        """Mean time to train one model, if it is known."""
        times = [record.seconds for record in self.training.values() if record.seconds]
        return sum(times) / len(times) if times else None

    def class_name(self, label: int) -> str:
        """Name of a class, or its number if it has no name."""
        names = self.extras.class_names
        return str(names[label]) if names is not None and 0 <= label < len(names) else f"class {label}"


def read_content(
    results: Path | SavedRun, extras: Extras | None = None, attack: str | None = None, target: int | None = None
) -> Content:
    """Read the results in a folder and choose the subject of the report; see `write_report` for the parameters."""
    saved, extras = results if isinstance(results, SavedRun) else SavedRun(results), extras or Extras()
    folder, about = saved.folder, saved.result.about
    attack = attack or saved.result.verdict.attack
    target = min(saved.targets) if target is None else target
    store, reason = _own_store(folder / "signals", about)
    finished, used = {} if store is None else store.finished(), _used_models(about)
    training = {k: TrainingRecord.from_json(record) for k, record in finished.items() if used is None or k in used}
    content = Content(saved, attack, target, extras, training, store, reason)
    _ = content.table  # raises for an attack or a target without results
    _require_same_records(content)
    return content


def _used_models(about: About) -> range | None:
    """Models of the folder's store that the results are of; None for all."""
    # The store of an audit may have grown since.
    return None if about.audit is None else range(about.signals.models)


def _own_store(path: Path, about: About) -> tuple[SignalStore | None, str]:
    """Open the store at ``path`` if the results were made from it; else say why there are no signals to show."""
    if not (path / "store.json").is_file():
        return None, Content.without_signals
    try:
        store = SignalStore.open(path)
        if _made_from(about, store):
            return store, ""
    except StoreError as error:
        return None, sentence(f"The signals in this folder cannot be shown: {error}")
    return None, (
        "The signals in this folder do not belong to these results. Add the scored ones with "
        "`plmia report --signals FILE`."
    )


def _made_from(about: About, store: SignalStore) -> bool:
    """Whether results were made from the signals in a store, as far as the results record it."""
    if about.audit is not None and store.about != about.audit:
        return False
    known = about.signals.sha256
    return known is None or known == store.fingerprint(_used_models(about))


def _require_same_signals(saved: SavedRun, signals: Signals) -> None:
    """Raise if signals are not those of the results."""
    scored, known = saved.result.about.signals, saved.result.about.signals.sha256
    if known and signals.digest and signals.digest != known:
        raise SignalsError(
            f"the signals have the digest {signals.digest[:12]}, but the results in {saved.folder} are of "
            f"{known[:12]}: give the signals that were scored"
        )
    if (signals.n_models, signals.n_points) != (scored.models, scored.points):
        raise SignalsError(
            f"the signals are of {signals.n_models} models and {signals.n_points} records, but the results of "
            f"{scored.models} models and {scored.points} records: give the signals that were scored"
        )
    for target in saved.targets:
        if not np.array_equal(signals.design.matrix[signals.rows([target])[0]], saved.members(target)):
            raise SignalsError(
                f"the members of target {target} differ between signals and results: give the signals that were scored"
            )


def _require_same_records(content: Content) -> None:
    """Raise if extras do not belong to the results."""
    n_points, audited, extras = content.about.signals.points, content.about.data_digest, content.extras
    if extras.data is not None and extras.data.n_points != n_points:
        raise DataError(
            f"the data have {extras.data.n_points} records, but the results {n_points}: give the audited data"
        )
    if extras.data is not None and audited is not None and extras.data.digest != audited:
        raise DataError(
            f"the data have the digest {extras.data.digest[:12]}, but the audit was of {audited[:12]}: "
            "give the audited data"
        )
    if extras.texts is not None and len(extras.texts) != n_points:
        raise DataError(
            f"there are {len(extras.texts)} texts, but the results have {n_points} records: give one text per record"
        )
    names, labels = extras.class_names, content.saved.labels
    if names is not None and labels is not None and len(names) <= int(labels.max()):
        raise DataError(
            f"class_names has {len(names)} entries, but the results have labels up to {labels.max()}: "
            "give one name per class"
        )
    if extras.signals is not None:
        _require_same_signals(content.saved, extras.signals)
