"""The result of a run as people look at it: single numbers, a data frame, a short text, and HTML for notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plmia.errors import OutputError, doubts, round_percent
from plmia.evaluation.metrics import FPRS, fpr_key
from plmia.evaluation.tables import Tabular, html_cells
from plmia.results.result import DEFAULT_ATTACK, Mean, MeanTpr, RunResult, TargetSummary

# First rows of the short text, which has as many in all.
MAIN_ATTACKS = (DEFAULT_ATTACK, "pl-mia", "lira-fixed", "rmia", "attack-p")


class Overview(Tabular):
    """What can be asked of the results of a run.

    Classes that inherit have `folder`, where the results are, and `result`.
    """

    folder: Path
    result: RunResult

    def auc(self, attack: str | None = None) -> float:
        """Area under the ROC curve, mean over targets; by default of pl-mia-eb, or else of the verdict's attack."""
        return self.result.attacks[self.attack_name(attack)].auc.mean

    def tpr(self, fpr: float, attack: str | None = None) -> float:
        """True-positive rate at a false-positive rate of at most ``fpr`` (0, 0.0001, 0.001 or 0.01), as for `auc`."""
        given: tuple[Any, Any] = (fpr, attack)
        if isinstance(given[0], str) or isinstance(given[1], int | float):
            raise OutputError(
                f"tpr({fpr!r}, {attack!r}) has its arguments in another order: the rate comes first, tpr(0.01, 'rmia')"
            )
        rates = self.result.attacks[self.attack_name(attack)].tpr
        if fpr not in rates:
            raise OutputError(f"there is no TPR at an FPR of {fpr:g}: take one of {', '.join(map(fpr_key, rates))}")
        return rates[fpr].mean

    def columns(self) -> dict[str, list[Any]]:
        """One row per attack and target, with AUC and TPRs as fractions and the ends of their intervals.

        Columns are ``attack``, ``target``, ``auc``, ``auc_low``, ``auc_high``, and for each false-positive rate
        ``tpr_0.01``, ``tpr_0.01_low``, ``tpr_0.01_high``; empty where there are too few non-members.
        """
        attacks = self.result.attacks.items()
        rows = [_row(name, entry) for name, attack in attacks for entry in attack.per_target]
        return {column: [row[column] for row in rows] for column in rows[0]}

    def attack_name(self, attack: str | None = None) -> str:
        """Return the name of an attack of these results, by default that of pl-mia-eb or of the verdict."""
        if attack is None:
            return DEFAULT_ATTACK if DEFAULT_ATTACK in self.result.attacks else self.result.verdict.attack
        if attack not in self.result.attacks:
            known = ", ".join(self.result.attacks)
            raise OutputError(f"{attack!r} is not among the results in {self.folder}: take one of {known}")
        return attack

    def _table(self, attacks: Sequence[str]) -> list[list[str]]:
        """Head and one row per attack, in per cent; columns without any value are left out."""
        found = [(name, self.result.attacks[name]) for name in attacks]
        rates = [fpr for fpr in reversed(FPRS) if any(attack.tpr[fpr].resolved for _, attack in found)]
        head = ["attack", "AUC", *(f"TPR at {round_percent(fpr)}" for fpr in rates)]
        return [head, *([name, _mean(a.auc), *(_mean(a.tpr[fpr]) for fpr in rates)] for name, a in found)]

    def __repr__(self) -> str:
        result = self.result
        verdict = f"{type(self).__name__}({str(self.folder)!r}): {result.verdict.text}"
        found = [*(name for name in MAIN_ATTACKS if name in result.attacks), *result.attacks]
        table = self._table(list(dict.fromkeys(found))[: len(MAIN_ATTACKS)])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join([name.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(cells, widths[1:], strict=True))])
            for name, *cells in table
        ]
        return "\n".join([verdict, *(f"- {note.text}" for note in doubts(result.notes)), *lines])

    def _repr_html_(self) -> str:
        """Verdict, doubts and a table, as HTML without scripts or anything from elsewhere."""
        head, *rows = self._table(list(self.result.attacks))
        best = self.result.verdict.attack
        body = "".join(f"<tr>{html_cells('th' if row[0] == best else 'td', row)}</tr>" for row in rows)
        cautions = "".join(f"<p>{html.escape(note.text)}</p>" for note in doubts(self.result.notes))
        return (
            f"<div><p><strong>{html.escape(self.result.verdict.text)}</strong></p>{cautions}"
            f"<table><thead><tr>{html_cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"
            "<p>Per cent of the members found at a false-positive rate; "
            f"<code>{html.escape(str(self.folder))}</code></p></div>"
        )


def _row(attack: str, entry: TargetSummary) -> dict[str, str | float | None]:
    ends = entry.auc_interval
    row: dict[str, str | float | None] = {"attack": attack, "target": entry.target, "auc": entry.auc}
    row |= {"auc_low": ends.low if ends else None, "auc_high": ends.high if ends else None}
    for fpr, point in entry.tpr.items():
        interval = point.interval
        values = (point.tpr, interval.low, interval.high) if point.resolved else (None, None, None)
        name = f"tpr_{fpr_key(fpr)}"
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))
    return row


def _mean(value: Mean | MeanTpr) -> str:
    return "–" if isinstance(value, MeanTpr) and not value.resolved else f"{100 * value.mean:.2f}"
