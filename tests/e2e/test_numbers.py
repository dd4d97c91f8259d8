"""Numbers that no command or recipe can work with: infinite, not a number, negative, zero, or hundreds of digits long.

Every numeric option ends with a right result, or with exit code 2 and one line on standard error.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click.testing
import numpy as np
import pytest

from plmia.cli.commands import audit as audit_command
from plmia.data import memory
from plmia.data.designs import audit_design
from plmia.data.memory import memory_limit, parse_size
from plmia.data.npz import load_npz
from plmia.errors import DataError, MemoryLimitError, SignalsError, count_text
from plmia.training.engines import Inline

Run = Callable[..., click.testing.Result]

LONG = "9" * 400
VALUES = ("inf", "-inf", "nan", "-1", "0", "1e400", "1e-320", LONG, f"-{LONG}", "1" + "0" * 5000)
# Numbers as text, with the places that they take in each command.
SIZED = tuple(f"--memory={{}}{unit}" for unit in ("", "GB", "TiB"))
TIMED = tuple(f"--budget={{}}{unit}" for unit in ("", "s", "h", "flop", "PFLOP"))
OPTIONS = {
    "plan sig.npz --attack rmia --quiet": ("--view-cost={}", "--fpr={}", "--target={}", "--seed={}", *TIMED),
    "design -o out --quiet": ("--records={} --references=4", "--records=10 --references={}", "--records=10 --seed={}"),
    "score sig.npz -o out --attack rmia --quiet": (
        *("--target={}", "--references={}", "--population={}", "--trainings={}", "--prior={}", "--seed={}"),
        *SIZED,
    ),
    "screen sig.npz -o out --quiet": ("--target={}", "--population={}", "--seed={}"),
    "compare scored other --attack rmia": ("--at-fpr={}", "--confidence={}", "--seed={}", *SIZED),
    "report scored --quiet": ("--target={}", *SIZED),
    "gate scored --quiet": (
        "--max-tpr={} --at-fpr=0.1",
        "--max-tpr=0.1 --at-fpr={}",
        "--max-tpr=0.1 --at-fpr=0.1 --confidence={}",
    ),
    "audit --data data.npz --recipe sklearn:GaussianNB -o out --attack rmia --quiet": (
        *("--references={}", "--population={}", "--trainings={}", "--prior={}", "--workers={}", "--gpus={}"),
        "--references=2 --seed={}",
        "--engine=ray --ray-address=127.0.0.1:9 --gpus={}",
    ),
    "demo -o out --quiet": ("--references={}", "--references=3 --seed={}"),
    "reproduce table-2 --quick --quiet -o out": ("--references={}", "--seed={}"),
}
RECIPES = {
    "mlp": ("widths=4&epochs=1", ("widths", "epochs", "batch", "lr", "weight_decay", "momentum", "stack")),
    "gbdt": ("rounds=2", ("rounds", "learning_rate", "subsample", "depth")),
    "wide-resnet": (
        "depth=10&width=1&epochs=1",
        ("depth", "width", "epochs", "batch", "lr", "momentum", "weight_decay", "warmup"),
    ),
    "sklearn:LogisticRegression": ("", ("C", "max_iter", "tol")),
    "sklearn:RandomForestClassifier": ("n_estimators=2", ("n_estimators", "max_depth", "min_samples_leaf")),
}


def shortened(value: str) -> str:
    return value if len(value) < 10 else f"{value[:3]}-{len(value)}-characters"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, simulate: Callable[..., dict[str, np.ndarray]]) -> Path:
    """A folder with signals, data, images and two results."""
    folder, rng = tmp_path_factory.mktemp("numbers"), np.random.default_rng(0)
    np.savez(folder / "sig.npz", **simulate(0))
    y = np.arange(60) % 2
    np.savez(folder / "data.npz", X=rng.normal(y[:, None], 1.0, (60, 4)).astype(np.float32), y=y)
    np.savez(folder / "images.npz", X=rng.random((60, 8, 8)).astype(np.float32), y=y)
    from plmia import score

    for name, seed in (("scored", 0), ("other", 1)):
        score(folder / "sig.npz", folder / name, attacks=["rmia"], seed=seed, progress=False)
    return folder


@pytest.fixture
def outcome(place: Path, command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Run a command; it ends with exit code 0, or with one line on standard error. Return the exit code."""
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(audit_command, "default_engine", lambda *_a, **_o: Inline())

    def run(line: str, *more: str) -> int:
        result = command(*line.split(), *more)
        shown = f"{line[:100]}: {result.output[-2000:]} {result.exception!r:.500}"
        assert result.exit_code in ((0, 2, 3) if line.startswith("gate") else (0, 2)), shown
        if result.exit_code == 2 and not (line.startswith("gate") and not result.stderr):
            assert result.stderr.count("\n") == 1, shown
            assert result.stderr.startswith("plmia: "), shown
            assert len(result.stderr) < 2000 or line.startswith("plan"), shown
        return result.exit_code

    return run


@pytest.mark.parametrize("value", VALUES, ids=shortened)
@pytest.mark.parametrize(
    ("line", "option"), [(line, option) for line, options in OPTIONS.items() for option in options]
)
def test_numbers_of_options(line: str, option: str, value: str, outcome: Callable[..., int]) -> None:
    outcome(f"{line} {option.format(value)}")


@pytest.mark.parametrize("value", VALUES, ids=shortened)
@pytest.mark.parametrize(("name", "option"), [(name, option) for name, (_, own) in RECIPES.items() for option in own])
def test_numbers_of_recipes(name: str, option: str, value: str, outcome: Callable[..., int], tmp_path: Path) -> None:
    given = [pair for pair in RECIPES[name][0].split("&") if pair and not pair.startswith(f"{option}=")]
    data = "images.npz" if name == "wide-resnet" else "data.npz"
    line = f"audit --data {data} --references 2 --attack rmia --quiet -o out --recipe"
    outcome(line, f"{name}?{'&'.join([*given, f'{option}={value}'])}")
    if name in ("mlp", "gbdt") and len(value) < 1000:
        json_number = {"inf": "Infinity", "-inf": "-Infinity"}.get(value, value.replace("nan", "NaN"))
        (tmp_path / "recipe.json").write_text(f'{{"recipe": "{name}", "{option}": {json_number}}}')
        parse = (
            f"{line} recipe.json --target none.npz --members none.npz"  # refused at the latest where it looks for these
        )
        assert outcome(parse) == 2


@pytest.mark.parametrize("recipe", ["mlp?epochs=1&lr=1e300", "mlp?epochs=1&weight_decay=1e300", "mlp?epochs=1&lr=1e29"])
def test_rates_that_diverge(recipe: str, outcome: Callable[..., int]) -> None:
    """Too large for 32-bit floats, or so large that no number stays finite."""
    assert outcome("audit --data data.npz --references 2 --attack rmia --quiet -o out --recipe", recipe) == 2


def test_numbers_in_python() -> None:
    """Longer than Python would write them."""
    with pytest.raises(DataError, match=r"more than 10\^5000 models and 10 records needs more than 10\^4992 GB"):
        audit_design(10, 10**5000, np.random.default_rng(0))
    with pytest.raises(MemoryLimitError, match=r"more than 10\^5000 bytes is above 1,000,000 TB"):
        parse_size(10**5000)
    assert count_text(1_234_567) == "1,234,567"
    assert parse_size("2GB") == 2 * 10**9


def test_the_cost_of_a_view(outcome: Callable[..., int], command: Run) -> None:
    assert outcome("plan sig.npz --attack rmia --quiet --view-cost inf") == 2
    assert "--view-cost" in command("plan", "sig.npz", "--attack", "rmia", "--view-cost", "1e400").stderr


def test_compressed_arrays_must_fit_the_memory_limit(tmp_path: Path, command: Run, outcome: Callable[..., int]) -> None:
    """They are read as a whole; the directory of the file tells their sizes before anything is read."""
    arrays = {"signals": np.zeros((10, 1_000_000), np.float32), "other": np.zeros(10**7)}
    membership = np.zeros((10, 1_000_000), np.bool_)
    np.savez_compressed(tmp_path / "small.npz", **arrays, membership=membership)
    np.savez(tmp_path / "plain.npz", **arrays, membership=membership)
    names = ("signals", "membership")
    # Twice 50 MB in addition to Python and its libraries; `other` is not read.
    with memory_limit(340 * 10**6, tmp_path):
        with pytest.raises(MemoryLimitError, match=r"small.npz needs about 357 MB .* 340 MB: .*numpy.savez instead"):
            load_npz(tmp_path / "small.npz", names, "`signals`", SignalsError)
        assert memory.is_mapped(load_npz(tmp_path / "plain.npz", names, "`signals`", SignalsError)["signals"])
    with memory_limit(360 * 10**6, tmp_path):
        assert load_npz(tmp_path / "small.npz", names, "`signals`", SignalsError)["signals"].shape == (10, 1_000_000)
    assert outcome("score small.npz -o out --memory 300MB") == 2
    assert "numpy.savez instead of" in command("score", "small.npz", "-o", "out", "--memory", "300MB").stderr


LOGGING = """
import logging
import numpy as np

logging.basicConfig()

def train(X, y, seed):
    logging.warning("logged below an error")
    logging.error("logged as an error")
    return X[y == 1].mean(axis=0) - X[y == 0].mean(axis=0)

def query(model, X, y):
    return np.stack([-(X @ model), X @ model], axis=1)
"""


@pytest.mark.parametrize("workers", ["inline", "process"])
def test_quiet_logs_errors_only(workers: str, place: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(LOGGING)
    engine = (
        "import plmia.cli.commands.audit as a; from plmia import Inline; a.default_engine = lambda *_, **__: Inline(); "
    )
    code = f"{engine if workers == 'inline' else ''}from plmia.cli.main import main; main(prog_name='plmia')"
    line = f"audit --data {place / 'data.npz'} --recipe function:own.py --references 2 --attack rmia --workers 1"
    for option in ("--quiet", "--verbose"):
        given = [*line.split(), option, "-o", option.strip("-")]
        done = subprocess.run([sys.executable, "-c", code, *given], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "logged as an error" in done.stderr
        assert ("logged below an error" in done.stderr) == (option == "--verbose")
