"""Power as a function of the number of references, views and population points (`fig:ablation-3x3`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from plmia.attacks.attack import Attack
from plmia.attacks.calibration import FreshPopulation
from plmia.attacks.scoring import score_all
from plmia.reporting.drawing import Figure
from plmia.results.comparison import Difference

from .charts import Chart, figure, steps_axis, value_axis
from .measure import (
    AUC,
    BEYOND,
    CONFORMAL,
    MAIN,
    Measured,
    attacks_called,
    difference,
    in_words,
    judged,
    measure,
    metrics_of,
    results,
    sign,
)
from .measure import with_views as some_views
from .outcome import UNDECIDED, Claim, Outcome, Rows
from .setting import Setting, Source, view_order
from .table_5 import possible

ATTACKS = ("lira-fixed", "lira", "rmia", "pl-mia", "pl-mia-pooled", "pl-mia-eb")
REFERENCES, VIEWS = (4, 8, 16, 32, 64), (1, 2, 4, 8, 18)
POPULATIONS, FRESH = (25, 100, 400, 1600, 6000), (25, 100, 400)
FRESH_TARGETS = 3
RIVALS = ("rmia", "lira-fixed")

Found = dict[int, dict[str, Measured]]


def run(setting: Setting) -> Outcome:
    """Vary one of the three numbers at a time."""
    source = setting.source("cifar10_wrn")
    views = [k for k in setting.grid(VIEWS, (1, 4, 18)) if k <= source.signals.n_views]
    swept = {
        "references": _references(source, setting.grid(REFERENCES, (4, 16))),
        "views": {k: _with_views(source, k) for k in views},
        "population": _population(source, setting.grid(POPULATIONS, (25, 100))),
        "fresh population a query": _fresh(source, setting.grid(FRESH, (25, 100))),
    }
    ours: Rows = {
        (varied, str(n), name): measured.cells()
        for varied, by_number in swept.items()
        for n, by_name in by_number.items()
        for name, measured in by_name.items()
    }
    most = swept["references"][source.references]["rmia"]
    resolved = (AUC, MAIN[1] if most.known(MAIN[1]) else "TPR@0.1%", MAIN[2])
    drawn = tuple(_drawn(swept, metric) for metric in resolved)
    claims = (_on_references(swept["references"]), _on_views(swept["views"]), *_on_population(swept))
    notes = ("Fresh population: a new random Z for each query, as in Algorithm 1, on fewer targets.",)
    return Outcome("figure-2", (source,), ours, BEYOND, drawn, claims, notes)


def _references(source: Source, budgets: tuple[int, ...]) -> Found:
    attacks = attacks_called(*ATTACKS)
    return {n: measure(source, possible(source, n, attacks), references=n) for n in source.budgets(budgets)}


def _with_views(source: Source, k: int) -> dict[str, Measured]:
    return measure(some_views(source, np.sort(view_order(source.signals.n_views)[:k])), attacks_called(*ATTACKS))


def _population(source: Source, sizes: tuple[int, ...]) -> Found:
    """Attack with subsets of one population; the queries stay the same."""
    attacks = attacks_called("lira", "rmia", "pl-mia-plus", "pl-mia")
    found: Found = {}
    for result in results(source, attacks[:1]):
        rng = np.random.default_rng([source.seed, 3, result.target])
        order = rng.permutation(result.population)
        queries = result.truth.queries
        for size in [n for n in sizes if n <= len(order)]:
            view = replace(result.view, population=np.sort(order[:size]))
            for scores in score_all(attacks, view, source.seed):
                p_values = scores.log10_p_conformal[queries]
                one = metrics_of(scores.score[queries], result.truth.members[queries], p_values, size)
                found.setdefault(size, {}).setdefault(scores.attack, Measured()).add(one)
    return found


def _fresh(source: Source, sizes: tuple[int, ...]) -> Found:
    few = replace(source, targets=source.targets[:FRESH_TARGETS])
    found = {n: measure(few, [_freshly(attack, n) for attack in attacks_called("rmia", "pl-mia")]) for n in sizes}
    for by_name in found.values():
        for measured in by_name.values():
            del measured.values[CONFORMAL]  # counted in the whole population, not in the drawn subset
    return found


def _freshly(attack: Attack, size: int) -> Attack:
    return replace(attack, population=FreshPopulation(size))


def _drawn(swept: dict[str, Found], metric: str) -> Figure:
    charts = []
    for varied in ("references", "views", "population"):
        found = swept[varied]
        names = list(dict.fromkeys(name for by_name in found.values() for name in by_name))
        lines = {
            name: (list(found), [by[name].mean(metric) if name in by else None for by in found.values()])
            for name in names
        }
        title = metric if varied == "references" else ""
        charts.append(Chart(steps_axis(varied, list(found)), value_axis(title, lines), lines))
    return figure("figure-2", charts, f"{metric} in percent against references, views and population points.")


def _on_references(found: Found) -> Claim:
    few, many = min(found), max(found)
    if "pl-mia" not in found[few]:
        return Claim("references", UNDECIDED, "The fewest references leave no variance.")
    least = {b: difference(found[few]["pl-mia"], found[few][b], AUC) for b in RIVALS}
    above = {(b, metric): difference(found[many]["pl-mia"], found[many][b], metric) for b in RIVALS for metric in MAIN}
    gains = {name: difference(found[many][name], found[few][name], AUC) for name in (*RIVALS, "pl-mia")}
    same = found[many]["pl-mia"].known(AUC) == found[many]["lira"].known(AUC)
    # It cannot exceed LiRA with the same variance, which has the same ROC curve.
    signs = [-sign(d) for d in least.values()] + [sign(d) for d in gains.values()]
    signs += [sign(d) for d in above.values() if d is not None]
    fewest = "; ".join(in_words(f"against {b}, AUC at {few}", d) for b, d in least.items())
    most = "; ".join(in_words(f"against {b}, {metric} at {many}", d) for (b, metric), d in above.items())
    gained = "; ".join(in_words(f"{name}, AUC at {many} against {few}", d) for name, d in gains.items())
    crossing = [n for n, by in found.items() if (d := difference(by["pl-mia"], by["rmia"], AUC)) and d.low > 0]
    ahead = f"In AUC it is ahead of rmia from {min(crossing)} on" if crossing else "In AUC it is nowhere shown ahead"
    equal = " LiRA with a variance per point equals it." if same else ""
    return Claim("references", judged(signs, equal=same), f"pl-mia {fewest}; {most}. {ahead}. Gains: {gained}.{equal}")


def _on_views(found: Found) -> Claim:
    few, many = min(found), max(found)
    gains = {name: difference(found[many][name], found[few][name], AUC) for name in ("lira", "rmia", "pl-mia")}
    above = {
        (n, b, metric): difference(by["pl-mia"], by[b], metric)
        for n, by in found.items()
        for b in RIVALS
        for metric in MAIN
    }
    same = all(by["pl-mia"].known(AUC) == by["lira"].known(AUC) for by in found.values())
    signs = [sign(d) for d in (*gains.values(), *above.values()) if d is not None]
    words = "; ".join(in_words(f"{name}, AUC at {many} views against {few}", d) for name, d in gains.items())
    more = "; ".join(in_words(f"pl-mia against {b}, {metric} at {n}", d) for (n, b, metric), d in above.items())
    equal = "LiRA with a variance per point equals pl-mia at every number." if same else ""
    return Claim("views", judged(signs, equal=same), f"{words}. {more}. {equal}")


def _on_population(swept: dict[str, Found]) -> tuple[Claim, ...]:
    shared, fresh = swept["population"], swept["fresh population a query"]
    few, many = min(shared), max(shared)
    constant = len({tuple(by["pl-mia"].known(AUC)) for by in shared.values()}) == 1
    lost = difference(shared[few]["rmia"], shared[few]["lira"], MAIN[-1])
    kept = difference(shared[few]["pl-mia"], shared[few]["lira"], MAIN[-1])
    growth = difference(fresh[max(fresh)]["pl-mia"], fresh[min(fresh)]["pl-mia"], AUC)
    votes = difference(shared[many]["rmia"], shared[few]["rmia"], AUC)
    same = "exactly the same AUC at every |Z|, LiRA's" if constant else "an AUC that depends on |Z|"
    return (
        Claim(
            "population",
            judged([-sign(lost), _not_below(kept), sign(votes), sign(growth)], equal=constant),
            f"With one Z for all queries pl-mia has {same}; "
            f"{in_words(f'rmia, AUC at |Z| = {many} against {few}', votes)}; "
            f"{in_words(f'rmia against lira, {MAIN[-1]} at |Z| = {few}', lost)}; "
            f"{in_words(f'pl-mia against lira, {MAIN[-1]} at |Z| = {few}', kept)}. With a fresh Z per query, the "
            f"random draw affects every score, and more so with more extreme points in Z: "
            f"{in_words(f'pl-mia, AUC at |Z| = {max(fresh)} against {min(fresh)}', growth)}.",
        ),
    )


def _not_below(found: Difference | None) -> int:
    """Return 1 if A equals B on every target or is shown to be above B, -1 if it is shown to be below, else 0."""
    if found is None:
        return 0
    return 1 if found.low >= 0 else -1 if found.high < 0 else 0
