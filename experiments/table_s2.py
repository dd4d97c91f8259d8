"""Attacks with few references (`tab:cifar100_num_ref_results`); on other data if CIFAR-100 is not available."""

from __future__ import annotations

from plmia.reporting.drawing import Figure

from .charts import Chart, figure, steps_axis, value_axis
from .measure import AUC, BEYOND, MAIN, Measured, attacks_called, difference, in_words, judged, measure, sign
from .outcome import Claim, Outcome, Rows, paper_item
from .setting import MLPS, Setting

ATTACKS = ("lira", "lira-fixed", "rmia", "pl-mia", "pl-mia-pooled", "pl-mia-eb")
BUDGETS = (4, 8, 16, 32, 64, 128)
LOW, ZERO = "TPR@0.1%", "TPR@0%"
# Rates that the paper reports as low FPR.
LOWEST = MAIN[1:]

Found = dict[int, dict[str, Measured]]


def run(setting: Setting) -> Outcome:
    """Measure every attack at each budget, on each data set."""
    sources = setting.sources("cifar10_wrn", *MLPS)
    grid, attacks = setting.grid(BUDGETS, (4, 16)), attacks_called(*ATTACKS)
    by_data: dict[str, Found] = {
        source.data: {n: measure(source, attacks, references=n) for n in source.budgets(grid)} for source in sources
    }
    ours: Rows = {
        (data, str(n), name): measured.cells()
        for data, found in by_data.items()
        for n, by_name in found.items()
        for name, measured in by_name.items()
    }
    drawn = tuple(_drawn(data, found) for data, found in by_data.items())
    views = {source.data: source.signals.n_views for source in sources}
    claims = tuple(claim for data, found in by_data.items() for claim in _claims(data, found, views[data] > 1))
    return Outcome("table-s2", sources, ours, BEYOND, drawn, claims)


def _drawn(data: str, found: Found) -> Figure:
    budgets = list(found)
    resolved = found[max(found)]["pl-mia"].known(LOW)
    charts = []
    for metric in (AUC, LOW if resolved else ZERO):
        lines = {name: (budgets, [found[n][name].mean(metric) for n in budgets]) for name in found[budgets[0]]}
        charts.append(Chart(steps_axis(f"references, {data}", budgets), value_axis(f"{metric} (%)", lines), lines))
    return figure("table-s2", charts, f"AUC and TPR at a low FPR against the number of references, {data}.")


def _claims(data: str, found: Found, several_views: bool) -> tuple[Claim, ...]:
    """Judge the paper's claims on its metrics, and our additional claims on the metrics of the other tables.

    With one view the pooled variance is that of the view, and `pl-mia-pooled` is `pl-mia`.
    """
    ours = ("pl-mia", "pl-mia-pooled") if several_views else ("pl-mia",)
    few = [
        _above(by, "rmia", rival, metric, n)
        for n, by in found.items()
        if n <= 16
        for rival in (*ours, "lira-fixed")
        for metric in LOWEST
    ]
    many = [
        _above(by, attack, "rmia", metric, n)
        for n, by in found.items()
        if n >= 32
        for attack in (ours if n >= 64 else ours[:1])
        for metric in MAIN
    ]
    claims = [_claim("rmia-few", few, data), _claim("pl-mia-many", many, data)]
    if several_views and data.partition(",")[0] == "CIFAR-100":  # the paper states it of this data set
        claims.append(_pooled(found, data))
    if all("pl-mia-eb" in by for by in found.values()):
        ahead = [_above(by, "pl-mia-eb", "rmia", metric, n) for n, by in found.items() for metric in (AUC, LOW, ZERO)]
        claims.append(_claim("Beyond the paper: pl-mia-eb is above RMIA at every budget.", ahead, data))
    return tuple(claims)


def _pooled(found: Found, data: str) -> Claim:
    """Whether pooling the variance gains AUC with the fewest references, and more than with any other number."""
    gains = {n: difference(by["pl-mia-pooled"], by["pl-mia"], AUC) for n, by in found.items() if "pl-mia" in by}
    known = {n: gain for n, gain in gains.items() if gain is not None}
    words = "; ".join(in_words(f"AUC at {n}", gain) for n, gain in known.items())
    few, *others = (known[n] for n in sorted(known))
    more = [1 if few.low > gain.high else -1 if few.high < gain.low else 0 for gain in others]
    return Claim("pooled-few", judged([sign(few), *more]), f"pooled against plain: {words}.", data)


def _above(by: dict[str, Measured], a: str, b: str, metric: str, n: int) -> tuple[str, int | None]:
    """Decide whether attack A is above attack B with n references; None if the metric is not resolved.

    If the paper calls PL-MIA only competitive, PL-MIA must not be behind by a larger share than in the paper.
    """
    d = difference(by[a], by[b], metric)
    words = in_words(f"{a} against {b}, {metric} at {n}", d)
    if d is None:
        return words, None
    if (a, metric) == ("pl-mia", LOWEST[0]) and n < 64:
        return f"{words} [up to {100 * _behind():.0f} % below is competitive, as in the paper]", sign(
            d, margin=_behind() * d.b
        )
    return words, sign(d)


def _behind() -> float:
    """Share by which PL-MIA is below RMIA at 0.01 % FPR with 32 references in the paper."""
    rows = {tuple(row["keys"]): row["cells"][LOWEST[0]][0] for row in paper_item("table-s2")["rows"]}
    return float(1 - rows["CIFAR-100", "32", "pl-mia"] / rows["CIFAR-100", "32", "rmia"])


def _claim(name: str, parts: list[tuple[str, int | None]], data: str) -> Claim:
    """Judge the resolved metrics; name those that are not."""
    signs = [found for _, found in parts if found is not None]
    because = "; ".join(words for words, _ in parts) or "No such number of references was run"
    return Claim(name, judged(signs), f"{because}.", data)
