"""Compare signals of regressors: ``python benchmarks/regression_signals.py``.

Regressors are trained on data that ship with scikit-learn, in complementary halves. From their residuals r, several
signals are computed. The script prints, as a table in Markdown, the mean AUC (in percent) of three attacks over half of
the models as targets, with all models of other splits as references. m is the median of all |r|. It takes about a
minute on one core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.datasets import load_diabetes, make_friedman1, make_friedman2
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from plmia import ATTACKS, MembershipDesign, Setup, Signals, attack_targets

Floats = npt.NDArray[np.float64]
MODELS = 32
NAMES = ("rmia", "lira-fixed", "pl-mia-eb")
SIGNALS: dict[str, Callable[[Floats], Floats]] = {
    "−abs(r)": lambda r: -np.abs(r),
    "−r²": lambda r: -(r**2),
    "−log(r² + m²)": lambda r: -np.log(r**2 + np.median(np.abs(r)) ** 2),
    "−log(r² + (m / 10)²)": lambda r: -np.log(r**2 + (np.median(np.abs(r)) / 10) ** 2),
}


def problems() -> dict[str, tuple[Floats, Floats, Any]]:
    """Features, values and regressor by name."""
    diabetes = load_diabetes(return_X_y=True)
    first = make_friedman1(1000, noise=1.0, random_state=0)
    second = make_friedman2(1000, noise=50.0, random_state=0)
    network = MLPRegressor(hidden_layer_sizes=(100,), max_iter=300, random_state=0)
    return {
        "diabetes, quadratic ridge": (
            *diabetes,
            make_pipeline(StandardScaler(), PolynomialFeatures(2), Ridge(1.0)),
        ),
        "diabetes, random forest": (*diabetes, RandomForestRegressor(50, random_state=0)),
        "friedman1, boosted trees": (*first, GradientBoostingRegressor(random_state=0)),
        "friedman1, perceptron": (*first, make_pipeline(StandardScaler(), network)),
        "friedman2, random forest": (*second, RandomForestRegressor(30, random_state=0)),
    }


def residuals(X: Floats, y: Floats, regressor: Any) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Residuals [models, records] of models in complementary pairs, and their membership."""
    rng = np.random.default_rng(0)
    halves = [rng.permutation(len(y)) < len(y) // 2 for _ in range(MODELS // 2)]
    members = np.array([side for half in halves for side in (half, ~half)])
    return np.array([clone(regressor).fit(X[row], y[row]).predict(X) - y for row in members]), members


def areas(values: Floats, members: npt.NDArray[np.bool_]) -> list[float]:
    """Mean AUC of each attack over every second model as the target."""
    signals = Signals(values.astype(np.float32)[:, :, None], MembershipDesign(members), kind="signal")
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for result in attack_targets(signals, [ATTACKS[name] for name in NAMES], range(0, MODELS, 2), Setup()):
        found[result.scores.attack].append(result.metrics().auc)
    return [100 * float(np.mean(found[name])) for name in NAMES]


def main() -> None:
    """Train, attack and print."""
    print(f"| data and model | signal | {' | '.join(NAMES)} |\n|---|---|{'---|' * len(NAMES)}")
    for name, problem in problems().items():
        errors, members = residuals(*problem)
        for words, signal in SIGNALS.items():
            cells = " | ".join(f"{area:.1f}" for area in areas(signal(errors), members))
            print(f"| {name} | {words} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
