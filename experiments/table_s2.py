"""Attacks with few references (`tab:cifar100_num_ref_results`); on other data where CIFAR-100 is not at hand."""

from __future__ import annotations

from plmia.report.plots import Figure

from .charts import Chart, figure, steps_axis, value_axis
from .measure import AUC, BEYOND, Measured, attacks_called, difference, in_words, measure, verdict_above
from .outcome import Claim, Outcome, Rows
from .setting import MLPS, Setting

ATTACKS = ("lira", "lira-fixed", "rmia", "pl-mia", "pl-mia-pooled", "pl-mia-eb")
BUDGETS = (4, 8, 16, 32, 64, 128)
LOW = "TPR@0.1%"

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
    claims = tuple(claim for data, found in by_data.items() for claim in _claims(data, found))
    return Outcome("table-s2", sources, ours, BEYOND, drawn, claims)


def _drawn(data: str, found: Found) -> Figure:
    budgets = list(found)
    resolved = found[max(found)]["pl-mia"].known(LOW)
    charts = []
    for metric in (AUC, LOW if resolved else "TPR@0%"):
        lines = {name: (budgets, [_mean(found[n][name], metric) for n in budgets]) for name in found[budgets[0]]}
        charts.append(Chart(steps_axis(f"references, {data}", budgets), value_axis(f"{metric} (%)", lines), lines))
    return figure("table-s2", charts, f"AUC and TPR at a low FPR against the number of references, {data}.")


def _mean(measured: Measured, metric: str) -> float | None:
    values = measured.known(metric)
    return sum(values) / len(values) if values else None


def _claims(data: str, found: Found) -> tuple[Claim, ...]:
    """Low-FPR claims are judged at 0.1 %, which varies less over targets than 0.01 % and 0 %."""
    metric = LOW if found[min(found)]["rmia"].known(LOW) else AUC
    few = {
        f"{metric} at {n} against {rival}": difference(by["rmia"], by[rival], metric)
        for n, by in found.items()
        if n <= 16
        for rival in ("pl-mia", "pl-mia-pooled", "lira-fixed")
    }
    many = {
        f"{m} at {n}": difference(by["pl-mia"], by["rmia"], m)
        for n, by in found.items()
        if n >= 32
        for m in (AUC, metric)
    }
    claims = []
    for name, attack, differences in (("rmia-few", "rmia", few), ("pl-mia-many", "pl-mia against rmia", many)):
        words = "; ".join(in_words(key, d) for key, d in differences.items())
        claims.append(Claim(name, verdict_above(list(differences.values())), f"{attack}: {words}.", data))
    if all("pl-mia-eb" in by for by in found.values()):
        ahead = {n: difference(by["pl-mia-eb"], by["rmia"], m) for n, by in found.items() for m in (metric,)}
        verdict = verdict_above(list(ahead.values()))
        words = "; ".join(in_words(f"{metric} at {n}", d) for n, d in ahead.items())
        claims.append(Claim("Beyond the paper: pl-mia-eb is above RMIA at every budget.", verdict, f"{words}.", data))
    return tuple(claims)
