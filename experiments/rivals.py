"""Which attack wins? All attacks of the package, those published since the paper included, on the same targets.

    python -m experiments.rivals measure [--signals FOLDER] [--data DATA] [--targets N] [--references N] [SET ...]
    python -m experiments.rivals write

``measure`` attacks the sets of signals in FOLDER and adds each set to rivals.json. By default these are all sets of the
repository that have enough models, `SETS`, with at most `TARGETS` targets and with the numbers of references of
`steps`. So this command measures every row of the repository's own signals again:

    python -m experiments.rivals measure --data DATA

The signals of two sets are not in the repository. The folder `full` has those that `experiments.whole` trains:

    python -m experiments.rivals measure --signals FOLDER cifar10_cnn
    python -m experiments.rivals measure --signals full --targets 20 location_mlp

A set is NAME.npz, a store, or a folder of kept models (`kept.py`), such as cifar100_wrn. With DATA, the folder of the
data sets, attacks that read the records and need no references are measured as well; without it, their earlier rows
stay if their targets are the same. With ``--references``, only these numbers of references are measured, and the other
rows of a set stay. ``write`` puts the tables and the figures into docs/explanation/which-attack.md. Targets start at
``first_target``, because earlier models influenced the design of pl-mia-eb. References are not aligned. Each target has
its own draw of references and of known non-members, so intervals over targets cover these draws.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from plmia.attacks.attack import ATTACKS, RIVALS, SCREENING, Attack
from plmia.attacks.view import Features, Mode
from plmia.auditing.screen import features_of, unreadable
from plmia.errors import DataError
from plmia.evaluation.targets import AttackResult, Setup, attack_targets
from plmia.numerics import holm
from plmia.reporting.drawing import Figure
from plmia.signals.signals import read_signals

from .charts import Chart, HeatCell, figure, heat_map, steps_axis, value_axis
from .cost import json_text, markdown_table, with_tables
from .cut_signals import POINTS
from .cut_signals import SEED as CUT_SEED
from .images import read_whole
from .kept import read_kept, read_kept_design
from .measure import AUC, RATES, Measured, difference, of_result
from .script import end, say
from .setting import HERE, SIGNALS, Setting, Source, read_named
from .whole import WHOLE

RESULT, PAGE = HERE / "rivals.json", HERE.parent / "docs" / "explanation" / "which-attack.md"
OURS, TARGETS, BUDGETS = "pl-mia-eb", 100, (2, 4, 8, 16, 64)
# Attacks that read the records fit trees for every target, so they take the first ones only.
SCREENED = 20
# The largest number of references of a set is measured as well, if it is at least this multiple of the last step.
LAST_STEP = 4 / 3
# Sets of the repository. Two more are measured from signals elsewhere: see the commands above.
SETS = (*POINTS, "cifar100_wrn_plain", "cifar100_wrn_jpeg")
MODES: tuple[Mode, ...] = ("online", "offline")
METRICS = (AUC, *RATES)
ALL = ATTACKS | RIVALS
WITH_REFERENCES = [attack for attack in ALL.values() if attack.uses_references]
RECORD_ATTACKS = [*SCREENING.values(), RIVALS["quantile-regression"]]
# Columns of the tables; the other attacks are in rivals.json.
SHOWN = ("lira", "lira-fixed", "rmia", "pl-mia", "bavaria-t", "info-rmia", "base", OURS)
# Set and attacks of the figure on low rates. pl-mia would stretch the axes.
TAIL = "cifar100_wrn-50000"
LINES = ("lira-fixed", "rmia", OURS, "bavaria-t", "info-rmia")
# Level of the intervals, and of Holm's adjusted p-values. Chance puts half of it on each side.
LEVEL = 0.05
TITLES = {AUC: "AUC", "TPR@1%": "TPR at 1 %", "TPR@0.1%": "TPR at 0.1 %", "TPR@0.01%": "TPR at 0.01 %"}
TITLES |= {"TPR@0%": "TPR at 0 %"}
# Whole signals that were given, not trained here, and are not in the repository.
GIVEN: dict[str, dict[str, Any]] = {
    "cifar10_cnn": {"data": "CIFAR-10, small CNN", "model": "small CNN on images kept as JPEG", "first_target": 42}
}


# Measuring ------------------------------------------------------------------------------------------------------------


def read_set(name: str, folder: Path, targets: int) -> Source:
    """Read one set of signals: kept models, a store, or an npz file."""
    setting = Setting(targets=targets, signals=folder)
    if (folder / name / "about.json").exists():
        return setting.source_of(*read_kept(folder / name))
    if name in GIVEN:
        return setting.source_of(read_signals(folder / f"{name}.npz"), GIVEN[name])
    return setting.source(name)


def steps(most: int) -> list[int]:
    """Numbers of references that are measured if a target has at most this many."""
    found = [n for n in BUDGETS if n <= most]
    return [*found, most] if most >= LAST_STEP * found[-1] else found


def planned(name: str, folder: Path = SIGNALS) -> tuple[str, list[int], list[int]]:
    """Return a set's name in rivals.json, and the targets and numbers of references that ``measure`` uses."""
    if (folder / name / "about.json").exists():
        design, about = read_kept_design(folder / name)
    else:
        signals, about = read_named(folder, name)
        design = signals.design
    targets, most = Setting(targets=TARGETS).choice(design, about)
    return f"{name}-{design.n_points}", list(targets), steps(most)


def records_of(name: str, source: Source, data: Path) -> Features | None:
    """Features of the records of a set; None if the folder lacks its data, or trees cannot learn from them."""
    if name not in WHOLE or not (files := WHOLE[name].files_in(data)):
        return None
    whole = read_whole(*files)
    if unreadable(whole):
        return None
    features, labels, n = features_of(whole), np.asarray(whole.y), source.signals.n_points
    rows = np.arange(whole.n_points)
    if n == POINTS.get(name) and n < whole.n_points:
        rows = np.sort(np.random.default_rng(CUT_SEED).choice(whole.n_points, n, replace=False))
    if len(rows) != n or not np.array_equal(labels[rows], source.signals.labels):
        raise DataError(f"the labels of {name} are not those of {files[0].name}: give the data that it was trained on")
    return Features(features.columns[rows], features.categories)


def measure(source: Source, features: Features | None = None, budgets: Sequence[int] | None = None) -> dict[str, Any]:
    """Attack all targets of a set in both modes with these numbers of references, by default those of `steps`."""
    rows = []
    for mode in MODES:
        for n in [n for n in budgets or steps(source.references) if n <= source.references]:
            results = attacked(source, WITH_REFERENCES, source.targets, source.setup(mode, n))
            rows += [{"mode": mode, "references": n} | row for row in rows_of(results, len(source.targets))]
            say(f"{source.data}, {mode}, {n} references")
    few = source.targets[:SCREENED]
    screened: Iterable[AttackResult] = ()
    if features is not None:
        setup = Setup(references=0, seed=source.seed)
        screened = attacked(source, RECORD_ATTACKS, few, setup, features)
    return {
        "data": source.data,
        "model": source.about.get("model") or source.about.get("recipe"),
        "records": source.signals.n_points,
        "views": source.signals.n_views,
        "targets": list(source.targets),
        "metrics": list(METRICS),
        "rows": rows,
        "screened": list(rows_of(screened, len(few))),
    }


def attacked(
    source: Source, attacks: Sequence[Attack], targets: Sequence[int], setup: Setup, features: Features | None = None
) -> Iterator[AttackResult]:
    """Attack each target with its own draw of references and population; attacks that lack references are left out."""
    for target in targets:
        own = replace(setup, seed=setup.seed + target)
        yield from attack_targets(
            source.signals, attacks, [target], own, refused=lambda _name, _error: None, features=features
        )


def merged(before: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Return a set with its new rows in place of the old ones; rows of other numbers of references stay."""
    for name in ("targets", "records", "views", "metrics"):
        if before[name] != made[name]:
            raise DataError(f"the {name} of {made['data']} have changed: measure all numbers of references again")
    new = {row["references"] for row in made["rows"]}
    rows = [*made["rows"], *(row for row in before["rows"] if row["references"] not in new)]
    rows.sort(key=lambda row: (MODES.index(row["mode"]), row["references"]))
    return before | {"rows": rows} | ({"screened": made["screened"]} if made["screened"] else {})


def rows_of(results: Iterable[AttackResult], n_targets: int) -> Iterator[dict[str, Any]]:
    """Mean of every attack that could judge all targets, and how far `OURS` is ahead, where that could too."""
    found: dict[str, Measured] = {}
    population: list[int] = []
    for result in results:
        found.setdefault(result.scores.attack, Measured()).add(of_result(result))
        population.append(len(result.population))
    complete = {name: measured for name, measured in found.items() if len(measured.values[AUC]) == n_targets}
    for name, measured in complete.items():
        row: dict[str, Any] = {"attack": name, "mean": [_rounded(measured.mean(metric)) for metric in METRICS]}
        if name != OURS and OURS in complete:
            apart = [difference(complete[OURS], measured, metric) for metric in METRICS]
            row["ahead"] = [d and [round(x, 3) for x in (d.difference, d.low, d.high)] for d in apart]
            row["p_values"] = [d and float(f"{d.p_value:.3g}") for d in apart]
        yield row | {"population": round(float(np.mean(population)))}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


# Writing --------------------------------------------------------------------------------------------------------------


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Tables of the page, as Markdown."""
    made = {
        "summary": _summary(found),
        "chance": _chance(found),
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
        made[f"{mode} lowest"] = _means(found, mode, 3)
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
        for n in sorted({row["references"] for row in each["rows"] if row["mode"] == mode}):
            yield (
                each,
                n,
                {row["attack"]: row for row in each["rows"] if (row["mode"], row["references"]) == (mode, n)},
            )


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


def compared(rows: dict[str, dict[str, Any]], metric: str) -> dict[str, list[float]]:
    """Paired intervals of `OURS` against every other attack of a setting, where the metric is resolved."""
    place = METRICS.index(metric)
    return {name: row["ahead"][place] for name, row in rows.items() if row.get("ahead") and row["ahead"][place]}


def outcomes(rows: dict[str, dict[str, Any]], metric: str, corrected: bool = False) -> dict[str, str]:
    """Outcome of `OURS` against every other attack; ``corrected``: only what remains after Holm's correction."""
    place = METRICS.index(metric)
    return {
        name: "open" if corrected and rows[name]["adjusted"][place] >= LEVEL else outcome(interval)
        for name, interval in compared(rows, metric).items()
    }


def behind(rows: dict[str, dict[str, Any]], metric: str, corrected: bool = False) -> list[str]:
    """Names of the attacks that are shown to be ahead of `OURS`, the one that leads by most first."""
    ahead = [name for name, what in outcomes(rows, metric, corrected).items() if what == "behind"]
    return sorted(ahead, key=lambda name: compared(rows, metric)[name][0])


def standing(rows: dict[str, dict[str, Any]], metric: str, corrected: bool = False) -> str | None:
    """Whether `OURS` is shown to be ahead of all attacks of a setting ("first"), "behind" one of them, or "level"."""
    found = set(outcomes(rows, metric, corrected).values())
    if not found:
        return None
    return "behind" if "behind" in found else "level" if "open" in found else "first"


def _summary(found: dict[str, Any]) -> str:
    """In how many settings `OURS` is first, level and behind, for each mode and metric."""
    lines = []
    for mode in MODES:
        for metric, title in TITLES.items():
            settings = [rows for _, _, rows in _settings(found, mode)]
            plain = Counter(standing(rows, metric) for rows in settings)
            strict = Counter(standing(rows, metric, corrected=True) for rows in settings)
            counts = *(plain[what] for what in ("first", "level", "behind")), strict["first"], strict["behind"]
            lines.append((mode, title, *counts))
    head = ("metric", "ahead of every attack", "level with at least one, behind none", "behind at least one")
    after = ("ahead of every attack after Holm", "behind at least one after Holm")
    return markdown_table((*head, *after), lines).replace("| data |", "| mode |", 1)


def _chance(found: dict[str, Any]) -> str:
    """Numbers of comparisons of each mode, and how many chance alone would show as behind."""
    lines = []
    for mode in MODES:
        plain, strict = (
            Counter(
                what
                for _, _, rows in _settings(found, mode)
                for metric in METRICS
                for what in outcomes(rows, metric, corrected).values()
            )
            for corrected in (False, True)
        )
        shown = *(plain[what] for what in ("ahead", "open", "behind")), f"{plain['open'] * LEVEL / 2:.0f}"
        lines.append((mode, plain.total(), *shown, strict["ahead"], strict["behind"]))
    head = ("comparisons", "ahead", "undecided", "behind", "behind by chance", "ahead after Holm", "behind after Holm")
    return markdown_table(head, lines).replace("| data |", "| mode |", 1)


def _wins(found: dict[str, Any], mode: str) -> str:
    """In how many settings `OURS` is ahead of each attack, neither, and behind, for all metrics."""
    counts: dict[str, dict[str, Counter[str]]] = {}
    for _, _, rows in _settings(found, mode):
        for metric in METRICS:
            for name, what in outcomes(rows, metric).items():
                counts.setdefault(name, {}).setdefault(metric, Counter())[what] += 1
    lines = [
        (
            f"`{name}`",
            *(" / ".join(str(of[metric][what]) for what in ("ahead", "open", "behind")) for metric in METRICS),
        )
        for name, of in counts.items()
    ]
    return markdown_table(tuple(TITLES.values()), lines).replace("| data |", "| attack |", 1)


def exceptions(
    found: dict[str, Any], mode: str
) -> Iterator[tuple[dict[str, Any], int, str, dict[str, dict[str, Any]]]]:
    """Yield settings and metrics in which `OURS` is behind, with the rows by attack."""
    for metric in METRICS:
        for each, n, rows in _settings(found, mode):
            if behind(rows, metric):
                yield each, n, metric, rows


def _exceptions(found: dict[str, Any], mode: str) -> str:
    """Settings in which `OURS` is behind some attack, for all metrics."""
    lines = []
    for each, n, metric, rows in exceptions(found, mode):
        names = behind(rows, metric)
        apart, low, high = compared(rows, metric)[names[0]]
        difference = f"{apart:+.2f} ({low:+.2f} to {high:+.2f})"
        lines.append((_title(each), n, TITLES[metric], _code(names), difference, _code(behind(rows, metric, True))))
    head = ("references", "metric", "attacks ahead", "pl-mia-eb minus the first of them", "still ahead after Holm")
    return markdown_table(head, lines)


def _code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def charts(found: dict[str, Any]) -> dict[str, Figure]:
    """Figures of the page by file name: the lead in AUC in all settings, and low rates of one set."""
    places = [("online", "TPR@0.1%"), ("offline", "TPR@0.1%"), ("offline", "TPR@0.01%")]
    panels = [
        _chart(found[TAIL], mode, metric, f"references, {mode}", f"{TITLES[metric]} (%)") for mode, metric in places
    ]
    alt = (
        "TPR at 0.1 % FPR online and offline, and at 0.01 % FPR offline, against the number of references, "
        f"{found[TAIL]['data']}."
    )
    return {
        "which-attack": _lead_map(found),
        "which-attack-tail": figure("which-attack-tail", panels, alt, 320, f"Low rates on {found[TAIL]['data']}"),
    }


def _lead_map(found: dict[str, Any]) -> Figure:
    """Lead of `OURS` over the best other attack in points of AUC, for all settings."""
    marks = {"behind": "another attack is shown to be ahead", "level": "another attack is level"}
    cells = {
        f"references, {mode}": [
            HeatCell(
                _title(each),
                str(n) if n in BUDGETS else "largest",
                min(lead for lead, _, _ in compared(rows, AUC).values()),
                marks.get(standing(rows, AUC) or "", ""),
            )
            for each, n, rows in _settings(found, mode)
        ]
        for mode in MODES
    }
    alt = (
        f"AUC of {OURS} minus the largest AUC of another attack, in points, for each set (rows) and number of "
        "references (columns), online and offline. The tables of the page have the AUC of each attack."
    )
    title = f"Lead of {OURS} over the best other attack, in points of AUC"
    return heat_map("which-attack", cells, [*map(str, BUDGETS), "largest"], list(marks.values()), alt, title)


def _chart(each: dict[str, Any], mode: str, metric: str, x_title: str, y_title: str) -> Chart:
    """One metric against the number of references."""
    place, rows = METRICS.index(metric), [row for row in each["rows"] if row["mode"] == mode]
    lines = {
        attack: (
            [row["references"] for row in rows if row["attack"] == attack],
            [row["mean"][place] for row in rows if row["attack"] == attack],
        )
        for attack in LINES
    }
    values = sorted({float(row["references"]) for row in rows})
    return Chart(steps_axis(x_title, values), value_axis(y_title, lines), lines)


def results() -> dict[str, Any]:
    """Committed results; each row gets its p-values after Holm's correction for all comparisons of its mode."""
    found: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    for mode in MODES:
        rows = [row for each in found.values() for row in each["rows"] if row["mode"] == mode and "p_values" in row]
        adjusted = iter(holm([p for row in rows for p in row["p_values"] if p is not None]).tolist())
        for row in rows:
            row["adjusted"] = [None if p is None else next(adjusted) for p in row["p_values"]]
    return found


def write(page: Path = PAGE) -> None:
    """Replace the tables of the page, and write its figures beside it."""
    found = results()
    page.write_text(with_tables(page.read_text(encoding="utf-8"), tables(found), "rivals"), encoding="utf-8")
    for name, drawn in charts(found).items():
        (page.parent / f"{name}.svg").write_text(f"{drawn.svg}\n", encoding="utf-8")


def main(
    task: str, names: list[str], signals: Path, data: Path | None, targets: int, budgets: Sequence[int] | None = None
) -> None:
    """Run one task."""
    if task == "write":
        write()
        return
    for name in names or SETS:
        source = read_set(name, signals, targets)
        features = None if data is None else records_of(name, source, data)
        made = measure(source, features, budgets)
        found = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
        n_points = source.signals.n_points
        key = f"{name}-{n_points}"
        if n_points != POINTS.get(name) and f"{name}-{POINTS.get(name)}" in found:
            made["data"] += ", all records"
        before = found.get(key)
        if before and budgets:
            made = merged(before, made)
        elif before and before["targets"][:SCREENED] == made["targets"][:SCREENED] and not made["screened"]:
            made["screened"] = before["screened"]
        RESULT.write_text(f"{json_text(found | {key: made})}\n", encoding="utf-8")


def arguments() -> argparse.ArgumentParser:
    """Options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("measure", "write"))
    parser.add_argument("names", nargs="*", metavar="SET")
    parser.add_argument("--signals", type=Path, default=SIGNALS)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--targets", type=int, default=TARGETS)
    parser.add_argument("--references", type=int, action="append", metavar="N")
    return parser


if __name__ == "__main__":
    given = arguments().parse_intermixed_args()
    end(main, given.task, given.names, given.signals, given.data, given.targets, given.references)
