"""The commands of `plmia`, one a module; `plmia.cli` gathers them."""
