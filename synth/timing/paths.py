"""Records of paths: cells, ends, and paths through inner blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class PathCell:
    """One cell on a path: instance, cell type, pins, delay in ps, arrival at its output in ps, net that it drives."""

    instance: str
    cell: str
    through: str
    delay_ps: float
    arrival_ps: float
    net: str

    def in_block(self, instance: str, extra_ps: float = 0.0) -> PathCell:
        """The cell in the names of the module that holds the block `instance`, its arrival `extra_ps` later."""
        arrival = self.arrival_ps + extra_ps
        return replace(self, instance=f"{instance}.{self.instance}", net=f"{instance}.{self.net}", arrival_ps=arrival)


@dataclass(frozen=True)
class Path:
    """A path from a register, input or macro to a register, output or macro.

    `delay_ps` includes clock to output and setup.
    """

    kind: str
    block: str
    start: str
    end: str
    delay_ps: float
    setup_ps: float
    cells: tuple[PathCell, ...]

    def json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "block": self.block,
            "start": self.start,
            "end": self.end,
            "delay_ps": round(self.delay_ps, 2),
            "setup_ps": round(self.setup_ps, 2),
            "cells": [
                {
                    "instance": cell.instance,
                    "cell": cell.cell,
                    "through": cell.through,
                    "delay_ps": round(cell.delay_ps, 2),
                    "net": cell.net,
                }
                for cell in self.cells
            ],
        }


@dataclass(frozen=True)
class PathEnd:
    """The end of a path.

    Attributes
    ----------
    delay, setup : delay of the path and the setup time in it, library units
    edge, net : edge and net that arrive
    name, kind : name of the end; `register`, `output` or `memory`
    block : instance, block, pin and bit, where the end is a pin of an inner block
    """

    delay: float
    setup: float
    edge: int
    net: int
    name: str
    kind: str
    block: tuple[str, str, str, int] | None = None


@dataclass(frozen=True)
class ThroughPath:
    """A path through an inner block without a register: input pin and bit, output, edge and net at the input."""

    instance: str
    block: str
    pin: str
    bit: int
    out: str
    edge: int
    net: int
