"""A model that exists already, from the shell: every format gives the same numbers, and what cannot be used is said."""

from __future__ import annotations

import json
import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import onnx
import pandas as pd
import pytest
import skops.io
from onnx import TensorProto, helper, numpy_helper
from sklearn.linear_model import LogisticRegression

import plmia
from plmia.signals.store import SignalStore

Run = Callable[..., click.testing.Result]

N = 160
RNG = np.random.default_rng(0)
CLASSES = np.array(["<=50K", ">50K"])
Y = np.arange(N) % 2
X = RNG.normal(0.8 * Y[:, None], 1.0, (N, 3)).astype(np.float32)
MEMBERS = RNG.permutation(N) < 80
FEATURES = pd.DataFrame(X, columns=["age", "hours", "gain"])
MODEL = LogisticRegression(C=10.0).fit(FEATURES[MEMBERS], CLASSES[Y[MEMBERS]])
P = MODEL.predict_proba(FEATURES)
OWN = P[np.arange(N), Y]
ORDER = RNG.permutation(N)
IDS = np.array([f"P{i:03d}" for i in range(N)])


def frame(values: Any = P, names: Any = CLASSES) -> pd.DataFrame:
    return pd.DataFrame(values, columns=list(names))


def write_onnx(path: Path) -> None:
    """Write the model as a linear layer with a sigmoid, which gives the probability of the second class."""
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["xw"]),
        helper.make_node("Add", ["xw", "B"], ["z"]),
        helper.make_node("Sigmoid", ["z"], ["probability"]),
    ]
    weights = {"W": MODEL.coef_.T, "B": MODEL.intercept_}
    held = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    ends = [helper.make_tensor_value_info(*end) for end in (("x", 1, [None, 3]), ("probability", 1, [None, 1]))]
    assert TensorProto.FLOAT == 1
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def write_targets(folder: Path) -> None:
    """Write the same model in every format."""
    frame().to_csv(folder / "names.csv", index=False)
    frame(P[:, ::-1], CLASSES[::-1]).to_parquet(folder / "turned.parquet")
    r = frame(P, ["X..50K", "X.50K"])
    r.index = pd.RangeIndex(1, N + 1)
    r.to_csv(folder / "r.csv")
    frame(P, [".pred_<=50K", ".pred_>50K"]).assign(truth="?").to_csv(folder / "tidy.csv", index=False, sep=";")
    frame(P, ["V1", "V2"]).to_csv(folder / "unnamed.csv.gz", index=False)
    frame(P[:, 1:], CLASSES[1:]).to_csv(folder / "response.csv", index=False)
    frame(np.log(P)).to_csv(folder / "logits.csv", index=False)
    frame()[::-1].assign(patient=IDS[::-1]).to_csv(folder / "ids.csv", index=False)
    pd.DataFrame({"p": OWN}).to_csv(folder / "own.csv", index=False)
    pd.DataFrame({"p": np.log(OWN) - np.log1p(-OWN)}).to_csv(folder / "confidence.csv", index=False)
    np.save(folder / "p.npy", P)
    np.savez(folder / "p.npz", probabilities=P, other=np.arange(3))
    skops.io.dump(MODEL, folder / "m.skops")
    write_onnx(folder / "m.onnx")


FORMATS: dict[str, list[str]] = {
    "names.csv": [],
    "turned.parquet": [],
    "r.csv": [],
    "tidy.csv": [],
    "unnamed.csv.gz": [],
    "response.csv": [],
    "logits.csv": [],
    "ids.csv": ["--id", "patient"],
    "own.csv": ["--target-kind", "probabilities"],
    "confidence.csv": ["--target-kind", "confidence"],
    "p.npy": [],
    "p.npz": [],
    "m.skops": [],
    "m.onnx": [],
}
# Without names of classes, or with a column that is none.
NOTED = {"unnamed.csv.gz", "tidy.csv", "p.npy", "p.npz", "m.onnx"}
ABOUT = ["--recipe", "sklearn:LogisticRegression?C=10.0", "--attack", "rmia", "--workers", "1"]


@pytest.fixture
def audit(command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    # Starting a worker takes longer than all models.
    monkeypatch.setattr("plmia.training.train.LocalProcesses", lambda *_, **__: plmia.Inline())
    data = FEATURES.assign(income=CLASSES[Y], split=np.where(MEMBERS, "train", "test"), patient=IDS)
    data.to_csv("data.csv", index=False)

    def run(*options: str, folder: str = "run", references: int = 4) -> click.testing.Result:
        drop = [] if "--id" in options else ["--drop", "patient"]
        given = ["--data", "data.csv", "--label", "income", *drop, "--references", str(references), "-o", folder]
        return command("audit", *given, *ABOUT, *options)

    return run


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the time for pages that nobody looks at."""
    monkeypatch.setattr("plmia.reporting.write_report", lambda *_, **__: None)


@pytest.mark.usefixtures("without_report")
def test_every_format_gives_the_same_numbers(audit: Run, tmp_path: Path) -> None:
    write_targets(tmp_path)
    found = {}
    for name, options in FORMATS.items():
        result = audit("--target", name, "--members", "split", *options, folder=f"run-{name}", references=2)
        assert result.exit_code == 0, (name, result.output)
        store = SignalStore.open(tmp_path / f"run-{name}" / "signals")
        np.testing.assert_array_equal(store.design.matrix[0], MEMBERS)
        found[name] = store.read([0])[0, :, 0]
        np.testing.assert_allclose(found[name], np.log(OWN) - np.log1p(-OWN), rtol=1e-3, atol=1e-4, err_msg=name)
        metrics = json.loads((tmp_path / f"run-{name}" / "metrics.json").read_text())
        assert metrics["about"]["accuracy"]["target"]["members"] == pytest.approx(
            MODEL.score(FEATURES[MEMBERS], CLASSES[Y[MEMBERS]])
        )
        codes = {note["code"] for note in metrics["notes"]}
        assert ("target-columns" in codes) == (name in NOTED)
    plmia.audit(
        LogisticRegression(C=10.0),
        pd.read_csv("data.csv"),
        "income",
        drop=["patient"],
        target=frame(),
        members="split",
        references=2,
        attacks=["rmia"],
        engine=plmia.Inline(),
        progress=False,
        folder=tmp_path / "python",
    )
    scores = [plmia.SavedRun(tmp_path / name).scores("rmia", 0).score for name in ("python", "run-names.csv")]
    np.testing.assert_array_equal(*scores)


@pytest.mark.usefixtures("without_report")
def test_every_form_of_members_gives_the_same_members(audit: Run, tmp_path: Path) -> None:
    frame().to_csv("p.csv", index=False)
    np.save("m.npy", MEMBERS)
    np.savetxt("rows.txt", np.flatnonzero(MEMBERS), fmt="%d")
    pd.DataFrame({"train": MEMBERS.astype(int)}).to_csv("flags.csv", index=False)
    for members in ("split", "m.npy", "rows.txt", "flags.csv"):
        result = audit(
            "--target", "p.csv", "--members", members, "--drop", "split", folder=f"run-{members}", references=2
        )
        assert result.exit_code == 0, result.output
        matrix = SignalStore.open(tmp_path / f"run-{members}" / "signals").design.matrix
        np.testing.assert_array_equal(matrix[0], MEMBERS)


def test_accuracies_stand_side_by_side(audit: Run, tmp_path: Path) -> None:
    frame().to_csv("p.csv", index=False)
    result = audit("--target", "p.csv", "--members", "split", "--verbose")
    accuracy = json.loads((tmp_path / "run" / "metrics.json").read_text())["about"]["accuracy"]
    low, high = accuracy["references_lowest"], accuracy["references_highest"]
    assert low["members"] <= accuracy["references"]["members"] <= high["members"]
    for number in (accuracy["target"]["members"], low["non_members"], high["non_members"]):
        assert f"{100 * number:.1f}" in result.output
        assert f"{100 * number:.1f}" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("without_report")
def test_predictions_in_another_order_are_noticed(audit: Run) -> None:
    frame(P[ORDER]).to_csv("p.csv", index=False)
    result = audit("--target", "p.csv", "--members", "split", "--json", "--quiet")
    found = json.loads(result.stdout)
    severities = {note["code"]: note["severity"] for note in found["notes"]}
    assert severities["target-at-chance"] == severities["records-unlike-references"] == "caution"
    assert found["verdict"]["doubts"][0] == "target-at-chance"
    assert "most frequent class" in found["verdict"]["text"]


def test_inverted_members_stop_the_command_before_training(audit: Run, tmp_path: Path) -> None:
    split = np.where(MEMBERS, "test", "train")
    pd.read_csv("data.csv").assign(split=split).to_csv("data.csv", index=False)
    own = np.where(MEMBERS, 0.99, OWN * 0.6)
    pd.DataFrame({"p": own}).to_csv("p.csv", index=False)
    result = audit("--target", "p.csv", "--members", "split", "--target-kind", "probabilities")
    assert result.exit_code == 2, result.output
    assert "inverted" in result.output
    assert not (tmp_path / "run").exists()


HOSTILE: dict[str, tuple[list[str], list[str]]] = {
    "short.csv": ([], ["(159, 2)", "160 records"]),
    "missing.csv": ([], ["record 7", "'>50K'"]),
    "other.csv": ([], ["'yes'", "class '<=50K'"]),
    "own.csv": ([], ["one value per record", "--target-kind"]),
    "own.npz": (["--target-kind", "confidence"], ["[0, 1]"]),
    "pickled.npy": ([], ["pickled"]),
    "cut.parquet": ([], ["cut.parquet"]),
    "model.pkl": ([], ["run code"]),
    "model.txt": ([], ["csv, parquet"]),
    "nothing.csv": ([], ["no file nothing.csv"]),
    "foreign.skops": ([], ["Foreign"]),
    "names.csv": (["--id", "number"], ["'number'"]),
    "comma.csv": ([], ["'0,", "decimal point"]),
    "classes.csv": ([], ["'income'", "'<=50K'", "predicted classes", "probabilities"]),
    "swapped.csv": ([], ["swapped.csv", "wrong order", "'<=50K', '>50K'"]),
    "ids.csv": ([], ["'patient'", "--id patient"]),
    "shuffled.csv": ([], ["not in the order", "(first column)"]),
}


class Foreign(LogisticRegression):  # type: ignore[misc]
    """A type that skops does not trust."""


def write_hostile(folder: Path) -> None:
    frame().to_csv(folder / "names.csv", index=False)
    frame()[:-1].to_csv(folder / "short.csv", index=False)
    frame(np.where(np.outer(np.arange(N) == 7, [0, 1]), np.nan, P)).to_csv(folder / "missing.csv", index=False)
    frame(P, ["no", "yes"]).assign(extra=1.0).to_csv(folder / "other.csv", index=False)
    pd.DataFrame({"p": OWN}).to_csv(folder / "own.csv", index=False)
    np.savez(folder / "own.npz", p=OWN)
    np.save(folder / "pickled.npy", np.array([os.system], object), allow_pickle=True)
    frame().to_parquet(folder / "cut.parquet")
    (folder / "cut.parquet").write_bytes((folder / "cut.parquet").read_bytes()[:-30])
    (folder / "model.pkl").write_bytes(b"cos\nsystem\n(S'touch hacked'\ntR.")
    (folder / "model.txt").write_text("1")
    skops.io.dump(Foreign().fit(X, Y), folder / "foreign.skops")
    pd.DataFrame({"income": CLASSES[P.argmax(axis=1)]}).to_csv(folder / "classes.csv", index=False)
    frame(P, ["yes", "no"])[["no", "yes"]].to_csv(folder / "swapped.csv", index=False)
    frame().iloc[ORDER].to_csv(folder / "shuffled.csv")
    frame().assign(patient=IDS).iloc[ORDER].to_csv(folder / "ids.csv", index=False)
    frame().map(lambda p: f"{p:.3f}".replace(".", ",")).to_csv(folder / "comma.csv", index=False, sep=";")


def test_what_cannot_be_used_is_said_in_one_sentence(audit: Run, tmp_path: Path) -> None:
    write_hostile(tmp_path)
    for name, (options, facts) in HOSTILE.items():
        result = audit("--target", name, "--members", "split", *options)
        assert result.exit_code == 2, (name, result.output)
        for fact in facts:
            assert fact in result.output, (name, result.output)
        assert "Traceback" not in result.output
    for options, fact in (
        (["--target", "names.csv"], "--members"),
        (["--members", "split"], "--target"),
        (["--target", "names.csv", "--members", "age"], "flags"),
        (["--target", "names.csv", "--members", "nothing"], "'nothing'"),
        (["--target", "names.csv", "--members", "agee"], "did you mean 'age'"),
        (["--target", "names.csv", "--members", "income"], "'income' is named as"),
        (["--target", "names.csv", "--members", "split", "--id", "agee"], "did you mean 'age'"),
    ):
        result = audit(*options)
        assert result.exit_code == 2, result.output
        assert fact in result.output
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "hacked").exists()


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "model_from_r.py"
    assert len(example.read_text().splitlines()) <= 25
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("plmia.training.train.LocalProcesses", lambda *_, **__: plmia.Inline())
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.startswith("A leak was shown")
    assert (tmp_path / "probabilities.csv").read_text().startswith(",benign,malignant")
