"""Compare results with committed ones: every number of ours must be the same within the stated noise.

    python -m experiments.compare FOLDER COMMITTED

The same signals and seed give the same scores on every machine up to rounding, which may turn the order of two queries
that all but tie. On the small signals one query in a thousand is 0.1 points of a rate.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOISE = 0.25


def differences(found: dict[str, Any], committed: dict[str, Any]) -> Iterator[str]:
    """Say each difference in rows, cells or verdicts beyond the noise."""
    rows, others = ({tuple(row["keys"]): row["ours"] or {} for row in part["rows"]} for part in (found, committed))
    for keys in dict.fromkeys([*others, *rows]):
        if keys not in rows or keys not in others:
            yield f"{' '.join(keys)}: only one of the two has this row"
            continue
        for name, cell in others[keys].items():
            now = rows[keys].get(name)
            if isinstance(cell, dict) and isinstance(now, dict):
                if abs(cell["mean"] - now["mean"]) > NOISE:
                    yield f"{' '.join(keys)}: {name} is {now['mean']}, committed is {cell['mean']}"
            elif type(cell) is not type(now):
                yield f"{' '.join(keys)}: {name} is {now}, committed is {cell}"


def main(folder: Path, committed: Path) -> int:
    """Compare all files of the committed folder; return how many differ."""
    wrong = 0
    for path in sorted(committed.glob("*.json")):
        now = folder / path.name
        if not now.exists():
            lines = ["not there"]
        else:
            contents = [json.loads(p.read_text(encoding="utf-8")) for p in (now, path)]
            lines = list(differences(*contents))
        wrong += bool(lines)
        for line in lines:
            sys.stdout.write(f"{path.stem}: {line}\n")
    sys.stdout.write(f"{wrong} of {len(list(committed.glob('*.json')))} results differ\n")
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main(Path(sys.argv[1]), Path(sys.argv[2])) else 0)
