"""Main results: every attack, online and offline, with all references (`tab:main_results`)."""

from __future__ import annotations

from dataclasses import replace
from typing import cast, get_args

from plmia.view import Mode

from .charts import dots
from .measure import AUC, BEYOND, MAIN, Measured, attacks_called, difference, in_words, measure, verdict_above
from .outcome import FAILS, HOLDS, PARTLY, UNDECIDED, Claim, Outcome, Rows
from .setting import Setting, Source

# LiRA stands twice: with a variance per point, as the paper's formula has it, and with one for all points.
ATTACKS = ("attack-p", "attack-r", "lira", "lira-fixed", "rmia", "pl-mia", "pl-mia-pooled", "pl-mia-eb")
ONLINE_TOO = ATTACKS[2:]

Found = dict[str, Measured]


def run(setting: Setting) -> Outcome:
    """Measure all attacks in both modes; on models trained without augmentation, too, where they are at hand."""
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
        above("above-rmia", found["online"], "pl-mia", "rmia"),
        _offline(found["offline"]),
        beyond(found),
    )


def above(name: str, found: Found, a: str, b: str) -> Claim:
    """Whether attack A is above attack B on the paper's metrics."""
    differences = [difference(found[a], found[b], metric) for metric in MAIN]
    words = "; ".join(in_words(metric, d) for metric, d in zip(MAIN, differences, strict=True))
    return Claim(name, verdict_above(differences), f"{a} against {b}: {words}.")


def _above_lira(found: Found) -> Claim:
    """LiRA with the same variance per point has the same ROC curve; with one variance for all it has another."""
    fixed = above("above-lira", found, "pl-mia", "lira-fixed")
    same = all(found["pl-mia"].known(metric) == found["lira"].known(metric) for metric in MAIN)
    shown = fixed.verdict in (HOLDS, PARTLY)
    verdict = fixed.verdict if not same else PARTLY if shown else FAILS
    equal = "the same numbers as pl-mia to the last digit" if same else "other numbers than pl-mia"
    return Claim(
        "above-lira",
        verdict,
        f"LiRA with a variance per point, the formula both share, has {equal}: calibration with one "
        f"population does not change the order. With one variance for all points, as published experiments ran LiRA: "
        f"{fixed.because}",
    )


def _offline(found: Found) -> Claim:
    rates = [difference(found["pl-mia"], found["rmia"], metric) for metric in MAIN[1:]]
    return Claim("offline", verdict_above(rates), above("offline", found, "pl-mia", "rmia").because)


def beyond(found: dict[str, Found]) -> Claim:
    """Ours beyond the paper: empirical Bayes against PL-MIA and RMIA."""
    name = "Beyond the paper: pl-mia-eb is above pl-mia and rmia, online and offline."
    if "pl-mia-eb" not in found["online"]:
        return Claim(name, UNDECIDED, "pl-mia-eb is not in this version.")
    claims = [above(name, by, "pl-mia-eb", other) for by in found.values() for other in ("pl-mia", "rmia")]
    verdicts = {claim.verdict for claim in claims}
    verdict = verdicts.pop() if len(verdicts) == 1 else PARTLY
    modes = [mode for mode in found for _ in range(2)]
    return Claim(name, verdict, " ".join(f"{m}, {c.because}" for m, c in zip(modes, claims, strict=True)))
