"""The contract of a recipe: a value that trains models, one or a whole stack at once, and queries them.

Below the contract stands what recipes share: texts that identify them, and the files that the user's code reads, which
are declared and identified by their contents.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import sys
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ClassVar, Protocol

import numpy as np

from plmia.data.arrays import Array, BoolArray, FloatArray32, SignalKind
from plmia.data.dataset import LabelledData
from plmia.data.encoding import columns_of, features_encoding, is_plain
from plmia.data.files import open_regular
from plmia.errors import Note, RecipeError, require_members, shown
from plmia.training.views import VIEW_SETS, View, Views, default_views

# Limits of options: libraries store counts in 32 bits, and compute with multiples of rates in 32-bit floats.
LARGEST_COUNT, LARGEST_RATE = 2**31 - 1, 1e30


@dataclass(frozen=True)
class Trained:
    """Answers of one trained model, and how well it was trained."""

    conf: FloatArray32  # signals [points, views] of the kind `Recipe.signal`; not finite if the model diverged
    # Share of correct predictions on the points it trained on, in the first view; NaN if answers are no classes.
    train_accuracy: float = math.nan
    test_accuracy: float = math.nan  # likewise on the other points
    n_clipped: int = 0  # number of probabilities that were exactly 0 or 1
    losses: tuple[float, ...] = ()  # mean training loss of each epoch or round, if the recipe has them
    weights: dict[str, Array] | None = field(default=None, repr=False)  # arrays by name, if they were requested
    trouble: str = ""  # what is wrong with the answers of a model without a loss, if they are not finite
    n_renormalised: int = 0  # rows of probabilities that missed a sum of 1 by rounding and were renormalised
    sum_error: float = 0.0  # largest distance of those sums from 1
    undeclared: tuple[str, ...] = ()  # names of files that training was seen to read without declaring them
    operations: float | None = None  # `Recipe.operations` of this training; set by the caller of `Recipe.train`

    @property
    def diverged(self) -> bool:
        """Whether training ended in numbers that are not finite."""
        return not bool(np.isfinite(self.conf).all())


class Recipe(Protocol):
    """A way to train: a frozen dataclass that can be compared, saved as JSON and sent to another process.

    A class that inherits from `Recipe` defines ``name``, `to_json` and `train`, and inherits the other members. A class
    that does not inherit must define all of them.
    """

    name: ClassVar[str]

    @property
    def signal(self) -> SignalKind:
        """What `train` returns per record: "confidence", the logit-scaled confidence of the true label, or "signal".

        A "signal" is any finite number that is larger for members, on any scale. It needs no classes.
        """
        return "confidence"

    @property
    def kind(self) -> str:
        """Kind of the models. References of another kind than the target may not show what members change in it."""
        return self.name

    @property
    def stack(self) -> int:
        """Largest number of models that `train` takes at once."""
        return 1

    @property
    def keeps_weights(self) -> bool:
        """Whether `train` can return weights; without, `train` is never asked for them."""
        return False

    @property
    def augments(self) -> bool:
        """Whether training images are mirrored or shifted, so that querying with several views pays off."""
        return False

    @property
    def declared_files(self) -> tuple[DeclaredFile, ...]:
        """Files that training reads in addition to the data."""
        return ()

    @property
    def source(self) -> str:
        """Name of the code that trains, for messages about code that changed."""
        return self.name

    @property
    def description(self) -> str:
        """Text for people; for built-in recipes, the text that `parse_recipe` reads."""
        return self.name

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return everything that decides what is trained, with ``name`` as "recipe"; equal recipes give equal JSON."""

    def identified(self) -> Recipe:
        """Return the recipe with its identity, `to_json`, as it is now; called once when an audit starts.

        A recipe with code of the user must not take another identity when that code changes its own variables.
        """
        return self

    def check(self, data: LabelledData) -> None:
        """Raise `RecipeError` if this recipe does not fit ``data``."""
        del data

    def preprocessing(self, data: LabelledData) -> str:
        """Identity of what the recipe does to ``data`` beyond `to_json`; empty if that is nothing."""
        del data
        return ""

    def notes(self, data: LabelledData) -> list[Note]:
        """Return notes on how the recipe converts ``data`` before models see them."""
        del data
        return []

    def operations(self, data: LabelledData, n_members: int) -> float | None:
        """Floating-point operations of training one model on ``n_members`` of the records; None if unknown.

        A multiply-add counts as two. They are what `plmia plan` spends if the budget is a number of operations.
        """
        del data, n_members
        return None

    @abstractmethod
    def train(
        self, data: LabelledData, members: BoolArray, seeds: Sequence[int], views: Views, keep_weights: bool = False
    ) -> list[Trained]:
        """Train one model per row of ``members`` and query each on all records.

        The result for a row depends on its members and its seed alone (up to float rounding), not on the other models
        of the stack.

        Parameters
        ----------
        data : LabelledData
            All records.
        members : bool array [models, records]
            Records that each model trains on.
        seeds : sequence of int
            One per model: decides initialisation, order of batches and everything else random.
        views : sequence of View
            How records are shown to the trained model.
        keep_weights : bool
            Whether to return the weights; only requested if `keeps_weights`.
        """

    def query_given(self, model: Any, data: LabelledData, members: BoolArray, views: Views) -> Trained:
        """Query a model that existed before the audit as `train` queries its own; ``members`` [records] are its own.

        Raises `RecipeError` if this recipe cannot query such a model.
        """
        del data, members, views
        raise RecipeError(
            f"the recipe {self.name} cannot query a given model ({type(model).__name__}): give its predictions instead"
        )

    def signal_of_given(self, predicted: Array, data: LabelledData) -> Array:
        """Return the signal [points] of a model that existed before the audit, from the values [points] it predicted.

        Raises `RecipeError` if the signal of this recipe does not follow from predicted values.
        """
        del predicted, data
        raise RecipeError(
            f"the recipe {self.name} has a signal of its own, which does not follow from predicted values: compute it "
            "for the target, and give it with --target-kind signal (target_kind in Python)"
        )


@dataclass(frozen=True)
class BuiltInRecipe(Recipe):
    """A recipe whose options are the fields of a dataclass; options that do not ``compare`` do not affect training."""

    @property
    def description(self) -> str:
        """Name and options, as `parse_recipe` reads them; options at their default are left out."""
        given = {own.name: value for own in fields(self) if (value := getattr(self, own.name)) != own.default}
        options = (f"{key}={','.join(map(str, v)) if isinstance(v, tuple) else v}" for key, v in given.items())
        return f"{self.name}?{'&'.join(options)}" if given else self.name

    def to_json(self) -> dict[str, Any]:
        """All options that decide what is trained."""
        values = {own.name: getattr(self, own.name) for own in fields(self) if own.compare}
        return {"recipe": self.name} | {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def is_count(value: object) -> bool:
    """Whether the option of a recipe is a whole number from 1 to `LARGEST_COUNT`."""
    return isinstance(value, int) and 1 <= value <= LARGEST_COUNT


def check_recipe(recipe: Recipe, data: LabelledData) -> None:
    """Raise `RecipeError` if a recipe lacks members, or does not fit the data or their labels."""
    require_members(recipe, Recipe, RecipeError)
    if recipe.signal == "confidence" and data.labels is None:
        y = "X has no labels" if data.y is None else "y holds numbers to predict, not classes"
        named = data.is_table and data.y is None
        remedy = (
            "name the column of the labels, as in plmia.audit(model, X, 'COLUMN')" if named else "give y as classes"
        )
        raise RecipeError(
            f"{y}, but the recipe {recipe.name} needs the class of each record: {remedy}, or give a recipe with a "
            "signal of its own, such as a regressor"
        )
    recipe.check(data)


def network_operations(multiply_adds: int, n_records: int) -> float:
    """Operations of training a network on ``n_records`` records in all; each takes ``multiply_adds`` forward.

    A multiply-add is two operations. The backward pass takes twice as many as the forward pass: one product for the
    gradient of the inputs, one for that of the weights. Norms, activations and the optimizer are left out.
    """
    return 3.0 * 2.0 * multiply_adds * n_records


def check_recipes(recipe: Recipe, reference_recipe: Recipe | None, data: LabelledData) -> None:
    """Raise `RecipeError` unless the recipe of the target and that of its references, if it has one, fit together.

    Both must fit the data, and their signals must be of one kind, or they could not be compared.
    """
    check_recipe(recipe, data)
    if reference_recipe is None:
        return
    require_members(reference_recipe, Recipe, RecipeError)
    if reference_recipe.signal != recipe.signal:
        kinds = {"confidence": "the confidence of the true class", "signal": "a signal of its own"}
        raise RecipeError(
            f"the target's recipe {recipe.name} returns {kinds[recipe.signal]}, but the references' recipe "
            f"{reference_recipe.name} returns {kinds[reference_recipe.signal]}: give two classifiers or two regressors"
        )
    check_recipe(reference_recipe, data)


def unless_equal(reference_recipe: Recipe | None, recipe: Recipe) -> Recipe | None:
    """Return the recipe of the references, or None if it trains the same models as the target's."""
    same = reference_recipe is None or reference_recipe.to_json() == recipe.to_json()
    return None if same else reference_recipe


def accuracies(right: BoolArray, members: BoolArray) -> tuple[float, float]:
    """Accuracy on members and on non-members, from correct predictions [records] and membership [records]."""
    inside = float(right[members].mean()) if members.any() else float("nan")
    outside = float(right[~members].mean()) if not members.all() else float("nan")
    return inside, outside


def views_for(recipe: Recipe, data: LabelledData, reference_recipe: Recipe | None = None) -> tuple[View, ...]:
    """Views to query with, if the user chose none.

    A model that never saw shifted or mirrored images knows its members only as they are: on CIFAR-10, more views then
    cost every attack power. So there is one view, unless the recipe augments its images, and that of the references,
    if they have their own, does so, too.
    """
    augments = recipe.augments and (reference_recipe is None or reference_recipe.augments)
    return default_views(data) if augments else VIEW_SETS["one"]


def require_columns(recipe: str, data: LabelledData) -> None:
    """Raise `RecipeError` unless X is an array or a table."""
    if not (data.is_array or data.is_table):
        raise RecipeError(f"the recipe {recipe} takes arrays and tables, but X is {data.form}: give one of these")


def require_features(recipe: str, data: LabelledData) -> None:
    """Raise `RecipeError` unless X is an array or a table; images must not lack pixels, which are not encoded."""
    require_columns(recipe, data)
    if data.is_images and not is_plain(data):
        raise RecipeError(f"the recipe {recipe} takes no images with missing values (NaN): fill them in first")


def features_identity(data: LabelledData) -> str:
    """`Recipe.preprocessing` of a recipe that uses `LabelledData.features`."""
    encoding = features_encoding(data)
    return "" if encoding is None else encoding.identity


def features_steps(data: LabelledData) -> list[str]:
    """What `LabelledData.features` does to text, categories and missing values, in words for `float32_notes`."""
    encoding = features_encoding(data)
    steps = [] if encoding is None else encoding.steps(columns_of(data))
    return [f"prepares the columns, which is learned from all records ({'; '.join(steps)})"] if steps else []


def float32_notes(recipe: str, steps: Sequence[str], data: LabelledData) -> list[Note]:
    """Note how a recipe converts X to 32-bit floats, step by step; a caution if that merges distinct values."""
    how = " and ".join([", ".join(steps[:-1]), steps[-1]] if len(steps) > 1 else steps)
    merged = data.merged_by_float32
    if not merged:
        return [Note("recipe-preprocessing", "info", f"the recipe {recipe} {how}")]
    column, before, after = merged[0]
    more = f" (and values of {len(merged) - 1} more columns)" if len(merged) > 1 else ""
    text = (
        f"the recipe {recipe} {how}: {before:,} distinct values of column {column} become {after:,}{more}, so models "
        "cannot distinguish these records. Subtract a constant, or encode identifiers as categories"
    )
    return [Note("recipe-preprocessing", "caution", text)]


# Files that training reads in addition to the data --------------------------------------------------------------------

_opened = threading.local()


@dataclass(frozen=True)
class DeclaredFile:
    """A file or folder that a recipe reads."""

    name: str  # relative path as declared, or the last part of an absolute one: the location does not matter
    path: str  # absolute path when it was hashed
    digest: str  # SHA-256 of its contents


def declare_files(files: Any, base: Path, where: str) -> tuple[DeclaredFile, ...]:
    """Hash the contents of declared files, and of all files in declared folders.

    Relative paths start from ``base``; error messages say ``where`` the files are declared.
    """
    if isinstance(files, str | bytes | Path) or not isinstance(files, Iterable):
        raise RecipeError(f"{where} is {files!r}: give a list of paths, such as ['texts.npy']")
    found: dict[str, DeclaredFile] = {}
    for file in files:
        if not isinstance(file, str | Path) or not str(file):
            raise RecipeError(f"{where} holds {file!r}: give paths, such as 'texts.npy'")
        name = shown(Path(file).name if Path(file).is_absolute() else Path(file).as_posix())
        if name in found:
            raise RecipeError(f"{where} holds two files called {name}: give each once, by relative paths")
        path = (base / file).absolute()
        found[name] = DeclaredFile(name, str(path), _digest(path, f"{name} of {where}"))
    return tuple(found[name] for name in sorted(found))


def changed_files(files: Iterable[DeclaredFile], seen: dict[str, object]) -> list[str]:
    """Names of declared files whose contents changed.

    ``seen`` holds times and sizes at the last call and is updated; a file is hashed again only if these changed.
    """
    changed = []
    for file in files:
        marks = _marks(Path(file.path))
        if seen.get(file.name) != marks:
            if _digest(Path(file.path), file.name) != file.digest:
                changed.append(file.name)
            seen[file.name] = marks
    return changed


def _marks(path: Path) -> object:
    """Times and sizes of a file or of all files in a folder: they differ after a write."""
    found = []
    for inner in [path, *(path.rglob("*") if path.is_dir() else ())]:
        with contextlib.suppress(OSError):
            status = inner.stat()
            found.append((str(inner), status.st_mtime_ns, status.st_size))
    return sorted(found)


def files_json(files: Iterable[DeclaredFile]) -> dict[str, dict[str, str]]:
    """Part of a recipe's JSON: digests by name, empty without files."""
    digests = {file.name: file.digest for file in files}
    return {"files": digests} if digests else {}


def _digest(path: Path, what: str) -> str:
    """SHA-256 of a file, or of the names and contents of all files in a folder."""
    try:
        if not path.is_dir():
            return _of_file(path)
        sha = hashlib.sha256()
        for inner in sorted(inner.relative_to(path).as_posix() for inner in path.rglob("*") if inner.is_file()):
            sha.update(f"{_of_file(path / inner)} {inner}\n".encode(errors="surrogateescape"))
        return sha.hexdigest()
    except FileNotFoundError as error:
        raise RecipeError(f"{what} does not exist at {path}: correct the path, or leave it out") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecipeError(f"{what} cannot be read ({reason}): check {path} and its permissions") from error


def _of_file(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def noting_reads() -> Iterator[set[str]]:
    """Collect the absolute paths of data files that this thread opens for reading through Python.

    Files that libraries open in C (HDF5, Arrow) are missed. So is code, which is read on its first import only; see
    `imported_files`.
    """
    _install_hook()
    before, _opened.paths = getattr(_opened, "paths", None), set[str]()
    try:
        yield _opened.paths
    finally:
        _opened.paths = before


@functools.cache
def _install_hook() -> None:
    # Python cannot remove a hook again; this one does nothing unless `noting_reads` is active in the thread.
    sys.addaudithook(_note_read)


def _note_read(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open":
        return
    paths = getattr(_opened, "paths", None)
    if paths is not None and isinstance(arguments[0], str | bytes):
        path, flags = os.fsdecode(arguments[0]), arguments[2]
        reads = not isinstance(flags, int) or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) == 0
        if reads and not path.endswith((".py", ".pyc")):
            with contextlib.suppress(OSError):  # the working folder may be gone; the user's code must go on
                paths.add(str(Path(path).absolute()))


def imported_files(module: ModuleType) -> set[str]:
    """Absolute paths of the files of all modules that a module's names come from."""
    found = set()
    for value in vars(module).values():
        home = value if isinstance(value, ModuleType) else None
        if isinstance(value, type | FunctionType):
            home = sys.modules.get(value.__module__)
        file = getattr(home, "__file__", None)
        if isinstance(file, str) and home is not module:
            found.add(str(Path(file).absolute()))
    return found


def undeclared(paths: Iterable[str], declared: Iterable[DeclaredFile], base: Path) -> tuple[str, ...]:
    """Files among ``paths`` that a recipe read without declaring them: relative to ``base``, or by their names alone.

    Files of Python, its packages, plmia and the system are left out. So are hidden files, and temporary ones unless the
    recipe itself is temporary.
    """
    roots = [sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]), "/proc", "/sys", "/dev", "/etc", "/usr"]
    home = base.resolve()
    temporary = Path(tempfile.gettempdir()).resolve()
    if not home.is_relative_to(temporary):
        roots.append(str(temporary))
    ignored = [Path(root).resolve() for root in roots]
    known = [Path(file.path).resolve() for file in declared]
    found = set()
    for path in map(Path, paths):
        real = path.resolve()
        inside = real.relative_to(home) if real.is_relative_to(home) else real
        foreign = any(real.is_relative_to(root) for root in ignored) or "site-packages" in real.parts
        hidden = any(part.startswith(".") for part in inside.parts)
        if not (foreign or hidden or any(real.is_relative_to(entry) for entry in known)) and real.is_file():
            found.add(shown(real.name if inside.is_absolute() else inside.as_posix()))
    return tuple(sorted(found))
