"""Figures of "What leaks": ROC curves, and true-positive rates at fixed false-positive rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plmia.data.arrays import FloatArray
from plmia.errors import percent, round_percent
from plmia.evaluation.intervals import roc_band
from plmia.evaluation.metrics import Roc
from plmia.reporting.content import Content
from plmia.reporting.plots import figure as fig
from plmia.reporting.plots.colours import series
from plmia.reporting.plots.figure import Absent, Figure, Spec
from plmia.results.result import AttackSummary

RATES = (0.01, 0.001, 0.0001, 0.0)
CURVE_POINTS = 160
# A group of ties with at least this share of the non-members makes a visibly flat part of the curve.
MANY_TIED = 0.05
# Upper end of an axis of shares, so that markers at 100 % are drawn whole.
TOP = 1.2
# Distance of the smallest value from the end of a logarithmic axis, as a factor.
EDGE = 1.15
# A logarithmic axis of shares starts at this value or below.
LOWEST_SHARE = 0.1


@dataclass(frozen=True)
class Rate:
    """True-positive rate with the ends of its interval."""

    tpr: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{percent(self.tpr)} ({self.ends})"

    @property
    def ends(self) -> str:
        """The interval in words."""
        return f"{percent(self.low)} to {percent(self.high)}"


def rate_at(attack: AttackSummary, fpr: float) -> Rate | None:
    """TPR at a false-positive rate, mean over targets; None if the data do not resolve it."""
    found = attack.tpr[fpr]
    if not found.resolved:
        return None
    interval = found.interval or attack.per_target[0].tpr[fpr].interval
    return Rate(found.mean, interval.low, interval.high)


def roc_figure(content: Content) -> Figure | Absent:
    """Log-log ROC curves of all attacks on one target, each with its band."""
    title = "Members found at each false-positive rate"
    if np.count_nonzero(~content.members) < 2:
        reason = "A ROC curve needs 2 evaluated non-members, but there is 1. Choose a smaller population."
        return Absent("roc", title, reason)
    attacks = content.saved.attacks
    curves = {name: content.saved.roc(name, content.target) for name in attacks}
    least = min(1 / roc.n_non_members for roc in curves.values())
    low = 10.0 ** (math.floor(math.log10(least) * 4) / 4)
    data = [fig.line("chance", [low, 1.0], [low, 1.0], "@soft", dash="dash", width=1.5, hoverinfo="skip")]
    # The chosen attack comes last, so that it lies above the others.
    for name in sorted(attacks, key=lambda name: name == content.attack):
        traces = _roc_traces(name, curves[name], attacks.index(name), chosen=name == content.attack)
        data += [_above(trace, low) for trace in traces]
    data += _verdict_trace(content, low)
    found, rate = curves[content.attack].tpr_at(content.level), round_percent(content.level)
    return Figure(
        "roc",
        title,
        _roc_caption(content, curves),
        f"ROC curves of {len(attacks)} attacks on a log-log scale. {content.attack} finds {percent(found.tpr)} of "
        f"the members at a false-positive rate of {rate}; chance finds {rate}.",
        data,
        fig.one_panel(
            fig.log_percent_axis("False-positive rate (non-members flagged)", low),
            fig.log_percent_axis("True-positive rate (members found)", low, TOP),
        ),
        480,
    )


def _roc_caption(content: Content, curves: dict[str, Roc]) -> str:
    bar = "" if content.verdict.fpr is None else ", such as the verdict's (the vertical bar)"
    ties = [
        name for name, roc in curves.items() if int(np.diff(roc.false_positives).max()) >= MANY_TIED * roc.n_non_members
    ]
    caption = (
        f"ROC curves on target {content.target}, both axes logarithmic. Low false-positive rates, at the left, matter "
        f"most. The shaded band covers the whole true curve of {content.attack} with 95 % confidence, so it is wider "
        f"than an interval at one rate{bar}. The button shows the bands of the other attacks. A model that leaks "
        "nothing stays on the dashed line of chance."
    )
    if ties:
        names = f"{', '.join(ties[:-1])}{' and ' * (len(ties) > 1)}{ties[-1]}"
        caption += (
            " Records with equal scores are flagged together, and the AUC counts such ties half. A large group of "
            f"ties makes a flat part of the curve, as for {names}."
        )
    return caption


def _verdict_trace(content: Content, low: float) -> Iterator[Spec]:
    """Yield the verdict's rate with its interval, if it has one."""
    verdict = content.verdict
    if verdict.fpr is None or verdict.tpr is None or verdict.interval is None:
        return
    found = Rate(verdict.tpr, verdict.interval.low, verdict.interval.high)
    y, bottom, top = ([max(low, value)] for value in (found.tpr, found.low, found.high))
    mean = f", mean over {verdict.targets} targets" if verdict.targets > 1 else ""
    text = f"verdict: {verdict.attack} finds {found} at {round_percent(verdict.fpr)} FPR{mean}"
    errors = fig.error_bars(y, bottom, top, "@ink")
    name = "the verdict and its interval"
    yield fig.points(name, [verdict.fpr], y, "@ink", "diamond", size=9, error_y=errors, texts=[text])


def _roc_traces(name: str, roc: Roc, number: int, *, chosen: bool) -> Iterator[Spec]:
    x, y = thinned(roc)
    low, high = roc_band(roc).at(x)
    colour, dash, _ = series(number)
    hidden: Spec = {} if chosen else {"visible": False}
    yield fig.band(f"{name}, 95 % band", x, low, high, colour, legendgroup=name, **hidden)
    style: Spec = {"width": 3.5} if chosen else {"width": 1.8, "dash": dash}
    hover = "%{fullData.name}: %{y:.3~%} of members at a false-positive rate of %{x:.3~%}<extra></extra>"
    yield fig.line(name, x, y, colour, shape="hv", hovertemplate=hover, legendgroup=name, **style)


def thinned(roc: Roc, n: int = CURVE_POINTS) -> tuple[FloatArray, FloatArray]:
    """Rates at no more than ``n`` numbers of false positives, evenly spaced in the logarithm and not interpolated."""
    total = roc.n_non_members
    allowed = np.unique(np.round(np.geomspace(1, total, n)).astype(np.int64))
    at = np.searchsorted(roc.false_positives, allowed, side="right") - 1
    return allowed / total, roc.tpr[at]


def _above(trace: Spec, low: float) -> Spec:
    """Return the trace limited to values from ``low`` on, since a logarithmic axis has no zero."""
    if trace.get("fill"):
        return trace | {"y": [max(low, y) for y in trace["y"]]}
    return trace | {"y": [y if y and y >= low else None for y in trace["y"]]}


def tpr_figure(content: Content) -> Figure:
    """TPR of each attack at fixed false-positive rates, with intervals."""
    attacks = list(content.result.attacks)
    found = {fpr: rates for fpr in RATES if (rates := _rates_at(content, fpr))}
    values = [value for rates in found.values() for rate in rates.values() for value in (rate.tpr, rate.low, rate.high)]
    values += list(found)
    least = min((v for v in values if v > 0), default=0.01)
    low = 10.0 ** (math.floor(math.log10(min(least, LOWEST_SHARE)) * 2) / 2)
    # A single rate has no legend, so the axis names it.
    at = f" at {round_percent(next(iter(found)))} FPR" if len(found) == 1 else ""
    return Figure(
        "tpr",
        "Members found at fixed false-positive rates",
        _tpr_caption(content, found),
        "Dot plot. " + " ".join(_best_at(fpr, rates) for fpr, rates in found.items()),
        [_rate_trace(attacks, fpr, rates, k, len(found), low) for k, (fpr, rates) in enumerate(found.items())],
        fig.one_panel(
            fig.log_percent_axis(f"True-positive rate{at} (members found)", low / EDGE, TOP),
            fig.Axis("", -0.6, len(attacks) - 0.4, range(len(attacks)), attacks[::-1]),
            shapes=[fig.vertical_line(fpr, series(k)[0]) for k, fpr in enumerate(found) if fpr > 0],
        ),
        max(320, 110 + 44 * len(attacks)),
    )


def _tpr_caption(content: Content, fprs: Iterable[float]) -> str:
    n_targets = len(content.saved.targets)
    who, intervals = f"target {content.target}", "that include the uncertainty of the threshold"
    if n_targets > 1:
        who, intervals = f"mean over {n_targets} targets", "over targets"
    elif list(fprs) == [0.0]:
        intervals = "given the threshold"
    caption = (
        f"Share of members found by each attack ({who}), with 95 % intervals {intervals}. A dotted line marks chance "
        "at the rate of the same colour. Healthy: no interval lies entirely to the right of its dotted line. Rates "
        "that the number of non-members cannot resolve are left out; 0 is drawn at the left edge."
    )
    if 0.0 in fprs and n_targets == 1:
        caption += (
            " At 0 % FPR the non-member with the highest score sets the threshold. The interval treats this threshold "
            "as fixed, so it is too short for another sample of non-members."
        )
    return caption


def _rates_at(content: Content, fpr: float) -> dict[str, Rate]:
    """TPR of each attack for which the data resolve it."""
    return {name: rate for name, attack in content.result.attacks.items() if (rate := rate_at(attack, fpr))}


def _rate_trace(
    attacks: Sequence[str], fpr: float, rates: Mapping[str, Rate], number: int, n_fprs: int, low: float
) -> Spec:
    """One dot per attack, the first attack on top; dots of different false-positive rates are shifted apart."""
    colour, _, symbol = series(number)
    at = [len(attacks) - 1 - attacks.index(name) + 0.17 * ((n_fprs - 1) / 2 - number) for name in rates]
    tpr, bottom, top = np.maximum([(rate.tpr, rate.low, rate.high) for rate in rates.values()], low).T
    legend = f"at {round_percent(fpr)} FPR"
    texts = [f"{name}: {rate} {legend}" for name, rate in rates.items()]
    errors = fig.error_bars(tpr, bottom, top, colour)
    return fig.points(legend, tpr, at, colour, symbol, size=9, error_x=errors, texts=texts)


def _best_at(fpr: float, rates: Mapping[str, Rate]) -> str:
    name, best = max(rates.items(), key=lambda pair: pair[1].tpr)
    return f"At a false-positive rate of {round_percent(fpr)} the best attack is {name} with {best}."
