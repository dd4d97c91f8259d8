"""Decision rules keep their false-positive rates, and named records their false discovery rate.

Seeds are fixed. Unless said otherwise a mean over audits may be four standard errors off (exact ones where the law is
known, estimated ones elsewhere): correct code fails that for one seed in 15,000. Rates are those of the cut that a rule
made, on points that stand for the whole law of non-members, wherever the law is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from plmia import Attack, CauchyCombination, NoCalibration, Setup, Signals, attack_targets
from plmia.attacks.attack import ATTACKS
from plmia.attacks.scoring import score
from plmia.attacks.view import AttackView, References
from plmia.data.designs import MembershipDesign
from plmia.errors import PopulationError
from plmia.evaluation.decisions import (
    Analytic,
    ClassConformal,
    Conformal,
    HeldOut,
    Known,
    ModelledTail,
    Tolerance,
    judge,
)
from plmia.evaluation.pareto_tail import fit_tail
from plmia.evaluation.records import exposure

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
AUDITS = 200
LEVELS = (0.1, 0.01, 0.001)


@dataclass(frozen=True, eq=False)
class Given:
    """A statistic that is given, whatever the view."""

    values: Floats

    def __call__(self, view: AttackView) -> Floats:
        return self.values[:, None]


def audit(phi: Floats, n: int, labels: Ints | None = None, combined: bool = False) -> Known:
    """Score a statistic whose first ``n`` points are the population, as the software does."""
    references = References(np.zeros((1, len(phi), 1)), np.arange(1), np.zeros((1, len(phi)), bool))
    view = AttackView(np.zeros((len(phi), 1)), references, np.arange(n), labels)
    attack = Attack("given", Given(phi), CauchyCombination() if combined else NoCalibration())
    return Known(score(attack, view, np.random.default_rng(0)), view.population, labels)


def error_of_mean(n: int, k: int, queries: int, audits: int) -> float:
    """Exact standard error of the mean share of ``queries`` fresh points above the k-th largest of ``n``."""
    mean = k / (n + 1)
    within = mean * (1 - mean) / queries
    between = mean * (1 - mean) / (n + 2)
    return math.sqrt((within + between) / audits)


# --- counting rules, no leak: members and non-members follow one law


@pytest.mark.parametrize("law", ["normal", "reversed exponential"])
def test_conformal_keeps_its_level_on_average(law: str) -> None:
    rng, n, queries = np.random.default_rng(1), 1_999, 3_000
    rates = np.zeros((AUDITS, len(LEVELS)))
    for i in range(AUDITS):
        phi = rng.normal(size=n + queries) if law == "normal" else -rng.exponential(size=n + queries)
        known = audit(phi, n)
        rates[i] = [Conformal(level)(known).flagged[n:].mean() for level in LEVELS]
    for level, rate in zip(LEVELS, rates.mean(axis=0), strict=True):
        k = round(level * (n + 1))
        assert rate == pytest.approx(level, abs=4 * error_of_mean(n, k, queries, AUDITS))


def test_conformal_keeps_its_level_with_ties() -> None:
    """With ties, as votes have them, the level is not reached but kept."""
    rng, n, queries = np.random.default_rng(2), 1_999, 3_000
    rates = np.zeros((AUDITS, len(LEVELS)))
    for i in range(AUDITS):
        known = audit(np.floor(8 * rng.normal(size=n + queries)), n)
        rates[i] = [Conformal(level)(known).flagged[n:].mean() for level in LEVELS]
    for level, rate in zip(LEVELS, rates.mean(axis=0), strict=True):
        assert rate <= level + 4 * error_of_mean(n, round(level * (n + 1)), queries, AUDITS)
    assert rates.mean(axis=0)[0] < 0.1 - 0.002


def test_class_conformal_keeps_its_level_in_every_class() -> None:
    """Classes differ in difficulty and size; the plain conformal rule holds overall, not in each."""
    rng, level = np.random.default_rng(3), 0.01
    sizes, shifts = (199, 399, 999), (0.0, 1.0, -1.0)
    of_z = np.repeat([0, 1, 2], sizes)
    labels = np.concatenate([of_z, np.repeat([0, 1, 2], 1_000)])
    n = len(of_z)
    within, overall = np.zeros((AUDITS, 3)), np.zeros((AUDITS, 3))
    for i in range(AUDITS):
        known = audit(rng.normal(np.take(shifts, labels)), n, labels)
        for rule, into in ((ClassConformal, within), (Conformal, overall)):
            into[i] = rule(level)(known).flagged[n:].reshape(3, 1_000).mean(axis=1)
    for size, rate in zip(sizes, within.mean(axis=0), strict=True):
        assert rate == pytest.approx(level, abs=4 * error_of_mean(size, round(level * (size + 1)), 1_000, AUDITS))
    assert overall.mean(axis=0)[1] > 2 * level


GRID = (np.arange(20_000) + 0.5) / 20_000
"""Points that stand for the uniform law: the share of them beyond a cut is its false-positive rate, within 0.00005."""


@pytest.mark.parametrize(("n", "level"), [(1_000, 0.01), (500, 0.1), (400, 0.01)])
def test_tolerance_holds_in_nineteen_draws_of_twenty(n: int, level: float) -> None:
    rng, audits = np.random.default_rng(4), 400
    above, conformal_above = 0, 0
    for _ in range(audits):
        known = audit(np.concatenate([rng.uniform(size=n), GRID]), n)
        above += Tolerance(level)(known).flagged[n:].mean() > level
        conformal_above += Conformal(level)(known).flagged[n:].mean() > level
    assert above / audits <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / audits)
    assert conformal_above / audits > 0.3  # what the average hides


def test_held_out_exceeds_its_level_as_documented() -> None:
    rng, n = np.random.default_rng(5), 100
    rates = [
        HeldOut(0.01)(audit(np.concatenate([rng.uniform(size=n), GRID]), n)).flagged[n:].mean() for _ in range(400)
    ]
    assert np.mean(rates) == pytest.approx(2 / 101, abs=4 * error_of_mean(n, 2, 10**9, 400))


# --- the modelled tail


@dataclass(frozen=True)
class Law:
    """A law of non-members: how to draw it, and the points beyond which a share of it lies."""

    draw: Callable[[np.random.Generator, int], Floats]
    beyond: Callable[[Floats], Floats]


def _mixture(outliers: float) -> Law:
    """Normal, one in a hundred ``outliers`` times as far out."""
    points = np.linspace(0, 12 * outliers, 200_001)
    shares = 0.99 * stats.norm.sf(points) + 0.01 * stats.norm.sf(points / outliers)

    def draw(rng: np.random.Generator, n: int) -> Floats:
        return rng.normal(size=n) * np.where(rng.random(n) < 0.01, outliers, 1.0)

    return Law(draw, lambda share: np.interp(-share, -shares, points))


LAWS = {
    "normal": Law(lambda rng, n: rng.normal(size=n), stats.norm.isf),
    "left-skewed": Law(lambda rng, n: -rng.exponential(size=n), lambda share: np.log1p(-share)),
    "right-skewed": Law(lambda rng, n: rng.exponential(size=n), lambda share: -np.log(share)),
    "Student t3": Law(lambda rng, n: rng.standard_t(3, size=n), lambda share: stats.t.isf(share, 3)),
    "uniform": Law(lambda rng, n: rng.uniform(size=n), lambda share: 1 - share),
    "outliers 5": _mixture(5.0),
    "outliers 10": _mixture(10.0),
}
# Shares of the law from large to small; a rule's rate is the largest share it flags.
SHARES = np.geomspace(0.2, 1e-9, 2_000)


def rates_of(law: Law, n: int, level: float, seed: int) -> tuple[Floats, Floats]:
    """Rate of the modelled tail's cut in each audit, and whether its check failed."""
    rng, beyond = np.random.default_rng(seed), law.beyond(SHARES)
    rates, failed = np.zeros(AUDITS), np.zeros(AUDITS)
    for i in range(AUDITS):
        call = ModelledTail(level)(audit(np.concatenate([law.draw(rng, n), beyond]), n))
        rates[i] = SHARES[call.flagged[n:]].max(initial=0.0)
        failed[i] = call.check is not None and not call.check.passed
    return rates, failed


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(("n", "level"), [(500, 0.01), (500, 0.001), (1_000, 5e-4), (2_500, 0.001), (2_500, 1e-4)])
def test_the_modelled_tail_keeps_its_level_on_average(name: str, n: int, level: float) -> None:
    rates, failed = rates_of(LAWS[name], n, level, seed=n)
    assert rates.mean() <= level + 3 * rates.std() / math.sqrt(AUDITS)
    if level < 1 / (n + 1):
        assert rates.mean() < 0.9 * level  # measured: 0.00 to 0.74 of the level, the most with outliers
    assert failed.mean() <= 0.02


@pytest.mark.parametrize("n", [500, 1_000])
def test_the_modelled_tail_is_not_trusted_further(n: int) -> None:
    with pytest.raises(PopulationError, match=r"needs 2,499 known non-members"):
        ModelledTail(1e-4)(audit(np.random.default_rng(0).normal(size=2 * n), n))


def test_a_model_without_caution_would_be_caught() -> None:
    rng, level, law = np.random.default_rng(0), 1e-3, LAWS["outliers 10"]
    shares = [np.interp(fit_tail(law.draw(rng, 500), 0.51).cut(level), law.beyond(SHARES), SHARES) for _ in range(400)]
    assert np.mean(shares) > level + 3 * np.std(shares) / 20


# --- the analytic rule and its check


def test_the_analytic_rule_flags_too_many_even_of_normal_statistics() -> None:
    rng, n = np.random.default_rng(6), 2_500
    ratios = []
    for _ in range(60):
        known = audit(rng.normal(size=n + 3_000), n, combined=True)
        ratios.append([Analytic(level)(known).flagged[n:].mean() / level for level in (0.1, 0.01)])
    tenth, hundredth = np.mean(ratios, axis=0)
    assert 1.5 < tenth < 1.7  # measured 1.60
    assert 1.6 < hundredth < 1.95  # measured 1.78


def test_the_check_rejects_the_analytic_rule_on_skewed_statistics() -> None:
    rng, n, level = np.random.default_rng(7), 2_500, 0.01
    for _ in range(20):
        call = Analytic(level)(audit(-rng.exponential(size=n + 1_000), n, combined=True))
        assert call.flagged[n:].mean() > 30 * level
        assert call.check is not None
        assert not call.check.passed


def test_the_check_speaks_of_fresh_non_members() -> None:
    """Left-one-out calls on Z are dependent, yet a rule that is right with this Z seldom fails its check."""
    rng, n, level = np.random.default_rng(8), 1_000, 0.01
    laws = (
        lambda size: rng.exponential(size=size) ** 3,
        lambda size: rng.lognormal(size=size),
        lambda size: rng.uniform(size=size),
    )
    valid, false_alarms, shares = 0, 0, []
    for i in range(450):
        call = Analytic(level)(audit(laws[i % 3](n + 4_000), n, combined=True))
        assert call.check is not None
        shares.append(call.check.flagged / n - call.flagged[n:].mean())
        right = call.flagged[n:].mean() <= level
        valid += right
        false_alarms += right and not call.check.passed
    assert abs(np.mean(shares)) < 4 * np.std(shares) / math.sqrt(len(shares))
    assert valid > 250
    assert false_alarms <= 0.01 * valid


# --- false discovery rate


@pytest.mark.parametrize("shift", [0.0, 2.5])
@pytest.mark.parametrize("fdr", [0.1, 0.3])
def test_named_records_keep_the_false_discovery_rate(shift: float, fdr: float) -> None:
    """Without leak every name is false in effect, so that anything is named must be as rare as the rate."""
    rng, n, queries = np.random.default_rng(9), 2_000, 600
    members = np.arange(n + queries) >= n + 450
    wrong, any_named, found = [], [], []
    for _ in range(AUDITS):
        phi = rng.normal(size=n + queries)
        phi[members] += shift
        named = exposure(audit(phi, n).scores, np.arange(n, n + queries), members, fdr, n)
        wrong.append(named.realised_fdr)
        any_named.append(named.n_discoveries > 0)
        found.append(named.n_true)
    share_of_nulls = 0.75 if shift else 1.0
    assert np.mean(wrong) <= fdr * share_of_nulls + 4 * np.std(wrong) / math.sqrt(AUDITS)
    if shift:
        assert np.mean(found) > 15
        assert np.mean(wrong) > fdr * share_of_nulls / 2
    else:
        assert np.mean(any_named) <= fdr + 4 * math.sqrt(fdr * (1 - fdr) / AUDITS)


# --- real signals


@pytest.fixture(scope="module")
def some_points(cifar10: Signals) -> Signals:
    """A part of the points, for speed."""
    assert cifar10.labels is not None
    part = MembershipDesign(np.ascontiguousarray(cifar10.design.matrix[:, :12_000]))
    return Signals(np.ascontiguousarray(cifar10.values[:, :12_000]), part, cifar10.labels[:12_000])


def test_on_real_signals_the_analytic_rule_fails_its_check_and_conformal_holds(some_points: Signals) -> None:
    setup = Setup(references=64)
    for result in attack_targets(some_points, [ATTACKS["pl-mia"]], [0, 7], setup):
        known = Known(result.scores, result.population, some_points.labels)
        truth = result.truth
        bad = judge(Analytic(0.01)(known), truth.members, truth.queries)
        assert bad.fpr_realised is not None
        assert bad.fpr_realised > 0.5
        assert bad.check is not None
        assert not bad.check.passed
        for level in (0.1, 0.01):
            for rule in (Conformal(level), ClassConformal(level)):
                good = judge(rule(known), truth.members, truth.queries)
                assert good.fpr_realised is not None
                assert good.tpr is not None
                outsiders = np.count_nonzero(~truth.members[truth.queries])
                error = error_of_mean(known.n, round(level * (known.n + 1)), int(outsiders), 1)
                assert good.fpr_realised == pytest.approx(level, abs=4 * error)
                assert good.tpr > 3 * level
