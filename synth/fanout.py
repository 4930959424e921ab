"""Buffer trees on nets with many loads, after mapping: abc sees neither the pins of registers, adders, memories and
blocks nor what drives the ports of a block.

A load is a capacitance, its wire included, compared with an inverter's. A net may have `LIMIT` inverters where a cell
of the library drives it, and `PORT_INVERTERS` where a memory, a block inside or, in a block, a port does: timing lets
these drive no more. The gates of a net stay at the root when they alone are within the limit: abc has sized for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from synth.blocks import CLOCK
from synth.library.reader import Library, LibraryCell

LIMIT = 32
PORT_INVERTERS = 4  # what an output port drives, and at most what a block's input pin is
FANOUT = 16  # of its own kind that the strongest buffer drives; smaller ones are chosen to be as fast


@dataclass(frozen=True)
class Load:
    """What a net drives: a pin of a cell, its capacitance with its wire in the library's unit, whether abc saw it."""

    cell: str
    pin: str
    size: float
    seen: bool


def size(loads: Sequence[Load]) -> float:
    """Sum of the capacitances."""
    return sum(load.size for load in loads)


class Buffers:
    """The buffers of a library, at least one, and what they can drive."""

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
        """The most that one buffer drives, and its delay then: the buffer that drives `FANOUT` of its kind fastest."""
        return min(
            ((load := FANOUT * self.pin(cell), self._delay(cell, load)) for cell in self.library.buffers),
            key=lambda pair: pair[1],
        )

    def choose(self, load: float) -> LibraryCell:
        """The smallest buffer that drives `load` in the time of the goal."""
        found = self.library.buffers
        return next((cell for cell in found if self._delay(cell, load) <= self.goal[1]), found[-1])

    def groups(self, loads: Sequence[Load]) -> Iterator[list[Load]]:
        """Neighbouring loads in groups of about equal size, each for one buffer."""
        share = size(loads) / -(-size(loads) // self.goal[0])
        groups: dict[int, list[Load]] = defaultdict(list)
        before = 0.0
        for load in loads:
            groups[int((before + load.size / 2) / share)].append(load)
            before += load.size
        yield from groups.values()


def buffer(module: dict[str, Any], library: Library, *, blocks: Container[str], inner: bool) -> int:
    """Put buffer trees into a netlist that is given as yosys's JSON describes a module; returns the number of buffers.

    Parameters
    ----------
    blocks : types of cells that are blocks of their own; other types that the library lacks are memories
    inner : the module is such a block

    A library without buffers leaves the netlist as it is.
    """
    if not library.buffers:
        return 0
    buffers = Buffers(library)
    loads, driven = _loads(module, buffers, blocks)
    if not inner:
        driven.update(net for port in module["ports"].values() if port["direction"] == "input" for net in port["bits"])
    tree = _Tree(module, buffers)
    for net, all_loads in sorted(loads.items()):
        most = (LIMIT if net in driven else PORT_INVERTERS) * buffers.inverter
        hidden = [load for load in all_loads if not load.seen]
        if size(all_loads) > most:
            gates_fit = net in driven and size(all_loads) - size(hidden) <= most
            tree.grow(net, hidden if gates_fit else all_loads)
    return tree.made


def _loads(module: dict[str, Any], buffers: Buffers, blocks: Container[str]) -> tuple[dict[int, list[Load]], set[int]]:
    """The loads of every net but the clock, and the nets that cells of the library drive."""
    loads: dict[int, list[Load]] = defaultdict(list)
    driven: set[int] = set()
    for name, cell in module["cells"].items():
        kind = cell["type"]
        own = buffers.library.cell(kind) if kind in buffers.library else None
        for pin, bits in cell["connections"].items():
            nets = dict.fromkeys(bit for bit in bits if isinstance(bit, int))  # the others are constants
            if cell["port_directions"][pin] == "output":
                driven.update(nets if own else ())
                continue
            each = buffers.pin(own, pin) if own else buffers.inverter * (PORT_INVERTERS if kind in blocks else 1)
            seen = own is not None and own.state is None and len(own.outputs) == 1  # what abc itself maps to
            for net in nets:
                loads[net].append(Load(name, pin, each, seen))
    for net in module["ports"].get(CLOCK, {"bits": []})["bits"]:
        loads.pop(net, None)
    return loads, driven


class _Tree:
    """Grows buffer trees in a netlist."""

    def __init__(self, module: dict[str, Any], buffers: Buffers):
        self.module, self.buffers, self.made = module, buffers, 0
        wires = [wire["bits"] for wire in module["netnames"].values()]
        pins = [bits for cell in module["cells"].values() for bits in cell["connections"].values()]
        self._first = 1 + max((bit for bits in (*wires, *pins) for bit in bits if isinstance(bit, int)), default=1)
        self._prefix = "fan"
        while any(name.startswith(self._prefix) for kind in ("cells", "netnames") for name in module[kind]):
            self._prefix += "_"

    def grow(self, net: int, loads: Sequence[Load]) -> None:
        """Drive `loads` of `net` by buffers, level by level, until `PORT_INVERTERS` are left at the root."""
        while len(loads) > 1 and size(loads) > PORT_INVERTERS * self.buffers.inverter:
            loads = [self._insert(net, group) for group in self.buffers.groups(loads)]

    def _insert(self, net: int, group: Sequence[Load]) -> Load:
        """A new buffer from `net` to a group of its loads."""
        cell = self.buffers.choose(size(group))
        (source,), (target,) = cell.inputs, cell.outputs
        name, new = f"{self._prefix}{self.made}", self._first + self.made
        for load in group:
            pins = self.module["cells"][load.cell]["connections"]
            pins[load.pin] = [new if bit == net else bit for bit in pins[load.pin]]
        self.module["cells"][name] = {
            "hide_name": 0,
            "type": cell.name,
            "parameters": {},
            "attributes": {},
            "port_directions": {source: "input", target: "output"},
            "connections": {source: [net], target: [new]},
        }
        self.module["netnames"][f"{name}_net"] = {"hide_name": 0, "bits": [new], "attributes": {}}
        self.made += 1
        return Load(name, source, self.buffers.pin(cell), True)
