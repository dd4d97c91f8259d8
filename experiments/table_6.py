"""Boosted trees of three depths (`tab:purchase_gbdt`); on other data where Purchase-100 is not at hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from .charts import dots
from .measure import AUC, BEYOND, difference, in_words, judged, sign
from .outcome import Claim, Outcome, Rows
from .setting import RECIPES, TREES, Setting, Source
from .trees import Curves, best_claim, curves

DEPTHS = (3, 5, 7)


def run(setting: Setting) -> Outcome:
    """Measure all attacks at each depth, on each data set."""
    by_data = by_depth(setting, TREES)
    ours: Rows = {
        (data, str(depth), name): measured.cells()
        for data, found in by_data.items()
        for depth, (_, result) in found.items()
        for name, measured in result.measured.items()
    }
    drawn = dots("table-6", ours, (AUC, "TPR@0%"))
    claims = []
    for data, found in by_data.items():
        claims.append(_depth(found, data))
        claims.append(best_claim("best", {f"depth {d} ": result for d, (_, result) in found.items()}, data))
    sources = tuple(source for found in by_data.values() for source, _ in found.values())
    return Outcome("table-6", sources, ours, ("TPR@1%", *BEYOND), (drawn,), tuple(claims))


def by_depth(setting: Setting, data: tuple[str, ...]) -> dict[str, dict[int, tuple[Source, Curves]]]:
    """Signals and curves of each depth, by data; models are trained once and shared."""
    found: dict[str, dict[int, tuple[Source, Curves]]] = {}
    for depth in DEPTHS:
        recipe = RECIPES[f"location_gbdt_{depth}"]
        if setting.recipe is not None:
            recipe = f"{setting.recipe}{'&' if '?' in setting.recipe else '?'}depth={depth}"
        for source in replace(setting, recipe=recipe).sources(*(f"{name}_gbdt_{depth}" for name in data)):
            found.setdefault(source.data, {})[depth] = (source, curves(source))
    return found


def _depth(found: dict[int, tuple[Source, Curves]], data: str) -> Claim:
    """Targets of all depths have the same members, so depths are compared target by target."""
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
