"""Signals of single points with their fitted Gaussians (`fig:per_example_gaussian`)."""

from __future__ import annotations

import numpy as np

from plmia.attacks.view import References
from plmia.data.arrays import FloatArray
from plmia.evaluation.diagnostics.gaussianity import Gaussianity, gaussianity
from plmia.reporting.drawing import Figure, Spec, annotation, bars, line, linear_axis

from .charts import density
from .measure import CONFORMAL, attacks_called, measure
from .outcome import FAILS, HOLDS, PARTLY, Claim, Outcome, Rows, Value, paper_item
from .setting import Setting, Source

SHARES = (0.9, 0.5, 0.1)
SIDES = {"IN": "@blue", "OUT": "@vermilion"}
BINS = 9
# Generally aligned: a test rejects fewer than the first share of the points; in part: fewer than the second.
ALIGNED = (0.25, 0.5)


def run(setting: Setting) -> Outcome:
    """Show the points at three quantiles of Gaussianity, which are chosen by rank."""
    source = setting.source("cifar10_wrn")
    references = _references(source)
    tested = gaussianity(references)
    order = np.argsort(tested.score)
    chosen = {share: int(order[int(share * (len(order) - 1))]) for share in SHARES}
    ours: Rows = {}
    for share, point in chosen.items():
        for side, w, p in (("IN", tested.w_in, tested.p_in), ("OUT", tested.w_out, tested.p_out)):
            cells = {"W": f"{w[point]:.3f}", "p-value": f"{p[point]:.3g}"}
            ours[f"point {point}, quantile {share:g} of G", side] = dict(cells)
    for side, p in (("IN", tested.p_in), ("OUT", tested.p_out)):
        ours["all points, rejected at 5 % (%)", side] = {"p-value": Value(round(100 * float(np.mean(p < 0.05)), 2))}
    for name, measured in measure(source, attacks_called("pl-mia", "pl-mia-eb")).items():
        ours[f"{name}, {CONFORMAL}", "OUT"] = {"p-value": measured.cells()[CONFORMAL]}
    rejected = [float(np.mean(p < 0.05)) for p in (tested.p_in, tested.p_out)]
    claim = Claim(
        "aligned",
        HOLDS if max(rejected) < ALIGNED[0] else PARTLY if max(rejected) < ALIGNED[1] else FAILS,
        f"Shapiro-Wilk rejects a Gaussian distribution at 5 % for {100 * rejected[0]:.1f} % of the points IN and "
        f"{100 * rejected[1]:.1f} % OUT, with {len(references.rows) // 2} references per side (5 % would be chance) "
        f"[generally: fewer than {100 * ALIGNED[0]:g} %; in part: fewer than {100 * ALIGNED[1]:g} %]; "
        f"median W {np.median(tested.w_in):.3f} and {np.median(tested.w_out):.3f}.",
    )
    return Outcome("figure-s1", (source,), ours, (), (_drawn(references, chosen, tested),), (claim,))


def _references(source: Source) -> References:
    rows = np.concatenate([split for split in source.signals.design.splits() if len(split) == 2])
    return References(source.signals.values, rows, source.signals.design.matrix[rows])


def _drawn(references: References, chosen: dict[float, int], tested: Gaussianity) -> Figure:
    data: list[Spec] = []
    layout: Spec = {"annotations": []}
    width = (1 - 0.16) / len(chosen)
    for i, (share, point) in enumerate(chosen.items()):
        ref, left = str(i + 1) if i else "", i * (width + 0.08)
        values = {side: _side(references, point, side == "IN") for side in SIDES}
        everyone = np.concatenate(list(values.values()))
        low, high = float(everyone.min()) - 1, float(everyone.max()) + 1
        grid = np.linspace(low, high, 81)
        top = 0.0
        for side, colour in SIDES.items():
            counts, edges = np.histogram(values[side], BINS, (low, high), density=True)
            fitted = density(float(values[side].mean()), float(values[side].std(ddof=1)), grid.tolist())
            where: Spec = {"xaxis": f"x{ref}", "yaxis": f"y{ref}", "showlegend": not i}
            data.append(bars(side, (edges[1:] + edges[:-1]) / 2, counts, float(edges[1] - edges[0]), colour, **where))
            data.append(line(f"{side}, fitted", grid, fitted, colour, **where))
            top = max(top, float(counts.max()), max(fitted))
        x = linear_axis(f"point {point}, quantile {share:g} of G", low, high, about=4).to_json(f"y{ref}")
        layout[f"xaxis{ref}"] = x | {"domain": [left, left + width]}
        layout[f"yaxis{ref}"] = linear_axis("", 0.0, 1.15 * top, about=4).to_json(f"x{ref}")
        layout["annotations"].append(
            annotation(f"W {tested.w_in[point]:.3f} IN, {tested.w_out[point]:.3f} OUT", 0.02, 1.0, ref=ref)
        )
    alt = "Histograms of the IN and OUT references' signals at three points, with fitted Gaussian densities."
    return Figure("figure-s1", paper_item("figure-s1")["title"], alt, alt, data, layout, 340)


def _side(references: References, point: int, inside: bool) -> FloatArray:
    chosen = references.rows[references.in_mask[:, point] == inside]
    values: FloatArray = references.signals[chosen, point, 0].astype(np.float64)
    return values
