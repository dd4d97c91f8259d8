"""Sentences about a run that depend on several facts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plmia.data.dataset import read_data
from plmia.evaluation.subgroups import SubgroupTable, subgroup_table
from plmia.results import wording


def table_of(sizes: tuple[int, ...], exposed: int | None = None) -> SubgroupTable:
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(len(sizes)), sizes)
    members = np.arange(len(codes)) % 2 == 0
    names = [str(k) for k in range(len(sizes))]
    score = rng.normal(size=len(codes)) + 4 * (members & (codes == exposed))
    return subgroup_table("site", codes, names, score, members, 0.01)


def test_values_of_a_column_are_told_from_counts_and_the_threshold_is_named_once() -> None:
    line = wording.subgroup_line(table_of((150, 160, 4_000)))
    first, second, third = line.split("; ")
    assert first.startswith("Identified at 1 % FPR: site 0: ")
    assert second.startswith("site 1: ")
    assert second.endswith(" of 80")
    assert third.startswith("site 2: ")
    assert "%" in third.split(". ")[0]
    assert line.count("common threshold") == 1
    assert "common threshold" not in wording.subgroup_line(table_of((4_000, 4_000)))
    assert wording.subgroup_line(table_of((4_000, 4_000), 1)).endswith("than the others: site 1.")


def test_tied_scores_name_the_share_of_records() -> None:
    assert "91 % of the records have one that at least 10 % share" in wording.tied_scores({"rmia": 0.914}, 0.1)


def test_nothing_is_said_of_columns_that_are_dropped(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rows = [f"{k % 2},{k},{'' if k % 3 else 1.5},2024-01-{k % 28 + 1:02d}" for k in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["y,a,gap,day", *rows]) + "\n")
    codes = [note.code for note in read_data(tmp_path / "t.csv", label="y").notes]
    assert codes.count("table-read") == 2
    assert "table-read" not in [n.code for n in read_data(tmp_path / "t.csv", label="y", drop=["gap", "day"]).notes]
