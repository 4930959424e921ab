"""Resistance and capacitance of routed wires, from their lengths and the values of the LEF file.

A wire has the capacitance of its area and of its two edges to the ground, and the resistance of its squares. Vias have
neither, because the LEF file of osu018 gives no values for them. Wires do not couple with each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from synth.fanout import PORT_INVERTERS
from synth.layout.connectivity import Connectivity
from synth.layout.design import Design
from synth.layout.lef import Box, Lef
from synth.layout.wires import Segment
from synth.library.reader import Library
from synth.parasitics import Parasitics
from util.files import version

Terminal = tuple[str, str]  # (instance, pin) or (`PIN`, port)


@dataclass(frozen=True)
class Network:
    """The wires of one net as resistors and capacitors.

    Attributes
    ----------
    net : name ; driver : terminal that drives it ; sinks : its other terminals
    length : of its wires in nm
    nodes : node -> capacitance of wires in F ; terminals : terminal -> node
    resistors : (node, node, ohms)
    """

    net: str
    driver: Terminal
    sinks: tuple[Terminal, ...]
    length: int
    nodes: dict[int, float]
    terminals: dict[Terminal, int]
    resistors: tuple[tuple[int, int, float], ...]

    @property
    def farads(self) -> float:
        """Capacitance of the wires."""
        return sum(self.nodes.values())

    @property
    def ohms(self) -> float:
        """Sum of the resistances."""
        return sum(ohms for _, _, ohms in self.resistors)

    def elmore(self, pins: Callable[[Terminal], float]) -> dict[Terminal, float]:
        """Elmore delay in s from the driver to each sink, with the capacitance `pins` (in F) of a terminal.

        A loop of wires counts as a tree: the resistor that closes it is left out.
        """
        load = dict(self.nodes)
        for terminal in self.sinks:
            load[self.terminals[terminal]] += pins(terminal)
        neighbours: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for a, b, ohms in self.resistors:
            neighbours[a].append((b, ohms))
            neighbours[b].append((a, ohms))
        start = self.terminals[self.driver]
        order, above = [start], {start: (start, 0.0)}
        for node in order:
            for other, ohms in neighbours[node]:
                if other not in above:
                    above[other] = node, ohms
                    order.append(other)
        below = {node: load[node] for node in order}
        for node in reversed(order[1:]):
            below[above[node][0]] += below[node]
        delay = {start: 0.0}
        for node in order[1:]:
            parent, ohms = above[node]
            delay[node] = delay[parent] + ohms * below[node]
        return {terminal: delay[self.terminals[terminal]] for terminal in self.sinks}


@dataclass(frozen=True)
class Extraction:
    """Networks of all routed nets."""

    networks: dict[str, Network]

    @property
    def farads(self) -> float:
        return sum(network.farads for network in self.networks.values())

    def parasitics(self, design: Design, library: Library) -> Parasitics:
        """Capacitances and delays for static timing and power."""
        pins = _pin_farads(design, library)
        cells: dict[tuple[str, str], float] = {}
        outputs: dict[tuple[str, int], float] = {}
        ports = {port.name: port for port in design.ports}
        for network in self.networks.values():
            for (instance, pin), delay in network.elmore(pins).items():
                if instance == "PIN":
                    outputs[ports[pin].bit] = delay
                else:
                    cells[design.sources[instance], pin] = delay
        farads = dict.fromkeys(design.bits.values(), 0.0)
        farads |= {design.bits[name]: network.farads for name, network in self.networks.items()}
        return Parasitics(farads, cells, outputs)

    def spef(self, design: Design) -> str:
        """The networks in the Standard Parasitic Exchange Format (IEEE 1481)."""
        head = [
            '*SPEF "IEEE 1481-1998"',
            f'*DESIGN "{design.name}"',
            '*DATE "unknown"',
            '*VENDOR "vrex"',
            '*PROGRAM "vrex layout"',
            f'*VERSION "{version()}"',
            '*DESIGN_FLOW "PIN_CAP NONE" "NAME_SCOPE LOCAL"',
            "*DIVIDER /",
            "*DELIMITER :",
            "*BUS_DELIMITER [ ]",
            "*T_UNIT 1 PS",
            "*C_UNIT 1 FF",
            "*R_UNIT 1 OHM",
            "*L_UNIT 1 HENRY",
            "",
            "*PORTS",
            *(f"{port.name} {'O' if port.output else 'I'}" for port in design.ports),
        ]
        return "\n".join([*head, *(_spef(network, design) for network in self.networks.values()), ""])


def _spef(network: Network, design: Design) -> str:
    names = {node: f"{network.net}:{k}" for k, node in enumerate(network.nodes, start=1)}
    outputs = {port.name: port.output for port in design.ports}
    connections, used = [], set()
    extra: list[tuple[str, str]] = []
    for (instance, pin), node in network.terminals.items():
        if instance == "PIN":
            name, line = pin, f"*P {pin} {'O' if outputs[pin] else 'I'}"
        else:
            name = f"{instance}:{pin}"
            line = f"*I {name} {'O' if (instance, pin) == network.driver else 'I'}"
        connections.append(line)
        if node in used:  # two terminals at one node, such as pins of abutted cells
            extra.append((names[node], name))
        else:
            names[node] = name
            used.add(node)
    lines = ["", f"*D_NET {network.net} {network.farads * 1e15:.5f}", "*CONN", *connections, "*CAP"]
    loads = [(node, farads) for node, farads in network.nodes.items() if farads > 0]
    lines += [f"{k} {names[node]} {farads * 1e15:.5f}" for k, (node, farads) in enumerate(loads, start=1)]
    pairs = [(names[a], names[b], ohms) for a, b, ohms in network.resistors]
    pairs += [(a, b, 1e-3) for a, b in extra]
    lines += ["*RES", *(f"{k} {a} {b} {ohms:.5f}" for k, (a, b, ohms) in enumerate(pairs, start=1)), "*END"]
    return "\n".join(lines)


def port_farads(library: Library) -> float:
    """Load of an output port in F, outside the unit, as in `synth.netlist`."""
    inverter = library.inverter
    return PORT_INVERTERS * (inverter.pins[inverter.inputs[0]].capacitance * library.farads + library.wire_farads)


def _pin_farads(design: Design, library: Library) -> Callable[[Terminal], float]:
    port = port_farads(library)

    def farads(terminal: Terminal) -> float:
        instance, pin = terminal
        if instance == "PIN":
            return port
        return library.cell(design.cells[instance]).pins[pin].largest_capacitance * library.farads

    return farads


def extract(design: Design, lef: Lef, library: Library, connectivity: Connectivity) -> Extraction:
    """Extract every net of a layout without open nets.

    Raises
    ------
    ValueError
        A net is open or has no driver.
    """
    if connectivity.open_nets:
        raise ValueError(f"layout must have no open net, got {', '.join(connectivity.open_nets[:3])}")
    shapes = connectivity.geometry
    members: dict[str, list[int]] = defaultdict(list)
    for k, node in enumerate(shapes.nodes):
        if node.net is not None:
            members[node.net].append(k)
    contacts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for first, second in connectivity.contacts:
        contacts[shapes.nodes[shapes.of[first]].net or ""].append((first, second))
    outputs = {port.name: port.output for port in design.ports}

    def drives(terminal: Terminal) -> bool:
        instance, pin = terminal
        if instance == "PIN":
            return not outputs[pin]
        return pin in library.cell(design.cells[instance]).outputs

    networks = {}
    for net, terminals in design.nets.items():
        drivers = [terminal for terminal in terminals if drives(terminal)]
        if len(drivers) != 1:
            raise ValueError(f"net {net} must have one driver, got {len(drivers)}")
        networks[net] = _network(net, drivers[0], terminals, members[net], contacts[net], lef, connectivity)
    return Extraction(networks)


def _network(
    net: str,
    driver: Terminal,
    terminals: list[Terminal],
    members: list[int],
    contacts: list[tuple[int, int]],
    lef: Lef,
    connectivity: Connectivity,
) -> Network:
    shapes = connectivity.geometry
    taps: dict[int, set[int]] = {}  # node of a segment -> positions along it in nm
    for k in members:
        owner = shapes.nodes[k].owner
        if isinstance(owner, Segment):
            taps[k] = {0, owner.length}

    def tap(k: int, box: Box) -> tuple[int, int]:
        """The point of a node nearest to the centre of `box`."""
        owner = shapes.nodes[k].owner
        if not isinstance(owner, Segment):
            return k, 0
        x, y = (box[0] + box[2]) // 2, (box[1] + box[3]) // 2
        along = x - min(owner.x0, owner.x1) if owner.y0 == owner.y1 else y - min(owner.y0, owner.y1)
        position = min(max(along, 0), owner.length)
        taps[k].add(position)
        return k, position

    parents: dict[tuple[int, int], tuple[int, int]] = {}

    def root(point: tuple[int, int]) -> tuple[int, int]:
        parents.setdefault(point, point)
        while parents[point] != point:
            parents[point] = parents[parents[point]]
            point = parents[point]
        return point

    for first, second in contacts:
        a, b = shapes.boxes[first], shapes.boxes[second]
        overlap = max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])
        parents[root(tap(shapes.of[first], overlap))] = root(tap(shapes.of[second], overlap))
    numbers: dict[tuple[int, int], int] = {}

    def number(point: tuple[int, int]) -> int:
        return numbers.setdefault(root(point), len(numbers))

    places = {}
    for k in members:
        owner = shapes.nodes[k].owner
        if isinstance(owner, tuple) and owner in terminals:
            places[owner] = number((k, 0))
    capacitance: dict[int, float] = defaultdict(float)
    resistors = []
    length = 0
    for k, positions in taps.items():
        segment = shapes.nodes[k].owner
        assert isinstance(segment, Segment)
        layer = lef.layers[segment.layer]
        femtofarads = layer.area_ff * segment.width / 1000 + 2 * layer.edge_ff
        length += segment.length
        ordered = sorted(positions)
        for low, high in pairwise(ordered):
            start, end = number((k, low)), number((k, high))
            half = femtofarads * (high - low) / 1000 * 1e-15 / 2
            capacitance[start] += half
            capacitance[end] += half
            if start != end:
                resistors.append((start, end, layer.ohms * (high - low) / segment.width))
    nodes = {node: capacitance[node] for node in sorted({*capacitance, *places.values()})}
    sinks = tuple(terminal for terminal in terminals if terminal != driver)
    return Network(net, driver, sinks, length, nodes, places, tuple(resistors))
