"""Figures of the experiments, drawn by the package's own SVG writer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plmia.reporting.drawing import (
    SMALL,
    WIDTH,
    Axis,
    Figure,
    Spec,
    bars,
    line,
    linear_axis,
    log_percent_axis,
    points,
    series,
    text_width,
)

from .outcome import Keys, Rows, Value, beside, paper_item, paper_rows

# Values that are None are left out; the package's SVG writer accepts them, although its types do not say so.
Series = Mapping[str, tuple[Sequence[float], Sequence[Any]]]
# The margins that `plmia.reporting.drawing` leaves around a panel, in pixels.
MARGIN, LEAST_MARGIN, RIGHT_MARGIN = 16, 40, 18
# An attack has the same colour in every figure.
ORDER = ("lira-fixed", "lira", "rmia", "pl-mia", "pl-mia-pooled", "pl-mia-eb", "pl-mia-plus")


@dataclass(frozen=True)
class Chart:
    """One pair of axes with lines."""

    x: Axis
    y: Axis
    lines: Series
    diagonal: bool = False


def steps_axis(title: str, values: Sequence[float]) -> Axis:
    """Logarithmic axis with a tick at each positive value, and a label where it does not overlap the next one."""
    low, high = min(values), max(values)
    room = (high / low) ** 0.06 if high > low else 1.5
    shown: list[float] = []
    for value in sorted(values, reverse=True):
        if not shown or shown[-1] / value > room:
            shown.append(value)
    labels = [f"{value:g}" if value in shown else "" for value in values]
    return Axis(title, low / room, high * room, list(values), labels, log=True)


def value_axis(title: str, lines: Series) -> Axis:
    """Linear axis in percent around the values of some lines, starting at 0 if they are near it."""
    values = [y for _, ys in lines.values() for y in ys if y is not None] or [0.0, 1.0]
    low, high = min(values), max(values)
    low = 0.0 if low < 0.5 * high else low
    room = 0.06 * (high - low) or 1.0
    return linear_axis(title, low - room * (low > 0), high + room)


def figure(item: str, charts: Sequence[Chart], alt: str, height: int = 360, title: str | None = None) -> Figure:
    """Draw charts side by side, with one legend; the title is that of the paper's item by default."""
    drawn = dict.fromkeys(name for chart in charts for name in chart.lines)
    names = [*ORDER, *(name for name in drawn if name not in ORDER)] if set(ORDER) & set(drawn) else list(drawn)
    width = (1 - 0.09 * (len(charts) - 1)) / len(charts)
    data: list[Spec] = []
    layout: Spec = {}
    for i, chart in enumerate(charts):
        ref = str(i + 1) if i else ""
        left = i * (width + 0.09)
        layout[f"xaxis{ref}"] = replace(chart.x, domain=(left, left + width)).to_json(f"y{ref}")
        again = i > 0 and chart.y.title == charts[0].y.title
        layout[f"yaxis{ref}"] = (replace(chart.y, title="") if again else chart.y).to_json(f"x{ref}")
        places: Spec = {"xaxis": f"x{ref}", "yaxis": f"y{ref}"}
        if chart.diagonal:
            ends = [chart.x.low, chart.x.high]
            data.append(line("nominal", ends, ends, "@soft", dash="dash", width=1.5, showlegend=not i, **places))
        for name, (xs, ys) in chart.lines.items():
            colour, dash, symbol = series(names.index(name))
            first = not any(trace["name"] == name for trace in data)
            data.append(line(name, xs, ys, colour, dash=dash, showlegend=first, **places))
            if len(xs) <= 20:
                data.append(points(name, xs, ys, colour, symbol, size=7, showlegend=False, **places))
    return Figure(item, title or paper_item(item)["title"], alt, alt, data, layout, height)


def roc_chart(title: str, rates: Sequence[float], lines: Mapping[str, Sequence[float]]) -> Chart:
    """Chart of ROC curves on logarithmic axes."""
    low = min(rates)
    curves = {name: (list(rates), [y if y >= low else None for y in tpr]) for name, tpr in lines.items()}
    least = min((y for _, ys in curves.values() for y in ys if y is not None), default=low)
    floor = 10.0 ** math.floor(math.log10(least))
    return Chart(log_percent_axis(f"FPR, {title}", low), log_percent_axis("TPR", min(floor, 0.1)), curves)


def dots(item: str, ours: Rows, metrics: Sequence[str], on: str | None = None) -> Figure:
    """Our numbers (filled) and the paper's (hollow), one line per row of the table, one panel per metric.

    ``on`` names the data set of tables whose rows do not name it.
    """
    theirs, titles = paper_rows(item, on), paper_item(item)["keys"]
    shown = [keys for keys in ours if any(isinstance(ours[keys].get(m), Value) for m in metrics)]
    places = list(range(len(shown), 0, -1))
    data: list[Spec] = []
    layout: Spec = {}
    width = (1 - 0.09 * (len(metrics) - 1)) / len(metrics)
    for i, metric in enumerate(metrics):
        ref, left = str(i + 1) if i else "", i * (width + 0.09)
        mine: list[Any] = [getattr(ours[keys].get(metric), "mean", None) for keys in shown]
        paper: list[Any] = [_first(theirs.get(beside(keys), {}).get(metric)) for keys in shown]
        x = value_axis(f"{metric} (%)", {"": ([], [*mine, *paper])})
        labels = [_label(keys, titles) if not i else "" for keys in shown]
        widest = max((text_width(_label(keys, titles), SMALL) for keys in shown), default=0)
        domain = (left, left + width) if not i else (_place(left, widest), _place(left + width, widest))
        y = Axis("", 0.3, len(shown) + 0.7, places, labels)
        layout[f"xaxis{ref}"] = replace(x, domain=domain).to_json(f"y{ref}")
        layout[f"yaxis{ref}"] = y.to_json(f"x{ref}")
        where = {"xaxis": f"x{ref}", "yaxis": f"y{ref}", "showlegend": not i}
        data.append(points("ours", mine, places, "@blue", "circle", size=9, **where))
        if any(value is not None for value in paper):
            data.append(points("paper", paper, places, "@vermilion", "square", size=9, hollow=True, **where))
    whose = "ours and the paper's" if theirs else "ours"
    alt = f"{paper_item(item)['title']}: {', '.join(metrics)} of each row of the table, {whose}."
    return Figure(item, paper_item(item)["title"], alt, alt, data, layout, 90 + 22 * len(shown))


def _label(keys: Keys, titles: Sequence[str]) -> str:
    """Label of a row: numbers with their names."""
    return " ".join(f"{title} {key}" if key.isdigit() else key for title, key in zip(titles, keys, strict=True))


def _place(share: float, labels: float) -> float:
    """Position of a panel without labels, whose margin is narrower than that of the panel with labels."""
    margin, right = max(MARGIN + labels, LEAST_MARGIN), WIDTH - RIGHT_MARGIN
    return (margin + share * (right - margin) - LEAST_MARGIN) / (right - LEAST_MARGIN)


def _first(cell: object) -> float | None:
    if isinstance(cell, list):
        cell = cell[0]
    return float(cell) if isinstance(cell, int | float) else None


def histogram(item: str, edges: Sequence[float], counts: Mapping[str, Sequence[float]], title: str, alt: str) -> Figure:
    """Densities as bars."""
    width = edges[1] - edges[0]
    middles = [edge + width / 2 for edge in edges[:-1]]
    top = 1.05 * max(max(heights) for heights in counts.values())
    data = [bars(name, middles, heights, width, series(i)[0]) for i, (name, heights) in enumerate(counts.items())]
    data.append(line("uniform", [edges[0], edges[-1]], [1.0, 1.0], "@ink", dash="dash", width=1.5))
    layout = {
        "xaxis": linear_axis(title, edges[0], edges[-1]).to_json(),
        "yaxis": linear_axis("density", 0.0, top).to_json(),
    }
    return Figure(item, paper_item(item)["title"], alt, alt, data, layout, 360)


def density(mean: float, deviation: float, grid: Sequence[float]) -> list[float]:
    """Gaussian density on a grid."""
    scale = deviation * math.sqrt(2 * math.pi)
    return [math.exp(-0.5 * ((x - mean) / deviation) ** 2) / scale for x in grid]
