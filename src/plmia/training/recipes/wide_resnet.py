"""Wide-ResNets for images, one model at a time: bf16 and CUDA graphs on a GPU, float32 on a CPU."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from plmia.data.arrays import Array, BoolArray, FloatArray32, IntArray
from plmia.data.dataset import LabelledData
from plmia.errors import Note, RecipeError
from plmia.training.recipes import torch_device
from plmia.training.recipes.recipe import (
    LARGEST_COUNT,
    LARGEST_RATE,
    BuiltInRecipe,
    Trained,
    accuracies,
    float32_notes,
    is_count,
    network_operations,
    require_features,
)
from plmia.training.recipes.torch_device import to_device
from plmia.training.views import Views

_MIN_PIXELS = 8
# Layers; deeper ones than any published network would fill the memory before they train.
_MIN_DEPTH, _MAX_DEPTH = 10, 10_000
# Largest shift of an image by augmentation, in pixels.
_MAX_SHIFT = 4
_QUERY_ROWS = {"cpu": 256, "cuda": 2048}


@dataclass(frozen=True)
class WideResNet(BuiltInRecipe):
    """Wide residual network with pre-activation; the defaults are the paper's protocol (tab:training_protocol).

    Stochastic gradient descent with momentum; the learning rate rises linearly, then falls to 0 over half a cosine.
    Batches are cut from one permutation of the members after another, so all batches are full and may span two epochs;
    the rest after the last epoch is dropped. Pixels are standardised by channel over all records. The same seed gives
    the same bits on a CPU, and the same numbers up to rounding on a GPU, where all layers but the last compute in bf16.

    Options: ``depth`` in layers (6 n + 4); ``width``, the factor of the channels 16, 32, 64; ``epochs``; records per
    ``batch``; the largest learning rate ``lr``, reached after a share ``warmup`` of the steps; ``momentum``;
    ``weight_decay`` of all parameters; whether to ``augment`` training images: mirrored at random and moved by up to
    four pixels, reflected at the border. Two do not affect what is trained: ``device``, "auto" (a GPU if there is one),
    "cpu", "cuda" or "cuda:1", and ``compiled``, whether to fuse kernels of a GPU with torch.compile, which takes about
    a minute per process.
    """

    depth: int = 28
    width: int = 2
    epochs: int = 100
    batch: int = 256
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup: float = 0.01
    augment: bool = False
    device: str = field(default="auto", compare=False)
    compiled: bool = field(default=True, compare=False)
    name: ClassVar[str] = "wide-resnet"
    keeps_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not _MIN_DEPTH <= self.depth <= _MAX_DEPTH or self.depth % 6 != _MIN_DEPTH % 6:
            raise RecipeError(
                f"wide-resnet cannot have depth {self.depth}: choose 10, 16, 22, 28, ... (6 n + 4), at most "
                f"{_MAX_DEPTH:,}"
            )
        if not all(map(is_count, (self.width, self.epochs, self.batch))):
            raise RecipeError(
                f"wide-resnet needs whole width, epochs and batch from 1 to {LARGEST_COUNT:,}, not {self}"
            )
        rates = 0 < self.lr <= LARGEST_RATE and 0 <= self.weight_decay <= LARGEST_RATE
        if not (rates and 0 <= self.momentum < 1 and 0 <= self.warmup < 1):
            raise RecipeError(
                f"wide-resnet needs lr above 0, weight_decay of at least 0 (both at most {LARGEST_RATE:g}), and "
                f"momentum and warmup in [0, 1), not {self}"
            )

    @property
    def augments(self) -> bool:
        """Whether training images are mirrored and shifted."""
        return self.augment

    def check(self, data: LabelledData) -> None:
        """Take images of at least 8 x 8 pixels, grey or with channels, if the device exists."""
        if not data.is_images:
            shape = f" {list(data.X.shape)}" if data.is_array or data.is_table else ""
            raise RecipeError(
                f"wide-resnet needs images [records, height, width(, channels)], but X is {data.form}{shape}: use mlp "
                "or gbdt"
            )
        require_features(self.name, data)
        if min(data.X.shape[1:3]) < _MIN_PIXELS:
            raise RecipeError(
                f"wide-resnet needs at least {_MIN_PIXELS} x {_MIN_PIXELS} pixels, but the images have "
                f"{data.X.shape[1]} x {data.X.shape[2]}: use mlp"
            )
        torch_device.pick_device(self.device)

    def notes(self, data: LabelledData) -> list[Note]:
        """Note that pixels become 32-bit floats and are standardised."""
        return float32_notes(self.name, ["converts X to 32-bit floats", "standardises each channel"], data)

    def operations(self, data: LabelledData, n_members: int) -> float:
        """Those of `network_operations` for all convolutions and the last layer, on the full batches."""
        height, width, channels = (*data.X.shape[1:], 1)[:3]
        batch = min(self.batch, n_members)
        n_records = self.epochs * n_members // batch * batch if batch else 0
        return network_operations(self._multiply_adds(height, width, channels, data.n_classes), n_records)

    def _multiply_adds(self, height: int, width: int, channels: int, n_classes: int) -> int:
        """Multiply-adds of the forward pass of one image; see `_Net`."""
        inputs, total = 16, 9 * channels * 16 * height * width
        for stage in range(3):
            outputs = 16 * self.width * 2**stage
            if stage > 0:
                height, width = -(-height // 2), -(-width // 2)
            first = 9 * (inputs + outputs) * outputs + (inputs * outputs if stage > 0 or inputs != outputs else 0)
            others = ((self.depth - 4) // 6 - 1) * 18 * outputs**2
            total += (first + others) * height * width
            inputs = outputs
        return total + inputs * n_classes

    def train(
        self, data: LabelledData, members: BoolArray, seeds: Sequence[int], views: Views, keep_weights: bool = False
    ) -> list[Trained]:
        """Train and query one network after another; see `Recipe.train`."""
        self.check(data)
        device = torch_device.pick_device(self.device)
        images = Images.load(data, device)

        def one(start: int, stop: int) -> list[Trained]:
            del stop
            return [self._train_one(images, members[start], seeds[start], views, keep_weights)]

        with torch_device.fast_arithmetic(device):
            return torch_device.in_parts(len(members), 1, one)

    def _train_one(self, images: Images, members: BoolArray, seed: int, views: Views, keep_weights: bool) -> Trained:
        program = self.program(images, int(members.sum()))
        losses = program.fit(images, np.flatnonzero(members), np.random.default_rng(seed))
        conf, right = program.query(images, views)
        weights = program.weights() if keep_weights else None
        return Trained(conf, *accuracies(right, members), losses=losses, weights=weights)

    def program(self, images: Images, n_members: int) -> Program:
        """Program that trains networks on such images; a GPU reuses the last one, since compiling it is slow."""
        if n_members == 0:
            raise RecipeError("a model has no records to train on: give it some")
        shape = (min(self.batch, n_members), *images.pixels.shape[1:])
        build = _compiled_program if images.pixels.is_cuda else Program
        return build(self, shape, images.pixels.dtype, images.n_classes, images.pixels.device, self.compiled)


@dataclass(frozen=True)
class Images:
    """All images on the device, channels last (uint8 stays uint8), with labels and the channels' moments."""

    pixels: Tensor
    labels: Tensor
    mean: Tensor
    deviation: Tensor
    n_classes: int

    @classmethod
    def load(cls, data: LabelledData, device: torch.device) -> Images:
        """Copy the images to the device."""
        values = data.X if data.X.ndim == 4 else data.X[..., None]
        values = np.ascontiguousarray(values if values.dtype == np.uint8 else values.astype(np.float32))
        pixels = to_device(values, device)
        labels = to_device(data.y.astype(np.int64), device)
        return cls(pixels, labels, *_moments(pixels), data.n_classes)


def _moments(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel, [channels, 1, 1]; exact sums if pixels are whole numbers."""
    total = torch.zeros((2, pixels.shape[3]), dtype=torch.float64, device=pixels.device)
    for part in pixels.split(1024):  # type: ignore[no-untyped-call]
        doubles = part.double()
        total += torch.stack([doubles.sum(dim=(0, 1, 2)), doubles.square().sum(dim=(0, 1, 2))])
    mean, square = total / (pixels.numel() / pixels.shape[3])
    deviation = (square - mean.square()).clamp_(min=0).sqrt()
    deviation = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    return mean.float()[:, None, None], deviation.float()[:, None, None]


class _Block(nn.Module):
    """Two convolutions, each after batch-norm and ReLU, with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = functional.relu(self.norm1(x))
        change: Tensor = self.conv2(functional.relu(self.norm2(self.conv1(active))))
        return change + (x if self.shortcut is None else self.shortcut(active))


class _Net(nn.Module):
    """Network from pixels [points, height, width, channels] to logits [points, classes]."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, depth: int, width: int, channels: int, n_classes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("deviation", torch.ones(channels, 1, 1))
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        blocks, inputs = [], 16
        for stage, outputs in enumerate((16 * width, 32 * width, 64 * width)):
            for block in range((depth - 4) // 6):
                blocks.append(_Block(inputs, outputs, 2 if stage > 0 and block == 0 else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, n_classes)

    def forward(self, pixels: Tensor) -> Tensor:
        x = (pixels.permute(0, 3, 1, 2).float() - self.mean) / self.deviation
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            x = functional.relu(self.norm(self.blocks(self.stem(x))))
        # In float32: confidences in bf16 would come in coarse steps.
        logits: Tensor = self.head(x.float().mean(dim=(2, 3)))
        return logits

    @torch.no_grad()
    def restart(self, images: Images, rng: np.random.Generator) -> None:
        """Draw initial weights, in place."""
        self.mean.copy_(images.mean)
        self.deviation.copy_(images.deviation)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.weight.shape[0] * module.weight.shape[2] * module.weight.shape[3]
                normal = rng.standard_normal(tuple(module.weight.shape), np.float32)
                module.weight.copy_(torch.from_numpy(normal * np.float32(math.sqrt(2 / fan_out))))
            elif isinstance(module, nn.Linear):
                uniform = 2 * rng.random(tuple(module.weight.shape), np.float32) - 1
                module.weight.copy_(torch.from_numpy(uniform / np.float32(math.sqrt(module.in_features))))
                module.bias.zero_()
            elif isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
                module.weight.fill_(1)
                module.bias.zero_()


class Program:
    """A network, its optimizer and the buffers of a step, for batches of one shape; trains any number of models."""

    def __init__(
        self,
        recipe: WideResNet,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        n_classes: int,
        device: torch.device,
        compiled: bool,
    ) -> None:
        self.recipe, self.device = recipe, device
        self.net = _Net(recipe.depth, recipe.width, shape[3], n_classes)
        self.net.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.pixels = torch.zeros(shape, dtype=dtype, device=device)
        self.labels = torch.zeros(shape[0], dtype=torch.int64, device=device)
        self.loss = torch.zeros((), device=device)
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.SGD(
            self.net.parameters(),
            torch.tensor(recipe.lr, device=device) if on_gpu else recipe.lr,
            recipe.momentum,
            weight_decay=recipe.weight_decay,
            fused=on_gpu or None,
        )
        self.forward: Callable[[Tensor], Tensor] = self.net
        # Takes one step on the batch in the buffers, in the fastest way.
        self.run: Callable[[], None] = self._recorded(compiled) if on_gpu else self.step

    def _recorded(self, compiled: bool) -> Callable[[], None]:
        """Record a step as a CUDA graph, with compiled kernels if possible."""
        if compiled:
            self.forward = torch.compile(self.net, dynamic=False)
            try:
                return torch_device.captured(self.step)
            except Exception as error:
                if torch_device.is_out_of_memory(error):
                    raise
                reason = (str(error) or type(error).__name__).splitlines()[0]
                warnings.warn(f"torch.compile failed ({reason}): continuing without it, slower", stacklevel=2)
                self.forward = self.net
        return torch_device.captured(self.step)

    def step(self) -> None:
        """Take one step on the batch in the buffers, kernel by kernel."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(self.forward(self.pixels), self.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.loss += loss.detach()

    def fit(self, images: Images, members: IntArray, rng: np.random.Generator) -> tuple[float, ...]:
        """Train a new network on some of the images; return the mean loss of each epoch."""
        self.net.restart(images, rng)
        self.net.train()
        torch_device.forget(self.optimizer)
        self.loss.zero_()
        batch, recipe = len(self.labels), self.recipe
        steps, step = recipe.epochs * len(members) // batch, 0
        left, history = members[:0], []
        for _ in range(recipe.epochs):
            order = np.concatenate([left, rng.permutation(members)])
            whole = len(order) // batch
            order, left = order[: whole * batch], order[whole * batch :]
            load = self._loader(images, order, rng)
            for start in range(0, whole * batch, batch):
                torch_device.set_rate(self.optimizer, recipe.lr * torch_device.cosine(step, steps, recipe.warmup))
                load(slice(start, start + batch))
                self.run()
                step += 1
            history.append(self.loss / whole)
            self.loss.zero_()
        return tuple(torch.stack(history).tolist())

    def _loader(self, images: Images, order: IntArray, rng: np.random.Generator) -> Callable[[slice], None]:
        """Function that fills the buffers with a part of an epoch."""
        index = to_device(order, self.device)

        def load(part: slice) -> None:
            torch.index_select(images.pixels, 0, index[part], out=self.pixels)
            torch.index_select(images.labels, 0, index[part], out=self.labels)

        if not self.recipe.augment:
            return load
        rows, columns = (
            to_device(positions, self.device) for positions in _moved(len(order), images.pixels.shape[1:3], rng)
        )

        def load_moved(part: slice) -> None:
            at = index[part, None, None], rows[part, :, None], columns[part, None, :]
            self.pixels.copy_(images.pixels[at])
            torch.index_select(images.labels, 0, index[part], out=self.labels)

        return load_moved

    def weights(self) -> dict[str, Array]:
        """Parameters and batch-norm statistics by name."""
        return {name: value.detach().cpu().numpy().copy() for name, value in self.net.state_dict().items()}

    @torch.no_grad()
    def query(self, images: Images, views: Views) -> tuple[FloatArray32, BoolArray]:
        """Confidences [records, views], and correct predictions of the first view [records]."""
        self.net.eval()
        n, height, width, _ = images.pixels.shape
        shown = [tuple(to_device(at, self.device) for at in view.indices(height, width)) for view in views]
        conf = torch.empty((n, len(views)), device=self.device)
        right = torch.empty(n, dtype=torch.bool, device=self.device)
        size = min(n, _QUERY_ROWS[self.device.type])
        for start in range(0, n, size):
            # Always the same number, padded with the last point: a compiled network knows one shape.
            index = torch.arange(start, start + size, device=self.device).clamp_(max=n - 1)
            pixels, labels, stop = images.pixels[index], images.labels[index], min(start + size, n)
            for view, (rows, columns) in enumerate(shown):
                logits = self.forward(pixels[:, rows][:, :, columns])
                conf[start:stop, view] = torch_device.confidence(logits, labels)[: stop - start]
                if view == 0:
                    right[start:stop] = (logits.argmax(dim=1) == labels)[: stop - start]
        return conf.cpu().numpy(), right.cpu().numpy()


_compiled_program = functools.lru_cache(maxsize=1)(Program)


def _moved(n: int, shape: Sequence[int], rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Rows [n, height] and columns [n, width] of random crops of the reflect-padded and mirrored images."""
    height, width = shape
    shifts = rng.integers(-_MAX_SHIFT, _MAX_SHIFT + 1, (2, n, 1))
    rows = np.abs(np.arange(height) + shifts[0])
    columns = np.abs(np.arange(width) + shifts[1])
    rows = height - 1 - np.abs(height - 1 - rows)
    columns = width - 1 - np.abs(width - 1 - columns)
    return rows, np.where(rng.random((n, 1)) < 0.5, width - 1 - columns, columns)
