"""Results of a run: typed, with a verdict; saved, read back, verified and compared."""
