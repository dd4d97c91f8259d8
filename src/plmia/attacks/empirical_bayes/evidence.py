"""Evidence about points: counts, means and variances of reference signals, in the coordinates of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from scipy.special import logsumexp

from plmia.attacks.view import Block, Powers, References, Sums, first_out
from plmia.data import memory
from plmia.data.arrays import BoolArray, FloatArray, Floats, IntArray
from plmia.numerics import log_sigmoid

# First index of arrays with two sides.
IN, OUT = 0, 1
# Where a squared mean exceeds the variance by this factor, float32 sums leave the variance less than two digits.
CANCELLATION = 1e5
# Number of signals that are searched for repeated values; a value with this share of them is an atom.
SIGNALS_FOR_ATOMS = 1 << 14
MIN_ATOM_SHARE = 0.005


@dataclass(frozen=True)
class Evidence:
    """Counts, means and variances of IN and OUT references."""

    n: FloatArray  # [2, points]
    mean: FloatArray  # [2, points, coordinates]; arbitrary without references
    variance: FloatArray  # [2, points, coordinates]; unbiased; positive but arbitrary with fewer than two references
    n_pairs: int = 0  # complementary pairs: each has one IN and one OUT model at every point

    @property
    def freedom(self) -> FloatArray:
        """Degrees of freedom [2, points] of a variance in one coordinate."""
        return np.asarray(np.maximum(self.n - 1, 0.0))

    def at(self, points: BoolArray) -> Evidence:
        """Return the evidence about some of the points."""
        return Evidence(self.n[:, points], self.mean[:, points], self.variance[:, points], self.n_pairs)

    def out_alone(self) -> Evidence:
        """Return the evidence without IN references."""
        n, variance = np.zeros_like(self.n), np.ones_like(self.variance)
        n[OUT], variance[OUT] = self.n[OUT], self.variance[OUT]
        return Evidence(n, self.mean, variance)


@dataclass(frozen=True)
class Grain:
    """Resolution of signals that repeat a few values, such as votes of a forest or clipped probabilities.

    References that agree on an atom (a value that many signals share) have no variance; all that is known is that they
    lie in its cell. The cell is as wide as the interval beside the atom that holds half as many signals. On a grid that
    is the step; at the end of a scale it is what the signals there would fill if the scale continued.
    ``variance`` [places] is that of a cell at the places ``at``, linear in between, 0 away from atoms.
    """

    at: FloatArray
    variance: FloatArray

    @classmethod
    def of(cls, signals: FloatArray) -> Grain | None:
        """Return the grain of ``signals``; None if they have no atoms."""
        ordered = np.sort(signals.ravel()[:: -(-signals.size // SIGNALS_FOR_ATOMS)])
        first = np.flatnonzero(np.diff(ordered, prepend=-np.inf))
        count = np.diff(first, append=len(ordered))
        large = count >= max(MIN_ATOM_SHARE * len(ordered), 8)
        if not large.any():
            return None
        first, count = first[large], count[large]
        atoms, half, last = ordered[first], (count + 1) // 2, len(ordered) - 1
        below = np.where(first >= half, atoms - ordered[np.maximum(first - half, 0)], np.inf)
        beyond = first + count + half - 1
        above = np.where(beyond <= last, ordered[np.minimum(beyond, last)] - atoms, np.inf)
        width = np.minimum(np.minimum(below, above), ordered[last] - ordered[0])
        if not width.any():
            return None  # all signals are equal
        at = np.unique(np.concatenate([atoms - width, atoms, atoms + width]))
        near = np.maximum(1 - np.abs(at[:, None] - atoms) / width, 0.0)
        return cls(at, (near * width**2 / 12).max(axis=1))


@dataclass(frozen=True)
class Coordinates:
    """Transformation of signals before they are modelled."""

    bend: float  # signals become asinh(conf / bend); infinite for no change
    rotation: FloatArray  # [views, coordinates]: orthonormal columns, one per coordinate that is kept
    grain: Grain | None = None  # resolution of the bent signals, if they repeat values

    @property
    def plain(self) -> bool:
        """Whether signals stay as they are."""
        return np.isinf(self.bend) and len(self.rotation) == 1

    def of(self, conf: Floats) -> FloatArray:
        """Return signals [..., views] in these coordinates [..., coordinates]."""
        bent: FloatArray = self.bent(conf.astype(np.float64)).astype(np.float64, copy=False)
        return bent @ self.rotation if len(self.rotation) > 1 else bent

    def bent(self, conf: Floats) -> Floats:
        """Return bent signals."""
        return conf if np.isinf(self.bend) else np.arcsinh(conf / conf.dtype.type(self.bend))

    def log_slope(self, conf: Floats) -> FloatArray:
        """Return the log slope of the bend at signals [..., views], averaged over views [...]."""
        if np.isinf(self.bend):
            return np.zeros(conf.shape[:-1])
        slope: FloatArray = np.log(np.hypot(conf.astype(np.float64), self.bend)).mean(axis=-1)
        return -slope

    def hidden(self, mean: FloatArray, size: Floats, stored: np.dtype[np.floating]) -> FloatArray:
        """Return the variance, broadcasts to [2, points, coordinates], that stored signals do not show."""
        # ``mean`` has that shape; ``size`` [points, views] is the size of the signals, ``stored`` their type.
        rounded = rounding(size, stored, self.bend)[:, None]
        if self.grain is None:
            return rounded
        cells = np.interp(mean @ self.rotation.T, self.grain.at, self.grain.variance)
        coarse: FloatArray = cells @ self.rotation**2
        return coarse + rounded


@dataclass(frozen=True)
class RotatedPowers(Powers):
    """Deviations from the centre in other coordinates, and their squares; the centre is bent but not rotated."""

    coordinates: Coordinates

    def values(self, conf: Floats, points: slice, out: Floats) -> list[Floats]:
        """Return the deviations."""
        rotated, away = out
        if np.isinf(self.coordinates.bend):
            np.subtract(conf, self.centre[points], out=away)
        else:
            np.divide(conf, self.coordinates.bend, out=away, dtype=away.dtype)
            np.arcsinh(away, out=away)
            np.subtract(away, self.centre[points], out=away)
        rotation = self.coordinates.rotation.astype(away.dtype)
        n_views, n_kept = rotation.shape
        if n_views == 1:
            return [away]
        kept = rotated.reshape(-1)[: away.size // n_views * n_kept].reshape(-1, n_kept)
        if n_kept == 1:  # a matrix product rounds single columns differently from place to place
            np.einsum("ij,j->i", away.reshape(-1, n_views), rotation[:, 0], out=kept[:, 0])
        else:
            np.matmul(away.reshape(-1, n_views), rotation, out=kept)
        return [kept.reshape(*away.shape[:2], n_kept)]


def collect(references: References, coordinates: Coordinates, n_pairs: int) -> Evidence:
    """Return the evidence about all points of ``references``; no IN signal reaches the OUT side."""
    first = first_out(references)
    centre = coordinates.bent(first)
    sums = Sums.zeros(references.n_points, coordinates.rotation.shape[1])
    sums.add(references, RotatedPowers(centre, coordinates))
    rotated = centre.astype(np.float64) @ coordinates.rotation
    return replace(_evidence(references, coordinates, sums, rotated, first), n_pairs=n_pairs)


def collect_block(block: Block, coordinates: Coordinates, n_pairs: int) -> Evidence:
    """Return the evidence about a block of points, from the sums that statistics share where that is possible."""
    if not coordinates.plain:
        return collect(block.references, coordinates, n_pairs)
    centre = block.centre
    evidence = _evidence(block.references, coordinates, block.confidence_sums, centre.astype(np.float64), centre)
    return replace(evidence, n_pairs=n_pairs)


def _evidence(
    references: References, coordinates: Coordinates, sums: Sums, centre: FloatArray, size: Floats
) -> Evidence:
    """Return counts, means and variances from sums about a ``centre`` [points, coordinates]."""
    n = np.stack([sums.n_in, sums.n_out]).astype(np.float64)
    total, square = (np.stack([inside, out]) for inside, out in zip(sums.inside, sums.outside, strict=True))
    mean = total / np.maximum(n, 1)[:, :, None]
    square -= mean * total
    square /= np.maximum(n - 1, 1)[:, :, None]
    variance = np.maximum(square, 0.0, out=square)
    # Coordinate by coordinate: several times as fast as along so short an axis.
    lost = reduce(np.logical_or, np.moveaxis(variance * CANCELLATION < mean**2, 2, 0)) & (n > 1)
    mean += centre
    for points, conf, in_mask in references.at(np.flatnonzero(lost.any(axis=0))):
        exact = exact_evidence(coordinates.of(conf), in_mask)
        here = lost[:, points]
        mean[:, points] = np.where(here[:, :, None], exact.mean, mean[:, points])
        variance[:, points] = np.where(here[:, :, None], exact.variance, variance[:, points])
    variance += coordinates.hidden(mean, size, references.signals.dtype)
    return Evidence(n, mean, variance)


def exact_evidence(rotated: FloatArray, in_mask: BoolArray) -> Evidence:
    """Return the evidence from signals [references, points, coordinates], without the variance that they hide."""
    masks = np.stack([in_mask, ~in_mask]).astype(np.float64)
    n = masks.sum(axis=1)
    mean = np.einsum("srn,rnk->snk", masks, rotated) / np.maximum(n, 1)[:, :, None]
    squares = [np.einsum("rn,rnk->nk", mask, (rotated - at) ** 2) for mask, at in zip(masks, mean, strict=True)]
    return Evidence(n, mean, np.stack(squares) / np.maximum(n - 1, 1)[:, :, None])


def rounding(size: Floats, stored: np.dtype[np.floating], bend: float) -> FloatArray:
    """Return the variance [points] that storing signals of this ``size`` [points, views] adds: spacing^2 / 12."""
    # At least that at 1. It is far below any other spread, but references may agree to the last stored digit.
    most = np.finfo(stored).max / 2
    # Column by column: several times as fast as a maximum over so short an axis.
    largest = np.clip(reduce(np.maximum, np.abs(size).T), 1.0, most).astype(np.float64)
    variance: FloatArray = np.square(np.spacing(largest.astype(stored)), dtype=np.float64)
    variance /= 12
    return variance if np.isinf(bend) else variance / (bend**2 + largest**2)


def gather(references: References, points: IntArray) -> References:
    """Return the references at some points, copied."""
    signals = memory.gathered(references.signals, points, references.rows)
    return References(signals, np.arange(len(references)), memory.gathered(references.in_mask, points))


def pool_views(references: References) -> References:
    """Return one view per point: see `mean_probability`."""
    pooled = [mean_probability(references.signals[row]) for row in references.rows]
    signals = np.stack(pooled).astype(references.signals.dtype)
    return References(signals, np.arange(len(references)), references.in_mask)


def mean_probability(conf: Floats) -> FloatArray:
    """Return the logit-scaled confidence [points, 1] of the mean probability over views [points, views]."""
    log_p, log_rest = (logsumexp(log_sigmoid(side.astype(np.float64)), axis=1, keepdims=True) for side in (conf, -conf))
    return np.asarray(log_p - log_rest)


def find_pairs(in_mask: BoolArray) -> list[IntArray]:
    """Return references that are held out together: complementary pairs [2], then single ones [1]."""
    # Their order follows from membership alone, not from the order of the references.
    rows = [row.tobytes() for row in np.packbits(in_mask, axis=1)]
    complements = [row.tobytes() for row in np.packbits(~in_mask, axis=1)]
    pairs: list[IntArray] = []
    single: dict[bytes, list[int]] = {}
    for i in sorted(range(len(rows)), key=rows.__getitem__):
        partners = single.get(complements[i])
        if partners:
            pairs.append(np.array([partners.pop(), i]))
        else:
            single.setdefault(rows[i], []).append(i)
    return pairs + [np.array([i]) for alone in single.values() for i in alone]


def evenly(values: IntArray, most: int) -> IntArray:
    """Return at most ``most`` of the ``values``, evenly spaced."""
    if len(values) <= most:
        return values
    return values[np.linspace(0, len(values) - 1, most).astype(np.intp)]
