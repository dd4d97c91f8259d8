"""The verdict in words, and which attack it speaks of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plmia import ATTACKS, Setup, attack_targets
from plmia.assessment import assess
from plmia.intervals import Interval
from plmia.records import Naming, least_named
from plmia.signals import Signals
from plmia.verdict import Verdict, reach_verdict, strongest

Simulate = Callable[..., Signals]


def _assessments(signals: Signals, targets: list[int], names: list[str]) -> dict[str, Any]:
    attacks = [ATTACKS[name] for name in names]
    groups: dict[str, Any] = {name: [] for name in names}
    for result in attack_targets(signals, attacks, targets, Setup()):
        groups[result.scores.attack].append(assess(result, len(names) * len(targets)))
    return groups


def test_the_sentence_reads_as_a_person_would_say_it() -> None:
    verdict = Verdict("pl-mia", 0.001, 0.091, Interval(0.087, 0.0951, 0.95), 412, 1, 1)
    assert str(verdict) == (
        "With at most 1 false accusation in 1,000 non-members, the best attack (pl-mia) identifies 9.1 % (8.7 to 9.5 "
        "%) of the training records; 412 records are named as members, of which at most 5 % are expected to be "
        "wrong."
    )
    assert verdict.leaks


def test_no_more_than_guessing_is_called_no_leak() -> None:
    verdict = Verdict("rmia", 0.01, 0.011, Interval(0.006, 0.02, 0.95), 0, 1, 1)
    assert not verdict.leaks
    assert str(verdict).startswith("No leak was shown: guessing would find 1 %. With at most 1 false accusation in 100")
    assert "; no record is named as a member at a false discovery rate of 5 %." in str(verdict)
    naming = Naming(0.05, 985, 762, 253, 64)
    small = Verdict("rmia", 0.01, 0.1, Interval(0.06, 0.2, 0.95), 0, 138, 1, unnamed=naming)
    assert str(small).endswith(
        "; single records cannot be named with this split, which does not mean that nobody is exposed."
    )
    assert small.to_json()["unnamed"]["text"] == str(naming)
    assert "; 1 record is named as a member at" in str(Verdict("rmia", 0.01, 0.1, Interval(0.06, 0.2, 0.95), 1, 1, 1))


def test_the_best_attack_is_the_one_that_finds_most(simulate_signals: Simulate) -> None:
    signals = simulate_signals(3, models=12, points=14_000, shift=2.5)
    groups = _assessments(signals, [0], ["attack-p", "rmia", "lira"])
    verdict = reach_verdict(groups)
    found = {name: group[0].metrics.tpr_at(0.001).tpr for name, group in groups.items()}
    assert verdict.fpr == 0.001
    assert verdict.tpr == max(found.values())
    assert found[verdict.attack] == verdict.tpr
    assert " %, for all attacks at once) of the training records" in str(verdict)
    assert "at once" not in str(reach_verdict({"rmia": groups["rmia"]}))
    joint = groups[verdict.attack][0].joint[0.001]
    assert verdict.interval == Interval(joint.low, joint.high, 0.95)
    assert verdict.exposed == groups[verdict.attack][0].exposures[1].n_discoveries


def test_equal_attacks_go_to_the_refined_one(simulate_signals: Simulate) -> None:
    """lira and pl-mia rank points alike, so they tie; the calibrated one is named."""
    groups = _assessments(simulate_signals(1, points=2_000), [0], ["lira", "pl-mia"])
    assert reach_verdict(groups).attack == "pl-mia"


def test_joint_intervals_are_wider_and_means_over_targets_lie_inside_theirs(simulate_signals: Simulate) -> None:
    groups = _assessments(simulate_signals(2, points=2_000, shift=2.0), [0, 2, 4], ["lira", "rmia"])
    one = groups["lira"][0]
    assert one.joint[0.01].low < one.at_nominal[0.01].low < one.at_nominal[0.01].high < one.joint[0.01].high
    verdict = reach_verdict(groups)
    assert verdict.interval is not None
    assert verdict.tpr in verdict.interval
    assert "on average over 3 targets" in str(verdict)


def test_with_too_few_non_members_no_share_is_stated(simulate_signals: Simulate) -> None:
    verdict = reach_verdict(_assessments(simulate_signals(4, points=120, shift=0.0), [0], ["lira"]))
    assert verdict.tpr is None
    assert not verdict.leaks
    assert str(verdict).startswith("No leak was shown; too few non-members were evaluated")
    assert verdict.to_json()["interval"] is None


def test_what_is_written_is_what_is_said(simulate_signals: Simulate) -> None:
    verdict = reach_verdict(_assessments(simulate_signals(5, points=1_000), [0], ["lira"]))
    written = verdict.to_json()
    assert written["text"] == str(verdict)
    assert written["tpr"] == pytest.approx(verdict.tpr)


def test_an_area_beyond_guessing_is_a_leak_where_no_share_can_be_stated(simulate_signals: Simulate) -> None:
    verdict = reach_verdict(_assessments(simulate_signals(4, points=160, shift=4.0), [0], ["lira"]))
    assert verdict.tpr is None
    assert verdict.leaks
    assert str(verdict).startswith(
        f"A leak was shown: members score above non-members (AUC at least {100 * verdict.auc:.1f} %, guessing is 50 %)"
    )
    assert "; too few non-members were evaluated" in str(verdict)


def test_a_leak_that_only_the_area_shows_says_so(simulate_signals: Simulate) -> None:
    verdict = reach_verdict(_assessments(simulate_signals(4, points=400, shift=2.0), [0], ["lira"]))
    assert verdict.fpr == 0.01
    assert verdict.interval is not None
    assert verdict.interval.low <= 0.01
    assert verdict.leaks
    assert str(verdict).startswith("A leak was shown: members score above non-members")


def test_many_targets_are_averaged(simulate_signals: Simulate) -> None:
    """Each target alone says little at this rate, their mean says much."""
    groups = _assessments(simulate_signals(6, models=24, points=2_000, shift=2.5), list(range(12)), ["lira"])
    verdict = reach_verdict(groups)
    joint = [a.joint[0.01] for a in groups["lira"]]
    assert verdict.interval is not None
    assert verdict.interval.high - verdict.interval.low < 0.5 * (joint[0].high - joint[0].low)


def test_a_larger_population_is_advised_only_if_it_names_those_who_stand_out() -> None:
    naming = Naming(0.05, 985, 762, 253, 64)
    larger = naming.larger
    assert larger is not None
    assert 253 < larger <= (762 + 253) // 2
    assert least_named(2000 - larger, larger, 0.05) <= 64 < least_named(2000 - larger + 1, larger - 1, 0.05)
    assert "names at least 138 of 1,747 evaluated records at once, or none" in str(naming)
    assert f"--population {larger} may change that, since it takes" in str(naming)


@pytest.mark.parametrize("standing", [0, 1, 5])
def test_no_population_is_advised_where_none_helps(standing: int) -> None:
    naming = Naming(0.05, 985, 762, 253, standing)
    assert naming.larger is None
    assert "--population" not in str(naming)
    assert "for a larger population to change that" in str(naming)
    assert ("none stands above every" in str(naming)) == (standing == 0)
    assert "only 0" not in str(naming)


def test_of_few_records_no_impossible_number_is_asked() -> None:
    naming = Naming(0.05, 15, 8, 7, 3)
    assert naming.least > naming.evaluated
    assert "a population of 7 can name none of 23 evaluated records" in str(naming)
    assert str(naming.least) not in str(naming)
    assert str(naming).endswith("; there are too few records for any population to change that.")


def test_equals_go_to_the_last_and_before_that_to_the_larger_second_value() -> None:
    found = {"a": (1.0, 0.7), "b": (1.0, 0.9), "c": (1.0, 0.9), "d": (0.5, 1.0)}
    assert strongest(found, found.__getitem__) == "c"
