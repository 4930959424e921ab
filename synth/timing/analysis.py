"""Graph-based timing analysis of one block: arrivals, required times, and the cells of the worst paths."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synth.library.records import Arc
from synth.netlist import CellGroup, Netlist
from synth.timing.paths import Path, PathCell, PathEnd, ThroughPath

# Clock to data of an SRAM: 20 FO4 at 1,024 rows, half of a cycle of 30 to 40 FO4 (CACTI 6.5 reports for 1 to 64 kbit).
# Each doubling of the rows adds a twentieth of this, as in the Liberty files of the 37 single-port ASAP7 macros in
# hammer-vlsi 1.2.0, whose delays do not depend on the width.
MACRO_OUT_FO4, MACRO_ROW_FO4 = 10.0, 1.0  # of a memory with one row; for each address bit
MACRO_SETUP_FO4 = 4.0
_EDGES = ("rise", "fall")
_CLOCKS = ("clk", "RD_CLK", "WR_CLK")  # pins of blocks and memories


def _macro_fo4(pins: Mapping[str, Sequence[int]]) -> float:
    """Clock to data of a macro in FO4, from its pins."""
    address_bits = len(pins["RD_ADDR"]) // len(pins["RD_CLK"])
    return MACRO_OUT_FO4 + MACRO_ROW_FO4 * address_bits


def _has_delays(arc: Arc) -> bool:
    """Whether an arc has a delay table."""
    return any(f"cell_{edge}" in arc.tables for edge in _EDGES)


@dataclass(frozen=True)
class Boundary:
    """Timing of a block at its ports for the module that holds it, in library units.

    Attributes
    ----------
    arrival : output -> arrival of every net after the clock, from the block's registers
    required : input -> time that every net needs before the clock
    through : output -> input -> delay from every net of the input to the slowest net of the output without a register
    analysis : arrivals in the block, for the cells on its paths
    """

    arrival: dict[str, np.ndarray]
    required: dict[str, np.ndarray]
    through: dict[str, dict[str, np.ndarray]]
    analysis: Analysis


class Analysis:
    """Arrivals of one block. Row 0 of every array is the rising edge, row 1 the falling edge.

    Parameters
    ----------
    boundaries : timing of the inner blocks by name
    registers : paths also start at registers
    inputs : input nets at which paths start; None: all
    """

    def __init__(
        self,
        netlist: Netlist,
        boundaries: dict[str, Boundary],
        *,
        registers: bool = True,
        inputs: Container[int] | None = None,
    ):
        self.n, self.library, self.boundaries = netlist, netlist.library, boundaries
        self.ps = self.library.seconds * 1e12
        size = netlist.size
        self.arrival = np.full((2, size), -np.inf)
        self.slew = np.zeros((2, size))
        # cause of the worst arrival at (edge, net): cells, index of the cell, its input pin, net and edge, delay
        self.predecessor: dict[tuple[int, int], tuple[CellGroup, int, str, int, int, float]] = {}
        self._delays: list[tuple[int, np.ndarray, int, np.ndarray, np.ndarray]] = []  # cause, source, edge, out, delay
        self.origin: dict[int, str] = {}  # start points other than registers of this block
        self.block_starts: dict[
            int, tuple[str, str, str, int]
        ] = {}  # start points in blocks: instance, block, pin, bit
        self.through_paths: dict[int, ThroughPath] = {}  # nets whose worst path goes through a block
        self._fo4 = self.library.fo4_ps / self.ps
        self._port_register()
        self._start_inputs(inputs)
        if registers:
            self._start_registers()
        self._settle()

    def _settle(self) -> None:
        """Compute arrivals behind the logic, and repeat while an inner block makes an arrival later."""
        changed = True
        while changed:
            self._delays.clear()
            for group in self.n.logic:
                self._propagate(group)
            changed = self._propagate_blocks()

    def _propagate_blocks(self) -> bool:
        """Compute arrivals behind blocks that have paths without registers; return whether one is later than before.

        Delays of blocks are by port, so ports can form a loop that their bits do not form. Such a loop is cut.
        """
        changed = False
        for instance, kind, pins, _ in self.n.opaque:
            through = self.boundaries[kind].through if kind in self.boundaries else {}
            for out, pin in ((out, pin) for out, sources in through.items() for pin in sources):
                arrivals = self.arrival[:, pins[pin]] + through[out][pin]
                edge, bit = np.unravel_index(int(arrivals.argmax()), arrivals.shape)
                value, source = float(arrivals[edge, bit]), int(pins[pin][bit])
                for net in pins[out]:
                    if net > 1 and value > self.arrival[:, net].max() and net not in self._nets_to(int(edge), source):
                        self.arrival[:, net], self.slew[:, net] = value, self.edge_slew
                        self.through_paths[net] = ThroughPath(
                            _plain(instance), kind, pin, int(bit), out, int(edge), source
                        )
                        changed = True
        return changed

    def _port_register(self) -> None:
        """Compute clock to output, setup and slew of the register outside each port."""
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

    def _start_inputs(self, input_bits: Container[int] | None) -> None:
        for name, bits in self.n.inputs.items():
            for k, net in enumerate(bits):
                if net > 1 and (input_bits is None or net in input_bits):
                    self.arrival[:, net], self.slew[:, net] = self.port_delay, self.edge_slew
                    self.origin[net] = f"input {name}[{k}]" if len(bits) > 1 else f"input {name}"

    def _start_registers(self) -> None:
        for group in self.n.registers:
            cell = self.library.cell(group.type)
            for pin in cell.outputs:
                for arc in cell.pins[pin].arcs:
                    if _has_delays(arc) and cell.pins[arc.related].clock:
                        self._arc(group, arc, group.pins[pin], clocked=True)
        for instance, kind, pins, directions in self.n.opaque:
            for pin, bits in pins.items():
                if directions[pin] == "output":
                    if kind in self.boundaries:
                        delay = self.boundaries[kind].arrival[pin]
                    else:
                        delay = np.full(len(bits), _macro_fo4(pins) * self._fo4)
                    self.arrival[:, bits], self.slew[:, bits] = delay, self.edge_slew
                    for k, net in enumerate(bits):
                        self.origin[net] = f"{_plain(instance)}.{pin}"
                        if kind in self.boundaries:
                            self.block_starts[net] = (_plain(instance), kind, pin, k)

    def _propagate(self, group: CellGroup) -> None:
        cell = self.library.cell(group.type)
        for pin in cell.outputs:
            for arc in cell.pins[pin].arcs:
                if _has_delays(arc) and arc.related in group.pins:
                    self._arc(group, arc, group.pins[pin])

    def _arc(self, group: CellGroup, arc: Any, out: np.ndarray, clocked: bool = False) -> None:
        """Update arrivals and slews by one timing arc of every cell of a group."""
        source = group.pins[arc.related]
        load = self.n.loads[out]
        wire = 0.0 if clocked else self.n.wire_delay(group, arc.related)  # a clock is ideal
        for edge, name in enumerate(_EDGES):
            if f"cell_{name}" not in arc.tables:  # real libraries split arcs by edge and state
                continue
            delays, slews = arc.tables[f"cell_{name}"], arc.tables[f"{name}_transition"]
            causes = {"positive_unate": (edge,), "negative_unate": (1 - edge,)}.get(arc.sense, (0, 1))
            for cause in (0,) if clocked else causes:
                slew = np.full(len(out), self.edge_slew) if clocked else self.slew[cause, source]
                begin = np.zeros(len(out)) if clocked else self.arrival[cause, source]
                reached = np.isfinite(begin)
                delay = delays(slew, load) + wire
                self._delays.append((cause, source, edge, out, delay))
                better = reached & (begin + delay > self.arrival[edge, out])
                self.arrival[edge, out] = np.where(better, begin + delay, self.arrival[edge, out])
                self.slew[edge, out] = np.where(
                    reached, np.maximum(self.slew[edge, out], slews(slew, load)), self.slew[edge, out]
                )
                for k in np.flatnonzero(better):
                    start = -1 if clocked else int(source[k])
                    key = (edge, int(out[k]))
                    self.predecessor[key] = (group, int(k), arc.related, start, cause, float(delay[k]))

    def _setup(self, arcs: Sequence[Any], slew: np.ndarray, edge: str | None = None) -> np.ndarray:
        """Worst setup time of a register's pin, 0 where the library has none."""
        setups = [np.zeros(len(slew))]
        for arc in (arc for arc in arcs if arc.kind.startswith("setup")):
            names = (f"{name}_constraint" for name in (_EDGES if edge is None else (edge,)))
            setups += [arc.tables[name](slew, self.edge_slew) for name in names if name in arc.tables]
        return np.max(setups, axis=0)

    def ends(self) -> list[PathEnd]:
        """Every end that a path reaches."""
        ends = []
        for group in self.n.registers:
            cell = self.library.cell(group.type)
            for pin in cell.inputs:
                if pin not in group.pins or cell.pins[pin].clock:
                    continue
                nets = group.pins[pin]
                wire = self.n.wire_delay(group, pin)
                for edge, name in enumerate(_EDGES):
                    setup = self._setup(cell.pins[pin].arcs, self.slew[edge, nets], name) + wire
                    total = self.arrival[edge, nets] + setup
                    outs = next(group.pins[o] for o in cell.outputs if o in group.pins)
                    for k, value in enumerate(total):
                        if np.isfinite(value):
                            end = f"register {self.n.net_name(outs[k])}"
                            ends.append(PathEnd(float(value), float(setup[k]), edge, int(nets[k]), end, "register"))
        ends += self._gate_ends()
        for name, bits in self.n.outputs.items():
            for k, net in enumerate(bits):
                for edge in (0, 1):
                    if np.isfinite(self.arrival[edge, net]):
                        end = f"output {name}[{k}]" if len(bits) > 1 else f"output {name}"
                        setup = self.port_setup + self.n.output_delay(name, k)
                        total = float(self.arrival[edge, net]) + setup
                        ends.append(PathEnd(total, setup, edge, net, end, "output"))
        for instance, kind, pins, directions in self.n.opaque:
            for pin, bits in pins.items():
                if directions[pin] != "input" or pin in _CLOCKS:
                    continue
                if kind in self.boundaries:
                    required = self.boundaries[kind].required[pin]
                else:
                    required = np.full(len(bits), MACRO_SETUP_FO4 * self._fo4)
                for k, net in enumerate(bits):
                    block = (_plain(instance), kind, pin, k) if kind in self.boundaries else None
                    for edge in (0, 1):
                        total = float(self.arrival[edge, net] + required[k])
                        if np.isfinite(total):
                            end = f"{_plain(instance)}.{pin}[{k}]"
                            ends.append(PathEnd(total, float(required[k]), edge, net, end, "memory", block))
        return ends

    def _gate_ends(self) -> Iterator[PathEnd]:
        """The enables of clock gates: the latch of a gate closes at the rising edge of the clock."""
        for group in self.n.gates:
            cell = self.library.cell(group.type)
            assert cell.gate is not None
            nets = group.pins[cell.gate.enable]
            for edge, name in enumerate(_EDGES):
                setup = self._setup(cell.pins[cell.gate.enable].arcs, self.slew[edge, nets], name)
                setup = setup + self.n.wire_delay(group, cell.gate.enable)
                total = self.arrival[edge, nets] + setup
                for k in np.flatnonzero(np.isfinite(total)):
                    end = f"clock gate {group.names[k]}"
                    yield PathEnd(float(total[k]), float(setup[k]), edge, int(nets[k]), end, "register")

    def required_times(self) -> dict[str, np.ndarray]:
        """Time from every input net to the slowest register, memory or block behind it, setup included."""
        return self._slowest((end.edge, end.net, end.setup) for end in self.ends() if end.kind != "output")

    def through(self) -> dict[str, dict[str, np.ndarray]]:
        """Delay from every input net to the slowest net of each output that it reaches: output -> input -> delays."""
        delays = {}
        for name, bits in self.n.outputs.items():
            slowest = self._slowest((edge, net, 0.0) for net in bits for edge in (0, 1))
            delays[name] = {pin: times for pin, times in slowest.items() if np.isfinite(times).any()}
        return delays

    def _slowest(self, ends: Iterable[tuple[int, int, float]]) -> dict[str, np.ndarray]:
        """The longest time from every input net to an end; an end is an edge, a net and an extra time."""
        slowest = np.full((2, self.n.size), -np.inf)
        for edge, net, extra in ends:
            slowest[edge, net] = max(slowest[edge, net], extra)
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
        """The worst path of every kind; without `ports` only paths from registers to registers."""
        worst: dict[str, PathEnd] = {}
        starts: dict[tuple[int, int], str] = {}  # many ends, such as the pins of blocks, share a net
        for end in self.ends():
            if (end.edge, end.net) not in starts:
                starts[end.edge, end.net] = self._start_kind(end.edge, end.net)
            start = starts[end.edge, end.net]
            name = f"{start} to {'output' if end.kind == 'output' else 'register'}"
            if not ports and (start == "input" or end.kind == "output"):
                continue
            if name not in worst or end.delay > worst[name].delay:
                worst[name] = end
        return [self._path(name, end) for name, end in worst.items()]

    def _nets_to(self, edge: int, net: int) -> Iterator[int]:
        """The nets of the worst path to a net, backwards from that net; -1 for a register."""
        yield net
        while net in self.through_paths or (edge, net) in self.predecessor:
            if net in self.through_paths:
                edge, net = self.through_paths[net].edge, self.through_paths[net].net
            else:
                _, _, _, net, edge, _ = self.predecessor[edge, net]
            yield net

    def _start_kind(self, edge: int, net: int) -> str:
        """`input` or `register`: the start of the worst path to a net."""
        *_, first = self._nets_to(edge, net)
        return "input" if self.origin.get(first, "").startswith("input ") else "register"

    def _path(self, kind: str, end: PathEnd) -> Path:
        start, first_cells = self._cells_to(end.edge, end.net)
        name, setup, last_cells = self._cells_from(end)
        cells = (*first_cells, *last_cells)
        return Path(kind, self.n.name, start, name, end.delay * self.ps, setup * self.ps, cells)

    def _cells_to(self, edge: int, net: int) -> tuple[str, list[PathCell]]:
        """Start and cells of the worst path to a net."""
        cells: list[PathCell] = []
        while (edge, net) in self.predecessor:
            group, k, pin, source, cause, delay = self.predecessor[edge, net]
            outs = [p for p, nets in group.pins.items() if nets[k] == net]
            through = f"{pin} -> {outs[0] if outs else '?'} {_EDGES[edge]}"
            arrival = float(self.arrival[edge, net]) * self.ps
            cells.append(PathCell(group.names[k], group.type, through, delay * self.ps, arrival, self.n.net_name(net)))
            if source < 0:
                return f"register {self.n.net_name(net)}", cells[::-1]
            edge, net = cause, source
        if net in self.through_paths:
            start, first_cells = self._cells_to(self.through_paths[net].edge, self.through_paths[net].net)
            return start, [*first_cells, *self._cells_through(self.through_paths[net]), *cells[::-1]]
        if net not in self.block_starts:
            return self.origin.get(net, self.n.net_name(net)), cells[::-1]
        instance, block, pin, bit = self.block_starts[net]
        inner = self.boundaries[block].analysis
        (source,) = inner.n.outputs[pin][bit : bit + 1]
        start, first_cells = inner._cells_to(int(inner.arrival[:, source].argmax()), source)
        return f"{instance}: {start}", [*(cell.in_block(instance) for cell in first_cells), *cells[::-1]]

    def _cells_through(self, path: ThroughPath) -> list[PathCell]:
        """The cells of a block on the path from one of its inputs to an output."""
        netlist = self.boundaries[path.block].analysis.n
        source = netlist.inputs[path.pin][path.bit]
        inner = Analysis(netlist, self.boundaries, registers=False, inputs={source})
        arrivals = inner.arrival[:, netlist.outputs[path.out]]
        edge, bit = np.unravel_index(int(arrivals.argmax()), arrivals.shape)
        _, cells = inner._cells_to(int(edge), netlist.outputs[path.out][bit])
        extra_ps = (float(self.arrival[path.edge, path.net]) - inner.port_delay) * self.ps
        return [cell.in_block(path.instance, extra_ps) for cell in cells]

    def _cells_from(self, end: PathEnd) -> tuple[str, float, list[PathCell]]:
        """Name and setup of an end; where it is a pin of a block, also the cells up to the register in the block."""
        if end.block is None:
            return end.name, end.setup, []
        instance, block, pin, bit = end.block
        netlist = self.boundaries[block].analysis.n
        inner = Analysis(netlist, self.boundaries, registers=False, inputs={netlist.inputs[pin][bit]})
        last = max((e for e in inner.ends() if e.kind != "output"), key=lambda e: e.delay)
        _, first_cells = inner._cells_to(last.edge, last.net)
        name, setup, last_cells = inner._cells_from(last)
        extra_ps = (float(self.arrival[end.edge, end.net]) - inner.port_delay) * self.ps
        return f"{instance}: {name}", setup, [cell.in_block(instance, extra_ps) for cell in (*first_cells, *last_cells)]


def _plain(name: str) -> str:
    """An RTLIL name without its leading backslash."""
    return name.lstrip("\\")
