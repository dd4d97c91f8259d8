"""Progress is silent at first, then a bar on a terminal and a line now and then elsewhere."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from plmia.cli import progress
from plmia.cli.progress import Meter


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


# Before the first step and between steps -----------------------------------------------------------------------------


def test_a_bar_appears_by_itself_while_the_first_step_is_not_done(monkeypatch):
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.05)
    console = console_of(True)
    with Meter("training", 33, console) as meter:
        meter._timer.join(10)
        assert meter._bar is not None
        assert meter._bar.tasks[0].total is None  # moves to and fro
        meter._bar.refresh()
        assert "training" in console.file.getvalue()
        assert "0 of 33" in console.file.getvalue()
        meter.tick()
        assert meter._bar.tasks[0].total == 33
        assert meter._bar.tasks[0].completed == 1
    assert not meter._bar.live.is_started


def test_a_log_says_once_that_the_first_step_is_not_done(monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.05)
    console = console_of(False)
    with Meter("training", 33, console) as meter:
        meter.skip(4)
        meter._timer.join(10)
    assert console.file.getvalue() == "training: 4 of 33\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_nothing_appears_after_the_work(is_terminal):
    """The timer may come to its turn just when the work ends."""
    console = console_of(is_terminal)
    with Meter("training", 33, console) as meter:
        pass
    meter._show_waiting()
    assert console.file.getvalue() == ""
    assert meter._timer not in threading.enumerate()


def test_the_time_left_counts_down_between_steps_and_leaves_out_what_was_there_before(clock):
    with Meter("training", 33, None) as meter:
        meter.skip(13)
        assert meter.left(clock.now) is None
        clock.now += 20
        meter.tick(5)  # 4 s each, 15 left
        assert meter.left(clock.now) == 60
        assert meter.left(clock.now + 10) == 50
        assert meter.left(clock.now + 100) == 0
        clock.now += 10
        assert meter.numbers() == "18 of 33, 0:30, 0:50 left"


def test_many_steps_are_shown_in_per_cent_and_long_times_in_hours(clock):
    with Meter("scoring", 20_000, None) as meter:
        clock.now += 3_600
        meter.tick(5_000)
        assert meter.numbers() == "25 %, 1:00:00, 3:00:00 left"
