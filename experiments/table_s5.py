"""Multi-layer perceptrons (`tab:purchase_mlp`); on four other data sets if Purchase-100 is not available."""

from __future__ import annotations

from .charts import dots
from .measure import AUC, BEYOND
from .outcome import Outcome, Rows
from .setting import MLPS, Setting
from .trees import best_claim, curves


def run(setting: Setting) -> Outcome:
    """Measure all attacks on each data set."""
    sources = setting.sources(*MLPS)
    found = {source.data: curves(source) for source in sources}
    ours: Rows = {
        (data, name): measured.cells() for data, curve in found.items() for name, measured in curve.measured.items()
    }
    drawn = dots("table-s5", ours, (AUC, "TPR@0%"))
    claims = tuple(best_claim("best", {"": curve}, data) for data, curve in found.items())
    return Outcome("table-s5", sources, ours, ("TPR@1%", *BEYOND), (drawn,), claims)
