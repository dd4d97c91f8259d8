"""Alignment: move the signals of references to the scale of a target that was trained in another way.

References that are narrower than the target, trained for fewer epochs, or of another kind still tell easy records from
hard ones, and show how membership shifts a signal. Their scale differs, and so does their spread. On each side (IN and
OUT), at record i, the references' signals r with mean m_i become

    g(m_i) + k(m_i) (r - m_i)

with functions g and k per side and view. g predicts the target's signal from the mean of the references: a line that
never falls and bends at up to three places. Where it is flat, records that are hard for the references are not hard for
the target. k is the spread of the target around that prediction, relative to the references' own; it varies with m.

- OUT: robust regression (Student's t errors) over the known non-members.
- IN: the target's signals on all other records are a mixture of both sides with a known share of members. With the OUT
  side fixed, expectation maximisation finds the IN side; no label is used. It starts from the OUT values and keeps them
  unless the likelihood rises clearly, also that of queries in other folds, which chance seldom does. References in the
  place of the target show how it errs, and the map is corrected.
  With few known non-members, IN is moved as OUT: queries that lie above them by chance would look like members.

Where signals grow more uneven with their size, all this is done on the scale asinh(conf / bend): that on which
references in the place of the target are attacked best. `AttackView.bend` tells statistics that choose such a scale.

Offline, queries have no IN references. Their IN mean is predicted from the OUT mean by a line through the population,
which has both; the population's IN signals are then moved around that line.

**Validity.** Records are divided into folds; those of a fold are moved by maps of the other folds. Given the maps,
known non-members and queries of one fold are exchangeable. (Offline, the line for the IN mean is learned from the
references of all known non-members; the target has no part in it.) Some choices use the target's signals on all
records: whether to align, whether the IN side has a map of its own, and its correction. P-values also compare records
of different folds, whose maps differ little. So p-values are approximate: at least 100 simulated audits of each
kind show no excess, and in fewer than 3 % of those without a leak the IN side has a map of its own. A mismatch that
remains costs power only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from plmia.attacks.conditional import assign_folds
from plmia.attacks.empirical_bayes import BENDS, held_out_auc
from plmia.attacks.empirical_bayes.evidence import IN, OUT, Evidence, evenly, exact_evidence, gather
from plmia.attacks.empirical_bayes.model import Knots
from plmia.attacks.view import AttackView, Mode, References
from plmia.data import memory
from plmia.data.arrays import BoolArray, FloatArray, Floats, IntArray
from plmia.numerics import average_ranks

FOLDS = 5
# With fewer known non-members outside a fold, the regression is too uncertain.
MIN_KNOWN = 20
# With fewer outside a fold, queries that lie above them by chance look like members: simulated p-values were too small.
MIN_KNOWN_FOR_IN = 150
# Degrees of freedom of the errors of a prediction: a few records are far off.
FREEDOM = 6.0
ROBUST_STEPS, EM_STEPS = 8, 200
# Expectation maximisation ends at a smaller gain of the log likelihood; below the other gain, it found chance.
SMALL_GAIN, CLEAR_GAIN = 0.01, 3.0
# Standard errors by which maps of IN must raise the likelihood of queries that they were not learned from.
CONFIRMED = 3.0
# The line that predicts the target from the references bends at this many places at most, one per so many known
# non-members; its bends count as this many records that show none.
MOST_KNOTS, KNOWN_PER_KNOT, BENDING = 3, 100, 5.0
# The spread at a place counts as this many records with the usual one.
SPREAD_RECORDS = 20.0
# Records from which the IN side is learned: a few numbers need no more.
MOST_QUERIES = 10_000
# Like references gain less; references that cost an attack power gain more.
ALIGN_ABOVE = 0.1
# References that take the place of the target, and the records that they are tried on. Where signals are far from
# Gaussian, like references may gain much.
MOST_PEERS, MOST_PLAYED = 8, 2048
# Fewer references in the place of the target show neither what is usually gained, nor how the IN side usually differs
# from the OUT side. A difference is unusual beyond this many standard deviations.
MIN_PEERS, UNUSUAL = 3, 4.0
# Records that show whether references are like the target.
MOST_PROBED = 4096
# A spread is at least this share of the usual one.
MIN_SPREAD = 0.05
# Means whose variance is a smaller share of their squares, relative to the middle of all means, are constant.
MIN_VARIATION = 1e-12
# A target's signals vary at least by this share of the range of the references'.
MIN_RANGE = 1e-8
# Means further from the middle than this many interquartile ranges are cut.
EXTREME = 5.0
# Signals that are searched for repeated values, and the share of them that makes a value a tie.
SIGNALS_FOR_TIES, MIN_TIE = 1 << 14, 0.05
# A bend must raise the AUC of references in the place of the target by this much.
MIN_AUC_GAIN = 0.001
# Signals beyond this size are cut when they return from the bent scale.
MOST_SIGNAL = 1e4
# Standard errors above which references are correlated at all.
CLEAR_CORRELATION = 3.0
# Records that cannot tell such a correlation from 0 are too few to say that there is none.
SMALL_CORRELATION = 0.15
_MOMENTS = ("n", "mean", "variance")
# Arrays [2, records, views + 1] that are in memory at once while references are moved.
ARRAYS_OF_ALIGNMENT = 10


@dataclass(frozen=True)
class SideMap:
    """How the references' signals of one side are moved, in each view: a broken line for the mean, and a spread."""

    knots: FloatArray  # [views, knots]: where the line bends
    lines: FloatArray  # [views, 2 + knots]: intercept, slope, and the change of the slope at each knot
    at: FloatArray  # [views, places]: where the spread is known; it is linear in between
    factors: FloatArray  # [views, places]: the spread there

    def centre(self, mean: FloatArray) -> FloatArray:
        """Return the expected signal [records, views] of the target where the references have this ``mean``."""
        sides = zip(mean.T, self.knots, self.lines, strict=True)
        return np.stack([line @ _features(x, knots) for x, knots, line in sides], axis=1)

    def spread(self, mean: FloatArray) -> FloatArray:
        """Return the factor [records, views] of the spread there."""
        sides = zip(mean.T, self.at, self.factors, strict=True)
        return np.stack([np.interp(x, at, factors) for x, at, factors in sides], axis=1)

    def in_views(self, views: slice) -> SideMap:
        """Return the map of some views."""
        return SideMap(self.knots[views], self.lines[views], self.at[views], self.factors[views])

    def slope(self, mean: FloatArray) -> float:
        """Return the mean slope over records with this ``mean`` [records] in the last view."""
        change = (mean[:, None] > self.knots[-1]) @ self.lines[-1, 2:]
        return float(self.lines[-1, 1] + change.mean())

    @classmethod
    def straight(cls, intercept: float = 0.0, slope: float = 1.0, spread: float = 1.0) -> SideMap:
        """Return the map of one view without knots; by default, it changes nothing."""
        return cls(np.zeros((1, 0)), np.array([[intercept, slope]]), np.zeros((1, 1)), np.array([[spread]]))

    @classmethod
    def among(cls, evidence: Evidence, side: int) -> SideMap:
        """Return the map that predicts a new reference from the others, in the last view: it shrinks their means."""
        n, mean, freedom = evidence.n[side], evidence.mean[side, :, -1], evidence.freedom[side]
        some = n > 0
        within = float(np.average(evidence.variance[side, :, -1], weights=freedom)) if freedom.any() else 0.0
        share, total = float(np.mean(1 / n[some])), float(np.var(mean[some]))
        slope = max(0.0, 1 - within * share / total) if total > 0 else 1.0
        return cls.straight((1 - slope) * float(mean[some].mean()), slope, math.sqrt((1 + slope * share) / (1 + share)))


def _features(x: FloatArray, knots: FloatArray) -> FloatArray:
    """Return the features [2 + knots, n] of a broken line."""
    return np.concatenate([np.ones((1, len(x))), x[None], np.maximum(x - knots[:, None], 0.0)])


@dataclass(frozen=True)
class _Maps:
    """Maps of both sides; that of IN is that of OUT unless the queries taught one of its own."""

    inside: SideMap
    outside: SideMap
    learned: bool

    @property
    def sides(self) -> tuple[SideMap, SideMap]:
        """Both maps in the order of the first index of arrays."""
        return self.inside, self.outside


@dataclass(frozen=True)
class Alignment:
    """What was learned about references that are unlike their target: means over folds, in the mean over views."""

    # Mean gain of the log likelihood of a record's signal, by maps that the record had no part in, over the law of a
    # further reference.
    gain: float
    correlation: float  # rank correlation of the target's signals with the references' means, over known non-members
    peers: float | None  # the same of the references among themselves; 0 if not clear, None if they cannot be compared
    slope: tuple[float, float]  # IN, OUT
    spread: tuple[float, float]
    learned_inside: bool  # whether the queries told how members differ; otherwise IN is moved as OUT
    bend: float | None  # slope and spread are those on the scale asinh(conf / bend); None for the signals as they are

    @property
    def match(self) -> float | None:
        """See `Match.value`."""
        return Match(self.correlation, self.peers, 0).value


@dataclass(frozen=True)
class Match:
    """How well references predict which records are hard for the target, over known non-members."""

    correlation: float  # rank correlation of the target's signals with the references' means
    peers: float | None  # the same of the references among themselves; 0 if not clear, None if they cannot be compared
    n_known: int

    @property
    def value(self) -> float | None:
        """Correlation with the target as a share of that among the references: 1 if it is like one of them.

        0 if references have nothing in common with each other; None if they cannot be compared.
        """
        if self.peers is None:
            return None
        return max(0.0, self.correlation) / self.peers if self.peers > 0 else 0.0

    def clearly_below(self, share: float) -> bool:
        """Whether the correlation is below this share of that among the references, by more than chance."""
        if self.peers is None or self.n_known < MIN_KNOWN:
            return False
        chance = CLEAR_CORRELATION * (1 - self.correlation**2) / math.sqrt(self.n_known)
        return self.correlation + chance < share * self.peers


def match_of(view: AttackView) -> Match | None:
    """Return how well the references match the target on its known non-members; None without OUT references there."""
    known = evenly(np.sort(view.population), MOST_QUERIES)
    references = gather(view.references, known)
    some = np.flatnonzero((~references.in_mask).any(axis=0))
    rows: IntArray = known[some]
    if not len(rows):
        return None
    signals = references.signals[:, some].mean(axis=2, dtype=np.float64)
    centre = signals.mean(axis=0, where=~references.in_mask[:, some])
    return _match(view, rows, view.target[rows].mean(axis=1), centre)


def _match(view: AttackView, rows: IntArray, target: FloatArray, centre: FloatArray) -> Match:
    peers = list(_peers(view.references, rows))
    among = _clear(float(np.mean(peers)), len(rows)) if peers else None
    return Match(_correlation(target, centre), among, len(rows))


def align(
    view: AttackView,
    share: float,
    rng: np.random.Generator,
    groups: IntArray | None = None,
    *,
    only_if_unlike: bool = False,
) -> tuple[AttackView, Alignment] | None:
    """Return the view with aligned references, and what was learned.

    None if that is not possible, or if the target's signals do not become more likely. With ``only_if_unlike``, they
    must become clearly more likely, and more so than those of references that take the place of the target. ``share``
    is that of members among the queries. Records of one of the ``groups`` [records] share a fold.
    """
    # Most references are like their target: some records tell so at little cost.
    some = _some(view)
    probe = view if len(some) == view.n_points else _at(view, some)
    least = ALIGN_ABOVE if only_if_unlike else 0.0
    if only_if_unlike:
        # One map for all records gains more on them than held-out maps, and is several times as fast to learn.
        once = _fit_once(probe, share)
        if once is None or not once.gain > least:
            return None
    # Centres and variances of both sides in every view and their mean, and what is made of them: see `_Laws`.
    memory.require(
        ARRAYS_OF_ALIGNMENT * 16 * view.n_points * (view.n_views + 1),
        f"moving the references to the target's scale at {view.n_points:,} records",
        "do not align them (--align never)",
    )
    fold = assign_folds(view.n_points, view.population, FOLDS, rng, groups)
    fitted = _fit(probe, share, fold[some])
    if fitted is None or not fitted.gain > least:
        return None
    peers = list(_peers_as_targets(probe, rng)) if only_if_unlike or fitted.maps[0].learned else []
    if only_if_unlike:
        gains = [peer.fitted.gain for peer in peers if math.isfinite(peer.fitted.gain)]
        # Two references, for example, do not show what like references gain.
        if len(gains) < MIN_PEERS or not fitted.gain > least + max(0.0, *gains):
            return None
    bend = _bend(probe)
    if probe is not view or math.isfinite(bend):
        fitted = _fit(view, share, fold, bend=bend)
        if fitted is None or not fitted.gain > least:
            return None
    rehearsal = _Rehearsal.of(peers, bend) if fitted.maps[0].learned else None
    if rehearsal is not None:
        fitted = replace(fitted, maps=rehearsal.corrected(fitted.maps, fitted.laws.centre[IN, fitted.laws.exists[IN]]))
    moved = _moved(view.references, fitted.laws, fold, fitted.maps, bend)
    return replace(view, references=moved, known=None, bend=bend), _about(view, fitted, bend)


def _bend(view: AttackView) -> float:
    """Return the scale asinh(conf / bend) on which references in the place of the target are attacked best."""
    n_in = view.references.in_mask.sum(axis=0)
    both = (n_in > 0) & (n_in < len(view.references))
    if view.mode == "offline":  # IN signals of queries may not be read
        both &= np.isin(np.arange(view.n_points), view.population)
    if not both.any():
        return BENDS[0]
    view = _at(view, np.flatnonzero(both))
    aucs = np.array([held_out_auc(view, bend) for bend in BENDS])
    aucs[0] += MIN_AUC_GAIN
    return BENDS[int(np.argmax(aucs))]


def _bent(signals: Floats, bend: float) -> FloatArray:
    """Return signals on the scale asinh(conf / bend)."""
    exact: FloatArray = signals.astype(np.float64)
    return np.asarray(np.arcsinh(exact / bend)) if math.isfinite(bend) else exact


def _unbent(signals: Floats, bend: float) -> Floats:
    """Return signals from the scale asinh(conf / bend)."""
    if not math.isfinite(bend):
        return signals
    most = math.asinh(MOST_SIGNAL / bend)
    return np.sinh(np.clip(signals, -most, most)) * bend


@dataclass(frozen=True)
class _Peer:
    """A reference that takes the place of the target."""

    view: AttackView
    members: BoolArray  # [records]
    share: float  # of members among the queries
    fitted: _Fitted  # one map for all records

    def fitted_on(self, bend: float) -> _Fitted | None:
        """Return the map on the bent scale."""
        return self.fitted if math.isinf(bend) else _fit_once(self.view, self.share, bend)


def _fit_once(view: AttackView, share: float, bend: float = math.inf) -> _Fitted | None:
    """Learn one map for all records."""
    return _fit(view, share, np.zeros(view.n_points, np.intp), folds=1, bend=bend)


def _peers_as_targets(view: AttackView, rng: np.random.Generator) -> Iterator[_Peer]:
    """Let some references take the place of the target; those for which nothing can be learned are left out.

    Offline, a reference plays at records that it did not train on, and at known non-members of the target: no IN
    signal of a query is read.
    """
    if view.n_points > MOST_PLAYED:
        view = _at(view, evenly(np.arange(view.n_points), MOST_PLAYED))
    references, n_known = view.references, len(view.population)
    in_population = np.zeros(view.n_points, bool)
    in_population[view.population] = True
    for i in rng.permutation(len(references))[:MOST_PEERS]:
        own = references.in_mask[i]
        played = np.flatnonzero(~own | in_population if view.mode == "offline" else np.ones_like(own))
        members = own[played]
        possible = np.flatnonzero(~members & in_population[played] if view.mode == "offline" else ~members)
        known = np.sort(rng.choice(possible, min(n_known, len(possible) // 2), replace=False))
        if not (len(known) and members.any()):
            continue
        # Without its complement, whose members would reveal its own, unless too few others remain to show a scatter.
        equal = references.in_mask == own
        others = np.flatnonzero(equal.any(axis=1) & ~equal.all(axis=1))
        if len(others) < MIN_PEERS:
            others = np.flatnonzero(~equal.all(axis=1))
        seen = References(references.signals, references.rows[others], references.in_mask[others])
        target = references.signals[references.rows[i], played].astype(np.float64)
        share = float(members.sum()) / (len(played) - len(known))
        peer = AttackView(target, gather(seen, played), known, mode=view.mode)
        fitted = _fit_once(peer, share)
        if fitted is not None:
            yield _Peer(peer, members, share, fitted)


@dataclass(frozen=True)
class _Rehearsal:
    """What expectation maximisation finds of the IN side of references, which is known.

    Its laws are approximate, and members hide among non-members: it may find them too narrow, for example.
    """

    bias: FloatArray  # [3, views]: mean difference from the map that labels give, see `_difference`
    usual: FloatArray  # [3, views]: mean difference from the map of OUT
    scatter: FloatArray  # [3, views]: its standard deviation over references

    @classmethod
    def of(cls, peers: list[_Peer], bend: float) -> _Rehearsal | None:
        """Compare what is found for references with what their labels give; None if too few of them teach a map."""
        bias, usual = [], []
        for peer in peers:
            fitted = peer.fitted_on(bend)
            if fitted is None or not fitted.maps[0].learned:
                continue
            laws, maps = fitted.laws, fitted.maps[0]
            rows = np.flatnonzero(peer.members & laws.exists.all(axis=0))
            if len(rows) < MIN_KNOWN:
                continue
            centre, target = laws.centre[IN, rows], _with_mean(_bent(peer.view.target[rows], bend))
            labelled = _regress(target, centre, laws.variance[IN, rows], None, maps.inside.knots)
            bias.append(_difference(maps.inside, labelled, centre))
            usual.append(_difference(maps.inside, maps.outside, centre))
        if len(bias) < MIN_PEERS:
            return None
        return cls(np.mean(bias, axis=0), np.mean(usual, axis=0), np.std(usual, axis=0, ddof=1))

    def corrected(self, maps: list[_Maps], centre: FloatArray) -> list[_Maps]:
        """Return the maps of all folds without the bias; IN is moved as OUT unless it differs more than usual.

        ``centre`` [records, views] are the means of IN references.
        """
        found = np.mean([_difference(each.inside, each.outside, centre) for each in maps], axis=0)
        if (np.abs(found - self.usual) <= UNUSUAL * self.scatter).all():
            return [_Maps(each.outside, each.outside, learned=False) for each in maps]
        return [replace(each, inside=_shifted(each.inside, -self.bias, centre)) for each in maps]


def _difference(found: SideMap, other: SideMap, centre: FloatArray) -> FloatArray:
    """Return how a map differs from another over records with this ``centre`` [records, views].

    By its mean and its slope, both in units of the slope of the other, and by the log of its spread: [3, views].
    """
    away = centre - centre.mean(axis=0)
    square = np.maximum((away**2).sum(axis=0), np.finfo(np.float64).tiny)
    slope = np.maximum((away * other.centre(centre)).sum(axis=0) / square, MIN_SPREAD)
    off = found.centre(centre) - other.centre(centre)
    spread = np.log(found.spread(centre) / other.spread(centre)).mean(axis=0)
    return np.stack([off.mean(axis=0) / slope, (away * off).sum(axis=0) / square / slope, spread])


def _shifted(side: SideMap, by: FloatArray, centre: FloatArray) -> SideMap:
    """Return the map changed by a difference [3, views]; its slope stays positive."""
    middle = centre.mean(axis=0)
    away = centre - middle
    square = np.maximum((away**2).sum(axis=0), np.finfo(np.float64).tiny)
    slope = np.maximum((away * side.centre(centre)).sum(axis=0) / square, 0.0)
    steeper = slope * np.clip(by[1], -0.5, 0.5)
    lines = side.lines.copy()
    lines[:, 1] += steeper
    lines[:, 0] += slope * by[0] - steeper * middle
    return replace(side, lines=lines, factors=side.factors * np.exp(by[2])[:, None])


@dataclass(frozen=True)
class _Fitted:
    """Maps of all folds, the laws that they move, and what they gain."""

    laws: _Laws
    maps: list[_Maps]  # of each fold
    gain: float
    usable: BoolArray  # [records]: known non-members with OUT references


def _fit(view: AttackView, share: float, fold: IntArray, folds: int = FOLDS, bend: float = math.inf) -> _Fitted | None:
    """Learn the maps of each fold from the others, or, with a single fold, from all records; on the bent scale.

    None if there is too little to learn from.
    """
    known = np.zeros(view.n_points, bool)
    known[view.population] = True
    evidence = _moments(view.references, bend)
    usable = known & (evidence.n[OUT] > 0)
    # Without two references on a side of some record, nothing tells how far references scatter.
    scattered = bool((evidence.freedom[OUT] > 0).any()) and not _mostly_ties(view.references)
    if view.mode == "online" and not (evidence.n[IN] > 0).any():
        return None
    others = [fold != k if folds > 1 else fold == k for k in range(folds)]
    if not scattered or min((usable & rest).sum() for rest in others) < MIN_KNOWN:
        return None
    laws, target = _Laws.of(evidence, known, view.mode), _with_mean(_bent(view.target, bend))
    if not np.ptp(target[usable, -1]) > MIN_RANGE * np.ptp(laws.centre[OUT, usable, -1]):
        return None  # on the scale of a target that does not vary, references would all be equal
    maps = [_learn(target, laws, usable & rest, ~known & rest, share) for rest in others]
    # Folds whose maps are of different kinds would not compare.
    if not all(found.learned for found in maps) or not _confirmed(target, laws, ~known, fold, maps, share):
        maps = [_Maps(found.outside, found.outside, learned=False) for found in maps]
    # Offline, a line predicts the IN mean already.
    inside = SideMap.among(evidence, IN) if view.mode == "online" else SideMap.straight()
    gain = _gain(target, laws, known, fold, maps, (inside, SideMap.among(evidence, OUT)), share)
    return _Fitted(laws, maps, gain, usable)


def _confirmed(
    target: FloatArray, laws: _Laws, queries: BoolArray, fold: IntArray, maps: list[_Maps], share: float
) -> bool:
    """Whether maps of IN explain queries that they were not learned from; with a single fold, there are none."""
    if len(maps) == 1:
        return True
    gain = []
    for k, both in enumerate(maps):
        rows = np.flatnonzero((fold == k) & queries & laws.exists.all(axis=0))
        members = np.full(len(rows), share)
        own = _mixture(target, laws, rows, both.sides, members)
        gain.append(own - _mixture(target, laws, rows, (both.outside, both.outside), members))
    each = np.concatenate(gain)
    return bool(each.sum() > CONFIRMED * math.sqrt(len(each)) * each.std())


def _mostly_ties(references: References) -> bool:
    """Whether most signals repeat a few values, as those of single trees: such references cannot be moved."""
    cells = len(references) * references.n_views
    points = evenly(np.arange(references.n_points), max(1, SIGNALS_FOR_TIES // cells))
    sample = memory.gathered(references.signals, points, references.rows).ravel()
    count = np.unique(sample, return_counts=True)[1]
    return bool(count[count >= MIN_TIE * sample.size].sum() > sample.size / 2)


def _some(view: AttackView) -> IntArray:
    """Return at most `MOST_PROBED` records: half of them known non-members, evenly spaced."""
    if view.n_points <= MOST_PROBED:
        return np.arange(view.n_points)
    others = np.ones(view.n_points, bool)
    others[view.population] = False
    queries, half = np.flatnonzero(others), MOST_PROBED // 2
    return np.sort(np.concatenate([evenly(np.sort(view.population), half), evenly(queries, half)]))


def _at(view: AttackView, points: IntArray) -> AttackView:
    """Return the view at some records, in increasing order."""
    inside = np.zeros(view.n_points, bool)
    inside[view.population] = True
    known = np.flatnonzero(inside[points])
    return AttackView(view.target[points], gather(view.references, points), known, mode=view.mode)


def _with_mean(signals: FloatArray) -> FloatArray:
    """Append the mean over views [..., views + 1]; a single view is its own mean."""
    if signals.shape[-1] == 1:
        return signals
    return np.concatenate([signals, signals.mean(axis=-1, keepdims=True)], axis=-1)


def _moments(references: References, bend: float = math.inf) -> Evidence:
    """Return counts, means and variances of all records, in each view and in the mean over views."""
    parts = [exact_evidence(_with_mean(_bent(conf, bend)), in_mask) for _, conf, in_mask in references.blocks()]
    n, mean, variance = (np.concatenate([vars(part)[name] for part in parts], axis=1) for name in _MOMENTS)
    return Evidence(n, mean, variance)


@dataclass(frozen=True)
class _Laws:
    """Centre and variance of a new reference at each record [2, records, views]: from the references alone."""

    centre: FloatArray
    variance: FloatArray
    exists: BoolArray  # [2, records]: whether the side has a law here

    def at(self, points: IntArray) -> _Laws:
        """Return the laws of some records."""
        return _Laws(self.centre[:, points], self.variance[:, points], self.exists[:, points])

    @classmethod
    def of(cls, evidence: Evidence, known: BoolArray, mode: Mode) -> _Laws:
        """Pool the variances of records with similar means; offline, no IN reference of a query is used."""
        exists = evidence.n > 0
        outside = _clipped(evidence.mean[OUT], exists[OUT])
        scatter = _pooled(outside, evidence.variance[OUT], evidence.n[OUT])
        if mode == "online":
            inside = _clipped(evidence.mean[IN], exists[IN])
            pooled = _pooled(inside, evidence.variance[IN], evidence.n[IN])
            return cls(np.stack([inside, outside]), np.stack([pooled, scatter]), exists)
        both = known & exists.all(axis=0)
        exists = np.stack([exists[OUT] & (int(both.sum()) >= MIN_KNOWN), exists[OUT]])
        if not exists[IN].any():
            return cls(np.stack([outside, outside]), np.stack([scatter, scatter]), exists)
        line, spread = _lines(outside, evidence.mean[IN], both)
        freedom = evidence.freedom[IN, both]
        within = np.average(evidence.variance[IN, both], axis=0, weights=freedom) if freedom.any() else 0.0
        pooled = np.broadcast_to(np.maximum(within + spread, _floor(outside[exists[OUT]])), outside.shape)
        return cls(np.stack([line, outside]), np.stack([pooled, scatter]), exists)


def _clipped(mean: FloatArray, exists: BoolArray) -> FloatArray:
    """Return means [records, views] without extreme ones, which would decide where a line runs."""
    if not exists.any():
        return mean
    low, middle, high = np.quantile(mean[exists], [0.25, 0.5, 0.75], axis=0)
    reach = EXTREME * (high - low)
    return np.asarray(np.where(reach > 0, np.clip(mean, middle - reach, middle + reach), mean))


def _floor(mean: FloatArray) -> FloatArray:
    """Return the least variance [views] of references: they scatter a little, compared with records."""
    low, high = np.quantile(mean, [0.25, 0.75], axis=0)
    return np.asarray(1e-4 * np.square(high - low) + np.finfo(np.float32).tiny)


def _pooled(mean: FloatArray, variance: FloatArray, n: FloatArray) -> FloatArray:
    """Return the variance [records, views] of a new reference around the mean of the others."""
    freedom = np.maximum(n - 1, 0.0)
    if not freedom.any():
        return np.ones_like(mean)
    pooled = np.empty_like(mean)
    for view in range(mean.shape[1]):
        knots = Knots.place(mean[n > 0, view])
        hats = knots.hats(mean[:, view])
        pooled[:, view] = hats.blend(hats.means(variance[:, view : view + 1], freedom))[:, 0]
    usual = 1e-3 * np.average(variance, axis=0, weights=freedom)
    return np.asarray(np.maximum(pooled, usual + _floor(mean[n > 0])) * (1 + 1 / np.maximum(n, 1))[:, None])


def _lines(x: FloatArray, y: FloatArray, rows: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return the least-squares line of y on x [records, views] through some rows, at all records; and the variance."""
    middle, centre = x[rows].mean(axis=0), y[rows].mean(axis=0)
    away = x[rows] - middle
    slope = (away * (y[rows] - centre)).sum(axis=0) / np.maximum((away**2).sum(axis=0), np.finfo(np.float64).tiny)
    line = centre + slope * (x - middle)
    return line, np.asarray(np.square(y[rows] - line[rows]).mean(axis=0))


def _learn(target: FloatArray, laws: _Laws, known: BoolArray, queries: BoolArray, share: float) -> _Maps:
    """Learn the maps from some known non-members and queries."""
    centre, variance = laws.centre[OUT, known], laws.variance[OUT, known]
    bends = min(MOST_KNOTS, int(known.sum()) // KNOWN_PER_KNOT)
    outside = _regress(target[known], centre, variance, None, _knots(centre, bends))
    rows = evenly(np.flatnonzero(queries & laws.exists.all(axis=0)), MOST_QUERIES)
    if not (0 < share < 1 and len(rows) >= MIN_KNOWN and int(known.sum()) >= MIN_KNOWN_FOR_IN):
        return _Maps(outside, outside, learned=False)
    centre, variance = laws.centre[IN, rows], laws.variance[IN, rows]
    knots = _knots(centre, bends)
    weight = _member_weights(target[rows, -1:], laws, rows, outside.in_views(slice(-1, None)), knots[-1:], share)
    if weight is None:
        return _Maps(outside, outside, learned=False)
    return _Maps(_regress(target[rows], centre, variance, weight, knots), outside, learned=True)


def _knots(centre: FloatArray, n: int) -> FloatArray:
    """Return ``n`` inner quantiles [views, n] of ``centre`` [records, views]."""
    knots: FloatArray = np.quantile(centre, np.arange(1, n + 1) / (n + 1), axis=0).T
    return knots


def _member_weights(
    signal: FloatArray, laws: _Laws, rows: IntArray, outside: SideMap, knots: FloatArray, share: float
) -> FloatArray | None:
    """Return the probability [rows] that each query is a member, by expectation maximisation in the mean over views.

    None if a map of its own does not explain the queries clearly better than that of OUT, or members would be lower.
    """
    (centre_in, centre_out), variance = laws.centre[:, rows, -1:], laws.variance[:, rows, -1]
    regression = _Regression.of(signal[:, 0], centre_in[:, 0], variance[IN], knots[0])
    predicted_out = outside.centre(centre_out)[:, 0]
    square, moved = _distance(signal[:, 0] - predicted_out, outside.spread(centre_out)[:, 0], variance[OUT])
    log_out = math.log(1 - share) + _log_t(square, moved)
    predicted, spread = outside.centre(centre_in)[:, 0], outside.spread(centre_in)[:, 0]
    before, first = -math.inf, -math.inf
    for step in range(EM_STEPS):
        square, moved = _distance(signal[:, 0] - predicted, spread, variance[IN])
        log_in = math.log(share) + _log_t(square, moved)
        total = np.logaddexp(log_in, log_out)
        likelihood = float(total.sum())
        first = likelihood if step == 0 else first
        weight = np.exp(log_in - total)
        if likelihood - before < SMALL_GAIN:
            break
        before = likelihood
        line, factors = regression.step(weight, _robust(square))
        predicted, spread = regression.predicted(line), regression.spread(factors)
    higher = float(np.mean(predicted - predicted_out)) > 0
    return weight if higher and likelihood - first > CLEAR_GAIN else None


def _mixture(
    target: FloatArray, laws: _Laws, rows: IntArray, maps: tuple[SideMap, SideMap], members: FloatArray
) -> FloatArray:
    """Return the log likelihood [rows] of the target's mean signals, where ``members`` [rows] is the share of them."""
    sides = []
    for i, side in enumerate(maps):
        centre, variance = laws.centre[i, rows, -1:], laws.variance[i, rows, -1:]
        sides.append(_log_density(target[rows, -1:], side.in_views(slice(-1, None)), centre, variance))
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log(members) + sides[IN], np.log1p(-members) + sides[OUT])


def _log_density(signal: FloatArray, side: SideMap, centre: FloatArray, variance: FloatArray) -> FloatArray:
    """Return the log density [records] of signals of one view, up to a constant."""
    return _log_t(*_distance(signal - side.centre(centre), side.spread(centre), variance))[:, 0]


def _distance(off: FloatArray, spread: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the square of how far signals are ``off`` the prediction, relative to their variance, and the variance."""
    moved = spread**2 * variance
    return off**2 / moved, moved


def _log_t(square: FloatArray, variance: FloatArray) -> FloatArray:
    """Return the log density of Student's t of this ``variance``, up to a constant."""
    return np.asarray(-(FREEDOM + 1) / 2 * np.log1p(square / (FREEDOM - 2)) - np.log(variance) / 2)


def _robust(square: FloatArray) -> FloatArray:
    """Return the weights of records in a regression with errors of Student's t: small far from the prediction."""
    return np.asarray((FREEDOM + 1) / (FREEDOM - 2 + square))


def _regress(
    target: FloatArray, mean: FloatArray, variance: FloatArray, weight: FloatArray | None, knots: FloatArray
) -> SideMap:
    """Predict ``target`` from ``mean`` [records, views]: maximum likelihood of Student's t, by reweighting.

    ``weight`` [records] is how far each record counts.
    """
    count = np.ones(len(target)) if weight is None else weight
    lines, at, factors = [], [], []
    for column in zip(target.T, mean.T, variance.T, knots, strict=True):
        regression = _Regression.of(*column)
        line, spread = regression.solved(count)
        lines.append(regression.uncentred(line))
        at.append(regression.at)
        factors.append(spread)
    return SideMap(knots, np.stack(lines), np.stack(at), np.stack(factors))


@dataclass(frozen=True)
class _Regression:
    """Regression of a target's signals on the means of references, in one view; holds what all steps share.

    Means are relative to their ``middle``: moments that are far from 0 lose digits.
    """

    target: FloatArray  # [records]
    variance: FloatArray  # [records]
    middle: float
    features: FloatArray  # [2 + knots, records]: see `_features`
    at: FloatArray  # [places]: where the spread is learned: the knots and both ends, one place without knots
    hats: FloatArray  # [places, records]: weight of each place in linear interpolation

    @classmethod
    def of(cls, target: FloatArray, mean: FloatArray, variance: FloatArray, knots: FloatArray) -> _Regression:
        """Compute what all steps share."""
        middle = float(mean.mean())
        at = np.array([mean.min(), *knots, mean.max()]) if len(knots) else np.zeros(1)
        hats = np.stack([np.interp(mean, at, unit) for unit in np.eye(len(at))])
        return cls(target, variance, middle, _features(mean - middle, knots - middle), at, hats)

    def solved(self, count: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the line and the spread at each place; ``count`` [records] is how far each record counts."""
        line, factors = self.step(count, np.ones_like(count))
        for _ in range(ROBUST_STEPS - 1):
            square, _ = _distance(self.target - self.predicted(line), self.spread(factors), self.variance)
            line, factors = self.step(count, _robust(square))
        return line, factors

    def step(self, count: FloatArray, robust: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the line and the spread at each place, with these weights."""
        weight = count * robust / self.variance
        line = self._line(weight)
        return line, self._factors(weight * (self.target - self.predicted(line)) ** 2, count)

    def predicted(self, line: FloatArray) -> FloatArray:
        """Return the line [records]."""
        return line @ self.features

    def spread(self, factors: FloatArray) -> FloatArray:
        """Return the spread [records]."""
        return factors @ self.hats

    def uncentred(self, line: FloatArray) -> FloatArray:
        """Return the line for means that are not relative to their middle."""
        return np.array([line[0] - line[1] * self.middle, *line[1:]])

    def _line(self, weight: FloatArray) -> FloatArray:
        """Return the line by weighted least squares; it bends little unless the records ask for it.

        It never falls: then it is straight, and if that falls, too, constant.
        """
        weighted = self.features * weight
        gram, moment = weighted @ self.features.T, weighted @ self.target
        (total, first, *_), square = gram[0], float(gram[1, 1])
        middle, level = float(first / total), float(moment[0] / total)
        scale = math.sqrt(max(0.0, square / total - middle**2))
        line = np.zeros(len(gram))
        if not scale**2 > MIN_VARIATION * square / total:
            line[0] = level
            return line
        # In features that are standardised, bends cost the same on each scale.
        standard = np.eye(len(gram))
        standard[1, 0] = -middle
        standard[1:] /= scale
        gram, moment = standard @ gram @ standard.T, standard @ (moment - level * gram[0])
        bends = np.arange(2, len(gram))
        gram[bends, bends] += BENDING * total / len(weight)
        line = np.linalg.solve(gram, moment)
        if line[1:].cumsum().min() < 0:
            line[:] = 0.0
            line[1] = max(0.0, float(moment[1] / total))
        line = line @ standard
        line[0] += level
        return line

    def _factors(self, squares: FloatArray, count: FloatArray) -> FloatArray:
        """Return the root mean of weighted squares around each place, shrunk towards that of all records."""
        overall = squares.sum() / count.sum()
        around = (self.hats @ squares + SPREAD_RECORDS * overall) / (self.hats @ count + SPREAD_RECORDS)
        return np.asarray(np.maximum(np.sqrt(around), MIN_SPREAD * math.sqrt(overall) + np.finfo(np.float32).tiny))


def _moved(references: References, laws: _Laws, fold: IntArray, maps: list[_Maps], bend: float) -> References:
    """Return the references with every signal moved by the map of its side and fold."""
    n_views = references.n_views
    dtype = np.result_type(references.signals.dtype, np.float32)
    factor = np.empty((2, references.n_points, n_views), dtype)
    offset = np.empty_like(factor)
    for k, both in enumerate(maps):
        here = fold == k
        for side, found in enumerate(both.sides):
            centre, part = laws.centre[side, here, :n_views], found.in_views(slice(n_views))
            factor[side, here] = part.spread(centre)
            offset[side, here] = part.centre(centre) - part.spread(centre) * centre
    signals: Floats = memory.empty((len(references), references.n_points, n_views), dtype)
    for i, (row, inside) in enumerate(zip(references.rows, references.in_mask, strict=True)):
        mask = inside[:, None]
        bent = _bent(references.signals[row], bend).astype(dtype, copy=False)
        bent = bent * np.where(mask, factor[IN], factor[OUT]) + np.where(mask, offset[IN], offset[OUT])
        signals[i] = _unbent(bent, bend)
        memory.release()
    return References(signals, np.arange(len(references)), references.in_mask)


# How well they match -------------------------------------------------------------------------------------------------


def _gain(
    target: FloatArray,
    laws: _Laws,
    known: BoolArray,
    fold: IntArray,
    maps: list[_Maps],
    plain: tuple[SideMap, SideMap],
    share: float,
) -> float:
    """Return the mean gain of the log likelihood over ``plain`` maps; queries without an IN law do not count."""
    counts = laws.exists[OUT] & (known | laws.exists[IN])
    gain = np.zeros(len(target))
    for k, both in enumerate(maps):
        here = np.flatnonzero((fold == k) & counts)
        members = np.where(known[here], 0.0, share)
        gain[here] = _mixture(target, laws, here, both.sides, members) - _mixture(target, laws, here, plain, members)
    return float(gain[counts].mean())


def _about(view: AttackView, fitted: _Fitted, bend: float) -> Alignment:
    rows, laws, maps = np.flatnonzero(fitted.usable), fitted.laws, fitted.maps
    match = _match(view, rows, _bent(view.target[rows], bend).mean(axis=1), laws.centre[OUT, rows, -1])
    slope, spread = [], []
    for centres, *side in zip(laws.centre[:, :, -1:], *(found.sides for found in maps), strict=True):
        slope.append(float(np.mean([found.slope(centres[:, 0]) for found in side])))
        last = [found.in_views(slice(-1, None)) for found in side]
        spread.append(float(np.mean([found.spread(centres).mean() for found in last])))
    return Alignment(
        fitted.gain,
        match.correlation,
        match.peers,
        (slope[IN], slope[OUT]),
        (spread[IN], spread[OUT]),
        maps[0].learned,
        bend if math.isfinite(bend) else None,
    )


def _peers(references: References, rows: IntArray) -> Iterator[float]:
    """Yield the rank correlation of each reference with the mean of the other OUT references, over some records."""
    references = gather(references, rows)
    signals = references.signals.mean(axis=2, dtype=np.float64)
    outside = ~references.in_mask
    total, n = signals.sum(axis=0, where=outside), outside.sum(axis=0)
    for own, mask in zip(signals, outside, strict=True):
        some = mask & (n >= 2)
        if some.sum() >= MIN_KNOWN:
            yield _correlation(own[some], (total - own)[some] / (n[some] - 1))


def _clear(correlation: float, n: int) -> float | None:
    """Return a correlation over ``n`` records; if it does not clearly exceed 0, 0, or None for few records."""
    least = CLEAR_CORRELATION / math.sqrt(n)
    if correlation > least:
        return correlation
    return 0.0 if least < SMALL_CORRELATION else None


def _correlation(a: FloatArray, b: FloatArray) -> float:
    """Return the rank correlation of two arrays [n]; 0 if one of them is constant."""
    return float(np.corrcoef(average_ranks(a), average_ranks(b))[0, 1]) if np.ptp(a) > 0 and np.ptp(b) > 0 else 0.0
