"""One audit from data to report: the run, the plan of its size, and targets that exist already."""
