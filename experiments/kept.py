"""Compressed whole signals of networks: about 0.6 MB per model, instead of 1.8 MB as 16-bit floats.

    python -m experiments.kept add NAME STACKS DATA     keep the models of a folder of stacks
    python -m experiments.kept write NAME FOLDER        write FOLDER/NAME.npz for plmia reproduce --signals FOLDER
    python -m experiments.kept check NAME NPY           compare attacks on model 0 with those on 16-bit signals

NAME is one of the whole signals, kept in the folder `signals/NAME`. ``add`` recomputes the store key from the data and
refuses stacks of other data, another recipe or another seed. Models that are already kept do not change.

Signals are rounded to multiples of 1/8. Each view is predicted from the preceding views in integer arithmetic, and
the residuals are compressed by LZMA. The spread between models is about 20 times as large as the rounding step.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plmia.attacks.attack import ATTACKS
from plmia.data.designs import MembershipDesign, audit_design
from plmia.data.npz import load_npz
from plmia.errors import SignalsError
from plmia.evaluation.metrics import evaluate
from plmia.evaluation.targets import Setup, attack_targets
from plmia.signals.signals import Signals
from plmia.signals.store import SignalStore, read_stacks, store_key
from plmia.training.recipes.named import parse_recipe
from plmia.training.train import audit_about
from plmia.training.views import VIEW_SETS

from .script import end, say
from .setting import SIGNALS
from .whole import WHOLE

STEP = 0.125
SEED = 0
# Prediction weights are multiples of 2^-8.
BITS = 8
VIEWS = VIEW_SETS["rmia18"]
# Literals of residuals do not depend on their neighbours.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 0, "pb": 0}]
_NAMES = ("codes", "weights", "membership", "step")

FloatArray = npt.NDArray[np.floating]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


# One model ------------------------------------------------------------------------------------------------------------


def write_model(path: Path, values: FloatArray, members: BoolArray, step: float = STEP) -> str:
    """Write the signals [points, views] of one model and its membership [points]; return the file's SHA-256."""
    whole = np.rint(values.astype(np.float64) / step).astype(np.int64)
    left, weights = np.empty_like(whole), np.zeros((whole.shape[1], whole.shape[1] + 1), np.int64)
    for view in range(whole.shape[1]):
        before = np.column_stack([whole[:, :view], np.ones(len(whole), np.int64)])
        best = np.linalg.lstsq(before.astype(np.float64), whole[:, view].astype(np.float64), rcond=None)[0]
        weights[view, [*range(view), -1]] = np.rint(best * 2**BITS).astype(np.int64)
        left[:, view] = whole[:, view] - _predicted(whole, weights, view)
    if np.abs(left).max() >= 2**15:
        raise SignalsError(f"{path} cannot hold signals of up to {np.abs(values).max():.3g}: take a larger step")
    # 0, -1, 1, -2, ... become 0, 1, 2, 3, ...; low bytes of all views come first, since nearly all high bytes are 0.
    small = ((left << 1) ^ (left >> 63)).astype("<u2").T
    planes = np.stack([small & 0xFF, small >> 8]).astype(np.uint8)
    codes = lzma.compress(planes.tobytes(), lzma.FORMAT_XZ, filters=_FILTERS)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez(
            file,
            codes=np.frombuffer(codes, np.uint8),
            weights=weights.astype("<i4"),
            membership=np.packbits(members),
            step=np.array(step),
        )
    return _digest(path)


def read_model(path: Path, n_points: int, n_views: int, sha256: str) -> tuple[npt.NDArray[np.float32], BoolArray]:
    """Read the signals [points, views] and the membership [points] of one model; a damaged file is an error."""
    if path.exists() and _digest(path) != sha256:
        raise SignalsError(f"{path} is damaged (its SHA-256 is not the one in about.json): copy it again")
    arrays = load_npz(path, _NAMES, "a kept model", SignalsError)
    shapes = {"weights": (n_views, n_views + 1), "membership": (-(-n_points // 8),), "step": ()}
    if arrays.keys() != set(_NAMES) or any(arrays[name].shape != shape for name, shape in shapes.items()):
        found = {name: array.shape for name, array in arrays.items()}
        raise SignalsError(f"{path} is not a model of {n_points} points and {n_views} views ({found}): copy it again")
    planes = _decompressed(path, arrays["codes"].astype(np.uint8).tobytes(), 2 * n_views * n_points)
    low, high = planes.reshape(2, n_views, n_points).astype(np.int64)
    small = (low | high << 8).T
    whole, weights = (small >> 1) ^ -(small & 1), arrays["weights"].astype(np.int64)
    for view in range(n_views):
        whole[:, view] += _predicted(whole, weights, view)
    members = np.unpackbits(arrays["membership"].astype(np.uint8), count=n_points).view(np.bool_)
    return (whole * float(arrays["step"])).astype(np.float32), members


def _predicted(whole: IntArray, weights: IntArray, view: int) -> IntArray:
    """Integers [points] predicted from the views before ``view``; exact, hence equal on all machines."""
    total = whole[:, :view] @ weights[view, :view] + weights[view, -1] + 2 ** (BITS - 1)
    shifted: IntArray = total >> BITS
    return shifted


def _decompressed(path: Path, codes: bytes, size: int) -> npt.NDArray[np.uint8]:
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ)
    try:
        found = decoder.decompress(codes, size + 1)
    except lzma.LZMAError as error:
        raise SignalsError(f"{path} is damaged ({error}): copy it again") from error
    if len(found) != size or not decoder.eof:
        raise SignalsError(f"{path} is damaged ({len(found)} bytes decoded, {size} are needed): copy it again")
    return np.frombuffer(found, np.uint8)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# A folder of models ---------------------------------------------------------------------------------------------------


def add(name: str, stacks: Path, data_folder: Path, folder: Path = SIGNALS) -> list[int]:
    """Add the models of some stacks to ``folder/name``; return the new ones."""
    whole, place = WHOLE[name], folder / name
    data, recipe = whole.read(data_folder), parse_recipe(whole.recipe)
    design = audit_design(data.n_points, whole.references, np.random.default_rng(SEED), data.groups)
    views = [str(view) for view in VIEWS]
    key = store_key(audit_about(data, recipe, VIEWS, SEED), design, views, data.y)
    fixed = {
        **whole.about(),
        "recipe": whole.recipe,
        "references": whole.references,
        "seed": SEED,
        "key": key,
        "n_points": data.n_points,
        "views": views,
        "step": STEP,
        "labels": hashlib.sha256(data.y.astype("<i2").tobytes()).hexdigest(),
    }
    models: dict[str, Any] = _read_about(place).get("models", {}) if (place / "about.json").exists() else {}
    new = []
    for stack in read_stacks(stacks, key=key):
        for model, values, made in zip(stack.models, stack.signals, stack.provenance, strict=True):
            if str(model) in models:
                continue
            sha256 = write_model(_file(place, model), values, design.matrix[model])
            told = ("seed", "attempt", "train_accuracy", "test_accuracy", "seconds", "versions")
            models[str(model)] = {"sha256": sha256} | {key: made.get(key) for key in told}
            new.append(model)
    np.savez_compressed(place / "labels.npz", labels=data.y.astype("<i2"))
    ordered = {model: models[model] for model in sorted(models, key=int)}
    text = json.dumps(fixed | {"models": ordered}, indent=1)
    (place / "about.json").write_text(f"{text}\n", encoding="utf-8")
    return new


def read_kept(folder: Path) -> tuple[Signals, dict[str, Any]]:
    """Read all models of a folder in the order of their numbers, and their description."""
    about = _read_about(folder)
    n_points, n_views = about["n_points"], len(about["views"])
    parts = [
        read_model(_file(folder, int(model)), n_points, n_views, made["sha256"])
        for model, made in about["models"].items()
    ]
    if not parts:
        raise SignalsError(f"{folder} keeps no model: add some")
    labels = load_npz(folder / "labels.npz", ("labels",), "`labels`", SignalsError).get("labels")
    if labels is None or hashlib.sha256(labels.astype("<i2").tobytes()).hexdigest() != about["labels"]:
        raise SignalsError(f"{folder / 'labels.npz'} is damaged (not the labels of about.json): copy it again")
    values, members = (np.stack([part[i] for part in parts]) for i in (0, 1))
    return Signals(values, MembershipDesign(members.astype(np.bool_)), labels.astype(np.int64)), about


def fill(store: SignalStore, folder: Path) -> list[int]:
    """Add kept models that a store lacks; return their numbers. Their signals are rounded, and their records say so."""
    about = _read_about(folder)
    if about.get("key") != store.key:
        raise SignalsError(
            f"the models in {folder} were trained on other data or by another recipe: name another folder of data sets"
        )
    added = [model for model in store.missing() if str(model) in about["models"]]
    for model in added:
        made = about["models"][str(model)]
        values, members = read_model(_file(folder, model), *store.shape[1:], made["sha256"])
        if not np.array_equal(members, store.design.matrix[model]):
            raise SignalsError(f"{_file(folder, model)} has other members than the design: copy it again")
        record = {key: value for key, value in made.items() if key != "sha256"}
        store.append([model], values[None], [record | {"rounded_to": about["step"]}])
    return added


def read_kept_design(folder: Path) -> tuple[MembershipDesign, dict[str, Any]]:
    """Read the membership of all models of a folder without their signals, and their description."""
    about = _read_about(folder)
    rows = []
    for model in about["models"]:
        with np.load(_file(folder, int(model)), allow_pickle=False) as arrays:
            rows.append(np.unpackbits(arrays["membership"], count=about["n_points"]))
    return MembershipDesign(np.stack(rows).astype(np.bool_)), about


def _read_about(folder: Path) -> dict[str, Any]:
    path = folder / "about.json"
    try:
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not {"n_points", "views", "labels", "models"} <= about.keys():
            raise SignalsError(f"{path} does not say what is kept: copy it again")
    except OSError as error:
        raise SignalsError(f"{path} cannot be read ({error.strerror}): there are no kept signals") from error
    except (ValueError, AttributeError) as error:
        raise SignalsError(f"{path} is damaged ({error}): copy it again") from error
    return about


def _file(folder: Path, model: int) -> Path:
    return folder / f"{model:06d}.npz"


def write(name: str, target: Path, folder: Path = SIGNALS) -> None:
    """Write kept signals as NAME.npz with NAME.json, which experiments read."""
    signals, about = read_kept(folder / name)
    target.mkdir(parents=True, exist_ok=True)
    np.savez(
        target / f"{name}.npz",
        signals=signals.values.astype(np.float16),
        membership=np.packbits(signals.design.matrix, axis=1),
        n_points=np.array(signals.n_points),
        labels=signals.labels,
    )
    models = about["models"].values()
    recipe = parse_recipe(about["recipe"]).to_json()
    words = ", ".join(f"{key} {value}" for key, value in recipe.items() if key not in ("recipe", "epochs"))
    told = {key: about[key] for key in ("data", "first_target", "leave_out")} | {
        "model": f"{recipe['recipe']} ({words})",
        "epochs": recipe.get("epochs"),
        "recipe": recipe,
        "training_seed": about["seed"],
    }
    for key in ("train_accuracy", "test_accuracy"):
        told[key] = round(float(np.mean([made[key] for made in models])), 5)
    (target / f"{name}.json").write_text(f"{json.dumps(told, indent=1)}\n", encoding="utf-8")


def check(name: str, exact: Path, folder: Path = SIGNALS) -> None:
    """Print metrics of attacks on model 0 with kept signals and with others [models, points, views], and sizes."""
    signals, about = read_kept(folder / name)
    others = np.load(exact, allow_pickle=False)[: signals.n_models].astype(np.float32)
    apart = float(np.abs(signals.values - others).max())
    size = float(np.mean([_file(folder / name, int(model)).stat().st_size for model in about["models"]]))
    sys.stdout.write(f"{signals.n_models} models, {size / 1e6:.3f} MB each, at most {apart:.4f} apart\n")
    attacks = [ATTACKS[attack] for attack in ("rmia", "pl-mia", "pl-mia-eb")]
    for what, values in (("exact", others), ("kept", signals.values)):
        for result in attack_targets(Signals(values, signals.design, signals.labels), attacks, [0], Setup(seed=SEED)):
            queries = result.truth.queries
            found = evaluate(result.scores.score[queries], result.truth.members[queries], (0.01, 0.001), target=0)
            rates = ", ".join(f"TPR@{fpr:.1%} {100 * found.tpr_at(fpr).tpr:.3f}" for fpr in (0.01, 0.001))
            sys.stdout.write(f"{what:5} {result.scores.attack:9} AUC {100 * found.auc:.3f}, {rates}\n")


def main(task: str, name: str, *paths: str) -> None:
    """Run one task."""
    if name not in WHOLE:
        raise SignalsError(f"there are no whole signals called {name}: there are {', '.join(WHOLE)}")
    if task == "add":
        new = add(name, Path(paths[0]), Path(paths[1]))
        say(f"{name}: {len(new)} models added")
    elif task == "write":
        write(name, Path(paths[0]))
    else:
        check(name, Path(paths[0]))


if __name__ == "__main__":
    wanted = {"add": 5, "write": 4, "check": 4}
    if len(sys.argv) < 2 or len(sys.argv) != wanted.get(sys.argv[1]):
        sys.exit("python -m experiments.kept add NAME STACKS DATA | write NAME FOLDER | check NAME NPY")
    end(main, *sys.argv[1:])
