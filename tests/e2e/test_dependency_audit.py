"""The script that compares pinned versions with known vulnerabilities: what fails, what is skipped, nothing hangs.

It runs with a stand-in for pip-audit, and with pip-audit itself and a service on this machine where `make
vulnerabilities` has installed it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

AUDITING_PYTHON = Path(f"{sys.prefix}-audit") / "bin" / "python"
STAND_IN = """
import pathlib, sys, time
folder = pathlib.Path(__file__).parent
service = sys.argv[sys.argv.index("--vulnerability-service") + 1]
answer = (folder / f"{service}.json")
time.sleep(60 if (folder / "hang").exists() else 0)
print(answer.read_text() if answer.exists() else sys.exit("ConnectionError"))
sys.exit(1)
"""


def vulnerable(*fixed_in: str) -> dict[str, Any]:
    flaw = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": list(fixed_in), "description": ""}
    return {"name": "shaky", "version": "1.0", "vulns": [flaw]}


FINE = {"name": "solid", "version": "2.0", "vulns": []}
SKIPPED = {"name": "solid", "skip_reason": "Dependency not found on PyPI"}


def run_script(repository: Path, stand_in: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (stand_in / "pip_audit.py").write_text(STAND_IN)
    script = repository / "scripts" / "audit_dependencies.py"
    return subprocess.run(
        [sys.executable, script, *options],
        env=os.environ | {"PYTHONPATH": str(stand_in)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def answer(folder: Path, service: str, *packages: dict[str, Any]) -> None:
    (folder / f"{service}.json").write_text(json.dumps({"dependencies": packages, "fixes": []}))


def test_a_vulnerability_with_a_fix_fails(repository: Path, tmp_path: Path) -> None:
    answer(tmp_path, "pypi", FINE, vulnerable("1.1", "2.0"))
    done = run_script(repository, tmp_path)
    assert done.returncode == 1
    assert "shaky 1.0: PYSEC-1, CVE-1 (fixed in 1.1, 2.0)" in done.stdout
    assert "2 pinned packages compared: 1 vulnerable, 1 with a fix" in done.stdout


def test_a_vulnerability_without_a_fix_is_printed_only(repository: Path, tmp_path: Path) -> None:
    answer(tmp_path, "pypi", FINE, vulnerable())
    done = run_script(repository, tmp_path)
    assert done.returncode == 0
    assert "shaky 1.0: PYSEC-1, CVE-1 (no version fixes it)" in done.stdout


@pytest.mark.parametrize("name", ["PYSEC-1", "CVE-1"])
def test_what_is_ignored_does_not_count(name: str, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(repository / "scripts"))
    script = __import__("audit_dependencies")
    assert len(script.vulnerabilities([vulnerable("1.1")])) == 1
    monkeypatch.setitem(script.IGNORED, name, "only on Windows")
    assert script.vulnerabilities([vulnerable("1.1")]) == []


def test_an_index_that_skips_everything_is_not_an_answer(repository: Path, tmp_path: Path) -> None:
    answer(tmp_path, "pypi", SKIPPED, SKIPPED)
    done = run_script(repository, tmp_path)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1)
    assert "dependency audit skipped" in done.stdout
    answer(tmp_path, "osv", FINE, vulnerable("1.1"))
    assert run_script(repository, tmp_path).returncode == 1


def test_packages_without_data_are_counted(repository: Path, tmp_path: Path) -> None:
    answer(tmp_path, "pypi", SKIPPED, FINE)
    assert "1 pinned packages compared (1 others are unknown there)" in run_script(repository, tmp_path).stdout


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "{}"])
def test_an_answer_that_cannot_be_read_is_none(text: str, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "pypi.json").write_text(text)
    done = run_script(repository, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "dependency audit skipped" in done.stdout


def test_a_service_that_hangs_is_given_up(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    begin = time.monotonic()
    done = run_script(repository, tmp_path, "--timeout", "1")
    assert time.monotonic() - begin < 30
    assert "dependency audit skipped" in done.stdout


class _Service(BaseHTTPRequestHandler):
    """Answers like OSV: shaky 1.0 has a vulnerability that 1.1 fixes."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = asked["package"]["name"]
        affected = {
            "package": {"name": name, "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}],
        }
        flaw = {"id": "PYSEC-1", "aliases": ["CVE-1"], "summary": "", "details": "", "affected": [affected]}
        found = {"vulns": [flaw]} if (name, asked["version"]) == ("shaky", "1.0") else {}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/query"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.skipif(not AUDITING_PYTHON.exists(), reason="make vulnerabilities has not installed pip-audit")
@pytest.mark.parametrize(("pin", "code"), [("shaky==1.0", 1), ("shaky==1.1", 0)])
def test_pip_audit_itself(pin: str, code: int, service: str, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "pins.txt").write_text(f"{pin}\nsolid==2.0 ; python_version >= '3.11'\n")
    words = ["scripts/audit_dependencies.py", tmp_path / "pins.txt", "--osv-url", service]
    done = subprocess.run(
        [AUDITING_PYTHON, *words],
        cwd=repository,
        env=os.environ | {"NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("shaky 1.0: PYSEC-1, CVE-1 (fixed in 1.1)" in done.stdout) == bool(code)
    assert "2 pinned packages compared" in done.stdout
