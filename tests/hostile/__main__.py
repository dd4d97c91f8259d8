"""Run the campaigns against hostile input and faults: ``python -m tests.hostile [--scale 10]``.

Each campaign runs in a process of its own, so that a crash is one fault more, and ends by itself. Prints every fault
with the case that shows it, writes the table into docs/explanation/reliability.md, and exits with 1 if there is any.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
from tests.hostile import faults, inputs
from tests.hostile.campaign import GOOD, Campaign, Finding

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "reliability.md"
GOOD_COLUMNS = {"right": "right", "refused": "refused", "stopped": "stopped"}
BAD_COLUMNS = {"wrong": "wrong results", "traceback": "tracebacks", "hang": "hangs", "lost": "lost models"}
COLUMNS = GOOD_COLUMNS | BAD_COLUMNS
CAMPAIGNS = {"inputs": inputs.CAMPAIGNS, "faults": faults.CAMPAIGNS}


def run(name: str, campaign: Campaign, count: int, seed: int, seconds: float, notes: dict[str, str]) -> Counter[str]:
    """Run a campaign in a child process, print its faults, and count its outcomes; add its note to ``notes``."""
    found: Counter[str] = Counter()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            _work(name, campaign, count, seed, seconds, lambda f: print(json.dumps(vars(f)), file=pipe, flush=True))
        os._exit(0)
    os.close(write)
    last = "the start"
    with os.fdopen(read) as pipe:
        for line in pipe:
            finding = Finding(**json.loads(line))
            if finding.outcome == "note":
                notes[name] = finding.case
                continue
            found[finding.outcome] += 1
            last = finding.case
            if finding.outcome not in GOOD:
                print(f"  {finding.outcome}: {finding.case}\n{finding.detail}", flush=True)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        found["traceback"] += 1
        print(f"  {name} itself ended with {code} after {last}", flush=True)
    return found


def _work(name: str, campaign: Campaign, count: int, seed: int, seconds: float, tell: object) -> None:
    assert callable(tell)
    try:
        with tempfile.TemporaryDirectory(prefix="plmia-hostile-") as folder:
            end, rng = time.monotonic() + seconds, np.random.default_rng([seed, zlib.crc32(name.encode())])
            os.chdir(folder)
            for finding in campaign(Path(folder), count, rng):
                tell(finding)
                if time.monotonic() > end:
                    break
    except BaseException as error:
        print(f"  {name}: {type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)


def table(results: dict[str, Counter[str]], said: dict[str, str], words: str) -> str:
    """Table of the page."""
    lines = ["| campaign | cases | " + " | ".join(COLUMNS.values()) + " |", "|---|" + "--:|" * (1 + len(COLUMNS))]
    for kind, campaigns in CAMPAIGNS.items():
        counts = {name: results[name] for name in campaigns if results.get(name)}
        total = sum(counts.values(), Counter())
        for name, found in [*counts.items(), (f"**all {kind}**", total)]:
            shown = found + Counter(stopped=found["early"])
            cells = [f"{shown[outcome]:,}" for outcome in COLUMNS]
            lines.append(f"| {name} | {sum(found.values()):,} | {' | '.join(cells)} |")
    early = sum(found["early"] for found in results.values())
    answered = (
        "Ctrl-C came before Python had read the first line of plmia: Python itself answered, with its own traceback"
    )
    notes = [
        f"In {early:,} of the cases of signals at any time, {answered}. This counts as a case, not as a traceback."
    ]
    notes += [f"{name.capitalize()}: {text}." for name, text in said.items()]
    missing = [name for campaigns in CAMPAIGNS.values() for name in campaigns if not results.get(name)]
    if missing:
        notes.append(f"Not run on this machine: {', '.join(missing)}.")
    return "\n".join([*lines, "", *notes, "", f"Printed by `make hostile{words}`."])


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="multiple of the number of cases")
    parser.add_argument("--faults", type=float, help="another multiple for kills, full disks and signals")
    parser.add_argument("--only", default="", metavar="TEXT", help="campaigns whose name holds this; writes no page")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random")
    parser.add_argument("--minutes", type=float, default=60.0, help="limit for each campaign")
    given = parser.parse_args()
    # A shell may start it in the background to ignore Ctrl-C, which its children would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    results: dict[str, Counter[str]] = {}
    notes: dict[str, str] = {}
    scales = {"inputs": given.scale, "faults": given.scale if given.faults is None else given.faults}
    for kind, campaigns in CAMPAIGNS.items():
        for name, (campaign, count) in campaigns.items():
            if given.only in name:
                started = time.monotonic()
                results[name] = run(name, campaign, round(count * scales[kind]), given.seed, 60 * given.minutes, notes)
                print(f"{name}: {dict(results[name])}, {time.monotonic() - started:.0f} s", flush=True)
    words = " ".join(f"--{key} {value:g}" for key in ("scale", "faults", "seed") if (value := vars(given)[key]))
    if not given.only and PAGE.exists():
        text = PAGE.read_text(encoding="utf-8")
        printed = table(results, notes, f' ARGS="{words}"')
        begin, end = "<!-- hostile: begin -->", "<!-- hostile: end -->"
        before, after = text.partition(begin)[0], text.partition(end)[2]
        PAGE.write_text(f"{before}{begin}\n{printed}\n{end}{after}", encoding="utf-8")
    sys.exit(any(found[outcome] for found in results.values() for outcome in BAD_COLUMNS))


if __name__ == "__main__":
    main()
