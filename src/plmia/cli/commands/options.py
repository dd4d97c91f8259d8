"""Options that several commands share, named after the parameters of the functions that they are passed to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import click

from plmia.data.arrays import PredictionKind
from plmia.data.designs import DesignKind, MembershipDesign
from plmia.data.npz import load_npy
from plmia.errors import AttackError, DataError
from plmia.evaluation.targets import Align, Unit
from plmia.signals.signals import Scale

Command = TypeVar("Command", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)


def separate_attacks(_ctx: click.Context, _option: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Check the names of --attack, one for each time it is given; None without any."""
    for name in names:
        if "," in name and ".py:" not in name:
            each = " ".join(f"--attack {part.strip()}" for part in name.split(",") if part.strip())
            raise AttackError(f"--attack {name} names several attacks at once: repeat --attack for each ({each})")
    return names or None


def output_option(meaning: str) -> Callable[[Command], Command]:
    """Return the option for the folder of the results."""
    return click.option("-o", "--output", "folder", required=True, type=PATH, help=meaning)


def parse_design(text: str) -> DesignKind | MembershipDesign:
    """Read --design: a kind, or a file."""
    if text in get_args(DesignKind):
        return cast("DesignKind", text)
    if not text.endswith(".npy"):
        raise DataError(
            f"there is no design {text!r}: give {', '.join(get_args(DesignKind))}, or the path of an npy file"
        )
    return MembershipDesign(load_npy(Path(text)))


def json_option(instead_of: str, what: str = "JSON") -> Callable[[Command], Command]:
    """Return the option that prints JSON."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} instead of {instead_of}.")


design_option = click.option(
    "--design",
    metavar="KIND|FILE.npy",
    help="References in complementary pairs, on independent halves, exact (each record in half of them), or a bool "
    "matrix [models, records] of your own, model 0 the target. By default pairs, or, for a target that exists already, "
    "references on its share of the records.",
)
attack_option = click.option(
    "--attack",
    "attacks",
    multiple=True,
    metavar="NAME",
    callback=separate_attacks,
    help="Attack to run, or FILE.py:NAME; by default all that have the references they need.",
)
mode_option = click.option(
    "--mode",
    type=click.Choice(["online", "offline"]),
    default="online",
    show_default=True,
    help="Offline uses OUT references only.",
)
align_option = click.option(
    "--align",
    type=click.Choice(get_args(Align)),
    default="auto",
    show_default=True,
    help="Move the references' signals to the target's scale. auto: if the target is clearly unlike them; always: if "
    "its signals become more likely at all.",
)
population_option = click.option(
    "--population",
    type=click.IntRange(min=2),
    metavar="N",
    help="Known non-members to calibrate with, drawn at random from the target's non-members; by default a quarter of "
    "these (at least 100, at most half). They are not evaluated.",
)
_label = click.option("--label", metavar="COLUMN", help="Column of the labels, in a CSV or Parquet file.")
_group = click.option(
    "--group", metavar="COLUMN", help="Column that says which records belong together, such as a patient's number."
)
_drop = click.option("--drop", multiple=True, metavar="COLUMN", help="Column to leave out; may be repeated.")
_decimal_comma = click.option("--decimal-comma", is_flag=True, help="Numbers in the CSV file have decimal commas.")
scale_option = click.option(
    "--scale",
    type=click.Choice(get_args(Scale)),
    default="auto",
    show_default=True,
    help="Scale of the signals; auto refuses values that look like probabilities, signal takes any that are larger for "
    "members.",
)
show_records_option = click.option(
    "--show-records/--no-records",
    help="Show images, features, texts and groups of records; by default they are named by number and class only.",
)
seed_option = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of everything random."
)
memory_option = click.option(
    "--memory",
    metavar="SIZE",
    help="Limit on memory, such as 1GB or 512MB: large arrays are kept in files, and what needs more is refused.",
)
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
verbose_option = click.option("--verbose", is_flag=True, help="Print all attacks, columns and notes.")


unit_option = click.option(
    "--unit",
    type=click.Choice(get_args(Unit)),
    help="Judge single records, or people by all of their records (group); by default people, if there are groups.",
)


def people_options(command: Command) -> Command:
    """Add the options on people and subgroups: --unit, --by and --prior."""
    by = click.option(
        "--by",
        multiple=True,
        metavar="COLUMN",
        help="Compare how exposed the values of this column are; may be given several times.",
    )
    prior = click.option(
        "--prior",
        multiple=True,
        type=float,
        metavar="SHARE",
        callback=lambda _ctx, _option, given: given or None,
        help="Share of members among the candidates, to print the precision of an accusation; may be repeated.",
    )
    return unit_option(by(prior(command)))


def given_target_options(command: Command) -> Command:
    """Add the options on a model that exists already: --members, --target-kind and --id."""
    members = click.option(
        "--members",
        metavar="FILE|COLUMN",
        help="Records that the target trained on: a column of the data, or a file with one flag per record or with row "
        "numbers, counted from 0.",
    )
    kind = click.option(
        "--target-kind",
        type=click.Choice(get_args(PredictionKind)),
        default="auto",
        show_default=True,
        help="What the predictions are; one value per record is what a regressor predicted (values), the true label's "
        "probability or its confidence (logit).",
    )
    ids = click.option(
        "--id", "id_column", metavar="COLUMN", help="Match the target's rows by this column, not by their order."
    )
    return members(kind(ids(command)))


def table_options(command: Command) -> Command:
    """Add the options of commands that read CSV and Parquet files: --label, --group, --drop and --decimal-comma."""
    return _label(_group(_drop(_decimal_comma(command))))


def result_options(command: Command) -> Command:
    """Add the options of commands that write results: --seed, --json, --verbose and --quiet."""
    return seed_option(json_option("a table", "metrics.json")(verbose_option(quiet_option(command))))
