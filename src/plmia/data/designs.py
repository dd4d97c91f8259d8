"""Which model trains on which record, and which models may be references for which target.

Designs are drawn from the raw numbers of a generator's bit stream, which NumPy keeps the same in all versions and on
all machines. With `numpy.random.default_rng(seed)`, PCG64, the same seed gives the same design everywhere.
"""

from __future__ import annotations

import hashlib
import math
import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from plmia.data import memory
from plmia.data.arrays import BoolArray, FloatArray, IntArray, Labels
from plmia.errors import DataError, ReferencesError, SignalsError, count_text, some

if TYPE_CHECKING:
    from plmia.data.dataset import LabelledData

DesignKind = Literal["pairs", "halves", "exact"]

_POINTS_AT_ONCE = 4096
_COUNTS_AT_ONCE = 1 << 20
# Significance level of the test whether the numbers of references depend on membership.
_SIGNIFICANCE = 1e-6
# At most this share of the points may have other numbers of references than the rest.
_RARE_SHARE = 0.01
# A cell of a contingency table with fewer expected points is joined with its neighbours.
_MIN_EXPECTED = 10.0


@dataclass(frozen=True)
class MembershipDesign:
    """Which model trained on which record.

    Parameters
    ----------
    matrix : bool array [models, records]
        True where the model (row) trained on the record (column).
    """

    matrix: BoolArray

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or self.matrix.dtype != np.bool_:
            raise SignalsError(
                f"membership has shape {self.matrix.shape} and type {self.matrix.dtype}, a bool array [models, "
                "records] is needed: store one row per model, True where it trained on the record"
            )
        # In row order, since rows are read, packed and hashed.
        object.__setattr__(self, "matrix", np.ascontiguousarray(self.matrix))

    @property
    def n_models(self) -> int:
        """Number of models."""
        return int(self.matrix.shape[0])

    @property
    def n_points(self) -> int:
        """Number of records."""
        return int(self.matrix.shape[1])

    @property
    def digest(self) -> str:
        """SHA-256 of shape and packed bits."""
        sha = hashlib.sha256(f"membership {self.matrix.shape}\n".encode())
        sha.update(np.packbits(self.matrix, axis=1).tobytes())
        return sha.hexdigest()

    def require_classes(self, y: Labels | None, names: Sequence[str] | None = None) -> None:
        """Raise `DataError` unless every model trains on every class of the labels y [records], if there are any.

        The error names a class by its name, if there are names.
        """
        if y is None:
            return
        if y.shape != (self.n_points,):
            raise DataError(
                f"there are {y.size} labels and {self.n_points} records in the design: both need the same records"
            )
        n_classes = int(y.max()) + 1
        for model, members in enumerate(self.matrix):
            absent = np.flatnonzero(np.bincount(y[members], minlength=n_classes) == 0)
            if len(absent):
                label = int(absent[0])
                named = label if names is None else repr(names[label])
                raise DataError(
                    f"model {model} trains on none of the {np.sum(y == label)} records of class {named}: add records "
                    "of that class, leave it out, or draw the design with another seed"
                )

    def split_duplicates(self, data: LabelledData) -> int:
        """Count the records of ``data`` that some model trains on without one of their copies, or the reverse.

        Such records are members and non-members at once, which blurs the result of an audit.
        """
        if data.n_points != self.n_points:
            raise DataError(
                f"the design has {self.n_points} records, the data {data.n_points}: both need the same records"
            )
        _, row_of, sizes = np.unique(data.first_copies, return_inverse=True, return_counts=True)
        split = np.zeros(len(sizes), dtype=np.bool_)
        for members in self.matrix:
            inside = np.bincount(row_of[members], minlength=len(sizes))
            split |= (inside > 0) & (inside < sizes)
        return int(sizes[split].sum())

    def splits(self) -> list[IntArray]:
        """Group the models whose rows are equal or complementary.

        One row of a group reveals all other rows, so no model may be a reference for another one of its group. In the
        default design each group is a complementary pair. Groups are in order of their first model.
        """
        groups: dict[bytes, list[int]] = {}
        for model, row in enumerate(self.matrix):
            # A digest of the row: many models times the bits of many records would take much memory.
            groups.setdefault(hashlib.sha256(np.packbits(row ^ row[0]).data).digest(), []).append(model)
            memory.release()
        return [np.array(models, dtype=np.intp) for models in groups.values()]


@dataclass(frozen=True)
class ReferencePlan:
    """Reference models of each target.

    The splits have one random order for all targets. Each target takes the first ``wanted`` models in this order,
    without its own split. If all splits have the same size, fewer references are therefore a subset of more
    references, and the references of two targets differ by at most one split.

    """

    order: list[IntArray]  # splits (see `MembershipDesign.splits`) in random order, larger ones first; models by number
    wanted: int | None  # number of references for each target; None for all that are eligible

    @classmethod
    def draw(
        cls, design: MembershipDesign, wanted: int | None, rng: np.random.Generator, models: IntArray | None = None
    ) -> ReferencePlan:
        """Draw a random order of the splits, complete pairs before single models; ``models`` numbers the rows."""
        splits = [split if models is None else models[split] for split in design.splits()]
        shuffled = [splits[i] for i in rng.permutation(len(splits))]
        return cls(sorted(shuffled, key=len, reverse=True), wanted)

    def split_of(self, target: int) -> int:
        """Position in ``order`` of the split that holds ``target``."""
        return next(i for i, models in enumerate(self.order) if target in models)

    def references_of(self, target: int) -> list[int]:
        """Positions in ``order`` of the splits that are references; raises if they cannot add up to ``wanted``."""
        own = self.split_of(target)
        others = [i for i in range(len(self.order)) if i != own]
        eligible = sum(len(self.order[i]) for i in others)
        if not others:
            alone = len(self.order[own]) == 1
            why = "there is no other model" if alone else "all others trained on the same split or its complement"
            raise ReferencesError(
                f"target {target} has no eligible reference ({why}): add models trained on other splits, or screen it "
                "without references (plmia screen)"
            )
        if self.wanted is None:
            return others
        if self.wanted < 1:
            raise ReferencesError(f"{self.wanted} references were requested, at least 1 is needed: request 1, or all")
        if self.wanted > eligible:
            raise ReferencesError(
                f"target {target} has {eligible} eligible reference{'s' * (eligible != 1)}, {self.wanted} were "
                f"requested (excluded: model {some(self.order[own])}, trained on the same split or its complement): "
                f"request at most {eligible}"
            )
        return self._fill(others)

    def _fill(self, others: list[int]) -> list[int]:
        """Choose splits in their order, each if those after it can still add up to what is then missing."""
        assert self.wanted is not None  # noqa: S101 - the caller checked; this tells the type checker
        sizes = [len(self.order[i]) for i in others]
        reach = [1]  # bit n of the k-th from the end: the last k splits can add up to n models
        for size in reversed(sizes):
            reach.append(reach[-1] | reach[-1] << size)
        if not reach[-1] >> self.wanted & 1:
            possible = [n for n in range(1, sum(sizes) + 1) if reach[-1] >> n & 1]
            fewer, more = (n for n in possible if n < self.wanted), (n for n in possible if n > self.wanted)
            raise _not_in_pairs(self.wanted, " or ".join(str(n) for n in (max(fewer, default=0), min(more)) if n))
        chosen: list[int] = []
        missing = self.wanted
        for i, size, rest in zip(others, sizes, reach[-2::-1], strict=True):
            if size <= missing and rest >> (missing - size) & 1:
                chosen.append(i)
                missing -= size
        return chosen


def _not_in_pairs(n: int, near: str) -> ReferencesError:
    references = "1 reference" if n == 1 else f"{n} references"
    return ReferencesError(f"{references} cannot consist of complete complementary pairs: request {near}")


def complementary_pairs(
    n_points: int, n_pairs: int, rng: np.random.Generator, groups: npt.ArrayLike | None = None
) -> MembershipDesign:
    """Draw pairs of models: model 2k trains on a random half of the records (or groups), model 2k + 1 on the rest.

    If their number is odd, a random one of the two models gets one more.
    """
    halves = independent_halves(n_points, n_pairs, rng, groups).matrix
    return MembershipDesign(np.stack([halves, ~halves], axis=1).reshape(2 * n_pairs, n_points))


def independent_halves(
    n_points: int, n_models: int, rng: np.random.Generator, groups: npt.ArrayLike | None = None
) -> MembershipDesign:
    """Draw a random half of the records (or groups) for each model, independently of the other models."""
    matrix, unit_of = _empty_design(n_models, n_points, groups)
    n_units = matrix.shape[1]
    for row in matrix:
        larger = n_units % 2 and int(rng.bit_generator.random_raw()) >> 63
        row[_random_order(n_units, rng)[: n_units // 2 + larger]] = True
    return MembershipDesign(matrix[:, unit_of])


def exact_k_per_point(
    n_points: int, n_models: int, k: int, rng: np.random.Generator, groups: npt.ArrayLike | None = None
) -> MembershipDesign:
    """Draw a design in which every record is in exactly ``k`` of the models.

    Each record draws its ``k`` models independently. Then random records change models, as few as needed for the
    models' numbers of records (or groups) to differ by at most one.

    Parameters
    ----------
    n_points, n_models, k : int
        Number of records, of models, and of models that train on each record (1 to n_models - 1).
    rng : numpy.random.Generator
        Source of randomness.
    groups : int array [records], optional
        Records of one group stay together.
    """
    matrix, unit_of = _empty_design(n_models, n_points, groups)
    if not 1 <= k < n_models:
        raise ReferencesError(
            f"{k} of {n_models} models were requested to train on each record, but every record needs models with and "
            f"without it: request 1 to {n_models - 1}"
        )
    for start in range(0, matrix.shape[1], _POINTS_AT_ONCE):
        units = np.arange(start, min(start + _POINTS_AT_ONCE, matrix.shape[1]))
        keys = rng.bit_generator.random_raw(len(units) * n_models).reshape(len(units), n_models)
        matrix[np.argsort(keys, axis=1, kind="stable")[:, :k], units[:, None]] = True
    _balance(matrix, rng)
    return MembershipDesign(matrix[:, unit_of])


def whole_number(references: object) -> int:
    """Return a number of references; raise unless it is a whole number."""
    try:
        return operator.index(references)  # type: ignore[arg-type]
    except TypeError as error:
        raise ReferencesError(f"the number of references is {references!r}: give a whole number, such as 8") from error


def audit_design(
    n_points: int,
    n_references: int,
    rng: np.random.Generator,
    groups: npt.ArrayLike | None = None,
    kind: DesignKind = "pairs",
    k: int | None = None,
) -> MembershipDesign:
    """Draw the design of an audit: model 0 is the target, on a random half of the records (or groups).

    The references are complementary pairs or independent halves. With "exact", each record is in exactly ``k`` of
    them, half by default.
    """
    _require_memory(n_references + 1, n_points)
    target = independent_halves(n_points, 1, rng, groups).matrix
    if kind == "halves":
        references = independent_halves(n_points, n_references, rng, groups)
    elif kind == "exact":
        references = exact_k_per_point(n_points, n_references, n_references // 2 if k is None else k, rng, groups)
    else:
        if n_references < 2 or n_references % 2:
            near = f"{n_references - 1} or {n_references + 1}" if n_references > 1 else "2 or more"
            raise _not_in_pairs(n_references, near)
        references = complementary_pairs(n_points, n_references // 2, rng, groups)
    return MembershipDesign(np.concatenate([target, references.matrix]))


def count_split_groups(members: BoolArray, groups: Labels) -> tuple[int, int]:
    """Number of groups that hold both members and non-members, and number of all groups."""
    _, of = np.unique(groups, return_inverse=True)
    sizes, inside = np.bincount(of), np.bincount(of, weights=members)
    return int(np.count_nonzero((inside > 0) & (inside < sizes))), len(sizes)


def counts_depend_on(flags: BoolArray, counts: Labels) -> bool:
    """Test whether counts have another distribution at the flagged records than at the others.

    They have if each of the two sets of records has a single count and the two differ, as in a design with exactly k of
    M models per record. Otherwise a test of trend and a chi-square test decide, each at a p-value of 5e-7. Records must
    be independent.
    """
    if flags.all() or not flags.any() or counts.min() == counts.max():
        return False
    n_levels = int(counts.max()) + 1
    # Some records at a time: each part of the counts is copied.
    table = np.zeros((2, n_levels))
    for start in range(0, len(counts), _COUNTS_AT_ONCE):
        part = slice(start, start + _COUNTS_AT_ONCE)
        for row, flag in zip(table, (flags[part], ~flags[part]), strict=True):
            row += np.bincount(counts[part][flag], minlength=n_levels)
    if (np.count_nonzero(table, axis=1) == 1).all():
        return True
    return min(_trend_p(table), _chi_square_p(table)) < _SIGNIFICANCE / 2


def _trend_p(table: FloatArray) -> float:
    """p-value of the correlation between row and level (column) in a table [2, levels] of numbers of points."""
    n, sizes, levels = table.sum(), table.sum(axis=1), np.arange(table.shape[1])
    means = table @ levels / sizes
    away = levels - table.sum(axis=0) @ levels / n
    between = sizes.prod() / n * (means[0] - means[1]) ** 2
    return _chi_square_tail(1, (n - 1) * between / (table.sum(axis=0) @ away**2))


def _chi_square_p(table: FloatArray) -> float:
    """p-value of independence of rows and levels; neighbouring levels are joined up to `_MIN_EXPECTED` points."""
    rarer = table.sum(axis=1).min() / table.sum()
    cells: list[FloatArray] = [np.zeros(2)]
    for level in table.T:
        if cells[-1].sum() * rarer >= _MIN_EXPECTED:
            cells.append(np.zeros(2))
        cells[-1] += level
    if len(cells) > 1 and cells[-1].sum() * rarer < _MIN_EXPECTED:
        rest = cells.pop()
        cells[-1] += rest
    if len(cells) == 1:
        return 1.0
    joined = np.stack(cells, axis=1)
    expected = np.outer(joined.sum(axis=1), joined.sum(axis=0)) / joined.sum()
    return _chi_square_tail(len(cells) - 1, ((joined - expected) ** 2 / expected).sum())


def _chi_square_tail(dof: int, value: float) -> float:
    # A machine that only trains may have NumPy only.
    from scipy.special import chdtrc

    return float(chdtrc(dof, value))


def even_counts(flags: BoolArray, n_in: Labels, n_references: int, units: IntArray) -> tuple[Labels, Labels]:
    """Numbers of IN and OUT references [records] to keep at each record, such that they do not depend on the flags.

    All records keep equal numbers, with one exception: rare records (`_RARE_SHARE`) with fewer references of one kind
    keep these and more of the other kind, if that reveals nothing. Otherwise they would cost all records references.
    ``flags`` marks the members of the target; ``units`` are records that are independent of each other.
    """
    n_out = n_references - n_in

    def kept(few: float) -> tuple[Labels, Labels]:
        usual_in, usual_out = (int(np.quantile(side, few, method="lower")) for side in (n_in, n_out))
        total = usual_in + usual_out
        inside = np.clip(usual_in, total - n_out, n_in)
        return inside, total - inside

    found = kept(_RARE_SHARE)
    return kept(0.0) if counts_depend_on(flags[units], found[0][units]) else found


def _empty_design(n_models: int, n_points: int, groups: npt.ArrayLike | None) -> tuple[BoolArray, IntArray]:
    """Array [models, units] to fill, where units are points or groups, and the unit of each point."""
    if n_models < 1:
        raise ReferencesError(f"a design of {n_models} models was requested: request at least 1")
    if n_points < 2:
        raise DataError(f"the data have {n_points} records, a design needs at least 2: give more data")
    _require_memory(n_models, n_points)
    unit_of = np.arange(n_points)
    if groups is not None:
        from plmia.data.dataset import checked_groups

        unit_of = np.unique(checked_groups(groups, n_points), return_inverse=True)[1]
    return np.zeros((n_models, int(unit_of.max()) + 1), dtype=np.bool_), unit_of


def _require_memory(n_models: int, n_points: int) -> None:
    """Refuse a design that the machine cannot hold: the system might end the process without a word."""
    # One byte per model and record, and indices of the records.
    needed, present = n_points * (n_models + 16), _memory_bytes()
    if needed > present:
        raise DataError(
            f"a design of {count_text(n_models)} models and {count_text(n_points)} records needs "
            f"{count_text(-(-needed // 10**9))} GB of memory, this machine has {present / 1e9:,.0f} GB: request fewer "
            "references or records"
        )


def _memory_bytes() -> float:
    """Memory of this machine; infinite where the system does not tell."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # AttributeError: Windows
        return math.inf


def _random_order(n: int, rng: np.random.Generator) -> IntArray:
    """Random permutation of 0 .. n - 1 (`Generator.permutation` may change from one version to the next)."""
    return np.argsort(rng.bit_generator.random_raw(n), kind="stable")


def _balance(matrix: BoolArray, rng: np.random.Generator) -> None:
    """Move units from models with too many to models with too few, in place; each unit keeps its number of models."""
    n_models = len(matrix)
    sizes = matrix.sum(axis=1)
    least, extra = divmod(int(sizes.sum()), n_models)
    wanted = np.full(n_models, least)
    wanted[_random_order(n_models, rng)[:extra]] += 1
    surplus = sizes - wanted
    while surplus.any():
        giver, taker = int(surplus.argmax()), int(surplus.argmin())
        movable = np.flatnonzero(matrix[giver] & ~matrix[taker])
        n_moved = min(int(surplus[giver]), -int(surplus[taker]))
        moved = movable[_random_order(len(movable), rng)[:n_moved]]
        matrix[giver, moved] = False
        matrix[taker, moved] = True
        surplus[giver] -= n_moved
        surplus[taker] += n_moved
