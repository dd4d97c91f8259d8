"""Attacks with few references (`tab:cifar100_num_ref_results`); on CIFAR-10 where CIFAR-100 is not at hand."""

from __future__ import annotations

from .charts import Chart, figure, steps_axis, value_axis
from .measure import AUC, BEYOND, Measured, attacks_called, difference, in_words, measure, verdict_above
from .outcome import Claim, Outcome, Rows
from .setting import Setting

ATTACKS = ("lira", "lira-fixed", "rmia", "pl-mia", "pl-mia-pooled", "pl-mia-eb")
BUDGETS = (4, 8, 16, 32)
LOW = "TPR@0.1%"

Found = dict[int, dict[str, Measured]]


def run(setting: Setting) -> Outcome:
    """Measure every attack at each budget."""
    source = setting.source("cifar10_wrn")
    budgets = source.budgets(setting.grid((*BUDGETS, 64), (4, 16)))
    found = {n: measure(source, attacks_called(*ATTACKS), references=n) for n in budgets}
    ours: Rows = {(source.data, str(n), name): m.cells() for n, by_name in found.items() for name, m in by_name.items()}
    charts = []
    resolved = found[max(found)]["pl-mia"].known(LOW)
    for metric in (AUC, LOW if resolved else "TPR@0%"):
        lines = {name: (budgets, [_mean(found[n][name], metric) for n in budgets]) for name in found[budgets[0]]}
        charts.append(Chart(steps_axis("references", budgets), value_axis(f"{metric} (%)", lines), lines))
    drawn = figure("table-s2", charts, "AUC and TPR at a low FPR against the number of references.")
    return Outcome("table-s2", (source,), ours, BEYOND, (drawn,), _claims(found))


def _mean(measured: Measured, metric: str) -> float | None:
    values = measured.known(metric)
    return sum(values) / len(values) if values else None


def _claims(found: Found) -> tuple[Claim, ...]:
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
        claims.append(Claim(name, verdict_above(list(differences.values())), f"{attack}: {words}."))
    if all("pl-mia-eb" in by for by in found.values()):
        ahead = {n: difference(by["pl-mia-eb"], by["rmia"], m) for n, by in found.items() for m in (metric,)}
        verdict = verdict_above(list(ahead.values()))
        words = "; ".join(in_words(f"{metric} at {n}", d) for n, d in ahead.items())
        claims.append(Claim("Beyond the paper: pl-mia-eb is above RMIA at every budget.", verdict, f"{words}."))
    return tuple(claims)
