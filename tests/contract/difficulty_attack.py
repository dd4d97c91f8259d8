"""An attack of a user's own: how much more confident the target is than its OUT references, for this kind of point.

plmia score signals.npz -o out --attack difficulty_attack.py:DIFFICULTY
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plmia import Attack, AttackView, BinaryVote
from plmia.errors import AttackError


@dataclass(frozen=True)
class Difficulty:
    """The target's confidence minus ``weight`` times the mean of the point's OUT references."""

    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise AttackError(f"weight = {self.weight} lies outside [0, 1]: 1 removes the difficulty altogether")

    def __call__(self, view: AttackView) -> npt.NDArray[np.float64]:
        """Statistic [points, views]."""
        phi = np.empty(view.target.shape)
        for points, conf, in_mask in view.references.blocks():
            mean = np.where(in_mask[:, :, None], 0.0, conf).sum(axis=0) / (~in_mask).sum(axis=0)[:, None]
            phi[points] = view.target[points] - self.weight * mean
        return phi


DIFFICULTY = Attack("difficulty", Difficulty(), BinaryVote(), note="confidence beyond the mean of OUT references")
