"""Training protocol and accuracy of the models (`tab:training_protocol`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .charts import dots
from .measure import AUC, CONFORMAL, Measured, attacks_called, difference, in_words, judged, measure, sign
from .outcome import FAILS, HOLDS, UNDECIDED, Cell, Claim, Outcome, Rows, Value, paper_item, paper_rows
from .setting import NOT_RUN, Setting, Source, signals_at
from .table_5 import NO_VARIANCE, possible

# Trainings of each data set: first the paper's, then others beside it.
CIFAR_10 = ("cifar10_wrn_plain", "cifar10_wrn")
CIFAR_100 = ("cifar100_wrn_plain", "cifar100_wrn", "cifar100_wrn_long")
WORDS = {"batch": "batch", "learning rate": "lr", "momentum": "momentum", "weight decay": "weight_decay"}
COMPARED = ("rmia", "pl-mia")
# Difference in points up to which an accuracy counts as reached.
NEAR = 1.0
REFUSED = "refused"
LEVELS = "Training as stated, without augmentation, comes nearer to the paper's AUC than training with augmentation."


def run(setting: Setting) -> Outcome:
    """Read recipes and accuracies from the description of the signals; measure the leakage of the models."""
    sources = _sources(setting)
    ours: Rows = {(_row(source),): _cells(source) for source in sources}
    metrics = tuple(name for name in next(iter(ours.values())) if name not in paper_item("table-s1")["metrics"])
    drawn = dots("table-s1", ours, ("train accuracy", "test accuracy"))
    claims = [_protocol(sources[0])]
    if len(sources) > 1 and _as_stated(sources[0]):
        both = _same_targets(*sources[:2])
        found = [measure(source, attacks_called(*COMPARED)) if source.targets else {} for source in both]
        claims.append(_levels(both[0], *found))
        for source, by_name in zip(both, found, strict=True):
            row = f"{_row(source)}, {source.references} references, {len(source.targets)} targets of the same members"
            ours |= {(row,): {f"AUC, {name}": m.cells()[AUC] for name, m in by_name.items()}} if by_name else {}
    refused = any(REFUSED in cells.values() for cells in ours.values())
    notes = [f"{REFUSED}: {NO_VARIANCE}."] * refused
    references = [str(source.references) for source in sources]
    if len(set(references)) > 1:
        notes.append(
            f"The trainings have {', '.join(references)} references per target, in the order of the runs above. "
            "Attacks gain from references, so only rows of the same members compare trainings."
        )
    return Outcome("table-s1", sources, ours, metrics, (drawn,), tuple(claims), tuple(notes))


def _sources(setting: Setting) -> tuple[Source, ...]:
    """Trainings of CIFAR-10; if the options name signals of CIFAR-100, its trainings in the same folder."""
    path = setting.signals
    if path is not None and path.name.removesuffix(".npz") in CIFAR_100 and signals_at(path) is not None:
        return replace(setting, signals=path.parent).sources(*CIFAR_100)
    return setting.sources(*CIFAR_10)


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
    attacks = attacks_called(*COMPARED, "pl-mia-eb")
    found = measure(source, possible(source, source.references, attacks))
    for attack in attacks:
        cells[f"AUC, {attack.name}"] = found[attack.name].cells()[AUC] if attack.name in found else REFUSED
    cells[CONFORMAL] = found["pl-mia"].cells()[CONFORMAL] if "pl-mia" in found else REFUSED
    return cells


def _percent(share: float | None) -> Cell:
    return Value(round(100 * share, 2)) if share is not None else NOT_RUN


def _protocol(source: Source) -> Claim:
    about = source.about
    recipe: dict[str, Any] = about.get("recipe") or {}
    data = source.data.partition(",")[0]
    own = f"protocol-{data.lower()}"
    name = own if own in paper_item("table-s1")["claims"] else "protocol"
    if about.get("test_accuracy") is None or not recipe:
        return Claim(name, UNDECIDED, "The signals do not say how their models were trained.")
    stated = paper_rows("table-s1").get((data,), {}).get("test accuracy")
    same = _as_stated(source) and stated is not None
    reached = 100 * about["test_accuracy"]
    images = " on images kept as JPEG" if "JPEG" in str(about.get("model")) else ""
    verdict = UNDECIDED if stated is None or not same else HOLDS if abs(reached - stated) < NEAR else FAILS
    return Claim(
        name,
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
    words, signs = [], []
    for name in COMPARED:
        level, where = _paper_auc(plain, name)
        means = [sum(found[name].known(AUC)) / len(plain.targets) for found in both]
        here, there = (_distance(found[name], level) for found in both)
        far = difference(here, there, AUC)
        signs.append(-sign(far))
        words.append(
            f"{name}, {level:.2f} in the paper{where}: {means[0]:.2f} without and {means[1]:.2f} with augmentation; "
            f"{in_words('points from the paper', far)}"
        )
    head = f"Online AUC with {plain.references} references, {len(plain.targets)} targets of the same members: "
    return Claim(LEVELS, judged(signs), f"{head}{'; '.join(words)}.")


def _paper_auc(source: Source, attack: str) -> tuple[float, str]:
    """The paper's online AUC, with as many references as the source if it states that, and words for where it is."""
    data = source.data.partition(",")[0]
    few = paper_rows("table-s2").get((data, str(source.references), attack))
    cells = few or paper_rows("table-2")[data, "online", attack]
    return float(cells[AUC][0]), " with as many references" if few else ""


def _distance(found: Measured, level: float) -> Measured:
    return Measured({AUC: [abs(value - level) for value in found.known(AUC)]})
