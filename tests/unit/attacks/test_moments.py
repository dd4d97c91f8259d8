"""Sums over models against loops over models: any dtype, design, block size and order of rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from plmia.attacks import view as module
from plmia.attacks.view import Powers, Probabilities, References, Sums, leave_one_out, sum_over

DTYPES = [np.float16, np.float32, np.float64]
ONE_FLUSH = 1e-6  # of the sum of sizes: float32 terms, at most 32 of them between two flushes
TOLERANCE = {np.float16: ONE_FLUSH, np.float32: ONE_FLUSH, np.float64: 1e-14}


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def terms_of(feature, conf, point, view):
    if isinstance(feature, Powers):
        d = conf - float(feature.centre[point, view])
        return d, d * d
    return logistic(conf), logistic(-conf)


def assert_sums_match_loops(sums, references, feature, side_of, tolerance):
    for point in range(references.n_points):
        for inside, n, found in ((True, sums.n_in, sums.inside), (False, sums.n_out, sums.outside)):
            for view in range(references.n_views):
                terms = [terms_of(feature, conf, point, view) for conf in side_of(references, inside, point, view)]
                assert n[point] == len(terms)
                for k in range(2):
                    exact = math.fsum(term[k] for term in terms)
                    size = math.fsum(abs(term[k]) for term in terms)
                    assert abs(found[k, point, view] - exact) <= tolerance * size, (k, inside, point, view)


def features_for(references):
    rng = np.random.default_rng(5)
    work = np.float64 if references.signals.dtype == np.float64 else np.float32
    return [Powers(rng.normal(1, 1, (references.n_points, references.n_views)).astype(work)), Probabilities()]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_views", [1, 2, 5])
@pytest.mark.parametrize(("n_models", "pairs"), [(8, True), (70, True), (8, False), (7, False), (67, False)])
@pytest.mark.parametrize("jump", [False, True])
def test_sums_match_a_loop_over_models(make_references, side_of, dtype, n_views, n_models, pairs, jump):
    references = make_references(n_models, 5, n_views, dtype=dtype, pairs=pairs, jump=jump)
    assert references.paired == pairs
    for feature in features_for(references):
        assert_sums_match_loops(sum_over(references, feature), references, feature, side_of, TOLERANCE[dtype])


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("cells", [1, 6, 20, 22])
@pytest.mark.parametrize("rows", [2, 6, 12, 126])
def test_block_and_flush_boundaries_do_not_matter(make_references, side_of, monkeypatch, pairs, cells, rows):
    monkeypatch.setattr(module, "CELLS_PER_BLOCK", cells)
    monkeypatch.setattr(module, "ROWS_PER_FLUSH", rows)
    references = make_references(12 if pairs else 13, 11, 2, pairs=pairs)
    for feature in features_for(references):
        assert_sums_match_loops(sum_over(references, feature), references, feature, side_of, 1e-14)


def test_counts_do_not_overflow_a_byte(make_references, monkeypatch):
    monkeypatch.setattr(module, "ROWS_PER_FLUSH", 126)
    references = References(np.zeros((300, 3, 1)), np.arange(300), np.ones((300, 3), bool))
    sums = sum_over(references, Probabilities())
    assert sums.n_in.tolist() == [300] * 3
    assert sums.n_out.tolist() == [0] * 3


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("poison", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_masked_out_never_leaks(make_references, pairs, dtype, poison):
    references = make_references(6, 9, 3, dtype=dtype, pairs=pairs)
    clean = references.signals.copy()
    for inside in (True, False):
        values = clean.copy()
        values[references.in_mask != inside] = poison
        parts = module._part_by_membership(values, references.in_mask, pairs)
        part = parts[0] if inside else parts[1]
        assert np.isfinite(part).all()
        expected = np.where((references.in_mask == inside)[:, :, None], clean, 0)
        # A pair's two rows become one: the IN (or OUT) value of the two.
        expected = expected[0::2] + expected[1::2] if pairs else expected
        assert part.tobytes() == np.where(expected == 0, np.zeros((), dtype), expected).tobytes()


@pytest.mark.parametrize("pairs", [True, False])
def test_sums_of_one_side_do_not_depend_on_the_other(make_references, pairs):
    references = make_references(10, 9, 2, dtype=np.float32, pairs=pairs)
    feature = Powers(np.zeros((9, 2), np.float32))
    clean = sum_over(references, feature)
    for inside in (True, False):
        signals = references.signals.copy()
        signals[references.in_mask != inside] = np.nan
        sums = sum_over(References(signals, references.rows, references.in_mask), feature)
        kept, before = (sums.inside, clean.inside) if inside else (sums.outside, clean.outside)
        assert kept.tobytes() == before.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_probability_sums_keep_both_tails(dtype):
    levels = [-200.0, -30.0, -1.0, 1.0, 30.0, 200.0]
    signals = np.repeat(np.array(levels, dtype)[None, :, None], 3, axis=0)
    references = References(signals, np.arange(3), np.ones((3, 6), bool))
    p, rest = sum_over(references, Probabilities()).inside[:, :, 0]
    exact = [3 * logistic(x) for x in levels]
    if dtype != np.float64:
        exact[0] = 0.0  # e^-200 underflows in float32
    tolerance = 3e-15 if dtype == np.float64 else 3e-7
    assert p == pytest.approx(exact, rel=tolerance, abs=0)
    assert rest == pytest.approx(exact[::-1], rel=tolerance, abs=0)


PARTS = {
    "pairs": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]],
    "single models": [[0], [1], [2], [3], [4], [5], [6]],
    "mixed": [[0, 1], [2], [3, 4], [5, 6, 7], [8]],
    "two": [[0, 1, 2], [3, 4]],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("every", [1, 2])
def test_leave_one_out_equals_summing_anew(make_references, dtype, parts, every):
    n_models = 1 + max(max(part) for part in parts)
    models = make_references(n_models, 7, 2, dtype=dtype, pairs=n_models == 10, jump=True)
    arrays = [np.array(part) for part in parts]
    leaves = list(range(0, len(parts), every))
    seen = []
    for leaf, found in leave_one_out(models, arrays, leaves, features_for(models)):
        seen.append(leaf)
        kept = np.concatenate([part for i, part in enumerate(arrays) if i != leaf])
        rest = References(models.signals, models.rows[kept], models.in_mask[kept])
        for sums, feature in zip(found, features_for(models), strict=True):
            anew = sum_over(rest, feature)
            assert sums.n_in.tolist() == anew.n_in.tolist()
            assert sums.n_out.tolist() == anew.n_out.tolist()
            # The second sum (of squares, or of 1 - p) bounds what rounding may do to the first.
            size = TOLERANCE[dtype] * 10 * len(kept)
            assert sums.inside == pytest.approx(anew.inside, rel=size, abs=size)
            assert sums.outside == pytest.approx(anew.outside, rel=size, abs=size)
    assert sorted(seen) == leaves


@pytest.mark.parametrize("pairs", [True, False])
def test_leave_one_out_is_blind_to_what_is_left_out(make_references, pairs):
    parts = [np.array([2 * k, 2 * k + 1]) for k in range(5)]
    models = make_references(10, 7, 2, dtype=np.float32, pairs=pairs)
    before = dict(leave_one_out(models, parts, range(5), features_for(models)))
    for left_out in range(5):
        signals, in_mask = models.signals.copy(), models.in_mask.copy()
        signals[parts[left_out]] = 50.0
        in_mask[parts[left_out]] ^= np.random.default_rng(1).random((2, 7)) < 0.5
        changed = References(signals, models.rows, in_mask)
        after = dict(leave_one_out(changed, parts, range(5), features_for(models)))
        for a, b in zip(before[left_out], after[left_out], strict=True):
            for name in ("n_in", "n_out", "inside", "outside"):
                assert getattr(a, name).tobytes() == getattr(b, name).tobytes()
        other = (left_out + 1) % 5
        assert before[other][0].inside.tobytes() != after[other][0].inside.tobytes()


def test_adding_to_a_copy_leaves_the_sums_alone(make_references):
    references = make_references()
    sums = sum_over(references, Probabilities())
    before = sums.inside.copy()
    twice = sums.copy()
    twice.add(references, Probabilities())
    assert np.array_equal(sums.inside, before)
    assert twice.inside == pytest.approx(2 * before)
    assert twice.n_in.tolist() == (2 * sums.n_in).tolist()
    assert Sums.zeros(3, 2).outside.shape == (2, 3, 2)


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [2, 3], [0, 2, 1, 3], [3, 2, 1, 0], [0, 3, 1, 2], [1, 3], [2]])
def test_signals_come_in_the_order_of_the_rows(rows):
    signals = np.arange(4 * 5 * 2, dtype=np.float32).reshape(4, 5, 2)
    references = References(signals, np.array(rows), np.zeros((len(rows), 5), bool))
    found = references.conf(slice(None), slice(1, 4))
    assert np.array_equal(found, signals[rows, 1:4])
    assert np.shares_memory(found, signals) == (rows == list(range(rows[0], rows[0] + len(rows))))
    assert np.array_equal(references.conf(slice(0, 1), slice(None)), signals[rows[:1]])


@pytest.mark.parametrize(
    ("in_mask", "paired"),
    [
        ([[1, 0], [0, 1]], True),
        ([[1, 0], [0, 1], [0, 0], [1, 1]], True),
        ([[1, 0], [0, 1], [1, 0]], False),
        ([[1, 0], [0, 1], [0, 0], [1, 0]], False),
        ([[1, 0], [1, 1], [0, 1], [0, 0]], False),
    ],
)
def test_pairs_are_recognised(in_mask, paired):
    mask = np.array(in_mask, bool)
    assert References(np.zeros((len(mask), 2, 1)), np.arange(len(mask)), mask).paired is paired


@pytest.mark.parametrize("cells", [1, 15, 16, 17, 1000])
def test_blocks_cover_every_point_once(make_references, cells):
    references = make_references(8, 11, 2, dtype=np.float16, jump=True)
    whole = references.signals[references.rows]
    seen = []
    for points, conf, in_mask in references.blocks(cells):
        assert conf.dtype == np.float64
        assert np.array_equal(conf, whole[:, points])
        assert np.array_equal(in_mask, references.in_mask[:, points])
        assert conf.shape[1] == 1 or conf.size <= cells
        seen += range(points.start, points.stop)
    assert seen == list(range(11))
    wanted = np.array([9, 2, 5, 3])
    found = list(references.at(wanted, cells))
    assert np.concatenate([points for points, _, _ in found]).tolist() == wanted.tolist()
    assert np.array_equal(np.concatenate([conf for _, conf, _ in found], axis=1), whole[:, wanted])
    assert np.array_equal(np.concatenate([mask for _, _, mask in found], axis=1), references.in_mask[:, wanted])
    assert list(references.at(np.array([], np.intp))) == []


# As many references of every point ------------------------------------------------------------------------------------


def unbalanced(n_models=9, n_points=40, n_views=2, seed=0):
    """Return references with at least three IN and three OUT of each point; every signal is there once."""
    rng = np.random.default_rng(seed)
    in_mask = rng.random((n_models, n_points)) < 0.5
    in_mask[:6] = [[True], [False]] * 3
    in_mask[:6] = rng.permuted(in_mask[:6], axis=0)
    signals = rng.permutation((n_models + 2) * n_points * n_views).reshape(n_models + 2, n_points, n_views)
    return References(signals.astype(np.float32), rng.permutation(n_models + 2)[:n_models], in_mask)


def test_counts_are_those_of_a_loop():
    references = unbalanced(200, 31)
    assert references.n_in.tolist() == [sum(map(bool, references.in_mask[:, point])) for point in range(31)]


@pytest.mark.parametrize("most", [None, 4, 50])
@pytest.mark.parametrize("cells", [1, 60, 1 << 17])
def test_every_point_keeps_as_many_of_its_own_references(monkeypatch, cells, most):
    """Against a loop over points: what is kept are signals of the point, with the membership they had."""
    monkeypatch.setattr(module, "CELLS_IN_MEMORY", cells)
    references = unbalanced()
    even = references.balanced(3, 2, np.random.default_rng(1), most)
    assert len(even) == min(most or 5, 5)
    assert even.signals.shape == (len(even), 40, 2)
    assert even.signals.dtype == np.float32
    changed = 0
    for point in range(40):
        member_of = {
            tuple(references.signals[row, point]): bool(member)
            for row, member in zip(references.rows, references.in_mask[:, point], strict=True)
        }
        kept = [tuple(even.signals[row, point]) for row in even.rows]
        assert len(set(kept)) == len(even)
        assert [member_of[signal] for signal in kept] == even.in_mask[:, point].tolist()
        if most != 4:
            assert even.in_mask[:, point].sum() == 3
        for i, signal in enumerate(kept):  # reference i is model i, but where that was dropped
            own = tuple(references.signals[references.rows[i], point])
            changed += signal != own
            assert signal == own or own not in kept
    assert 0 < changed < 40 * len(even)


def test_each_reference_is_dropped_as_often_as_any_other_of_its_side():
    in_mask = np.array([True, False, True, True, False, False, True])[:, None]
    references = References(np.arange(7.0)[:, None, None].repeat(4000, axis=1), np.arange(7), in_mask.repeat(4000, 1))
    even = references.balanced(3, 1, np.random.default_rng(0))
    often = np.bincount(even.signals.astype(int).ravel(), minlength=7) / 4000
    expected = np.where(in_mask[:, 0], 3 / 4, 1 / 3)
    assert np.abs(often - expected).max() < 5 * np.sqrt(0.25 / 4000)


def test_balanced_references_leave_the_others_alone():
    references = unbalanced()
    before = references.signals.copy(), references.in_mask.copy()
    balanced = references.balanced(2, 2, np.random.default_rng(0))
    assert not np.shares_memory(balanced.signals, references.signals)
    assert not np.shares_memory(balanced.in_mask, references.in_mask)
    assert np.array_equal(references.signals, before[0])
    assert np.array_equal(references.in_mask, before[1])
