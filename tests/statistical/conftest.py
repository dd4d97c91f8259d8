"""Real signals, where they are at hand: beside the repository, or in the folder that PLMIA_DATA names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from plmia import Signals, read_signals


@pytest.fixture(scope="session")
def real_signals(repository: Path) -> Callable[[str], Signals]:
    """Read a signals file by its name, or skip the test."""

    def read(name: str) -> Signals:
        folder = Path(os.environ.get("PLMIA_DATA", repository.parent / "shared" / "data" / "signals"))
        for path in (folder / name, folder / "signals" / name):
            if path.is_file():
                return read_signals(path)
        pytest.skip(f"{name} is not in {folder}: name its folder in PLMIA_DATA")

    return read


@pytest.fixture(scope="module")
def cifar10(real_signals: Callable[[str], Signals]) -> Signals:
    """66 convolutional networks on halves of CIFAR-10, four views."""
    return real_signals("cifar10_cnn.npz")


@pytest.fixture(scope="module")
def location(real_signals: Callable[[str], Signals]) -> Signals:
    """128 multilayer perceptrons on halves of Location-30, one view."""
    return real_signals("location_mlp.npz")
