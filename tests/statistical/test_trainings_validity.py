"""Intervals over trainings cover, with and without a leak, although models are references for each other.

Seeds are fixed. Each setting has 200 simulated audits; in each, all eight models are targets in turn and the others,
without the target's complement, are references. Records stay the same over audits; designs and trainings are new. The
truth is the mean over 400 further audits. A test fails below 95 % less three standard errors (90.4 %), which a coverage
of 95 % does for one seed in 700.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from plmia.evaluation.intervals import over_targets
from plmia.evaluation.metrics import roc_curve
from plmia.evaluation.trainings import OverTrainings, TrainingsResult

AUDITS, FURTHER = 200, 400
LEAST = 0.95 - 3 * math.sqrt(0.95 * 0.05 / AUDITS)
MODELS, UNITS, FPR = 8, 240, 0.1
PLANTED = 6  # records that always leak, where anything does

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Setting:
    leak: float  # mean difference between members and non-members, in standard deviations
    paired: bool  # complementary pairs, or independent halves

    def audit(self, rng: np.random.Generator) -> tuple[TrainingsResult, Floats]:
        """One audit: the result of the collector, and the AUC of each training."""
        members = np.array([rng.permutation(UNITS) < UNITS // 2 for _ in range(MODELS // (1 + self.paired))])
        if self.paired:
            members = np.stack([members, ~members], axis=1).reshape(MODELS, UNITS)
        # Records differ in level, noise and leak; trainings differ in the strength of the leak.
        fixed = np.random.default_rng(0)
        level, noise = fixed.normal(0, 2, UNITS), np.exp(fixed.normal(0, 0.3, UNITS))
        leak = self.leak * np.where(np.arange(UNITS) < PLANTED, 10.0, fixed.exponential(1, UNITS))
        strength = np.exp(0.3 * rng.normal(size=(MODELS, 1)))
        signals = level + noise * rng.normal(size=members.shape) + members * strength * leak
        collector, aucs = OverTrainings(UNITS, FPR), []
        for target in range(MODELS):
            own = [target, target ^ 1] if self.paired else [target]
            phi = statistic(signals[target], np.delete(signals, own, 0), np.delete(members, own, 0))
            outsiders = np.flatnonzero(~members[target])
            population = rng.choice(outsiders, len(outsiders) // 4, replace=False)
            beaten = np.searchsorted(np.sort(phi[population]), phi, side="left")
            log10_p = np.log10(np.minimum((1 + len(population) - beaten) / (len(population) + 1), 1.0))
            queries = np.setdiff1d(np.arange(UNITS), population)
            collector.add(target, log10_p, phi, members[target], queries, len(population))
            aucs.append(roc_curve(phi[queries], members[target][queries]).auc)
        return collector.finish(), np.array(aucs)


def statistic(target: Floats, references: Floats, members: Bools) -> Floats:
    """Linear discriminant between IN and OUT references; 0 for a record that lacks either."""
    n_in = members.sum(axis=0)
    n_out = len(members) - n_in
    inside = np.where(members, references, 0).sum(axis=0) / np.maximum(n_in, 1)
    outside = np.where(members, 0, references).sum(axis=0) / np.maximum(n_out, 1)
    variance = np.mean((references - np.where(members, inside, outside)) ** 2, axis=0)
    return np.where((n_in > 0) & (n_out > 0), (target - (inside + outside) / 2) * (inside - outside) / variance, 0.0)


@dataclass(frozen=True)
class Simulated:
    results: list[TrainingsResult]
    aucs: list[Floats]
    tpr: float  # true mean
    auc: float
    shares: Floats  # true share of trainings in which each unit is identified


@cache
def simulated(setting: Setting) -> Simulated:
    rng = np.random.default_rng(7)
    further = [setting.audit(rng)[0] for _ in range(FURTHER)]
    identified, trained = np.zeros((2, UNITS))
    for result in further:
        identified[result.exposure.index] += result.exposure.identified
        trained[result.exposure.index] += result.exposure.trained
    tpr = np.mean([result.summary.tpr.mean for result in further if result.summary.tpr is not None])
    auc = np.mean([result.summary.auc.mean for result in further])
    audits = [setting.audit(rng) for _ in range(AUDITS)]
    return Simulated([a[0] for a in audits], [a[1] for a in audits], float(tpr), float(auc), identified / trained)


SETTINGS = [Setting(leak, paired) for leak in (0.0, 1.5) for paired in (True, False)]


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_intervals_of_mean_tpr_and_mean_auc_cover(setting: Setting) -> None:
    truth = simulated(setting)
    tprs = [result.summary.tpr.interval for result in truth.results if result.summary.tpr is not None]
    aucs = [result.summary.auc.interval for result in truth.results]
    assert len(tprs) == AUDITS
    assert np.mean([interval is not None and truth.tpr in interval for interval in tprs]) >= LEAST
    assert np.mean([interval is not None and truth.auc in interval for interval in aucs]) >= LEAST


def test_the_interval_of_independent_targets_would_be_caught() -> None:
    truth = simulated(Setting(0.0, paired=False))
    assert np.mean([truth.auc in over_targets(aucs) for aucs in truth.aucs]) < LEAST


@pytest.mark.parametrize("setting", SETTINGS)
def test_non_members_are_accused_as_often_as_stated(setting: Setting) -> None:
    truth = simulated(setting)
    accused = np.array([result.summary.accused for result in truth.results])
    # The population has 30 non-members, so that the conformal rate is 3 / 31.
    assert abs(accused.mean() - 3 / 31) <= 4 * accused.std() / math.sqrt(AUDITS)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_intervals_of_single_units_cover_on_average(setting: Setting) -> None:
    truth = simulated(setting)
    covered = []
    for result in truth.results:
        exposure = result.exposure
        share = truth.shares[exposure.index]
        covered.append(np.mean((exposure.low <= share) & (share <= exposure.high)))
    assert np.mean(covered) >= 0.95


@pytest.mark.parametrize("paired", [True, False])
def test_without_a_leak_no_more_units_are_identified_often_than_the_limit(paired: bool) -> None:
    curves = [result.summary.curve for result in simulated(Setting(0.0, paired)).results]
    identified = np.mean([[point.identified for point in curve] for curve in curves], axis=0)
    limit = np.mean([[point.at_most for point in curve] for curve in curves], axis=0)
    assert np.all(identified <= limit)


def test_independent_trainings_are_no_model_of_chance() -> None:
    # Models that are references for each other confirm each other: why the curve has a limit beside the binomial.
    points = [result.summary.curve[-1] for result in simulated(Setting(0.0, paired=True)).results]
    assert np.mean([point.identified for point in points]) > 10 * np.mean([point.expected for point in points])


@pytest.mark.parametrize("paired", [True, False])
def test_records_that_always_leak_are_found_beyond_the_limit(paired: bool) -> None:
    results = simulated(Setting(1.5, paired)).results
    planted = [r.exposure.identified[np.isin(r.exposure.index, np.arange(PLANTED))].sum() for r in results]
    trained = [r.exposure.trained[np.isin(r.exposure.index, np.arange(PLANTED))].sum() for r in results]
    assert sum(planted) / sum(trained) >= 0.85
    at_half = [next(p for p in r.summary.curve if p.percent == 50) for r in results]
    assert np.mean([point.identified > point.at_most for point in at_half]) == 1
    if paired:  # all units have four trainings, so those identified in all come first
        for result in results:
            assert result.exposure.always[: result.summary.always].all()
