"""A target that exists already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.data import LabelledData
from plmia.errors import DataError
from plmia.recipes.views import View


@dataclass(frozen=True)
class GivenTarget:
    """A target that exists already, instead of one that the audit trains.

    Parameters
    ----------
    members : bool array [points]
        Which of the data's points it trained on.
    conf : float array [points] or [points, views], optional
        Its logit-scaled true-label confidences.
    model : object, optional
        A fitted scikit-learn classifier to ask for them instead.
    """

    members: npt.NDArray[np.bool_]
    conf: npt.NDArray[np.floating] | None = None
    model: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", np.asarray(self.members))
        if (self.conf is None) == (self.model is None):
            raise DataError("a target that is given needs its signals (conf) or its model, one of the two")

    def check(self, data: LabelledData) -> None:
        """Raise `DataError` if the members are not those of ``data``."""
        if self.members.shape != (data.n_points,) or self.members.dtype != np.bool_:
            raise DataError(
                f"the target's members have shape {self.members.shape} and type {self.members.dtype}: "
                f"a bool array [{data.n_points}] is needed, True where it trained on the point"
            )

    def signals(self, data: LabelledData, views: Sequence[View]) -> npt.NDArray[np.float32]:
        """Return confidences [points, views]."""
        if self.conf is None:
            from plmia.recipes.scikit import Sklearn

            return Sklearn.query(self.model, data, self.members, views).conf
        conf = np.asarray(self.conf, dtype=np.float32)
        conf = conf[:, None] if conf.ndim == 1 else conf
        if conf.shape != (data.n_points, len(views)):
            raise DataError(
                f"the target's signals have shape {conf.shape}, [{data.n_points}, {len(views)}] is needed, points and "
                "views of the references: query both alike"
            )
        if not np.isfinite(conf).all():
            point = int(np.argmin(np.isfinite(conf).all(axis=1)))
            raise DataError(f"the target's signal at point {point} is {conf[point].tolist()}: it must be finite")
        return conf
