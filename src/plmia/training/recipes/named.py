"""Recipes by name: ``mlp``, ``gbdt?depth=5``, ``sklearn:LogisticRegression?C=10``, ``function:mine.py``."""

from __future__ import annotations

import ast
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from plmia.data.files import read_regular
from plmia.errors import RecipeError, did_you_mean, install_hint, require_members
from plmia.training.recipes.recipe import Recipe

# Imported when named: torch and LightGBM are slow to import.
_CLASSES = {
    "mlp": ("plmia.training.recipes.mlp", "MLP"),
    "wide-resnet": ("plmia.training.recipes.wide_resnet", "WideResNet"),
    "gbdt": ("plmia.training.recipes.gbdt", "GBDT"),
}
# Packages that the modules of recipes import, and the extra of plmia that installs them.
_EXTRAS = {"torch": "torch", "lightgbm": "gbdt"}
# Longest value of an option, in characters.
_LONGEST_VALUE = 1000
_LARGEST_INTEGER = 2**63 - 1
RECIPES = {
    "mlp": "multi-layer perceptron, a whole stack of models at once (torch)",
    "wide-resnet": "Wide-ResNet for images (torch)",
    "gbdt": "gradient-boosted trees (LightGBM; library=xgboost)",
    "sklearn:ESTIMATOR": "any scikit-learn classifier with predict_proba, or regressor",
    "function:FILE.py": "your own train(X, y, seed) and query(model, X, y), or signal(model, X, y)",
}


def parse_recipe(text: str) -> Recipe:
    """Build a recipe from ``NAME?key=value&key=value``, ``sklearn:NAME?…``, ``function:FILE.py`` or a JSON file."""
    if text.endswith(".json"):
        return recipe_from_json(_read_json(Path(text)))
    head, _, options = text.partition("?")
    kind, colon, detail = head.partition(":")
    if kind == "function" and colon:
        if options:
            raise RecipeError(f"recipe {text!r} has options, but a file takes none: write them into the file")
        from plmia.training.recipes.function import Function

        return Function.from_file(Path(detail))
    params = _options(text, options)
    if kind == "sklearn" and colon:
        from plmia.training.recipes.scikit import Sklearn

        return Sklearn.named(detail, params).require_options()
    if head not in _CLASSES:
        from plmia.training.recipes.scikit import scikit_estimators

        known = did_you_mean(head, [*_CLASSES, "sklearn:", "function:"], f"known are {', '.join(RECIPES)}")
        if head.endswith(".py"):
            known = f"did you mean 'function:{head}'?"
        elif head in scikit_estimators():
            known = f"did you mean 'sklearn:{head}'?"
        raise RecipeError(f"there is no recipe {text!r}: {known}")
    return _build(head, params)


def as_recipe(model: Any, classes: bool = True) -> Recipe:
    """Recipe from a name, a scikit-learn estimator, a pair of functions, or a recipe, whose members are checked.

    Without ``classes``, the second function of a pair returns signals. The recipe keeps its present identity, even if
    the user's code changes its own variables later.
    """
    from plmia.training.recipes.scikit import Sklearn

    if isinstance(model, str):
        return parse_recipe(model)
    torch = sys.modules.get("torch")  # whoever has a module has imported it
    kind = model if isinstance(model, type) else type(model)
    if torch is not None and issubclass(kind, torch.nn.Module):
        raise RecipeError(f"{kind.__name__} is a PyTorch module: give plmia.Torch({kind.__name__}, epochs=…, lr=…)")
    if isinstance(model, type):
        raise RecipeError(f"{model.__name__} is a class: give an object, {model.__name__}()")
    if isinstance(model, tuple | list):
        return _of_functions(model, classes)
    if isinstance(model, FunctionType | partial):
        raise RecipeError("a way to train is a pair of functions: give (train, query), see plmia.Function")
    if not (hasattr(model, "to_json") or (hasattr(model, "train") and hasattr(model, "check"))):
        return Sklearn(model).identified()
    require_members(model, Recipe, RecipeError)
    return cast("Recipe", model).identified()


def _of_functions(functions: Sequence[Any], classes: bool) -> Recipe:
    from plmia.training.recipes.function import Function

    if len(functions) != 2 or not all(map(callable, functions)):
        names = ", ".join(type(function).__name__ for function in functions)
        raise RecipeError(f"({names}) is not a pair of functions: give (train, query), see plmia.Function")
    train, second = functions
    return Function.of(train, second) if classes else Function.of(train, signal=second)


def recipe_from_json(description: dict[str, Any]) -> Recipe:
    """Build the recipe that `Recipe.to_json` described."""
    params = dict(description)
    name = params.pop("recipe", None)
    if isinstance(name, str) and name in _CLASSES:
        return _build(name, {key: tuple(value) if isinstance(value, list) else value for key, value in params.items()})
    if name == "sklearn" and isinstance(params.get("params"), dict):
        from plmia.training.recipes.scikit import Sklearn

        values = {key: _value(str(text)) for key, text in params["params"].items() if "__" not in key}
        built = Sklearn.named(str(params.get("class", "")).rpartition(".")[2], values)
        if built.to_json() == description:
            for key, value in values.items():
                require_moderate(key, value)
            return built.require_options()
        raise RecipeError(
            f"{params.get('class')} cannot be built from JSON: not all of its parameters can be read back; build it in "
            "Python, or use the recipe `function`"
        )
    raise RecipeError(
        f"JSON cannot describe the recipe {name!r}, only {', '.join(_CLASSES)} and scikit-learn estimators: give "
        "function:FILE.py for functions of your own"
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        description = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(f"{path} is not a recipe in JSON ({error}): write the output of to_json()") from error
    if not isinstance(description, dict):
        raise RecipeError(f"{path} is not a recipe in JSON: an object with the key 'recipe' is needed")
    return description


def _build(name: str, params: dict[str, Any]) -> Recipe:
    module, kind = _CLASSES[name]
    try:
        recipe = getattr(import_module(module), kind)
    except ImportError as error:
        needed = (error.name or "").partition(".")[0]
        if needed in _EXTRAS:
            remedy = f"needs {needed} ({error}): {install_hint(_EXTRAS[needed])}"
        else:
            remedy = f"cannot be imported ({error}): install what is missing, or correct {module}"
        raise RecipeError(f"recipe {name!r} {remedy}") from error
    known = [field.name for field in fields(recipe)]
    for key in params:
        if key not in known:
            hint = did_you_mean(key, known, f"it has {', '.join(known)}")
            raise RecipeError(f"recipe {name!r} has no option {key!r}: {hint}")
    given = {f.name: _fitting(name, f.name, f.default, params[f.name]) for f in fields(recipe) if f.name in params}
    return cast("Recipe", recipe(**given))


def _fitting(recipe: str, key: str, default: Any, value: Any) -> Any:
    """Value with the type of the default, if it can be converted."""
    require_moderate(key, value)
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if isinstance(default, tuple) and type(value) is int:
        return (value,)
    if type(value) is not type(default):
        raise RecipeError(f"option {key!r} of recipe {recipe!r} cannot be {value!r}: write it like {key}={default}")
    return value


def _options(text: str, options: str) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for pair in filter(None, options.split("&")):
        key, equals, value = pair.partition("=")
        if not (key.isidentifier() and equals):
            raise RecipeError(f"{pair!r} in recipe {text!r} is not key=value: write NAME?key=value&key=value")
        if key in params:
            raise RecipeError(f"option {key!r} appears twice in recipe {text!r}: give it once")
        params[key] = _value(value)
        require_moderate(key, params[key])
    return params


def _value(text: str) -> Any:
    """Read a Python literal (``200``, ``0.1``, ``True``, ``512,256``), or else return the text itself."""
    if len(text) > _LONGEST_VALUE:  # deep nesting can crash Python's parser
        raise RecipeError(
            f"the value {text[:40]!r}... of a recipe's option has {len(text):,} characters, at most "
            f"{_LONGEST_VALUE:,} are allowed: give a shorter one, or write the recipe in a file"
        )
    try:
        return ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text, text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def require_moderate(key: str, value: Any) -> None:
    """Raise `RecipeError` if an option is, or holds, a number that libraries cannot store in 64 bits."""
    for number in value if isinstance(value, tuple | list) else (value,):
        if isinstance(number, float) and math.isinf(number):  # 1e400: infinity cannot be written
            raise RecipeError(f"option {key!r} of a recipe is larger than any 64-bit number: give a smaller one")
        if isinstance(number, int) and abs(number) > _LARGEST_INTEGER:
            digits = len(f"{abs(number)}")
            raise RecipeError(
                f"option {key!r} of a recipe is a whole number of {digits} digits, at most {_LARGEST_INTEGER} is "
                "allowed: give a smaller one"
            )
