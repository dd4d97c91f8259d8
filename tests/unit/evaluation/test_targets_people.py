"""People as the unit: when they are judged, what a run gives, and what references in the role of the target see."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from plmia.attacks.attack import ATTACKS, LIRA, RMIA, Attack
from plmia.attacks.calibration import CauchyCombination, WithinClass
from plmia.attacks.groups import Groups, MaxOverGroup, OneRow, SumOverGroup
from plmia.attacks.statistics import GaussianLR
from plmia.data.designs import (
    MembershipDesign,
    complementary_pairs,
    counts_depend_on,
    exact_k_per_point,
    independent_halves,
)
from plmia.errors import PopulationError, ReferencesError, SignalsError
from plmia.evaluation import targets as targets_module
from plmia.evaluation.diagnostics.power import Pilot
from plmia.evaluation.targets import AttackResult, Setup, attack_targets
from plmia.results.summary import Summary
from plmia.signals.signals import Signals

PEOPLE = 120
ATTACKS_HERE = [RMIA, ATTACKS["lira-fixed"], ATTACKS["pl-mia"]]


def groups_of(seed: int = 0, people: int = PEOPLE) -> np.ndarray:
    """Return the people of records in random order; person p is called 7 p + 3."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.repeat(7 * np.arange(people) + 3, rng.integers(1, 6, people)))


def signals_of(kind: str = "pairs", seed: int = 0, models: int = 10, shift: float = 1.5, views: int = 1) -> Signals:
    rng, groups = np.random.default_rng(seed), groups_of(seed)
    n = len(groups)
    models *= 3 if kind == "halves" else 1  # so that every record has enough references
    design = {
        "pairs": lambda: complementary_pairs(n, models // 2, rng, groups),
        "halves": lambda: independent_halves(n, models, rng, groups),
        "exact": lambda: exact_k_per_point(n, models, models // 2, rng, groups),
    }[kind]()
    values = rng.normal(size=(models, n, views)) + shift * design.matrix[:, :, None]
    return Signals(values.astype(np.float32), design, rng.integers(0, 3, n), groups=groups)


def run(signals: Signals, setup: Setup, targets: Any = (0,), attacks: Any = (RMIA,)) -> list[AttackResult]:
    return list(attack_targets(signals, attacks, targets, setup))


@pytest.mark.parametrize("align", ["never", "always"])
def test_a_pilot_judges_people_as_the_attack_does(align: Any) -> None:
    """With all references it is the attack itself, with fewer it is the attack on fewer models."""
    signals, setup, attack = signals_of(models=18, views=2), Setup(seed=3, align=align), ATTACKS["lira-fixed"]
    pilot = Pilot.run(signals, attack, 0, setup, (0.1,))
    (whole,) = run(signals, setup, attacks=[attack])
    assert pilot.unit == "group"
    assert np.array_equal(pilot.score(pilot.full.references), whole.scores.score[whole.truth.queries])
    chosen = pilot.draw(8, np.random.default_rng(0))
    kept = np.concatenate([[0], chosen])
    fewer = replace(
        signals,
        values=signals.values[kept],
        design=MembershipDesign(signals.design.matrix[kept]),
        models=tuple(range(9)),
    )
    (part,) = run(fewer, setup, attacks=[attack])
    assert np.array_equal(part.population, pilot.full.population)
    assert np.array_equal(pilot.score(chosen), part.scores.score[part.truth.queries])
    some = pilot.full.population[::2]
    assert np.all(np.isfinite(pilot.score(chosen, views=1, population=some)))


def without_groups(signals: Signals) -> Signals:
    return replace(signals, groups=None)


def split_by_target(signals: Signals, target: int, people: int = 1) -> Signals:
    """Move the first record of some people to the other side of a target."""
    matrix = signals.design.matrix.copy()
    groups = Groups.of(signals.groups)
    several = np.flatnonzero(groups.size > 1)[:people]
    matrix[target, groups.first[several]] ^= True
    return replace(signals, design=MembershipDesign(matrix))


# When people are judged ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setup", "judged"),
    [(Setup(), True), (Setup(unit="group"), True), (Setup(unit="record"), False), (Setup(references=0), False)],
)
def test_people_are_judged_where_records_form_groups(setup: Setup, judged: bool) -> None:
    assert setup.judges_groups(signals_of(), [0, 3]) is judged


def test_records_are_judged_where_there_are_no_groups() -> None:
    signals = without_groups(signals_of())
    assert not Setup().judges_groups(signals, [0])
    assert not Setup(unit="record").judges_groups(signals, [0])
    with pytest.raises(SignalsError, match="no groups"):
        Setup(unit="group").judges_groups(signals, [0])


def test_people_that_a_target_splits_are_judged_by_records_or_refused() -> None:
    signals = split_by_target(signals_of(), 3, people=2)
    assert not Setup().judges_groups(signals, [0, 3])
    assert Setup().judges_groups(signals, [0, 1])
    with pytest.raises(SignalsError, match=rf"\b2 of {PEOPLE} groups .*target 3\b"):
        Setup(unit="group").judges_groups(signals, [0, 3])


def test_people_need_references() -> None:
    with pytest.raises(ReferencesError, match="0 references"):
        run(signals_of(), Setup(unit="group", references=0))


def test_groups_of_one_record_are_records() -> None:
    signals = signals_of()
    alone = replace(signals, groups=np.arange(signals.n_points))
    (by_record,) = run(without_groups(alone), Setup())
    (default,) = run(alone, Setup())
    assert default.groups is None
    assert len(default.population) == len(by_record.population)
    (forced,) = run(alone, Setup(unit="group", group_statistic=SumOverGroup()))
    assert forced.groups is not None
    queries = forced.truth.queries
    # The map of one size increases, so the order of the statistic is that of the records.
    single = forced.one_record
    assert single is not None
    assert np.array_equal(np.argsort(forced.scores.statistic), np.argsort(single.scores.statistic))
    assert np.array_equal(forced.scores.log10_p_conformal[queries], single.scores.log10_p_conformal[queries])


@pytest.mark.parametrize("unit", [None, "group", "record"])
def test_one_group_is_refused(unit: Any) -> None:
    signals = signals_of()
    matrix = np.zeros(signals.design.matrix.shape, bool)
    matrix[::2] = True
    single = replace(signals, groups=np.zeros(signals.n_points, np.intp), design=MembershipDesign(matrix))
    with pytest.raises(SignalsError, match="one group"):
        run(single, Setup(unit=unit))


def test_calibration_within_a_class_is_refused_for_people() -> None:
    attack = Attack("classes", GaussianLR(), CauchyCombination(), population=WithinClass())
    with pytest.raises(PopulationError, match="judge records"):
        run(signals_of(), Setup(), attacks=[attack])
    assert run(signals_of(), Setup(unit="record"), attacks=[attack])


# What a run gives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pairs", "halves", "exact"])
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_run_gives_one_value_per_person(kind: str, mode: Any) -> None:
    signals = signals_of(kind)
    groups = Groups.of(signals.groups)
    found = run(signals, Setup(mode), range(3), ATTACKS_HERE)
    assert len(found) == 9
    for result in found:
        assert result.groups is not None
        assert result.groups.values.tolist() == groups.values.tolist()
        assert not result.by_one_record
        scores = result.scores
        for array in (scores.score, scores.log10_p, scores.log10_p_conformal, scores.statistic, result.truth.members):
            assert array.shape == (PEOPLE,)
            assert np.isfinite(array).all()
        members = signals.design.matrix[result.target]
        assert all((members[groups.of_record == p] == result.truth.members[p]).all() for p in range(PEOPLE))
        assert result.labels is None
        assert result.view.target.shape == (signals.n_points, 1)


@pytest.mark.parametrize("population", [None, 2, 20])
def test_population_and_queries_are_all_people_once(population: int | None) -> None:
    for result in run(signals_of(), Setup(population=population), range(4)):
        z, queries = result.population, result.truth.queries
        assert sorted([*z, *queries]) == list(range(PEOPLE))
        assert not result.truth.members[z].any()
        assert population is None or len(z) == population
        # The view knows all records of known non-members, and no record of anybody else.
        assert result.groups is not None
        assert np.array_equal(np.flatnonzero(np.isin(result.groups.of_record, z)), np.sort(result.view.population))
        single = result.one_record
        assert single is not None
        assert np.array_equal(np.sort(result.groups.of_record[single.population]), z)
        assert np.array_equal(np.sort(result.groups.of_record[single.truth.queries]), queries)


def test_one_record_of_each_person_is_what_judging_records_gives() -> None:
    signals = signals_of()
    (people,) = run(signals, Setup(seed=3))
    (records,) = run(signals, Setup(seed=3, unit="record"))
    single = people.one_record
    assert single is not None
    assert np.array_equal(single.truth.queries, records.truth.queries)
    assert np.array_equal(single.population, records.population)
    queries = records.truth.queries
    assert single.scores.score[queries] == pytest.approx(records.scores.score[queries])
    assert single.scores.log10_p_conformal[queries] == pytest.approx(records.scores.log10_p_conformal[queries])


def test_all_records_find_more_than_one() -> None:
    signals = signals_of(shift=1.0)
    attacks = [RMIA, ATTACKS["lira-fixed"]]
    found = run(signals, Setup(), range(4), attacks)
    alone = run(signals, Setup(group_statistic=OneRow()), range(4), attacks)
    for people, one in zip(found, alone, strict=True):
        assert (people.target, people.scores.attack) == (one.target, one.scores.attack)
        assert people.metrics().auc > one.metrics().auc + 0.02


@pytest.mark.parametrize("kind", ["pairs", "exact"])
def test_the_order_and_the_company_of_targets_do_not_matter(kind: str) -> None:
    signals = signals_of(kind)
    together = {
        (result.target, result.scores.attack): result for result in run(signals, Setup(), [4, 0, 7], ATTACKS_HERE)
    }
    for targets in ([7, 4, 0], [4]):
        for result in run(signals, Setup(), targets, ATTACKS_HERE):
            other = together[result.target, result.scores.attack]
            assert np.array_equal(result.population, other.population)
            assert result.scores.score == pytest.approx(other.scores.score, rel=1e-4, abs=1e-4)


def test_the_order_of_records_does_not_matter() -> None:
    signals = signals_of(views=2)
    order = np.random.default_rng(1).permutation(signals.n_points)
    assert signals.groups is not None
    assert signals.labels is not None
    moved = Signals(
        signals.values[:, order],
        MembershipDesign(signals.design.matrix[:, order]),
        signals.labels[order],
        groups=signals.groups[order],
    )
    setup = Setup(group_statistic=MaxOverGroup())
    (first,), (second,) = run(signals, setup, attacks=[LIRA]), run(moved, setup, attacks=[LIRA])
    # The population is drawn anew, and with it the scale; the order within each size stays.
    assert first.groups is not None
    assert np.array_equal(first.truth.members, second.truth.members)
    for size in range(1, 6):
        own = np.flatnonzero(first.groups.size == size)
        assert np.array_equal(np.argsort(first.scores.statistic[own]), np.argsort(second.scores.statistic[own]))


# References that play the target -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pairs", "halves", "exact"])
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_no_reference_of_a_played_target_gives_its_answer_away(kind: str, mode: Any) -> None:
    signals = signals_of(kind)
    for result in run(signals, Setup(mode), range(0, 10, 3)):
        groups = result.groups
        assert groups is not None
        own = signals.design.matrix[result.target]
        rng = np.random.default_rng(0)
        played = list(islice(targets_module._played(result.view, groups, 30, rng), 4))
        assert len(played) == 4
        for view, members in played:
            of_records = members[groups.of_record]
            for row in view.references.in_mask:
                for split in (own, of_records):
                    assert not np.array_equal(row, split)
                    assert not np.array_equal(row, ~split)
            assert not np.array_equal(of_records, own)
            assert not np.array_equal(of_records, ~own)
            assert not counts_depend_on(members, view.references.n_in[groups.first])
            assert (view.references.n_in < len(view.references)).all()
            assert mode == "offline" or (view.references.n_in > 0).all()
            known = np.unique(groups.of_record[view.population])
            assert not members[known].any()
            assert len(known) == 30
            assert np.array_equal(groups.records(known), np.sort(view.population))


def test_the_target_is_not_in_what_references_play() -> None:
    """Another target, and another membership, with the same references: the same is learned."""
    signals = signals_of()
    (result,) = run(signals, Setup())
    groups = result.groups
    assert groups is not None
    plain, changed = (
        list(islice(targets_module._played(view, groups, 30, np.random.default_rng(0)), 4))
        for view in (result.view, replace(result.view, target=result.view.target + 100, population=np.arange(5)))
    )
    for (one, members), (other, theirs) in zip(plain, changed, strict=True):
        assert np.array_equal(one.target, other.target)
        assert np.array_equal(members, theirs)
        assert np.array_equal(one.references.rows, other.references.rows)


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_exact_designs_are_balanced_with_one_set_of_references_per_person(mode: Any) -> None:
    signals = signals_of("exact")
    for result in run(signals, Setup(mode), range(10)):
        references, groups = result.view.references, result.groups
        assert groups is not None
        assert not result.by_one_record
        assert (references.n_in == 4).all()
        assert len(references) == 8
        assert [note.code for note in result.notes] == ["counts-rebalanced"]
        model_of = (references.signals[:, None] == signals.values[None]).all(axis=3)
        assert (model_of.sum(axis=1) == 1).all()
        model = model_of.argmax(axis=1)  # [references, records]
        assert np.array_equal(model, model[:, groups.first[groups.of_record]])
        assert (model != result.target).all()
        records = np.arange(signals.n_points)
        assert all(len(set(model[:, record])) == len(references) for record in records)
        assert np.array_equal(references.in_mask, signals.design.matrix[model, records])


def test_references_that_split_people_do_not_play() -> None:
    signals = signals_of("halves")
    for reference in range(3, 30):
        signals = split_by_target(signals, reference, people=5)
    (result,) = run(signals, Setup())
    assert not result.by_one_record
    for reference in range(1, 30):
        signals = split_by_target(signals, reference, people=9)
    (result,) = run(signals, Setup())
    assert result.by_one_record


def test_too_few_references_judge_people_by_one_record() -> None:
    """LiRA needs two IN and two OUT references; a reference that plays the target has two fewer than it."""
    signals = signals_of()
    summary = Summary(["rmia", "lira-fixed"])
    rmia, lira = run(signals, Setup(references=4), attacks=[RMIA, ATTACKS["lira-fixed"]])
    assert not rmia.by_one_record
    assert lira.by_one_record
    assert lira.one_record is not None
    chosen = OneRow().chosen(Groups.of(signals.groups))
    assert np.array_equal(lira.scores.statistic, lira.one_record.scores.statistic[chosen])
    for result in (rmia, lira):
        summary.add(result)
    (note,) = [note for note in summary.notes() if note.code == "people-by-one-record"]
    assert "lira-fixed" in note.text.lower()
    assert "4 references" in note.text
    assert "rmia" not in note.text.lower()
    (without,) = run(signals, Setup(references=2))
    assert without.by_one_record
