"""Plans over several kinds of references: equal cost, what cannot be told apart, and pilots of other seeds.

Signals are Gaussian: each record has its own mean and shift. References of another kind have other means (``unlike``).
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from plmia.attacks.attack import PL_MIA
from plmia.auditing.pilots import Budget
from plmia.auditing.planning import (
    CHEAPER,
    FEW,
    MAX_WIDTH,
    Choice,
    Contrast,
    Cost,
    Plan,
    amount_text,
    plan_kinds,
    start,
    steps,
)
from plmia.data.designs import MembershipDesign
from plmia.errors import PlmiaError
from plmia.evaluation.diagnostics.power import Curve, Pilot
from plmia.evaluation.tables import text_table
from plmia.evaluation.targets import Setup
from plmia.signals.signals import Signals

FPR = 0.01


def pilot(
    references: int, kind: int = 0, unlike: float = 0.0, seed: int = 0, points: int = 4000, views: int = 1
) -> Pilot:
    """Pilot whose target depends on the seed alone, with references of a kind."""
    rng, own = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1, kind])
    half = np.random.default_rng([seed, 2]).random((references // 2, points)) < 0.5
    target = rng.random(points) < 0.5
    mean, shift, noise = rng.normal(0, 2, points), rng.gamma(2, 0.8, points), rng.normal(size=(points, views))
    membership = np.concatenate([target[None], np.stack([half, ~half], axis=1).reshape(-1, points)])
    values = own.normal(size=(references + 1, points, views)) + (mean + unlike * own.normal(size=points))[:, None]
    values += (shift * membership)[:, :, None]
    values[0] = noise + (mean + shift * target)[:, None]
    return start(Signals(values.astype(np.float32), MembershipDesign(membership)), PL_MIA, 0, Setup(), FPR)


def planned(*choices: tuple[Pilot, float], budget: float) -> Plan:
    named = [Choice(name, one, Cost(cost, unit="seconds")) for name, (one, cost) in zip("abc", choices, strict=False)]
    return plan_kinds(named, FPR, budget, 0)


@pytest.fixture(scope="module")
def full() -> Pilot:
    return pilot(16)


def test_many_small_references_beat_few_full_ones(full: Pilot) -> None:
    plan = planned((full, 10.0), (pilot(128, 1, unlike=0.1), 1.0), budget=80)
    assert (plan.best.kind, plan.best_kind.name) == ("b", "b")
    assert plan.best.references in (64, 78, 80)
    (contrast,) = plan.contrasts
    assert contrast.kind == "a"
    assert not contrast.level
    assert contrast.difference > contrast.half_width > 0
    assert plan.words[0].startswith(
        f"With 80 s: {plan.best.references} references of b (all in the pilot) and 1 view, "
    )
    other = next(split for split in plan.splits if split.kind == "a")
    assert plan.words[1].startswith(
        f"8 references of a (all in the pilot) and 1 view instead: about {100 * other.power:.1f} % (95 %: "
    )
    assert plan.words[1].endswith(" points less.")
    assert plan.paired


def test_unlike_small_references_do_not_beat_full_ones(full: Pilot) -> None:
    plan = planned((pilot(64), 2.0), (pilot(128, 1, unlike=2.0), 1.0), budget=128)
    assert plan.best.kind == "a"
    assert plan.best.references == 64
    (contrast,) = plan.contrasts
    assert contrast.difference > contrast.half_width
    # The order of the pilots does not matter where the difference is clear.
    assert planned((pilot(128, 1, unlike=2.0), 1.0), (pilot(64), 2.0), budget=128).best.references == 64


def test_kinds_that_cannot_be_told_apart_are_not_ranked() -> None:
    same = (pilot(32), 1.0), (pilot(32, 1), 1.0)
    plan = planned(*same, budget=32)
    assert plan.contrasts[0].level
    assert plan.best.kind == "a"
    assert "do not show which is better. The order of the pilots decides" in plan.words[1]
    needed = plan.contrasts[0].other_same_power
    told = f"{needed} references of b ({needed} s)" if needed and needed < 10 else f"{needed} references of b"
    assert (needed is not None) == (told in plan.words[1])
    assert planned(*same[::-1], budget=32).best.kind == "a"
    assert "equal" not in plan.text


@pytest.fixture(scope="module")
def level() -> list[Pilot]:
    """Two pilots of the same power."""
    return [pilot(32), pilot(32, 1)]


def test_the_words_say_what_decides_between_kinds_that_cannot_be_told_apart(level: list[Pilot]) -> None:
    def words(*like: bool | None) -> str:
        choices = [Choice(name, one, Cost(), known) for name, one, known in zip("ab", level, like, strict=True)]
        plan = plan_kinds(choices, FPR, 32, 0)
        assert plan.contrasts[0].level
        assert plan.best.kind == "a"
        assert [kind["like_target"] for kind in plan.to_json()["kinds"]] == list(like)
        return plan.words[1]

    for known in (True, False), (True, None):
        assert "takes the references that were trained like the target" in words(*known)
        assert "order" not in words(*known)
    assert "The order of the pilots decides, since both kinds were trained like the target" in words(True, True)
    for unknown in (None, None), (False, False), (False, None):
        assert "The order of the pilots decides, since neither kind is known" in words(*unknown)


def test_kinds_without_cautions_are_preferred_where_they_are_not_clearly_worse(level: list[Pilot]) -> None:
    def plan(*cautions: tuple[str, ...] | None) -> Plan:
        choices = [
            Choice(name, one, Cost(), None, codes) for name, one, codes in zip("ab", level, cautions, strict=True)
        ]
        return plan_kinds(choices, FPR, 32, 0)

    both = "other-kind", "unlike-references"
    for clean in (), None:
        found = plan(both, clean)
        assert found.contrasts[0].level
        assert found.best.kind == "b"
        assert "avoids references of a because of the cautions other-kind and unlike-references" in found.words[1]
    assert plan(None, both).best.kind == "a"
    # Where all have cautions, the order decides as it would without them.
    every = plan(both, ("other-kind",))
    assert every.best.kind == "a"
    assert every.words[1].startswith("The references of a have the cautions other-kind and unlike-references: ")
    assert "never its absence" in every.words[1]
    assert "no such caution" not in every.words[1]
    assert every.words[1] in repr(every)
    assert [kind["cautions"] for kind in every.to_json()["kinds"]] == [both, ("other-kind",)]


def test_clearly_better_references_are_recommended_with_their_cautions() -> None:
    pilots = [pilot(64), pilot(128, 1, unlike=2.0)]
    choices = [
        Choice(name, one, Cost(unit="seconds"), None, codes)
        for name, one, codes in zip("ab", pilots, [("other-kind",), ()], strict=True)
    ]
    plan = plan_kinds(choices, FPR, 64, 0)
    assert plan.best.kind == "a"
    assert not plan.contrasts[0].level
    assert plan.words[1].startswith("The references of a have the caution other-kind: ")
    assert plan.words[1].endswith("References of b have no such caution.")


def test_long_names_of_kinds_are_letters_in_the_table() -> None:
    same = (pilot(32), 1.0), (pilot(32, 1), 1.0)
    short = planned(*same, budget=32)
    assert "\n" not in short.heading
    names = {"a": "a" * 60, "b": "b" * 60}
    splits = tuple(replace(split, kind=names[split.kind]) for split in short.splits)
    kinds = tuple(replace(kind, name=names[kind.name]) for kind in short.kinds)
    long = replace(short, kinds=kinds, splits=splits)
    assert long.heading.splitlines()[1:] == [f"A: {names['a']}", f"B: {names['b']}"]
    assert long.table[0] == ("budget", "A, 1 view", "B, 1 view")
    assert max(map(len, text_table(long.table, left=0).splitlines())) <= MAX_WIDTH
    assert long.table[1:] == short.table[1:]


def test_few_references_are_replaced_by_many_cheaper_ones() -> None:
    """Ten times cheaper references of the same kind: the same power at a fraction of the cost, but measured roughly."""
    plan = planned((pilot(32), 1.0), (pilot(32, 1), 0.1), budget=6)
    assert plan.best.kind == "b"
    (contrast,) = plan.contrasts
    assert contrast.same_power_cost == pytest.approx(0.1 * contrast.same_power)
    assert contrast.same_power_cost <= CHEAPER * 6
    assert not contrast.level or "at 40 % of the cost or less (" in plan.words[1]


def test_many_references_like_the_target_stay_unless_others_are_clearly_better() -> None:
    plan = planned((pilot(32), 1.0), (pilot(32, 1), 0.4), budget=FEW)
    assert plan.contrasts[0].level
    assert plan.best.kind == "a"
    assert "the plan takes the references of the first." in plan.words[1]


def test_each_kind_spends_the_same_budget() -> None:
    plan = planned((pilot(32), 3.0), (pilot(32, 1), 1.5), (pilot(16, 2), 30.0), budget=60)
    assert {split.kind: split.affordable for split in plan.splits} == {"a": 20, "b": 40}
    assert all(split.cost <= 60 for split in plan.splits)
    (word,) = (word for word in plan.words if "does not pay for 4 references of c" in word)
    assert "at least 2.02 min" in word
    head, *rows = plan.table
    assert head == ("budget", "a, 1 view", "b, 1 view")
    assert [row[0] for row in rows] == ["15 s", "30 s", "60 s", "2 min", "4 min"]
    assert rows[0][1].endswith("(4)")
    assert rows[2][1].endswith("(20)")
    assert rows[2][2].startswith("~")
    assert rows[2][2].endswith("(40)")
    with pytest.raises(PlmiaError, match=r"4 .*at least 6\.06 s"):
        planned((pilot(32), 3.0), (pilot(32, 1), 1.5), budget=5)


def test_views_are_chosen_for_each_kind() -> None:
    plan = planned((pilot(16, views=2), 1.0), (pilot(16, 1), 1.0), budget=16.2)
    assert {(split.kind, split.views) for split in plan.splits} == {("a", 1), ("a", 2), ("b", 1)}
    assert plan.best.views == 2
    assert plan.table[0] == ("budget", "a, 2 views", "b, 1 view")


def test_pilots_of_other_seeds_are_compared_as_independent() -> None:
    paired = planned((pilot(32), 1.0), (pilot(32, 1), 1.0), budget=32)
    other = planned((pilot(32), 1.0), (pilot(32, 1, seed=1), 1.0), budget=32)
    assert paired.paired
    assert not other.paired
    assert any("use one seed for all pilots" in word for word in other.words)
    assert not any("one seed" in word for word in paired.words)
    assert other.contrasts[0].half_width > paired.contrasts[0].half_width


def test_without_enough_non_members_the_auc_decides() -> None:
    small = [pilot(16, kind, points=600) for kind in (0, 1)]
    plan = planned((small[0], 1.0), (small[1], 1.0), budget=16)
    assert plan.best.tpr is None
    assert plan.contrasts[0].half_width > 0
    assert plan.best.uncertainty.low < plan.best.auc < plan.best.uncertainty.high


def test_json_and_progress(full: Pilot) -> None:
    heard: list[int] = []
    pilots = [full, pilot(16, 1, views=2)]
    choices = [Choice(name, one, Cost(cost)) for name, one, cost in zip("ab", pilots, (1.0, 0.5), strict=True)]
    plan = plan_kinds(choices, FPR, None, 0, heard.append)
    assert sum(heard) == steps(*pilots)
    made = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    assert made["budget"] == 32
    assert [kind["name"] for kind in made["kinds"]] == ["a", "b"]
    assert [set(kind["curves"]) for kind in made["kinds"]] == [{"1"}, {"1", "2"}]
    assert made["curves"] == made["kinds"][0]["curves"]
    assert made["best"] == made["splits"][0]
    assert made["best"]["uncertainty"].keys() == {"low", "high", "references", "queries", "extrapolation"}
    assert {contrast["level"] for contrast in made["contrasts"]} <= {True, False}
    assert plan.words[0].startswith("With the cost of 32 references of a: ")


def test_a_difference_within_its_uncertainty_is_level() -> None:
    assert Contrast("b", -0.01, 0.02, None, None).level
    assert not Contrast("b", 0.03, 0.02, 8, 1.0).level


def test_the_rule_of_the_extrapolation_error_reproduces_what_was_measured() -> None:
    """9 and 14 % of the TPR at 1 % FPR, 18 and 29 % at 0.1 %, with twice and four times the references."""
    values = [np.full(4, 0.2), np.full(4, 0.2), np.full(1, 0.2)]
    expected = {"0.01": (0.09, 0.14), "0.001": (0.18, 0.29), "0.05": (0.09, 0.14)}
    for metric, shares in expected.items():
        curve = Curve.of(metric, (8, 16, 32), values, 32)
        assert [curve.extrapolation_error(n) for n in (16, 32)] == [0, 0]
        for n, share in zip((64, 128), shares, strict=True):
            assert curve.extrapolation_error(n) / 0.2 == pytest.approx(share, abs=0.005)
    auc = Curve.of("auc", (8, 16, 32), values, 32)
    assert [auc.extrapolation_error(n) for n in (64, 128)] == pytest.approx([0.002, 0.003], abs=0.0002)


def test_fewer_references_than_the_pilots_spread_more() -> None:
    rng = np.random.default_rng(0)
    curve = Curve.of("0.01", (8, 16, 32), [rng.normal(0.2, 0.02, n) for n in (4, 8, 1)], 32)
    assert curve.standard_error is not None
    assert curve.reference_error(32) == curve.reference_error(64) == curve.standard_error
    assert curve.reference_error(8) == pytest.approx(curve.standard_error * math.sqrt(4))
    assert Curve.of("0.01", (32,), [np.array([0.2])], 32).reference_error(32) is None


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        (64, 64.0, "models"),
        ("64", 64.0, "models"),
        ("90s", 90.0, "seconds"),
        ("1.5 h", 5400.0, "seconds"),
        ("1e15flop", 1e15, "operations"),
        ("1e+15FLOP", 1e15, "operations"),
        ("20 GFLOP", 2e10, "operations"),
        ("2.5tflop", 2.5e12, "operations"),
        ("1PFLOP", 1e15, "operations"),
        ("1PFLOPS", 1e15, "operations"),
        ("1e12flops", 1e12, "operations"),
        ("3 Flops", 3.0, "operations"),
        ("2kflop", 2e3, "operations"),
        ("2 MFLOPS", 2e6, "operations"),
        ("1.5EFLOP", 1.5e18, "operations"),
        ("+5", 5.0, "models"),
        ("1e-1h", 360.0, "seconds"),
        (None, None, "models"),
    ],
)
def test_budgets_have_three_units(text: str | float | None, amount: float | None, unit: str) -> None:
    assert Budget.parse(text) == Budget(amount, unit)


@pytest.mark.parametrize("text", ["2d", "flop", "inf", "nan", "1XFLOP", "1PFLOP/s", "", "30M"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(PlmiaError, match="neither a number of models nor a time"):
        Budget.parse(text)


@pytest.mark.parametrize("text", ["0", 0, "-3", -3, "0s", "-2h", "0flop", "-1PFLOPS", "0.0"])
def test_budgets_must_be_above_0(text: str | float) -> None:
    with pytest.raises(PlmiaError, match=f"a budget of {text} is not above 0") as raised:
        Budget.parse(text)
    assert "neither" not in str(raised.value)


def test_a_huge_number_of_models_is_taken_for_operations_without_a_unit() -> None:
    assert Budget.parse("1e6").amount == 1e6
    for text in ("1e15", 1e15, 10**15):
        with pytest.raises(PlmiaError, match="did you mean 1e15flop"):
            Budget.parse(text)
    assert Budget.parse("1e+15flop") == Budget(1e15, "operations")


@pytest.mark.parametrize(
    ("amount", "unit", "text"),
    [
        (64, "models", "64 models"),
        (1, "models", "1 model"),
        (1, "references", "1 reference"),
        (1.5, "models", "1.5 models"),
        (90, "seconds", "90 s"),
        (300, "seconds", "5 min"),
        (7200, "seconds", "2 h"),
        (3e15, "operations", "3 PFLOP"),
        (2.5e10, "operations", "25 GFLOP"),
        (2e18, "operations", "2 EFLOP"),
        (5e6, "operations", "5 MFLOP"),
        (5e3, "operations", "5 kFLOP"),
        (1, "seconds", "1 s"),
    ],
)
def test_amounts_in_words(amount: float, unit: str, text: str) -> None:
    assert amount_text(amount, unit) == text
