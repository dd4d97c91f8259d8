"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from plmia.attacks import ATTACKS, Attack, find_attack
from plmia.errors import AttackError

Command = TypeVar("Command", bound=Callable[..., Any])

attack_option = click.option(
    "--attack", "names", multiple=True, metavar="NAME", help="Attack to run, or FILE.py:NAME; all by default."
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
    chosen = [find_attack(name) for name in names or ATTACKS]
    repeated = [attack.name for i, attack in enumerate(chosen) if attack.name in {a.name for a in chosen[:i]}]
    if repeated:
        raise AttackError(
            f"two attacks are called {repeated[0]!r}, so their results would overwrite each other: rename one of them, "
            "or name it once"
        )
    return chosen
