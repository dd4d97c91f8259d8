"""Which attack wins? All attacks of the package, those published since the paper included, on the same targets.

    python -m experiments.rivals measure [--signals FOLDER] [--data DATA] [--targets N] [SET ...]
    python -m experiments.rivals write

``measure`` attacks the sets of signals in FOLDER, by default the small ones of the repository, and adds each set to
rivals.json. A set is NAME.npz, a store, or a folder of kept models (`kept.py`), such as cifar100_wrn. With DATA, the
folder of the data sets, attacks that read the records and need no references are measured as well. ``write`` puts the
tables and the figure into docs/explanation/which-attack.md. Targets start at ``first_target``, because earlier models
influenced the design of pl-mia-eb. References are not aligned.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from plmia.attacks.attack import ATTACKS, RIVALS, SCREENING
from plmia.attacks.view import Features, Mode
from plmia.auditing.screen import features_of
from plmia.errors import DataError
from plmia.evaluation.targets import AttackResult, Setup, attack_targets
from plmia.reporting.drawing import Figure

from .charts import Chart, figure, steps_axis, value_axis
from .cost import json_text, markdown_table, with_tables
from .cut_signals import POINTS
from .cut_signals import SEED as CUT_SEED
from .images import read_whole
from .kept import read_kept
from .measure import AUC, RATES, Measured, difference, of_result
from .script import end, say
from .setting import HERE, SIGNALS, Setting, Source
from .whole import WHOLE

RESULT, PAGE = HERE / "rivals.json", HERE.parent / "docs" / "explanation" / "which-attack.md"
OURS, TARGETS, BUDGETS = "pl-mia-eb", 20, (2, 4, 8, 16, 64)
MODES: tuple[Mode, ...] = ("online", "offline")
METRICS = (AUC, *RATES)
ALL = ATTACKS | RIVALS
WITH_REFERENCES = [attack for attack in ALL.values() if attack.uses_references]
RECORD_ATTACKS = [*SCREENING.values(), RIVALS["quantile-regression"]]
# Columns of the tables; the other attacks are in rivals.json.
SHOWN = ("lira", "lira-fixed", "rmia", "pl-mia", "bavaria-t", "info-rmia", "base", OURS)
# Sets and attacks of the figure.
PANELS = ("location_mlp", "adult_mlp", "cifar10_wrn")
LINES = ("lira-fixed", "rmia", "pl-mia", OURS, "bavaria-t", "base")


# Measuring ------------------------------------------------------------------------------------------------------------


def read_set(name: str, folder: Path, targets: int) -> Source:
    """Read one set of signals: kept models, a store, or an npz file."""
    setting = Setting(targets=targets, signals=folder)
    if (folder / name / "about.json").exists():
        return setting.source_of(*read_kept(folder / name))
    return setting.source(name)


def records_of(name: str, source: Source, data: Path) -> Features | None:
    """Features of the records of a set; None if the folder lacks its data, or the records are images."""
    if name not in WHOLE or not (files := WHOLE[name].files_in(data)):
        return None
    whole = read_whole(*files)
    if whole.is_images:
        return None
    features, labels, n = features_of(whole), np.asarray(whole.y), source.signals.n_points
    rows = np.arange(whole.n_points)
    if n == POINTS.get(name) and n < whole.n_points:
        rows = np.sort(np.random.default_rng(CUT_SEED).choice(whole.n_points, n, replace=False))
    if len(rows) != n or not np.array_equal(labels[rows], source.signals.labels):
        raise DataError(f"the labels of {name} are not those of {files[0].name}: give the data that it was trained on")
    return Features(features.columns[rows], features.categories)


def measure(source: Source, features: Features | None = None) -> dict[str, Any]:
    """Attack all targets of a set in both modes with all numbers of references."""
    rows = []
    for mode in MODES:
        for n in [n for n in BUDGETS if n <= source.references]:
            setup = source.setup(mode, n)
            results = attack_targets(
                source.signals, WITH_REFERENCES, source.targets, setup, refused=lambda _name, _error: None
            )
            rows += [{"mode": mode, "references": n} | row for row in _rows(results, len(source.targets))]
            say(f"{source.data}, {mode}, {n} references")
    screened: Iterable[AttackResult] = ()
    if features is not None:
        setup = Setup(references=0, seed=source.seed)
        screened = attack_targets(source.signals, RECORD_ATTACKS, source.targets, setup, features=features)
    return {
        "data": source.data,
        "model": source.about.get("model") or source.about.get("recipe"),
        "records": source.signals.n_points,
        "views": source.signals.n_views,
        "targets": list(source.targets),
        "metrics": list(METRICS),
        "rows": rows,
        "screened": list(_rows(screened, len(source.targets))),
    }


def _rows(results: Iterable[AttackResult], n_targets: int) -> Iterator[dict[str, Any]]:
    """Mean of every attack that could judge all targets, and its difference to `OURS`, where that could too."""
    found: dict[str, Measured] = {}
    population: list[int] = []
    for result in results:
        found.setdefault(result.scores.attack, Measured()).add(of_result(result))
        population.append(len(result.population))
    complete = {name: measured for name, measured in found.items() if len(measured.values[AUC]) == n_targets}
    for name, measured in complete.items():
        row: dict[str, Any] = {"attack": name, "mean": [_rounded(measured.mean(metric)) for metric in METRICS]}
        if name != OURS and OURS in complete:
            row["ahead"] = [_interval(complete[OURS], measured, metric) for metric in METRICS]
        yield row | {"population": round(float(np.mean(population)))}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _interval(ours: Measured, theirs: Measured, metric: str) -> list[float] | None:
    """Mean paired difference over targets and its 95 % interval; None if a rate is not resolved."""
    found = difference(ours, theirs, metric)
    return None if found is None else [round(x, 3) for x in (found.difference, found.low, found.high)]


# Writing --------------------------------------------------------------------------------------------------------------


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Tables of the page, as Markdown."""
    made = {
        "sets": markdown_table(
            ("model", "records", "views", "targets", "known non-members"),
            [
                (_title(each), each["model"], f"{each['records']:,}", each["views"], len(each["targets"]), _known(each))
                for each in found.values()
            ],
        ),
        "screened": markdown_table(
            ("attack", "AUC", "TPR at 1 %", "known non-members"),
            [
                (_title(each), f"`{row['attack']}`", *map(_cell, row["mean"][:2]), row["population"])
                for each in found.values()
                for row in each["screened"]
            ],
        ),
    }
    for mode in MODES:
        made[f"{mode} auc"] = _means(found, mode, 0)
        made[f"{mode} tpr"] = _means(found, mode, 1)
        made[f"{mode} low"] = _means(found, mode, 2)
        made[f"{mode} wins"] = _wins(found, mode)
        made[f"{mode} exceptions"] = _exceptions(found, mode)
    return made


def _known(each: dict[str, Any]) -> int:
    return int(each["rows"][0]["population"])


def _title(each: dict[str, Any]) -> str:
    """Data, and the depth of trees."""
    depth = re.search(r"gbdt .*depth (\d+)", each["model"])
    return f"{each['data']}, trees of depth {depth[1]}" if depth else str(each["data"])


def _settings(found: dict[str, Any], mode: str) -> Iterator[tuple[dict[str, Any], int, dict[str, dict[str, Any]]]]:
    """Yield every set and number of references with its rows by attack."""
    for each in found.values():
        for n in BUDGETS:
            rows = {row["attack"]: row for row in each["rows"] if (row["mode"], row["references"]) == (mode, n)}
            if rows:
                yield each, n, rows


def _means(found: dict[str, Any], mode: str, metric: int) -> str:
    """Means of the shown attacks, the largest in bold; settings that do not resolve the metric are left out."""
    lines = []
    for each, n, rows in _settings(found, mode):
        values = [rows[name]["mean"][metric] if name in rows else None for name in SHOWN]
        most = max((value for value in values if value is not None), default=None)
        if most is None:
            continue
        cells = [f"**{_cell(value)}**" if value == most else _cell(value) for value in values]
        lines.append((_title(each), n, *cells))
    return markdown_table(("references", *(f"`{name}`" for name in SHOWN)), lines)


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def outcome(interval: list[float]) -> str:
    """What a paired interval shows of `OURS`: ahead, behind, or neither."""
    _, low, high = interval
    return "ahead" if low > 0 else "behind" if high < 0 else "open"


def _wins(found: dict[str, Any], mode: str) -> str:
    """In how many settings `OURS` is ahead of each attack, neither, and behind, for three metrics."""
    counts: dict[str, dict[str, Counter[str]]] = {}
    for _, _, rows in _settings(found, mode):
        for name, row in rows.items():
            for metric, interval in zip(METRICS, row.get("ahead", ()), strict=False):
                if interval is not None:
                    counts.setdefault(name, {}).setdefault(metric, Counter())[outcome(interval)] += 1
    shown = (AUC, "TPR@1%", "TPR@0%")
    lines = [
        (f"`{name}`", *(" / ".join(str(of[metric][what]) for what in ("ahead", "open", "behind")) for metric in shown))
        for name, of in counts.items()
    ]
    return markdown_table(("AUC", "TPR at 1 %", "TPR at 0 %"), lines).replace("| data |", "| attack |", 1)


def _exceptions(found: dict[str, Any], mode: str) -> str:
    """Settings in which `OURS` is behind some attack, and the one that leads by most, for AUC and TPR at 1 %."""
    lines = []
    for metric, title in ((0, "AUC"), (1, "TPR at 1 %")):
        for each, n, rows in _settings(found, mode):
            behind = {
                name: row["ahead"][metric]
                for name, row in rows.items()
                if row.get("ahead") and row["ahead"][metric] and outcome(row["ahead"][metric]) == "behind"
            }
            if behind:
                first = min(behind, key=lambda name: behind[name][0])
                apart, low, high = behind[first]
                lines.append((_title(each), n, title, f"`{first}`", f"{apart:+.1f} ({low:+.1f} to {high:+.1f})"))
    return markdown_table(("references", "metric", "best attack", "pl-mia-eb minus it"), lines)


def chart(found: dict[str, Any]) -> Figure:
    """AUC against the number of references, online."""
    charts = []
    for name in PANELS:
        each = next(each for key, each in found.items() if key.startswith(f"{name}-"))
        rows = [row for row in each["rows"] if row["mode"] == "online"]
        lines = {
            attack: (
                [row["references"] for row in rows if row["attack"] == attack],
                [row["mean"][0] for row in rows if row["attack"] == attack],
            )
            for attack in LINES
        }
        steps = sorted({float(row["references"]) for row in rows})
        charts.append(Chart(steps_axis(f"references, {each['data']}", steps), value_axis("AUC (%)", lines), lines))
    alt = "AUC against the number of references, online: " + ", ".join(found_name(found, name) for name in PANELS) + "."
    return figure("which-attack", charts, alt, 320, "AUC against the number of references")


def found_name(found: dict[str, Any], name: str) -> str:
    """Name of the data of a set."""
    return str(next(each["data"] for key, each in found.items() if key.startswith(f"{name}-")))


def write(page: Path = PAGE) -> None:
    """Replace the tables of the page, and write its figure beside it."""
    found = json.loads(RESULT.read_text(encoding="utf-8"))
    page.write_text(with_tables(page.read_text(encoding="utf-8"), tables(found), "rivals"), encoding="utf-8")
    (page.parent / "which-attack.svg").write_text(f"{chart(found).svg}\n", encoding="utf-8")


def main(task: str, names: list[str], signals: Path, data: Path | None, targets: int) -> None:
    """Run one task."""
    if task == "write":
        write()
        return
    for name in names or POINTS:
        source = read_set(name, signals, targets)
        features = None if data is None else records_of(name, source, data)
        made = measure(source, features)
        found = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
        key = f"{name}-{source.signals.n_points}"
        RESULT.write_text(f"{json_text(found | {key: made})}\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("measure", "write"))
    parser.add_argument("names", nargs="*", metavar="SET")
    parser.add_argument("--signals", type=Path, default=SIGNALS)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--targets", type=int, default=TARGETS)
    given = parser.parse_intermixed_args()
    end(main, given.task, given.names, given.signals, given.data, given.targets)
