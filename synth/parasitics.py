"""Wires of a layout for timing and power: capacitance of every net, and delay from its driver to every terminal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parasitics:
    """Extracted wires of one mapped block.

    Attributes
    ----------
    farads : number of a net in yosys's JSON -> capacitance of its wires in F
    cells : (cell, input pin) -> Elmore delay of the wires in s
    outputs : (output port, bit) -> Elmore delay of the wires in s
    """

    farads: dict[int, float]
    cells: dict[tuple[str, str], float]
    outputs: dict[tuple[str, int], float]
