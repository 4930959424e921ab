"""Functional coverage: the bins of every unit, and what a run met."""
