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
    elif metrics["about"].get("unit") == "group":
        _check_people(files["people.csv"], files["records.csv"], scores, metrics)
    _check_subgroups(metrics, scores)


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
    if "people/records" in scores:  # each is compared with known non-members of a similar number of records
        ranges = _ranges_of_sizes(scores["people/records"], known)
        same = ranges[queries][:, None] == ranges[known][None]
    else:
        same = np.ones((len(queries), len(known)), bool)
    rivals = same.sum(axis=1)
    below = ((against[None] < phi[:, None]) & same).sum(axis=1)
    p = np.log10((rivals + 1 - below) / (rivals + 1))
    _require(_is_near(scores[f"{name}/log10_p_conformal"][queries], p), f"p-values of {name}")


def _ranges_of_sizes(sizes: Any, known: Any) -> Any:
    """Range of each person's number of records: neighbouring numbers until each range has 100 known non-members."""
    found, ranges = sizes[known], np.zeros(len(sizes), int)
    for size in range(found.max() + 1):
        own = ranges == ranges.max()
        if (found[own[known]] <= size).sum() >= 100 <= (found > size).sum():
            ranges[own & (sizes > size)] += 1
    return ranges


def _rows_of(table: bytes) -> tuple[list[dict[str, str]], Any]:
    """Rows of a table, and the index of each."""
    rows = list(csv.DictReader(io.StringIO(table.decode("utf-8-sig"), newline="")))
    return rows, np.array([int(row["index"]) for row in rows], int)


def _column(rows: list[dict[str, str]], name: str) -> Any:
    return np.array([float(row[name]) for row in rows])


def _check_records(table: bytes, scores: Arrays, metrics: Any, what: str = "records.csv") -> None:
    rows, index = _rows_of(table)
    attack, target = metrics["verdict"]["attack"], metrics["about"]["targets"][0]
    _require(np.array_equal(np.sort(index), np.sort(scores[f"queries/{target}"])), f"index in {what}")
    for column, name in (("score", f"{attack}/{target}/score"), ("member", f"members/{target}")):
        _require(_is_near(_column(rows, column), scores[name][index]), f"{column} in {what}")
    p = 10 ** scores[f"{attack}/{target}/log10_p_conformal"][index]
    _require(np.allclose(_column(rows, "p"), p, rtol=1e-5), f"p in {what}")
    _check_q(rows, what)


def _check_q(rows: list[dict[str, str]], what: str) -> None:
    """Compare q with the procedure of Benjamini and Hochberg: the least p n / rank of all that are not below p."""
    p, n = _column(rows, "p"), len(rows)
    bounds = [value * n / (p <= value).sum() for value in p]
    q = [min(1.0, *(bound for bound, other in zip(bounds, p, strict=True) if other >= value)) for value in p]
    _require(np.allclose(_column(rows, "q"), q, rtol=1e-4), f"q in {what}")


# Results on people ----------------------------------------------------------------------------------------------------


def _check_people(people: bytes, records: bytes, scores: Arrays, metrics: Any) -> None:
    """Compare people.csv with scores.npz, and records.csv, which has one record of each person, with both."""
    _check_records(people, scores, metrics, "people.csv")
    rows, person = _rows_of(people)
    first, size = scores["people/first_record"], scores["people/records"]
    for column, values in (("records", size), ("first_record", first)):
        _require(np.array_equal(_column(rows, column), values[person]), f"{column} in people.csv")
    attack, target = metrics["verdict"]["attack"], metrics["about"]["targets"][0]
    rows, _ = _rows_of(records)
    _check_q(rows, "records.csv")
    score, truth, n = _column(rows, "score"), _column(rows, "member") == 1, len(scores[f"population/{target}"])
    _require((len(rows), truth.sum()) == (len(person), scores[f"members/{target}"][person].sum()), "records.csv")
    if attack == "attack-p":
        _require(np.allclose(_column(rows, "p"), 1 - score * n / (n + 1), rtol=1e-5), "p in records.csv")
    if len(metrics["about"]["targets"]) == 1:
        one = metrics["one_record"][attack]
        _require(_is_near(one["auc"]["mean"], auc(score, truth)), "AUC of one record")
        for rate, point in one["tpr"].items():
            _require(_is_near(point["mean"], tpr(score, truth, rate)), f"TPR at {rate} of one record")


def _check_subgroups(metrics: Any, scores: Arrays) -> None:
    """Compare the numbers and AUC of subgroups with their codes; a row may join several small ones."""
    attack, target = metrics["verdict"]["attack"], metrics["about"]["targets"][0]
    for k, column in enumerate(metrics.get("subgroups", [])):
        score, truth = _evaluated(scores, attack, target)
        codes = scores[f"by/{k}"][scores[f"queries/{target}"]]
        left = [codes == code for code in np.unique(codes)]
        for row in column["subgroups"]:
            found = [np.any(left, axis=0)] if row["merged"] else left
            same = [own for own in found if _is_subgroup(row, score[own], truth[own])]
            _require(same, f"subgroup {row['name']} of {column['by']}: {row['n_members']} members, AUC {row['auc']}")
            left = [] if row["merged"] else [own for own in left if own is not same[0]]
        _require(not left, f"subgroups of {column['by']}: {len(left)} are missing")


def _is_subgroup(row: Any, score: Any, truth: Any) -> bool:
    if (row["n_members"], row["n_non_members"]) != (truth.sum(), (~truth).sum()):
        return False
    return row["auc"] is None or _is_near(row["auc"], auc(score, truth))


def _check_names_of_subgroups(metrics: Any, scores: Arrays, given: Arrays) -> None:
    """Compare the numbers of members of subgroups with a column of integers in the signals file."""
    target, people = metrics["about"]["targets"][0], metrics["about"]["unit"] == "group"
    queries = scores[f"queries/{target}"]
    for column in metrics.get("subgroups", []):
        values = np.asarray(given.get(column["by"], ""))
        for name in {str(value) for value in values.reshape(-1).tolist()} if values.dtype.kind in "iu" else ():
            own = values == int(name)
            if people:  # of whom no record has another value
                _, of = np.unique(given["groups"], return_inverse=True)
                own = np.bincount(of, ~own) == 0
            counts = [int((scores[f"members/{target}"][queries] == kind)[own[queries]].sum()) for kind in (True, False)]
            found = [[row["n_members"], row["n_non_members"]] for row in column["subgroups"] if row["name"] == name]
            _require(found in ([counts], []), f"subgroup {name} of {column['by']}: {found}")


def _check_people_of(
    scores: Arrays, target: int, row: Any, given: Arrays, metrics: Any, phi_of: dict[str, Any], shares: list[float]
) -> None:
    """Compare members and statistics of people with those of their records, of which ``phi_of`` has some by attack.

    References that play the target put people with different numbers of records on one scale, which keeps the order
    among people with the same number: that of the sums over their records. With many references, weights of records
    may be learned; whoever has the larger statistic in each record is then still above. Without references that can
    play the target, a person counts with one record.
    """
    _, first, of, sizes = np.unique(
        np.asarray(given["groups"]), return_index=True, return_inverse=True, return_counts=True
    )
    _require(np.array_equal(scores["people/records"], sizes), "numbers of records of people")
    _require(np.array_equal(scores["people/first_record"], first), "first records of people")
    _require(np.array_equal(row, row[first][of]), "people of whom some records are members")
    _require(np.array_equal(scores[f"members/{target}"], row[first]), f"members of target {target}")
    by_one = any(note["code"] == "people-by-one-record" for note in metrics["notes"])
    for attack, possible in phi_of.items():
        found = scores[f"{attack}/{target}/statistic"]
        right = any(
            (by_one and _is_one_of_each(found, phi, of)) or _is_in_order(found, phi, of, sizes, max(shares) >= 0.7)
            for phi in possible
        )
        _require(right, f"statistic of people of {attack} on target {target}")


def _is_one_of_each(found: Any, phi: Any, of: Any) -> bool:
    """Whether the value of each person is that of one of the person's records."""
    near = np.abs(found[of] - phi) <= 1e-4 * np.abs(phi) + 1e-6
    return bool((np.bincount(of, near) >= 1).all())


def _is_in_order(found: Any, phi: Any, of: Any, sizes: Any, learned: bool) -> bool:
    for size in np.unique(sizes):
        own = np.flatnonzero(sizes == size)
        each = np.stack([np.sort(phi[of == k]) for k in own])
        near = 1e-4 * np.abs(each) + 1e-6
        low, high = each - near, each + near
        if learned:
            above = (low[:, None] > high[None]).all(axis=2)
        else:
            above = low.sum(axis=1)[:, None] > high.sum(axis=1)[None]
        if not (found[own][:, None] > found[own][None])[above].all():
            return False
    return True


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
    _check_names_of_subgroups(metrics, scores, given)
    about = metrics["about"]
    aligned = '"alignment":' in json.dumps(metrics)
    for target in about["targets"]:
        row = target if rows is None else rows[target]
        phi_of: dict[str, list[Any]] = {}
        if f"attack-p/{target}/statistic" in scores:
            phi_of["attack-p"] = [-np.logaddexp(0, -signals[row]).mean(axis=1)]
        unlike = [i for i in range(len(members)) if i != row and not _tells(members[i], members[row])]
        if f"attack-r/{target}/statistic" in scores and not aligned and set(about["references"]) == {len(unlike)}:
            kinds = np.float32, np.float64
            phi_of["attack-r"] = [_ranks(signals.astype(kind), members, row, unlike) for kind in kinds]
        if about.get("unit") == "group":
            if scale == "signal":  # a sum depends on the unit
                phi_of.pop("attack-p", None)
            others = [sum(not _tells(members[i], members[j]) for j in unlike) for i in unlike]
            shares = [n / max(len(unlike), 1) for n in others] or [0.0]
            _check_people_of(scores, target, members[row], given, metrics, phi_of, shares)
            continue
        _require(np.array_equal(scores[f"members/{target}"], members[row]), f"members of target {target}")
        for attack, possible in phi_of.items():
            found, exact = scores[f"{attack}/{target}/statistic"], attack == "attack-r"
            if scale == "signal" and attack == "attack-p":  # on any scale, so that only the order counts
                right = signals.shape[2] > 1 or _order(signals[row, :, 0].astype(np.float32)) == _order(found)
            else:
                near = {"rtol": 0, "atol": 1e-6} if exact else {"rtol": 1e-4, "atol": 1e-6}
                right = any(np.allclose(found, phi, **near) for phi in possible)
            _require(right, f"statistic of {attack} on target {target}")


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
