"""Models in ONNX and skops files: every form of input and output gives the same answers, hostile files are refused."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pandas as pd
import polars as pl
import pytest
import skops.io
from onnx import TensorProto, helper, numpy_helper
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.tree import DecisionTreeClassifier

from plmia.auditing.given_target import as_target
from plmia.auditing.model_files import OnnxModel, read_skops
from plmia.data.dataset import LabelledData
from plmia.errors import DataError, PlmiaError
from plmia.training.recipes.recipe import Recipe, Trained
from plmia.training.recipes.scikit import Sklearn
from plmia.training.views import View

N, F = 1500, 4  # more records than a batch of the runtime
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, F))
Y = RNG.integers(0, 3, N)
W, B = RNG.normal(size=(F, 3)).astype(np.float32), RNG.normal(size=3).astype(np.float32)
Z = X.astype(np.float32) @ W + B
CONF = Z[np.arange(N), Y] - np.log(np.where(np.arange(3) == Y[:, None], 0, np.exp(Z.astype(float))).sum(axis=1))
MEMBERS = np.arange(N) % 2 == 0


@dataclass(frozen=True)
class Plain(Recipe):
    """A recipe that trains nothing."""

    name: ClassVar[str] = "plain"

    def to_json(self) -> dict[str, Any]:
        return {"recipe": self.name}

    def train(self, *_: Any, **__: Any) -> list[Trained]:
        raise NotImplementedError


def ask(path: Path, data: LabelledData) -> Any:
    return OnnxModel(path).ask(data, MEMBERS[: data.n_points], (View(),), Plain())


def write(
    path: Path, nodes: list[Any], inputs: Any, outputs: Any, weights: dict[str, Any] | None = None, ml: bool = False
) -> Path:
    held = {"W": W, "B": B} | (weights or {})
    used = {name for node in nodes for name in node.input}
    starts = [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items() if name in used]
    graph = helper.make_graph(nodes, "g", inputs, outputs, starts)
    imports = [helper.make_opsetid("", 17), *([helper.make_opsetid("ai.onnx.ml", 1)] if ml else [])]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


def floats(name: str, *shape: Any) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


LINEAR = [helper.make_node("MatMul", ["x", "W"], ["xw"]), helper.make_node("Add", ["xw", "B"], ["z"])]
SOFTMAX = helper.make_node("Softmax", ["z"], ["p"], axis=1)
ARGMAX = helper.make_node("ArgMax", ["p"], ["label"], axis=1, keepdims=0)
LABEL = helper.make_tensor_value_info("label", TensorProto.INT64, [None])


def zipped(tmp_path: Path, **keys: Any) -> Path:
    """Write a model as scikit-learn's converter does: a label, and a list of maps from classes to probabilities."""
    first = keys.get("classlabels_strings", keys.get("classlabels_int64s"))
    kind = TensorProto.STRING if isinstance(first[0], str) else TensorProto.INT64
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(kind, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    node = helper.make_node("ZipMap", ["p"], ["output_probability"], domain="ai.onnx.ml", **keys)
    outputs = [LABEL, helper.make_value_info("output_probability", maps)]
    return write(tmp_path / "m.onnx", [*LINEAR, SOFTMAX, ARGMAX, node], [floats("x", None, F)], outputs, ml=True)


@pytest.mark.parametrize("output", ["z", "p", "both", "zipmap"])
def test_every_form_of_output_gives_the_same_confidences(output: str, tmp_path: Path) -> None:
    if output == "zipmap":
        path = zipped(tmp_path, classlabels_int64s=[0, 1, 2])
    else:
        outputs = {"z": [floats("z", None, 3)], "p": [LABEL, floats("p", None, 3)]}
        outputs["both"] = [floats("hidden", None, 3), floats("probabilities", None, 3)]
        nodes = [*LINEAR, SOFTMAX, ARGMAX]
        nodes += [helper.make_node("Identity", [a], [b]) for a, b in (("z", "hidden"), ("p", "probabilities"))]
        path = write(tmp_path / "m.onnx", nodes, [floats("x", None, F)], outputs[output])
    found = ask(path, LabelledData(X, Y))
    np.testing.assert_allclose(found.trained.conf[:, 0], CONF, rtol=1e-3, atol=1e-3)
    right = Z.argmax(axis=1) == Y
    assert found.trained.train_accuracy == pytest.approx(right[MEMBERS].mean())
    assert found.notes == ()


def test_the_values_of_a_regressor_become_its_signal(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["variable"])]
    path = write(tmp_path / "m.onnx", nodes, [floats("x", None, F)], [floats("variable", None, 1)], {"w": W[:, :1]})
    data = LabelledData(X, X[:, 0] + 100)
    found = OnnxModel(path).ask(data, MEMBERS, (View(),), Sklearn(Ridge())).trained
    np.testing.assert_allclose(found.conf[:, 0], -np.abs(X @ W[:, 0] - data.y), rtol=1e-5)
    assert np.isnan(found.train_accuracy)


def test_names_of_classes_in_the_model_are_matched(tmp_path: Path) -> None:
    names = np.array(["wolf", "ant", "bee"])
    path = zipped(tmp_path, classlabels_strings=names.tolist())
    found = ask(path, LabelledData(X, names[Y]))
    np.testing.assert_allclose(found.trained.conf[:, 0], CONF, rtol=1e-3, atol=1e-3)
    with pytest.raises(DataError, match="class 'cat'"):
        ask(path, LabelledData(X, np.array(["wolf", "ant", "cat"])[Y]))


@pytest.mark.parametrize("batch", [None, "N", 1, 7])
def test_a_fixed_batch_is_kept(batch: Any, tmp_path: Path) -> None:
    data = LabelledData(X[:100], Y[:100])
    path = write(tmp_path / "m.onnx", LINEAR, [floats("x", batch, F)], [floats("z", batch, 3)])
    np.testing.assert_allclose(ask(path, data).trained.conf[:, 0], CONF[:100], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("sigmoid", [True, False])
def test_one_value_per_record_is_the_second_of_two_classes(sigmoid: bool, tmp_path: Path) -> None:
    one = {"W": W[:, :1], "B": B[:1]}
    nodes = [*LINEAR, helper.make_node("Sigmoid", ["z"], ["p"])]
    path = write(tmp_path / "m.onnx", nodes, [floats("x", None, F)], [floats("p" if sigmoid else "z", None, 1)], one)
    y = Y % 2
    expected = Z[:, 0] * np.where(y == 1, 1, -1)
    np.testing.assert_allclose(ask(path, LabelledData(X, y)).trained.conf[:, 0], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("library", [pd, pl])
def test_columns_of_a_frame_are_inputs_of_the_same_name(library: Any, tmp_path: Path) -> None:
    names = ["age", "weight", "dose", "height"]
    nodes = [helper.make_node("Concat", names, ["x"], axis=1), *LINEAR]
    path = write(tmp_path / "m.onnx", nodes, [floats(name, None, 1) for name in names], [floats("z", None, 3)])
    frame = library.DataFrame({name: X[:, names.index(name)] for name in sorted(names)} | {"unused": Y})
    np.testing.assert_allclose(ask(path, LabelledData(frame, Y)).trained.conf[:, 0], CONF, rtol=1e-3, atol=1e-3)
    with pytest.raises(DataError, match=r"'dose'.*did you mean 'dosis'"):
        ask(path, LabelledData(pd.DataFrame(X, columns=["age", "weight", "dosis", "height"]), Y))
    with pytest.raises(DataError, match=r"4 inputs \(age"):
        ask(path, LabelledData(X, Y))
    whole = write(tmp_path / "w.onnx", LINEAR, [floats("x", None, F)], [floats("z", None, 3)])
    frame = library.DataFrame({name: X[:, k] for k, name in enumerate(names)})
    np.testing.assert_allclose(ask(whole, LabelledData(frame, Y)).trained.conf[:, 0], CONF, rtol=1e-3, atol=1e-3)
    frame = frame.assign(age="old") if library is pd else frame.with_columns(age=pl.lit("old"))
    with pytest.raises(DataError, match="'age' holds text"):
        ask(whole, LabelledData(frame, Y))


def test_images_with_channels_last_are_turned_for_a_model_with_channels_first(tmp_path: Path) -> None:
    images = RNG.normal(size=(60, 5, 4, 3)).astype(np.float32)
    kernel = RNG.normal(size=(60, 3)).astype(np.float32)
    nodes = [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "K"], ["z"])]
    path = write(tmp_path / "m.onnx", nodes, [floats("x", None, 3, 5, 4)], [floats("z", None, 3)], {"K": kernel})
    z = np.moveaxis(images, -1, 1).reshape(60, -1) @ kernel
    found = ask(path, LabelledData(images, Y[:60])).trained
    assert found.train_accuracy == pytest.approx((z.argmax(axis=1) == Y[:60])[MEMBERS[:60]].mean())
    for wrong, facts in ((images[:, :4], "[3, 5, 4]"), ((images > 0).astype(np.uint8), "scaled")):
        with pytest.raises(DataError) as error:
            ask(path, LabelledData(wrong, Y[:60]))
        assert facts in str(error.value)


def test_onnx_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    data = LabelledData(X, Y)
    path = tmp_path / "m.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(DataError, match="not an ONNX model"):
        OnnxModel(path)
    write(path, LINEAR, [floats("x", None, F)], [floats("z", None, 3)])
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="not an ONNX model"):
        OnnxModel(path)
    write(path, LINEAR, [floats("x", None, F)], [floats("z", None, 3), floats("xw", None, 3)])
    with pytest.raises(DataError, match=r"outputs z .*, xw"):
        OnnxModel(path)
    write(path, LINEAR, [floats("x", None, F)], [floats("z", None, 3)])
    with pytest.raises(DataError, match=r"\[4\].*\[2\]"):
        ask(path, LabelledData(X[:, :2], Y))
    with pytest.raises(DataError, match="4 classes"):
        ask(path, LabelledData(X, np.arange(N) % 4))
    assert ask(path, data).trained.conf.shape == (N, 1)


# skops ---------------------------------------------------------------------------------------------------------------


class Foreign(LogisticRegression):  # type: ignore[misc]
    """A type that skops does not know."""


def test_a_skops_file_is_a_fitted_estimator(tmp_path: Path) -> None:
    fitted = LogisticRegression().fit(X[MEMBERS], Y[MEMBERS])
    skops.io.dump(fitted, tmp_path / "m.skops")
    data = LabelledData(X, Y)
    given = [as_target(target, MEMBERS, data) for target in (str(tmp_path / "m.skops"), fitted)]
    first, second = (one.ask(data, (View(),), Plain()).trained for one in given if one is not None)
    np.testing.assert_array_equal(first.conf, second.conf)


def test_foreign_types_in_skops_files_are_refused_by_name(tmp_path: Path) -> None:
    skops.io.dump(Foreign().fit(X, Y), tmp_path / "m.skops")
    with pytest.raises(DataError, match=r"Foreign\).*trusted=\["):
        read_skops(tmp_path / "m.skops")
    skops.io.dump(DecisionTreeClassifier().fit(X, Y), tmp_path / "m.skops")
    with pytest.raises(DataError, match=r"sklearn.tree._tree.Tree"):
        read_skops(tmp_path / "m.skops")


def test_damaged_skops_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.skops"
    skops.io.dump(LogisticRegression().fit(X, Y), path)
    whole = path.read_bytes()
    for content in (b"", b"PK\x03\x04", whole[: len(whole) // 2], b"\x80\x04pickled"):
        path.write_bytes(content)
        with pytest.raises(PlmiaError, match="skops file"):
            read_skops(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("schema.json", "{}")
    with pytest.raises(PlmiaError, match="skops file"):
        read_skops(path)
