"""The import check finds each kind of violation; the package has none and starts without slow packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKER = ROOT / "scripts" / "check_imports.py"


def run_python(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=False)


def check(root: Path, **files: str) -> list[str]:
    """Write the files (``recipes__mlp`` is ``recipes/mlp.py``) and return the lines the checker prints."""
    for name, source in files.items():
        path = root / "src" / "plmia" / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    done = run_python(CHECKER, root)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert done.returncode == (1 if lines else 0)
    return lines


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("attacks", "from plmia.pointwise import GaussianLR\nfrom plmia import calibration, errors\n"),
        ("attacks", "from .pointwise import GaussianLR\nfrom . import errors\n"),
        ("gaussian", "import plmia.view\n"),
        ("cli", "from plmia import __version__, evaluation, report, results\n"),
        ("recipes__mlp", "from ..numerics import logit\nfrom . import stacked\nimport plmia.recipes.base\n"),
        ("recipes__mlp", "import torch\nfrom torch import nn\ndef train():\n    import torch.nn\n"),
        ("recipes__wide_resnet", "import torch.nn as nn\n"),
        ("recipes__function", "def train():\n    import torch.nn\n"),
        ("recipes__mlp", "def query(model):\n    model.eval()\n"),
        ("training", "def run():\n    import ray\n"),
        ("numerics", "import scipy.special\nfrom scipy.special import log_ndtr\nimport statistics\n"),
        ("metrics", "def interval():\n    from scipy import stats\n"),
        ("interop", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas\n"),
        ("signals", "import numpy as np\nnp.load('x.npz', allow_pickle=False)\n"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, module: str, source: str) -> None:
    assert check(tmp_path, **{module: source}) == []


@pytest.mark.parametrize(
    ("module", "source", "line", "message"),
    [
        ("gaussian", "from plmia.attacks import LIRA\n", 1, "gaussian may not import attacks: attacks"),
        ("gaussian", "from plmia import attacks\n", 1, "gaussian may not import attacks: attacks"),
        ("gaussian", "\nimport plmia.attacks\n", 2, "gaussian may not import attacks: attacks"),
        ("gaussian", "\n\nfrom .attacks import LIRA\n", 3, "gaussian may not import attacks: attacks"),
        ("gaussian", "from . import attacks\n", 1, "gaussian may not import attacks: attacks"),
        ("gaussian", "def f():\n    import plmia.attacks\n", 2, "gaussian may not import attacks: attacks"),
        ("recipes__mlp", "from ..scoring import score\n", 1, "recipes may not import scoring: it may"),
        ("theory", "from plmia.metrics import auc\n", 1, "theory may not import metrics: it may"),
        ("progress", "from plmia import numerics\n", 1, "progress may not import numerics: it may"),
        ("scoring", "from plmia import PL_MIA\n", 1, "scoring may not import PL_MIA: import from"),
        ("scoring", "import plmia\n", 1, "scoring may not import plmia: import from"),
        ("utils", "", 1, "utils is not in DATA_FLOW: add it to the table"),
        ("scoring", "def f():\n    import torch\n", 2, "scoring may not import torch: only engines and recipes"),
        ("scoring", "def f():\n    import ray\n", 2, "scoring may not import ray: only engines and recipes"),
        ("data", "def f():\n    import xgboost\n", 2, "data may not import xgboost: only engines and recipes"),
        ("recipes__mlp", "import sklearn\n", 1, "recipes may not import sklearn at the top"),
        ("recipes__torch_device", "import torch.nn as nn\n", 1, "recipes may not import torch at the top"),
        ("recipes__gbdt", "import lightgbm\n", 1, "recipes may not import lightgbm at the top"),
        ("metrics", "import scipy.stats\n", 1, "metrics may not import scipy.stats at the top"),
        ("metrics", "from scipy import stats\n", 1, "metrics may not import scipy.stats at the top"),
        ("metrics", "from scipy.stats import beta\n", 1, "metrics may not import scipy.stats at the top"),
        ("metrics", "from sklearn.metrics import auc\n", 1, "metrics may not import sklearn at the top"),
        ("interop", "try:\n    import pandas\nfinally:\n    pass\n", 2, "interop may not import pandas at"),
        ("store", "class C:\n    import sklearn\n", 2, "store may not import sklearn at the top"),
        ("store", "def f():\n    from pickle import load\n", 2, "store may not import pickle: loading"),
        ("store", "x = eval('1')\n", 1, "eval() can run any code"),
        ("store", "exec('x = 1')\n", 1, "exec() can run any code"),
        ("store", "load('x', allow_pickle=True)\n", 1, "allow_pickle must be False"),
        ("store", "load('x', allow_pickle=trusted)\n", 1, "allow_pickle must be False"),
        ("store", "run('ls', shell=True)\n", 1, "shell must be False"),
        ("store", "x = 1\ny = = 2\n", 2, "not Python: invalid syntax"),
    ],
)
def test_each_violation_is_found(tmp_path: Path, module: str, source: str, line: int, message: str) -> None:
    (found,) = check(tmp_path, **{module: source})
    assert found.startswith(f"src/plmia/{module.replace('__', '/')}.py:{line}: {message}")


def test_every_violation_is_listed(tmp_path: Path) -> None:
    found = check(tmp_path, design="from plmia import cli\nimport pickle\n", errors="import plmia.cli\n")
    assert [line.rsplit(":", maxsplit=1)[0] for line in found] == [
        "src/plmia/design.py:1: design may not import cli",
        "src/plmia/design.py:2: design may not import pickle",
        "src/plmia/errors.py:1: errors may not import cli",
    ]


def test_a_tree_without_modules_fails(tmp_path: Path) -> None:
    (found,) = check(tmp_path)
    assert "no Python files" in found


def test_the_package_has_no_violation() -> None:
    assert check(ROOT) == []


@pytest.mark.parametrize("module", ["plmia", "plmia.cli"])
def test_import_leaves_slow_packages_out(module: str) -> None:
    done = run_python("-c", f"import sys, {module}; print(*sys.modules, sep='\\n')")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines())
    assert module in loaded
    assert loaded.isdisjoint({"torch", "lightgbm", "ray", "pandas", "scipy.stats", "sklearn"})
