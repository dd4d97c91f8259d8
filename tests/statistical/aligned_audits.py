"""Simulated audits with references unlike the target, and what all of them must fulfil.

The target has twice the scale of its eight references, another mean, and a difficulty of each record of its own. Seeds
are fixed. A rate may exceed its level by 3.1 standard errors of the simulation, which happens once in a thousand
settings; the rate of one audit varies with its population and its queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from plmia import ATTACKS, Setup, attack_targets
from plmia.attacks.view import Mode
from plmia.data.designs import MembershipDesign, audit_design
from plmia.evaluation.targets import Align, AttackResult
from plmia.results.summary import assess
from plmia.results.verdict import gather_evidence
from plmia.signals.signals import Signals

REFERENCES = 8
# The rate of an audit of many records varies less: 100 of 2,000 records tell more than 200 of 600.
AUDITS, AUDITS_OF_MANY, MANY = 200, 100, 2000
LEVELS = (0.01, 0.05, 0.2)
SURE = 3.1


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
    n = AUDITS_OF_MANY if setting.n >= MANY else AUDITS
    return tuple(setting.run(seed, align) for seed in range(n))


def false_positives(result: AttackResult, level: float) -> float:
    queries = result.truth.queries[~result.truth.members[result.truth.queries]]
    return float(np.mean(result.scores.log10_p_conformal[queries] <= math.log10(level) + 1e-9))


def exceeds(setting: Setting, level: float, align: Align = "auto") -> float:
    """Standard errors by which the mean rate exceeds the level."""
    rates = np.array([false_positives(result, level) for result in audits(setting, align)])
    return float((rates.mean() - level) / (rates.std(ddof=1) / math.sqrt(len(rates))))


def aucs(setting: Setting, align: Align) -> np.ndarray:
    return np.array([result.metrics().auc for result in audits(setting, align)])


def check_level(setting: Setting) -> None:
    """Check that references are aligned, and that p-values keep each level."""
    assert all(result.alignment is not None for result in audits(setting))
    for level in LEVELS:
        if level * (len(audits(setting)[0].population) + 1) >= 1:  # smaller p-values do not exist
            assert exceeds(setting, level) < SURE, level


def check_no_leak_is_called(setting: Setting) -> None:
    """Check that hardly more than 5 % of the audits call a leak."""
    called = [gather_evidence({setting.attack: [assess(result)]}).verdict([]).leak_shown for result in audits(setting)]
    assert np.mean(called) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / len(called))


def check_gain(setting: Setting) -> None:
    """Check that an attack with aligned references finds clearly more."""
    gain = aucs(setting, "auto") - aucs(setting, "never")
    assert gain.mean() > 0.02
    assert gain.mean() > SURE * gain.std(ddof=1) / math.sqrt(len(gain))
