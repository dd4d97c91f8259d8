"""Words that all messages share: numbers, names, sentences and notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from plmia.errors import (
    CODES,
    SIZE,
    DataError,
    Note,
    PlmiaError,
    after_colon,
    did_you_mean,
    doubts,
    install_hint,
    percent,
    require_members,
    require_rate,
    round_percent,
    sentence,
    shown,
    some,
)


def test_extras_are_installed_from_the_checkout_or_as_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "src" / "plmia" / "errors.py"
    monkeypatch.setattr("plmia.errors.__file__", str(module))
    assert install_hint("gbdt") == "pip install 'plmia[gbdt]'"
    assert install_hint("torch").startswith("pip install 'plmia[torch]'")
    assert "pip install torch --index-url https://download.pytorch.org/whl/cpu" in install_hint("torch")
    (tmp_path / "pyproject.toml").touch()
    assert install_hint("gbdt") == f"pip install -e '{tmp_path}[gbdt]'"


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([3], "3"),
        ([3, 17, 20], "3, 17, 20"),
        (range(5), "0, 1, 2, 3, 4"),
        (np.arange(9), "0, 1, 2, 3, 4 and 4 more"),
        (range(5000), "0, 1, 2, 3, 4 and 4,995 more"),
    ],
)
def test_some_names_a_few_and_counts_the_rest(indices: Any, text: str) -> None:
    assert some(indices) == text


def test_shown_names_can_be_encoded() -> None:
    assert shown("größe.npz") == "größe.npz"
    assert shown(b"a\xff.npz".decode("utf-8", "surrogateescape")) == "a\ufffd.npz"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a leak", "A leak."), (" done. ", "Done."), ("why?", "Why?"), ("Stop!", "Stop!"), ("1 % leaks", "1 % leaks.")],
)
def test_a_sentence_begins_and_ends(text: str, expected: str) -> None:
    assert sentence(text) == expected
    assert sentence(sentence(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("The split", "the split"), ("AUC is low", "AUC is low"), ("IN counts", "IN counts")]
)
def test_after_a_colon_abbreviations_keep_their_capitals(text: str, expected: str) -> None:
    assert after_colon(text) == expected


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, "–"), (0.0, "0.0 %"), (1.0, "100.0 %"), (0.2237, "22.4 %"), (0.01, "1.0 %"), (0.001234, "0.12 %")],
)
def test_measured_shares_have_few_digits(rate: float | None, text: str) -> None:
    assert percent(rate) == text


@pytest.mark.parametrize(("rate", "text"), [(0.1, "10 %"), (0.001, "0.1 %"), (1e-5, "0.001 %"), (0.07, "7 %")])
def test_chosen_shares_have_no_needless_digits(rate: float, text: str) -> None:
    assert round_percent(rate) == text


def test_the_nearest_name_is_suggested() -> None:
    assert did_you_mean("lirra", ["lira", "rmia"]) == "did you mean 'lira'?"
    assert did_you_mean("xyz", ["lira", "rmia"]) == "known are lira, rmia"
    assert did_you_mean("xyz", ["lira", "rmia"], "see the list") == "see the list"
    assert did_you_mean("grp", ["groups"], "") == "did you mean 'groups'?"
    assert did_you_mean("grp", ["groups"], "", cutoff=0.9) == ""


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 5.0, float("nan")])
def test_rates_lie_between_0_and_1(value: float) -> None:
    with pytest.raises(DataError, match=f"level is {value}, .* between 0 and 1"):
        require_rate("level", value, DataError)
    require_rate("level", 0.01)


def test_missing_members_of_a_contract_are_named() -> None:
    class Contract(Protocol):
        size: int

        def run(self) -> None: ...

    class Half:
        size = 3

    with pytest.raises(PlmiaError, match="Half lacks run"):
        require_members(Half(), Contract)


def test_notes_are_checked_written_and_read() -> None:
    note = Note("groups", "info", "one record of each group was evaluated")
    assert note.text == "One record of each group was evaluated."
    assert Note(**note.to_json()) == note
    for code, severity in (("no-such-code", "info"), ("groups", "fatal")):
        with pytest.raises(ValueError, match=code):
            Note(code, severity, "text")  # type: ignore[arg-type]


def test_doubts_are_sorted_by_severity_and_size_comes_last() -> None:
    assert set(SIZE) <= set(CODES)
    given = [
        Note("wide-interval", "caution", "a"),
        Note("groups", "info", "b"),
        Note("few-references", "caution", "c"),
        Note("members-swapped", "invalid", "d"),
    ]
    assert [note.code for note in doubts(given)] == ["members-swapped", "few-references", "wide-interval"]
    given.append(Note("target-at-chance", "caution", "e"))
    assert [note.code for note in doubts(given)][:3] == ["members-swapped", "target-at-chance", "few-references"]
