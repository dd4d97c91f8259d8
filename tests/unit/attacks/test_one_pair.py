"""One reference per side: regressions and laws against loops, and extreme input."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from plmia.attacks.empirical_bayes import EmpiricalBayesLR
from plmia.attacks.empirical_bayes.evidence import Evidence, collect, mean_probability
from plmia.attacks.empirical_bayes.model import MIN_TAIL_GAIN, TAILS, Knots
from plmia.attacks.empirical_bayes.one_pair import CORRELATION, STEPS, Regression
from plmia.attacks.statistics import evaluate
from plmia.attacks.view import AttackView, References
from plmia.evaluation.metrics import roc_curve


def pair_view(seed, n_points, n_views=1, mode="online", dtype=np.float64):
    """A target and one pair of references with a shift of 1.5 and a narrower IN side, and who is a member."""
    rng = np.random.default_rng(seed)
    half = rng.random((2, n_points)) < 0.5
    membership = np.array([half[0], half[1], ~half[1]])
    noise = rng.normal(size=(3, n_points, n_views)) * np.where(membership, 0.6, 1.0)[:, :, None]
    signals = (rng.normal(2, 2, (n_points, 1)) + noise + 1.5 * membership[:, :, None]).astype(dtype)
    references = References(signals, np.arange(1, 3), membership[1:])
    population = np.flatnonzero(~membership[0])[::2]
    return AttackView(signals[0].astype(float), references, population, mode=mode), membership[0]


def with_signals(view, signals):
    """The view with other signals of the target and the references."""
    references = dataclasses.replace(view.references, signals=signals)
    return dataclasses.replace(view, target=signals[0].astype(float), references=references)


def knot_weights(at, x):
    """Weights of the knots for a point at x: those of linear interpolation."""
    return np.array([np.interp(x, at, row) for row in np.eye(len(at))]) if len(at) > 1 else np.ones(1)


def slow_fit(given, signal, hidden, knots, freedom):
    """Reweighted least squares, one point and one knot after another: lines [knots, 2] and squared scales."""
    n, k = len(signal), len(knots)
    hats = np.array([knot_weights(knots.at, x) for x in given])
    line = [np.array([1.0, (x - knots.low) / (knots.high - knots.low) - 0.5]) for x in knots.within(given)]
    weight = np.ones(n)
    for _ in range(STEPS):
        lines = np.zeros((k, 2))
        for j in range(k):
            gram, moment = np.zeros((2, 2)), np.zeros(2)
            for i in range(n):
                gram += hats[i, j] * weight[i] * np.outer(line[i], line[i])
                moment += hats[i, j] * weight[i] * line[i] * signal[i]
            lines[j] = np.linalg.solve(gram, moment)
        square = np.zeros(n)
        for i in range(n):
            mean = sum(hats[i, j] * lines[j] @ line[i] for j in range(k))
            square[i] = (signal[i] - mean) ** 2 * n / (n - 2 * k) + hidden[i]
        variance = np.array([(hats[:, j] * square * weight).sum() / hats[:, j].sum() for j in range(k)])
        for i in range(n):
            weight[i] = (freedom + 1) / (freedom + square[i] / (hats[i] @ variance))
    return lines, variance


@pytest.mark.parametrize("freedom", [4.0, 1000.0])
@pytest.mark.parametrize("n", [60, 230])
def test_a_regression_matches_loops(n, freedom):
    rng = np.random.default_rng(n)
    given = rng.normal(size=n)
    signal, hidden = np.sin(given) + 0.3 * rng.standard_t(4, n), np.full(n, 0.01)
    knots = Knots.place(given)
    fit = Regression.fit(given, signal, hidden, knots, freedom)
    lines, variance = slow_fit(given, signal, hidden, knots, freedom)
    assert len(knots) == n // 50
    assert fit.lines == pytest.approx(lines, rel=1e-6, abs=1e-8)
    assert fit.variance == pytest.approx(variance, rel=1e-6)


def test_fits_with_several_tails_at_once_are_those_of_each():
    rng = np.random.default_rng(3)
    given = rng.normal(size=400)
    signal, knots = np.sin(given) + 0.3 * rng.standard_t(4, 400), Knots.place(given)
    for fit, freedom in zip(Regression.fit_each(given, signal, np.zeros(400), knots, TAILS), TAILS, strict=True):
        alone = Regression.fit(given, signal, np.zeros(400), knots, freedom)
        assert fit.freedom == freedom
        assert fit.lines == pytest.approx(alone.lines)
        assert fit.variance == pytest.approx(alone.variance)


def test_the_most_likely_tail_is_chosen():
    rng = np.random.default_rng(0)
    given, knots = rng.normal(size=400), Knots(np.zeros(1), -3.0, 3.0)
    for noise in (rng.normal(size=400), rng.standard_t(3, 400)):
        signal, hidden = 0.5 * given + noise, np.zeros(400)
        likelihood = []
        for freedom in TAILS:
            fit = Regression.fit(given, signal, hidden, knots, freedom)
            mean, variance = fit.at(given)
            likelihood.append(stats.t.logpdf(signal, freedom, mean, np.sqrt(variance)).mean())
        likelihood[-1] += MIN_TAIL_GAIN
        assert Regression.choose(given, signal, hidden, knots, None).freedom == TAILS[np.argmax(likelihood)]
    assert Regression.choose(given, signal, hidden, knots, 7.0).freedom == 7
    assert Regression.choose(given, signal, hidden, knots, np.inf).freedom == TAILS[-1]


def test_a_line_is_recovered_and_stays_constant_beyond_the_points():
    given = np.linspace(-2, 2, 40)
    fit = Regression.fit(given, 1 + 3 * given, np.full(40, 1e-6), Knots.place(given), 1000.0)
    mean, variance = fit.at(np.array([-50.0, -1.0, 0.5, 50.0]))
    assert mean == pytest.approx([-5.0, -2.0, 2.5, 7.0], abs=1e-6)
    assert variance == pytest.approx(np.full(4, 1e-6), rel=1e-3)


def test_online_laws_are_conditional_t():
    """Point by point: the law of one of two correlated draws of a bivariate t, given the other."""
    view, _ = pair_view(1, 300)
    fit = EmpiricalBayesLR(bend=np.inf, tail=9.0).fit(view)
    evidence = collect(view.references, fit.coordinates, 0)
    laws, ratio = fit.laws(evidence), fit.pair.laws(evidence).log_ratio(view.target)
    for i in range(0, 300, 29):
        log_density = []
        for side, regression in enumerate((fit.pair.inside, fit.pair.outside)):
            own, other = evidence.mean[side, i, 0], evidence.mean[1 - side, i, 0]
            mean, scale = (float(each[0]) for each in regression.at(np.array([other])))
            joint = stats.multivariate_t([mean, mean], scale * np.array([[1, CORRELATION], [CORRELATION, 1]]), df=9)
            alone = stats.t(9, mean, scale**0.5)
            log_density.append(joint.logpdf([view.target[i, 0], own]) - alone.logpdf(own))
            assert laws.freedom[side, i] == 10
        assert ratio[i] == pytest.approx(log_density[0] - log_density[1], rel=1e-6, abs=1e-8)


def test_the_target_reaches_online_laws_only_through_bend_and_hold():
    view, _ = pair_view(2, 400)
    statistic = EmpiricalBayesLR(bend=np.inf, hold=0.0)
    other = dataclasses.replace(view, target=view.target[::-1] * 3)
    ours, theirs = (json.dumps(statistic.fit(each).summary()["pair"]) for each in (view, other))
    assert ours == theirs


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("n_views", [1, 3])
def test_ratios_come_from_regressions(mode, n_views):
    fit = EmpiricalBayesLR().fit(pair_view(3, 400, n_views, mode)[0])
    assert fit.pair.mode == mode
    assert (fit.cross_fitted is not None) == (mode == "offline")
    assert "cross_fitted" not in json.loads(json.dumps(fit.summary()))


def test_offline_each_fold_is_scored_by_regressions_on_the_others():
    """One fold and one point after another: t laws given the OUT reference, fitted by loops."""
    view, _ = pair_view(11, 260, mode="offline")
    statistic = EmpiricalBayesLR(bend=np.inf, tail=9.0, hold=0.0)
    phi, fit = evaluate(statistic, view)[:, 0], statistic.fit(view)
    fold, known = fit.cross_fitted.fold, view.population
    assert np.bincount(fold[known]).max() - np.bincount(fold[known]).min() <= 1
    signals, in_mask = view.references.signals[1:, :, 0], view.references.in_mask
    r_in, r_out = (np.array([signals[in_mask[:, i] == side, i][0] for i in range(260)]) for side in (True, False))
    x, knots = view.target[:, 0], Knots.place(r_out[known], mode="offline")
    hidden = collect(view.references, fit.coordinates, 0).variance[0, :, 0]
    for number in (0, 7):
        others = known[fold[known] != number]
        inside = slow_fit(r_out[others], r_in[others], hidden[others], knots, 9.0)
        draws = np.concatenate([r_out[others], x[others]]), np.concatenate([x[others], r_out[others]])
        outside = slow_fit(*draws, np.tile(hidden[others], 2), knots, 9.0)
        for i in np.flatnonzero(fold == number)[::5]:
            log_density = []
            for lines, variance in (inside, outside):
                weights = knot_weights(knots.at, r_out[i])
                scaled = (np.clip(r_out[i], knots.low, knots.high) - knots.low) / (knots.high - knots.low) - 0.5
                mean = weights @ (lines @ np.array([1.0, scaled]))
                log_density.append(stats.t.logpdf(x[i], 9.0, mean, np.sqrt(weights @ variance)))
            assert phi[i] == pytest.approx(log_density[0] - log_density[1], rel=1e-5, abs=1e-7)


def test_offline_no_signal_of_the_target_shapes_the_laws_of_its_own_fold():
    """Known non-members and queries of a fold are exchangeable only if neither shaped the laws."""
    view, _ = pair_view(12, 400, mode="offline")
    statistic = EmpiricalBayesLR(bend=np.inf, tail=9.0, hold=0.0)
    fold = statistic.fit(view).cross_fitted.fold
    target, changed = view.target.copy(), view.population[fold[view.population] == 3][0]
    target[changed] += 3.0
    before, after = (evaluate(statistic, dataclasses.replace(view, target=each)) for each in (view.target, target))
    others = np.setdiff1d(np.arange(400), [changed])
    same = (before == after)[:, 0]
    assert same[others[fold[others] == 3]].all()
    assert not same[others[fold[others] != 3]].any()


def test_offline_no_in_reference_of_a_query_matters():
    view, _ = pair_view(13, 400, mode="offline")
    signals, queries = view.references.signals.copy(), np.setdiff1d(np.arange(400), view.population)
    inside = view.references.in_mask[:, queries, None]
    signals[1:, queries] = np.where(inside, 99.0, signals[1:, queries])
    assert np.array_equal(*(evaluate(EmpiricalBayesLR(), each) for each in (view, with_signals(view, signals))))


def test_offline_records_of_a_group_share_a_fold():
    view, _ = pair_view(14, 600, mode="offline")
    groups = np.arange(600) // 3
    members = np.repeat(np.random.default_rng(0).random(200) < 0.5, 3)
    view = dataclasses.replace(view, groups=groups, population=np.flatnonzero(~members)[:150])
    fold = EmpiricalBayesLR().fit(view).cross_fitted.fold
    assert (fold.reshape(-1, 3) == fold.reshape(-1, 3)[:, :1]).all()
    alone = dataclasses.replace(view, groups=np.where(np.isin(np.arange(600), view.population), 0, groups + 1))
    fit = EmpiricalBayesLR().fit(alone)  # all known non-members are one group: nothing is left to fit to
    assert (fit.pair, fit.cross_fitted) == (None, None)


@pytest.mark.parametrize("n_views", [1, 4])
def test_the_mean_probability_of_views_keeps_the_digits_of_saturated_signals(n_views):
    conf = np.random.default_rng(15).normal(0, 4, (50, n_views))
    for signals, found in zip(conf, mean_probability(conf)[:, 0], strict=True):
        probability = sum(1 / (1 + np.exp(-signal)) for signal in signals) / n_views
        assert found == pytest.approx(np.log(probability / (1 - probability)), abs=1e-9)
    high = np.linspace(40, 6e4, 50)[:, None] + np.arange(n_views)
    for signals in (high, -high):
        found = mean_probability(signals)[:, 0]
        assert np.isfinite(found).all()
        assert (np.diff(found) * np.sign(signals[0, 0]) > 0).all()


def test_pooled_views_are_scored_like_one_view():
    view, _ = pair_view(16, 400, 3, "offline")
    phi = evaluate(EmpiricalBayesLR(pool=True), view)
    alone = with_signals(view, np.stack([mean_probability(each) for each in view.references.signals]))
    assert np.array_equal(phi, np.repeat(evaluate(EmpiricalBayesLR(), alone), 3, axis=1))
    assert not np.array_equal(phi, evaluate(EmpiricalBayesLR(pool=False), view))


@pytest.mark.parametrize("remembered", [1, 6])
def test_views_are_pooled_unless_this_predicts_membership_clearly_worse(remembered):
    """Models that know one of six views, as networks trained without augmentation do, hide it in the mean."""
    view, members = pair_view(17, 2000, 6, "offline")
    signals = view.references.signals.copy()
    trained = np.concatenate([members[None], view.references.in_mask])
    signals[:, :, remembered:] -= 1.5 * trained[:, :, None]
    # Views of a record vary together, so the other views show what is not due to membership.
    signals += np.random.default_rng(18).normal(0, 2, (3, 2000, 1))
    view = with_signals(view, signals)
    fit = EmpiricalBayesLR().fit(view)
    assert fit.pooled == (remembered == 6)
    chosen, other = (evaluate(EmpiricalBayesLR(pool=pool), view)[:, 0] for pool in (fit.pooled, not fit.pooled))
    assert np.array_equal(evaluate(EmpiricalBayesLR(), view)[:, 0], chosen)
    if not fit.pooled:
        assert roc_curve(chosen, members).auc > roc_curve(other, members).auc + 0.1


@pytest.mark.parametrize(("mode", "n_references"), [("online", 2), ("online", 4), ("offline", 4)])
def test_views_are_pooled_only_offline_with_one_reference_per_side(mode, n_references):
    view, _ = pair_view(19, 400, 3, mode)
    if n_references == 4:
        noise = np.random.default_rng(20).normal(0, 0.5, (2, 400, 3))
        signals = np.concatenate([view.references.signals, view.references.signals[1:] + noise])
        references = References(signals, np.arange(1, 5), np.concatenate([view.references.in_mask] * 2))
        view = dataclasses.replace(view, references=references)
    assert not EmpiricalBayesLR(pool=True).fit(view).pooled
    assert np.array_equal(*(evaluate(EmpiricalBayesLR(pool=pool), view) for pool in (True, None)))


def test_two_references_on_some_side_are_no_single_pair():
    view, _ = pair_view(4, 400)
    signals = np.concatenate([view.references.signals, view.references.signals[1:] + 0.5])
    in_mask = np.concatenate([view.references.in_mask] * 2)
    more = dataclasses.replace(view, references=References(signals, np.arange(1, 5), in_mask))
    assert EmpiricalBayesLR().fit(more).pair is None


@pytest.mark.parametrize("n_points", [2, 3, 5, 20, 49, 51, 120])
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_tiny_sets_and_populations(n_points, mode):
    view, _ = pair_view(5, n_points, mode=mode)
    for population in (view.population[:1], view.population, np.arange(n_points)):
        if len(population) or mode == "online":
            phi = evaluate(EmpiricalBayesLR(), dataclasses.replace(view, population=population))
            assert np.isfinite(phi).all()


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("n_views", [1, 3])
@pytest.mark.parametrize("constant", ["all", "references", "target", "IN", "one value"])
def test_constant_signals_stay_finite(constant, n_views, mode):
    view, _ = pair_view(6, 300, n_views, mode)
    signals = view.references.signals.copy()
    if constant == "IN":
        signals[1:][view.references.in_mask] = 4.0
    elif constant == "one value":  # nine in ten signals
        signals[:, 30:] = 1.0
    else:
        signals[{"all": slice(None), "references": slice(1, None), "target": slice(1)}[constant]] = 1.0
    assert np.isfinite(evaluate(EmpiricalBayesLR(), with_signals(view, signals))).all()


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize(("dtype", "size"), [(np.float16, 6e4), (np.float32, 1e12), (np.float64, 1e50)])
def test_huge_signals_stay_finite(dtype, size, mode):
    view, _ = pair_view(7, 300, mode=mode, dtype=dtype)
    signals = view.references.signals.copy()
    signals[:, ::7] = size
    signals[1, 3::7] = -size
    assert np.isfinite(evaluate(EmpiricalBayesLR(), with_signals(view, signals))).all()


@pytest.mark.parametrize("members", [True, False])
def test_targets_that_trained_on_all_records_or_on_none(members):
    """Membership of the target is not known to the attack; all ratios together show it."""
    view, _ = pair_view(8, 800)
    first, second = view.references.signals[1:]
    here = view.references.in_mask[0][:, None]
    r_in, r_out = np.where(here, first, second), np.where(here, second, first)
    rng = np.random.default_rng(0)
    target = (r_in if members else r_out) + rng.normal(0, 0.3, (800, 1))
    phi = evaluate(EmpiricalBayesLR(), dataclasses.replace(view, target=target))
    assert np.isfinite(phi).all()
    assert (np.median(phi) > 0) == members


def test_one_side_of_the_evidence_is_never_mixed_with_the_other():
    """Swapping the two references and their membership changes nothing."""
    view, _ = pair_view(9, 400, 2)
    swapped = References(view.references.signals, view.references.rows[::-1], view.references.in_mask[::-1])
    ours = evaluate(EmpiricalBayesLR(), dataclasses.replace(view, references=swapped))
    assert ours == pytest.approx(evaluate(EmpiricalBayesLR(), view), rel=1e-6, abs=1e-6)


def test_laws_need_no_more_than_the_evidence_of_a_point():
    view, _ = pair_view(10, 300)
    fit = EmpiricalBayesLR().fit(view)
    evidence = collect(view.references, fit.coordinates, 0)
    some = np.arange(300) % 7 == 0
    part = Evidence(evidence.n[:, some], evidence.mean[:, some], evidence.variance[:, some])
    assert fit.laws(part).mean == pytest.approx(fit.laws(evidence).mean[:, some])
    assert fit.laws(part).variance == pytest.approx(fit.laws(evidence).variance[:, some])
