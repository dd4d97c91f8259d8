"""The page on scale has the tables that the kept measurements give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_the_tables_are_those_of_the_measurements(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    scale = __import__("scale")
    page = scale.PAGE.read_text()
    for part, lines in scale.tables(json.loads(scale.MEASURED.read_text())).items():
        assert "\n".join([f"<!-- {part} -->", "", *lines, "", f"<!-- end of {part} -->"]) in page
