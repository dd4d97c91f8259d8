"""Write the output of the README's tour, and of the last `make bench`, into the README.

python scripts/update_readme.py [bench-out/scoring.md]
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(bench: str | None = None) -> None:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    tour = re.search(r"<!-- tour -->\n```console\n\$ plmia (.*)\n", text)
    assert tour is not None
    words = [sys.executable, "-c", "from plmia.cli.main import main; main(prog_name='plmia')", *tour[1].split()]
    output = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    block = f"<!-- tour -->\n```console\n$ plmia {tour[1]}\n{output}```"
    text = re.sub(r"<!-- tour -->\n```console\n.*?```", lambda _: block, text, flags=re.DOTALL)
    if bench is not None:
        table = f"<!-- bench -->\n\n{Path(bench).read_text(encoding='utf-8').strip()}\n\nTraining on one"
        text = re.sub(r"<!-- bench -->.*?Training on one", lambda _: table, text, flags=re.DOTALL)
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
