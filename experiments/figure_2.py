"""Cost: strength against the number of references, views and population points (`fig:ablation-3x3`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from plmia.attacks import Attack
from plmia.population import FreshPopulation
from plmia.report.plots import Figure
from plmia.scoring import score_all

from .charts import Chart, figure, steps_axis, value_axis
from .measure import (
    AUC,
    BEYOND,
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

Found = dict[int, dict[str, Measured]]


def run(setting: Setting) -> Outcome:
    """Vary one thing at a time."""
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
    resolved = [m for m in (AUC, "TPR@0.1%", "TPR@0%") if swept["references"][source.references]["rmia"].known(m)]
    drawn = tuple(_drawn(swept, metric) for metric in resolved)
    claims = (_on_references(swept["references"]), _on_views(swept["views"]), *_on_population(swept))
    notes = ("Fresh population: a new random Z for each query, as Algorithm 1 is written, on fewer targets.",)
    return Outcome("figure-2", (source,), ours, BEYOND, drawn, claims, notes)


def _references(source: Source, budgets: tuple[int, ...]) -> Found:
    attacks = attacks_called(*ATTACKS)
    return {n: measure(source, possible(source, n, attacks), references=n) for n in source.budgets(budgets)}


def _with_views(source: Source, k: int) -> dict[str, Measured]:
    return measure(some_views(source, np.sort(view_order(source.signals.n_views)[:k])), attacks_called(*ATTACKS))


def _population(source: Source, sizes: tuple[int, ...]) -> Found:
    """Smaller parts of one population, the queries the same for all."""
    attacks = attacks_called("lira", "rmia", "pl-mia-plus", "pl-mia")
    found: Found = {}
    for result in results(source, attacks[:1]):
        rng = np.random.default_rng([source.seed, 3, result.target])
        order = rng.permutation(result.population)
        queries = result.truth.queries
        for size in [n for n in sizes if n <= len(order)]:
            view = replace(result.view, population=np.sort(order[:size]))
            for scores in score_all(attacks, view, source.seed):
                one = metrics_of(
                    scores.score[queries], result.truth.members[queries], scores.log10_p_conformal[queries]
                )
                found.setdefault(size, {}).setdefault(scores.attack, Measured()).add(one)
    return found


def _fresh(source: Source, sizes: tuple[int, ...]) -> Found:
    few = replace(source, targets=source.targets[:FRESH_TARGETS])
    return {n: measure(few, [_freshly(attack, n) for attack in attacks_called("rmia", "pl-mia")]) for n in sizes}


def _freshly(attack: Attack, size: int) -> Attack:
    return replace(attack, population=FreshPopulation(size))


def _drawn(swept: dict[str, Found], metric: str) -> Figure:
    charts = []
    for varied in ("references", "views", "population"):
        found = swept[varied]
        names = list(dict.fromkeys(name for by_name in found.values() for name in by_name))
        lines = {
            name: (list(found), [_mean(by_name.get(name), metric) for by_name in found.values()]) for name in names
        }
        title = metric if varied == "references" else ""
        charts.append(Chart(steps_axis(varied, list(found)), value_axis(title, lines), lines))
    return figure("figure-2", charts, f"{metric} in percent against references, views and population points.")


def _mean(measured: Measured | None, metric: str) -> float | None:
    values = measured.known(metric) if measured else []
    return float(np.mean(values)) if values else None


def _on_references(found: Found) -> Claim:
    few, many = min(found), max(found)
    if "pl-mia" not in found[few]:
        return Claim("references", UNDECIDED, "The fewest references leave no variance.")
    least = difference(found[few]["pl-mia"], found[few]["rmia"], AUC)
    most = difference(found[many]["pl-mia"], found[many]["rmia"], AUC)
    low = difference(found[many]["pl-mia"], found[many]["rmia"], "TPR@0.1%")
    lira = difference(found[many]["pl-mia"], found[many]["lira-fixed"], AUC)
    gains = {name: difference(found[many][name], found[few][name], AUC) for name in ("lira-fixed", "rmia", "pl-mia")}
    signs = [-sign(least), sign(most), sign(lira), *map(sign, gains.values())] + [sign(low)] * (low is not None)
    gained = "; ".join(in_words(f"{name}, AUC at {many} against {few}", d) for name, d in gains.items())
    crossing = [n for n, by in found.items() if (d := difference(by["pl-mia"], by["rmia"], AUC)) and d.low > 0]
    ahead = f"in AUC pl-mia is ahead from {min(crossing)} on" if crossing else "it is nowhere shown to be ahead in AUC"
    return Claim(
        "references",
        judged(signs),
        f"pl-mia against rmia: {in_words(f'AUC at {few}', least)}; {in_words(f'AUC at {many}', most)}; "
        f"{in_words(f'TPR@0.1% at {many}', low)}; {ahead}. {in_words(f'Against lira-fixed, AUC at {many}', lira)}. "
        f"Gains: {gained}.",
    )


def _on_views(found: Found) -> Claim:
    few, many = min(found), max(found)
    gains = {name: difference(found[many][name], found[few][name], AUC) for name in ("lira", "rmia", "pl-mia")}
    rivals = ("rmia", "lira-fixed")
    above = {(n, b): difference(by["pl-mia"], by[b], "TPR@0.1%") for n, by in found.items() for b in rivals}
    same = all(by["pl-mia"].known(AUC) == by["lira"].known(AUC) for by in found.values())
    # Above LiRA it cannot be where LiRA has its variance, and so its ROC curve.
    signs = [sign(d) for d in (*gains.values(), *above.values()) if d is not None] + [-1] * same
    words = "; ".join(in_words(f"{name}, AUC at {many} views against {few}", d) for name, d in gains.items())
    more = "; ".join(in_words(f"pl-mia against {b}, TPR@0.1% at {n}", d) for (n, b), d in above.items())
    equal = "LiRA with a variance per point equals pl-mia at every number." if same else ""
    return Claim("views", judged(signs), f"{words}. {more}. {equal}")


def _on_population(swept: dict[str, Found]) -> tuple[Claim, ...]:
    shared, fresh = swept["population"], swept["fresh population a query"]
    few, many = min(shared), max(shared)
    constant = len({tuple(by["pl-mia"].known(AUC)) for by in shared.values()}) == 1
    lost = difference(shared[few]["rmia"], shared[few]["lira"], MAIN[-1])
    growth = difference(fresh[max(fresh)]["pl-mia"], fresh[min(fresh)]["pl-mia"], AUC)
    votes = difference(shared[many]["rmia"], shared[few]["rmia"], AUC)
    same = "exactly the same AUC at every |Z|, LiRA's" if constant else "an AUC that depends on |Z|"
    return (
        Claim(
            "population",
            judged([-1 if constant else 0, -sign(lost), sign(votes), sign(growth)]),
            f"With one Z for all queries pl-mia has {same}; "
            f"{in_words(f'rmia, AUC at |Z| = {many} against {few}', votes)}; "
            f"{in_words(f'rmia against lira, {MAIN[-1]} at |Z| = {few}', lost)}. With a fresh Z a query the luck of "
            f"the draw enters every score, and the more so the more extreme points it holds: "
            f"{in_words(f'pl-mia, AUC at |Z| = {max(fresh)} against {min(fresh)}', growth)}.",
        ),
    )
