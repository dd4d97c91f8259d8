"""The built packages: the same bytes from the same files, whatever their times and whoever builds them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
FILES = ("LICENSE", "README.md", "pyproject.toml", "mkdocs.yml", "CHANGELOG.md", "SECURITY.md")


def _copied(repository: Path, folder: Path, time: int) -> Path:
    """Copy what is packed, with other times and rights of the files."""
    shutil.copytree(repository / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(repository / "examples", folder / "examples")
    for name in FILES:
        shutil.copy(repository / name, folder)
    for path in folder.rglob("*"):
        os.utime(path, (time, time))
        if path.is_file():
            path.chmod(0o600 if time % 2 else 0o644)
    return folder


def _built(source: Path, out: Path, epoch: int) -> dict[str, str]:
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch)}
    words = [sys.executable, "-m", "build", "--no-isolation", "-o", str(out), str(source)]
    subprocess.run(words, check=True, capture_output=True, env=environment)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}


def test_packages_are_reproducible(repository: Path, tmp_path: Path) -> None:
    if not (repository / "src").is_dir():
        pytest.skip("not a checkout")
    one, two = (_copied(repository, tmp_path / str(time), time) for time in (1_600_000_000, 1_700_000_001))
    found = _built(one, tmp_path / "dist-1", 1_650_000_000)
    assert sorted(name.rpartition(".")[2] for name in found) == ["gz", "whl"]
    assert _built(two, tmp_path / "dist-2", 1_650_000_000) == found
    assert _built(one, tmp_path / "dist-3", 1_650_000_002) != found, "the time of the build is that of the commit"
    wheel = next((tmp_path / "dist-1").glob("*.whl"))
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    assert {"plmia/__init__.py", "plmia/py.typed", "plmia/reporting/assets/plotly-basic.min.js"} <= names
    assert not any(name.startswith(("tests", "experiments")) or name.endswith(".pyc") for name in names)
