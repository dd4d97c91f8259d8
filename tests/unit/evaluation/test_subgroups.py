"""Subgroups against naive loops, at their edges, and with bad input."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.optimize import brentq

from plmia.errors import PlmiaError
from plmia.evaluation.intervals import auc_limits, tpr_interval
from plmia.evaluation.metrics import clopper_pearson, roc_curve
from plmia.evaluation.subgroups import (
    MAX_VALUES,
    MIN_UNITS,
    MISSING,
    VARIES,
    codes_of,
    constant_within,
    subgroup_table,
)

FPR = 0.05


def units(sizes, shifts=None, levels=0, seed=0):
    """Codes, scores and members: half of each subgroup are members, whose scores are higher by its shift."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(len(sizes)), sizes)
    members = np.concatenate([rng.permutation(size) < size // 2 for size in sizes])
    score = rng.normal(size=len(codes)) + members * np.asarray(shifts or [1.0] * len(sizes))[codes]
    order = rng.permutation(len(codes))
    score = np.round(score * levels) / levels if levels else score
    return codes[order], score[order], members[order]


def named(table):
    return {group.name: group for group in table.subgroups}


def naive_p(measured, s, weights):
    """The error probability at which the lower limit of the difference is 0; 1 if there is none below 0.49."""
    others = [k for k in range(len(weights)) if k != s]
    total = sum(weights[k] for k in others)

    def low(log_tail):
        value, limits = measured
        excess, square = value[s], (value[s] - limits(s, math.exp(log_tail))[0]) ** 2
        for k in others:
            excess -= weights[k] / total * value[k]
            square += (weights[k] / total * (limits(k, math.exp(log_tail))[1] - value[k])) ** 2
        return excess - math.sqrt(square)

    smallest, largest = math.log(1e-12), math.log(0.49)
    if low(largest) <= 0:
        return 1.0
    return 1e-12 if low(smallest) >= 0 else math.exp(brentq(low, smallest, largest))


def naive_table_p(codes, score, members, fpr):
    parts = [codes == code for code in sorted(set(codes.tolist()))]
    threshold = roc_curve(score, members).tpr_at(fpr).threshold
    weights = [(p & members).sum() * (p & ~members).sum() / p.sum() for p in parts]

    def rates(k, tail):
        sides = [(score[parts[k] & m] >= threshold) for m in (members, ~members)]
        (t, tl, th), (f, fl, fh) = ((s.mean(), *clopper_pearson(s.sum(), s.size, 1 - 2 * tail)) for s in sides)
        return t - f - math.hypot(t - tl, fh - f), t - f + math.hypot(th - t, f - fl)

    def area(k, tail):
        (low,), (high,) = auc_limits(roc_curve(score[parts[k]], members[parts[k]]), np.array([tail]))
        return low, high

    advantage = [(score[p & members] >= threshold).mean() - (score[p & ~members] >= threshold).mean() for p in parts]
    aucs = [roc_curve(score[p], members[p]).auc for p in parts]
    raw = [
        min(1.0, 2 * min(naive_p((advantage, rates), s, weights), naive_p((aucs, area), s, weights)))
        for s in range(len(parts))
    ]
    adjusted, largest = [0.0] * len(raw), 0.0
    for rank, s in enumerate(sorted(range(len(raw)), key=lambda s: raw[s])):
        largest = max(largest, min(1.0, raw[s] * (len(raw) - rank)))
        adjusted[s] = largest
    return adjusted


# --- the table


@pytest.mark.parametrize("levels", [0, 2])
def test_a_table_is_that_of_a_loop(levels):
    codes, score, members = units([300, 120, 80], [0.5, 1.0, 2.0], levels)
    correct = np.random.default_rng(1).random(len(codes))
    table = subgroup_table("ward", codes, ("a", "b", "c"), score, members, FPR, correct)
    threshold = roc_curve(score, members).tpr_at(FPR).threshold
    assert [group.name for group in table.subgroups] == ["a", "b", "c"]
    for code, group in enumerate(table.subgroups):
        inside = [i for i in range(len(codes)) if codes[i] == code and members[i]]
        outside = [i for i in range(len(codes)) if codes[i] == code and not members[i]]
        roc = roc_curve(score[codes == code], members[codes == code])
        assert (group.n_members, group.n_non_members) == (len(inside), len(outside))
        assert group.identified == sum(score[i] >= threshold for i in inside)
        assert group.falsely == sum(score[i] >= threshold for i in outside)
        assert group.auc == roc.auc
        assert group.accuracy_members == pytest.approx(sum(correct[inside]) / len(inside))
        assert group.accuracy_non_members == pytest.approx(sum(correct[outside]) / len(outside))
        assert group.tpr == roc.tpr_at(FPR).tpr
        each = tpr_interval(roc, FPR, 1 - 0.05 / 3)
        assert (group.interval.low, group.interval.high) == (each.low, each.high)
        assert group.interval.confidence == 0.95
        assert not group.small
        assert group.merged == ()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("levels", [0, 2])
def test_p_values_are_those_of_a_loop(levels, seed):
    codes, score, members = units([200, 100, 60, 44], [0.3, 0.5, 1.2, 1.0], levels, seed)
    table = subgroup_table("ward", codes, "abcd", score, members, FPR)
    found = [group.p_value for group in table.subgroups]
    np.testing.assert_allclose(found, naive_table_p(codes, score, members, FPR), rtol=1e-3)


def test_a_clear_leak_of_one_subgroup_is_found_and_named():
    codes, score, members = units([800, 400, 80], [0.0, 0.0, 3.0])
    table = subgroup_table("ward", codes, "abc", score, members, FPR)
    assert table.more_exposed == ("c",)
    assert named(table)["c"].p_value < 1e-6
    # Exposure without a leak is not evidence, in whatever direction the others differ.
    assert named(table)["a"].p_value == named(table)["b"].p_value == 1


def test_a_perfect_attack_on_all_has_no_more_exposed_subgroup():
    codes, score, members = units([100, 100], [50.0, 50.0])
    assert subgroup_table("ward", codes, "ab", score, members, FPR).more_exposed == ()


def test_tables_share_the_error():
    codes, score, members = units([300, 100], [0.5, 1.3])
    one = subgroup_table("sex", codes, "ab", score, members, FPR)
    three = subgroup_table("sex", codes, "ab", score, members, FPR, n_tables=3)
    assert 0 < named(one)["b"].p_value < 0.3
    assert named(three)["b"].p_value == pytest.approx(3 * named(one)["b"].p_value)
    assert named(three)["a"].p_value == 1
    each = tpr_interval(roc_curve(score[codes == 0], members[codes == 0]), FPR, 1 - 0.05 / 6)
    assert named(three)["a"].interval.low == each.low


def test_rates_and_p_values_stay_when_units_are_shuffled():
    codes, score, members = units([200, 100, 60])
    order = np.random.default_rng(3).permutation(len(codes))
    first = subgroup_table("ward", codes, "abc", score, members, FPR)
    assert subgroup_table("ward", codes[order], "abc", score[order], members[order], FPR) == first


def test_a_rate_that_a_subgroup_does_not_resolve_is_left_out_and_shares_no_error():
    codes, score, members = units([400, 60])
    table = named(subgroup_table("ward", codes, "ab", score, members, 0.01))
    assert table["b"].tpr is None
    assert table["b"].interval is None
    assert table["b"].auc is not None
    assert table["a"].interval.low == tpr_interval(roc_curve(score[codes == 0], members[codes == 0]), 0.01).low


def test_columns_are_one_row_per_subgroup():
    codes, score, members = units([200, 30])
    table = subgroup_table("ward", codes, ("a", "<b>"), score, members, FPR)
    columns = table.columns()
    assert columns["ward"] == ["a", "<b>"]
    assert {len(column) for column in columns.values()} == {2}
    assert columns["tpr"][1] is None
    assert columns["high"][0] == table.subgroups[0].interval.high
    assert "&lt;b&gt;" in table._repr_html_()


# --- small subgroups


def test_small_subgroups_are_merged():
    codes, score, members = units([300, 30, 20, 60, 10])
    table = subgroup_table("ward", codes, "abcde", score, members, FPR)
    assert [group.name for group in table.subgroups] == ["a", "d", "other (3 values)"]
    merged = table.subgroups[-1]
    assert merged.merged == ("b", "c", "e")
    assert not merged.small
    assert (merged.n_members, merged.n_non_members) == (30, 30)
    assert merged.auc == roc_curve(score[np.isin(codes, [1, 2, 4])], members[np.isin(codes, [1, 2, 4])]).auc


def test_what_stays_small_is_marked_and_has_no_rates():
    codes, score, members = units([300, 100, 10, 12])
    table = subgroup_table("ward", codes, "abcd", score, members, FPR, members)
    small = table.subgroups[-1]
    assert small.name == "other (2 values)"
    assert small.small
    assert (small.tpr, small.interval, small.auc, small.accuracy_members) == (None, None, None, None)
    assert (small.n_members, small.n_non_members, small.p_value) == (11, 11, 1.0)
    # The others are tested as if it were not there; the common threshold is that of all units.
    rest = codes < 2
    without = subgroup_table("ward", codes[rest], "ab", score[rest], members[rest], FPR)
    assert table.subgroups[0].interval == without.subgroups[0].interval


def test_one_small_subgroup_keeps_its_name():
    codes, score, members = units([300, 100, 10])
    last = subgroup_table("ward", codes, "abc", score, members, FPR).subgroups[-1]
    assert (last.name, last.merged, last.small) == ("c", (), True)


def test_a_subgroup_of_members_only_is_small():
    codes, score, members = units([300, 200])
    kept = (codes == 0) | members
    table = subgroup_table("ward", codes[kept], "ab", score[kept], members[kept], FPR)
    assert named(table)["b"].small
    assert named(table)["b"].n_non_members == 0
    assert table.more_exposed == ()


@pytest.mark.parametrize(("units_each", "small"), [(MIN_UNITS, False), (MIN_UNITS - 1, True)])
def test_the_limit_of_small(units_each, small):
    codes, score, members = units([300, 2 * units_each])
    assert subgroup_table("ward", codes, "ab", score, members, FPR).subgroups[1].small is small


def test_missing_and_varying_values_are_subgroups():
    codes, score, members = units([300, 100, 80, 80])
    codes = np.array([0, 1, MISSING, VARIES])[codes]
    table = subgroup_table("ward", codes, ("a", "missing"), score, members, FPR)
    assert [group.name for group in table.subgroups] == ["a", "missing", "(missing)", "varies"]


# --- bad input


def test_a_column_with_many_values_is_refused():
    codes, score, members = units([4] * 1000)
    with pytest.raises(PlmiaError, match=r"'ward' has 1,000 .* 50 "):
        subgroup_table("ward", codes, [str(k) for k in range(1000)], score, members, FPR)


@pytest.mark.parametrize("code", [0, MISSING])
def test_a_column_with_one_value_is_refused(code):
    _, score, members = units([100])
    with pytest.raises(PlmiaError, match=r"'ward' has one value .*at least 2"):
        subgroup_table("ward", np.full(100, code), ("a", "b"), score, members, FPR)


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"codes": np.zeros(99, int)}, r"shape \(99,\).* 100 units"),
        ({"codes": np.zeros(100)}, "float64"),
        ({"codes": np.full(100, 2)}, "code 2, there are 2 names"),
        ({"codes": np.full(100, -3)}, "code -3"),
        ({"fpr": 0.0}, "FPR is 0.0"),
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"n_tables": 0}, "n_tables is 0"),
        ({"correct": np.ones(99)}, r"shape \(99,\)"),
        ({"correct": np.full(100, 2)}, "from 0 to 1"),
        ({"members": np.ones(100, bool)}, "no non-member"),
    ],
)
def test_bad_arguments_are_named(change, facts):
    codes, score, members = units([50, 50])
    given = {"codes": codes, "score": score, "members": members, "fpr": FPR} | change
    with pytest.raises(PlmiaError, match=facts):
        subgroup_table("ward", names=("a", "b"), **given)


# --- codes of a column


@pytest.mark.parametrize(
    ("values", "codes", "names"),
    [
        (["m", "f", None, "m"], [1, 0, -1, 1], ("f", "m")),
        (np.array(["10", "9", "9"]), [1, 0, 0], ("9", "10")),
        (np.array(["x", None, float("nan"), "y"], object), [0, -1, -1, 1], ("x", "y")),
        ([True, False, None], [1, 0, -1], ("False", "True")),
        (np.array([3, 1, 3]), [1, 0, 1], ("1", "3")),
        (np.array([1.0, np.nan, 2.5]), [0, -1, 1], ("1", "2.5")),
        (pd.Series(["b", None, "a"], dtype="category"), [1, -1, 0], ("a", "b")),
        (pd.Series([1, None, 2], dtype="Int64"), [0, -1, 1], ("1", "2")),
        (pd.Series([True, None, False], dtype="boolean"), [1, -1, 0], ("False", "True")),
        (pl.Series(["b", None, "a"]), [1, -1, 0], ("a", "b")),
        (pa.chunked_array([["b", None, "a"]]), [1, -1, 0], ("a", "b")),
        ([None, None], [-1, -1], ()),
    ],
)
def test_codes_of_columns(values, codes, names):
    found, found_names = codes_of(values, len(codes))
    assert found.tolist() == codes
    assert found_names == names


def test_codes_keep_all_digits_of_integers():
    assert codes_of(np.array([2**60, 2**60 + 1]), 2)[1] == (str(2**60), str(2**60 + 1))


def test_many_numbers_should_be_cut_and_many_names_merged():
    with pytest.raises(PlmiaError, match=r"column 'age' has 1,000 different numbers, at most 50 .*ranges"):
        codes_of(np.linspace(0, 1, 1000), 1000, "column 'age'")
    with pytest.raises(PlmiaError, match=r"column 'zip' has 1,000 values, at most 50 .*merge"):
        codes_of([f"z{k}" for k in range(1000)], 1000, "column 'zip'")
    assert len(codes_of(np.arange(MAX_VALUES), MAX_VALUES)[1]) == MAX_VALUES


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        (["a"], r"shape \(1,\), there are 2 records"),
        (np.zeros((2, 1)), r"shape \(2, 1\)"),
        (np.array(["2020-01-01", "2021-01-01"], "datetime64[D]"), "dates: cut it into ranges"),
        (["a", 1], "mixes"),
    ],
)
def test_columns_that_cannot_be_read_are_refused(values, facts):
    with pytest.raises(PlmiaError, match=facts):
        codes_of(values, 2)


# --- groups


def test_codes_of_groups_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 60, 200) * 7
    codes = np.where(rng.random(200) < 0.8, groups % 3, rng.integers(-1, 3, 200))
    expected = []
    for group in sorted(set(groups.tolist())):
        values = {c for c, g in zip(codes.tolist(), groups.tolist(), strict=True) if g == group} - {MISSING}
        expected.append(VARIES if len(values) > 1 else values.pop() if values else MISSING)
    found, varying = constant_within(codes, groups)
    assert found.tolist() == expected
    assert varying == expected.count(VARIES) > 0


def test_a_missing_value_does_not_contradict_another():
    found, varying = constant_within(np.array([0, -1, -1, 1, 2]), np.array([5, 5, 6, 7, 7]))
    assert found.tolist() == [0, MISSING, VARIES]
    assert varying == 1


def test_codes_and_groups_need_the_same_records():
    with pytest.raises(PlmiaError, match=r"\(3,\), groups \(2,\)"):
        constant_within(np.zeros(3, int), np.zeros(2, int))
