"""Streams that are closed or full, or whose reader has left: the command does its work and keeps its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import click.testing
import pytest

from plmia.cli.streams import Descriptor

Run = Callable[..., click.testing.Result]
Write = Callable[..., Path]
Start = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="redirections of a POSIX shell, and /dev/full")
PLMIA = ["-m", "plmia"]


@pytest.fixture
def left() -> Iterator[int]:
    """Return a pipe whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture
def start() -> Start:
    """Run Python with redirections of the shell: ``start(">&-", "-m", "plmia")``."""

    def run(redirections: str, *words: object, **streams: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, *(str(word) for word in words)],
            stdout=streams.get("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )

    return run


@pytest.mark.parametrize("redirections", ["", "2>&1"])
def test_a_reader_who_leaves_changes_nothing(
    redirections: str, start: Start, command: Run, left: int, signals_file: Write, tmp_path: Path
) -> None:
    file, out, junit = signals_file(), tmp_path / "out", tmp_path / "gate.xml"
    words = ["score", file, "--attack", "lira", "--attack", "attack-r"]
    assert command(*words, "-o", out).exit_code == 0
    done = start(redirections, *PLMIA, *words, "-o", tmp_path / "other", stdout=left)
    assert (done.returncode, done.stderr) == (0, "")
    names = ["metrics.json", "records.csv", "scores.npz"]
    assert all((tmp_path / "other" / name).read_bytes() == (out / name).read_bytes() for name in names)
    gate = ["gate", out, "--max-tpr", 0.11, "--at-fpr", 0.1, "--junit", junit]
    done = start(redirections, *PLMIA, *gate, stdout=left)
    assert (done.returncode, done.stderr) == (3, "")
    assert junit.exists()


@pytest.mark.parametrize("words", [["attacks"], ["attacks", "--json"], ["--help"], ["score", "--help"], ["--version"]])
def test_full_standard_output_ends_with_a_sentence(words: list[str], start: Start) -> None:
    done = start("> /dev/full", *PLMIA, *words)
    assert done.returncode == 2
    assert done.stderr.startswith("plmia: standard output ")
    assert done.stderr.count("\n") == 1


def test_results_are_there_if_standard_output_is_full(start: Start, signals_file: Write, tmp_path: Path) -> None:
    done = start("> /dev/full", *PLMIA, "score", signals_file(), "-o", tmp_path / "out", "--attack", "lira")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "out" / "metrics.json").exists()


@pytest.mark.parametrize("redirections", ["2> /dev/full", "2>&-", ">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_what_cannot_be_printed_is_dropped(redirections: str, start: Start, tmp_path: Path) -> None:
    done = start(redirections, *PLMIA, "attacks")
    assert (done.returncode, done.stderr) == (0, "")
    assert (done.stdout == "") == (">&-" in redirections.split())
    assert start(redirections, *PLMIA, "score", tmp_path / "none.npz", "-o", tmp_path / "out").returncode == 2


WITH_STREAMS = "import os, sys\nfrom plmia.cli.streams import standard_streams\n"


@pytest.mark.parametrize("code", [0, 2, 3, 130])
def test_text_in_a_buffer_is_written_before_the_end(code: int, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    script = f"{WITH_STREAMS}with standard_streams():\n    print('text')\n    sys.exit({code})\n"
    done = start("", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (code, "text\n", "")
    done = start("> /dev/full", "-c", script)
    assert done.returncode == (130 if code == 130 else 2)
    assert done.stderr.count("\n") == 1


def test_files_do_not_get_the_number_of_a_closed_stream(start: Start, tmp_path: Path) -> None:
    report = tmp_path / "report"
    script = f"""{WITH_STREAMS}
with standard_streams():
    with open({str(report)!r}, "w") as file:
        os.system("echo of a child; echo of a child >&2")
        print(file.fileno() > 2, os.path.samefile("/dev/null", "/dev/fd/1"), file=file)
    sys.exit(0)
"""
    done = start("<&- >&- 2>&-", "-c", script)
    assert done.returncode == 0
    assert report.read_text() == "True True\n"


PROPERTIES = f"""{WITH_STREAMS}
def properties(stream):
    return stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.isatty(), stream.fileno()
before = properties(sys.stdout), properties(sys.stderr)
with standard_streams():
    assert (properties(sys.stdout), properties(sys.stderr)) == before, before
    sys.exit(0)
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1:backslashreplace"])
@pytest.mark.parametrize("terminal", [False, True])
def test_properties_are_kept(
    unbuffered: str, encoding: str, terminal: bool, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    if terminal:
        main, side = os.openpty()
        done = start("", "-c", PROPERTIES, stdout=side)
        os.close(main)
        os.close(side)
    else:
        done = start("", "-c", PROPERTIES)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_replaced_stream_is_left_alone(start: Start) -> None:
    script = f"""{WITH_STREAMS}
import io
sys.stdout = given = io.StringIO()
with standard_streams():
    assert sys.stdout is given
    sys.exit(3)
"""
    assert start("", "-c", script).returncode == 3


def test_ctrl_c_during_imports_without_a_reader(start: Start, left: int) -> None:
    script = "import os, signal\nfrom plmia.cli.start import end\nend()"
    assert start("2>&1", "-c", script, stdout=left).returncode == 130
    assert start("2>&-", "-c", script).returncode == 130


def test_a_descriptor_keeps_its_first_failure(left: int) -> None:
    with Descriptor(left) as descriptor:
        assert [descriptor.write(b"abc"), descriptor.write(memoryview(b"ab"))] == [3, 2]
        assert isinstance(descriptor.failure, BrokenPipeError)
    os.fstat(left)  # it stays open


def test_a_full_pipe_that_is_not_blocking_is_waited_for() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data, read = bytes(range(256)) * 4096, bytearray()

    def take() -> None:
        while part := os.read(reader, 5000):
            read.extend(part)

    thread = threading.Thread(target=take)
    with Descriptor(writer) as descriptor:
        thread.start()
        assert descriptor.write(data) == len(data)
        assert descriptor.failure is None
    os.close(writer)
    thread.join()
    os.close(reader)
    assert read == data
