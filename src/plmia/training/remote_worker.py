r"""Train models of an audit on another machine, which needs only numpy and torch, and merge the signals afterwards.

There, with the package's sources:

    PYTHONPATH=src python3 -m plmia.training.remote_worker --data data.npz --recipe wide-resnet --references 16 \
        -o stacks

Here, with the same data, recipes, views, seed and number of references:

    plmia audit --data data.npz --recipe wide-resnet --references 16 --merge stacks -o run
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from plmia.data.dataset import LabelledData, read_data
from plmia.data.designs import audit_design
from plmia.errors import PlmiaError
from plmia.signals.store import read_stacks, stack_names, store_key, write_stack
from plmia.training.recipes.named import parse_recipe
from plmia.training.recipes.recipe import Recipe, check_recipes, unless_equal, views_for
from plmia.training.train import Job, Work, audit_about, for_store, seed_of
from plmia.training.views import View, check_views, parse_views


def train_stacks(
    data: LabelledData,
    recipe: Recipe,
    views: tuple[View, ...],
    references: int,
    seed: int,
    folder: str | Path,
    models: range | None = None,
    at_once: int | None = None,
    reference_recipe: Recipe | None = None,
) -> None:
    """Train models of an audit and write their signals as plain npy into a folder or to an address; again, it resumes.

    By default it trains all models, and as many ``at_once`` as the recipe takes. Several machines can share them. Model
    0 is the target; the others train by ``reference_recipe``, if it is given.
    """
    reference_recipe = unless_equal(reference_recipe, recipe)
    check_recipes(recipe, reference_recipe, data)
    check_views(views, data)
    design = audit_design(data.n_points, references, np.random.default_rng(seed), data.groups)
    design.require_classes(data.labels, data.class_names)
    about = audit_about(data, recipe, views, seed, reference_recipe=reference_recipe)
    key = store_key(about, design, [str(v) for v in views], data.labels)
    # Without a finished JSON file, a first stack was interrupted or is being written by another process.
    begun = bool(stack_names(folder))
    done = {model for stack in read_stacks(folder, key=key) for model in stack.models} if begun else set()
    wanted = [model for model in models or range(design.n_models) if model not in done]
    work = Work(data, recipe, views, reference_recipe=reference_recipe)
    for chosen in _stacks(work, wanted, at_once or work.recipe_of(1).stack):
        seeds = tuple(seed_of(seed, model, 0) for model in chosen)
        _train_stack(work, Job(tuple(chosen), seeds, np.packbits(design.matrix[chosen], axis=1)), folder, key)


def _stacks(work: Work, wanted: list[int], size: int) -> list[list[int]]:
    """Models to train together; a target with a recipe of its own trains alone."""
    first = [0] if 0 in wanted and work.reference_recipe is not None else []
    others = wanted[len(first) :]
    stacks = [others[start : start + size] for start in range(0, len(others), size)]
    return [first, *stacks] if first else stacks


def _train_stack(work: Work, job: Job, folder: str | Path, key: str) -> None:
    """Train one stack, write the models that did not diverge, and print one line per model."""
    trained, total = work(job)
    good, signals, provenance = for_store(work.recipe_of(job.models[0]), job, trained, total)
    if good:
        write_stack(folder, good, signals, provenance, key=key)
    for model, outcome in zip(job.models, trained, strict=True):
        accuracy = f"{outcome.train_accuracy:.4f} train, {outcome.test_accuracy:.4f} held out"
        known = accuracy if work.recipe.signal == "confidence" else "trained"
        seconds = f"{total / len(trained):.1f} s"
        print(f"model {model}: {'diverged' if outcome.diverged else known}, {seconds}", flush=True)  # noqa: T201


def main() -> None:
    """Run as a program."""
    program = "python3 -m plmia.training.remote_worker"
    parser = argparse.ArgumentParser(prog=program, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="npz with X and y, CSV, Parquet, or an archive")
    parser.add_argument("--label", help="as in plmia audit")
    parser.add_argument("--group", help="as in plmia audit")
    parser.add_argument("--drop", action="append", default=[], help="as in plmia audit")
    parser.add_argument("--decimal-comma", action="store_true", help="as in plmia audit")
    parser.add_argument("--recipe", required=True, help="as in plmia audit")
    parser.add_argument("--references-recipe", help="as in plmia audit")
    parser.add_argument("--references", type=int, default=32, help="reference models; an even number")
    parser.add_argument("--views", help="as in plmia audit")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random")
    parser.add_argument("--first", type=int, default=0, help="first model to train")
    parser.add_argument("--last", type=int, help="last model to train")
    parser.add_argument(
        "-o", "--output", required=True, help="folder for the stacks, or an address such as s3://bucket/stacks"
    )
    given = parser.parse_args()
    try:
        recipe = parse_recipe(given.recipe)
        other = None if given.references_recipe is None else parse_recipe(given.references_recipe)
        data = read_data(
            given.data,
            label=given.label,
            group=given.group,
            drop=given.drop,
            decimal_comma=given.decimal_comma,
            values=recipe.signal == "signal",
        )
        views = parse_views(given.views) if given.views else views_for(recipe, data, other)
        models = range(given.first, (given.references if given.last is None else given.last) + 1)
        numbers = given.references, given.seed
        train_stacks(data, recipe, views, *numbers, given.output, models, reference_recipe=other)
    except PlmiaError as error:
        sys.stderr.write(f"plmia: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
