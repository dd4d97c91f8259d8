"""Parts of figures: plain JSON that plotly.js draws, and `static` too, so both understand no more than is made here.

Every axis has its range and its ticks written out, so that both draw the same.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.reporting.content import nice_percent, rounded
from plmia.reporting.theme import LIGHT, in_theme, painted

Spec = dict[str, Any]
NOTEBOOK_WIDTH = 760
# Ends of an axis that are closer than this, as a share of their size, are called equal.
CLOSEST = 1e-9
# Ends are no smaller and no larger than this, so that what is computed from their distance is finite and not 0.
SMALLEST, FURTHEST = 1e-290, 1e300
# Labels below and from here on are written as powers of ten.
SMALL, LARGE = 1e-4, 1e9


@dataclass(frozen=True)
class Figure:
    """One figure.

    Parameters
    ----------
    name : str
        Name of its files, and its anchor in the page.
    title, caption, alt : str
        A heading, how to read it and what a healthy picture looks like, and what it shows in words.
    data : list of dict
        Traces, as plotly.js takes them; colours by name (see `theme`), texts escaped (see `escaped`).
    layout : dict
        Axes, lines and notes, likewise.
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
        painted_spec: Spec = painted(
            {"data": self.data, "layout": {"height": self.height} | self.layout}, in_theme(LIGHT)
        )
        return painted_spec

    @property
    def svg(self) -> str:
        """The figure as SVG, without title and caption."""
        # What draws figures knows what they are, so it cannot be imported before them.
        from plmia.reporting.static import svg

        return svg(self)

    def _repr_svg_(self) -> str:
        """What a notebook shows where it shows no HTML."""
        return self.svg

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return (
            f'<figure style="max-width:{NOTEBOOK_WIDTH}px;margin:0"><strong>{html.escape(self.title)}</strong>'
            f"{self.svg}<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        )

    def to_json(self) -> Spec:
        """Return the contents of the figure's JSON file, colours by name."""
        return {
            "name": self.name,
            "title": self.title,
            "caption": self.caption,
            "alt": self.alt,
            "data": self.data,
            "layout": {"height": self.height} | self.layout,
        }


@dataclass(frozen=True)
class Absent:
    """A figure that cannot be drawn, and in one sentence why and how to get it."""

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
        Its ends, in the units of the data; moved apart where they are equal (see `apart`).
    ticks : sequence of float
        Where its ticks are.
    labels : sequence of str
        What they say, unescaped.
    log : bool
        Whether it is logarithmic.
    domain : pair of float
        The part of the figure that it takes.
    grid : bool
        Whether lines are drawn at the ticks.
    """

    title: str
    low: float
    high: float
    ticks: Sequence[float]
    labels: Sequence[str]
    log: bool = False
    domain: tuple[float, float] = (0.0, 1.0)
    grid: bool = True

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
            "showgrid": self.grid,
            "zeroline": False,
        }
        if self.domain != (0.0, 1.0):
            spec["domain"] = list(self.domain)
        return spec | ({"anchor": anchor} if anchor else {})


def escaped(text: str) -> str:
    """Escape a text so that plotly.js, which knows a few HTML tags, shows it as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def shortened(text: str, most: int = 24) -> str:
    """The text without line breaks, and without its end where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def apart(low: float, high: float) -> tuple[float, float]:
    """Ends of an axis or of a histogram, moved apart where they are equal or nearly so: every figure has a width."""
    low, high = (min(max(float(end), -FURTHEST), FURTHEST) for end in (low, high))
    size = max(abs(low), abs(high))
    if size >= SMALLEST and high - low > CLOSEST * size:
        return low, high
    reach = max(0.5, 1e-6 * size)
    middle = min(max(low, reach - FURTHEST), FURTHEST - reach)
    return middle - reach, middle + reach


def distinct(values: npt.ArrayLike, digits: int = 5) -> list[Any]:
    """Plain numbers [n] with enough digits to tell them apart: more where they are large and close to each other."""
    array = np.asarray(values, dtype=np.float64)
    finite = array[np.isfinite(array)]
    size = float(np.abs(finite).max(initial=0.0))
    # Halves, since the whole distance may not be a finite number.
    width = 2 * (float(finite.max() / 2 - finite.min() / 2) / size) if size else 0.0
    shared = math.ceil(-math.log10(width)) if width > 1e-12 else 0
    return rounded(array, digits + max(0, shared))


def log_percent_axis(title: str, low: float, high: float = 1.0) -> Axis:
    """Logarithmic axis of shares, a tick a decade, in per cent; of less than two decades there are more ticks."""
    decades = range(math.floor(math.log10(low)), math.floor(math.log10(high) + 1e-9) + 1)
    steps = (1, 2, 5) if high < 50 * low else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade * (1 + 1e-9)]
    ticks = [float(f"{tick:.3g}") for tick in ticks if tick <= high]
    return Axis(title, low, high, ticks, [nice_percent(tick) for tick in ticks], log=True)


def linear_axis(title: str, low: float, high: float, *, scale: float = 1.0, unit: str = "", about: int = 6) -> Axis:
    """Linear axis with about so many round ticks, whose labels are multiplied by ``scale``."""
    low, high = apart(low, high)
    ticks = round_ticks(low * scale, high * scale, about)
    form = _number_format(ticks)
    labels = [f"{tick:{form}}{unit}".replace("-", "−") for tick in ticks]
    return Axis(title, low, high, [tick / scale for tick in ticks], labels)


def _number_format(ticks: Sequence[float]) -> str:
    """Format that tells neighbouring ticks apart."""
    step, size = ticks[1] - ticks[0], max(map(abs, ticks))
    if SMALL <= size < LARGE:
        return f",.{max(0, -math.floor(math.log10(step) + 1e-9))}f"
    return f".{math.ceil(math.log10(size / step)) + 1}g"


def round_ticks(low: float, high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two values that are `apart`, about so many."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= 0.8 * raw)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{k * step:.15g}") for k in range(first, math.floor(high / step + 1e-9) + 1)]


def line(
    name: str, x: npt.ArrayLike, y: npt.ArrayLike, colour: str, *, dash: str = "solid", width: float = 2, **more: Any
) -> Spec:
    """Trace of a line."""
    style = {"color": colour, "dash": dash, "width": width}
    if "shape" in more:
        style["shape"] = more.pop("shape")
    return _trace(name, x, y, mode="lines", line=style, **more)


def points(name: str, x: npt.ArrayLike, y: npt.ArrayLike, colour: str, symbol: str = "circle", **more: Any) -> Spec:
    """Trace of markers; ``size``, and ``hollow`` for the outline alone."""
    size, hollow = more.pop("size", 8), more.pop("hollow", False)
    if "text" in more:
        more["text"] = [escaped(text) for text in more["text"]]
    marker: Spec = {"color": colour, "symbol": symbol + ("-open" if hollow else ""), "size": size}
    return _trace(name, x, y, mode="markers", marker=marker, **more)


def bars(name: str, x: npt.ArrayLike, y: npt.ArrayLike, width: float, colour: str, **more: Any) -> Spec:
    """Trace of upright bars around ``x``, half transparent so that two of them can be seen."""
    marker = {"color": colour, "opacity": 0.55, "line": {"width": 0}}
    spec = {"type": "bar", "name": escaped(name), "x": distinct(x), "y": distinct(y), "width": float(f"{width:.6g}")}
    return spec | {"marker": marker} | more


def band(name: str, x: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike, colour: str, **more: Any) -> Spec:
    """Trace of the area between two lines, which belongs to the legend entry of one of them."""
    across, bottom, top = (np.asarray(part, dtype=np.float64) for part in (x, low, high))
    return _trace(
        name,
        np.concatenate([across, across[::-1]]),
        np.concatenate([bottom, top[::-1]]),
        mode="lines",
        line={"width": 0, "color": colour},
        fill="toself",
        fillcolor=f"{colour}/0.18",
        hoverinfo="skip",
        showlegend=False,
        **more,
    )


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


def rule(axis: str, value: float, colour: str = "@soft", dash: str = "dash", ref: str = "") -> Spec:
    """A straight line across the figure: at ``x = value`` or ``y = value`` of axis ``x`` or ``y`` (and its number)."""
    other = "y" if axis == "x" else "x"
    return {
        "type": "line",
        f"{axis}ref": f"{axis}{ref}",
        f"{other}ref": f"{other}{ref} domain",
        f"{axis}0": value,
        f"{axis}1": value,
        f"{other}0": 0,
        f"{other}1": 1,
        "line": {"color": colour, "width": 1.5, "dash": dash},
        "layer": "above",  # or a line of the grid at the same place would hide it
    }


def note(text: str, x: float, y: float, *, ref: str = "", anchor: str = "left") -> Spec:
    """A text at a place of the plot, given as shares of its width and height from the lower left."""
    return {
        "text": "<br>".join(escaped(part) for part in text.split("\n")),
        "xref": f"x{ref} domain",
        "yref": f"y{ref} domain",
        "x": x,
        "y": y,
        "xanchor": anchor,
        "yanchor": "top",
        "align": anchor,
        "showarrow": False,
        "font": {"size": 12, "color": "@ink"},
    }
