"""Pooled variance at each number of references (`tab:num_ref_pooledaugment`)."""

from __future__ import annotations

import math

from plmia.attacks.attack import Attack
from plmia.reporting.drawing import Figure

from .charts import Chart, figure, steps_axis, value_axis
from .measure import AUC, BEYOND, MAIN, Measured, attacks_called, difference, in_words, judged, measure, sign
from .outcome import FAILS, HOLDS, UNDECIDED, Cell, Claim, Outcome, Rows
from .setting import Setting, Source

ATTACKS = ("pl-mia-pooled", "pl-mia", "pl-mia-eb")
BUDGETS = (2, 4, 8, 16, 32, 64, 128)
NO_VARIANCE = "one reference per side has no variance"

Found = dict[int, dict[str, Measured]]
# The gain counts as lost below this share of the gain with the fewest references.
LITTLE = 0.2


def run(setting: Setting) -> Outcome:
    """Measure PL-MIA with and without pooling at each budget."""
    source = setting.source("cifar10_wrn")
    budgets = source.budgets(setting.grid(BUDGETS, (2, 4, 16)))
    found = {n: measure(source, possible(source, n, attacks_called(*ATTACKS)), references=n) for n in budgets}
    refused: dict[str, Cell] = dict.fromkeys((*MAIN, *BEYOND), "refused")
    ours: Rows = {
        (str(n), name): found[n][name].cells() if name in found[n] else refused
        for n in budgets
        for name in (attack.name for attack in attacks_called(*ATTACKS))
    }
    note = f"refused: {NO_VARIANCE}; the paper does not say what it did there." if 2 in budgets else ""
    drawn = _drawn(found)
    return Outcome("table-5", (source,), ours, BEYOND, (drawn,), _claims(found), (note,) if note else ())


def _drawn(found: Found) -> Figure:
    charts = []
    resolved = found[max(found)]["pl-mia"].known("TPR@0.1%")
    for metric in (AUC, "TPR@0.1%" if resolved else "TPR@0%"):
        names = list(dict.fromkeys(name for by_name in found.values() for name in by_name))
        lines = {
            name: (list(found), [by[name].mean(metric) if name in by else None for by in found.values()])
            for name in names
        }
        charts.append(Chart(steps_axis("references", list(found)), value_axis(f"{metric} (%)", lines), lines))
    return figure("table-5", charts, "AUC and TPR at a low FPR with pooled and plain variance, by references.")


def possible(source: Source, references: int, attacks: list[Attack]) -> list[Attack]:
    """Leave out attacks whose variance needs more references per side than there are."""
    variances = [getattr(attack.statistic, "variance", None) for attack in attacks]
    views = source.signals.n_views
    return [a for a, v in zip(attacks, variances, strict=True) if v is None or v.least(views) <= references // 2]


def _claims(found: Found) -> tuple[Claim, ...]:
    gains = {
        n: difference(by["pl-mia-pooled"], by["pl-mia"], AUC)
        for n, by in found.items()
        if len(by) > 1 and "pl-mia" in by
    }
    known = {n: gain for n, gain in gains.items() if gain is not None and math.isfinite(gain.high)}
    if len(known) < 2:
        return tuple(Claim(name, UNDECIDED, "More targets and budgets are needed.") for name in ("few", "many"))
    few, many = min(known), max(known)
    words = "; ".join(in_words(f"AUC at {n}", gain) for n, gain in known.items())
    most = max(known, key=lambda n: known[n].difference)
    return (
        Claim("few", judged([sign(known[few]), 1 if most == few else -1]), f"pooled against plain: {words}."),
        Claim(
            "many",
            HOLDS if abs(known[many].difference) < LITTLE * known[few].difference else FAILS,
            f"{in_words(f'AUC at {many}', known[many])} [less than {100 * LITTLE:g} % of that at {few}].",
        ),
    )
