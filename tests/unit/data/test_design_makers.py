"""Designs that are drawn: halves, pairs, exactly k a point, groups together, the same for the same seed for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmia.data.dataset import LabelledData
from plmia.data.designs import (
    MembershipDesign,
    ReferencePlan,
    audit_design,
    complementary_pairs,
    exact_k_per_point,
    independent_halves,
)
from plmia.errors import DataError, ReferencesError

seeds = st.integers(0, 2**32)
sizes = st.integers(2, 40)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def some_groups(seed: int, n_points: int) -> Any:
    """Draw groups of very different sizes, with numbers that are no indices; at least two."""
    groups = 1000 - 7 * rng(seed).integers(0, max(2, n_points // 3), n_points) ** 2
    groups[0], groups[1] = -5, 10**12
    return groups


def together(design: MembershipDesign, groups: Any) -> bool:
    return all(len({column.tobytes() for column in design.matrix.T[groups == g]}) == 1 for g in np.unique(groups))


def units(design: MembershipDesign, groups: Any) -> Any:
    """Matrix [models, groups] of a grouped design."""
    return design.matrix[:, np.unique(groups, return_index=True)[1]]


@given(seeds, sizes, st.integers(1, 9), st.booleans())
def test_pairs_are_complementary_halves(seed: int, n_points: int, n_pairs: int, grouped: bool) -> None:
    groups = some_groups(seed, n_points) if grouped else np.arange(n_points)
    design = complementary_pairs(n_points, n_pairs, rng(seed), groups if grouped else None)
    assert design.matrix.shape == (2 * n_pairs, n_points)
    np.testing.assert_array_equal(design.matrix[0::2], ~design.matrix[1::2])
    assert (design.matrix.sum(axis=0) == n_pairs).all()
    assert together(design, groups)
    counts = units(design, groups).sum(axis=1)
    assert set(counts) <= {len(np.unique(groups)) // 2, (len(np.unique(groups)) + 1) // 2}


@given(seeds, sizes, st.integers(1, 9), st.booleans())
def test_halves_are_halves(seed: int, n_points: int, n_models: int, grouped: bool) -> None:
    groups = some_groups(seed, n_points) if grouped else np.arange(n_points)
    design = independent_halves(n_points, n_models, rng(seed), groups if grouped else None)
    assert design.matrix.shape == (n_models, n_points)
    assert together(design, groups)
    counts = units(design, groups).sum(axis=1)
    assert set(counts) <= {len(np.unique(groups)) // 2, (len(np.unique(groups)) + 1) // 2}


@given(seeds, sizes, st.integers(2, 12), st.data(), st.booleans())
def test_every_point_is_in_exactly_k_models_of_equal_size(
    seed: int, n_points: int, n_models: int, data: st.DataObject, grouped: bool
) -> None:
    k = data.draw(st.integers(1, n_models - 1))
    groups = some_groups(seed, n_points) if grouped else np.arange(n_points)
    design = exact_k_per_point(n_points, n_models, k, rng(seed), groups if grouped else None)
    assert design.matrix.shape == (n_models, n_points)
    assert (design.matrix.sum(axis=0) == k).all()
    assert together(design, groups)
    assert np.ptp(units(design, groups).sum(axis=1)) <= 1


def naive_half(n_points: int, generator: np.random.Generator) -> list[bool]:
    size = n_points // 2
    if n_points % 2 and int(generator.bit_generator.random_raw()) >= 2**63:
        size += 1
    keys = [int(generator.bit_generator.random_raw()) for _ in range(n_points)]
    chosen = sorted(range(n_points), key=lambda point: keys[point])[:size]
    return [point in chosen for point in range(n_points)]


@pytest.mark.parametrize("n_points", [2, 9, 30])
def test_halves_are_those_of_a_plain_loop(n_points: int) -> None:
    one, other = rng(8), rng(8)
    assert independent_halves(n_points, 5, one).matrix.tolist() == [naive_half(n_points, other) for _ in range(5)]
    assert one.bit_generator.random_raw() == other.bit_generator.random_raw()


def test_blocks_of_points_do_not_change_the_design(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    for block in (1, 7, 4096):
        monkeypatch.setattr("plmia.data.designs._POINTS_AT_ONCE", block)
        digests.add(exact_k_per_point(50, 9, 4, rng()).digest)
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("draw", "digest"),
    [
        (
            lambda: complementary_pairs(101, 3, rng(1)),
            "151e0388b69be6df858103c0e3881af84d7552afe5537d4fcf7ad59eb2112ef5",
        ),
        (
            lambda: independent_halves(101, 3, rng(1)),
            "3d3baa5f6fd1c95808c330b01ab741a971a7251962409d107e1d01e0655d77f6",
        ),
        (
            lambda: exact_k_per_point(101, 7, 3, rng(1)),
            "a90e2fe082b0aa817634ad1f731cb5c0dde576991f1f718d205b4e2d63663641",
        ),
        (lambda: audit_design(101, 4, rng(1)), "032e0408a514b00d9d1f42c5cef9d5c429acf96a5a5ad4e03b5e952aa4174e40"),
        (
            lambda: audit_design(101, 4, rng(1), np.arange(101) // 3),
            "fb235e31b12720cd1a11af07d262e03f5ec7a698448abe72881f3cb44255fd27",
        ),
    ],
    ids=["pairs", "halves", "exact", "audit", "grouped"],
)
def test_a_seed_gives_the_same_design_for_ever(draw: Callable[[], MembershipDesign], digest: str) -> None:
    assert draw().digest == digest


def test_other_seeds_give_other_designs() -> None:
    for draw in (
        lambda g: complementary_pairs(50, 2, g),
        lambda g: exact_k_per_point(50, 4, 2, g),
        lambda g: audit_design(50, 2, g),
    ):
        assert len({draw(rng(seed)).digest for seed in range(20)}) == 20


def test_every_half_is_as_likely_as_any() -> None:
    # 4,000 designs of 4 points: each of the 6 halves falls 667 times on average, sd 24; 5 sd keep errors below 1e-5.
    matrix = independent_halves(4, 4000, rng(3)).matrix
    counts = np.unique(matrix, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert abs(counts - 4000 / 6).max() < 5 * np.sqrt(4000 * 5 / 36)


def test_chance_gives_the_odd_point_to_either_side() -> None:
    larger = complementary_pairs(5, 4000, rng(4)).matrix[0::2].sum(axis=1) == 3
    assert abs(larger.mean() - 0.5) < 5 * 0.5 / np.sqrt(4000)


def test_exact_k_is_even_over_models_and_pairs_of_points() -> None:
    # Sizes are equal, 6 * 4 / 8 = 3 points a model, so the 15 pairs of points share 8 * 3 models on average; the number
    # that one pair shares has a sd below 1, so 5 standard errors of 2,000 designs are 0.11.
    shared = [exact_k_per_point(6, 8, 4, rng(seed)).matrix[:, :2].all(axis=1).sum() for seed in range(2000)]
    assert abs(np.mean(shared) - 8 * 3 / 15) < 0.11
    first = [exact_k_per_point(6, 8, 4, rng(seed)).matrix[0, 0] for seed in range(2000)]
    assert abs(np.mean(first) - 0.5) < 5 * 0.5 / np.sqrt(2000)


def test_an_audit_has_a_target_and_pairs() -> None:
    design = audit_design(30, 6, rng(5))
    assert design.matrix.shape == (7, 30)
    assert design.matrix[0].sum() == 15
    np.testing.assert_array_equal(design.matrix[1::2], ~design.matrix[2::2])
    assert [split.tolist() for split in design.splits()] == [[0], [1, 2], [3, 4], [5, 6]]
    plan = ReferencePlan.draw(design, None, rng())
    assert sum(len(plan.order[i]) for i in plan.references_of(0)) == 6


def test_the_target_does_not_depend_on_the_number_of_references() -> None:
    np.testing.assert_array_equal(audit_design(31, 2, rng(6)).matrix, audit_design(31, 8, rng(6)).matrix[:3])


@pytest.mark.parametrize(
    ("draw", "kind", "words"),
    [
        (lambda: complementary_pairs(1, 2, rng()), DataError, ["1 records", "at least 2"]),
        (lambda: complementary_pairs(10, 0, rng()), ReferencesError, ["0 models", "at least 1"]),
        (lambda: independent_halves(10, -1, rng()), ReferencesError, ["-1 models"]),
        (lambda: exact_k_per_point(10, 4, 0, rng()), ReferencesError, ["0 of 4 models", "1 to 3"]),
        (lambda: exact_k_per_point(10, 4, 4, rng()), ReferencesError, ["4 of 4 models", "1 to 3"]),
        (lambda: audit_design(10, 5, rng()), ReferencesError, ["5 references", "4 or 6"]),
        (lambda: audit_design(10, 1, rng()), ReferencesError, ["1 reference cannot", "2 or more"]),
        (lambda: audit_design(10, 0, rng()), ReferencesError, ["0 references", "2 or more"]),
        (lambda: audit_design(10, 4, rng(), np.arange(9)), DataError, ["groups has 9", "10 records"]),
        (lambda: audit_design(10, 4, rng(), np.arange(10) / 4), DataError, ["0.25", "whole numbers"]),
        (lambda: audit_design(10, 4, rng(), np.zeros(10, int)), DataError, ["group 0", "at least 2"]),
    ],
)
def test_designs_that_cannot_be_drawn(draw: Callable[[], Any], kind: type[Exception], words: list[str]) -> None:
    with pytest.raises(kind) as error:
        draw()
    text = str(error.value)
    assert "\n" not in text
    assert ":" in text
    for word in words:
        assert word in text


def test_a_class_that_a_model_never_sees_is_named() -> None:
    design = MembershipDesign(np.array([[1, 1, 1, 0, 0, 1], [1, 0, 1, 0, 0, 1]], bool))
    design.require_classes(np.array([0, 0, 1, 1, 0, 1]))
    with pytest.raises(DataError) as error:
        design.require_classes(np.array([0, 1, 0, 1, 2, 2], np.uint8))
    assert "model 1 trains on none of the 2 records of class 1" in str(error.value)
    with pytest.raises(DataError, match="5 labels and 6 records"):
        design.require_classes(np.zeros(5, int))


@given(seeds, st.integers(3, 60), st.integers(1, 4))
def test_required_classes_are_those_a_loop_looks_for(seed: int, n_points: int, n_models: int) -> None:
    y = rng(seed).integers(0, 4, n_points)
    design = independent_halves(n_points, n_models, rng(seed))
    seen = all((y[members] == c).any() for members in design.matrix for c in range(y.max() + 1))
    if seen:
        design.require_classes(y)
    else:
        with pytest.raises(DataError, match=r"model . trains on none of the . records of class"):
            design.require_classes(y)


@given(seeds, st.integers(4, 30), st.integers(1, 4), st.integers(2, 40))
def test_split_duplicates_are_those_a_loop_finds(seed: int, n_points: int, n_models: int, n_values: int) -> None:
    X = rng(seed).integers(0, n_values, (n_points, 1))
    data = LabelledData(X, np.arange(n_points) % 2)
    design = independent_halves(n_points, n_models, rng(seed))
    split = 0
    for i in range(n_points):
        copies = [j for j in range(n_points) if j != i and X[j, 0] == X[i, 0]]
        split += any(bool(row[i]) != bool(row[j]) for row in design.matrix for j in copies) or any(
            bool(row[j]) != bool(row[k]) for row in design.matrix for j in copies for k in copies
        )
    assert design.split_duplicates(data) == split


def test_copies_as_groups_are_never_split() -> None:
    data = LabelledData(rng(1).integers(0, 20, (60, 1)), np.arange(60) % 2)
    assert complementary_pairs(60, 3, rng(1)).split_duplicates(data) > 0
    assert complementary_pairs(60, 3, rng(1), data.first_copies).split_duplicates(data) == 0
    with pytest.raises(DataError, match="design has 10 records, the data 60"):
        complementary_pairs(10, 3, rng(1)).split_duplicates(data)


@given(seeds, st.integers(1, 40), st.integers(1, 5))
def test_digest_tells_matrices_apart(seed: int, n_points: int, n_models: int) -> None:
    matrix = rng(seed).integers(0, 2, (n_models, n_points)).astype(bool)
    digest = MembershipDesign(matrix).digest
    assert MembershipDesign(np.asfortranarray(matrix)).digest == digest
    changed = matrix.copy()
    changed[-1, -1] ^= True
    wider = np.concatenate([matrix, np.zeros((n_models, 1), bool)], axis=1)
    assert len({digest, MembershipDesign(changed).digest, MembershipDesign(wider).digest}) == 3


@pytest.mark.parametrize("kind", ["pairs", "halves", "exact"])
def test_an_audits_design_is_of_its_kind(kind):
    design = audit_design(101, 6, np.random.default_rng(3), kind=kind)
    rows = design.matrix[1:]
    assert design.matrix.shape == (7, 101)
    assert abs(int(design.matrix[0].sum()) * 2 - 101) == 1
    assert (rows[0::2] ^ rows[1::2]).all() == (kind == "pairs")
    assert (rows.sum(axis=0) == 3).all() == (kind in {"pairs", "exact"})
