"""The verdict in words, and which attack it speaks of."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plmia import ATTACKS, Setup, attack_targets
from plmia.data.designs import MembershipDesign
from plmia.errors import Note
from plmia.evaluation.intervals import Interval, tpr_interval
from plmia.evaluation.metrics import roc_curve
from plmia.evaluation.records import Naming, min_named
from plmia.results.summary import assess
from plmia.results.verdict import Evidence, gather_evidence, strongest
from plmia.results.wording import Grade, Status
from plmia.signals.signals import Signals

Simulate = Callable[..., Signals]


def _assessments(signals: Signals, targets: list[int], names: list[str]) -> dict[str, Any]:
    attacks = [ATTACKS[name] for name in names]
    groups: dict[str, Any] = {name: [] for name in names}
    for result in attack_targets(signals, attacks, targets, Setup()):
        groups[result.scores.attack].append(assess(result, len(names) * len(targets)))
    return groups


def evidence_of(low: float, high: float, fpr: float = 0.01, **options: Any) -> Evidence:
    return Evidence("pl-mia", fpr, (low + high) / 2, Interval(low, high, 0.95), 0, 1, 1, **options)


def test_the_sentence_says_rate_attack_share_and_interval() -> None:
    verdict = Evidence("pl-mia", 0.001, 0.091, Interval(0.087, 0.0951, 0.95), 412, 1, 1, members=1000)
    assert verdict.verdict().text == (
        "A leak was shown (severe): at a false-positive rate of 0.1 %, pl-mia identifies 9.1 % of the training records "
        "(95 % CI 8.7 to 9.5 %, 87 to 95 of 1,000). 412 individual records can be named as members; at most 5 % of the "
        "names are expected to be wrong (false discovery rate)."
    )
    assert verdict.verdict().leak_shown


def test_no_more_than_guessing_is_called_no_leak() -> None:
    verdict = evidence_of(0.006, 0.02)
    assert verdict.verdict().status == "no_leak_shown"
    assert verdict.verdict().text.startswith("No leak was shown: at a false-positive rate of 1 %")
    assert "Guessing finds 1 %." in verdict.verdict().text
    naming = Naming(0.05, 985, 762, 253, 64)
    small = evidence_of(0.06, 0.2, unnamed=naming)
    assert "individual record" not in small.verdict().text, "a note says why"
    assert (unnamed := small.verdict().unnamed) is not None
    assert unnamed.text == str(naming)
    assert (
        "1 individual record can be named as a member;"
        in Evidence("rmia", 0.01, 0.1, Interval(0.06, 0.2, 0.95), 1, 1, 1).verdict().text
    )


CAUTION = Note("unlike-references", "caution", "The target is unlike its references")
INVALID = Note("members-swapped", "invalid", "Members are swapped")
INFO = Note("groups", "info", "There are groups")


@pytest.mark.parametrize(
    ("low", "notes", "status"),
    [
        (0.5, [], "leak"),
        (0.5, [INFO], "leak"),
        (0.5, [CAUTION], "leak"),
        (0.5, [CAUTION, INVALID], "invalid"),
        (0.005, [], "no_leak_shown"),
        (0.005, [INFO], "no_leak_shown"),
        (0.005, [INFO, CAUTION], "inconclusive"),
        (0.005, [INVALID], "invalid"),
    ],
)
def test_the_status_follows_from_the_numbers_and_the_notes(low: float, notes: list[Note], status: Status) -> None:
    verdict = evidence_of(low, low + 0.02).verdict(notes)
    assert verdict.status == status
    assert (verdict.grade is None) == (status != "leak")
    assert verdict.leak_shown == (status == "leak")
    if status in ("inconclusive", "invalid"):
        worst = next(note for note in notes if note.code == verdict.doubts[0])
        assert worst.severity == ("invalid" if status == "invalid" else "caution")
        assert worst.text[1:] in verdict.text
    quoted = status in ("leak", "no_leak_shown")
    assert ("identifies" in verdict.text) == quoted, "numbers that mean little are not quoted"
    assert len(verdict.text) < 300


@pytest.mark.parametrize(
    ("evidence", "grade"),
    [
        (evidence_of(0.008, 0.028, auc=0.52, members=1000), "barely measurable"),
        (evidence_of(0.015, 0.03, members=1000), "barely measurable"),
        (evidence_of(0.021, 0.03, members=1000), "moderate"),
        (evidence_of(0.1, 0.3, members=1000), "severe"),
        (evidence_of(0.99, 1.0, members=100), "severe"),
        (evidence_of(0.015, 0.02, members=20_100), "moderate"),  # 100 people beyond chance
        (evidence_of(0.015, 0.02, members=201_000), "severe"),  # 1,000 people
        (evidence_of(0.001, 0.02, auc=0.81, members=1000), "severe"),
        (evidence_of(0.005, 0.02, members=1_000_000), None),  # not shown at all
    ],
)
def test_a_leak_is_graded_by_the_least_that_it_is_shown_to_be(evidence: Evidence, grade: Grade | None) -> None:
    verdict = evidence.verdict()
    assert verdict.grade == grade
    assert (grade is None) or f"({grade})" in verdict.headline


def test_an_interval_that_excludes_nothing_worrying_makes_no_clean_verdict() -> None:
    def codes(evidence: Evidence) -> list[str]:
        return [note.code for note in evidence.notes()]

    assert codes(evidence_of(0.005, 0.059)) == []
    assert codes(evidence_of(0.005, 0.061)) == ["wide-interval"]
    assert codes(evidence_of(0.02, 0.5)) == [], "a shown leak needs no excluding"
    wide = evidence_of(0.005, 0.061)
    assert wide.verdict(wide.notes()).status == "inconclusive"
    none = Evidence("pl-mia", None, None, None, 0, 1, 1)
    assert codes(none) == ["few-non-members"]
    assert none.verdict(none.notes()).status == "inconclusive"
    assert codes(evidence_of(0.005, 0.02, swapped=(0,))) == ["members-swapped"]


def test_swapped_members_are_noticed_from_the_scores_alone(simulate_signals: Simulate) -> None:
    signals = simulate_signals(1, points=2_000, shift=2.0)
    matrix = signals.design.matrix.copy()
    matrix[:2] = ~matrix[:2]  # the target and its partner
    inverted = Signals(signals.values, MembershipDesign(matrix))
    verdict = gather_evidence(_assessments(inverted, [0], ["attack-p", "lira", "rmia"]))
    assert verdict.swapped == (0,)
    assert verdict.verdict(verdict.notes()).status == "invalid"
    assert not gather_evidence(_assessments(signals, [0], ["attack-p", "lira", "rmia"])).swapped
    both = gather_evidence(_assessments(inverted, [0, 4], ["attack-p", "lira", "rmia"]))
    assert both.swapped == (0,), "another target's leak does not hide it"
    assert both.verdict(both.notes()).status == "invalid"


def test_the_best_attack_is_the_one_that_finds_most(simulate_signals: Simulate) -> None:
    signals = simulate_signals(3, models=12, points=14_000, shift=2.5)
    groups = _assessments(signals, [0], ["attack-p", "rmia", "lira"])
    verdict = gather_evidence(groups)
    found = {name: group[0].metrics.tpr_at(0.001).tpr for name, group in groups.items()}
    assert verdict.fpr == 0.001
    assert verdict.tpr == max(found.values())
    assert found[verdict.attack] == verdict.tpr
    assert ", for all attacks at once)" in verdict.verdict().text
    assert verdict.auc_attack in groups
    assert "at once" not in gather_evidence({"rmia": groups["rmia"]}).verdict().text
    joint = groups[verdict.attack][0].summary.tpr[0.001].joint
    assert verdict.interval == Interval(joint.low, joint.high, 0.95)
    assert verdict.exposed == groups[verdict.attack][0].summary.fdr[0.05].n_discoveries


def test_equal_attacks_go_to_the_refined_one(simulate_signals: Simulate) -> None:
    """lira and pl-mia rank points alike, so they tie; the calibrated one is named."""
    groups = _assessments(simulate_signals(1, points=2_000), [0], ["lira", "pl-mia"])
    assert gather_evidence(groups).attack == "pl-mia"


def test_joint_intervals_are_wider_and_means_over_targets_lie_inside_theirs(simulate_signals: Simulate) -> None:
    groups = _assessments(simulate_signals(2, points=2_000, shift=2.0), [0, 2, 4], ["lira", "rmia"])
    point = groups["lira"][0].summary.tpr[0.01]
    assert point.joint.low < point.at_nominal.low < point.at_nominal.high < point.joint.high
    verdict = gather_evidence(groups)
    assert verdict.interval is not None
    assert verdict.tpr in verdict.interval
    assert "on average over 3 targets" in verdict.verdict().text


def test_with_too_few_non_members_no_share_is_stated(simulate_signals: Simulate) -> None:
    verdict = gather_evidence(_assessments(simulate_signals(4, points=120, shift=0.0), [0], ["lira"]))
    assert verdict.tpr is None
    assert not verdict.verdict().leak_shown
    assert verdict.verdict().interval is None


def test_what_the_note_on_few_non_members_recommends_resolves_the_rate(simulate_signals: Simulate) -> None:
    def evidence(points: int, **setup: Any) -> Evidence:
        results = attack_targets(simulate_signals(4, points=points, shift=0.0), [ATTACKS["lira"]], [0], Setup(**setup))
        return gather_evidence({"lira": [assess(result, 1) for result in results]})

    (note,) = [note for note in evidence(260).notes() if note.code == "few-non-members"]
    numbers = re.search(r"Only (\d+) .* needs 100\. .* at most (\d+) \(now (\d+)\), or .* about (\d+) rec", note.text)
    assert numbers is not None, note.text
    evaluated, population, now, records = map(int, numbers.groups())
    assert evidence(260).non_members == evaluated < 100
    assert evaluated + now == 100 + population
    assert evidence(260, population=population).fpr == 0.01
    assert evidence(260, population=population + 1).fpr is None
    assert evidence(records).fpr == 0.01
    (note,) = [note for note in evidence(120).notes() if note.code == "few-non-members"]
    assert "population" not in note.text, "none leaves 100 non-members"
    (note,) = [note for note in evidence(1200, population=550).notes() if note.code == "few-non-members"]
    assert "about" not in note.text, "there are enough records"


def test_a_wide_interval_names_its_multiple_of_chance() -> None:
    (note,) = evidence_of(0.005, 0.093).notes()
    assert "9.3 times chance" in note.text


def test_an_area_beyond_guessing_is_a_leak_where_no_share_can_be_stated(simulate_signals: Simulate) -> None:
    verdict = gather_evidence(_assessments(simulate_signals(4, points=160, shift=4.0), [0], ["lira"]))
    assert verdict.tpr is None
    assert verdict.verdict().leak_shown
    assert f"AUC at least {100 * verdict.auc:.1f} %" in verdict.verdict().text
    assert "identifies" not in verdict.verdict().text


def test_a_leak_that_only_the_area_shows_says_so(simulate_signals: Simulate) -> None:
    verdict = gather_evidence(_assessments(simulate_signals(4, points=400, shift=2.0), [0], ["lira"]))
    assert verdict.fpr == 0.01
    assert verdict.interval is not None
    assert verdict.interval.low <= 0.01
    assert verdict.verdict().leak_shown
    assert f"AUC at least {100 * verdict.auc:.1f} %" in verdict.verdict().text


def test_many_targets_are_averaged(simulate_signals: Simulate) -> None:
    """Each target alone says little at this rate, their mean says much."""
    groups = _assessments(simulate_signals(6, models=24, points=2_000, shift=2.5), list(range(12)), ["lira"])
    verdict = gather_evidence(groups)
    joint = [a.summary.tpr[0.01].joint for a in groups["lira"]]
    assert verdict.interval is not None
    assert verdict.interval.high - verdict.interval.low < 0.5 * (joint[0].high - joint[0].low)


def test_a_larger_population_is_advised_only_if_it_names_those_who_stand_out() -> None:
    naming = Naming(0.05, 985, 762, 253, 64)
    larger = naming.larger
    assert larger is not None
    assert 253 < larger <= (762 + 253) // 2
    assert min_named(2000 - larger, larger, 0.05) <= 64 < min_named(2000 - larger + 1, larger - 1, 0.05)
    assert f"population of {larger}" in str(naming)
    assert "(253)" in str(naming)


@pytest.mark.parametrize("standing", [0, 1, 5])
def test_no_population_is_advised_where_none_helps(standing: int) -> None:
    naming = Naming(0.05, 985, 762, 253, standing)
    assert naming.larger is None
    assert "population of" not in str(naming)


def test_of_few_records_no_impossible_number_is_asked() -> None:
    naming = Naming(0.05, 15, 8, 7, 3)
    assert naming.least > naming.evaluated
    assert "(23 evaluated records)" in str(naming)
    assert str(naming.least) not in str(naming)


def test_equals_go_to_the_last_and_before_that_to_the_larger_second_value() -> None:
    found = {"a": (1.0, 0.7), "b": (1.0, 0.9), "c": (1.0, 0.9), "d": (0.5, 1.0)}
    assert strongest(found, found.__getitem__) == "c"


@pytest.mark.parametrize("attacks", [1, 9])
def test_a_lower_end_of_0_says_how_many_non_members_would_bound_the_threshold(attacks: int) -> None:
    """From that number on the lower end of the interval of a perfect attack is above 0, and below it is 0."""
    found = Evidence("a", 0.01, 0.5, Interval(0.0, 0.9, 0.95), 0, 1, 1, auc=0.8, attacks=attacks, non_members=150)
    needed = found.unbounded
    assert needed is not None
    assert [(n.severity, f"{needed:,} would" in n.text) for n in found.notes() if n.code == "threshold-unbounded"] == [
        ("info", True)
    ]
    for n in (needed - 1, needed):
        members = np.arange(n + 200) < 200
        roc = roc_curve(np.where(members, 1.0, 0.0) + np.linspace(0, 0.5, len(members)), members)
        assert (tpr_interval(roc, 0.01, 1 - 0.05 / attacks).low > 0) == (n >= needed)
        # With enough non-members, a lower end of 0 has other reasons.
        assert (replace(found, non_members=n).unbounded is None) == (n >= needed)
    for other in ({"interval": Interval(0.1, 0.9, 0.95)}, {"tpr": 0.01, "chance": 0.01}, {"targets": 9}):
        assert replace(found, **other).unbounded is None
