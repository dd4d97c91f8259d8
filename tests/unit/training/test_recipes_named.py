"""Recipes by name: every form, every kind of value, and a hint for whatever is not known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import BaggingClassifier
from sklearn.naive_bayes import GaussianNB

from plmia.errors import RecipeError
from plmia.training.recipes.gbdt import GBDT
from plmia.training.recipes.named import _CLASSES, RECIPES, _options, parse_recipe, recipe_from_json
from plmia.training.recipes.scikit import Sklearn

OWN = "def train(X, y, seed): return 0\ndef query(model, X, y): return [[0.5, 0.5]] * len(X)\n"


def test_every_form_is_read(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "my recipe.py").write_text(OWN)
    texts = ["mlp", "wide-resnet", "gbdt", "sklearn:GaussianNB", f"function:{tmp_path}/my recipe.py"]
    recipes = [parse_recipe(text) for text in texts]
    assert [recipe.name for recipe in recipes] == ["mlp", "wide-resnet", "gbdt", "sklearn", "function"]
    for text, recipe in zip(texts, recipes, strict=True):
        assert parse_recipe(text) == recipe
        assert hash(parse_recipe(text)) == hash(recipe)


def test_options_are_set() -> None:
    assert parse_recipe("gbdt?depth=5&learning_rate=0.05") == GBDT(depth=5, learning_rate=0.05)
    assert parse_recipe("gbdt?") == parse_recipe("gbdt") == GBDT()
    forest = parse_recipe("sklearn:RandomForestClassifier?n_estimators=200&bootstrap=False")
    assert isinstance(forest, Sklearn)
    assert (forest.template.n_estimators, forest.template.bootstrap) == (200, False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("200", 200),
        ("-3", -3),
        ("0.1", 0.1),
        ("1e-3", 0.001),
        ("True", True),
        ("true", True),
        ("false", False),
        ("none", None),
        ("None", None),
        ("512,256", (512, 256)),
        ("(512,256)", (512, 256)),
        ("64,", (64,)),
        ("[1, 2]", [1, 2]),
        ("{'a': 1}", {"a": 1}),
        ("adam", "adam"),
        ("'adam'", "adam"),
        ("l2", "l2"),
        ("cuda:0", "cuda:0"),
        ("", ""),
        ("__import__('os')", "__import__('os')"),
        ("a=b", "a=b"),
    ],
)
def test_values_are_read_as_python_literals_or_text(text: str, value: Any) -> None:
    found = _options("", f"key={text}")
    assert found == {"key": value}
    assert type(found["key"]) is type(value)


def test_tuples_booleans_and_floats_reach_a_recipe() -> None:
    mlp = pytest.importorskip("plmia.training.recipes.mlp").MLP
    assert parse_recipe("mlp?widths=64,32&standardise=false&lr=1e-2&optimizer=sgd") == mlp(
        widths=(64, 32), standardise=False, lr=0.01, optimizer="sgd"
    )
    assert parse_recipe("mlp?widths=64").to_json() == mlp(widths=(64,)).to_json()
    # One learning rate is one recipe, however it is written.
    assert parse_recipe("mlp?lr=1").to_json() == parse_recipe("mlp?lr=1.0").to_json()
    assert repr(parse_recipe("mlp?lr=1")) == repr(parse_recipe("mlp?lr=1.0"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mpl", "no recipe 'mpl': did you mean 'mlp'?"),
        ("gdbt?depth=3", "did you mean 'gbdt'?"),
        ("wideresnet", "did you mean 'wide-resnet'?"),
        ("sklearn", "did you mean 'sklearn:'?"),
        ("LogisticRegression", "did you mean 'sklearn:LogisticRegression'?"),
        ("RandomForestClassifier?n_estimators=3", "did you mean 'sklearn:RandomForestClassifier'?"),
        ("own/mine.py", "did you mean 'function:own/mine.py'?"),
        ("function", "did you mean 'function:'?"),
        ("", f"known are {', '.join(RECIPES)}"),
        ("zzzz", "no recipe 'zzzz': known are "),
        ("gbdt?dept=3", "recipe 'gbdt' has no option 'dept': did you mean 'depth'?"),
        ("gbdt?zzz=3", "has no option 'zzz': it has rounds, learning_rate, subsample, depth, library"),
        ("gbdt?name=x", "has no option 'name'"),
        ("gbdt?depth", "'depth' in recipe 'gbdt?depth' is not key=value"),
        ("gbdt?=3", "'=3' in recipe"),
        ("gbdt?depth=3&depth=5", "option 'depth'"),
        ("gbdt?depth=deep", "option 'depth' of recipe 'gbdt' cannot be 'deep': write it like depth=3"),
        ("gbdt?depth=5.0", "option 'depth' of recipe 'gbdt' cannot be 5.0"),
        ("gbdt?depth=True", "option 'depth' of recipe 'gbdt' cannot be True"),
        ("gbdt?subsample=half", "cannot be 'half': write it like subsample=0.2"),
        ("gbdt?library=3", "cannot be 3: write it like library=lightgbm"),
        ("gbdt?depth=0", "gbdt needs rounds from 1 to"),
        ("function:mine.py?depth=3", "function:mine.py?depth=3"),
        ("function:", "there is no Python file ."),
        ("function:none.py", "there is no Python file none.py"),
        ("function:data.npz", "there is no Python file data.npz"),
    ],
)
def test_what_is_not_known_gets_a_hint(text: str, says: str) -> None:
    with pytest.raises(RecipeError) as error:
        parse_recipe(text)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["mlp?widths=wide", "mlp?epochs=1.5", "mlp?standardise=1", "wide-resnet?depth=deep"])
def test_wrong_values_of_torch_recipes_are_sentences_too(text: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(RecipeError, match="cannot be"):
        parse_recipe(text)


@pytest.mark.parametrize(
    "text",
    [
        "gbdt?depth=5&subsample=1",
        "sklearn:RandomForestClassifier?n_estimators=7&max_depth=None&criterion=entropy&bootstrap=False",
        "sklearn:MLPClassifier?hidden_layer_sizes=10,&tol=1e-3",
        "sklearn:KNeighborsClassifier?metric_params={'p': 3}",
        "sklearn:GaussianNB?priors=[0.25, 0.75]",
        "mlp?widths=8,4&lr=0.1&optimizer=sgd",
        "wide-resnet?depth=10&augment=True",
    ],
)
def test_a_recipe_in_json_is_the_recipe(text: str, tmp_path: Path) -> None:
    if not text.startswith(("gbdt", "sklearn")):
        pytest.importorskip("torch")
    recipe, path = parse_recipe(text), tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe.to_json()))
    again = parse_recipe(str(path))
    assert again == recipe
    assert type(again) is type(recipe)
    assert again.to_json() == recipe.to_json() == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "recipe.json"),
        ("[1]", "an object with the key 'recipe' is needed"),
        ('{"recipe": "function", "key": "0"}', "recipe 'function'"),
        ('{"recipe": "gbdt", "dept": 3}', "recipe 'gbdt' has no option 'dept': did you mean 'depth'?"),
        ('{"recipe": "gbdt", "depth": "3"}', "option 'depth' of recipe 'gbdt' cannot be '3'"),
        ('{"recipe": "sklearn"}', "recipe 'sklearn'"),
        (
            '{"recipe": "sklearn", "class": "mine.GaussianNB", "params": {}}',
            "mine.GaussianNB cannot be built from JSON",
        ),
        ('{"recipe": ["gbdt"]}', "gbdt"),
    ],
)
def test_json_that_is_no_recipe_is_refused(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text(content)
    with pytest.raises(RecipeError) as error:
        parse_recipe(str(tmp_path / "recipe.json"))
    assert says in str(error.value)


def test_what_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    """Not built as something else: a part that is an estimator, an array."""
    for template in (BaggingClassifier(GaussianNB()), GaussianNB(priors=np.ones(3) / 3)):
        with pytest.raises(RecipeError, match="JSON"):
            recipe_from_json(Sklearn(template).to_json())
    with pytest.raises(RecipeError, match="JSON"):
        parse_recipe(str(tmp_path / "none.json"))


def test_without_torch_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str, *rest: Any) -> Any:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("plmia.training.recipes.named.import_module", without)
    with pytest.raises(RecipeError, match=r"recipe 'mlp' needs torch .*: pip install .*\[torch\]'.*CPU"):
        parse_recipe("mlp")


def test_another_import_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_CLASSES, "mine", ("plmia.training.recipes.mine", "Mine"))
    with pytest.raises(RecipeError, match=r"recipe 'mine' .*'plmia.training.recipes.mine'") as error:
        parse_recipe("mine")
    assert "torch" not in str(error.value)
