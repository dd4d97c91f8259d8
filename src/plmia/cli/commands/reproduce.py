"""`plmia reproduce`: the paper's tables and figures, ours beside theirs."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import plmia.errors
from plmia.cli.commands.options import common_options
from plmia.cli.terminal import stderr, stdout
from plmia.errors import PlmiaError

# The scripts are no part of the installed package: they are loaded from the checkout under this name.
PACKAGE = "plmia_experiments"
NEEDED = ("__init__.py", "setting.py", "outcome.py", "paper.json")


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--list", "listing", is_flag=True, help="Name all tables and figures, one a line.")
@click.option("--references", type=click.IntRange(min=2), metavar="N", help="References a target; all by default.")
@click.option("--targets", type=click.IntRange(min=1), metavar="N", help="Targets to average over; 10 by default.")
@click.option("--data", "data_path", type=click.Path(path_type=Path), help="Train on this data (npz or archive).")
@click.option("--recipe", metavar="NAME", help="How to train; by default as the paper does.")
@click.option(
    "--signals", type=click.Path(path_type=Path), help="Signals file, store, or a folder of them, instead of training."
)
@click.option("--quick", is_flag=True, help="Two targets and coarse grids, on the signals of the repository.")
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("out/reproduce"),
    show_default=True,
    help="Folder for NAME.json, NAME.md and NAME.svg.",
)
@common_options
def reproduce(
    names: tuple[str, ...],
    listing: bool,
    references: int | None,
    targets: int | None,
    data_path: Path | None,
    recipe: str | None,
    signals: Path | None,
    quick: bool,
    folder: Path,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run experiments of the paper and print ours beside the paper's numbers.

    NAME is one of --list, or all. Without --data or --signals they run on the small signals of the repository. Models
    that are trained are kept in experiments/runs, so that experiments share them and an interrupted one goes on.

    \b
    Examples:
      plmia reproduce --list
      plmia reproduce table-2 figure-4 --quick
      plmia reproduce table-6 --data purchase100.tgz --references 254
      plmia reproduce all --signals run/signals -o results
    """  # noqa: D301 - click wants the control character itself
    experiments = load_experiments()
    paper = import_module(f"{PACKAGE}.outcome").paper_numbers()
    if listing:
        for name, item in paper.items():
            stdout().print(f"{name:<10} {item['title']} ({item['label']})", markup=False, soft_wrap=True)
        return
    if recipe is not None and data_path is None:
        raise PlmiaError("--recipe trains on data: name them with --data")
    if data_path is not None and signals is not None:
        raise PlmiaError("--data trains models and --signals reads those of others: give one of the two")
    chosen = _chosen(names, paper)
    runs, console = Path(str(experiments.__file__)).parent / "runs", None if quiet else stderr()
    setting = import_module(f"{PACKAGE}.setting").Setting(
        references, targets, data_path, recipe, signals, quick, seed, runs, console
    )
    written = {}
    for name in chosen:
        if console is not None and len(chosen) > 1:
            console.print(f"plmia: {name}: {paper[name]['title']}", markup=False, soft_wrap=True)
        outcome = import_module(f"{PACKAGE}.{name.replace('-', '_')}").run(setting)
        written[name] = outcome.write(folder, _command(name, setting))
        if not (quiet or as_json):
            stdout().print(_without_figures((folder / f"{name}.md").read_text("utf-8")), markup=False, soft_wrap=True)
    if as_json:
        click.echo(json.dumps(written[chosen[0]] if len(chosen) == 1 else written, indent=1, ensure_ascii=False))
    elif not quiet:
        stdout().print(f"{folder}/", markup=False, soft_wrap=True)


def _without_figures(page: str) -> str:
    """The page as a terminal can show it."""
    return "\n\n".join(part for part in page.split("\n\n") if not part.startswith("!["))


def _chosen(names: tuple[str, ...], paper: dict[str, Any]) -> list[str]:
    if not names:
        raise PlmiaError("name a table or figure, or all: plmia reproduce --list names them")
    for name in names:
        if name != "all" and name not in paper:
            raise PlmiaError(f"the paper has no {name!r}: it has {', '.join(paper)}, or take all")
    return list(paper) if "all" in names else list(dict.fromkeys(names))


def _command(name: str, setting: Any) -> str:
    """The command that gives the same again, without paths of this machine."""
    words = ["plmia reproduce", name]
    for option in ("references", "targets", "recipe"):
        if getattr(setting, option) is not None:
            words.append(f"--{option} {getattr(setting, option)}")
    if setting.data is not None:
        words.append(f"--data {setting.data.name}")
    if setting.signals is not None:
        words.append(f"--signals {_shown(setting.signals)}")
    words += ["--quick"] * setting.quick + ([f"--seed {setting.seed}"] if setting.seed else [])
    return " ".join(words)


def _shown(path: Path) -> str:
    """A folder of several signals by its name; signals in a folder by its name and their own, without .npz."""
    alone = import_module(f"{PACKAGE}.setting").signals_at(path) is not None
    last = [part for part in path.parts if part not in (path.anchor, "..")][-2 if alone else -1 :]
    return "/".join(last).removesuffix(".npz") if len(last) > 1 else "".join(last) or "."


def load_experiments() -> ModuleType:
    """Load the folder `experiments` of the checkout as a package; its scripts import each other from there."""
    if PACKAGE in sys.modules:
        return sys.modules[PACKAGE]
    folder = _folder()
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise PlmiaError(f"{folder} cannot be loaded as a package: run this command in a checkout of plmia")
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = module
    spec.loader.exec_module(module)
    return module


def _folder() -> Path:
    """Find the folder beside the package's source, or in the current folder."""
    package = Path(plmia.errors.__file__).resolve().parent
    for parent in (*package.parents[:3], Path.cwd()):
        folder = parent / "experiments"
        if all((folder / name).is_file() for name in NEEDED):
            return folder
    raise PlmiaError("the experiments are not installed with the package: run this command in a checkout of plmia")
