"""What must hold of scores for any signals: order, symmetry, and that nobody reads the answer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from plmia import (
    ATTACKS,
    LIRA,
    PL_MIA,
    PL_MIA_PLUS,
    Attack,
    AttackView,
    BinaryVote,
    CauchyCombination,
    FixedVariance,
    GaussianLR,
    MembershipDesign,
    NoCalibration,
    PooledVariance,
    Setup,
    Signals,
    WithinClass,
    attack_targets,
)
from plmia.attacks.calibration import FreshPopulation, MeanOfViews, MedianOfViews
from plmia.attacks.cauchy_sum import cauchy_mean
from plmia.attacks.scoring import Scores, score, score_all
from plmia.attacks.statistics import MedianCentre, evaluate
from plmia.attacks.view import References
from plmia.data.designs import ReferencePlan
from plmia.evaluation.metrics import roc_curve
from plmia.evaluation.targets import _shared_sums

Floats = npt.NDArray[np.float64]
Simulate = Callable[..., Signals]

CALIBRATIONS = [NoCalibration(), BinaryVote(), BinaryVote(math.log(2)), CauchyCombination()]
STRICT = (NoCalibration, CauchyCombination)
seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class TargetItself:
    """The statistic is the target's signal, so that a test can choose phi."""

    def __call__(self, view: AttackView) -> Floats:
        return view.target


def view_of(phi: npt.ArrayLike, population: Sequence[int], labels: npt.NDArray[np.integer] | None = None) -> AttackView:
    """A view whose statistic `TargetItself` is ``phi`` [points] or [points, views]."""
    values = np.asarray(phi, dtype=np.float64).reshape(len(np.asarray(phi)), -1)
    nobody = References(np.zeros((1, *values.shape)), np.arange(1), np.zeros((1, len(values)), bool))
    return AttackView(values, nobody, np.asarray(population, dtype=np.intp), labels)


def scored(view: AttackView, calibration: Any, **how: Any) -> Scores:
    return score(Attack("test", TargetItself(), calibration, **how), view, np.random.default_rng(0))


@st.composite
def phi_and_population(draw: st.DrawFn) -> tuple[Floats, list[int]]:
    """Statistics of up to 40 points, many of them tied, and a population among them that is not constant."""
    few = st.integers(-3, 3).map(float)
    many = st.floats(-1e3, 1e3, width=32)
    phi = draw(st.lists(draw(st.sampled_from([few, many])), min_size=5, max_size=40))
    population = draw(st.lists(st.integers(0, len(phi) - 1), unique=True, min_size=2, max_size=len(phi) - 2))
    assume(np.ptp(np.array(phi)[population]) > 1e-6)
    return np.array(phi), sorted(population)


# Order ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calibration", CALIBRATIONS, ids=str)
@given(phi_and_population())
def test_the_score_grows_with_phi(calibration: Any, sample: tuple[Floats, list[int]]) -> None:
    phi, population = sample
    result = scored(view_of(phi, population), calibration)
    queries = np.setdiff1d(np.arange(len(phi)), population)
    queries = queries[np.argsort(phi[queries], kind="stable")]
    steps, rises = np.diff(phi[queries]), np.diff(result.score[queries])
    assert (rises >= 0).all()
    assert (rises[steps == 0] == 0).all()
    if isinstance(calibration, STRICT):
        assert (rises[steps > 0] > 0).all()
    for p_values in (result.log10_p, result.log10_p_conformal):
        assert (np.diff(p_values[queries]) <= 0).all()
        assert (p_values <= 0).all()


@pytest.mark.parametrize("size", [2, 30, 3000])
@given(seed=seeds)
@example(seed=0)
def test_scores_stay_finite_and_strictly_ordered_up_to_a_thousand_sigma(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    population = rng.normal(size=size)
    population /= math.sqrt(2) * population.std(ddof=1)
    queries = np.sort(rng.uniform(-1000, 1000, 300))
    view = view_of(np.concatenate([population, queries]), range(size))
    result = scored(view, CauchyCombination())
    assert np.isfinite(result.score).all()
    assert np.isfinite(result.log10_p).all()
    assert (np.diff(result.score[size:]) > 0).all()
    assert result.log10_p[-1] < -100_000  # about 1000^2 / 2 / log(10)


@given(seed=seeds, centre=st.floats(-900, 900), size=st.sampled_from([3, 50, 4000]))
def test_neighbours_that_rounding_would_tie_or_swap_stay_in_order(seed: int, centre: float, size: int) -> None:
    """Queries some thirty roundings apart, whose sums over the population are rounded by more than their distance."""
    rng = np.random.default_rng(seed)
    population = rng.normal(size=size)
    queries = centre + np.arange(1000) * 32 * np.spacing(max(abs(centre), 1.0))
    view = view_of(np.concatenate([population, queries]), range(size))
    assert (np.diff(scored(view, CauchyCombination()).score[size:]) > 0).all()


@pytest.mark.parametrize("mode", ["online", "offline"])
@given(seed=seeds, views=st.integers(1, 3), pairs=st.integers(3, 10), points=st.integers(20, 90))
def test_pl_mia_pl_mia_plus_and_lira_of_one_variance_rank_alike(
    simulate_signals: Simulate, mode: Any, seed: int, views: int, pairs: int, points: int
) -> None:
    signals = simulate_signals(seed, models=2 * pairs, points=points, views=views, dtype="float64")
    # Offline LiRA has a statistic of its own, so the same statistic without calibration stands in for it.
    plain = Attack("plain", PL_MIA.statistic, NoCalibration())
    assert mode == "offline" or evaluate(LIRA.statistic, _view(signals, 0)) == pytest.approx(
        evaluate(plain.statistic, _view(signals, 0))
    )
    members = signals.design.matrix[0]
    view = _view(signals, 0, mode=mode)
    queries = np.setdiff1d(np.arange(points), view.population)
    assume(0 < members[queries].sum() < len(queries))
    none, votes, cauchy = (s.score[queries] for s in score_all([plain, PL_MIA_PLUS, PL_MIA], view))
    curve, same = roc_curve(none, members[queries]), roc_curve(cauchy, members[queries])
    assert curve.true_positives.tolist() == same.true_positives.tolist()
    assert curve.false_positives.tolist() == same.false_positives.tolist()
    assert curve.auc == same.auc
    assert (np.diff(votes[np.argsort(none)]) >= 0).all()  # votes may tie two queries, never swap them


@given(seed=seeds, n_queries=st.integers(1, 400), size=st.integers(2, 400))
def test_the_cauchy_mean_depends_on_no_order(seed: int, n_queries: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    queries, population = 5 * rng.normal(size=n_queries), rng.normal(size=size)
    p, q = rng.permutation(n_queries), rng.permutation(size)
    for exact_below in (0, 10**9):  # the interpolated and the direct sum
        straight = cauchy_mean(queries, population, exact_below=exact_below)
        mixed = cauchy_mean(queries[p], population[q], exact_below=exact_below)
        assert mixed.sign.tobytes() == straight.sign[p].tobytes()
        assert mixed.log_abs.tobytes() == straight.log_abs[p].tobytes()


# Symmetry ------------------------------------------------------------------------------------------------------------


def _view(signals: Signals, target: int, **fields: Any) -> AttackView:
    """The view of a target: all other pairs are references, a quarter of its non-members are the population."""
    own = target - target % 2
    rows = np.array([m for m in range(signals.n_models) if m not in (own, own + 1)])
    outsiders = np.flatnonzero(~signals.design.matrix[target])
    assume(len(outsiders) > 6)
    view = AttackView(
        signals.values[target].astype(np.float64),
        References(signals.values, rows, signals.design.matrix[rows]),
        outsiders[: max(5, len(outsiders) // 4)],
        signals.labels,
    )
    return dataclasses.replace(view, **fields)


def _same(one: Scores, other: Scores, tolerance: float) -> None:
    for key in ("score", "log10_p", "log10_p_conformal"):
        np.testing.assert_allclose(getattr(other, key), getattr(one, key), rtol=tolerance, atol=tolerance)


# Which attacks give the same bytes for any order of the points: those of which nothing is summed over points. The one
# fixed variance and the deviation of phi in the population are such sums; they agree to the last digits only. (NumPy
# adds up a lone cell in another order than many, so a last block of one point and one view does so, too.)
POINTWISE = {"attack-p", "attack-r", "lira", "rmia", "pl-mia-plus"}


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("name", ATTACKS)
@given(seed=seeds, views=st.integers(1, 3), pairs=st.integers(3, 20), points=st.integers(16, 60), data=st.data())
def test_permuting_points_permutes_scores(
    simulate_signals: Simulate,
    name: str,
    mode: Any,
    seed: int,
    views: int,
    pairs: int,
    points: int,
    data: st.DataObject,
) -> None:
    signals = simulate_signals(seed, models=2 * pairs, points=points, views=views)
    order = np.array(data.draw(st.permutations(range(points))))
    view = _view(signals, 0, mode=mode)
    moved = Signals(
        np.ascontiguousarray(signals.values[:, order]), MembershipDesign(signals.design.matrix[:, order]), None
    )
    place = np.argsort(order)
    other = _view(moved, 0, mode=mode, population=np.sort(place[view.population]))
    (one,), (permuted,) = score_all([ATTACKS[name]], view), score_all([ATTACKS[name]], other)
    if name in POINTWISE:
        assert permuted.score.tobytes() == one.score[order].tobytes()
        assert permuted.log10_p.tobytes() == one.log10_p[order].tobytes()
    columns = (one.score, one.log10_p, one.log10_p_conformal, one.statistic)
    reordered = Scores(one.attack, *(column[order] for column in columns))
    _same(reordered, permuted, 1e-9)


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("name", ATTACKS)
@given(seed=seeds, views=st.integers(1, 2), pairs=st.integers(3, 20), data=st.data())
def test_permuting_models_keeps_scores(
    simulate_signals: Simulate, name: str, mode: Any, seed: int, views: int, pairs: int, data: st.DataObject
) -> None:
    signals = simulate_signals(seed, models=2 * pairs, points=30, views=views, dtype="float64")
    order = np.array(data.draw(st.permutations(range(2, 2 * pairs))))
    models = np.concatenate([[0, 1], order])  # pairs come apart, which is another path through the sums
    mixed = Signals(signals.values[models], MembershipDesign(signals.design.matrix[models]), None)
    (one,) = score_all([ATTACKS[name]], _view(signals, 0, mode=mode))
    (other,) = score_all([ATTACKS[name]], _view(mixed, 0, mode=mode))
    if name in ("attack-p", "attack-r"):  # counts: exact
        assert other.score.tobytes() == one.score.tobytes()
    _same(one, other, 1e-8)


GAUSSIAN = [
    Attack(f"{type(variance).__name__} {type(centre).__name__}", GaussianLR(variance, centre), calibration)
    for variance in (GaussianLR().variance, FixedVariance(), PooledVariance())
    for centre in (GaussianLR().centre, MedianCentre())
    for calibration in (NoCalibration(), CauchyCombination())
]


@pytest.mark.parametrize("mode", ["online", "offline"])
@given(
    seed=seeds,
    shift=st.floats(-50, 50),
    scale=st.floats(0.1, 10),
    attack=st.sampled_from(GAUSSIAN),
    views=st.integers(1, 2),
)
def test_shifting_and_stretching_all_signals_keeps_gaussian_scores(
    simulate_signals: Simulate, mode: Any, seed: int, shift: float, scale: float, attack: Attack, views: int
) -> None:
    signals = simulate_signals(seed, models=12, points=40, views=views, dtype="float64")
    moved = dataclasses.replace(signals, values=scale * signals.values + shift)
    (one,), (other,) = (score_all([attack], _view(s, 0, mode=mode)) for s in (signals, moved))
    _same(one, other, 1e-7)


@given(phi_and_population())
def test_with_one_view_mean_and_median_of_views_agree(sample: tuple[Floats, list[int]]) -> None:
    """The cheap path (mean) and the path pair by pair (median) are then two computations of one number."""
    phi, population = sample
    view = view_of(phi, population)
    for calibration in (BinaryVote(), CauchyCombination()):
        cheap = scored(view, calibration, views=MeanOfViews())
        pairwise = scored(view, calibration, views=MedianOfViews())
        _same(cheap, pairwise, 1e-8)


# Nobody reads the answer ---------------------------------------------------------------------------------------------


def _flipped(signals: Signals, models: Sequence[int], points: npt.NDArray[np.intp]) -> Signals:
    """The same signals with the membership of some models turned round at some points."""
    matrix = signals.design.matrix.copy()
    matrix[np.ix_(models, points)] ^= True
    return dataclasses.replace(signals, design=MembershipDesign(matrix))


def _bytes(results: Sequence[Scores]) -> list[bytes]:
    return [getattr(s, key).tobytes() for s in results for key in ("score", "log10_p", "log10_p_conformal")]


@pytest.mark.parametrize("mode", ["online", "offline"])
@given(seed=seeds, views=st.integers(1, 2), pairs=st.integers(3, 12), points=st.integers(16, 60))
def test_the_targets_membership_cannot_change_a_score(
    simulate_signals: Simulate, mode: Any, seed: int, views: int, pairs: int, points: int
) -> None:
    signals = simulate_signals(seed, models=2 * pairs, points=points, views=views)
    view = _view(signals, 0, mode=mode)
    queries = np.setdiff1d(np.arange(points), view.population)
    turned = _view(_flipped(signals, [0], queries), 0, mode=mode, population=view.population)
    assert _bytes(list(score_all(list(ATTACKS.values()), turned))) == _bytes(
        list(score_all(list(ATTACKS.values()), view))
    )


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("whole_pair", [False, True])
@given(seed=seeds, views=st.integers(1, 2), pairs=st.integers(4, 12), data=st.data())
def test_nor_can_it_where_sums_are_shared_between_targets(
    simulate_signals: Simulate, mode: Any, whole_pair: bool, seed: int, views: int, pairs: int, data: st.DataObject
) -> None:
    """The target is a reference of all other targets there, so its row is at hand while the sums are made."""
    points, models = 30, 2 * pairs
    signals = simulate_signals(seed, models=models, points=points, views=views)
    target = data.draw(st.integers(0, models - 1))
    population = _view(signals, target).population
    queries = np.setdiff1d(np.arange(points), population)
    pair = [target, target ^ 1] if whole_pair else [target]
    turned = _flipped(signals, pair, queries)
    plan = ReferencePlan.draw(signals.design, None, np.random.default_rng(seed))
    attacks = list(ATTACKS.values())

    def results(given_signals: Signals) -> list[bytes]:
        for _, known, served in _shared_sums(given_signals, attacks, plan, range(models)):
            if target in served:
                assert known is not None
                view = _view(given_signals, target, mode=mode, known=known, population=population)
                return _bytes(list(score_all(attacks, view)))
        raise AssertionError("the target was not served")

    assert results(turned) == results(signals)


@given(seed=seeds, half=st.integers(10, 40), models=st.integers(8, 13), views=st.integers(1, 2), offline=st.booleans())
def test_odd_numbers_of_points_and_models_work(
    simulate_signals: Simulate, seed: int, half: int, models: int, views: int, offline: bool
) -> None:
    points = 2 * half + 1
    signals = simulate_signals(seed, models=models, points=points, views=views)
    setup = Setup("offline" if offline else "online", population=5, seed=seed)
    counts = signals.design.matrix[2:].sum(axis=0)
    assume(((counts >= 2) & (models - 2 - counts >= 2)).all())
    results = list(attack_targets(signals, list(ATTACKS.values()), [0], setup))
    assert len(results) == len(ATTACKS)
    for result in results:
        assert result.scores.score.shape == (points,)
        assert np.isfinite(result.scores.score).all()
        assert len(result.truth.queries) + len(result.population) == points
        assert 0 <= result.metrics().auc <= 1


@pytest.mark.parametrize("mode", ["online", "offline"])
@settings(max_examples=15)
@given(seed=seeds, views=st.integers(1, 2), pairs=st.integers(5, 14), wanted=st.booleans())
def test_all_targets_together_score_like_each_alone(
    simulate_signals: Simulate, mode: Any, seed: int, views: int, pairs: int, wanted: bool
) -> None:
    """Sums carried from target to target against sums made anew."""
    signals = simulate_signals(seed, models=2 * pairs, points=41, views=views, dtype="float64")
    setup = Setup(mode, references=6 if wanted else None, seed=seed)
    attacks = list(ATTACKS.values())
    together = {(r.target, r.scores.attack): r for r in attack_targets(signals, attacks, range(2 * pairs), setup)}
    assert len(together) == 2 * pairs * len(attacks)
    for target in (0, pairs, 2 * pairs - 1):
        for alone in attack_targets(signals, attacks, [target], setup):
            other = together[target, alone.scores.attack]
            assert other.population.tolist() == alone.population.tolist()
            assert other.references.tolist() == alone.references.tolist()
            assert other.left_out.tolist() == alone.left_out.tolist() == [target ^ 1]
            _same(alone.scores, other.scores, 1e-8)


# A query is never in its own population ------------------------------------------------------------------------------


@given(phi_and_population(), st.sampled_from([0.0, 0.5]))
def test_a_population_point_is_not_its_own_rival(sample: tuple[Floats, list[int]], gamma: float) -> None:
    phi, population = sample
    votes = scored(view_of(phi, population), BinaryVote(gamma))
    combined = scored(view_of(phi, population), CauchyCombination())
    sigma = math.sqrt(2) * phi[population].std(ddof=1)
    for own in population:
        others = [z for z in population if z != own]
        wins = sum(phi[own] - phi[z] > gamma for z in others)
        if abs(phi[own] - phi[others] - gamma).min() > 1e-9:
            assert votes.score[own] == wins / len(others)
        rivals = sum(phi[z] >= phi[own] for z in others)
        assert votes.log10_p_conformal[own] == pytest.approx(math.log10((1 + rivals) / (len(others) + 1)), abs=1e-12)
        x = [(phi[own] - phi[z]) / sigma for z in others]
        if max(map(abs, x)) < 6:
            terms = [math.tan(math.pi * (0.5 * math.erf(d / math.sqrt(2)))) for d in x]
            exact = math.fsum(terms) / len(others)
            noise = 1e-7 * math.fsum(map(abs, terms)) / len(others)
            assert math.sinh(combined.score[own]) == pytest.approx(exact, rel=1e-6, abs=noise)


@given(seed=seeds, points=st.integers(8, 60), data=st.data())
def test_fresh_and_within_class_populations_leave_the_query_out(seed: int, points: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, size=points)
    population = np.flatnonzero(rng.random(points) < 0.7)
    assume(len(population) > 3)
    view = view_of(rng.normal(size=points), population, labels)
    size = data.draw(st.integers(2, len(population) - 1))
    seen = []
    for comparison in FreshPopulation(size).comparisons(view, rng):
        assert comparison.population.shape == (len(comparison.queries), size)
        for query, chosen in zip(comparison.queries, comparison.population, strict=True):
            assert query not in chosen
            assert len(set(chosen)) == size
            assert set(chosen) <= set(population)
        seen += comparison.queries.tolist()
    assert sorted(seen) == list(range(points))
    assume(all((labels[population] == label).sum() >= 3 for label in set(labels)))
    seen = []
    for comparison in WithinClass().comparisons(view, rng):
        assert len(set(labels[comparison.queries])) == 1
        assert set(labels[comparison.population]) == set(labels[comparison.queries])
        in_it = np.isin(comparison.queries, comparison.population)
        assert comparison.size().tolist() == (len(comparison.population) - in_it).tolist()
        seen += comparison.queries.tolist()
    assert sorted(seen) == list(range(points))


# Repeatability -------------------------------------------------------------------------------------------------------


@given(seed=seeds, company=st.lists(st.sampled_from(list(ATTACKS.values())), unique_by=lambda a: a.name))
def test_an_attack_scores_the_same_in_any_company(simulate_signals: Simulate, seed: int, company: list[Attack]) -> None:
    signals = simulate_signals(seed, models=10, points=160)
    view = _view(signals, 0)
    fresh = Attack("fresh", PL_MIA.statistic, BinaryVote(), population=FreshPopulation(6))
    (alone,) = score_all([fresh], view, seed=seed)
    *_, with_others = score_all([*company, fresh], view, seed=seed)
    (other_seed,) = score_all([fresh], view, seed=seed + 1)
    assert _bytes([alone]) == _bytes([with_others])
    assert _bytes([alone]) != _bytes([other_seed])
