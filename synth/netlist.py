"""A mapped block as arrays: nets, cells by type, loads, logic levels."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from synth.blocks import CLOCK
from synth.fanout import PORT_INVERTERS
from synth.library.boolean import truth_table
from synth.library.reader import Library
from synth.mapping import Mapped


@dataclass(frozen=True)
class CellGroup:
    """Cells of one type at one logic level: names, and the net of every pin as an array over the cells."""

    type: str
    level: int
    names: tuple[str, ...]
    pins: dict[str, np.ndarray]


@dataclass(frozen=True)
class FlipFlop:
    """Behaviour of the flip-flops of a group at a rising edge of the clock.

    Attributes
    ----------
    data : the pins other than the clock
    next_state : truth table of the next state over `data`, the state and its inverse
    outputs : pin -> whether it is the inverse of the state
    enables : net that enables the clock of each flip-flop, 1 without a clock gate
    """

    data: tuple[str, ...]
    next_state: int
    outputs: dict[str, bool]
    enables: np.ndarray


class Netlist:
    """A mapped block.

    Nets are numbered 0 .. n-1; nets 0 and 1 are the constants. Paths end at registers, macros and inner blocks: the
    nets that these drive are at level 0.

    Attributes
    ----------
    inputs, outputs : port -> nets, lowest bit first
    labels : every name of a net -> the net
    registers, gates, logic : groups of flip-flops, clock gates and other cells; logic in order of levels
    enables : net of a gated clock -> net that enables it
    opaque : (instance, type, pin -> nets, pin -> direction) of macros and inner blocks
    """

    def __init__(self, mapped: Mapped, library: Library):
        self.name, self.library, self.blocks = mapped.name, library, frozenset(mapped.children)
        module = mapped.module
        separate_modules = {macro.module for macro in mapped.macros} | set(mapped.children)
        numbers: dict[Any, int] = {"0": 0, "x": 0, "1": 1}

        def nets(bits: Iterable[Any]) -> list[int]:
            return [numbers.setdefault(bit, len(numbers) - 1) for bit in bits]

        self.inputs: dict[str, list[int]] = {}
        self.outputs: dict[str, list[int]] = {}
        for name, port in module["ports"].items():
            (self.inputs if port["direction"] == "input" else self.outputs)[name] = nets(port["bits"])
        cells: list[tuple[str, str, dict[str, int]]] = []
        self.opaque: list[tuple[str, str, dict[str, list[int]], dict[str, str]]] = []
        for name, cell in module["cells"].items():
            pins = {pin: nets(bits) for pin, bits in cell["connections"].items()}
            if cell["type"] in separate_modules:
                self.opaque.append((name, cell["type"], pins, cell["port_directions"]))
            else:
                pin_nets = {pin: bits[0] for pin, bits in pins.items() if bits}
                for pin in library.cell(cell["type"]).outputs:  # an unconnected output also has a net
                    if pin not in pin_nets:
                        pin_nets[pin] = nets([(name, pin)])[0]
                cells.append((name, cell["type"], pin_nets))
        self.labels: dict[str, int] = {}
        self._names: dict[int, str] = {0: "0", 1: "1"}
        for name, wire in sorted(module["netnames"].items(), key=lambda item: (item[1]["hide_name"], len(item[0]))):
            for k, bit in enumerate(wire["bits"]):
                if bit in numbers:
                    label = name if len(wire["bits"]) == 1 else f"{name}[{k}]"
                    self.labels[label] = numbers[bit]
                    self._names.setdefault(numbers[bit], label)
        self.size = len(numbers) - 1
        self.parasitics = mapped.parasitics
        self._wire_farads = np.zeros(self.size)
        if mapped.parasitics is not None:
            for bit, farads in mapped.parasitics.farads.items():
                self._wire_farads[numbers[bit]] = farads
        self._group(cells)

    def net_name(self, net: int) -> str:
        """The shortest name of a net."""
        return self._names.get(int(net), f"net {net}")

    def _group(self, cells: list[tuple[str, str, dict[str, int]]]) -> None:
        kinds = {kind: self.library.cell(kind) for kind in {kind for _, kind, _ in cells}}
        driver: dict[int, int] = {}
        for number, (_, kind, pins) in enumerate(cells):
            if kinds[kind].is_logic:
                driver |= {pins[pin]: number for pin in kinds[kind].outputs if pin in pins}
        level = [0] * len(cells)
        waiting = [0] * len(cells)
        followers: dict[int, list[int]] = defaultdict(list)
        ready = []
        for number, (_, kind, pins) in enumerate(cells):
            if not kinds[kind].is_logic:
                continue
            sources = {driver[pins[pin]] for pin in kinds[kind].inputs if pins.get(pin) in driver}
            waiting[number] = len(sources)
            for source in sources:
                followers[source].append(number)
            if not sources:
                ready.append(number)
                level[number] = 1
        done = 0
        while ready:
            number = ready.pop()
            done += 1
            for follower in followers[number]:
                level[follower] = max(level[follower], level[number] + 1)
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.append(follower)
        if done < sum(kinds[kind].is_logic for _, kind, _ in cells):
            raise ValueError(f"netlist {self.name}: logic must be acyclic, got a combinational loop")
        groups: dict[tuple[int, str], list[int]] = defaultdict(list)
        for number, (_, kind, _) in enumerate(cells):
            groups[level[number], kind].append(number)
        cell_groups = []
        for (at, kind), members in sorted(groups.items()):
            names = tuple(cells[number][0] for number in members)
            used = [pin for pin in kinds[kind].pins if any(pin in cells[n][2] for n in members)]
            arrays = {pin: np.array([cells[n][2].get(pin, 0) for n in members]) for pin in used}
            cell_groups.append(CellGroup(kind, at, names, arrays))
        self.registers = [group for group in cell_groups if self.library.cell(group.type).state is not None]
        self.gates = [group for group in cell_groups if self.library.cell(group.type).gate is not None]
        self.logic = [group for group in cell_groups if self.library.cell(group.type).is_logic]
        self.enables: dict[int, int] = {}
        for group in self.gates:
            gate = self.library.cell(group.type).gate
            assert gate is not None
            context = f"netlist {self.name}: cell {group.type}"
            if not np.isin(group.pins[gate.clock], self.inputs.get(CLOCK, [])).all():
                raise ValueError(f"{context}: clock must be the port {CLOCK!r}, got another net")
            if any(group.pins[pin].any() for pin in gate.test if pin in group.pins):
                raise ValueError(f"{context}: test pins must be 0, got another net")
            self.enables |= dict(zip(group.pins[gate.output].tolist(), group.pins[gate.enable].tolist(), strict=True))

    @cached_property
    def clocks(self) -> np.ndarray:
        """Whether each net is a clock: the port, or a gated clock."""
        clocks = np.zeros(self.size, bool)
        clocks[[*self.inputs.get(CLOCK, []), *self.enables]] = True
        return clocks

    def flip_flop(self, group: CellGroup) -> FlipFlop:
        """Behaviour of the registers of a group.

        Raises
        ------
        ValueError
            The cell is a latch, has a falling clock, a clock that is neither the port nor a gated clock, or an
            asynchronous reset in use.
        """
        cell = self.library.cell(group.type)
        context, state = f"netlist {self.name}: cell {cell.name}", cell.state
        assert state is not None
        if state.kind != "ff":
            raise ValueError(f"{context} must be a flip-flop, got a latch")
        edge = truth_table(state.get("clocked_on"), cell.inputs)
        clock = next((pin for pin in cell.inputs if edge == truth_table(pin, cell.inputs)), None)
        if clock is None:
            raise ValueError(f"{context}: clocked_on must be a pin, got {state.get('clocked_on')!r}")
        if not self.clocks[group.pins[clock]].all():
            raise ValueError(f"{context}: clock must be the port {CLOCK!r} or a gated clock, got another net")
        enables = np.array([self.enables.get(net, 1) for net in group.pins[clock].tolist()])
        for kind in ("clear", "preset"):
            if function := state.get(kind):
                used = tuple(pin for pin in cell.inputs if re.search(rf"\b{pin}\b", function))
                nets = np.stack([group.pins.get(pin, np.zeros(len(group.names), int)) for pin in used], axis=1)
                active = truth_table(function, used) >> (nets << np.arange(len(used))).sum(1).astype(object) & 1
                if (nets > 1).any() or active.any():
                    raise ValueError(f"{context}: {kind} must be inactive, got an asynchronous {kind} in use")
        data, names = tuple(pin for pin in cell.inputs if pin != clock), tuple(state.args[:2])
        outputs = {}
        for pin in (pin for pin in cell.outputs if pin in group.pins):
            inverted = {0b0010: False, 0b0100: True}.get(truth_table(cell.pins[pin].function, names) & 0b0110)
            if inverted is None:
                raise ValueError(
                    f"{context}: output {pin} must be its state or the inverse, got {cell.pins[pin].function!r}"
                )
            outputs[pin] = inverted
        return FlipFlop(data, truth_table(state.get("next_state"), (*data, *names)), outputs, enables)

    def wire_delay(self, group: CellGroup, pin: str) -> np.ndarray:
        """Delay of the wires to an input pin of each cell of a group in the library's unit; 0 without a layout."""
        if self.parasitics is None:
            return np.zeros(len(group.names))
        delays = (self.parasitics.cells.get((name, pin), 0.0) for name in group.names)
        return np.fromiter(delays, float, len(group.names)) / self.library.seconds

    def output_delay(self, port: str, bit: int) -> float:
        """Delay of the wires to a bit of an output port in the library's unit; 0 without a layout."""
        return self.parasitics.outputs.get((port, bit), 0.0) / self.library.seconds if self.parasitics else 0.0

    @cached_property
    def loads(self) -> np.ndarray:
        """Largest capacitance on every net in the library's unit: input pins and wires, extracted or per fan-out.

        The load of an output port or a pin of an inner block is that of `PORT_INVERTERS` inverters, the load of a pin
        of a memory that of one inverter.
        """
        return self.capacitance(outputs=True, inner={kind for _, kind, _, _ in self.opaque}, largest=True)

    def capacitance(self, *, outputs: bool, inner: Container[str], largest: bool = False) -> np.ndarray:
        """As `loads`, with the loads of `outputs` and of macros and blocks of the types in `inner` only.

        The pins have their nominal capacitance, or with `largest` that of the worst edge and range.
        """
        load, fanout = np.zeros(self.size), np.zeros(self.size)
        for group in (*self.registers, *self.gates, *self.logic):
            cell = self.library.cell(group.type)
            for pin in cell.inputs:
                if pin in group.pins:
                    library_pin = cell.pins[pin]
                    size = library_pin.largest_capacitance if largest else library_pin.capacitance
                    np.add.at(load, group.pins[pin], size)
                    np.add.at(fanout, group.pins[pin], 1)
        inverter = self.library.inverter
        gate = inverter.pins[inverter.inputs[0]].capacitance
        groups = (*self.registers, *self.gates, *self.logic)
        area = sum(self.library.cell(group.type).area * len(group.names) for group in groups)
        wire = self.library.wire_farads_of(area) / self.library.farads
        for bits in self.outputs.values() if outputs else ():
            np.add.at(load, bits, PORT_INVERTERS * (gate + wire))  # outside the unit
        for _, kind, pins, directions in self.opaque:
            inverters = PORT_INVERTERS if kind in self.blocks else 1
            for pin, bits in pins.items() if kind in inner else ():
                if directions[pin] == "input":
                    # a net at many bits of a pin, such as a write enable, is one pin of the macro
                    once = np.unique(bits)
                    load[once] += inverters * gate
                    fanout[once] += inverters
        load += fanout * wire if self.parasitics is None else self._wire_farads / self.library.farads
        load[:2] = 0
        return load
