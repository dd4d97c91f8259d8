"""Signals on disk: an npz with `signals`, `membership` and optionally `labels`, read as untrusted input."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from plmia.data.dataset import load_npz
from plmia.data.designs import MembershipDesign
from plmia.errors import SignalsError, some
from plmia.numerics import logit_from_probabilities

# From this share of the signals in [0, 1] on, they are taken for probabilities, some of them stray.
_LIKE_PROBABILITIES = 0.99
# Of so many confidences, some are above 0.
_MANY = 1000
Scale = Literal["auto", "logit", "probability"]
Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Signals:
    """Signals of models at points, and which model trained on which point.

    Parameters
    ----------
    values : float array [models, points, views]
        Logit-scaled true-label confidence, finite.
    design : MembershipDesign
        Membership [models, points].
    labels : int array [points], optional
        Class of each point.
    n_clipped : int
        How many values were probabilities of 0 or 1 to the last digit, and so were clipped when logit-scaled.
    groups : int array [points], optional
        Which points belong together (rows of one patient): they are no independent evidence, so one of each group is
        evaluated.
    models : tuple of int
        Number of the model in each row; 0, 1, 2, ... by default. Targets and references are named by these numbers, so
        that a model keeps its number where others are missing.
    digest : str
        SHA-256 that tells signals of a file or a store from others; empty if they were made in memory.
    """

    values: npt.NDArray[np.floating]
    design: MembershipDesign
    labels: npt.NDArray[np.integer] | None = None
    n_clipped: int = 0
    groups: npt.NDArray[np.integer] | None = None
    models: tuple[int, ...] = ()
    digest: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.values.ndim != 3 or 0 in self.values.shape or not np.issubdtype(self.values.dtype, np.floating):
            raise SignalsError(
                f"signals have shape {self.values.shape} and type {self.values.dtype}, "
                "floats [models, points, views] are needed, none of them empty (in a file, [models, points] will do)"
            )
        if self.design.matrix.shape != self.values.shape[:2]:
            raise SignalsError(
                f"membership has shape {self.design.matrix.shape}, signals {self.values.shape}: "
                "both need the same models and points (bit-packed membership needs `n_points`)"
            )
        for name, array in (("labels", self.labels), ("groups", self.groups)):
            if array is not None and (array.shape != self.values.shape[1:2] or array.dtype.kind not in "iu"):
                raise SignalsError(
                    f"{name} have shape {array.shape} and type {array.dtype}, "
                    f"integers [{self.values.shape[1]}] are needed: one a point"
                )
        if not self.models:
            object.__setattr__(self, "models", tuple(range(self.n_models)))
        if len(set(self.models)) != self.n_models or len(self.models) != self.n_models or min(self.models) < 0:
            raise SignalsError(
                f"{len(self.models)} model numbers ({some(self.models)}) are given for {self.n_models} models: give "
                "one per model, all different, from 0"
            )
        _require_finite(self.values, self.models)

    @property
    def n_models(self) -> int:
        """How many models."""
        return int(self.values.shape[0])

    @property
    def n_points(self) -> int:
        """How many points."""
        return int(self.values.shape[1])

    @property
    def n_views(self) -> int:
        """How many views."""
        return int(self.values.shape[2])

    def rows(self, models: Iterable[int], what: str = "model") -> npt.NDArray[np.intp]:
        """Row of each of some models [n], given by number.

        Parameters
        ----------
        models : iterable of int
            Numbers of models; `SignalsError` is raised for one that is missing.
        what : str
            What the error calls them.
        """
        row_of = {model: row for row, model in enumerate(self.models)}
        wanted = [int(model) for model in models]
        for model in wanted:
            if model in row_of:
                continue
            if self.models == tuple(range(self.n_models)):
                raise SignalsError(f"{what} {model} does not exist: models are numbered from 0 to {self.n_models - 1}")
            raise SignalsError(
                f"{what} {model} is not among the {self.n_models} finished models ({some(self.models)}): run the audit "
                "again if it is still to be trained, or choose one of those"
            )
        return np.array([row_of[model] for model in wanted], dtype=np.intp)


def _require_finite(values: npt.NDArray[np.floating], models: Iterable[int]) -> None:
    # Model by model: a mask for all at once would be as large as the signals.
    for model, row in zip(models, values, strict=True):
        if not np.isfinite(row).all():
            point, view = np.argwhere(~np.isfinite(row))[0]
            raise SignalsError(
                f"signals hold {row[point, view]} at model {model}, point {point}, view {view}: "
                "every signal must be a finite number; query that model again, or leave it out"
            )


def read_signals(path: str | Path, scale: Scale = "auto") -> Signals:
    """Read a signals file.

    Parameters
    ----------
    path : Path
        An npz with `signals` (floats [models, points] or [models, points, views]), `membership` (bool
        [models, points], or bit-packed along points with `n_points`) and optionally `labels` and `groups` [points].
    scale : {"auto", "logit", "probability"}
        What the signals are; "auto" takes logit-scaled confidences and refuses what looks like probabilities.
    """
    path = Path(path)
    if scale not in get_args(Scale):
        raise SignalsError(f"there is no scale {scale!r}: take {', '.join(get_args(Scale))}")
    names = ("signals", "membership", "labels", "n_points", "groups")
    arrays = load_npz(path, names, "`signals` and `membership`", SignalsError)
    for name in ("signals", "membership"):
        if name not in arrays:
            raise SignalsError(f"{path} holds no array {name!r}: add it, both `signals` and `membership` are needed")
    values = _floats(path, arrays["signals"])
    if values.ndim == 2:
        values = values[:, :, None]
    membership = _membership(arrays)
    values, n_clipped = _on_logit_scale(path, values, scale)
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    design, labels, groups = MembershipDesign(membership), arrays.get("labels"), arrays.get("groups")
    return Signals(values, design, labels, n_clipped, groups, digest=digest)


def _floats(path: Path, values: Array) -> npt.NDArray[np.floating]:
    if not np.issubdtype(values.dtype, np.floating):
        raise SignalsError(
            f"{path} has signals of type {values.dtype}: floats are needed (float16, float32 or float64)"
        )
    native = np.dtype(np.float64) if values.dtype.itemsize > 8 else values.dtype.newbyteorder("=")
    return values.astype(native, copy=False)


def _membership(arrays: dict[str, Array]) -> npt.NDArray[np.bool_]:
    """Membership [models, points] from booleans, zeros and ones, or packed bits."""
    membership = arrays["membership"]
    if membership.ndim != 2:
        raise SignalsError(f"membership has shape {membership.shape}: [models, points] is needed, one row a model")
    if "n_points" in arrays and membership.dtype == np.uint8:
        n_points = arrays["n_points"]
        if n_points.size != 1 or not np.issubdtype(n_points.dtype, np.integer):
            raise SignalsError("n_points must be one whole number: the number of points behind the packed bits")
        n = int(n_points.reshape(-1)[0])
        if n < 1:
            raise SignalsError(f"n_points is {n}: it must be the number of points behind the packed bits, 1 or more")
        if membership.shape[1] == (n + 7) // 8:
            return np.unpackbits(membership.astype(np.uint8), axis=1, count=n).view(np.bool_)
        if membership.shape[1] != n:
            raise SignalsError(
                f"membership has {membership.shape[1]} columns, n_points = {n} needs {(n + 7) // 8} packed bytes: "
                "pack with numpy.packbits(membership, axis=1)"
            )
    if membership.dtype == np.bool_:
        return membership.astype(np.bool_, copy=False)
    numbers = membership.dtype.kind in "iuf"
    if numbers and np.isin(membership, (0, 1)).all():
        return membership.astype(np.bool_)
    raise SignalsError(
        f"membership has type {membership.dtype}{' and other values than 0 and 1' * numbers}: "
        "booleans are needed, or bits packed along points together with `n_points`"
    )


def _on_logit_scale(path: Path, values: npt.NDArray[np.floating], scale: Scale) -> tuple[npt.NDArray[np.floating], int]:
    if scale == "probability":
        _require_probabilities(values)
        return logit_from_probabilities(values)
    if scale == "auto" and values.size >= _MANY and values.max() <= 0:
        raise SignalsError(
            f"no signal of {path} is above 0, like log-probabilities: give log p - log(1 - p) of the true label, or "
            "say --scale logit if they are that"
        )
    if scale == "auto" and values.size and np.isfinite(values.min() + values.max()):
        inside = _in_unit_interval(values)
        if inside == values.size:
            raise SignalsError(
                f"all signals of {path} lie in [0, 1], like probabilities: say --scale probability to have them "
                "logit-scaled, or --scale logit if they are logits indeed"
            )
        if inside >= _LIKE_PROBABILITIES * values.size:
            raise SignalsError(
                f"{inside:,} of the {values.size:,} signals of {path} lie in [0, 1], like probabilities, but the least "
                f"is {values.min():.4g} and the largest {values.max():.4g}: correct those and say --scale probability, "
                "or --scale logit if all are logits indeed"
            )
    return values, 0


def _require_probabilities(values: npt.NDArray[np.floating]) -> None:
    for model, row in enumerate(values):
        bad = ~((row >= 0) & (row <= 1))
        if row.ndim == 2 and bad.any():
            point, view = np.argwhere(bad)[0]
            raise SignalsError(
                f"signals hold {row[point, view]:.6g} at model {model}, point {point}, view {view}: "
                "every probability must lie in [0, 1]; query that model again, or leave it out"
            )


def _in_unit_interval(values: npt.NDArray[np.floating]) -> int:
    """How many values lie in [0, 1]; model by model, as a mask for all would be large."""
    return sum(int(np.count_nonzero((row >= 0) & (row <= 1))) for row in values)


def look_like_probabilities(values: npt.NDArray[np.floating]) -> bool:
    """Whether all values, or nearly all, lie in [0, 1]."""
    return values.size > 0 and _in_unit_interval(values) >= _LIKE_PROBABILITIES * values.size
