"""Trends against their definitions: hat functions, weighted means and least squares, written as loops."""

from __future__ import annotations

import numpy as np
import pytest

from plmia.attacks.empirical_bayes.model import MIN_EIGENVALUE, POINTS_PER_KNOT, Hats, Knots, solve_symmetric


def hat(knots, j, c):
    """Weight of knot j for a point at c: 1 at the knot, 0 at its neighbours, level beyond the outer ones."""
    c = min(max(c, knots[0]), knots[-1])
    others = [abs(c - knots[j]) / abs(knots[i] - knots[j]) for i in (j - 1, j + 1) if 0 <= i < len(knots)]
    side = [i for i in (j - 1, j + 1) if 0 <= i < len(knots)]
    towards = [share for share, i in zip(others, side, strict=True) if (c - knots[j]) * (knots[i] - knots[j]) > 0]
    return max(0.0, 1.0 - towards[0]) if towards else float(c == knots[j])


@pytest.fixture
def points():
    rng = np.random.default_rng(0)
    knots = Knots(np.array([-1.0, 0.5, 1.0, 4.0]), -3.0, 6.0)
    return knots, rng.uniform(-3, 6, 60), rng.normal(size=(60, 2)), rng.uniform(0, 2, 60)


def weights_of(knots, covariate):
    return np.array([[hat(knots.at, j, c) for c in covariate] for j in range(len(knots))])


def test_sums_and_means_weigh_by_hats(points):
    knots, c, y, w = points
    hats, exact = knots.hats(c), weights_of(knots, c)
    assert exact.sum(axis=0) == pytest.approx(np.ones(60))  # the hats share every point out
    assert hats.sums(y) == pytest.approx(exact @ y)
    assert hats.means(y, w) == pytest.approx((exact * w) @ y / (exact @ w)[:, None])


def test_blend_interpolates(points):
    knots, c, _, _ = points
    values = np.arange(8.0).reshape(4, 2) ** 2
    expected = [[np.interp(x, knots.at, values[:, k]) for k in range(2)] for x in c]
    assert knots.hats(c).blend(values) == pytest.approx(np.array(expected))


def test_lines_are_least_squares_around_each_knot(points):
    knots, c, y, _ = points
    features = np.stack([np.ones(60), c, np.sin(c)], axis=1)
    found = knots.hats(c).lines(features, y)
    for j, weight in enumerate(weights_of(knots, c)):
        root = np.sqrt(weight)[:, None]
        expected = np.linalg.lstsq(features * root, y * root, rcond=None)[0]
        assert found[j] == pytest.approx(expected.T, rel=1e-6, abs=1e-8)


def test_a_feature_that_does_not_vary_does_no_harm(points):
    knots, c, y, _ = points
    features = np.stack([np.ones(60), np.zeros(60)], axis=1)
    lines = knots.hats(c).lines(features, y)
    assert np.isfinite(lines).all()
    assert lines[:, :, 0] == pytest.approx(knots.hats(c).means(y, np.ones(60)))


def test_where_no_weight_is_the_mean_of_all_stands_in(points):
    knots, c, y, _ = points
    w = (c > 1.0).astype(float)  # nothing for the first knot
    means = knots.hats(c).means(y, w)
    assert means[0] == pytest.approx(y[c > 1.0].mean(axis=0))


def test_one_knot_is_a_constant():
    c, y = np.arange(5.0), np.arange(10.0).reshape(5, 2)
    hats = Knots(np.array([2.0]), 0.0, 4.0).hats(c)
    assert hats.means(y, np.ones(5)) == pytest.approx(y.mean(axis=0)[None])
    assert hats.blend(np.array([[3.0, 4.0]])).tolist() == [[3.0, 4.0]] * 5
    assert isinstance(hats, Hats)


@pytest.mark.parametrize(("n", "expected"), [(1, 1), (50, 1), (99, 1), (100, 2), (300, 6), (10_000, 8)])
def test_knots_are_as_many_as_points_allow(n, expected):
    knots = Knots.place(np.random.default_rng(1).normal(size=n))
    assert len(knots) == expected
    assert (np.diff(knots.at) > 0).all()
    assert expected == min(max(n // POINTS_PER_KNOT, 1), 8)


@pytest.mark.parametrize(("n", "expected"), [(1, 1), (50, 2), (102, 3), (250, 5), (600, 8), (10_000, 8)])
def test_offline_there_are_more_knots_for_few_points(n, expected):
    assert len(Knots.place(np.random.default_rng(1).normal(size=n), mode="offline")) == expected
    assert len(Knots.place(np.arange(600.0), 4, "offline")) == 4


def test_knots_stand_at_quantiles_and_ties_are_one():
    knots = Knots.place(np.arange(1200.0), most=4)
    assert knots.at == pytest.approx([149.875, 449.625, 749.375, 1049.125])
    assert len(Knots.place(np.repeat(7.0, 5000))) == 1


def test_beyond_the_points_nothing_is_extrapolated():
    knots = Knots.place(np.linspace(-2, 3, 1200))
    assert knots.within(np.array([-50.0, 0.0, 50.0])).tolist() == [-2.0, 0.0, 3.0]
    hats = knots.hats(np.array([-50.0, 50.0]))
    values = np.arange(len(knots), dtype=float)[:, None]
    assert hats.blend(values)[:, 0].tolist() == [0.0, len(knots) - 1.0]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_symmetric_equations_are_solved_as_by_the_pseudo_inverse(n):
    """The second matrix has one feature that does not vary, the last is 0."""
    rng = np.random.default_rng(n)
    root = rng.normal(size=(4, n, 10))
    root[1, -1] = root[1, 0]
    root[3] = 0.0
    gram, moments = root @ root.transpose(0, 2, 1), rng.normal(size=(4, n, 2))
    expected = np.linalg.pinv(gram, rcond=MIN_EIGENVALUE, hermitian=True) @ moments
    assert solve_symmetric(gram, moments) == pytest.approx(expected)
    assert not solve_symmetric(gram, moments)[3].any()
