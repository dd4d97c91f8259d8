"""scikit-learn's classifiers: by name or as objects, each model with its own random state, known by all that counts."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from plmia.data import LabelledData
from plmia.errors import RecipeError
from plmia.recipes.named import parse_recipe
from plmia.recipes.scikit import Sklearn
from plmia.recipes.views import View

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
    with pytest.raises(RecipeError, match="never saw class 1, so it has no probability for it: give more points"):
        Sklearn(GaussianNB()).train(DATA, members, [0], (View(),))


def test_a_fitted_model_with_other_classes_is_refused() -> None:
    fitted = GaussianNB().fit(X, DATA.y - 1)
    with pytest.raises(RecipeError, match="never saw class 2"):
        Sklearn.query(fitted, DATA, MEMBERS, (View(),))
    fitted = GaussianNB().fit(np.concatenate([X, X]), np.concatenate([DATA.y, DATA.y - 1]))
    with pytest.raises(RecipeError, match="knows classes -1 to 2, the data 0 to 2: number them alike"):
        Sklearn.query(fitted, DATA, MEMBERS, (View(),))
    with pytest.raises(RecipeError, match="GaussianNB answers no probabilities, or was not fitted"):
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


def test_weights_are_not_kept() -> None:
    with pytest.raises(RecipeError, match="leave out --keep-models"):
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
            "no classifier 'RandomForestClasifier': did you mean 'RandomForestClassifier'",
        ),
        ("sklearn:qqqq", "no classifier 'qqqq': see scikit-learn's list"),
        ("sklearn:", "no classifier ''"),
        ("sklearn:LinearRegression", "no classifier 'LinearRegression': did you mean"),
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
    "template",
    [
        KNeighborsClassifier(metric=lambda a, b: abs(a - b).max()),
        make_pipeline(FunctionTransformer(lambda x: x + 1), GaussianNB()),
    ],
    ids=["metric", "deep"],
)
def test_parameters_without_a_stable_text_are_refused(template: Any) -> None:
    with pytest.raises(RecipeError, match=r"has no stable text \(<function.*use the recipe `function`"):
        Sklearn(template).to_json()


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


def test_a_class_without_a_source_is_refused() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(OWN.format(power=1), space)
    with pytest.raises(RecipeError, match=r"source of __main__.Own cannot be read.*use the recipe `function`"):
        Sklearn(space["Own"]()).to_json()


class Flat(GaussianNB):  # type: ignore[misc]
    """Answers one probability a point."""

    def predict_proba(self, X: Any) -> Any:
        """Probabilities without classes."""
        return super().predict_proba(X)[:, 0]


@pytest.mark.parametrize(
    ("fitted", "says"),
    [
        (GaussianNB().fit(np.eye(3), np.arange(3)), "predict_proba of GaussianNB raised, ValueError: X has 2 features"),
        (
            Flat().fit(np.eye(3)[:, :2], np.arange(3)),
            r"class probabilities have shape \(30,\), \[30, classes\] is needed",
        ),
    ],
)
def test_what_a_model_cannot_answer_is_said_in_one_sentence(fitted: Any, says: str) -> None:
    data = LabelledData(np.zeros((30, 2)), np.arange(30) % 3)
    with pytest.raises(RecipeError, match=says):
        Sklearn.query(fitted, data, np.arange(30) < 15, [View()])
