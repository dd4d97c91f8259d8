"""Every model as the target in turn: counts, curve, order and intervals against naive loops, and bad input."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from plmia.attacks.scoring import Scores
from plmia.errors import PlmiaError, PopulationError
from plmia.evaluation.decisions import Conformal, Known
from plmia.evaluation.intervals import over_targets
from plmia.evaluation.metrics import clopper_pearson, roc_curve
from plmia.evaluation.trainings import PERCENTS, OverTrainings, TrainingsResult, mean_over_trainings
from plmia.results.json_types import encode

FPR = 0.1


@dataclass(frozen=True)
class Result:
    """One target, as `OverTrainings.add` takes it."""

    target: int
    log10_p_conformal: npt.NDArray[np.float64]
    score: npt.NDArray[np.float64]
    members: npt.NDArray[np.bool_]
    queries: npt.NDArray[np.intp]
    population: int


def draw(rng: np.random.Generator, target: int, members: npt.NDArray[np.bool_], shift: float, z: int = 10) -> Result:
    """Conformal p-values of a statistic that is larger for members, from a population of ``z`` non-members."""
    phi = rng.normal(size=members.size) + shift * members
    population = rng.choice(np.flatnonzero(~members), z, replace=False)
    rank = 1 + (phi[population][None] >= phi[:, None]).sum(axis=1)
    log10_p = np.log10(np.minimum(rank / (z + 1), 1))
    return Result(target, log10_p, phi, members, np.setdiff1d(np.arange(members.size), population), z)


def audit(models: int = 8, units: int = 60, shift: float = 1.5, seed: int = 0) -> list[Result]:
    """Results of complementary pairs."""
    rng = np.random.default_rng(seed)
    results = []
    for pair in range(models // 2):
        members = rng.permutation(units) < units // 2
        results += [draw(rng, 2 * pair, members, shift), draw(rng, 2 * pair + 1, ~members, shift)]
    return results


def over(results: Sequence[Result], fpr: float = FPR, units: int = 60) -> TrainingsResult:
    collector = OverTrainings(units, fpr)
    for result in results:
        collector.add(**vars(result))
    return collector.finish()


def naive_counts(results: Sequence[Result], fpr: float, units: int) -> list[dict[str, int]]:
    rows = [dict.fromkeys(("trained", "identified", "not_trained", "accused"), 0) for _ in range(units)]
    for result in results:
        for unit in result.queries.tolist():
            called = round(10 ** result.log10_p_conformal[unit] * (result.population + 1)) <= math.floor(
                Fraction(str(fpr)) * (result.population + 1)
            )
            member = bool(result.members[unit])
            rows[unit]["trained" if member else "not_trained"] += 1
            rows[unit]["identified" if member else "accused"] += called
    return rows


# --- counts and curve


@given(seed=st.integers(0, 10**6), fpr=st.sampled_from([0.1, 0.2, 0.5]), models=st.sampled_from([2, 6]))
@settings(max_examples=25, deadline=None)
def test_counts_and_curve_are_those_of_a_loop(seed: int, fpr: float, models: int) -> None:
    results = audit(models, seed=seed)
    found, rows = over(results, fpr), naive_counts(results, fpr, 60)
    exposure = found.exposure
    assert sorted(exposure.index.tolist()) == [i for i, row in enumerate(rows) if row["trained"] + row["not_trained"]]
    for i, unit in enumerate(exposure.index.tolist()):
        row = rows[unit]
        assert {name: int(getattr(exposure, name)[i]) for name in row} == row
    trained = [row for row in rows if row["trained"]]
    others = [row for row in rows if row["not_trained"]]
    summary = found.summary
    assert (summary.units, summary.units_not_trained, summary.trainings) == (len(trained), len(others), models)
    assert [point.percent for point in summary.curve] == list(PERCENTS)
    for point in summary.curve:
        share = Fraction(point.percent, 100)
        assert point.identified == sum(Fraction(r["identified"], r["trained"]) >= share for r in trained)
        assert point.accused == sum(Fraction(r["accused"], r["not_trained"]) >= share for r in others)
        least = [math.ceil(share * r["trained"]) for r in trained]
        chance = stats.binom.sf(np.array(least) - 1, [r["trained"] for r in trained], fpr)
        assert point.expected == pytest.approx(chance.sum())
        # Markov's inequality for a share whose mean is the false-positive rate.
        assert point.at_most == pytest.approx(len(trained) * min(1, fpr / float(share)) if share else len(trained))
        assert point.expected <= point.at_most * (1 + 1e-12)
    assert summary.always == sum(r["identified"] == r["trained"] for r in trained) == exposure.always.sum()
    assert summary.identified == sum(r["identified"] for r in rows) / sum(r["trained"] for r in rows)
    assert summary.accused == sum(r["accused"] for r in rows) / sum(r["not_trained"] for r in rows)


def test_calls_are_those_of_the_conformal_rule_where_p_values_equal_the_level() -> None:
    # Every level k / (n + 1) for which rounding of a logarithm could decide.
    for n in (9, 19, 99, 199, 999):
        members = np.arange(2 * n + 2) < n + 1
        phi = np.concatenate([np.arange(n + 1) - 0.5, [n], np.arange(n)])  # the last n units are the population
        population = np.arange(n + 2, 2 * n + 2)
        rank = 1 + (phi[population][None] >= phi[:, None]).sum(axis=1)
        log10_p = np.log10(np.minimum(rank / (n + 1), 1))
        scores = Scores("x", phi, log10_p, log10_p, phi)
        for level in (0.1, 0.2, 0.3, 0.7):
            collector = OverTrainings(len(members), level)
            collector.add(0, log10_p, phi, members, np.arange(n + 2), n)
            exposure = collector.finish().exposure
            called = np.zeros(len(members), bool)
            called[exposure.index] = exposure.identified + exposure.accused > 0
            assert np.array_equal(called[: n + 2], Conformal(level)(Known(scores, population)).flagged[: n + 2])


def test_units_in_the_population_of_every_training_have_no_row() -> None:
    results = audit(2)
    never = [replace(result, queries=result.queries[result.queries != 7]) for result in results]
    assert 7 not in over(never).exposure.index


def test_memory_does_not_grow_with_the_number_of_targets() -> None:
    collector = OverTrainings(60, FPR)
    for result in audit(20):
        collector.add(**vars(result))
    arrays = [value for value in vars(collector).values() if isinstance(value, np.ndarray)]
    assert sum(array.size for array in arrays) == 4 * 60
    kept = list(collector._trainings.values())
    assert all(not isinstance(value, np.ndarray) for training in kept for value in vars(training).values())


# --- rows


def test_bounds_are_clopper_pearson_of_half_the_counts_and_the_order_is_by_the_lower_one() -> None:
    exposure = over(audit(shift=3.0)).exposure
    for i in range(len(exposure)):
        k, n = exposure.identified[i] / 2, exposure.trained[i] / 2
        assert exposure.low[i] == pytest.approx(stats.beta.ppf(0.025, k, n - k + 1) if k else 0)
        assert exposure.high[i] == pytest.approx(stats.beta.isf(0.025, k + 1, n - k) if k < n else 1)
    assert np.array_equal(exposure.share, exposure.identified / exposure.trained)
    assert np.all(np.diff(exposure.low) <= 0)
    # All units have the same number of trainings here, so those identified in all come first.
    assert 0 < exposure.always.sum() < len(exposure)
    assert exposure.always[: exposure.always.sum()].all()
    ties = np.flatnonzero(np.diff(exposure.low) == 0)
    accused = exposure.accused / np.maximum(exposure.not_trained, 1)
    assert np.all(accused[ties] <= accused[ties + 1])


def test_many_trainings_come_before_few() -> None:
    # Unit 0 is identified in 1 of 1 trainings, unit 1 in all of 6.
    collector = OverTrainings(8, FPR)
    for target in range(6):
        members = np.array([target == 0, True, True, False, False, False, False, False])
        log10_p = np.where(np.arange(8) < 2, -1.0, 0.0)
        queries = np.arange(0 if target == 0 else 1, 8)
        collector.add(target, log10_p, -np.arange(8.0), members, queries, 9)
    exposure = collector.finish().exposure
    assert exposure.index[:2].tolist() == [1, 0]
    assert exposure.always[:2].all()


def test_a_unit_that_was_never_a_member_is_last_and_has_no_share() -> None:
    collector = OverTrainings(4, FPR)
    collector.add(0, np.array([-1.0, -1.0, 0.0, 0.0]), np.arange(4.0), np.array([0, 1, 1, 0], bool), np.arange(4), 9)
    exposure = collector.finish().exposure
    assert exposure.index.tolist() == [1, 2, 3, 0]
    assert exposure.columns()["share"] == [1.0, 0.0, None, None]
    file = io.BytesIO()
    exposure.write_lines(file)
    assert file.getvalue().decode().splitlines() == [
        "index,trained,identified,share,low,high,not_trained,accused",
        "1,1,1,1,0.000625,1,0,0",
        "2,1,0,0,0,0.999375,0,0",
        "3,0,0,,0,1,1,0",
        "0,0,0,,0,1,1,1",
    ]
    assert exposure[:2].index.tolist() == [1, 2]
    with pytest.raises(TypeError, match="slice"):
        exposure[0]  # type: ignore[index]


# --- means


def test_means_are_those_of_the_curves_and_do_not_depend_on_the_order() -> None:
    results = audit()
    summary = over(results).summary
    curves = [roc_curve(r.score[r.queries], r.members[r.queries]) for r in results]
    assert summary.tpr is not None
    assert summary.tpr.mean == pytest.approx(np.mean([curve.tpr_at(FPR).tpr for curve in curves]))
    assert summary.auc.mean == pytest.approx(np.mean([curve.auc for curve in curves]))
    assert summary.auc.interval is not None
    assert summary.auc.mean in summary.auc.interval
    other = over(results[::-1])
    assert other.summary == summary
    assert np.array_equal(other.exposure.index, over(results).exposure.index)


def test_the_summary_is_plain_json() -> None:
    summary = over(audit()).summary
    stored = json.loads(json.dumps(encode(summary)))
    assert stored["curve"][-1] == {
        "percent": 100,
        "identified": summary.always,
        "expected": summary.curve[-1].expected,
        "at_most": summary.curve[-1].at_most,
        "accused": summary.curve[-1].accused,
    }
    assert stored["trainings"] == stored["training_sets"] == 8
    assert stored["tpr"]["interval"].keys() == {"low", "high", "confidence"}


def test_an_interval_over_trainings_has_twice_the_variance_of_students() -> None:
    values = [0.4, 0.5, 0.45, 0.6]
    plain, found = over_targets(values), mean_over_trainings(values, range(4))
    assert found.high - found.low == pytest.approx(math.sqrt(2) * (plain.high - plain.low))


def test_equal_training_sets_count_as_one() -> None:
    twice = mean_over_trainings([0.4, 0.4, 0.5, 0.5, 0.45, 0.45], "aabbcc")
    once = mean_over_trainings([0.4, 0.5, 0.45], "abc")
    assert (twice.low, twice.high) == pytest.approx((once.low, once.high))


def test_members_together_widen_an_interval_without_spread() -> None:
    # Nobody stands out in any training: Student's interval would be the point 0.
    results = [replace(r, score=np.where(r.members, 0.0, 1.0)) for r in audit()]
    tpr = over(results).summary.tpr
    assert tpr is not None
    assert tpr.mean == 0
    assert tpr.interval is not None
    assert tpr.interval.high == pytest.approx(clopper_pearson(0, 8 * 30)[1])


def test_one_training_set_has_means_without_intervals() -> None:
    results = audit(2)[:1]
    again = [*results, replace(results[0], target=5)]
    for trainings in (results, again):
        summary = over(trainings).summary
        assert summary.training_sets == 1
        assert summary.tpr is not None
        assert summary.tpr.interval is None
        assert summary.auc.interval is None
    with pytest.raises(PlmiaError, match="same training set"):
        mean_over_trainings([0.1, 0.2], "aa")


def test_too_few_evaluated_non_members_leave_no_tpr() -> None:
    results = [replace(result, population=1_000) for result in audit()]
    assert over(results, 0.01).summary.tpr is None


def test_each_value_needs_its_training_set() -> None:
    with pytest.raises(PlmiaError, match="3 values and 2 training sets"):
        mean_over_trainings([0.1, 0.2, 0.3], "ab")


# --- bad input


@pytest.mark.parametrize(
    ("change", "error", "facts"),
    [
        ({"population": 8}, PopulationError, r"needs 9 .* has 8"),
        ({"score": np.zeros(59)}, PlmiaError, r"scores .*\(59,\).* 60 units"),
        ({"log10_p_conformal": np.zeros((60, 1))}, PlmiaError, r"p-values .*\(60, 1\)"),
        ({"members": np.zeros(61, bool)}, PlmiaError, r"members .*\(61,\)"),
        ({"members": np.zeros(60)}, PlmiaError, "members are float64"),
        ({"members": np.zeros(60, bool)}, PlmiaError, "no member"),
        ({"log10_p_conformal": np.full(60, np.nan)}, PlmiaError, "nan"),
        ({"log10_p_conformal": np.full(60, 0.5)}, PlmiaError, r"0\.5"),
        ({"score": np.full(60, np.inf)}, PlmiaError, "inf"),
        ({"queries": np.array([3, 60])}, PlmiaError, "60 .*60 units"),
        ({"queries": np.array([-1, 3])}, PlmiaError, "-1"),
        ({"queries": np.array([1, 2, 2])}, PlmiaError, "unit 2 .*twice"),
        ({"queries": np.ones(60, bool)}, PlmiaError, "bool"),
        ({"queries": np.array([], dtype=np.intp)}, PlmiaError, "0 queries"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(change: dict[str, Any], error: type[PlmiaError], facts: str) -> None:
    results = audit(4)
    collector = OverTrainings(60, FPR)
    with pytest.raises(error, match=facts):
        collector.add(**(vars(results[0]) | change))
    for result in results:
        collector.add(**vars(result))
    assert collector.finish().summary == over(results).summary


def test_a_target_counts_once() -> None:
    with pytest.raises(PlmiaError, match=r"target 0 .*twice"):
        over([audit()[0], audit()[0]])


def test_no_target_has_no_summary() -> None:
    with pytest.raises(PlmiaError, match="no target"):
        OverTrainings(60, FPR).finish()


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ((60, 0.0), r"FPR is 0\.0"),
        ((60, 1.0), r"FPR is 1\.0"),
        ((1, 0.1), "n_units is 1"),
        ((60, 0.1, 95), "confidence is 95"),
    ],
)
def test_settings_outside_are_refused(arguments: tuple[Any, ...], facts: str) -> None:
    with pytest.raises(PlmiaError, match=facts):
        OverTrainings(*arguments)
