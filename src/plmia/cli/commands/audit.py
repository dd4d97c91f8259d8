"""`plmia audit` and `plmia demo`: from data and a recipe to results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from plmia.auditing import run as verb
from plmia.cli.commands.options import (
    PATH,
    align_option,
    attack_option,
    design_option,
    given_target_options,
    mode_option,
    output_option,
    parse_design,
    people_options,
    population_option,
    result_options,
    show_records_option,
    table_options,
)
from plmia.cli.terminal import plain_warnings, print_result, prints_to_stderr
from plmia.data.designs import MembershipDesign
from plmia.training.engines import Ray
from plmia.training.recipes.named import RECIPES, parse_recipe
from plmia.training.train import default_engine

folder_option = output_option("Folder of the audit.")


@click.command()
@click.option(
    "--data",
    required=True,
    type=PATH,
    help="CSV or Parquet file, npz with X and y, or a published archive (CIFAR-10, CIFAR-100, CINIC-10, Purchase-100).",
)
@table_options
@click.option("--recipe", required=True, metavar="NAME", help="How to train; options as NAME?key=value&key=value.")
@click.option(
    "--references", type=click.IntRange(min=2), default=32, show_default=True, help="Reference models; an even number."
)
@click.option(
    "--references-recipe",
    "reference_recipe",
    metavar="NAME",
    help="How to train the references, if not as the target: another recipe, such as a smaller network.",
)
@folder_option
@click.option("--views", metavar="VIEWS", help="Views of each record: one, mirror2, cifar4, rmia18, or a list.")
@design_option
@click.option(
    "--target",
    metavar="FILE",
    help="A model that exists already: its predictions (csv, parquet, npz, npy) or the model itself (onnx, skops).",
)
@given_target_options
@people_options
@click.option(
    "--trainings",
    type=click.IntRange(min=0),
    metavar="N",
    help="Models that are attacked in turn, to count how often each record or person is identified; 0 for none, 32 at "
    "most by default.",
)
@attack_option
@mode_option
@align_option
@population_option
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Processes of this machine, or a Ray cluster.",
)
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Local processes; one per core by default.")
@click.option("--ray-address", metavar="ADDRESS", help="Address of a running Ray cluster; by default this machine's.")
@click.option(
    "--gpus", type=click.FloatRange(min=0), default=0.0, show_default=True, help="GPUs per Ray job; 0.25 packs four."
)
@click.option(
    "--merge",
    type=click.Path(),
    metavar="FOLDER",
    help="Take in models that python -m plmia.training.remote_worker trained on another machine; a folder, or an "
    "address such as s3://bucket/stacks.",
)
@click.option("--keep-models", is_flag=True, help="Save the models' weights as safetensors.")
@show_records_option
@click.option("--title", metavar="TEXT", help="Title of the report.")
@result_options
def audit(
    data: Path,
    recipe: str,
    references: int,
    reference_recipe: str | None,
    design: str | None,
    engine_name: str,
    workers: int | None,
    ray_address: str | None,
    gpus: float,
    as_json: bool,
    verbose: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Train a target and its references, collect signals, run every attack.

    Interrupted at any moment, the same command continues where it stopped. Writes report.html, metrics.json,
    scores.npz, records.csv (and people.csv, where records form groups), figures/ and signals/.

    \b
    Recipes: RECIPES
    Examples:
      plmia audit --data patients.csv --label readmitted --group patient_nbr --recipe gbdt -o run
      plmia audit --data patients.csv --label readmitted --group patient_nbr --by sex --recipe gbdt -o run
      plmia audit --data adult.npz --recipe mlp --references 64 -o run
      plmia audit --data adult.npz --recipe mlp --references-recipe 'mlp?widths=256,128' -o run
      plmia audit --data data.npz --recipe 'sklearn:RandomForestClassifier?n_estimators=200' -o run
      plmia audit --data data.npz --recipe 'gbdt?depth=5' -o run --engine ray
      plmia audit --data data.csv --label y --recipe mlp --target predictions.csv --members split -o run
      plmia audit --data cifar-10-binary.tar.gz --recipe wide-resnet --views rmia18 -o run
    """  # noqa: D301 - click wants the control character itself
    with plain_warnings(quiet), prints_to_stderr():
        way, layout = parse_recipe(recipe), None if design is None else parse_design(design)
        others = None if reference_recipe is None else parse_recipe(reference_recipe)
        local = engine_name == "local"
        engine = default_engine(way, workers, reference_recipe=others) if local else Ray(ray_address, gpus)
        number = None if isinstance(layout, MembershipDesign) else references
        options |= {"references": number, "reference_recipe": others, "design": layout, "engine": engine}
        result = verb.audit(way, data, progress=not quiet, **options)
    print_result(result, options["attacks"], as_json, verbose, quiet)


audit.help = str(audit.help).replace("Recipes: RECIPES", f"Recipes: {', '.join(RECIPES)}")


@click.command()
@folder_option
@click.option("--references", type=click.IntRange(min=2), default=32, show_default=True, help="Reference models.")
@result_options
def demo(folder: Path, references: int, seed: int, as_json: bool, verbose: bool, quiet: bool) -> None:
    """Run a whole audit on data that ships with scikit-learn: no download, no GPU, under 90 seconds.

    \b
    Example:
      plmia demo -o demo-out
    """  # noqa: D301 - click wants the control character itself
    with plain_warnings(quiet):
        result = verb.demo(folder, references=references, seed=seed, progress=not quiet)
    print_result(result, None, as_json, verbose, quiet)
