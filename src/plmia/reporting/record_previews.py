"""Previews of records: a thumbnail, the most unusual features, or the start of the text."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from plmia.data.dataset import LabelledData
from plmia.reporting.extras import Extras
from plmia.reporting.plots.figure import shortened

# Previews take at most this many characters of the page, whose limit is 6 MB.
MAX_CHARACTERS = 2_000_000
MAX_TEXT, MAX_FEATURES, MAX_NAME = 160, 4, 40
# Records over which means and deviations of features are taken, and pixels per side of a thumbnail.
_SAMPLE, _SIDE = 20_000, 64

Preview = dict[str, str]
"""An ``image`` (a data URI) or a ``text``."""


def previews(extras: Extras, records: Sequence[int]) -> list[Preview]:
    """Show texts, else images, else features of records; only of the first ones if the page has no room for all."""
    found: Iterable[Preview] = []
    if extras.texts is not None:
        texts = extras.texts
        found = ({"text": shortened(str(texts[record]), MAX_TEXT)} for record in records)
    elif extras.data is not None and extras.data.is_images:
        found = _thumbnails(extras.data, records)
    elif extras.data is not None:
        found = _unusual_features(extras.data, records, extras.feature_names)
    return list(_that_fit(found))


def shows_features(extras: Extras) -> bool:
    """Whether `previews` shows the features of records."""
    return extras.texts is None and extras.data is not None and not extras.data.is_images


def _that_fit(found: Iterable[Preview]) -> Iterator[Preview]:
    room = MAX_CHARACTERS
    for preview in found:
        # JSON takes up to six characters for one that is not ASCII.
        room -= sum(len(json.dumps(part)) for part in preview.values())
        if room < 0:
            return
        yield preview


def _thumbnails(data: LabelledData, records: Sequence[int]) -> Iterator[Preview]:
    sample = data.X[:: max(1, data.n_points // 100)]
    low, high = (0.0, 255.0) if data.X.dtype == np.uint8 else (float(sample.min()), float(sample.max()))
    for record in records:
        image = np.asarray(data.X[record], dtype=np.float64)
        step = -(-max(image.shape[:2]) // _SIDE)
        scaled = np.clip((image[::step, ::step] - low) / max(high - low, np.finfo(float).tiny), 0, 1)
        encoded = base64.b64encode(encode_png(np.round(255 * scaled).astype(np.uint8))).decode()
        yield {"image": f"data:image/png;base64,{encoded}"}


def encode_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Encode an image [height, width] or [height, width, channels] as PNG: grey, or the first three channels.

    Written by hand, since thumbnails must not depend on an image library.
    """
    if pixels.ndim == 3:
        pixels = pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, 0]
    height, width = pixels.shape[:2]
    # Each line starts with the number of its filter, here 0 for none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(kind, content) for kind, content in chunks)


def _png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _unusual_features(data: LabelledData, records: Sequence[int], names: Sequence[str] | None) -> Iterator[Preview]:
    """Yield the features furthest from their mean, in standard deviations."""
    sample = data.X[:: -(-data.n_points // _SAMPLE)].astype(np.float64)
    mean, spread = sample.mean(axis=0), sample.std(axis=0)
    usual = np.where(spread > 0, spread, np.inf)
    for record in records:
        row = data.X[record].astype(np.float64)
        far = (row - mean) / usual
        order = np.argsort(-np.abs(far), kind="stable")[:MAX_FEATURES]
        parts = (f"{_feature_name(names, int(k))} = {row[k]:.4g} ({far[k]:+.1f} sd)" for k in order)
        yield {"text": ", ".join(parts)}


def _feature_name(names: Sequence[str] | None, number: int) -> str:
    return shortened(str(names[number]), MAX_NAME) if names is not None else f"feature {number}"
