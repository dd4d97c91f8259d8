"""Main results: every attack, online and offline, with all references (`tab:main_results`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast, get_args

from plmia.attacks.view import Mode

from .charts import dots
from .measure import AUC, BEYOND, MAIN, Measured, attacks_called, difference, in_words, judged, measure, sign
from .outcome import UNDECIDED, Claim, Outcome, Rows
from .setting import Setting, Source

# LiRA appears twice: with a variance per point, as in the paper's formula, and with one for all points.
ATTACKS = ("attack-p", "attack-r", "lira", "lira-fixed", "rmia", "pl-mia", "pl-mia-pooled", "pl-mia-eb")
ONLINE_TOO = ATTACKS[2:]
# Points of AUC within which an attack counts as competitive.
NEAR = 2.0

Found = dict[str, Measured]


def run(setting: Setting) -> Outcome:
    """Measure all attacks in both modes; also on models trained without augmentation, if available."""
    sources = setting.sources("cifar10_wrn", "cifar10_wrn_plain")
    by_data = {source.data: _both_modes(source) for source in sources}
    ours: Rows = {
        (data, mode, name): measured.cells()
        for data, found in by_data.items()
        for mode, by_name in found.items()
        for name, measured in by_name.items()
    }
    claims = tuple(replace(claim, on=data) for data, found in by_data.items() for claim in _claims(found))
    drawn = dots("table-2", ours, (AUC, "TPR@0%"))
    return Outcome("table-2", sources, ours, BEYOND, (drawn,), claims)


def _both_modes(source: Source) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for mode in cast("tuple[Mode, ...]", get_args(Mode)):
        names = ATTACKS if mode == "offline" else ONLINE_TOO
        found[mode] = measure(source, attacks_called(*names), mode)
    return found


def _claims(found: dict[str, Found]) -> tuple[Claim, ...]:
    return (
        _above_lira(found["online"]),
        _above_rmia(found["online"]),
        _offline(found["offline"]),
        beyond(found),
    )


def _compared(found: Found, a: str, b: str) -> tuple[str, list[int]]:
    """Compare attacks A and B on the paper's metrics: in words, and the outcome for each resolved metric."""
    differences = {metric: difference(found[a], found[b], metric) for metric in MAIN}
    words = "; ".join(in_words(metric, d) for metric, d in differences.items())
    return f"{a} against {b}: {words}.", [sign(d) for d in differences.values() if d is not None]


def _above_rmia(found: Found) -> Claim:
    words, signs = _compared(found, "pl-mia", "rmia")
    return Claim("above-rmia", judged(signs), words)


def _above_lira(found: Found) -> Claim:
    """LiRA with the same variance per point has the same ROC curve; with one variance for all points it does not."""
    words, signs = _compared(found, "pl-mia", "lira-fixed")
    same = all(found["pl-mia"].known(metric) == found["lira"].known(metric) for metric in MAIN)
    equal = "the same numbers as pl-mia to the last digit" if same else "other numbers than pl-mia"
    return Claim(
        "above-lira",
        judged(signs, equal=same),
        f"LiRA with a variance per point, the formula both share, has {equal}: calibration with one "
        f"population does not change the order. With one variance for all points, as published experiments ran LiRA: "
        f"{words}",
    )


def _offline(found: Found) -> Claim:
    """Strongest at the lowest rates: above the best of the paper's other attacks; competitive: near the best AUC."""
    rivals = [name for name in found if not name.startswith("pl-mia")]
    parts, signs = [], []
    for metric in MAIN:
        if found["pl-mia"].known(metric):
            best = _best(found, rivals, metric)
            d = difference(found["pl-mia"], found[best], metric)
            parts.append(in_words(f"{metric} against {best}, the best of the others", d))
            signs.append(sign(d, NEAR if metric == AUC else 0.0))
    because = f"pl-mia: {'; '.join(parts)} [competitive: up to {NEAR:g} points of AUC below]."
    return Claim("offline", judged(signs), because)


def _best(found: Found, names: Sequence[str], metric: str) -> str:
    return max(names, key=lambda name: sum(found[name].known(metric)))


def beyond(found: dict[str, Found]) -> Claim:
    """Our addition to the paper: empirical Bayes against PL-MIA and RMIA."""
    name = "Beyond the paper: pl-mia-eb is above pl-mia and rmia, online and offline."
    if "pl-mia-eb" not in found["online"]:
        return Claim(name, UNDECIDED, "pl-mia-eb is not in this version.")
    compared = [(mode, _compared(by, "pl-mia-eb", b)) for mode, by in found.items() for b in ("pl-mia", "rmia")]
    words = " ".join(f"{mode}, {said}" for mode, (said, _) in compared)
    return Claim(name, judged([shown for _, (_, signs) in compared for shown in signs]), words)
