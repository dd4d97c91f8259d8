"""Results on disk: `metrics.json`, `scores.npz` and `records.csv`, one whole run, the same bytes for the same input."""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.attacks.attack import Attack
from plmia.attacks.scoring import Tick
from plmia.data.files import Staging
from plmia.errors import AttackError, Note, OutputError, PlmiaError
from plmia.evaluation.diagnostics import enough_references, require_plausible
from plmia.evaluation.targets import AttackResult, Setup, attack_targets
from plmia.results.saved import ScoreArchive, seal, sha256_of
from plmia.results.summary import Summary, if_possible
from plmia.signals.signals import Signals

NO_REFERENCES_USED = Note(
    "weak-attacks",
    "caution",
    "Only attacks that use no references were run. They can show a leak, but cannot exclude one.",
)


def run_attacks(
    signals: Signals,
    attacks: Sequence[Attack],
    targets: Sequence[int],
    setup: Setup,
    folder: Path,
    about: dict[str, Any],
    tick: Tick = lambda _: None,
    *,
    may_skip: bool = False,
    notes: Sequence[Note] = (),
    show_records: bool = False,
) -> dict[str, Any]:
    """Attack, judge, and write what came of it; return the contents of metrics.json.

    Parameters
    ----------
    signals, attacks, targets, setup, tick
        As in `attack_targets`.
    folder : Path
        Where metrics.json, scores.npz and records.csv go.
    about : dict
        What was run; see `Summary.to_json`.
    may_skip : bool
        Whether an attack that lacks references, whose population has no spread, or whose score is the same at all
        evaluated points, is left out, which the results say; by default it stops the run.
    notes : sequence of Note
        What is known beforehand and must stand beside the results; the verdict depends on it.
    show_records : bool
        Whether scores.npz and records.csv tell the group of each record.
    """
    require_plausible(signals)
    by_name = {attack.name: attack for attack in attacks}
    summary = Summary(list(by_name), len(targets))
    summary.add_notes(notes)
    if not any(attack.uses_references for attack in attacks):
        summary.add_notes([NO_REFERENCES_USED])

    def skip(name: str, error: PlmiaError) -> None:
        summary.leave_out(name, str(error))
        # One that needs no references says too little to be called an audit.
        if not any(by_name[left].uses_references for left in summary.attacks):
            raise error

    with ResultFolder(folder, signals.groups if show_records else None) as results:
        for result in attack_targets(signals, attacks, targets, setup, tick, skip if may_skip else None):
            if result.scores.attack not in summary.attacks:
                continue  # left out of all targets, since it was refused on another
            if (constant := _constant(result, by_name[result.scores.attack])) is not None:
                if not may_skip:
                    raise constant
                skip(result.scores.attack, constant)
                continue
            results.add(result)
            summary.add(result)
            if result.target == min(targets):
                fit = result.scores.fit
                summary.add_fit(result.scores.attack, result.target, None if fit is None else dict(fit))
        best, rng = by_name[summary.best_attack], np.random.default_rng([setup.seed, 2])
        summary.add_power(if_possible(lambda: enough_references(signals, best, min(targets), setup, rng)))
        groups = None if signals.groups is None else len(np.unique(signals.groups))
        metrics = summary.to_json(about | ({} if groups is None else {"groups": groups}))
        return results.finish(metrics)


def _constant(result: AttackResult, attack: Attack) -> AttackError | None:
    """What is wrong with an attack whose score is the same at all evaluated points."""
    score = result.scores.score[result.truth.queries]
    if np.ptp(score) > 0:
        return None
    reason = attack.calibration.explain_constant(float(score[0]))
    why = f" ({reason})" if reason else ""
    return AttackError(
        f"all {len(score):,} evaluated points have the same score by {attack.name} in target {result.target}{why}, so "
        "it tells nothing of them: take another attack"
    )


class ResultFolder:
    """Writes a run out of sight and publishes it at the end, so that nothing half-written stays.

    Use as a context: on an error nothing of this run remains, and what an earlier run wrote is untouched. Files can be
    read by their owner only, since they name members.

    Parameters
    ----------
    folder : Path
        Where to; made if it does not exist.
    groups : int array [points], optional
        Points that belong together, where scores.npz and records.csv may say so.
    """

    def __init__(self, folder: Path, groups: npt.NDArray[np.integer] | None = None) -> None:
        self._folder = folder
        self._groups = groups
        self._targets: set[int] = set()
        self._staging = Staging(folder)

    def __enter__(self) -> ResultFolder:
        try:
            with contextlib.ExitStack() as opened:
                opened.enter_context(self._staging)
                self._file = opened.enter_context(self._staging.create("scores.npz"))
                self._opened = opened.pop_all()
        except OSError as error:
            raise OutputError(
                f"cannot write to {self._folder} ({error.strerror}): choose another folder with -o"
            ) from error
        self._zip = zipfile.ZipFile(self._file, "w", allowZip64=True)
        return self

    def add(self, result: AttackResult) -> None:
        """Append one result to scores.npz."""
        if not self._targets and result.view.labels is not None:
            self._write("labels", result.view.labels)
        if not self._targets and self._groups is not None:
            self._write("groups", self._groups)
        if result.target not in self._targets:
            self._targets.add(result.target)
            self._write(f"population/{result.target}", result.population)
            self._write(f"queries/{result.target}", result.truth.queries)
            self._write(f"members/{result.target}", result.truth.members)
        for key in ("score", "log10_p", "log10_p_conformal", "statistic"):
            self._write(f"{result.scores.attack}/{result.target}/{key}", getattr(result.scores, key))

    def _write(self, name: str, array: npt.NDArray[Any]) -> None:
        # A fixed date in place of now keeps the bytes the same from run to run.
        entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
        try:
            with self._zip.open(entry, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
        except OSError as error:
            raise OutputError(
                f"cannot write {self._folder / 'scores.npz'} ({error.strerror}): make room or use another folder"
            ) from error

    def finish(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """List the records of the first target by exposure, and publish all files; return what metrics.json holds.

        Parameters
        ----------
        metrics : dict
            The contents of metrics.json, to which the digests of all files are added.
        """
        try:
            self._zip.close()
            scores = ScoreArchive(self._file, metrics)
            table = scores.records(metrics["verdict"]["attack"], min(self._targets))
            with self._staging.create("records.csv") as records:
                table.write_lines(records)
                sealed = seal(metrics, {"scores.npz": sha256_of(self._file), "records.csv": sha256_of(records)})
            self._file.close()
            with self._staging.create("metrics.json") as file:
                file.write(f"{json.dumps(sealed, indent=1, allow_nan=False)}\n".encode())
            self._staging.publish()
        except OSError as error:
            raise OutputError(
                f"cannot write to {self._folder} ({error.strerror}): make room or use another folder"
            ) from error
        return sealed

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing writes what is left of the file: on a full disk that fails again, and is of no interest any more.
        with contextlib.suppress(OSError, ValueError):
            self._zip.close()
        with contextlib.suppress(OSError):
            self._file.close()
        self._opened.close()
