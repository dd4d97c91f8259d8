"""Models in files of other tools, read without running code of the file: skops and ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from plmia.auditing.predictions import Answers, Predictions
from plmia.data.arrays import Array, BoolArray, FloatArray
from plmia.data.dataset import LabelledData
from plmia.data.files import require_regular
from plmia.data.tables import Column, Table, is_frame
from plmia.data.user_code import lacks_memory
from plmia.errors import DataError, did_you_mean, install_hint
from plmia.training.recipes.recipe import Recipe
from plmia.training.views import Views

# Records that an ONNX model gets at once, unless it fixes their number.
_BATCH = 1024
_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}
_FLOATS = ("tensor(float)", "tensor(double)", "tensor(float16)")


def _require(package: str, path: Path) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise DataError(
            f"{path} needs {package.partition('.')[0]}, which is not installed: {install_hint('models')}"
        ) from error


def read_skops(path: Path) -> Any:
    """Read a fitted estimator that `skops.io.dump` wrote; types that skops does not trust are refused by name."""
    io = _require("skops.io", path)
    try:
        require_regular(path)
        unknown = io.get_untrusted_types(file=path)
        if not unknown:
            return io.load(path, trusted=[])
    except Exception as error:  # a damaged file raises errors of many classes
        if lacks_memory(error):
            raise
        raise DataError(
            f"{path} is damaged or not a skops file ({_first_line(error)}): write it again with skops.io.dump"
        ) from error
    raise DataError(
        f"{path} holds types that are not trusted and could run code ({', '.join(sorted(unknown)[:5])}): if you trust "
        f"them, load it in Python with skops.io.load({path.name!r}, trusted=[...]) and give the model as the target"
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


class OnnxModel:
    """A classifier or regressor in an ONNX file, which onnxruntime runs on the CPU.

    It takes X as one input [records, ...], or the columns of a data frame as inputs of the same names. It returns class
    probabilities or logits [records, classes], one value per record for class 1 of two or of a regressor, or a list of
    maps from classes to probabilities, as scikit-learn's converter writes (ZipMap).
    """

    def __init__(self, path: Path) -> None:
        runtime = _require("onnxruntime", path)
        options = runtime.SessionOptions()
        options.log_severity_level = 4  # its log would repeat the error
        try:
            require_regular(path)
            self._session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise DataError(
                f"{path} is damaged or not an ONNX model ({_first_line(error)}): export it again"
            ) from error
        self._path = path
        self._output = self._find_output()

    def _find_output(self) -> Any:
        """Find the output that holds class probabilities or logits."""
        outputs = self._session.get_outputs()
        maps = [output for output in outputs if output.type.startswith("seq(map(")]
        floats = [output for output in outputs if output.type in _FLOATS]
        named = ([output for output in floats if word in output.name.lower()] for word in ("prob", "logit"))
        for found in (maps, floats, *named):
            if len(found) == 1:
                return found[0]
        listed = ", ".join(f"{output.name} ({output.type})" for output in outputs)
        raise DataError(
            f"{self._path} has the outputs {listed}: exactly one must hold floats [records, classes], or be named "
            "probabilities or logits; export it so"
        )

    def ask(self, data: LabelledData, members: BoolArray, views: Views, recipe: Recipe) -> Answers:
        """Run the model on all records and views; see `plmia.auditing.given_target.Source`."""
        found = [self._run(view.shown(data)) for view in views]
        values = np.stack([values for values, _ in found], axis=1)
        if values.shape[2] == 1 and recipe.signal == "confidence":
            inside = values.min() >= 0 and values.max() <= 1
            values = np.concatenate([1 - values if inside else np.zeros_like(values), values], axis=2)
        return Predictions(values, names=found[0][1], source=str(self._path)).ask(data, members, views, recipe)

    def _run(self, rows: Any) -> tuple[FloatArray, Sequence[str] | None]:
        """Answers [records, classes], and the names of the classes if the model tells them."""
        inputs = self._inputs(rows)
        n, fixed = len(next(iter(inputs.values()))), self._session.get_inputs()[0].shape[0]
        batch = fixed if isinstance(fixed, int) and fixed > 0 else _BATCH
        found: list[Any] = []
        for start in range(0, n, batch):
            # The last batch is filled up with the first records, whose answers are dropped.
            chosen = np.arange(start, start + batch) % n if batch == fixed else np.arange(start, min(start + batch, n))
            try:
                found.extend(self._session.run([self._output.name], {k: v[chosen] for k, v in inputs.items()})[0])
            except Exception as error:
                if lacks_memory(error):
                    raise
                raise DataError(f"{self._path} cannot be run on the data ({_first_line(error)})") from error
        return self._by_class(found[:n])

    def _by_class(self, found: list[Any]) -> tuple[FloatArray, Sequence[str] | None]:
        if isinstance(found[0], dict):
            names = list(found[0])
            return np.array([[row[name] for name in names] for row in found], np.float64), [str(name) for name in names]
        return np.asarray(found, np.float64).reshape(len(found), -1), None

    def _inputs(self, rows: Any) -> dict[str, Array]:
        """Inputs of the model by name, each with records along its first axis."""
        inputs = self._session.get_inputs()
        if not is_frame(rows):
            if len(inputs) > 1:
                raise DataError(
                    f"{self._path} has {len(inputs)} inputs ({', '.join(one.name for one in inputs[:5])}), but X is "
                    "one array: give X as a data frame with a column for each"
                )
            return {inputs[0].name: self._fitting(inputs[0], np.asarray(rows))}
        columns = {column.name: column for column in Table(rows).columns}
        if len(inputs) == 1 and inputs[0].name not in columns:
            table = np.stack([self._numbers(inputs[0], column) for column in columns.values()], axis=1)
            return {inputs[0].name: self._fitting(inputs[0], table)}
        for one in inputs:
            if one.name not in columns:
                hint = did_you_mean(one.name, columns)
                raise DataError(f"{self._path} needs the column {one.name!r}, which the data lack: {hint}")
        return {one.name: self._numbers(one, columns[one.name])[:, None] for one in inputs}

    def _numbers(self, one: Any, column: Column) -> Array:
        """Values of a column in the type of an input."""
        if one.type == "tensor(string)" and column.kind == "category":
            return np.array([*column.levels, ""], object)[column.values]  # a missing text is an empty one
        if column.kind == "category":
            raise DataError(
                f"{self._path} takes {one.type} for its input {one.name!r}, but column {column.name!r} holds text: "
                "encode it as for the model"
            )
        return column.values.astype(_TYPES[one.type])

    def _fitting(self, one: Any, X: Array) -> Array:
        """X in the shape and type of an input; images with channels last are turned for a model with channels first."""
        shape, kind = one.shape[1:], _TYPES.get(one.type)
        if kind is None or (X.dtype == np.uint8 and X.ndim > 2 and one.type in _FLOATS):
            raise DataError(
                f"{self._path} takes {one.type} for its input {one.name!r}, but X is {X.dtype}: give X as the model "
                "takes it (images as floats, scaled as in its training)"
            )
        forms = [X, X.reshape(len(X), -1), *([np.moveaxis(X, -1, 1)] if X.ndim == 4 else [X[:, None]])]
        for form in forms:
            sizes = zip(shape, form.shape[1:], strict=False)
            if form.ndim == len(one.shape) and all(not isinstance(size, int) or size == n for size, n in sizes):
                return form.astype(kind, copy=False)
        raise DataError(
            f"{self._path} takes records of shape {shape} as its input {one.name!r}, but those of X have "
            f"{list(X.shape[1:])}: give X as the model takes it"
        )
