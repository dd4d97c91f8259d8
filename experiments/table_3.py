"""Components: the ratio alone, votes added, p-values added (`tab:component_analysis`, `thm:main` (I) and (III))."""

from __future__ import annotations

from typing import cast, get_args

import numpy as np

from plmia.attacks.view import Mode

from .charts import dots
from .measure import (
    AUC,
    BEYOND,
    Measured,
    attacks_called,
    difference,
    in_words,
    judged,
    measure,
    sign,
    verdict_above,
)
from .outcome import Claim, Outcome, Rows
from .setting import Setting
from .theorem import claims as theorem_claims

ATTACKS = ("lira-fixed", "lira", "pl-mia-plus", "pl-mia", "pl-mia-eb")
ZERO = "TPR@0%"
# Rates at which the theorem's first part is tested, and the difference in points up to which power counts as equal.
EQUAL_AT, EQUAL = ("TPR@1%", "TPR@0.1%", "TPR@0.01%"), 0.25

Found = dict[Mode, dict[str, Measured]]


def run(setting: Setting) -> Outcome:
    """Measure the chain of attacks that leads to PL-MIA, and LiRA with both variances."""
    source = setting.source("cifar10_wrn")
    modes = cast("tuple[Mode, ...]", get_args(Mode))
    found: Found = {mode: measure(source, attacks_called(*ATTACKS), mode) for mode in modes}
    ours: Rows = {
        (source.data, mode, name): m.cells() for mode, by_name in found.items() for name, m in by_name.items()
    }
    online = found["online"]
    rng = np.random.default_rng([setting.seed, 8])
    claims = (_calibration(found), _cauchy(found), _theorem(online), *theorem_claims(rng))
    drawn = dots("table-3", ours, (ZERO, "TPR@0.1%"))
    return Outcome("table-3", (source,), ours, (AUC, "TPR@1%", "TPR@0.01%", *BEYOND), (drawn,), claims)


def _calibration(found: Found) -> Claim:
    """Split the paper's gain of calibration into variance and calibration, in every mode."""
    words, gains = [], []
    for mode, by in found.items():
        variance, votes = (
            difference(by["lira"], by["lira-fixed"], ZERO),
            difference(by["pl-mia-plus"], by["lira"], ZERO),
        )
        gains.append(votes)
        words.append(
            f"{mode}, from one variance for all points to one per point "
            f"({in_words(f'lira against lira-fixed, {ZERO}', variance)}), and from there to votes of the population "
            f"({in_words(f'pl-mia-plus against lira, {ZERO}', votes)})"
        )
    tail = "If both use the same ratio, votes only coarsen the ranking: members above the whole population tie."
    return Claim("calibration", verdict_above(gains), f"In two steps: {'; '.join(words)}. {tail}")


def _cauchy(found: Found) -> Claim:
    words, gains = [], []
    for mode, by in found.items():
        gains.append(difference(by["pl-mia"], by["pl-mia-plus"], ZERO))
        same = by["pl-mia"].known(AUC) == by["lira"].known(AUC)
        equal = ", which recovers the loss of votes: pl-mia and lira have the same ROC curve" if same else ""
        words.append(f"{mode}, {in_words(ZERO, gains[-1])}{equal}")
    return Claim("cauchy", verdict_above(gains), f"pl-mia against pl-mia-plus: {'; '.join(words)}.")


def _theorem(found: dict[str, Measured]) -> Claim:
    """Equal power: lower by at most the margin, in AUC and at each resolved rate."""
    parts, signs = [], []
    for metric in (AUC, *EQUAL_AT):
        d = difference(found["pl-mia-plus"], found["lira"], metric)
        if d is not None:
            parts.append(in_words(metric, d))
            signs.append(sign(d, EQUAL))
    return Claim(
        "theorem-1",
        judged(signs),
        f"Online, pl-mia-plus against lira, which take the same ratio [equal: up to {EQUAL:g} points below]: "
        f"{'; '.join(parts)}. Votes have |Z| + 1 values: members above all or nearly all of Z tie, which costs power "
        "at rates of a few times 1/|Z| and below. If the distribution of Z is known and ties are broken at random, "
        "nothing is lost: see (III).",
    )
