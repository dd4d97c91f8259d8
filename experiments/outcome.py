"""Result of an experiment: our rows next to the paper's, verdicts on its claims; JSON, Markdown and figures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from plmia.data.files import make_private, write_atomically
from plmia.errors import OutputError
from plmia.reporting.drawing import Figure, svg

from .setting import NOT_RUN, Source

PAPER = Path(__file__).parent / "paper.json"
# A rate for which a target has too few non-members.
NOT_RESOLVED = "–"
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "not decided here"
# Some parts are shown to be true and some to be false; some are shown to be true and the rest is open.
PARTLY, SO_FAR = "holds in part", "holds where decided"
# Our rows that correspond to rows of the paper with another name.
BESIDE = {f"{data}, no augmentation": data for data in ("CIFAR-10", "CIFAR-100")}

Keys = tuple[str, ...]


@dataclass(frozen=True)
class Value:
    """A number, its standard deviation over targets, the number of targets, and the value of each."""

    mean: float
    std: float | None = None
    n: int = 1
    values: tuple[float, ...] = ()

    @classmethod
    def over(cls, values: Sequence[float | None]) -> Value | None:
        """Return mean and deviation over targets; None if one of them is not resolved."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        std = float(np.std(known, ddof=1)) if len(known) > 1 else None
        each = tuple(round(float(value), 4) for value in known) if std is not None else ()
        return cls(round(float(np.mean(known)), 4), None if std is None else round(std, 4), len(known), each)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; with several targets also the value of each, in order."""
        return {name: value for name, value in vars(self).items() if name != "values"} | (
            {"values": list(self.values)} if self.values else {}
        )

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"


Cell = Value | str | None
Rows = dict[Keys, dict[str, Cell]]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and its verdict.

    Parameters
    ----------
    name : str
        Its name in paper.json.
    verdict : str
        Whether it holds here.
    because : str
        The numbers behind the verdict.
    on : str
        Data set, if a table has several and the claim is judged on each.
    """

    name: str
    verdict: str
    because: str
    on: str = ""

    def to_json(self, texts: Mapping[str, str]) -> dict[str, str]:
        """Return plain values; ``texts`` are the paper's claims by name."""
        text = texts.get(self.name, self.name) + (f" [{self.on}]" if self.on else "")
        return {"claim": text, "verdict": self.verdict, "because": self.because}


@dataclass(frozen=True)
class Outcome:
    """Result of one experiment.

    Parameters
    ----------
    item : str
        Name of the experiment, such as ``table-2``.
    sources : tuple of Source
        Signals it ran on.
    ours : mapping of keys to cells by metric
        Our rows; the paper's rows are matched by their keys.
    metrics : tuple of str
        Our columns that the paper does not have.
    figures : tuple of Figure
        Figures to draw.
    claims : tuple of Claim
        Verdicts.
    notes : tuple of str
        Further information for the reader.
    """

    item: str
    sources: tuple[Source, ...]
    ours: Rows
    metrics: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values; the same input gives the same output."""
        paper = paper_item(self.item)
        theirs = paper_rows(self.item, *(source.about.get("data") for source in self.sources))
        text = paper.get("text")
        if paper["rows"] and not theirs:
            text = f"{paper['data']} only, so its numbers are not shown beside these."
        return {
            "item": self.item,
            "title": paper["title"],
            "label": paper["label"],
            "run": [source.to_json() for source in self.sources],
            "keys": paper["keys"],
            "metrics": [*paper["metrics"], *self.metrics],
            "rows": [
                {"keys": list(keys), "ours": _plain(self.ours.get(keys)), "paper": _numbers(theirs.get(beside(keys)))}
                for keys in _merged(list(theirs), list(self.ours))
            ],
            "claims": [claim.to_json(paper["claims"]) for claim in self.claims],
            "notes": [*([f"The paper: {text}"] if text else []), *self.notes],
        }

    def write(self, folder: Path, command: str) -> dict[str, Any]:
        """Write NAME.json, NAME.md and the figures NAME.svg, NAME-2.svg, ...; return the JSON."""
        contents = self.to_json() | {"command": command}
        try:
            make_private(folder)
            write_atomically(folder / f"{self.item}.json", _text(contents).encode())
            names = [f"{self.item}{f'-{i}' if i > 1 else ''}.svg" for i in range(1, len(self.figures) + 1)]
            for name, figure in zip(names, self.figures, strict=True):
                write_atomically(folder / name, f"{svg(figure)}\n".encode())
            write_atomically(folder / f"{self.item}.md", markdown(contents, names).encode())
        except OSError as error:
            raise OutputError(f"cannot write to {folder} ({error.strerror}): choose another folder with -o") from error
        return contents


def _text(contents: Mapping[str, Any]) -> str:
    """JSON with one line per entry, and lists of numbers on one line."""
    text = json.dumps(contents, indent=1, allow_nan=False, ensure_ascii=False)
    return re.sub(r"\[\n[-+.\de,\s]+\]", lambda found: "[" + " ".join(found[0][1:-1].split()) + "]", text) + "\n"


@cache
def paper_numbers() -> dict[str, Any]:
    """Return the paper's numbers, by item."""
    numbers: dict[str, Any] = json.loads(PAPER.read_text(encoding="utf-8"))
    return numbers


def paper_item(item: str) -> dict[str, Any]:
    """Title, label, rows and claims of one item of the paper."""
    entry: dict[str, Any] = paper_numbers()[item]
    return entry


def paper_rows(item: str, *data: str | None) -> dict[Keys, dict[str, Any]]:
    """Cells of the paper's rows, by their keys; none if they are about other data than ours (None: not known)."""
    of = paper_item(item).get("data")
    if of and any(name is not None and BESIDE.get(name, name) != of for name in data):
        return {}
    return {tuple(row["keys"]): row["cells"] for row in paper_item(item)["rows"]}


def beside(keys: Keys) -> Keys:
    """Keys of the paper's row that corresponds to one of our rows."""
    return (BESIDE.get(keys[0], keys[0]), *keys[1:])


def _merged(theirs: list[Keys], ours: list[Keys]) -> list[Keys]:
    """Put rows that only we have after the last row of their group (same keys except the last), or at the end."""
    rows = list(theirs)
    for keys in ours:
        if keys not in rows:
            group = [i for i, row in enumerate(rows) if row[:-1] == keys[:-1]]
            rows.insert(group[-1] + 1 if group else len(rows), keys)
    return rows


def _plain(cells: Mapping[str, Cell] | None) -> dict[str, Any] | None:
    if cells is None:
        return None
    return {name: cell.to_json() if isinstance(cell, Value) else cell for name, cell in cells.items()}


def _numbers(cells: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The paper's cells: a number, a number and its deviation, or words."""
    if cells is None:
        return None
    return {name: cell if isinstance(cell, str) else Value(*_pair(cell)).to_json() for name, cell in cells.items()}


def _pair(cell: float | list[float]) -> tuple[float, float | None]:
    return (cell[0], cell[1]) if isinstance(cell, list) else (cell, None)


def markdown(contents: Mapping[str, Any], figures: Sequence[str] = (), level: int = 1) -> str:
    """Contents of a JSON file as Markdown: our numbers next to the paper's, figures, verdicts and notes."""
    head = "#" * level
    parts = [f"{head} {contents['item']}: {contents['title']} (`{contents['label']}`)"]
    parts += [run_line(run) for run in contents["run"]]
    parts += [f"![{contents['title']}]({name})" for name in figures]
    parts.append(table(contents))
    if contents["claims"]:
        parts.append("\n".join(f"- **{c['verdict']}**: {c['claim']} {c['because']}" for c in contents["claims"]))
    parts += contents["notes"]
    return "\n\n".join(parts) + "\n"


def run_line(run: Mapping[str, Any]) -> str:
    """Describe in one line what was run."""
    words = [str(run[key]) for key in ("data", "model") if run.get(key)]
    if run.get("epochs"):
        words.append(f"{run['epochs']} epochs")
    words.append(f"{run['models']} models, {run['points']:,} points, {run['views']} view{'s' * (run['views'] > 1)}")
    words.append(f"{run['references']} references, {_targets(run)}, seed {run['seed']}")
    if run.get("train_accuracy") is not None:
        train, test = (100 * run[key] for key in ("train_accuracy", "test_accuracy"))
        words.append(f"accuracy {train:.1f} % train, {test:.1f} % held out")
    return f"*Run: {'; '.join(words)}.*"


def _targets(run: Mapping[str, Any]) -> str:
    n = len(run["targets"])
    return f"{n} target{'s' * (n != 1)}"


def table(contents: Mapping[str, Any]) -> str:
    """The rows as a Markdown table; `elsewhere` of a row says where to find what was not run on these signals."""
    rows, keys, metrics = contents["rows"], contents["keys"], contents["metrics"]
    shared = {name for row in rows for name in row["paper"] or {}}
    columns = [(name, side) for name in metrics for side in ("ours", "paper") if side == "ours" or name in shared]
    header = [*keys, *(f"{name}, {side}" if name in shared else name for name, side in columns)]
    lines = [header, ["---"] * len(keys) + ["---:"] * len(columns)]
    lines += [[*row["keys"], *(_shown(row, name, side) for name, side in columns)] for row in rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def _shown(row: Mapping[str, Any], name: str, side: str) -> str:
    cells = row[side]
    if cells is None:
        return row.get("elsewhere", NOT_RUN) if side == "ours" and name in (row["paper"] or {}) else ""
    if cells.get(name) is None:
        return NOT_RESOLVED if side == "ours" and name in cells else ""
    cell = cells[name]
    if isinstance(cell, str):
        return cell
    return str(Value(**cell))
