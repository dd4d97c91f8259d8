"""How scripts that are run by hand end: with a status, and on bad input with one sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from plmia.cli.terminal import stderr
from plmia.errors import PlmiaError


def say(sentence: str) -> None:
    """Print one line on standard error."""
    stderr().print(sentence, markup=False, soft_wrap=True)


def end(main: Callable[..., int | None], *arguments: Any) -> NoReturn:
    """Run a script and exit with what it returns; with 2 and a sentence where it cannot work with what it was given."""
    try:
        sys.exit(main(*arguments))
    except PlmiaError as error:
        say(" ".join(str(error).split()))
        sys.exit(2)
