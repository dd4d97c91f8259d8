"""Subgroups in 200 simulated audits each: false calls without and with a leak, power, and coverage of the intervals.

Seeds are fixed. The standard error of a rate of 5 % in 200 audits is 1.5 points: each setting must stay below 5 % and
two of them, and all settings together below 5 %. Half of the units of each subgroup are members, unless stated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import ndtr, ndtri

from plmia.evaluation.subgroups import SubgroupTable, subgroup_table

AUDITS = 200
LEVEL = 0.05
ERROR = 2 * math.sqrt(LEVEL * (1 - LEVEL) / AUDITS)
NAMES = [f"ward {k}" for k in range(16)]

Ints = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Law = Callable[[np.random.Generator, Ints, Bools], Floats]

SIZES = {"equal": (400,) * 4, "unequal": (1500, 300, 120, 40), "many": (100,) * 16, "one small": (2000, 40)}


def audit(
    seed: int, sizes: Sequence[int], law: Law, fpr: float, shares: Sequence[float] | None = None
) -> SubgroupTable:
    rng = np.random.default_rng([20_261_117, seed])
    codes = np.repeat(np.arange(len(sizes)), sizes)
    each = zip(sizes, shares or [0.5] * len(sizes), strict=True)
    members = np.concatenate([rng.permutation(size) < max(20, round(size * share)) for size, share in each])
    return subgroup_table("ward", codes, NAMES[: len(sizes)], law(rng, codes, members), members, fpr)


def same(rng: np.random.Generator, codes: Ints, members: Bools) -> Floats:
    return rng.normal(size=codes.size)


def heteroscedastic(rng: np.random.Generator, codes: Ints, members: Bools) -> Floats:
    """Later subgroups, the small ones, have larger and wider scores, so that most false positives are theirs."""
    return rng.normal(size=codes.size) * np.geomspace(1, 5, codes[-1] + 1)[codes] + codes / codes[-1]


def heavy_tailed(rng: np.random.Generator, codes: Ints, members: Bools) -> Floats:
    return rng.standard_t(2, size=codes.size) * np.geomspace(1, 5, codes[-1] + 1)[codes]


def shifted(*shifts: float) -> Law:
    """Members score higher, by one shift for all subgroups or by one for each."""
    return lambda rng, codes, members: (
        rng.normal(size=codes.size) + members * np.broadcast_to(shifts, max(len(shifts), codes[-1] + 1))[codes]
    )


def memorised(*shares: float) -> Law:
    """A share of the members stands out, the others do not differ from non-members."""

    def law(rng: np.random.Generator, codes: Ints, members: Bools) -> Floats:
        share = np.broadcast_to(shares, max(len(shares), codes[-1] + 1))[codes]
        return rng.normal(size=codes.size) + 4 * (members & (rng.random(codes.size) < share))

    return law


NULLS: dict[str, Law] = {
    "no leak": same,
    "no leak, heteroscedastic": heteroscedastic,
    "no leak, heavy-tailed": heavy_tailed,
    "weak uniform leak": shifted(0.5),
    "uniform leak": shifted(1.5),
    "strong uniform leak": shifted(3.0),
    "uniform memorisation": memorised(0.2),
}
# Every law with unequal sizes, where most can go wrong, and each other division with the laws that are hardest for it.
SETTINGS = [
    *((law, "unequal") for law in NULLS),
    *((law, "one small") for law in ("no leak", "no leak, heteroscedastic", "uniform leak", "uniform memorisation")),
    *((law, "equal") for law in ("no leak, heteroscedastic", "uniform leak", "strong uniform leak")),
    *((law, "many") for law in ("no leak, heavy-tailed", "weak uniform leak")),
]


@functools.cache
def false_calls(law: str, sizes: str) -> float:
    """Share of audits in which any subgroup is called more exposed."""
    fpr = 0.001 if sizes == "equal" else 0.01
    return sum(bool(audit(k, SIZES[sizes], NULLS[law], fpr).more_exposed) for k in range(AUDITS)) / AUDITS


@pytest.mark.parametrize(("law", "sizes"), SETTINGS)
def test_no_subgroup_is_called_more_exposed(law: str, sizes: str) -> None:
    assert false_calls(law, sizes) <= LEVEL + ERROR


def test_all_settings_together_hold_the_level() -> None:
    assert np.mean([false_calls(law, sizes) for law, sizes in SETTINGS]) <= LEVEL


@pytest.mark.parametrize("law", ["no leak, heteroscedastic", "uniform leak"])
def test_the_share_of_members_may_differ_between_subgroups(law: str) -> None:
    sizes, shares = (1500, 300, 120, 80), (0.2, 0.4, 0.6, 0.5)
    called = [bool(audit(k, sizes, NULLS[law], 0.01, shares).more_exposed) for k in range(AUDITS)]
    assert np.mean(called) <= LEVEL + ERROR


# 5 % of 3,500 persons, in the last subgroup.
PLANTED = (1750, 1050, 525, 175)


@pytest.mark.parametrize(
    ("law", "least"),
    [
        pytest.param(shifted(1, 1, 1, 2), 0.95, id="strong"),
        pytest.param(shifted(0, 0, 0, 0.7), 0.9, id="found by the AUC"),
        pytest.param(memorised(0.05, 0.05, 0.05, 0.25), 0.9, id="found by the advantage"),
    ],
)
def test_a_planted_subgroup_is_found_and_no_other(law: Law, least: float) -> None:
    called = [audit(k, PLANTED, law, 0.01).more_exposed for k in range(AUDITS)]
    assert np.mean(["ward 3" in names for names in called]) >= least
    assert np.mean([bool({*names} - {"ward 3"}) for names in called]) <= LEVEL + ERROR


@pytest.mark.parametrize(("sizes", "fpr"), [((2000, 1000, 400), 0.01), ((400,) * 5, 0.05)])
def test_all_intervals_cover_at_once(sizes: tuple[int, ...], fpr: float) -> None:
    shifts = np.linspace(0, 2.5, len(sizes))
    truth = ndtr(shifts + ndtri(fpr))
    covered = 0
    for k in range(AUDITS):
        groups = audit(k, sizes, shifted(*shifts), fpr).subgroups
        covered += all(
            group.interval is not None and tpr in group.interval for group, tpr in zip(groups, truth, strict=True)
        )
    assert covered / AUDITS >= 1 - LEVEL - ERROR
