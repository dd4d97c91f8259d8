"""The report of an audit: one HTML page and its figures."""

from __future__ import annotations

from plmia.report.content import Extras
from plmia.report.extras import read_extras
from plmia.report.page import figures, write_report
from plmia.report.plots import Figure

__all__ = ["Extras", "Figure", "figures", "read_extras", "write_report"]
