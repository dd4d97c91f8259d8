"""Files that only their owner may read, and that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def create_private(path: Path) -> BinaryIO:
    """Create a file that only its owner may read, whatever the umask; nothing may be there, not even a link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o600)
    if os.name == "posix":
        os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "w+b")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a private file under a name of its own, which takes the place of ``path`` when the block ends well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with create_private(temporary) as file:
            yield file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
