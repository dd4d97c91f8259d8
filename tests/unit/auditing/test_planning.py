"""Plans: what a budget buys, that the best split is the best of all, and that the sentences say what the numbers do."""

from __future__ import annotations

import json

import numpy as np
import pytest

from plmia.attacks.attack import PL_MIA, RMIA, Attack
from plmia.attacks.calibration import CauchyCombination, FreshPopulation
from plmia.attacks.statistics import GaussianLR
from plmia.auditing.planning import Cost, make_plan, rows_of, start, steps, view_counts
from plmia.data.designs import MembershipDesign
from plmia.errors import PlmiaError
from plmia.evaluation.targets import Setup
from plmia.signals.signals import Signals


@pytest.fixture(scope="module")
def pilot(simulate_signals):
    """32 references in pairs and three views that are worth something."""
    return start(simulate_signals(0, models=34, points=1500, views=3), PL_MIA, 0, Setup(), 0.01)


def test_what_references_cost():
    assert Cost().of(10, 1) == 10
    assert Cost(view=0.1).of(10, 3) == pytest.approx(12)
    assert Cost(60.0, 0.5, "seconds").of(4, 2) == pytest.approx(360)
    assert Cost(view=0.1).affordable(12, 3, 2) == 10
    assert Cost(view=0.1).affordable(11.9, 3, 2) == 8
    assert [Cost(0.1, 0.0).affordable(6.4, 1, step) for step in (1, 2)] == [64, 64]  # 6.4 / 0.1 is below 64 in floats
    for bad in ({"model": 0.0}, {"view": -0.1}, {"model": float("nan")}):
        with pytest.raises(PlmiaError, match="the first must be above 0"):
            Cost(**bad)


@pytest.mark.parametrize(
    ("n", "counts"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (18, (1, 2, 4, 8, 16, 18))]
)
def test_views_are_counted_in_powers_of_two_and_all(n, counts):
    assert view_counts(n) == counts


def test_the_best_split_is_the_best_of_all_that_can_be_paid(pilot):
    """For each number of views the largest even number of references that fits, found by counting up."""
    for budget, view_cost in ((20.0, 0.01), (48.0, 0.5), (64.0, 2.0), (30.0, 0.0)):
        plan = make_plan(pilot, 0.01, Cost(view=view_cost), budget, 0)
        powers = {}
        for views, curves in plan.curves.items():
            paid = [n for n in range(2, 8 * 32 + 1, 2) if n * (1 + view_cost * (views - 1)) <= budget + 1e-9]
            power = curves[1].at(max(paid))
            if power is not None:
                powers[max(paid), views] = power
        best = plan.best
        assert best.cost <= budget + 1e-9
        assert powers[best.affordable, best.views] == max(powers.values())
        assert best.tpr > max(powers.values()) - 0.001
        assert best.tpr == plan.curves[best.views][1].at(best.references)
        assert best.extrapolated == (best.references > 32)
        assert {(split.affordable, split.views) for split in plan.splits} == set(powers)


def test_costly_views_are_not_bought(pilot):
    assert make_plan(pilot, 0.01, Cost(view=0.0), 32, 0).best.views == 3
    dear = make_plan(pilot, 0.01, Cost(view=10.0), 32, 0)
    assert (dear.best.views, dear.best.references) == (1, 32)
    assert [split.views for split in dear.splits] == [1]  # two views leave 2 references, fewer than were measured
    assert len(dear.words) == 4


def test_each_cell_of_the_grid_is_a_measurement(pilot):
    plan = make_plan(pilot, 0.01, Cost(), None, 0)
    assert plan.budget == 64
    for views, (auc, tpr) in plan.curves.items():
        assert (auc.mean[-1], tpr.mean[-1]) == pilot.measure(pilot.full.references, views=views)
    rows = rows_of(plan)
    assert [row[0] for row in rows] == ["4", "8", "16", "32", "64", "128", "256"]
    assert rows[3][1:] == tuple(f"{100 * curves[1].mean[-1]:.2f}" for curves in plan.curves.values())
    assert all(cell.startswith("~") for row in rows[4:] for cell in row[1:])


def test_the_population_does_not_change_what_ranks_by_the_statistic(pilot):
    plan = make_plan(pilot, 0.01, Cost(), None, 0)
    assert [row.size for row in plan.population][-1] == len(pilot.full.population)
    assert len({(row.auc, row.tpr) for row in plan.population}) == 1
    assert [row.resolution for row in plan.population] == [1 / (row.size + 1) for row in plan.population]
    widths = [row.half_width for row in plan.queries if row.half_width is not None]
    assert widths == sorted(widths, reverse=True)
    assert len(widths) >= 2


def test_votes_lose_power_with_a_small_population(simulate_signals):
    pilot = start(simulate_signals(0, models=34, points=4000), RMIA, 0, Setup(), 0.01)
    plan = make_plan(pilot, 0.01, Cost(), None, 0)
    assert plan.population[0].auc < plan.population[-1].auc


def test_populations_too_small_for_the_attack_are_passed_over(simulate_signals):
    attack = Attack("fresh", GaussianLR(), CauchyCombination(), population=FreshPopulation(40))
    pilot = start(simulate_signals(0, models=18, points=600), attack, 0, Setup(), 0.01)
    plan = make_plan(pilot, 0.01, Cost(), None, 0)
    assert [row.size for row in plan.population] == [len(pilot.full.population)]


def test_a_rate_without_enough_non_members_leaves_the_auc(simulate_signals):
    pilot = start(simulate_signals(0, models=34, points=300), PL_MIA, 0, Setup(), 0.001)
    plan = make_plan(pilot, 0.001, Cost(), None, 0)
    assert plan.best.tpr is None
    assert plan.best.power == plan.best.auc
    assert "5,000 non-members" in plan.words[-1]
    assert all(row.half_width is None for row in plan.queries)


def test_the_words_say_what_the_numbers_do(pilot):
    plan = make_plan(pilot, 0.01, Cost(), 48, 0)
    best = plan.best
    assert plan.words[0].startswith(
        f"With 48 models: {best.references} references (the pilot's 32 and {best.references - 32} more) and "
        f"{best.views} views, for a TPR at 1 % FPR of about "
        f"{100 * best.power:.1f} % (95 %: {100 * best.uncertainty.low:.1f} to "
        f"{100 * best.uncertainty.high:.1f} %, extrapolated from 32)"
    )
    assert plan.words[1].startswith("1 view instead would leave 48 references")
    far = make_plan(pilot, 0.01, Cost(), 10_000, 0)
    assert far.best.references == 256
    assert ", roughly extrapolated from 32)" in far.words[0]
    assert "beyond 8 times" in far.words[0]


def test_references_that_add_nothing_are_not_advised(simulate_signals):
    pilot = start(simulate_signals(0, models=18, points=1500, shift=12.0), PL_MIA, 0, Setup(), 0.01)
    plan = make_plan(pilot, 0.01, Cost(), 64, 0)
    assert (plan.best.references, plan.best.affordable, plan.best.tpr) == (16, 64, 1.0)
    assert ", measured)" in plan.words[0]
    assert "pays for 64, which would add less than 0.1 points" in plan.words[0]
    less = make_plan(pilot, 0.01, Cost(), 12, 0)
    assert less.best.references == 12


def test_power_is_measured_interpolated_or_extrapolated(pilot):
    """The pilot measured 4, 8, 16 and 32 references."""
    for budget, basis, words in (
        (16, "measured", ", measured)"),
        (30, "interpolated", ", interpolated between 16 and 32)"),
        (48, "extrapolated", ", extrapolated from 32)"),
    ):
        best = make_plan(pilot, 0.01, Cost(view=10), budget, 0)
        assert (best.best.references, best.best.basis) == (budget, basis)
        assert words in best.words[0]
        assert best.to_json()["best"]["basis"] == basis


def test_the_words_say_which_references_exist(pilot):
    more = make_plan(pilot, 0.01, Cost(view=10), 48, 0)
    assert "48 references (the pilot's 32 and 16 more) and 1 view" in more.words[0]
    for budget in (30, 32):
        enough = make_plan(pilot, 0.01, Cost(view=10), budget, 0)
        assert f"{budget} references (all in the pilot) and 1 view" in enough.words[0]


def test_few_references_are_measured_but_not_extrapolated(simulate_signals):
    pilot = start(simulate_signals(0, models=10, points=1500), PL_MIA, 0, Setup(), 0.01)
    plan = make_plan(pilot, 0.01, Cost(), 100, 0)
    assert plan.best.references == 8
    assert not plan.best.extrapolated
    assert plan.words[0].startswith(
        "With 100 models: train 8 more references first, 16 in all, and plan again. 8 references (all in the pilot)"
    )
    assert sum("whether more would find more" in word for word in plan.words) == 1
    some = make_plan(pilot, 0.01, Cost(), 12, 0)
    assert some.words[0].startswith("With 12 models: train 4 more references first, 12 in all, and plan again.")
    none = make_plan(pilot, 0.01, Cost(), 8, 0)
    assert none.words[0].startswith("With 8 models: 8 references (all in the pilot) and 1 view, for ")
    assert sum("whether more would find more: train at least 16" in word for word in none.words) == 1
    assert [cell for row in rows_of(plan)[2:] for cell in row[1:]] == ["–"] * 3


def test_the_same_seed_gives_the_same_plan_and_progress_adds_up(pilot):
    heard: list[int] = []
    first = make_plan(pilot, 0.01, Cost(), 40, 3, heard.append)
    assert sum(heard) == steps(pilot)
    assert make_plan(pilot, 0.01, Cost(), 40, 3).to_json() == first.to_json()
    assert json.loads(json.dumps(first.to_json(), allow_nan=False))["best"]["views"] == first.best.views


def test_single_models_are_bought_one_by_one():
    rng = np.random.default_rng(0)
    membership = rng.random((33, 400)) < 0.5
    values = rng.normal(size=(33, 400, 1)) + 2 * membership[:, :, None]
    pilot = start(Signals(values, MembershipDesign(membership)), RMIA, 0, Setup(), 0.01)
    assert make_plan(pilot, 0.01, Cost(), 31, 0).best.references == 31


def test_bad_numbers_are_refused(pilot):
    for fpr in (0.0, 1.0, -0.1, 2.0, float("nan")):
        with pytest.raises(PlmiaError, match=f"rate is {fpr}"):
            start(pilot.signals, PL_MIA, 0, Setup(), fpr)
    with pytest.raises(PlmiaError, match="at least 4"):
        make_plan(pilot, 0.01, Cost(), 3, 0)
