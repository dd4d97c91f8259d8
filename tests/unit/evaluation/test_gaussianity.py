"""Shapiro-Wilk of many points at once against SciPy one at a time, the groups, and metrics by group."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from plmia.attacks.attack import PL_MIA
from plmia.attacks.view import References
from plmia.errors import PlmiaError
from plmia.evaluation.diagnostics.gaussianity import (
    Gaussianity,
    gaussianity,
    groups,
    metrics_by_group,
    shapiro_weights,
    shapiro_wilk,
)
from plmia.evaluation.metrics import evaluate
from plmia.evaluation.targets import Setup, attack_targets

SIZES = [*range(3, 41), 50, 63, 127, 254, 1000, 4999, 5000]


def samples_of(n, seed):
    """Samples [n, 6]: Gaussian, skewed, heavy-tailed, bounded, tied and far from 0."""
    rng = np.random.default_rng([seed, n])
    tied = np.round(rng.normal(size=n), 1)
    tied[0], tied[1] = -1.0, 1.0
    columns = [rng.normal(size=n), np.exp(rng.normal(size=n)), rng.standard_t(2, n), rng.random(n), tied]
    return np.sort(np.stack([*columns, 1e6 + rng.normal(size=n)], axis=1), axis=0)


@pytest.mark.parametrize("n", SIZES)
def test_shapiro_wilk_equals_scipy(n):
    ordered = samples_of(n, 0)
    w, p = shapiro_wilk(ordered)
    for j, column in enumerate(ordered.T):
        expected = stats.shapiro(column)
        assert w[j] == pytest.approx(expected.statistic, abs=1e-7)
        assert p[j] == pytest.approx(expected.pvalue, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("n", SIZES)
def test_weights_are_antisymmetric_and_normed(n):
    weights = shapiro_weights(n)
    assert np.array_equal(weights, -weights[::-1])
    assert np.sum(weights**2) == pytest.approx(1.0, abs=1e-12)
    assert np.all(np.diff(weights) > 0)


def test_a_sample_of_the_weights_themselves_is_perfectly_gaussian():
    for n in (3, 8, 12, 40):
        w, p = shapiro_wilk(shapiro_weights(n)[:, None].copy())
        assert w[0] == pytest.approx(1.0, abs=1e-12)
        assert p[0] == pytest.approx(1.0, abs=1e-6)


def test_the_statistic_does_not_see_place_or_scale():
    ordered = samples_of(20, 1)[:, :4]
    for changed in (1e-150 * ordered, 1e150 * ordered, ordered + 100.0):
        assert np.allclose(shapiro_wilk(changed)[0], shapiro_wilk(ordered)[0], rtol=0, atol=1e-9)


def test_equal_values_are_marked_and_leave_the_others_alone():
    ordered = samples_of(9, 2)
    with_constant = np.concatenate([np.full((9, 1), 7.0), ordered], axis=1)
    w, p = shapiro_wilk(with_constant)
    assert np.isnan([w[0], p[0]]).all()
    assert np.allclose(w[1:], shapiro_wilk(ordered)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [0, 1, 2, 5001])
def test_sizes_without_a_test_are_refused(n):
    with pytest.raises(PlmiaError, match="3 to 5000"):
        shapiro_weights(n)


def by_loop(references, view):
    """W_in, p_in, w_out, p_out of each point, one SciPy call each."""
    out = np.full((4, references.n_points), np.nan)
    for point in range(references.n_points):
        for side, inside in enumerate((True, False)):
            values = references.signals[references.rows, point, view][references.in_mask[:, point] == inside]
            if len(values) >= 3 and np.ptp(values) > 0:
                out[2 * side : 2 * side + 2, point] = stats.shapiro(values)
    return out


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("view", [0, 1])
def test_points_are_tested_as_one_at_a_time(make_references, pairs, view):
    """Unpaired, points differ in how many references are IN; some have fewer than 3 on one side."""
    references = make_references(8, 200, 2, pairs=pairs, jump=True)
    result = gaussianity(references, view)
    expected = by_loop(references, view)
    assert np.isnan(expected).any() != pairs
    assert np.allclose([result.w_in, result.p_in, result.w_out, result.p_out], expected, atol=1e-7, equal_nan=True)
    assert np.array_equal(result.score, np.minimum(result.w_in, result.w_out), equal_nan=True)
    assert np.array_equal(np.isnan(result.score), result.group == -1)


def test_blocks_change_nothing(make_references, monkeypatch):
    references = make_references(12, 100, 1)
    whole = gaussianity(references)
    original = References.blocks
    monkeypatch.setattr(References, "blocks", lambda self: original(self, cells=50))
    assert np.array_equal(gaussianity(references).score, whole.score)


def test_all_views_take_the_worst(make_references):
    references = make_references(12, 60, 3)
    one_by_one = [gaussianity(references, view) for view in range(3)]
    every = gaussianity(references, None)
    assert np.array_equal(every.w_out, np.min([g.w_out for g in one_by_one], axis=0))
    assert np.array_equal(every.p_in, np.minimum(3 * np.min([g.p_in for g in one_by_one], axis=0), 1))
    with pytest.raises(PlmiaError, match="view 3"):
        gaussianity(references, 3)


def test_groups_are_thirds_in_order():
    score = np.random.default_rng(0).random(100)
    score[[5, 50]] = np.nan
    group = groups(score)
    assert group[[5, 50]].tolist() == [-1, -1]
    assert np.ptp(np.bincount(group[group >= 0])) <= 1
    assert score[group == 0].max() < score[group == 1].min()
    assert score[group == 1].max() < score[group == 2].min()
    assert groups(np.full(4, np.nan)).tolist() == [-1] * 4
    assert groups(np.zeros(0)).tolist() == []


def test_metrics_by_group_are_those_of_its_queries(simulate_signals):
    signals = simulate_signals(0, models=18, points=900)
    (result,) = attack_targets(signals, [PL_MIA], [0], Setup())
    tested = gaussianity(result.view.references)
    parts = metrics_by_group(tested, result.scores, result.truth, 0)
    queries = result.truth.queries
    group = groups(tested.score[queries])
    for k, part in enumerate(parts):
        chosen = queries[group == k]
        expected = evaluate(result.scores.score[chosen], result.truth.members[chosen], target=0)
        assert part is not None
        assert part == expected


def test_a_group_without_members_has_no_metrics(simulate_signals):
    signals = simulate_signals(0, models=18, points=300)
    (result,) = attack_targets(signals, [PL_MIA], [0], Setup())
    queries, members = result.truth.queries, result.truth.members
    score = np.full(len(members), np.nan)
    score[queries] = members[queries] + 0.0
    empty = np.zeros(len(members))
    made = Gaussianity(empty, empty, empty, empty, score, groups(score))
    parts = metrics_by_group(made, result.scores, result.truth, 0)
    assert parts[0] is None
    assert parts[2] is None


def test_the_summary_is_plain_json(make_references):
    references = make_references(12, 100, 1, pairs=False)
    summary = gaussianity(references).to_json()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["points"] == 100
    assert summary["not_tested"] > 0
    few = make_references(4, 10, 1)
    assert gaussianity(few).to_json() == {"points": 10, "not_tested": 10, "level": 0.05, "in": None, "out": None}
