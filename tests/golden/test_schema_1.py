"""Results of schema 1, from before statuses and digests: they open, and no verdict of theirs is clean."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import click.testing
import pytest

from plmia.results.saved import SavedRun

Run = Callable[..., click.testing.Result]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a copy of the folder."""
    shutil.copytree(Path(__file__).with_name("schema_1"), tmp_path / "old")
    return tmp_path / "old"


def test_report_and_compare_open_them_and_say_that_they_are_not_verified(old: Path, command: Run) -> None:
    for words in (("report", old, "--verbose"), ("compare", old, "--attack", "lira", "--attack", "rmia")):
        result = command(*words)
        assert result.exit_code == 0, result.output
        assert "cannot be verified" in result.stderr
        assert "unverified-results" in result.stdout
    assert "Not verified" in (old / "report.html").read_text(encoding="utf-8")


def test_the_gate_does_not_decide_on_them(old: Path, command: Run) -> None:
    result = command("gate", old, "--max-tpr", 0.9, "--at-fpr", 0.01)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_they_have_a_status(old: Path) -> None:
    saved = SavedRun(old)
    assert not saved.verified
    assert saved.result.verdict.status == "leak"
    assert saved.result.verdict.doubts == ("unverified-results",)
    assert {note.code for note in saved.notes} == {"unverified-results", "earlier-version"}
