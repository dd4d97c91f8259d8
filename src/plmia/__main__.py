"""``python -m plmia``: the command."""

from plmia.cli.start import run

run()
