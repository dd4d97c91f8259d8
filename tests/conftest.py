"""What tests share: repeatable property tests, simulated audits, and the command run in this process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from plmia.auditing import progress
from plmia.cli.main import main
from plmia.data.designs import MembershipDesign
from plmia.signals.signals import Signals

# The same examples on every machine and in every run: a failure in CI fails here too.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")

Arrays = dict[str, Any]


def simulate_arrays(
    seed: int,
    *,
    models: int = 16,
    points: int = 120,
    views: int = 1,
    shift: float = 1.5,
    spread_in: float = 1.0,
    difficulty: float = 0.5,
    dtype: str = "float32",
) -> Arrays:
    """Draw the arrays of a signals file from the Gaussian model, in complementary pairs.

    A point's signals have their own mean (``difficulty`` apart) and unit deviation; a model that trained on the point
    is ``shift`` more confident and its deviation is ``spread_in``. Without shift and with spread 1 nothing leaks.
    """
    rng = np.random.default_rng(seed)
    half = rng.random(((models + 1) // 2, points)) < 0.5
    membership = np.stack([half, ~half], axis=1).reshape(-1, points)[:models]
    inside = membership[:, :, None]
    noise = rng.normal(size=(models, points, views)) * np.where(inside, spread_in, 1.0)
    signals = difficulty * rng.normal(size=(points, 1)) + noise + shift * inside
    return {
        "signals": signals.astype(dtype),
        "membership": membership,
        "labels": rng.integers(0, 3, size=points),
    }


@pytest.fixture(scope="session")
def simulate() -> Callable[..., Arrays]:
    """Arrays of a simulated signals file: ``simulate(seed, models=16, points=120, views=1, shift=1.5, ...)``."""
    return simulate_arrays


@pytest.fixture(scope="session")
def simulate_signals() -> Callable[..., Signals]:
    """Return simulated `Signals`, with the arguments of `simulate`."""

    def draw(seed: int, **shape: Any) -> Signals:
        arrays = simulate_arrays(seed, **shape)
        return Signals(arrays["signals"], MembershipDesign(arrays["membership"]), arrays["labels"])

    return draw


@pytest.fixture
def signals_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a simulated signals file: ``signals_file(seed, ...)``; arrays given by name replace the simulated ones."""

    def write(seed: int = 0, name: str = "signals.npz", replace: Arrays | None = None, **shape: Any) -> Path:
        arrays = simulate_arrays(seed, **shape) | (replace or {})
        path = tmp_path / name
        np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
        return path

    return write


@pytest.fixture
def command() -> Callable[..., click.testing.Result]:
    """Run the command in this process: ``command("score", file, "-o", folder)``."""

    def run(*arguments: object) -> click.testing.Result:
        return click.testing.CliRunner().invoke(main, [str(argument) for argument in arguments])

    return run


@pytest.fixture(scope="session", autouse=True)
def _no_lines_of_progress() -> Iterator[None]:
    """On a busy machine, work of these tests takes long enough for a line of progress on standard error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "LINE_SECONDS", 3600.0)
        yield


@pytest.fixture(scope="session")
def without_progress() -> Callable[[str], str]:
    """Return a function that removes lines of progress from the standard error of another process."""
    line = re.compile(r"^(?:training|scoring|planning|screening|importing)(?: \(.*\))?: \d+ %.*\n", re.MULTILINE)
    return lambda text: line.sub("", text)


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the folder of the repository."""
    return Path(__file__).resolve().parents[1]
