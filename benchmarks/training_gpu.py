"""Measure training on a GPU: ``PYTHONPATH=src python3 benchmarks/training_gpu.py --out training_gpu.json``.

check       small models: GPU against CPU, a stack against its models alone, a network that memorises its images
mlp         256 perceptrons 600-512-256-128-64-100, 25,000 of 50,000 rows each, 50 epochs, as one stack; smaller stacks
mlp-single  the same, one model after another in a plain PyTorch loop: some steps, scaled up
wrn         WRN-28-2, batch 256, images of CIFAR's shape: a plain loop (bf16, channels last), CUDA graphs, and those
            with torch.compile, as the recipe trains by default; queries in 18 views
wrn-trees   only if named: the plain loop with torch.compile(mode="reduce-overhead"), for comparison
real        only with --data FILE.npz (X, y): some models by the paper's protocol, with their accuracies

Needs only numpy and torch. Random data are generated on the device; real data are read from the file. If a part fails,
it is reported and the other parts continue. The results so far are written after each part.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from plmia.data.dataset import LabelledData
from plmia.training.recipes.mlp import MLP
from plmia.training.recipes.recipe import Trained
from plmia.training.recipes.torch_device import fast_arithmetic
from plmia.training.recipes.wide_resnet import Images, Program, WideResNet, _Net
from plmia.training.views import VIEW_SETS, View

Rows = list[dict[str, Any]]
PAPER = MLP(stack=256, device="cuda")
N_POINTS, N_MEMBERS, N_MODELS = 50_000, 25_000, 256


def seconds(work: Callable[[], Any]) -> float:
    """Time of some work, until the GPU has finished it."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def halves(models: int, points: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Membership [models, points] in complementary pairs."""
    found = [rng.permutation(points) < points // 2 for _ in range((models + 1) // 2)]
    return np.array([side for half in found for side in (half, ~half)])[:models]


def purchases(rng: np.random.Generator) -> LabelledData:
    """Data of the size of Purchase-100: 50,000 rows of 600 bits, with 100 learnable labels."""
    x = rng.random((N_POINTS, 600), np.float32) < 0.3
    y = (x @ rng.standard_normal((600, 100)).astype(np.float32)).argmax(axis=1)
    y[:200] = np.arange(200) % 100  # every class occurs
    return LabelledData(x.astype(np.uint8), y)


# Parts --------------------------------------------------------------------------------------------------------------


def part_check(options: argparse.Namespace) -> Rows:
    """The checks of the CPU tests, on the GPU."""
    del options
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 20)).astype(np.float32)
    data = LabelledData(x, (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0))
    members = rng.random((12, 600)) < np.linspace(0.2, 0.8, 12)[:, None]
    rows = []
    for name in ("sgd", "adam"):
        # Without momentum rounding errors stay small, so a larger difference is a bug.
        recipe = MLP((32, 16), 6, 32, lr=0.01, optimizer=name, momentum=0.0, schedule="cosine", device="cuda")
        stack = recipe.train(data, members, range(12), [View(), View(scale=0.1)])
        alone = [recipe.train(data, row[None], [i], [View(), View(scale=0.1)])[0] for i, row in enumerate(members)]
        host = replace(recipe, device="cpu").train(data, members, range(12), [View(), View(scale=0.1)])
        rows += [
            compared(f"mlp, {name}: stack / alone", stack, alone),
            compared(f"mlp, {name}: GPU / CPU", stack, host),
        ]
    pixels = rng.integers(0, 256, (64, 16, 16, 3)).astype(np.uint8)
    images, half = LabelledData(pixels, np.arange(64) % 4), np.arange(64) < 32
    for compiled in (False, True):
        network = WideResNet(10, 1, 40, 16, compiled=compiled)
        first, second = network.train(images, np.stack([half, half]), [1, 1], VIEW_SETS["rmia18"])
        row = compared(f"wide-resnet{', compiled' if compiled else ''}: run / run", [first], [second])
        rows.append(row | {"train accuracy": first.train_accuracy, "met": first.train_accuracy > 0.95})
    return rows


def compared(what: str, ours: list[Trained], theirs: list[Trained]) -> dict[str, Any]:
    """Difference of confidences."""
    apart = np.abs(np.stack([a.conf for a in ours]) - np.stack([b.conf for b in theirs]))
    return {
        "what": what,
        "median difference": float(np.median(apart)),
        "largest": float(apart.max()),
        "met": float(np.median(apart)) < 0.05,
    }


def part_mlp(options: argparse.Namespace) -> Rows:
    """Stacks of the paper's perceptrons."""
    rng = np.random.default_rng(0)
    data = purchases(rng)
    members = halves(N_MODELS, N_POINTS, rng)
    small = replace(PAPER, epochs=1)
    small.train(data, members[:8], range(8), [View()])  # loads libraries
    rows = []
    for models, epochs in ((8, 5), (32, 5), (64, 5), (N_MODELS, PAPER.epochs)):
        recipe, trained = replace(PAPER, epochs=epochs, stack=models), []
        torch.cuda.reset_peak_memory_stats()
        took = seconds(lambda: trained.extend(recipe.train(data, members[:models], range(models), [View()])))  # noqa: B023
        row = {
            "what": f"{models} at once, {epochs} epochs, trained and queried",
            "seconds": took,
            "M rows/s": models * epochs * N_MEMBERS / took / 1e6,
            "GB": torch.cuda.max_memory_allocated() / 1e9,
            "train accuracy": float(np.mean([model.train_accuracy for model in trained])),
            "test accuracy": float(np.mean([model.test_accuracy for model in trained])),
        }
        rows.append(row | ({"target": "at most 20 s", "met": took <= 20} if models == N_MODELS else {}))
    if options.profile:
        profiled(lambda: small.train(data, members, range(N_MODELS), [View()]))
    return rows


def part_mlp_single(options: argparse.Namespace) -> Rows:
    """A plain loop for one perceptron."""
    del options
    rng = np.random.default_rng(0)
    x = torch.rand((N_POINTS, 600), device="cuda")
    y = torch.randint(100, (N_POINTS,), device="cuda")
    layers: list[torch.nn.Module] = []
    for fan_in, fan_out in zip((600, *PAPER.widths), (*PAPER.widths, 100), strict=True):
        layers += [torch.nn.Linear(fan_in, fan_out), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1]).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=PAPER.lr)
    steps = 1_000
    order = torch.from_numpy(rng.integers(0, N_POINTS, (steps, PAPER.batch))).cuda()

    def loop(count: int) -> None:
        for index in order[:count]:
            optimizer.zero_grad()
            functional.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()

    loop(50)
    whole = N_MODELS * PAPER.epochs * -(-N_MEMBERS // PAPER.batch)
    took = seconds(lambda: loop(steps)) * whole / steps
    what = f"{N_MODELS} one after another, plain loop ({steps} of {whole} steps, scaled up)"
    return [{"what": what, "seconds": took, "M rows/s": N_MODELS * PAPER.epochs * N_MEMBERS / took / 1e6}]


def random_images() -> Images:
    """Images of CIFAR-10's shape and number, generated on the device."""
    pixels = torch.randint(0, 256, (N_POINTS, 32, 32, 3), dtype=torch.uint8, device="cuda")
    labels = torch.randint(10, (N_POINTS,), device="cuda")
    return Images(pixels, labels, torch.full((3, 1, 1), 127.5), torch.full((3, 1, 1), 74.0), 10)


def plain_loop(recipe: WideResNet, images: Images, steps: int, mode: str | None = None) -> float:
    """Images per second of a loop as in PyTorch's tutorials; the first steps are not counted."""
    net = _Net(recipe.depth, recipe.width, 3, images.n_classes)
    net.to(device="cuda", memory_format=torch.channels_last)
    forward: Any = torch.compile(net, mode=mode) if mode else net
    optimizer = torch.optim.SGD(net.parameters(), recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay)
    order = torch.randint(N_POINTS, (steps, recipe.batch), device="cuda")

    def loop(count: int) -> None:
        for index in order[:count]:
            optimizer.zero_grad()
            functional.cross_entropy(forward(images.pixels[index]), images.labels[index]).backward()
            optimizer.step()

    loop(20)
    return steps * recipe.batch / seconds(lambda: loop(steps))


def part_wrn(options: argparse.Namespace) -> Rows:
    """Training and queries of WRN-28-2."""
    with fast_arithmetic(torch.device("cuda")):
        return measured_wrn(options)


def measured_wrn(options: argparse.Namespace) -> Rows:
    images, members, recipe = random_images(), np.arange(N_MEMBERS), WideResNet(epochs=4)
    shown = recipe.epochs * N_MEMBERS // recipe.batch * recipe.batch
    plain = plain_loop(recipe, images, 200)
    rows: Rows = [{"what": "plain loop", "images/s": plain}]
    for compiled, what in ((False, "CUDA graph"), (True, "CUDA graph and torch.compile (default)")):
        made: list[Program] = []
        first = seconds(lambda: made.append(replace(recipe, compiled=compiled).program(images, N_MEMBERS)))  # noqa: B023
        program = made[0]
        program.fit(images, members[:5_000], np.random.default_rng(0))
        speed = shown / seconds(lambda: program.fit(images, members, np.random.default_rng(0)))  # noqa: B023
        rows.append({"what": what, "images/s": speed, "x plain": speed / plain, "seconds to start": first})
        if options.profile:
            profiled(lambda: program.fit(images, members[:10_000], np.random.default_rng(0)))  # noqa: B023
    rows[-1] |= {"target": "at least 65,000 and 3 x", "met": speed >= 65_000 and speed >= 3 * plain}
    views = VIEW_SETS["rmia18"]
    start = seconds(lambda: program.query(images, views[:1]))
    took = seconds(lambda: program.query(images, views))
    rows.append({"what": "queries, 18 views", "images/s": N_POINTS * len(views) / took, "seconds to start": start})
    moved = replace(recipe, augment=True, compiled=False)
    with_moves = moved.program(images, N_MEMBERS)
    with_moves.fit(images, members[:5_000], np.random.default_rng(0))
    speed = shown / seconds(lambda: with_moves.fit(images, members, np.random.default_rng(0)))
    rows.append({"what": "CUDA graph, augmented images", "images/s": speed, "x plain": speed / plain})
    return rows


def part_wrn_trees(options: argparse.Namespace) -> Rows:
    """torch.compile's own CUDA graphs."""
    del options
    with fast_arithmetic(torch.device("cuda")):
        speed = plain_loop(WideResNet(), random_images(), 200, "reduce-overhead")
    return [{"what": "torch.compile, reduce-overhead", "images/s": speed}]


def part_real(options: argparse.Namespace) -> Rows:
    """Models of real data."""
    with np.load(options.data, allow_pickle=False) as arrays:
        data = LabelledData(arrays["X"], arrays["y"])
    members = halves(options.models, data.n_points, np.random.default_rng(0))
    recipe: WideResNet | MLP = WideResNet(epochs=options.epochs) if data.is_images else MLP(epochs=options.epochs)
    views = VIEW_SETS["rmia18"] if data.is_images else (View(),)
    trained: list[Trained] = []
    took = seconds(lambda: trained.extend(recipe.train(data, members, range(options.models), views)))
    rows: Rows = []
    for model, row in zip(trained, members, strict=True):
        gap = float(model.conf[row, 0].mean() - model.conf[~row, 0].mean())
        found = {"train accuracy": model.train_accuracy, "test accuracy": model.test_accuracy, "gap": gap}
        rows.append({"what": f"{recipe.name}, {recipe.epochs} epochs"} | found | {"loss": model.losses[-1]})
    return [*rows, {"what": f"all {options.models}, {len(views)} views", "seconds": took}]


PARTS: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "check": part_check,
    "mlp": part_mlp,
    "mlp-single": part_mlp_single,
    "wrn": part_wrn,
    "wrn-trees": part_wrn_trees,
    "real": part_real,
}


# Report -------------------------------------------------------------------------------------------------------------


def profiled(work: Callable[[], Any]) -> None:
    """Print the time per GPU kernel."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        work()
        torch.cuda.synchronize()
    print(profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=70))


def print_rows(rows: Rows) -> None:
    def shown(value: Any) -> str:
        if isinstance(value, bool):
            return "met" if value else "MISSED"
        if isinstance(value, float):
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return str(value)

    for row in rows:
        numbers = ", ".join(f"{key} {shown(value)}" for key, value in row.items() if key not in ("what", "met"))
        print(f"  {row['what']:62} {numbers}{'  ' + shown(row['met']) if 'met' in row else ''}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; repeatable")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--data", type=Path, help="npz with X and y, for the part real")
    parser.add_argument("--models", type=int, default=2, help="number of models for real data")
    parser.add_argument("--epochs", type=int, default=100, help="epochs of these models")
    parser.add_argument("--profile", action="store_true", help="print the time per kernel")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: torch.cuda.is_available() is False", file=sys.stderr)
        return 2
    chosen = options.only or ["check", "mlp", "mlp-single", "wrn"]
    if options.data and options.data.exists() and "real" not in chosen:
        chosen = [*chosen, "real"]
    start, results, failed = time.perf_counter(), {}, {}
    versions = {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
    for name in chosen:
        began = time.perf_counter()
        try:
            results[name] = PARTS[name](options)
        except Exception:
            failed[name] = traceback.format_exc()
        print(f"\n{name}, {time.perf_counter() - began:.0f} s")
        print(failed[name]) if name in failed else print_rows(results[name])
        sys.stdout.flush()
        if options.out:
            about = {"device": torch.cuda.get_device_name(), "versions": versions}
            content = about | {"seconds": time.perf_counter() - start, "results": results, "failed": failed}
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(content, indent=2) + "\n")
    print(f"\n{time.perf_counter() - start:.0f} s in all on {torch.cuda.get_device_name()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
