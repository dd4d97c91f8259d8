"""Figures of single records: histograms of their IN and OUT signals with the fitted Gaussians and their test."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from plmia.attacks.moments import FloatArray, IntArray
from plmia.evaluation.diagnostics.gaussianity import LEAST, MOST, shapiro_wilk
from plmia.reporting.content import Content
from plmia.reporting.plots import Absent, Figure, Spec, apart, bars, line, linear_axis, note, rule, shortened
from plmia.signals.signals import Signals

TITLE = "Signals of single records"
TOP, BINS, CURVE_POINTS = 3, 16, 60
# A curve that is narrower than this share of the figure's width is less than a pixel wide and would only stretch it.
THINNEST = 1e-3
QUARTILES = (0.25, 0.5, 0.75)


def record_figures(content: Content) -> list[Figure | Absent]:
    """One figure for each of the most exposed records and of some others (`fig:per_example_gaussian`)."""
    signals = content.signals
    if signals is None:
        return [Absent("record-1", TITLE, content.without_signals)]
    own = int(signals.rows([content.target])[0])
    references = _references(signals, own)
    return [
        _figure(content, signals, own, references, number, place)
        for number, place in enumerate(chosen_places(len(content.table)), start=1)
    ]


def chosen_places(n: int) -> list[int]:
    """Places in a table of ``n`` records: the first few, and those at a quarter, a half and three quarters."""
    places = [*range(min(TOP, n)), *(int(share * (n - 1)) for share in QUARTILES)]
    return list(dict.fromkeys(places))


def _references(signals: Signals, own: int) -> IntArray:
    """Rows of all models but the target (row ``own``) and those that trained on its set or the complement."""
    matrix = signals.design.matrix
    differ = (matrix != matrix[own]).sum(axis=1)
    return np.flatnonzero((differ > 0) & (differ < matrix.shape[1]))


def _figure(content: Content, signals: Signals, own: int, references: IntArray, number: int, place: int) -> Figure:
    point, rank = int(content.table.index[place]), int(content.table.rank[place])
    values = signals.values[references, point, 0].astype(np.float64)
    inside = signals.design.matrix[references, point]
    target = float(signals.values[own, point, 0])
    label = content.table.label
    name = "" if label is None else f", {shortened(content.class_name(int(label[place])))}"
    edges, reach = _edges(np.append(values, target))
    data: list[Spec] = []
    tests = []
    for kind, mask, colour in (("OUT", ~inside, "@orange"), ("IN", inside, "@blue")):
        data += _side(kind, values[mask], edges, reach, colour)
        tests.append(_tested(kind, values[mask]))
    tallest = max((y for trace in data for y in trace["y"] if y is not None), default=1.0)
    where = "as one of the most exposed" if place < TOP else "for comparison"
    return Figure(
        f"record-{number}",
        f"Record {point}{name}: rank {rank:,} of {len(content.table):,}",
        f"Shown {where}; the dotted line is the target's own signal. Healthy: IN and OUT overlap, so that it tells "
        "nothing, and the curves fit the bars.",
        f"Histograms of IN and OUT signals of record {point}. {' '.join(tests)} The target's signal is {target:.3g}.",
        data,
        {
            "xaxis": linear_axis("Logit-scaled confidence, first view", *reach).to_json(),
            "yaxis": linear_axis("Density", 0, 1.35 * tallest, about=4).to_json(),
            "barmode": "overlay",
            "shapes": [rule("x", target, "@ink", "dot")],
            "annotations": [_note("\n".join(reversed(tests)), (target - reach[0]) / (reach[1] - reach[0]))],
        },
        320,
    )


def _note(text: str, line_at: float) -> Spec:
    """A note on the side where the dotted line is not."""
    return note(text, 0.01, 0.99) if line_at > 0.5 else note(text, 0.99, 0.99, anchor="right")


def _edges(values: FloatArray) -> tuple[FloatArray, tuple[float, float]]:
    low, high = apart(values.min(), values.max())
    gap = 0.06 * (high - low)
    return np.linspace(low, high, BINS + 1), (low - gap, high + gap)


def _side(kind: str, values: FloatArray, edges: FloatArray, reach: tuple[float, float], colour: str) -> Iterator[Spec]:
    width = float(edges[1] - edges[0])
    density = np.histogram(values, edges)[0] / (max(1, len(values)) * width)
    centres = (edges[1:] + edges[:-1]) / 2
    hover = "density %{y:.2f}, %{fullData.name}<extra></extra>"
    yield bars(f"{kind} ({len(values)})", centres, density, width, colour, legendgroup=kind, hovertemplate=hover)
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    if spread > THINNEST * (reach[1] - reach[0]):
        x = np.linspace(*reach, CURVE_POINTS)
        y = np.exp(-(((x - values.mean()) / spread) ** 2) / 2) / (spread * math.sqrt(2 * math.pi))
        yield line(f"{kind}, Gaussian", x, y, colour, legendgroup=kind, showlegend=False, hoverinfo="skip")


def _tested(kind: str, values: FloatArray) -> str:
    if not LEAST <= len(values) <= MOST or not np.ptp(values) > 0:
        return f"{kind}: not tested ({len(values)} signals)"
    w, p = (float(part[0]) for part in shapiro_wilk(np.sort(values)[:, None]))
    return f"{kind}: W = {w:.3f}, p = {p:.2g}"
