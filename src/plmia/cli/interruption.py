"""Ctrl-C where it has something to undo."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from plmia.cli.start import end


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt inside the block, so that what was begun is undone."""
    if signal.getsignal(signal.SIGINT) is not end:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, end)
