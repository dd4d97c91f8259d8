"""Work in threads: the same results in the same order as a plain loop, with errors, limits and few items in advance."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plmia.data import memory, threads
from plmia.data.threads import computed_once, digest_meanwhile, in_order


@pytest.fixture(params=[1, 2, 5])
def n_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    n: int = request.param
    monkeypatch.setattr(threads, "n_processors", lambda: n)
    return n


@pytest.mark.parametrize("n", [0, 1, 2, 3, 50])
@pytest.mark.usefixtures("n_threads")
def test_results_come_in_the_order_of_a_loop(n: int) -> None:
    waiting = [threading.Event() for _ in range(n)]

    def square(i: int) -> int:
        if i % 3 == 1:  # finishes after later items, if there are other threads
            waiting[i].wait(0.01)
        return i * i

    assert list(in_order(square, range(n))) == [square(i) for i in range(n)]


def test_few_items_are_taken_in_advance(n_threads: int) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for i in range(100):
            taken += 1
            yield i

    for done, _ in enumerate(in_order(lambda i: i, items()), start=1):
        assert taken <= done + n_threads + 1


@pytest.mark.usefixtures("n_threads")
def test_the_first_error_is_raised_and_ends_the_work() -> None:
    seen: list[int] = []

    def work(i: int) -> int:
        seen.append(i)
        if i >= 5:
            raise ValueError(f"item {i}")
        return i

    found = []
    with pytest.raises(ValueError, match="item 5"):
        found.extend(in_order(work, range(1000)))
    assert len(seen) < 20
    assert threading.active_count() < 20


@pytest.mark.usefixtures("n_threads")
def test_an_error_of_the_caller_ends_the_work() -> None:
    before, seen = threading.active_count(), []
    results = in_order(seen.append, range(1000))
    next(results)
    results.close()
    assert len(seen) < 20
    assert threading.active_count() == before


@pytest.mark.usefixtures("n_threads")
def test_the_memory_limit_holds_in_threads(tmp_path: Path) -> None:
    with memory.memory_limit(10**9, tmp_path):
        assert set(in_order(lambda _: memory.limit_in_bytes(), range(10))) == {10**9}
    assert set(in_order(lambda _: memory.limit_in_bytes(), range(10))) == {None}


class Counted:
    """How often a property is computed."""

    def __init__(self) -> None:
        self.n = 0

    @computed_once
    def value(self) -> int:
        """A value."""
        self.n += 1
        return 7


def test_a_property_is_computed_once_per_object() -> None:
    one, other = Counted(), Counted()
    assert one.value == one.value == other.value == 7
    assert (one.n, other.n) == (1, 1)
    assert Counted.value.__doc__ == "A value."


def test_objects_do_not_wait_for_each_other() -> None:
    # Each computation waits for the other to begin: with one lock for all objects, neither would end.
    both = threading.Barrier(2, timeout=10)

    class Waiting:
        @computed_once
        def value(self) -> int:
            return both.wait()

    others = threading.Thread(target=lambda: Waiting().value)
    others.start()
    assert Waiting().value in (0, 1)
    others.join()


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 1])
def test_digest(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    with digest_meanwhile(io.BytesIO(content[:size])) as digest:
        assert digest() == hashlib.sha256(content[:size]).hexdigest()


def test_an_error_ends_the_reading_of_a_file() -> None:
    class Endless(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return b"x" * (size or 0)

    def fail() -> None:
        with digest_meanwhile(Endless()):
            raise KeyboardInterrupt

    run: Callable[[], None] = fail
    with pytest.raises(KeyboardInterrupt):
        run()
