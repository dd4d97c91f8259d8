"""The user's own Python files: attacks and recipes that are named on the command line."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from plmia.errors import PlmiaError


def load_user_file(path: Path, kind: type[PlmiaError]) -> ModuleType:
    """Run a Python file that the user named, and return its module.

    Parameters
    ----------
    path : Path
        The file.
    kind : type of PlmiaError
        What to raise when it is not there or does not run.
    """
    spec = importlib.util.spec_from_file_location(f"plmia_user_{path.stem}", path)
    if spec is None or spec.loader is None or not os.path.isfile(path):  # noqa: PTH113 - Path's raises on a long name
        raise kind(f"there is no Python file {path}: check the path")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by its name, when annotations are strings.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise kind(f"{path} does not run: {type(error).__name__}: {error}") from error
    return module
