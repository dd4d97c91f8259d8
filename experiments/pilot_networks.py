"""Choose the training length of the CIFAR-100 Wide-ResNets by held-out accuracy of model 0 at 50, 100 and 200 epochs.

    python -m experiments.pilot_networks DATA FOLDER

DATA is a folder with the files of the data sets. FOLDER contains one folder of stacks per recipe. Missing models are
trained, which needs a GPU. The accuracies are printed and kept in `signals/cifar100_wrn/pilot.json`.

Rule: 100 epochs if they gain more than one point over 50, else 50. The other two recipes are for comparison.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np

from plmia.data.dataset import LabelledData
from plmia.data.designs import audit_design
from plmia.signals.store import read_stacks, store_key
from plmia.training.recipes.named import parse_recipe
from plmia.training.remote_worker import train_stacks
from plmia.training.train import audit_about
from plmia.training.views import VIEW_SETS, View

from .kept import SEED
from .script import end
from .setting import SIGNALS
from .whole import WHOLE

NAME = "cifar100_wrn"
SHORT, LONG = (f"wide-resnet?epochs={epochs}&augment=true" for epochs in (50, 100))
COMPARED = ("wide-resnet?epochs=200&augment=true", "wide-resnet")
VIEWS = VIEW_SETS["rmia18"]
# Gain that the longer training must reach, in percent.
GAIN = 1.0


def accuracies(
    data: LabelledData, text: str, references: int, folder: Path, views: tuple[View, ...] = VIEWS
) -> dict[str, float]:
    """Train model 0 unless its stack is in the folder; return its accuracies in percent, and the seconds."""
    recipe = parse_recipe(text)
    train_stacks(data, recipe, views, references, SEED, folder, range(1))
    design = audit_design(data.n_points, references, np.random.default_rng(SEED), data.groups)
    key = store_key(audit_about(data, recipe, views, SEED), design, [str(view) for view in views], data.y)
    stack = next(stack for stack in read_stacks(folder, key=key) if 0 in stack.models)
    made = stack.provenance[stack.models.index(0)]
    found = {"members": 100 * made["train_accuracy"], "held_out": 100 * made["test_accuracy"]}
    return {name: round(value, 3) for name, value in (found | {"seconds": made["seconds"]}).items()}


def folder_name(text: str) -> str:
    """Name of the folder of a recipe's stacks."""
    return re.sub(r"[^a-z0-9]+", "-", text)


def main(data_folder: Path, stacks: Path, kept: Path = SIGNALS) -> None:
    """Print the accuracies and the chosen recipe."""
    whole = WHOLE[NAME]
    data, found = whole.read(data_folder), {}
    for text in (SHORT, LONG, *COMPARED):
        found[text] = accuracies(data, text, whole.references, stacks / folder_name(text))
        sys.stdout.write(
            f"{text}: {found[text]['members']:.2f} % of members right, {found[text]['held_out']:.2f} % of others\n"
        )
    taken = LONG if found[LONG]["held_out"] - found[SHORT]["held_out"] > GAIN else SHORT
    sys.stdout.write(f"{NAME} is trained by {taken}\n")
    text = json.dumps({"model": 0, "seed": SEED, "taken": taken, "percent": found}, indent=1)
    (kept / NAME / "pilot.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("name the folders of the data and of the stacks: python -m experiments.pilot_networks DATA FOLDER")
    end(main, Path(sys.argv[1]), Path(sys.argv[2]))
