"""`plmia audit` and `plmia demo`: from data and a recipe to results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast, get_args

import click
from rich.console import Console

from plmia.attacks.attack import ATTACKS
from plmia.attacks.view import Mode
from plmia.auditing.run import AuditPlan, open_store, score_run, train_run
from plmia.cli.commands.options import (
    attack_option,
    chosen_attacks,
    common_options,
    mode_option,
    population_option,
    require_folder,
    show_records_option,
)
from plmia.cli.progress import Meter
from plmia.cli.terminal import show_metrics, stderr
from plmia.data.dataset import LabelledData, read_data
from plmia.data.designs import DesignKind, MembershipDesign
from plmia.data.npz import DATA_ARRAYS, load_npy, unused_arrays
from plmia.errors import DataError, Note, TrainingError, some
from plmia.evaluation.targets import Setup
from plmia.reporting import Extras, read_extras
from plmia.training.engines import Engine, Ray
from plmia.training.recipes.named import parse_recipe
from plmia.training.recipes.recipe import Trained, views_for
from plmia.training.train import default_engine, weights_file
from plmia.training.views import parse_views


@click.command()
@click.option(
    "--data",
    "data_path",
    required=True,
    type=click.Path(path_type=Path),
    help="npz with X and y, or a published archive (CIFAR-10, CIFAR-100, CINIC-10, Purchase-100).",
)
@click.option("--recipe", required=True, metavar="NAME", help="How to train; options as NAME?key=value&key=value.")
@click.option(
    "--references", type=click.IntRange(min=2), default=32, show_default=True, help="Reference models; an even number."
)
@click.option("-o", "--output", "folder", required=True, type=click.Path(path_type=Path), help="Folder of the audit.")
@click.option("--views", metavar="VIEWS", help="Views of each point: one, mirror2, cifar4, rmia18, or a list.")
@click.option(
    "--design",
    default="pairs",
    show_default=True,
    metavar="KIND|FILE.npy",
    help="References in complementary pairs, on independent halves, exact (each point in half of them), or a bool "
    "matrix [models, points] of your own, model 0 the target.",
)
@attack_option
@mode_option
@population_option
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Processes of this machine, or a Ray cluster.",
)
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Local processes; one a core by default.")
@click.option("--ray-address", metavar="ADDRESS", help="Address of a running Ray cluster; by default this machine's.")
@click.option(
    "--gpus", type=click.FloatRange(min=0), default=0.0, show_default=True, help="GPUs a Ray job; 0.25 packs four."
)
@click.option(
    "--merge",
    "stacks",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Take in models that python -m plmia.training.remote_worker trained on another machine.",
)
@click.option("--keep-models", is_flag=True, help="Save the models' weights as safetensors.")
@show_records_option
@common_options
def audit(
    data_path: Path,
    recipe: str,
    references: int,
    folder: Path,
    views: str | None,
    design: str,
    names: tuple[str, ...],
    mode: str,
    population: int | None,
    engine_name: str,
    workers: int | None,
    ray_address: str | None,
    gpus: float,
    stacks: Path | None,
    keep_models: bool,
    show_records: bool,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Train a target and its references, collect signals, run every attack.

    Interrupted at any moment, the same command goes on where it was. Writes report.html, metrics.json, scores.npz,
    records.csv, figures/ and signals/.

    \b
    Recipes: mlp, wide-resnet, gbdt, sklearn:CLASSIFIER, function:FILE.py
    Examples:
      plmia audit --data adult.npz --recipe mlp --references 64 -o run
      plmia audit --data data.npz --recipe 'sklearn:RandomForestClassifier?n_estimators=200' -o run
      plmia audit --data data.npz --recipe 'gbdt?depth=5' -o run --engine ray
      plmia audit --data cifar-10-binary.tar.gz --recipe wide-resnet --views rmia18 -o run
    """  # noqa: D301 - click wants the control character itself
    require_folder(folder)
    way = parse_recipe(recipe)
    data = read_data(data_path)
    notes = unused_arrays(data_path, DATA_ARRAYS, DataError)
    extras = read_extras(data_path, data)
    notes += extras.notes
    shown = parse_views(views) if views else views_for(way, data)
    layout = _layout(design)
    if isinstance(layout, MembershipDesign):
        references = layout.n_models - 1
    setup = Setup(cast("Mode", mode), references, population, seed)
    plan = AuditPlan(data, way, references, shown, setup, tuple(chosen_attacks(names)), None, layout, not names)
    engine = Ray(ray_address, gpus) if engine_name == "ray" else default_engine(way, workers)
    if stacks is not None:
        merged = open_store(plan, folder).import_npy(stacks)
        _say(None if quiet else stderr(), [f"took in {len(merged)} models from {stacks}"])
    perform(plan, folder, engine, keep_models, as_json, quiet, show_records, extras, notes)


@click.command()
@click.option("-o", "--output", "folder", required=True, type=click.Path(path_type=Path), help="Folder of the audit.")
@click.option("--references", type=click.IntRange(min=2), default=32, show_default=True, help="Reference models.")
@common_options
def demo(folder: Path, references: int, seed: int, as_json: bool, quiet: bool) -> None:
    """Run a whole audit on data that ships with scikit-learn: no download, no GPU, under 90 seconds.

    \b
    Example:
      plmia demo -o demo-out
    """  # noqa: D301 - click wants the control character itself
    from sklearn.datasets import load_digits

    require_folder(folder)
    X, y = load_digits(return_X_y=True)
    way = parse_recipe("sklearn:RandomForestClassifier?n_estimators=100")
    data = LabelledData(X.astype("float32"), y, name="digits")
    setup = Setup("online", references, None, seed)
    plan = AuditPlan(data, way, references, views_for(way, data), setup, tuple(ATTACKS.values()))
    perform(plan, folder, default_engine(way), False, as_json, quiet, show_records=True)  # the data are public


def _layout(text: str) -> DesignKind | MembershipDesign:
    """Read --design: a kind, or a file."""
    if text in get_args(DesignKind):
        return cast("DesignKind", text)
    if not text.endswith(".npy"):
        raise DataError(
            f"there is no design {text!r}: give {', '.join(get_args(DesignKind))}, or the path of an npy file"
        )
    return MembershipDesign(load_npy(Path(text)))


def perform(
    plan: AuditPlan,
    folder: Path,
    engine: Engine,
    keep_models: bool,
    as_json: bool,
    quiet: bool,
    show_records: bool = False,
    extras: Extras | None = None,
    notes: Sequence[Note] = (),
) -> None:
    """Run the audit, show progress, print the result."""
    console = None if quiet else stderr()
    _say(console, [note.text for note in (*notes, *plan.warnings())])
    _say(console, open_store(plan, folder).problems())
    with Meter("training", plan.references + 1, console) as meter:
        accuracies = _Accuracies(meter)
        try:
            store = train_run(plan, folder, engine, accuracies.report, accuracies.skip, keep_models)
        except KeyboardInterrupt:
            raise TrainingError(
                f"stopped after {accuracies.models} more trained models, which are kept: the same command goes on"
            ) from None
    if keep_models:
        gone = [model for model in store.finished() if not weights_file(folder / "models", model).exists()]
        _say(console, [f"weights of model {some(gone)} were not kept when it was trained"] if gone else [])
    with Meter("scoring", len(plan.attacks) * plan.data.n_points, console) as meter:
        result = score_run(plan, store, folder, meter.tick, show_records, extras, notes)
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=1))
    elif not quiet:
        show_metrics(result.to_json(), folder)


def _say(console: Console | None, sentences: Iterable[str]) -> None:
    if console is not None:
        for sentence in sentences:
            console.print(f"plmia: {sentence}", markup=False, soft_wrap=True)


class _Accuracies:
    """Shows the models' mean accuracy so far beside the progress of training."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._sums = [0.0, 0.0]
        self.models = 0

    def skip(self, models: int) -> None:
        """Count models that were finished before."""
        self._meter.skip(models)

    def report(self, model: int, trained: Trained) -> None:
        """Count one more model."""
        del model
        self.models += 1
        self._sums[0] += trained.train_accuracy
        self._sums[1] += trained.test_accuracy
        train, test = (100 * total / self.models for total in self._sums)
        self._meter.tick(detail=f"accuracy {train:.1f} % train, {test:.1f} % held out")
