"""Verbs of the command as functions: `design`, `report`, `compare`, `plan`, `import_signals`.

`audit` and `demo` are in `plmia.auditing.run`, `score`, `gate` and `reproduce` in modules of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmia.attacks.attack import Attack, find_attack
from plmia.attacks.view import Mode
from plmia.auditing.audited_data import Columns, audited_data, group_column
from plmia.auditing.progress import Meter
from plmia.auditing.score import Audit, open_signals, output_folder
from plmia.data.arrays import IntArray
from plmia.data.designs import DesignKind, MembershipDesign, audit_design, whole_number
from plmia.data.labels import encode_groups
from plmia.data.memory import memory_limit, parse_size
from plmia.data.tables import require_same_order
from plmia.errors import DataError, Note, PlmiaError, PlmiaWarning
from plmia.evaluation.targets import Align, Setup, Unit
from plmia.results.saved import Overview, SavedRun, results_folder
from plmia.signals.importers import Imported, Importer, find_models, write_signals
from plmia.signals.signals import Scale, Signals
from plmia.training.own_script import Run, RunPlan

if TYPE_CHECKING:
    from plmia.auditing.planning import Plan
    from plmia.results.comparison import SideBySide


def design(
    records: Any = None,
    *,
    label: str | None = None,
    group: str | None = None,
    drop: Sequence[str] = (),
    decimal_comma: bool = False,
    groups: Any = None,
    references: int | None = None,
    design: DesignKind | MembershipDesign = "pairs",
    seed: int = 0,
    folder: str | Path | None = None,
) -> Run:
    """Choose which rows each model trains on, for a training script of your own; `plmia.Run` says what it does next.

    The same call again changes nothing; with more references it adds models to the run.

    Parameters
    ----------
    records : int, array, data frame, LabelledData or path, optional
        Number of records, or the data, as in `plmia.audit`, whose labels and groups the run then knows; not needed with
        a design of your own.
    label, group, drop, decimal_comma : str, str, sequence of str, bool
        Columns of a data frame or file, and numbers of a CSV; see `read_data`.
    groups : array, series or list [records], optional
        Rows of one group are members together or not at all; by default those of the data.
    references, design, seed : int, str or MembershipDesign, int
        As in `plmia.audit`.
    folder : path, optional
        Where to keep the run; by default a new temporary folder. It reveals who is a member: protect it like the data.
    """
    from plmia.auditing.run import copies_note

    columns = Columns(label, group, drop, decimal_comma)
    counted = records is None or isinstance(records, int | np.integer)
    whole = None if counted else audited_data(records, columns=columns).data
    if whole is None and (label or group or drop):
        raise DataError("label, group and drop name columns of the data: give the data, not their number")
    references = None if references is None else whole_number(references)
    n_records = records if whole is None else whole.n_points
    notes: list[Note] = [] if whole is None else [*whole.notes]
    if groups is not None:
        require_same_order(records, groups, "groups")
        groups, _, more = encode_groups(groups, _number(n_records, design))
        notes += more
    elif whole is not None:
        groups = whole.groups
    chosen = _drawn(design, n_records, references, groups, seed)
    about: dict[str, Any] = {"seed": seed}
    about["design"] = design.digest if isinstance(design, MembershipDesign) else design
    if whole is not None:
        chosen.require_classes(whole.labels)
        about["data"] = whole.digest
        notes += filter(None, [copies_note(chosen, whole), group_column(whole, groups)])
    for note in notes:
        warnings.warn(note.text, PlmiaWarning, stacklevel=2)
    labels, names = (None, None) if whole is None else (whole.labels, whole.class_names)
    plan = RunPlan(chosen, about, labels, groups, None if names is None else tuple(names), tuple(notes))
    return plan.write(output_folder(folder))


def _number(records: int | None, design: DesignKind | MembershipDesign) -> int:
    if records is not None:
        return records
    if isinstance(design, MembershipDesign):
        return design.n_points
    raise DataError("neither a number of records nor data were given: give one of them")


def _drawn(
    design: DesignKind | MembershipDesign,
    n_records: int | None,
    references: int | None,
    groups: IntArray | None,
    seed: int,
) -> MembershipDesign:
    """Draw a design, or check that a given one fits."""
    if not isinstance(design, MembershipDesign):
        rng = np.random.default_rng(seed)
        return audit_design(_number(n_records, design), 32 if references is None else references, rng, groups, design)
    needed = (references or max(1, design.n_models - 1)) + 1, n_records or design.n_points
    if design.matrix.shape != needed:
        raise DataError(
            f"the design has shape {design.matrix.shape}, {needed} is needed: one row per model (the target first), "
            "one column per record"
        )
    return design


def report(
    folder: str | Path | Overview,
    *,
    data: str | Path | None = None,
    label: str | None = None,
    group: str | None = None,
    drop: Sequence[str] = (),
    decimal_comma: bool = False,
    signals: str | Path | Signals | None = None,
    scale: Scale = "auto",
    show_records: bool = False,
    title: str | None = None,
    attack: str | None = None,
    target: int | None = None,
    memory: int | str | None = None,
) -> Audit:
    """Write report.html and its figures from results that exist already.

    Parameters
    ----------
    folder : path or Audit
        The folder of the results, or what `audit` or `score` returned.
    data, signals : path, optional
        The data that were audited, to show records (see `plmia.reporting.read_extras`), and the signals that were
        scored, to show those of single records; an audit has them in its folder.
    label, group, drop, decimal_comma : str, str, sequence of str, bool
        As in `plmia.audit`, if the data are a CSV or Parquet file.
    scale : {"auto", "logit", "probability", "signal"}
        Scale of the signals, as it was for `plmia.score`.
    show_records, title : bool, str
        As in `plmia.audit`.
    attack, target : str, int, optional
        Of the figures and the table; by default the verdict's attack and the first target.
    memory : int or str, optional
        As in `plmia.score`.
    """
    from plmia.reporting import Extras, read_extras, write_report

    columns = {"label": label, "group": group, "drop": drop, "decimal_comma": decimal_comma}
    with memory_limit(None if memory is None else parse_size(memory), results_folder(folder)):
        extras = replace(Extras() if data is None else read_extras(Path(data), **columns), title=title)
        saved = open_results(folder)
        if signals is not None:
            extras = replace(extras, signals=open_signals(signals, scale).signals)
        write_report(saved, extras, show_records=show_records, attack=attack, target=target)
    for note in extras.notes:
        warnings.warn(note.text, PlmiaWarning, stacklevel=2)
    return Audit(saved.folder, saved.result)


def open_results(folder: str | Path | Overview) -> SavedRun:
    """Open results; a warning says where they are those of an earlier version, which cannot be verified."""
    saved = SavedRun(folder)
    if not saved.verified:
        warnings.warn(saved.unverified, PlmiaWarning, stacklevel=3)
    return saved


def compare(
    *runs: str | Path | Overview,
    attacks: Sequence[str] = (),
    fprs: Sequence[float] = (),
    names: Sequence[str] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    memory: int | str | None = None,
) -> SideBySide:
    """Compare each run with the first, or the attacks of one run, with tests of the differences.

    Runs on the same records are tested in pairs, others as independent. All p-values are adjusted together (Holm).

    Parameters
    ----------
    *runs : path or Audit
        Folders of results, or what `audit` or `score` returned; with one, ``attacks`` are compared with each other.
    attacks : sequence of str
        Attacks to compare; by default all that the runs have in common.
    fprs : sequence of float
        Compare TPRs at these false-positive rates; by default 0.01 and 0.001 where there are records enough.
    names : sequence of str, optional
        Names of the runs; by default those of their folders.
    confidence, seed : float, int
        Coverage of each interval, and the seed of the resamples.
    memory : int or str, optional
        As in `plmia.score`.
    """
    from plmia.results.comparison import Run, compare_attacks, compare_runs

    attacks = [attacks] if isinstance(attacks, str) else attacks
    folders = [results_folder(run).resolve() for run in runs]
    repeated = [folder for i, folder in enumerate(folders) if folder in folders[:i]]
    if repeated and names is None:
        raise PlmiaError(f"the folder {repeated[0]} was given twice: give two runs, or one and two attacks")
    labels = run_names([results_folder(run) for run in runs], names)
    with memory_limit(None if memory is None else parse_size(memory), results_folder(runs[0])):
        opened = [Run(name, open_results(folder)) for name, folder in zip(labels, runs, strict=True)]
        rng = np.random.default_rng(seed)
        if len(opened) == 1:
            return compare_attacks(opened[0], attacks, rng, fprs or None, confidence)
        return compare_runs(opened, rng, attacks or None, fprs or None, confidence)


def run_names(folders: Sequence[Path], names: Sequence[str] | None) -> list[str]:
    """Names of runs: as given, else those of their folders, with the whole path where two are equal."""
    if names is not None:
        if len(names) != len(folders) or not all(names):
            raise PlmiaError(f"{len(names)} names were given for {len(folders)} runs: give one name per run")
        return list(names)
    short = [path.resolve().name for path in folders]
    return short if len(set(short)) == len(short) else [str(path) for path in folders]


def plan(
    signals: str | Path | Signals | Overview,
    *more: str | Path | Signals | Overview,
    fpr: float = 0.001,
    budget: str | float | None = None,
    view_cost: float | None = None,
    attack: str | Attack = "pl-mia-eb",
    target: int = 0,
    mode: Mode = "online",
    unit: Unit | None = None,
    align: Align = "auto",
    scale: Scale = "auto",
    seed: int = 0,
    progress: bool = True,
) -> Plan:
    """Find the best split of a budget among kinds of references and views, from pilots; nothing is trained.

    Parameters
    ----------
    signals : path, Signals or Audit
        The pilot: the folder of an audit or what `audit` returned, its signals/ folder, or a signals file.
    *more : path, Signals or Audit
        Further pilots of the same data and target, whose references were trained by other recipes. The pilot whose
        references were trained like the target is the standard, wherever it stands; if none or several are, the first
        of them is. Use one seed for all: they then attack the same records.
    fpr : float
        The false-positive rate of interest.
    budget : str or float, optional
        What the references of one kind may cost in all, the pilot's included: their number (with several pilots, as
        many as cost the same as this number of the standard's), the time to train them ("90s", "30m", "2h"), or the
        floating-point operations of training ("1e15flop", "20TFLOP", "1PFLOPS"), which `mlp` and `wide-resnet` record.
        By default twice the standard's references.
    view_cost : float, optional
        Cost of each view after the first, as a share of a model's; `plmia.auditing.planning.VIEW_COST` by default.
    attack, target : Attack or str, int
        The attack, and the model to attack, by number.
    mode, unit, align, scale, seed, progress
        As in `score`: by default people are judged where the pilot has groups.
    """
    from plmia.auditing.pilots import Budget, Source, costs, kind_names, require_comparable, standard_first
    from plmia.auditing.planning import VIEW_COST, Choice, plan_kinds, start, steps

    chosen, spent = find_attack(attack) if isinstance(attack, str) else attack, Budget.parse(budget)
    sources = [Source.open(pilot, scale, number) for number, pilot in enumerate((signals, *more), start=1)]
    for source in sources:
        source.opened.require([target])
    require_comparable(sources, target)
    sources = standard_first(sources, target)
    found = costs(sources, spent, VIEW_COST if view_cost is None else view_cost)
    setup = Setup(mode, seed=seed, unit=unit, align=align)
    pilots = [start(source.opened.signals, chosen, target, setup, fpr) for source in sources]
    likeness = [(source.like_target(target), source.unlike(target)) for source in sources]
    parts = zip(kind_names(sources), pilots, found, likeness, strict=True)
    choices = [Choice(name, pilot, cost, *like) for name, pilot, cost, like in parts]
    with Meter("planning", steps(*pilots), progress) as meter:
        made = plan_kinds(choices, fpr, spent.amount, seed, meter.tick)
    notes = [text for each in sources for text in (*each.notes, *(n.text for n in each.opened.other_recipe([target])))]
    cautions = filter(None, [sources[0].cautions])
    return replace(made, words=(*made.words, *dict.fromkeys(notes), *cautions))


def import_signals(kind: str | Importer, folder: str | Path, path: str | Path, *, progress: bool = True) -> Imported:
    """Make a signals file of what another tool left in a folder, or of a table.

    Parameters
    ----------
    kind : {"lira", "lira-pytorch", "rmia", "privacy-meter", "arrays", "table"} or Importer
        The tool or the layout; `plmia.signals.importers.LongTable` names the columns of a table.
    folder : path
        The folder that the tool wrote, or the table.
    path : path
        The npz to write, with or without its suffix. It is written whole or not at all; the same input gives the same
        bytes.
    progress : bool
        As in `plmia.audit`.
    """
    found = find_models(kind, Path(folder))
    with Meter("importing", len(found.outputs), progress) as meter:
        return write_signals(found, Path(path), meter.tick)
