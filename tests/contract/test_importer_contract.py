"""What every importer guarantees: the same signals from its files, mapped npy files, and errors with a remedy."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from plmia import import_signals, read_signals
from plmia.errors import SignalsError
from plmia.signals.importers import IMPORTERS, find_models

Array = npt.NDArray[Any]
MODELS, POINTS = 4, 9


def save(path: Path, array: Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def lira(folder: Path, confidences: Array, membership: Array) -> None:
    for model in range(MODELS):
        save(folder / f"experiment-{model}_{MODELS}" / "keep.npy", membership[model])
        save(folder / f"experiment-{model}_{MODELS}" / "scores" / "0000000010.npy", confidences[model])


def privacy_meter(folder: Path, confidences: Array, membership: Array) -> None:
    save(folder / "signals" / "rmia_signals.npy", 1 / (1 + np.exp(-confidences.T)))
    save(folder / "models" / "memberships.npy", membership)


def arrays(folder: Path, confidences: Array, membership: Array) -> None:
    save(folder / "probabilities.npy", 1 / (1 + np.exp(-confidences)))
    save(folder / "membership.npy", membership)


def lira_pytorch(folder: Path, confidences: Array, membership: Array) -> None:
    for model in range(MODELS):
        save(folder / str(model) / "keep.npy", membership[model])
        save(folder / str(model) / "scores.npy", confidences[model][:, None])


def table(path: Path, confidences: Array, membership: Array) -> None:
    rows = [f"{m},{p},{membership[m, p]},{confidences[m, p]!r}" for m, p in np.ndindex(MODELS, POINTS)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["model,record,member,signal", *rows]).replace("np.float64(", "").replace(")", "") + "\n")


# A new importer needs a line here: how the other tool writes these confidences [models, points], without files that the
# importer does not need.
WRITERS: dict[str, Callable[[Path, Array, Array], None]] = {
    "lira": lira,
    "lira-pytorch": lira_pytorch,
    "rmia": lira,
    "privacy-meter": privacy_meter,
    "arrays": arrays,
    "table": table,
}


def drawn() -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return 3 * rng.normal(size=(MODELS, POINTS)), rng.random((MODELS, POINTS)) < 0.5


def test_every_importer_is_tested_and_described() -> None:
    assert set(WRITERS) == set(IMPORTERS)
    for name, importer in IMPORTERS.items():
        assert importer.name == name
        assert importer.files


@pytest.mark.parametrize("name", IMPORTERS)
def test_signals_and_membership_arrive_in_order(name: str, tmp_path: Path) -> None:
    confidences, membership = drawn()
    WRITERS[name](tmp_path / "in", confidences, membership)
    first, again = tmp_path / "a.npz", tmp_path / "b.npz"
    imported = import_signals(name, tmp_path / "in", first)
    import_signals(name, tmp_path / "in", again)
    signals = read_signals(first)
    np.testing.assert_allclose(signals.values[:, :, 0], confidences, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(signals.design.matrix, membership)
    assert (imported.n_models, imported.n_points, imported.n_views) == (MODELS, POINTS, 1)
    assert first.read_bytes() == again.read_bytes()


@pytest.mark.parametrize("name", IMPORTERS)
def test_npy_files_are_mapped_not_read(name: str, tmp_path: Path) -> None:
    """Other formats may have to be read."""
    WRITERS[name](tmp_path / "in", *drawn())
    for output in find_models(name, tmp_path / "in").outputs:
        if output.path.suffix != ".npy":
            continue
        base: object = output.values
        while isinstance(base, np.ndarray):
            base = base.base
        assert isinstance(base, mmap.mmap)


@pytest.mark.parametrize("name", IMPORTERS)
def test_what_is_missing_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "nothing", tmp_path / "empty"):
        with pytest.raises(SignalsError, match=folder.name):
            find_models(name, folder)
    WRITERS[name](tmp_path / "in", *drawn())
    given = tmp_path / "in"
    files = [given] if given.is_file() else sorted(path for path in given.rglob("*") if path.is_file())
    assert files
    for file in files:
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(SignalsError, match=str(tmp_path / "in")):
            find_models(name, tmp_path / "in")
        # A text that ends where a model ends cannot be told from a shorter one.
        file.write_bytes(content[:-1] if file.suffix == ".npy" else content[: 2 * len(content) // 5])
        with pytest.raises(SignalsError, match=file.name):
            find_models(name, tmp_path / "in")
        file.write_bytes(content)
