"""Shared by the torch recipes: the device, its memory and precision, CUDA graphs, and the exact confidence."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from plmia.data.user_code import message_of
from plmia.errors import RecipeError, TrainingError

Result = TypeVar("Result")

# Share of the free memory that training may use: estimates are rough, and other programs use the device, too.
_USABLE = 0.8
_WARM_UP_STEPS = 3
_THREADS = 8


def pick_device(name: str) -> torch.device:
    """Device called ``name``; "auto" is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if name != "cpu" and (kind != "cuda" or (number and not number.isdecimal())):
        raise RecipeError(f"there is no device {name!r}: choose auto, cpu, cuda or cuda:0")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise RecipeError(f"there is no {name!r}, torch sees {torch.cuda.device_count()} GPUs: choose auto or cpu")
    return torch.device(name)


@contextlib.contextmanager
def fast_arithmetic(device: torch.device) -> Iterator[None]:
    """Use TF32 products and tuned convolutions on a GPU; restore the earlier settings afterwards."""
    if device.type != "cuda":
        yield
        return
    precision, tuned = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    try:
        with torch.cuda.device(device):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.benchmark = tuned


def to_device(array: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """Copy an array to the device; to a GPU without waiting for its running kernels."""
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def for_each(work: Callable[[int], None], n: int, device: torch.device) -> None:
    """Call ``work`` for 0 .. n - 1; in threads if a GPU computes meanwhile, since the CPU is idle then."""
    if device.type == "cpu":
        for i in range(n):
            work(i)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(work, range(n)))


def usable_bytes(device: torch.device) -> float:
    """Memory that training may use; infinite if it cannot be determined."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return _USABLE * (free + cached)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return math.inf
    return _USABLE * 1024 * kilobytes


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` means that memory of the host or of the device ran out."""
    texts = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA out of memory", "CUDA error: out of memory")
    text = message_of(error)
    return isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or any(part in text for part in texts)


def in_parts(n: int, size: int, work: Callable[[int, int], list[Result]]) -> list[Result]:
    """Train ``n`` models in parts of ``size``, and in smaller parts if memory runs out.

    ``work(start, stop)`` trains models ``start`` to ``stop - 1`` and returns one result per model.
    """
    results: list[Result] = []
    size = max(1, min(size, n))
    while len(results) < n:
        try:
            results += work(len(results), min(n, len(results) + size))
            continue
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        # Outside the handler: until the error is gone, its traceback keeps the tensors.
        size = _halved(size, reason)
    return results


def _halved(size: int, reason: str) -> int:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if size == 1:
        raise TrainingError(
            f"the memory does not suffice to train one model ({reason}): use a smaller batch or a smaller model, or "
            "free the device"
        )
    warnings.warn(
        f"the memory does not suffice for {size} models at once ({reason}): continuing with {size // 2}",
        stacklevel=4,
    )
    return size // 2


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate; a tensor is changed in place, so that CUDA graphs see it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def forget(optimizer: torch.optim.Optimizer) -> None:
    """Reset an optimizer: set all of its state to zero, in place."""
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.zero_()


def cosine(step: int, steps: int, warmup: float = 0.0) -> float:
    """Factor of the learning rate at a step: linear warm-up over a share of the steps, then half a cosine to 0."""
    rising = math.ceil(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def captured(step: Callable[[], None], pool: Any = None) -> Callable[[], None]:
    """Record ``step`` as a CUDA graph and return the function that replays it with a single launch.

    The step must read and write tensors at fixed addresses. It runs a few times here, so the caller resets weights and
    optimizers afterwards. Graphs that exchange nothing but such tensors may share a memory pool.
    """
    side = _side_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), warnings.catch_warnings():
        # Optimizers that can be recorded warn when they run before that.
        warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")
        for _ in range(_WARM_UP_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=side):
        step()
    return graph.replay


@functools.cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """The stream that records a device's graphs; one only, since graphs of several cannot share memory."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def confidence(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Logit-scaled true-label confidence [...]: z_y - log sum over c != y of exp(z_c); exact, it never saturates.

    ``logits`` are [..., classes], ``labels`` are broadcast to [...].
    """
    index = labels.expand(logits.shape[:-1]).unsqueeze(-1)
    of_label = logits.gather(-1, index).squeeze(-1)
    others = logits.scatter(-1, index, -math.inf)
    return of_label - others.logsumexp(-1)
