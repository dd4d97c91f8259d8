"""What the README shows is what the software does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND = [sys.executable, "-c", "from plmia.cli.main import main; main(prog_name='plmia')"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder that looks like a checkout, as far as the README's commands care."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


def run(words, folder):
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, encoding="utf-8", check=False)


def test_the_tour_is_what_the_command_prints(checkout):
    tour = re.search(r"<!-- tour -->\n```console\n\$ plmia ([^\n]*)\n(.*?)```", README, flags=re.DOTALL)
    assert tour is not None
    result = run(COMMAND + tour[1].split(), checkout)
    assert result.returncode == 0, result.stderr
    assert result.stdout == tour[2]


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[1:])
def test_each_python_block_runs(checkout, block):
    run([*COMMAND, "score", "examples/cifar10_cnn_slice.npz", "-o", "out", "--quiet"], checkout)
    result = run([sys.executable, "-W", "error", "-c", block], checkout)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_the_attack_of_the_contributing_guide_runs(checkout):
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)
    (checkout / "contrast.py").write_text(block, encoding="utf-8")
    words = ["score", "examples/cifar10_cnn_slice.npz", "-o", "own", "--attack", "contrast.py:CONTRAST"]
    result = run(COMMAND + words, checkout)
    assert result.returncode == 0, result.stderr
    assert "contrast" in result.stdout
