"""Check the imports and calls of the modules of src/plmia, without running them.

    python scripts/check_imports.py [ROOT]

Prints one line per violation and exits with 1 if there is any. The rules are the tables below.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

# The data flow: a package (or a top-level module) may import only what comes before it in this list.
DATA_FLOW = (
    *("errors", "data", "numerics", "signals", "training", "attacks", "evaluation", "results", "reporting", "auditing"),
    *("cli", "__init__", "__main__"),
)

# Stricter than the data flow: these may import nothing else of plmia.
ONLY = {
    "numerics": {"errors", "data"},
    "data": {"errors"},
    "attacks": {"errors", "numerics", "data"},
}

TRAINING_PACKAGES = {"torch", "lightgbm", "ray", "xgboost"}
MAY_TRAIN = {"training"}

# Slow to import: import it inside the function that needs it, to keep the command fast to start.
SLOW_PACKAGES = {"scipy.stats", "sklearn", "torch", "lightgbm", "pandas"}

# These modules are themselves imported inside functions, so they may import it at the top.
SLOW_AT_TOP: dict[tuple[str, ...], set[str]] = {
    ("training", "recipes", "mlp"): {"torch"},
    ("training", "recipes", "torch_device"): {"torch"},
    ("training", "recipes", "torch_loop"): {"torch"},
    ("training", "recipes", "torch_module"): {"torch"},
    ("training", "recipes", "wide_resnet"): {"torch"},
}

# Each of these can run code from a file.
UNSAFE_PACKAGES = {"pickle", "cloudpickle", "dill"}
UNSAFE_CALLS = {"eval", "exec"}
UNSAFE_ARGUMENTS = {"allow_pickle", "shell"}

Violation = tuple[int, str]
"""Line number and violation."""


def check_tree(root: Path) -> Iterator[str]:
    """Yield one line per violation under ``root/src/plmia``."""
    package = root / "src" / "plmia"
    paths = sorted(package.rglob("*.py"))
    if not paths:
        yield f"{package}: no Python files here"
    for path in paths:
        parts = path.relative_to(package).with_suffix("").parts
        source = path.read_text(encoding="utf-8")
        for line, what in sorted(set(check_module(parts, source))):
            yield f"{path.relative_to(root).as_posix()}:{line}: {what}"


def check_module(parts: tuple[str, ...], source: str) -> Iterator[Violation]:
    """Check one file; ``parts`` is its path inside the package, such as ``("recipes", "mlp")``."""
    module = parts[0]
    if module not in DATA_FLOW:
        yield 1, f"{module} is not in DATA_FLOW: add it to the table in scripts/check_imports.py"
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        yield error.lineno or 1, f"not Python: {error.msg}"
        return
    at_import = set(nodes_run_at_import(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in imported_names(node, parts):
                for what in check_import(parts, name, at_top=node in at_import):
                    yield node.lineno, what
        elif isinstance(node, ast.Call):
            for what in check_call(node):
                yield node.lineno, what


def check_import(parts: tuple[str, ...], name: str, *, at_top: bool) -> Iterator[str]:
    """Check that the module with the path ``parts`` may import the dotted ``name``."""
    module = parts[0]
    package, _, rest = name.partition(".")
    if package == "plmia":
        imported = rest.partition(".")[0]
        if imported not in {module, "__version__"}:
            yield from check_direction(module, imported)
        return
    if package in TRAINING_PACKAGES and module not in MAY_TRAIN:
        yield f"{module} may not import {package}: only {' and '.join(sorted(MAY_TRAIN))} may"
    if package in UNSAFE_PACKAGES:
        yield f"{module} may not import {package}: loading it can run code"
    slow = ({package, ".".join(name.split(".")[:2])} & SLOW_PACKAGES) - SLOW_AT_TOP.get(parts, set())
    if at_top and slow:
        yield f"{module} may not import {slow.pop()} at the top: it is slow, import it inside a function"


def check_direction(module: str, imported: str) -> Iterator[str]:
    """Check that the data flow goes from ``imported`` to ``module``."""
    if imported not in DATA_FLOW or imported == "__init__":
        yield f"{module} may not import {imported or 'plmia'}: import from the module that defines it"
    elif module in ONLY and imported not in ONLY[module]:
        yield f"{module} may not import {imported}: it may import only {', '.join(sorted(ONLY[module]))}"
    elif module in DATA_FLOW and DATA_FLOW.index(imported) > DATA_FLOW.index(module):
        yield f"{module} may not import {imported}: {imported} comes later in the data flow"


def check_call(call: ast.Call) -> Iterator[str]:
    """Check that the call cannot run code from its arguments."""
    if isinstance(call.func, ast.Name) and call.func.id in UNSAFE_CALLS:
        yield f"{call.func.id}() can run any code: parse the value instead"
    for keyword in call.keywords:
        off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg in UNSAFE_ARGUMENTS and not off:
            yield f"{keyword.arg} must be False: it can run code"


def imported_names(node: ast.Import | ast.ImportFrom, parts: tuple[str, ...]) -> Iterator[str]:
    """Yield the dotted names it imports: ``from scipy import stats`` gives ``scipy.stats``."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module.split(".") if node.module else []
    if node.level:
        base = ["plmia", *parts][: -node.level] + base
    yield from (".".join([*base, alias.name]) for alias in node.names)


def nodes_run_at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes outside functions and outside ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from nodes_run_at_import(child)


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    violations = list(check_tree(root))
    for line in violations:
        print(line)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
