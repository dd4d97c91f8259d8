"""Aligned references in 200 simulated audits each, without a leak and with one: p-values keep their level.

The target has twice the scale of its eight references, another mean, and a difficulty of each record of its own. Seeds
are fixed. A rate may exceed its level by 3.1 standard errors of the simulation, which happens once in a thousand
settings; the rate of one audit varies with its population and its queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from plmia import ATTACKS, Setup, attack_targets
from plmia.attacks.view import Mode
from plmia.data.designs import MembershipDesign, audit_design
from plmia.evaluation.targets import Align, AttackResult
from plmia.results.summary import assess
from plmia.results.verdict import gather_evidence
from plmia.signals.signals import Signals

AUDITS, REFERENCES = 200, 8
LEVELS = (0.01, 0.05, 0.2)
SURE = 3.1
# Share of audits that may call a leak where there is none, at a level of 5 %.
WRONG = 0.05 + 2 * math.sqrt(0.05 * 0.95 / AUDITS)


@dataclass(frozen=True)
class Setting:
    """A kind of audit."""

    leak: float
    mode: Mode = "online"
    population: int | None = None
    records: int = 1  # of each person
    views: int = 1
    exact: bool = False  # whether every record is in exactly half of all models
    scale: float = 2.0  # of the target
    attack: str = "pl-mia-eb"
    skewed: bool = False  # whether the target's own difficulties are exponential
    apart: float = 0.0  # by which the target's members gain more than its scale explains
    members: float | None = None  # share of records in the target's training set; by default half
    n: int = 600

    def signals(self, seed: int) -> Signals:
        rng = np.random.default_rng([seed, round(100 * self.leak), self.records, self.views])
        n = self.n
        groups = np.repeat(np.arange(n // self.records), self.records) if self.records > 1 else None
        matrix = audit_design(n, REFERENCES, rng, groups, "exact" if self.exact else "pairs").matrix
        if self.members is not None:
            matrix = np.vstack([rng.random(n) < self.members, matrix[1:]])
        level, gain = rng.normal(0, 1.5, n), np.abs(rng.normal(1, 0.5, n)) * self.leak
        values = level[None, :, None] + gain[None, :, None] * matrix[:, :, None]
        values = values + rng.normal(0, 0.6, (REFERENCES + 1, n, self.views)) + rng.normal(0, 0.5, (len(matrix), n, 1))
        if self.scale != 1:
            own = rng.exponential(0.6, (n, 1)) if self.skewed else rng.normal(0, 0.6, (n, 1))
            values[0] = self.scale * (values[0] + own) + 1 + self.apart * matrix[0, :, None]
        return Signals(values.astype(np.float32), MembershipDesign(matrix), groups=groups)

    def run(self, seed: int, align: Align = "auto") -> AttackResult:
        setup = Setup(self.mode, population=self.population, seed=seed, align=align)
        return next(iter(attack_targets(self.signals(seed), [ATTACKS[self.attack]], [0], setup)))


@cache
def audits(setting: Setting, align: Align = "auto") -> tuple[AttackResult, ...]:
    return tuple(setting.run(seed, align) for seed in range(AUDITS))


def false_positives(result: AttackResult, level: float) -> float:
    queries = result.truth.queries[~result.truth.members[result.truth.queries]]
    return float(np.mean(result.scores.log10_p_conformal[queries] <= math.log10(level) + 1e-9))


def exceeds(setting: Setting, level: float, align: Align = "auto") -> float:
    """Standard errors by which the mean rate exceeds the level."""
    rates = np.array([false_positives(result, level) for result in audits(setting, align)])
    return float((rates.mean() - level) / (rates.std(ddof=1) / math.sqrt(len(rates))))


def aucs(setting: Setting, align: Align) -> np.ndarray:
    return np.array([result.metrics().auc for result in audits(setting, align)])


# Only with as many known non-members do members get a map of their own.
LEARNED_INSIDE = [Setting(0.5, apart=3, n=2000), Setting(0.5, "offline", apart=3, n=2000)]
UNLIKE = [
    Setting(0),
    Setting(1),
    Setting(0, "offline"),
    Setting(1, "offline"),
    Setting(0, population=40),
    Setting(0, population=40, skewed=True),
    Setting(0, population=200, skewed=True),
    Setting(0, records=3),
    Setting(1, records=3),
    Setting(0, "offline", records=3),
    Setting(0, members=0.04),
    Setting(0, members=0.85, n=1500),
    Setting(0, views=3),
    Setting(0, exact=True),
    Setting(1, attack="lira-fixed"),
    *LEARNED_INSIDE,
]


@pytest.mark.parametrize("setting", UNLIKE, ids=str)
def test_aligned_p_values_keep_their_level(setting):
    assert all(result.alignment is not None for result in audits(setting))
    for level in LEVELS:
        if level * (len(audits(setting)[0].population) + 1) >= 1:  # smaller p-values do not exist
            assert exceeds(setting, level) < SURE


@pytest.mark.parametrize("setting", LEARNED_INSIDE, ids=str)
def test_a_map_of_members_is_learned_where_they_differ_otherwise(setting):
    assert (
        np.mean([result.alignment is not None and result.alignment.learned_inside for result in audits(setting)]) > 0.9
    )


@pytest.mark.parametrize("setting", [Setting(0), Setting(0, population=40), Setting(0, records=3)], ids=str)
def test_no_leak_is_called_where_there_is_none(setting):
    called = [gather_evidence({setting.attack: [assess(result)]}).verdict([]).leak_shown for result in audits(setting)]
    assert np.mean(called) <= WRONG


@pytest.mark.parametrize("setting", [s for s in UNLIKE if s.leak and s.attack == "pl-mia-eb"], ids=str)
def test_alignment_finds_clearly_more(setting):
    gain = aucs(setting, "auto") - aucs(setting, "never")
    assert gain.mean() > 0.02
    assert gain.mean() > SURE * gain.std(ddof=1) / math.sqrt(len(gain))


@pytest.mark.parametrize("setting", [Setting(1, scale=1), Setting(1, "offline", scale=1)], ids=str)
def test_always_aligning_costs_like_references_nothing(setting):
    loss = aucs(setting, "never") - aucs(setting, "always")
    assert loss.mean() < 0.001 + SURE * loss.std(ddof=1) / math.sqrt(len(loss))
    assert exceeds(setting, 0.05, "always") < SURE


def test_like_references_are_seldom_aligned():
    assert np.mean([result.alignment is not None for result in audits(Setting(0, scale=1))]) < 0.02


def test_chance_seldom_teaches_how_members_differ():
    """Queries that lie above the known non-members by chance look like members; held-out queries must confirm them."""
    found = [result.alignment for result in audits(Setting(0, population=200, skewed=True))]
    assert np.mean([each is not None and each.learned_inside for each in found]) < 0.03
