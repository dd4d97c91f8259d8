"""Statistics of groups against naive loops, what they must not depend on, and degenerate groups."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression
from scipy.special import ndtri

from plmia.attacks import groups as groups_module
from plmia.attacks.groups import (
    MIN_IN_BIN,
    Bounds,
    Groups,
    GroupStatistic,
    LearnedOverGroup,
    LogOdds,
    MaxOverGroup,
    OneRow,
    Played,
    SizeScale,
    SumOverGroup,
    line,
    size_ranges,
)
from plmia.attacks.scoring import within_sizes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

names = st.lists(st.integers(-3, 12), min_size=1, max_size=40).map(np.array)


def people(n: int = 60, seed: int = 0, largest: int = 6) -> Groups:
    """Return groups of 1 to ``largest`` records in random order."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, largest + 1, n)
    sizes[:largest] = np.arange(1, largest + 1)
    return Groups.of(rng.permutation(np.repeat(10 * np.arange(n) - 50, sizes)))


def rehearsals(groups: Groups, n: int = 3, shift: float = 1.5, seed: int = 1) -> list[Played]:
    """Return references whose statistic is not a likelihood ratio: a few records are extreme at random."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        members = rng.permutation(len(groups)) < len(groups) // 2
        phi = rng.standard_t(1.5, len(groups.of_record)) + shift * members[groups.of_record]
        found.append(Played(phi, members))
    return found


def records_of(groups: Groups) -> list[list[int]]:
    return [[i for i, g in enumerate(groups.of_record.tolist()) if g == k] for k in range(len(groups))]


# Groups --------------------------------------------------------------------------------------------------------------


@given(names)
def test_groups_are_those_of_a_loop(given_groups: Ints) -> None:
    groups = Groups.of(given_groups)
    phi = np.random.default_rng(len(given_groups)).normal(size=len(given_groups))
    values = sorted(set(given_groups.tolist()))
    records = [[i for i, value in enumerate(given_groups.tolist()) if value == wanted] for wanted in values]
    assert len(groups) == len(values)
    assert groups.values.tolist() == values
    assert groups.size.tolist() == [len(own) for own in records]
    assert groups.order.tolist() == [i for own in records for i in own]
    assert groups.first.tolist() == [own[0] for own in records]
    assert groups.max(phi).tolist() == [max(phi[own]) for own in records]
    assert groups.sum(phi) == pytest.approx([math.fsum(phi[own]) for own in records], abs=1e-12)
    chosen = np.arange(0, len(values), 2)
    assert groups.records(chosen).tolist() == sorted(i for k in chosen for i in records[k])


def test_groups_of_text_are_numbered_in_order() -> None:
    groups = Groups.of(np.array(["b", "a", "b", "c"]))
    assert groups.values.tolist() == ["a", "b", "c"]
    assert groups.of_record.tolist() == [1, 0, 1, 2]
    assert groups.records(np.array([], np.intp)).tolist() == []


# Statistics that learn nothing ---------------------------------------------------------------------------------------


def test_max_and_sum_are_those_of_a_loop() -> None:
    groups = people()
    phi = np.random.default_rng(2).normal(size=len(groups.of_record))
    records = records_of(groups)
    assert MaxOverGroup()(phi, groups).tolist() == [max(phi[own]) for own in records]
    assert SumOverGroup()(phi, groups) == pytest.approx([math.fsum(phi[own]) for own in records], abs=1e-12)
    for statistic in (MaxOverGroup(), SumOverGroup(), OneRow()):
        assert statistic.fit([], groups) == statistic


def test_one_row_is_a_record_of_its_group_drawn_evenly() -> None:
    groups = Groups.of(np.array([4, 9, 4, 4, 2, 9]))
    drawn = np.array([OneRow(seed).chosen(groups) for seed in range(600)])
    assert (groups.of_record[drawn] == [0, 1, 2]).all()
    for record, share in ((0, 1 / 3), (2, 1 / 3), (3, 1 / 3), (1, 1 / 2), (5, 1 / 2), (4, 1)):
        rate = float(np.mean((drawn == record).any(axis=1)))
        assert abs(rate - share) <= 4 * math.sqrt(share * (1 - share) / 600)
    phi = np.arange(6.0)
    assert OneRow(3)(phi, groups).tolist() == phi[OneRow(3).chosen(groups)].tolist()


def test_only_the_statistic_of_one_row_needs_no_scale() -> None:
    assert not OneRow().scaled
    assert all(statistic.scaled for statistic in (MaxOverGroup(), SumOverGroup(), LearnedOverGroup(), GroupStatistic))


# Learned log odds ----------------------------------------------------------------------------------------------------


def naive_odds(played: list[Played], groups: Groups) -> tuple[list[float], list[float]]:
    """Knots of the log odds, by loops over records and bins of equal numbers of records."""
    seen = sorted(
        (float(phi), bool(each.members[group]))
        for each in played
        for phi, group in zip(each.phi, groups.of_record, strict=True)
    )
    n_bins = min(max(len(seen) // MIN_IN_BIN, 2), 64)
    least, larger = divmod(len(seen), n_bins)
    at, share, sizes = [], [], []
    for k in range(n_bins):
        own, seen = seen[: least + (k < larger)], seen[least + (k < larger) :]
        at.append(math.fsum(phi for phi, _ in own) / len(own))
        share.append((sum(member for _, member in own) + 0.5) / (len(own) + 1))
        sizes.append(len(own))
    inside = sum(int(each.members[group]) for each in played for group in groups.of_record)
    prior = math.log((inside + 0.5) / (sum(sizes) - inside + 0.5))
    smooth = isotonic_regression(share, weights=sizes).x
    return at, [math.log(p / (1 - p)) - prior for p in smooth.tolist()]


@pytest.mark.parametrize("n", [30, 300])
def test_log_odds_are_those_of_a_loop(n: int) -> None:
    groups = people(n)
    played = rehearsals(groups)
    odds = LogOdds.learn(played, groups)
    at, expected = naive_odds(played, groups)
    assert odds.at == pytest.approx(at)
    assert odds.odds == pytest.approx(expected)
    phi = np.random.default_rng(5).standard_t(1.5, len(groups.of_record))
    each = odds.of(phi)
    assert odds(phi, groups) == pytest.approx([math.fsum(each[own]) for own in records_of(groups)])


def test_log_odds_find_the_likelihood_ratio() -> None:
    """Records N(1.5, 1) and N(0, 1): the log ratio is 1.5 x - 1.125."""
    rng = np.random.default_rng(0)
    groups = Groups.of(np.arange(40_000))
    members = np.arange(40_000) % 2 == 0
    odds = LogOdds.learn([Played(rng.normal(size=40_000) + 1.5 * members, members)], groups)
    x = np.linspace(-1, 2.5, 8)
    assert odds.of(x) == pytest.approx(1.5 * x - 1.125, abs=0.25)


def test_log_odds_keep_the_order_of_single_records() -> None:
    groups = people(200)
    for seed in range(5):
        odds = LogOdds.learn(rehearsals(groups, shift=0.3, seed=seed), groups)
        assert (np.diff(odds.of(np.linspace(-200, 200, 4001))) > 0).all()


def test_the_sum_is_kept_where_the_log_odds_find_no_more() -> None:
    """The statistic is the likelihood ratio already."""
    rng = np.random.default_rng(0)
    groups = people(400)
    played = []
    for _ in range(4):
        members = rng.permutation(400) < 200
        played.append(Played(rng.normal(size=len(groups.of_record)) + members[groups.of_record] - 0.5, members))
    assert LearnedOverGroup().fit(played, groups) == SumOverGroup()


def test_the_log_odds_are_taken_where_they_find_more() -> None:
    groups = people(400, largest=3)
    fitted = LearnedOverGroup().fit(rehearsals(groups, 4, shift=3.0), groups)
    assert isinstance(fitted, LogOdds)
    (fresh,) = rehearsals(groups, 1, shift=3.0, seed=99)
    found = {
        name: groups_module._found(way, fresh, groups) for name, way in (("odds", fitted), ("sum", SumOverGroup()))
    }
    assert found["odds"] > found["sum"] + 0.05


def test_groups_of_several_records_decide_where_most_have_one() -> None:
    """Of one record the log odds find what the record finds: only larger groups can show that they find more."""
    sizes = np.repeat([1, 2, 3], [800, 400, 300])
    groups = Groups.of(np.repeat(np.arange(1500), sizes))
    assert isinstance(LearnedOverGroup().fit(rehearsals(groups, 4, shift=3.0), groups), LogOdds)
    alone = Groups.of(np.arange(500))
    assert LearnedOverGroup().fit(rehearsals(alone, 4, shift=3.0), alone) == SumOverGroup()


@pytest.mark.parametrize("case", ["none", "one", "few references", "no members", "constant"])
def test_too_little_to_learn_from_gives_the_sum(case: str) -> None:
    groups = people(100)
    played = rehearsals(groups, 4)
    chosen = {
        "none": [],
        "one": played[:1],
        "few references": [*played[:3], Played(played[3].phi, played[3].members, share=0.5)],
        "no members": [Played(each.phi, np.zeros(100, bool)) for each in played],
        "constant": [Played(np.zeros(len(groups.of_record)), each.members) for each in played],
    }[case]
    assert LearnedOverGroup().fit(chosen, groups) == SumOverGroup()


def test_log_odds_of_a_constant_statistic_are_finite() -> None:
    groups = people(20)
    odds = LogOdds.learn([Played(np.full(len(groups.of_record), 2.5), np.arange(20) < 10)], groups)
    assert len(odds.at) == 1
    assert np.isfinite(odds.of(np.array([-1.0, 2.5, 7.0]))).all()


# Lines ---------------------------------------------------------------------------------------------------------------


def test_a_line_interpolates_and_goes_on_with_the_outer_slopes() -> None:
    at, value = np.array([0.0, 1.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]), np.array([0.0, 2.0, 3.0, 3.0, 5.0, 6.0, 7.0, 9.0])
    # A quarter of eight knots is two: slopes 3 / 3 below and 3 / 4 above.
    assert line(np.array([-2.0, 0.0, 0.5, 2.0, 3.5, 10.0, 14.0]), at, value).tolist() == [-2, 0, 1, 2.5, 3, 9, 12]
    assert line(np.array([1.0, 4.0]), np.array([3.0]), np.array([10.0])).tolist() == [8, 11]


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 10)), min_size=1, max_size=20), st.integers(0, 99))
def test_a_line_keeps_the_order(steps: list[tuple[float, float]], seed: int) -> None:
    at, value = np.cumsum(np.array(steps), axis=0).T
    x = np.sort(np.random.default_rng(seed).uniform(-100, 300, 50))
    assert (np.diff(line(x, at, value)) >= -1e-9).all()


# Sizes ---------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(1, 30))
def test_ranges_of_sizes_hold_enough_groups_and_cannot_be_split(sizes: list[int], least: int) -> None:
    edges = size_ranges(np.array(sizes), least)
    which = np.searchsorted(edges, sizes, side="right")
    counts = np.bincount(which, minlength=len(edges) + 1)
    assert (np.diff(edges) > 0).all()
    assert counts.min() >= least or len(edges) == 0
    # The first range ends as early as it can.
    first = next((s for s in sorted(set(sizes)) if sum(x <= s for x in sizes) >= least), None)
    if len(edges):
        assert edges[0] == first + 1 if first is not None else False


def test_one_size_and_few_groups_are_one_range() -> None:
    assert size_ranges(np.full(1000, 3)).tolist() == []
    assert size_ranges(np.array([1, 2, 3])).tolist() == []
    assert size_ranges(np.repeat([1, 2, 3], 100)).tolist() == [2, 3]
    assert size_ranges(np.repeat([1, 2, 3, 4], [150, 60, 60, 60])).tolist() == [2]


@pytest.mark.parametrize("seed", range(5))
def test_p_values_within_sizes_are_those_of_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = rng.choice([1, 2, 3, 7], 900, p=[0.5, 0.3, 0.15, 0.05])
    phi = np.round(rng.normal(size=900) + 0.3 * size, 1)  # with ties
    population = np.sort(rng.choice(900, 400, replace=False))
    edges = size_ranges(size[population]).tolist()
    assert len(edges) == 1
    found = within_sizes(phi, size, population)
    for q in range(900):
        rivals = [z for z in population.tolist() if z != q and (size[z] >= edges[0]) == (size[q] >= edges[0])]
        expected = (1 + sum(phi[z] >= phi[q] for z in rivals)) / (len(rivals) + 1)
        assert 10 ** found[q] == pytest.approx(expected)


def test_a_size_that_no_known_non_member_has_is_compared_with_the_nearest_range() -> None:
    size = np.array([1] * 100 + [2] * 100 + [50, 1])
    phi = np.concatenate([np.zeros(100), np.ones(100), [0.5, 0.5]])
    p = 10 ** within_sizes(phi, size, np.arange(200))
    assert p[200] == pytest.approx(1)
    assert p[201] == pytest.approx(1 / 101)


# Scales --------------------------------------------------------------------------------------------------------------


def correlated_sums(n: int, rho: float, seed: int) -> tuple[Floats, Ints]:
    """Sums of 1 to 6 correlated normal records with mean 0.7."""
    rng = np.random.default_rng(seed)
    size = rng.choice(np.arange(1, 7), n, p=[0.3, 0.25, 0.2, 0.13, 0.08, 0.04])
    sums = 0.7 * size + np.sqrt(rho) * size * rng.normal(size=n) + np.sqrt((1 - rho) * size) * rng.normal(size=n)
    return sums, size


@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
def test_a_scale_gives_all_sizes_one_law(rho: float) -> None:
    scale = SizeScale.learn(*correlated_sums(20_000, rho, 0))
    values, size = correlated_sums(100_000, rho, 1)
    scaled = scale(values, size) / scale.unit
    for n in range(1, 7):
        own = scaled[size == n]
        assert own.mean() == pytest.approx(0, abs=0.12)
        assert own.std() == pytest.approx(1, abs=0.12)
        # Three standard errors of a rate over the 800 groups of the rarest size.
        for level in (0.1, 0.01):
            error = 3 * math.sqrt(level * (1 - level) / 800)
            assert np.mean(own > ndtri(1 - level)) == pytest.approx(level, abs=error)


def test_a_scale_increases_within_each_size() -> None:
    values, size = correlated_sums(1000, 0.5, 0)
    scale = SizeScale.learn(values, size)
    x = np.linspace(-40, 40, 2001)
    for n in range(1, 9):
        assert (np.diff(scale(x, np.full(len(x), n))) > 0).all()


def test_a_scale_has_the_unit_of_the_statistic() -> None:
    values, size = correlated_sums(1000, 0.5, 0)
    fresh, sizes = correlated_sums(500, 0.5, 1)
    assert SizeScale.learn(10 * values, size)(10 * fresh, sizes) == pytest.approx(
        10 * SizeScale.learn(values, size)(fresh, sizes), rel=1e-6, abs=1e-6
    )


@pytest.mark.parametrize("share", [0.01, 0.2])
@pytest.mark.parametrize("sign", [-1, 1])
def test_extreme_values_of_some_groups_leave_the_others_on_one_scale(share: float, sign: int) -> None:
    """A log ratio may be 1e13 where references agree to the last digit."""
    rng = np.random.default_rng(5)

    def contaminated(n: int, seed: int) -> tuple[Floats, Ints, npt.NDArray[np.bool_]]:
        values, size = correlated_sums(n, 0.3, seed)
        extreme = rng.random(n) < share
        return np.where(extreme, sign * 10 ** rng.uniform(3, 14, n), values), size, extreme

    scale = SizeScale.learn(*contaminated(20_000, 0)[:2])
    values, size, extreme = contaminated(100_000, 1)
    scaled = scale(values, size) / scale.unit
    for n in range(1, 7):
        own = size == n
        order = np.argsort(values[own])
        assert (np.diff(scaled[own][order]) >= 0).all()
        # Ranks of the others are those among all groups of this size.
        expected = np.quantile(scaled[own], [0.25, 0.5, 0.75])
        assert expected == pytest.approx(ndtri([0.25, 0.5, 0.75]), abs=0.2)
        assert len(np.unique(scaled[own & ~extreme])) == np.count_nonzero(own & ~extreme)
    assert 0.1 < scale.unit < 1000


def test_usual_values_are_scaled_as_without_bounds() -> None:
    values, size = correlated_sums(5000, 0.5, 0)
    bounds = Bounds.learn(values / size)
    assert np.array_equal(groups_module._bounded(values, size.astype(float), bounds), values)


def naive_bound(value: float, seen: list[float]) -> float:
    """Beyond 64 lower quartiles of the distances on its side, a value approaches twice this distance."""
    middle = float(np.median(seen))
    sign = 1 if value > middle else -1
    distances = [sign * (x - middle) for x in seen if sign * (x - middle) > 1e-9 * abs(middle)]
    usual = 64 * float(np.quantile(distances, 0.25)) if distances else math.inf
    distance = abs(value - middle)
    if distance <= usual:
        return value
    return middle + sign * (usual + usual * (distance - usual) / distance)


@pytest.mark.parametrize("seed", range(4))
def test_bounds_are_those_of_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    seen = 3 + rng.standard_t(0.5, 101 + seed)
    found = Bounds.learn(seen)(seen)
    assert found == pytest.approx([naive_bound(x, seen.tolist()) for x in seen.tolist()])
    assert (np.abs(found - 3) < np.abs(seen - 3)).any()


@given(st.lists(st.floats(-1e15, 1e15), min_size=1, max_size=30), st.integers(0, 99))
def test_bounds_keep_the_order(seen: list[float], seed: int) -> None:
    bounds = Bounds.learn(np.array(seen))
    rng = np.random.default_rng(seed)
    x = np.sort(np.concatenate([seen, rng.normal(0, 10, 20), rng.normal(0, 1e12, 20)]))
    bounded = bounds(x)
    assert np.isfinite(bounded).all()
    assert (np.diff(bounded) >= -1e-12 * np.abs(bounded[1:])).all()


def test_rounding_does_not_narrow_the_bounds() -> None:
    """Ten records of 0.1 have a mean of 0.09999999999999999."""
    seen = np.array([0.1, 0.1, 0.1, sum([0.1] * 10) / 10, sum([0.1] * 3) / 3, -0.5, 0.7])
    assert Bounds.learn(seen)(seen).tolist() == seen.tolist()


@pytest.mark.parametrize("case", ["one size", "one group", "two values", "constant", "constant per record"])
def test_a_scale_of_degenerate_values_is_finite_and_keeps_their_order(case: str) -> None:
    rng = np.random.default_rng(0)
    size = rng.integers(1, 7, 300)
    values, sizes = {
        "one size": (rng.normal(size=300), np.full(300, 3)),
        "one group": (np.array([1.5]), np.array([2])),
        "two values": ((rng.random(300) < 0.3).astype(float), size),
        "constant": (np.full(300, 4.0), size),
        "constant per record": (4.0 * size, size),
    }[case]
    scale = SizeScale.learn(values, sizes)
    x = np.linspace(-5, 30, 101)
    for n in (1, 3, 6, 20):
        scaled = scale(x, np.full(101, n))
        assert np.isfinite(scaled).all()
        assert (np.diff(scaled) > 0).all()


# What a value must not depend on -------------------------------------------------------------------------------------


STATISTICS: list[Any] = [MaxOverGroup(), SumOverGroup(), LearnedOverGroup()]


@pytest.mark.parametrize("statistic", STATISTICS, ids=repr)
def test_the_order_of_records_and_groups_does_not_matter(statistic: GroupStatistic) -> None:
    groups = people(200)
    rng = np.random.default_rng(7)
    order, renamed = rng.permutation(len(groups.of_record)), rng.permutation(len(groups))
    played, (target,) = rehearsals(groups, 4, 3.0), rehearsals(groups, 1, 3.0, seed=8)
    moved = Groups.of(renamed[groups.of_record][order])  # group g is now called renamed[g]
    back = np.argsort(renamed)
    played_moved = [Played(each.phi[order], each.members[back]) for each in played]
    value = statistic.fit(played, groups)(target.phi, groups)
    value_moved = statistic.fit(played_moved, moved)(target.phi[order], moved)
    assert value_moved[renamed] == pytest.approx(value, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("statistic", STATISTICS, ids=repr)
def test_a_larger_record_never_lowers_its_group(statistic: GroupStatistic) -> None:
    groups = people(100)
    fitted = statistic.fit(rehearsals(groups, 4, 3.0), groups)
    (target,) = rehearsals(groups, 1, seed=8)
    for record in range(0, len(groups.of_record), 7):
        raised = target.phi.copy()
        raised[record] += 1.0
        gain = fitted(raised, groups) - fitted(target.phi, groups)
        own = groups.of_record[record]
        assert gain[own] >= 0
        assert not np.delete(gain, own).any()
