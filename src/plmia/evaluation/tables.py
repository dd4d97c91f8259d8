"""Results as a notebook shows them: a table of columns for pandas or polars, and a short page of HTML."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from plmia.errors import Note, OutputError, PlmiaError, doubts

Library = Literal["pandas", "polars"]
"""What a table is made with."""

LIBRARIES: tuple[Library, ...] = ("pandas", "polars")

# The attack that is meant where none is named.
DEFAULT = "pl-mia-eb"

# Columns of the tables, of HTML here and of the command.
SHOWN_FPRS = ("0.01", "0.001", "0.0001", "0")


class FrameError(PlmiaError):
    """A table that cannot be made, because the library for it is unknown or not installed."""


def make_frame(columns: Mapping[str, Sequence[Any]], library: Library | None = None) -> Any:
    """Make a data frame of columns.

    Parameters
    ----------
    columns : mapping of str to sequence, each [rows]
        The columns, in order.
    library : {"pandas", "polars"}, optional
        What to make it with; by default the first of these that is installed.
    """
    if library is None:
        library = next((name for name in LIBRARIES if find_spec(name) is not None), None)
    if library is None:
        raise FrameError("a frame needs pandas or polars, neither is installed: pip install pandas, or use columns()")
    if library not in LIBRARIES:
        raise FrameError(f"there is no library {library!r}: give {' or '.join(map(repr, LIBRARIES))}")
    try:
        return import_module(library).DataFrame(dict(columns))
    except ImportError as error:
        raise FrameError(f"{library} is not installed: pip install {library}, or use columns()") from error


class Tabular(ABC):
    """What is a table: a data frame of its columns."""

    @abstractmethod
    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of `to_frame` as lists."""

    def to_frame(self, library: Library | None = None) -> Any:
        """Return the columns (see `columns`) as a data frame.

        Parameters
        ----------
        library : {"pandas", "polars"}, optional
            What to make it with; by default the first of these that is installed.
        """
        return make_frame(self.columns(), library)


class Overview(Tabular):
    """What can be asked of the results of a run: single numbers, a frame, a page for notebooks.

    Those that inherit have `folder`, where the results are, and `metrics`, the contents of metrics.json.
    """

    folder: Path
    metrics: dict[str, Any]

    def auc(self, attack: str | None = None) -> float:
        """Area under the ROC curve, mean over targets; of `DEFAULT`, or else the verdict's attack, if none is named."""
        return float(self._attack(attack)["auc"]["mean"])

    def tpr(self, fpr: float, attack: str | None = None) -> float:
        """True positive rate at a false positive rate of at most ``fpr`` (0, 0.0001, 0.001 or 0.01), as for `auc`."""
        given: tuple[Any, Any] = (fpr, attack)
        if isinstance(given[0], str) or isinstance(given[1], int | float):
            raise OutputError(
                f"tpr({fpr!r}, {attack!r}) has its arguments in another order: the rate comes first, tpr(0.01, 'rmia')"
            )
        rates = self._attack(attack)["tpr"]
        found = next((rate for key, rate in rates.items() if float(key) == fpr), None)
        if found is None:
            raise OutputError(f"there is no TPR at an FPR of {fpr:g}: take one of {', '.join(rates)}")
        return float(found["mean"])

    def columns(self) -> dict[str, list[Any]]:
        """One row an attack and target, with AUC and TPRs as fractions and the ends of their intervals.

        Columns are ``attack``, ``target``, ``auc``, ``auc_low``, ``auc_high``, and for each false-positive rate
        ``tpr_0.01``, ``tpr_0.01_low``, ``tpr_0.01_high``; empty where there are too few non-members.
        """
        return metric_columns(self.metrics)

    def _attack(self, name: str | None) -> dict[str, Any]:
        attacks: dict[str, dict[str, Any]] = self.metrics["attacks"]
        if name is None:
            name = DEFAULT if DEFAULT in attacks else str(self.metrics["verdict"]["attack"])
        if name not in attacks:
            raise OutputError(f"{name!r} is not among the results in {self.folder}: take one of {', '.join(attacks)}")
        return attacks[name]

    def __repr__(self) -> str:
        verdict = f"{type(self).__name__}({str(self.folder)!r}): {self.metrics['verdict']['text']}"
        return "\n- ".join([verdict, *cautions(self.metrics)])

    def _repr_html_(self) -> str:
        return html_overview(self.metrics, self.folder)


def metric_columns(metrics: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Tidy columns of metrics.json, a row for each attack and target; see `Overview.to_frame`."""
    rows = [_row(name, entry) for name, attack in metrics["attacks"].items() for entry in attack["per_target"]]
    return {column: [row[column] for row in rows] for column in rows[0]} if rows else {}


def _row(attack: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    ends = entry.get("auc_interval") or {"low": None, "high": None}
    row = {"attack": attack, "target": entry["target"], "auc": entry["auc"]}
    row |= {"auc_low": ends["low"], "auc_high": ends["high"]}
    for fpr, point in entry["tpr"].items():
        # The interval at exactly this rate, where one exists, tells more than that of the cut which was found.
        ends = point.get("at_nominal") or point
        values = (point["tpr"], ends["low"], ends["high"]) if point["resolved"] else (None, None, None)
        row |= dict(zip((f"tpr_{fpr}", f"tpr_{fpr}_low", f"tpr_{fpr}_high"), values, strict=True))
    return row


def cautions(metrics: Mapping[str, Any]) -> list[str]:
    """Return the notes that change how the verdict must be read, invalid ones first.

    Parameters
    ----------
    metrics : mapping
        The contents of metrics.json.
    """
    return [note.text for note in doubts(map(Note.from_json, metrics["notes"]))]


def html_overview(metrics: Mapping[str, Any], folder: Path) -> str:
    """Verdict and a compact table in percent, as HTML without scripts or anything from elsewhere.

    Parameters
    ----------
    metrics : mapping
        The contents of metrics.json.
    folder : Path
        Where the results are.
    """
    head = ["attack", "AUC", *(f"TPR at {100 * float(fpr):g} %" for fpr in SHOWN_FPRS)]
    rows = [
        [name, _percent(attack["auc"]), *(_percent(attack["tpr"].get(fpr)) for fpr in SHOWN_FPRS)]
        for name, attack in metrics["attacks"].items()
    ]
    best = metrics["verdict"]["attack"]
    body = "".join(f"<tr>{_cells('th' if row[0] == best else 'td', row)}</tr>" for row in rows)
    doubts = "".join(f"<p>{html.escape(text)}</p>" for text in cautions(metrics))
    return (
        f"<div><p><strong>{html.escape(metrics['verdict']['text'])}</strong></p>{doubts}"
        f"<table><thead><tr>{_cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"
        f"<p>Percent of the members found at a false-positive rate; <code>{html.escape(str(folder))}</code></p></div>"
    )


def html_table(caption: str, columns: Mapping[str, Sequence[Any]]) -> str:
    """Columns as a small HTML table under a caption, all text shown as it is."""
    rows = zip(*columns.values(), strict=True)
    body = "".join(f"<tr>{_cells('td', [_number(value) for value in row])}</tr>" for row in rows)
    return (
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{_cells('th', list(columns))}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _cells(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)


def _percent(value: Mapping[str, Any] | None) -> str:
    return f"{100 * value['mean']:.2f}" if value is not None and value.get("resolved", True) else "–"
