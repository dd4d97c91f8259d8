"""Choose how long perceptrons train: the first recipe that classifies 99.5 % of a few models' members correctly.

    python -m experiments.pilot DATA NAME

DATA is a folder with the files of the data sets, NAME one of the perceptrons of the whole signals. Models are kept in
the folder `runs`, so an interrupted pilot continues. Each is trained on half of the data, like the models of the
whole signals.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from plmia.errors import RecipeError

from .script import end
from .setting import RUNS, about_store, train_store
from .whole import LONG, WHOLE

TRIED = ("mlp", *(LONG.format(epochs) for epochs in (100, 200, 400)))
AS_IT_IS = "standardise=false"
ENOUGH = 0.995
# In addition to one target.
REFERENCES = 16


def recipes(name: str) -> list[str]:
    """Recipes to try, in order; features are not standardised if those of the whole signals are not."""
    more = AS_IT_IS if AS_IT_IS in WHOLE[name].recipe else ""
    return [f"{text}{'&' if '?' in text else '?'}{more}" if more else text for text in TRIED]


def main(folder: Path, name: str, runs: Path = RUNS) -> int:
    """Print each recipe's accuracies and the chosen recipe; return 1 if none is chosen."""
    names = [known for known, whole in WHOLE.items() if whole.recipe.startswith("mlp")]
    if name not in names:
        raise RecipeError(f"there are no perceptrons called {name}: there are {', '.join(names)}")
    data = WHOLE[name].read(folder)
    for text in recipes(name):
        run = runs / re.sub(r"[^a-z0-9]+", "-", f"pilot-{name}-{text}")
        about = about_store(train_store(name, data, text, REFERENCES, run, 0, True))
        train, test = (100 * about[key] for key in ("train_accuracy", "test_accuracy"))
        sys.stdout.write(f"{text}: {train:.2f} % of members right, {test:.2f} % of others\n")
        if about["train_accuracy"] >= ENOUGH:
            sys.stdout.write(f"{name} is trained by {text}\n")
            return 0
    sys.stdout.write(f"none of these gets {100 * ENOUGH} % of members right\n")
    return 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("name the folder of the data and the perceptrons: python -m experiments.pilot DATA NAME")
    end(main, Path(sys.argv[1]), sys.argv[2])
