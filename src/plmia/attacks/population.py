"""Population policies: the points that a query is compared with. A query is never in its own population."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from plmia.attacks.view import AttackView
from plmia.data.arrays import IntArray
from plmia.data.designs import counts_depend_on
from plmia.errors import PopulationError

QUERIES_PER_DRAW = 1024


@dataclass(frozen=True)
class Comparison:
    """Some queries and the population they are compared with.

    Parameters
    ----------
    queries : int array [queries]
        Points to be scored.
    population : int array [population] or [queries, population]
        One population for all these queries, or one for each. A query in a shared population is not compared with
        itself: its difference to itself is 0, and ``size`` does not count it.
    """

    queries: IntArray
    population: IntArray

    @property
    def shared(self) -> bool:
        """Whether all queries have the same population."""
        return self.population.ndim == 1

    def size(self) -> npt.NDArray[np.int32]:
        """Return the number of population points [queries] that each query is compared with."""
        size = np.full(len(self.queries), self.population.shape[-1], dtype=np.int32)
        if self.shared and len(size):
            known = np.zeros(1 + max(self.queries.max(), self.population.max()), bool)
            known[self.population] = True
            size -= known[self.queries]
        if len(size) and size.min() < 1:
            raise PopulationError(
                "a query has 0 population points to be compared with, 1 is needed: give more known non-members"
            )
        return size


def require_like_queries(view: AttackView) -> None:
    """Raise `PopulationError` if population points have other numbers of references than the other points.

    Statistics depend on these numbers (with fewer references they vary more), so p-values would be wrong.
    """
    known = np.zeros(view.n_points, bool)
    known[view.population] = True
    n_in = view.references.n_in
    if not counts_depend_on(known, n_in):
        return
    side, counts = ("OUT", len(view.references) - n_in) if view.mode == "offline" else ("IN", n_in)
    theirs, others = counts[known], counts[~known]
    raise PopulationError(
        f"the population has {theirs.mean():.4g} {side} references per point, other points have {others.mean():.4g}, "
        "so p-values would be wrong: take a population with the same numbers of references"
    )


@runtime_checkable
class PopulationPolicy(Protocol):
    """Choice of the population of each query. Subclass it for the defaults."""

    shared: ClassVar[bool] = False
    """Whether every comparison has one population for all its queries, so that the fast path applies."""

    @abstractmethod
    def comparisons(self, view: AttackView, rng: np.random.Generator) -> Iterator[Comparison]:
        """Yield comparisons that score every point of ``view`` exactly once."""


def _everyone(view: AttackView) -> IntArray:
    if len(view.population) < 2:
        raise PopulationError(
            f"the population has {len(view.population)} point(s), 2 are needed: give more known non-members"
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
    """The population points of the query's own class."""

    shared: ClassVar[bool] = True

    def comparisons(self, view: AttackView, rng: np.random.Generator) -> Iterator[Comparison]:
        """Yield one comparison per class."""
        del rng
        if view.labels is None:
            raise PopulationError("calibration within a class needs labels: store `labels` [points] with the signals")
        population = _everyone(view)
        present: npt.NDArray[np.integer] = np.unique(view.labels)
        for label in present:
            own = population[view.labels[population] == label]
            if len(own) < 3:
                raise PopulationError(
                    f"class {label} has {len(own)} population point(s), 3 are needed: enlarge the population"
                )
            yield Comparison(np.flatnonzero(view.labels == label), own)


@dataclass(frozen=True)
class FreshPopulation(PopulationPolicy):
    """A new random population for each query (Algorithm `alg:plmia`, line 1), drawn without replacement.

    Parameters
    ----------
    size : int
        Number of known non-members that each query is compared with.
    """

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
