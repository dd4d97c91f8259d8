"""Examples are short scripts that run as they are, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
MAX_LINES = 25


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) <= MAX_LINES
    words = [sys.executable, str(example)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
