"""What the documentation shows is what the software does: its code blocks run, and print what stands below them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import plmia

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
# Pages without any block that could run are all done in one process.
BLOCK = re.compile(r"^[ \t]*```(python|console|sh)\b", flags=re.MULTILINE)
RUN = [page for page in PAGES if BLOCK.search((DOCS / page).read_text(encoding="utf-8"))]
SCRIPT = ROOT / "scripts" / "make_reference.py"


def check(*pages: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(SCRIPT), "--check", *pages]
    return subprocess.run(words, capture_output=True, text=True, encoding="utf-8", check=False)


@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_a_page_print_what_it_shows(page: str) -> None:
    result = check(page)
    assert result.returncode == 0, result.stderr


def test_the_help_of_every_command_is_up_to_date() -> None:
    result = check("reference/command.md")
    assert result.returncode == 0, result.stderr


def test_a_page_that_shows_something_else_is_found(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "make_reference.py").write_bytes(SCRIPT.read_bytes())
    (tmp_path / "examples").mkdir()
    docs = tmp_path / "docs"
    docs.mkdir()
    wrong = {
        "output.md": "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n",
        "digit.md": "```python\nprint(2 / 3)\n```\n\n```text\n0.6666666656666666\n```\n",
        "silent.md": "```python\nprint(1 + 1)\n```\n",
        "error.md": "```python\n1 / 0\n```\n",
        "exit.md": "```console\n$ plmia score nothing.npz -o out\n```\n",
        "shell.md": "```sh\nmake demo\n```\n",
        "indented.md": "- so:\n\n    ```python\n    x = 1\n    ```\n",
    }
    for name, text in wrong.items():
        (docs / name).write_text(text, encoding="utf-8")
    (docs / "right.md").write_text(
        "<!-- not run: it needs a cluster -->\n```sh\nrun it\n```\n\n```python\nx = 1\n```\n\n"
        "```python\nprint(x)\n```\n\n```text\n1\n```\n\n"
        # The last digits depend on the processor.
        "```python\nprint(2 / 3)\n```\n\n```text\n0.6666666666666777\n```\n",
        encoding="utf-8",
    )
    for name in [*wrong, "right.md"]:
        words = [sys.executable, str(tmp_path / "scripts" / "make_reference.py"), "--check", name]
        result = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", check=False)
        assert result.returncode == (name in wrong), (name, result.stderr)


def test_every_public_module_is_in_the_reference() -> None:
    shown = set()
    for path in (DOCS / "reference").glob("*.md"):
        shown |= set(re.findall(r"^::: plmia\.([\w.]+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
    missing = [module for module in plmia._NAMES if module not in shown]
    assert not missing, f"add '::: plmia.{missing[0]}' to a page of docs/reference"


def test_every_page_can_be_reached() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page for page in PAGES if page not in navigation] == []
