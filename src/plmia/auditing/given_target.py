"""A target model that existed before the audit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.data.arrays import BoolArray, FloatArray32
from plmia.data.dataset import LabelledData
from plmia.data.designs import MembershipDesign, count_split_groups
from plmia.errors import DataError, Note, RecipeError, percent
from plmia.evaluation.diagnostics.signals import unlike_answers
from plmia.signals.signals import Signals, look_like_probabilities
from plmia.training.recipes.recipe import Trained
from plmia.training.recipes.scikit import Sklearn
from plmia.training.views import View

# Largest difference between the shares of members that needs no note.
MAX_SHARE_DIFFERENCE = 0.05
# A difference of more standard errors than this is not due to chance.
MAX_STANDARD_ERRORS = 4.0
# References that are needed to compare a target with them at all, and to see more than gross differences.
MIN_REFERENCES, GOOD_REFERENCES = 4, 16


@dataclass(frozen=True)
class GivenTarget:
    """A target model that existed before the audit, instead of one that the audit trains.

    Parameters
    ----------
    members : bool array [points]
        True for points that it trained on; whole groups only.
    conf : float array [points] or [points, views], optional
        Its logit-scaled true-label confidences; probabilities are refused.
    model : object, optional
        A fitted scikit-learn classifier to query for them instead; it gets X unchanged.
    """

    members: BoolArray
    conf: npt.NDArray[np.floating] | None = None
    model: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", np.asarray(self.members))
        if (self.conf is None) == (self.model is None):
            raise DataError("a given target needs either its signals (conf) or its model: give one of the two")

    def check(self, data: LabelledData) -> None:
        """Raise `DataError` if the members cannot be those of a target on ``data``."""
        if self.members.shape != (data.n_points,) or self.members.dtype != np.bool_:
            raise DataError(
                f"the target's members have shape {self.members.shape} and type {self.members.dtype}: "
                f"a bool array [{data.n_points}] is needed, True for points that it trained on"
            )
        if self.members.all() or not self.members.any():
            raise DataError(
                f"the target trained on {'all' if self.members.all() else 'none'} of the {data.n_points:,} points: "
                "add non-members (or members), since both are needed"
            )
        cut, n_groups = (0, 0) if data.groups is None else count_split_groups(self.members, data.groups)
        if cut:
            raise DataError(
                f"the target's members cut {cut:,} of the {n_groups:,} groups in two, but references train on whole "
                "groups: mark whole groups as members, or leave groups out if the target was split by rows"
            )

    def ask(self, data: LabelledData, views: Sequence[View]) -> Trained:
        """Return its confidences [points, views], and its accuracies if it was given as a model (else NaN)."""
        if self.conf is None:
            answers = self._query(data, views)
        else:
            conf = np.asarray(self.conf, dtype=np.float32)
            answers = Trained(conf[:, None] if conf.ndim == 1 else conf, math.nan, math.nan)
        self._check_signals(answers.conf, data, views)
        return answers

    def _check_signals(self, conf: FloatArray32, data: LabelledData, views: Sequence[View]) -> None:
        if conf.shape != (data.n_points, len(views)):
            raise DataError(
                f"the target's signals have shape {conf.shape}, but the references have [{data.n_points}, "
                f"{len(views)}] (points, views): query the target in the same way"
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
            raise DataError("the target's signals are the same at all points, so no attack can work: check them")

    def _query(self, data: LabelledData, views: Sequence[View]) -> Trained:
        try:
            answers = Sklearn.query(self.model, data, self.members, views)
        except RecipeError as error:
            hint = "; give a model that was fitted on the same features and classes" if error.__cause__ else ""
            raise DataError(
                f"the given target cannot be queried: {' '.join(str(error).split()).rstrip('.')}{hint}"
            ) from error
        if answers.trouble:
            raise DataError(f"{answers.trouble} of the given target: every answer must be a finite number")
        return answers

    def doubts(self, conf: FloatArray32, design: MembershipDesign, data: LabelledData) -> list[Note]:
        """Reasons for doubt that are known before any reference is trained; model 0 of the design is the target."""
        # One point per group: points of one group are not independent evidence.
        alone = np.arange(data.n_points) if data.groups is None else np.unique(data.groups, return_index=True)[1]
        notes = _other_share(design.matrix[:, alone], data), _inverted(conf[:, 0] > 0, self.members, len(alone))
        return [note for note in notes if note]

    def compared(self, signals: Signals) -> list[Note]:
        """Notes from a comparison with the references; model 0 of ``signals`` is the target."""
        n = signals.n_models - 1
        if n < MIN_REFERENCES:
            text = (
                f"{n} references are too few to check whether the given target was trained in the same way: "
                f"{MIN_REFERENCES} are needed, {GOOD_REFERENCES} to see more than gross differences."
            )
            return [Note("likeness-unchecked", "caution", text)]
        unlike = unlike_answers(signals).warning
        if unlike:
            return [Note("answers-unlike-references", "caution", unlike)]
        text = (
            f"{n} references show only gross differences between the given target and them: train {GOOD_REFERENCES} "
            "or more to see others."
        )
        return [] if n >= GOOD_REFERENCES else [Note("likeness-unchecked", "info", text)]


def _other_share(units: BoolArray, data: LabelledData) -> Note | None:
    """Note that the target (row 0 of membership [models, units]) trained on another share than its references."""
    own, theirs = float(units[0].mean()), float(units[1:].mean())
    if abs(own - theirs) <= MAX_SHARE_DIFFERENCE:
        return None
    what, last = ("points", "") if data.groups is None else ("groups", ", groups")
    k = min(max(round(own * len(units)), 1), len(units) - 1)
    text = (
        f"The target trained on {100 * own:.0f} % of the {what}, its references on {100 * theirs:.0f} %, so attacks "
        f"may find too little. Train the references on the target's share: design=plmia.exact_k_per_point("
        f"{data.n_points}, {len(units)}, {k}, numpy.random.default_rng(0){last})."
    )
    return Note("other-share", "caution", text)


def _inverted(sure: BoolArray, members: BoolArray, n_units: int) -> Note | None:
    """Note that the target favours the true label (``sure``) more often at non-members, beyond chance."""
    inside, outside, share = float(sure[members].mean()), float(sure[~members].mean()), float(members.mean())
    pooled = float(sure.mean())
    error = math.sqrt(pooled * (1 - pooled) / (n_units * share * (1 - share)))
    if outside - inside <= MAX_STANDARD_ERRORS * error:
        return None
    text = (
        f"The given target is right and sure more often at records called non-members ({percent(outside)}) than at "
        f"members ({percent(inside)}). Check that `members` is not inverted (True for records that it trained on)."
    )
    return Note("members-swapped", "invalid", text)
