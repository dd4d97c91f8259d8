"""References that play the target: their membership is known, so they choose the shape of the laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plmia.attacks.empirical_bayes.collecting import BoolArray, evenly
from plmia.attacks.empirical_bayes.fitted import Laws, kept_from_turning, log_height, t_kernel
from plmia.attacks.empirical_bayes.priors import IN, OUT
from plmia.attacks.moments import FloatArray

# Degrees of freedom to choose from; with a thousand, t is Gaussian.
TAILS = (4.0, 6.0, 9.0, 14.0, 25.0, 60.0, 1000.0)
# A heavier tail must raise the log likelihood of a signal by so much, or it is chance.
HEAVIER = 0.002
# Where no reference can be left out to choose.
UNKNOWN_TAIL = 14.0
# Tails show in so many cases.
CASES_FOR_TAILS = 1 << 12
# Odds of e to 1: so far a ratio that turns is held. Further, what held it would decide who is flagged at low rates.
HOLD = 1.0
# In standard errors: a loss that is larger by more is no chance.
CLEARLY = 1.0


@dataclass(frozen=True)
class HeldOut:
    """References that played the target, on points where their membership is known.

    Parameters
    ----------
    distance, freedom, log_volume : float64 arrays [2, cases]
        Of their signals from the laws of both sides, and of these laws (see `Laws`), tails not capped.
    back : float64 array [2, cases]
        Distances of their signals turned back (see `Laws.turned_back`), the same where nothing turns.
    above : bool array [cases]
        Whether the signal lies above the one turned back.
    member : bool array [cases]
        Whether the reference trained on the point.
    log_likelihood : float64 array [cases]
        Log density of the signal, bent or not, in the first coordinate of the law that its membership names.
    n_coordinates : int
        How many coordinates signals have.
    """

    distance: FloatArray
    freedom: FloatArray
    log_volume: FloatArray
    back: FloatArray
    above: BoolArray
    member: BoolArray
    log_likelihood: FloatArray
    n_coordinates: int

    @classmethod
    def of(cls, laws: Laws, x: FloatArray, member: BoolArray, log_slope: FloatArray) -> HeldOut:
        """One reference with signals ``x`` [cases, coordinates], bent with this slope [cases], judged by these laws."""
        back = laws.turned_back(x)
        return cls(
            laws.distance(x),
            laws.freedom,
            laws.log_volume,
            laws.distance(back),
            x[:, 0] > back[:, 0],
            member,
            laws.first_density(x, np.where(member, IN, OUT)) + log_slope,
            x.shape[1],
        )

    @classmethod
    def joined(cls, parts: Sequence[HeldOut]) -> HeldOut:
        """All cases of the ``parts``."""
        columns = ("distance", "freedom", "log_volume", "back", "above", "member", "log_likelihood")
        together: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in columns
        }
        return replace(parts[0], **together)

    @property
    def likelihood(self) -> float:
        """Mean log likelihood of the signals."""
        return float(self.log_likelihood.mean())

    def tails(self) -> FloatArray:
        """For each side [2] the most degrees of freedom under which its own signals are likeliest."""
        chosen = np.full(2, UNKNOWN_TAIL)
        for side, own in ((IN, self.member), (OUT, ~self.member)):
            if own.any():
                cases = evenly(np.flatnonzero(own), CASES_FOR_TAILS)
                likelihood = self._likelihoods(self.distance[side, cases], self.freedom[side, cases])
                likelihood[-1] += HEAVIER
                chosen[side] = TAILS[int(np.argmax(likelihood))]
        return chosen

    def _likelihoods(self, distance: FloatArray, freedom: FloatArray) -> list[float]:
        """Mean log density of cases, but for their volumes, with each of `TAILS` as most degrees of freedom."""
        own, most = log_height(freedom, self.n_coordinates), log_height(np.array(TAILS), self.n_coordinates)
        likelihoods = []
        for tail, height in zip(TAILS, most, strict=True):
            capped = np.minimum(freedom, tail)
            constant = np.where(freedom < tail, own, height)
            likelihoods.append(float((t_kernel(distance, capped, self.n_coordinates) + constant).mean()))
        return likelihoods

    def hold(self, tails: FloatArray) -> float:
        """How far to hold a ratio that turns: not at all only if it then tells clearly better who trained on what.

        On real signals members beyond the turn are members still; few references may not show it.
        """
        freedom = np.minimum(self.freedom, tails[:, None])
        constant = log_height(freedom, self.n_coordinates) - self.log_volume
        log_in, log_out = t_kernel(self.distance, freedom, self.n_coordinates) + constant
        back_in, back_out = t_kernel(self.back, freedom, self.n_coordinates) + constant
        free = log_in - log_out
        held = kept_from_turning(free, back_in - back_out, self.above, HOLD)
        worse = self._loss(held) - self._loss(free)
        return HOLD if worse.mean() < CLEARLY * worse.std() / np.sqrt(len(worse)) else 0.0

    def _loss(self, ratio: FloatArray) -> FloatArray:
        """Log loss [cases] of membership at even odds, if the ratio is taken at its word."""
        loss: FloatArray = np.logaddexp(0.0, np.where(self.member, -ratio, ratio))
        return loss
