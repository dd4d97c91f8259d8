"""AUC without any leak in designs that reveal membership, and false positives of an unsuitable population.

``python benchmarks/designs.py``. Signals do not depend on membership; records differ in difficulty and spread. Attacks
get the references as they are, and as an audit balances them. A difference from 50 comes from the design, not from a
leak. In the second table, an offline population has other numbers of OUT references than the queries.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plmia import ATTACKS, Attack, AttackView, Setup, Signals, attack_targets, evaluate
from plmia.attacks.scoring import score_unchecked
from plmia.attacks.view import References
from plmia.data.designs import MembershipDesign, complementary_pairs, exact_k_per_point
from plmia.errors import ReferencesError

AUDITS, POINTS = 40, 2000
NAMES = ("lira", "lira-fixed", "rmia", "pl-mia-eb")
EXACT = {4: 2, 8: 4, 9: 3, 16: 8, 64: 32}
Aucs = dict[str, list[float]]


def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Signals [models, points, 1] of records that differ in difficulty and spread, but not by membership."""
    level, spread = 2.5 * rng.normal(size=shape[1]), np.exp(0.7 * rng.normal(size=shape[1]))
    return (level + spread * rng.normal(size=shape)).astype(np.float32)[:, :, None]


def audit(design: MembershipDesign, seed: int, found: tuple[Aucs, Aucs]) -> None:
    """Add the AUC of each attack on model 0, with all references as they are and as an audit balances them."""
    signals = Signals(draw(np.random.default_rng([seed, 1]), design.matrix.shape), design)
    for name in NAMES:
        try:
            (result,) = attack_targets(signals, [ATTACKS[name]], [0], Setup(seed=seed))
        except ReferencesError:
            continue
        rows = np.setdiff1d(np.arange(1, signals.n_models), result.left_out)
        plain = References(signals.values, rows, design.matrix[rows])
        view = AttackView(result.view.target, plain, result.population)
        queries, members = result.truth.queries, result.truth.members
        found[1][name].append(100 * result.metrics().auc)
        try:
            (scores,) = score_unchecked([ATTACKS[name]], view, seed)
        except ReferencesError:
            continue
        found[0][name].append(100 * evaluate(scores.score[queries], members[queries], target=0).auc)


def shown(values: list[float]) -> str:
    """Mean and standard error."""
    return f"{np.mean(values):.1f} ± {np.std(values) / np.sqrt(len(values)):.1f}" if values else "–"


def no_leak() -> None:
    """Print the first table."""
    print(f"AUC without a leak, mean ± standard error of {AUDITS} audits of {POINTS:,} records")
    print("| design | references | " + " | ".join(NAMES) + " |\n|" + "---|" * (2 + len(NAMES)))
    designs = {
        f"exactly {k} of {m} models": lambda rng, m=m, k=k: exact_k_per_point(POINTS, m, k, rng)
        for m, k in EXACT.items()
    }
    designs["4 complementary pairs"] = lambda rng: complementary_pairs(POINTS, 4, rng)
    for name, make in designs.items():
        found: tuple[Aucs, Aucs] = ({n: [] for n in NAMES}, {n: [] for n in NAMES})
        for seed in range(AUDITS):
            audit(make(np.random.default_rng([seed, 0])), seed, found)
        for how, aucs in zip(("as they are", "as an audit uses them"), found, strict=True):
            print(f"| {name} | {how} | " + " | ".join(shown(aucs[n]) for n in NAMES) + " |", flush=True)


def unlike_population() -> None:
    """Print the second table."""
    kinds = ((16, 16), (8, 16), (16, 8))
    print("\nFalse positives in % at a nominal 1 %, offline, by OUT references of a population point and of a query")
    print("| attack | " + " | ".join(f"{z} and {q}" for z, q in kinds) + " |\n|" + "---|" * (1 + len(kinds)))
    for name in ("lira", "rmia", "pl-mia-eb"):
        rates = [shown([rate(ATTACKS[name], *n_out, seed) for seed in range(AUDITS)]) for n_out in kinds]
        print(f"| {name} | " + " | ".join(rates) + " |", flush=True)


def rate(attack: Attack, population_out: int, query_out: int, seed: int) -> float:
    """Share of the queries, none of them a member, with a conformal p-value of at most 1 %, in per cent."""
    rng = np.random.default_rng([seed, 2])
    population = np.arange(POINTS // 4)
    in_mask = np.zeros((16, POINTS), bool)
    in_mask[query_out:] = True
    in_mask[:, population] = np.arange(16)[:, None] >= population_out
    conf = draw(rng, (17, POINTS))
    references = References(conf[1:], np.arange(16), rng.permuted(in_mask, axis=0))
    view = AttackView(conf[0].astype(np.float64), references, population, mode="offline")
    (scores,) = score_unchecked([attack], view, seed)
    return 100 * float(np.mean(scores.log10_p_conformal[len(population) :] <= -2))


if __name__ == "__main__":
    no_leak()
    unlike_population()
