"""Bounds on epsilon against naive twins and exact probabilities, and at their edges."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from plmia.errors import PlmiaError
from plmia.evaluation.epsilon import Calls, EpsilonBound, _best_cut, _Guesses, _guesses, epsilon_bound
from plmia.evaluation.intervals import rank_grid
from plmia.evaluation.metrics import roc_curve

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def queries(n_in: int, n_out: int, shift: float, levels: int = 0, seed: int = 0) -> tuple[Floats, Bools]:
    rng = np.random.default_rng(seed)
    members = rng.permutation(n_in + n_out) < n_in
    scores = rng.normal(size=members.size) + shift * members
    return (np.round(scores * levels) / levels if levels else scores), members


# --- per record


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.01])
@pytest.mark.parametrize("levels", [0, 1, 5])
@pytest.mark.parametrize("calls", ["members", "non-members"])
def test_the_best_cut_is_that_of_a_loop(levels: int, delta: float, calls: Calls) -> None:
    scores, members = queries(300, 200, 2.0, levels)
    sign, right_side = (1, members) if calls == "members" else (-1, ~members)
    right, wrong = sign * scores[right_side], sign * scores[~right_side]
    m, n = len(right), len(wrong)
    ranks = [int(j) for j in rank_grid(n, 1.25) if 2 * j <= n + 1]
    tail = 0.025 / (2 * len(ranks))
    shown, cuts = [], []
    for j in ranks:
        cuts.append(sorted(wrong, reverse=True)[j - 1])
        above = sum(1 for score in right if score > cuts[-1])
        low = stats.beta.ppf(tail, above, m - above + 1) if above else 0.0
        shown.append((low - delta) / stats.beta.isf(tail, j, n - j + 1))
    best, cut, right_low, wrong_high = _best_cut(roc_curve(scores, members), calls, delta, 0.025)
    assert best == pytest.approx(math.log(max(1.0, *shown)))
    assert best == pytest.approx(max(0.0, math.log((right_low - delta) / wrong_high)))
    assert cut == sign * cuts[int(np.argmax(shown))]


def test_the_mirrored_attack_shows_as_much() -> None:
    scores, members = queries(1000, 1000, 2.0)
    scores = np.where(members, scores, np.minimum(scores, 0.5))  # non-members have no upper tail, so members show it
    found, mirrored = epsilon_bound(scores, members), epsilon_bound(-scores, ~members)
    assert found.calls == "members"
    assert mirrored.calls == "non-members"
    assert mirrored.low == found.low > 3
    assert mirrored.threshold == -found.threshold
    assert mirrored.one_run_low == pytest.approx(found.one_run_low)


def test_the_threshold_separates_what_the_bound_says() -> None:
    scores, members = queries(2000, 2000, 2.0)
    found = epsilon_bound(scores, members)
    assert found.calls in ("members", "non-members")
    called = scores > found.threshold if found.calls == "members" else scores < found.threshold
    right = members if found.calls == "members" else ~members
    assert np.mean(called[right]) >= found.right_low
    assert np.mean(called[~right]) <= found.wrong_high


def test_a_larger_delta_shows_less() -> None:
    scores, members = queries(2000, 2000, 2.0)
    bounds = [epsilon_bound(scores, members, delta) for delta in (0.0, 1e-5, 1e-3, 0.1)]
    for before, after in itertools.pairwise(bounds):
        assert after.low <= before.low
        assert after.one_run_low <= before.one_run_low
    assert bounds[-1].one_run_low == 0.0


# --- one run


def slow_p_value(guesses: _Guesses, epsilon: float, delta: float) -> float:
    """Sum over all numbers of correct guesses of both kinds."""
    odds = guesses.share / (1 - guesses.share)
    top = stats.binom(guesses.tops, 1 / (1 + math.exp(-epsilon) / odds))
    bottom = stats.binom(guesses.bottoms, 1 / (1 + math.exp(-epsilon) * odds))
    law = [0.0] * (guesses.tops + guesses.bottoms + 1)
    for i, j in itertools.product(range(guesses.tops + 1), range(guesses.bottoms + 1)):
        law[i + j] += top.pmf(i) * bottom.pmf(j)
    beyond, gain = sum(law[guesses.correct :]), 0.0
    for i in range(1, guesses.correct + 1):
        gain = max(gain, sum(law[guesses.correct - i : guesses.correct]) / i)
    return min(1.0, beyond + 2 * guesses.queries * delta * gain)


@pytest.mark.parametrize("delta", [0.0, 1e-3])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 5.0])
@pytest.mark.parametrize(("tops", "bottoms", "correct"), [(8, 0, 7), (0, 9, 8), (8, 8, 13), (6, 9, 15), (5, 5, 0)])
@pytest.mark.parametrize("share", [0.5, 0.57])
def test_p_values_are_those_of_all_outcomes(
    share: float, tops: int, bottoms: int, correct: int, epsilon: float, delta: float
) -> None:
    guesses = _Guesses(tops, bottoms, correct, 40, share)
    assert guesses.p_value(epsilon, delta) == pytest.approx(slow_p_value(guesses, epsilon, delta), rel=1e-9, abs=1e-13)


@pytest.mark.parametrize(("tops", "bottoms"), [(20_000, 15_000), (20_000, 0), (0, 15_000)])
@pytest.mark.parametrize("away", [-1e9, -4.0, 0.0, 4.0, 1e9])
def test_p_values_of_many_guesses_are_those_of_all_counts(tops: int, bottoms: int, away: float) -> None:
    # Only the likely counts are computed, here about 3,000 and 2,600 of all.
    share, epsilon, delta = 0.57, 0.7, 1e-6
    odds = share / (1 - share)
    laws = [
        stats.binom(tops, 1 / (1 + math.exp(-epsilon) / odds)),
        stats.binom(bottoms, 1 / (1 + math.exp(-epsilon) * odds)),
    ]
    law = np.convolve(laws[0].pmf(np.arange(tops + 1)), laws[1].pmf(np.arange(bottoms + 1)))
    middle = laws[0].mean() + laws[1].mean() + away * math.sqrt(laws[0].var() + laws[1].var())
    correct = int(np.clip(middle, 0, tops + bottoms))
    below = np.cumsum(law[:correct][::-1]) / np.arange(1, correct + 1)
    expected = law[correct:].sum() + 2 * 80_000 * delta * below.max(initial=0.0)
    found = _Guesses(tops, bottoms, correct, 80_000, share).p_value(epsilon, delta)
    assert found == pytest.approx(min(1.0, expected), rel=1e-8, abs=1e-13)


def test_all_right_is_the_bound_of_the_binomial() -> None:
    # 100 right of 100 guesses: q**100 = level.
    found = _Guesses(100, 0, 100, 200, 0.5).bound(0.0, 0.0, 0.01)
    q = 0.01 ** (1 / 100)
    exact = math.log(q / (1 - q))
    assert exact - 0.001 < found <= exact


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_p_values_grow_with_epsilon_up_to_a_half(delta: float) -> None:
    for guesses in (_Guesses(200, 0, 150, 3000, 0.5), _Guesses(100, 100, 150, 3000, 0.6)):
        values = np.array([guesses.p_value(epsilon, delta) for epsilon in np.linspace(0, 3, 61)])
        values = values[: int(np.argmax(values > 0.5)) + 1]
        assert np.all(np.diff(values) > 0)


@pytest.mark.parametrize("levels", [0, 1, 3])
def test_guesses_never_split_a_tie_and_never_overlap(levels: int) -> None:
    scores, members = queries(70, 50, 1.0, levels)
    for guesses in _guesses(roc_curve(scores, members)):
        order = np.sort(scores)
        top = scores >= order[::-1][guesses.tops - 1] if guesses.tops else np.zeros(120, bool)
        bottom = scores <= order[guesses.bottoms - 1] if guesses.bottoms else np.zeros(120, bool)
        assert (top.sum(), bottom.sum()) == (guesses.tops, guesses.bottoms)
        assert not np.any(top & bottom)
        assert guesses.correct == np.sum(members[top]) + np.sum(~members[bottom])
        assert guesses.share == 70 / 120


def test_the_order_of_tied_queries_gives_nothing_away() -> None:
    members = np.arange(4000) < 2000
    found = epsilon_bound(np.zeros(4000), members, 0.0)
    assert (found.low, found.one_run_low) == (0.0, 0.0)


# --- edges


def plain(bound: EpsilonBound) -> None:
    assert bound.low >= 0
    assert bound.one_run_low >= 0
    text = json.dumps(asdict(bound), allow_nan=False)
    assert json.loads(text)["one_run"]["low"] == bound.one_run_low


@pytest.mark.parametrize("shift", [0.0, 1.0, 100.0])
@pytest.mark.parametrize(("n_in", "n_out"), [(1, 1), (1, 10), (10, 1), (10, 10), (1, 3000), (3000, 1), (3000, 1000)])
@pytest.mark.parametrize("levels", [0, 1])
def test_bounds_are_finite_and_plain(n_in: int, n_out: int, shift: float, levels: int) -> None:
    plain(epsilon_bound(*queries(n_in, n_out, shift, levels)))
    plain(epsilon_bound(*queries(n_in, n_out, shift, levels), delta=0.0))


def test_perfect_separation_shows_as_much_as_the_number_of_queries_allows() -> None:
    few = epsilon_bound(np.arange(200.0), np.arange(200) >= 100, 0.0)
    many = epsilon_bound(np.arange(20_000.0), np.arange(20_000) >= 10_000, 0.0)
    assert 2 < few.low < many.low < math.log(10_000)
    assert 2 < few.one_run_low < many.one_run_low < math.log(20_000)
    assert (few.one_run.guesses, few.one_run.correct) == (200, 200)


def test_one_member_shows_nothing() -> None:
    assert epsilon_bound([20.0, *range(10)], [True] + [False] * 10).low == 0.0


@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan])
def test_a_delta_that_is_no_probability_is_refused(delta: float) -> None:
    with pytest.raises(PlmiaError, match="delta is"):
        epsilon_bound([0.0, 1.0], [False, True], delta)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95])
def test_a_confidence_outside_the_open_interval_is_refused(confidence: float) -> None:
    with pytest.raises(PlmiaError, match="confidence is"):
        epsilon_bound([0.0, 1.0], [False, True], confidence=confidence)
