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
    # A circle is a polygon with many corners.
    "circle": tuple((math.cos(math.tau * k / 20), math.sin(math.tau * k / 20)) for k in range(20)),
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
"""Pixels from the left and from the top."""
Colours = Callable[[str], str]
"""From the name of a colour to CSS."""


def svg(figure: Figure, colours: Colours = _LIGHT, *, paper: bool = True) -> str:
    """Return a figure with its legend below as SVG, on a filled background if ``paper``."""
    pen = _Pen(colours)
    shown = [trace for trace in figure.data if trace.get("visible") is not False]
    rows = _legend_rows(shown)
    panels = _panels(figure)
    clips = "".join(panel.clip_path for panel in panels.values())
    ground = f'<rect width="100%" height="100%" fill="{colours("@paper")}"/>' if paper else ""
    body = [
        element
        for ref, panel in panels.items()
        for element in (
            *_axes(pen, panel),
            *_vertical_lines(pen, panel, figure.layout.get("shapes", []), ref),
            *(mark for t in shown if t.get("xaxis", "x") == f"x{ref}" for mark in _trace_marks(pen, panel, t)),
            *_annotations(pen, panel, figure.layout.get("annotations", []), ref),
        )
    ]
    return writable(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {figure.height + 20 * len(rows)}" role="img" '
        f'aria-label="{html.escape(figure.alt)}" font-family="{FONT}"><title>{html.escape(figure.title)}</title>'
        f"<defs>{clips}</defs>{ground}{''.join(body)}{''.join(_legend(pen, rows, figure.height))}</svg>"
    )


@dataclass(frozen=True)
class _Pen:
    """Writes SVG elements in the colours of a theme; texts are escaped already."""

    colours: Colours

    def line(self, places: Sequence[Place], colour: str, width: float, dash: str = "solid", clip: str = "") -> str:
        pattern = f' stroke-dasharray="{_DASHES[dash]}"' if _DASHES[dash] else ""
        return (
            f'<polyline points="{_points(places)}" fill="none" stroke="{self.colours(colour)}" '
            f'stroke-width="{width:g}" stroke-linejoin="round"{pattern}{clip}/>'
        )

    def area(self, places: Sequence[Place], colour: str, opacity: float = 1.0, clip: str = "") -> str:
        transparent = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        return f'<polygon points="{_points(places)}" fill="{self.colours(colour)}"{transparent}{clip}/>'

    def marker(self, place: Place, marker: Spec) -> str:
        symbol, radius = marker["symbol"], marker["size"] / 2
        places = [(place[0] + radius * x, place[1] + radius * y) for x, y in _SYMBOLS[symbol.removesuffix("-open")]]
        if not symbol.endswith("-open"):
            return self.area(places, marker["color"])
        outline = f'fill="none" stroke="{self.colours(marker["color"])}" stroke-width="2"'
        return f'<polygon points="{_points(places)}" {outline}/>'

    def text(self, place: Place, text: str, size: int = SMALL, anchor: str = "start", *, upright: bool = False) -> str:
        x, y = place
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if upright else ""
        return (
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
            f'fill="{self.colours("@ink")}"{turn}>{text}</text>'
        )


def _points(places: Sequence[Place]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def text_width(text: str, size: int = TEXT) -> float:
    """Estimate the width of a text in pixels."""
    wide, narrow = "mwMW%", "il.,:;|!'() "
    return sum(0.32 if c in narrow else 0.85 if c in wide else 0.58 for c in html.unescape(text)) * size


@dataclass(frozen=True)
class _Panel:
    """One pair of axes, and the box (left, top, right, bottom) in which they are drawn."""

    name: str
    x: Spec
    y: Spec
    box: tuple[float, float, float, float]

    @property
    def clip_path(self) -> str:
        left, top, right, bottom = self.box
        size = f'width="{right - left:.1f}" height="{bottom - top:.1f}"'
        return f'<clipPath id="clip-{self.name}"><rect x="{left:.1f}" y="{top:.1f}" {size}/></clipPath>'

    @property
    def clip(self) -> str:
        return f' clip-path="url(#clip-{self.name})"'

    def at(self, across: float, up: float) -> Place:
        """Pixels of a place given as shares of width and height from the lower left."""
        left, top, right, bottom = self.box
        return left + across * (right - left), bottom - up * (bottom - top)

    def place(self, x: float | None, y: float | None) -> Place | None:
        """Pixels of a point of the data; None if it has no place on an axis."""
        across, up = _share(self.x, x), _share(self.y, y)
        return None if across is None or up is None else self.at(across, up)

    def line_at(self, axis: str, value: float) -> tuple[Place, Place] | None:
        """Ends of the straight line through the panel at a value of axis ``x`` or ``y``; None if it lies outside."""
        share = _share(self.x if axis == "x" else self.y, value)
        if share is None or not -1e-9 <= share <= 1 + 1e-9:
            return None
        return (self.at(share, 1), self.at(share, 0)) if axis == "x" else (self.at(0, share), self.at(1, share))


def _share(axis: Spec, value: float | None) -> float | None:
    if value is None or (axis["type"] == "log" and value <= 0):
        return None
    low, high = (float(end) for end in axis["range"])
    return ((math.log10(value) if axis["type"] == "log" else value) - low) / (high - low)


def _panels(figure: Figure) -> dict[str, _Panel]:
    panels = {}
    for ref in (key.removeprefix("xaxis") for key in figure.layout if key.startswith("xaxis")):
        x, y = figure.layout[f"xaxis{ref}"], figure.layout[f"yaxis{ref}"]
        margin = 16 + _widest_label(y) + (24 if y["title"]["text"] else 0)
        first, last = x.get("domain", (0, 1))
        # The margin of the first panel is outside; those of the others lie in the gap between the panels.
        left, right = max(margin, 40), WIDTH - 18
        box = left + first * (right - left), 14.0, left + last * (right - left), figure.height - 52.0 - _extra_lines(x)
        panels[ref] = _Panel(f"{figure.name}{ref}", x, y, box)
    return panels


def _widest_label(axis: Spec) -> float:
    return max((text_width(label, SMALL) for label in axis["ticktext"]), default=0)


def _extra_lines(axis: Spec) -> int:
    """Height of the lines of labels below the first one."""
    return 13 * max((label.count("<br>") for label in axis["ticktext"]), default=0)


def _axes(pen: _Pen, panel: _Panel) -> Iterator[str]:
    left, top, right, bottom = panel.box
    for value, label in zip(panel.x["tickvals"], panel.x["ticktext"], strict=True):
        if ends := panel.line_at("x", value):
            yield pen.line(ends, "@grid", 1)
            for k, part in enumerate(label.split("<br>")):
                yield pen.text((ends[0][0], bottom + 18 + 14 * k), part, anchor="middle")
    for value, label in zip(panel.y["tickvals"], panel.y["ticktext"], strict=True):
        if ends := panel.line_at("y", value):
            yield pen.line(ends, "@grid", 1)
            yield pen.text((left - 7, ends[0][1] + 4), label, anchor="end")
    yield pen.line(((left, top), (left, bottom), (right, bottom)), "@edge", 1.2)
    below = ((left + right) / 2, bottom + 40 + _extra_lines(panel.x))
    yield pen.text(below, panel.x["title"]["text"], TEXT, "middle")
    if panel.y["title"]["text"]:
        beside = (left - _widest_label(panel.y) - 18, (top + bottom) / 2)
        yield pen.text(beside, panel.y["title"]["text"], TEXT, "middle", upright=True)


def _vertical_lines(pen: _Pen, panel: _Panel, shapes: Sequence[Spec], ref: str) -> Iterator[str]:
    for shape in shapes:
        if shape["xref"] == f"x{ref}" and (ends := panel.line_at("x", shape["x0"])):
            yield pen.line(ends, shape["line"]["color"], shape["line"]["width"], shape["line"]["dash"])


def _annotations(pen: _Pen, panel: _Panel, annotations: Sequence[Spec], ref: str) -> Iterator[str]:
    for note in annotations:
        if note["xref"] == f"x{ref} domain":
            x, y = panel.at(note["x"], note["y"])
            anchor = {"left": "start", "right": "end"}[note["xanchor"]]
            for k, text in enumerate(note["text"].split("<br>")):
                yield pen.text((x, y + 14 + 16 * k), text, anchor=anchor)


def _trace_marks(pen: _Pen, panel: _Panel, trace: Spec) -> Iterator[str]:
    if trace["type"] == "bar":
        yield from _bar_marks(pen, panel, trace)
        return
    places = [panel.place(x, y) for x, y in zip(trace["x"], trace["y"], strict=True)]
    if trace.get("fill") == "toself":
        colour, _, opacity = trace["fillcolor"].partition("/")
        if corners := [place for place in places if place]:
            yield pen.area(corners, colour, float(opacity), panel.clip)
        return
    yield from _error_marks(pen, panel, trace)
    if trace["mode"] == "lines":
        style = trace["line"]
        for run in _unbroken_runs(places, style.get("shape") == "hv"):
            yield pen.line(run, style["color"], style["width"], style["dash"], panel.clip)
    else:
        yield from (pen.marker(place, trace["marker"]) for place in places if place)


def _unbroken_runs(places: Sequence[Place | None], steps: bool) -> Iterator[list[Place]]:
    """Yield the unbroken parts of a line; as steps, each level holds until the next point."""
    run: list[Place] = []
    for place in [*places, None]:
        if place is None:
            if len(run) > 1:
                yield run
            run = []
        else:
            if steps and run:
                run.append((place[0], run[-1][1]))
            run.append(place)


def _bar_marks(pen: _Pen, panel: _Panel, trace: Spec) -> Iterator[str]:
    half, marker = trace["width"] / 2, trace["marker"]
    for x, y in zip(trace["x"], trace["y"], strict=True):
        corners = [panel.place(x + dx, dy) for dx, dy in ((-half, 0), (-half, y), (half, y), (half, 0))]
        if y and None not in corners:
            yield pen.area([c for c in corners if c], marker["color"], marker["opacity"], panel.clip)


def _error_marks(pen: _Pen, panel: _Panel, trace: Spec) -> Iterator[str]:
    for key, dx, dy in (("error_x", 1, 0), ("error_y", 0, 1)):
        if not (bars := trace.get(key)):
            continue
        for x, y, above, below in zip(trace["x"], trace["y"], bars["array"], bars["arrayminus"], strict=True):
            if x is None or y is None:
                continue
            ends = panel.place(x - dx * below, y - dy * below), panel.place(x + dx * above, y + dy * above)
            if ends[0] and ends[1]:
                yield pen.line((ends[0], ends[1]), bars["color"], bars["thickness"], clip=panel.clip)


def _legend_rows(traces: Sequence[Spec]) -> list[list[tuple[float, Spec]]]:
    """Rows of the legend: each entry with its place from the left; a single series has no legend."""
    entries = [trace for trace in traces if trace.get("showlegend", True)]
    rows: list[list[tuple[float, Spec]]] = []
    at = math.inf
    for entry in entries if len(entries) > 1 else []:
        size = 44 + text_width(entry["name"], SMALL)
        if at + size > WIDTH - 10:
            rows.append([])
            at = 24.0
        rows[-1].append((at, entry))
        at += size
    return rows


def _legend(pen: _Pen, rows: Sequence[Sequence[tuple[float, Spec]]], top: int) -> Iterator[str]:
    for number, row in enumerate(rows):
        y = top + 8.0 + 20 * number
        for x, entry in row:
            if entry["type"] == "bar":
                corners = ((x, y - 5), (x + 20, y - 5), (x + 20, y + 5), (x, y + 5))
                yield pen.area(corners, entry["marker"]["color"], entry["marker"]["opacity"])
            elif entry["mode"] == "lines":
                style = entry["line"]
                yield pen.line(((x, y), (x + 24, y)), style["color"], style["width"], style["dash"])
            else:
                yield pen.marker((x + 12, y), entry["marker"])
            yield pen.text((x + 30, y + 4), entry["name"])
