"""Results on disk: `metrics.json` and `scores.npz`, whole or not at all, the same bytes for the same input."""

from __future__ import annotations

import contextlib
import json
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.attacks import Attack
from plmia.calibration import BinaryVote
from plmia.diagnostics import enough_references, require_plausible
from plmia.errors import AttackError, OutputError, PlmiaError
from plmia.evaluation import AttackResult, Setup, attack_targets
from plmia.notes import Note
from plmia.pointwise import Loss
from plmia.saved import SavedResults
from plmia.scoring import Tick
from plmia.signals import Signals
from plmia.summary import Summary, if_possible

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
    """
    require_plausible(signals)
    by_name = {attack.name: attack for attack in attacks}
    summary = Summary(list(by_name), len(targets))
    summary.add_notes(notes)
    if all(isinstance(attack.statistic, Loss) for attack in attacks):
        summary.add_notes([NO_REFERENCES_USED])

    def skip(name: str, error: PlmiaError) -> None:
        summary.leave_out(name, str(error))
        # One that needs no references says too little to be called an audit.
        if all(isinstance(by_name[left].statistic, Loss) for left in summary.attacks):
            raise error

    with ResultFolder(folder, signals.groups) as results:
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
                fit = by_name[result.scores.attack].fit_summary(result.view)
                summary.add_fit(result.scores.attack, result.target, fit)
        best, rng = by_name[summary.best_attack], np.random.default_rng([setup.seed, 2])
        summary.add_power(if_possible(lambda: enough_references(signals, best, min(targets), setup, rng)))
        groups = None if signals.groups is None else len(np.unique(signals.groups))
        metrics = summary.to_json(about | ({} if groups is None else {"groups": groups}))
        results.finish(metrics)
    return metrics


def _constant(result: AttackResult, attack: Attack) -> AttackError | None:
    """What is wrong with an attack whose score is the same at all evaluated points."""
    score = result.scores.score[result.truth.queries]
    if np.ptp(score) > 0:
        return None
    why, vote = "", attack.calibration
    if isinstance(vote, BinaryVote) and vote.gamma > 0 and score[0] == 0:
        why = f" (no vote passes gamma = {math.exp(vote.gamma):g})"
    return AttackError(
        f"all {len(score):,} evaluated points have the same score by {attack.name} in target {result.target}{why}, so "
        "it tells nothing of them: take another attack"
    )


class ResultFolder:
    """Writes results under other names first and renames them at the end, so that nothing half-written stays.

    Use as a context: on an error nothing of this run remains, and what an earlier run wrote is untouched.

    Parameters
    ----------
    folder : Path
        Where to; made if it does not exist.
    groups : int array [points], optional
        Points that belong together, for the owner of the data to find them by.
    """

    def __init__(self, folder: Path, groups: npt.NDArray[np.integer] | None = None) -> None:
        self._folder = folder
        self._groups = groups
        self._targets: set[int] = set()
        self._scores = folder / "scores.npz.partial"
        self._metrics = folder / "metrics.json.partial"

    def __enter__(self) -> ResultFolder:
        self._made: list[Path] = []
        try:
            self._made = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
            self._folder.mkdir(parents=True, exist_ok=True)
            self._zip = zipfile.ZipFile(self._scores, "w", allowZip64=True)
        except OSError as error:
            self._remove_made()
            raise OutputError(
                f"cannot write to {self._folder} ({error.strerror}): choose another folder with -o"
            ) from error
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
                f"cannot write {self._scores} ({error.strerror}): make room or use another folder"
            ) from error

    def finish(self, metrics: dict[str, Any]) -> None:
        """Write metrics.json, give both files their names, and list the records of the first target by exposure."""
        try:
            self._zip.close()
            self._metrics.write_text(json.dumps(metrics, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            # Of an earlier run: they must not stay beside these and say something else.
            for name in ("records.csv", "report.html"):
                (self._folder / name).unlink(missing_ok=True)
            self._scores.replace(self._folder / "scores.npz")
            self._metrics.replace(self._folder / "metrics.json")
            saved = SavedResults(self._folder)
            saved.records(metrics["verdict"]["attack"], min(self._targets)).write_csv(self._folder / "records.csv")
        except OSError as error:
            raise OutputError(
                f"cannot write to {self._folder} ({error.strerror}): make room or use another folder"
            ) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing writes what is left of the file: on a full disk that fails again, and is of no interest any more.
        with contextlib.suppress(OSError, ValueError):
            self._zip.close()
        with contextlib.suppress(OSError):
            self._scores.unlink(missing_ok=True)
            self._metrics.unlink(missing_ok=True)
        if kind is not None:
            self._remove_made()

    def _remove_made(self) -> None:
        """Remove the folders made for these results, as far as they are empty."""
        for path in self._made:
            with contextlib.suppress(OSError):
                path.rmdir()
