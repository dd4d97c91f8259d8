"""The report of an audit: one HTML page and its figures.

`page` writes both. `content` gathers the results and what is shown beside them, `page_text` turns them into words and
numbers, `plots` makes the figures and `drawing` draws them. `assets` has the template of the page, its style and its
scripts.
"""

from __future__ import annotations

from plmia.reporting.content import Extras, read_extras
from plmia.reporting.drawing import Figure
from plmia.reporting.page import figures, write_report

__all__ = ["Extras", "Figure", "figures", "read_extras", "write_report"]
