"""The list of licences has every pinned package, with the licence that the installed package states."""

from __future__ import annotations

import re
import runpy
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "list_licences.py"))
PAGE: Path = SCRIPT["PAGE"]


def problems(page: str) -> list[str]:
    """What the page lacks or says wrongly."""
    rows = re.findall(r"^\| (\S+) \| (\S+) \| (.+) \|$", page, re.MULTILINE)
    listed = {name: (version, licence) for name, version, licence in rows if name != "package"}
    pinned: dict[str, str] = SCRIPT["pinned"]()
    found = [f"{name} is not listed" for name in sorted(pinned.keys() - listed.keys())]
    found += [f"{name} is not in constraints.txt" for name in sorted(listed.keys() - pinned.keys())]
    for name, (version, licence) in listed.items():
        try:
            package = distribution(name)
        except PackageNotFoundError:  # of another platform, or only installed for a build
            continue
        if version.partition("+")[0] != pinned.get(name, version):
            found.append(f"{name} {version} is listed, {pinned[name]} is pinned")
        if package.version.partition("+")[0] == version.partition("+")[0] and SCRIPT["licence"](package) != licence:
            found.append(f"{name}: {licence} is listed, {SCRIPT['licence'](package)} is stated")
    return found


def test_every_pinned_package_is_listed_with_its_licence() -> None:
    assert problems(PAGE.read_text(encoding="utf-8")) == [], "run python scripts/list_licences.py"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (r"\| click \|.*\n", "", "click is not listed"),
        (r"\| click \|", "| clack |", "clack is not in constraints.txt"),
        (r"(\| numpy \| \S+) \|.*", r"\1 | GPL-3.0 |", "numpy: GPL-3.0 is listed"),
        (r"\| numpy \| \S+", "| numpy | 1.0", "numpy 1.0 is listed"),
    ],
)
def test_what_is_missing_or_wrong_is_found(old: str, new: str, problem: str) -> None:
    page = re.sub(old, new, PAGE.read_text(encoding="utf-8"))
    assert any(found.startswith(problem) for found in problems(page))
