"""A target that exists already."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.data.dataset import LabelledData
from plmia.data.designs import MembershipDesign, cut_groups
from plmia.errors import DataError, Note, RecipeError
from plmia.evaluation.diagnostics import unlike_answers
from plmia.signals.signals import Signals, look_like_probabilities
from plmia.training.recipes.recipe import Trained
from plmia.training.views import View

# Shares of members may differ by so much before it is said.
SHARES_APART = 0.05
# So many standard errors are no chance any more.
CLEARLY = 4.0
# So many references are needed to compare a target with them at all, and to see more than gross differences.
LEAST_REFERENCES, GOOD_REFERENCES = 4, 16


@dataclass(frozen=True)
class GivenTarget:
    """A target that exists already, instead of one that the audit trains.

    Parameters
    ----------
    members : bool array [points]
        Which of the data's points it trained on; of points in one group, all or none.
    conf : float array [points] or [points, views], optional
        Its logit-scaled true-label confidences; probabilities are refused.
    model : object, optional
        A fitted scikit-learn classifier to ask for them instead; it gets X as it was given.
    """

    members: npt.NDArray[np.bool_]
    conf: npt.NDArray[np.floating] | None = None
    model: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", np.asarray(self.members))
        if (self.conf is None) == (self.model is None):
            raise DataError("a target that is given needs its signals (conf) or its model, one of the two")

    def check(self, data: LabelledData) -> None:
        """Raise `DataError` if the members cannot be those of a target on ``data``."""
        if self.members.shape != (data.n_points,) or self.members.dtype != np.bool_:
            raise DataError(
                f"the target's members have shape {self.members.shape} and type {self.members.dtype}: "
                f"a bool array [{data.n_points}] is needed, True where it trained on the point"
            )
        if self.members.all() or not self.members.any():
            raise DataError(
                f"the target trained on {'all' if self.members.all() else 'none'} of the {data.n_points:,} points: "
                "members and non-members are needed among them, so add records that it was not (or was) trained on"
            )
        if data.groups is not None:
            self._require_whole(data.groups)

    def _require_whole(self, groups: npt.NDArray[np.integer]) -> None:
        """Raise if some group is a member in part: no reference is trained on a part of one."""
        cut, n_groups = cut_groups(self.members, groups)
        if cut:
            raise DataError(
                f"the target's members cut {cut:,} of the {n_groups:,} groups in two, its references train on whole "
                "groups: mark whole groups as members, or leave groups out if the target was split by rows"
            )

    def ask(self, data: LabelledData, views: Sequence[View]) -> Trained:
        """Return its confidences [points, views], and its accuracies where it was given as a model (else NaN)."""
        if self.conf is None:
            answers = self._answers(data, views)
        else:
            conf = np.asarray(self.conf, dtype=np.float32)
            answers = Trained(conf[:, None] if conf.ndim == 1 else conf, math.nan, math.nan)
        self._check_signals(answers.conf, data, views)
        return answers

    def _check_signals(self, conf: npt.NDArray[np.float32], data: LabelledData, views: Sequence[View]) -> None:
        if conf.shape != (data.n_points, len(views)):
            raise DataError(
                f"the target's signals have shape {conf.shape}, [{data.n_points}, {len(views)}] is needed, points and "
                "views of the references: query both alike"
            )
        if not np.isfinite(conf).all():
            point = int(np.argmin(np.isfinite(conf).all(axis=1)))
            raise DataError(f"the target's signal at point {point} is {conf[point].tolist()}: it must be finite")
        if self.model is None and look_like_probabilities(conf):
            raise DataError(
                "the target's signals (conf) lie in [0, 1], like probabilities: give logit-scaled confidences, "
                "conf=plmia.logit_from_probabilities(p)[0] of the true label's probabilities p"
            )
        if not np.ptp(conf, axis=0).any():
            raise DataError("the target's signals are the same at all points, so nothing can be told: check them")

    def _answers(self, data: LabelledData, views: Sequence[View]) -> Trained:
        from plmia.training.recipes.scikit import Sklearn

        try:
            answers = Sklearn.query(self.model, data, self.members, views)
        except RecipeError as error:
            fitting = "; give the model that was fitted on features and classes like these" if error.__cause__ else ""
            raise DataError(
                f"the given target cannot be asked: {' '.join(str(error).split()).rstrip('.')}{fitting}"
            ) from error
        if answers.trouble:
            raise DataError(f"{answers.trouble} of the given target: every answer must be a finite number")
        return answers

    def doubts(self, conf: npt.NDArray[np.float32], design: MembershipDesign, data: LabelledData) -> list[Note]:
        """What makes a reader doubt, before any reference is trained.

        Parameters
        ----------
        conf : float array [points, views]
            The target's signals.
        design : MembershipDesign
            Model 0 is the target, the others are its references.
        data : LabelledData
            The points.
        """
        # One point of each group: those of one group are no independent evidence.
        alone = np.arange(data.n_points) if data.groups is None else np.unique(data.groups, return_index=True)[1]
        found = _other_share(design.matrix[:, alone], data), _inverted(conf[:, 0] > 0, self.members, len(alone))
        return [note for note in found if note]

    def compared(self, signals: Signals) -> list[Note]:
        """What the references show against it, or are too few to show; model 0 of ``signals`` is the target."""
        n = signals.n_models - 1
        if n < LEAST_REFERENCES:
            return [
                Note(
                    "likeness-unchecked",
                    "caution",
                    f"Whether the given target was trained like its references cannot be checked with {n}: "
                    f"{LEAST_REFERENCES} are needed, {GOOD_REFERENCES} to see more than gross differences.",
                )
            ]
        unlike = unlike_answers(signals).warning
        if unlike:
            return [Note("answers-unlike-references", "caution", unlike)]
        if n >= GOOD_REFERENCES:
            return []
        return [
            Note(
                "likeness-unchecked",
                "info",
                f"{n} references show only gross differences between the given target and them: train "
                f"{GOOD_REFERENCES} or more to see others.",
            )
        ]


def _other_share(units: npt.NDArray[np.bool_], data: LabelledData) -> Note | None:
    """Say so if the target (row 0 of membership [models, units]) trained on another share than its references."""
    own, theirs = float(units[0].mean()), float(units[1:].mean())
    if abs(own - theirs) <= SHARES_APART:
        return None
    what, last = ("points", "") if data.groups is None else ("groups", ", groups")
    k = min(max(round(own * len(units)), 1), len(units) - 1)
    return Note(
        "other-share",
        "caution",
        f"The target trained on {100 * own:.0f} % of the {what}, its references on {100 * theirs:.0f} %, so attacks "
        f"may find too little. Train the references on such a share: design=plmia.exact_k_per_point({data.n_points}, "
        f"{len(units)}, {k}, numpy.random.default_rng(0){last}).",
    )


def _inverted(sure: npt.NDArray[np.bool_], members: npt.NDArray[np.bool_], n_units: int) -> Note | None:
    """Say so if the target gives the true label more than half (``sure``) more often at non-members, beyond chance."""
    inside, outside, share = float(sure[members].mean()), float(sure[~members].mean()), float(members.mean())
    pooled = float(sure.mean())
    error = math.sqrt(pooled * (1 - pooled) / (n_units * share * (1 - share)))
    if outside - inside <= CLEARLY * error:
        return None
    return Note(
        "members-swapped",
        "invalid",
        f"The given target is right and sure more often at records called non-members ({100 * outside:.1f} %) than at "
        f"members ({100 * inside:.1f} %). Check that `members` is not inverted (True where it trained on the record).",
    )
