"""Figures of "Can the numbers be trusted?": false-positive rates, p-values, and power by number of references."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from plmia.errors import percent, round_percent, sentence
from plmia.evaluation.decisions import Decision
from plmia.evaluation.diagnostics.p_values import Rates
from plmia.evaluation.diagnostics.power import Curve
from plmia.reporting.content import Content
from plmia.reporting.plots import figure as fig
from plmia.reporting.plots.colours import series
from plmia.reporting.plots.figure import Absent, Axis, Figure, Spec

RULES = {
    "conformal": "conformal",
    "class-conformal": "conformal by class",
    "held-out": "held-out quantile",
    "tolerance": "tolerance limit",
    "modelled-tail": "modelled tail",
    "analytic": "analytic (the paper's)",
}


def false_positives_figure(content: Content) -> Figure | Absent:
    """Nominal against realised false-positive rate of every rule (`fig:cauchy_fpr_agreement`)."""
    title = "Does each threshold keep its false-positive rate?"
    entry = content.entry()
    curve = entry.diagnostics.realised_fpr
    if curve is None:
        return Absent("fpr", title, "This run kept no realised false-positive rates. Run it again with this version.")
    low = min(curve.levels[0], 10.0 ** math.floor(math.log10(1 / curve.n_non_members)))
    data = [fig.line("exact", [low, 1], [low, 1], "@soft", dash="dash", width=1.5, hoverinfo="skip")]
    for name, rates, number in (("combined", curve.combined, 5), ("conformal", curve.conformal, 0)):
        if rates is not None:
            data += _realised_curve(f"{name} p-value", curve.levels, rates, low, series(number)[0])
    for number, (rule, words) in enumerate(RULES.items()):
        data += _rule_points(_made(entry.decisions.get(rule, {})), words, number, low)
    refuted = sorted({RULES[check.rule] for check in entry.diagnostics.failed_checks})
    return Figure(
        "fpr",
        title,
        f"Share of {curve.n_non_members:,} non-members that each rule flags, against its nominal rate, with 95 % "
        "intervals. Healthy: on the dashed line or below it. A point above the line flags more non-members than its "
        "nominal rate. A rate of 0 is drawn at the lower edge. Markers are shifted sideways to keep them visible. "
        "A rule is left out at levels where it cannot decide.",
        "Realised against nominal false-positive rates on a log-log scale."
        + (f" Refuted by the known non-members: {', '.join(refuted)}." if refuted else "")
        + _realised_by_conformal(_made(entry.decisions["conformal"])),
        data,
        fig.one_panel(
            fig.log_percent_axis("Nominal false-positive rate", low),
            fig.log_percent_axis("Realised false-positive rate", low / 1.15, 1.2),
        ),
        480,
    )


def _realised_curve(name: str, levels: Sequence[float], rates: Rates, low: float, colour: str) -> Iterator[Spec]:
    bottom, top, realised = ([max(low, value) for value in part] for part in (rates.low, rates.high, rates.realised))
    yield fig.band(f"{name}, 95 %", levels, bottom, top, colour, legendgroup=name)
    hover = "%{fullData.name}: %{y:.3~%} realised at %{x:.3~%}<extra></extra>"
    yield fig.line(name, levels, realised, colour, legendgroup=name, hovertemplate=hover)


def _made(decisions: Mapping[float, Decision]) -> list[Decision]:
    """Decisions at the levels at which the rule could decide."""
    return [decision for decision in decisions.values() if decision.fpr_realised is not None]


def _rule_points(made: Sequence[Decision], words: str, number: int, low: float) -> Iterator[Spec]:
    if not made:
        return
    colour, _, symbol = series(number)
    # Shifted sideways, since the rules would hide each other where they agree.
    x = [d.level * 10 ** (0.05 * (number - 2.5)) for d in made]
    y, bottom, top = (
        [max(low, value or 0.0) for value in part]
        for part in zip(*((d.fpr_realised, d.fpr_low, d.fpr_high) for d in made), strict=True)
    )
    texts = [
        f"{words} at {round_percent(d.level)}: {percent(d.fpr_realised)} "
        f"({percent(d.fpr_low)} to {percent(d.fpr_high)}) of non-members, {percent(d.tpr)} of members"
        for d in made
    ]
    errors = fig.error_bars(y, bottom, top, colour)
    yield fig.points(words, x, y, colour, symbol, size=9, error_y=errors, texts=texts)


def _realised_by_conformal(made: Sequence[Decision]) -> str:
    shares = ", ".join(f"{percent(d.fpr_realised)} at {round_percent(d.level)}" for d in made)
    return f" The conformal rule realises {shares}." if made else ""


def p_values_figure(content: Content) -> Figure | Absent:
    """Histograms of pairwise p-values with the uniform line (`fig:pvalue_distribution`)."""
    title = "Pairwise p-values"
    found = content.entry().diagnostics.pairwise_p
    if found is None or not sum(found.non_members) or found.distance is None:
        why = found.warning if found else None
        return Absent("p-values", title, sentence(why or "This run kept no pairwise p-values. Run it again."))
    n = len(found.members)
    centres = (np.arange(n) + 0.5) / n
    densities = [n * np.array(counts) / max(1, sum(counts)) for counts in (found.non_members, found.members)]
    hover = "density %{y:.2f} of %{fullData.name}<extra></extra>"
    return Figure(
        "p-values",
        title,
        f"{content.attack} compares each record with each known non-member; members should have small p-values. "
        "Healthy: the histogram of the non-members follows the dashed uniform line. If it does not, thresholds based "
        "on these p-values are wrong, and the conformal threshold is used instead.",
        f"Histogram of pairwise p-values in {n} bins. The distance of the non-members from the uniform distribution "
        f"is {found.distance:.3f}.",
        [
            fig.bars("non-members", centres, densities[0], 1 / n, "@orange", hovertemplate=hover),
            fig.bars("members", centres, densities[1], 1 / n, "@blue", hovertemplate=hover),
            fig.line("uniform", [0, 1], [1, 1], "@ink", dash="dash", hoverinfo="skip"),
        ],
        fig.one_panel(
            fig.linear_axis("Pairwise p-value", 0, 1, about=5),
            fig.linear_axis("Density (1 is uniform)", 0, 1.08 * max(1.0, float(np.max(densities)))),
            barmode="overlay",
        ),
    )


def references_figure(content: Content) -> Figure | Absent:
    """Power against the number of references, measured and extrapolated, with the training time."""
    title = "Would more references find more?"
    found = content.result.diagnostics.references
    if found is None or not found.curves:
        reason = "This run did not measure the power with fewer references. `plmia plan` measures it."
        return Absent("references", title, reason)
    curves = [curve for curve in found.curves if len(curve.budgets) > 1]
    if not curves:
        few = max(content.about.references)
        reason = f"{few} references are too few to measure the power with fewer of them. Train more references."
        return Absent("references", title, reason)
    data: list[Spec] = []
    layout: Spec = {}
    rates = [curve for curve in curves if curve.metric != "auc"]
    # A single curve has no legend, so the axis names it.
    rate_title = rates[0].name if len(rates) == 1 else "True-positive rate"
    groups = [([curve for curve in curves if curve.metric == "auc"], "AUC"), (rates, rate_title)]
    groups = [(group, words) for group, words in groups if group]
    for k, (group, words) in enumerate(groups):
        width = (1 - 0.14 * (len(groups) - 1)) / len(groups)
        domain = (k * (width + 0.14), k * (width + 0.14) + width)
        traces = [trace for i, curve in enumerate(group) for trace in _power_traces(curve, 3 * k + i, fig.panel_ref(k))]
        data += traces
        layout |= fig.panel(k, *_power_axes(traces, words, domain, content.mean_model_seconds))
    caption = _references_caption(found.attack, curves, content.mean_model_seconds)
    alt = " ".join(_expected_power(curve) for curve in curves)
    return Figure("references", title, caption, alt, data, layout)


def _references_caption(attack: str, curves: Sequence[Curve], seconds: float | None) -> str:
    extrapolated = any(curve.times(2) is not None for curve in curves)
    return (
        f"Power of {attack} with all, half, a quarter, ... of its references (dots, with one standard deviation over "
        "random subsets)"
        + (", and a fitted curve for more references (dashed)." if extrapolated else ".")
        + (f" Training one model took {fig.duration(seconds)} on average." if seconds else "")
        + " Healthy: the curve is flat at its right end, so a larger audit would find the same."
    )


def _power_traces(curve: Curve, number: int, ref: str) -> Iterator[Spec]:
    colour, _, symbol = series(number)
    name, budgets, mean = curve.name, curve.budgets, np.array(curve.mean)
    on: Spec = {"xaxis": f"x{ref}", "yaxis": f"y{ref}", "legendgroup": name}
    spread = np.array([d or 0.0 for d in curve.deviation])
    hover = "%{fullData.name} with %{x} references: %{y:.4~%}<extra></extra>"
    errors = fig.error_bars(mean, np.maximum(mean - spread, 0), np.minimum(mean + spread, 1), colour)
    yield fig.line(name, budgets, mean, colour, showlegend=False, hoverinfo="skip", **on)
    yield fig.points(name, budgets, mean, colour, symbol, error_y=errors, hovertemplate=hover, **on)
    more = [(factor * budgets[-1], curve.times(factor)) for factor in (2, 4, 8)]
    beyond = [(n, value) for n, value in more if value is not None]
    if beyond:
        x, y = zip((budgets[-1], mean[-1]), *beyond, strict=True)
        hover = hover.replace("references", "references (extrapolated)")
        yield fig.line(name, x, y, colour, dash="dash", showlegend=False, hovertemplate=hover, **on)


def _power_axes(
    traces: Sequence[Spec], words: str, domain: tuple[float, float], seconds: float | None
) -> tuple[Axis, Axis]:
    x = sorted({n for trace in traces for n in trace["x"]})
    y = [value for trace in traces for value in _heights(trace)]
    gap = max(0.12 * (max(y) - min(y)), 0.01)
    ticks = [n for i, n in enumerate(x) if i == 0 or n >= 1.6 * x[i - 1]]
    labels, title = [f"{n:g}" for n in ticks], "References"
    if seconds:
        labels, title = [f"{n:g}\n{fig.duration(n * seconds)}" for n in ticks], "References (time to train them)"
    across = Axis(title, x[0] / 1.15, x[-1] * 1.15, ticks, labels, log=True, domain=domain)
    return across, fig.percent_axis(words, max(0.0, min(y) - gap), min(1.0, max(y) + gap))


def _heights(trace: Spec) -> Iterator[float]:
    """Yield the heights of a trace's points and of the ends of its error bars."""
    errors = trace.get("error_y")
    for k, value in enumerate(trace["y"]):
        if value is not None:
            yield value
            if errors:
                yield from (value + errors["array"][k], value - errors["arrayminus"][k])


def _expected_power(curve: Curve) -> str:
    doubled = curve.times(2)
    more = f", about {percent(doubled)} with twice as many" if doubled is not None else ""
    return f"{curve.name} is {percent(curve.mean[-1])} with {curve.budgets[-1]} references{more}."
