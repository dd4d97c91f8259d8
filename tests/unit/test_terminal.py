"""What is printed: letters alone where nobody sees colours, tables that fit, progress before the first step."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from plmia import progress, terminal
from plmia.progress import Meter
from plmia.terminal import fitting_table, show_metrics, stderr, stdout


class Stream(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self._terminal = terminal

    def isatty(self):
        return self._terminal


def entry(mean, std, resolved=True):
    return {"mean": mean, "std": std, "resolved": resolved, "needed_non_members": 1}


def metrics_of(std=0.0123, resolved=True, names=("lira", "pl-mia-pooled")):
    tpr = {fpr: entry(0.1234, std, resolved or fpr in ("0", "0.01")) for fpr in terminal.SHOWN_FPRS}
    own = {"level": 0.01, "flagged": 0.988, "check_failed": True}
    attack = {"auc": entry(0.7345, std), "tpr": tpr, "epsilon": {"low": 2.68}, "own_p_value_on_population": own}
    return {
        "about": {
            "signals": {"points": 100, "views": 1},
            "targets": [0, 1],
            "mode": "online",
            "references": [8],
            "population": [50],
        },
        "attacks": dict.fromkeys(names, attack),
        "verdict": {"text": "The verdict."},
        "notes": ["A note."],
    }


@pytest.fixture
def stream(monkeypatch):
    """Replace standard output; the terminal has 90 columns."""

    def replace(is_terminal, **environment):
        for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM", "COLUMNS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in ({"TERM": "xterm-256color", "COLUMNS": "90"} | environment).items():
            monkeypatch.setenv(name, value)
        made = Stream(is_terminal)
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(f"sys.{name}", made)
        return made

    return replace


# Colours -------------------------------------------------------------------------------------------------------------


def test_a_terminal_gets_a_bold_header_and_a_bold_verdict(stream, tmp_path):
    out = stream(True)
    show_metrics(metrics_of(), tmp_path)
    assert "\x1b[1mThe verdict.\x1b[0m" in out.getvalue()
    assert "\x1b[1mattack" in out.getvalue()


@pytest.mark.parametrize(
    ("is_terminal", "environment"),
    [(True, {"NO_COLOR": "1"}), (False, {}), (False, {"FORCE_COLOR": "1"}), (True, {"TERM": "dumb"})],
)
def test_others_get_letters_alone(is_terminal, environment, stream, tmp_path):
    out = stream(is_terminal, **environment)
    show_metrics(metrics_of(), tmp_path)
    stderr().print("[red]plmia:[/red] stopped", style="bold")
    assert "\x1b" not in out.getvalue()
    assert "The verdict." in out.getvalue().splitlines()


def test_an_empty_no_color_asks_for_nothing(stream):
    out = stream(True, NO_COLOR="")
    stdout().print("word", style="bold")
    assert "\x1b[1m" in out.getvalue()


# Width ---------------------------------------------------------------------------------------------------------------


def lines_of(metrics, width, is_terminal=True):
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None, _environ={})
    console.print(fitting_table(metrics, console))
    return console.file.getvalue().splitlines()


HEADER = ["attack", "AUC", "TPR@1%", "TPR@0.1%", "TPR@0.01%", "TPR@0%", "ε", "≥", "check@1%"]


@pytest.mark.parametrize(("width", "spread"), [(300, True), (110, True), (100, False), (80, False)])
def test_the_table_fits_with_as_much_as_there_is_room_for(width, spread):
    """All columns filled and over several targets, which is the widest there is."""
    lines = lines_of(metrics_of(), width)
    assert len(lines) == 3
    assert max(len(line.rstrip()) for line in lines) <= width
    assert ("±" in lines[1]) == spread
    assert lines[0].split() == HEADER


def test_columns_without_a_number_go_before_rows_break():
    lines = lines_of(metrics_of(resolved=False), 60)
    assert lines[0].split() == [name for name in HEADER if name not in ("TPR@0.1%", "TPR@0.01%")]
    assert len(lines) == 3
    assert "TPR@0.1%" in lines_of(metrics_of(resolved=False), 90)[0]


def test_an_attack_s_name_is_shown_as_it_is():
    assert "[red]mine[/red]" in lines_of(metrics_of(names=("[red]mine[/red]",)), 100)[1]


# Progress before the first step --------------------------------------------------------------------------------------


def console_of(is_terminal):
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=100, color_system=None, _environ={})


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


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
