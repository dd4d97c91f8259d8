"""Measure stacked training on a CPU: ``python benchmarks/training.py``.

The same models, from the same initial weights on the same batches, are trained as a stack, one after another by the
same recipe, and one after another by a plain PyTorch loop (a `torch.nn.Module` and the stock Adam). All three run
alternately in one process. Times are minima over some repetitions, and ratios are taken within one run, so they are
also valid on a busy machine. Two cases are perceptrons of the recipe `mlp`, two are modules of a user (`plmia.Torch`).
The final weights of a stack are compared with those of single models: perceptrons agree bit for bit, modules up to
rounding. The plain loop is compared by the median, since training amplifies the rounding of a few weights. Writes
``bench-out/training.json``.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from plmia.data.dataset import LabelledData
from plmia.training.recipes.mlp import MLP
from plmia.training.recipes.recipe import Recipe
from plmia.training.recipes.torch_module import Torch
from plmia.training.views import View

Weights = list[dict[str, npt.NDArray[Any]]]


@dataclass(frozen=True)
class Case:
    """Models to train, and the required speed-up of the stack over single models and over the plain loop."""

    title: str
    make: Callable[[int, int], Recipe]  # from the stack and the number of epochs
    plain: Callable[[LabelledData, npt.NDArray[np.bool_], int], Weights]  # the plain loop, with a number of epochs
    models: int
    points: int
    shape: tuple[int, ...]
    classes: int
    epochs: int
    target: float
    rounding: float  # largest difference of a weight between a stack and single models


def problem(case: Case) -> tuple[LabelledData, npt.NDArray[np.bool_]]:
    """Random points with random labels, and complementary halves."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(case.points) % case.classes)
    x = rng.normal(size=(case.points, *case.shape)).astype(np.float32)
    halves = [rng.permutation(case.points) < case.points // 2 for _ in range(case.models // 2)]
    return LabelledData(x, y), np.array([side for half in halves for side in (half, ~half)])


def by_recipe(recipe: Recipe, data: LabelledData, members: npt.NDArray[np.bool_], at_once: int) -> Weights:
    """Train with the recipe, a given number of models per call."""
    found = []
    for start in range(0, len(members), at_once):
        part = members[start : start + at_once]
        found += recipe.train(data, part, range(start, start + len(part)), [View()], keep_weights=True)
    return [model.weights or {} for model in found]


def perceptrons(widths: tuple[int, ...], batch: int) -> dict[str, Callable[..., Any]]:
    """Perceptrons by the recipe `mlp` and by a plain loop."""

    def make(stack: int, epochs: int) -> Recipe:
        return MLP(widths, epochs, batch, stack=stack, device="cpu")

    def plain(data: LabelledData, members: npt.NDArray[np.bool_], epochs: int) -> Weights:
        features = data.features()
        x = torch.from_numpy((features - features.mean(0)) / features.std(0))
        found = []
        for seed, row in enumerate(members):
            rng = np.random.default_rng(seed)
            model = plain_model((x.shape[1], *widths, data.n_classes), rng)
            epochs_of = [torch.from_numpy(rng.permutation(np.flatnonzero(row))).split(batch) for _ in range(epochs)]
            plain_loop(model, x, data.y, [rows for epoch in epochs_of for rows in epoch])
            state = model.state_dict().items()
            found.append({f"layer{int(k.split('.')[0]) // 2}.{k.split('.')[1]}": v.numpy() for k, v in state})
        return found

    return {"make": make, "plain": plain}


def modules(build: Callable[[], torch.nn.Module], batch: int) -> dict[str, Callable[..., Any]]:
    """Modules of a user by `plmia.Torch` and by a plain loop."""

    def make(stack: int, epochs: int) -> Recipe:
        return Torch(build, epochs=epochs, batch=batch, stack=stack, device="cpu", key="benchmark")

    def plain(data: LabelledData, members: npt.NDArray[np.bool_], epochs: int) -> Weights:
        values = data.X[:, None] if data.is_images else data.X
        x = torch.from_numpy(values)
        found = []
        for seed, row in enumerate(members):
            torch.manual_seed(seed)
            model, rng = build(), np.random.default_rng(seed)
            order = np.concatenate([rng.permutation(np.flatnonzero(row)) for _ in range(epochs)])
            steps = len(order) // batch
            plain_loop(model, x, data.y, torch.from_numpy(order[: steps * batch]).split(batch))
            found.append({name: value.numpy() for name, value in model.state_dict().items()})
        return found

    return {"make": make, "plain": plain}


def plain_loop(
    model: torch.nn.Module, x: torch.Tensor, y: npt.NDArray[np.int64], batches: Iterable[torch.Tensor]
) -> None:
    """Train one model as PyTorch's tutorials do, and query it on all points."""
    labels = torch.from_numpy(y)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for rows in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), labels[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        model(x)


def plain_model(sizes: tuple[int, ...], rng: np.random.Generator) -> torch.nn.Sequential:
    """Layers with the initial weights that the recipe draws."""
    layers: list[torch.nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        linear = torch.nn.Linear(fan_in, fan_out)
        both = (2 * rng.random((fan_in + 1, fan_out), np.float32) - 1) * np.float32(fan_in**-0.5)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(both[:-1].T))
            linear.bias.copy_(torch.from_numpy(both[-1]))
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def small_perceptron() -> torch.nn.Module:
    """64-64-64-10."""
    nn = torch.nn
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def small_cnn() -> torch.nn.Module:
    """Two convolutions for images of 8 x 8 pixels."""
    nn = torch.nn
    first = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(first, second, nn.Flatten(), nn.Linear(64, 10))


CASES = {
    "small": Case("mlp: 64-64-64-10, batch 32", **perceptrons((64, 64), 32), models=64, points=1_280, shape=(64,),
                  classes=10, epochs=4, target=3.0, rounding=0.0),
    "paper": Case("mlp: 600-512-256-128-64-100", **perceptrons((512, 256, 128, 64), 256), models=8, points=2_560,
                  shape=(600,), classes=100, epochs=2, target=1.0, rounding=0.0),
    "module": Case("torch, perceptron: 64-64-64-10, batch 32", **modules(small_perceptron, 32), models=32,
                   points=1_280, shape=(64,), classes=10, epochs=2, target=1.5, rounding=1e-3),
    "cnn": Case("torch, CNN: 2 convolutions, 8 x 8 pixels, batch 32", **modules(small_cnn, 32), models=32,
                points=1_280, shape=(8, 8), classes=10, epochs=2, target=1.2, rounding=1e-3),
}  # fmt: skip


def differences(ours: Weights, theirs: Weights) -> dict[str, float]:
    """Median and largest difference of a weight, over the models."""
    apart = [np.abs(a[name] - b[name]).ravel() for a, b in zip(ours, theirs, strict=True) for name in sorted(a)]
    return {"median": float(np.median(np.concatenate(apart))), "largest": float(np.concatenate(apart).max())}


def measure(case: Case, repetitions: int) -> dict[str, Any]:
    """Time the three ways alternately, and compare their final weights."""
    data, members = problem(case)
    ways: dict[str, Callable[[], Weights]] = {
        "stack": lambda: by_recipe(case.make(case.models, case.epochs), data, members, case.models),
        "one": lambda: by_recipe(case.make(1, case.epochs), data, members, 1),
        "plain": lambda: case.plain(data, members, case.epochs),
    }
    by_recipe(case.make(2, 1), data, members[:2], 2)  # torch loads parts of itself on first use
    least, ends = dict.fromkeys(ways, float("inf")), {}
    for _ in range(repetitions):
        for name, way in ways.items():
            start = time.perf_counter()
            ends[name] = way()
            least[name] = min(least[name], time.perf_counter() - start)
    against = {name: least[name] / least["stack"] for name in ("one", "plain")}
    return {
        "case": case.title,
        "models": case.models,
        "seconds": least,
        "faster": against,
        "difference": {name: differences(ends["stack"], ends[name]) for name in against},
        "target": case.target,
        "met": min(against.values()) >= case.target
        and differences(ends["stack"], ends["one"])["largest"] <= case.rounding,
    }


def print_result(result: dict[str, Any]) -> None:
    print(f"\n{result['case']}, {result['models']} models, {torch.get_num_threads()} threads")
    print(f"  {'as a stack':38}{result['seconds']['stack']:8.2f} s")
    for name, title in {"one": "one after another, same recipe", "plain": "one after another, plain PyTorch"}.items():
        seconds, ratio, difference = (result[key][name] for key in ("seconds", "faster", "difference"))
        apart = f"weights differ by {difference['median']:.0e} (median), {difference['largest']:.0e} (most)"
        print(f"  {title:38}{seconds:8.2f} s{ratio:7.2f} x   {apart}")
    print(f"  {'met' if result['met'] else 'MISSED'}: at least {result['target']} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=CASES, help="one of the cases")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, help="threads of torch (as it chooses)")
    parser.add_argument("--out", type=Path, default=Path("bench-out"), help="folder of the JSON file")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    results = []
    for name in [options.only] if options.only else CASES:
        results.append(measure(CASES[name], options.repetitions))
        print_result(results[-1])
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "training.json"
    versions = {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
    content = {"threads": torch.get_num_threads(), "versions": versions, "results": results}
    path.write_text(json.dumps(content, indent=2) + "\n")
    print(f"\nWrote {path}.")


if __name__ == "__main__":
    main()
