"""Cut the small signals file of examples/ from a full one.

    python scripts/cut_example.py FULL.npz examples/cifar10_cnn_slice.npz

Takes the first 34 models (17 complementary pairs), the first 2 views and 2,000 points at equal steps.
"""

from __future__ import annotations

import sys

import numpy as np

MODELS, POINTS, VIEWS = 34, 2000, 2


def main(source: str, destination: str) -> None:
    with np.load(source) as full:
        n_points = int(full["n_points"])
        points = np.arange(0, n_points, n_points // POINTS)[:POINTS]
        membership = np.unpackbits(full["membership"][:MODELS], axis=1, count=n_points)[:, points]
        np.savez_compressed(
            destination,
            signals=full["signals"][:MODELS, points, :VIEWS],
            membership=np.packbits(membership, axis=1),
            n_points=np.int64(POINTS),
            labels=full["labels"][points],
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
