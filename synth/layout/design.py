"""Flat netlist of a unit for placement and routing: cells, nets and ports with names that every tool accepts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from synth.layout.lef import Lef
from synth.mapping import Mapped

SUPPLIES = {"0": "gnd", "1": "vdd"}  # value of a constant input -> supply to which it is tied
# names that graywolf, DEF or Verilog read as words of their own
_RESERVED = {
    "PIN", "align", "always", "and", "assign", "begin", "bottom", "buf", "cell", "class", "corners", "end", "equiv",
    "initial", "inout", "input", "layer", "left", "module", "name", "nand", "net", "nor", "not", "or", "orientations",
    "output", "pad", "pin", "port", "reg", "right", "signal", "soft", "supply0", "supply1", "top", "wire", "xor",
}  # fmt: skip


@dataclass(frozen=True)
class Port:
    """One bit of a port of the unit: `bit` is the port of the RTL and the number of the bit."""

    name: str
    net: str
    output: bool
    bit: tuple[str, int]


@dataclass(frozen=True)
class Design:
    """A flat netlist.

    Attributes
    ----------
    name : name of the unit
    cells : instance -> library cell
    sources : instance -> its name in the mapped netlist
    pins : instance -> pin -> net
    ports : bits of ports that are connected to a net
    bits : net -> number of the net in yosys's JSON
    constants : bits of output ports with a constant value; they have no wire
    """

    name: str
    cells: dict[str, str]
    sources: dict[str, str]
    pins: dict[str, dict[str, str]]
    ports: tuple[Port, ...]
    bits: dict[str, int]
    constants: dict[str, str]

    @property
    def nets(self) -> dict[str, list[tuple[str, str]]]:
        """Net -> terminals as (instance, pin) or (`PIN`, port), of signals with at least two terminals."""
        terminals: dict[str, list[tuple[str, str]]] = {}
        for port in self.ports:
            terminals.setdefault(port.net, []).append(("PIN", port.name))
        for instance, pins in self.pins.items():
            for pin, net in pins.items():
                terminals.setdefault(net, []).append((instance, pin))
        supplies = SUPPLIES.values()
        return {net: ends for net, ends in sorted(terminals.items()) if len(ends) > 1 and net not in supplies}

    @property
    def ties(self) -> dict[str, list[tuple[str, str]]]:
        """Supply -> terminals of inputs with a constant value; no entry for a supply without any."""
        ties = {
            supply: [(instance, pin) for instance, pins in self.pins.items() for pin in pins if pins[pin] == supply]
            for supply in SUPPLIES.values()
        }
        return {supply: ends for supply, ends in ties.items() if ends}

    def verilog(self) -> str:
        """The netlist as Verilog, for static timing analysis."""
        values = {supply: f"1'b{value}" for value, supply in SUPPLIES.items()}
        ports = {port.name: port for port in self.ports}
        names = [*ports, *self.constants]
        lines = [f"module {self.name} ({', '.join(names)});"]
        lines += [f"  {'output' if p.output else 'input'} {p.name};" for p in ports.values()]
        lines += [f"  output {name};" for name in self.constants]
        lines += [f"  wire {net};" for net in self.bits if net not in ports]
        lines += [f"  assign {name} = 1'b{value};" for name, value in self.constants.items()]
        lines += [f"  assign {p.name} = {p.net};" for p in ports.values() if p.output and p.net != p.name]
        for instance, cell in self.cells.items():
            pins = ", ".join(f".{pin}({values.get(net, net)})" for pin, net in self.pins[instance].items())
            lines.append(f"  {cell} {instance} ({pins});")
        return "\n".join([*lines, "endmodule", ""])


def design(mapped: Mapped, lef: Lef) -> Design:
    """The layout netlist of a mapped block.

    The first port of a net gives the net its name, as DEF and static timing need it.

    Raises
    ------
    ValueError
        The block has memories or inner blocks, or a cell without a layout.
    """
    if mapped.macros or mapped.children:
        raise ValueError(f"{mapped.name}: layout must be one block of library cells, got memories or inner blocks")
    module = mapped.module
    if unknown := sorted(set(mapped.cells) - lef.cells.keys()):
        raise ValueError(f"{mapped.name}: every cell must be in the LEF file, got {', '.join(unknown)}")
    used = {*SUPPLIES.values(), *_RESERVED}
    net_of: dict[int, str] = {}
    ports: list[Port] = []
    constants: dict[str, str] = {}
    for name, port in module["ports"].items():
        output = port["direction"] == "output"
        for k, bit in enumerate(port["bits"]):
            label = _unique(name if len(port["bits"]) == 1 else f"{name}_{k}", used)
            if isinstance(bit, int):
                ports.append(Port(label, net_of.setdefault(bit, label), output, (name, k)))
            elif output:
                constants[label] = "1" if bit == "1" else "0"
    for name, wire in sorted(module["netnames"].items(), key=lambda item: (item[1]["hide_name"], len(item[0]))):
        for k, bit in enumerate(wire["bits"]):
            if isinstance(bit, int) and bit not in net_of:
                net_of[bit] = _unique(name if len(wire["bits"]) == 1 else f"{name}_{k}", used)
    cells: dict[str, str] = {}
    sources: dict[str, str] = {}
    pins: dict[str, dict[str, str]] = {}
    for name, cell in module["cells"].items():
        instance = _unique(name, used)
        cells[instance], sources[instance] = cell["type"], name
        pins[instance] = {}
        for pin, (bit, *_) in ((pin, bits) for pin, bits in cell["connections"].items() if bits):
            if isinstance(bit, int):
                pins[instance][pin] = net_of.setdefault(bit, f"net{bit}")
            elif cell["port_directions"][pin] == "input":
                pins[instance][pin] = SUPPLIES["1" if bit == "1" else "0"]
    live = {net for connections in pins.values() for net in connections.values()}
    live |= {port.net for port in ports}
    bits = {net: bit for bit, net in net_of.items() if net in live}
    return Design(_unique(mapped.name, used), cells, sources, pins, tuple(ports), bits, constants)


def _unique(name: Any, used: set[str]) -> str:
    """A name of letters, digits and underscores that is not in `used`, which gets it."""
    label = re.sub(r"\W+", "_", str(name)).strip("_") or "x"
    if label[0].isdigit():
        label = f"x{label}"
    candidate, number = label, 2
    while candidate in used:
        candidate, number = f"{label}_{number}", number + 1
    used.add(candidate)
    return candidate
