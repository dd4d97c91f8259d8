"""Progress of long work, for commands, scripts and notebooks: silent for two seconds, then a bar with the time left."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from datetime import timedelta
from importlib.util import find_spec
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from plmia.errors import visible

SILENT_SECONDS = 2.0
LINE_SECONDS = 10.0

# Up to this number, steps are shown as a count; above it, in per cent.
MAX_COUNTED = 1_000


class SafeConsole(Console):
    """A console on which text cannot control the terminal: see `visible`."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string, as all strings are that are printed, alone or in a table."""
        return super().render_str(visible(text), **options)


def open_console(stream: TextIO, width: int | None = None) -> Console:
    """Return a console on a stream; characters that its encoding cannot write appear as question marks."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    terminal = stream.isatty()
    # Without a colour system neither colours nor bold letters are written (https://no-color.org).
    plain = not terminal or bool(os.environ.get("NO_COLOR"))
    return SafeConsole(
        file=stream,
        highlight=False,
        emoji=False,
        width=width,
        force_terminal=terminal,
        color_system=None if plain else "auto",
    )


def stderr() -> Console:
    """Return standard error."""
    return open_console(sys.stderr)


class Meter:
    """Counts steps of work and shows them on standard error: as a bar, or where none can be drawn, as lines."""

    def __init__(self, what: str, total: int, show: bool, console: Console | None = None) -> None:
        self._what, self._show = what, show
        self._console = console or stderr()
        self._draws = self._console.is_terminal or (self._console.is_jupyter and find_spec("ipywidgets") is not None)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn() if total <= MAX_COUNTED else TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
            get_time=lambda: time.monotonic(),
        )
        self._bar.add_task(what, total=total, left="")
        (self._task,) = self._bar.tasks
        self._skipped = 0
        wait, act = (SILENT_SECONDS, self._bar.start) if self._draws else (LINE_SECONDS, self._print_line)
        self._timer = threading.Timer(wait, act)
        self._timer.daemon = True

    def __enter__(self) -> Meter:
        self._last_line = time.monotonic()
        if self._show:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._show:
            self._timer.cancel()
            self._timer.join()
        if self._bar.live.is_started:
            self._bar.stop()

    def skip(self, steps: int) -> None:
        """Count ``steps`` that took no time, because they were done before."""
        self._task.completed += steps
        self._skipped += steps

    def tick(self, steps: int = 1, detail: str = "") -> None:
        """Count ``steps`` as done and show ``detail`` beside them."""
        description = visible(f"{self._what} ({detail})" if detail else self._what)
        self._bar.update(self._task.id, advance=steps, description=description, left=self._left(steps))
        if self._show and not self._draws and time.monotonic() - self._last_line > LINE_SECONDS:
            self._print_line()

    def _left(self, steps: int) -> str:
        """Time left after ``steps`` more, at the mean speed of the steps that were not skipped.

        The estimate of rich looks at the last seconds only; models may take hours each and finish several at a time.
        """
        done = self._task.completed + steps
        seconds = (self._task.elapsed or 0.0) * ((self._task.total or 0) - done) / (done - self._skipped)
        return f"{timedelta(seconds=round(seconds))} left"

    def _print_line(self) -> None:
        self._last_line = time.monotonic()
        left = self._task.fields["left"]
        line = f"{self._task.description}: {self._task.percentage:.0f} %{left and f', about {left}'}"
        self._console.print(line, markup=False, soft_wrap=True)
