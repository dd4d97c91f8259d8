"""ROC curves of boosted trees (`fig:purchase100_gbdt`)."""

from __future__ import annotations

from .charts import figure, roc_chart
from .measure import AUC
from .outcome import Outcome, Rows
from .setting import TREES, Setting
from .trees import best_claim, by_depth, in_front


def run(setting: Setting) -> Outcome:
    """Trace the curves, averaged over targets, one panel per depth."""
    ((data, found),) = by_depth(setting, TREES[:1]).items()
    ours: Rows = {
        (depth, name, rate): cells
        for depth, (_, result) in found.items()
        for name in result.measured
        for rate, cells in result.points(name).items()
    }
    charts = [
        roc_chart(in_front(depth).strip() or data, result.rates, {name: result.mean(name) for name in result.measured})
        for depth, (_, result) in found.items()
    ]
    drawn = figure("figure-5", charts, "ROC curves on logarithmic axes, one panel a depth.", 400)
    claim = best_claim("roc", {in_front(d): result for d, (_, result) in found.items()}, data)
    return Outcome("figure-5", tuple(source for source, _ in found.values()), ours, (AUC,), (drawn,), (claim,))
