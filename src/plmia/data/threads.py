"""Work on blocks of records in threads: blocks are independent, and NumPy computes without the lock of Python.

Results do not depend on the number of threads: each block is computed as it would be alone, and results come in order.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from itertools import chain, islice
from threading import Event
from typing import Any, BinaryIO, Generic, TypeVar, overload

Item = TypeVar("Item")
Result = TypeVar("Result")
_READ_AT_ONCE = 1 << 20
# Each thread holds a block in memory, and more than these wait for the lock of Python.
_MOST_THREADS = 16


def in_order(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield ``function(item)`` for each item, in order, computed by one thread per processor, but at most 16.

    Few items are taken in advance, so that memory is bounded. The first error stops the work and is raised. The memory
    limit of `plmia.data.memory` holds in the threads, too.
    """
    rest, threads = iter(items), min(n_processors(), _MOST_THREADS)
    first = list(islice(rest, 2))
    if threads < 2 or len(first) < 2:
        yield from map(function, chain(first, rest))
        return
    with ThreadPoolExecutor(threads) as pool:
        running: deque[Future[Result]] = deque()
        try:
            for item in chain(first, rest):
                running.append(pool.submit(copy_context().run, function, item))
                if len(running) > threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:  # also after an error or an interrupt: what has not started never will
            for future in running:
                future.cancel()


def n_processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class computed_once(Generic[Result]):  # noqa: N801, since it is used as functools.cached_property is
    """A property that is computed at its first use.

    Up to Python 3.11, `functools.cached_property` holds one lock for all objects while it computes, so that threads
    would wait for each other.
    """

    def __init__(self, function: Callable[[Any], Result]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> computed_once[Result]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Result: ...

    def __get__(self, instance: object | None, owner: type) -> computed_once[Result] | Result:
        if instance is None:
            return self
        value = self._function(instance)
        vars(instance)[self._name] = value  # from now on, this is found first
        return value


@contextmanager
def digest_meanwhile(file: BinaryIO) -> Iterator[Callable[[], str]]:
    """Read a file in a thread during the block; what is given returns its SHA-256. An error ends the reading, too."""
    ended = Event()

    def digest() -> str:
        sha = hashlib.sha256()
        file.seek(0)
        while not ended.is_set() and (part := file.read(_READ_AT_ONCE)):
            sha.update(part)
        return sha.hexdigest()

    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(digest).result
        finally:
            ended.set()
