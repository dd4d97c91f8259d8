"""Progress is silent at first, then a bar on a terminal and a line now and then elsewhere."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from plmia.auditing import progress
from plmia.auditing.progress import Meter


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "LINE_SECONDS", 10.0)
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
    with Meter("scoring", 10, True, console) as meter:
        steps(meter, clock, 10, 0.19)
    assert console.file.getvalue() == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_is_shown_if_nothing_is_to_be_shown(clock, terminal):
    console = console_of(terminal)
    with Meter("scoring", 10, False, console) as meter:
        steps(meter, clock, 10, 60)
    assert console.file.getvalue() == ""


def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch):
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.05)
    console = console_of(True)
    with Meter("training", 33, True, console) as meter:
        meter._timer.join(10)
        assert meter._bar.live.is_started, "although no step is done"
        meter._bar.refresh()
        assert "training" in console.file.getvalue()
        assert "0/33" in console.file.getvalue()
        meter.tick(detail="accuracy 90 %")
        assert meter._task.completed == 1
        assert meter._task.description == "training (accuracy 90 %)"
    assert not meter._bar.live.is_started


def test_the_bar_goes_away_on_an_error(monkeypatch):
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.0)

    def work(meter):
        with meter:
            meter._timer.join(10)
            raise RuntimeError("boom")

    meter = Meter("scoring", 10, True, console_of(True))
    with pytest.raises(RuntimeError, match="boom"):
        work(meter)
    assert not meter._bar.live.is_started


def test_a_log_gets_a_line_every_ten_seconds_with_the_time_left(clock):
    console = console_of(False)
    with Meter("scoring", 100, True, console) as meter:
        steps(meter, clock, 50, 0.5)
    lines = console.file.getvalue().splitlines()
    assert lines == ["scoring: 21 %, about 0:00:40 left", "scoring: 42 %, about 0:00:29 left"]


def test_a_log_says_that_the_first_step_is_not_done(monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.05)
    console = console_of(False)
    with Meter("training", 40, True, console) as meter:
        meter.skip(4)
        meter._timer.join(10)
    assert console.file.getvalue() == "training: 10 %\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_nothing_appears_after_the_work(is_terminal):
    console = console_of(is_terminal)
    with Meter("training", 33, True, console) as meter:
        pass
    assert console.file.getvalue() == ""
    assert meter._timer not in threading.enumerate()


def test_the_time_left_leaves_out_what_was_there_before(clock):
    with Meter("training", 33, False) as meter:
        meter.skip(13)
        clock.now += 20
        meter.tick(5)  # 4 s each, 15 left
        assert meter._task.fields["left"] == "0:01:00 left"


def test_many_steps_are_shown_in_per_cent(clock):
    for total, shown in (1_000, "0/1000"), (20_000, "0%"):
        console = console_of(True)
        meter = Meter("scoring", total, False, console)
        console.print(meter._bar.get_renderable())
        assert shown in console.file.getvalue()
