"""Cycles of a core's programs: its units, readers, writers and ports as processes, in the units' own cycle formulas.

The program, the sizes of the core and the memories' timing go in, and of the data only what a step's golden twin says
of it: candidates of each token, buckets of each row, pages, transfers. Nothing is measured or fitted: every number of
cycles here is one of the RTL's registers, a unit's formula, or an answer of a memory's timing.
"""
