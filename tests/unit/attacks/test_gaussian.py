"""Centres and variance estimators against their definitions, written as loops over points, views and models."""

from __future__ import annotations

import numpy as np
import pytest

from plmia.attacks.statistics import (
    FixedVariance,
    Gaussian,
    GaussianLR,
    MeanCentre,
    MedianCentre,
    PerPointVariance,
    PooledVariance,
    PublishedFixedVariance,
)
from plmia.attacks.view import AttackView, KnownSums, References
from plmia.errors import ReferencesError

ESTIMATORS = [PerPointVariance(), FixedVariance(), PublishedFixedVariance(), PooledVariance()]


def moments_of(view, inside):
    block = view.whole()
    return block.in_moments if inside else block.out_moments


SIDES = [True, False]


def everywhere(references, of_one_place):
    """Evaluate a function of (point, view) at all of them."""
    shape = (references.n_points, references.n_views)
    return np.array([[of_one_place(point, view) for view in range(shape[1])] for point in range(shape[0])])


def naive_variance(estimator, references, inside, side_of):
    """Return the definition [points, views], without the variance of rounding."""
    sides = {
        (point, view): np.array(side_of(references, inside, point, view))
        for point in range(references.n_points)
        for view in range(references.n_views)
    }
    if isinstance(estimator, PerPointVariance):
        return everywhere(references, lambda point, view: sides[point, view].var())
    if isinstance(estimator, FixedVariance):
        residuals = np.concatenate([side - side.mean() for side in sides.values()])
        return np.full((references.n_points, references.n_views), np.mean(residuals**2))
    if isinstance(estimator, PublishedFixedVariance):
        return np.full((references.n_points, references.n_views), np.concatenate(list(sides.values())).var())
    pooled = [
        np.concatenate([sides[point, view] for view in range(references.n_views)]).var()
        for point in range(references.n_points)
    ]
    return np.repeat(np.array(pooled)[:, None], references.n_views, axis=1)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("inside", SIDES)
@pytest.mark.parametrize(("n_models", "pairs"), [(8, True), (9, False), (5, False)])
@pytest.mark.parametrize(
    ("dtype", "relative", "rounding"), [(float, 1e-12, 0), (np.float32, 2e-5, 0), (np.float16, 2e-5, 1e-5)]
)
def test_estimators_match_their_definitions(
    make_references, make_view, side_of, estimator, inside, n_models, pairs, dtype, relative, rounding
):
    references = make_references(n_models, 7, 3, dtype=dtype, pairs=pairs, jump=True)
    moments = moments_of(make_view(references), inside)
    variance = np.broadcast_to(estimator(moments), (7, 3))
    exact = naive_variance(estimator, references, inside, side_of)
    assert variance == pytest.approx(exact, rel=relative, abs=rounding)
    mean = everywhere(references, lambda point, view: np.mean(side_of(references, inside, point, view)))
    assert MeanCentre()(references, moments) == pytest.approx(mean, rel=1e-6, abs=1e-6)
    n = [len(side_of(references, inside, point, 0)) for point in range(7)]
    assert moments.n.tolist() == n


@pytest.mark.parametrize("inside", SIDES)
@pytest.mark.parametrize("gap", [0.0, 3.0, 300.0, 30000.0])
@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-4])
def test_a_small_variance_keeps_its_digits_far_from_the_centre(make_view, side_of, inside, gap, spread):
    rng = np.random.default_rng(3)
    in_mask = np.array([[True], [False]] * 3).repeat(5, axis=1)
    signals = (10 + gap * in_mask[:, :, None] + spread * rng.normal(size=(6, 5, 2))).astype(np.float32)
    references = References(signals, np.arange(6), in_mask)
    exact = everywhere(references, lambda point, view: np.var(side_of(references, inside, point, view)))
    far = KnownSums(np.full((5, 2), 100.0, np.float32))
    for known in (None, far):
        moments = moments_of(make_view(references, known=known), inside)
        assert moments.variance == pytest.approx(exact, rel=1e-4, abs=0)


@pytest.mark.parametrize("inside", SIDES)
@pytest.mark.parametrize("n_models", [4, 5, 8, 13])
@pytest.mark.parametrize("cells", [7, 1 << 20])
def test_the_median_is_that_of_each_point(make_references, make_view, side_of, monkeypatch, inside, n_models, cells):
    monkeypatch.setattr(References.blocks, "__defaults__", (cells,))
    references = make_references(n_models, 9, 2, pairs=False, jump=True)
    counts = {len(side_of(references, inside, point, 0)) % 2 for point in range(9)}
    assert counts == ({0, 1} if n_models > 4 else {0})
    exact = everywhere(references, lambda point, view: np.median(side_of(references, inside, point, view)))
    view = make_view(references)
    assert np.array_equal(MedianCentre()(references, moments_of(view, inside)), exact)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("level", [0.0, 1.0, -7.3, 100.0])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("inside", SIDES)
def test_equal_references_have_the_variance_of_rounding(make_view, dtype, level, estimator, inside):
    in_mask = np.array([[True], [False]] * 3).repeat(4, axis=1)
    # The other side is elsewhere, so that the centre may lie off this one.
    signals = np.where((in_mask == inside)[:, :, None], level, level + 3.3).astype(dtype)
    moments = moments_of(make_view(References(signals, np.arange(6), in_mask), population=2), inside)
    spacing = float(np.spacing(np.maximum(np.abs(dtype(level)), dtype(1))))
    found = estimator(moments)
    assert (found > 0).all()
    assert found == pytest.approx(spacing**2 / 12, rel=1e-6, abs=(1e-16 * level) ** 2)


def test_the_largest_float16_does_not_overflow(make_view):
    in_mask = np.array([[True], [False]] * 2).repeat(3, axis=1)
    references = References(np.full((4, 3, 1), 65504, np.float16), np.arange(4), in_mask)
    assert np.isfinite(moments_of(make_view(references, population=2), True).rounding).all()


@pytest.mark.parametrize(
    ("estimator", "views", "least"),
    [
        (PerPointVariance(), 2, 2),
        (FixedVariance(), 2, 1),
        (PublishedFixedVariance(), 2, 1),
        (PooledVariance(), 1, 2),
        (PooledVariance(), 2, 1),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, int) else str(x),
)
@pytest.mark.parametrize("inside", SIDES)
def test_too_few_references_are_named(make_view, estimator, views, least, inside):
    rng = np.random.default_rng(0)
    in_mask = np.zeros((6, 12), bool)
    in_mask[:3] = True
    for point in (3, 7):  # one fewer than are needed on the side in question
        in_mask[:, point] = not inside
        in_mask[: least - 1, point] = inside
    view = make_view(References(rng.normal(size=(6, 12, views)), np.arange(6), in_mask))
    side = "IN" if inside else "OUT"
    message = rf"\b{least} {side} references? .*\b3, 7 have .*\b{least - 1}: .*more references"
    with pytest.raises(ReferencesError, match=message):
        GaussianLR(estimator).fit(view)
    assert (estimator(moments_of(view, not inside)) > 0).all()


def test_many_short_points_are_counted(make_view):
    in_mask = np.ones((4, 40), bool)
    view = make_view(References(np.zeros((4, 40, 1)), np.arange(4), in_mask))
    with pytest.raises(ReferencesError, match=r"\b0, 1, 2, 3, 4 and 35 more .*\b0\b"):
        GaussianLR().fit(view)


def test_no_reference_at_all_is_named():
    none = References(np.zeros((3, 4, 1)), np.arange(0), np.zeros((0, 4), bool))
    view = AttackView(np.zeros((4, 1)), none, np.arange(2))
    with pytest.raises(ReferencesError, match=r"\b2 OUT references .*\b0, 1, 2, 3 have .*\b0\b"):
        GaussianLR().fit(view)


def test_the_log_density_is_the_normal_one():
    law = Gaussian(np.array([[1.0, -2.0]]), np.array([[4.0]]))
    x = np.array([[0.5, 3.0]])
    exact = -0.5 * np.log(2 * np.pi * 4.0) - (x - law.mean) ** 2 / 8
    assert law.log_density(x) == pytest.approx(exact + 0.5 * np.log(2 * np.pi), rel=1e-14)
