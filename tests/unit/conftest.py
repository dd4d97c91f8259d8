"""Small references and views, and what a point's signals are when one simply loops over the models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from plmia.attacks.view import AttackView, Mode, References

Bools = npt.NDArray[np.bool_]


def build_references(
    n_models: int = 8,
    n_points: int = 11,
    n_views: int = 2,
    *,
    dtype: npt.DTypeLike = np.float64,
    pairs: bool = True,
    jump: bool = False,
    seed: int = 0,
) -> References:
    """Return references, at least two IN and two OUT a point; ``jump`` takes them out of more models, shuffled."""
    rng = np.random.default_rng(seed)
    in_mask = rng.random((n_models, n_points)) < 0.5
    in_mask[0] = True
    if pairs:
        in_mask[1::2] = ~in_mask[0::2]
        in_mask[2:4] = in_mask[1::-1]
    else:
        in_mask[:4] = [[True], [False], [True], [False]]
    stored = 2 * n_models if jump else n_models
    rows = rng.permutation(stored)[:n_models] if jump else np.arange(n_models)
    signals = rng.normal(1.0, 3.0, (1, n_points, n_views)) + rng.normal(0.0, 1.0, (stored, n_points, n_views))
    signals[rows] += 1.5 * in_mask[:, :, None]
    return References(signals.astype(dtype), rows, in_mask)


def build_view(
    references: References, mode: Mode = "online", *, population: int = 5, seed: int = 1, **more: Any
) -> AttackView:
    """Return a view of a target that resembles the references; the last points are the population."""
    rng = np.random.default_rng(seed)
    n_points, n_views = references.n_points, references.n_views
    near = references.signals[references.rows[0]].astype(np.float64)
    target = near + rng.normal(0.0, 1.0, (n_points, n_views))
    return AttackView(target, references, np.arange(n_points - population, n_points), mode=mode, **more)


def loop_side(references: References, inside: bool, point: int, view: int) -> list[float]:
    """Collect the IN (or OUT) signals of one point, model by model."""
    return [
        float(references.signals[row, point, view])
        for row, member in zip(references.rows, references.in_mask[:, point], strict=True)
        if bool(member) == inside
    ]


@dataclass(frozen=True, eq=False)
class Given:
    """A statistic that is given, whatever the view."""

    values: npt.NDArray[np.floating]

    def __call__(self, view: AttackView) -> npt.NDArray[np.floating]:
        return self.values


@pytest.fixture
def make_references() -> Callable[..., References]:
    return build_references


@pytest.fixture
def make_view() -> Callable[..., AttackView]:
    return build_view


@pytest.fixture
def side_of() -> Callable[[References, bool, int, int], list[float]]:
    return loop_side


@pytest.fixture
def given_statistic() -> type[Given]:
    return Given


@pytest.fixture
def bare_view() -> Callable[..., AttackView]:
    """Return views of points whose signals do not matter."""

    def build(n_points: int, n_views: int, population: Any, labels: Any = None) -> AttackView:
        references = References(np.zeros((1, n_points, n_views)), np.arange(1), np.zeros((1, n_points), bool))
        return AttackView(np.zeros((n_points, n_views)), references, np.asarray(population, np.intp), labels)

    return build
