"""Default preprocessing of tables and of missing values, made of scikit-learn's own encoders.

For estimators that take complete numbers only, where the user gave no preprocessing. Columns are read by `Table`, so a
table gives the same numbers in every library. Dates count in days.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from plmia.data.arrays import Array, BoolArray, FloatArray, IntArray
from plmia.data.dataset import LabelledData

_SECONDS_PER_DAY = 86400.0


@dataclass(frozen=True)
class Columns:
    """Columns of a table or of an array, by what an encoder does with them."""

    numbers: FloatArray  # [records, columns], NaN where missing; booleans are 0 and 1, dates are days since 1970
    categories: IntArray  # [records, columns]: number of the category, -1 where missing
    has_dates: bool = False  # whether some numbers are dates

    def rows(self, chosen: BoolArray) -> Columns:
        """Some of the records."""
        return replace(self, numbers=self.numbers[chosen], categories=self.categories[chosen])

    @property
    def has_missing(self) -> bool:
        """Whether a number is missing."""
        return bool(np.isnan(self.numbers).any())


@functools.lru_cache(maxsize=1)
def columns_of(data: LabelledData) -> Columns:
    """Columns of a table, or of an array [records, features]; kept for the next call with the same data."""
    if not data.is_table:
        return array_columns(data.X)
    units = {"date": _SECONDS_PER_DAY}
    numbers = [column.values / units.get(column.kind, 1.0) for column in data.X.columns if column.kind != "category"]
    codes = [column.values for column in data.X.columns if column.kind == "category"]
    return Columns(
        _side_by_side(numbers, data.n_points, np.float64),
        _side_by_side(codes, data.n_points, np.intp),
        "date" in data.X.kinds,
    )


def array_columns(X: Array) -> Columns:
    """Columns of an array [records, ...] of numbers."""
    return Columns(X.reshape(len(X), -1).astype(np.float64), np.empty((len(X), 0), np.intp))


def _side_by_side(columns: Sequence[Any], n: int, dtype: type) -> Any:
    return np.stack(columns, axis=1).astype(dtype) if columns else np.empty((n, 0), dtype)


@dataclass(frozen=True)
class Encoding:
    """How columns become features.

    Parameters
    ----------
    impute : bool
        Replace missing numbers by the median of their column, and add a column that marks them.
    scale : bool
        Scale numbers to mean 0 and variance 1.
    categories : {"one-hot", "native"}
        One column of 0 and 1 per category; or one column of whole numbers, for models that take categories. A missing
        category is a category of its own, or NaN. One that did not occur counts as rare if others are, else as none.
    max_categories : int
        Largest number of categories per column; the rarest share one.
    """

    impute: bool = True
    scale: bool = True
    categories: Literal["one-hot", "native"] = "one-hot"
    max_categories: int = 32

    @property
    def identity(self) -> str:
        """Text that distinguishes encodings with different results."""
        return f"impute={self.impute} scale={self.scale} {self.categories}={self.max_categories}"

    def steps(self, columns: Columns) -> list[str]:
        """What is done to these columns, in words for a note."""
        steps = ["dates become days since 1970"] * columns.has_dates
        if columns.has_missing and self.impute:
            steps.append("missing numbers are replaced by the median of their column and marked in an extra column")
        elif columns.has_missing:
            steps.append("missing numbers stay missing (NaN), which the model takes")
        if columns.numbers.shape[1] and self.scale:
            steps.append("numbers are scaled to mean 0 and variance 1")
        if columns.categories.shape[1]:
            most = f"at most {self.max_categories} per column, the rarest together"
            words = "one-hot" if self.categories == "one-hot" else "as native categories"
            steps.append(f"text and categories are encoded {words} ({most})")
        return steps

    def fit(self, columns: Columns) -> FittedEncoding:
        """Learn medians, scales and categories from some records."""
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

        steps: list[Any] = [
            SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
        ] * self.impute
        steps += [StandardScaler()] * self.scale
        if self.categories == "one-hot":
            unknown = {"handle_unknown": "infrequent_if_exist", "sparse_output": False}
            categories = OneHotEncoder(max_categories=self.max_categories, **unknown)
        else:
            unknown = {"handle_unknown": "use_encoded_value", "unknown_value": np.nan}
            categories = OrdinalEncoder(max_categories=self.max_categories, **unknown)
        fitted = FittedEncoding(
            make_pipeline(*steps).fit(columns.numbers) if steps and columns.numbers.shape[1] else None,
            categories.fit(self.given(columns)) if columns.categories.shape[1] else None,
            self,
        )
        return replace(fitted, empty=np.asarray(np.isnan(fitted(columns)).all(axis=0)))

    def given(self, columns: Columns) -> Any:
        """Categories for the encoder; NaN where missing for a model that takes categories."""
        if self.categories == "one-hot":
            return columns.categories
        return np.where(columns.categories < 0, np.nan, columns.categories)


@dataclass(frozen=True)
class FittedEncoding:
    """An encoding that has learned from some records."""

    numbers: Any = field(repr=False)
    categories: Any = field(repr=False)
    encoding: Encoding
    empty: BoolArray | None = None  # [features]: those without any value, which become 0: some models fail on them

    def __call__(self, columns: Columns) -> FloatArray:
        """Features [records, features]: those of the numbers first."""
        found = [columns.numbers if self.numbers is None else self.numbers.transform(columns.numbers)]
        if self.categories is not None:
            found.append(self.categories.transform(self.encoding.given(columns)))
        features = np.hstack(found)
        if self.empty is not None and self.empty.any():
            features[:, self.empty] = 0.0
        return features

    @property
    def n_native(self) -> int:
        """Number of columns, the last ones, that hold categories for the model."""
        return self.categories.n_features_in_ if self.categories and self.encoding.categories == "native" else 0


def is_plain(data: LabelledData) -> bool:
    """Whether X holds complete numbers (or booleans) only, which any estimator takes as they are."""
    if data.is_table:
        kinds_are_plain = all(column.kind in ("number", "boolean") for column in data.X.columns)
        return kinds_are_plain and not any(column.missing.any() for column in data.X.columns)
    return not data.is_array or data.X.dtype.kind != "f" or not np.isnan(data.X).any()


def features_encoding(data: LabelledData) -> Encoding | None:
    """Encoding of `LabelledData.features`, which learns from all records; None if X holds complete numbers only.

    Images stay as they are, too.
    """
    return None if data.is_images or is_plain(data) else Encoding(scale=False)
