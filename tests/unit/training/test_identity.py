"""The identity of the user's code changes with everything that decides what the code computes, and only with that."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import importlib
import logging
import math
import operator
import os
import subprocess
import sys
import textwrap
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from plmia.training.engines import pickled
from plmia.training.recipes.identity import identify, is_own, text_of


def key(value: Any) -> str:
    found = identify("train", value)
    assert not found.unread, found.unread
    return found.key


# What changes it -----------------------------------------------------------------------------------------------------

CODE = """
import functools, math
import numpy as np

RATE = 1.0
SHARED = [1, 2]
TABLE = np.zeros(4000)

class Config:
    rate = 1.0
    nested = {"deep": [1, 2, {"deeper": 3}]}

class Base:
    def scale(self, x):
        return x * 2

class Model(Base):
    __slots__ = ("k",)
    limit = 5
    def __init__(self, k):
        self.k = k
    @property
    def rate(self):
        return self.k
    @staticmethod
    def plus(x):
        return x + 1
    def fit(self, x):
        return self.scale(x)

CONFIG = Config()

def helper(x):
    return inner(x)

def inner(x):
    return x + 1

def logged(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args) + 0
    return wrapper

@logged
def decorated(x):
    return x * 3

@functools.lru_cache
def cached(x):
    return x * 4

def outer(k):
    def closed(x):
        return x + k
    return closed

held = outer(7)

def train(X, y, seed, step=0.5, *, decay=0.25):
    "Docstring."
    total = [value * RATE for value in X]
    later = lambda x: x + len(SHARED)
    class Local:
        best = TABLE.sum()
    first, second = (lambda x: x + 1), (lambda x: x - 1)
    return (
        helper(total), Model(3).fit(X), CONFIG.rate, CONFIG.nested, decorated(1), cached(2), held(3), later(4),
        Local.best, first(second(1)), math.pi, {1, 2, 3}, seed,
    )
"""
CHANGES = {
    "constant": ("Model(3).fit(X)", "Model(4).fit(X)"),
    "constant in a set": ("{1, 2, 3}", "{1, 2, 4}"),
    "default": ("step=0.5", "step=0.6"),
    "keyword default": ("decay=0.25", "decay=0.35"),
    "global": ("RATE = 1.0", "RATE = 1.5"),
    "global that a nested function reads": ("SHARED = [1, 2]", "SHARED = [1, 2, 3]"),
    "array that a nested class reads": ("np.zeros(4000)", "np.zeros(4001)"),
    "helper of a helper": ("return x + 1\n\ndef logged", "return x + 2\n\ndef logged"),
    "method": ("return self.scale(x)", "return self.scale(x) + 1"),
    "method of a base": ("return x * 2", "return x * 2.5"),
    "static method": ("def plus(x):\n        return x + 1", "def plus(x):\n        return x + 2"),
    "property": ("return self.k", "return self.k + 1"),
    "class attribute": ("limit = 5", "limit = 6"),
    "attribute of an object": ('"deeper": 3', '"deeper": 4'),
    "decorator": ("function(*args) + 0", "function(*args) + 1"),
    "decorated function": ("return x * 3", "return x * 3.5"),
    "cached function": ("return x * 4", "return x * 4.5"),
    "closure": ("outer(7)", "outer(8)"),
    "function that makes the closure": ("return x + k", "return x - k"),
    "lambda beside another": ("(lambda x: x - 1)", "(lambda x: x - 2)"),
    "lambdas exchanged": ("(lambda x: x + 1), (lambda x: x - 1)", "(lambda x: x - 1), (lambda x: x + 1)"),
    "function of a package": ("math.pi", "math.tau"),
    "called another way": ("helper(total), Model", "inner(total), Model"),
}


def run_code(text: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "<cell>", "exec"), space)
    return space


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_anywhere_is_seen(change: str) -> None:
    old, new = CHANGES[change]
    assert CODE.count(old) == 1
    before, after = run_code(CODE)["train"], run_code(CODE.replace(old, new))["train"]
    assert key(before) != key(after)
    assert key((len, before)) != key((len, after))


def test_what_does_not_matter_is_not_seen() -> None:
    """Comments, blank lines, the file, the order of definitions, and what the function does not use."""
    plain = key(run_code(CODE)["train"])
    assert key(run_code(CODE)["train"]) == plain
    assert (
        key(run_code("\n\n# new\nUNUSED = object\n" + CODE.replace("def helper", "# why\ndef helper"))["train"])
        == plain
    )


def test_values_that_change_in_place_are_seen() -> None:
    space = run_code(CODE)
    found = [key(space["train"])]
    for change in (
        lambda: space["SHARED"].append(3),
        lambda: operator.setitem(space["TABLE"], 2000, 1.0),
        lambda: setattr(space["CONFIG"], "rate", 2.0),
        lambda: setattr(space["Config"], "extra", 1),
        lambda: setattr(space["Model"], "fit", lambda self, x: x),
        lambda: setattr(space["helper"], "factor", 2),
        lambda: operator.setitem(space, "RATE", -0.0),
        lambda: operator.setitem(space, "RATE", 0.0),
    ):
        change()
        found.append(key(space["train"]))
    assert len(set(found)) == len(found)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Options:
    rate: float = 0.1
    names: list[str] = dataclasses.field(default_factory=list)


class Holder(BaseEstimator):  # type: ignore[misc]
    def __init__(self, models: Any = None) -> None:
        self.models = models


def adder(k: Any) -> Callable[..., Any]:
    return lambda x: x + k


PAIRS: dict[str, tuple[Any, Any]] = {
    "partial": (functools.partial(adder, 1), functools.partial(adder, 2)),
    "partial keyword": (functools.partial(adder, k=1), functools.partial(adder, k=2)),
    "closure list": (adder([1, [2]]), adder([1, [3]])),
    "closure array": (adder(np.arange(3000)), adder(np.append(np.arange(2999), 0))),
    "array type": (adder(np.zeros(2, np.int32)), adder(np.zeros(2, np.float32))),
    "array shape": (adder(np.zeros((2, 3))), adder(np.zeros((3, 2)))),
    "dates": (np.array(["2020-01-01"], "M8[D]"), np.array(["2020-01-02"], "M8[D]")),
    "object array": (np.array([1, "a"], object), np.array([1, "b"], object)),
    "fields": (np.zeros(2, [("a", "f4")]), np.zeros(2, [("b", "f4")])),
    "record": (np.zeros(2, "i4,f4")[0], np.ones(2, "i4,f4")[0]),
    "masked array": (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
    "scalar": (np.float64(0.1), np.float32(0.1)),
    "number type": (1, 1.0),
    "bool": (1, True),
    "text": ("1", 1),
    "bytes": (b"1", "1"),
    "generator state": (np.random.default_rng(0), np.random.default_rng(1)),
    "ordered": (collections.OrderedDict(a=1), {"a": 1}),
    "default factory": (collections.defaultdict(list), collections.defaultdict(dict)),
    "set": ({"a", "b"}, {"a", "c"}),
    "keys": ({1: 2}, {2: 1}),
    "nesting": ([[1], [2]], [[1, 2]]),
    "enum": (Colour.RED, Colour.BLUE),
    "dataclass": (Options(0.1), Options(0.2)),
    "bound method": (Options(0.1).__repr__, Options(0.2).__repr__),
    "bound builtin": ([1].append, [2].append),
    "builtin": (math.sin, math.cos),
    "package function": (np.linalg.norm, np.linalg.det),
    "ufunc": (np.log1p, np.expm1),
    "class": (Options, Colour),
    "logger": (logging.getLogger("a"), logging.getLogger("b")),
    "vectorized": (np.vectorize(adder(1)), np.vectorize(adder(2))),
    "estimator": (FunctionTransformer(adder(1)), FunctionTransformer(adder(2))),
    "estimators in a list": (Holder([GaussianNB(var_smoothing=1)]), Holder([GaussianNB(var_smoothing=2)])),
    "columns by function": (
        ColumnTransformer([("a", StandardScaler(), lambda X: [0])]),
        ColumnTransformer([("a", StandardScaler(), lambda X: [1])]),
    ),
    "large numbers": (10**5000, 10**5000 + 1),
}


@pytest.mark.parametrize("name", PAIRS)
def test_values_are_told_apart(name: str) -> None:
    first, second = PAIRS[name]
    assert key(first) == key(first)
    assert key(first) != key(second)
    assert key(adder(first)) != key(adder(second))
    assert text_of(name, first) == text_of(name, first)
    assert text_of(name, first) != text_of(name, second)


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_tables_are_told_apart(library: str) -> None:
    module = pytest.importorskip(library)
    make = module.table if library == "pyarrow" else module.DataFrame
    columns = {"a": [1, 2, 3], "b": ["x", None, "z"]}
    assert key(adder(make(columns))) == key(adder(make(columns)))
    assert key(adder(make(columns))) != key(adder(make(columns | {"b": ["x", "y", "z"]})))
    assert key(adder(make(columns))) != key(adder(make({"c": [1, 2, 3], "b": ["x", None, "z"]})))


def test_tensors_and_modules_are_told_apart() -> None:
    torch = pytest.importorskip("torch")
    for kind in (torch.float32, torch.bfloat16, torch.bool, torch.int64):
        assert key(torch.ones(3, dtype=kind)) == key(torch.ones(3, dtype=kind))
        assert key(torch.ones(3, dtype=kind)) != key(torch.zeros(3, dtype=kind))
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert key(first) != key(second)
    second.load_state_dict(first.state_dict())
    assert key(first) == key(second)


def test_equal_values_in_other_objects_are_equal() -> None:
    """Sharing one object or having equal ones makes no difference: compilers and pickle decide that."""
    one = (1, 2)
    assert key([one, one]) == key([tuple([1, 2]), tuple([1, 2])])  # noqa: C409
    assert key(adder({"a": np.arange(3)})) == key(adder({"a": np.arange(3)}))


def test_cycles_end() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    loop: list[Any] = [1]
    loop.append(loop)
    other: list[Any] = [2]
    other.append(other)
    assert key(even) != key(odd)
    assert key(loop) != key(other)


# What cannot be read -------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_never_the_same(tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked() -> None:
        with lock:
            pass

    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    with (tmp_path / "open").open("w") as file:
        for value, says in [
            (locked, "'lock' (_thread.lock)"),
            ({"options": [lock]}, "'options' (_thread.lock)"),
            (adder(file), "'k' (_io.TextIOWrapper)"),
            ((i for i in range(3)), "generator"),
            (lambda: eval("1"), "eval"),
            (lambda name: __import__(name), "__import__"),
            (lambda name: importlib.import_module(name), "importlib"),
            (lambda name: sys.modules[name], "sys"),
            (adder(run_code("from importlib import import_module as load\ndef f(): return load('x')")["f"]), "load"),
            (run_code("run = exec\ndef f(): run('1')")["f"], "run"),
            (np.frompyfunc(adder(1), 1, 1), "ufunc"),
            (deep, "RecursionError"),
            (run_code("def train():\n    from . import helper\n    return helper.rate")["train"], "imports a module"),
        ]:
            found, again = identify("train", value), identify("train", value)
            assert says in found.unread
            assert found.key != again.key
            (note,) = found.notes("Give a key.")
            assert (note.code, note.severity) == ("models-not-reused", "info")
            assert found.unread in note.text
            assert note.text.endswith("Give a key.")


def test_an_object_that_raises_is_not_read() -> None:
    class Rude:
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise RuntimeError("no")

    assert "Rude" in identify("train", adder(Rude())).unread


# Modules -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Any]]:
    """Write modules of the user and import them."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def write(name: str, text: str) -> Any:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        names.append(name)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    for name in [*names, *(name.partition(".")[0] for name in names)]:
        sys.modules.pop(name, None)


def test_what_is_used_of_a_module_counts(module: Callable[[str, str], Any]) -> None:
    helper = module("helper_of_identity", "RATE = 1\nOTHER = 2\ndef scale(x):\n    return x * RATE\n")
    deep = module("package_of_identity.deep", "LIMIT = 1\n")
    users = module(
        "users_of_identity",
        """
        import helper_of_identity
        import package_of_identity.deep as deep
        import package_of_identity
        def by_module(x):
            return helper_of_identity.scale(x)
        def inside(x):
            import helper_of_identity as h
            return h.scale(x)
        def name_inside(x):
            from helper_of_identity import scale
            return scale(x)
        def in_package(x):
            return package_of_identity.deep.LIMIT
        def import_package(x):
            from package_of_identity import deep
            return deep.LIMIT
        def by_name(x, name):
            return getattr(helper_of_identity, name)
        """,
    )
    scaled = [users.by_module, users.inside, users.name_inside]
    limited = [users.in_package, users.import_package]
    before = [key(function) for function in (*scaled, *limited, users.by_name)]
    helper.OTHER = 3
    assert [key(function) for function in (*scaled, *limited)] == before[:-1]
    assert key(users.by_name) != before[-1]
    helper.RATE = 2
    assert not {key(function) for function in scaled} & set(before)
    deep.LIMIT = 2
    assert not {key(function) for function in limited} & set(before)


def test_code_is_known_as_it_runs_not_as_its_file_reads(module: Callable[[str, str], Any]) -> None:
    """A file that was edited after its import has no say: the old code is what trains."""
    edited = module("edited_of_identity", "def train(x):\n    return 1\n")
    before = key(edited.train)
    Path(edited.__file__).write_text("def train(x):\n    return 2\n")
    assert key(edited.train) == before
    importlib.invalidate_caches()
    os.utime(edited.__file__, (1, 1))
    assert key(importlib.reload(edited).train) != before


def test_own_modules() -> None:
    assert is_own(__name__)
    assert is_own("__main__")
    assert is_own("no_such_module_anywhere")
    for name in ("numpy", "numpy.linalg", "sklearn.base", "functools", "builtins", "_thread", "plmia.errors", "joblib"):
        assert not is_own(name)
    test = types.ModuleType("code")  # as a file code.py in the working folder
    test.__file__ = str(Path(__file__).with_name("code.py"))
    before = sys.modules.get("code")
    sys.modules["code"] = test
    try:
        assert is_own("code")
    finally:
        if before is None:
            del sys.modules["code"]
        else:
            sys.modules["code"] = before


def test_the_same_in_every_process(tmp_path: Path) -> None:
    """Whatever the seed of hashes, and whether the code was just compiled, read from a cache or sent as text."""
    (tmp_path / "mine.py").write_text(CODE)
    imported = "from mine import train\n"
    show = "from plmia.training.recipes.identity import identify\nprint(identify('train', train).key)\n"
    source = Path(sys.modules["plmia"].__file__ or "").parents[1]
    found = set()
    for seed, text, program in [
        (0, imported, "-"),
        (1, imported, "-"),
        (2, CODE, "-"),
        (3, CODE, "-c"),
        (4, CODE, "f.py"),
    ]:
        (tmp_path / "f.py").write_text(text + show)
        environment = os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": f"{source}{os.pathsep}{tmp_path}"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        arguments = [sys.executable, program, *([text + show] if program == "-c" else [])]
        done = subprocess.run(
            arguments, input=text + show, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path
        )
        found.add(done.stdout.strip())
    assert len(found) == 1
    assert "once-" not in next(iter(found))


def test_the_same_after_travelling_by_value(tmp_path: Path) -> None:
    """Workers compare what arrived with what was sent; classes and functions of a notebook travel with their code."""

    class Base(abc.ABC):
        __slots__ = ("k",)

        @abc.abstractmethod
        def scale(self, x: Any) -> Any: ...

    class Model(Base):
        limits: ClassVar[dict[str, int]] = {"a": 1}

        def scale(self, x: Any) -> Any:
            return super().scale(x) + self.limits["a"]

        @property
        def rate(self) -> Any:
            return self.scale(1)

        @classmethod
        def make(cls) -> Any:
            return cls()

    @dataclasses.dataclass(frozen=True)
    class Local:
        rate: float = 0.1
        names: list[str] = dataclasses.field(default_factory=list)

    class Level(enum.Enum):
        LOW = 1
        HIGH = 2

    class Own(GaussianNB):  # type: ignore[misc]
        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
            return super().fit(X * factorial(3), y)

    def factorial(n: int) -> int:
        return 1 if n == 0 else n * factorial(n - 1)

    values = [Model, Local, Local(0.2, ["a"]), Level, Level.HIGH, Own(), factorial, adder(np.arange(3))]
    (tmp_path / "sent").write_bytes(pickled(lambda: values))
    read = f"import pickle; values = pickle.load(open({str(tmp_path / 'sent')!r}, 'rb'))()"
    show = "from plmia.training.recipes.identity import identify\nfor v in values: print(identify('v', v).key)"
    source = Path(sys.modules["plmia"].__file__ or "").parents[1]
    done = subprocess.run(
        [sys.executable, "-c", f"{read}\n{show}"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(source)},
    )
    assert done.stdout.split() == [key(value) for value in values]


def test_cycles_are_told_apart_by_what_they_lead_to() -> None:
    """Both lists lead back after two steps: to the first one, or to itself."""
    first: list[Any] = [1]
    link: list[Any] = [first]
    first.append(link)
    other: list[Any] = [2, link]
    itself: list[Any] = [2]
    itself.append([itself])
    assert key([first, other]) != key([first, itself])
    assert key([first, other]) == key([first, [2, link]])


@pytest.mark.parametrize("many", [2, 40])
def test_many_functions_that_call_each_other_are_quick(many: int) -> None:
    lines = [f"def f{i}(x):\n    return {' + '.join(f'f{j}(x)' for j in range(many))} + {i}" for i in range(many)]
    changed = [*lines[:-1], lines[-1] + " + 1"]
    keys = [key(run_code("\n".join(text))["f0"]) for text in (lines, lines, changed)]
    assert keys[0] == keys[1] != keys[2]


def test_compiled_code_of_ones_own_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    own = types.ModuleType("compiled_of_identity")
    monkeypatch.setitem(sys.modules, "compiled_of_identity", own)

    class Compiled:
        def __reduce__(self) -> str:
            return "function"

    Compiled.__module__ = own.__name__
    own.function = Compiled()  # type: ignore[attr-defined]
    assert "function" in identify("train", lambda: own.function).unread  # type: ignore[attr-defined]
    assert key(np.random.default_rng)
