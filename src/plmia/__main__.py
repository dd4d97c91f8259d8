"""``python -m plmia``: the command."""

from plmia.cli import main

main(prog_name="plmia")
