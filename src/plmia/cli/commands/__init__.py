"""The commands of `plmia`, one a module; `plmia.cli.main` gathers them."""
