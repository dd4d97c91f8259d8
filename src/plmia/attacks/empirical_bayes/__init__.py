"""Empirical Bayes likelihood ratio: with few references per point, borrow strength from all other points.

The Gaussian likelihood ratio (`lem:logbf`) needs two means and two variances per point. With few references their
estimation noise dominates. Here they have priors over points, which are estimated from the points themselves.
``docs/explanation/empirical-bayes.md`` has the model and its derivation; in its order, the steps are:

1. Coordinates: `Probe` rotates views to nearly uncorrelated coordinates, and `Separation` keeps those that matter.
2. Spread: `SpreadPrior`, a trend times one factor per side that all coordinates share (one factor for each was worse).
   `Grain` is the spread of signals that repeat a few values.
3. Shift: `ShiftPrior`. Centre and shift are weighted so that they are uncorrelated, so the shift is shrunk alone.
4. Pairs: the signals of complementary models are negatively correlated. Without that, shifts would look more varied
   than they are.
5. Prediction: the target is a new draw, so its law is Student's t around uncertain means: `Laws`.
6. Shape: `HeldOut` references in the role of the target choose tails and bend. The target's labels are never used.
7. Turning point: the ratio is held beyond it, since it depends there on the far tails of two fitted laws.

Offline, everything is fitted to the population, whose points have both sides; a query takes its IN law from there. If
the population has no IN references either, the statistic is one-sided: how far the target lies in the upper tail of
the OUT law. The ratio is joint over views, so every view has the same value.

With one reference per side, no point shows a spread, and no reference can be held out: see `one_pair`. Offline, the
mean probability over views then replaces the views, unless these predict membership clearly better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from plmia.attacks.conditional import assign_folds
from plmia.attacks.empirical_bayes.evidence import (
    IN,
    OUT,
    Coordinates,
    Evidence,
    Grain,
    collect,
    collect_block,
    evenly,
    exact_evidence,
    find_pairs,
    gather,
    mean_probability,
    pool_views,
    rounding,
)
from plmia.attacks.empirical_bayes.model import (
    DEFAULT_TAIL,
    MAX_KNOTS,
    HeldOut,
    Knots,
    Laws,
    ShiftPrior,
    Spread,
    SpreadPrior,
    hold_beyond_turn,
    is_clearly_larger,
)
from plmia.attacks.empirical_bayes.one_pair import FOLDS, CrossFitted, OnePair
from plmia.attacks.statistics import Fitted, Statistic, require_references
from plmia.attacks.view import AttackView, Block, Mode, References, SumName
from plmia.data.arrays import BoolArray, FloatArray, IntArray
from plmia.errors import AttackError, PopulationError

# Number of points to fit to, in signals and in points: trends of a few knots need no more.
CELLS_TO_FIT = 1 << 17
MIN_TO_FIT, MAX_TO_FIT = 1 << 12, 1 << 15
# Points of the probe: about and at most how many signals are kept, and at least and at most how many points.
CELLS_TO_PROBE, MAX_CELLS = 1 << 16, 1 << 20
MIN_PROBE, MAX_PROBE = 1024, 1 << 12
# Cases in which a reference plays the target, and how many references (or pairs) do at least.
POINTS_HELD_OUT, UNITS_HELD_OUT = 1 << 12, 8
# Cases from which an AUC is computed: two that are close need more.
POINTS_FOR_AUC = 1 << 15
# Fewer points with both sides teach nothing that could be applied to others.
MIN_TRANSFER = 50
# With fewer known non-members outside a fold, regressions are too uncertain.
MIN_OTHERS = 25
# From the weakest bend; a stronger one is tried only if the one before helps.
BENDS = (np.inf, 8.0, 3.0)
# A bend must raise the log likelihood of a signal by this much, or it is due to chance.
MIN_BEND_GAIN = 0.005
MAX_PAIR_CORRELATION = 0.9
# Coordinates with a smaller share of the first one's divergence cost more by their noise than they give.
MIN_DIVERGENCE = 0.03
# Offline, few points show it: variances of both sides must differ by this many standard errors of Gaussian signals.
CLEAR_RATIO = 4.0
# Divergence that all other coordinates together may show without a leak.
CHANCE_DIVERGENCE = 0.05
FOLD_SEED = 0
# With one reference per side, a shift of fewer standard errors is chance.
CLEAR_SHIFT = 3.0


@dataclass(frozen=True)
class EmpiricalBayesLR(Statistic):
    """Log likelihood ratio of predictive laws with priors over points, fitted to a sample of them.

    Needs one reference per side. By default, held-out references choose ``tail``, ``bend`` and ``hold``. With one
    reference per side, known non-members and the references there choose ``bend`` and ``hold``, offline also ``pool``.
    """

    most_knots: int = MAX_KNOTS  # maximum number of knots of a trend: see `Knots.place`; 1 is a constant
    tail: float | None = None  # maximum degrees of freedom of both laws
    bend: float | None = None  # signals become asinh(conf / bend); infinite for no change
    hold: float | None = None  # bound of a ratio beyond its turning point; 0 for no hold
    pool: bool | None = None  # offline, one reference per side: whether the views' mean probability replaces the views

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
        """Fit to evenly spaced points, offline to those of the population; choose the shape where it is not given."""
        references, offline = view.references, view.mode == "offline"
        if not offline:
            require_references(references.n_in, 1, "IN", "empirical Bayes")
        require_references(len(references) - references.n_in, 1, "OUT", "empirical Bayes")
        if offline and not len(view.population):
            raise PopulationError(
                "offline empirical Bayes learns from the population, which has 0 records: give known non-members"
            )
        n_fit = min(max(MIN_TO_FIT, CELLS_TO_FIT // (len(references) * view.n_views)), MAX_TO_FIT)
        points = evenly(view.population if offline else np.arange(view.n_points), n_fit)
        near = gather(references, points)
        sample = Sample(near, find_pairs(near.in_mask), view.target[points], view.mode)
        given = view.bend if self.bend is None else self.bend
        best, held_out = _fit_bend(sample, self.most_knots, BENDS[0] if given is None else given)
        if best.has_one_pair and not offline:
            known = evenly(view.population, n_fit)
            there = replace(sample, references=gather(references, known), target=view.target[known])
            return self._fit_pair(sample, there, given)
        if best.has_one_pair:
            rng = np.random.default_rng(FOLD_SEED)
            fold = assign_folds(view.n_points, view.population, FOLDS, rng, view.groups)
            others = [sample.part(np.flatnonzero(fold[points] != number)) for number in range(FOLDS)]
            if min(len(each.target) for each in others) >= MIN_OTHERS:
                return self._fit_offline_pair(sample, given, others, fold)
        few = sample.part(_probed(near))
        for candidate in BENDS[1:] if given is None and held_out else ():
            rival = _fit_bend(few, self.most_knots, candidate)[1]
            if not rival or not held_out or rival.likelihood - held_out.likelihood <= MIN_BEND_GAIN:
                break
            best, held_out = _fit_bend(sample, self.most_knots, candidate)
        return self._with_shape(best, held_out)

    def _fit_pair(self, sample: Sample, known: Sample, bend: float | None) -> Fit:
        """Fit to points with one reference per side.

        The strongest bend is taken unless a weaker one predicts membership clearly better at the ``known`` non-members.
        """
        bends = BENDS[::-1] if bend is None else (bend,)
        best = _fit_bend(sample, self.most_knots, bends[0])[0]
        offline = self._offline_pair(known, best.coordinates)
        for weaker in bends[1:] if offline else ():
            rival = _fit_bend(sample, self.most_knots, weaker)[0]
            other = self._offline_pair(known, rival.coordinates)
            if not offline or not other or not is_clearly_larger(offline[1].loss() - other[1].loss()):
                break
            best, offline = rival, other
        pair, cases = offline or (None, None)
        if sample.mode == "online" or pair is None:
            pair = OnePair.online(_with_both(sample, best.coordinates)[0], self.most_knots, self.tail)
        hold = self.hold if self.hold is not None else cases.hold(pair.freedom) if cases else 0.0
        return replace(best, pair=pair, tails=pair.freedom, hold=hold)

    def _fit_offline_pair(self, sample: Sample, bend: float | None, others: Sequence[Sample], fold: IntArray) -> Fit:
        """Fit offline to pooled views, unless the views as they are predict membership clearly better."""
        best, pool = self._fit_pair(sample, sample, bend), self.pool
        if sample.target.shape[1] > 1 and pool is not False:
            pooled = sample.pooled()
            rival = self._fit_pair(pooled, pooled, bend)
            if pool or not is_clearly_larger(_loss(rival, pooled) - _loss(best, sample)):
                best, others = replace(rival, pooled=True), [each.pooled() for each in others]
        return _cross_fitted(best, others, fold)

    def _offline_pair(self, known: Sample, coordinates: Coordinates) -> tuple[OnePair, HeldOut] | None:
        """Return laws fitted to known non-members and their cases there; None if too few have both references."""
        evidence, target = _with_both(known, coordinates)
        if len(target) < MIN_TRANSFER:
            return None
        knots = Knots.place(evidence.mean[OUT, :, 0], self.most_knots, known.mode)
        pair = OnePair.offline(evidence, target, knots, self.tail)
        return pair, pair.known_cases(evidence, target)

    def _with_shape(self, fit: Fit, held_out: HeldOut | None) -> Fit:
        """Return the fit with tails and hold, given or chosen."""
        if held_out is None:
            return replace(fit, tails=np.full(2, self.tail or DEFAULT_TAIL), hold=self.hold or 0.0)
        tails = held_out.tails() if self.tail is None else np.full(2, self.tail)
        return replace(fit, tails=tails, hold=held_out.hold(tails) if self.hold is None else self.hold)


@dataclass(frozen=True)
class Fit(Fitted):
    """Everything that was learned from the points; scoring needs only this and a point's own references.

    The features of ``shift`` are 1 and, with two knots or more, centre and `Spread.excess`. Offline it is None if no
    population point has IN references: the statistic is then one-sided. With one reference per side, ``pair`` predicts
    the target (offline, its versions in ``cross_fitted``), and ``spread`` and ``shift`` only describe the points.
    """

    mode: Mode
    coordinates: Coordinates  # the first has the largest variance
    pair_correlation: FloatArray  # [coordinates]: of complementary models around the means of their sides; 0 without
    n_pairs: int
    overall: FloatArray  # [2]: mean variance of the first coordinate, which weights both sides in the centre of a point
    knots: Knots = field(default_factory=lambda: Knots(np.zeros(1), 0.0, 0.0))
    spread: SpreadPrior = field(default_factory=lambda: SpreadPrior(np.ones((2, 1, 1)), np.eye(2)))
    shift: ShiftPrior | None = None
    tails: FloatArray = field(default_factory=lambda: np.full(2, np.inf))  # caps on the degrees of freedom of each side
    hold: float = 0.0  # bound of the ratio beyond its turning point; 0 for no hold
    n_points: int = 0  # that it was learned from
    has_one_pair: bool = False  # whether no point has two references on a side
    pair: OnePair | None = None
    cross_fitted: CrossFitted | None = None  # offline, the pairs that score records
    pooled: bool = False  # whether the views' mean probability takes the place of the views

    def __call__(self, block: Block) -> FloatArray:
        """Return phi [n, views], the same in each view."""
        shape = block.target.shape
        if self.pooled:
            block = Block(block.points, mean_probability(block.target), pool_views(block.references), block.mode)
        evidence = collect_block(block, self.coordinates, self.n_pairs)
        x = self.coordinates.of(block.target)
        if self.cross_fitted is None:
            ratio = self.statistic(x, evidence)
        else:
            ratio, fold = np.empty(len(x)), self.cross_fitted.fold[block.points]
            for number, pair in enumerate(self.cross_fitted.pairs):
                own = fold == number
                ratio[own] = replace(self, pair=pair).statistic(x[own], evidence.at(own))
        return np.broadcast_to(ratio[:, None], shape)

    def centre(self, evidence: Evidence) -> FloatArray:
        """Return the covariate [points] of the trends: a mean uncorrelated with the shift, offline the OUT mean."""
        inside: FloatArray = evidence.mean[IN, :, 0]
        outside: FloatArray = evidence.mean[OUT, :, 0]
        if self.mode == "offline":
            return outside
        _, weight, _ = weigh(self.overall[:, None], evidence.n, self.pair_correlation[0] * evidence.n_pairs)
        return np.asarray(weight * inside + (1 - weight) * outside)

    def laws(self, evidence: Evidence) -> Laws:
        """Return the predictive laws of points with this evidence."""
        if self.pair is not None:
            return self.pair.laws(evidence)
        centre = self.centre(evidence)
        hats = self.knots.hats(centre)
        spread = self.spread.posterior(evidence.out_alone() if self.mode == "offline" else evidence, hats)
        shift = None
        if self.shift is not None:
            shift = self.shift.at(self.features(centre, spread), spread.scale, hats)
        if self.mode == "offline":
            return self._transferred(evidence, spread, shift)
        if shift is None:
            raise AttackError("the online ratio needs a prior of the shift: fit it to records with both sides")
        return self._shrunken(evidence, spread, *shift)

    def features(self, centre: FloatArray, spread: Spread) -> FloatArray:
        """Return the features [points, features] of the prior mean of the shift."""
        ones = np.ones(len(centre))
        if len(self.knots) == 1:
            return ones[:, None]
        at = self.knots.at
        line = (self.knots.within(centre) - at.mean()) / (at[-1] - at[0])
        return np.stack([ones, line, spread.excess], axis=1)

    def _shrunken(self, evidence: Evidence, spread: Spread, expected: FloatArray, prior: FloatArray) -> Laws:
        correlation = self.pair_correlation * evidence.n_pairs
        total, weight, of_centre = weigh(spread.variance, evidence.n[:, :, None], correlation)
        seen = evidence.mean[IN] - evidence.mean[OUT]
        kept = prior / (prior + total)
        of_shift = kept * total
        mean = np.stack([evidence.mean[OUT]] * 2)
        mean += weight * seen  # the centre
        shift = expected + kept * (seen - expected)
        mean[IN] += (1 - weight) * shift
        mean[OUT] -= weight * shift
        variance = spread.variance + of_centre
        variance[IN] += (1 - weight) ** 2 * of_shift
        variance[OUT] += weight**2 * of_shift
        return Laws(mean, variance, self._capped(spread.freedom))

    def _transferred(self, evidence: Evidence, spread: Spread, shift: tuple[FloatArray, FloatArray] | None) -> Laws:
        mean, variance = np.stack([evidence.mean[OUT]] * 2), spread.variance.copy()
        variance[OUT] *= 1 + 1 / evidence.n[OUT][:, None]
        if shift is not None:
            mean[IN] += shift[0]
            variance[IN] += shift[1]
        return Laws(mean, variance, self._capped(spread.freedom))

    def _capped(self, freedom: FloatArray) -> FloatArray:
        return np.asarray(np.minimum(freedom, self.tails[:, None]))

    def statistic(self, x: FloatArray, evidence: Evidence) -> FloatArray:
        """Return the log likelihood ratio [points] of ``x`` [points, coordinates]; one-sided without a shift."""
        laws = self.laws(evidence)
        if self.shift is None:
            return laws.upper_tail(x)
        ratio = laws.log_ratio(x)
        if self.hold:
            clipped = laws.clipped_at_turn(x)
            beyond = clipped[:, 0] != x[:, 0]
            at_turn, above = laws.at(beyond).log_ratio(clipped[beyond]), x[beyond, 0] > clipped[beyond, 0]
            ratio[beyond] = hold_beyond_turn(ratio[beyond], at_turn, above, self.hold)
        return ratio

    def summary(self) -> Mapping[str, object]:
        """Return all fields as plain values; infinite values become null."""
        fields = asdict(replace(self, cross_fitted=None))
        del fields["cross_fitted"]
        plain: dict[str, object] = _plain(fields)
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return None if value == np.inf else value


def weigh(
    variance: FloatArray, n: FloatArray, correlation: FloatArray | float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the variance of the shift, the weight of the IN mean in the centre, and the variance of the centre."""
    # From the ``variance`` of signals, their numbers on each side, and the sum of the correlations over pairs.
    inside, outside = variance / n
    shared = correlation * np.sqrt(variance[IN] * variance[OUT]) / (n[IN] * n[OUT])
    total = inside + outside - 2 * shared
    return total, (outside - shared) / total, (inside * outside - shared**2) / total


@dataclass(frozen=True)
class Probe:
    """Some points with all their signals, for what needs more than sums."""

    rotated: FloatArray  # [references, points, coordinates]
    in_mask: BoolArray
    log_slope: FloatArray  # [references, points]: of the bend
    units: list[IntArray]  # references that are held out together: complementary pairs, then single ones
    coordinates: Coordinates  # see `Separation.directions`
    pair_correlation: FloatArray
    n: FloatArray  # [2, points]
    mean: FloatArray  # [2, points, coordinates]
    squares: FloatArray  # [2, points, coordinates]: sums of squares about the means
    hidden: FloatArray  # variance that the signals do not show

    @classmethod
    def of(cls, references: References, units: list[IntArray], bend: float, mode: Mode = "online") -> Probe:
        """Probe all points of ``references``, which are held out in these ``units``."""
        conf, in_mask = references.conf(slice(None), slice(None)), references.in_mask
        size = np.abs(conf).max(axis=0)
        signals = Coordinates(bend, np.eye(1)).of(conf)
        evidence = exact_evidence(signals, in_mask)
        away = signals - np.where(in_mask[:, :, None], evidence.mean[IN], evidence.mean[OUT])
        one_each = bool(evidence.n[IN].any()) and not evidence.freedom.any()
        separation = Separation.of(
            away if away.any() else _shift_deviations(signals, in_mask, one_each),
            evidence,
            in_mask,
            float(rounding(size, references.signals.dtype, bend).mean()),
        )
        rotation = separation.fisher() if one_each else separation.directions(mode)
        coordinates = Coordinates(bend, rotation, Grain.of(signals))
        away = away @ coordinates.rotation
        square = away**2
        sides = (np.einsum("rn,rnk->nk", mask.astype(np.float64), square) for mask in (in_mask, ~in_mask))
        mean = evidence.mean @ coordinates.rotation
        return cls(
            signals @ coordinates.rotation,
            in_mask,
            coordinates.log_slope(conf),
            units,
            coordinates,
            _pair_correlation(away, square, in_mask, units),
            evidence.n,
            mean,
            np.stack(list(sides)),
            coordinates.hidden(mean, size, references.signals.dtype),
        )

    def without(self, rows: IntArray, some: slice = slice(None)) -> Evidence:
        """Return the evidence of the other references at some of the points."""
        n, mean, squares = self.n[:, some].copy(), self.mean[:, some].copy(), self.squares[:, some].copy()
        points = np.arange(n.shape[1])
        for row in rows:
            side = np.where(self.in_mask[row, some], IN, OUT)
            before, rest = n[side, points, None], np.maximum(n[side, points, None] - 1, 1)
            away = self.rotated[row, some] - mean[side, points]
            n[side, points] -= 1.0
            mean[side, points] -= away / rest
            squares[side, points] -= away**2 * before / rest
        variance = np.maximum(squares, 0.0) / np.maximum(n - 1, 1)[:, :, None]
        hidden = np.broadcast_to(self.hidden, self.squares.shape)[:, some]
        return Evidence(n, mean, variance + hidden, self.n_pairs - (len(rows) == 2))

    @property
    def n_pairs(self) -> int:
        """Number of complementary pairs."""
        return sum(len(unit) == 2 for unit in self.units)


@dataclass(frozen=True)
class Separation:
    """Separation of both sides along the eigenvectors of the views' covariance within points and sides."""

    vectors: FloatArray  # [views, vectors] in descending order of variance; the first is close to the mean of the views
    shift: FloatArray  # mean shift along each vector
    variance: FloatArray  # mean of both sides
    ratio: FloatArray  # log ratio of the variances
    n_points: int  # that show a shift
    chance: float  # divergence that equal variances show by chance

    @classmethod
    def of(cls, away: FloatArray, evidence: Evidence, in_mask: BoolArray, rounded: float) -> Separation:
        """Estimate from deviations ``away`` [references, points, views]; ``rounded`` is the variance of rounding."""
        flat, inside = away.reshape(-1, away.shape[2]), away[in_mask]
        every, own = flat.T @ flat, inside.T @ inside
        vectors = np.linalg.eigh(every)[1][:, ::-1]
        vectors = vectors * np.where(vectors.sum(axis=0) < 0, -1.0, 1.0)
        both = (evidence.n > 0).all(axis=0)
        shift = (evidence.mean[IN] - evidence.mean[OUT])[both] @ vectors if both.any() else np.zeros((1, len(every)))
        freedom = evidence.freedom.sum(axis=1)
        variance = [
            np.maximum(np.einsum("vk,vw,wk->k", vectors, squares, vectors), 0.0) / d
            for squares, d in zip((own, every - own), freedom, strict=True)
            if d > 0
        ] or [shift.var(axis=0)]
        both_sides = np.stack(variance) + rounded
        ratio = np.log(both_sides[0] / both_sides[-1])
        # The log of a variance with d degrees of freedom has the variance 2 / d, and half the squared ratio counts.
        chance = CLEAR_RATIO**2 * float(sum(1 / d for d in freedom if d > 0))
        return cls(vectors, shift.mean(axis=0), both_sides.mean(axis=0), ratio, int(both.sum()), chance)

    def directions(self, mode: Mode) -> FloatArray:
        """Return the directions [views, coordinates] along which signals are modelled; see step 1 of the model."""
        # The divergence of two Gaussian laws is nearly the squared shift in deviations plus half the squared log ratio
        # of the variances.
        divergence = self.shift**2 / self.variance + self.ratio**2 / 2
        if self.n_points < MIN_TRANSFER or divergence[0] + CHANCE_DIVERGENCE >= divergence[1:].sum():
            # Signals whose squares are not finite keep every vector: the statistic is then refused by name.
            least = MIN_DIVERGENCE * divergence[0]
            if mode == "offline" and self.n_points >= MIN_TRANSFER:  # known non-members are few
                least = min(max(least, self.chance), divergence[0])
            return self.vectors[:, ~(divergence < least)]
        kept = divergence >= MIN_DIVERGENCE * divergence.max()
        fisher: FloatArray = self.vectors[:, kept] @ (self.shift / self.variance)[kept]
        return fisher[:, None] / np.linalg.norm(fisher)

    def fisher(self) -> FloatArray:
        """Return the one direction [views, 1] along which the shift is largest relative to its own variation."""
        # With one reference per side there is no other spread. A shift below three standard errors is chance.
        divergence = self.shift**2 / self.variance
        kept = divergence >= max(MIN_DIVERGENCE * divergence.max(), CLEAR_SHIFT**2 / max(self.n_points, 1))
        if not kept[1:].any():
            return self.vectors[:, :1]
        direction: FloatArray = self.vectors[:, kept] @ (self.shift / self.variance)[kept]
        return direction[:, None] / np.linalg.norm(direction)


def _shift_deviations(signals: FloatArray, in_mask: BoolArray, one_each: bool) -> FloatArray:
    """Return deviations from the mean of all references, with one per side also from the mean shift."""
    away: FloatArray = signals - signals.mean(axis=0)
    for mask in (in_mask, ~in_mask) if one_each else ():
        away[mask] -= away[mask].mean(axis=0) if mask.any() else 0.0
    return away


def _pair_correlation(away: FloatArray, square: FloatArray, in_mask: BoolArray, units: list[IntArray]) -> FloatArray:
    """Return the correlation [coordinates] within complementary pairs, one model IN and one OUT at every point."""
    pairs = [unit for unit in units if len(unit) == 2]
    if len(pairs) < 2:  # the deviations of a single pair from the mean are 0
        return np.zeros(away.shape[2])
    one, other = np.stack(pairs, axis=1)
    product = np.einsum("rnk,rnk->k", away[one], away[other])
    inside = np.einsum("rn,rnk->k", in_mask.astype(np.float64), square)
    scale = np.sqrt(inside * np.maximum(square.sum(axis=(0, 1)) - inside, 0.0))
    # Squares of references without a partner count as well: correct by the share of pairs.
    product *= len(away) / (2 * len(pairs))
    correlation = np.divide(product, scale, out=np.zeros_like(product), where=scale > 0)
    return np.asarray(np.clip(correlation, -MAX_PAIR_CORRELATION, MAX_PAIR_CORRELATION))


@dataclass(frozen=True)
class Sample:
    """Points to fit to."""

    references: References
    units: list[IntArray]  # held out together
    target: FloatArray  # offline, the target trained on none of the points
    mode: Mode

    def part(self, points: IntArray) -> Sample:
        """Return some of the points."""
        return replace(self, references=gather(self.references, points), target=self.target[points])

    def pooled(self) -> Sample:
        """Return one view per point: the mean probability of all views."""
        return replace(self, references=pool_views(self.references), target=mean_probability(self.target))


def held_out_auc(view: AttackView, bend: float) -> float:
    """Return how well references in the role of the target are attacked on the scale asinh(conf / bend)."""
    sample = Sample(view.references, find_pairs(view.references.in_mask), view.target, view.mode)
    held_out = _fit_bend(sample, MAX_KNOTS, bend, POINTS_FOR_AUC)[1]
    return 0.5 if held_out is None else held_out.auc()


def _fit_bend(sample: Sample, most_knots: int, bend: float, cases: int = POINTS_HELD_OUT) -> tuple[Fit, HeldOut | None]:
    """Fit with one bend, and hold out references in turn (None if that is not possible)."""
    near = sample.references
    probe = Probe.of(gather(near, _probed(near)), sample.units, bend, sample.mode)
    evidence = collect(near, probe.coordinates, probe.n_pairs)
    fit = _fit_priors(evidence, probe.coordinates.of(sample.target), sample.mode, most_knots, probe)
    return fit, hold_out(fit, probe, cases) if fit.shift is not None else None


def _probed(near: References) -> IntArray:
    """Return the points that are kept with all their signals."""
    cells = near.signals[:, 0].size
    n_probe = min(max(MIN_PROBE, CELLS_TO_PROBE // cells), MAX_PROBE, max(MAX_CELLS // cells, 1))
    return evenly(np.arange(near.n_points), n_probe)


def _fit_priors(evidence: Evidence, target: FloatArray, mode: Mode, most_knots: int, probe: Probe) -> Fit:
    """Fit the priors to points with this evidence and the target's signals ``target``."""
    both, has_spread = evidence.n[IN] > 0, bool(evidence.freedom.any())
    transfer = mode == "online" or int(both.sum()) >= MIN_TRANSFER
    evidence, target = (evidence.at(both), target[both]) if transfer else (evidence.out_alone(), target)
    shown = evidence
    if mode == "offline" and not evidence.freedom[OUT].any():
        shown = _with_target(evidence, target)
    # The centre needs no other part of the fit.
    fit = Fit(mode, probe.coordinates, probe.pair_correlation, probe.n_pairs, _overall(shown))
    centre = fit.centre(evidence)
    knots = Knots.place(centre, most_knots, mode)
    hats = knots.hats(centre)
    prior = SpreadPrior.fit(shown, hats, probe.pair_correlation)
    fit = replace(fit, knots=knots, spread=prior, n_points=len(centre))
    if not transfer:
        return fit
    spread = prior.posterior(evidence.out_alone() if mode == "offline" else evidence, hats)
    noise = _shift_noise(evidence, spread, None if mode == "offline" else probe.pair_correlation)
    shift = evidence.mean[IN] - evidence.mean[OUT]
    shift_prior = ShiftPrior.fit(shift, noise, fit.features(centre, spread), spread.scale, hats)
    return replace(fit, shift=shift_prior, has_one_pair=not has_spread and shift.shape[1] == 1)


def _with_both(sample: Sample, coordinates: Coordinates) -> tuple[Evidence, FloatArray]:
    """Return the evidence about points with references on both sides, and the target's signals there."""
    evidence = collect(sample.references, coordinates, 0)
    both = evidence.n[IN] > 0
    return evidence.at(both), coordinates.of(sample.target[both])


def _loss(fit: Fit, known: Sample) -> FloatArray:
    """Return the log loss [cases] of membership at known non-members; see `OnePair.known_cases`."""
    if fit.pair is None:
        raise AttackError("membership is predicted at known non-members by regressions, which were not fitted")
    return fit.pair.known_cases(*_with_both(known, fit.coordinates)).loss()


def _cross_fitted(fit: Fit, others: Sequence[Sample], fold: IntArray) -> Fit:
    """Return a fit that scores each ``fold`` [records] by laws fitted to known non-members of the ``others``."""
    pair = fit.pair
    if pair is None:
        return fit
    pairs = tuple(pair.refitted(*_with_both(each, fit.coordinates)) for each in others)
    return replace(fit, cross_fitted=CrossFitted(fold, pairs))


def _overall(evidence: Evidence) -> FloatArray:
    """Return the squared mean deviation [2] of the first coordinate; a side without one takes that of the other."""
    sides = zip(np.sqrt(evidence.variance[:, :, 0]), evidence.freedom, strict=True)
    overall = np.array([np.average(deviation, weights=d) ** 2 if d.any() else 0.0 for deviation, d in sides])
    return np.where(overall > 0, overall, overall.max() if overall.any() else 1.0)


def _shift_noise(evidence: Evidence, spread: Spread, pair_correlation: FloatArray | None) -> FloatArray:
    """Return the expected sampling variance [points, coordinates] of the shift."""
    # Without a correlation, that of the IN mean alone: offline, the shift is measured from the observed OUT mean.
    # The mean of an inverse chi-square, as if it were log-normal: it exists for any degrees of freedom.
    variance = spread.variance * np.exp(2 / spread.freedom)[:, :, None]
    if pair_correlation is None:
        return np.asarray(variance[IN] / evidence.n[IN][:, None])
    return weigh(variance, evidence.n[:, :, None], pair_correlation * evidence.n_pairs)[0]


def _with_target(evidence: Evidence, target: FloatArray) -> Evidence:
    """Add the target, which did not train on these points, to their OUT references (one each)."""
    n, mean, variance = evidence.n.copy(), evidence.mean.copy(), evidence.variance.copy()
    n[OUT] += 1
    variance[OUT] += (target - mean[OUT]) ** 2 / 2
    mean[OUT] = (mean[OUT] + target) / 2
    return Evidence(n, mean, variance)


def hold_out(fit: Fit, probe: Probe, cases: int = POINTS_HELD_OUT) -> HeldOut | None:
    """Hold out some references in turn, each with its complement, and predict them from the others."""
    # Models differ as much as points do, so many of them are held out, each at other points.
    if len(probe.units) < 2:
        return None
    n_points = probe.in_mask.shape[1]
    chosen = evenly(np.arange(len(probe.units)), max(UNITS_HELD_OUT, cases // n_points))
    every = -(-len(chosen) * n_points // cases)
    parts: list[HeldOut] = []
    for place, unit in enumerate(probe.units[i] for i in chosen):
        some = slice(place % every, None, every)
        evidence = probe.without(unit, some)
        usable = (evidence.n[OUT] > 0) & ((evidence.n[IN] > 0) | (fit.mode == "offline"))
        if usable.any():
            laws = fit.laws(evidence.at(usable))
            columns = (probe.rotated, probe.in_mask, probe.log_slope)
            parts += [HeldOut.of(laws, *(column[row, some][usable] for column in columns)) for row in unit]
    return HeldOut.joined(parts) if parts else None
