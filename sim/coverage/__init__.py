"""Coverage: Verilog by line and toggle, Python by branch, functional bins of units."""
