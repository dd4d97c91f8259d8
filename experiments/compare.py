"""Compare results with committed ones: numbers must agree within the stated noise, everything else exactly.

    python -m experiments.compare FOLDER COMMITTED [--retrained]

The same signals and seed give the same scores on every machine up to rounding, which may swap two queries that are
nearly tied. On the small signals, one query changes a target's rate by 0.1 to 0.35 points, the mean of two targets by
half of that and their deviation by 0.7 of it. Rows, cells, words, numbers of targets, claims and verdicts must be the
same. The explanation of a verdict may differ, since it contains numbers.

Models that are trained again on another kind of machine are different models. With --retrained, only entries that both
results have are compared: means must agree within four standard errors of their difference over targets, and no verdict
may be reversed. Entries that only the committed results have are listed and do not count as a difference. Neither do
results whose targets have another number of references: attacks gain from references.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .outcome import FAILS, HOLDS

# In percentage points, of means and of deviations.
NOISE = 0.25
STANDARD_ERRORS = 4.0


def differences(found: Mapping[str, Any], committed: Mapping[str, Any]) -> Iterator[str]:
    """Describe each difference in columns, rows, cells or verdicts that exceeds the noise."""
    if found.get("metrics") != committed.get("metrics"):
        yield f"columns are {found.get('metrics')}, committed are {committed.get('metrics')}"
    now, then = ({tuple(row["keys"]): row for row in part["rows"]} for part in (found, committed))
    for keys in dict.fromkeys([*then, *now]):
        words = " ".join(keys)
        if keys not in now or keys not in then:
            yield f"{words}: only {'the committed' if keys in then else 'the new'} results have this row"
            continue
        if now[keys]["paper"] != then[keys]["paper"]:
            yield f"{words}: the paper's numbers differ"
        yield from (f"{words}: {line}" for line in _cells(now[keys]["ours"], then[keys]["ours"]))
    yield from _claims(found, committed)


def differences_retrained(found: Mapping[str, Any], committed: Mapping[str, Any]) -> Iterator[str]:
    """Describe each common number that differs by more than chance, and each reversed verdict."""
    now, then = ({tuple(row["keys"]): row["ours"] for row in part["rows"]} for part in (found, committed))
    for keys in now.keys() & then.keys():
        for name, new in (now[keys] or {}).items():
            old = (then[keys] or {}).get(name)
            if isinstance(new, dict) and isinstance(old, dict) and not _by_chance(new, old):
                yield f"{' '.join(keys)}: {name} is {_short(new)}, committed is {_short(old)}"
    verdicts, committed_ones = ({claim["claim"]: claim["verdict"] for claim in c["claims"]} for c in (found, committed))
    for claim, verdict in verdicts.items():
        if {verdict, committed_ones.get(claim)} == {HOLDS, FAILS}:
            yield f"{claim} {verdict}, committed is {committed_ones[claim]}"


def _by_chance(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Whether two means over targets differ by no more than four standard errors of their difference."""
    error = math.sqrt(sum((part["std"] or 0.0) ** 2 / part["n"] for part in (new, old)))
    return abs(new["mean"] - old["mean"]) <= max(NOISE, STANDARD_ERRORS * error)


def _cells(now: Mapping[str, Any] | None, then: Mapping[str, Any] | None) -> Iterator[str]:
    if now is None or then is None:
        if now is not then:
            yield "not run, but committed" if now is None else "run, but not committed"
        return
    for name in dict.fromkeys([*then, *now]):
        if name not in now or name not in then:
            yield f"only {'the committed' if name in then else 'the new'} results have {name}"
        elif not _same(now[name], then[name]):
            yield f"{name} is {_short(now[name])}, committed is {_short(then[name])}"


def _same(now: Any, then: Any) -> bool:
    if not (isinstance(now, dict) and isinstance(then, dict)):
        return bool(now == then)
    return now["n"] == then["n"] and all(_near(now[key], then[key]) for key in ("mean", "std"))


def _near(now: float | None, then: float | None) -> bool:
    return now is then if now is None or then is None else abs(now - then) <= NOISE


def _short(cell: Any) -> Any:
    return {key: cell[key] for key in ("mean", "std", "n")} if isinstance(cell, dict) else cell


def _claims(found: Mapping[str, Any], committed: Mapping[str, Any]) -> Iterator[str]:
    now, then = ({claim["claim"]: claim["verdict"] for claim in part["claims"]} for part in (found, committed))
    for claim in dict.fromkeys([*then, *now]):
        if now.get(claim) != then.get(claim):
            yield f"{claim} {now.get(claim, 'not judged')}, committed is {then.get(claim, 'not judged')}"


def not_compared(found: Mapping[str, Any], committed: Mapping[str, Any]) -> str:
    """Describe rows that only the committed results have: their number and the first one; empty if there are none."""
    now = {tuple(row["keys"]) for row in found["rows"] if row["ours"] is not None}
    missing = [row["keys"] for row in committed["rows"] if row["ours"] is not None and tuple(row["keys"]) not in now]
    return f"{len(missing)} row{'s' * (len(missing) > 1)} from {' '.join(missing[0])} on" if missing else ""


def other_references(found: Mapping[str, Any], committed: Mapping[str, Any]) -> str:
    """Say how many references per target two results have, for each data set where that differs; else empty."""
    now, then = ({run["data"]: run["references"] for run in part.get("run", [])} for part in (found, committed))
    differing = [data for data in then if data in now and now[data] != then[data]]
    return ", ".join(f"{now[data]} references on {data}, committed are {then[data]}" for data in differing)


def main(folder: Path, committed: Path, retrained: bool = False) -> int:
    """Compare all files of the committed folder, with retrained ones if they exist; return the number that differ."""
    wrong, left_out = 0, []
    paths = sorted(committed.glob("*.json"))
    there = [path for path in paths if (folder / path.name).exists()]
    if not there:
        sys.exit(f"nothing was compared: {folder} has no results that {committed} has; name two folders of results")
    for path in paths:
        if path in there:
            contents = [json.loads(p.read_text(encoding="utf-8")) for p in (folder / path.name, path)]
            why = other_references(*contents) if retrained else ""
            lines = [] if why else list((differences_retrained if retrained else differences)(*contents))
            why = why or not_compared(*contents)
            left_out += [f"{path.stem} ({why})"] * bool(why)
        else:
            lines = [] if retrained else ["not there"]
            left_out.append(path.stem)
        wrong += bool(lines)
        sys.stdout.writelines(f"{path.stem}: {line}\n" for line in lines)
    if retrained and left_out:
        sys.stdout.write(f"not compared: {', '.join(left_out)}\n")
    sys.stdout.write(f"{wrong} of {len(there if retrained else paths)} results differ\n")
    return wrong


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if argument != "--retrained"]
    if len(given) != 2:
        sys.exit("name two folders of results: python -m experiments.compare FOLDER COMMITTED [--retrained]")
    sys.exit(1 if main(Path(given[0]), Path(given[1]), "--retrained" in sys.argv) else 0)
