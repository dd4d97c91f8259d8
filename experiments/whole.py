"""The whole signals behind the committed results: definitions, and training of those that are missing in a folder.

    python -m experiments.whole DATA FOLDER [NAME...]

DATA is a folder with the files of the data sets. Signals of missing data sets are skipped, and the exit status is
then 1. Interrupted training continues. Where models are kept in the repository (`kept.py`), training starts from them
and adds the others. A file FOLDER/NAME.npz counts as complete. The Wide-ResNets come last and need a GPU.
``plmia reproduce --signals FOLDER`` reads the result.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from plmia.data.dataset import LabelledData
from plmia.errors import DataError
from plmia.signals.store import SignalStore

from .images import jpeg_copies, read_whole
from .script import end, say
from .setting import SIGNALS, train_store

TREES = "gbdt?depth={}"


@dataclass(frozen=True)
class Whole:
    """Signals of a target and its references, each of which acts as the target in turn.

    Parameters
    ----------
    data : str
        Name of the data set.
    files : tuple of str, or of tuples of str
        Alternatives; the first one whose files are all in the folder is read. Files of a tuple are joined in order.
    recipe : str
        Recipe of the models.
    references : int
        Number of references, without the first model.
    first_target : int
        Earlier models influenced the design of our own attack, so they are references only.
    leave_out : tuple of int
        Models that are ignored.
    jpeg : int, optional
        Quality of JPEG at which the images are stored and read again before training.
    """

    data: str
    files: tuple[str | tuple[str, ...], ...]
    recipe: str
    references: int
    first_target: int = 43
    leave_out: tuple[int, ...] = ()
    jpeg: int | None = None

    def about(self) -> dict[str, Any]:
        """Contents of NAME.json."""
        return {"data": self.data, "first_target": self.first_target, "leave_out": list(self.leave_out)}

    @property
    def alternatives(self) -> list[tuple[str, ...]]:
        """Names of the files of each alternative."""
        return [(names,) if isinstance(names, str) else names for names in self.files]

    @property
    def wanted(self) -> str:
        """The alternatives, for messages."""
        return " or ".join(" with ".join(names) for names in self.alternatives)

    def files_in(self, folder: Path) -> list[Path]:
        """Return the files of the data in a folder; none if they are missing."""
        found = [[folder / name for name in names] for names in self.alternatives]
        return next((paths for paths in found if all(path.exists() for path in paths)), [])

    def read(self, folder: Path) -> LabelledData:
        """Read the data; files that are missing are an error."""
        files = self.files_in(folder)
        if not files:
            raise DataError(f"there is no {self.wanted} in {folder}: name the folder of the data sets")
        data = read_whole(*files)
        return data if self.jpeg is None else jpeg_copies(data, self.jpeg)


# The committed signals come from images stored as JPEG; the authors' archive gives nearly the same images.
CIFAR = ("cifar10_jpg_train.npz", "cifar-10-binary.tar.gz")
# Lossless in both formats: the same images.
CIFAR100 = (("cifar100_webp_train_0.npz", "cifar100_webp_train_1.npz"), "cifar-100-binary.tar.gz")
LONG = "mlp?epochs={}&schedule=cosine"
WHOLE = (
    {
        "location_mlp": Whole("Location-30", ("location30.npz",), "mlp?standardise=false", 256),
        "adult_mlp": Whole("Adult", ("adult.npz",), LONG.format(400), 256),
        "covertype_mlp": Whole("Covertype", ("covertype20k.npz",), LONG.format(400), 256),
        "fashion_mlp": Whole("Fashion-MNIST", ("fashion_mnist.npz",), LONG.format(100), 256),
    }
    | {
        f"{name}_gbdt_{depth}": Whole(data, (file,), TREES.format(depth), 128)
        for name, data, file in (
            ("location", "Location-30", "location30.npz"),
            ("adult", "Adult", "adult.npz"),
            ("covertype", "Covertype", "covertype20k.npz"),
        )
        for depth in (3, 5, 7)
    }
    | {
        "cifar10_wrn": Whole("CIFAR-10", CIFAR, "wide-resnet?epochs=50&augment=true", 130, 71),
        "cifar10_wrn_plain": Whole("CIFAR-10, no augmentation", CIFAR, "wide-resnet", 46, 34, (0,)),
        # Models before 39 chose how the variances of coordinates are modelled, model 0 all other parts of pl-mia-eb.
        "cifar100_wrn": Whole("CIFAR-100", CIFAR100, "wide-resnet?epochs=100&augment=true", 130, 39),
        "cifar100_wrn_plain": Whole("CIFAR-100, no augmentation", CIFAR100, "wide-resnet", 66, 1),
        "cifar100_wrn_long": Whole("CIFAR-100, 200 epochs", CIFAR100, "wide-resnet?epochs=200&augment=true", 130, 1),
        "cifar100_wrn_jpeg": Whole(
            "CIFAR-100, JPEG 75", CIFAR100, "wide-resnet?epochs=100&augment=true", 130, 1, jpeg=75
        ),
    }
)


def main(data: Path, folder: Path, names: list[str]) -> int:
    """Train the models that the folder lacks and write their description; return 1 if data were missing, else 0."""
    unknown = [name for name in names if name not in WHOLE]
    if unknown:
        sys.exit(f"there are no signals called {', '.join(unknown)}: there are {', '.join(WHOLE)}")
    skipped = 0
    for name in names or WHOLE:
        whole = WHOLE[name]
        about = folder / f"{name}.json"
        if not (folder / f"{name}.npz").exists():
            if not whole.files_in(data):
                say(f"{name} is skipped: there is no {whole.wanted} in {data}")
                skipped = 1
                continue
            say(f"{name}: {whole.recipe} on {' and '.join(file.name for file in whole.files_in(data))}")
            fill = partial(_fill, name)
            train_store(name, whole.read(data), whole.recipe, whole.references, folder / name, 0, True, fill)
        if not about.exists():
            about.write_text(f"{json.dumps(whole.about(), indent=1)}\n", encoding="utf-8")
    return skipped


def _fill(name: str, store: SignalStore) -> None:
    """Add the models of these signals that are kept in the repository."""
    from .kept import fill  # imports this module

    if (SIGNALS / name / "about.json").exists():
        added = fill(store, SIGNALS / name)
        say(f"{name}: {len(added)} kept models, {len(store.missing())} to train")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("name the folder of the data and the folder for the signals: python -m experiments.whole DATA FOLDER")
    end(main, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
