"""Population calibration: from a statistic phi to a membership score.

A pairwise difference is first taken over the views (mean, median or votes), then turned into evidence and
aggregated over the population (nothing, binary votes, Cauchy-combined p-values).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from plmia.attacks.cauchy_sum import SignedLog, cauchy_mean, cauchy_mean_exact
from plmia.attacks.moments import FloatArray, IntArray
from plmia.errors import AttackError, PopulationError
from plmia.numerics import count_below

PAIRS_PER_BLOCK = 1 << 20


class Views(Protocol):
    """How the views' pairwise differences become one."""

    @property
    def linear(self) -> bool:
        """Whether the difference of two points is the difference of two numbers, so that the cheap path applies."""

    def points(self, phi: FloatArray) -> FloatArray:
        """One number a point [n] from phi [n, views]."""

    def pairs(self, differences: FloatArray) -> FloatArray:
        """One number a pair from differences [views, ...]; 0 for a point with itself."""


@dataclass(frozen=True)
class MeanOfViews:
    """The mean; it commutes with the difference."""

    linear = True

    def points(self, phi: FloatArray) -> FloatArray:
        """Mean over views [n]."""
        mean: FloatArray = phi.mean(axis=1) if phi.shape[1] > 1 else phi[:, 0]
        return mean

    def pairs(self, differences: FloatArray) -> FloatArray:
        """Mean over views."""
        mean: FloatArray = differences.mean(axis=0)
        return mean


@dataclass(frozen=True)
class MedianOfViews:
    """The median of the differences; it does not commute with the difference."""

    linear = False

    def points(self, phi: FloatArray) -> FloatArray:
        """Median over views [n]."""
        return np.median(phi, axis=1)

    def pairs(self, differences: FloatArray) -> FloatArray:
        """Median over views."""
        ordered, views = _sorted_views(differences), len(differences)
        median: FloatArray = (ordered[(views - 1) // 2] + ordered[views // 2]) / 2
        return median


@dataclass(frozen=True)
class VotesOfViews:
    """The share of views in which the query is ahead, ties half, minus one half."""

    linear = False

    def points(self, phi: FloatArray) -> FloatArray:
        """Mean over views [n]: a vote needs a partner, one point alone has none."""
        mean: FloatArray = phi.mean(axis=1)
        return mean

    def pairs(self, differences: FloatArray) -> FloatArray:
        """Share of positive differences minus one half."""
        votes: FloatArray = np.sign(differences).mean(axis=0) / 2
        return votes


def _sorted_views(differences: FloatArray) -> FloatArray:
    """Sort over the few views by exchanging whole arrays, which beats `numpy.sort` over a short axis."""
    rows = list(differences)
    for last in range(len(rows) - 1, 0, -1):
        for i in range(last):
            rows[i], rows[i + 1] = np.minimum(rows[i], rows[i + 1]), np.maximum(rows[i], rows[i + 1])
    return np.stack(rows)


class Calibration(Protocol):
    """How a query's differences to its population become a score.

    A class attribute ``scaled`` may say False: ``null_std`` is then not computed, and nothing is asked of it.
    """

    def shared(
        self, query: FloatArray, population: FloatArray, size: npt.NDArray[np.integer]
    ) -> FloatArray | SignedLog:
        """Scores [n] of numbers [n] against one population [z] of which ``size`` [n] count: the cheap path."""

    def pairwise(
        self, differences: FloatArray, size: npt.NDArray[np.integer], null_std: FloatArray
    ) -> FloatArray | SignedLog:
        """Scores [n] from differences [n, z] whose deviation among non-members is ``null_std``."""


@dataclass(frozen=True)
class NoCalibration:
    """The score is the statistic itself (LiRA, Attack-R)."""

    def shared(self, query: FloatArray, population: FloatArray, size: npt.NDArray[np.integer]) -> FloatArray:
        """Return the statistic."""
        del population, size
        return query

    def pairwise(self, differences: FloatArray, size: npt.NDArray[np.integer], null_std: FloatArray) -> FloatArray:
        """Refuse: without calibration there are no pairs."""
        del differences, size, null_std
        raise AttackError(
            "an attack without calibration compares no pairs: take the mean or median of views and a shared population"
        )


@dataclass(frozen=True)
class BinaryVote:
    """Share of the population that the query beats by more than gamma (`eq:binary_calib`).

    Parameters
    ----------
    gamma : float
        Threshold on the difference of two statistics, at least 0. RMIA states it for a ratio: log(2) here is 2 there.
    """

    gamma: float = 0.0
    scaled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < math.inf:
            raise AttackError(f"gamma = {self.gamma} is not a finite number from 0 on: take 0, or log 2 as RMIA does")

    def shared(self, query: FloatArray, population: FloatArray, size: npt.NDArray[np.integer]) -> FloatArray:
        """Share of wins [n], by sorting."""
        return count_below(population, query - self.gamma) / size

    def pairwise(self, differences: FloatArray, size: npt.NDArray[np.integer], null_std: FloatArray) -> FloatArray:
        """Share of wins [n]."""
        del null_std
        wins: FloatArray = (differences > self.gamma).sum(axis=1) / size
        return wins


@dataclass(frozen=True)
class CauchyCombination:
    """Mean of the Cauchy-transformed one-sided pairwise p-values (`eq:p_value`, `eq:cauchy_cali`)."""

    def shared(self, query: FloatArray, population: FloatArray, size: npt.NDArray[np.integer]) -> SignedLog:
        """Combined scores [n] at a cost linear in queries plus population."""
        scale = null_deviation(population[:, None], MeanOfViews())
        combined = cauchy_mean(query / scale, population / scale)
        # A query that stands in the population adds tan(0) = 0 to the sum and is not counted.
        np.add(combined.log_abs, np.log(len(population) / size), out=combined.log_abs)
        return combined

    def pairwise(self, differences: FloatArray, size: npt.NDArray[np.integer], null_std: FloatArray) -> SignedLog:
        """Combined scores [n], pair by pair."""
        return cauchy_mean_exact(differences / null_std, size)


def null_deviation(phi: FloatArray, views: Views) -> float:
    """Standard deviation of the difference of two population points, hat sigma_Delta.

    It is taken over all pairs of two points; for linear views that is sqrt(2) std(phi_z).

    Parameters
    ----------
    phi : float array [population, views]
        Statistic of the population points.
    views : Views
        How differences are taken over views.
    """
    n = len(phi)
    if views.linear:
        summary = views.points(phi)
        # The standard deviation of equal numbers need not be 0: their mean is rounded.
        deviation = float(np.sqrt(2) * summary.std(ddof=1)) if np.ptp(summary) > 0 else 0.0
    else:
        everyone = np.arange(n)
        squares = sum(float(np.square(pairs).sum()) for _, pairs in in_blocks(phi, everyone, everyone, views))
        deviation = math.sqrt(squares / (n * (n - 1)))
    if not deviation > 0:
        raise PopulationError(
            f"all {n} population points have the same statistic, so differences have no scale: "
            "check the signals, or give a larger population"
        )
    return deviation


def in_blocks(
    phi: FloatArray, queries: IntArray, population: IntArray, views: Views
) -> Iterator[tuple[slice, FloatArray]]:
    """Pairwise differences in bounded memory.

    Parameters
    ----------
    phi : float array [points, views]
        The statistic.
    queries : int array [queries]
        Points compared.
    population : int array [population] or [queries, population]
        Points they are compared with.
    views : Views
        How differences are taken over views.

    Yields
    ------
    rows : slice
        Which queries.
    differences : float array [n, population]
        Their differences over the views.
    """
    height = max(1, PAIRS_PER_BLOCK // (population.shape[-1] * phi.shape[1]))
    columns = np.ascontiguousarray(phi.T)
    for start in range(0, len(queries), height):
        rows = slice(start, min(start + height, len(queries)))
        partners = population if population.ndim == 1 else population[rows]
        yield (
            rows,
            views.pairs(
                columns[:, queries[rows], None] - columns[:, partners].reshape(len(columns), -1, partners.shape[-1])
            ),
        )


def pairwise_scores(
    calibration: Calibration,
    views: Views,
    phi: FloatArray,
    queries: IntArray,
    population: IntArray,
    size: npt.NDArray[np.integer],
    tick: Callable[[int], None],
) -> FloatArray | SignedLog:
    """Scores [queries] pair by pair, where the cheap path does not apply."""
    shared = population.ndim == 1
    scaled = getattr(calibration, "scaled", True)
    std = np.array([null_deviation(phi[population], views)]) if shared and scaled else np.ones(1)
    parts: list[FloatArray | SignedLog] = []
    for rows, differences in in_blocks(phi, queries, population, views):
        if scaled and not shared:
            std = np.array([[null_deviation(phi[z], views)] for z in population[rows]])
        parts.append(calibration.pairwise(differences, size[rows], std))
        tick(rows.stop - rows.start)
    if isinstance(parts[0], SignedLog):
        return SignedLog(*(np.concatenate(side) for side in zip(*parts, strict=True)))
    return np.concatenate(parts)
