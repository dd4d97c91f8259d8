"""Parts of figures: axes, traces and straight lines, as the plain JSON that plotly.js and `svg` draw.

The range and the ticks of every axis are written out, so that both draw the same.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.errors import round_percent
from plmia.reporting.plots.colours import LIGHT, apply_colours, in_theme

Spec = dict[str, Any]
"""A trace, a layout or a part of them, as plotly.js takes it."""

NOTEBOOK_WIDTH = 760
# Ends of an axis that differ by less than this share of their size count as equal.
CLOSEST = 1e-9
# Limits on the size of ends, so that what is computed from their distance is finite and not 0.
SMALLEST, FURTHEST = 1e-290, 1e300
# Numbers below and from here on are written as powers of ten.
SMALL, LARGE = 1e-4, 1e9
# All but control characters, lone surrogates and non-characters: SVG excludes these, and UTF-8 has no surrogates.
_UNWRITABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Figure:
    """One figure; a notebook shows it.

    Parameters
    ----------
    name : str
        Name of its files, and its anchor in the page.
    title, caption, alt : str
        A heading; how to read the figure and what a healthy one looks like; what it shows in words.
    data : list of dict
        Traces, as plotly.js takes them; colours by name (see `colours`), texts escaped (see `escaped`).
    layout : dict
        Axes, lines and annotations, likewise.
    height : int
        In pixels.
    """

    name: str
    title: str
    caption: str
    alt: str
    data: list[Spec]
    layout: Spec
    height: int = 420

    @property
    def spec(self) -> Spec:
        """The figure as plotly.js, or `plotly.graph_objects.Figure`, takes it, in light colours."""
        found = apply_colours(self.to_json(), in_theme(LIGHT))
        return {"data": found["data"], "layout": found["layout"]}

    @property
    def svg(self) -> str:
        """The figure as SVG, without title and caption."""
        # Drawing needs the definition of a figure, so it cannot be imported earlier.
        from plmia.reporting.plots.svg import svg

        return svg(self)

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return (
            f'<figure style="max-width:{NOTEBOOK_WIDTH}px;margin:0"><strong>{html.escape(self.title)}</strong>'
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
    """An axis with its range and ticks.

    Parameters
    ----------
    title : str
        What it shows, with the unit.
    low, high : float
        Ends in the units of the data; moved apart if they are equal (see `apart`).
    ticks, labels : sequence of float, sequence of str
        Ticks and their labels, unescaped.
    log : bool
        Whether it is logarithmic.
    domain : pair of float
        The part of the figure that it takes.
    """

    title: str
    low: float
    high: float
    ticks: Sequence[float]
    labels: Sequence[str]
    log: bool = False
    domain: tuple[float, float] = (0.0, 1.0)

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


def writable(text: str) -> str:
    """Return the text with U+FFFD for every character that cannot be written, such as a lone surrogate."""
    return _UNWRITABLE.sub("\ufffd", text)


def escaped(text: str) -> str:
    """Escape a text, since plotly.js interprets a few HTML tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def shortened(text: str, most: int = 24) -> str:
    """Return the text on one line, cut at ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def duration(seconds: float) -> str:
    """Write a time in a suitable unit."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.2g} {unit}" if seconds / size < 10 else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.1f} days"


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
    if SMALL <= size < LARGE:
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
