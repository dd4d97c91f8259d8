"""People and saturated models: where references agree to the last digit, the log ratio of a record may be 1e13.

For example, all references give a record the probability 1.0, and the target does not. The variance of the references
is then that of rounding. Means and deviations of such log ratios are determined by a few people. 120 simulated audits
without a leak check the error rate within each size. With a leak, all records must find more than one record does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from plmia import ATTACKS, Setup, attack_targets
from plmia.attacks.groups import GroupStatistic, LearnedOverGroup, MaxOverGroup, SumOverGroup
from plmia.data.designs import audit_design
from plmia.evaluation.metrics import roc_curve
from plmia.evaluation.targets import AttackResult
from plmia.signals.signals import Signals

SIZES = np.repeat(np.arange(1, 7), (90, 75, 55, 40, 25, 15))
PEOPLE, POPULATION = len(SIZES), 75
AUDITS = 120
LEVELS = (0.1, 0.05)
SURE = 3.1
CAP = 16.6  # log odds of 1 - 6e-8
GAUSSIAN = ("lira", "pl-mia", "pl-mia-plus", "pl-mia-pooled")


@dataclass(frozen=True)
class Saturated:
    """Models answer a share of the records with certainty; a share of these answers strays at random."""

    share: float
    stray: float
    leak: float

    def signals(self, seed: int, references: int) -> Signals:
        rng = np.random.default_rng([seed, round(100 * self.share), references])
        groups = rng.permutation(np.repeat(np.arange(PEOPLE), rng.permutation(SIZES)))
        design = audit_design(len(groups), references, rng, groups)
        shape = design.matrix.shape
        values = rng.normal(size=shape[1]) + rng.normal(size=shape) + self.leak * design.matrix
        strays = rng.random(shape) < self.stray
        sure = rng.random(shape[1]) < self.share
        values = np.where(sure, np.where(strays, rng.normal(2, 1, shape), CAP), values)
        return Signals(values[:, :, None].astype(np.float32), design, groups=groups)

    def results(
        self, seed: int, names: tuple[str, ...], references: int, statistic: GroupStatistic
    ) -> list[AttackResult]:
        setup = Setup(population=POPULATION, seed=seed, group_statistic=statistic)
        attacks = [ATTACKS[name] for name in names]
        return list(attack_targets(self.signals(seed, references), attacks, [0], setup))


@pytest.mark.parametrize(
    ("share", "statistic"),
    [
        (0.1, SumOverGroup()),
        (0.1, MaxOverGroup()),
        (0.1, LearnedOverGroup()),
        (0.5, SumOverGroup()),
        (0.5, LearnedOverGroup()),
    ],
    ids=repr,
)
def test_calls_accuse_at_most_their_level_within_each_size(share: float, statistic: GroupStatistic) -> None:
    """A population of 75 is one range of sizes, so the rate within each size rests on the common scale."""
    called, n = np.zeros((len(LEVELS), 7)), np.zeros(7)
    for seed in range(AUDITS):
        (result,) = Saturated(share, stray=0.05, leak=0.0).results(seed, ("lira",), 8, statistic)
        assert result.groups is not None
        others = result.truth.queries[~result.truth.members[result.truth.queries]]
        size, log10_p = result.groups.size[others], result.scores.log10_p_conformal[others]
        n += np.bincount(size, minlength=7)
        for k, level in enumerate(LEVELS):
            called[k] += np.bincount(size[log10_p <= math.log10(level) + 1e-9], minlength=7)
    for k, level in enumerate(LEVELS):
        for size in range(1, 7):
            error = math.sqrt(level * (1 - level) * (1 / POPULATION + AUDITS / n[size]) / AUDITS)
            assert called[k, size] / n[size] <= level + SURE * error, (level, size)


@pytest.mark.parametrize("name", [*GAUSSIAN, "lira-fixed", "rmia", "pl-mia-eb"])
def test_all_records_of_a_person_find_no_less_than_one(name: str) -> None:
    gained = []
    for seed in range(8):
        (result,) = Saturated(share=0.1, stray=0.05, leak=1.5).results(seed, (name,), 16, LearnedOverGroup())
        assert not result.by_one_record
        assert result.one_record is not None
        all_records, one = (
            roc_curve(each.scores.score[each.truth.queries], each.truth.members[each.truth.queries]).auc
            for each in (result, result.one_record)
        )
        gained.append(all_records - one)
    # The AUC of 300 people has a standard error of about 0.03.
    assert min(gained) > -0.05
    assert np.mean(gained) > 0.05
