"""Exit status and error messages of scripts that are run by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from plmia.auditing.progress import stderr
from plmia.errors import PlmiaError


def say(sentence: str) -> None:
    """Print one line on standard error."""
    stderr().print(sentence, markup=False, soft_wrap=True)


def end(main: Callable[..., int | None], *arguments: Any) -> NoReturn:
    """Run a script and exit with its return value; on bad input, print one sentence and exit with 2."""
    try:
        sys.exit(main(*arguments))
    except PlmiaError as error:
        say(" ".join(str(error).split()))
        sys.exit(2)
