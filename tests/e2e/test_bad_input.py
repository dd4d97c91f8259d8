"""Bad input ends with exit code 2 and one sentence (value, limit, remedy): no traceback, and no half of a file."""

from __future__ import annotations

import errno
import io
import os
import pickle
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import click.testing
import numpy as np
import pytest

from plmia import ATTACKS, PlmiaError, read_signals
from plmia import Run as Run_
from plmia.data.files import Staging

Run = Callable[..., click.testing.Result]
Write = Callable[..., Path]
Arrays = dict[str, Any]

COMMAND = [sys.executable, "-c", "from plmia.cli.main import main; main(prog_name='plmia')"]
MODELS, POINTS = 16, 120


def _snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def refused(command: Run, signals_file: Write, tmp_path: Path) -> Callable[..., str]:
    """Run ``score`` with bad input, into a new folder and over an earlier result, and return the one sentence."""
    earlier = tmp_path / "earlier"
    assert command("score", signals_file(name="good.npz"), "-o", earlier, "--quiet").exit_code == 0

    def run(file: object, *options: object) -> str:
        before, here = _snapshot(earlier), _snapshot(tmp_path)
        fresh = command("score", file, "-o", tmp_path / "new" / "er", *options)
        again = command("score", file, "-o", earlier, *options)
        for result in (fresh, again):
            assert result.exit_code == 2, result.output
            assert result.stdout == ""
            assert "Traceback" not in result.stderr
            assert result.stderr.count("\n") == 1
            assert result.stderr.startswith("plmia: ")
        assert again.stderr == fresh.stderr
        assert _snapshot(earlier) == before
        assert _snapshot(tmp_path) == here
        assert not (tmp_path / "new").exists()
        return fresh.stderr

    return run


# What is in the file -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """How good arrays are spoilt, and what the sentence must say."""

    spoil: Callable[[Arrays], Arrays]
    says: list[str]
    options: list[object] = field(default_factory=list)


def _cell(value: float) -> Callable[[Arrays], Arrays]:
    def spoil(arrays: Arrays) -> Arrays:
        signals = arrays["signals"].copy()
        signals[3, 17, 0] = value
        return {"signals": signals}

    return spoil


def _column(value: bool) -> Callable[[Arrays], Arrays]:
    def spoil(arrays: Arrays) -> Arrays:
        membership = arrays["membership"].copy()
        membership[2:, 17] = value
        return {"membership": membership}

    return spoil


def _row(value: bool) -> Callable[[Arrays], Arrays]:
    def spoil(arrays: Arrays) -> Arrays:
        membership = arrays["membership"].copy()
        membership[0] = value
        return {"membership": membership}

    return spoil


def _first(n: int) -> Callable[[Arrays], Arrays]:
    return lambda a: {"signals": a["signals"][:n], "membership": a["membership"][:n]}


WHERE = ["model 3", "record 17", "finite"]
CASES = {
    "nan": Case(_cell(np.nan), ["nan", *WHERE, "leave it out"]),
    "inf": Case(_cell(np.inf), ["inf", *WHERE, "leave it out"]),
    "minus inf": Case(_cell(-np.inf), ["-inf", *WHERE, "leave it out"]),
    "probabilities": Case(
        lambda a: {"signals": 1 / (1 + np.exp(-a["signals"]))},
        ["[0, 1]", "probabilities", "--scale probability", "'logit'"],
    ),
    "logits as probabilities": Case(
        lambda a: {}, ["in [0, 1]", "model 0, record 0, view 0"], ["--scale", "probability"]
    ),
    "fewer models in membership": Case(
        lambda a: {"membership": a["membership"][:-1]}, ["(15, 120)", "(16, 120, 1)", "models and records"]
    ),
    "fewer records in membership": Case(
        lambda a: {"membership": a["membership"][:, :-1]}, ["(16, 119)", "(16, 120, 1)", "models and records"]
    ),
    "labels too short": Case(lambda a: {"labels": a["labels"][:-1]}, ["(119,)", "[120]", "record"]),
    "labels not whole": Case(lambda a: {"labels": a["labels"] + 0.5}, ["float64", "integers [120]"]),
    "signals with one axis": Case(lambda a: {"signals": a["signals"][0, :, 0]}, ["(120,)", "[models, records]"]),
    "signals with four axes": Case(
        lambda a: {"signals": a["signals"][..., None]}, ["(16, 120, 1, 1)", "[models, records"]
    ),
    "no records": Case(
        lambda a: {"signals": a["signals"][:, :0], "membership": a["membership"][:, :0], "labels": None},
        ["(16, 0, 1)", "no empty axis"],
    ),
    "no models": Case(_first(0), ["(0, 120, 1)", "no empty axis"]),
    "whole-number signals": Case(lambda a: {"signals": a["signals"].astype(int)}, ["int64", "floats are needed"]),
    "complex signals": Case(lambda a: {"signals": a["signals"] + 1j}, ["complex", "floats are needed"]),
    "membership with one axis": Case(lambda a: {"membership": a["membership"][0]}, ["(120,)", "[models, records]"]),
    "membership of floats": Case(lambda a: {"membership": a["membership"] * 0.5}, ["float64", "booleans are needed"]),
    "membership beyond 1": Case(lambda a: {"membership": a["membership"] * 2}, ["int64", "0 and 1", "booleans"]),
    "packed bits without n_points": Case(
        lambda a: {"membership": np.packbits(a["membership"], axis=1)}, ["uint8", "n_points"]
    ),
    "packed bits of other length": Case(
        lambda a: {"membership": np.packbits(a["membership"], axis=1), "n_points": np.int64(200)},
        ["15 columns", "n_points = 200", "25 packed bytes", "numpy.packbits"],
    ),
    "no signals": Case(lambda a: {"signals": None}, ["no array 'signals'", "membership", "add it"]),
    "no membership": Case(lambda a: {"membership": None}, ["no array 'membership'", "signals", "add it"]),
    "a record that is always IN": Case(
        _column(True), ["record 17", "1 OUT", "has 0", "train more references"], ["--attack", "attack-r"]
    ),
    "a record that is always IN, by two attacks": Case(
        _column(True), ["record 17", "OUT", "train more references"], ["--attack", "attack-p", "--attack", "lira"]
    ),
    "a record that is always OUT": Case(
        _column(False), ["record 17", "2 IN", "has 0", "train more references"], ["--attack", "pl-mia"]
    ),
    "a target that trained on all records": Case(_row(True), ["model 0", "all of the 120 records", "non-members"]),
    "a target that trained on no record": Case(_row(False), ["model 0", "none of the 120 records", "members"]),
    "one pair only": Case(_first(2), ["target 0", "no eligible reference", "add models"]),
    "two pairs only": Case(
        _first(4), ["2 OUT references", "have as few as 1", "train more references"], ["--attack", "pl-mia"]
    ),
    "references that are all the target's split": Case(
        lambda a: {"membership": np.tile(a["membership"][:2], (8, 1))}, ["no eligible reference", "add models"]
    ),
    "signals that are all equal": Case(
        lambda a: {"signals": np.full_like(a["signals"], 5.0)},
        ["population records", "same statistic", "check the signals"],
    ),
    "signals beyond reason": Case(
        lambda a: {"signals": a["signals"] * np.float32(1e30)},
        ["e+30", "model 0, record 0, view 0", "-1,000,000 and 1,000,000"],
    ),
    "a signal beyond the limit": Case(_cell(-2e6), ["-2e+06", "model 3, record 17", "-1,000,000 and 1,000,000"]),
    "a signal far from the others": Case(
        _cell(3e9), ["model 3, record 17", "units of their spread", "1,000,000"], ["--scale", "signal"]
    ),
    "a signal that 32 bits cannot hold": Case(
        lambda a: {"signals": np.where(a["signals"] == a["signals"][3, 17], 1e90, a["signals"].astype(np.float64))},
        ["model 3, record 17", "units of their spread", "1,000,000"],
        ["--scale", "signal"],
    ),
    "signals whose squares overflow": Case(
        lambda a: {"signals": a["signals"].astype(np.float64) * 1e200},
        ["e+200", "model 0, record 0", "1e+100"],
        ["--scale", "signal"],
    ),
    "an object array": Case(lambda a: {"labels": np.array([{}], dtype=object)}, ["pickled", "never loaded", "numeric"]),
}


@pytest.mark.parametrize("name", CASES)
def test_spoilt_arrays(
    name: str, simulate: Callable[..., Arrays], signals_file: Write, refused: Callable[..., str]
) -> None:
    case = CASES[name]
    arrays = simulate(0, models=MODELS, points=POINTS)
    sentence = refused(signals_file(name="bad.npz", replace=case.spoil(arrays)), *case.options)
    for part in case.says:
        assert part in sentence


# What kind of file it is ---------------------------------------------------------------------------------------------


def _npz(simulate: Callable[..., Arrays]) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **simulate(0, models=6, points=11))
    return stream.getvalue()


def _zip(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def _twice(npz: bytes, name: str) -> bytes:
    """An npz with a second array of this name: all others, then zeros."""
    stream = io.BytesIO(npz)
    with zipfile.ZipFile(stream, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr(name, _npy())
    return stream.getvalue()


def _npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.zeros((3, 4)))
    return stream.getvalue()


FILES: dict[str, tuple[Callable[[bytes], bytes], list[str]]] = {
    "text": (lambda _: b"model,point,signal\n0,0,1.5\n", ["not an npz", "numpy.savez"]),
    "empty": (lambda _: b"", ["not an npz", "numpy.savez"]),
    "a single array": (lambda _: _npy(), ["single array", "numpy.savez"]),
    "a pickle": (lambda _: pickle.dumps({"signals": 1}), ["not an npz", "numpy.savez"]),
    "half an npz": (lambda good: good[: len(good) // 2], ["damaged", "again"]),
    "an npz without its last byte": (lambda good: good[:-1], ["damaged", "again"]),
    "an npz with a hole": (lambda good: good[:400] + bytes(200) + good[600:], ["damaged", "again"]),
    "an npz with one name twice": (lambda good: _twice(good, "signals.npy"), ["two arrays 'signals'", "save it again"]),
    "a zip without arrays": (lambda _: _zip(readme=b"hello"), ["no array 'signals'", "add it"]),
    "a zip with other things in it": (lambda _: _zip(signals=b"1,2,3", membership=b"0"), ["'signals'", "numpy.savez"]),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_other_kinds(
    name: str, simulate: Callable[..., Arrays], refused: Callable[..., str], tmp_path: Path
) -> None:
    make, says = FILES[name]
    (tmp_path / "bad.npz").write_bytes(make(_npz(simulate)))
    sentence = refused(tmp_path / "bad.npz")
    for part in ["bad.npz", *says]:
        assert part in sentence


def test_every_truncation_and_any_flipped_bit_is_a_named_error_or_the_same_arrays(
    simulate: Callable[..., Arrays], tmp_path: Path
) -> None:
    good, path = _npz(simulate), tmp_path / "signals.npz"
    path.write_bytes(good)
    expected = read_signals(path)
    rng = np.random.default_rng(0)
    spoilt = [good[:end] for end in range(0, len(good), 7)]
    for position, bit in zip(rng.integers(len(good), size=300), rng.integers(8, size=300), strict=True):
        changed = bytearray(good)
        changed[position] ^= 1 << bit
        spoilt.append(bytes(changed))
    refusals = 0
    for content in spoilt:
        path.write_bytes(content)
        try:
            signals = read_signals(path)
        except PlmiaError:  # anything else fails the test
            refusals += 1
        else:  # the bit was in a date or a flag: what counts is covered by the zip's checksums
            assert signals.values.tobytes() == expected.values.tobytes()
            assert signals.design.matrix.tobytes() == expected.design.matrix.tobytes()
    assert refusals > len(spoilt) / 2


def test_no_such_file(refused: Callable[..., str], tmp_path: Path) -> None:
    sentence = refused(tmp_path / "none.npz")
    assert "there is no file" in sentence
    assert "npz" in sentence
    (tmp_path / "folder").mkdir()
    assert str(tmp_path / "folder") in refused(tmp_path / "folder")
    assert "File name too long" in refused(tmp_path / ("a" * 300))
    assert "there is no file" in refused(tmp_path / "two\nlines.npz")  # still one line


# What is asked for ---------------------------------------------------------------------------------------------------

OPTIONS: dict[str, tuple[list[object], list[str]]] = {
    "unknown attack": (["--attack", "pl_mia"], ["'pl_mia'", "did you mean 'pl-mia'?"]),
    "unknown attack, nearest": (["--attack", "lira", "--attack", "Rmai"], ["'Rmai'", "did you mean 'rmia'?"]),
    "unknown attack, nothing near": (["--attack", "zzz"], ["'zzz'", "known are", *ATTACKS]),
    "one attack twice": (["--attack", "lira", "--attack", "lira"], ["'lira'", "overwrite", "once"]),
    "target too large": (["--target", MODELS], ["target 16", "0 to 15"]),
    "target below 0": (["--target", -1], ["target -1", "0 to 15"]),
    "one of many targets": (["--target", 0, "--target", 99, "--target", 2], ["target 99", "0 to 15"]),
    "target no number": (["--target", "first"], ["'first'", "'all'", "0 to 15"]),
    "target two minus signs": (["--target", "--5"], ["'--5'", "'all'", "0 to 15"]),
    "target a superscript": (["--target", "²"], ["'²'", "'all'", "0 to 15"]),
    "target a fraction": (["--target", "1.5"], ["'1.5'", "'all'", "0 to 15"]),
    "odd references": (["--references", 5], ["5 references", "complementary pairs", "4 or 6"]),
    "one reference": (["--references", 1], ["1 reference cannot", "complementary pairs", "request 2"]),
    "too many references": (["--references", 16], ["16 were requested", "14 eligible", "at most 14"]),
    "too few references for a variance": (
        ["--references", 2, "--attack", "lira"],
        ["2 OUT references", "have as few as 1", "train more"],
    ),
    "population too large": (["--population", POINTS], ["population of 120", "non-members", "take from 2 to"]),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_cannot_be_met(name: str, signals_file: Write, refused: Callable[..., str]) -> None:
    options, says = OPTIONS[name]
    sentence = refused(signals_file(), *options)
    for part in says:
        assert part in sentence


@pytest.mark.parametrize(
    "arguments",
    [
        ["score"],
        ["score", "FILE", "-o", "OUT", "--references", "0"],
        ["score", "FILE", "-o", "OUT", "--population", "1"],
        ["score", "FILE", "-o", "OUT", "--mode", "both"],
        ["score", "FILE", "-o", "OUT", "--seed", "-1"],
        ["score", "FILE", "-o", "OUT", "--no-such-option"],
        ["score", "FILE", "extra", "-o", "OUT"],
        ["scroe", "FILE", "-o", "OUT"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_parsed(arguments: list[str], signals_file: Write, command: Run, tmp_path: Path) -> None:
    names = {"FILE": str(signals_file()), "OUT": str(tmp_path / "out")}
    result = command(*[names.get(argument, argument) for argument in arguments])
    assert result.exit_code == 2
    # A value that an option does not take is one sentence; else click shows the usage, too.
    assert "Error: " in result.stderr or (result.stderr.startswith("plmia: ") and result.stderr.count("\n") == 1)
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


# Attacks from files --------------------------------------------------------------------------------------------------

HEADER = """
from dataclasses import dataclass
import numpy as np
from plmia import ATTACKS, Attack, CauchyCombination, NoCalibration, WithinClass, RMIA
from plmia.attacks.calibration import VotesOfViews
from plmia.attacks.calibration import FreshPopulation

class S:
    def __init__(self, f): self.f = f
    def __call__(self, view): return self.f(view)

@dataclass
class NotFrozen:
    def __call__(self, view): return view.target

def make(f, **how): return Attack("mine", S(f), NoCalibration(), **how)
"""
USER_FILES: dict[str, tuple[str, list[str]]] = {
    "raises": ("raise RuntimeError('first line\\nsecond line')", ["mine.py", "does not run", "first line second line"]),
    "exits": ("import sys; sys.exit(0)", ["mine.py", "does not run", "SystemExit"]),
    "does not parse": ("MINE = (", ["mine.py", "does not run", "SyntaxError"]),
    "imports what is not there": ("import no_such_module", ["does not run", "no_such_module"]),
    "defines something else": ("MINE = 3; OTHER = RMIA", ["no Attack called 'MINE'", "OTHER"]),
    "defines nothing": ("", ["no Attack called 'MINE'", "RMIA"]),
    "takes a known name": ("MINE = ATTACKS['lira']", ["'lira'", "rename"]),
    "statistic raises": ("MINE = make(lambda view: 1 / 0)", ["mine", "ZeroDivisionError", "mine.py, line 10"]),
    "statistic is not callable": (
        "MINE = Attack('mine', 3, NoCalibration())",
        ["mine", "statistic", "3"],
    ),
    "statistic has another shape": (
        "MINE = make(lambda view: view.target[:-1])",
        ["(119, 1)", "(120, 1)"],
    ),
    "statistic has one axis": ("MINE = make(lambda view: view.target[:, 0])", ["(120,)", "(120, 1)"]),
    "statistic is text": ("MINE = make(lambda view: 'high')", ["mine", "ValueError", "does not run"]),
    "statistic is NaN somewhere": (
        "MINE = make(lambda view: np.where(np.arange(120)[:, None] == 17, np.nan, view.target))",
        ["mine", "not finite", "record 17", "check the signals"],
    ),
    "statistic divides by zero": ("MINE = make(lambda view: view.target / 0)", ["not finite", "record 0, 1, 2, 3, 4"]),
    "statistic cannot be hashed": ("MINE = Attack('mine', NotFrozen(), NoCalibration())", ["mine", "frozen dataclass"]),
    "has a slash in its name": ("MINE = Attack('a/b', S(3), NoCalibration())", ["'a/b'", "slash"]),
    "has a formula as its name": ("MINE = Attack('=cmd', S(3), NoCalibration())", ["'=cmd'", "start with a letter"]),
    "votes without a population": ("MINE = make(len, views=VotesOfViews())", ["mine", "add a calibration"]),
    "asks for too large a population": (
        "MINE = Attack('mine', RMIA.statistic, RMIA.calibration, population=FreshPopulation(999))",
        ["999", "from 2 to", "change the size"],
    ),
}


@pytest.mark.parametrize("name", USER_FILES)
def test_attack_files(name: str, signals_file: Write, refused: Callable[..., str], tmp_path: Path) -> None:
    code, says = USER_FILES[name]
    (tmp_path / "mine.py").write_text(HEADER + code)
    sentence = refused(signals_file(), "--attack", "lira", "--attack", f"{tmp_path / 'mine.py'}:MINE")
    for part in says:
        assert part in sentence


def test_attack_files_that_are_not_there(signals_file: Write, refused: Callable[..., str], tmp_path: Path) -> None:
    file = signals_file()
    assert "there is no Python file" in refused(file, "--attack", f"{tmp_path}/none.py:MINE")
    assert "there is no Python file" in refused(file, "--attack", f"{tmp_path}/{'a' * 300}.py:MINE")
    assert "FILE.py:NAME" in refused(file, "--attack", "mine.py")


def test_within_class_needs_labels(signals_file: Write, refused: Callable[..., str], tmp_path: Path) -> None:
    own = HEADER + "MINE = Attack('mine', RMIA.statistic, CauchyCombination(), population=WithinClass())"
    (tmp_path / "mine.py").write_text(own)
    options = ["--attack", f"{tmp_path / 'mine.py'}:MINE"]
    sentence = refused(signals_file(replace={"labels": None}), *options)
    assert "needs a label" in sentence
    assert "store `labels`" in sentence
    labels = np.arange(POINTS)
    assert "3 are needed: enlarge" in refused(signals_file(replace={"labels": labels}), *options)


# Recipes -------------------------------------------------------------------------------------------------------------

DEEP = "-" * 900 + "1"
RECIPES = {
    "a list as a key": "mlp?widths={[]:1}",
    "signs": "mlp?epochs=----1",
    "many signs": f"mlp?epochs={DEEP}",
    "a long sum": f"mlp?epochs={'1+' * 20_000}1",
    "deep lists": f"mlp?widths={'[' * 450}1{']' * 450}",
    "a zero byte": "mlp?epochs=1\0",
}


@pytest.mark.parametrize("name", RECIPES)
def test_options_of_recipes_that_are_not_values(name: str, command: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", X=np.eye(8), y=np.arange(8) % 2)
    words = ("--data", tmp_path / "data.npz", "--references", 2, "-o", tmp_path / "run")
    result = command("audit", "--recipe", RECIPES[name], *words)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("plmia: ")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("sizes", [("--records", 10**20, "--references", 2), ("--records", 48, "--references", 10**15)])
def test_a_design_that_no_machine_holds_is_refused(sizes: tuple[object, ...], command: Run, tmp_path: Path) -> None:
    result = command("design", *sizes, "-o", tmp_path / "run")
    assert result.exit_code == 2, result.output
    assert "00,000,000,000,00" in result.stderr  # how many were requested
    assert "GB of memory" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_too_little_memory_is_one_sentence(
    signals_file: Write, command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 9.31 GiB")

    monkeypatch.setattr("plmia.auditing.score.run_attacks", fail)
    result = command("score", signals_file(), "-o", tmp_path / "out", "--quiet")
    assert result.exit_code == 2, result.output
    assert "9.31 GiB" in result.stderr
    assert "--memory" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


# Files that are not regular ------------------------------------------------------------------------------------------

# In these, PIPE is read as each kind of file that the command takes.
READERS: dict[str, list[str]] = {
    "signals": ["score", "PIPE.npz", "-o", "OUT"],
    "signals of a report": ["report", "RUN", "--signals", "PIPE.npz"],
    "columns of subgroups": ["score", "GOOD", "-o", "OUT", "--by", "sex", "--data", "PIPE.csv"],
    "an attack": ["score", "GOOD", "-o", "OUT", "--attack", "PIPE.py:MINE"],
    "data": ["audit", "--data", "PIPE.npz", "--recipe", "sklearn:LogisticRegression", "-o", "OUT"],
    "a table": ["audit", "--data", "PIPE.csv", "--label", "y", "--recipe", "gbdt", "-o", "OUT"],
    "a Parquet table": ["audit", "--data", "PIPE.parquet", "--label", "y", "--recipe", "gbdt", "-o", "OUT"],
    "an archive": ["audit", "--data", "PIPE.tar.gz", "--recipe", "sklearn:LogisticRegression", "-o", "OUT"],
    "a recipe": ["audit", "--data", "DATA", "--recipe", "PIPE.json", "-o", "OUT"],
    "a function": ["audit", "--data", "DATA", "--recipe", "function:PIPE.py", "-o", "OUT"],
    "a design": ["design", "--records", "9", "--design", "PIPE.npy", "-o", "OUT"],
    "groups": ["design", "--records", "9", "--groups", "PIPE.npy", "-o", "OUT"],
    "a table to import": ["import", "table", "PIPE.csv", "-o", "OUT"],
    **{
        f"a target in {end}": [
            *("audit", "--data", "DATA", "--recipe", "sklearn:LogisticRegression", "--members", "MEMBERS"),
            *("--target", f"PIPE.{end}", "-o", "OUT"),
        ]
        for end in ("npy", "npz", "csv", "parquet", "onnx", "skops")
    },
    **{
        f"members in {end}": [
            *("audit", "--data", "DATA", "--recipe", "sklearn:LogisticRegression", "--target", "MEMBERS"),
            *("--members", f"PIPE.{end}", "-o", "OUT"),
        ]
        for end in ("txt", "npy", "csv")
    },
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_where_a_file_is_read(name: str, command: Run, signals_file: Write, tmp_path: Path) -> None:
    """Nobody writes to it: reading it would wait forever."""
    np.savez(tmp_path / "data.npz", X=np.eye(8), y=np.arange(8) % 2)
    np.save(tmp_path / "members.npy", np.arange(8) % 2 == 0)
    good, run = signals_file(name="good.npz"), tmp_path / "run"
    assert command("score", good, "-o", run, "--attack", "lira", "--quiet").exit_code == 0
    names = {"GOOD": good, "RUN": run, "DATA": tmp_path / "data.npz", "MEMBERS": tmp_path / "members.npy"}
    names["OUT"] = tmp_path / "out"
    words: list[object] = []
    for word in READERS[name]:
        kind, pipe, end = word.partition("PIPE")
        if pipe:
            os.mkfifo(tmp_path / f"pipe{end.partition(':')[0]}")
        words.append(f"{kind}{tmp_path}/pipe{end}" if pipe else names.get(word, word))
    result = command(*words)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("plmia: ")
    assert result.stderr.count("\n") == 1
    assert "pipe" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there are no device files")
def test_a_device_and_a_loop_of_links_are_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "zero.npz").symlink_to("/dev/zero")
    (tmp_path / "loop.npz").symlink_to(tmp_path / "loop.npz")
    assert "device" in refused(tmp_path / "zero.npz")
    assert "loop.npz" in refused(tmp_path / "loop.npz")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
@pytest.mark.parametrize("part", ["store.json", "membership.npy", "signals.npy", "labels.npy", "records"])
def test_a_pipe_in_a_store_is_refused(part: str, command: Run, tmp_path: Path) -> None:
    assert command("design", "--records", 40, "--references", 2, "-o", tmp_path / "run", "--quiet").exit_code == 0
    run, rng = Run_(tmp_path / "run"), np.random.default_rng(0)
    for model in run.models:
        run.record(model, confidence=rng.normal(size=40), labels=np.arange(40) % 2)
    path = tmp_path / "run" / "signals" / part
    path = next(path.iterdir()) if path.is_dir() else path
    path.unlink()
    os.mkfifo(path)
    for words in (["score", tmp_path / "run"], ["score", tmp_path / "run" / "signals", "-o", tmp_path / "out"]):
        result = command(*words)
        assert result.exit_code == 2, result.output
        assert result.stderr.count("\n") == 1


AUDIT = ("--label", "y", "--recipe", "sklearn:RandomForestClassifier")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
@pytest.mark.parametrize("name", ["pipe", "pipe.csv", "pipe.npz"])
def test_data_from_a_pipe_are_to_be_written_to_a_file(name: str, command: Run, tmp_path: Path) -> None:
    """Its name does not matter, nor whether columns are named."""
    os.mkfifo(tmp_path / name)
    for options in (AUDIT, AUDIT[2:]):
        result = command("audit", "--data", tmp_path / name, *options, "-o", tmp_path / "out")
        assert result.exit_code == 2, result.output
        assert "to a file" in result.stderr


@pytest.mark.parametrize("options", [AUDIT, AUDIT[2:]])
def test_a_folder_as_data_names_the_files_in_it(options: tuple[str, ...], command: Run, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    for k in range(7):
        (folder / f"t{k}.csv").write_text("y\n1\n")
    result = command("audit", "--data", folder, *options, "-o", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert "t0.csv" in result.stderr
    assert "2 more" in result.stderr


def test_a_folder_as_signals_names_the_files_in_it(command: Run, signals_file: Write, tmp_path: Path) -> None:
    result = command("score", signals_file(name="mine.npz").parent, "-o", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert "mine.npz" in result.stderr


def test_an_empty_folder_as_data_is_told_from_a_data_set(command: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = command("audit", "--data", tmp_path / "empty", *AUDIT, "-o", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert "no file that ends in" in result.stderr
    assert ".csv" in result.stderr


# Warnings ------------------------------------------------------------------------------------------------------------

LOUD = """
import warnings
warnings.warn("when it is read")
def train(X, y, seed):
    warnings.simplefilter("always")
    warnings.warn("did not converge", RuntimeWarning)
    return X[:3]
def query(model, X, y):
    warnings.warn("is slow")
    p = 1 / (1 + abs(X[:, :1]))
    import numpy as np
    return np.concatenate([p, 1 - p], axis=1)
"""


def test_quiet_silences_the_warnings_of_others_and_of_workers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", X=rng.normal(size=(200, 3)), y=np.arange(200) % 2)
    (tmp_path / "loud.py").write_text(LOUD)
    for number, (quiet, silent) in enumerate([(["--quiet"], True), ([], False)]):
        words = ["audit", "--data", "data.npz", "--recipe", "function:loud.py", "--references", "4"]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONWARNINGS"}
        done = subprocess.run(
            [*COMMAND, *words, "--workers", "2", "-o", f"run{number}", "--attack", "attack-p", *quiet],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert ("did not converge" in done.stderr) != silent
        assert (done.stderr == "") == silent


# Where to write ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["a file", "under a file", "no such device", "name too long"])
def test_an_output_folder_that_cannot_be_written(kind: str, signals_file: Write, command: Run, tmp_path: Path) -> None:
    """Permissions are no part of it: whoever runs the tests may be allowed everything."""
    file, taken = signals_file(), tmp_path / "taken"
    taken.write_text("something of mine")
    folder = {
        "a file": taken,
        "under a file": taken / "deep" / "er",
        "no such device": Path("/proc/plmia/out"),
        "name too long": tmp_path / "new" / ("a" * 300),
    }[kind]
    before = sorted(tmp_path.rglob("*"))
    result = command("score", file, "-o", folder)
    assert result.exit_code == 2
    assert result.stdout == ""
    said = f"plmia: {taken} is a file, a folder is needed" if "a file" in kind else "plmia: cannot write to "
    assert result.stderr.startswith(said)
    assert "choose another folder" in result.stderr
    assert result.stderr.count("\n") == 1
    assert taken.read_text() == "something of mine"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits the size of files in the child process")
@pytest.mark.parametrize("room", [1, 3_000, 25_000])
def test_a_disk_that_is_full(room: int, signals_file: Write, command: Run, tmp_path: Path) -> None:
    import resource

    out, file = tmp_path / "out", signals_file(points=400)
    assert command("score", file, "-o", out, "--quiet", "--attack", "lira").exit_code == 0
    before = _snapshot(out)
    for folder in (out, tmp_path / "new" / "er"):
        done = subprocess.run(
            [*COMMAND, "score", str(file), "-o", str(folder)],
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
            check=False,
            timeout=120,
        )
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(f"plmia: cannot write {folder}")
        assert done.stderr.endswith("make room or use another folder\n")
        assert done.stderr.count("\n") == 1
    assert _snapshot(out) == before
    assert not (tmp_path / "new").exists()


def test_a_disk_that_is_full_when_the_metrics_are_written(
    signals_file: Write, command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, file = tmp_path / "out", signals_file()
    assert command("score", file, "-o", out, "--quiet", "--attack", "lira").exit_code == 0
    before = _snapshot(out)
    create = Staging.create

    def full(staging: Staging, name: str) -> BinaryIO:
        if name == "metrics.json":
            (staging.path / name).write_text("{")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create(staging, name)

    monkeypatch.setattr(Staging, "create", full)
    for folder in (out, tmp_path / "new"):
        result = command("score", file, "-o", folder)
        assert result.exit_code == 2
        assert "No space left on device" in result.stderr
        assert result.stderr.count("\n") == 1
    assert _snapshot(out) == before
    assert not (tmp_path / "new").exists()


def test_attacks_in_one_list_are_refused(refused: Callable[..., str], signals_file: Write) -> None:
    said = refused(signals_file(), "--attack", "lira,rmia")
    assert "repeat --attack for each (--attack lira --attack rmia)" in said


def test_a_file_in_place_of_the_folder_is_refused(command: Run, signals_file: Write, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    result = command("score", signals_file(), "-o", tmp_path / "file")
    assert result.exit_code == 2
    assert f"{tmp_path / 'file'} is a file, a folder is needed for the results: choose another folder" in result.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_groups_of_signals_by_another_name_are_refused(refused: Callable[..., str], signals_file: Write) -> None:
    said = refused(signals_file(replace={"group": np.arange(POINTS) // 2}, points=POINTS))
    assert "holds 'group', which is not known, but no 'groups'" in said


def test_arrays_beside_signals_that_are_not_used_are_noted(command: Run, signals_file: Write, tmp_path: Path) -> None:
    result = command("score", signals_file(replace={"member": np.arange(3)}), "-o", tmp_path / "out", "--verbose")
    assert "Array 'member' of" in result.stdout
    assert "did you mean 'membership'?" in result.stdout
