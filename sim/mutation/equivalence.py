"""Shows that a mutant cannot be told from its unit: for all inputs, for all time.

Both are one and-inverter graph, in which equal logic is the same node; only registers that a mutant reaches are there
twice. Memories are cut: both sides read the same unknown data as long as the same was asked of them and written, which
is part of the claim, so that it holds with any memory. In the same way units inside are cut: what they give is the same
as long as what they are given is. What is compared is what a neighbour can see: outputs, of a stream or a bus its
handshakes and what goes with them when valid is 1. abc looks for registers that are always equal (`scorr`, but not
where simulation shows a difference) and proves the rest (`prove` without registers, else `pdr`).

Before that a smaller claim is tried, that of the unit alone: in no state that it reaches does the fault get beyond the
last net that all its ways lead through. So nothing that the unit does ever depends on it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hw import yosys
from sim.formal.engine import solve
from sim.mutation.netlist import CLOCK, SELECT, Mutant, Mutated

TIMEOUT_S = 3
CONFLICTS = 50  # of one comparison of two nodes
TOGETHER = 8  # proofs of one process
LARGEST = 50_000  # gates of a comparison that is tried; more take minutes and come to nothing
_TO_GATES = ("async2sync", "dffunmap", "techmap", "simplemap", "opt_expr", "opt_merge", "aigmap", "opt_clean")
_ALONE = f"pdr -T {TIMEOUT_S}"
_BOTH = f"scorr -q -C {CONFLICTS};prove;{_ALONE}"


def equivalents(
    design: Mutated, among: Sequence[Mutant], *, tool: str = "yowasp"
) -> Iterator[tuple[Mutant, int | None, bool]]:
    """For each of `among` the first cycle in which it can differ, or None, and whether it is shown to be equivalent.

    It differs in that cycle for some inputs and some words read from memories, be they what was written or not. Where
    the fault is in a clock it is not decided: the graph has one clock.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-") as text:
        folder = Path(text)
        apart = "blackbox A:keep_hierarchy=1"
        commands = [f"read_rtlil {design.rtlil}", apart, *_TO_GATES, f"write_json {folder}/design.json"]
        yosys.run(commands, tool=tool)
        netlist = _Netlist(json.loads((folder / "design.json").read_text())["modules"], design.name)
        clocks = [mutant for mutant in among if mutant.port.endswith("CLK")]
        yield from ((mutant, None, False) for mutant in clocks)
        rest = [mutant for mutant in among if mutant not in clocks]
        for first in range(0, len(rest), TOGETHER):
            part = rest[first : first + TOGETHER]
            stopped = _solve(folder, {m.number: _bottleneck(netlist, m.number) for m in part}, _ALONE, tool)
            found = {number: said for number, said in stopped.items() if said[0] == "snl_UNSAT"}
            graphs = {m.number: _miter(netlist, m.number) for m in part if m.number not in found}
            found |= _solve(folder, {n: g for n, g in graphs.items() if _gates(g) <= LARGEST}, _BOTH, tool)
            for mutant in part:
                verdict, cycle = found.get(mutant.number, ("", -1))
                yield mutant, max(cycle, 0) if verdict == "snl_SAT" else None, verdict == "snl_UNSAT"


def _solve(folder: Path, graphs: Mapping[int, bytes], command: str, tool: str) -> dict[int, tuple[str, int]]:
    """What `sim.formal.engine.solve` says of each graph."""
    files = [folder / f"{number}" for number in graphs]
    for file, graph in zip(files, graphs.values(), strict=True):
        file.with_suffix(".aig").write_bytes(graph)
    return dict(zip(graphs, solve(files, command, tool=tool), strict=True))


class _Graph:
    """And-inverter graph; a literal is twice a node, plus one for its inverse; literal 0 is false.

    `gates` has the two literals of each node that is a gate; `leaves` in the order in which they were made.
    """

    def __init__(self) -> None:
        self.nodes = 1
        self.gates: dict[int, tuple[int, int]] = {}
        self.known: dict[tuple[int, int], int] = {}

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
        if (found := self.known.get((a, b))) is None:
            found = self.known[a, b] = self.leaf()
            self.gates[found >> 1] = a, b
        return found

    def any(self, literals: Iterable[int]) -> int:
        every = 1
        for literal in literals:
            every = self.both(every, literal ^ 1)
        return every ^ 1

    def differ(self, a: int, b: int) -> int:
        return self.both(self.both(a, b ^ 1) ^ 1, self.both(a ^ 1, b) ^ 1) ^ 1


_Seen = tuple[Any, list[Any]]  # nets, and before them the net without which they do not matter


class _Netlist:
    """The mapped netlist: gates, registers, what is known of nets from outside, and what is seen of them."""

    def __init__(self, modules: Mapping[str, Any], name: str):
        self.select: list[Any] = []
        self.inputs: list[Any] = []
        self.gates: dict[Any, tuple[Any, ...]] = {}  # net -> the nets of its AND, or the one of its inverter
        self.registers: dict[Any, Any] = {}  # Q -> D
        self.seen: list[_Seen] = []
        self.columns: list[tuple[list[Any], list[_Seen]]] = []  # of memories: nets that read one, what it sees
        module = modules[name]
        nets = {port: about["bits"] for port, about in module["ports"].items()}
        self.select = nets[SELECT]
        self._neighbour(module["ports"], nets, gives="input")
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
                self._neighbour(modules[cell["type"]]["ports"], pins, gives="output")
            elif cell["type"] != "$scopeinfo":
                raise ValueError(f"cell {cell['type']} has no model")
        self._drop_what_nothing_reads()
        self.ones = {
            bit
            for net in module["netnames"].values()
            for bit, value in zip(net["bits"], reversed(net.get("attributes", {}).get("init", "")), strict=False)
            if value == "1"
        }

    def _neighbour(self, ports: Mapping[str, Any], nets: Mapping[str, list[Any]], gives: str) -> None:
        """What is around the unit, or a unit inside: ports of direction `gives` come from it, the others it sees."""
        plain = {name.split("$")[0]: bits for name, bits in nets.items()}  # Amaranth numbers what its parent has, too
        for name, port in ports.items():
            if port["direction"] != gives:
                self.seen.append((_valid(name.split("$")[0], plain), nets[name]))
            elif name not in (SELECT, CLOCK):
                self.inputs += nets[name]

    def _memory(self, sizes: Mapping[str, str], pins: Mapping[str, list[Any]]) -> None:
        """Its columns, bit by bit of a word: where nothing reads one, nothing sees what is written to it."""
        self.inputs += pins["RD_DATA"]
        abits, width = int(sizes["ABITS"], 2), int(sizes["WIDTH"], 2)
        reads, writes = range(int(sizes["RD_PORTS"], 2)), range(int(sizes["WR_PORTS"], 2))
        common: list[_Seen] = []
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

    def _drop_what_nothing_reads(self) -> None:
        """Registers and columns of memories from which no way leads to what a neighbour sees."""
        column = {net: seen for reads, seen in self.columns for net in reads}
        live, stack = set[Any](), [net for valid, nets in self.seen for net in (valid, *nets)]
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
        self.seen += once.values()

    def ends(self) -> list[Any]:
        """Nets that a register takes or a neighbour sees, and those that say whether they matter."""
        return [*self.registers.values(), *(net for valid, nets in self.seen for net in (valid, *nets))]

    def values(self, graph: _Graph, known: dict[Any, int], wanted: Iterable[Any]) -> None:
        """Give every net that `wanted` ones depend on its literal in `known`."""
        for root in wanted:
            stack = [root]
            while stack:
                net = stack[-1]
                if net in known:
                    stack.pop()
                elif net not in self.gates:  # nothing drives it
                    known[net] = 0
                elif missing := [source for source in self.gates[net] if source not in known]:
                    stack += missing
                else:
                    ends = [known[source] for source in self.gates[net]]
                    known[net] = graph.both(*ends) if len(ends) == 2 else ends[0] ^ 1
                    stack.pop()


def _valid(name: str, nets: Mapping[str, list[Any]]) -> Any:
    """The net that says whether port `name` matters: of a stream its valid, of a bus that of the channel."""
    stream, _, field = name.rpartition("__")
    if field in ("payload", "ready"):
        return nets.get(f"{stream}__valid", "1")[0]
    for length in (2, 1):
        valid = f"{stream}__{field[:length]}valid"
        if stream and field != f"{field[:length]}valid" and valid in nets:
            return nets[valid][0]
    return "1"


def _start(netlist: _Netlist, graph: _Graph) -> tuple[list[int], dict[Any, int], dict[Any, int]]:
    """Leaves of the inputs and of the registers, and what each net is that begins with one or is constant."""
    known: dict[Any, int] = {"0": 0, "1": 1, "x": 0, "z": 0}
    inputs = [graph.leaf() for _ in netlist.inputs]
    known |= dict(zip(netlist.inputs, inputs, strict=True))
    states = {net: graph.leaf() for net in netlist.registers}
    known |= {net: leaf ^ (net in netlist.ones) for net, leaf in states.items()}  # registers begin as 0
    return inputs, states, known


def _switched(netlist: _Netlist, known: Mapping[Any, int], number: int) -> dict[Any, int]:
    """`known` with mutant `number` on, 0 for none."""
    return {**known, **{net: number >> bit & 1 for bit, net in enumerate(netlist.select)}}


def _bottleneck(netlist: _Netlist, number: int) -> bytes:
    """AIGER file whose only output is 1 when mutant `number` shows at the last net that all its ways lead through.

    The registers are those of the unit, which the mutant has not touched yet. Without such a net the output is 1.
    """
    graph = _Graph()
    inputs, states, known = _start(netlist, graph)
    plain, mutant = _switched(netlist, known, 0), _switched(netlist, known, number)
    ends = netlist.ends()
    netlist.values(graph, plain, ends)
    netlist.values(graph, mutant, ends)
    differ = [net for net, value in mutant.items() if net in netlist.gates and plain[net] != value]  # sources first
    # the gates that wait for each net that leads to an end, which waits for ever
    waiting = {net: 1 for net in ends if plain[net] != mutant[net]}
    for net in reversed(differ):
        if net in waiting:
            for source in set(netlist.gates[net]):
                waiting[source] = waiting.get(source, 0) + 1
    opened, last = set[Any](), None  # nets behind which all is open; one alone is a bottleneck
    for net in differ:
        if net in waiting:
            for source in set(netlist.gates[net]) & opened:
                waiting[source] -= 1
                if not waiting[source]:
                    opened.remove(source)
            opened.add(net)
            last = net if len(opened) == 1 else last
    shows = 1 if last is None else graph.differ(plain[last], mutant[last])
    return _aiger(graph, inputs, _following(netlist, states, plain), shows)


def _following(netlist: _Netlist, leaves: Mapping[Any, int], known: Mapping[Any, int]) -> list[tuple[int, int]]:
    """Of each register its leaf and the literal of what it is in the next cycle."""
    return [(leaf, known[netlist.registers[net]] ^ (net in netlist.ones)) for net, leaf in leaves.items()]


def _miter(netlist: _Netlist, number: int) -> bytes:
    """AIGER file whose only output is 1 when mutant `number` shows something else than the unit."""
    graph = _Graph()
    inputs, states, known = _start(netlist, graph)
    plain, mutant = _switched(netlist, known, 0), _switched(netlist, known, number)
    wanted = netlist.ends()
    copies: dict[Any, int] = {}  # registers that the mutant reaches
    netlist.values(graph, plain, wanted)
    while True:
        other = mutant | {net: leaf ^ (net in netlist.ones) for net, leaf in copies.items()}
        netlist.values(graph, other, wanted)
        reached = [n for n, data in netlist.registers.items() if n not in copies and plain[data] != other[data]]
        if not reached:
            break
        copies |= {net: graph.leaf() for net in reached}
    seen = [
        graph.differ(graph.both(plain[valid], plain[net]), graph.both(other[valid], other[net]))
        for valid, nets in netlist.seen
        for net in nets
        if plain[net] != other[net] or plain[valid] != other[valid]
    ]
    latches = _following(netlist, states, plain) + _following(netlist, copies, other)
    return _aiger(graph, inputs, latches, graph.any(seen))


def _gates(aiger: bytes) -> int:
    """How many gates a file of `_aiger` has."""
    return int(aiger.split(b"\n", 1)[0].split()[-1])


def _aiger(graph: _Graph, inputs: Sequence[int], latches: Sequence[tuple[int, int]], bad: int) -> bytes:
    """Binary AIGER, with what `bad` depends on alone."""
    following, needed, stack = dict(latches), set[int](), [bad]
    while stack:
        node = stack.pop() >> 1
        if node not in needed:
            needed.add(node)
            stack += graph.gates.get(node, ())
            stack += [following[2 * node]] if 2 * node in following else []
    leaves = [leaf for leaf in inputs if leaf >> 1 in needed]
    kept = [leaf for leaf, _ in latches if leaf >> 1 in needed]
    gates = sorted(node for node in graph.gates if node in needed)  # a gate comes after its ends
    place = {0: 0} | {node: 2 * n for n, node in enumerate([leaf >> 1 for leaf in leaves + kept] + gates, start=1)}

    def literal(value: int) -> int:
        return place[value >> 1] ^ value & 1

    head = f"aig {len(place) - 1} {len(leaves)} {len(kept)} 1 {len(gates)}\n"
    lines = [f"{literal(following[leaf])}\n" for leaf in kept] + [f"{literal(bad)}\n"]
    body = bytearray()
    for node in gates:
        low, high = sorted(map(literal, graph.gates[node]))
        for delta in (place[node] - high, high - low):
            while delta > 127:
                body.append(delta & 127 | 128)
                delta >>= 7
            body.append(delta)
    return (head + "".join(lines)).encode() + bytes(body)
