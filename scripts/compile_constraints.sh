#!/bin/sh
# Compiles constraints.txt from pyproject.toml: the versions that `make` installs, for Python 3.11 and later.
# Pins that still fit are kept; --upgrade moves all of them to the newest release.
set -eu
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check uv

# Beside the package's own dependencies: what builds it (the editable build needs `editables`), and the torch
# release that it is tested with. The range that users get is the one in pyproject.toml.
cat >"$work/more.in" <<END
editables
hatchling
torch==2.13.0
END

# One version of NumPy and SciPy for all Pythons ("fewest"), so that results do not depend on the interpreter.
if [ -f constraints.txt ]; then cp constraints.txt "$work/compiled.txt"; fi
"$work/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --all-extras \
    --fork-strategy fewest --prerelease disallow \
    --no-annotate --no-header \
    "$@" --output-file "$work/compiled.txt" pyproject.toml "$work/more.in"

# torch itself says exactly which CUDA packages it needs, where it needs any.
{
    echo "# Made by scripts/compile_constraints.sh (make constraints): do not edit."
    grep -Ev '^(cuda-|nvidia-|triton=)' "$work/compiled.txt"
} >"$work/constraints.txt"
cat "$work/constraints.txt" >constraints.txt
