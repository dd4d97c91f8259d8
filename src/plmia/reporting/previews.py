"""What a record looks like: a thumbnail, its most unusual features, or the start of its text."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.data.dataset import LabelledData
from plmia.reporting.content import Extras
from plmia.reporting.plots import shortened

# What is shown of records takes at most so many characters of the page, of which 6 MB are the limit.
MOST_CHARACTERS = 2_000_000
SNIPPET, FEATURES, NAME = 160, 4, 40
# Means and deviations of features are taken over about so many points, and an image has at most so many pixels a side.
_SAMPLE, _SIDE = 20_000, 64

Preview = dict[str, str]


def previews(extras: Extras, points: Sequence[int]) -> list[Preview]:
    """Show the first of these points, as far as something of them is known.

    Parameters
    ----------
    extras : Extras
        Texts are shown if there are any, else images, else features.
    points : sequence of int
        The most exposed first.

    Returns
    -------
    list of dict
        Each with ``image`` (a data URI) or ``text``; shorter than ``points`` where only the first are shown.
    """
    found: Iterable[Preview] = []
    if extras.texts is not None:
        texts = extras.texts
        found = ({"text": shortened(str(texts[point]), SNIPPET)} for point in points)
    elif extras.data is not None and extras.data.is_images:
        found = _images(extras.data, points)
    elif extras.data is not None:
        found = _rows(extras.data, points, extras.feature_names)
    return list(_that_fit(found))


def shows_features(extras: Extras) -> bool:
    """Whether `previews` shows the features of records, for lack of texts and images."""
    return extras.texts is None and extras.data is not None and not extras.data.is_images


def _that_fit(found: Iterable[Preview]) -> Iterator[Preview]:
    """Yield the first of them, as many as the page has room for."""
    room = MOST_CHARACTERS
    for preview in found:
        # Of text that is not ASCII, JSON writes up to six characters for each.
        room -= sum(len(json.dumps(part)) for part in preview.values())
        if room < 0:
            return
        yield preview


def _images(data: LabelledData, points: Sequence[int]) -> Iterable[Preview]:
    sample = data.X[:: max(1, data.n_points // 100)]
    low, high = (0.0, 255.0) if data.X.dtype == np.uint8 else (float(sample.min()), float(sample.max()))
    for point in points:
        image = np.asarray(data.X[point], dtype=np.float64)
        step = -(-max(image.shape[:2]) // _SIDE)
        scaled = np.clip((image[::step, ::step] - low) / max(high - low, np.finfo(float).tiny), 0, 1)
        encoded = base64.b64encode(png_of(np.round(255 * scaled).astype(np.uint8))).decode()
        yield {"image": f"data:image/png;base64,{encoded}"}


def png_of(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return an image [height, width] or [height, width, channels] as PNG: grey, or the first three channels."""
    if pixels.ndim == 3:
        pixels = pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, 0]
    height, width = pixels.shape[:2]
    rows = pixels.reshape(height, -1)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)  # each line unfiltered
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _rows(data: LabelledData, points: Sequence[int], names: Sequence[str] | None) -> Iterable[Preview]:
    """Features that are furthest from their mean, in standard deviations."""
    sample: npt.NDArray[Any] = data.X[:: -(-data.n_points // _SAMPLE)].astype(np.float64)
    mean, spread = sample.mean(axis=0), sample.std(axis=0)
    usual = np.where(spread > 0, spread, np.inf)
    for point in points:
        row = data.X[point].astype(np.float64)
        far = (row - mean) / usual
        order = np.argsort(-np.abs(far), kind="stable")[:FEATURES]
        parts = (f"{_named(names, int(k))} = {row[k]:.4g} ({far[k]:+.1f} sd)" for k in order)
        yield {"text": ", ".join(parts)}


def _named(names: Sequence[str] | None, number: int) -> str:
    known = names is not None and number < len(names)
    return shortened(str(names[number]), NAME) if names is not None and known else f"feature {number}"
