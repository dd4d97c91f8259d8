"""Results on disk: `metrics.json`, `scores.npz`, `records.csv` and, where people were judged, `people.csv`.

A folder holds one whole run, the same bytes for the same input.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

from plmia.attacks.attack import Attack
from plmia.attacks.groups import Groups
from plmia.attacks.scoring import Scores, Tick
from plmia.attacks.view import Features
from plmia.data import memory
from plmia.data.arrays import Array, Labels
from plmia.data.files import Staging
from plmia.data.npz import npz_entry
from plmia.data.threads import digest_meanwhile
from plmia.errors import AttackError, Note, OutputError, PlmiaError
from plmia.evaluation.diagnostics.power import EnoughReferences, enough_references
from plmia.evaluation.diagnostics.signals import require_plausible
from plmia.evaluation.records import RecordTable, people_table, record_table
from plmia.evaluation.targets import AttackResult, OneRecord, Setup, attack_targets
from plmia.evaluation.trainings import TrainingsResult, UnitExposure
from plmia.results import wording
from plmia.results.further import (
    Column,
    Further,
    accusations_of,
    over_trainings,
    subgroup_fpr,
    subgroup_notes,
    subgroup_tables,
)
from plmia.results.result import About, RunResult
from plmia.results.saved import SCORE_ARRAYS, metrics_parts, seal, sha256_of
from plmia.results.summary import MOST_DETAILED, Summary, if_possible, weak_attacks
from plmia.results.wording import SCREENED
from plmia.signals.signals import Signals

# What scoring takes, measured by `benchmarks/memory.py`: Python and its libraries; sorts and sums over all records;
# arrays over records and views, of which few are included in that; an attack on a target in the results.
BASE_BYTES = 150 * 10**6
BYTES_PER_RECORD, BYTES_PER_VIEW, VIEWS_INCLUDED = 84, 32, 2
BYTES_PER_RESULT = 30_000


def run_attacks(
    signals: Signals,
    attacks: Sequence[Attack],
    targets: Sequence[int],
    setup: Setup,
    folder: Path,
    about: About | None = None,
    tick: Tick = lambda _: None,
    *,
    may_skip: bool = False,
    notes: Sequence[Note] = (),
    show_records: bool = False,
    features: Features | None = None,
    further: Further | None = None,
) -> RunResult:
    """Attack, assess, and write the results to a folder.

    ``about`` says what was run, by default what the other arguments say; ``notes`` what is known before the run. With
    ``may_skip``, an attack that cannot run is left out with a note, see `_results`; otherwise it stops the run. With
    ``show_records``, scores.npz and records.csv hold the group of each record. ``features`` are the records as numbers,
    for attacks that predict signals from them. ``further`` are questions beside the attacks' rates.
    """
    memory.require(
        needed_bytes(signals.n_points, signals.n_views, len(attacks), len(targets)),
        f"scoring {signals.n_points:,} records and {len(targets):,} targets by {len(attacks)} attacks",
        "score fewer records, attacks or targets",
    )
    require_plausible(signals)
    further = further or Further()
    detailed = None if len(targets) <= MOST_DETAILED else frozenset(sorted(targets)[:MOST_DETAILED])
    summary = Summary([attack.name for attack in attacks], len(targets), detailed, may_align=setup.align != "never")
    if detailed is not None:
        summary.add_notes([Note("targets-summarised", "info", wording.targets_summarised(MOST_DETAILED, len(targets)))])
    summary.add_notes(notes)
    summary.add_notes([SCREENED] if setup.references == 0 else weak_attacks(attacks, setup.mode))
    with ResultFolder(folder, min(targets), signals.groups if show_records else None) as results:
        for result in _results(signals, attacks, targets, setup, tick, summary, features, may_skip=may_skip):
            results.add(result)
            summary.add(result)
            if len(targets) == 1:
                results.keep_only(summary.evidence.attack)
        best = next(attack for attack in attacks if attack.name == summary.evidence.attack)
        rng = np.random.default_rng([setup.seed, 2])
        power = None
        if setup.references != 0:
            power = if_possible(lambda: enough_references(signals, best, min(targets), setup, rng))
        about = about or About.of(signals, targets, setup)
        return _finish(results, summary, about, power, further, signals, best, setup, tick)


def needed_bytes(records: int, views: int, attacks: int, targets: int) -> int:
    """Memory that scoring takes at least, within a limit: Python, arrays over records, and results per target.

    Signals and membership are in files and do not count. `benchmarks/memory.py` measures it.
    """
    per_record = BYTES_PER_RECORD + BYTES_PER_VIEW * max(0, views - VIEWS_INCLUDED)
    return BASE_BYTES + records * per_record + attacks * targets * BYTES_PER_RESULT


def _finish(
    results: ResultFolder,
    summary: Summary,
    about: About,
    power: EnoughReferences | None,
    further: Further,
    signals: Signals,
    best: Attack,
    setup: Setup,
    tick: Tick,
) -> RunResult:
    """Answer the further questions with the verdict's attack, ``best``, and publish the results."""
    listed, fpr = results.listed(best.name), subgroup_fpr(summary.evidence)
    columns = results.add_columns(further.columns_of(listed))
    tables, notes = subgroup_tables(columns, listed, fpr, classes=about.signal is None)
    summary.add_notes([*notes, *subgroup_notes(columns, tables)])
    trainings = None
    if (n := further.n_trainings(signals)) and setup.references != 0:
        try:
            trainings = over_trainings(signals, best, setup, n, listed, fpr, tick)
        except PlmiaError as error:  # the results on this target stand, whatever is lacking for the others
            summary.add_notes([Note("trainings-not-compared", "info", wording.trainings_not_compared(str(error)))])
    about = replace(about, by={column.name: column.names for column in columns} or None)
    result = replace(
        summary.result(about, power),
        accusations=accusations_of(summary.evidence, further.priors),
        subgroups=tuple(tables),
        trainings=None if trainings is None else trainings.summary,
    )
    return results.finish(result, trainings)


def _results(
    signals: Signals,
    attacks: Sequence[Attack],
    targets: Sequence[int],
    setup: Setup,
    tick: Tick,
    summary: Summary,
    features: Features | None,
    *,
    may_skip: bool,
) -> Iterator[AttackResult]:
    """Yield the results of attacks that can run; leave the others out of the summary, or raise.

    An attack cannot run if it lacks references, its population has no spread, or its score is the same everywhere.
    """
    by_name = {attack.name: attack for attack in attacks}

    def skip(name: str, error: PlmiaError) -> None:
        summary.leave_out(name, str(error))
        # Attacks that use no references are too weak to be called an audit.
        if not any(by_name[left].uses_references or setup.references == 0 for left in summary.attacks):
            raise error

    for result in attack_targets(signals, attacks, targets, setup, tick, skip if may_skip else None, features):
        name = result.scores.attack
        if name not in summary.attacks:
            continue  # it was left out on another target
        if (constant := _constant(result, by_name[name])) is not None:
            if not may_skip:
                raise constant
            skip(name, constant)
            continue
        if result.target == min(targets):
            summary.add_fit(name, result.target, result.scores.fit)
        yield result


def _constant(result: AttackResult, attack: Attack) -> AttackError | None:
    """Return the error of an attack whose score is the same at all evaluated points."""
    score = result.scores.score[result.truth.queries]
    if np.ptp(score) > 0:
        return None
    reason = attack.calibration.explain_constant(float(score[0]))
    why = f" ({reason})" if reason else ""
    return AttackError(
        f"the attack {attack.name} gives all {len(score):,} evaluated records of target {result.target} the same "
        f"score{why}: take another attack"
    )


def _slim(scores: Scores) -> Scores:
    """Keep only the two arrays that a table of records needs."""
    return replace(scores, log10_p=scores.log10_p_conformal, statistic=scores.score, fit=None)


class ResultFolder:
    """Writes a run to a staging folder and publishes it at the end, so that results are whole or absent.

    Use as a context: after an error nothing of this run remains, and the results of an earlier run are untouched. Only
    the owner can read the files, since they name members.
    """

    def __init__(self, folder: Path, listed: int, groups: Labels | None = None) -> None:
        self._folder = folder
        self._listed = listed  # the target whose records are listed in records.csv
        self._groups = groups  # of each point, where the files may show them
        self._targets: set[int] = set()
        self._listed_results: dict[str, AttackResult] = {}  # on the listed target, by attack
        self._staging = Staging(folder)

    def __enter__(self) -> ResultFolder:
        try:
            with contextlib.ExitStack() as opened:
                opened.enter_context(self._staging)
                self._file = opened.enter_context(self._staging.create("scores.npz"))
                self._opened = opened.pop_all()
        except OSError as error:
            raise OutputError(f"cannot write to {self._folder} ({error.strerror}): choose another folder") from error
        self._zip = zipfile.ZipFile(self._file, "w", allowZip64=True)
        return self

    def add(self, result: AttackResult) -> None:
        """Append one result to scores.npz."""
        if not self._targets and result.view.labels is not None:
            self._write("labels", result.view.labels)
        if not self._targets and self._groups is not None:
            self._write("groups", self._groups)
        if not self._targets and result.groups is not None:
            self._write("people/first_record", result.groups.first)
            self._write("people/records", result.groups.size)
        if result.target not in self._targets:
            self._targets.add(result.target)
            self._write(f"population/{result.target}", result.population)
            self._write(f"queries/{result.target}", result.truth.queries)
            self._write(f"members/{result.target}", result.truth.members)
        scores = result.scores
        for key in SCORE_ARRAYS:
            self._write(f"{scores.attack}/{result.target}/{key}", vars(scores)[key])
        if result.target == self._listed:
            single = result.one_record
            slim = None if single is None else replace(single, scores=_slim(single.scores))
            self._listed_results[scores.attack] = replace(result, scores=_slim(scores), one_record=slim)

    def listed(self, attack: str) -> AttackResult:
        """Return the result of an attack on the listed target, with the arrays that tables need."""
        return self._listed_results[attack]

    def add_columns(self, columns: Sequence[Column]) -> Sequence[Column]:
        """Write the columns by which subgroups are formed, one code per judged record or person, and return them."""
        for k, column in enumerate(columns):
            self._write(f"by/{k}", column.codes)
        return columns

    def _tables(self, result: AttackResult) -> dict[str, RecordTable]:
        """Return the tables of one result by file."""

        def table(found: AttackResult | OneRecord, labels: Labels | None, groups: Labels | None) -> RecordTable:
            return record_table(
                found.scores, found.population, found.truth.queries, labels, groups, found.truth.members
            )

        if result.groups is None or result.one_record is None:
            return {"records.csv": table(result, result.labels, self._groups)}
        people = people_table(table(result, None, None), result.groups.size, result.groups.first, self._groups)
        return {"people.csv": people, "records.csv": table(result.one_record, result.view.labels, self._groups)}

    def _with_names(self, exposure: UnitExposure, groups: Groups | None) -> UnitExposure:
        """Add the first record of each person, and the groups where the files may show them."""
        first = exposure.index if groups is None else groups.first[exposure.index]
        named = None if self._groups is None else self._groups[first]
        return replace(exposure, first_record=None if groups is None else first, group=named)

    def keep_only(self, attack: str) -> None:
        """Forget the records by other attacks, once these cannot be the verdict's."""
        self._listed_results = {attack: self._listed_results[attack]}

    def _write(self, name: str, array: Array) -> None:
        try:
            with npz_entry(self._zip, name) as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
        except OSError as error:
            raise OutputError(
                f"cannot write {self._folder / 'scores.npz'} ({error.strerror}): make room or use another folder"
            ) from error

    def finish(self, result: RunResult, trainings: TrainingsResult | None = None) -> RunResult:
        """List the records by exposure and publish all files; return the result with the files' digests."""
        try:
            self._zip.close()
            self._file.flush()
            with digest_meanwhile(self._file) as digest_of_scores:
                digests = self._write_tables(result, trainings)
                sealed = seal(result, {"scores.npz": digest_of_scores(), **digests})
            self._file.close()
            with self._staging.create("metrics.json") as file:
                file.writelines(metrics_parts(sealed))
            self._staging.publish()
        except OSError as error:
            raise OutputError(
                f"cannot write to {self._folder} ({error.strerror}): make room or use another folder"
            ) from error
        return sealed

    def _write_tables(self, result: RunResult, trainings: TrainingsResult | None) -> dict[str, str]:
        """Write the tables of the verdict's attack, and return the digests of their files."""
        listed, digests = self.listed(result.verdict.attack), {}
        tables: dict[str, RecordTable | UnitExposure] = dict(self._tables(listed))
        if trainings is not None:
            tables["trainings.csv"] = self._with_names(trainings.exposure, listed.groups)
        for name, table in tables.items():
            with self._staging.create(name) as file:
                table.write_lines(file)
                digests[name] = sha256_of(file)
        return digests

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing writes the rest of the file, which fails again on a full disk; the first error is the one to report.
        with contextlib.suppress(OSError, ValueError):
            self._zip.close()
        with contextlib.suppress(OSError):
            self._file.close()
        self._opened.close()
