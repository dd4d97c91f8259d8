"""Attacks as values: what cannot work is refused when it is put together, in one sentence."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest

from plmia import (
    Attack,
    BinaryVote,
    CauchyCombination,
    FixedVariance,
    GaussianLR,
    Loss,
    MembershipDesign,
    Setup,
    Signals,
    attack_targets,
    read_signals,
)
from plmia.attacks.attack import KNOWN
from plmia.attacks.calibration import FreshPopulation, MeanOfViews, VotesOfViews
from plmia.errors import AttackError, PopulationError, ReferencesError, SignalsError
from plmia.reporting import write_report
from plmia.results.folder import run_attacks
from plmia.results.result import About, SignalsAbout
from plmia.results.saved import SavedRun
from plmia.results.summary import Summary


def signals(n_models=8, n_points=80, seed=0):
    rng = np.random.default_rng(seed)
    half = rng.random((n_models // 2, n_points)) < 0.5
    matrix = np.stack([half, ~half], axis=1).reshape(n_models, n_points)
    return Signals(rng.normal(size=(n_models, n_points, 1)).astype(np.float32), MembershipDesign(matrix))


@pytest.mark.parametrize(
    "parts",
    [
        {"calibration": BinaryVote},
        {"views": MeanOfViews},
        {"population": FreshPopulation},
        {"statistic": Loss},
        {"calibration": "votes"},
        {"population": None},
    ],
    ids=str,
)
def test_a_part_of_the_wrong_kind_is_named(parts):
    whole = {"statistic": Loss(), "calibration": BinaryVote()} | parts
    (name,) = parts
    with pytest.raises(AttackError, match=f"the {name} of mine"):
        Attack("mine", **whole)


@pytest.mark.parametrize(
    "name",
    [
        *("", "x" * 81, None, 5),
        *("a/b", "a\\b", "a:b", "a\nb", "a\tb", "a\x00", "\ud800", "\u202eabc"),
        *("=1+1", "+1", "-1", "@a", ".", "..", " =1", "a "),
    ],
    ids=ascii,
)
def test_a_name_that_some_file_cannot_hold_is_refused(name):
    with pytest.raises(AttackError, match="name"):
        Attack(name, Loss(), BinaryVote())


@pytest.mark.parametrize("name", ["x" * 80, "lira-2", "Ma méthode", 'it\'s "mine" <b>, v2.0 = β'])
def test_other_names_go_through_every_file(name, tmp_path):
    run_attacks(signals(), [Attack(name, GaussianLR(), CauchyCombination())], [0], Setup(), tmp_path)
    write_report(tmp_path)
    with (tmp_path / "figures" / "attacks.csv").open(encoding="utf-8", newline="") as file:
        assert [row["attack"] for row in csv.DictReader(file)] == [name]
    assert SavedRun(tmp_path).records(name, 0).index.size > 0


def test_votes_over_views_cannot_win_by_more_than_half():
    Attack("mine", Loss(), BinaryVote(0.4), VotesOfViews())
    with pytest.raises(AttackError, match=r"take a gamma below 0\.5"):
        Attack("mine", Loss(), BinaryVote(math.log(2)), VotesOfViews())


@pytest.mark.parametrize("gamma", [math.inf, math.nan, -0.1])
def test_gamma_is_a_finite_number(gamma):
    with pytest.raises(AttackError, match="gamma"):
        BinaryVote(gamma)


def test_a_mode_that_does_not_exist_is_refused():
    with pytest.raises(AttackError, match=r"'Offline'.*online or offline"):
        list(attack_targets(signals(), [Attack("mine", Loss(), BinaryVote())], [0], Setup(mode="Offline")))


def test_one_reference_a_side_has_no_variance_to_fix():
    attack = Attack("mine", GaussianLR(FixedVariance()), CauchyCombination())
    with pytest.raises(ReferencesError, match=r"\b2 .* references"):
        list(attack_targets(signals(), [attack], [0], Setup(references=2)))


def test_too_few_non_members_are_counted():
    few = signals(n_points=6)
    matrix = few.design.matrix.copy()
    matrix[0], matrix[1] = [1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1]
    with pytest.raises(PopulationError, match="target 0 has 1 non-members, 4 are needed"):
        list(
            attack_targets(
                Signals(few.values, MembershipDesign(matrix)), [Attack("a", Loss(), BinaryVote())], [0], Setup()
            )
        )


def test_a_path_may_be_text(tmp_path):
    given = signals()
    np.savez(tmp_path / "s.npz", signals=given.values, membership=given.design.matrix)
    assert read_signals(str(tmp_path / "s.npz")).n_models == 8
    with pytest.raises(SignalsError, match="there is no scale 'log'"):
        read_signals(tmp_path / "s.npz", "log")


def test_own_calibrations_that_fail_are_named(tmp_path):
    class Broken(BinaryVote):
        def shared(self, query, population, size):
            raise RuntimeError("on purpose")

    Broken.__module__ = "mine"
    with pytest.raises(
        AttackError, match=r"attack mine does not run: RuntimeError: on purpose \(.*test_attack.py, line"
    ):
        list(attack_targets(signals(), [Attack("mine", Loss(), Broken())], [0], Setup()))


def test_a_rate_that_any_target_cannot_resolve_is_explained():
    summary = Summary(["mine"])
    wide = signals(n_points=400)
    matrix = wide.design.matrix.copy()
    matrix[2, :200], matrix[3, :200] = True, False  # target 2 has few non-members left
    data = Signals(wide.values, MembershipDesign(matrix))
    for result in attack_targets(data, [Attack("mine", Loss(), BinaryVote())], [0, 2], Setup()):
        summary.add(result)
    found = summary.result(About.of(data, [0, 2], Setup())).attacks["mine"].per_target
    fewest = min(entry.n_non_members for entry in found)
    (note,) = (note for note in summary.notes() if note.code == "rates-unresolved")
    assert note.text.startswith(f"{fewest:,} evaluated non-members")


def test_clipped_signals_are_told():
    summary = Summary(["mine"])
    for result in attack_targets(signals(), [Attack("mine", Loss(), BinaryVote())], [0], Setup()):
        summary.add(result)
    notes = summary.result(About(SignalsAbout(8, 80, 1, clipped=1234), "online", (0,), 0)).notes
    assert [note.text[:5] for note in notes if note.code == "clipped-probabilities"] == ["1,234"]


def test_an_attack_with_few_values_says_so():
    """Two values at all points, by one attack alone: info; by all attacks: a caution."""
    plain = signals(n_points=400)
    values = plain.values.copy()
    values[0] = np.sign(values[0])
    coarse = Signals(values, plain.design)
    loss, ratio = Attack("loss", Loss(), BinaryVote()), Attack("ratio", GaussianLR(), CauchyCombination())
    for attacks, severity in (([loss], "caution"), ([loss, ratio], "info")):
        summary = Summary([attack.name for attack in attacks])
        for result in attack_targets(coarse, attacks, [0], Setup()):
            summary.add(result)
        (note,) = (note for note in summary.notes() if note.code == "tied-scores")
        assert note.severity == severity
        assert "loss" in note.text
        assert "ratio" not in note.text


@pytest.mark.parametrize(("align", "code"), [("never", "unlike-references"), ("auto", "references-aligned")])
def test_the_target_that_is_unlike_is_named(align, code):
    plain = signals(n_models=24, n_points=600)
    values = plain.values.copy()
    values[2] += 50
    summary = Summary(["mine"], 2)
    for result in attack_targets(
        Signals(values, plain.design), [Attack("mine", Loss(), BinaryVote())], [0, 2], Setup(align=align)
    ):
        summary.add(result)
    notes = [note for note in summary.notes() if note.code in ("unlike-references", "references-aligned")]
    assert [note.code for note in notes] == [code]
    assert "target 2: " in notes[0].text.lower()


def test_only_the_gaussian_offline_law_of_the_paper_assumes_how_members_differ() -> None:
    found = {name for name, attack in KNOWN.items() if attack.statistic.assumes_member_law("offline")}
    assert found == {"pl-mia", "pl-mia-plus", "pl-mia-pooled"}
    assert not any(attack.statistic.assumes_member_law("online") for attack in KNOWN.values())
