"""Results of an earlier run, read back from its folder."""

from __future__ import annotations

import json
import zipfile
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.errors import OutputError
from plmia.frames import Overview
from plmia.metrics import BoolArray, Roc, roc_curve
from plmia.moments import IntArray
from plmia.notes import Note
from plmia.records import RecordTable, record_table
from plmia.scoring import Scores


class SavedResults(Overview):
    """What `plmia score` or `plmia audit` wrote.

    Parameters
    ----------
    folder : path
        The folder of the results.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = folder = Path(folder)
        try:
            text = (folder / "metrics.json").read_text(encoding="utf-8")
            self.metrics: dict[str, Any] = json.loads(text)
            self.attacks: list[str] = list(self.metrics["attacks"])
            self.targets: list[int] = [int(target) for target in self.metrics["about"]["targets"]]
            # Open as long as this is: its table of contents is long where there are many targets.
            self._archive = zipfile.ZipFile(folder / "scores.npz")
            if not (self.attacks and self.targets):
                raise ValueError("no attack or no target")
        except OSError as error:
            raise OutputError(
                f"{folder} has no results ({error.strerror}: {Path(error.filename or folder).name}): "
                "give the output folder of plmia audit or plmia score"
            ) from error
        except (ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise OutputError(f"the results in {folder} are damaged ({error}): run the audit again") from error

    @property
    def notes(self) -> list[Note]:
        """What a reader must know beside the numbers."""
        return [Note.from_json(note) for note in self.metrics["notes"]]

    def scores(self, attack: str, target: int) -> Scores:
        """Scores of every point by one attack on one target."""
        score, own, conformal, statistic = (
            self._of(attack, target, key) for key in ("score", "log10_p", "log10_p_conformal", "statistic")
        )
        return Scores(attack, score, conformal if np.array_equal(own, conformal) else own, conformal, statistic)

    def population(self, target: int) -> IntArray:
        """The population Z of one target."""
        return self._array(f"population/{target}")

    def queries(self, target: int) -> IntArray:
        """The evaluated points of one target."""
        return self._array(f"queries/{target}")

    def members(self, target: int) -> BoolArray:
        """Which points [points] the target trained on."""
        return self._array(f"members/{target}")

    @cached_property
    def labels(self) -> npt.NDArray[np.integer] | None:
        """Class of each point [points], where classes are known."""
        return self._array("labels") if "labels.npy" in self._archive.namelist() else None

    @cached_property
    def groups(self) -> IntArray | None:
        """Group of each point [points], where points come in groups."""
        return self._array("groups") if "groups.npy" in self._archive.namelist() else None

    def roc(self, attack: str, target: int) -> Roc:
        """ROC curve on the evaluated points."""
        queries = self.queries(target)
        return roc_curve(self._of(attack, target, "score")[queries], self.members(target)[queries])

    def records(self, attack: str | None = None, target: int | None = None) -> RecordTable:
        """Evaluated points, the most exposed first.

        Parameters
        ----------
        attack : str, optional
            By whose scores; by default those of the attack that the verdict names.
        target : int, optional
            Of which target; by default the first.
        """
        attack = self.metrics["verdict"]["attack"] if attack is None else attack
        target = self.targets[0] if target is None else target
        scores, members = self.scores(attack, target), self.members(target)
        return record_table(scores, self.population(target), self.queries(target), self.labels, self.groups, members)

    def _of(self, attack: str, target: int, key: str) -> npt.NDArray[Any]:
        if attack not in self.attacks:
            raise OutputError(
                f"{attack!r} is not among the results in {self.folder}: take one of {', '.join(self.attacks)}"
            )
        return self._array(f"{attack}/{target}/{key}")

    def _array(self, name: str) -> npt.NDArray[Any]:
        try:
            with self._archive.open(f"{name}.npy") as file:
                array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
            raise OutputError(
                f"{self.folder / 'scores.npz'} has no readable {name!r} (other version, or damaged): run plmia score "
                "again"
            ) from error
        return array
