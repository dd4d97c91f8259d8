"""The fast Cauchy sum, against sums of 50 digits and against naive loops.

``exact_below=0`` forces the interpolated path at sizes that 50 digits can afford.
"""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from scipy.special import ndtr

from plmia.attacks import cauchy_sum
from plmia.attacks.cauchy_sum import SignedLog, cauchy_mean, cauchy_mean_exact
from plmia.errors import PlmiaError, PopulationError
from plmia.numerics import log_cauchy_kernel

TOLERANCE = 1e-9


def exact_transform(x):
    if abs(x) < 1:
        return mp.tan(mp.pi / 2 * mp.erf(x / mp.sqrt(2)))
    return mp.sign(x) * mp.cot(mp.pi / 2 * mp.erfc(abs(x) / mp.sqrt(2)))


def exact_mean(query, population):
    """Mean of T and mean of |T|, with 50 digits."""
    values, counts = np.unique(population, return_counts=True)
    pairs = zip(values, counts, strict=True)
    terms = [int(c) * exact_transform(mp.mpf(float(query)) - mp.mpf(float(z))) for z, c in pairs]
    return mp.fsum(terms) / len(population), mp.fsum(map(abs, terms)) / len(population)


def assert_close(sign, log_abs, query, population):
    with mp.workdps(50):
        mean, size = exact_mean(query, population)
        if abs(mean) < 1e-6 * size:  # next to the zero of S only an absolute error is meaningful
            got = mp.mpf(float(sign)) * mp.exp(mp.mpf(float(log_abs)))
            assert abs(got - mean) <= 1e-6 * TOLERANCE * size
        else:
            assert sign == mp.sign(mean)
            log_mean = mp.log(abs(mean))
            assert abs(mp.mpf(float(log_abs)) - log_mean) <= TOLERANCE * max(1, abs(log_mean))


def gaussian(rng, n=300):
    return rng.normal(0.0, math.sqrt(0.5), n)


def skewed(rng, n=300):
    z = -rng.gamma(0.35, 1.0, n) + rng.normal(0.0, 0.1, n)
    return z * (20.0 / -z.min())


def zero_of_mean(population):
    low, high = population.min(), population.max()
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if cauchy_mean([middle], population).sign[0] > 0.0 else (middle, high)
    return low


def gaussian_case(rng):
    return rng.normal(0.3, 1.0, 2000), gaussian(rng)


def skewed_case(rng):
    return np.append(rng.uniform(-25.0, 6.0, 1500), rng.normal(0.0, 0.3, 500)), skewed(rng)


def clusters_case(rng):
    z = np.append(gaussian(rng, 150), 300.0 + gaussian(rng, 150))
    return np.concatenate([rng.normal(c, 1.0, 700) for c in (-20.0, 150.0, 300.0)]), z


def lone_point_case(rng):
    # One z, 4 sigma left of all others, is overtaken by them within the range of the queries.
    return rng.uniform(-3.0, 15.0, 2000), np.append(np.full(4000, 4.0), 0.0)


def single_case(rng):
    return np.append(rng.normal(0.0, 3.0, 1990), 0.37 + 10.0 ** -np.arange(1.0, 11.0)), np.array([0.37])


def equal_case(rng):
    return rng.normal(0.0, 3.0, 2000), np.full(300, 0.37)


def far_case(rng):
    return np.append(rng.uniform(-1001.0, -999.0, 1000), rng.uniform(999.0, 1001.0, 1000)), gaussian(rng)


def sparse_far_case(rng):
    return rng.uniform(-1500.0, 1500.0, 2000), skewed(rng)


def ties_case(rng):
    return np.round(rng.normal(0.0, 1.0, 4000), 2), np.round(gaussian(rng), 1)


def zero_case(rng):
    # Most queries are in the stretch where P and N cancel.
    z = gaussian(rng)
    return zero_of_mean(z) + rng.normal(0.0, 1e-2, 2000), z


def narrow_case(rng):
    return 5.0 + rng.normal(0.0, 1e-4, 2000), 5.0 + rng.normal(0.0, 1e-5, 300)


def shifted_case(rng):
    return 1e6 + rng.normal(0.0, 1.0, 2000), 1e6 + gaussian(rng)


def shifted_zero_case(rng):
    # Floats are 1e-10 apart here, so S changes sign between two of them that both have a score well off 0.
    z = 1e6 + gaussian(rng)
    zero = zero_of_mean(z)
    return np.append(zero + rng.normal(0.0, 1e-6, 1000), zero + rng.normal(0.0, 3e-2, 1000)), z


def lone_edge_case(rng):
    # The many points matter least, but still, where their window is about to close.
    return rng.uniform(100.0, 125.0, 3000), np.append(np.full(4000, 0.1), 0.0)


CASES = [
    gaussian_case,
    skewed_case,
    clusters_case,
    lone_point_case,
    single_case,
    equal_case,
    far_case,
    sparse_far_case,
    ties_case,
    zero_case,
    narrow_case,
    shifted_case,
    shifted_zero_case,
    lone_edge_case,
]


@pytest.fixture(params=CASES, ids=lambda case: case.__name__.removesuffix("_case"))
def case(request):
    return request.param(np.random.default_rng(7))


def sample_of(scores):
    """Both ends, the change of sign, and a few at random."""
    order = np.argsort(scores)
    zero = int(np.searchsorted(scores[order], 0.0))
    middle = [min(max(zero + k, 0), scores.size - 1) for k in (-1, 0)]
    return np.unique([*order[[0, -1]], *order[middle], *np.random.default_rng(5).choice(scores.size, 8)])


def test_interpolated_mean_against_50_digits(case):
    queries, population = case
    values = cauchy_mean(queries, population, exact_below=0)
    for i in sample_of(values.asinh()):
        assert_close(values.sign[i], values.log_abs[i], queries[i], population)


def assert_close_to_the_sum(values, queries, population):
    """Far tighter than the promise, so that a loss of digits shows; the promise itself is checked above."""
    differences = queries[:, None] - population
    exact, size = cauchy_mean_exact(differences), cauchy_mean_exact(np.abs(differences))
    condition = np.exp(np.minimum(size.log_abs - exact.log_abs, 100.0))
    clear = condition < 1e10
    error = np.abs(values.log_abs - exact.log_abs)[clear]
    assert clear.sum() >= 0.9 * queries.size
    assert np.array_equal(values.sign[clear], exact.sign[clear])
    assert (error <= 2e-12 * np.maximum(1.0, np.abs(exact.log_abs[clear])) + 4e-15 * condition[clear]).all()


def test_interpolated_mean_against_the_sum_at_every_query(case):
    queries, population = case
    assert_close_to_the_sum(cauchy_mean(queries, population, exact_below=0), queries, population)


def test_score_has_the_strict_order_of_the_queries(case):
    queries, population = case
    for exact_below in (0, 10**9):
        values = cauchy_mean(queries, population, exact_below=exact_below)
        _, first, inverse = np.unique(queries, return_index=True, return_inverse=True)
        scores = values.asinh()
        assert np.isfinite(scores).all()
        assert (np.diff(scores[first]) > 0.0).all()
        assert np.array_equal(scores, scores[first][inverse])  # ties are byte-identical
        assert np.array_equal(values.log_abs, values.log_abs[first][inverse])


@pytest.mark.parametrize("exact_below", [0, 10**9])
def test_order_of_queries_and_population_does_not_matter(exact_below):
    rng = np.random.default_rng(2)
    queries = np.round(rng.normal(0.0, 2.0, 3000), 3)
    population = skewed(rng)
    shuffle = rng.permutation(queries.size)
    values = cauchy_mean(queries, population, exact_below=exact_below)
    again = cauchy_mean(queries[shuffle], rng.permutation(population), exact_below=exact_below)
    assert again.sign.tobytes() == values.sign[shuffle].tobytes()
    assert again.log_abs.tobytes() == values.log_abs[shuffle].tobytes()


@pytest.mark.parametrize("make", [gaussian, skewed])
def test_strict_order_over_a_thousand_sigma(make):
    queries = np.linspace(-1000.0, 1000.0, 2_000_001)
    scores = cauchy_mean(queries, make(np.random.default_rng(4))).asinh()
    assert np.isfinite(scores).all()
    assert (np.diff(scores) > 0.0).all()


def test_strict_order_of_neighbouring_floats():
    centres = np.array([-30.0, -2.0, 0.1, 3.0, 30.0])
    steps = np.arange(-200, 200) * np.spacing(centres)[:, None]
    queries = np.unique(centres[:, None] + steps)
    assert queries.size == steps.size
    for exact_below in (0, 10**9):
        scores = cauchy_mean(queries, gaussian(np.random.default_rng(1)), exact_below=exact_below).asinh()
        assert (np.diff(scores) > 0.0).all()


@pytest.mark.parametrize("make", [gaussian, skewed])
def test_large_input_against_the_sum(make):
    rng = np.random.default_rng(9)
    parts = [rng.normal(0.3, 1.0, 100_000), make(rng, 100_000), rng.uniform(-60.0, 60.0, 20_000)]
    queries, population = np.concatenate(parts), make(rng, 20_000)
    values = cauchy_mean(queries, population)
    some = np.concatenate([rng.choice(100_000, 20), 200_000 + rng.choice(20_000, 40)])
    picked = SignedLog(values.sign[some], values.log_abs[some])
    assert_close_to_the_sum(picked, queries[some], population)


@pytest.mark.parametrize("farthest", [3.0, 60.0, 1000.0])
def test_cells_and_windows_of_the_population_follow_the_kernel(farthest):
    reach = 50.0
    y = np.linspace(-farthest, farthest, 2001)
    window = cauchy_sum._window(y, reach)
    assert (log_cauchy_kernel(y) - log_cauchy_kernel(y - window) >= reach).all()
    assert window.max() <= 2.0 * math.sqrt(reach) + 1e-9
    edges = cauchy_sum._source_edges(window.max(), farthest, reach)
    half_width = 0.5 * np.diff(edges)
    x = y[:, None] - edges[:-1]
    matters = log_cauchy_kernel(y)[:, None] - log_cauchy_kernel(x) <= reach
    assert half_width.max() <= 0.25 + 1e-12
    assert edges[-1] >= window.max()
    assert (np.abs(x) * half_width <= 1.5 + 1e-9)[matters].all()


def test_size_of_the_blocks_does_not_matter(monkeypatch):
    queries, population = gaussian_case(np.random.default_rng(8))
    results = []
    for block in (1 << 17, 100):
        monkeypatch.setattr(cauchy_sum, "_BLOCK", block)
        results += [cauchy_mean(queries, population, exact_below=e).asinh() for e in (0, 10**9)]
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], rtol=TOLERANCE, atol=1e-14)


def test_population_of_more_points_than_one_block(monkeypatch):
    rng = np.random.default_rng(8)
    queries, population = rng.normal(0.0, 1.0, 20), gaussian(rng, 5000)
    want = cauchy_mean_exact(queries[:, None] - population)
    monkeypatch.setattr(cauchy_sum, "_BLOCK", 512)
    np.testing.assert_allclose(cauchy_mean(queries, population).asinh(), want.asinh(), rtol=1e-11)


# --- the sum itself ---------------------------------------------------------------------------------------------


def test_exact_mean_against_the_formula_as_written():
    rng = np.random.default_rng(0)
    x = rng.uniform(-4.0, 4.0, (50, 40))
    values = cauchy_mean_exact(x)
    for row, got in zip(x, values.sign * np.exp(values.log_abs), strict=True):
        naive = math.fsum(math.tan((0.5 - float(ndtr(-v))) * math.pi) for v in row) / row.size
        assert got == pytest.approx(naive, rel=1e-8)


def test_exact_mean_against_50_digits():
    rng = np.random.default_rng(1)
    x = np.vstack([rng.normal(0.0, s, (3, 60)) for s in (1e-6, 1.0, 30.0, 1000.0)])
    values = cauchy_mean_exact(x)
    for row, sign, log_abs in zip(x, *values, strict=True):
        assert_close(sign, log_abs, 0.0, -row)


def test_exact_mean_divides_by_the_count():
    x = np.array([[1.0, 0.0, -3.0, 2.0], [0.5, 0.0, 0.0, -7.0]])
    full, three = cauchy_mean_exact(x), cauchy_mean_exact(x, count=3)
    np.testing.assert_allclose(three.log_abs - full.log_abs, math.log(4 / 3), rtol=1e-13)
    without = [cauchy_mean_exact(row[row != 0.0][None]) for row in x]
    each = cauchy_mean_exact(x, count=[3, 2])
    np.testing.assert_allclose(each.log_abs, [v.log_abs[0] for v in without], rtol=1e-13)
    assert np.array_equal(each.sign, [v.sign[0] for v in without])


def test_no_difference_at_all_is_zero():
    for values in (cauchy_mean_exact(np.zeros((2, 3))), cauchy_mean([0.5], [0.5, 0.5], exact_below=0)):
        assert (values.sign == 0.0).all()
        assert (values.log_abs == -np.inf).all()
        assert (values.asinh() == 0.0).all()
        np.testing.assert_allclose(values.log10_p(), math.log10(0.5), rtol=1e-15)


def test_float32_input_is_summed_in_float64():
    rng = np.random.default_rng(3)
    queries, population = rng.normal(6.0, 1.0, 50).astype(np.float32), gaussian(rng, 40).astype(np.float32)
    values = cauchy_mean(queries, population)
    assert values.log_abs.dtype == np.float64
    want = cauchy_mean(queries.astype(np.float64), population.astype(np.float64))
    assert np.array_equal(values.log_abs, want.log_abs)


def test_leave_one_out_is_a_matter_of_the_count():
    # T(0) = 0: the score of a population point against all is (n - 1) / n of its score against the others.
    z = gaussian(np.random.default_rng(6), 100)
    values = cauchy_mean(z, z)
    for i in (0, 31, 99):
        alone = cauchy_mean(z[[i]], np.delete(z, i))
        assert values.sign[i] == alone.sign[0]
        assert values.log_abs[i] + math.log(100 / 99) == pytest.approx(alone.log_abs[0], abs=1e-11)


# --- edges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exact_below", [0, 10**9])
def test_no_queries_no_scores(exact_below):
    values = cauchy_mean([], [1.0, 2.0], exact_below=exact_below)
    assert isinstance(values, SignedLog)
    assert values.asinh().shape == values.log10_p().shape == (0,)


@pytest.mark.parametrize("exact_below", [0, 10**9])
def test_scores_stay_finite_at_absurd_distances(exact_below):
    queries = np.array([-4e149, -1e100, -1e12, -1e7, -1e3, 0.0, 5e-324, 1e-310, 1e-200, 1e3, 1e7, 1e12, 1e100, 4e149])
    values = cauchy_mean(queries, [-1e-310, 0.0, 0.0, 1e-320], exact_below=exact_below)
    assert np.isfinite(values.asinh()).all()
    assert (np.diff(values.asinh()) > 0.0).all()
    np.testing.assert_allclose(values.log_abs[[0, -1]], 8e298, rtol=1e-12)


def test_queries_beyond_the_reach_of_interpolation():
    # log|S| is 5e23, its spacing 7e7: every cell is full of queries, and no two neighbours fit one polynomial.
    queries = 1e12 + 1e-3 * np.arange(400)
    values = cauchy_mean(np.append(-queries, queries), [0.0, 0.1], exact_below=0)
    np.testing.assert_allclose(values.log_abs, np.append(queries, queries) ** 2 / 2, rtol=1e-12)
    assert np.array_equal(values.sign, np.repeat([-1.0, 1.0], 400))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e151])
def test_unusable_numbers_are_named(bad):
    with pytest.raises(PlmiaError, match=r"queries: .* at index 1,"):
        cauchy_mean([0.0, bad], [0.0])
    with pytest.raises(PlmiaError, match=r"the population: .* at index 0,"):
        cauchy_mean([0.0], [bad, 1.0])
    with pytest.raises(PlmiaError, match=r"differences: .* at index 1, 0,"):
        cauchy_mean_exact([[0.0], [bad]])


def test_an_empty_population_is_an_error():
    with pytest.raises(PopulationError, match="at least 1"):
        cauchy_mean([0.0], [])
    with pytest.raises(PopulationError, match="at least 1"):
        cauchy_mean_exact(np.empty((3, 0)))
    with pytest.raises(PopulationError, match=r"population.*\b0\b"):
        cauchy_mean_exact([[1.0]], count=0)


def test_more_than_one_axis_is_an_error():
    with pytest.raises(PlmiaError, match="one axis"):
        cauchy_mean(np.zeros((2, 2)), [0.0])
