"""cocotb build-and-run layer: cached builds, stream drivers, timed memories."""
