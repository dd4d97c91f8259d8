"""Alignment of references that are unlike the target: maps, folds, and who may influence them."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, stats

from plmia.attacks import alignment
from plmia.attacks.alignment import FREEDOM, SideMap, align
from plmia.attacks.attack import ATTACKS
from plmia.attacks.conditional import assign_folds
from plmia.attacks.empirical_bayes import EmpiricalBayesLR, Sample, _fit_bend
from plmia.attacks.empirical_bayes.evidence import find_pairs
from plmia.attacks.view import AttackView, References
from plmia.data.designs import MembershipDesign, audit_design
from plmia.errors import PlmiaError
from plmia.evaluation.diagnostics.power import Pilot
from plmia.evaluation.targets import Setup, attack_targets
from plmia.results.wording import references_aligned
from plmia.signals.signals import Signals


def draw_signals(seed=0, n=1200, references=16, scale=2.0, shift=1.0, leak=1.5, more=0.0, views=1, groups=None):
    """Signals whose model 0, the target, has another scale than its references, and a leak that is ``more`` larger."""
    rng = np.random.default_rng(seed)
    matrix = audit_design(n, references, rng, groups).matrix
    level, gain = rng.normal(0, 1.5, n), np.abs(rng.normal(leak, leak / 3, n)) * (leak > 0)
    values = level[None, :, None] + gain[None, :, None] * matrix[:, :, None]
    values = values + rng.normal(0, 0.5, (references + 1, n, 1)) + rng.normal(0, 0.3, (references + 1, n, views))
    values[0] = scale * (values[0] + more * matrix[0, :, None]) + shift
    return Signals(values.astype(np.float32), MembershipDesign(matrix), groups=groups)


def view_of(signals, n_known=200, mode="online", seed=0):
    members = signals.design.matrix[0]
    known = np.sort(np.random.default_rng(seed).choice(np.flatnonzero(~members), n_known, replace=False))
    references = References(signals.values, np.arange(1, signals.n_models), signals.design.matrix[1:])
    share = float(np.delete(members, known).mean())
    return AttackView(signals.values[0].astype(np.float64), references, known, mode=mode), share


def aligned(view, share, seed=3, **options):
    return align(view, share, np.random.default_rng(seed), **options)


def auc_of(signals, mode="online", attack="pl-mia-eb", **setup):
    result = next(iter(attack_targets(signals, [ATTACKS[attack]], [0], Setup(mode, seed=1, **setup))))
    return result.metrics().auc, result


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("views", [1, 3])
def test_references_get_the_scale_of_the_target(views, mode):
    signals = draw_signals(views=views, more=1.5)
    view, share = view_of(signals, mode=mode)
    moved, about = aligned(view, share)
    outside = np.where(
        view.references.in_mask[:, view.population, None], np.nan, moved.references.signals[:, view.population]
    )
    truth = view.target[view.population]
    assert np.nanmean(outside) == pytest.approx(truth.mean(), abs=0.15)
    assert np.nanstd(outside) == pytest.approx(truth.std(), rel=0.1)
    assert about.slope[1] == pytest.approx(2.0, rel=0.1)
    assert about.spread[1] == pytest.approx(2.0, rel=0.2)
    assert about.learned_inside
    assert about.gain > 1
    assert about.match == pytest.approx(1.0, abs=0.05)
    # The members' scale is found as well, without their labels.
    members = np.flatnonzero(signals.design.matrix[0])
    if mode == "online":
        inside = np.where(view.references.in_mask[:, members, None], moved.references.signals[:, members], np.nan)
        assert np.nanmean(inside) == pytest.approx(view.target[members].mean(), abs=0.2)
    assert moved.target is view.target
    assert moved.known is None
    assert moved.references.in_mask is view.references.in_mask


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_alignment_restores_what_another_scale_cost(mode):
    like, _ = auc_of(draw_signals(scale=1.0, shift=0.0), mode)
    without, plain = auc_of(draw_signals(), mode, align="never")
    found, result = auc_of(draw_signals(), mode)
    assert plain.alignment is None
    assert result.alignment is not None
    assert without < like - 0.03
    assert found > like - 0.01


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("attack", ["pl-mia-eb", "rmia", "lira"])
def test_like_references_are_left_alone(attack, mode):
    signals = draw_signals(scale=1.0, shift=0.0)
    (_, automatic), (_, never) = auc_of(signals, mode, attack), auc_of(signals, mode, attack, align="never")
    assert automatic.alignment is None
    assert automatic.scores.score.tobytes() == never.scores.score.tobytes()


def test_always_aligns_where_a_record_becomes_more_likely_at_all():
    signals = draw_signals(scale=1.1, shift=0.1)
    assert auc_of(signals)[1].alignment is None
    assert auc_of(signals, align="always")[1].alignment.gain > 0
    with pytest.raises(PlmiaError, match="sometimes"):
        Setup(align="sometimes")


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_record_has_no_part_in_the_map_that_moves_it(mode, monkeypatch):
    """Known non-members and queries of a fold are exchangeable only if neither shaped what moves them."""
    signals = draw_signals()
    view, share = view_of(signals, mode=mode)
    fold = np.arange(view.n_points) % alignment.FOLDS
    monkeypatch.setattr(alignment, "assign_folds", lambda *_: fold)
    before = aligned(view, share)[0].references.signals
    target = view.target.copy()
    here = fold == 2
    target[here] += np.random.default_rng(1).normal(0, 0.3, (int(here.sum()), 1))
    after = aligned(AttackView(target, view.references, view.population, mode=mode), share)[0].references.signals
    assert np.array_equal(before[:, here], after[:, here])
    assert not np.array_equal(before[:, ~here], after[:, ~here])


@pytest.mark.parametrize("only_if_unlike", [False, True])
def test_offline_no_in_reference_of_a_query_matters(only_if_unlike):
    signals = draw_signals()
    view, share = view_of(signals, mode="offline")
    queries = np.setdiff1d(np.arange(view.n_points), view.population)
    values = view.references.signals.copy()
    changed = view.references.in_mask[:, queries]
    values[1:, queries] = np.where(changed[:, :, None], 99.0, values[1:, queries])
    other = AttackView(
        view.target, References(values, view.references.rows, view.references.in_mask), view.population, mode="offline"
    )
    out = ~view.references.in_mask[:, :, None]
    before, after = (aligned(v, share, only_if_unlike=only_if_unlike)[0].references.signals for v in (view, other))
    assert np.array_equal(np.where(out, before, 0), np.where(out, after, 0))
    assert np.array_equal(before[:, view.population], after[:, view.population])


def test_records_of_a_group_share_a_fold():
    groups = np.random.default_rng(0).permutation(np.repeat(np.arange(300), 4))
    view, _ = view_of(draw_signals())
    view = replace(view, population=np.flatnonzero(groups < 50))
    fold = assign_folds(view.n_points, view.population, alignment.FOLDS, np.random.default_rng(0), groups)
    assert all(len(set(fold[groups == group])) == 1 for group in range(300))
    assert np.bincount(fold[groups < 50]).tolist() == [40] * 5
    assert np.bincount(fold[groups >= 50]).tolist() == [200] * 5


@pytest.mark.parametrize(("n_known", "references"), [(20, 16), (200, 2)])
def test_too_little_to_learn_from_changes_nothing(n_known, references):
    view, share = view_of(draw_signals(references=references), n_known)
    assert aligned(view, share) is None


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_without_both_sides_in_doubt_members_are_moved_as_others(share):
    view, _ = view_of(draw_signals())
    moved, about = aligned(view, share)
    assert not about.learned_inside
    # One map for both sides: the order of the means is the same after it.
    inside, outside = (alignment._moments(v.references).mean.transpose(1, 2, 0)[:, 0] for v in (view, moved))
    fold = assign_folds(view.n_points, view.population, alignment.FOLDS, np.random.default_rng(3))
    for k in range(alignment.FOLDS):
        order = np.argsort(inside[fold == k].ravel())
        assert (np.diff(outside[fold == k].ravel()[order]) > -1e-4).all()


def test_the_probe_of_many_records_decides_as_all_do(monkeypatch):
    signals = draw_signals(n=3000)
    view, share = view_of(signals, 500)
    whole = aligned(view, share)
    monkeypatch.setattr(alignment, "MOST_PROBED", 800)
    probed = aligned(view, share)
    assert np.array_equal(whole[0].references.signals, probed[0].references.signals)
    assert whole[1] == probed[1]
    like, share = view_of(draw_signals(n=3000, scale=1.0, shift=0.0), 500)
    assert align(like, share, np.random.default_rng(0), only_if_unlike=True) is None


def test_a_target_that_goes_its_own_way_matches_poorly():
    signals = draw_signals()
    rng = np.random.default_rng(5)
    values = signals.values.copy()
    values[0] += rng.normal(0, 6, values[0].shape).astype(np.float32)
    about = aligned(*view_of(Signals(values, signals.design)))[1]
    assert about.match < 0.6
    assert about.spread[1] > 4


def test_the_regression_is_the_maximum_of_the_likelihood():
    rng = np.random.default_rng(0)
    mean, variance, weight = rng.normal(size=(300, 1)), rng.uniform(0.5, 2, (300, 1)), rng.uniform(size=300)
    target = 1 + 0.7 * mean + 0.8 * np.sqrt(variance) * rng.standard_t(4, size=(300, 1))

    def naive(values):
        a, b, log_k = values
        scale = np.exp(log_k) * np.sqrt(variance * (FREEDOM - 2) / FREEDOM)
        return -np.sum(weight[:, None] * stats.t.logpdf(target, FREEDOM, a + b * mean, scale))

    best = optimize.minimize(naive, [0, 1, 0], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9}).x
    found = alignment._regress(target, mean, variance, weight, np.zeros((1, 0)))
    assert [*found.lines[0], *np.log(found.factors[0])] == pytest.approx(best.tolist(), abs=0.01)


def test_members_are_found_by_the_maximum_of_the_mixture_likelihood(monkeypatch):
    signals = draw_signals(leak=2.5, more=1.5)
    monkeypatch.setattr(alignment, "MOST_KNOTS", 0)
    view, share = view_of(signals)
    evidence = alignment._moments(view.references)
    known = np.isin(np.arange(view.n_points), view.population)
    laws = alignment._Laws.of(evidence, known, "online")
    maps = alignment._learn(view.target, laws, known, ~known, share)
    inside, outside = maps.sides
    assert maps.learned
    t = view.target[~known, 0]

    def density(a, b, k, side):
        scale = k * np.sqrt(laws.variance[side, ~known, 0] * (FREEDOM - 2) / FREEDOM)
        return stats.t.logpdf(t, FREEDOM, a + b * laws.centre[side, ~known, 0], scale)

    out = density(*outside.lines[0], outside.factors[0, 0], 1)

    def naive(values):
        a, b, log_k = values
        mixed = np.logaddexp(np.log(share) + density(a, b, np.exp(log_k), 0), np.log(1 - share) + out)
        return -mixed.sum()

    start = [*outside.lines[0], np.log(outside.factors[0, 0])]
    best = optimize.minimize(naive, start, method="Nelder-Mead", options={"maxiter": 4000, "fatol": 1e-8}).x
    found = [*inside.lines[0], np.log(inside.factors[0, 0])]
    assert found == pytest.approx(best.tolist(), abs=0.03)


def test_the_law_of_a_further_reference_shrinks_means():
    """With two references per side, half of the variance of their mean is noise: the slope is one minus its share."""
    rng = np.random.default_rng(0)
    level = rng.normal(0, 1, 20_000)
    conf = (level[None, :] + rng.normal(0, 1, (4, 20_000)))[:, :, None]
    mask = np.array([[True], [True], [False], [False]]) & np.ones((1, 20_000), bool)
    found = SideMap.among(alignment.exact_evidence(conf, mask), 1)
    assert found.lines[0, 1] == pytest.approx(1 / 1.5, abs=0.02)
    new = level + rng.normal(0, 1, 20_000)
    residual = new - found.centre(conf[2:].mean(axis=0))[:, 0]
    assert np.sqrt(residual.var()) == pytest.approx(found.factors[0, 0] * np.sqrt(1.5), rel=0.02)


def line_of(x, y, knots):
    """Return the line [2 + knots] by least squares."""
    regression = alignment._Regression.of(y, x, np.ones(len(x)), knots)
    return regression.uncentred(regression.step(np.ones(len(x)), np.ones(len(x)))[0])


def test_a_line_bends_where_the_records_ask_for_it_and_never_falls():
    rng = np.random.default_rng(0)
    x, knots = rng.normal(0, 2, 5000), np.array([-1.0, 0.0, 1.0])
    bent = np.where(x > 0, 3 * x, 0.5 * x) + 1 + rng.normal(0, 0.1, 5000)
    line = line_of(x, bent, knots)
    at = np.array([-2.0, -0.5, 0.5, 2.0])
    assert line @ alignment._features(at, knots) == pytest.approx(np.where(at > 0, 3 * at, 0.5 * at) + 1, abs=0.1)
    # Few records: straight, as far as they show.
    assert line_of(x[:6], 2 * x[:6] + 1, knots)[:2] == pytest.approx([1, 2], abs=1e-6)
    valley = line_of(x, np.abs(x) + 0.2 * x, knots)
    assert valley[2:].tolist() == [0, 0, 0]
    assert valley[1] == pytest.approx(0.2, abs=0.05)
    assert line_of(x, -x, knots)[1:].tolist() == [0, 0, 0, 0]
    assert line_of(np.full(9, 1.1), x[:9], knots) == pytest.approx([x[:9].mean(), 0, 0, 0, 0])


@pytest.mark.parametrize("far", [0.0, 1e4])
def test_steps_of_the_regression_are_those_of_a_naive_one(far):
    """Standardised features, weighted least squares with a penalty of bends, and spreads from weighted squares."""
    rng = np.random.default_rng(1)
    x = rng.normal(0, 2, 400)
    y, variance, count = 0.7 * x + rng.normal(0, 0.5, 400), rng.gamma(4, 0.1, 400), rng.random(400)
    knots = np.quantile(x, [0.25, 0.5, 0.75])
    weight = count / variance
    middle = np.average(x, weights=weight)
    scale = np.sqrt(np.average((x - middle) ** 2, weights=weight))
    features = np.column_stack([np.ones(400), (x - middle) / scale, np.maximum(x[:, None] - knots, 0) / scale])
    rows = np.sqrt(np.diag([0, 0, 1, 1, 1]) * alignment.BENDING * weight.sum() / 400)
    stacked = np.vstack([features * np.sqrt(weight)[:, None], rows])
    predicted = features @ np.linalg.lstsq(stacked, np.append(y * np.sqrt(weight), np.zeros(5)), rcond=None)[0]
    places = [x.min(), *knots, x.max()]
    hats = np.stack([np.interp(x, places, unit) for unit in np.eye(5)])
    squares = weight * (y - predicted) ** 2
    more = alignment.SPREAD_RECORDS
    spread = np.sqrt((hats @ squares + more * squares.sum() / count.sum()) / (hats @ count + more))

    regression = alignment._Regression.of(y, x + far, variance, knots + far)
    line, factors = regression.step(count, np.ones(400))
    assert regression.uncentred(line) @ alignment._features(x + far, knots + far) == pytest.approx(predicted, rel=1e-6)
    assert regression.predicted(line) == pytest.approx(predicted, rel=1e-9, abs=1e-9)
    assert factors == pytest.approx(spread, rel=1e-9)


def test_offline_the_decision_does_not_depend_on_in_references_of_queries():
    view, share = view_of(draw_signals(n=600, scale=1.22, shift=0.0), 150, mode="offline")
    queries = np.setdiff1d(np.arange(view.n_points), view.population)
    decided = set()
    for seed in range(4):
        values = view.references.signals.copy()
        wild = np.random.default_rng(seed).normal(0, 30, values[1:, queries].shape)
        values[1:, queries] = np.where(view.references.in_mask[:, queries, None], wild, values[1:, queries])
        references = References(values, view.references.rows, view.references.in_mask)
        other = AttackView(view.target, references, view.population, mode="offline")
        found = aligned(other, share, only_if_unlike=True)
        decided.add(None if found is None else found[1].gain)
    assert len(decided) == 1


@pytest.mark.parametrize("wild", [-50.0, -300.0, 1e5])
def test_one_wild_record_does_not_decide(wild):
    signals = draw_signals()
    values = signals.values.copy()
    record = int(np.flatnonzero(~signals.design.matrix[0])[0])
    values[1:, record] = wild
    (clean, _), (found, result) = auc_of(signals), auc_of(Signals(values, signals.design))
    assert result.alignment is not None
    assert found > clean - 0.01


def test_references_of_a_few_values_are_left_alone():
    signals = draw_signals()
    values = np.where(signals.values > 0, 16.0, -16.0).astype(np.float32)
    values[0] = signals.values[0]
    view, share = view_of(Signals(values, signals.design))
    assert aligned(view, share) is None


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("kind", ["equal", "alike", "constant target", "huge", "float16"])
@pytest.mark.filterwarnings("error")
def test_odd_signals_raise_no_warning(kind, mode):
    signals = draw_signals()
    values = signals.values.copy()
    if kind == "equal":
        values[1:] = 1.0
    elif kind == "alike":
        values[1:] = values[1]
    elif kind == "constant target":
        values[0] = 3.0
    elif kind == "huge":
        values *= 5e4
    else:
        values = values.astype(np.float16)
    view, share = view_of(Signals(values, signals.design), mode=mode)
    for only_if_unlike in (False, True):
        found = aligned(view, share, only_if_unlike=only_if_unlike)
        assert found is None or np.isfinite(found[0].references.signals).all()


def test_a_curved_scale_does_not_lower_the_match():
    signals = draw_signals()
    values = signals.values.copy()
    values[0] = np.exp(values[0] / 3)
    assert aligned(*view_of(Signals(values, signals.design)))[1].match > 0.9


def test_unrelated_references_have_no_match():
    signals = draw_signals()
    values = np.random.default_rng(0).normal(size=signals.values.shape).astype(np.float32)
    values[0] = 3 * values[0] + 3
    assert aligned(*view_of(Signals(values, signals.design), 500))[1].match == 0
    assert aligned(*view_of(Signals(values, signals.design), 100))[1].match is None  # too few records to tell


def test_a_part_of_the_references_is_aligned_by_what_that_part_shows():
    signals = draw_signals(references=16)
    pilot = Pilot.run(signals, ATTACKS["pl-mia-eb"], 0, Setup(seed=1))
    assert pilot.full.alignment is not None
    few = pilot.draw(4, np.random.default_rng(0))
    rows = [0, *few.tolist()]
    part = Signals(signals.values[rows], MembershipDesign(signals.design.matrix[rows]))
    (whole,) = attack_targets(part, [ATTACKS["pl-mia-eb"]], [0], Setup(seed=1, align="always"))
    assert whole.metrics().auc == pytest.approx(pilot.measure(few)[0], abs=1e-6)


def curved(seed=0, bend=3.0):
    """Signals that are even on the scale asinh(conf / bend) alone, where the target's are larger."""
    even = draw_signals(seed, n=2000, scale=1.3, shift=0.3, leak=1.0)
    return Signals((np.sinh(even.values) * bend).astype(np.float32), even.design)


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_references_choose_the_scale_on_which_they_are_aligned(mode, monkeypatch):
    signals = curved()
    found, result = auc_of(signals, mode, align="always")
    assert result.alignment.bend in alignment.BENDS[1:]
    assert result.view.bend == result.alignment.bend
    assert result.unaligned.bend is None
    assert "on the scale asinh" in references_aligned({0: result.alignment}, 1)
    monkeypatch.setattr(alignment, "BENDS", (np.inf,))
    without, plain = auc_of(signals, mode, align="always")
    assert plain.alignment.bend is None
    assert found > without + 0.01


def test_the_likelihood_ratio_takes_the_scale_of_the_alignment():
    view, _ = view_of(draw_signals())
    assert EmpiricalBayesLR().fit(view).coordinates.bend == np.inf
    bent = replace(view, bend=8.0)
    assert EmpiricalBayesLR().fit(bent).coordinates.bend == 8.0
    assert EmpiricalBayesLR(bend=3.0).fit(bent).coordinates.bend == 3.0


def test_moved_signals_return_from_the_bent_scale_within_bounds():
    values = np.array([-50.0, -1.0, 0.0, 3.0, 40.0])
    assert alignment._unbent(alignment._bent(values, 3.0), 3.0) == pytest.approx(values)
    assert alignment._bent(values, np.inf) == pytest.approx(values)
    assert alignment._unbent(np.array([-1000.0, 1000.0]), 3.0) == pytest.approx([-1e4, 1e4])


def test_the_auc_of_held_out_references_counts_pairs():
    view, _ = view_of(draw_signals(n=400))
    sample = Sample(view.references, find_pairs(view.references.in_mask), view.target, "online")
    _, held_out = _fit_bend(sample, 8, np.inf)
    free, held = held_out._ratios(held_out.tails())
    ratio = held if held_out.hold(held_out.tails()) else free
    members, others = ratio[held_out.member][:, None], ratio[~held_out.member]
    naive = np.mean((members > others) + 0.5 * (members == others))
    assert held_out.auc() == pytest.approx(naive, abs=1e-12)
    assert 0.8 < held_out.auc() < 1


def test_references_stay_where_too_few_of_them_can_take_the_place_of_the_target():
    view, share = view_of(draw_signals(references=4, scale=4.0))
    some = view.references
    view = replace(view, references=References(some.signals, some.rows[[0, 2]], some.in_mask[[0, 2]]))
    assert aligned(view, share) is not None
    assert aligned(view, share, only_if_unlike=True) is None


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_records_with_references_on_one_side_are_aligned_too(mode):
    signals = draw_signals(more=1.5)
    signals.design.matrix[1:, ::7] = True
    signals.design.matrix[1:, 3::7] = False
    view, share = view_of(signals, mode=mode)
    moved, _ = aligned(view, share)
    assert np.isfinite(moved.references.signals).all()


def test_the_match_is_that_of_a_loop_and_chance_does_not_lower_it():
    signals = draw_signals(scale=1.0, shift=0.0)
    view, _ = view_of(signals)
    found = alignment.match_of(view)
    mean = []
    for i in view.population:
        outside = view.references.rows[~view.references.in_mask[:, i]]
        mean.append(np.mean([view.references.signals[row, i].mean() for row in outside]))
    assert found.correlation == pytest.approx(stats.spearmanr(mean, view.target[view.population].mean(axis=1))[0])
    assert not found.clearly_below(0.8)
    # A target that has nothing in common with its references.
    other = replace(view, target=np.random.default_rng(1).normal(size=view.target.shape))
    assert alignment.match_of(other).clearly_below(0.8)


def test_few_records_do_not_say_that_references_have_nothing_in_common():
    assert alignment._clear(0.2, 40) is None
    assert alignment._clear(0.05, 1000) == 0.0
    assert alignment._clear(0.2, 1000) == 0.2
