"""A figure as lines, areas and texts in pixels, laid out without a browser."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plmia.reporting.plots import Figure, Spec

WIDTH = 760
TEXT, SMALL = 13, 12
_DASHES = {"solid": (), "dash": (8, 5), "dot": (2, 4), "dashdot": (8, 4, 2, 4), "longdash": (14, 6)}
_SYMBOLS = {
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "diamond": ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    "triangle-up": ((0, -1.15), (1.1, 0.85), (-1.1, 0.85)),
    "triangle-down": ((0, 1.15), (1.1, -0.85), (-1.1, -0.85)),
    "x": (
        *((-1.0, -0.45), (-0.45, -1.0), (0, -0.5), (0.45, -1.0), (1.0, -0.45), (0.5, 0)),
        *((1.0, 0.45), (0.45, 1.0), (0, 0.5), (-0.45, 1.0), (-1.0, 0.45), (-0.5, 0)),
    ),
}

Place = tuple[float, float]
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Stroke:
    """A line through places in pixels, y downwards; clipped to a box if there is one."""

    places: tuple[Place, ...]
    colour: str
    width: float
    dash: tuple[int, ...] = ()
    box: Box | None = None


@dataclass(frozen=True)
class Area:
    """A filled polygon, or only its outline."""

    places: tuple[Place, ...]
    colour: str
    opacity: float = 1.0
    hollow: bool = False
    box: Box | None = None


@dataclass(frozen=True)
class Text:
    """A line of text; its base line starts, is centred or ends at the place; a quarter turn to the left if upright."""

    place: Place
    text: str
    size: int = TEXT
    anchor: str = "start"
    upright: bool = False
    colour: str = "@ink"


Mark = Stroke | Area | Text


@dataclass(frozen=True)
class Scene:
    """What to draw, back to front, on paper of this size."""

    width: int
    height: int
    marks: tuple[Mark, ...]


def width_of(text: str, size: int = TEXT) -> float:
    """About how wide a text is."""
    return sum(0.32 if c in "il.,:;|!'() " else 0.85 if c in "mwMW%" else 0.58 for c in text) * size


@dataclass(frozen=True)
class Panel:
    """One pair of axes and the box in which they are drawn."""

    x: Spec
    y: Spec
    box: Box

    def place(self, x: float | None, y: float | None) -> Place | None:
        """Pixels of a point of the data; None where it has none."""
        across, up = _share(self.x, x), _share(self.y, y)
        if across is None or up is None:
            return None
        left, top, right, bottom = self.box
        return left + across * (right - left), bottom - up * (bottom - top)


def _share(axis: Spec, value: float | None) -> float | None:
    if value is None or (axis["type"] == "log" and value <= 0):
        return None
    low, high = (float(end) for end in axis["range"])
    return ((math.log10(value) if axis["type"] == "log" else value) - low) / (high - low)


def lay_out(figure: Figure, width: int = WIDTH) -> Scene:
    """Lay out a figure, its legend below it."""
    shown = [trace for trace in figure.data if trace.get("visible") is not False]
    entries = _legend_entries(shown)
    rows = _legend_rows(entries, width)
    height = figure.height + 20 * len(rows)
    panels = _panels(figure, width)
    marks: list[Mark] = []
    for ref, panel in panels.items():
        marks += _axes(panel)
        marks += _rules(panel, figure.layout.get("shapes", []), ref)
        for trace in shown:
            if trace.get("xaxis", "x") == f"x{ref}":
                marks += _trace_marks(panel, trace)
        marks += _notes(panel, figure.layout.get("annotations", []), ref)
    marks += _legend(rows, figure.height)
    return Scene(width, height, tuple(marks))


def _panels(figure: Figure, width: int) -> dict[str, Panel]:
    layout = figure.layout
    refs = [key.removeprefix("xaxis") for key in layout if key.startswith("xaxis")]
    panels = {}
    for ref in refs:
        x, y = layout[f"xaxis{ref}"], layout[f"yaxis{ref}"]
        lines = max((label.count("<br>") for label in x["ticktext"]), default=0)
        labels = max((width_of(_plain(label), SMALL) for label in y["ticktext"]), default=0)
        margin = 16 + labels + (24 if y["title"]["text"] else 0)
        first, last = x.get("domain", (0, 1))
        # The first panel's margin is outside, the others' lie in the gap between the panels.
        left, right = max(margin, 40), width - 18
        box = (left + first * (right - left), 14.0, left + last * (right - left), figure.height - 52.0 - 13 * lines)
        panels[ref] = Panel(x, y, box)
    return panels


def _plain(text: str) -> str:
    return html.unescape(text)


def _axes(panel: Panel) -> Iterator[Mark]:
    left, top, right, bottom = panel.box
    for value, label in zip(panel.x["tickvals"], panel.x["ticktext"], strict=True):
        share = _share(panel.x, value)
        if share is not None and -1e-9 <= share <= 1 + 1e-9:
            at = left + share * (right - left)
            yield Stroke(((at, top), (at, bottom)), "@grid", 1)
            for k, part in enumerate(label.split("<br>")):
                yield Text((at, bottom + 18 + 14 * k), _plain(part), SMALL, "middle")
    for value, label in zip(panel.y["tickvals"], panel.y["ticktext"], strict=True):
        share = _share(panel.y, value)
        if share is not None and -1e-9 <= share <= 1 + 1e-9:
            at = bottom - share * (bottom - top)
            yield Stroke(((left, at), (right, at)), "@grid", 1)
            yield Text((left - 7, at + 4), _plain(label), SMALL, "end")
    yield Stroke(((left, top), (left, bottom), (right, bottom)), "@edge", 1.2)
    lines = max((label.count("<br>") for label in panel.x["ticktext"]), default=0)
    yield Text(((left + right) / 2, bottom + 40 + 13 * lines), _plain(panel.x["title"]["text"]), TEXT, "middle")
    if panel.y["title"]["text"]:
        labels = max((width_of(_plain(label), SMALL) for label in panel.y["ticktext"]), default=0)
        middle = (left - labels - 18, (top + bottom) / 2)
        yield Text(middle, _plain(panel.y["title"]["text"]), TEXT, "middle", upright=True)


def _rules(panel: Panel, shapes: Sequence[Spec], ref: str) -> Iterator[Mark]:
    left, top, right, bottom = panel.box
    for shape in shapes:
        colour, width, dash = (shape["line"][key] for key in ("color", "width", "dash"))
        if shape["xref"] == f"x{ref}":
            share = _share(panel.x, shape["x0"])
            if share is not None and 0 <= share <= 1:
                at = left + share * (right - left)
                yield Stroke(((at, top), (at, bottom)), colour, width, _DASHES[dash])
        elif shape["yref"] == f"y{ref}":
            share = _share(panel.y, shape["y0"])
            if share is not None and 0 <= share <= 1:
                at = bottom - share * (bottom - top)
                yield Stroke(((left, at), (right, at)), colour, width, _DASHES[dash])


def _notes(panel: Panel, notes: Sequence[Spec], ref: str) -> Iterator[Mark]:
    left, top, right, bottom = panel.box
    for note in notes:
        if note["xref"] == f"x{ref} domain":
            x, y = left + note["x"] * (right - left), bottom - note["y"] * (bottom - top)
            anchor = {"left": "start", "center": "middle", "right": "end"}[note["xanchor"]]
            for k, text in enumerate(note["text"].split("<br>")):
                yield Text((x, y + 14 + 16 * k), _plain(text), SMALL, anchor)


def _trace_marks(panel: Panel, trace: Spec) -> Iterator[Mark]:
    if trace["type"] == "bar":
        yield from _bar_marks(panel, trace)
        return
    places = [panel.place(x, y) for x, y in zip(trace["x"], trace["y"], strict=True)]
    if trace.get("fill") == "toself":
        colour, _, opacity = trace["fillcolor"].partition("/")
        corners = tuple(p for p in places if p)
        if corners:
            yield Area(corners, colour, float(opacity), box=panel.box)
        return
    yield from _error_marks(panel, trace)
    if "lines" in trace["mode"]:
        style = trace["line"]
        for run in _runs(places, style.get("shape") == "hv"):
            yield Stroke(run, style["color"], style["width"], _DASHES[style["dash"]], panel.box)
    if "markers" in trace["mode"]:
        marker = trace["marker"]
        for place in places:
            if place:
                yield marker_at(place, marker)


def marker_at(place: Place, marker: Mapping[str, Any]) -> Mark:
    """A marker; a circle is a polygon of many corners."""
    symbol, radius = marker["symbol"], marker["size"] / 2
    hollow = symbol.endswith("-open")
    corners = _SYMBOLS.get(symbol.removesuffix("-open")) or tuple(
        (math.cos(math.tau * k / 20), math.sin(math.tau * k / 20)) for k in range(20)
    )
    at = tuple((place[0] + radius * x, place[1] + radius * y) for x, y in corners)
    return Area(at, marker["color"], hollow=hollow)


def _runs(places: Sequence[Place | None], steps: bool) -> Iterator[tuple[Place, ...]]:
    """Unbroken stretches of a line; as steps, each level holds until the next point."""
    run: list[Place] = []
    for place in [*places, None]:
        if place is None:
            if len(run) > 1:
                yield tuple(run)
            run = []
        else:
            if steps and run:
                run.append((place[0], run[-1][1]))
            run.append(place)


def _bar_marks(panel: Panel, trace: Spec) -> Iterator[Mark]:
    half = trace["width"] / 2
    for x, y in zip(trace["x"], trace["y"], strict=True):
        corners = [panel.place(x + dx, dy) for dx, dy in ((-half, 0), (-half, y), (half, y), (half, 0))]
        if y and None not in corners:
            marker = trace["marker"]
            yield Area(tuple(c for c in corners if c), marker["color"], marker["opacity"], box=panel.box)


def _error_marks(panel: Panel, trace: Spec) -> Iterator[Mark]:
    for key, dx, dy in (("error_x", 1, 0), ("error_y", 0, 1)):
        bars = trace.get(key)
        if not bars:
            continue
        for x, y, above, below in zip(trace["x"], trace["y"], bars["array"], bars["arrayminus"], strict=True):
            if x is None or y is None:
                continue
            ends = panel.place(x - dx * below, y - dy * below), panel.place(x + dx * above, y + dy * above)
            if ends[0] and ends[1]:
                yield Stroke((ends[0], ends[1]), bars["color"], bars["thickness"], box=panel.box)


def _legend_entries(traces: Sequence[Spec]) -> list[Spec]:
    entries = [trace for trace in traces if trace.get("showlegend", True)]
    return entries if len(entries) > 1 else []


def _legend_rows(entries: Sequence[Spec], width: int) -> list[list[tuple[float, Spec]]]:
    rows: list[list[tuple[float, Spec]]] = []
    at = math.inf
    for entry in entries:
        size = 44 + width_of(_plain(entry["name"]), SMALL)
        if at + size > width - 10:
            rows.append([])
            at = 24.0
        rows[-1].append((at, entry))
        at += size
    return rows


def _legend(rows: Sequence[Sequence[tuple[float, Spec]]], top: int) -> Iterator[Mark]:
    for number, row in enumerate(rows):
        y = top + 8.0 + 20 * number
        for x, entry in row:
            if entry["type"] == "bar":
                corners = ((x, y - 5), (x + 20, y - 5), (x + 20, y + 5), (x, y + 5))
                yield Area(corners, entry["marker"]["color"], entry["marker"]["opacity"])
            elif "lines" in entry["mode"]:
                style = entry["line"]
                yield Stroke(((x, y), (x + 24, y)), style["color"], style["width"], _DASHES[style["dash"]])
            else:
                yield marker_at((x + 12, y), entry["marker"])
            yield Text((x + 30, y + 4), _plain(entry["name"]), SMALL)
