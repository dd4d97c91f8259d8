"""Score signals that exist already: the verb `score`, and what every run has in common."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmia import __version__
from plmia.attacks.attack import ATTACKS, Attack, find_attack
from plmia.attacks.groups import GroupStatistic, LearnedOverGroup
from plmia.attacks.view import Mode
from plmia.auditing.progress import Meter
from plmia.auditing.subgroup_columns import By, column_names, subgroup_columns
from plmia.data.designs import count_split_groups, whole_number
from plmia.data.memory import memory_limit, parse_size
from plmia.data.npz import SIGNALS_ARRAYS, unused_arrays
from plmia.errors import AttackError, Note, OutputError, PlmiaError, PlmiaWarning, ReferencesError, SignalsError, some
from plmia.evaluation.records import RecordTable
from plmia.evaluation.targets import Align, Setup, Unit
from plmia.results.folder import run_attacks
from plmia.results.further import LEAST_TRAININGS, Column, Further
from plmia.results.result import About, RunResult
from plmia.results.saved import Overview, SavedRun, results_folder
from plmia.signals.signals import Scale, Signals, read_signals
from plmia.training.own_script import DESIGN_FILE, STORE, Run, RunPlan
from plmia.training.records import TrainingRecord, training_notes

if TYPE_CHECKING:
    from plmia.reporting import Figure
    from plmia.signals.store import SignalStore

# Codes of notes that scoring finds anew; all others of an audit depend on its data, its recipe or its target.
FOUND_BY_SCORING = frozenset(
    {
        *("attacks-left-out", "clipped-probabilities", "combined-p-value", "counts-rebalanced"),
        *("counts-reveal-membership", "excluded-references", "few-non-members", "few-references"),
        *(
            "fixed-member-law",
            "groups",
            "more-references",
            "other-recipe",
            "people-by-one-record",
            "population-size",
            "rates-unresolved",
        ),
        *("references-aligned", "references-match-poorly"),
        *("records-unnamed", "split-groups", "subgroup-exposed", "subgroup-varies", "subgroups-not-compared"),
        *(
            "targets-summarised",
            "threshold-unbounded",
            "tied-scores",
            "trainings-not-compared",
            "unfinished-models",
            "unlike-references",
            "unverified-records",
        ),
        *("unverified-results", "weak-attacks", "wide-interval"),
    }
)
UNCHECKED = "likeness-unchecked"
# With fewer references an audit that shows no leak says little.
_FEW_REFERENCES = 4


@dataclass(frozen=True, repr=False)
class Audit(Overview):
    """Result of `audit`, `score`, `demo` or `report`; a notebook shows the verdict and a table."""

    folder: Path  # where signals, metrics and scores are
    result: RunResult  # the content of metrics.json

    @property
    def report(self) -> Path:
        """Path of report.html, which is written first if it does not exist yet."""
        from plmia.data.files import PAGE
        from plmia.reporting import write_report

        page = self.folder / PAGE
        return page if page.exists() else write_report(self.folder)

    def records(self, attack: str | None = None, target: int | None = None) -> RecordTable:
        """Evaluated records, the most exposed first; see `SavedRun.records`."""
        return SavedRun(self.folder).records(attack, target)

    def figures(self) -> dict[str, Figure]:
        """Return the report's figures by name; a notebook shows each."""
        from plmia.reporting import figures

        return figures(self.folder)


def score(
    signals: str | Path | Run | Signals,
    folder: str | Path | None = None,
    *,
    target: int | str | Sequence[int | str] = 0,
    attacks: Sequence[str | Attack] | None = None,
    mode: Mode = "online",
    references: int | None = None,
    population: int | None = None,
    scale: Scale = "auto",
    seed: int = 0,
    unit: Unit | None = None,
    by: By = None,
    data: Any = None,
    prior: float | Sequence[float] | None = None,
    trainings: int | None = None,
    group_statistic: GroupStatistic | None = None,
    align: Align = "auto",
    merge: Sequence[str | Path] = (),
    memory: int | str | None = None,
    progress: bool = True,
) -> Audit:
    """Run attacks on signals that exist already; nothing is trained.

    Parameters
    ----------
    signals : path, Run or Signals
        A run whose models were recorded (see `plmia.Run`), the folder of an audit, its signals/ folder, a signals file
        (see `read_signals`), or what was read from one.
    folder : path, optional
        Where to write metrics.json, scores.npz and records.csv: by default the folder of the run or the audit; for
        other signals as in `plmia.audit`.
    target : int, "all", or sequence
        Models to attack, by number.
    references : int, optional
        References per target; all by default.
    scale : str
        Scale of the signals in a file; see `read_signals`.
    unit : {"record", "group"}, optional
        What is judged: single records, or people by all of their records (groups). By default people, if there are
        groups of several records.
    by : str, sequence of str, or mapping, optional
        Columns whose values are compared, such as sex or ward: names of columns of ``data`` or of arrays of
        the signals' npz, or values by name.
    data : data frame or path, optional
        One row per record, with the columns that ``by`` names.
    prior : float or sequence of float, optional
        Shares of members among the candidates of an attacker, for the precision of an accusation; by default 50, 10,
        1 and 0.1 %.
    trainings : int, optional
        Attack so many models in turn, too, and count how often each record or person is identified; 0 for none, the
        default. Where an audit is scored again in its own folder, the default is what the audit did.
    group_statistic : GroupStatistic, optional
        How the records of a person are combined, a value of `plmia.attacks.groups`; by default `LearnedOverGroup`.
    merge : sequence of path
        Copies of the run on other machines, whose recorded models are taken in first; see `Run.merge`.
    memory : int or str, optional
        Limit on memory, in bytes or as a text such as "1GB". Large arrays are then kept in files beside the results;
        the results are the same. A run that needs more is refused before it starts.
    attacks, mode, population, seed, align, progress
        As in `plmia.audit`.
    """
    limit = None if memory is None else parse_size(memory)
    signals = signals.folder if isinstance(signals, Run) else signals
    run = run_folder(signals)
    where = output_folder(run if folder is None else folder)
    with memory_limit(limit, where):
        return _score(
            signals,
            run,
            where,
            folder is not None,
            target=target,
            attacks=attacks,
            mode=mode,
            references=references,
            population=population,
            scale=scale,
            seed=seed,
            unit=unit,
            by=by,
            data=data,
            prior=prior,
            trainings=trainings,
            group_statistic=group_statistic,
            align=align,
            merge=merge,
            progress=progress,
        )


def _score(
    signals: str | Path | Signals,
    run: Path | None,
    where: Path,
    named: bool,
    *,
    target: int | str | Sequence[int | str],
    attacks: Sequence[str | Attack] | None,
    mode: Mode,
    references: int | None,
    population: int | None,
    scale: Scale,
    seed: int,
    unit: Unit | None,
    by: By,
    data: Any,
    prior: float | Sequence[float] | None,
    trainings: int | None,
    group_statistic: GroupStatistic | None,
    align: Align,
    merge: Sequence[str | Path],
    progress: bool,
) -> Audit:
    """Do what `score` does, within its memory limit; ``named`` says whether the folder ``where`` was given."""
    if merge and run is None:
        raise SignalsError("copies can be merged into a run only: give the folder that plmia design made")
    for copy in merge:
        warnings.warn(f"took in {len(Run(run or where).merge(copy))} models from {copy}", PlmiaWarning, stacklevel=3)
    references = None if references is None else whole_number(references)
    if references == 0:
        raise ReferencesError("0 references were requested, at least 1 is needed: screen the model with plmia screen")
    setup = Setup(mode, references, population, seed, unit, group_statistic or LearnedOverGroup(), align)
    chosen = choose_attacks(attacks)
    found = open_signals(signals, scale, column_names(by))
    values = found.signals
    require_replaceable(where, screening=False, own=_is_own(signals, values, where))
    earlier = results_in(where)
    same = of_signals(earlier, values)
    # What only the audit could know of its target stays true wherever the results go.
    audited = same if where == run or run is None else of_signals(results_in(run), values)
    if trainings is None:
        again = same is not None and where == run and same.trainings is not None
        trainings = same.trainings.trainings if again and same and same.trainings else 0
    columns = subgroup_columns(by, signals if data is None else data, values.n_points)
    further = further_questions(columns, prior, trainings)
    warn_of_lost_subgroups(where, further)
    targets = _targets(target, values)
    found.require(targets)
    if found.two_recipes:
        require_one_recipe(trainings)
    for note in found.notes:
        if note.code == "unfinished-models":
            warnings.warn(note.text, PlmiaWarning, stacklevel=3)
    notes = _with_those_of_the_audit(found.notes, None if run is None else audited)
    notes += [*found.other_recipe(targets), *split_groups(values, targets)]
    runs = len(targets) * len(chosen) + further.n_trainings(values)
    with Meter("scoring", runs * values.n_points, progress) as meter:
        about = replace(
            About.of(values, targets, setup, found.records),
            plmia=__version__,
            audit=found.about,
            class_names=found.class_names,
        )
        if run is not None and audited is not None:
            of = audited.about
            about = replace(about, recipe=of.recipe, reference_recipe=of.reference_recipe, class_names=of.class_names)
        result = run_attacks(
            values,
            chosen,
            targets,
            setup,
            where,
            about,
            meter.tick,
            may_skip=attacks is None,
            notes=notes,
            further=further,
        )
    if named and earlier is not None and same is None:
        warnings.warn(f"replaced the results of other signals in {where}", PlmiaWarning, stacklevel=3)
    return Audit(where, result)


@dataclass(frozen=True)
class Opened:
    """Signals with what is known of their models."""

    signals: Signals
    records: Mapping[int, Mapping[str, Any]]  # training records of the models of a store, by model
    notes: tuple[Note, ...] = ()  # on the source of the signals, for the results
    about: Mapping[str, object] | None = None  # what the signals of a whole run or audit were made of
    missing: tuple[int, ...] = ()  # models of the design that are not finished
    remedy: str = ""  # how to finish them
    class_names: tuple[str, ...] | None = None  # of a run that was designed from data
    store_about: Mapping[str, object] | None = None  # what the store's signals were made of, also if some are missing

    @property
    def two_recipes(self) -> bool:
        """Whether an audit trained the references by another recipe than model 0, its target."""
        return "reference_recipe" in (self.store_about or {})

    def require(self, targets: Sequence[int]) -> None:
        """Raise if a model to attack does not exist or is not finished."""
        if unfinished := [target for target in targets if target in self.missing]:
            raise SignalsError(
                f"target {some(unfinished)} is not among the {self.signals.n_models} finished models (missing: model "
                f"{some(self.missing)}): {self.remedy}, or choose another target"
            )
        self.signals.rows(targets, "target")

    def other_recipe(self, targets: Sequence[int]) -> list[Note]:
        """Note the models to attack that were trained by another recipe than the target of the audit."""
        others = [target for target in targets if target != 0] if self.two_recipes else []
        who = f"Models {some(others)} were" if len(others) > 1 else f"Model {some(others)} was"
        text = (
            f"{who} trained by the references' recipe, not by that of the audit's target, so these "
            "results are not about the target. Attack model 0 (--target 0)."
        )
        return [Note("other-recipe", "caution", text)] if others else []


def require_one_recipe(trainings: int) -> None:
    """Raise if models are to be targets in turn, although references were trained by another recipe than the target."""
    if trainings:
        raise PlmiaError(
            f"{trainings} trainings were requested, but only model 0 has the target's recipe: leave them out "
            "(--trainings), or train the references by that recipe, too"
        )


def further_questions(by: tuple[Column, ...], prior: float | Sequence[float] | None, trainings: int) -> Further:
    """Return what a run answers beside the attacks' rates."""
    if trainings < 0 or 0 < trainings < LEAST_TRAININGS:
        raise PlmiaError(f"{trainings} trainings were requested: give at least {LEAST_TRAININGS}, or 0 for none")
    if prior is None:
        return Further(by, trainings)
    try:
        priors = np.atleast_1d(np.asarray(prior, np.float64)).tolist()
    except (TypeError, ValueError) as error:
        raise PlmiaError(f"the prior is {prior!r}: give shares between 0 and 1, such as 0.01") from error
    return Further(by, trainings, tuple(priors))


def warn_of_lost_subgroups(folder: Path, further: Further) -> None:
    """Warn if results in the folder, which a run is about to replace, have subgroups that the run does not have."""
    earlier = results_in(folder)
    lost = set(earlier.about.by or {}) - {column.name for column in further.by} if earlier is not None else set()
    if lost:
        names = ", ".join(sorted(lost))
        text = f"the results in {folder} have subgroups by {names}, which this run replaces: give --by to keep them"
        warnings.warn(text, PlmiaWarning, stacklevel=3)


def open_signals(source: str | Path | Signals | Overview, scale: Scale = "auto", used: Sequence[str] = ()) -> Opened:
    """Read signals from a run, an audit, a store or a file, whose arrays ``used`` the caller reads."""
    if isinstance(source, Signals):
        return Opened(source, {})
    path = results_folder(source)
    run = run_folder(path)
    store = store_at(path if run is None else path / STORE)
    if store is None and run is not None:
        raise SignalsError(f"{path} has no recorded model yet: train the models and record them with plmia.Run")
    if store is not None:
        signals, missing = store.signals(), tuple(store.missing())
        # Results of all models belong to the run, those of some models only to their signals.
        about = store.about if run is not None and not missing else None
        plan = RunPlan.read(path) if os.path.isfile(path / DESIGN_FILE) else None  # noqa: PTH113 - as in `is_store`
        notes = (*store_notes(store, signals), *(plan.notes if plan else ()))
        names = plan.class_names if plan else None
        return Opened(signals, store.finished(), notes, about, missing, _remedy(store), names, store.about)
    if os.path.isfile(path / "metrics.json"):  # noqa: PTH113 - as in `is_store`
        raise SignalsError(f"{path} holds results but no signals: give the signals that were scored")
    signals = read_signals(path, scale)
    return Opened(signals, {}, tuple(unused_arrays(path, (*SIGNALS_ARRAYS, *used), SignalsError)))


def run_folder(source: str | Path | Signals | Overview) -> Path | None:
    """Folder of a run or an audit, which holds its signals and takes its results; None for other signals."""
    if isinstance(source, Signals):
        return None
    path = results_folder(source)
    designed = os.path.isfile(path / DESIGN_FILE)  # noqa: PTH113 - as in `is_store`
    return path if designed or is_store(path / STORE) else None


def is_store(path: Path) -> bool:
    """Whether a folder is a store; Path's own check would raise on a name that is too long."""
    return os.path.isfile(path / "store.json")  # noqa: PTH113


def store_at(path: Path) -> SignalStore | None:
    """Open the store in a folder, if it is one."""
    if not is_store(path):
        return None
    from plmia.signals.store import SignalStore

    return SignalStore.open(path)


def store_notes(store: SignalStore, signals: Signals) -> list[Note]:
    """Notes on a store whose signals are used: models that are missing, records that cannot be verified."""
    planned, found = store.shape[0], []
    missing = [model for model in range(planned) if model not in signals.models]
    if missing:
        noun = "model" if len(missing) == 1 else "models"
        text = (
            f"{signals.n_models} of {planned} models finished ({noun} {some(missing)} missing): only those were used. "
            f"To use all, {_remedy(store)}"
        )
        found.append(Note("unfinished-models", "info" if signals.n_models > _FEW_REFERENCES else "caution", text))
    if store.about.get("target", "trained") != "trained":
        text = "Whether the given target is like its references was not checked: run plmia audit again to check it"
        found.append(Note(UNCHECKED, "caution", text))
    found += training_notes([TrainingRecord.from_json(record) for record in store.finished().values()])
    unverified = store.unverified()
    if unverified:
        text = (
            f"An earlier version of plmia wrote the records of {len(unverified)} models: their signals are verified, "
            "their accuracies and times cannot be"
        )
        found.append(Note("unverified-records", "info", text))
    return found


def _remedy(store: SignalStore) -> str:
    """How to finish the models that a store lacks: an audit trains them, for a run a script of the user's does."""
    return "run the audit again to train them" if "recipe" in store.about else "train and record them with plmia.Run"


def output_folder(folder: str | Path | None) -> Path:
    """Return the folder of the results, a new temporary one by default; refuse a file before any work is done."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="plmia-"))
    path = Path(folder)
    for place in (path, *path.parents):
        if os.path.exists(place):  # noqa: PTH110 - Path's own check would raise on a name that is too long
            if not os.path.isdir(place):  # noqa: PTH112
                raise OutputError(f"{place} is a file, a folder is needed for the results: choose another folder")
            break
    return path


def choose_attacks(
    attacks: str | Attack | Sequence[str | Attack] | None, *, with_records: bool = False
) -> list[Attack]:
    """Return the attacks that were named or given, each name once; all attacks by default.

    Raises `AttackError` for attacks that read the records, unless they are given (``with_records``).
    """
    given = [attacks] if isinstance(attacks, str | Attack) else attacks or ATTACKS
    chosen = [find_attack(attack) if isinstance(attack, str) else attack for attack in given]
    names = [attack.name for attack in chosen]
    repeated = [name for i, name in enumerate(names) if name in names[:i]]
    if repeated:
        raise AttackError(
            f"two attacks are called {repeated[0]!r}, so their results would overwrite each other: rename one of them, "
            "or name it once"
        )
    readers = [attack.name for attack in chosen if attack.statistic.reads_records and not with_records]
    if readers:
        raise AttackError(f"attack {readers[0]!r} reads the records: run it with plmia screen --data")
    return chosen


def results_in(folder: Path) -> RunResult | None:
    """Results in a folder, if there are any."""
    try:
        return SavedRun(folder).result
    except PlmiaError:
        return None


def require_replaceable(folder: Path, *, screening: bool, own: bool = False) -> None:
    """Raise if a folder holds an audit, or results of another kind than a command writes (a ``screening`` or not).

    ``own`` says that these are results of the audit's own signals.
    """
    if own:
        return
    earlier = results_in(folder)
    if run_folder(folder) is not None:
        held = "an audit or a run, whose results"
    elif earlier is not None and earlier.about.screening != screening:
        held = f"{'a screening' if earlier.about.screening else 'results of references'}, which"
    else:
        return
    raise OutputError(kept(folder, held))


def kept(folder: Path, held: str) -> str:
    """Say that what a folder holds stays as it is."""
    return f"{folder} holds {held} would be replaced: choose another folder (-o, folder=), or remove this one first"


def _is_own(source: str | Path | Signals, signals: Signals, folder: Path) -> bool:
    """Whether signals are those of the run or the audit in a folder."""
    if not isinstance(source, Signals) and Path(source).resolve() in (folder.resolve(), (folder / STORE).resolve()):
        return True
    try:
        store = store_at(folder / STORE)
        return store is not None and store.fingerprint(signals.models) == signals.digest
    except PlmiaError:  # the store lacks some of the models
        return False


def of_signals(results: RunResult | None, signals: Signals) -> RunResult | None:
    """Return the results if they are of these signals."""
    return results if results is not None and results.about.signals.sha256 == signals.digest else None


def _with_those_of_the_audit(notes: Sequence[Note], earlier: RunResult | None) -> list[Note]:
    """Add the notes of earlier results of the same signals that only the audit could know, on data and target."""
    if earlier is None:
        return [*notes]
    found = [note for note in notes if note.code != UNCHECKED]
    codes = {note.code for note in found} | FOUND_BY_SCORING
    return [*found, *(note for note in earlier.notes if note.code not in codes)]


def _targets(target: int | str | Sequence[int | str], signals: Signals) -> list[int]:
    """Numbers of the models to attack, in order."""
    given = [target] if isinstance(target, int | str) else target
    if "all" in given:
        return sorted(signals.models)
    numbers = set()
    for value in given:
        try:
            numbers.add(int(value))
        except ValueError as error:
            least, most = min(signals.models), max(signals.models)
            raise PlmiaError(
                f"target {value!r:.40} is neither a number nor 'all': give a number from {least} to {most}"
            ) from error
    return sorted(numbers)


def split_groups(signals: Signals, targets: list[int]) -> Iterator[Note]:
    """Say of the first target whose members share groups with non-members how many such groups there are."""
    if signals.groups is None:
        return
    for target, row in zip(targets, signals.rows(targets), strict=True):
        cut, n_groups = count_split_groups(signals.design.matrix[row], signals.groups)
        if cut:
            text = (
                f"{cut:,} of {n_groups:,} groups hold members and non-members of target {target}, so a non-member may "
                "look like the members of its group. Keep groups together when models are trained."
            )
            yield Note("split-groups", "caution", text)
            return
