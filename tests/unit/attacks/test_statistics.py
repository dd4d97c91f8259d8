"""The statistics against scipy, mpmath and loops: values, signs, extremes, and who may influence them."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from plmia.attacks.statistics import (
    BayesLR,
    FixedVariance,
    GaussianLR,
    Loss,
    MedianCentre,
    OneSided,
    PooledVariance,
    PublishedFixedVariance,
    ReferenceRank,
    ShiftedOut,
    evaluate,
)
from plmia.attacks.view import AttackView, References
from plmia.errors import AttackError, ReferencesError

STATISTICS = {
    "rank": ReferenceRank(),
    "gaussian": GaussianLR(),
    "gaussian one-sided": GaussianLR(offline=OneSided()),
    "gaussian median": GaussianLR(centre=MedianCentre()),
    "gaussian fixed": GaussianLR(FixedVariance()),
    "gaussian published": GaussianLR(PublishedFixedVariance()),
    "gaussian pooled": GaussianLR(PooledVariance()),
    "bayes": BayesLR(),
    "bayes trimmed": BayesLR(trim=0.2),
}


def places(view):
    return [(point, k) for point in range(view.n_points) for k in range(view.n_views)]


def view_with(target, conf, in_mask, mode="online"):
    """Return a view of one view from a target [points] and references [models, points]."""
    references = References(np.asarray(conf)[:, :, None], np.arange(len(conf)), np.asarray(in_mask, bool))
    return AttackView(np.asarray(target, float)[:, None], references, np.arange(0), mode=mode)


def test_loss_is_the_log_probability():
    conf = [-800.0, -40.0, -1.0, 0.0, 2.0, 40.0]
    phi = evaluate(Loss(), view_with(conf, np.zeros((1, 6)), np.zeros((1, 6))))[:, 0]
    with mpmath.workdps(400):
        exact = [float(-mpmath.log1p(mpmath.exp(-mpmath.mpf(x)))) for x in conf]
    assert phi == pytest.approx(exact, rel=1e-14, abs=0)
    assert (np.diff(phi) > 0).all()


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_reference_rank_matches_a_loop_and_halves_ties(mode, dtype):
    rng = np.random.default_rng(2)
    in_mask = rng.random((9, 20)) < 0.5
    in_mask[0] = False
    conf = rng.integers(-2, 3, (9, 20)).astype(dtype)
    view = view_with(rng.integers(-2, 3, 20), conf, in_mask, mode)
    phi = evaluate(ReferenceRank(), view)[:, 0]
    for point in range(20):
        out = [float(conf[model, point]) for model in range(9) if not in_mask[model, point]]
        wins = sum(1.0 if c < view.target[point, 0] else 0.5 if c == view.target[point, 0] else 0.0 for c in out)
        assert phi[point] == pytest.approx(wins / len(out), abs=1e-15)
    assert len(np.unique(phi)) > 4


def naive_ratio(view, side_of, centre):
    phi = np.empty(view.target.shape)
    for point, k in places(view):
        x, inside, outside = view.target[point, k], *(side_of(view.references, s, point, k) for s in (True, False))
        phi[point, k] = stats.norm.logpdf(x, centre(inside), np.std(inside)) - stats.norm.logpdf(
            x, centre(outside), np.std(outside)
        )
    return phi


@pytest.mark.parametrize(
    ("statistic", "centre"), [(GaussianLR(), np.mean), (GaussianLR(centre=MedianCentre()), np.median)]
)
@pytest.mark.parametrize("pairs", [True, False])
def test_gaussian_ratio_matches_scipy(make_references, make_view, side_of, statistic, centre, pairs):
    view = make_view(make_references(12 if pairs else 13, 9, 2, pairs=pairs))
    assert evaluate(statistic, view) == pytest.approx(naive_ratio(view, side_of, centre), rel=1e-9, abs=1e-9)


def test_a_fixed_variance_is_one_for_all_points_of_a_side(make_references, make_view, side_of):
    view = make_view(make_references(12, 9, 2))
    residuals = {
        inside: np.concatenate(
            [np.array(side) - np.mean(side) for side in (side_of(view.references, inside, *at) for at in places(view))]
        )
        for inside in (True, False)
    }
    phi = evaluate(GaussianLR(FixedVariance()), view)
    for point, k in places(view):
        sides = [side_of(view.references, inside, point, k) for inside in (True, False)]
        laws = [stats.norm(np.mean(side), np.std(residuals[i])) for side, i in zip(sides, (True, False), strict=True)]
        exact = laws[0].logpdf(view.target[point, k]) - laws[1].logpdf(view.target[point, k])
        assert phi[point, k] == pytest.approx(exact, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("eta", "rho"), [(0.3, 0.9), (1.5, 1.2), (0.1, 1.0)])
def test_offline_in_law_is_the_shifted_out_law(make_references, make_view, side_of, eta, rho):
    view = make_view(make_references(12, 9, 2), "offline")
    phi = evaluate(GaussianLR(offline=ShiftedOut(eta, rho)), view)
    for point, k in places(view):
        x, out = view.target[point, k], side_of(view.references, False, point, k)
        mean, std = np.mean(out), np.std(out)
        exact = stats.norm.logpdf(x, mean + eta * std, rho * std) - stats.norm.logpdf(x, mean, std)
        assert phi[point, k] == pytest.approx(exact, rel=1e-9, abs=1e-9)


def test_offline_one_sided_is_minus_the_log_tail(make_references, make_view, side_of):
    view = make_view(make_references(12, 9, 2), "offline")
    phi = evaluate(GaussianLR(offline=OneSided()), view)
    for point, k in places(view):
        out = side_of(view.references, False, point, k)
        exact = -stats.norm.logsf(view.target[point, k], np.mean(out), np.std(out))
        assert phi[point, k] == pytest.approx(exact, rel=1e-9)


def test_offline_one_sided_is_finite_and_increasing_far_out():
    z = np.concatenate([np.linspace(-8, 40, 500), [100.0, 1000.0]])
    rng = np.random.default_rng(0)
    conf = np.repeat(rng.normal(size=(6, 1)), len(z), axis=1)
    target = conf[:, 0].mean() + z * conf[:, 0].std()
    phi = evaluate(GaussianLR(offline=OneSided()), view_with(target, conf, np.zeros(conf.shape), "offline"))[:, 0]
    assert np.isfinite(phi).all()
    assert (np.diff(phi) > 0).all()
    assert phi[-2] == pytest.approx(-stats.norm.logsf(100), rel=1e-6)


@pytest.mark.parametrize("values", [(0.0, 0.9), (-1.0, 0.9), (0.3, 0.0), (0.3, -1.0), (math.nan, 1.0)])
def test_eta_and_rho_must_be_positive(values):
    with pytest.raises(AttackError, match=r"must both be positive: the paper has 0.3 and 0.9"):
        ShiftedOut(*values)


def naive_bayes(target, references, a, offline):
    """Return phi and the size of its two terms, with hundreds of digits."""
    with mpmath.workdps(400):
        own = -mpmath.log1p(mpmath.exp(-mpmath.mpf(float(target))))
        mean = mpmath.fsum(1 / (1 + mpmath.exp(-mpmath.mpf(float(c)))) for c in references) / len(references)
        if offline:
            mean = (1 + mpmath.mpf(a)) / 2 * mean + (1 - mpmath.mpf(a)) / 2
        return float(own - mpmath.log(mean)), float(max(abs(own), abs(mpmath.log(mean))))


LEVELS = {
    "moderate": ([0.5, -3.0, 2.0, 8.0], [1.0, -2.0, 0.3, -1.0, 4.0, 3.0, -5.0]),
    "rounds to 1": ([40.0, 45.0, 36.0, 3.0], [40.0, 42.0, 41.0, 43.5, 40.5, 38.0, 39.0]),
    "underflows low": ([-300.0, -290.0, 0.0, 5.0], [-300.0, -310.0, -305.0, -299.0, -400.0, -301.0, -320.0]),
    "underflows high": ([300.0, 290.0, 310.0, 0.0], [300.0, 305.0, 295.0, 299.0, 400.0, 301.0, 320.0]),
    "some underflow": ([0.0, -80.0, -90.0, 3.0], [-88.7, -88.8, -89.0, -88.9, -95.0, -89.5, -100.0]),
    "some underflow high": ([90.0, 80.0, 95.0, 3.0], [88.7, 88.8, 89.0, 88.9, 95.0, 89.5, 100.0]),
    "mixed": ([-300.0, 300.0, 40.0, 0.0], [-300.0, 300.0, 40.0, 0.0, -88.8, 88.8, -40.0]),
}


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("a", [0.0, 0.3, 1.0])
def test_bayes_ratio_is_accurate_in_both_tails(levels, dtype, offline, a):
    target, conf = np.array(levels[0]), np.repeat(np.array(levels[1], dtype)[:, None], 4, axis=1)
    in_mask = np.zeros(conf.shape, bool)
    in_mask[0, 1:] = in_mask[1:4, 2] = in_mask[4:, 3] = True  # 7, 6, 3 and 3 OUT references
    phi = evaluate(BayesLR(a=a), view_with(target, conf, in_mask, "offline" if offline else "online"))[:, 0]
    for point in range(4):
        used = conf[:, point][~in_mask[:, point]] if offline else conf[:, point]
        exact, size = naive_bayes(target[point], used, a, offline)
        # Offline too: (1 - a) / 2 does not round away what distinguishes probabilities near 1.
        assert abs(phi[point] - exact) <= 1e-6 * size, (point, phi[point], exact)


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("trim", [0.2, 0.1, 0.49])
@pytest.mark.parametrize("cells", [30, 1 << 20])
def test_trimmed_mean_is_that_of_scipy(make_references, make_view, side_of, monkeypatch, offline, trim, cells):
    monkeypatch.setattr(References.blocks, "__defaults__", (cells,))
    references = make_references(15, 9, 2, pairs=False)
    assert len(set(references.in_mask.sum(axis=0))) > 2
    view = make_view(references, "offline" if offline else "online")
    phi = evaluate(BayesLR(a=0.3, trim=trim), view)
    for point, k in places(view):
        used = side_of(references, False, point, k) + ([] if offline else side_of(references, True, point, k))
        mean = stats.trim_mean(1 / (1 + np.exp(-np.array(used))), trim)
        mean = 0.65 * mean + 0.35 if offline else mean
        exact = -np.log1p(np.exp(-view.target[point, k])) - np.log(mean)
        assert phi[point, k] == pytest.approx(exact, rel=1e-12, abs=1e-12)


def test_trimmed_mean_keeps_its_digits_where_probabilities_round_to_one():
    conf = np.array([[50.0], [41.0], [40.0], [42.0], [30.0]])
    phi = evaluate(BayesLR(trim=0.2), view_with([40.0], conf, np.zeros(conf.shape)))[0, 0]
    exact, size = naive_bayes(40.0, [41.0, 40.0, 42.0], 0.3, offline=False)
    assert abs(phi - exact) <= 1e-9 * size


@pytest.mark.parametrize("arguments", [{"a": -0.1}, {"a": 1.1}, {"a": math.nan}, {"trim": 0.5}, {"trim": -0.1}])
def test_bayes_parameters_have_limits(arguments):
    with pytest.raises(AttackError, match=r"lies outside \[0, "):
        BayesLR(**arguments)


@pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("pairs", [True, False])
def test_offline_no_in_signal_touches_any_byte(make_references, make_view, statistic, dtype, pairs):
    references = make_references(12 if pairs else 13, 40, 2, dtype=dtype, pairs=pairs)
    view = make_view(references, "offline")
    before = evaluate(statistic, view)
    assert np.isfinite(before).all()
    rng = np.random.default_rng(9)
    for other in (rng.normal(size=references.signals.shape), np.full(references.signals.shape, -6e4)):
        signals = np.where(references.in_mask[:, :, None], other, references.signals).astype(dtype)
        changed = References(signals, references.rows, references.in_mask)
        after = evaluate(statistic, AttackView(view.target, changed, view.population, mode="offline"))
        assert before.tobytes() == after.tobytes()
    online = AttackView(view.target, changed, view.population)
    if not isinstance(statistic, ReferenceRank):
        assert evaluate(statistic, online).tobytes() != evaluate(statistic, make_view(references)).tobytes()


@pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS)
def test_a_point_without_out_references_is_named(make_references, make_view, monkeypatch, statistic):
    monkeypatch.setattr(References.blocks, "__defaults__", (30,))
    references = make_references(12, 40, 1, pairs=False)
    in_mask = references.in_mask.copy()
    in_mask[:, [17, 23]] = True
    references = References(references.signals, references.rows, in_mask)
    with pytest.raises(ReferencesError, match=r"\b17, 23 have .*more references"):
        evaluate(statistic, make_view(references, "offline"))
    enough = references.in_mask.copy()
    enough[:2, [17, 23]] = False
    references = References(references.signals, references.rows, enough)
    assert np.isfinite(evaluate(statistic, make_view(references, "offline"))).all()


def test_statistics_are_equal_by_value():
    assert GaussianLR() == GaussianLR()
    assert hash(BayesLR(trim=0.2)) == hash(BayesLR(trim=0.2))
    assert GaussianLR() != GaussianLR(offline=OneSided())
