"""Any PyTorch module, trained by our loop or by the user's own, on arrays, tables or a map-style dataset."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import Dataset, default_collate

from plmia.data.arrays import Array, BoolArray, IntArray, SignalKind
from plmia.data.dataset import LabelledData
from plmia.data.records import Records
from plmia.data.user_code import PASSED_ON, failure, lacks_memory
from plmia.errors import Note, PlmiaError, RecipeError, some
from plmia.training.recipes import torch_device
from plmia.training.recipes.confidences import conf_from_answers, trained_from_answers
from plmia.training.recipes.identity import Identity, identify
from plmia.training.recipes.recipe import (
    DeclaredFile,
    Recipe,
    Trained,
    declare_files,
    features_identity,
    features_steps,
    files_json,
    float32_notes,
)
from plmia.training.recipes.torch_device import to_device
from plmia.training.recipes.torch_loop import (
    Call,
    Models,
    Options,
    Single,
    Tensors,
    Trainer,
    call,
    cost,
    leaves,
    seeded,
    stack_or_reason,
    tensors_map,
)
from plmia.training.views import View, Views

# Records per query; fixed, so that a model's answers do not depend on the number of models in its stack.
_QUERY_ROWS = 512
# A CPU gains from a stack only while a step of one model is short: operations of the forward pass. Above, layers of a
# stack are as slow as those of single models, or slower.
_CPU_OPERATIONS = 1e7
# Datasets that take a larger share of the memory are read batch by batch.
_HELD_SHARE = 0.25
# Outputs in [0, 1] are probabilities if their rows add up to 1, up to rounding.
_SUM_TOLERANCE = 1e-5


class Torch(Recipe):
    """Train any PyTorch module.

    Images [records, height, width(, channels)] become float32 [records, channels, height, width], divided by 255 if
    they are uint8. Tables become float32 [records, features]; text and missing values of data frames are encoded.
    Records of a map-style dataset are combined by `torch.utils.data.default_collate`, otherwise unchanged. A tuple of
    inputs is passed by position, a dictionary by name. Batches are cut from one permutation of the members after
    another, so all of them are full; the rest after the last epoch is dropped. A model depends on its members and its
    seed alone, up to rounding.

    Parameters
    ----------
    make_module : callable
        Builds a new `torch.nn.Module` with random weights: a class, or a function without arguments.
    epochs, lr, batch, weight_decay, momentum : int, float, int, float, float
        Options of the training; ``momentum`` is for "sgd".
    optimizer : {"adam", "adamw", "sgd"} or callable
        A callable gets the parameters and returns a `torch.optim.Optimizer` with a learning rate of its own.
    schedule : {"constant", "cosine"}
        "cosine" lowers the learning rate to 0 over half a cosine.
    loss : callable, optional
        ``loss(outputs, y)`` with one value per record; cross-entropy by default. Without labels, y are the inputs.
    transform : callable, optional
        ``transform(x)`` changes a batch of training inputs: random augmentation.
    fit : callable, optional
        ``fit(module, dataset, seed)``: a training loop of your own. It returns the trained module, or None if it
        trained the given one.
    query : callable, optional
        ``query(module, x)`` returns logits or probabilities [records, classes]; ``module(x)`` by default.
    signal : callable, optional
        ``signal(module, x, y)`` returns one value per record, larger for members. With a ``loss`` of your own and no
        ``query``, the signal is minus the loss.
    device : str
        "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".
    amp : {"auto", True, False}
        Whether to train in bfloat16 on a GPU. Models are queried in 32 bits.
    compiled : bool
        Whether to use `torch.compile` on a GPU, which takes about a minute per process.
    stack : int
        Largest number of models that train at once; modules that cannot be stacked train one after another.
    key : str, optional
        Identifies the code when plmia looks for finished models; by default the code and all that it refers to.
    files : sequence of path, optional
        Files that the code reads, identified by their contents.
    """

    name: ClassVar[str] = "torch"
    keeps_weights: ClassVar[bool] = True

    def __init__(
        self,
        make_module: Call,
        *,
        epochs: int = 10,
        lr: float = 1e-3,
        batch: int = 64,
        weight_decay: float = 0.0,
        optimizer: str | Call = "adam",
        momentum: float = 0.9,
        schedule: str = "constant",
        loss: Call | None = None,
        transform: Call | None = None,
        fit: Call | None = None,
        query: Call | None = None,
        signal: Call | None = None,
        device: str = "auto",
        amp: bool | str = "auto",
        compiled: bool = False,
        stack: int = 64,
        key: str | None = None,
        files: Sequence[str | Path] = (),
    ) -> None:
        self.make_module, self.fit, self.query, self.own_signal = make_module, fit, query, signal
        self.loop = Options(
            epochs, lr, batch, weight_decay, optimizer, momentum, schedule, loss, transform, amp, compiled
        )
        self.device, self.most = device, stack
        self._check_code(loss=loss, transform=transform, fit=fit, query=query, signal=signal)
        self.files = declare_files(files, Path(), "files")
        code = (make_module, optimizer, loss, transform, fit, query, signal)
        self._code = None if key is not None else code
        self.identity = Identity(key) if key is not None else identify("make_module", code)

    def _check_code(self, **functions: Call | None) -> None:
        if isinstance(self.make_module, nn.Module):
            kind = type(self.make_module).__name__
            raise RecipeError(
                f"torch got a module ({kind}), but needs a way to build a new one for each model: give {kind} itself, "
                f"or lambda: {kind}(…)"
            )
        for name, function in {"make_module": self.make_module, **functions}.items():
            if not (callable(function) or (function is None and name != "make_module")):
                raise RecipeError(f"torch has {name}={function!r}: give a function")
        if not isinstance(self.most, int) or self.most < 1:
            raise RecipeError(f"torch has stack={self.most!r}: a whole number of at least 1 is needed")

    def identified(self) -> Torch:
        """Identify the code as it is now, unless the user's key identifies it."""
        fixed = copy.copy(self)
        if self._code is not None:
            fixed.identity = identify("make_module", self._code)
        return fixed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Torch) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.identity.key)

    @property
    def signal(self) -> SignalKind:
        """Confidences, unless the user gave a signal, or a loss without a query."""
        own = self.own_signal is not None or (self.loop.loss is not None and self.query is None)
        return "signal" if own else "confidence"

    @property
    def stack(self) -> int:
        """Largest number of models that train at once; 1 for a loop or an optimizer of the user."""
        return 1 if self.fit is not None or callable(self.loop.optimizer) else self.most

    @property
    def _uses_cross_entropy(self) -> bool:
        return self.loop.loss is None and self.fit is None

    @property
    def declared_files(self) -> tuple[DeclaredFile, ...]:
        """Files that the code reads."""
        return self.files

    @property
    def _title(self) -> str:
        made = getattr(self.make_module, "__name__", type(self.make_module).__name__)
        return "module" if made == "<lambda>" else str(made)

    @property
    def source(self) -> str:
        """Name of the function or class that builds the module."""
        return self._title

    @property
    def description(self) -> str:
        """Name of what builds the module, and the main options."""
        optimizer = self.loop.optimizer if isinstance(self.loop.optimizer, str) else "own"
        trained = "fit=own" if self.fit is not None else f"epochs={self.loop.epochs}&lr={self.loop.lr}"
        return f"{self.name}:{self._title}?{trained}&batch={self.loop.batch}&optimizer={optimizer}"

    def to_json(self) -> dict[str, Any]:
        """Options that decide what is trained, the key of the code, and digests of the declared files."""
        loop = self.loop
        options = {
            "epochs": loop.epochs,
            "lr": loop.lr,
            "batch": loop.batch,
            "weight_decay": loop.weight_decay,
            "optimizer": loop.optimizer if isinstance(loop.optimizer, str) else "own",
            "momentum": loop.momentum,
            "schedule": loop.schedule,
            "amp": loop.amp,
        }
        return {"recipe": self.name, "key": self.identity.key} | options | files_json(self.files)

    def check(self, data: LabelledData) -> None:
        """Raise unless the device exists, and the data have classes if confidences are needed."""
        torch_device.pick_device(self.device)
        unlabelled = self.signal == "confidence" and data.labels is None
        if unlabelled or (self._uses_cross_entropy and not _count_classes(data)):
            raise RecipeError("torch trains on the cross-entropy, which needs classes: give y, or a loss of your own")
        if data.is_array and data.X.dtype.kind == "f" and np.isnan(data.X).any():
            raise RecipeError("X has missing values, which a PyTorch module cannot take: fill them in first")

    def preprocessing(self, data: LabelledData) -> str:
        """Encoding of text, categories and missing values of a table."""
        return "" if isinstance(data.X, Records) else features_identity(data)

    def notes(self, data: LabelledData) -> list[Note]:
        """Note how inputs are converted, and whether finished models cannot be recognised."""
        found = self.identity.notes("Give plmia.Torch a key to reuse them")
        if not isinstance(data.X, Records):
            pixels = data.is_images and data.X.dtype == np.uint8
            steps = features_steps(data) + (
                ["converts X to 32-bit floats"]
                + ["puts channels first"] * data.is_images
                + ["divides pixels by 255"] * pixels
            )
            found += float32_notes(self.name, steps, data)
        return found

    def train(
        self, data: LabelledData, members: BoolArray, seeds: Sequence[int], views: Views, keep_weights: bool = False
    ) -> list[Trained]:
        """Train and query the models, as a stack if possible; see `Recipe.train`."""
        self.check(data)
        device = torch_device.pick_device(self.device)
        empty = np.flatnonzero(~members.any(axis=1))
        if len(empty):
            raise RecipeError(f"model {empty[0]} of the stack has no records to train on: give it some")
        inputs = _load(data, device)
        # Largest first, so that the models that still train always come first.
        largest = np.argsort(-members.sum(axis=1), kind="stable")
        chosen = [(np.flatnonzero(members[i]), seeds[i]) for i in largest]

        def part(start: int, stop: int) -> list[Trained]:
            found = self._trained(inputs, chosen[start:stop])
            answers = []
            for (module, losses), model in zip(found, largest[start:stop], strict=True):
                trained = self._answers(module, data, inputs, members[model], views)
                weights = _weights(module) if keep_weights else None
                trouble = trained.trouble if np.isfinite(losses).all() else ""
                answers.append(replace(trained, losses=tuple(losses), weights=weights, trouble=trouble))
            return answers

        with torch_device.fast_arithmetic(device), self._naming_code():
            self._check_outputs(inputs, seeds[0], data)
            size = self._at_once(inputs, chosen[0]) if len(chosen) > 1 else 1
            trained = torch_device.in_parts(len(chosen), size, part)
        return [trained[i] for i in np.argsort(largest)]

    def query_given(self, model: Any, data: LabelledData, members: BoolArray, views: Views) -> Trained:
        """Query a module that existed before the audit; see `Recipe.query_given`. The module is copied first."""
        if not isinstance(model, nn.Module):
            raise RecipeError(
                f"the recipe torch cannot query a given model of type {type(model).__name__}: give a torch.nn.Module, "
                "or its predictions"
            )
        self.check(data)
        device = torch_device.pick_device(self.device)
        with self._naming_code():
            return self._answers(copy.deepcopy(model).to(device), data, _load(data, device), members, views)

    # Training ---------------------------------------------------------------------------------------------------------

    def _at_once(self, inputs: _Inputs, model: _Model) -> int:
        """Number of models that fit into memory together; 1 if a stack is slower than single models."""
        if self.stack == 1 or not inputs.held:
            return 1
        with seeded(model[1], inputs.device):
            needed = cost(self.loop, self._fresh(inputs), *_Batches(self.loop, inputs, [model])(0, 1))
        if inputs.device.type == "cpu" and needed.operations > _CPU_OPERATIONS:
            return 1
        return max(1, min(self.stack, int(torch_device.usable_bytes(inputs.device) / needed.bytes)))

    def _check_outputs(self, inputs: _Inputs, seed: int, data: LabelledData) -> None:
        """Raise if a new module cannot be trained on the cross-entropy; a GPU would fail without a reason."""
        if not self._uses_cross_entropy:
            return
        with seeded(seed, inputs.device), torch.no_grad():
            x, _ = inputs.shown(slice(0, 2), View())
            module = self._fresh(inputs).eval()
            with self._naming_code(_got(module, x, data)):
                outputs = call(module, x)
        n_classes = _count_classes(data)
        found = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or outputs.shape[1] < n_classes:
            raise RecipeError(
                f"the module returned {found} for 2 records, but one column for each of the {n_classes} classes is "
                "needed: correct its last layer, or give a loss of your own"
            )
        if bool(((outputs >= 0) & (outputs <= 1)).all() and ((outputs.sum(dim=1) - 1).abs() < _SUM_TOLERANCE).all()):
            raise RecipeError(
                f"{self._title} returns probabilities, their rows add up to 1, but the cross-entropy needs logits: "
                "remove the softmax, or give a loss of your own"
            )

    def _trained(self, inputs: _Inputs, models: Sequence[_Model]) -> list[tuple[nn.Module, list[float]]]:
        """Modules that were trained on the given records with the given seeds, and their losses by epoch."""
        sizes = {self.loop.batch_size(len(members)) for members, _ in models}
        if len(models) > 1 and len(sizes) == 1:
            modules = []
            for _, seed in models:
                with seeded(seed, inputs.device):
                    modules.append(self._fresh(inputs))
            stack = stack_or_reason(self.loop, modules, *_Batches(self.loop, inputs, models)(0, len(models)))
            if not isinstance(stack, str):
                losses = self._losses(stack, inputs, models)
                stack.finish()
                return list(zip(modules, losses, strict=True))
        return [self._trained_alone(inputs, model) for model in models]

    def _trained_alone(self, inputs: _Inputs, model: _Model) -> tuple[nn.Module, list[float]]:
        members, seed = model
        with seeded(seed, inputs.device):
            module = self._fresh(inputs)
            if self.fit is None:
                return module, self._losses(Single(module), inputs, [model])[0]
            answer = self.fit(module, _Members(inputs, members), seed)
        if not isinstance(answer, nn.Module | None):
            raise RecipeError(f"fit returned a {type(answer).__name__}: return the trained module, or None")
        return module if answer is None else answer, []

    def _losses(self, models: Models, inputs: _Inputs, chosen: Sequence[_Model]) -> list[list[float]]:
        steps = [self.loop.steps(len(members)) for members, _ in chosen]
        trainer = Trainer(self.loop, models, steps, inputs.device)
        found: list[list[float]] = trainer.fit(_Batches(self.loop, inputs, chosen)).tolist()
        return found

    def _fresh(self, inputs: _Inputs) -> nn.Module:
        """Build a module from the global generators; layers without sizes get them from some records."""
        module = self.make_module()
        if not isinstance(module, nn.Module):
            raise RecipeError(f"{self._title} returned a {type(module).__name__}: return a torch.nn.Module")
        module.to(inputs.device)
        if any(is_lazy(tensor) for tensor in [*module.parameters(), *module.buffers()]):
            x, _ = inputs.shown(slice(0, 2), View())
            with torch.no_grad():
                call(module.eval(), x)
        return module.train()

    # Queries ----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _answers(
        self, module: nn.Module, data: LabelledData, inputs: _Inputs, members: BoolArray, views: Views
    ) -> Trained:
        module.eval()
        answers: list[Array] = []
        for view in views:
            parts = [slice(start, start + _QUERY_ROWS) for start in range(0, data.n_points, _QUERY_ROWS)]
            found = [self._answer(module, *inputs.shown(part, view)) for part in parts]
            answers.append(torch.cat(found).cpu().numpy())
        if self.signal == "confidence" and data.labels is not None:
            confidences = [conf_from_answers(answer, data.labels) for answer in answers]
            return trained_from_answers("the module", answers, confidences, data.labels, members)
        conf = np.stack(answers, axis=1)
        bad = np.flatnonzero(~np.isfinite(conf).all(axis=1))
        trouble = f"the signal is not finite for record {some(bad)}" if len(bad) else ""
        return Trained(conf, math.nan, math.nan, trouble=trouble)

    def _answer(self, module: nn.Module, x: Tensors, y: Tensors) -> Tensor:
        """Logits or probabilities [records, classes] of a batch, or signals [records]."""
        n = len(leaves(y)[0])
        if self.own_signal is not None:
            values, what, form = self.own_signal(module, x, y), "signal", f"[{n}], one value per record,"
        elif self.signal == "signal":
            return -self.loop.losses(call(module, x), y).float()
        else:
            values = call(module, x) if self.query is None else self.query(module, x)
            what, form = "the module" if self.query is None else "query", f"[{n}, classes]"
        answer = torch.as_tensor(values).float() if isinstance(values, Tensor | np.ndarray) else None
        if answer is None or answer.shape[:1] != (n,) or answer.ndim != (1 if what == "signal" else 2):
            found = type(values).__name__ if answer is None else list(answer.shape)
            raise RecipeError(f"{what} returned {found}, but an array {form} is needed")
        return answer

    @contextlib.contextmanager
    def _naming_code(self, added: str = "") -> Iterator[None]:
        """Turn an exception of the user's code into a `RecipeError` that names the line of the user's file."""
        try:
            yield
        except (PlmiaError, *PASSED_ON):
            raise
        except BaseException as error:
            if lacks_memory(error) or torch_device.is_out_of_memory(error):
                raise
            with contextlib.suppress(OSError, TypeError):
                file = inspect.getsourcefile(inspect.unwrap(self.make_module))
                raise RecipeError(f"{self._title} raised {failure(error, file)}{added}") from error
            raise RecipeError(f"{self._title} raised {failure(error, None)}{added}") from error


def _got(module: nn.Module, x: Tensors, data: LabelledData) -> str:
    """Describe what a module got of an array X, for the sentence on its exception."""
    if not data.is_array or not isinstance(x, Tensor):
        return ""
    got = f"; it got {list(x.shape)} for {len(x)} records of X {list(data.X.shape)}"
    flat = not data.is_images and any(isinstance(part, nn.Conv2d) for part in module.modules())
    return got + (": reshape X to images [records, height, width(, channels)]" if flat else "")


def _count_classes(data: LabelledData) -> int:
    """Number of classes; integers y from 0 on are classes, too, where a signal of the user needs none. 0 for none."""
    if data.labels is not None:
        return data.n_classes
    whole = data.y is not None and data.y.dtype.kind == "i" and int(data.y.min()) >= 0
    return int(data.y.max()) + 1 if whole else 0


def _weights(module: nn.Module) -> dict[str, Array]:
    """Parameters and buffers by name; NumPy has no bfloat16, so that becomes float32."""
    state = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    return {name: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for name, t in state.items()}


# Records of a model ---------------------------------------------------------------------------------------------------

# The numbers of the records that a model trains on, and its seed.
_Model = tuple[IntArray, int]


class _Batches:
    """Training batches of some models, each in its own order."""

    def __init__(self, options: Options, inputs: _Inputs, models: Sequence[_Model]) -> None:
        self.transform, self.inputs = options.transform, inputs
        self.seeds = [seed for _, seed in models]
        self.orders = [_order(members, options.batch_size(len(members)), seed) for members, seed in models]

    def __call__(self, step: int, active: int) -> tuple[Tensors, Tensors]:
        """Inputs and targets [active, records, ...] of the first models."""
        x, y = self.inputs.batch(np.stack([next(order) for order in self.orders[:active]]))
        if self.transform is None:
            return x, y
        changed = []
        for model, seed in enumerate(self.seeds[:active]):
            own = int(np.random.SeedSequence([seed, step]).generate_state(1)[0])
            with seeded(own, self.inputs.device):
                changed.append(self.transform(tensors_map(functools.partial(_row, number=model), x)))
        return default_collate(changed), y


def _row(values: Tensor, number: int) -> Tensor:
    return values[number]


def _order(members: IntArray, batch: int, seed: int) -> Iterator[IntArray]:
    """Full batches of records, cut from one permutation of the members after another, without end."""
    rng = np.random.default_rng(seed)
    left = members[:0]
    while True:
        order = np.concatenate([left, rng.permutation(members)])
        whole = len(order) // batch * batch
        yield from order[:whole].reshape(-1, batch)
        left = order[whole:]


class _Inputs(Protocol):
    """Inputs and targets of all records, as modules get them."""

    device: torch.device
    held: ClassVar[bool]  # all records are in memory

    def batch(self, rows: IntArray) -> tuple[Tensors, Tensors]:
        """Inputs and targets [models, records, ...] of the records with the numbers ``rows`` [models, records]."""

    def shown(self, part: slice, view: View) -> tuple[Tensors, Tensors]:
        """Inputs and targets of consecutive records, through a view."""

    def record(self, number: int) -> tuple[Any, Any]:
        """Input and target of one record."""


@dataclass(frozen=True)
class _Held(_Inputs):
    """All records on the device: inputs and targets [records, ...]; targets are the inputs if there are none.

    Images stay uint8 if they are; a batch is scaled to [0, 1].
    """

    x: Tensors
    y: Tensors | None
    device: torch.device
    pixels: bool = False  # whether x are uint8 images
    held: ClassVar[bool] = True

    def _at(self, index: Tensor | slice | int) -> tuple[Tensors, Tensors]:
        x = tensors_map(lambda values: values[index], self.x)
        x = x.float() / 255 if self.pixels else x
        return x, x if self.y is None else tensors_map(lambda values: values[index], self.y)

    def batch(self, rows: IntArray) -> tuple[Tensors, Tensors]:
        return self._at(to_device(rows, self.device))

    def shown(self, part: slice, view: View) -> tuple[Tensors, Tensors]:
        x, y = self._at(part)
        if view.changes_pixels:
            down, across = (to_device(index, self.device) for index in view.indices(*x.shape[-2:]))
            x = x[..., down[:, None], across]
        elif view.scale:
            x = x + to_device(view.offset(x.shape[1]), self.device)
        return x, y

    def record(self, number: int) -> tuple[Any, Any]:
        return self._at(number)


@dataclass(frozen=True)
class _Read(_Inputs):
    """Records that are read batch by batch: they do not fit into memory, are no tensors, or vary with each reading."""

    records: Records
    labels: Tensor | None
    device: torch.device
    held: ClassVar[bool] = False

    def record(self, number: int) -> tuple[Any, Any]:
        x, target = self.records.split(number)
        if self.labels is not None:
            return x, self.labels[number]
        return x, target if self.records.paired else x

    def collated(self, numbers: Iterable[int]) -> tuple[Tensors, Tensors]:
        """Inputs and targets of some records."""
        both = [self.record(int(number)) for number in numbers]
        try:
            x, y = default_collate([x for x, _ in both]), default_collate([y for _, y in both])
        except (TypeError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise RecipeError(
                f"records of the dataset cannot be combined into a batch ({reason}): return tensors of equal shapes, "
                "numbers, or tuples and dictionaries of them"
            ) from error
        return tensors_map(self._ready, x), tensors_map(self._ready, y)

    def _ready(self, values: Tensor) -> Tensor:
        return _single_precision(values.to(self.device))

    def batch(self, rows: IntArray) -> tuple[Tensors, Tensors]:
        x, y = self.collated(rows[0])
        return tensors_map(lambda values: values[None], x), tensors_map(lambda values: values[None], y)

    def shown(self, part: slice, view: View) -> tuple[Tensors, Tensors]:
        del view  # only the identity fits records
        return self.collated(range(*part.indices(len(self.records))))


class _Members(Dataset[Any]):
    """The records of one model as a map-style dataset of (input, target) pairs."""

    def __init__(self, inputs: _Inputs, numbers: IntArray) -> None:
        self.inputs, self.numbers = inputs, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, record: int) -> Any:
        """Return one (input, target) pair."""
        return self.inputs.record(int(self.numbers[record]))


def _load(data: LabelledData, device: torch.device) -> _Inputs:
    """Inputs of a module: images with channels first, tables as 32-bit floats, or records of a dataset."""
    y = None if data.y is None else torch.from_numpy(np.array(data.y))
    y = None if y is None else _single_precision(y).to(device)
    if isinstance(data.X, Records):
        return _load_records(data.X, y, device)
    if not data.is_images:
        return _Held(to_device(data.features(), device), y, device)
    values = np.moveaxis(data.X if data.X.ndim == 4 else data.X[..., None], -1, 1)
    pixels = values.dtype == np.uint8
    values = np.ascontiguousarray(values if pixels else values.astype(np.float32))
    return _Held(to_device(values, device), y, device, pixels)


def _load_records(records: Records, labels: Tensor | None, device: torch.device) -> _Inputs:
    """Hold all records in memory if they fit; read them batch by batch otherwise."""
    read = _Read(records, labels, device)
    parts = leaves(read.collated([0]))
    tensors = [part for part in parts if isinstance(part, Tensor)]
    size = len(records) * sum(tensor.nbytes for tensor in tensors)
    fits = size <= _HELD_SHARE * torch_device.usable_bytes(device)
    if not (records.steady and fits and len(tensors) == len(parts)):
        return read
    return _Held(*read.collated(range(len(records))), device)


def _single_precision(values: Tensor) -> Tensor:
    """64-bit floats in 32 bits; all other numbers unchanged."""
    return values.float() if values.dtype == torch.float64 else values
