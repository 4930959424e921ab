"""Equivalence of a mapped netlist and the RTL that it came from, block by block.

Mapping keeps registers, memories and instances of blocks. So both sides are cut there: registers by the names of what
they drive, memories and blocks at their pins. What is left has no state, and abc compares it output by output for all
inputs: ports, what every register takes next, what goes into memories and blocks. That proves the blocks equal in
every cycle from equal states on; reset is one of the inputs. A register that the mapping dropped as a constant or as
another's double is found in random states, taken as that, and has to be that in the next cycle too. One that is neither
may hold anything: it was dropped because it makes no difference, and must make none.

The RTL side shares nothing with the mapping but yosys's reading of processes and its plain expansion of operators and
memories into gates; the other is the netlist with the functions that the Liberty file gives its cells.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from hw import yosys
from synth.area import Area
from synth.library.boolean import truth_table
from synth.library.reader import Library
from synth.mapping import Mapped, as_macros
from synth.netlist import CLOCK, Netlist
from util.files import digest, write_json
from util.progress import Progress, no_progress
from util.text import table

EXPAND = ("proc", "flatten", "opt_expr", "opt_merge", "opt_clean", "memory -nomap", "opt_clean")
TO_GATES = (
    *("memory_map", "dffunmap", "alumacc", "maccmap", "techmap", "opt_expr"),
    *("opt_merge", "aigmap", "opt_clean"),
)
_GATES = {"$_NOT_": ("A", 0b01), "$_AND_": ("AB", 0b1000)}
_CONSTANTS = {"constant 0": 0, "constant 1": 1}
# abc works inside a pass that wants something to map
_NOTHING = "module nothing(input a, input b, output y); assign y = a & b; endmodule\n"


class EquivalenceError(ArithmeticError):
    """A netlist differs from its RTL, or could not be compared as a whole."""


@dataclass(frozen=True)
class Proof:
    """What was proved of one block: how many outputs were compared, and the registers on either side."""

    block: str
    count: int
    outputs: int
    rtl_registers: int
    netlist_registers: int


@dataclass(frozen=True)
class Equivalence:
    """All blocks of a unit are equivalent to the RTL."""

    unit: str
    blocks: tuple[Proof, ...]

    def json(self) -> dict[str, Any]:
        return {"unit": self.unit, "equivalent": True, "blocks": [asdict(block) for block in self.blocks]}

    def table(self) -> str:
        head = ["block", "count", "outputs compared", "registers of the RTL", "of the netlist"]
        rows = [
            [p.block, f"{p.count}", f"{p.outputs}", f"{p.rtl_registers}", f"{p.netlist_registers}"] for p in self.blocks
        ]
        return f"{table(head, rows)}\n{self.unit}: the netlist is equivalent to the RTL"


def prove(area: Area, library: Library, *, tool: str = "yowasp", progress: Progress = no_progress) -> Equivalence:
    """Compare every block of a mapped unit with its RTL; blocks that an earlier run proved are not compared again.

    Raises
    ------
    EquivalenceError
        With the block and the first output that differs, or what could not be compared.
    """
    proofs = []
    for number, block in enumerate(area.blocks):
        progress(f"equivalence of {area.unit}", number, len(area.blocks))
        mapped = area.mapped[block.name]
        known = mapped.folder / f"equivalent-{digest(*EXPAND, *TO_GATES)}.json"
        if not known.exists():
            write_json(known, asdict(_prove(mapped, library, tool)))
        proofs.append(Proof(**json.loads(known.read_text()) | {"count": block.count}))
    progress(f"equivalence of {area.unit}", len(area.blocks), len(area.blocks))
    return Equivalence(area.unit, tuple(proofs))


@dataclass
class _Side:
    """Logic between cuts: what drives each cut's net, and what is asked of it; labels are the same on both sides.

    Attributes
    ----------
    inputs : label -> nets of this value ; outputs : label -> nets that must have the value that the other side gives it
    gates : (net driven, its truth table, nets read, the lowest bit of the table's index first)
    """

    inputs: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    outputs: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    gates: list[tuple[Any, int, list[Any]]] = field(default_factory=list)

    def ports(self, where: str, pins: dict[str, list[Any]], directions: dict[str, str], driven: str) -> None:
        """Cut at the pins of a port, memory or block; those of direction `driven` have their value from outside."""
        for pin, bits in pins.items():
            if pin in (CLOCK, "RD_CLK", "WR_CLK"):
                continue
            for k, bit in enumerate(bits):
                cuts = self.inputs if directions[pin] == driven else self.outputs
                cuts[f"{where}{pin}[{k}]"].append(bit)

    def undefined(self) -> set[Any]:
        """Nets whose value hangs on one that nothing drives."""
        driven = {net for net, _, _ in self.gates} | {net for nets in self.inputs.values() for net in nets} | {0, 1}
        readers: dict[Any, list[Any]] = defaultdict(list)
        for net, _, reads in self.gates:
            for read in reads:
                readers[read].append(net)
        found = {*readers, *(net for nets in self.outputs.values() for net in nets)} - driven
        reached = list(found)
        for net in reached:
            new = [reader for reader in readers[net] if reader not in found]
            found.update(new)
            reached += new
        return found

    def ordered(self) -> list[tuple[Any, int, list[Any]]]:
        """The gates, each after those that it reads."""
        gates = {gate[0]: gate for gate in self.gates}
        placed: dict[Any, tuple[Any, int, list[Any]]] = {}
        for root in gates:
            waiting = [root]
            while waiting:
                net = waiting[-1]
                missing = [] if net in placed else [r for r in gates[net][2] if r in gates and r not in placed]
                waiting += missing
                if not missing:
                    placed.setdefault(net, gates[waiting.pop()])
        return list(placed.values())

    def settled(self, inputs: dict[str, int], undriven: int) -> dict[Any, int]:
        """Value of every net under the given ones, nets that nothing drives at `undriven`."""
        values: dict[Any, int] = defaultdict(lambda: undriven, {0: 0, 1: 1})
        values |= {net: inputs[label] for label, nets in self.inputs.items() for net in nets}
        for net, what, reads in self.ordered():
            values[net] = what >> sum(values[read] << k for k, read in enumerate(reads)) & 1
        return values


def _miter(rtl: _Side, netlist: _Side, inputs: list[str], outputs: list[tuple[str, Any]]) -> Iterator[str]:
    """BLIF of a circuit whose output k is 1 where the RTL's net differs from the netlist's output of that label.

    What the RTL leaves open is 0 in one copy of it and 1 in another: an output that it makes differ is open itself,
    and the netlist may do as it likes there.
    """
    yield ".model miter"
    yield ".inputs " + " ".join(f"i{k}" for k in range(len(inputs)))
    yield ".outputs " + " ".join(f"o{k}" for k in range(len(outputs)))
    yield from (*_names("r0", 0, []), *_names("r1", 1, []), *_names("n0", 0, []), *_names("n1", 1, []))
    for mark, side in (("r", rtl), ("n", netlist)):
        for k, label in enumerate(inputs):
            for net in side.inputs.get(label, ()):
                yield from _names(f"{mark}{net}", 0b10, [f"i{k}"])
        for net, values, reads in side.gates:
            yield from _names(f"{mark}{net}", values, [f"{mark}{read}" for read in reads])
    open_nets = rtl.undefined()
    for net in open_nets - {net for net, _, _ in rtl.gates}:
        yield from (*_names(f"r{net}", 0, []), *_names(f"s{net}", 1, []))
    for net, values, reads in rtl.gates:
        if net in open_nets:
            yield from _names(f"s{net}", values, [f"{'s' if read in open_nets else 'r'}{read}" for read in reads])
    for k, (label, low) in enumerate(outputs):
        (own,) = netlist.outputs[label]
        high = f"{'s' if low in open_nets else 'r'}{low}"
        yield from _names(f"o{k}", 0b01000010, [f"n{own}", f"r{low}", high])  # 1 0 0 and 0 1 1
    yield ".end\n"


def _names(target: str, values: int, reads: list[str]) -> Iterator[str]:
    yield f".names {' '.join([*reads, target])}"
    for row in range(1 << len(reads)):
        if values >> row & 1:
            yield "".join(f"{row >> k & 1}" for k in range(len(reads))) + " 1"


def _prove(mapped: Mapped, library: Library, tool: str) -> Proof:
    netlist, names = _netlist(mapped, library)
    rtl, registers = _rtl(mapped, tool)
    _match(rtl, registers, netlist, names)
    netlist.outputs |= {label: [value] for label, value in _CONSTANTS.items() if label in rtl.outputs}
    if odd := sorted(set(rtl.outputs) ^ set(netlist.outputs)):
        raise EquivalenceError(f"{mapped.name}: {odd[0]} is on one side only")
    inputs = sorted({*rtl.inputs, *netlist.inputs})
    outputs = [(label, net) for label in sorted(rtl.outputs) for net in rtl.outputs[label]]
    told = _solve(rtl, netlist, inputs, outputs, tool)
    if told[0] == "snl_SAT":
        wrong = _wrong(rtl, netlist, outputs, dict(zip(inputs, map(int, told[-1]), strict=True)))
        raise EquivalenceError(f"{mapped.name}: the netlist differs from the RTL: {wrong}")
    if told[0] != "snl_UNSAT":
        raise EquivalenceError(f"{mapped.name}: the netlist could not be compared with the RTL: {' '.join(told)}")
    return Proof(mapped.name, 1, len(outputs), len(registers), len(set(names.values())))


def _solve(rtl: _Side, netlist: _Side, inputs: list[str], outputs: list[tuple[str, Any]], tool: str) -> list[str]:
    """abc's verdict, and with it the inputs for which an output differs."""
    with tempfile.TemporaryDirectory(prefix="equivalence-") as folder:
        miter, nothing, script, status = (
            Path(folder) / name for name in ("miter.blif", "nothing.v", "script", "status")
        )
        miter.write_text("\n".join(_miter(rtl, netlist, inputs, outputs)))
        nothing.write_text(_NOTHING)
        script.write_text(
            f"backup; read_blif {miter}; strash; orpos; &get -n; &cec -m; write_status {status}; restore\n"
        )
        yosys.run([f"read_verilog {nothing}", "simplemap", f"abc -script {script}"], tool=tool)
        return status.read_text().split()


def _wrong(rtl: _Side, netlist: _Side, outputs: list[tuple[str, Any]], example: dict[str, int]) -> str:
    """The first output that differs under the given inputs; one that was taken for a constant only if all are."""
    low, high, own = rtl.settled(example, 0), rtl.settled(example, 1), netlist.settled(example, 0)
    found = [label for label, net in outputs if low[net] == high[net] != own[netlist.outputs[label][0]]]
    return next((label for label in found if label not in _CONSTANTS), found[0])


def _netlist(mapped: Mapped, library: Library) -> tuple[_Side, dict[str, str]]:
    """The netlist's side, and the label of its registers by each of their names."""
    netlist, side = Netlist(mapped, library), _Side()
    registers: dict[int, str] = {}
    pins = {**netlist.inputs, **netlist.outputs}
    directions = dict.fromkeys(netlist.inputs, "input") | dict.fromkeys(netlist.outputs, "output")
    side.ports("port ", pins, directions, "input")
    for group in netlist.logic:
        cell = library.cell(group.type)
        for pin in (pin for pin in cell.outputs if pin in group.pins):
            values = truth_table(cell.pins[pin].function, cell.inputs)
            for k, net in enumerate(group.pins[pin]):
                side.gates.append((net, values, [group.pins[p][k] if p in group.pins else 0 for p in cell.inputs]))
    for group in netlist.registers:
        register = netlist.register(group)
        (first, turned), *others = register.outputs.items()
        # the register's value is that of the net it is found by; its state may be the inverse
        following = register.following ^ (-turned & (1 << (1 << len(register.data) + 2)) - 1)
        for k, net in enumerate(group.pins[first]):
            label = registers[net] = f"register {netlist.net_name(net)}"
            side.inputs[label].append(net)
            side.outputs[label].append(f"next{net}")
            states = [f"inverse{net}", net] if turned else [net, f"inverse{net}"]
            side.gates.append((f"inverse{net}", 0b01, [net]))
            read = [group.pins[pin][k] if pin in group.pins else 0 for pin in register.data]
            side.gates.append((f"next{net}", following, [*read, *states]))
            for pin, inverted in others:
                side.gates.append((group.pins[pin][k], 0b01 if inverted != turned else 0b10, [net]))
    for instance, kind, opaque, ways in netlist.opaque:
        side.ports(_opaque(mapped, instance, kind), opaque, ways, "output")
    return side, {name: registers[net] for name, net in netlist.labels.items() if net in registers}


@dataclass(frozen=True)
class _Register:
    """A register of the RTL: what its output is called, its nets, its value after reset or 0."""

    names: list[str]
    value: Any
    following: Any
    start: int


def _rtl(mapped: Mapped, tool: str) -> tuple[_Side, list[_Register]]:
    """The RTL's side, without its registers, and these."""
    with tempfile.TemporaryDirectory(prefix="equivalence-") as folder:
        expanded = Path(folder) / "rtl.json"
        stubs = [f"read_verilog -lib {mapped.folder / 'macros.v'}"] if mapped.macros else []
        yosys.run(
            [
                f"read_rtlil {mapped.folder / 'design.il'}",
                f"hierarchy -top \\{mapped.name}",
                *EXPAND,
                *stubs,
                *as_macros(mapped.macros, f"\\{mapped.name}"),
                *TO_GATES,
                f"write_json {expanded}",
            ],
            tool=tool,
        )
        module = json.loads(expanded.read_text())["modules"][mapped.name]
    side, registers = _Side(), []
    called: dict[Any, list[str]] = defaultdict(list)
    start: dict[Any, int] = {}
    for name, wire in module["netnames"].items():
        values = wire["attributes"].get("init", "")[::-1]
        for k, bit in enumerate(wire["bits"]):
            called[bit].append(f"{name}[{k}]" if len(wire["bits"]) > 1 else name)
            start |= {bit: 1} if values[k : k + 1] == "1" else {}

    def nets(bits: list[Any]) -> list[Any]:
        return [int(bit) if bit in ("0", "1") else f"_{bit}" for bit in bits]

    for name, port in module["ports"].items():
        side.ports("port ", {name: nets(port["bits"])}, {name: port["direction"]}, "input")
    clock = module["ports"].get(CLOCK, {"bits": []})["bits"]
    for name, cell in module["cells"].items():
        pins = {pin: nets(bits) for pin, bits in cell["connections"].items()}
        if cell["type"] in _GATES:
            reads, table_ = _GATES[cell["type"]]
            side.gates.append((pins["Y"][0], table_, [pins[pin][0] for pin in reads]))
        elif cell["type"] == "$_DFF_P_" and cell["connections"]["C"] == clock:
            (bit,) = cell["connections"]["Q"]
            registers.append(_Register(called[bit], pins["Q"][0], pins["D"][0], start.get(bit, 0)))
        elif cell["type"] in {*mapped.children, *(macro.module for macro in mapped.macros)}:
            side.ports(_opaque(mapped, name, cell["type"]), pins, cell["port_directions"], "output")
        elif cell["type"] != "$scopeinfo":
            raise EquivalenceError(f"{mapped.name}: the RTL has a {cell['type']}, which is no gate or register")
    return side, registers


def _match(rtl: _Side, registers: list[_Register], netlist: _Side, names: dict[str, str]) -> None:
    """Cut the RTL's registers: each takes the label of the netlist's register of its name, or of one that it always
    equals, or of a constant; one that nothing reads is left out. Where the netlist has several for it, they are one
    value, and each must take what it takes next. Where it has none, the register may hold anything."""
    labels = [list(dict.fromkeys(names[own] for own in register.names if own in names)) for register in registers]
    _find_doubles(rtl, registers, labels)
    for register, found in zip(registers, labels, strict=True):
        if not found:
            rtl.inputs[f"free {register.value}"].append(register.value)
            continue
        label, *doubles = found
        for double in doubles:
            netlist.inputs[label] += netlist.inputs.pop(double)
        for own in found:
            rtl.outputs[own].append(register.following)
        if label in _CONSTANTS:
            rtl.gates.append((register.value, 0b10, [_CONSTANTS[label]]))
        else:
            rtl.inputs[label].append(register.value)


def _find_doubles(
    rtl: _Side, registers: list[_Register], labels: list[list[str]], rounds: int = 16, streams: int = 1024
) -> None:
    """Label the registers that have no label: as the first constant, or register that has one, that they go on to equal
    in random states in which they equal it. What is found holds in the states in which others are looked for."""
    order, random, ones = rtl.ordered(), Random(0), (1 << streams) - 1
    same: dict[int, int] = {}  # register -> what it equals: -2 and -1 are the constants 0 and 1
    named = [k for k, found in enumerate(labels) if found]
    while rest := [k for k, found in enumerate(labels) if not found]:
        left = {k: [-2, -1, *named] for k in rest}
        for _ in range(rounds):
            now = [random.getrandbits(streams) for _ in registers] + [0, ones]
            for k, other in same.items():
                now[k] = now[other]
            values: dict[Any, int] = defaultdict(int, {0: 0, 1: ones})
            values |= {register.value: now[k] for k, register in enumerate(registers)}
            for label, nets in rtl.inputs.items():
                drawn = random.getrandbits(streams)
                if label == "port rst[0]":  # seldom, since it makes all alike
                    for _ in range(6):
                        drawn &= random.getrandbits(streams)
                values |= dict.fromkeys(nets, drawn)
            for net, _, reads in order:
                values[net] = values[reads[0]] & values[reads[1]] if len(reads) == 2 else ~values[reads[0]] & ones
            then = [values[register.following] for register in registers] + [0, ones]
            for k, others in left.items():
                left[k] = [n for n in others if not ~(now[k] ^ now[n]) & (then[k] ^ then[n]) & ones]
        new = {k: others[0] for k, others in left.items() if others}
        if not new:
            break
        same |= new
        for k, other in new.items():
            labels[k] = [[*_CONSTANTS][other + 2] if other < 0 else labels[other][0]]


def _opaque(mapped: Mapped, instance: str, kind: str) -> str:
    """What the pins of a block inside are called by; or of a memory, each of which has its own module."""
    return f"{instance if kind in mapped.children else kind}."
