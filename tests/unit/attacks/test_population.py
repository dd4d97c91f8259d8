"""Population policies: every point is scored once, never against itself, and draws are fair and repeatable."""

from __future__ import annotations

import numpy as np
import pytest

from plmia import ATTACKS, AttackView
from plmia.attacks import calibration as module
from plmia.attacks.calibration import Comparison, FreshPopulation, SharedPopulation, WithinClass
from plmia.attacks.scoring import score, score_all
from plmia.attacks.view import References
from plmia.errors import PopulationError

POOL = [1, 3, 4, 8, 9, 12, 13, 17, 20, 22]
LABELS = np.arange(23) % 2


def compared_with(policy, view, seed=0):
    """Return the points that each query is compared with, as sets, after checking that each is scored once."""
    found = {}
    for comparison in policy.comparisons(view, np.random.default_rng(seed)):
        size = comparison.size()
        assert comparison.shared == (comparison.population.ndim == 1)
        for i, query in enumerate(comparison.queries):
            assert int(query) not in found
            own = comparison.population if comparison.shared else comparison.population[i]
            assert len(set(own.tolist())) == len(own)
            # A query in a shared population is passed over when its turn comes; in one of its own it must not be.
            assert comparison.shared or query not in own
            found[int(query)] = set(own.tolist()) - {int(query)}
            assert size[i] == len(found[int(query)])
    assert sorted(found) == list(range(view.n_points))
    return found


def test_shared_population_is_everyone_else(bare_view):
    found = compared_with(SharedPopulation(), bare_view(23, 1, POOL))
    assert all(others == set(POOL) - {query} for query, others in found.items())


def test_within_class_is_everyone_else_of_the_class(bare_view):
    found = compared_with(WithinClass(), bare_view(23, 1, POOL, LABELS))
    for query, others in found.items():
        assert others == {z for z in POOL if z != query and LABELS[z] == LABELS[query]}


@pytest.mark.parametrize("size", [2, 5, 9])
@pytest.mark.parametrize("per_draw", [1, 5, 1024])
def test_fresh_populations_are_draws_without_replacement(bare_view, monkeypatch, size, per_draw):
    view = bare_view(23, 1, POOL)
    whole = compared_with(FreshPopulation(size), view)
    monkeypatch.setattr(module, "QUERIES_PER_DRAW", per_draw)
    found = compared_with(FreshPopulation(size), view)
    assert found == whole
    assert all(len(others) == size and others <= set(POOL) for others in found.values())
    assert found == compared_with(FreshPopulation(size), view)
    assert size == 9 or found != compared_with(FreshPopulation(size), view, seed=1)


def test_fresh_draws_are_uniform(bare_view):
    n, size = 6000, 5
    found = compared_with(FreshPopulation(size), bare_view(n, 1, POOL))
    outside = [others for query, others in found.items() if query not in POOL]
    counts = np.array([sum(z in others for others in outside) for z in POOL])
    share = size / len(POOL)
    # Ten binomial counts, five standard deviations: a fair draw fails with probability below 1e-5.
    assert np.abs(counts - share * len(outside)).max() < 5 * np.sqrt(len(outside) * share * (1 - share))


def test_a_query_of_the_pool_draws_uniformly_from_the_others(bare_view):
    policy, view, draws = FreshPopulation(3), bare_view(23, 1, POOL), 2000
    counts = dict.fromkeys(POOL, 0)
    for seed in range(draws):
        comparison = next(policy.comparisons(view, np.random.default_rng(seed)))
        for z in comparison.population[8]:
            counts[int(z)] += 1
    assert counts.pop(8) == 0
    share = 3 / 9
    deviation = np.abs(np.array(list(counts.values())) - share * draws)
    assert deviation.max() < 5 * np.sqrt(draws * share * (1 - share))


@pytest.mark.parametrize(
    ("policy", "pool", "labels", "message"),
    [
        (SharedPopulation(), [], None, r"has 0 .*\b2 are needed"),
        (SharedPopulation(), [4], None, r"has 1 .*\b2 are needed"),
        (WithinClass(), POOL, None, "needs a label of each judged record: store `labels`"),
        (WithinClass(), [0, 2, 4, 6, 1, 3], LABELS, r"class 1 has 2 .*\b3 are needed"),
        (FreshPopulation(1), POOL, None, "1 .*from 2 to 9 can be drawn"),
        (FreshPopulation(10), POOL, None, "10 .*from 2 to 9 can be drawn"),
        (FreshPopulation(2), [4], None, r"has 1 .*\b2 are needed"),
    ],
)
def test_what_cannot_be_drawn_is_refused(bare_view, policy, pool, labels, message):
    with pytest.raises(PopulationError, match=message):
        list(policy.comparisons(bare_view(23, 1, pool, labels), np.random.default_rng(0)))


def test_a_query_alone_with_itself_is_refused():
    with pytest.raises(PopulationError, match=r"\b0 population\b"):
        Comparison(np.array([3, 4]), np.array([4])).size()


# Numbers of references ------------------------------------------------------------------------------------------------


def view_of(in_mask, population, mode="online"):
    rng = np.random.default_rng(0)
    signals = rng.normal(size=(*in_mask.shape, 1))
    return AttackView(
        rng.normal(size=(in_mask.shape[1], 1)),
        References(signals, np.arange(len(in_mask)), in_mask),
        population,
        mode=mode,
    )


def fewer_out_in_population(n_points=300, n_models=12):
    """Queries that no reference trained on, and a population that half of them trained on."""
    in_mask = np.zeros((n_models, n_points), bool)
    in_mask[: n_models // 2, :100] = True
    return np.random.default_rng(1).permuted(in_mask, axis=0)


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_population_with_other_numbers_of_references_is_refused(mode):
    """Its statistics have another law than the queries', so p-values would be too small or too large."""
    view = view_of(fewer_out_in_population(), np.arange(100), mode)
    counts = "12" if mode == "offline" else "0"
    for name in ("attack-r", "rmia"):
        with pytest.raises(PopulationError, match=rf"\b6\b.*\b{counts}\b"):
            list(score_all([ATTACKS[name]], view))
        with pytest.raises(PopulationError):
            score(ATTACKS[name], view, np.random.default_rng(0))


def test_a_population_of_another_spread_of_counts_is_refused():
    rng = np.random.default_rng(0)
    shares = np.where(np.arange(800) < 300, 0.5, np.where(np.arange(800) % 2, 0.2, 0.8))
    with pytest.raises(PopulationError):
        list(score_all([ATTACKS["rmia"]], view_of(rng.random((16, 800)) < shares, np.arange(300))))


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("share", [0.3, 0.5])
def test_a_population_like_the_queries_is_taken(mode, share):
    for seed in range(20):
        in_mask = np.random.default_rng(seed).random((16, 400)) < share
        in_mask[:2] = [[True], [False]]
        (scores,) = score_all([ATTACKS["rmia"]], view_of(in_mask, np.arange(100), mode))
        assert np.isfinite(scores.score).all()


def test_a_population_of_all_points_is_compared_with_nobody():
    (scores,) = score_all([ATTACKS["rmia"]], view_of(fewer_out_in_population(), np.arange(300), "offline"))
    assert np.isfinite(scores.score).all()
