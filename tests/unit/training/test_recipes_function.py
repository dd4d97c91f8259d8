"""The user's own functions: logits and probabilities both come out right, and whatever they depend on is their key."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmia.data.dataset import LabelledData
from plmia.errors import RecipeError
from plmia.numerics import logit_from_logits
from plmia.signals.store import problem_of
from plmia.training.engines import Failed, LocalProcesses
from plmia.training.recipes.function import Function
from plmia.training.recipes.named import as_recipe
from plmia.training.recipes.recipe import declare_files
from plmia.training.train import Job, Work
from plmia.training.views import View

N = 40
RNG = np.random.default_rng(0)
DATA = LabelledData(RNG.integers(0, 9, (N, 3)), np.arange(N) % 2)
MEMBERS = np.stack([RNG.permutation(N) < 20, RNG.permutation(N) < 20])
VIEWS = (View(), View(scale=0.5, seed=1))
SCALE = 2.0


def fit(X: Any, y: Any, seed: int) -> Any:
    """Means of the classes, and a seed that can be told from others."""
    return np.stack([X[y == c].mean(axis=0) for c in (0, 1)]) + seed / 1000


def logits(model: Any, X: Any, y: Any) -> Any:
    return -((X[:, None] - model) ** 2).sum(axis=2) / SCALE


def probabilities(model: Any, X: Any, y: Any) -> Any:
    z = logits(model, X, y)
    return np.exp(z - z.max(axis=1, keepdims=True)) / np.exp(z - z.max(axis=1, keepdims=True)).sum(1, keepdims=True)


def test_both_functions_get_what_they_are_promised() -> None:
    seen: list[Any] = []

    def train(X: Any, y: Any, seed: int) -> str:
        seen.append((X, y, seed))
        return f"model {seed}"

    def query(model: str, X: Any, y: Any) -> Any:
        seen.append((model, X, y))
        return [[3.0, -1.0]] * len(X)

    Function.of(train, query, key="k").train(DATA, MEMBERS, [7, 8], VIEWS)
    assert len(seen) == 6
    for i, seed in enumerate([7, 8]):
        X, y, got = seen[3 * i]
        assert got == seed
        assert X.dtype == DATA.X.dtype
        np.testing.assert_array_equal(X, DATA.X[MEMBERS[i]])
        np.testing.assert_array_equal(y, DATA.y[MEMBERS[i]])
        for view, (model, X, y) in zip(VIEWS, seen[3 * i + 1 : 3 * i + 3], strict=True):
            assert model == f"model {seed}"
            np.testing.assert_array_equal(X, view.apply(DATA.X))
            np.testing.assert_array_equal(y, DATA.y)


def test_logits_and_probabilities_give_the_same_confidences() -> None:
    by_logits = Function.of(fit, logits).train(DATA, MEMBERS, [1, 2], VIEWS)
    by_probabilities = Function.of(fit, probabilities).train(DATA, MEMBERS, [1, 2], VIEWS)
    for members, seed, first, second in zip(MEMBERS, [1, 2], by_logits, by_probabilities, strict=True):
        model = fit(DATA.X[members], DATA.y[members], seed)
        for column, view in enumerate(VIEWS):
            expected = logit_from_logits(logits(model, view.apply(DATA.X), DATA.y), DATA.y)
            np.testing.assert_allclose(first.conf[:, column], expected, rtol=1e-5)
            np.testing.assert_allclose(second.conf[:, column], expected, rtol=1e-4, atol=1e-4)
        right = logits(model, DATA.X, DATA.y).argmax(axis=1) == DATA.y
        assert first.train_accuracy == second.train_accuracy == pytest.approx(right[members].mean())
        assert first.test_accuracy == pytest.approx(right[~members].mean())
        assert first.conf.dtype == np.float32


def test_functions_that_change_their_arguments_change_nothing_else() -> None:
    def train(X: Any, y: Any, seed: int) -> int:
        X += 100
        y[:] = 0
        return seed

    def query(model: int, X: Any, y: Any) -> Any:
        X += 100
        y[:] = 0
        return np.stack([X[:, 0], X[:, 1]], axis=1) / 300 - 5.0

    before = DATA.X.copy(), DATA.y.copy()
    first, second = Function.of(train, query, key="k").train(DATA, MEMBERS[[0, 0]], [1, 1], (View(), View(scale=0.1)))
    np.testing.assert_array_equal(DATA.X, before[0])
    np.testing.assert_array_equal(DATA.y, before[1])
    np.testing.assert_array_equal(first.conf, second.conf)


def test_answers_that_are_not_numbers_mean_that_the_model_diverged() -> None:
    recipe = Function.of(fit, lambda model, X, y: np.full((len(X), 2), np.nan), key="k")
    (trained,) = recipe.train(DATA, MEMBERS[:1], [1], VIEWS)
    assert trained.diverged
    assert "NaN for record 0, 1, 2, 3, 4 and 35 more" in trained.trouble


@pytest.mark.parametrize("shape", [(N,), (N, 1)])
def test_one_number_per_record_is_no_answer_of_a_query(shape: tuple[int, ...]) -> None:
    """It may be meant as a signal, which is given by another name."""
    recipe = Function.of(fit, lambda model, X, y: np.zeros(shape), key="k")
    with pytest.raises(RecipeError, match=r"one number per record.*\[40, 2\].*signal="):
        recipe.train(DATA, MEMBERS[:1], [1], VIEWS)


@pytest.mark.parametrize("answer", [np.zeros((N - 1, 2)), np.zeros((N, 2, 2)), np.zeros(())])
def test_answers_of_another_shape_are_refused(answer: Any) -> None:
    with pytest.raises(RecipeError, match=r"query.*\(.*\).*\[40, 2\]"):
        Function.of(fit, lambda model, X, y: answer, key="k").train(DATA, MEMBERS[:1], [1], VIEWS)
    with pytest.raises(RecipeError, match=r"signal.*\(.*\).*\[40\]"):
        Function.of(fit, signal=lambda model, X, y: answer, key="k").train(DATA, MEMBERS[:1], [1], VIEWS)


def test_answers_that_are_no_numbers_are_refused() -> None:
    torch = pytest.importorskip("torch")
    for answer in (["a"] * N, [[1.0], [1.0, 2.0]], object(), torch.zeros(N, 2, requires_grad=True)):
        with pytest.raises(RecipeError, match=f"query returned a {type(answer).__name__} .*numpy array"):
            Function.of(fit, lambda model, X, y, a=answer: a, key="k").train(DATA, MEMBERS[:1], [1], VIEWS)


# Signals of one's own ------------------------------------------------------------------------------------------------

VALUES = LabelledData(RNG.normal(size=(N, 3)), RNG.normal(size=N))
NO_LABELS = LabelledData(RNG.normal(size=(N, 3)))


def mean(X: Any, y: Any, seed: int) -> Any:
    return None if y is None else y.mean(), X.mean(axis=0)


def closeness(model: Any, X: Any, y: Any) -> Any:
    return -((X - model[1]) ** 2).sum(axis=1) - (0 if y is None else (y - model[0]) ** 2)


@pytest.mark.parametrize("data", [VALUES, NO_LABELS, DATA], ids=["values", "no labels", "classes"])
def test_a_signal_needs_no_classes(data: LabelledData) -> None:
    recipe = Function.of(mean, signal=closeness)
    assert recipe.signal == "signal"
    for members, trained in zip(MEMBERS, recipe.train(data, MEMBERS, [1, 2], VIEWS), strict=True):
        model = mean(data.X[members], None if data.y is None else data.y[members], 0)
        expected = np.stack([closeness(model, view.apply(data.X), data.y) for view in VIEWS], axis=1)
        np.testing.assert_allclose(trained.conf, expected, rtol=1e-6)
        assert trained.conf.dtype == np.float32
        assert np.isnan([trained.train_accuracy, trained.test_accuracy]).all()
        given = recipe.query_given(model, data, members, VIEWS)
        np.testing.assert_array_equal(given.conf, trained.conf)


def test_a_signal_that_is_not_finite_means_that_the_model_diverged() -> None:
    (trained,) = Function.of(mean, signal=lambda m, X, y: np.full(len(X), np.inf)).train(
        VALUES, MEMBERS[:1], [1], VIEWS
    )
    assert trained.diverged
    assert "signal returned infinity" in trained.trouble


def test_a_loss_as_signal_is_noted() -> None:
    def loss(model: Any, X: Any, y: Any) -> Any:
        return -closeness(model, X, y)

    assert [note.code for note in Function.of(mean, signal=loss, key="k").notes(DATA)] == ["signal-is-loss"]
    assert Function.of(mean, signal=closeness, key="k").notes(DATA) == []


def test_a_signal_is_another_recipe_than_a_query() -> None:
    assert Function.of(fit, logits) != Function.of(fit, signal=logits)
    for wrong in ({}, {"query": logits, "signal": logits}):
        with pytest.raises(RecipeError, match=r"either query.*or signal"):
            Function.of(fit, **wrong)  # type: ignore[arg-type]


def test_a_file_may_define_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    train = "def train(X, y, seed): return X.mean()\n"
    signal = "def signal(model, X, y): return -abs(X[:, 0] - model)\n"
    path.write_text(train + signal)
    recipe = Function.from_file(path)
    assert recipe.signal == "signal"
    arrived = ForkingPickler.loads(ForkingPickler.dumps(recipe))
    assert arrived == recipe
    assert arrived.signal == "signal"
    (trained,) = recipe.train(NO_LABELS, MEMBERS[:1], [0], (View(),))
    assert np.isfinite(trained.conf).all()
    path.write_text(train + signal + "def query(model, X, y): return X\n")
    assert Function.from_file(path).signal == "confidence"


def test_weights_are_not_kept() -> None:
    with pytest.raises(RecipeError, match="--keep-models"):
        Function.of(fit, logits).train(DATA, MEMBERS, [0, 1], VIEWS, keep_weights=True)


# What tells pairs of functions apart ---------------------------------------------------------------------------------


def with_rate(rate: float) -> Callable[..., Any]:
    def train(X: Any, y: Any, seed: int) -> float:
        return rate

    return train


def with_default(rate: float) -> Callable[..., Any]:
    def train(X: Any, y: Any, seed: int, *, step: float = rate) -> float:
        return step

    return train


def test_the_key_is_the_source_and_what_it_refers_to(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Function.of(fit, logits).key
    assert key == Function.of(fit, logits).key
    assert Function.of(fit, logits) == Function.of(fit, logits)
    assert hash(Function.of(fit, logits)) == hash(Function.of(fit, logits))
    assert Function.of(fit, probabilities).key != key
    assert Function.of(fit, logits).to_json() == {"recipe": "function", "key": key}
    for make in (with_rate, with_default):
        assert Function.of(make(0.1), logits).key == Function.of(make(0.1), logits).key
        assert Function.of(make(0.1), logits).key != Function.of(make(0.2), logits).key
    # A global of the module, also through a function that is called.
    through = Function.of(fit, probabilities).key
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert Function.of(fit, logits).key != key
    assert Function.of(fit, probabilities).key != through


def test_the_same_key_in_another_process() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_recipes_function as t; print(t.own_key())"
    arguments = [sys.executable, "-c", code, str(Path(__file__).parent)]
    environment = os.environ | {"PYTHONHASHSEED": "5"}
    found = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment).stdout.strip()
    assert found == own_key()


def own_key() -> str:
    return Function.of(fit, probabilities).key


def test_a_key_of_ones_own_is_taken() -> None:
    a = Function.of(lambda X, y, seed: 0, logits, key="mine")
    assert a.key == "mine"
    assert a == Function.of(fit, logits, key="mine")


def test_functions_without_a_source_are_known_by_their_code() -> None:
    def run(text: str) -> Any:
        space: dict[str, Any] = {}
        exec(text, space)
        return space["train"]

    first, second = run("def train(X, y, seed): return 0"), run("def train(X, y, seed): return 1")
    assert Function.of(first, logits) == Function.of(run("def train(X, y, seed): return 0"), logits)
    assert Function.of(first, logits) != Function.of(second, logits)
    assert Function.of(pow, logits) == Function.of(pow, logits)


def test_functions_that_cannot_be_read_are_never_the_same() -> None:
    lock = with_rate(threading.Lock())  # type: ignore[arg-type]
    recipe = Function.of(lock, logits)
    assert recipe != Function.of(lock, logits)
    assert recipe != recipe.identified()
    (note,) = recipe.notes(DATA)
    assert note.code == "models-not-reused"
    assert "'rate' (_thread.lock)" in note.text
    assert "key=" in note.text
    keyed = Function.of(lock, logits, key="mine")
    assert keyed.identified() is keyed
    assert keyed.notes(DATA) == []


def test_the_identity_is_that_of_the_moment() -> None:
    """A recipe that is used for a second audit must not keep the identity of the first."""
    rates = [0.1]
    recipe = Function.of(with_rate(rates), logits)  # type: ignore[arg-type]
    assert recipe.identified() == recipe
    rates.append(0.2)
    assert recipe.identified() != recipe
    assert as_recipe(recipe) != recipe
    assert as_recipe((with_rate(rates), logits)) == as_recipe(recipe)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "says"),
    [((fit,), "(function)"), ((fit, 3), "(function, int)"), ([fit, logits, fit], "pair"), (fit, "(train, query)")],
)
def test_what_is_no_pair_of_functions_is_refused(model: Any, says: str) -> None:
    with pytest.raises(RecipeError) as refused:
        as_recipe(model)
    assert says in str(refused.value)


# In worker processes -------------------------------------------------------------------------------------------------


def without_seed(X: Any, y: Any) -> Any:
    return fit(X, y, 0)


def signal(model: Any, X: Any) -> Any:
    return X[:, 0]


def train(X: Any, y: Any, seed: int) -> Any:
    return fit(X, y, seed)


@pytest.mark.parametrize(
    ("pair", "fact"),
    [
        ((without_seed, logits), r"without_seed\(.*train\(X, y, seed\)"),
        ((train, without_seed), r"without_seed\(.*query\(model, X, y\)"),
        ((logits, train), r"wrong order.*\(train, query\)"),
        ((signal, logits), "wrong order"),
    ],
)
def test_functions_that_cannot_be_called_are_refused_before_training(pair: Any, fact: str) -> None:
    with pytest.raises(RecipeError, match=fact):
        as_recipe(pair)
    with pytest.raises(RecipeError, match=fact):
        Function.of(*pair, key="k")


def test_the_signatures_of_a_file_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("def train(X, y): return 0\ndef signal(model, X, y): return X\n")
    with pytest.raises(RecipeError, match=r"train\(X, y, seed\)"):
        Function.from_file(path)


def train_there(recipe: Function) -> Any:
    job = Job((0,), (5,), np.packbits(MEMBERS[:1], axis=1))
    ((_, result),) = LocalProcesses(1).run(Work(DATA, recipe, VIEWS), [job])
    return result


def test_closures_train_in_workers_as_here() -> None:
    shift = np.arange(3)

    class Model:
        def __init__(self, means: Any) -> None:
            self.means = means

    def means(X: Any, y: Any) -> Any:
        return np.stack([X[y == c].mean(axis=0) for c in (0, 1)])

    recipe = Function.of(
        lambda X, y, seed: Model(means(X + shift, y)), lambda m, X, y: -((X[:, None] - m.means) ** 2).sum(2)
    )
    (expected,) = recipe.train(DATA, MEMBERS[:1], [5], VIEWS)
    ((trained,), _) = train_there(recipe)
    np.testing.assert_array_equal(trained.conf, expected.conf)


MODULE = """
RATE = 1.0

def train(X, y, seed):
    return RATE

def query(model, X, y):
    return X[:, :2] * model
"""


def test_workers_refuse_code_that_differs_from_that_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They import a module anew: a value set in this process, or the code before an edit, would be lost silently."""
    (tmp_path / "mine_for_workers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import mine_for_workers as mine  # type: ignore[import-not-found]

    try:
        ((trained,), _) = train_there(Function.of(mine.train, mine.query))
        assert np.isfinite(trained.conf).all()
        mine.RATE = 2.0
        failed = train_there(Function.of(mine.train, mine.query))
        assert isinstance(failed, Failed)
        assert failed.by_recipe
        assert "Inline()" in failed.sentence
        assert not isinstance(train_there(Function.of(mine.train, mine.query, key="mine")), Failed)
    finally:
        del sys.modules["mine_for_workers"]


# Files ---------------------------------------------------------------------------------------------------------------

FILE = """
from __future__ import annotations
from dataclasses import dataclass
import numpy as np

@dataclass
class Model:
    rate: float = {rate}

def train(X, y, seed):
    return Model()

def query(model, X, y):
    return np.tile([model.rate, -1.0], (len(X), 1))
"""


def write(path: Path, rate: float) -> Path:
    path.write_text(FILE.format(rate=rate))
    # As old and as long as before: only what stands in it is different.
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


def test_a_file_is_known_by_its_text_and_run_as_it_stands(tmp_path: Path) -> None:
    first = Function.from_file(write(tmp_path / "mine.py", 3.0))
    second = Function.from_file(write(tmp_path / "mine.py", 4.0))
    assert first != second
    assert first.fit(None, None, 0).rate == 3.0
    assert second.fit(None, None, 0).rate == 4.0
    (tmp_path / "elsewhere").mkdir()
    moved = Function.from_file(write(tmp_path / "elsewhere/other.py", 4.0))
    assert moved == second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "mine.py"]


@pytest.mark.parametrize("change", ["edited", "gone"])
def test_a_file_that_changes_meanwhile_changes_nothing(change: str, tmp_path: Path) -> None:
    """Other processes run the text that the recipe is known by, not what the file says when they start."""
    recipe = Function.from_file(write(tmp_path / "mine.py", 3.0))
    if change == "edited":
        write(tmp_path / "mine.py", 4.0)
    else:
        (tmp_path / "mine.py").unlink()
    job = Job((0,), (5,), np.packbits(MEMBERS[:1], axis=1))
    ((_, ((trained,), _)),) = LocalProcesses(1).run(Work(DATA, recipe, (View(),)), [job])
    np.testing.assert_allclose(trained.conf[:, 0], np.where(DATA.y == 0, 4.0, -4.0))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def train(X, y, seed): return 0", "function 'query'"),
        ("train = 3\ndef query(m, X, y): return 0", "function 'train'"),
        ("raise RuntimeError('no')", "mine.py does not run: RuntimeError: no"),
        ("import sys; sys.exit()", "mine.py does not run: SystemExit"),
        ("def train(:", "mine.py does not run: SyntaxError"),
        ("x = '\0'", "mine.py does not run"),
    ],
)
def test_files_that_do_not_do_are_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(RecipeError, match=says):
        Function.from_file(tmp_path / "mine.py")


ODD_ERRORS = {
    "text": "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()",
    "no exception": "raise type('Odd', (BaseException,), {})('no')",
    "exit": "raise type('Odd', (SystemExit,), {})(0)",
}


@pytest.mark.parametrize("part", ["train", "query", "import"])
@pytest.mark.parametrize("name", ODD_ERRORS)
def test_whatever_the_functions_raise_is_one_sentence(name: str, part: str, tmp_path: Path) -> None:
    act = {where: ODD_ERRORS[name] if where == part else "pass" for where in ("train", "query", "import")}
    text = f"def train(X, y, seed):\n    {act['train']}\ndef query(model, X, y):\n    {act['query']}\n{act['import']}\n"
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(
        RecipeError, match=r"mine\.py.*Odd" if part == "import" else rf"{part} raised Odd \(mine\.py, line"
    ):
        Function.from_file(tmp_path / "mine.py").train(DATA, MEMBERS[:1], [0], (View(),))


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_interruptions_of_the_functions_pass(error: type[BaseException]) -> None:
    def train(X: object, y: object, seed: int) -> None:
        raise error

    recipe = Function.of(train, lambda model, X, y: X)
    with pytest.raises(error):
        recipe.train(DATA, MEMBERS[:1], [0], (View(),))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").mkdir()
    for path in (tmp_path / "mine.py", tmp_path / "none.py", tmp_path / ("a" * 300 + ".py"), Path("a\0.py")):
        with pytest.raises(RecipeError, match="there is no Python file"):
            Function.from_file(path)


# Files that it reads -------------------------------------------------------------------------------------------------

READS = """
from pathlib import Path
import numpy as np

HERE = Path(__file__).parent
files = ["rows.npy", "more"]
ROWS = np.load(HERE / "rows.npy")

def train(X, y, seed):
    return ROWS[X[:, 0]].mean() + len((HERE / "more" / "a.txt").read_text())

def query(model, X, y):
    return np.stack([ROWS[X[:, 0], 0] - model, model - ROWS[X[:, 0], 1]], axis=1)
"""
NUMBERS = LabelledData(np.arange(N)[:, None], np.arange(N) % 2)


@pytest.fixture
def reader(tmp_path: Path) -> Path:
    """A recipe that reads a file and a folder, both declared."""
    (tmp_path / "mine.py").write_text(READS)
    np.save(tmp_path / "rows.npy", RNG.normal(size=(N, 2)))
    (tmp_path / "more/inner").mkdir(parents=True)
    (tmp_path / "more/a.txt").write_text("one")
    (tmp_path / "more/inner/b.txt").write_text("two")
    return tmp_path / "mine.py"


CHANGES: dict[str, Callable[[Path], Any]] = {
    "contents": lambda folder: np.save(folder / "rows.npy", np.zeros((N, 2))),
    "in the folder": lambda folder: (folder / "more/a.txt").write_text("eno"),
    "deep in the folder": lambda folder: (folder / "more/inner/b.txt").write_text("owt"),
    "a new file": lambda folder: (folder / "more/c.txt").write_text(""),
    "another name": lambda folder: (folder / "more/a.txt").rename(folder / "more/z.txt"),
    "moved": lambda folder: (folder / "more/inner/b.txt").rename(folder / "more/b.txt"),
    "gone from the folder": lambda folder: (folder / "more/inner/b.txt").unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_declared_files_are_known_by_their_contents(change: Callable[[Path], Any], reader: Path) -> None:
    first, again = Function.from_file(reader), Function.from_file(reader)
    assert first == again
    assert first.to_json() == again.to_json()
    assert list(first.to_json()["files"]) == ["more", "rows.npy"]
    os.utime(reader.with_name("rows.npy"), (1, 1))
    assert Function.from_file(reader) == first
    change(reader.parent)
    assert Function.from_file(reader) != first


def test_the_same_files_elsewhere_are_the_same_recipe(reader: Path, tmp_path: Path) -> None:
    shutil.copytree(reader.parent, tmp_path / "copy")
    assert Function.from_file(tmp_path / "copy/mine.py") == Function.from_file(reader)


def test_functions_declare_files_too(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reader.parent)
    first = Function.of(fit, logits, files=["rows.npy", Path("more")])
    assert first == Function.of(fit, logits, files=["more", "rows.npy"])
    assert first != Function.of(fit, logits)
    np.save("rows.npy", np.zeros(3))
    assert first != Function.of(fit, logits, files=["rows.npy", "more"])


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ('["rows.npy", "none.npy"]', r"none\.npy"),
        ('"rows.npy"', "'rows.npy'.*list of paths"),
        ("[3]", "holds 3"),
        ('[""]', "holds ''"),
        ("None", "None"),
        (r'["a\0b"]', "mine.py"),
    ],
)
def test_files_that_cannot_be_hashed_are_refused_before_training(files: str, says: str, reader: Path) -> None:
    reader.write_text(READS.replace('["rows.npy", "more"]', files))
    with pytest.raises(RecipeError, match=says) as error:
        Function.from_file(reader)
    assert "\n" not in str(error.value)


def test_a_worker_keeps_the_digests_of_who_sent_it(reader: Path) -> None:
    """It may lie where the files are others, or lie elsewhere: the digests were taken once."""
    recipe = Function.from_file(reader)
    (reader.parent / "more/a.txt").write_text("changed")
    for sent in (recipe, Function.of(fit, logits, files=[reader.parent / "more"])):
        arrived = ForkingPickler.loads(ForkingPickler.dumps(sent))
        assert arrived == sent
        assert arrived.to_json() == sent.to_json()
    shutil.rmtree(reader.parent / "more")
    assert ForkingPickler.loads(ForkingPickler.dumps(recipe)) == recipe


@pytest.mark.parametrize(
    ("files", "unseen"),
    [
        (["rows.npy", "more"], ()),
        (["rows.npy"], ("more/a.txt",)),
        (["more"], ("rows.npy",)),
        ([], ("more/a.txt", "rows.npy")),
    ],
)
def test_files_that_are_read_and_not_declared_are_seen(files: list[str], unseen: Any, reader: Path) -> None:
    """At the top of the file and in its functions, here and in a worker."""
    reader.write_text(READS.replace('["rows.npy", "more"]', str(files)))
    recipe = Function.from_file(reader)
    (trained,) = recipe.train(NUMBERS, MEMBERS[:1], [1], (View(),))
    assert trained.undeclared == unseen
    job = Job((0,), (5,), np.packbits(MEMBERS[:1], axis=1))
    ((_, ((there,), _)),) = LocalProcesses(1).run(Work(NUMBERS, recipe, (View(),)), [job])
    assert there.undeclared == unseen


def test_what_is_written_or_belongs_to_packages_is_not_called_undeclared(reader: Path) -> None:
    reader.write_text(
        READS.replace("def train(", "import json.tool, plmia.attacks.theory\n\ndef train(").replace(
            "    return ROWS[X[:, 0]].mean()",
            "    from sklearn.datasets import load_wine\n    load_wine()\n"
            "    (HERE / 'log').write_text('')\n    return ROWS[X[:, 0]].mean()",
        )
    )
    (trained,) = Function.from_file(reader).train(NUMBERS, MEMBERS[:1], [1], (View(),))
    assert trained.undeclared == ()


def test_code_beside_the_file_is_not_declared_by_importing_it(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (reader.parent / "helper_of_test.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(reader.parent)
    for line in ("from helper_of_test import double", "import helper_of_test"):
        reader.write_text(f"{line}\n{READS}")
        (trained,) = Function.from_file(reader).train(NUMBERS, MEMBERS[:1], [1], (View(),))
        assert trained.undeclared == ("helper_of_test.py",)
    reader.write_text(f"{line}\n{READS}".replace('"more"]', '"more", "helper_of_test.py"]'))
    (trained,) = Function.from_file(reader).train(NUMBERS, MEMBERS[:1], [1], (View(),))
    assert trained.undeclared == ()


def test_where_absolute_paths_lead_is_nobodys_business(reader: Path, tmp_path: Path) -> None:
    recipe = Function.of(fit, logits, files=[reader.with_name("rows.npy")])
    assert list(recipe.to_json()["files"]) == ["rows.npy"]
    (tmp_path / "copy").mkdir()
    shutil.copy(reader.with_name("rows.npy"), tmp_path / "copy/rows.npy")
    assert Function.of(fit, logits, files=[tmp_path / "copy/rows.npy"]) == recipe
    with pytest.raises(RecipeError, match=r"two files called rows\.npy"):
        Function.of(fit, logits, files=[reader.with_name("rows.npy"), tmp_path / "copy/rows.npy"])


def test_a_file_of_the_same_name_elsewhere_is_not_the_declared_one(
    reader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Declared beside the Python file, read from the working folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    np.save("rows.npy", np.load(reader.with_name("rows.npy")))
    reader.write_text(READS.replace('np.load(HERE / "rows.npy")', 'np.load("rows.npy")'))
    (trained,) = Function.from_file(reader).train(NUMBERS, MEMBERS[:1], [1], (View(),))
    assert trained.undeclared == ("here/rows.npy",)


def test_modules_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "beside_of_test.py").write_text("SCALE = 2.0\n")
    text = (
        "from beside_of_test import SCALE\ndef train(X, y, seed):\n    return SCALE\ndef query(model, X, y):\n    ..."
    )
    (tmp_path / "mine.py").write_text(text)
    assert Function.from_file(tmp_path / "mine.py").fit(None, None, 0) == 2.0


@pytest.mark.skipif(os.name != "posix", reason="only POSIX has names that are not text")
def test_names_that_are_no_text_can_be_declared_and_noted(tmp_path: Path) -> None:
    name = os.fsdecode(b"rows\xff.npy")
    np.save(tmp_path / name, RNG.normal(size=(N, 2)))
    (tmp_path / "more").mkdir()
    (tmp_path / "more/a.txt").write_text("one")
    (tmp_path / "mine.py").write_text(
        READS.replace('["rows.npy", "more"]', '["more"]').replace('"rows.npy"', ascii(name))
    )
    (trained,) = Function.from_file(tmp_path / "mine.py").train(NUMBERS, np.ones((1, N), bool), [0], [View()])
    assert trained.undeclared == ("rows\ufffd.npy",)
    assert problem_of({"undeclared_files": list(trained.undeclared)}, N) is None
    (file,) = declare_files([name], tmp_path, "files")
    assert file.name == "rows\ufffd.npy"
