"""AXI4 and AXI4-Lite: ports, read and write engines, masters, interconnect, registers."""
