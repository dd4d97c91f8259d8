"""Progress of long work: silent for the first two seconds, then a bar with the time left."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SILENT_SECONDS = 2.0
LINE_SECONDS = 10.0


class Meter:
    """Counts steps of a piece of work and shows them; on anything but a terminal, a line now and then.

    Parameters
    ----------
    what : str
        What is being done.
    total : int
        Number of steps.
    console : Console or None
        Where to show it (standard error); None shows nothing.
    """

    def __init__(self, what: str, total: int, console: Console | None) -> None:
        self._what, self._total, self._console = what, total, console
        self._done = self._skipped = 0
        self._detail = ""
        self._bar: Progress | None = None

    def __enter__(self) -> Meter:
        self._started = self._last_line = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def skip(self, steps: int) -> None:
        """Count ``steps`` that took no time, because they were done before."""
        self._done += steps
        self._skipped += steps

    def tick(self, steps: int = 1, detail: str = "") -> None:
        """Count ``steps`` as done; ``detail`` stands behind what is being done."""
        self._done += steps
        self._detail = f" ({detail})" if detail else ""
        if self._console is None:
            return
        now = time.monotonic()
        if self._console.is_terminal:
            if self._bar:
                self._bar.update(self._bar.task_ids[0], advance=steps, description=self._what + self._detail)
            elif now - self._started > SILENT_SECONDS:
                self._start_bar(self._console)
        elif now - max(self._last_line, self._started) > LINE_SECONDS:
            self._last_line = now
            left = (now - self._started) * (self._total - self._done) / (self._done - self._skipped)
            self._console.print(
                f"{self._what}{self._detail}: {100 * self._done / self._total:.0f} %, about {left:.0f} s left"
            )

    def _start_bar(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True)
        self._bar.add_task(self._what + self._detail, total=self._total, completed=self._done)
        self._bar.start()
