"""What a report shows: the results of one folder, and what else is known of the audit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.attacks.moments import IntArray
from plmia.attacks.scoring import Scores
from plmia.data.dataset import LabelledData
from plmia.errors import DataError, Note, OutputError, SignalsError, StoreError
from plmia.evaluation.metrics import BoolArray
from plmia.evaluation.records import RecordTable
from plmia.results.saved import SavedResults
from plmia.signals.signals import Signals
from plmia.signals.store import SignalStore

# All but control characters, lone surrogates and what is no character at all: no SVG may hold these, and no UTF-8 file
# can hold a surrogate.
_UNWRITABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, eq=False)
class Extras:
    """What a report may show beside the results; names and texts must be as many as the data ask for.

    Parameters
    ----------
    data : LabelledData, optional
        The points themselves: images or features.
    texts : sequence of str, optional
        The points as text [points], in place of their features.
    class_names : sequence of str, optional
        Name of each class [classes].
    feature_names : sequence of str, optional
        Name of each feature of a table [features].
    signals : Signals, optional
        Signals of target and references; those of an audit are found in its folder.
    notes : tuple of Note
        What a reader must know about these texts and names.
    """

    data: LabelledData | None = None
    texts: Sequence[str] | None = None
    class_names: Sequence[str] | None = None
    feature_names: Sequence[str] | None = None
    signals: Signals | None = None
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        if self.data is None:
            return
        _require_as_many("texts", self.texts, self.data.n_points, "points")
        _require_as_many("class_names", self.class_names, self.data.n_classes, "classes")
        if not self.data.is_images:
            _require_as_many("feature_names", self.feature_names, self.data.X.shape[1], "features")


def _require_as_many(name: str, texts: Sequence[str] | None, n: int, things: str) -> None:
    if texts is not None and len(texts) != n:
        raise DataError(f"{name} has {len(texts)} texts, the data have {n} {things}: give one for each of them")


@dataclass(frozen=True, eq=False)
class Content:
    """Results of one attack on one target, among those of all; `read_content` makes one.

    Parameters
    ----------
    saved : SavedResults
        The results of all attacks.
    attack, target : str, int
        What the figures and the records speak of.
    extras : Extras
        What else may be shown.
    training : dict of int to dict
        How each model was made, where the audit made it.
    store : SignalStore, optional
        The store in the folder of the results, if these were made of it.
    without_signals : str
        Why there are no signals to show, where there are none.
    """

    saved: SavedResults
    attack: str
    target: int
    extras: Extras = field(default_factory=Extras)
    training: dict[int, dict[str, Any]] = field(default_factory=dict)
    store: SignalStore | None = None
    without_signals: str = "The signals are not in this folder: give them with `plmia report --signals FILE`."

    @property
    def metrics(self) -> dict[str, Any]:
        """The contents of metrics.json."""
        return self.saved.metrics

    @property
    def about(self) -> dict[str, Any]:
        """What was run."""
        about: dict[str, Any] = self.metrics["about"]
        return about

    @property
    def verdict(self) -> dict[str, Any]:
        """The verdict, as metrics.json has it."""
        verdict: dict[str, Any] = self.metrics["verdict"]
        return verdict

    @property
    def level(self) -> float:
        """The false-positive rate of the verdict; 1 % where it has none."""
        return float(self.verdict["fpr"] or 0.01)

    def entry(self, attack: str | None = None) -> dict[str, Any]:
        """What metrics.json says of an attack (the chosen one by default) on the chosen target."""
        entries = self.metrics["attacks"][attack or self.attack]["per_target"]
        found: dict[str, Any] = next(entry for entry in entries if entry["target"] == self.target)
        return found

    @cached_property
    def scores(self) -> Scores:
        """Scores of the chosen attack on the chosen target."""
        return self.saved.scores(self.attack, self.target)

    @cached_property
    def queries(self) -> IntArray:
        """The evaluated points."""
        return self.saved.queries(self.target)

    @cached_property
    def members(self) -> BoolArray:
        """Which of the evaluated points [queries] are members."""
        return self.saved.members(self.target)[self.queries]

    @cached_property
    def table(self) -> RecordTable:
        """Evaluated points, the most exposed first."""
        return self.saved.records(self.attack, self.target)

    @cached_property
    def signals(self) -> Signals | None:
        """Signals of target and references, where they are at hand."""
        if self.extras.signals is not None:
            return self.extras.signals
        if self.store is None:
            return None
        # The store of an audit may have grown since: of its models the audit used the first.
        signals = self.store.signals(range(self.n_models) if "audit" in self.about else None)
        _require_same_signals(self.saved, signals)
        return signals

    @property
    def n_models(self) -> int:
        """How many models were scored, target and references."""
        return int(self.about["signals"]["models"])

    @property
    def groups(self) -> IntArray | None:
        """Group of each point [points], as the results or the data tell it."""
        data = self.extras.data
        return self.saved.groups if self.saved.groups is not None or data is None else data.groups

    @property
    def unchecked(self) -> str | None:
        """What is shown of records (``"texts"``, ``"data"``) without knowing that it is what was audited, if so."""
        made_of = self.about.get("audit", {}).get("data")
        if self.extras.data is not None and made_of is not None:
            return None
        return "texts" if self.extras.texts is not None else "data" if self.extras.data is not None else None

    def class_name(self, label: int) -> str:
        """Name of a class; its number where it has none."""
        names = self.extras.class_names
        return str(names[label]) if names is not None and 0 <= label < len(names) else f"class {label}"


def read_content(
    results: Path | SavedResults, extras: Extras | None = None, attack: str | None = None, target: int | None = None
) -> Content:
    """Read the results in a folder and choose what the report speaks of.

    Parameters
    ----------
    results : Path or SavedResults
        A folder written by `plmia audit` or `plmia score`, or what was read from it.
    extras : Extras, optional
        What else may be shown; checked against the results.
    attack : str, optional
        By default the one of the verdict.
    target : int, optional
        By default the first.
    """
    saved, extras = results if isinstance(results, SavedResults) else SavedResults(results), extras or Extras()
    folder, about = saved.folder, saved.metrics["about"]
    attack = attack or str(saved.metrics["verdict"]["attack"])
    target = min(saved.targets) if target is None else target
    if attack not in saved.attacks:
        raise OutputError(f"{attack!r} is not among the results in {folder}: take one of {', '.join(saved.attacks)}")
    if target not in saved.targets:
        shown = ", ".join(map(str, saved.targets))
        raise OutputError(f"target {target} is not among the results in {folder}: take one of {shown}")
    store, why = _own_store(folder / "signals", about)
    finished = {} if store is None else store.finished()
    used = finished if "audit" not in about else range(about["signals"]["models"])
    training = {model: record for model, record in finished.items() if model in used}
    content = Content(saved, attack, target, extras, training, store, why)
    _require_same_points(content)
    return content


def _own_store(path: Path, about: Mapping[str, Any]) -> tuple[SignalStore | None, str]:
    """Open the store at ``path`` if the results were made of it; else say why there are no signals to show."""
    if not (path / "store.json").is_file():
        return None, Content.without_signals
    try:
        store = SignalStore.open(path)
        if _made_of(about, store):
            return store, ""
    except StoreError as error:
        return None, sentence(f"The signals in this folder cannot be shown: {error}")
    return None, (
        "The signals in this folder are not those of these results, so they are not shown: give the right ones with "
        "`plmia report --signals FILE`."
    )


def _made_of(about: Mapping[str, Any], store: SignalStore) -> bool:
    """Whether results were made of the signals in a store, as far as they say of which they were made."""
    known, used = about["signals"].get("sha256"), None
    if "audit" in about:
        if store.about != about["audit"]:
            return False
        used = range(about["signals"]["models"])  # the store may have grown since
    return known is None or known == store.fingerprint(used)


def _require_same_signals(saved: SavedResults, signals: Signals) -> None:
    """Refuse signals that are not those of the results."""
    known = saved.metrics["about"]["signals"].get("sha256")
    if known and signals.digest and signals.digest != known:
        raise SignalsError(
            f"the results in {saved.folder} are not of these signals (digest {signals.digest[:12]}, scored were "
            f"{known[:12]}): give those that were scored"
        )
    shape = signals.n_models, signals.n_points
    scored = saved.metrics["about"]["signals"]["models"], saved.metrics["about"]["signals"]["points"]
    if shape != scored:
        raise SignalsError(
            f"the signals are of {shape[0]} models at {shape[1]} points, the results of {scored[0]} models at "
            f"{scored[1]}: give those that were scored"
        )
    for target in saved.targets:
        if not np.array_equal(signals.design.matrix[signals.rows([target])[0]], saved.members(target)):
            raise SignalsError(
                f"the signals have other members of target {target} than the results: give those that were scored"
            )


def _require_same_points(content: Content) -> None:
    """Refuse data or signals that are not those of the results."""
    n_points, extras = int(content.about["signals"]["points"]), content.extras
    made_of = content.about.get("audit", {}).get("data")
    if extras.data is not None and extras.data.n_points != n_points:
        raise DataError(f"the data have {extras.data.n_points} points, the results {n_points}: give those audited")
    if extras.data is not None and made_of is not None and extras.data.digest != made_of:
        raise DataError(
            f"the data have the digest {extras.data.digest[:12]}, the audit was of {made_of[:12]}: give those audited"
        )
    if extras.texts is not None and len(extras.texts) != n_points:
        raise DataError(f"there are {len(extras.texts)} texts, the results have {n_points} points: give one a point")
    names, labels = extras.class_names, content.saved.labels
    if names is not None and labels is not None and len(names) <= int(labels.max()):
        raise DataError(
            f"class_names has {len(names)} texts, the labels of the results reach {labels.max()}: give one a class"
        )
    if extras.signals is not None:
        _require_same_signals(content.saved, extras.signals)


def accuracies(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """Accuracy of a model on its own points and on the others, of the record of its training; None if not known."""
    own, others = record.get("train_accuracy"), record.get("test_accuracy")
    if own is None or others is None or not math.isfinite(own + others):
        return None
    return float(own), float(others)


def percent(rate: float | None) -> str:
    """A share as per cent: one decimal from 1 % on, two digits below; the space does not break."""
    if rate is None:
        return "–"
    value = 100 * rate
    return (f"{value:.1f}" if value >= 1 or value == 0 else f"{value:.2g}") + "\u00a0%"


def nice_percent(rate: float) -> str:
    """A round share as per cent, without needless digits: 10 %, 0.1 %."""
    return f"{100 * rate:.10g}\u00a0%"


def seconds(value: float) -> str:
    """A time in the unit that suits it."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if value < limit:
            return f"{value / size:.2g} {unit}" if value / size < 10 else f"{value / size:.0f} {unit}"
    return f"{value / 86_400:.1f} days"


def sentence(text: str) -> str:
    """The text with a capital letter at its start and a full stop at its end."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def writable(text: str) -> str:
    """The text with U+FFFD for every character that cannot be written, such as a lone surrogate."""
    return _UNWRITABLE.sub("\ufffd", text)


def rounded(values: npt.ArrayLike, digits: int = 5) -> list[Any]:
    """Plain numbers of a few significant digits, None where they are not finite; an array of any shape."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        return [rounded(part, digits) for part in array]
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in array.tolist()]
