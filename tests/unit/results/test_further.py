"""Further questions never cost a run its results, and never mix people who are judged in different ways."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import plmia
from plmia import Setup, attack_targets
from plmia.attacks.attack import ATTACKS
from plmia.data.arrays import BoolArray, IntArray
from plmia.data.designs import MembershipDesign
from plmia.errors import PlmiaError
from plmia.results.summary import assess
from plmia.signals.signals import Signals


def signals(members: BoolArray, groups: IntArray | None, seed: int = 0, shift: float = 1.5) -> Signals:
    """Signals of models with these members [models, records]."""
    values = np.random.default_rng(seed).normal(size=members.shape) + shift * members
    return Signals(values[:, :, None].astype(np.float32), MembershipDesign(members), groups=groups)


def pairs(models: int, units: int, seed: int = 0) -> BoolArray:
    """Complementary pairs [models, units]."""
    half = np.random.default_rng(seed).random((models // 2, units)) < 0.5
    return np.stack([half, ~half], axis=1).reshape(models, units)


def left_out(run: plmia.Audit) -> str:
    """Return why the models were not attacked in turn."""
    (text,) = (note.text for note in run.result.notes if note.code == "trainings-not-compared")
    return text


def test_a_model_with_too_few_references_does_not_stop_the_run(tmp_path: Path) -> None:
    """Without its pair, each of the four references has one pair and the target: too few for `lira`."""
    found = signals(pairs(6, 600)[[0, 2, 3, 4, 5]], None)
    run = plmia.score(found, tmp_path, attacks=["lira"], trainings=5, progress=False)
    assert run.result.trainings is None
    assert "2 OUT references" in left_out(run) or "2 IN references" in left_out(run)
    assert not (tmp_path / "trainings.csv").exists()


def test_references_that_split_groups_do_not_stop_the_run(tmp_path: Path) -> None:
    """The target trained on whole groups and is judged by people; the references cannot be."""
    groups = np.repeat(np.arange(300), 3)
    members = pairs(10, 900)
    members[:2] = pairs(2, 300, seed=1)[:, groups]
    run = plmia.score(signals(members, groups), tmp_path, attacks=["rmia"], trainings=8, progress=False)
    assert run.result.about.people
    assert "2 models trained on whole groups" in left_out(run)


def test_trainings_share_one_rate_that_every_population_resolves(tmp_path: Path) -> None:
    """In an exact design the models have different numbers of non-members; 97 of one are too few for 1 %."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(400), 3)
    exact = np.argsort(rng.random((8, 400)), axis=0) < 4
    members = np.concatenate([rng.random((1, 400)) < 0.5, exact])[:, groups]
    run = plmia.score(signals(members, groups), tmp_path, attacks=["rmia"], trainings=9, progress=False)
    assert run.result.trainings is not None
    assert run.result.trainings.trainings == 9
    assert run.result.trainings.fpr == 0.1


def test_least_named_counts_the_largest_range_of_sizes() -> None:
    """People of a common size have finer p-values than others, so fewer of them can be named at once."""
    size = np.random.default_rng(0).permutation(np.repeat([1, 2, 3], [5000, 500, 500]))
    groups = np.repeat(np.arange(6000), size)
    found = signals(pairs(10, 6000)[:, groups], groups, shift=3.0)
    (result,) = attack_targets(found, [ATTACKS["rmia"]], [0], Setup(population=1500))
    assert result.n_compared < result.n_finest < 1500
    named = assess(result).summary.fdr[0.05]
    assert named.n_discoveries >= named.least
    assert named.least == int(np.ceil(len(result.truth.queries) / (0.05 * (result.n_finest + 1))))


def test_an_unknown_unit_is_refused() -> None:
    """A misspelt unit does not choose one silently."""
    with pytest.raises(PlmiaError, match="'records'"):
        Setup(unit="records")  # type: ignore[arg-type]


def test_a_level_that_a_range_of_sizes_cannot_resolve_is_refused() -> None:
    """People are compared within ranges of sizes, so the whole population does not tell what can be resolved."""
    groups = np.repeat(np.arange(6000), np.repeat([1, 2, 3], [5000, 500, 500]))
    found = signals(pairs(10, 6000)[:, groups], groups)
    (result,) = attack_targets(found, [ATTACKS["rmia"]], [0], Setup(population=1500))
    assert result.n_compared < 999 < 1500
    rules = assess(result).summary.decisions
    assert "needs 999" in (rules["conformal"][0.001].refused or "")
    assert rules["conformal"][0.01].refused is None


def test_a_signal_that_is_not_a_confidence_has_no_accuracy(tmp_path: Path) -> None:
    """Only confidences say which answers are right."""
    plain = signals(pairs(10, 600), None)
    half = {"half": np.arange(600) % 2}
    for kind in ("confidence", "signal"):
        found = Signals(plain.values, plain.design, kind=kind)
        run = plmia.score(found, tmp_path / kind, attacks=["rmia"], by=half, progress=False)
        known = {group.accuracy_members is not None for group in run.result.subgroups[0].subgroups}
        assert known == {kind == "confidence"}


def test_the_gate_fails_if_one_subgroup_leaks(tmp_path: Path) -> None:
    """A fifth of the people leak: all together stay below the limit, the subgroup does not. Small values are merged."""
    n = 3000
    members = pairs(10, n)
    ward = np.array(["a", "b", "c", "d", "e"])[np.arange(n) % 5].astype(object)
    ward[:8] = ["rare", "rarer"] * 4
    values = np.random.default_rng(1).normal(size=members.shape) + 2.0 * (members & (ward == "e"))
    found = Signals(values[:, :, None].astype(np.float32), MembershipDesign(members))
    run = plmia.score(found, tmp_path, attacks=["rmia"], by={"ward": ward}, progress=False)
    limits = {"max_tpr": 0.5, "at_fpr": 0.1}
    assert plmia.gate(run, **limits).outcome == "pass"
    failed = plmia.gate(run, **limits, by=["ward"])
    assert failed.worst is not None
    assert (failed.outcome, failed.worst.subgroup) == ("fail", "ward = e")
    assert failed.to_json()["worst"]["subgroup"] == "ward = e"
    # The merged small values have too few non-members, which decides only where nothing else fails.
    lenient = plmia.gate(run, max_tpr=0.98, at_fpr=0.1, by=["ward"])
    assert lenient.outcome == "undecided"
    assert "other (2 values)" in lenient.text
    with pytest.raises(PlmiaError, match=r"'sex'.*known: ward"):
        plmia.gate(run, **limits, by=["sex"])
    with pytest.raises(PlmiaError, match="judge records, not groups"):
        plmia.gate(run, **limits, unit="group")
