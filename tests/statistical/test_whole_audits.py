"""200 audits through the whole software, without a leak and with a known one: every promise of metrics.json at once.

Signals follow the paper's Gaussian model with laws that the attack knows exactly, so that the statistic is the true
likelihood ratio and the truth has a closed form. A promise that holds fails its test here in less than one run in a
thousand (seeds are fixed, so it never does): `_allowed` is the 99.9 % point of the binomial law.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from scipy.special import bdtrik

from plmia import Attack, AttackView, CauchyCombination, Setup, attack_targets
from plmia.attacks.theory import glr_tpr
from plmia.data.arrays import FloatArray
from plmia.data.designs import MembershipDesign
from plmia.evaluation.metrics import roc_curve
from plmia.results.summary import assess
from plmia.results.verdict import Assessment, gather_evidence
from plmia.signals.signals import Signals

AUDITS = 200
POINTS = 8_000
POPULATION = 1_500
ETA, RHO = 1.5, 0.8


@dataclass(frozen=True)
class TrueLikelihoodRatio:
    """log N(conf; eta, rho^2) - log N(conf; 0, 1): what infinitely many references would give."""

    def __call__(self, view: AttackView) -> FloatArray:
        ratio: FloatArray = view.target**2 / 2 - ((view.target - ETA) / RHO) ** 2 / 2 - np.log(RHO)
        return ratio


ATTACK = Attack("true-ratio", TrueLikelihoodRatio(), CauchyCombination())


def _signals(seed: int, leak: bool) -> Signals:
    rng = np.random.default_rng([seed, leak])
    members = np.arange(POINTS) < POINTS // 2
    rows = np.stack([members, rng.permutation(members), rng.permutation(members)])
    conf = rng.normal(size=(3, POINTS, 1))
    if leak:
        conf[0, members] = ETA + RHO * conf[0, members]
    return Signals(conf, MembershipDesign(rows), np.arange(POINTS) % 5)


@cache
def _audits_and_cuts(leak: bool) -> tuple[tuple[Assessment, ...], tuple[float, ...]]:
    """Return what all audits say, and the value of the statistic at which 1 % of each one's non-members are called."""
    found, cuts = [], []
    for seed in range(AUDITS):
        # The attack reads no reference, so none is aligned.
        setup = Setup(population=POPULATION, seed=seed, align="never")
        (result,) = attack_targets(_signals(seed, leak), [ATTACK], [0], setup)
        found.append(assess(result))
        queries = result.truth.queries
        point = roc_curve(result.scores.statistic[queries], result.truth.members[queries]).tpr_at(0.01)
        assert point.n_true == found[-1].metrics.tpr_at(0.01).n_true
        cuts.append(point.threshold)
    return tuple(found), tuple(cuts)


def _audits(leak: bool) -> tuple[Assessment, ...]:
    return _audits_and_cuts(leak)[0]


def _allowed(share: float, trials: int = AUDITS) -> int:
    """Return the most successes of a binomial count at this share, but for one run in a thousand."""
    return int(np.ceil(bdtrik(0.999, trials, share)))


@pytest.mark.parametrize("leak", [False, True])
@pytest.mark.parametrize("level", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("rule", ["conformal", "class-conformal"])
def test_conformal_calls_accuse_at_most_their_level(rule: str, level: float, leak: bool) -> None:
    """One audit's rate varies as Beta(k, |Z| + 1 - k) does; their mean is within its own error of k / (|Z| + 1)."""
    rates = [a.summary.decisions[rule][level].fpr_realised for a in _audits(leak)]
    if rule == "class-conformal" and level == 0.001:
        assert all("999" in (a.summary.decisions[rule][level].refused or "") for a in _audits(leak))
        return
    mean = float(np.mean(rates))
    per_class = POPULATION if rule == "conformal" else POPULATION / 5
    # Of the population: one audit's threshold; of the queries: binomial.
    error = np.sqrt(level * (1 / per_class + 5 / POINTS) / AUDITS)
    assert mean <= level + 3.1 * error
    assert mean >= level - 3.1 * error - 1.2 / per_class


@pytest.mark.parametrize("leak", [False, True])
def test_false_discoveries_stay_below_their_rate_on_average(leak: bool) -> None:
    for fdr in (0.01, 0.05, 0.1):
        realised = np.array([a.summary.fdr[fdr].realised_fdr for a in _audits(leak)])
        assert realised.mean() <= fdr + 3.1 * np.sqrt(fdr * (1 - fdr) / AUDITS)
    if leak:
        assert np.mean([a.summary.fdr[0.1].n_discoveries for a in _audits(True)]) > 10


def test_without_a_leak_epsilon_is_hardly_ever_above_zero() -> None:
    assert sum(a.summary.epsilon.low > 0 for a in _audits(False)) <= 0.05 * AUDITS
    assert sum(a.summary.epsilon.one_run_low > 0 for a in _audits(False)) <= _allowed(0.05)


def test_the_verdict_speaks_of_a_leak_where_there_is_one() -> None:
    """Without one in at most 5 % of the audits, with one always."""
    said = {leak: [gather_evidence({"true-ratio": [a]}).beats_chance for a in _audits(leak)] for leak in (False, True)}
    assert sum(said[False]) <= _allowed(0.05)
    assert all(said[True])


@dataclass(frozen=True)
class Noise:
    """A statistic that knows nothing; each seed is an attack of its own."""

    seed: int

    def __call__(self, view: AttackView) -> FloatArray:
        key = int.from_bytes(view.target[:4].tobytes(), "little") % 2**63
        return np.random.default_rng([self.seed, key]).normal(size=view.target.shape)


def test_picking_the_best_of_several_attacks_is_paid_for() -> None:
    """Five attacks that find nothing: the best of them looks better than guessing, its interval still covers that."""
    names = [f"noise-{seed}" for seed in range(5)]
    attacks = [Attack(name, Noise(seed), CauchyCombination()) for seed, name in enumerate(names)]
    alone, covered, leaks = 0, 0, 0
    for seed in range(AUDITS):
        signals = _signals(seed + 1_000, leak=False)
        results = attack_targets(signals, attacks, [0], Setup(population=POPULATION, seed=seed, align="never"))
        assessments = {result.scores.attack: [assess(result, len(names))] for result in results}
        verdict = gather_evidence(assessments)
        assert verdict.fpr is not None
        assert verdict.interval is not None
        alone += verdict.fpr in assessments[verdict.attack][0].summary.tpr[verdict.fpr].interval
        covered += verdict.fpr in verdict.interval
        leaks += verdict.beats_chance
    assert covered >= AUDITS - _allowed(0.05)
    assert leaks <= _allowed(0.05)
    assert alone < covered  # without the correction it would cover less often


def test_rows_that_belong_together_do_not_pass_for_evidence() -> None:
    """Ten rows a group with nearly the same signal and no leak: counted as independent they would show one often."""
    groups = np.repeat(np.arange(POINTS // 10), 10)
    said = {True: 0, False: 0}
    for seed in range(AUDITS // 2):
        rng = np.random.default_rng([seed, 11])
        members = (rng.permutation(POINTS // 10) < POINTS // 20)[groups]
        rows = np.stack([members, rng.permutation(members), rng.permutation(members)])
        conf = rng.normal(size=(3, POINTS // 10, 1))[:, groups] + 0.1 * rng.normal(size=(3, POINTS, 1))
        for known in (True, False):
            signals = Signals(conf, MembershipDesign(rows), groups=groups if known else None)
            (result,) = attack_targets(signals, [ATTACK], [0], Setup(seed=seed, align="never"))
            said[known] += gather_evidence({"true-ratio": [assess(result)]}).beats_chance
    assert said[True] <= _allowed(0.05, AUDITS // 2)
    assert said[False] > _allowed(0.05, AUDITS // 2)


def test_with_a_leak_epsilon_shows_it() -> None:
    assert min(a.summary.epsilon.low for a in _audits(True)) > 0.5
    assert min(a.summary.epsilon.one_run_low for a in _audits(True)) > 0.5


@pytest.mark.parametrize("leak", [False, True])
@pytest.mark.parametrize("fpr", [0.01, 0.001])
def test_intervals_cover_the_true_rate(fpr: float, leak: bool) -> None:
    """At the nominal rate, by theory: guessing finds `fpr`, the known leak what lem:logbf gives."""
    truth = float(glr_tpr(fpr, ETA, RHO)) if leak else fpr
    audits = _audits(leak)
    assert sum(truth in a.summary.tpr[fpr].interval for a in audits) >= 0.92 * AUDITS
    assert sum(truth in (a.summary.tpr[fpr].joint or ()) for a in audits) >= 0.92 * AUDITS


@pytest.mark.parametrize("leak", [False, True])
def test_intervals_given_the_cut_cover_the_cut_s_own_rate(leak: bool) -> None:
    """Clopper-Pearson at the realised FPR: the truth is what further members would exceed this very cut."""
    covered = 0
    for seed, (audit, cut) in enumerate(zip(*_audits_and_cuts(leak), strict=True)):
        point = audit.metrics.tpr_at(0.01)
        rng = np.random.default_rng([seed, 7])
        x = rng.normal(size=200_000)
        if leak:
            x = ETA + RHO * x
        phi = x**2 / 2 - ((x - ETA) / RHO) ** 2 / 2 - np.log(RHO)
        covered += point.low <= float(np.mean(phi >= cut)) <= point.high
    assert covered >= 0.92 * AUDITS


@pytest.mark.parametrize("leak", [False, True])
def test_the_auc_is_covered(leak: bool) -> None:
    if leak:
        # By numerical integration of the exact curve.
        grid = np.linspace(0, 1, 4001)[1:-1]
        truth = float(np.trapezoid(np.concatenate([[0], glr_tpr(grid, ETA, RHO), [1]]), np.linspace(0, 1, 4001)))
    else:
        truth = 0.5
    assert sum(truth in (a.summary.auc_interval or ()) for a in _audits(leak)) >= AUDITS - _allowed(0.05)


def test_the_paper_s_threshold_is_refuted_by_the_known_non_members_themselves() -> None:
    """Without a leak the null ratio is skewed: tau_alpha accuses several times too many, and the audits notice."""
    calls = [a.summary.decisions["analytic"][0.01] for a in _audits(False)]
    assert np.mean([call.fpr_realised for call in calls]) > 0.05
    wrong = [call for call in calls if call.fpr_realised is not None and call.fpr_realised > 0.03]
    assert len(wrong) > AUDITS / 2
    assert all(call.check is not None and not call.check.passed for call in wrong)
