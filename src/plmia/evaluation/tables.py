"""Tables: columns as a data frame of pandas or polars, and as HTML for notebooks."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from plmia.errors import PlmiaError

Library = Literal["pandas", "polars"]
LIBRARIES: tuple[Library, ...] = ("pandas", "polars")


class FrameError(PlmiaError):
    """A table that cannot be made, because the library for it is unknown or not installed."""


class Tabular(ABC):
    """A table that can be given as a data frame."""

    @abstractmethod
    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of `to_frame` as lists."""

    def to_frame(self, library: Library | None = None) -> Any:
        """Return the columns as a data frame of ``library``, by default of the first that is installed."""
        if library is None:
            library = next((name for name in LIBRARIES if find_spec(name) is not None), None)
        if library is None:
            raise FrameError("a frame needs pandas or polars, neither is installed: pip install one, or use columns()")
        if library not in LIBRARIES:
            raise FrameError(f"there is no library {library!r}: give {' or '.join(map(repr, LIBRARIES))}")
        try:
            return import_module(library).DataFrame(self.columns())
        except ImportError as error:
            raise FrameError(f"{library} is not installed: pip install {library}, or use columns()") from error


def text_table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows, the head first, as aligned text: the first ``left`` columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<" if column < left else ">" for column in range(len(widths))]
    lines = (
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)) for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def html_table(caption: str, columns: Mapping[str, Sequence[Any]]) -> str:
    """Columns as a small HTML table under a caption, all text shown as it is."""
    rows = zip(*columns.values(), strict=True)
    body = "".join(f"<tr>{html_cells('td', [cell_text(value) for value in row])}</tr>" for row in rows)
    return (
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{html_cells('th', list(columns))}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def cell_text(value: Any) -> str:
    """Return a value as a cell of a table: numbers with four digits, a dash for None."""
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def html_cells(tag: str, texts: Sequence[str]) -> str:
    """Cells of one row of an HTML table."""
    return "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)
