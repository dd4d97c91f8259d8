"""Write the licences of installed dependencies into docs/reference/licences.md.

    python scripts/list_licences.py

Lists what plmia and its extra `all` require, directly or not, as the packages state it themselves. Versions are those
of this environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "licences.md"
HEAD = """# Licences of dependencies

plmia is under Apache-2.0. It installs or, with extras, may install the packages below, under the licences that they
state. Printed by `python scripts/list_licences.py`.

| package | version | licence |
|---|---|---|
"""
_LONGEST = 60


def required(name: str, extras: frozenset[str], found: dict[str, Distribution]) -> None:
    """Collect the distributions that one requires, with its extras, in ``found``."""
    try:
        here = distribution(name)
    except PackageNotFoundError:  # of another platform
        return
    for requirement in here.requires or ():
        words, _, marker = requirement.partition(";")
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[([^]]*)\])?", words.strip())
        wanted = re.findall(r"extra == ['\"]([^'\"]+)['\"]", marker)
        if match is None or (wanted and not extras & set(wanted)):
            continue
        key = re.sub(r"[-_.]+", "-", match[1]).lower()
        inner = frozenset(extra.strip() for extra in (match[2] or "").split(",") if extra.strip())
        if key == "plmia":
            required(name, inner, found)
        elif key not in found:
            try:
                found[key] = distribution(match[1])
            except PackageNotFoundError:
                continue
            required(match[1], inner, found)


def licence(package: Distribution) -> str:
    """Licence of a package: its expression, its short text, or its classifiers."""
    about = package.metadata.json
    if expression := about.get("license_expression"):
        return str(expression)
    lines = [line for line in str(about.get("license") or "").splitlines() if line.strip()]
    if len(lines) == 1 and len(lines[0]) <= _LONGEST:
        return lines[0]
    named = [line.rpartition(" :: ")[2] for line in about.get("classifier", ()) if line.startswith("License ::")]
    named = [name for name in named if name != "OSI Approved"]
    return ", ".join(named) or (lines[0].strip()[:_LONGEST] if lines else "not stated")


def rows() -> Iterator[str]:
    found: dict[str, Distribution] = {}
    required("plmia", frozenset({"all"}), found)
    for name, package in sorted(found.items()):
        yield f"| {name} | {package.version} | {licence(package)} |"


def main() -> None:
    lines = list(rows())
    PAGE.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{PAGE.name}: {len(lines)} packages")


if __name__ == "__main__":
    main()
