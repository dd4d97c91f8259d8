"""Half floats by their bits: NumPy compares and converts them one by one, integers and bits many at a time.

Every function does for half floats what NumPy does, several times as fast, and leaves other floats to NumPy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plmia.data.arrays import BoolArray, Floats

# The exponent of infinite values and NaN; 1.0; -0.0.
_EXPONENT, _ONE, _MINUS_ZERO = 0x7C00, 0x3C00, 0x8000
# Bits of a half float, moved to the place that they have in a single one, make a number that is too small by this.
_MOVED, _TOO_SMALL_BY = 13, np.float32(2.0**112)
# Of the moved bits and copies of the sign before them, all but the copies.
_WITHOUT_COPIES = np.int32(-0x70000001)


def is_half(values: Floats) -> bool:
    """Whether these are half floats in the byte order of this machine."""
    return values.dtype == np.float16


def finite(values: Floats) -> BoolArray:
    """Return ``numpy.isfinite(values)``."""
    if not is_half(values):
        return np.isfinite(values)
    return np.asarray((values.view(np.uint16) & np.uint16(_EXPONENT)) != _EXPONENT)


def positive(values: Floats) -> BoolArray:
    """Return ``values > 0`` of values that are not NaN."""
    return np.asarray(values.view(np.int16) > 0 if is_half(values) else values > 0)


def extremes(values: Floats) -> tuple[np.floating, np.floating]:
    """Return the smallest and the largest value; NaN if any value is."""
    if not is_half(values):
        return values.min(), values.max()
    bits = values.view(np.int16)
    # The size of negative values counts down: as integers, all bits are then in the order of the values.
    ordered = bits ^ ((bits >> 15) & np.int16(0x7FFF))
    ends = np.array([ordered.min(), ordered.max()])
    if ends[0] < ~_EXPONENT or ends[1] > _EXPONENT:  # beyond the infinite values
        return np.float16(np.nan), np.float16(np.nan)
    least, most = (ends ^ ((ends >> 15) & np.int16(0x7FFF))).view(np.float16)
    return least, most


def count_in_unit_interval(values: Floats) -> int:
    """Count the values from 0 to 1."""
    if not is_half(values):
        return int(np.count_nonzero((values >= 0) & (values <= 1)))
    bits = values.view(np.uint16)
    return int(np.count_nonzero(bits <= _ONE) + np.count_nonzero(bits == _MINUS_ZERO))


def as_single(values: npt.NDArray[np.float16], out: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Write finite half floats as single ones into ``out``, exactly, and return it."""
    bits = out.view(np.int32)
    np.copyto(bits, values.view(np.int16))
    np.left_shift(bits, _MOVED, out=bits)
    np.bitwise_and(bits, _WITHOUT_COPIES, out=bits)
    return np.multiply(out, _TOO_SMALL_BY, out=out)
