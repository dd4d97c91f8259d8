"""Draw a figure as SVG without a browser: for the files, for print, and for readers without JavaScript."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from plmia.reporting.plots.colours import LIGHT, in_theme
from plmia.reporting.plots.figure import Figure, Spec, writable

WIDTH = 760
TEXT, SMALL = 13, 12
FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
_LIGHT = in_theme(LIGHT)
_DASHES = {"solid": "", "dash": "8,5", "dot": "2,4", "dashdot": "8,4,2,4", "longdash": "14,6"}
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
# A circle is a polygon with many corners.
_CIRCLE = tuple((math.cos(math.tau * k / 20), math.sin(math.tau * k / 20)) for k in range(20))

Place = tuple[float, float]
Box = tuple[float, float, float, float]
Colours = Callable[[str], str]
"""From the name of a colour to CSS."""


@dataclass(frozen=True)
class Stroke:
    """A line through places in pixels, y downwards; clipped to the box, if any."""

    places: tuple[Place, ...]
    colour: str
    width: float
    dash: str = "solid"
    box: Box | None = None

    def element(self, colours: Colours, clip: str) -> str:
        """Return the SVG element."""
        dash = f' stroke-dasharray="{_DASHES[self.dash]}"' if _DASHES[self.dash] else ""
        return (
            f'<polyline points="{_points(self.places)}" fill="none" stroke="{colours(self.colour)}" '
            f'stroke-width="{self.width:g}" stroke-linejoin="round"{dash}{clip}/>'
        )


@dataclass(frozen=True)
class Area:
    """A filled polygon, or only its outline."""

    places: tuple[Place, ...]
    colour: str
    opacity: float = 1.0
    hollow: bool = False
    box: Box | None = None

    def element(self, colours: Colours, clip: str) -> str:
        """Return the SVG element."""
        paint = f'fill="{colours(self.colour)}"'
        if self.hollow:
            paint = f'fill="none" stroke="{colours(self.colour)}" stroke-width="2"'
        elif self.opacity < 1:
            paint += f' fill-opacity="{self.opacity:g}"'
        return f'<polygon points="{_points(self.places)}" {paint}{clip}/>'


@dataclass(frozen=True)
class Text:
    """A line of text whose baseline starts, is centred or ends at the place; rotated to the left if upright."""

    place: Place
    text: str
    size: int = SMALL
    anchor: str = "start"
    upright: bool = False
    box: Box | None = None

    def element(self, colours: Colours, clip: str) -> str:
        """Return the SVG element."""
        x, y = self.place
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if self.upright else ""
        return (
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{self.size}" text-anchor="{self.anchor}" '
            f'fill="{colours("@ink")}"{turn}{clip}>{html.escape(self.text)}</text>'
        )


Mark = Stroke | Area | Text


@dataclass(frozen=True)
class Scene:
    """Marks from back to front, and the size of the picture."""

    width: int
    height: int
    marks: tuple[Mark, ...]


def svg(figure: Figure, colours: Colours = _LIGHT, *, paper: bool = True) -> str:
    """Return a figure as SVG, on a filled background if ``paper``."""
    scene = lay_out(figure)
    # Marks that share a box share its clip path; names are unique in a page with many figures.
    boxes = dict.fromkeys(mark.box for mark in scene.marks if mark.box)
    names = {box: f"clip-{figure.name}-{i}" for i, box in enumerate(boxes)}
    clips = "".join(f'<clipPath id="{name}"><rect {_rectangle(box)}/></clipPath>' for box, name in names.items())
    ground = f'<rect width="100%" height="100%" fill="{colours("@paper")}"/>' if paper else ""
    body = "".join(
        mark.element(colours, f' clip-path="url(#{names[mark.box]})"' if mark.box else "") for mark in scene.marks
    )
    return writable(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {scene.width} {scene.height}" role="img" '
        f'aria-label="{html.escape(figure.alt)}" font-family="{FONT}"><title>{html.escape(figure.title)}</title>'
        f"<defs>{clips}</defs>{ground}{body}</svg>"
    )


def _points(places: Sequence[Place]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _rectangle(box: Box) -> str:
    left, top, right, bottom = box
    return f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"'


def text_width(text: str, size: int = TEXT) -> float:
    """Estimate the width of a text in pixels."""
    return sum(0.32 if c in "il.,:;|!'() " else 0.85 if c in "mwMW%" else 0.58 for c in text) * size


@dataclass(frozen=True)
class Panel:
    """One pair of axes and the box in which they are drawn."""

    x: Spec
    y: Spec
    box: Box

    def place(self, x: float | None, y: float | None) -> Place | None:
        """Pixels of a point of the data; None if it has no place on an axis."""
        across, up = _share(self.x, x), _share(self.y, y)
        if across is None or up is None:
            return None
        left, top, right, bottom = self.box
        return left + across * (right - left), bottom - up * (bottom - top)

    def line_at(self, axis: str, value: float) -> tuple[Place, Place] | None:
        """Ends of the straight line through the panel at a value of axis ``x`` or ``y``; None if it lies outside."""
        share = _share(self.x if axis == "x" else self.y, value)
        if share is None or not -1e-9 <= share <= 1 + 1e-9:
            return None
        left, top, right, bottom = self.box
        if axis == "x":
            at = left + share * (right - left)
            return (at, top), (at, bottom)
        at = bottom - share * (bottom - top)
        return (left, at), (right, at)


def _share(axis: Spec, value: float | None) -> float | None:
    if value is None or (axis["type"] == "log" and value <= 0):
        return None
    low, high = (float(end) for end in axis["range"])
    return ((math.log10(value) if axis["type"] == "log" else value) - low) / (high - low)


def lay_out(figure: Figure, width: int = WIDTH) -> Scene:
    """Lay out a figure with its legend below."""
    shown = [trace for trace in figure.data if trace.get("visible") is not False]
    rows = _legend_rows(shown, width)
    marks: list[Mark] = []
    for ref, panel in _panels(figure, width).items():
        marks += _axes(panel)
        marks += _straight_lines(panel, figure.layout.get("shapes", []), ref)
        for trace in shown:
            if trace.get("xaxis", "x") == f"x{ref}":
                marks += _trace_marks(panel, trace)
        marks += _annotations(panel, figure.layout.get("annotations", []), ref)
    marks += _legend(rows, figure.height)
    return Scene(width, figure.height + 20 * len(rows), tuple(marks))


def _panels(figure: Figure, width: int) -> dict[str, Panel]:
    panels = {}
    for ref in (key.removeprefix("xaxis") for key in figure.layout if key.startswith("xaxis")):
        x, y = figure.layout[f"xaxis{ref}"], figure.layout[f"yaxis{ref}"]
        margin = 16 + _widest_label(y) + (24 if y["title"]["text"] else 0)
        first, last = x.get("domain", (0, 1))
        # The margin of the first panel is outside; those of the others lie in the gap between the panels.
        left, right = max(margin, 40), width - 18
        bottom = figure.height - 52.0 - 13 * _line_breaks(x)
        panels[ref] = Panel(x, y, (left + first * (right - left), 14.0, left + last * (right - left), bottom))
    return panels


def _widest_label(axis: Spec) -> float:
    return max((text_width(html.unescape(label), SMALL) for label in axis["ticktext"]), default=0)


def _line_breaks(axis: Spec) -> int:
    return max((label.count("<br>") for label in axis["ticktext"]), default=0)


def _axes(panel: Panel) -> Iterator[Mark]:
    left, top, right, bottom = panel.box
    for value, label in zip(panel.x["tickvals"], panel.x["ticktext"], strict=True):
        if ends := panel.line_at("x", value):
            yield Stroke(ends, "@grid", 1)
            for k, part in enumerate(label.split("<br>")):
                yield Text((ends[0][0], bottom + 18 + 14 * k), html.unescape(part), anchor="middle")
    for value, label in zip(panel.y["tickvals"], panel.y["ticktext"], strict=True):
        if ends := panel.line_at("y", value):
            yield Stroke(ends, "@grid", 1)
            yield Text((left - 7, ends[0][1] + 4), html.unescape(label), anchor="end")
    yield Stroke(((left, top), (left, bottom), (right, bottom)), "@edge", 1.2)
    below = ((left + right) / 2, bottom + 40 + 13 * _line_breaks(panel.x))
    yield Text(below, html.unescape(panel.x["title"]["text"]), TEXT, "middle")
    if panel.y["title"]["text"]:
        beside = (left - _widest_label(panel.y) - 18, (top + bottom) / 2)
        yield Text(beside, html.unescape(panel.y["title"]["text"]), TEXT, "middle", upright=True)


def _straight_lines(panel: Panel, shapes: Sequence[Spec], ref: str) -> Iterator[Mark]:
    for shape in shapes:
        for axis in ("x", "y"):
            if shape[f"{axis}ref"] == f"{axis}{ref}" and (ends := panel.line_at(axis, shape[f"{axis}0"])):
                yield Stroke(ends, shape["line"]["color"], shape["line"]["width"], shape["line"]["dash"])


def _annotations(panel: Panel, annotations: Sequence[Spec], ref: str) -> Iterator[Mark]:
    left, top, right, bottom = panel.box
    for note in annotations:
        if note["xref"] == f"x{ref} domain":
            x, y = left + note["x"] * (right - left), bottom - note["y"] * (bottom - top)
            anchor = {"left": "start", "center": "middle", "right": "end"}[note["xanchor"]]
            for k, text in enumerate(note["text"].split("<br>")):
                yield Text((x, y + 14 + 16 * k), html.unescape(text), anchor=anchor)


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
        for run in _unbroken_runs(places, style.get("shape") == "hv"):
            yield Stroke(run, style["color"], style["width"], style["dash"], panel.box)
    if "markers" in trace["mode"]:
        yield from (_marker(place, trace["marker"]) for place in places if place)


def _marker(place: Place, marker: Spec) -> Mark:
    symbol, radius = marker["symbol"], marker["size"] / 2
    corners = _SYMBOLS.get(symbol.removesuffix("-open"), _CIRCLE)
    at = tuple((place[0] + radius * x, place[1] + radius * y) for x, y in corners)
    return Area(at, marker["color"], hollow=symbol.endswith("-open"))


def _unbroken_runs(places: Sequence[Place | None], steps: bool) -> Iterator[tuple[Place, ...]]:
    """Yield the unbroken parts of a line; as steps, each level holds until the next point."""
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
    half, marker = trace["width"] / 2, trace["marker"]
    for x, y in zip(trace["x"], trace["y"], strict=True):
        corners = [panel.place(x + dx, dy) for dx, dy in ((-half, 0), (-half, y), (half, y), (half, 0))]
        if y and None not in corners:
            yield Area(tuple(c for c in corners if c), marker["color"], marker["opacity"], box=panel.box)


def _error_marks(panel: Panel, trace: Spec) -> Iterator[Mark]:
    for key, dx, dy in (("error_x", 1, 0), ("error_y", 0, 1)):
        if not (bars := trace.get(key)):
            continue
        for x, y, above, below in zip(trace["x"], trace["y"], bars["array"], bars["arrayminus"], strict=True):
            if x is None or y is None:
                continue
            ends = panel.place(x - dx * below, y - dy * below), panel.place(x + dx * above, y + dy * above)
            if ends[0] and ends[1]:
                yield Stroke((ends[0], ends[1]), bars["color"], bars["thickness"], box=panel.box)


def _legend_rows(traces: Sequence[Spec], width: int) -> list[list[tuple[float, Spec]]]:
    """Rows of the legend: each entry with its place from the left; a single series has no legend."""
    entries = [trace for trace in traces if trace.get("showlegend", True)]
    rows: list[list[tuple[float, Spec]]] = []
    at = math.inf
    for entry in entries if len(entries) > 1 else []:
        size = 44 + text_width(html.unescape(entry["name"]), SMALL)
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
                yield Stroke(((x, y), (x + 24, y)), style["color"], style["width"], style["dash"])
            else:
                yield _marker((x + 12, y), entry["marker"])
            yield Text((x + 30, y + 4), html.unescape(entry["name"]))
