"""Of whatever was scored a report is written: no figure has an axis without a width, or a number that is not finite."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmia.attacks.attack import ATTACKS
from plmia.data.designs import MembershipDesign
from plmia.errors import PlmiaError
from plmia.evaluation.targets import Setup
from plmia.reporting import Extras, write_report
from plmia.reporting.drawing import CLOSEST, LIGHT, Figure, apart, bars, distinct, line, linear_axis, svg
from plmia.results.folder import run_attacks
from plmia.signals.signals import Signals

ENDS = st.floats(-1e308, 1e308, allow_subnormal=True) | st.sampled_from(
    [0.0, 1.0, 5e-324, -5e-324, 1e-310, 1e30, 1e30 + 1e15, 1e12, 1e12 + 0.25, -math.log(2), -math.log(2) + 1e-8]
)


@given(ENDS, ENDS)
def test_any_two_numbers_make_an_axis(one: float, other: float) -> None:
    low, high = apart(min(one, other), max(one, other))
    axis = linear_axis("across", min(one, other), max(one, other))
    drawn = axis.to_json()
    start, end = drawn["range"]
    assert math.isfinite(end - start)
    assert end > start
    assert abs(start - low) + abs(end - high) <= 1e-4 * (high - low)
    assert len(axis.ticks) > 1
    assert len(set(axis.labels)) == len(axis.labels), "ticks can be told apart"
    assert max(map(len, axis.labels)) <= 20
    slack = 1e-9 * (high - low)
    assert all(low - slack <= tick <= high + slack for tick in axis.ticks)


@given(ENDS, ENDS)
def test_ends_that_are_apart_stay_where_they_are(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    size = max(abs(low), abs(high))
    if 1e-290 <= size <= 1e300 and high - low > CLOSEST * size:
        assert apart(low, high) == (low, high)
    assert apart(*apart(low, high)) == apart(low, high)


@given(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=6), st.sampled_from([0.0, 1e6, -1e12, 1e30]))
def test_rounding_keeps_values_where_they_are_on_their_axis(values: list[float], offset: float) -> None:
    array = np.array(values) + offset
    width = float(array.max() - array.min())
    if width > CLOSEST * np.abs(array).max():
        assert np.abs(np.array(distinct(array)) - array).max() <= 1e-4 * width


@given(ENDS, ENDS)
def test_what_lies_on_an_axis_is_drawn_inside_its_box(one: float, other: float) -> None:
    low, high = apart(min(one, other), max(one, other))
    axes = {"xaxis": linear_axis("x", low, high).to_json(), "yaxis": linear_axis("y", low, high).to_json()}
    middle = low / 2 + high / 2
    data = [
        line("a", [low, middle, high], [low, middle, high], "@blue", dash="dash"),
        bars("b", [middle], [high], (high - low) / 16, "@orange"),
    ]
    figure = Figure("name", "title", "caption", "alt", data, axes, 300)
    root = ElementTree.fromstring(svg(figure))
    (clip,) = root.iter("{http://www.w3.org/2000/svg}clipPath")
    left, top, width, height = (float(clip[0].get(key, "")) for key in ("x", "y", "width", "height"))
    for mark in root.iter():
        if mark.get("clip-path") and mark.get("stroke") == LIGHT["blue"]:
            places = [place.split(",") for place in mark.get("points", "").split()]
            assert all(left - 1 <= float(x) <= left + width + 1 for x, _ in places)
            assert all(top - 1 <= float(y) <= top + height + 1 for _, y in places)


# Each turns ordinary signals [models, points, views] into ones that leave a figure little to show.
def most_equal(values: Any, rng: np.random.Generator) -> Any:
    values[:, rng.random(values.shape[1]) < 0.85] = 1.0
    return values


def copies(values: Any, rng: np.random.Generator) -> Any:
    del rng
    half = values.shape[1] // 2
    values[:, half:] = values[:, : values.shape[1] - half]
    return values


def one_far_away(values: Any, rng: np.random.Generator) -> Any:
    values[:, rng.integers(values.shape[1])] *= 1e5
    return values


KINDS: dict[str, Any] = {
    "ordinary": lambda values, _: values,
    "most equal": most_equal,
    "copies": copies,
    "one far away": one_far_away,
    "two values": lambda values, _: np.where(values > 0.5, 1.0, -1.0),
    "whole numbers": lambda values, _: np.round(values),
    "a constant target": lambda values, _: np.concatenate([np.ones_like(values[:1]), values[1:]]),
    "unsure up to rounding": lambda values, _: (np.float32(-math.log(2)) + 1e-7 * np.round(values)).astype(np.float32),
    "large": lambda values, _: 1e5 * values,
    "large and close": lambda values, _: 9e5 + np.round(values, 1),
    "tiny": lambda values, _: 1e-30 * values,
    "denormal": lambda values, _: 1e-310 * np.round(values, 1),
}


def degenerate(kind: str, seed: int) -> tuple[Signals, Setup, list[int]]:
    """Signals of a few records and models, and a setup that leaves little to evaluate."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    points, pairs = int(rng.choice([9, 12, 20, 40])), int(rng.choice([2, 3, 5]))
    half = np.zeros((pairs, points), bool)
    for row in half:
        row[rng.permutation(points)[: points // 2]] = True
    matrix = np.stack([half, ~half], axis=1).reshape(-1, points)
    views = int(rng.choice([1, 1, 2]))
    values = KINDS[kind](rng.normal(size=(*matrix.shape, views)) + rng.choice([0.0, 2.0]) * matrix[:, :, None], rng)
    labels = [None, np.zeros(points, int), rng.integers(0, 30, points)][seed % 3]
    groups = rng.integers(0, points // 2, points) if seed % 5 == 4 else None
    left = int((~matrix[0]).sum()) - 1  # all but one non-member
    population = left if seed % 2 and groups is None else None
    mode = "offline" if seed % 4 == 3 else "online"
    targets = [0, 1] if seed % 7 == 6 and population is None else [0]
    return Signals(values, MembershipDesign(matrix), labels, 0, groups), Setup(mode, None, population, 0), targets


def reported(kind: str, seed: int, folder: Path) -> bool:
    """Whether the run came to a report, which is checked; otherwise it was refused by name."""
    signals, setup, targets = degenerate(kind, seed)
    try:
        run_attacks(signals, list(ATTACKS.values()), targets, setup, folder, may_skip=True)
    except PlmiaError:
        return False
    write_report(folder, Extras(signals=signals))
    figures = sorted((folder / "figures").glob("*.json"))
    assert figures
    for path in figures:
        spec = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
        for axis in (part for key, part in spec["layout"].items() if re.match(r"[xy]axis", key)):
            assert axis["range"][1] > axis["range"][0], (path.name, axis)
        picture = path.with_suffix(".svg").read_text(encoding="utf-8")
        places = [
            part for mark in ElementTree.fromstring(picture).iter() for part in re.split("[ ,]", mark.get("points", ""))
        ]
        assert all(math.isfinite(float(part)) for part in places if part), path.name
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_is_written_or_the_run_is_refused(kind: str, tmp_path: Path) -> None:
    assert sum(reported(kind, seed, tmp_path / str(seed)) for seed in range(10)) >= 3


def test_the_emptiest_figure_is_drawn() -> None:
    axis = linear_axis("x", 0, 0).to_json()
    figure = Figure("name", "title", "caption", "alt", [], {"xaxis": axis, "yaxis": axis}, 300)
    ElementTree.fromstring(svg(figure))
