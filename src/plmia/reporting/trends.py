"""Figure of the trends that empirical Bayes learns from all points and lends to each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from plmia.attacks.moments import FloatArray
from plmia.reporting.content import Content, sentence
from plmia.reporting.plots import Absent, Axis, Figure, Spec, apart, band, line, linear_axis

ATTACK, NAME, TITLE = "pl-mia-eb", "trends", "What empirical Bayes borrows from other points"


def trends_figure(content: Content) -> Figure | Absent:
    """Spread and shift of signals against their centre, as `pl-mia-eb` fitted them."""
    if ATTACK in content.metrics.get("skipped", {}):
        return Absent(NAME, TITLE, sentence(f"{ATTACK} was left out: {content.metrics['skipped'][ATTACK]}"))
    if ATTACK not in content.saved.attacks:
        return Absent(NAME, TITLE, f"{ATTACK} is not among the attacks of this run: add `--attack {ATTACK}`.")
    entry = content.entry(ATTACK)
    fit = entry.get("fit") or entry.get("diagnostics", {}).get("fit") or content.metrics["attacks"][ATTACK].get("fit")
    if not fit:
        return Absent(NAME, TITLE, f"This run kept no fitted trends of {ATTACK}: run it again with this version.")
    at, place = _places(fit["knots"]), _coordinate(fit.get("coordinates") or {})
    level = np.array(fit["spread"]["level"], dtype=np.float64)[:, :, 0]
    off = np.sqrt(np.diag(np.array(fit["spread"]["covariance"], dtype=np.float64))) / 2
    data: list[Spec] = []
    for side, (name, colour, dash) in enumerate((("IN", "@blue", "solid"), ("OUT", "@orange", "dash"))):
        spread = np.sqrt(_at_places(level[side], at))
        low, high = spread * math.exp(-off[side]), spread * math.exp(off[side])
        data += _trend(f"deviation, {name}", at, spread, low, high, colour, dash)
    layout: Spec = {"hovermode": "closest"}
    layout |= _axes(data, "Standard deviation of the coordinate", (0.0, 0.43), "", at, place[0])
    said = f"Deviations range from {np.sqrt(level).min():.2g} to {np.sqrt(level).max():.2g}."
    if fit.get("shift"):
        shift, beyond = _shift(fit, at)
        traces = _trend("shift, IN less OUT", at, shift, shift - beyond, shift + beyond, "@green", "solid")
        data += [trace | {"xaxis": "x2", "yaxis": "y2"} for trace in traces]
        layout |= _axes(traces, "Shift of the coordinate", (0.57, 1.0), "2", at, place[0])
        said += f" The expected shift ranges from {shift.min():.2g} to {shift.max():.2g}."
    return Figure(
        NAME,
        TITLE,
        "How much a record's signals scatter over references, and how much training on it shifts them, against their "
        f"centre; bands hold two thirds of the records. All is drawn in the coordinate in which {ATTACK} works: "
        f"{place[1]}. A record with few references is judged by these trends as much as by its own signals. "
        "Healthy: smooth curves, and a shift near 0 if nothing leaks.",
        f"Trends over {fit.get('n_points', 0):,} points. {said}",
        data,
        layout,
    )


def _coordinate(coordinates: Mapping[str, Any]) -> tuple[str, str]:
    """What the trends are drawn in: for an axis, and for the caption."""
    bend, n_views = coordinates.get("bend"), len(coordinates.get("rotation") or [0])
    bent = f", bent by asinh(conf / {bend:g})" if bend else ""
    if n_views == 1:
        return f"the signal{bent}", f"the signal conf{bent or ' itself'}"
    of_views = "the first coordinate of the signals"
    return of_views + bent, f"{of_views} (close to the views' mean times sqrt(views)){bent}"


def _places(knots: dict[str, Any]) -> FloatArray:
    """Where the trends are drawn: at the knots, or from end to end where there is one knot, a constant."""
    at = np.array(knots["at"], dtype=np.float64)
    return at if len(at) > 1 else np.array(apart(knots["low"], knots["high"]))


def _at_places(values: FloatArray, at: FloatArray) -> FloatArray:
    return values if len(values) == len(at) else np.full(len(at), values[0])


def _shift(fit: dict[str, Any], at: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Prior mean of the shift of a record of usual spread, and its standard deviation."""
    lines = np.array(fit["shift"]["lines"], dtype=np.float64)[:, 0]
    mean = lines[:, 0].copy()
    if len(lines) > 1:
        mean += lines[:, 1] * (at - at.mean()) / (at[-1] - at[0])
    spread = np.sqrt(np.array(fit["shift"]["spread"], dtype=np.float64)[:, 0])
    return _at_places(mean, at), _at_places(spread, at)


def _trend(
    name: str, at: FloatArray, middle: FloatArray, low: FloatArray, high: FloatArray, colour: str, dash: str
) -> list[Spec]:
    hover = "%{fullData.name}: %{y:.3~g} at %{x:.3~g}<extra></extra>"
    return [
        band(f"{name}, two thirds", at, low, high, colour, legendgroup=name),
        line(name, at, middle, colour, dash=dash, legendgroup=name, hovertemplate=hover),
    ]


def _axes(traces: list[Spec], title: str, domain: tuple[float, float], ref: str, at: FloatArray, place: str) -> Spec:
    values = [y for trace in traces for y in trace["y"] if y is not None]
    low, high = min(0.0, *values), max(0.0, *values)
    across = linear_axis(f"Centre of {place}", float(at[0]), float(at[-1]), about=4)
    across = Axis(across.title, across.low, across.high, across.ticks, across.labels, domain=domain)
    up = linear_axis(title, low, high + 0.08 * (high - low), about=5)
    return {f"xaxis{ref}": across.to_json(f"y{ref}"), f"yaxis{ref}": up.to_json(f"x{ref}")}
