"""Whole signals of networks kept in few bytes: round trips, models added in several goes, damage that is named."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from plmia.data.dataset import read_data
from plmia.errors import DataError, SignalsError, StoreError
from plmia.signals.store import read_stacks
from plmia.training.recipes.named import parse_recipe
from plmia.training.remote_worker import train_stacks
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


def test_kept_models_of_the_repository_tell_members_apart() -> None:
    folder = part("setting").SIGNALS / "cifar100_wrn"
    if not list(folder.glob("*.npz")):
        pytest.skip("the source distribution has no kept signals")
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    entry = whole.WHOLE["cifar100_wrn"]
    assert (about["recipe"], about["references"]) == (entry.recipe, entry.references)
    assert {f"{int(model):06d}.npz" for model in about["models"]} == {p.name for p in folder.glob("0*.npz")}
    model, made = next(iter(about["models"].items()))
    values, members = kept.read_model(folder / f"{int(model):06d}.npz", 50_000, 18, made["sha256"])
    assert members.sum() == 25_000
    assert values[members].mean() > values[~members].mean() + 3
    assert json.loads((folder / "pilot.json").read_text(encoding="utf-8"))["taken"] == entry.recipe


def test_stacks_go_on_after_the_first_one_was_interrupted(images: Path, tmp_path: Path) -> None:
    _train(images, tmp_path / "stacks", range(1))
    (json_file,) = (tmp_path / "stacks").glob("stack-*.json")
    whole_file = json_file.read_bytes()
    json_file.unlink()
    _train(images, tmp_path / "stacks", range(1))
    assert json.loads(json_file.read_bytes())["sha256"] == json.loads(whole_file)["sha256"]
