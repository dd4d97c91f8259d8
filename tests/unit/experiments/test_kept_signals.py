"""Whole signals of networks kept in few bytes: round trips, models added in several goes, damage that is named."""

from __future__ import annotations

import hashlib
import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from plmia.data.dataset import read_data
from plmia.data.designs import audit_design
from plmia.errors import DataError, SignalsError, StoreError
from plmia.signals.store import SignalStore, read_stacks
from plmia.training.recipes.named import parse_recipe
from plmia.training.remote_worker import train_stacks
from plmia.training.train import seed_of
from plmia.training.views import VIEW_SETS

TREE = "sklearn:DecisionTreeClassifier?max_depth=4"
VIEWS = VIEW_SETS["rmia18"]


def part(name: str) -> ModuleType:
    return import_module(f"experiments.{name}")


kept, whole = part("kept"), part("whole")


@pytest.fixture
def signals(rng: np.random.Generator) -> tuple[Any, Any]:
    """Signals [points, views] that are alike over views, some of them far out, and membership."""
    values = rng.normal(3.0, 5.0, (203, 1)) + rng.normal(0.0, 1.0, (203, 4))
    values[7], values[8, 2] = 900.0, -900.0
    return values.astype(np.float32), rng.random(203) < 0.5


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_a_model_comes_back_rounded_with_its_membership(tmp_path: Path, signals: tuple[Any, Any]) -> None:
    values, members = signals
    sha256 = kept.write_model(tmp_path / "000003.npz", values, members)
    back, same = kept.read_model(tmp_path / "000003.npz", 203, 4, sha256)
    assert back.dtype == np.float32
    assert np.array_equal(back, np.rint(values.astype(np.float64) / kept.STEP) * kept.STEP)
    assert np.array_equal(same, members)
    assert kept.write_model(tmp_path / "again.npz", back, same) == sha256, "what was rounded stays as it is"


def _changed(path: Path, **arrays: Any) -> str:
    with np.load(path) as found:
        np.savez(path, **dict(found) | arrays)
    digest: str = kept._digest(path)
    return digest


def test_a_damaged_model_is_named(tmp_path: Path, signals: tuple[Any, Any]) -> None:
    path = tmp_path / "000003.npz"
    sha256 = kept.write_model(path, *signals)
    intact = path.read_bytes()
    for at in range(0, len(intact), 97):
        path.write_bytes(intact[:at] + bytes([intact[at] ^ 1]) + intact[at + 1 :])
        with pytest.raises(SignalsError, match=r"000003\.npz is damaged"):
            kept.read_model(path, 203, 4, sha256)
    path.write_bytes(intact)
    for points, views in ((204 + 8, 4), (203, 5)):
        with pytest.raises(SignalsError, match=f"not a model of {points} points and {views} views"):
            kept.read_model(path, points, views, sha256)
    codes = np.load(path)["codes"]
    for wrong in (codes[:-20], np.zeros(40, np.uint8)):
        with pytest.raises(SignalsError, match=r"000003\.npz is damaged"):
            kept.read_model(path, 203, 4, _changed(path, codes=wrong))
    with pytest.raises(SignalsError, match=r"there is no file .*000004\.npz"):
        kept.read_model(tmp_path / "000004.npz", 203, 4, sha256)


def test_signals_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    values = np.array([[0.0], [1e9], [-1e9]], np.float32)
    with pytest.raises(SignalsError, match="take a larger step"):
        kept.write_model(tmp_path / "a.npz", values, np.ones(3, np.bool_))


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> Path:
    y = np.arange(60) % 2
    pixels = rng.integers(0, 150 + 100 * y[:, None, None, None], (60, 8, 8, 3), dtype=np.int64)
    np.savez(tmp_path / "small.npz", X=pixels.astype(np.uint8), y=y)
    monkeypatch.setitem(whole.WHOLE, "small", whole.Whole("Small", ("small.npz",), TREE, 4, 1))
    return tmp_path / "small.npz"


def _train(images: Path, folder: Path, models: range, seed: int = 0) -> None:
    train_stacks(read_data(images), parse_recipe(TREE), VIEWS, 4, seed, folder, models, at_once=1)


def test_models_are_added_in_several_goes_and_read_together(images: Path, tmp_path: Path) -> None:
    _train(images, tmp_path / "first", range(3))
    _train(images, tmp_path / "second", range(2, 5))
    signals = tmp_path / "signals"
    assert kept.add("small", tmp_path / "first", tmp_path, signals) == [0, 1, 2]
    before = (signals / "small" / "000002.npz").stat().st_mtime_ns
    assert kept.add("small", tmp_path / "second", tmp_path, signals) == [3, 4]
    assert (signals / "small" / "000002.npz").stat().st_mtime_ns == before
    found, about = kept.read_kept(signals / "small")
    assert (found.values.shape, about["data"], list(about["models"])) == ((5, 60, 18), "Small", list("01234"))
    assert np.array_equal(found.design.matrix[1], ~found.design.matrix[2])
    assert np.array_equal(found.labels, np.arange(60) % 2)
    stacks = [*read_stacks(tmp_path / "first", key=about["key"]), *read_stacks(tmp_path / "second", key=about["key"])]
    for stack in stacks:
        assert np.abs(found.values[list(stack.models)] - stack.signals).max() <= kept.STEP / 2
    kept.write("small", tmp_path / "full", signals)
    source = part("setting").Setting(signals=tmp_path / "full", targets=1).source("small")
    assert (source.data, source.targets, source.references) == ("Small", (1,), 2)
    assert np.array_equal(source.signals.values, found.values.astype(np.float16))


def test_models_of_another_audit_are_refused(images: Path, tmp_path: Path) -> None:
    _train(images, tmp_path / "stacks", range(1), seed=1)
    with pytest.raises(StoreError, match="belongs to another audit"):
        kept.add("small", tmp_path / "stacks", tmp_path, tmp_path / "signals")
    with pytest.raises(DataError, match=r"there is no small\.npz in "):
        kept.add("small", tmp_path / "stacks", tmp_path / "stacks", tmp_path / "signals")


def test_a_folder_that_keeps_nothing_or_other_labels_is_named(images: Path, tmp_path: Path) -> None:
    with pytest.raises(SignalsError, match=r"about\.json cannot be read"):
        kept.read_kept(tmp_path)
    _train(images, tmp_path / "stacks", range(1))
    kept.add("small", tmp_path / "stacks", tmp_path, tmp_path)
    np.savez(tmp_path / "small" / "labels.npz", labels=np.zeros(60, "<i2"))
    with pytest.raises(SignalsError, match=r"labels\.npz is damaged"):
        kept.read_kept(tmp_path / "small")
    for content in ("{", "{}", "[]"):
        (tmp_path / "small" / "about.json").write_text(content, encoding="utf-8")
        with pytest.raises(SignalsError, match=r"about\.json"):
            kept.read_kept(tmp_path / "small")


KEPT = ("cifar100_wrn", "cifar100_wrn_plain", "cifar100_wrn_long", "cifar100_wrn_jpeg")


@pytest.fixture(params=KEPT)
def of_repository(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Any], Any]:
    """Folder of kept models, its about.json, and the definition of these signals."""
    folder = part("setting").SIGNALS / request.param
    if not list(folder.glob("*.npz")):
        pytest.skip("the source distribution has no kept signals")
    return folder, json.loads((folder / "about.json").read_text(encoding="utf-8")), whole.WHOLE[request.param]


def test_kept_models_of_the_repository_are_those_of_the_list(of_repository: tuple[Path, dict[str, Any], Any]) -> None:
    folder, about, entry = of_repository
    assert (about["recipe"], about["references"], about["seed"]) == (entry.recipe, entry.references, kept.SEED)
    assert {key: about[key] for key in entry.about()} == entry.about()
    assert about["views"] == [str(view) for view in VIEWS]
    models = [int(model) for model in about["models"]]
    assert models == list(range(len(models))), "the page counts references in pairs from these"
    assert {f"{model:06d}.npz" for model in models} == {path.name for path in folder.glob("0*.npz")}
    digests = [hashlib.sha256((folder / f"{model:06d}.npz").read_bytes()).hexdigest() for model in models]
    assert digests == [made["sha256"] for made in about["models"].values()]
    seeds = [made["seed"] for made in about["models"].values()]
    assert seeds == [seed_of(kept.SEED, model, made["attempt"]) for model, made in enumerate(about["models"].values())]
    with np.load(folder / "labels.npz") as arrays:
        labels = arrays["labels"]
    assert hashlib.sha256(labels.astype("<i2").tobytes()).hexdigest() == about["labels"]
    assert np.bincount(labels).tolist() == [500] * 100


def test_kept_models_of_the_repository_have_the_members_of_the_design(
    of_repository: tuple[Path, dict[str, Any], Any],
) -> None:
    folder, about, entry = of_repository
    design = audit_design(about["n_points"], entry.references, np.random.default_rng(kept.SEED))
    for model in map(int, about["models"]):
        with np.load(folder / f"{model:06d}.npz") as arrays:
            assert np.array_equal(arrays["membership"], np.packbits(design.matrix[model])), model
    assert (design.matrix.sum(axis=1) == about["n_points"] // 2).all()


def test_kept_models_of_the_repository_are_as_accurate_as_stated(
    of_repository: tuple[Path, dict[str, Any], Any],
) -> None:
    folder, about, _ = of_repository
    for model in (min(about["models"], key=int), max(about["models"], key=int)):
        made = about["models"][model]
        values, members = kept.read_model(folder / f"{int(model):06d}.npz", 50_000, 18, made["sha256"])
        # A confidence above one half classifies an image correctly; some images are correct with less confidence.
        sure = [float((values[chosen, 0] > 0).mean()) for chosen in (members, ~members)]
        for share, stated in zip(sure, (made["train_accuracy"], made["test_accuracy"]), strict=True):
            assert stated - 0.15 < share <= stated + 1e-3, model
        assert values[members, 0].mean() > values[~members, 0].mean() + 3


def test_the_accuracies_of_the_results_are_those_of_the_kept_models(
    of_repository: tuple[Path, dict[str, Any], Any],
) -> None:
    folder, about, entry = of_repository
    models = list(about["models"].values())
    held_out = float(np.mean([made["test_accuracy"] for made in models]))
    found = {row["training"]: row for row in part("protocols").measured().values()}
    training = entry.data.partition(", ")[2]
    if training:
        assert (found[training]["models"], found[training]["held_out"][0]) == (len(models), round(100 * held_out, 2))
    results = part("setting").HERE / "results" / "cifar-100" / "table-s1.json"
    runs = {run["data"]: run for run in json.loads(results.read_text(encoding="utf-8"))["run"]}
    if folder.name != "cifar100_wrn_jpeg":
        run = runs[entry.data]
        assert (run["models"], run["test_accuracy"]) == (len(models), round(held_out, 5))


def test_the_pilot_explains_the_recipe_of_the_kept_models() -> None:
    folder = part("setting").SIGNALS / "cifar100_wrn"
    if not (folder / "pilot.json").exists():
        pytest.skip("the source distribution has no kept signals")
    pilot = json.loads((folder / "pilot.json").read_text(encoding="utf-8"))
    assert pilot["taken"] == whole.WHOLE["cifar100_wrn"].recipe


@pytest.fixture
def some_kept(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of signals of which models 0 to 2 of 5 are kept. `cifar100_wrn` means the views of image networks."""
    name = "cifar100_wrn_small"
    monkeypatch.setitem(whole.WHOLE, name, whole.WHOLE["small"])
    monkeypatch.setattr(whole, "SIGNALS", tmp_path / "signals")
    _train(images, tmp_path / "stacks", range(3))
    assert kept.add(name, tmp_path / "stacks", tmp_path, tmp_path / "signals") == [0, 1, 2]
    return name


def test_training_of_whole_signals_starts_from_kept_models(
    images: Path, some_kept: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signals, _ = kept.read_kept(tmp_path / "signals" / some_kept)
    assert whole.main(tmp_path, tmp_path / "full", [some_kept]) == 0
    assert f"{some_kept}: 3 kept models, 2 to train" in capsys.readouterr().err
    store = SignalStore.open(tmp_path / "full" / some_kept / "signals")
    records = store.finished()
    assert list(records) == list(range(5))
    assert [records[model].get("rounded_to") for model in records] == [kept.STEP] * 3 + [None] * 2
    found = store.signals()
    assert np.array_equal(found.values[:3], signals.values)
    assert np.array_equal(found.design.matrix[:3], signals.design.matrix)
    # The others are those that another machine trains for the same audit.
    _train(images, tmp_path / "all", range(5))
    for stack in read_stacks(tmp_path / "all", key=store.key):
        for model, values in zip(stack.models, stack.signals, strict=True):
            assert np.abs(found.values[model] - values).max() <= (kept.STEP / 2 if model < 3 else 0)
    source = part("setting").Setting(signals=tmp_path / "full", targets=1).source(some_kept)
    assert (source.data, source.signals.n_models, source.references) == ("Small", 5, 2)
    files = sorted((tmp_path / "full" / some_kept).rglob("records/*.json"))
    times = [file.stat().st_mtime_ns for file in files]
    assert whole.main(tmp_path, tmp_path / "full", [some_kept]) == 0
    assert [file.stat().st_mtime_ns for file in files] == times, "nothing is trained again"


def test_kept_models_that_do_not_fit_stop_the_training(images: Path, some_kept: str, tmp_path: Path) -> None:
    folder = tmp_path / "signals" / some_kept
    path = folder / "000001.npz"
    intact, about = path.read_bytes(), (folder / "about.json").read_text(encoding="utf-8")
    changed = _changed(path, membership=np.load(folder / "000002.npz")["membership"])
    stated = json.loads(about)["models"]["1"]["sha256"]
    (folder / "about.json").write_text(about.replace(stated, changed), encoding="utf-8")
    with pytest.raises(SignalsError, match="has other members than the design"):
        whole.main(tmp_path, tmp_path / "full", [some_kept])
    path.write_bytes(intact)
    (folder / "about.json").write_text(about, encoding="utf-8")
    with np.load(images) as arrays:
        np.savez(images, X=arrays["X"][::-1], y=arrays["y"])
    with pytest.raises(SignalsError, match="trained on other data"):
        whole.main(tmp_path, tmp_path / "other", [some_kept])


def test_a_file_of_whole_signals_is_complete(some_kept: str, tmp_path: Path) -> None:
    kept.write(some_kept, tmp_path / "full", tmp_path / "signals")
    assert whole.main(tmp_path, tmp_path / "full", [some_kept]) == 0
    assert not (tmp_path / "full" / some_kept).exists()


def test_stacks_go_on_after_the_first_one_was_interrupted(images: Path, tmp_path: Path) -> None:
    _train(images, tmp_path / "stacks", range(1))
    (json_file,) = (tmp_path / "stacks").glob("stack-*.json")
    whole_file = json_file.read_bytes()
    json_file.unlink()
    _train(images, tmp_path / "stacks", range(1))
    assert json.loads(json_file.read_bytes())["sha256"] == json.loads(whole_file)["sha256"]
