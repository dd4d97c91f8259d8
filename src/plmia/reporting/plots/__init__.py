"""Figures of the report.

`figure` holds what a figure is made of, `colours` the themes, and `svg` draws a figure without a browser. The other
modules make the figures of one section of the page each: `leakage`, `exposure`, `validity`, `signals` and `models`.
"""
