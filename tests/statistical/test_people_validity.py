"""People as the unit in 200 simulated audits each, without a leak and with one: every promise at once.

300 people have 1 to 6 records each, of which few have many. Records of one person have correlated signals in every
model (0 to 0.9, given membership); there are eight references in complementary pairs. Seeds are fixed. A rate may
exceed its level by 3.1 standard errors of the simulation, which happens once in a thousand settings; the rate of one
audit varies with its population and its queries. Verdicts and subgroups may exceed 5 % by two standard errors.

A population of 75 is one range of sizes, so the rate within each size rests on `SizeScale`, which learns from
references that have two references fewer than the target. Over all sizes the rate is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from plmia import ATTACKS, Setup, attack_targets
from plmia.attacks.attack import Attack
from plmia.attacks.view import Mode
from plmia.data.arrays import BoolArray, FloatArray, IntArray
from plmia.data.designs import audit_design, exact_k_per_point
from plmia.evaluation.intervals import tpr_interval
from plmia.evaluation.metrics import roc_curve
from plmia.evaluation.subgroups import subgroup_table
from plmia.evaluation.targets import AttackResult
from plmia.results.summary import assess
from plmia.results.verdict import Assessment, gather_evidence
from plmia.signals.signals import Signals

AUDITS = 200
PEOPLE, REFERENCES, POPULATION = 300, 8, 75
SIZES = np.repeat(np.arange(1, 7), (90, 75, 55, 40, 25, 15))
LEVELS = (0.1, 0.05)
SURE = 3.1
SHIFT = 1.2
FPR = 0.1
# Share of audits that may be wrong at a level of 5 %.
WRONG = 0.05 + 2 * math.sqrt(0.05 * 0.95 / AUDITS)


@dataclass(frozen=True)
class Setting:
    """A kind of audit; ``correlation`` is that of two records of a person in one model, given membership."""

    correlation: float
    leak: bool
    mode: Mode = "online"
    exact: bool = False  # whether every record is in exactly half of all models

    @property
    def attack(self) -> Attack:
        return ATTACKS["lira-fixed" if self.mode == "online" else "rmia"]

    def signals(self, seed: int, people: int = PEOPLE) -> Signals:
        """Simulate signals: the difficulty of the record, noise of its person and its own, and the leak."""
        rng = np.random.default_rng([seed, round(100 * self.correlation), self.leak])
        size = rng.permutation(np.resize(SIZES, people))
        groups = rng.permutation(np.repeat(np.arange(people), size))
        if self.exact:
            design = exact_k_per_point(len(groups), REFERENCES + 2, REFERENCES // 2 + 1, rng, groups)
        else:
            design = audit_design(len(groups), REFERENCES, rng, groups)
        shape = design.matrix.shape
        person = rng.normal(size=(shape[0], people))[:, groups]
        noise = math.sqrt(self.correlation) * person + math.sqrt(1 - self.correlation) * rng.normal(size=shape)
        values = rng.normal(size=shape[1]) + noise + SHIFT * self.leak * design.matrix
        return Signals(values[:, :, None].astype(np.float32), design, groups=groups)

    def result(self, seed: int, people: int = PEOPLE, population: int = POPULATION) -> AttackResult:
        setup = Setup(self.mode, population=population, seed=seed)
        (result,) = attack_targets(self.signals(seed, people), [self.attack], [0], setup)
        return result


SETTINGS = [
    *(Setting(correlation, leak) for correlation in (0.0, 0.5, 0.9) for leak in (False, True)),
    *(Setting(correlation, leak, "offline") for correlation in (0.0, 0.9) for leak in (False, True)),
    Setting(0.5, False, exact=True),
]


@dataclass(frozen=True, eq=False)
class Audit:
    """What the tests read of one audit: one value per evaluated person, and the assessment."""

    p_value: FloatArray
    score: FloatArray
    members: BoolArray
    size: IntArray
    ward: IntArray
    assessment: Assessment

    def rate(self, chosen: BoolArray, level: float) -> tuple[int, int]:
        """Number of chosen non-members that are called at a level, and of all of them."""
        own = chosen & ~self.members
        return int(np.count_nonzero(self.p_value[own] <= level * (1 + 1e-9))), int(np.count_nonzero(own))


@cache
def audits(setting: Setting) -> tuple[Audit, ...]:
    found = []
    for seed in range(AUDITS):
        result = setting.result(seed)
        assert result.groups is not None
        assert not result.by_one_record
        queries = result.truth.queries
        p_value = 10 ** result.scores.log10_p_conformal[queries]
        ward = np.random.default_rng(seed).integers(0, 2, len(queries))
        score, members = result.scores.score[queries], result.truth.members[queries]
        found.append(Audit(p_value, score, members, result.groups.size[queries], ward, assess(result)))
    return tuple(found)


def limit(level: float, per_audit: float) -> float:
    """Largest mean rate that a valid p-value gives; with queries, the threshold of each population varies."""
    return level + SURE * math.sqrt(level * (1 - level) * (1 / POPULATION + 1 / per_audit) / AUDITS)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_calls_accuse_at_most_their_level_of_non_members(setting: Setting, level: float) -> None:
    called, n = np.sum([audit.rate(np.ones(len(audit.size), bool), level) for audit in audits(setting)], axis=0)
    exact = math.floor(level * (POPULATION + 1)) / (POPULATION + 1)
    error = limit(level, n / AUDITS) - level
    assert abs(called / n - exact) <= error


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_calls_accuse_at_most_their_level_within_each_size(setting: Setting, level: float) -> None:
    for size in range(1, 7):
        called, n = np.sum([audit.rate(audit.size == size, level) for audit in audits(setting)], axis=0)
        assert called / n <= limit(level, n / AUDITS), size


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_calls_accuse_at_most_their_level_within_each_subgroup(setting: Setting, level: float) -> None:
    for ward in range(2):
        called, n = np.sum([audit.rate(audit.ward == ward, level) for audit in audits(setting)], axis=0)
        assert called / n <= limit(level, n / AUDITS), ward


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_false_discoveries_among_people_stay_below_their_rate(setting: Setting) -> None:
    exposures = [audit.assessment.summary.fdr[0.1] for audit in audits(setting)]
    assert np.mean([each.realised_fdr for each in exposures]) <= 0.1 + SURE * math.sqrt(0.1 * 0.9 / AUDITS)
    if setting.leak:
        assert np.mean([each.n_discoveries for each in exposures]) > 5


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_interval_covers_the_true_positive_rate(setting: Setting) -> None:
    """The truth is that of one audit with 10,000 people, or the false-positive rate where nothing leaks."""
    truth = FPR
    if setting.leak:
        result = setting.result(0, 10_000, 1_000)
        queries = result.truth.queries
        truth = roc_curve(result.scores.score[queries], result.truth.members[queries]).tpr_at(FPR).tpr
        assert truth > 2 * FPR
    covered = [truth in tpr_interval(roc_curve(audit.score, audit.members), FPR) for audit in audits(setting)]
    assert np.mean(covered) >= 0.95 - SURE * math.sqrt(0.05 * 0.95 / AUDITS)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_verdict_speaks_of_a_leak_where_there_is_one(setting: Setting) -> None:
    said = [gather_evidence({"attack": [audit.assessment]}).beats_chance for audit in audits(setting)]
    assert np.mean(said) == 1 if setting.leak else np.mean(said) <= WRONG


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_no_subgroup_of_equals_is_called_more_exposed(setting: Setting) -> None:
    called = [
        bool(subgroup_table("ward", a.ward, ["north", "south"], a.score, a.members, FPR).more_exposed)
        for a in audits(setting)
    ]
    assert np.mean(called) <= WRONG
