"""From a plan to a finished store: train the models that the store lacks, and append their signals.

The store is the only state. It has an identity (`audit_about`), so that models of another audit are never reused, and a
stack of models is in it entirely or not at all. Run again after an interruption, training resumes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.data.arrays import Array, FloatArray32
from plmia.data.dataset import LabelledData
from plmia.data.files import create_private, file_lock, make_private, replacing
from plmia.data.npz import open_unnamed_npy, save_npy
from plmia.data.threads import n_processors
from plmia.errors import OutputError, PlmiaWarning, RecipeError, TrainingError, install_hint, require_members, some
from plmia.signals.store import SignalStore, differences, groups_about, signal_about
from plmia.training.engines import Engine, Failed, Inline, LocalProcesses, pickled
from plmia.training.recipes.identity import ONCE
from plmia.training.recipes.recipe import Recipe, Trained, changed_files
from plmia.training.records import TrainingRecord
from plmia.training.views import View

# A model that diverges is trained with this many seeds in all.
MAX_SEEDS = 3
# On a CPU the models of a worker are cut into this many stacks, unless the stacks get smaller than this.
STACKS_PER_WORKER, SMALL_STACK = 4, 8
# Locked as long as an audit shares its data with workers.
_LOCK = "lock"

# Identity of an audit ------------------------------------------------------------------------------------------------


def audit_about(
    data: LabelledData,
    recipe: Recipe,
    views: Sequence[View],
    seed: int,
    target: str = "trained",
    design: str = "pairs",
    reference_recipe: Recipe | None = None,
) -> dict[str, Any]:
    """Identity of an audit, as JSON: everything that decides what it trains; given targets and designs by digest.

    References of the target's recipe (``reference_recipe`` is None) have no entry, so that earlier stores can resume.
    """
    return {
        "data": data.digest,
        "recipe": recipe.to_json(),
        "views": [str(view) for view in views],
        "seed": seed,
        "target": target,
        "design": design,
        **groups_about(data.groups),
        **signal_about(recipe.signal),
        **_preprocessing("preprocessing", recipe, data),
        **({} if reference_recipe is None else _references_about(reference_recipe, data)),
    }


def _references_about(recipe: Recipe, data: LabelledData) -> dict[str, Any]:
    return {"reference_recipe": recipe.to_json(), **_preprocessing("reference_preprocessing", recipe, data)}


def _preprocessing(name: str, recipe: Recipe, data: LabelledData) -> dict[str, str]:
    return {name: prepared} if (prepared := recipe.preprocessing(data)) else {}


def audit_differences(
    there: dict[str, Any], here: dict[str, Any], source: str, reference_source: str = ""
) -> Iterator[str]:
    """Describe how an existing store and the requested audit, whose recipes have these `Recipe.source`, differ."""
    before, after = there["about"], here["about"]
    if before.get("data") != after.get("data"):
        n_before, n_after = there["n_points"], here["n_points"]
        sizes = f"{n_before:,} records there, {n_after:,} here"
        yield f"the data changed: {'columns, values, labels or groups' if n_before == n_after else sizes}"
    recipes = before.get("recipe", {}), after.get("recipe", {})
    yield from _recipe_differences(*recipes, source)
    if "reference_recipe" in before or "reference_recipe" in after:
        old, new = (about.get("reference_recipe", own) for about, own in zip((before, after), recipes, strict=True))
        for line in _recipe_differences(old, new, reference_source or source):
            yield f"references: {line}"
    settings = ("views", "seed", "design", "target")
    for name in settings:
        if before.get(name) != after.get(name):
            was, now = _setting_text(before.get(name)), _setting_text(after.get(name))
            yield f"{name} {was} there, {'another' if was == now else now} here"
    # Entries of other versions; labels, points and groups belong to the data.
    described = {"data", "recipe", "reference_recipe", "groups", *settings}
    yield from differences(_without(before, described), _without(after, described))


def _recipe_differences(there: dict[str, Any], here: dict[str, Any], source: str) -> Iterator[str]:
    names = _recipe_name(there), _recipe_name(here)
    if names[0] != names[1]:
        yield f"recipe {names[0]} there, {names[1]} here"
        return
    keys = str(there.get("key")), str(here.get("key"))
    if keys[0] != keys[1]:
        unknown = any(key.startswith(ONCE) for key in keys)
        yield f"the code of {source} {'cannot be recognised: give a key of your own' if unknown else 'changed'}"
    if there.get("sources") != here.get("sources"):
        yield f"the code of {names[1]} changed"
    old, new = there.get("files", {}), here.get("files", {})
    for name in sorted(old.keys() & new.keys()):
        if old[name] != new[name]:
            yield f"the contents of {name} changed"
    for name in sorted(old.keys() ^ new.keys()):
        yield f"{name} is declared as a file of the recipe {'there' if name in old else 'here'} only"
    described = {"key", "sources", "files"}
    for line in differences(_without(there, described), _without(here, described)):
        yield f"recipe option {line.removeprefix('params.')}"


def _without(value: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: entry for key, entry in value.items() if key not in keys}


def _recipe_name(recipe: dict[str, Any]) -> str:
    name, kind = str(recipe.get("recipe")), recipe.get("class")
    return f"{name}:{str(kind).rpartition('.')[2]}" if kind else name


def _setting_text(value: Any) -> str:
    """Text of a setting; "of your own" for a digest."""
    if isinstance(value, list):
        return ";".join(map(str, value))
    return "of your own" if isinstance(value, str) and len(value) == 64 else str(value)


# Jobs ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A stack of models to train together."""

    models: tuple[int, ...]  # their numbers in the design
    seeds: tuple[int, ...]
    members: npt.NDArray[np.uint8]  # packed membership [models, ceil(points / 8)]
    attempt: int = 0  # number of seeds that were tried before


@dataclass(frozen=True)
class Work:
    """The function that workers apply to jobs; sent to each process once."""

    data: LabelledData | Path  # or the folder in which processes of one machine share them
    recipe: Recipe
    views: tuple[View, ...]
    keep_weights: bool = False
    reference_recipe: Recipe | None = None  # trains all models but 0; None if `recipe` trains them, too

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The different recipes."""
        return (self.recipe,) if self.reference_recipe is None else (self.recipe, self.reference_recipe)

    def recipe_of(self, model: int) -> Recipe:
        """Recipe that trains a model of the design: 0 is the target, the others are its references."""
        return self.recipe if model == 0 or self.reference_recipe is None else self.reference_recipe

    def __call__(self, job: Job) -> tuple[list[Trained], float]:
        """Train the job's models, which have one recipe; return them and the seconds it took."""
        started = time.monotonic()
        data = _load(self.data) if isinstance(self.data, Path) else self.data
        members = np.unpackbits(job.members, axis=1, count=data.n_points).view(np.bool_)
        recipe = self.recipe_of(job.models[0])
        trained = recipe.train(data, members, job.seeds, self.views, self.keep_weights)
        seconds = time.monotonic() - started
        known = [recipe.operations(data, int(row.sum())) for row in members]
        return [replace(one, operations=n) for one, n in zip(trained, known, strict=True)], seconds

    def __reduce__(self) -> tuple[Any, ...]:
        work = self.data, self.recipe, self.views, self.keep_weights, self.reference_recipe
        return _arrived, (work, [_comparable(recipe) for recipe in self.recipes])


def _comparable(recipe: Recipe) -> dict[str, Any] | None:
    """Identity of a recipe; None for code that has a new one whenever it is read, and cannot be compared."""
    about = recipe.to_json()
    return about if recipe.identified().to_json() == about else None


def _arrived(
    sent: tuple[LabelledData | Path, Recipe, tuple[View, ...], bool, Recipe | None],
    abouts: Sequence[dict[str, Any] | None],
) -> Work:
    """Work in a worker process; raises `RecipeError` unless its recipes are those that were sent."""
    work = Work(*sent)
    known = [(r, about) for r, about in zip(work.recipes, abouts, strict=True) if about is not None]
    if any(recipe.identified().to_json() != about for recipe, about in known):
        raise RecipeError(
            "the training code in worker processes differs from that in this process, as happens if a module of yours "
            "is edited, or a value in it set, after its import: start Python again, or give engine=plmia.Inline()"
        )
    return work


@functools.lru_cache(maxsize=1)
def _load(folder: Path) -> LabelledData:
    return LabelledData.load(folder)


def seed_of(seed: int, model: int, attempt: int) -> int:
    """Seed of a model's training, a new one for each attempt; 31 bits, which every library accepts."""
    return int(np.random.SeedSequence([seed, model, attempt]).generate_state(1)[0] >> 1)


def default_engine(
    recipe: Recipe,
    workers: int | None = None,
    data: LabelledData | None = None,
    reference_recipe: Recipe | None = None,
) -> Engine:
    """One process per core; this process alone, with a warning, if a recipe or data cannot be sent to others.

    Arrays are not sent: processes of this machine map them.
    """
    try:
        pickled((recipe, reference_recipe, None if data is None or data.is_array else data))
    except TrainingError as error:
        text = (
            "Models train one after another in this process, because the training code or the records cannot be sent "
            f"to other processes ({error.__cause__}). Open files, locks and connections inside the code that uses "
            "them, or accept this with engine=plmia.Inline()."
        )
        warnings.warn(text, PlmiaWarning, stacklevel=3)
        return Inline()
    return LocalProcesses(workers or n_processors())


# Training ------------------------------------------------------------------------------------------------------------


def train_missing(
    store: SignalStore,
    work: Work,
    engine: Engine,
    seed: int,
    report: Callable[[int, Trained], None] = lambda _model, _trained: None,
    models_folder: Path | None = None,
) -> None:
    """Train the models that the store lacks and append their signals, one stack at a time.

    ``report`` is called with the number and the result of each stored model; weights are kept in ``models_folder``.
    """
    require_members(engine, Engine, TrainingError)
    wanted, stack = store.missing(), _stack_size(work.recipe_of(1).stack, store.shape[0], engine)
    files, seen = [file for recipe in work.recipes for file in recipe.declared_files], dict[str, object]()
    for attempt in range(MAX_SEEDS):
        diverged: dict[int, Trained] = {}
        jobs = [_job(store, models, seed, attempt) for models in _stacks(work, wanted, stack)]
        with contextlib.closing(engine.run(work, jobs)) as results:
            for job, result in results:
                if isinstance(result, Failed):
                    raise TrainingError(_failure(job, result, store), result.trace)
                if changed := changed_files(files, seen):
                    raise TrainingError(f"{', '.join(changed)} changed during training: start again in another folder")
                trained, seconds = result
                outcomes = dict(zip(job.models, trained, strict=True))
                models, signals, provenance = for_store(work.recipe_of(job.models[0]), job, trained, seconds)
                if models_folder is not None:
                    for model in models:
                        _save_weights(weights_file(models_folder, model), outcomes[model])
                if models:
                    store.append(models, signals, provenance)
                for model in models:
                    report(model, outcomes[model])
                diverged |= {model: outcome for model, outcome in outcomes.items() if outcome.diverged}
        if not diverged:
            return
        wanted = sorted(diverged)
    raise TrainingError(_divergence(diverged))


def _stack_size(largest: int, n_models: int, engine: Engine) -> int:
    """Number of models to train together: on a CPU few enough that all workers are busy and results arrive regularly.

    An interruption loses whole stacks, and beyond `SMALL_STACK` models a CPU gains little from larger ones.
    """
    torch = sys.modules.get("torch")  # a recipe that needs it has imported it, to find its device
    if torch is not None and torch.cuda.is_available():
        return largest
    share = -(-n_models // engine.at_once)
    return min(largest, share, max(SMALL_STACK, -(-share // STACKS_PER_WORKER)))


def _stacks(work: Work, wanted: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Stacks of wanted models; their numbers alone decide which share one, so resuming changes nothing."""
    # A target with a recipe of its own is a stack of its own, and the first: it often takes longest.
    own = {0} if work.reference_recipe is not None else set[int]()
    blocks = {model: -1 if model in own else model // size for model in wanted}
    for block in sorted(set(blocks.values())):
        yield tuple(model for model in wanted if blocks[model] == block)


def _job(store: SignalStore, models: tuple[int, ...], seed: int, attempt: int) -> Job:
    members = np.packbits(store.design.matrix[list(models)], axis=1)
    return Job(models, tuple(seed_of(seed, model, attempt) for model in models), members, attempt)


def for_store(
    recipe: Recipe, job: Job, trained: Sequence[Trained], seconds: float
) -> tuple[list[int], FloatArray32, list[dict[str, Any]]]:
    """Models of a job that did not diverge, as `SignalStore.append` takes them: numbers, signals and provenance."""
    good = [i for i, outcome in enumerate(trained) if not outcome.diverged]
    share = seconds / len(trained)
    records = [TrainingRecord.of_trained(recipe, job.seeds[i], job.attempt, share, trained[i]) for i in good]
    signals = np.array([trained[i].conf for i in good], np.float32)
    return [job.models[i] for i in good], signals, [record.to_json() for record in records]


def _failure(job: Job, failed: Failed, store: SignalStore) -> str:
    """Describe what failed and how to continue: by correcting the recipe in the same folder if it has no models yet."""
    models = f"model {job.models[0]}" if len(job.models) == 1 else f"models {job.models[0]} to {job.models[-1]}"
    records = map(TrainingRecord.from_json, store.finished().values())
    # Models of other code are never mixed in: the folder is refused.
    remedy = (
        "finished models are kept, and the same command resumes if the cause was not in the recipe. After a change of "
        "the recipe, choose another folder"
    )
    if failed.by_recipe and all(record.given for record in records):
        remedy = "no model was trained, so correct the recipe and run the same command again"
    return f"training {models} failed: {failed.sentence.rstrip('.')}; {remedy}"


def _divergence(diverged: dict[int, Trained]) -> str:
    """Describe models that gave no finite answers with any seed."""
    first = min(diverged)
    if diverged[first].trouble:
        more = f" (and of {len(diverged) - 1} other models)" if len(diverged) > 1 else ""
        return (
            f"{diverged[first].trouble} of model {first}{more} with each of {MAX_SEEDS} seeds: every answer must be a "
            "finite number; the other models are kept"
        )
    return (
        f"model {some(sorted(diverged))} diverged with {MAX_SEEDS} seeds (the loss is not finite): lower the learning "
        "rate; the other models are kept"
    )


def weights_file(folder: Path, model: int) -> Path:
    """File of a model's weights."""
    return folder / f"{model:06d}.safetensors"


def _save_weights(path: Path, trained: Trained) -> None:
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise TrainingError(f"keeping models needs safetensors: {install_hint('torch')}") from error
    if trained.weights is None:
        raise TrainingError("this recipe returns no weights to keep: leave out keep_models (--keep-models)")
    try:
        make_private(path.parent)
        with replacing(path) as file:
            file.write(save(trained.weights))
    except Exception as error:  # safetensors has errors of its own
        raise OutputError(
            f"{path} cannot be written ({error}): free some space, or leave out keep_models "
            "(--keep-models); finished models are kept"
        ) from error


# Data for workers ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def shared_data(data: LabelledData, folder: Path, engine: Engine) -> Iterator[LabelledData | Path]:
    """Data for workers: a folder that processes of this machine map, or the data themselves; only arrays are mapped."""
    if not (engine.maps_files and data.is_array):
        yield data
        return
    for leftover in folder.glob(".data-*"):
        if not _in_use(leftover):
            shutil.rmtree(leftover, ignore_errors=True)
    with _output_errors(folder):
        shared = Path(tempfile.mkdtemp(prefix=".data-", dir=folder))
    try:
        with contextlib.ExitStack() as opened:
            with _output_errors(folder):
                lock = opened.enter_context(create_private(shared / _LOCK))
                opened.enter_context(file_lock(lock.fileno(), wait=False))
                data.save(shared, functools.partial(_save_linked, opened) if _has_links() else save_npy)
            yield shared
    finally:
        shutil.rmtree(shared, ignore_errors=True)


@contextlib.contextmanager
def _output_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"cannot write to {folder} ({error.strerror or error}): free some space, or use another folder"
        ) from error


def _has_links() -> bool:
    """Whether a file that this process has open can be reached by other processes of the user, which only Linux has."""
    descriptors = Path("/proc/self/fd")
    # The system gives this folder to root if other processes of the user may not look into it.
    return sys.platform == "linux" and descriptors.is_dir() and descriptors.stat().st_uid == os.geteuid()


def _save_linked(opened: contextlib.ExitStack, path: Path, array: Array) -> None:
    """Write a file without a name and a link to it that ends with this process, so that kill -9 leaves no copy."""
    file = opened.enter_context(open_unnamed_npy(path, array))
    path.symlink_to(f"/proc/{os.getpid()}/fd/{file.fileno()}")


def is_running(folder: Path) -> bool:
    """Whether processes of this machine train for the audit in a folder."""
    return any(_in_use(shared) for shared in folder.glob(".data-*"))


def _in_use(shared: Path) -> bool:
    """Whether a process holds the lock of shared data; False on systems without locks."""
    try:
        with (shared / _LOCK).open("r+b") as lock, file_lock(lock.fileno(), wait=False) as free:
            return not free and os.name == "posix"
    except OSError:
        return False
