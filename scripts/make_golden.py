"""Compute tests/golden/expected.json from examples/cifar10_cnn_slice.npz by the paper's formulas.

    python scripts/make_golden.py

The formulas do not use the package: they are the paper's (cited by label), in plain loops and float64, slow and easy
to check. Only the population Z of target 0 is read from the output of `plmia score`, because it is drawn at random. Two
documented additions of the package to the paper are included: the variance of rounding to float16 is added to every
variance, and the score of a Cauchy combination is arcsinh of its Score_PL.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "examples" / "cifar10_cnn_slice.npz"
DESTINATION = ROOT / "tests" / "golden" / "expected.json"
TARGET, COMPLEMENT = 0, 1
FPRS = (0.0, 0.0001, 0.001, 0.01)
SHOWN = 20
ETA, RHO = 0.3, 0.9
RMIA_A, RMIA_GAMMA = 0.3, math.log(2)


def published_population() -> list[int]:
    with tempfile.TemporaryDirectory() as folder:
        command = "from plmia.cli.main import main; main()"
        subprocess.run(
            [sys.executable, "-c", command, "score", str(SOURCE), "-o", folder, "--quiet", "--attack", "attack-p"],
            check=True,
        )
        with np.load(Path(folder) / "scores.npz") as scores:
            return [int(z) for z in scores["population/0"]]


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def variance(values: list[float]) -> float:
    centre = mean(values)
    return math.fsum((v - centre) ** 2 for v in values) / len(values)


def rounding_variance(values: list[float]) -> float:
    """Variance of rounding to float16 at the size of the mean: spacing^2 / 12."""
    return float(np.spacing(np.float16(abs(mean(values))))) ** 2 / 12


def log_normal(x: float, mu: float, var: float) -> float:
    return -0.5 * math.log(2 * math.pi * var) - (x - mu) ** 2 / (2 * var)


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def log_upper_tail(x: float) -> float:
    return math.log(0.5 * math.erfc(x / math.sqrt(2)))


def cauchy(x: float) -> float:
    """Cauchy transform tan((1/2 - p) pi) of p = 1 - Phi(x), from the nearer tail (`eq:p_value`, `eq:cauchy_cali`)."""
    tail = 0.5 * math.erfc(abs(x) / math.sqrt(2))
    return math.copysign(1 / math.tan(math.pi * tail), x) if x else 0.0


class Cell:
    """One point in one view: the target's signal and those of its references."""

    def __init__(self, x: float, inside: list[float], outside: list[float]) -> None:
        self.x, self.inside, self.outside = x, inside, outside

    def gaussian(self, var_in: float, var_out: float) -> float:
        """`lem:logbf`: the log likelihood ratio."""
        return log_normal(self.x, mean(self.inside), var_in) - log_normal(self.x, mean(self.outside), var_out)

    def shifted(self, var_out: float) -> float:
        """`sec:exp_offline`: the IN distribution is derived from the OUT distribution."""
        mu, sigma = mean(self.outside), math.sqrt(var_out)
        return log_normal(self.x, mu + ETA * sigma, (RHO * sigma) ** 2) - log_normal(self.x, mu, var_out)

    def one_sided(self, var_out: float) -> float:
        """LiRA offline: minus the log probability that an OUT model is more confident."""
        return -log_upper_tail((self.x - mean(self.outside)) / math.sqrt(var_out))

    def rank(self) -> float:
        """Share of OUT references that are less confident, ties half."""
        wins = [1.0 if v < self.x else 0.5 if v == self.x else 0.0 for v in self.outside]
        return mean(wins)

    def bayes(self, offline: bool) -> float:
        """`lem:rmia`: log p - log pbar."""
        used = self.outside if offline else self.inside + self.outside
        pbar = mean([1 / (1 + math.exp(-v)) for v in used])
        if offline:
            pbar = (1 + RMIA_A) / 2 * pbar + (1 - RMIA_A) / 2
        return log_sigmoid(self.x) - math.log(pbar)


def own_variance(values: list[float]) -> float:
    return variance(values) + rounding_variance(values)


def pooled_variance(views: list[list[float]]) -> float:
    """Variance of all signals of a point in all views (`tab:num_ref_pooledaugment`)."""
    together = [v for view in views for v in view]
    return variance(together) + mean([rounding_variance(view) for view in views])


def fixed_variance(sides: list[list[list[float]]]) -> float:
    """One variance for all points: squared distances from each point's own mean, over all references and views."""
    squares = [(v - mean(view)) ** 2 for point in sides for view in point for v in view]
    return mean(squares) + mean([rounding_variance(view) for point in sides for view in point])


def statistics(cells: list[list[Cell]], offline: bool) -> dict[str, list[float]]:
    """Phi of each statistic at each point: the mean over its views."""
    fixed_in = fixed_variance([[c.inside for c in point] for point in cells])
    fixed_out = fixed_variance([[c.outside for c in point] for point in cells])
    phi: dict[str, list[float]] = {name: [] for name in ("loss", "rank", "own", "fixed", "pooled", "bayes", "lira")}
    for point in cells:
        pooled_in, pooled_out = (pooled_variance([getattr(c, side) for c in point]) for side in ("inside", "outside"))
        phi["loss"].append(mean([log_sigmoid(c.x) for c in point]))
        phi["rank"].append(mean([c.rank() for c in point]))
        phi["bayes"].append(mean([c.bayes(offline) for c in point]))
        if offline:
            phi["own"].append(mean([c.shifted(own_variance(c.outside)) for c in point]))
            phi["pooled"].append(mean([c.shifted(pooled_out) for c in point]))
            phi["lira"].append(mean([c.one_sided(own_variance(c.outside)) for c in point]))
            phi["fixed"].append(mean([c.one_sided(fixed_out) for c in point]))
        else:
            phi["own"].append(mean([c.gaussian(own_variance(c.inside), own_variance(c.outside)) for c in point]))
            phi["pooled"].append(mean([c.gaussian(pooled_in, pooled_out) for c in point]))
            phi["fixed"].append(mean([c.gaussian(fixed_in, fixed_out) for c in point]))
            phi["lira"] = phi["own"]
    return phi


def votes(phi: list[float], population: list[int], gamma: float) -> list[float]:
    """`eq:binary_calib`: share of the population that is exceeded by more than gamma, without the point itself."""
    return [mean([float(own - phi[z] > gamma) for z in population if z != q]) for q, own in enumerate(phi)]


def combination(phi: list[float], population: list[int]) -> list[float]:
    """`eq:cauchy_cali`: Score_PL."""
    among = [phi[z] for z in population]
    sigma = math.sqrt(2) * math.sqrt(variance(among) * len(among) / (len(among) - 1))
    return [mean([cauchy((own - phi[z]) / sigma) for z in population if z != q]) for q, own in enumerate(phi)]


def conformal(phi: list[float], population: list[int]) -> list[float]:
    p_values = []
    for q, own in enumerate(phi):
        rivals = [z for z in population if z != q]
        p_values.append((1 + sum(phi[z] >= own for z in rivals)) / (len(rivals) + 1))
    return p_values


def attacks(phi: dict[str, list[float]], population: list[int]) -> dict[str, dict[str, list[float]]]:
    """Score, own p-value and conformal p-value of every point."""
    plain = {
        "attack-p": ("loss", votes(phi["loss"], population, 0.0)),
        "attack-r": ("rank", phi["rank"]),
        "lira": ("lira", phi["lira"]),
        "lira-fixed": ("fixed", phi["fixed"]),
        "rmia": ("bayes", votes(phi["bayes"], population, RMIA_GAMMA)),
        "pl-mia-plus": ("own", votes(phi["own"], population, 0.0)),
    }
    results = {}
    for name, (statistic, scores) in plain.items():
        p_values = conformal(phi[statistic], population)
        results[name] = {"score": scores, "p": p_values, "p_conformal": p_values}
    for name, statistic in (("pl-mia", "own"), ("pl-mia-pooled", "pooled")):
        combined = combination(phi[statistic], population)
        results[name] = {
            "score": [math.asinh(s) for s in combined],
            "p": [math.atan2(1.0, s) / math.pi for s in combined],
            "p_conformal": conformal(phi[statistic], population),
        }
    return results


def measure(scores: list[float], members: list[bool]) -> dict[str, Any]:
    """AUC over all pairs, ties half; TPR at the lowest threshold whose FPR does not exceed the nominal one."""
    inside = [s for s, m in zip(scores, members, strict=True) if m]
    outside = [s for s, m in zip(scores, members, strict=True) if not m]
    won = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in inside for b in outside)
    tpr = {}
    for fpr in FPRS:
        allowed = [t for t in sorted(set(scores)) if sum(s >= t for s in outside) / len(outside) <= fpr]
        threshold = min(allowed, default=math.inf)
        tpr[f"{fpr:g}"] = sum(s >= threshold for s in inside) / len(inside)
    return {"auc": won / (len(inside) * len(outside)), "tpr": tpr}


def load() -> tuple[list[list[Cell]], list[bool]]:
    with np.load(SOURCE) as file:
        signals = file["signals"].astype(np.float64)
        membership = np.unpackbits(file["membership"], axis=1, count=int(file["n_points"])).astype(bool)
    references = [model for model in range(len(signals)) if model not in (TARGET, COMPLEMENT)]
    cells = []
    for point in range(signals.shape[1]):
        inside = [model for model in references if membership[model, point]]
        outside = [model for model in references if not membership[model, point]]
        cells.append(
            [
                Cell(
                    float(signals[TARGET, point, view]),
                    [float(signals[model, point, view]) for model in inside],
                    [float(signals[model, point, view]) for model in outside],
                )
                for view in range(signals.shape[2])
            ]
        )
    return cells, [bool(m) for m in membership[TARGET]]


def main() -> None:
    cells, members = load()
    population = published_population()
    assert not any(members[z] for z in population)
    queries = [q for q in range(len(cells)) if q not in set(population)]
    # Points at equal steps, members and non-members, and a few points of the population.
    points = sorted({*queries[:: len(queries) // (SHOWN - 4)][: SHOWN - 4], *population[:: len(population) // 4][:4]})
    expected: dict[str, Any] = {"source": SOURCE.name, "target": TARGET, "population": population, "points": points}
    for mode in ("online", "offline"):
        results = attacks(statistics(cells, mode == "offline"), population)
        expected[mode] = {
            name: measure([result["score"][q] for q in queries], [members[q] for q in queries])
            | {"score": [result["score"][q] for q in points]}
            | {f"log10_{key}": [math.log10(result[key][q]) for q in points] for key in ("p", "p_conformal")}
            for name, result in results.items()
        }
    DESTINATION.write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
    print(f"{DESTINATION}: {len(points)} points, {len(population)} in the population")


if __name__ == "__main__":
    main()
