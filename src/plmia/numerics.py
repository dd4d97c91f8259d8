"""Stable formulas, each written once: confidences on the logit scale, the Cauchy transform, numbers as logarithms.

All functions work elementwise (or along one axis of classes) and in float64 unless stated otherwise. They stay finite
and accurate for every finite input that their documentation allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import erf, erfcx, log_expit, ndtr

from plmia.data.arrays import BoolArray, FloatArray, Floats, IntArray, Labels
from plmia.data.threads import in_order
from plmia.errors import SignalsError

# Beyond six sigma the tail u = Phi(-x) is below 1e-9, so tan(pi u) = pi u (1 + 3e-18): the far formula is exact.
_FAR_TAIL = 6.0
# Up to here the central formula through erf keeps the relative precision of T near its zero at x = 0.
_CENTRE = 1.0
_SQRT_HALF = math.sqrt(0.5)

# Strict order: log|S| is kept on a grid of 2^-45 (relative 2^-49 above 16), coarse enough for asinh to keep its points
# distinct; a query moves up by at most 2^14 steps (5e-10) to stay above the query before it.
_GRID_SHIFT = 3
_GRID_ORIGIN = 16.0
_GRID_ORIGIN_BITS = int(np.array(_GRID_ORIGIN).view(np.int64))
# Length of temporary arrays.
_BLOCK = 1 << 14
# Values that are sorted to be looked up: the more, the nearer are neighbours.
_SORTED = 1 << 17
_MAX_STEPS = 1 << 14
_LOG_SMALLEST = -700.0


def logit_from_logits(logits: npt.ArrayLike, labels: npt.ArrayLike) -> FloatArray:
    """Logit-scaled confidence of the true label, from class logits.

    Under the softmax, ``log p_y - log(1 - p_y)`` equals ``z_y - logsumexp(z_c, c != y)``. This form does not
    saturate: a confidence of 500 is returned as 500, where the softmax itself would be rounded to 1.

    Parameters
    ----------
    logits : array_like of float, shape [..., classes]
        Unnormalised class scores; finite, at least two classes.
    labels : array_like of int, shape [...]
        True class of each row, in ``0 .. classes - 1``; labels ``[records]`` are broadcast to logits
        ``[models, records, classes]``.

    Raises
    ------
    SignalsError
        For fewer than two classes, labels that do not fit, or logits that are not finite.
    """
    z = np.array(logits, dtype=np.float64)
    if z.ndim == 0 or z.shape[-1] < 2:
        classes = z.shape[-1] if z.ndim else 0
        raise SignalsError(f"logits have {classes} classes on their last axis, 2 are needed: pass [..., classes]")
    bad = ~np.isfinite(z)
    if bad.any():
        raise SignalsError(f"logits hold {_first(z, bad)}: every logit must be finite")
    y = _labels_as_index(labels, z.shape)
    own = np.take_along_axis(z, y, axis=-1)
    np.put_along_axis(z, y, -np.inf, axis=-1)
    top = z.max(axis=-1, keepdims=True)
    z -= top
    others = np.log(np.exp(z, out=z).sum(axis=-1))
    # own - top is taken first: with two classes it is the exact answer, and `others` is exactly zero.
    confidence: FloatArray = (own - top)[..., 0] - others
    return confidence


def logit_from_probabilities(p: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> tuple[FloatArray, int]:
    """Logit-scaled confidence from stored probabilities, and the number of them that were clipped.

    A stored 1 may be any value that rounds to 1, so it is clipped to the largest number below 1 of the dtype it was
    stored in: a confidence of 7.6 for float16, 16.6 for float32, 36.7 for float64. Near 0 floating point is much finer,
    so only 0 is clipped, to the smallest positive number. Clipping never reorders two probabilities.

    Parameters
    ----------
    p : array_like of float, shape [...]
        Probabilities of the true label.
    dtype : dtype, optional
        Floating dtype in which the probabilities were stored; default: that of ``p`` (float64 if not floating).

    Returns
    -------
    confidence : ndarray of float64, shape [...]
        ``log p - log(1 - p)``, always finite.
    n_clipped : int
        Number of entries that were changed by the clipping.

    Raises
    ------
    SignalsError
        For a probability that is NaN or outside [0, 1].
    """
    given = np.asarray(p)
    stored = np.dtype(given.dtype if dtype is None else dtype)
    if not np.issubdtype(stored, np.floating):
        if dtype is not None:
            raise SignalsError(f"probabilities cannot be stored as {stored}: name a floating dtype")
        stored = np.dtype(np.float64)
    value = given.astype(np.float64)
    bad = ~((value >= 0.0) & (value <= 1.0))
    if bad.any():
        raise SignalsError(f"probabilities hold {_first(value, bad)}: every probability must lie in [0, 1]")
    # A dtype wider than float64 passes through float64 here, so it has no finer resolution.
    info = np.finfo(stored if stored.itemsize <= 8 else np.float64)
    # The smallest normal number cannot be the lower end: it lies above every subnormal probability, and in float16
    # these begin at 6e-5.
    low, high = float(info.smallest_subnormal), 1.0 - float(info.epsneg)
    clipped = np.clip(value, low, high)
    confidence: FloatArray = np.log(clipped) - np.log1p(-clipped)
    return confidence, int(np.count_nonzero(clipped != value))


def log_sigmoid(x: npt.ArrayLike) -> Floats:
    """Logarithm of the logistic function, ``-log(1 + exp(-x))``, stable on both sides.

    For a confidence ``x`` this is ``log p_y``, and ``log_sigmoid(-x)`` is ``log(1 - p_y)``. The result is float32 for
    float16 and float32 input, float64 otherwise.
    """
    values = np.asarray(x)
    narrow = values.dtype in (np.float16, np.float32)
    return np.asarray(log_expit(values.astype(np.float32 if narrow else np.float64, copy=False)))


def log_cauchy_kernel(x: npt.ArrayLike) -> FloatArray:
    """Logarithm of the positive half of the Cauchy transform.

    The Cauchy transform (``eq:cauchy_cali``) of the pairwise p-value ``u = Phi(-x)`` (``eq:p_value``) is
    ``T(x) = cot(pi u)``. It splits as ``T(x) = A(x) - A(-x)`` with ``A(x) = cot(pi u / 2) / 2``, because
    ``2 cot(2a) = cot(a) - tan(a)``. A is positive and increasing, so sums of A never cancel, and
    ``A(x) A(-x) = 1/4`` makes ``log A`` odd around ``-log 2``.

    ``x`` are differences in units of sigma: finite, up to 1e150 in size. The absolute error of ``log A`` is about
    ``1e-15 * max(1, |log A|)``.
    """
    values = np.asarray(x, dtype=np.float64)
    size = np.asarray(np.abs(values))
    far = size > _FAR_TAIL
    odd = np.empty_like(size)
    odd[~far] = -np.log(np.tan(0.5 * math.pi * ndtr(-size[~far])))
    odd[far] = _log_cauchy_far(size[far]) + math.log(2.0)
    return np.asarray(np.copysign(odd, values) - math.log(2.0))


def log_abs_cauchy_transform(x: npt.ArrayLike) -> FloatArray:
    """Logarithm of the size of the Cauchy transform ``T(x) = tan(pi (Phi(x) - 1/2))``; T has the sign of x.

    Accurate like :func:`log_cauchy_kernel`; ``-inf`` where x is 0.
    """
    size = np.asarray(np.abs(np.asarray(x, dtype=np.float64)))
    far, centre = size > _FAR_TAIL, size < _CENTRE
    between = ~(far | centre)
    out = np.empty_like(size)
    with np.errstate(divide="ignore"):  # T(0) = 0
        out[centre] = np.log(np.tan(0.5 * math.pi * erf(size[centre] * _SQRT_HALF)))
    out[between] = -np.log(np.tan(math.pi * ndtr(-size[between])))
    out[far] = _log_cauchy_far(size[far])
    return out


class SignedLog(NamedTuple):
    """Numbers S [Q] of any size, as sign and logarithm."""

    sign: FloatArray  # -1, 0 or 1
    log_abs: FloatArray  # natural logarithm of the size of S; -inf where S is 0

    def asinh(self) -> FloatArray:
        """Return arcsinh(S), shape [Q]: finite, and strictly increasing in S."""
        return self._in_blocks(SignedLog._asinh)

    def log10_p(self) -> FloatArray:
        """Return log10 of the combined p-value ``1/2 - arctan(S) / pi``, shape [Q]."""
        return self._in_blocks(SignedLog._log10_p)

    def _in_blocks(self, function: Callable[[SignedLog], FloatArray]) -> FloatArray:
        out = np.empty_like(self.log_abs)

        def put(part: slice) -> None:
            out[part] = function(SignedLog(self.sign[part], self.log_abs[part]))

        for _ in in_order(put, _blocks(out.size)):
            pass
        return out

    def _asinh(self) -> FloatArray:
        above = np.maximum(self.log_abs, 0.0)
        below = np.minimum(self.log_abs, 0.0)
        # asinh(S) = log S + log(1 + sqrt(1 + S^-2)), in which nothing overflows for S > 1.
        large = above + np.log1p(np.sqrt(1.0 + np.exp(-2.0 * above)))
        return self.sign * np.where(self.log_abs > 0.0, large, np.arcsinh(np.exp(below)))

    def _log10_p(self) -> FloatArray:
        # The nearer tail is q = arctan(1 / |S|) / pi <= 1/2; from |S| = e^30 on, arctan(1 / |S|) = 1 / |S|.
        q = np.arctan(np.exp(-np.maximum(self.log_abs, _LOG_SMALLEST))) / math.pi
        log_q = np.log(q, where=self.log_abs <= 30.0, out=-self.log_abs - math.log(math.pi))
        # Adding 0 turns the -0.0 of a p-value that rounds to 1 into 0.
        return np.where(self.sign < 0.0, np.log1p(-q), log_q) / math.log(10.0) + 0.0


def strictly_increasing(values: SignedLog, take: Labels) -> SignedLog:
    """Restore the order of numbers [Q] that are known to increase, but were tied or swapped by rounding.

    Those at the indices ``take`` are returned, strictly increasing in ``(sign, log_abs)`` and in ``asinh()``. Each is
    moved by at most 5e-10 of its size; more than 16,000 ties in a row therefore stay ties.
    """
    # In place and in blocks, to save memory with a million queries.
    keys = np.empty(values.sign.size, dtype=np.int64)
    for part in _blocks(keys.size):
        keys[part] = _to_keys(SignedLog(values.sign[part], values.log_abs[part]))
    del values
    weak = np.maximum.accumulate(keys)
    weak += _MAX_STEPS
    steps = np.arange(keys.size)
    keys -= steps
    np.maximum.accumulate(keys, out=keys)
    keys += steps
    np.minimum(keys, weak, out=keys)
    del weak, steps
    sign, log_abs = np.empty(take.size), np.empty(take.size)
    for part in _blocks(take.size):
        sign[part], log_abs[part] = _from_keys(keys[take[part]])
    return SignedLog(sign, log_abs)


def _blocks(n: int, length: int = _BLOCK) -> Iterator[slice]:
    return (slice(start, start + length) for start in range(0, n, length))


def _log_cauchy_far(x: FloatArray) -> FloatArray:
    """log(1 / (pi u)) with u = Phi(-x) = erfcx(x / sqrt 2) exp(-x^2 / 2) / 2, which itself would underflow."""
    return np.asarray(0.5 * x * x - np.log(0.5 * math.pi * erfcx(x * _SQRT_HALF)))


def _labels_as_index(labels: npt.ArrayLike, shape: tuple[int, ...]) -> IntArray:
    y = np.asarray(labels)
    if not np.issubdtype(y.dtype, np.integer):
        raise SignalsError(f"labels have dtype {y.dtype}: labels must be integers, 0 to {shape[-1] - 1}")
    bad = (y < 0) | (y >= shape[-1])
    if bad.any():
        raise SignalsError(f"labels hold {_first(y, bad)}: labels must lie in 0 to {shape[-1] - 1}")
    try:
        return np.broadcast_to(y, shape[:-1]).astype(np.intp)[..., None]
    except ValueError:
        raise SignalsError(f"labels of shape {y.shape} do not fit logits of shape {shape}") from None


def _first(values: npt.NDArray[np.generic], bad: BoolArray) -> str:
    """Name the first bad entry: ``"nan at index 3, 0"``."""
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{values[where]} at index {', '.join(map(str, where)) or '()'}"


def _grid_index(log_abs: FloatArray) -> npt.NDArray[np.int64]:
    # Shifted by 16, floats have one spacing up to 16 and a relative one from there; their bits count steps.
    bits: npt.NDArray[np.int64] = (np.abs(log_abs) + _GRID_ORIGIN).view(np.int64) - _GRID_ORIGIN_BITS
    steps = (bits + (1 << (_GRID_SHIFT - 1))) >> _GRID_SHIFT
    return np.where(log_abs < 0.0, -steps, steps)


_SMALLEST_INDEX = int(_grid_index(np.array([_LOG_SMALLEST]))[0])


def _to_keys(values: SignedLog) -> npt.NDArray[np.int64]:
    """Return integers in the order of S, 0 for S = 0 (and for |S| below e^-700)."""
    log_abs = np.maximum(values.log_abs, _LOG_SMALLEST)
    return values.sign.astype(np.int64) * (_grid_index(log_abs) - _SMALLEST_INDEX)


def _from_keys(keys: npt.NDArray[np.int64]) -> SignedLog:
    index = np.abs(keys) + _SMALLEST_INDEX
    log_abs = ((np.abs(index) << _GRID_SHIFT) + _GRID_ORIGIN_BITS).view(np.float64) - _GRID_ORIGIN
    return SignedLog(np.sign(keys).astype(np.float64), np.where(keys == 0, -np.inf, np.copysign(log_abs, index)))


def count_below(population: FloatArray, values: FloatArray) -> npt.NDArray[np.int32]:
    """Count [Q] the members of the ``population`` [Z], in any order, that are strictly below each of ``values`` [Q]."""
    # Looking up values in ascending order uses neighbouring memory: several times faster than in any order.
    ordered, below = np.sort(population), np.empty(len(values), dtype=np.int32)

    def count(part: slice) -> None:
        order = np.argsort(values[part])
        below[part][order] = np.searchsorted(ordered, values[part][order], side="left")

    for _ in in_order(count, _blocks(len(values), _SORTED)):
        pass
    return below


def holm(p_values: Sequence[float] | FloatArray) -> FloatArray:
    """p-values [n] adjusted for multiple tests (Holm, 1979), however the tests depend on each other."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(p.size)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return adjusted


def average_ranks(values: Floats) -> FloatArray:
    """Return the rank [n] of each value, 1 for the smallest; equal values share the mean of their ranks.

    Like `scipy.stats.rankdata`, whose import takes as long as scoring a small run. Values must not be NaN.
    """
    order = np.argsort(values)
    ordered = values[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(values)])
    ends = np.append(first[1:], len(values))
    found = np.empty(len(values))
    found[order] = np.repeat((first + 1 + ends) / 2, ends - first)
    return found


def auc_of(score: FloatArray, positive: BoolArray) -> float:
    """Return the probability that a positive record has the larger score; ties count half. 0.5 if a side is empty."""
    n, others = int(positive.sum()), int((~positive).sum())
    return float((average_ranks(score)[positive].mean() - (n + 1) / 2) / others) if n and others else 0.5
