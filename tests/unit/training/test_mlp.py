"""Perceptrons: a stack is its models alone, bit for bit; a plain loop, a divergent neighbour, exact confidences."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

if os.environ.get("CI") != "true":
    pytest.importorskip("torch", reason="torch is not installed: pip install 'plmia[torch]'")

import torch

from plmia.data.dataset import LabelledData
from plmia.errors import RecipeError, TrainingError
from plmia.training.recipes import torch_device
from plmia.training.recipes.mlp import MLP, _Points, _Stack
from plmia.training.recipes.recipe import Trained
from plmia.training.views import View

SMALL = MLP((16, 12), epochs=3, batch=32, lr=0.01, device="cpu")
Weights = dict[str, npt.NDArray[np.float32]]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def table(n: int = 240, features: int = 8, classes: int = 3) -> LabelledData:
    """Points around one centre a class, a unit apart from it in every direction."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % classes
    return LabelledData(5 + 3 * (rng.normal(size=(n, features)) + 2 * rng.normal(size=(classes, features))[y]), y)


def subsets(data: LabelledData, sizes: list[int]) -> npt.NDArray[np.bool_]:
    rng = np.random.default_rng(1)
    return np.stack([rng.permutation(data.n_points) < size for size in sizes])


def logits_in_64_bits(weights: Weights, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    layers = len(weights) // 2
    for layer in range(layers):
        x = x @ weights[f"layer{layer}.weight"].T.astype(float) + weights[f"layer{layer}.bias"]
        x = np.maximum(x, 0) if layer < layers - 1 else x
    return x


def conf_in_64_bits(logits: npt.NDArray[np.float64], y: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    found = []
    for z, label in zip(logits, y, strict=True):
        others = np.delete(z, label)
        found.append(z[label] - others.max() - np.log(np.exp(others - others.max()).sum()))
    return np.array(found)


def plain_loop(recipe: MLP, data: LabelledData, row: npt.NDArray[np.bool_], seed: int) -> tuple[Weights, list[float]]:
    """Train one model as in PyTorch's tutorials, from the same draws; its weights, and its losses by epoch."""
    features = data.features().astype(np.float64)
    x = torch.from_numpy(((features - features.mean(0)) / features.std(0)).astype(np.float32))
    y, rng = torch.from_numpy(data.y), np.random.default_rng(seed)
    sizes = (x.shape[1], *recipe.widths, data.n_classes)
    layers: list[torch.nn.Linear] = []
    for fan_in, fan_out in pairwise(sizes):
        layers.append(torch.nn.Linear(fan_in, fan_out))
        drawn = torch.from_numpy((2 * rng.random((fan_in + 1, fan_out), np.float32) - 1) / np.float32(fan_in**0.5))
        layers[-1].load_state_dict({"weight": drawn[:-1].T, "bias": drawn[-1]})
    model = torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.ReLU())][:-1])
    kinds = {"adam": torch.optim.Adam, "sgd": lambda p, lr: torch.optim.SGD(p, lr, recipe.momentum)}
    optimizer = kinds[recipe.optimizer](model.parameters(), lr=recipe.lr)
    steps = recipe.epochs * -(-int(row.sum()) // recipe.batch)
    factor = (lambda t: 0.5 + 0.5 * np.cos(np.pi * t / steps)) if recipe.schedule == "cosine" else (lambda t: 1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    losses = []
    for _ in range(recipe.epochs):
        losses.append(0.0)
        for rows in torch.from_numpy(rng.permutation(np.flatnonzero(row))).split(recipe.batch):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            schedule.step()
            losses[-1] += loss.item() * len(rows) / row.sum()
    weights = {}
    for i, layer in enumerate(layers):
        weights |= {f"layer{i}.weight": layer.weight.detach().numpy(), f"layer{i}.bias": layer.bias.detach().numpy()}
    return weights, losses


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_model_does_not_depend_on_its_stack(optimizer: str, schedule: str) -> None:
    data, views = table(), [View(), View(scale=0.1)]
    # Six numbers of steps an epoch; one subset smaller than a batch, one of whole batches.
    members = subsets(data, [120, 10, 65, 128, 200, 119, 40])
    recipe = replace(SMALL, optimizer=optimizer, schedule=schedule, weight_decay=1e-3)
    together = recipe.train(data, members, range(7), views, keep_weights=True)
    in_threes = replace(recipe, stack=3).train(data, members, range(7), views)
    for i, (model, other) in enumerate(zip(together, in_threes, strict=True)):
        (alone,) = recipe.train(data, members[i : i + 1], [i], views, keep_weights=True)
        np.testing.assert_array_equal(model.conf, alone.conf)
        np.testing.assert_array_equal(model.conf, other.conf)
        assert (model.losses, model.train_accuracy) == (alone.losses, alone.train_accuracy)
        assert model.weights is not None
        assert alone.weights is not None
        assert all(np.array_equal(model.weights[name], value) for name, value in alone.weights.items())


@pytest.mark.parametrize(("optimizer", "schedule"), [("adam", "constant"), ("sgd", "constant"), ("sgd", "cosine")])
def test_a_model_equals_a_plain_loop_to_rounding(optimizer: str, schedule: str) -> None:
    data = table()
    members = subsets(data, [90, 130, 33])
    recipe = replace(SMALL, optimizer=optimizer, schedule=schedule)
    for seed, (model, row) in enumerate(
        zip(recipe.train(data, members, [0, 1, 2], [View()], True), members, strict=True)
    ):
        weights, losses = plain_loop(recipe, data, row, seed)
        assert model.weights is not None
        for name, value in weights.items():
            np.testing.assert_allclose(model.weights[name], value, atol=2e-5)
        np.testing.assert_allclose(model.losses, losses, rtol=1e-5)


def test_a_seed_gives_the_same_bits_and_another_seed_others() -> None:
    data = table()
    members = subsets(data, [120, 120])
    members[1] = members[0]
    first, second = SMALL.train(data, members, [5, 5], [View()])
    (third,) = SMALL.train(data, members[:1], [6], [View()])
    np.testing.assert_array_equal(first.conf, second.conf)
    assert not np.array_equal(first.conf, third.conf)


def test_torch_and_numpy_keep_their_global_state() -> None:
    def state() -> tuple[object, ...]:
        precision = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark, torch.is_grad_enabled()
        return torch.get_rng_state().tolist(), str(np.random.get_state()), precision  # noqa: NPY002

    data, before = table(), state()
    SMALL.train(data, subsets(data, [50]), [0], [View()])
    assert state() == before


def test_a_model_that_diverges_leaves_the_others_alone() -> None:
    calm = table()
    x = calm.X.copy()
    x[7, 0] = 1e30
    data = replace(calm, X=x)
    members = subsets(data, [100, 80, 120, 64])
    members[:, 7] = [False, True, False, False]
    recipe = replace(SMALL, optimizer="sgd", standardise=False)
    together = recipe.train(data, members, range(4), [View()])
    assert [model.diverged for model in together] == [False, True, False, False]
    assert not np.isfinite(together[1].losses[-1])
    for i in (0, 2, 3):
        (alone,) = recipe.train(data, members[i : i + 1], [i], [View()])
        np.testing.assert_array_equal(together[i].conf, alone.conf)


@pytest.mark.parametrize("classes", [2, 3])
def test_it_learns(classes: int) -> None:
    data = table(classes=classes)
    recipe = replace(SMALL, epochs=30)
    for model, row in zip(recipe.train(data, (m := subsets(data, [120, 150])), [0, 1], [View()]), m, strict=True):
        assert model.train_accuracy > 0.95
        assert model.test_accuracy > 0.8
        assert len(model.losses) == 30
        assert model.losses[-1] < 0.3 * model.losses[0]
        assert model.conf[row].mean() > 0


def test_confidences_are_exact_where_probabilities_are_one() -> None:
    data = table(classes=3)
    recipe = replace(SMALL, epochs=150, lr=0.05)
    (model,) = recipe.train(data, subsets(data, [160]), [0], [View()], keep_weights=True)
    assert model.weights is not None
    features = data.features().astype(float)
    logits = logits_in_64_bits(model.weights, (features - features.mean(0)) / features.std(0))
    exact = conf_in_64_bits(logits, data.y)
    assert exact.max() > 30  # 1 - p is far below what float32 tells from 0
    np.testing.assert_allclose(model.conf[:, 0], exact, rtol=1e-4, atol=1e-3)
    right = logits.argmax(axis=1) == data.y
    assert model.test_accuracy == pytest.approx(right[~subsets(data, [160])[0]].mean())


def test_confidence_never_saturates() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(200, 5)) * 10 ** rng.uniform(-3, 6, (200, 1)), rng.integers(0, 5, 200)
    found = torch_device.confidence(torch.from_numpy(logits.astype(np.float32)), torch.from_numpy(labels))
    exact = conf_in_64_bits(logits.astype(np.float32).astype(float), labels)
    assert np.abs(exact).max() > 1e5
    np.testing.assert_allclose(found.numpy(), exact, rtol=1e-5, atol=1e-6 * np.abs(logits).max(axis=1).max())


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("kind", ["table", "grey", "colour"])
def test_views_are_what_the_model_is_shown(kind: str, standardise: bool) -> None:
    rng = np.random.default_rng(0)
    shape = {"table": (6,), "grey": (5, 4), "colour": (5, 4, 3)}[kind]
    x = rng.integers(0, 256, (60, *shape)).astype(np.uint8)
    x.reshape(60, -1)[:, 2] = 9  # a constant feature
    data = LabelledData(x, np.arange(60) % 2)
    views = [View(scale=0.5, seed=3), View()] if kind == "table" else [View(mirror=True), View(), View(True, 1, -1)]
    recipe = replace(SMALL, standardise=standardise)
    (model,) = recipe.train(data, np.arange(60)[None] < 30, [0], views, keep_weights=True)
    assert model.weights is not None
    features = data.features().astype(float)
    mean, deviation = (features.mean(0), features.std(0)) if standardise else (0.0, np.ones(features.shape[1]))
    deviation[deviation == 0] = 1
    for i, view in enumerate(views):
        logits = logits_in_64_bits(model.weights, (replace(data, X=view.apply(data.X)).features() - mean) / deviation)
        np.testing.assert_allclose(model.conf[:, i], conf_in_64_bits(logits, data.y), rtol=1e-3, atol=1e-3)
        if i == 0:
            assert model.train_accuracy == (logits.argmax(axis=1) == data.y)[:30].mean()
    assert not np.allclose(model.conf[:, 0], model.conf[:, 1])


def test_all_points_may_be_members() -> None:
    (model,) = SMALL.train(table(), np.ones((1, 240), bool), [0], [View()])
    assert model.train_accuracy > 0
    assert np.isnan(model.test_accuracy)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_recording_steps_leaves_no_trace(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph is recorded after a few steps of its kind, which must be undone."""
    data, recipe = table(), replace(SMALL, optimizer=optimizer)
    members = subsets(data, [120, 110, 60, 20])
    points = _Points.load(data, [View()], True, torch.device("cpu"))
    fresh, recorded = (_Stack(recipe, points, members, [np.random.default_rng(i) for i in range(4)]) for _ in range(2))
    replayed = []

    def fake(step: Callable[[], None], pool: object) -> Callable[[], None]:
        for _ in range(3):
            step()
        return lambda: replayed.append(pool) or step()  # type: ignore[func-returns-value]

    monkeypatch.setattr("plmia.training.recipes.torch_device.captured", fake)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    recorded._record()
    assert sorted(recorded.graphs) == [2, 3, 4]
    np.testing.assert_array_equal(fresh.fit(), recorded.fit())
    np.testing.assert_array_equal(fresh.query()[0], recorded.query()[0])
    assert replayed == ["pool"] * 4 * recipe.epochs


def test_a_stack_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    data = table()
    members = subsets(data, [50, 120, 70, 90, 33])
    expected = SMALL.train(data, members, range(5), [View()])
    whole = MLP._train_stack

    def with_little_memory(self: MLP, points: _Points, members: npt.NDArray[np.bool_], *rest: object) -> list[Trained]:
        if len(members) > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return whole(self, points, members, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(MLP, "_train_stack", with_little_memory)
    with pytest.warns(UserWarning, match=r"(5|2) models at once .*CUDA out of memory") as told:
        found = SMALL.train(data, members, range(5), [View()])
    assert len(told) == 2
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a.conf, b.conf)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_one_model_that_does_not_fit_is_an_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> list[Trained]:
        raise error

    monkeypatch.setattr(MLP, "_train_stack", fail)
    with pytest.raises(TrainingError, match="one model"):
        SMALL.train(table(), np.ones((1, 240), bool), [0], [View()])


def test_other_errors_are_not_taken_for_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[Trained]:
        raise RuntimeError("mat1 and mat2 do not fit")

    monkeypatch.setattr(MLP, "_train_stack", fail)
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="mat1"):
        SMALL.train(table(), np.ones((2, 240), bool), [0, 1], [View()])


def test_the_stack_follows_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    data = table()
    points, members = _Points.load(data, [View()], True, torch.device("cpu")), subsets(data, [9] * 64)
    assert SMALL._at_once(points, members, torch.device("cpu")) == 64
    # At the paper's size two models fill a processor's cache.
    assert MLP()._at_once(points, members, torch.device("cpu")) < 8
    monkeypatch.setattr("plmia.training.recipes.torch_device.usable_bytes", lambda _: 1e6)
    assert 1 < SMALL._at_once(points, members, torch.device("cpu")) < 20
    monkeypatch.setattr("plmia.training.recipes.torch_device.usable_bytes", lambda _: 10.0)
    assert SMALL._at_once(points, members, torch.device("cpu")) == 1


def test_free_memory_is_known_or_unlimited() -> None:
    assert torch_device.usable_bytes(torch.device("cpu")) > 1e6


def test_json_holds_what_decides_and_nothing_else() -> None:
    recipe = MLP((64, 32), epochs=7, optimizer="sgd", schedule="cosine", stack=3, device="cpu")
    text = json.dumps(recipe.to_json())
    values = json.loads(text)
    assert values.pop("recipe") == "mlp"
    assert MLP(**values) == recipe
    assert hash(MLP(**values)) == hash(recipe)
    assert MLP(**values).to_json() == recipe.to_json()
    assert "stack" not in values
    assert replace(recipe, stack=9, device="auto") == recipe
    assert replace(recipe, lr=0.5) != recipe
    assert MLP(64).widths == (64,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": (0,)}, "widths"),
        ({"epochs": 0}, "epochs"),
        ({"batch": 2.5}, "batch"),
        ({"stack": 0}, "stack"),
        ({"lr": 0.0}, "lr above 0"),
        ({"lr": float("nan")}, "lr above 0"),
        ({"momentum": 1.0}, "momentum"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"optimizer": "lion"}, "'lion'.*adam or sgd"),
        ({"schedule": "step"}, "'step'.*constant or cosine"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        MLP(**options)  # type: ignore[arg-type]


def test_bad_devices_and_empty_subsets_are_named() -> None:
    data = table()
    with pytest.raises(RecipeError, match="no device 'tpu9'"):
        MLP(device="tpu9").check(data)
    if not torch.cuda.is_available():
        with pytest.raises(RecipeError, match="torch sees 0 GPUs"):
            MLP(device="cuda").check(data)
    MLP().check(data)
    with pytest.raises(RecipeError, match=r"model 1 .*\bno records\b"):
        SMALL.train(data, subsets(data, [10, 0]), [0, 1], [View()])


def test_training_imports_with_numpy_and_torch_alone() -> None:
    """A GPU machine may have nothing else."""
    code = (
        "import sys\n"
        "for name in 'scipy sklearn click rich lightgbm pandas ray zarr'.split(): sys.modules[name] = None\n"
        "import plmia.data.dataset, plmia.data.designs, plmia.training.views\n"
        "import plmia.training.recipes.mlp, plmia.training.recipes.wide_resnet\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_done_to_the_data_is_said() -> None:
    y = np.arange(40) % 2
    (note,) = SMALL.notes(LabelledData(np.random.default_rng(0).normal(size=(40, 2)), y))
    assert (note.code, note.severity) == ("recipe-preprocessing", "info")
    assert "32-bit" in note.text
    assert "standardises" in note.text
    (note,) = replace(SMALL, standardise=False).notes(LabelledData(np.zeros((40, 4, 5), np.uint8), y))
    assert "255" in note.text
    assert "standardises" not in note.text
    for dtype in (np.int64, np.float64):
        (note,) = SMALL.notes(LabelledData((20_000_000 + np.arange(40, dtype=dtype))[:, None], y))
        assert (note.code, note.severity) == ("recipe-preprocessing", "caution")
        assert "40 distinct values of column 0 become 21" in note.text


@pytest.mark.parametrize("widths", [(16, 12), (7,)])
def test_operations_are_three_forward_passes_as_torch_counts_them(widths: tuple[int, ...]) -> None:
    counter = pytest.importorskip("torch.utils.flop_counter")
    data = table(features=9, classes=4)
    sizes = (9, *widths, 4)
    layers = [torch.nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)]
    with counter.FlopCounterMode(display=False) as counted:
        torch.nn.Sequential(*layers)(torch.zeros(50, 9))
    recipe = replace(SMALL, widths=widths)
    assert recipe.operations(data, 50) == 3 * recipe.epochs * counted.get_total_flops()
    assert recipe.operations(data, 100) == 2 * recipe.operations(data, 50)


def test_operations_count_encoded_columns() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(60, 5))
    values[::7, 2] = np.nan
    data = LabelledData(values, np.arange(60) % 3)
    encoded = LabelledData(data.features(), data.y)
    assert SMALL.operations(data, 30) == SMALL.operations(encoded, 30)
