"""Real signals: attacks reach the strength measured on them before, in the same order. Skipped where they are absent.

The files are looked for in the folder that the environment variable PLMIA_DATA names, or else in `shared/data/signals`
beside the repository.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plmia import ATTACKS, Attack, Setup, Signals, attack_targets
from plmia.evaluation.metrics import AttackMetrics, TargetMetrics, summarise

TARGETS = range(6)
COMPARED = [ATTACKS[name] for name in ("pl-mia", "lira-fixed", "rmia")]


def _measure(signals: Signals, attacks: list[Attack], setup: Setup) -> dict[str, AttackMetrics]:
    results: dict[str, list[object]] = {attack.name: [] for attack in attacks}
    for result in attack_targets(signals, attacks, TARGETS, setup):
        results[result.scores.attack].append(result.metrics())
    return {name: summarise(metrics) for name, metrics in results.items()}  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def with_64(cifar10: Signals) -> dict[str, AttackMetrics]:
    return _measure(cifar10, [*COMPARED, ATTACKS["lira"], ATTACKS["pl-mia-plus"]], Setup(references=64))


@pytest.fixture(scope="module")
def with_4(cifar10: Signals) -> dict[str, AttackMetrics]:
    return _measure(cifar10, COMPARED, Setup(references=4))


@pytest.mark.parametrize(("name", "auc"), [("pl-mia", 74.3), ("lira-fixed", 74.2), ("rmia", 72.6)])
def test_auc_with_64_references(name: str, auc: float, with_64: dict[str, AttackMetrics]) -> None:
    """Mean of six targets, measured by other code on the same signals: within half a point."""
    assert 100 * with_64[name].auc.mean == pytest.approx(auc, abs=0.5)


def test_with_64_references_pl_mia_leads_and_rmia_trails(with_64: dict[str, AttackMetrics]) -> None:
    aucs = {name: with_64[name].auc.mean for name in ("pl-mia", "lira-fixed", "rmia")}
    assert aucs["pl-mia"] > aucs["lira-fixed"] > aucs["rmia"]
    tprs = {name: with_64[name].tpr_at(0.001).tpr.mean for name in aucs}
    assert tprs["pl-mia"] > max(tprs["lira-fixed"], tprs["rmia"]) > 0.06


def without_thresholds(metrics: TargetMetrics) -> TargetMetrics:
    return replace(metrics, operating=tuple(replace(point, threshold=0.0) for point in metrics.operating))


def test_pl_mia_has_the_roc_curve_of_lira_with_its_variance(with_64: dict[str, AttackMetrics]) -> None:
    for ours, theirs in zip(with_64["pl-mia"].per_target, with_64["lira"].per_target, strict=True):
        assert without_thresholds(ours) == without_thresholds(theirs)  # the thresholds are on other scales
    assert with_64["pl-mia-plus"].auc.mean == pytest.approx(with_64["lira"].auc.mean, abs=1e-4)


@pytest.mark.parametrize(("name", "auc"), [("pl-mia", 57.6), ("lira-fixed", 68.2), ("rmia", 71.9)])
def test_auc_with_4_references(name: str, auc: float, with_4: dict[str, AttackMetrics]) -> None:
    """Another draw of four references moves it by more than with 64: within 1.5 points."""
    assert 100 * with_4[name].auc.mean == pytest.approx(auc, abs=1.5)


def test_with_4_references_pl_mia_collapses(with_4: dict[str, AttackMetrics]) -> None:
    assert with_4["rmia"].auc.mean - with_4["pl-mia"].auc.mean > 0.1
    assert with_4["rmia"].tpr_at(0.001).tpr.mean > 10 * with_4["pl-mia"].tpr_at(0.001).tpr.mean


def test_references_come_in_whole_pairs_without_the_target(cifar10: Signals) -> None:
    (result,) = attack_targets(cifar10, [ATTACKS["attack-p"]], [3], Setup(references=64))
    assert len(result.references) == 64
    assert result.left_out.tolist() == [2]
    assert set(result.references) == set(range(66)) - {2, 3}
    inside = cifar10.design.matrix[result.references].sum(axis=0)
    assert (inside == 32).all()  # as many IN as OUT references at every point


def test_conformal_p_values_hold_on_real_signals(cifar10: Signals) -> None:
    """Share of held-out non-members below the level, mean of the six targets.

    Given the population of 6,250 a target's share has a deviation of 0.4 points at 10 % and 0.13 at 1 %; targets share
    points, so no more than one target's noise is averaged out here: four deviations.
    """
    shares: dict[float, list[float]] = {0.1: [], 0.01: []}
    for result in attack_targets(cifar10, [ATTACKS["pl-mia"]], TARGETS, Setup()):
        queries = result.truth.queries[~result.truth.members[result.truth.queries]]
        for level, values in shares.items():
            values.append(float(np.mean(result.scores.log10_p_conformal[queries] <= np.log10(level))))
    assert np.mean(shares[0.1]) == pytest.approx(0.1, abs=0.016)
    assert np.mean(shares[0.01]) == pytest.approx(0.01, abs=0.0052)


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_location_runs(location: Signals, mode: str) -> None:
    results = _measure(location, list(ATTACKS.values()), Setup(mode))  # type: ignore[arg-type]
    assert set(results) == set(ATTACKS)
    for name, metrics in results.items():
        assert metrics.auc.mean > 0.7, name
        assert metrics.auc.std < 0.02, name
        assert not metrics.tpr_at(0.0001).resolved  # 1,879 non-members do not show it
    if mode == "online":
        assert results["pl-mia"].auc.mean > results["lira-fixed"].auc.mean > results["rmia"].auc.mean
