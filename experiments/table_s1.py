"""Training protocol and accuracy of the models (`tab:training_protocol`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .charts import dots
from .measure import AUC, CONFORMAL, Measured, attacks_called, difference, in_words, judged, measure, sign
from .outcome import FAILS, HOLDS, UNDECIDED, Cell, Claim, Outcome, Rows, Value, paper_item, paper_rows
from .setting import NOT_RUN, Setting, Source

WORDS = {"batch": "batch", "learning rate": "lr", "momentum": "momentum", "weight decay": "weight_decay"}
COMPARED = ("rmia", "pl-mia")
# Difference in points up to which an accuracy counts as reached.
NEAR = 1.0
LEVELS = "Training as stated, without augmentation, comes nearer to the paper's AUC than training with augmentation."


def run(setting: Setting) -> Outcome:
    """Read recipes and accuracies from the description of the signals; measure the leakage of the models."""
    sources = setting.sources("cifar10_wrn_plain", "cifar10_wrn")
    ours: Rows = {(_row(source),): _cells(source) for source in sources}
    metrics = tuple(name for name in next(iter(ours.values())) if name not in paper_item("table-s1")["metrics"])
    drawn = dots("table-s1", ours, ("train accuracy", "test accuracy"))
    claims = [_protocol(sources[0])]
    if len(sources) > 1:
        both = _same_targets(*sources)
        found = [measure(source, attacks_called(*COMPARED)) if source.targets else {} for source in both]
        claims.append(_levels(both[0], *found))
        for source, by_name in zip(both, found, strict=True):
            row = f"{_row(source)}, {source.references} references, {len(source.targets)} targets of the same members"
            ours |= {(row,): {f"AUC, {name}": m.cells()[AUC] for name, m in by_name.items()}} if by_name else {}
    return Outcome("table-s1", sources, ours, metrics, (drawn,), tuple(claims))


def _row(source: Source) -> str:
    """The paper's row if its protocol was run, else a row that states the difference."""
    recipe: dict[str, Any] = source.about.get("recipe") or {}
    data = source.data.partition(",")[0]
    if not recipe or _as_stated(source):
        return data
    return f"{data}, {source.about.get('epochs')} epochs{', augmented' * bool(recipe.get('augment'))}"


def _as_stated(source: Source) -> bool:
    recipe: dict[str, Any] = source.about.get("recipe") or {}
    return bool(recipe) and source.about.get("epochs") == 100 and not recipe.get("augment")


def _cells(source: Source) -> dict[str, Cell]:
    about = source.about
    recipe: dict[str, Any] = about.get("recipe") or {}
    cells: dict[str, Cell] = {"epochs": str(about.get("epochs") or "not stated")}
    cells |= {name: str(recipe.get(key, "not stated")) for name, key in WORDS.items()}
    cells |= {
        name: _percent(about.get(key))
        for name, key in (("train accuracy", "train_accuracy"), ("test accuracy", "test_accuracy"))
    }
    cells["augmented"] = "yes" if recipe.get("augment") else "no" if recipe else "not stated"
    found = measure(source, attacks_called(*COMPARED, "pl-mia-eb"))
    for name, measured in found.items():
        cells[f"AUC, {name}"] = measured.cells()[AUC]
    cells[CONFORMAL] = found["pl-mia"].cells()[CONFORMAL]
    return cells


def _percent(share: float | None) -> Cell:
    return Value(round(100 * share, 2)) if share is not None else NOT_RUN


def _protocol(source: Source) -> Claim:
    about = source.about
    recipe: dict[str, Any] = about.get("recipe") or {}
    if about.get("test_accuracy") is None or not recipe:
        return Claim("protocol", UNDECIDED, "The signals do not say how their models were trained.")
    stated = paper_rows("table-s1").get((source.data.partition(",")[0],), {}).get("test accuracy")
    same = _as_stated(source) and stated is not None
    reached = 100 * about["test_accuracy"]
    images = " on images kept as JPEG" if "JPEG" in str(about.get("model")) else ""
    verdict = UNDECIDED if stated is None or not same else HOLDS if abs(reached - stated) < NEAR else FAILS
    return Claim(
        "protocol",
        verdict,
        f"{'Run as in the paper' if same else 'That protocol was not run here'}: {about['epochs']} epochs "
        f"{'with' if recipe.get('augment') else 'without'} augmentation{images} give "
        f"{100 * about['train_accuracy']:.1f} % on members and {reached:.1f} % on the half they did not train on "
        f"({source.signals.n_models} models of depth {recipe.get('depth')} and width {recipe.get('width')}; "
        "the paper names neither depth nor width) "
        f"[within {NEAR:g} points].",
    )


def _same_targets(plain: Source, augmented: Source) -> tuple[Source, Source]:
    """Targets that have the same members in both, with equal numbers of references."""
    rows = {row.tobytes(): model for model, row in enumerate(augmented.signals.design.matrix)}
    found = {t: rows.get(plain.signals.design.matrix[t].tobytes()) for t in plain.targets}
    pairs = [(a, b) for a, b in found.items() if b is not None]
    references = min(plain.references, augmented.references)
    return (
        replace(plain, targets=tuple(a for a, _ in pairs), references=references),
        replace(augmented, targets=tuple(b for _, b in pairs), references=references),
    )


def _levels(plain: Source, *both: dict[str, Measured]) -> Claim:
    """Compare, target by target, which of the two trainings is closer to the paper's AUC."""
    if not plain.targets:
        return Claim(LEVELS, UNDECIDED, "The two have no targets with the same members.")
    stated = {tuple(row["keys"]): row["cells"][AUC][0] for row in paper_item("table-2")["rows"]}
    words, signs = [], []
    for name in COMPARED:
        level = stated["CIFAR-10", "online", name]
        means = [sum(found[name].known(AUC)) / len(plain.targets) for found in both]
        here, there = (_distance(found[name], level) for found in both)
        far = difference(here, there, AUC)
        signs.append(-sign(far))
        words.append(
            f"{name}, {level:.2f} in the paper: {means[0]:.2f} without and {means[1]:.2f} with augmentation; "
            f"{in_words('points from the paper', far)}"
        )
    head = f"Online AUC with {plain.references} references, {len(plain.targets)} targets of the same members: "
    return Claim(LEVELS, judged(signs), f"{head}{'; '.join(words)}.")


def _distance(found: Measured, level: float) -> Measured:
    return Measured({AUC: [abs(value - level) for value in found.known(AUC)]})
