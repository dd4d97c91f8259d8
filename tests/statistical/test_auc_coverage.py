"""The interval of the AUC with few non-members: each end is on the wrong side of the truth as seldom as promised."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from plmia.evaluation.intervals import auc_interval
from plmia.evaluation.metrics import roc_curve

AUDITS, MEMBERS = 1500, 400
# Once in a thousand simulations, a tail of 2.5 % exceeds this.
MOST = 0.025 + 3.1 * math.sqrt(0.025 * 0.975 / AUDITS)


@pytest.mark.parametrize("auc", [0.5, 0.76, 0.95])
@pytest.mark.parametrize("non_members", [2, 5, 10, 20, 40, 60, 90])
def test_few_non_members_do_not_make_an_auc_look_certain(non_members, auc):
    rng = np.random.default_rng([non_members, round(100 * auc)])
    shift = math.sqrt(2) * norm.ppf(auc)
    members = np.arange(MEMBERS + non_members) < MEMBERS
    above = below = 0
    for _ in range(AUDITS):
        interval = auc_interval(roc_curve(rng.normal(0, 1, len(members)) + shift * members, members))
        above += interval.low > auc
        below += interval.high < auc
    assert above / AUDITS <= MOST
    assert below / AUDITS <= MOST
