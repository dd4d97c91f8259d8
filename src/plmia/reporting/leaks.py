"""Figures of what leaks: ROC curves, rates at low false-positive rates, scores, and exposure by class."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from plmia.attacks.moments import FloatArray, IntArray
from plmia.evaluation.intervals import roc_band
from plmia.evaluation.metrics import Roc, clopper_pearson, fpr_key
from plmia.reporting.content import Content, nice_percent, percent
from plmia.reporting.plots import (
    Absent,
    Axis,
    Figure,
    Spec,
    apart,
    band,
    bars,
    error_bars,
    line,
    linear_axis,
    log_percent_axis,
    points,
    rule,
    shortened,
)
from plmia.reporting.theme import series

CURVE_POINTS = 160
SCORE_BINS = 60
MOST_CLASSES = 25
# So large a share of the non-members with one score makes a stretch of the curve that is flat to the eye.
MANY_TIED = 0.05
# Room above 100 %, so that what lies there is seen whole.
TOP = 1.2
# Likewise below the least value of a logarithmic axis, and of a linear one as a share of its length.
EDGE, SHORE = 1.15, 0.012
RATES = (0.01, 0.001, 0.0001, 0.0)
# An axis of shares that are all large reaches down to this all the same.
LEAST_SHARE = 0.1

Row = tuple[int, float, float, float]
"""Number of an attack, its TPR, and the ends of the interval."""


def roc_figure(content: Content) -> Figure | Absent:
    """Log-log ROC curves of all attacks on one target, each with its band."""
    title = "How many members each attack finds, at every rate of false accusations"
    if np.count_nonzero(~content.members) < 2:
        return Absent("roc", title, "One non-member was evaluated, a curve needs 2: choose a smaller population.")
    data: list[Spec] = []
    attacks = content.saved.attacks
    least = 1.0
    # The chosen attack comes last, so that it lies above the others.
    for name in sorted(attacks, key=lambda name: name == content.attack):
        roc = content.saved.roc(name, content.target)
        least = min(least, 1 / roc.n_non_members)
        data += _roc_traces(name, roc, attacks.index(name), chosen=name == content.attack)
    low = 10.0 ** (math.floor(math.log10(least) * 4) / 4)
    data = [_above(trace, low) for trace in data]
    data += _verdict_trace(content, low)
    data.insert(0, line("chance", [low, 1.0], [low, 1.0], "@soft", dash="dash", width=1.5, hoverinfo="skip"))
    found = content.saved.roc(content.attack, content.target).tpr_at(content.level)
    bar = "" if content.verdict["fpr"] is None else ", such as the verdict's, which is the upright bar"
    return Figure(
        "roc",
        title,
        f"ROC curves on target {content.target}, both axes logarithmic: the left end is where an accusation means "
        f"something. The shaded band covers the whole true curve of {content.attack} with 95 % confidence, so it is "
        f"wider than an interval at one rate{bar}; the bands of other attacks appear with the button. A model that "
        "leaks nothing stays on the dashed line of chance." + _tied(content),
        f"ROC curves of {len(attacks)} attacks on a log-log scale. {content.attack} finds {percent(found.tpr)} of "
        f"the members at a false-positive rate of {nice_percent(content.level)}; chance would find "
        f"{nice_percent(content.level)}.",
        data,
        {
            "xaxis": log_percent_axis("False-positive rate (non-members wrongly accused)", low).to_json(),
            "yaxis": log_percent_axis("True-positive rate (members found)", low, TOP).to_json(),
            "hovermode": "closest",
        },
        480,
    )


def _verdict_trace(content: Content, low: float) -> Iterator[Spec]:
    """The verdict's rate with its interval, where it has one."""
    verdict = content.verdict
    if verdict["fpr"] is None:
        return
    tpr, ends = verdict["tpr"], verdict["interval"]
    y, bottom, top = ([max(low, value)] for value in (tpr, ends["low"], ends["high"]))
    mean = f", mean over {verdict['targets']} targets" if verdict["targets"] > 1 else ""
    text = (
        f"verdict: {verdict['attack']} finds {percent(tpr)} ({percent(ends['low'])} to {percent(ends['high'])}) "
        f"at {nice_percent(verdict['fpr'])} FPR{mean}"
    )
    yield points(
        "the verdict and its interval",
        [verdict["fpr"]],
        y,
        "@ink",
        "diamond",
        size=9,
        error_y=error_bars(y, bottom, top, "@ink"),
        text=[text],
        hovertemplate="%{text}<extra></extra>",
    )


def _tied(content: Content) -> str:
    """Name the attacks that give one score to many non-members, whose curves are flat, in a sentence."""
    names = []
    for name in content.saved.attacks:
        roc = content.saved.roc(name, content.target)
        if int(np.diff(roc.false_positives).max()) >= MANY_TIED * roc.n_non_members:
            names.append(name)
    if not names:
        return ""
    return (
        " Records of equal score cross together and the AUC counts such ties half; one group of ties that holds many "
        f"records makes a flat stretch, as in {', '.join(names[:-1])}{' and ' * (len(names) > 1)}{names[-1]}."
    )


def _roc_traces(name: str, roc: Roc, number: int, *, chosen: bool) -> Iterator[Spec]:
    x, y = thinned(roc)
    low, high = roc_band(roc).at(x)
    colour, dash, _ = series(number)
    hidden: Spec = {} if chosen else {"visible": False}
    yield band(f"{name}, 95 % band", x, low, high, colour, legendgroup=name, **hidden)
    style: Spec = {"width": 3.5} if chosen else {"width": 1.8, "dash": dash}
    hover = "%{fullData.name}: %{y:.3~%} of members at a false-positive rate of %{x:.3~%}<extra></extra>"
    yield line(name, x, y, colour, shape="hv", hovertemplate=hover, legendgroup=name, **style)


def thinned(roc: Roc, n: int = CURVE_POINTS) -> tuple[FloatArray, FloatArray]:
    """Rates at about ``n`` numbers of false positives, evenly in the logarithm: at most so many, not interpolated."""
    total = roc.n_non_members
    allowed = np.unique(np.round(np.geomspace(1, total, n)).astype(np.int64))
    at = np.searchsorted(roc.false_positives, allowed, side="right") - 1
    return allowed / total, roc.tpr[at]


def _above(trace: Spec, low: float) -> Spec:
    """The same, no lower than ``low``: a logarithmic axis has no zero."""
    if trace.get("fill"):
        return trace | {"y": [max(low, y) for y in trace["y"]]}
    return trace | {"y": [y if y and y >= low else None for y in trace["y"]]}


def tpr_figure(content: Content) -> Figure:
    """TPR of each attack at fixed false-positive rates, with intervals."""
    attacks, targets = content.saved.attacks, content.saved.targets
    found = {rate: rows for rate in RATES if (rows := _rates_of(content, rate))}
    values = [value for rows in found.values() for row in rows for value in row[1:]] + list(found)
    least = min((v for v in values if v > 0), default=0.01)
    low = 10.0 ** (math.floor(math.log10(min(least, LEAST_SHARE)) * 2) / 2)
    data = [_rate_trace(attacks, rate, rows, k, len(found), low) for k, (rate, rows) in enumerate(found.items())]
    who = f"target {content.target}", "that include the uncertainty of the threshold"
    if len(targets) > 1:
        who = f"mean over {len(targets)} targets", "over targets"
    elif list(found) == [0.0]:
        who = f"target {content.target}", "given the threshold"
    # One rate has no legend, so the axis names it.
    at = f" at {nice_percent(next(iter(found)))} FPR" if len(found) == 1 else ""
    return Figure(
        "tpr",
        "Members found at fixed rates of false accusations",
        f"Share of members found by each attack ({who[0]}) with 95 % intervals {who[1]}; dotted lines are what "
        "guessing finds at the rate of the same colour. Healthy: no interval lies wholly to the right of its dotted "
        "line. Rates that the non-members cannot resolve are left out; 0 is drawn at the left edge."
        + _at_zero(found, len(targets)),
        "Dot plot. " + " ".join(_said(content, rate) for rate in found),
        data,
        {
            "xaxis": log_percent_axis(f"True-positive rate{at} (members found)", low / EDGE, TOP).to_json(),
            "yaxis": Axis("", -0.6, len(attacks) - 0.4, range(len(attacks)), attacks[::-1]).to_json(),
            "shapes": [rule("x", rate, series(k)[0], "dot") for k, rate in enumerate(found) if rate > 0],
            "hovermode": "closest",
        },
        max(320, 110 + 44 * len(attacks)),
    )


def _at_zero(rates: Iterable[float], n_targets: int) -> str:
    """Say of the rate that one non-member decides what its interval leaves out."""
    if 0.0 not in rates or n_targets > 1:
        return ""
    return (
        f" At {nice_percent(0)} FPR the highest non-member is the threshold; the interval takes it as given, so it is "
        "too short for another draw of non-members."
    )


def _rate_trace(
    attacks: Sequence[str], rate: float, rows: Sequence[Row], number: int, n_rates: int, low: float
) -> Spec:
    """One dot an attack; those of different rates a little apart, the first attack on top."""
    colour, _, symbol = series(number)
    at = [len(attacks) - 1 - row[0] + 0.17 * ((n_rates - 1) / 2 - number) for row in rows]
    tpr, bottom, top = (np.maximum([row[i] for row in rows], low) for i in (1, 2, 3))
    texts = [
        f"{attacks[k]}: {percent(found)} ({percent(least)} to {percent(most)}) at {nice_percent(rate)} FPR"
        for k, found, least, most in rows
    ]
    return points(
        f"at {nice_percent(rate)} FPR",
        tpr,
        at,
        colour,
        symbol,
        size=9,
        error_x=error_bars(tpr, bottom, top, colour),
        text=texts,
        hovertemplate="%{text}<extra></extra>",
    )


def _rates_of(content: Content, rate: float) -> list[Row]:
    """TPR of each attack at this rate, where the data resolve it."""
    key, rows = fpr_key(rate), []
    for number, name in enumerate(content.saved.attacks):
        if len(content.saved.targets) > 1:
            entry = content.metrics["attacks"][name]["tpr"][key]
            ends = entry.get("interval") or {"low": entry["mean"], "high": entry["mean"]}
            row = (number, entry["mean"], ends["low"], ends["high"])
        else:
            entry = content.entry(name)["tpr"][key]
            ends = entry.get("at_nominal") or entry
            row = (number, entry["tpr"], ends["low"], ends["high"])
        if entry["resolved"]:
            rows.append(row)
    return rows


def _said(content: Content, rate: float) -> str:
    number, tpr, low, high = max(_rates_of(content, rate), key=lambda row: row[1])
    return (
        f"At a false-positive rate of {nice_percent(rate)} the best is {content.saved.attacks[number]} with "
        f"{percent(tpr)} ({percent(low)} to {percent(high)})."
    )


def scores_figure(content: Content) -> Figure:
    """Histograms of the scores of members and of non-members."""
    score = content.scores.score[content.queries]
    edges = _edges(score)
    inside = np.clip(score, edges[0], edges[-1])
    width = float(edges[1] - edges[0])
    centres = (edges[1:] + edges[:-1]) / 2
    data, shares = [], []
    for name, mask, colour in (("non-members", ~content.members, "@orange"), ("members", content.members, "@blue")):
        share = np.histogram(inside[mask], edges)[0] / np.count_nonzero(mask)
        shares.append(share)
        hover = "%{y:.2%} of %{fullData.name}<extra></extra>"
        data.append(bars(name, centres, share, width, colour, hovertemplate=hover))
    cut = content.entry()["decisions"]["conformal"].get(fpr_key(content.level), {}).get("threshold")
    layout: Spec = {
        "xaxis": linear_axis(f"Score of {content.attack} (larger means member)", edges[0], edges[-1]).to_json(),
        "yaxis": linear_axis(
            "Share of the group in each bin", 0, 1.08 * float(np.max(shares)), scale=100, unit=" %"
        ).to_json(),
        "barmode": "overlay",
    }
    said = ""
    if cut is not None and edges[0] <= cut <= edges[-1]:
        layout["shapes"] = [rule("x", cut, "@ink", "dot")]
        said = f" The dotted line is the conformal threshold at a false-positive rate of {nice_percent(content.level)}."
    overlap = float(np.minimum(*shares).sum())
    return Figure(
        "scores",
        "Scores of members and of non-members",
        f"Histograms of the score that {content.attack} gives on target {content.target}; the outermost bins hold all "
        f"that lies beyond.{said} Healthy: the two histograms lie on each other, above all at the right end.",
        f"Two overlaid histograms of scores, one of members, one of non-members; they share {percent(overlap)} of "
        "their area.",
        data,
        layout,
    )


def _edges(score: FloatArray) -> FloatArray:
    # The left tail is often long and tells little; the right one is what exposes records.
    return np.linspace(*apart(*np.quantile(score, [0.02, 0.999])), SCORE_BINS + 1)


def classes_figure(content: Content) -> Figure | Absent:
    """Share of each class's members, and of its non-members, that the conformal rule flags."""
    title = "Which classes are exposed"
    if content.saved.labels is None:
        return Absent("classes", title, "The signals carry no labels: add `labels` to the file to see classes apart.")
    classes, counts = _class_counts(content, content.saved.labels)
    rate = counts[0, :, 0] / np.maximum(counts[0, :, 1], 1)
    order = np.lexsort((classes, -rate))[:MOST_CLASSES]
    names = [shortened(content.class_name(int(c))) for c in classes[order]]
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
        f"a false-positive rate of {nice_percent(content.level)} (dotted), with 95 % Clopper-Pearson intervals. "
        "Healthy: members no higher than non-members, and no class far from the others.",
        f"Dot plot of flagged shares by class. Most exposed is {names[0]} with {percent(float(rate[order[0]]))} of its "
        f"members flagged; over all classes it is {percent(overall)}.",
        data,
        {
            "xaxis": linear_axis("Share flagged", -SHORE * reach, 1.05 * reach, scale=100, unit=" %").to_json(),
            "yaxis": Axis("", -0.6, len(order) - 0.4, range(len(order)), names[::-1]).to_json(),
            "shapes": [rule("x", content.level, "@soft", "dot")],
            "hovermode": "closest",
        },
        max(280, 110 + 26 * len(order)),
    )


def _class_counts(content: Content, labels: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.integer], IntArray]:
    """Classes, and how many of each are flagged and how many there are: [members or not, classes, 2]."""
    flagged = content.scores.log10_p_conformal[content.queries] <= math.log10(content.level)
    classes, label = np.unique(labels[content.queries], return_inverse=True)
    counts = [
        [np.bincount(label[kind & chosen], minlength=len(classes)) for chosen in (flagged, np.ones_like(flagged))]
        for kind in (content.members, ~content.members)
    ]
    return classes, np.moveaxis(np.array(counts), 1, 2)


def _class_trace(kind: str, counts: IntArray, names: Sequence[str], colour: str, symbol: str, shift: float) -> Spec:
    low, high = clopper_pearson(counts[:, 0], counts[:, 1])
    rate = counts[:, 0] / np.maximum(counts[:, 1], 1)
    texts = [
        f"{name}: {k:,} of {n:,} {kind} flagged ({percent(a)} to {percent(b)})"
        for name, (k, n), a, b in zip(names, counts.tolist(), low.tolist(), high.tolist(), strict=True)
    ]
    there = counts[:, 1] > 0
    at = len(names) - 1 - np.arange(len(names)) + shift
    return points(
        kind,
        rate[there],
        at[there],
        colour,
        symbol,
        error_x=error_bars(rate[there], low[there], high[there], colour),
        text=[t for t, yes in zip(texts, there, strict=True) if yes],
        hovertemplate="%{text}<extra></extra>",
    )
