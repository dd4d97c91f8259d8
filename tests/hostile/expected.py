"""What results must be: a second calculation with NumPy alone, in a few lines, of what plmia printed or wrote.

Nothing here calls plmia, so that a defect of its reader, its attacks or its metrics shows as a difference.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]
Files = dict[str, Any]  # scores.npz and records.csv as bytes, metrics.json as bytes or parsed


class WrongNumberError(AssertionError):
    """A number that plmia printed or wrote differs from a second calculation."""


def _require(right: Any, what: str) -> None:
    if not right:
        raise WrongNumberError(what)


def arrays_in(npz: bytes | Path) -> Arrays:
    """Arrays of an npz as NumPy reads them; a flag may have any byte but 0."""
    with np.load(io.BytesIO(npz) if isinstance(npz, bytes) else npz) as archive:
        return {name: flags(archive[name]) for name in archive.files}


def flags(found: Any) -> Any:
    """Booleans of a file, in which any byte but 0 is True."""
    return found.view(np.uint8) != 0 if found.dtype == bool else found


# Metrics -------------------------------------------------------------------------------------------------------------


def auc(score: Any, members: Any) -> float:
    """Share of pairs of a member and a non-member in which the member scores higher; ties count half."""
    one, other = score[members][:, None], score[~members][None]
    return float(((one > other) + 0.5 * (one == other)).mean())


def tpr(score: Any, members: Any, rate: str | float) -> float:
    """Largest share of members above a threshold that at most this share of the non-members reaches."""
    allowed = int(Fraction(rate) * int((~members).sum()))
    found = [score[members] >= t for t in np.unique(score) if (score[~members] >= t).sum() <= allowed]
    return max((float(each.mean()) for each in found), default=0.0)


def _is_near(one: Any, other: Any, tolerance: float = 1e-9) -> bool:
    return one is not None and bool(np.allclose(one, other, rtol=0, atol=tolerance))


def _evaluated(scores: Arrays, attack: str, target: Any) -> tuple[Any, Any]:
    queries = scores[f"queries/{target}"]
    return scores[f"{attack}/{target}/score"][queries], scores[f"members/{target}"][queries]


# Results -------------------------------------------------------------------------------------------------------------


def check_results(files: Files) -> None:
    """Compare metrics.json and records.csv with scores.npz, and scores and p-values with the statistics there."""
    metrics, scores = files["metrics.json"], arrays_in(files["scores.npz"])
    if isinstance(metrics, bytes):
        metrics = json.loads(metrics)
    for target in metrics["about"]["targets"]:
        known, queries = scores[f"population/{target}"], scores[f"queries/{target}"]
        members = scores[f"members/{target}"]
        _require(not members[known].any() and not np.intersect1d(known, queries).size, "who is in the population")
        for attack in metrics["attacks"]:
            _check_scores_of(scores, f"{attack}/{target}", attack, known, queries)
    for attack, entry in metrics["attacks"].items():
        each = entry["per_target"]
        _require([e["target"] for e in each] == metrics["about"]["targets"], f"targets of {attack}")
        for found in each:
            score, truth = _evaluated(scores, attack, found["target"])
            where = f"{attack} on target {found['target']}"
            sizes = found["n_members"], found["n_non_members"]
            _require(sizes == (truth.sum(), (~truth).sum()), f"numbers of records: {where}")
            _require(_is_near(found["auc"], auc(score, truth)), f"AUC of {where}: {found['auc']}")
            for rate, point in found["tpr"].items():
                _require(_is_near(point["tpr"], tpr(score, truth, rate)), f"TPR at {rate} of {where}: {point['tpr']}")
        _require(_is_near(entry["auc"]["mean"], np.mean([e["auc"] for e in each])), f"mean AUC of {attack}")
    if metrics["about"].get("unit") == "record":
        _check_records(files["records.csv"], scores, metrics)


def _check_scores_of(scores: Arrays, name: str, attack: str, known: Any, queries: Any) -> None:
    score, statistic = scores[f"{name}/score"][queries], scores[f"{name}/statistic"]
    phi, against = statistic[queries], statistic[known]
    below = (against[None] < phi[:, None]).sum(axis=1)
    if attack == "attack-p":
        _require(_is_near(score, below / len(known)), f"scores of {name}")
    elif attack == "attack-r":
        _require(np.array_equal(score, phi), f"scores of {name}")
    # Of all attacks with one value per record: whoever has the larger statistic has the larger score.
    order = np.argsort(phi, kind="stable")
    _require((np.diff(score[order]) >= -1e-9 * max(1.0, float(np.abs(score).max()))).all(), f"order of {name}")
    if len(known) < 200:  # more may be compared within ranges of the size of a group
        p = np.log10((len(known) + 1 - below) / (len(known) + 1))
        _require(_is_near(scores[f"{name}/log10_p_conformal"][queries], p), f"p-values of {name}")


def _check_records(table: bytes, scores: Arrays, metrics: Any) -> None:
    rows = list(csv.DictReader(io.StringIO(table.decode("utf-8-sig"), newline="")))
    attack, target = metrics["verdict"]["attack"], metrics["about"]["targets"][0]
    index = np.array([int(row["index"]) for row in rows], int)
    _require(np.array_equal(np.sort(index), np.sort(scores[f"queries/{target}"])), "records of records.csv")
    for column, name in (("score", f"{attack}/{target}/score"), ("member", f"members/{target}")):
        _require(_is_near([float(row[column]) for row in rows], scores[name][index]), f"{column} in records.csv")
    p = 10 ** scores[f"{attack}/{target}/log10_p_conformal"][index]
    _require(np.allclose([float(row["p"]) for row in rows], p, rtol=1e-5), "p in records.csv")


def check_scored(files: Files, given: Arrays, scale: str = "logit", rows: dict[int, int] | None = None) -> None:
    """Compare members and statistics with what arrays of a signals file give.

    Parameters
    ----------
    files, given : dict
        Results, and the arrays of the signals file.
    scale : str
        Scale of the signals; "auto" is "logit".
    rows : dict, optional
        Row of each target in the file, where this is not its number.
    """
    metrics, scores = files["metrics.json"], arrays_in(files["scores.npz"])
    signals = np.asarray(given["signals"], np.float64)
    signals = signals if signals.ndim == 3 else signals[:, :, None]
    members = _membership(given, signals.shape[1])
    if scale == "probability":
        clipped = np.clip(signals, 1e-12, 1 - 1e-12)
        signals = np.log(clipped) - np.log1p(-clipped)
    if "labels" in given and "labels" in scores:
        _require(np.array_equal(scores["labels"], given["labels"]), "labels")
    about = metrics["about"]
    if about.get("unit") != "record":
        return
    aligned = '"alignment":' in json.dumps(metrics)
    for target in about["targets"]:
        row = target if rows is None else rows[target]
        _require(np.array_equal(scores[f"members/{target}"], members[row]), f"members of target {target}")
        if f"attack-p/{target}/statistic" in scores:
            found = scores[f"attack-p/{target}/statistic"]
            if scale == "signal":  # on any scale, so that only the order counts
                right = signals.shape[2] > 1 or _order(signals[row, :, 0].astype(np.float32)) == _order(found)
            else:
                phi = -np.logaddexp(0, -signals[row]).mean(axis=1)
                right = np.allclose(found, phi, rtol=1e-4, atol=1e-6)
            _require(right, f"statistic of attack-p on target {target}")
        unlike = [i for i in range(len(members)) if i != row and not _tells(members[i], members[row])]
        if f"attack-r/{target}/statistic" in scores and not aligned and set(about["references"]) == {len(unlike)}:
            found = scores[f"attack-r/{target}/statistic"]
            ranks = [_ranks(signals.astype(kind), members, row, unlike) for kind in (np.float32, np.float64)]
            same = any(np.allclose(found, rank, rtol=0, atol=1e-6) for rank in ranks)
            _require(same, f"statistic of attack-r on target {target}")


def _membership(given: Arrays, n: int) -> Any:
    found = np.asarray(given["membership"])
    if found.shape[-1] != n and "n_points" in given:
        return np.unpackbits(found.astype(np.uint8), axis=1, count=n).astype(bool)
    return found != 0


def _order(values: Any) -> list[int]:
    return list(np.unique(values, return_inverse=True)[1])


def _tells(one: Any, other: Any) -> bool:
    """Whether the members of one model follow from those of another."""
    return bool(np.array_equal(one, other) or np.array_equal(one, ~other))


def _ranks(signals: Any, members: Any, row: int, references: list[int]) -> Any:
    """Share of the OUT references of each record that are less confident than the target, ties counted half."""
    out = ~members[references][:, :, None]
    less, equal = signals[references] < signals[row], signals[references] == signals[row]
    with np.errstate(invalid="ignore"):
        return (((less + 0.5 * equal) * out).sum(axis=0) / out.sum(axis=0)).mean(axis=1)


def check_design(npz: Path, records: int, references: int, kind: str) -> None:
    """Compare the size of a design with what was asked for, and its references with their kind."""
    found = arrays_in(npz)
    members = _membership(found, int(found["n_points"]))
    _require(members.shape == (references + 1, records), f"design: {members.shape}")
    half = members[0].sum() in (records // 2, records - records // 2)
    if kind == "pairs":
        _require(half and np.array_equal(members[1::2], ~members[2::2]), "design: no complementary pairs")
    elif kind == "exact":
        _require(half and (members[1:].sum(axis=0) == references // 2).all(), "design: not exact")


def check_plan(printed: str, auc_of_all: float) -> None:
    """Compare what a plan measured with all references with the AUC of the same attack on the same records."""
    said = json.loads(printed)
    # The last population is the whole one, which the AUC of the pilot has, too.
    _require(_is_near(said["population"][-1]["auc"], auc_of_all), f"plan: AUC {said['population'][-1]['auc']}")


# What commands print -------------------------------------------------------------------------------------------------


def check_gate(printed: str, code: int, files: Files) -> None:
    """Compare the JSON of `plmia gate` and its exit code with the scores."""
    said, scores = json.loads(printed), arrays_in(files["scores.npz"])
    _require({"pass": 0, "fail": 3, "undecided": 2}[said["outcome"]] == code, f"exit code {code}: {said['outcome']}")
    if (worst := said["worst"]) is None:
        _require(said["outcome"] == "undecided", "an outcome without any attack")
        return
    score, truth = _evaluated(scores, worst["attack"], worst["target"])
    if worst["subgroup"] is None:
        _require(_is_near(worst["tpr"], tpr(score, truth, said["at_fpr"])), f"gate: TPR {worst['tpr']}")
    _require(worst["low"] <= worst["tpr"] <= worst["high"], "gate: interval")
    within = worst["high"] <= said["max_tpr"]
    _require(said["outcome"] == "undecided" or within == (said["outcome"] == "pass"), f"gate: {said['outcome']}")


def check_compare(printed: str | bytes, files: Files) -> None:
    """Compare the JSON of `plmia compare` for the attacks of one run with the scores."""
    said, scores = json.loads(printed), arrays_in(files["scores.npz"])
    (run,) = said["runs"]
    for pair in said["pairs"]:
        for row in pair["rows"]:
            each = [_over_targets(scores, pair[side], run["targets"], row["fpr"]) for side in ("first", "other")]
            found = [row[side]["value"] for side in ("first", "other")]
            _require(_is_near(found, each), f"compare: {row['metric']} {found}")
            if row["change"] is not None:
                change = row["change"]["difference"]
                _require(_is_near(change, each[1] - each[0]), f"compare: difference {change}")


def _over_targets(scores: Arrays, attack: str, targets: list[int], rate: float | None) -> float:
    each = [_evaluated(scores, attack, target) for target in targets]
    return float(np.mean([auc(*one) if rate is None else tpr(*one, str(rate)) for one in each]))


def check_report(folder: Path, files: Files) -> None:
    """Compare the table of attacks beside the page with the scores."""
    scores = arrays_in(files["scores.npz"])
    rows = list(csv.DictReader(io.StringIO((folder / "figures" / "attacks.csv").read_text(), newline="")))
    _require(rows, "report: no attacks")
    for row in rows:
        score, truth = _evaluated(scores, row["attack"], row["target"])
        for column, value in _numbers(row):
            expected = auc(score, truth) if column == "auc" else tpr(score, truth, column.removeprefix("tpr_"))
            _require(_is_near(value, expected), f"report: {column} of {row['attack']}: {value}")
    page = (folder / "report.html").read_text(encoding="utf-8")
    _require(all(row["attack"] in page for row in rows), "report: attacks of the page")


def _numbers(row: dict[str, str]) -> Iterator[tuple[str, float]]:
    for column, text in row.items():
        if column not in ("attack", "target") and text and not column.endswith(("_low", "_high")):
            yield column, float(text)
