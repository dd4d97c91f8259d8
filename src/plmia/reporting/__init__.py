"""The report of an audit: one HTML page and its figures.

`page` writes both. `content` gathers the results and what is shown beside them (`extras`), `page_text` turns them into
words and numbers, `record_previews` shows records, and `plots` holds the figures. `assets` has the template of the
page, its style and its scripts.
"""

from __future__ import annotations

from plmia.reporting.extras import Extras, read_extras
from plmia.reporting.page import figures, write_report
from plmia.reporting.plots.figure import Figure

__all__ = ["Extras", "Figure", "figures", "read_extras", "write_report"]
