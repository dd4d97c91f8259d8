"""The cost of an audit: kept networks, crude maps, and the page's tables."""

import json

import numpy as np
import pytest
from experiments import cost

from plmia.attacks.attack import ATTACKS
from plmia.errors import DataError
from plmia.evaluation.targets import Setup, attack_targets

torch = pytest.importorskip("torch")


def test_kept_networks_are_read_back(tmp_path):
    from experiments import cost_networks

    rng = np.random.default_rng(0)
    n, values = 12_000, rng.normal(0, 20, (3, 12_000, 4))
    members = rng.random((33, n)) < 0.5
    found = {"cnn": values.astype(np.float16), "cnn models": np.array([1, 2, 5]), "cnn seconds": np.ones(3)}
    np.savez(tmp_path / "raw.npz", membership=np.packbits(members, axis=1), n_points=np.array(n), **found)
    cost_networks.keep(tmp_path / "raw.npz", target=tmp_path / "kept.npz")
    read, kept = cost_networks.read_kept(tmp_path / "kept.npz")
    points = np.sort(np.random.default_rng(0).choice(n, cost_networks.POINTS, replace=False))
    models, signals = read["cnn"]
    assert models == [1, 2, 5]
    assert np.abs(signals - found["cnn"][:, points].astype(np.float32)).max() <= cost_networks.STEP / 2
    assert (kept == members[:, points]).all()


def test_further_networks_are_kept_beside_earlier_ones(tmp_path):
    from experiments import cost_networks

    rng = np.random.default_rng(0)
    n, target = 12_000, tmp_path / "kept.npz"
    members = rng.random((33, n)) < 0.5
    for kind, seed in (("cnn", 1), ("wrn-16-1", 2)):
        values = np.random.default_rng(seed).normal(0, 20, (3, n, 4)).astype(np.float16)
        found = {
            kind: values,
            f"{kind} models": np.array([1, 2, 5]),
            f"{kind} train_accuracy": np.array([0.5, 0.7, 0.9]),
        }
        np.savez(tmp_path / "raw.npz", membership=np.packbits(members, axis=1), n_points=np.array(n), **found)
        cost_networks.keep(tmp_path / "raw.npz", target=target)
    assert set(cost_networks.read_kept(target)[0]) == {"cnn", "wrn-16-1"}
    assert cost_networks.accuracies([1, 2], target) == pytest.approx({"cnn": 0.6, "wrn-16-1": 0.6})
    assert not cost_networks.accuracies([7], target)
    np.savez(tmp_path / "raw.npz", membership=np.packbits(~members, axis=1), n_points=np.array(n), **found)
    with pytest.raises(DataError):
        cost_networks.keep(tmp_path / "raw.npz", target=target)


def test_the_cost_of_networks_is_that_of_their_operations():
    source = cost.networks_source()
    assert source.cost[cost.FULL] == 1
    assert source.cost[cost.HALF] == pytest.approx(0.256, abs=0.01)
    assert source.cost["half the epochs"] == pytest.approx(0.5, abs=0.01)
    assert not set(source.targets) & set(source.references[:16])


def test_crude_maps_bring_references_to_the_target_s_scale():
    source = cost.networks_source()
    signals = source.with_target(cost.HALF, 8, 17)
    (plain,) = attack_targets(signals, [ATTACKS["pl-mia-eb"]], [0], Setup(align="never"))
    assert cost.crude(plain).metrics().auc > plain.metrics().auc + 0.01


def test_the_page_has_the_committed_results():
    found = json.loads(cost.RESULT.read_text(encoding="utf-8"))
    text = cost.PAGE.read_text(encoding="utf-8")
    assert cost.with_tables(text, cost.tables(found)) == text
    for name, drawn in cost.figures(found).items():
        assert (cost.PAGE.parent / f"{name}.svg").read_text(encoding="utf-8") == f"{drawn.svg}\n"


def test_references_of_half_the_width_that_train_longer_find_what_the_page_says():
    found = json.loads(cost.RESULT.read_text(encoding="utf-8"))
    rows = {(name["data"], row["kind"]): row for name in found.values() for row in name.get("fit", ())}
    longer = {data: row for (data, kind), row in rows.items() if kind == cost.MORE}
    longer["CIFAR-10"] = rows["CIFAR-10", cost.LONGER]
    assert len(longer) == 5
    assert all(row["difference"][0][0] > -0.5 for row in longer.values())
    assert all(0.42 < row["cost"] / 16 < 0.645 for row in longer.values())
    lost = {data: -row["difference"][2][0] / rows[data, cost.FULL]["found"][2] for data, row in longer.items()}
    assert {data: round(lost[data], 2) for data in ("Covertype", "Adult", "CIFAR-10")} == {
        "Covertype": 0.06,
        "Adult": 0.14,
        "CIFAR-10": 0.09,
    }
    target, wide = (rows["CIFAR-10", kind]["accuracy"] for kind in (cost.FULL, cost.LONGER))
    assert wide == pytest.approx(target, abs=0.1)
    for data in ("Location-30", "Fashion-MNIST"):
        assert all(abs(apart) < half for apart, half in longer[data]["difference"][:3])


def test_smaller_references_at_equal_compute_find_what_the_page_says():
    """In short: what replaces 8 full references is level or ahead on four sets, and what replaces 16 costs."""
    found = json.loads(cost.RESULT.read_text(encoding="utf-8"))
    auc = {
        (name["data"], row["full"], row["kind"]): row["difference"][0]
        for name in found.values()
        for row in name["equal"]
    }
    for data, kind in (
        ("Location-30", "quarter width"),
        ("Fashion-MNIST", "quarter width"),
        ("Adult", cost.HALF),
        ("CIFAR-10", cost.LONGER),
    ):
        apart, half = auc[data, 8, kind]
        assert apart > -half, data
    assert round(auc["Covertype", 8, cost.HALF][0], 1) == -1.3
    at_16 = {data: round(apart, 1) for (data, n, kind), (apart, _) in auc.items() if (n, kind) == (16, cost.HALF)}
    assert at_16 == {"Location-30": -0.2, "Adult": 0.1, "Covertype": -1.8, "Fashion-MNIST": -0.5, "CIFAR-10": -0.7}
