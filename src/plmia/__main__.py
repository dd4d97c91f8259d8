"""``python -m plmia``: the command."""

from plmia.cli.main import main

main(prog_name="plmia")
