"""Offline PL-MIA for each eta and rho (`tab:offline_all`), and the cost of the choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from plmia.attacks.attack import ATTACKS, Attack
from plmia.attacks.statistics import BayesLR, FixedVariance, GaussianLR, PerPointVariance, ShiftedOut, Variance

from .charts import dots
from .measure import AUC, BEYOND, MAIN, Measured, attacks_called, difference, in_words, judged, measure, sign
from .outcome import HOLDS, Claim, Outcome, Rows
from .setting import Setting

# Points of AUC within which two attacks count as near.
NEAR = 2.0
ETAS, RHOS = (0.3, 0.5, 1.0), (0.8, 0.9, 1.0)


def run(setting: Setting) -> Outcome:
    """Measure the paper's grid, the limit rho = 1, and attacks that need neither."""
    source = setting.source("cifar10_wrn")
    grid = [(eta, rho) for eta in setting.grid(ETAS, (0.3, 1.0)) for rho in RHOS]
    attacks = [_shifted(eta, rho, PerPointVariance()) for eta, rho in grid]
    attacks += [replace(_shifted(0.3, 0.9, FixedVariance()), name="pl-mia, eta 0.3, rho 0.9, one variance")]
    attacks += [replace(ATTACKS["rmia"], name="rmia, a 0", statistic=BayesLR(a=0.0))]
    attacks += attacks_called("rmia", "lira", "pl-mia-eb")
    found = measure(source, attacks, "offline")
    online = measure(source, attacks_called("pl-mia"))["pl-mia"]
    ours: Rows = {(source.data, name): measured.cells() for name, measured in found.items()}
    ours[source.data, "pl-mia, online"] = online.cells()
    drawn = dots("table-4", ours, (AUC, "TPR@0.1%"))
    stated = (_trade_off(found),) * (source.data.partition(",")[0] == "CIFAR-100")
    return Outcome("table-4", (source,), ours, BEYOND, (drawn,), (_stable(found, online), *stated, _cap(found)))


def _shifted(eta: float, rho: float, variance: Variance) -> Attack:
    statistic = GaussianLR(variance, offline=ShiftedOut(eta, rho))
    return replace(ATTACKS["pl-mia"], name=f"pl-mia, eta {eta:g}, rho {rho:g}", statistic=statistic)


def _grid(found: dict[str, Measured]) -> dict[str, Measured]:
    """Return the pairs of eta and rho that the paper considers."""
    return {name: m for name, m in found.items() if name.startswith("pl-mia, eta") and name.endswith(("0.8", "0.9"))}


def _trade_off(found: dict[str, Measured]) -> Claim:
    """Compare the pair that the paper prefers with the pair of the largest AUC, on all of the paper's metrics."""
    grid, chosen = _grid(found), "pl-mia, eta 0.3, rho 0.9"
    best = max(grid, key=lambda name: sum(grid[name].known(AUC)))
    differences = {metric: difference(grid[chosen], grid[best], metric) for metric in MAIN}
    words = "; ".join(in_words(metric, d) for metric, d in differences.items())
    verdict = HOLDS if chosen == best else judged([sign(d) for d in differences.values() if d is not None])
    return Claim("trade-off", verdict, f"{chosen} against {best}, the largest AUC of the paper's grid: {words}.")


def _stable(found: dict[str, Measured], online: Measured) -> Claim:
    paper = _grid(found)
    best = max(paper, key=lambda name: sum(paper[name].known(AUC)))
    worst = min(paper, key=lambda name: sum(paper[name].known(AUC)))
    gap = difference(paper[best], online, AUC)
    rival = difference(paper[best], found["rmia"], AUC)
    spread = difference(paper[worst], paper[best], AUC)
    ranges = "; ".join(f"{metric} from {low:.2f} to {high:.2f}" for metric, low, high in _ranges(paper))
    return Claim(
        "stable",
        judged([sign(gap, NEAR), sign(rival, NEAR), sign(spread, NEAR)]),
        f"Over the paper's grid {ranges}. {in_words(f'AUC of {worst} against {best}, worst against best', spread)}; "
        f"{in_words('of the best against online pl-mia', gap)}; {in_words('of the best against offline rmia', rival)} "
        f"[up to {NEAR:g} points below is near].",
    )


def _ranges(grid: dict[str, Measured]) -> list[tuple[str, float, float]]:
    """Smallest and largest mean over the grid, for each resolved metric."""
    found = []
    for metric in MAIN:
        means = [float(np.mean(m.known(metric))) for m in grid.values() if m.known(metric)]
        if len(means) == len(grid):
            found.append((metric, min(means), max(means)))
    return found


def _cap(found: dict[str, Measured]) -> Claim:
    """Below rho = 1 the ratio has a maximum: more confident answers score lower."""
    capped, straight = (found[f"pl-mia, eta 0.3, rho {rho}"] for rho in ("0.9", "1"))
    metrics = [metric for metric in (*MAIN, "TPR@0.1%") if difference(straight, capped, metric) is not None]
    words = "; ".join(in_words(metric, difference(straight, capped, metric)) for metric in metrics)
    gain = difference(straight, capped, "TPR@0.1%") or difference(straight, capped, AUC)
    return Claim(
        "Why: with rho below 1 the offline ratio is capped, so more confident points score lower; rho = 1 lifts it.",
        judged([sign(gain)]),
        f"rho 1 against rho 0.9 at eta 0.3: {words}.",
    )
