"""Content of a report: the results, the attack and target that it is about, and extras shown beside them."""

from __future__ import annotations

import base64
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from plmia.attacks.scoring import Scores
from plmia.data.arrays import Array, BoolArray, FloatArray, IntArray, Labels
from plmia.data.dataset import LabelledData, read_data, writable_texts
from plmia.data.files import is_file
from plmia.data.npz import TEXT_ARRAYS, load_npz, text_array
from plmia.data.tables import Column, Kind
from plmia.errors import DataError, Note, SignalsError, StoreError, percent, sentence
from plmia.evaluation.accusations import Accusation
from plmia.evaluation.records import RecordTable
from plmia.evaluation.subgroups import SubgroupTable
from plmia.evaluation.trainings import TrainingsSummary
from plmia.reporting.drawing import shortened
from plmia.results.result import About, OneRecordSummary, RunResult, TargetSummary, Verdict
from plmia.results.saved import SavedRun
from plmia.signals.signals import Signals
from plmia.signals.store import SignalStore
from plmia.training.records import TrainingRecord

# Extras ---------------------------------------------------------------------------------------------------------------

# Names of the array of records in an npz (see `read_data`).
_POINTS = ("X", "features")


@dataclass(frozen=True, eq=False)
class Extras:
    """What a report can show beside the results.

    Texts and names belong to the data, where there are data. They are given here for results without data.
    """

    data: LabelledData | None = None
    texts: Sequence[str] | None = None  # the records as text [points], shown instead of their features
    class_names: Sequence[str] | None = None
    title: str | None = None  # of the page
    signals: Signals | None = None  # of target and references; those of an audit are found in its folder
    notes: tuple[Note, ...] = ()  # about these texts and names

    def __post_init__(self) -> None:
        if self.data is not None:
            for name in ("texts", "class_names"):
                if getattr(self, name) is None:
                    object.__setattr__(self, name, getattr(self.data, name))


def read_extras(path: Path, **columns: Any) -> Extras:
    """Read data with `read_data`; from an npz without records, its texts and names alone.

    An npz can hold `texts` [records], `class_names` [classes] and `feature_names` [features], or `texts` alone. Further
    parameters are those of `read_data`.
    """
    if _has_texts_only(path):
        arrays = load_npz(path, TEXT_ARRAYS, "`X` or `texts`", DataError)
        shown = {n: writable_texts(n, text_array(path, n, array)) for n, array in arrays.items()}
        texts, names = (shown[name][0] if name in shown else None for name in ("texts", "class_names"))
        return Extras(None, texts, names, notes=tuple(note for _, notes in shown.values() for note in notes))
    data = read_data(path, **columns)
    return Extras(data, notes=data.notes)


def _has_texts_only(path: Path) -> bool:
    """Whether an npz has texts and no records."""
    if path.suffix != ".npz" or not (is_file(path) and zipfile.is_zipfile(path)):
        return False
    with zipfile.ZipFile(path) as archive:
        held = {name.removesuffix(".npy") for name in archive.namelist()}
    return "texts" in held and held.isdisjoint(_POINTS)


# Content --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Content:
    """Content of a report; `read_content` makes one."""

    saved: SavedRun
    attack: str  # with the target, the subject of the figures and of the table of records
    target: int
    extras: Extras = field(default_factory=Extras)
    training: Mapping[int, TrainingRecord] = field(default_factory=dict)  # by model, if the audit trained it
    store: SignalStore | None = None  # in the folder of the results, if these were made from it
    # Why there are no signals to show, if there are none.
    without_signals: str = "The signals are not in this folder. Add them with `plmia report --signals FILE`."

    @property
    def signal_name(self) -> str:
        """Name of the signals for an axis."""
        return "Logit-scaled confidence" if self.about.signal is None else "Signal"

    @property
    def unit(self) -> str:
        """What is judged, as a noun: ``"person"`` or ``"record"``."""
        return "person" if self.about.people else "record"

    @property
    def units(self) -> str:
        """The plural of `unit`."""
        return "people" if self.about.people else "records"

    @property
    def labels(self) -> Labels | None:
        """Class of each judged record [records]; None without classes, and for people, who may have several."""
        return None if self.about.people else self.saved.labels

    @property
    def without_classes(self) -> str:
        """Why classes cannot be compared, where there are none."""
        if self.about.people:
            return "The records of one person may have several classes: compare people by a column (--by) instead."
        if self.about.signal is None:
            return "The signals carry no labels. Add `labels` to the file to compare classes."
        return "The models of this audit return a signal, not classes, so there are no classes to compare."

    @property
    def without_accuracies(self) -> str:
        """Why there are no accuracies to show, where there are none."""
        if self.about.signal is None:
            return "There are no training records with accuracies."
        return "The models of this audit return a signal, not classes, so they have no accuracy."

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
    def reliable(self) -> bool:
        """Whether numbers may be taken at face value: not those of an invalid audit."""
        return self.verdict.status != "invalid"

    @property
    def one_record(self) -> Mapping[str, OneRecordSummary]:
        """What each attack finds with one record per person; empty unless people were judged."""
        return (self.result.one_record or {}) if self.reliable else {}

    @property
    def accusations(self) -> tuple[Accusation, ...]:
        """What accusations by the verdict's attack are worth."""
        return self.result.accusations if self.reliable else ()

    @property
    def subgroups(self) -> tuple[SubgroupTable, ...]:
        """Exposure of subgroups, one table per column."""
        return self.result.subgroups if self.reliable else ()

    @property
    def trainings(self) -> TrainingsSummary | None:
        """The verdict's attack over all trainings."""
        return self.result.trainings if self.reliable else None

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
        """The evaluated records or people."""
        return self.saved.queries(self.target)

    @cached_property
    def members(self) -> BoolArray:
        """Which of the evaluated records or people [queries] are members."""
        return self.saved.members(self.target)[self.queries]

    @cached_property
    def table(self) -> RecordTable:
        """Evaluated records or people, the most exposed first."""
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
        """Group of each record [records], from the results or else from the data."""
        data = self.extras.data
        return self.saved.groups if self.saved.groups is not None or data is None else data.groups

    @property
    def unchecked(self) -> str | None:
        """Extras (``"texts"``, ``"data"``) that could not be compared with the audited data, if any."""
        if self.extras.data is not None and self.about.data_digest is not None:
            return None
        return "texts" if self.extras.texts is not None else "data" if self.extras.data is not None else None

    @property
    def title(self) -> str:
        """Title of the page."""
        data = self.extras.data
        named = "" if data is None else f" of {data.name}"
        return self.extras.title or f"Membership leakage audit{named}"

    def group_names(self, records: IntArray) -> list[str | int] | None:
        """Names of the groups of some records, or their numbers if they have no names; None without groups."""
        if self.groups is None:
            return None
        names = None if self.extras.data is None else self.extras.data.group_names
        groups: list[int] = self.groups[records].tolist()
        return [group if names is None else names[group] for group in groups]

    @property
    def class_names(self) -> Sequence[str] | None:
        """Names of the classes, from the extras or else from the results."""
        return self.extras.class_names if self.extras.class_names is not None else self.about.class_names

    def class_name(self, label: int) -> str:
        """Name of a class, or its number if it has no name."""
        names = self.class_names
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
        known = about.signals.sha256
        same = known is None or known == store.fingerprint(_used_models(about))
        if same and about.audit in (None, store.about):
            return store, ""
    except StoreError as error:
        return None, sentence(f"The signals in this folder cannot be shown: {error}")
    return None, (
        "The signals in this folder do not belong to these results. Add the scored ones with "
        "`plmia report --signals FILE`."
    )


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
        members = signals.design.matrix[signals.rows([target])[0]]
        judged = members[saved.people[1]] if saved.result.about.people else members
        if not np.array_equal(judged, saved.members(target)):
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


# Previews of records --------------------------------------------------------------------------------------------------

# Previews take at most this many characters of the page, whose limit is 6 MB.
MAX_CHARACTERS = 2_000_000
MAX_TEXT, MAX_FEATURES, MAX_NAME = 160, 4, 40
# Records over which means and deviations of features are taken, and pixels per side of a thumbnail.
_SAMPLE, _SIDE = 20_000, 64

Preview = dict[str, str]
"""An ``image`` (a data URI) or a ``text``."""


def previews(extras: Extras, records: Sequence[int]) -> list[Preview]:
    """Show texts, else images, else features of records; only of the first ones if the page has no room for all."""
    found: Iterable[Preview] = []
    if extras.texts is not None:
        texts = extras.texts
        found = ({"text": shortened(str(texts[record]), MAX_TEXT)} for record in records)
    elif extras.data is not None and extras.data.is_images:
        found = _thumbnails(extras.data, records)
    elif shows_features(extras) and extras.data is not None:
        found = _unusual_values(extras.data, records)
    return list(_that_fit(found))


def shows_features(extras: Extras) -> bool:
    """Whether `previews` shows the features of records."""
    return extras.texts is None and extras.data is not None and extras.data.has_features


def _that_fit(found: Iterable[Preview]) -> Iterator[Preview]:
    room = MAX_CHARACTERS
    for preview in found:
        # JSON takes up to six characters for one that is not ASCII.
        room -= sum(len(json.dumps(part)) for part in preview.values())
        if room < 0:
            return
        yield preview


def _thumbnails(data: LabelledData, records: Sequence[int]) -> Iterator[Preview]:
    sample = data.X[:: max(1, data.n_points // 100)]
    low, high = (0.0, 255.0) if data.X.dtype == np.uint8 else (float(sample.min()), float(sample.max()))
    for record in records:
        image = np.asarray(data.X[record], dtype=np.float64)
        step = -(-max(image.shape[:2]) // _SIDE)
        scaled = np.clip((image[::step, ::step] - low) / max(high - low, np.finfo(float).tiny), 0, 1)
        encoded = base64.b64encode(encode_png(np.round(255 * scaled).astype(np.uint8))).decode()
        yield {"image": f"data:image/png;base64,{encoded}"}


def encode_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Encode an image [height, width] or [height, width, channels] as PNG: grey, or the first three channels.

    Written by hand, since thumbnails must not depend on an image library.
    """
    if pixels.ndim == 3:
        pixels = pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, 0]
    height, width = pixels.shape[:2]
    # Each line starts with the number of its filter, here 0 for none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    encoded = (struct.pack(">I", len(c)) + kind + c + struct.pack(">I", zlib.crc32(kind + c)) for kind, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(encoded)


def _unusual_values(data: LabelledData, records: Sequence[int]) -> Iterator[Preview]:
    """Yield the features furthest from what is usual: numbers by standard deviations, categories by their rarity.

    A category that a share p of the records have is as unusual as a normal number whose distance from the mean only a
    share p exceeds.
    """
    chosen = np.asarray(records, np.intp)
    names = data.feature_names or [f"feature {k}" for k in range(data.X.shape[1])]
    found = [_Values.of(shortened(name, MAX_NAME), _column_of(data, k), chosen) for k, name in enumerate(names)]
    far = np.abs(np.stack([values.surprise for values in found], axis=1))
    for place, order in enumerate(np.argsort(-far, axis=1, kind="stable")[:, :MAX_FEATURES]):
        yield {"text": ", ".join(found[k].text(place) for k in order)}


def _column_of(data: LabelledData, k: int) -> Column:
    return data.X.columns[k] if data.is_table else Column.read("X", str(k), data.X[:, k])


@dataclass(frozen=True, eq=False)
class _Values:
    """Values of one feature at the records that are shown, and how unusual each is in standard deviations."""

    title: str
    kind: Kind
    levels: tuple[str, ...]
    values: Array
    surprise: FloatArray  # 0 where the value is missing

    @classmethod
    def of(cls, title: str, column: Column, records: IntArray) -> _Values:
        values = column.values[records]
        if column.kind == "category":
            shares = np.bincount(column.values + 1, minlength=len(column.levels) + 1) / len(column.values)
            surprise = np.where(values < 0, 0.0, -ndtri(shares[values + 1] / 2))
            return cls(title, column.kind, column.levels, values, surprise)
        sample = column.values[:: -(-len(column.values) // _SAMPLE)]
        sample = sample[np.isfinite(sample)]
        spread = float(sample.std()) if len(sample) else 0.0
        far = (values - sample.mean()) / spread if spread > 0 else np.zeros(len(values))
        return cls(title, column.kind, (), values, np.nan_to_num(far))

    def text(self, place: int) -> str:
        """Name, value and rarity at one of the records."""
        value, far = self.values[place], self.surprise[place]
        if self.kind == "category":
            level = "missing" if value < 0 else f"= {shortened(self.levels[value], MAX_NAME)}"
            return f"{self.title} {level}" + f" ({percent(2 * ndtr(-far))} of records)" * bool(value >= 0)
        if math.isnan(value):
            return f"{self.title} missing"
        shown = f"{value:.4g}"
        if self.kind == "date":
            shown = str(np.datetime64(round(value), "s").astype("datetime64[D]"))
        return f"{self.title} = {shown} ({far:+.1f} sd)"
