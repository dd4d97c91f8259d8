"""Compare the empirical Bayes ratio with the other attacks: ``python benchmarks/empirical_bayes.py SIGNALS.npz ...``.

For each file and number of references, the output contains: AUC and TPR at 1 %, 0.1 % and 0 % FPR, mean over targets;
the paired difference to each other attack over targets with its standard error; the fit for one target; and the cost
relative to the Gaussian likelihood ratio on the same signals (the minimum over alternating repetitions). Offline, RMIA
runs with several values of a and without votes; the best of these is the one to beat. Writes
``bench-out/empirical_bayes.json``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia import ATTACKS, Attack, Setup, Signals, attack_targets, read_signals
from plmia.attacks.calibration import CauchyCombination, NoCalibration
from plmia.attacks.empirical_bayes import EmpiricalBayesLR
from plmia.attacks.statistics import BayesLR, GaussianLR, Statistic
from plmia.attacks.statistics import evaluate as evaluate_statistic
from plmia.evaluation.metrics import evaluate

EB = Attack("pl-mia-eb", EmpiricalBayesLR(), CauchyCombination())
# Votes saturate: RMIA's statistic ranks better without them, so both are compared.
ONLINE = [
    EB,
    *(ATTACKS[name] for name in ("pl-mia", "pl-mia-pooled", "lira-fixed", "rmia")),
    Attack("rmia no votes", BayesLR(), NoCalibration()),
]
OFFLINE = [
    EB,
    *(ATTACKS[name] for name in ("lira", "lira-fixed")),
    *(Attack(f"rmia a={a}", BayesLR(a=a), NoCalibration()) for a in (0.0, 0.3, 0.6, 0.9)),
]
FPRS = (0.01, 0.001, 0.0)
Table = dict[str, npt.NDArray[np.float64]]


def measure(signals: Signals, attacks: Sequence[Attack], targets: Sequence[int], setup: Setup) -> Table:
    """AUC and TPRs [targets, 4] of each attack, in per cent."""
    found: dict[str, dict[int, list[float]]] = {attack.name: {} for attack in attacks}
    for result in attack_targets(signals, attacks, targets, setup):
        queries = result.truth.queries
        metrics = evaluate(result.scores.score[queries], result.truth.members[queries], FPRS, target=result.target)
        row = [metrics.auc, *(metrics.tpr_at(fpr).tpr for fpr in FPRS)]
        found[result.scores.attack][result.target] = row
    return {name: 100 * np.array([rows[target] for target in targets]) for name, rows in found.items()}


def report(table: Table) -> dict[str, Any]:
    """Print means and paired differences, and return them."""
    ours, summary = table[EB.name], {}
    for name, rows in table.items():
        mean, gain = rows.mean(axis=0), ours - rows
        error = gain.std(axis=0, ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else np.zeros(4)
        summary[name] = {"mean": mean.tolist(), "gain": gain.mean(axis=0).tolist(), "error": error.tolist()}
        means = " ".join(f"{value:6.2f}" for value in mean)
        gains = " ".join(f"{g:+6.2f} ({e:.2f})" for g, e in zip(gain.mean(axis=0), error, strict=True))
        print(f"    {name:14s} {means}" + ("" if name == EB.name else f"   eb gains {gains}"))
    return summary


def cost(signals: Signals, setup: Setup, repetitions: int = 5) -> dict[str, float]:
    """Print the fit for one target, and return the seconds of both statistics."""
    (result,) = attack_targets(signals, [EB], [0], setup)

    def seconds(statistic: Statistic) -> float:
        view = replace(result.view, known=None)
        start = time.perf_counter()
        evaluate_statistic(statistic, view)
        return time.perf_counter() - start

    fitted = EmpiricalBayesLR().fit(result.view)
    print(
        f"    fit: {fitted.coordinates.rotation.shape[1]} coordinates, "
        f"pairs correlate {fitted.pair_correlation[0]:.2f}, bend {fitted.coordinates.bend:g}, "
        f"tails {fitted.tails[0]:g} and {fitted.tails[1]:g}, hold {fitted.hold:g}"
    )
    times = [(seconds(GaussianLR()), seconds(EmpiricalBayesLR())) for _ in range(repetitions)]
    plain, ours = (min(column) for column in zip(*times, strict=True))
    print(f"    cost: {ours:.3f} s, Gaussian LR {plain:.3f} s: {ours / plain:.1f} times")
    return {"eb": ours, "gaussian": plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("signals", nargs="+", type=Path)
    parser.add_argument("--targets", type=int, default=12)
    parser.add_argument(
        "--first", type=int, default=42, help="first target (the CNNs 42 to 53 were not used in the design)"
    )
    parser.add_argument("--references", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    parser.add_argument("--modes", nargs="+", default=["online", "offline"])
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    for path in arguments.signals:
        signals = read_signals(path)
        targets = range(arguments.first, min(arguments.first + arguments.targets, signals.n_models))
        for mode in arguments.modes:
            for references in arguments.references:
                if references > signals.n_models - 2:
                    continue
                print(f"{path.stem}, {mode}, {references} references: AUC, TPR at 1 %, 0.1 %, 0 % FPR")
                setup = Setup(mode, references)
                table = measure(signals, ONLINE if mode == "online" else OFFLINE, targets, setup)
                key = f"{path.stem} {mode} {references}"
                results[key] = {"attacks": report(table), "seconds": cost(signals, setup)}
    out = Path("bench-out")
    out.mkdir(exist_ok=True)
    (out / "empirical_bayes.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
