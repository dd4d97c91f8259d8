"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from plmia.attacks.attack import ATTACKS, Attack, find_attack
from plmia.errors import AttackError, Note, OutputError, some
from plmia.signals.signals import Scale, Signals

if TYPE_CHECKING:
    from plmia.signals.store import SignalStore

Command = TypeVar("Command", bound=Callable[..., Any])

attack_option = click.option(
    "--attack",
    "names",
    multiple=True,
    metavar="NAME",
    help="Attack to run, or FILE.py:NAME; by default all that have the references they need.",
)
mode_option = click.option(
    "--mode",
    type=click.Choice(["online", "offline"]),
    default="online",
    show_default=True,
    help="Offline uses OUT references only.",
)
population_option = click.option(
    "--population",
    type=click.IntRange(min=2),
    metavar="N",
    help="Non-members to calibrate with; a quarter by default (at least 100, at most half).",
)

scale_option = click.option(
    "--scale",
    type=click.Choice(get_args(Scale)),
    default="auto",
    show_default=True,
    help="What the signals are; auto refuses what looks like probabilities.",
)

show_records_option = click.option(
    "--show-records/--no-records",
    help="Show images, features, texts and groups of records; by default they are named by number and class only.",
)


def is_store(path: Path) -> bool:
    """Whether a folder is a store; Path's own check would raise on a name that is too long."""
    return os.path.isfile(path / "store.json")  # noqa: PTH113


def store_at(path: Path) -> SignalStore | None:
    """Open the store in a folder, if it is one."""
    from plmia.signals.store import SignalStore

    return SignalStore.open(path) if is_store(path) else None


# With fewer references an audit that shows no leak says little.
_FEW_REFERENCES = 4


def store_notes(store: SignalStore, signals: Signals) -> list[Note]:
    """Notes on a store whose signals are used: models that are missing, records that cannot be verified."""
    planned, found = store.shape[0], []
    missing = [model for model in range(planned) if model not in signals.models]
    if missing:
        text = (
            f"{signals.n_models} of {planned} models finished (model {some(missing)} missing): only those were used. "
            "Run the audit again to train the others"
        )
        found.append(Note("unfinished-models", "info" if signals.n_models > _FEW_REFERENCES else "caution", text))
    unverified = store.unverified()
    if unverified:
        text = (
            f"An earlier version of plmia wrote the records of {len(unverified)} models: their signals are verified, "
            "their accuracies and times cannot be"
        )
        found.append(Note("unverified-records", "info", text))
    return found


def require_folder(path: Path) -> None:
    """Refuse a file where results are to go, before any work is done."""
    for place in (path, *path.parents):
        if os.path.exists(place):  # noqa: PTH110 - Path's own check would raise on a name that is too long
            if not os.path.isdir(place):  # noqa: PTH112
                raise OutputError(
                    f"{place} is a file, a folder is needed for the results: choose another folder with -o"
                )
            return


def common_options(command: Command) -> Command:
    """Add --seed, --json and --quiet."""
    seed = click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of everything random."
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Print metrics.json instead of a table.")
    quiet = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
    return seed(as_json(quiet(command)))


def chosen_attacks(names: tuple[str, ...]) -> list[Attack]:
    """Return the attacks that were named, or all of them."""
    for name in names:
        if "," in name and ".py:" not in name:
            each = " ".join(f"--attack {part.strip()}" for part in name.split(",") if part.strip())
            raise AttackError(f"--attack {name} names several attacks at once: repeat --attack for each ({each})")
    chosen = [find_attack(name) for name in names or ATTACKS]
    repeated = [attack.name for i, attack in enumerate(chosen) if attack.name in {a.name for a in chosen[:i]}]
    if repeated:
        raise AttackError(
            f"two attacks are called {repeated[0]!r}, so their results would overwrite each other: rename one of them, "
            "or name it once"
        )
    return chosen
