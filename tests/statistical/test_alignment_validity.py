"""Aligned references in 200 simulated audits each, without a leak and with one: p-values keep their level."""

from __future__ import annotations

import numpy as np
import pytest
from tests.statistical.aligned_audits import (
    Setting,
    audits,
    check_gain,
    check_level,
    check_no_leak_is_called,
)

UNLIKE = [
    Setting(0),
    Setting(1),
    Setting(0, population=40),
    Setting(0, members=0.04),
    Setting(0, members=0.85, n=1500),
    Setting(0, exact=True),
    Setting(1, attack="lira-fixed"),
]


@pytest.mark.parametrize("setting", UNLIKE, ids=str)
def test_aligned_p_values_keep_their_level(setting):
    check_level(setting)


@pytest.mark.parametrize("setting", [Setting(0), Setting(0, population=40)], ids=str)
def test_no_leak_is_called_where_there_is_none(setting):
    check_no_leak_is_called(setting)


def test_alignment_finds_clearly_more():
    check_gain(Setting(1))


def test_like_references_are_seldom_aligned():
    assert np.mean([result.alignment is not None for result in audits(Setting(0, scale=1))]) < 0.02
