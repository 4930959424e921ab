"""Static timing of mapped netlists over the library's tables: critical paths with start, end and cells, and fmax.

Clocks are ideal. Input ports start at a flip-flop outside, output ports end at one, so the clock of a unit is what it
reaches between registered neighbours. Arrival is the worst per net and edge, slews merge to the worst (graph-based).
Blocks inside a unit come in with their own worst arrivals and requirements; memories with an estimate in FO4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from synth.area import Area
from synth.library import Arc, Library
from synth.netlist import Group, Netlist
from synth.text import table

MACRO_OUT_FO4 = 20.0  # clock to data of a small SRAM; half of a 30 to 40 FO4 cycle (CACTI 6.5 reports for 1 to 64 kbit)
MACRO_SETUP_FO4 = 4.0
_EDGES = ("rise", "fall")


@dataclass(frozen=True)
class Step:
    """One cell on a path: instance, cell, pins, delay in ps, arrival at its output, net driven."""

    instance: str
    cell: str
    through: str
    delay_ps: float
    arrival_ps: float
    net: str


@dataclass(frozen=True)
class Path:
    """A path from a register, input or macro to another; `delay_ps` holds clock to output and setup."""

    kind: str
    block: str
    start: str
    end: str
    delay_ps: float
    setup_ps: float
    steps: tuple[Step, ...]

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
                    "instance": step.instance,
                    "cell": step.cell,
                    "through": step.through,
                    "delay_ps": round(step.delay_ps, 2),
                    "net": step.net,
                }
                for step in self.steps
            ],
        }


@dataclass(frozen=True)
class Boundary:
    """What a block shows to the one around it, in library units: arrival after the clock of every output net, and the
    time that its slowest input needs before the clock. A path that runs through a block without a register is cut at
    its ports."""

    arrival: dict[str, np.ndarray]
    need: float


@dataclass(frozen=True)
class Timing:
    """Timing of a unit: the worst path of every kind, the worst of all first."""

    unit: str
    library: dict[str, Any]
    fo4_ps: float
    paths: tuple[Path, ...]
    tools: dict[str, str] = field(default_factory=dict)

    @property
    def critical(self) -> Path:
        return self.paths[0]

    @property
    def fmax_mhz(self) -> float:
        return 1e6 / self.critical.delay_ps

    def json(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "library": self.library,
            "fo4_ps": round(self.fo4_ps, 3),
            "fmax_mhz": round(self.fmax_mhz, 1),
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
                f"{1e6 / path.delay_ps:.0f}",
                f"{len(path.steps)}",
                path.start,
                path.end,
            ]
            for path in self.paths
        ]
        worst = self.critical
        cells = [
            [step.instance, step.cell, step.through, f"{step.delay_ps:.1f}", f"{step.arrival_ps:.1f}", step.net]
            for step in worst.steps
        ]
        return "\n".join(
            [
                table(["path", "ps", "FO4", "MHz", "cells", "start", "end"], rows),
                f"fmax {self.fmax_mhz:.0f} MHz; {self.library['name']}, FO4 {self.fo4_ps:.2f} ps",
                "",
                f"critical path, {worst.kind}: {worst.start} -> {worst.end}, setup {worst.setup_ps:.1f} ps",
                table(["instance", "cell", "through", "ps", "arrival", "net"], cells),
            ]
        )


def timing(area: Area, library: Library) -> Timing:
    """Timing of a mapped unit.

    Raises
    ------
    LibraryError
        The library has no timing tables.
    ValueError
        A block has a combinational loop.
    """
    library.require(timing=True)
    boundaries: dict[str, Boundary] = {}
    worst: dict[str, Path] = {}
    for block in area.blocks:
        netlist, top = Netlist(area.mapped[block.name], library), block is area.blocks[-1]
        analysis = _Analysis(netlist, boundaries)
        for path in analysis.paths(ports=top):
            if path.kind not in worst or path.delay_ps > worst[path.kind].delay_ps:
                worst[path.kind] = path
        if not top:
            inputs = _Analysis(netlist, boundaries, registers=False)
            need = max((end[0] for end in inputs.ends() if end[5] != "output"), default=-np.inf)
            arrival = {name: analysis.arrival[:, bits].max(axis=0) for name, bits in netlist.outputs.items()}
            boundaries[block.name] = Boundary(arrival, need - analysis.port_delay)
    if not worst:
        raise ValueError(f"unit {area.unit}: it has no path to time")
    paths = tuple(sorted(worst.values(), key=lambda path: -path.delay_ps))
    return Timing(area.unit, library.json(), library.fo4_ps, paths, area.tools)


def _delays(arc: Arc) -> bool:
    """Whether an arc has delays of any edge."""
    return any(f"cell_{edge}" in arc.tables for edge in _EDGES)


class _Analysis:
    """Arrivals of one block. Row 0 of every array is the rising edge, row 1 the falling one."""

    def __init__(self, netlist: Netlist, boundaries: dict[str, Boundary], *, registers: bool = True):
        self.n, self.library, self.boundaries = netlist, netlist.library, boundaries
        self.ps = self.library.seconds * 1e12
        size = netlist.size
        self.arrival = np.full((2, size), -np.inf)
        self.slew = np.zeros((2, size))
        # how the worst arrival at (edge, net) came about: cells, which of them, its input pin, net and edge, delay
        self.before: dict[tuple[int, int], tuple[Group, int, str, int, int, float]] = {}
        self.origin: dict[int, str] = {}  # start points that are not registers of this block
        self._fo4 = self.library.fo4_ps / self.ps
        self._outside()
        self._start_inputs()
        if registers:
            self._start_registers()
        for group in netlist.logic:
            self._propagate(group)

    def _outside(self) -> None:
        """Clock to output, setup and slew of the register that stands outside a port."""
        registers = [c for c in self.library.cells() if c.state is not None and c.state.kind == "ff"]
        cell = min(registers, key=lambda c: c.area)
        inverter = self.library.inverter
        load = 4 * inverter.pins[inverter.inputs[0]].capacitance
        arc = next(arc for pin in cell.outputs for arc in cell.pins[pin].arcs if "cell_rise" in arc.tables)
        slew = arc.tables["rise_transition"](0.0, load)
        self.edge_slew = float(slew)
        self.port_delay = float(max(arc.tables[f"cell_{edge}"](slew, load) for edge in _EDGES))
        data = next(pin for pin in cell.inputs if any("setup" in arc.kind for arc in cell.pins[pin].arcs))
        self.port_setup = float(self._setup(cell.pins[data].arcs, np.array([slew]))[0])

    def _start_inputs(self) -> None:
        for name, bits in self.n.inputs.items():
            for k, net in enumerate(bits):
                if net > 1:
                    self.arrival[:, net], self.slew[:, net] = self.port_delay, self.edge_slew
                    self.origin[net] = f"input {name}[{k}]" if len(bits) > 1 else f"input {name}"

    def _start_registers(self) -> None:
        for group in self.n.registers:
            cell = self.library.cell(group.type)
            for pin in cell.outputs:
                for arc in cell.pins[pin].arcs if pin in group.pins else ():
                    if _delays(arc) and cell.pins[arc.related].clock:
                        self._arc(group, arc, group.pins[pin], clocked=True)
        for instance, kind, pins, directions in self.n.opaque:
            for pin, bits in pins.items():
                if directions[pin] == "output":
                    if kind in self.boundaries:
                        delay = self.boundaries[kind].arrival[pin]
                    else:
                        delay = np.full(len(bits), MACRO_OUT_FO4 * self._fo4)
                    self.arrival[:, bits], self.slew[:, bits] = delay, self.edge_slew
                    for net in bits:
                        self.origin[net] = f"{instance.lstrip(chr(92))}.{pin}"

    def _propagate(self, group: Group) -> None:
        cell = self.library.cell(group.type)
        for pin in cell.outputs:
            if pin in group.pins:
                for arc in cell.pins[pin].arcs:
                    if _delays(arc) and arc.related in group.pins:
                        self._arc(group, arc, group.pins[pin])

    def _arc(self, group: Group, arc: Any, out: np.ndarray, clocked: bool = False) -> None:
        """Take one timing arc of every cell of a group into account."""
        source = group.pins[arc.related]
        load = self.n.loads[out]
        for edge, name in enumerate(_EDGES):
            if f"cell_{name}" not in arc.tables:  # real libraries split arcs by edge and state
                continue
            delays, slews = arc.tables[f"cell_{name}"], arc.tables[f"{name}_transition"]
            causes = {"positive_unate": (edge,), "negative_unate": (1 - edge,)}.get(arc.sense, (0, 1))
            for cause in (0,) if clocked else causes:
                slew = np.full(len(out), self.edge_slew) if clocked else self.slew[cause, source]
                begin = np.zeros(len(out)) if clocked else self.arrival[cause, source]
                reached = np.isfinite(begin)
                delay = delays(slew, load)
                better = reached & (begin + delay > self.arrival[edge, out])
                self.arrival[edge, out] = np.where(better, begin + delay, self.arrival[edge, out])
                self.slew[edge, out] = np.where(
                    reached, np.maximum(self.slew[edge, out], slews(slew, load)), self.slew[edge, out]
                )
                for k in np.flatnonzero(better):
                    start = -1 if clocked else int(source[k])
                    key = (edge, int(out[k]))
                    self.before[key] = (group, int(k), arc.related, start, cause, float(delay[k]))

    def _setup(self, arcs: Sequence[Any], slew: np.ndarray, edge: str | None = None) -> np.ndarray:
        """Worst setup time of a register's pin, 0 where the library gives none."""
        found = [np.zeros(len(slew))]
        for arc in (arc for arc in arcs if arc.kind.startswith("setup")):
            names = (f"{name}_constraint" for name in (_EDGES if edge is None else (edge,)))
            found += [arc.tables[name](slew, self.edge_slew) for name in names if name in arc.tables]
        return np.max(found, axis=0)

    def ends(self) -> list[tuple[float, float, int, int, str, str]]:
        """Worst of every kind: (delay, setup, edge, net, end, kind of end)."""
        found = []
        for group in self.n.registers:
            cell = self.library.cell(group.type)
            for pin in cell.inputs:
                if pin not in group.pins or cell.pins[pin].clock:
                    continue
                nets = group.pins[pin]
                for edge, name in enumerate(_EDGES):
                    setup = self._setup(cell.pins[pin].arcs, self.slew[edge, nets], name)
                    total = self.arrival[edge, nets] + setup
                    outs = next(group.pins[o] for o in cell.outputs if o in group.pins)
                    for k, value in enumerate(total):
                        if np.isfinite(value):
                            end = f"register {self.n.net_name(outs[k])}"
                            found.append((float(value), float(setup[k]), edge, int(nets[k]), end, "register"))
        for name, bits in self.n.outputs.items():
            for k, net in enumerate(bits):
                for edge in (0, 1):
                    if np.isfinite(self.arrival[edge, net]):
                        end = f"output {name}[{k}]" if len(bits) > 1 else f"output {name}"
                        total = float(self.arrival[edge, net]) + self.port_setup
                        found.append((total, self.port_setup, edge, net, end, "output"))
        for instance, kind, pins, directions in self.n.opaque:
            for pin, bits in pins.items():
                if directions[pin] != "input" or pin in ("clk", "RD_CLK", "WR_CLK"):
                    continue
                need = self.boundaries[kind].need if kind in self.boundaries else MACRO_SETUP_FO4 * self._fo4
                for k, net in enumerate(bits):
                    for edge in (0, 1):
                        if np.isfinite(self.arrival[edge, net]) and np.isfinite(need):
                            end = f"{instance.lstrip(chr(92))}.{pin}[{k}]"
                            total = float(self.arrival[edge, net]) + need
                            found.append((total, need, edge, net, end, "inside"))
        return found

    def paths(self, *, ports: bool) -> list[Path]:
        """The worst path of every kind; without `ports` only those that begin and end inside."""
        worst: dict[str, tuple[float, float, int, int, str]] = {}
        for total, setup, edge, net, end, kind in self.ends():
            begin = self._begin(edge, net)
            name = f"{begin} to {'output' if kind == 'output' else 'register'}"
            if not ports and (begin == "input" or kind == "output"):
                continue
            if name not in worst or total > worst[name][0]:
                worst[name] = (total, setup, edge, net, end)
        return [self._path(name, *entry) for name, entry in worst.items()]

    def _begin(self, edge: int, net: int) -> str:
        while (edge, net) in self.before:
            _, _, _, source, cause, _ = self.before[edge, net]
            if source < 0:
                return "register"
            edge, net = cause, source
        return "input" if self.origin.get(net, "").startswith("input ") else "register"

    def _path(self, kind: str, total: float, setup: float, edge: int, net: int, end: str) -> Path:
        steps: list[Step] = []
        start = ""
        while (edge, net) in self.before:
            group, k, pin, source, cause, delay = self.before[edge, net]
            outs = [p for p, nets in group.pins.items() if nets[k] == net]
            through = f"{pin} -> {outs[0] if outs else '?'} {_EDGES[edge]}"
            arrival = float(self.arrival[edge, net]) * self.ps
            steps.append(Step(group.names[k], group.type, through, delay * self.ps, arrival, self.n.net_name(net)))
            if source < 0:
                start = f"register {self.n.net_name(net)}"
                break
            edge, net = cause, source
        start = start or self.origin.get(net, self.n.net_name(net))
        return Path(kind, self.n.name, start, end, total * self.ps, setup * self.ps, tuple(reversed(steps)))
