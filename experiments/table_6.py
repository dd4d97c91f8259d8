"""Boosted trees of three depths (`tab:purchase_gbdt`); on other data if Purchase-100 is not available."""

from __future__ import annotations

from itertools import pairwise

from .charts import dots
from .measure import AUC, BEYOND, difference, in_words, judged, sign
from .outcome import UNDECIDED, Claim, Outcome, Rows
from .setting import TREES, Setting
from .trees import ByDepth, best_claim, by_depth, in_front


def run(setting: Setting) -> Outcome:
    """Measure all attacks at each depth, on each data set; at one depth if a recipe or one file is given."""
    by_data = by_depth(setting, TREES)
    ours: Rows = {
        (data, depth, name): measured.cells()
        for data, found in by_data.items()
        for depth, (_, result) in found.items()
        for name, measured in result.measured.items()
    }
    drawn = dots("table-6", ours, (AUC, "TPR@0%"))
    claims = []
    for data, found in by_data.items():
        claims.append(_depth(found, data))
        claims.append(best_claim("best", {in_front(d): result for d, (_, result) in found.items()}, data))
    sources = tuple(source for found in by_data.values() for source, _ in found.values())
    return Outcome("table-6", sources, ours, ("TPR@1%", *BEYOND), (drawn,), tuple(claims))


def _depth(found: ByDepth, data: str) -> Claim:
    """Targets of all depths have the same members, so depths are compared target by target."""
    if len(found) < 2:
        return Claim("depth", UNDECIDED, "Trees of one depth alone were run: there is no other to compare with.", data)
    words, signs = [], []
    for shallow, deep in pairwise(found):
        for metric in (AUC, "TPR@0.1%"):
            d = difference(found[deep][1].measured["pl-mia"], found[shallow][1].measured["pl-mia"], metric)
            if d is not None:
                signs.append(sign(d))
                words.append(in_words(f"pl-mia at depth {deep} against {shallow}, {metric}", d))
    accuracy = ", ".join(
        f"{100 * source.about['train_accuracy']:.1f} % at depth {d}"
        for d, (source, _) in found.items()
        if source.about.get("train_accuracy") is not None
    )
    return Claim("depth", judged(signs), f"{'; '.join(words)}. Training accuracy {accuracy}.", data)
