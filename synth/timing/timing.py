"""Static timing of mapped netlists over the library's tables: critical paths with start, end and cells, and fmax.

Clocks are ideal. Input ports start at a flip-flop outside, output ports end at one, so the clock of a unit is what it
reaches between registered neighbours. Arrival is the worst per net and edge, slews merge to the worst (graph-based).
Blocks inside a unit come in with their own worst arrivals, requirements and delays from port to port; memories with an
estimate in FO4.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from synth.area import Area
from synth.library.reader import Arc, Library
from synth.netlist import Group, Netlist
from util.text import table

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

    def inside(self, instance: str, later_ps: float = 0.0) -> Step:
        """The same as a step of what is around the block `instance`, whose clock edge comes earlier."""
        arrival = self.arrival_ps + later_ps
        return replace(self, instance=f"{instance}.{self.instance}", net=f"{instance}.{self.net}", arrival_ps=arrival)


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
class End:
    """Where a path ends: its delay and the setup in it in library units, the edge and the net that arrive, and the pin
    of a block inside, where it is one: instance, block, pin, bit."""

    delay: float
    setup: float
    edge: int
    net: int
    name: str
    kind: str
    block: tuple[str, str, str, int] | None = None


@dataclass(frozen=True)
class Passed:
    """How a net comes through a block inside: from a bit of its pin to its output, and the edge and net before it."""

    instance: str
    block: str
    pin: str
    bit: int
    out: str
    edge: int
    net: int


@dataclass(frozen=True)
class Boundary:
    """What a block shows to the one around it, in library units.

    arrival : of every output net after the clock, from registers inside; `analysis` says from where
    need : time that every input net needs before the clock
    through : output -> input -> delay from every net of it to the slowest one of the output, where there is no register
    """

    arrival: dict[str, np.ndarray]
    need: dict[str, np.ndarray]
    through: dict[str, dict[str, np.ndarray]]
    analysis: Analysis


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
            ahead = Analysis(netlist, boundaries, registers=False)
            boundaries[block.name] = Boundary(arrival, ahead.needs(), ahead.through(), analysis)
    if not worst:
        raise ValueError(f"unit {area.unit}: it has no path to time")
    paths = tuple(sorted(worst.values(), key=lambda path: -path.delay_ps))
    return Timing(area.unit, library.json(), library.fo4_ps, paths, area.tools)


def _delays(arc: Arc) -> bool:
    """Whether an arc has delays of any edge."""
    return any(f"cell_{edge}" in arc.tables for edge in _EDGES)


class Analysis:
    """Arrivals of one block. Row 0 of every array is the rising edge, row 1 the falling one."""

    def __init__(
        self,
        netlist: Netlist,
        boundaries: dict[str, Boundary],
        *,
        registers: bool = True,
        inputs: Container[int] | None = None,
    ):
        """With `registers` paths begin at registers too; of the input nets all count, or those in `inputs`."""
        self.n, self.library, self.boundaries = netlist, netlist.library, boundaries
        self.ps = self.library.seconds * 1e12
        size = netlist.size
        self.arrival = np.full((2, size), -np.inf)
        self.slew = np.zeros((2, size))
        # how the worst arrival at (edge, net) came about: cells, which of them, its input pin, net and edge, delay
        self.before: dict[tuple[int, int], tuple[Group, int, str, int, int, float]] = {}
        self._delays: list[tuple[int, np.ndarray, int, np.ndarray, np.ndarray]] = []  # cause, source, edge, out, delay
        self.origin: dict[int, str] = {}  # start points that are not registers of this block
        self.inside: dict[int, tuple[str, str, str, int]] = {}  # those in blocks: instance, block, pin, bit
        self.passed: dict[int, Passed] = {}  # nets that come late because they come through a block
        self._fo4 = self.library.fo4_ps / self.ps
        self._outside()
        self._start_inputs(inputs)
        if registers:
            self._start_registers()
        self._settle()

    def _settle(self) -> None:
        """Arrivals behind the logic, over again while a block inside passes on something later than before."""
        later = True
        while later:
            self._delays.clear()
            for group in self.n.logic:
                self._propagate(group)
            later = self._pass_on()

    def _pass_on(self) -> bool:
        """Arrivals behind blocks that have paths without registers; whether one is later now. A circle, which only
        whole ports can make and not their bits, is cut."""
        later = False
        for instance, kind, pins, _ in self.n.opaque:
            through = self.boundaries[kind].through if kind in self.boundaries else {}
            for out, pin in ((out, pin) for out, sources in through.items() for pin in sources):
                reached = self.arrival[:, pins[pin]] + through[out][pin]
                edge, bit = np.unravel_index(int(reached.argmax()), reached.shape)
                value, source = float(reached[edge, bit]), int(pins[pin][bit])
                for net in pins[out]:
                    if net > 1 and value > self.arrival[:, net].max() and net not in self._nets_to(int(edge), source):
                        self.arrival[:, net], self.slew[:, net] = value, self.edge_slew
                        self.passed[net] = Passed(_plain(instance), kind, pin, int(bit), out, int(edge), source)
                        later = True
        return later

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

    def _start_inputs(self, chosen: Container[int] | None) -> None:
        for name, bits in self.n.inputs.items():
            for k, net in enumerate(bits):
                if net > 1 and (chosen is None or net in chosen):
                    self.arrival[:, net], self.slew[:, net] = self.port_delay, self.edge_slew
                    self.origin[net] = f"input {name}[{k}]" if len(bits) > 1 else f"input {name}"

    def _start_registers(self) -> None:
        for group in self.n.registers:
            cell = self.library.cell(group.type)
            for pin in cell.outputs:
                for arc in cell.pins[pin].arcs:
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
                    for k, net in enumerate(bits):
                        self.origin[net] = f"{_plain(instance)}.{pin}"
                        if kind in self.boundaries:
                            self.inside[net] = (_plain(instance), kind, pin, k)

    def _propagate(self, group: Group) -> None:
        cell = self.library.cell(group.type)
        for pin in cell.outputs:
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
                self._delays.append((cause, source, edge, out, delay))
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

    def ends(self) -> list[End]:
        """Every end that a path reaches."""
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
                            found.append(End(float(value), float(setup[k]), edge, int(nets[k]), end, "register"))
        for name, bits in self.n.outputs.items():
            for k, net in enumerate(bits):
                for edge in (0, 1):
                    if np.isfinite(self.arrival[edge, net]):
                        end = f"output {name}[{k}]" if len(bits) > 1 else f"output {name}"
                        total = float(self.arrival[edge, net]) + self.port_setup
                        found.append(End(total, self.port_setup, edge, net, end, "output"))
        for instance, kind, pins, directions in self.n.opaque:
            for pin, bits in pins.items():
                if directions[pin] != "input" or pin in ("clk", "RD_CLK", "WR_CLK"):
                    continue
                if kind in self.boundaries:
                    needs = self.boundaries[kind].need[pin]
                else:
                    needs = np.full(len(bits), MACRO_SETUP_FO4 * self._fo4)
                for k, net in enumerate(bits):
                    block = (_plain(instance), kind, pin, k) if kind in self.boundaries else None
                    for edge in (0, 1):
                        total = float(self.arrival[edge, net] + needs[k])
                        if np.isfinite(total):
                            end = f"{_plain(instance)}.{pin}[{k}]"
                            found.append(End(total, float(needs[k]), edge, net, end, "memory", block))
        return found

    def needs(self) -> dict[str, np.ndarray]:
        """Time from every input net to the slowest register, memory or block that it leads to, its setup included."""
        return self._slowest((end.edge, end.net, end.setup) for end in self.ends() if end.kind != "output")

    def through(self) -> dict[str, dict[str, np.ndarray]]:
        """Time from every input net to the slowest net of an output, for inputs that lead to it: output -> input."""
        found = {}
        for name, bits in self.n.outputs.items():
            reached = self._slowest((edge, net, 0.0) for net in bits for edge in (0, 1))
            found[name] = {pin: times for pin, times in reached.items() if np.isfinite(times).any()}
        return found

    def _slowest(self, ends: Iterable[tuple[int, int, float]]) -> dict[str, np.ndarray]:
        """The longest time from every input net to an end, given as edge, net and what is added there."""
        slowest = np.full((2, self.n.size), -np.inf)
        for edge, net, more in ends:
            slowest[edge, net] = max(slowest[edge, net], more)
        blocks = [
            (self.boundaries[kind].through, pins) for _, kind, pins, _ in self.n.opaque if kind in self.boundaries
        ]
        for _ in range(1 + len(blocks)):
            for cause, source, edge, out, delay in reversed(self._delays):
                np.maximum.at(slowest[cause], source, delay + slowest[edge, out])
            longer = False
            for through, pins in blocks:
                for out, pin in ((out, pin) for out, sources in through.items() for pin in sources):
                    times = slowest[:, pins[out]].max() + through[out][pin]
                    longer |= bool((times > slowest[:, pins[pin]].max(axis=0)).any())
                    for row in slowest:
                        np.maximum.at(row, pins[pin], times)
            if not longer:
                break
        return {name: slowest[:, bits].max(axis=0) for name, bits in self.n.inputs.items()}

    def paths(self, *, ports: bool) -> list[Path]:
        """The worst path of every kind; without `ports` only those that begin and end inside."""
        worst: dict[str, End] = {}
        begins: dict[tuple[int, int], str] = {}  # many ends, such as the pins of blocks, share a net
        for end in self.ends():
            if (end.edge, end.net) not in begins:
                begins[end.edge, end.net] = self._begin(end.edge, end.net)
            begin = begins[end.edge, end.net]
            name = f"{begin} to {'output' if end.kind == 'output' else 'register'}"
            if not ports and (begin == "input" or end.kind == "output"):
                continue
            if name not in worst or end.delay > worst[name].delay:
                worst[name] = end
        return [self._path(name, end) for name, end in worst.items()]

    def _nets_to(self, edge: int, net: int) -> Iterator[int]:
        """The nets of the worst path to a net, that one first; -1 for a register."""
        yield net
        while net in self.passed or (edge, net) in self.before:
            if net in self.passed:
                edge, net = self.passed[net].edge, self.passed[net].net
            else:
                _, _, _, net, edge, _ = self.before[edge, net]
            yield net

    def _begin(self, edge: int, net: int) -> str:
        *_, first = self._nets_to(edge, net)
        return "input" if self.origin.get(first, "").startswith("input ") else "register"

    def _path(self, kind: str, end: End) -> Path:
        start, before = self._until(end.edge, end.net)
        name, setup, after = self._from(end)
        return Path(kind, self.n.name, start, name, end.delay * self.ps, setup * self.ps, (*before, *after))

    def _until(self, edge: int, net: int) -> tuple[str, list[Step]]:
        """Start and cells of the worst path to a net."""
        steps: list[Step] = []
        while (edge, net) in self.before:
            group, k, pin, source, cause, delay = self.before[edge, net]
            outs = [p for p, nets in group.pins.items() if nets[k] == net]
            through = f"{pin} -> {outs[0] if outs else '?'} {_EDGES[edge]}"
            arrival = float(self.arrival[edge, net]) * self.ps
            steps.append(Step(group.names[k], group.type, through, delay * self.ps, arrival, self.n.net_name(net)))
            if source < 0:
                return f"register {self.n.net_name(net)}", steps[::-1]
            edge, net = cause, source
        if net in self.passed:
            start, before = self._until(self.passed[net].edge, self.passed[net].net)
            return start, [*before, *self._across(self.passed[net]), *steps[::-1]]
        if net not in self.inside:
            return self.origin.get(net, self.n.net_name(net)), steps[::-1]
        instance, block, pin, bit = self.inside[net]
        inner = self.boundaries[block].analysis
        (source,) = inner.n.outputs[pin][bit : bit + 1]
        start, before = inner._until(int(inner.arrival[:, source].argmax()), source)
        return f"{instance}: {start}", [*(step.inside(instance) for step in before), *steps[::-1]]

    def _across(self, passed: Passed) -> list[Step]:
        """The cells of a block on the path from one of its inputs to an output."""
        netlist = self.boundaries[passed.block].analysis.n
        source = netlist.inputs[passed.pin][passed.bit]
        inner = Analysis(netlist, self.boundaries, registers=False, inputs={source})
        arrivals = inner.arrival[:, netlist.outputs[passed.out]]
        edge, bit = np.unravel_index(int(arrivals.argmax()), arrivals.shape)
        _, steps = inner._until(int(edge), netlist.outputs[passed.out][bit])
        later = (float(self.arrival[passed.edge, passed.net]) - inner.port_delay) * self.ps
        return [step.inside(passed.instance, later) for step in steps]

    def _from(self, end: End) -> tuple[str, float, list[Step]]:
        """Name and setup of an end, and the cells between a block's pin and the register behind it."""
        if end.block is None:
            return end.name, end.setup, []
        instance, block, pin, bit = end.block
        netlist = self.boundaries[block].analysis.n
        inner = Analysis(netlist, self.boundaries, registers=False, inputs={netlist.inputs[pin][bit]})
        last = max((found for found in inner.ends() if found.kind != "output"), key=lambda found: found.delay)
        _, before = inner._until(last.edge, last.net)
        name, setup, after = inner._from(last)
        later = (float(self.arrival[end.edge, end.net]) - inner.port_delay) * self.ps
        return f"{instance}: {name}", setup, [step.inside(instance, later) for step in (*before, *after)]


def _plain(name: str) -> str:
    """A name without the backslash that escapes it."""
    return name.lstrip("\\")
