"""Targets that exist already: references on the target's share of the records reveal nothing, and checks hold.

As in `test_designs`, records differ in difficulty and spread. Seeds are fixed. With other seeds, a test of a mean would
fail in one of a thousand runs, all attacks and shares together.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import stdtrit

from plmia import ATTACKS, GivenTarget, Setup, Signals, attack_targets
from plmia.data.designs import MembershipDesign, audit_design
from plmia.evaluation.diagnostics.signals import unlike_records
from plmia.results.summary import assess

SHARES = (0.15, 0.7, 0.8, 0.95)
NAMES = ("lira", "lira-fixed", "rmia", "pl-mia", "pl-mia-eb")
AUDITS = 60


def design(rng: np.random.Generator, n_points: int, share: float, references: int) -> MembershipDesign:
    """Draw what an audit of a given target on a share of the records trains."""
    members = rng.permutation(n_points) < share * n_points
    k = GivenTarget(members, np.zeros(n_points)).matching_references(references, 2, None)
    rows = audit_design(n_points, references, rng, kind="exact", k=k).matrix.copy()
    rows[0] = members
    return MembershipDesign(rows)


def signals(rng: np.random.Generator, rows: MembershipDesign, leak: float) -> Signals:
    level, spread = 2.5 * rng.normal(size=rows.n_points), np.exp(0.7 * rng.normal(size=rows.n_points))
    values = level + spread * rng.normal(size=rows.matrix.shape) + leak * rows.matrix
    return Signals(values.astype(np.float32)[:, :, None], rows)


@cache
def audits(leak: float) -> dict[tuple[str, float], npt.NDArray[np.float64]]:
    """AUC, and rates of conformal calls at 10 % of non-members and of members, [3, audits] by attack and share."""
    found: dict[tuple[str, float], list[tuple[float, float, float]]] = {}
    for seed in range(AUDITS):
        rng, share = np.random.default_rng([seed, int(leak)]), SHARES[seed % len(SHARES)]
        drawn = signals(rng, design(rng, 900, share, (8, 17, 32)[seed % 3]), leak)
        chosen = [ATTACKS[name] for name in NAMES]
        for result in attack_targets(drawn, chosen, [0], Setup(seed=seed), refused=lambda *_: None):
            queries = result.truth.queries
            called, members = result.scores.log10_p_conformal[queries] <= -1, result.truth.members[queries]
            rates = float(called[~members].mean()), float(called[members].mean())
            found.setdefault((result.scores.attack, share), []).append((assess(result, 1).metrics.auc, *rates))
            assert not result.notes
    return {key: np.array(rows).T for key, rows in found.items()}


def errors(values: npt.NDArray[np.float64], expected: float) -> float:
    return float((values.mean() - expected) / (values.std(ddof=1) / np.sqrt(len(values))))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("attack", NAMES)
def test_without_a_leak_attacks_guess_and_calls_keep_their_level(attack: str, share: float) -> None:
    auc, false, _ = audits(0.0)[attack, share]
    limit = stdtrit(len(auc) - 1, 1 - 0.0005 / len(NAMES) / len(SHARES))
    assert abs(errors(auc, 0.5)) < limit
    assert errors(false, 0.1) < limit


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("attack", NAMES)
def test_with_a_leak_calls_keep_their_level_and_find_it(attack: str, share: float) -> None:
    auc, false, true = audits(2.0)[attack, share]
    assert errors(false, 0.1) < stdtrit(len(auc) - 1, 1 - 0.0005 / len(NAMES) / len(SHARES))
    assert auc.mean() > 0.55
    assert true.mean() > 0.12


@pytest.mark.parametrize("leak", [0.0, 2.0])
def test_a_target_like_its_references_follows_them_and_shuffled_rows_do_not(leak: float) -> None:
    """No false alarm in 200 audits, of 200 to 900 records; no miss with the rows in another order."""
    alarms, misses = 0, 0
    for seed in range(200):
        rng = np.random.default_rng([seed, 3])
        drawn = signals(rng, design(rng, int(rng.integers(200, 900)), SHARES[seed % 4], (4, 8, 17)[seed % 3]), leak)
        alarms += unlike_records(drawn).warning is not None
        values = drawn.values.copy()
        values[0] = values[0][rng.permutation(drawn.n_points)]
        misses += unlike_records(Signals(values, drawn.design)).warning is None
    assert (alarms, misses) == (0, 0)
