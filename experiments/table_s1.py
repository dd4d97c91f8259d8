"""How models were trained, and how accurate they are (`tab:training_protocol`)."""

from __future__ import annotations

from typing import Any

from .charts import dots
from .measure import AUC, CONFORMAL, attacks_called, measure
from .outcome import FAILS, HOLDS, UNDECIDED, Cell, Claim, Outcome, Rows, Value
from .setting import NOT_RUN, Setting

WORDS = {"batch": "batch", "learning rate": "lr", "momentum": "momentum", "weight decay": "weight_decay"}


def run(setting: Setting) -> Outcome:
    """Read the recipe and the accuracies from the signals' own record; measure what the models leak."""
    source = setting.source("cifar10_wrn")
    about = source.about
    recipe: dict[str, Any] = about.get("recipe") or {}
    cells: dict[str, Cell] = {"epochs": str(about.get("epochs") or "not stated")}
    cells |= {name: str(recipe.get(key, "not stated")) for name, key in WORDS.items()}
    cells |= {
        name: _percent(about.get(key))
        for name, key in (("train accuracy", "train_accuracy"), ("test accuracy", "test_accuracy"))
    }
    cells["augmented"] = "yes" if recipe.get("augment") else "no" if recipe else "not stated"
    found = measure(source, attacks_called("pl-mia", "pl-mia-eb"))
    for name, measured in found.items():
        cells[f"AUC, {name}"] = measured.cells()[AUC]
    cells[CONFORMAL] = found["pl-mia"].cells()[CONFORMAL]
    metrics = ("augmented", *(f"AUC, {name}" for name in found), CONFORMAL)
    ours: Rows = {(source.data,): cells}
    drawn = dots("table-s1", ours, ("train accuracy", "test accuracy"))
    return Outcome("table-s1", (source,), ours, metrics, (drawn,), (_claim(about, recipe),))


def _percent(share: float | None) -> Cell:
    return Value(round(100 * share, 2)) if share is not None else NOT_RUN


def _claim(about: dict[str, Any], recipe: dict[str, Any]) -> Claim:
    if about.get("test_accuracy") is None or not recipe:
        return Claim("protocol", UNDECIDED, "The signals do not say how their models were trained.")
    same = about.get("epochs") == 100 and not recipe.get("augment")
    verdict = (HOLDS if about["test_accuracy"] > 0.91 else FAILS) if same else UNDECIDED
    return Claim(
        "protocol",
        verdict,
        f"{'Run as in the paper' if same else 'That protocol was not run here'}: {about['epochs']} epochs "
        f"{'with' if recipe.get('augment') else 'without'} augmentation give {100 * about['train_accuracy']:.1f} % on "
        f"members and {100 * about['test_accuracy']:.1f} % on the other half.",
    )
