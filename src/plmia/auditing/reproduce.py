"""The verb `reproduce`: run experiments of the paper from a checkout of the repository."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import plmia.errors
from plmia.errors import PlmiaError, did_you_mean

# The experiments are not part of the installed package.
_NEEDED = ("__init__.py", "setting.py", "outcome.py", "paper.json")


def reproduce(
    names: str | Sequence[str],
    folder: str | Path = "out/reproduce",
    *,
    references: int | None = None,
    targets: int | None = None,
    data: str | Path | None = None,
    recipe: str | None = None,
    signals: str | Path | None = None,
    quick: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> dict[str, dict[str, Any]]:
    """Run experiments of the paper, and return our numbers beside the paper's by name; needs a checkout.

    Trained models are kept in experiments/runs, so experiments share them and an interrupted one goes on.

    Parameters
    ----------
    names : str or sequence of str
        Tables and figures ("table-2", "figure-4"), or "all"; `paper_items` lists them.
    folder : path
        Where to write NAME.json, NAME.md and NAME.svg.
    references, targets : int, optional
        References per target, and targets to average over; by default all references and 10 targets.
    data, recipe : path, str, optional
        Train on this data, this way; by default as the paper does.
    signals : path, optional
        Signals file, store, or a folder of them, instead of training.
    quick : bool
        Two targets and coarse grids.
    seed, progress
        As in `plmia.audit`.
    """
    if recipe is not None and data is None:
        raise PlmiaError("a recipe trains on data: name them (data, --data)")
    if data is not None and signals is not None:
        raise PlmiaError("data (--data) trains models and signals (--signals) reads existing ones: give one of the two")
    chosen = choose_items([names] if isinstance(names, str) else names)
    settings = import_module("experiments.setting")
    data, signals = (None if path is None else Path(path) for path in (data, signals))
    setting = settings.Setting(references, targets, data, recipe, signals, quick, seed, settings.RUNS, progress)
    written: dict[str, dict[str, Any]] = {}
    for name in chosen:
        outcome = import_module(f"experiments.{name.replace('-', '_')}").run(setting)
        written[name] = outcome.write(Path(folder), _command(name, setting))
    return written


def paper_items() -> dict[str, dict[str, Any]]:
    """Tables and figures of the paper by name: title, label, numbers."""
    experiments_package()
    items: dict[str, dict[str, Any]] = import_module("experiments.outcome").paper_numbers()
    return items


def experiments_package() -> ModuleType:
    """Import `experiments` from the checkout that holds this package, or from the current folder."""
    package = Path(plmia.errors.__file__).resolve().parent
    folders = (parent / "experiments" for parent in (*package.parents[:3], Path.cwd()))
    folder = next((folder for folder in folders if all((folder / name).is_file() for name in _NEEDED)), None)
    if folder is None:
        raise PlmiaError("plmia reproduce needs the folder experiments: run it in a checkout of the plmia repository")
    if str(folder.parent) not in sys.path:
        sys.path.append(str(folder.parent))
    experiments = import_module("experiments")
    found = Path(str(experiments.__file__)).parent
    if found.resolve() != folder.resolve():
        raise PlmiaError(f"another package called experiments is in {found}: run this without it on the Python path")
    return experiments


def choose_items(names: Sequence[str]) -> list[str]:
    """Check names of tables and figures; "all" stands for all of them."""
    items = paper_items()
    if not names:
        raise PlmiaError("name a table or figure, or all; plmia reproduce --list and paper_items() list them")
    for name in names:
        if name != "all" and name not in items:
            raise PlmiaError(f"the paper has no {name!r}: {did_you_mean(name, [*items, 'all'])}")
    return list(items) if "all" in names else list(dict.fromkeys(names))


def _command(name: str, setting: Any) -> str:
    """The command that gives the same again, without paths of this machine."""
    words = ["plmia reproduce", name]
    options = {"references": setting.references, "targets": setting.targets, "recipe": setting.recipe}
    words += [f"--{option} {value}" for option, value in options.items() if value is not None]
    if setting.data is not None:
        words.append(f"--data {setting.data.name}")
    if setting.signals is not None:
        words.append(f"--signals {_short_path(setting.signals)}")
    words += ["--quick"] * setting.quick + ([f"--seed {setting.seed}"] if setting.seed else [])
    return " ".join(words)


def _short_path(path: Path) -> str:
    """A folder of several signals by its name; signals in a folder by its name and their own, without .npz."""
    alone = import_module("experiments.setting").signals_at(path) is not None
    last = [part for part in path.parts if part not in (path.anchor, "..")][-2 if alone else -1 :]
    return "/".join(last).removesuffix(".npz") if len(last) > 1 else "".join(last) or "."
