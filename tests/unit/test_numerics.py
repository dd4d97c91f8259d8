"""The stable formulas, against 50 digits and against what the literal formulas do."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import rankdata

from plmia.errors import SignalsError
from plmia.numerics import (
    SignedLog,
    auc_of,
    average_ranks,
    log_abs_cauchy_transform,
    log_cauchy_kernel,
    log_sigmoid,
    logit_from_logits,
    logit_from_probabilities,
    strictly_increasing,
)

EPS = np.finfo(np.float64).eps


@pytest.fixture(autouse=True)
def fifty_digits():
    with mp.workdps(50):
        yield


def error_of_logs(got, references):
    """Largest error of a logarithm, relative to max(1, |log|)."""
    return max(
        float(abs(mp.mpf(float(g)) - r) / max(1, abs(r))) for g, r in zip(np.ravel(got), references, strict=True)
    )


# --- confidences ------------------------------------------------------------------------------------------------


def naive_confidence(logits, label):
    z = [mp.mpf(float(v)) for v in logits]
    return z[label] - mp.log(mp.fsum(mp.exp(v) for c, v in enumerate(z) if c != label))


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1000.0])
def test_confidence_from_logits_is_exact(classes, scale):
    rng = np.random.default_rng(3)
    logits = rng.normal(0.0, scale, (4, 5, classes))
    labels = rng.integers(0, classes, (4, 5))
    got = logit_from_logits(logits, labels)
    assert got.shape == (4, 5)
    for at in np.ndindex(4, 5):
        want = naive_confidence(logits[at], labels[at])
        assert abs(mp.mpf(float(got[at])) - want) <= 4 * EPS * max(1, abs(want), *map(abs, logits[at].tolist()))


def test_confidence_from_logits_never_saturates():
    assert logit_from_logits([500.0, 0.0], 0) == 500.0
    assert logit_from_logits([[0.0, 1e4], [-3e5, 3e5]], [1, 0]).tolist() == [1e4, -6e5]


def test_confidence_from_logits_broadcasts_labels_and_keeps_its_input():
    logits = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    before = logits.copy()
    got = logit_from_logits(logits, [0, 4, 2, 1])
    assert got.dtype == np.float64
    assert np.array_equal(got[1], logit_from_logits(logits[1], [0, 4, 2, 1]))
    assert np.array_equal(logits, before)


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (np.zeros((3, 1)), [0, 0, 0], "1 classes"),
        (1.0, 0, "0 classes"),
        ([[0.0, 1.0]], [2], "2 at index 0"),
        ([[0.0, 1.0], [0.0, 1.0]], [0, -1], "-1 at index 1"),
        ([[0.0, 1.0]], [0.0], "float64"),
        ([[0.0, 1.0], [np.nan, 1.0]], [0, 1], "nan at index 1, 0"),
        ([[0.0, -np.inf]], [0], "-inf at index 0, 1"),
        (np.zeros((3, 2)), [0, 1], r"shape \(2,\)"),
    ],
)
def test_unusable_logits_are_named(logits, labels, message):
    with pytest.raises(SignalsError, match=message):
        logit_from_logits(logits, labels)


@pytest.mark.parametrize(("dtype", "largest"), [(np.float16, 7.6), (np.float32, 16.6), (np.float64, 36.7)])
def test_probabilities_are_clipped_to_their_own_resolution(dtype, largest):
    below_one = np.nextafter(dtype(1), dtype(0))
    smallest = np.finfo(dtype).smallest_subnormal
    confidence, n_clipped = logit_from_probabilities(np.array([1.0, below_one, 0.5, smallest, 0.0], dtype))
    assert n_clipped == 2
    assert confidence[0] == confidence[1] == pytest.approx(largest, abs=0.05)
    assert confidence[2] == 0.0
    assert confidence[3] == confidence[4] == pytest.approx(math.log(float(smallest)), rel=1e-8)


def test_clipping_keeps_the_order_of_subnormal_probabilities():
    p = np.array([0.0, 2e-7, 1e-6, 5e-5, 1e-3, 0.5, 0.999, 1.0], dtype=np.float16)
    confidence, n_clipped = logit_from_probabilities(p)
    assert n_clipped == 2
    assert (np.diff(confidence) > 0).all()


def test_the_dtype_of_storage_can_be_named():
    confidence, n_clipped = logit_from_probabilities([1.0 - 1e-12, 1e-60, 0.25], dtype=np.float32)
    assert n_clipped == 2
    assert confidence[0] == pytest.approx(16.6, abs=0.05)
    assert confidence[2] == pytest.approx(-math.log(3.0), rel=1e-15)
    assert logit_from_probabilities([0, 1])[1] == 2
    with pytest.raises(SignalsError, match="int64"):
        logit_from_probabilities([0.5], dtype=np.int64)


def test_confidence_from_probabilities_against_50_digits():
    p = np.concatenate([10.0 ** np.linspace(-300, -1, 50), np.linspace(0.1, 0.9, 9), 1 - 10.0 ** -np.arange(1, 16)])
    confidence, n_clipped = logit_from_probabilities(p)
    exact = [mp.log(mp.mpf(float(v))) - mp.log(1 - mp.mpf(float(v))) for v in p]
    assert n_clipped == 0
    assert error_of_logs(confidence, exact) <= 4 * EPS


@pytest.mark.parametrize(("bad", "shown"), [(np.nan, "nan"), (-1e-9, "-1e-09"), (1.0000001, "1.0000001")])
def test_an_impossible_probability_is_named(bad, shown):
    with pytest.raises(SignalsError, match=f"{shown} at index 1, 2"):
        logit_from_probabilities(np.array([[0.5, 0.5, 0.5], [0.1, 0.2, bad]]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_sigmoid_is_stable_on_both_sides(dtype):
    x = np.array([-1e4, -200.0, -40.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 15.0, 40.0, 80.0], dtype=dtype)
    got = log_sigmoid(x)
    assert got.dtype == dtype
    for g, v in zip(got, x, strict=True):
        want = -mp.log1p(mp.exp(-mp.mpf(float(v))))
        assert abs(mp.mpf(float(g)) / want - 1) <= 4 * np.finfo(dtype).eps


# --- the Cauchy transform ---------------------------------------------------------------------------------------


def tail(x):
    return mp.erfc(x / mp.sqrt(2)) / 2


def exact_log_kernel(x):
    x = mp.mpf(float(x))
    if x < 0:
        return mp.log(mp.tan(mp.pi / 2 * tail(-x)) / 2)  # tan(a) = cot(pi / 2 - a), and Phi(-x) = 1 - Phi(x)
    return mp.log(mp.cot(mp.pi / 2 * tail(x)) / 2)


def exact_log_transform(x):
    x = abs(mp.mpf(float(x)))
    if x < 1:
        return mp.log(mp.tan(mp.pi / 2 * mp.erf(x / mp.sqrt(2))))
    return mp.log(mp.cot(mp.pi * tail(x)))


def sample_of_differences():
    rng = np.random.default_rng(11)
    switches = np.array([1.0, 6.0])
    return np.concatenate(
        [
            rng.uniform(-9.0, 9.0, 600),
            rng.uniform(-1500.0, 1500.0, 300),
            np.nextafter(switches, 0.0),
            switches,
            np.nextafter(switches, 9.0),
            [-1500.0, 1500.0, 38.6, -38.6, 1e-3, -1e-8, 1e-300],
        ]
    )


def test_log_kernel_against_50_digits():
    x = sample_of_differences()
    assert error_of_logs(log_cauchy_kernel(x), map(exact_log_kernel, x)) <= 1.5e-15


def test_log_transform_against_50_digits():
    x = sample_of_differences()
    assert error_of_logs(log_abs_cauchy_transform(x), map(exact_log_transform, x)) <= 1.5e-15


def test_transform_is_the_kernel_less_its_mirror_image():
    x = np.linspace(-30.0, 30.0, 1201)
    difference = np.exp(log_cauchy_kernel(x)) - np.exp(log_cauchy_kernel(-x))
    transform = np.sign(x) * np.exp(log_abs_cauchy_transform(x))
    np.testing.assert_allclose(difference, transform, rtol=1e-13, atol=1e-15)
    assert log_abs_cauchy_transform(0.0) == -np.inf


def test_the_kernel_increases_at_least_as_fast_as_the_window_of_the_sum_assumes():
    x = np.linspace(-50.0, 50.0, 20_001)
    slope = np.diff(log_cauchy_kernel(x)) / np.diff(x)
    middle = 0.5 * (x[1:] + x[:-1])
    assert (slope >= np.abs(middle) - 1e-9).all()
    assert (slope >= 1.2533).all()


def test_agrees_with_the_formula_as_written_where_that_holds():
    x = np.linspace(-4.0, 4.0, 801)
    literal = np.tan((0.5 - ndtr(-x)) * np.pi)
    ours = np.sign(x) * np.exp(log_abs_cauchy_transform(x))
    np.testing.assert_allclose(ours, literal, rtol=1e-9, atol=1e-15)


def test_the_formula_as_written_fails_where_ours_holds():
    six = np.float32(ndtr(-6.0))
    flipped = np.tan((np.float32(0.5) - six) * np.float32(np.pi))
    assert flipped < 0.0  # float32: the strongest evidence of membership becomes the strongest against it
    saturated = np.tan((0.5 - ndtr(-np.array([8.5, 20.0]))) * np.pi)
    assert saturated[0] == saturated[1]
    assert log_abs_cauchy_transform(6.0) == pytest.approx(float(exact_log_transform(6.0)), rel=1e-15)
    assert (np.diff(log_abs_cauchy_transform([8.5, 20.0, 1000.0])) > 100.0).all()


# --- numbers in logs --------------------------------------------------------------------------------------------


def signed_logs(sizes):
    logs = np.concatenate([sizes, sizes, [-np.inf]])
    sign = np.concatenate([np.ones(len(sizes)), -np.ones(len(sizes)), [0.0]])
    return SignedLog(sign, logs)


SIZES = np.array([-690.0, -40.0, -5.0, -1e-9, 0.0, 1e-9, 0.5, 5.0, 29.9, 30.1, 300.0, 700.0, 5e5, 1e9])


def exact_values(values):
    return [mp.mpf(float(s)) * mp.exp(mp.mpf(float(v))) if s else mp.mpf(0) for s, v in zip(*values, strict=True)]


def test_asinh_against_50_digits():
    values = signed_logs(SIZES[:-1])
    for got, s in zip(values.asinh(), exact_values(values), strict=True):
        assert abs(mp.mpf(float(got)) - mp.asinh(s)) <= 4 * EPS * abs(mp.asinh(s))


def test_log10_p_against_50_digits():
    values = signed_logs(SIZES)
    with mp.workdps(700):  # 1/2 - arctan(S) / pi cancels that many digits at S = e^700
        exact = [mp.log10(mp.mpf(1) / 2 - mp.atan(s) / mp.pi) for s in exact_values(signed_logs(SIZES[:-2]))]
    got = signed_logs(SIZES[:-2]).log10_p()
    for g, e in zip(got, exact, strict=True):
        assert abs(mp.mpf(float(g)) - e) <= 8 * EPS * abs(e)
    far = values.log10_p()[[len(SIZES) - 2, 2 * len(SIZES) - 2]]
    assert far[0] == pytest.approx(-(5e5 + math.log(math.pi)) / math.log(10.0), rel=1e-15)
    assert far[1] == 0.0
    assert not np.signbit(far[1])


def test_log10_p_decreases_from_1_to_0_through_one_half():
    grid = np.linspace(-600.0, 600.0, 2001)
    below, above = SignedLog(-np.ones(2001), grid[::-1]), SignedLog(np.ones(2001), grid)
    p = np.concatenate([below.log10_p(), above.log10_p()])
    assert (np.diff(p) <= 0.0).all()
    assert p[0] == pytest.approx(0.0, abs=1e-200)
    assert p[2000] == p[2001] == pytest.approx(math.log10(0.5), rel=1e-15)


def assert_strictly_increasing(values):
    keys = [(s, s * v if s else 0.0) for s, v in zip(*values, strict=True)]
    assert all(a < b for a, b in itertools.pairwise(keys))
    assert (np.diff(values.asinh()) > 0.0).all()


@pytest.mark.parametrize("level", [-650.0, -20.0, -1.0, -1e-14, 0.0, 0.3, 15.9, 16.1, 31.5, 40.0, 1e3, 5e5])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_equal_numbers_become_strictly_increasing(level, sign):
    # Steps of the grid that follow one another: the hardest case for the rounding of asinh.
    values = strictly_increasing(SignedLog(np.full(3000, sign), np.full(3000, level)), np.arange(3000))
    assert_strictly_increasing(values)
    np.testing.assert_allclose(values.log_abs, level, rtol=1e-11, atol=1e-10)


def test_order_is_restored_through_zero():
    sign = np.array([-1.0, -1.0, -1.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    log_abs = np.array([2.0, 1.0, 1.0 + 1e-13, -np.inf, -np.inf, -3.0, -3.0 - 1e-13, 4.0])
    values = strictly_increasing(SignedLog(sign, log_abs), np.arange(len(sign)))
    assert_strictly_increasing(values)
    assert values.sign.tolist() == [-1.0, -1.0, -1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    np.testing.assert_allclose(values.log_abs[[0, 1, 2, 5, 6, 7]], log_abs[[0, 1, 2, 5, 6, 7]], rtol=1e-12)
    assert values.log_abs[4] < -690.0


def test_strictness_moves_no_number_by_more_than_a_billionth():
    n = 200_000
    values = strictly_increasing(SignedLog(np.ones(n), np.full(n, 0.7)), np.arange(n))
    assert (np.diff(values.log_abs) >= 0.0).all()
    assert np.abs(values.log_abs - 0.7).max() <= 1e-9
    assert (np.diff(values.log_abs[:16_000]) > 0.0).all()


def test_the_auc_counts_pairs_and_half_of_the_ties():
    rng = np.random.default_rng(5)
    score, positive = rng.integers(0, 6, 40).astype(float), rng.random(40) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in score[positive] for b in score[~positive]]
    assert auc_of(score, positive) == pytest.approx(np.mean(pairs))
    assert auc_of(score, np.ones(40, bool)) == 0.5


@pytest.mark.parametrize("n", [0, 1, 2, 500])
@pytest.mark.parametrize("distinct", [1, 7, 10**6])
def test_ranks_are_those_of_scipy(n: int, distinct: int) -> None:
    values = np.random.default_rng(n).integers(0, distinct, n).astype(np.float64)
    np.testing.assert_array_equal(average_ranks(values), rankdata(values))
