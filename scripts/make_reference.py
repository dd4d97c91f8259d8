"""Write program output into docs/: the help of every command, and the output below every code block.

    python scripts/make_reference.py [PAGE ...]            write; all pages by default
    python scripts/make_reference.py --check [PAGE ...]    change nothing, exit with 1 if a page is out of date

The blocks of a page run in order, in a temporary folder that contains examples/:

- ``python``: runs in one namespace per page; a ``text`` block right below it is its output. With ``title="mine.py"`` it
  is saved under that name instead.
- ``console``: each line ``$ command`` is run, the other lines are its output.

A comment on the line before a block marks an exception: ``<!-- not run: why -->``, ``<!-- output varies: why -->``, or
``<!-- exit code 3 -->``. Every other ``python``, ``console`` or ``sh`` block must run.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import linecache
import os
import re
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
COMMANDS = "reference/command.md"

# A comment, the fence with its language and title, the text; for a Python block also the output below it.
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?"
    r"^```(?P<language>python|console|sh)(?: title=\"(?P<title>[^\"\n]+)\")?[^\n]*\n(?P<text>.*?)^```$"
    r"(?P<below>\n\n```text\n.*?^```$)?",
    flags=re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    whole: str
    mark: str
    language: str
    title: str
    text: str
    below: str
    line: int

    @classmethod
    def of(cls, match: re.Match[str]) -> Block:
        """Make a block from a match of `BLOCK`."""
        parts = {name: match[name] or "" for name in ("mark", "language", "title", "text", "below")}
        return cls(whole=match[0], line=match.string.count("\n", 0, match.start()) + 1, **parts)

    @property
    def varies(self) -> bool:
        """Whether the output differs between runs."""
        return self.mark.startswith("output varies: ")

    @property
    def exit_code(self) -> int:
        """Expected exit code of its commands."""
        code = re.fullmatch(r"exit code (\d+)", self.mark)
        return int(code[1]) if code else 0


class PageError(Exception):
    """A block that does not run."""


def pages() -> list[str]:
    """Return the names of all pages."""
    return sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def run_page(page: str) -> str:
    """Run the blocks of a page; return its text with their current output."""
    text = (DOCS / page).read_text(encoding="utf-8")
    hidden = re.search(r"^[ \t]+```(python|console|sh)\b", text, flags=re.MULTILINE)
    if hidden:
        raise PageError(f"{page}: a {hidden[1]} block is indented, so it would not be run: remove the indentation")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    done, end = [], 0
    with tempfile.TemporaryDirectory(prefix="plmia-docs-") as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        with contextlib.chdir(folder):
            for match in BLOCK.finditer(text):
                done += [text[end : match.start()], _run(Block.of(match), page, namespace)]
                end = match.end()
    return "".join([*done, text[end:]])


def _run(block: Block, page: str, namespace: dict[str, Any]) -> str:
    """Run one block; return its text with its current output."""
    whole = block.whole
    if block.mark.startswith("not run: "):
        return whole
    if block.language == "sh":
        raise PageError(
            f"{page}, line {block.line}: make it a console block, or add a comment that says why it is not run"
        )
    if block.language == "console":
        answer = "".join(_answers(block, page))
        return whole if block.varies else whole.replace(f"\n{block.text}```", f"\n{answer}```", 1)
    if block.title:
        Path(block.title).write_text(block.text, encoding="utf-8")
        return whole
    printed = _execute(block, page, namespace)
    if printed and not block.below:
        raise PageError(f"{page}, line {block.line}: it prints {printed!r}: add a text block below it")
    if block.varies or not block.below:
        return whole
    kept = whole[: len(whole) - len(block.below)]
    return f"{kept}\n\n```text\n{printed}```"


def _execute(block: Block, page: str, namespace: dict[str, Any]) -> str:
    """Run a Python block; return its output."""
    name = f"<{page}, line {block.line}>"
    # Tracebacks and functions that look up source code need this entry.
    linecache.cache[name] = (len(block.text), None, block.text.splitlines(keepends=True), name)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            exec(compile(block.text, name, "exec"), namespace)
        except Exception as error:
            raise PageError(f"{name}: {type(error).__name__}: {error}") from error
    return printed.getvalue()


def _answers(block: Block, page: str) -> Iterator[str]:
    """Commands of a console block, each followed by its current output."""
    commands = [line for line in block.text.splitlines() if line.startswith("$ ")]
    if not commands:
        raise PageError(f"{page}, line {block.line}: no line begins with '$ '")
    for command in commands:
        words = shlex.split(command[2:], comments=True)
        programs = {
            "plmia": [sys.executable, "-c", "from plmia.cli.main import main; main(prog_name='plmia')"],
            "python": [sys.executable],
        }
        if words[0] not in programs:
            raise PageError(f"{page}, line {block.line}: {words[0]} cannot be run here: add a comment that says why")
        done = subprocess.run(
            [*programs[words[0]], *words[1:]], capture_output=True, text=True, encoding="utf-8", check=False
        )
        if done.returncode != block.exit_code:
            raise PageError(f"{page}, line {block.line}: {command} exits with {done.returncode}: {done.stderr}")
        # Error messages go to standard error; progress there is not part of the output.
        yield f"{command}\n{done.stdout or (done.stderr if block.exit_code == 2 else '')}"


def command_page() -> str:
    """Return the page with the help of every command."""
    import click

    from plmia.cli.main import main as command

    names = command.list_commands(click.Context(command))
    codes = (
        "Exit codes: 0 success, 2 bad input or not decidable (one sentence on standard error says what is wrong and "
        "what to do), 3 a gate failed, 130 interrupted by Ctrl-C. The code does not depend on who reads the output: "
        "after `plmia audit … | head`, it is that of the audit. If standard output cannot be written, for example "
        "because a disk is full, it is 2, and results on disk are complete."
    )
    parts = ["# The `plmia` command\n", f"{codes}\n"]
    for words in ([], *([name] for name in names)):
        title = " ".join(["plmia", *words])
        parts.append(f"## `{title}`\n\n```text\n{_help(words)}```\n")
    parts.append(
        "## `python -m plmia.training.remote_worker`\n\n"
        "Trains the models of an audit on a machine that has only NumPy and PyTorch; "
        f"see [GPU on another machine](../how-to/gpu-elsewhere.md).\n\n```text\n{_remote_worker_help()}```\n"
    )
    return "\n".join(parts)


def _help(words: list[str]) -> str:
    import click.testing

    from plmia.cli.main import main as command

    result = click.testing.CliRunner().invoke(command, [*words, "--help"], prog_name="plmia", terminal_width=100)
    if result.exit_code:
        raise PageError(f"plmia {' '.join(words)} --help exits with {result.exit_code}: {result.output}")
    return "".join(f"{line.rstrip()}\n" for line in result.stdout.splitlines())


def _remote_worker_help() -> str:
    # argparse reads the width from the environment; the rest of the environment is unchanged.
    environment = os.environ | {"COLUMNS": "100"}
    words = [sys.executable, "-m", "plmia.training.remote_worker", "--help"]
    return subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout


def _rounded(text: str) -> str:
    """Text with 10 digits of numbers that have more: the last digits depend on the processor."""
    return re.sub(r"\d+\.\d{11,}", lambda number: f"{float(number[0]):.10g}", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="such as tutorial/auditor.md; all by default")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a page is out of date")
    given = parser.parse_args()
    stale = 0
    for page in given.pages or sorted({*pages(), COMMANDS}):
        path = DOCS / page
        try:
            text = command_page() if page == COMMANDS else run_page(page)
        except PageError as error:
            print(error, file=sys.stderr)
            stale += 1
            continue
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if _rounded(text) == _rounded(before):
            continue
        if given.check:
            stale += 1
            diff = difflib.unified_diff(before.splitlines(), text.splitlines(), f"docs/{page}", "now", lineterm="", n=1)
            print("\n".join(diff), "run `python scripts/make_reference.py`", sep="\n", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"docs/{page}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
