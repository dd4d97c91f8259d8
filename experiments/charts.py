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
    annotation,
    band,
    bars,
    line,
    linear_axis,
    log_percent_axis,
    panel,
    panel_ref,
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


@dataclass(frozen=True)
class HeatCell:
    """One number of a heat map, marked by an entry of the legend or not at all."""

    row: str
    column: str
    value: float
    mark: str = ""


# Marks of cells in the order of the legend, and the value from which a cell has its full colour.
CELL_MARKS = (("@vermilion", "triangle-down", False), ("@ink", "circle", True))
FULL_COLOUR, CELL_HEIGHT = 10.0, 24
# Around a cell as a share of its size, and between panels as a share of the figure.
CELL_GAP, PANEL_GAP = 0.03, 0.03


def heat_map(
    item: str,
    panels: Mapping[str, Sequence[HeatCell]],
    columns: Sequence[str],
    marks: Sequence[str],
    alt: str,
    title: str,
) -> Figure:
    """Draw numbers in coloured cells, one panel per title, all with the same rows: blue above 0, vermilion below."""
    rows = list(dict.fromkeys(cell.row for cells in panels.values() for cell in cells))[::-1]
    widest = max(text_width(row, SMALL) for row in rows)
    width = (1 - PANEL_GAP * (len(panels) - 1)) / len(panels)
    data: list[Spec] = []
    layout: Spec = {"annotations": []}
    for i, (name, cells) in enumerate(panels.items()):
        ref = panel_ref(i)
        start = i * (width + PANEL_GAP)
        domain = (start, start + width) if not i else (_place(start, widest), _place(start + width, widest))
        middles = [k + 0.5 for k in range(len(columns))]
        x = Axis(name, 0, len(columns), middles, columns, domain=domain)
        y = Axis("", 0, len(rows), [k + 0.5 for k in range(len(rows))], ["" if i else row for row in rows])
        layout |= panel(i, x, y)
        where: Spec = {"xaxis": f"x{ref}", "yaxis": f"y{ref}"}
        # Hides the grid.
        data.append(_area((0, len(columns)), (0, len(rows)), "@paper/1", where))
        marked: dict[str, list[tuple[float, float]]] = {mark: [] for mark in marks}
        for cell in cells:
            left, low = columns.index(cell.column), rows.index(cell.row)
            box = [(end + CELL_GAP, end + 1 - CELL_GAP) for end in (left, low)]
            data.append(_area(*box, _shade(cell), where))
            place = (left + 0.4) / len(columns), (low + 0.5 + 10 / CELL_HEIGHT) / len(rows)
            number = f"{round(cell.value, 1) + 0.0:.1f}".replace("-", "−")
            layout["annotations"].append(annotation(number, *place, ref=ref, anchor="center"))
            if cell.mark:
                marked[cell.mark].append((left + 0.87, low + 0.5))
        for (mark, places), (colour, symbol, hollow) in zip(marked.items(), CELL_MARKS, strict=True):
            xs, ys = [x for x, _ in places], [y for _, y in places]
            data.append(points(mark, xs, ys, colour, symbol, size=7, hollow=hollow, showlegend=not i, **where))
    return Figure(item, title, alt, alt, data, layout, 66 + CELL_HEIGHT * len(rows))


def _area(across: tuple[float, float], up: tuple[float, float], fill: str, where: Spec) -> Spec:
    """Rectangle of one colour."""
    return band("", across, [up[0]] * 2, [up[1]] * 2, "@paper", **where) | {"fillcolor": fill}


def _shade(cell: HeatCell) -> str:
    """Colour of a cell, stronger for a larger number."""
    strength = math.sqrt(min(1.0, abs(cell.value) / FULL_COLOUR))
    return f"{'@blue' if cell.value > 0 else '@vermilion'}/{0.05 + 0.5 * strength:.2f}"


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
