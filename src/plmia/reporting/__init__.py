"""The report of an audit: one HTML page and its figures."""

from __future__ import annotations

from plmia.reporting.content import Extras
from plmia.reporting.extras import read_extras
from plmia.reporting.page import figures, write_report
from plmia.reporting.plots import Figure

__all__ = ["Extras", "Figure", "figures", "read_extras", "write_report"]
