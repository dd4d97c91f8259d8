"""A limit on memory changes where arrays are kept, never what they hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plmia.data import memory
from plmia.data.npz import load_npz, packed_rows, unpack_bits
from plmia.errors import MemoryLimitError, SignalsError

LIMIT = memory.LEAST_LIMIT
# Larger than a 64th of the limit.
MANY = LIMIT // 64 // 8 + 1000


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("1GB", 10**9),
        ("512MB", 512 * 10**6),
        ("512 mb", 512 * 10**6),
        ("1GiB", 1 << 30),
        ("1.5g", 1_500_000_000),
        (10**9, 10**9),
        ("2TB", 2 * 10**12),
    ],
)
def test_sizes_are_read(text: str | int, n_bytes: int) -> None:
    assert memory.parse_size(text) == n_bytes


@pytest.mark.parametrize("text", ["", "much", "-1GB", "1XB", "1iB", "GB", "1 GB RAM", "0", "1MB"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(MemoryLimitError, match="memory limit"):
        memory.parse_size(text)


def test_only_large_arrays_within_a_limit_are_mapped(tmp_path: Path) -> None:
    assert not memory.is_mapped(memory.empty(MANY))
    with memory.memory_limit(LIMIT, tmp_path):
        assert memory.limit_in_bytes() == LIMIT
        assert not memory.is_mapped(memory.empty(10))
        array = memory.zeros(MANY)
        assert memory.is_mapped(array)
        assert not array.any()
    assert memory.limit_in_bytes() is None
    assert list(tmp_path.iterdir()) == []  # the file has no name


def test_released_values_are_kept(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random(MANY)
    with memory.memory_limit(LIMIT, tmp_path):
        kept = memory.copied(values)
        assert memory.is_mapped(kept[5:])
        memory.release()
        assert np.array_equal(kept, values)


@pytest.mark.parametrize("limited", [False, True])
def test_rows_points_and_counts_are_those_of_plain_indexing(tmp_path: Path, limited: bool) -> None:
    matrix = np.random.default_rng(1).random((9, MANY)) < 0.5
    rows, points = np.array([3, 0, 4]), np.array([7, 2, MANY - 1])
    with memory.memory_limit(LIMIT if limited else None, tmp_path):
        given = memory.copied(matrix)
        assert memory.is_mapped(given) == limited
        assert np.array_equal(memory.rows_of(given, rows), matrix[rows])
        assert np.array_equal(memory.rows_of(given, np.array([1, 2])), matrix[1:3])
        assert np.array_equal(memory.gathered(given, points), matrix[:, points])
        assert np.array_equal(memory.gathered(given, points, rows), matrix[rows][:, points])
        assert np.array_equal(memory.count_rows(given), matrix.sum(axis=0))
        assert np.array_equal(memory.count_rows(given, rows), matrix[rows].sum(axis=0))
        assert np.array_equal(packed_rows(given), np.packbits(matrix, axis=1))
        assert np.array_equal(unpack_bits(np.packbits(matrix, axis=1), MANY), matrix)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.bool_])
def test_large_arrays_of_an_npz_are_mapped(tmp_path: Path, dtype: type) -> None:
    values = (np.random.default_rng(2).random((4, 2 * MANY)) * 3).astype(dtype)
    path = tmp_path / "a.npz"
    np.savez(path, odd=np.ones(3, np.uint8), values=values)
    with memory.memory_limit(LIMIT, tmp_path):
        found = load_npz(path, None, "values", SignalsError)
        assert memory.is_mapped(found["values"])
        assert not memory.is_mapped(found["odd"])
        assert np.array_equal(found["values"], values)


def test_damage_in_a_mapped_array_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, values=np.zeros(MANY))
    with path.open("r+b") as file:
        file.seek(4 * MANY)
        file.write(b"x")
    with memory.memory_limit(LIMIT, tmp_path), pytest.raises(SignalsError, match="damaged"):
        load_npz(path, None, "values", SignalsError)


def test_what_exceeds_the_limit_is_refused(tmp_path: Path) -> None:
    memory.require(1e15, "this", "do less")  # no limit
    with memory.memory_limit(10**9, tmp_path):
        memory.require(1e9, "this", "do less")
        with pytest.raises(MemoryLimitError, match=r"this needs about 1\.3 GB of memory, the limit is 1 GB: do less"):
            memory.require(1.23e9, "this", "do less")


def test_a_size_without_a_unit_that_is_too_small_gets_one_in_the_message() -> None:
    for size in ("500", 500):
        with pytest.raises(MemoryLimitError, match="500MB"):
            memory.parse_size(size)
