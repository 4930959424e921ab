"""Simulation benches: cached builds, stream and AXI drivers, runs of units, cores and layers."""
