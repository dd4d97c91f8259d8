"""Cut small signals for the repository from large ones; needs those, so it runs only where they are.

    python -m experiments.cut_signals FOLDER

FOLDER holds cifar10_wrn (a store), location_gbdt_3, _5, _7 (stores) and location_mlp.npz, each with NAME.json beside it
that says what it is. Points are drawn at random with a fixed seed; signals are kept in 16 bits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from .setting import SIGNALS, read_named

SEED = 0
POINTS = {
    "cifar10_wrn": 2000,
    "location_mlp": 1500,
    "location_gbdt_3": None,
    "location_gbdt_5": None,
    "location_gbdt_7": None,
}


def main(folder: Path) -> None:
    """Cut every file."""
    for name, n_points in POINTS.items():
        signals, about = read_named(folder, name)
        rng = np.random.default_rng(SEED)
        chosen = np.sort(rng.choice(signals.n_points, n_points or signals.n_points, replace=False))
        assert signals.labels is not None  # noqa: S101 - all of these have labels
        np.savez_compressed(
            SIGNALS / f"{name}.npz",
            signals=signals.values[:, chosen].astype(np.float16),
            membership=np.packbits(signals.design.matrix[:, chosen], axis=1),
            n_points=np.array(len(chosen)),
            labels=signals.labels[chosen].astype(np.int16),
        )
        cut = {"cut": f"{len(chosen):,} of {signals.n_points:,} points, drawn at random; 16 bits"}
        text = json.dumps(about | (cut if n_points else {"cut": "16 bits"}), indent=1)
        (SIGNALS / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
