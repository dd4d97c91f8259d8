"""Figures of "Models and their training": trends of empirical Bayes, training losses, and accuracies."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from plmia.data.arrays import FloatArray
from plmia.errors import percent, sentence
from plmia.reporting.content import Content
from plmia.reporting.plots import figure as fig
from plmia.reporting.plots.figure import Absent, Axis, Figure, Spec
from plmia.results.result import Coordinates, Knots, ShiftTrend

BAYES, BAYES_TITLE = "pl-mia-eb", "What empirical Bayes learns from all records"


def trends_figure(content: Content) -> Figure | Absent:
    """Spread and shift of signals against their centre, as `pl-mia-eb` fitted them."""
    if BAYES in content.result.skipped:
        return Absent("trends", BAYES_TITLE, sentence(f"{BAYES} was left out: {content.result.skipped[BAYES]}"))
    if BAYES not in content.result.attacks:
        return Absent("trends", BAYES_TITLE, f"{BAYES} is not among the attacks of this run. Add `--attack {BAYES}`.")
    trends = content.entry(BAYES).trends
    if trends is None:
        reason = f"This run kept no fitted trends of {BAYES}. Run it again with this version."
        return Absent("trends", BAYES_TITLE, reason)
    at, (short, long) = _places(trends.knots), _coordinate_names(trends.coordinates or Coordinates())
    level = np.sqrt(np.array(trends.spread.level)[:, :, 0])
    off = np.sqrt(np.diag(np.array(trends.spread.covariance))) / 2
    data: list[Spec] = []
    for side, (name, colour, dash) in enumerate((("IN", "@blue", "solid"), ("OUT", "@orange", "dash"))):
        spread = _at_places(level[side], at)
        ends = spread * math.exp(-off[side]), spread * math.exp(off[side])
        data += _trend(f"deviation, {name}", at, spread, ends, colour, dash)
    layout = fig.panel(0, *_trend_axes(data, "Standard deviation of the coordinate", (0.0, 0.43), at, short))
    alt = f"Trends over {trends.n_points:,} records. Deviations range from {level.min():.2g} to {level.max():.2g}."
    if trends.shift is not None:
        shift, beyond = _shift(trends.shift, at)
        traces = _trend("shift, IN minus OUT", at, shift, (shift - beyond, shift + beyond), "@green", "solid")
        data += [trace | {"xaxis": "x2", "yaxis": "y2"} for trace in traces]
        layout |= fig.panel(1, *_trend_axes(traces, "Shift of the coordinate", (0.57, 1.0), at, short))
        alt += f" The expected shift ranges from {shift.min():.2g} to {shift.max():.2g}."
    return Figure("trends", BAYES_TITLE, _trends_caption(long), alt, data, layout)


def _trends_caption(coordinate: str) -> str:
    return (
        "How much the signals of a record vary over references, and how much training on the record shifts them, both "
        "against the centre of the signals. Bands hold two thirds of the records. The coordinate is that of "
        f"{BAYES}: {coordinate}. For a record with few references, these trends count as much as its own signals. "
        "Healthy: smooth curves, and a shift near 0 if nothing leaks."
    )


def _coordinate_names(coordinates: Coordinates) -> tuple[str, str]:
    """Name of the coordinate for an axis, and its description for the caption."""
    bent = f", bent by asinh(conf / {coordinates.bend:g})" if coordinates.bend else ""
    if len(coordinates.rotation or [0]) == 1:
        return f"the signal{bent}", f"the signal conf{bent or ' itself'}"
    of_views = "the first coordinate of the signals"
    return of_views + bent, f"{of_views} (close to the views' mean times sqrt(views)){bent}"


def _places(knots: Knots) -> FloatArray:
    """Centres at which the trends are drawn: the knots, or both ends if one knot makes the trend constant."""
    return np.array(knots.at if len(knots.at) > 1 else fig.apart(knots.low, knots.high))


def _at_places(values: FloatArray, at: FloatArray) -> FloatArray:
    return values if len(values) == len(at) else np.full(len(at), values[0])


def _shift(shift: ShiftTrend, at: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Prior mean of the shift of a record with typical spread, and its standard deviation."""
    lines = np.array(shift.lines)[:, 0]
    mean = lines[:, 0].copy()
    if len(lines) > 1:
        mean += lines[:, 1] * (at - at.mean()) / (at[-1] - at[0])
    spread = np.sqrt(np.array(shift.spread)[:, 0])
    return _at_places(mean, at), _at_places(spread, at)


def _trend(
    name: str, at: FloatArray, middle: FloatArray, ends: tuple[FloatArray, FloatArray], colour: str, dash: str
) -> list[Spec]:
    hover = "%{fullData.name}: %{y:.3~g} at %{x:.3~g}<extra></extra>"
    return [
        fig.band(f"{name}, two thirds", at, *ends, colour, legendgroup=name),
        fig.line(name, at, middle, colour, dash=dash, legendgroup=name, hovertemplate=hover),
    ]


def _trend_axes(
    traces: list[Spec], title: str, domain: tuple[float, float], at: FloatArray, coordinate: str
) -> tuple[Axis, Axis]:
    values = [y for trace in traces for y in trace["y"] if y is not None]
    low, high = min(0.0, *values), max(0.0, *values)
    across = fig.linear_axis(f"Centre of {coordinate}", float(at[0]), float(at[-1]), about=4)
    return replace(across, domain=domain), fig.linear_axis(title, low, high + 0.08 * (high - low), about=5)


def losses_figure(content: Content) -> Figure | Absent:
    """Training curves of the target and of its references."""
    title = "Training curves"
    if not content.training:
        return Absent("losses", title, "There are no training records, since plmia did not train the models.")
    losses = {model: record.losses for model, record in content.training.items()}
    longest = max(map(len, losses.values()))
    if longest < 2:
        return Absent("losses", title, "The recipe keeps no loss per epoch, so there are no curves to draw.")
    epochs = np.unique(np.round(np.geomspace(1, longest, min(longest, 200))).astype(int))
    # A loss that was not finite is None in the records, and a gap in the curve.
    curves = {k: np.array(curve, np.float64)[epochs - 1] for k, curve in losses.items() if len(curve) == longest}
    data: list[Spec] = []
    if references := [curve for model, curve in curves.items() if model != content.target]:
        low, middle, high = _range_and_median(np.array(references))
        data.append(fig.band("references, all", epochs, low, high, "@blue", legendgroup="r"))
        data.append(fig.line("references (median and range)", epochs, middle, "@blue", legendgroup="r"))
    if content.target in curves:
        own = curves[content.target]
        data.append(fig.line(f"target {content.target}", epochs, own, "@vermilion", dash="dash", width=2.5))
    positive = [value for trace in data for value in trace["y"] if value is not None and value > 0]
    if not positive:
        return Absent("losses", title, "Every recorded loss is 0 or not finite and cannot be drawn on a log scale.")
    bottom, top = min(positive), max(positive)
    ticks = _log_ticks(bottom, top)
    up = Axis("Training loss", bottom / 1.3, top * 1.3, ticks, [f"{tick:g}" for tick in ticks], log=True)
    return Figure(
        "losses",
        title,
        "Mean training loss per epoch. Healthy: the curve of the target lies within the range of its references, "
        "which suggests that it was trained in the same way.",
        f"Training loss over {longest} epochs of {len(content.training)} models, from {top:.3g} to {bottom:.3g}.",
        data,
        fig.one_panel(fig.linear_axis("Epoch", 1, longest), up),
        380,
    )


def _range_and_median(curves: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Minimum, median and maximum of the finite values of curves [curves, epochs] per epoch; NaN if there are none."""
    # A median is half of a sum, which must be finite, too.
    known = np.ma.masked_invalid(np.where(np.abs(curves) < sys.float_info.max / 4, curves, np.nan))
    low, middle, high = (part(known, axis=0).filled(np.nan) for part in (np.ma.min, np.ma.median, np.ma.max))
    return low, middle, high


def _log_ticks(bottom: float, top: float) -> list[float]:
    """Ticks of a logarithmic axis: several per decade for few decades, one per several decades for many."""
    first, last = math.floor(math.log10(bottom)), math.ceil(math.log10(top))
    steps = (1, 2, 5) if top < 1000 * bottom else (1,)
    return [step * 10.0**k for k in range(first, last + 1, max(1, (last - first) // 8)) for step in steps]


def accuracies_figure(content: Content) -> Figure | Absent:
    """Accuracy of every model on its own training records and on the others."""
    title = "Accuracy of the models"
    known = {model: pair for model, record in content.training.items() if (pair := record.accuracies)}
    if not known:
        return Absent("accuracies", title, "There are no training records with accuracies.")
    rows = (("on other records", "@vermilion", "square"), ("on training records", "@blue", "circle"))
    data: list[Spec] = []
    for row, (words, colour, symbol) in enumerate(rows):
        accuracy = {model: pair[1 - row] for model, pair in known.items()}
        for own in (False, True):
            chosen = {model: value for model, value in accuracy.items() if (model == content.target) == own}
            data += _accuracy_trace(chosen, row, words, colour, symbol, own=own)
    values = [value for pair in known.values() for value in pair]
    train, test = (float(np.mean([pair[i] for pair in known.values()])) for i in (0, 1))
    gap = max(0.02, 0.06 * (max(values) - min(values)))
    return Figure(
        "accuracies",
        title,
        "Accuracy of each model on its training records and on the other records; the target is the large open "
        "marker. Vertical spread within a row only separates the markers. Healthy: the target lies among its "
        "references. Attacks exploit a wide gap between the two rows.",
        f"Mean accuracy is {percent(train)} on training records and {percent(test)} on others, over {len(known)} "
        "models.",
        data,
        fig.one_panel(
            fig.percent_axis("Accuracy", max(0.0, min(values) - gap), 1.0 + gap / 2),
            Axis("", -0.6, 1.6, [0, 1], ["other records", "training records"]),
        ),
        260,
    )


def _accuracy_trace(
    accuracy: Mapping[int, float], row: int, words: str, colour: str, symbol: str, *, own: bool
) -> Iterator[Spec]:
    if not accuracy:
        return
    # A fixed vertical spread separates models with equal accuracy.
    y = [row + (0.0 if own else 0.28 * math.sin(2.4 * i)) for i in range(len(accuracy))]
    texts = [f"model {model}: {percent(value)} {words}" for model, value in accuracy.items()]
    name, size = ("target", 14) if own else ("references", 7)
    x = list(accuracy.values())
    yield fig.points(f"{name}, {words}", x, y, colour, symbol, size=size, hollow=own, texts=texts)
