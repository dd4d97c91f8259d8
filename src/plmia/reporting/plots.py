"""Figures of the report, by the section of the page in which they stand."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from plmia.attacks.empirical_bayes.model import Knots, ShiftPrior
from plmia.data.arrays import FloatArray, IntArray, Labels, SignalKind
from plmia.errors import percent, round_percent, sentence
from plmia.evaluation.decisions import Decision, needed_population
from plmia.evaluation.diagnostics.gaussianity import MAX_SIZE, MIN_SIZE, shapiro_wilk
from plmia.evaluation.diagnostics.p_values import Rates
from plmia.evaluation.diagnostics.power import Curve
from plmia.evaluation.intervals import roc_band
from plmia.evaluation.metrics import Roc, clopper_pearson
from plmia.evaluation.subgroups import Subgroup, SubgroupTable
from plmia.evaluation.trainings import TrainingsSummary
from plmia.reporting import drawing as fig
from plmia.reporting.content import Content
from plmia.reporting.drawing import Absent, Axis, Figure, Spec, series
from plmia.results.result import AttackSummary, Coordinates, Trends
from plmia.signals.signals import Signals

Sections = dict[str, list[Figure | Absent]]
"""Figures by the section of the page."""


def sections_of(content: Content) -> Sections:
    """All figures of a report."""
    return {
        "leak": [roc_figure(content), tpr_figure(content)],
        "exposed": [scores_figure(content), classes_figure(content)],
        "subgroups": subgroup_figures(content),
        "trainings": trainings_figures(content),
        "trust": [false_positives_figure(content), p_values_figure(content), references_figure(content)],
        "signals": record_figures(content),
        "model": [trends_figure(content), losses_figure(content), accuracies_figure(content)],
    }


# What leaks -----------------------------------------------------------------------------------------------------------

NO_REFERENCES = "A screening has no references"
RATES = (0.01, 0.001, 0.0001, 0.0)
CURVE_POINTS = 160
# A group of ties with at least this share of the non-members makes a visibly flat part of the curve.
MANY_TIED = 0.05
# Upper end of an axis of shares, so that markers at 100 % are drawn whole.
TOP = 1.2
# Distance of the smallest value from the end of a logarithmic axis, as a factor.
EDGE = 1.15
# 0 is drawn at this fraction of the smallest other tick of a logarithmic axis.
ZERO_BELOW = 2.5
# A logarithmic axis of shares starts at this value or below.
LOWEST_SHARE = 0.1


@dataclass(frozen=True)
class Rate:
    """True-positive rate with the ends of its interval."""

    tpr: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{percent(self.tpr)} ({self.ends})"

    @property
    def ends(self) -> str:
        """The interval in words."""
        return f"{percent(self.low)} to {percent(self.high)}"


def rate_at(attack: AttackSummary, fpr: float) -> Rate | None:
    """TPR at a false-positive rate, mean over targets; None if the data do not resolve it."""
    found = attack.tpr[fpr]
    if not found.resolved:
        return None
    interval = found.interval or attack.per_target[0].tpr[fpr].interval
    return Rate(found.mean, interval.low, interval.high)


def roc_figure(content: Content) -> Figure | Absent:
    """Log-log ROC curves of all attacks on one target, each with its band."""
    title = "Members found at each false-positive rate"
    if np.count_nonzero(~content.members) < 2:
        reason = "A ROC curve needs 2 evaluated non-members, but there is 1. Choose a smaller population."
        return Absent("roc", title, reason)
    attacks = content.saved.attacks
    curves = {name: content.saved.roc(name, content.target) for name in attacks}
    least = min(1 / roc.n_non_members for roc in curves.values())
    low = 10.0 ** (math.floor(math.log10(least) * 4) / 4)
    data = [fig.line("chance", [low, 1.0], [low, 1.0], "@soft", dash="dash", width=1.5, hoverinfo="skip")]
    # The chosen attack comes last, so that it lies above the others.
    for name in sorted(attacks, key=lambda name: name == content.attack):
        traces = _roc_traces(name, curves[name], attacks.index(name), chosen=name == content.attack)
        data += [_above(trace, low) for trace in traces]
    data += _verdict_trace(content, low)
    found, rate = curves[content.attack].tpr_at(content.level), round_percent(content.level)
    return Figure(
        "roc",
        title,
        _roc_caption(content, curves),
        f"ROC curves of {len(attacks)} attacks on a log-log scale. {content.attack} finds {percent(found.tpr)} of "
        f"the members at a false-positive rate of {rate}; chance finds {rate}.",
        data,
        fig.one_panel(
            fig.log_percent_axis("False-positive rate (non-members flagged)", low),
            fig.log_percent_axis("True-positive rate (members found)", low, TOP),
        ),
        480,
    )


def _roc_caption(content: Content, curves: dict[str, Roc]) -> str:
    bar = "" if content.verdict.fpr is None else ", such as the verdict's (the vertical bar)"
    ties = [
        name for name, roc in curves.items() if int(np.diff(roc.false_positives).max()) >= MANY_TIED * roc.n_non_members
    ]
    caption = (
        f"ROC curves on target {content.target}, both axes logarithmic. Low false-positive rates, at the left, matter "
        f"most. The shaded band covers the whole true curve of {content.attack} with 95 % confidence, so it is wider "
        f"than an interval at one rate{bar}. The button shows the bands of the other attacks. A model that leaks "
        "nothing stays on the dashed line of chance."
    )
    if ties:
        names = f"{', '.join(ties[:-1])}{' and ' * (len(ties) > 1)}{ties[-1]}"
        caption += (
            f" {content.units.capitalize()} with equal scores are flagged together, and the AUC counts such ties half. "
            f"Many ties at one score make a flat part of the curve, as for {names}."
        )
    return caption


def _verdict_trace(content: Content, low: float) -> Iterator[Spec]:
    """Yield the verdict's rate with its interval, if it has one."""
    verdict = content.verdict
    if verdict.fpr is None or verdict.tpr is None or verdict.interval is None:
        return
    found = Rate(verdict.tpr, verdict.interval.low, verdict.interval.high)
    y, bottom, top = ([max(low, value)] for value in (found.tpr, found.low, found.high))
    mean = f", mean over {verdict.targets} targets" if verdict.targets > 1 else ""
    text = f"verdict: {verdict.attack} finds {found} at {round_percent(verdict.fpr)} FPR{mean}"
    errors = fig.error_bars(y, bottom, top, "@ink")
    name = "the verdict and its interval"
    yield fig.points(name, [verdict.fpr], y, "@ink", "diamond", size=9, error_y=errors, texts=[text])


def _roc_traces(name: str, roc: Roc, number: int, *, chosen: bool) -> Iterator[Spec]:
    x, y = thinned(roc)
    low, high = roc_band(roc).at(x)
    colour, dash, _ = series(number)
    hidden: Spec = {} if chosen else {"visible": False}
    yield fig.band(f"{name}, 95 % band", x, low, high, colour, legendgroup=name, **hidden)
    style: Spec = {"width": 3.5} if chosen else {"width": 1.8, "dash": dash}
    hover = "%{fullData.name}: %{y:.3~%} of members at a false-positive rate of %{x:.3~%}<extra></extra>"
    yield fig.line(name, x, y, colour, shape="hv", hovertemplate=hover, legendgroup=name, **style)


def thinned(roc: Roc, n: int = CURVE_POINTS) -> tuple[FloatArray, FloatArray]:
    """Rates at no more than ``n`` numbers of false positives, evenly spaced in the logarithm and not interpolated."""
    total = roc.n_non_members
    allowed = np.unique(np.round(np.geomspace(1, total, n)).astype(np.int64))
    at = np.searchsorted(roc.false_positives, allowed, side="right") - 1
    return allowed / total, roc.tpr[at]


def _above(trace: Spec, low: float) -> Spec:
    """Return the trace limited to values from ``low`` on, since a logarithmic axis has no zero."""
    if trace.get("fill"):
        return trace | {"y": [max(low, y) for y in trace["y"]]}
    return trace | {"y": [y if y and y >= low else None for y in trace["y"]]}


def tpr_figure(content: Content) -> Figure:
    """TPR of each attack at fixed false-positive rates, with intervals."""
    attacks = list(content.result.attacks)
    found = {fpr: rates for fpr in RATES if (rates := _rates_at(content, fpr))}
    values = [value for rates in found.values() for rate in rates.values() for value in (rate.tpr, rate.low, rate.high)]
    values += list(found)
    least = min((v for v in values if v > 0), default=0.01)
    low = 10.0 ** (math.floor(math.log10(min(least, LOWEST_SHARE)) * 2) / 2)
    # A logarithmic axis has no 0: it gets a place of its own, below chance and all other values.
    zero = low / ZERO_BELOW if 0 in values[: -len(found)] else None
    axis = fig.log_percent_axis(f"True-positive rate{_at_single(found)} (members found)", low / EDGE, TOP)
    if zero is not None:
        axis = replace(axis, low=zero / EDGE, ticks=[zero, *axis.ticks], labels=["0", *axis.labels])
    return Figure(
        "tpr",
        "Members found at fixed false-positive rates",
        _tpr_caption(content, found),
        "Dot plot. " + " ".join(_best_at(fpr, rates) for fpr, rates in found.items()),
        [_rate_trace(attacks, fpr, rates, k, len(found), zero or low) for k, (fpr, rates) in enumerate(found.items())],
        fig.one_panel(
            axis,
            Axis("", -0.6, len(attacks) - 0.4, range(len(attacks)), attacks[::-1]),
            shapes=[fig.vertical_line(fpr, series(k)[0]) for k, fpr in enumerate(found) if fpr > 0],
        ),
        max(320, 110 + 44 * len(attacks)),
    )


def _at_single(fprs: Collection[float]) -> str:
    """Name a single rate, which has no legend, for the axis."""
    return f" at {round_percent(next(iter(fprs)))} FPR" if len(fprs) == 1 else ""


def _tpr_caption(content: Content, fprs: Iterable[float]) -> str:
    n_targets = len(content.saved.targets)
    who, intervals = f"target {content.target}", "that include the uncertainty of the threshold"
    if n_targets > 1:
        who, intervals = f"mean over {n_targets} targets", "over targets"
    elif list(fprs) == [0.0]:
        intervals = "given the threshold"
    caption = (
        f"Share of members found by each attack ({who}), with 95 % intervals {intervals}. A dotted line marks chance "
        "at the rate of the same colour. Healthy: no interval lies entirely to the right of its dotted line. Rates "
        "that the number of non-members cannot resolve are left out."
    )
    if 0.0 in fprs and n_targets == 1:
        caption += (
            " At 0 % FPR the non-member with the highest score sets the threshold. The interval treats this threshold "
            "as fixed, so it is too short for another sample of non-members."
        )
    return caption


def _rates_at(content: Content, fpr: float) -> dict[str, Rate]:
    """TPR of each attack for which the data resolve it."""
    return {name: rate for name, attack in content.result.attacks.items() if (rate := rate_at(attack, fpr))}


def _rate_trace(
    attacks: Sequence[str], fpr: float, rates: Mapping[str, Rate], number: int, n_fprs: int, low: float
) -> Spec:
    """One dot per attack, the first attack on top; dots of different false-positive rates are shifted apart."""
    colour, _, symbol = series(number)
    at = [len(attacks) - 1 - attacks.index(name) + 0.17 * ((n_fprs - 1) / 2 - number) for name in rates]
    tpr, bottom, top = np.maximum([(rate.tpr, rate.low, rate.high) for rate in rates.values()], low).T
    legend = f"at {round_percent(fpr)} FPR"
    texts = [f"{name}: {rate} {legend}" for name, rate in rates.items()]
    errors = fig.error_bars(tpr, bottom, top, colour)
    return fig.points(legend, tpr, at, colour, symbol, size=9, error_x=errors, texts=texts)


def _best_at(fpr: float, rates: Mapping[str, Rate]) -> str:
    name, best = max(rates.items(), key=lambda pair: pair[1].tpr)
    return f"At a false-positive rate of {round_percent(fpr)} the best attack is {name} with {best}."


# Who is exposed -------------------------------------------------------------------------------------------------------

SCORE_BINS = 60
MAX_CLASSES = 25
# Largest false-positive rate at which classes are compared.
COARSEST = 0.1
# Room to the left of 0, as a share of the axis, so that markers at 0 are drawn whole.
LEFT_ROOM = 0.012


def scores_figure(content: Content) -> Figure:
    """Histograms of the scores of members and of non-members."""
    score = content.scores.score[content.queries]
    # The left tail is often long and says little; the right tail is what exposes records.
    edges = np.linspace(*fig.apart(*np.quantile(score, [0.02, 0.999])), SCORE_BINS + 1)
    non_members, members = (_shares(score[mask], edges) for mask in (~content.members, content.members))
    width, centres = float(edges[1] - edges[0]), (edges[1:] + edges[:-1]) / 2
    hover = "%{y:.2%} of %{fullData.name}<extra></extra>"
    tallest = max(float(non_members.max()), float(members.max()))
    decision = content.entry().decisions["conformal"].get(content.level)
    cut = None if decision is None else decision.threshold
    drawn = [cut] if cut is not None and edges[0] <= cut <= edges[-1] else []
    threshold = (
        f" The dotted line is the conformal threshold at a false-positive rate of {round_percent(content.level)}."
        if drawn
        else ""
    )
    return Figure(
        "scores",
        "Scores of members and of non-members",
        f"Histograms of the scores of {content.attack} on target {content.target}. The outermost bins include all "
        f"scores beyond them.{threshold} Healthy: the two histograms coincide, above all at the right end.",
        "Two overlaid histograms of scores, of members and of non-members; they share "
        f"{percent(float(np.minimum(non_members, members).sum()))} of their area.",
        [
            fig.bars("non-members", centres, non_members, width, "@orange", hovertemplate=hover),
            fig.bars("members", centres, members, width, "@blue", hovertemplate=hover),
        ],
        fig.one_panel(
            fig.linear_axis(f"Score of {content.attack} (larger means member)", edges[0], edges[-1]),
            fig.percent_axis("Share of members or of non-members", 0, 1.08 * tallest),
            barmode="overlay",
            shapes=[fig.vertical_line(at, "@ink") for at in drawn],
        ),
    )


def _shares(score: FloatArray, edges: FloatArray) -> FloatArray:
    """Share of the scores in each bin; the outermost bins include what lies beyond them."""
    return np.histogram(np.clip(score, edges[0], edges[-1]), edges)[0] / len(score)


def classes_figure(content: Content) -> Figure | Absent:
    """Share of each class's members, and of its non-members, that the conformal rule flags."""
    title = "Which classes are exposed"
    labels = content.labels
    if labels is None:
        return Absent("classes", title, content.without_classes)
    population = content.entry().conformal.population
    level = _resolved_level(content.level, population)
    if level is None:
        reason = f"A population of {population:,} flags nobody at a false-positive rate of {round_percent(COARSEST)}."
        return Absent("classes", title, f"{reason} Audit with more records.")
    coarser = f" The population ({population:,}) is too small for a lower rate." if level != content.level else ""
    classes, counts = _class_counts(content, labels, level)
    rate = counts[0, :, 0] / np.maximum(counts[0, :, 1], 1)
    order = np.lexsort((classes, -rate))[:MAX_CLASSES]
    names = [fig.shortened(content.class_name(int(c))) for c in classes[order]]
    data = [
        _class_trace("members", counts[0, order], names, "@blue", "circle", 0.12),
        _class_trace("non-members", counts[1, order], names, "@orange", "square", -0.12),
    ]
    reach = max(1e-3, *(x + more for t in data for x, more in zip(t["x"], t["error_x"]["array"], strict=True)))
    which = f"the {len(order)} most exposed of {len(classes)} classes" if len(classes) > len(order) else "each class"
    overall = int(counts[0, :, 0].sum()) / max(1, int(counts[0, :, 1].sum()))
    return Figure(
        "classes",
        title,
        f"Share of the members and of the non-members of {which} that {content.attack} flags by the conformal rule at "
        f"a false-positive rate of {round_percent(level)} (dotted), with 95 % Clopper-Pearson intervals.{coarser} "
        "Healthy: members are not flagged more often than non-members, and the classes are similar.",
        f"Dot plot of flagged shares by class. The most exposed class is {names[0]}: "
        f"{percent(float(rate[order[0]]))} of its members are flagged. Over all classes it is {percent(overall)}.",
        data,
        fig.one_panel(
            fig.percent_axis("Share flagged", -LEFT_ROOM * reach, 1.05 * reach),
            Axis("", -0.6, len(order) - 0.4, range(len(order)), names[::-1]),
            shapes=[fig.vertical_line(level, "@soft")],
        ),
        max(280, 110 + 26 * len(order)),
    )


def _resolved_level(level: float, population: int | None) -> float | None:
    """The level, or the next larger one at which the conformal rule can flag records; None if no level is left."""
    levels = [level, *(coarser for coarser in (0.01, 0.05, COARSEST) if coarser > level)]
    return next((each for each in levels if population is None or population >= needed_population(each)), None)


def _class_counts(content: Content, labels: Labels, level: float) -> tuple[Labels, IntArray]:
    """Classes, and the numbers of flagged and of all records of each [members or not, classes, 2]."""
    # One step up, as in the conformal rule.
    flagged = content.scores.log10_p_conformal[content.queries] <= np.nextafter(np.log10(level), 1)
    classes, label = np.unique(labels[content.queries], return_inverse=True)
    counts = [
        [np.bincount(label[kind & chosen], minlength=len(classes)) for chosen in (flagged, np.ones_like(flagged))]
        for kind in (content.members, ~content.members)
    ]
    return classes, np.moveaxis(np.array(counts), 1, 2)


def _class_trace(kind: str, counts: IntArray, names: Sequence[str], colour: str, symbol: str, shift: float) -> Spec:
    at = len(names) - 1 - np.arange(len(names)) + shift
    there = counts[:, 1] > 0
    counts, at = counts[there], at[there]
    low, high = clopper_pearson(counts[:, 0], counts[:, 1])
    rate = counts[:, 0] / counts[:, 1]
    texts = [
        f"{name}: {k:,} of {n:,} {kind} flagged ({percent(a)} to {percent(b)})"
        for name, (k, n), a, b in zip(np.array(names)[there], counts.tolist(), low.tolist(), high.tolist(), strict=True)
    ]
    return fig.points(kind, rate, at, colour, symbol, error_x=fig.error_bars(rate, low, high, colour), texts=texts)


# Subgroups ------------------------------------------------------------------------------------------------------------

LONGEST_NAME = 28


def subgroup_figures(content: Content) -> list[Figure | Absent]:
    """One figure for each column by which subgroups were formed, unless all of its subgroups are small."""
    tables = enumerate(content.subgroups, start=1)
    return [
        _subgroup_figure(content, table, f"subgroups-{number}")
        for number, table in tables
        if any(not group.small for group in table.subgroups)
    ]


def _subgroup_figure(content: Content, table: SubgroupTable, figure: str) -> Figure:
    groups, rate = [group for group in table.subgroups if not group.small], round_percent(table.fpr)
    names = ["▲ " * (group.name in table.more_exposed) + fig.shortened(group.name, LONGEST_NAME) for group in groups]
    at = {group.name: len(groups) - 1 - k for k, group in enumerate(groups)}
    resolved = [group for group in groups if group.tpr is not None]
    data = [*_own_threshold_trace(resolved, at), _common_threshold_trace(groups, at)]
    reach = max(1e-3, table.fpr, *(x for trace in data for x in _widths(trace)))
    # A single series has no legend, so the axis names it.
    alone = "" if resolved else ", common threshold"
    more = ", ".join(table.more_exposed)
    own = (
        f"Own threshold: the rate holds within the subgroup; all {round_percent(table.confidence)} intervals hold at "
        "once. "
    ) * bool(resolved)
    marked = "▲ marks a subgroup that is shown to be more exposed than the others. " if more else ""
    alt = [f"{group.name}: {percent(group.tpr)} at its own threshold." for group in resolved]
    return Figure(
        figure,
        f"Members identified by {fig.shortened(table.by)}",
        f"Share of the members of each subgroup that {content.verdict.attack} identifies at a false-positive rate of "
        f"{rate} (dotted). {own}Common threshold: the rate holds for all subgroups together. {marked}Healthy: no "
        "subgroup lies far to the right of the dotted line, and the subgroups are similar.",
        f"Dot plot of {len(groups)} subgroups. {' '.join(alt)} More exposed than the others: {more or 'none'}.",
        data,
        fig.one_panel(
            fig.percent_axis(f"Members identified at {rate} FPR{alone}", -LEFT_ROOM * reach, 1.05 * reach),
            Axis("", -0.6, len(groups) - 0.4, range(len(groups)), names[::-1]),
            shapes=[fig.vertical_line(table.fpr, "@soft")],
        ),
        max(240, 110 + 34 * len(groups)),
    )


def _own_threshold_trace(groups: Sequence[Subgroup], at: Mapping[str, int]) -> Iterator[Spec]:
    """Yield the rates within the subgroups that resolve them, if there are any."""
    found = [(group, group.tpr, group.interval) for group in groups]
    rates = [(group, Rate(tpr, ends.low, ends.high)) for group, tpr, ends in found if tpr is not None and ends]
    if not rates:
        return
    tpr, low, high = np.array([(rate.tpr, rate.low, rate.high) for _, rate in rates]).T
    errors = fig.error_bars(tpr, low, high, "@blue")
    y = [at[group.name] + 0.12 for group, _ in rates]
    texts = [f"{group.name}: {rate} of {group.n_members:,} members at its own threshold" for group, rate in rates]
    yield fig.points("own threshold", tpr, y, "@blue", size=9, error_x=errors, texts=texts)


def _common_threshold_trace(groups: Sequence[Subgroup], at: Mapping[str, int]) -> Spec:
    shares = [group.identified / group.n_members for group in groups]
    texts = [
        f"{group.name}: {group.identified:,} of {group.n_members:,} members and {group.falsely:,} of "
        f"{group.n_non_members:,} non-members at the common threshold"
        for group in groups
    ]
    y = [at[group.name] - 0.16 for group in groups]
    return fig.points("common threshold", shares, y, "@vermilion", "square", hollow=True, texts=texts)


def _widths(trace: Spec) -> Iterator[float]:
    """Yield the right ends of a trace's points with their error bars."""
    errors = trace.get("error_x", {}).get("array", [0.0] * len(trace["x"]))
    yield from (x + more for x, more in zip(trace["x"], errors, strict=True))


# Trainings ------------------------------------------------------------------------------------------------------------


def trainings_figures(content: Content) -> list[Figure | Absent]:
    """The figure of how many units are identified in at least a share of their trainings, if this was measured."""
    found = content.trainings
    return [] if found is None else [_trainings_figure(content, found)]


def _trainings_figure(content: Content, found: TrainingsSummary) -> Figure:
    # Everybody is identified in at least 0 % of the trainings.
    curve, units = [point for point in found.curve if point.percent > 0], content.units
    counts: dict[str, tuple[str, str, list[float]]] = {
        "limit without a leak": ("@ink", "dash", [point.at_most for point in curve]),
        "members identified": ("@blue", "solid", [point.identified for point in curve]),
        "non-members accused": ("@orange", "dot", [point.accused for point in curve]),
    }
    values = [n for _, _, part in counts.values() for n in part]
    low, top = min(0.7, *(v for v in values if v > 0)), 1.3 * max(values)
    share = [point.percent / 100 for point in curve]
    hover = f"%{{text}} {units} in at least %{{x:.0%}} of trainings: %{{fullData.name}}<extra></extra>"
    data = [
        fig.line(
            name, share, np.maximum(part, low), colour, dash=dash, text=[f"{n:,.0f}" for n in part], hovertemplate=hover
        )
        for name, (colour, dash, part) in counts.items()
    ]
    ticks = [tick for tick in _log_ticks(low, top) if low <= tick <= top]
    last = curve[-1]
    return Figure(
        "trainings",
        f"How often the same {units} are identified",
        f"Number of {units} that {content.verdict.attack} identifies in at least a share of the trainings, at a "
        f"false-positive rate of {round_percent(found.fpr)}, on a logarithmic scale. If nothing leaks, the expected "
        "number is at most the dashed limit. Healthy: the solid line stays below it. The dotted line counts trainings "
        f"that did not use the {content.unit}. 0 is drawn at the lower edge.",
        f"Of {found.units:,} {units}, {last.identified:,} are identified in all trainings that used them. If nothing "
        f"leaks, at most {last.at_most:,.0f} are expected.",
        data,
        fig.one_panel(
            fig.percent_axis("Share of trainings, at least", 0.0, 1.02),
            Axis(units.capitalize(), low, top, ticks, [f"{tick:,.0f}" for tick in ticks], log=True),
        ),
    )


# Can the numbers be trusted? ------------------------------------------------------------------------------------------

RULES = {
    "conformal": "conformal",
    "class-conformal": "conformal by class",
    "held-out": "held-out quantile",
    "tolerance": "tolerance limit",
    "modelled-tail": "modelled tail",
    "analytic": "analytic (the paper's)",
}


def false_positives_figure(content: Content) -> Figure | Absent:
    """Nominal against realised false-positive rate of every rule (`fig:cauchy_fpr_agreement`)."""
    title = "Does each threshold keep its false-positive rate?"
    entry = content.entry()
    curve = entry.diagnostics.realised_fpr
    if curve is None:
        return Absent("fpr", title, "This run kept no realised false-positive rates. Run it again with this version.")
    low = min(curve.levels[0], 10.0 ** math.floor(math.log10(1 / curve.n_non_members)))
    data = [fig.line("exact", [low, 1], [low, 1], "@soft", dash="dash", width=1.5, hoverinfo="skip")]
    for name, rates, number in (("combined", curve.combined, 5), ("conformal", curve.conformal, 0)):
        if rates is not None:
            data += _realised_curve(f"{name} p-value", curve.levels, rates, low, series(number)[0])
    for number, (rule, words) in enumerate(RULES.items()):
        data += _rule_points(_made(entry.decisions.get(rule, {})), words, number, low)
    refuted = sorted({RULES[check.rule] for check in entry.diagnostics.failed_checks})
    return Figure(
        "fpr",
        title,
        f"Share of {curve.n_non_members:,} non-members that each rule flags, against its nominal rate, with 95 % "
        "intervals. Healthy: on the dashed line or below it. A point above the line flags more non-members than its "
        "nominal rate. A rate of 0 is drawn at the lower edge. Markers are shifted sideways to keep them visible. "
        "A rule is left out at levels where it cannot decide.",
        "Realised against nominal false-positive rates on a log-log scale."
        + (f" Refuted by the known non-members: {', '.join(refuted)}." if refuted else "")
        + _realised_by_conformal(_made(entry.decisions["conformal"])),
        data,
        fig.one_panel(
            fig.log_percent_axis("Nominal false-positive rate", low),
            fig.log_percent_axis("Realised false-positive rate", low / EDGE, TOP),
        ),
        480,
    )


def _realised_curve(name: str, levels: Sequence[float], rates: Rates, low: float, colour: str) -> Iterator[Spec]:
    bottom, top, realised = ([max(low, value) for value in part] for part in (rates.low, rates.high, rates.realised))
    yield fig.band(f"{name}, 95 %", levels, bottom, top, colour, legendgroup=name)
    hover = "%{fullData.name}: %{y:.3~%} realised at %{x:.3~%}<extra></extra>"
    yield fig.line(name, levels, realised, colour, legendgroup=name, hovertemplate=hover)


def _made(decisions: Mapping[float, Decision]) -> list[Decision]:
    """Decisions at the levels at which the rule could decide."""
    return [decision for decision in decisions.values() if decision.fpr_realised is not None]


def _rule_points(made: Sequence[Decision], words: str, number: int, low: float) -> Iterator[Spec]:
    if not made:
        return
    colour, _, symbol = series(number)
    # Shifted sideways, since the rules would hide each other where they agree.
    x = [d.level * 10 ** (0.05 * (number - 2.5)) for d in made]
    y, bottom, top = (
        [max(low, value or 0.0) for value in part]
        for part in zip(*((d.fpr_realised, d.fpr_low, d.fpr_high) for d in made), strict=True)
    )
    texts = [
        f"{words} at {round_percent(d.level)}: {percent(d.fpr_realised)} "
        f"({percent(d.fpr_low)} to {percent(d.fpr_high)}) of non-members, {percent(d.tpr)} of members"
        for d in made
    ]
    errors = fig.error_bars(y, bottom, top, colour)
    yield fig.points(words, x, y, colour, symbol, size=9, error_y=errors, texts=texts)


def _realised_by_conformal(made: Sequence[Decision]) -> str:
    shares = ", ".join(f"{percent(d.fpr_realised)} at {round_percent(d.level)}" for d in made)
    return f" The conformal rule realises {shares}." if made else ""


def p_values_figure(content: Content) -> Figure | Absent:
    """Histograms of pairwise p-values with the uniform line (`fig:pvalue_distribution`)."""
    title = "Pairwise p-values"
    found = content.entry().diagnostics.pairwise_p
    if found is None or not sum(found.non_members) or found.distance is None:
        why = found.warning if found else None
        return Absent("p-values", title, sentence(why or "This run kept no pairwise p-values. Run it again."))
    n = len(found.members)
    centres = (np.arange(n) + 0.5) / n
    densities = [n * np.array(counts) / max(1, sum(counts)) for counts in (found.non_members, found.members)]
    hover = "density %{y:.2f} of %{fullData.name}<extra></extra>"
    return Figure(
        "p-values",
        title,
        f"{content.attack} compares each {content.unit} with each known non-member; members should have small "
        "p-values. Healthy: the histogram of the non-members follows the dashed uniform line. If it does not, "
        "thresholds based on these p-values are wrong, and the conformal threshold is used instead.",
        f"Histogram of pairwise p-values in {n} bins. The distance of the non-members from the uniform distribution "
        f"is {found.distance:.3f}.",
        [
            fig.bars("non-members", centres, densities[0], 1 / n, "@orange", hovertemplate=hover),
            fig.bars("members", centres, densities[1], 1 / n, "@blue", hovertemplate=hover),
            fig.line("uniform", [0, 1], [1, 1], "@ink", dash="dash", hoverinfo="skip"),
        ],
        fig.one_panel(
            fig.linear_axis("Pairwise p-value", 0, 1, about=5),
            fig.linear_axis("Density (1 is uniform)", 0, 1.08 * max(1.0, float(np.max(densities)))),
            barmode="overlay",
        ),
    )


def references_figure(content: Content) -> Figure | Absent:
    """Power against the number of references, measured and extrapolated, with the training time."""
    title = "Would more references find more?"
    found = content.result.diagnostics.references
    if content.about.screening:
        return Absent("references", title, f"{NO_REFERENCES}. `plmia audit` trains them and measures this.")
    if found is None or not found.curves:
        reason = "This run did not measure the power with fewer references. `plmia plan` measures it."
        return Absent("references", title, reason)
    curves = [curve for curve in found.curves if len(curve.budgets) > 1]
    if not curves:
        few = max(content.about.references)
        reason = f"{few} references are too few to measure the power with fewer of them. Train more references."
        return Absent("references", title, reason)
    data: list[Spec] = []
    layout: Spec = {}
    rates = [curve for curve in curves if curve.metric != "auc"]
    # A single curve has no legend, so the axis names it.
    rate_title = rates[0].name if len(rates) == 1 else "True-positive rate"
    groups = [([curve for curve in curves if curve.metric == "auc"], "AUC"), (rates, rate_title)]
    groups = [(group, words) for group, words in groups if group]
    for k, (group, words) in enumerate(groups):
        width = (1 - 0.14 * (len(groups) - 1)) / len(groups)
        domain = (k * (width + 0.14), k * (width + 0.14) + width)
        traces = [trace for i, curve in enumerate(group) for trace in _power_traces(curve, 3 * k + i, fig.panel_ref(k))]
        data += traces
        layout |= fig.panel(k, *_power_axes(traces, words, domain))
    caption = _references_caption(found.attack, curves, people=content.about.people)
    alt = " ".join(_expected_power(curve) for curve in curves)
    return Figure("references", title, caption, alt, data, layout)


def _references_caption(attack: str, curves: Sequence[Curve], *, people: bool) -> str:
    extrapolated = any(curve.times(2) is not None for curve in curves)
    return (
        f"Power of {attack} with all, half, a quarter, ... of its references (dots, with one standard deviation over "
        "random subsets)"
        + (", and a fitted curve for more references (dashed)." if extrapolated else ".")
        + (" The power is that with one record per person." if people else "")
        + " Healthy: the curve is flat at its right end, so a larger audit would find the same."
    )


def _power_traces(curve: Curve, number: int, ref: str) -> Iterator[Spec]:
    colour, _, symbol = series(number)
    name, budgets, mean = curve.name, curve.budgets, np.array(curve.mean)
    on: Spec = {"xaxis": f"x{ref}", "yaxis": f"y{ref}", "legendgroup": name}
    spread = np.array([d or 0.0 for d in curve.deviation])
    hover = "%{fullData.name} with %{x} references: %{y:.4~%}<extra></extra>"
    errors = fig.error_bars(mean, np.maximum(mean - spread, 0), np.minimum(mean + spread, 1), colour)
    yield fig.line(name, budgets, mean, colour, showlegend=False, hoverinfo="skip", **on)
    yield fig.points(name, budgets, mean, colour, symbol, error_y=errors, hovertemplate=hover, **on)
    more = [(factor * budgets[-1], curve.times(factor)) for factor in (2, 4, 8)]
    beyond = [(n, value) for n, value in more if value is not None]
    if beyond:
        x, y = zip((budgets[-1], mean[-1]), *beyond, strict=True)
        hover = hover.replace("references", "references (extrapolated)")
        yield fig.line(name, x, y, colour, dash="dash", showlegend=False, hovertemplate=hover, **on)


def _power_axes(traces: Sequence[Spec], words: str, domain: tuple[float, float]) -> tuple[Axis, Axis]:
    x = sorted({n for trace in traces for n in trace["x"]})
    y = [value for trace in traces for value in _heights(trace)]
    gap = max(0.12 * (max(y) - min(y)), 0.01)
    ticks = [n for i, n in enumerate(x) if i == 0 or n >= 1.6 * x[i - 1]]
    across = Axis("References", x[0] / EDGE, x[-1] * EDGE, ticks, [f"{n:g}" for n in ticks], log=True, domain=domain)
    return across, fig.percent_axis(words, max(0.0, min(y) - gap), min(1.0, max(y) + gap))


def _heights(trace: Spec) -> Iterator[float]:
    """Yield the heights of a trace's points and of the ends of its error bars."""
    errors = trace.get("error_y")
    for k, value in enumerate(trace["y"]):
        if value is not None:
            yield value
            if errors:
                yield from (value + errors["array"][k], value - errors["arrayminus"][k])


def _expected_power(curve: Curve) -> str:
    doubled = curve.times(2)
    more = f", about {percent(doubled)} with twice as many" if doubled is not None else ""
    return f"{curve.name} is {percent(curve.mean[-1])} with {curve.budgets[-1]} references{more}."


# Signals of single records --------------------------------------------------------------------------------------------

RECORD_TITLE = "Signals of single records"
MOST_EXPOSED, BINS, GAUSSIAN_POINTS = 3, 16, 60
# A curve narrower than this share of the figure's width is less than a pixel wide and would only stretch the axis.
THINNEST = 1e-3
QUARTILES = (0.25, 0.5, 0.75)


def record_figures(content: Content) -> list[Figure | Absent]:
    """One figure for each of the most exposed records, and for some others (`fig:per_example_gaussian`).

    Where people are judged, the figure of a person shows the first of its records.
    """
    if content.about.screening:
        return [Absent("record-1", RECORD_TITLE, f"{NO_REFERENCES}, whose signals these figures show.")]
    signals = content.signals
    if signals is None:
        return [Absent("record-1", RECORD_TITLE, content.without_signals)]
    own = int(signals.rows([content.target])[0])
    places = chosen_places(len(content.table))
    return [_record_figure(content, signals, own, number, place) for number, place in enumerate(places, start=1)]


def chosen_places(n: int) -> list[int]:
    """Places in a table of ``n`` records: the first few, and those at the quartiles."""
    places = [*range(min(MOST_EXPOSED, n)), *(int(share * (n - 1)) for share in QUARTILES)]
    return list(dict.fromkeys(places))


def _reference_rows(signals: Signals, own: int) -> IntArray:
    """Rows of all models except the target (row ``own``) and models trained on its set or the complement."""
    matrix = signals.design.matrix
    differ = (matrix != matrix[own]).sum(axis=1)
    return np.flatnonzero((differ > 0) & (differ < matrix.shape[1]))


def _unmoved(content: Content) -> str:
    """Say that references are shown as they are, if attacks saw them on the target's scale."""
    checks = content.result.diagnostics.targets.get(content.target)
    if checks is None or checks.alignment is None:
        return ""
    return " References are shown as they are; attacks compare them on the target's scale."


def _record_figure(content: Content, signals: Signals, own: int, number: int, place: int) -> Figure:
    table, references = content.table, _reference_rows(signals, own)
    point, rank = int(table.shown_records[place]), int(table.rank[place])
    values = signals.values[references, point, 0].astype(np.float64)
    inside = signals.design.matrix[references, point]
    target = float(signals.values[own, point, 0])
    labels, whose = content.saved.labels, f"Record {point}"
    if table.records is not None:
        whose = f"Person {int(table.index[place])}, record {point} (first of {int(table.records[place])})"
    name = "" if labels is None else f", {fig.shortened(content.class_name(int(labels[point])))}"
    low, high = fig.apart(min(values.min(), target), max(values.max(), target))
    edges, reach = np.linspace(low, high, BINS + 1), (low - 0.06 * (high - low), high + 0.06 * (high - low))
    data = [*_signal_traces("OUT", values[~inside], edges, reach), *_signal_traces("IN", values[inside], edges, reach)]
    tests = [_normality_test("OUT", values[~inside]), _normality_test("IN", values[inside])]
    tallest = max((y for trace in data for y in trace["y"] if y is not None), default=1.0)
    # The annotation stands on the side opposite to the dotted line.
    corner, anchor = (0.01, "left") if target - reach[0] > 0.5 * (reach[1] - reach[0]) else (0.99, "right")
    why = f"as one of the most exposed {content.units}" if place < MOST_EXPOSED else "for comparison"
    return Figure(
        f"record-{number}",
        f"{whose}{name}: rank {rank:,} of {len(table):,}",
        f"Shown {why}. The dotted line is the signal of the target model. Healthy: IN and OUT overlap, so the "
        f"signal does not reveal membership, and the curves fit the bars.{_unmoved(content)}",
        f"Histograms of IN and OUT signals of record {point}. {' '.join(tests)} The target's signal is {target:.3g}.",
        data,
        fig.one_panel(
            fig.linear_axis(f"{content.signal_name}, first view", *reach),
            fig.linear_axis("Density", 0, 1.35 * tallest, about=4),
            barmode="overlay",
            shapes=[fig.vertical_line(target, "@ink")],
            annotations=[fig.annotation("\n".join(reversed(tests)), corner, 0.99, anchor=anchor)],
        ),
        320,
    )


def _signal_traces(kind: str, values: FloatArray, edges: FloatArray, reach: tuple[float, float]) -> Iterator[Spec]:
    colour = "@blue" if kind == "IN" else "@orange"
    width = float(edges[1] - edges[0])
    density = np.histogram(values, edges)[0] / (max(1, len(values)) * width)
    centres = (edges[1:] + edges[:-1]) / 2
    hover = "density %{y:.2f}, %{fullData.name}<extra></extra>"
    yield fig.bars(f"{kind} ({len(values)})", centres, density, width, colour, legendgroup=kind, hovertemplate=hover)
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    if spread > THINNEST * (reach[1] - reach[0]):
        x = np.linspace(*reach, GAUSSIAN_POINTS)
        y = np.exp(-(((x - values.mean()) / spread) ** 2) / 2) / (spread * math.sqrt(2 * math.pi))
        yield fig.line(f"{kind}, Gaussian", x, y, colour, legendgroup=kind, showlegend=False, hoverinfo="skip")


def _normality_test(kind: str, values: FloatArray) -> str:
    if not MIN_SIZE <= len(values) <= MAX_SIZE or not np.ptp(values) > 0:
        return f"{kind}: not tested ({len(values)} signals)"
    w, p = (float(part[0]) for part in shapiro_wilk(np.sort(values)[:, None]))
    return f"{kind}: W = {w:.3f}, p = {p:.2g}"


# Models and their training --------------------------------------------------------------------------------------------

BAYES, BAYES_TITLE = "pl-mia-eb", "What empirical Bayes learns from all records"


def trends_figure(content: Content) -> Figure | Absent:
    """Spread and shift of signals against their centre, as `pl-mia-eb` fitted them."""
    if content.about.screening:
        return Absent("trends", BAYES_TITLE, f"{NO_REFERENCES}, from which empirical Bayes learns.")
    if BAYES in content.result.skipped:
        return Absent("trends", BAYES_TITLE, sentence(f"{BAYES} was left out: {content.result.skipped[BAYES]}"))
    if BAYES not in content.result.attacks:
        return Absent("trends", BAYES_TITLE, f"{BAYES} is not among the attacks of this run. Add `--attack {BAYES}`.")
    trends = content.entry(BAYES).trends
    if trends is None:
        reason = f"This run kept no fitted trends of {BAYES}. Run it again with this version."
        return Absent("trends", BAYES_TITLE, reason)
    at, (short, long) = (
        _places(trends.knots),
        _coordinate_names(trends, content.about.signal),
    )
    level = np.sqrt(trends.spread.level[:, :, 0])
    off = np.sqrt(np.diag(trends.spread.covariance)) / 2
    data: list[Spec] = []
    for side, (name, colour, dash) in enumerate((("IN", "@blue", "solid"), ("OUT", "@orange", "dash"))):
        spread = _at_places(level[side], at)
        ends = spread * math.exp(-off[side]), spread * math.exp(off[side])
        data += _trend(f"deviation, {name}", at, spread, ends, colour, dash)
    layout = fig.panel(0, *_trend_axes(data, "Standard deviation of the coordinate", (0.0, 0.43), at, short))
    alt = f"Trends over {trends.n_points:,} records. Deviations range from {level.min():.2g} to {level.max():.2g}."
    if trends.shift is not None:
        shift, beyond = _shift(trends.shift, at)
        traces = _trend("shift, IN minus OUT", at, shift, (shift - beyond, shift + beyond), "@green", "solid")
        data += [trace | {"xaxis": "x2", "yaxis": "y2"} for trace in traces]
        layout |= fig.panel(1, *_trend_axes(traces, "Shift of the coordinate", (0.57, 1.0), at, short))
        alt += f" The expected shift ranges from {shift.min():.2g} to {shift.max():.2g}."
    return Figure("trends", BAYES_TITLE, _trends_caption(long), alt, data, layout)


def _trends_caption(coordinate: str) -> str:
    return (
        "How much the signals of a record vary over references, and how much training on the record shifts them, both "
        "against the centre of the signals. Bands hold two thirds of the records. The coordinate is that of "
        f"{BAYES}: {coordinate}. For a record with few references, these trends count as much as its own signals. "
        "Healthy: smooth curves, and a shift near 0 if nothing leaks."
    )


def _coordinate_names(trends: Trends, kind: SignalKind | None) -> tuple[str, str]:
    """Name of the coordinate for an axis, and its description for the caption."""
    coordinates = trends.coordinates or Coordinates()
    bent = f", bent by asinh(conf / {coordinates.bend:g})" if coordinates.bend else ""
    scaled, unit = ("standardised ", ", from the median in units of the spread of all signals") if kind else ("", "")
    if trends.pooled:
        of_views = f"the {scaled}signal of the views' mean probability"
        return of_views + bent, f"{of_views}{unit}{bent}"
    if len(coordinates.rotation or [0]) == 1:
        return f"the {scaled}signal{bent}", f"the signal conf{unit}{bent or ' itself' * (not unit)}"
    of_views = f"the first coordinate of the {scaled}signals"
    return of_views + bent, f"{of_views} (close to the views' mean times sqrt(views)){unit}{bent}"


def _places(knots: Knots) -> FloatArray:
    """Centres at which the trends are drawn: the knots, or both ends if one knot makes the trend constant."""
    return np.array(knots.at if len(knots.at) > 1 else fig.apart(knots.low, knots.high))


def _at_places(values: FloatArray, at: FloatArray) -> FloatArray:
    return values if len(values) == len(at) else np.full(len(at), values[0])


def _shift(shift: ShiftPrior, at: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Prior mean of the shift of a record with typical spread, and its standard deviation."""
    lines = shift.lines[:, 0]
    mean = lines[:, 0].copy()
    if len(lines) > 1:
        mean += lines[:, 1] * (at - at.mean()) / (at[-1] - at[0])
    spread = np.sqrt(shift.spread[:, 0])
    return _at_places(mean, at), _at_places(spread, at)


def _trend(
    name: str, at: FloatArray, middle: FloatArray, ends: tuple[FloatArray, FloatArray], colour: str, dash: str
) -> list[Spec]:
    hover = "%{fullData.name}: %{y:.3~g} at %{x:.3~g}<extra></extra>"
    return [
        fig.band(f"{name}, two thirds", at, *ends, colour, legendgroup=name),
        fig.line(name, at, middle, colour, dash=dash, legendgroup=name, hovertemplate=hover),
    ]


def _trend_axes(
    traces: list[Spec], title: str, domain: tuple[float, float], at: FloatArray, coordinate: str
) -> tuple[Axis, Axis]:
    values = [y for trace in traces for y in trace["y"] if y is not None]
    low, high = min(0.0, *values), max(0.0, *values)
    across = fig.linear_axis(f"Centre of {coordinate}", float(at[0]), float(at[-1]), about=4)
    return replace(across, domain=domain), fig.linear_axis(title, low, high + 0.08 * (high - low), about=5)


def losses_figure(content: Content) -> Figure | Absent:
    """Training curves of the target and of its references."""
    title = "Training curves"
    if not content.training:
        return Absent("losses", title, "There are no training records, since plmia did not train the models.")
    losses = {model: record.losses or () for model, record in content.training.items()}
    longest = max(map(len, losses.values()))
    if longest < 2:
        return Absent("losses", title, "The recipe keeps no loss per epoch, so there are no curves to draw.")
    epochs = np.unique(np.round(np.geomspace(1, longest, min(longest, 200))).astype(int))
    # A loss that was not finite is None in the records, and a gap in the curve.
    curves = {k: np.array(curve, np.float64)[epochs - 1] for k, curve in losses.items() if len(curve) == longest}
    data: list[Spec] = []
    if references := [curve for model, curve in curves.items() if model != content.target]:
        low, middle, high = _range_and_median(np.array(references))
        data.append(fig.band("references, all", epochs, low, high, "@blue", legendgroup="r"))
        data.append(fig.line("references (median and range)", epochs, middle, "@blue", legendgroup="r"))
    if content.target in curves:
        own = curves[content.target]
        data.append(fig.line(f"target {content.target}", epochs, own, "@vermilion", dash="dash", width=2.5))
    positive = [value for trace in data for value in trace["y"] if value is not None and value > 0]
    if not positive:
        return Absent("losses", title, "Every recorded loss is 0 or not finite and cannot be drawn on a log scale.")
    bottom, top = min(positive), max(positive)
    ticks = _log_ticks(bottom, top)
    up = Axis("Training loss", bottom / 1.3, top * 1.3, ticks, [f"{tick:g}" for tick in ticks], log=True)
    meaning = (
        "Target and references have different recipes, so their curves may differ."
        if content.about.two_recipes
        else "Healthy: the curve of the target lies within the range of its references, which suggests that it was "
        "trained in the same way."
    )
    return Figure(
        "losses",
        title,
        f"Mean training loss per epoch. {meaning}",
        f"Training loss over {longest} epochs of {len(content.training)} models, from {top:.3g} to {bottom:.3g}.",
        data,
        fig.one_panel(fig.linear_axis("Epoch", 1, longest), up),
        380,
    )


def _range_and_median(curves: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Minimum, median and maximum of the finite values of curves [curves, epochs] per epoch; NaN if there are none."""
    # A median is half of a sum, which must be finite, too.
    known = np.ma.masked_invalid(np.where(np.abs(curves) < sys.float_info.max / 4, curves, np.nan))
    low, middle, high = (part(known, axis=0).filled(np.nan) for part in (np.ma.min, np.ma.median, np.ma.max))
    return low, middle, high


def _log_ticks(bottom: float, top: float) -> list[float]:
    """Ticks of a logarithmic axis: several per decade for few decades, one per several decades for many."""
    first, last = math.floor(math.log10(bottom)), math.ceil(math.log10(top))
    steps = (1, 2, 5) if top < 1000 * bottom else (1,)
    return [step * 10.0**k for k in range(first, last + 1, max(1, (last - first) // 8)) for step in steps]


def accuracies_figure(content: Content) -> Figure | Absent:
    """Accuracy of every model on its own training records and on the others."""
    title = "Accuracy of the models"
    known = {model: pair for model, record in content.training.items() if (pair := record.accuracies)}
    if not known:
        return Absent("accuracies", title, content.without_accuracies)
    rows = (("on other records", "@vermilion", "square"), ("on training records", "@blue", "circle"))
    data: list[Spec] = []
    for row, (words, colour, symbol) in enumerate(rows):
        accuracy = {model: pair[1 - row] for model, pair in known.items()}
        for own in (False, True):
            chosen = {model: value for model, value in accuracy.items() if (model == content.target) == own}
            data += _accuracy_trace(chosen, row, words, colour, symbol, own=own)
    values = [value for pair in known.values() for value in pair]
    train, test = (float(np.mean([pair[i] for pair in known.values()])) for i in (0, 1))
    gap = max(0.02, 0.06 * (max(values) - min(values)))
    return Figure(
        "accuracies",
        title,
        "Accuracy of each model on its training records and on the other records; the target is the large open "
        "marker. Vertical spread within a row only separates the markers. Healthy: the target lies among its "
        "references. Attacks exploit a wide gap between the two rows.",
        f"Mean accuracy is {percent(train)} on training records and {percent(test)} on others, over {len(known)} "
        "models.",
        data,
        fig.one_panel(
            fig.percent_axis("Accuracy", max(0.0, min(values) - gap), 1.0 + gap / 2),
            Axis("", -0.6, 1.6, [0, 1], ["other records", "training records"]),
        ),
        260,
    )


def _accuracy_trace(
    accuracy: Mapping[int, float], row: int, words: str, colour: str, symbol: str, *, own: bool
) -> Iterator[Spec]:
    if not accuracy:
        return
    # A fixed vertical spread separates models with equal accuracy.
    y = [row + (0.0 if own else 0.28 * math.sin(2.4 * i)) for i in range(len(accuracy))]
    texts = [f"model {model}: {percent(value)} {words}" for model, value in accuracy.items()]
    name, size = ("target", 14) if own else ("references", 7)
    x = list(accuracy.values())
    yield fig.points(f"{name}, {words}", x, y, colour, symbol, size=size, hollow=own, texts=texts)
