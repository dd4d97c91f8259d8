"""Colours of the report for light and dark screens, safe for colour-blind readers (Okabe and Ito, 2008; Tol, 2021).

Figures name colours: ``@blue``, or ``@blue/0.2`` for an opacity of 0.2. The values of a theme replace the names when a
figure is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Theme = Mapping[str, str]

LIGHT: Theme = {
    "paper": "#ffffff",
    "panel": "#f5f6f8",
    "ink": "#1a1d21",
    "soft": "#545b64",
    "grid": "#d9dde2",
    "edge": "#767d86",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "purple": "#B8508A",
    "orange": "#B97F00",
    "sky": "#3390C8",
    "wine": "#882255",
    "olive": "#7E7E1B",
    "grey": "#5F666E",
}
DARK: Theme = {
    "paper": "#14171b",
    "panel": "#1e2329",
    "ink": "#eceff3",
    "soft": "#b4bcc6",
    "grid": "#39404a",
    "edge": "#8b939d",
    "blue": "#3E9EE0",
    "vermilion": "#F2792B",
    "green": "#1FBF91",
    "purple": "#DC8DBA",
    "orange": "#E9AE2D",
    "sky": "#8CCBF2",
    "wine": "#E0709B",
    "olive": "#C6C653",
    "grey": "#A9B1BB",
}

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
