"""The conditional attack: who shapes the prediction of whom, what it removes, and what it refuses."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from scipy import stats

from plmia.attacks.attack import ATTACK_P_CONDITIONAL, find_attack
from plmia.attacks.conditional import ConditionalExcess, NormalScores, assign_folds
from plmia.attacks.view import AttackView, Features, References
from plmia.data.arrays import FloatArray, IntArray
from plmia.errors import AttackError, PopulationError, SignalsError

N, Z = 800, 400
RNG = np.random.default_rng(0)
COLUMNS = RNG.normal(size=(N, 3))
SIGNAL = 3 * COLUMNS[:, 0] + (0.2 + np.abs(COLUMNS[:, 1])) * RNG.normal(size=N)
POPULATION = np.sort(RNG.choice(N, Z, replace=False))


def view_of(signal: FloatArray, features: Features | None = None, population: IntArray = POPULATION) -> AttackView:
    target = signal[:, None] if signal.ndim == 1 else signal
    nobody = References(target[None], np.array([], dtype=np.intp), np.zeros((0, len(target)), bool))
    return AttackView(target, nobody, population, features=features)


def excess(signal: FloatArray, features: Features | None = None, **options: int) -> FloatArray:
    fitted = ConditionalExcess(**options).fit(view_of(signal, features or Features(COLUMNS)))
    assert (fitted.phi == fitted.phi[:, :1]).all()
    return fitted.phi[:, 0]


def naive_excess(signal: FloatArray, columns: FloatArray, folds: IntArray, n_folds: int) -> FloatArray:
    """Predict record by record, with everything that is needed fitted again for the record."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    def trees(points: list[int], values: list[float]) -> HistGradientBoostingRegressor:
        made = HistGradientBoostingRegressor(max_iter=200, early_stopping=True, random_state=0)
        return made.fit(columns[points], values)

    @cache
    def fitted(a: int, b: int) -> tuple[NormalScores, HistGradientBoostingRegressor]:
        known = [z for z in POPULATION.tolist() if folds[z] not in (a, b)]
        scores = NormalScores.of(signal[known])
        return scores, trees(known, [float(scores(signal[[z]])[0]) for z in known])

    def one(record: int, a: int, b: int) -> float:
        scores, mean = fitted(min(a, b), max(a, b))
        return float(scores(signal[[record]])[0] - mean.predict(columns[[record]])[0])

    found = np.full(len(signal), np.nan)
    for k in range(n_folds):
        others = [j for j in range(n_folds) if j != k]
        rest = [z for j in others for z in POPULATION.tolist() if folds[z] == j]
        spread = trees(rest, [math.log(max(abs(one(z, k, int(folds[z]))), 1e-3)) for z in rest])
        for i in np.flatnonzero(folds == k)[::10]:
            mean = sum(one(int(i), k, j) for j in others) / len(others)
            found[i] = mean / math.exp(spread.predict(columns[[i]])[0])
    return found


def test_normal_scores_are_gaussian_increasing_and_do_not_depend_on_the_scale() -> None:
    given = np.random.default_rng(2).standard_cauchy(size=999)
    scores = NormalScores.of(given)
    assert stats.kstest(scores(given), "norm").statistic < 1e-3
    anywhere = np.sort(np.concatenate([given, np.linspace(-1e4, 1e4, 999)]))
    assert (np.diff(scores(anywhere)) >= 0).all()
    assert scores(np.array([given.max() + 5])) > scores(np.array([given.max() + 4]))
    other = NormalScores.of(3 * given - 7)
    assert np.allclose(other(3 * anywhere - 7), scores(anywhere))


def test_tied_signals_share_the_middle_of_their_ranks() -> None:
    scores = NormalScores.of(np.array([0.0, 0.0, 1.0, 1.0]))
    assert np.allclose(scores(np.array([0.0, 0.5, 1.0])), stats.norm.ppf([0.25, 0.5, 0.75]))


def test_it_is_what_a_loop_over_records_finds() -> None:
    folds = assign_folds(N, POPULATION, 3, np.random.default_rng(0))
    naive = naive_excess(SIGNAL, COLUMNS, folds, 3)
    some = np.isfinite(naive)
    assert some.sum() > N // 11
    assert np.allclose(excess(SIGNAL, folds=3)[some], naive[some], rtol=1e-12)


def test_folds_are_even_in_the_population_and_elsewhere_and_cover_everybody() -> None:
    folds = assign_folds(N, POPULATION, 7, np.random.default_rng(1))
    others = np.setdiff1d(np.arange(N), POPULATION)
    for points in (POPULATION, others):
        sizes = np.bincount(folds[points], minlength=7)
        assert np.ptp(sizes) <= 1
        assert sizes.sum() == len(points)


def test_a_record_shapes_no_prediction_of_its_own_fold() -> None:
    """Neither its own nor that of an evaluated record that shares its fold; those of other folds it does shape."""
    folds = assign_folds(N, POPULATION, 5, np.random.default_rng(0))
    changed = SIGNAL.copy()
    shaper = int(POPULATION[0])
    changed[shaper] += 50.0
    before, after = excess(SIGNAL), excess(changed)
    own = (folds == folds[shaper]) & (np.arange(N) != shaper)
    assert np.array_equal(before[own], after[own])
    assert (before != after)[folds != folds[shaper]].mean() > 0.9
    assert after[shaper] > before[shaper]


def test_an_evaluated_record_shapes_no_prediction_at_all() -> None:
    changed = SIGNAL.copy()
    queries = np.setdiff1d(np.arange(N), POPULATION)
    changed[queries] = RNG.normal(size=len(queries)) * 100
    before, after = excess(SIGNAL), excess(changed)
    assert np.array_equal(before[POPULATION], after[POPULATION])


def test_it_removes_what_the_record_explains_and_keeps_the_excess() -> None:
    leaking = SIGNAL.copy()
    members = np.setdiff1d(np.arange(N), POPULATION)[::2]
    leaking[members] += 2.0
    found = excess(leaking)
    assert abs(np.corrcoef(found[POPULATION], COLUMNS[POPULATION, 0])[0, 1]) < 0.3
    assert abs(np.corrcoef(SIGNAL, COLUMNS[:, 0])[0, 1]) > 0.8
    others = np.setdiff1d(np.arange(N), np.concatenate([members, POPULATION]))
    assert (found[members][:, None] > found[others]).mean() > (
        leaking[members][:, None] > leaking[others]
    ).mean() + 0.05


def test_views_are_averaged_and_the_seed_draws_the_folds() -> None:
    both = np.stack([SIGNAL + 1, SIGNAL - 1], axis=1)
    twice = ConditionalExcess().fit(view_of(both, Features(COLUMNS))).phi
    assert np.allclose(twice[:, 0], excess(SIGNAL))
    assert twice.shape == both.shape
    assert not np.allclose(excess(SIGNAL, seed=1), excess(SIGNAL))


def test_categories_missing_values_and_a_column_without_values_are_taken() -> None:
    group = RNG.integers(0, 6, size=N).astype(float)
    signal = np.array([0.0, 5.0, 1.0, 6.0, 2.0, 7.0])[group.astype(int)] + RNG.normal(size=N)
    missing = np.where(RNG.random(N) < 0.1, np.nan, group)
    columns = np.column_stack([missing, np.full(N, np.nan), np.full(N, np.nan), np.arange(N)])
    found = excess(signal, Features(columns, categories=(0, 1, 3)))  # the last has more categories than trees take
    assert np.isfinite(found).all()
    without = excess(signal, Features(columns[:, 1:]))
    assert np.corrcoef(found, signal)[0, 1] < np.corrcoef(without, signal)[0, 1] - 0.2


def test_what_it_refuses() -> None:
    with pytest.raises(AttackError, match="--data"):
        ConditionalExcess().fit(view_of(SIGNAL))
    with pytest.raises(PopulationError, match=r"19 records, 20"):
        ConditionalExcess().fit(view_of(SIGNAL, Features(COLUMNS), POPULATION[:19]))
    with pytest.raises(PopulationError, match="same signal"):
        excess(np.where(np.isin(np.arange(N), POPULATION), 1.0, SIGNAL))
    with pytest.raises(AttackError, match="at least 3"):
        ConditionalExcess(folds=2)
    with pytest.raises(SignalsError, match=r"\b799\b"):
        view_of(SIGNAL, Features(COLUMNS[:-1]))


def test_it_has_a_name_and_needs_no_references() -> None:
    assert find_attack("attack-p-conditional") is ATTACK_P_CONDITIONAL
    assert not ATTACK_P_CONDITIONAL.uses_references
