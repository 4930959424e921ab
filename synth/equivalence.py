"""Equivalence of a mapped netlist and the RTL that it came from, block by block.

Mapping keeps registers, memories and instances of blocks. The comparison cuts both sides there: at registers, matched
by the names of their output nets, and at the pins of memories and blocks. The remaining logic has no state. abc
compares its outputs for all inputs; outputs are ports, next states of registers, and inputs of memories and blocks.
This proves that the blocks are equal in every cycle that follows equal states; reset is one of the inputs.

Mapping may remove a register that is constant or equal to another register. Simulation from random states finds such
registers; the proof assumes the equality and shows that it holds in the next cycle. Any other removed register is a
free input: the proof shows that its value has no effect.

A register behind a clock gate keeps its state in a cycle without the gate's enable. The proof compares this next state
with that of the RTL, so the enable of every gate is part of it.

The RTL side shares with the mapping only yosys's reading of processes and its expansion of operators and memories into
gates. The other side is the netlist with the Liberty functions of its cells.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
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
# yosys's pass `abc` needs a circuit to map; the script replaces it
_NOTHING = "module nothing(input a, input b, output y); assign y = a & b; endmodule\n"


class EquivalenceError(ArithmeticError):
    """A netlist differs from its RTL or cannot be compared with it."""


@dataclass(frozen=True)
class BlockEquivalence:
    """Proof of one block: number of compared outputs, registers of the RTL and of the netlist.

    `clock_gates` and `gated_registers` are the clock gates of the netlist and the registers behind them.
    """

    block: str
    count: int
    outputs: int
    rtl_registers: int
    netlist_registers: int
    clock_gates: int
    gated_registers: int


@dataclass(frozen=True)
class Equivalence:
    """Proofs of all blocks of a unit."""

    unit: str
    blocks: tuple[BlockEquivalence, ...]

    def json(self) -> dict[str, Any]:
        return {"unit": self.unit, "equivalent": True, "blocks": [asdict(block) for block in self.blocks]}

    def table(self) -> str:
        head = ["block", "count", "outputs compared", "registers of the RTL", "of the netlist"]
        head += ["clock gates", "registers behind them"]
        rows = [[str(value) for value in asdict(block).values()] for block in self.blocks]
        return f"{table(head, rows)}\n{self.unit}: the netlist is equivalent to the RTL"


def prove(area: Area, library: Library, *, tool: str = "yowasp", progress: Progress = no_progress) -> Equivalence:
    """Compare every block of a mapped unit with its RTL; proofs of an earlier run are reused.

    Raises
    ------
    EquivalenceError
        A block differs, or cannot be compared. The message names the block and the first different output.
    """
    proofs = []
    for number, block in enumerate(area.blocks):
        progress(f"equivalence of {area.unit}", number, len(area.blocks))
        mapped = area.mapped[block.name]
        names = (entry.name for entry in fields(BlockEquivalence))
        cache_path = mapped.folder / f"equivalent-{digest(*EXPAND, *TO_GATES, *names)}.json"
        if not cache_path.exists():
            write_json(cache_path, asdict(_prove(mapped, library, tool)))
        proofs.append(BlockEquivalence(**json.loads(cache_path.read_text()) | {"count": block.count}))
    progress(f"equivalence of {area.unit}", len(area.blocks), len(area.blocks))
    return Equivalence(area.unit, tuple(proofs))


@dataclass
class _Side:
    """Logic between cuts; labels of inputs and outputs are the same on both sides.

    Attributes
    ----------
    inputs : label -> nets with this value ; outputs : label -> nets that must be equal to those of the other side
    gates : (driven net, truth table, input nets), the first input is the lowest bit of the table's index
    """

    inputs: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    outputs: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    gates: list[tuple[Any, int, list[Any]]] = field(default_factory=list)

    def ports(self, prefix: str, pins: dict[str, list[Any]], directions: dict[str, str], driven: str) -> None:
        """Cut at the pins of a port, memory or block; pins of direction `driven` are inputs of the logic."""
        for pin, bits in pins.items():
            if pin in (CLOCK, "RD_CLK", "WR_CLK"):
                continue
            for k, bit in enumerate(bits):
                cuts = self.inputs if directions[pin] == driven else self.outputs
                cuts[f"{prefix}{pin}[{k}]"].append(bit)

    def undefined(self) -> set[Any]:
        """Nets that depend on an undriven net."""
        driven = {net for net, _, _ in self.gates} | {net for nets in self.inputs.values() for net in nets} | {0, 1}
        readers: dict[Any, list[Any]] = defaultdict(list)
        for net, _, reads in self.gates:
            for read in reads:
                readers[read].append(net)
        used_nets = {*readers, *(net for nets in self.outputs.values() for net in nets)}
        undefined = used_nets - driven
        reached_nets = list(undefined)
        for net in reached_nets:
            new = [reader for reader in readers[net] if reader not in undefined]
            undefined.update(new)
            reached_nets += new
        return undefined

    def ordered(self) -> list[tuple[Any, int, list[Any]]]:
        """The gates in topological order."""
        gates = {gate[0]: gate for gate in self.gates}
        ordered: dict[Any, tuple[Any, int, list[Any]]] = {}
        for root in gates:
            waiting = [root]
            while waiting:
                net = waiting[-1]
                missing = [] if net in ordered else [r for r in gates[net][2] if r in gates and r not in ordered]
                waiting += missing
                if not missing:
                    ordered.setdefault(net, gates[waiting.pop()])
        return list(ordered.values())

    def settle(self, inputs: dict[str, int], undriven: int) -> dict[Any, int]:
        """Value of every net for the values of `inputs`; undriven nets have the value `undriven`."""
        values: dict[Any, int] = defaultdict(lambda: undriven, {0: 0, 1: 1})
        values |= {net: inputs[label] for label, nets in self.inputs.items() for net in nets}
        for net, truth_values, reads in self.ordered():
            values[net] = truth_values >> sum(values[read] << k for k, read in enumerate(reads)) & 1
        return values


def _miter(rtl: _Side, netlist: _Side, inputs: list[str], outputs: list[tuple[str, Any]]) -> Iterator[str]:
    """BLIF of a circuit whose output k is 1 if the RTL's net differs from the netlist's output of that label.

    The circuit has two copies of the RTL: undriven nets are 0 in one and 1 in the other. If the copies differ, the
    output is undefined and the netlist may have any value.
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
        (output_net,) = netlist.outputs[label]
        high = f"{'s' if low in open_nets else 'r'}{low}"
        yield from _names(f"o{k}", 0b01000010, [f"n{output_net}", f"r{low}", high])  # 1 0 0 and 0 1 1
    yield ".end\n"


def _names(target: str, values: int, reads: list[str]) -> Iterator[str]:
    yield f".names {' '.join([*reads, target])}"
    for row in range(1 << len(reads)):
        if values >> row & 1:
            yield "".join(f"{row >> k & 1}" for k in range(len(reads))) + " 1"


def _prove(mapped: Mapped, library: Library, tool: str) -> BlockEquivalence:
    cells = Netlist(mapped, library)
    netlist, names = _netlist(mapped, cells)
    rtl, registers = _rtl(mapped, tool)
    _match(rtl, registers, netlist, names)
    netlist.outputs |= {label: [value] for label, value in _CONSTANTS.items() if label in rtl.outputs}
    if unmatched := sorted(set(rtl.outputs) ^ set(netlist.outputs)):
        raise EquivalenceError(f"{mapped.name}: {unmatched[0]} is on one side only")
    inputs = sorted({*rtl.inputs, *netlist.inputs})
    outputs = [(label, net) for label in sorted(rtl.outputs) for net in rtl.outputs[label]]
    verdict = _solve(rtl, netlist, inputs, outputs, tool)
    if verdict[0] == "snl_SAT":
        mismatch = _first_mismatch(rtl, netlist, outputs, dict(zip(inputs, map(int, verdict[-1]), strict=True)))
        raise EquivalenceError(f"{mapped.name}: the netlist differs from the RTL: {mismatch}")
    if verdict[0] != "snl_UNSAT":
        raise EquivalenceError(f"{mapped.name}: the netlist could not be compared with the RTL: {' '.join(verdict)}")
    return BlockEquivalence(
        block=mapped.name,
        count=1,
        outputs=len(outputs),
        rtl_registers=len(registers),
        netlist_registers=len(set(names.values())),
        clock_gates=sum(len(group.names) for group in cells.gates),
        gated_registers=sum(int((cells.flip_flop(group).enables != 1).sum()) for group in cells.registers),
    )


def _solve(rtl: _Side, netlist: _Side, inputs: list[str], outputs: list[tuple[str, Any]], tool: str) -> list[str]:
    """abc's verdict, followed by the inputs for which an output differs."""
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


def _first_mismatch(rtl: _Side, netlist: _Side, outputs: list[tuple[str, Any]], example: dict[str, int]) -> str:
    """The first output that differs for the inputs of `example`; assumed constants come last."""
    low, high, mapped = rtl.settle(example, 0), rtl.settle(example, 1), netlist.settle(example, 0)
    labels = [label for label, net in outputs if low[net] == high[net] != mapped[netlist.outputs[label][0]]]
    return next((label for label in labels if label not in _CONSTANTS), labels[0])


def _netlist(mapped: Mapped, netlist: Netlist) -> tuple[_Side, dict[str, str]]:
    """The netlist's side, and the labels of its registers by name."""
    library, side = netlist.library, _Side()
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
        flip_flop = netlist.flip_flop(group)
        (first, inverted), *other_outputs = flip_flop.outputs.items()
        # the value of the register is that of the first output's net; its state may be the inverse
        next_state = flip_flop.next_state ^ (-inverted & (1 << (1 << len(flip_flop.data) + 2)) - 1)
        for k, net in enumerate(group.pins[first]):
            label = registers[net] = f"register {netlist.net_name(net)}"
            side.inputs[label].append(net)
            side.outputs[label].append(f"next{net}")
            states = [f"inverse{net}", net] if inverted else [net, f"inverse{net}"]
            side.gates.append((f"inverse{net}", 0b01, [net]))
            read = [group.pins[pin][k] if pin in group.pins else 0 for pin in flip_flop.data]
            side.gates.append((f"d{net}", next_state, [*read, *states]))
            # without a pulse of its clock the register keeps its value
            side.gates.append((f"next{net}", 0b11100100, [int(flip_flop.enables[k]), net, f"d{net}"]))
            for pin, pin_inverted in other_outputs:
                side.gates.append((group.pins[pin][k], 0b01 if pin_inverted != inverted else 0b10, [net]))
    for instance, kind, pins, directions in netlist.opaque:
        side.ports(_opaque(mapped, instance, kind), pins, directions, "output")
    return side, {name: registers[net] for name, net in netlist.labels.items() if net in registers}


@dataclass(frozen=True)
class _Register:
    """A register of the RTL: names of its output, its nets, its initial value."""

    names: list[str]
    value: Any
    next_state: Any
    initial: int


def _rtl(mapped: Mapped, tool: str) -> tuple[_Side, list[_Register]]:
    """The RTL's side without its registers, and the registers."""
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
    bit_names: dict[Any, list[str]] = defaultdict(list)
    initial: dict[Any, int] = {}
    for name, wire in module["netnames"].items():
        values = wire["attributes"].get("init", "")[::-1]
        for k, bit in enumerate(wire["bits"]):
            bit_names[bit].append(f"{name}[{k}]" if len(wire["bits"]) > 1 else name)
            initial |= {bit: 1} if values[k : k + 1] == "1" else {}

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
            registers.append(_Register(bit_names[bit], pins["Q"][0], pins["D"][0], initial.get(bit, 0)))
        elif cell["type"] in {*mapped.children, *(macro.module for macro in mapped.macros)}:
            side.ports(_opaque(mapped, name, cell["type"]), pins, cell["port_directions"], "output")
        elif cell["type"] != "$scopeinfo":
            raise EquivalenceError(f"{mapped.name}: cells of the RTL must be gates and registers, got {cell['type']}")
    return side, registers


def _match(rtl: _Side, registers: list[_Register], netlist: _Side, names: dict[str, str]) -> None:
    """Cut the RTL's registers and label them like the registers of the netlist.

    The label of a register is that of the netlist's register of the same name, or of a register or constant that it
    always equals. If the netlist has several registers for one of the RTL, they are one input, and each must have its
    next state. If the netlist has none, the register is a free input.
    """
    labels = [list(dict.fromkeys(names[name] for name in register.names if name in names)) for register in registers]
    _find_doubles(rtl, registers, labels)
    for register, matched in zip(registers, labels, strict=True):
        if not matched:
            rtl.inputs[f"free {register.value}"].append(register.value)
            continue
        label, *doubles = matched
        for double in doubles:
            netlist.inputs[label] += netlist.inputs.pop(double)
        for output in matched:
            rtl.outputs[output].append(register.next_state)
        if label in _CONSTANTS:
            rtl.gates.append((register.value, 0b10, [_CONSTANTS[label]]))
        else:
            rtl.inputs[label].append(register.value)


def _find_doubles(
    rtl: _Side, registers: list[_Register], labels: list[list[str]], rounds: int = 16, streams: int = 1024
) -> None:
    """Label the registers that have no label.

    The label is that of the first constant or labelled register with an equal next state in all random states in which
    the two are equal. The equalities of one pass hold in the random states of the next.
    """
    order, random, ones = rtl.ordered(), Random(0), (1 << streams) - 1
    same: dict[int, int] = {}  # register -> the register it equals; -2 and -1 are the constants 0 and 1
    matched = [k for k, names in enumerate(labels) if names]
    while unmatched := [k for k, names in enumerate(labels) if not names]:
        candidates = {k: [-2, -1, *matched] for k in unmatched}
        for _ in range(rounds):
            state = [random.getrandbits(streams) for _ in registers] + [0, ones]
            for k, other in same.items():
                state[k] = state[other]
            values: dict[Any, int] = defaultdict(int, {0: 0, 1: ones})
            values |= {register.value: state[k] for k, register in enumerate(registers)}
            for label, nets in rtl.inputs.items():
                random_bits = random.getrandbits(streams)
                if label == "port rst[0]":  # rarely 1, because reset makes all states equal
                    for _ in range(6):
                        random_bits &= random.getrandbits(streams)
                values |= dict.fromkeys(nets, random_bits)
            for net, _, reads in order:
                values[net] = values[reads[0]] & values[reads[1]] if len(reads) == 2 else ~values[reads[0]] & ones
            next_state = [values[register.next_state] for register in registers] + [0, ones]
            for k, others in candidates.items():
                candidates[k] = [
                    n for n in others if not ~(state[k] ^ state[n]) & (next_state[k] ^ next_state[n]) & ones
                ]
        new = {k: others[0] for k, others in candidates.items() if others}
        if not new:
            break
        same |= new
        for k, other in new.items():
            labels[k] = [[*_CONSTANTS][other + 2] if other < 0 else labels[other][0]]


def _opaque(mapped: Mapped, instance: str, kind: str) -> str:
    """Prefix of the labels of an inner block's pins (its instance) or of a memory's pins (its module)."""
    return f"{instance if kind in mapped.children else kind}."
