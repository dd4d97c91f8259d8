"""The empirical Bayes ratio: evidence and laws against loops, what it must not read, and its limits."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from plmia.attacks.empirical_bayes import Coordinates, EmpiricalBayesLR, Probe
from plmia.attacks.empirical_bayes.evidence import (
    IN,
    OUT,
    Grain,
    collect,
    collect_block,
    evenly,
    exact_evidence,
    find_pairs,
)
from plmia.attacks.empirical_bayes.model import Laws, hold_beyond_turn, log_height
from plmia.attacks.statistics import GaussianLR, evaluate
from plmia.attacks.view import AttackView, References
from plmia.errors import AttackError, PopulationError, ReferencesError

TURN = np.array([[0.6, -0.8], [0.8, 0.6]])


def simulate(seed, n_models, n_points, n_views=1, *, pairs=True, correlation=0.0, contrast=0.0, dtype=np.float32):
    """References and a target from the Gaussian model with difficulties and spreads of points' own.

    The first view shifts by ``contrast`` more deviations than the others.
    """
    rng = np.random.default_rng(seed)
    half = rng.random((n_models // 2 + 1, n_points)) < 0.5
    membership = np.stack([half, ~half], axis=1).reshape(-1, n_points)[: n_models + 2]
    if not pairs:
        membership = rng.random((n_models + 2, n_points)) < 0.4
        membership[2] |= ~membership[3:].any(axis=0)
        membership[3] &= ~membership[2:].all(axis=0)
    width = np.exp(rng.normal(0, 0.3, (n_points, 1)))
    centre = rng.normal(2, 3, (n_points, 1))
    noise = rng.normal(size=(n_models + 2, n_points, n_views))
    noise[1::2] = correlation * noise[0::2] + np.sqrt(1 - correlation**2) * noise[1::2]
    common = rng.normal(size=(n_models + 2, n_points, 1))
    signals = centre + width * ((0.8 * common + 0.6 * noise if n_views > 1 else noise) + 1.2 * membership[:, :, None])
    signals[:, :, :1] += contrast * width * membership[:, :, None]
    rows = np.arange(2, n_models + 2)
    return signals.astype(dtype), membership, rows


def view_of(seed, n_models, n_points, n_views=1, mode="online", **more):
    signals, membership, rows = simulate(seed, n_models, n_points, n_views, **more)
    population = np.flatnonzero(~membership[0])[::3]
    return AttackView(signals[0].astype(float), References(signals, rows, membership[rows]), population, mode=mode)


def with_signals(view, change):
    """The view with other reference signals."""
    signals = view.references.signals.copy()
    change(signals)
    return dataclasses.replace(view, references=dataclasses.replace(view.references, signals=signals))


@pytest.mark.parametrize(
    "coordinates",
    [Coordinates(np.inf, TURN), Coordinates(8.0, TURN), Coordinates(np.inf, np.eye(2)), Coordinates(3.0, np.eye(2))],
)
@pytest.mark.parametrize(("dtype", "relative"), [(np.float64, 1e-9), (np.float32, 1e-4), (np.float16, 1e-4)])
@pytest.mark.parametrize("pairs", [True, False])
def test_evidence_matches_loops(make_references, side_of, coordinates, dtype, relative, pairs):
    references = make_references(9 - pairs, 11, 2, dtype=dtype, pairs=pairs, jump=True)
    evidence = collect(references, coordinates, 0)
    for side in (IN, OUT):
        for point in range(11):
            views = np.array([side_of(references, side == IN, point, view) for view in range(2)]).T
            bent = views if np.isinf(coordinates.bend) else np.arcsinh(views / coordinates.bend)
            turned = bent @ coordinates.rotation
            assert evidence.n[side, point] == len(views)
            assert evidence.mean[side, point] == pytest.approx(turned.mean(axis=0), rel=1e-5, abs=1e-5)
            rounding = 2e-5 if dtype == np.float16 else 1e-9
            assert evidence.variance[side, point] == pytest.approx(
                turned.var(axis=0, ddof=1), rel=relative, abs=rounding
            )


def test_evidence_keeps_its_digits_far_from_the_centre():
    rng = np.random.default_rng(0)
    in_mask = np.array([[True], [False]] * 4).repeat(5, axis=1)
    signals = (3000 * in_mask[:, :, None] + 0.01 * rng.normal(size=(8, 5, 1))).astype(np.float32)
    evidence = collect(References(signals, np.arange(8), in_mask), Coordinates(np.inf, np.eye(1)), 4)
    exact = exact_evidence(signals.astype(float), in_mask)
    assert evidence.variance == pytest.approx(exact.variance, rel=0.01)
    assert evidence.mean == pytest.approx(exact.mean, abs=1e-8)


def test_the_sums_of_the_view_serve_where_nothing_is_turned():
    view = view_of(0, 12, 90)
    plain, block = Coordinates(np.inf, np.eye(1)), view.block(slice(20, 70))
    ours, theirs = collect_block(block, plain, 6), collect(view.references.part(slice(20, 70)), plain, 6)
    assert ours.mean == pytest.approx(theirs.mean)
    assert ours.variance == pytest.approx(theirs.variance, rel=1e-5)
    assert "confidence_sums" in block.__dict__


def test_pairs_are_found_whatever_the_order():
    rng = np.random.default_rng(1)
    half = rng.random((5, 40)) < 0.5
    in_mask = np.concatenate([half, ~half[:4], half[:1]])  # four pairs, one alone, one twice
    order = rng.permutation(len(in_mask))
    units = find_pairs(in_mask[order])
    assert sorted(map(len, units)) == [1, 1, 2, 2, 2, 2]
    assert sorted(np.concatenate(units).tolist()) == list(range(10))
    for one, other in (unit for unit in units if len(unit) == 2):
        assert (in_mask[order][one] != in_mask[order][other]).all()
    again = find_pairs(in_mask)
    for unit, same in zip(units, again, strict=True):
        assert {in_mask[order][i].tobytes() for i in unit} == {in_mask[i].tobytes() for i in same}


@pytest.mark.parametrize("pairs", [True, False])
def test_leaving_out_is_the_same_as_never_having_seen(pairs):
    view = view_of(2, 8, 50, 2, pairs=pairs)
    units = find_pairs(view.references.in_mask)
    probe = Probe.of(view.references, units, 8.0)
    for unit in units:
        rest = np.setdiff1d(np.arange(8), unit)
        exact = exact_evidence(probe.rotated[rest], view.references.in_mask[rest])
        left = probe.without(unit)
        some = exact.n > 0
        assert left.n.tolist() == exact.n.tolist()
        assert left.mean[some] == pytest.approx(exact.mean[some])
        assert left.variance[exact.n > 1] == pytest.approx(exact.variance[exact.n > 1], rel=1e-4, abs=1e-9)
        assert left.n_pairs == (3 if pairs else 0)


def test_the_correlation_of_pairs_is_measured():
    view = view_of(3, 16, 3000, correlation=-0.5)
    assert EmpiricalBayesLR().fit(view).pair_correlation[0] == pytest.approx(-0.5, abs=0.03)
    assert EmpiricalBayesLR().fit(view).n_pairs == 8
    assert EmpiricalBayesLR().fit(view_of(3, 16, 300, pairs=False)).pair_correlation.tolist() == [0.0]


def test_offline_few_points_do_not_show_coordinates_by_chance():
    """With two references per side and 200 known non-members, variances of both sides differ by chance."""
    kept = {"offline": [], "online": []}
    for seed in range(20):
        view = view_of(100 + seed, 4, 200, 8)
        for mode, found in kept.items():
            found.append(Probe.of(view.references, find_pairs(view.references.in_mask), np.inf, mode))
    n_kept = {mode: [each.coordinates.rotation.shape[1] for each in found] for mode, found in kept.items()}
    assert np.mean(n_kept["offline"]) < 1.3
    assert np.mean(n_kept["online"]) > 1.6  # so that the test can fail


def test_coordinates_that_tell_nothing_are_left_out():
    """Where all views shift alike, their contrasts are noise; where one shifts further, one contrast is kept."""
    assert EmpiricalBayesLR().fit(view_of(20, 8, 3000, 3)).coordinates.rotation.shape == (3, 1)
    kept = EmpiricalBayesLR().fit(view_of(20, 8, 3000, 3, contrast=0.8)).coordinates.rotation
    assert kept.shape[1] >= 2
    assert kept.T @ kept == pytest.approx(np.eye(kept.shape[1]), abs=1e-9)


def test_one_direction_is_kept_where_the_mean_of_views_tells_least():
    """It is that of Fisher: the inverse of the covariance within points and sides, times the mean shift."""
    view = view_of(20, 16, 3000, 3, contrast=2.5)
    direction = EmpiricalBayesLR(bend=np.inf).fit(view).coordinates.rotation
    assert direction.shape == (3, 1)
    signals, in_mask = view.references.signals[view.references.rows].astype(float), view.references.in_mask
    moments = exact_evidence(signals, in_mask)
    away = (signals - np.where(in_mask[:, :, None], *moments.mean)).reshape(-1, 3)
    fisher = np.linalg.solve(away.T @ away, (moments.mean[IN] - moments.mean[OUT]).mean(axis=0))
    assert direction[:, 0] == pytest.approx(fisher / np.linalg.norm(fisher), abs=0.03)

    members = simulate(20, 16, 3000, 3, contrast=2.5)[1][0]
    joint, first = evaluate(EmpiricalBayesLR(), view)[:, 0], evaluate(EmpiricalBayesLR(), one_view(view, 0))[:, 0]
    assert auc(joint, members) > auc(first, members)


def one_view(view, k):
    """The view with the signals of one of its views."""
    references = dataclasses.replace(view.references, signals=view.references.signals[:, :, [k]])
    return dataclasses.replace(view, target=view.target[:, [k]], references=references)


def auc(ratio, members):
    return (ratio[members][:, None] > ratio[~members]).mean()


@pytest.mark.parametrize("n_models", [2, 8])
def test_views_that_repeat_one_another_count_once(n_models):
    view = view_of(21, n_models, 1500)
    twice = np.repeat(view.references.signals, 2, axis=2)
    again = dataclasses.replace(
        view, target=np.repeat(view.target, 2, axis=1), references=dataclasses.replace(view.references, signals=twice)
    )
    assert EmpiricalBayesLR().fit(again).coordinates.rotation.shape == (2, 1)
    assert evaluate(EmpiricalBayesLR(bend=np.inf), again)[:, 0] == pytest.approx(
        evaluate(EmpiricalBayesLR(bend=np.inf), view)[:, 0], abs=1e-3
    )


def test_the_grain_of_a_grid_is_its_step():
    rng = np.random.default_rng(0)
    grain = Grain.of(np.round(rng.normal(0, 1, (4, 5000, 1)) / 0.25) * 0.25)
    assert np.interp([0.0, 0.25, -0.5], grain.at, grain.variance) == pytest.approx(0.25**2 / 12)
    assert np.interp([-9.0, 9.0], grain.at, grain.variance).tolist() == [0, 0]
    assert Grain.of(rng.normal(0, 1, (4, 5000, 1))) is None
    assert Grain.of(np.ones((4, 500, 1))) is None


def test_the_grain_of_a_clipped_end_is_as_wide_as_what_it_holds():
    """A uniform law of which a fifth is clipped: the cell would hold a tenth on either side."""
    signals = np.minimum(np.random.default_rng(1).random((1 << 14, 1, 1)), 0.8)
    grain = Grain.of(signals)
    assert np.interp(0.8, grain.at, grain.variance) == pytest.approx(0.1**2 / 12, rel=0.1)
    assert np.interp([0.6, 0.69, 1.0], grain.at, grain.variance) == pytest.approx(0, abs=1e-5)


def test_points_whose_references_agree_on_an_atom_are_not_certain():
    """Three in ten signals are the largest there is; where all references have it, it tells almost nothing."""
    signals, membership, rows = simulate(22, 4, 6000)
    signals = np.minimum(signals, np.quantile(signals, 0.7))
    view = AttackView(signals[0].astype(float), References(signals, rows, membership[rows]), np.arange(5))
    phi = evaluate(EmpiricalBayesLR(), view)[:, 0]
    agreed = (signals[[0, *rows]] == signals.max()).all(axis=(0, 2))
    assert agreed.sum() > 300
    assert np.abs(phi[agreed]).max() < 1
    assert np.quantile(phi, 0.99) > 2 * np.abs(phi[agreed]).max()


@pytest.mark.parametrize("n_views", [1, 2])
def test_online_laws_match_the_derivation(n_views):
    """Means and variances of one point after another, by generalised least squares with the shift as a parameter."""
    view = view_of(4, 6, 700, n_views, correlation=-0.4, contrast=0.8)
    fit = EmpiricalBayesLR(2, 1000.0, np.inf).fit(view)
    assert len(fit.knots) == 2
    evidence = collect(view.references, fit.coordinates, fit.n_pairs)
    laws, centre = fit.laws(evidence), fit.centre(evidence)
    hats = fit.knots.hats(centre)
    spread = fit.spread.posterior(evidence, hats)
    expected, prior = fit.shift.at(fit.features(centre, spread), spread.scale, hats)
    prior = np.maximum(prior, 1e-9)  # that of contrasts may be estimated to be 0
    assert laws.mean.shape == (2, 700, n_views)
    for i in range(0, 700, 37):
        for j in range(n_views):
            sigma = spread.variance[:, i, j] / 3
            shared = fit.pair_correlation[j] * np.sqrt(sigma.prod())
            noise = np.array([[sigma[0], shared], [shared, sigma[1]]])
            # (mu_in, mu_out) with a flat prior on one direction and the prior of the shift on the other
            precision = np.linalg.inv(noise) + np.outer([1, -1], [1, -1]) / prior[i, j]
            posterior = np.linalg.inv(precision)
            mean = posterior @ (
                np.linalg.inv(noise) @ evidence.mean[:, i, j] + np.array([1, -1]) * expected[i, j] / prior[i, j]
            )
            assert laws.mean[:, i, j] == pytest.approx(mean, rel=1e-6, abs=1e-6)
            assert laws.variance[:, i, j] == pytest.approx(spread.variance[:, i, j] + np.diag(posterior), rel=1e-6)


def test_the_ratio_is_of_multivariate_t_densities():
    from scipy.stats import multivariate_t

    view = view_of(5, 8, 640, 2)
    fit = EmpiricalBayesLR(tail=5.0, hold=0.0).fit(view)
    evidence, x = collect(view.references, fit.coordinates, fit.n_pairs), fit.coordinates.of(view.target)
    laws, ratio = fit.laws(evidence), fit.statistic(x, evidence)
    assert laws.freedom.max() <= 5
    for i in range(0, 640, 80):
        log_in, log_out = (
            multivariate_t(laws.mean[s, i], np.diag(laws.variance[s, i]), df=laws.freedom[s, i]).logpdf(x[i])
            for s in (IN, OUT)
        )
        assert ratio[i] == pytest.approx(log_in - log_out)


@pytest.mark.parametrize("bend", [np.inf, 8.0, 0.5])
def test_the_slope_of_a_bend_is_its_derivative(bend):
    conf = np.linspace(-20, 20, 41)[:, None]
    coordinates = Coordinates(bend, np.eye(1))
    slope = (coordinates.bent(conf + 1e-5) - coordinates.bent(conf - 1e-5))[:, 0] / 2e-5
    assert coordinates.log_slope(conf) == pytest.approx(np.log(slope), abs=1e-6)


def test_the_density_of_the_first_coordinate_is_that_of_t():
    from scipy.stats import t

    laws = Laws(
        np.array([[[1.0, 5.0]], [[-1.0, 5.0]]]), np.array([[[0.5, 1.0]], [[2.0, 1.0]]]), np.array([[4.0], [9.0]])
    )
    at, both = np.array([[0.3, 5.0]]), []
    for side, (mean, variance, freedom) in enumerate([(1.0, 0.5, 4.0), (-1.0, 2.0, 9.0)]):
        ours = laws.first_density(at, np.array([side]))[0]
        both.append(ours - t(freedom, mean, np.sqrt(variance)).logpdf(0.3))
    assert both[0] == pytest.approx(both[1])  # the same constant
    assert both[0] == pytest.approx(np.log(np.pi) / 2)


def test_without_in_references_the_spread_is_that_of_two_sides():
    view = view_of(24, 8, 700)
    fit = EmpiricalBayesLR().fit(view)
    evidence = collect(view.references, fit.coordinates, fit.n_pairs)
    hats, evidence = fit.knots.hats(fit.centre(evidence)), evidence.out_alone()
    ours = fit.spread.posterior(evidence, hats)
    # One IN reference with next to no weight makes it take the other way.
    n = evidence.n.copy()
    n[IN] = 1 + 1e-9
    both = fit.spread.posterior(dataclasses.replace(evidence, n=n), hats)
    for field in ("log_factor", "freedom", "variance"):
        assert getattr(ours, field) == pytest.approx(getattr(both, field), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("n_coordinates", [1, 2, 3, 4, 7])
def test_the_height_of_a_density_is_that_of_gamma_functions(n_coordinates):
    from scipy.special import gammaln

    freedom = np.array([[0.7, 3.0, 14.0, 14.0], [1.0, 25.0, 900.0, 60.0]])
    expected = gammaln((freedom + n_coordinates) / 2) - gammaln(freedom / 2) - n_coordinates / 2 * np.log(freedom)
    assert log_height(freedom, n_coordinates) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("v_in", "v_out"), [(0.5, 2.0), (2.0, 0.5), (1.0, 1.0)])
@pytest.mark.parametrize("shift", [1.0, 0.0, -0.7])
def test_signals_turn_back_where_the_ratio_does(v_in, v_out, shift):
    """Against a search along a grid, and never to between the two centres."""
    grid = np.linspace(-30, 30, 60_001)
    laws = Laws(
        np.tile(np.array([shift, 0.0])[:, None, None], (1, len(grid), 1)),
        np.tile(np.array([v_in, v_out])[:, None, None], (1, len(grid), 1)),
        np.full((2, len(grid)), 1e9),
    )
    back = laws.clipped_at_turn(grid[:, None])[:, 0]
    ratio = laws.log_ratio(grid[:, None])
    low, high = min(shift, 0.0), max(shift, 0.0)
    if v_in < v_out:
        assert back.max() == pytest.approx(max(grid[np.argmax(ratio)], high), abs=2e-3)
        assert (back[grid < back.max()] == grid[grid < back.max()]).all()
    elif v_in > v_out:
        assert back.min() == pytest.approx(min(grid[np.argmin(ratio)], low), abs=2e-3)
        assert (back[grid > back.min()] == grid[grid > back.min()]).all()
    else:
        assert (back == grid).all()


def test_a_held_ratio_never_falls_with_the_signal_within_its_bounds():
    laws = Laws(np.array([[[2.0]], [[0.0]]]), np.array([[[0.8]], [[2.0]]]), np.full((2, 1), 30.0))
    grid = np.linspace(-8, 20, 2000)[:, None]
    many = Laws(*(np.repeat(a, len(grid), axis=1) for a in (laws.mean, laws.variance, laws.freedom)))
    ratio, back = many.log_ratio(grid), many.clipped_at_turn(grid)
    held = hold_beyond_turn(ratio, many.log_ratio(back), grid[:, 0] > back[:, 0], 1.0)
    assert ratio[-1] < -5 < 1 < ratio.max()  # it turns
    below = grid[:, 0] <= back[:, 0]
    assert (held[below] == ratio[below]).all()
    assert held[~below] == pytest.approx(np.maximum(ratio[~below], 1.0))


def test_a_ratio_is_held_where_confidence_means_membership():
    """Members are never less confident, but their spread is narrower: the fitted ratio turns, the true one does not."""
    signals, membership, rows = simulate(23, 16, 4000, dtype=np.float64)
    rng = np.random.default_rng(1)
    signals += np.where(membership, 0.0, -1.5 * rng.exponential(size=membership.shape))[:, :, None]
    view = AttackView(signals[0], References(signals, rows, membership[rows]), np.arange(5))
    assert EmpiricalBayesLR(bend=np.inf).fit(view).hold == 1
    assert EmpiricalBayesLR(bend=np.inf, hold=0.0).fit(view).hold == 0
    held, free = (evaluate(EmpiricalBayesLR(bend=np.inf, hold=hold), view)[:, 0] for hold in (None, 0.0))
    changed = held != free
    assert 0 < changed.sum() < len(changed) / 2
    assert np.abs(held[changed]).max() <= 1


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("n_views", [1, 3])
def test_every_view_has_the_joint_ratio(mode, n_views):
    view = view_of(6, 8, 5000, n_views, mode)
    phi = evaluate(EmpiricalBayesLR(), view)
    assert phi.shape == view.target.shape
    assert phi.dtype == np.float64
    assert np.isfinite(phi).all()
    assert (phi == phi[:, :1]).all()
    members = phi[:, 0][::2].std()
    assert members > 0


def test_blocks_do_not_show(monkeypatch):
    view = view_of(7, 8, 900, 2)
    whole = evaluate(EmpiricalBayesLR(), view)
    monkeypatch.setattr("plmia.attacks.view.POINTS_PER_BLOCK", 100)
    assert evaluate(EmpiricalBayesLR(), view) == pytest.approx(whole, rel=1e-6, abs=1e-6)


def test_known_sums_give_the_same():
    view = view_of(8, 8, 900)
    summed = view.with_sums({"confidence"})
    assert evaluate(EmpiricalBayesLR(), summed).tolist() == evaluate(EmpiricalBayesLR(), view).tolist()


@pytest.mark.parametrize("n_views", [1, 2])
def test_offline_only_the_population_has_in_signals(n_views):
    """Changing IN signals of other points changes no byte, changing those of the population does."""
    view = view_of(9, 8, 900, n_views, "offline")
    before = evaluate(EmpiricalBayesLR(), view).tobytes()
    inside = np.zeros(view.references.signals.shape[:2], bool)
    inside[view.references.rows] = view.references.in_mask
    known = np.isin(np.arange(900), view.population)

    def elsewhere(signals):
        signals[inside & ~known] = 1e4

    def here(signals):
        signals[inside & known] += 0.5

    assert evaluate(EmpiricalBayesLR(), with_signals(view, elsewhere)).tobytes() == before
    assert evaluate(EmpiricalBayesLR(), with_signals(view, here)).tobytes() != before


def test_offline_without_in_references_the_statistic_is_one_sided():
    view = view_of(10, 6, 400, 2, "offline")
    out = dataclasses.replace(view.references, in_mask=np.zeros_like(view.references.in_mask))
    view = dataclasses.replace(view, references=out)
    fit = EmpiricalBayesLR().fit(view)
    assert fit.shift is None
    evidence = collect(out, fit.coordinates, 0)
    x = fit.coordinates.of(view.target)
    low, high = (fit.statistic(x + np.array([step, 0.0]), evidence) for step in (0.0, 1.0))
    assert (high > low).all()
    far = fit.statistic(x + np.array([1e6, 0.0]), evidence)
    assert np.isfinite(far).all()


@pytest.mark.parametrize(("mode", "n_views"), [("online", 1), ("online", 3), ("offline", 1), ("offline", 3)])
def test_one_reference_a_side_is_enough(mode, n_views):
    signals, membership, rows = simulate(11, 2, 1500, n_views)
    population = np.flatnonzero(~membership[0])[::3]
    view = AttackView(signals[0].astype(float), References(signals, rows, membership[rows]), population, mode=mode)
    phi = evaluate(EmpiricalBayesLR(), view)[:, 0]
    assert np.isfinite(phi).all()
    assert phi[membership[0]].mean() > phi[~membership[0]].mean() + 0.2


def test_a_single_out_reference_is_enough_offline():
    """Its spread then comes from the target at the population, where both are OUT."""
    signals, membership, _ = simulate(12, 4, 1500)
    outsider = np.zeros((1, 1500), bool)
    references = References(signals, np.array([3]), outsider)
    view = AttackView(signals[0].astype(float), references, np.flatnonzero(~membership[0])[::3], mode="offline")
    fit = EmpiricalBayesLR().fit(view)
    z = view.population
    expected = np.mean((signals[0, z] - signals[3, z]) ** 2) / 2
    assert fit.spread.level[OUT].mean() == pytest.approx(expected, rel=0.2)
    assert np.isfinite(evaluate(EmpiricalBayesLR(), view)).all()


@pytest.mark.parametrize("n_points", [2, 5, 40, 90])
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_few_points_have_constant_priors(n_points, mode):
    view = view_of(13, 8, n_points, mode=mode)
    if not len(view.population):
        view = dataclasses.replace(view, population=np.array([0]))
    fit = EmpiricalBayesLR().fit(view)
    assert len(fit.knots) == 1
    assert np.isfinite(evaluate(EmpiricalBayesLR(), view)).all()


def test_signals_that_all_agree_stay_finite():
    view = view_of(14, 8, 700, 2)

    def flatten(signals):
        signals[:] = 1.0

    assert np.isfinite(evaluate(EmpiricalBayesLR(), with_signals(view, flatten))).all()


def test_with_many_references_it_is_the_gaussian_ratio():
    """The priors give way to the plain estimates: the two ratios approach each other as the noise of these does."""
    away = []
    for n_references in (40, 400, 4000):
        view = view_of(15, n_references, 700)
        away.append(
            np.abs(evaluate(EmpiricalBayesLR(bend=np.inf), view)[:, 0] - evaluate(GaussianLR(), view)[:, 0]).mean()
        )
    assert away[2] < 0.04
    assert away[0] > 2.5 * away[1] > 6 * away[2]


def test_the_order_of_references_does_not_matter():
    view = view_of(16, 12, 600, 2)
    order = np.random.default_rng(0).permutation(12)
    shuffled = References(view.references.signals, view.references.rows[order], view.references.in_mask[order])
    ours = evaluate(EmpiricalBayesLR(), dataclasses.replace(view, references=shuffled))
    assert ours == pytest.approx(evaluate(EmpiricalBayesLR(), view), rel=1e-4, abs=1e-4)


def test_a_bend_is_chosen_where_spread_grows_with_confidence():
    """Signals that are sinh of Gaussians are bent back; Gaussian ones are left as they are."""
    view = view_of(17, 12, 4000, dtype=np.float64)
    assert np.isinf(EmpiricalBayesLR().fit(view).coordinates.bend)

    def stretch(signals):
        signals[:] = 8 * np.sinh(signals / 2)

    bent = dataclasses.replace(with_signals(view, stretch), target=8 * np.sinh(view.target / 2))
    assert np.isfinite(EmpiricalBayesLR().fit(bent).coordinates.bend)


def test_heavy_tails_are_noticed():
    signals, membership, rows = simulate(18, 16, 4000, dtype=np.float64)
    rng = np.random.default_rng(0)
    signals += 3 * rng.standard_t(2.5, signals.shape)
    view = AttackView(signals[0], References(signals, rows, membership[rows]), np.arange(5))
    assert EmpiricalBayesLR(bend=np.inf).fit(view).tails.max() < 20
    assert EmpiricalBayesLR(bend=np.inf).fit(view_of(18, 16, 4000)).tails.min() == 1000


def test_the_fit_is_plain_values():
    for mode in ("online", "offline"):
        values = json.loads(json.dumps(EmpiricalBayesLR().fit(view_of(19, 8, 700, 2, mode, contrast=0.8)).summary()))
        assert values["mode"] == mode
        assert values["coordinates"]["bend"] is None
        assert np.array(values["spread"]["level"]).shape[0] == 2
        assert np.array(values["shift"]["lines"]).shape[:2] == (len(values["knots"]["at"]), 2)


def test_points_without_references_are_named():
    view = view_of(20, 8, 60)
    for mask, side in ((True, "OUT"), (False, "IN")):
        in_mask = view.references.in_mask.copy()
        in_mask[:, [3, 7]] = mask
        short = dataclasses.replace(view, references=dataclasses.replace(view.references, in_mask=in_mask))
        with pytest.raises(ReferencesError, match=f"1 {side} reference .*3, 7 .* 0"):
            evaluate(EmpiricalBayesLR(), short)
    offline = dataclasses.replace(short, mode="offline")
    assert np.isfinite(evaluate(EmpiricalBayesLR(), offline)).all()  # no IN is needed there


def test_offline_needs_a_population():
    view = dataclasses.replace(view_of(21, 8, 60, mode="offline"), population=np.zeros(0, np.intp))
    with pytest.raises(PopulationError, match=r"population.*\b0\b"):
        evaluate(EmpiricalBayesLR(), view)


@pytest.mark.parametrize(
    "wrong", [{"most_knots": 0}, {"tail": 0.0}, {"bend": -1.0}, {"tail": float("nan")}, {"hold": -1.0}]
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(AttackError):
        EmpiricalBayesLR(**wrong)


def test_evenly():
    assert evenly(np.arange(5), 9).tolist() == [0, 1, 2, 3, 4]
    assert evenly(np.arange(9), 3).tolist() == [0, 4, 8]
