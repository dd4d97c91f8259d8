"""One suite over all statistics, calibrations, view aggregations and population policies: what their contracts say."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plmia import ATTACKS, Attack, BinaryVote, CauchyCombination, NoCalibration, Signals
from plmia.attacks.attack import RIVALS
from plmia.attacks.calibration import (
    Calibration,
    FreshPopulation,
    MeanOfViews,
    MedianOfViews,
    PopulationPolicy,
    SharedPopulation,
    ViewAggregation,
    VotesOfViews,
    WithinClass,
)
from plmia.attacks.cauchy_sum import SignedLog
from plmia.attacks.rivals import MeanDifference, ScaledBayesLR
from plmia.attacks.scoring import score_all
from plmia.attacks.statistics import (
    BayesLR,
    FixedVariance,
    FunctionOfView,
    GaussianLR,
    MedianCentre,
    OneSided,
    PointwiseStatistic,
    PooledVariance,
    PublishedFixedVariance,
    Statistic,
    evaluate,
)
from plmia.attacks.view import AttackView, Features, References
from plmia.errors import AttackError, PopulationError, ReferencesError

Simulate = Callable[..., Signals]


def _target(view: AttackView) -> np.ndarray:
    return view.target


STATISTICS: list[Statistic] = [
    *dict.fromkeys(attack.statistic for attack in [*ATTACKS.values(), *RIVALS.values()]),
    GaussianLR(PublishedFixedVariance(), MedianCentre()),
    GaussianLR(PooledVariance(), offline=OneSided()),
    BayesLR(trim=0.2),
    FunctionOfView(_target),
]
CALIBRATIONS: list[Calibration] = [
    NoCalibration(),
    BinaryVote(),
    BinaryVote(0.3),
    CauchyCombination(),
    MeanDifference(),
]
AGGREGATIONS: list[ViewAggregation] = [MeanOfViews(), MedianOfViews(), VotesOfViews()]
POLICIES: list[PopulationPolicy] = [SharedPopulation(), WithinClass(), FreshPopulation(9)]


def _view(signals: Signals, mode: Any = "online") -> AttackView:
    rows = np.arange(2, signals.n_models)
    references = References(signals.values, rows, signals.design.matrix[rows])
    population = np.flatnonzero(~signals.design.matrix[0])[::3]
    features = Features(np.random.default_rng(0).normal(size=(signals.n_points, 2)))
    target = signals.values[0].astype(np.float64)
    return AttackView(target, references, population, signals.labels, mode, features=features)


# Statistics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda statistic: repr(statistic).split(" at 0x")[0])
class TestStatistic:
    def test_it_is_finite_and_blocks_do_not_matter(
        self, statistic: Statistic, views: int, mode: Any, simulate_signals: Simulate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        view = _view(simulate_signals(0, models=16, points=300, views=views), mode)
        whole = evaluate(statistic, view)
        assert whole.shape == view.target.shape
        assert np.isfinite(whole).all()
        monkeypatch.setattr("plmia.attacks.view.POINTS_PER_BLOCK", 64)
        np.testing.assert_allclose(evaluate(statistic, view), whole, rtol=1e-6, atol=1e-6)

    def test_known_sums_do_not_matter(
        self, statistic: Statistic, views: int, mode: Any, simulate_signals: Simulate
    ) -> None:
        view = _view(simulate_signals(1, models=16, points=300, views=views), mode)
        summed = view.with_sums(statistic.uses | statistic.fit_uses())
        np.testing.assert_allclose(evaluate(statistic, summed), evaluate(statistic, view), rtol=1e-6, atol=1e-6)

    def test_the_mode_decides_what_is_equal(
        self, statistic: Statistic, views: int, mode: Any, simulate_signals: Simulate
    ) -> None:
        view = _view(simulate_signals(2, models=16, points=200, views=views), mode)
        same = statistic.in_mode(mode)
        assert same.in_mode(mode) == same
        assert hash(same) == hash(statistic.in_mode(mode))
        assert evaluate(same, view).tobytes() == evaluate(statistic, view).tobytes()

    def test_the_summary_is_plain_values(
        self, statistic: Statistic, views: int, mode: Any, simulate_signals: Simulate
    ) -> None:
        summary = statistic.fit(_view(simulate_signals(3, models=16, points=200, views=views), mode)).summary()
        assert summary is None or json.loads(json.dumps(summary)) == summary

    def test_fewer_references_than_it_needs_are_refused(
        self, statistic: Statistic, views: int, mode: Any, simulate_signals: Simulate
    ) -> None:
        view = _view(simulate_signals(4, models=16, points=200, views=views), mode)
        least = statistic.least_references(views)
        in_mask = view.references.in_mask.copy()
        in_mask[:, 17] = True
        in_mask[:least, 17] = False
        enough = dataclasses.replace(view, references=dataclasses.replace(view.references, in_mask=in_mask))
        assert np.isfinite(evaluate(statistic, enough)).all()
        if least == 0 or isinstance(statistic.source, type(_target)):
            return  # it reads no references, or is a function that checks nothing
        in_mask = in_mask.copy()
        in_mask[:least, 17] = np.arange(least) > 0
        in_mask[least - 1, 17] = True
        if mode == "online" and isinstance(statistic, BayesLR | ScaledBayesLR):
            return  # all references count alike
        short = dataclasses.replace(view, references=dataclasses.replace(view.references, in_mask=in_mask))
        with pytest.raises(ReferencesError, match="17"):
            statistic.fit(short)


def test_defaults_are_enough_for_a_statistic(simulate_signals: Simulate) -> None:
    @dataclasses.dataclass(frozen=True)
    class Mine(PointwiseStatistic):
        def __call__(self, block):
            return 2 * block.target

    view = _view(simulate_signals(5, models=8, points=60))
    (scores,) = score_all([Attack("mine", Mine(), BinaryVote())], view)
    assert scores.statistic.tolist() == (2 * view.target[:, 0]).tolist()
    assert (Mine().uses, Mine().fit_uses(), Mine().least_references(3)) == (frozenset(), frozenset(), 1)
    in_mask = view.references.in_mask.copy()
    in_mask[:, 17] = True
    short = dataclasses.replace(view.references, in_mask=in_mask)
    with pytest.raises(ReferencesError, match=r"Mine needs 1 OUT .*17"):
        Mine().fit(dataclasses.replace(view, references=short))


# Calibrations --------------------------------------------------------------------------------------------------------


def _numbers(raw: np.ndarray | SignedLog) -> np.ndarray:
    return raw.asinh() if isinstance(raw, SignedLog) else raw


@pytest.mark.parametrize("calibration", CALIBRATIONS, ids=repr)
class TestCalibration:
    def test_larger_statistics_have_larger_scores(self, calibration: Calibration) -> None:
        rng = np.random.default_rng(0)
        query, population = np.sort(rng.normal(size=40)), rng.normal(size=30)
        scores = _numbers(calibration.shared(query, population, np.full(40, 30)))
        assert scores.shape == (40,)
        assert np.isfinite(scores).all()
        assert (np.diff(scores) >= 0).all()
        assert scores[-1] > scores[0]

    def test_the_fast_path_agrees_with_pairs(self, calibration: Calibration) -> None:
        rng = np.random.default_rng(1)
        query, population = rng.normal(size=40), rng.normal(size=30)
        differences, std = query[:, None] - population, np.array([np.sqrt(2) * population.std(ddof=1)])
        if not calibration.compares:
            with pytest.raises(AttackError):
                calibration.pairwise(differences, np.full(40, 30), std)
            assert calibration.shared(query, population[:0], np.full(40, 30)) is query
            return
        fast, slow = (
            _numbers(calibration.shared(query, population, np.full(40, 30))),
            _numbers(calibration.pairwise(differences, np.full(40, 30), std)),
        )
        np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-9)

    def test_only_a_scaled_one_reads_the_deviation(self, calibration: Calibration) -> None:
        differences = np.random.default_rng(2).normal(size=(10, 20))
        if calibration.compares:
            one, other = (
                _numbers(calibration.pairwise(differences, np.full(10, 20), np.array([s]))) for s in (1.0, 2.0)
            )
            assert np.array_equal(one, other) == (not calibration.scaled)

    def test_a_difference_within_the_threshold_does_not_count(self, calibration: Calibration) -> None:
        assert calibration.threshold >= 0
        if calibration.threshold:
            scores = calibration.pairwise(np.full((3, 5), calibration.threshold), np.full(3, 5), np.ones(1))
            assert _numbers(scores).tolist() == [0.0] * 3
            assert calibration.explain_constant(0.0)
        assert not calibration.explain_constant(0.5)


# View aggregations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", AGGREGATIONS, ids=repr)
class TestViewAggregation:
    @pytest.mark.parametrize("n_views", [1, 2, 5])
    def test_points_and_pairs(self, views: ViewAggregation, n_views: int) -> None:
        phi = np.random.default_rng(n_views).normal(size=(12, n_views))
        differences = phi.T[:, :, None] - phi.T[:, None, :]
        pairs, points = views.pairs(differences), views.points(phi)
        assert pairs.shape == (12, 12)
        assert points.shape == (12,)
        assert (np.diag(pairs) == 0).all()
        np.testing.assert_allclose(pairs, -pairs.T, atol=1e-15)
        assert np.abs(pairs).max() <= views.largest_difference
        if views.linear:
            np.testing.assert_allclose(pairs, points[:, None] - points, atol=1e-15)

    def test_one_that_needs_a_population_is_refused_without(self, views: ViewAggregation) -> None:
        statistic = ATTACKS["lira"].statistic
        if views.needs_population:
            with pytest.raises(AttackError):
                Attack("mine", statistic, NoCalibration(), views)
        else:
            Attack("mine", statistic, NoCalibration(), views)


# Population policies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
class TestPopulationPolicy:
    def test_every_point_is_scored_once_against_known_non_members(
        self, policy: PopulationPolicy, simulate_signals: Simulate
    ) -> None:
        view = _view(simulate_signals(0, models=8, points=120))
        comparisons = list(policy.comparisons(view, np.random.default_rng(0)))
        queries = np.concatenate([comparison.queries for comparison in comparisons])
        assert sorted(queries.tolist()) == list(range(120))
        for comparison in comparisons:
            assert set(comparison.population.ravel()) <= set(view.population)
            assert comparison.shared or not policy.shared
            assert (comparison.size() >= 1).all()
            if not comparison.shared:
                assert not (comparison.population == comparison.queries[:, None]).any()

    def test_the_generator_decides(self, policy: PopulationPolicy, simulate_signals: Simulate) -> None:
        view = _view(simulate_signals(1, models=8, points=120))
        one, same = (
            [c.population.tolist() for c in policy.comparisons(view, np.random.default_rng(3))] for _ in range(2)
        )
        assert one == same

    def test_a_population_of_one_is_refused(self, policy: PopulationPolicy, simulate_signals: Simulate) -> None:
        view = dataclasses.replace(_view(simulate_signals(2, models=8, points=120)), population=np.array([5]))
        with pytest.raises(PopulationError):
            list(policy.comparisons(view, np.random.default_rng(0)))


def test_every_part_states_its_whole_contract() -> None:
    parts = [(STATISTICS, Statistic), (CALIBRATIONS, Calibration), (AGGREGATIONS, ViewAggregation)]
    for values, contract in [*parts, (POLICIES, PopulationPolicy)]:
        assert all(isinstance(value, contract) for value in values)
    assert FixedVariance().shared
    assert not PooledVariance().shared
