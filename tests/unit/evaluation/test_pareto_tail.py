"""The tail model against a search over all generalised Pareto laws, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from plmia.errors import PopulationError
from plmia.evaluation.decisions import tail_check
from plmia.evaluation.pareto_tail import fit_tail

Floats = npt.NDArray[np.float64]


def searched_cut(values: Floats, level: float, confidence: float) -> float:
    """Largest quantile of any law with shape 0 or more that the likelihood does not exclude, by a grid of laws."""
    n = len(values)
    k = math.isqrt(n)
    ordered = np.sort(values)
    start, excess = ordered[-k - 1], ordered[-k:] - ordered[-k - 1]
    shapes = np.concatenate([[0.0], np.geomspace(1e-4, 4, 400)])[:, None]
    scales = excess.mean() * np.geomspace(0.02, 8, 500)
    likelihood = np.zeros((len(shapes), len(scales)))
    for y in excess:
        with np.errstate(divide="ignore", invalid="ignore"):
            heavy = -np.log(scales) - (1 + 1 / shapes) * np.log1p(shapes * y / scales)
        likelihood += np.where(shapes == 0, -np.log(scales) - y / scales, heavy)
    inside = likelihood >= likelihood.max() - stats.chi2.ppf(2 * confidence - 1, 1) / 2
    times = math.log((k + 1) / (n + 1) / level)
    with np.errstate(divide="ignore", invalid="ignore"):
        reach = np.where(shapes == 0, scales * times, scales * np.expm1(shapes * times) / shapes)
    return max(float(ordered[-1]), float(start + reach[inside].max()))


@pytest.mark.parametrize("confidence", [0.9, 0.95])
@pytest.mark.parametrize("law", ["normal", "exponential", "t3", "uniform"])
def test_the_cut_is_the_largest_quantile_within_the_likelihood_region(law: str, confidence: float) -> None:
    rng = np.random.default_rng(5)
    values = {
        "normal": rng.normal(size=900),
        "exponential": rng.exponential(size=900),
        "t3": rng.standard_t(3, size=900),
        "uniform": rng.uniform(size=900),
    }[law]
    model = fit_tail(values, confidence)
    for level in (0.01, 1 / 1_000, 1 / 3_600):
        # Both grids fall short of the largest by a little.
        assert model.cut(level) == pytest.approx(searched_cut(values, level, confidence), rel=0.03)


def test_the_cut_moves_and_stretches_with_the_values() -> None:
    values = np.random.default_rng(0).exponential(size=700)
    cut = fit_tail(values).cut(1e-3)
    assert fit_tail(1e-9 * values - 5).cut(1e-3) == pytest.approx(1e-9 * cut - 5, rel=1e-12)
    assert fit_tail(1e6 * values + 3).cut(1e-3) == pytest.approx(1e6 * cut + 3)


def test_the_cut_rises_as_the_level_falls_and_never_below_the_top() -> None:
    values = np.random.default_rng(1).uniform(size=2_000)
    cuts = [fit_tail(values).cut(level) for level in (0.02, 1e-2, 1e-3, 1e-4, 1e-300)]
    assert cuts == sorted(cuts)
    assert cuts[0] >= values.max()
    assert cuts[-1] > cuts[-2]


def test_a_heavy_tail_may_have_no_cut_at_all() -> None:
    values = np.random.default_rng(1).standard_cauchy(size=1_000) ** 3
    assert fit_tail(values).cut(1e-200) == math.inf


def test_start_and_share_are_those_of_the_rank() -> None:
    values = np.random.default_rng(2).permutation(np.arange(400.0) ** 2)
    model = fit_tail(values)
    assert model.start == (400 - 21) ** 2
    assert model.share == 21 / 401
    assert model.top == 399**2


def test_ties_and_few_values_are_refused() -> None:
    with pytest.raises(PopulationError, match=r"needs 100 .* has 99"):
        fit_tail(np.arange(99.0))
    with pytest.raises(PopulationError, match=r"top 32 .* only 3"):
        fit_tail(np.repeat([0.0, 1.0, 2.0], [980, 10, 10]))
    with pytest.raises(PopulationError, match="only 1 distinct"):
        fit_tail(np.zeros(1_000))
    rounded = np.round(np.random.default_rng(0).normal(size=1_000), 2)
    assert fit_tail(rounded).cut(1e-3) > rounded.max()


def test_the_check_tries_each_half_on_the_other() -> None:
    values = np.random.default_rng(3).normal(size=1_001)
    level = 0.0005
    check = tail_check(values, level)
    tried = level * 1_002 / 501
    even, odd = values[::2], values[1::2]
    count = np.sum(odd > fit_tail(even).cut(tried)) + np.sum(even > fit_tail(odd).cut(tried))
    assert (check.flagged, check.population, check.level) == (count, 1_001, tried)


def test_the_check_fails_where_one_half_is_unlike_the_other() -> None:
    values = np.random.default_rng(3).normal(size=1_000)
    values[1::2] *= 5
    assert not tail_check(values, 0.0005).passed
