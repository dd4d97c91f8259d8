"""Runs side by side: every number is that of a naive count or of scipy, and pairs are made of the same records only."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from plmia.attacks.attack import ATTACKS
from plmia.data.designs import MembershipDesign
from plmia.errors import PlmiaError
from plmia.evaluation.intervals import Interval, auc_interval, over_targets, tpr_interval
from plmia.evaluation.metrics import evaluate, fpr_key, roc_curve, summarise
from plmia.evaluation.targets import Setup
from plmia.numerics import holm
from plmia.results.comparison import (
    Measured,
    Run,
    compare,
    compare_attacks,
    compare_auc,
    compare_runs,
    method_of,
    p_words,
    same_records,
    unpaired,
    unpaired_over_targets,
)
from plmia.results.folder import run_attacks
from plmia.results.saved import SavedRun
from plmia.signals.signals import Signals

POINTS = 600


def write_run(folder, shifts, *, targets=(0,), seed=0, luck=0, points=POINTS, labels=None, data=None, groups=None):
    """Write results by hand: ``shifts`` says how much higher members score, by attack.

    ``seed`` draws who is a member, who is asked and how hard a record is, ``luck`` the rest of the scores.
    """
    arrays = {} if labels is None else {"labels": labels}
    measured = {attack: [] for attack in shifts}
    for target in targets:
        rng = np.random.default_rng([seed, target])
        members = rng.random(points) < 0.5
        common = rng.normal(size=points)
        order = rng.permutation(points)
        population = np.sort(order[~members[order]][:50])
        queries = np.setdiff1d(np.arange(points), population)
        arrays |= {f"members/{target}": members, f"queries/{target}": queries, f"population/{target}": population}
        for number, (attack, shift) in enumerate(shifts.items()):
            own = np.random.default_rng([seed, target, luck, number]).normal(size=points)
            score = shift * members + common + 0.5 * own
            measured[attack].append(evaluate(score[queries], members[queries], target=target))
            for key in ("score", "statistic"):
                arrays[f"{attack}/{target}/{key}"] = score
            for key in ("log10_p", "log10_p_conformal"):
                arrays[f"{attack}/{target}/{key}"] = -np.abs(score)
    folder.mkdir()
    np.savez(folder / "scores.npz", **arrays)
    about = {"signals": {"models": 2, "points": points, "views": 1}, "mode": "online", "targets": list(targets)}
    about |= {"seed": 0, "references": [1], "population": [50]} | ({"audit": {"data": data}} if data else {})
    if groups:
        about["audit"]["groups"] = groups
    verdict = {"text": "", "leak_shown": False, "attack": next(iter(shifts)), "fpr": None, "tpr": None}
    verdict |= {"interval": None, "exposed": 0, "fdr": 0.05, "targets": len(targets), "auc_low": 0.5}
    verdict |= {"least_exposed": 1, "exposed_by": "conformal"}
    attacks = {attack: in_full(summarise(found)) for attack, found in measured.items()}
    metrics = {"schema": 1, "verdict": verdict, "about": about, "attacks": attacks, "notes": []}
    metrics |= {"skipped": {}, "diagnostics": {"references": None, "gaussianity": None, "targets": {}}}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return SavedRun(folder)


def in_full(attack):
    """Return the entry of metrics.json, with what a comparison does not use filled in."""
    rates = {"fpr_realised": {}, "tpr": {}}
    bound = {"delta": 1e-5, "confidence": 0.95, "low": 0.0, "threshold": 0.0, "calls": "members", "right_low": 0.0}
    bound |= {"wrong_high": 1.0, "one_run": {"low": 0.0, "calls": "members", "guesses": 8, "correct": 4}}
    per_target = []
    for metrics in attack.per_target:
        entry = {name: value for name, value in asdict(metrics).items() if name != "operating"}
        entry["tpr"] = {fpr_key(p.fpr): asdict(p) | {"needed_non_members": p.needed} for p in metrics.operating}
        entry |= {"decisions": {"conformal": {}}, "epsilon": bound, "fdr": {}}
        per_target.append(entry | {"conformal": {"population": 50, "resolution": 1 / 51, **rates}})
        for point in entry["tpr"].values():
            del point["threshold"]  # may be infinite
    means = {"auc": asdict(attack.auc), "balanced_accuracy": asdict(attack.balanced_accuracy)}
    means["tpr"] = {
        fpr_key(p.fpr): asdict(p) | asdict(p.tpr) | {"needed_non_members": p.needed} for p in attack.operating
    }
    own = {"level": 0.01, "flagged": None, "check_failed": False}
    epsilon = {"low": 0.0, "one_run_low": 0.0, "delta": 1e-5}
    means |= {"decisions": {}, "conformal": rates, "fdr": {}, "epsilon": epsilon, "per_target": per_target}
    return means | {"own_p_value_on_population": own}


@pytest.fixture
def run(tmp_path):
    def make(name, shifts, **options):
        return Run(name, write_run(tmp_path / name, shifts, **options))

    return make


def rng():
    return np.random.default_rng(7)


# Arithmetic ----------------------------------------------------------------------------------------------------------


def naive_holm(p_values):
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


@pytest.mark.parametrize("seed", range(5))
def test_holm_is_a_loop_from_the_smallest(seed):
    p = np.random.default_rng(seed).random(9) ** 3
    p[3] = p[5]
    np.testing.assert_allclose(holm(p), naive_holm(p.tolist()), rtol=1e-15)


def test_holm_by_hand():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])
    assert holm([]).size == 0


def test_the_unpaired_interval_leaves_out_0_exactly_where_p_is_below_its_level():
    draw = np.random.default_rng(0)
    sides = []
    for confidence in (0.8, 0.95):
        for _ in range(300):
            values, below, above = draw.random(2), draw.random(2) / 3, draw.random(2) / 3
            first, other = (
                Measured(v, Interval(v - b, v + a, confidence)) for v, b, a in zip(values, below, above, strict=True)
            )
            found = unpaired(first, other)
            assert found.difference == values[1] - values[0]
            assert found.low == pytest.approx(found.difference - math.sqrt(below[1] ** 2 + above[0] ** 2))
            assert found.high == pytest.approx(found.difference + math.sqrt(above[1] ** 2 + below[0] ** 2))
            outside = not found.low < 0 < found.high
            assert outside == (found.p_value < 1 - confidence)
            sides.append(outside)
    assert 50 < sum(sides) < 550


def test_a_symmetric_unpaired_test_is_the_z_test():
    first, other = (Measured(v, Interval(v - h, v + h, 0.95)) for v, h in ((0.5, 0.03), (0.56, 0.04)))
    z = 0.06 / math.hypot(0.03, 0.04) * stats.norm.ppf(0.975)
    assert unpaired(first, other).p_value == pytest.approx(2 * stats.norm.sf(z))
    assert unpaired(first, first).p_value == 1


def test_independent_targets_are_welch_s_test():
    draw = np.random.default_rng(0)
    first, other = draw.random(4), 0.3 + 0.2 * draw.random(7)
    found, twin = unpaired_over_targets(first, other), stats.ttest_ind(other, first, equal_var=False)
    assert found.p_value == pytest.approx(twin.pvalue, rel=1e-12)
    ends = twin.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high), rel=1e-12)
    assert (found.a, found.b) == (other.mean(), first.mean())


def test_targets_without_any_spread_are_as_sure_as_dealing_them_anew_can_be():
    same, other = np.full(3, 0.5), np.full(3, 0.75)
    assert unpaired_over_targets(same, same).p_value == 1
    assert unpaired_over_targets(same, other).p_value == 2 / 20
    assert unpaired_over_targets(np.full(2, 0.1), np.full(2, 0.1)).low == 0


# Which records -------------------------------------------------------------------------------------------------------


def test_the_same_records_are_paired_and_no_others(tmp_path):
    labels = np.arange(POINTS) % 3
    base = write_run(tmp_path / "base", {"a": 1.0}, labels=labels, data="x")
    variants = {
        "again": {"luck": 1, "labels": labels, "data": "x"},
        "without labels": {"luck": 1},
        "other seed": {"seed": 1, "labels": labels, "data": "x"},
        "other labels": {"labels": labels[::-1], "data": "x"},
        "other data": {"labels": labels, "data": "y"},
        "other target": {"targets": (1,), "labels": labels, "data": "x"},
        "more targets": {"targets": (0, 1), "labels": labels, "data": "x"},
        "more points": {"points": POINTS + 1},
    }
    paired = {name for name, how in variants.items() if same_records(base, write_run(tmp_path / name, {"a": 1}, **how))}
    assert paired == {"again", "without labels"}


def test_records_of_different_data_are_matched_by_labels_and_groups(tmp_path):
    """A column was dropped: the digest differs. Regular labels could be those of another data set."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, POINTS)
    regular = {"sorted": np.sort(labels), "in turn": np.arange(POINTS) % 2, "in fours": np.arange(POINTS) // 4 % 2}
    other = labels.copy()
    other[3] = 1 - other[3]
    runs = {
        "base": {"labels": labels, "data": "x"},
        "dropped": {"labels": labels, "data": "y", "luck": 1},
        "one other label": {"labels": other, "data": "y"},
        "no labels": {"data": "y"},
        "groups": {"labels": labels, "data": "y", "groups": "g"},
        "other seed": {"labels": labels, "data": "y", "seed": 1},
        **{name: {"labels": values, "data": "x"} for name, values in regular.items()},
        **{f"{name}, dropped": {"labels": values, "data": "y"} for name, values in regular.items()},
        **{f"{name}, g": {"labels": values, "data": "x", "groups": "g"} for name, values in regular.items()},
        **{f"{name}, g, dropped": {"labels": values, "data": "y", "groups": "g"} for name, values in regular.items()},
        "no labels, g": {"data": "x", "groups": "g"},
        "no labels, g, dropped": {"data": "y", "groups": "g"},
        "no labels, h, dropped": {"data": "y", "groups": "h"},
    }
    made = {name: write_run(tmp_path / name, {"a": 1.0}, **how) for name, how in runs.items()}
    other_data = [(a, b) for a in made for b in made if a < b and runs[a]["data"] != runs[b]["data"]]
    same = {(a, b) for a, b in other_data if same_records(made[a], made[b])}
    assert same == {
        ("base", "dropped"),
        ("no labels, g", "no labels, g, dropped"),
        *((f"{name}, g", f"{name}, g, dropped") for name in regular),
    }
    (pair,) = compare_runs([Run("x", made["base"]), Run("y", made["dropped"])], np.random.default_rng(0)).pairs
    assert pair.method == "paired records"
    assert "matched by position" in pair.text


def test_targets_are_counted_where_both_have_several(tmp_path):
    made = {
        name: write_run(tmp_path / name, {"a": 1.0}, targets=targets, seed=seed)
        for name, targets, seed in (("1", (0,), 0), ("2", (0, 1), 0), ("1*", (0,), 1), ("2*", (0, 1), 1))
    }
    assert method_of(made["1"], made["1"]) == "paired records"
    assert method_of(made["2"], made["2"]) == "paired targets"
    assert method_of(made["1"], made["1*"]) == "unpaired records"
    assert method_of(made["2"], made["2*"]) == "unpaired targets"
    assert method_of(made["1"], made["2"]) == "unpaired records"


# Rows ----------------------------------------------------------------------------------------------------------------


def scores_of(run, attack, target=0):
    queries = run.results.queries(target)
    return run.results.scores(attack, target).score[queries], run.results.members(target)[queries]


def test_paired_rows_are_those_of_compare(run):
    first, other = run("first", {"a": 1.5, "b": 1.0}), run("other", {"a": 1.0, "b": 1.0}, luck=1)
    found = compare_runs([first, other], rng(), fprs=[0.05])
    (pair,) = found.pairs
    assert (pair.first, pair.other, pair.method) == ("first", "other", "paired records")
    assert [(row.label, row.fpr) for row in pair.rows] == [("a", None), ("a", 0.05), ("b", None), ("b", 0.05)]
    draws = rng()
    for row in pair.rows:
        (one, members), (two, _) = scores_of(first, row.label), scores_of(other, row.label)
        rocs = [roc_curve(scores, members) for scores in (one, two)]
        if row.fpr is None:
            twin = compare_auc(two, one, members)
            values, ends = [roc.auc for roc in rocs], [auc_interval(roc) for roc in rocs]
        else:
            twin = compare(two, one, members, row.fpr, draws)
            values, ends = [roc.tpr_at(row.fpr).tpr for roc in rocs], [tpr_interval(roc, row.fpr) for roc in rocs]
        assert row.change == twin
        assert [row.first.value, row.other.value] == values
        assert [row.first.interval, row.other.interval] == ends
        assert row.change.difference == pytest.approx(values[1] - values[0])
    np.testing.assert_array_equal(
        [row.p_adjusted for row in pair.rows], holm([row.change.p_value for row in pair.rows])
    )


def test_rows_of_several_targets_are_paired_by_target(run):
    targets = (0, 1, 2, 3)
    first, other = run("first", {"a": 1.5}, targets=targets), run("other", {"a": 1.2}, targets=targets, luck=1)
    (pair,) = compare_runs([first, other], rng(), fprs=[0.05]).pairs
    assert pair.method == "paired targets"
    for row in pair.rows:
        values = []
        for side in (first, other):
            rocs = [roc_curve(*scores_of(side, "a", target)) for target in targets]
            values.append([roc.auc if row.fpr is None else roc.tpr_at(row.fpr).tpr for roc in rocs])
        assert row.change.p_value == pytest.approx(stats.ttest_rel(values[1], values[0]).pvalue, rel=1e-9)
        assert row.first.interval == over_targets(values[0], in_turn=True)
        assert row.other.value == pytest.approx(np.mean(values[1]))


def test_unpaired_rows_use_the_intervals_that_are_shown(run):
    first, other = run("first", {"a": 1.5}), run("other", {"a": 1.0}, seed=1, points=900)
    (pair,) = compare_runs([first, other], rng(), fprs=[0.05]).pairs
    assert pair.method == "unpaired records"
    assert [row.change for row in pair.rows] == [unpaired(row.first, row.other) for row in pair.rows]


def test_one_target_against_several_is_about_these_targets(run):
    first, other = run("first", {"a": 1.5}), run("other", {"a": 1.0}, targets=(0, 1))
    (pair,) = compare_runs([first, other], rng(), fprs=[0.05]).pairs
    assert pair.method == "unpaired records"
    row = pair.rows[0]
    ends = [auc_interval(roc_curve(*scores_of(other, "a", target))) for target in (0, 1)]
    low, high = np.mean([end.low for end in ends]), np.mean([end.high for end in ends])
    assert row.change == unpaired(row.first, Measured(row.other.value, Interval(low, high, 0.95)))


def test_unpaired_targets_are_welch_s(run):
    first, other = run("first", {"a": 1.5}, targets=(0, 1, 2)), run("other", {"a": 1.0}, targets=(0, 1), seed=1)
    (pair,) = compare_runs([first, other], rng()).pairs
    assert pair.method == "unpaired targets"
    values = [
        np.array([roc_curve(*scores_of(side, "a", target)).auc for target in side.results.targets])
        for side in (first, other)
    ]
    assert pair.rows[0].change == unpaired_over_targets(*values)


def test_attacks_of_one_run_are_paired_and_compared_with_the_first(run):
    only = run("only", {"a": 1.0, "b": 1.5, "c": 0.5})
    found = compare_attacks(only, ["b", "a", "c"], rng(), [0.05])
    assert [(pair.first, pair.other, pair.method) for pair in found.pairs] == [
        ("b", "a", "paired records"),
        ("b", "c", "paired records"),
    ]
    assert [row.label for pair in found.pairs for row in pair.rows] == ["only"] * 4
    (one, members), (two, _) = scores_of(only, "b"), scores_of(only, "a")
    assert found.pairs[0].rows[0].change == compare_auc(two, one, members)
    together = [row.change.p_value for pair in found.pairs for row in pair.rows]
    np.testing.assert_array_equal([row.p_adjusted for pair in found.pairs for row in pair.rows], holm(together))


def test_three_runs_are_compared_with_the_first_on_the_attacks_in_common(run):
    runs = [run("x", {"a": 1.0, "b": 1.0}), run("y", {"b": 1.0, "c": 1.0}, luck=1), run("z", {"c": 0, "b": 0}, seed=1)]
    found = compare_runs(runs, rng())
    assert [(pair.first, pair.other, pair.method) for pair in found.pairs] == [
        ("x", "y", "paired records"),
        ("x", "z", "unpaired records"),
    ]
    assert {row.label for pair in found.pairs for row in pair.rows} == {"b"}
    assert found.fprs == (0.01,)  # 0.001 is not resolved


# In words ------------------------------------------------------------------------------------------------------------


def test_the_sentence_is_about_the_attack_that_finds_most_on_both_sides(run):
    first = run("before", {"weak": 0.5, "strong": 3.0})
    other = run("after", {"weak": 0.5, "strong": 1.0}, luck=1)
    (pair,) = compare_runs([first, other], rng(), fprs=[0.05, 0.01]).pairs
    assert (pair.chief.label, pair.chief.fpr) == ("strong", 0.05)
    change = pair.chief.change
    size, near, far = (abs(100 * value) for value in (change.difference, change.high, change.low))
    assert pair.text == (
        f"In after strong finds {size:.1f} points fewer ({near:.1f} to {far:.1f}) of the members at 5 % FPR than in "
        "before, p < 0.001. Attacks shown to find fewer: 1 of 2; more: 0. "
        "Shown to have a lower AUC: 1 of 2; a higher one: 0."
    )


def test_what_is_not_shown_is_not_claimed(run):
    only = run("only", {"a": 1.0, "b": 1.0})
    (pair,) = compare_attacks(only, ["a", "b"], rng(), [0.05]).pairs
    assert pair.text.startswith("No difference was shown: b finds ")
    assert " to +" in pair.text
    same = compare_runs([Run("x", only.results), Run("y", only.results)], rng(), ["a"]).pairs[0]
    assert same.text == "No difference was shown: in y a finds as many of the members at 1 % FPR as in x, p = 1."


def test_of_several_attacks_the_best_is_the_one_that_shows_nothing(run):
    """The weak one differs and the strong one does not: the sentence speaks of the strong one only."""
    first, other = run("x", {"weak": 2.5, "strong": 6.0}), run("y", {"weak": 0.0, "strong": 6.0}, luck=1)
    (pair,) = compare_runs([first, other], rng(), fprs=[0.05]).pairs
    assert pair.text.startswith("No difference was shown by the best attack: in y strong finds ")
    assert "Attacks shown to find fewer: 1 of 2" in pair.text


def test_other_data_are_named(run):
    first, other = run("x", {"a": 1.0}, data="0" * 64), run("y", {"a": 1.0}, luck=1, data="1" * 64)
    assert (
        compare_runs([first, other], rng())
        .pairs[0]
        .text.endswith(" The two runs use different data, which may explain the difference.")
    )
    assert "different data" not in compare_runs([first, Run("z", first.results)], rng()).pairs[0].text


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"targets": (0, 1)}, {"targets": (0, 1), "seed": 3}])
def test_the_other_way_round_is_the_same_with_the_other_sign(run, options):
    targets = {"targets": options.get("targets", (0,))}
    first, other = run("x", {"a": 3.0}, **targets), run("y", {"a": 0.5}, luck=1, **options)
    one, two = (compare_runs(pair, rng(), fprs=[0.05]).pairs[0] for pair in ([first, other], [other, first]))
    for row, swapped in zip(one.rows, two.rows, strict=True):
        assert row.change.low == pytest.approx(-swapped.change.high, abs=1e-12)
        assert row.change.high == pytest.approx(-swapped.change.low, abs=1e-12)
        assert row.change.p_value == pytest.approx(swapped.change.p_value, rel=1e-9)


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("targets", [(0,), (0, 1)])
def test_no_difference_of_rates_is_beyond_1(run, seed, targets):
    first = run("x", {"a": 40.0}, targets=targets, points=400)
    other = run("y", {"a": -1.0}, targets=targets, points=400, luck=1, seed=seed)
    for row in compare_runs([first, other], rng(), fprs=[0.1]).pairs[0].rows:
        assert -1 <= row.change.low <= row.change.difference <= row.change.high <= 1


def test_too_few_non_members_for_any_rate_leave_the_auc(run):
    few = {"points": 120}
    first, other = run("x", {"a": 3.0}, **few), run("y", {"a": 0.0}, luck=1, **few)
    found = compare_runs([first, other], rng())
    assert found.fprs == ()
    assert found.pairs[0].text.startswith("In y a has an AUC ")
    assert " points lower (" in found.pairs[0].text


def test_p_values_in_words():
    assert [p_words(p) for p in (1.0, 0.2, 0.0341, 0.0009)] == ["p = 1", "p = 0.2", "p = 0.034", "p < 0.001"]


def test_json_has_every_row(run):
    first, other = run("x", {"a": 1.0}), run("y", {"a": 0.5}, luck=1)
    found = compare_runs([first, other], rng())
    contents = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [entry["name"] for entry in contents["runs"]] == ["x", "y"]
    assert contents["compared"] == "runs"
    (pair,) = contents["pairs"]
    assert pair["text"] == found.pairs[0].text
    for row, shown in zip(found.pairs[0].rows, pair["rows"], strict=True):
        assert shown["change"]["difference"] == row.change.difference
        assert (shown["p_adjusted"], shown["metric"]) == (row.p_adjusted, "auc" if row.fpr is None else "tpr")
        assert shown["first"]["value"] == row.first.value


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compared", "says"),
    [
        (lambda a, b: compare_runs([a], rng()), "give two, or one and two attacks"),
        (lambda a, b: compare_runs([a, a], rng()), "two runs have the same name"),
        (lambda a, b: compare_runs([a, b], rng()), "no attack in common .x has a, b; y has c"),
        (lambda a, b: compare_runs([a, b], rng(), ["a"]), "'a' is not among the results in .*y: take one of c"),
        (lambda a, b: compare_attacks(a, ["a"], rng()), "give a second run, or two attacks of a, b"),
        (lambda a, b: compare_attacks(a, ["a", "a"], rng()), "attack 'a' was given twice"),
        (lambda a, b: compare_attacks(a, ["a", "b"], rng(), [0.001]), r"0.001 needs 1,000 .* target 0 of x has \d{3}:"),
        (lambda a, b: compare_attacks(a, ["a", "b"], rng(), [1.5]), "rate is 1.5"),
        (lambda a, b: compare_attacks(a, ["a", "b"], rng(), None, 1.0), "confidence is 1.0"),
    ],
)
def test_what_cannot_be_compared_is_refused(compared, says, run):
    with pytest.raises(PlmiaError, match=says):
        compared(run("x", {"a": 1.0, "b": 1.0}), run("y", {"c": 1.0}))


def test_people_are_not_compared_with_records(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    groups = np.arange(400) // 2
    half = (rng.random((4, 200)) < 0.5)[:, groups]
    matrix = np.stack([half, ~half], axis=1).reshape(8, 400)
    values = (rng.normal(size=(8, 400, 1)) + matrix[:, :, None]).astype(np.float32)
    signals = Signals(values, MembershipDesign(matrix), groups=groups)
    runs = []
    for unit in ("group", "record"):
        run_attacks(signals, [ATTACKS["rmia"]], [0], Setup(population=40, unit=unit), tmp_path / unit)
        runs.append(Run(unit, SavedRun(tmp_path / unit)))
    with pytest.raises(PlmiaError, match="group judges people and record judges records"):
        compare_runs(runs, np.random.default_rng(0))
    same = compare_runs([runs[0], Run("again", runs[0].results)], np.random.default_rng(0))
    assert same.pairs[0].heading == "again against group (paired: the same people)"
