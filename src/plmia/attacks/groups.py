"""From records to groups: one statistic per group, such as all records of one person.

An attacker who holds the whole file of a person uses all of its records at once. If records are independent given
membership, the joint log likelihood ratio is the sum of the records' ratios (`SumOverGroup`). Statistics are not always
ratios, and records of one person are not always independent, so `LearnedOverGroup` learns from references that play the
target how much each value of the statistic says about membership, and adds that up.

The law of a sum depends on the number of records. `SizeScale` removes this: it maps the statistic of a non-member to
one common law, whatever the size of its group, again learned from references that play the target. The map increases
within each size, so it changes how groups of different sizes compare and nothing else. No map depends on the target: it
is fixed given the references, so known non-members and queries stay exchangeable.

Conformal p-values compare a group with the known non-members of its range of sizes (`size_ranges`). So error rates are
exact within each range whatever the maps are, and as good as `SizeScale` for each size of a range.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from scipy.special import ndtri

from plmia.data.arrays import BoolArray, FloatArray, IntArray, Labels

# Least number of non-member groups, over all references that play the target, behind the scale of one range of sizes.
MIN_SCALED = 100
# Least number of known non-members in a range of sizes: a p-value of 1 % is then possible in each.
MIN_COMPARED = 100
# False-positive rates at which two ways to combine records are compared, and the standard errors that decide.
_RATES, _CLEARLY = (0.005, 0.01, 0.02, 0.05, 0.1), 2.0
# Weight of the term that keeps the order of the statistic, as a share of the range of the log odds.
_ORDER = 0.01
# With a smaller share of the target's references, a statistic is too noisy to show what that of the target says.
_LEAST_SHARE = 0.7
# Bins of the statistic in which shares of members are counted, and records per bin at least.
MAX_BINS, MIN_IN_BIN = 64, 50
# Up to this many times the lower quartile of the distances from the median, on its side of it, a value is usual.
_USUAL = 64.0
# Values per record that differ by this share are equal: sums of equal records differ by rounding.
_ROUNDING = 1e-9
# Quantiles of the common law at which the scale is stored.
_GRID = np.concatenate([[0.002, 0.005, 0.01, 0.02], np.arange(0.05, 0.96, 0.05), [0.98, 0.99, 0.995, 0.998]])


@dataclass(frozen=True, eq=False)
class Groups:
    """Which records form a group: ``of_record`` [records] are numbers 0 to n - 1."""

    of_record: IntArray
    values: Labels  # [groups]: the groups as they were given

    @classmethod
    def of(cls, given: Labels) -> Groups:
        """Number the groups [records] in increasing order."""
        values, of_record = np.unique(given, return_inverse=True)
        return cls(of_record.astype(np.intp), values)

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def size(self) -> IntArray:
        """Number of records of each group [groups]."""
        return np.bincount(self.of_record, minlength=len(self))

    @cached_property
    def order(self) -> IntArray:
        """Records sorted by group [records]; the records of a group keep their order."""
        return np.argsort(self.of_record, kind="stable")

    @cached_property
    def starts(self) -> IntArray:
        """Position of each group's first record in `order` [groups]."""
        return np.cumsum(self.size) - self.size

    @property
    def first(self) -> IntArray:
        """First record of each group [groups]."""
        return self.order[self.starts]

    def records(self, groups: IntArray) -> IntArray:
        """Records of some groups, in increasing order."""
        chosen = np.zeros(len(self), bool)
        chosen[groups] = True
        return np.flatnonzero(chosen[self.of_record])

    def sum(self, values: FloatArray) -> FloatArray:
        """Return the sum over each group [groups] of ``values`` [records]."""
        return np.bincount(self.of_record, weights=values, minlength=len(self)).astype(np.float64)

    def max(self, values: FloatArray) -> FloatArray:
        """Return the maximum over each group [groups] of ``values`` [records]."""
        return np.maximum.reduceat(values[self.order], self.starts)


@dataclass(frozen=True, eq=False)
class Played:
    """A reference in the role of the target: its statistic, and the groups that it trained on."""

    phi: FloatArray  # [records]
    members: BoolArray  # [groups]
    share: float = 1.0  # of the target's references that it was attacked with


class FittedGroups(Protocol):
    """A fitted group statistic."""

    def __call__(self, phi: FloatArray, groups: Groups) -> FloatArray:
        """Return one value per group [groups], larger for members, from the statistic of all records [records]."""


@runtime_checkable
class GroupStatistic(Protocol):
    """How the statistics of a group's records become one. Subclass it for the defaults.

    It is a frozen value. What `fit` returns must not depend on the order of records or groups, nor on anything but a
    group's own records and what was learned from references.
    """

    scaled: ClassVar[bool] = True
    """Whether the law of the result depends on the size of a group, so that `SizeScale` must remove it."""

    @abstractmethod
    def fit(self, played: Sequence[Played], groups: Groups) -> FittedGroups:
        """Learn from references that play the target."""


class PlainGroupStatistic(GroupStatistic, Protocol):
    """A group statistic that learns nothing. Subclass it and write ``__call__``, as in `FittedGroups`."""

    def fit(self, played: Sequence[Played], groups: Groups) -> FittedGroups:
        """Return itself."""
        del played, groups
        return self

    @abstractmethod
    def __call__(self, phi: FloatArray, groups: Groups) -> FloatArray:
        """Return one value per group [groups]."""


@dataclass(frozen=True)
class OneRow(PlainGroupStatistic):
    """The statistic of one record of each group, drawn at random: what an attacker with a single record can do."""

    seed: int = 0
    scaled: ClassVar[bool] = False

    def chosen(self, groups: Groups) -> IntArray:
        """Return the drawn record of each group [groups]."""
        order = np.random.default_rng([self.seed, 3]).permutation(len(groups.of_record))
        _, first = np.unique(groups.of_record[order], return_index=True)
        return order[first]

    def __call__(self, phi: FloatArray, groups: Groups) -> FloatArray:
        """Return the statistic of the drawn records."""
        return phi[self.chosen(groups)]


@dataclass(frozen=True)
class MaxOverGroup(PlainGroupStatistic):
    """The largest statistic of the group's records."""

    def __call__(self, phi: FloatArray, groups: Groups) -> FloatArray:
        """Return the maxima."""
        return groups.max(phi)


@dataclass(frozen=True)
class SumOverGroup(PlainGroupStatistic):
    """The sum: the joint log likelihood ratio, if the statistic is one and records are independent."""

    def __call__(self, phi: FloatArray, groups: Groups) -> FloatArray:
        """Return the sums."""
        return groups.sum(phi)


@dataclass(frozen=True)
class LearnedOverGroup(GroupStatistic):
    """The sum of what each record's statistic says about membership, learned from references that play the target.

    The share of members among records with a similar statistic, made monotone, gives the log odds of a record. They
    are a likelihood ratio even where the statistic is not, so that one extreme record cannot outweigh all others. Where
    the statistic is a ratio already, they would only add noise: the plain sum is taken unless the log odds find clearly
    more members of references that they were not learned from. With few references, the sum is always taken: those that
    play the target have too few references left.
    """

    def fit(self, played: Sequence[Played], groups: Groups) -> FittedGroups:
        """Learn the log odds from all records of the references that play the target."""
        if len(played) < 2 or min(each.share for each in played) < _LEAST_SHARE:
            return SumOverGroup()
        gains = []
        for i, judged in enumerate(played):
            odds = LogOdds.learn([*played[:i], *played[i + 1 :]], groups)
            gains.append(_found(odds, judged, groups) - _found(SumOverGroup(), judged, groups))
        error = float(np.std(gains, ddof=1)) / len(gains) ** 0.5
        return LogOdds.learn(played, groups) if np.mean(gains) > _CLEARLY * error else SumOverGroup()


def _found(statistic: FittedGroups, judged: Played, groups: Groups) -> float:
    """Share of the members that are found, mean over low false-positive rates, among groups of the commonest size.

    Of a single record every increasing function finds the same, so larger groups decide, if there are any.
    """
    counts = np.bincount(groups.size)
    own = groups.size == (2 + np.argmax(counts[2:]) if len(counts) > 2 else 1)
    value = statistic(judged.phi, groups)
    members, others = value[own & judged.members], value[own & ~judged.members]
    if not len(members) or not len(others):
        return 0.0
    return float(np.mean([np.mean(members > cut) for cut in np.quantile(others, 1 - np.array(_RATES))]))


@dataclass(frozen=True, eq=False)
class LogOdds:
    """Log odds of membership as an increasing function of the statistic: lines between ``at`` and ``odds`` [knots]."""

    at: FloatArray
    odds: FloatArray

    @classmethod
    def learn(cls, played: Sequence[Played], groups: Groups) -> LogOdds:
        """Count members in bins of the statistic, and make the shares increase."""
        from scipy.optimize import isotonic_regression

        phi = np.concatenate([each.phi for each in played])
        members = np.concatenate([each.members[groups.of_record] for each in played])
        order = np.argsort(phi, kind="stable")
        n_bins = int(np.clip(len(phi) // MIN_IN_BIN, 2, MAX_BINS))
        bins = np.array_split(order, n_bins)
        n = np.array([len(part) for part in bins], np.float64)
        inside = np.array([np.count_nonzero(members[part]) for part in bins], np.float64)
        # Half a record on either side keeps the odds finite.
        share = isotonic_regression((inside + 0.5) / (n + 1), weights=n).x
        odds = np.log(share / (1 - share)) - np.log((inside.sum() + 0.5) / (n.sum() - inside.sum() + 0.5))
        at = np.array([phi[part].mean() for part in bins])
        at, first = np.unique(at, return_index=True)
        return cls(at, odds[first])

    def __call__(self, phi: FloatArray, groups: Groups) -> FloatArray:
        """Return the sums of the log odds."""
        return groups.sum(self.of(phi))

    def of(self, phi: FloatArray) -> FloatArray:
        """Return the log odds of records; see `line` for what lies beyond the knots.

        Where shares of members are level, a small term keeps the order of the statistic. It is bounded, so that one
        extreme record still cannot outweigh the others.
        """
        low, middle, high = np.quantile(self.at, [0.25, 0.5, 0.75])
        order = np.arctan((phi - middle) / (high - low if high > low else 1.0))
        return np.asarray(line(phi, self.at, self.odds) + _ORDER * (self.odds[-1] - self.odds[0]) * order)


def line(x: FloatArray, at: FloatArray, value: FloatArray) -> FloatArray:
    """Interpolate; beyond both ends go on with the mean slope of the outer quarter of the knots."""
    if len(at) < 2:
        return np.asarray(x - at[0] + value[0])
    k = max(1, len(at) // 4)
    y: FloatArray = np.interp(x, at, value)
    low, high = ((value[b] - value[a]) / (at[b] - at[a]) for a, b in ((0, k), (-1 - k, -1)))
    return np.asarray(y + low * np.minimum(x - at[0], 0) + high * np.maximum(x - at[-1], 0))


@dataclass(frozen=True, eq=False)
class Bounds:
    """Limits of a value: an increasing function, the identity for usual values.

    A value is usual within ``below`` and ``above`` of the middle. The result is at most twice as far away.
    """

    middle: float
    below: float
    above: float

    @classmethod
    def learn(cls, values: FloatArray) -> Bounds:
        """Learn from values [n]; up to three quarters on either side of the median may be arbitrarily far away.

        Values equal to the median, up to rounding, do not count, so ties do not narrow the bounds. All values are usual
        on a side that has no others.
        """
        middle = float(np.median(values))
        distance = values - middle
        sides = -distance[distance < -_ROUNDING * abs(middle)], distance[distance > _ROUNDING * abs(middle)]
        below, above = (_USUAL * float(np.quantile(side, 0.25)) if len(side) else np.inf for side in sides)
        return cls(middle, below, above)

    def __call__(self, values: FloatArray) -> FloatArray:
        """Return the values [n] within the limits."""
        bounded = values.copy()
        for sign, usual in ((-1, self.below), (1, self.above)):
            beyond = sign * (values - self.middle) - usual
            far = beyond > 0
            bounded[far] = self.middle + sign * usual * (1 + beyond[far] / (usual + beyond[far]))
        return bounded


@dataclass(frozen=True, eq=False)
class SizeScale:
    """Maps the value of a non-member group to one law for all sizes; `learn` makes one.

    Values that are far out per record are bounded first, since means and deviations say nothing otherwise: where
    references agree to the last digit, a log ratio may be 1e13. A value is divided by what the mean and the deviation
    of non-members of its size are, as functions of the size. Then the quantiles of non-members in its range of sizes
    are mapped to those of a normal law.
    """

    bounds: Bounds  # of the value per record
    mean: FloatArray  # [2]: of the value per record and of the square root of the size
    variance: FloatArray  # [2]: per record, and per pair of records
    edges: IntArray  # [ranges - 1]: the first size of each range but the first
    quantiles: FloatArray  # [ranges, grid]: strictly increasing
    unit: float  # deviation of the value of an average group, so that the result has the scale of the statistic

    @classmethod
    def learn(cls, values: FloatArray, sizes: IntArray) -> SizeScale:
        """Learn from the values [n] of non-member groups of all references that play the target."""
        n = sizes.astype(np.float64)
        bounds = Bounds.learn(values / n)
        centred, mean, variance = _by_size(_bounded(values, n, bounds), n)
        edges = size_ranges(sizes, MIN_SCALED)
        which = np.searchsorted(edges, sizes, side="right")
        quantiles = np.stack([_increasing(np.quantile(centred[which == k], _GRID)) for k in range(len(edges) + 1)])
        middle = float(np.median(n))
        return cls(bounds, mean, variance, edges, quantiles, float(np.sqrt(variance @ [middle, middle**2])))

    def __call__(self, values: FloatArray, sizes: IntArray) -> FloatArray:
        """Return the values [groups] of groups of these sizes on the common scale."""
        n = sizes.astype(np.float64)
        centred = _centred(_bounded(values, n, self.bounds), n, self.mean, self.variance)
        which = np.searchsorted(self.edges, sizes, side="right")
        scaled = np.empty(len(values))
        for k, quantiles in enumerate(self.quantiles):
            own = which == k
            scaled[own] = line(centred[own], quantiles, ndtri(_GRID))
        return self.unit * scaled


def _bounded(values: FloatArray, n: FloatArray, bounds: Bounds) -> FloatArray:
    """Bound the values of groups of sizes n per record; usual values stay as they are."""
    per_record = values / n
    within = bounds(per_record)
    return np.where(within == per_record, values, n * within)


def _by_size(values: FloatArray, n: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Fit mean and variance as functions of the size n; return centred values and both."""
    basis = np.stack([n, np.sqrt(n)], axis=1)
    mean = np.linalg.lstsq(basis, values, rcond=None)[0]
    square = (values - basis @ mean) ** 2
    # Variances that are not negative: of independent records n times that of one, of equal records n^2 times.
    basis = np.stack([n, n**2], axis=1)
    weight = 1 / n**2
    variance = _non_negative(basis * weight[:, None], square * weight)
    return _centred(values, n, mean, variance), mean, variance


def _non_negative(basis: FloatArray, y: FloatArray) -> FloatArray:
    from scipy.optimize import nnls

    found = np.asarray(nnls(basis, y)[0])
    return found if found.any() else np.array([1.0, 0.0])


def _centred(values: FloatArray, n: FloatArray, mean: FloatArray, variance: FloatArray) -> FloatArray:
    deviation = np.sqrt(variance[0] * n + variance[1] * n**2)
    return np.asarray((values - mean[0] * n - mean[1] * np.sqrt(n)) / deviation)


def size_ranges(sizes: IntArray, least: int = MIN_COMPARED) -> IntArray:
    """First sizes of all ranges but the first: neighbouring sizes are joined until each has ``least`` groups.

    ``numpy.searchsorted(result, size, side="right")`` is the range of a size.
    """
    counts = np.bincount(sizes)
    edges: list[int] = []
    left, gathered = len(sizes), 0
    for size, count in enumerate(counts):
        gathered += int(count)
        if gathered >= least and left - gathered >= least:
            edges.append(size + 1)
            left, gathered = left - gathered, 0
    return np.array(edges, np.intp)


def _increasing(quantiles: FloatArray) -> FloatArray:
    """Move equal quantiles apart by the least that keeps their order."""
    step = max(float(np.ptp(quantiles)), 1.0) * 1e-9
    return np.asarray(np.maximum.accumulate(quantiles) + step * np.arange(len(quantiles)))
