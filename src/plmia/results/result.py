"""Typed result of a run: the content of metrics.json, schema 2.

`RunResult.from_json` checks everything that it reads: a file may be damaged, hostile or of an earlier schema. What it
returns can be shown, compared and drawn without further checks. Shares are fractions from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, cast

import numpy as np

from plmia.attacks.alignment import Alignment
from plmia.attacks.empirical_bayes.model import Knots, ShiftPrior, SpreadPrior
from plmia.attacks.view import Mode
from plmia.data.arrays import SignalKind
from plmia.errors import Note, percent, visible
from plmia.evaluation.accusations import Accusation
from plmia.evaluation.decisions import Decision
from plmia.evaluation.diagnostics.p_values import FprCurve, PairwiseP, PopulationSize
from plmia.evaluation.diagnostics.power import EnoughReferences
from plmia.evaluation.diagnostics.signals import UnlikeReferences, accuracy_of
from plmia.evaluation.epsilon import EpsilonBound
from plmia.evaluation.intervals import Interval
from plmia.evaluation.metrics import FPRS
from plmia.evaluation.records import Exposure
from plmia.evaluation.subgroups import SubgroupTable
from plmia.evaluation.targets import Setup
from plmia.evaluation.trainings import TrainingsSummary
from plmia.results.json_types import ABSENT, Amount, AtLeast, Level, Positive, Range, Rate, decode, encode
from plmia.results.wording import Grade, Status
from plmia.signals.signals import Signals

# Of metrics.json; schema 1 had no digests and no status, and its notes were sentences.
SCHEMA = 2
# The attack that is meant where none is named.
DEFAULT_ATTACK = "pl-mia-eb"


# One attack on one target --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TprAtFpr:
    """True-positive rate of one target at a false-positive rate; see `plmia.evaluation.metrics.Operating`."""

    tpr: Rate
    fpr_realised: Rate
    low: Rate
    high: Rate
    confidence: Rate
    n_true: int
    resolved: bool
    needed_non_members: int
    # Intervals at exactly the nominal rate, if the data resolve it: for this result alone, and for all of the run.
    at_nominal: Interval | None = field(default=None, metadata=ABSENT)
    joint: Interval | None = field(default=None, metadata=ABSENT)

    @property
    def interval(self) -> Interval:
        """The interval at exactly the nominal rate where one exists, otherwise that of the threshold found."""
        return self.at_nominal or Interval(self.low, self.high, self.confidence)


@dataclass(frozen=True)
class Measured:
    """ROC numbers of one attack on some records of one target."""

    target: int
    auc: Rate
    balanced_accuracy: Rate
    n_members: int
    n_non_members: int
    tpr: Mapping[float, TprAtFpr]  # by false-positive rate


@dataclass(frozen=True)
class ConformalRates:
    """Rates of the conformal rule by level, None where it refuses the level; for one target also the population."""

    fpr_realised: Mapping[float, Rate | None]
    tpr: Mapping[float, Rate | None]
    population: int | None = field(default=None, metadata=ABSENT)
    resolution: Rate | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True)
class FailedCheck:
    """A rule that the known non-members refute at a level, and the rule that replaces it."""

    rule: str
    level: Level
    fallback: str | None
    why_none: str | None


@dataclass(frozen=True)
class TargetDiagnostics:
    """Checks of one attack on one target; the last two are kept for one target of the run."""

    failed_checks: tuple[FailedCheck, ...] = ()
    pairwise_p: PairwiseP | None = None
    realised_fpr: FprCurve | None = None
    # The least, middle and most Gaussian third of the records.
    gaussianity_groups: tuple[Measured | None, ...] | None = field(default=None, metadata=ABSENT)
    # What the attack's statistic estimated over all records.
    fit: Mapping[str, object] | None = field(default=None, metadata=ABSENT)

    def __post_init__(self) -> None:
        curve = self.realised_fpr
        for rates in (curve.conformal, curve.combined) if curve else ():
            if rates and {len(rates.realised), len(rates.low), len(rates.high)} != {len(curve.levels)}:  # type: ignore[union-attr]
                raise ValueError("realised_fpr has lists of different lengths")
        if self.pairwise_p and len(self.pairwise_p.members) != len(self.pairwise_p.non_members):
            raise ValueError("pairwise_p has histograms of different lengths")


@dataclass(frozen=True)
class TargetSummary(Measured):
    """One attack on one target: an entry of ``per_target`` in metrics.json."""

    decisions: Mapping[str, Mapping[float, Decision]]  # by rule and level
    conformal: ConformalRates
    fdr: Mapping[float, Exposure]  # by false discovery rate
    epsilon: EpsilonBound
    auc_interval: Interval | None = field(default=None, metadata=ABSENT)
    tied: Rate = 0.0  # share of the records whose score is shared by a tenth of all
    diagnostics: TargetDiagnostics = field(default_factory=TargetDiagnostics)

    @property
    def trends(self) -> Trends | None:
        """Trends of empirical Bayes, if the attack's statistic fitted them on this target."""
        return None if self.diagnostics.fit is None else decode(Trends, self.diagnostics.fit)


@dataclass(frozen=True)
class Coordinates:
    """Coordinates in which empirical Bayes works."""

    bend: float | None = None
    rotation: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True)
class Trends:
    """Trends that empirical Bayes fits over all records."""

    knots: Knots
    spread: SpreadPrior
    shift: ShiftPrior | None = None
    n_points: int = 0
    coordinates: Coordinates | None = None
    pooled: bool = False  # whether the views' mean probability takes the place of the views

    def __post_init__(self) -> None:
        at, level, covariance = self.knots.at, self.spread.level, self.spread.covariance
        valid = [at.ndim == 1, (np.diff(at) > 0).all(), covariance.shape == (2, 2), (np.diag(covariance) >= 0).all()]
        valid += [level.ndim == 3, level.shape[:2] in {(2, len(at)), (2, 1)}, (level >= 0).all()]
        if self.shift is not None:
            lines, spread = self.shift.lines, self.shift.spread
            valid += [lines.ndim == 3, len(lines) in {1, len(at)}]
            valid += [spread.ndim == 2, len(spread) in {1, len(at)}, (spread >= 0).all()]
        if not all(valid):
            raise ValueError("the fitted trends have the wrong shape or sign")


# One attack on all targets -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mean:
    """Mean and standard deviation over targets; the interval of the mean needs two targets."""

    mean: Rate
    std: Rate
    interval: Interval | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True)
class MeanTpr:
    """True-positive rate at a false-positive rate over targets; ``resolved`` if it is for every target."""

    mean: Rate
    std: Rate
    fpr_realised: Rate
    resolved: bool
    needed_non_members: Amount
    interval: Interval | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True)
class MeanDecision:
    """Rates of a rule at a level over targets."""

    level: Level
    fpr_realised: Rate | None
    tpr: Rate | None
    targets_refused: int
    refused: str | None  # the first reason


@dataclass(frozen=True)
class MeanExposure:
    """Records named at a false discovery rate, mean over targets."""

    fdr: Rate
    n_discoveries: Amount
    n_true: Amount
    least: Amount
    realised_fdr: Rate


@dataclass(frozen=True)
class MeanEpsilon:
    """Lower bounds on epsilon, mean over targets."""

    low: Amount
    one_run_low: Amount
    delta: Rate


@dataclass(frozen=True)
class OwnPValue:
    """Share of the known non-members that the attack's combined p-value flags at a level, None if it has none."""

    level: Level
    flagged: Rate | None
    check_failed: bool


@dataclass(frozen=True)
class AttackSummary:
    """One attack over all targets: an entry of ``attacks`` in metrics.json."""

    auc: Mean
    balanced_accuracy: Mean
    tpr: Mapping[float, MeanTpr]
    per_target: Annotated[tuple[TargetSummary, ...], AtLeast(1)]
    decisions: Mapping[str, Mapping[float, MeanDecision]]
    conformal: ConformalRates
    fdr: Mapping[float, MeanExposure]
    epsilon: MeanEpsilon
    own_p_value_on_population: OwnPValue

    def on(self, target: int) -> TargetSummary:
        """Return the summary of one target, by its number."""
        return next(entry for entry in self.per_target if entry.target == target)

    def __post_init__(self) -> None:
        for rates in (self.tpr, *(entry.tpr for entry in self.per_target)):
            if missing := set(FPRS) - rates.keys():
                raise ValueError(f"an attack has no true-positive rate at a false-positive rate of {min(missing):g}")
        if any("conformal" not in entry.decisions for entry in self.per_target):
            raise ValueError("an attack has no decisions by the conformal rule")


# The run -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unnamed:
    """Why no individual record can be named, and what would change that; see `plmia.evaluation.records.Naming`."""

    least: int
    standing: int
    population: int | None
    text: str
    reason: str
    remedy: str


@dataclass(frozen=True)
class Verdict:
    """What an audit found; numbers of members and records are means over targets."""

    status: Status
    grade: Grade | None  # how much a shown leak means
    headline: str
    text: str
    beats_chance: bool  # some attack is shown to do better than guessing
    leak_shown: bool  # and nothing invalidates that
    doubts: tuple[str, ...]  # codes of the notes that speak against taking the numbers as they are
    auc_low: Rate  # lower end of the largest area under a ROC curve, for all attacks and targets at once
    auc_attack: str
    attack: str  # the one that finds most members
    # False-positive rate, share of the members found there, and its interval for all attacks at once; all None where
    # there are too few non-members.
    fpr: Annotated[float, Range(1e-12, 0.3)] | None
    tpr: Rate | None
    interval: Interval | None
    members: int  # how many were evaluated
    exposed: Amount  # records named at a false discovery rate of ``fdr``
    least_exposed: int  # the fewest that could be named
    unnamed: Unnamed | None  # set where the split is the reason why none is named
    fdr: Rate
    exposed_by: str  # the decision rule
    targets: Positive  # how many models were attacked

    def __str__(self) -> str:
        return visible(self.text)

    def __post_init__(self) -> None:
        if len({part is None for part in (self.fpr, self.tpr, self.interval)}) > 1:
            raise ValueError("the verdict has some of fpr, tpr and interval but not all")


@dataclass(frozen=True)
class SignalsAbout:
    """Size and digest of the signals that were scored."""

    models: int
    points: Positive
    views: Positive
    sha256: str | None = field(default=None, metadata=ABSENT)
    clipped: int | None = field(default=None, metadata=ABSENT)  # probabilities of exactly 0 or 1


@dataclass(frozen=True)
class AccuracyPair:
    """Accuracy of models on their members and non-members."""

    members: Rate | None
    non_members: Rate | None


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of the targets and of their references: means over models, and the range over references."""

    measure: str
    target: AccuracyPair
    references: AccuracyPair
    references_lowest: AccuracyPair | None = field(default=None, metadata=ABSENT)
    references_highest: AccuracyPair | None = field(default=None, metadata=ABSENT)

    def of_references(self, side: Literal["members", "non_members"], *, ranged: bool) -> str:
        """Accuracy of the references on their members or non-members as text, with its range if it is known."""
        mean = percent(getattr(self.references, side))
        if not (ranged and self.references_lowest and self.references_highest):
            return mean
        low, high = getattr(self.references_lowest, side), getattr(self.references_highest, side)
        return mean if low == high else f"{mean} ({percent(low).removesuffix(' %')} to {percent(high)})"


@dataclass(frozen=True)
class About:
    """What was run."""

    signals: SignalsAbout
    mode: Mode
    targets: Annotated[tuple[int, ...], AtLeast(1)]
    seed: Annotated[int, Range(0, float("inf"))]
    plmia: str | None = field(default=None, metadata=ABSENT)
    # Everything that decides what an audit trains; see `plmia.training.train.audit_about`.
    audit: Mapping[str, object] | None = field(default=None, metadata=ABSENT)
    recipe: str | None = field(default=None, metadata=ABSENT)
    reference_recipe: str | None = field(default=None, metadata=ABSENT)  # of the references, if it is another
    train_accuracy: Rate | None = field(default=None, metadata=ABSENT)
    test_accuracy: Rate | None = field(default=None, metadata=ABSENT)
    accuracy: Accuracy | None = field(default=None, metadata=ABSENT)
    groups: int | None = field(default=None, metadata=ABSENT)
    align: str | None = field(default=None, metadata=ABSENT)  # `Setup.align`, unless that is "auto"
    unit: Literal["record", "group"] = "record"  # what was judged
    group_statistic: str | None = field(default=None, metadata=ABSENT)  # how the records of a person were combined
    # Columns by which subgroups were formed, with the names of their values.
    by: Mapping[str, tuple[str, ...]] | None = field(default=None, metadata=ABSENT)
    # Kind of the signals, unless they are logit-scaled confidences of the true label.
    signal: SignalKind | None = field(default=None, metadata=ABSENT)
    # Names of the classes, unless they are numbers 0 to C - 1.
    class_names: tuple[str, ...] | None = field(default=None, metadata=ABSENT)
    references: tuple[int, ...] = ()  # the different numbers over targets
    population: tuple[Positive, ...] = ()  # likewise, of known non-members

    @classmethod
    def of(
        cls,
        signals: Signals,
        targets: Sequence[int],
        setup: Setup,
        provenance: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> About:
        """Describe a run on signals; ``provenance`` is as for `accuracy_of`."""
        size = signals.n_models, signals.n_points, signals.n_views
        scored = SignalsAbout(*size, signals.digest or None, signals.n_clipped)
        own = None if signals.kind == "confidence" else signals.kind
        # A signal of another kind does not say which answers are right.
        accuracy = None if own else decode(Accuracy, accuracy_of(signals, targets, provenance))
        groups = None if signals.groups is None else len(np.unique(signals.groups))
        unit: Literal["record", "group"] = "group" if setup.judges_groups(signals, targets) else "record"
        return cls(
            scored,
            setup.mode,
            tuple(targets),
            setup.seed,
            accuracy=accuracy,
            align=None if setup.align == "auto" else setup.align,
            groups=groups,
            unit=unit,
            group_statistic=str(setup.group_statistic) if unit == "group" else None,
            signal=own,
        )

    @property
    def people(self) -> bool:
        """Whether people were judged by all of their records, not single records."""
        return self.unit == "group"

    @property
    def one_record_each(self) -> bool:
        """Whether one record of each group was judged, and groups have several records."""
        return not self.people and self.groups is not None and self.groups < self.signals.points

    @property
    def units(self) -> int:
        """Number of judged records or people, population included."""
        return self.groups if self.people and self.groups is not None else self.signals.points

    @property
    def data_digest(self) -> str | None:
        """Digest of the audited data, where plmia trained the models."""
        return None if self.audit is None else cast("str | None", self.audit.get("data"))

    @property
    def screening(self) -> bool:
        """Whether the target was screened without references."""
        return self.references == (0,)

    @property
    def given_target(self) -> bool:
        """Whether the target existed before the audit."""
        return self.audit is not None and self.audit.get("target", "trained") != "trained"

    @property
    def two_recipes(self) -> bool:
        """Whether the references were trained by another recipe than the target of the audit."""
        return self.audit is not None and "reference_recipe" in self.audit

    def __post_init__(self) -> None:
        if len(set(self.targets)) < len(self.targets):
            raise ValueError("a target occurs twice in about.targets")
        if self.people and not 0 < (self.groups or 0) <= self.signals.points:
            raise ValueError(f"groups were judged, but about.groups is {self.groups}")
        for key in ("data", "target") if self.audit is not None else ():
            if not isinstance(self.audit.get(key, ""), str):  # type: ignore[union-attr]
                raise ValueError(f"about.audit.{key} is not text")


@dataclass(frozen=True)
class Normality:
    """Quartiles of W, and the share of records that the Shapiro-Wilk test rejects."""

    w_quartiles: tuple[float, ...]
    rejected: Rate


@dataclass(frozen=True)
class GaussianitySummary:
    """Shapiro-Wilk test of the IN and OUT signals of one target's references; None where nothing could be tested."""

    target: int
    points: int
    not_tested: int
    level: Rate
    in_: Normality | None
    out: Normality | None


@dataclass(frozen=True)
class TargetChecks:
    """Checks of one target that belong to no single attack."""

    unlike_references: UnlikeReferences | None  # after alignment, if there was one
    population: PopulationSize
    alignment: Alignment | None = field(default=None, metadata=ABSENT)  # of the references to the target's scale


@dataclass(frozen=True)
class Diagnostics:
    """Checks that belong to no single attack."""

    references: EnoughReferences | None = None
    gaussianity: GaussianitySummary | None = None
    targets: Mapping[int, TargetChecks] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for curve in self.references.curves if self.references else ():
            if len({len(curve.budgets), len(curve.mean), len(curve.deviation)}) > 1:
                raise ValueError("diagnostics.references has lists of different lengths")
            if curve.metric != "auc" and not 0 <= float(curve.metric) <= 1:
                raise ValueError(f"diagnostics.references has the metric {curve.metric[:40]!r}, not auc or a rate")


@dataclass(frozen=True)
class OneRecordSummary:
    """One attack on one record of each person, where people are judged: means over targets."""

    auc: Mean
    tpr: Mapping[float, MeanTpr]


@dataclass(frozen=True)
class RunResult:
    """Everything that a run found: the content of metrics.json."""

    schema: Annotated[int, Range(SCHEMA, SCHEMA)]
    verdict: Verdict
    about: About
    attacks: Annotated[Mapping[str, AttackSummary], AtLeast(1)]  # in the order in which they were asked for
    notes: tuple[Note, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)  # attacks that could not run, and why
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    # Where people are judged: what the attacks find with one record of each person.
    one_record: Mapping[str, OneRecordSummary] | None = field(default=None, metadata=ABSENT)
    # By the verdict's attack on the first target: what an accusation is worth, and how exposed subgroups are.
    accusations: tuple[Accusation, ...] = ()
    subgroups: tuple[SubgroupTable, ...] = ()
    # The verdict's attack on all models in turn.
    trainings: TrainingsSummary | None = field(default=None, metadata=ABSENT)
    digests: Mapping[str, str] | None = field(default=None, metadata=ABSENT)  # SHA-256 by file, once these are written

    def __post_init__(self) -> None:
        for name in (self.verdict.attack, self.verdict.auc_attack):
            if name not in self.attacks:
                raise ValueError(f"the verdict's attack {name[:40]!r} is not among the attacks")
        for name, attack in self.attacks.items():
            if sorted(entry.target for entry in attack.per_target) != sorted(self.about.targets):
                raise ValueError(f"attacks.{name[:40]}.per_target has other targets than about.targets")

    def to_json(self) -> dict[str, Any]:
        """Return the content of metrics.json as plain values."""
        return self._with_accuracies(cast("dict[str, Any]", encode(self)))

    def outline(self, place: str) -> dict[str, Any]:
        """Return the same with ``place`` and the position of the attack instead of the entries of ``per_target``."""
        attacks = {}
        for i, (name, attack) in enumerate(self.attacks.items()):
            parts = {key: value for key, value in vars(attack).items() if key != "per_target"}
            attacks[name] = {key: [f"{place}{i}"] if key == "per_target" else parts[key] for key in vars(attack)}
        shallow = {part.name: vars(self)[part.name] for part in fields(self)} | {"attacks": attacks}
        absent = {part.name for part in fields(self) if part.metadata and shallow[part.name] is None}
        return self._with_accuracies({name: encode(value) for name, value in shallow.items() if name not in absent})

    def _with_accuracies(self, found: dict[str, Any]) -> dict[str, Any]:
        if self.about.audit is not None:  # null if no model of an audit has a recorded accuracy
            found["about"] = {"train_accuracy": None, "test_accuracy": None} | found["about"]
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunResult:
        """Read parsed JSON, of this or an earlier schema; a ValueError names what does not fit."""
        if isinstance(value, dict) and type(schema := value.get("schema")) is int and schema == 1:
            from plmia.results.schema_1 import upgraded

            value = upgraded(value)
        result = decode(cls, value)
        for attack in result.attacks.values():
            for entry in attack.per_target:
                _ = entry.trends
        if not result.about.references or not result.about.population:
            raise ValueError("about.references or about.population is empty")
        return result
