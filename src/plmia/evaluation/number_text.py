"""Numbers as text, thousands at a time: the characters of ``str``, ``repr`` and ``format(x, ".6g")``.

Python writes one number at a time, which took a fifth of the time of scoring many records, and NumPy has no function
that writes floats as fast. Here, digits come from exact arithmetic: a product of two floats is the sum of two floats
(Dekker, 1971), so a float times a power of ten is an integer plus a remainder that is known exactly. Where the
remainder does not decide a digit clearly, and far from 1, Python writes the number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.data.arrays import Array, BoolArray, FloatArray, IntArray

Texts = npt.NDArray[np.uint8]
"""Characters [rows, width] of one text per row; 0 where there is none."""

# All texts of four digits, each as one number in memory.
_FOUR_DIGITS = np.array([f"{i:04d}" for i in range(10_000)], "S4").view(np.uint32)
_TENS = 10 ** np.arange(18)
# Seventeen digits identify every float. Those of ``.6g`` are cut to six.
_ALL_DIGITS, _SIX = 17, 6
# Powers of ten that floats hold exactly. Below 1e-4 and with more digits before the point, exponents are written.
_EXACT_POWERS = np.array([float(f"1e{k}") for k in range(23)])
_SMALLEST_POWER = -4
_STARTS = np.array([float(f"1e{k}") for k in range(_SMALLEST_POWER, _ALL_DIGITS - 3)])
# Multiplying by this splits a float into two of 26 bits each, whose products are exact.
_SPLIT = 2.0**27 + 1
# A remainder this close to a limit does not decide clearly.
_MARGIN = 1e-6


def joined(cells: Sequence[Texts | bytes]) -> bytes:
    """Return the texts of each row one after another, row by row; a cell of bytes is the same in all rows."""
    n = next(len(cell) for cell in cells if not isinstance(cell, bytes))
    constants = {cell: np.frombuffer(cell, np.uint8) for cell in cells if isinstance(cell, bytes)}
    columns = [np.broadcast_to(constants[cell], (n, len(cell))) if isinstance(cell, bytes) else cell for cell in cells]
    characters = np.concatenate(columns, axis=1)
    written: Texts = characters[characters != 0]
    return written.tobytes()


def whole(values: Array) -> Texts:
    """Return integers as ``str`` writes them, and booleans as 0 and 1."""
    if values.dtype == np.bool_:
        return values.view(np.uint8)[:, None] + np.uint8(ord("0"))
    least, most = int(values.min(initial=0)), int(values.max(initial=0))
    if max(most, -least) >= _TENS[-2]:
        return _by_python(str, values.tolist())
    size = np.abs(values.astype(np.int64, copy=False))
    text = _without_leading_zeros(size, max(most, -least))
    return text if least == 0 else np.concatenate([_signs(values), text], axis=1)


def shortest(values: FloatArray) -> Texts:
    """Return floats as ``repr`` writes them: with as few digits as identify each."""
    number, rest, point, half, clear = _decimal(values, _ALL_DIGITS)
    # Below a power of two, the next float is nearer.
    clear &= values.view(np.int64) & ((1 << 52) - 1) != 0
    count, rows, found = np.full(len(values), _ALL_DIGITS), np.flatnonzero(clear), number.copy()
    for dropped in range(1, _ALL_DIGITS):
        unit, seen = int(_TENS[dropped]), number[rows]
        low = seen - seen // unit * unit
        up = low + rest[rows] > unit / 2
        low -= np.where(up, unit, 0)
        away, limit = np.abs(low + rest[rows]), half[rows]
        good = away < limit
        clear[rows[(np.abs(away - limit) <= _MARGIN * limit) | (good & (away >= unit / 2 - _MARGIN))]] = False
        rows = rows[good]
        if not len(rows):
            break
        found[rows] = seen[good] - low[good]
        count[rows] = _ALL_DIGITS - dropped
    return _written(values, found, count, point, clear, _ALL_DIGITS, 1, repr)


def six_digits(values: FloatArray) -> Texts:
    """Return floats as ``format(x, ".6g")`` writes them."""
    number, _, point, _, clear = _decimal(values, _SIX)
    count, rows = np.full(len(values), _SIX), np.arange(len(values))
    for dropped in range(1, _SIX):
        unit, seen = int(_TENS[dropped]), number[rows]
        rows = rows[seen // unit * unit == seen]
        count[rows] = _SIX - dropped
    return _written(values, number, count, point, clear, _SIX, 0, "{:.6g}".format)


def _decimal(values: FloatArray, digits: int) -> tuple[IntArray, FloatArray, IntArray, FloatArray, BoolArray]:
    """Return so many digits of each size as an integer, the remainder, and the place of the point.

    The last two arrays are half the distance to the next float, in units of the last digit, and where all of this is
    clear; elsewhere it is arbitrary.
    """
    size = np.abs(values)
    clear = (size >= _STARTS[0]) & (size < _EXACT_POWERS[digits - 4])
    size = np.where(clear, size, 1.0)
    point = np.searchsorted(_STARTS, size, side="right") + _SMALLEST_POWER
    scale = _EXACT_POWERS.take(digits - point)
    product, error = _exact_product(size, scale)
    near = np.rint(product)
    rest = (product - near) + error
    carry = np.rint(rest)
    rest -= carry
    number = near.astype(np.int64) + carry.astype(np.int64)
    clear &= (np.abs(rest) < 0.5 - _MARGIN) & (number < _TENS[digits])
    return number, rest, point, np.spacing(size) * scale / 2, clear


def _exact_product(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the rounded product and what rounding took from it."""
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    product = a * b
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return two floats of 26 bits each whose sum is ``x``."""
    shifted = x * _SPLIT
    high = shifted - (shifted - x)
    return high, x - high


def _written(
    values: FloatArray,
    number: IntArray,
    count: IntArray,
    point: IntArray,
    clear: BoolArray,
    digits: int,
    least: int,
    python: Callable[[float], str],
) -> Texts:
    """Return texts with ``least`` or more digits after the point, from the first ``count`` digits of each number."""
    below = _TENS.take(np.minimum(digits - point, _ALL_DIGITS))
    before = number // below
    after = number - before * below
    # Digits after the point, from the left: the first four are at most three zeros and a digit.
    width = 4 * -(-(digits + 3) // 4)
    tail = _TENS.take(digits - 4 - point)
    first = after // tail
    further = (after - first * tail) * _TENS.take(width - digits + point)
    places = np.maximum(count - point, least)[:, None]
    fraction = np.concatenate([_digits(first, 1), _digits(further, width // 4 - 1)], axis=1)
    fraction *= np.arange(width) < places
    dot = np.where(places > 0, np.uint8(ord(".")), np.uint8(0))
    largest = int(before[clear].max(initial=0))
    text = np.concatenate([_signs(values), _without_leading_zeros(before, largest), dot, fraction], axis=1)
    rows = np.flatnonzero(~clear)
    if len(rows):
        text[rows] = _by_python(python, values[rows].tolist(), text.shape[1])
    return text


def _signs(values: Array) -> Texts:
    return np.where(values < 0, np.uint8(ord("-")), np.uint8(0))[:, None]


def _digits(numbers: IntArray, groups: int) -> Texts:
    """Return the last digits of numbers of at least 0, in groups of four."""
    text = np.empty((len(numbers), groups), np.uint32)
    for group in range(groups - 1, -1, -1):
        higher = numbers // 10_000
        text[:, group] = _FOUR_DIGITS.take(numbers - higher * 10_000)
        numbers = higher
    return text.view(np.uint8)


def _without_leading_zeros(numbers: IntArray, largest: int) -> Texts:
    """Return numbers from 0 to the ``largest`` of them."""
    text = _digits(numbers, -(-len(str(largest)) // 4))
    n_digits = np.searchsorted(_TENS[1:], numbers, side="right") + 1
    text *= np.arange(text.shape[1], 0, -1) <= n_digits[:, None]
    return text


def _by_python(function: Callable[[Any], str], values: Sequence[Any], width: int | None = None) -> Texts:
    texts = np.array([function(value) for value in values], "S" if width is None else f"S{width}")
    return texts.view(np.uint8).reshape(len(texts), -1)
