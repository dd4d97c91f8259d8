"""The parts of `thm:main` that no table shows, checked by simulation of the paper's own model."""

from __future__ import annotations

import math

import numpy as np

from plmia.theory import (
    Hypothesis,
    blr_law,
    combination_beats_voting,
    glr,
    glr_difference_law,
    glr_population_tpr,
    pairwise_level,
    pl_mia_tpr,
    small_p_probability,
)

from .measure import metrics_of
from .outcome import FAILS, HOLDS, Claim

POINTS, POPULATION, LEVEL = 200_000, 1000, 0.01


def claims(rng: np.random.Generator) -> tuple[Claim, Claim]:
    """Parts (II) and (III)."""
    return _second(rng), _third(rng)


def _second(rng: np.random.Generator) -> Claim:
    """Power of the Gaussian LR, exact, against the first-order Bayes LR, simulated."""
    words, holds = [], []
    for eta, rho, spread in ((1.0, 0.8, 0.0), (2.0, 1.0, 0.5), (1.0, 0.8, 0.5)):
        xi = rng.gamma(1 / spread**2, spread**2, POINTS) if spread else np.ones(POINTS)
        laws = [blr_law(eta, xi, rho, given) for given in Hypothesis]
        null, member = (law.mean + law.std * rng.normal(size=POINTS) for law in laws)
        bayes = float(np.mean(member > np.quantile(null, 1 - LEVEL)))
        gauss = float(glr_population_tpr(LEVEL, eta, rho))
        holds.append(gauss > bayes)
        words.append(f"eta {eta:g}, rho {rho:g}, xi {spread:g} apart: {100 * gauss:.1f} % against {100 * bayes:.1f} %")
    text = "Power at 1 % FPR, Gaussian against Bayes LR: "
    return Claim("theorem-2", HOLDS if all(holds) else FAILS, f"{text}{'; '.join(words)}.")


def _third(rng: np.random.Generator) -> Claim:
    """The condition may be met and both attacks still have one ROC curve, since both scores increase with phi(q)."""
    eta = 1.0
    law = glr_difference_law(eta, eta, Hypothesis.H1)
    r = small_p_probability(pairwise_level(LEVEL, POPULATION), law, math.sqrt(2) * eta)
    met = bool(combination_beats_voting(r, POPULATION, glr_population_tpr(LEVEL, eta)))
    null, member = (glr(rng.normal(size=POINTS // 4), eta, 1.0, given) for given in Hypothesis)
    z = glr(rng.normal(size=POPULATION), eta, 1.0, Hypothesis.H0)
    phi, members = np.concatenate([null, member]), np.arange(POINTS // 2) >= POINTS // 4
    found = {name: metrics_of(score, members)["TPR@1%"] for name, score in _scores(phi, z).items()}
    voting, cauchy = found["voting"] or 0.0, found["cauchy"] or 0.0
    return Claim(
        "theorem-3",
        HOLDS if cauchy - voting > 1 else FAILS,
        f"eta 1, rho 1, |Z| = 1,000: the condition is {'met' if met else 'not met'} and the formula promises "
        f"{100 * float(pl_mia_tpr(r, POPULATION)):.1f} %, but at a realised FPR of 1 % both are the same up to ties: "
        f"Cauchy {cauchy:.2f} %, voting {voting:.2f} %. The condition compares formulas, not attacks.",
    )


def _scores(phi: np.ndarray, z: np.ndarray) -> dict[str, np.ndarray]:
    from plmia.calibration import BinaryVote, CauchyCombination

    size = np.full(len(phi), len(z))
    return {"voting": BinaryVote().shared(phi, z, size), "cauchy": CauchyCombination().shared(phi, z, size).asinh()}
