"""Sensitivity to the threshold gamma of binary votes (`fig:abla_gamma`)."""

from __future__ import annotations

import math
from dataclasses import replace

from plmia.attacks.attack import ATTACKS, Attack
from plmia.attacks.calibration import BinaryVote

from .charts import Chart, figure, steps_axis, value_axis
from .measure import AUC, BEYOND, Measured, attacks_called, difference, in_words, judged, measure, over_targets, sign
from .outcome import Claim, Outcome, Rows
from .setting import Setting

# On the scale of ratios, as RMIA states it; differences of logs are compared with its logarithm.
GAMMAS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
LEVEL = ("lira-fixed", "lira", "pl-mia", "pl-mia-eb")
ZERO = "TPR@0%"


def run(setting: Setting) -> Outcome:
    """Measure RMIA and PL-MIA+ at each gamma, and attacks without one."""
    source = setting.source("cifar10_wrn")
    gammas = setting.grid(GAMMAS, (1.0, 2.0, 8.0))
    votes = {(g, name): _voting(name, g) for g in gammas for name in ("rmia", "pl-mia-plus")}
    found = measure(source, [*votes.values(), *attacks_called(*LEVEL)])
    ours: Rows = {(f"{g:g}", name): found[attack.name].cells() for (g, name), attack in votes.items()}
    ours |= {("none", attack.name): found[attack.name].cells() for attack in attacks_called(*LEVEL)}
    by_gamma = {name: [found[votes[g, name].name] for g in gammas] for name in ("rmia", "pl-mia-plus")}
    lines = {name: (gammas, [_mean(m) for m in measured]) for name, measured in by_gamma.items()}
    lines |= {a.name: (gammas, [_mean(found[a.name])] * len(gammas)) for a in attacks_called(*LEVEL)}
    chart = Chart(steps_axis("gamma", gammas), value_axis("TPR at 0 % FPR (%)", lines), lines)
    drawn = figure("figure-1", [chart], "TPR at 0 % FPR against gamma; attacks without gamma are level lines.")
    claims = (_sensitive(by_gamma["rmia"], found), _flat(gammas, by_gamma))
    return Outcome("figure-1", (source,), ours, (AUC, *BEYOND), (drawn,), claims)


def _voting(name: str, gamma: float) -> Attack:
    return replace(ATTACKS[name], name=f"{name}-{gamma:g}", calibration=BinaryVote(math.log(gamma)))


def _mean(measured: Measured) -> float:
    values = measured.known(ZERO)
    return sum(values) / len(values)


def _sensitive(rmia: list[Measured], found: dict[str, Measured]) -> Claim:
    rates = [_mean(measured) for measured in rmia]
    below = {name: difference(rmia[0], found[name], ZERO) for name in ("lira", "lira-fixed")}
    words = "; ".join(in_words(f"{ZERO} at gamma 1, rmia against {name}", d) for name, d in below.items())
    best = max(rmia, key=_mean)
    signs = [-sign(d) for d in below.values()] + [sign(difference(best, rmia[0], ZERO))]
    return Claim(
        "rmia-sensitive", judged(signs), f"RMIA's {ZERO} ranges from {min(rates):.2f} to {max(rates):.2f}; {words}."
    )


def _flat(gammas: tuple[float, ...], by_gamma: dict[str, list[Measured]]) -> Claim:
    plus, rmia = by_gamma["pl-mia-plus"], by_gamma["rmia"]
    above = [(g, difference(a, b, ZERO)) for g, a, b in zip(gammas, plus, rmia, strict=True)]
    wins = [g for g, d in above if d is not None and d.low > 0]
    rates = [_mean(measured) for measured in plus]
    steadier = over_targets(_ranges(rmia), _ranges(plus))
    return Claim(
        "plus-flat",
        judged([*(sign(d) for _, d in above), sign(steadier)]),
        f"PL-MIA+ ranges from {min(rates):.2f} to {max(rates):.2f}; it is shown to be above RMIA "
        f"{'at gamma ' + ', '.join(f'{g:g}' for g in wins) if wins else 'nowhere'}, of "
        f"{', '.join(f'{g:g}' for g in gammas)}. "
        f"{in_words(f'Range of {ZERO} over gamma, rmia against pl-mia-plus', steadier)}.",
    )


def _ranges(by_gamma: list[Measured]) -> list[float]:
    """Range of each target's rate over gamma."""
    rates = [measured.known(ZERO) for measured in by_gamma]
    return [max(of_target) - min(of_target) for of_target in zip(*rates, strict=True)]
