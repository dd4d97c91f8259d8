"""Run a design through a recipe: train what the store does not hold yet, and put the signals there."""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt

from plmia.data import LabelledData
from plmia.engines import Engine, Failed
from plmia.errors import TrainingError
from plmia.recipes.recipe import Recipe, Trained
from plmia.recipes.views import View
from plmia.store import SignalStore

# A model that diverges is tried with this many seeds in all.
MOST_SEEDS = 3


@dataclass(frozen=True)
class Job:
    """A stack of models to train together.

    Parameters
    ----------
    models : tuple of int
        Their numbers in the design.
    seeds : tuple of int
        One a model.
    members : uint8 array [models, ceil(points / 8)]
        Packed membership.
    attempt : int
        How many seeds were tried before.
    """

    models: tuple[int, ...]
    seeds: tuple[int, ...]
    members: npt.NDArray[np.uint8]
    attempt: int = 0


@dataclass(frozen=True)
class Work:
    """What every worker does with a job; travels to other processes once.

    Parameters
    ----------
    data : LabelledData or Path
        The data, or the folder in which processes of one machine share them.
    recipe : Recipe
        How to train.
    views : tuple of View
        How to query.
    keep_weights : bool
        Whether weights are wanted.
    """

    data: LabelledData | Path
    recipe: Recipe
    views: tuple[View, ...]
    keep_weights: bool = False

    def __call__(self, job: Job) -> tuple[list[Trained], float]:
        """Train the job's models; return them and the seconds it took."""
        started = time.monotonic()
        data = _load(self.data) if isinstance(self.data, Path) else self.data
        members = np.unpackbits(job.members, axis=1, count=data.n_points).view(np.bool_)
        trained = self.recipe.train(data, members, job.seeds, self.views, self.keep_weights)
        return trained, time.monotonic() - started


@functools.lru_cache(maxsize=1)
def _load(folder: Path) -> LabelledData:
    return LabelledData.load(folder)


def seed_of(seed: int, model: int, attempt: int) -> int:
    """Seed of a model's training; another for each attempt."""
    return int(np.random.SeedSequence([seed, model, attempt]).generate_state(1, np.uint64)[0] >> 1)


def train_missing(
    store: SignalStore,
    work: Work,
    engine: Engine,
    seed: int,
    report: Callable[[int, Trained], None] = lambda _model, _trained: None,
    models_folder: Path | None = None,
) -> None:
    """Train the models that the store lacks and append their signals, a stack at a time.

    Interrupted at any moment, the same call goes on where it was: a stack is in the store or it is not.

    Parameters
    ----------
    store : SignalStore
        Where signals go.
    work : Work
        What to do.
    engine : Engine
        Where.
    seed : int
        Seed of the audit.
    report : callable
        Told of every model that was stored.
    models_folder : Path, optional
        Where to keep weights, if they are wanted.
    """
    wanted = store.missing()
    for attempt in range(MOST_SEEDS):
        diverged: list[int] = []
        jobs = list(_jobs(store, wanted, work.recipe.stack, seed, attempt))
        for job, result in engine.run(work, jobs):
            if isinstance(result, Failed):
                raise TrainingError(_sentence(job, result), result.trace)
            trained, seconds = result
            diverged += _store_stack(store, work, job, trained, seconds, report, models_folder)
        if not diverged:
            return
        wanted = sorted(diverged)
    raise TrainingError(
        f"model {', '.join(map(str, wanted))} diverged with {MOST_SEEDS} seeds (its loss is not a finite number): "
        "lower the learning rate; the other models are kept"
    )


def _jobs(store: SignalStore, wanted: Sequence[int], stack: int, seed: int, attempt: int) -> Iterator[Job]:
    """Stacks of wanted models. Which models share one depends on their numbers alone, so resuming changes nothing."""
    for block in sorted({model // stack for model in wanted}):
        models = tuple(model for model in wanted if model // stack == block)
        members = np.packbits(store.design.matrix[list(models)], axis=1)
        yield Job(models, tuple(seed_of(seed, model, attempt) for model in models), members, attempt)


def _sentence(job: Job, failed: Failed) -> str:
    models = f"model {job.models[0]}" if len(job.models) == 1 else f"models {job.models[0]} to {job.models[-1]}"
    return f"training {models} failed: {failed.sentence}; finished models are kept, the same command goes on"


def _store_stack(
    store: SignalStore,
    work: Work,
    job: Job,
    trained: list[Trained],
    seconds: float,
    report: Callable[[int, Trained], None],
    models_folder: Path | None,
) -> list[int]:
    """Append the models that did not diverge, all at once; return the others."""
    good = [i for i, outcome in enumerate(trained) if not outcome.diverged]
    if models_folder is not None:
        for i in good:
            _save_weights(models_folder / f"{job.models[i]:06d}.safetensors", trained[i])
    if good:
        about = {"recipe": work.recipe.to_json(), "attempt": job.attempt, "versions": versions()}
        provenance = [
            about
            | {
                "seed": job.seeds[i],
                "seconds": seconds / len(trained),
                "train_accuracy": trained[i].train_accuracy,
                "test_accuracy": trained[i].test_accuracy,
                "n_clipped": trained[i].n_clipped,
                "losses": list(trained[i].losses),
            }
            for i in good
        ]
        store.append([job.models[i] for i in good], np.stack([trained[i].conf for i in good]), provenance)
    for i in good:
        report(job.models[i], trained[i])
    return [model for i, model in enumerate(job.models) if i not in good]


def _save_weights(path: Path, trained: Trained) -> None:
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise TrainingError("keeping models needs safetensors: pip install 'plmia[torch]'") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(trained.weights or {}, partial)
    partial.replace(path)


@functools.cache
def versions() -> dict[str, str]:
    """Versions of what may change numbers."""
    found = {"python": platform.python_version()}
    for package in ("plmia", "numpy", "scikit-learn", "torch", "lightgbm"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
