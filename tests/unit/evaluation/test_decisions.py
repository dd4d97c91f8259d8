"""Decision rules against loops over queries and known non-members, with ties; what is refused; how calls are judged."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from plmia.attacks.scoring import Scores, conformal_log10_p
from plmia.errors import AttackError, PlmiaError, PopulationError
from plmia.evaluation.decisions import (
    RULES,
    Analytic,
    Call,
    ClassConformal,
    Conformal,
    Decision,
    DecisionRule,
    HeldOut,
    Known,
    ModelledTail,
    Tolerance,
    decide,
    judge,
    judge_all,
    needed_population,
    self_check,
)

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def known_of(phi: npt.ArrayLike, n: int, labels: npt.ArrayLike | None = None, combined: Floats | None = None) -> Known:
    """Return what is known of a statistic whose first ``n`` points are the population."""
    values = np.asarray(phi, float)
    conformal = conformal_log10_p(values, np.arange(len(values)), np.arange(n))
    own = conformal if combined is None else combined
    scores = Scores("an-attack", values, own, conformal, values, combined is not None)
    return Known(scores, np.arange(n), None if labels is None else np.asarray(labels))


def tied(seed: int, points: int, levels: int) -> Floats:
    return np.random.default_rng(seed).integers(0, levels, points).astype(float)


def loop_counts(phi: Floats, n: int, among: list[int], point: int) -> tuple[int, int]:
    """How many others of the population are as large, and how many others there are."""
    others = [z for z in among if z != point]
    return sum(bool(phi[z] >= phi[point]) for z in others), len(others)


# --- conformal


@pytest.mark.parametrize("levels", [1, 3, 10, 10_000])
@pytest.mark.parametrize("level", [0.05, 0.1, 1 / 3, 0.29])
def test_conformal_counts_who_is_as_large(levels: int, level: float) -> None:
    phi, n = tied(levels, 90, levels), 40
    flagged = Conformal(level)(known_of(phi, n)).flagged
    for point in range(90):
        larger, others = loop_counts(phi, n, list(range(n)), point)
        assert flagged[point] == ((1 + larger) / (others + 1) <= level)


def test_a_level_that_is_exactly_a_p_value_is_reached() -> None:
    for n in (9, 10, 99, 100, 999, 1000, 2499):
        phi = np.concatenate([np.arange(n), np.arange(n + 1) - 0.5])
        for k in {1, 2, 3, n // 3, n // 2} - {0}:
            call = Conformal(k / (n + 1))(known_of(phi, n))
            assert np.count_nonzero(call.flagged[n:]) == k
            assert call.threshold == n - k + 0.5


@pytest.mark.parametrize(
    ("level", "needed"), [(0.1, 9), (0.01, 99), (0.001, 999), (0.0001, 9_999), (1 / 3, 2), (0.9, 1)]
)
def test_how_many_non_members_a_level_needs(level: float, needed: int) -> None:
    assert needed_population(level) == needed
    assert 1 / (needed + 1) <= level


def test_needed_is_the_smallest_number_for_any_fraction() -> None:
    for m in range(2, 3_000):
        assert needed_population(1 / m) == m - 1


def test_conformal_refuses_what_the_population_cannot_resolve() -> None:
    with pytest.raises(PopulationError, match=r"needs 999 known non-members, the population has 998"):
        Conformal(0.001)(known_of(np.arange(2000), 998))
    assert Conformal(0.001)(known_of(np.arange(2000), 999)).flagged.any()


def test_ten_non_members() -> None:
    known = known_of([*range(10), 10, 9, 8.5], 10)
    assert Conformal(0.1)(known).flagged.tolist()[10:] == [True, False, False]
    assert Conformal(0.2)(known).flagged.tolist()[10:] == [True, True, True]
    with pytest.raises(PopulationError, match="needs 99 "):
        Conformal(0.01)(known)


def test_equal_scores_flag_nobody() -> None:
    known = known_of(np.zeros(3_000), 1_000, np.zeros(3_000, int))
    for level in (0.002, 0.1, 0.5, 0.99):
        for rule in (Conformal(level), ClassConformal(level), HeldOut(level)):
            call = rule(known)
            assert not call.flagged.any()
    assert Conformal(0.5)(known).threshold == math.inf
    with pytest.raises(PopulationError, match="no tail to model"):
        ModelledTail(0.0005)(known)


# --- within classes


@pytest.mark.parametrize("levels", [2, 8, 10_000])
@pytest.mark.parametrize("seed", range(4))
def test_class_conformal_counts_within_the_class(seed: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    phi, n, level = tied(seed, 400, levels), 150, 0.1
    labels = rng.choice([-3, 0, 7, 8, 20, 21], 400, p=[0.4, 0.3, 0.2, 0.06, 0.03, 0.01])
    call = ClassConformal(level)(known_of(phi, n, labels))
    for point in range(400):
        own = [z for z in range(n) if labels[z] == labels[point]]
        larger, others = loop_counts(phi, n, own, point)
        enough = 1 / (len(own) + 1) <= level
        assert call.flagged[point] == (enough and (1 + larger) / (others + 1) <= level)
    few = sorted({int(c) for c in labels if np.count_nonzero(labels[:n] == c) < 9})
    assert call.silent_classes == tuple(few)
    assert few
    assert call.threshold is None


def test_class_conformal_with_one_class_is_conformal() -> None:
    phi = tied(5, 300, 40)
    known = known_of(phi, 120, np.full(300, 4))
    assert np.array_equal(ClassConformal(0.05)(known).flagged, Conformal(0.05)(known).flagged)


def test_a_thousand_classes_are_fast() -> None:
    rng = np.random.default_rng(0)
    points, n = 50_000, 20_000
    known = known_of(rng.normal(size=points), n, rng.integers(0, 1_000, points))
    start = time.perf_counter()
    call = ClassConformal(0.1)(known)
    assert time.perf_counter() - start < 1
    assert 0.05 < call.flagged[n:].mean() < 0.11


def test_class_conformal_refuses_when_all_classes_are_silent() -> None:
    with pytest.raises(PopulationError, match="needs 99 known non-members, the largest class has 50"):
        ClassConformal(0.01)(known_of(np.arange(200), 100, np.arange(200) % 2))
    with pytest.raises(PopulationError, match="needs labels"):
        ClassConformal(0.01)(known_of(np.arange(200), 100))


# --- cuts at a rank


@pytest.mark.parametrize("levels", [4, 30, 10_000])
@pytest.mark.parametrize("level", [0.005, 0.05, 0.29, 0.5])
def test_held_out_flags_at_most_the_level_of_the_population(levels: int, level: float) -> None:
    phi, n = tied(levels, 500, levels), 200
    flagged = HeldOut(level)(known_of(phi, n)).flagged
    cuts = [cut for cut in phi[:n] if np.mean(phi[:n] > cut) <= level]
    assert np.array_equal(flagged, phi > min(cuts))
    assert flagged[:n].mean() <= level


@pytest.mark.parametrize("confidence", [0.3, 0.9, 0.95, 0.99])
@pytest.mark.parametrize(("n", "level"), [(500, 0.01), (1_000, 0.1), (60, 0.1), (2_500, 0.003)])
def test_tolerance_takes_the_largest_rank_that_holds(n: int, level: float, confidence: float) -> None:
    phi = np.random.default_rng(n).normal(size=n + 300)
    ranks = [k for k in range(1, n + 1) if stats.beta.cdf(level, k, n + 1 - k) >= confidence]
    flagged = Tolerance(level, confidence)(known_of(phi, n)).flagged
    assert np.array_equal(flagged, phi > np.sort(phi[:n])[-max(ranks)])


def test_tolerance_says_how_many_it_needs() -> None:
    needed = next(n for n in range(1, 1_000) if 0.99**n <= 0.05)
    phi = np.arange(2_000.0)
    with pytest.raises(PopulationError, match=f"needs {needed} known non-members, the population has {needed - 1}"):
        Tolerance(0.01)(known_of(phi, needed - 1))
    assert np.count_nonzero(Tolerance(0.01)(known_of(phi, needed)).flagged) == 2_000 - needed
    with pytest.raises(PlmiaError, match=r"confidence is 1\.0"):
        Tolerance(0.01, 1.0)


# --- analytic


def test_analytic_flags_by_the_combined_p_value_and_checks_itself() -> None:
    rng = np.random.default_rng(1)
    combined = np.log10(rng.uniform(size=1_000))
    combined[:200] = np.log10(rng.uniform(size=200) ** 4)
    call = Analytic(0.01)(known_of(np.arange(1_000), 200, combined=combined))
    assert np.array_equal(call.flagged, 10**combined <= 0.01)
    assert call.threshold == pytest.approx(math.asinh(math.tan(math.pi * (0.5 - 0.01))))
    assert call.check is not None
    count = int(np.count_nonzero(10 ** combined[:200] <= 0.01))
    assert call.check.flagged == count
    assert call.check.p_value == pytest.approx(stats.binom.sf(count - 1, 200, 0.01))
    assert not call.check.passed


def test_analytic_needs_a_combined_p_value() -> None:
    known = known_of(np.arange(1_000), 200)
    assert not known.scores.has_combined_p
    with pytest.raises(AttackError, match="an-attack has no combined p-value"):
        Analytic(0.01)(known)


def test_a_failed_check_hands_over_to_conformal() -> None:
    phi = np.random.default_rng(0).normal(size=1_000)
    bad = known_of(phi, 200, combined=np.full(1_000, -9.0))
    call = decide(Analytic(0.05), bad)
    assert (call.rule, call.instead_of, call.check) == ("conformal", "analytic", None)
    assert np.array_equal(call.flagged, Conformal(0.05)(bad).flagged)
    good = decide(Analytic(0.05), known_of(phi, 200, combined=np.log10(np.linspace(1, 0.001, 1_000))))
    assert (good.rule, good.instead_of) == ("analytic", None)
    with pytest.raises(PopulationError, match="needs 999"):
        decide(Analytic(0.001), bad)


@pytest.mark.parametrize(
    ("count", "passed"), [(1, True), (10, True), (21, True), (22, False), (40, False), (1_000, False)]
)
def test_the_check_is_the_upper_tail_of_the_binomial(count: int, passed: bool) -> None:
    check = self_check(count, 1_000, 0.01)
    assert check.p_value == pytest.approx(stats.binom.sf(count - 1, 1_000, 0.01), rel=1e-9, abs=0)
    assert check.passed == passed


def test_no_flag_is_no_evidence_against_a_rule() -> None:
    check = self_check(0, 100, 0.01)
    assert check.p_value == 1
    assert check.passed
    most = 1 - 0.05 ** (1 / 100)  # of 100 none is flagged in 5 % of the cases at this share
    assert json.loads(json.dumps(check.to_json())) == {
        "flagged": 0, "population": 100, "level": 0.01, "p_value": 1.0, "passed": True, "most": pytest.approx(most),
    }  # fmt: skip


# --- modelled tail


def test_modelled_tail_is_conformal_where_the_population_resolves() -> None:
    known = known_of(np.random.default_rng(0).normal(size=3_000), 999)
    call = ModelledTail(0.001)(known)
    assert np.array_equal(call.flagged, Conformal(0.001)(known).flagged)
    assert (call.rule, call.check) == ("modelled-tail", None)


def test_modelled_tail_flags_only_beyond_the_population() -> None:
    phi = np.random.default_rng(0).normal(size=3_000)
    phi[-5:] = [3.0, 4.0, 20.0, 30.0, 40.0]
    call = ModelledTail(0.0005)(known_of(phi, 999))
    assert call.flagged.tolist()[-5:] == [False, False, True, True, True]
    assert not call.flagged[:-5].any()
    assert call.threshold == 20.0
    assert call.check is not None
    assert call.check.passed


def test_modelled_tail_is_trusted_only_so_far() -> None:
    phi = np.random.default_rng(0).normal(size=5_000)
    with pytest.raises(PopulationError, match=r"needs 2,499 known non-members, the population has 2,498"):
        ModelledTail(0.0001)(known_of(phi, 2_498))
    ModelledTail(0.0001)(known_of(phi, 2_499))
    with pytest.raises(PopulationError, match=r"needs 499 known non-members, the population has 400"):
        ModelledTail(0.002)(known_of(phi, 400))


# --- judging


def test_judged_against_the_truth() -> None:
    rng = np.random.default_rng(3)
    members, flagged = rng.random(500) < 0.4, rng.random(500) < 0.2
    queries = np.arange(100, 500)
    decision = judge(Call("some", 0.1, flagged, math.inf, 100), members, queries)
    non = [i for i in queries if not members[i]]
    wrong = sum(bool(flagged[i]) for i in non)
    interval = stats.binomtest(wrong, len(non)).proportion_ci(0.95)
    assert decision.fpr_realised == wrong / len(non)
    assert (decision.fpr_low, decision.fpr_high) == pytest.approx((interval.low, interval.high))
    right = sum(bool(flagged[i]) for i in queries if members[i])
    assert decision.tpr == right / (400 - len(non))
    assert decision.flagged == right + wrong
    assert (decision.rule, decision.level, decision.threshold, decision.population) == ("some", 0.1, math.inf, 100)


def test_one_member() -> None:
    members = np.zeros(300, bool)
    members[299] = True
    decision = judge(Conformal(0.05)(known_of(np.arange(300), 100)), members, np.arange(100, 300))
    assert decision.tpr == 1
    assert decision.tpr_low == pytest.approx(0.025)
    assert decision.tpr_high == 1


def test_queries_without_members_have_no_rate_of_them() -> None:
    decision = judge(Conformal(0.05)(known_of(np.arange(300), 100)), np.zeros(300, bool), np.arange(100, 300))
    assert (decision.tpr, decision.tpr_low, decision.tpr_high) == (None, None, None)
    assert decision.fpr_realised == 1


def test_what_cannot_be_used_is_said_not_raised() -> None:
    members = np.arange(300) % 2 == 0
    decisions = judge_all([R(0.001) for R in RULES], known_of(np.arange(300), 100), members, np.arange(100, 300))
    assert [d.rule for d in decisions] == [R(0.1).name for R in RULES]
    assert all(decision.refused for decision in decisions)
    for decision in decisions:
        assert decision.fpr_realised is None


def test_a_decision_needs_a_population() -> None:
    with pytest.raises(PopulationError, match="needs 2 known non-members, the population has 1"):
        known_of(np.arange(5), 1)


# --- thresholds, speed


def every_rule(levels: tuple[float, ...] = (0.1, 0.01, 0.001, 1e-4)) -> Iterator[DecisionRule]:
    return (rule(level) for rule in RULES for level in levels)


@pytest.mark.parametrize("rule", [Conformal(0.05), HeldOut(0.05), Tolerance(0.05)])
def test_the_threshold_is_the_smallest_score_called(rule: Conformal) -> None:
    phi = tied(0, 900, 50)
    call = rule(known_of(phi, 300))
    assert call.threshold is not None
    assert np.array_equal(call.flagged[300:], phi[300:] >= call.threshold)


def test_there_is_no_threshold_where_scores_do_not_order_as_the_statistic() -> None:
    phi = np.random.default_rng(0).normal(size=900)
    known = known_of(phi, 300)
    shuffled = Scores("x", -phi, known.scores.log10_p, known.scores.log10_p_conformal, phi)
    assert Conformal(0.05)(Known(shuffled, known.population)).threshold is None


def test_all_rules_at_four_levels_are_fast() -> None:
    rng = np.random.default_rng(0)
    points, n = 50_000, 6_000
    combined = np.log10(rng.uniform(size=points))
    known = known_of(rng.normal(size=points), n, rng.integers(0, 100, points), combined)
    start = time.perf_counter()
    decisions: list[Decision] = judge_all(every_rule(), known, rng.random(points) < 0.5, np.arange(n, points))
    assert time.perf_counter() - start < 1  # about 0.04 s; a shared machine may be slower
    assert len(decisions) == 24
