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
    """Write the files (``data__files`` is ``data/files.py``) and return the lines the checker prints."""
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
        ("attacks__attack", "from plmia.attacks.statistics import GaussianLR\nfrom plmia import data, errors\n"),
        ("attacks__attack", "from .statistics import GaussianLR\nfrom . import view\n"),
        ("attacks__gaussian", "import plmia.attacks.view\n"),
        ("cli__main", "from plmia import __version__, evaluation, reporting, results\n"),
        (
            "training__recipes__mlp",
            "from ...numerics import logit\nfrom . import stacked\nimport plmia.training.recipes.base\n",
        ),
        ("training__recipes__mlp", "import torch\nfrom torch import nn\ndef train():\n    import torch.nn\n"),
        ("training__recipes__wide_resnet", "import torch.nn as nn\n"),
        ("training__recipes__function", "def train():\n    import torch.nn\n"),
        ("training__recipes__mlp", "def query(model):\n    model.eval()\n"),
        ("training__train", "def run():\n    import ray\n"),
        ("numerics", "import scipy.special\nfrom scipy.special import log_ndtr\nimport statistics\n"),
        ("evaluation__metrics", "def interval():\n    from scipy import stats\n"),
        ("results__tables", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas\n"),
        ("signals__signals", "import numpy as np\nnp.load('x.npz', allow_pickle=False)\n"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, module: str, source: str) -> None:
    assert check(tmp_path, **{module: source}) == []


@pytest.mark.parametrize(
    ("module", "source", "line", "message"),
    [
        ("attacks__view", "from plmia.cli.main import main\n", 1, "attacks may not import cli: it may import only"),
        ("signals__store", "from plmia import attacks\n", 1, "signals may not import attacks: attacks comes later"),
        ("signals__store", "\nimport plmia.attacks.attack\n", 2, "signals may not import attacks: attacks"),
        ("signals__store", "\n\nfrom ..attacks import LIRA\n", 3, "signals may not import attacks: attacks"),
        ("signals__store", "from .. import attacks\n", 1, "signals may not import attacks: attacks"),
        ("signals__store", "def f():\n    import plmia.attacks.attack\n", 2, "signals may not import attacks"),
        ("training__recipes__mlp", "from ...attacks import score\n", 1, "training may not import attacks: attacks"),
        (
            "attacks__theory",
            "from plmia.evaluation.metrics import auc\n",
            1,
            "attacks may not import evaluation: it may",
        ),
        ("data__files", "from plmia import numerics\n", 1, "data may not import numerics: it may"),
        ("attacks__scoring", "from plmia import PL_MIA\n", 1, "attacks may not import PL_MIA: import from"),
        ("attacks__scoring", "import plmia\n", 1, "attacks may not import plmia: import from"),
        ("utils", "", 1, "utils is not in DATA_FLOW: add it to the table"),
        ("attacks__scoring", "def f():\n    import torch\n", 2, "attacks may not import torch: only training may"),
        ("attacks__scoring", "def f():\n    import ray\n", 2, "attacks may not import ray: only training may"),
        ("data__dataset", "def f():\n    import xgboost\n", 2, "data may not import xgboost: only training may"),
        ("training__recipes__mlp", "import sklearn\n", 1, "training may not import sklearn at the top"),
        ("training__recipes__gbdt", "import torch.nn as nn\n", 1, "training may not import torch at the top"),
        ("training__recipes__gbdt", "import lightgbm\n", 1, "training may not import lightgbm at the top"),
        ("evaluation__metrics", "import scipy.stats\n", 1, "evaluation may not import scipy.stats"),
        ("evaluation__metrics", "from scipy import stats\n", 1, "evaluation may not import scipy.stats"),
        (
            "evaluation__metrics",
            "from scipy.stats import beta\n",
            1,
            "evaluation may not import scipy.stats at the top",
        ),
        ("evaluation__metrics", "from sklearn.metrics import auc\n", 1, "evaluation may not import sklearn at the top"),
        ("results__tables", "try:\n    import pandas\nfinally:\n    pass\n", 2, "results may not import pandas at"),
        ("signals__store", "class C:\n    import sklearn\n", 2, "signals may not import sklearn at the top"),
        ("signals__store", "def f():\n    from pickle import load\n", 2, "signals may not import pickle: loading"),
        ("signals__store", "x = eval('1')\n", 1, "eval() can run any code"),
        ("signals__store", "exec('x = 1')\n", 1, "exec() can run any code"),
        ("signals__store", "load('x', allow_pickle=True)\n", 1, "allow_pickle must be False"),
        ("signals__store", "load('x', allow_pickle=trusted)\n", 1, "allow_pickle must be False"),
        ("signals__store", "run('ls', shell=True)\n", 1, "shell must be False"),
        ("signals__store", "x = 1\ny = = 2\n", 2, "not Python: invalid syntax"),
    ],
)
def test_each_violation_is_found(tmp_path: Path, module: str, source: str, line: int, message: str) -> None:
    (found,) = check(tmp_path, **{module: source})
    assert found.startswith(f"src/plmia/{module.replace('__', '/')}.py:{line}: {message}")


def test_every_violation_is_listed(tmp_path: Path) -> None:
    found = check(tmp_path, data__designs="from plmia import cli\nimport pickle\n", errors="import plmia.cli.main\n")
    assert [line.rsplit(":", maxsplit=1)[0] for line in found] == [
        "src/plmia/data/designs.py:1: data may not import cli",
        "src/plmia/data/designs.py:2: data may not import pickle",
        "src/plmia/errors.py:1: errors may not import cli",
    ]


def test_a_tree_without_modules_fails(tmp_path: Path) -> None:
    (found,) = check(tmp_path)
    assert "no Python files" in found


def test_the_package_has_no_violation() -> None:
    assert check(ROOT) == []


@pytest.mark.parametrize("module", ["plmia", "plmia.cli.main"])
def test_import_leaves_slow_packages_out(module: str) -> None:
    done = run_python("-c", f"import sys, {module}; print(*sys.modules, sep='\\n')")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines())
    assert module in loaded
    assert loaded.isdisjoint({"torch", "lightgbm", "ray", "pandas", "scipy.stats", "sklearn"})


def test_scoring_imports_no_code_for_tables_recipes_or_given_targets() -> None:
    done = run_python("-c", "import sys, plmia.cli.commands.score; print(*sys.modules, sep='\\n')")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines())
    assert "plmia.auditing.score" in loaded
    assert loaded.isdisjoint({"plmia.data.tables", "plmia.training.recipes", "plmia.auditing.predictions"})
