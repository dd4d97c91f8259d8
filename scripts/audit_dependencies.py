"""Compare the pinned versions with known vulnerabilities: ``make vulnerabilities``.

    python scripts/audit_dependencies.py [FILE] [--timeout SECONDS] [--osv-url URL]

Runs pip-audit, which must be installed for the same Python, on constraints.txt or another FILE. It asks the package
index first, then OSV, each for at most SECONDS; with URL, only that OSV service.

Exit codes: 1 if a pinned version has a known vulnerability that a later version fixes; 2 without pip-audit; otherwise
0, also if no service answers, as behind mirrors that have packages only. Vulnerabilities without a fix are printed.
`IGNORED` names vulnerabilities that do not apply here, with the reason.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PINS = Path(__file__).resolve().parents[1] / "constraints.txt"
# Identifier, or one of its aliases: why it does not apply.
IGNORED: dict[str, str] = {}
_REQUEST_SECONDS = 15


@dataclass(frozen=True)
class Found:
    """A vulnerability of a pinned version."""

    package: str
    version: str
    names: tuple[str, ...]  # its identifier and aliases
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        remedy = f"fixed in {', '.join(self.fixed_in)}" if self.fixed_in else "no version fixes it"
        return f"{self.package} {self.version}: {', '.join(self.names)} ({remedy})"


def asked(pins: Path, service: list[str], seconds: float) -> list[dict[str, Any]]:
    """What a service says about each package; nothing if it does not answer in time, or knows none of them."""
    options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    words = [sys.executable, "-m", "pip_audit", "--requirement", str(pins), *options]
    try:
        # Exit code 1 is a vulnerability or a failure: what it printed tells which.
        done = subprocess.run(
            [*words, "--timeout", str(_REQUEST_SECONDS), *service],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        return []
    # Packages that an index has no data on are skipped, and pip-audit calls the whole fine even if all are.
    return packages if any("skip_reason" not in package for package in packages) else []


def vulnerabilities(packages: list[dict[str, Any]]) -> list[Found]:
    """Vulnerabilities that the packages have and that are not ignored."""
    found = [
        Found(package["name"], package["version"], (v["id"], *v.get("aliases", ())), tuple(v.get("fix_versions", ())))
        for package in packages
        for v in package.get("vulns", ())
    ]
    return [each for each in found if not IGNORED.keys() & set(each.names)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", default=PINS, metavar="FILE")
    parser.add_argument("--timeout", type=float, default=180.0, metavar="SECONDS", help="per service; 180 by default")
    parser.add_argument("--osv-url", metavar="URL", help="of another OSV service")
    given = parser.parse_args()
    if importlib.util.find_spec("pip_audit") is None:
        print("pip-audit is not installed: run make vulnerabilities, which installs it", file=sys.stderr)
        return 2
    osv = [["--vulnerability-service", "osv", "--osv-url", given.osv_url]] if given.osv_url else []
    packages: list[dict[str, Any]] = []
    for service in osv or [["--vulnerability-service", "pypi"], ["--vulnerability-service", "osv"]]:
        packages = packages or asked(given.file, service, given.timeout)
    answered = [package for package in packages if "skip_reason" not in package]
    if not packages:
        print("dependency audit skipped: no service answers with vulnerability data here")
        return 0
    found = vulnerabilities(answered)
    for each in found:
        print(each)
    fixable = [each for each in found if each.fixed_in]
    unknown = f" ({len(packages) - len(answered)} others are unknown there)" if len(packages) > len(answered) else ""
    print(f"{len(answered)} pinned packages compared{unknown}: {len(found)} vulnerable, {len(fixable)} with a fix")
    if fixable:
        print("raise these versions (make constraints ARGS=--upgrade), or explain in IGNORED why they do not apply")
    return 1 if fixable else 0


if __name__ == "__main__":
    sys.exit(main())
