"""Closed forms of the paper's lemmas and theorems, and where simulation contradicts them.

Functions are elementwise and broadcast; scalars give 0-d arrays. The setting is ``ass:gaussian_model``: with
``w = (conf - mu_out) / sigma_out``, a non-member (H0) has ``w = W`` and a member (H1) ``w = eta + rho * W``;
``W`` is standard normal, ``eta`` the normalized mean shift, ``rho = sigma_in / sigma_out``. Labels are those of the
paper's LaTeX source. ``tests/statistical/test_theory_simulation.py`` checks all measured values.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, ndtr, ndtri

from plmia.data.arrays import BoolArray, FloatArray
from plmia.errors import PlmiaError
from plmia.numerics import log_abs_cauchy_transform

_Test = Callable[[FloatArray], BoolArray]

BINARY_BASELINE: Final = 0.5
"""Mean of Score_Binary over non-members (``lem:score``). It needs exchangeability alone: it always holds."""

CAUCHY_BASELINE: Final = 0.0
"""Median of Score_PL over non-members according to ``lem:score``; true for symmetric null statistics only.

At ``rho = 1`` with one ``eta`` the null GLR is Gaussian and a change of sign proves it. Otherwise the null
GLR is skewed to the left: its few very negative population points give every query a tiny p-value, and the
median moves up. Measured share of non-members with a positive score, |Z| = 250 and 2,500: 50 % and 50 %
(``eta = 1``, ``rho = 1``), 61 % and 64 % (``rho = 0.9``), 75 % and 83 % (``rho = 0.7``), 80 % and 90 %
(``rho = 1``, ``eta`` gamma distributed with mean 1 and standard deviation 0.5).
"""

_FAR: Final = 40.0  # a normal tail beyond this underflows
_BISECTIONS: Final = 64
_LEGENDRE: Final = tuple(zip(*np.polynomial.legendre.leggauss(8), strict=True))
_OFFSETS: Final[FloatArray] = np.linspace(-15.0, 15.0, 301)


class Hypothesis(enum.Enum):
    """Whether the query is a non-member (``H0``) or a member (``H1``)."""

    H0 = 0
    H1 = 1


@dataclass(frozen=True, slots=True)
class NormalLaw:
    """Normal distributions, by arrays of means and standard deviations whose shapes broadcast."""

    mean: FloatArray
    std: FloatArray

    def tail(self, x: ArrayLike) -> FloatArray:
        """Probability of a value above ``x``, elementwise."""
        return np.asarray(ndtr((self.mean - np.asarray(x, dtype=np.float64)) / self.std))

    def __sub__(self, other: NormalLaw) -> NormalLaw:
        """Law of the difference of independent variables."""
        return NormalLaw(np.asarray(self.mean - other.mean), np.asarray(np.hypot(self.std, other.std)))


def glr(W: ArrayLike, eta: ArrayLike, rho: ArrayLike, given: Hypothesis) -> FloatArray:
    """Gaussian LR ``log pdf(conf | IN) - log pdf(conf | OUT)`` as a function of ``W`` (``lem:logbf``).

    ``H0`` puts the standardised confidence at ``W``, ``H1`` at ``eta + rho * W``.
    """
    W, eta, rho = _real("W", W), _real("eta", eta), _positive("rho", rho)
    return _log_ratio(W if given is Hypothesis.H0 else eta + rho * W, eta, rho)


def glr_mean(eta: ArrayLike, rho: ArrayLike, given: Hypothesis) -> FloatArray:
    """Mean of the Gaussian LR (``eq:glr_mean_h0``, ``eq:glr_mean_h1``), for any ``rho > 0``."""
    eta, rho = _real("eta", eta), _positive("rho", rho)
    if given is Hypothesis.H1:
        return np.asarray(-np.log(rho) + (rho**2 + eta**2 - 1) / 2)
    return np.asarray(-np.log(rho) + 0.5 - (1 + eta**2) / (2 * rho**2))


def glr_mean_separation(eta: ArrayLike, rho: ArrayLike) -> FloatArray:
    """Mean of the Gaussian LR of a member minus that of a non-member (``eq:delta_mu_lambda``).

    It does not measure power: at ``eta = 1`` it grows from 1 to 1.14 when ``rho`` falls from 1 to 0.9, while
    the power at FPR 1 % (`glr_tpr`) falls from 9.2 % to 7.0 %.
    """
    eta, rho = _real("eta", eta), _positive("rho", rho)
    return np.asarray(((rho**2 - 1) ** 2 + eta**2 * (1 + rho**2)) / (2 * rho**2))


def glr_law(eta: ArrayLike, given: Hypothesis) -> NormalLaw:
    """Law of the Gaussian LR at ``rho = 1``, ``N(±eta**2 / 2, eta**2)``, for ``eta != 0`` (``lem:logbf``)."""
    size = _positive("abs(eta)", np.abs(_real("eta", eta)))
    return NormalLaw((given.value - 0.5) * size**2, size)


def glr_tail(c: ArrayLike, eta: ArrayLike, rho: ArrayLike, given: Hypothesis) -> FloatArray:
    """Probability that the Gaussian LR exceeds ``c``: exact, for any ``rho > 0``.

    The ratio is quadratic in ``w`` (``eq:proof_glr_quadratic``): ``{GLR > c}`` is an interval (``rho < 1``),
    a half-line (``rho = 1``) or the outside of an interval (``rho > 1``). Arguments as for `glr`.
    """
    c, eta, rho = np.broadcast_arrays(_real("c", c), np.abs(_real("eta", eta)), _positive("rho", rho))
    square, linear = -(1 - rho) * (1 + rho) / (2 * rho**2), eta / rho**2
    constant = -np.log(rho) - eta**2 / (2 * rho**2) - c
    # A negative discriminant means no w (rho < 1) or every w (rho > 1), and so does a width of 0.
    root = np.sqrt(np.maximum(linear**2 - 4 * square * constant, 0.0))
    # This form of the nearer root stays accurate as rho tends to 1 and the other root goes to infinity.
    slope = (linear + root) / 2
    edge = np.divide(-constant, slope, out=np.zeros(c.shape), where=slope > 0)
    width = np.divide(root, np.abs(square), out=np.full(c.shape, np.inf), where=square != 0)
    degenerate = (eta == 0) & (rho == 1)  # the ratio is 0 everywhere
    return np.where(degenerate, np.where(c < 0, 1.0, 0.0), _region_mass(edge, width, eta, rho, given))


def glr_threshold(alpha: ArrayLike, eta: ArrayLike, rho: ArrayLike = 1.0) -> FloatArray:
    """Value that the Gaussian LR of a non-member exceeds at rate ``alpha``; arguments as for `glr_tpr`."""
    alpha, eta, rho = np.broadcast_arrays(_rate("alpha", alpha), np.abs(_real("eta", eta)), _positive("rho", rho))
    return _log_ratio(_rejection_region(alpha, eta, rho)[0], eta, rho)


def glr_tpr(alpha: ArrayLike, eta: ArrayLike, rho: ArrayLike = 1.0) -> FloatArray:
    """Power of the Gaussian LR at FPR ``alpha`` for points of one known ``eta`` and ``rho``: exact.

    By the Neyman-Pearson lemma no test on the target's confidence has more power. For ``rho = 1`` it is
    ``gaussian_tpr(alpha, abs(eta))``; where also ``eta = 0``, the ratio is constant and the value, ``alpha``, is
    that of a randomised test.
    """
    alpha, eta, rho = np.broadcast_arrays(_rate("alpha", alpha), np.abs(_real("eta", eta)), _positive("rho", rho))
    return _region_mass(*_rejection_region(alpha, eta, rho), eta, rho, Hypothesis.H1)


def glr_population_tpr(alpha: ArrayLike, eta: ArrayLike, rho: ArrayLike = 1.0) -> FloatArray:
    """Power at FPR ``alpha`` of one threshold on the Gaussian LR of points that differ: exact.

    This is the power of LiRA, and so of PL-MIA+ and of PL-MIA with one shared population, whose scores
    increase with the query's Gaussian LR (``thm:main`` (I)); queries are drawn evenly from the given points.
    ``eta`` and ``rho`` broadcast to ``[points]``; the result has the shape of ``alpha``, the rate over all points.
    """
    alpha = _rate("alpha", alpha)[..., np.newaxis]
    eta, rho = np.broadcast_arrays(np.atleast_1d(_real("eta", eta)), _positive("rho", rho))
    each = glr_threshold(alpha, eta, rho)
    # The common threshold lies between the points' own. FPR(low) > alpha >= FPR(high) holds throughout.
    low, high = each.min(axis=-1, keepdims=True) - 1, each.max(axis=-1, keepdims=True)
    bounds = _bisect(lambda c: glr_tail(c, eta, rho, Hypothesis.H0).mean(-1, keepdims=True) > alpha, low, high)
    fpr, tpr = ([glr_tail(c, eta, rho, h).mean(axis=-1) for c in bounds] for h in Hypothesis)
    # Points with eta = 0 and rho = 1 put an atom at 0, over which a test of exact size randomises.
    gap = fpr[0] - fpr[1]
    share = np.divide(alpha[..., 0] - fpr[1], gap, out=np.zeros(gap.shape), where=gap > 0)
    return np.asarray(tpr[1] + share * (tpr[0] - tpr[1]))


def variation_coefficient(mu_out: ArrayLike, sigma_out: ArrayLike) -> FloatArray:
    """Variation coefficient ``xi = (1 - sigmoid(mu_out)) * sigma_out`` of ``ass:gaussian_model``."""
    return np.asarray(expit(-_real("mu_out", mu_out)) * _positive("sigma_out", sigma_out))


def blr_law(eta: ArrayLike, xi: ArrayLike, rho: ArrayLike, given: Hypothesis) -> NormalLaw:
    """First-order law of the Bayes LR with as many IN as OUT references (``lem:rmia``).

    The expansion is in ``sigma_out``, and ``sigma_out = 1.5`` is not small: at ``mu_out = 2``, ``eta = 1``,
    ``rho = 1`` the standard deviation under H0 and H1 is 0.347 and 0.138 where the law says 0.179 twice. Nor
    is the mean separation independent of ``rho``: 0.180 for ``rho = 1``, 0.217 for 0.5; the law says 0.179.
    """
    eta, xi, rho = _real("eta", eta), _positive("xi", xi), _positive("rho", rho)
    return NormalLaw((given.value - 0.5) * eta * xi, rho**given.value * xi)


def blr_mean_separation(eta: ArrayLike, xi: ArrayLike) -> FloatArray:
    """First-order mean of the Bayes LR of a member minus that of a non-member (``lem:rmia``)."""
    return np.asarray(_real("eta", eta) * _positive("xi", xi))


def glr_difference_law(eta_q: ArrayLike, eta_z: ArrayLike, given: Hypothesis) -> NormalLaw:
    """Law of ``GLR(q) - GLR(z)`` at ``rho = 1``, given both shifts; z is a non-member (``lem:pairwise``)."""
    return glr_law(eta_q, given) - glr_law(eta_z, Hypothesis.H0)


def blr_difference_law(
    eta_q: ArrayLike, xi_q: ArrayLike, eta_z: ArrayLike, xi_z: ArrayLike, given: Hypothesis
) -> NormalLaw:
    """First-order law of ``BLR(q) - BLR(z)`` at ``rho = 1`` (``lem:pairwise``), as `glr_difference_law`."""
    return blr_law(eta_q, xi_q, 1.0, given) - blr_law(eta_z, xi_z, 1.0, Hypothesis.H0)


def gaussian_tpr(alpha: ArrayLike, kappa: ArrayLike) -> FloatArray:
    """Power of Gaussian scores ``kappa`` standard deviations apart (``eq:tpr_gaussian_scores``).

    Exact for the GLR at ``rho = 1`` with one ``eta``, but not for a population whose ``eta`` differ, the case
    of ``thm:main`` (I): scores are then a mixture. For ``eta`` gamma distributed (mean 1, standard deviation
    0.5) the mixture's own ``kappa = 0.965`` gives 8.7 % at FPR 1 % and 1.7 % at 0.1 %; the truth,
    `glr_population_tpr`, is 13.6 % and 4.8 %. That PL-MIA+ equals LiRA rests on ranks alone and stays true.
    """
    return np.asarray(ndtr(_real("kappa", kappa) + ndtri(_rate("alpha", alpha))))


def cauchy_threshold(alpha: ArrayLike) -> FloatArray:
    """Analytic threshold ``tan(pi * (0.5 - alpha))`` of Score_PL (``eq:proof_cauchy_threshold``).

    It does not control the FPR: comparisons that share q are dependent. Even under an exactly Gaussian null
    the measured FPR is 1.53 and 1.59 times nominal at 10 %, 1.61 and 1.70 times at 1 %, for |Z| = 100 and
    1,000, and tends to twice nominal (`shared_population_tpr`). Under a skewed null it is worse, and the worse
    the larger Z is: 8 % at nominal 1 % and |Z| = 2,500 for ``eta = 1``, ``rho = 0.9``; 50 % for ``rho = 0.7``;
    73 % for ``rho = 1`` and gamma distributed ``eta`` (mean 1, standard deviation 0.5).
    """
    alpha = _rate("alpha", alpha)
    # The cotangent keeps all digits of a small alpha, which 0.5 - alpha rounds away.
    return np.where(alpha < 0.25, 1 / np.tan(np.pi * alpha), np.tan(np.pi * (0.5 - alpha)))


def pairwise_level(alpha: ArrayLike, population: ArrayLike) -> FloatArray:
    """P-value ``u`` at which one comparison alone reaches the threshold (``eq:small_p_probability``)."""
    alpha, population = _rate("alpha", alpha), _count("population", population)
    return np.asarray(np.arctan2(np.sin(np.pi * alpha), population * np.cos(np.pi * alpha)) / np.pi)


def small_p_probability(level: ArrayLike, law: NormalLaw, sigma_delta: ArrayLike) -> FloatArray:
    """Probability ``r`` that one comparison's p-value is at most ``level`` (``eq:small_p_probability``).

    ``level`` is that of `pairwise_level`, ``law`` a member's `glr_difference_law`, and ``sigma_delta`` the
    null scale of ``eq:p_value``: ``sqrt(2)`` times the standard deviation of the statistic over Z.
    """
    return law.tail(-ndtri(_rate("level", level)) * _positive("sigma_delta", sigma_delta))


def pl_mia_tpr(r: ArrayLike, population: ArrayLike) -> FloatArray:
    """Power of PL-MIA according to the paper, ``1 - (1 - r)**population`` (``eq:tpr_cauchy_plmia``).

    The product assumes that comparisons that share q are independent; it tends to 1 with growing Z if ``eta > 0``.
    The measured share of members above `cauchy_threshold` (``rho = 1``) does not: at nominal 1 %, |Z| = 100
    and 1,000, it is 11.8 % and 12.8 % for ``eta = 1`` (formula 12.2 % and 17.1 %), 41 % and 44 % for
    ``eta = 2`` (formula 66 % and 89 %). At a *realised* 1 % it is `gaussian_tpr`, 9.2 % and 37 %, for any Z.
    """
    r, population = _share("r", r), _count("population", population)
    with np.errstate(divide="ignore"):  # r = 1 gives log 0 = -inf, and a power of 1
        return np.asarray(-np.expm1(population * np.log1p(-r)))


def shared_population_tpr(alpha: ArrayLike, kappa: ArrayLike) -> FloatArray:
    """Share of queries that PL-MIA really puts above `cauchy_threshold` when its shared population is large.

    For Gaussian statistics of variance 1, and mean ``kappa`` for queries and 0 for the population (the GLR at
    ``rho = 1``: ``kappa = eta``), Score_PL(q) tends to ``g(phi_q)``, where ``g(x)`` is the mean of
    ``tan(pi * (Phi((x - V) / sqrt(2)) - 0.5))`` over a standard normal ``V``: a finite, increasing function
    of the query's own statistic, not a Cauchy variable. ``kappa = 0`` gives the realised FPR: 1.63 ``alpha``
    at ``alpha`` = 10 %, 1.87 at 1 %, and 2 as ``alpha`` tends to 0 and ``g(x)`` to ``2 cot(pi * Phi(-x))``.
    """
    alpha, kappa = _rate("alpha", alpha), _real("kappa", kappa)
    tail = np.minimum(alpha, 1 - alpha)  # g is odd: solve in the upper half and reflect
    target = np.log(np.maximum(cauchy_threshold(tail), np.finfo(np.float64).tiny))
    _, x = _bisect(lambda x: _log_mean_evidence(x) < target, np.zeros(alpha.shape), np.asarray(-ndtri(tail)))
    return np.asarray(ndtr(kappa - np.where(alpha <= 0.5, x, -x)))


def glr_kappa(eta: ArrayLike) -> FloatArray:
    """Standardised separation of the GLR at ``rho = 1`` and one ``eta > 0`` (``eq:proof_glr_kappa``)."""
    return np.abs(_positive("eta", eta))


def blr_kappa(eta: ArrayLike, xi_mean: ArrayLike, xi_std: ArrayLike) -> FloatArray:
    """Standardised separation of the BLR at ``rho = 1``, ``xi`` differing (``eq:proof_kappa_ordering``).

    `gaussian_tpr` of it is not the Bayes LR's power, which is that of a mixture: for ``eta = 2`` and gamma
    distributed ``xi`` of variation 0.5 it gives 64 %, 24.4 % and 7.3 % at FPR 10 %, 1 % and 0.1 %; the
    first-order BLR has 75 %, 27.1 % and 6.7 %, all below the GLR's 76 %, 37 % and 14 % (``thm:main`` (II)).
    """
    eta, xi_mean, xi_std = _positive("eta", eta), _positive("xi_mean", xi_mean), _spread("xi_std", xi_std)
    return np.asarray(eta / np.sqrt(1 + (1 + eta**2 / 4) * (xi_std / xi_mean) ** 2))


def combination_beats_voting(r: ArrayLike, population: ArrayLike, tpr_plus: ArrayLike) -> BoolArray:
    """Whether the condition of ``thm:main`` (III), ``population * r > -log(1 - tpr_plus)``, is met.

    It compares formulas, not attacks. With one shared Z both scores increase with the query's statistic, so
    at equal FPR their powers are equal although the condition is met (``eta = 1``, FPR 1 %, |Z| = 1,000).
    PL-MIA has 12.8 % there at `cauchy_threshold`, against 9.2 %, but at an FPR of 1.7 %.
    """
    r, population = _share("r", r), _count("population", population)
    return np.asarray(-np.expm1(-population * r) > _share("tpr_plus", tpr_plus))


def _bisect(below: _Test, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Narrow ``low`` and ``high``, elementwise, to the point where ``below`` changes from true to false."""
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        rising = below(middle)
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    return low, high


def _log_ratio(w: FloatArray, eta: FloatArray, rho: FloatArray) -> FloatArray:
    return np.asarray(-np.log(rho) + w**2 / 2 - ((w - eta) / rho) ** 2 / 2)


def _interval_mass(edge: FloatArray, width: FloatArray) -> FloatArray:
    """Mass of the standard normal law on ``(edge, edge + width)``, to full relative precision."""
    end = edge + width
    # The tails of a narrow interval cancel, so its density is integrated; a wide one uses the nearer tails.
    narrow = width * (1 + np.maximum(np.abs(edge), np.abs(end))) < 1
    half = np.where(narrow, width, 0.0) / 2
    density = sum(weight * np.exp(-((edge + half * (1 + x)) ** 2) / 2) for x, weight in _LEGENDRE)
    wide = np.where(edge + end < 0, ndtr(end) - ndtr(edge), ndtr(-edge) - ndtr(-end))
    return np.where(narrow, half * density / np.sqrt(2 * np.pi), wide)


def _region_mass(
    edge: FloatArray, width: FloatArray, eta: FloatArray, rho: FloatArray, given: Hypothesis
) -> FloatArray:
    """Mass of ``edge < w < edge + width`` (rho <= 1) or of all but ``edge - width < w < edge`` (rho > 1)."""
    if given is Hypothesis.H1:
        edge, width = (edge - eta) / rho, width / rho
    return np.where(rho <= 1, _interval_mass(edge, width), ndtr(-edge) + ndtr(edge - width))


def _rejection_region(alpha: FloatArray, eta: FloatArray, rho: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Edge and width, as in `_region_mass`, of the GLR's upper level set of mass ``alpha`` under H0."""
    # Solved in w, not in the ratio, which is flat near its peak: so a small alpha stays accurate.
    gap = (1 - rho) * (1 + rho)
    centre = np.divide(eta, gap, out=np.full(gap.shape, np.inf), where=gap != 0)
    # The set is |w - centre| < half for rho < 1 and > half for rho > 1; a far centre leaves a half-line.
    near = np.abs(centre) <= _FAR
    start, side = np.where(near, centre, 0.0), np.where(rho < 1, -1.0, 1.0)
    # Between the bounds lies the answer: an interval of half-width h has a mass of at most h * sqrt(2 / pi).
    low = np.log(np.minimum(alpha, 1 - alpha)) + 0.5 * np.log(np.pi / 2)

    def too_narrow(log_half: FloatArray) -> BoolArray:
        half = np.exp(log_half)
        mass = _region_mass(start + side * half, 2 * half, eta, rho, Hypothesis.H0)
        return np.where(rho < 1, mass < alpha, mass > alpha)

    half = np.exp(_bisect(too_narrow, low, np.log(np.abs(start) + _FAR))[1])
    edge = np.where(near, start + side * half, -ndtri(alpha))
    return edge, np.where(near, 2 * half, np.inf)


def _log_mean_evidence(x: FloatArray) -> FloatArray:
    """``log g(x)`` of `shared_population_tpr` for ``x >= 0``, by the trapezoidal rule."""
    x = x[..., np.newaxis]
    v = _OFFSETS - x  # the integrand is centred at -x and decays as exp(-offset**2 / 4)
    distance = (x - v) / np.sqrt(2)
    # exp(x**2 / 2), the scale of the result, is taken out to keep every term in range.
    terms = np.sign(distance) * np.exp(log_abs_cauchy_transform(distance) - (v**2 + x**2) / 2)
    total = terms.sum(axis=-1) * (_OFFSETS[1] - _OFFSETS[0]) / np.sqrt(2 * np.pi)
    return np.asarray(np.log(np.maximum(total, np.finfo(np.float64).tiny)) + x[..., 0] ** 2 / 2)


def _limited(ok: _Test, limit: str, remedy: str) -> Callable[[str, ArrayLike], FloatArray]:
    def checked(name: str, value: ArrayLike) -> FloatArray:
        array = np.asarray(value, dtype=np.float64)
        if (bad := ~ok(array)).any():
            raise PlmiaError(f"{name} is {array[bad].flat[0]:g}, but must be {limit}: {remedy}")
        return array

    return checked


_FRACTION, _OMIT = "give a fraction, 0.01 for 1 %", "leave out the points where it is not"
_real = _limited(np.isfinite, "finite", _OMIT)
_positive = _limited(lambda x: (x > 0) & np.isfinite(x), "finite and above 0", _OMIT)
_spread = _limited(lambda x: (x >= 0) & np.isfinite(x), "finite and at least 0", "give 0 if all are equal")
_rate = _limited(lambda x: (x > 0) & (x < 1), "in (0, 1)", _FRACTION)
_share = _limited(lambda x: (x >= 0) & (x <= 1), "in [0, 1]", _FRACTION)
_count = _limited(lambda x: (x >= 1) & (x < np.inf) & (np.rint(x) == x), "1, 2, 3, ...", "give the size of Z")
