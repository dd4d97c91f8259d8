"""Input of an experiment: existing signals, or models trained for it and shared with other experiments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from plmia.attacks.view import Mode
from plmia.auditing.progress import Meter
from plmia.auditing.run import AuditPlan, open_store, train_run
from plmia.data.arrays import IntArray
from plmia.data.dataset import LabelledData, read_data
from plmia.data.designs import MembershipDesign
from plmia.errors import ReferencesError, SignalsError
from plmia.evaluation.targets import Setup
from plmia.signals.signals import Signals, read_signals
from plmia.signals.store import SignalStore
from plmia.training.recipes.named import parse_recipe
from plmia.training.recipes.recipe import views_for
from plmia.training.train import default_engine
from plmia.training.views import parse_views

HERE = Path(__file__).parent
SIGNALS, RUNS = HERE / "signals", HERE / "runs"
NOT_RUN = "not run here"
# Recipe by name of the signals, if the command names data but no recipe.
RECIPES = {
    "cifar10_wrn": "wide-resnet",
    "cifar10_wrn_plain": "wide-resnet",
    "location_mlp": "mlp",
    "location_gbdt_3": "gbdt?depth=3",
    "location_gbdt_5": "gbdt?depth=5",
    "location_gbdt_7": "gbdt?depth=7",
}
# Data sets as spelled by the paper and the committed results, by the letters and digits of file names.
SPELLED = {
    "purchase100": "Purchase-100",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cinic10": "CINIC-10",
    "location30": "Location-30",
    "adult": "Adult",
    "covertype": "Covertype",
    "covertype20k": "Covertype",
    "fashionmnist": "Fashion-MNIST",
}
# Perceptrons of all available data sets; an experiment uses those that the folder has.
MLPS = ("location_mlp", "adult_mlp", "covertype_mlp", "fashion_mlp")
TREES = ("location", "adult", "covertype")
TARGETS, QUICK_TARGETS = 10, 2
TRAINED_REFERENCES = 32


@dataclass(frozen=True)
class Source:
    """Signals and their description.

    Parameters
    ----------
    signals : Signals
        Signals of targets and references.
    about : dict
        Data, model, epochs, accuracies: the description printed with every number.
    targets : tuple of int
        Models that are attacked in turn.
    references : int
        Number of references per target, in whole complementary pairs.
    seed : int
        Seed of all random draws.
    """

    signals: Signals
    about: dict[str, Any]
    targets: tuple[int, ...]
    references: int
    seed: int

    def setup(self, mode: Mode = "online", references: int | None = None, population: int | None = None) -> Setup:
        """Settings of the attacks, with all references by default."""
        # The paper's attacks as published: references are not aligned.
        return Setup(mode, references or self.references, population, self.seed, align="never")

    def budgets(self, wanted: tuple[int, ...]) -> list[int]:
        """Return the wanted numbers of references that are available, and the largest available number."""
        return [n for n in wanted if n < self.references] + [self.references]

    @property
    def data(self) -> str:
        """Name of the data."""
        return str(self.about.get("data", "data of your own"))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        shape = {"models": self.signals.n_models, "points": self.signals.n_points, "views": self.signals.n_views}
        run = {"targets": list(self.targets), "references": self.references, "seed": self.seed}
        return self.about | shape | run


@dataclass(frozen=True)
class Setting:
    """The options of the command.

    Parameters
    ----------
    references, targets : int, optional
        Numbers of references and targets; by default all references that whole pairs allow (32 if models are trained),
        and 10 targets. References come in complementary pairs, so their number is even.
    data, recipe : Path, str, optional
        Train by this recipe on this data instead of reading signals.
    signals : Path, optional
        A signals file, a store, or a folder of them by name; by default the folder of the experiments.
    quick : bool
        Two targets and coarse grids.
    seed : int
        Seed of all random draws.
    runs : Path
        Folder in which the signals of trained models are kept and reused.
    progress : bool
        Whether to show the progress of training.
    """

    references: int | None = None
    targets: int | None = None
    data: Path | None = None
    recipe: str | None = None
    signals: Path | None = None
    quick: bool = False
    seed: int = 0
    runs: Path = field(default=RUNS)
    progress: bool = False

    def __post_init__(self) -> None:
        if self.references is not None and self.references % 2:
            raise ReferencesError(
                f"{self.references} references are not whole complementary pairs: use {self.references + 1}"
            )

    @property
    def is_alone(self) -> bool:
        """Whether the options name data or one file of signals, which then replaces all named signals."""
        return self.data is not None or signals_at(self.signals or SIGNALS) is not None

    def source(self, name: str) -> Source:
        """Return the signals called ``name`` (a file of the folder `signals`), or those that the options ask for."""
        if self.data is not None:
            signals, about = _trained(self, name)
        else:
            signals, about = read_named(self.signals or SIGNALS, name)
        return self.source_of(signals, about)

    def source_of(self, signals: Signals, about: dict[str, Any]) -> Source:
        """Return given signals with the targets and references that the options ask for."""
        targets, most = self.choice(signals.design, about)
        return Source(signals, about, targets, min(self.references or most, most), self.seed)

    def choice(self, design: MembershipDesign, about: dict[str, Any]) -> tuple[tuple[int, ...], int]:
        """Return the targets, and the largest number of references per target."""
        wanted = self.targets or (QUICK_TARGETS if self.quick else TARGETS)
        targets = _targets(design, wanted, int(about.get("first_target", 0)))
        return targets, _references(design, targets)

    def sources(self, *names: str) -> tuple[Source, ...]:
        """Return the named signals that the folder has; one source if the options name data or a file."""
        found = names[:1] if self.is_alone else [name for name in names if _located(self.signals or SIGNALS, name)]
        return tuple(self.source(name) for name in found or names[:1])

    def grid(self, full: tuple[Any, ...], quick: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the values to try."""
        return quick if self.quick else full


def _targets(design: MembershipDesign, wanted: int, first: int) -> tuple[int, ...]:
    """Return one model per split, starting at model ``first``: no two targets have equal or complementary members."""
    splits = design.splits()
    found = sorted(int(split[0]) for split in splits if min(split) >= first)
    pairs = [split for split in splits if len(split) == 2]
    if len(pairs) == 1:  # its models are the only references in a pair, so the target must be another model
        found = [target for target in found if target not in pairs[0]] or found
    if not found:
        raise SignalsError(f"no model from number {first} on can be a target: lower first_target beside the signals")
    return tuple(found[: max(1, min(wanted, len(splits) - 1))])


def _references(design: MembershipDesign, targets: tuple[int, ...]) -> int:
    """Number of references per target in whole pairs, without the target's own split."""
    pairs = [split for split in design.splits() if len(split) == 2]
    own = [any(target in pair for pair in pairs) for target in targets]
    most = 2 * (len(pairs) - any(own))
    if most < 2:
        raise SignalsError("there are no two complementary pairs of models to take targets and references from")
    return most


def read_named(path: Path, name: str) -> tuple[Signals, dict[str, Any]]:
    """Read the signals ``name`` at a path, which may itself be signals; NAME.json next to them is their description.

    Signals are an npz file, a store, or the folder of an audit, which contains a store. The suffix ``.npz`` may be
    omitted. ``leave_out`` in NAME.json lists models that are ignored. Models before ``first_target`` are references
    only, because they influenced the design of an attack.
    """
    found = signals_at(path)
    if found is not None:
        return _read(found, _beside(found))
    if not path.exists():
        raise SignalsError(
            f"{path} does not exist: see docs/reproduction.md for whole signals, omit --signals to use the small ones "
            "of the repository, or use --data to train models"
        )
    found = _located(path, name)
    if found is None:
        raise SignalsError(f"there are no signals {name!r} in {path}: give --signals FILE, or --data to train them")
    return _read(found, _beside(found))


def signals_at(path: Path) -> Path | None:
    """Return the file or store at a path, unless it is a folder of several."""
    places = [path, path / "signals"]
    if not path.exists():
        bare = path.with_suffix("") if path.suffix == ".npz" else path
        places = [bare, bare / "signals", bare.with_name(f"{bare.name}.npz")]
    return next((place for place in places if _is_signals(place)), None)


def _located(folder: Path, name: str) -> Path | None:
    """Path of the signals called ``name`` in a folder, if it has them."""
    return signals_at(folder / f"{name}.npz")


def _beside(found: Path) -> Path:
    """NAME.json of signals NAME.npz, NAME or NAME/signals."""
    if found.is_file():
        return found.with_suffix(".json")
    own = found.with_name(f"{found.name}.json")
    run = found.parent
    return run.with_name(f"{run.name}.json") if found.name == "signals" and not own.exists() and run.name else own


def _is_signals(path: Path) -> bool:
    return path.is_file() or (path / "store.json").exists()


@cache
def _read(path: Path, beside: Path) -> tuple[Signals, dict[str, Any]]:
    about = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else {}
    left_out = about.pop("leave_out", [])
    if path.is_file():
        return _without(read_signals(path), left_out), about
    store = SignalStore.open(path)
    # Every model that is not left out must be finished; these are renumbered, as in a file.
    kept = [model for model in range(store.shape[0]) if model not in left_out]
    return replace(store.signals(kept), models=()), about_store(store) | about


def _without(signals: Signals, models: list[int]) -> Signals:
    if not models:
        return signals
    kept = np.setdiff1d(np.arange(signals.n_models), models)
    design = MembershipDesign(signals.design.matrix[kept])
    return replace(signals, values=signals.values[kept], design=design, models=())


def about_store(store: SignalStore) -> dict[str, Any]:
    """Return the description of the models in a store's own records."""
    records = list(store.finished().values())
    recipe: dict[str, Any] = dict(store.about.get("recipe") or {})
    words = {key: value for key, value in recipe.items() if key not in ("recipe", "epochs")}
    about = {
        "model": f"{recipe.get('recipe', 'unknown')} ({', '.join(f'{k} {v}' for k, v in words.items())})",
        "epochs": recipe.get("epochs"),
        "recipe": recipe,
        "training_seed": store.about.get("seed"),
    }
    for key in ("train_accuracy", "test_accuracy"):
        values = [record[key] for record in records if record.get(key) is not None]
        about[key] = round(float(np.mean(values)), 5) if values else None
    return about


def _trained(setting: Setting, name: str) -> tuple[Signals, dict[str, Any]]:
    """Train the missing models of the shared store of these settings; other experiments reuse them."""
    text, path = setting.recipe or RECIPES[name], Path(setting.data or "")
    references = setting.references or (8 if setting.quick else TRAINED_REFERENCES)
    # One more pair: every target except the first excludes its own pair.
    references += 2 * ((setting.targets or TARGETS) > 1)
    data = read_data(path)
    folder = setting.runs / re.sub(r"[^a-z0-9.]+", "-", f"{data.name}-{text}-{setting.seed}".lower())
    store = train_store(name, data, text, references, folder, setting.seed, setting.progress)
    return store.signals(), {"data": spelled(data.name)} | about_store(store)


def spelled(name: str) -> str:
    """Return the name of a data set as the paper spells it; other names are unchanged."""
    bare = re.sub(r" (train|valid|test)$|\.npz$", "", name)
    return SPELLED.get(re.sub(r"[^a-z0-9]", "", bare.lower()), name)


def train_store(
    name: str,
    data: LabelledData,
    text: str,
    references: int,
    folder: Path,
    seed: int,
    progress: bool,
    fill: Callable[[SignalStore], None] | None = None,
) -> SignalStore:
    """Train the target and the references that are missing in the folder; ``fill`` may add models that exist."""
    recipe = parse_recipe(text)
    # Image networks use the paper's 18 views.
    is_network = data.is_images and name.startswith(("cifar10_wrn", "cifar100_wrn"))
    views = parse_views("rmia18") if is_network else views_for(recipe, data)
    plan = AuditPlan(data, recipe, references, views, Setup(seed=seed), (), may_skip=True)
    if fill is not None:
        fill(open_store(plan, folder))
    with Meter(f"training {text}", plan.references + 1, progress) as meter:
        return train_run(plan, folder, default_engine(recipe), lambda _model, _trained: meter.tick(), meter.skip)


def view_order(n_views: int) -> IntArray:
    """Views in the order in which they are added: from both halves in turn, so the mirror image comes second."""
    half = (n_views + 1) // 2
    order = [i for pair in zip(range(half), range(half, 2 * half), strict=True) for i in pair if i < n_views]
    return np.array(order)
