"""Attacks: a pointwise statistic times a population calibration, from signals to scores."""
