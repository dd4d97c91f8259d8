"""The whole signals behind the committed results: what they are, and the training of those that a folder lacks.

    python -m experiments.whole DATA FOLDER [NAME...]

DATA is a folder with the files of the data sets; signals of those that it lacks are skipped, and the exit status is
then 1. Training goes on where it was interrupted; the Wide-ResNets come last and want a GPU. FOLDER is then read by
``plmia reproduce --signals FOLDER``.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from plmia.cli.terminal import stderr
from plmia.data.arrays import Array
from plmia.data.dataset import LabelledData, read_data
from plmia.data.npz import load_npz
from plmia.errors import DataError

from .script import end, say
from .setting import train_store

TREES = "gbdt?depth={}"


@dataclass(frozen=True)
class Whole:
    """Signals of a target and its references, each of which becomes the target in turn.

    Parameters
    ----------
    data : str
        Name of the data set.
    files : tuple of str, or of tuples of str
        Alternatives; the first one of which the folder has all files is read. Files of a tuple are joined in order.
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
    files: tuple[str | tuple[str, ...], ...]
    recipe: str
    references: int
    first_target: int = 43
    leave_out: tuple[int, ...] = ()

    def about(self) -> dict[str, Any]:
        """What stands in NAME.json."""
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
        """Return the files in which a folder has the data; none if it lacks them."""
        found = [[folder / name for name in names] for names in self.alternatives]
        return next((paths for paths in found if all(path.exists() for path in paths)), [])


# The committed signals are of images kept as JPEG; the archive of the authors gives nearly the same images.
CIFAR = ("cifar10_jpg_train.npz", "cifar-10-binary.tar.gz")
# Without loss in either form: the same images.
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
        # Only model 0 was looked at.
        "cifar100_wrn": Whole("CIFAR-100", CIFAR100, "wide-resnet?epochs=100&augment=true", 130, 1),
        "cifar100_wrn_plain": Whole("CIFAR-100, no augmentation", CIFAR100, "wide-resnet", 46, 1),
    }
)


def read_whole(*paths: Path) -> LabelledData:
    """Read a data set of one or more files; an npz may keep images encoded.

    Encoded images are JPEG or WebP files joined in `buf`, with their offsets `off`, and `y`.
    """
    parts = [_read_part(path) for path in paths]
    if len(parts) == 1:
        return parts[0]
    X, y = (np.concatenate([getattr(part, field) for part in parts]) for field in ("X", "y"))
    return LabelledData(X, y, None, parts[0].name)


def _read_part(path: Path) -> LabelledData:
    names = {"buf", "off", "y"}
    arrays = load_npz(path, names, "`X` and `y`", DataError) if path.suffix == ".npz" else {}
    if not names <= arrays.keys():
        return read_data(path)
    name = re.split("_(?:jpg|webp)", path.stem)[0]
    return LabelledData(_decoded(path, arrays["buf"], arrays["off"]), arrays["y"], None, name)


def _decoded(path: Path, joined: Array, offsets: Array) -> Array:
    """Pixels [images, height, width, 3] of JPEG or WebP files."""
    try:
        pillow = import_module("PIL.Image")
    except ImportError as error:
        raise DataError(
            f"{path} holds JPEG or WebP images, which Pillow reads: pip install 'plmia[images]' ({error})"
        ) from error
    images: list[Array] = []
    try:
        for start, stop in pairwise(offsets.tolist()):
            with pillow.open(BytesIO(joined[start:stop].tobytes()), formats=["JPEG", "WEBP"]) as image:
                images.append(np.asarray(image.convert("RGB")))
        return np.stack(images)
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise DataError(f"{path} is damaged: image {len(images)} cannot be read ({error}); get it again") from error


def main(data: Path, folder: Path, names: list[str]) -> int:
    """Train what the folder lacks, and write down beside it what it is; return 1 if data were missing, else 0."""
    unknown = [name for name in names if name not in WHOLE]
    if unknown:
        sys.exit(f"there are no signals called {', '.join(unknown)}: there are {', '.join(WHOLE)}")
    skipped = 0
    for name in names or WHOLE:
        whole = WHOLE[name]
        about, files = folder / f"{name}.json", whole.files_in(data)
        if not (folder / f"{name}.npz").exists():
            if not files:
                say(f"{name} is skipped: there is no {whole.wanted} in {data}")
                skipped = 1
                continue
            say(f"{name}: {whole.recipe} on {' and '.join(file.name for file in files)}")
            train_store(name, read_whole(*files), whole.recipe, whole.references, folder / name, 0, stderr())
        if not about.exists():
            about.write_text(f"{json.dumps(whole.about(), indent=1)}\n", encoding="utf-8")
    return skipped


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("name the folder of the data and the folder for the signals: python -m experiments.whole DATA FOLDER")
    end(main, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
