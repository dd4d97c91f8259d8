"""Intervals that say 95 % cover at least 95 %: exactly for the binomial, by simulation for the TPR.

Simulations have fixed seeds. With 4,000 audits the standard error of a coverage of 95 % is 0.34 points;
a test fails below 95 % less four of them (93.6 %), which correct code does for one seed in 30,000.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from scipy.special import ndtr

from plmia.evaluation.metrics import Operating, clopper_pearson, roc_curve

AUDITS = 4_000
LEAST = 0.95 - 4 * math.sqrt(0.95 * 0.05 / AUDITS)
SHIFT = 1.0


def coverage_by_tail(n: int, low: npt.ArrayLike, high: npt.ArrayLike) -> tuple[float, float, float]:
    """Least coverage, and largest error on each side, of intervals of k = 0..n over a grid of shares."""
    shares = np.linspace(0, 1, 1001)[1:-1, None]
    mass = stats.binom.pmf(np.arange(n + 1), n, shares)
    above = np.sum(mass * (np.asarray(low) > shares), axis=1)
    below = np.sum(mass * (np.asarray(high) < shares), axis=1)
    return float(np.min(1 - above - below)), float(above.max()), float(below.max())


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("n", [1, 5, 30, 200])
def test_the_binomial_interval_covers_every_share(n: int, confidence: float) -> None:
    covered, above, below = coverage_by_tail(n, *clopper_pearson(np.arange(n + 1), n, confidence))
    tail = (1 - confidence) / 2
    assert covered >= confidence - 1e-9
    assert above <= tail + 1e-9
    assert below <= tail + 1e-9


def test_the_usual_approximation_would_be_caught() -> None:
    n = 200
    share = np.arange(n + 1) / n
    half = 1.96 * np.sqrt(share * (1 - share) / n)
    covered, _, _ = coverage_by_tail(n, share - half, share + half)
    assert covered < 0.5


def audits(fpr: float, n_members: int, n_non_members: int, step: float) -> list[tuple[Operating, float]]:
    """Draw audits; return each operating point with the true TPR of its cut.

    Scores are normal, shifted for members, and rounded up to multiples of `step` (0 leaves them alone).
    The cut lies just above the first refused non-member.
    """
    rng = np.random.default_rng(20_250_101)
    members = np.arange(n_members + n_non_members) < n_members
    found = []
    for _ in range(AUDITS):
        scores = rng.normal(size=members.size) + SHIFT * members
        if step:
            scores = np.ceil(scores / step) * step
        refused = np.sort(scores[~members])[::-1][math.floor(fpr * n_non_members + 1e-9)]
        # Rounded up to a multiple above `refused` means drawn above it, with and without rounding.
        found.append((roc_curve(scores, members).tpr_at(fpr), float(ndtr(SHIFT - refused))))
    return found


@pytest.mark.parametrize(
    ("fpr", "n_members", "n_non_members", "step"),
    [
        (0.0, 150, 150, 0.0),
        (0.01, 300, 200, 0.0),
        (0.1, 300, 200, 0.0),
        (0.1, 300, 200, 0.25),  # every threshold ties
    ],
)
def test_the_interval_of_the_tpr_covers_the_tpr_of_its_cut(
    fpr: float, n_members: int, n_non_members: int, step: float
) -> None:
    found = audits(fpr, n_members, n_non_members, step)
    covered = np.mean([point.low <= truth <= point.high for point, truth in found])
    assert covered >= LEAST
    # Intervals that cover always would be useless: the exact ones are known to be only a little wide.
    assert covered <= 0.99
    assert np.mean([point.low > truth for point, truth in found]) <= 0.025 + 4 * math.sqrt(0.025 / AUDITS)


def test_the_interval_is_no_wider_than_it_must_be() -> None:
    found = audits(0.1, 300, 200, 0.0)
    width = np.mean([point.high - point.low for point, _ in found])
    normal = np.mean([2 * 1.96 * math.sqrt(truth * (1 - truth) / 300) for _, truth in found])
    assert width <= 1.1 * normal
