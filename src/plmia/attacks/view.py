"""Input of an attack: what it may know about one target, and a block of its points."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from plmia.attacks.moments import Feature, Powers, Probabilities, References, SideMoments, Sums, side_moments, sum_over
from plmia.data.arrays import BoolArray, FloatArray, IntArray, Labels
from plmia.errors import AttackError, PopulationError, SignalsError

Mode = Literal["online", "offline"]
SumName = Literal["confidence", "probability"]
"""Sums over references that statistics share: of `Powers` and of `Probabilities`."""

# Points that are evaluated at a time. Empirical Bayes of several views multiplies matrices, whose rounding depends on
# their size: another value changes its scores by up to 1e-8.
POINTS_PER_BLOCK = 1 << 13


@dataclass(frozen=True)
class KnownSums:
    """Sums over a view's references at all points, computed once for several targets or for a fit.

    Parameters
    ----------
    centre : float array [points, views]
        Value subtracted from the signals before they are summed.
    sums : mapping from "confidence" or "probability" to Sums
        Sums of `Powers` and of `Probabilities`, as far as they are known.
    """

    centre: npt.NDArray[np.floating]
    sums: Mapping[SumName, Sums] = field(default_factory=dict)

    def part(self, points: slice) -> KnownSums:
        """Return the sums at some points."""
        return KnownSums(self.centre[points], {name: sums.part(points) for name, sums in self.sums.items()})

    def with_sums(self, references: References, names: Iterable[SumName]) -> KnownSums:
        """Return these sums and the named ones over ``references``, computed unless they are known."""
        missing = [name for name in names if name not in self.sums]
        more = {name: sum_over(references, feature_of(name, self.centre)) for name in missing}
        return KnownSums(self.centre, {**self.sums, **more})


def feature_of(name: SumName, centre: npt.NDArray[np.floating]) -> Feature:
    """Return the feature whose sums have this name."""
    return Powers(centre) if name == "confidence" else Probabilities()


def midpoint(references: References) -> npt.NDArray[np.floating]:
    """Return the mean signal [points, views] of the first and last reference, to subtract before squaring."""
    first, last = (references.signals[row] for row in references.rows[[0, -1]])
    work = np.float64 if first.dtype == np.float64 else np.float32
    middle: npt.NDArray[np.floating] = (first.astype(work) + last.astype(work)) / 2
    return middle


def first_out(references: References) -> npt.NDArray[np.floating]:
    """Return the signal [points, views] of the first OUT reference of each point, to subtract before squaring.

    It is one of the OUT signals, so the OUT variance keeps its digits. Offline, no IN signal may reach a score, not
    even through rounding. (Many targets share one centre; that is the exception.)
    """
    work = np.float64 if references.signals.dtype == np.float64 else np.float32
    centre = np.zeros((references.n_points, references.n_views), work)
    left = np.ones(references.n_points, bool)
    for row, member in zip(references.rows, references.in_mask, strict=True):
        np.copyto(centre, references.signals[row], where=(left & ~member)[:, None])
        left &= member
        if not left.any():
            break
    return centre


@dataclass(frozen=True)
class Block:
    """Some consecutive points of a view, with the sums that statistics share.

    Sums are computed on first use and freed with the block.

    Parameters
    ----------
    points : slice
        Position of these points in the view.
    target : float64 array [n, views]
        The target's signals.
    references : References
        The reference models at these points.
    mode : {"online", "offline"}
        Offline, statistics use OUT references only.
    known : KnownSums, optional
        Sums at these points that are already known.
    """

    points: slice
    target: FloatArray
    references: References
    mode: Mode
    known: KnownSums | None = None

    @property
    def n_points(self) -> int:
        """Number of points."""
        return int(self.target.shape[0])

    @property
    def n_views(self) -> int:
        """Number of views per point."""
        return int(self.target.shape[1])

    @cached_property
    def centre(self) -> npt.NDArray[np.floating]:
        """Value [n, views] subtracted from signals before they are summed."""
        return self.known.centre if self.known else first_out(self.references)

    @cached_property
    def confidence_sums(self) -> Sums:
        """Sums of conf - centre and of its square over IN and over OUT references."""
        if self.known and "confidence" in self.known.sums:
            return self.known.sums["confidence"]
        return sum_over(self.references, Powers(self.centre))

    @cached_property
    def out_moments(self) -> SideMoments:
        """Counts, means and variances of OUT signals."""
        return side_moments(self.references, self.confidence_sums, self.centre, inside=False)

    @cached_property
    def in_moments(self) -> SideMoments:
        """Counts, means and variances of IN signals."""
        return side_moments(self.references, self.confidence_sums, self.centre, inside=True)

    @cached_property
    def probability_sums(self) -> Sums:
        """Sums of p and 1 - p over references; online all references may be counted as OUT."""
        if self.known and "probability" in self.known.sums:
            return self.known.sums["probability"]
        return sum_over(self.references, Probabilities(), self.mode == "offline")


@dataclass(frozen=True)
class AttackView:
    """Everything that an attack may know about one target.

    There is no field for the target's membership, so no attack can read the answer. `Truth` holds it, and only
    evaluation and report accept that.

    Parameters
    ----------
    target : float64 array [points, views]
        The target's logit-scaled true-label confidence.
    references : References
        The reference models' signals and membership.
    population : int array [population]
        Known non-members of the target (held-out data): the population Z of the paper. P-values are valid if these
        points are otherwise like the queries. Scoring refuses a population with other numbers of references.
    labels : int array [points], optional
        Class of each point; needed only for calibration within a class.
    mode : {"online", "offline"}
        Offline, statistics use OUT references only (`sec:exp_offline`).
    known : KnownSums, optional
        Sums over the references that are already known.
    """

    target: FloatArray
    references: References
    population: IntArray
    labels: Labels | None = None
    mode: Mode = "online"
    known: KnownSums | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise AttackError(f"mode {self.mode!r} is unknown: take {' or '.join(get_args(Mode))}")
        expected = (self.references.n_points, self.references.n_views)
        if self.target.shape != expected:
            raise SignalsError(
                f"the target's signals have shape {self.target.shape}, the references' {expected} [points, views]: "
                "query the target on the same points and views"
            )
        z = self.population
        if len(z) and (z.min() < 0 or z.max() >= self.n_points or np.bincount(z).max() > 1):
            raise PopulationError(
                f"population indices must be distinct and from 0 to {self.n_points - 1}, "
                f"they run from {z.min()} to {z.max()}: draw them without replacement from the points"
            )

    @property
    def n_points(self) -> int:
        """Number of points, population included."""
        return int(self.target.shape[0])

    @property
    def n_views(self) -> int:
        """Number of views per point."""
        return int(self.target.shape[1])

    def block(self, points: slice) -> Block:
        """Return some consecutive points."""
        known = self.known and self.known.part(points)
        return Block(points, self.target[points], self.references.part(points), self.mode, known)

    def blocks(self) -> Iterator[Block]:
        """Yield all points in order, some at a time."""
        for start in range(0, self.n_points, POINTS_PER_BLOCK):
            yield self.block(slice(start, min(start + POINTS_PER_BLOCK, self.n_points)))

    def whole(self) -> Block:
        """Return all points as one block."""
        return self.block(slice(0, self.n_points))

    def with_sums(self, names: Collection[SumName]) -> AttackView:
        """Return the same view with the named sums at all points, computed unless they are known."""
        if not names:
            return self
        known = self.known or KnownSums(first_out(self.references))
        return replace(self, known=known.with_sums(self.references, names))


@dataclass(frozen=True)
class Truth:
    """The answer: only metrics, diagnostics and the report may see it.

    Parameters
    ----------
    members : bool array [points]
        Points that the target trained on.
    queries : int array [queries]
        Evaluated points; disjoint from the population.
    """

    members: BoolArray
    queries: IntArray
