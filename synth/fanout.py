"""Buffers that are inserted after mapping: trees on nets with many loads, and own nets for the ports of a layout.

abc does not know the pins of registers, adders, memories and blocks, nor the drivers of a block's ports. The load of a
net is the capacitance of its pins and wires, in loads of an inverter. The limit is `LIMIT` where a library cell drives
the net, and `PORT_INVERTERS` where a memory, an inner block or, in a block, a port drives it. If the gates of a net
alone are within the limit they stay at the root, because abc has sized the driver for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from synth.blocks import CLOCK
from synth.library.reader import Library
from synth.library.records import LibraryCell

LIMIT = 32
PORT_INVERTERS = 4  # load of an output port, and the largest load of a block's input pin
FANOUT = 16  # equal buffers that the strongest buffer drives; other buffers must be as fast


@dataclass(frozen=True)
class Load:
    """One load of a net: a pin of a cell, its capacitance with its wire in library units, and whether abc knows it."""

    cell: str
    pin: str
    size: float
    seen_by_abc: bool


def size(loads: Sequence[Load]) -> float:
    """Sum of the capacitances."""
    return sum(load.size for load in loads)


class Buffers:
    """The buffers of a library, at least one, and the loads that they can drive."""

    def __init__(self, library: Library):
        self.library = library
        self.wire = library.wire_farads / library.farads
        self.inverter = self.pin(library.inverter)

    def pin(self, cell: LibraryCell, name: str = "") -> float:
        """Load of one pin (default the first input) with its wire."""
        return cell.pins[name or cell.inputs[0]].capacitance + self.wire

    def _delay(self, cell: LibraryCell, load: float) -> float:
        arcs = [arc.tables for arc in cell.pins[cell.outputs[0]].arcs]
        tables = [tables[name] for tables in arcs for name in ("cell_rise", "cell_fall") if name in tables]
        return max(float(table(self.library.fo4_slew, load)) for table in tables)

    @cached_property
    def goal(self) -> tuple[float, float]:
        """Largest load of one buffer and its delay: those of the buffer that drives `FANOUT` equal buffers fastest."""
        return min(
            ((load := FANOUT * self.pin(cell), self._delay(cell, load)) for cell in self.library.buffers),
            key=lambda pair: pair[1],
        )

    def choose(self, load: float) -> LibraryCell:
        """The smallest buffer that drives `load` in the time of the goal."""
        buffers = self.library.buffers
        return next((cell for cell in buffers if self._delay(cell, load) <= self.goal[1]), buffers[-1])

    def groups(self, loads: Sequence[Load]) -> Iterator[list[Load]]:
        """Neighbouring loads in groups of about equal size, each for one buffer."""
        share = size(loads) / -(-size(loads) // self.goal[0])
        groups: dict[int, list[Load]] = defaultdict(list)
        total = 0.0
        for load in loads:
            groups[int((total + load.size / 2) / share)].append(load)
            total += load.size
        yield from groups.values()


def buffer(module: dict[str, Any], library: Library, *, blocks: Container[str], inner: bool) -> int:
    """Insert buffer trees into a module of yosys's JSON; return the number of buffers.

    Parameters
    ----------
    blocks : types of cells that are blocks; other types that are not in the library are memories
    inner : the module is an inner block

    Without buffers in the library the netlist does not change.
    """
    if not library.buffers:
        return 0
    buffers = Buffers(library)
    loads, driven = _loads(module, buffers, blocks)
    if not inner:
        driven.update(net for port in module["ports"].values() if port["direction"] == "input" for net in port["bits"])
    tree = _Tree(module, buffers)
    for net, all_loads in sorted(loads.items()):
        max_load = (LIMIT if net in driven else PORT_INVERTERS) * buffers.inverter
        hidden = [load for load in all_loads if not load.seen_by_abc]
        if size(all_loads) > max_load:
            gates_fit = net in driven and size(all_loads) - size(hidden) <= max_load
            tree.grow(net, hidden if gates_fit else all_loads)
    return tree.n_buffers


def isolate_ports(module: dict[str, Any], library: Library) -> int:
    """Give every bit of an output port a net without other ports; return the number of inserted buffers.

    A bit keeps its net if it is the first port of the net and no input. Otherwise a buffer drives it. DEF and routers
    name a net after its port, so two ports on one net have no layout.

    Raises
    ------
    ValueError
        Two ports have one net and the library has no buffer.
    """
    ports = module["ports"].values()
    used = {bit for port in ports if port["direction"] == "input" for bit in port["bits"]}
    tree: _Tree | None = None
    for port in ports:
        for k, bit in enumerate(port["bits"] if port["direction"] == "output" else ()):
            if bit in used:
                if not library.buffers:
                    raise ValueError(f"library {library.name} must have a buffer for two ports on one net, got none")
                tree = tree or _Tree(module, Buffers(library))
                port["bits"][k] = tree.drive_port(bit)
            elif isinstance(bit, int):  # the others are constants
                used.add(bit)
    return tree.n_buffers if tree else 0


def _loads(module: dict[str, Any], buffers: Buffers, blocks: Container[str]) -> tuple[dict[int, list[Load]], set[int]]:
    """The loads of every net except the clocks, and the nets that library cells drive."""
    loads: dict[int, list[Load]] = defaultdict(list)
    driven: set[int] = set()
    gated: list[int] = []
    for name, cell in module["cells"].items():
        kind = cell["type"]
        library_cell = buffers.library.cell(kind) if kind in buffers.library else None
        for pin, bits in cell["connections"].items():
            nets = dict.fromkeys(bit for bit in bits if isinstance(bit, int))  # the others are constants
            if cell["port_directions"][pin] == "output":
                driven.update(nets if library_cell else ())
                gated += nets if library_cell and library_cell.gate else ()
                continue
            if library_cell:
                capacitance = buffers.pin(library_cell, pin)
            else:
                capacitance = buffers.inverter * (PORT_INVERTERS if kind in blocks else 1)
            # abc maps to one-output gates only
            seen_by_abc = library_cell is not None and library_cell.is_logic and len(library_cell.outputs) == 1
            for net in nets:
                loads[net].append(Load(name, pin, capacitance, seen_by_abc))
    for net in [*module["ports"].get(CLOCK, {"bits": []})["bits"], *gated]:
        loads.pop(net, None)
    return loads, driven


class _Tree:
    """Insertion of buffer trees into a netlist."""

    def __init__(self, module: dict[str, Any], buffers: Buffers):
        self.module, self.buffers, self.n_buffers = module, buffers, 0
        wires = [wire["bits"] for wire in module["netnames"].values()]
        pins = [bits for cell in module["cells"].values() for bits in cell["connections"].values()]
        self._first = 1 + max((bit for bits in (*wires, *pins) for bit in bits if isinstance(bit, int)), default=1)
        self._prefix = "fan"
        while any(name.startswith(self._prefix) for kind in ("cells", "netnames") for name in module[kind]):
            self._prefix += "_"

    def grow(self, net: int, loads: Sequence[Load]) -> None:
        """Drive `loads` of `net` by levels of buffers until the root has at most `PORT_INVERTERS`."""
        while len(loads) > 1 and size(loads) > PORT_INVERTERS * self.buffers.inverter:
            loads = [self._insert(net, group) for group in self.buffers.groups(loads)]

    def drive_port(self, net: int) -> int:
        """Insert a buffer from `net` to a new net for a bit of an output port; return the new net."""
        return self._add(net, PORT_INVERTERS * self.buffers.inverter)[2]

    def _insert(self, net: int, group: Sequence[Load]) -> Load:
        """Insert a buffer between `net` and a group of its loads; return the buffer's load on `net`."""
        name, cell, new = self._add(net, size(group))
        for load in group:
            pins = self.module["cells"][load.cell]["connections"]
            pins[load.pin] = [new if bit == net else bit for bit in pins[load.pin]]
        return Load(name, cell.inputs[0], self.buffers.pin(cell), True)

    def _add(self, net: int, load: float) -> tuple[str, LibraryCell, int]:
        """Add a buffer on `net` that drives `load`; return its name, its cell and the net that it drives."""
        cell = self.buffers.choose(load)
        (source,), (target,) = cell.inputs, cell.outputs
        name, new = f"{self._prefix}{self.n_buffers}", self._first + self.n_buffers
        self.module["cells"][name] = {
            "hide_name": 0,
            "type": cell.name,
            "parameters": {},
            "attributes": {},
            "port_directions": {source: "input", target: "output"},
            "connections": {source: [net], target: [new]},
        }
        self.module["netnames"][f"{name}_net"] = {"hide_name": 0, "bits": [new], "attributes": {}}
        self.n_buffers += 1
        return name, cell, new
