"""Cut small signals for the repository from the whole signals.

    python -m experiments.cut_signals FOLDER [NAME...]

FOLDER contains the signals named below, stores or npz files, each with a description in NAME.json. Points are drawn at
random with a fixed seed. If there are many networks with many views, the last ones are kept. Signals have 16 bits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from .script import end
from .setting import MLPS, SIGNALS, read_named

SEED = 0
MODELS = {"cifar10_wrn": 70, "cifar100_wrn": 44}
POINTS = {"cifar10_wrn": 2000, "cifar10_wrn_plain": 2000, "cifar100_wrn": 2000}
POINTS |= dict.fromkeys((*MLPS, "location_gbdt_3", "location_gbdt_5", "location_gbdt_7"), 800)


def main(folder: Path, *names: str) -> None:
    """Cut the named signals, by default all."""
    for name, n_points in POINTS.items():
        if names and name not in names:
            continue
        signals, about = read_named(folder, name)
        rng = np.random.default_rng(SEED)
        chosen = np.sort(rng.choice(signals.n_points, n_points, replace=False))
        models = np.arange(signals.n_models)[-MODELS.get(name, signals.n_models) :]
        assert signals.labels is not None  # noqa: S101 - all of these have labels
        np.savez_compressed(
            SIGNALS / f"{name}.npz",
            signals=signals.values[models][:, chosen].astype(np.float16),
            membership=np.packbits(signals.design.matrix[models][:, chosen], axis=1),
            n_points=np.array(len(chosen)),
            labels=signals.labels[chosen].astype(np.int16),
        )
        few = f", the last {len(models)} of {signals.n_models} models" * (len(models) < signals.n_models)
        cut = {"cut": f"{len(chosen):,} of {signals.n_points:,} points, drawn at random{few}; 16 bits"}
        cut |= {"first_target": max(about.get("first_target", 0) - int(models[0]), 0)}
        (SIGNALS / f"{name}.json").write_text(f"{json.dumps(about | cut, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("name the folder of the large signals: python -m experiments.cut_signals FOLDER [NAME...]")
    end(main, Path(sys.argv[1]), *sys.argv[2:])
