"""Pilots of a plan: whether their references were trained like the target, and what their results say of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import plmia
from plmia.auditing.pilots import Budget, Source, standard_first
from plmia.data.designs import MembershipDesign
from plmia.errors import Note, PlmiaError
from plmia.signals.store import SignalStore
from plmia.training.recipes.named import recipe_from_json

MLP, SMALL, TREES = (
    recipe_from_json(about).to_json()
    for about in ({"recipe": "mlp"}, {"recipe": "mlp", "widths": [32, 16]}, {"recipe": "gbdt"})
)
Recipe = dict[str, Any] | None


@pytest.fixture
def opened(tmp_path: Path, simulate: Callable[..., Any]) -> Callable[..., Source]:
    """Open the store of an audit whose target and references have these recipes; ``given`` targets have no record."""
    made: list[Source] = []

    def make(target: Recipe, references: Recipe, given: bool = False) -> Source:
        arrays = simulate(0, models=10, points=300)
        about = {"data": "abc", "target": "digest" if given else "trained"} | ({"recipe": target} if target else {})
        if target and references != target:
            about["reference_recipe"] = references
        folder = tmp_path / f"run{len(made)}"
        store = SignalStore.create(folder / "signals", about, MembershipDesign(arrays["membership"]), ["identity"])
        own = {"given": True} if given else {"recipe": target} if target else {}
        store.append(range(10), arrays["signals"], [own, *[{"recipe": references} if references else {}] * 9])
        made.append(Source.open(folder, "auto", 1))
        return made[-1]

    return make


@pytest.mark.parametrize(
    ("recipes", "expected"), [((MLP, MLP), True), ((MLP, SMALL), False), ((MLP, TREES), False), ((None, None), None)]
)
def test_recipes_say_whether_references_were_trained_like_the_target(
    opened: Callable[..., Source], recipes: tuple[Recipe, Recipe], expected: bool | None
) -> None:
    source = opened(*recipes)
    assert source.like_target(0) is expected
    assert opened(*recipes, given=True).like_target(0) is expected
    # Model 3 is a reference: all others but model 0 were trained like it.
    assert source.like_target(3) is (None if expected is None else True)


def test_the_standard_comes_first_and_else_the_order_stays(opened: Callable[..., Source]) -> None:
    full, again, small, trees = opened(MLP, MLP), opened(MLP, MLP), opened(MLP, SMALL), opened(MLP, TREES)
    unknown = opened(None, None)
    assert standard_first([small, unknown, full, trees], 0) == [full, small, unknown, trees]
    assert standard_first([again, small, full], 0) == [again, full, small]
    assert standard_first([trees, unknown, small], 0) == [trees, unknown, small]


def test_cautions_on_references_are_read_by_code_and_severity(opened: Callable[..., Source]) -> None:
    source = opened(MLP, SMALL)
    assert source.unlike(0) is None  # neither results nor recipes say anything
    result = plmia.score(source.place, attacks=["rmia"], progress=False).result
    notes = (
        Note("few-non-members", "caution", "other-kind"),
        Note("references-match-poorly", "caution", "Some other words."),
        Note("unlike-references", "info", "No caution."),
    )
    audited = replace(source, audited=replace(result, notes=notes))
    assert audited.unlike(0) == ("references-match-poorly",)
    assert audited.unlike(3) is None  # the results are about model 0
    assert audited.cautions is not None
    assert "few-non-members" in audited.cautions
    assert "references-match-poorly" not in audited.cautions
    assert replace(source, audited=replace(result, notes=())).unlike(0) == ()


def test_recipes_of_two_kinds_are_a_caution_also_without_results(opened: Callable[..., Source]) -> None:
    trees = opened(MLP, TREES)
    assert trees.unlike(0) == ("other-kind",)
    assert trees.unlike(3) is None
    assert opened(MLP, MLP).unlike(0) is None


@pytest.mark.parametrize(("text", "suggested"), [("1e15", True), ("9e999", False), ("1e40", False)])
def test_a_budget_without_a_unit_suggests_operations_only_if_these_are_possible(text: str, suggested: bool) -> None:
    with pytest.raises(PlmiaError, match=rf"{text}\b.*1,000,000") as refused:
        Budget.parse(text)
    assert ("flop" in str(refused.value)) == suggested
    if suggested:
        assert Budget.parse(f"{text}flop") == Budget(1e15, "operations")
