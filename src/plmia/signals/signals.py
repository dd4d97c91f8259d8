"""Signals in memory, and read from an npz with `signals`, `membership` and optionally `labels` and `groups`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from plmia.data import half_floats, memory
from plmia.data.arrays import Array, BoolArray, Floats, IntArray, Labels, SignalKind
from plmia.data.designs import MembershipDesign
from plmia.data.files import open_regular
from plmia.data.npz import SIGNALS_ARRAYS, load_npz, unpack_bits, whole_number
from plmia.data.table_files import is_table_file
from plmia.data.threads import digest_meanwhile
from plmia.errors import SignalsError, some
from plmia.numerics import logit_from_probabilities

# From this share in [0, 1] on, signals are probably probabilities with a few wrong values.
_PROBABILITIES_SHARE = 0.99
# Among this many confidences, some are above 0.
_MANY = 1000
# Points, evenly spaced, whose signals give the scale of all.
_SAMPLED_POINTS = 4096
# Distance between the quartiles of a standard Gaussian.
_QUARTILES_OF_GAUSSIAN = 1.349
# Records whose values are checked at a time.
_POINTS_AT_ONCE = 1 << 20
# Beyond, sums of squares lose the digits by which members differ, and the AUC depends on the scale of the signals.
MAX_SIGNAL = 1e6
_LIMIT_TEXT = f"must lie between -{MAX_SIGNAL:,.0f} and {MAX_SIGNAL:,.0f}"
# Beyond, squares of signals on a scale of their own overflow before their spread is known.
_MAX_ON_OWN_SCALE = 1e100
Scale = Literal["auto", "logit", "probability", "signal"]


@dataclass(frozen=True)
class Signals:
    """Signals of models at records, and which model trained on which record.

    Parameters
    ----------
    values : float array [models, records, views]
        Logit-scaled true-label confidence, or a signal of another ``kind``; finite.
    design : MembershipDesign
        Membership [models, records].
    labels : int array [records], optional
        Class of each record.
    n_clipped : int
        Number of probabilities that were 0 or 1 to the last digit, and so were clipped when logit-scaled.
    groups : int array [records], optional
        Which records belong together (rows of one patient); one record of each group is evaluated.
    models : tuple of int
        Number of the model in each row, by which targets and references are named; 0, 1, 2, ... by default.
    kind : {"confidence", "signal"}
        "signal" is any number that is larger for members, on any scale.
    digest : str
        SHA-256 that identifies the signals of a file or a store; empty if they were made in memory.
    """

    values: Floats
    design: MembershipDesign
    labels: Labels | None = None
    n_clipped: int = 0
    groups: Labels | None = None
    models: tuple[int, ...] = ()
    kind: SignalKind = "confidence"
    digest: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.values.ndim != 3 or 0 in self.values.shape or not np.issubdtype(self.values.dtype, np.floating):
            raise SignalsError(
                f"signals have shape {self.values.shape} and type {self.values.dtype}: floats [models, records, views] "
                "are needed, with no empty axis (in a file also [models, records])"
            )
        if self.design.matrix.shape != self.values.shape[:2]:
            self._refuse_one_transposed()
            raise SignalsError(
                f"membership has shape {self.design.matrix.shape}, signals {self.values.shape}: "
                "both need the same models and records (bit-packed membership needs `n_points`)"
            )
        for name, array in (("labels", self.labels), ("groups", self.groups)):
            if array is not None and array.shape == self.values.shape[:1] != self.values.shape[1:2]:
                raise SignalsError(
                    f"signals have shape {self.values.shape}, but there are {len(array)} {name}, one per record: "
                    "transpose signals and membership to [models, records]"
                )
            if array is not None and (array.shape != self.values.shape[1:2] or array.dtype.kind not in "iu"):
                raise SignalsError(
                    f"{name} have shape {array.shape} and type {array.dtype}: integers [{self.values.shape[1]}] are "
                    "needed, one per record"
                )
        if not self.models:
            object.__setattr__(self, "models", tuple(range(self.n_models)))
        if len(set(self.models)) != self.n_models or len(self.models) != self.n_models or min(self.models) < 0:
            raise SignalsError(
                f"{len(self.models)} model numbers ({some(self.models)}) are given for {self.n_models} models: give "
                "one per model, all different, from 0"
            )
        if self.kind == "confidence":
            within, limit = _within_limit, f"confidences {_LIMIT_TEXT}"
        else:
            within, limit = _within_own_limit, f"must lie between -{_MAX_ON_OWN_SCALE:g} and {_MAX_ON_OWN_SCALE:g}"
        # What is not finite lies within no limit, so usually one pass is enough.
        if not all(within(part).all() for part in _parts(self.values)):
            _require(self.values, self.models, np.isfinite, "must be finite")
            _require(self.values, self.models, within, limit)

    def _refuse_one_transposed(self) -> None:
        """Raise if the membership has the shape of the transposed signals; one axis is known to be that of records."""
        own, other = self.values.shape[:2], self.design.matrix.shape
        if other != own[::-1]:
            return
        known = {len(array) for array in (self.labels, self.groups) if array is not None and array.ndim}
        records = known.pop() if len(known) == 1 and known <= {*own} else max(own)
        which = "signals" if own[1] != records else "membership"
        raise SignalsError(
            f"signals have shape {self.values.shape}, membership {other}: transpose the {which}, since both need "
            "[models, records]"
        )

    @property
    def n_models(self) -> int:
        """Number of models."""
        return int(self.values.shape[0])

    @property
    def n_points(self) -> int:
        """Number of records."""
        return int(self.values.shape[1])

    @property
    def n_views(self) -> int:
        """Number of views."""
        return int(self.values.shape[2])

    def standardised(self) -> Signals:
        """Signals whose scale attacks may rely on: confidences as they are, others in units of their own spread.

        Attacks that need a probability take the logistic function of a signal. So a signal of any scale is measured
        from its median in units of its standard deviation, the latter from the quartiles; both are the same numbers
        for all models and records. They use no membership.
        """
        if self.kind == "confidence":
            return self
        some_points = np.arange(0, self.n_points, -(-self.n_points // _SAMPLED_POINTS))
        sample = memory.gathered(self.values, some_points).astype(np.float64)
        low, centre, high = np.quantile(sample, (0.25, 0.5, 0.75))
        unit = (high - low) / _QUARTILES_OF_GAUSSIAN or float(sample.std()) or 1.0
        # Model by model, so that only one is held in 64 bits.
        values = memory.empty(self.values.shape, np.float32)
        for model, to, row in zip(self.models, values, self.values, strict=True):
            with np.errstate(over="ignore"):  # infinite values are refused
                scaled = (row.astype(np.float64) - centre) / unit
            _require(scaled[None], (model,), _within_limit, f"signals in units of their spread {_LIMIT_TEXT}")
            to[...] = scaled
            memory.release()
        return replace(self, values=values)

    def rows(self, models: Iterable[int], what: str = "model") -> IntArray:
        """Row of each model, given by number; raises `SignalsError` if one is missing, which it calls ``what``."""
        row_of = {model: row for row, model in enumerate(self.models)}
        wanted = [int(model) for model in models]
        for model in wanted:
            if model in row_of:
                continue
            if self.models == tuple(range(self.n_models)):
                raise SignalsError(f"{what} {model} does not exist: models are numbered from 0 to {self.n_models - 1}")
            raise SignalsError(
                f"{what} {model} is not among the {self.n_models} finished models ({some(self.models)}): choose one of "
                "these, or run the audit again to train it"
            )
        return np.array([row_of[model] for model in wanted], dtype=np.intp)


def _require(values: Floats, models: Iterable[int], are_good: Callable[[Floats], BoolArray], limit: str) -> None:
    # Some records at a time: a mask for all at once would be as large as the signals.
    for model, row in zip(models, values, strict=True):
        for start in range(0, len(row), _POINTS_AT_ONCE):
            part = row[start : start + _POINTS_AT_ONCE]
            good = are_good(part)
            if not good.all():
                point, view = np.argwhere(~good)[0]
                raise SignalsError(
                    f"signals hold {part[point, view]:.6g} at model {model}, record {start + point}, view {view}, but "
                    f"{limit}: query that model again, or leave it out"
                )
            memory.release()


def _within_limit(values: Floats) -> BoolArray:
    if half_floats.is_half(values):  # they cannot hold the limit
        return half_floats.finite(values)
    return np.abs(values) <= np.float64(MAX_SIGNAL)


def _within_own_limit(values: Floats) -> BoolArray:
    return np.abs(values) <= np.float64(_MAX_ON_OWN_SCALE)


def _in_unit_interval(values: Floats) -> BoolArray:
    return (values >= 0) & (values <= 1)


def _parts(values: Floats) -> Iterator[Floats]:
    """Yield all values [n, views], model by model and some records at a time."""
    for row in values:
        for start in range(0, len(row), _POINTS_AT_ONCE):
            yield row[start : start + _POINTS_AT_ONCE]
            memory.release()


def read_signals(path: str | Path, scale: Scale = "auto") -> Signals:
    """Read a signals file.

    Parameters
    ----------
    path : Path
        An npz with `signals` (floats [models, records] or [models, records, views]), `membership` (bool
        [models, records], or bit-packed along records with `n_points`) and optionally `labels` and `groups` [records].
    scale : {"auto", "logit", "probability", "signal"}
        Scale of the signals; "auto" accepts logit-scaled confidences and refuses values that look like probabilities.
        "signal" takes any numbers that are larger for members.
    """
    path = Path(path)
    if scale not in get_args(Scale):
        raise SignalsError(f"there is no scale {scale!r}: choose from {', '.join(get_args(Scale))}")
    if is_table_file(path):
        raise SignalsError(f"{path} is a table, but a signals file is needed: plmia import table {path} -o signals.npz")
    arrays = load_npz(path, SIGNALS_ARRAYS, "`signals` and `membership`", SignalsError)
    for name in ("signals", "membership"):
        if name not in arrays:
            raise SignalsError(f"{path} holds no array {name!r}, but `signals` and `membership` are needed: add it")
    with open_regular(path) as stream, digest_meanwhile(stream) as digest:
        values = _floats(path, arrays["signals"])
        if values.ndim == 2:
            values = values[:, :, None]
        membership = _membership(arrays)
        values, n_clipped = _on_logit_scale(path, values, scale)
        design, labels, groups = MembershipDesign(membership), arrays.get("labels"), arrays.get("groups")
        kind: SignalKind = "signal" if scale == "signal" else "confidence"
        return Signals(values, design, labels, n_clipped, groups, kind=kind, digest=digest())


def _floats(path: Path, values: Array) -> Floats:
    if not np.issubdtype(values.dtype, np.floating):
        raise SignalsError(
            f"{path} has signals of type {values.dtype}: floats are needed (float16, float32 or float64)"
        )
    native = np.dtype(np.float64) if values.dtype.itemsize > 8 else values.dtype.newbyteorder("=")
    return values.astype(native, copy=False)


def _membership(arrays: dict[str, Array]) -> BoolArray:
    """Membership [models, points] from booleans, zeros and ones, or packed bits."""
    membership = arrays["membership"]
    if membership.ndim != 2:
        raise SignalsError(f"membership has shape {membership.shape}: [models, records] is needed, one row per model")
    if "n_points" in arrays and membership.dtype == np.uint8:
        n = whole_number(arrays["n_points"])
        if n is None or n < 1:
            raise SignalsError(
                f"n_points is {arrays['n_points'].tolist()}: give the number of records of the packed bits, 1 or more"
            )
        if membership.shape[1] == (n + 7) // 8:
            return unpack_bits(membership, n)
        if membership.shape[1] != n:
            raise SignalsError(
                f"membership has {membership.shape[1]} columns, n_points = {n} needs {(n + 7) // 8} packed bytes: "
                "pack with numpy.packbits(membership, axis=1)"
            )
    if membership.dtype == np.bool_:
        return membership
    numbers = membership.dtype.kind in "iuf"
    if numbers and all(np.isin(row, (0, 1)).all() for row in membership):
        return memory.copied(membership, np.bool_)
    raise SignalsError(
        f"membership has type {membership.dtype}{' and other values than 0 and 1' * numbers}: "
        "booleans are needed, or bits packed along records together with `n_points`"
    )


def _on_logit_scale(path: Path, values: Floats, scale: Scale) -> tuple[Floats, int]:
    if scale == "probability":
        if values.ndim == 3:  # `Signals` refuses other shapes
            _require(values, range(len(values)), _in_unit_interval, "probabilities must lie in [0, 1]")
        return logit_from_probabilities(values)
    if scale != "auto" or not values.size or values.ndim != 3:  # as above
        return values, 0
    least, most = _range(values)
    if values.size >= _MANY and most <= 0:
        raise SignalsError(
            f"no signal of {path} is above 0, so they look like log-probabilities: give log p - log(1 - p) of the true "
            "label, or the scale 'logit' if they are that"
        )
    if np.isfinite(least + most):
        inside = _count_in_unit_interval(values)
        if inside == values.size:
            raise SignalsError(
                f"all signals of {path} lie in [0, 1], like probabilities: give the scale 'probability' "
                "(--scale probability) to convert them, or 'logit' if they are logits"
            )
        if inside >= _PROBABILITIES_SHARE * values.size:
            raise SignalsError(
                f"{inside:,} of the {values.size:,} signals of {path} lie in [0, 1], like probabilities, but the range "
                f"is {least:.4g} to {most:.4g}: correct them and give the scale 'probability', or "
                "'logit' if all are logits"
            )
    return values, 0


def _range(values: Floats) -> tuple[np.floating, np.floating]:
    """Smallest and largest value, NaN if one is."""
    least, most = np.array([half_floats.extremes(part) for part in _parts(values)], values.dtype).T
    return least.min(), most.max()


def _count_in_unit_interval(values: Floats) -> int:
    return sum(half_floats.count_in_unit_interval(part) for part in _parts(values))


def look_like_probabilities(values: Floats) -> bool:
    """Whether all or nearly all values lie in [0, 1]."""
    return values.size > 0 and _count_in_unit_interval(values) >= _PROBABILITIES_SHARE * values.size
