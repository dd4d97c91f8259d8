"""Try built packages as a new user would: each in an empty environment, outside of this checkout.

    python scripts/smoke.py dist/plmia-0.1.0-py3-none-any.whl dist/plmia-0.1.0.tar.gz

With SOURCE_DATE_EPOCH set, as for the build, the packages are also built a second time, which must give the same bytes.
Exits with 1 at the first command that does not do what it should.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

MAKE_SIGNALS = """
import numpy as np
rng = np.random.default_rng(0)
half = rng.random((5, 400)) < 0.5
membership = np.concatenate([half, ~half])
signals = rng.normal(size=membership.shape) + membership
np.savez("signals.npz", signals=signals.astype("float32"), membership=membership)
"""
RESULTS = ("report.html", "metrics.json", "scores.npz", "records.csv")


class Place:
    """An empty environment with one package installed, and a folder to work in."""

    def __init__(self, package: Path, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        venv.create(folder / "venv", with_pip=True)
        self.bin = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        # From this folder, where the file of pip's constraints is.
        subprocess.run([self.bin / "python", "-m", "pip", "install", "-qq", package], check=True)

    def run(self, *command: str, code: int = 0) -> str:
        """Run a command outside of the checkout; return what it printed."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        words = [str(self.bin / command[0]), *command[1:]]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=self.folder, env=environment)
        if done.returncode != code:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode} instead of {code}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def require_results(self, name: str) -> None:
        """Exit unless a folder has all results, and a report with the code of its figures."""
        missing = [file for file in RESULTS if not (self.folder / name / file).is_file()]
        if missing:
            sys.exit(f"{name} lacks {', '.join(missing)}")
        if (size := (self.folder / name / "report.html").stat().st_size) < 1_000_000:
            sys.exit(f"{name}/report.html has {size:,} bytes: it lacks the code of its figures")


def try_package(package: Path, folder: Path) -> None:
    """Install one package and run the commands."""
    place = Place(package, folder)
    version = place.run("plmia", "--version").split()[-1]
    if f"-{version}" not in package.name:
        sys.exit(f"{package.name} calls itself version {version}")
    place.run("plmia", "demo", "--references", "4", "--quiet", "-o", "demo")
    place.require_results("demo")
    place.run("python", "-c", MAKE_SIGNALS)
    place.run("plmia", "score", "signals.npz", "--quiet", "-o", "scored")
    place.run("plmia", "report", "scored")
    place.require_results("scored")
    words = place.run("plmia", "audit", "--data", "no.npz", "--recipe", "mlp", "-o", "run", code=2)
    if "pip install 'plmia[torch]'" not in words:
        sys.exit(f"without torch, plmia does not say how to install it: {words}")
    words = place.run("plmia", "reproduce", "table-2", code=2)
    if "checkout" not in words or words.count("\n") != 1:
        sys.exit(f"plmia reproduce does not say in one line that it needs a checkout: {words}")


def require_reproducible(packages: list[Path]) -> None:
    """Build the checkout again and compare the bytes."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "build", "-o", folder, "."], check=True, stdout=subprocess.DEVNULL)
        for package in packages:
            if package.read_bytes() != (Path(folder) / package.name).read_bytes():
                sys.exit(f"{package.name} has other bytes when it is built again at the same SOURCE_DATE_EPOCH")
            print(f"{package.name} has the same bytes when it is built again")


def main() -> None:
    if not sys.argv[1:]:
        sys.exit("name the packages to try: python scripts/smoke.py dist/*")
    if "SOURCE_DATE_EPOCH" in os.environ:
        require_reproducible([Path(name) for name in sys.argv[1:]])
    for package in map(Path, sys.argv[1:]):
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try_package(package.resolve(), Path(folder))
        print(f"{package.name} works in an empty environment ({time.monotonic() - started:.0f} s)")


if __name__ == "__main__":
    main()
