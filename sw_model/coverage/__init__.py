"""What the tests reach: Verilog by the Python that made it, Python by its branches, modes and boundaries of units."""
