"""Standard output and standard error that are closed or full, or whose reader has left.

The command does its work and keeps its exit code, whoever reads what it prints. Only if standard output cannot be
written for another reason than a reader who has left, such as a full disk, does it end with exit code 2.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from plmia.cli.start import INTERRUPTED

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Descriptor(io.FileIO):
    """A file descriptor whose writes never fail: the first error is kept, and everything after it is dropped."""

    failure: OSError | None = None

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)

    def write(self, data: ReadableBuffer) -> int:
        """Write all bytes, and return how many."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest and self.failure is None:
                written: object = super().write(rest)
                if isinstance(written, int):
                    rest = rest[written:]
                else:  # it is full, and another program that shares it has made it non-blocking
                    select.select([], [self], [])
        except OSError as error:
            self.failure = error
        return size


@contextmanager
def standard_streams() -> Iterator[None]:
    """Replace both streams, and end a command that could not write standard output with a sentence."""
    output, errors = _descriptor(1, sys.stdout), _descriptor(2, sys.stderr)
    sys.stdout, sys.stderr = stdout, _ = _stream(output, sys.stdout), _stream(errors, sys.stderr)
    try:
        yield
    except SystemExit as ended:
        if not stdout.closed:  # by code of the user
            stdout.flush()
        failure = output.failure
        if failure is None or isinstance(failure, ConnectionError):  # a broken pipe or socket
            raise
        from plmia.cli.terminal import say

        reason = failure.strerror or failure
        say(f"standard output cannot be written ({reason}): free space, or redirect it to another file")
        sys.exit(INTERRUPTED if ended.code == INTERRUPTED else 2)


def _descriptor(number: int, stream: TextIO | None) -> Descriptor:
    """Return the descriptor of a standard stream; Python has none if it was closed before the command started."""
    if stream is not None:
        return Descriptor(number)
    # Otherwise the next file that is opened would get its number, and what child processes print.
    while (opened := os.open(os.devnull, os.O_RDWR)) < number:
        pass
    os.set_inheritable(opened, True)
    return Descriptor(opened)


def _stream(descriptor: Descriptor, given: TextIO | None) -> TextIO:
    """Return a stream on a descriptor, with the encoding and the buffering of the given one."""
    if given is None:
        return io.TextIOWrapper(io.BufferedWriter(descriptor), encoding="utf-8")
    if type(given) is not io.TextIOWrapper:
        return given  # code that was loaded before has replaced it
    unbuffered = given.write_through  # by `python -u`
    return io.TextIOWrapper(
        descriptor if unbuffered else io.BufferedWriter(descriptor),
        encoding=given.encoding,
        errors=given.errors,
        line_buffering=given.line_buffering,
        write_through=unbuffered,
    )
