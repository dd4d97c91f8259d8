"""Fits the model of `plmia.attacks.empirical_bayes` to points with known references."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from plmia.attacks.empirical_bayes.collecting import (
    BoolArray,
    Coordinates,
    Grain,
    collect,
    evenly,
    exactly,
    find_pairs,
    gather,
    rounding,
)
from plmia.attacks.empirical_bayes.fitted import Fit, weigh
from plmia.attacks.empirical_bayes.held_out import UNKNOWN_TAIL, HeldOut
from plmia.attacks.empirical_bayes.priors import IN, OUT, Evidence, ShiftPrior, Spread, SpreadPrior
from plmia.attacks.empirical_bayes.trends import Knots
from plmia.attacks.moments import FloatArray, IntArray, References
from plmia.attacks.view import AttackView, Mode
from plmia.errors import PopulationError

# Trends of a few knots need no more points than these; the fewer references these have, the more of them.
CELLS_TO_FIT = 1 << 17
LEAST_TO_FIT, MOST_TO_FIT = 1 << 12, 1 << 15
# Signals that are kept as they are, for what needs more than sums: about and at most how many; how many points that
# makes; at how many points a reference plays the target, over all references; how many of these do, or pairs of them.
CELLS_TO_PROBE, MOST_CELLS = 1 << 16, 1 << 20
LEAST_PROBE, MOST_PROBE = 1024, 1 << 12
POINTS_HELD_OUT, UNITS_HELD_OUT = 1 << 12, 8
# Fewer points with both sides than these teach nothing that could be applied to others.
LEAST_TRANSFER = 50

# From the weakest bend on; a stronger one is tried only if the one before helps.
BENDS = (np.inf, 8.0, 3.0)
# A bend must raise the log likelihood of a signal by so much, or it is chance.
CLEARLY = 0.005
MOST_PAIR_CORRELATION = 0.9
# Coordinates that tell less than this share of what the first tells cost more by their noise than they give.
LEAST_TOLD = 0.03
# So much all others together may tell where nothing leaks.
TOLD_BY_CHANCE = 0.05


@dataclass(frozen=True)
class Probe:
    """Some points with all their signals, in coordinates of their own.

    Parameters
    ----------
    turned : float64 array [references, points, coordinates]
        The signals.
    in_mask : bool array [references, points]
        Membership.
    log_slope : float64 array [references, points]
        How signals were stretched by the bend.
    units : list of int arrays
        References that are left out together: complementary pairs, then single ones.
    coordinates : Coordinates
        The coordinates; see `Told.directions`.
    pair_correlation : float64 array [coordinates]
        Correlation of the two models of a pair around the means of their sides; 0 without pairs.
    n, mean, squares : float64 arrays [2, points], [2, points, coordinates] twice
        Counts and means of both sides, and sums of squares about the means.
    hidden : float64 array, broadcasts to [2, points, coordinates]
        Variance that the signals do not show.
    """

    turned: FloatArray
    in_mask: BoolArray
    log_slope: FloatArray
    units: list[IntArray]
    coordinates: Coordinates
    pair_correlation: FloatArray
    n: FloatArray
    mean: FloatArray
    squares: FloatArray
    hidden: FloatArray

    @classmethod
    def of(cls, references: References, units: list[IntArray], bend: float) -> Probe:
        """All points of ``references``, which are left out in these ``units``."""
        conf, in_mask = references.conf(slice(None), slice(None)), references.in_mask
        size = np.abs(conf).max(axis=0)
        signals = Coordinates(bend, np.eye(1)).of(conf)
        evidence = exactly(signals, in_mask)
        away = signals - np.where(in_mask[:, :, None], evidence.mean[IN], evidence.mean[OUT])
        told = Told.of(
            away if away.any() else signals - signals.mean(axis=0),
            evidence,
            in_mask,
            float(rounding(size, references.signals.dtype, bend).mean()),
        )
        coordinates = Coordinates(bend, told.directions(), Grain.of(signals))
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
        """Evidence of the other references at some of the points."""
        n, mean, squares = self.n[:, some].copy(), self.mean[:, some].copy(), self.squares[:, some].copy()
        points = np.arange(n.shape[1])
        for row in rows:
            side = np.where(self.in_mask[row, some], IN, OUT)
            before, rest = n[side, points, None], np.maximum(n[side, points, None] - 1, 1)
            away = self.turned[row, some] - mean[side, points]
            n[side, points] -= 1.0
            mean[side, points] -= away / rest
            squares[side, points] -= away**2 * before / rest
        variance = np.maximum(squares, 0.0) / np.maximum(n - 1, 1)[:, :, None]
        hidden = np.broadcast_to(self.hidden, self.squares.shape)[:, some]
        return Evidence(n, mean, variance + hidden, self.n_pairs - (len(rows) == 2))

    @property
    def n_pairs(self) -> int:
        """How many complementary pairs there are."""
        return sum(len(unit) == 2 for unit in self.units)


@dataclass(frozen=True)
class Told:
    """What each eigenvector of the covariance of the views within points and sides tells of membership.

    Parameters
    ----------
    vectors : float64 array [views, vectors]
        The eigenvectors, that of the largest variance first; it is close to the mean of the views.
    shift, variance : float64 arrays [vectors]
        Mean shift along each, and variance, both sides alike.
    ratio : float64 array [vectors]
        Log ratio of the variances of both sides.
    n_points : int
        How many points show a shift.
    """

    vectors: FloatArray
    shift: FloatArray
    variance: FloatArray
    ratio: FloatArray
    n_points: int

    @classmethod
    def of(cls, away: FloatArray, evidence: Evidence, in_mask: BoolArray, rounded: float) -> Told:
        """From deviations ``away`` [references, points, views] of signals with this evidence, rounded by so much."""
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
        return cls(vectors, shift.mean(axis=0), both_sides.mean(axis=0), ratio, int(both.sum()))

    def directions(self) -> FloatArray:
        """Directions [views, coordinates] that signals are modelled along.

        Vectors are worth keeping by the divergence of two Gaussian laws, nearly: the square of the shift in deviations,
        plus half the square of the log ratio of the variances. Where the others together tell more than the first (as
        of models that know an image itself better than its shifted views), it is the one direction of Fisher instead,
        along which shifts are largest for their deviations.
        """
        told = self.shift**2 / self.variance + self.ratio**2 / 2
        if self.n_points < LEAST_TRANSFER or told[0] + TOLD_BY_CHANCE >= told[1:].sum():
            # Signals whose squares are not finite keep every vector: the statistic is then refused by name.
            return self.vectors[:, ~(told < LEAST_TOLD * told[0])]
        kept = told >= LEAST_TOLD * told.max()
        fisher: FloatArray = self.vectors[:, kept] @ (self.shift / self.variance)[kept]
        return fisher[:, None] / np.linalg.norm(fisher)


def _pair_correlation(away: FloatArray, square: FloatArray, in_mask: BoolArray, units: list[IntArray]) -> FloatArray:
    """Correlation [coordinates] within complementary pairs, of which one is IN and one OUT at every point."""
    pairs = [unit for unit in units if len(unit) == 2]
    if len(pairs) < 2:  # of one pair the deviations from the mean are 0
        return np.zeros(away.shape[2])
    one, other = np.stack(pairs, axis=1)
    product = np.einsum("rnk,rnk->k", away[one], away[other])
    inside = np.einsum("rn,rnk->k", in_mask.astype(np.float64), square)
    scale = np.sqrt(inside * np.maximum(square.sum(axis=(0, 1)) - inside, 0.0))
    # Should others than pairs be among the references, their squares count as well: by the share of pairs.
    product *= len(away) / (2 * len(pairs))
    correlation = np.divide(product, scale, out=np.zeros_like(product), where=scale > 0)
    clipped: FloatArray = np.clip(correlation, -MOST_PAIR_CORRELATION, MOST_PAIR_CORRELATION)
    return clipped


@dataclass(frozen=True)
class Sample:
    """Points to fit to.

    Parameters
    ----------
    references : References
        The references at these points.
    units : list of int arrays
        References that are left out together: complementary pairs, then single ones.
    target : float64 array [points, views]
        The target's signals.
    mode : {"online", "offline"}
        Offline the target trained on none of the points.
    """

    references: References
    units: list[IntArray]
    target: FloatArray
    mode: Mode

    def part(self, points: IntArray) -> Sample:
        """Some of its points."""
        return replace(self, references=gather(self.references, points), target=self.target[points])


@dataclass(frozen=True)
class Shape:
    """What is given of the shape of the laws, and what is to be chosen (None); see `EmpiricalBayesLR`."""

    most_knots: int
    tail: float | None = None
    bend: float | None = None
    hold: float | None = None


def fit_view(view: AttackView, shape: Shape) -> Fit:
    """Fit to evenly spaced points, offline to those of the population; choose of the shape what is not given."""
    offline = view.mode == "offline"
    if offline and not len(view.population):
        raise PopulationError(
            "offline empirical Bayes learns from the population, which has 0 points: name points that are not members"
        )
    n_fit = min(max(LEAST_TO_FIT, CELLS_TO_FIT // (len(view.references) * view.n_views)), MOST_TO_FIT)
    points = evenly(view.population if offline else np.arange(view.n_points), n_fit)
    near = gather(view.references, points)
    sample = Sample(near, find_pairs(near.in_mask), view.target[points], view.mode)
    best, held_out = _fit_bend(sample, shape.most_knots, BENDS[0] if shape.bend is None else shape.bend)
    few = sample.part(_probed(near))
    for candidate in BENDS[1:] if shape.bend is None and held_out else ():
        rival = _fit_bend(few, shape.most_knots, candidate)[1]
        if not rival or not held_out or rival.likelihood - held_out.likelihood <= CLEARLY:
            break
        best, held_out = _fit_bend(sample, shape.most_knots, candidate)
    return _shaped(best, held_out, shape)


def _fit_bend(sample: Sample, most_knots: int, bend: float) -> tuple[Fit, HeldOut | None]:
    """Fit with one bend, and references that play the target (None if none can)."""
    near = sample.references
    probe = Probe.of(gather(near, _probed(near)), sample.units, bend)
    evidence = collect(near, probe.coordinates, probe.n_pairs)
    fit = _fit_priors(evidence, probe.coordinates.of(sample.target), sample.mode, most_knots, probe)
    return fit, play_target(fit, probe) if fit.shift is not None else None


def _shaped(fit: Fit, held_out: HeldOut | None, shape: Shape) -> Fit:
    """The fit with tails and hold, as they are given or chosen."""
    if held_out is None:
        return replace(fit, tails=np.full(2, shape.tail or UNKNOWN_TAIL), hold=shape.hold or 0.0)
    tails = held_out.tails() if shape.tail is None else np.full(2, shape.tail)
    return replace(fit, tails=tails, hold=held_out.hold(tails) if shape.hold is None else shape.hold)


def _probed(near: References) -> IntArray:
    """Which points are kept with all their signals."""
    cells = near.signals[:, 0].size
    n_probe = min(max(LEAST_PROBE, CELLS_TO_PROBE // cells), MOST_PROBE, max(MOST_CELLS // cells, 1))
    return evenly(np.arange(near.n_points), n_probe)


def _fit_priors(evidence: Evidence, target: FloatArray, mode: Mode, most_knots: int, probe: Probe) -> Fit:
    """Fit the priors to points with this evidence, on which the target has the signals ``target``."""
    both = evidence.n[IN] > 0
    transfer = mode == "online" or int(both.sum()) >= LEAST_TRANSFER
    evidence, target = (evidence.at(both), target[both]) if transfer else (evidence.out_alone(), target)
    shown = evidence
    if mode == "offline" and not evidence.freedom[OUT].any():
        shown = _with_target(evidence, target)
    # The centre needs no more of the fit than these.
    fit = Fit(mode, probe.coordinates, probe.pair_correlation, probe.n_pairs, _overall(shown))
    centre = fit.centre(evidence)
    knots = Knots.place(centre, most_knots)
    hats = knots.hats(centre)
    prior = SpreadPrior.fit(shown, hats, probe.pair_correlation)
    fit = replace(fit, knots=knots, spread=prior, n_points=len(centre))
    if not transfer:
        return fit
    spread = prior.posterior(evidence.out_alone() if mode == "offline" else evidence, hats)
    noise = _shift_noise(evidence, spread, None if mode == "offline" else probe.pair_correlation)
    shift = evidence.mean[IN] - evidence.mean[OUT]
    return replace(fit, shift=ShiftPrior.fit(shift, noise, fit.features(centre, spread), spread.scale, hats))


def _overall(evidence: Evidence) -> FloatArray:
    """Square of the mean deviation [2] of the first coordinate; of a side that shows none, that of the other."""
    sides = zip(np.sqrt(evidence.variance[:, :, 0]), evidence.freedom, strict=True)
    overall = np.array([np.average(deviation, weights=d) ** 2 if d.any() else 0.0 for deviation, d in sides])
    return np.where(overall > 0, overall, overall.max() if overall.any() else 1.0)


def _shift_noise(evidence: Evidence, spread: Spread, pair_correlation: FloatArray | None) -> FloatArray:
    """Sampling variance [points, coordinates] of the shift, as the posterior of the spread expects it.

    Without a correlation of the IN mean alone: offline the OUT mean is what the shift is counted from, noise and all.
    """
    # The mean of an inverse chi-square, as if it were log-normal: that exists however few its degrees of freedom.
    variance = spread.variance * np.exp(2 / spread.freedom)[:, :, None]
    total, _, _ = weigh(
        variance, evidence.n[:, :, None], 0.0 if pair_correlation is None else pair_correlation * evidence.n_pairs
    )
    inside: FloatArray = variance[IN] / evidence.n[IN][:, None]
    return inside if pair_correlation is None else total


def _with_target(evidence: Evidence, target: FloatArray) -> Evidence:
    """Add the target, which did not train on these points, to their OUT references (one each)."""
    n, mean, variance = evidence.n.copy(), evidence.mean.copy(), evidence.variance.copy()
    n[OUT] += 1
    variance[OUT] += (target - mean[OUT]) ** 2 / 2
    mean[OUT] = (mean[OUT] + target) / 2
    return Evidence(n, mean, variance)


def play_target(fit: Fit, probe: Probe) -> HeldOut | None:
    """Leave out some references in turn, each with its complement, and see how the rest predict them.

    Models differ as much as points do: rather many of them, each at other points, than all points of a few.
    """
    if len(probe.units) < 2:
        return None
    n_points = probe.in_mask.shape[1]
    chosen = evenly(np.arange(len(probe.units)), max(UNITS_HELD_OUT, POINTS_HELD_OUT // n_points))
    every = -(-len(chosen) * n_points // POINTS_HELD_OUT)
    parts: list[HeldOut] = []
    for place, unit in enumerate(probe.units[i] for i in chosen):
        some = slice(place % every, None, every)
        evidence = probe.without(unit, some)
        usable = (evidence.n[OUT] > 0) & ((evidence.n[IN] > 0) | (fit.mode == "offline"))
        if usable.any():
            laws = fit.laws(evidence.at(usable))
            columns = (probe.turned, probe.in_mask, probe.log_slope)
            parts += [HeldOut.of(laws, *(column[row, some][usable] for column in columns)) for row in unit]
    return HeldOut.joined(parts) if parts else None
