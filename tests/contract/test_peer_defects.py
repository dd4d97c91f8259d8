"""Known defects of other tools, one test each; where it is short, the faulty formula stands beside ours and fails."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import numpy.typing as npt
import pytest

from plmia import (
    ATTACK_P,
    ATTACKS,
    LIRA,
    PL_MIA_PLUS,
    RMIA,
    Attack,
    AttackView,
    BinaryVote,
    GaussianLR,
    MembershipDesign,
    Setup,
    Signals,
    attack_targets,
    evaluate,
)
from plmia.attacks.scoring import score_all
from plmia.attacks.statistics import BayesLR, ShiftedOut
from plmia.attacks.view import References
from plmia.errors import AttackError, ReferencesError
from plmia.evaluation.metrics import roc_curve

Simulate = Callable[..., Signals]
Run = Callable[..., click.testing.Result]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def _wins(scores: Floats, members: Bools) -> float:
    """AUC by definition: the share of (member, non-member) pairs won, ties half."""
    difference = scores[members][:, None] - scores[~members]
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


def _view(signals: Signals, population: npt.NDArray[np.intp] | None = None) -> AttackView:
    rows = np.arange(2, signals.n_models)
    z = np.flatnonzero(~signals.design.matrix[0])[::4] if population is None else population
    references = References(signals.values, rows, signals.design.matrix[rows])
    return AttackView(signals.values[0].astype(np.float64), references, z, signals.labels)


# ROC -----------------------------------------------------------------------------------------------------------------


def _auc_one_query_at_a_time(scores: Floats, members: Bools) -> float:
    """The faulty version: tied queries cross one after another, in the order in which they happen to stand."""
    truth = members[np.argsort(-scores, kind="stable")]
    tpr = np.cumsum(truth) / truth.sum()
    return float(tpr[~truth].mean())  # the area under a curve that never moves along both axes at once


def test_tied_scores_cross_together(simulate_signals: Simulate) -> None:
    """Binary votes of five population points have six levels: nearly every score is tied."""
    signals = simulate_signals(0, models=20, points=400, shift=0.4)
    members = signals.design.matrix[0]
    population = np.flatnonzero(~members)[:5]
    (votes,) = score_all([PL_MIA_PLUS], _view(signals, population))
    order = np.setdiff1d(np.argsort(members, kind="stable"), population, assume_unique=True)  # non-members first
    scores, truth = votes.score[order], members[order]
    assert len(np.unique(scores)) <= 6
    assert roc_curve(scores, truth).auc == pytest.approx(_wins(scores, truth), abs=1e-12)
    assert roc_curve(scores[::-1], truth[::-1]).auc == roc_curve(scores, truth).auc
    faulty = _auc_one_query_at_a_time(scores, truth), _auc_one_query_at_a_time(scores[::-1], truth[::-1])
    assert faulty[1] - faulty[0] > 0.1  # the same scores, in another order
    assert min(abs(value - _wins(scores, truth)) for value in faulty) > 0.05


def test_tpr_at_zero_fpr_does_not_split_a_tie() -> None:
    scores = np.array([1.0, 1.0, 1.0, 0.5, 0.2])
    members = np.array([True, True, False, True, False])
    assert evaluate(scores, members, target=0).tpr_at(0.0).tpr == 0.0  # the top non-member ties with the top members


# Randomness ----------------------------------------------------------------------------------------------------------


def test_the_seed_is_read(signals_file: Callable[..., Path], command: Run, tmp_path: Path) -> None:
    file = signals_file()
    for folder, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert command("score", file, "-o", tmp_path / folder, "--seed", seed, "--quiet").exit_code == 0
    a, b, c = ((tmp_path / folder / "scores.npz").read_bytes() for folder in "abc")
    assert a == b
    assert a != c
    with np.load(tmp_path / "a" / "scores.npz") as first, np.load(tmp_path / "c" / "scores.npz") as other:
        assert set(first["population/0"]) != set(other["population/0"])


def test_the_population_is_not_redrawn_on_every_run(simulate_signals: Simulate) -> None:
    signals = simulate_signals(0)

    def draw() -> bytes:
        (result,) = attack_targets(signals, [RMIA], [0], Setup(seed=5))
        return result.population.tobytes() + result.scores.score.tobytes()

    np.random.seed(1)  # noqa: NPY002 - whatever the state of the global generator is
    first = draw()
    np.random.seed(2)  # noqa: NPY002
    assert draw() == first
    state = np.random.get_state()[1].tobytes()  # noqa: NPY002
    draw()
    assert np.random.get_state()[1].tobytes() == state  # noqa: NPY002 - and it is left alone


# Shapes and gaps -----------------------------------------------------------------------------------------------------


def test_an_odd_number_of_points_works(signals_file: Callable[..., Path], command: Run, tmp_path: Path) -> None:
    result = command("score", signals_file(points=121), "-o", tmp_path / "out", "--target", "all", "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    with np.load(tmp_path / "out" / "scores.npz") as scores:
        assert scores["pl-mia/3/score"].shape == (121,)
    with pytest.raises(ValueError, match="cannot reshape"):
        np.arange(121).reshape(2, -1)  # the faulty version: halves of equal size


def _statistic_with_nan_for_all(conf: Floats, in_mask: Bools, target: Floats) -> Floats:
    """The faulty version: sums over masks, divided by counts, and one common deviation of everything."""
    with np.errstate(invalid="ignore"):
        mean = np.where(in_mask, 0, conf).sum(axis=0) / (~in_mask).sum(axis=0)
        deviation = np.sqrt(np.mean((np.where(in_mask, mean, conf) - mean) ** 2))
        return (target - mean) / deviation


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_one_point_without_an_out_reference_does_not_make_all_points_nan(simulate_signals: Simulate, mode: Any) -> None:
    signals = simulate_signals(0)
    matrix = signals.design.matrix.copy()
    matrix[2:, 17] = True
    faulty = _statistic_with_nan_for_all(signals.values[2:, :, 0].astype(float), matrix[2:], signals.values[0, :, 0])
    assert np.isnan(faulty).all()
    gap = Signals(signals.values, MembershipDesign(matrix), signals.labels)
    view = AttackView(_view(gap).target, _view(gap).references, _view(gap).population, mode=mode)
    for name in ("attack-r", "lira", "lira-fixed", "pl-mia", "pl-mia-plus", "pl-mia-pooled"):
        with pytest.raises(ReferencesError, match=r"\b17 has (no|0)\b"):
            list(score_all([ATTACKS[name]], view))
    (loss,) = score_all([ATTACK_P], view)  # needs no reference
    assert np.isfinite(loss.score).all()
    keep = np.arange(signals.n_points) != 17  # the remedy that the message names
    rest = Signals(signals.values[:, keep], MembershipDesign(matrix[:, keep]), signals.labels[keep])
    assert all(np.isfinite(s.score).all() for s in score_all(list(ATTACKS.values()), _view(rest)))


# The population ------------------------------------------------------------------------------------------------------


def test_the_population_holds_no_member_of_the_target(simulate_signals: Simulate) -> None:
    signals = simulate_signals(0, models=12)
    for seed in range(5):
        for result in attack_targets(signals, [LIRA], range(12), Setup(seed=seed)):
            members = signals.design.matrix[result.target]
            assert not members[result.population].any()
            assert not set(result.population) & set(result.truth.queries)
            anybody = np.random.default_rng(seed).choice(signals.n_points, len(result.population), replace=False)
            assert members[anybody].any()  # the faulty version: drawn from all points


def test_the_complement_of_the_target_is_no_reference(simulate_signals: Simulate) -> None:
    """Its membership is the answer reversed; so is that of a copy of the target."""
    signals = simulate_signals(0, models=12)
    matrix = signals.design.matrix.copy()
    matrix[6], matrix[9] = matrix[0], ~matrix[0]
    design = MembershipDesign(matrix)
    for result in attack_targets(Signals(signals.values, design), [LIRA], [0, 6], Setup()):
        assert sorted([result.target, *result.left_out]) == [0, 1, 6, 9]
        for row in matrix[result.references]:
            assert not np.array_equal(row, matrix[0])
            assert not np.array_equal(row, ~matrix[0])


def test_nothing_is_tuned_on_the_labels_that_are_reported(simulate_signals: Simulate) -> None:
    """Without a leak the best of many settings, chosen by its AUC, looks better than chance; one setting does not."""
    grid = [Attack(f"a{i}", BayesLR(a=i / 10), RMIA.calibration) for i in range(11)]
    grid += [Attack(f"e{i}", GaussianLR(offline=ShiftedOut(i / 4, 2.0)), BinaryVote()) for i in (1, 2, 4)]
    ours, tuned = [], []
    for seed in range(40):
        signals = simulate_signals(seed, models=12, shift=0.0, points=100)
        try:
            results = list(attack_targets(signals, [*grid, RMIA], [0], Setup("offline")))
        except ReferencesError:
            continue
        *every, last = (r.metrics().auc for r in results)
        ours.append(last)
        tuned.append(max(every))
    error = np.std(ours) / np.sqrt(len(ours))
    assert len(ours) > 25
    assert abs(np.mean(ours) - 0.5) < 3 * error
    assert np.mean(tuned) - 0.5 > 3 * error


# Claims beyond the data ----------------------------------------------------------------------------------------------


def test_tpr_at_one_in_ten_thousand_from_900_non_members_is_marked(
    signals_file: Callable[..., Path], command: Run, tmp_path: Path
) -> None:
    file = signals_file(points=2000)
    shown = command("score", file, "-o", tmp_path / "out", "--attack", "lira", "--population", 100, "--verbose")
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())["attacks"]["lira"]
    assert 850 < metrics["per_target"][0]["n_non_members"] < 950
    for entry in (metrics["tpr"], metrics["per_target"][0]["tpr"]):
        assert entry["0.0001"]["resolved"] is False
        assert entry["0.0001"]["needed_non_members"] == 10_000
        assert entry["0.01"]["resolved"] is True
    header, row = (line.split() for line in shown.stdout.splitlines() if line.startswith(("attack", "lira")))
    assert "TPR@0.01%" not in header  # a column without a value is left out
    assert row[header.index("TPR@1%")] != "–"
    assert "0.01 % (needs 10,000)" in shown.stdout


# Signs ---------------------------------------------------------------------------------------------------------------


def test_a_small_loss_means_member(simulate_signals: Simulate) -> None:
    signals = simulate_signals(0, points=400, difficulty=0.2)
    members = signals.design.matrix[0]
    (result,) = attack_targets(signals, [ATTACK_P], [0], Setup())
    loss = np.log1p(np.exp(-signals.values[0, :, 0].astype(np.float64)))
    assert result.metrics().auc > 0.75
    assert roc_curve(loss, members).auc < 0.25  # the faulty version: the loss itself as the score
    assert result.scores.score[loss.argmin()] == 1.0
    assert result.scores.score[loss.argmax()] == 0.0


@pytest.mark.parametrize("gamma", [0.0, np.log(2)])
def test_a_vote_of_the_population_never_counts_the_query_itself(gamma: float) -> None:
    """A query in the population compared with itself has the ratio 1, and so wins at gamma = 1 (log 1 = 0)."""
    rng = np.random.default_rng(0)
    members = np.arange(300) >= 200
    phi = rng.normal(size=300) + 20.0 * members
    population = np.arange(200)
    nobody = References(np.zeros((1, 300, 1)), np.arange(1), np.zeros((1, 300), bool))
    votes = BinaryVote(gamma).shared(phi, phi[population], np.where(members, 200, 199))
    (same,) = score_all([Attack("vote", _Phi(), BinaryVote(gamma))], AttackView(phi[:, None], nobody, population))
    assert same.score.tobytes() == votes.tobytes()
    assert (votes >= 0).all()
    assert (votes <= 1).all()
    by_hand = [np.mean([phi[q] - phi[z] > gamma for z in population if z != q]) for q in range(300)]
    np.testing.assert_allclose(votes, by_hand, atol=1e-15)
    if gamma == 0.0:
        wins = (phi[:, None] - phi[population] >= gamma).sum(axis=1)
        faulty = (wins + ~members) / np.where(members, 200, 199)  # the self-pair is added where it should be taken off
        assert faulty.max() > 1
        assert evaluate(faulty, members, target=0).tpr_at(0.0).tpr == 0.0
    # Every member beats all of the population, and so does at most the top non-member.
    assert (votes[members] == 1.0).all()
    assert (votes[~members] == 1.0).sum() <= 1
    rest = votes.argmax() if votes[~members].max() == 1.0 else -1
    keep = np.arange(300) != rest
    assert evaluate(votes[keep], members[keep], target=0).tpr_at(0.0).tpr == 1.0


class _Phi:
    def __call__(self, view: AttackView) -> Floats:
        return view.target


# Configuration -------------------------------------------------------------------------------------------------------


def test_a_badly_configured_attack_is_an_error_and_shifts_no_names(
    signals_file: Callable[..., Path], command: Run, tmp_path: Path
) -> None:
    bad: list[Callable[[], object]] = [
        lambda: BinaryVote(-1.0),
        lambda: BinaryVote(float("nan")),
        lambda: BayesLR(a=1.5),
        lambda: BayesLR(trim=0.5),
        lambda: ShiftedOut(eta=0.0),
        lambda: ShiftedOut(rho=-1.0),
        lambda: Attack("", LIRA.statistic, LIRA.calibration),
    ]
    for make in bad:
        with pytest.raises(AttackError):
            make()
    file = signals_file()
    names = ["lira", "rmia", "attack-p"]
    options = [part for name in names for part in ("--attack", name)]
    assert command("score", file, "-o", tmp_path / "out", "--quiet", *options).exit_code == 0
    good = json.loads((tmp_path / "out" / "metrics.json").read_text())["attacks"]
    assert list(good) == names
    for name in names:  # each has its own numbers, whatever runs beside it
        assert command("score", file, "-o", tmp_path / name, "--quiet", "--attack", name).exit_code == 0
        assert json.loads((tmp_path / name / "metrics.json").read_text())["attacks"] == {name: good[name]}
    wrong = command("score", file, "-o", tmp_path / "none", "--quiet", *options[:2], "--attack", "rmi", *options[4:])
    assert wrong.exit_code == 2
    assert "'rmi'" in wrong.stderr
    assert not (tmp_path / "none").exists()


# Trust ---------------------------------------------------------------------------------------------------------------


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("where", ["signals", "membership", "labels", "n_points"])
def test_nothing_is_unpickled(where: str, signals_file: Callable[..., Path], command: Run, tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    file = signals_file(replace={where: np.array([_Evil(trap)], dtype=object)})
    result = command("score", file, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "pickled" in result.stderr
    assert not trap.exists()
    with np.load(file, allow_pickle=True) as faulty:
        assert faulty[where] is not None
    assert trap.exists()  # the trap works


def test_a_bare_pickle_is_not_unpickled_either(command: Run, tmp_path: Path) -> None:
    trap, file = tmp_path / "ran", tmp_path / "signals.npz"
    file.write_bytes(pickle.dumps(_Evil(trap)))
    assert command("score", file, "-o", tmp_path / "out").exit_code == 2
    assert not trap.exists()
    pickle.loads(file.read_bytes())
    assert trap.exists()


# User code -----------------------------------------------------------------------------------------------------------


def test_an_attack_with_sixteen_references_takes_a_few_lines(signals_file: Callable[..., Path]) -> None:
    code = f"""
from pathlib import Path
from plmia import PL_MIA, Setup, attack_targets, read_signals
signals = read_signals(Path({str(signals_file(models=24))!r}))
(result,) = attack_targets(signals, [PL_MIA], [0], Setup(references=16))
auc = result.metrics().auc
"""
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert len(code.strip().splitlines()) < 10
    assert len(scope["result"].references) == 16
    assert scope["auc"] > 0.7
