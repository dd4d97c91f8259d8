"""Sums over reference models, apart for IN and OUT, in one cheap pass over the signals.

Everything that the moment-based statistics need is a sum over models of a function of one signal, so the sums of two
disjoint sets of models add up. That is what makes many targets cheap: `leave_one_out` never subtracts (no
cancellation, and nothing of the left-out models ever touches the result) and still costs only log(targets) passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from plmia.data.arrays import FloatArray as FloatArray
from plmia.data.arrays import IntArray as IntArray

# Thirty-two float32 terms lose at most one digit; they are then added to a float64 total. The block keeps them in
# the second-level cache. (Even, so that pairs stay together; at most 127, so that counts fit a byte.)
ROWS_PER_FLUSH = 32
CELLS_PER_BLOCK = 1 << 12
# What is not cheap enough for that works on blocks of this many signals (1 MiB of float64).
CELLS_IN_MEMORY = 1 << 17


@dataclass(frozen=True)
class References:
    """Signals of reference models, and which points they trained on.

    Parameters
    ----------
    signals : float array [models, points, views]
        Logit-scaled true-label confidence of all models; only ``rows`` are read.
    rows : int array [references]
        Which of the models are references.
    in_mask : bool array [references, points]
        True where the reference trained on the point (IN), False where not (OUT).
    """

    signals: npt.NDArray[np.floating]
    rows: IntArray
    in_mask: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_points(self) -> int:
        """How many points the signals have."""
        return int(self.signals.shape[1])

    @property
    def n_views(self) -> int:
        """How many views the signals have."""
        return int(self.signals.shape[2])

    @cached_property
    def paired(self) -> bool:
        """Whether references 2k and 2k + 1 trained on complementary sets, for all k."""
        even = len(self) % 2 == 0
        return even and all(bool(np.all(a != b)) for a, b in zip(self.in_mask[0::2], self.in_mask[1::2], strict=True))

    @cached_property
    def n_in(self) -> npt.NDArray[np.int32]:
        """How many references trained on each point [points]."""
        total = np.zeros(self.in_mask.shape[1], np.int32)
        for first in range(0, len(self), ROWS_PER_FLUSH):
            total += count(np.ascontiguousarray(self.in_mask[first : first + ROWS_PER_FLUSH]))
        return total

    def first(self, n: int) -> References:
        """The first ``n`` references."""
        return References(self.signals, self.rows[:n], self.in_mask[:n])

    def balanced(
        self,
        n_in: int | npt.NDArray[np.integer],
        n_out: int | npt.NDArray[np.integer],
        rng: np.random.Generator,
        most: int | None = None,
    ) -> References:
        """Keep ``n_in`` IN and ``n_out`` OUT references of every point, drawn at random: counts then reveal nothing.

        What is dropped is nowhere in the result, which has n_in + n_out references. Reference i is the model
        ``rows[i]``, but where that was dropped another model, from the end of ``rows``, stands in for it.

        Parameters
        ----------
        n_in, n_out : int or int array [points]
            How many to keep, the same sum at all points; every point must have as many.
        rng : numpy.random.Generator
            Draws them, for each point anew.
        most : int, optional
            Take only the first so many of the references that are left.
        """
        n_in, n_out = (np.broadcast_to(n, self.n_points) for n in (n_in, n_out))
        kept = int(n_in[0] + n_out[0])
        wanted = kept if most is None else min(kept, most)
        signals = np.empty((wanted, *self.signals.shape[1:]), self.signals.dtype)
        in_mask = self.in_mask[:wanted].copy()
        width = max(1, CELLS_IN_MEMORY // max(1, len(self)))
        for start in range(0, self.n_points, width):
            points = slice(start, min(start + width, self.n_points))
            keep = _drawn(self.in_mask[:, points], self.n_in[points], n_in[points], n_out[points], rng)
            # Of a point as many are dropped among the first ``kept`` as are kept beyond them; all of point 0 first.
            column, hole = np.nonzero(~keep[:kept].T)
            substitute = kept + np.nonzero(keep[kept:].T)[1]
            seen = hole < wanted
            column, hole, substitute = column[seen], hole[seen], substitute[seen]
            for i, row in enumerate(self.rows[:wanted]):
                signals[i, points] = self.signals[row, points]
            signals[hole, start + column] = self.signals[self.rows[substitute], start + column]
            in_mask[hole, start + column] = self.in_mask[substitute, start + column]
        return References(signals, np.arange(wanted), in_mask)

    def conf(self, few: slice, points: slice) -> npt.NDArray[np.floating]:
        """Signals [n references, n points, views] of some references at some points; a copy only where rows jump."""
        rows = self.rows[few]
        if len(rows) and bool(np.all(np.diff(rows) == 1)):
            return self.signals[rows[0] : rows[-1] + 1, points]
        return self.signals[rows, points]

    def part(self, points: slice) -> References:
        """The same references at some points."""
        return References(self.signals[:, points], self.rows, self.in_mask[:, points])

    def pieces(self) -> Iterator[tuple[slice, slice]]:
        """A few references and some points at a time, small enough for the cache."""
        width = max(1, CELLS_PER_BLOCK // self.n_views)
        for start in range(0, self.n_points, width):
            for first in range(0, len(self), ROWS_PER_FLUSH):
                yield slice(first, first + ROWS_PER_FLUSH), slice(start, min(start + width, self.n_points))

    def blocks(self, cells: int = CELLS_IN_MEMORY) -> Iterator[tuple[slice, FloatArray, npt.NDArray[np.bool_]]]:
        """All references for some points at a time, in bounded memory.

        Parameters
        ----------
        cells : int
            About how many signals a block holds.

        Yields
        ------
        points : slice
            Which points.
        conf : float64 array [references, n, views]
            Their signals.
        in_mask : bool array [references, n]
            Their membership.
        """
        width = max(1, cells // max(1, len(self) * self.n_views))
        for start in range(0, self.n_points, width):
            points = slice(start, min(start + width, self.n_points))
            yield points, self.conf(slice(None), points).astype(np.float64), self.in_mask[:, points]

    def at(
        self, points: IntArray, cells: int = CELLS_IN_MEMORY
    ) -> Iterator[tuple[IntArray, FloatArray, npt.NDArray[np.bool_]]]:
        """The same for the given points only: some of them at a time."""
        width = max(1, cells // max(1, len(self) * self.n_views))
        for start in range(0, len(points), width):
            some = points[start : start + width]
            yield some, self.signals[self.rows[:, None], some].astype(np.float64), self.in_mask[:, some]


def _drawn(
    in_mask: npt.NDArray[np.bool_],
    inside: npt.NDArray[np.integer],
    n_in: npt.NDArray[np.integer],
    n_out: npt.NDArray[np.integer],
    rng: np.random.Generator,
) -> npt.NDArray[np.bool_]:
    """Mark [references, n] so many IN and OUT references of each point, of which ``inside`` [n] are IN."""
    # In random order, those that are IN before those that are OUT.
    order = np.argsort(rng.random(in_mask.shape) + ~in_mask, axis=0)
    place = np.arange(len(in_mask))[:, None]
    chosen = (place < n_in) | ((place >= inside) & (place < inside + n_out))
    drawn = np.zeros_like(in_mask)
    np.put_along_axis(drawn, order, chosen, axis=0)
    return drawn


class Feature(Protocol):
    """Two functions of a signal whose sums over models are wanted."""

    def values(
        self, conf: npt.NDArray[np.floating], points: slice, out: npt.NDArray[np.floating]
    ) -> list[npt.NDArray[np.floating]]:
        """One or two arrays [models, n, views] of the signals [models, n, views], in ``out`` [2, models, n, views]."""

    def sums(self, chosen: Sequence[npt.NDArray[np.floating]]) -> tuple[npt.NDArray[np.floating], ...]:
        """Two sums [n, views] over models of the chosen values."""


@dataclass(frozen=True)
class Powers:
    """conf - centre and its square; the centre [points, views] keeps squares small, so float32 terms are enough."""

    centre: npt.NDArray[np.floating]

    def values(
        self, conf: npt.NDArray[np.floating], points: slice, out: npt.NDArray[np.floating]
    ) -> list[npt.NDArray[np.floating]]:
        """Return [conf - centre]."""
        return [np.subtract(conf, self.centre[points], out=out[0])]

    def sums(self, chosen: Sequence[npt.NDArray[np.floating]]) -> tuple[npt.NDArray[np.floating], ...]:
        """Return the sums of d and of d^2."""
        d = chosen[0]
        return np.add.reduce(d, axis=0), np.einsum("mpk,mpk->pk", d, d)


class Probabilities:
    """Probability of the true label and of the rest: each keeps its digits where the other rounds to one."""

    def values(
        self, conf: npt.NDArray[np.floating], points: slice, out: npt.NDArray[np.floating]
    ) -> list[npt.NDArray[np.floating]]:
        """Return [p, 1 - p]; each is exactly 0 only where it underflows."""
        del points
        p, rest = out
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            np.exp(np.negative(conf, out=rest), out=rest)
            np.divide(1, np.add(rest, 1, out=p), out=p)
            rest *= p
            # Where exp(-conf) overflows, infinity times 0 stands for 1.
            return [p, np.fmin(rest, 1, out=rest)]

    def sums(self, chosen: Sequence[npt.NDArray[np.floating]]) -> tuple[npt.NDArray[np.floating], ...]:
        """Return the sums of p and of 1 - p."""
        return np.add.reduce(chosen[0], axis=0), np.add.reduce(chosen[1], axis=0)


@dataclass(frozen=True)
class Sums:
    """Sums of a feature's two functions over IN and over OUT models.

    Parameters
    ----------
    n_in, n_out : int arrays [points]
        How many models are summed.
    inside, outside : float64 arrays [2, points, views]
        The sums.
    """

    n_in: npt.NDArray[np.int32]
    n_out: npt.NDArray[np.int32]
    inside: FloatArray
    outside: FloatArray

    @classmethod
    def zeros(cls, n_points: int, n_views: int) -> Sums:
        """Sums over no model."""
        shape = (2, n_points, n_views)
        return cls(np.zeros(n_points, np.int32), np.zeros(n_points, np.int32), np.zeros(shape), np.zeros(shape))

    def part(self, points: slice) -> Sums:
        """The same sums at some points."""
        return Sums(self.n_in[points], self.n_out[points], self.inside[:, points], self.outside[:, points])

    def copy(self) -> Sums:
        """Return sums that can be added to without touching these."""
        return Sums(self.n_in.copy(), self.n_out.copy(), self.inside.copy(), self.outside.copy())

    def add(self, references: References, feature: Feature, apart: bool = True) -> None:
        """Add ``references`` in place, some points and a few models at a time; not ``apart``: all as if OUT."""
        room = _Room(references)
        for few, points in references.pieces():
            conf, in_mask = references.conf(few, points), references.in_mask[few, points]
            values = feature.values(conf, points, room.two_like(conf))
            if apart:
                self._add_block(values, in_mask, points, feature, references.paired, room)
                continue
            for k, total in enumerate(feature.sums(values)):
                self.outside[k, points] += total
            self.n_out[points] += len(conf)

    def _add_block(
        self,
        values: list[npt.NDArray[np.floating]],
        in_mask: npt.NDArray[np.bool_],
        points: slice,
        feature: Feature,
        paired: bool,
        room: _Room,
    ) -> None:
        spare = room.another_like(values[0])
        inside, outside = zip(*(_part_by_membership(v, in_mask, paired, spare) for v in values), strict=True)
        for k, (total_in, total_out) in enumerate(zip(feature.sums(inside), feature.sums(outside), strict=True)):
            self.inside[k, points] += total_in
            self.outside[k, points] += total_out
        n_in = count(in_mask) if not paired else len(in_mask) // 2
        self.n_in[points] += n_in
        self.n_out[points] += len(in_mask) - n_in


class _Room:
    """Memory for the arrays of one piece, used again for the next: fresh pages cost as much as the arithmetic."""

    def __init__(self, references: References) -> None:
        dtype = np.dtype(np.float64 if references.signals.dtype == np.float64 else np.float32)
        size = 3 * ROWS_PER_FLUSH * max(CELLS_PER_BLOCK, references.n_views) * dtype.itemsize
        raw = np.empty(size + 64, np.uint8)
        start = -raw.ctypes.data % 64  # a cache line
        self._all: npt.NDArray[np.floating] = raw[start : start + size].view(dtype)

    def two_like(self, block: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """Two arrays of the shape of ``block`` [2, models, n, views]."""
        return self._all[: 2 * block.size].reshape(2, *block.shape)

    def another_like(self, block: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """One more."""
        return self._all[2 * block.size : 3 * block.size].reshape(block.shape)


def count(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.int8]:
    """Count True over the first axis, of at most 127."""
    total: npt.NDArray[np.int8] = np.add.reduce(flags.view(np.int8), axis=0, dtype=np.int8)
    return total


def _part_by_membership(
    values: npt.NDArray[np.floating],
    in_mask: npt.NDArray[np.bool_],
    paired: bool,
    spare: npt.NDArray[np.floating] | None = None,
) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    """Values [models, n, views] of IN and of OUT models, 0 elsewhere; overwrites ``values`` and ``spare``, its like.

    Works on the bits: a value outside the mask can never leak in, not even as NaN, and it is several times faster
    than `numpy.where`. Of a complementary pair one model is IN and one OUT, so exchanging the two where the first is
    IN leaves all OUT values in the first and all IN values in the second: half as many rows to add up.
    """
    as_bits: npt.NDArray[np.signedinteger] = values.view(np.int64 if values.dtype == np.float64 else np.int32)
    room = np.empty_like(as_bits) if spare is None else spare.view(as_bits.dtype)
    if not paired:
        inside = as_bits & _bit_mask(in_mask, room)
        np.bitwise_xor(as_bits, inside, out=as_bits)
        return inside.view(values.dtype), values
    first, second = as_bits[0::2], as_bits[1::2]
    mask = _bit_mask(in_mask[0::2], room[: len(first)])
    swap = np.bitwise_xor(first, second, out=room[len(first) :])
    np.bitwise_and(swap, mask, out=swap)
    np.bitwise_xor(first, swap, out=first)
    np.bitwise_xor(second, swap, out=second)
    return values[1::2], values[0::2]


def _bit_mask(in_mask: npt.NDArray[np.bool_], out: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.signedinteger]:
    """All bits set where ``in_mask`` [models, n], none elsewhere, in ``out`` [models, n, views]."""
    if out.shape[2] == 1:
        return np.negative(in_mask.view(np.int8)[:, :, None], out=out)
    out[:] = np.repeat(np.negative(in_mask.view(np.int8)), out.shape[2], axis=1).reshape(out.shape)
    return out


def sum_over(references: References, feature: Feature, apart: bool = True) -> Sums:
    """Sums of ``feature`` over all ``references``, by default apart for IN and OUT."""
    total = Sums.zeros(references.n_points, references.n_views)
    total.add(references, feature, apart)
    return total


def leave_one_out(
    models: References, parts: Sequence[IntArray], leaves: Sequence[int], features: Sequence[Feature]
) -> Iterator[tuple[int, list[Sums]]]:
    """Sums over all parts but one, for each part in ``leaves``.

    Parameters
    ----------
    models : References
        All models of all parts.
    parts : sequence of int arrays
        Disjoint sets of positions in ``models``.
    leaves : sequence of int
        The parts to leave out, one at a time.
    features : sequence of Feature
        What to sum.

    Yields
    ------
    leaf : int
        The part left out.
    sums : list of Sums
        One for each feature.
    """

    def adding(sums: list[Sums], some_parts: Sequence[int]) -> list[Sums]:
        if not some_parts:
            return sums
        chosen = np.sort(np.concatenate([parts[part] for part in some_parts]))
        these = References(models.signals, models.rows[chosen], models.in_mask[chosen])
        grown = [s.copy() for s in sums]
        for s, feature in zip(grown, features, strict=True):
            s.add(these, feature)
        return grown

    def descend(outside: list[Sums], within: Sequence[int]) -> Iterator[tuple[int, list[Sums]]]:
        if len(within) == 1:
            yield within[0], outside
            return
        left, right = within[: len(within) // 2], within[len(within) // 2 :]
        yield from descend(adding(outside, right), left)
        yield from descend(adding(outside, left), right)

    nothing = [Sums.zeros(models.n_points, models.n_views) for _ in features]
    others = [part for part in range(len(parts)) if part not in set(leaves)]
    yield from descend(adding(nothing, others), list(leaves))
