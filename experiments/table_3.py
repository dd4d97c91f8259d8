"""Components: the ratio alone, votes added, p-values added (`tab:component_analysis`, `thm:main` (I) and (III))."""

from __future__ import annotations

from typing import cast, get_args

import numpy as np

from plmia.view import Mode

from .charts import dots
from .measure import AUC, BEYOND, Measured, attacks_called, difference, in_words, measure, verdict_above
from .outcome import FAILS, HOLDS, Claim, Outcome, Rows
from .setting import Setting
from .theorem import claims as theorem_claims

ATTACKS = ("lira-fixed", "lira", "pl-mia-plus", "pl-mia", "pl-mia-eb")
ZERO = "TPR@0%"


def run(setting: Setting) -> Outcome:
    """Measure the chain of attacks that leads to PL-MIA, LiRA with both of its variances."""
    source = setting.source("cifar10_wrn")
    modes = cast("tuple[Mode, ...]", get_args(Mode))
    found = {mode: measure(source, attacks_called(*ATTACKS), mode) for mode in modes}
    ours: Rows = {
        (source.data, mode, name): m.cells() for mode, by_name in found.items() for name, m in by_name.items()
    }
    online = found["online"]
    rng = np.random.default_rng([setting.seed, 8])
    claims = (_calibration(online), _cauchy(online), _theorem(online), *theorem_claims(rng))
    drawn = dots("table-3", ours, (ZERO, "TPR@0.1%"))
    return Outcome("table-3", (source,), ours, (AUC, *BEYOND), (drawn,), claims)


def _calibration(found: dict[str, Measured]) -> Claim:
    """What the paper calls the gain of calibration, taken apart into variance and calibration."""
    variance = difference(found["lira"], found["lira-fixed"], ZERO)
    votes = difference(found["pl-mia-plus"], found["lira"], ZERO)
    return Claim(
        "calibration",
        verdict_above([votes]),
        "Taken apart: from one variance for all points to one a point "
        f"({in_words(f'lira against lira-fixed, {ZERO}', variance)}), and from there to votes of the population "
        f"({in_words(f'pl-mia-plus against lira, {ZERO}', votes)}). Votes only coarsen the order: members above the "
        "whole population tie.",
    )


def _cauchy(found: dict[str, Measured]) -> Claim:
    gain = difference(found["pl-mia"], found["pl-mia-plus"], ZERO)
    lira = found["pl-mia"].known(AUC) == found["lira"].known(AUC)
    words = "It gives back what votes lost" if lira else "It changes the order"
    return Claim(
        "cauchy", verdict_above([gain]), f"{in_words(ZERO, gain)}. {words}: pl-mia and lira have the same ROC curve."
    )


def _theorem(found: dict[str, Measured]) -> Claim:
    gap = max(abs(a - b) for a, b in zip(found["pl-mia-plus"].known(AUC), found["lira"].known(AUC), strict=True))
    return Claim(
        "theorem-1",
        HOLDS if gap < 0.1 else FAILS,
        f"AUC differs by at most {gap:.4f} points, which is ties; at an FPR below 1/|Z| ties cost power.",
    )
