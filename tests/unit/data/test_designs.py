"""Which models give each other away, and which of the others serve as references."""

from __future__ import annotations

import numpy as np
import pytest

from plmia.data.designs import (
    MembershipDesign,
    ReferencePlan,
    complementary_pairs,
    counts_depend_on,
    even_counts,
    exact_k_per_point,
    independent_halves,
)
from plmia.errors import ReferencesError, SignalsError


def design_of(sizes, n_points=13, seed=0):
    """Return a design with splits of the given sizes, its models shuffled: rows equal or complement each other."""
    rng = np.random.default_rng(seed)
    rows = []
    for size in sizes:
        row = rng.random(n_points) < 0.5
        rows += [row if rng.random() < 0.5 else ~row for _ in range(size - 1)] + [~row if size == 2 else row]
    return MembershipDesign(np.array(rows)[rng.permutation(len(rows))])


def naive_splits(matrix):
    """Return groups of models whose rows are equal or complementary, by comparing every two."""
    groups = []
    for model, row in enumerate(matrix):
        for group in groups:
            if np.array_equal(matrix[group[0]], row) or np.array_equal(matrix[group[0]], ~row):
                group.append(model)
                break
        else:
            groups.append([model])
    return groups


SIZES = {
    "pairs": [2] * 6,
    "single models": [1] * 9,
    "pairs and single models": [2, 2, 2, 1, 1, 1],
    "triples, pairs and a single model": [3, 2, 2, 3, 1],
    "fours": [4, 4, 4, 4],
}
DESIGNS = pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)


@DESIGNS
@pytest.mark.parametrize("n_points", [13, 16, 64])
def test_splits_match_a_comparison_of_all_rows(sizes, n_points):
    design = design_of(sizes, n_points)
    found = [split.tolist() for split in design.splits()]
    assert found == naive_splits(design.matrix)
    assert sorted(len(split) for split in found) == sorted(sizes)


def test_rows_that_differ_in_the_last_point_only_are_different_splits():
    matrix = np.zeros((4, 9), bool)
    matrix[1, 8] = True
    matrix[2] = True
    matrix[3, :8] = True
    assert [split.tolist() for split in MembershipDesign(matrix).splits()] == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    "matrix", [np.zeros((2, 3)), np.zeros(3, bool), np.zeros((2, 3, 1), bool), np.zeros((2, 3), int)]
)
def test_only_a_bool_matrix_is_a_design(matrix):
    with pytest.raises(SignalsError, match=r"membership has shape \(.*\) and type .*one row per model"):
        MembershipDesign(matrix)


def models_of(plan, target):
    return [int(model) for i in plan.references_of(target) for model in plan.order[i]]


@DESIGNS
def test_all_but_the_own_split_are_references_by_default(sizes):
    design = design_of(sizes)
    plan = ReferencePlan.draw(design, None, np.random.default_rng(1))
    for split in design.splits():
        for target in split:
            assert sorted(models_of(plan, target)) == sorted(set(range(len(design.matrix))) - set(split.tolist()))


@DESIGNS
def test_neither_the_target_nor_its_complement_is_ever_a_reference(sizes):
    design = design_of(sizes)
    for wanted in range(1, len(design.matrix)):
        plan = ReferencePlan.draw(design, wanted, np.random.default_rng(1))
        for target, row in enumerate(design.matrix):
            try:
                models = models_of(plan, target)
            except ReferencesError:
                continue
            assert len(models) == len(set(models)) == wanted
            for model in models:
                assert not np.array_equal(design.matrix[model], row)
                assert not np.array_equal(design.matrix[model], ~row)


@pytest.mark.parametrize(("sizes", "step"), [([2] * 6, 2), ([1] * 9, 1)])
def test_a_smaller_budget_is_part_of_a_larger_one(sizes, step):
    design = design_of(sizes)
    eligible = len(design.matrix) - step
    for target in range(len(design.matrix)):
        before = set()
        for wanted in range(step, eligible + 1, step):
            plan = ReferencePlan.draw(design, wanted, np.random.default_rng(1))
            now = set(models_of(plan, target))
            assert before < now
            before = now


def test_references_of_two_targets_differ_by_one_split_at_most():
    plan = ReferencePlan.draw(design_of([2] * 8), 8, np.random.default_rng(1))
    chosen = [set(plan.references_of(target)) for target in range(16)]
    assert max(len(a - b) for a in chosen for b in chosen) == 1


@DESIGNS
def test_references_are_whole_splits(sizes):
    design = design_of(sizes)
    splits = [set(split.tolist()) for split in design.splits()]
    plan = ReferencePlan.draw(design, 4, np.random.default_rng(1))
    for target in range(len(design.matrix)):
        models = set(models_of(plan, target))
        assert all(split <= models or not split & models for split in splits)


def test_the_order_is_random_but_repeatable():
    design = design_of([2] * 10)
    orders = [
        [split.tolist() for split in ReferencePlan.draw(design, 4, np.random.default_rng(seed)).order]
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize(
    ("sizes", "wanted", "message"),
    [
        ([2] * 6, 5, "5 references cannot .* pairs: request 4 or 6$"),
        ([2] * 6, 1, "1 reference cannot .* pairs: request 2$"),
        ([4] * 4, 6, "6 references cannot .* pairs: request 4 or 8$"),
        ([3] * 4, 7, "7 references cannot .* pairs: request 6 or 9$"),
        (
            [2] * 6,
            11,
            "target 0 has 10 eligible references, 11 .*model 0, 9, .*: request at most 10$",
        ),
        (
            [1] * 6,
            6,
            "target 0 has 5 eligible references, 6 .*model 0, .*: request at most 5$",
        ),
        ([2] * 6, 0, "0 references .* at least 1"),
        ([2] * 6, -2, "-2 references .* at least 1"),
        ([2], None, "target 0 has no eligible reference .*same split.*: add models trained"),
        ([1], None, "target 0 has no eligible reference .*no other model.*: add models trained"),
        ([1], 1, "target 0 has no eligible reference"),
        ([1] * 2, 2, "^target 0 has 1 eligible reference, 2 .*model 0"),
    ],
)
def test_a_budget_that_cannot_be_met_is_refused_with_a_remedy(sizes, wanted, message):
    with pytest.raises(ReferencesError, match=message):
        ReferencePlan.draw(design_of(sizes), wanted, np.random.default_rng(0)).references_of(0)


def test_a_remedy_works():
    for sizes, wanted in (([2] * 6, (4, 6, 2)), ([4] * 4, (4, 8))):
        for n in wanted:
            assert len(models_of(ReferencePlan.draw(design_of(sizes), n, np.random.default_rng(0)), 0)) == n


def test_large_splits_do_not_stand_in_the_way():
    plan = ReferencePlan.draw(design_of([3, 3, 2, 2, 2]), 4, np.random.default_rng(0))
    for target in range(12):
        assert [len(plan.order[i]) for i in plan.references_of(target)] == [2, 2]


def test_single_models_fill_up_what_pairs_leave():
    plan = ReferencePlan.draw(design_of([2, 2, 2, 1, 1]), 5, np.random.default_rng(0))
    sizes = [len(plan.order[i]) for i in plan.references_of(int(plan.order[0][0]))]
    assert sizes == [2, 2, 1]


# Counts that reveal membership ---------------------------------------------------------------------------------------


def unequal(rng, n_points, n_models):
    """Return a design in which each model trains on a third of the points, on its own."""
    return rng.random((n_models, n_points)) < 0.3


def exact_block(rng, n_points, n_models):
    """Return four models with exactly two of them per point, and others on their own."""
    return np.concatenate([exact_k_per_point(n_points, 4, 2, rng).matrix, rng.random((n_models - 4, n_points)) < 0.5])


def other_shares(rng, n_points, n_models):
    """Return a design in which some points are in most models and others in few."""
    return rng.random((n_models, n_points)) < np.where(np.arange(n_points) % 2, 0.8, 0.2)


FAIR = {
    "halves": lambda rng, n, m: independent_halves(n, m, rng).matrix,
    "unequal": unequal,
    "pairs": lambda rng, n, m: np.delete(complementary_pairs(n, m // 2, rng).matrix, 1, axis=0),
    "target apart": lambda rng, n, m: np.concatenate(
        [rng.random((1, n)) < 0.8, exact_k_per_point(n, m - 1, (m - 1) // 2, rng).matrix]
    ),
}
REVEALING = {
    "exact": lambda rng, n, m: exact_k_per_point(n, m, m // 2, rng).matrix,
    "exact thirds": lambda rng, n, m: exact_k_per_point(n, m, m // 3, rng).matrix,
    "one missing": lambda rng, n, m: exact_k_per_point(n, m + 1, (m + 1) // 2, rng).matrix[:m],
    "exact block": exact_block,
    "other shares": other_shares,
}


@pytest.mark.parametrize("n_models", [5, 8, 17, 64])
@pytest.mark.parametrize("kind", FAIR)
def test_counts_of_fair_designs_do_not_depend_on_membership(kind, n_models):
    """A false alarm is as rare as one in a million: 50 designs raise none."""
    for seed in range(50):
        matrix = FAIR[kind](np.random.default_rng(seed), 700, n_models)
        assert not counts_depend_on(matrix[0], matrix[1:].sum(axis=0))


@pytest.mark.parametrize("n_models", [5, 8, 17])
@pytest.mark.parametrize("kind", REVEALING)
def test_counts_that_reveal_membership_are_found(kind, n_models):
    for seed in range(20):
        matrix = REVEALING[kind](np.random.default_rng(seed), 1500, n_models)
        assert counts_depend_on(matrix[0], matrix[1:].sum(axis=0))


def test_an_exact_design_is_found_however_few_points_there_are():
    for seed in range(20):
        matrix = exact_k_per_point(8, 6, 3, np.random.default_rng(seed)).matrix
        assert counts_depend_on(matrix[0], matrix[1:].sum(axis=0))


def test_counts_of_another_spread_are_found():
    """Their means are the same: only the whole law tells."""
    rng = np.random.default_rng(0)
    flags = rng.random(600) < 0.5
    counts = np.where(flags, 8, np.where(rng.random(600) < 0.5, 4, 12))
    assert counts_depend_on(flags, counts)


@pytest.mark.parametrize("flags", [np.ones(40, bool), np.zeros(40, bool)])
def test_where_there_is_nothing_to_compare_nothing_depends(flags):
    assert not counts_depend_on(flags, np.arange(40))


def test_p_values_of_counts_are_those_of_scipy():
    from scipy.stats import chi2_contingency, pearsonr

    from plmia.data.designs import _chi_square_p, _trend_p

    rng = np.random.default_rng(0)
    flags, counts = rng.random(900) < 0.3, rng.integers(0, 6, 900)
    table = np.stack([np.bincount(counts[flag]) for flag in (flags, ~flags)]).astype(float)
    assert _chi_square_p(table) == pytest.approx(chi2_contingency(table, correction=False).pvalue, rel=1e-9)
    assert _trend_p(table) == pytest.approx(pearsonr(flags, counts).pvalue, rel=0.02)  # normal instead of t


def test_one_odd_point_does_not_cost_the_others_their_references():
    matrix = exact_k_per_point(500, 9, 4, np.random.default_rng(0)).matrix.copy()
    matrix[1:, 7] = np.arange(1, 9) == 3
    n_in = matrix[1:].sum(axis=0)
    keep_in, keep_out = even_counts(matrix[0], n_in, 8, np.arange(500))
    assert (keep_in[7], keep_out[7]) == (1, 6)
    others = np.arange(500) != 7
    assert set(keep_in[others]) == {3}
    assert set(keep_out[others]) == {4}
    assert (keep_in <= n_in).all()
    assert (keep_out <= 8 - n_in).all()


def test_odd_points_that_are_all_members_are_no_exception():
    """Their counts would give them away, so all points keep as few as they."""
    matrix = exact_k_per_point(10_000, 9, 4, np.random.default_rng(0)).matrix.copy()
    odd = np.flatnonzero(matrix[0])[:60]
    matrix[1:, odd] = (np.arange(1, 9) == 3)[:, None]
    keep_in, keep_out = even_counts(matrix[0], matrix[1:].sum(axis=0), 8, np.arange(10_000))
    assert (set(keep_in), set(keep_out)) == ({1}, {4})
