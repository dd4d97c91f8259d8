"""What an attack may know about one target: reference models, sums over them, and the view that holds both.

All that moment-based statistics need is a sum over models of a function of one signal, separately for IN and OUT, so
the sums of two disjoint sets of models add up. This makes many targets cheap: `leave_one_out` never subtracts (no
cancellation, and the excluded models never touch the result), yet it costs only log(targets) passes. Written by hand
because it is several times faster than masked numpy sums; `benchmarks/scoring.py` measures it against one plain sum.

All attacks share a view, so none of its arrays can be written to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from plmia.data import half_floats, memory
from plmia.data.arrays import (
    BoolArray,
    Counts,
    FloatArray,
    Floats,
    IntArray,
    Labels,
    made_read_only,
    read_only,
)
from plmia.data.threads import computed_once
from plmia.errors import AttackError, PopulationError, SignalsError

# Thirty-two float32 terms lose at most one digit; they are then added to a float64 total. A piece fits the second-level
# cache. (Even, so that pairs stay together; at most 127, so that counts fit a byte.)
ROWS_PER_FLUSH = 32
CELLS_PER_BLOCK = 1 << 12
# Where the squared mean exceeds the variance by this factor, their difference has lost too many digits of float32.
CANCELLATION = 100.0
# References are counted at this many points at a time.
POINTS_TO_COUNT = 1 << 18
# Slower functions work on blocks of this many signals (1 MiB of float64).
CELLS_IN_MEMORY = 1 << 17


@dataclass(frozen=True)
class References:
    """Signals of reference models, and the records that they trained on."""

    signals: Floats  # [models, points, views]: logit-scaled true-label confidence of all models; only rows are read
    rows: IntArray  # [references]: the models that are references
    in_mask: BoolArray  # [references, points]: whether the reference trained on the point (IN) or not (OUT)

    def __post_init__(self) -> None:
        vars(self).update(made_read_only(self))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_points(self) -> int:
        """Number of records."""
        return int(self.signals.shape[1])

    @property
    def n_views(self) -> int:
        """Number of views per record."""
        return int(self.signals.shape[2])

    @computed_once
    def paired(self) -> bool:
        """Whether references 2k and 2k + 1 trained on complementary sets, for all k."""
        if len(self) % 2:
            return False
        for a, b in zip(self.in_mask[0::2], self.in_mask[1::2], strict=True):
            if not bool(np.all(a != b)):
                return False
            memory.release()
        return True

    @computed_once
    def n_in(self) -> npt.NDArray[np.int32]:
        """Number of references [records] that trained on each record."""
        n_points = self.in_mask.shape[1]
        total = np.zeros(n_points, np.int32)
        for start in range(0, n_points, POINTS_TO_COUNT):
            points = slice(start, start + POINTS_TO_COUNT)
            for first in range(0, len(self), ROWS_PER_FLUSH):
                total[points] += count(np.ascontiguousarray(self.in_mask[first : first + ROWS_PER_FLUSH, points]))
            memory.release()
        return read_only(total)

    def first(self, n: int) -> References:
        """Return the first ``n`` references."""
        return References(self.signals, self.rows[:n], self.in_mask[:n])

    def balanced(
        self,
        n_in: int | Counts,
        n_out: int | Counts,
        rng: np.random.Generator,
        most: int | None = None,
        groups: IntArray | None = None,
    ) -> References:
        """Keep ``n_in`` IN and ``n_out`` OUT references of every record, drawn at random: counts then reveal nothing.

        Every record must have as many, and their sum must be the same at all records. Reference i of the result is the
        model ``rows[i]``; where that was dropped, a model from the end of ``rows`` replaces it. With ``most``, only the
        first so many are returned. Records of one of the ``groups`` [records], numbered from 0, keep the same models if
        every reference trained on whole groups.
        """
        n_in, n_out = (np.broadcast_to(n, self.n_points) for n in (n_in, n_out))
        kept = int(n_in[0] + n_out[0])
        wanted = kept if most is None else min(kept, most)
        signals = memory.empty((wanted, *self.signals.shape[1:]), self.signals.dtype)
        in_mask = memory.copied(self.in_mask[:wanted])
        width = max(1, CELLS_IN_MEMORY // max(1, len(self)))
        whole = None if groups is None else self._drawn_by_group(n_in, n_out, rng, groups)
        for start in range(0, self.n_points, width):
            points = slice(start, min(start + width, self.n_points))
            if whole is None or groups is None:
                keep = _drawn(self.in_mask[:, points], self.n_in[points], n_in[points], n_out[points], rng)
            else:
                keep = whole[:, groups[points]]
            # Each point has as many dropped among the first ``kept`` as kept beyond them; those of point 0 come first.
            column, hole = np.nonzero(~keep[:kept].T)
            substitute = kept + np.nonzero(keep[kept:].T)[1]
            seen = hole < wanted
            column, hole, substitute = column[seen], hole[seen], substitute[seen]
            for i, row in enumerate(self.rows[:wanted]):
                signals[i, points] = self.signals[row, points]
            signals[hole, start + column] = self.signals[self.rows[substitute], start + column]
            in_mask[hole, start + column] = self.in_mask[substitute, start + column]
            memory.release()
        return References(signals, np.arange(wanted), in_mask)

    def _drawn_by_group(
        self, n_in: Counts, n_out: Counts, rng: np.random.Generator, groups: IntArray
    ) -> BoolArray | None:
        """Draw which references each group keeps [references, groups]; None if some trained on parts of groups."""
        first = np.unique(groups, return_index=True)[1]
        if (self.in_mask != self.in_mask[:, first[groups]]).any():
            return None
        return _drawn(self.in_mask[:, first], self.n_in[first], n_in[first], n_out[first], rng)

    def conf(self, few: slice, points: slice) -> Floats:
        """Return signals [n references, n records, views]; a copy only if the rows are not consecutive."""
        rows = self.rows[few]
        if len(rows) and bool(np.all(np.diff(rows) == 1)):
            return self.signals[rows[0] : rows[-1] + 1, points]
        return self.signals[rows, points]

    def part(self, points: slice) -> References:
        """Return the references at some records."""
        part = References(self.signals[:, points], self.rows, self.in_mask[:, points])
        if self.paired:  # then they are at any records: nothing needs to be compared again
            vars(part)["paired"] = True
        return part

    def pieces(self) -> Iterator[tuple[slice, slice]]:
        """Yield a few references and some records at a time, small enough for the cache."""
        width = max(1, CELLS_PER_BLOCK // self.n_views)
        for start in range(0, self.n_points, width):
            for first in range(0, len(self), ROWS_PER_FLUSH):
                yield slice(first, first + ROWS_PER_FLUSH), slice(start, min(start + width, self.n_points))
            self._release()

    def _release(self) -> None:
        """Give pages back, unless these are the records of a block: its end does that."""
        if self.n_points > POINTS_PER_BLOCK:
            memory.release()

    def blocks(self, cells: int = CELLS_IN_MEMORY) -> Iterator[tuple[slice, FloatArray, BoolArray]]:
        """Yield records, signals [references, n, views] and membership of about ``cells`` signals at a time."""
        width = max(1, cells // max(1, len(self) * self.n_views))
        for start in range(0, self.n_points, width):
            points = slice(start, min(start + width, self.n_points))
            yield points, self.conf(slice(None), points).astype(np.float64), self.in_mask[:, points]
            memory.release()

    def at(self, points: IntArray, cells: int = CELLS_IN_MEMORY) -> Iterator[tuple[IntArray, FloatArray, BoolArray]]:
        """Yield the same for the given records only, some of them at a time."""
        width = max(1, cells // max(1, len(self) * self.n_views))
        for start in range(0, len(points), width):
            some = points[start : start + width]
            yield some, self.signals[self.rows[:, None], some].astype(np.float64), self.in_mask[:, some]
            memory.release()


def _drawn(in_mask: BoolArray, inside: Counts, n_in: Counts, n_out: Counts, rng: np.random.Generator) -> BoolArray:
    """Mark [references, n] the IN and OUT references to keep at each point; ``inside`` [n] of them are IN."""
    # In random order, IN references before OUT references.
    order = np.argsort(rng.random(in_mask.shape) + ~in_mask, axis=0)
    place = np.arange(len(in_mask))[:, None]
    chosen = (place < n_in) | ((place >= inside) & (place < inside + n_out))
    drawn = np.zeros_like(in_mask)
    np.put_along_axis(drawn, order, chosen, axis=0)
    return drawn


class Feature(Protocol):
    """Two functions of a signal that are summed over models."""

    def values(self, conf: Floats, points: slice, out: Floats) -> list[Floats]:
        """Return one or two arrays like the signals [models, n, views], in ``out`` [2, models, n, views]."""

    def sums(self, chosen: Sequence[Floats]) -> tuple[Floats, ...]:
        """Return two sums [n, views] over models of the chosen values."""


@dataclass(frozen=True)
class Powers:
    """conf - centre and its square; the centre [records, views] keeps squares small, so float32 terms are enough."""

    centre: Floats

    def values(self, conf: Floats, points: slice, out: Floats) -> list[Floats]:
        """Return [conf - centre]."""
        return [np.subtract(conf, self.centre[points], out=out[0])]

    def sums(self, chosen: Sequence[Floats]) -> tuple[Floats, ...]:
        """Return the sums of d and of d^2."""
        d = chosen[0]
        return np.add.reduce(d, axis=0), np.einsum("mpk,mpk->pk", d, d)


class Probabilities:
    """Probability of the true label and of the rest: each is accurate where the other rounds to one."""

    def values(self, conf: Floats, points: slice, out: Floats) -> list[Floats]:
        """Return [p, 1 - p]; each is exactly 0 only where it underflows."""
        del points
        p, rest = out
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            np.exp(np.negative(conf, out=rest), out=rest)
            np.divide(1, np.add(rest, 1, out=p), out=p)
            rest *= p
            # Where exp(-conf) overflows, infinity times 0 means 1.
            return [p, np.fmin(rest, 1, out=rest)]

    def sums(self, chosen: Sequence[Floats]) -> tuple[Floats, ...]:
        """Return the sums of p and of 1 - p."""
        return np.add.reduce(chosen[0], axis=0), np.add.reduce(chosen[1], axis=0)


@dataclass(frozen=True)
class Sums:
    """Sums [2, records, views] of a feature's two functions over the IN and over the OUT models, and their numbers."""

    n_in: npt.NDArray[np.int32]
    n_out: npt.NDArray[np.int32]
    inside: FloatArray
    outside: FloatArray

    @classmethod
    def zeros(cls, n_points: int, n_views: int) -> Sums:
        """Return the sums over no model."""
        shape = (2, n_points, n_views)
        counts = memory.zeros(n_points, np.int32), memory.zeros(n_points, np.int32)
        return cls(*counts, memory.zeros(shape), memory.zeros(shape))

    def part(self, points: slice) -> Sums:
        """Return the sums at some records."""
        return Sums(self.n_in[points], self.n_out[points], self.inside[:, points], self.outside[:, points])

    def read_only(self) -> Sums:
        """Return the same sums in arrays that cannot be written to."""
        return replace(self, **arrays) if (arrays := made_read_only(self)) else self

    def copy(self) -> Sums:
        """Return a copy."""
        return Sums(*(memory.copied(part) for part in (self.n_in, self.n_out, self.inside, self.outside)))

    def add(self, references: References, feature: Feature, apart: bool = True) -> None:
        """Add ``references`` in place, piece by piece; all of them as OUT unless ``apart``."""
        room = _Room(references, 4)
        for few, points in references.pieces():
            conf, in_mask = room.single(references.conf(few, points)), references.in_mask[few, points]
            values = feature.values(conf, points, room.two_like(conf))
            if apart:
                self._add_block(values, in_mask, points, feature, references.paired, room)
                continue
            for k, total in enumerate(feature.sums(values)):
                self.outside[k, points] += total
            self.n_out[points] += len(conf)

    def _add_block(
        self, values: list[Floats], in_mask: BoolArray, points: slice, feature: Feature, paired: bool, room: _Room
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
    """Memory for the arrays of one piece, reused for the next: fresh pages cost as much as the arithmetic."""

    def __init__(self, references: References, arrays: int) -> None:
        dtype = np.dtype(np.float64 if references.signals.dtype == np.float64 else np.float32)
        size = arrays * ROWS_PER_FLUSH * max(CELLS_PER_BLOCK, references.n_views) * dtype.itemsize
        raw = np.empty(size + 64, np.uint8)
        start = -raw.ctypes.data % 64  # a cache line
        self._all: Floats = raw[start : start + size].view(dtype)

    def two_like(self, block: Floats) -> Floats:
        """Return two arrays of the shape of ``block`` [2, models, n, views]."""
        return self._all[: 2 * block.size].reshape(2, *block.shape)

    def another_like(self, block: Floats) -> Floats:
        """Return one more."""
        return self._all[2 * block.size : 3 * block.size].reshape(block.shape)

    def single(self, conf: Floats) -> Floats:
        """Return half floats as single ones, in one more; other signals as they are."""
        if not half_floats.is_half(conf):
            return conf
        return half_floats.as_single(conf, self._all[3 * conf.size : 4 * conf.size].reshape(conf.shape))


def count(flags: BoolArray) -> npt.NDArray[np.int8]:
    """Count True over the first axis, of at most 127."""
    total: npt.NDArray[np.int8] = np.add.reduce(flags.view(np.int8), axis=0, dtype=np.int8)
    return total


def _part_by_membership(
    values: Floats, in_mask: BoolArray, paired: bool, spare: Floats | None = None
) -> tuple[Floats, Floats]:
    """Split values [models, n, views] into those of IN and of OUT models, 0 elsewhere; overwrites its arguments."""
    # Works on the bits: a value outside the mask cannot leak in, not even as NaN, and it is several times faster than
    # `numpy.where`. Of a complementary pair one model is IN and one OUT, so exchanging the two where the first is IN
    # leaves all OUT values in the first and all IN values in the second: half as many rows to sum.
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


def _bit_mask(in_mask: BoolArray, out: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.signedinteger]:
    """Set all bits of ``out`` [models, n, views] where ``in_mask`` [models, n] is true, none elsewhere."""
    if out.shape[2] == 1:
        return np.negative(in_mask.view(np.int8)[:, :, None], out=out)
    out[:] = np.repeat(np.negative(in_mask.view(np.int8)), out.shape[2], axis=1).reshape(out.shape)
    return out


def sum_over(references: References, feature: Feature, apart: bool = True) -> Sums:
    """Return the sums of ``feature`` over all ``references``, by default separately for IN and OUT."""
    total = Sums.zeros(references.n_points, references.n_views)
    total.add(references, feature, apart)
    return total


@dataclass(frozen=True)
class SideMoments:
    """Counts [records], means and population variances [records, views] of one side; 0 where it has no reference."""

    side: str  # "IN" or "OUT"
    n: Counts
    mean: FloatArray
    variance: FloatArray
    stored: np.dtype[np.floating]  # type of the stored signals

    def read_only(self) -> SideMoments:
        """Return the same moments in arrays that cannot be written to."""
        return replace(self, **made_read_only(self))

    @property
    def rounding(self) -> FloatArray:
        """Variance [records, views] that storing the signals adds: spacing^2 / 12 at the size of the mean."""
        # At least that at 1: near 0 it is the probability, close to 1/2, that was rounded.
        # `numpy.spacing` overflows at the largest number there is; one step below it the spacing is the same.
        most = np.nextafter(np.finfo(self.stored).max, self.stored.type(0))
        size = self.mean.astype(self.stored)
        np.clip(np.abs(size, out=size), self.stored.type(1), most, out=size)
        rounding: FloatArray = np.square(np.spacing(size, out=size), dtype=np.float64)
        rounding /= 12
        return rounding


def side_moments(references: References, sums: Sums, centre: Floats, inside: bool) -> SideMoments:
    """Return the moments of the IN (or OUT) references from the sums of `Powers` about ``centre`` [records, views]."""
    n = sums.n_in if inside else sums.n_out
    s, s2 = sums.inside if inside else sums.outside
    at_least_one = np.maximum(n, 1)[:, None]
    mean, variance = s / at_least_one, s2 / at_least_one
    square = np.square(mean)
    variance -= square
    np.maximum(variance, 0.0, out=variance)
    square /= CANCELLATION
    lost = np.flatnonzero((variance < square).any(axis=1))
    mean += centre
    mean[n == 0] = 0.0
    for points, conf, in_mask in references.at(lost):
        mask = (in_mask == inside)[:, :, None]
        mean[points], variance[points] = conf.mean(axis=0, where=mask), conf.var(axis=0, where=mask)
    return SideMoments("IN" if inside else "OUT", n, mean, variance, references.signals.dtype)


def leave_one_out(
    models: References, parts: Sequence[IntArray], leaves: Sequence[int], features: Sequence[Feature]
) -> Iterator[tuple[int, list[Sums]]]:
    """Yield each of ``leaves`` with the sums of every feature over all other ``parts``: disjoint sets of models."""

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


Mode = Literal["online", "offline"]
SumName = Literal["confidence", "probability"]
"""Sums over references that statistics share: of `Powers` and of `Probabilities`."""

# Points that are evaluated at a time. Empirical Bayes of several views multiplies matrices, whose rounding depends on
# their size: another value changes its scores by up to 1e-8.
POINTS_PER_BLOCK = 1 << 13


@dataclass(frozen=True)
class KnownSums:
    """Sums over a view's references at all records, computed once for several targets or for a fit."""

    centre: Floats  # [points, views]: subtracted from the signals before they are summed
    sums: Mapping[SumName, Sums] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sums = {name: total.read_only() for name, total in self.sums.items()}
        vars(self).update(made_read_only(self), sums=sums)

    def part(self, points: slice) -> KnownSums:
        """Return the sums at some records."""
        return KnownSums(self.centre[points], {name: sums.part(points) for name, sums in self.sums.items()})

    def with_sums(self, references: References, names: Iterable[SumName]) -> KnownSums:
        """Return these sums and the named ones over ``references``, computed unless they are known."""
        missing = [name for name in names if name not in self.sums]
        more = {name: sum_over(references, feature_of(name, self.centre)) for name in missing}
        return KnownSums(self.centre, {**self.sums, **more})


def feature_of(name: SumName, centre: Floats) -> Feature:
    """Return the feature whose sums have this name."""
    return Powers(centre) if name == "confidence" else Probabilities()


def midpoint(references: References) -> Floats:
    """Return the mean signal [records, views] of the first and last reference, to subtract before squaring."""
    first, last = (references.signals[row] for row in references.rows[[0, -1]])
    work = np.float64 if first.dtype == np.float64 else np.float32
    middle: Floats = memory.empty(first.shape, work)
    for start in range(0, len(middle), POINTS_PER_BLOCK):
        points = slice(start, start + POINTS_PER_BLOCK)
        middle[points] = (first[points].astype(work) + last[points].astype(work)) / 2
        memory.release()
    return middle


def first_out(references: References) -> Floats:
    """Return the signal [records, views] of the first OUT reference of each record, to subtract before squaring."""
    # Offline, no IN signal may reach a score, not even through rounding. (Many targets share one centre: the
    # exception.)
    work = np.float64 if references.signals.dtype == np.float64 else np.float32
    centre: Floats = memory.zeros((references.n_points, references.n_views), work)
    left = np.ones(references.n_points, bool)
    for row, member in zip(references.rows, references.in_mask, strict=True):
        for start in range(0, len(left), POINTS_TO_COUNT):
            points = slice(start, start + POINTS_TO_COUNT)
            first = left[points] & ~member[points]
            np.copyto(centre[points], references.signals[row, points], where=first[:, None])
            left[points] &= member[points]
            references._release()
        if not left.any():
            break
    return centre


@dataclass(frozen=True)
class Block:
    """Consecutive records of a view, with sums that statistics share: computed on first use, freed with the block."""

    points: slice  # position in the view
    target: FloatArray  # [n, views]
    references: References  # at these points
    mode: Mode
    known: KnownSums | None = None  # sums at these points that are already known

    @property
    def n_points(self) -> int:
        """Number of records."""
        return int(self.target.shape[0])

    @property
    def n_views(self) -> int:
        """Number of views per record."""
        return int(self.target.shape[1])

    @computed_once
    def centre(self) -> Floats:
        """Value [n, views] subtracted from signals before they are summed."""
        return self.known.centre if self.known else read_only(first_out(self.references))

    @computed_once
    def confidence_sums(self) -> Sums:
        """Sums of conf - centre and of its square over IN and over OUT references."""
        if self.known and "confidence" in self.known.sums:
            return self.known.sums["confidence"]
        return sum_over(self.references, Powers(self.centre)).read_only()

    @computed_once
    def out_moments(self) -> SideMoments:
        """Counts, means and variances of OUT signals."""
        return side_moments(self.references, self.confidence_sums, self.centre, inside=False).read_only()

    @computed_once
    def in_moments(self) -> SideMoments:
        """Counts, means and variances of IN signals."""
        return side_moments(self.references, self.confidence_sums, self.centre, inside=True).read_only()

    @computed_once
    def probability_sums(self) -> Sums:
        """Sums of p and 1 - p over references; online all references may be counted as OUT."""
        if self.known and "probability" in self.known.sums:
            return self.known.sums["probability"]
        return sum_over(self.references, Probabilities(), self.mode == "offline").read_only()


@dataclass(frozen=True, eq=False)
class Features:
    """What is known of the records themselves: numbers [records, columns], NaN where missing."""

    columns: Floats
    categories: tuple[int, ...] = ()  # columns whose numbers 0, 1, ... are names without an order

    def __post_init__(self) -> None:
        vars(self).update(made_read_only(self))


@dataclass(frozen=True)
class AttackView:
    """Everything that an attack may know about one target.

    There is no field for the target's membership, so no attack can read the answer. `Truth` holds it, and only
    evaluation and report accept that. No array can be written to, so no attack can change what another one reads: copy
    an array to change it.

    Parameters
    ----------
    target : float64 array [records, views]
        The target's logit-scaled true-label confidence.
    references : References
        The reference models' signals and membership.
    population : int array [population]
        Known non-members of the target (held-out data): the population Z of the paper. P-values are valid if these
        records are otherwise like the queries. Scoring refuses a population with other numbers of references.
    labels : int array [records], optional
        Class of each record; needed only for calibration within a class.
    mode : {"online", "offline"}
        Offline, statistics use OUT references only (`sec:exp_offline`).
    known : KnownSums, optional
        Sums over the references that are already known.
    features : Features, optional
        The records as numbers; only attacks that predict signals from records read them.
    bend : float, optional
        Scale asinh(conf / bend) on which the references were aligned; infinite for the signals as they are. None if
        the references were not aligned.
    groups : int array [records], optional
        Group of each record, where groups are judged: records of a group are not independent.
    """

    target: FloatArray
    references: References
    population: IntArray
    labels: Labels | None = None
    mode: Mode = "online"
    known: KnownSums | None = None
    features: Features | None = None
    bend: float | None = None
    groups: IntArray | None = None

    def __post_init__(self) -> None:
        vars(self).update(made_read_only(self))
        if self.mode not in get_args(Mode):
            raise AttackError(f"mode {self.mode!r} is unknown: take {' or '.join(get_args(Mode))}")
        expected = (self.references.n_points, self.references.n_views)
        if self.target.shape != expected:
            raise SignalsError(
                f"the target's signals have shape {self.target.shape}, the references' {expected} [records, views]: "
                "query the target on the same records and views"
            )
        if self.features is not None and len(self.features.columns) != self.n_points:
            raise SignalsError(
                f"the features are of {len(self.features.columns)} records, the target's signals of {self.n_points}: "
                "give the features of the same records"
            )
        z = self.population
        if len(z) and (z.min() < 0 or z.max() >= self.n_points or np.bincount(z).max() > 1):
            raise PopulationError(
                f"population indices must be distinct and from 0 to {self.n_points - 1}, "
                f"they run from {z.min()} to {z.max()}: draw them without replacement from the records"
            )

    @property
    def n_points(self) -> int:
        """Number of records, population included."""
        return int(self.target.shape[0])

    @property
    def n_views(self) -> int:
        """Number of views per record."""
        return int(self.target.shape[1])

    def block(self, points: slice) -> Block:
        """Return some consecutive records."""
        known = self.known and self.known.part(points)
        return Block(points, self.target[points], self.references.part(points), self.mode, known)

    def blocks(self) -> Iterator[Block]:
        """Yield all records in order, some at a time."""
        for start in range(0, self.n_points, POINTS_PER_BLOCK):
            yield self.block(slice(start, min(start + POINTS_PER_BLOCK, self.n_points)))
            memory.release()

    def moments(self, *, inside: bool) -> SideMoments:
        """Return the moments of the IN (or OUT) signals at all records, computed block by block."""
        shape, n = (self.n_points, self.n_views), memory.empty(self.n_points, np.int32)
        whole = SideMoments(
            "IN" if inside else "OUT", n, memory.empty(shape), memory.empty(shape), self.references.signals.dtype
        )
        for block in self.blocks():
            found = block.in_moments if inside else block.out_moments
            for to, part in ((n, found.n), (whole.mean, found.mean), (whole.variance, found.variance)):
                to[block.points] = part
        return whole

    def whole(self) -> Block:
        """Return all records as one block."""
        return self.block(slice(0, self.n_points))

    def with_sums(self, names: Collection[SumName]) -> AttackView:
        """Return the same view with the named sums at all records, computed unless they are known."""
        if not names:
            return self
        known = self.known or KnownSums(first_out(self.references))
        return replace(self, known=known.with_sums(self.references, names))


@dataclass(frozen=True)
class Truth:
    """The answer: only metrics, diagnostics and the report may see it."""

    members: BoolArray  # [points]: the target trained on them
    queries: IntArray  # evaluated points; disjoint from the population
