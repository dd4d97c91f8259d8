"""Closed forms against literal formulas, high-precision arithmetic and their own limits."""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist

import mpmath as mp
import numpy as np
import pytest

from plmia.attacks import theory
from plmia.attacks.theory import Hypothesis, NormalLaw
from plmia.errors import PlmiaError

H0, H1 = Hypothesis.H0, Hypothesis.H1
STANDARD = NormalDist()
ETAS = np.array([-1.5, 0.0, 0.3, 1.0, 4.0])
RHOS = np.array([0.3, 0.9, 1.0, 1.7])


def expectation(function):
    """Mean of ``function(W)`` by Gauss-Hermite quadrature, exact for polynomials."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    return (function(nodes) * weights).sum() / weights.sum()


def exact_tail(c, eta, rho, given):
    """P(GLR > c) in 60 digits, from the roots of the quadratic as a naive reader would write them."""
    with mp.workdps(60):
        c, eta, rho = mp.mpf(c), mp.mpf(eta), mp.mpf(rho)
        mean, std = (eta, rho) if given is H1 else (mp.mpf(0), mp.mpf(1))

        def below(w):
            return mp.ncdf((w - mean) / std)

        a, b = (1 - 1 / rho**2) / 2, eta / rho**2
        k = -mp.log(rho) - eta**2 / (2 * rho**2) - c
        if a == 0:
            return 1 - below(-k / b) if b > 0 else below(-k / b)
        discriminant = b**2 - 4 * a * k
        if discriminant < 0:
            return mp.mpf(0) if a < 0 else mp.mpf(1)
        low, high = sorted((-b + sign * mp.sqrt(discriminant)) / (2 * a) for sign in (-1, 1))
        inside = below(high) - below(low)
        return inside if a < 0 else 1 - inside


def exact_tpr(alpha, eta, rho):
    """Power at FPR alpha in 60 digits: bisects the half-width of the level set about its centre."""
    with mp.workdps(60):
        alpha, eta, rho = mp.mpf(alpha), mp.mpf(eta), mp.mpf(rho)
        centre, contracts = eta / (1 - rho**2), rho < 1

        def mass(h, mean, std):
            inside = mp.ncdf((centre + h - mean) / std) - mp.ncdf((centre - h - mean) / std)
            return inside if contracts else 1 - inside

        low, high = mp.mpf(0), abs(centre) + 40
        for _ in range(200):
            h = (low + high) / 2
            if (mass(h, 0, 1) < alpha) == contracts:
                low = h
            else:
                high = h
        return mass(high, eta, rho)


# --- lem:logbf


@pytest.mark.parametrize("given", list(Hypothesis))
def test_glr_is_the_log_ratio_of_the_two_densities(given):
    rng = np.random.default_rng(0)
    for _ in range(50):
        mu_out, sigma_out, W = rng.normal(3), rng.uniform(0.2, 3), rng.normal()
        eta, rho = rng.normal(), rng.uniform(0.2, 2)
        inside = NormalDist(mu_out + eta * sigma_out, rho * sigma_out)
        outside = NormalDist(mu_out, sigma_out)
        source = inside if given is H1 else outside
        conf = source.mean + source.stdev * W
        naive = math.log(inside.pdf(conf)) - math.log(outside.pdf(conf))
        assert theory.glr(W, eta, rho, given) == pytest.approx(naive, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("given", list(Hypothesis))
@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("eta", ETAS)
def test_glr_mean_is_the_mean_of_glr(eta, rho, given):
    mean = expectation(lambda W: theory.glr(W, eta, rho, given))
    assert theory.glr_mean(eta, rho, given) == pytest.approx(mean, rel=1e-12, abs=1e-12)


def test_glr_mean_separation_is_the_difference_of_the_means():
    eta, rho = ETAS[:, None], RHOS
    difference = theory.glr_mean(eta, rho, H1) - theory.glr_mean(eta, rho, H0)
    np.testing.assert_allclose(theory.glr_mean_separation(eta, rho), difference, rtol=1e-12, atol=1e-12)


def test_glr_mean_separation_grows_as_the_inverse_square_of_rho():
    rho = np.array([1e-2, 1e-3, 1e-4])
    scaled = theory.glr_mean_separation(2.0, rho) * rho**2
    np.testing.assert_allclose(scaled, (1 + 2.0**2) / 2, rtol=1e-3)
    assert theory.glr_mean_separation(2.0, 0.9) > theory.glr_mean_separation(2.0, 1.0) == pytest.approx(4.0)


@pytest.mark.parametrize(("given", "mean"), [(H0, -1.125), (H1, 1.125)])
def test_glr_law_at_rho_one(given, mean):
    for eta in (1.5, -1.5):
        law = theory.glr_law(eta, given)
        assert (float(law.mean), float(law.std)) == (mean, 1.5)
    np.testing.assert_allclose(law.tail([-1.0, 0.7]), theory.glr_tail([-1.0, 0.7], 1.5, 1.0, given), rtol=1e-13)


@pytest.mark.parametrize("given", list(Hypothesis))
@pytest.mark.parametrize("c", [-30.0, -2.0, -0.1, 0.05, 0.6, 3.0])
def test_glr_tail_against_high_precision(c, given):
    for rho in (0.2, 0.9, 1 - 1e-9, 1.0, 1 + 1e-9, 2.5):
        for eta in (-1.0, 0.3, 2.0):
            expected = float(exact_tail(c, eta, rho, given))
            measured = float(theory.glr_tail(c, eta, rho, given))
            assert measured == pytest.approx(expected, rel=1e-7, abs=1e-300), (eta, rho)


def test_glr_tail_outside_the_range_of_the_ratio():
    # For eta = 1 the ratio ends at -log(rho) + 1 / (2 (1 - rho^2)): a maximum if rho < 1, else a minimum.
    for given in Hypothesis:
        peak = -math.log(0.8) + 1 / (2 * (1 - 0.8**2))
        assert theory.glr_tail(peak + 1e-6, 1.0, 0.8, given) == 0.0
        assert theory.glr_tail(peak - 1e-6, 1.0, 0.8, given) > 0.0
        bottom = -math.log(1.5) + 1 / (2 * (1 - 1.5**2))
        assert theory.glr_tail(bottom - 1e-6, 1.0, 1.5, given) == pytest.approx(1.0, abs=1e-15)
        assert theory.glr_tail(bottom + 1e-6, 1.0, 1.5, given) < 1.0
        np.testing.assert_array_equal(theory.glr_tail([-1e-9, 0.0, 1e-9], 0.0, 1.0, given), [1.0, 0.0, 0.0])


@pytest.mark.parametrize("alpha", [1e-12, 1e-6, 1e-3, 0.2, 0.5, 0.99])
@pytest.mark.parametrize("rho", [0.1, 0.7, 0.99, 1 - 1e-6, 1 + 1e-6, 1.3, 4.0])
def test_glr_tpr_against_high_precision(alpha, rho):
    for eta in (0.0, 0.3, 1.0, 5.0):
        expected = float(exact_tpr(alpha, eta, rho))
        assert float(theory.glr_tpr(alpha, eta, rho)) == pytest.approx(expected, rel=1e-10, abs=0)


def test_glr_tpr_limits():
    alpha = np.array([1e-8, 0.01, 0.3])[:, None]
    eta = np.array([0.0, 0.5, 3.0])
    at_one = theory.gaussian_tpr(alpha, eta)
    np.testing.assert_allclose(theory.glr_tpr(alpha, eta), at_one, rtol=1e-12)
    for rho in (1 - 1e-9, 1 + 1e-9):
        np.testing.assert_allclose(theory.glr_tpr(alpha, eta, rho), at_one, rtol=1e-6)
    np.testing.assert_array_equal(theory.glr_tpr(alpha, -eta, 0.8), theory.glr_tpr(alpha, eta, 0.8))
    # Without a shift the rejection region is an interval about 0, and a small one gains a factor 1 / rho.
    half = STANDARD.inv_cdf((1 + 0.01) / 2)
    assert theory.glr_tpr(0.01, 0.0, 0.4) == pytest.approx(2 * STANDARD.cdf(half / 0.4) - 1, rel=1e-12)


def test_glr_tpr_is_at_least_that_of_a_threshold_on_the_confidence():
    alpha, eta = np.array([1e-4, 0.01, 0.1])[:, None, None], np.array([0.2, 1.0, 3.0])[:, None]
    rho = np.array([0.5, 0.9, 1.2])
    one_sided = NormalLaw(eta, rho).tail(-_quantile(alpha))
    power = theory.glr_tpr(alpha, eta, rho)
    assert (power >= one_sided * (1 - 1e-12)).all()
    # Strictly, as thm:main (II) says; with a large shift the far edge holds too little mass to be seen.
    assert (power > 1.001 * one_sided)[:, 0, :2].all()
    assert (power > alpha).all()
    assert (np.diff(theory.glr_tpr(np.linspace(0.01, 0.99, 99), 0.7, 0.8)) > 0).all()


def _quantile(alpha):
    return np.vectorize(STANDARD.inv_cdf)(alpha)


@pytest.mark.parametrize("rho", [0.5, 0.95, 1.0, 1.4])
def test_glr_threshold_has_the_false_positive_rate_it_is_asked_for(rho):
    alpha = np.array([1e-3, 0.05, 0.6])[:, None]
    eta = np.array([-2.0, 0.4, 1.0])
    c = theory.glr_threshold(alpha, eta, rho)
    np.testing.assert_allclose(theory.glr_tail(c, eta, rho, H0), np.broadcast_to(alpha, (3, 3)), rtol=1e-7)
    np.testing.assert_allclose(theory.glr_tail(c, eta, rho, H1), theory.glr_tpr(alpha, eta, rho), rtol=1e-7)


def test_population_of_equal_points_is_one_point():
    alpha = np.array([[1e-6, 0.01], [0.2, 0.9]])
    for rho in (0.6, 1.0, 1.5):
        population = theory.glr_population_tpr(alpha, np.full(3, 1.2), rho)
        assert population.shape == alpha.shape
        np.testing.assert_allclose(population, theory.glr_tpr(alpha, 1.2, rho), rtol=1e-6)


def test_population_of_two_kinds_of_points_by_a_naive_search():
    eta, rho, alpha = np.array([0.5, 2.0]), np.array([0.9, 0.7]), 0.03

    def rate(c, given):
        return sum(float(exact_tail(c, e, r, given)) for e, r in zip(eta, rho, strict=True)) / 2

    low, high = -20.0, 20.0
    for _ in range(60):
        c = (low + high) / 2
        low, high = (c, high) if rate(c, H0) > alpha else (low, c)
    assert theory.glr_population_tpr(alpha, eta, rho) == pytest.approx(rate(high, H1), rel=1e-9)


def test_population_with_points_that_leak_nothing():
    assert theory.glr_population_tpr(0.2, 0.0, 1.0) == pytest.approx(0.2)
    # Two points of three give a ratio of 0. A third of P(N(-2, 2) > 0) = Phi(-1) comes before them.
    first = STANDARD.cdf(-1) / 3
    assert first < 0.3
    share = (0.3 - first) / (2 / 3)
    expected = STANDARD.cdf(1) / 3 + share * 2 / 3
    assert theory.glr_population_tpr(0.3, [0.0, 0.0, 2.0]) == pytest.approx(expected, rel=1e-9)


# --- lem:rmia and lem:pairwise


def test_variation_coefficient():
    mu, sigma = np.array([-2.0, 0.0, 3.0]), 1.7
    np.testing.assert_allclose(theory.variation_coefficient(mu, sigma), (1 - 1 / (1 + np.exp(-mu))) * sigma)
    np.testing.assert_allclose(theory.variation_coefficient([-800.0, 700.0], 2.0), [2.0, 2 * math.exp(-700)])


def test_blr_law_is_the_first_order_form():
    eta, xi, rho = 1.3, 0.4, 0.6
    members, others = theory.blr_law(eta, xi, rho, H1), theory.blr_law(eta, xi, rho, H0)
    assert (float(members.mean), float(members.std)) == pytest.approx((eta * xi / 2, rho * xi))
    assert (float(others.mean), float(others.std)) == pytest.approx((-eta * xi / 2, xi))
    assert theory.blr_mean_separation(eta, xi) == pytest.approx(members.mean - others.mean)


def test_pairwise_difference_laws_are_the_four_of_the_paper():
    eq, ez, xq, xz = 0.8, 1.5, 0.3, 0.7
    cases = [
        (theory.glr_difference_law(eq, ez, H1), (eq**2 + ez**2) / 2, eq**2 + ez**2),
        (theory.glr_difference_law(eq, ez, H0), (ez**2 - eq**2) / 2, eq**2 + ez**2),
        (theory.blr_difference_law(eq, xq, ez, xz, H1), (eq * xq + ez * xz) / 2, xq**2 + xz**2),
        (theory.blr_difference_law(eq, xq, ez, xz, H0), (ez * xz - eq * xq) / 2, xq**2 + xz**2),
    ]
    for law, mean, variance in cases:
        assert float(law.mean) == pytest.approx(mean)
        assert float(law.std) ** 2 == pytest.approx(variance)


def test_normal_law_tail_and_immutability():
    law = NormalLaw(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    np.testing.assert_allclose(law.tail(1.5), [1 - STANDARD.cdf(1.5), 1 - STANDARD.cdf(0.25)], rtol=1e-12)
    with pytest.raises(dataclasses.FrozenInstanceError):
        law.mean = np.zeros(2)


# --- thm:unified_tpr and thm:main


def test_gaussian_tpr_is_the_literal_formula():
    for alpha in (1e-4, 0.1, 0.7):
        for kappa in (-1.0, 0.0, 2.5):
            naive = STANDARD.cdf(kappa - STANDARD.inv_cdf(1 - alpha))
            assert theory.gaussian_tpr(alpha, kappa) == pytest.approx(naive, rel=1e-9)


def test_cauchy_threshold_and_pairwise_level_keep_their_digits():
    for alpha in (1e-15, 1e-6, 0.2, 0.3, 0.5, 0.8):
        with mp.workdps(50):
            tau = mp.tan(mp.pi * (mp.mpf("0.5") - mp.mpf(alpha)))
            levels = {n: 0.5 - mp.atan(n * tau) / mp.pi for n in (1, 7, 10**6)}
        assert theory.cauchy_threshold(alpha) == pytest.approx(float(tau), rel=1e-13, abs=1e-15)
        for n, level in levels.items():
            assert theory.pairwise_level(alpha, n) == pytest.approx(float(level), rel=1e-9, abs=0)
    assert theory.pairwise_level(0.037, 1) == pytest.approx(0.037)
    assert theory.pairwise_level(1e-4, 5000) == pytest.approx(1e-4 / 5000, rel=1e-6, abs=0)


def test_small_p_probability_for_equal_shifts():
    eta, level = 1.4, 1e-5
    r = theory.small_p_probability(level, theory.glr_difference_law(eta, eta, H1), math.sqrt(2) * eta)
    assert r == pytest.approx(STANDARD.cdf(eta / math.sqrt(2) + STANDARD.inv_cdf(level)), rel=1e-9)
    # A p-value of a non-member with the same shift is uniform.
    null = theory.small_p_probability(level, theory.glr_difference_law(eta, eta, H0), math.sqrt(2) * eta)
    assert null == pytest.approx(level, rel=1e-9)


def test_pl_mia_tpr_is_the_product_and_keeps_its_digits():
    assert theory.pl_mia_tpr(0.3, 4) == pytest.approx(1 - 0.7**4)
    np.testing.assert_array_equal(theory.pl_mia_tpr([0.0, 1.0], 9), [0.0, 1.0])
    assert theory.pl_mia_tpr(1e-18, 1000) == pytest.approx(1e-15, rel=1e-12, abs=0)  # the literal form gives 0


def test_pl_mia_tpr_tends_to_one_with_a_growing_population():
    # The implausible consequence of the product: the power of a query would depend on |Z| without bound.
    n = np.array([1e3, 1e6, 1e12, 1e30, 1e60])
    law = theory.glr_difference_law(1.0, 1.0, H1)
    power = theory.pl_mia_tpr(theory.small_p_probability(theory.pairwise_level(0.01, n), law, math.sqrt(2)), n)
    assert (np.diff(power) > 0).all()
    assert power[0] < 0.2
    assert power[-1] > 0.99


def test_shared_population_tpr_against_high_precision_integration():
    for alpha in (0.3, 0.01, 1e-6):
        x = -STANDARD.inv_cdf(float(theory.shared_population_tpr(alpha, 0.0)))

        def integrand(v, x=x):
            return mp.cot(mp.pi * mp.ncdf(-(x - v) / mp.sqrt(2))) * mp.npdf(v)

        with mp.workdps(30):
            score = mp.quad(integrand, mp.linspace(-x - 16, 16, 17))
        assert float(score) == pytest.approx(float(theory.cauchy_threshold(alpha)), rel=1e-8)


def test_shared_population_tpr_limits():
    ratio = theory.shared_population_tpr([1e-2, 1e-6, 1e-100, 1e-300], 0.0) / [1e-2, 1e-6, 1e-100, 1e-300]
    assert (np.diff(ratio) > 0).all()
    assert ratio[-1] == pytest.approx(2.0, abs=2e-3)
    assert theory.shared_population_tpr(0.5, 0.0) == pytest.approx(0.5)
    upper, lower = theory.shared_population_tpr([0.1, 0.9], 0.0)
    assert upper + lower == pytest.approx(1.0)
    # More power than the nominal FPR allows, and exactly that of the FPR it really has.
    for kappa in (0.5, 2.0):
        realised = theory.shared_population_tpr(0.01, 0.0)
        assert theory.shared_population_tpr(0.01, kappa) == pytest.approx(theory.gaussian_tpr(realised, kappa))


def test_kappas_against_the_moments_of_a_two_point_xi():
    eta, xi = 1.7, np.array([0.2, 0.8])

    def moments(given):
        law = theory.blr_law(eta, xi, 1.0, given)
        mean = law.mean.mean()
        return mean, (law.std**2 + law.mean**2).mean() - mean**2

    (mean0, var0), (mean1, var1) = moments(H0), moments(H1)
    assert var0 == pytest.approx(var1)
    assert theory.blr_kappa(eta, xi.mean(), xi.std()) == pytest.approx((mean1 - mean0) / math.sqrt(var0))
    assert theory.glr_kappa(eta) == eta == theory.blr_kappa(eta, 0.5, 0.0)
    assert theory.blr_kappa(eta, 0.5, 0.1) < eta


def test_condition_of_part_three_implies_the_order_of_the_formulas():
    r = np.logspace(-6, 0, 61)[:, None]
    tpr_plus = np.linspace(0, 1, 41)
    met = theory.combination_beats_voting(r, 1000, tpr_plus)
    assert (theory.pl_mia_tpr(r, 1000) > tpr_plus)[met].all()
    np.testing.assert_array_equal(met[:, 1:-1], (1000 * r > -np.log(1 - tpr_plus[1:-1])))
    assert not met[:, -1].any()
    assert met[:, 0].all()


# --- shapes and errors

A, B = np.full((2, 1), 0.3), np.full(3, 0.4)


@pytest.mark.parametrize(
    "result",
    [
        theory.glr(A, B, 0.9, H0),
        theory.glr_mean(A, B, H0),
        theory.glr_mean_separation(A, B),
        theory.glr_tail(A, B, 0.9, H1),
        theory.glr_tail(0.1, A, B, H1),
        theory.glr_threshold(A, B),
        theory.glr_tpr(A, 1.0, B),
        theory.variation_coefficient(A, B),
        theory.blr_mean_separation(A, B),
        theory.blr_law(0.4, A, B, H0).std,
        theory.glr_difference_law(A, B, H1).std,
        theory.blr_difference_law(A, 0.2, B, 0.2, H0).mean,
        theory.gaussian_tpr(A, B),
        theory.pairwise_level(A, np.full(3, 10)),
        theory.pl_mia_tpr(A, np.full(3, 10)),
        theory.shared_population_tpr(A, B),
        theory.blr_kappa(A, B, 0.1),
        theory.combination_beats_voting(A, 3, B),
    ],
)
def test_everything_broadcasts(result):
    assert result.shape == (2, 3)
    assert (result == result.ravel()[0]).all()


def test_elements_do_not_disturb_each_other():
    alpha, eta, rho = np.meshgrid([1e-6, 0.1], [0.0, 0.3, 30.0], [0.5, 1 - 1e-9, 1.0, 2.0], indexing="ij")
    together = theory.glr_tpr(alpha, eta, rho)
    for index in np.ndindex(alpha.shape):
        assert together[index] == theory.glr_tpr(alpha[index], eta[index], rho[index])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.glr_tpr(0.0, 1.0), r"alpha is 0, but must be in \(0, 1\): give a fraction"),
        (lambda: theory.glr_tpr([0.1, 1.0], 1.0), r"alpha is 1, but must be in \(0, 1\)"),
        (lambda: theory.cauchy_threshold(math.nan), r"alpha is nan, but must be in \(0, 1\)"),
        (lambda: theory.glr_tpr(0.1, 1.0, 0.0), "rho is 0, but must be finite and above 0: leave out"),
        (lambda: theory.glr(0.0, 1.0, -0.5, H0), "rho is -0.5, but must be finite and above 0"),
        (lambda: theory.glr_mean(1.0, math.nan, H0), "rho is nan, but must be finite and above 0"),
        (lambda: theory.glr_mean(math.inf, 1.0, H0), "eta is inf, but must be finite: leave out"),
        (lambda: theory.glr_tail(math.nan, 1.0, 1.0, H0), "c is nan, but must be finite"),
        (lambda: theory.glr_law([1.0, 0.0], H0), r"abs\(eta\) is 0, but must be finite and above 0"),
        (lambda: theory.glr_population_tpr(0.1, [1.0, math.nan]), "eta is nan, but must be finite"),
        (lambda: theory.variation_coefficient(0.0, 0.0), "sigma_out is 0, but must be finite and above 0"),
        (lambda: theory.blr_law(1.0, -1.0, 1.0, H0), "xi is -1, but must be finite and above 0"),
        (
            lambda: theory.blr_kappa(1.0, 1.0, -0.1),
            "xi_std is -0.1, but must be finite and at least 0: give 0",
        ),
        (lambda: theory.blr_kappa(0.0, 1.0, 0.1), "eta is 0, but must be finite and above 0"),
        (lambda: theory.glr_kappa(-1.0), "eta is -1, but must be finite and above 0"),
        (
            lambda: theory.pairwise_level(0.1, 0),
            "population is 0, but must be 1, 2, 3, ...: give the size of Z",
        ),
        (lambda: theory.pl_mia_tpr(0.1, 2.5), "population is 2.5, but must be 1, 2, 3"),
        (lambda: theory.pl_mia_tpr(0.1, math.inf), "population is inf, but must be 1, 2, 3"),
        (lambda: theory.pl_mia_tpr(1.1, 2), r"r is 1.1, but must be in \[0, 1\]: give a fraction"),
        (lambda: theory.combination_beats_voting(0.1, 2, -0.1), r"tpr_plus is -0.1, but must be in \[0, 1\]"),
        (lambda: theory.gaussian_tpr(0.1, math.nan), "kappa is nan, but must be finite"),
        (lambda: theory.shared_population_tpr(2.0, 0.0), r"alpha is 2, but must be in \(0, 1\)"),
        (
            lambda: theory.small_p_probability(0.0, theory.glr_law(1.0, H0), 1.0),
            r"level is 0, but must be in \(0, 1\)",
        ),
        (
            lambda: theory.small_p_probability(0.1, theory.glr_law(1.0, H0), 0.0),
            "sigma_delta is 0, but must be finite and above 0",
        ),
    ],
)
def test_invalid_parameters_name_value_limit_and_remedy(call, message):
    with pytest.raises(PlmiaError, match=message):
        call()
