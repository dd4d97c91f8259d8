"""400 audits without a leak through designs of every kind: nothing that an attack sees may reveal membership.

Records differ in difficulty and spread, which is when estimators react to the numbers of references. The signals of a
model do not depend on what it trained on, so every attack guesses. Seeds are fixed. With other seeds a valid attack
would miss the two standard errors around an AUC of 50 % in one of twenty runs; a single design would fail in one of a
thousand, all attacks together; a true rate of 5 % would exceed `_allowed` in one of a thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import bdtrik, stdtrit

from plmia import ATTACKS, Setup, Signals, attack_targets, import_signals, read_signals
from plmia.data.designs import (
    MembershipDesign,
    audit_design,
    complementary_pairs,
    exact_k_per_point,
    independent_halves,
)
from plmia.results.summary import assess
from plmia.results.verdict import Assessment, gather_evidence

AUDITS = 400
MODELS = (4, 5, 8, 9, 16, 33, 64)
Rows = npt.NDArray[np.bool_]


def _exact(rng: np.random.Generator, n_points: int, n_models: int) -> Rows:
    return exact_k_per_point(n_points, n_models, n_models // 2, rng).matrix


def _thirds(rng: np.random.Generator, n_points: int, n_models: int) -> Rows:
    return exact_k_per_point(n_points, n_models, max(2, n_models // 3), rng).matrix


def _lira(rng: np.random.Generator, n_points: int, n_models: int) -> Rows:
    """Draw what LiRA's training script draws: each record keeps the first half of the models in a random order."""
    keep: Rows = np.argsort(rng.uniform(size=(n_models, n_points)), axis=0) < int(0.5 * n_models)
    return keep


def _bernoulli(rng: np.random.Generator, n_points: int, n_models: int) -> Rows:
    return rng.random((n_models, n_points)) < 0.3


def _pairs(rng: np.random.Generator, n_points: int, n_models: int) -> Rows:
    return complementary_pairs(n_points, (n_models + 1) // 2, rng).matrix


def _halves(rng: np.random.Generator, n_points: int, n_models: int) -> Rows:
    return independent_halves(n_points, n_models, rng).matrix


def _given(rng: np.random.Generator, n_points: int, n_models: int) -> Rows:
    """Draw a target that trained on another share of the records than its references, whatever their design."""
    kind = ("pairs", "halves", "exact")[int(rng.integers(3))]
    rows = audit_design(n_points, n_models + n_models % 2, rng, kind=kind).matrix.copy()  # type: ignore[arg-type]
    rows[0] = rng.permutation(n_points) < (0.2 if rng.random() < 0.5 else 0.8) * n_points
    return rows


DESIGNS: dict[str, Callable[[np.random.Generator, int, int], Rows]] = {
    "exact": _exact,
    "exact thirds": _thirds,
    "lira folder": _lira,
    "bernoulli": _bernoulli,
    "pairs": _pairs,
    "halves": _halves,
    "given target": _given,
    "all targets": _exact,
    "some references": _exact,
}


def _signals(rng: np.random.Generator, rows: Rows) -> npt.NDArray[np.float32]:
    n_points = rows.shape[1]
    level, spread = 2.5 * rng.normal(size=n_points), np.exp(0.7 * rng.normal(size=n_points))
    return (level + spread * rng.normal(size=rows.shape)).astype(np.float32)


def _imported(conf: npt.NDArray[np.float32], rows: Rows) -> Signals:
    """Write a folder as LiRA's code does, logits [records, 1, 1, classes] beside keep.npy, and import it."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        labels = np.arange(rows.shape[1]) % 3
        np.save(folder / "y_train.npy", labels)
        for model, keep in enumerate(rows):
            run = folder / f"experiment-{model}_{len(rows)}"
            (run / "logits").mkdir(parents=True)
            logits = np.zeros((len(labels), 1, 1, 3), np.float32)
            logits[np.arange(len(labels)), 0, 0, labels] = conf[model]
            np.save(run / "keep.npy", keep)
            np.save(run / "logits" / "0000000100.npy", logits)
        import_signals("lira", folder, folder / "signals.npz")
        return read_signals(folder / "signals.npz")


@dataclass(frozen=True)
class Audit:
    """What one audit found: its design, for each attack the assessments of all targets, and notes."""

    design: str
    assessments: dict[str, list[Assessment]]
    codes: frozenset[str]


def _audit(seed: int) -> Audit:
    rng = np.random.default_rng([seed, 5])
    names = list(DESIGNS)
    name, n_models = names[seed % len(names)], MODELS[seed // len(names) % len(MODELS)]
    n_points = int(rng.integers(300, 800))
    if name == "all targets":
        n_models = min(n_models, 9)
    rows = DESIGNS[name](rng, n_points, n_models)
    conf = _signals(rng, rows)
    signals = _imported(conf, rows) if name == "lira folder" else Signals(conf[:, :, None], MembershipDesign(rows))
    few = max(2, n_models // 2) if name == "some references" else None
    setup = Setup("offline" if seed % 4 == 3 else "online", few, seed=seed)
    targets = range(len(rows)) if name == "all targets" else [0]
    found: dict[str, list[Assessment]] = {}
    codes: set[str] = set()
    attacks = list(ATTACKS.values())
    for result in attack_targets(signals, attacks, targets, setup, refused=lambda *_: None):
        found.setdefault(result.scores.attack, []).append(assess(result, len(attacks) * len(targets)))
        codes.update(note.code for note in result.notes)
    return Audit(name, found, frozenset(codes))


@cache
def _audits() -> tuple[Audit, ...]:
    return tuple(_audit(seed) for seed in range(AUDITS))


def _allowed(share: float, trials: int) -> int:
    """Return the most successes of a binomial count at this share, but for one run in a thousand."""
    return int(np.ceil(bdtrik(0.999, trials, share)))


def _aucs(attack: str, designs: tuple[str, ...] = tuple(DESIGNS)) -> npt.NDArray[np.float64]:
    """AUC of each audit, the mean over targets where there are several."""
    chosen = (audit.assessments.get(attack) for audit in _audits() if audit.design in designs)
    return np.array([np.mean([a.metrics.auc for a in assessments]) for assessments in chosen if assessments])


def _errors(aucs: npt.NDArray[np.float64]) -> float:
    return abs(float(aucs.mean()) - 0.5) / (float(aucs.std(ddof=1)) / np.sqrt(len(aucs)))


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_guesses(attack: str) -> None:
    aucs = _aucs(attack)
    assert len(aucs) > AUDITS / 2
    assert _errors(aucs) < 2


@pytest.mark.parametrize("design", DESIGNS)
def test_every_attack_guesses_in_every_design(design: str) -> None:
    for attack in ATTACKS:
        aucs = _aucs(attack, (design,))
        assert len(aucs) >= 10
        assert _errors(aucs) < stdtrit(len(aucs) - 1, 1 - 0.0005 / len(ATTACKS))


def test_no_leak_is_said_in_at_most_one_of_twenty_audits() -> None:
    leaks = sum(gather_evidence(audit.assessments).beats_chance for audit in _audits())
    assert leaks <= 0.05 * AUDITS


def test_members_are_hardly_ever_called_swapped() -> None:
    """The check has one false alarm in two thousand audits, so one of 400 is allowed."""
    assert sum(bool(gather_evidence(audit.assessments).swapped) for audit in _audits()) <= 1


def _single() -> Iterator[tuple[str, Assessment]]:
    for audit in _audits():
        for attack, assessments in audit.assessments.items():
            yield attack, assessments[0]


@pytest.mark.parametrize("attack", ATTACKS)
def test_epsilon_is_above_zero_in_at_most_one_of_twenty_audits(attack: str) -> None:
    own = [a for name, a in _single() if name == attack]
    assert sum(a.summary.epsilon.low > 0 for a in own) <= 0.05 * len(own)
    assert sum(a.summary.epsilon.one_run_low > 0 for a in own) <= _allowed(0.05, len(own))


@pytest.mark.parametrize("attack", ATTACKS)
def test_conformal_calls_accuse_at_most_their_level(attack: str) -> None:
    """The mean realised rate is within three standard errors of its level, or below."""
    rates = np.array([a.summary.decisions["conformal"][0.1].fpr_realised for name, a in _single() if name == attack])
    assert rates.mean() <= 0.1 + 3.1 * rates.std() / np.sqrt(len(rates))


def test_designs_that_reveal_membership_were_balanced() -> None:
    expected = {"exact", "exact thirds", "lira folder", "all targets", "some references"}
    for audit in _audits():
        assert audit.codes == ({"counts-rebalanced"} if audit.design in expected else set())


@cache
def _leaking(design: str) -> dict[str, npt.NDArray[np.float64]]:
    """Realised rates [audits] of conformal calls at 10 % with a leak: of non-members, then of members."""
    rates: dict[str, list[tuple[float, float]]] = {}
    for seed in range(80):
        rng = np.random.default_rng([seed, 6])
        rows = DESIGNS[design](rng, 800, (6, 9, 16)[seed % 3])
        signals = Signals((_signals(rng, rows) + 2 * rows)[:, :, None], MembershipDesign(rows))
        attacks = [ATTACKS[name] for name in ("lira", "lira-fixed", "rmia", "pl-mia-eb")]
        for result in attack_targets(signals, attacks, [0], Setup(seed=seed), refused=lambda *_: None):
            queries = result.truth.queries
            called, members = result.scores.log10_p_conformal[queries] <= -1, result.truth.members[queries]
            rates.setdefault(result.scores.attack, []).append((called[~members].mean(), called[members].mean()))
    return {attack: np.array(found).T for attack, found in rates.items()}


@pytest.mark.parametrize("design", ["exact", "exact thirds"])
def test_with_a_leak_conformal_calls_accuse_at_most_their_level_and_find_it(design: str) -> None:
    """Population and queries keep as many references, so they are exchangeable: the level holds, not less than it."""
    for attack, (false, true) in _leaking(design).items():
        error = false.std() / np.sqrt(len(false))
        assert 0.1 - 3.3 * error - 1 / 101 <= false.mean() <= 0.1 + 3.3 * error, attack
        assert true.mean() > 0.12, attack


def test_the_mean_over_many_targets_shows_no_leak_where_there_is_none() -> None:
    """An empirical cut at 1 % lets (k + 1) / (n + 1) of further records pass: over many targets that is not chance."""
    leaks = 0
    for seed in range(30):
        rng = np.random.default_rng([seed, 7])
        rows = _pairs(rng, 2400, 32)
        signals = Signals(_signals(rng, rows)[:, :, None], MembershipDesign(rows))
        found = attack_targets(signals, [ATTACKS["lira"]], range(32), Setup(seed=seed))
        leaks += gather_evidence({"lira": [assess(result, 32) for result in found]}).beats_chance
    assert leaks <= _allowed(0.05, 30)
