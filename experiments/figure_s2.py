"""ROC curves of the perceptrons (`fig:purchase100_mlp`)."""

from __future__ import annotations

from .charts import figure, roc_chart
from .measure import AUC
from .outcome import Outcome, Rows
from .setting import MLPS, Setting
from .trees import best_claim, curves


def run(setting: Setting) -> Outcome:
    """Trace the curves, averaged over targets, two data sets per figure."""
    sources = setting.sources(*MLPS)
    found = {source.data: curves(source) for source in sources}
    ours: Rows = {
        (f"{name}, {data}", rate): cells
        for data, curve in found.items()
        for name in curve.measured
        for rate, cells in curve.points(name).items()
    }
    charts = [
        roc_chart(data, curve.rates, {name: curve.mean(name) for name in curve.measured})
        for data, curve in found.items()
    ]
    alt = "ROC curves on logarithmic axes, averaged over targets."
    drawn = tuple(figure("figure-s2", charts[i : i + 2], alt, 440) for i in range(0, len(charts), 2))
    claims = tuple(best_claim("roc", {"": curve}, data) for data, curve in found.items())
    return Outcome("figure-s2", sources, ours, (AUC,), drawn, claims)
