"""The Cauchy combination of all pairwise p-values (``eq:cauchy_cali``), at linear cost and in logs.

The score of a query is ``S(phi) = mean over z of T(phi - phi_z)``, everything in units of ``sigma_delta``, with
``T(x) = cot(pi Phi(-x))``. The formula as written saturates near 8 sigma and costs queries x population. Here

* ``T(x) = A(x) - A(-x)`` with A positive (:func:`plmia.numerics.log_cauchy_kernel`), so ``n S = P - N`` with
  ``P(phi) = sum A(phi - z)`` and ``N(phi) = sum A(z - phi)``, N being the mirror image of P;
* P is summed in logs, relative to its largest term, over the z that matter;
* P is interpolated between Chebyshev nodes, in phi and in z. Interpolation is linear and A is positive, so a
  relative error of at most eps for each A is one of at most eps for P, for any data.

Written by hand because no library sums a kernel that spans hundreds of powers of ten; `benchmarks/scoring.py` compares
it with the exact sum.

Why few nodes are enough. The slope of ``log A`` is even in x, at least ``max(|x|, 1.25)``, and close to that.
Hence ``log A(X) - log A(x) >= (X|X| - x|x|) / 2`` for x < X: with X the largest difference of a query, only the
z with ``x|x|`` within ``2 (log n + 37)`` of ``X|X|`` matter; all others together are below 1e-16 of P. They lie in
a window next to the smallest z, at most ``2 sqrt(log n + 37)`` (some 14 sigma) wide, and ever shorter for
queries far out. Within it the slopes of the terms differ by little more than 10. So once the common exponential
trend of a cell is divided out, the rest is as smooth far out as near the centre.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plmia.data.arrays import FloatArray, IntArray, Labels
from plmia.data.threads import in_order
from plmia.errors import PlmiaError, PopulationError
from plmia.numerics import SignedLog, log_abs_cauchy_transform, log_cauchy_kernel, strictly_increasing

__all__ = ["SignedLog", "cauchy_mean", "cauchy_mean_exact"]

_NODES = 16
# Half-width of a cell in sigma. A is analytic within 2.1 sigma of the real axis, so 16 nodes leave 17^-16.
_HALF_WIDTH = 0.25
# Half-width of a cell times the steepest slope of log A in it: 16 nodes resolve exp(1.5 t) to 1e-14.
_SLOPE_WIDTH = 1.5
# -log of the share of a sum that may be neglected.
_NEGLIGIBLE = 37.0
# Beyond this difference log A, about x^2 / 2, is rounded to 1e-4, which is not smooth enough to interpolate.
_FAR = 1e6
# The square of a difference must not overflow.
_MAX_SIZE = 5e149
# |log P - log N| below which P - N has lost too many digits, the number of queries that are summed directly there, and
# the number of nodes if there are more: even, so that no node falls on the zero in their middle.
_CANCELLATION = 1e-2
_FEW_NEAR_ZERO = 32
_NODES_NEAR_ZERO = 8
# Entries of one temporary (an eighth of a MiB of float64: several of them fit the cache).
_BLOCK = 1 << 14
_EXACT_PAIRS = 2_000_000
# Queries per block, so that temporaries stay small compared with the queries.
_QUERIES = 1 << 13


def cauchy_mean_exact(differences: npt.ArrayLike, count: npt.ArrayLike | None = None) -> SignedLog:
    """Mean [Q] of the Cauchy transform over the last axis of ``differences`` [Q, Z] in units of sigma, term by term.

    The sum is divided by ``count``, Z by default. A difference of 0 adds ``T(0) = 0``, so a pair is excluded by setting
    its difference to 0 and counting one less. Temporaries have the size of ``differences``: call it in blocks.
    """
    x = np.asarray(differences, dtype=np.float64)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise PopulationError("the population is empty: the Cauchy combination needs at least 1 record in it")
    divisor = np.asarray(x.shape[-1] if count is None else count, dtype=np.float64)
    if not (divisor > 0.0).all():
        raise PopulationError(f"the count of population records is {divisor.min()}: at least 1 is needed")
    _require_usable(x, "differences")
    top = _log_scale(np.abs(x).max(axis=-1))
    return _signed_log(_scaled_sum(x, top), top - np.log(divisor))


def cauchy_mean(queries: npt.ArrayLike, population: npt.ArrayLike, *, exact_below: int = _EXACT_PAIRS) -> SignedLog:
    """Mean over the population of the Cauchy transform of ``query - z``, at a cost linear in both.

    The result has the order of the queries: equal queries have identical results, and a larger query has a strictly
    larger ``(sign, log_abs)`` and ``asinh()``. (Some may tie if more than 16,000 distinct queries lie within 1e-10
    sigma of each other.) It does not depend on the order of the queries or of the population.

    ``log_abs`` is within ``1e-9 * max(1, |log_abs|)`` of the exact value if ``|S|`` is at least 1e-6 of the mean of
    ``|T|``; closer to its zero, S is accurate to 1e-15 of that mean. Both arguments are statistics in units of sigma.
    Terms are summed one by one if distinct queries times population points are fewer than ``exact_below``.
    """
    q = np.asarray(queries, dtype=np.float64)
    z = np.asarray(population, dtype=np.float64)
    if q.ndim != 1 or z.ndim != 1:
        raise PlmiaError(f"queries have shape {q.shape}, the population {z.shape}: both must have one axis")
    if z.size == 0:
        raise PopulationError("the population is empty: the Cauchy combination needs at least 1 record in it")
    _require_usable(q, "queries")
    _require_usable(z, "the population")
    if q.size == 0:
        return SignedLog(np.empty(0), np.empty(0))
    unique, inverse = _distinct(q)
    mean = _mean_direct if unique.size * z.size < exact_below else _mean_interpolated
    z = np.sort(z)
    del queries, population, q  # free memory, unless callers keep them
    return strictly_increasing(mean(unique, z), inverse)


def _distinct(values: FloatArray) -> tuple[FloatArray, Labels]:
    """Return what `numpy.unique` returns with the inverse, in less memory."""
    order = np.argsort(values)
    ordered = values[order]
    new = np.ones(len(values), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    distinct = ordered[new]
    del ordered
    small = np.int32 if values.size < 1 << 31 else np.intp
    number: Labels = np.cumsum(new, dtype=small)
    np.subtract(number, 1, out=number)
    inverse: Labels = np.empty(len(values), small)
    inverse[order] = number
    return distinct, inverse


def _require_usable(values: FloatArray, name: str) -> None:
    bad = ~(np.abs(values) <= _MAX_SIZE)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise PlmiaError(
            f"{name}: {values[where]} at index {', '.join(map(str, where))}, "
            f"but values in units of sigma must be finite and at most {_MAX_SIZE:g} in size"
        )


def _log_scale(x: FloatArray) -> FloatArray:
    """Return log|T(x)|, or 0 where x is 0: a scale that can always be subtracted."""
    return np.where(x == 0.0, 0.0, log_abs_cauchy_transform(x))


def _scaled_sum(x: FloatArray, top: FloatArray) -> FloatArray:
    """Sum T(x) exp(-top) over the last axis; with the largest log|T| as top, no term exceeds 1."""
    terms = np.exp(log_abs_cauchy_transform(x) - top[..., None])
    return np.asarray(np.copysign(terms, x).sum(axis=-1))


def _signed_log(scaled: FloatArray, log_scale: FloatArray | float) -> SignedLog:
    with np.errstate(divide="ignore"):
        return SignedLog(np.sign(scaled), np.log(np.abs(scaled)) + log_scale)


def _mean_direct(queries: FloatArray, population: FloatArray) -> SignedLog:
    """Mean of T at the queries, summed term by term over the sorted population, in blocks."""
    top = _log_scale(np.maximum(np.abs(queries - population[0]), np.abs(queries - population[-1])))
    total = np.zeros_like(queries)
    columns = min(population.size, _BLOCK)
    rows = _BLOCK // columns
    for row in range(0, queries.size, rows):
        part = slice(row, row + rows)
        for column in range(0, population.size, columns):
            block = queries[part, None] - population[column : column + columns]
            total[part] += _scaled_sum(block, top[part])
    return _signed_log(total, top - math.log(population.size))


def _mean_interpolated(queries: FloatArray, population: FloatArray) -> SignedLog:
    """Mean of T at sorted queries, from the interpolated P and N, some queries at a time."""
    low, high = population[0], population[-1]
    p = _LogSums.of(population - low, queries[0] - low, queries[-1] - low)
    n = _LogSums.of((high - population)[::-1], high - queries[-1], high - queries[0])
    sign, log_abs = np.empty_like(queries), np.empty_like(queries)

    def put(start: int) -> IntArray:
        """Fill in the mean at some queries, and return where P and N nearly cancel."""
        part = slice(start, start + _QUERIES)
        log_p, log_n = p.at(queries[part] - low), n.at((high - queries[part])[::-1])[::-1]
        gap = log_p - log_n
        larger = np.maximum(log_p, log_n) - math.log(population.size)
        sign[part], log_abs[part] = _signed_log(np.copysign(np.expm1(-np.abs(gap)), gap), larger)
        return start + np.flatnonzero(np.abs(gap) < _CANCELLATION)

    first, last = queries.size, 0
    for near in in_order(put, range(0, queries.size, _QUERIES)):
        if near.size:
            first, last = min(first, int(near[0])), int(near[-1]) + 1
    # log P - log N grows with a slope of at least 2.5: the queries at which P and N cancel are one short stretch.
    if first < last:
        stretch = slice(first, last)
        sign[stretch], log_abs[stretch] = _mean_near_zero(queries[stretch], population)
    return SignedLog(sign, log_abs)


def _mean_near_zero(queries: FloatArray, population: FloatArray) -> SignedLog:
    """Mean of T on the short stretch around its zero, to a small share of the mean of |T| itself."""
    # With r next to the zero, S(phi) = S(r) + (phi - r) E(phi): the factor phi - r is exact, and the divided difference
    # E is positive and next to constant. Nodes symmetric around r, none of them close to it, keep E as accurate as S.
    if queries.size <= _FEW_NEAR_ZERO:
        return _mean_direct(queries, population)
    root = _zero_of_mean(queries[0], queries[-1], population)
    half_width = max(queries[-1] - root, root - queries[0])
    nodes, transform = _chebyshev(_NODES_NEAR_ZERO)
    at = np.append(root + half_width * nodes, root)
    sign, log_abs = _mean_direct(at, population)
    top = log_abs.max()
    value = sign * np.exp(log_abs - top)
    coefficients = np.einsum("kj,j->k", transform, (value[:-1] - value[-1]) / (at[:-1] - root))
    one_cell = np.zeros(queries.size, dtype=np.intp)
    slope = _clenshaw(coefficients[:, None], one_cell, (queries - root) / half_width)
    return _signed_log(value[-1] + (queries - root) * slope, top)


def _zero_of_mean(first: float, last: float, population: FloatArray) -> float:
    """Find the number at which the mean of T is next to 0 by the secant rule, from two numbers close to it."""
    sign, log_abs = _mean_direct(np.array([first, last]), population)
    top = log_abs.max()
    (x0, x1), (f0, f1) = (first, last), sign * np.exp(log_abs - top)
    if abs(f0) < abs(f1):
        x0, x1, f0, f1 = x1, x0, f1, f0
    while f1 != 0.0 and f1 != f0:
        x = x1 - f1 * (x1 - x0) / (f1 - f0)
        sign, log_abs = _mean_direct(np.array([x]), population)
        f = sign[0] * math.exp(min(log_abs[0] - top, 0.0))
        if abs(f) >= abs(f1):  # as close as rounding permits
            break
        x0, x1, f0, f1 = x1, x, f1, f
    return float(x1)


@dataclass(frozen=True)
class _LogSums:
    """log P as a function of y = phi - min z: weighted sources that stand for the population."""

    sources: FloatArray
    weights: FloatArray
    reach: float

    @classmethod
    def of(cls, d: FloatArray, first: float, last: float) -> _LogSums:
        """Prepare for first <= y <= last, given the sorted d = z - min z."""
        reach = math.log(d.size) + _NEGLIGIBLE
        # The window is widest at y = sqrt(reach), and shrinks from there on both sides.
        ends = np.array([first, last, min(max(math.sqrt(reach), first), last)])
        edges = _source_edges(float(_window(ends, reach).max()), float(np.abs(ends).max()), reach)
        return cls(*_compress(d, edges), reach)

    def at(self, y: FloatArray) -> FloatArray:
        """Return log P at sorted y: interpolated in cells that hold more of them than nodes, summed elsewhere."""
        cell = np.floor(y / (2.0 * _HALF_WIDTH))
        starts = np.flatnonzero(np.diff(cell, prepend=np.nan) != 0.0)
        counts = np.diff(starts, append=y.size)
        dense = (counts > _NODES) & (np.abs(y[starts]) < _FAR)
        inside = np.repeat(dense, counts)
        out = np.empty_like(y)
        out[~inside] = self._summed(y[~inside])
        centres = (cell[starts[dense]] + 0.5) * (2.0 * _HALF_WIDTH)
        nodes = (centres[:, None] + _HALF_WIDTH * _chebyshev(_NODES)[0]).ravel()
        node_logs = self._summed(nodes).reshape(-1, _NODES)
        which = np.repeat(np.arange(centres.size), counts[dense])
        out[inside] = _interpolate_logs(node_logs, which, (y[inside] - centres[which]) / _HALF_WIDTH)
        return out

    def _summed(self, y: FloatArray) -> FloatArray:
        """Log of the sum of weights * A(y - sources) at sorted y, over the sources that matter."""
        out = np.empty_like(y)
        windows = _window(y, self.reach)
        rows = max(1, _BLOCK // self.sources.size)
        for start in range(0, y.size, rows):
            part = slice(start, start + rows)
            used = max(1, int(np.searchsorted(self.sources, windows[part].max(), side="right")))
            logs = log_cauchy_kernel(y[part, None] - self.sources[:used])
            top = logs[:, 0]  # the largest: A increases, and the sources are sorted
            # einsum and not a matrix product: its result does not depend on the number of threads.
            out[part] = np.log(np.einsum("ij,j->i", np.exp(logs - top[:, None]), self.weights[:used])) + top
        return out


def _interpolate_logs(node_logs: FloatArray, cell: IntArray, t: FloatArray) -> FloatArray:
    """Interpolate exp(node_logs [cells, nodes]) at t in [-1, 1] of the given cells; return logs."""
    nodes, transform = _chebyshev(_NODES)
    # The trend exp(slope t) can span hundreds of powers of ten within a cell; without it all values are near 1.
    slope = (node_logs[:, -1] - node_logs[:, 0]) / (nodes[-1] - nodes[0])
    level = node_logs - slope[:, None] * nodes
    top = level.max(axis=1)
    coefficients = np.einsum("kj,cj->kc", transform, np.exp(level - top[:, None]))
    return np.asarray(np.log(_clenshaw(coefficients, cell, t)) + slope[cell] * t + top[cell])


def _compress(d: FloatArray, edges: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Replace the points d by sorted, weighted sources: nodes in cells that hold more points than nodes."""
    bounds = np.searchsorted(d, edges)
    counts = np.diff(bounds)
    dense = counts > _NODES
    points, inside = d[: bounds[-1]], np.repeat(dense, counts)
    centres = 0.5 * (edges[1:] + edges[:-1])[dense]
    half_widths = 0.5 * (edges[1:] - edges[:-1])[dense]
    nodes, transform = _chebyshev(_NODES)
    which = np.repeat(np.arange(centres.size), counts[dense])
    moments = _chebyshev_moments((points[inside] - centres[which]) / half_widths[which], counts[dense])
    sources = np.append(points[~inside], centres[:, None] + half_widths[:, None] * nodes)
    # The weight of a node is its Lagrange polynomial, summed over the points of the cell.
    weights = np.append(np.ones(np.count_nonzero(~inside)), np.einsum("kc,kj->cj", moments, transform))
    order = np.argsort(sources, kind="stable")
    return sources[order], weights[order]


def _source_edges(width: float, farthest: float, reach: float) -> FloatArray:
    """Cut 0 <= d <= width into cells as narrow as the steepest log A(y - d) that matters in each demands."""
    # At a distance d from the smallest z, terms matter only up to |x| = reach / d + d / 2: solve
    # ``X|X| - x|x| <= 2 reach`` with ``x = X - d``.
    edges = [0.0]
    while edges[-1] <= width:
        d = edges[-1]
        steepest = farthest + d
        if d * steepest > reach:
            steepest = min(steepest, reach / d + 0.5 * d)
        edges.append(d + 2.0 * min(_HALF_WIDTH, _SLOPE_WIDTH / max(steepest, 1.0)))
    return np.array(edges)


def _window(y: FloatArray, reach: float) -> FloatArray:
    """Largest d that matters at y: y|y| - x|x| = 2 reach with x = y - d, without cancellation."""
    size = np.abs(y)
    root = np.sqrt(np.abs(y * size - 2.0 * reach))
    short = (y < 0.0) | (y * size > 2.0 * reach)
    return np.where(short, 2.0 * reach / (size + root), y + root)


def _chebyshev(nodes: int) -> tuple[FloatArray, FloatArray]:
    """Ascending Chebyshev nodes [nodes], and the matrix [degree, node] from values there to coefficients."""
    angle = (np.arange(nodes)[::-1] + 0.5) * (math.pi / nodes)
    transform = np.cos(np.arange(nodes)[:, None] * angle) * (2.0 / nodes)
    transform[0] *= 0.5
    return np.cos(angle), transform


def _chebyshev_moments(t: FloatArray, counts: IntArray) -> FloatArray:
    """Sum T_0 .. T_15 at t over consecutive groups of the given sizes, shape [degree, group]."""
    starts = np.cumsum(counts) - counts
    moments = np.empty((_NODES, counts.size))
    now, after = np.ones_like(t), t
    for degree in range(_NODES):
        moments[degree] = np.add.reduceat(now, starts)
        now, after = after, 2.0 * t * after - now
    return moments


def _clenshaw(coefficients: FloatArray, cell: IntArray, t: FloatArray) -> FloatArray:
    """Chebyshev series with the coefficients [degree, cells] of each cell, at t in [-1, 1] of that cell."""
    twice = 2.0 * t
    now, after = coefficients[-1].take(cell), np.zeros_like(t)
    for row in coefficients[-2:0:-1]:
        now, after = twice * now - after + row.take(cell), now
    return np.asarray(t * now - after + coefficients[0].take(cell))
