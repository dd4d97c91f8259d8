"""Networks of the CIFAR-10 part of `cost.py`: full, smaller and shorter references. They need a GPU.

    python -m experiments.cost_networks train DATA STACKS NAME FIRST LAST    train models FIRST to LAST of one kind
    python -m experiments.cost_networks pack STACKS NPZ                      all models of all kinds, 16 bits
    python -m experiments.cost_networks keep NPZ...                          a fifth of the points, in `signals`

All kinds share one membership design: model k of every kind is trained on the same records.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from plmia.data.arrays import Array
from plmia.data.dataset import LabelledData
from plmia.data.designs import audit_design
from plmia.errors import DataError
from plmia.signals.store import read_stacks
from plmia.training.recipes.named import parse_recipe
from plmia.training.recipes.recipe import Recipe
from plmia.training.recipes.torch_module import Torch
from plmia.training.remote_worker import train_stacks
from plmia.training.views import parse_views

from .images import read_whole

REFERENCES, SEED = 32, 0
KEPT, POINTS, STEP = Path(__file__).parent / "signals" / "cost_cifar10.npz", 10_000, 0.125
# Literals of the codes do not depend on their neighbours.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 0, "pb": 0}]
CNN_EPOCHS = 30
VIEWS = parse_views("identity;mirror;shift:2,0;shift:-2,0")
KINDS = {
    "wrn-28-2": "wide-resnet?epochs=50&augment=true",
    "wrn-28-1": "wide-resnet?epochs=50&augment=true&width=1",
    "wrn-28-1-long": "wide-resnet?epochs=100&augment=true&width=1",
    "wrn-16-1": "wide-resnet?epochs=50&augment=true&depth=16&width=1",
    "wrn-28-2-short": "wide-resnet?epochs=25&augment=true",
    "wrn-28-2-plain": "wide-resnet?epochs=50",
    "cnn": "",
}


def small_cnn() -> nn.Module:
    """Three convolutions and one hidden layer."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 128), nn.ReLU(), nn.Linear(128, 10))


def recipe_of(kind: str) -> Recipe:
    """Return the recipe of a kind of network."""
    return parse_recipe(KINDS[kind]) if KINDS[kind] else Torch(small_cnn, epochs=CNN_EPOCHS, lr=2e-3, batch=256)


def train(data_file: Path, stacks: Path, kind: str, first: int, last: int) -> None:
    """Train some models of one kind; models that are there already are skipped."""
    data = read_whole(data_file)
    train_stacks(data, recipe_of(kind), VIEWS, REFERENCES, SEED, stacks / kind, range(first, last + 1))


def pack(stacks: Path, target: Path) -> None:
    """Write the signals of all kinds found, with their models' numbers, membership, accuracies and seconds."""
    found: dict[str, Array] = {}
    n_points = 0
    for kind in KINDS:
        if not any((stacks / kind).glob("stack-*.json")):
            continue
        key = json.loads(min((stacks / kind).glob("stack-*.json")).read_text(encoding="utf-8"))["key"]
        each = [
            (model, values, made)
            for stack in read_stacks(stacks / kind, key=key)
            for model, values, made in zip(stack.models, stack.signals, stack.provenance, strict=True)
        ]
        each.sort(key=lambda part: part[0])
        n_points = each[0][1].shape[0]
        found[kind] = np.stack([values for _, values, _ in each]).astype(np.float16)
        found[f"{kind} models"] = np.array([model for model, _, _ in each])
        for name in ("train_accuracy", "test_accuracy", "seconds"):
            found[f"{kind} {name}"] = np.array([made[name] for _, _, made in each], dtype=np.float64)
        print(f"{kind}: {len(each)} models, {np.mean(found[f'{kind} test_accuracy']):.3f} held out")  # noqa: T201
    design = audit_design(n_points, REFERENCES, np.random.default_rng(SEED), None)
    np.savez(target, membership=np.packbits(design.matrix, axis=1), n_points=np.array(n_points), **found)


def keep(*packed: Path, target: Path = KEPT) -> None:
    """Keep a random part of the points of packed signals in a small file: multiples of 1/8, compressed by LZMA.

    Kinds that the file already keeps stay, unless they are packed again.
    """
    found: dict[str, Array] = {}
    if target.exists():
        with np.load(target) as arrays:
            found = {name: arrays[name] for name in arrays}
    for path in packed:
        with np.load(path) as arrays:
            n_points = int(arrays["n_points"])
            points = np.sort(np.random.default_rng(SEED).choice(n_points, POINTS, replace=False))
            members = np.unpackbits(arrays["membership"], axis=1, count=n_points)[:, points]
            membership = np.packbits(members, axis=1)
            if not np.array_equal(found.setdefault("membership", membership), membership):
                raise DataError(f"{path} has other members than {target}: pack models of the same design")
            for kind in (name for name in KINDS if name in arrays):
                found[kind] = _compressed(arrays[kind][:, points])
                found |= {name: arrays[name] for name in arrays if name.startswith(f"{kind} ")}
    np.savez(target, **found)


def _compressed(values: Array) -> Array:
    """Codes of signals [models, points, views]; further views are stored as differences from the first."""
    whole = np.rint(values.astype(np.float64) / STEP).astype(np.int32)
    whole[:, :, 1:] -= whole[:, :, :1]
    # 0, -1, 1, -2, ... become 0, 1, 2, 3, ...; low bytes come first, since nearly all high bytes are 0.
    small = ((whole << 1) ^ (whole >> 31)).astype("<u2").transpose(2, 0, 1)
    planes = np.stack([small & 0xFF, small >> 8]).astype(np.uint8)
    return np.frombuffer(lzma.compress(planes.tobytes(), lzma.FORMAT_XZ, filters=_FILTERS), np.uint8)


def read_kept(path: Path = KEPT) -> tuple[dict[str, tuple[list[int], Array]], Array]:
    """Return the numbers of the models and their signals [models, points, views] by kind, and all membership."""
    with np.load(path) as arrays:
        members = np.unpackbits(arrays["membership"], axis=1, count=POINTS).astype(bool)
        found = {}
        for kind in (name for name in KINDS if name in arrays):
            models = arrays[f"{kind} models"].tolist()
            planes = np.frombuffer(lzma.decompress(arrays[kind].tobytes()), np.uint8)
            low, high = planes.reshape(2, len(VIEWS), len(models), POINTS).astype(np.int32)
            small = (low | high << 8).transpose(1, 2, 0)
            whole = (small >> 1) ^ -(small & 1)
            whole[:, :, 1:] += whole[:, :, :1]
            found[kind] = models, (whole * STEP).astype(np.float32)
    return found, members


def accuracies(models: Collection[int], path: Path = KEPT) -> dict[str, float]:
    """Mean accuracy on their members of these models, by kind; kinds without any of them are left out."""
    found = {}
    with np.load(path) as arrays:
        for kind in (name for name in KINDS if name in arrays):
            chosen = np.isin(arrays[f"{kind} models"], list(models))
            if chosen.any():
                found[kind] = float(arrays[f"{kind} train_accuracy"][chosen].mean())
    return found


def operations(kind: str, n_members: int) -> float:
    """Floating-point operations of training one model."""
    few = LabelledData(np.zeros((20, 32, 32, 3), np.uint8), np.arange(20) % 10)
    known = recipe_of(kind).operations(few, n_members)
    if known is not None:
        return known
    with FlopCounterMode(display=False) as counted:
        small_cnn()(torch.zeros(1, 3, 32, 32).expand(2, -1, -1, -1))
    # Backward costs twice as much as forward.
    return 3 * counted.get_total_flops() / 2 * n_members * CNN_EPOCHS


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"] and len(sys.argv) == 7:
        train(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
    elif sys.argv[1:2] == ["pack"] and len(sys.argv) == 4:
        pack(Path(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1:2] == ["keep"] and len(sys.argv) > 2:
        keep(*map(Path, sys.argv[2:]))
    else:
        sys.exit(
            "python -m experiments.cost_networks train DATA STACKS NAME FIRST LAST | pack STACKS NPZ | keep NPZ..."
        )
