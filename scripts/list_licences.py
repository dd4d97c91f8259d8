"""Write the licences of installed dependencies into docs/reference/licences.md.

    python scripts/list_licences.py

Lists what plmia and its extra `all` require, directly or not, and then all other packages of constraints.txt: they test
plmia, check it and build it. Licences are as the packages state them. Versions are those of this environment.
"""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "licences.md"
CONSTRAINTS = ROOT / "constraints.txt"
HEAD = """# Licences of dependencies

plmia is under Apache-2.0. It installs or, with extras, may install the packages below, under the licences that they
state. Printed by `python scripts/list_licences.py`.

| package | version | licence |
|---|---|---|
"""
DEVELOPMENT = """
## Only for development

These packages test plmia, check it, and build it and its documentation. Users do not install them.

| package | version | licence |
|---|---|---|
"""
# pip installs these into an environment of its own to build the package, so their metadata are not found here.
_ONLY_TO_BUILD = {"editables": "MIT"}
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
    stated = str(about.get("license") or "").replace("UNKNOWN", "")
    lines = [line for line in stated.splitlines() if line.strip()]
    if len(lines) == 1 and len(lines[0]) <= _LONGEST:
        return lines[0]
    named = [line.rpartition(" :: ")[2] for line in about.get("classifier", ()) if line.startswith("License ::")]
    named = [name for name in named if name != "OSI Approved"]
    return ", ".join(named) or (lines[0].strip()[:_LONGEST] if lines else "not stated")


def pinned() -> dict[str, str]:
    """Version of each package of constraints.txt."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\n]+)", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def page() -> str:
    """Text of the page."""
    found: dict[str, Distribution] = {}
    required("plmia", frozenset({"all"}), found)
    used = [f"| {name} | {package.version} | {licence(package)} |" for name, package in sorted(found.items())]
    others = []
    for name, version in sorted(pinned().items()):
        if name in _ONLY_TO_BUILD:
            others.append(f"| {name} | {version} | {_ONLY_TO_BUILD[name]} |")
        elif name not in found:
            package = distribution(name)
            others.append(f"| {name} | {package.version} | {licence(package)} |")
    return HEAD + "\n".join(used) + "\n" + DEVELOPMENT + "\n".join(others) + "\n"


def main() -> None:
    text = page()
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE.name}: {text.count(chr(10) + '| ') - 2} packages")


if __name__ == "__main__":
    main()
