"""Figures that say whether the numbers can be trusted: p-values, false-positive rates, references, training."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from plmia.attacks.moments import FloatArray
from plmia.reporting.content import Content, accuracies, nice_percent, percent, seconds, sentence
from plmia.reporting.plots import (
    Absent,
    Axis,
    Figure,
    Spec,
    band,
    bars,
    error_bars,
    line,
    linear_axis,
    log_percent_axis,
    points,
)
from plmia.reporting.theme import series

RULES = {
    "conformal": "conformal",
    "class-conformal": "conformal by class",
    "held-out": "held-out quantile",
    "tolerance": "tolerance limit",
    "modelled-tail": "modelled tail",
    "analytic": "analytic (the paper's)",
}


def p_values_figure(content: Content) -> Figure | Absent:
    """Histograms of pairwise p-values with the uniform line (`fig:pvalue_distribution`)."""
    title = "Pairwise p-values"
    found = content.entry().get("diagnostics", {}).get("pairwise_p")
    if not found or not sum(found["non_members"]) or found["distance"] is None:
        why = (found or {}).get("warning") or "this run kept no pairwise p-values: run it again"
        return Absent("p-values", title, sentence(why))
    n = len(found["members"])
    centres = (np.arange(n) + 0.5) / n
    data, tallest = [], 1.0
    for name, key, colour in (("non-members", "non_members", "@orange"), ("members", "members", "@blue")):
        density = n * np.array(found[key]) / max(1, sum(found[key]))
        tallest = max(tallest, float(density.max()))
        hover = "density %{y:.2f} of %{fullData.name}<extra></extra>"
        data.append(bars(name, centres, density, 1 / n, colour, hovertemplate=hover))
    data.append(line("uniform", [0, 1], [1, 1], "@ink", dash="dash", hoverinfo="skip"))
    return Figure(
        "p-values",
        title,
        f"{content.attack} compares each record with each known non-member; members should have small p-values. "
        "Healthy: the non-members' histogram follows the dashed uniform line. Where it does not, a threshold that "
        "trusts these p-values is wrong, and the conformal one is used instead.",
        f"Histogram of pairwise p-values in {n} bins. The non-members' distance from the uniform law is "
        f"{found['distance']:.3f}.",
        data,
        {
            "xaxis": linear_axis("Pairwise p-value", 0, 1, about=5).to_json(),
            "yaxis": linear_axis("Density (1 is uniform)", 0, 1.08 * tallest).to_json(),
            "barmode": "overlay",
        },
    )


def false_positives_figure(content: Content) -> Figure | Absent:
    """Nominal against realised false-positive rate of every rule (`fig:cauchy_fpr_agreement`)."""
    title = "Does each threshold keep its promise?"
    entry = content.entry()
    curve = entry.get("diagnostics", {}).get("realised_fpr")
    if not curve:
        return Absent("fpr", title, "This run kept no realised false-positive rates: run again.")
    low = min(curve["levels"][0], 10.0 ** math.floor(math.log10(1 / curve["n_non_members"])))
    data = [line("exact", [low, 1], [low, 1], "@soft", dash="dash", width=1.5, hoverinfo="skip")]
    for key, colour in (("combined", series(5)[0]), ("conformal", series(0)[0])):
        if curve[key]:
            data += _curve(f"{key} p-value", curve["levels"], curve[key], low, colour)
    for number, (rule_name, words) in enumerate(RULES.items()):
        data += _rule_points(entry["decisions"].get(rule_name, {}), words, number, low)
    broken = [RULES[f["rule"]] for f in entry["diagnostics"]["failed_checks"]]
    said = f" Refuted by the known non-members: {', '.join(sorted(set(broken)))}." if broken else ""
    return Figure(
        "fpr",
        title,
        f"Share of {curve['n_non_members']:,} non-members that each rule really accuses, against the rate it promises, "
        "with 95 % intervals. Healthy: on the dashed line or below it. Points above it accuse more innocent records "
        "than they admit; a rate of 0 is drawn at the lower edge. Markers are shifted sideways so that all are seen; "
        "a rule is left out at levels where it refuses to decide.",
        "Realised against nominal false-positive rates on a log-log scale."
        + said
        + _realised_at(entry["decisions"].get("conformal", {})),
        data,
        {
            "xaxis": log_percent_axis("Nominal false-positive rate (promised)", low).to_json(),
            "yaxis": log_percent_axis("Realised false-positive rate", low / 1.15, 1.2).to_json(),
            "hovermode": "closest",
        },
        480,
    )


def _curve(name: str, levels: Sequence[float], rates: Mapping[str, Any], low: float, colour: str) -> Iterator[Spec]:
    bottom, top, realised = ([max(low, value) for value in rates[key]] for key in ("low", "high", "realised"))
    yield band(f"{name}, 95 %", levels, bottom, top, colour, legendgroup=name)
    hover = "%{fullData.name}: %{y:.3~%} realised at %{x:.3~%}<extra></extra>"
    yield line(name, levels, realised, colour, legendgroup=name, hovertemplate=hover)


def _rule_points(decisions: Mapping[str, Any], words: str, number: int, low: float) -> Iterator[Spec]:
    made = [d for d in decisions.values() if d["fpr_realised"] is not None]
    if not made:
        return
    colour, _, symbol = series(number)
    # A little to one side of each other, or the rules would hide each other where they agree.
    x = [d["level"] * 10 ** (0.05 * (number - 2.5)) for d in made]
    y, bottom, top = ([max(low, d[key]) for d in made] for key in ("fpr_realised", "fpr_low", "fpr_high"))
    texts = [
        f"{words} at {nice_percent(d['level'])}: {percent(d['fpr_realised'])} "
        f"({percent(d['fpr_low'])} to {percent(d['fpr_high'])}) of non-members, {percent(d['tpr'])} of members"
        for d in made
    ]
    hover = "%{text}<extra></extra>"
    errors = error_bars(y, bottom, top, colour)
    yield points(words, x, y, colour, symbol, size=9, error_y=errors, text=texts, hovertemplate=hover)


def _realised_at(decisions: Mapping[str, Any]) -> str:
    made = [d for d in decisions.values() if d["fpr_realised"] is not None]
    shares = ", ".join(f"{percent(d['fpr_realised'])} at {nice_percent(d['level'])}" for d in made)
    return f" The conformal rule realises {shares}." if made else ""


def references_figure(content: Content) -> Figure | Absent:
    """Power against the number of references, measured and extrapolated, with what they cost."""
    title = "Would more references find more?"
    found = _references(content)
    if not found:
        return Absent(
            "references", title, "Power with fewer references was not measured in this run: `plmia plan` measures it."
        )
    curves = [curve for curve in found["curves"] if len(curve["budgets"]) > 1]
    if not curves:
        few = max(content.about["references"])
        return Absent("references", title, f"Of {few} references too few can be left out to see: train more of them.")
    auc = [curve for curve in curves if curve["metric"] == "auc"]
    rates = [curve for curve in curves if curve["metric"] != "auc"]
    data: list[Spec] = []
    layout: Spec = {"hovermode": "closest"}
    # One curve has no legend, so the axis names it.
    rate = _name(rates[0]) if len(rates) == 1 else "True-positive rate"
    panels = [(part, words) for part, words in ((auc, "AUC"), (rates, rate)) if part]
    for k, (part, words) in enumerate(panels):
        ref = "" if k == 0 else str(k + 1)
        width = (1 - 0.14 * (len(panels) - 1)) / len(panels)
        domain = (k * (width + 0.14), k * (width + 0.14) + width)
        traces = [t for number, curve in enumerate(part) for t in _power_traces(curve, 3 * k + number, ref)]
        data += traces
        layout |= _power_axes(traces, words, domain, ref, _model_seconds(content))
    cost = _model_seconds(content)
    said = f" Training one model took {seconds(cost)} on average." if cost else ""
    foreseen = any(curve.get("at_2x") is not None for curve in curves)
    return Figure(
        "references",
        title,
        f"Power of {found['attack']} with all, half, a quarter ... of its references (dots; bars are one standard "
        "deviation over draws)"
        + (", and what a fitted curve expects of more of them (dashed)." if foreseen else ".")
        + said
        + " Healthy: the curve is flat at its right end, so a larger audit would say the same.",
        " ".join(_expected(curve) for curve in curves),
        data,
        layout,
    )


def _references(content: Content) -> dict[str, Any] | None:
    """What the run measured with fewer references: for the chosen target if it is there, else for any."""
    found: Any = content.metrics.get("diagnostics", {}).get("references")
    if isinstance(found, list):
        found = {str(entry.get("target")): entry for entry in found}
    if isinstance(found, dict) and found and "curves" not in found:
        found = found.get(str(content.target)) or next(iter(found.values()))
    return found if isinstance(found, dict) and found.get("curves") else None


def _model_seconds(content: Content) -> float | None:
    times = [record["seconds"] for record in content.training.values() if record.get("seconds")]
    return sum(times) / len(times) if times else None


def _name(curve: Mapping[str, Any]) -> str:
    return "AUC" if curve["metric"] == "auc" else f"TPR at {nice_percent(float(curve['metric']))} FPR"


def _power_traces(curve: Mapping[str, Any], number: int, ref: str) -> Iterator[Spec]:
    colour, _, symbol = series(number)
    name = _name(curve)
    on: Spec = {"xaxis": f"x{ref}", "yaxis": f"y{ref}"}
    budgets, mean = curve["budgets"], np.array(curve["mean"])
    spread = np.array([d or 0.0 for d in curve["deviation"]])
    hover = "%{fullData.name} with %{x} references: %{y:.4~%}<extra></extra>"
    errors = error_bars(mean, np.maximum(mean - spread, 0), np.minimum(mean + spread, 1), colour)
    yield line(name, budgets, mean, colour, legendgroup=name, showlegend=False, hoverinfo="skip", **on)
    yield points(name, budgets, mean, colour, symbol, error_y=errors, legendgroup=name, hovertemplate=hover, **on)
    more = [(factor * budgets[-1], curve.get(f"at_{factor}x")) for factor in (2, 4, 8)]
    beyond = [(n, value) for n, value in more if value is not None]
    if beyond:
        x, y = zip((budgets[-1], mean[-1]), *beyond, strict=True)
        told = hover.replace("references", "references (extrapolated)")
        yield line(name, x, y, colour, dash="dash", legendgroup=name, showlegend=False, hovertemplate=told, **on)


def _power_axes(traces: Sequence[Spec], words: str, domain: tuple[float, float], ref: str, cost: float | None) -> Spec:
    x = sorted({n for trace in traces for n in trace["x"]})
    y = [value for trace in traces for value in _reach(trace)]
    gap = max(0.12 * (max(y) - min(y)), 0.01)
    ticks = [n for i, n in enumerate(x) if i == 0 or n >= 1.6 * x[i - 1]]
    labels = [f"{n:g}" for n in ticks]
    title = "References"
    if cost:
        labels = [f"{n:g}\n{seconds(n * cost)}" for n in ticks]
        title = "References (time to train them)"
    across = Axis(title, x[0] / 1.15, x[-1] * 1.15, ticks, labels, log=True, domain=domain)
    up = linear_axis(words, max(0.0, min(y) - gap), min(1.0, max(y) + gap), scale=100, unit=" %")
    return {f"xaxis{ref}": across.to_json(f"y{ref}"), f"yaxis{ref}": up.to_json(f"x{ref}")}


def _reach(trace: Spec) -> Iterator[float]:
    """All heights that a trace needs: of its points, and of the ends of its error bars."""
    bars = trace.get("error_y")
    for k, value in enumerate(trace["y"]):
        if value is not None:
            yield value
            if bars:
                yield from (value + bars["array"][k], value - bars["arrayminus"][k])


def _expected(curve: Mapping[str, Any]) -> str:
    now, doubled = curve["mean"][-1], curve.get("at_2x")
    more = f", about {percent(doubled)} with twice as many" if doubled is not None else ""
    return f"{_name(curve)} is {percent(now)} with {curve['budgets'][-1]} references{more}."


def losses_figure(content: Content) -> Figure | Absent:
    """Training curves of the target and of its references."""
    title = "Training curves"
    if not content.training:
        return Absent("losses", title, "There are no training records: the signals were made elsewhere.")
    losses = {model: record.get("losses") or [] for model, record in content.training.items()}
    longest = max(map(len, losses.values()))
    if longest < 2:
        return Absent("losses", title, "The recipe keeps no loss by epoch, so there are no curves to draw.")
    # A loss that was not a finite number is None in the records, and a gap in the curve.
    whole = {model: np.array(curve, np.float64) for model, curve in losses.items() if len(curve) == longest}
    others = np.array([curve for model, curve in whole.items() if model != content.target])
    x = np.unique(np.round(np.geomspace(1, longest, min(longest, 200))).astype(int))
    data: list[Spec] = []
    if len(others):
        low, middle, high = _range_and_median(others[:, x - 1])
        data.append(band("references, all", x, low, high, "@blue", legendgroup="r"))
        data.append(line("references (median, and range of all)", x, middle, "@blue", legendgroup="r"))
    if content.target in whole:
        own = whole[content.target][x - 1]
        data.append(line(f"target {content.target}", x, own, "@vermilion", dash="dash", width=2.5))
    drawn = np.array([value for trace in data for value in trace["y"]], np.float64)
    positive = drawn[drawn > 0]
    if not len(positive):
        return Absent("losses", title, "Every recorded loss is 0 or not finite, which a logarithmic axis cannot show.")
    bottom, top = float(positive.min()), float(positive.max())
    ticks = _log_ticks(bottom, top)
    up = Axis("Training loss", bottom / 1.3, top * 1.3, ticks, [f"{tick:g}" for tick in ticks], log=True)
    return Figure(
        "losses",
        title,
        "Mean training loss of each epoch. Healthy: the target's curve lies within the range of its references, which "
        "says that it was trained as they were.",
        f"Training loss over {longest} epochs of {len(content.training)} models, from {top:.3g} to {bottom:.3g}.",
        data,
        {"xaxis": linear_axis("Epoch", 1, longest).to_json(), "yaxis": up.to_json(), "hovermode": "closest"},
        380,
    )


def _range_and_median(curves: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Least, middle and largest finite value of curves [curves, epochs] at each epoch; NaN where there is none."""
    # A median is half of a sum, which must be finite, too.
    known = np.ma.masked_invalid(np.where(np.abs(curves) < sys.float_info.max / 4, curves, np.nan))
    low, middle, high = (part(known, axis=0).filled(np.nan) for part in (np.ma.min, np.ma.median, np.ma.max))
    return low, middle, high


def _log_ticks(bottom: float, top: float) -> list[float]:
    """Ticks of a logarithmic axis: several per decade where there are few decades, one per several where many."""
    first, last = math.floor(math.log10(bottom)), math.ceil(math.log10(top))
    steps = (1, 2, 5) if top < 1000 * bottom else (1,)
    return [step * 10.0**k for k in range(first, last + 1, max(1, (last - first) // 8)) for step in steps]


def accuracies_figure(content: Content) -> Figure | Absent:
    """Accuracy of every model on its own points and on the others."""
    title = "Accuracy of the models"
    known = {model: pair for model, record in content.training.items() if (pair := accuracies(record)) is not None}
    if not known:
        return Absent("accuracies", title, "There are no training records with accuracies.")
    data = []
    kinds = (
        ("on points it did not train on", "on points they did not train on", 1, "@vermilion", "square"),
        ("on its own points", "on their own points", 0, "@blue", "circle"),
    )
    for k, (words, of_many, which, colour, symbol) in enumerate(kinds):
        for own in (False, True):
            chosen = [model for model in known if (model == content.target) == own]
            x = [known[model][which] for model in chosen]
            # A fixed spread over the height tells models with equal accuracy apart.
            y = [k + (0.0 if own else 0.28 * math.sin(2.4 * i)) for i in range(len(chosen))]
            name = f"target, {words}" if own else f"references, {of_many}"
            style: Spec = {"size": 14, "hollow": True} if own else {"size": 7}
            texts = [f"model {model}: {percent(value)} {words}" for model, value in zip(chosen, x, strict=True)]
            hover = "%{text}<extra></extra>"
            if chosen:
                data.append(points(name, x, y, colour, symbol, text=texts, hovertemplate=hover, **style))
    values = [value for pair in known.values() for value in pair]
    train, test = (float(np.mean([pair[i] for pair in known.values()])) for i in (0, 1))
    gap = max(0.02, 0.06 * (max(values) - min(values)))
    return Figure(
        "accuracies",
        title,
        "Accuracy of each model on the points it trained on and on the others, one above the other where they are "
        "alike; the target is the large open marker. "
        "Healthy: the target lies among its references. A wide gap between the two rows is what attacks live on.",
        f"Mean accuracy is {percent(train)} on own points and {percent(test)} on others, over {len(known)} models.",
        data,
        {
            "xaxis": linear_axis(
                "Accuracy", max(0.0, min(values) - gap), 1.0 + gap / 2, scale=100, unit=" %"
            ).to_json(),
            "yaxis": Axis("", -0.6, 1.6, [0, 1], ["other points", "own points"]).to_json(),
            "hovermode": "closest",
        },
        260,
    )
