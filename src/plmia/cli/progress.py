"""Progress of long work: silent for the first two seconds, then a bar with the time left."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

SILENT_SECONDS = 2.0
LINE_SECONDS = 10.0

# Up to so many steps are counted one by one, more in per cent.
COUNTED = 1_000


class Meter:
    """Counts steps of a piece of work and shows them; on anything but a terminal, a line now and then.

    What is shown appears by itself, also if the first step takes long.

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
        self._timer: threading.Timer | None = None
        # The timer's thread and the one that works both show something.
        self._lock = threading.Lock()

    def __enter__(self) -> Meter:
        self._started = self._last_line = self._last_tick = time.monotonic()
        if self._console is not None:
            wait = SILENT_SECONDS if self._console.is_terminal else LINE_SECONDS
            self._timer = threading.Timer(wait, self._show_waiting)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer.join()
        with self._lock:
            self._console = None
            if self._bar:
                self._bar.stop()

    def skip(self, steps: int) -> None:
        """Count ``steps`` that took no time, because they were done before."""
        self._done += steps
        self._skipped += steps

    def tick(self, steps: int = 1, detail: str = "") -> None:
        """Count ``steps`` as done; ``detail`` stands behind what is being done."""
        with self._lock:
            self._done += steps
            self._detail = f" ({detail})" if detail else ""
            self._last_tick = now = time.monotonic()
            if self._console is not None:
                self._show(self._console, now)

    def left(self, now: float) -> float | None:
        """Seconds left, at the mean speed up to the last step; None before the first."""
        new = self._done - self._skipped
        if new <= 0:
            return None
        whole = (self._last_tick - self._started) * (self._total - self._done) / new
        return max(0.0, whole - (now - self._last_tick))

    def _show(self, console: Console, now: float) -> None:
        if console.is_terminal:
            if self._bar:
                task = self._bar.task_ids[0]
                self._bar.update(task, total=self._total, completed=self._done, description=self._what + self._detail)
            elif now - self._started > SILENT_SECONDS:
                self._start_bar(console)
        elif now - self._last_line > LINE_SECONDS:
            self._last_line = now
            share = 100 * self._done / self._total
            console.print(f"{self._what}{self._detail}: {share:.0f} %, about {self.left(now):.0f} s left")

    def _show_waiting(self) -> None:
        """Show that work goes on although no step is done yet."""
        with self._lock:
            if self._console is None or self._done > self._skipped:
                return
            if self._console.is_terminal:
                self._start_bar(self._console)
            else:
                self._last_line = time.monotonic()
                self._console.print(f"{self._what}: {self._done} of {self._total}")

    def numbers(self) -> str:
        """What stands behind the bar: steps, time spent, time left."""
        count = (
            f"{self._done} of {self._total}" if self._total <= COUNTED else f"{100 * self._done / self._total:.0f} %"
        )
        now = time.monotonic()
        left = self.left(now)
        return f"{count}, {_clock(now - self._started)}" + ("" if left is None else f", {_clock(left)} left")

    def _start_bar(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), _Numbers(self))
        self._bar = Progress(*columns, console=console, transient=True)
        # Without a total the bar moves to and fro, as long as there is nothing to measure speed by.
        total = self._total if self._done > self._skipped else None
        self._bar.add_task(self._what + self._detail, total=total, completed=self._done)
        self._bar.start()


class _Numbers(ProgressColumn):
    """The numbers of a meter, which knows what was done before and so took no time."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def render(self, task: Task) -> Text:
        """Show them."""
        del task
        return Text(self._meter.numbers())


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
