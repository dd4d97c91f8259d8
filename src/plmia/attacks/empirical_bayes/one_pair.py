"""One reference per side: the laws of the target's signal are regressions between the two references.

With one IN and one OUT reference, no record shows how much its signals vary. Over all records, however, the signals
r_in and r_out show the law of one given the other. Its mean falls short of r_in or r_out (regression to the mean), and
its spread differs between the sides: signals of members vary far less.

Online, r_in is predicted from r_out, and r_out from r_in. The target is one more draw on its side. It has the same
prediction as the reference of that side, and shares part of what that reference departs from it: the two draws are
bivariate t with the correlation `CORRELATION`. The target's own signals do not enter the laws; those at known
non-members only help to choose the bend of the signals and whether the ratio is held.

Offline, both laws are given r_out alone, and are fitted to known non-members. The target did not train on these, so its
signals there and r_out are two draws of the same law, and each predicts the other. Known non-members that laws were
fitted to look more like OUT than queries do, so p-values would be too small. Records are therefore divided into folds,
and those of a fold are scored by laws that are fitted to the known non-members of the other folds.

Online, such laws only choose the bend, from the known non-members that they were fitted to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from plmia.attacks.empirical_bayes.evidence import IN, OUT, Evidence
from plmia.attacks.empirical_bayes.model import (
    MIN_TAIL_GAIN,
    TAILS,
    HeldOut,
    Knots,
    Laws,
    log_height,
    solve_symmetric,
    t_kernel,
)
from plmia.attacks.view import Mode
from plmia.data.arrays import FloatArray, IntArray

# Steps of reweighted least squares; each changes a prediction by a fraction of the one before.
STEPS = 8
# Correlation of two models of one side, given a model of the other. Two references per side would show it. On models
# that are never targets it was 0.41 to 0.55 for IN and 0.45 to 0.67 for OUT, on tables, trees and images.
CORRELATION = 0.5
# Folds of records, offline: more folds leave more known non-members to fit to, and take longer.
FOLDS = 10


@dataclass(frozen=True)
class Regression:
    """Law of the signal of one model given that of another at the same point: Student's t.

    Around each knot, the mean is a line in the other model's signal, and the squared scale is constant.
    """

    knots: Knots  # of the other model's signal; beyond their range, lines stay constant
    lines: FloatArray  # [knots, 2]: constant and slope
    variance: FloatArray  # [knots]: squared scale
    freedom: float

    @classmethod
    def choose(
        cls, given: FloatArray, signal: FloatArray, hidden: FloatArray, knots: Knots, tail: float | None
    ) -> Regression:
        """Fit with the degrees of freedom ``tail``; by default with those under which the signals are most likely."""
        if tail is not None:
            return cls.fit(given, signal, hidden, knots, min(tail, TAILS[-1]))
        fitted = cls.fit_each(given, signal, hidden, knots, TAILS)
        likelihood = [float(each.log_density(given, signal).mean()) for each in fitted]
        likelihood[-1] += MIN_TAIL_GAIN
        return fitted[int(np.argmax(likelihood))]

    @classmethod
    def fit(cls, given: FloatArray, signal: FloatArray, hidden: FloatArray, knots: Knots, freedom: float) -> Regression:
        """Fit ``signal`` [points] to ``given`` [points] by reweighted least squares: maximum likelihood of t.

        ``hidden`` [points] is the variance that stored signals do not show.
        """
        return cls.fit_each(given, signal, hidden, knots, (freedom,))[0]

    @classmethod
    def fit_each(
        cls, given: FloatArray, signal: FloatArray, hidden: FloatArray, knots: Knots, tails: Sequence[float]
    ) -> list[Regression]:
        """Fit with each of several degrees of freedom."""
        n, near, features = len(signal), knots.hats(given).weights, _features(given, knots)
        # Sums over points, around each knot and with the weights of all tails, are one matrix product.
        lined = (near[:, :, None] * features[:, None, :]).reshape(n, -1)
        products = features[:, :, None] * np.column_stack([features, signal])[:, None, :]
        around = (near[:, :, None, None] * products[:, None]).reshape(n, -1)
        total, freedom = near.sum(axis=0), np.array(tails)[:, None]
        # Every knot spends two degrees of freedom on its line.
        spent, weight = n / max(n - 2 * len(knots), 1), np.ones((len(tails), n))
        for _ in range(STEPS):
            moments = (weight @ around).reshape(len(tails), len(knots), 2, 3)
            lines = solve_symmetric(moments[..., :2], moments[..., 2:])[..., 0]
            square = (signal - lines.reshape(len(tails), -1) @ lined.T) ** 2 * spent + hidden
            weighted = square * weight
            overall = weighted.mean(axis=1, keepdims=True)
            variance = np.where(total > 0, weighted @ near / np.where(total > 0, total, 1.0), overall)
            weight = (freedom + 1) / (freedom + square / (variance @ near.T))
        return [cls(knots, *found) for found in zip(lines, variance, tails, strict=True)]

    def at(self, given: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the mean and the squared scale [points] of the signal, given that of the other model."""
        hats, features = self.knots.hats(given), _features(given, self.knots)
        mean = (hats.blend(self.lines) * features).sum(axis=1)
        return np.asarray(mean), hats.blend(self.variance[:, None])[:, 0]

    def log_density(self, given: FloatArray, signal: FloatArray) -> FloatArray:
        """Return the log density [points] of ``signal``, up to a constant."""
        mean, variance = self.at(given)
        freedom = np.full(len(mean), self.freedom)
        kernel = t_kernel((signal - mean) ** 2 / variance, freedom, 1)
        return np.asarray(kernel + log_height(freedom, 1) - np.log(variance) / 2)


def _features(given: FloatArray, knots: Knots) -> FloatArray:
    """Return the features [points, 2] of a line, scaled to the range of the fitted signals."""
    wide = knots.high - knots.low
    scaled = (knots.within(given) - knots.low) / (wide if wide > 0 else 1.0) - 0.5
    return np.stack([np.ones(len(given)), scaled], axis=1)


@dataclass(frozen=True)
class OnePair:
    """Predictive laws of the target where every point has one reference per side."""

    mode: Mode
    inside: Regression  # IN given OUT
    outside: Regression  # online OUT given IN, offline OUT given OUT
    correlation: float = CORRELATION  # of the target and the reference of its side; not used offline

    @classmethod
    def online(cls, evidence: Evidence, most_knots: int, tail: float | None) -> OnePair:
        """Fit to points with this evidence in one coordinate."""
        (r_in, r_out), (hidden_in, hidden_out) = evidence.mean[:, :, 0], evidence.variance[:, :, 0]
        inside = Regression.choose(r_out, r_in, hidden_in, Knots.place(r_out, most_knots), tail)
        outside = Regression.choose(r_in, r_out, hidden_out, Knots.place(r_in, most_knots), tail)
        return cls("online", inside, outside)

    @classmethod
    def offline(cls, evidence: Evidence, target: FloatArray, knots: Knots, tail: float | None) -> OnePair:
        """Fit to known non-members with this evidence and the ``target``'s signals [points, 1]."""
        inside = Regression.choose(*_in_given_out(evidence), knots, tail)
        return cls("offline", inside, Regression.choose(*_two_draws(evidence, target), knots, tail))

    def refitted(self, evidence: Evidence, target: FloatArray) -> OnePair:
        """Return offline laws with the same knots and degrees of freedom, fitted to other known non-members."""
        inside = Regression.fit(*_in_given_out(evidence), self.inside.knots, self.inside.freedom)
        outside = Regression.fit(*_two_draws(evidence, target), self.outside.knots, self.outside.freedom)
        return replace(self, inside=inside, outside=outside)

    @property
    def freedom(self) -> FloatArray:
        """Degrees of freedom [2] of the regressions."""
        return np.array([self.inside.freedom, self.outside.freedom])

    def laws(self, evidence: Evidence) -> Laws:
        """Return the laws of the target's signal at points with this evidence."""
        r_in, r_out = evidence.mean[:, :, 0]
        sides = self.inside.at(r_out), self.outside.at(r_out if self.mode == "offline" else r_in)
        mean, variance = (np.stack(side)[:, :, None] for side in zip(*sides, strict=True))
        freedom = np.repeat(self.freedom[:, None], len(r_in), axis=1)
        if self.mode == "offline":
            return Laws(mean, variance, freedom)
        # One of two draws of a bivariate t, given the other: wider where that one is far off.
        away = evidence.mean - mean
        wider = (freedom[:, :, None] + away**2 / variance) / (freedom[:, :, None] + 1)
        return Laws(mean + self.correlation * away, variance * (1 - self.correlation**2) * wider, freedom + 1)

    def known_cases(self, evidence: Evidence, target: FloatArray) -> HeldOut:
        """Return what offline laws say at known non-members: of the target, and of IN references in its role.

        Both are judged from the OUT reference alone. ``target`` [points, 1] has the target's signals.
        """
        laws, n = self.laws(evidence), len(target)
        sides = (evidence.mean[IN], np.ones(n, bool)), (target, np.zeros(n, bool))
        return HeldOut.joined([HeldOut.of(laws, x, member, np.zeros(n)) for x, member in sides])


@dataclass(frozen=True)
class CrossFitted:
    """Offline laws of each fold of records, fitted to the known non-members of the other folds."""

    fold: IntArray  # [records]
    pairs: tuple[OnePair, ...]


def _in_given_out(evidence: Evidence) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the OUT signals of points, their IN signals, and the variance that the latter do not show."""
    return evidence.mean[OUT, :, 0], evidence.mean[IN, :, 0], evidence.variance[IN, :, 0]


def _two_draws(evidence: Evidence, target: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return OUT signals of points, each with another OUT signal there, and the variance that the latter do not show.

    The two signals are those of the reference and of the target. Each is given once.
    """
    r_out, x = evidence.mean[OUT, :, 0], target[:, 0]
    return np.concatenate([r_out, x]), np.concatenate([x, r_out]), np.tile(evidence.variance[OUT, :, 0], 2)
