"""Any module: a stack is its models alone up to rounding, what cannot be stacked is not, and a plain loop agrees."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

if os.environ.get("CI") != "true":
    pytest.importorskip("torch", reason="torch is not installed: pip install 'plmia[torch]'")

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from plmia import Torch
from plmia.data.dataset import LabelledData
from plmia.errors import RecipeError
from plmia.training.recipes import torch_device, torch_loop, torch_module
from plmia.training.recipes.named import as_recipe
from plmia.training.recipes.recipe import Trained
from plmia.training.recipes.torch_loop import Stack
from plmia.training.views import View

N = 90
RNG = np.random.default_rng(0)
Y = np.arange(N) % 3
TABLE = LabelledData(RNG.normal(Y[:, None], 1.0, (N, 5)), Y)
IMAGES = LabelledData(RNG.integers(0, 255, (N, 6, 6, 2), dtype=np.uint8), Y)
VALUES = LabelledData(TABLE.X, TABLE.X[:, 0] + 0.1 * RNG.normal(size=N))
MEMBERS = np.stack([np.random.default_rng(i).permutation(N) < size for i, size in enumerate([45, 40, 45, 61])])
SEEDS = [5, 6, 7, 8]
ONE = [View()]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect whether modules were stacked: the stacks, and the reasons against one."""
    found: list[Any] = []

    def noted(*arguments: Any) -> Any:
        found.append(torch_loop.stack_or_reason(*arguments))
        return found[-1]

    monkeypatch.setattr(torch_module, "stack_or_reason", noted)
    return found


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(3))


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))


class Frozen(nn.Module):
    """Some parameters are not trained, one is not used, and one is shared by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.fixed = nn.Linear(5, 3).requires_grad_(False)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.fixed(self.second(self.first(x).relu()).relu())
        return answer


def train(recipe: Torch, data: LabelledData, **options: Any) -> list[Trained]:
    return recipe.train(data, MEMBERS, SEEDS, options.pop("views", ONE), **options)


def alone(recipe: Torch, data: LabelledData, **options: Any) -> list[Trained]:
    views = options.pop("views", ONE)
    return [
        recipe.train(data, row[None], [seed], views, **options)[0] for row, seed in zip(MEMBERS, SEEDS, strict=True)
    ]


def assert_equal(ours: list[Trained], theirs: list[Trained], atol: float = 1e-5) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.conf, other.conf, rtol=1e-4, atol=atol)
        np.testing.assert_allclose(one.losses, other.losses, rtol=1e-4, atol=atol)


# A stack and its models alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize(("make", "data"), [(mlp, TABLE), (cnn, IMAGES), (Frozen, TABLE)], ids=["mlp", "cnn", "frozen"])
def test_a_stack_equals_its_models_alone(
    make: Callable[[], nn.Module], data: LabelledData, optimizer: str, schedule: str, decisions: list[Any]
) -> None:
    """Numbers of members differ, so numbers of steps do, too."""
    recipe = Torch(
        make, epochs=3, lr=0.01, batch=16, optimizer=optimizer, schedule=schedule, weight_decay=0.01, device="cpu"
    )
    together = train(recipe, data, keep_weights=True)
    assert [type(found) for found in decisions] == [Stack]
    separate = alone(recipe, data, keep_weights=True)
    assert len(decisions) == 1
    assert_equal(together, separate)
    for one, other in zip(together, separate, strict=True):
        assert one.weights is not None
        assert other.weights is not None
        assert one.weights.keys() == other.weights.keys()
        for name in one.weights:
            np.testing.assert_allclose(one.weights[name], other.weights[name], rtol=1e-4, atol=1e-5)
    assert len({float(model.conf[0, 0]) for model in together}) == len(together)


def test_batch_norm_keeps_the_statistics_of_each_model(decisions: list[Any]) -> None:
    recipe = Torch(with_batch_norm, epochs=2, lr=0.05, batch=16, optimizer="sgd", device="cpu")
    together, separate = train(recipe, IMAGES, keep_weights=True), alone(recipe, IMAGES, keep_weights=True)
    assert [type(found) for found in decisions] == [Stack]
    assert_equal(together, separate, atol=1e-3)
    for i, (one, other) in enumerate(zip(together, separate, strict=True)):
        assert one.weights is not None
        assert other.weights is not None
        assert one.weights["1.num_batches_tracked"] == 2 * MEMBERS[i].sum() // 16
        np.testing.assert_allclose(one.weights["1.running_mean"], other.weights["1.running_mean"], rtol=1e-3, atol=1e-3)


def test_random_augmentation_is_each_models_own(decisions: list[Any]) -> None:
    recipe = Torch(mlp, epochs=2, batch=16, transform=lambda x: x + torch.randn_like(x) * random.random(), device="cpu")
    together = train(recipe, TABLE)
    assert [type(found) for found in decisions] == [Stack]
    assert_equal(together, alone(recipe, TABLE))
    plain = train(Torch(mlp, epochs=2, batch=16, device="cpu"), TABLE)
    assert np.abs(plain[0].conf - together[0].conf).max() > 1e-3


class Hidden(nn.Module):
    """Has numbers of its own that are neither parameters nor buffers, so a stack would share them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(5, 3), torch.rand(1) + 0.5

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.layer(x) * self.scale
        return answer


class Replacing(nn.Module):
    """Puts a new tensor in the place of a buffer, which a stack would lose."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layer(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * z.detach().mean(0)
        return z - self.mean


class Choosing(nn.Module):
    """Looks at its numbers to decide what to do, which a stack cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.layer(x)
        return answer if float(answer.sum().detach()) > 0 else 2 * answer


class Coin(nn.Module):
    """Throws a coin of Python in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.layer(x) * (1 + (self.training and random.random() < 0.5))
        return answer


@pytest.mark.parametrize("make", [with_dropout, Hidden, Replacing, Choosing, Coin])
def test_what_cannot_be_stacked_trains_alone(make: Callable[[], nn.Module], decisions: list[Any]) -> None:
    recipe = Torch(make, epochs=2, batch=16, lr=0.01, device="cpu")
    together = train(recipe, TABLE)
    assert [type(found) for found in decisions] == [str]
    for one, other in zip(together, alone(recipe, TABLE), strict=True):
        np.testing.assert_array_equal(one.conf, other.conf)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.GRU(1, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.last(self.layer(x[:, :, None])[0][:, -1])
        return answer


def between(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), *layers, nn.Linear(8, 3))


ZOO: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "in place": (lambda: between(nn.ReLU(inplace=True)), True),
    "layer norm": (lambda: between(nn.LayerNorm(8), nn.PReLU()), True),
    "batch norm": (lambda: between(nn.BatchNorm1d(8), nn.Tanh()), True),
    "double batch norm": (lambda: between(nn.BatchNorm1d(8), nn.BatchNorm1d(8, affine=False)), True),
    "cumulative batch norm": (lambda: between(nn.BatchNorm1d(8, momentum=None)), False),
    "recurrent": (Recurrent, False),
    "parametrised": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(5, 3)), False),
}


@pytest.mark.parametrize("name", ZOO)
def test_a_module_is_stacked_or_not_and_equal_either_way(name: str, decisions: list[Any]) -> None:
    make, stacked = ZOO[name]
    recipe = Torch(make, epochs=3, batch=16, lr=0.05, optimizer="sgd", device="cpu")
    assert_equal(train(recipe, TABLE), alone(recipe, TABLE), atol=1e-4)
    assert [isinstance(found, Stack) for found in decisions] == [stacked]


def test_large_modules_train_alone_on_a_cpu(monkeypatch: pytest.MonkeyPatch, decisions: list[Any]) -> None:
    monkeypatch.setattr(torch_module, "_CPU_OPERATIONS", 2 * 16 * (5 * 8 + 8 * 3) - 1)
    train(Torch(mlp, epochs=1, batch=16, device="cpu"), TABLE)
    assert decisions == []
    monkeypatch.setattr(torch_module, "_CPU_OPERATIONS", 2 * 16 * (5 * 8 + 8 * 3))
    train(Torch(mlp, epochs=1, batch=16, device="cpu"), TABLE)
    assert len(decisions) == 1


def test_too_little_memory_makes_smaller_stacks(monkeypatch: pytest.MonkeyPatch, decisions: list[Any]) -> None:
    recipe = Torch(mlp, epochs=1, batch=16, device="cpu")
    expected = train(recipe, TABLE)
    calls = []

    def scarce(options: Any, modules: Any, *batch: Any) -> Any:
        calls.append(len(modules))
        if len(modules) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return torch_loop.stack_or_reason(options, modules, *batch)

    monkeypatch.setattr(torch_module, "stack_or_reason", scarce)
    with pytest.warns(UserWarning, match="4 models"):
        assert_equal(train(recipe, TABLE), expected)
    assert calls == [4, 2, 2]


def test_a_divergent_neighbour_changes_nothing() -> None:
    members, seeds = MEMBERS[:2], SEEDS[:2]

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, y, reduction="none") * torch.where(y == 0, 1.0, scale)

    scale = 1.0
    recipe = Torch(mlp, epochs=2, lr=0.1, optimizer="sgd", loss=loss, query=lambda m, x: m(x), device="cpu", key="a")
    (expected,) = recipe.train(TABLE, members[:1], seeds[:1], ONE)
    spoilt = LabelledData(np.where(members[0][:, None], TABLE.X, 1e38), Y)
    first, second = recipe.train(spoilt, np.stack([members[0], ~members[0]]), seeds, ONE)
    np.testing.assert_allclose(first.losses, expected.losses, rtol=1e-4)
    assert not np.isfinite(second.losses).all()
    assert second.diverged
    assert second.trouble == ""  # the loss says it


# The loop -------------------------------------------------------------------------------------------------------------


def plain_loop(data: Tensor, row: npt.NDArray[np.bool_], seed: int, epochs: int, batch: int) -> tuple[Tensor, float]:
    """Train one perceptron as in PyTorch's tutorials from the same draws; its logits, and its last loss."""
    torch.manual_seed(seed)
    model, rng = mlp(), np.random.default_rng(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    order = np.concatenate([rng.permutation(np.flatnonzero(row)) for _ in range(epochs)])
    for step in range(len(order) // batch):
        rows = order[step * batch : (step + 1) * batch]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(data[rows]), torch.from_numpy(Y[rows]))
        loss.backward()
        optimizer.step()
    return model(data).detach(), loss.item()


def test_a_plain_loop_trains_the_same_model() -> None:
    trained = train(Torch(mlp, epochs=4, lr=0.01, batch=16, device="cpu"), TABLE)
    x = torch.from_numpy(TABLE.X.astype(np.float32))
    for outcome, row, seed in zip(trained, MEMBERS, SEEDS, strict=True):
        logits, _ = plain_loop(x, row, seed, 4, 16)
        expected = torch_device.confidence(logits, torch.from_numpy(Y))
        np.testing.assert_allclose(outcome.conf[:, 0], expected.numpy(), rtol=1e-3, atol=1e-4)
        right = (logits.argmax(1).numpy() == Y)[row].mean()
        assert outcome.train_accuracy == pytest.approx(right)


def test_every_record_is_seen_once_per_epoch() -> None:
    seen: list[Tensor] = []

    def watch(x: Tensor) -> Tensor:
        seen.append(x)
        return x

    Torch(mlp, epochs=2, batch=9, transform=watch, device="cpu").train(TABLE, MEMBERS[:1], [0], ONE)
    shown = torch.cat(seen).numpy()
    own = TABLE.X[MEMBERS[0]].astype(np.float32)
    assert shown.shape == (2 * len(own), 5)
    for epoch in (shown[: len(own)], shown[len(own) :]):
        np.testing.assert_array_equal(np.sort(epoch, axis=0), np.sort(own, axis=0))
    assert not np.array_equal(shown[: len(own)], shown[len(own) :])


def test_images_get_channels_first_and_views() -> None:
    seen: list[Tensor] = []

    def ask(module: nn.Module, x: Tensor) -> Tensor:
        seen.append(x)
        answer: Tensor = module(x)
        return answer

    recipe = Torch(cnn, epochs=1, query=ask, device="cpu")
    recipe.train(IMAGES, MEMBERS[:1], [0], [View(), View(mirror=True, dy=1)])
    expected = np.moveaxis(IMAGES.X, -1, 1) / np.float32(255)
    np.testing.assert_allclose(seen[0].numpy(), expected, rtol=1e-6)
    moved = np.moveaxis(View(mirror=True, dy=1).apply(IMAGES.X), -1, 1) / np.float32(255)
    np.testing.assert_allclose(seen[1].numpy(), moved, rtol=1e-6)
    noisy = Torch(mlp, epochs=1, query=ask, device="cpu")
    noisy.train(TABLE, MEMBERS[:1], [0], [View(scale=0.5, seed=3)])
    np.testing.assert_allclose(seen[2].numpy(), View(scale=0.5, seed=3).apply(TABLE.X), rtol=1e-5)
    assert [note.code for note in recipe.notes(IMAGES)] == ["recipe-preprocessing"]
    assert "255" in recipe.notes(IMAGES)[0].text


@pytest.mark.parametrize("paired", [False, True])
def test_tensors_with_channels_first_train_as_arrays_with_channels_last(paired: bool) -> None:
    X = (IMAGES.X / 255).astype(np.float32)
    tensor = torch.from_numpy(np.moveaxis(X, -1, 1).copy())
    data = LabelledData(TensorDataset(tensor, torch.from_numpy(Y))) if paired else LabelledData(tensor, Y)
    recipe = Torch(cnn, epochs=2, device="cpu")
    expected, found = train(recipe, LabelledData(X, Y)), train(recipe, data)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other.conf, one.conf, rtol=1e-5, atol=1e-5)
        assert other.train_accuracy == one.train_accuracy


def test_global_generators_are_as_before() -> None:
    random.seed(1)
    torch.manual_seed(1)
    expected = random.random(), float(torch.rand(1))
    random.seed(1)
    torch.manual_seed(1)
    train(Torch(with_dropout, epochs=1, device="cpu"), TABLE)
    assert (random.random(), float(torch.rand(1))) == expected


def test_an_optimizer_of_ones_own() -> None:
    made = Torch(mlp, epochs=2, batch=16, optimizer=partial(torch.optim.Adam, lr=0.01), schedule="cosine", device="cpu")
    named = Torch(mlp, epochs=2, batch=16, optimizer="adam", lr=0.01, schedule="cosine", device="cpu")
    assert made.stack == 1
    assert_equal(train(made, TABLE), train(named, TABLE))


def own_loop(module: nn.Module, dataset: Dataset[Any], seed: int) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(20):
        for x, y in DataLoader(dataset, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            functional.cross_entropy(module(x), y).backward()
            optimizer.step()


def test_a_loop_of_ones_own() -> None:
    recipe = Torch(mlp, fit=own_loop, device="cpu")
    trained, again = train(recipe, TABLE), train(recipe, TABLE)
    assert recipe.stack == 1
    for one, other in zip(trained, again, strict=True):
        np.testing.assert_array_equal(one.conf, other.conf)
    untrained = train(Torch(mlp, fit=lambda module, dataset, seed: module, device="cpu"), TABLE)
    assert trained[0].train_accuracy > untrained[0].train_accuracy
    with pytest.raises(RecipeError, match="fit returned a float"):
        train(Torch(mlp, fit=lambda module, dataset, seed: 0.5, device="cpu"), TABLE)


# Signals --------------------------------------------------------------------------------------------------------------


def test_a_loss_of_ones_own_is_the_signal(decisions: list[Any]) -> None:
    """Regression: the signal is minus the squared error of each record."""

    def squared(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs[:, 0] - y) ** 2

    recipe = Torch(lambda: nn.Linear(5, 1), epochs=3, lr=0.05, batch=16, loss=squared, device="cpu")
    assert recipe.signal == "signal"
    recipe.check(VALUES)
    trained = train(recipe, VALUES, keep_weights=True)
    assert [type(found) for found in decisions] == [Stack]
    for outcome in trained:
        assert outcome.weights is not None
        predicted = TABLE.X @ outcome.weights["weight"][0].astype(float) + outcome.weights["bias"][0]
        np.testing.assert_allclose(outcome.conf[:, 0], -((predicted - VALUES.y) ** 2), rtol=1e-3, atol=1e-5)
        assert np.isnan(outcome.train_accuracy)


def test_a_signal_of_ones_own_and_inputs_as_targets() -> None:
    data = LabelledData(TABLE.X)
    recipe = Torch(
        lambda: nn.Linear(5, 5),
        loss=lambda outputs, x: (outputs - x) ** 2,
        signal=lambda module, x, y: -(module(x) - y).abs().amax(1),
        device="cpu",
    )
    (outcome,) = recipe.train(data, MEMBERS[:1], [0], ONE)
    assert outcome.conf.shape == (N, 1)
    assert (outcome.conf <= 0).all()


def test_a_signal_of_a_classifier_trained_on_the_cross_entropy() -> None:
    """The classes are counted from y, since a signal alone would not need them."""

    def chosen(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return module(x).gather(1, y[:, None])[:, 0]

    data = LabelledData(TABLE.X, Y, values=True)
    assert data.labels is None
    recipe = Torch(mlp, epochs=2, batch=16, lr=0.01, signal=chosen, device="cpu")
    recipe.check(data)
    for outcome, plain in zip(train(recipe, data), train(Torch(mlp, epochs=2, batch=16, lr=0.01), TABLE), strict=True):
        assert outcome.losses == pytest.approx(plain.losses, rel=1e-4)
        assert np.isfinite(outcome.conf).all()
    with pytest.raises(RecipeError, match="4 classes"):
        train(recipe, LabelledData(TABLE.X, Y + 1, values=True))
    with pytest.raises(RecipeError, match="needs classes"):
        recipe.check(VALUES)


def test_a_query_of_ones_own_makes_a_loss_a_classifier() -> None:
    """One logit for two classes."""
    data = LabelledData(TABLE.X, Y % 2)

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(outputs[:, 0], y.float(), reduction="none")

    def both(module: nn.Module, x: Tensor) -> Tensor:
        z: Tensor = module(x)
        return torch.cat([torch.zeros_like(z), z], dim=1)

    recipe = Torch(lambda: nn.Linear(5, 1), loss=loss, query=both, device="cpu", epochs=2)
    assert recipe.signal == "confidence"
    (outcome,) = recipe.train(data, MEMBERS[:1], [0], ONE, keep_weights=True)
    assert outcome.weights is not None
    z = TABLE.X.astype(np.float32) @ outcome.weights["weight"][0] + outcome.weights["bias"][0]
    np.testing.assert_allclose(outcome.conf[:, 0], np.where(Y % 2 == 1, z, -z), rtol=1e-3, atol=1e-4)


# Datasets -------------------------------------------------------------------------------------------------------------


class Pairs(Dataset[Any]):
    """Inputs of two parts, by name."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, record: int) -> Any:
        x = TABLE.X[record]
        return {"a": torch.from_numpy(x[:2]), "b": x[2:].astype(np.float32)}, "xyz"[record % 3]


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        answer: Tensor = self.layer(torch.cat([a, b], dim=1))
        return answer


def test_a_dataset_gives_what_the_array_gives(decisions: list[Any]) -> None:
    expected = train(Torch(lambda: nn.Linear(5, 3), epochs=2, batch=16, device="cpu"), TABLE)
    pairs = TensorDataset(torch.from_numpy(TABLE.X), torch.from_numpy(Y))
    by_name = LabelledData(Pairs())
    assert by_name.class_names == ("x", "y", "z")
    for make, data in ((lambda: nn.Linear(5, 3), LabelledData(pairs)), (TwoInputs, by_name)):
        assert_equal(train(Torch(make, epochs=2, batch=16, device="cpu"), data), expected)
    assert [type(found) for found in decisions] == [Stack] * 3


class Noisy(TensorDataset):
    def __getitem__(self, record: Any) -> Any:
        x, y = super().__getitem__(record)
        return x + torch.randn(5), y


def test_random_and_large_datasets_are_read_batch_by_batch(
    monkeypatch: pytest.MonkeyPatch, decisions: list[Any]
) -> None:
    pairs = torch.from_numpy(TABLE.X), torch.from_numpy(Y)
    data = LabelledData(Noisy(*pairs))
    assert [note.code for note in data.notes] == ["records-vary"]
    recipe = Torch(lambda: nn.Linear(5, 3), epochs=2, batch=16, device="cpu")
    assert all(np.isfinite(model.conf).all() for model in train(recipe, data))
    expected = train(recipe, TABLE)
    monkeypatch.setattr(torch_module, "_HELD_SHARE", 0.0)
    assert_equal(train(recipe, LabelledData(TensorDataset(*pairs))), expected)
    assert len(decisions) == 1  # only the array


class Ragged(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, record: int) -> Any:
        return torch.zeros(1 + record % 3), record % 3


def test_records_of_different_shapes_are_refused_in_one_sentence() -> None:
    with pytest.raises(RecipeError, match="equal shapes"):
        train(Torch(mlp, device="cpu"), LabelledData(Ragged()))


# A given module, identity, messages ----------------------------------------------------------------------------------


def test_a_given_module_is_queried_like_the_models_of_the_recipe() -> None:
    recipe = Torch(mlp, epochs=1, device="cpu")
    torch.manual_seed(0)
    module = nn.Sequential(mlp(), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    answers = recipe.query_given(module, TABLE, MEMBERS[0], ONE)
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    with torch.no_grad():
        logits = module.eval()(torch.from_numpy(TABLE.X.astype(np.float32)))
    expected = torch_device.confidence(logits, torch.from_numpy(Y))
    np.testing.assert_allclose(answers.conf[:, 0], expected.numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(RecipeError, match="dict"):
        recipe.query_given({}, TABLE, MEMBERS[0], ONE)


def test_code_and_options_decide_the_identity() -> None:
    width = 8

    def sized() -> nn.Module:
        return nn.Linear(5, width)

    first = Torch(sized).to_json()
    assert Torch(sized).to_json() == first
    width = 9
    assert Torch(sized).to_json() != first
    others = [Torch(mlp), Torch(mlp, epochs=3), Torch(mlp, lr=0.1), Torch(mlp, optimizer="sgd"), Torch(mlp, loss=max)]
    others += [Torch(mlp, optimizer=partial(torch.optim.Adam, lr=rate)) for rate in (1, 2)]
    others += [Torch(mlp, transform=abs), Torch(mlp, key="a"), Torch(mlp, fit=own_loop), Torch(mlp, query=abs)]
    assert len({str(recipe.to_json()) for recipe in others}) == len(others)
    assert Torch(mlp, device="cpu", stack=2, compiled=True) == Torch(mlp)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"batch": 2.5}, "batch=2.5"),
        ({"stack": 0}, "stack=0"),
        ({"lr": 0}, "lr=0"),
        ({"optimizer": "adamm"}, "adamm"),
        ({"schedule": "linear"}, "linear"),
        ({"amp": "yes"}, "yes"),
        ({"loss": "mse"}, "loss='mse'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], fact: str) -> None:
    with pytest.raises(RecipeError, match=fact):
        Torch(mlp, **options)


def test_modules_in_place_of_recipes_are_explained() -> None:
    with pytest.raises(RecipeError, match="Linear"):
        Torch(nn.Linear(5, 3))
    for given in (nn.Linear(5, 3), nn.Linear):
        with pytest.raises(RecipeError, match=r"plmia\.Torch\(Linear"):
            as_recipe(given)


def raising() -> nn.Module:
    raise FileNotFoundError("weights.pt")


@pytest.mark.parametrize(
    ("recipe", "fact"),
    [
        (
            Torch(raising, device="cpu"),
            r"FileNotFoundError \(test_torch_module\.py, line \d+, in raising\): weights\.pt",
        ),
        (Torch(lambda: nn.Linear(4, 3), device="cpu"), "RuntimeError"),
        (Torch(lambda: 3, device="cpu"), "int"),
        (Torch(lambda: nn.Linear(5, 2), device="cpu"), r"\[2, 2\].*3 classes"),
        (Torch(lambda: nn.Sequential(mlp(), nn.Flatten(0)), device="cpu"), r"\[6\].*3 classes"),
        (Torch(lambda: nn.Flatten(1), loss=lambda z, y: z[:, 0], device="cpu"), "parameter"),
        (Torch(mlp, loss=nn.CrossEntropyLoss(), device="cpu"), "reduction"),
        (Torch(lambda: nn.Linear(5, 1), loss=nn.MSELoss(reduction="none"), device="cpu"), "reduction"),
        (Torch(mlp, signal=lambda m, x, y: 1.0, device="cpu"), "float"),
        (Torch(mlp, query=lambda m, x: m(x)[:, 0], device="cpu"), "query"),
        (Torch(lambda: nn.Sequential(mlp(), nn.Softmax(1)), device="cpu"), "add up to 1.*logits"),
        (Torch(lambda: nn.Conv2d(1, 3, 3), device="cpu"), rf"RuntimeError.*X \[{len(Y)}, 5\]: .*height, width"),
        (Torch(lambda: nn.Linear(4, 3), device="cpu"), r"RuntimeError.*\[2, 5\] for 2 records(?!.*height)"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_mistakes_in_code_become_one_sentence(recipe: Torch, fact: str) -> None:
    with pytest.raises(RecipeError, match=fact):
        recipe.train(TABLE, MEMBERS[:1], [0], ONE)


def test_data_that_do_not_fit_are_refused_before_training() -> None:
    with pytest.raises(RecipeError, match="classes"):
        Torch(mlp).check(VALUES)
    with pytest.raises(RecipeError, match="missing"):
        Torch(mlp).check(LabelledData(np.where(TABLE.X > 2, np.nan, TABLE.X), Y))


# GPU paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [mlp, with_dropout, Coin, Replacing])
def test_recording_a_step_changes_no_model(make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded on a CPU by a stand-in that runs the step some times, as recording does, and then runs it as it is."""
    recipe = Torch(make, epochs=2, batch=16, optimizer="sgd", lr=0.05, schedule="cosine", stack=1, device="cpu")
    expected = train(recipe, TABLE)
    recorded = []

    def stand_in(step: Callable[[], None]) -> Callable[[], None]:
        with torch.random.fork_rng():
            for _ in range(4):
                step()
        recorded.append(step)
        return step

    monkeypatch.setattr(torch_loop, "records_graphs", lambda options, device: True)
    monkeypatch.setattr(torch_device, "captured", stand_in)
    found = train(recipe, TABLE)
    assert len(recorded) == len(MEMBERS)
    if make is not Coin:  # recording draws from Python's generator, so the next draws are others
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.conf, other.conf, rtol=1e-5, atol=1e-6)


def test_a_failing_compiler_is_noted_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Torch(mlp, epochs=1, batch=16, compiled=True, stack=1, device="cpu")
    expected = train(recipe, TABLE)

    def broken(*_: Any, **__: Any) -> Any:
        def raises(*_: Any) -> Any:
            raise NotImplementedError("no such operation")

        return raises

    def stand_in(step: Callable[[], None]) -> Callable[[], None]:
        step()
        return step

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(torch_loop, "records_graphs", lambda options, device: True)
    monkeypatch.setattr(torch_device, "captured", stand_in)
    with pytest.warns(UserWarning, match=r"torch\.compile failed \(no such operation\)"):
        assert_equal(train(recipe, TABLE), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("make", [mlp, with_dropout])
@pytest.mark.parametrize("options", [{}, {"amp": False}, {"compiled": True, "stack": 1}])
def test_a_gpu_trains_as_well(make: Callable[[], nn.Module], options: dict[str, Any]) -> None:
    on_gpu = train(Torch(make, epochs=10, lr=0.01, batch=16, device="cuda", **options), TABLE)
    on_cpu = train(Torch(make, epochs=10, lr=0.01, batch=16, device="cpu"), TABLE)
    for one, other in zip(on_gpu, on_cpu, strict=True):
        assert abs(one.train_accuracy - other.train_accuracy) < 0.15
        assert np.isfinite(one.conf).all()


def test_the_identity_is_that_of_the_moment() -> None:
    """A recipe that is used for a second audit must not keep the identity of the first."""
    widths = [4]
    recipe, keyed = (Torch(lambda: nn.Linear(widths[0], 2), device="cpu", key=key) for key in (None, "mine"))
    assert recipe.identified() == recipe
    widths[0] = 5
    assert recipe.identified() != recipe
    assert keyed.identified() == keyed
