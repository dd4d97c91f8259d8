"""Whole audits of PyTorch modules: on a dataset, resumed, changed, of a module that exists, and of a regression."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if os.environ.get("CI") != "true":
    pytest.importorskip("torch", reason="torch is not installed: pip install 'plmia[torch]'")

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import plmia
from plmia import Audit, Torch
from plmia.errors import StoreError
from plmia.training.recipes import torch_module

N = 200
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, N)
X = RNG.normal(size=(N, 20)).astype(np.float32)
OPTIONS: dict[str, Any] = {"references": 8, "attacks": ["rmia"], "engine": plmia.Inline(), "progress": False}
PAIRS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))


def run(recipe: Torch, *data: Any, **options: Any) -> Audit:
    torch.set_num_threads(1)
    return plmia.audit(recipe, *data, **OPTIONS | options)


def test_random_labels_can_only_be_learned_by_heart(tmp_path: Path) -> None:
    """With many epochs members are found; without training nobody is."""
    learned = run(Torch(net, epochs=60, lr=0.01, batch=32), PAIRS, folder=tmp_path / "learned", show_records=True)
    assert learned.auc("rmia") > 0.75
    assert (tmp_path / "learned" / "report.html").stat().st_size > 10_000
    untrained = run(Torch(net, fit=lambda module, dataset, seed: None), PAIRS, folder=tmp_path / "none")
    assert 0.35 < untrained.auc("rmia") < 0.65


def test_finished_models_are_reused_only_for_the_same_code_and_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    width = 8

    def sized() -> nn.Module:
        return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 2))

    first = run(Torch(sized, epochs=1), PAIRS, folder=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(torch_module.Torch, "train", None)  # must not train again
        again = run(Torch(sized, epochs=1), PAIRS, folder=tmp_path)
    assert again.auc("rmia") == first.auc("rmia")
    other = TensorDataset(torch.from_numpy(X + 1), torch.from_numpy(Y))
    with pytest.raises(StoreError, match="data changed"):
        run(Torch(sized, epochs=1), other, folder=tmp_path)
    width = 9
    with pytest.raises(StoreError, match="sized"):
        run(Torch(sized, epochs=1), PAIRS, folder=tmp_path)


def test_workers_get_tensors_by_value(tmp_path: Path) -> None:
    """A module and a dataset that workers can import, so that nothing hides how tensors are sent."""
    recipe = Torch(partial(nn.Linear, 20, 2), epochs=5, lr=0.05, stack=2, device="cpu")
    workers = run(recipe, PAIRS, folder=tmp_path / "workers", engine=plmia.LocalProcesses(2))
    here = run(recipe, PAIRS, folder=tmp_path / "here")
    assert workers.auc("rmia") == pytest.approx(here.auc("rmia"), abs=0.01)


class Varying(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, record: int) -> Any:
        return torch.from_numpy(X[record]) + 0.1 * torch.randn(20), int(Y[record])


def test_a_random_dataset_is_noted_and_trained_again(tmp_path: Path) -> None:
    with pytest.warns(plmia.PlmiaWarning, match="each time"):
        audit = run(Torch(net, epochs=1), Varying(), folder=tmp_path)
    assert "records-vary" in [note.code for note in audit.result.notes]
    with pytest.warns(plmia.PlmiaWarning, match="each time"), pytest.raises(StoreError, match="data changed"):
        run(Torch(net, epochs=1), Varying(), folder=tmp_path)


def test_a_module_that_exists_is_audited_and_weights_are_kept(tmp_path: Path) -> None:
    members = np.arange(N) % 2 == 0
    torch.manual_seed(0)
    module = net()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    own = torch.from_numpy(X[members]), torch.from_numpy(Y[members])
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(own[0]), own[1]).backward()
        optimizer.step()
    audit = run(
        Torch(net, epochs=60, lr=0.01, batch=32),
        PAIRS,
        target=module,
        members=members,
        folder=tmp_path,
        keep_models=True,
    )
    assert audit.auc("rmia") > 0.75
    from safetensors.numpy import load_file

    files = sorted((tmp_path / "models").iterdir())
    assert len(files) == 8
    assert load_file(files[0]).keys() == module.state_dict().keys()


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs[:, 0] - y) ** 2


def test_a_regression_is_audited_by_its_loss(tmp_path: Path) -> None:
    noise = RNG.normal(size=N)

    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))

    recipe = Torch(wide, epochs=60, lr=0.01, batch=32, loss=squared_error)
    audit = run(recipe, X, noise, folder=tmp_path)
    assert audit.auc("rmia") > 0.8
    assert audit.result.about.signal == "signal"
    assert audit.result.about.train_accuracy is None
