"""Many targets in turn: who serves whom, what is evaluated, and that sharing work changes no result."""

from __future__ import annotations

import numpy as np
import pytest

from plmia.attacks import view as view_module
from plmia.attacks.attack import ATTACKS, LIRA, PL_MIA, RMIA, Attack
from plmia.attacks.calibration import CauchyCombination, FreshPopulation
from plmia.attacks.scoring import score_all
from plmia.attacks.statistics import BayesLR, GaussianLR
from plmia.attacks.view import AttackView, References
from plmia.data.designs import MembershipDesign, counts_depend_on, exact_k_per_point, independent_halves
from plmia.errors import PopulationError, ReferencesError, SignalsError
from plmia.evaluation.metrics import evaluate
from plmia.evaluation.targets import Setup, attack_targets
from plmia.signals.signals import Signals

FRESH = Attack("fresh", GaussianLR(), CauchyCombination(), population=FreshPopulation(6))
TRIMMED = Attack("trimmed", BayesLR(trim=0.2), CauchyCombination())
ALL = [*ATTACKS.values(), FRESH, TRIMMED]
N_POINTS = 61


def membership_of(kind, rng):
    half = rng.random((8, N_POINTS)) < 0.5
    # Five single models that leave no point without IN and OUT references, whoever of them is the target.
    five = (np.arange(5)[:, None] + rng.integers(0, 5, N_POINTS)) % 5 < 2
    pairs = np.stack([half, ~half], axis=1).reshape(-1, N_POINTS)
    return {
        "pairs": pairs,
        "pairs, halves apart": np.concatenate([half, ~half]),
        "pairs apart, and one more pair": np.concatenate([half[:4], ~half[:4], half[4:5], ~half[4:5]]),
        "single models": np.concatenate([half, ~half[:, rng.permutation(N_POINTS)], five]),
        "pairs and single models": np.concatenate([pairs[:10], five[:3], pairs[10:14]]),
        "pairs, one trained three times": np.concatenate([pairs, pairs[3:5]]),
    }[kind]


KINDS = [
    "pairs",
    "pairs, halves apart",
    "pairs apart, and one more pair",
    "single models",
    "pairs and single models",
    "pairs, one trained three times",
]


def signals_of(kind="pairs", dtype=np.float32, n_views=2, seed=0):
    rng = np.random.default_rng(seed)
    membership = membership_of(kind, rng)
    values = rng.normal(1, 2, (1, N_POINTS, n_views)) + rng.normal(size=(*membership.shape, n_views))
    values += 1.5 * membership[:, :, None]
    return Signals(values.astype(dtype), MembershipDesign(membership), rng.integers(0, 2, N_POINTS))


def run(signals, attacks, targets, setup):
    return {
        (result.target, result.scores.attack): result for result in attack_targets(signals, attacks, targets, setup)
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("budget", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 5e-5)])
def test_all_targets_at_once_equal_one_at_a_time(kind, mode, budget, dtype, tolerance):
    signals = signals_of(kind, dtype)
    wanted = (14 if kind == "single models" else 8) if budget else None
    setup = Setup(mode, wanted, 15, seed=3)
    together = run(signals, ALL, range(signals.n_models), setup)
    assert len(together) == len(ALL) * signals.n_models
    for target in range(0, signals.n_models, 4):
        for key, alone in run(signals, ALL, [target], setup).items():
            result = together[key]
            assert np.array_equal(result.references, alone.references)
            assert np.array_equal(result.population, alone.population)
            scale = np.abs(alone.scores.score).max()
            assert result.scores.score == pytest.approx(alone.scores.score, rel=0, abs=tolerance * scale), key


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_is_that_of_a_view_made_by_hand(kind):
    signals = signals_of(kind, np.float64)
    for result in attack_targets(signals, [PL_MIA], range(signals.n_models), Setup(population=15)):
        rows = np.sort(result.references)
        view = AttackView(
            signals.values[result.target],
            References(signals.values, rows, signals.design.matrix[rows]),
            result.population,
            signals.labels,
        )
        by_hand = next(score_all([PL_MIA], view))
        assert result.scores.score == pytest.approx(by_hand.score, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("references", [None, 8])
def test_no_reference_gives_the_answer_away(kind, references):
    signals = signals_of(kind)
    rows = signals.design.matrix
    for (target, _), result in run(signals, [RMIA], range(len(rows)), Setup(references=references)).items():
        twins = [m for m in range(len(rows)) if (rows[m] == rows[target]).all() or (rows[m] != rows[target]).all()]
        assert result.left_out.tolist() == [model for model in twins if model != target]
        assert not set(twins) & set(result.references.tolist())
        assert len(set(result.references.tolist())) == len(result.references)
        assert len(result.references) == (references or len(rows) - len(twins))


@pytest.mark.parametrize("population", [None, 2, 15, 20])
def test_the_population_holds_known_non_members_that_are_not_evaluated(population):
    signals = signals_of()
    drawn = set()
    for (target, _), result in run(signals, [RMIA], range(16), Setup(population=population)).items():
        members = signals.design.matrix[target]
        z, queries = result.population, result.truth.queries
        assert not members[z].any()
        assert not set(z) & set(queries)
        assert sorted([*z, *queries]) == list(range(N_POINTS))
        assert np.array_equal(result.truth.members, members)
        assert len(z) == (population or (~members).sum() // 2)
        drawn.add(z.tobytes())
    assert len(drawn) > 8


def test_a_quarter_of_many_non_members_is_the_population():
    rng = np.random.default_rng(0)
    half = np.arange(2000) % 2 == 0
    rows = np.array([half, ~half, rng.permutation(half), rng.permutation(half)])
    signals = Signals(rng.normal(size=(4, 2000, 1)), MembershipDesign(rows))
    (result,) = attack_targets(signals, [ATTACKS["attack-p"]], [0], Setup())
    assert len(result.population) == 250


def test_the_seed_settles_everything():
    signals = signals_of()
    first, again, other = (run(signals, [FRESH, LIRA], [0, 5], Setup("online", 8, 15, seed)) for seed in (1, 1, 2))
    for key, result in first.items():
        assert result.scores.score.tobytes() == again[key].scores.score.tobytes()
        assert not np.array_equal(result.population, other[key].population)
        assert not np.array_equal(result.references, other[key].references)


def test_sums_are_updated_and_not_computed_anew(monkeypatch):
    def refuse(*_):
        raise AssertionError("summed over all references")

    signals = signals_of()
    monkeypatch.setattr(view_module, "sum_over", refuse)
    assert len(run(signals, [RMIA, PL_MIA], range(16), Setup(references=8))) == 32
    with pytest.raises(AssertionError, match="summed"):
        run(signals, [RMIA], [0], Setup())


@pytest.mark.parametrize("targets", [[0], range(16), [3, 2], [5, 5], []])
def test_progress_adds_up(targets):
    steps = []
    results = list(attack_targets(signals_of(), [LIRA, FRESH], targets, Setup(population=15), steps.append))
    assert sum(steps) == len(targets) * 2 * N_POINTS
    assert sorted(result.target for result in results) == sorted([*targets, *targets])


def test_metrics_are_those_of_the_queries():
    signals = signals_of()
    (result,) = attack_targets(signals, [LIRA], [2], Setup(population=15))
    queries = result.truth.queries
    exact = evaluate(result.scores.score[queries], signals.design.matrix[2][queries], target=2)
    assert result.metrics() == exact


@pytest.mark.parametrize("target", [-1, 16, 100])
def test_a_target_that_does_not_exist_is_refused(target):
    with pytest.raises(SignalsError, match=rf"target {target} does not exist: models are numbered from 0 to 15"):
        list(attack_targets(signals_of(), [LIRA], [0, target], Setup()))


@pytest.mark.parametrize(("value", "word"), [(True, "all"), (False, "none")])
def test_a_target_without_members_or_non_members_is_refused(value, word):
    signals = signals_of()
    signals.design.matrix[4] = value
    with pytest.raises(SignalsError, match=rf"model 4 .*\b{word} of the 61\b"):
        list(attack_targets(signals, [LIRA], [4], Setup()))


@pytest.mark.parametrize("size", [0, 1, 30, 1000, -5])
def test_a_population_that_cannot_be_drawn_is_refused(size):
    signals = signals_of()
    outsiders = int((~signals.design.matrix[0]).sum())
    size = outsiders if size == 30 else size
    message = rf"population of {size} was .*target 0 has {outsiders} non-members: take from 2 to {outsiders - 1}"
    with pytest.raises(PopulationError, match=message):
        list(attack_targets(signals, [LIRA], [0], Setup(population=size)))


@pytest.mark.parametrize(("wanted", "says"), [(0, "needs 2 OUT .* as few as 0"), (-3, "-3 "), (7, "7 "), (15, "15 ")])
def test_a_number_of_references_that_cannot_be_had_is_refused(wanted, says):
    """Without references, the attack says what it needs: others, such as attack-p, need none."""
    with pytest.raises(ReferencesError, match=says):
        list(attack_targets(signals_of(), [LIRA], [0, 1, 2], Setup(references=wanted)))


def test_a_point_without_out_references_is_named_and_not_spread_as_nan():
    signals = signals_of("single models")
    signals.design.matrix[1:, 7] = True
    with pytest.raises(ReferencesError, match=r"OUT references .*\b7 has 0\b"):
        list(attack_targets(signals, [LIRA], [0], Setup(population=15)))


def test_of_points_that_belong_together_one_is_evaluated() -> None:
    rng = np.random.default_rng(5)
    groups = rng.permutation(np.repeat(np.arange(100), 3))
    half = rng.random((4, 100)) < 0.5
    membership = np.concatenate([half, ~half])[:, groups]
    signals = Signals(rng.normal(size=(8, 300, 1)), MembershipDesign(membership), groups=groups)
    (result,) = attack_targets(signals, [LIRA], [0], Setup(seed=3, unit="record"))
    evaluated = np.concatenate([result.population, result.truth.queries])
    assert sorted(groups[evaluated]) == list(range(100))
    assert len(result.scores.score) == 300
    (again,) = attack_targets(signals, [LIRA], [0], Setup(seed=3, unit="record"))
    (other,) = attack_targets(signals, [LIRA], [0], Setup(seed=4, unit="record"))
    assert np.array_equal(again.truth.queries, result.truth.queries)
    assert not np.array_equal(other.truth.queries, result.truth.queries)
    with pytest.raises(SignalsError, match="groups have shape"):
        Signals(signals.values, signals.design, groups=groups[1:])


# Designs that reveal membership --------------------------------------------------------------------------------------


def exact_signals(n_models=9, k=4, n_points=200, seed=0, groups=None):
    rng = np.random.default_rng(seed)
    matrix = exact_k_per_point(n_points, n_models, k, rng, groups).matrix
    values = rng.normal(size=(*matrix.shape, 2)) + matrix[:, :, None]
    return Signals(values.astype(np.float32), MembershipDesign(matrix), groups=groups)


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize(("n_models", "k"), [(4, 2), (7, 3), (8, 4), (9, 3), (33, 16)])
def test_an_exact_design_is_balanced_for_every_target(n_models, k, mode):
    signals = exact_signals(n_models, k)
    results = run(signals, [RMIA, ATTACKS["pl-mia-eb"]], range(n_models), Setup(mode))
    assert len(results) == 2 * n_models
    for (target, _), result in results.items():
        references = result.view.references
        assert (references.in_mask.sum(axis=0) == k - 1).all()
        assert len(references) == len(result.references) == n_models - 2
        assert target not in result.references
        assert [(note.code, note.severity) for note in result.notes] == [("counts-rebalanced", "info")]
        # Nothing of what was dropped, nor of the target, is anywhere in the view.
        assert references.signals.shape[0] == n_models - 2
        for point in range(0, signals.n_points, 20):
            theirs = {
                float(signals.values[m, point, 0]): bool(signals.design.matrix[m, point])
                for m in range(n_models)
                if m != target
            }
            own = references.signals[references.rows, point, 0].tolist()
            assert [theirs[value] for value in own] == references.in_mask[:, point].tolist()
            assert len(set(own)) == n_models - 2


@pytest.mark.parametrize("wanted", [2, 6, 14, 15])
def test_some_references_of_an_exact_design_do_not_reveal_membership(wanted):
    signals = exact_signals(16, 8, 2000)
    for (target, _), result in run(signals, [RMIA], range(0, 16, 5), Setup(references=wanted)).items():
        assert len(result.view.references) == min(wanted, 14)
        assert not counts_depend_on(signals.design.matrix[target], result.view.references.n_in)
        assert result.notes


def test_a_smaller_budget_is_a_part_of_a_larger_one_where_references_are_dropped():
    signals = exact_signals(16, 8)
    (small,), (large,) = (run(signals, [RMIA], [3], Setup(references=n)).values() for n in (5, 9))
    assert np.isin(small.references, large.references).all()


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("references", [None, 8])
def test_designs_that_reveal_nothing_are_left_as_they_are(kind, references):
    signals = signals_of(kind)
    for result in run(signals, [RMIA], range(0, signals.n_models, 3), Setup(references=references)).values():
        assert result.notes == ()
        assert np.shares_memory(result.view.references.signals, signals.values)
        assert result.view.references.signals.strides == signals.values.strides
        assert np.array_equal(result.view.references.signals, signals.values)
        assert np.array_equal(result.view.references.in_mask, signals.design.matrix[result.references])


def test_independent_halves_are_left_as_they_are():
    rng = np.random.default_rng(0)
    design = independent_halves(900, 40, rng)
    signals = Signals(rng.normal(size=(40, 900, 1)), design)
    assert all(result.notes == () for result in run(signals, [RMIA], range(40), Setup()).values())


def test_groups_count_once():
    """Points of a group have the same counts: as many witnesses as points would make a false alarm of it."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 50)
    design = independent_halves(2000, 13, rng, groups)
    assert any(counts_depend_on(row, design.matrix.sum(axis=0) - row) for row in design.matrix)
    signals = Signals(rng.normal(size=(13, 2000, 1)), design, groups=groups)
    assert all(result.notes == () for result in run(signals, [RMIA], range(13), Setup()).values())
    exact = run(exact_signals(8, 4, 2000, groups=groups), [RMIA], range(8), Setup())
    assert all(result.notes for result in exact.values())


def test_where_too_few_references_would_be_left_the_result_is_invalid():
    signals = exact_signals(3, 1)
    (online,) = run(signals, [RMIA], [0], Setup()).values()
    assert [(note.code, note.severity) for note in online.notes] == [("counts-reveal-membership", "invalid")]
    assert "0 IN and 1 OUT" in online.notes[0].text
    (offline,) = run(signals, [RMIA], [0], Setup("offline")).values()
    assert [note.code for note in offline.notes] == ["counts-rebalanced"]
    assert not offline.view.references.in_mask.any()


def test_counts_that_only_the_chosen_references_have_are_balanced():
    """Neighbours of a cyclic design trained on nearly the same points, so a few of them tell what all do not."""
    rng = np.random.default_rng(0)
    matrix = (np.arange(25)[:, None] + rng.integers(0, 25, 1500)) % 25 < 12
    signals = Signals(rng.normal(size=(25, 1500, 1)), MembershipDesign(matrix))
    for (target, _), result in run(signals, [RMIA], range(0, 25, 2), Setup(references=10)).items():
        assert not counts_depend_on(matrix[target], result.view.references.n_in)
        assert [note.code for note in result.notes] == ["counts-rebalanced"]


def test_the_seed_settles_which_references_are_dropped():
    signals = exact_signals()
    first, again, other = (run(signals, [RMIA], [2], Setup(seed=seed))[2, "rmia"].view.references for seed in (1, 1, 2))
    assert np.array_equal(first.signals, again.signals)
    assert not np.array_equal(first.signals, other.signals)
    every = run(signals, [RMIA], range(9), Setup(seed=1))
    assert np.array_equal(every[2, "rmia"].view.references.signals, first.signals)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("all_at_once", [False, True])
def test_models_keep_their_numbers_where_others_are_missing(kind, all_at_once):
    """Target, references, left-out models and the population are those of the numbers, not of the rows."""
    whole = signals_of(kind, np.float64)
    kept = [m for m in range(whole.n_models) if m not in (0, 5)]
    design = MembershipDesign(whole.design.matrix[kept])
    signals = Signals(whole.values[kept], design, whole.labels, models=tuple(kept))
    setup = Setup(population=15, seed=2)
    results = (
        [run(signals, [PL_MIA], kept, setup)] if all_at_once else [run(signals, [PL_MIA], [t], setup) for t in kept]
    )
    found = {target: result for part in results for (target, _), result in part.items()}
    assert sorted(found) == kept
    for target, result in found.items():
        row = whole.design.matrix[target]
        twins = [m for m in kept if (whole.design.matrix[m] == row).all() or (whole.design.matrix[m] != row).all()]
        assert np.array_equal(result.truth.members, row)
        assert sorted([*result.left_out, target]) == twins
        assert sorted(result.references) == [m for m in kept if m not in twins]
        assert np.array_equal(result.population, run(whole, [PL_MIA], [target], setup)[target, "pl-mia"].population)
        rows = np.sort(result.references)
        references = References(whole.values, rows, whole.design.matrix[rows])
        view = AttackView(whole.values[target], references, result.population, whole.labels)
        by_hand = next(score_all([PL_MIA], view))
        assert result.scores.score == pytest.approx(by_hand.score, rel=1e-9, abs=1e-9)
    with pytest.raises(SignalsError, match="target 0 is not among"):
        run(signals, [PL_MIA], [1, 0], setup)


def test_messages_name_models_by_number():
    whole = signals_of("pairs")
    signals = Signals(whole.values[4:], MembershipDesign(whole.design.matrix[4:]), models=tuple(range(4, 16)))
    with pytest.raises(ReferencesError, match=r"target 7 .*6, 7"):
        run(signals, [RMIA], [7], Setup(references=12))
