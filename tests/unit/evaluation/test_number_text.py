"""Numbers as text, compared with what Python writes, one number at a time."""

from __future__ import annotations

import numpy as np
import pytest

from plmia.evaluation.number_text import Texts, joined, shortest, six_digits, whole

N = 20_000
RNG = np.random.default_rng(0)
FLOATS = {
    "scores": RNG.normal(size=N) * 5,
    "every size": 10.0 ** RNG.uniform(-320, 308, N) * RNG.choice([-1, 1], N),
    "no exponent": 10.0 ** RNG.uniform(-4, 16, N) * RNG.choice([-1, 1], N),
    "every bit": RNG.integers(0, 2**63, N, np.int64).view(np.float64),
    "p-values": RNG.integers(1, 1_000_001, N) / 1_000_001,
    "shares": RNG.integers(0, 1000, N) / RNG.integers(1, 1000, N),
    "decimals": np.round(RNG.normal(size=N) * 10.0 ** RNG.integers(0, 9, N), 6),
    "beside decimals": np.nextafter(np.round(RNG.random(N) * 1000, 3), 1e9),
    "ties of six digits": RNG.integers(0, 10**6, N) / 1e6 + 5e-7,
    "whole": RNG.integers(-(10**17), 10**17, N).astype(float),
    "powers of two": 2.0 ** RNG.integers(-1074, 1024, N),
    "beside powers of ten": np.nextafter(10.0 ** RNG.integers(-6, 18, N), RNG.choice([0.0, np.inf], N)),
    "half floats": RNG.normal(size=N).astype(np.float16).astype(float),
    "special": np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.1, 1e-4, 9.9999995e-5, 0.9999995, 999999.5]),
    "none": np.array([]),
}
INTEGERS = {
    "records": RNG.integers(0, 10**7, N),
    "signed": RNG.integers(-(10**15), 10**15, N),
    "every": RNG.integers(-(2**63), 2**63 - 1, N),
    "small": RNG.integers(-128, 128, N).astype(np.int8),
    "unsigned": np.array([0, 1, 2**64 - 1], np.uint64),
    "least": np.array([-128, 127, 0], np.int8),
    "zero": np.zeros(3, int),
    "negative": -RNG.integers(1, 99, N),
    "none": np.array([], int),
}


def as_list(texts: Texts) -> list[str]:
    return [bytes(row[row != 0]).decode() for row in texts]


@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_written_as_by_python(name: str) -> None:
    values = FLOATS[name]
    assert as_list(shortest(values)) == [repr(value) for value in values.tolist()]
    assert as_list(six_digits(values)) == [f"{value:.6g}" for value in values.tolist()]


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_written_as_by_python(name: str) -> None:
    values = INTEGERS[name]
    assert as_list(whole(values)) == [str(value) for value in values.tolist()]


def test_booleans_are_written_as_numbers() -> None:
    assert as_list(whole(np.array([True, False]))) == ["1", "0"]


def test_texts_are_joined_row_by_row() -> None:
    cells = [whole(np.array([1, 20])), b",", b"", b";", shortest(np.array([-0.5, 1e300])), b"\n"]
    assert joined(cells) == b"1,;-0.5\n20,;1e+300\n"
