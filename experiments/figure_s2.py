"""ROC curves of the perceptrons (`fig:purchase100_mlp`)."""

from __future__ import annotations

from .charts import figure, roc_chart
from .outcome import Outcome, Rows
from .setting import Setting
from .trees import best_claim, curves


def run(setting: Setting) -> Outcome:
    """Trace the curves, averaged over targets."""
    source = setting.source("location_mlp")
    found = curves(source)
    ours: Rows = {
        (name, f"{100 * rate:.3g} %"): {"TPR": found.value(name, i)}
        for name in found.measured
        for i, rate in enumerate(found.rates)
        if i % 4 == 0
    }
    chart = roc_chart("averaged over targets", found.rates, {name: found.mean(name) for name in found.measured})
    drawn = figure("figure-s2", [chart], "ROC curves on logarithmic axes.", 440)
    return Outcome("figure-s2", (source,), ours, (), (drawn,), (best_claim("roc", {"": found}),))
