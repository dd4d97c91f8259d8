"""Where two audits differ, in the words of who ran them."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from plmia.data.dataset import LabelledData
from plmia.data.files import replacing
from plmia.errors import Note, OutputError, TrainingError, some
from plmia.signals.store import SignalStore, differences, groups_about
from plmia.training.engines import Engine, Failed, Inline, LocalProcesses
from plmia.training.recipes.declared_files import changed_files
from plmia.training.recipes.recipe import Recipe, Trained
from plmia.training.views import View


def audit_differences(there: dict[str, Any], here: dict[str, Any], file: str | None = None) -> Iterator[str]:
    """Say where the identities of two stores of audits differ; see `plmia.training.train.audit_about`.

    Parameters
    ----------
    there, here : dict
        What the store was made of, and what it would be made of now.
    file : str, optional
        The file of the recipe that is asked for now, if it has one.
    """
    before, after = there["about"], here["about"]
    if before.get("data") != after.get("data"):
        n_before, n_after = there["n_points"], here["n_points"]
        sizes = "" if n_before == n_after else f": {n_before:,} points there, {n_after:,} here"
        yield f"the data changed (X, y or groups){sizes}"
    yield from _recipes(before.get("recipe", {}), after.get("recipe", {}), file)
    for name in ("views", "seed", "design", "target"):
        if before.get(name) != after.get(name):
            was, now = _word(before.get(name)), _word(after.get(name))
            yield f"{name} {was} there, {'another' if was == now else now} here"
    # What else a store may know; labels, points and groups are those of the data.
    told = {"data", "recipe", "views", "seed", "design", "target", "groups"}
    yield from differences(_without(before, told), _without(after, told))


def _recipes(there: dict[str, Any], here: dict[str, Any], file: str | None) -> Iterator[str]:
    names = _name(there), _name(here)
    if names[0] != names[1]:
        yield f"recipe {names[0]} there, {names[1]} here"
        return
    if there.get("key") != here.get("key"):
        yield f"the code of {Path(file).name if file else 'train or query'} changed"
    if there.get("sources") != here.get("sources"):
        yield f"the code of {names[1]} changed"
    yield from _files(there.get("files", {}), here.get("files", {}))
    told = {"key", "sources", "files"}
    for line in differences(_without(there, told), _without(here, told)):
        yield f"recipe option {line.removeprefix('params.')}"


def _files(there: dict[str, str], here: dict[str, str]) -> Iterator[str]:
    """Say which of the files that a recipe declares changed."""
    for name in sorted(there.keys() & here.keys()):
        if there[name] != here[name]:
            yield f"the contents of {name} changed"
    for name in sorted(there.keys() ^ here.keys()):
        yield f"{name} is declared as a file of the recipe {'there' if name in there else 'here'} only"


def _without(value: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: entry for key, entry in value.items() if key not in keys}


def _name(recipe: dict[str, Any]) -> str:
    name, kind = str(recipe.get("recipe")), recipe.get("class")
    return f"{name}:{str(kind).rpartition('.')[2]}" if kind else name


def _word(value: Any) -> str:
    """Text of a setting; of what is known by its digest only that it was given."""
    if isinstance(value, list):
        return ";".join(map(str, value))
    return "of your own" if isinstance(value, str) and len(value) == 64 else str(value)


# Run a design through a recipe: train what the store does not hold yet, and put the signals there.

# A model that diverges is tried with this many seeds in all.
MOST_SEEDS = 3
# On a CPU a worker's models are cut into so many stacks, unless they get smaller than this.
STACKS_A_WORKER, FEW_MODELS = 4, 8
# Another audit of the same folder may be running: what it shares with its workers is locked as long as it lives.
_LOCK = "lock"
# Undeclared files that are named.
_MOST_NAMES = 5
# A sum of probabilities that is further from 1 is hardly one by rounding.
_ROUNDING_AT_MOST = 0.5


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


@contextlib.contextmanager
def shared_data(data: LabelledData, folder: Path, engine: Engine) -> Iterator[LabelledData | Path]:
    """Data as workers get them: in a folder that processes of this machine map, or as they are."""
    if not isinstance(engine, LocalProcesses):
        yield data
        return
    for leftover in folder.glob(".data-*"):
        if not _in_use(leftover):
            shutil.rmtree(leftover, ignore_errors=True)
    try:
        shared = Path(tempfile.mkdtemp(prefix=".data-", dir=folder))
        lock = (shared / _LOCK).open("xb")
    except OSError as error:
        raise OutputError(
            f"cannot write to {folder} ({error.strerror or error}): make room, or use another folder"
        ) from error
    try:
        with lock:
            _locked_at_once(lock)
            data.save(shared)
            yield shared
    finally:
        shutil.rmtree(shared, ignore_errors=True)


def is_running(folder: Path) -> bool:
    """Whether processes of this machine train for the audit in a folder."""
    return any(_in_use(shared) for shared in folder.glob(".data-*"))


def _in_use(shared: Path) -> bool:
    try:
        with (shared / _LOCK).open("r+b") as lock:
            return not _locked_at_once(lock)
    except OSError:
        return False


def _locked_at_once(lock: IO[bytes]) -> bool:
    """Lock a file until it is closed, unless another process has it locked; where there are no locks, let it be."""
    try:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True


def default_engine(recipe: Recipe, workers: int | None = None) -> Engine:
    """Processes, one a core; this process alone where a recipe cannot travel to others.

    What the user's script defines stays here, too: other processes would have to run the script to get it.
    """
    from multiprocessing.reduction import ForkingPickler

    try:
        if b"__main__" in bytes(ForkingPickler.dumps(recipe)):
            return Inline()
    except Exception:  # whatever it raises, the recipe stays here
        return Inline()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return LocalProcesses(workers or cores)


def seed_of(seed: int, model: int, attempt: int) -> int:
    """Seed of a model's training, another for each attempt; 31 bits, which every library takes."""
    return int(np.random.SeedSequence([seed, model, attempt]).generate_state(1)[0] >> 1)


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
    wanted, stack = store.missing(), _stack_size(work.recipe.stack, store.shape[0], engine)
    declared, seen = getattr(work.recipe, "declared", ()), dict[str, object]()
    for attempt in range(MOST_SEEDS):
        diverged: dict[int, Trained] = {}
        with contextlib.closing(engine.run(work, list(_jobs(store, wanted, stack, seed, attempt)))) as results:
            for job, result in results:
                if isinstance(result, Failed):
                    raise TrainingError(_sentence(job, result, _any_trained(store)), result.trace)
                trained, seconds = result
                if changed := changed_files(declared, seen):
                    raise TrainingError(
                        f"{', '.join(changed)} changed while models were trained: start again in another folder"
                    )
                diverged |= _store_stack(store, work, job, trained, seconds, report, models_folder)
        if not diverged:
            return
        wanted = sorted(diverged)
    raise TrainingError(_divergence(diverged))


def _divergence(diverged: dict[int, Trained]) -> str:
    """Say what became of models of which no seed gave finite answers."""
    first = min(diverged)
    if diverged[first].trouble:
        more = f" (and of {len(diverged) - 1} other models)" if len(diverged) > 1 else ""
        return (
            f"{diverged[first].trouble} of model {first}{more}, whichever of {MOST_SEEDS} seeds it was trained with: "
            "every answer must be a finite number; the other models are kept"
        )
    return (
        f"model {some(sorted(diverged))} diverged with {MOST_SEEDS} seeds (its loss is not a finite number): "
        "lower the learning rate; the other models are kept"
    )


def _stack_size(most: int, n_models: int, engine: Engine) -> int:
    """How many models to train together: on a CPU few enough that all workers are busy and results come now and then.

    A stack that is interrupted is lost as a whole; and beyond `FEW_MODELS` a CPU gains little from larger ones.
    """
    torch = sys.modules.get("torch")  # a recipe that needs it has imported it, to find its device
    if torch is not None and torch.cuda.is_available():
        return most
    share = -(-n_models // engine.at_once)
    return min(most, share, max(FEW_MODELS, -(-share // STACKS_A_WORKER)))


def _jobs(store: SignalStore, wanted: Sequence[int], stack: int, seed: int, attempt: int) -> Iterator[Job]:
    """Stacks of wanted models. Which models share one depends on their numbers alone, so resuming changes nothing."""
    for block in sorted({model // stack for model in wanted}):
        models = tuple(model for model in wanted if model // stack == block)
        members = np.packbits(store.design.matrix[list(models)], axis=1)
        yield Job(models, tuple(seed_of(seed, model, attempt) for model in models), members, attempt)


def _any_trained(store: SignalStore) -> bool:
    return not all(record.get("given") for record in store.finished().values())


def _sentence(job: Job, failed: Failed, any_trained: bool) -> str:
    """Say what failed and how to go on: where the recipe fails and no model was trained, not by trying again."""
    models = f"model {job.models[0]}" if len(job.models) == 1 else f"models {job.models[0]} to {job.models[-1]}"
    onward = "finished models are kept, the same command goes on"
    if failed.by_recipe and not any_trained:
        onward = "no model was trained: correct it, then run the same command again"
    return f"training {models} failed: {failed.sentence.rstrip('.')}; {onward}"


def _store_stack(
    store: SignalStore,
    work: Work,
    job: Job,
    trained: list[Trained],
    seconds: float,
    report: Callable[[int, Trained], None],
    models_folder: Path | None,
) -> dict[int, Trained]:
    """Append the models that did not diverge, all at once; return the others."""
    good = [i for i, outcome in enumerate(trained) if not outcome.diverged]
    if models_folder is not None:
        for i in good:
            _save_weights(weights_file(models_folder, job.models[i]), trained[i])
    if good:
        share = seconds / len(trained)
        provenance = [provenance_of(work.recipe, job.seeds[i], job.attempt, share, trained[i]) for i in good]
        store.append([job.models[i] for i in good], np.stack([trained[i].conf for i in good]), provenance)
    for i in good:
        report(job.models[i], trained[i])
    return {model: trained[i] for i, model in enumerate(job.models) if i not in good}


def provenance_of(recipe: Recipe, seed: int, attempt: int, seconds: float, trained: Trained) -> dict[str, Any]:
    """How a model came about, for its record in the store."""
    return {
        "recipe": recipe.to_json(),
        "seed": seed,
        "attempt": attempt,
        "versions": versions(),
        "seconds": seconds,
        "train_accuracy": trained.train_accuracy,
        "test_accuracy": trained.test_accuracy,
        **rounding_of(trained),
        "undeclared_files": list(trained.undeclared[:_MOST_NAMES]),
        "losses": list(trained.losses),
    }


def rounding_of(trained: Trained) -> dict[str, Any]:
    """What rounding did to a model's answers, for its record in the store."""
    return {
        "n_clipped": trained.n_clipped,
        "n_renormalised": trained.n_renormalised,
        "sum_error": trained.sum_error,
    }


def rounding_notes(records: Collection[Mapping[str, Any]]) -> list[Note]:
    """Say how many rows of probabilities were renormalised, by the records of a store."""
    counts = [record.get("n_renormalised") for record in records]
    errors = [record.get("sum_error") for record in records]
    rows = sum(n for n in counts if isinstance(n, int))
    largest = max((error for error in errors if isinstance(error, float)), default=0.0)
    if rows == 0:
        return []
    text = (
        "class probabilities were renormalised where they missed a sum of 1 by rounding (number of rows: "
        f"{rows:,}, largest deviation: {largest:.2g})"
    )
    return [Note("probabilities-renormalised", "caution" if largest > _ROUNDING_AT_MOST else "info", text)]


def undeclared_notes(records: Collection[Mapping[str, Any]]) -> list[Note]:
    """Say which files models read that their recipe does not declare, by the records of a store."""
    lists = [record.get("undeclared_files") for record in records]
    names = sorted({str(name) for names in lists if isinstance(names, list) for name in names})
    if not names:
        return []
    told = ", ".join(names[:_MOST_NAMES]) + f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES)
    text = (
        f"Training read files that the recipe does not declare ({told}): after a change of these, finished models "
        "would be reused. List those that decide what is trained in `files`"
    )
    return [Note("undeclared-files", "caution", text)]


def weights_file(folder: Path, model: int) -> Path:
    """File of a model's weights."""
    return folder / f"{model:06d}.safetensors"


def _save_weights(path: Path, trained: Trained) -> None:
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise TrainingError("keeping models needs safetensors: pip install 'plmia[torch]'") from error
    if trained.weights is None:
        raise TrainingError("this recipe returns no weights to keep: leave out --keep-models")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(save(trained.weights))
    except Exception as error:  # safetensors has errors of its own
        raise OutputError(
            f"{path} cannot be written ({error}): free some space, or leave out --keep-models; finished models are kept"
        ) from error


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


def audit_about(
    data: LabelledData, recipe: Recipe, views: Sequence[View], seed: int, target: str = "trained", design: str = "pairs"
) -> dict[str, Any]:
    """Everything that decides what an audit trains; a store made for other values is never reused.

    Parameters
    ----------
    data, recipe, views, seed
        What is trained, how, how it is queried, and the seed of it all.
    target : str
        "trained", or the digest of a target that was given.
    design : str
        The kind of design, or the digest of one that was given.
    """
    return {
        "data": data.digest,
        "recipe": recipe.to_json(),
        "views": [str(view) for view in views],
        "seed": seed,
        "target": target,
        "design": design,
        **groups_about(data.groups),
    }
