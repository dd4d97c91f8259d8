"""Calibrations against the paper's formulas in double loops over queries and population."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from plmia.attacks import calibration as module
from plmia.attacks.attack import Attack
from plmia.attacks.calibration import (
    BinaryVote,
    CauchyCombination,
    FreshPopulation,
    MeanOfViews,
    MedianOfViews,
    NoCalibration,
    SharedPopulation,
    ViewAggregation,
    VotesOfViews,
    WithinClass,
    in_blocks,
    null_deviation,
)
from plmia.attacks.scoring import score
from plmia.errors import AttackError, PopulationError

N_POINTS = 60
POPULATION = np.arange(20, 57)
LABELS = np.arange(N_POINTS) % 3


@dataclass(frozen=True)
class MeanPairByPair(ViewAggregation):
    """The mean, denied its cheap path."""

    def points(self, phi):
        return phi.mean(axis=1)

    def pairs(self, differences):
        return differences.mean(axis=0)


VIEWS = {
    "mean": (MeanOfViews(), np.mean),
    "mean, pair by pair": (MeanPairByPair(), np.mean),
    "median": (MedianOfViews(), np.median),
    "votes": (VotesOfViews(), lambda d: np.mean([1.0 if x > 0 else 0.5 if x == 0 else 0.0 for x in d]) - 0.5),
}
POLICIES = {"shared": SharedPopulation(), "class": WithinClass(), "fresh": FreshPopulation(9)}


def statistic(n_views, seed=0, levels=None):
    rng = np.random.default_rng(seed)
    if levels is not None:
        return rng.integers(0, levels, (N_POINTS, n_views)) / 4.0
    return rng.normal(size=(N_POINTS, 1)) + 0.5 * rng.normal(size=(N_POINTS, n_views))


def populations(policy, view, seed):
    """Return each query's population without the query, from the policy's own draws."""
    found = {}
    for comparison in policy.comparisons(view, np.random.default_rng(seed)):
        for i, query in enumerate(comparison.queries):
            z = comparison.population if comparison.shared else comparison.population[i]
            found[int(query)] = (z.tolist(), [x for x in z.tolist() if x != query])
    return [found[query] for query in range(N_POINTS)]


def naive_sigma(phi, z, difference):
    """Return the root mean square difference of all ordered pairs of different population points."""
    squares = [difference(phi[a] - phi[b]) ** 2 for a in z for b in z if a != b]
    return math.sqrt(math.fsum(squares) / len(squares))


def naive_scores(calibration, phi, compared, difference):
    scores, sigmas = np.empty(N_POINTS), {}
    for query, (whole, others) in enumerate(compared):
        differences = [difference(phi[query] - phi[z]) for z in others]
        if isinstance(calibration, BinaryVote):
            scores[query] = sum(d > calibration.gamma for d in differences) / len(others)
        else:
            if tuple(whole) not in sigmas:
                sigmas[tuple(whole)] = naive_sigma(phi, whole, difference)
            p = stats.norm.sf(np.array(differences) / sigmas[tuple(whole)])
            scores[query] = np.mean(np.tan((0.5 - p) * math.pi))
    return scores


def run(given_statistic, view, phi, calibration, views, policy, seed=3):
    attack = Attack("mine", given_statistic(phi), calibration, views, policy)
    return score(attack, view, np.random.default_rng(seed))


@pytest.mark.parametrize(("views", "difference"), VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("calibration", [BinaryVote(), BinaryVote(0.25), CauchyCombination()], ids=str)
@pytest.mark.parametrize("levels", [None, 5], ids=["continuous", "ties"])
def test_scores_match_a_double_loop(bare_view, given_statistic, views, difference, policy, calibration, levels):
    n_views = 4 if levels else 3  # quarters have exact means over four views
    phi = statistic(n_views, levels=levels)
    view = bare_view(N_POINTS, n_views, POPULATION, LABELS)
    found = run(given_statistic, view, phi, calibration, views, policy)
    naive = naive_scores(calibration, phi, populations(policy, view, 3), difference)
    if isinstance(calibration, CauchyCombination):
        assert found.score == pytest.approx(np.arcsinh(naive), rel=1e-9, abs=1e-9)
        assert found.log10_p == pytest.approx(np.log10(0.5 - np.arctan(naive) / math.pi), rel=1e-7, abs=1e-9)
    else:
        assert found.score == pytest.approx(naive, abs=1e-15)


@pytest.mark.parametrize("n_views", [1, 2, 4, 5])
@pytest.mark.parametrize(("views", "difference"), VIEWS.values(), ids=VIEWS)
def test_views_are_taken_over_differences(views, difference, n_views):
    rng = np.random.default_rng(4)
    differences = rng.integers(-3, 4, (n_views, 6, 7)) / 2
    found = views.pairs(differences)
    naive = [[difference(differences[:, i, j]) for j in range(7)] for i in range(6)]
    assert found == pytest.approx(np.array(naive), abs=1e-15)
    assert views.pairs(np.zeros((n_views, 2))).tolist() == [0.0, 0.0]
    assert views.pairs(-differences) == pytest.approx(-found, abs=0)


def test_the_median_and_the_vote_do_not_commute_with_the_difference():
    phi = np.array([[0.0, 1.0, 5.0], [5.0, 0.0, 1.0]])
    difference = (phi[0] - phi[1])[:, None]
    assert MedianOfViews().pairs(difference)[0] != MedianOfViews().points(phi)[0] - MedianOfViews().points(phi)[1]
    assert VotesOfViews().pairs(difference)[0] == pytest.approx(2 / 3 - 0.5)


@pytest.mark.parametrize("n", [2, 3, 10, 300])
@pytest.mark.parametrize("n_views", [1, 3])
def test_sigma_delta_is_the_deviation_over_all_pairs(n, n_views):
    phi = np.random.default_rng(n).normal(2.0, 3.0, (n, n_views))
    mean = phi.mean(axis=1)
    differences = (mean[:, None] - mean[None, :])[~np.eye(n, dtype=bool)]
    assert null_deviation(phi, MeanOfViews()) == pytest.approx(np.sqrt(2) * mean.std(ddof=1), rel=1e-12)
    assert null_deviation(phi, MeanOfViews()) == pytest.approx(differences.std(), rel=1e-12)
    assert null_deviation(phi, MeanPairByPair()) == pytest.approx(differences.std(), rel=1e-12)
    shuffled = phi[np.random.default_rng(1).permutation(n)]
    for views in (MedianOfViews(), VotesOfViews()):
        assert null_deviation(shuffled, views) == pytest.approx(null_deviation(phi, views), rel=1e-12)


@pytest.mark.parametrize("pairs", [1, 7, 111, 112, 500])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("calibration", [BinaryVote(0.25), CauchyCombination()], ids=str)
def test_block_boundaries_do_not_matter(bare_view, given_statistic, monkeypatch, pairs, policy, calibration):
    view, phi = bare_view(N_POINTS, 3, POPULATION, LABELS), statistic(3)
    whole = run(given_statistic, view, phi, calibration, MedianOfViews(), policy)
    monkeypatch.setattr(module, "PAIRS_PER_BLOCK", pairs)
    cut = run(given_statistic, view, phi, calibration, MedianOfViews(), policy)
    assert cut.score == pytest.approx(whole.score, rel=1e-13)
    queries = np.arange(N_POINTS)
    blocks = list(in_blocks(phi, queries, POPULATION, MedianOfViews()))
    assert [i for rows, _ in blocks for i in range(rows.start, rows.stop)] == queries.tolist()
    assert all(len(d) == 1 or d.size * 3 <= pairs for _, d in blocks)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_the_cheap_path_of_the_mean_is_the_exact_one(bare_view, given_statistic, policy):
    view, phi = bare_view(N_POINTS, 4, POPULATION, LABELS), 5 * statistic(4)
    cheap, exact = (
        run(given_statistic, view, phi, CauchyCombination(), views, policy)
        for views in (MeanOfViews(), MeanPairByPair())
    )
    assert cheap.score == pytest.approx(exact.score, rel=1e-9, abs=1e-9)
    assert cheap.log10_p == pytest.approx(exact.log10_p, rel=1e-9, abs=1e-9)


def test_scores_stay_finite_and_ordered_a_thousand_sigma_out(bare_view, given_statistic):
    phi = statistic(1)
    phi[:20, 0] = np.linspace(1, 1000, 20) * np.sqrt(2) * phi[POPULATION, 0].std(ddof=1)
    found = run(
        given_statistic, bare_view(N_POINTS, 1, POPULATION), phi, CauchyCombination(), MeanOfViews(), SharedPopulation()
    )
    assert np.isfinite(found.score).all()
    assert (np.diff(found.score[:20]) > 0).all()
    assert (np.diff(found.log10_p[:20]) < 0).all()


def test_a_vote_is_exact_with_ties_and_with_the_query_in_the_population():
    population = np.array([0.0, 1.0, 1.0, 2.0])
    queries = np.array([1.0, 1.0, 2.5, -1.0])
    sizes = np.array([4, 3, 4, 4])
    assert BinaryVote().shared(queries, population, sizes).tolist() == [1 / 4, 1 / 3, 1.0, 0.0]
    assert BinaryVote(1.0).shared(queries, population, sizes).tolist() == [0.0, 0.0, 3 / 4, 0.0]
    assert BinaryVote(1e9).shared(queries, population, sizes).tolist() == [0.0] * 4


@pytest.mark.parametrize("gamma", [-1e-9, -1.0, math.nan])
def test_gamma_below_zero_is_refused(gamma):
    with pytest.raises(AttackError, match=f"gamma = {gamma}"):
        BinaryVote(gamma)


@pytest.mark.parametrize("views", [MeanOfViews(), MedianOfViews(), VotesOfViews()], ids=str)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("level", [0.0, 0.1, -2.7])
def test_a_population_of_one_value_has_no_scale(bare_view, given_statistic, views, policy, level):
    phi = statistic(3)
    phi[POPULATION] = level
    view = bare_view(N_POINTS, 3, POPULATION, LABELS)
    with pytest.raises(PopulationError, match=r"all \d+ .*same statistic.*larger population"):
        run(given_statistic, view, phi, CauchyCombination(), views, policy)
    # A vote needs no scale.
    found = run(given_statistic, view, phi, BinaryVote(), views, policy)
    assert set(found.score[POPULATION]) == {0.0}


def test_no_calibration_is_the_statistic_under_any_policy(bare_view, given_statistic):
    phi, view = statistic(3), bare_view(N_POINTS, 3, POPULATION, LABELS)
    for policy in POLICIES.values():
        for views in (MeanOfViews(), MedianOfViews()):
            found = run(given_statistic, view, phi, NoCalibration(), views, policy)
            assert np.array_equal(found.score, views.points(phi))
    with pytest.raises(AttackError, match="compares no pairs"):
        NoCalibration().pairwise(np.zeros((1, 1)), np.ones(1, np.intp), np.ones(1))
