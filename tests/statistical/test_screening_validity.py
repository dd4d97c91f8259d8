"""200 screenings through the whole decision layer, without a leak and with one: what a screening promises.

The signal of a record depends strongly on its features, in mean and in spread, and the population is small: the trees
of two folds then differ most. In half of the audits, records come in groups of two with nearly equal signals. Seeds are
fixed. A promise that holds fails its test in less than one run in a thousand.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from scipy.special import bdtrik

from plmia import Attack, BinaryVote, Conformal, Known, Setup, attack_targets
from plmia.attacks.attack import ATTACK_P
from plmia.attacks.conditional import ConditionalExcess
from plmia.attacks.view import Features
from plmia.data.designs import MembershipDesign
from plmia.evaluation.records import exposure
from plmia.evaluation.targets import AttackResult
from plmia.results.summary import assess
from plmia.results.verdict import Assessment, gather_evidence
from plmia.signals.signals import Signals

AUDITS, LEAKING, UNITS = 200, 8, 1_200
# A small population without a leak, where validity is hardest, and a larger one with a leak, which trees must find.
POPULATION, LARGER = 120, 400
LEVELS = (0.05, 0.01)
FDRS = (0.05, 0.1)
# Three folds, since a fit of their trees takes a third of the time: their trees differ more than those of five.
ATTACKS = (ATTACK_P, Attack("conditional", ConditionalExcess(folds=3), BinaryVote()))


class Screened(NamedTuple):
    """What one screening found, by attack."""

    false_positives: dict[str, list[float]]  # share of the evaluated non-members that are flagged, by level
    false_discoveries: dict[str, list[float]]  # by rate
    named: dict[str, list[int]]
    assessments: dict[str, list[Assessment]]


def screen(seed: int, leak: bool) -> Screened:
    rng = np.random.default_rng([seed, leak])
    size = 1 + seed % 2  # records per group
    X = rng.normal(size=(UNITS, 3))
    members = np.repeat(rng.permutation(UNITS) < UNITS // 3, size)
    noise = (0.3 + X[:, 1] ** 2) * (rng.normal(size=UNITS) + 2.5 * leak * members[::size])
    conf = np.repeat(3 * X[:, 0] + noise, size) + 0.01 * rng.normal(size=UNITS * size)
    groups = np.repeat(np.arange(UNITS), size) if size > 1 else None
    signals = Signals(conf[None, :, None], MembershipDesign(members[None]), groups=groups)
    population = LARGER if leak else POPULATION
    setup, features = Setup(references=0, population=population, seed=seed), Features(np.repeat(X, size, axis=0))
    found = Screened({}, {}, {}, {})
    for result in attack_targets(signals, ATTACKS, [0], setup, features=features):
        name = result.scores.attack
        found.false_positives[name] = [flagged_non_members(result, level) for level in LEVELS]
        exposures = [
            exposure(result.scores, result.truth.queries, result.truth.members, fdr, population) for fdr in FDRS
        ]
        found.false_discoveries[name] = [each.realised_fdr for each in exposures]
        found.named[name] = [each.n_discoveries for each in exposures]
        found.assessments[name] = [assess(result, len(ATTACKS))]
    return found


def flagged_non_members(result: AttackResult, level: float) -> float:
    flagged = Conformal(level)(Known(result.scores, result.population)).flagged
    queries, members = result.truth.queries, result.truth.members
    return float(flagged[queries[~members[queries]]].mean())


@cache
def audits(leak: bool) -> tuple[Screened, ...]:
    return tuple(screen(seed, leak) for seed in range(LEAKING if leak else AUDITS))


def allowed(share: float, trials: int = AUDITS) -> int:
    """Return the most successes of a binomial count at this share, but for one run in a thousand."""
    return int(np.ceil(bdtrik(0.999, trials, share)))


@pytest.mark.parametrize("attack", ["attack-p", "conditional"])
@pytest.mark.parametrize("level", LEVELS)
def test_conformal_calls_accuse_at_most_their_level(attack: str, level: float) -> None:
    """The exact rate is k / (|Z| + 1), the largest such share up to the level; its error is that of the audits."""
    rates = np.array([each.false_positives[attack][LEVELS.index(level)] for each in audits(leak=False)])
    exact = int(level * (POPULATION + 1)) / (POPULATION + 1)
    error = rates.std(ddof=1) / np.sqrt(AUDITS)
    assert rates.mean() <= level + 3.1 * error
    assert abs(rates.mean() - exact) <= 3.3 * error


@pytest.mark.parametrize("grouped", [False, True])
def test_groups_change_nothing(grouped: bool) -> None:
    rates = np.array([each.false_positives["conditional"][0] for each in audits(leak=False)[grouped::2]])
    assert rates.mean() <= 0.05 + 3.1 * rates.std(ddof=1) / np.sqrt(len(rates))


@pytest.mark.parametrize("attack", ["attack-p", "conditional"])
def test_false_discoveries_stay_below_their_rate(attack: str) -> None:
    """Without a leak every named record is a false discovery, so the rate is the share of audits that name one."""
    for leak in (False, True):
        realised = np.array([each.false_discoveries[attack] for each in audits(leak)])
        for rates, fdr in zip(realised.T, FDRS, strict=True):
            assert rates.mean() <= fdr + 3.1 * np.sqrt(fdr * (1 - fdr) / len(rates))


def test_without_a_leak_neither_area_nor_epsilon_nor_verdict_show_one() -> None:
    for attack in ("attack-p", "conditional"):
        assessed = [each.assessments[attack][0] for each in audits(leak=False)]
        assert sum(0.5 not in (a.summary.auc_interval or a.joint_auc) for a in assessed) <= allowed(0.05)
        assert sum(a.summary.epsilon.low > 0 for a in assessed) <= allowed(0.05)
        assert sum(a.summary.epsilon.one_run.low > 0 for a in assessed) <= allowed(0.05)
    verdicts = [gather_evidence(each.assessments).beats_chance for each in audits(leak=False)]
    assert sum(verdicts) <= allowed(0.05)


def test_with_a_leak_it_is_found_and_the_record_helps() -> None:
    verdicts = [gather_evidence(each.assessments) for each in audits(leak=True)]
    assert all(verdict.beats_chance for verdict in verdicts)
    areas = {
        name: np.mean([each.assessments[name][0].metrics.auc for each in audits(leak=True)])
        for name in ("attack-p", "conditional")
    }
    assert areas["conditional"] > areas["attack-p"] + 0.1
    assert np.mean([each.named["conditional"][1] for each in audits(leak=True)]) > np.mean(
        [each.named["attack-p"][1] for each in audits(leak=True)]
    )
