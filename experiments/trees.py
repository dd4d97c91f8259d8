"""Shared code of the tables and figures of tabular models: comparisons of attacks, ROC curves and claims."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .measure import AUC, MAIN, Measured, attacks_called, difference, in_words, judged, of_result, results, roc_at, sign
from .outcome import UNDECIDED, Cell, Claim, Value
from .setting import Setting, Source

ATTACKS = ("pl-mia", "lira", "lira-fixed", "rmia", "pl-mia-eb")
METRICS = ("AUC", "TPR@1%", "TPR@0.1%", *MAIN[1:])
# Metrics on which claims about curves are judged.
JUDGED = (AUC, "TPR@0.1%", *MAIN[1:])
DEPTHS = ("3", "5", "7")
NOT_STATED = "–"


@dataclass(frozen=True)
class Curves:
    """Metrics, and TPR at each FPR of a grid [attacks] -> [targets, rates]."""

    measured: dict[str, Measured]
    rates: tuple[float, ...]
    tpr: dict[str, list[list[float]]]

    def mean(self, attack: str) -> list[float]:
        """TPR averaged over targets."""
        return [float(value) for value in np.mean(self.tpr[attack], axis=0)]

    def value(self, attack: str, i: int) -> Value | None:
        """TPR in percent at the i-th rate, with its deviation."""
        return Value.over([100 * row[i] for row in self.tpr[attack]])

    def points(self, attack: str) -> dict[str, dict[str, Cell]]:
        """Cells by FPR: every fourth point of the curve, and the metrics of claims; AUC covers all rates."""
        cells = self.measured[attack].cells()
        judged_on = {f"{metric.partition('@')[2].rstrip('%')} %": {"TPR": cells[metric]} for metric in JUDGED[1:]}
        curve: dict[str, dict[str, Cell]] = {
            f"{100 * rate:.3g} %": {"TPR": self.value(attack, i)} for i, rate in enumerate(self.rates) if i % 4 == 0
        }
        return {"all": {AUC: cells[AUC]}} | judged_on | curve


def curves(source: Source) -> Curves:
    """Attack every target; rates go down to one non-member."""
    attacks = attacks_called(*ATTACKS)
    measured = {attack.name: Measured() for attack in attacks}
    tpr: dict[str, list[list[float]]] = {attack.name: [] for attack in attacks}
    outside = source.signals.n_points * 3 // 8
    rates = tuple(float(r) for r in np.geomspace(1 / outside, 1.0, 25))
    for result in results(source, attacks):
        queries, name = result.truth.queries, result.scores.attack
        measured[name].add(of_result(result))
        tpr[name].append(roc_at(result.scores.score[queries], result.truth.members[queries], rates))
    return Curves(measured, rates, tpr)


ByDepth = dict[str, tuple[Source, Curves]]


def by_depth(setting: Setting, data: tuple[str, ...]) -> dict[str, ByDepth]:
    """Signals and curves of each depth, by data; models are trained once and shared.

    A recipe, or one file of signals, has one depth, which its description states.
    """
    found: dict[str, ByDepth] = {}
    alone = setting.is_alone and (setting.data is None or setting.recipe is not None)
    for depth in DEPTHS[:1] if alone else DEPTHS:
        for source in setting.sources(*(f"{name}_gbdt_{depth}" for name in data)):
            stated = str((source.about.get("recipe") or {}).get("depth", NOT_STATED))
            found.setdefault(source.data, {})[stated if alone else depth] = (source, curves(source))
    return found


def in_front(depth: str) -> str:
    """The depth as a prefix; empty if it is not stated."""
    return f"depth {depth} " if depth != NOT_STATED else ""


def best_claim(name: str, by_group: dict[str, Curves], on: str = "") -> Claim:
    """Whether PL-MIA is above LiRA (both variances) and RMIA on every resolved metric."""
    words, signs = [], []
    for group, found in by_group.items():
        for rival in ("lira-fixed", "rmia"):
            for metric in JUDGED:
                d = difference(found.measured["pl-mia"], found.measured[rival], metric)
                if d is not None:
                    signs.append(sign(d))
                    words.append(in_words(f"{group}against {rival}, {metric}", d))
    if not signs:
        return Claim(name, UNDECIDED, "More targets are needed.", on)
    same = all(f.measured["pl-mia"].known("AUC") == f.measured["lira"].known("AUC") for f in by_group.values())
    tail = " LiRA with a variance per point has the ROC curve of pl-mia." if same else ""
    return Claim(name, judged(signs, equal=same), f"{'; '.join(words)}.{tail}", on)
