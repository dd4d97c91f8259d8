"""Measure stacked training on a CPU: ``python benchmarks/training.py``.

The same perceptrons, from the same initial weights on the same batches, are trained as a stack, one after another by
the same recipe, and one after another by a plain PyTorch loop (`torch.nn.Sequential` and the stock Adam). All three run
alternately in one process. Times are minima over some repetitions, and ratios are taken within one run, so they are
also valid on a busy machine. The final weights are compared: with the recipe's own bit for bit, and with the plain loop
by the median, since training amplifies the rounding of a few weights. Writes ``bench-out/training.json``.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from plmia.data.dataset import LabelledData
from plmia.training.recipes.mlp import MLP
from plmia.training.views import View

Weights = list[dict[str, npt.NDArray[Any]]]


@dataclass(frozen=True)
class Case:
    """Models to train, and the required speed-up of the stack over single models."""

    title: str
    recipe: MLP
    models: int
    points: int
    features: int
    classes: int
    target: float


CASES = {
    "small": Case("small: 64-64-64-10, batch 32", MLP((64, 64), 4, 32, stack=64, device="cpu"), 64, 1_280, 64, 10, 3.0),
    "paper": Case("paper: 600-512-256-128-64-100", MLP(epochs=2, stack=64, device="cpu"), 8, 2_560, 600, 100, 1.0),
}


def problem(case: Case) -> tuple[LabelledData, npt.NDArray[np.bool_]]:
    """Random points with random labels, and complementary halves."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(case.points) % case.classes)
    x = rng.normal(size=(case.points, case.features)).astype(np.float32)
    halves = [rng.permutation(case.points) < case.points // 2 for _ in range(case.models // 2)]
    return LabelledData(x, y), np.array([side for half in halves for side in (half, ~half)])


def by_recipe(recipe: MLP, data: LabelledData, members: npt.NDArray[np.bool_], at_once: int) -> Weights:
    """Train with the recipe, a given number of models per call."""
    found = []
    for start in range(0, len(members), at_once):
        part = members[start : start + at_once]
        found += recipe.train(data, part, range(start, start + len(part)), [View()], keep_weights=True)
    return [model.weights or {} for model in found]


def by_plain_loop(recipe: MLP, data: LabelledData, members: npt.NDArray[np.bool_]) -> Weights:
    """Train one model after another as PyTorch's tutorials do, querying each on all points."""
    features = data.features()
    x = torch.from_numpy((features - features.mean(0)) / features.std(0))
    y = torch.from_numpy(data.y)
    found = []
    for seed, row in enumerate(members):
        rng = np.random.default_rng(seed)
        model = plain_model((x.shape[1], *recipe.widths, data.n_classes), rng)
        optimizer = torch.optim.Adam(model.parameters(), lr=recipe.lr)
        for _ in range(recipe.epochs):
            for rows in torch.from_numpy(rng.permutation(np.flatnonzero(row))).split(recipe.batch):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
        with torch.no_grad():
            model(x)
        state = model.state_dict().items()
        found.append({f"layer{int(k.split('.')[0]) // 2}.{k.split('.')[1]}": v.numpy() for k, v in state})
    return found


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


def differences(ours: Weights, theirs: Weights) -> dict[str, float]:
    """Median and largest difference of a weight, over the models."""
    apart = [np.abs(a[name] - b[name]).ravel() for a, b in zip(ours, theirs, strict=True) for name in sorted(a)]
    return {"median": float(np.median(np.concatenate(apart))), "largest": float(np.concatenate(apart).max())}


def measure(case: Case, repetitions: int) -> dict[str, Any]:
    """Time the three ways alternately, and compare their final weights."""
    data, members = problem(case)
    ways: dict[str, Callable[[], Weights]] = {
        "stack": lambda: by_recipe(case.recipe, data, members, case.models),
        "one": lambda: by_recipe(replace(case.recipe, stack=1), data, members, 1),
        "plain": lambda: by_plain_loop(case.recipe, data, members),
    }
    by_recipe(replace(case.recipe, epochs=1), data, members[:1], 1)  # torch loads parts of itself on first use
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
        "met": min(against.values()) >= case.target and differences(ends["stack"], ends["one"])["largest"] == 0,
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
    parser.add_argument("--only", choices=CASES, help="one of the two sizes")
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
