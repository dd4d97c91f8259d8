"""Half floats by their bits, compared with NumPy on every half float that there is."""

from __future__ import annotations

import numpy as np
import pytest

from plmia.data import half_floats

EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FINITE = EVERY[np.isfinite(EVERY)]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, ">f2"])
def test_every_value(kind: str) -> None:
    every, some = EVERY.astype(kind), FINITE.astype(kind)
    np.testing.assert_array_equal(half_floats.finite(every), np.isfinite(every))
    np.testing.assert_array_equal(half_floats.positive(some), some > 0)
    inside = (every >= 0) & (every <= 1)
    assert half_floats.count_in_unit_interval(every) == np.count_nonzero(inside)
    assert half_floats.extremes(some) == (some.min(), some.max())
    assert half_floats.extremes(-abs(some)) == (some.min(), 0)


def test_strided_values() -> None:
    some = FINITE[:63_000].reshape(-1, 30, 2)[:, :, 1]
    assert half_floats.extremes(some) == (some.min(), some.max())
    np.testing.assert_array_equal(half_floats.positive(some), some > 0)
    np.testing.assert_array_equal(half_floats.finite(some), True)


@pytest.mark.parametrize("bits", [0x7E00, 0xFE00, 0x7C01, 0xFFFF])
def test_extremes_tell_of_a_value_that_is_not_a_number(bits: int) -> None:
    values = np.append(FINITE, np.array([bits], np.uint16).view(np.float16))
    assert np.isnan(half_floats.extremes(values)).all()
    assert half_floats.extremes(np.append(FINITE, np.float16([-np.inf, np.inf]))) == (-np.inf, np.inf)


@pytest.mark.parametrize("values", [FINITE, FINITE[:63_000].reshape(-1, 30, 2)[:, ::3, 1]], ids=["all", "strided"])
def test_single_floats(values: np.ndarray) -> None:
    out = np.empty(values.shape, np.float32)
    assert half_floats.as_single(values, out) is out
    # The bits, so that -0.0 is not 0.0.
    np.testing.assert_array_equal(out.view(np.uint32), values.astype(np.float32).view(np.uint32))
