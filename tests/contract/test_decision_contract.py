"""What every decision rule must keep to: the package's own rules, and one that uses nothing but the protocol."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import pytest

from plmia.attacks.scoring import Scores, conformal_log10_p
from plmia.data.arrays import FloatArray
from plmia.errors import PlmiaError, PopulationError
from plmia.evaluation.decisions import RULES, Call, DecisionRule, Known, decide, judge_all
from plmia.results.json_types import encode

POINTS, POPULATION = 4_000, 1_200


@dataclass(frozen=True)
class TopOfPopulation(DecisionRule):
    """A user's rule: call what exceeds every known non-member; all else is the protocol's default."""

    level: float
    name: ClassVar[str] = "top-of-population"

    def __call__(self, known: Known) -> Call:
        self.require(known.n)
        phi = known.scores.statistic
        flagged = phi > phi[known.population].max()
        return Call(self.name, self.level, flagged, known.smallest_called(flagged), known.n)


MAKERS: tuple[Callable[[float], DecisionRule], ...] = (*RULES, TopOfPopulation)
pytestmark = pytest.mark.parametrize("make", MAKERS, ids=[make(0.1).name for make in MAKERS])
Make = Callable[[float], DecisionRule]


def known_of(phi: FloatArray, population: int = POPULATION, *, labels: bool = True) -> Known:
    """What is known of a statistic whose first points are the population; the combined p-value is well calibrated."""
    conformal = conformal_log10_p(phi, np.arange(len(phi)), np.arange(population))
    scores = Scores("an-attack", phi, np.minimum(conformal + 1e-6, 0.0), conformal, phi, has_combined_p=True)
    return Known(scores, np.arange(population), np.arange(len(phi)) % 2 if labels else None)


def statistic(seed: int = 0, points: int = POINTS) -> FloatArray:
    return np.random.default_rng(seed).normal(size=points)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, math.nan, 2])
def test_a_level_is_a_rate(make: Make, level: float) -> None:
    with pytest.raises(PlmiaError, match=str(level)):
        make(level)


def test_a_rule_is_a_value(make: Make) -> None:
    rule = make(0.1)
    assert rule == make(0.1)
    assert rule != make(0.2)
    assert hash(rule) == hash(make(0.1))
    assert rule.level == 0.1
    assert fields(rule)[0].name == "level"  # type: ignore[arg-type]


def test_the_call_says_what_it_rests_on(make: Make) -> None:
    call = make(0.05)(known_of(statistic()))
    assert (call.rule, call.level, call.population) == (make(0.05).name, 0.05, POPULATION)
    assert call.flagged.shape == (POINTS,)
    assert call.flagged.dtype == np.bool_
    assert call.instead_of is None


def test_the_same_knowledge_gives_the_same_call(make: Make) -> None:
    first, again = (make(0.05)(known_of(statistic())) for _ in range(2))
    assert np.array_equal(first.flagged, again.flagged)
    assert first.threshold == again.threshold


def test_the_order_of_points_does_not_matter(make: Make) -> None:
    phi = statistic()
    order = np.random.default_rng(1).permutation(POINTS)
    known = known_of(phi)
    place = np.empty(POINTS, np.intp)
    place[order] = np.arange(POINTS)
    scores = known.scores
    own, conformal = scores.log10_p[order], scores.log10_p_conformal[order]
    moved = Scores("an-attack", phi[order], own, conformal, phi[order], has_combined_p=True)
    assert known.labels is not None
    other = Known(moved, np.sort(place[known.population]), known.labels[order])
    assert np.array_equal(make(0.05)(other).flagged, make(0.05)(known).flagged[order])


def test_a_larger_statistic_is_called_too(make: Make) -> None:
    known, rule = known_of(statistic()), make(0.05)
    flagged, phi = rule(known).flagged, known.scores.statistic
    assert known.labels is not None
    for label in (0, 1) if rule.needs_labels else (None,):
        outside = ~known.inside if label is None else ~known.inside & (known.labels == label)
        assert phi[outside & flagged].min() > phi[outside & ~flagged].max()


def test_a_larger_level_calls_no_fewer(make: Make) -> None:
    known = known_of(statistic())
    calls = [make(level)(known).flagged for level in (0.01, 0.05, 0.1, 0.3)]
    for smaller, larger in itertools.pairwise(calls):
        assert not (smaller & ~larger).any()


def test_the_threshold_is_the_smallest_score_called(make: Make) -> None:
    known = known_of(statistic())
    call = make(0.05)(known)
    if call.threshold is not None and call.check is None:
        assert np.array_equal(call.flagged[POPULATION:], known.scores.score[POPULATION:] >= call.threshold)


def test_non_members_are_called_no_more_often_than_the_level(make: Make) -> None:
    # 60 draws of the population and 400 non-members each: the mean rate varies by less than 0.004 at 5 %.
    shares = [make(0.05)(known_of(statistic(seed, 1_600))).flagged[POPULATION:].mean() for seed in range(60)]
    assert np.mean(shares) <= 0.05 + 3 * 0.004


def test_the_smallest_population_is_just_enough(make: Make) -> None:
    rule = make(0.01)
    # Two classes take turns, so a rule within classes needs twice as many.
    enough = max(2, rule.min_population * (2 if rule.needs_labels else 1))
    rule(known_of(statistic(), enough))
    if rule.min_population > 2:
        with pytest.raises(PopulationError, match=f"{rule.min_population:,}"):
            rule(known_of(statistic(), enough - 2))


def test_labels_are_needed_where_the_rule_says_so(make: Make) -> None:
    known = known_of(statistic(), labels=False)
    if make(0.05).needs_labels:
        with pytest.raises(PopulationError, match="labels"):
            make(0.05)(known)
    else:
        assert np.array_equal(make(0.05)(known).flagged, make(0.05)(known_of(statistic())).flagged)


def test_equal_statistics_call_nobody(make: Make) -> None:
    known = known_of(np.zeros(POINTS))
    assert not make(0.05)(known).flagged.any()


def test_a_judged_call_is_plain_json(make: Make) -> None:
    known = known_of(statistic())
    members = np.arange(POINTS) % 3 == 0
    (decision,) = judge_all([make(0.05)], known, members, np.arange(POPULATION, POINTS))
    assert decision.refused is None
    assert decision.rule == make(0.05).name
    assert json.loads(json.dumps(encode(decision))) == encode(decision)


def test_a_passed_check_keeps_the_call(make: Make) -> None:
    known = known_of(statistic())
    call = decide(make(0.05), known)
    assert call.check is None or call.check.passed
    assert (call.rule, call.instead_of) == (make(0.05).name, None)
