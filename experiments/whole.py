"""The whole signals behind the committed results: what they are, and the training of those that a folder lacks.

    python -m experiments.whole DATA FOLDER [NAME...]

DATA is a folder with the files of the data sets. Training goes on where it was interrupted; the Wide-ResNets want a
GPU. FOLDER is then read by ``plmia reproduce --signals FOLDER``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plmia.data import read_data
from plmia.terminal import stderr

from .setting import train_store

TREES = "gbdt?depth={}"


@dataclass(frozen=True)
class Whole:
    """Signals of a target and its references, each of which becomes the target in turn.

    Parameters
    ----------
    data, file : str
        Name of the data set, and its file.
    recipe : str
        How models are trained.
    references : int
        How many there are beside the first model.
    first_target : int
        Models before it had been looked at while our own attack was designed, so that they are references only.
    leave_out : tuple of int
        Models that do not count.
    """

    data: str
    file: str
    recipe: str
    references: int
    first_target: int = 19
    leave_out: tuple[int, ...] = ()

    def about(self) -> dict[str, Any]:
        """What stands in NAME.json."""
        return {"data": self.data, "first_target": self.first_target, "leave_out": list(self.leave_out)}


CIFAR, LONG = "cifar-10-binary.tar.gz", "mlp?epochs={}&schedule=cosine"
WHOLE = {
    "cifar10_wrn": Whole("CIFAR-10", CIFAR, "wide-resnet?epochs=50&augment=true", 130, 71),
    "cifar10_wrn_plain": Whole("CIFAR-10, no augmentation", CIFAR, "wide-resnet", 46, 34, (0,)),
    "location_mlp": Whole("Location-30", "location30.npz", "mlp?standardise=false", 256),
    "adult_mlp": Whole("Adult", "adult.npz", LONG.format(400), 256),
    "covertype_mlp": Whole("Covertype", "covertype20k.npz", LONG.format(400), 256),
    "fashion_mlp": Whole("Fashion-MNIST", "fashion_mnist.npz", LONG.format(100), 256),
} | {
    f"{name}_gbdt_{depth}": Whole(data, file, TREES.format(depth), 128)
    for name, data, file in (
        ("location", "Location-30", "location30.npz"),
        ("adult", "Adult", "adult.npz"),
        ("covertype", "Covertype", "covertype20k.npz"),
    )
    for depth in (3, 5, 7)
}


def main(data: Path, folder: Path, names: list[str]) -> None:
    """Train what the folder lacks, and write down beside it what it is."""
    unknown = [name for name in names if name not in WHOLE]
    if unknown:
        sys.exit(f"there are no signals called {', '.join(unknown)}: there are {', '.join(WHOLE)}")
    for name in names or WHOLE:
        whole = WHOLE[name]
        about = folder / f"{name}.json"
        if not (folder / f"{name}.npz").exists():
            stderr().print(f"{name}: {whole.recipe} on {whole.file}", markup=False)
            train_store(name, read_data(data / whole.file), whole.recipe, whole.references, folder / name, 0, stderr())
        if not about.exists():
            about.write_text(f"{json.dumps(whole.about(), indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("name the folder of the data and the folder for the signals: python -m experiments.whole DATA FOLDER")
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
