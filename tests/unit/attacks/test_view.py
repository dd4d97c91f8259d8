"""What a view holds, what it refuses, and what is subtracted before squaring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from plmia.attacks.view import AttackView, Features, KnownSums, Powers, References, first_out, midpoint, sum_over
from plmia.data import memory
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


def kept_arrays(value, name=""):
    """Yield the names and arrays of a value that code which gets it can change for others."""
    if isinstance(value, np.ndarray):
        yield name, value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from kept_arrays(part)
    elif is_dataclass(value):
        for own in [own for own in dir(value) if not own.startswith("_")]:
            part = getattr(value, own)
            # Properties that make a new array each time cannot be changed for others.
            if not isinstance(part, np.ndarray) or np.shares_memory(part, getattr(value, own)):
                yield from kept_arrays(part, own)


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("known", [True, False])
def test_no_array_of_a_view_can_be_written_to(make_references, make_view, mode, known):
    more = {"labels": np.arange(11) % 3, "groups": np.arange(11) // 2, "features": Features(np.zeros((11, 4)))}
    view = make_view(make_references(), mode, **more)
    if known:
        view = view.with_sums({"confidence", "probability"})
    names = {"target", "population", "labels", "groups", "columns", "signals", "rows", "in_mask", "n_in"}
    sums = {"centre", "inside", "outside", "n_in", "n_out"}
    for given, expected in (
        (view, names | sums if known else names),
        (view.block(slice(2, 7)), sums | {"target", "signals", "rows", "in_mask", "n", "mean", "variance"}),
    ):
        found = list(kept_arrays(given))
        assert {name for name, _ in found} == expected
        assert [name for name, array in found if array.flags.writeable] == []
    for _, _, in_mask in [*view.references.blocks(5), *view.references.at(np.arange(3))]:
        assert not in_mask.flags.writeable or not np.shares_memory(in_mask, view.references.in_mask)


def test_a_view_copies_nothing(make_references, tmp_path):
    with memory.memory_limit(memory.LEAST_LIMIT, tmp_path):
        signals = memory.zeros((2, memory.LEAST_LIMIT // 64, 1), np.float32)
    references = References(signals, np.arange(2), np.zeros(signals.shape[:2], bool))
    assert memory.is_mapped(references.signals)
    assert np.shares_memory(references.signals, signals)
    assert signals.flags.writeable
    assert references.first(2).signals is references.signals
    other, target = make_references(), np.zeros((11, 2))
    view = AttackView(target, other, np.arange(3))
    assert np.shares_memory(view.target, target)
    assert AttackView(view.target, other, view.population).target is view.target
