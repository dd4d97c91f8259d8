"""Multi-layer perceptrons (`tab:purchase_mlp`); on Location-30 where Purchase-100 is not at hand."""

from __future__ import annotations

from .charts import dots
from .measure import AUC, BEYOND
from .outcome import Outcome, Rows
from .setting import Setting
from .trees import best_claim, curves


def run(setting: Setting) -> Outcome:
    """Measure all attacks."""
    source = setting.source("location_mlp")
    found = curves(source)
    ours: Rows = {(source.data, name): measured.cells() for name, measured in found.measured.items()}
    drawn = dots("table-s5", ours, (AUC, "TPR@0%"))
    return Outcome("table-s5", (source,), ours, ("TPR@1%", *BEYOND), (drawn,), (best_claim("best", {"": found}),))
