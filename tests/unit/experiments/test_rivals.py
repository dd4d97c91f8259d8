"""The comparison of all attacks: what is measured, how sets merge, and the page's tables."""

import json

import numpy as np
import pytest
from experiments import kept, rivals
from experiments.measure import AUC

from plmia.errors import DataError
from plmia.evaluation.metrics import evaluate
from plmia.evaluation.targets import attack_targets


@pytest.fixture
def folder(tmp_path, simulate_signals):
    """Signals of 14 models, as an npz file and as kept models."""
    signals = simulate_signals(0, models=14, points=300, dtype="float16")
    np.savez(tmp_path / "mine.npz", signals=signals.values, membership=signals.design.matrix, labels=signals.labels)
    (tmp_path / "mine.json").write_text(json.dumps({"data": "Mine", "model": "any", "first_target": 4}))
    return tmp_path


def test_rows_are_means_and_paired_differences_over_reported_targets(folder):
    source = rivals.read_set("mine", folder, targets=3)
    made = rivals.measure(source)
    assert min(made["targets"]) >= 4
    assert {row["references"] for row in made["rows"]} == {2, 4, 8}
    row = next(r for r in made["rows"] if (r["mode"], r["references"], r["attack"]) == ("offline", 4, "base"))
    naive = {}
    attacks = [rivals.ALL["base"], rivals.ALL[rivals.OURS]]
    for result in attack_targets(source.signals, attacks, source.targets, source.setup("offline", 4)):
        queries = result.truth.queries
        found = evaluate(result.scores.score[queries], result.truth.members[queries], (0.0,), target=0)
        naive.setdefault(result.scores.attack, []).append((100 * found.auc, 100 * found.tpr_at(0.0).tpr))
    assert made["metrics"][0] == AUC
    assert [row["mean"][0], row["mean"][4]] == pytest.approx(np.mean(naive["base"], axis=0).tolist(), abs=1e-3)
    apart = np.subtract(naive[rivals.OURS], naive["base"])
    assert row["ahead"][0][0] == pytest.approx(apart[:, 0].mean(), abs=1e-3)
    assert row["ahead"][0][1] < row["ahead"][0][0] < row["ahead"][0][2]
    assert row["mean"][2] is None  # 0.1 % is not resolved


def test_attacks_that_lack_references_are_left_out_and_the_others_stay(folder):
    made = rivals.measure(rivals.read_set("mine", folder, targets=3))
    named = {n: {row["attack"] for row in made["rows"] if row["references"] == n} for n in (2, 4)}
    assert not {"lira", "bavaria-t"} & named[2]
    assert {"rmia", "base", rivals.OURS} <= named[2]
    assert set(rivals.RIVALS) - {"quantile-regression"} <= named[4]


def test_sets_merge_into_the_results(folder, monkeypatch):
    monkeypatch.setattr(rivals, "RESULT", folder / "rivals.json")
    (folder / "rivals.json").write_text('{"other-5": {}}')
    rivals.main("measure", ["mine"], folder, None, 3)
    found = json.loads((folder / "rivals.json").read_text())
    assert list(found) == ["other-5", "mine-300"]


def test_kept_models_are_a_set(tmp_path, simulate_signals):
    signals = simulate_signals(1, models=10, points=100, views=2)
    models = {
        str(i): {"sha256": kept.write_model(tmp_path / "mine" / f"{i:06d}.npz", values, members)}
        for i, (values, members) in enumerate(zip(signals.values, signals.design.matrix, strict=True))
    }
    labels = signals.labels.astype("<i2")
    np.savez(tmp_path / "mine" / "labels.npz", labels=labels)
    about = {"data": "Mine", "recipe": "any", "first_target": 2, "n_points": 100, "views": ["a", "b"]}
    about |= {"labels": kept.hashlib.sha256(labels.tobytes()).hexdigest(), "models": models}
    (tmp_path / "mine" / "about.json").write_text(json.dumps(about))
    source = rivals.read_set("mine", tmp_path, targets=2)
    assert source.targets == (2, 4)
    assert np.abs(source.signals.values - signals.values).max() <= kept.STEP / 2


def test_records_are_matched_with_their_data_by_labels(tmp_path):
    rng = np.random.default_rng(0)
    source = rivals.read_set("location_mlp", rivals.SIGNALS, targets=2)
    rows = np.sort(np.random.default_rng(rivals.CUT_SEED).choice(5010, 800, replace=False))
    X, y = rng.normal(size=(5010, 3)), rng.integers(0, 30, size=5010)
    y[rows] = source.signals.labels
    np.savez(tmp_path / "location30.npz", X=X, y=y)
    features = rivals.records_of("location_mlp", source, tmp_path)
    assert np.allclose(features.columns[:, :3], X[rows])
    np.savez(tmp_path / "location30.npz", X=X, y=np.roll(y, 1))
    with pytest.raises(DataError, match="location30"):
        rivals.records_of("location_mlp", source, tmp_path)
    assert rivals.records_of("location_mlp", source, tmp_path / "nothing") is None


def test_only_an_interval_that_excludes_0_decides():
    assert [rivals.outcome(x) for x in ([1.0, 0.1, 2.0], [1.0, -0.1, 2.0], [-1.0, -2.0, -0.1])] == [
        "ahead",
        "open",
        "behind",
    ]


def test_the_short_answer_of_the_page_is_what_was_measured():
    found = json.loads(rivals.RESULT.read_text(encoding="utf-8"))
    whole, few = [], []
    for key, each in found.items():
        for row in each["rows"]:
            enough = row["mode"] == "online" and row["references"] >= 4
            if row["attack"] != rivals.OURS and enough:
                assert row["ahead"][0][0] > 0, (key, row)
                assert "behind" not in [rivals.outcome(interval) for interval in row["ahead"][:2]], (key, row)
            elif row["attack"] != rivals.OURS and row["mode"] == "offline":
                behind = rivals.outcome(row["ahead"][0]) == "behind"
                if behind and row["references"] == 2:
                    few.append((each["data"], row["attack"]))
                elif behind:
                    assert (each["data"], row["references"], row["attack"]) == ("CIFAR-10", 4, "base")
                    assert row["ahead"][0][0] > -0.85
                if each["data"] == "CIFAR-100":
                    whole.append(row["ahead"][0][0])
            if each["data"] == "CIFAR-100" and row["attack"] != rivals.OURS:
                tail = [rivals.outcome(interval) for interval in row["ahead"][2:]]
                assert "behind" not in tail[(row["mode"], row["references"]) == ("offline", 2) :], (key, row)
            if row["attack"] == "bavaria-t" and row["references"] == 64 and row["mode"] == "online":
                assert row["ahead"][0][0] < (6 if each["data"] == "Adult" else 2)
    assert min(whole) > 3
    assert {data for data, _ in few} == {"Adult", "Covertype"}


def test_the_page_has_the_committed_results():
    found = json.loads(rivals.RESULT.read_text(encoding="utf-8"))
    text = rivals.PAGE.read_text(encoding="utf-8")
    assert rivals.with_tables(text, rivals.tables(found), "rivals") == text
    drawn = (rivals.PAGE.parent / "which-attack.svg").read_text(encoding="utf-8")
    assert drawn == f"{rivals.chart(found).svg}\n"
