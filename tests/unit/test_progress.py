"""Progress is silent at first, then a bar on a terminal and a line now and then elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from plmia import progress
from plmia.progress import Meter


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def console_of(terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, _environ={})


def steps(meter, clock, count, seconds):
    for _ in range(count):
        clock.now += seconds
        meter.tick(1)


@pytest.mark.parametrize("terminal", [False, True])
def test_short_work_is_silent(clock, terminal):
    console = console_of(terminal)
    with Meter("scoring", 10, console) as meter:
        steps(meter, clock, 10, 0.19)
    assert console.file.getvalue() == ""


def test_nothing_is_shown_without_a_console(clock, capsys):
    with Meter("scoring", 10, None) as meter:
        steps(meter, clock, 10, 60)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_that_goes_away(clock):
    console = console_of(True)
    with Meter("scoring", 10, console) as meter:
        steps(meter, clock, 8, 1)
        assert meter._bar is not None
        assert meter._bar.tasks[0].completed == 8
        assert meter._bar.tasks[0].total == 10
        assert "scoring" in console.file.getvalue()
    assert not meter._bar.live.is_started


def test_the_bar_goes_away_on_an_error(clock):
    def work(meter):
        with meter:
            steps(meter, clock, 8, 1)
            raise RuntimeError("boom")

    meter = Meter("scoring", 10, console_of(True))
    with pytest.raises(RuntimeError, match="boom"):
        work(meter)
    assert not meter._bar.live.is_started


def test_a_log_gets_a_line_every_ten_seconds_with_the_time_left(clock):
    console = console_of(False)
    with Meter("scoring", 100, console) as meter:
        steps(meter, clock, 50, 0.5)
    lines = console.file.getvalue().splitlines()
    assert lines == ["scoring: 21 %, about 40 s left", "scoring: 42 %, about 29 s left"]
