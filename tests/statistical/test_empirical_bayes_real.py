"""The empirical Bayes ratio on real signals: as strong as measured before, and ahead of the others at every budget.

Skipped where the signals are absent; they are looked for in the folder that the environment variable PLMIA_DATA names,
or else in `shared/data/signals` beside the repository.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from plmia import ATTACKS, Attack, Setup, Signals, attack_targets
from plmia.attacks.calibration import NoCalibration
from plmia.attacks.empirical_bayes import EmpiricalBayesLR
from plmia.attacks.statistics import BayesLR
from plmia.attacks.view import Mode
from plmia.evaluation.metrics import evaluate

TARGETS = range(6)
EB = Attack("eb", EmpiricalBayesLR(), NoCalibration())
# RMIA's statistic ranks better without its votes, which saturate: both are to be beaten.
ONLINE = [
    EB,
    *(ATTACKS[name] for name in ("pl-mia", "pl-mia-pooled", "lira-fixed", "rmia")),
    Attack("rmia-no-votes", BayesLR(), NoCalibration()),
]
RMIA_OFFLINE = [Attack(f"rmia-{a}", BayesLR(a=a), NoCalibration()) for a in (0.0, 0.3, 0.6, 0.9)]
OFFLINE = [EB, ATTACKS["lira"], ATTACKS["lira-fixed"], *RMIA_OFFLINE]
FPRS = (0.01, 0.001, 0.0)
Table = dict[str, npt.NDArray[np.float64]]


def measure(signals: Signals, attacks: list[Attack], mode: Mode, references: int) -> Table:
    """AUC and TPR at 1 %, 0.1 % and 0 % FPR [targets, 4], in per cent."""
    rows: dict[str, dict[int, list[float]]] = {attack.name: {} for attack in attacks}
    for result in attack_targets(signals, attacks, TARGETS, Setup(mode, references)):
        queries = result.truth.queries
        found = evaluate(result.scores.score[queries], result.truth.members[queries], FPRS, target=result.target)
        rows[result.scores.attack][result.target] = [found.auc, *(found.tpr_at(fpr).tpr for fpr in FPRS)]
    return {name: 100 * np.array([of[target] for target in TARGETS]) for name, of in rows.items()}


# The strength of an earlier, simpler empirical Bayes estimate on the same signals.
@pytest.mark.parametrize(
    ("references", "auc", "at_one_in_a_thousand"), [(4, 73.0, 6.0), (8, 74.1, 7.5), (16, 74.6, 8.2), (64, 75.1, 9.2)]
)
def test_images_online(cifar10: Signals, references: int, auc: float, at_one_in_a_thousand: float) -> None:
    """Ahead of every other attack on every target in AUC, and on their mean at 0.1 % FPR."""
    table = measure(cifar10, ONLINE, "online", references)
    ours = table.pop("eb")
    assert ours[:, 0].mean() > auc
    assert ours[:, 2].mean() > at_one_in_a_thousand
    for name, theirs in table.items():
        assert (ours[:, 0] > theirs[:, 0]).all(), name
        assert ours[:, 2].mean() > theirs[:, 2].mean(), name
    if references == 16:
        assert ours[:, 0].mean() > 74.2  # what PL-MIA reaches with 64


@pytest.mark.parametrize("references", [4, 16, 64])
def test_tables_online(location: Signals, references: int) -> None:
    table = measure(location, ONLINE, "online", references)
    ours = table.pop("eb").mean(axis=0)
    for name, theirs in table.items():
        assert (ours[:3] > theirs.mean(axis=0)[:3]).all(), name


@pytest.mark.parametrize("references", [4, 64])
@pytest.mark.parametrize("data", ["cifar10", "location"])
def test_offline(request: pytest.FixtureRequest, data: str, references: int) -> None:
    """Ahead of one-sided LiRA and of RMIA with its best a, without eta, rho or a to choose."""
    table = measure(request.getfixturevalue(data), OFFLINE, "offline", references)
    ours = table.pop("eb").mean(axis=0)
    for name, theirs in table.items():
        assert (ours[:3] > theirs.mean(axis=0)[:3]).all(), name


def test_pairs_of_networks_are_negatively_correlated(cifar10: Signals) -> None:
    """The two models of a pair share no training data, and err in opposite directions at a point."""
    from plmia import AttackView
    from plmia.attacks.view import References

    rows = np.arange(2, 66)
    references = References(cifar10.values, rows, cifar10.design.matrix[rows])
    fit = EmpiricalBayesLR().fit(AttackView(cifar10.values[0].astype(float), references, np.arange(2)))
    assert -0.3 < fit.pair_correlation[0] < -0.15
    assert fit.n_pairs == 32
    correlation = fit.spread.covariance[0, 1] / np.sqrt(fit.spread.covariance.diagonal().prod())
    assert correlation > 0.85  # a point that is wide for IN models is wide for OUT models
