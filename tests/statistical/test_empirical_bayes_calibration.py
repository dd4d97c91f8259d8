"""Simulation from the model of the empirical Bayes ratio: estimates are consistent, and a ratio of x is right e^x to 1.

Points have a centre, IN and OUT variances that follow it with factors of their own, and a shift that follows it too;
references come in complementary pairs whose noise is correlated. Seeds are fixed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plmia.attacks.empirical_bayes import EmpiricalBayesLR
from plmia.attacks.statistics import BayesLR, GaussianLR, evaluate
from plmia.attacks.view import AttackView, Mode, References
from plmia.evaluation.metrics import roc_curve

N_POINTS = 20_000
FACTORS = np.array([[0.25, 0.2], [0.2, 0.3]])
PAIRS = -0.3


def draw(seed: int, references: int, views: int = 1, mode: Mode = "online") -> tuple[AttackView, Any]:
    """Draw a view, and who is a member."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(3, 2, N_POINTS)
    shift = np.maximum(2 - 0.3 * centre, 0.2) + 0.4 * rng.normal(size=N_POINTS)
    level = np.stack([1 + 0.1 * (centre - 3) ** 2, 2 + 0.1 * (centre - 3) ** 2])
    variance = level * np.exp(rng.multivariate_normal(-np.diag(FACTORS) / 2, FACTORS, N_POINTS).T)
    half = rng.random((references // 2 + 1, N_POINTS)) < 0.5
    membership = np.stack([half, ~half], axis=1).reshape(-1, N_POINTS)
    noise = rng.normal(size=(len(membership), N_POINTS, views))
    noise[1::2] = PAIRS * noise[0::2] + np.sqrt(1 - PAIRS**2) * noise[1::2]
    if views > 1:  # strongly correlated views with the same variance
        mix = np.linalg.cholesky(0.7 + 0.3 * np.eye(views))
        noise = noise @ mix.T
    deviation = np.sqrt(np.where(membership, variance[0], variance[1]))[:, :, None]
    mean = np.where(membership, centre + shift / 2, centre - shift / 2)[:, :, None]
    signals = (mean + deviation * noise).astype(np.float32)
    population = np.flatnonzero(~membership[0])[::3]
    rows = np.arange(2, len(membership))
    view = AttackView(signals[0].astype(float), References(signals, rows, membership[rows]), population, mode=mode)
    return view, membership[0]


def calibration_slope(ratio: Any, members: Any) -> tuple[float, float]:
    """Logistic regression of membership on the ratio: intercept 0 and slope 1 if it is right e^x to 1."""
    beta = np.zeros(2)
    x = np.stack([np.ones_like(ratio), ratio], axis=1)
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ beta))
        beta += np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x, x.T @ (members - p))
    return float(beta[0]), float(beta[1])


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("references", [2, 4, 8, 32])
def test_a_ratio_is_right_as_often_as_it_says(references: int, views: int) -> None:
    """Slope and intercept of a logistic regression, whose standard errors are 0.02: within 0.1 of 1 and 0.08 of 0.

    With one reference a side all of the shifts' spread is taken for noise, so the ratio is cautious: slope below 1.35.

    And bin by bin: the share of members among points whose ratio lies between two even numbers.
    """
    view, members = draw(references, references, views)
    if references < 32:  # with more, too few signals lie beyond the turn to tell
        assert EmpiricalBayesLR().fit(view).hold == 0  # signals follow the model, so the ratio is right where it turns
    ratio = evaluate(EmpiricalBayesLR(), view)[:, 0]
    intercept, slope = calibration_slope(ratio, members)
    assert abs(intercept) < (0.15 if references == 2 else 0.08)
    assert 0.9 < slope < (1.35 if references == 2 else 1.1)
    for low in (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0):
        here = (ratio >= low) & (ratio < low + 1)
        if here.sum() > 300 and references > 2:
            expected = np.mean(1 / (1 + np.exp(-ratio[here])))
            # Four standard errors and 0.02 for what the approximations leave.
            assert members[here].mean() == pytest.approx(expected, abs=0.02 + 2 / np.sqrt(here.sum()))


def test_the_plain_ratio_is_not_calibrated_so_the_test_can_fail() -> None:
    view, members = draw(8, 8)
    assert calibration_slope(np.clip(evaluate(GaussianLR(), view)[:, 0], -30, 30), members)[1] < 0.6


@pytest.mark.parametrize("references", [4, 16])
def test_offline_the_ratio_is_calibrated_too(references: int) -> None:
    view, members = draw(40 + references, references, mode="offline")
    intercept, slope = calibration_slope(evaluate(EmpiricalBayesLR(), view)[:, 0], members)
    assert abs(intercept) < 0.1
    assert slope == pytest.approx(1.0, abs=0.12)


@pytest.mark.parametrize("references", [8, 64])
def test_what_was_drawn_is_found(references: int) -> None:
    """Fitted to 4,096 points: correlation of pairs within 0.05, covariances of factors within 0.08, levels within 20 %.

    The trends are functions of an estimated centre, so with few references they are flatter than those drawn.
    """
    view, _ = draw(60 + references, references)
    fit = EmpiricalBayesLR().fit(view)
    assert fit.pair_correlation[0] == pytest.approx(PAIRS, abs=0.05)
    assert fit.spread.covariance == pytest.approx(FACTORS, abs=0.08)
    assert np.isinf(fit.coordinates.bend)
    inner = slice(1, -1)
    drawn = np.stack([base + 0.1 * (fit.knots.at - 3) ** 2 for base in (1, 2)])
    assert fit.spread.level[:, inner, 0] == pytest.approx(drawn[:, inner], rel=0.2)
    assert fit.shift is not None
    at = (fit.knots.within(fit.knots.at) - fit.knots.at.mean()) / (fit.knots.at[-1] - fit.knots.at[0])
    shift = fit.shift.lines[:, 0, 0] + fit.shift.lines[:, 0, 1] * at
    assert shift[inner] == pytest.approx(np.maximum(2 - 0.3 * fit.knots.at, 0.2)[inner], abs=0.2)


@pytest.mark.parametrize("references", [4, 8, 16])
def test_it_is_stronger_than_what_does_not_borrow(references: int) -> None:
    """The standard error of a difference of AUCs on the same 20,000 points is about 0.002."""
    view, members = draw(80 + references, references, 3)
    ours = roc_curve(evaluate(EmpiricalBayesLR(), view)[:, 0], members).auc
    for statistic in (GaussianLR(), BayesLR()):
        theirs = roc_curve(evaluate(statistic, view).mean(axis=1), members).auc
        assert ours > theirs + 0.01


def test_borrowing_reaches_with_8_what_plain_estimates_need_32_for() -> None:
    few, members = draw(91, 8)
    ours = roc_curve(evaluate(EmpiricalBayesLR(), few)[:, 0], members).auc
    many, members = draw(91, 32)
    assert ours > roc_curve(evaluate(GaussianLR(), many)[:, 0], members).auc
