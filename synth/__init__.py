"""Verilog generation, yosys flow, area, timing and power."""
