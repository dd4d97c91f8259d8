"""Nominal and realised false-positive rate of the analytic and the conformal threshold (`fig:cauchy_fpr_agreement`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from plmia.attacks.calibration import CauchyCombination
from plmia.attacks.scoring import score_all
from plmia.attacks.theory import Hypothesis, cauchy_threshold, glr
from plmia.data.arrays import FloatArray, IntArray
from plmia.evaluation.targets import AttackResult
from plmia.reporting.drawing import Figure, log_percent_axis

from .charts import Chart, figure
from .measure import AUC, attacks_called, metrics_of, results
from .outcome import FAILS, HOLDS, Claim, Outcome, Rows, Value
from .setting import Setting, Source

LEVELS = (0.1, 0.01, 0.001, 0.0001)
RATE = "realised FPR"
FEW = 25
POINTS = 20_000
SINGLE_QUERIES = 4_000
SIMULATED = ("Gaussian null, simulated, analytic", "rho 0.8, simulated, analytic")
FITTED = "laws of each point's references, simulated, analytic"
# Shares of the population, lowest first, that are left out.
TRIMMED = (0.01, 0.05, 0.2)
SINGLE_AUC = "AUC of pl-mia in naive 32 bits"

Rates = dict[str, dict[float, list[float | None]]]


def run(setting: Setting) -> Outcome:
    """Count flagged non-members, in variants that show which reading of the paper is conservative."""
    source = setting.source("cifar10_wrn")
    rates: Rates = {}
    for result in results(source, attacks_called("pl-mia", "pl-mia-eb")):
        name = result.scores.attack
        outside = result.truth.queries[~result.truth.members[result.truth.queries]]
        _count(rates, f"{name}, analytic", result.scores.log10_p[outside])
        _count(rates, f"{name}, conformal", result.scores.log10_p_conformal[outside], len(result.population))
        if name == "pl-mia":
            _variants(rates, result, outside, source)
            _without_lowest(rates, result, outside)
            _fitted(rates, result, outside, np.random.default_rng([source.seed, 8, result.target]))
    _simulated(rates, np.random.default_rng([source.seed, 6]), 1.0, SIMULATED[0])
    _simulated(rates, np.random.default_rng([source.seed, 7]), 0.8, SIMULATED[1])
    ours: Rows = {
        (name, f"{100 * level:g} %"): {RATE: Value.over(values) or "not resolved"}
        for name, by_level in rates.items()
        if name != SINGLE_AUC
        for level, values in by_level.items()
    }
    return Outcome("figure-4", (source,), ours, (), (_drawn(rates),), (_claim(rates),), _notes(rates))


def _count(rates: Rates, name: str, log10_p: FloatArray, population: int | None = None) -> None:
    """Share in percent of non-members at or below each level that they, and Z of a conformal p-value, resolve."""
    for level in LEVELS:
        known = len(log10_p) * level >= 1 and (population is None or (population + 1) * level >= 1)
        share = 100 * float(np.mean(log10_p <= np.log10(level) + 1e-12)) if known else None
        rates.setdefault(name, {}).setdefault(level, []).append(share)


def _variants(rates: Rates, result: AttackResult, outside: IntArray, source: Source) -> None:
    few = replace(result.view, population=result.population[:: max(1, len(result.population) // FEW)])
    for scores in score_all(attacks_called("pl-mia"), few, source.seed):
        _count(rates, f"pl-mia, analytic, {FEW} in Z", scores.log10_p[outside])
    phi = result.scores.statistic
    _single(rates, phi[outside[:SINGLE_QUERIES]], phi[result.population])
    inside = result.truth.queries[result.truth.members[result.truth.queries]][:SINGLE_QUERIES]
    both = np.concatenate([outside[:SINGLE_QUERIES], inside])
    score = _single_score(phi[both], phi[result.population])
    auc = metrics_of(score.astype(np.float64), result.truth.members[both])[AUC]
    rates.setdefault(SINGLE_AUC, {}).setdefault(1.0, []).append(auc)


def _single(rates: Rates, query: FloatArray, population: FloatArray) -> None:
    """Score computed literally in 32 bits: 0.5 - p rounds to one half, and tan(pi / 2) becomes negative."""
    score = _single_score(query, population)
    for level in LEVELS:
        known = len(query) * level >= 1
        share = 100 * float(np.mean(score >= float(cauchy_threshold(level)))) if known else None
        rates.setdefault("pl-mia, analytic, naive 32 bits", {}).setdefault(level, []).append(share)


def _single_score(query: FloatArray, population: FloatArray) -> np.ndarray:
    scale = np.sqrt(2) * population.std(ddof=1)
    total = np.zeros(len(query), np.float32)
    for z in np.array_split(population, max(1, len(population) // 500)):
        p = _upper_tail(((query[:, None] - z) / scale).astype(np.float32))
        total += np.tan((np.float32(0.5) - p) * np.float32(np.pi)).sum(axis=1, dtype=np.float32)
    return total / np.float32(len(population))


def _upper_tail(x: np.ndarray) -> np.ndarray:
    from scipy.special import ndtr

    return np.asarray(ndtr(-x), np.float32)


def _simulated(rates: Rates, rng: np.random.Generator, rho: float, name: str) -> None:
    """Null statistics drawn from the paper's own model (`lem:logbf`), with eta = 1 and one rho for all points."""
    phi = glr(rng.normal(size=2 * POINTS), 1.0, rho, Hypothesis.H0)
    _combined(rates, name, phi[:POINTS], phi[POINTS : POINTS + 2500])


def _fitted(rates: Rates, result: AttackResult, outside: IntArray, rng: np.random.Generator) -> None:
    """Null statistics drawn from the paper's own model, with the eta and rho of each point's own references."""
    block = result.view.whole()
    inside, out = block.in_moments, block.out_moments
    deviation = np.sqrt(np.maximum(out.variance[:, 0], 1e-9))
    eta = (inside.mean - out.mean)[:, 0] / deviation
    rho = np.sqrt(np.maximum(inside.variance[:, 0], 1e-9)) / deviation
    phi = glr(rng.normal(size=len(eta)), eta, rho, Hypothesis.H0)
    _combined(rates, FITTED, phi[outside], phi[result.population])


def _without_lowest(rates: Rates, result: AttackResult, outside: IntArray) -> None:
    """The same scores against a population without its lowest statistics."""
    phi = result.scores.statistic
    population = np.sort(phi[result.population])
    for share in TRIMMED:
        kept = population[int(share * len(population)) :]
        _combined(rates, f"pl-mia, analytic, without the lowest {100 * share:g} % of Z", phi[outside], kept)


def _combined(rates: Rates, name: str, query: FloatArray, population: FloatArray) -> None:
    scores = CauchyCombination().shared(query, population, np.full(len(query), len(population)))
    _count(rates, name, scores.log10_p())


def _means(rates: Rates, name: str) -> dict[float, float | None]:
    return {level: getattr(Value.over(values), "mean", None) for level, values in rates[name].items()}


def _drawn(rates: Rates) -> Figure:
    low = 1e-5
    lines = {}
    for name in (name for name in rates if name != SINGLE_AUC):
        found = _means(rates, name)
        lines[name] = (list(LEVELS), [None if y is None else max(y / 100, low) for y in found.values()])
    chart = Chart(log_percent_axis("nominal FPR", 5e-5, 0.2), log_percent_axis("realised FPR", low), lines, True)
    alt = "Realised against nominal false-positive rate on logarithmic axes; the dashed diagonal is agreement."
    return figure("figure-4", [chart], alt, 420)


def _claim(rates: Rates) -> Claim:
    analytic, conformal = _means(rates, "pl-mia, analytic"), _means(rates, "pl-mia, conformal")
    known = {level: rate for level, rate in analytic.items() if rate is not None}
    conservative = all(rate <= 100 * level for level, rate in known.items())
    words = ", ".join(f"{rate:.2f} % at {100 * level:g} %" for level, rate in known.items())
    exact = ", ".join(f"{rate:.3f} % at {100 * level:g} %" for level, rate in conformal.items() if rate is not None)
    return Claim("conservative", HOLDS if conservative else FAILS, f"Analytic: {words}. Conformal: {exact}.")


def _notes(rates: Rates) -> tuple[str, ...]:
    def said(name: str) -> str:
        known = [(level, rate) for level, rate in _means(rates, name).items() if rate is not None]
        return ", ".join(f"{rate:.2f} % at {100 * level:g} %" for level, rate in known)

    auc = Value.over(rates[SINGLE_AUC][1.0])
    trimmed = "; ".join(
        f"{said(f'pl-mia, analytic, without the lowest {100 * share:g} % of Z')} without the lowest {100 * share:g} %"
        for share in TRIMMED
    )
    why = (
        "Why: the statistic of some z is so far below the rest that every query has p-values near 0 against them, "
        f"and these dominate its mean of tangents. Leaving the lowest z out: {trimmed}. Signals may follow the paper's "
        "model; it is enough that points differ. Simulated from the model with the same distribution for all points, "
        "eta = 1: "
        f"{said(SIMULATED[0])} for rho = 1, {said(SIMULATED[1])} for rho = 0.8; with eta and rho of each point's own "
        f"references: {said(FITTED)}."
    )
    reading = (
        "Computed literally in 32 bits, tan((0.5 - p) pi) becomes negative for the smallest p-values, and "
        f"the rule flags {said('pl-mia, analytic, naive 32 bits')}; such scores have an AUC of {auc}."
    )
    return why, reading
