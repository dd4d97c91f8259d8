"""Aligned references, where members may get a map of their own, and must not get one by chance."""

from __future__ import annotations

import numpy as np
import pytest
from tests.statistical.aligned_audits import Setting, audits, check_gain, check_level

# Only with as many known non-members do members get a map of their own.
LEARNED_INSIDE = [Setting(0.5, apart=3, n=2000), Setting(0.5, "offline", apart=3, n=2000)]
SKEWED = [Setting(0, population=40, skewed=True), Setting(0, population=200, skewed=True)]


@pytest.mark.parametrize("setting", [*SKEWED, *LEARNED_INSIDE], ids=str)
def test_aligned_p_values_keep_their_level(setting):
    check_level(setting)


@pytest.mark.parametrize("setting", LEARNED_INSIDE, ids=str)
def test_alignment_finds_clearly_more(setting):
    check_gain(setting)


@pytest.mark.parametrize("setting", LEARNED_INSIDE, ids=str)
def test_a_map_of_members_is_learned_where_they_differ_otherwise(setting):
    found = [result.alignment for result in audits(setting)]
    assert np.mean([each is not None and each.learned_inside for each in found]) > 0.9


def test_chance_seldom_teaches_how_members_differ():
    """Queries that lie above the known non-members by chance look like members; held-out queries must confirm them."""
    found = [result.alignment for result in audits(Setting(0, population=200, skewed=True))]
    assert np.mean([each is not None and each.learned_inside for each in found]) < 0.03
