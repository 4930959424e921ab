"""Cycle-by-cycle simulation of a mapped unit as one flat circuit: zero-delay values of every net of every block.

The circuit has one clock and reacts to its rising edges. A register behind a clock gate keeps its state in a cycle
that ends without the gate's enable. Between edges the logic settles without glitches. A memory
that reads and writes the same word at once reads the old word, or the new word if it is transparent, as in the model of
`synth.macros`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from synth.area import Area
from synth.library.boolean import truth_table
from synth.library.reader import Library
from synth.macros import Macro
from synth.netlist import CLOCK, CellGroup, Netlist
from util.compiled import compiled


@dataclass(frozen=True)
class BlockInstance:
    """One instance of a block: number of its first net (`base`) and of its first macro in the circuit."""

    block: str
    base: int
    macro: int


@dataclass(frozen=True)
class CircuitRun:
    """Toggles, memory accesses and outputs of a run.

    Attributes
    ----------
    cycles : number of counted cycles
    toggles : of every net of the circuit, int64
    accesses : int64 (macros, 2): reads and writes, in the order of `Circuit.macros`
    outputs : port -> uint8 (cycles of the whole run, width), settled values before each clock edge
    """

    cycles: int
    toggles: np.ndarray
    accesses: np.ndarray
    outputs: dict[str, np.ndarray]


class Circuit:
    """All block instances of a mapped unit, connected.

    Attributes
    ----------
    netlists : block -> its netlist ; instances : every block instance, the unit itself first
    macros : memories in the order of the instances
    inputs, outputs : the unit's ports -> nets of the circuit, lowest bit first

    Raises
    ------
    ValueError
        The design has a latch, a falling clock, an asynchronous reset in use or a combinational loop.
    """

    def __init__(self, area: Area, library: Library):
        self.library, self.name = library, area.unit
        self.netlists = {block.name: Netlist(area.mapped[block.name], library) for block in area.blocks}
        self._area = area
        self._tables: list[np.ndarray] = []
        self._table_at: dict[tuple[int, int], int] = {}
        self._table_size = 0
        self._gates: list[tuple[np.ndarray, np.ndarray, int]] = []  # inputs (n, k), outputs (n,), table
        self._next: list[tuple[np.ndarray, int]] = []  # inputs (n, k) of a register's next state, table
        self._enables: list[np.ndarray] = []  # nets that enable the clocks of these registers
        self._states: list[tuple[np.ndarray, int, bool]] = []  # outputs (n,), first register, inverted
        self._registers = 0
        self.macros: list[Macro] = []
        self._macro_pins: list[dict[str, np.ndarray]] = []
        self.instances: list[BlockInstance] = []
        self.size = 0
        self._add_instance(area.blocks[-1].name)
        top = self.netlists[area.blocks[-1].name]
        self.inputs = {name: np.array(bits) for name, bits in top.inputs.items() if name != CLOCK}
        self.outputs = {name: np.array(bits) for name, bits in top.outputs.items()}
        self._finalize()

    def _add_instance(self, name: str) -> int:
        """Add an instance of block `name` and of its inner blocks; return its first net."""
        netlist = self.netlists[name]
        base = self.size
        self.size += netlist.size
        self.instances.append(BlockInstance(name, base, len(self.macros)))
        for group in netlist.logic:
            cell = self.library.cell(group.type)
            inputs = self._columns(group, cell.inputs, base)
            for pin in (pin for pin in cell.outputs if pin in group.pins):
                table = self._table(truth_table(cell.pins[pin].function, cell.inputs), len(cell.inputs))
                self._gates.append((inputs, group.pins[pin] + base, table))
        for group in netlist.registers:
            self._add_registers(netlist, group, base)
        self.macros += self.memories(name)
        for _, kind, pins, _ in netlist.opaque:
            if kind not in self.netlists:
                self._macro_pins.append({pin: np.array(bits) + base for pin, bits in pins.items()})
        buffer = self._table(0b10, 1)
        for _, kind, pins, directions in (entry for entry in netlist.opaque if entry[1] in self.netlists):
            child, start = self.netlists[kind], self._add_instance(kind)
            for pin, bits in pins.items():
                inward = directions[pin] == "input"
                inner_nets = np.array((child.inputs if inward else child.outputs)[pin]) + start
                outer_nets = np.array(bits) + base
                source, target = (outer_nets, inner_nets) if inward else (inner_nets, outer_nets)
                if pin != CLOCK:
                    self._gates.append((source[:, None], target, buffer))
        return base

    def memories(self, block: str) -> list[Macro]:
        """The memories of one instance of a block, in the order of `macros`."""
        macros = {macro.module: macro for macro in self._area.mapped[block].macros}
        return [macros[kind] for _, kind, _, _ in self.netlists[block].opaque if kind in macros]

    def _gates_of(self, block: str) -> Iterable[tuple[int, int]]:
        """Net of every gated clock of a block, and the net that enables it."""
        return self.netlists[block].enables.items()

    def _columns(self, group: CellGroup, pins: Sequence[str], base: int) -> np.ndarray:
        size = len(group.names)
        columns = [group.pins[pin] if pin in group.pins else np.zeros(size, int) for pin in pins]
        return np.stack(columns, axis=1) + base if columns else np.zeros((size, 0), int)

    def _table(self, bits: int, inputs: int) -> int:
        if (bits, inputs) not in self._table_at:
            self._table_at[bits, inputs] = self._table_size
            size = 1 << inputs
            self._tables.append(np.array([bits >> k & 1 for k in range(size)], np.uint8))
            self._table_size += size
        return self._table_at[bits, inputs]

    def _add_registers(self, netlist: Netlist, group: CellGroup, base: int) -> None:
        flip_flop = netlist.flip_flop(group)
        table = self._table(flip_flop.next_state, len(flip_flop.data) + 2)
        self._next.append((self._columns(group, flip_flop.data, base), table))
        self._enables.append(flip_flop.enables + base)
        for pin, inverted in flip_flop.outputs.items():
            self._states.append((group.pins[pin] + base, self._registers, inverted))
        self._registers += len(group.names)

    def _finalize(self) -> None:
        """Build the arrays of the simulation, gates in topological order."""
        first, count, flat, out, table = _packed(self._gates)
        order = _order(first, count, flat, out, self.size)
        if len(order) < len(out):
            raise ValueError(f"unit {self.name}: logic must be acyclic, got a combinational loop")
        self._gate_arrays = (first[order], count[order], flat, out[order], table[order])
        rows = [(inputs, np.zeros(len(inputs), int), at) for inputs, at in self._next]
        first, count, flat, _, table = _packed(rows)
        self._next_arrays = (first, count, flat, table, np.concatenate([np.zeros(0, int), *self._enables]))
        outs = [np.zeros(0, int), *(nets for nets, _, _ in self._states)]
        registers = [np.zeros(0, int), *(np.arange(len(nets)) + start for nets, start, _ in self._states)]
        inverted = [np.zeros(0, int), *(np.full(len(nets), flip) for nets, _, flip in self._states)]
        self._state_arrays = (
            np.concatenate(outs),
            np.concatenate(registers),
            np.concatenate(inverted).astype(np.uint8),
        )
        self._port_arrays = self._macro_ports()

    def _macro_ports(self) -> tuple[np.ndarray, np.ndarray]:
        """Ports of the memories and their nets.

        One row per port: macro, phase (0: read before the writes, 1: write, 2: read after the writes), enable, address,
        address bits, data, width, store, depth. Enable, address and data are positions in the second array, which
        holds the nets. Store is the position of the memory's first bit.
        """
        rows, nets = [], [np.zeros(0, int)]
        at = store = 0
        for number, (macro, pins) in enumerate(zip(self.macros, self._macro_pins, strict=True)):
            for write, ports in ((0, macro.reads), (1, macro.writes)):
                kind, enables = ("WR", macro.width) if write else ("RD", 1)
                for port in range(ports):
                    starts = []
                    for pin, size in (("EN", enables), ("ADDR", macro.address_bits), ("DATA", macro.width)):
                        starts.append(at)
                        nets.append(pins[f"{kind}_{pin}"][port * size : (port + 1) * size])
                        at += size
                    enable, address, data = starts
                    bits = macro.address_bits
                    phase = 1 if write else 2 * macro.transparent
                    rows.append((number, phase, enable, address, bits, data, macro.width, store, macro.depth))
            store += macro.bits
        self._store = store
        return np.array(rows, int).reshape(-1, 9), np.concatenate(nets).astype(int)

    def run(self, stimulus: Mapping[str, np.ndarray], *, skip: int = 0) -> CircuitRun:
        """Run the circuit over `stimulus` and count toggles after the first `skip` cycles.

        `stimulus` holds for every input port except the clock the values before each clock edge, uint8 (cycles, width).
        Registers and memories start at 0.

        Raises
        ------
        ValueError
            The ports or their shapes differ from those of the unit.
        """
        if set(stimulus) != set(self.inputs):
            raise ValueError(f"ports of stimulus must be {sorted(self.inputs)}, got {sorted(stimulus)}")
        cycles = {len(values) for values in stimulus.values()}
        if len(cycles) != 1 or not 0 <= skip < min(cycles):
            raise ValueError(f"cycles of stimulus must be one number above {skip}, got {sorted(cycles)}")
        for name, values in stimulus.items():
            if np.shape(values)[1:] != (len(self.inputs[name]),):
                raise ValueError(
                    f"width of stimulus {name} must be {len(self.inputs[name])}, got {np.shape(values)[1:]}"
                )
        names = sorted(self.inputs)
        nets = np.concatenate([self.inputs[name] for name in names]).astype(int)
        driven = np.concatenate([np.asarray(stimulus[name], np.uint8) for name in names], axis=1)
        free = nets > 1
        observed = np.concatenate([np.zeros(0, int), *self.outputs.values()]).astype(int)
        toggles = np.zeros(self.size, np.int64)
        accesses = np.zeros((len(self.macros), 2), np.int64)
        gated = [(out + at.base, net + at.base) for at in self.instances for out, net in self._gates_of(at.block)]
        clocks, enables = np.array(gated, int).reshape(-1, 2).T
        pulses = np.zeros(len(gated), np.int64)
        values = np.zeros(self.size, np.uint8)
        values[[instance.base + 1 for instance in self.instances]] = 1
        recorded = _run(
            values,
            np.ascontiguousarray(driven[:, free]),
            nets[free],
            *self._gate_arrays,
            *self._next_arrays,
            *self._state_arrays,
            np.concatenate([np.zeros(0, np.uint8), *self._tables]),
            *self._port_arrays,
            np.zeros(self._store, np.uint8),
            observed,
            skip,
            enables,
            pulses,
            toggles,
            accesses,
        )
        counted = len(driven) - 1 - skip
        for instance in self.instances:  # the clock rises and falls in every cycle
            clock = np.array(self.netlists[instance.block].inputs.get(CLOCK, []), int)
            toggles[clock + instance.base] = 2 * counted
        toggles[clocks] = 2 * pulses
        ends = np.cumsum([len(bits) for bits in self.outputs.values()])[:-1]
        outputs = dict(zip(self.outputs, np.split(recorded, ends, axis=1), strict=True))
        return CircuitRun(counted, toggles, accesses, outputs)


def _packed(rows: Sequence[tuple[np.ndarray, np.ndarray, int]]) -> tuple[np.ndarray, ...]:
    """Arrays of all gates: first input, number of inputs, inputs, output, table."""
    none = np.zeros(0, int)
    count = np.concatenate([none, *(np.full(len(inputs), inputs.shape[1]) for inputs, _, _ in rows)])
    flat = np.concatenate([none, *(inputs.ravel() for inputs, _, _ in rows)])
    out = np.concatenate([none, *(out for _, out, _ in rows)])
    table = np.concatenate([none, *(np.full(len(out), at) for _, out, at in rows)])
    return np.cumsum(count) - count, count, flat, out, table


@compiled
def _order(first, count, flat, out, size):
    """Gates in topological order; the result is shorter than `out` if there is a loop."""
    driver = np.full(size, -1)
    for gate in range(len(out)):
        driver[out[gate]] = gate
    waiting = np.zeros(len(out), np.int64)
    followers = np.zeros(len(out) + 1, np.int64)
    for gate in range(len(out)):
        for k in range(first[gate], first[gate] + count[gate]):
            if driver[flat[k]] >= 0:
                waiting[gate] += 1
                followers[driver[flat[k]] + 1] += 1
    start = np.cumsum(followers)
    readers = np.zeros(start[-1], np.int64)
    fill = start[:-1].copy()
    for gate in range(len(out)):
        for k in range(first[gate], first[gate] + count[gate]):
            source = driver[flat[k]]
            if source >= 0:
                readers[fill[source]] = gate
                fill[source] += 1
    order = np.zeros(len(out), np.int64)
    done = 0
    for gate in range(len(out)):
        if waiting[gate] == 0:
            order[done] = gate
            done += 1
    at = 0
    while at < done:
        for k in range(start[order[at]], start[order[at] + 1]):
            waiting[readers[k]] -= 1
            if waiting[readers[k]] == 0:
                order[done] = readers[k]
                done += 1
        at += 1
    return order[:done]


@compiled
def _run(
    values, driven, driven_nets,
    first, count, flat, out, table,
    next_first, next_count, next_flat, next_table, enables,
    q_net, q_register, q_inverted,
    tables, ports, port_nets, store,
    observed, skip, pulse_enables, pulses, toggles, accesses,
):  # fmt: skip
    """Settle, record, count and clock once per row of `driven`; return the observed nets of every cycle."""
    recorded = np.zeros((len(driven), len(observed)), np.uint8)
    state = np.zeros(len(next_first), np.uint8)
    next_state = np.zeros(len(next_first), np.uint8)
    old_values = values.copy()
    read = np.zeros(len(port_nets), np.uint8)
    for cycle in range(len(driven)):
        for k in range(len(q_net)):
            values[q_net[k]] = state[q_register[k]] ^ q_inverted[k]
        for k in range(len(driven_nets)):
            values[driven_nets[k]] = driven[cycle, k]
        for gate in range(len(out)):
            index = 0
            for k in range(count[gate]):
                index |= values[flat[first[gate] + k]] << k
            values[out[gate]] = tables[table[gate] + index]
        for k in range(len(observed)):
            recorded[cycle, k] = values[observed[k]]
        counting = cycle > skip
        for k in range(len(pulse_enables)):
            pulses[k] += counting and values[pulse_enables[k]]
        for net in range(len(values)):
            if counting and values[net] != old_values[net]:
                toggles[net] += 1
            old_values[net] = values[net]
        for k in range(len(state)):
            next_state[k] = state[k]
            if values[enables[k]] == 0:
                continue
            index = 0
            for i in range(next_count[k]):
                index |= values[next_flat[next_first[k] + i]] << i
            index |= state[k] << next_count[k]
            index |= (1 - state[k]) << (next_count[k] + 1)
            next_state[k] = tables[next_table[k] + index]
        for k in range(len(state)):
            state[k] = next_state[k]
        for phase in range(3):
            for p in range(len(ports)):
                macro, port_phase, enable, address, bits, data, width, base, depth = ports[p]
                if port_phase != phase:
                    continue
                write = phase == 1
                word = 0
                for k in range(bits):
                    word |= int(values[port_nets[address + k]]) << k
                active = False
                for k in range(width if write else 1):
                    active = active or values[port_nets[enable + k]] != 0
                if not active:
                    continue
                if counting:
                    accesses[macro, 1 if write else 0] += 1
                for k in range(width):
                    in_range = word < depth
                    if write:
                        if in_range and values[port_nets[enable + k]]:
                            store[base + word * width + k] = values[port_nets[data + k]]
                    else:
                        read[data + k] = store[base + word * width + k] if in_range else 0
        for p in range(len(ports)):
            if ports[p, 1] != 1:
                data = ports[p, 5]
                for k in range(ports[p, 6]):
                    if port_nets[data + k] > 1:
                        values[port_nets[data + k]] = read[data + k]
    return recorded
