"""Audits without a leak by attacks published since the paper: their AUC is one half in designs of several kinds.

Seeds are fixed. With other seeds, a valid attack would miss the four standard errors of a mean AUC in one of 16,000
runs. Records differ in level and spread, which is when estimators react to the numbers of references.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from plmia import Setup, Signals, attack_targets
from plmia.attacks.attack import RIVALS
from plmia.attacks.view import Features
from plmia.data.designs import (
    MembershipDesign,
    complementary_pairs,
    exact_k_per_point,
    independent_halves,
)

Rows = npt.NDArray[np.bool_]
POINTS, AUDITS = 600, 30
WITH_REFERENCES = [attack for attack in RIVALS.values() if attack.uses_references]

DESIGNS: dict[str, Callable[[np.random.Generator, int], Rows]] = {
    "pairs": lambda rng, n: complementary_pairs(POINTS, n // 2, rng).matrix,
    "halves": lambda rng, n: _both_sides(independent_halves(POINTS, n, rng).matrix),
    "exact": lambda rng, n: exact_k_per_point(POINTS, n, n // 2, rng).matrix,
    "thirds": lambda rng, n: exact_k_per_point(POINTS, n, n // 3, rng).matrix,
    "bernoulli": lambda rng, n: _both_sides(rng.random((n, POINTS)) < 0.4),
}


def _both_sides(rows: Rows) -> Rows:
    """Let the last model complement the one before, so that every record has a reference of each side."""
    return np.concatenate([rows[:-1], ~rows[-2:-1]])


def _level_and_spread(rng: np.random.Generator) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    return 2.5 * rng.normal(size=POINTS), np.exp(0.7 * rng.normal(size=POINTS))


def _check(aucs: dict[str, list[float]], expected: list[float]) -> None:
    for name, found in aucs.items():
        error = float(np.mean(expected)) / np.sqrt(len(found))
        assert len(found) == AUDITS, name
        assert abs(np.mean(found) - 0.5) < 4 * error < 0.03, name


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("models", [12, 24])
@pytest.mark.parametrize("design", DESIGNS)
def test_without_a_leak_the_auc_is_one_half(design: str, models: int, mode: str) -> None:
    aucs: dict[str, list[float]] = {attack.name: [] for attack in WITH_REFERENCES}
    expected = []
    for seed in range(AUDITS):
        rng = np.random.default_rng([seed, models])
        rows = DESIGNS[design](rng, models)
        level, spread = _level_and_spread(rng)
        conf = level + spread * rng.normal(size=rows.shape)
        signals = Signals(conf[:, :, None].astype(np.float32), MembershipDesign(rows))
        for result in attack_targets(signals, WITH_REFERENCES, [0], Setup(mode, seed=seed)):  # type: ignore[arg-type]
            metrics = result.metrics()
            aucs[result.scores.attack].append(metrics.auc)
        m, n = metrics.n_members, metrics.n_non_members
        expected.append(np.sqrt((m + n + 1) / (12 * m * n)))
    _check(aucs, expected)


def test_quantile_regression_finds_no_leak_and_its_p_values_are_valid() -> None:
    """Features explain the level and the spread of a signal; one model, no references."""
    aucs: dict[str, list[float]] = {"quantile-regression": []}
    expected, flagged = [], []
    for seed in range(AUDITS):
        rng = np.random.default_rng([seed, 7])
        level, spread = _level_and_spread(rng)
        rows = rng.random((1, POINTS)) < 0.5
        conf = level + spread * rng.normal(size=(1, POINTS))
        signals = Signals(conf[:, :, None].astype(np.float32), MembershipDesign(rows))
        features = Features(np.column_stack([level, np.log(spread), rng.normal(size=POINTS)]))
        (result,) = attack_targets(
            signals, [RIVALS["quantile-regression"]], [0], Setup(references=0, seed=seed), features=features
        )
        metrics, queries = result.metrics(), result.truth.queries
        aucs["quantile-regression"].append(metrics.auc)
        m, n = metrics.n_members, metrics.n_non_members
        expected.append(np.sqrt((m + n + 1) / (12 * m * n)))
        flagged.append(np.mean(result.scores.log10_p_conformal[queries] <= np.log10(0.1)))
    _check(aucs, expected)
    # About 150 known non-members per audit: the rate of one audit deviates by 2.5 points, the mean of 30 by 0.5.
    assert abs(np.mean(flagged) - 0.1) < 4 * np.std(flagged, ddof=1) / np.sqrt(AUDITS) < 0.03
