"""Sentences about a run: its verdict and its notes. Nothing depends on their wording."""

from __future__ import annotations

from typing import Literal

Status = Literal["leak", "no_leak_shown", "inconclusive", "invalid"]
Grade = Literal["barely measurable", "moderate", "severe"]

HEADLINES: dict[Status, str] = {
    "leak": "A leak was shown",
    "no_leak_shown": "No leak was shown",
    "inconclusive": "Inconclusive",
    "invalid": "Invalid audit",
}


def headline(status: Status, grade: Grade | None) -> str:
    """The status in a few words, with the grade of a leak."""
    return f"{HEADLINES[status]} ({grade})" if grade else HEADLINES[status]
