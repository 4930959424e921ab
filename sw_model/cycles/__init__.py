"""Cycle model of a core: units, AXI engines and ports as processes with the cycle formulas of the RTL. See README.md.

Inputs are a program, the sizes of the core, the timing of the memories, and the data-dependent facts of a step that the
golden model reports: clusters of the tokens, buckets of each row, pages, transfers. Nothing is measured or fitted.
Every number of cycles is a register stage of the RTL, a formula of a unit, or an answer of a memory timing model.
"""
