"""Each check against a plain loop or a closed form, its edge cases, and that its result is plain JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from plmia.attacks.attack import ATTACK_P, ATTACKS, PL_MIA
from plmia.attacks.scoring import Scores
from plmia.attacks.view import AttackView, References, Truth
from plmia.data.designs import MembershipDesign
from plmia.errors import PlmiaError, PopulationError, ReferencesError
from plmia.evaluation.diagnostics.p_values import (
    LEVELS,
    _chance,
    nominal_against_realised,
    pairwise_p_values,
    population_size,
)
from plmia.evaluation.diagnostics.power import Curve, Extrapolation, Pilot, enough_references, extrapolate
from plmia.evaluation.diagnostics.signals import unlike_answers, unlike_references
from plmia.evaluation.targets import Setup, attack_targets
from plmia.results.json_types import encode
from plmia.signals.signals import Signals


def plain(result):
    """Return the JSON of a result, which must hold plain values and no NaN."""
    return json.loads(json.dumps(encode(result), allow_nan=False))


# Pairwise p-values ---------------------------------------------------------------------------------------------------


def queries_of(n_points, n_population, seed):
    rng = np.random.default_rng(seed)
    members = np.zeros(n_points, bool)
    members[: n_points // 3] = True
    population = np.arange(n_points - n_population, n_points)
    return rng.normal(size=n_points) + members, population, Truth(members, np.arange(n_points - n_population))


def test_pairwise_p_values_are_those_of_a_loop():
    phi, population, truth = queries_of(90, 30, 0)
    result = pairwise_p_values(phi, population, truth, np.random.default_rng(0))
    scale = math.sqrt(2) * np.std(phi[population], ddof=1)
    p = {q: [stats.norm.cdf(-(phi[q] - phi[z]) / scale) for z in population] for q in truth.queries}
    for inside, counts in ((True, result.members), (False, result.non_members)):
        values = np.concatenate([p[q] for q in truth.queries if truth.members[q] == inside])
        assert list(counts) == np.histogram(values, bins=20, range=(0, 1))[0].tolist()
    others = [q for q in truth.queries if not truth.members[q]]
    assert result.distance_by_query == pytest.approx(np.mean([stats.kstest(p[q], "uniform").statistic for q in others]))
    together = stats.kstest(np.concatenate([p[q] for q in others]), "uniform").statistic
    assert result.distance == pytest.approx(together, abs=0.002)


def test_views_are_averaged_and_samples_bounded():
    phi, population, truth = queries_of(600, 250, 1)
    rng = np.random.default_rng(2)
    two = np.stack([phi - 1, phi + 1], axis=1)
    kept = pairwise_p_values(two, population, truth, np.random.default_rng(3))
    same = pairwise_p_values(phi, population, truth, np.random.default_rng(3))
    assert kept.members == same.members
    assert (kept.distance, kept.distance_by_query) == (same.distance, same.distance_by_query)
    few = pairwise_p_values(phi, population, truth, rng, most=100, most_rivals=60)
    assert sum(few.members) == sum(few.non_members) == 50 * 50  # every fifth of 250
    assert few.distance == pytest.approx(kept.distance, abs=0.1)


def test_gaussian_statistics_give_the_distances_that_are_promised():
    """Uniform all together; a query's own are not: the expectation is 0.29."""
    phi, population, truth = queries_of(12_000, 6000, 3)
    result = pairwise_p_values(phi - truth.members, population, truth, np.random.default_rng(0), most=4000)
    assert result.distance < 0.05
    assert result.distance_by_query == pytest.approx(0.3, abs=0.03)


def test_pairwise_p_values_without_a_scale_say_so():
    phi, population, truth = queries_of(60, 20, 4)
    for nothing in (np.zeros(60), phi):
        result = pairwise_p_values(
            nothing, population[: 20 if nothing is not phi else 1], truth, np.random.default_rng(0)
        )
        assert result.warning
        assert result.distance is None
        assert sum(result.members) == 0
    with pytest.raises(PlmiaError, match="non-member"):
        pairwise_p_values(phi, population, Truth(truth.members, np.arange(5)), np.random.default_rng(0))


# Nominal against realised --------------------------------------------------------------------------------------------


def scores_of(combined, conformal):
    return Scores(
        "mine", np.zeros(len(conformal)), combined, conformal, np.zeros(len(conformal)), combined is not conformal
    )


def test_realised_rates_are_counted():
    rng = np.random.default_rng(0)
    conformal, combined = np.log10(rng.random(500)), np.log10(rng.random(500) ** 6)
    truth = Truth(np.arange(500) < 200, np.arange(400))
    curve = nominal_against_realised(scores_of(combined, conformal), truth)
    for rates, values in ((curve.conformal, conformal), (curve.combined, combined)):
        assert rates is not None
        for level, realised, low, high in zip(curve.levels, rates.realised, rates.low, rates.high, strict=True):
            assert realised == np.mean(10 ** values[200:400] <= level)
            assert low <= realised <= high
    assert curve.n_non_members == 200
    assert curve.warning is not None
    assert "combined p-value of mine" in curve.warning
    assert "nominal 1.0 %" in curve.warning
    assert not any(curve.conformal.broken)
    assert plain(curve)["levels"] == list(LEVELS)
    assert LEVELS[8] == 0.01


def test_a_p_value_that_holds_gives_no_warning():
    rng = np.random.default_rng(1)
    values = np.log10(rng.random(4000))
    curve = nominal_against_realised(scores_of(values, values), Truth(np.arange(4000) < 1000, np.arange(3000)))
    assert curve.combined is None
    assert curve.warning is None
    assert plain(curve)["combined"] is None


@pytest.mark.parametrize(("n", "z", "level"), [(50, 99, 0.05), (1000, 300, 0.1), (18750, 6250, 0.01), (30, 4, 0.5)])
def test_the_chance_is_hypergeometric(n, z, level):
    k = math.floor(level * (z + 1))
    for flagged in (1, n // 20 + 1, n // 2, n):
        expected = stats.hypergeom.cdf(k - 1, n + z, z, flagged + k - 1)
        assert _chance(flagged, n, z, level) == pytest.approx(expected, rel=1e-7)
    assert _chance(0, n, z, level) == 1.0
    assert _chance(n, n, z, 0.5 / (z + 1)) == 1.0  # below the resolution nothing is said


def test_the_chance_is_that_of_a_simulation():
    rng = np.random.default_rng(2)
    n, z, level, seen = 40, 59, 0.1, 8
    k = math.floor(level * (z + 1))
    draws = rng.random((20_000, n + z))
    cut = np.sort(draws[:, :z], axis=1)[:, -k]
    share = np.mean((draws[:, z:] > cut[:, None]).sum(axis=1) >= seen)
    assert _chance(seen, n, z, level) == pytest.approx(share, abs=0.01)


def test_realised_rates_need_non_members():
    with pytest.raises(PlmiaError, match="no query is a non-member"):
        nominal_against_realised(scores_of(np.zeros(4), np.zeros(4)), Truth(np.ones(4, bool), np.arange(4)))


# Population size -----------------------------------------------------------------------------------------------------


def test_population_size_is_the_beta_law():
    about = population_size(1999)
    assert about.resolution == 1 / 2000
    for level, expected, spread in zip(about.levels, about.expected, about.spread, strict=True):
        k = round(level * 2000)
        if k == 0:
            assert expected is None
            assert spread is None
        else:
            assert expected == pytest.approx(stats.beta(k, 2000 - k).mean())
            assert spread == pytest.approx(stats.beta(k, 2000 - k).std())
    assert about.needed == (99, 999, 9999)
    assert about.needed_stable == (9999, 99_999, 999_999)
    assert about.warning is None
    plain(about)


@pytest.mark.parametrize("level", [0.01, 0.001, 0.0001, 0.05, 0.3])
def test_what_is_needed_is_enough_and_no_less_is(level):
    about = population_size(10, (level,))
    assert population_size(about.needed[0], (level,)).spread[0] is not None
    assert population_size(about.needed[0] - 1, (level,)).spread[0] is None
    spread = population_size(about.needed_stable[0], (level,)).spread[0]
    assert spread is not None
    assert spread <= 0.1 * level * (1 + 1e-9)


def test_a_small_population_is_warned_of():
    assert "999" in str(population_size(998).warning)
    assert population_size(999).warning is None
    with pytest.raises(PopulationError, match="at least 1"):
        population_size(0)


# Unlike references ---------------------------------------------------------------------------------------------------


def by_loop(view):
    """Mean and log deviation of every model's residuals at the population points where it is OUT."""
    references = view.references
    residuals: dict[int, list[float]] = {}
    for z in view.population:
        values = {-1: view.target[z].mean()}
        for i, row in enumerate(references.rows):
            if not references.in_mask[i, z]:
                values[i] = references.signals[row, z].astype(float).mean()
        if len(values) < 3 or np.ptp(list(values.values())) == 0:
            continue
        mean, deviation = np.mean(list(values.values())), np.std(list(values.values()), ddof=1)
        for i, value in values.items():
            residuals.setdefault(i, []).append((value - mean) / deviation)
    return {i: (np.mean(r), math.log(np.std(r))) for i, r in residuals.items() if len(r) > 1}


@pytest.mark.parametrize("pairs", [True, False])
def test_unlike_references_is_a_t_test_among_the_models(make_references, make_view, pairs):
    view = make_view(make_references(10, 60, 2, pairs=pairs, jump=True), population=40)
    result = unlike_references(view)
    expected = by_loop(view)
    peers = np.array([value for i, value in expected.items() if i >= 0])
    assert result.n_references == len(peers)
    z = []
    for k, (value, rank) in enumerate(((result.shift, result.rank_shift), (result.spread, result.rank_spread))):
        assert value == pytest.approx(expected[-1][k])
        assert rank == np.sum(peers[:, k] < value)
        z.append((value - peers[:, k].mean()) / (peers[:, k].std(ddof=1) * math.sqrt(1 + 1 / len(peers))))
    assert [result.z_shift, result.z_spread] == pytest.approx(z)
    assert result.p == pytest.approx(min(1, 2 * min(2 * stats.t.sf(np.abs(z), len(peers) - 1))))
    plain(result)


def test_blocks_of_points_change_nothing(make_references, make_view, monkeypatch):
    view = make_view(make_references(10, 60, 2), population=40)
    whole = unlike_references(view)
    original = References.at
    monkeypatch.setattr(References, "at", lambda self, points: original(self, points, cells=60))
    assert plain(unlike_references(view)) == pytest.approx(plain(whole))


def test_the_truth_is_not_needed_and_the_in_signals_do_not_matter(make_references, make_view):
    references = make_references(10, 60, 2)
    wild = references.signals.copy()
    wild[references.rows] += 1e3 * references.in_mask[:, :, None]
    other = References(wild, references.rows, references.in_mask)
    view = make_view(references, population=40)
    changed = AttackView(view.target, other, view.population)
    assert unlike_references(changed) == unlike_references(view)


@pytest.mark.parametrize(("change", "words"), [(3.0, "higher"), (-3.0, "lower")])
def test_a_shift_is_named(make_references, make_view, change, words):
    view = make_view(make_references(20, 400, 1), population=200)
    result = unlike_references(AttackView(view.target + change, view.references, view.population))
    assert words in str(result.warning)
    assert result.shift * change > 0


def test_scatter_is_named():
    rng = np.random.default_rng(0)
    signals, half = rng.normal(size=(21, 800, 1)), rng.random((10, 800)) < 0.5
    in_mask = np.stack([half, ~half], axis=1).reshape(20, 800)
    references = References(signals, np.arange(1, 21), in_mask)
    for factor, words in ((2.0, "more scattered"), (0.5, "less scattered")):
        view = AttackView(factor * signals[0], references, np.arange(400))
        assert words in str(unlike_references(view).warning)


def test_too_few_references_are_named(make_references, make_view):
    references = make_references(4, 30, 1)
    few = References(references.signals, references.rows[:2], references.in_mask[:2])
    with pytest.raises(ReferencesError, match="train more references"):
        unlike_references(make_view(few, population=10))


def answers(references=8, points=400, inside=0.9, outside=0.6, target=(0.9, 0.6)):
    """Models that are right and sure at such shares of their members and non-members; model 0 is the target."""
    rng = np.random.default_rng(3)
    half = rng.random((references // 2 + 1, points)) < 0.5
    members = np.stack([half, ~half], axis=1).reshape(-1, points)[1:]
    rates = np.where(members, inside, outside)
    rates[0] = np.where(members[0], *target)
    right = rng.random(members.shape) < rates
    return Signals(np.where(right, 1.0, -1.0)[:, :, None], MembershipDesign(members))


def test_answers_are_compared_at_members_and_at_others():
    signals = answers()
    result, members, right = unlike_answers(signals), signals.design.matrix, signals.values[:, :, 0] > 0
    shares = np.array([[row[m].mean(), row[~m].mean()] for row, m in zip(right, members, strict=True)])
    assert (result.inside, result.outside) == pytest.approx(tuple(shares[0]))
    assert (result.references_inside, result.references_outside) == pytest.approx(tuple(shares[1:].mean(axis=0)))
    assert result.warning is None
    assert result.p > 0.01
    plain(result)


@pytest.mark.parametrize("target", [(0.6, 0.9), (0.6, 0.6), (0.9, 0.9), (0.999, 0.6)])
def test_other_answers_are_named(target):
    result = unlike_answers(answers(references=16, points=1200, target=target))
    assert result.p < 0.001
    assert f"{100 * result.inside:.1f} % of its members" in result.warning


def test_references_that_are_always_right_are_no_reason_for_alarm():
    """All references are right at all members, the target at all but one."""
    signals = answers(references=16, points=400, inside=1.0, outside=1.0, target=(1.0, 1.0))
    assert unlike_answers(signals).p == 1
    signals.values[0, np.argmax(signals.design.matrix[0])] = -1
    assert unlike_answers(signals).warning is None


def test_too_few_references_for_their_answers_are_named():
    with pytest.raises(ReferencesError, match=r"2 references .* 3 are needed"):
        unlike_answers(answers(references=2))


# Enough references ---------------------------------------------------------------------------------------------------


def test_extrapolation_finds_the_law_it_was_drawn_from():
    law = Extrapolation(0.8, 0.6, 0.75)
    budgets = (8, 16, 32, 64)
    found = extrapolate(budgets, [law.at(n) for n in budgets])
    assert found is not None
    assert (found.limit, found.slope, found.rate) == pytest.approx((0.8, 0.6, 0.75))
    assert extrapolate(budgets[:2], [0.1, 0.2]) is None


def test_extrapolation_never_falls_and_stays_a_rate():
    falling = extrapolate((4, 8, 16), [0.6, 0.5, 0.4])
    assert falling is not None
    assert falling.slope == 0
    rising = extrapolate((4, 8, 16), [0.2, 0.5, 0.95])
    assert rising is not None
    assert rising.at(1e9) <= 1.0
    assert rising.at(1) >= 0.0
    flat = extrapolate((4, 8, 16), [0.5, 0.5, 0.5])
    assert flat is not None
    assert flat.at(1000) == pytest.approx(0.5)


def test_a_curve_interpolates_within_and_extrapolates_beyond():
    curve = Curve.of("0.01", (4, 8, 16), [np.array([0.1, 0.12]), np.array([0.2, 0.22]), np.array([0.3])], 16)
    assert curve.mean == pytest.approx((0.11, 0.21, 0.3))
    assert curve.at(8) == pytest.approx(0.21)
    assert curve.at(math.sqrt(32)) == pytest.approx(0.16)
    assert curve.at(3) is None
    assert curve.standard_error == curve.deviation[1] == pytest.approx(np.std([0.2, 0.22], ddof=1))
    assert curve.deviation[2] is None
    beyond = curve.times(2)
    assert beyond is not None
    assert beyond > 0.3
    short = Curve.of("auc", (4, 8), [np.array([0.1]), np.array([0.2])], 8)
    assert short.times(2) is None
    assert (short.name, curve.name) == ("AUC", "TPR at 1 % FPR")


def test_a_pilot_with_everything_is_the_attack_itself(simulate_signals):
    signals = simulate_signals(0, models=18, points=1500, views=2)
    for attack in ATTACKS.values():
        pilot = Pilot.run(signals, attack, 3, Setup(seed=5), (0.01,))
        (result,) = attack_targets(signals, [attack], [3], Setup(seed=5))
        metrics = result.metrics()
        assert pilot.measure(pilot.full.references) == (metrics.auc, metrics.tpr_at(0.01).tpr)


def test_a_pilot_knows_models_by_number(simulate_signals):
    whole = simulate_signals(0, models=18, points=1500)
    part = Signals(
        whole.values[2:], MembershipDesign(whole.design.matrix[2:]), whole.labels, models=tuple(range(2, 18))
    )
    (pilot, alike) = (Pilot.run(signals, PL_MIA, 4, Setup(), (0.01,)) for signals in (part, whole))
    assert set(pilot.full.references.tolist()) <= set(range(2, 18)) - {4, 5}
    chosen = pilot.draw(4, np.random.default_rng(0))
    assert set(chosen.tolist()) <= set(pilot.full.references.tolist())
    for references in (chosen, pilot.full.references):
        assert pilot.measure(references) == alike.measure(references)


def test_a_pilot_with_less_is_the_attack_on_less(simulate_signals):
    """Fewer references and views: as if the other models and views had never been there."""
    signals = simulate_signals(0, models=18, points=1500, views=3)
    pilot = Pilot.run(signals, PL_MIA, 0, Setup(), (0.01,))
    rows = pilot.draw(8, np.random.default_rng(0))
    kept = np.concatenate([[0], rows])
    fewer = Signals(signals.values[kept][:, :, :2], MembershipDesign(signals.design.matrix[kept]))
    (result,) = attack_targets(fewer, [PL_MIA], [0], Setup())
    assert np.array_equal(result.population, pilot.full.population)
    assert pilot.measure(rows, views=2) == (result.metrics().auc, result.metrics().tpr_at(0.01).tpr)


def test_references_are_drawn_in_whole_pairs_without_the_target(simulate_signals):
    pilot = Pilot.run(simulate_signals(0, models=18), PL_MIA, 5, Setup(references=12))
    assert pilot.budgets() == (12, 6)
    for seed in range(5):
        rows = pilot.draw(6, np.random.default_rng(seed))
        assert set(rows) <= set(pilot.full.references.tolist())
        assert sorted(rows ^ 1) == sorted(rows)
        assert not {4, 5} & set(rows)


def test_rates_that_hang_on_a_few_non_members_are_left_out(simulate_signals):
    """Five false positives at 1 % take 500 non-members."""
    signals = simulate_signals(0, models=18, points=1400)
    pilot = Pilot.run(signals, PL_MIA, 0, Setup())
    assert pilot.metrics == ("auc", "0.01")
    left = np.sum(~pilot.full.truth.members[pilot.full.truth.queries])
    for more, kept in ((0, ("0.01",)), (1, ())):
        setup = Setup(population=int(len(pilot.full.population) + left - 500 + more))
        assert Pilot.run(signals, PL_MIA, 0, setup).metrics == ("auc", *kept)


def test_enough_references_measures_halves_of_halves(simulate_signals):
    signals = simulate_signals(0, models=34, points=1500)
    heard = []
    result = enough_references(signals, PL_MIA, 0, Setup(), np.random.default_rng(0), heard.append)
    assert result.n_references == 32
    assert [curve.metric for curve in result.curves] == ["auc", "0.01"]
    assert all(curve.budgets == (4, 8, 16, 32) for curve in result.curves)
    assert sum(heard) == 1500 * (1 + 8 + 4 + 4)
    assert result.curves[0].mean[0] < result.curves[0].mean[-1]
    again = enough_references(signals, PL_MIA, 0, Setup(), np.random.default_rng(0))
    assert plain(again) == plain(result)


def test_an_attack_without_references_needs_no_more_of_them(simulate_signals):
    signals = simulate_signals(0, models=34, points=600)
    result = enough_references(signals, ATTACK_P, 0, Setup(), np.random.default_rng(0))
    assert result.warning is None
    assert result.curves[0].times(8) == pytest.approx(result.curves[0].mean[-1])


def test_a_starved_attack_is_warned_of(simulate_signals):
    signals = simulate_signals(0, models=18, points=2000, shift=1.0)
    result = enough_references(signals, PL_MIA, 0, Setup(), np.random.default_rng(0))
    assert result.warning is not None
    assert "32 instead of 16" in result.warning
    assert "the AUC from " in result.warning


def test_few_references_are_too_few_to_tell(simulate_signals):
    result = enough_references(simulate_signals(0, models=10), PL_MIA, 0, Setup(), np.random.default_rng(0))
    assert "8 references" in str(result.warning)
    assert "16" in str(result.warning)
    assert plain(result)["curves"][0]["at_2x"] is None
    with pytest.raises(ReferencesError, match="4 are needed"):
        enough_references(simulate_signals(0, models=4), ATTACK_P, 0, Setup(), np.random.default_rng(0))


def test_a_design_without_pairs_stops_where_points_lack_references():
    rng = np.random.default_rng(0)
    halves = rng.random((33, 300)) < 0.5
    signals = Signals(rng.normal(size=(33, 300, 1)) + halves[:, :, None], MembershipDesign(halves))
    result = enough_references(signals, PL_MIA, 0, Setup(), np.random.default_rng(0))
    assert result.curves[0].budgets[-1] == 32
    assert result.curves[0].budgets[0] >= 4
