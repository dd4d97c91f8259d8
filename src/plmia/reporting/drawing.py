"""Figures: their colours, their parts as the plain JSON that plotly.js takes, and SVG without a browser.

Figures name colours: ``@blue``, or ``@blue/0.2`` for an opacity of 0.2. The values of a theme replace the names when a
figure is drawn. The range and the ticks of every axis are written out, so that plotly.js and `svg` draw the same.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.errors import round_percent, writable

Theme = Mapping[str, str]

# On light and on dark screens; safe for colour-blind readers (Okabe and Ito, 2008; Tol, 2021).
_COLOURS = {
    "paper": ("#ffffff", "#14171b"),
    "panel": ("#f5f6f8", "#1e2329"),
    "ink": ("#1a1d21", "#eceff3"),
    "soft": ("#545b64", "#b4bcc6"),
    "grid": ("#d9dde2", "#39404a"),
    "edge": ("#767d86", "#8b939d"),
    "blue": ("#0072B2", "#3E9EE0"),
    "vermilion": ("#D55E00", "#F2792B"),
    "green": ("#009E73", "#1FBF91"),
    "purple": ("#B8508A", "#DC8DBA"),
    "orange": ("#B97F00", "#E9AE2D"),
    "sky": ("#3390C8", "#8CCBF2"),
    "wine": ("#882255", "#E0709B"),
    "olive": ("#7E7E1B", "#C6C653"),
    "grey": ("#5F666E", "#A9B1BB"),
}
LIGHT: Theme = {name: light for name, (light, _) in _COLOURS.items()}
DARK: Theme = {name: dark for name, (_, dark) in _COLOURS.items()}

SERIES = ("@blue", "@vermilion", "@green", "@purple", "@orange", "@wine", "@sky", "@olive", "@ink")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "x")


def series(number: int) -> tuple[str, str, str]:
    """Colour, dash and marker of a series; the first 45 series differ in colour or dash."""
    return SERIES[number % len(SERIES)], DASHES[number % len(DASHES)], SYMBOLS[number % len(SYMBOLS)]


def in_theme(theme: Theme) -> Callable[[str], str]:
    """Return a function from the name of a colour to CSS; it returns other text unchanged."""

    def colour(text: str) -> str:
        if not text.startswith("@"):
            return text
        name, _, opacity = text[1:].partition("/")
        red, green, blue = rgb(theme[name])
        return f"rgba({red},{green},{blue},{opacity})" if opacity else theme[name]

    return colour


def rgb(colour: str) -> tuple[int, int, int]:
    """Red, green and blue of ``#rrggbb``."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def apply_colours(value: Any, colour: Callable[[str], str]) -> Any:
    """Return the same JSON with CSS in the place of named colours."""
    if isinstance(value, dict):
        return {key: apply_colours(part, colour) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [apply_colours(part, colour) for part in value]
    return colour(value) if isinstance(value, str) else value


Spec = dict[str, Any]
"""A trace, a layout or a part of them, as plotly.js takes it."""

# Ends of an axis that differ by less than this share of their size count as equal.
CLOSEST = 1e-9
# Limits on the size of ends, so that what is computed from their distance is finite and not 0.
SMALLEST, FURTHEST = 1e-290, 1e300
# Numbers below and from here on are written as powers of ten.
_LEAST_PLAIN, _MOST_PLAIN = 1e-4, 1e9


@dataclass(frozen=True)
class Figure:
    """One figure; a notebook shows it."""

    name: str  # of its files, and its anchor in the page
    title: str
    caption: str  # how to read it, and what a healthy one looks like
    alt: str  # what it shows, in words
    data: list[Spec]  # traces as plotly.js takes them; colours by name, texts `escaped`
    layout: Spec  # axes, lines and annotations, likewise
    height: int = 420  # pixels

    @property
    def spec(self) -> Spec:
        """The figure as plotly.js, or `plotly.graph_objects.Figure`, takes it, in light colours."""
        found = apply_colours(self.to_json(), in_theme(LIGHT))
        return {"data": found["data"], "layout": found["layout"]}

    @property
    def svg(self) -> str:
        """The figure as SVG, without title and caption."""
        return svg(self)

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return (
            f'<figure style="max-width:{WIDTH}px;margin:0"><strong>{html.escape(self.title)}</strong>'
            f"{self.svg}<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        )

    def to_json(self) -> Spec:
        """Return the contents of the figure's JSON file, with colours by name."""
        texts = {"name": self.name, "title": self.title, "caption": self.caption, "alt": self.alt}
        return texts | {"data": self.data, "layout": {"height": self.height} | self.layout}


@dataclass(frozen=True)
class Absent:
    """A figure that cannot be drawn, with one sentence on the reason and the remedy."""

    name: str
    title: str
    reason: str


@dataclass(frozen=True)
class Axis:
    """An axis with its range and ticks."""

    title: str  # what it shows, with the unit
    low: float  # ends in the units of the data; moved apart if they are equal (see `apart`)
    high: float
    ticks: Sequence[float]
    labels: Sequence[str]  # of the ticks, unescaped
    log: bool = False
    domain: tuple[float, float] = (0.0, 1.0)  # the part of the figure that it takes

    def to_json(self, anchor: str | None = None) -> Spec:
        """Return the axis as plotly.js takes it."""
        ends = [math.log10(self.low), math.log10(self.high)] if self.log else [self.low, self.high]
        spec: Spec = {
            "type": "log" if self.log else "linear",
            "range": distinct(apart(*ends), 6),
            "title": {"text": escaped(self.title)},
            "tickmode": "array",
            "tickvals": list(self.ticks),
            "ticktext": ["<br>".join(map(escaped, label.split("\n"))) for label in self.labels],
            "showgrid": True,
            "zeroline": False,
        }
        if self.domain != (0.0, 1.0):
            spec["domain"] = list(self.domain)
        return spec | ({"anchor": anchor} if anchor else {})


def one_panel(x: Axis, y: Axis, **more: Any) -> Spec:
    """Layout of a figure with one pair of axes."""
    return {"xaxis": x.to_json(), "yaxis": y.to_json(), "hovermode": "closest"} | more


def panel(number: int, x: Axis, y: Axis) -> Spec:
    """Layout of one of several pairs of axes, counted from 0."""
    ref = panel_ref(number)
    return {f"xaxis{ref}": x.to_json(f"y{ref}"), f"yaxis{ref}": y.to_json(f"x{ref}"), "hovermode": "closest"}


def panel_ref(number: int) -> str:
    """Suffix by which plotly.js names the axes of a panel, counted from 0: none, 2, 3, ..."""
    return str(number + 1) if number else ""


def escaped(text: str) -> str:
    """Escape a text, since plotly.js interprets a few HTML tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def shortened(text: str, most: int = 24) -> str:
    """Return the text on one line, cut at ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def rounded(values: npt.ArrayLike, digits: int = 5) -> list[Any]:
    """Return numbers [n] with a few significant digits, None where they are not finite."""
    array = np.asarray(values, dtype=np.float64)
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in array.tolist()]


def distinct(values: npt.ArrayLike, digits: int = 5) -> list[Any]:
    """Round numbers [n], with more digits where they are large and close to each other, so that they still differ."""
    array = np.asarray(values, dtype=np.float64)
    finite = array[np.isfinite(array)]
    size = float(np.abs(finite).max(initial=0.0))
    # Halves, since the whole distance may overflow.
    width = 2 * (float(finite.max() / 2 - finite.min() / 2) / size) if size else 0.0
    shared = math.ceil(-math.log10(width)) if width > 1e-12 else 0
    return rounded(array, digits + max(0, shared))


def apart(low: float, high: float) -> tuple[float, float]:
    """Return the ends of an axis or a histogram, moved apart if they are nearly equal: every figure has a width."""
    low, high = (min(max(float(end), -FURTHEST), FURTHEST) for end in (low, high))
    size = max(abs(low), abs(high))
    if size >= SMALLEST and high - low > CLOSEST * size:
        return low, high
    reach = max(0.5, 1e-6 * size)
    middle = min(max(low, reach - FURTHEST), FURTHEST - reach)
    return middle - reach, middle + reach


def log_percent_axis(title: str, low: float, high: float = 1.0) -> Axis:
    """Logarithmic axis of shares in percent: one tick per decade, or more if there are fewer than two decades."""
    decades = range(math.floor(math.log10(low)), math.floor(math.log10(high) + 1e-9) + 1)
    steps = (1, 2, 5) if high < 50 * low else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade * (1 + 1e-9)]
    ticks = [float(f"{tick:.3g}") for tick in ticks if tick <= high]
    return Axis(title, low, high, ticks, [round_percent(tick) for tick in ticks], log=True)


def percent_axis(title: str, low: float, high: float) -> Axis:
    """Linear axis of shares in percent."""
    return linear_axis(title, low, high, scale=100, unit=" %")


def linear_axis(title: str, low: float, high: float, *, scale: float = 1.0, unit: str = "", about: int = 6) -> Axis:
    """Linear axis with about so many round ticks, whose labels are multiplied by ``scale``."""
    low, high = apart(low, high)
    ticks = round_ticks(low * scale, high * scale, about)
    form = _number_format(ticks)
    labels = [f"{tick:{form}}{unit}".replace("-", "−") for tick in ticks]
    return Axis(title, low, high, [tick / scale for tick in ticks], labels)


def _number_format(ticks: Sequence[float]) -> str:
    """Format by which neighbouring ticks differ."""
    step, size = ticks[1] - ticks[0], max(map(abs, ticks))
    if _LEAST_PLAIN <= size < _MOST_PLAIN:
        return f",.{max(0, -math.floor(math.log10(step) + 1e-9))}f"
    return f".{math.ceil(math.log10(size / step)) + 1}g"


def round_ticks(low: float, high: float, about: int) -> list[float]:
    """Return about so many multiples of 1, 2 or 5 times a power of ten between two values that are `apart`."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= 0.8 * raw)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{k * step:.15g}") for k in range(first, math.floor(high / step + 1e-9) + 1)]


def line(
    name: str, x: npt.ArrayLike, y: npt.ArrayLike, colour: str, *, dash: str = "solid", width: float = 2, **more: Any
) -> Spec:
    """Trace of a line; ``shape="hv"`` for steps."""
    style = {"color": colour, "dash": dash, "width": width}
    if "shape" in more:
        style["shape"] = more.pop("shape")
    return _trace(name, x, y, mode="lines", line=style, **more)


def points(
    name: str,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    colour: str,
    symbol: str = "circle",
    *,
    size: int = 8,
    hollow: bool = False,
    texts: Sequence[str] | None = None,
    **more: Any,
) -> Spec:
    """Trace of markers, filled or hollow; ``texts`` are what the page shows under the mouse."""
    if texts is not None:
        more |= {"text": [escaped(text) for text in texts], "hovertemplate": "%{text}<extra></extra>"}
    marker: Spec = {"color": colour, "symbol": symbol + ("-open" if hollow else ""), "size": size}
    return _trace(name, x, y, mode="markers", marker=marker, **more)


def bars(name: str, x: npt.ArrayLike, y: npt.ArrayLike, width: float, colour: str, **more: Any) -> Spec:
    """Trace of upright bars around ``x``, half transparent so that two histograms can overlap."""
    marker = {"color": colour, "opacity": 0.55, "line": {"width": 0}}
    spec = {"type": "bar", "name": escaped(name), "x": distinct(x), "y": distinct(y), "width": float(f"{width:.6g}")}
    return spec | {"marker": marker} | more


def band(name: str, x: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike, colour: str, **more: Any) -> Spec:
    """Trace of the area between two lines, without a legend entry of its own."""
    across, bottom, top = (np.asarray(part, dtype=np.float64) for part in (x, low, high))
    style: Spec = {"line": {"width": 0, "color": colour}, "fill": "toself", "fillcolor": f"{colour}/0.18"}
    x, y = np.concatenate([across, across[::-1]]), np.concatenate([bottom, top[::-1]])
    return _trace(name, x, y, mode="lines", hoverinfo="skip", showlegend=False, **style, **more)


def error_bars(values: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike, colour: str) -> Spec:
    """Error bars from ``low`` to ``high`` around ``values``."""
    middle, bottom, top = rounded(values), rounded(low), rounded(high)
    return {
        "type": "data",
        "symmetric": False,
        "array": [_difference(b, a) for a, b in zip(middle, top, strict=True)],
        "arrayminus": [_difference(a, b) for a, b in zip(middle, bottom, strict=True)],
        "color": colour,
        "thickness": 1.5,
        "width": 3,
    }


def _difference(a: float | None, b: float | None) -> float:
    return 0.0 if a is None or b is None else max(0.0, float(f"{a - b:.5g}"))


def _trace(name: str, x: npt.ArrayLike, y: npt.ArrayLike, **more: Any) -> Spec:
    return {"type": "scatter", "name": escaped(name), "x": distinct(x), "y": distinct(y)} | more


def vertical_line(x: float, colour: str) -> Spec:
    """Dotted line through the whole figure."""
    ends = {"xref": "x", "yref": "y domain", "x0": x, "x1": x, "y0": 0, "y1": 1}
    # Above the traces: a grid line at the same place would hide it.
    return {"type": "line", "layer": "above", "line": {"color": colour, "width": 1.5, "dash": "dot"}} | ends


def annotation(text: str, x: float, y: float, *, ref: str = "", anchor: str = "left") -> Spec:
    """Text in the plot; ``x`` and ``y`` are shares of its width and height from the lower left."""
    place = {"xref": f"x{ref} domain", "yref": f"y{ref} domain", "x": x, "y": y, "xanchor": anchor, "yanchor": "top"}
    lines = "<br>".join(escaped(part) for part in text.split("\n"))
    return place | {"text": lines, "align": anchor, "showarrow": False, "font": {"size": 12, "color": "@ink"}}


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
            anchor = {"left": "start", "center": "middle", "right": "end"}[note["xanchor"]]
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
