"""Training a design: what is missing and nothing else, other seeds for models that diverge, nothing lost on errors."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import plmia
from plmia.data.dataset import LabelledData
from plmia.data.designs import MembershipDesign, audit_design
from plmia.errors import OutputError, RecipeError, StoreError, TrainingError
from plmia.signals.store import SignalStore
from plmia.training.engines import Engine, Failed, Inline, LocalProcesses, Results
from plmia.training.recipes.recipe import DeclaredFile, Recipe, Trained, declare_files
from plmia.training.train import Job, Work, seed_of, shared_data, train_missing
from plmia.training.views import View

N_POINTS, N_MODELS = 20, 7
VIEWS = (View(), View(scale=0.1))
DESIGN = audit_design(N_POINTS, N_MODELS - 1, np.random.default_rng(0))


@dataclass(frozen=True)
class Noted(Recipe):
    """A recipe that trains nothing: signals follow from seed and members; it notes every model it is asked for."""

    stack: int = 1
    diverging: frozenset[int] = frozenset()
    weights: bool = True
    calls: list[tuple[int, ...]] = field(default_factory=list)
    name: ClassVar[str] = "noted"

    def to_json(self) -> dict[str, Any]:
        return {"recipe": self.name}

    def check(self, data: LabelledData) -> None:
        del data

    def train(
        self, data: LabelledData, members: Any, seeds: Sequence[int], views: Sequence[View], keep_weights: bool = False
    ) -> list[Trained]:
        self.calls.append(tuple(seeds))
        return [
            self._trained(data, row, seed, len(views), keep_weights) for row, seed in zip(members, seeds, strict=True)
        ]

    def _trained(self, data: LabelledData, row: Any, seed: int, n_views: int, keep: bool) -> Trained:
        conf = np.random.default_rng(seed).normal(row[:, None], 1, (data.n_points, n_views)).astype(np.float32)
        if seed in self.diverging:
            conf[3, 0] = np.nan
        weights = {"layer": np.arange(6.0).reshape(2, 3) + seed % 10} if keep and self.weights else None
        return Trained(conf, 1.0, 0.5, n_clipped=seed % 3, losses=(1.0, float("nan")), weights=weights)


@dataclass(frozen=True)
class Counting(Noted):
    """The same models, by a recipe that knows its operations."""

    def operations(self, data: LabelledData, n_members: int) -> float:
        del data
        return 2.0 * n_members


@pytest.fixture
def data() -> LabelledData:
    rng = np.random.default_rng(1)
    return LabelledData(rng.normal(size=(N_POINTS, 3)).astype(np.float32), np.arange(N_POINTS) % 2)


def store_at(path: Path, about: object = "one", design: MembershipDesign = DESIGN) -> SignalStore:
    return SignalStore.create(path, {"about": about}, design, [str(view) for view in VIEWS])


def seeds_of(models: Iterable[int], attempt: int = 0, seed: int = 0) -> list[int]:
    return [seed_of(seed, model, attempt) for model in models]


def train(store: SignalStore, data: LabelledData, recipe: Noted, seed: int = 0, **more: Any) -> list[int]:
    """Train what is missing; return the models in the order in which they were stored."""
    stored: list[int] = []
    engine = more.pop("engine", Inline())
    work = Work(data, recipe, VIEWS, "models_folder" in more, more.pop("reference_recipe", None))
    train_missing(store, work, engine, seed, lambda model, _: stored.append(model), **more)
    return stored


# Seeds ---------------------------------------------------------------------------------------------------------------


def test_seeds_differ_by_audit_model_and_attempt_and_stay_what_they_are() -> None:
    seeds = {seed_of(*key) for key in np.ndindex(6, 40, 3)}
    assert len(seeds) == 6 * 40 * 3
    assert all(0 <= seed < 2**31 for seed in seeds)
    # Stores that exist were made with these.
    assert [seed_of(0, 0, 0), seed_of(0, 1, 0), seed_of(1, 0, 2)] == [1484405855, 1982462498, 2079358539]


# What is trained -----------------------------------------------------------------------------------------------------


def test_every_model_is_trained_on_its_own_points_and_recorded(data: LabelledData, tmp_path: Path) -> None:
    store, recipe = store_at(tmp_path / "s"), Noted()
    assert train(store, data, recipe) == list(range(N_MODELS))
    assert recipe.calls == [(seed,) for seed in seeds_of(range(N_MODELS))]
    signals = store.read()
    for model, seed in enumerate(seeds_of(range(N_MODELS))):
        row = DESIGN.matrix[model][:, None]
        expected = np.random.default_rng(seed).normal(row, 1, (N_POINTS, 2)).astype(np.float32)
        np.testing.assert_array_equal(signals[model], expected)
        record = store.finished()[model]
        assert record["seed"] == seed
        assert record["attempt"] == 0
        assert record["recipe"] == {"recipe": "noted"}
        assert (record["train_accuracy"], record["test_accuracy"]) == (1.0, 0.5)
        assert record["n_clipped"] == seed % 3
        assert record["losses"] == [1.0, None]
        assert record["seconds"] >= 0
        assert "operations" not in record
        assert {"plmia", "numpy", "python"} <= record["versions"].keys()


def test_operations_are_recorded_and_models_without_them_stay(data: LabelledData, tmp_path: Path) -> None:
    """A store that an earlier version began goes on, and its identity does not depend on what is recorded."""
    before, after = store_at(tmp_path / "s"), Counting()
    train(before, data, Noted())
    (tmp_path / "s/records/000003.json").unlink()
    assert train(store_at(tmp_path / "s"), data, after) == [3]
    records = store_at(tmp_path / "s").finished()
    assert records[3]["operations"] == 2.0 * DESIGN.matrix[3].sum()
    assert "operations" not in records[2]
    assert before.key == store_at(tmp_path / "s").key


def test_only_what_is_missing_is_trained(data: LabelledData, tmp_path: Path) -> None:
    whole = store_at(tmp_path / "whole")
    train(whole, data, Noted())
    part, recipe = store_at(tmp_path / "part"), Noted()
    for model in (2, 5):
        part.append([model], whole.read([model]), [{}])
    assert train(part, data, recipe) == [0, 1, 3, 4, 6]
    assert recipe.calls == [(seed,) for seed in seeds_of([0, 1, 3, 4, 6])]
    assert (tmp_path / "part/signals.npy").read_bytes() == (tmp_path / "whole/signals.npy").read_bytes()
    assert train(part, data, recipe) == []
    assert len(recipe.calls) == 5


def test_a_record_that_is_damaged_does_not_count(data: LabelledData, tmp_path: Path) -> None:
    store, recipe = store_at(tmp_path / "s"), Noted()
    train(store, data, recipe)
    (tmp_path / "s/records/000003.json").write_text("{")
    assert train(store, data, recipe) == [3]
    assert store.verify() == []


def test_another_seed_trains_other_models(data: LabelledData, tmp_path: Path) -> None:
    stores = [store_at(tmp_path / str(seed), seed) for seed in (0, 1)]
    for seed, store in enumerate(stores):
        train(store, data, Noted(), seed)
    assert not np.isclose(stores[0].read(), stores[1].read()).any()


# Stacks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [(), (1,), (0, 1, 2), (3, 4), (6,)])
def test_which_models_share_a_stack_depends_on_their_numbers_alone(
    finished: tuple[int, ...], data: LabelledData, tmp_path: Path
) -> None:
    whole, recipe = store_at(tmp_path / "whole"), Noted(stack=3)
    train(whole, data, Noted())
    part = store_at(tmp_path / "part")
    for model in finished:
        part.append([model], whole.read([model]), [{}])
    train(part, data, recipe)
    blocks = [[m for m in block if m not in finished] for block in ([0, 1, 2], [3, 4, 5], [6])]
    assert recipe.calls == [tuple(seeds_of(block)) for block in blocks if block]


def test_a_stack_is_stored_at_once(data: LabelledData, tmp_path: Path) -> None:
    store = store_at(tmp_path / "s")
    train(store, data, Noted(stack=3))
    assert sorted(path.name for path in (tmp_path / "s/records").iterdir()) == [
        "000000-000002.json",
        "000003-000005.json",
        "000006.json",
    ]


@pytest.mark.parametrize(
    ("models", "workers", "sizes"),
    [
        (7, 1, [7]),
        (7, 2, [4, 3]),
        (7, 3, [3, 3, 1]),
        (7, 16, [1] * 7),
        (33, 2, [8, 8, 8, 8, 1]),
        (65, 1, [17, 17, 17, 14]),
        (301, 1, [64, 64, 64, 64, 45]),
    ],
)
def test_on_a_cpu_a_stack_is_cut_so_that_all_are_busy_and_results_come_now_and_then(
    models: int, workers: int, sizes: list[int], data: LabelledData, tmp_path: Path
) -> None:
    class Few(Inline):
        at_once = workers

    recipe, design = Noted(stack=64), audit_design(N_POINTS, models - 1, np.random.default_rng(0))
    train(store_at(tmp_path / "s", design=design), data, recipe, engine=Few())
    assert [len(call) for call in recipe.calls] == sizes


def test_on_a_gpu_a_stack_is_as_large_as_it_can_be(
    data: LabelledData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Few(Inline):
        at_once = 16

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True)))
    recipe = Noted(stack=64)
    train(store_at(tmp_path / "s"), data, recipe, engine=Few())
    assert [len(call) for call in recipe.calls] == [7]


# Two recipes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proxy(Noted):
    """Another recipe, for the references."""

    files: tuple[DeclaredFile, ...] = ()
    name: ClassVar[str] = "proxy"

    @property
    def declared_files(self) -> tuple[DeclaredFile, ...]:
        return self.files


@pytest.mark.parametrize("finished", [(), (0,), (1, 2), (4,)])
def test_the_target_is_a_stack_of_its_own(finished: tuple[int, ...], data: LabelledData, tmp_path: Path) -> None:
    store, target, others = store_at(tmp_path / "s"), Noted(stack=5), Proxy(stack=3)
    for model in finished:
        store.append([model], np.zeros((1, *store.shape[1:]), np.float32), [{}])
    train(store, data, target, reference_recipe=others)
    assert target.calls == [tuple(seeds_of([0]))] * (0 not in finished)
    blocks = [[m for m in block if m not in finished] for block in ([1, 2], [3, 4, 5], [6])]
    assert others.calls == [tuple(seeds_of(block)) for block in blocks if block]
    trained = {model: record["recipe"]["recipe"] for model, record in store.finished().items() if record}
    assert trained == {m: "proxy" if m else "noted" for m in range(N_MODELS) if m not in finished}


def test_models_that_diverge_are_trained_again_by_their_own_recipe(data: LabelledData, tmp_path: Path) -> None:
    target, others = Noted(diverging=frozenset(seeds_of([0]))), Proxy(diverging=frozenset(seeds_of([4])))
    store = store_at(tmp_path / "s")
    train(store, data, target, reference_recipe=others)
    assert target.calls == [(seed_of(0, 0, 0),), (seed_of(0, 0, 1),)]
    assert others.calls[-1] == (seed_of(0, 4, 1),)
    assert [store.finished()[model]["recipe"]["recipe"] for model in (0, 4)] == ["noted", "proxy"]


def test_files_of_the_references_recipe_are_watched(data: LabelledData, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("one")
    others = Proxy(files=declare_files(["rows.txt"], tmp_path, "files"))
    (tmp_path / "rows.txt").write_text("two")
    store = store_at(tmp_path / "s")
    with pytest.raises(TrainingError, match=r"rows.txt changed during training"):
        train(store, data, Noted(), reference_recipe=others)
    assert store.missing() == list(range(N_MODELS))


class Edited(Proxy):
    """Has another identity in every process but the one that made it."""

    def to_json(self) -> dict[str, Any]:
        return {"recipe": self.name, "process": os.getpid()}


def test_code_of_references_that_differs_in_a_worker_is_refused(data: LabelledData) -> None:
    job = Job((1,), (5,), np.packbits(DESIGN.matrix[1:2], axis=1))
    ((_, result),) = LocalProcesses(1).run(Work(data, Noted(), VIEWS, reference_recipe=Edited()), [job])
    assert isinstance(result, Failed)
    assert "differs from that in this process" in result.sentence


# Models that diverge -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", [1, 4])
def test_a_model_that_diverges_gets_its_next_seed(stack: int, data: LabelledData, tmp_path: Path) -> None:
    diverging = frozenset(seeds_of([2, 5]) + seeds_of([5], 1))
    store, recipe = store_at(tmp_path / "s"), Noted(stack, diverging)
    stored = train(store, data, recipe)
    assert sorted(stored) == list(range(N_MODELS))
    assert stored[-2:] == [2, 5]
    assert {model: store.finished()[model]["attempt"] for model in range(N_MODELS)} == dict.fromkeys(range(7), 0) | {
        2: 1,
        5: 2,
    }
    assert [store.finished()[model]["seed"] for model in (2, 5)] == [seed_of(0, 2, 1), seed_of(0, 5, 2)]
    assert np.isfinite(store.read()).all()
    plain = store_at(tmp_path / "plain")
    train(plain, data, Noted())
    others = [0, 1, 3, 4, 6]
    np.testing.assert_array_equal(store.read(others), plain.read(others))


def test_a_model_that_always_diverges_is_named_and_the_others_are_kept(data: LabelledData, tmp_path: Path) -> None:
    diverging = frozenset(seed for attempt in range(3) for seed in seeds_of([4], attempt))
    store, recipe = store_at(tmp_path / "s"), Noted(3, diverging)
    with pytest.raises(TrainingError, match=r"^model 4 diverged with 3 seeds"):
        train(store, data, recipe)
    assert store.missing() == [4]
    assert recipe.calls[3:] == [(seed_of(0, 4, 1),), (seed_of(0, 4, 2),)]


# Errors --------------------------------------------------------------------------------------------------------------


class Fails(Noted):
    """Raises at one model."""

    def train(self, data: Any, members: Any, seeds: Any, views: Any, keep_weights: bool = False) -> list[Trained]:
        if seeds[0] == seed_of(0, 3, 0):
            raise ZeroDivisionError("of my own")
        return super().train(data, members, seeds, views, keep_weights)


def test_what_training_raises_is_shown_and_finished_models_are_kept(data: LabelledData, tmp_path: Path) -> None:
    store = store_at(tmp_path / "s")
    with pytest.raises(TrainingError) as error:
        train(store, data, Fails())
    assert "model 3 failed: ZeroDivisionError: of my own; finished models are kept" in str(error.value)
    assert 'raise ZeroDivisionError("of my own")' in error.value.trace
    assert store.missing() == [3, 4, 5, 6]
    assert train(store, data, Noted()) == [3, 4, 5, 6]


RECIPE = """
import pathlib
import numpy as np
trained = []
def train(X, y, seed):
    trained.append(seed)
    if len(trained) == 2 and pathlib.Path(FLAG).exists():
        raise OSError("the disk is away")
    return X.mean(axis=0)
def query(model, X, y):
    return np.stack([X @ model, -(X @ model)], axis=1)
"""


def test_the_remedy_of_a_failed_recipe_holds(data: LabelledData, tmp_path: Path) -> None:
    file, flag, folder = tmp_path / "mine.py", tmp_path / "flag", tmp_path / "run"
    file.write_text(RECIPE.replace("FLAG", repr(str(flag))))
    flag.touch()

    def audit(folder: Path) -> Any:
        words = {"references": 4, "attacks": ["attack-r"], "engine": Inline(), "progress": False}
        return plmia.audit(f"function:{file}", data.X, data.y, folder=folder, **words)

    with pytest.raises(TrainingError) as error:
        audit(folder)
    remedy = (
        "finished models are kept, and the same command resumes if the cause was not in the recipe. "
        "After a change of the recipe, choose another folder"
    )
    assert str(error.value).startswith("training model 1 failed: train raised OSError")
    assert str(error.value).endswith(f": the disk is away; {remedy}")
    records = sorted(folder.glob("signals/records/[0-9]*.json"))
    assert [record.name for record in records] == ["000000.json"]
    kept, text = records[0].read_bytes(), file.read_text()

    file.write_text(text.replace("len(trained) == 2 and ", "False and "))
    with pytest.raises(StoreError, match=r"the code of mine.py changed.* choose another folder"):
        audit(folder)
    assert records[0].read_bytes() == kept
    other = audit(tmp_path / "other")

    file.write_text(text)
    flag.unlink()
    assert audit(folder).auc("attack-r") == other.auc("attack-r")
    assert records[0].read_bytes() == kept


class FailsAtOnce(Noted):
    """Raises what the user must correct, at every model."""

    def train(self, data: Any, members: Any, seeds: Any, views: Any, keep_weights: bool = False) -> list[Trained]:
        raise RecipeError("query returned shape (3,)")


def test_a_recipe_that_never_works_must_be_corrected(data: LabelledData, tmp_path: Path) -> None:
    store, again = store_at(tmp_path / "s"), "no model was trained"
    with pytest.raises(TrainingError, match=rf"model 0 failed: query returned shape \(3,\); {again}"):
        train(store, data, FailsAtOnce())
    train_one = np.zeros((1, *store.shape[1:]), np.float32)
    store.append([0], train_one, [{"given": True}])
    with pytest.raises(TrainingError, match=f"model 1 failed.*; {again}"):
        train(store, data, FailsAtOnce())
    store.append([1], train_one, [{}])
    with pytest.raises(TrainingError, match=r"model 2 failed.*; finished models are kept"):
        train(store, data, FailsAtOnce())


def test_what_the_recipe_cannot_help_is_tried_again(data: LabelledData, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="model 0 failed: no; finished models are kept"):
        train(store_at(tmp_path / "s"), data, Noted(), engine=Closing())


def test_a_failed_stack_is_named_by_its_ends(data: LabelledData, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="training models 3 to 5 failed: ZeroDivisionError"):
        train(store_at(tmp_path / "s"), data, Fails(stack=3))


def test_a_full_disk_loses_nothing(data: LabelledData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, appended = store_at(tmp_path / "s"), SignalStore.append

    def append(self: SignalStore, models: Any, signals: Any, provenance: Any) -> None:
        if 3 in models:
            raise StoreError("the disk is full")
        appended(self, models, signals, provenance)

    monkeypatch.setattr(SignalStore, "append", append)
    with pytest.raises(StoreError, match="the disk is full"):
        train(store, data, Noted())
    monkeypatch.undo()
    assert store.missing() == [3, 4, 5, 6]
    assert store.verify() == []
    assert train(store, data, Noted()) == [3, 4, 5, 6]


class Closing(Engine):
    """An engine that knows whether its generator was closed."""

    closed = False

    def run(self, work: Any, jobs: Iterable[Job]) -> Results:
        try:
            for job in jobs:
                yield job, Failed("no")
        finally:
            self.closed = True


def test_the_engine_is_stopped_on_an_error(data: LabelledData, tmp_path: Path) -> None:
    engine = Closing()
    with pytest.raises(TrainingError) as error:
        train(store_at(tmp_path / "s"), data, Noted(), engine=engine)
    assert engine.closed
    assert error.value.trace == ""


# Weights -------------------------------------------------------------------------------------------------------------


def test_weights_are_kept_as_safetensors(data: LabelledData, tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    folder = tmp_path / "models"
    train(store_at(tmp_path / "s"), data, Noted(stack=2), models_folder=folder)
    assert sorted(path.name for path in folder.iterdir()) == [f"{model:06d}.safetensors" for model in range(N_MODELS)]
    for model, seed in enumerate(seeds_of(range(N_MODELS))):
        found = numpy.load_file(folder / f"{model:06d}.safetensors")
        assert list(found) == ["layer"]
        np.testing.assert_array_equal(found["layer"], np.arange(6.0).reshape(2, 3) + seed % 10)


def test_weights_that_cannot_be_written_are_said_so(data: LabelledData, tmp_path: Path) -> None:
    pytest.importorskip("safetensors.numpy")
    store = store_at(tmp_path / "s")
    (tmp_path / "models").write_text("a file in the way")
    with pytest.raises(OutputError, match=r"models/000000.safetensors.*--keep-models"):
        train(store, data, Noted(), models_folder=tmp_path / "models")
    assert store.missing() == list(range(N_MODELS))


def test_a_recipe_without_weights_cannot_keep_any(data: LabelledData, tmp_path: Path) -> None:
    pytest.importorskip("safetensors.numpy")
    with pytest.raises(TrainingError, match=r"no weights.*--keep-models"):
        train(store_at(tmp_path / "s"), data, Noted(weights=False), models_folder=tmp_path / "models")
    assert not (tmp_path / "models").exists()


# Data for workers ----------------------------------------------------------------------------------------------------


def test_processes_share_the_data_in_a_folder_that_goes_away(data: LabelledData, tmp_path: Path) -> None:
    with shared_data(data, tmp_path, LocalProcesses(2)) as shared:
        assert isinstance(shared, Path)
        assert shared.parent == tmp_path
        job = Job((0,), (5,), np.packbits(DESIGN.matrix[:1], axis=1))
        (there,), _ = Work(shared, Noted(), VIEWS)(job)
        (here,), _ = Work(data, Noted(), VIEWS)(job)
        np.testing.assert_array_equal(there.conf, here.conf)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_shared_is_removed_and_what_is_in_use_is_not(data: LabelledData, tmp_path: Path) -> None:
    leftovers = [tmp_path / ".data-dead", tmp_path / ".data-empty"]
    for leftover in leftovers:
        leftover.mkdir()
    (leftovers[0] / "lock").touch()
    (leftovers[0] / "X.npy").touch()
    with shared_data(data, tmp_path, LocalProcesses(1)) as first:
        assert not any(leftover.exists() for leftover in leftovers)
        with shared_data(data, tmp_path, LocalProcesses(1)) as second:
            assert first != second
            assert LabelledData.load(Path(str(first))).digest == data.digest
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has links that end with a process")
def test_a_killed_run_leaves_no_copy_of_the_data(data: LabelledData, tmp_path: Path) -> None:
    """Whoever reads the links in another process finds the data, until the process that shares them is killed."""
    data.save(tmp_path)
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom plmia.data.dataset import LabelledData\n"
        "from plmia.training.engines import LocalProcesses\nfrom plmia.training.train import shared_data\n"
        "folder = Path(sys.argv[1])\n"
        "with shared_data(LabelledData.load(folder), folder, LocalProcesses(1)) as shared:\n"
        "    print(shared, flush=True)\n    time.sleep(600)\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            shared = Path(process.stdout.readline().strip())
            assert LabelledData.load(shared).digest == data.digest
        finally:
            process.kill()
    assert shared.is_dir()
    assert sum(path.lstat().st_size for path in shared.iterdir() if not path.is_symlink()) == 0
    assert not any(path.exists() for path in shared.iterdir() if path.is_symlink())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has links that end with a process")
def test_a_run_killed_while_it_copies_leaves_no_copy_of_the_data(data: LabelledData, tmp_path: Path) -> None:
    data.save(tmp_path)
    script = (
        "import sys, time\nfrom pathlib import Path\nimport numpy as np\nfrom plmia.data.dataset import LabelledData\n"
        "from plmia.training.engines import LocalProcesses\nfrom plmia.training.train import shared_data\n"
        "folder, save = Path(sys.argv[1]), np.save\n"
        "def slow(file, array, **options):\n"
        "    save(file, array, **options)\n    file.flush()\n    print(file.tell(), flush=True)\n    time.sleep(600)\n"
        "np.save = slow\n"
        "with shared_data(LabelledData.load(folder), folder, LocalProcesses(1)): pass\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert int(process.stdout.readline()) > 128  # the header and some values
        finally:
            process.kill()
    (shared,) = tmp_path.glob(".data-*")
    assert sum(path.lstat().st_size for path in shared.iterdir() if not path.is_symlink()) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has links that end with a process")
@pytest.mark.parametrize("operation", ["open", "fchmod", "unlink", "symlink"])
def test_a_disk_that_is_full_when_the_data_are_shared(
    operation: str, data: LabelledData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = getattr(os, operation), 0
    failing = 2 if operation in ("open", "fchmod") else 1  # the first is of the file with the lock

    def full(*where: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*where, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, operation, full)
        with (
            pytest.raises(OutputError, match="No space left"),
            shared_data(data, tmp_path, LocalProcesses(1)),
        ):
            pass
    assert list(tmp_path.iterdir()) == []


def test_the_same_process_needs_no_copy(data: LabelledData, tmp_path: Path) -> None:
    with shared_data(data, tmp_path, Inline()) as shared:
        assert shared is data
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_so(data: LabelledData, tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=r"none .No such file"),
        shared_data(data, tmp_path / "none", LocalProcesses(1)),
    ):
        pass
