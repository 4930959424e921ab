"""Proofs that a mutant is equivalent to its unit, for all inputs and for all time.

Unit and mutant share one and-inverter graph, in which equal logic is one node; only the registers that the mutant
affects exist twice. Memories are cut: both sides read the same unknown data as long as their addresses, enables and
written data are equal, which is part of the claim. The proof therefore holds for any memory content. Inner units are
cut in the same way. The claim compares what a neighbour can observe: output ports, and the fields of a stream or bus
while its valid is 1. abc merges registers that are always equal (`scorr`) and proves the rest (`prove` without
registers, else `pdr`).

A smaller claim is tried first, on the unit alone: in no reachable state does the fault pass the last net that all its
paths lead through. Then nothing that the unit does depends on the fault.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hw import yosys
from sim.formal.engine import solve
from sim.mutation.netlist import CLOCK, SELECT, Mutant, MutatedNetlist

TIMEOUT_S = 3
CONFLICTS = 50  # limit of one comparison of two nodes
BATCH_SIZE = 8  # proofs of one process
MAX_GATES = 50_000  # of a comparison; larger ones take minutes and are not decided
_TO_GATES = ("async2sync", "dffunmap", "techmap", "simplemap", "opt_expr", "opt_merge", "aigmap", "opt_clean")
_BOTTLENECK_PROOF = f"pdr -T {TIMEOUT_S}"
_MITER_PROOF = f"scorr -q -C {CONFLICTS};prove;{_BOTTLENECK_PROOF}"


def equivalents(
    design: MutatedNetlist, mutants: Sequence[Mutant], *, tool: str = "yowasp"
) -> Iterator[tuple[Mutant, int | None, bool]]:
    """For each mutant, yield the first cycle in which it can differ (or None) and whether it is proved equivalent.

    The difference occurs for some inputs and some words read from memories, also words that were never written. A
    fault in a clock is not decided, because the graph has one clock.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-") as text:
        folder = Path(text)
        cut_units = "blackbox A:keep_hierarchy=1"
        commands = [f"read_rtlil {design.rtlil}", cut_units, *_TO_GATES, f"write_json {folder}/design.json"]
        yosys.run(commands, tool=tool)
        netlist = _Netlist(json.loads((folder / "design.json").read_text())["modules"], design.name)
        clocks = [mutant for mutant in mutants if mutant.port.endswith("CLK")]
        yield from ((mutant, None, False) for mutant in clocks)
        others = [mutant for mutant in mutants if mutant not in clocks]
        for first in range(0, len(others), BATCH_SIZE):
            batch = others[first : first + BATCH_SIZE]
            blocked = _solve(folder, {m.number: _bottleneck(netlist, m.number) for m in batch}, _BOTTLENECK_PROOF, tool)
            verdicts = {number: verdict for number, verdict in blocked.items() if verdict[0] == "snl_UNSAT"}
            graphs = {m.number: _miter(netlist, m.number) for m in batch if m.number not in verdicts}
            verdicts |= _solve(folder, {n: g for n, g in graphs.items() if _gates(g) <= MAX_GATES}, _MITER_PROOF, tool)
            for mutant in batch:
                verdict, cycle = verdicts.get(mutant.number, ("", -1))
                yield mutant, max(cycle, 0) if verdict == "snl_SAT" else None, verdict == "snl_UNSAT"


def _solve(folder: Path, graphs: Mapping[int, bytes], command: str, tool: str) -> dict[int, tuple[str, int]]:
    """Verdict of `sim.formal.engine.solve` on each graph."""
    files = [folder / f"{number}" for number in graphs]
    for file, graph in zip(files, graphs.values(), strict=True):
        file.with_suffix(".aig").write_bytes(graph)
    return dict(zip(graphs, solve(files, command, tool=tool), strict=True))


class _Graph:
    """And-inverter graph; a literal is twice a node, plus one for its inverse; literal 0 is false.

    `gates` maps a gate's node to its two input literals; every other node is a leaf.
    """

    def __init__(self) -> None:
        self.nodes = 1
        self.gates: dict[int, tuple[int, int]] = {}
        self.gate_of: dict[tuple[int, int], int] = {}

    def leaf(self) -> int:
        self.nodes += 1
        return 2 * (self.nodes - 1)

    def both(self, a: int, b: int) -> int:
        if a > b:
            a, b = b, a
        if a == 0 or a == b ^ 1:
            return 0
        if a == 1 or a == b:
            return b
        if (literal := self.gate_of.get((a, b))) is None:
            literal = self.gate_of[a, b] = self.leaf()
            self.gates[literal >> 1] = a, b
        return literal

    def any(self, literals: Iterable[int]) -> int:
        none = 1
        for literal in literals:
            none = self.both(none, literal ^ 1)
        return none ^ 1

    def differ(self, a: int, b: int) -> int:
        return self.both(self.both(a, b ^ 1) ^ 1, self.both(a ^ 1, b) ^ 1) ^ 1


_Observation = tuple[Any, list[Any]]  # the net that makes them observable, and the observed nets


class _Netlist:
    """The mapped netlist: gates, registers, free inputs, and nets that a neighbour observes."""

    def __init__(self, modules: Mapping[str, Any], name: str):
        self.select: list[Any] = []
        self.inputs: list[Any] = []
        self.gates: dict[Any, tuple[Any, ...]] = {}  # net -> inputs of its AND (two) or of its inverter (one)
        self.registers: dict[Any, Any] = {}  # Q -> D
        self.observed: list[_Observation] = []
        self.columns: list[
            tuple[list[Any], list[_Observation]]
        ] = []  # of memories: nets that read a column, what the column observes
        module = modules[name]
        nets = {port: info["bits"] for port, info in module["ports"].items()}
        self.select = nets[SELECT]
        self._neighbour(module["ports"], nets, source="input")
        for cell in module["cells"].values():
            pins = cell["connections"]
            if cell["type"] == "$_AND_":
                self.gates[pins["Y"][0]] = pins["A"][0], pins["B"][0]
            elif cell["type"] == "$_NOT_":
                self.gates[pins["Y"][0]] = (pins["A"][0],)
            elif cell["type"] == "$_DFF_P_":
                self.registers[pins["Q"][0]] = pins["D"][0]
            elif cell["type"] == "$mem_v2":
                self._memory(cell["parameters"], pins)
            elif cell["type"] in modules:
                self._neighbour(modules[cell["type"]]["ports"], pins, source="output")
            elif cell["type"] != "$scopeinfo":
                raise ValueError(f"cell {cell['type']} has no model")
        self._remove_unread()
        self.ones = {
            bit
            for net in module["netnames"].values()
            for bit, value in zip(net["bits"], reversed(net.get("attributes", {}).get("init", "")), strict=False)
            if value == "1"
        }

    def _neighbour(self, ports: Mapping[str, Any], nets: Mapping[str, list[Any]], source: str) -> None:
        """Add the environment or an inner unit: it drives ports of direction `source` and observes the others."""
        plain = {name.split("$")[0]: bits for name, bits in nets.items()}  # Amaranth numbers repeated names
        for name, port in ports.items():
            if port["direction"] != source:
                self.observed.append((_valid(name.split("$")[0], plain), nets[name]))
            elif name not in (SELECT, CLOCK):
                self.inputs += nets[name]

    def _memory(self, sizes: Mapping[str, str], pins: Mapping[str, list[Any]]) -> None:
        """Add the columns of a memory, one per bit: a column that nothing reads observes no written data."""
        self.inputs += pins["RD_DATA"]
        abits, width = int(sizes["ABITS"], 2), int(sizes["WIDTH"], 2)
        reads, writes = range(int(sizes["RD_PORTS"], 2)), range(int(sizes["WR_PORTS"], 2))
        common: list[_Observation] = []
        for port in reads:
            enable = pins["RD_EN"][port]
            common += [("1", [enable]), (enable, pins["RD_ADDR"][port * abits : (port + 1) * abits])]
            common.append(("1", [pins["RD_ARST"][port], pins["RD_SRST"][port]]))
        for bit in range(width):
            seen = list(common)
            for port in writes:
                enable, data = (pins[name][port * width + bit] for name in ("WR_EN", "WR_DATA"))
                seen += [("1", [enable]), (enable, [data])]
                seen.append((enable, pins["WR_ADDR"][port * abits : (port + 1) * abits]))
            self.columns.append(([pins["RD_DATA"][port * width + bit] for port in reads], seen))

    def _remove_unread(self) -> None:
        """Remove registers and memory columns from which no path leads to an observed net."""
        column = {net: seen for reads, seen in self.columns for net in reads}
        live, stack = set[Any](), [net for valid, nets in self.observed for net in (valid, *nets)]
        while stack:
            net = stack.pop()
            if net not in live:
                live.add(net)
                stack += self.gates.get(net, ())
                stack += [self.registers[net]] if net in self.registers else []
                stack += [other for valid, nets in column.get(net, ()) for other in (valid, *nets)]
        self.registers = {net: data for net, data in self.registers.items() if net in live}
        once = {
            (valid, tuple(nets)): (valid, nets)
            for reads, seen in self.columns
            if not live.isdisjoint(reads)
            for valid, nets in seen
        }
        self.observed += once.values()

    def ends(self) -> list[Any]:
        """Inputs of registers, observed nets, and the nets that make them observable."""
        return [*self.registers.values(), *(net for valid, nets in self.observed for net in (valid, *nets))]

    def evaluate(self, graph: _Graph, literals: dict[Any, int], nets: Iterable[Any]) -> None:
        """Add the literal of every net on which `nets` depend to `literals`."""
        for root in nets:
            stack = [root]
            while stack:
                net = stack[-1]
                if net in literals:
                    stack.pop()
                elif net not in self.gates:  # nothing drives it
                    literals[net] = 0
                elif missing := [source for source in self.gates[net] if source not in literals]:
                    stack += missing
                else:
                    ends = [literals[source] for source in self.gates[net]]
                    literals[net] = graph.both(*ends) if len(ends) == 2 else ends[0] ^ 1
                    stack.pop()


def _valid(name: str, nets: Mapping[str, list[Any]]) -> Any:
    """The net that makes port `name` observable: the valid of its stream or bus channel, else constant 1."""
    stream, _, field = name.rpartition("__")
    if field in ("payload", "ready"):
        return nets.get(f"{stream}__valid", "1")[0]
    for length in (2, 1):
        valid = f"{stream}__{field[:length]}valid"
        if stream and field != f"{field[:length]}valid" and valid in nets:
            return nets[valid][0]
    return "1"


def _start(netlist: _Netlist, graph: _Graph) -> tuple[list[int], dict[Any, int], dict[Any, int]]:
    """Leaves of the inputs and of the registers, and the literals of inputs, registers and constants."""
    known: dict[Any, int] = {"0": 0, "1": 1, "x": 0, "z": 0}
    inputs = [graph.leaf() for _ in netlist.inputs]
    known |= dict(zip(netlist.inputs, inputs, strict=True))
    states = {net: graph.leaf() for net in netlist.registers}
    known |= {net: leaf ^ (net in netlist.ones) for net, leaf in states.items()}  # a leaf is 0 at the start
    return inputs, states, known


def _switched(netlist: _Netlist, known: Mapping[Any, int], number: int) -> dict[Any, int]:
    """`known` with mutant `number` active; 0: no mutant."""
    return {**known, **{net: number >> bit & 1 for bit, net in enumerate(netlist.select)}}


def _bottleneck(netlist: _Netlist, number: int) -> bytes:
    """AIGER file whose only output is 1 when mutant `number` changes the last net that all its paths lead through.

    The registers are those of the unit, before the mutant affects one. Without such a net the output is 1.
    """
    graph = _Graph()
    inputs, states, known = _start(netlist, graph)
    plain, mutant = _switched(netlist, known, 0), _switched(netlist, known, number)
    ends = netlist.ends()
    netlist.evaluate(graph, plain, ends)
    netlist.evaluate(graph, mutant, ends)
    differ = [net for net, value in mutant.items() if net in netlist.gates and plain[net] != value]  # sources first
    # number of unvisited successors of each net; an observed net has one that is never visited
    waiting = {net: 1 for net in ends if plain[net] != mutant[net]}
    for net in reversed(differ):
        if net in waiting:
            for source in set(netlist.gates[net]):
                waiting[source] = waiting.get(source, 0) + 1
    opened, last = set[Any](), None  # visited nets with unvisited successors; a single one is a bottleneck
    for net in differ:
        if net in waiting:
            for source in set(netlist.gates[net]) & opened:
                waiting[source] -= 1
                if not waiting[source]:
                    opened.remove(source)
            opened.add(net)
            last = net if len(opened) == 1 else last
    shows = 1 if last is None else graph.differ(plain[last], mutant[last])
    return _aiger(graph, inputs, _next_states(netlist, states, plain), shows)


def _next_states(netlist: _Netlist, leaves: Mapping[Any, int], known: Mapping[Any, int]) -> list[tuple[int, int]]:
    """Leaf and next-state literal of each register."""
    return [(leaf, known[netlist.registers[net]] ^ (net in netlist.ones)) for net, leaf in leaves.items()]


def _miter(netlist: _Netlist, number: int) -> bytes:
    """AIGER file whose only output is 1 when an observed net of mutant `number` differs from the unit."""
    graph = _Graph()
    inputs, states, known = _start(netlist, graph)
    plain, mutant = _switched(netlist, known, 0), _switched(netlist, known, number)
    wanted = netlist.ends()
    copies: dict[Any, int] = {}  # registers that the mutant affects
    netlist.evaluate(graph, plain, wanted)
    while True:
        other = mutant | {net: leaf ^ (net in netlist.ones) for net, leaf in copies.items()}
        netlist.evaluate(graph, other, wanted)
        reached = [n for n, data in netlist.registers.items() if n not in copies and plain[data] != other[data]]
        if not reached:
            break
        copies |= {net: graph.leaf() for net in reached}
    seen = [
        graph.differ(graph.both(plain[valid], plain[net]), graph.both(other[valid], other[net]))
        for valid, nets in netlist.observed
        for net in nets
        if plain[net] != other[net] or plain[valid] != other[valid]
    ]
    latches = _next_states(netlist, states, plain) + _next_states(netlist, copies, other)
    return _aiger(graph, inputs, latches, graph.any(seen))


def _gates(aiger: bytes) -> int:
    """Number of gates of a file of `_aiger`."""
    return int(aiger.split(b"\n", 1)[0].split()[-1])


def _aiger(graph: _Graph, inputs: Sequence[int], latches: Sequence[tuple[int, int]], bad: int) -> bytes:
    """Binary AIGER of the logic on which `bad` depends."""
    next_state, cone, stack = dict(latches), set[int](), [bad]
    while stack:
        node = stack.pop() >> 1
        if node not in cone:
            cone.add(node)
            stack += graph.gates.get(node, ())
            stack += [next_state[2 * node]] if 2 * node in next_state else []
    leaves = [leaf for leaf in inputs if leaf >> 1 in cone]
    live = [leaf for leaf, _ in latches if leaf >> 1 in cone]
    gates = sorted(node for node in graph.gates if node in cone)  # a gate comes after its inputs
    index = {0: 0} | {node: 2 * n for n, node in enumerate([leaf >> 1 for leaf in leaves + live] + gates, start=1)}

    def literal(value: int) -> int:
        return index[value >> 1] ^ value & 1

    head = f"aig {len(index) - 1} {len(leaves)} {len(live)} 1 {len(gates)}\n"
    lines = [f"{literal(next_state[leaf])}\n" for leaf in live] + [f"{literal(bad)}\n"]
    body = bytearray()
    for node in gates:
        low, high = sorted(map(literal, graph.gates[node]))
        for delta in (index[node] - high, high - low):
            while delta > 127:
                body.append(delta & 127 | 128)
                delta >>= 7
            body.append(delta)
    return (head + "".join(lines)).encode() + bytes(body)
