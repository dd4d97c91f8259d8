"""Empirical Bayes likelihood ratio: few references a point, strength borrowed from all the others.

Per point the Gaussian likelihood ratio (`lem:logbf`) needs two means and two variances, and with few references it is
their estimation noise that decides. Here they are drawn from priors over points, which the points themselves reveal:

1. Coordinates. Views of a point are strongly correlated over models. Signals are rotated to the eigenvectors of their
   pooled covariance within points; the first is close to the mean of the views, the others are contrasts. Most
   contrasts say next to nothing of membership, and many that are modelled a little wrongly hide what one says. So
   those are left out whose laws diverge by less than 3 % of what the first coordinate's do: (mean shift)^2 / variance
   + log^2(variance_in / variance_out) / 2. Of 18 views of an image two coordinates are kept, or one. In these the
   covariance is taken to be diagonal, the same for all points but for the factors below. Where the contrasts together
   tell more than the first (of models that trained without augmentation, which know the image and not its shifted
   views), one coordinate is kept instead: the direction of Fisher, of the largest shift for its variance.
2. Spread. The variance in coordinate j on side s (IN, OUT) is level_s,j(c) exp(lambda_s): a trend in the centre c of
   the point times a factor of its own that all coordinates share. (lambda_in, lambda_out) is Gaussian over points: the
   sides inform each other, on images almost as much as if they were one. `priors` has the posterior. Signals
   that repeat a few values (votes of a forest, clipped probabilities) may agree exactly: a variance of 0 that no trend
   survives. To theirs is added that of the cell which such a value stands for: `Grain`.
3. Shift. delta = mu_in - mu_out has a prior mean that is linear in c and in the deviation around each knot of the
   trend (wide points shift further), and a prior variance tau^2(c) that grows with the point's spread; tau^2 is the
   mean square off the line less the sampling variance. With noise v_in, v_out of the means and their covariance k,
   c = w mean_in + (1 - w) mean_out, w = (v_out - k) / (v_in + v_out - 2 k), has no noise in common with the observed
   shift d, whose variance is v = v_in + v_out - 2 k. So delta is shrunk alone, to delta* = m + B (d - m) with
   B = tau^2 / (tau^2 + v), and both means follow: mu_in = c + (1 - w) delta*, mu_out = c - w delta*.
4. Pairs. The two models of a complementary pair have no training point in common, and their signals at a point are
   negatively correlated (`benchmarks/empirical_bayes.py` prints it): k is below 0. Leaving that out makes shifts look
   more varied than they are. It is measured, where there are pairs.
5. Prediction. The target is a new draw, so the variance of its signal is that of the law plus that of its mean, and
   its density is Student's t, multivariate over coordinates, with the degrees of freedom of the posterior spread.
6. Shape. References that are left out in turn (with their complements, as the target's is) play the target, and their
   membership is known. They choose, by likelihood, how heavy the tails of each side are and whether signals are bent to
   asinh(conf / b) first: never the target's own labels.
7. Turn. The IN law is mostly the narrower, so the ratio falls again above some signal: as if the target were too
   confident to have trained on the point. That rests on the far side of two fitted laws, and on real models it is
   mostly wrong. So beyond the turn the ratio is held at what it is there, but at no more than 1 (odds of e to 1), lest
   that decides who is flagged at low rates; and the like where a wider IN law makes it rise again below some signal.
   It is not held if references as targets, as in 6, show that to be clearly worse by log loss of membership, as those
   do whose signals follow the model.

Offline, a query has OUT references alone, but the points of the population have both sides. The covariate is then the
OUT mean, everything above is fitted to the population, and a query (a point of the population too) takes its IN law
from there: mean mean_out + m, variance that of the IN law plus tau^2. No eta and no rho are needed. If the population
has no IN references either, the statistic is one-sided: how far the target lies in the upper tail of the OUT law.

As references grow, posterior and plain estimates of the means become one, and so do those of the spread where one
coordinate is kept; of several, the point has one factor, and how their variances compare stays a matter of the trend
(a factor for each was tried, and lost). With fewer than 600 points trends are constants. With one reference a side
nothing shows the spread of a point: it is then taken from the spread of the shifts over points, as if these had one
shift and both sides one spread; offline from the target at the population, which is one more OUT signal there. The
ratio is joint over views, so that every view has the same value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from plmia.attacks.empirical_bayes.collecting import Coordinates, Grain
from plmia.attacks.empirical_bayes.fitted import Fit, Laws
from plmia.attacks.empirical_bayes.fitting import Shape, fit_view
from plmia.attacks.empirical_bayes.trends import MOST_KNOTS
from plmia.attacks.statistics import Statistic
from plmia.attacks.view import AttackView, SumName
from plmia.data.arrays import IntArray
from plmia.errors import AttackError, ReferencesError, some

__all__ = ["Coordinates", "EmpiricalBayesLR", "Fit", "Grain", "Laws"]


@dataclass(frozen=True)
class EmpiricalBayesLR(Statistic):
    """Log likelihood ratio of predictive laws with priors over points; joint over views, so the same in each.

    Works from one reference a side on. Two passes over the signals: one over a sample of the points, to fit the
    priors; one over all points in blocks.

    Parameters
    ----------
    most_knots : int
        Most knots of a trend; there is one for every 300 points. With 1, priors are constants.
    tail : float, optional
        Most degrees of freedom of both laws; chosen with references as targets by default.
    bend : float, optional
        Signals are bent to asinh(conf / bend), not at all if it is infinite; chosen in the same way by default.
    hold : float, optional
        How far a ratio that turns is held, either way; 0 for not at all. Chosen between 0 and 1 by default.
    """

    most_knots: int = MOST_KNOTS
    tail: float | None = None
    bend: float | None = None
    hold: float | None = None

    uses: ClassVar[frozenset[SumName]] = frozenset({"confidence"})

    def __post_init__(self) -> None:
        if self.most_knots < 1:
            raise AttackError(
                f"a trend with {self.most_knots} knots does not exist: take 1 for constant priors, or more"
            )
        for name, value in (("tail", self.tail), ("bend", self.bend)):
            if value is not None and not value > 0:
                raise AttackError(f"{name} = {value} must be positive: leave it out to have it chosen")
        if self.hold is not None and not self.hold >= 0:
            raise AttackError(f"hold = {self.hold} must be 0 or more: leave it out to have it chosen")

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
            f"empirical Bayes needs 1 {side} reference a point, point {some(without)} has 0: "
            "train more references, or leave these points out"
        )
