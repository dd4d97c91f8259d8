"""Audits of functions, closures and notebook classes: models are reused for the same code only."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import plmia
from plmia.errors import PlmiaWarning, StoreError
from plmia.training.engines import LocalProcesses

N = 80
RNG = np.random.default_rng(0)
Y = np.arange(N) % 2
X = RNG.normal(Y[:, None], 1.0, (N, 3))
OPTIONS: dict[str, Any] = {"references": 2, "attacks": ["attack-r"], "progress": False}

SCRIPT = """
import sys
import numpy as np
import plmia
from sklearn.naive_bayes import GaussianNB

FACTOR = {factor}
rng = np.random.default_rng(0)
y = np.arange(80) % 2
X = rng.normal(y[:, None], 1.0, (80, 3))

class Scaled:
    def fit(self, X, y):
        self.model = GaussianNB().fit(X * FACTOR, y)
        return self

def maker(shift):
    return lambda X, y, seed: Scaled().fit(X + shift, y)

def query(model, X, y):
    return model.model.predict_proba(X)

run = plmia.audit((maker(1), query), X, y, references=2, attacks=["attack-r"], folder=sys.argv[1], progress=False)
print(run.auc("attack-r"))
"""


def run_script(text: str, folder: Path, stdin: bool) -> subprocess.CompletedProcess[str]:
    script = folder.parent / "script.py"
    script.write_text(text)
    name = "-" if stdin else str(script)
    return subprocess.run(
        [sys.executable, "-W", "error::UserWarning", name, str(folder)],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_script_is_known_again_however_it_is_run(tmp_path: Path) -> None:
    """As a file and from standard input: the second run has nothing to train, a changed one refuses."""
    folder, records = tmp_path / "run", tmp_path / "run" / "signals"
    first = run_script(SCRIPT.format(factor=1.0), folder, stdin=False)
    assert first.returncode == 0, first.stderr
    before = {path: path.read_bytes() for path in records.rglob("*") if path.is_file()}
    second = run_script("\n# a comment\n" + SCRIPT.format(factor=1.0), folder, stdin=True)
    assert second.stdout == first.stdout
    assert {path: path.read_bytes() for path in records.rglob("*") if path.is_file()} == before
    changed = run_script(SCRIPT.format(factor=2.0), folder, stdin=True)
    assert changed.returncode != 0
    assert "belongs to another audit" in changed.stderr
    assert {path: path.read_bytes() for path in records.rglob("*") if path.is_file()} == before


def predict(model: Any, X: Any, y: Any) -> Any:
    return model.predict_proba(X)


def closure(k: Any) -> Any:
    return (lambda X, y, seed: GaussianNB().fit(X * k, y)), predict


def partial(k: Any) -> Any:
    return functools.partial(lambda k, X, y, seed: GaussianNB().fit(X * k, y), k), predict


def transformer(k: Any) -> Any:
    return make_pipeline(FunctionTransformer(lambda X: X * k), GaussianNB())


def own_class(k: Any) -> Any:
    class Own(GaussianNB):  # type: ignore[misc]
        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
            return super().fit(X * k, y)

    return Own()


@pytest.fixture
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("make", [closure, partial, transformer, own_class])
@pytest.mark.usefixtures("quiet")
def test_a_changed_value_never_reuses_models(make: Callable[[Any], Any], tmp_path: Path) -> None:
    values = np.ones(3)
    options = OPTIONS | {"folder": tmp_path / "run", "engine": plmia.Inline()}
    first = plmia.audit(make(values), X, Y, **options)
    again = plmia.audit(make(values.copy()), X, Y, **options)
    assert again.result.about.signals == first.result.about.signals
    recipe = make(values)
    values[2] = 2.0
    for changed in (recipe, make(values)):
        with pytest.raises(StoreError, match="belongs to another audit"):
            plmia.audit(changed, X, Y, **options)


@pytest.mark.usefixtures("quiet")
def test_code_that_changes_its_own_variables_keeps_its_identity_during_an_audit(tmp_path: Path) -> None:
    seen: list[int] = []

    def train(X: Any, y: Any, seed: int) -> Any:
        seen.append(seed)
        return GaussianNB().fit(X, y)

    run = plmia.audit((train, predict), X, Y, **OPTIONS, folder=tmp_path / "run", engine=plmia.Inline())
    assert len(seen) == 3
    assert run.result.about.signals is not None


def test_what_cannot_be_sent_or_read_runs_here_and_says_so_once(tmp_path: Path) -> None:
    lock = threading.Lock()

    def train(X: Any, y: Any, seed: int) -> Any:
        with lock:
            return GaussianNB().fit(X, y)

    for model in ((train, predict), make_pipeline(FunctionTransformer(lambda X: (X, lock)[0]), GaussianNB())):
        folder = tmp_path / type(model).__name__
        with pytest.warns(PlmiaWarning) as warned:
            run = plmia.audit(model, X, Y, **OPTIONS, folder=folder)
        texts = [str(warning.message) for warning in warned]
        assert len([text for text in texts if "in this process" in text and "Inline()" in text]) == 1
        assert len([text for text in texts if "lock" in text and "key=" in text]) == 1
        assert [note.severity for note in run.result.notes if note.code == "models-not-reused"] == ["info"]
        with pytest.raises(StoreError, match="give a key of your own"), pytest.warns(PlmiaWarning):
            plmia.audit(model, X, Y, **OPTIONS, folder=folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            keyed = plmia.Function.of(train, predict, key="version 1")
            plmia.audit(keyed, X, Y, **OPTIONS, folder=tmp_path / "keyed", engine=plmia.Inline())


def test_workers_and_this_process_give_the_same(tmp_path: Path) -> None:
    for make in (closure, transformer, own_class):
        scores = []
        for engine in (plmia.Inline(), LocalProcesses(1)):
            folder = tmp_path / make.__name__ / type(engine).__name__
            plmia.audit(_by_value(make)(2.0), X, Y, **OPTIONS, folder=folder, engine=engine)
            scores.append((folder / "scores.npz").read_bytes())
        assert scores[0] == scores[1]


def _by_value(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function as a notebook has it: workers cannot import this file."""
    from types import FunctionType

    space = dict(globals()) | {"__name__": "__main__"}
    space["predict"] = FunctionType(predict.__code__, space)
    return FunctionType(make.__code__, space)


def test_a_pair_without_classes_returns_signals(tmp_path: Path) -> None:
    """Values to predict reach the functions as they are; without y, they get None."""
    seen: list[Any] = []

    def train(X: Any, y: Any, seed: int) -> Any:
        seen.append(y)
        return X, (0 if y is None else y)

    def signal(model: Any, X: Any, y: Any) -> Any:
        near = np.abs(X[:, None] - model[0]).sum(axis=2) + np.abs((0 if y is None else y[:, None]) - model[1])
        return -near.min(axis=1) + 0.01 * X[:, 0]

    values = RNG.normal(size=N)
    for y in (values, None):
        seen.clear()
        run = plmia.audit((train, signal), X, y, **OPTIONS, engine=plmia.Inline(), folder=tmp_path / str(y is None))
        assert run.auc("attack-r") > 0.6
        assert all(got is None for got in seen) if y is None else set(np.concatenate(seen)) <= set(values)
    whole = plmia.Function.of(train, signal=signal)
    seen.clear()
    plmia.audit(whole, X, np.arange(N) + 20, **OPTIONS, engine=plmia.Inline(), folder=tmp_path / "whole numbers")
    assert set(np.concatenate(seen)) <= set(range(20, 20 + N))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_functions_get_the_users_own_frame(library: str, tmp_path: Path) -> None:
    frames = pytest.importorskip(library)
    frame = frames.DataFrame({"a": X[:, 0], "b": ["x", None] * (N // 2), "c": Y + 10 * (np.arange(N) % 3)})
    labels = np.where(Y == 1, "yes", "no")

    def train(X: Any, y: Any, seed: int) -> Any:
        assert type(X).__module__.startswith(library)
        assert list(X.columns) == ["a", "b", "c"]
        assert set(y) == {0, 1}  # "no" is 0, "yes" is 1
        np.testing.assert_array_equal(np.asarray(X["c"]) % 10, y)
        return GaussianNB().fit(np.asarray(X["a"])[:, None], y)

    def query(model: Any, X: Any, y: Any) -> Any:
        return model.predict_proba(np.asarray(X["a"])[:, None])

    here = plmia.audit((train, query), frame, labels, **OPTIONS, engine=plmia.Inline(), folder=tmp_path / "run")
    assert here.result.about.signals is not None


def test_a_file_of_records_without_labels(tmp_path: Path, command: Callable[..., Any]) -> None:
    """From the shell: the recipe's own signal needs no y."""
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def train(X, y, seed):\n"
        "    assert y is None\n"
        "    return X\n"
        "def signal(model, X, y):\n"
        "    return -np.abs(X[:, None] - model).sum(axis=2).min(axis=1) + 0.01 * X[:, 0]\n"
    )
    np.savez(tmp_path / "data.npz", X=X)
    words = ["--references", 4, "--attack", "attack-r", "--workers", 1, "--data", tmp_path / "data.npz", "--recipe"]
    done = command("audit", *words, f"function:{tmp_path / 'mine.py'}", "-o", tmp_path / "run", "--quiet")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "report.html").is_file()
    refused = command("audit", *words, "sklearn:GaussianNB", "-o", tmp_path / "other")
    assert refused.exit_code == 2
    assert "'y'" in refused.output
