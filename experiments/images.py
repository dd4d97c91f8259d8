"""Reading data sets of one or more files, some with encoded images; needs no package beyond NumPy and Pillow."""

from __future__ import annotations

import re
from importlib import import_module
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np

from plmia.data.arrays import Array
from plmia.data.dataset import LabelledData, read_data
from plmia.data.npz import load_npz
from plmia.errors import DataError


def read_whole(*paths: Path) -> LabelledData:
    """Read a data set of one or more files; an npz may contain encoded images.

    Encoded images are JPEG or WebP files concatenated in `buf`, with their offsets `off`, and `y`.
    """
    parts = [_read_part(path) for path in paths]
    if len(parts) == 1:
        return parts[0]
    X, y = (np.concatenate([getattr(part, field) for part in parts]) for field in ("X", "y"))
    return LabelledData(X, y, None, parts[0].name)


def jpeg_copies(data: LabelledData, quality: int) -> LabelledData:
    """Return data whose images were stored as JPEG with halved chroma, and read again."""
    pillow = import_module("PIL.Image")
    copies = np.empty_like(data.X)
    for i, pixels in enumerate(data.X):
        stored = BytesIO()
        pillow.fromarray(pixels).save(stored, "JPEG", quality=quality, subsampling="4:2:0")
        with pillow.open(stored) as image:
            copies[i] = np.asarray(image)
    return LabelledData(copies, data.y, None, data.name)


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
