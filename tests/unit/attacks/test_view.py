"""What a view holds, what it refuses, and what is subtracted before squaring."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from plmia.attacks.view import AttackView, KnownSums, Powers, References, first_out, midpoint, sum_over
from plmia.errors import PopulationError, SignalsError


def test_a_view_has_no_place_for_the_answer():
    names = {field.name for field in fields(AttackView)}
    assert names == {"target", "references", "population", "labels", "mode", "known", "features", "bend", "groups"}


def test_a_view_knows_its_size(make_references, make_view):
    view = make_view(make_references(8, 11, 3))
    assert (view.n_points, view.n_views) == (11, 3)


@pytest.mark.parametrize("shape", [(10, 2), (11, 1), (11,), (2, 11)])
def test_a_target_of_another_shape_is_refused(make_references, shape):
    with pytest.raises(SignalsError, match=r"shape .*, the references' \(11, 2\)"):
        AttackView(np.zeros(shape), make_references(8, 11, 2), np.arange(3))


@pytest.mark.parametrize("population", [[-1, 2], [3, 11], [4, 4, 5]])
def test_a_population_that_is_no_set_of_points_is_refused(make_references, population):
    with pytest.raises(PopulationError, match=r"distinct and from 0 to 10.*without replacement"):
        AttackView(np.zeros((11, 2)), make_references(8, 11, 2), np.array(population))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("pairs", [True, False])
def test_the_centre_is_the_first_out_signal(make_references, dtype, pairs):
    references = make_references(9 if not pairs else 8, 13, 2, dtype=dtype, pairs=pairs, jump=True)
    centre = first_out(references)
    assert centre.dtype == (np.float64 if dtype == np.float64 else np.float32)
    for point in range(13):
        row = next(row for row, member in zip(references.rows, references.in_mask[:, point], strict=True) if not member)
        assert np.array_equal(centre[point], references.signals[row, point])


def test_a_point_without_out_references_has_some_centre():
    references = References(np.ones((2, 3, 1)), np.arange(2), np.ones((2, 3), bool))
    assert np.isfinite(first_out(references)).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_amid_is_halfway_between_two_models(make_references, dtype):
    references = make_references(8, 13, 2, dtype=dtype, jump=True)
    first, last = (references.signals[references.rows[i]].astype(float) for i in (0, 7))
    assert midpoint(references) == pytest.approx((first + last) / 2, rel=1e-6)


def test_known_sums_are_taken_rather_than_computed(make_references, make_view):
    references = make_references()
    centre = np.full((11, 2), 0.25)
    sums = sum_over(references, Powers(centre))
    view = make_view(references, known=KnownSums(centre, {"confidence": sums}))
    block = view.block(slice(3, 7))
    assert np.array_equal(block.centre, centre[3:7])
    assert np.shares_memory(block.confidence_sums.inside, sums.inside)
    assert np.array_equal(make_view(references).whole().centre, first_out(references))


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_blocks_have_the_sums_of_the_whole(make_references, make_view, monkeypatch, pairs, mode):
    monkeypatch.setattr("plmia.attacks.view.POINTS_PER_BLOCK", 4)
    view = make_view(make_references(8 if pairs else 9, 11, 2, dtype=np.float32, pairs=pairs), mode)
    summed = view.with_sums({"confidence", "probability"})
    assert summed.with_sums({"confidence"}).known.sums["confidence"] is summed.known.sums["confidence"]
    blocks = list(view.blocks())
    assert [block.points for block in blocks] == [slice(0, 4), slice(4, 8), slice(8, 11)]
    for block, same in zip(blocks, summed.blocks(), strict=True):
        assert block.confidence_sums.outside.tobytes() == same.confidence_sums.outside.tobytes()
        assert block.confidence_sums.inside.tobytes() == same.confidence_sums.inside.tobytes()
        if mode == "offline":
            assert block.probability_sums.outside.tobytes() == same.probability_sums.outside.tobytes()
