"""From rates to people: precision and numbers of accusations against direct counting, and bad input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from plmia.errors import PlmiaError
from plmia.evaluation.accusations import PRIORS, Accusation, accusations
from plmia.evaluation.intervals import Interval

RATE = st.floats(0.001, 0.999)


def one(fpr: float, tpr: float, low: float, high: float, members: int, prior: float) -> Accusation:
    return accusations(fpr, tpr, Interval(low, high, 0.95), members, [prior])[0]


def test_numbers_are_those_of_a_list_that_is_counted() -> None:
    # 1,000 members and 9,000 non-members: 500 and 90 are accused.
    found = one(0.01, 0.5, 0.4, 0.6, 1_000, 0.1)
    assert found.candidates == pytest.approx(10_000)
    assert (found.right, found.right_low, found.right_high) == pytest.approx((500, 400, 600))
    assert found.wrong == pytest.approx(90)
    assert found.precision == pytest.approx(500 / 590)
    assert (found.precision_low, found.precision_high) == pytest.approx((400 / 490, 600 / 690))
    law = stats.binom(9_000, 0.01)
    assert (found.wrong_low, found.wrong_high) == (law.ppf(0.025), law.ppf(0.975))


def test_every_prior_is_listed_and_a_rare_member_makes_accusations_less_precise() -> None:
    found = accusations(0.01, 0.5, Interval(0.4, 0.6, 0.9), 1_750)
    assert tuple(a.prior for a in found) == PRIORS
    assert {a.right for a in found} == {875.0}
    precision = [a.precision for a in found]
    assert precision == sorted(precision, reverse=True)
    assert all(a.confidence == 0.9 and a.members == 1_750 for a in found)


@given(fpr=RATE, tpr=st.tuples(RATE, RATE, RATE), members=st.integers(1, 10**7), prior=RATE)
def test_ends_enclose_the_value_and_precision_is_a_share(
    fpr: float, tpr: tuple[float, float, float], members: int, prior: float
) -> None:
    low, middle, high = sorted(tpr)
    found = one(fpr, middle, low, high, members, prior)
    assert 0 <= found.precision_low <= found.precision <= found.precision_high <= 1
    assert found.right_low <= found.right <= found.right_high <= members
    assert 0 <= found.wrong_low <= found.wrong <= found.wrong_high
    assert found.precision == pytest.approx(found.right / (found.right + found.wrong))


@given(rate=RATE, prior=RATE)
def test_an_attack_at_chance_accuses_members_as_often_as_they_occur(rate: float, prior: float) -> None:
    assert one(rate, rate, rate, rate, 100, prior).precision == pytest.approx(prior)


def test_an_attack_that_finds_nobody_is_never_right() -> None:
    found = one(0.001, 0.0, 0.0, 0.02, 500, 0.5)
    assert (found.precision, found.right, found.precision_low) == (0, 0, 0)
    assert found.precision_high > 0.9
    # A list of 500 non-members: probably nobody is accused falsely.
    assert (found.wrong_low, found.wrong, found.wrong_high) == (0, 0.5, 2)


def test_a_list_without_a_whole_non_member_accuses_nobody_falsely() -> None:
    found = one(0.01, 0.5, 0.4, 0.6, 1, 0.99)
    assert found.wrong == found.wrong_high < 0.001


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_rates_outside_are_refused_by_value(rate: float) -> None:
    with pytest.raises(PlmiaError, match=f"prior is {rate}"):
        one(0.01, 0.5, 0.4, 0.6, 10, rate)
    with pytest.raises(PlmiaError, match=f"FPR is {rate}"):
        one(rate, 0.5, 0.4, 0.6, 10, 0.5)


@pytest.mark.parametrize(
    ("tpr", "low", "high"), [(0.5, 0.6, 0.7), (0.5, 0.1, 0.4), (1.1, 0, 1.2), (float("nan"), 0, 1)]
)
def test_a_tpr_outside_its_interval_is_refused(tpr: float, low: float, high: float) -> None:
    with pytest.raises(PlmiaError, match=f"{tpr}.*{low} to {high}"):
        one(0.01, tpr, low, high, 10, 0.5)


def test_an_empty_training_set_is_refused() -> None:
    with pytest.raises(PlmiaError, match="0 members"):
        one(0.01, 0.5, 0.4, 0.6, 0, 0.5)
