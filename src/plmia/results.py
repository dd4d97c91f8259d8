"""Results on disk: `metrics.json` and `scores.npz`, whole or not at all, the same bytes for the same input."""

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
from scipy.special import bdtrc

from plmia.errors import OutputError
from plmia.evaluation import AttackResult
from plmia.metrics import TargetMetrics, summarise

# At this level the attacks' own p-values are checked on the population; see `Summary.to_json`.
CHECK_LEVEL = 0.01


class Summary:
    """Metrics of all attacks over all targets, collected one result at a time."""

    def __init__(self, attacks: Sequence[str]) -> None:
        self._attacks = list(attacks)
        self._metrics: dict[str, list[TargetMetrics]] = {name: [] for name in attacks}
        self._flagged: dict[str, list[tuple[float, int]]] = {name: [] for name in attacks}
        self._sizes: set[int] = set()
        self._references: set[int] = set()
        self._left_out: dict[int, list[int]] = {}

    def add(self, result: AttackResult) -> None:
        """Take in one result."""
        name = result.scores.attack
        self._metrics[name].append(result.metrics())
        self._flagged[name].append((result.flagged_population(CHECK_LEVEL), len(result.population)))
        self._sizes.add(len(result.population))
        self._references.add(len(result.references))
        self._left_out[result.target] = [int(model) for model in result.left_out]

    def flagged(self, attack: str) -> float:
        """Mean share of known non-members that the attack's own p-value flags at `CHECK_LEVEL`."""
        return float(np.mean([share for share, _ in self._flagged[attack]]))

    def notes(self) -> list[str]:
        """What a reader must know beside the numbers, in plain words."""
        notes = []
        pairs = {target: models for target, models in self._left_out.items() if models}
        if pairs:
            target, models = min(pairs.items())
            others = f" (and likewise for {len(pairs) - 1} other targets)" if len(pairs) > 1 else ""
            which = ", ".join(map(str, models))
            notes.append(
                f"Model {which} is no reference of target {target}: it trained on the target's set or the complement, "
                f"so it would give the answer away{others}."
            )
        fewest = min((m for metrics in self._metrics.values() for m in metrics), key=lambda m: m.n_non_members)
        poor = [point for point in fewest.operating if not point.resolved]
        if poor:
            rates = ", ".join(f"{100 * point.fpr:g} % (needs {point.needed:,})" for point in reversed(poor))
            notes.append(
                f"With {fewest.n_non_members:,} evaluated non-members there is no TPR at an FPR of {rates}: "
                "the table leaves it out, metrics.json marks it."
            )
        wrong = [name for name in self._attacks if self._is_refuted(name)]
        if wrong:
            notes.append(
                f"The combined p-value of {', '.join(wrong)} is nominal only: at {100 * CHECK_LEVEL:g} % it flags "
                f"{100 * max(map(self.flagged, wrong)):.1f} % of the known non-members. Decide by "
                "log10_p_conformal."
            )
        return notes

    def _is_refuted(self, attack: str) -> bool:
        """Whether more known non-members are flagged than a valid p-value would flag in one audit in a thousand."""
        flagged = round(sum(share * size for share, size in self._flagged[attack]))
        total = sum(size for _, size in self._flagged[attack])
        return flagged > 0 and bool(bdtrc(flagged - 1, total, CHECK_LEVEL) < 0.001 / len(self._attacks))

    def to_json(self, about: dict[str, Any]) -> dict[str, Any]:
        """Build the contents of metrics.json.

        Parameters
        ----------
        about : dict
            What was run: joins the keys ``schema``, ``attacks`` and ``notes``.
        """
        attacks: dict[str, Any] = {}
        for name, metrics in self._metrics.items():
            ordered = sorted(metrics, key=lambda m: m.target)
            attacks[name] = summarise(ordered).to_json()
            attacks[name]["own_p_value_on_population"] = {"level": CHECK_LEVEL, "flagged": self.flagged(name)}
        about = about | {"references": sorted(self._references), "population": sorted(self._sizes)}
        notes = self.notes()
        clipped = about["signals"].get("clipped", 0)
        if clipped:
            notes.append(
                f"{clipped:,} signals were probabilities of exactly 0 or 1 and were clipped, so what is beyond is "
                "unknown: store logits where you can."
            )
        return {"schema": 1, "about": about, "attacks": attacks, "notes": notes}


class ResultFolder:
    """Writes results under other names first and renames them at the end, so that nothing half-written stays.

    Use as a context: on an error nothing of this run remains, and what an earlier run wrote is untouched.

    Parameters
    ----------
    folder : Path
        Where to; made if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
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
        if result.target not in self._targets:
            self._targets.add(result.target)
            self._write(f"population/{result.target}", result.population)
            self._write(f"queries/{result.target}", result.truth.queries)
        for key in ("score", "log10_p", "log10_p_conformal"):
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
        """Write metrics.json and give both files their names."""
        try:
            self._zip.close()
            self._metrics.write_text(json.dumps(metrics, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            self._scores.replace(self._folder / "scores.npz")
            self._metrics.replace(self._folder / "metrics.json")
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
