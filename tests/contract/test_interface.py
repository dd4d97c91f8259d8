"""What an attack can get hold of, and what it is called."""

from __future__ import annotations

import ast
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plmia
from plmia import ATTACKS, Attack, AttackView, Setup, Signals, attack_targets, find_attack
from plmia.attacks.scoring import score_all
from plmia.attacks.view import Block, KnownSums, References

USER_FILE = Path(__file__).parent / "difficulty_attack.py"


def test_the_names_are_those_of_the_contract() -> None:
    assert {
        "attack-p",
        "attack-r",
        "lira",
        "lira-fixed",
        "rmia",
        "pl-mia-plus",
        "pl-mia",
        "pl-mia-pooled",
    } <= set(ATTACKS)
    assert all(attack.name == name and attack.note for name, attack in ATTACKS.items())


def test_a_view_has_no_field_for_the_answer() -> None:
    """Were one added, this test would have to be changed by hand, and somebody would think about it."""
    assert {field.name for field in dataclasses.fields(AttackView)} == {
        "target",
        "references",
        "population",
        "labels",
        "mode",
        "known",
        "features",
        "bend",
        "groups",
    }
    assert {field.name for field in dataclasses.fields(References)} == {"signals", "rows", "in_mask"}
    assert {field.name for field in dataclasses.fields(KnownSums)} == {"centre", "sums"}
    assert {field.name for field in dataclasses.fields(Block)} == {"points", "target", "references", "mode", "known"}


def test_the_view_of_a_target_holds_neither_it_nor_its_complement(
    simulate_signals: Callable[..., Signals], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `attack_targets` hands to attacks, for all targets at once and for some."""
    signals = simulate_signals(0, models=12, points=60)
    seen: dict[int, AttackView] = {}

    def spy(attacks: list[Attack], view: AttackView, *others: Any) -> object:
        (target,) = (t for t in range(12) if np.array_equal(view.target, signals.values[t].astype(np.float64)))
        seen[target] = view
        return score_all(attacks, view, *others)

    monkeypatch.setattr("plmia.evaluation.targets.score_unchecked", spy)
    for setup in (Setup(), Setup(references=6), Setup("offline")):
        seen.clear()
        assert len(list(attack_targets(signals, [ATTACKS["lira"]], range(12), setup))) == 12
        assert sorted(seen) == list(range(12))
        for target, view in seen.items():
            assert not {target, target ^ 1} & set(view.references.rows)
            assert not signals.design.matrix[target, view.population].any()
            assert np.array_equal(view.references.in_mask, signals.design.matrix[view.references.rows])


def test_an_attack_of_about_thirty_lines_joins_in(simulate_signals: Callable[..., Signals]) -> None:
    assert len(USER_FILE.read_text().splitlines()) < 40
    mine = find_attack(f"{USER_FILE}:DIFFICULTY")
    results = list(attack_targets(simulate_signals(0), [*ATTACKS.values(), mine], [0, 1], Setup()))
    assert [r.scores.attack for r in results if r.target == 1] == [*ATTACKS, "difficulty"]


def test_every_public_name_can_be_imported() -> None:
    assert all(getattr(plmia, name) is not None for name in plmia.__all__)
    assert set(plmia.__all__) <= set(dir(plmia))
    assert len(plmia.__all__) == len(set(plmia.__all__)) <= 72
    with pytest.raises(AttributeError, match="no_such_name"):
        plmia.no_such_name  # type: ignore[attr-defined]  # noqa: B018


def test_checkers_see_the_imports_that_happen_at_run_time() -> None:
    source = ast.parse(Path(plmia.__file__).read_text(encoding="utf-8"))
    block = next(node for node in source.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    seen = {
        alias.name: (node.module or "").removeprefix("plmia.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == plmia._MODULE
    assert set(seen) == set(plmia.__all__)


def test_public_names_have_their_types(tmp_path: Path) -> None:
    """As a strict checker of a user's own code sees them."""
    api = pytest.importorskip("mypy.api")
    snippet = tmp_path / "snippet.py"
    lines = ["import plmia", "from plmia import Attack", "reveal_type(Attack)"]
    lines += [f"reveal_type(plmia.{name})" for name in plmia.__all__]
    snippet.write_text("\n".join(lines), encoding="utf-8")
    arguments = ["--strict", f"--cache-dir={tmp_path}", f"--config-file={os.devnull}", "--follow-imports=silent"]
    out, _, code = api.run([*arguments, "--ignore-missing-imports", str(snippet)])
    revealed = [line.partition("Revealed type is ")[2].strip('"') for line in out.splitlines() if "Revealed" in line]
    assert code == 0, out
    assert len(revealed) == len(lines) - 2
    assert "Any" not in revealed
    assert revealed[0].endswith("-> plmia.attacks.attack.Attack")
