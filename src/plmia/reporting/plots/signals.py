"""Figures of "Signals of single records": IN and OUT signals with fitted Gaussians and their Shapiro-Wilk test."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from plmia.data.arrays import FloatArray, IntArray
from plmia.evaluation.diagnostics.gaussianity import MAX_SIZE, MIN_SIZE, shapiro_wilk
from plmia.reporting.content import Content
from plmia.reporting.plots import figure as fig
from plmia.reporting.plots.figure import Absent, Figure, Spec
from plmia.signals.signals import Signals

TITLE = "Signals of single records"
MOST_EXPOSED, BINS, CURVE_POINTS = 3, 16, 60
# A curve narrower than this share of the figure's width is less than a pixel wide and would only stretch the axis.
THINNEST = 1e-3
QUARTILES = (0.25, 0.5, 0.75)


def record_figures(content: Content) -> list[Figure | Absent]:
    """One figure for each of the most exposed records, and for some others (`fig:per_example_gaussian`)."""
    signals = content.signals
    if signals is None:
        return [Absent("record-1", TITLE, content.without_signals)]
    own = int(signals.rows([content.target])[0])
    places = chosen_places(len(content.table))
    return [_record_figure(content, signals, own, number, place) for number, place in enumerate(places, start=1)]


def chosen_places(n: int) -> list[int]:
    """Places in a table of ``n`` records: the first few, and those at the quartiles."""
    places = [*range(min(MOST_EXPOSED, n)), *(int(share * (n - 1)) for share in QUARTILES)]
    return list(dict.fromkeys(places))


def _references(signals: Signals, own: int) -> IntArray:
    """Rows of all models except the target (row ``own``) and models trained on its set or the complement."""
    matrix = signals.design.matrix
    differ = (matrix != matrix[own]).sum(axis=1)
    return np.flatnonzero((differ > 0) & (differ < matrix.shape[1]))


def _record_figure(content: Content, signals: Signals, own: int, number: int, place: int) -> Figure:
    table, references = content.table, _references(signals, own)
    point, rank = int(table.index[place]), int(table.rank[place])
    values = signals.values[references, point, 0].astype(np.float64)
    inside = signals.design.matrix[references, point]
    target = float(signals.values[own, point, 0])
    name = "" if table.label is None else f", {fig.shortened(content.class_name(int(table.label[place])))}"
    low, high = fig.apart(min(values.min(), target), max(values.max(), target))
    edges, reach = np.linspace(low, high, BINS + 1), (low - 0.06 * (high - low), high + 0.06 * (high - low))
    data = [*_traces("OUT", values[~inside], edges, reach), *_traces("IN", values[inside], edges, reach)]
    tests = [_test("OUT", values[~inside]), _test("IN", values[inside])]
    tallest = max((y for trace in data for y in trace["y"] if y is not None), default=1.0)
    # The annotation stands on the side opposite to the dotted line.
    corner, anchor = (0.01, "left") if target - reach[0] > 0.5 * (reach[1] - reach[0]) else (0.99, "right")
    why = "as one of the most exposed records" if place < MOST_EXPOSED else "for comparison"
    return Figure(
        f"record-{number}",
        f"Record {point}{name}: rank {rank:,} of {len(table):,}",
        f"Shown {why}. The dotted line is the signal of the target model. Healthy: IN and OUT overlap, so the "
        "signal does not reveal membership, and the curves fit the bars.",
        f"Histograms of IN and OUT signals of record {point}. {' '.join(tests)} The target's signal is {target:.3g}.",
        data,
        fig.one_panel(
            fig.linear_axis("Logit-scaled confidence, first view", *reach),
            fig.linear_axis("Density", 0, 1.35 * tallest, about=4),
            barmode="overlay",
            shapes=[fig.vertical_line(target, "@ink")],
            annotations=[fig.annotation("\n".join(reversed(tests)), corner, 0.99, anchor=anchor)],
        ),
        320,
    )


def _traces(kind: str, values: FloatArray, edges: FloatArray, reach: tuple[float, float]) -> Iterator[Spec]:
    colour = "@blue" if kind == "IN" else "@orange"
    width = float(edges[1] - edges[0])
    density = np.histogram(values, edges)[0] / (max(1, len(values)) * width)
    centres = (edges[1:] + edges[:-1]) / 2
    hover = "density %{y:.2f}, %{fullData.name}<extra></extra>"
    yield fig.bars(f"{kind} ({len(values)})", centres, density, width, colour, legendgroup=kind, hovertemplate=hover)
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    if spread > THINNEST * (reach[1] - reach[0]):
        x = np.linspace(*reach, CURVE_POINTS)
        y = np.exp(-(((x - values.mean()) / spread) ** 2) / 2) / (spread * math.sqrt(2 * math.pi))
        yield fig.line(f"{kind}, Gaussian", x, y, colour, legendgroup=kind, showlegend=False, hoverinfo="skip")


def _test(kind: str, values: FloatArray) -> str:
    if not MIN_SIZE <= len(values) <= MAX_SIZE or not np.ptp(values) > 0:
        return f"{kind}: not tested ({len(values)} signals)"
    w, p = (float(part[0]) for part in shapiro_wilk(np.sort(values)[:, None]))
    return f"{kind}: W = {w:.3f}, p = {p:.2g}"
