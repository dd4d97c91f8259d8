"""What is printed: letters alone where nobody sees colours, tables that fit, progress before the first step."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from plmia.auditing.progress import stderr
from plmia.cli.terminal import fitting_table, plain_warnings, say, show_result, stdout
from plmia.errors import Note, PlmiaWarning
from plmia.results.result import (
    FPRS,
    About,
    Accuracy,
    AccuracyPair,
    Mean,
    MeanEpsilon,
    MeanTpr,
    OwnPValue,
    SignalsAbout,
)


class Stream(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self._terminal = terminal

    def isatty(self):
        return self._terminal


def spread(mean, std, resolved=True):
    return MeanTpr(mean, std, 0.01, resolved, 1.0)


def result_of(
    std=0.0123,
    resolved=True,
    names=("lira", "pl-mia-pooled"),
    status="leak",
    about=None,
    notes=None,
    text="The verdict.",
):
    """A result with what is printed of one."""
    tpr = {fpr: spread(0.1234, std, resolved or fpr in (0.0, 0.01)) for fpr in FPRS}
    attack = SimpleNamespace(
        auc=Mean(0.7345, std),
        tpr=tpr,
        epsilon=MeanEpsilon(2.68, 2.0, 1e-5),
        own_p_value_on_population=OwnPValue(0.01, 0.988, True),
    )
    options = {"references": (8,), "population": (50,)} | (about or {})
    return SimpleNamespace(
        about=About(SignalsAbout(20, 100, 1), "online", (0, 1), 0, **options),
        attacks=dict.fromkeys(names, attack),
        verdict=SimpleNamespace(text=text, status=status, attack=names[0], fpr=0.01, tpr=0.1234),
        one_record=None,
        subgroups=(),
        trainings=None,
        accusations=(),
        notes=[Note("groups", "info", "A note."), Note("unlike-references", "caution", "A doubt.")] + (notes or []),
    )


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


def test_the_verdict_comes_first(stream, tmp_path):
    out = stream(False)
    show_result(result_of(), tmp_path)
    assert out.getvalue().splitlines()[0] == "The verdict."


def test_without_a_report_the_last_line_says_how_to_get_it(stream, tmp_path):
    folder = tmp_path / "my run"
    folder.mkdir()
    out = stream(False)
    show_result(result_of(), folder)
    assert out.getvalue().splitlines()[-1].startswith(f"plmia report '{folder}' ")
    (folder / "report.html").touch()
    out = stream(False)
    show_result(result_of(), folder)
    assert "plmia report" not in out.getvalue()


def test_one_reference_is_one_reference(stream, tmp_path):
    for references, words in ((1,), "1 reference,"), ((2,), "2 references,"), ((1, 2), "1 to 2 references,"):
        out = stream(False)
        show_result(result_of(about={"references": references}), tmp_path)
        assert f" {words}" in out.getvalue()


def test_doubts_stand_before_other_notes_with_their_codes(stream, tmp_path):
    def shown(**options):
        out = stream(False)
        show_result(result_of(**options), tmp_path)
        return [line for line in out.getvalue().splitlines() if line.startswith("- ")]

    assert shown() == ["- caution (unlike-references): A doubt.", "- A note."]
    assert shown(status="inconclusive", text="Inconclusive: A doubt.") == ["- A note."], "the verdict quotes the doubt"
    more = [Note("members-swapped", "invalid", "Wrong."), Note("tied-scores", "info", "Tied.")]
    assert shown(notes=more) == [
        "- invalid (members-swapped): Wrong.",
        "- caution (unlike-references): A doubt.",
        "- A note.",
        "- 1 more note: --verbose shows all.",
    ]


def test_five_attacks_are_shown_the_verdicts_among_them(stream, tmp_path):
    names = ("lira", "attack-p", "attack-r", "rmia", "lira-fixed", "pl-mia", "pl-mia-eb")

    def shown(**options):
        console = Console(file=io.StringIO(), width=200, _environ={})
        console.print(fitting_table(result_of(names=names), console, **options))
        return [line.split()[0] for line in console.file.getvalue().splitlines()[1:]]

    assert shown() == ["pl-mia-eb", "pl-mia", "lira-fixed", "rmia", "lira"]
    assert shown(asked=names) == list(names[:5])
    out = stream(False)
    show_result(result_of(names=names), tmp_path)
    assert "- 2 more attacks: --verbose shows all." in out.getvalue().splitlines()
    assert shown(verbose=True) == list(names)


def test_accuracies_of_target_and_references_are_shown(stream, tmp_path):
    out = stream(False)
    accuracy = Accuracy("accuracy", AccuracyPair(1.0, 0.5), AccuracyPair(0.9, None))
    show_result(result_of(about={"accuracy": accuracy}), tmp_path)
    assert "target 100.0 % and 50.0 %, references 90.0 % and –" in out.getvalue()


def test_warnings_of_plmia_are_lines_and_others_are_left_alone(stream, monkeypatch):
    out = stream(False)
    seen = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: seen.append(str(message)))
    with plain_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        warnings.warn("models\nare missing [x]", PlmiaWarning, stacklevel=1)
        warnings.warn("something else", RuntimeWarning, stacklevel=1)
    with plain_warnings(quiet=True):
        warnings.warn("not shown", PlmiaWarning, stacklevel=1)
    assert out.getvalue() == "plmia: models are missing [x]\n"
    assert seen == ["something else"]


# Colours -------------------------------------------------------------------------------------------------------------


def test_a_terminal_gets_a_bold_header_and_a_bold_verdict(stream, tmp_path):
    out = stream(True)
    show_result(result_of(), tmp_path)
    assert "\x1b[1mThe verdict.\x1b[0m" in out.getvalue()
    assert "\x1b[1mattack" in out.getvalue()


@pytest.mark.parametrize(
    ("is_terminal", "environment"),
    [(True, {"NO_COLOR": "1"}), (False, {}), (False, {"FORCE_COLOR": "1"}), (True, {"TERM": "dumb"})],
)
def test_others_get_letters_alone(is_terminal, environment, stream, tmp_path):
    out = stream(is_terminal, **environment)
    show_result(result_of(), tmp_path)
    stderr().print("[red]plmia:[/red] stopped", style="bold")
    assert "\x1b" not in out.getvalue()
    assert "The verdict." in out.getvalue().splitlines()


def test_an_empty_no_color_asks_for_nothing(stream):
    out = stream(True, NO_COLOR="")
    stdout().print("word", style="bold")
    assert "\x1b[1m" in out.getvalue()


# Width ---------------------------------------------------------------------------------------------------------------


def lines_of(result, width, is_terminal=True):
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None, _environ={})
    console.print(fitting_table(result, console, verbose=True))
    return console.file.getvalue().splitlines()


HEADER = ["attack", "AUC", "TPR@1%", "TPR@0.1%", "TPR@0.01%", "TPR@0%", "ε", "≥", "own", "p-value"]


@pytest.mark.parametrize(("width", "with_spread"), [(300, True), (130, True), (110, False), (100, False)])
def test_the_table_fits_with_as_much_as_there_is_room_for(width, with_spread):
    """All columns filled and over several targets, which is the widest there is."""
    lines = lines_of(result_of(), width)
    assert len(lines) == 3
    assert max(len(line.rstrip()) for line in lines) <= width
    assert ("±" in lines[1]) == with_spread
    assert lines[0].split() == HEADER


def test_columns_without_a_number_are_left_out():
    lines = lines_of(result_of(resolved=False), 300)
    assert lines[0].split() == [name for name in HEADER if name not in ("TPR@0.1%", "TPR@0.01%")]


def test_an_attack_s_name_is_shown_as_it_is():
    assert "[red]mine[/red]" in lines_of(result_of(names=("[red]mine[/red]",)), 100)[1]


# Text of files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terminal", [False, True])
def test_text_cannot_control_the_terminal(terminal, monkeypatch):
    """A value of a table is printed with the note: it could hide what follows, or move over what stands before."""
    stream = Stream(terminal)
    monkeypatch.setattr("sys.stdout", stream)
    bad = "ward A\x1b[8m\x9b2J\u202e\x00 [red]B[/red]"
    note = Note("subgroup-exposed", "info", f"More exposed than the others: {bad}.")
    show_result(result_of(names=("mine", "x\x1b]0;y\x07"), notes=[note], text=f"The verdict on {bad}."), Path("out"))
    shown = stream.getvalue()
    # rich writes its own codes for colours and bold letters on a terminal.
    assert not re.search("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202e]|\x1b(?!\\[[0-9;]*m)|\x1b\\[8m", shown)
    assert r"ward A\x1b[8m\x9b2J\u202e\x00 [red]B[/red]" in shown
    assert r"x\x1b]0;y\x07" in shown


def test_a_long_value_does_not_fill_the_screen(monkeypatch):
    stream = Stream(False)
    monkeypatch.setattr("sys.stderr", stream)
    say(f"the column {'a' * 200_000} is no label: name another with --label")
    shown = stream.getvalue()
    assert len(shown) < 2_100
    assert shown.startswith("plmia: the column aaa")
    assert shown.endswith("aaa is no label: name another with --label\n")
