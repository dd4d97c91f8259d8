"""What an attack gets to see, and what it must not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from plmia.attacks.moments import FloatArray, IntArray, Powers, Probabilities, References, Sums, sum_over
from plmia.errors import AttackError, PopulationError, SignalsError

Mode = Literal["online", "offline"]


@dataclass(frozen=True)
class KnownSums:
    """Sums over a view's references that were computed beforehand, for many targets at once.

    Parameters
    ----------
    centre : float array [points, views]
        What was subtracted from the signals before they were summed.
    confidence, probability : Sums, optional
        Sums of `Powers` and of `Probabilities`.
    """

    centre: npt.NDArray[np.floating]
    confidence: Sums | None = None
    probability: Sums | None = None


def amid(references: References) -> npt.NDArray[np.floating]:
    """Return a value [points, views] amid the signals, to subtract before squaring."""
    first, last = (references.signals[row] for row in references.rows[[0, -1]])
    work = np.float64 if first.dtype == np.float64 else np.float32
    middle: npt.NDArray[np.floating] = (first.astype(work) + last.astype(work)) / 2
    return middle


def first_out(references: References) -> npt.NDArray[np.floating]:
    """Return the signal [points, views] of the first OUT reference of each point, to subtract before squaring.

    It is one of the OUT signals, so their variance keeps its digits whatever the others are; and offline nothing of
    the IN signals may reach a score, not even by way of rounding (of one target; many targets share a centre).
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
class AttackView:
    """All that an attack may know of one target.

    There is no field for the target's membership, so no attack can read the answer; `Truth` holds it, and only
    metrics and diagnostics take that.

    Parameters
    ----------
    target : float64 array [points, views]
        The target's logit-scaled true-label confidence.
    references : References
        The reference models' signals and membership.
    population : int array [population]
        Points known not to be members of the target (held-out data): the population Z of the paper. P-values hold if
        they are otherwise like the queries. Scoring refuses a population with other numbers of references.
    labels : int array [points], optional
        Class of each point; needed only by calibration within a class.
    mode : {"online", "offline"}
        Offline, statistics use OUT references alone (`sec:exp_offline`).
    known : KnownSums, optional
        Sums over the references, where they are known already.
    """

    target: FloatArray
    references: References
    population: IntArray
    labels: npt.NDArray[np.integer] | None = None
    mode: Mode = "online"
    known: KnownSums | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise AttackError(f"there is no mode {self.mode!r}: take {' or '.join(get_args(Mode))}")
        expected = (self.references.n_points, self.references.n_views)
        if self.target.shape != expected:
            raise SignalsError(
                f"the target's signals have shape {self.target.shape}, the references' {expected} [points, views]: "
                "query the target on the same points and views"
            )
        z = self.population
        if len(z) and (z.min() < 0 or z.max() >= self.n_points or len(np.unique(z)) < len(z)):
            raise PopulationError(
                f"population indices must be distinct and from 0 to {self.n_points - 1}, "
                f"they run from {z.min()} to {z.max()}: "
                "draw them without replacement from the points"
            )

    @property
    def n_points(self) -> int:
        """How many points there are, population included."""
        return int(self.target.shape[0])

    @property
    def n_views(self) -> int:
        """How many views each point has."""
        return int(self.target.shape[1])

    @cached_property
    def centre(self) -> npt.NDArray[np.floating]:
        """What is subtracted from signals [points, views] before they are summed."""
        return self.known.centre if self.known else first_out(self.references)

    @cached_property
    def confidence_sums(self) -> Sums:
        """Sums of conf - centre and its square over IN and OUT references."""
        if self.known and self.known.confidence:
            return self.known.confidence
        return sum_over(self.references, Powers(self.centre))

    def probability_sums_at(self, points: slice) -> Sums:
        """Sums of p and 1 - p over references at some points, not kept; online possibly all of them as if OUT."""
        if self.known and self.known.probability:
            return self.known.probability.part(points)
        return sum_over(self.references.part(points), Probabilities(), self.mode == "offline")

    def forget(self, sums: Collection[str]) -> None:
        """Free the sums that are named, if they are kept; asked for again, they are computed again."""
        for name in sums:
            self.__dict__.pop(f"{name}_sums", None)


@dataclass(frozen=True)
class Truth:
    """The answer: only metrics, diagnostics and the report may see it.

    Parameters
    ----------
    members : bool array [points]
        Which points the target trained on.
    queries : int array [queries]
        The points that are evaluated; disjoint from the population.
    """

    members: npt.NDArray[np.bool_]
    queries: IntArray
