"""scikit-learn's classifiers: by name or as objects, each model with its own random state, known by all that counts."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_digits
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from plmia.data.dataset import LabelledData
from plmia.errors import RecipeError
from plmia.training.engines import LocalProcesses
from plmia.training.recipes.named import parse_recipe
from plmia.training.recipes.scikit import Sklearn
from plmia.training.train import Job, Work, shared_data
from plmia.training.views import View

N = 90
X = np.random.default_rng(0).normal(np.arange(N)[:, None] % 3, 1.0, (N, 4))
DATA = LabelledData(X, np.arange(N) % 3)
MEMBERS = np.random.default_rng(1).permutation(N) < N // 2
BOTH = np.stack([MEMBERS, ~MEMBERS])


def conf_of(template: Any, seed: int = 3, views: tuple[View, ...] = (View(),)) -> Any:
    (trained,) = Sklearn(template).train(DATA, BOTH[:1], [seed], views)
    return trained.conf


# Training and queries ------------------------------------------------------------------------------------------------


def test_confidences_are_those_of_a_clone_trained_on_the_members() -> None:
    template = LogisticRegression(C=0.5)
    views = (View(), View(scale=0.3, seed=2))
    trained = Sklearn(template).train(DATA, BOTH, [1, 2], views)
    assert not hasattr(template, "classes_")
    for row, outcome in zip(BOTH, trained, strict=True):
        fitted = LogisticRegression(C=0.5).fit(X[row].astype(np.float32), DATA.y[row])
        assert outcome.conf.shape == (N, 2)
        assert outcome.conf.dtype == np.float32
        for column, view in enumerate(views):
            p = fitted.predict_proba(view.apply(X.astype(np.float32)))[np.arange(N), DATA.y]
            np.testing.assert_allclose(outcome.conf[:, column], np.log(p / (1 - p)), rtol=1e-3, atol=1e-3)
        right = fitted.predict(X.astype(np.float32)) == DATA.y
        assert outcome.train_accuracy == pytest.approx(right[row].mean())
        assert outcome.test_accuracy == pytest.approx(right[~row].mean())


@pytest.mark.parametrize(
    "template",
    [
        RandomForestClassifier(n_estimators=5),
        make_pipeline(StandardScaler(), BaggingClassifier(DecisionTreeClassifier(max_features=1), n_estimators=4)),
        VotingClassifier([("a", DecisionTreeClassifier(max_features=1)), ("b", GaussianNB())], voting="soft"),
        SGDClassifier(loss="log_loss", max_iter=5, tol=None),
    ],
    ids=["forest", "pipeline", "voting", "sgd"],
)
def test_the_seed_reaches_every_random_state(template: Any) -> None:
    first, again, other = conf_of(template, 5), conf_of(template, 5), conf_of(template, 6)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    # The template's own state, which all models would share, plays no part.
    states = [key for key in template.get_params() if key.endswith("random_state")]
    assert states
    template.set_params(**dict.fromkeys(states, 11))
    np.testing.assert_array_equal(first, conf_of(template, 5))


def test_seeds_of_63_bits_are_taken() -> None:
    assert np.isfinite(conf_of(RandomForestClassifier(n_estimators=3), 2**63 - 1)).all()


def test_votes_are_clipped_and_counted() -> None:
    (trained,) = Sklearn(RandomForestClassifier(n_estimators=5)).train(DATA, BOTH[:1], [0], (View(), View(scale=0.1)))
    assert 0 < trained.n_clipped <= 2 * N
    np.testing.assert_allclose(np.abs(trained.conf).max(), np.log(1 / 0.1), rtol=1e-5)


def test_a_class_that_was_never_seen_is_named() -> None:
    members = np.stack([MEMBERS & (DATA.y != 1)])
    with pytest.raises(RecipeError, match="class 1"):
        Sklearn(GaussianNB()).train(DATA, members, [0], (View(),))


def test_a_fitted_model_with_other_classes_is_refused() -> None:
    fitted = GaussianNB().fit(X, DATA.y - 1)
    with pytest.raises(RecipeError, match="class 2"):
        Sklearn.query(fitted, DATA, MEMBERS, (View(),))
    fitted = GaussianNB().fit(np.concatenate([X, X]), np.concatenate([DATA.y, DATA.y - 1]))
    with pytest.raises(RecipeError, match=r"-1 to 2.*0 to 2"):
        Sklearn.query(fitted, DATA, MEMBERS, (View(),))
    with pytest.raises(RecipeError, match=r"GaussianNB.*fitted"):
        Sklearn.query(GaussianNB(), DATA, MEMBERS, (View(),))


class Diverged(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    def fit(self, X: Any, y: Any) -> Diverged:
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X: Any) -> Any:
        return np.full((len(X), len(self.classes_)), np.nan)


def test_a_model_that_answers_no_numbers_has_diverged() -> None:
    (trained,) = Sklearn(Diverged()).train(DATA, BOTH[:1], [0], (View(),))
    assert trained.diverged
    assert "predict_proba returned" in trained.trouble


# X as it was given ---------------------------------------------------------------------------------------------------


class Recorder(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Notes what it gets; its answers differ where first values do."""

    seen: ClassVar[list[Any]] = []

    def fit(self, X: Any, y: Any) -> Recorder:
        self.classes_ = np.unique(y)
        self.seen.append(X)
        return self

    def predict_proba(self, X: Any) -> Any:
        self.seen.append(X)
        X = np.asarray(X)
        # Distinct values stay apart: half of the share of points whose first value is smaller.
        first = X.reshape(len(X), -1)[:, 0]
        share = (1 + np.searchsorted(np.unique(first), first)) / (2 + len(np.unique(first))) / 2
        return np.stack([share, 1 - share], axis=1)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(Recorder, "seen", found)
    return found


HALF = np.arange(40) % 4 < 2
GIVEN = {
    "ids as int64": (20_000_000 + np.arange(40))[:, None],
    "ids as float64": (20_000_000.0 + np.arange(40))[:, None],
    "floats of 32 bits": np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32),
    "bool": np.random.default_rng(0).random((40, 3)) < 0.5,
    "grey images": np.random.default_rng(0).integers(0, 256, (40, 4, 5)).astype(np.uint8),
    "colour images": np.random.default_rng(0).integers(0, 256, (40, 4, 5, 3)).astype(np.uint8),
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("wrap", [lambda r: r, lambda r: make_pipeline(FunctionTransformer(), r)], ids=["bare", "pipe"])
def test_an_estimator_gets_x_as_it_was_given(given: Any, wrap: Any, seen: list[Any]) -> None:
    data = LabelledData(given, np.arange(40) % 2)
    recipe = Sklearn(wrap(Recorder()))
    recipe.train(data, HALF[None], [0], (View(),))
    Sklearn.query(wrap(Recorder()).fit(given[HALF], data.y[HALF]), data, HALF, (View(),))
    assert len(seen) == 4
    for got, expected in zip(seen, [given[HALF], given, given[HALF], given], strict=True):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(got, expected)
    assert recipe.notes(data) == []


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_forty_eight_digit_ids_are_forty_values(dtype: Any, seen: list[Any]) -> None:
    data = LabelledData((20_000_000 + np.arange(40, dtype=dtype))[:, None], np.arange(40) % 2)
    assert len(np.unique(data.X.astype(np.float32))) == 21
    (trained,) = Sklearn(Recorder()).train(data, HALF[None], [0], (View(),))
    assert len(np.unique(np.abs(trained.conf))) == 40
    fitted = Recorder().fit(data.X[HALF], data.y[HALF])  # elsewhere
    np.testing.assert_array_equal(Sklearn.query(fitted, data, HALF, (View(),)).conf, trained.conf)


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_workers_get_x_as_it_was_given(given: Any, seen: list[Any], tmp_path: Path) -> None:
    """What a worker does with the folder that processes share, done here."""
    data = LabelledData(given, np.arange(40) % 2)
    job = Job((0,), (5,), np.packbits(HALF[None], axis=1))
    with shared_data(data, tmp_path, LocalProcesses(1)) as shared:
        assert isinstance(shared, Path)
        Work(shared, Sklearn(Recorder()), (View(),))(job)
    for got, expected in zip(seen, [given[HALF], given], strict=True):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "template", [DecisionTreeClassifier(), make_pipeline(StandardScaler(), LogisticRegression(max_iter=20))]
)
def test_images_are_flattened_for_what_takes_tables_and_that_is_said(template: Any) -> None:
    images = GIVEN["colour images"]
    data = LabelledData(images, np.arange(40) % 2)
    flat = LabelledData(images.reshape(40, -1), data.y)
    conf = [Sklearn(template).train(d, HALF[None], [0], (View(),))[0].conf for d in (data, flat)]
    np.testing.assert_array_equal(*conf)
    fitted = clone(template).fit(flat.X[HALF], data.y[HALF])  # undivided, on the scale of the references
    np.testing.assert_array_equal(*(Sklearn.query(fitted, d, HALF, (View(),)).conf for d in (data, flat)))
    (note,) = Sklearn(template).notes(data)
    assert (note.code, note.severity) == ("recipe-preprocessing", "info")
    assert "60 features" in note.text
    assert Sklearn(template).notes(flat) == []


def test_what_refuses_images_says_how_to_flatten_them() -> None:
    data = LabelledData(GIVEN["grey images"], np.arange(40) % 2)
    with pytest.raises(RecipeError, match=r"\(20, 4, 5\).*reshape"):
        Sklearn(make_pipeline(FunctionTransformer(), GaussianNB())).train(data, HALF[None], [0], (View(),))


def test_a_model_that_changes_x_changes_it_for_itself() -> None:
    table = GIVEN["floats of 32 bits"].astype(np.float64)
    data = LabelledData(table.copy(), np.arange(40) % 2)
    changing = make_pipeline(StandardScaler(copy=False), GaussianNB())
    first, second = Sklearn(changing).train(data, np.stack([HALF, HALF]), [0, 0], (View(), View(scale=0.1)))
    np.testing.assert_array_equal(data.X, table)
    np.testing.assert_array_equal(first.conf, second.conf)


def test_a_frame_reaches_the_estimator_as_a_frame(seen: list[Any]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": 20_000_000 + np.arange(40), "weight": np.linspace(0, 1, 40)})
    Sklearn(Recorder()).train(LabelledData(frame, np.arange(40) % 2), HALF[None], [0], (View(),))
    for got, expected in zip(seen, [frame[HALF], frame], strict=True):
        pandas.testing.assert_frame_equal(got, expected)


def test_noise_keeps_whole_numbers_apart(seen: list[Any]) -> None:
    data = LabelledData(GIVEN["ids as int64"], np.arange(40) % 2)
    Sklearn(Recorder()).train(data, HALF[None], [0], (View(), View(scale=0.1)))
    assert seen[2].dtype == np.float64
    assert len(np.unique(seen[2])) == 40


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_naive_bayes_on_digits_is_audited(dtype: Any) -> None:
    """In 32 bits its log-likelihoods of 1e10 leave probabilities that add up to 2 at a record or two."""
    digits, y = load_digits(return_X_y=True)
    data = LabelledData(digits.astype(dtype), y)
    members = np.random.default_rng(0).random((40, len(y))) < 0.5
    trained = Sklearn(GaussianNB()).train(data, members, range(40), (View(),))
    assert not any(model.diverged for model in trained)
    assert any(model.n_renormalised for model in trained) == (dtype == np.float32)
    assert all((model.sum_error > 0) == (model.n_renormalised > 0) for model in trained)


def test_declared_files_are_part_of_what_is_trained(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("1")
    first, again = (Sklearn(GaussianNB(), files=[file]) for _ in range(2))
    assert first == again
    assert first != Sklearn(GaussianNB())
    file.write_text("2")
    assert Sklearn(GaussianNB(), files=[file]) != first
    with pytest.raises(RecipeError, match=r"none\.csv"):
        Sklearn(GaussianNB(), files=[tmp_path / "none.csv"])


def test_weights_are_not_kept() -> None:
    with pytest.raises(RecipeError, match="--keep-models"):
        Sklearn(GaussianNB()).train(DATA, BOTH, [0, 1], (View(),), keep_weights=True)


# Names ---------------------------------------------------------------------------------------------------------------


def test_a_name_with_options_is_the_object() -> None:
    named = parse_recipe("sklearn:RandomForestClassifier?n_estimators=7&max_depth=None&criterion=entropy")
    assert named == Sklearn(RandomForestClassifier(n_estimators=7, criterion="entropy"))
    assert hash(named) == hash(Sklearn(RandomForestClassifier(n_estimators=7, criterion="entropy")))
    assert named != Sklearn(RandomForestClassifier(n_estimators=8, criterion="entropy"))
    assert named != "sklearn:RandomForestClassifier"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "sklearn:RandomForestClasifier",
            "no classifier or regressor 'RandomForestClasifier': did you mean 'RandomForestClassifier'",
        ),
        ("sklearn:qqqq", "no classifier or regressor 'qqqq': see scikit-learn's list"),
        ("sklearn:", "no classifier or regressor ''"),
        ("sklearn:LinearRegresion", "'LinearRegresion': did you mean 'LinearRegression'"),
        ("sklearn:KMeans", "no classifier or regressor 'KMeans'"),
        ("sklearn:RandomForestClassifier?n_estimator=7", "no option 'n_estimator': did you mean 'n_estimators'"),
        ("sklearn:GaussianNB?zzz=7", "no option 'zzz': it has priors, var_smoothing"),
        ("sklearn:VotingClassifier", "VotingClassifier cannot be made with {}: .*estimators"),
        ("sklearn:LinearSVC", "LinearSVC lacks predict_proba: .*probability=True"),
    ],
)
def test_wrong_names_get_a_hint(name: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        parse_recipe(name)


@pytest.mark.parametrize(
    ("template", "lacks"),
    [
        (LinearSVC(), "lacks predict_proba:"),
        (SGDClassifier(), "lacks predict_proba:"),
        (StandardScaler(), "lacks predict_proba:"),
        ("forest", "lacks fit and predict_proba and get_params:"),
        (None, "lacks fit and predict_proba and get_params:"),
    ],
)
def test_objects_without_probabilities_are_refused(template: Any, lacks: str) -> None:
    with pytest.raises(RecipeError, match=lacks):
        Sklearn(template)


# What tells recipes apart --------------------------------------------------------------------------------------------


def test_json_says_class_and_parameters() -> None:
    found = Sklearn(make_pipeline(StandardScaler(), LogisticRegression(C=2.0))).to_json()
    assert json.loads(json.dumps(found)) == found
    assert found["class"] == "sklearn.pipeline.Pipeline"
    assert found["params"]["logisticregression__C"] == "2.0"
    assert "sources" not in found


def test_arrays_count_to_the_last_element() -> None:
    """Their text leaves out the middle."""
    priors = np.full(3000, 1 / 3000)
    others = priors.copy()
    others[1500] = 0.5
    assert Sklearn(GaussianNB(priors=priors)) == Sklearn(GaussianNB(priors=priors.copy()))
    assert Sklearn(GaussianNB(priors=priors)) != Sklearn(GaussianNB(priors=others))


def test_random_states_do_not_count() -> None:
    a, b = RandomForestClassifier(random_state=1), RandomForestClassifier(random_state=np.random.RandomState(2))
    assert Sklearn(a) == Sklearn(b)
    assert Sklearn(make_pipeline(StandardScaler(), a)) == Sklearn(make_pipeline(StandardScaler(), b))
    assert Sklearn(make_pipeline(StandardScaler(), a)) != Sklearn(make_pipeline(a))
    a.set_params(max_depth=2)
    assert Sklearn(make_pipeline(StandardScaler(), a)) != Sklearn(make_pipeline(StandardScaler(), b))


@pytest.mark.parametrize(
    "make",
    [
        lambda f: KNeighborsClassifier(metric=f),
        lambda f: make_pipeline(FunctionTransformer(f), GaussianNB()),
        lambda f: make_pipeline(FunctionTransformer(abs, kw_args={"by": [f]}), GaussianNB()),
        lambda f: Listed([FunctionTransformer(f)]),
    ],
    ids=["metric", "deep", "in a dictionary", "in a list"],
)
def test_functions_in_parameters_are_known_by_their_code(make: Callable[[Any], Any]) -> None:
    def plus(k: Any) -> Any:
        return lambda *x: x[0] + k

    assert Sklearn(make(plus(1))) == Sklearn(make(plus(1)))
    assert Sklearn(make(plus(1))) != Sklearn(make(plus(2)))
    assert Sklearn(make(np.abs)) != Sklearn(make(np.sqrt))
    unknown = Sklearn(make(plus(threading.Lock())))
    assert unknown != unknown  # not the same twice
    audited = unknown.identified()
    assert audited == audited  # but the same during an audit
    assert audited != unknown.identified()
    (note,) = audited.notes(DATA)
    assert note.code == "models-not-reused"
    keyed = Sklearn(make(plus(threading.Lock())), key="mine")
    assert keyed == Sklearn(make(plus(threading.Lock())), key="mine")
    assert keyed.notes(DATA) == []


class Listed(GaussianNB):  # type: ignore[misc]
    """Estimators in a list, whose parameters `get_params` does not list."""

    def __init__(self, models: Any = ()) -> None:
        super().__init__()
        self.models = models


OWN = """
from sklearn.naive_bayes import GaussianNB

class Own(GaussianNB):
    def predict_proba(self, X):
        return super().predict_proba(X) ** {power}
"""


@pytest.fixture
def own_class(tmp_path: Path) -> Callable[[int], Any]:
    """Import the user's own class, as it stands in their file."""

    def load(power: int) -> Any:
        path = tmp_path / f"own{power}" / "own.py"
        path.parent.mkdir()
        path.write_text(OWN.format(power=power))
        spec = importlib.util.spec_from_file_location("own_of_test_scikit", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["own_of_test_scikit"] = module
        spec.loader.exec_module(module)
        return module.Own

    yield load  # type: ignore[misc]
    sys.modules.pop("own_of_test_scikit", None)


def test_a_class_of_ones_own_is_known_by_its_source(own_class: Any) -> None:
    """An edited class must not go on with models of the old one, also deep inside a pipeline."""
    texts = []
    for power in (1, 2):
        kind = own_class(power)
        texts.append([Sklearn(kind()).to_json(), Sklearn(make_pipeline(StandardScaler(), kind())).to_json()])
        assert [text["sources"].keys() for text in texts[-1]] == [{"own_of_test_scikit.Own"}] * 2
    assert texts[0][0] != texts[1][0]
    assert texts[0][1] != texts[1][1]
    assert texts[0][0]["params"] == texts[1][0]["params"]


def test_a_class_without_a_source_is_known_by_its_code() -> None:
    found = []
    for power in (1, 1, 2):
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(OWN.format(power=power), space)
        found.append(Sklearn(space["Own"]()))
    assert found[0] == found[1]
    assert found[0] != found[2]


class Flat(GaussianNB):  # type: ignore[misc]
    """Answers one probability a point."""

    def predict_proba(self, X: Any) -> Any:
        """Probabilities without classes."""
        return super().predict_proba(X)[:, 0]


@pytest.mark.parametrize("error", [BaseException("no"), type("Odd", (Exception,), {"__str__": lambda self: 1 / 0})()])
def test_whatever_a_model_raises_is_one_sentence(error: BaseException) -> None:
    class Raising(GaussianNB):
        def predict_proba(self, X: Any) -> Any:
            raise error

    data = LabelledData(np.zeros((30, 2)), np.arange(30) % 3)
    fitted = Raising().fit(np.eye(3)[:, :2], np.arange(3))
    with pytest.raises(RecipeError, match=f"predict_proba of Raising raised {type(error).__name__}"):
        Sklearn.query(fitted, data, np.arange(30) < 15, [View()])


@pytest.mark.parametrize(
    ("fitted", "says"),
    [
        (GaussianNB().fit(np.eye(3), np.arange(3)), "predict_proba of GaussianNB raised ValueError: X has 2 features"),
        (
            Flat().fit(np.eye(3)[:, :2], np.arange(3)),
            r"predict_proba.*\(30,\).*\[30, ",
        ),
    ],
)
def test_what_a_model_cannot_answer_is_said_in_one_sentence(fitted: Any, says: str) -> None:
    data = LabelledData(np.zeros((30, 2)), np.arange(30) % 3)
    with pytest.raises(RecipeError, match=says):
        Sklearn.query(fitted, data, np.arange(30) < 15, [View()])


def test_a_regressor_on_text_labels_is_refused_with_the_remedy() -> None:
    data = LabelledData(np.eye(4), np.array(["no", "yes", "no", "yes"]))
    with pytest.raises(RecipeError, match="'no', 'yes': use a classifier"):
        Sklearn(Ridge()).check(data)
