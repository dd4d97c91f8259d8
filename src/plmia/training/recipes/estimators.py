"""What a scikit-learn estimator takes and returns, as far as its class and parameters tell."""

from __future__ import annotations

from typing import Any

from plmia.data.dataset import LabelledData
from plmia.data.encoding import Encoding, columns_of, is_plain

# Packages of scikit-learn whose estimators depend on the scale of the numbers.
_SCALED = {
    "linear_model",
    "svm",
    "neighbors",
    "neural_network",
    "gaussian_process",
    "kernel_ridge",
    "cross_decomposition",
}
# Most categories per column of histogram-based trees: one bin stays for missing ones.
_BINS = 255


def parts_of(model: Any) -> list[Any]:
    """The estimator and all estimators in its parameters."""
    inner = model.get_params(deep=True).values() if hasattr(model, "get_params") else ()
    return [model, *(part for part in inner if hasattr(part, "get_params") and not isinstance(part, type))]


def is_regressor(model: Any) -> bool:
    """Whether an estimator predicts numbers instead of classes."""
    if hasattr(model, "predict_proba") or not hasattr(model, "predict"):
        return False
    import sklearn.base

    try:
        return bool(sklearn.base.is_regressor(model))
    except AttributeError:  # not of scikit-learn, and without tags
        return getattr(model, "_estimator_type", None) == "regressor"


def takes_images(model: Any) -> bool:
    """Whether an estimator gets X of more than two dimensions unchanged.

    Estimators that consist of scikit-learn's own parts take tables, except for the two parts below. All others may
    take images, so they get them.
    """
    from sklearn.feature_extraction.image import PatchExtractor
    from sklearn.preprocessing import FunctionTransformer

    return any(
        not _of_sklearn(part) or isinstance(part, FunctionTransformer | PatchExtractor) for part in parts_of(model)
    )


def default_encoding(model: Any, data: LabelledData) -> Encoding | None:
    """Default preprocessing of the data for an estimator; None if it gets them as they are.

    That is so for complete numbers, for numbers with missing values if the estimator takes these, and for every
    estimator with preprocessing or code of the user's.
    """
    if is_plain(data) or not all(map(_only_predicts, parts_of(model))):
        return None
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    missing_too = _takes_missing(model)
    if missing_too and data.is_array:
        return None
    if isinstance(model, HistGradientBoostingClassifier | HistGradientBoostingRegressor):
        if model.categorical_features != "from_dtype" and model.categorical_features is not None:
            return None  # the user chose them
        return Encoding(impute=False, scale=False, categories="native", max_categories=min(_BINS, model.max_bins) - 1)
    scale = any(type(part).__module__.split(".")[1] in _SCALED for part in parts_of(model))
    return Encoding(impute=not missing_too, scale=scale)


def with_native_categories(model: Any, n_features: int, n_native: int) -> Any:
    """The estimator, told that its last columns are categories, if there are any."""
    return model.set_params(categorical_features=list(range(n_features - n_native, n_features))) if n_native else model


def encoding_note(model: Any, data: LabelledData) -> str:
    """Sentence on what the default preprocessing does; empty if there is none."""
    encoding = default_encoding(model, data)
    steps = [] if encoding is None else encoding.steps(columns_of(data))
    if not steps:
        return ""
    return (
        f"{type(model).__name__} has no preprocessing of its own, so plmia prepares the columns: {'; '.join(steps)}. "
        "Each model learns this from its own training records"
    )


def _of_sklearn(part: Any) -> bool:
    return type(part).__module__.startswith("sklearn.")


def _only_predicts(part: Any) -> bool:
    """Whether a part is a predictor of scikit-learn: neither a pipeline nor a transformer."""
    return _of_sklearn(part) and hasattr(part, "predict") and not hasattr(part, "steps")


def _takes_missing(model: Any) -> bool:
    try:
        from sklearn.utils import get_tags
    except ImportError:  # before version 1.6
        return bool(model._get_tags()["allow_nan"])
    return bool(get_tags(model).input_tags.allow_nan)
