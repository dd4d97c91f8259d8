"""A whole audit: from a data set and a way to train to metrics and scores."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from plmia.attacks.attack import ATTACKS, Attack
from plmia.attacks.groups import GroupStatistic, LearnedOverGroup
from plmia.attacks.view import Mode
from plmia.auditing.audited_data import Columns, audited_data, group_column
from plmia.auditing.given_target import GivenTarget, as_target, likeness_notes
from plmia.auditing.matching import RecordIds, take_columns
from plmia.auditing.predictions import Answers
from plmia.auditing.progress import Meter
from plmia.auditing.score import (
    Audit,
    choose_attacks,
    further_questions,
    is_store,
    kept,
    output_folder,
    require_one_recipe,
    results_in,
    warn_of_lost_subgroups,
)
from plmia.auditing.subgroup_columns import By
from plmia.data.arrays import BoolArray, Counts, PredictionKind
from plmia.data.dataset import LabelledData
from plmia.data.designs import DesignKind, MembershipDesign, audit_design, counts_depend_on, even_counts, whole_number
from plmia.data.files import exists, make_private
from plmia.errors import (
    DataError,
    Note,
    OutputError,
    PlmiaWarning,
    PopulationError,
    RecipeError,
    ReferencesError,
    TrainingError,
    did_you_mean,
    some,
)
from plmia.evaluation.targets import Align, Setup, Unit
from plmia.results.folder import run_attacks
from plmia.results.further import Further
from plmia.results.result import About, RunResult, SignalsAbout
from plmia.results.saved import SavedRun
from plmia.signals.signals import Signals
from plmia.signals.store import SignalStore, write_groups, writing
from plmia.training.engines import Engine
from plmia.training.own_script import STORE
from plmia.training.recipes.named import as_recipe
from plmia.training.recipes.recipe import Recipe, Trained, check_recipes, unless_equal, views_for
from plmia.training.records import TrainingRecord, training_notes
from plmia.training.train import (
    Work,
    audit_about,
    audit_differences,
    default_engine,
    is_running,
    shared_data,
    train_missing,
    weights_file,
)
from plmia.training.views import View, check_views, parse_views

if TYPE_CHECKING:
    from plmia.reporting import Extras


# From this share of copies on, they weaken what an audit can exclude.
MANY_COPIES = 0.05
# Trained models that are attacked in turn by default.
MOST_TRAININGS = 32


@dataclass(frozen=True)
class AuditPlan:
    """What an audit trains and how it attacks."""

    data: LabelledData
    recipe: Recipe
    references: int
    views: tuple[View, ...]
    setup: Setup = field(default_factory=Setup)  # mode, population and seed
    attacks: tuple[Attack, ...] = tuple(ATTACKS.values())
    target: GivenTarget | None = None
    # See `audit_design`; model 0 of a given design is the target. None for pairs, or, if a given target trained on
    # another share of the records than half, for references that train on the same share.
    layout: DesignKind | MembershipDesign | None = None
    may_skip: bool = False  # leave out attacks that lack references; otherwise they stop the audit
    further: Further = field(default_factory=Further)
    # Trains the references; None if `recipe` does. With a given target, `recipe` is how that was trained, as far as
    # known, and queries it.
    reference_recipe: Recipe | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reference_recipe", unless_equal(self.reference_recipe, self.recipe))
        if self.setup.unit == "group" and self.data.groups is None:
            raise DataError(
                "the unit is 'group', but the records have no groups: name the column that says which records belong "
                "to one person (--group, groups=), or judge records"
            )
        if self.reference_recipe is not None:
            require_one_recipe(self.further.trainings)
        check_recipes(self.recipe, self.reference_recipe, self.data)
        check_views(self.views, self.data)
        if self.target is not None:
            self.target.check(self.data)

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipes that this audit trains by: of the target, unless it is given, and of the references."""
        own = (self.recipe,) if self.target is None or self.reference_recipe is None else ()
        return own if self.reference_recipe is None else (*own, self.reference_recipe)

    @functools.cached_property
    def _given(self) -> Answers | None:
        """Answers of a given target."""
        return None if self.target is None else self.target.ask(self.data, self.views, self.recipe)

    def about(self) -> dict[str, Any]:
        """Everything that decides what is trained; a store made for other values is never reused."""
        target = "trained"
        if self.target is not None and self._given is not None:
            digest = hashlib.sha256(np.packbits(self.target.members).tobytes())
            digest.update(self._given.trained.conf.tobytes())
            target = digest.hexdigest()
        design = self.layout.digest if isinstance(self.layout, MembershipDesign) else self._kind
        if self._in_references is not None:
            design = f"{self._in_references} of {self.references}"
        seed, other = self.setup.seed, self.reference_recipe
        return audit_about(self.data, self.recipe, self.views, seed, target, design, other)

    @functools.cached_property
    def _in_references(self) -> int | None:
        """Number of references that train on each record, if the share of a given target's members decides it."""
        if self.layout is not None or self.target is None:
            return None
        least = max(map(self._least, self.attacks))
        return self.target.matching_references(self.references, least, self.data.groups)

    @property
    def _kind(self) -> DesignKind:
        """Kind of the design, if it is not the user's own."""
        return "exact" if self._in_references is not None else cast("DesignKind", self.layout or "pairs")

    @functools.cached_property
    def design(self) -> MembershipDesign:
        """Model 0 is the target, the others are references; checked against all that is known before training."""
        design = self.layout
        if not isinstance(design, MembershipDesign):
            rng, groups = np.random.default_rng(self.setup.seed), self.data.groups
            design = audit_design(self.data.n_points, self.references, rng, groups, self._kind, self._in_references)
        if design.matrix.shape != (self.references + 1, self.data.n_points):
            raise DataError(
                f"the design has shape {design.matrix.shape} [models, records]; a target and {self.references} others "
                f"on {self.data.n_points} records need {(self.references + 1, self.data.n_points)}: one row per model"
            )
        if self.target is not None:
            design = MembershipDesign(np.concatenate([self.target.members[None], design.matrix[1:]]))
        design.require_classes(self.data.labels, self.data.class_names)
        self._require_references(design.matrix)
        self._require_population(self._count(~design.matrix[0]))
        return design

    def _require_references(self, matrix: BoolArray) -> None:
        """Raise before training what the attacks would raise after it."""
        least = 1 if self.may_skip else max(map(self._least, self.attacks))
        fewest = self._fewest(matrix)
        short = np.flatnonzero(fewest < least)
        if len(short):
            raise ReferencesError(
                f"record {some(short)} would have {fewest.min()} IN or OUT references, the attacks need {least}: "
                f"ask for more references ({2 * least} in pairs)"
            )

    def _fewest(self, matrix: BoolArray) -> Counts:
        """Number of IN or OUT references per point, whichever is smaller; offline only OUT counts."""
        inside: Counts = matrix[1:].sum(axis=0)
        outside = len(matrix) - 1 - inside
        groups = self.data.groups
        alone = np.arange(len(inside)) if groups is None else np.unique(groups, return_index=True)[1]
        if counts_depend_on(matrix[0, alone], inside[alone]):  # scoring then drops some
            inside, outside = even_counts(matrix[0], inside, len(matrix) - 1, alone)
        return outside if self.setup.mode == "offline" else np.minimum(inside, outside)

    def _least(self, attack: Attack) -> int:
        """Number of IN and of OUT references that an attack needs at every point."""
        return max(1, attack.statistic.least_references(len(self.views)))

    def _count(self, points: BoolArray) -> int:
        """Number of points, or of groups where points come in groups."""
        groups = self.data.groups
        return int(points.sum()) if groups is None else len(np.unique(groups[points]))

    def _require_population(self, outsiders: int) -> None:
        """Raise before training what scoring would raise after it."""
        size = self.setup.population
        if outsiders < 4:
            raise PopulationError(
                f"the target has {outsiders} non-members, 4 are needed to compare with some and evaluate others: "
                "give more records that it was not trained on"
            )
        if size is not None and not 2 <= size < outsiders:
            raise PopulationError(
                f"a population of {size} was asked for, the target has {outsiders} non-members: "
                f"take from 2 to {outsiders - 1}, so that some are left to be evaluated"
            )

    def warnings(self) -> list[Note]:
        """Notes that a user should read before training: all but those on how a recipe prepares the data.

        Raises `DataError` if one of them makes the audit invalid, so that no reference is trained for it.
        """
        notes = self.notes()
        for note in notes:
            if note.severity == "invalid":
                raise DataError(note.text)
        return [note for note in notes if (note.code, note.severity) != ("recipe-preprocessing", "info")]

    def notes(self) -> list[Note]:
        """Notes on the results that are known before training."""
        # Two recipes of one kind may prepare the data alike.
        prepared = dict.fromkeys(note for recipe in self.recipes for note in recipe.notes(self.data))
        found = [*self.data.notes, *prepared]
        if self.reference_recipe is not None and self.reference_recipe.kind != self.recipe.kind:
            text = (
                f"The references come from another kind of recipe ({self.reference_recipe.kind}) than the target "
                f"({self.recipe.kind}). They can show a leak, but not its absence: for that, train references of the "
                "target's kind."
            )
            found.append(Note("other-kind", "caution", text))
        if (copies := copies_note(self.design, self.data)) is not None:
            found.append(copies)
        members = None if self.target is None else self.target.members
        if (column := group_column(self.data, self.data.groups, members)) is not None:
            found.append(column)
        fewest = int(self._fewest(self.design.matrix).min())
        if names := ", ".join(attack.name for attack in self.attacks if self._least(attack) > fewest):
            text = (
                f"Attacks that will be left out: {names}. They need more than {fewest} IN or OUT reference per "
                "record; ask for more references to run them."
            )
            found.append(Note("attacks-left-out", "info", text))
        if self.target is not None and self._given is not None:
            answers, kind = self._given.trained, self.recipe.signal
            least = max(map(self._least, self.attacks))
            found += [*self._given.notes, *self.target.doubts(answers, self.design, self.data, kind, least)]
        return found


def copies_note(design: MembershipDesign, data: LabelledData) -> Note | None:
    """Say how many records have exact copies on the other side of a split, if any."""
    if not (copies := design.split_duplicates(data)):
        return None
    # Few copies blur little; many hide members among their copies.
    many = copies > MANY_COPIES * data.n_points
    text = (
        f"{copies:,} of {data.n_points:,} records have exact copies on the other side of a split, "
        "which blurs who is a member. Keep copies together with groups, or leave them out."
    )
    return Note("split-copies", "caution" if many else "info", text)


def run_audit(
    plan: AuditPlan,
    folder: Path,
    engine: Engine,
    keep_models: bool = False,
    *,
    show_records: bool = False,
    extras: Extras | None = None,
    progress: bool = False,
) -> Audit:
    """Train what is missing, score, and write the results; run again, it continues where it stopped."""
    warn_of_lost_subgroups(folder, plan.further)
    for problem in open_store(plan, folder).problems():
        warnings.warn(problem, PlmiaWarning, stacklevel=3)
    with Meter("training", plan.references + 1, progress) as meter:
        accuracies = _Accuracies(meter)
        try:
            store = train_run(plan, folder, engine, accuracies.report, meter.skip, keep_models)
        except KeyboardInterrupt:
            raise TrainingError(
                f"stopped after {accuracies.models} more trained models, which are kept: run the same again to continue"
            ) from None
    ours = store.finished().keys() - ({0} if plan.target is not None else set())
    gone = [model for model in sorted(ours) if not weights_file(folder / "models", model).exists()]
    if keep_models and gone:
        warnings.warn(f"weights of model {some(gone)} were not kept when it was trained", PlmiaWarning, stacklevel=3)
    runs = len(plan.attacks) + min(plan.further.trainings, plan.references + 1)
    with Meter("scoring", runs * plan.data.n_points, progress) as meter:
        return Audit(folder, score_run(plan, store, folder, meter.tick, show_records, extras))


@dataclass
class _Accuracies:
    """Shows the models' mean accuracy so far beside the progress of training."""

    meter: Meter
    models: int = 0
    train: float = 0.0  # sums over models
    test: float = 0.0

    def report(self, model: int, trained: Trained) -> None:
        """Count one more model."""
        del model
        self.models += 1
        if math.isnan(trained.train_accuracy):  # answers without classes
            self.meter.tick()
            return
        self.train += trained.train_accuracy
        self.test += trained.test_accuracy
        train, test = (100 * total / self.models for total in (self.train, self.test))
        self.meter.tick(detail=f"accuracy {train:.1f} % train, {test:.1f} % held out")


def open_store(plan: AuditPlan, folder: Path) -> SignalStore:
    """Open the store of an audit, or make it."""
    views = [str(view) for view in plan.views]
    others = plan.recipe if plan.reference_recipe is None else plan.reference_recipe
    tell = functools.partial(audit_differences, source=plan.recipe.source, reference_source=others.source)
    anew, about, design = not is_running(folder), plan.about(), plan.design
    with writing(str(folder)):
        make_private(folder)
    store = SignalStore.create(folder / "signals", about, design, views, plan.data.labels, tell, anew)
    if plan.data.groups is not None:
        write_groups(folder / "signals", plan.data.groups)
    return store


def train_run(
    plan: AuditPlan,
    folder: Path,
    engine: Engine,
    report: Callable[[int, Trained], None] = lambda _model, _trained: None,
    skip: Callable[[int], None] = lambda _: None,
    keep_models: bool = False,
) -> SignalStore:
    """Train the models that the folder's store lacks.

    ``report`` gets the number and answers of each model, ``skip`` how many models were trained before.
    """
    lossy = [recipe.name for recipe in plan.recipes if not recipe.keeps_weights]
    if keep_models and lossy:
        raise RecipeError(
            f"models of recipe {lossy[0]!r} cannot be kept as safetensors: leave out keep_models (--keep-models)"
        )
    store = open_store(plan, folder)
    if plan._given is not None and 0 in store.missing():
        given = plan._given.trained
        store.append([0], given.conf[None], [TrainingRecord.of_given(given).to_json()])
    skip(len(store.finished()))
    if store.missing():
        with shared_data(plan.data, folder, engine) as data:
            work = Work(data, plan.recipe, plan.views, keep_models, plan.reference_recipe)
            train_missing(store, work, engine, plan.setup.seed, report, folder / "models" if keep_models else None)
    return store


def score_run(
    plan: AuditPlan,
    store: SignalStore,
    folder: Path,
    tick: Callable[[int], None] = lambda _: None,
    show_records: bool = False,
    extras: Extras | None = None,
) -> RunResult:
    """Attack model 0 of the store and write metrics.json, scores.npz, records.csv and report.html.

    The report may show what is in ``extras``; the results include their notes.
    """
    from plmia.reporting import Extras as Shown
    from plmia.reporting import write_report

    extras = extras or Shown()
    # All of them: a model that went missing meanwhile must not be passed over.
    signals = store.signals(range(store.shape[0]))
    # The results themselves note attacks that lack references: they know which of them ran.
    notes = [note for note in plan.notes() if note.code != "attacks-left-out"]
    finished = store.finished()
    records = {model: TrainingRecord.from_json(record) for model, record in finished.items()}
    notes += training_notes(list(records.values()))
    if plan.target is not None:
        notes = [*plan.target.weighed(notes, signals, records, plan.data), *plan.target.compared(signals, finished)]
    elif plan.reference_recipe is not None:
        notes += likeness_notes(signals, finished)
    notes += extras.notes
    setup, about, skips = replace(plan.setup, references=plan.references), _about(plan, store, signals), plan.may_skip
    result = run_attacks(
        signals,
        plan.attacks,
        [0],
        setup,
        folder,
        about,
        tick,
        may_skip=skips,
        notes=notes,
        show_records=show_records,
        further=plan.further,
    )
    written = SavedRun(folder, result)
    write_report(written, replace(extras, data=plan.data, signals=signals), show_records=show_records)
    return result


def _about(plan: AuditPlan, store: SignalStore, signals: Signals) -> About:
    """What was run, for metrics.json."""
    records = store.finished()
    size = signals.n_models, signals.n_points, signals.n_views
    return replace(
        About.of(signals, [0], plan.setup, records),
        signals=SignalsAbout(*size, store.fingerprint(signals.models)),
        audit=plan.about(),
        recipe=plan.recipe.description,
        reference_recipe=None if plan.reference_recipe is None else plan.reference_recipe.description,
        class_names=None if plan.data.class_names is None else tuple(plan.data.class_names),
        train_accuracy=_mean([record.get("train_accuracy") for record in records.values()]),
        test_accuracy=_mean([record.get("test_accuracy") for record in records.values()]),
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def audit(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    label: str | None = None,
    group: str | None = None,
    drop: Sequence[str] = (),
    decimal_comma: bool = False,
    references: int | None = None,
    reference_recipe: Any = None,
    views: str | Sequence[View] | None = None,
    target: Any = None,
    members: Any = None,
    target_kind: PredictionKind = "auto",
    id_column: str | None = None,
    attacks: Sequence[str | Attack] | None = None,
    mode: Mode = "online",
    population: int | None = None,
    seed: int = 0,
    design: DesignKind | MembershipDesign | None = None,
    groups: Any = None,
    unit: Unit | None = None,
    by: By = None,
    prior: float | Sequence[float] | None = None,
    trainings: int | None = None,
    group_statistic: GroupStatistic | None = None,
    align: Align = "auto",
    class_names: Sequence[str] | None = None,
    feature_names: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
    title: str | None = None,
    folder: str | Path | None = None,
    engine: Engine | None = None,
    merge: str | Path | None = None,
    keep_models: bool = False,
    show_records: bool = False,
    progress: bool = True,
) -> Audit:
    """Audit a way to train: measure how well an attacker can find out which records such a model was trained on.

    Parameters
    ----------
    model : scikit-learn estimator, pair of functions, Recipe or str
        How to train, or the name of a recipe ("mlp", "gbdt?depth=5"). Clones of an estimator are trained. Functions are
        ``train(X, y, seed)`` and ``query(model, X, y)``, or without classes ``signal(model, X, y)``; see `Function`.
    X : array [records, ...], data frame, LabelledData or path
        Features or images; a frame of pandas, polars or pyarrow, whose rows reach the model as they are; or a data set
        with its labels, or the file of one (CSV, Parquet, npz, see `read_data`).
    y : array, series or list [records], or str, optional
        Labels of any type, or the name of a column of X, which is then not a feature. Not needed with a data set.
    label, group, drop : str, str, sequence of str, optional
        Columns of X, a data frame or the path of a CSV or Parquet file: labels, groups, and columns to leave out.
    decimal_comma : bool
        Whether numbers in a CSV have decimal commas.
    references : int, optional
        Number of reference models to train; by default 32, or those of a design of your own.
    reference_recipe : scikit-learn estimator, pair of functions, Recipe or str, optional
        How to train the references, as ``model``, which then says how the target is trained: another way, such as a
        smaller network, if training more models by ``model`` costs too much. By default they train alike. With a
        ``target``, ``model`` says how that was trained, as far as known, and queries it.
    views : str or sequence of View, optional
        How records are shown to models; see `plmia.training.recipes.recipe.views_for`.
    target : path, array, data frame, fitted model or GivenTarget, optional
        A model that exists already: its predictions for all records (csv, parquet, npz or npy file, array or frame), a
        model to query, or an onnx or skops file. By default the audit trains its target, too.
    members : array, series, path or str, optional
        Records that the target trained on: one flag per record, row numbers counted from 0, a file of either, or the
        name of a column of X.
    target_kind : {"auto", "values", "probabilities", "logits", "confidence", "signal"}
        What the target's predictions are; see `plmia.auditing.predictions.Predictions`.
    id_column : str, optional
        Column of X and of the target's files by which their rows are matched; by default they have the same order.
    attacks : sequence of Attack or str, optional
        What to run, by name or as values; by default all that have the references they need.
    mode : {"online", "offline"}
        Offline uses OUT references only.
    population : int, optional
        Known non-members to calibrate with; a quarter of them by default (at least 100, at most half).
    seed : int
        Seed of everything random.
    design : {"pairs", "halves", "exact"} or MembershipDesign, optional
        How references share the records (see `audit_design`), or a design of your own: model 0 is the target. By
        default pairs, each on half of the records; for a given target on another share of them, references on that
        share.
    groups : array, series or list [records], or str, optional
        Rows of one group (all of one patient, say) are members together or not at all. Values of any type, or the name
        of a column of X.
    unit : {"record", "group"}, optional
        What is judged: single records, or people by all of their records (groups). By default people, if there are
        groups of several records.
    by : str, sequence of str, or mapping, optional
        Columns whose values are compared, such as sex or ward: names of columns of X, or values by name.
    prior : float or sequence of float, optional
        Shares of members among the candidates of an attacker, for the precision of an accusation; by default 50, 10,
        1 and 0.1 %.
    trainings : int, optional
        How many of the trained models are attacked in turn, to count how often each record or person is identified; 0
        for none. By default at most 32; none for a target that exists already. They need references of the target's
        recipe.
    group_statistic : GroupStatistic, optional
        How the records of a person are combined, a value of `plmia.attacks.groups`; by default `LearnedOverGroup`.
    align : {"auto", "always", "never"}
        Whether to move the references' signals to the target's scale, see `plmia.attacks.alignment`. "auto" does if the
        target is clearly unlike them, "always" if its signals become more likely at all.
    class_names, feature_names, texts, title : sequences of str, str, optional
        What the report shows: names of the classes in sorted order and of the features of an array (by default those of
        the data), the records as text, and the title of the page.
    folder : path, optional
        Where to keep everything; run again with the same folder, the audit continues. By default a new temporary
        folder, which stays until you remove it. It reveals who is a member: protect it like the data.
    engine : Engine, optional
        Where to train; all cores of this machine by default.
    merge : path or str, optional
        Take in models that ``python -m plmia.training.remote_worker`` trained on another machine: its folder, or an
        address of object storage such as ``s3://bucket/stacks``.
    keep_models, show_records, progress : bool
        Whether to save the models' weights; whether the report shows images and features of records, and all files
        their groups (by default they are named by number only); whether to show progress on standard error.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> import plmia
    >>> X, y = load_digits(return_X_y=True)
    >>> plmia.audit(DecisionTreeClassifier(), X, y, references=8).auc("rmia") > 0.55
    True
    """
    from plmia.reporting import Extras

    where = output_folder(folder)
    recipe, others = as_recipe(model), None if reference_recipe is None else as_recipe(reference_recipe)
    columns = Columns(label, group, drop, decimal_comma)
    names = {"class_names": class_names, "feature_names": feature_names, "texts": texts}
    values, beside = recipe.signal == "signal", (members, id_column)
    found = audited_data(X, y, groups, columns, values=values, beside=beside, names=names, by=by)
    data, extras = found.data, Extras(title=title, notes=found.notes)
    if data.labels is None:
        recipe = as_recipe(model, classes=False) if isinstance(model, tuple | list) else recipe
        others = as_recipe(reference_recipe, classes=False) if isinstance(reference_recipe, tuple | list) else others
    others = unless_equal(others, recipe)
    target = given_target(target, members, target_kind, id_column, found.taken, data)
    if references is None:
        references = design.n_models - 1 if isinstance(design, MembershipDesign) else 32
    references = whole_number(references)
    setup = Setup(mode, references, population, seed, unit, group_statistic or LearnedOverGroup(), align)
    if trainings is None:
        trainings = MOST_TRAININGS if target is None and others is None else 0
    further = further_questions(found.by, prior, trainings)
    chosen, shown = tuple(choose_attacks(attacks)), tuple(_views(views, recipe, data, others))
    skips = attacks is None
    plan = AuditPlan(data, recipe, references, shown, setup, chosen, target, design, skips, further, others)
    noted = plan.warnings()
    _require_replaceable(where, plan)
    if merge is not None:
        merged = open_store(plan, where).import_npy(merge)
        warnings.warn(f"took in {len(merged)} models from {merge}", PlmiaWarning, stacklevel=2)
    for note in (*extras.notes, *noted):
        warnings.warn(note.text, PlmiaWarning, stacklevel=2)
    engine = engine or default_engine(recipe, data=data, reference_recipe=others)
    return run_audit(plan, where, engine, keep_models, show_records=show_records, extras=extras, progress=progress)


def _require_replaceable(folder: Path, plan: AuditPlan) -> None:
    """Raise if the folder holds results of other signals than this audit's; a store has an identity of its own."""
    found = None if is_store(folder / STORE) else results_in(folder)
    if found is not None and found.about.audit != json.loads(json.dumps(plan.about())):
        raise OutputError(kept(folder, "results of other signals, which"))


def given_target(
    target: Any,
    members: Any,
    kind: PredictionKind,
    id_column: str | None,
    columns: Mapping[str, Any],
    data: LabelledData,
) -> GivenTarget | None:
    """The given target, from what the user has and from columns of the data."""
    names = tuple(data.feature_names or ())
    if id_column is not None and id_column not in columns:
        hint = did_you_mean(id_column, names, "check its name")
        raise DataError(f"the data have no column {id_column!r} to match rows with: {hint}")
    if isinstance(members, str) and members not in columns and not exists(Path(members)):
        hint = did_you_mean(members, names, "check the name")
        raise DataError(f"there is no column and no file {members!r} with the target's members: {hint}")
    ids = None if id_column is None else RecordIds.of(id_column, columns[id_column])
    members = columns.get(members, members) if isinstance(members, str) else members
    features = take_columns(data.X.native, [column.name for column in data.X.columns])[1] if data.is_table else {}
    return as_target(target, members, data, kind, ids, {**features, **columns})


def _views(
    views: str | Sequence[View] | None, recipe: Recipe, data: LabelledData, reference_recipe: Recipe | None
) -> Sequence[View]:
    if isinstance(views, str):
        return parse_views(views)
    return views or views_for(recipe, data, reference_recipe)


def demo(folder: str | Path | None = None, *, references: int = 32, seed: int = 0, progress: bool = True) -> Audit:
    """Audit a random forest on the digits of scikit-learn, in under 90 seconds; parameters as in `audit`."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    # The data are public, so the report may show them.
    return audit(
        "sklearn:RandomForestClassifier?n_estimators=100",
        LabelledData(X.astype("float32"), y, name="digits"),
        references=references,
        attacks=tuple(ATTACKS),
        seed=seed,
        folder=folder,
        show_records=True,
        progress=progress,
    )
