"""Multi-layer perceptrons; the models of a stack train together in batched matrix products."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from plmia.data.arrays import Array, BoolArray, FloatArray32, IntArray
from plmia.data.dataset import LabelledData
from plmia.data.encoding import features_encoding
from plmia.errors import Note, RecipeError
from plmia.training.recipes import torch_device
from plmia.training.recipes.recipe import (
    LARGEST_COUNT,
    LARGEST_RATE,
    BuiltInRecipe,
    Trained,
    accuracies,
    features_identity,
    features_steps,
    float32_notes,
    is_count,
    network_operations,
    require_features,
)
from plmia.training.recipes.torch_device import to_device
from plmia.training.views import View, Views

# Points per query; fixed, so that a model's answers do not depend on the number of models in its stack.
_QUERY_ROWS = 512
# More parameters than this do not fit into the cache of a CPU, so a larger stack is slower than two smaller ones.
_CPU_PARAMETERS = 1 << 20


@dataclass(frozen=True)
class MLP(BuiltInRecipe):
    """Perceptrons with ReLU between the layers, trained on the cross-entropy.

    All models of a stack take their steps together, each on its own records in its own order. A model does not depend
    on the other models of its stack: bit for bit on a CPU, up to rounding on a GPU (TF32 products, CUDA graphs).

    Options: ``widths`` of the hidden layers, as in the paper by default; ``epochs``; records per ``batch``, where the
    last one of an epoch takes the rest; learning rate ``lr``, whose ``schedule`` is "constant" or falls to 0 over half
    a "cosine"; the ``optimizer`` "adam", or "sgd" with ``momentum``; ``weight_decay`` of weights and biases; whether to
    ``standardise`` each feature over all records. Two do not affect what is trained: ``stack``, the largest number of
    models that train at once, and ``device``: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".
    """

    widths: tuple[int, ...] = (512, 256, 128, 64)
    epochs: int = 50
    batch: int = 256
    lr: float = 1e-3
    weight_decay: float = 0.0
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.9
    schedule: Literal["constant", "cosine"] = "constant"
    standardise: bool = True
    stack: int = field(default=64, compare=False)
    device: str = field(default="auto", compare=False)
    name: ClassVar[str] = "mlp"
    keeps_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # A single width and a list from JSON are accepted, too.
        given: Any = self.widths
        widths = (given,) if isinstance(given, int) else tuple(given)
        object.__setattr__(self, "widths", widths)
        if not all(map(is_count, (*widths, self.epochs, self.batch, self.stack))):
            raise RecipeError(
                f"mlp needs whole widths, epochs, batch and stack from 1 to {LARGEST_COUNT:,}, not {self}"
            )
        if not (0 < self.lr <= LARGEST_RATE and 0 <= self.weight_decay <= LARGEST_RATE and 0 <= self.momentum < 1):
            raise RecipeError(
                f"mlp needs lr above 0, weight_decay of at least 0 (both at most {LARGEST_RATE:g}) and momentum in "
                f"[0, 1), not {self}"
            )
        if self.optimizer not in ("adam", "sgd"):
            raise RecipeError(f"mlp has no optimizer {self.optimizer!r}: choose adam or sgd")
        if self.schedule not in ("constant", "cosine"):
            raise RecipeError(f"mlp has no schedule {self.schedule!r}: choose constant or cosine")

    def check(self, data: LabelledData) -> None:
        """Take arrays and tables, and images without missing pixels, if the device exists."""
        require_features(self.name, data)
        torch_device.pick_device(self.device)

    def preprocessing(self, data: LabelledData) -> str:
        """Encoding of text, categories and missing values, if there are any."""
        return features_identity(data)

    def notes(self, data: LabelledData) -> list[Note]:
        """Note that features become 32-bit floats, and other conversions."""
        pixels = data.is_images and data.X.dtype == np.uint8
        steps = features_steps(data) + (
            ["converts X to 32-bit floats"]
            + ["flattens images"] * data.is_images
            + ["divides pixels by 255"] * pixels
            + ["standardises each feature"] * self.standardise
        )
        return float32_notes(self.name, steps, data)

    def operations(self, data: LabelledData, n_members: int) -> float:
        """Those of `network_operations` for all layers; the padding of an epoch's last batch is left out."""
        plain = data.is_array and features_encoding(data) is None
        n_features = math.prod(data.X.shape[1:]) if plain else data.features().shape[1]
        layers = pairwise((n_features, *self.widths, data.n_classes))
        return network_operations(sum(fan_in * fan_out for fan_in, fan_out in layers), self.epochs * n_members)

    def train(
        self, data: LabelledData, members: BoolArray, seeds: Sequence[int], views: Views, keep_weights: bool = False
    ) -> list[Trained]:
        """Train and query the models together; see `Recipe.train`."""
        device = torch_device.pick_device(self.device)
        empty = np.flatnonzero(~members.any(axis=1))
        if len(empty):
            raise RecipeError(f"model {empty[0]} of the stack has no records to train on: give it some")
        points = _Points.load(data, views, self.standardise, device)
        # Largest first, so that the models with points left in an epoch always come first.
        largest = np.argsort(-members.sum(axis=1), kind="stable")

        def part(start: int, stop: int) -> list[Trained]:
            chosen = largest[start:stop]
            return self._train_stack(points, members[chosen], [seeds[i] for i in chosen], keep_weights)

        trained = torch_device.in_parts(len(members), self._at_once(points, members, device), part)
        return [trained[i] for i in np.argsort(largest)]

    def _at_once(self, points: _Points, members: BoolArray, device: torch.device) -> int:
        """Number of models that fit into memory together."""
        layers = points.layers(self.widths)
        parameters = sum((fan_in + 1) * fan_out for fan_in, fan_out in layers)
        # Weights, gradients, two moments and scratch; inputs, outputs and their gradients; batch order and answers.
        rows = max(min(self.batch, points.n), _QUERY_ROWS)
        numbers = 6 * parameters + rows * (layers[0][0] + 4 * sum(fan_out for _, fan_out in layers))
        needed = 4 * numbers + 8 * members.shape[1] * (2 + len(points.views))
        most = min(self.stack, torch_device.usable_bytes(device) / needed)
        if device.type == "cpu":
            most = min(most, _CPU_PARAMETERS / parameters)
        return max(1, int(most))

    def _train_stack(
        self, points: _Points, members: BoolArray, seeds: Sequence[int], keep_weights: bool
    ) -> list[Trained]:
        with torch_device.fast_arithmetic(points.x.device):
            stack = _Stack(self, points, members, [np.random.default_rng(seed) for seed in seeds])
            losses = stack.fit()
        conf, right = stack.query()
        weights = stack.weights() if keep_weights else [None] * len(members)
        return [
            Trained(conf[i], *accuracies(right[i], row), losses=tuple(losses[i].tolist()), weights=weights[i])
            for i, row in enumerate(members)
        ]


@dataclass(frozen=True)
class _Points:
    """All points on the device: standardised features [points, features], labels [points] and views.

    A view picks columns and moves their values: ``x[:, columns] * factor + offset``.
    """

    x: Tensor
    y: Tensor
    views: list[tuple[Tensor, Tensor, Tensor]]
    n_classes: int

    @property
    def n(self) -> int:
        return len(self.y)

    def layers(self, widths: Sequence[int]) -> list[tuple[int, int]]:
        """Inputs and outputs of each layer."""
        return list(pairwise((self.x.shape[1], *widths, self.n_classes)))

    @classmethod
    def load(cls, data: LabelledData, views: Views, standardise: bool, device: torch.device) -> _Points:
        features = data.features()
        mean, deviation = np.zeros(features.shape[1]), np.ones(features.shape[1])
        if standardise:
            mean, deviation = features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64)
            deviation[deviation == 0] = 1  # a constant feature becomes 0
        features -= mean.astype(np.float32)
        features /= deviation.astype(np.float32)
        changes = []
        for view in views:
            columns, moved = _columns(view, data, features.shape[1])
            factor, offset = deviation[columns] / deviation, (mean[columns] + moved - mean) / deviation
            floats = [to_device(values.astype(np.float32), device) for values in (factor, offset)]
            changes.append((to_device(columns, device), floats[0], floats[1]))
        return cls(
            to_device(features, device),
            to_device(data.y.astype(np.int64), device),
            changes,
            data.n_classes,
        )

    def shown(self, view: int, part: slice) -> Tensor:
        """Some of the points in a view, [rows, features]."""
        columns, factor, offset = self.views[view]
        return self.x[part][:, columns] * factor + offset


def _columns(view: View, data: LabelledData, n_features: int) -> tuple[IntArray, FloatArray32]:
    """Feature that a view shows in place of each feature, and the offset it adds."""
    columns = np.arange(n_features)
    if not data.is_images:
        return columns, view.offset(n_features)
    rows, across = view.indices(data.X.shape[1], data.X.shape[2])
    return columns.reshape(data.X.shape[1:])[rows][:, across].ravel(), np.zeros(n_features, np.float32)


class _Stack:
    """Models that train together: parameters [models, inputs, outputs] and [models, 1, outputs], and optimizers."""

    def __init__(self, recipe: MLP, points: _Points, members: BoolArray, rngs: Sequence[np.random.Generator]) -> None:
        self.recipe, self.points, self.rngs = recipe, points, rngs
        self.device = points.x.device
        self.members = [np.flatnonzero(row) for row in members]
        self.sizes = np.array([len(own) for own in self.members])
        self.batch = min(recipe.batch, points.n)
        self.steps = -(-self.sizes // self.batch)  # per epoch, by model, decreasing
        self.parameters = _initial_parameters(points.layers(recipe.widths), rngs, self.device)
        firsts = [0, *(np.flatnonzero(np.diff(self.steps)) + 1).tolist(), len(members)]
        self.cohorts = [
            _Cohort(recipe, self.parameters, start, stop, int(self.steps[start])) for start, stop in pairwise(firsts)
        ]
        # Inputs and outputs of a step; CUDA graphs need them at fixed addresses.
        self.index = torch.zeros((len(members), self.batch), dtype=torch.int64, device=self.device)
        self.count = torch.ones((len(members), 1), device=self.device)
        self.position = torch.arange(self.batch, device=self.device)
        self.loss = torch.zeros(len(members), device=self.device)
        self.graphs: dict[int, Callable[[], None]] = {}
        if self.device.type == "cuda":
            self._record()

    def _record(self) -> None:
        """Record a CUDA graph of each kind of step."""
        initial = [parameter.clone() for parameter in self.parameters]
        pool = torch.cuda.graph_pool_handle()
        for cohort in self.cohorts:
            self.graphs[cohort.stop] = torch_device.captured(functools.partial(self.step, cohort.stop), pool)
        # Recording takes steps; undo them.
        for parameter, values in zip(self.parameters, initial, strict=True):
            parameter.copy_(values)
        for cohort in self.cohorts:
            torch_device.forget(cohort.optimizer)
        self.loss.zero_()

    def step(self, active: int) -> None:
        """Take one step with the first ``active`` models, on the first ``count`` rows in ``index``."""
        leaves = [parameter[:active].detach().requires_grad_() for parameter in self.parameters]
        index, count = self.index[:active], self.count[:active]
        logits = _forward(leaves, self.points.x[index])
        labels = self.points.y[index].flatten()
        losses = functional.cross_entropy(logits.flatten(0, 1), labels, reduction="none").view(active, self.batch)
        sums = losses.masked_fill(self.position >= count, 0.0).sum(dim=1)
        self.loss[:active].add_(sums.detach())
        # The sum of the models' mean losses: each model's gradient is its own.
        gradients = torch.autograd.grad((sums / count.squeeze(1)).sum(), leaves)
        for cohort in self.cohorts:
            if cohort.start < active:
                cohort.update(gradients)

    def fit(self) -> FloatArray32:
        """Train; return the mean loss of each epoch, [models, epochs]."""
        steps = int(self.steps.max())
        left = self.sizes[:, None] - self.batch * np.arange(steps)
        counts = to_device(np.clip(left, 0, self.batch).T[:, :, None].astype(np.float32), self.device)
        active = [int((self.steps > step).sum()) for step in range(steps)]
        sizes = to_device(self.sizes.astype(np.float32), self.device)
        history = []
        for epoch in range(self.recipe.epochs):
            # A GPU is still busy with the last epoch meanwhile.
            order = to_device(self._order(steps), self.device)
            for step in range(steps):
                for cohort in self.cohorts:
                    cohort.set_rate(epoch * cohort.steps + step)
                self.index.copy_(order[step])
                self.count.copy_(counts[step])
                self.graphs.get(active[step], functools.partial(self.step, active[step]))()
            history.append(self.loss / sizes)
            self.loss.zero_()
        return torch.stack(history, dim=1).cpu().numpy()

    def _order(self, steps: int) -> IntArray:
        """Rows of each step of an epoch, [steps, models, batch]; padded with a model's first member."""
        order = np.empty((steps, len(self.members), self.batch), np.int64)

        def draw(model: int) -> None:
            own = self.members[model]
            rows = np.full(steps * self.batch, own[0])
            rows[: len(own)] = self.rngs[model].permutation(own)
            order[:, model] = rows.reshape(steps, self.batch)

        torch_device.for_each(draw, len(self.members), self.device)
        return order

    @torch.no_grad()
    def query(self) -> tuple[FloatArray32, BoolArray]:
        """Confidences [models, points, views], and correct predictions of the first view [models, points]."""
        points, models = self.points, len(self.members)
        conf = np.empty((models, points.n, len(points.views)), np.float32)
        right = torch.zeros((models, points.n), dtype=torch.bool, device=self.device)
        column = torch.empty((models, points.n), device=self.device)
        for view in range(len(points.views)):
            for start in range(0, points.n, _QUERY_ROWS):
                part = slice(start, start + _QUERY_ROWS)
                logits = _forward(self.parameters, points.shown(view, part).expand(models, -1, -1))
                column[:, part] = torch_device.confidence(logits, points.y[part])
                if view == 0:
                    right[:, part] = logits.argmax(dim=-1) == points.y[part]
            conf[:, :, view] = column.cpu().numpy()
        return conf, right.cpu().numpy()

    def weights(self) -> list[dict[str, Array]]:
        """Parameters of each model by name; weights are [outputs, inputs], as in torch."""
        found: list[dict[str, Array]] = [{} for _ in self.members]
        for layer, (weight, bias) in enumerate(zip(self.parameters[::2], self.parameters[1::2], strict=True)):
            for own, matrix, vector in zip(found, weight.cpu().numpy(), bias.cpu().numpy(), strict=True):
                own[f"layer{layer}.weight"] = np.ascontiguousarray(matrix.T)
                own[f"layer{layer}.bias"] = vector[0].copy()
        return found


class _Cohort:
    """Models ``start`` to ``stop - 1``, which take the same number of steps per epoch, and their optimizer.

    Adam's bias correction and the schedule count steps, once per tensor. So models with fewer steps have tensors of
    their own, which share memory with the stack's and do not change in steps without them.
    """

    def __init__(self, recipe: MLP, parameters: list[Tensor], start: int, stop: int, steps: int) -> None:
        self.recipe, self.start, self.stop, self.steps = recipe, start, stop, steps
        self.parameters = [parameter[start:stop].detach() for parameter in parameters]
        on_gpu = parameters[0].device.type == "cuda"
        options: dict[str, Any] = {"lr": recipe.lr, "weight_decay": recipe.weight_decay, "foreach": True}
        if on_gpu:
            rate = torch.tensor(recipe.lr, device=parameters[0].device)
            options |= {"lr": rate, "fused": True, "foreach": None}
        if recipe.optimizer == "adam":
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.parameters, capturable=on_gpu, **options)
        else:
            self.optimizer = torch.optim.SGD(self.parameters, momentum=recipe.momentum, **options)

    def set_rate(self, step: int) -> None:
        """Set the learning rate of a step, counted from the start of training."""
        if self.recipe.schedule == "cosine":
            torch_device.set_rate(
                self.optimizer, self.recipe.lr * torch_device.cosine(step, self.recipe.epochs * self.steps)
            )

    def update(self, gradients: Sequence[Tensor]) -> None:
        """Take an optimizer step with this cohort's part of the stack's gradients."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient[self.start : self.stop]
        self.optimizer.step()


def _forward(parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    """Logits [models, rows, classes] from inputs [models, rows, features]."""
    last = len(parameters) // 2 - 1
    for layer, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
        x = torch.baddbmm(bias, x, weight)
        if layer < last:
            x = x.relu_()
    return x


def _initial_parameters(
    layers: list[tuple[int, int]], rngs: Sequence[np.random.Generator], device: torch.device
) -> list[Tensor]:
    """Weights and biases by layer, uniform within 1 / sqrt(inputs), from each model's own generator."""
    drawn = [np.empty((len(rngs), fan_in + 1, fan_out), np.float32) for fan_in, fan_out in layers]

    def draw(model: int) -> None:
        for both in drawn:
            own = both[model]
            rngs[model].random(out=own, dtype=np.float32)
            own *= 2
            own -= 1
            own *= np.float32(1 / math.sqrt(len(own) - 1))

    torch_device.for_each(draw, len(rngs), device)
    parts = [part for both in drawn for part in (both[:, :-1], both[:, -1:])]
    return [to_device(np.ascontiguousarray(part), device) for part in parts]
