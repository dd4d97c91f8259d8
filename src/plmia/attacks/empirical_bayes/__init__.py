"""Empirical Bayes likelihood ratio: with few references per point, borrow strength from all other points.

The Gaussian likelihood ratio (`lem:logbf`) needs two means and two variances per point. With few references their
estimation noise dominates. Here they have priors over points, which are estimated from the points themselves:

1. Coordinates. Views of a point are strongly correlated over models. Signals are rotated to the eigenvectors of their
   pooled covariance within points. The first is close to the mean of the views, the others are contrasts. Most
   contrasts carry little information about membership, and small modelling errors in many of them hide the useful
   one. Coordinates are dropped if the divergence of their laws, (mean shift)^2 / variance + log^2(variance_in /
   variance_out) / 2, is below 3 % of the first one's. Of 18 views of an image two coordinates remain, or one. Their
   covariance is taken to be diagonal, and the same for all points up to the factors below. If the contrasts together
   diverge more than the first coordinate (models trained without augmentation know the image but not its shifted
   views), one coordinate is kept: Fisher's direction, which has the largest shift for its variance.
2. Spread. The variance in coordinate j on side s (IN, OUT) is level_s,j(c) exp(lambda_s): a trend in the centre c of
   the point times a factor that all coordinates share. (lambda_in, lambda_out) is Gaussian over points, so the sides
   inform each other. `priors` has the posterior. Signals that repeat a few values (votes of a forest, clipped
   probabilities) may agree exactly, with a variance of 0; the variance of the cell of such a value is added: `Grain`.
3. Shift. delta = mu_in - mu_out has a prior mean that is linear in c and in the deviation around each knot of the
   trend (wide points shift further). Its prior variance tau^2(c) grows with the point's spread; tau^2 is the mean
   square around the line minus the sampling variance. With noise v_in, v_out of the means and their covariance k,
   c = w mean_in + (1 - w) mean_out, w = (v_out - k) / (v_in + v_out - 2 k), is uncorrelated with the observed shift d,
   whose variance is v = v_in + v_out - 2 k. So delta is shrunk alone, to delta* = m + B (d - m) with
   B = tau^2 / (tau^2 + v), and both means follow: mu_in = c + (1 - w) delta*, mu_out = c - w delta*.
4. Pairs. The two models of a complementary pair share no training point, and their signals at a point are negatively
   correlated (`benchmarks/empirical_bayes.py` prints it), so k is below 0. Without k, shifts would look more varied
   than they are. It is measured if there are pairs.
5. Prediction. The target is a new draw, so the variance of its signal is that of the law plus that of its mean. Its
   density is Student's t, multivariate over coordinates, with the degrees of freedom of the posterior spread.
6. Shape. References are held out in turn (with their complements, like the target's) in the role of the target;
   their membership is known. By likelihood they choose how heavy the tails of each side are, and whether signals are
   first transformed to asinh(conf / b). The target's own labels are never used.
7. Turning point. The IN law is mostly the narrower one, so the ratio falls again above some signal, as if the target
   were too confident to have trained on the point. This depends on the far tails of two fitted laws and is mostly
   wrong on real models. Beyond the turning point the ratio is therefore held at its value there, but at most 1 (odds
   of e to 1), so that the hold does not decide who is flagged at low rates. Likewise below, if a wider IN law makes it
   rise again. The ratio is not held if the held-out references of step 6 show that to be clearly worse by log loss.

Offline, a query has OUT references only, but the points of the population have both sides. The covariate is then the
OUT mean, everything above is fitted to the population, and every point takes its IN law from there: mean mean_out + m,
variance that of the IN law plus tau^2. No eta or rho is needed. If the population has no IN references either, the
statistic is one-sided: how far the target lies in the upper tail of the OUT law.

As references grow, the posterior means approach the plain estimates, and so does the spread if one coordinate is kept;
with several, a point has one factor, and the ratio of their variances remains that of the trend (one factor for each
was worse). With fewer than 600 points, trends are constants. With one reference per side the spread of a point cannot
be observed: it is taken from the spread of the shifts over points, as if all points had one shift and both sides one
spread; offline from the target at the population, which is one more OUT signal there. The ratio is joint over views,
so every view has the same value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from plmia.attacks.empirical_bayes.evidence import Coordinates, Grain
from plmia.attacks.empirical_bayes.fit import Fit, Shape, fit_view
from plmia.attacks.empirical_bayes.laws import Laws
from plmia.attacks.empirical_bayes.trends import MAX_KNOTS
from plmia.attacks.statistics import Statistic
from plmia.attacks.view import AttackView, SumName
from plmia.data.arrays import IntArray
from plmia.errors import AttackError, ReferencesError, some

__all__ = ["Coordinates", "EmpiricalBayesLR", "Fit", "Grain", "Laws"]


@dataclass(frozen=True)
class EmpiricalBayesLR(Statistic):
    """Log likelihood ratio of predictive laws with priors over points; joint over views, so the same in each.

    Needs one reference per side. Priors are fitted to a sample of the points.

    Parameters
    ----------
    most_knots : int
        Maximum number of knots of a trend; there is one per 300 points. With 1, priors are constants.
    tail : float, optional
        Maximum degrees of freedom of both laws; chosen with held-out references by default.
    bend : float, optional
        Signals become asinh(conf / bend), infinite for no change; chosen with held-out references by default.
    hold : float, optional
        Bound of a ratio beyond its turning point; 0 for no hold. Chosen between 0 and 1 by default.
    """

    most_knots: int = MAX_KNOTS
    tail: float | None = None
    bend: float | None = None
    hold: float | None = None

    uses: ClassVar[frozenset[SumName]] = frozenset({"confidence"})

    def __post_init__(self) -> None:
        if self.most_knots < 1:
            raise AttackError(f"most_knots = {self.most_knots} must be at least 1: 1 makes priors constant")
        for name, value in (("tail", self.tail), ("bend", self.bend)):
            if value is not None and not value > 0:
                raise AttackError(f"{name} = {value} must be positive: omit it to have it chosen")
        if self.hold is not None and not self.hold >= 0:
            raise AttackError(f"hold = {self.hold} must be 0 or more: omit it to have it chosen")

    def fit(self, view: AttackView) -> Fit:
        """Fit the priors to the view's references."""
        _require_references(view)
        return fit_view(view, Shape(self.most_knots, self.tail, self.bend, self.hold))


def _require_references(view: AttackView) -> None:
    in_mask = view.references.in_mask
    if view.mode == "online":
        _refuse(np.flatnonzero(~np.logical_or.reduce(in_mask, axis=0)), "IN")
    _refuse(np.flatnonzero(np.logical_and.reduce(in_mask, axis=0)), "OUT")


def _refuse(without: IntArray, side: str) -> None:
    if len(without):
        raise ReferencesError(
            f"empirical Bayes needs 1 {side} reference per point, point {some(without)} has 0: "
            "train more references, or leave these points out"
        )
