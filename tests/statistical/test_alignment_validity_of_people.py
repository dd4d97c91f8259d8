"""Aligned references in audits of people, of several views, and offline."""

from __future__ import annotations

import math

import pytest
from tests.statistical.aligned_audits import (
    SURE,
    Setting,
    aucs,
    check_gain,
    check_level,
    check_no_leak_is_called,
    exceeds,
)

UNLIKE = [
    Setting(0, records=3),
    Setting(1, records=3),
    Setting(0, "offline", records=3),
    Setting(0, "offline"),
    Setting(1, "offline"),
    Setting(0, views=3),
]


@pytest.mark.parametrize("setting", UNLIKE, ids=str)
def test_aligned_p_values_keep_their_level(setting):
    check_level(setting)


def test_no_leak_is_called_where_there_is_none():
    check_no_leak_is_called(Setting(0, records=3))


@pytest.mark.parametrize("setting", [setting for setting in UNLIKE if setting.leak], ids=str)
def test_alignment_finds_clearly_more(setting):
    check_gain(setting)


@pytest.mark.parametrize("setting", [Setting(1, scale=1), Setting(1, "offline", scale=1)], ids=str)
def test_always_aligning_costs_like_references_nothing(setting):
    loss = aucs(setting, "never") - aucs(setting, "always")
    assert loss.mean() < 0.001 + SURE * loss.std(ddof=1) / math.sqrt(len(loss))
    assert exceeds(setting, 0.05, "always") < SURE
