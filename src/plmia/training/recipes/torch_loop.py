"""The training loop of the recipe `torch`: one module alone, or several as a stack.

A stack holds each parameter of its models in one tensor, and `torch.vmap` runs the module on all of them. Every model
takes its own batches in its own order. Before a stack trains, its losses, gradients and buffers on the first batch are
compared with those of each module alone (`stack_or_reason`): a module that differs, draws random numbers (dropout) or
cannot be stacked trains alone. Optimizers act on each number by itself, so a stack needs no optimizer of its own.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from plmia.data.arrays import FloatArray32
from plmia.data.user_code import described
from plmia.errors import RecipeError
from plmia.training.recipes import torch_device
from plmia.training.recipes.recipe import LARGEST_COUNT, LARGEST_RATE, is_count

# Tensors that models get or answer: one, or a list, tuple or dictionary of them.
Tensors = Any
# Users' functions.
Call = Callable[..., Any]

# Largest difference of a stack from its models alone that rounding explains, relative to the largest value.
_ROUNDING = {"cpu": 1e-3, "cuda": 5e-2}
_OPTIMIZERS: dict[str, Call] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


@dataclass(frozen=True)
class Options:
    """Options of the loop; see `plmia.training.recipes.torch_module.Torch`."""

    epochs: int
    lr: float
    batch: int
    weight_decay: float
    optimizer: str | Call
    momentum: float
    schedule: str
    loss: Call | None
    transform: Call | None
    amp: bool | str
    compiled: bool

    def __post_init__(self) -> None:
        for option, value in {"epochs": self.epochs, "batch": self.batch}.items():
            if not is_count(value):
                raise RecipeError(f"torch has {option}={value!r}: a whole number from 1 to {LARGEST_COUNT:,} is needed")
        if not (0 < self.lr <= LARGEST_RATE and 0 <= self.weight_decay <= LARGEST_RATE and 0 <= self.momentum < 1):
            raise RecipeError(
                f"torch has lr={self.lr}, weight_decay={self.weight_decay} and momentum={self.momentum}: lr must be "
                f"above 0, weight_decay at least 0, both at most {LARGEST_RATE:g}, and momentum in [0, 1)"
            )
        if not (callable(self.optimizer) or self.optimizer in _OPTIMIZERS):
            raise RecipeError(
                f"torch has no optimizer {self.optimizer!r}: choose adam, adamw or sgd, or give a function"
            )
        if self.schedule not in ("constant", "cosine"):
            raise RecipeError(f"torch has no schedule {self.schedule!r}: choose constant or cosine")
        if self.amp not in ("auto", True, False):
            raise RecipeError(f"torch has no amp={self.amp!r}: choose 'auto', True or False")

    def losses(self, outputs: Any, y: Tensors) -> Tensor:
        """Loss of each record [records] of a batch."""
        n = len(leaves(y)[0])
        if self.loss is None:
            if not isinstance(outputs, Tensor) or outputs.ndim != 2 or outputs.shape[0] != n:
                raise RecipeError(
                    f"the module returned {_form(outputs)}, but logits [{n}, classes] are needed: give a loss of your "
                    "own for other answers"
                )
            return functional.cross_entropy(outputs, y, reduction="none")
        values = self.loss(outputs, y)
        forms = [(n,), *(part.shape for part in (outputs, y) if isinstance(part, Tensor))]
        if not isinstance(values, Tensor) or values.shape not in forms or values.shape[:1] != (n,):
            raise RecipeError(
                f"the loss returned {_form(values)} for outputs of {_form(outputs)} and y of {_form(y)}: return one "
                f"value per record [{n}], with reduction='none'"
            )
        return values.flatten(1).mean(dim=1) if values.ndim > 1 else values

    def uses_bfloat16(self, device: torch.device) -> bool:
        """Whether to train in bfloat16."""
        if device.type != "cuda":
            return False
        return self.amp is True or (self.amp == "auto" and torch.cuda.is_bf16_supported(including_emulation=False))

    def steps(self, n_members: int) -> int:
        """Number of steps of a model; every batch is full."""
        return self.epochs * n_members // self.batch_size(n_members)

    def batch_size(self, n_members: int) -> int:
        """Records per batch of a model."""
        return min(self.batch, n_members)


def tensors_map(function: Callable[[Tensor], Tensor], values: Tensors) -> Tensors:
    """Apply a function to each tensor in lists, tuples and dictionaries; other values stay."""
    if isinstance(values, Tensor):
        return function(values)
    if isinstance(values, dict):
        return {key: tensors_map(function, value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [tensors_map(function, value) for value in values]
    return values


def arguments(x: Tensors) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a module: a list of inputs is passed by position, a dictionary by name."""
    if isinstance(x, dict):
        return (), x
    return (tuple(x) if isinstance(x, list | tuple) else (x,)), {}


def call(module: Call, x: Tensors) -> Any:
    """Call a module with a batch."""
    args, kwargs = arguments(x)
    return module(*args, **kwargs)


def leaves(values: Tensors) -> list[Any]:
    """All tensors, and other values, in lists, tuples and dictionaries."""
    if isinstance(values, dict):
        return [leaf for value in values.values() for leaf in leaves(value)]
    if isinstance(values, list | tuple):
        return [leaf for value in values for leaf in leaves(value)]
    return [values]


def _form(values: Any) -> str:
    return f"shape {list(values.shape)}" if isinstance(values, Tensor) else f"type {type(values).__name__}"


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed all global generators of Python, NumPy and torch; restore them afterwards."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002 - users' code may use the global generator
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002


# One model or a stack -------------------------------------------------------------------------------------------------


class Models(Protocol):
    """Models that take their steps together; ``parameters`` are the tensors that optimizers change in place."""

    n: int
    parameters: list[Tensor]

    @property
    def state(self) -> list[Tensor]:
        """What else a step may change: buffers, and parameters that are not trained."""

    def losses(self, options: Options, x: Tensors, y: Tensors, active: int) -> tuple[Tensor, list[Tensor]]:
        """Mean losses [active] of the first models on x, y [active, records, ...], and the leaves that they depend on.

        There is one leaf per parameter; the leaves of a stack are parts of the parameters.
        """

    def part(self, tensors: Sequence[Tensor | None], start: int, stop: int) -> list[Tensor | None]:
        """Parts of parameters or gradients that belong to models ``start`` to ``stop - 1``."""

    def each(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Parameters, gradients or state with the models as first axis."""

    def compile(self, on: bool) -> None:
        """Run the module through torch.compile, or as it is; a stack always runs as it is."""


class Single(Models):
    """One module, called as it is."""

    n = 1

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.call: Call = module
        self.parameters: list[Tensor] = [own for own in module.parameters() if own.requires_grad]

    @property
    def state(self) -> list[Tensor]:
        """See `Models.state`."""
        fixed = [parameter for parameter in self.module.parameters() if not parameter.requires_grad]
        return [*fixed, *self.module.buffers()]

    def losses(self, options: Options, x: Tensors, y: Tensors, active: int) -> tuple[Tensor, list[Tensor]]:
        """See `Models.losses`."""
        del active
        x, y = tensors_map(lambda values: values[0], [x, y])
        return options.losses(call(self.call, x), y).mean()[None], [*self.parameters]

    def part(self, tensors: Sequence[Tensor | None], start: int, stop: int) -> list[Tensor | None]:
        """See `Models.part`."""
        del start, stop
        return [*tensors]

    def each(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """See `Models.each`."""
        return [tensor[None] for tensor in tensors]

    def compile(self, on: bool) -> None:
        """See `Models.compile`."""
        self.call = torch.compile(self.module, dynamic=False) if on else self.module


class Stack(Models):
    """Modules of one structure: each parameter and buffer of all of them in one tensor [models, ...]."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules, self.n = modules, len(modules)
        self.names = [name for name, parameter in modules[0].named_parameters() if parameter.requires_grad]
        own = [dict([*module.named_parameters(), *module.named_buffers()]) for module in modules]
        stacked = {name: torch.stack([tensors[name].detach() for tensors in own]) for name in own[0]}
        self.parameters = [stacked[name] for name in self.names]
        self.fixed = {name: tensor for name, tensor in stacked.items() if name not in self.names}

    @property
    def state(self) -> list[Tensor]:
        """See `Models.state`."""
        return [*self.fixed.values()]

    def losses(self, options: Options, x: Tensors, y: Tensors, active: int) -> tuple[Tensor, list[Tensor]]:
        """See `Models.losses`."""
        leaves = [parameter[:active].detach().requires_grad_() for parameter in self.parameters]
        fixed = {name: tensor[:active] for name, tensor in self.fixed.items()}

        def one(own: list[Tensor], fixed: dict[str, Tensor], x: Tensors, y: Tensors) -> Tensor:
            tensors = {**dict(zip(self.names, own, strict=True)), **fixed}
            outputs = functional_call(self.modules[0], tensors, *arguments(x))
            return options.losses(outputs, y).mean()

        return torch.vmap(one, randomness="error")(leaves, fixed, x, y), leaves

    def part(self, tensors: Sequence[Tensor | None], start: int, stop: int) -> list[Tensor | None]:
        """See `Models.part`."""
        return [None if tensor is None else tensor[start:stop] for tensor in tensors]

    def each(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """See `Models.each`."""
        return [*tensors]

    def compile(self, on: bool) -> None:
        """See `Models.compile`."""
        del on

    @torch.no_grad()
    def finish(self) -> None:
        """Write the stack's numbers into its modules."""
        stacked = {**dict(zip(self.names, self.parameters, strict=True)), **self.fixed}
        for i, module in enumerate(self.modules):
            for name, own in [*module.named_parameters(), *module.named_buffers()]:
                own.copy_(stacked[name][i])


def stack_or_reason(options: Options, modules: Sequence[nn.Module], x: Tensors, y: Tensors) -> Stack | str:
    """A stack that trains as its modules do alone on their first batches x, y [models, records, ...]; or why not."""
    before = _host_randomness()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            stack = Stack(modules)
            together = _outcome(options, stack, x, y)
    except Exception as error:  # torch and the user's code may raise anything
        if torch_device.is_out_of_memory(error):
            raise
        return " ".join(described(error).split())[:200]
    if any("performance drop" in str(warning.message) for warning in caught):
        return "torch.vmap has no fast way to run it"
    if _host_randomness() != before:
        return "the module draws random numbers"
    tolerance = _ROUNDING[stack.parameters[0].device.type]
    for i, module in enumerate(modules):
        batch = tensors_map(functools.partial(_only, model=i), [x, y])
        alone = _outcome(options, Single(copy.deepcopy(module)), *batch)
        if not all(_close(there[i], here[0], tolerance) for there, here in zip(together, alone, strict=True)):
            return f"model {i} of the stack differs from the same model alone"
    return stack


def _only(values: Tensor, model: int) -> Tensor:
    return values[model : model + 1]


def _outcome(options: Options, models: Models, x: Tensors, y: Tensors) -> list[Tensor]:
    """Losses, gradients and state after a step, each [models, ...]; the state of a stack is restored."""
    before = [tensor.clone() for tensor in models.state]
    losses, gradients = _gradients(options, models, x, y, models.n)
    after = [tensor.clone() for tensor in models.state]
    with torch.no_grad():
        for tensor, values in zip(models.state, before, strict=True):
            tensor.copy_(values)
    known = [
        torch.zeros_like(parameter) if gradient is None else gradient
        for gradient, parameter in zip(gradients, models.parameters, strict=True)
    ]
    return [losses, *models.each([*known, *after])]


def _gradients(
    options: Options, models: Models, x: Tensors, y: Tensors, active: int
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Mean losses [active] and the gradients of their sum, in which each model has its own gradient."""
    with torch.autocast("cuda", torch.bfloat16, enabled=options.uses_bfloat16(models.parameters[0].device)):
        losses, leaves = models.losses(options, x, y, active)
    return losses.detach(), torch.autograd.grad(losses.sum(), leaves, allow_unused=True)


def _close(there: Tensor, here: Tensor, tolerance: float) -> bool:
    """Whether two tensors agree up to rounding; numbers that are not finite agree with all."""
    if there.shape != here.shape:
        return False
    a, b = there.double(), here.double()
    largest = b.abs().max() if b.numel() else 0.0
    return not bool(((a - b).abs() > tolerance * largest + 1e-6).any())


def _host_randomness() -> tuple[Any, ...]:
    """State of the generators of Python, NumPy and torch on the CPU."""
    numpy = str(np.random.get_state(legacy=False))  # noqa: NPY002
    return random.getstate(), numpy, torch.get_rng_state().numpy().tobytes()


# Training -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What one step of one model takes: operations of the forward pass, and bytes of memory."""

    operations: float
    bytes: float


def cost(options: Options, module: nn.Module, x: Tensors, y: Tensors) -> Cost:
    """Measure a step of a module on a batch x, y [1, records, ...], without changing the module."""
    saved = dict[int, int]()

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.data_ptr()] = tensor.nbytes
        return tensor

    models = Single(copy.deepcopy(module))
    with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        models.losses(options, x, y, 1)
    # Parameters, gradients, two moments and scratch.
    own = 6 * sum(parameter.nbytes for parameter in models.parameters)
    return Cost(counter.get_total_flops(), own + 2 * sum(saved.values()))


class Trainer:
    """Models, their optimizers and, on a GPU, the recorded step.

    Models are sorted by their number of ``steps``, largest first, so that those that still train always come first.
    """

    def __init__(self, options: Options, models: Models, steps: Sequence[int], device: torch.device) -> None:
        self.options, self.models, self.device = options, models, device
        self.steps = np.asarray(steps)
        firsts = [0, *(np.flatnonzero(np.diff(self.steps)) + 1).tolist(), models.n]
        self.cohorts = [
            _Cohort(options, models, start, stop, int(self.steps[start]), device) for start, stop in pairwise(firsts)
        ]
        self.loss = torch.zeros(models.n, device=device)
        self.buffers: Tensors = None
        self.replay: Callable[[], None] | None = None

    def fit(self, batches: Callable[[int, int], tuple[Tensors, Tensors]]) -> FloatArray32:
        """Train; return the mean loss of each epoch [models, epochs].

        ``batches(step, active)`` returns x and y [active, records, ...] of the first models.
        """
        history = torch.full((int(self.steps[0]), self.models.n), torch.nan, device=self.device)
        for step in range(len(history)):
            active = int((self.steps > step).sum())
            x, y = batches(step, active)
            if step == 0 and records_graphs(self.options, self.device):
                self._record(x, y)
            for cohort in self.cohorts:
                cohort.set_rate(step)
            if self.replay is None or active < self.models.n:
                self.step(x, y, active)
            else:
                _copy([x, y], self.buffers)
                self.replay()
            history[step, :active] = self.loss[:active]
        values = history.cpu().numpy()
        epochs = self.options.epochs
        own = [np.array_split(values[:n, i], epochs) for i, n in enumerate(self.steps)]
        return np.array([[part.mean() if len(part) else np.nan for part in parts] for parts in own], np.float32)

    def step(self, x: Tensors, y: Tensors, active: int) -> None:
        """Take one step with the first ``active`` models."""
        losses, gradients = _gradients(self.options, self.models, x, y, active)
        self.loss[:active].copy_(losses)
        for cohort in self.cohorts:
            if cohort.start < active:
                cohort.update(gradients)

    @torch.no_grad()
    def _restore(self, initial: Sequence[Tensor]) -> None:
        for tensor, values in zip([*self.models.parameters, *self.models.state], initial, strict=True):
            tensor.copy_(values)
        for cohort in self.cohorts:
            torch_device.forget(cohort.optimizer)

    def _record(self, x: Tensors, y: Tensors) -> None:
        """Record a step of all models as a CUDA graph if the module allows it; recording changes no model."""
        self.buffers = tensors_map(torch.clone, [x, y])
        state, host = self.models.state, _host_randomness()
        step = functools.partial(self.step, self.buffers[0], self.buffers[1], self.models.n)
        initial = [tensor.detach().clone() for tensor in [*self.models.parameters, *state]]
        for compiled in (True, False) if self.options.compiled else (False,):
            self.models.compile(compiled)
            try:
                self.replay = torch_device.captured(step)
                break
            except Exception as error:
                if torch_device.is_out_of_memory(error):
                    raise
                what = "torch.compile" if compiled else "recording a CUDA graph"
                reason = (str(error) or type(error).__name__).splitlines()[0]
                warnings.warn(f"{what} failed ({reason}): continuing without it, slower", stacklevel=2)
        # A graph would repeat random choices of Python, and keep reading a buffer that the module has replaced.
        replaced = any(now is not then for now, then in zip(self.models.state, state, strict=True))
        if replaced or _host_randomness() != host:
            self.replay = None
        self._restore(initial)


def records_graphs(options: Options, device: torch.device) -> bool:
    """Whether steps are recorded as CUDA graphs; an optimizer of the user may not allow that."""
    return device.type == "cuda" and not callable(options.optimizer)


def _copy(values: Tensors, buffers: Tensors) -> None:
    """Copy tensors into tensors of the same structure."""
    if isinstance(values, Tensor):
        buffers.copy_(values)
    elif isinstance(values, dict):
        for key, value in values.items():
            _copy(value, buffers[key])
    else:
        for value, buffer in zip(values, buffers, strict=True):
            _copy(value, buffer)


class _Cohort:
    """Models ``start`` to ``stop - 1``, which take the same number of steps, and their optimizer.

    The schedule depends on the number of steps, and models that are done must not change. So models with another number
    of steps have an optimizer of their own; its parameters share memory with those of the whole stack.
    """

    def __init__(
        self, options: Options, models: Models, start: int, stop: int, steps: int, device: torch.device
    ) -> None:
        self.options, self.models = options, models
        self.start, self.stop, self.steps = start, stop, steps
        self.parameters = [part for part in models.part(models.parameters, start, stop) if part is not None]
        self.optimizer = _optimizer(options, self.parameters, device)
        self.rates = [float(group["lr"]) for group in self.optimizer.param_groups]

    def set_rate(self, step: int) -> None:
        """Set the learning rate of a step; a tensor is changed in place, so that CUDA graphs see it."""
        if self.options.schedule != "cosine" or step >= self.steps:
            return
        factor = torch_device.cosine(step, self.steps)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * factor)
            else:
                group["lr"] = rate * factor

    def update(self, gradients: Sequence[Tensor | None]) -> None:
        """Take an optimizer step with this cohort's part of the gradients."""
        own = self.models.part(gradients, self.start, self.stop)
        for parameter, gradient in zip(self.parameters, own, strict=True):
            parameter.grad = gradient
        self.optimizer.step()


def _optimizer(options: Options, parameters: list[Tensor], device: torch.device) -> torch.optim.Optimizer:
    if callable(options.optimizer):
        made: torch.optim.Optimizer = options.optimizer(parameters)
        return made
    settings: dict[str, Any] = {"lr": options.lr, "weight_decay": options.weight_decay, "foreach": True}
    if device.type == "cuda":
        settings |= {"lr": torch.tensor(options.lr, device=device), "fused": True, "foreach": None}
    if options.optimizer == "sgd":
        settings["momentum"] = options.momentum
    elif device.type == "cuda":
        settings["capturable"] = True
    kind: Call = _OPTIMIZERS[options.optimizer]
    optimizer: torch.optim.Optimizer = kind(parameters, **settings)
    return optimizer
