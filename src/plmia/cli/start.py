"""Start and end of the command, where Ctrl-C has nothing to undo and ends it without a traceback."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

# What shells expect of a command that Ctrl-C ended: 128 and the signal's number.
INTERRUPTED = 130


def run() -> None:
    """Run the command; its imports take a good part of a second."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have started it to ignore Ctrl-C
        signal.signal(signal.SIGINT, _end)
    from plmia.cli.main import main

    main(prog_name="plmia")


def _end(*_: object) -> None:
    os.write(2, b"plmia: stopped\n")
    os._exit(INTERRUPTED)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt inside the block, so that what was begun is undone."""
    if signal.getsignal(signal.SIGINT) is not _end:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _end)
