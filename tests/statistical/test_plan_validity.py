"""A plan's interval covers the TPR that is measured later with all references, and on far more records.

Seeds are fixed. In each of 20 simulated audits, a pilot has 32 of 128 references and a quarter of the records. Records
differ in level, noise and leak. Where the interval covers 95 %, fewer than 18 of 20 happen for one seed in 13, and
the interval is wider than that, since an extrapolation is rarely as wrong as on the signals that gave the rule.
"""

from __future__ import annotations

import numpy as np
import pytest

from plmia.attacks.attack import PL_MIA, RMIA, Attack
from plmia.auditing.planning import Cost, Split, make_plan, start
from plmia.data.designs import MembershipDesign
from plmia.evaluation.targets import Setup
from plmia.signals.signals import Signals

AUDITS, LEAST = 20, 18
REFERENCES, PILOT = 128, 32
RECORDS, FEWER = 16_000, 4_000
FPR = 0.01


def audit(seed: int, attack: Attack) -> tuple[Split, float, float]:
    """The plan's split; the TPR with all references on the pilot's records, and on all records."""
    rng = np.random.default_rng([7, seed])
    half = rng.random((REFERENCES // 2, RECORDS)) < 0.5
    pairs = np.stack([half, ~half], axis=1).reshape(-1, RECORDS)
    membership = np.concatenate([rng.random((1, RECORDS)) < 0.5, pairs])
    level, noise = rng.normal(0, 2, RECORDS), np.exp(rng.normal(0, 0.4, RECORDS))
    leak = rng.exponential(1.5, RECORDS)
    signals = level + noise * rng.normal(size=membership.shape) + membership * leak

    def tpr(records: int) -> float:
        chosen = Signals(signals[:, :records, None], MembershipDesign(membership[:, :records]))
        whole = start(chosen, attack, 0, Setup(), FPR)
        return whole.measure(whole.full.references)[1]

    few = slice(PILOT + 1), slice(FEWER)
    pilot = start(Signals(signals[few][:, :, None], MembershipDesign(membership[few])), attack, 0, Setup(), FPR)
    return make_plan(pilot, FPR, Cost(), float(REFERENCES), 0).best, tpr(FEWER), tpr(RECORDS)


@pytest.mark.parametrize(("attack", "widest"), [(PL_MIA, 1.0), (RMIA, 2.0)], ids=["pl-mia", "rmia"])
def test_the_interval_covers_what_is_measured_later(attack: Attack, widest: float) -> None:
    found = [audit(seed, attack) for seed in range(AUDITS)]
    assert {split.references for split, *_ in found} <= set(range(PILOT, REFERENCES + 1))
    for later in (1, 2):
        covered = sum(one[0].uncertainty.low <= one[later] <= one[0].uncertainty.high for one in found)
        assert covered >= LEAST
    # It says something: as a share of the TPR, the interval is seldom wider than this.
    assert np.median([(split.uncertainty.high - split.uncertainty.low) / split.power for split, *_ in found]) < widest


def test_the_interval_covers_on_real_signals(location: Signals) -> None:
    """128 perceptrons on Location-30: pilots of about half and a quarter of them, five targets, two attacks."""
    covered = []
    for attack in (PL_MIA, RMIA):
        for target in (0, 4, 9, 14, 20):
            whole = start(location, attack, target, Setup(), FPR)
            later = whole.measure(whole.full.references)[1]
            for models in (64, 32):
                design = MembershipDesign(location.design.matrix[:models])
                pilot = start(Signals(location.values[:models], design, location.labels), attack, target, Setup(), FPR)
                errors = make_plan(pilot, FPR, Cost(), float(whole.n_references), 0).best.uncertainty
                covered.append(errors.low <= later <= errors.high)
    assert len(covered) == AUDITS
    assert sum(covered) >= LEAST
