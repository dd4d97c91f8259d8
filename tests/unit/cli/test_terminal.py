"""What is printed: letters alone where nobody sees colours, tables that fit, progress before the first step."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from plmia.cli import terminal
from plmia.cli.terminal import fitting_table, show_metrics, stderr, stdout


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
        "verdict": {"text": "The verdict.", "status": "leak"},
        "notes": [
            {"code": "groups", "severity": "info", "text": "A note."},
            {"code": "unlike-references", "severity": "caution", "text": "A doubt."},
        ],
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


def test_one_reference_is_one_reference(stream, tmp_path):
    for references, words in ([1], "1 reference,"), ([2], "2 references,"), ([1, 2], "1 to 2 references,"):
        out, metrics = stream(False), metrics_of()
        metrics["about"]["references"] = references
        show_metrics(metrics, tmp_path)
        assert f" {words}" in out.getvalue()


def test_doubts_stand_before_other_notes_with_their_codes(stream, tmp_path):
    out = stream(False)
    show_metrics(metrics_of(), tmp_path)
    lines = [line for line in out.getvalue().splitlines() if line.startswith("- ")]
    assert lines == ["- caution (unlike-references): A doubt.", "- A note."]
    out, metrics = stream(False), metrics_of()
    metrics["verdict"]["status"] = "inconclusive"
    show_metrics(metrics, tmp_path)
    assert "A doubt." not in out.getvalue(), "the verdict quotes it"


def test_accuracies_of_target_and_references_are_shown(stream, tmp_path):
    out, metrics = stream(False), metrics_of()
    metrics["about"]["accuracy"] = {
        "measure": "accuracy",
        "target": {"members": 1.0, "non_members": 0.5},
        "references": {"members": 0.9, "non_members": None},
    }
    show_metrics(metrics, tmp_path)
    assert "target 100.0 % and 50.0 %, references 90.0 % and –" in out.getvalue()


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
