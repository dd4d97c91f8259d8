"""Members that can be told by their records: seen if so, and hardly ever said where nothing differs."""

from __future__ import annotations

import numpy as np
import pytest

from plmia.attacks.view import Features
from plmia.evaluation.diagnostics.record_shift import record_shift

N = 1_000
POINTS = np.arange(N)


@pytest.mark.parametrize(("strength", "severity"), [(0.0, "invalid"), (4.0, "caution")])
def test_a_shift_is_seen_and_weighed_against_the_signals(strength: float, severity: str) -> None:
    rng = np.random.default_rng(0)
    members = rng.random(N) < 0.5
    columns = rng.normal(size=(N, 3)) + 0.7 * members[:, None] * [1, 0, 0]
    note = record_shift(Features(columns), members, rng.normal(size=N) + strength * members, POINTS)
    assert note is not None
    assert (note.code, note.severity) == ("records-tell-members", severity)
    assert ("part of" in note.text) == (severity == "caution")


def test_a_shift_of_classes_is_seen_too() -> None:
    rng = np.random.default_rng(1)
    members = rng.random(N) < 0.5
    town = np.where(members, rng.integers(0, 3, size=N), rng.integers(1, 4, size=N)).astype(float)
    columns = np.column_stack([town, np.full(N, np.nan)])
    assert record_shift(Features(columns, (0,)), members, rng.normal(size=N), POINTS) is not None


def test_without_a_shift_nothing_is_said() -> None:
    """At most one false alarm in 1,000 screenings, so hardly ever two in 24, for many columns and few."""
    said = 0
    for seed in range(24):
        rng = np.random.default_rng([2, seed])
        members = rng.random(300) < 0.3
        columns = rng.normal(size=(300, 2 + 20 * (seed % 2)))
        said += record_shift(Features(columns), members, columns[:, 0], np.arange(300), seed) is not None
    assert said <= 1


def test_too_few_members_are_not_compared() -> None:
    for least, compared in ((19, False), (20, True)):
        columns = np.repeat(np.arange(40.0)[:, None], 2, axis=1)
        note = record_shift(Features(columns), np.arange(40) < least, np.arange(40.0), np.arange(40))
        assert (note is not None) <= compared
