"""Training records: what a store keeps about the training of each model, and the notes that follow from them."""

from __future__ import annotations

import functools
import math
import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from importlib import metadata
from typing import TYPE_CHECKING, Any

from plmia.errors import Note

if TYPE_CHECKING:
    from plmia.training.recipes.recipe import Recipe, Trained

# Undeclared files that are named.
_MAX_NAMES = 5
# Rounding hardly moves a sum of probabilities by more than this.
_MAX_SUM_ERROR = 0.5


@dataclass(frozen=True)
class TrainingRecord:
    """How one model was made, as in `Trained`; None if the store does not say, as with stores of other tools."""

    given: bool | None = None  # the model existed before the audit
    recipe: Mapping[str, Any] | None = None  # JSON of the recipe
    seed: int | None = None
    attempt: int | None = None  # number of seeds that diverged before
    versions: Mapping[str, str] | None = None
    seconds: float | None = None  # models of one stack share their time equally
    operations: float | None = None  # floating-point operations of training, if the recipe knows them
    train_accuracy: float | None = None
    test_accuracy: float | None = None
    n_clipped: int | None = None
    n_renormalised: int | None = None
    sum_error: float | None = None
    undeclared_files: tuple[str, ...] | None = None
    losses: tuple[float | None, ...] | None = None  # None for a loss that was not finite

    @property
    def accuracies(self) -> tuple[float, float] | None:
        """Accuracies on the training records and on the others; None unless both are known and finite."""
        own, others = self.train_accuracy, self.test_accuracy
        return None if own is None or others is None or not math.isfinite(own + others) else (own, others)

    @classmethod
    def of_trained(cls, recipe: Recipe, seed: int, attempt: int, seconds: float, trained: Trained) -> TrainingRecord:
        """Record of a model that the audit trained."""
        return cls(
            recipe=recipe.to_json(),
            seed=seed,
            attempt=attempt,
            versions=versions(),
            seconds=seconds,
            operations=trained.operations,
            train_accuracy=_if_known(trained.train_accuracy),
            test_accuracy=_if_known(trained.test_accuracy),
            n_clipped=trained.n_clipped,
            n_renormalised=trained.n_renormalised,
            sum_error=trained.sum_error,
            undeclared_files=trained.undeclared[:_MAX_NAMES],
            losses=trained.losses,
        )

    @classmethod
    def of_given(cls, answers: Trained) -> TrainingRecord:
        """Record of a target that existed before the audit."""
        return cls(
            given=True,
            versions=versions(),
            train_accuracy=_if_known(answers.train_accuracy),
            test_accuracy=_if_known(answers.test_accuracy),
            n_clipped=answers.n_clipped,
            n_renormalised=answers.n_renormalised,
            sum_error=answers.sum_error,
        )

    def to_json(self) -> dict[str, Any]:
        """Provenance for the store."""
        return {own.name: value for own in fields(self) if (value := getattr(self, own.name)) is not None}

    @classmethod
    def from_json(cls, provenance: Mapping[str, Any]) -> TrainingRecord:
        """Read the provenance of a store, which has checked its types; entries of other tools are ignored."""
        known: dict[str, Any] = {own.name: provenance[own.name] for own in fields(cls) if own.name in provenance}
        for name in {"undeclared_files", "losses"} & known.keys():
            known[name] = tuple(known[name])
        return cls(**known)


def _if_known(accuracy: float) -> float | None:
    return None if math.isnan(accuracy) else accuracy


@functools.cache
def versions() -> dict[str, str]:
    """Versions of the packages that may change numbers."""
    found = {"python": platform.python_version()}
    for package in ("plmia", "numpy", "scikit-learn", "torch", "lightgbm"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def training_notes(records: Collection[TrainingRecord]) -> list[Note]:
    """Notes on probabilities that were renormalised and on files that were read without being declared."""
    notes = []
    rows = sum(record.n_renormalised or 0 for record in records)
    largest = max((record.sum_error or 0.0 for record in records), default=0.0)
    if rows:
        text = (
            "class probabilities were renormalised where they missed a sum of 1 by rounding (number of rows: "
            f"{rows:,}, largest deviation: {largest:.2g})"
        )
        notes.append(Note("probabilities-renormalised", "caution" if largest > _MAX_SUM_ERROR else "info", text))
    names = sorted({name for record in records for name in record.undeclared_files or ()})
    if names:
        rest = f" and {len(names) - _MAX_NAMES} more" * (len(names) > _MAX_NAMES)
        text = (
            f"training read files that the recipe does not declare ({', '.join(names[:_MAX_NAMES])}{rest}), so plmia "
            "would reuse finished models after these files change. List the files that training depends on in `files`"
        )
        notes.append(Note("undeclared-files", "caution", text))
    return notes
