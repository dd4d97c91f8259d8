"""Population calibration: from a statistic phi to a membership score.

Each query has a population of known non-members, never including the query itself. The difference of two records is
first aggregated over views (mean, median or votes). Differences to the population are then combined into a score
(none, binary votes, or Cauchy-combined p-values).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from plmia.attacks.cauchy_sum import SignedLog, cauchy_mean, cauchy_mean_exact
from plmia.attacks.view import AttackView
from plmia.data.arrays import Counts, FloatArray, IntArray
from plmia.data.designs import counts_depend_on
from plmia.errors import AttackError, PopulationError
from plmia.numerics import count_below

QUERIES_PER_DRAW = 1024


@dataclass(frozen=True)
class Comparison:
    """Some queries, and one population [population] for all of them or one [queries, population] for each.

    A query in a shared population is not compared with itself: its difference to itself is 0, and ``size`` does not
    count it.
    """

    queries: IntArray
    population: IntArray

    @property
    def shared(self) -> bool:
        """Whether all queries have the same population."""
        return self.population.ndim == 1

    def size(self) -> npt.NDArray[np.int32]:
        """Return the number of population records [queries] that each query is compared with."""
        size = np.full(len(self.queries), self.population.shape[-1], dtype=np.int32)
        if self.shared and len(size):
            known = np.zeros(1 + max(self.queries.max(), self.population.max()), bool)
            known[self.population] = True
            size -= known[self.queries]
        if len(size) and size.min() < 1:
            raise PopulationError(
                "a query has 0 population records to be compared with, 1 is needed: give more known non-members"
            )
        return size


def require_like_queries(view: AttackView) -> None:
    """Raise `PopulationError` if population records have other numbers of references than the other records."""
    # Statistics depend on these numbers (with fewer references they vary more), so p-values would be wrong.
    known = np.zeros(view.n_points, bool)
    known[view.population] = True
    n_in = view.references.n_in
    if not counts_depend_on(known, n_in):
        return
    side, counts = ("OUT", len(view.references) - n_in) if view.mode == "offline" else ("IN", n_in)
    theirs, others = counts[known], counts[~known]
    raise PopulationError(
        f"the population has {theirs.mean():.4g} {side} references per record, other records have {others.mean():.4g}, "
        "so p-values would be wrong: take a population with the same numbers of references"
    )


@runtime_checkable
class PopulationPolicy(Protocol):
    """Choice of the population of each query. Subclass it for the defaults."""

    shared: ClassVar[bool] = False
    """Whether every comparison has one population for all its queries, so that the fast path applies."""

    @abstractmethod
    def comparisons(self, view: AttackView, rng: np.random.Generator) -> Iterator[Comparison]:
        """Yield comparisons that score every record of ``view`` exactly once."""


def _everyone(view: AttackView) -> IntArray:
    if len(view.population) < 2:
        raise PopulationError(
            f"the population has {len(view.population)} record(s), 2 are needed: give more known non-members"
        )
    return np.asarray(view.population, dtype=np.intp)


@dataclass(frozen=True)
class SharedPopulation(PopulationPolicy):
    """One population for all queries (the default)."""

    shared: ClassVar[bool] = True

    def comparisons(self, view: AttackView, rng: np.random.Generator) -> Iterator[Comparison]:
        """Yield one comparison."""
        del rng
        yield Comparison(np.arange(view.n_points), _everyone(view))


@dataclass(frozen=True)
class WithinClass(PopulationPolicy):
    """The population records of the query's own class."""

    shared: ClassVar[bool] = True

    def comparisons(self, view: AttackView, rng: np.random.Generator) -> Iterator[Comparison]:
        """Yield one comparison per class."""
        del rng
        if view.labels is None:
            raise PopulationError(
                "calibration within a class needs a label of each judged record: store `labels` [records] with the "
                "signals, and judge records where they form groups"
            )
        population = _everyone(view)
        present: Counts = np.unique(view.labels)
        for label in present:
            own = population[view.labels[population] == label]
            if len(own) < 3:
                raise PopulationError(
                    f"class {label} has {len(own)} population record(s), 3 are needed: enlarge the population"
                )
            yield Comparison(np.flatnonzero(view.labels == label), own)


@dataclass(frozen=True)
class FreshPopulation(PopulationPolicy):
    """A new random population of ``size`` known non-members for each query (Algorithm `alg:plmia`, line 1)."""

    size: int

    def comparisons(self, view: AttackView, rng: np.random.Generator) -> Iterator[Comparison]:
        """Yield comparisons of some queries each."""
        pool = _everyone(view)
        if not 2 <= self.size < len(pool):
            raise PopulationError(
                f"a population of {self.size} per query was requested, from 2 to {len(pool) - 1} can be drawn: "
                "change the size or give more non-members"
            )
        place = np.full(view.n_points, len(pool), dtype=np.intp)
        place[pool] = np.arange(len(pool))
        for start in range(0, view.n_points, QUERIES_PER_DRAW):
            queries = np.arange(start, min(start + QUERIES_PER_DRAW, view.n_points))
            yield Comparison(queries, pool[np.stack([self._draw(len(pool), int(place[q]), rng) for q in queries])])

    def _draw(self, n: int, own: int, rng: np.random.Generator) -> IntArray:
        """Draw ``size`` of 0..n-1 without ``own`` (``own`` = n: it is not among them)."""
        others = n - 1 if own < n else n
        chosen = rng.choice(others, self.size, replace=False, shuffle=False)
        return chosen + (chosen >= own)


PAIRS_PER_BLOCK = 1 << 20


@runtime_checkable
class ViewAggregation(Protocol):
    """Aggregation of the views of a record, and of the differences of two records. Subclass it for the defaults."""

    linear: ClassVar[bool] = False
    """Whether ``pairs(a - b) == points(a) - points(b)``: pairs then need not be formed one by one."""
    needs_population: ClassVar[bool] = False
    """Whether only pairs of records have a meaning, so that a calibration is needed."""
    largest_difference: ClassVar[float] = math.inf
    """Upper bound of what ``pairs`` returns."""

    @abstractmethod
    def points(self, phi: FloatArray) -> FloatArray:
        """Return one value per record [n] from phi [n, views]."""

    @abstractmethod
    def pairs(self, differences: FloatArray) -> FloatArray:
        """Return one value per pair from differences [views, ...]; 0 for a record and itself."""


@dataclass(frozen=True)
class MeanOfViews(ViewAggregation):
    """The mean; it commutes with the difference."""

    linear: ClassVar[bool] = True

    def points(self, phi: FloatArray) -> FloatArray:
        """Return the mean over views [n]."""
        return np.asarray(phi.mean(axis=1) if phi.shape[1] > 1 else phi[:, 0])

    def pairs(self, differences: FloatArray) -> FloatArray:
        """Return the mean over views."""
        return np.asarray(differences.mean(axis=0))


@dataclass(frozen=True)
class MedianOfViews(ViewAggregation):
    """The median of the differences; it does not commute with the difference."""

    def points(self, phi: FloatArray) -> FloatArray:
        """Return the median over views [n]."""
        return np.median(phi, axis=1)

    def pairs(self, differences: FloatArray) -> FloatArray:
        """Return the median over views."""
        ordered, views = _sorted_views(differences), len(differences)
        return np.asarray((ordered[(views - 1) // 2] + ordered[views // 2]) / 2)


@dataclass(frozen=True)
class VotesOfViews(ViewAggregation):
    """The share of views in which the query has the larger statistic, ties counted half, minus one half."""

    needs_population: ClassVar[bool] = True
    largest_difference: ClassVar[float] = 0.5

    def points(self, phi: FloatArray) -> FloatArray:
        """Return the mean over views [n]: a single record has no votes."""
        return np.asarray(phi.mean(axis=1))

    def pairs(self, differences: FloatArray) -> FloatArray:
        """Return the share of positive differences minus one half."""
        return np.asarray(np.sign(differences).mean(axis=0) / 2)


def _sorted_views(differences: FloatArray) -> FloatArray:
    """Sort over the few views by exchanging whole arrays, which beats `numpy.sort` over a short axis."""
    rows = list(differences)
    for last in range(len(rows) - 1, 0, -1):
        for i in range(last):
            rows[i], rows[i + 1] = np.minimum(rows[i], rows[i + 1]), np.maximum(rows[i], rows[i + 1])
    return np.stack(rows)


@runtime_checkable
class Calibration(Protocol):
    """Combination of a query's differences to its population into a score. Subclass it for the defaults.

    A `SignedLog` carries a combined p-value; scores that are plain arrays have the conformal p-value only.
    """

    compares: ClassVar[bool] = True
    """Whether the score depends on the population. If not, only ``shared`` is called, with an empty population."""
    scaled: ClassVar[bool] = True
    """Whether ``pairwise`` reads ``null_std``. If not, it is not computed and the population may be constant."""

    @property
    def threshold(self) -> float:
        """Difference that a pair must exceed to change the score."""
        return 0.0

    def explain_constant(self, score: float) -> str:
        """Return why all records may have this ``score``, for a message; empty if nothing is known."""
        del score
        return ""

    @abstractmethod
    def shared(self, query: FloatArray, population: FloatArray, size: Counts) -> FloatArray | SignedLog:
        """Return scores [n] of values [n] against one population [z] of which ``size`` [n] count: the fast path."""

    @abstractmethod
    def pairwise(self, differences: FloatArray, size: Counts, null_std: FloatArray) -> FloatArray | SignedLog:
        """Return scores [n] from differences [n, z] whose standard deviation among non-members is ``null_std``."""


@dataclass(frozen=True)
class NoCalibration(Calibration):
    """The score is the statistic itself (LiRA, Attack-R)."""

    compares: ClassVar[bool] = False

    def shared(self, query: FloatArray, population: FloatArray, size: Counts) -> FloatArray:
        """Return the statistic."""
        del population, size
        return query

    def pairwise(self, differences: FloatArray, size: Counts, null_std: FloatArray) -> FloatArray:
        """Refuse: without calibration there are no pairs."""
        del differences, size, null_std
        raise AttackError("an attack without calibration compares no pairs: take the mean or the median of views")


@dataclass(frozen=True)
class BinaryVote(Calibration):
    """Share of the population that the query exceeds by more than gamma (`eq:binary_calib`).

    Parameters
    ----------
    gamma : float
        Threshold on the difference of two statistics, at least 0. RMIA states it for a ratio: log(2) here is 2 there.
    """

    gamma: float = 0.0
    scaled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < math.inf:
            raise AttackError(f"gamma = {self.gamma} must be finite and at least 0: take 0, or log 2 as RMIA does")

    @property
    def threshold(self) -> float:
        """Gamma."""
        return self.gamma

    def explain_constant(self, score: float) -> str:
        """Name gamma if it is too large for any vote."""
        return f"no vote passes gamma = {math.exp(self.gamma):g}" if self.gamma > 0 and score == 0 else ""

    def shared(self, query: FloatArray, population: FloatArray, size: Counts) -> FloatArray:
        """Return the share of wins [n], by sorting."""
        return count_below(population, query - self.gamma) / size

    def pairwise(self, differences: FloatArray, size: Counts, null_std: FloatArray) -> FloatArray:
        """Return the share of wins [n]."""
        del null_std
        return np.asarray((differences > self.gamma).sum(axis=1) / size)


@dataclass(frozen=True)
class CauchyCombination(Calibration):
    """Mean of the Cauchy-transformed one-sided pairwise p-values (`eq:p_value`, `eq:cauchy_cali`)."""

    def shared(self, query: FloatArray, population: FloatArray, size: Counts) -> SignedLog:
        """Return combined scores [n] at a cost linear in queries plus population."""
        scale = null_deviation(population[:, None], MeanOfViews())
        combined = cauchy_mean(query / scale, population / scale)
        # A query in the population adds tan(0) = 0 to the sum and is not counted.
        np.add(combined.log_abs, np.log(len(population) / size), out=combined.log_abs)
        return combined

    def pairwise(self, differences: FloatArray, size: Counts, null_std: FloatArray) -> SignedLog:
        """Return combined scores [n], pair by pair."""
        return cauchy_mean_exact(differences / null_std, size)


def null_deviation(phi: FloatArray, views: ViewAggregation) -> float:
    """Return hat sigma_Delta, the standard deviation over pairs of distinct records, from phi [population, views]."""
    # For a linear aggregation that is sqrt(2) std(phi_z).
    n = len(phi)
    if views.linear:
        summary = views.points(phi)
        # The standard deviation of equal values need not be 0: their mean is rounded.
        deviation = float(np.sqrt(2) * summary.std(ddof=1)) if np.ptp(summary) > 0 else 0.0
    else:
        everyone = np.arange(n)
        squares = sum(float(np.square(pairs).sum()) for _, pairs in in_blocks(phi, everyone, everyone, views))
        deviation = math.sqrt(squares / (n * (n - 1)))
    if not deviation > 0:
        raise PopulationError(
            f"all {n} population records have the same statistic, so differences have no scale: "
            "check the signals, or give a larger population"
        )
    return deviation


def in_blocks(
    phi: FloatArray, queries: IntArray, population: IntArray, views: ViewAggregation
) -> Iterator[tuple[slice, FloatArray]]:
    """Yield some queries at a time and their differences [n, population], aggregated over views, in bounded memory."""
    # ``population`` is [population] or [queries, population].
    height = max(1, PAIRS_PER_BLOCK // (population.shape[-1] * phi.shape[1]))
    columns = np.ascontiguousarray(phi.T)
    for start in range(0, len(queries), height):
        rows = slice(start, min(start + height, len(queries)))
        partners = population if population.ndim == 1 else population[rows]
        theirs = columns[:, partners].reshape(len(columns), -1, partners.shape[-1])
        yield rows, views.pairs(columns[:, queries[rows], None] - theirs)


def pairwise_scores(
    calibration: Calibration,
    views: ViewAggregation,
    phi: FloatArray,
    queries: IntArray,
    population: IntArray,
    size: Counts,
    tick: Callable[[int], None],
) -> FloatArray | SignedLog:
    """Return scores [queries] pair by pair, where the fast path does not apply."""
    shared = population.ndim == 1
    std = np.array([null_deviation(phi[population], views)]) if shared and calibration.scaled else np.ones(1)
    parts: list[FloatArray | SignedLog] = []
    for rows, differences in in_blocks(phi, queries, population, views):
        if calibration.scaled and not shared:
            std = np.array([[null_deviation(phi[z], views)] for z in population[rows]])
        parts.append(calibration.pairwise(differences, size[rows], std))
        tick(rows.stop - rows.start)
    if isinstance(parts[0], SignedLog):
        return SignedLog(*(np.concatenate(side) for side in zip(*parts, strict=True)))
    return np.concatenate(parts)
