"""Figures of "Who is exposed": scores of members and non-members, and exposure by class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from plmia.data.arrays import FloatArray, IntArray, Labels
from plmia.errors import percent, round_percent
from plmia.evaluation.metrics import clopper_pearson
from plmia.reporting.content import Content
from plmia.reporting.plots import figure as fig
from plmia.reporting.plots.figure import Absent, Figure, Spec

SCORE_BINS = 60
MAX_CLASSES = 25
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
            fig.percent_axis("Share of the group in each bin", 0, 1.08 * tallest),
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
    if content.saved.labels is None:
        return Absent("classes", title, "The signals carry no labels. Add `labels` to the file to compare classes.")
    classes, counts = _class_counts(content, content.saved.labels)
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
        f"a false-positive rate of {round_percent(content.level)} (dotted), with 95 % Clopper-Pearson intervals. "
        "Healthy: members are not flagged more often than non-members, and the classes are similar.",
        f"Dot plot of flagged shares by class. The most exposed class is {names[0]}: "
        f"{percent(float(rate[order[0]]))} of its members are flagged. Over all classes it is {percent(overall)}.",
        data,
        fig.one_panel(
            fig.percent_axis("Share flagged", -LEFT_ROOM * reach, 1.05 * reach),
            fig.Axis("", -0.6, len(order) - 0.4, range(len(order)), names[::-1]),
            shapes=[fig.vertical_line(content.level, "@soft")],
        ),
        max(280, 110 + 26 * len(order)),
    )


def _class_counts(content: Content, labels: Labels) -> tuple[Labels, IntArray]:
    """Classes, and the numbers of flagged and of all records of each [members or not, classes, 2]."""
    flagged = content.scores.log10_p_conformal[content.queries] <= math.log10(content.level)
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
