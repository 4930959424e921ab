"""Static timing of mapped netlists over the library's tables: critical paths with start, end and cells, and fmax.

Clocks are ideal except for their uncertainty; clock gates add no delay. A flip-flop drives every input port and
receives every output port, so fmax is the clock of the unit between registered neighbours. The analysis is
graph-based: it keeps the worst arrival and the worst slew per net and edge. Inner blocks have their own worst arrivals,
required times and delays from port to port. The delay of memories is an estimate in FO4 (fan-out-of-4 delays).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from synth.area import Area
from synth.library.reader import Library
from synth.library.technology import SLOW_DELAY
from synth.netlist import Netlist
from synth.timing.analysis import Analysis, Boundary
from synth.timing.paths import Path
from util.text import table


@dataclass(frozen=True)
class Timing:
    """Timing of a unit: the worst path of every kind, the slowest first.

    `uncertainty_ps` is the part of each period that skew and jitter of the clock use.
    """

    unit: str
    library: dict[str, Any]
    fo4_ps: float
    paths: tuple[Path, ...]
    tools: dict[str, str] = field(default_factory=dict)
    uncertainty_ps: float = 0.0

    @property
    def critical(self) -> Path:
        return self.paths[0]

    @property
    def fmax_mhz(self) -> float:
        return 1e6 / (self.critical.delay_ps + self.uncertainty_ps)

    @property
    def slow_mhz(self) -> float | None:
        """fmax in a slow process, for the predictive library; another library is one corner itself."""
        if self.library["tier"] != "embedded":
            return None
        return 1e6 / (SLOW_DELAY * self.critical.delay_ps + self.uncertainty_ps)

    def json(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "library": self.library,
            "fo4_ps": round(self.fo4_ps, 3),
            "fmax_mhz": round(self.fmax_mhz, 1),
            "slow_mhz": None if self.slow_mhz is None else round(self.slow_mhz, 1),
            "clock_uncertainty_ps": self.uncertainty_ps,
            "critical_fo4": round(self.critical.delay_ps / self.fo4_ps, 1),
            "paths": [path.json() for path in self.paths],
            "tools": self.tools,
        }

    def table(self) -> str:
        """The worst path of every kind, then the cells of the critical one."""
        rows = [
            [
                path.kind,
                f"{path.delay_ps:.0f}",
                f"{path.delay_ps / self.fo4_ps:.1f}",
                f"{1e6 / (path.delay_ps + self.uncertainty_ps):.0f}",
                f"{len(path.cells)}",
                path.start,
                path.end,
            ]
            for path in self.paths
        ]
        worst = self.critical
        slow = (
            "" if self.slow_mhz is None else f", {self.slow_mhz:.0f} MHz in a slow process (delays x {SLOW_DELAY:.2f})"
        )
        cells = [
            [cell.instance, cell.cell, cell.through, f"{cell.delay_ps:.1f}", f"{cell.arrival_ps:.1f}", cell.net]
            for cell in worst.cells
        ]
        return "\n".join(
            [
                table(["path", "ps", "FO4", "MHz", "cells", "start", "end"], rows),
                f"fmax {self.fmax_mhz:.0f} MHz{slow}; clock uncertainty {self.uncertainty_ps:g} ps; "
                f"{self.library['name']}, FO4 {self.fo4_ps:.2f} ps",
                "",
                f"critical path, {worst.kind}: {worst.start} -> {worst.end}, setup {worst.setup_ps:.1f} ps",
                table(["instance", "cell", "through", "ps", "arrival", "net"], cells),
            ]
        )


def timing(area: Area, library: Library, *, uncertainty_ps: float = 0.0) -> Timing:
    """Timing of a mapped unit, with a clock whose edges are uncertain by `uncertainty_ps`.

    Raises
    ------
    LibraryError
        The library has no timing tables.
    ValueError
        A block has a combinational loop, or `uncertainty_ps` is negative or not finite.
    """
    if not 0 <= uncertainty_ps < math.inf:
        raise ValueError(f"clock uncertainty must be at least 0 ps, got {uncertainty_ps:g}")
    library.require(timing=True, cells=area.cell_types)
    boundaries: dict[str, Boundary] = {}
    worst: dict[str, Path] = {}
    for block in area.blocks:
        netlist, top = Netlist(area.mapped[block.name], library), block is area.blocks[-1]
        analysis = Analysis(netlist, boundaries, inputs=None if top else ())
        for path in analysis.paths(ports=top):
            if path.kind not in worst or path.delay_ps > worst[path.kind].delay_ps:
                worst[path.kind] = path
        if not top:
            arrival = {name: analysis.arrival[:, bits].max(axis=0) for name, bits in netlist.outputs.items()}
            through_analysis = Analysis(netlist, boundaries, registers=False)
            boundaries[block.name] = Boundary(
                arrival, through_analysis.required_times(), through_analysis.through(), analysis
            )
    if not worst:
        raise ValueError(f"unit {area.unit} must have a register, memory or port path, got none")
    paths = tuple(sorted(worst.values(), key=lambda path: -path.delay_ps))
    return Timing(area.unit, library.json(), library.fo4_ps, paths, area.tools, uncertainty_ps)
