"""Write the output of the README's tour into the README, and that of the last `make bench` into the page on speed.

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
    readme.write_text(text, encoding="utf-8")
    if bench is not None:
        page = ROOT / "docs" / "explanation" / "speed.md"
        table = f"<!-- bench -->\n\n{Path(bench).read_text(encoding='utf-8').strip()}\n\n## Training"
        old = page.read_text(encoding="utf-8")
        page.write_text(
            re.sub(r"<!-- bench -->.*?## Training", lambda _: table, old, flags=re.DOTALL), encoding="utf-8"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
