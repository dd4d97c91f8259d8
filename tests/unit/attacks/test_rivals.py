"""Attacks published since the paper: each against a loop over records, and what their authors claim of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import integrate, special, stats

from plmia import Attack, AttackView, BinaryVote, NoCalibration, Signals
from plmia.attacks import rivals
from plmia.attacks.attack import ATTACKS, RIVALS, RMIA, find_attack
from plmia.attacks.calibration import FreshPopulation
from plmia.attacks.conditional import assign_folds
from plmia.attacks.rivals import (
    MOST_PRIOR_REFERENCES,
    ConjugateLR,
    MeanDifference,
    NormalInverseGamma,
    NormalInverseGammas,
    NormalPredictive,
    QuantileExcess,
    ScaledBayesLR,
    StudentPredictive,
)
from plmia.attacks.scoring import Scores, score_all
from plmia.attacks.statistics import BayesLR, evaluate
from plmia.attacks.view import Features, References, SideMoments
from plmia.auditing.run import AuditPlan
from plmia.auditing.score import choose_attacks
from plmia.data.arrays import FloatArray
from plmia.errors import AttackError, PopulationError, ReferencesError

Simulate = Callable[..., Signals]


def view_of(signals: Signals, mode: Any = "online") -> AttackView:
    rows = np.arange(2, signals.n_models)
    references = References(signals.values, rows, signals.design.matrix[rows])
    population = np.flatnonzero(~signals.design.matrix[0])[::3]
    return AttackView(signals.values[0].astype(np.float64), references, population, mode=mode)


def uneven(signals: Signals) -> Signals:
    """Return signals whose records have different numbers of references, variances and levels."""
    rng = np.random.default_rng(0)
    scale = np.exp(0.8 * rng.normal(size=(signals.n_points, 1)))
    matrix = rng.random(signals.design.matrix.shape) < 0.5
    matrix[2:4], matrix[4:6] = True, False
    return Signals((signals.values * scale).astype(np.float64), type(signals.design)(matrix))


def run(attack: Attack, view: AttackView, seed: int = 0) -> Scores:
    (scores,) = score_all([attack], view, seed)
    return scores


# Names and defaults ---------------------------------------------------------------------------------------------------


def test_rivals_run_only_if_they_are_named() -> None:
    assert not set(RIVALS) & set(ATTACKS)
    assert list(RIVALS) == ["bavaria-t", "bavaria-n", "info-rmia", "base", "quantile-regression"]
    assert not {attack.name for attack in choose_attacks(None)} & set(RIVALS)
    assert not {attack.name for attack in AuditPlan.__dataclass_fields__["attacks"].default} & set(RIVALS)
    for name, attack in RIVALS.items():
        assert find_attack(name) is attack
        assert [chosen.name for chosen in choose_attacks([name], with_records=True)] == [name]
        assert attack.note
        assert type(attack.statistic).__doc__


@pytest.mark.parametrize("name", ["attack-p-conditional", "quantile-regression"])
def test_attacks_that_read_records_are_refused_before_anything_is_trained(name: str) -> None:
    with pytest.raises(AttackError, match=name):
        choose_attacks([name])


# BaVarIA --------------------------------------------------------------------------------------------------------------


def naive_prior(groups: list[FloatArray], means: list[float], counts: list[int]) -> tuple[float, float, float, float]:
    """Estimate mean, n_mean, a and b from the signals of each record and view with two references or more."""
    variances = [float(np.var(group, ddof=1)) for group in groups]
    noise = float(np.mean([2 / (len(group) - 1) for group in groups]))
    expected = sum(variances) / len(variances)
    spread = (float(np.var(variances)) - noise * expected**2) / (1 + noise)
    a = 2 + expected**2 / spread
    between = float(np.var(means)) / expected - float(np.mean([1 / n for n in counts]))
    return float(np.mean(means)), 1 / between, a, expected * (a - 1)


def naive_laws(view: AttackView, inside: bool) -> dict[tuple[int, int], tuple[float, float, float, float]]:
    """Posterior mean, n_mean, a and b of each record and view, from the raw signals of one side."""
    of: dict[tuple[int, int], FloatArray] = {}
    for i in range(view.n_points):
        for k in range(view.n_views):
            rows = [row for row, members in zip(view.references.rows, view.references.in_mask, strict=True)
                    if members[i] == inside]  # fmt: skip
            of[i, k] = view.references.signals[rows, i, k].astype(np.float64)
    several = [x for x in of.values() if len(x) >= 2]
    # The prior has one count per record, not one per record and view.
    counts = [len(of[i, 0]) for i in range(view.n_points)]
    m0, n0, a0, b0 = naive_prior(several, [float(x.mean()) for x in of.values()], counts)
    found = {}
    for key, x in of.items():
        n, mean = len(x), float(x.mean())
        total = n0 + n
        squares = float(((x - mean) ** 2).sum()) + n0 * n / total * (mean - m0) ** 2
        found[key] = (n0 * m0 + n * mean) / total, total, a0 + n / 2, b0 + squares / 2
    return found


def law_of(name: str, posterior: tuple[float, float, float, float]) -> Any:
    mean, total, a, b = posterior
    if name == "bavaria-t":
        return stats.t(2 * a, mean, math.sqrt(b / a * (1 + 1 / total)))
    return stats.norm(mean, math.sqrt(b / (a - 1)))


@pytest.mark.parametrize("name", ["bavaria-t", "bavaria-n"])
@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("views", [1, 2])
def test_bavaria_is_what_a_loop_over_records_finds(
    name: str, mode: Any, views: int, simulate_signals: Simulate
) -> None:
    view = view_of(uneven(simulate_signals(1, models=14, points=60, views=views, dtype="float64")), mode)
    found = evaluate(RIVALS[name].statistic, view)
    outside = naive_laws(view, inside=False)
    inside = naive_laws(view, inside=True)
    for (i, k), posterior in outside.items():
        x, out = view.target[i, k], law_of(name, posterior)
        expected = -out.logsf(x) if mode == "offline" else law_of(name, inside[i, k]).logpdf(x) - out.logpdf(x)
        assert found[i, k] == pytest.approx(expected, rel=1e-7, abs=1e-9)


def test_the_student_law_is_a_mixture_of_gaussians() -> None:
    """Integrated over the variance numerically: the mean has been integrated out by hand."""
    mean, n_mean, a, b, x = 0.4, 3.0, 2.5, 1.7, 2.2

    def weighted(variance: float) -> float:
        density = stats.norm.pdf(x, mean, math.sqrt(variance * (1 + 1 / n_mean)))
        return float(density * stats.invgamma.pdf(variance, a, scale=b))

    whole = integrate.quad(weighted, 0, np.inf)[0]
    law = NormalInverseGammas(*(np.array([[value]]) for value in (mean, n_mean, a, b)))
    found = StudentPredictive().log_density(np.array([[x]]), law)[0, 0] - 0.5 * math.log(2 * math.pi)
    assert found == pytest.approx(math.log(whole), rel=1e-8)


def simulated_moments(a: float, n_mean: float, n: int, n_points: int = 200_000) -> SideMoments:
    rng = np.random.default_rng(3)
    variance = stats.invgamma.rvs(a, scale=2.0, size=n_points, random_state=rng)
    mean = 1.0 + np.sqrt(variance / n_mean) * rng.normal(size=n_points)
    x = mean + np.sqrt(variance) * rng.normal(size=(n, n_points))
    return SideMoments(
        "OUT", np.full(n_points, n), x.mean(axis=0)[:, None], x.var(axis=0)[:, None], np.dtype(np.float64)
    )


@pytest.mark.parametrize("n", [2, 8])
def test_the_prior_that_drew_the_signals_is_found(n: int) -> None:
    prior = NormalInverseGamma.estimate(simulated_moments(a=9.0, n_mean=0.5, n=n))
    assert prior.mean == pytest.approx(1.0, abs=0.01)
    assert prior.n_mean == pytest.approx(0.5, rel=0.03)
    assert prior.a == pytest.approx(9.0, rel=0.1)
    assert prior.b == pytest.approx(2.0, rel=0.15)


def test_equal_variances_and_means_make_a_prior_that_counts_as_many_references() -> None:
    moments = simulated_moments(a=1e9, n_mean=1e9, n=4, n_points=100)
    flat = SideMoments("IN", moments.n, np.zeros((100, 1)), np.full((100, 1), 0.5), moments.stored)
    prior = NormalInverseGamma.estimate(flat)
    assert (prior.n_mean, prior.a) == pytest.approx((MOST_PRIOR_REFERENCES, 2 + MOST_PRIOR_REFERENCES))
    assert np.allclose((posterior := prior.given(flat)).b / posterior.a, 0.5 * 4 / 3)


@pytest.mark.parametrize("a", [2.5, 40.0, 1e6])
def test_far_tails_are_finite_increasing_and_continue_the_near_ones(a: float, monkeypatch: pytest.MonkeyPatch) -> None:
    law = NormalInverseGammas(*(np.full((1, 1), value) for value in (0.0, 1e9, a, a)))
    x = np.geomspace(5.0, 1e6, 400)[:, None]
    tail = StudentPredictive().log_tail(x, law)
    assert np.isfinite(tail).all()
    assert (np.diff(tail[:, 0]) < 0).all()
    exact = special.stdtr(2 * a, -x[:, 0] / math.sqrt(1 + 1e-9))
    near = exact > 1e-280
    monkeypatch.setattr(rivals, "SMALLEST_TAIL", 1.0)
    expanded = StudentPredictive().log_tail(x[near], law)[:, 0]
    # The error of the expansion falls with the fourth power of x.
    assert (np.abs(expanded - np.log(exact[near])) < 10 / x[near, 0] ** 4 + 1e-7 * np.abs(expanded)).all()


def test_bavaria_refuses_one_reference_per_side(simulate_signals: Simulate) -> None:
    view = view_of(simulate_signals(2, models=4, points=50))
    with pytest.raises(ReferencesError, match=r"2 OUT .* 1\b"):
        ConjugateLR().fit(view)


# BASE and InfoRMIA ----------------------------------------------------------------------------------------------------


def naive_ratio(view: AttackView, i: int, k: int, scale: float) -> float:
    p = [float(special.expit(view.references.signals[row, i, k])) for row in view.references.rows]
    used = [x for x, members in zip(p, view.references.in_mask, strict=True) if view.mode == "online" or not members[i]]
    log_mean = math.log(sum(used) / len(used))
    return math.log(special.expit(view.target[i, k])) - (1.0 if view.mode == "online" else scale) * log_mean


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("scale", [0.33, 1.0])
def test_base_is_what_a_loop_over_records_finds(mode: Any, scale: float, simulate_signals: Simulate) -> None:
    view = view_of(simulate_signals(3, models=12, points=50, views=2, dtype="float64"), mode)
    found = evaluate(ScaledBayesLR(scale), view)
    for i in range(50):
        for k in range(2):
            assert found[i, k] == pytest.approx(naive_ratio(view, i, k, scale), rel=1e-9)


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_base_orders_records_as_rmia_does_with_one_shared_population(gamma: float, simulate_signals: Simulate) -> None:
    """RMIA's votes are the rank of BASE's score in the population, at gamma = 1 itself: one threshold for all records.

    At other gammas they are the rank of a shifted score. So votes never reverse two records, they only tie them.
    """
    view = view_of(simulate_signals(4, models=20, points=900, dtype="float64"))
    voted = run(Attack("votes", BayesLR(), BinaryVote(math.log(gamma))), view)
    base = run(RIVALS["base"], view)
    queries = np.setdiff1d(np.arange(900), view.population)
    ranks = [(base.score[view.population] < base.score[q] - math.log(gamma)).mean() for q in queries]
    assert voted.score[queries].tolist() == pytest.approx(ranks)
    assert (np.diff(voted.score[queries][np.argsort(base.score[queries])]) >= 0).all()
    assert len(np.unique(voted.score[queries])) <= len(view.population) + 1 < len(np.unique(base.score[queries]))
    # The same p-values, hence the same decisions.
    assert base.log10_p_conformal.tolist() == run(RMIA, view).log10_p_conformal.tolist()


def test_base_is_rmia_s_statistic_online_and_offline_at_scale_and_a_of_one(
    simulate_signals: Simulate,
) -> None:
    signals = simulate_signals(5, models=12, points=80)
    online, offline = view_of(signals), view_of(signals, "offline")
    assert ScaledBayesLR().in_mode("online") == BayesLR()
    assert evaluate(ScaledBayesLR(), online).tobytes() == evaluate(BayesLR(), online).tobytes()
    assert evaluate(ScaledBayesLR(1.0), offline).tolist() == evaluate(BayesLR(a=1.0), offline).tolist()


def test_a_scale_outside_its_range_is_refused() -> None:
    for scale in (-0.1, 1.1, math.nan):
        with pytest.raises(AttackError, match=str(scale)):
            ScaledBayesLR(scale)


def test_informia_is_what_a_loop_over_pairs_finds(simulate_signals: Simulate) -> None:
    view = view_of(simulate_signals(6, models=12, points=60, views=2, dtype="float64"))
    found = run(RIVALS["info-rmia"], view).score
    phi = [float(np.mean([naive_ratio(view, i, k, 1.0) for k in range(2)])) for i in range(60)]
    for i in range(60):
        others = [z for z in view.population.tolist() if z != i]
        assert found[i] == pytest.approx(sum(phi[i] - phi[z] for z in others) / len(others), rel=1e-9)


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_with_one_shared_population_informia_ranks_as_the_uncalibrated_ratio(
    mode: Any, simulate_signals: Simulate
) -> None:
    """The proof: mean over z of phi(q) - phi(z) is phi(q) minus a number that does not depend on q.

    This holds for any weights of the population records, such as the probability of z, as long as they are shared.
    """
    view = view_of(simulate_signals(7, models=20, points=900, dtype="float64"), mode)
    queries = np.setdiff1d(np.arange(900), view.population)
    plain = run(Attack("ratio", BayesLR(), NoCalibration()), view)
    informia = run(RIVALS["info-rmia"], view)
    assert np.argsort(informia.score[queries]).tolist() == np.argsort(plain.score[queries]).tolist()
    moved = informia.score[queries] - plain.score[queries]
    assert np.ptp(moved) < 1e-12
    weights = np.random.default_rng(0).dirichlet(np.ones(len(view.population)))
    weighted = (plain.score[queries][:, None] - plain.score[view.population]) @ weights
    assert np.argsort(weighted).tolist() == np.argsort(plain.score[queries]).tolist()


def test_with_another_population_for_each_query_informia_ranks_differently(simulate_signals: Simulate) -> None:
    view = view_of(simulate_signals(7, models=20, points=900, dtype="float64"))
    queries = np.setdiff1d(np.arange(900), view.population)
    plain = run(Attack("ratio", BayesLR(), NoCalibration()), view)
    fresh = run(Attack("fresh", BayesLR(), MeanDifference(), population=FreshPopulation(10)), view)
    assert np.argsort(fresh.score[queries]).tolist() != np.argsort(plain.score[queries]).tolist()


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_informia_separates_saturated_records_as_the_ratio_does(mode: Any, simulate_signals: Simulate) -> None:
    """Ratios near 0 that differ by less than a mean of order 1 resolves: their order is not rounded away."""
    rng = np.random.default_rng(11)
    signals = simulate_signals(11, models=10, points=300, dtype="float64")
    saturated = np.where(rng.random(300) < 0.7, rng.uniform(30, 300, (10, 300)), signals.values[:, :, 0])
    view = view_of(replace(signals, values=saturated[:, :, None]), mode)
    queries = np.setdiff1d(np.arange(300), view.population)
    ratio = run(Attack("ratio", BayesLR(), NoCalibration()), view).score
    plain, found = ratio[queries], run(RIVALS["info-rmia"], view).score[queries]
    subtracted = plain - ratio[view.population].mean()
    assert len(np.unique(subtracted)) < len(np.unique(plain)) - 20
    assert np.array_equal(np.unique(plain, return_inverse=True)[1], np.unique(found, return_inverse=True)[1])
    assert found == pytest.approx(subtracted, rel=1e-12)


@pytest.mark.parametrize("values", [[1e-20, 2e-20, -1e-20, 0.0, 0.0, 1e-20], [3.0, 1.0, 2.0, 1.0, -4.0, 2.0]])
def test_mean_differences_are_moved_apart_only_where_they_must(values: list[float]) -> None:
    query, population = np.array(values), np.array([-1.0, -3.0])
    scores = MeanDifference().shared(query, population, np.full(6, 2))
    assert np.array_equal(np.unique(query, return_inverse=True)[1], np.unique(scores, return_inverse=True)[1])
    assert np.abs(scores - (query + 2.0)).max() <= 6 * np.spacing(6.0)
    if query.max() > 1:
        assert scores.tolist() == (query + 2.0).tolist()


# Quantile regression --------------------------------------------------------------------------------------------------

N = 500
RNG = np.random.default_rng(0)
COLUMNS = RNG.normal(size=(N, 3))
SIGNAL = 3 * COLUMNS[:, 0] + (0.2 + np.abs(COLUMNS[:, 1])) * RNG.normal(size=N)
POPULATION = np.sort(RNG.choice(N, N // 2, replace=False))


def records_view(signal: FloatArray, features: Features | None, population: Any = POPULATION) -> AttackView:
    target = signal[:, None] if signal.ndim == 1 else signal
    nobody = References(target[None], np.array([], dtype=np.intp), np.zeros((0, len(target)), bool))
    return AttackView(target, nobody, population, features=features)


def excess(signal: FloatArray, **options: int) -> FloatArray:
    return QuantileExcess(**options).fit(records_view(signal, Features(COLUMNS))).phi[:, 0]


def test_quantile_regression_is_what_a_loop_over_records_finds() -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    folds = assign_folds(N, POPULATION, 2, np.random.default_rng(0))
    found = excess(SIGNAL, folds=2)
    for fold in range(2):
        known = [z for z in POPULATION.tolist() if folds[z] != fold]
        trees = [
            HistGradientBoostingRegressor(
                loss="quantile", quantile=stats.norm.cdf(z).round(4), max_iter=200, early_stopping=True, random_state=0
            ).fit(COLUMNS[known], SIGNAL[known])
            for z in (-1, 0, 1)
        ]
        for i in np.flatnonzero(folds == fold)[::20]:
            low, median, high = sorted(float(each.predict(COLUMNS[[i]])[0]) for each in trees)
            spread = max((high - low) / 2, 1e-3 * float(np.std(SIGNAL[known])))
            assert found[i] == pytest.approx((SIGNAL[i] - median) / spread, rel=1e-9)


def test_only_known_non_members_of_other_folds_shape_the_prediction_of_a_record() -> None:
    folds = assign_folds(N, POPULATION, 5, np.random.default_rng(0))
    before, changed = excess(SIGNAL), SIGNAL.copy()
    shaper = int(POPULATION[0])
    changed[shaper] += 50.0
    after = excess(changed)
    own = (folds == folds[shaper]) & (np.arange(N) != shaper)
    assert np.array_equal(before[own], after[own])
    assert (before != after)[folds != folds[shaper]].any()
    queries = np.setdiff1d(np.arange(N), POPULATION)
    changed = SIGNAL.copy()
    changed[queries] = RNG.normal(size=len(queries))
    assert np.array_equal(before[POPULATION], excess(changed)[POPULATION])


def test_it_removes_what_the_record_explains_and_finds_members() -> None:
    leaking = SIGNAL.copy()
    members = np.setdiff1d(np.arange(N), POPULATION)[::2]
    others = np.setdiff1d(np.arange(N), np.concatenate([members, POPULATION]))
    leaking[members] += 2.0
    found = excess(leaking)
    assert abs(np.corrcoef(SIGNAL, COLUMNS[:, 0])[0, 1]) > 0.8
    assert abs(stats.spearmanr(found[POPULATION], COLUMNS[POPULATION, 0]).statistic) < 0.3
    plain = (leaking[members][:, None] > leaking[others]).mean()
    assert (found[members][:, None] > found[others]).mean() > plain + 0.05


def test_what_quantile_regression_refuses() -> None:
    with pytest.raises(AttackError, match="--data"):
        QuantileExcess().fit(records_view(SIGNAL, None))
    with pytest.raises(PopulationError, match=r"19 records, 20"):
        QuantileExcess().fit(records_view(SIGNAL, Features(COLUMNS), POPULATION[:19]))
    with pytest.raises(PopulationError, match="same signal"):
        excess(np.where(np.isin(np.arange(N), POPULATION), 1.0, SIGNAL))
    with pytest.raises(AttackError, match="at least 2"):
        QuantileExcess(folds=1)
    assert not RIVALS["quantile-regression"].uses_references


def test_records_without_spread_and_columns_without_values_are_taken() -> None:
    """Where signals repeat, quantiles coincide: the spread is then a small share of the overall deviation."""
    signal = np.where(COLUMNS[:, 0] > 0, SIGNAL, 1.0)
    columns = np.column_stack([COLUMNS, np.full(N, np.nan)])
    found = QuantileExcess().fit(records_view(signal, Features(columns))).phi
    assert np.isfinite(found).all()
    assert len(np.unique(found)) > N / 3


def test_the_normal_law_has_the_posterior_means() -> None:
    law = NormalInverseGammas(*(np.full((1, 1), value) for value in (0.5, 4.0, 3.0, 8.0)))
    x = np.array([[1.5]])
    density = NormalPredictive().log_density(x, law)[0, 0] - 0.5 * math.log(2 * math.pi)
    assert density == pytest.approx(stats.norm.logpdf(1.5, 0.5, 2.0))
    assert NormalPredictive().log_tail(x, law)[0, 0] == pytest.approx(stats.norm.logsf(1.5, 0.5, 2.0))
